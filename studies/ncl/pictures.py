"""The pictures of this page, of what is on record: a few dimensions kept, and shifted images.

    python studies/ncl/pictures.py      feature-selection.png and robustness.png; needs matplotlib

Dots are means over seeds, bars ± their standard deviation.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report  # noqa: E402
from records import ROOT, STUDIES, common  # noqa: E402

METHODS = {  # a method: its runs, <question>#<run>; {} is the data set
    "SimCLR": "ncl#{}-simclr",
    "NCL": "ncl#{}-ncl",
    "BayesNCL": "bayesncl#{}-bayesncl",
}
DATA_SETS = {"built-in": "shapes", "CIFAR-10": "cifar10-cpu"}
KEPT = (32, 64, 128)  # of 256 dimensions
CORRUPTIONS = ("noise", "blur", "contrast", "brightness", "pixelation", "jpeg")
SHIFTS = ("clean", "reversed", "unseen", "paired")
VECTORS = {  # how each is drawn, and its name
    "h": ("o-", "backbone h"),
    "z": ("s--", "embedding z"),
}


def seeds_of(method: str, data_set: str) -> list[dict[str, float]]:
    """The numbers of each seed of a method on a data set."""
    question, run = METHODS[method].format(DATA_SETS[data_set]).split("#")
    return list(report.seeds_of(STUDIES / question / "records.jsonl", run).values())


def mean_and_std(values: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Over the seeds, which are the first axis."""
    return np.mean(values, 0), np.std(values, 0, ddof=1)


# --------------------------------------------------------------------------- a few dimensions kept
def kept_curves(seeds: list[dict], key: str, whole: str, kind: str) -> list[list[float]]:
    """Of each seed a number with 32, 64, 128 and with all dimensions.

    key: "lp1" or "p_at_10"; whole: the name of the number with all; kind: "top" or "random"
    """
    curves = []
    for numbers in seeds:
        curve = [numbers[f"{key}_{kind}_{m}"] for m in KEPT]
        curves.append(curve + [numbers[whole]])
    return curves


def draw_kept(panel, data_set: str, key: str, whole: str) -> None:
    """A number over the dimensions kept: the most active ones, and random ones dotted."""
    x = [*KEPT, 256]
    for k, method in enumerate(METHODS):
        seeds = seeds_of(method, data_set)
        for kind, style in ("top", ".-"), ("random", ".:"):
            mean, std = mean_and_std(kept_curves(seeds, key, whole, kind))
            label = f"{method}, {kind}"
            panel.errorbar(x, mean, std, fmt=style, color=f"C{k}", capsize=2, label=label)
    panel.set(xscale="log", xlabel="dimensions kept")
    panel.set_xticks(x, map(str, x))
    panel.minorticks_off()


def draw_selection(figure) -> None:
    """P@10 and probe on both data sets."""
    panels = iter(figure.subplots(1, 4))
    for data_set in DATA_SETS:
        for key, whole, name in (
            ("p_at_10", "p_at_10", "P@10"),
            ("lp1", "lp1_embedding", "probe of z"),
        ):
            panel = next(panels)
            draw_kept(panel, data_set, key, whole)
            panel.set_title(f"{data_set}: {name}, %", fontsize=10)


# -------------------------------------------------------------------------------- shifted images
def severity_curves(seeds: list[dict], e: str, kinds: tuple) -> list[list[float]]:
    """Of each seed the accuracy at severity 0 to 5, its mean over kinds of corruptions.

    e: "h", the backbone, or "z", the embedding
    """
    curves = []
    for numbers in seeds:
        curve = [numbers[f"{e}_clean"]]
        for severity in range(1, 6):
            scores = [numbers[f"{e}_{kind}_{severity}"] for kind in kinds]
            curve.append(np.mean(scores))
        curves.append(curve)
    return curves


def draw_severities(panel, data_set: str, kinds: tuple) -> None:
    """The accuracy of SimCLR and NCL over the severity of corruptions."""
    for k, method in enumerate(("SimCLR", "NCL")):
        seeds = seeds_of(method, data_set)
        for e, (style, name) in VECTORS.items():
            mean, std = mean_and_std(severity_curves(seeds, e, kinds))
            look = dict(fmt=style, color=f"C{k}", markersize=4, capsize=2)
            panel.errorbar(range(6), mean, std, label=f"{method}, {name}", **look)
    panel.set(xlabel="severity", xticks=range(6), ylim=(0, None))


def draw_shifts(panel) -> None:
    """The accuracy of SimCLR and NCL on the shifts of the built-in data set."""
    place = -0.24
    for k, method in enumerate(("SimCLR", "NCL")):
        seeds = seeds_of(method, "built-in")
        for e, (style, _) in VECTORS.items():
            scores = []
            for numbers in seeds:
                scores.append([numbers[f"{e}_{shift}"] for shift in SHIFTS])
            mean, std = mean_and_std(scores)
            x = np.arange(len(SHIFTS)) + place
            panel.errorbar(x, mean, std, fmt=style[0], color=f"C{k}", markersize=4, capsize=2)
            place += 0.16
    panel.set_xticks(range(len(SHIFTS)), SHIFTS)
    panel.set_ylim(0, None)


def draw_robustness(figure) -> None:
    """All six corruptions, low contrast alone, and new backgrounds."""
    first, second, third, last = figure.subplots(1, 4)
    draw_severities(first, "CIFAR-10", CORRUPTIONS)
    draw_severities(second, "CIFAR-10", ("contrast",))
    draw_severities(third, "built-in", CORRUPTIONS)
    draw_shifts(last)
    first.set_title("CIFAR-10: mean of six, %", fontsize=10)
    second.set_title("CIFAR-10: low contrast, %", fontsize=10)
    third.set_title("built-in: mean of six, %", fontsize=10)
    last.set_title("built-in: other backgrounds, %", fontsize=10)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="pictures.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = ROOT / "assets"
    flags.add_argument("--out", metavar="FOLDER", type=Path, default=default, help="for both")
    args = flags.parse_args(argv)
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(
            f"a picture needs matplotlib: pip install matplotlib ({error})"
        ) from error
    for name, draw in ("feature-selection", draw_selection), ("robustness", draw_robustness):
        figure = plt.figure(figsize=(11, 3.4), layout="constrained")
        draw(figure)
        lines, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=6, frameon=False)
        figure.savefig(args.out / f"{name}.png", dpi=75)
        plt.close(figure)


if __name__ == "__main__":
    common.launch(main)
