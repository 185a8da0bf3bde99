"""SimSiam's collapse without the stop-gradient: the picture of what curves.csv has.

    python studies/simsiam/collapse.py      assets/simsiam-collapse.png, with matplotlib

The collapse indicator is the standard deviation of z/‖z‖ times √K over the epochs ([SimSiam]
Fig. 2): 1 where the embedding fills its space, 0 where it is a point.

[SimSiam]: arXiv 2011.10566.
"""

import argparse
import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402

CURVES = Path(__file__).with_name("curves.csv")
PICTURED = "shapes-simsiam-no-stop-grad", "3"  # a run and its seed


def curve(run: str, seed: str) -> tuple[list[int], list[float]]:
    """Epochs and collapse indicator of a run. Raises BadInput where curves.csv lacks it."""
    epochs = []
    spread = []
    with open(CURVES, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if (line["run"], line["seed"]) == (run, seed):
                epochs.append(int(line["epoch"]))
                spread.append(float(line["spread"]))
    if not epochs:
        raise common.BadInput(f"curves.csv has no {run} with seed {seed}")
    return epochs, spread


def draw(path: str | Path) -> None:
    """The indicator of PICTURED over its epochs."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(f"{error}: pip install matplotlib") from error
    epochs, spread = curve(*PICTURED)
    figure, panel = plt.subplots(figsize=(5, 3), layout="constrained")
    panel.plot(epochs, spread, marker=".")
    panel.axhline(1, color="grey", linestyle=":")
    panel.set(xlabel="epoch", ylabel="std of z/‖z‖, times √K", ylim=(0, 1.1))
    panel.set(title="1: healthy, 0: collapsed")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="collapse.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = ROOT / "assets" / "simsiam-collapse.png"
    flags.add_argument("--draw", metavar="FILE", default=default, help="the picture")
    args = flags.parse_args(argv)
    draw(args.draw)


if __name__ == "__main__":
    common.launch(main)
