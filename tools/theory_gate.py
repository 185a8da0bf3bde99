"""BayesNCL's mechanism: is there a conflict of gradients, and does the gate close on frequent features?

[BayesNCL] claims that the gradient of a feature that many images share is zero in the mean and large in variance, and
(Theorem 4.5) that the gate closes on it, because its gain γ π (1 − π), π the share of images that have the feature,
falls below the cost λ log(1/ρ) of an open gate.
    cost    the KL divergence of a gate that is surely open (α = 1) is log(1/ρ) nats, of a surely closed one log(1/(1 −
            ρ)): closing saves λ log((1 − ρ)/ρ), negative for ρ > ½. The term pulls α to ρ: with 0.8, the authors',
            it opens gates (a test)
    gain    NT-Xent without the feature less NT-Xent with it; below 0 the loss itself closes the gate
    toy     binary features of planted frequencies π, ten of each; the gate alone is trained
    runs    of ncl.py and bayesncl.py, on views of their training images: N times the gradient of NT-Xent by z⁺ ⊙ m of
            norm 1, mean over a batch's images where that is not 0; its mean and standard deviation over batches
    grid    Cons., adjusted Cons., live dimensions and linear probe over ρ and λ, of records (study.py shapes-grid)
Cui, Zhang, Hu, "Bayesian Gated Non-Negative Contrastive Learning", arXiv 2605.28441.

    python tools/theory_gate.py [runs/<a> …]    a table; results.json and pictures in runs/theory_gate-<time>
"""
import argparse
import itertools
import json
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from report import common
import bayesncl
import report

FREQUENCIES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99)
LAW = [pi * (1 - pi) for pi in FREQUENCIES]
SETTINGS = ((0.8, 0.0), (0.8, 3e-5), (0.8, 3e-3), (0.5, 3e-3), (0.2, 3e-3), (0.05, 3e-3))  # ρ, λ; the second: authors'
GRID = ("0.1", "0.3", "0.5", "0.8", "0.95"), ("3e-6", "3e-5", "3e-4", "3e-3", "3e-2")  # ρ, λ
SHOWN = {"cons": "Cons.", "adjusted": "adj.", "live_dims": "live", "lp1": "LP@1"}


@torch.no_grad()
def gain(z1: Tensor, z2: Tensor, temperature: float, norms_kept=False) -> Tensor:
    """NT-Xent of z1, z2 (N, K) without dimension k less NT-Xent with all, in nats: (K,); norms_kept: of embeddings that
    are normalised with all dimensions and not again without k."""
    def loss(kept):
        if not norms_kept:
            return bayesncl.nt_xent(z1 * kept, z2 * kept, temperature)
        z = normalize(torch.cat([z1, z2])) * kept
        logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
        return cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))
    return torch.stack([loss(kept) for kept in 1 - torch.eye(z1.shape[1])]) - loss(1)


# -------------------------------------------------------------------------------------------------------------- the toy
def planted(n: int, copies=10, dropped=0.1) -> tuple[Tensor, Tensor]:
    """Two views (n, K) of n images with K = copies · len(FREQUENCIES) independent binary features: height uniform on
    [½, 1½], and a view, which draws its own, loses each with probability `dropped`."""
    has = torch.rand(n, copies * len(FREQUENCIES)) < torch.tensor(FREQUENCIES).repeat_interleave(copies)
    view = lambda: has * (torch.rand(has.shape) + 0.5) * (torch.rand(has.shape) > dropped)
    return view(), view()


def train_gate(rho: float, lambd: float, seed: int, steps: int, n=256) -> Tensor:
    """Share of the entries > 0 that the gate keeps, by feature (K,), after training it with BayesNCL's loss."""
    torch.manual_seed(seed)
    gating = bayesncl.gating_head(K := planted(1)[0].shape[1], 64, K)
    optimizer = torch.optim.Adam(gating.parameters(), lr=3e-3)
    for _ in range(steps):
        z1, z2 = planted(n)
        (m1, alpha1), (m2, alpha2) = (bayesncl.gate(gating(z)) for z in (z1, z2))
        kl = (bayesncl.bernoulli_kl(alpha1, rho) + bayesncl.bernoulli_kl(alpha2, rho)) / 2
        loss = bayesncl.nt_xent(z1 * m1, z2 * m2, 0.2) + lambd * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    z = planted(4000)[0]
    return ((bayesncl.gate(gating(z))[0] * (z > 0)).sum(0) / (z > 0).sum(0)).detach()


def toy(seeds=3, steps=300) -> dict:
    """By frequency: the gain of a planted feature, and with the norms kept; γ of the γ π (1 − π) nearest to the latter;
    what the gate keeps, mean over seeds."""
    torch.manual_seed(0)
    by_frequency = lambda values: torch.stack(values).mean(0).unflatten(0, (len(FREQUENCIES), -1)).mean(1)
    gains, kept = (by_frequency([gain(*planted(256), 0.2, k) for _ in range(5)]).tolist() for k in (False, True))
    gamma = sum(g * q for g, q in zip(kept, LAW)) / sum(q * q for q in LAW)
    return {"frequency": FREQUENCIES, "gain": gains, "norms kept": kept, "gamma": gamma, "kept": {
        f"ρ {rho}, λ {lambd:g}": by_frequency([train_gate(rho, lambd, s, steps) for s in range(seeds)]).tolist()
        for rho, lambd in SETTINGS}}


# ----------------------------------------------------------------------------------------------------------------- runs
def pull_and_push(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """N times the gradients of NT-Xent's two parts, the positive similarities and the log-sum over all others, by z1
    (N, K): (2, K), means over the images with z1 > 0."""
    z1 = z1.detach().requires_grad_()
    loss = bayesncl.nt_xent(z1, z2, temperature)
    unit = lambda z: normalize(z, eps=bayesncl.EPS)
    pull = -(unit(z1) * unit(z2)).sum(1).mean() / temperature  # a pair is the positive of both its views
    parts = torch.autograd.grad(pull, z1, retain_graph=True)[0], torch.autograd.grad(loss - pull, z1)[0]
    return torch.stack([len(z1) * (part * (z1 > 0)).sum(0) / (z1 > 0).sum(0).clamp(min=1) for part in parts])


def conflict(run: argparse.Namespace, model: torch.nn.Module, data_root: str | None, batches=40) -> dict[str, Tensor]:
    """Of a run, by dimension (K,): pi, share of images with z⁺_k > 0; "gated", the same behind the gate; open, share of
    the former that it keeps; gain; means over batches of pull and push, mean and std of their sum."""
    data, gated = common.load_data(run.dataset, data_root or run.data_root, limit=run.limit), run.method == "bayesncl"
    model.train()  # BatchNorm as in training; no weight changes
    torch.manual_seed(0)
    views = dict(min_scale=run.min_scale, jitter=run.jitter, gray=run.gray, blur=run.blur, crop=run.crop)
    stream = (x for e in itertools.count() for x, _ in data.batches(min(run.batch_size, len(data.images)), 0, e, "cpu"))
    active, gradients, kept = [], [], []
    for images in itertools.islice(stream, batches):
        with torch.no_grad():
            z = []
            for view in common.two_views(images, run.image_size, **views):
                h, out, *_ = model(view)
                plus = bayesncl.ACTIVATIONS[run.activation](model.head(h)) if gated else out
                active.append(torch.stack([(x > 0).float().mean(0) for x in (plus, out)]))
                z.append(out.float())
        gradients.append(pull_and_push(*map(normalize, z), run.temperature))  # whatever a network's scale
        kept.append(z)
    G, (pi, behind) = torch.stack(gradients), torch.stack(active).mean(0)  # (batches, 2, K), (K,) each
    gains = torch.stack([gain(*z, run.temperature) for z in kept[:10]]).mean(0)
    return {"pi": pi, "gated": behind, "open": behind / pi.clamp(min=1e-9), "gain": gains, "pull": G[:, 0].mean(0),
            "push": G[:, 1].mean(0), "mean": G.sum(1).mean(0), "std": G.sum(1).std(0).clamp(min=1e-12)}


def summary(c: dict[str, Tensor]) -> dict[str, float]:
    """Medians over frequent (a fifth of the images and more) and rare dimensions (1 to 5 %) of |mean|/std over batches,
    std and |pull + push| / (|pull| + |push|); median frequency of closed and open dimensions; how many there are."""
    values = {"mean_over_std": c["mean"].abs() / c["std"], "std": c["std"], "pi": c["pi"],
              "left": c["mean"].abs() / (c["pull"].abs() + c["push"].abs()).clamp(min=1e-12)}
    groups = {"frequent": c["gated"] >= 0.2, "rare": (c["gated"] >= 0.01) & (c["gated"] < 0.05),
              "closed": (c["open"] < 0.5) & (c["pi"] > 0), "open": c["open"] >= 0.5}
    medians = {f"{name}_{key}": value[group].median().item() for name, group in groups.items() if group.any()
               for key, value in values.items() if key == "pi" or name in ("frequent", "rare")}
    return medians | {f"{name}_dims": int(group.sum()) for name, group in groups.items()}


def draw_grid(draw, path: Path) -> None:
    """SHOWN over ρ and λ, of the seeds on record."""
    name = "shapes-grid-bayesncl-prior{}-kl-weight{}-seed1".format
    if not all((report.RESULTS / name(*cell)).exists() for cell in itertools.product(*GRID)):
        return print("grid.png is left out: the study shapes-grid has not been made")
    seeds = {cell: [*report.seeds_of(name(*cell)).values()] for cell in itertools.product(*GRID)}
    draw.grid(path, *GRID, {title: {cell: [run.get(key, torch.nan) for run in runs] for cell, runs in seeds.items()}
                            for key, title in SHOWN.items()})


def picture(draw, path: Path, found: dict, runs: dict[str, dict[str, Tensor]]) -> None:
    """What toy() found and, of runs {title: conflict()}, noise of the gradient, gain and gate over frequency."""
    rows, size = ("aaabbb;ccddee", (13, 7)) if runs else ("ab", (9, 3.8))
    figure, axes = draw.plt.subplot_mosaic(rows, figsize=size, layout="constrained")
    panels = [*axes.values()]
    panels[0].plot(FREQUENCIES, found["gain"], "o-", label="cosines")
    panels[0].plot(FREQUENCIES, found["norms kept"], "o-", label="norms kept")
    panels[0].plot(FREQUENCIES, [found["gamma"] * q for q in LAW], "k:", label=f"γ π (1 − π), γ = {found['gamma']:.2g}")
    for name, shares in found["kept"].items():
        panels[1].plot(FREQUENCIES, shares, "o-", label=name)
    for colour, (title, c) in enumerate(runs.items()):
        heights = c["mean"].abs() / c["std"], c["gain"], c["open"]
        for panel, x, y in zip(panels[2:], (c["gated"], c["gated"], c["pi"]), heights):
            panel.scatter(x.numpy(), y.numpy(), 8, alpha=0.5, color=f"C{colour}", label=title)
            panel.set(xscale="log", xlim=(1e-3, 1))
    for panel, text in zip(panels, ("toy: gain (nats)", "toy: share of active entries kept", "gradient: |mean| / std",
                                    "gain (nats)", "share of active entries that the gate keeps")):
        panel.set(title=text, xlabel="π, share of images")
        panel.legend(fontsize=7)
    panels[0].axhline(0, color="grey", lw=0.5)
    draw.save(figure, path)


def main(argv=None):
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("runs", nargs="*", type=Path, help="folders of finished runs of ncl.py and bayesncl.py")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    flags.add_argument("--out", default=time.strftime("runs/theory_gate-%Y%m%d-%H%M%S"), help="a new folder")
    args = flags.parse_args(argv)
    loaded = {str(folder): common.load_run(folder) for folder in args.runs}
    for name, (run, _) in loaded.items():
        if run.method not in ("ncl", "bayesncl") or run.loss != "ntxent":
            raise common.BadInput(f"{name}: {run.method}.py; give runs of ncl.py and bayesncl.py with NT-Xent")
    folder = common.new_folder(args.out, {"method": "theory_gate"}, torch.device("cpu"))
    runs = {name: conflict(*one, args.data_root) for name, one in loaded.items()}
    found = {"toy": toy(), "runs": {name: summary(c) for name, c in runs.items()}}
    with common.replacing(folder / "results.json") as file:
        file.write(json.dumps(found, indent=1).encode() + b"\n")
    columns = {"π": FREQUENCIES, **{key: found["toy"][key] for key in ("gain", "norms kept")}, **found["toy"]["kept"]}
    print(common.markdown([[*columns], *([f"{value:.2g}" for value in values] for values in zip(*columns.values()))]))
    for name, numbers in found["runs"].items():
        print(f"{name}: {', '.join(f'{key} {value:.3g}' for key, value in numbers.items())}")
    try:
        import draw
    except ImportError:
        return print("matplotlib is not installed: the pictures are left out")
    picture(draw, folder / "gate.png", found["toy"], runs)
    draw_grid(draw, folder / "grid.png")


if __name__ == "__main__":
    common.launch(main)
