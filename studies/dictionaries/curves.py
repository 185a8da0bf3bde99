"""Draw assets/dictionaries.png: dimensions of finished runs beside chance and random directions.

    python studies/dictionaries/curves.py runs/<run> [runs/<run> ...]

A panel for each run and label: each live dimension over the number n of images that it is active
on; the Cons. of n random images; that of the n images where a random direction of the run's
features is largest, its mean and the middle 90 % of directions.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import interpret  # noqa: E402


def draw_panel(axis, findings: interpret.Findings, prefix: str, title: str) -> None:
    """Curves and dimensions of one label of one run."""
    label = findings.labels[prefix]
    n = np.arange(1, len(label.y) + 1)
    directions = 100 * label.direction_curves  # (directions, N)
    low, high = np.quantile(directions, [0.05, 0.95], axis=0)
    axis.fill_between(n, low, high, color="tab:red", alpha=0.2, lw=0)
    axis.plot(n, directions.mean(0), "tab:red", label="random directions, middle 90 %")
    axis.plot(n, 100 * label.chance, "tab:olive", label="chance")
    live = findings.columns["n"] > 0
    cons = 100 * findings.columns[prefix + "cons"]
    axis.plot(findings.columns["n"][live], cons[live], ".k", ms=4, label="dimensions")
    axis.set(xscale="log", xlabel="images n", ylabel="Cons., %", title=title)


def draw(path: Path, folders: list[Path]) -> None:
    """A panel for each label of each run."""
    panels = []
    for folder in folders:
        findings = interpret.interpret(interpret.read_embedding(folder))
        for prefix in findings.labels:
            panels.append((findings, prefix, f"{folder.name}: {interpret.LABELS[prefix]}"))
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.4), squeeze=False)
    for axis, panel in zip(axes[0], panels):
        draw_panel(axis, *panel)
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "assets" / "dictionaries.png", [Path(run) for run in sys.argv[1:]])
