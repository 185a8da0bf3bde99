import importlib
import math
import shlex

import benchmark
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import bayesncl
import common
import lpjepa
import nce
import ncl
import simclr
import simsiam
from conftest import run_program


# ------------------------------------------------------- ncl.py, bayesncl.py, nce.py, simsiam.py
def small_model(method, flags=""):
    """A method's network with five outputs, for images of 8 pixels, with weights of seed 0."""
    small = "--device cpu --arch resnet8 --image-size 8 --head-out 5"
    args = method.parser().parse(shlex.split(f"{small} {flags}"))
    args.classes = 5  # of nce.py, which counts them
    torch.manual_seed(0)
    return method.network(args)


@pytest.fixture
def small_images():
    return torch.randn(12, 3, 8, 8)


@pytest.fixture
def rotation():
    """An orthogonal matrix (6, 6)."""
    return torch.linalg.qr(torch.randn(6, 6))[0]


def nt_xent_at_02(z1, z2):
    return ncl.nt_xent(z1, z2, 0.2)


of_inner_products = pytest.mark.parametrize(
    "loss", [nt_xent_at_02, ncl.spectral_loss], ids=["ntxent", "spectral"]
)


@of_inner_products
def test_rotations_do_not_change_the_loss(loss, rotation):
    z1, z2 = torch.randn(2, 20, 6)
    rotated = loss(z1 @ rotation, z2 @ rotation)
    assert rotated.item() == pytest.approx(loss(z1, z2).item(), rel=1e-4)


@of_inner_products
def test_rotations_change_ncls_loss(loss, rotation):
    z1, z2 = torch.randn(2, 20, 6).relu()
    rotated = loss((z1 @ rotation).relu(), (z2 @ rotation).relu())
    assert abs(rotated - loss(z1, z2)) > 0.05


def test_the_spectral_loss_of_orthogonal_images_is_least():
    z = torch.eye(6)
    assert ncl.spectral_loss(z, z) == -2


@pytest.mark.parametrize("of", ["views", "captions"])
def test_the_spectral_loss_is_a_matrix_factorisation(of):
    """[NCL]: a batch's loss estimates ‖Ā − F Gᵀ‖² − ‖Ā‖².

    Ā = P(x, x') / √(P(x) P(x')); F, G ≥ 0 and, of views, equal.
    """
    joint = torch.rand(9, 9)  # P(x, x') of two views, or of image and caption
    f, g = torch.randn(2, 9, 4).relu()
    if of == "views":
        joint, g = joint + joint.T, f
    joint = joint / joint.sum()
    p = joint.sum(1)[:, None]
    q = joint.sum(0)[:, None]
    A = joint / (p * q.T).sqrt()
    product = (p.sqrt() * f) @ (q.sqrt() * g).T
    distance = (A - product).square().sum() - A.square().sum()

    drawn = torch.multinomial(joint.flatten(), 200 * 500, replacement=True).view(200, 500)
    estimates = torch.stack([ncl.spectral_loss(f[pairs // 9], g[pairs % 9]) for pairs in drawn])
    assert abs(estimates.mean() - distance) < 5 * estimates.std() / math.sqrt(200)


# ---- activations
def gelu_formula(z):
    return z * torch.distributions.Normal(0, 1).cdf(z)


def sigmoid_formula(z):
    return 1 / (1 + torch.exp(-z))


def softplus_formula(z):
    return torch.log(1 + torch.exp(z))


def leaky_relu_formula(z):
    return torch.where(z > 0, z, 0.01 * z)


def identity_formula(z):
    return z


ACTIVATION_FORMULAS = {  # of an activation's value, and of the function whose gradient it has
    "rep_relu": (torch.relu, gelu_formula),
    "relu": (torch.relu, torch.relu),
    "gelu": (gelu_formula, gelu_formula),
    "sigmoid": (sigmoid_formula, sigmoid_formula),
    "softplus": (softplus_formula, softplus_formula),
    "exp": (torch.exp, torch.exp),
    "leaky_relu": (leaky_relu_formula, leaky_relu_formula),
    "none": (identity_formula, identity_formula),
}


@pytest.fixture(params=[ncl, bayesncl, nce], ids=["ncl", "bayesncl", "nce"])
def activations_of(request):
    return request.param.ACTIVATIONS


def test_the_activations_are_the_ones_tested(activations_of):
    assert list(activations_of) == list(ACTIVATION_FORMULAS)


@pytest.mark.parametrize("kind", ACTIVATION_FORMULAS)
def test_an_activation_is_its_formula(activations_of, kind):
    z = torch.randn(100, 6)
    value, _ = ACTIVATION_FORMULAS[kind]
    assert torch.allclose(activations_of[kind](z), value(z), atol=1e-6)


@pytest.mark.parametrize("kind", ACTIVATION_FORMULAS)
def test_an_activation_has_its_formulas_gradient(activations_of, kind):
    z = torch.randn(100, 6, requires_grad=True)
    _, smooth = ACTIVATION_FORMULAS[kind]
    (ours,) = torch.autograd.grad(activations_of[kind](z).sum(), z)
    (known,) = torch.autograd.grad(smooth(z).sum(), z)
    assert torch.allclose(ours, known, atol=1e-6)


def test_rows_of_zeros_keep_a_bounded_gradient():
    """On a row of negatives rep_relu is 0; eps = 1e-12 would multiply its gradient by 1e12."""
    z = torch.randn(8, 6)
    z[:2] = -torch.rand(2, 6)
    z.requires_grad_()
    embedding = ncl.rep_relu(z)
    loss = ncl.nt_xent(embedding, embedding.flip(0), 0.2)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.isfinite()
    assert gradient[:2].abs().max() > 0
    assert gradient.abs().max() < 200


def test_topk_keeps_the_largest_of_each_row():
    z = torch.randn(50, 6, requires_grad=True)
    kept = ncl.keep_topk(z, 3)
    (gradient,) = torch.autograd.grad(kept.sum(), z)
    largest = z >= z.sort(1, descending=True).values[:, 2:3]
    assert torch.equal(kept, z * largest)
    assert torch.equal(gradient, largest.float())


def test_ncls_network_keeps_its_largest_activations(small_images):
    _, z = small_model(ncl, "--activation sigmoid")(small_images)
    _, kept = small_model(ncl, "--activation sigmoid --topk 2")(small_images)
    assert torch.equal(kept, ncl.keep_topk(z, 2))


# ---- NCE
@pytest.mark.parametrize("activation", ["relu", "rep_relu"])
def test_nce_without_projector_is_cross_entropy(small_images, activation):
    h, f, scores = small_model(nce, "--loss ce")(small_images)
    _, f_plus, same = small_model(nce, f"--activation {activation}")(small_images)
    assert f.min() >= 0  # a mean of a ReLU
    assert torch.allclose(f, f_plus, atol=1e-6)
    assert torch.allclose(scores, same, atol=1e-6)


def test_nces_features_with_projector_are_not_negative(small_images):
    _, f, _ = small_model(nce, "--head mlp --loss ce")(small_images)
    _, f_plus, _ = small_model(nce, "--head mlp")(small_images)
    assert torch.allclose(f_plus, f.relu(), atol=1e-6)


@pytest.mark.parametrize("kind", ["free", "non-negative"])
def test_nces_scores_are_products_with_the_weights(small_images, kind):
    model = small_model(nce, f"--weights {kind}")
    _, f, scores = model(small_images)
    W = model.classifier.weight
    if kind == "non-negative":
        W = W.relu()
    assert torch.allclose(scores, f @ W.T, atol=1e-6)


def test_top_1_and_top_5_count_ranks():
    scores = torch.arange(10.0, 0, -1).repeat(5, 1)  # class 0 is first, class 9 last
    found = nce.accuracy(scores, torch.tensor([0, 1, 4, 5, 9]))
    assert found == pytest.approx({"top1": 20, "top5": 60})


def test_top_5_of_few_classes_is_all():
    scores = torch.randn(40, 3)
    found = nce.accuracy(scores, scores.argmin(1))
    assert found == {"top1": 0, "top5": 100}


# ---- the gate
@pytest.fixture
def gate_logits():
    return torch.randn(20_000, 8, requires_grad=True)


def test_the_gate_is_open_above_one_half(gate_logits):
    m, alpha = bayesncl.gate(gate_logits, "ste", temperature=2.0)
    assert torch.equal(m, (gate_logits > 0).float())
    assert torch.allclose(alpha, sigmoid_formula(gate_logits / 2))


def test_the_gates_gradient_is_that_of_alpha(gate_logits):
    w = torch.randn(20_000, 8)
    m, alpha = bayesncl.gate(gate_logits, "ste", temperature=2.0)
    (gradient,) = torch.autograd.grad((w * m).sum(), gate_logits)
    assert torch.allclose(gradient, w * alpha * (1 - alpha) / 2, atol=1e-7)


def test_a_soft_gate_is_alpha(gate_logits):
    m, alpha = bayesncl.gate(gate_logits, "soft")
    assert torch.equal(m, alpha)


def test_no_gate_keeps_everything(gate_logits):
    m, alpha = bayesncl.gate(gate_logits, "none", training=True)
    assert m.min() == 1
    assert not alpha.requires_grad


def above_gumbel(logits):
    """P(l + noise > 0) of Gumbel noise."""
    return 1 - torch.exp(-torch.exp(logits))


of_noise = pytest.mark.parametrize(
    "kind, probability",
    [("logistic", sigmoid_formula), ("gumbel", above_gumbel)],
    ids=["logistic", "gumbel"],
)


@of_noise
@pytest.mark.parametrize("low, high", [(0, 1), (0, 0.3), (0.7, 0.8)], ids=["all", "low", "high"])
def test_noisy_gates_open_as_often_as_their_noise(gate_logits, kind, probability, low, high):
    m, alpha = bayesncl.gate(gate_logits, kind, training=True)
    part = (alpha > low) & (alpha < high)
    difference = m - probability(gate_logits)
    assert {*m.unique().tolist()} == {0, 1}
    assert abs(difference[part].mean()) < 0.02


@of_noise
def test_a_noisy_gate_has_the_gradient_of_its_sigmoid(kind, probability):
    logits = torch.zeros(4000, 8, requires_grad=True)
    m, _ = bayesncl.gate(logits, kind, temperature=2.0, training=True)
    (gradient,) = torch.autograd.grad(m.sum(), logits)
    assert gradient.max() <= 1 / 4 / 2  # of sigmoid(x / 2), at x = 0
    assert gradient.std() > 0.01  # the noise is in it


@of_noise
def test_gates_have_no_noise_in_evaluation(gate_logits, kind, probability):
    m, _ = bayesncl.gate(gate_logits, kind)
    assert torch.equal(m, (gate_logits > 0).float())


def test_the_networks_gate_is_noisy_in_training_alone(small_images):
    model = small_model(bayesncl, "--gate logistic")
    assert not torch.equal(model(small_images)[2], model(small_images)[2])
    model.eval()
    assert torch.equal(model(small_images)[2], model(small_images)[2])


def test_the_networks_gate_has_its_temperature(small_images):
    *_, alpha = small_model(bayesncl)(small_images)
    *_, flat = small_model(bayesncl, "--gate-temperature 4")(small_images)
    assert torch.allclose(torch.logit(flat), torch.logit(alpha) / 4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_gating_head_has_its_layers(layers):
    head = bayesncl.gating_head(6, 8, 5, layers)
    widths = [tuple(layer.weight.shape) for layer in head.modules() if hasattr(layer, "weight")]
    assert widths == {1: [(5, 6)], 2: [(8, 6), (5, 8)], 3: [(8, 6), (4, 8), (5, 4)]}[layers]
    assert sum(isinstance(layer, nn.ReLU) for layer in head.modules()) == layers - 1


# ---- its divergence
def both_divergences(alpha, rho):
    """The KL divergence, ours and torch's."""
    p = torch.distributions.Bernoulli(alpha)
    q = torch.distributions.Bernoulli(torch.tensor(rho))
    theirs = torch.distributions.kl_divergence(p, q).sum(1).mean()
    return bayesncl.bernoulli_kl(alpha, rho), theirs


def test_the_divergence_is_torchs():
    alpha = torch.rand(30, 7).clamp(0.011, 0.989).requires_grad_()
    ours, theirs = both_divergences(alpha, 0.3)
    gradients = [torch.autograd.grad(kl, alpha)[0] for kl in (ours, theirs)]
    assert torch.allclose(ours, theirs, rtol=1e-5)
    assert torch.allclose(*gradients, atol=1e-5)


@pytest.mark.parametrize("rho", [0.8, 0.0, 1.0])
def test_the_divergence_of_the_extremes_is_finite(rho):
    alpha = torch.tensor([[0.0, 1.0]], requires_grad=True)
    kl = bayesncl.bernoulli_kl(alpha, rho)
    (gradient,) = torch.autograd.grad(kl, alpha)
    assert kl.isfinite()
    assert gradient.isfinite().all()


# ---- what it costs
def test_the_gate_costs_its_layers():
    cost = benchmark.cost(bayesncl.PRESETS["cifar100"])
    weights = 512 * 2048 + 2048 * 256
    assert cost["flops"] - cost["flops_ncl"] == 2 * weights
    assert cost["params"] - cost["params_ncl"] == weights + 2048 + 256


@pytest.mark.parametrize("name, gflops", [("cifar100", 0.003), ("imagenet100", 0.084)])
def test_the_gate_costs_what_the_paper_says(name, gflops):
    cost = benchmark.cost(bayesncl.PRESETS[name])
    assert round((cost["flops"] - cost["flops_ncl"]) / 1e9, 3) == gflops


# ---- BayesNCL's network
of_detach = pytest.mark.parametrize("flag", ["", "--no-detach"], ids=["detach", "no-detach"])


@of_detach
def test_the_divergence_reaches_the_backbone_if_asked(small_images, flag):
    model = small_model(bayesncl, flag)
    *_, alpha = model(small_images)
    kl = bayesncl.bernoulli_kl(alpha, 0.8)
    weights = [next(model.backbone.parameters()), model.gating[0].weight]
    backbone, gating = torch.autograd.grad(kl, weights, allow_unused=True)
    assert (backbone is not None) == (flag == "--no-detach")
    assert gating.abs().sum() > 0


@of_detach
def test_the_mask_is_a_constant_to_the_backbone(small_images, flag):
    model = small_model(bayesncl, flag)
    h, masked, m, _ = model(small_images)
    z = model.activation(model.head(h))
    weight = torch.randn(12, 5)
    first = next(model.backbone.parameters())
    (ours,) = torch.autograd.grad((weight * masked).sum(), first, retain_graph=True)
    (fixed,) = torch.autograd.grad((weight * z * m.detach()).sum(), first)
    assert torch.allclose(ours, fixed, rtol=1e-4, atol=1e-5) == (flag == "")


@pytest.mark.parametrize("head", ["mlp", "linear", "none"])
def test_bayesncl_without_gate_is_ncl(small_images, head):
    flags = f"--head {head} --activation softplus"
    _, z = small_model(ncl, flags)(small_images)
    _, plain, _, _ = small_model(bayesncl, f"{flags} --gate none")(small_images)
    assert torch.equal(plain, z)


@pytest.fixture
def rarity_weighted():
    return small_model(bayesncl, "--gate none --similarity ipw")


def test_ipw_divides_by_the_root_of_the_frequency(rarity_weighted, small_images):
    _, z = small_model(ncl)(small_images)
    frequency = 0.99 + 0.01 * (z > 0).float().mean(0)
    _, weighted, _, _ = rarity_weighted(small_images)
    assert torch.allclose(weighted, z / frequency.sqrt(), atol=1e-6)
    assert torch.allclose(rarity_weighted.frequency, frequency)


def test_evaluation_does_not_move_the_frequency(rarity_weighted, small_images):
    rarity_weighted.eval()
    rarity_weighted(small_images)
    assert rarity_weighted.frequency.tolist() == [1] * 5


def test_a_rare_dimension_weighs_at_most_tenfold(rarity_weighted):
    rarity_weighted.eval()
    rarity_weighted.frequency.zero_()
    z = torch.rand(4, 5)
    assert torch.allclose(rarity_weighted.weighted_by_rarity(z), 10 * z)


# ---- SimSiam
@pytest.mark.parametrize("stopped", [True, False])
def test_simsiams_target_gets_gradient_if_asked(stopped):
    p, z = torch.randn(2, 7, 5, requires_grad=True)
    loss = simsiam.negative_cosine(p, z, stop_gradient=stopped)
    of_p, of_z = torch.autograd.grad(loss, [p, z], allow_unused=True)
    assert of_p.abs().sum() > 0
    assert (of_z is None) == stopped


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_simsiams_projector_has_its_layers(layers):
    head = simsiam.projector(6, 5, layers)
    kinds = [type(layer).__name__ for layer in head]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU"] * (layers - 1) + ["Linear", "BatchNorm1d"]
    assert [layer.in_features for layer in head[::3]] == [6, 5, 5][:layers]
    assert not head[-1].affine


def test_collapsed_embeddings_lie_on_a_line():
    collapsed = torch.zeros(100, 6)
    collapsed[:10] = torch.randn(6)  # two points, one in ten at the second
    z = simsiam.projector(6, 8, layers=1)(collapsed)
    assert torch.linalg.matrix_rank(z, atol=1e-2) == 1
    assert common.health(z)["spread"].item() == pytest.approx(2 * math.sqrt(0.1 * 0.9), rel=0.02)


def test_simsiams_predictor_is_a_bottleneck(small_images):
    model = small_model(simsiam, "--predictor-hidden 2")
    _, z, p = model(small_images)
    assert torch.allclose(p, model.predictor(z), atol=1e-6)
    assert torch.linalg.matrix_rank(p - p[0], atol=1e-4) == 2


def test_without_predictor_simsiams_prediction_is_the_embedding(small_images):
    _, z, p = small_model(simsiam, "--no-predictor")(small_images)
    assert torch.equal(p, z)


@pytest.mark.parametrize("flag, zero", [("--zero-init-residual", True), ("", False)])
def test_residual_branches_start_at_zero_if_asked(flag, zero):
    norms = small_model(simsiam, flag).backbone.state_dict()
    last = [norms[name].any().item() for name in norms if name.endswith("bn2.weight")]
    assert last == [not zero] * 3


# ---- the programs' first step
class FirstEpoch(Exception):
    """Raised at the end of a program's first epoch, with its log and its optimizer."""


@pytest.fixture
def first_epoch(tiny, tmp_path, monkeypatch):
    """A function: a command → the scalars of its first step, and its optimizer after 4 of 12."""

    def end_epoch(run, epoch, log, model, optimizer):
        raise FirstEpoch(log[0], optimizer)

    monkeypatch.setattr(common.Run, "end_epoch", end_epoch)

    def run(command):
        with pytest.raises(FirstEpoch) as stopped:
            run_program(f"{command} {tiny} --precision fp32 --out", tmp_path / "run")
        return stopped.value.args

    return run


@pytest.fixture
def first_batch(tiny):
    """A function: a method and flags → what its first step starts from.

    The settings, the network, images (60, 3, 32, 32) and their labels; the generator of random
    numbers stands where it stands in the program.
    """

    def start(method, flags=""):
        args = method.parser().parse(shlex.split(f"{tiny} {flags}"))
        torch.manual_seed(args.seed)
        data = common.load_data(args.dataset, args.data_root)
        args.classes = 10
        model = method.network(args)
        images, index = next(data.batches(args.batch_size, args.seed, 0, "cpu"))
        torch.manual_seed(args.seed * 10_007**2)
        return args, model, images, data.y_train[index]

    return start


def options_of_views(args):
    names = ["min_scale", "jitter", "gray", "blur", "crop"]
    return {"size": args.image_size} | {name: getattr(args, name) for name in names}


@pytest.mark.parametrize("flags", ["", "--no-predictor"], ids=["predictor", "no-predictor"])
def test_simsiams_step_is_its_equation(first_epoch, first_batch, flags):
    scalars, _ = first_epoch(f"simsiam.py {flags}")
    args, model, images, _ = first_batch(simsiam, flags)
    v1, v2 = common.two_views(images, **options_of_views(args))
    _, z1, p1 = model(v1)
    _, z2, p2 = model(v2)
    cosines = F.cosine_similarity(p1, z2) / 2 + F.cosine_similarity(p2, z1) / 2
    assert scalars["loss"].item() == pytest.approx(-cosines.mean().item(), abs=1e-4)


def test_simsiams_predictor_keeps_its_learning_rate(first_epoch):
    _, optimizer = first_epoch("simsiam.py --lr 0.1")
    others, predictor = optimizer.param_groups
    assert others["lr"] == pytest.approx(0.1 * common.lr_at(3, 12))
    assert predictor["lr"] == 0.1
    assert len(predictor["params"]) == 5  # two weights, a bias and a norm's two


@pytest.mark.parametrize("flag", ["", "--no-stop-grad"], ids=["stop-grad", "no-stop-grad"])
def test_simsiams_program_stops_gradients_unless_told(first_epoch, monkeypatch, flag):
    stopped = []

    def distance(p, z, stop_gradient):
        stopped.append(stop_gradient)
        return (p * z).mean()

    monkeypatch.setattr(simsiam, "negative_cosine", distance)
    first_epoch(f"simsiam.py {flag}")
    assert stopped == [flag == ""] * 8  # four steps, twice each


def test_bayesncls_step_is_its_equation(first_epoch, first_batch):
    scalars, _ = first_epoch("bayesncl.py --kl-weight 0.5 --prior 0.3")
    args, model, images, _ = first_batch(bayesncl)
    v1, v2 = common.two_views(images, **options_of_views(args))
    _, z1, m1, alpha1 = model(v1)
    _, z2, _, alpha2 = model(v2)
    _, kl = both_divergences(torch.cat([alpha1, alpha2]), 0.3)
    loss = ncl.nt_xent(z1, z2, args.temperature) + 0.5 * kl
    assert scalars["loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    assert scalars["kl"].item() == pytest.approx(kl.item(), rel=1e-4)
    assert scalars["open"].item() == pytest.approx(m1.mean().item(), abs=1e-3)


@pytest.mark.parametrize("name", ["ncl", "bayesncl", "nce", "simsiam", "lpjepa"])
def test_every_weight_is_trained_once(first_epoch, first_batch, name):
    _, optimizer = first_epoch(f"{name}.py")
    _, model, _, _ = first_batch(importlib.import_module(name))
    trained = []
    for group in optimizer.param_groups:
        trained += [tuple(p.shape) for p in group["params"]]
    assert sorted(trained) == sorted(tuple(p.shape) for p in model.parameters())


def test_the_gate_has_its_own_learning_rate(first_epoch):
    _, optimizer = first_epoch("bayesncl.py --lr 0.1 --gate-lr 0.02")
    others, gating = optimizer.param_groups
    assert gating["lr"] == pytest.approx(0.2 * others["lr"])
    assert len(gating["params"]) == 4  # two weights, two biases


def test_ncls_step_is_its_equation(first_epoch, first_batch):
    scalars, _ = first_epoch("ncl.py --temperature 0.3")
    args, model, images, _ = first_batch(ncl)
    v1, v2 = common.two_views(images, **options_of_views(args))
    loss = simclr.nt_xent(model(v1)[1], model(v2)[1], 0.3)
    assert scalars["loss"].item() == pytest.approx(loss.item(), rel=1e-4)


def test_nces_step_is_its_equation(first_epoch, first_batch):
    scalars, _ = first_epoch("nce.py --jitter 0.4")
    args, model, images, y = first_batch(nce, "--jitter 0.4")
    x = common.augment(images, **options_of_views(args))
    _, _, scores = model(common.normalise(x))
    loss = F.cross_entropy(scores, y)
    assert scalars["loss"].item() == pytest.approx(loss.item(), rel=1e-4)


def test_lpjepas_step_is_its_equation(first_epoch, first_batch, monkeypatch):
    calls = []

    def distance(z, target, directions):
        calls.append((z, target, directions))
        return z.sum() * 0 + len(calls)  # 1 for the first view, 2 for the second

    monkeypatch.setattr(lpjepa, "sliced_wasserstein", distance)
    scalars, _ = first_epoch("lpjepa.py --invariance-weight 7 --match-weight 11")
    args, model, images, _ = first_batch(lpjepa)
    v1, v2 = common.two_views(images, **options_of_views(args))
    invariance = (model(v1)[1] - model(v2)[1]).square().mean().item()
    assert scalars["distance"] == 1.5
    assert scalars["invariance"].item() == pytest.approx(invariance, rel=1e-3)
    assert scalars["loss"].item() == pytest.approx(7 * invariance + 11 * 1.5, rel=1e-4)


def test_lpjepas_views_draw_each_other(first_epoch, monkeypatch):
    views = []

    def no_distance(z, target, directions):
        z.retain_grad()
        views.append(z)
        return 0 * z.sum()

    monkeypatch.setattr(lpjepa, "sliced_wasserstein", no_distance)
    first_epoch("lpjepa.py")
    z1, z2 = views[:2]
    assert z1.grad.abs().sum() > 0
    assert torch.allclose(z1.grad, -z2.grad)


def test_lpjepa_draws_targets_and_directions(first_epoch, monkeypatch):
    calls = []

    def distance(z, target, directions):
        calls.append((target, directions))
        return z.mean()

    monkeypatch.setattr(lpjepa, "sliced_wasserstein", distance)
    first_epoch("lpjepa.py --mu -0.5 --noise gaussian --projections 30")
    (first, directions), (second, same) = calls[:2]
    active = [(target > 0).float().mean().item() for target in (first, second)]
    assert active == pytest.approx([lpjepa.expected_active(-0.5, "gaussian")] * 2, abs=0.02)
    assert not torch.equal(first, second)
    assert torch.equal(directions, same)
    assert directions.norm(dim=1).tolist() == pytest.approx([1] * 30)


# ------------------------------------------------------------------------------------- lpjepa.py
def laplace_above(x):
    """P(ε > x) of Laplace noise of variance 1, for x ≥ 0."""
    return 0.5 * math.exp(-x * math.sqrt(2))


def gaussian_above(x):
    return 0.5 * math.erfc(x / math.sqrt(2))


of_shapes = pytest.mark.parametrize(
    "noise, above",
    [("laplace", laplace_above), ("gaussian", gaussian_above)],
    ids=["laplace", "gaussian"],
)
of_mu = pytest.mark.parametrize("mu", [-2.5, -1.0, 0.0, 0.8])


@of_shapes
@of_mu
def test_the_expected_share_is_a_tail(noise, above, mu):
    known = above(-mu) if mu <= 0 else 1 - above(mu)
    assert lpjepa.expected_active(mu, noise) == pytest.approx(known)


@of_shapes
@of_mu
@pytest.mark.parametrize("least", [0, 0.5])
def test_samples_have_the_tails_of_their_noise(noise, above, mu, least):
    samples = lpjepa.rectified_samples(torch.rand(200_000), mu, noise)
    share = (samples > least).float().mean()
    assert samples.min() == 0
    assert share.item() == pytest.approx(lpjepa.expected_active(mu - least, noise), abs=0.005)


def test_the_order_of_rows_has_no_distance():
    z = torch.rand(6, 4)
    shuffled = z[torch.randperm(6)]
    assert lpjepa.sliced_wasserstein(z, shuffled, torch.randn(5, 4)) < 1e-12


def unit_directions(P, K):
    return F.normalize(torch.randn(P, K))


def laplace_targets(N, K, mu):
    return lpjepa.rectified_samples(torch.rand(N, K), mu)


@pytest.mark.parametrize("mu", [-1.0, -0.5, 0.5])
def test_the_distance_leads_to_the_share_of_mu(mu):
    points = (2 * torch.rand(500, 2)).requires_grad_()  # nothing but the distance moves them
    optimizer = torch.optim.Adam([points], lr=0.02)
    for _ in range(400):
        target = laplace_targets(500, 2, mu)
        distance = lpjepa.sliced_wasserstein(points.relu(), target, unit_directions(16, 2))
        optimizer.zero_grad()
        distance.backward()
        optimizer.step()
    share = (points > 0.05).float().mean().item()
    assert share == pytest.approx(lpjepa.expected_active(mu - 0.05), abs=0.03)


def half_as_active(N, K):
    """Samples of the mean and the variance of those with μ = −1.15, half as many of them active."""
    active = torch.rand(N, K) < lpjepa.expected_active(-1.15) / 2
    return 2**0.5 * active


@pytest.mark.parametrize("N, K, seen", [(2000, 2, True), (256, 256, False)], ids=["2", "256"])
def test_the_distance_sees_the_share_in_few_dimensions(N, K, seen):
    """Of many dimensions projections are nearly normal: mean and variance tell all."""
    target = laplace_targets(N, K, -1.15)
    directions = unit_directions(500, K)
    wrong = lpjepa.sliced_wasserstein(half_as_active(N, K), target, directions)
    right = lpjepa.sliced_wasserstein(laplace_targets(N, K, -1.15), target, directions)
    assert (wrong > 1.2 * right) == seen


def test_lpjepas_embeddings_are_not_negative(small_images):
    _, z = small_model(lpjepa, "--head-hidden 6")(small_images)
    assert z.min() == 0
    assert z.max() > 0
