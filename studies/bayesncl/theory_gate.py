"""BayesNCL's mechanism: do gradients conflict, and does the gate close on frequent features?

[BayesNCL] claims that the gradient of a feature that many images share is zero in the mean and
large in variance, and (Theorem 4.5) that the gate closes on it, because its gain γ π (1 − π), π
the share of images that have the feature, falls below the cost λ log(1/ρ) of an open gate.

    cost    the KL divergence of a gate that is surely open (α = 1) is log(1/ρ) nats, of a surely
            closed one log(1/(1 − ρ)): closing saves λ log((1 − ρ)/ρ), negative for ρ > ½. The
            term pulls α to ρ: with 0.8, the authors', it opens gates
    gain    NT-Xent without the feature less NT-Xent with it; below 0 the loss itself closes the
            gate
    toy     binary features of planted frequencies π, ten of each; the gate alone is trained
    runs    of ncl.py and bayesncl.py, on views of their training images: N times the gradient of
            NT-Xent by the first view's z⁺ ⊙ m of norm 1, mean over a batch's images where that is
            not 0; its mean and standard deviation over batches

[BayesNCL]: Cui, Zhang, Hu, "Bayesian Gated Non-Negative Contrastive Learning", arXiv 2605.28441.

    python studies/bayesncl/theory_gate.py [runs/<a> …]    a table, and files in a new folder

The files are results.json and gate.png. assets/theory-gate.png is that of three runs of seed 1:
ncl.py, bayesncl.py and bayesncl.py --epochs 1.
"""

import argparse
import itertools
import math
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import bayesncl  # noqa: E402
import common  # noqa: E402
import interpret  # noqa: E402
from common import progress  # noqa: E402
from run_folder import data_of, load_run, write_json  # noqa: E402

plt.style.use(ROOT / "studies" / "pictures.mplstyle")

# ----------------------------------------------------------------------------------------- settings
FREQUENCIES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99)  # π of the toy's features
COPIES = 10  # features of each frequency
LAW = [pi * (1 - pi) for pi in FREQUENCIES]  # of Theorem 4.5's gain, without γ
SETTINGS = [  # ρ, λ of the toy
    (0.8, 0.0),
    (0.8, 3e-5),  # the authors'
    (0.8, 3e-3),
    (0.5, 3e-3),
    (0.2, 3e-3),
    (0.05, 3e-3),
]
TEMPERATURE = 0.2  # of the toy


# ----------------------------------------------------------------------------------------- the gain
def nt_xent_of_parts(z1: Tensor, z2: Tensor, kept: Tensor, temperature: float) -> Tensor:
    """NT-Xent of embeddings that are normalised first and then times kept (K,)."""
    z = normalize(torch.cat([z1, z2])) * kept  # (2N, K)
    logits = z @ z.T / temperature
    logits.fill_diagonal_(-torch.inf)
    positive = torch.arange(len(z)).roll(len(z1))
    return cross_entropy(logits, positive)


@torch.no_grad()
def gain(z1: Tensor, z2: Tensor, temperature: float, norms_kept=False) -> Tensor:
    """NT-Xent of z1, z2 (N, K) without dimension k less NT-Xent with all, in nats: (K,).

    norms_kept: of embeddings that are normalised with all dimensions and not again without k.
    """

    def loss(kept):
        if norms_kept:
            return nt_xent_of_parts(z1, z2, kept, temperature)
        return bayesncl.nt_xent(z1 * kept, z2 * kept, temperature)

    K = z1.shape[1]
    whole = loss(torch.ones(K))
    gains = []
    for left_out in torch.eye(K):
        gains.append(loss(1 - left_out) - whole)
    return torch.stack(gains)


# ------------------------------------------------------------------------------------------ the toy
def planted(n: int, dropped=0.1) -> tuple[Tensor, Tensor]:
    """Two views (n, K) of n images with K independent binary features, COPIES of each frequency.

    Where an image has a feature, its height in a view is uniform on [½, 1½], or 0 with probability
    `dropped`. Each view draws its own.
    """
    frequency = torch.tensor(FREQUENCIES).repeat_interleave(COPIES)  # (K,)
    has = torch.rand(n, len(frequency)) < frequency

    def view():
        height = torch.rand(has.shape) + 0.5
        seen = torch.rand(has.shape) > dropped
        return has * height * seen

    return view(), view()


def train_gate(rho: float, lambd: float, seed: int, steps: int, n=256) -> Tensor:
    """Share of the entries > 0 that the gate keeps, by feature (K,), once it has been trained.

    It is trained alone, with BayesNCL's loss on batches of n planted images.
    """
    torch.manual_seed(seed)
    z, _ = planted(1)
    K = z.shape[1]
    gating = bayesncl.gating_network(K, 64, K)
    optimizer = torch.optim.Adam(gating.parameters(), lr=3e-3)
    for _ in range(steps):
        z1, z2 = planted(n)
        m1, alpha1 = bayesncl.gate(gating(z1))
        m2, alpha2 = bayesncl.gate(gating(z2))
        kl = (bayesncl.bernoulli_kl(alpha1, rho) + bayesncl.bernoulli_kl(alpha2, rho)) / 2
        loss = bayesncl.nt_xent(z1 * m1, z2 * m2, TEMPERATURE) + lambd * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    z, _ = planted(4000)
    active = z > 0
    m, _ = bayesncl.gate(gating(z))
    return ((m * active).sum(0) / active.sum(0)).detach()


def by_frequency(values: list[Tensor]) -> list[float]:
    """The mean of several values of each feature (K,), by FREQUENCIES."""
    mean = torch.stack(values).mean(0)
    return mean.unflatten(0, (len(FREQUENCIES), -1)).mean(1).tolist()


def mean_gain(norms_kept: bool, batches=5) -> list[float]:
    """The gain of a planted feature, by FREQUENCIES."""
    gains = []
    for _ in range(batches):
        z1, z2 = planted(256)
        gains.append(gain(z1, z2, TEMPERATURE, norms_kept))
    return by_frequency(gains)


def toy(seeds=3, steps=300) -> dict:
    """What the toy shows, by FREQUENCIES.

    gain         of a feature
    norms kept   the same with the norms kept
    gamma        γ of the γ π (1 − π) nearest to it
    kept         setting → share of the active entries that the gate keeps, mean over seeds
    """
    torch.manual_seed(0)
    gains = mean_gain(norms_kept=False)
    with_norms = mean_gain(norms_kept=True)
    products = sum(g * q for g, q in zip(with_norms, LAW))
    gamma = products / sum(q * q for q in LAW)

    kept = {}
    for rho, lambd in progress(SETTINGS, "training the toy's gates"):
        shares = [train_gate(rho, lambd, seed, steps) for seed in range(seeds)]
        kept[f"ρ {rho}, λ {lambd:g}"] = by_frequency(shares)
    return {
        "frequency": FREQUENCIES,
        "gain": gains,
        "norms kept": with_norms,
        "gamma": gamma,
        "kept": kept,
    }


# --------------------------------------------------------------------------------------------- runs
def pull_and_push(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """N times the gradients of NT-Xent's two parts by z1 (N, K), means over images with z1 > 0.

    (2, K): of the positive similarities, and of the log-sum over all others.
    """
    z1 = z1.detach().requires_grad_()
    loss = bayesncl.nt_xent(z1, z2, temperature)
    u1 = normalize(z1, eps=bayesncl.EPS)
    u2 = normalize(z2, eps=bayesncl.EPS)
    pull = -(u1 * u2).sum(1).mean() / temperature  # a pair is the positive of both its views
    active = z1 > 0
    means = []
    for part in pull, loss - pull:
        (gradient,) = torch.autograd.grad(part, z1, retain_graph=True)
        means.append(len(z1) * (gradient * active).sum(0) / active.sum(0).clamp(min=1))
    return torch.stack(means)


def endless(data: common.Data, args: argparse.Namespace):
    """Yield batches of images (args.batch_size, 3, H, W), pass after pass."""
    for epoch in itertools.count():
        for images, _ in data.batches(args, epoch):
            yield images


def conflict(
    run: argparse.Namespace, model: torch.nn.Module, data_root: str | None, batches=40
) -> dict[str, Tensor]:
    """What happens to each dimension of a run, (K,).

    pi           share of images with z⁺_k > 0
    gated        the same behind the gate
    open         share of the former that it keeps
    m            share of images on which the gate is open, active or not; 1 without a gate
    clamped      share of images whose α is outside [0.01, 0.99], where the KL term has no gradient
    gain         of ten batches
    pull, push   means over batches
    mean, std    over batches, of pull + push
    """
    data = data_of(run, data_root)
    views = dict(
        min_scale=run.min_scale, jitter=run.jitter, gray=run.gray, blur=run.blur, crop=run.crop
    )
    model.train()  # BatchNorm as in training; no weight changes
    torch.manual_seed(0)
    batch_size = min(run.batch_size, len(data.images))
    epochs = math.ceil(batches / data.steps(batch_size))
    of_batches = argparse.Namespace(batch_size=batch_size, seed=0, device="cpu", epochs=epochs)
    stream = endless(data, of_batches)
    before, behind, m, clamped = [], [], [], []  # shares of each view
    gradients, pairs = [], []  # of each batch
    for _ in progress(range(batches), "batches of a run"):
        pair = []
        for view in common.two_views(next(stream), run.image_size, **views):
            with torch.no_grad():
                if run.method == "bayesncl":
                    h, out, gate, alpha = model(view)
                    plus = bayesncl.ACTIVATIONS[run.activation](model.head(h))
                else:
                    _, out = model(view)
                    plus, gate, alpha = out, torch.ones_like(out), torch.full_like(out, 0.5)
            m.append(gate.mean(0))
            clamped.append(((alpha - 0.5).abs() > 0.49).float().mean(0))
            before.append((plus > 0).float().mean(0))
            behind.append((out > 0).float().mean(0))
            pair.append(out.float())
        pairs.append(pair)
        z1, z2 = pair
        # Of norm 1: whatever a network's scale.
        gradients.append(pull_and_push(normalize(z1), normalize(z2), run.temperature))

    gains = []
    for z1, z2 in progress(pairs[:10], "gains of a run"):
        gains.append(gain(z1, z2, run.temperature))
    pi = torch.stack(before).mean(0)
    gated = torch.stack(behind).mean(0)
    pull, push = torch.stack(gradients, 1)  # (batches, K) each
    both = pull + push
    return {
        "pi": pi,
        "gated": gated,
        "open": gated / pi.clamp(min=1e-9),
        "m": torch.stack(m).mean(0),
        "clamped": torch.stack(clamped).mean(0),
        "gain": torch.stack(gains).mean(0),
        "pull": pull.mean(0),
        "push": push.mean(0),
        "mean": both.mean(0),
        "std": both.std(0).clamp(min=1e-12),
    }


def summary(c: dict[str, Tensor]) -> dict[str, float]:
    """What conflict() found, in numbers.

    frequent_…, rare_…      medians over dimensions active on a fifth of the images and more, and
                            on 1 to 5 %
      …_mean_over_std       |mean| / std over batches; of a mean of 0 about .67 / √batches
      …_std                 its denominator
      …_pi                  share of images; also of dimensions that the gate keeps less often than
                            not (closed) and others (open)
      …_left                |pull + push| / (|pull| + |push|)
    …_dims                  how many of each there are
    clamped                 mean of all dimensions
    live_…                  of dimensions that are active on 0.1 % of the images or more:
      …_m, …_kept           means of m, and of the share of active entries that the gate keeps
      …_decided_dims        how many have a gate that is open on 5 to 95 % of the images
    """
    strength = c["pull"].abs() + c["push"].abs()
    values = {
        "mean_over_std": c["mean"].abs() / c["std"],
        "std": c["std"],
        "pi": c["pi"],
        "left": c["mean"].abs() / strength.clamp(min=1e-12),
    }
    groups = {
        "frequent": c["gated"] >= 0.2,
        "rare": (c["gated"] >= 0.01) & (c["gated"] < 0.05),
        "closed": (c["open"] < 0.5) & (c["pi"] > 0),
        "open": c["open"] >= 0.5,
    }
    numbers = {}
    for name, group in groups.items():
        if not group.any():
            continue
        for key, value in values.items():
            if key == "pi" or name in ("frequent", "rare"):
                numbers[f"{name}_{key}"] = value[group].median().item()
    live = c["gated"] >= 0.001
    decided = (c["m"] > 0.05) & (c["m"] < 0.95)
    for name, group in (groups | {"live": live, "live_decided": live & decided}).items():
        numbers[f"{name}_dims"] = int(group.sum())
    of_live = dict(live_m=c["m"][live].mean().item(), live_kept=c["open"][live].mean().item())
    return numbers | of_live | dict(clamped=c["clamped"].mean().item())


# ------------------------------------------------------------------------------------- the picture
TITLES = {  # of its panels
    "a": "toy: gain (nats)",
    "b": "toy: share of active entries kept",
    "c": "gradient: |mean| / std",
    "d": "gain (nats)",
    "e": "share of active entries that the gate keeps",
}


def title(run: argparse.Namespace) -> str:
    """What a run is called in the picture."""
    name = {"ncl": "NCL", "bayesncl": "BayesNCL"}[run.method]
    return f"{name}, {run.epochs} epoch{'s' * (run.epochs > 1)}"


def draw_gate(path: Path, toy: dict, runs: list[tuple[str, dict[str, Tensor]]]) -> None:
    """What toy() found and, of runs (title, conflict()), gradient, gain and gate over frequency."""
    mosaic = "aaabbb;ccddee" if runs else "ab"
    size = (11, 6.5) if runs else (11, 3.5)
    figure, panels = plt.subplot_mosaic(mosaic, figsize=size)
    law = [toy["gamma"] * q for q in LAW]
    panels["a"].plot(FREQUENCIES, toy["gain"], "o-", label="cosines")
    panels["a"].plot(FREQUENCIES, toy["norms kept"], "o-", label="norms kept")
    of_law = f"γ π (1 − π), γ = {toy['gamma']:.2g}"
    panels["a"].plot(FREQUENCIES, law, ":", color="grey", label=of_law)
    panels["a"].axhline(0, color="grey", lw=0.5)
    for name, shares in toy["kept"].items():
        panels["b"].plot(FREQUENCIES, shares, "o-", label=name)
    for name, c in runs:
        dots = dict(s=8, alpha=0.5, label=name)
        panels["c"].scatter(c["gated"], c["mean"].abs() / c["std"], **dots)
        panels["d"].scatter(c["gated"], c["gain"], **dots)
        panels["e"].scatter(c["pi"], c["open"], **dots)
    for letter, panel in panels.items():
        if letter in "cde":
            panel.set(xscale="log", xlim=(1e-3, 1))
        panel.set(title=TITLES[letter], xlabel="π, share of images")
        panel.legend()
    figure.savefig(path)
    plt.close(figure)


# -------------------------------------------------------------------------------------- the program
def table(toy: dict) -> str:
    """What toy() found as a Markdown table, a row for each frequency."""
    columns = {"π": FREQUENCIES, "gain": toy["gain"], "norms kept": toy["norms kept"]}
    columns |= toy["kept"]
    rows = [list(columns)]
    for values in zip(*columns.values()):
        rows.append([f"{value:.2g}" for value in values])
    return interpret.markdown(rows)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="theory_gate.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    of_which = "folders of finished runs of ncl.py and bayesncl.py"
    default = time.strftime("runs/theory_gate-%Y%m%d-%H%M%S")
    flags.add_argument("runs", nargs="*", type=Path, help=of_which)
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    flags.add_argument("--out", type=Path, default=Path(default), help="a new folder")
    args = flags.parse_args(argv)
    loaded = {}
    for path in args.runs:
        run, model = load_run(path)
        loss = getattr(run, "loss", "ntxent")  # older runs of bayesncl.py had no other
        if run.method not in ("ncl", "bayesncl") or loss != "ntxent":
            wanted = "give runs of ncl.py and bayesncl.py with NT-Xent"
            raise common.BadInput(f"{path}: {run.method}.py; {wanted}")
        loaded[str(path)] = run, model
    folder = args.out
    common.new_folder(folder, {"method": "theory_gate"}, "cpu")

    runs = {}
    for name, (run, model) in loaded.items():
        runs[name] = conflict(run, model, args.data_root)
    found = {"toy": toy(), "runs": {name: summary(c) for name, c in runs.items()}}
    write_json(folder / "results.json", found)
    print(table(found["toy"]))
    for name, numbers in found["runs"].items():
        told = ", ".join(f"{key} {value:.3g}" for key, value in numbers.items())
        print(f"{name}: {told}")
    titles = [title(run) for run, _ in loaded.values()]
    draw_gate(folder / "gate.png", found["toy"], list(zip(titles, runs.values())))


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
