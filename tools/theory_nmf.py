"""What NCL learns where it can be computed: non-negative matrix factorisation of the co-occurrence of positive pairs.

Images of C latent classes, positive pairs (x, x') drawn independently of one class: P(x, x') = Σ_c P(c) P(x|c) P(x'|c),
Ā = P(x, x') / √(P(x) P(x')). The spectral contrastive loss of features f is ‖Ā − F Fᵀ‖² less a constant, F_x = √P(x)
f(x): with F ≥ 0 a non-negative matrix factorisation ([NCL] Theorem 2). Its minimisers from random starts, beside those
with F of any sign (CL), while the classes overlap more and more:
    Theorem 4   without overlap the features are indicators of the classes, f_c(x) = 1[x of class c] / √P(c)
    Theorem 5   and unique but for the order of the dimensions, where CL's are rotated at will
    overlap     the theorem assumes none; it is enough that each class keeps images of its own ("some mixed"): if F R
                (R orthogonal) is ≥ 0 on those, R is ≥ 0, hence a permutation. Where every image is mixed, F > 0, and
                a small rotation of it is another solution. f_c(x) = P(c|x) / √P(c) is one in any case (a test)
Wang et al., "Non-negative Contrastive Learning", arXiv 2403.12459. Its Theorem 1 is a test of ncl.py; the statements of
Theorems 3 and 6 are not in what we have of the paper.

    python tools/theory_nmf.py      a table; results.json and, with matplotlib, theory.png in runs/theory_nmf-<time>
"""
import functools
import itertools
import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from theory import common, generator, program, row

OVERLAPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
SEEDS = 10


def co_occurrence(overlap: float, mixed="all", classes=4, each=6) -> tuple[Tensor, Tensor]:
    """P(c) (C,) and P(x|c) (n, C) of n = classes · each images: `overlap` is the probability under a class of images
    of the others; mixed = "some": only every second image is lent to other classes."""
    prior = torch.linspace(1, 2, classes, dtype=torch.float64)  # not equally frequent: Theorem 4's scales show
    own = torch.eye(classes, dtype=torch.float64).repeat_interleave(each, 0)  # (n, C)
    weight = torch.rand(len(own), 1, generator=generator(0, 0), dtype=torch.float64) + 0.5  # of an image in its class
    lent = (1 - own) * (torch.arange(len(own)) % 2 if mixed == "some" else torch.ones(len(own)))[:, None]
    inside, outside = own * weight, lent * weight
    return prior / prior.sum(), (1 - overlap) * inside / inside.sum(0) + overlap * outside / outside.sum(0)


def normalised(prior: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """P(x) (n,) and Ā (n, n) of P(c) (C,) and P(x|c) (n, C)."""
    joint = given * prior @ given.T
    p = joint.sum(1)
    return p, joint / (p[:, None] * p).sqrt()


def population_loss(f: Tensor, joint: Tensor) -> Tensor:
    """Spectral contrastive loss −2 E[f(x)·f(x')] + E[(f(x)·f(y))²], (…,), of features f (…, n, C): (x, x') of P(x, x')
    (n, n), x and y independent."""
    similarity, p = f @ f.mT, joint.sum(1)
    return (-2 * joint * similarity + p[:, None] * p * similarity.square()).sum((-2, -1))


def factorise(A: Tensor, K: int, non_negative: bool, seeds=SEEDS, steps=3000, lr=0.03) -> Tensor:
    """F (…, seeds, n, K) at a minimum of ‖A − F Fᵀ‖² for A (…, n, n), by Adam with a rate that falls to 0, projected on
    F ≥ 0 if `non_negative`; the best of three starts for each seed."""
    A = A[..., None, None, :, :]
    F = torch.randn(*A.shape[:-4], seeds, 3, A.shape[-1], K, dtype=A.dtype, generator=generator(0, 1)).mul(0.1)
    F = (F.abs_() if non_negative else F).requires_grad_()
    optimizer = torch.optim.Adam([F], lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        (A - F @ F.mT).square().sum().backward()
        optimizer.param_groups[0]["lr"] = lr * (1 - step / steps)
        optimizer.step()
        if non_negative:
            F.data.clamp_(min=0)
    best = (A - F @ F.mT).square().sum((-2, -1)).argmin(-1)  # (…, seeds)
    return F.detach().take_along_dim(best[..., None, None, None], -3).squeeze(-3)


def agreement(F: Tensor, G: Tensor) -> float:
    """Mean cosine of the columns of F and G (n, K), matched and with signs as fits best: 1 where one is the other but
    for order (and signs)."""
    cosines = (normalize(F, dim=0).T @ normalize(G, dim=0)).abs()
    orders = itertools.permutations(range(len(cosines)))
    return max(sum(cosines[i, j].item() for i, j in enumerate(order)) for order in orders) / len(cosines)


def between_seeds(solutions: Tensor) -> float:
    """Mean agreement of all pairs of solutions (seeds, n, K)."""
    pairs = [*itertools.combinations(solutions, 2)]
    return sum(agreement(F, G) for F, G in pairs) / len(pairs)


def theorem_2() -> dict:
    """Loss and factorisation differ by the same number, −‖Ā‖², for whatever features: its spread over 100 of them."""
    prior, given = co_occurrence(0.3)
    p, A = normalised(prior, given)
    f = torch.randn(100, len(p), 4, dtype=p.dtype, generator=generator(0, 2)).relu()
    F = p.sqrt()[:, None] * f
    gap = population_loss(f, given * prior @ given.T) - (A - F @ F.mT).square().sum((-2, -1))
    spread = (gap + A.square().sum()).abs().max().item()
    return row("2 loss less ‖Ā − F Fᵀ‖² plus ‖Ā‖², largest of 100 features", spread, 0.0, spread < 1e-9)


def theorem_4(F: Tensor, p: Tensor, prior: Tensor, given: Tensor) -> list[dict]:
    """Features F / √P(x) of a solution F (n, C) without overlap beside indicators of the classes, 1/√P(c) high."""
    exact = agreement(F / p.sqrt()[:, None], (given > 0).to(F))
    heights = (F / p.sqrt()[:, None]).amax(0).sort().values
    error = (heights - prior.rsqrt().sort().values).abs().max().item()
    return [row("4 NCL: cosine of the features and indicators of the classes", exact, 1.0, exact > 0.999),
            row("4 NCL: largest error of a feature's height, 1/√P(c)", error, 0.0, error < 1e-2)]


def theorem_5(panel=None) -> list[dict]:
    """Solutions of NCL agree, those of CL do not; what is left of it where classes overlap. With Theorem 4, as it needs
    the same solutions; all drawn in a panel of matplotlib's."""
    found = []
    for (mixed, colour), non_negative in itertools.product({"all": "C0", "some": "C1"}.items(), (True, False)):
        settings = [co_occurrence(overlap, mixed) for overlap in OVERLAPS]
        p, A = map(torch.stack, zip(*(normalised(*setting) for setting in settings)))
        solutions = factorise(A, len(settings[0][0]), non_negative)  # (overlaps, seeds, n, C)
        agreements = [between_seeds(of_one) for of_one in solutions]
        text = lambda i: f"5 {name}, overlap {OVERLAPS[i]}: agreement of {SEEDS} solutions"
        beyond = lambda text, value: row(text, value, 1.0, True) | {"verdict": "not " * (value < 0.999) + "unique"}
        name = f"{'NCL' if non_negative else 'CL'}, {mixed} mixed"
        if not non_negative:
            found += [beyond(text(0), agreements[0])] if mixed == "all" else []
        else:
            found += theorem_4(solutions[0, 0], p[0], *settings[0]) if mixed == "all" else []
            found += [row(text(0), agreements[0], 1.0, agreements[0] > 0.999)] if mixed == "all" else []
            found += [beyond(text(i), agreements[i]) for i in (2, 4)]
        if panel:
            panel.plot(OVERLAPS, agreements, "o-" if non_negative else "x:", color=colour, label=name)
    if panel:
        panel.set(title=f"Theorem 5 and beyond: {SEEDS} solutions", xlabel="overlap of the classes",
                  ylabel="agreement but for order and signs", ylim=(0.4, 1.03))
        panel.legend(fontsize=7)
    return found


def features(panel) -> None:
    """The features of Theorem 4's setting, an image a row, in a panel of matplotlib's."""
    prior, given = co_occurrence(0.0)
    p, A = normalised(prior, given)
    both = [factorise(A, len(prior), kind, seeds=1)[0] / p.sqrt()[:, None] for kind in (True, False)]
    shown = torch.cat([both[0], torch.full((len(p), 1), math.nan), both[1]], 1)
    panel.imshow(shown.numpy(), aspect="auto", cmap="RdBu", vmin=-3, vmax=3, interpolation="none")
    panel.set(title="Theorem 4: features of NCL | of CL", xlabel="dimension", ylabel="image, by class", xticks=[])


def theorems(panels) -> list[dict]:
    if panels[0]:
        features(panels[0])
    return [theorem_2(), *theorem_5(panels[1])]


main = functools.partial(program, "theory_nmf", __doc__, theorems)

if __name__ == "__main__":
    common.launch(main)
