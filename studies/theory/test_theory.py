"""Tests of theory.py, theory_nmf.py and theory_gate.py: naive sums, samples and what must hold."""

import inspect
import itertools
import json
import math

import numpy as np
import pytest
import theory
import theory_gate
import theory_nmf
import torch
import torch.nn.functional as F

import bayesncl
import simclr
from conftest import refusal, run_program


def verdicts(folder):
    """The theorem and the verdict of each row of results.json."""
    rows = json.loads((folder / "results.json").read_text())
    return [f"{row['setting'].split()[0]} {row['verdict']}" for row in rows]


def shrink_nmf(patch):
    """Fewer overlaps, seeds and steps for theory_nmf.py."""
    patch.setattr(theory_nmf, "OVERLAPS", [0.0, 0.1, 0.2, 0.3, 0.4])
    patch.setattr(theory_nmf, "SEEDS", 3)
    patch.setattr(theory_nmf, "STEPS", 800)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with what theory.py and theory_nmf.py leave, by their names."""
    root = tmp_path_factory.mktemp("theorems")
    with pytest.MonkeyPatch.context() as patch:
        shrink_nmf(patch)
        for name in ("theory", "theory_nmf"):
            run_program(f"tools/{name}.py --out", root / name)
    return root


@pytest.mark.parametrize("name", ["row", "table"])
def test_both_programs_share_their_text(name):
    ours, theirs = getattr(theory, name), getattr(theory_nmf, name)
    assert inspect.getsource(ours) == inspect.getsource(theirs)


@pytest.mark.parametrize("name", ["theory", "theory_nmf"])
def test_theorems_are_drawn(finished, name):
    assert (finished / name / "theory.png").stat().st_size > 20_000


def loss_of_nothing(*_):
    return 0.0


@pytest.mark.parametrize("name", ["theory", "theory_nmf"])
def test_matplotlib_is_not_needed(tmp_path, capsys, monkeypatch, name):
    module = {"theory": theory, "theory_nmf": theory_nmf}[name]
    shrink_nmf(monkeypatch)
    monkeypatch.setattr(theory_nmf, "STEPS", 2)
    monkeypatch.setattr(theory, "lowest_loss_9", loss_of_nothing)
    monkeypatch.setattr(module, "plt", None)
    run_program(f"tools/{name}.py --out", tmp_path / name)
    assert "matplotlib is not installed: theory.png is left out" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / name).iterdir()} == {"config.json", "results.json"}


# ---------------------------------------------------------------------------------------- theory.py
D, ALPHA, TAU = 3, 0.4, 2.0


def every_mask():
    """All masks, and the probability of each."""
    found = []
    for mask in itertools.product((0, 1), repeat=D):
        found.append((mask, ALPHA ** sum(mask) * (1 - ALPHA) ** (D - sum(mask))))
    return found


def expectation(naive, S):
    """The mean of naive(S, i, D1, D2) over latents i and both masks."""
    total = 0
    for (D1, p1), (D2, p2) in itertools.product(every_mask(), repeat=2):
        for i in range(D):
            total += p1 * p2 * naive(S, i, D1, D2) / D
    return total


@pytest.fixture
def W():
    """Four matrices with columns of norm 1."""
    return F.normalize(torch.randn(4, D, D, dtype=torch.float64), dim=1)


@pytest.fixture
def similarities(W):
    """⟨relu(W e_i), relu(W e_j)⟩ of each W."""
    return (F.relu(W).mT @ F.relu(W)).tolist()


def naive_loss_6(S, i, D1, D2):
    """2 − 2 times the similarity of the two views of latent i."""
    return 2 - 2 * D1[i] * D2[i] * S[i][i]


def naive_one_mask(S, i, D1, D2):
    """−log of the positive's share where all negatives have the mask D2."""
    logits = [TAU * D1[i] * D2[j] * S[i][j] for j in range(D)]
    return math.log(sum(math.exp(logit) for logit in logits)) - logits[i]


def naive_mask_per_negative(S, i, D1, D2):
    """The same where each negative has a mask of its own, over which exp is averaged."""
    kept = [math.exp(TAU * D1[i] * S[i][j]) for j in range(D)]
    mean = sum(ALPHA * value + 1 - ALPHA for value in kept)
    return math.log(mean) - TAU * D1[i] * D2[i] * S[i][i]


def test_loss_6_is_the_sum_over_masks(W, similarities):
    expected = [expectation(naive_loss_6, S) for S in similarities]
    assert theory.loss_6(W, ALPHA).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    "reading, naive",
    [
        (theory.one_mask, naive_one_mask),
        (theory.mask_per_negative, naive_mask_per_negative),
    ],
    ids=["one mask", "a mask per negative"],
)
def test_loss_9_is_the_sum_over_masks(W, similarities, reading, naive):
    expected = [expectation(naive, S) for S in similarities]
    assert theory.loss_9(W, ALPHA, TAU, reading).tolist() == pytest.approx(expected, abs=1e-9)


def orthonormal(p, d):
    return torch.linalg.qr(torch.randn(p, d, dtype=torch.float64))[0]


def test_a_step_has_the_gradient_of_samples():
    M = orthonormal(15, 6)
    Wo, Wt = torch.randn(2, 9, 15, dtype=torch.float64)
    n, keep, kappa, noise = 200_000, 0.6, 0.4, 0.2
    signs = 1 - 2 * torch.randint(0, 2, (n, 6))
    z = (torch.rand(n, 6) < kappa).double() * signs  # Assumption 1
    x = z @ M.T + noise * torch.randn(n, 15).double()
    D1, D2 = (torch.rand(2, n, 15) < keep).double()
    moment = (D1 * x).T @ (D2 * x) / n
    online, target = theory.linear_descent(Wo, Wt, M, [0.1], 0.95, keep, kappa, noise)
    assert (online - (0.95 * Wo + 0.2 * Wt @ moment.T)).abs().max() < 0.01
    assert (target - (0.95 * Wt + 0.2 * Wo @ moment)).abs().max() < 0.01


def test_the_closed_form_is_what_steps_give():
    M = orthonormal(15, 6)
    Wo, Wt = torch.randn(2, 9, 15, dtype=torch.float64)
    setting = [0.3, 0.1, 0.2], 0.95, 0.6, 0.4, 0.2
    learnt, _ = theory.linear_descent(Wo, Wt, M, *setting)
    C1, C2, _ = theory.closed_form(*setting)
    assert torch.allclose(learnt @ M, C1 * Wo @ M + C2 * (Wo + Wt) @ M)


def test_the_printed_product_starts_an_index_early():
    a, b = 0.1 * 2 * 0.5**2, 0.2 * 2 * 0.5**2  # c_1 and c_2, with κ = 1 and no noise
    _, _, printed = theory.closed_form([0.1, 0.2], 0.9, 0.5, 1.0, 0.0)
    expected = a * (0.9 - a) * (0.9 - b) + b * (0.9 - b) * (0.9 + a)
    assert printed == pytest.approx(expected)


@pytest.mark.parametrize(
    "bias, keep, kappa", [(0.5, 0.6, 0.5), (0.3, 0.9, 0.8), (0.5, 0.9, 0.9)], ids=str
)
def test_a_half_round_grows_as_predicted(bias, keep, kappa):
    expected = kappa * keep**2 / (1 - bias)
    assert theory.predicted_growth(bias, keep, kappa) == pytest.approx(expected)
    assert theory.growth(bias, keep, kappa) == pytest.approx(expected, rel=0.01)


def test_a_half_round_keeps_rows_of_norm_one():
    W = torch.randn(3, 3, dtype=torch.float64)
    after = theory.half_round(W, torch.eye(3).double(), 0.3, 0.9, 0.8, steps=2)
    assert after.norm(dim=1).tolist() == pytest.approx([1] * 3)


def test_theory_says_what_holds(finished):
    assert verdicts(finished / "theory") == [
        *["1(a) holds"] * 2,
        *["1(b) holds"] * 3,
        "1(b) fails",
        "2 holds",
        "2 fails",
        "3 holds",
        "3 fails",
    ]


# ------------------------------------------------------------------------------------ theory_nmf.py
@pytest.fixture(
    params=[(0.0, "all", True), (0.4, "some", True), (0.4, "all", False)],
    ids=["apart", "some mixed", "all mixed"],
)
def setting(request):
    """P(c), P(x|c), Theorem 4's factor of Ā, and whether it is the only one."""
    overlap, mixed, unique = request.param
    prior, given = theory_nmf.co_occurrence(overlap, mixed)
    p = given @ prior
    factor = prior.sqrt() * given / p.sqrt()[:, None]
    return prior, given, factor, unique


def matrix_of(setting):
    prior, given, _, _ = setting
    _, A = theory_nmf.normalised(theory_nmf.joint_of(prior, given))
    return A


@pytest.fixture
def solutions(setting):
    return theory_nmf.factorise(matrix_of(setting), 4, True, seeds=4, steps=1000)


def test_probabilities_sum_to_one(setting):
    prior, given, _, _ = setting
    assert [prior.sum(), *given.sum(0)] == pytest.approx([1] * 5)


def test_overlap_is_the_share_of_other_classes_images():
    _, given = theory_nmf.co_occurrence(0.3, "some")
    own = torch.eye(4).repeat_interleave(6, 0).bool()
    assert given.masked_fill(own, 0).sum(0).tolist() == pytest.approx([0.3] * 4)
    assert (given[::2] > 0).sum(1).tolist() == [1] * 12


def test_theorem_4_factors_the_matrix(setting):
    _, _, factor, _ = setting
    assert torch.allclose(factor @ factor.T, matrix_of(setting))


def test_a_small_rotation_is_negative_where_unique(setting):
    _, _, factor, unique = setting
    skew = torch.tensor([[0.0, 1, 2, -1], [-1, 0, 1, 1], [-2, -1, 0, 1], [1, -1, -1, 0]])
    R = torch.linalg.matrix_exp(0.05 * skew).double()
    assert ((factor @ R).min() < 0) == unique


def test_factors_are_non_negative_and_fit(setting, solutions):
    assert (solutions @ solutions.mT - matrix_of(setting)).abs().max() < 1e-3
    assert solutions.min() >= 0


def test_solutions_agree_where_unique(setting, solutions):
    _, _, factor, unique = setting
    assert (theory_nmf.between_seeds(solutions) > 0.999) == unique
    assert (theory_nmf.agreement(solutions[0], factor) > 0.999) == unique


def test_agreement_forgives_order_and_signs():
    G = orthonormal(9, 4)
    assert theory_nmf.agreement(G, -2 * G[:, [2, 0, 3, 1]]) == pytest.approx(1)
    assert theory_nmf.agreement(G[:, :2], G[:, 1:3]) == pytest.approx(0.5)


def test_the_loss_is_the_factorisations():
    assert theory_nmf.theorem_2()["verdict"] == "holds"


def test_theory_nmf_says_what_is_unique(finished):
    assert verdicts(finished / "theory_nmf") == [
        "2 holds",
        *["4 holds"] * 2,
        "5 holds",
        *["5 not unique"] * 3,
        *["5 unique"] * 2,
    ]


# ----------------------------------------------------------------------------------- theory_gate.py
@pytest.fixture(scope="module")
def toy():
    """The toy without the KL term."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theory_gate, "SETTINGS", [(0.8, 0.0)])
        return theory_gate.toy(seeds=1, steps=150)


def all_open(*_):
    return torch.ones(100)


@pytest.fixture(scope="module")
def gates(runs, tmp_path_factory):
    """What theory_gate.py leaves of a run of NCL and one of BayesNCL; the toy is not trained."""
    folder = tmp_path_factory.mktemp("gates") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theory_gate, "train_gate", all_open)
        run_program("tools/theory_gate.py", runs / "ncl", runs / "bayesncl", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def of_runs(gates):
    """The numbers of either run, by its method."""
    found = json.loads((gates / "results.json").read_text())["runs"]
    return {name.rpartition("/")[2]: numbers for name, numbers in found.items()}


@pytest.fixture
def views():
    return theory_gate.planted(256)


@pytest.mark.parametrize("rho", [0.8, 0.51, 0.49, 0.3])
def test_the_kl_term_opens_gates_above_one_half(rho):
    # Theorem 4.5 counts the first term alone, log(1/ρ).
    is_open = bayesncl.bernoulli_kl(torch.tensor([[0.99]]), rho)
    is_closed = bayesncl.bernoulli_kl(torch.tensor([[0.01]]), rho)
    assert (is_closed < is_open) == (rho < 0.5)


@pytest.mark.parametrize("k, gains", [(0, True), (99, False)], ids=["rare", "frequent"])
def test_the_gain_is_the_loss_without_a_feature(views, k, gains):
    z1, z2 = views
    kept = torch.arange(100) != k
    without = simclr.nt_xent(z1[:, kept], z2[:, kept], 0.2)
    expected = without - simclr.nt_xent(z1, z2, 0.2)
    assert theory_gate.gain(z1, z2, 0.2)[k].item() == pytest.approx(expected.item(), abs=1e-6)
    assert (expected > 0) == gains


def test_the_gain_may_keep_the_norms(views):
    z = F.normalize(torch.cat(views))
    losses = []
    for parts in (z, z[:, 1:]):
        logits = (parts @ parts.T / 0.2).fill_diagonal_(-torch.inf)
        losses.append(F.cross_entropy(logits, torch.arange(512).roll(256)))
    found = theory_gate.gain(*views, 0.2, norms_kept=True)[0]
    assert found.item() == pytest.approx((losses[1] - losses[0]).item(), abs=1e-6)


def test_planted_features_have_their_frequencies():
    z1, z2 = theory_gate.planted(4000)
    expected = 0.9 * torch.tensor(theory_gate.FREQUENCIES).repeat_interleave(10)
    both = 0.9 * expected  # a view loses one in ten
    assert ((z1 > 0).float().mean(0) - expected).abs().max() < 0.03
    assert (((z1 > 0) & (z2 > 0)).float().mean(0) - both).abs().max() < 0.03
    assert z1[z1 > 0].mean().item() == pytest.approx(1, abs=0.01)


def test_the_gain_follows_the_law_with_norms_kept(toy):
    assert np.corrcoef(toy["norms kept"], theory_gate.LAW)[0, 1] > 0.99


def test_gamma_is_the_nearest_law(toy):
    expected = np.linalg.lstsq(np.array(theory_gate.LAW)[:, None], toy["norms kept"], rcond=None)
    assert toy["gamma"] == pytest.approx(expected[0][0])


def test_frequent_features_lose_with_cosines(toy):
    assert toy["gain"][0] > 0 > toy["gain"][-1]


def test_the_loss_alone_closes_frequent_gates(toy):
    kept = toy["kept"]["ρ 0.8, λ 0"]
    assert max(kept[6:]) < 0.2
    assert kept[0] > 0.5


@pytest.mark.parametrize("rho, least, most", [(0.99, 0.9, 1), (0.01, 0, 0.1)], ids=str)
def test_a_strong_prior_has_its_way(rho, least, most):
    kept = theory_gate.train_gate(rho, 1.0, seed=0, steps=60)
    assert least <= kept.mean() <= most


def active_mean(gradient, z):
    """256 times the mean of each column over the images that it is active on."""
    return torch.stack([256 * gradient[z[:, k] > 0, k].mean() for k in range(100)])


def test_pull_and_push_add_up_to_the_gradient(views):
    whole = torch.func.grad(simclr.nt_xent)(*views, 0.2)
    found = theory_gate.pull_and_push(*views, 0.2)
    assert torch.allclose(found.sum(0), active_mean(whole, views[0]), atol=1e-5)


def minus_cosine(z1, z2):
    return -F.cosine_similarity(z1, z2).mean() / 0.2


def test_the_pull_is_that_of_positives(views):
    pull = torch.func.grad(minus_cosine)(*views)
    found = theory_gate.pull_and_push(*views, 0.2)
    assert torch.allclose(found[0], active_mean(pull, views[0]), atol=1e-5)


def test_a_dimension_without_images_has_no_gradient(views):
    z1, z2 = views
    z1[:, 3] = 0
    assert (theory_gate.pull_and_push(z1, z2, 0.2)[:, 3] == 0).all()


def test_a_summary_counts_and_takes_medians():
    columns = {
        "pi": [0.5, 0.4, 0.3, 0.02, 0.9],
        "gated": [0.5, 0.3, 0.2, 0.01, 0.04],
        "open": [1.0, 0.75, 0.66, 0.5, 0.04],
        "pull": [-2.0, -2.0, -3.0, -1.0, -1.0],
        "push": [1.0, 2.0, 1.0, 1.0, 2.0],
        "mean": [-1.0, 0.0, -2.0, 0.0, 1.0],
        "std": [2.0, 1.0, 4.0, 1.0, 1.0],
    }
    found = theory_gate.summary({name: torch.tensor(values) for name, values in columns.items()})
    medians = found["frequent_mean_over_std"], found["frequent_left"], found["closed_pi"]
    assert medians == pytest.approx((0.5, 1 / 3, 0.9))
    counts = [found[f"{name}_dims"] for name in ("frequent", "rare", "closed", "open")]
    assert counts == [3, 2, 1, 4]


def test_only_gates_are_closed(of_runs):
    assert of_runs["ncl"]["closed_dims"] == 0 < of_runs["bayesncl"]["closed_dims"]


@pytest.mark.parametrize("method", ["ncl", "bayesncl"])
def test_gradients_of_a_run_have_their_size(of_runs, method):
    numbers = of_runs[method]
    assert numbers["frequent_dims"] > 20
    assert 0 < numbers["frequent_left"] < 1
    assert 0 < numbers["frequent_mean_over_std"] < 3


def test_mean_and_deviation_are_over_batches(runs, monkeypatch):
    pulls = iter([1.0, 2.0, 6.0])

    def known(*_):
        return torch.stack([torch.full((256,), next(pulls)), torch.ones(256)])

    monkeypatch.setattr(theory_gate, "pull_and_push", known)
    monkeypatch.setattr(theory_gate, "gain", all_open)
    run, model = theory_gate.common.load_run(runs / "ncl")
    found = theory_gate.conflict(run, model, None, batches=3)
    numbers = [found[name][0].item() for name in ("pull", "push", "mean", "std")]
    assert numbers == pytest.approx([3, 1, 4, 7**0.5])


def test_gates_are_drawn(gates):
    assert (gates / "gate.png").stat().st_size > 30_000
    assert (gates / "grid.png").stat().st_size > 30_000


def test_batches_go_on_with_the_next_epochs():
    images = torch.arange(10).view(10, 1, 1, 1)
    data = theory_gate.common.Data("numbers", images, images)
    found = itertools.islice(theory_gate.endless(data, 4), 4)
    expected = [*data.batches(4, 0, 0, "cpu"), *data.batches(4, 0, 1, "cpu")]
    for batch, (images, _) in zip(found, expected, strict=True):
        assert torch.equal(batch, images)


def test_the_grid_is_left_out_without_its_study(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(theory_gate, "RESULTS", tmp_path)
    monkeypatch.setattr(theory_gate, "draw_gate", all_open)
    theory_gate.draw(tmp_path, {}, {})
    assert "grid.png is left out" in capsys.readouterr().out


def test_a_grid_has_the_last_numbers_of_all_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(theory_gate, "RESULTS", tmp_path)
    monkeypatch.setattr(theory_gate, "PRIORS", ["0.1"])
    monkeypatch.setattr(theory_gate, "WEIGHTS", ["3e-6"])
    for seed in (1, 2):
        folder = tmp_path / f"shapes-grid-bayesncl-prior0.1-kl-weight3e-6-seed{seed}"
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(f'{{"epoch": 1}}\n{{"lp1": {seed}}}\n')
    assert theory_gate.grid_records() == {("0.1", "3e-6"): [{"lp1": 1}, {"lp1": 2}]}


def test_a_grid_has_means_at_their_place(tmp_path, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    monkeypatch.setattr(theory_gate, "PRIORS", [1, 2])
    monkeypatch.setattr(theory_gate, "WEIGHTS", [10, 20, 30])
    monkeypatch.setattr(theory_gate, "SHOWN", {"lp1": "a", "cons": "b"})
    records = {}
    for rho in (1, 2):
        for lambd in (10, 20, 30):
            records[rho, lambd] = [{"lp1": rho + lambd, "cons": 0}]
    records[2, 10] = [{"lp1": value, "cons": 0} for value in (11, 12, 13)]
    theory_gate.draw_grid(tmp_path / "grid.png", records)
    panel, _ = figures[0].axes
    assert panel.get_images()[0].get_array().tolist() == [[11, 21, 31], [12, 22, 32]]
    assert "12\n± 1" in [text.get_text() for text in panel.texts]


def test_runs_of_other_methods_are_refused(runs):
    assert "give runs of ncl.py and bayesncl.py" in refusal("theory_gate.py", runs / "simclr")
