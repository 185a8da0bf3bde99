"""look.py's pictures that need matplotlib, each of what finished runs left in their folders."""
import itertools
import json
import re
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import common
import shapes
from sparsehead import effective_rank, min_max_ratio, spectrum

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def save(figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)


def dimensions(path: Path, e: Tensor) -> None:
    """Of embeddings e (N, K): |C| of 20 random live dimensions ([NCL] Fig. 3c); activations of 40 evenly spread samples
    (Fig. 1c, d), the dimensions by their mean; active dimensions per sample."""
    e = F.normalize(e)
    active, order = e.abs() > common.ACTIVE, e.abs().mean(0).argsort(descending=True)
    live = active.any(0).nonzero()[:, 0]
    shown = live[torch.randperm(len(live), generator=torch.Generator().manual_seed(0))[:20]]
    f = F.normalize(e[:, shown], dim=0)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
    picture = left.imshow((f.T @ f).abs().numpy(), vmin=0, vmax=1, cmap="magma")
    left.set(title=f"|correlation| of {len(shown)} random live dimensions", xticks=[], yticks=[])
    figure.colorbar(picture, ax=left)
    rows = torch.linspace(0, len(e) - 1, min(40, len(e))).long()
    picture = middle.imshow(e[rows][:, order].abs().numpy(), aspect="auto", vmin=0, cmap="magma", interpolation="none")
    middle.set(title=f"|activation|, {active.float().mean():.1%} of the entries active", ylabel="image",
               xlabel="dimension, the most active first")
    figure.colorbar(picture, ax=middle)
    right.hist(active.sum(1).numpy(), bins=min(50, e.shape[1] + 1), range=(0, e.shape[1]))
    right.set(title="active dimensions per image", xlabel=f"of {e.shape[1]}", ylabel="images")
    save(figure, path)


def collapse(path: Path, lines: list[dict]) -> None:
    """The collapse indicator "spread" over the epochs, of the lines of metrics.jsonl ([SimSiam] Fig. 2)."""
    epochs = [line for line in lines if "spread" in line]
    figure, panel = plt.subplots(figsize=(5, 3), layout="constrained")
    panel.plot([line["epoch"] for line in epochs], [line["spread"] for line in epochs], marker=".")
    panel.axhline(1, color="grey", linestyle=":")
    panel.set(xlabel="epoch", ylabel="std of z/‖z‖, times √K", title="1: healthy, 0: collapsed", ylim=(0, 1.1))
    save(figure, path)


def spectra(path: Path, runs: dict[str, dict[str, Tensor]]) -> None:
    """Of runs {title: {"h": (N, d), "z": (N, K)}}, eigenvalues on a log scale, a panel per kind of vectors, a line per
    run ([SparseHead] Fig. 1, 3), and the min-max ratio of the first d dimensions of z over d (Lemma 5.7). Embeddings
    are kept in 16 bits: what is below 1e-8 of the largest eigenvalue is rounding."""
    figure, (*axes, last) = plt.subplots(1, 3, figsize=(13.5, 3.4), layout="constrained")
    for axis, (kind, name) in zip(axes, {"h": "representation", "z": "embedding"}.items()):
        for title, arrays in runs.items():
            values = spectrum(arrays[kind])
            label = f"{title}, effective rank {effective_rank(values):.1f} of {len(values)}"
            axis.plot(range(1, len(values) + 1), values.clamp(min=1e-12 * values[0]), label=label)
        axis.set(yscale="log", xlabel="eigenvalue", title=name)
        axis.legend(fontsize=7)
    z = [(title, arrays["z"][:1000].float(), "-") for title, arrays in runs.items()]
    normal = torch.randn(z[0][1].shape, generator=torch.Generator().manual_seed(0))
    for title, x, style in (*z, ("independent normal dimensions", normal, "k:")):
        sizes = [2**k for k in range(2, x.shape[1].bit_length())]
        last.plot(sizes, [min_max_ratio(x[:, :d]) for d in sizes], style, label=title)
    last.set(xscale="log", yscale="log", xlabel="dimensions of the embedding, d", title="(δmax − δmin) / δmin")
    last.legend(fontsize=7)
    save(figure, path)


def selection(path: Path, runs: dict[str, list[dict]]) -> None:
    """P@10 and probe with the m most active dimensions and with m random ones, over m, of final records of runs
    {title: [record of a seed, …]}: mean ± std over seeds ([NCL], feature selection)."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, (key, whole, label) in zip(axes, (("p_at_10", "p_at_10", "P@10, %"),
                                                ("lp1", "lp1_embedding", "linear probe on z, %"))):
        for colour, (title, records) in enumerate(runs.items()):
            sizes = sorted(int(name.rsplit("_", 1)[1]) for name in records[0] if name.startswith(f"{key}_top_"))
            for kind, style in ("top", "-"), ("random", ":"):
                values = [[r[f"{key}_{kind}_{m}"] for m in sizes] + [r[whole]] for r in records]
                mean, std = np.mean(values, 0), np.std(values, 0, ddof=min(1, len(values) - 1))
                x = [*sizes, 2 * sizes[-1]]  # the last is all of them
                axis.plot(x, mean, style, color=f"C{colour}", marker=".", label=f"{title}, {kind}")
                axis.fill_between(x, mean - std, mean + std, color=f"C{colour}", alpha=0.12)
        axis.set(xscale="log", xlabel="dimensions kept", ylabel=label)
        axis.set_xticks(x, map(str, x), minor=False)
        axis.minorticks_off()
    axes[1].legend(fontsize=7)
    save(figure, path)


def titles(runs: list[tuple]) -> list[str]:
    """A title per run: the settings in which the runs differ, or their folders' names where these do not tell them."""
    keys = "method", "base", "head", "sparse_weight", "seed"
    told = [[f"{key} {config.get(key)}" for key in keys] for _, config, _ in runs]
    named = [", ".join(text for text, *every in zip(own, *told) if len({*every}) > 1) for own in told]
    return named if len({*named}) == len(named) > 1 else [folder.resolve().name for folder, *_ in runs]


def pictures(runs: list[tuple[Path, dict, dict[str, Tensor]]]) -> None:
    """All pictures of runs (folder, config with metrics.jsonl's "lines", arrays) of image methods, in their folders;
    what compares them in the first (selection.png: those with its data set and K, a method's runs as seeds)."""
    records = {}
    for folder, config, arrays in runs:
        dimensions(folder / "dimensions.png", arrays["z"])
        if config["method"] == "simsiam":
            collapse(folder / "collapse.png", config["lines"])
        last, chosen = config["lines"][-1], folder / "selection.json"
        if chosen.exists():
            last = last | json.loads(chosen.read_text())
        same = (config["dataset"], arrays["z"].shape) == (runs[0][1]["dataset"], runs[0][2]["z"].shape)
        if same and any(name.startswith("p_at_10_top") for name in last) and last["p_at_10"] is not None:
            records.setdefault(config["method"], []).append(last)
    if records:
        selection(runs[0][0] / "selection.png", records)
    if len(runs) > 1 or runs and runs[0][1]["method"] == "sparsehead":
        spectra(runs[0][0] / "spectra.png", dict(zip(titles(runs), (arrays for _, _, arrays in runs))))


def landscapes(folders: list[Path]) -> None:
    """landscape() of runs of sparse_coding.py."""
    for folder in folders:
        try:
            curves = dict(np.load(folder / "curves.npz", allow_pickle=False))
        except Exception as error:  # what a damaged archive may raise is not listed anywhere
            raise common.BadInput(f"{folder / 'curves.npz'} cannot be read ({type(error).__name__}: {error})")
        landscape(folder, curves)


def landscape(folder: Path, curves: dict[str, np.ndarray]) -> None:
    """<experiment>.png: minimum max-cosine and loss over learning rate × steps, mean ± std over seeds, of curves named
    <experiment>/<setting>/<key>, (T,) or (T, seeds). A colour per program, a line style per swept value."""
    settings = [key.removesuffix("/min") for key in curves if key.endswith("/min")]
    for experiment, own in itertools.groupby(settings, lambda setting: setting.split("/")[0]):
        figure, panels = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained")
        colours, styles = {}, {}
        for setting in own:
            title = setting.split("/", 1)[1]
            name = re.sub(r"(, (sparsity|keep|noise|temperature|lr|warm|uncovered) [\w.-]+)+$", "", title)
            colour, style = colours.setdefault(name, len(colours)), styles.get(name, 0)
            styles[name] = style + 1
            for panel, key in zip(panels, ("min", "loss")):
                x, y = curves[f"{setting}/lr_times_steps"], curves[f"{setting}/{key}"]
                mean, std = y.mean(1), y.std(1, ddof=min(1, y.shape[1] - 1))
                panel.plot(x, mean, ("-", "--", ":", "-.")[style % 4], color=f"C{colour}", label=title)
                panel.fill_between(x, mean - std, mean + std, color=f"C{colour}", alpha=0.15)
        for panel, label in zip(panels, ("minimum max-cosine", "loss")):
            panel.set(xlabel="learning rate × steps", ylabel=label)
            if experiment == "budget":
                panel.set_xscale("log")
                for paper in (200, 400):  # the paper's: SimCLR and noncl, SimSiam
                    panel.axvline(paper, color="grey", linestyle=":")
        panels[0].set_ylim(0, 1)
        figure.legend(*panels[0].get_legend_handles_labels(), fontsize=7, loc="outside right")
        save(figure, folder / f"{experiment}.png")


def grid(path: Path, rows, columns, tables: dict[str, dict[tuple, list[float]]]) -> None:
    """A heat map of ρ and λ for each of tables {title: {(row, column): a value per seed}}: means, with three seeds or
    more ± their standard deviation."""
    figure, panels = plt.subplots(1, len(tables), figsize=(14, 3.6), layout="constrained", sharey=True)
    for panel, (title, cells) in zip(panels, tables.items()):
        panel.imshow([[np.mean(cells[row, column]) for column in columns] for row in rows], aspect="auto", alpha=0.6)
        for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
            values = cells[row, column]
            spread = f"\n± {np.std(values, ddof=1):.2g}" if len(values) > 2 else ""
            panel.text(j, i, f"{np.mean(values):.3g}{spread}", ha="center", va="center", fontsize=8)
        panel.set(title=title, xlabel="λ", xticks=range(len(columns)), xticklabels=columns)
    panels[0].set(ylabel="ρ", yticks=range(len(rows)), yticklabels=rows)
    save(figure, path)


def background_rates(runs, of_background, folder) -> None:
    """background-rates.png: dimensions that stand for a background, activation rate over its frequency; above, how many
    a run has. runs: a panel's title → dimensions.csv of its seeds."""
    figure, panels = plt.subplots(1, len(runs), figsize=(12, 3.2), layout="constrained", sharex=True, sharey=True)
    for panel, (title, seeds) in zip(panels, runs.items()):
        for b, frequency in enumerate(shapes.BACKGROUNDS.values()):
            rates = np.concatenate([of_background(columns, b) for columns in seeds])
            panel.scatter(frequency + np.linspace(-0.008, 0.008, len(rates)), rates, 6, color="C0", alpha=0.4)
            panel.annotate(f"{len(rates) / len(seeds):.0f}", (frequency, 0.43), ha="center", fontsize=8)
        panel.plot([0, 0.42], [0, 0.42], color="grey", linewidth=0.8)
        panel.set(title=f"{title}, {len(seeds)} seeds", xlabel="frequency of its background", ylim=(0, 0.46))
    panels[0].set_ylabel("activation rate of the dimension")
    figure.savefig(folder / "background-rates.png", dpi=90)
