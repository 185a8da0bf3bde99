"""The losses of all methods, and sparsehead.py and mmncl.py."""

import copy
import functools
import itertools
import types

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import common
import lpjepa
import mmncl
import nce
import shapes
import simclr
import simsiam
import sparsehead
from conftest import ROOT, records, run_program


def unit(z):
    """Rows of length 1."""
    return z / z.norm(dim=1, keepdim=True)


# ------------------------------------------------------------------------ losses, written as loops
N_PAIRS, N_FEATURES = 7, 5
NCE_LABELS = torch.arange(N_PAIRS) % 3
PROTOTYPES = torch.randn(
    6, N_FEATURES, dtype=torch.double, generator=torch.Generator().manual_seed(0)
)


def naive_nt_xent(z1, z2, temperature):
    z = unit(torch.cat([z1, z2]))
    loss = 0
    for i in range(len(z)):
        terms = torch.exp(z @ z[i] / temperature)
        positive = terms[i - len(z1)]  # the other view
        loss = loss - torch.log(positive / (terms.sum() - terms[i]))
    return loss / len(z)


def naive_info_nce(v, t, temperature):
    terms = torch.exp(unit(v) @ unit(t).T / temperature)
    loss = 0
    for i in range(len(v)):
        loss = loss - torch.log(terms[i, i] / terms[i].sum()) / 2
        loss = loss - torch.log(terms[i, i] / terms[:, i].sum()) / 2
    return loss / len(v)


def cross_entropy_of_scores(f, W):
    return F.cross_entropy(nce.class_scores(f, W), NCE_LABELS)


def naive_cross_entropy(f, W):
    loss = 0
    for i, label in enumerate(NCE_LABELS):
        terms = torch.exp(W @ f[i])
        loss = loss - torch.log(terms[label] / terms.sum())
    return loss / len(f)


def naive_spectral(z1, z2):
    n = len(z1)
    loss = 0
    for i, j in itertools.product(range(n), repeat=2):
        if i == j:
            loss = loss - 2 * (z1[i] @ z2[i]) / n
        else:
            loss = loss + (z1[i] @ z2[j]) ** 2 / (n * (n - 1))
    return loss


def naive_barlow(z1, z2, lambd=0.005):
    loss = 0
    for i, j in itertools.product(range(z1.shape[1]), repeat=2):
        a = z1[:, i] - z1[:, i].mean()
        b = z2[:, j] - z2[:, j].mean()
        c = (a * b).mean() / ((a**2).mean() + 1e-5).sqrt() / ((b**2).mean() + 1e-5).sqrt()
        if i == j:
            loss = loss + (1 - c) ** 2
        else:
            loss = loss + lambd * c**2
    return loss


def naive_vicreg(z1, z2):
    K = z1.shape[1]
    loss = 25 * ((z1 - z2) ** 2).mean()
    for z in (z1, z2):
        covariance = z.T.cov()
        for i, j in itertools.product(range(K), repeat=2):
            if i == j:
                std = (covariance[i, i] + 1e-4).sqrt()
                loss = loss + 25 * F.relu(1 - std) / (2 * K)
            else:
                loss = loss + covariance[i, j] ** 2 / K
    return loss


def naive_wmse(z1, z2, size, splits):
    loss = 0
    for split in range(1, splits + 1):
        order = (torch.arange(len(z1)) * split * 0.618034).frac().argsort()
        for rows in order.split(size):
            whitened = []
            for z in (z1[rows], z2[rows]):
                L = torch.linalg.cholesky(z.T.cov())
                whitened.append(unit((z - z.mean(0)) @ L.inverse().T))
            loss = loss + (2 - 2 * (whitened[0] * whitened[1]).sum(1)).sum()
    return loss / (len(z1) * splits)


def naive_assignment(scores):
    """Three times columns of sum 1, then rows of sum 1."""
    Q = torch.exp(scores.detach() / 0.05)
    for _ in range(3):
        Q = torch.stack([column / column.sum() for column in Q.T], 1)
        Q = torch.stack([row / row.sum() for row in Q])
    return Q


def naive_swav(z1, z2, prototypes=PROTOTYPES):
    s1 = unit(z1) @ unit(prototypes).T
    s2 = unit(z2) @ unit(prototypes).T
    loss = 0
    for ours, other in (s1, s2), (s2, s1):
        for scores, q in zip(ours, naive_assignment(other)):
            p = torch.exp(scores / 0.1)
            loss = loss - q @ torch.log(p / p.sum())
    return loss / (2 * len(z1))


def naive_hsic(*views):
    """By tr(K H L H), L = 1 for views of one image, which counts K's diagonal of ones too."""
    M = len(views)
    z = unit(torch.cat(views))
    n = len(z)
    K = 1 / (1 + (z[:, None] - z).square().sum(2)).sqrt()
    L = torch.eye(n // M, dtype=z.dtype).tile(M, M)
    H = torch.eye(n, dtype=z.dtype) - 1 / n
    biased = (K @ H @ L @ H).trace() / (n * (M - 1))
    of_diagonal = 1 / (M - 1)
    of_mean = K.mean() * (M / (M - 1) - 1)
    zy = biased - of_diagonal + of_mean
    zz = (H @ K @ H).square().sum() / n**2
    return 3 * zz.sqrt() - zy


def naive_distance(z, target):
    """Of all plans the best, for each direction."""
    plans = torch.tensor(list(itertools.permutations(range(len(z)))))  # (n!, n)
    loss = 0
    for direction in PROTOTYPES[:2]:
        costs = (z @ direction - (target @ direction)[plans]) ** 2
        loss = loss + costs.mean(1).min() / 2
    return loss


def naive_byol(p, t):
    difference = unit(p) - unit(t.detach())
    return difference.square().sum() / len(p)


def naive_negative_cosine(p, z, stop_gradient=True):
    if stop_gradient:
        z = z.detach()
    return -(unit(p) * unit(z)).sum() / len(p)


def four_views(z1, z2):
    return z1, z2, z1.flip(1), z2.flip(1)


def twelve_rows(z):
    return z.repeat(2, 1)[:12, :3]


def our_wmse(z1, z2):
    return sparsehead.wmse_loss(twelve_rows(z1), twelve_rows(z2), size=6, splits=2)


def loop_wmse(z1, z2):
    return naive_wmse(twelve_rows(z1), twelve_rows(z2), size=6, splits=2)


def our_hsic_of_four(z1, z2):
    return sparsehead.hsic_loss(*four_views(z1, z2))


def loop_hsic_of_four(z1, z2):
    return naive_hsic(*four_views(z1, z2))


def with_options(ours, naive, **options):
    return functools.partial(ours, **options), functools.partial(naive, **options)


LOSSES = {  # ours and the loop
    "nt_xent 0.1": with_options(simclr.nt_xent, naive_nt_xent, temperature=0.1),
    "nt_xent 0.5": with_options(simclr.nt_xent, naive_nt_xent, temperature=0.5),
    "info_nce 0.1": with_options(mmncl.info_nce, naive_info_nce, temperature=0.1),
    "info_nce 0.5": with_options(mmncl.info_nce, naive_info_nce, temperature=0.5),
    "nce": (cross_entropy_of_scores, naive_cross_entropy),
    "spectral": (simclr.spectral_loss, naive_spectral),
    "barlow": (sparsehead.barlow_loss, naive_barlow),
    "barlow 0.1": with_options(sparsehead.barlow_loss, naive_barlow, lambd=0.1),
    "vicreg": (sparsehead.vicreg_loss, naive_vicreg),
    "hsic of two": (sparsehead.hsic_loss, naive_hsic),
    "hsic of four": (our_hsic_of_four, loop_hsic_of_four),
    "swav": (functools.partial(sparsehead.swav_loss, prototypes=PROTOTYPES), naive_swav),
    "wmse": (our_wmse, loop_wmse),
    "sliced_wasserstein": (
        functools.partial(lpjepa.sliced_wasserstein, directions=PROTOTYPES[:2].float()),
        naive_distance,
    ),
    "byol": (sparsehead.byol_loss, naive_byol),
    "simsiam": (simsiam.negative_cosine, naive_negative_cosine),
    "simsiam, no stop": with_options(
        simsiam.negative_cosine, naive_negative_cosine, stop_gradient=False
    ),
}
every_loss = pytest.mark.parametrize("ours, naive", LOSSES.values(), ids=LOSSES)


@pytest.fixture
def pair():
    """Two views of a batch of 7, in double precision, which ask for a gradient."""
    shape = (N_PAIRS, N_FEATURES)
    return [torch.randn(shape, dtype=torch.double, requires_grad=True) for _ in range(2)]


@every_loss
def test_a_loss_is_its_equations_loop(pair, ours, naive):
    assert ours(*pair).item() == pytest.approx(naive(*pair).item(), rel=1e-5)


@every_loss
def test_its_gradient_is_the_loops(pair, ours, naive):
    found = torch.autograd.grad(ours(*pair), pair, allow_unused=True)
    expected = torch.autograd.grad(naive(*pair), pair, allow_unused=True)
    for ours_of, naive_of in zip(found, expected):
        if naive_of is None:
            assert ours_of is None  # stopped
        else:
            assert torch.allclose(ours_of, naive_of, atol=1e-5)


@every_loss
def test_a_loss_is_float32_under_autocast(pair, ours, naive):
    outside = ours(*pair)
    with torch.autocast("cpu", torch.bfloat16):
        inside = ours(*[z.float() for z in pair])
    assert torch.equal(inside, outside)
    assert outside.dtype == torch.float32


# --------------------------------------------------------------------- losses, what they rest upon
def test_whitened_rows_have_unit_covariance():
    white = sparsehead.whiten(torch.randn(3, 12, 4, dtype=torch.double))
    for w in white:
        assert torch.allclose(w.T.cov(), torch.eye(4, dtype=torch.double), atol=1e-9)


@pytest.mark.parametrize("column", [[1, 1, 1, 1, 1], [2, 2, -2, -2, 0]], ids=["constant", "same"])
def test_what_cannot_be_whitened_is_nan(column):
    z = torch.tensor(column)[:, None].expand(-1, 3)  # three equal columns
    assert sparsehead.whiten(z).isnan().all()


@pytest.fixture
def columns():
    """A weight (4, 6) with columns of known length, the first of zeros, in double precision."""
    lengths = torch.tensor([0, 0.3, 0.7, 1, 2, 3], dtype=torch.double)
    directions = F.normalize(torch.randn(4, 6, dtype=torch.double), dim=0)
    return directions * lengths


def test_the_penalty_is_the_sum_of_columns_lengths(columns):
    assert sparsehead.l21_norm(columns).item() == pytest.approx(0.3 + 0.7 + 1 + 2 + 3)


def test_the_penaltys_gradient_is_unit_columns(columns):
    columns.requires_grad_()
    (gradient,) = torch.autograd.grad(sparsehead.l21_norm(columns), columns)
    assert (gradient[:, 0] == 0).all()
    assert torch.allclose(gradient[:, 1:], F.normalize(columns, dim=0)[:, 1:])


def test_columns_shrink_to_exact_zeros(columns):
    directions = F.normalize(columns, dim=0)
    sparsehead.shrink_columns(columns, 0.5)
    assert torch.allclose(columns, directions * torch.tensor([0, 0, 0.2, 0.5, 1.5, 2.5]))
    assert (columns[:, :2] == 0).all()


# --------------------------------------------------------- collapse, spectra and distances of rows
def test_normal_embeddings_spread_to_one():
    assert common.health(torch.randn(2000, 64))["spread"] == pytest.approx(1, abs=0.02)


def test_collapsed_embeddings_spread_to_zero():
    assert common.health(torch.ones(100, 64))["spread"] < 1e-4


def test_active_entries_and_empty_samples_are_counted():
    one_each = torch.diag(torch.tensor([1.0, 1, 1, 0]))
    found = common.health(one_each)
    assert found["act"] == 3 / 16
    assert found["empty"] == 1 / 4


def test_a_spectrum_is_the_known_variances():
    centred = torch.cat([torch.ones(50, 1), torch.randn(50, 3)], 1)
    white = 7 * torch.linalg.qr(centred)[0][:, 1:]  # covariance I
    rotation = torch.linalg.qr(torch.randn(3, 3))[0]
    x = white * torch.tensor([1.0, 2.0, 0.5]) @ rotation + 9
    assert sparsehead.spectrum(x).tolist() == pytest.approx([4.0, 1.0, 0.25], abs=1e-4)


@pytest.mark.parametrize(
    "eigenvalues, rank",
    [([0.5, 0.25, 0.25], 2**1.5), ([1.0] * 7, 7), ([3.0, 0, 0], 1)],
    ids=["uneven", "equal", "one"],
)
def test_the_effective_rank_is_entropys_exponential(eigenvalues, rank):
    found = sparsehead.effective_rank(torch.tensor(eigenvalues))
    assert found == pytest.approx(rank, rel=1e-5)


def test_the_min_max_ratio_is_its_equation():
    z = torch.tensor([[0.0], [1.0], [3.0]])
    of_each = [2 / 1, 1 / 1, 1 / 2]
    assert sparsehead.min_max_ratio(z) == pytest.approx(sum(of_each) / 3)


def test_parts_of_the_rows_have_the_same_ratio():
    z = torch.randn(1003, 2, dtype=torch.double)
    ratios = []
    for i in range(len(z)):
        others = torch.cat([z[:i], z[i + 1 :]])
        distances = (others - z[i]).norm(dim=1)
        ratios.append(distances.max() / distances.min() - 1)
    assert sparsehead.min_max_ratio(z) == pytest.approx(torch.stack(ratios).mean().item())


def test_the_min_max_ratio_falls_with_dimensions():
    few = sparsehead.min_max_ratio(torch.randn(300, 1000))
    many = sparsehead.min_max_ratio(torch.randn(300, 10_000))
    assert many < 0.05
    assert few / many == pytest.approx(10**0.5, rel=0.1)  # Lemma 5.7: like 1/√d


def test_copies_are_left_out_of_the_ratio():
    z = torch.tensor([[0.0], [1.0], [3.0], [3.0]])
    assert sparsehead.min_max_ratio(z) == pytest.approx((2 / 1 + 1 / 1) / 2)


def test_rows_that_all_have_copies_have_no_ratio():
    assert sparsehead.min_max_ratio(torch.ones(5, 3)) is None
    assert sparsehead.min_max_ratio(torch.randn(4, 3).repeat(2, 1)) is None


def test_a_column_is_unused_below_a_thousandth():
    weight = torch.diag(torch.tensor([5.0, 0.0051, 0.0049, 0.0]))
    assert sparsehead.unused_columns(weight) == 2 / 4


def test_columns_of_zeros_are_all_unused():
    assert sparsehead.unused_columns(torch.zeros(3, 4)) == 1


def test_a_record_has_sparseheads_numbers(capsys):
    h, z, W = torch.randn(20, 4), torch.randn(20, 3), torch.eye(3)
    found = sparsehead.measure(h, z, W)
    assert found["min_max_representation"] == sparsehead.min_max_ratio(h)
    assert found["min_max_embedding"] == sparsehead.min_max_ratio(z)
    assert found["rank_representation"] == sparsehead.effective_rank(sparsehead.spectrum(h))
    assert found["rank_embedding"] == sparsehead.effective_rank(sparsehead.spectrum(z))
    assert (found["unused_columns"], found["l21"]) == (0, 3)
    assert capsys.readouterr().out.endswith("unused_columns 0, l21 3\n")


def test_an_undefined_ratio_is_shown_as_a_dash(capsys):
    copies = torch.randn(4, 3).repeat(2, 1)
    found = sparsehead.measure(copies, torch.randn(8, 3), None)
    assert found["min_max_representation"] is None
    assert capsys.readouterr().out.startswith("min_max_representation –, min_max_embedding ")


# ----------------------------------------------------------------------------------- sparsehead.py
BASES = ["simclr", "byol", "barlow", "vicreg", "wmse", "swav", "ssl-hsic"]
WITH_TARGET = ["byol", "ssl-hsic"]
TEMPERATURES = {"swav": 0.1}  # of the others 0.5
SMALL_SPARSEHEAD = (
    "--device cpu --arch resnet8 --image-size 16 --head-hidden 16 --head-out 8 --prototypes 6"
    " --whiten-size 12 --whiten-splits 2 --batch-size 60"
)
ONE_STEP = (
    f"{SMALL_SPARSEHEAD} --epochs 1 --limit 60 --precision fp32 --optimizer sgd --lr 0.1"
    " --weight-decay 0 --warmup 0"
)


def small_sparsehead(base, *flags):
    """A model of a base and its settings."""
    args = sparsehead.parser(base).parse(["--base", base, *SMALL_SPARSEHEAD.split(), *flags])
    return sparsehead.network(args), args


@pytest.mark.parametrize("base", BASES)
def test_a_bases_temperature_is_its_own(base):
    for preset in sparsehead.presets(base).values():
        assert preset["temperature"] == TEMPERATURES.get(base, 0.5)


@pytest.mark.parametrize("name", sparsehead.presets("wmse"))
def test_wmses_sub_batches_fit_every_preset(name):
    preset = sparsehead.presets("wmse")[name]
    assert preset["whiten_size"] > preset["head_out"]
    assert preset["batch_size"] % preset["whiten_size"] == 0


def test_a_short_run_warms_up_and_decays():
    shares = [sparsehead.step_decay(step, 8, warmup=100, epochs=8) for step in range(8)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 0.2, 0.04])


@pytest.mark.parametrize(
    "head, shape", [("mlp", (8, 16)), ("linear", (8, 64))], ids=["mlp", "linear"]
)
def test_W_is_the_heads_last_layer(head, shape):
    model, _ = small_sparsehead("simclr", "--head", head)
    assert model.W.shape == shape
    assert any(model.W is parameter for parameter in model.head.parameters())


def test_there_is_no_W_without_a_head():
    model, _ = small_sparsehead("simclr", "--head", "none")
    assert model.W is None


@pytest.mark.parametrize("base", WITH_TARGET)
def test_the_target_starts_as_a_copy(base):
    model, _ = small_sparsehead(base)
    online = nn.Sequential(model.backbone, model.head)
    for t, w in zip(model.target.parameters(), online.parameters(), strict=True):
        assert torch.equal(t, w)
        assert t is not w


@pytest.mark.parametrize("base", WITH_TARGET)
def test_all_but_the_target_gets_a_gradient(base):
    model, _ = small_sparsehead(base)
    v1, v2 = torch.randn(2, 4, 3, 16, 16)
    _, z1 = model(v1)
    _, z2 = model(v2)
    of_target = model.target(v1), model.target(v2)
    loss = model.base_loss(z1, z2, model.predictor(z1), model.predictor(z2), *of_target)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("target."), name


@pytest.mark.parametrize("base", BASES)
def test_all_but_the_target_is_optimised(base):
    model, args = small_sparsehead(base)
    groups = sparsehead.optimizer_of(model, args).param_groups
    optimised = {parameter for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        assert (parameter in optimised) != name.startswith("target."), name


def test_biases_have_their_own_learning_rate():
    model, args = small_sparsehead("barlow", "--lr", "1", "--bias-lr", "0.5")
    weights, biases = sparsehead.optimizer_of(model, args).param_groups
    assert (weights["lr"], biases["lr"]) == (1, 0.5)
    assert {p.ndim for p in weights["params"]} == {2, 4}
    assert {p.ndim for p in biases["params"]} == {1}


def test_lars_is_not_clipped():
    model, args = small_sparsehead("simclr", "--optimizer", "lars")
    optimizer = sparsehead.optimizer_of(model, args)
    assert (optimizer.trust, optimizer.clip) == (1e-3, False)


def test_a_target_is_a_moving_average():
    target, online = nn.Linear(4, 3), nn.Linear(4, 3)
    before = [p.detach().clone() for p in target.parameters()]
    sparsehead.update_target(target, online, 0.9)
    for t, old, new in zip(target.parameters(), before, online.parameters()):
        assert torch.allclose(t, 0.9 * old + 0.1 * new, atol=1e-6)


def naive_base_loss(base, model, v1, v2):
    """The loss of a base of two views, by the loops above."""
    z1 = model(v1)[1].double()
    z2 = model(v2)[1].double()
    if base in WITH_TARGET:
        p1 = model.predictor(z1.float()).double()
        p2 = model.predictor(z2.float()).double()
        t1 = model.target(v1).double()
        t2 = model.target(v2).double()
    if base == "simclr":
        return naive_nt_xent(z1, z2, 0.5)
    if base == "byol":
        return naive_byol(p1, t2) + naive_byol(p2, t1)
    if base == "barlow":
        return naive_barlow(z1, z2)
    if base == "vicreg":
        return naive_vicreg(z1, z2)
    if base == "wmse":
        return naive_wmse(z1, z2, size=12, splits=2)
    if base == "swav":
        return naive_swav(z1, z2, model.prototypes.double())
    return naive_hsic(p1, p2, t1, t2)


@pytest.fixture
def one_step(tiny, tmp_path, monkeypatch):
    """A function: flags → a run of one step on 60 images: its views, the model before and after.

    The target network is another than the trained one, so that a test can tell them apart.
    """
    seen = types.SimpleNamespace()
    two_views = common.two_views
    network = sparsehead.network

    def seen_views(images, **options):
        seen.options = options
        seen.views = two_views(images, **options)
        return seen.views

    def seen_network(args):
        model = network(args)
        if model.target is not None:
            nn.init.normal_(model.target[1][3].weight)
        seen.before = copy.deepcopy(model)
        return model

    monkeypatch.setattr(common, "two_views", seen_views)
    monkeypatch.setattr(sparsehead, "network", seen_network)

    def run(flags):
        folder = tmp_path / flags.replace(" ", "")
        run_program(f"sparsehead.py {tiny} {ONE_STEP} {flags} --out", folder)
        seen.after = common.load_checkpoint(folder / "checkpoint.pt")["model"]
        seen.records = records(folder)
        return copy.copy(seen)

    return run


@pytest.mark.parametrize("base", BASES)
def test_a_step_has_its_bases_loss(one_step, base):
    run = one_step(f"--base {base}")
    expected = naive_base_loss(base, run.before.train(), *run.views).item()
    assert run.records[0]["loss"] == pytest.approx(expected, rel=1e-4)


def test_a_step_moves_W_by_the_penalty(one_step):
    plain = one_step("--sparse-weight 0")
    sparse = one_step("--sparse-weight 0.5")
    penalty = 0.1 * 0.5 * F.normalize(plain.before.W, dim=0)  # learning rate, λ, Eq. (12)
    expected = plain.after["head.3.weight"] - penalty
    assert torch.allclose(sparse.after["head.3.weight"], expected, atol=1e-6)
    assert sparse.records[0]["loss"] == plain.records[0]["loss"]  # it is told without


def test_a_proximal_step_shrinks_the_step_without(one_step):
    plain = one_step("--sparse-weight 0")
    prox = one_step("--sparse-weight 2 --prox")
    expected = plain.after["head.3.weight"].clone()
    sparsehead.shrink_columns(expected, 0.1 * 2)
    assert torch.allclose(prox.after["head.3.weight"], expected, atol=1e-6)


def test_a_step_moves_the_target_by_a_hundredth(one_step):
    run = one_step("--base byol")
    expected = 0.99 * run.before.target[1][3].weight + 0.01 * run.after["head.3.weight"]
    assert torch.allclose(run.after["target.1.3.weight"], expected, atol=1e-6)


@pytest.mark.parametrize("epochs, rest", [(1, True), (2, False)], ids=["first", "second"])
def test_prototypes_rest_in_the_first_epoch(one_step, epochs, rest):
    run = one_step(f"--base swav --optimizer adam --epochs {epochs}")
    assert torch.equal(run.after["prototypes"], run.before.prototypes) == rest


@pytest.mark.parametrize(
    "order, first",
    [("colour-crop", True), ("crop-colour", False)],
    ids=["colour-crop", "crop-colour"],
)
def test_colours_come_in_the_order_asked_for(one_step, order, first):
    assert one_step(f"--order {order}").options["colour_first"] == first


def test_a_run_follows_the_step_schedule(one_step):
    *epochs, _ = one_step("--schedule step --warmup 2 --epochs 8 --batch-size 30").records
    rates = [epoch["lr"] for epoch in epochs]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.1, 0.1, 0.1, 0.02, 0.004])


# ---------------------------------------------------------------------------------------- mmncl.py
@pytest.fixture
def reader():
    """mmncl.py's model, small."""
    flags = "--device cpu --arch resnet8 --image-size 16 --text-width 4 --head-hidden 6"
    args = mmncl.parser().parse(flags.split() + ["--head-out", "3"])
    return mmncl.network(args)


def test_words_are_numbered_whatever_their_place():
    first, second, none = mmncl.numbered(["A half-disc, left", "Left half-disc", "!"]).tolist()
    assert first[1:] == second[1::-1]
    assert second[2] == 0  # no third word
    assert none == [1, 0, 0]  # the empty word's


def test_a_caption_has_at_most_64_words():
    assert mmncl.numbered(["a " * 100]).shape == (1, 64)


def test_a_caption_is_its_words_mean(reader):
    vectors = reader.text.weight
    words = torch.tensor([[5, 7, 9], [5, 7, 0], [1, 0, 0]])
    expected = [vectors[[5, 7, 9]].mean(0), vectors[[5, 7]].mean(0), vectors[1]]
    assert torch.allclose(reader.read(words)[0], torch.stack(expected))


def test_images_and_captions_cannot_be_negative(reader):
    x, words = torch.randn(8, 3, 16, 16), torch.randint(1, 100, (8, 5))
    _, v, _, t = reader(x, words)
    assert v.min() >= 0
    assert t.min() >= 0
    assert v.shape == t.shape == (8, 3)


def test_images_are_embedded_without_captions(reader):
    x, words = torch.randn(8, 3, 16, 16), torch.randint(1, 100, (8, 5))
    reader.eval()
    for alone, together in zip(reader(x), reader(x, words)[:2]):
        assert torch.equal(alone, together)


def test_recall_is_the_loop():
    v, t = torch.randn(2, 30, 8)
    caption = torch.arange(30) // 2  # every caption twice
    hits = {1: [], 5: []}
    for i in range(30):
        nearest = (unit(t) @ unit(v)[i]).argsort(descending=True)
        for k in hits:
            hits[k].append(caption[i] in caption[nearest[:k]])
    expected = [100 * np.mean(hits[1]), 100 * np.mean(hits[5])]
    assert mmncl.recall(v, t, caption) == pytest.approx(expected)


SPOKEN_NAMES = {"": ["ant", "bee", "cow"], "background_": ["red", "blue"]}


@pytest.fixture
def labelled():
    """A data set that has classes 0 and 2 of the built-in ones, and background 1."""
    return types.SimpleNamespace(
        name="mine", classes=torch.tensor([0, 2]), background_classes=torch.tensor([1])
    )


def test_names_are_those_of_assets(labelled):
    names = mmncl.class_names(types.SimpleNamespace(dataset="shapes", classes=None), labelled)
    of_classes = (ROOT / "assets/classes/shapes.txt").read_text().splitlines()
    of_backgrounds = (ROOT / "assets/classes/shapes-backgrounds.txt").read_text().splitlines()
    assert names[""] == [of_classes[0], of_classes[2]]
    assert names["background_"] == [of_backgrounds[1]]


def test_names_are_those_of_a_given_file(labelled, tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("ant\nbee\ncow\ndoe\n")
    args = types.SimpleNamespace(dataset="unknown", classes=str(file))
    assert mmncl.class_names(args, labelled) == {"": ["ant", "cow"]}


def test_a_file_with_too_few_names_is_refused(labelled, tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("ant\nbee\n")
    args = types.SimpleNamespace(dataset="unknown", classes=str(file))
    with pytest.raises(common.BadInput, match="names 2 classes; mine has 3"):
        mmncl.class_names(args, labelled)


def test_captions_take_the_templates_in_turn():
    data = types.SimpleNamespace(
        captions_train=None, y_train=torch.tensor([0, 1, 2, 0, 1]), y_test=torch.tensor([2])
    )
    train, test = mmncl.captions_of(data, SPOKEN_NAMES)
    photo, picture, image = "a photo of a bee", "a picture of a cow", "an image of a ant"
    assert train == ["a ant", photo, picture, image, "a bee"]
    assert test == ["a cow"]


def test_captions_of_a_data_set_are_its_own():
    data = types.SimpleNamespace(captions_train=np.array(["x"]), captions_test=np.array(["y"]))
    assert mmncl.captions_of(data, SPOKEN_NAMES) == (["x"], ["y"])


class Spotter:
    """Stands for a model that reads perfectly: a dimension for "a <class>", "on <background>"."""

    def read(self, words):
        phrases = [f"a {name}" for name in SPOKEN_NAMES[""]]
        phrases += [f"on {name}" for name in SPOKEN_NAMES["background_"]]
        said = []
        for article, name in mmncl.numbered(phrases):
            said.append((words == article).any(1) & (words == name).any(1))
        t = torch.stack(said, 1).float()
        return 2 * t, t


@pytest.fixture
def told(tmp_path):
    """What a perfect reader's run records of 12 images, the last of which shows another class."""
    y, background = torch.arange(12) % 3, torch.arange(12) // 6
    texts = [
        f"a {SPOKEN_NAMES[''][a]} on {SPOKEN_NAMES['background_'][b]}"
        for a, b in zip(y, background)
    ]
    shown = y.clone()
    shown[11] = 0
    v = torch.cat([F.one_hot(shown, 3), F.one_hot(background, 2)], 1).float()
    run = types.SimpleNamespace(folder=tmp_path)
    data = types.SimpleNamespace(y_test=y, background_test=background)
    return mmncl.measure_text(run, Spotter(), data, v, texts, SPOKEN_NAMES)


def test_a_perfect_reader_names_classes_and_backgrounds(told):
    assert told["zero_shot"] == pytest.approx(100 * 11 / 12)
    assert told["background_zero_shot"] == 100


def test_images_ask_and_captions_answer(told):
    assert told["text_r1"] == pytest.approx(100 * 11 / 12)  # the last image finds another caption
    assert told["image_r1"] == 100  # its caption finds an image that has the same


def test_texts_embeddings_are_kept(told, tmp_path):
    with np.load(tmp_path / "text.npz") as kept:
        assert kept["captions"][0] == "a ant on red"
        assert kept["z"][0].tolist() == [1, 0, 0, 1, 0]
        assert kept["h"][0].tolist() == [2, 0, 0, 2, 0]


def test_texts_numbers_are_those_of_embeddings(told):
    # Three dimensions are a class each, of both backgrounds; two are a background, of all classes.
    assert told["text_cons"] == pytest.approx((3 * 100 + 2 * 100 / 3) / 5)
    assert told["text_background_cons"] == pytest.approx((3 * 100 / 2 + 2 * 100) / 5)


@pytest.fixture
def augmented(tiny, tmp_path, monkeypatch):
    """What a run of mmncl.py augments, of a data set with images that have no captions."""
    arrays = shapes.draw(60, 20)
    np.savez(tmp_path / "more.npz", x_unlabeled=np.zeros_like(arrays["x_train"]), **arrays)
    seen = types.SimpleNamespace(images=[], flips=set())
    augment = common.augment

    def seen_augment(images, **options):
        seen.images.append(images)
        seen.flips.add(options["flip"])
        return augment(images, **options)

    monkeypatch.setattr(common, "augment", seen_augment)
    flags = f"--data-root {tmp_path} --dataset more --epochs 1 --out {tmp_path / 'run'}"
    run_program(f"mmncl.py {tiny} {flags}")
    return seen


def test_only_images_with_captions_are_trained_on(augmented):
    assert torch.cat(augmented.images).any()


def test_images_are_not_mirrored(augmented):
    assert augmented.flips == {0}
