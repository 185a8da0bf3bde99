"""One picture of the differences that the findings rest on, beside the papers'.

    python studies/claims/forest.py               draws assets/forest.png

A dot is the mean of our differences by seed, its line the 95 % t-interval. A diamond is the paper's
difference, of larger networks, SparseHead's of CIFAR-10; it has no interval.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import records  # noqa: E402
from records import ROOT, by_seed, half_interval  # noqa: E402

plt.style.use(ROOT / "studies" / "pictures.mplstyle")

CLAIMS = "dictionaries/claims"
LONG = "cifar100/cifar100-long"
BAYESNCL_ON_CIFAR_10 = f"{CLAIMS}-cifar10-bayesncl-lars − {CLAIMS}-cifar10-ncl-lars"
BAYESNCL_ON_MNIST_1D = "mnist1d/mnist1d-bayesncl − mnist1d/mnist1d-ncl"
SPARSEHEAD = "sparsehead/power-sparsehead-simclr"

# methods: rows of a measure and its data, a number of the records, runs, the paper's difference.
# Several runs are repetitions: a seed counts once, with their mean.
ROWS = {
    "NCL − SimCLR": [
        ("Cons., CIFAR-100, 200 epochs", "cons - 1", f"{LONG}-ncl", 8.91),  # SimCLR's is 1
        ("LP@1, built-in data", "lp1", f"{CLAIMS}-shapes-ncl − {CLAIMS}-shapes-simclr", None),
        ("LP@1, CIFAR-10", "lp1", f"{CLAIMS}-cifar10-ncl − {CLAIMS}-cifar10-simclr", -0.08),
        ("LP@1, CIFAR-100", "lp1", records.NCL_ON_CIFAR_100, 0.95),
        ("LP@1, MNIST-1D, 200 epochs", "lp1", "mnist1d/mnist1d-ncl − mnist1d/mnist1d-simclr", None),
        ("LP@1 of z, CIFAR-100", "lp1_embedding", records.NCL_ON_CIFAR_100, None),
    ],
    "NCL − random directions": [
        ("adj., CIFAR-10", "directions_of_h_lead", "dictionaries/fair-cifar10-ncl", None),
    ],
    "BayesNCL − NCL": [
        ("Cons., CIFAR-10", "cons", BAYESNCL_ON_CIFAR_10, 2.68),
        ("Cons., CIFAR-100", "cons", records.BAYESNCL_ON_CIFAR_100, 12.11),
        ("Cons., CIFAR-100, 200 epochs", "cons", f"{LONG}-bayesncl − {LONG}-ncl", 12.11),
        ("Cons., MNIST-1D, 200 epochs", "cons", BAYESNCL_ON_MNIST_1D, None),
        ("adj., CIFAR-100, 200 epochs", "adjusted", f"{LONG}-bayesncl − {LONG}-ncl", None),
    ],
    "SparseHead − SimCLR": [
        ("LP@1, built-in data", "lp1", f"{SPARSEHEAD} − {SPARSEHEAD}-plain", 0.95),
    ],
}


def draw(path: Path) -> None:
    figure, panel = plt.subplots(figsize=(11, 4.9))
    labels = []
    for methods, rows in ROWS.items():
        if labels:
            panel.axhline(len(labels) - 0.5, color="grey", linewidth=0.3)
        for what, formula, runs, of_paper in rows:
            y = len(labels)
            repetitions = [runs] if isinstance(runs, str) else runs
            found = by_seed(repetitions, formula)
            half = half_interval(found)
            panel.errorbar(found.mean(), y, xerr=half, fmt="o", color="C0", capsize=3)
            if of_paper is not None:
                panel.plot(of_paper, y, "D", color="C1", markerfacecolor="none", markersize=8)
            labels.append(f"{methods}: {what}, n = {len(found)}")
    panel.axvline(0, color="grey", linewidth=0.8)
    panel.set_yticks(range(len(labels)), labels)
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.set_xlabel("difference in points: dot and 95 % interval ours, diamond the paper's")
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "assets" / "forest.png")
