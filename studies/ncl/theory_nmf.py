"""What NCL learns where it can be computed: a factorisation of the co-occurrence of positive pairs.

There are C latent classes, and the images of a positive pair (x, x') are drawn independently of
one class:

    P(x, x') = Σ_c P(c) P(x|c) P(x'|c)
    Ā        = P(x, x') / √(P(x) P(x'))

The spectral contrastive loss of features f is ‖Ā − F Fᵀ‖² less a constant, F_x = √P(x) f(x). With
F ≥ 0 (NCL) it is a non-negative matrix factorisation, Theorem 2. Its minimisers, each the best of
three random starts, stand beside those with F of any sign (CL), while the classes overlap more and
more:

    Theorem 4   without overlap the features are indicators of the classes,
                f_c(x) = 1[x of class c] / √P(c)
    Theorem 5   and unique but for the order of the dimensions, where CL's are rotated at will
    overlap     The theorem assumes none. It is enough that each class keeps images of its own
                ("some mixed"): if F R (R orthogonal) is ≥ 0 on those, R is ≥ 0, hence a
                permutation. Where every image is mixed, F > 0, and a small rotation of it is
                another solution. f_c(x) = P(c|x) / √P(c) is one in any case.

Wang et al., "Non-negative Contrastive Learning", arXiv 2403.12459. Its Theorem 1 is a test of
ncl.py; the statements of Theorems 3 and 6 are not in what we have of the paper.

    python studies/ncl/theory_nmf.py      a table, and results.json in runs/theory_nmf-<time>
"""

import itertools
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "studies" / "landscape")]
import common  # noqa: E402
from common import progress  # noqa: E402
from run_folder import write_json  # noqa: E402

from theory import new_folder, row, table  # noqa: E402

# ----------------------------------------------------------------------------------------- settings
OVERLAPS = [0.0, 0.1, 0.2, 0.3, 0.4]
CLASSES = 4  # C, which is also the number of dimensions
IMAGES = 6  # of each class
SEEDS = 10  # solutions that are compared
STEPS = 3000  # of a factorisation
UNIQUE = 0.999  # solutions that agree more than so are one


# -------------------------------------------------------------------------------------- the setting
def co_occurrence(overlap: float, mixed="all") -> tuple[Tensor, Tensor]:
    """P(c) (C,) and P(x|c) (n, C) of n = CLASSES · IMAGES images.

    overlap: probability, under a class, of images of the others
    mixed: which images other classes borrow, "all" or "some": every second
    """
    prior = torch.linspace(1, 2, CLASSES, dtype=torch.float64)  # unequal: Theorem 4's scales show
    own = torch.eye(CLASSES, dtype=torch.float64).repeat_interleave(IMAGES, 0)  # (n, C)
    random = torch.Generator().manual_seed(0)
    weight = torch.rand(len(own), 1, generator=random, dtype=torch.float64) + 0.5  # in its class
    borrowed = torch.ones(len(own))
    if mixed == "some":
        borrowed = torch.arange(len(own)) % 2
    inside = own * weight
    outside = (1 - own) * borrowed[:, None] * weight
    given = (1 - overlap) * inside / inside.sum(0) + overlap * outside / outside.sum(0)
    return prior / prior.sum(), given


def joint_of(prior: Tensor, given: Tensor) -> Tensor:
    """P(x, x') (n, n) of P(c) (C,) and P(x|c) (n, C)."""
    return (given * prior) @ given.T


def normalised(joint: Tensor) -> tuple[Tensor, Tensor]:
    """P(x) (n,) and Ā (n, n) of P(x, x') (n, n)."""
    p = joint.sum(1)
    return p, joint / (p[:, None] * p).sqrt()


def population_loss(f: Tensor, joint: Tensor) -> Tensor:
    """Spectral contrastive loss −2 E[f(x)·f(x')] + E[(f(x)·f(y))²] of features f (…, n, C): (…,).

    joint: P(x, x') (n, n), of which (x, x') are drawn; x and y are independent.
    """
    p = joint.sum(1)
    similarity = f @ f.mT  # (…, n, n)
    positives = -2 * joint * similarity
    negatives = p[:, None] * p * similarity.square()
    return (positives + negatives).sum((-2, -1))


# ------------------------------------------------------------------------------------ factorisation
def residual(A: Tensor, F: Tensor) -> Tensor:
    """‖A − F Fᵀ‖² of A (…, n, n) and F (…, n, K): (…,)."""
    return (A - F @ F.mT).square().sum((-2, -1))


def factorise(A: Tensor, K: int, non_negative: bool, seeds: int, steps: int, lr=0.03) -> Tensor:
    """F (…, seeds, n, K) at a minimum of ‖A − F Fᵀ‖² for A (…, n, n); best of three for each seed.

    By Adam with a rate that falls to 0, projected on F ≥ 0 if `non_negative`.
    """
    random = torch.Generator().manual_seed(1)
    shape = (*A.shape[:-2], seeds, 3, A.shape[-1], K)
    F = 0.1 * torch.randn(shape, dtype=A.dtype, generator=random)
    if non_negative:
        F = F.abs()
    F.requires_grad_()
    A = A[..., None, None, :, :]  # (…, 1, 1, n, n), for seeds and starts
    optimizer = torch.optim.Adam([F], lr=lr)
    for step in progress(range(steps), "factorisation"):
        optimizer.param_groups[0]["lr"] = lr * (1 - step / steps)
        optimizer.zero_grad()
        residual(A, F).sum().backward()
        optimizer.step()
        if non_negative:
            F.data.clamp_(min=0)
    F = F.detach()
    best = residual(A, F).argmin(-1)  # (…, seeds)
    return F.take_along_dim(best[..., None, None, None], -3).squeeze(-3)


def agreement(G: Tensor, H: Tensor) -> float:
    """Mean cosine of the columns of G and H (n, K), matched and with signs as fits best.

    It is 1 where one is the other but for order (and signs).
    """
    cosines = (normalize(G, dim=0).T @ normalize(H, dim=0)).abs().tolist()
    K = len(cosines)
    best = 0.0
    for order in itertools.permutations(range(K)):
        matched = sum(cosines[i][order[i]] for i in range(K))
        best = max(best, matched)
    return best / K


def between_seeds(solutions: Tensor) -> float:
    """Mean agreement of all pairs of solutions (seeds, n, K)."""
    pairs = itertools.combinations(solutions, 2)
    agreements = [agreement(G, H) for G, H in pairs]
    return sum(agreements) / len(agreements)


# ------------------------------------------------------------------------------------- the theorems
def theorem_2() -> dict:
    """Loss and factorisation differ by −‖Ā‖² for whatever features: the largest error of 100."""
    joint = joint_of(*co_occurrence(0.3))
    p, A = normalised(joint)
    random = torch.Generator().manual_seed(2)
    f = torch.randn(100, len(p), CLASSES, dtype=p.dtype, generator=random).relu()
    factors = p.sqrt()[:, None] * f
    difference = population_loss(f, joint) - residual(A, factors)
    error = (difference + A.square().sum()).abs().max().item()
    setting = "2 loss less ‖Ā − F Fᵀ‖² plus ‖Ā‖², largest of 100 features"
    return row(setting, error, 0.0, error < 1e-9)


def theorem_4(solution: Tensor) -> list[dict]:
    """Features of a solution F (n, C) of NCL without overlap, beside indicators of the classes."""
    prior, given = co_occurrence(0.0)
    p, _ = normalised(joint_of(prior, given))
    features = solution / p.sqrt()[:, None]
    indicators = (given > 0).to(features)
    cosine = agreement(features, indicators)
    heights = features.amax(0).sort().values  # (C,)
    exact = prior.rsqrt().sort().values
    error = (heights - exact).abs().max().item()
    of_cosine = "4 NCL: cosine of the features and indicators of the classes"
    of_heights = "4 NCL: largest error of a feature's height, 1/√P(c)"
    return [
        row(of_cosine, cosine, 1.0, cosine > UNIQUE),
        row(of_heights, error, 0.0, error < 1e-2),
    ]


def solve(mixed: str, non_negative: bool, overlaps: list[float]) -> Tensor:
    """Solutions (overlaps, seeds, n, C) of NCL, or of CL where F may have any sign."""
    matrices = []
    for overlap in overlaps:
        _, A = normalised(joint_of(*co_occurrence(overlap, mixed)))
        matrices.append(A)
    return factorise(torch.stack(matrices), CLASSES, non_negative, SEEDS, STEPS)


def theorem_5(solutions: Tensor) -> dict:
    """Without overlap solutions (seeds, n, C) of NCL are one."""
    found = beyond_theorem_5("NCL, all mixed", 0.0, solutions)
    is_one = found["verdict"] == "unique"
    return found | {"paper": 1.0, "verdict": "holds" if is_one else "fails"}


def beyond_theorem_5(name: str, overlap: float, solutions: Tensor) -> dict:
    """Whether solutions (seeds, n, C) are one, where no theorem tells."""
    value = between_seeds(solutions)
    setting = f"5 {name}, overlap {overlap}: agreement of {SEEDS} solutions"
    verdict = "unique" if value > UNIQUE else "not unique"
    return row(setting, value, None, True) | {"verdict": verdict}


# -------------------------------------------------------------------------------------- the program
def main(argv=None):
    folder = new_folder("theory_nmf", __doc__, argv)

    all_mixed = solve("all", True, OVERLAPS)  # (overlaps, seeds, n, C)
    some_mixed = solve("some", True, OVERLAPS)
    any_sign = solve("all", False, [0.0])

    rows = [theorem_2()]
    rows += theorem_4(all_mixed[0, 0])
    rows.append(theorem_5(all_mixed[0]))
    rows.append(beyond_theorem_5("CL, all mixed", 0.0, any_sign[0]))
    for overlap, solutions in zip(OVERLAPS[1:], all_mixed[1:]):
        rows.append(beyond_theorem_5("NCL, all mixed", overlap, solutions))
    for overlap, solutions in zip(OVERLAPS[1:], some_mixed[1:]):
        rows.append(beyond_theorem_5("NCL, some mixed", overlap, solutions))

    write_json(folder / "results.json", rows)
    print(table(rows))
    print(f"{folder}: results.json")


if __name__ == "__main__":
    common.launch(main)
