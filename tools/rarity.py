"""How much of a Cons. is rarity? A dimension that is active on few images is consistent by chance.

    python tools/rarity.py results/cifar100-cpu-{ncl,bayesncl}-seed*                 a table of what is on record
    python tools/rarity.py results/cifar100-cpu-{ncl,bayesncl}-seed* --draw FILE     a dot per dimension, too

Chance: the expected share of the most frequent class among as many test images, drawn at random (mean of 200 orders of
the test set). Means over live dimensions, then over seeds; ± where there are three or more. The figure's last panel has
the mean over the dimensions that are active on at least so many images, the part of Cons. that chance gives dotted.
"""
import argparse
import functools
import json
from pathlib import Path

import numpy as np
import torch

import report
from report import common
from sparsity import by_row

TEST = {"shapes": (10, 1000), "cifar10": (10, 10_000), "cifar100": (100, 10_000)}  # equal classes, test images


@functools.cache
def chance(classes: int, images: int) -> np.ndarray:
    """Expected share of the most frequent of equal classes among 1, 2, …, `images` of so many images, (images,)."""
    return common.random_consistency(torch.arange(images) % classes).mean(0).numpy()


def consistencies(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Of a record's live dimensions: the images that each is active on, its Cons. and that by chance, (L,) each; the
    data set's name. BadInput where the folder has no dimensions.csv or is of a data set that TEST lacks."""
    columns, config = report.dimensions(folder), folder / "config.json"
    data = json.loads(config.read_text()).get("dataset") if config.exists() else None
    if not len(columns) or data not in TEST:
        raise common.BadInput(f"{folder} is no record with dimensions.csv, of {', '.join(TEST)}")
    columns = columns[columns["act"] > 0]
    n = np.round(columns["act"] * TEST[data][1]).astype(int)
    return n, columns["cons"], chance(*TEST[data])[n - 1], data


def summary(n: np.ndarray, cons: np.ndarray, by_chance: np.ndarray, images: int) -> dict[str, float]:
    """What the table shows of a run, % but for counts: Cons., by chance, above chance; the same of the dimensions that
    are active on a thousandth of the images or more; the number of live ones, of those below a thousandth."""
    frequent = n >= images / 1000
    mean = lambda values, of=slice(None): 100 * values[of].mean() if len(values[of]) else np.nan
    return {"Cons.": mean(cons), "by chance": mean(by_chance), "above": mean(cons - by_chance),
            "≥ 0.1 %": mean(cons, frequent), "≥ 0.1 %, by chance": mean(by_chance, frequent),
            "≥ 0.1 %, above": mean(cons - by_chance, frequent), "live": len(n), "below 0.1 %": (~frequent).sum()}


def draw(rows: dict[str, list[tuple]], path: str) -> None:
    """A panel per row, a dot per dimension of all seeds over the images that it is active on, and the curve of chance;
    last, the means over the dimensions that are active on at least so many images, mean ± std over seeds."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(f"--draw needs matplotlib ({error})")
    figure, panels = plt.subplots(1, len(rows) + 1, figsize=(4 * len(rows) + 4, 3.6), layout="constrained", sharex=True)
    classes, images = TEST[next(iter(rows.values()))[0][3]]
    at = np.arange(1, images + 1)
    least = np.unique(np.geomspace(1, images / 10, 60).astype(int))
    for colour, (panel, (name, seeds)) in enumerate(zip(panels, rows.items())):
        name = name.rpartition("-cpu-")[2]
        panel.sharey(panels[0])
        for n, cons, _, _ in seeds:
            panel.scatter(n, 100 * cons, 7, color=f"C{colour}", alpha=0.35, linewidths=0)
        panel.plot(at, 100 * chance(classes, images), color="black", linewidth=1, label="chance")
        panel.axvline(images / 1000, color="grey", linestyle=":", linewidth=0.8)
        panel.set(title=f"{name}, {len(seeds)} seeds", xlabel="images that the dimension is active on", xscale="log")
        for which, style in (1, "-"), (2, ":"):
            curves = [[100 * seed[which][seed[0] >= m].mean() if (seed[0] >= m).any() else np.nan for m in least]
                      for seed in seeds]
            mean, std = np.mean(curves, 0), np.std(curves, 0, ddof=min(1, len(curves) - 1))
            panels[-1].plot(least, mean, style, color=f"C{colour}", label=name if which == 1 else None)
            if which == 1:
                panels[-1].fill_between(least, mean - std, mean + std, color=f"C{colour}", alpha=0.15)
    panels[0].set_ylabel("Cons. of the dimension, %")
    panels[0].legend(frameon=False)
    panels[-1].set(title="mean of those active on at least …", xlabel="images", ylabel="Cons., %, and by chance")
    panels[-1].legend(frameon=False)
    figure.savefig(path, dpi=90)


def main(argv=None):
    flags = argparse.ArgumentParser(prog="rarity.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("records", nargs="+", type=Path, help="folders of records of one data set")
    flags.add_argument("--draw", metavar="FILE", help="the picture")
    args = flags.parse_args(argv)
    rows = {name: [consistencies(folder) for folder in folders] for name, folders in by_row(args.records).items()}
    if len(data := {seed[3] for seeds in rows.values() for seed in seeds}) > 1:
        raise common.BadInput(f"these records are of several data sets: {', '.join(sorted(data))}")
    table = []
    for name, seeds in rows.items():
        found = [summary(*seed[:3], TEST[seed[3]][1]) for seed in seeds]
        table = table or [["row", "seeds", *found[0]]]
        cell = lambda values: f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 2 else "")
        table.append([name, str(len(seeds)), *(cell([run[key] for run in found]) for key in found[0])])
    print(common.markdown(table))
    if args.draw:
        draw(rows, args.draw)


if __name__ == "__main__":
    common.launch(main)
