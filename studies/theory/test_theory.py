"""Tests of theory.py and theory_nmf.py: naive sums, samples and what must hold."""

import itertools
import json
import math

from conftest import run_program

import pytest
import theory
import theory_nmf
import torch
import torch.nn.functional as F


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
            run_program(f"{name}.py --out", root / name)
    return root


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
    run_program(f"{name}.py --out", tmp_path / name)
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


def test_factors_of_any_sign_fit():
    _, A = theory_nmf.normalised(theory_nmf.joint_of(*theory_nmf.co_occurrence(0.0)))
    factors = theory_nmf.factorise(A, 4, non_negative=False, seeds=3, steps=800)
    assert (factors @ factors.mT - A).abs().max() < 1e-3


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
