"""Pictures of what finished runs left, into their folders.

    python tools/draw.py runs/<run> [...]      needs matplotlib

dimensions.png       correlation of random dimensions ([NCL] Fig. 3c), activations (Fig. 1c, d),
                     active ones per image
selection.png        after tools/selection.py: P@10 and probe with the m most active dimensions
collapse.png         simsiam.py: the collapse indicator over the epochs ([SimSiam] Fig. 2)
spectra.png          sparsehead.py, several runs of any file: eigenvalues of the covariances
                     (--head none, linear and mlp together: [SparseHead] Fig. 1)
<experiment>.png     a folder of sparse_coding.py: minimum max-cosine and loss over training

What compares runs goes into the folder of the first.
"""

import argparse
import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
import interpret  # noqa: E402
import look  # noqa: E402
from common import need  # noqa: E402
from run_folder import drawable, read_json  # noqa: E402
from sparsehead import effective_rank, min_max_ratio, spectrum  # noqa: E402

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError as error:
    sys.exit(f"draw.py: error: {error}: pip install matplotlib")


# What seeds of one recipe may differ in, and what look.read_run adds to the settings.
OF_A_CALL = {"device", "out", "resume", "data_root", "compile"}
OF_ONE_RUN = OF_A_CALL | {"seed", "command", "commit", "date", "hardware", "torch"}
OF_LOOK = {"lines", "words"}


def save(figure, path: Path) -> None:
    """Write a figure and forget it."""
    figure.savefig(path, dpi=110)
    plt.close(figure)


def mean_and_std(values) -> tuple[np.ndarray, np.ndarray]:
    """Over the seeds, which are the first axis; the deviation of one seed is 0."""
    ddof = min(1, len(values) - 1)
    return np.mean(values, 0), np.std(values, 0, ddof=ddof)


# ------------------------------------------------------------------------------ pictures of one run
def dimensions(path: Path, e: Tensor) -> None:
    """Three panels on embeddings e (N, K).

    left     |C| of 20 random live dimensions ([NCL] Fig. 3c)
    middle   activations of 40 evenly spread images, the dimensions by their mean (Fig. 1c, d)
    right    active dimensions of an image
    """
    e = F.normalize(e)
    active = e.abs() > common.ACTIVE  # (N, K)
    figure, panels = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
    left, middle, right = panels

    live = active.any(0).nonzero()[:, 0]
    at_random = torch.randperm(len(live), generator=torch.Generator().manual_seed(0))
    shown = live[at_random[:20]]
    f = F.normalize(e[:, shown], dim=0)
    cosines = (f.T @ f).abs()
    picture = left.imshow(cosines.numpy(), vmin=0, vmax=1, cmap="magma")
    title = f"|correlation| of {len(shown)} random live dimensions"
    left.set(title=title, xticks=[], yticks=[])
    figure.colorbar(picture, ax=left)

    rows = torch.linspace(0, len(e) - 1, min(40, len(e))).long()
    order = e.abs().mean(0).argsort(descending=True)
    size = e[rows][:, order].abs()
    picture = middle.imshow(size.numpy(), aspect="auto", vmin=0, cmap="magma", interpolation="none")
    title = f"|activation|, {active.float().mean():.1%} of the entries active"
    middle.set(title=title, ylabel="image", xlabel="dimension, the most active first")
    figure.colorbar(picture, ax=middle)

    K = e.shape[1]
    width = math.ceil((K + 1) / 50)  # whole, so that each bar holds as many counts
    edges = np.arange(0, K + 1 + width, width) - 0.5
    right.hist(active.sum(1).numpy(), bins=edges)
    right.set(title="active dimensions per image", xlabel=f"of {K}", ylabel="images")
    save(figure, path)


def collapse(path: Path, lines: list[dict]) -> None:
    """The collapse indicator "spread" over the epochs ([SimSiam] Fig. 2).

    lines: metrics.jsonl
    """
    epochs = [line for line in lines if "spread" in line]
    x = [line["epoch"] for line in epochs]
    spread = [line["spread"] for line in epochs]
    figure, panel = plt.subplots(figsize=(5, 3), layout="constrained")
    panel.plot(x, spread, marker=".")
    panel.axhline(1, color="grey", linestyle=":")
    panel.set(xlabel="epoch", ylabel="std of z/‖z‖, times √K", ylim=(0, 1.1))
    panel.set(title="1: healthy, 0: collapsed")
    save(figure, path)


# ---------------------------------------------------------------------------- pictures of some runs
def spectra(path: Path, runs: dict[str, dict[str, Tensor]]) -> None:
    """Eigenvalues on a log scale, a panel for each kind of vectors, a line for each run
    ([SparseHead] Fig. 1, 3), and the min-max ratio of the first d dimensions of z (Lemma 5.7).

    Embeddings are kept in 16 bits: what is below 1e-8 of the largest eigenvalue is rounding.

    runs: title → {"h": (N, d), "z": (N, K)}
    """
    figure, panels = plt.subplots(1, 3, figsize=(13.5, 3.4), layout="constrained")
    of_h, of_z, ratios = panels
    draw_eigenvalues(of_h, "representation", {title: run["h"] for title, run in runs.items()})
    draw_eigenvalues(of_z, "embedding", {title: run["z"] for title, run in runs.items()})

    embeddings = [run["z"][:1000].float() for run in runs.values()]
    for title, z in zip(runs, embeddings):
        draw_ratios(ratios, z, "-", title)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(embeddings[0].shape, generator=generator)
    draw_ratios(ratios, normal, "k:", "independent normal dimensions")
    ratios.set(xscale="log", yscale="log", xlabel="dimensions of the embedding, d")
    ratios.set(title="(δmax − δmin) / δmin")
    ratios.legend(fontsize=7)
    save(figure, path)


def draw_eigenvalues(panel, name: str, vectors: dict[str, Tensor]) -> None:
    """vectors: title of a run → (N, d)."""
    for title, x in vectors.items():
        values = spectrum(x)
        rank = effective_rank(values)
        told = "constant, rank 0" if rank is None else f"effective rank {rank:.1f}"
        label = f"{title}, {told} of {len(values)}"
        values = values.clamp(min=1e-12 * values[0])
        panel.plot(range(1, len(values) + 1), values, label=label)
    panel.set(yscale="log", xlabel="eigenvalue", title=name)
    panel.legend(fontsize=7)


def draw_ratios(panel, z: Tensor, style: str, label: str) -> None:
    """The min-max ratio of the first 4, 8, 16, … dimensions of z (N, K)."""
    sizes = [2**k for k in range(2, z.shape[1].bit_length())]
    values = [min_max_ratio(z[:, :d]) for d in sizes]
    panel.plot(sizes, values, style, label=label)


def selection(path: Path, runs: dict[str, list[dict]], K: int) -> None:
    """P@10 and probe with the m most active of K dimensions and with m random ones, over m
    ([NCL], feature selection): mean ± std over seeds.

    runs: title → final records with selection.json, one a seed
    """
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left, right = axes
    draw_selection(left, runs, K, "p_at_10", "p_at_10")
    draw_selection(right, runs, K, "lp1", "lp1_embedding")
    left.set_ylabel("P@10, %")
    right.set_ylabel("linear probe on z, %")
    right.legend(fontsize=7)
    save(figure, path)


def draw_selection(panel, runs: dict[str, list[dict]], K: int, key: str, whole: str) -> None:
    """key: of the numbers with some dimensions; whole: of the one with all K."""
    for colour, (title, records) in enumerate(runs.items()):
        start = f"{key}_top_"
        sizes = [int(name.removeprefix(start)) for name in records[0] if name.startswith(start)]
        sizes = sorted(sizes)
        x = [*sizes, K]
        for kind, style in ("top", "-"), ("random", ":"):
            values = []
            for record in records:
                some = [record[f"{key}_{kind}_{m}"] for m in sizes]
                values.append(some + [record[whole]])
            mean, std = mean_and_std(values)
            line = f"{title}, {kind}"
            panel.plot(x, mean, style, color=f"C{colour}", marker=".", label=line)
            panel.fill_between(x, mean - std, mean + std, color=f"C{colour}", alpha=0.12)
    panel.set(xscale="log", xlabel="dimensions kept")
    panel.set_xticks(x, map(str, x), minor=False)
    panel.minorticks_off()


def titles(runs: list[tuple]) -> list[str]:
    """A title for each run: the settings in which the runs differ, or their folders' names where
    these do not tell them.

    runs: (folder, config, arrays)
    """
    told = [[] for _ in runs]
    for key in ("method", "base", "head", "sparse_weight", "seed"):
        texts = [f"{key} {config.get(key)}" for _, config, _ in runs]
        if len(set(texts)) > 1:
            for settings, text in zip(told, texts):
                settings.append(text)
    named = [", ".join(settings) for settings in told]
    if len(runs) > 1 and len(set(named)) == len(runs):
        return named
    names = [drawable(folder.resolve().name) for folder, _, _ in runs]
    if len(set(names)) < len(names):
        names = [drawable(folder) for folder, _, _ in runs]
    return names


def recipe_of(config: dict) -> str:
    """A run's settings as a string, without those in which seeds of one recipe differ."""
    kept = {key: value for key, value in config.items() if key not in OF_ONE_RUN | OF_LOOK}
    if "run" in kept:  # of sae.py: its seeds read the features of other seeds
        kept["run"] = re.sub(r"-seed\d+.*", "", kept["run"])
    return json.dumps(kept, sort_keys=True)


def as_seeds(runs: list[tuple[Path, dict, dict]]) -> dict[str, list[dict]]:
    """Title → final records of the runs of one recipe.

    The title is the method; of every recipe of it but the first, with its first folder too.

    runs: (folder, config, final record)
    """
    title_of = {}  # recipe: title
    records = {}
    for folder, config, record in runs:
        recipe = recipe_of(config)
        if recipe not in title_of:
            title = config["method"]
            if title in records:
                title += f", {drawable(folder)}"
            title_of[recipe] = title
            records[title] = []
        records[title_of[recipe]].append(record)
    return records


def pictures(runs: list[tuple[Path, dict, dict[str, Tensor]]]) -> None:
    """All pictures of runs of image methods.

    selection.png has the runs with the first one's data set and K, those of one recipe as seeds.

    runs: (folder, config with metrics.jsonl as "lines", arrays)
    """
    if not runs:
        return
    first_folder, first_config, first_arrays = runs[0]
    with_selection = []  # (folder, config, final record)
    for folder, config, arrays in runs:
        dimensions(folder / "dimensions.png", arrays["z"])
        if config["method"] == "simsiam":
            collapse(folder / "collapse.png", config["lines"])
        chosen = folder / "selection.json"
        selected = read_json(chosen) if chosen.exists() else {}
        last = config["lines"][-1] | selected
        same_data = config["dataset"] == first_config["dataset"]
        same_shape = arrays["z"].shape == first_arrays["z"].shape
        if selected and same_data and same_shape and last.get("p_at_10") is not None:
            with_selection.append((folder, config, last))
    if with_selection:
        K = first_arrays["z"].shape[1]
        selection(first_folder / "selection.png", as_seeds(with_selection), K)
    if len(runs) > 1 or first_config["method"] == "sparsehead":
        arrays = [arrays for _, _, arrays in runs]
        spectra(first_folder / "spectra.png", dict(zip(titles(runs), arrays)))


# ------------------------------------------------------------------------------- sparse_coding.py's
def landscapes_of_run(folder: Path) -> list[str]:
    """landscapes() of the curves.npz of a run of sparse_coding.py; BadInput where it is damaged."""
    path = folder / "curves.npz"
    try:
        curves = dict(np.load(path, allow_pickle=False))
    except Exception as error:  # what a damaged archive may raise is not listed anywhere
        reason = f"{type(error).__name__}: {error}"
        raise common.BadInput(f"{path} cannot be read ({reason})") from error
    try:
        return landscapes(folder, curves)
    except (LookupError, ValueError) as error:  # a curve is missing, or of another length
        reason = f"{type(error).__name__}: {error}"
        raise common.BadInput(f"{path} is damaged ({reason})") from error


def landscapes(folder: Path, curves: dict[str, np.ndarray]) -> list[str]:
    """<experiment>.png for each experiment in curves; returns the names of these files.

    curves: <experiment>/<setting>/<key>: lr_times_steps (T,), min and loss (T, seeds)
    """
    experiments = defaultdict(list)  # name: its settings
    for key in curves:
        if key.endswith("/min"):
            experiment, setting = key.removesuffix("/min").split("/", 1)
            experiments[experiment].append(setting)
    names = []
    for experiment, settings in experiments.items():
        name = f"{experiment}.png"
        draw_experiment(folder / name, experiment, settings, curves)
        names.append(name)
    return names


SWEPT = re.compile(r"(, (sparsity|keep|noise|temperature|lr|warm|uncovered) [\w.-]+)+$")
LINE_STYLES = "-", "--", ":", "-.", (0, (6, 1)), (0, (1, 4)), (0, (8, 4)), (0, (6, 1, 1, 1, 1, 1))


def draw_experiment(path: Path, experiment: str, settings: list[str], curves: dict) -> None:
    """Minimum max-cosine and loss over learning rate × steps, mean ± std over seeds.

    A colour for each program, a line style for each swept value.
    """
    figure, panels = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained")
    programs = {}  # program: how many of its settings are drawn
    for setting in settings:
        program = SWEPT.sub("", setting)
        drawn = programs.get(program, 0)
        programs[program] = drawn + 1
        colour = f"C{list(programs).index(program)}"
        style = LINE_STYLES[drawn % len(LINE_STYLES)]
        x = curves[f"{experiment}/{setting}/lr_times_steps"]
        for panel, key in zip(panels, ("min", "loss")):
            mean, std = mean_and_std(curves[f"{experiment}/{setting}/{key}"].T)
            panel.plot(x, mean, style, color=colour, label=setting)
            panel.fill_between(x, mean - std, mean + std, color=colour, alpha=0.15)
    for panel, label in zip(panels, ("minimum max-cosine", "loss")):
        panel.set(xlabel="learning rate × steps", ylabel=label)
        if experiment == "budget":
            panel.set_xscale("log")
            for paper in (200, 400):  # the paper's: SimCLR and noncl, SimSiam
                panel.axvline(paper, color="grey", linestyle=":")
    panels[0].set_ylim(0, 1)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, fontsize=7, loc="outside right")
    save(figure, path)


# ------------------------------------------------------------------------------------- the program
def read(folder: Path) -> tuple[Path, dict, dict[str, Tensor]]:
    """A run of an image method, for pictures()."""
    config = look.read_run(folder)
    e = interpret.read_embedding(folder)
    need(e.features is not None, f"{folder / 'embeddings.npz'} has no features h")
    vectors = {"h": e.features, "z": e.z}
    return folder, config, {name: torch.from_numpy(x).float() for name, x in vectors.items()}


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="draw.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    args = flags.parse_args(argv)
    runs = []
    for folder in args.runs:
        if (folder / "curves.npz").exists():
            drawn = landscapes_of_run(folder)
            need(drawn, f"{folder / 'curves.npz'} has the curves of no experiment")
            print(f"wrote {', '.join(drawn)} into {folder}")
        else:
            runs.append(read(folder))
    pictures(runs)


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
