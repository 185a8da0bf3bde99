"""Is there a best ρ and λ of BayesNCL? Two pictures of what is on record.

    python studies/bayesncl/settings.py      theory-grid.png and held-out.png; needs matplotlib

theory-grid.png: 25 settings on the built-in data set, a line for each ρ over λ. held-out.png: six
settings on held-out images of CIFAR-10, Cons. over the linear probe and over the live dimensions;
dotted, the least probe that the choice allows. Dots are means over seeds, bars ± their standard
deviation.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report  # noqa: E402
from records import ROOT, STUDIES, common  # noqa: E402

PRIORS = ["0.1", "0.3", "0.5", "0.8", "0.95"]  # ρ of the grid
WEIGHTS = ["3e-6", "3e-5", "3e-4", "3e-3", "3e-2"]  # λ of the grid
SHOWN = {  # numbers of the records, and the titles of their panels
    "cons": "Cons., %",
    "adjusted": "adj., %",
    "live_dims": "live dimensions",
    "lp1": "linear probe, %",
}
HELD_OUT_PRIORS = ["0.3", "0.5", "0.8"]
HELD_OUT_WEIGHTS = ["3e-5", "3e-4"]
ALLOWED = 1  # points of the probe below NCL's


def mean_and_std(run: str, key: str) -> tuple[float, float]:
    """Over the seeds of a run. Raises BadInput where it is not on record."""
    seeds = report.seeds_of(STUDIES / "bayesncl" / "records.jsonl", run)
    values = [numbers[key] for numbers in seeds.values()]
    return np.mean(values), np.std(values, ddof=1)


# ----------------------------------------------------------------------------------------- the grid
def draw_line(panel, prior: str, key: str, colour) -> None:
    """A number over λ with one ρ."""
    runs = [f"shapes-grid-bayesncl-prior{prior}-kl-weight{weight}" for weight in WEIGHTS]
    found = np.array([mean_and_std(run, key) for run in runs])
    mean, std = found.T
    aside = 1.1 ** (PRIORS.index(prior) - 2)  # so that bars stand beside each other
    x = [float(weight) * aside for weight in WEIGHTS]
    look = dict(fmt="o-", color=colour, markersize=4, capsize=2)
    panel.errorbar(x, mean, std, label=f"ρ = {prior}", **look)


def draw_grid(figure, colours) -> None:
    """SHOWN over λ, a line for each ρ. colours: of each, from the least on"""
    panels = figure.subplots(1, len(SHOWN))
    for panel, (key, title) in zip(panels, SHOWN.items()):
        for prior, colour in zip(PRIORS, colours):
            draw_line(panel, prior, key, colour)
        panel.set(xscale="log", xlabel="λ")
        panel.set_title(title, fontsize=10)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=5, frameon=False)


# -------------------------------------------------------------------------------------- the choice
def draw_dot(panel, run: str, key: str, look: dict) -> None:
    """Cons. of a run over another of its numbers, both ± their standard deviation."""
    x, of_x = mean_and_std(run, key)
    y, of_y = mean_and_std(run, "cons")
    panel.errorbar(x, y, of_y, of_x, capsize=2, **look)


def draw_choice(figure) -> None:
    """Cons. over the probe and over the live dimensions, a dot for each setting and for NCL."""
    panels = figure.subplots(1, 2, sharey=True)
    start = "cifar10-held-out-cpu"
    for panel, key in zip(panels, ("lp1", "live_dims")):
        for k, prior in enumerate(HELD_OUT_PRIORS):
            for weight, marker in zip(HELD_OUT_WEIGHTS, "os"):
                look = dict(fmt=marker, color=f"C{k}", label=f"ρ = {prior}, λ = {weight}")
                draw_dot(panel, f"{start}-bayesncl-prior{prior}-kl-weight{weight}", key, look)
        draw_dot(panel, f"{start}-ncl", key, dict(fmt="kD", label="NCL"))
        panel.set_xlabel(SHOWN[key])
    of_ncl, _ = mean_and_std(f"{start}-ncl", "lp1")
    panels[0].axvline(of_ncl - ALLOWED, color="grey", linestyle=":")
    panels[0].set_ylabel(SHOWN["cons"])
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right", frameon=False)


# -------------------------------------------------------------------------------------- the program
def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="settings.py",
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
    figure = plt.figure(figsize=(11, 3.4), layout="constrained")
    draw_grid(figure, plt.get_cmap("viridis")(np.linspace(0, 0.9, len(PRIORS))))
    figure.savefig(args.out / "theory-grid.png", dpi=70)
    plt.close(figure)
    figure = plt.figure(figsize=(9, 3.4), layout="constrained")
    draw_choice(figure)
    figure.savefig(args.out / "held-out.png", dpi=95)
    plt.close(figure)


if __name__ == "__main__":
    common.launch(main)
