"""Do sparse heads lead to the true features? Theorem 5.6 of SparseHead where features are known.

Its idea is tested in the form that Lachapelle et al. prove: many tasks share a representation, and
each has a linear head of its own with a penalty. The representation is the true features, but for
order and scale, if each task needs few of them and these vary enough among tasks. Here everything
is linear:

    x   = M z + ε              data of sparse_coding.py; columns of M (p, d): the true features
    y_t = A_t z                targets (K,) of task t; A_t (K, d) has s columns that are not 0
    r   = W x                  the learnt features, W (d, p); rows have norm 1, else a larger r
                               with smaller heads would evade the penalty
    mean over t of  E ‖y_t − B_t r‖² + λ ‖B_t‖₂,₁      B_t (K, d): the heads

Without λ any invertible map of the true features does as well. The loss depends on x and z through
their second moments alone, so that it is the tasks that must be sparse, z need not.

    at random     each task needs s features of its own
    two halves    each task needs features 1 to 5, or 6 to 10: as sparse, but not varied
    all           each task needs all features: there is nothing to find
    one head      the heads as one matrix with one penalty, as in sparsehead.py: its column j is
                  that of all tasks

With 50 tasks that need 3 or 5 features at random, all are found (λ = 0.01: |cos| .998). With 10
tasks some are not. The other three stay near what λ = 0 gives. A small λ needs more steps.

Song et al., "Towards the Sparseness of Projection Head in Self-Supervised Learning",
arXiv 2307.08913; Lachapelle et al., "Synergies between Disentanglement and Sparsity",
arXiv 2211.14666.

    python studies/sparsehead/theory_heads.py    a table, and runs/theory_heads-<time>/results.json
"""

import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "studies" / "landscape")]
import common  # noqa: E402
import interpret  # noqa: E402
from common import progress  # noqa: E402
from run_folder import write_json  # noqa: E402
from sparse_coding import generator, max_cosine, sample  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from scipy.optimize import linear_sum_assignment  # noqa: E402
from theory import new_folder  # noqa: E402
from torch import Tensor  # noqa: E402

# ----------------------------------------------------------------------------------------- settings
PENALTIES = [0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]  # λ
SEEDS = 10  # 1 to 10, each with features, samples, tasks and first weights of its own
FEATURES = 10  # d
OUTPUTS = 3  # K of a task
DATA = SimpleNamespace(p=50, d=FEATURES, n=10_000, latents="iid")
SPARSITY, NOISE = 0.3, 0.15  # Pr(z_i ≠ 0), standard deviation of ε
STEPS, LR = 3000, 0.03  # of Adam, whose rate falls to 0
TASKS, WEIGHTS = 40, 41  # random numbers of their own, beside sparse_coding.py's PURPOSES

# A setting: its name; s, and which features a task needs; the number of tasks; whether there is one
# penalty for the heads of all tasks; steps.
SETTINGS = {
    "3 of 10 at random": (3, "at random", 50, False, STEPS),
    "the same, 4 times the steps": (3, "at random", 50, False, 4 * STEPS),
    "the same, 20 tasks": (3, "at random", 20, False, STEPS),
    "the same, 10 tasks": (3, "at random", 10, False, STEPS),
    "the same, one head for all tasks": (3, "at random", 50, True, STEPS),
    "5 of 10 at random": (5, "at random", 50, False, STEPS),
    "5 of 10: one of two fixed halves": (5, "halves", 50, False, STEPS),
    "all 10": (10, "at random", 50, False, STEPS),
}


# ----------------------------------------------------------------------------------------- the data
def true_heads(s: int, which: str, tasks: int, random: torch.Generator) -> Tensor:
    """A (tasks, K, d): normal, in the s columns that a task needs; E‖A_t z‖² is about Var z."""
    if which == "halves":
        half = torch.randint(2, (tasks, 1), generator=random)
        needed = torch.arange(FEATURES) // (FEATURES // 2) == half  # (tasks, d)
    else:
        order = torch.rand(tasks, FEATURES, generator=random).argsort(1)
        needed = order < s
    A = torch.randn(tasks, OUTPUTS, FEATURES, generator=random)
    return A * needed[:, None] / (OUTPUTS * s) ** 0.5


def for_each_penalty(of_seeds: list[Tensor]) -> Tensor:
    """One tensor of all replicas, those of a seed one after the other."""
    return torch.stack(of_seeds).repeat_interleave(len(PENALTIES), 0)


class Moments:
    """The second moments of all replicas, on which the loss depends; a replica is a seed and a λ.

    M    the true features (R, p, d)
    xx   E[x xᵀ] (R, p, p)
    xy   E[x yᵀ] (R, p, tasks · K)
    yy   E‖y‖², the mean over tasks (R,)
    """

    def __init__(self, s: int, which: str, tasks: int, seeds: int):
        found = []
        for seed in range(1, seeds + 1):
            M, z, x = sample(DATA, seed, SPARSITY, NOISE)
            A = true_heads(s, which, tasks, generator(seed, TASKS))
            y = A.flatten(0, 1) @ z / SPARSITY**0.5  # (tasks · K, n)
            yy = y.square().sum() / (DATA.n * tasks)
            found.append((M, x @ x.T / DATA.n, x @ y.T / DATA.n, yy))
        self.M, self.xx, self.xy, self.yy = (for_each_penalty(part) for part in zip(*found))


# ------------------------------------------------------------------------------------- the training
def prediction_error(W: Tensor, B: Tensor, data: Moments) -> Tensor:
    """Mean over tasks of E‖y_t − B_t W x‖², of W (R, d, p) and B (R, tasks, K, d): (R,)."""
    heads = B.flatten(1, 2)  # (R, tasks · K, d)
    of_r = W @ data.xx @ W.mT  # E[r rᵀ] (R, d, d)
    of_r_and_y = W @ data.xy  # (R, d, tasks · K)
    quadratic = (heads @ of_r * heads).sum((1, 2))
    mixed = (heads.mT * of_r_and_y).sum((1, 2))
    return data.yy + (quadratic - 2 * mixed) / B.shape[1]


def penalty(B: Tensor, one_head: bool) -> Tensor:
    """Mean over tasks of ‖B_t‖₂,₁, of B (R, tasks, K, d): (R,).

    one_head: ‖·‖₂,₁ of all heads as one matrix, over √tasks, which is as large where all tasks'
    columns are equally long.
    """
    tiny = 1e-12  # the root has no gradient at 0
    if one_head:
        lengths = (B.square().mean(1).sum(1) + tiny).sqrt()  # (R, d)
        return lengths.sum(1)
    lengths = (B.square().sum(2) + tiny).sqrt()  # (R, tasks, d)
    return lengths.sum(2).mean(1)


def learn(data: Moments, tasks: int, one_head: bool, steps: int, seeds: int) -> tuple:
    """W (R, d, p) and B (R, tasks, K, d) after training all replicas at once."""
    of_W, of_B = [], []
    for seed in range(1, seeds + 1):
        random = generator(seed, WEIGHTS)
        of_W.append(torch.randn(FEATURES, DATA.p, generator=random))
        of_B.append(0.01 * torch.randn(tasks, OUTPUTS, FEATURES, generator=random))
    V = for_each_penalty(of_W).requires_grad_()
    B = for_each_penalty(of_B).requires_grad_()
    weight = torch.tensor(PENALTIES).repeat(seeds)  # (R,)
    optimizer = torch.optim.Adam([V, B], lr=LR)
    for step in progress(range(steps), "training"):
        optimizer.param_groups[0]["lr"] = LR * (1 - step / steps)
        W = F.normalize(V, dim=2)
        loss = prediction_error(W, B, data) + weight * penalty(B, one_head)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    return F.normalize(V.detach(), dim=2), B.detach()


# ------------------------------------------------------------------------------------- the measures
def matched_cosine(W: Tensor, M: Tensor) -> Tensor:
    """Mean |cos| of learnt and true features, matched one to one as fits best: (R,)."""
    cosines = (F.normalize(W, dim=2) @ F.normalize(M, dim=1)).abs()  # (R, d, d)
    means = []
    for of_replica in cosines.numpy():
        pairs = linear_sum_assignment(of_replica, maximize=True)
        means.append(of_replica[pairs].mean())
    return torch.tensor(means)


def rows_of(setting: str, seeds=SEEDS) -> list[dict]:
    """Rows of results.json, one for each λ, with a list over seeds of each measure.

    min, median    over the true features, of the largest |cos| at a learnt one
    matched        mean |cos|, matched one to one
    error          E‖y − B W x‖² / E‖y‖²
    """
    s, which, tasks, one_head, steps = SETTINGS[setting]
    data = Moments(s, which, tasks, seeds)
    W, B = learn(data, tasks, one_head, steps, seeds)
    cosines = max_cosine(W, data.M)  # (R, d)
    measured = {
        "min": cosines.amin(1),
        "median": cosines.median(1).values,
        "matched": matched_cosine(W, data.M),
        "error": prediction_error(W, B, data) / data.yy,
    }
    rows = []
    for i, weight in enumerate(PENALTIES):
        of_seeds = {name: v[i :: len(PENALTIES)].tolist() for name, v in measured.items()}
        rows.append({"setting": setting, "penalty": weight} | of_seeds)
    return rows


# -------------------------------------------------------------------------------------- the program
def table(rows: list[dict]) -> str:
    """Means over seeds as a Markdown table."""
    lines = [["setting", "λ", "min", "median", "matched", "error"]]
    for row in rows:
        means = [torch.tensor(row[name]).mean() for name in lines[0][2:]]
        lines.append([row["setting"], f"{row['penalty']:g}", *(f"{mean:.3f}" for mean in means)])
    return interpret.markdown(lines)


def main(argv=None):
    folder = new_folder("theory_heads", __doc__, argv)
    rows = []
    for setting in SETTINGS:
        rows += rows_of(setting)
    write_json(folder / "results.json", rows)
    print(table(rows))
    print(f"{folder}: results.json")


if __name__ == "__main__":
    common.launch(main)
