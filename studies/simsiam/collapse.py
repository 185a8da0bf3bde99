"""SimSiam's collapse without the stop-gradient: the picture of what curves.csv has.

    python studies/simsiam/collapse.py      assets/simsiam-collapse.png, with matplotlib

A line is a seed: the collapse indicator, the standard deviation of z/‖z‖ times √K, over the epochs
([SimSiam] Fig. 2). It is 1 where the embedding fills its space. The projector's last norm keeps
each batch's mean at 0, so it does not fall below about 2/√batch. Both are dotted.

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
PICTURED = {  # a panel's title: a run and its batch size
    "32 pixels, batches of 128": ("shapes-simsiam-no-stop-grad", 128),
    "16 pixels, batches of 1,000": ("simsiam-16px-simsiam-no-stop-grad", 1000),
}


def curves_of(run: str) -> dict[str, tuple[list[int], list[float]]]:
    """Seed → epochs and collapse indicator of a run. Raises BadInput where curves.csv lacks it."""
    found = {}
    with open(CURVES, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["run"] != run:
                continue
            if line["seed"] not in found:
                found[line["seed"]] = [], []
            epochs, spread = found[line["seed"]]
            epochs.append(int(line["epoch"]))
            spread.append(float(line["spread"]))
    if not found:
        raise common.BadInput(f"curves.csv has no {run}")
    return found


def draw(path: str | Path) -> None:
    """A panel for each of PICTURED, a line for each seed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(f"{error}: pip install matplotlib") from error
    figure, panels = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    for panel, (title, (run, batch)) in zip(panels, PICTURED.items()):
        for seed, (epochs, spread) in curves_of(run).items():
            panel.plot(epochs, spread, marker=".", label=f"seed {seed}")
        panel.axhline(1, color="grey", linestyle=":")
        panel.axhline(2 / batch**0.5, color="grey", linestyle=":")
        panel.set(title=title, xlabel="epoch", ylim=(0, 1.1))
    panels[0].set_ylabel("std of z/‖z‖, times √K")
    panels[1].legend(loc=(0.4, 0.6), frameon=False)
    figure.savefig(path, dpi=95)
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
