"""Draw assets/dictionaries.png: dimensions beside chance, random directions and random images.

    python studies/dictionaries/curves.py runs/<run> [runs/<run> ...]

A panel for each label of each finished run, all of one method: each live dimension over the number
n of images that it is active on, and three curves of Cons. over n. Chance is that of n random
images. Random directions: of the n images farthest along a random direction of the embedding z.
Random images: of the n nearest neighbours of a random image in z. Of both the mean and the middle
90 %.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import interpret  # noqa: E402
import run_folder  # noqa: E402

plt.style.use(ROOT / "studies" / "pictures.mplstyle")

TITLES = {  # data set and label's prefix
    ("shapes", ""): "built-in data, objects",
    ("shapes", "background_"): "built-in data, backgrounds",
    ("cifar10", ""): "CIFAR-10",
    ("cifar100", ""): "CIFAR-100",
}
FAMILIES = {  # of interpret.py: what it is called, colour
    "directions_of_z": ("random directions, middle 90 %", "C1"),
    "images_in_z": ("neighbours of random images, middle 90 %", "C0"),
}


def draw_panel(axis, findings: interpret.Findings, prefix: str, title: str) -> None:
    """Curves and dimensions of one label of one run."""
    label = findings.labels[prefix]
    n = np.arange(1, len(label.y) + 1)
    for family, (name, colour) in FAMILIES.items():
        curves = 100 * label.families[family]  # (orders, N)
        low, high = np.quantile(curves, [0.05, 0.95], axis=0)
        axis.fill_between(n, low, high, color=colour, alpha=0.2, lw=0)
        axis.plot(n, curves.mean(0), colour, label=name)
    axis.plot(n, 100 * label.chance, ":", color="grey", label="chance")
    live = findings.columns["n"] > 0
    cons = 100 * findings.columns[prefix + "cons"]
    axis.plot(findings.columns["n"][live], cons[live], ".", color="C3", ms=4, label="dimensions")
    axis.set(xscale="log", xlabel="images n", ylabel="Cons., %", title=title)


def draw(path: Path, folders: list[Path]) -> None:
    """A panel for each label of each run."""
    panels = []
    for folder in folders:
        dataset = run_folder.read_run(folder).dataset
        findings = interpret.interpret(interpret.read_embedding(folder))
        for prefix in findings.labels:
            title = TITLES.get((dataset, prefix), f"{dataset}: {interpret.LABELS[prefix]}")
            panels.append((findings, prefix, title))
    figure = plt.figure(figsize=(11, 3.2))
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, panel in zip(axes[0], panels):
        draw_panel(axis, *panel)
    drawn = axes[0, 0].get_legend_handles_labels()
    figure.legend(*drawn, loc="outside lower center", ncols=4)
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "assets" / "dictionaries.png", [Path(run) for run in sys.argv[1:]])
