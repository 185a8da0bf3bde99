"""One picture of the claims "A is better than B": our differences beside the papers'.

    python studies/claims/forest.py               draws assets/forest.png; needs matplotlib

A dot is the mean of our differences by seed, its line the 95 % t-interval. A diamond is the paper's
difference, of large networks and long trainings; it has no interval.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report  # noqa: E402
from records import ROOT, STUDIES, common  # noqa: E402

# A row's label → two runs, A and B, each <question>#<run>; or one run, whose record has the numbers
# of both. On CIFAR the recipe is the papers', where a label does not say "default".
# "again": the same commands and seeds, a second time.
NCL_AND_SIMCLR = {
    "built-in": ("ncl#shapes-ncl", "ncl#shapes-simclr"),
    "built-in, again": ("dictionaries#claims-shapes-ncl", "dictionaries#claims-shapes-simclr"),
    "CIFAR-10, default": ("ncl#cifar10-cpu-ncl", "ncl#cifar10-cpu-simclr"),
    "CIFAR-10, default, again": (
        "dictionaries#claims-cifar10-ncl",
        "dictionaries#claims-cifar10-simclr",
    ),
    "CIFAR-100 of 10,000": (
        "dictionaries#claims-cifar100-10k-ncl",
        "dictionaries#claims-cifar100-10k-simclr",
    ),
    "CIFAR-100": (
        "dictionaries#claims-cifar100-again-ncl",
        "dictionaries#claims-cifar100-simclr",
    ),
    "CIFAR-100, default": ("cifar100#cifar100-cpu-ncl", "cifar100#cifar100-cpu-simclr"),
}
BAYESNCL_AND_NCL = {
    "built-in": ("bayesncl#shapes-bayesncl", "ncl#shapes-ncl"),
    "built-in, again": ("dictionaries#claims-shapes-bayesncl", "dictionaries#claims-shapes-ncl"),
    "CIFAR-10": (
        "dictionaries#claims-cifar10-bayesncl-lars",
        "dictionaries#claims-cifar10-ncl-lars",
    ),
    "CIFAR-100 of 10,000": (
        "dictionaries#claims-cifar100-10k-bayesncl",
        "dictionaries#claims-cifar100-10k-ncl",
    ),
    "CIFAR-100": ("cifar100#cifar100-cpu-bayesncl-lars", "cifar100#cifar100-cpu-ncl-lars"),
    "CIFAR-100, again": (
        "dictionaries#claims-cifar100-bayesncl",
        "dictionaries#claims-cifar100-ncl",
    ),
    "CIFAR-100, third time": (
        "dictionaries#claims-cifar100-again-bayesncl",
        "dictionaries#claims-cifar100-again-ncl",
    ),
    "CIFAR-100, 200 epochs": (
        "cifar100#cifar100-long-bayesncl",
        "cifar100#cifar100-long-ncl",
    ),
}
NCE_AND_CE = {
    "built-in": ("labels-captions#shapes-nce-mlp", "labels-captions#shapes-ce-mlp"),
    "CIFAR-10, default": (
        "labels-captions#cifar10-cpu-nce-mlp",
        "labels-captions#cifar10-cpu-ce-mlp",
    ),
}
MMNCL_AND_CLIP = {
    "τ = 0.1": ("labels-captions#shapes-mmncl", "labels-captions#shapes-clip"),
    "τ = 0.05": ("labels-captions#shapes-mmncl-tau-0.05", "labels-captions#shapes-clip-tau-0.05"),
}
SPARSEHEAD_AND_BASE = {}
for where, run in {
    "SimCLR, built-in": "power-sparsehead-simclr",
    "BYOL, built-in": "power-sparsehead-byol",
    "SwAV, built-in": "shapes-bases-sparsehead-swav",
    "SimCLR, CIFAR-10, default": "cifar10-cpu-sparsehead-simclr",
    "SwAV, CIFAR-10, default": "cifar10-cpu-sparsehead-swav",
}.items():
    SPARSEHEAD_AND_BASE[where] = (f"sparsehead#{run}", f"sparsehead#{run}-plain")

PANELS = [  # a title, a number of the records (a-b: a less b), the runs, the papers' differences
    (
        "NCL − SimCLR: probe of the features",
        "lp1",
        NCL_AND_SIMCLR,
        {"CIFAR-10, default": -0.08, "CIFAR-100": 0.95, "CIFAR-100, default": 0.95},
    ),
    ("NCL − SimCLR: probe of the embedding", "lp1_embedding", NCL_AND_SIMCLR, {}),
    (
        "BayesNCL − NCL: Cons.",
        "cons",
        BAYESNCL_AND_NCL,
        {"CIFAR-10": 2.68, "CIFAR-100": 12.11, "CIFAR-100, 200 epochs": 12.11},
    ),
    ("BayesNCL − NCL: Cons. above chance (adj.)", "adjusted", BAYESNCL_AND_NCL, {}),
    (
        "BayesNCL − NCL: probe of the features",
        "lp1",
        BAYESNCL_AND_NCL,
        {"CIFAR-10": 0.22, "CIFAR-100": 0.02, "CIFAR-100, 200 epochs": 0.02},
    ),
    (
        "SparseHead − its base: probe of the features",
        "lp1",
        SPARSEHEAD_AND_BASE,
        {"SimCLR, CIFAR-10, default": 0.95},
    ),
    ("NCE − cross-entropy, with a projector: Cons.", "cons", NCE_AND_CE, {}),
    ("MMNCL − CLIP: image → text, R@1", "text_r1", MMNCL_AND_CLIP, {}),
]


def numbers_of(name: str) -> dict[int, dict[str, float]]:
    """Seed → numbers of a run, <question>#<run>."""
    question, run = name.split("#")
    return report.seeds_of(STUDIES / question / "records.jsonl", run)


def differences(key: str, of_a: str, of_b: str | None = None) -> list[float]:
    """A number of A less that of B, by seed; without a B the number, a difference itself."""
    a = numbers_of(of_a)
    if of_b is None:
        return [report.number(numbers, key) for numbers in a.values()]
    b = numbers_of(of_b)
    shared = [seed for seed in a if seed in b]
    return [report.number(a[seed], key) - report.number(b[seed], key) for seed in shared]


def draw_panel(panel, title: str, key: str, runs: dict, papers: dict[str, float]) -> None:
    """A row each: our mean and interval, and the paper's difference where it has one."""
    labels = []
    for y, (where, names) in enumerate(runs.items()):
        found = differences(key, *names)
        mean = np.mean(found)
        half = report.interval(found)
        panel.errorbar(mean, y, xerr=half, fmt="o", color="C0", capsize=3)
        if where in papers:
            panel.plot(papers[where], y, "D", color="C1", markerfacecolor="none")
        labels.append(f"{where}, n = {len(found)}")
    panel.axvline(0, color="grey", linewidth=0.8)
    panel.set_yticks(range(len(labels)), labels)
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.set_title(title, fontsize=9, loc="left")
    panel.tick_params(labelsize=8)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="forest.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.parse_args(argv)
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(
            f"a picture needs matplotlib: pip install matplotlib ({error})"
        ) from error
    rows = (len(PANELS) + 1) // 2
    figure, panels = plt.subplots(rows, 2, figsize=(11, 2.4 * rows), layout="constrained")
    for panel, row in zip(panels.flat, PANELS):
        draw_panel(panel, *row)
    legend = "difference in points: dot and 95 % interval ours, diamond the paper's"
    recipe = "on CIFAR with the papers' recipe, unless a row says default"
    figure.supxlabel(f"{legend}; {recipe}", fontsize=9)
    figure.savefig(ROOT / "assets" / "forest.png", dpi=110)


if __name__ == "__main__":
    common.launch(main)
