"""How much of a Cons. is rarity? A dimension that is active on few images is consistent by chance.

    python studies/consistency/rarity.py cifar100-cpu-ncl cifar100-cpu-bayesncl        a table
    python studies/consistency/rarity.py cifar100-cpu-bayesncl-lars --draw rarity.png  a picture too
    python studies/consistency/rarity.py --gate runs/<run> …                 is it the gate's doing?

The picture has a dot per dimension. The first two read the runs' dimensions in dimensions.csv, the
third finished runs of bayesncl.py.
Chance is the expected share of the most frequent class among as many test images, drawn at random:
exact up to 100 images, of more the mean of 2,000 orders of the test set. The table has means over
live dimensions, then over seeds, ± where there are three or more. The figure's last panel has the
mean over the dimensions that are active on at least so many images; the part of Cons. that chance
gives is dotted.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "studies")]
import bayesncl  # noqa: E402
import common  # noqa: E402
import interpret  # noqa: E402

import records  # noqa: E402
from runs import data_of, load_run, progress  # noqa: E402

RARE = 1e-3  # a dimension that is active on a smaller share of the images is rare
TITLES = {"ncl": "NCL", "ncl-topk": "NCL + TopK", "bayesncl": "BayesNCL"}


# --------------------------------------------------------------------------- consistency and chance
def dataset_of(runs: list[str]) -> str:
    """The data set of runs; BadInput where they are of several, or of none that is known."""
    found = sorted({run.partition("-")[0] for run in runs})
    if len(found) > 1:
        names = ", ".join(found)
        raise common.BadInput(f"these runs are of several data sets: {names}")
    if found[0] not in records.TEST_SETS:
        names = ", ".join(records.TEST_SETS)
        raise common.BadInput(f"{runs[0]}: the first word of a run is its data set, of {names}")
    return found[0]


def consistencies(columns: np.ndarray, by_chance: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of a run's L live dimensions: images that each is active on, Cons., Cons. by chance, (L,).

    columns: act and cons of each dimension; by_chance: Cons. of 1, 2, …, all test images
    """
    live = columns["act"] > 0
    n = np.round(columns["act"][live] * len(by_chance)).astype(int)
    return n, columns["cons"][live], by_chance[n - 1]


def read_rows(runs: list[str], by_chance: np.ndarray) -> dict[str, list[tuple]]:
    """Run → consistencies of its seeds; BadInput where dimensions.csv lacks a run."""
    kept = records.kept_dimensions("consistency")
    rows = {}
    for run in runs:
        if run not in kept:
            known = ", ".join(kept)
            raise common.BadInput(f"dimensions.csv has no {run}; it has {known}")
        rows[run] = [consistencies(columns, by_chance) for columns in kept[run].values()]
    return rows


def percent(values: np.ndarray) -> float:
    """The mean in %; NaN where there are none."""
    if len(values) == 0:
        return np.nan
    return 100 * values.mean()


def summary(n: np.ndarray, cons: np.ndarray, by_chance: np.ndarray, images: int) -> dict:
    """What the table shows of the L live dimensions of a run, in % but for counts.

    n, cons, by_chance: consistencies of a run, (L,) each; images: of the test set
    """
    frequent = n >= RARE * images
    above = cons - by_chance
    return {
        "Cons.": percent(cons),
        "by chance": percent(by_chance),
        "above": percent(above),
        "≥ 0.1 %": percent(cons[frequent]),
        "≥ 0.1 %, by chance": percent(by_chance[frequent]),
        "≥ 0.1 %, above": percent(above[frequent]),
        "live": len(n),
        "below 0.1 %": (~frequent).sum(),
    }


def cell(values: list[float]) -> str:
    """The mean over seeds, of three or more with their standard deviation."""
    text = f"{np.mean(values):.1f}"
    if len(values) > 2:
        text += f" ± {np.std(values, ddof=1):.1f}"
    return text


def table(rows: dict[str, list[tuple]], images: int) -> str:
    """A Markdown table of rows {name: [consistencies of a seed, …]}."""
    lines = []
    for name, seeds in rows.items():
        found = [summary(*seed, images) for seed in seeds]
        if not lines:
            lines.append(["row", "seeds", *found[0]])
        line = [name, str(len(seeds))]
        for key in found[0]:
            line.append(cell([numbers[key] for numbers in found]))
        lines.append(line)
    return interpret.markdown(lines)


# ----------------------------------------------------------------------------------------- the gate
def shares(folder: Path, data_root: str | None) -> tuple[Tensor, Tensor]:
    """Shares of test images that dimensions are active on before and behind the gate, (K,) each.

    folder: a run of bayesncl.py; BadInput where it is of another method or of ipw.
    """
    run, model = load_run(folder)
    if run.method != "bayesncl" or run.similarity != "cosine":
        wanted = "give runs of bayesncl.py with --similarity cosine"
        raise common.BadInput(f"{folder}: {run.method}.py; {wanted}")
    data = data_of(run, data_root)
    model.eval()
    before, behind = [], []
    for images in progress(data.test["x"].split(500), "test images, by 500"):
        with torch.no_grad():
            h, out, *_ = model(common.eval_view(images, run.image_size))
            plus = bayesncl.ACTIVATIONS[run.activation](model.head(h).float())
        before.append(normalize(plus).abs() > common.ACTIVE)
        behind.append(normalize(out).abs() > common.ACTIVE)
    return torch.cat(before).float().mean(0), torch.cat(behind).float().mean(0)


def is_rare(share: Tensor) -> Tensor:
    """Whether a dimension is active on some images, but on few."""
    return (share > 0) & (share < RARE)


def behind_the_gate(before: Tensor, behind: Tensor) -> dict[str, float]:
    """How many dimensions are dead or rare, and how many of these would be so without the gate.

    Of the rare ones that the gate makes, medians of the share of images that they were active on
    and of the share of these that is left.

    before, behind: (K,), `shares` of a run
    """
    dead = behind == 0
    rare = is_rare(behind)
    made = rare & ~is_rare(before)
    frequency = np.nan
    kept = np.nan
    if made.any():
        frequency = before[made].median().item()
        kept = (behind / before)[made].median().item()
    return {
        "dead": dead.sum().item(),
        "dead without gate": (dead & (before == 0)).sum().item(),
        "rare": rare.sum().item(),
        "rare without gate": (rare & is_rare(before)).sum().item(),
        "frequency before, %": 100 * frequency,
        "of it kept, %": 100 * kept,
    }


def table_of_gates(folders: list[Path], data_root: str | None) -> str:
    """What is behind the gates of runs, as a Markdown table."""
    lines = []
    for folder in folders:
        numbers = behind_the_gate(*shares(folder, data_root))
        if not lines:
            lines.append(["run", *numbers])
        lines.append([folder.name, *[f"{value:.3g}" for value in numbers.values()]])
    return interpret.markdown(lines)


# -------------------------------------------------------------------------------------- the picture
def means_from(least: np.ndarray, n: np.ndarray, values: np.ndarray) -> list[float]:
    """Means in % of values (L,) of the dimensions active on m images or more, by m in least."""
    return [percent(values[n >= m]) for m in least]


def title_of(name: str) -> str:
    """A row's name for readers: "cifar100-cpu-ncl-lars" is NCL."""
    kind = name.rpartition("-cpu-")[2]
    return TITLES.get(kind.removesuffix("-lars"), kind)


def draw(rows: dict[str, list[tuple]], by_chance: np.ndarray, path: str) -> None:
    """A panel per row, a dot per dimension of all seeds over the images that it is active on.

    With it the curve of chance; last, the means over the dimensions that are active on at least so
    many images, mean ± std over seeds.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(f"--draw needs matplotlib ({error})") from error
    images = len(by_chance)
    figure, panels = plt.subplots(
        1,
        len(rows) + 1,
        figsize=(4 * len(rows) + 4, 3.6),
        layout="constrained",
        sharex=True,
    )
    last = panels[-1]
    least = np.unique(np.geomspace(1, images / 10, 60).astype(int))
    for k, (name, seeds) in enumerate(rows.items()):
        panel = panels[k]
        panel.sharey(panels[0])
        colour = f"C{k}"
        title = title_of(name)
        count = f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed"
        for n, cons, _ in seeds:
            panel.scatter(n, 100 * cons, 7, color=colour, alpha=0.35, linewidths=0)
        at = np.arange(1, images + 1)
        panel.plot(at, 100 * by_chance, color="black", linewidth=1, label="chance")
        panel.axvline(RARE * images, color="grey", linestyle=":", linewidth=0.8)
        panel.set(title=f"{title}, {count}", xscale="log")
        panel.set_xlabel("images that the dimension is active on")

        curves = [means_from(least, n, cons) for n, cons, _ in seeds]
        mean = np.mean(curves, 0)
        std = np.std(curves, 0, ddof=min(1, len(curves) - 1))
        last.plot(least, mean, "-", color=colour, label=title)
        last.fill_between(least, mean - std, mean + std, color=colour, alpha=0.15)
        curves = [means_from(least, n, at_random) for n, _, at_random in seeds]
        last.plot(least, np.mean(curves, 0), ":", color=colour)
    panels[0].set_ylabel("Cons. of the dimension, %")
    panels[0].legend(frameon=False)
    last.set_title("mean of those active on at least …")
    last.set(xlabel="images", ylabel="Cons., %, and by chance")
    last.legend(frameon=False)
    figure.savefig(path, dpi=90)


# -------------------------------------------------------------------------------------- the program
def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="rarity.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    of_which = "names of runs of one data set; --gate: folders of runs"
    flags.add_argument("runs", nargs="+", help=of_which)
    which = flags.add_mutually_exclusive_group()
    which.add_argument("--draw", metavar="FILE", help="the picture")
    of_gate = "bayesncl.py's dimensions behind its gate and without it"
    which.add_argument("--gate", action="store_true", help=of_gate)
    of_root = "folder of the data sets, for --gate (default: the run's)"
    flags.add_argument("--data-root", help=of_root)
    args = flags.parse_args(argv)
    if args.gate:
        folders = [Path(run) for run in args.runs]
        print(table_of_gates(folders, args.data_root))
        return

    by_chance = records.random_consistency(dataset_of(args.runs))
    rows = read_rows(args.runs, by_chance)
    print(table(rows, len(by_chance)))
    if args.draw:
        draw(rows, by_chance, args.draw)


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
