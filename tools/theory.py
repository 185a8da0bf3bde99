"""Theorems in numbers: what a theorem says beside what its setting gives.

Theorems 1 to 3 of Pokle, Tian, Li, Risteski, "Contrasting the landscape of contrastive and non-contrastive learning",
AISTATS 2022, arXiv 2203.15702, in the notation of sparse_coding.py. The losses are population values, sums over all
latents and masks. What fails: 1(b) for Eq. (9) read literally, 2 as it is printed, 3 beyond κα² = 1 − b.
    python tools/theory.py      a table; results.json and, with matplotlib, theory.png in runs/theory-<time>
"""
import argparse
import functools
import itertools
import json
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import common  # noqa: E402
from sparse_coding import generator, srelu  # noqa: E402


def row(setting: str, measured: float, theorem: float, holds: bool) -> dict:
    """A row of results.json, with the keys of sparse_coding.py's."""
    return dict(experiment="theory", setting=setting, statistic=None, lr_times_steps=None, start=None,
                end_mean=measured, end_std=None, paper=theorem, verdict="holds" if holds else "fails", seeds=None)


# --------------------------------------------------------------------------------------------------- Theorem 1: minima
def loss_6(W: Tensor, keep: float) -> Tensor:
    """Population value of Eq. (6) per latent, (…,), of W (…, d, d) in the setting of Theorem 1: M = I, no noise,
    one-hot +1 latents, of which D1 and D2 both keep the one entry with probability α²."""
    return (2 - 2 * keep**2 * F.relu(W).square().sum(-2)).mean(-1)


def theorem_1a(random: torch.Generator, d=5, keep=0.5) -> list[dict]:
    """Of all W (d, d) with columns of norm 1 those ≥ 0 are the minima of Eq. (6), at 2 − 2α²: tried with 1,000."""
    W = F.normalize(torch.randn(1000, d, d, dtype=torch.float64, generator=random), dim=1)
    largest, smallest, bound = loss_6(W.abs(), keep).max().item(), loss_6(W, keep).min().item(), 2 - 2 * keep**2
    return [row("1(a) Eq. (6), largest of 1,000 W ≥ 0", largest, bound, largest < bound + 1e-9),
            row("1(a) Eq. (6), smallest of 1,000 W of mixed signs", smallest, bound, smallest > bound)]


def loss_9(W: Tensor, keep: float, inverse_temperature: float, literal=False) -> Tensor:
    """Population value of the contrastive loss in nats with |B| → ∞, (…,), of W (…, d, d) in the setting of Theorem 1:
    Eq. (A.17), where all samples share a mask, or `literal`: Eq. (9) with every negative's own mask. Here the
    temperature multiplies the similarity."""
    similarity = inverse_temperature * F.relu(W).mT @ F.relu(W)  # (…, d, d)
    d = W.shape[-1]
    if literal:
        partition = (keep * similarity.exp() + 1 - keep).sum(-1).log()  # (…, d)
    else:
        D2 = torch.cartesian_prod(*[W.new_tensor([0.0, 1.0])] * d)  # (2^d, d), every mask
        chance = (D2 * keep + (1 - D2) * (1 - keep)).prod(-1)
        partition = (similarity[..., None, :, :] * D2[:, None]).logsumexp(-1).mul(chance[:, None]).sum(-2)
    positive = keep * similarity.diagonal(dim1=-2, dim2=-1)  # where D1 keeps entry i; where it drops it, log d is left
    return (keep * (partition - positive) + (1 - keep) * math.log(d)).mean(-1)


def lowest_loss_9(d: int, keep: float, inverse_temperature: float, literal: bool, starts=32, steps=400) -> float:
    """The lowest loss_9 that Adam finds over W with columns of norm 1, from random starts of either sign."""
    V = torch.randn(starts, d, d, dtype=torch.float64, generator=generator(0, 0)).requires_grad_()
    optimizer = torch.optim.Adam([V], lr=0.05)
    for _ in range(steps):
        loss = loss_9(F.normalize(V, dim=1), keep, inverse_temperature, literal)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    return loss.min().item()


def theorem_1b(panel=None, d=5, keep=0.5) -> list[dict]:
    """The minima of the contrastive loss are permutations: the loss of one beside the lowest found, at two τ; drawn
    over τ in a panel of matplotlib's. It holds for Eq. (A.17), for Eq. (9) only where (1 − α) exp τ ≤ d − α."""
    betas, found = [1, 2, 3, 4, 5, 6], []
    for colour, (name, literal) in enumerate({"Eq. (A.17)": False, "Eq. (9), a mask per negative": True}.items()):
        permutation = [loss_9(torch.eye(d, dtype=torch.float64), keep, beta, literal).item() for beta in betas]
        lowest = [lowest_loss_9(d, keep, beta, literal) for beta in betas]
        found += [row(f"1(b) {name}, τ = {betas[i]}: lowest found, permutation", lowest[i], permutation[i],
                      lowest[i] > permutation[i] - 1e-3) for i in (1, 4)]
        if panel:
            panel.plot(betas, permutation, "-", color=f"C{colour}", label=f"{name}: a permutation")
            panel.plot(betas, lowest, "o", color=f"C{colour}", label=f"{name}: lowest found")
    if panel:
        panel.axvline(math.log((d - keep) / (1 - keep)), color="grey", ls=":", label="(1 − α) exp τ = d − α")
        panel.set(title=f"Theorem 1(b), d = {d}, α = {keep}", xlabel="τ, multiplying the similarity",
                  ylabel="contrastive loss (nats)")
        panel.legend(fontsize=7)
    return found


# ------------------------------------------------------------------------------------- Theorem 2: a dual linear network
def linear_descent(Wo, Wt, M, lrs: list[float], decay: float, keep: float, kappa: float, noise: float):
    """Both weights (m, p) of the dual linear network after simultaneous steps W ← decay·W − lr·∇ on the population
    value of Eq. (7), 2 − 2 α² tr(W^o E[x xᵀ] W^tᵀ) with E[x xᵀ] = κ M Mᵀ + σ0² I, M (p, d); with Eq. (13)'s decay."""
    second_moment = kappa * M @ M.mT + noise**2 * torch.eye(len(M), dtype=M.dtype)
    for lr in lrs:
        Wo, Wt = Wo.detach().requires_grad_(), Wt.detach().requires_grad_()
        loss = 2 - 2 * keep**2 * (Wo @ second_moment * Wt).sum()
        gradients = torch.autograd.grad(loss, (Wo, Wt))
        Wo, Wt = (decay * W - lr * gradient for W, gradient in zip((Wo, Wt), gradients))
    return Wo.detach(), Wt.detach()


def closed_form(lrs: list[float], decay: float, keep: float, kappa: float, noise: float) -> tuple[float, float, float]:
    """C1 and C2 of W^o_t M = C1 W^o_0 M + C2 (W^o_0 M + W^t_0 M): Π(λ − c_i) and ½[Π(λ + c_i) − Π(λ − c_i)] with
    c_i = 2 lr_i α² (κ + σ0²); and C2 as the paper prints it, a sum over j with a product that starts at j where it has
    to start at j + 1."""
    c = [2 * lr * keep**2 * (kappa + noise**2) for lr in lrs]
    minus = lambda terms: math.prod(decay - x for x in terms)
    plus = lambda terms: math.prod(decay + x for x in terms)
    return minus(c), (plus(c) - minus(c)) / 2, sum(c[j] * minus(c[j:]) * plus(c[:j]) for j in range(len(c)))


def theorem_2(random: torch.Generator, d=5, keep=0.5, decay=0.97, kappa=0.3, noise=0.1) -> list[dict]:
    """Whatever is learnt is a combination of the starts: the closed form of W^o M after 50 steps beside the steps. It
    holds, but not as it is printed."""
    lrs = torch.rand(50, generator=random).mul(0.2).tolist()
    M = torch.linalg.qr(torch.randn(20, d, dtype=torch.float64, generator=random))[0]
    Wo, Wt = torch.randn(2, 8, 20, dtype=torch.float64, generator=random)
    after, found = linear_descent(Wo, Wt, M, lrs, decay, keep, kappa, noise)[0] @ M, []
    C1, C2, printed = closed_form(lrs, decay, keep, kappa, noise)
    for C, text in (C2, ""), (printed, ", C2 as printed"):
        error = ((C1 * Wo @ M + C * (Wo + Wt) @ M - after).abs().max() / after.abs().max()).item()
        found.append(row("2 W^o M after 50 steps, relative error of the closed form" + text, error, 0.0, error < 1e-10))
    return found


# ------------------------------------------------------------------------------------ Theorem 3: from near the solution
def half_round(W: Tensor, other: Tensor, bias: float, keep: float, kappa: float, steps=60, lr=10.0) -> Tensor:
    """W (d, d) after steps of descent on the population value of Eq. (15) with M = I and no noise, `other` (d, d)
    fixed, rows normalised after each. The expectation runs over all 3^d latents and 2^d masks."""
    z = torch.cartesian_prod(*[W.new_tensor([-1.0, 0.0, 1.0])] * len(W))  # (3^d, d)
    D = torch.cartesian_prod(*[W.new_tensor([0.0, 1.0])] * len(W))  # (2^d, d)
    of_z = (kappa / 2 * z.abs() + (1 - kappa) * (1 - z.abs())).prod(1)  # (3^d,), probabilities
    of_D = (keep * D + (1 - keep) * (1 - D)).prod(1)  # (2^d,)
    mean = lambda W: (srelu(z[:, None] * D @ W.mT, bias) * of_D[:, None]).sum(1)  # (3^d, d), over masks
    goal = mean(other)
    for _ in range(steps):
        W = W.detach().requires_grad_()
        loss = 2 - 2 * (of_z[:, None] * mean(W) * goal).sum()
        W = F.normalize(W.detach() - lr * torch.autograd.grad(loss, W)[0], dim=1)
    return W


def growth(bias: float, keep: float, kappa: float, d=3) -> float:
    """By what an off-diagonal entry is multiplied in one half_round from a warm start (Theorem 3: κα²/(1 − b))."""
    W = torch.eye(d, dtype=torch.float64) + 1e-4 * torch.randn(d, d, dtype=torch.float64, generator=generator(0, 1))
    off = ~torch.eye(d, dtype=torch.bool)
    return (half_round(W, W, bias, keep, kappa)[off] / W[off]).mean().item()


def theorem_3(panel=None) -> list[dict]:
    """Half-rounds from near I converge to I: the factor by which they change off-diagonal entries, κα²/(1 − b), at the
    least and greatest of 18; all drawn in a panel of matplotlib's. Above 1, which is not excluded, it fails."""
    regions = list(itertools.product((0.3, 0.6), (0.5, 0.7, 0.9), (0.3, 0.6, 0.9)))  # b, α, κ
    ratios, growths = [kappa * keep**2 / (1 - b) for b, keep, kappa in regions], [growth(*region) for region in regions]
    if panel:
        panel.plot([0, 2], [0, 2], "grey", label="κα²/(1 − b)")
        panel.plot(ratios, growths, "o", label="measured")
        panel.axhspan(1, 2, color="red", alpha=0.1, label="does not converge to I")
        panel.set(title="Theorem 3, a half-round", xlabel="κα²/(1 − b)", ylabel="growth of off-diagonal entries")
        panel.legend(fontsize=7)
    return [row("3 off-diagonal entries times this in a half-round: κα²/(1−b), below 1", growths[i], ratios[i],
                growths[i] < 1) for i in (0, -1)]


def program(name: str, doc: str, theorems, argv=None) -> None:
    """A program of theorems: theorems(panels), of two panels of matplotlib's or None, gives rows."""
    flags = argparse.ArgumentParser(f"{name}.py", description=doc, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--out", metavar="FOLDER", help=f"a new folder (default: runs/{name}-<time>)")
    out = flags.parse_args(argv).out or time.strftime(f"runs/{name}-%Y%m%d-%H%M%S")
    folder = common.new_folder(out, {"method": name}, torch.device("cpu"))
    try:
        import draw
        figure, panels = draw.plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    except ImportError:
        draw, panels = print("matplotlib is not installed: theory.png is left out"), (None, None)
    found = theorems(panels)
    if draw:
        draw.save(figure, folder / "theory.png")
    with common.replacing(folder / "results.json") as file:
        file.write(json.dumps(found, indent=1).encode() + b"\n")
    print(common.markdown([["setting", "measured", "theorem", "verdict"], *(
        [r["setting"], f"{r['end_mean']:.4g}", f"{r['paper']:.4g}", r["verdict"]] for r in found)]))
    print(f"{folder}: results.json{', theory.png' if draw else ''}")


def theorems(panels) -> list[dict]:
    return [*theorem_1a(random := generator(0, 2)), *theorem_1b(panels[0]), *theorem_2(random), *theorem_3(panels[1])]


main = functools.partial(program, "theory", __doc__, theorems)

if __name__ == "__main__":
    common.launch(main)
