"""Theorems in numbers: what a theorem says beside what its setting gives.

Theorems 1 to 3 of Pokle, Tian, Li, Risteski, "Contrasting the landscape of contrastive and
non-contrastive learning", AISTATS 2022, arXiv 2203.15702. The losses are population values: sums
over all latents and masks. α is the probability that a mask keeps an entry, κ that a latent is not
0, and τ multiplies the similarity; in sparse_coding.py they are keep, Pr and 1/τ.

    python studies/landscape/theory.py      a table, and runs/theory-<time>/results.json

What fails:
1. Theorem 1(b) for Eq. (9) read literally, a mask for every negative, if (1 − α) exp τ > d − α:
   W with negative entries do better. Among W ≥ 0 permutations stay best.
2. Theorem 2 as it is printed.
3. Theorem 3, tried near the solution alone, beyond κα² = 1 − b.
"""

import argparse
import itertools
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import common  # noqa: E402
import interpret  # noqa: E402
from run_folder import write_json  # noqa: E402
from sparse_coding import srelu  # noqa: E402

# ----------------------------------------------------------------------------------------- settings
FEATURES = 5  # d of Theorems 1 and 2
KEEP = 0.5  # α of Theorems 1 and 2: a mask keeps an entry with this probability
TAUS = [2, 5]  # of Theorem 1(b); here τ multiplies the similarity
REGIONS = [(0.3, 0.5, 0.3), (0.6, 0.9, 0.9)]  # b, α and κ of Theorem 3


def row(setting: str, measured: float, theorem: float | None, holds: bool) -> dict:
    """A row of results.json. theorem: the value by the theorem; None where no theorem tells."""
    return {
        "setting": setting,
        "end_mean": measured,
        "paper": theorem,
        "verdict": "holds" if holds else "fails",
    }


def vectors(values: tuple, d: int) -> Tensor:
    """All vectors (n^d, d) of n values."""
    return torch.tensor(list(itertools.product(values, repeat=d)), dtype=torch.float64)


def masks(d: int, keep: float) -> tuple[Tensor, Tensor]:
    """Every mask D (2^d, d), and its probability (2^d,)."""
    D = vectors((0.0, 1.0), d)
    return D, (keep * D + (1 - keep) * (1 - D)).prod(1)


def latents(d: int, kappa: float) -> tuple[Tensor, Tensor]:
    """Every latent z (3^d, d), whose entries are not 0 with probability κ, and its probability."""
    z = vectors((-1.0, 0.0, 1.0), d)
    return z, (kappa / 2 * z.abs() + (1 - kappa) * (1 - z.abs())).prod(1)


# -------------------------------------------------------------------------------- Theorem 1: minima
# M = I, no noise, and the latents are one-hot: each is one entry of +1.
def loss_6(W: Tensor, keep: float) -> Tensor:
    """Population value of Eq. (6), the mean over the d latents, of W (…, d, d): (…,).

    D1 and D2 both keep the one entry of a latent with probability α².
    """
    similarity = F.relu(W).square().sum(-2)  # (…, d), of a latent with itself
    return (2 - 2 * keep**2 * similarity).mean(-1)


def theorem_1a(random: torch.Generator, d=FEATURES, keep=KEEP) -> list[dict]:
    """Of all W (d, d) with columns of norm 1 those ≥ 0 are the minima of Eq. (6), at 2 − 2α².

    It is tried with 1,000 of them.
    """
    W = torch.randn(1000, d, d, dtype=torch.float64, generator=random)
    W = F.normalize(W, dim=1)
    least = 2 - 2 * keep**2
    largest = loss_6(W.abs(), keep).max().item()
    smallest = loss_6(W, keep).min().item()
    minima = row("1(a) Eq. (6), largest of 1,000 W ≥ 0", largest, least, largest < least + 1e-9)
    others = "1(a) Eq. (6), smallest of 1,000 W of mixed signs"
    return [minima, row(others, smallest, least, smallest > least)]


def one_mask(similarity: Tensor, keep: float) -> Tensor:
    """E log Σ_j exp(similarity of i and j) where all negatives share a mask, Eq. (A.17).

    similarity: (…, d, d); returned is (…, d), a value for each i.
    """
    D2, probability = masks(similarity.shape[-1], keep)
    logits = similarity[..., None, :, :] * D2[:, None]  # (…, 2^d, d, d)
    partition = logits.logsumexp(-1)  # (…, 2^d, d)
    return (partition * probability[:, None]).sum(-2)


def mask_per_negative(similarity: Tensor, keep: float) -> Tensor:
    """log Σ_j E exp(…): every negative has a mask of its own, Eq. (9) read literally.

    Of infinitely many negatives the sum itself takes the mean over masks, so E is within the log.
    """
    return (keep * similarity.exp() + 1 - keep).sum(-1).log()


READINGS = {"Eq. (A.17)": one_mask, "Eq. (9), a mask per negative": mask_per_negative}


def loss_9(W: Tensor, keep: float, tau: float, log_partition) -> Tensor:
    """The contrastive loss less log(|B|/d), in nats, for |B| → ∞, of W (…, d, d): (…,).

    log_partition: one of READINGS.
    """
    d = W.shape[-1]
    similarity = tau * F.relu(W).mT @ F.relu(W)  # (…, d, d)
    positive = keep * similarity.diagonal(dim1=-2, dim2=-1)  # (…, d)
    kept = log_partition(similarity, keep) - positive
    dropped = math.log(d)  # where D1 drops the entry, all logits are 0
    return (keep * kept + (1 - keep) * dropped).mean(-1)


def lowest_loss_9(d: int, keep: float, tau: float, log_partition, starts=32, steps=400) -> float:
    """The lowest loss_9 that Adam finds over W with columns of norm 1, from random starts."""
    random = torch.Generator().manual_seed(0)
    V = torch.randn(starts, d, d, dtype=torch.float64, generator=random).requires_grad_()
    optimizer = torch.optim.Adam([V], lr=0.05)
    for _ in common.progress(range(steps), f"1(b), τ = {tau}: step"):
        loss = loss_9(F.normalize(V, dim=1), keep, tau, log_partition)  # (starts,)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    return loss.min().item()


def theorem_1b(d=FEATURES, keep=KEEP) -> list[dict]:
    """Permutations are the minima of the contrastive loss: searched among W of any sign.

    It holds for Eq. (A.17), but for Eq. (9) only where (1 − α) exp τ ≤ d − α. Among W ≥ 0 with
    columns of norm 1 it holds for both: WᵀW has ones on the diagonal, and all that can be smaller
    in the partition are its other entries, which are 0 for permutations alone.
    """
    permutation = torch.eye(d, dtype=torch.float64)
    rows = []
    for name, log_partition in READINGS.items():
        for tau in TAUS:
            of_permutation = loss_9(permutation, keep, tau, log_partition).item()
            found = lowest_loss_9(d, keep, tau, log_partition)
            setting = f"1(b) {name}, τ = {tau}: lowest found, permutation"
            rows.append(row(setting, found, of_permutation, found > of_permutation - 1e-3))
    return rows


# ----------------------------------------------------------------- Theorem 2: a dual linear network
def linear_descent(Wo, Wt, M, lrs: list[float], decay: float, keep: float, kappa, noise):
    """W^o and W^t (m, p) of the dual linear network after steps W ← decay · W − lr · ∇.

    The gradients of both are of the population value of Eq. (7), with Eq. (13)'s decay:
    2 − 2 α² tr(W^o E[x xᵀ] W^tᵀ), where E[x xᵀ] = κ M Mᵀ + σ0² I.

    M: (p, d), orthonormal columns; kappa, noise: κ and σ0
    """
    second_moment = kappa * M @ M.mT + noise**2 * torch.eye(len(M), dtype=M.dtype)  # (p, p)
    for lr in lrs:
        Wo = Wo.detach().requires_grad_()
        Wt = Wt.detach().requires_grad_()
        loss = 2 - 2 * keep**2 * (Wo @ second_moment * Wt).sum()
        of_Wo, of_Wt = torch.autograd.grad(loss, [Wo, Wt])
        Wo = decay * Wo - lr * of_Wo
        Wt = decay * Wt - lr * of_Wt
    return Wo.detach(), Wt.detach()


def closed_form(lrs: list[float], decay: float, keep: float, kappa: float, noise: float):
    """C1 and C2 of W^o_t M = C1 W^o_0 M + C2 (W^o_0 M + W^t_0 M), and C2 as the paper prints it.

    With λ the decay and c_i = 2 lr_i α² (κ + σ0²)
    C1       Π(λ − c_i)
    C2       ½ [Π(λ + c_i) − Π(λ − c_i)]
    printed  Σ_j c_j Π_{i≥j}(λ − c_i) Π_{i<j}(λ + c_i); the first product must start at j + 1
    """
    c = [2 * lr * keep**2 * (kappa + noise**2) for lr in lrs]
    minus = [decay - x for x in c]
    plus = [decay + x for x in c]
    C1 = math.prod(minus)
    C2 = (math.prod(plus) - C1) / 2
    printed = 0
    for j in range(len(c)):
        printed += c[j] * math.prod(minus[j:]) * math.prod(plus[:j])
    return C1, C2, printed


def theorem_2(
    random: torch.Generator, d=FEATURES, keep=KEEP, decay=0.97, kappa=0.3, noise=0.1
) -> list[dict]:
    """Whatever is learnt is a combination of the starts: the closed form beside 50 steps.

    It holds, but not as it is printed.
    """
    lrs = torch.rand(50, generator=random).mul(0.2).tolist()
    M = torch.linalg.qr(torch.randn(20, d, dtype=torch.float64, generator=random))[0]  # (20, d)
    Wo, Wt = torch.randn(2, 8, 20, dtype=torch.float64, generator=random)
    learnt, _ = linear_descent(Wo, Wt, M, lrs, decay, keep, kappa, noise)
    after = learnt @ M  # (8, d)
    C1, C2, printed = closed_form(lrs, decay, keep, kappa, noise)
    rows = []
    for factor, text in (C2, ""), (printed, ", C2 as printed"):
        formula = C1 * Wo @ M + factor * (Wo + Wt) @ M
        error = ((formula - after).abs().max() / after.abs().max()).item()
        setting = f"2 W^o M after 50 steps, relative error of the closed form{text}"
        rows.append(row(setting, error, 0.0, error < 1e-10))
    return rows


# ---------------------------------------------------------------- Theorem 3: from near the solution
def half_round(W: Tensor, other: Tensor, bias, keep, kappa, steps=60, lr=10.0) -> Tensor:
    """W (d, d) after steps of descent on Eq. (15) with `other` (d, d) fixed, M = I and no noise.

    Rows are normalised after each step. Of Eq. (15) it is the population value: the expectation
    runs over all 3^d latents and 2^d masks.
    """
    z, of_z = latents(len(W), kappa)
    D, of_D = masks(len(W), keep)

    def mean_over_masks(W):
        outputs = srelu((z[:, None] * D) @ W.mT, bias)  # (3^d, 2^d, d)
        return (outputs * of_D[:, None]).sum(1)  # (3^d, d)

    goal = mean_over_masks(other)
    for _ in common.progress(range(steps), f"3, b = {bias}: step"):
        W = W.detach().requires_grad_()
        loss = 2 - 2 * (of_z[:, None] * mean_over_masks(W) * goal).sum()
        (gradient,) = torch.autograd.grad(loss, W)
        W = F.normalize(W.detach() - lr * gradient, dim=1)
    return W


def growth(bias: float, keep: float, kappa: float, d=3) -> float:
    """By what a half-round from near I multiplies off-diagonal entries."""
    random = torch.Generator().manual_seed(1)
    identity = torch.eye(d, dtype=torch.float64)
    W = identity + 1e-4 * torch.randn(d, d, dtype=torch.float64, generator=random)
    off = identity == 0
    after = half_round(W, W, bias, keep, kappa)
    return (after[off] / W[off]).mean().item()


def theorem_3() -> list[dict]:
    """A half-round from near I comes nearer to I: the growths in REGIONS beside κα²/(1 − b).

    Above 1, which is not excluded, it fails.
    """
    setting = "3 off-diagonal entries times this in a half-round: κα²/(1−b), below 1"
    rows = []
    for bias, keep, kappa in REGIONS:
        measured = growth(bias, keep, kappa)
        predicted = kappa * keep**2 / (1 - bias)
        rows.append(row(setting, measured, predicted, measured < 1))
    return rows


# -------------------------------------------------------------------------------------- the program
def table(rows: list[dict]) -> str:
    """Rows of results.json as a Markdown table."""
    lines = [["setting", "measured", "theorem", "verdict"]]
    for found in rows:
        measured = f"{found['end_mean']:.4g}"
        theorem = "–"
        if found["paper"] is not None:
            theorem = f"{found['paper']:.4g}"
        lines.append([found["setting"], measured, theorem, found["verdict"]])
    return interpret.markdown(lines)


def new_folder(program: str, doc: str, argv) -> Path:
    """The folder that --out names, or runs/<program>-<time>, made anew."""
    flags = argparse.ArgumentParser(
        prog=f"{program}.py",
        usage=argparse.SUPPRESS,
        description=doc,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    default = f"(default: runs/{program}-<time>)"
    flags.add_argument("--out", metavar="FOLDER", help=f"a new folder {default}")
    args = flags.parse_args(argv)
    folder = Path(args.out or time.strftime(f"runs/{program}-%Y%m%d-%H%M%S"))
    common.new_folder(folder, {"method": program}, "cpu")
    return folder


def main(argv=None):
    folder = new_folder("theory", __doc__, argv)
    random = torch.Generator().manual_seed(2)
    rows = theorem_1a(random) + theorem_1b() + theorem_2(random) + theorem_3()
    write_json(folder / "results.json", rows)
    print(table(rows))
    print(f"{folder}: results.json")


if __name__ == "__main__":
    common.launch(main)
