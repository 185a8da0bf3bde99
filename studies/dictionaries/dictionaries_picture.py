"""How consistent are trained and untrained dictionaries at equal sparsity? The records' picture.

    python studies/dictionaries/dictionaries_picture.py     assets/dictionaries.png, with matplotlib

adj. and best F1 over the active entries per image, of each image's 1, 2, 4, … strongest entries:
the mean over seeds and its 95 % t-interval. Untrained: random directions of the same run's features
(dictionaries.py).
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import records  # noqa: E402
import report  # noqa: E402
from records import ROOT, common  # noqa: E402

METHODS = {"simclr": "SimCLR", "ncl": "NCL", "bayesncl": "BayesNCL"}
ROWS = {  # of the picture: the first words of the runs, the label's prefix
    "built-in data set, class": ("claims-shapes", ""),
    "built-in data set, background": ("claims-shapes", "background_"),
    "CIFAR-10, default, class": ("claims-cifar10", ""),
    "CIFAR-100 of 10,000, class": ("claims-cifar100-10k", ""),
}
PANELS = {"adjusted": "adj., %", "best_f1": "best F1 a class, %"}


def on_record() -> dict[str, dict[str, list[dict]]]:
    """Row of the picture → method → the numbers of its seeds; BadInput where there is nothing."""
    file = records.file_of("dictionaries")
    rows = {}
    for title, (first_words, _) in ROWS.items():
        of_methods = {}
        for method in METHODS:
            seeds = records.of_seeds(file, f"{first_words}-{method}").values()
            measured = [seed["dictionaries"] for seed in seeds if "dictionaries" in seed]
            if measured:
                of_methods[method] = measured
        if of_methods:
            rows[title] = of_methods
    common.need(rows, "no run on record has dictionaries: measure them with dictionaries.py")
    return rows


def points(seeds: list[dict], name: str, key: str) -> np.ndarray:
    """A dictionary's curve, (s, 3): active entries, a number, half its 95 % interval.

    Entries and number are means over the seeds, at each s that all of them have. One seed has no
    interval: 0.
    """
    found = []
    for s in re.findall(rf"dictionary_{name}_top_(\w+?)_entries", " ".join(seeds[0])):
        of_top = f"dictionary_{name}_top_{s}_"
        if not all(f"{of_top}entries" in seed for seed in seeds):
            continue
        entries = np.mean([seed[f"{of_top}entries"] for seed in seeds])
        values = [seed[of_top + key] for seed in seeds]
        half = 0.0
        if len(values) > 1:
            half = report.interval(values)
        found.append([entries, np.mean(values), half])
    return np.array(found)


def draw_panel(panel, of_methods: dict[str, list[dict]], key: str) -> None:
    """A number over active entries per image: trained drawn through, untrained dashed."""
    for number, (method, title) in enumerate(METHODS.items()):
        if method not in of_methods:
            continue
        seeds = of_methods[method]
        for name, style in ("trained", ".-"), ("untrained", ".--"):
            x, mean, half = points(seeds, name, key).T
            label = f"{title}, {name}, n = {len(seeds)}"
            panel.plot(x, mean, style, color=f"C{number}", label=label)
            panel.fill_between(x, mean - half, mean + half, color=f"C{number}", alpha=0.12)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:g}")


def draw(path: str | Path) -> None:
    """A row for each data set and label on record, a panel for each of PANELS."""
    rows = on_record()
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(f"{error}: pip install matplotlib") from error
    size = (10, 3.4 * len(rows))
    figure, axes = plt.subplots(len(rows), 2, figsize=size, layout="constrained", squeeze=False)
    for panels, (title, of_methods) in zip(axes, rows.items()):
        _, prefix = ROWS[title]
        for panel, (key, shown) in zip(panels, PANELS.items()):
            draw_panel(panel, of_methods, prefix + key)
            panel.set_title(f"{title}: {shown}", fontsize=10)
        panels[1].legend(frameon=False, fontsize=8)
    figure.supxlabel("active entries per image")
    figure.savefig(path, dpi=90)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="dictionaries_picture.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = ROOT / "assets" / "dictionaries.png"
    flags.add_argument("--draw", metavar="FILE", default=default, help="the picture")
    args = flags.parse_args(argv)
    draw(args.draw)


if __name__ == "__main__":
    common.launch(main)
