"""Draw figures of finished runs and save them in the runs' folders.

    python tools/draw.py runs/<run> [...]      needs matplotlib

dimensions.png       a run of an image method: correlation of random dimensions ([NCL] Fig. 3c),
                     activations (Fig. 1c, d), active dimensions per image
<experiment>.png     a run of sparse_coding.py: minimum max-cosine and loss over training

[NCL]: arXiv 2403.12459.
"""

import argparse
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
from common import need  # noqa: E402

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError as error:
    sys.exit(f"draw.py: error: {error}: pip install matplotlib")


MARK = b"Software\0tools/draw.py"  # in our files, and no others


def save(figure, path: Path) -> None:
    """Write a figure to a file and close it."""
    software = dict(Software="tools/draw.py")
    with common.replacing(path) as file:
        figure.savefig(file, dpi=110, format="png", metadata=software)
    plt.close(figure)


# ---------------------------------------------------------------------------------- an image method
def dimensions(path: Path, e: Tensor) -> None:
    """Three panels about embeddings e (N, K).

    left     |C| of 20 random live dimensions ([NCL] Fig. 3c)
    middle   activations of 40 evenly spaced images, dimensions sorted by mean (Fig. 1c, d)
    right    how many dimensions an image activates
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
    title = f"|activation|, {active.float().mean():.1%} of the entries are active"
    middle.set(title=title, ylabel="image", xlabel="dimension, most active first")
    figure.colorbar(picture, ax=middle)

    K = e.shape[1]
    width = math.ceil((K + 1) / 50)  # whole, so that each bar holds as many counts
    edges = np.arange(0, K + 1 + width, width) - 0.5
    right.hist(active.sum(1).numpy(), bins=edges)
    right.set(title="active dimensions per image", xlabel=f"of {K}", ylabel="images")
    save(figure, path)


# ------------------------------------------------------------------------------- sparse_coding.py's
def landscapes_of_run(folder: Path) -> list[str]:
    """landscapes() for the curves.npz of a run of sparse_coding.py; BadInput if it is damaged."""
    path = folder / "curves.npz"
    try:
        curves = dict(np.load(path, allow_pickle=False))
    except Exception as error:  # what a damaged archive may raise is not listed anywhere
        reason = f"{type(error).__name__}: {error}"
        raise common.BadInput(f"{path} cannot be read ({reason})") from error
    try:
        return landscapes(folder, curves)
    except interpret.BadInput:
        raise
    except (LookupError, TypeError, ValueError) as error:  # a curve is missing, or of another kind
        reason = f"{type(error).__name__}: {error}"
        raise common.BadInput(f"{path} is damaged ({reason})") from error


def landscapes(folder: Path, curves: dict[str, np.ndarray]) -> list[str]:
    """Draw <experiment>.png for each experiment in curves; returns the names of these files.

    curves: <experiment>/<setting>/<key>: lr_times_steps (T,), min and loss (T, seeds)
    """
    experiments = defaultdict(list)  # name: its settings
    for key in curves:
        if key.endswith("/min"):
            experiment, setting = key.removesuffix("/min").split("/", 1)
            experiments[experiment].append(setting)
    names = [f"{experiment}.png" for experiment in experiments]
    interpret.make_folder(folder, dict.fromkeys(names, MARK))
    for name, (experiment, settings) in zip(names, experiments.items()):
        draw_experiment(folder / name, experiment, settings, curves)
    return names


SWEPT = re.compile(r"(, (sparsity|keep|noise|temperature|lr|warm|uncovered) [\w.-]+)+$")
LINE_STYLES = "-", "--", ":", "-.", (0, (6, 1)), (0, (1, 4)), (0, (8, 4)), (0, (6, 1, 1, 1, 1, 1))


def draw_experiment(path: Path, experiment: str, settings: list[str], curves: dict) -> None:
    """Minimum max-cosine and loss against learning rate × steps, mean ± std over seeds.

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
            of_seeds = curves[f"{experiment}/{setting}/{key}"]  # (T, seeds)
            mean = of_seeds.mean(1)
            std = of_seeds.std(1, ddof=min(1, of_seeds.shape[1] - 1))  # 0 of one seed
            panel.plot(x, mean, style, color=colour, label=setting)
            panel.fill_between(x, mean - std, mean + std, color=colour, alpha=0.15)
    for panel, label in zip(panels, ("minimum max-cosine", "loss")):
        panel.set(xlabel="learning rate × steps", ylabel=label)
        if experiment.startswith("budget"):
            panel.set_xscale("log")
            for paper in (200, 400):  # the paper's: SimCLR and noncl, SimSiam
                panel.axvline(paper, color="grey", linestyle=":")
    panels[0].set_ylim(0, 1)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, fontsize=7, loc="outside right")
    save(figure, path)


# ------------------------------------------------------------------------------------- the program
def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="draw.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    args = flags.parse_args(argv)
    for folder in args.runs:
        if (folder / "curves.npz").exists():
            names = landscapes_of_run(folder)
            need(names, f"{folder / 'curves.npz'} holds no experiment's curves")
        else:
            names = ["dimensions.png"]
            need(folder.is_dir(), f"{folder} is not a folder of a run")
            interpret.make_folder(folder, {names[0]: MARK})
            z = interpret.read_embedding(folder).z
            need(isinstance(z, np.ndarray), f"{folder}: its z is sparse; look.py shows such")
            dimensions(folder / names[0], torch.from_numpy(z).float())
        print(f"wrote {', '.join(names)} into {folder}")


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
