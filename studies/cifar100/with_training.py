"""Do dimensions become rare with training? NCL and BayesNCL after 5, 10 and 20 epochs of CIFAR-100.

    python studies/cifar100/with_training.py      assets/with-training.png; needs matplotlib

Dots are means over seeds, bars ± their standard deviation; what chance gives is dotted.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report  # noqa: E402
from records import ROOT, STUDIES, common  # noqa: E402

EPOCHS = {5: "-after-5", 10: "-after-10", 20: ""}  # and how the name of a run ends
RUNS = {  # a line: its run, its colour and style
    "NCL, papers' recipe": ("cifar100-cpu-ncl-lars", "C1", "o-"),
    "BayesNCL, papers' recipe": ("cifar100-cpu-bayesncl-lars", "C2", "o-"),
    "NCL, default": ("cifar100-cpu-ncl", "C1", "s--"),
    "BayesNCL, default": ("cifar100-cpu-bayesncl", "C2", "s--"),
}
SHOWN = {  # numbers of the records, and the titles of their panels
    "cons": "Cons., % (dotted: by chance)",
    "adjusted": "adj., %",
    "rare_dims": "dimensions below 0.1 %",
    "entries": "active entries of an image",
}


def curve(run: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over seeds of a number after each of EPOCHS."""
    means = []
    stds = []
    for ending in EPOCHS.values():
        seeds = report.seeds_of(STUDIES / "cifar100" / "records.jsonl", run + ending)
        values = [numbers[key] for numbers in seeds.values()]
        means.append(np.mean(values))
        stds.append(np.std(values, ddof=1))
    return np.array(means), np.array(stds)


def draw_panel(panel, key: str) -> None:
    """A number over the epochs."""
    x = list(EPOCHS)
    for name, (run, colour, style) in RUNS.items():
        mean, std = curve(run, key)
        look = dict(fmt=style, color=colour, markersize=4, capsize=2)
        panel.errorbar(x, mean, std, label=name, **look)
        if key == "cons":
            mean, _ = curve(run, "cons_by_chance")
            panel.plot(x, mean, style[0] + ":", color=colour, markersize=2)
    panel.set(xlabel="epochs", xticks=x, ylim=(0, None))
    panel.set_title(SHOWN[key], fontsize=10)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="with_training.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = ROOT / "assets" / "with-training.png"
    flags.add_argument("--draw", metavar="FILE", default=default, help="the picture")
    args = flags.parse_args(argv)
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(
            f"a picture needs matplotlib: pip install matplotlib ({error})"
        ) from error
    figure, panels = plt.subplots(1, len(SHOWN), figsize=(11, 3.4), layout="constrained")
    for panel, key in zip(panels, SHOWN):
        draw_panel(panel, key)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(args.draw, dpi=75)
    plt.close(figure)


if __name__ == "__main__":
    common.launch(main)
