"""SimSiam's collapse without the stop-gradient, over the epochs ([SimSiam] Fig. 2).

    python studies/simsiam/collapse.py      assets/simsiam-collapse.png

A line is a seed: the spread of a batch's embeddings, the standard deviation of z/‖z‖ times √K. It
is 1 where the embedding fills its space. The projector's last norm keeps each batch's mean at 0, so
the spread does not fall below about 2/√batch. Both are dotted.

[SimSiam]: arXiv 2011.10566.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import ROOT, read  # noqa: E402

plt.style.use(ROOT / "studies" / "pictures.mplstyle")

PANELS = {  # a panel's title: a run and its batch size
    "32 pixels, batches of 128": ("shapes-simsiam-no-stop-grad", 128),
    "16 pixels, batches of 1,000": ("simsiam-16px-simsiam-no-stop-grad", 1000),
}


def draw_panel(panel, run: str, batch: int) -> None:
    """The spread over the epochs, a line for each seed of a run."""
    for record in read("simsiam"):
        if record["run"] == run:
            spread = record["curve"]["spread"]
            epochs = range(1, len(spread) + 1)
            panel.plot(epochs, spread, marker=".", label=f"seed {record['seed']}")
    panel.axhline(1, color="grey", linestyle=":")
    panel.axhline(2 / batch**0.5, color="grey", linestyle=":")


def draw(path: str | Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.2), sharey=True)
    for panel, (title, (run, batch)) in zip(panels, PANELS.items()):
        draw_panel(panel, run, batch)
        panel.set(title=title, xlabel="epoch", ylim=(0, 1.1))
    panels[0].set_ylabel("spread of a batch's embeddings")
    panels[1].legend(loc=(0.4, 0.6))
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "assets" / "simsiam-collapse.png")
