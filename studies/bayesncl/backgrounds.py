"""Does the gate close dimensions of frequent backgrounds? The picture of the built-in data set.

    python studies/bayesncl/backgrounds.py      assets/background-rates.png, with matplotlib

A dot is a dimension that stands for a background, at its activation rate over the background's
frequency; above is how many of them a run has.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "studies")]
import common  # noqa: E402
import shapes  # noqa: E402

import records  # noqa: E402

PICTURED = {  # a panel's title: a run
    "NCL": "shapes-ncl",
    "BayesNCL": "shapes-bayesncl",
    "no KL term": "shapes-bayesncl-no-kl",
    "inverse frequency": "shapes-bayesncl-ipw",
}


def draw_panel(panel, title: str, seeds: list[np.ndarray]) -> None:
    """The dimensions of a run's seeds that stand for a background. seeds: the columns of each"""
    for b, frequency in enumerate(shapes.BACKGROUNDS.values()):
        rates = np.concatenate([records.of_background(columns, b) for columns in seeds])
        x = frequency + np.linspace(-0.008, 0.008, len(rates))  # beside each other
        panel.scatter(x, rates, 6, color="C0", alpha=0.4)
        count = f"{len(rates) / len(seeds):.0f}"
        panel.annotate(count, (frequency, 0.43), ha="center", fontsize=8)
    panel.plot([0, 0.42], [0, 0.42], color="grey", linewidth=0.8)
    panel.set(title=f"{title}, {len(seeds)} seeds", ylim=(0, 0.46))
    panel.set(xlabel="frequency of its background")


def draw(path: str | Path) -> None:
    """A panel for each of PICTURED."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(f"{error}: pip install matplotlib") from error
    kept = records.kept_dimensions("bayesncl")
    figure, panels = plt.subplots(
        1, len(PICTURED), figsize=(12, 3.2), layout="constrained", sharex=True, sharey=True
    )
    for panel, (title, run) in zip(panels, PICTURED.items()):
        draw_panel(panel, title, list(kept[run].values()))
    panels[0].set_ylabel("activation rate of the dimension")
    figure.savefig(path, dpi=70)
    plt.close(figure)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="backgrounds.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = ROOT / "assets" / "background-rates.png"
    flags.add_argument("--draw", metavar="FILE", default=default, help="the picture")
    args = flags.parse_args(argv)
    draw(args.draw)


if __name__ == "__main__":
    common.launch(main)
