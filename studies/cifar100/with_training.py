"""What the papers' 200 epochs of CIFAR-100 change in the dimensions of NCL and BayesNCL.

    python studies/cifar100/with_training.py      assets/with-training.png

Means over three seeds ± their standard deviation; dotted: the mean with shuffled labels.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import ROOT, values  # noqa: E402

plt.style.use(ROOT / "studies" / "pictures.mplstyle")

EPOCHS = {20: "-after-20", 50: "-after-50", 100: "-after-100", 200: ""}  # how a run's name ends
METHODS = {"NCL": "C1", "BayesNCL": "C2"}  # and their colours
PANELS = {  # a number of the records, and its title
    "cons": "Cons., % (dotted: shuffled labels)",
    "adjusted": "adj., %",
    "live_dims": "live dimensions",
    "rare_dims": "rare dimensions, below 0.1 %",
}


def by_epoch(method: str, key: str) -> pd.DataFrame:
    """A number of a method: a row for each seed, a column for each of EPOCHS."""
    run = f"cifar100/cifar100-long-{method.lower()}"
    return pd.DataFrame({epoch: values(run + end, key) for epoch, end in EPOCHS.items()})


def draw_panel(panel, key: str) -> None:
    """A number over the epochs."""
    for method, colour in METHODS.items():
        found = by_epoch(method, key)
        look = dict(fmt="o-", color=colour, markersize=4, capsize=2, label=method)
        panel.errorbar(found.columns, found.mean(), found.std(), **look)
        if key == "cons":
            shuffled = by_epoch(method, "shuffled_cons")
            panel.plot(shuffled.columns, shuffled.mean(), ":", color=colour)
    panel.set(title=PANELS[key], xlabel="epochs", xscale="log", ylim=(0, None))
    panel.set_xticks(list(EPOCHS), list(EPOCHS))
    panel.minorticks_off()


def draw(path: Path) -> None:
    figure, panels = plt.subplots(1, len(PANELS), figsize=(11, 3))
    for panel, key in zip(panels, PANELS):
        draw_panel(panel, key)
    panels[0].legend()
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "assets" / "with-training.png")
