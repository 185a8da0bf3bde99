"""How much of a Cons. is rarity? A dimension that is active on few images is consistent by chance.

    python tools/rarity.py results/cifar100-cpu-{ncl,bayesncl}-seed*                 a table of what is on record
    python tools/rarity.py results/cifar100-cpu-{ncl,bayesncl}-seed* --draw FILE     a dot per dimension, too
    python tools/rarity.py runs/cifar100-cpu-bayesncl-seed* --gate      is it the gate that makes dimensions rare?

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

from report import common
import bayesncl
import interpret
import report
from sparsity import METHODS, by_row

TEST = {"shapes": (10, 1000), "cifar10": (10, 10_000), "cifar100": (100, 10_000)}  # equal classes, test images


@functools.cache
def chance(classes: int, images: int) -> np.ndarray:
    """Expected share of the most frequent of equal classes among 1, 2, …, `images` of so many images, (images,)."""
    return interpret.random_consistency(np.arange(images) % classes).mean(0)


def consistencies(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Of a record's live dimensions: the images that each is active on, its Cons. and that by chance, (L,) each; the
    data set's name. BadInput where the folder has no dimensions.csv or is of a data set that TEST lacks."""
    try:
        columns, data = report.dimensions(folder), json.loads((folder / "config.json").read_text())["dataset"]
        columns = columns[columns["act"] > 0]
        images = TEST[data][1]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise common.BadInput(f"{folder} is no record with dimensions.csv, of {', '.join(TEST)} ({error})")
    n = np.round(columns["act"] * images).astype(int)
    return n, columns["cons"], chance(*TEST[data])[n - 1], data


def summary(n: np.ndarray, cons: np.ndarray, by_chance: np.ndarray, images: int) -> dict[str, float]:
    """What the table shows of a run, % but for counts: Cons., by chance, above chance; the same of the dimensions that
    are active on a thousandth of the images or more; the number of live ones, of those below a thousandth."""
    frequent = n >= images / 1000
    mean = lambda values, of=slice(None): 100 * values[of].mean() if len(values[of]) else np.nan
    return {"Cons.": mean(cons), "by chance": mean(by_chance), "above": mean(cons - by_chance),
            "≥ 0.1 %": mean(cons, frequent), "≥ 0.1 %, by chance": mean(by_chance, frequent),
            "≥ 0.1 %, above": mean(cons - by_chance, frequent), "live": len(n), "below 0.1 %": (~frequent).sum()}


def behind_the_gate(folder: Path, data_root: str | None) -> dict[str, float]:
    """Of a run of bayesncl.py, on its test images: how many dimensions are dead, how many "rare", active on less than a
    thousandth of the images, and how many of either would be so without the gate; of the rare ones that the gate
    makes, medians of the share of images that they were active on and of the share of these that is left."""
    run, model = common.load_run(folder)
    if run.method != "bayesncl" or run.similarity != "cosine":
        raise common.BadInput(f"{folder}: {run.method}.py; give runs of bayesncl.py with --similarity cosine")
    data, found = common.load_data(run.dataset, data_root or run.data_root), []
    model.eval()
    with torch.no_grad():
        for images in data.x_test.split(500):
            h, out, *_ = model(common.eval_view(images, run.image_size))
            plus = bayesncl.ACTIVATIONS[run.activation](model.head(h).float())
            found.append(torch.stack([torch.nn.functional.normalize(z).abs() > common.ACTIVE for z in (plus, out)], 1))
    before, behind = torch.cat(found).float().mean(0)  # (K,) each
    rare = lambda share: (share > 0) & (share < 1e-3)
    made = rare(behind) & ~rare(before)
    median = lambda values: values[made].median().item() if made.any() else np.nan
    return {"dead": (behind == 0).sum().item(), "dead without gate": ((behind == 0) & (before == 0)).sum().item(),
            "rare": rare(behind).sum().item(), "rare without gate": (rare(behind) & rare(before)).sum().item(),
            "frequency before, %": 100 * median(before), "of it kept, %": 100 * median(behind / before)}


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
        name, count = name.rpartition("-cpu-")[2], f"{len(seeds)} seed" + "s" * (len(seeds) > 1)
        name = METHODS.get(name.removesuffix("-lars"), name)
        panel.sharey(panels[0])
        for n, cons, _, _ in seeds:
            panel.scatter(n, 100 * cons, 7, color=f"C{colour}", alpha=0.35, linewidths=0)
        panel.plot(at, 100 * chance(classes, images), color="black", linewidth=1, label="chance")
        panel.axvline(images / 1000, color="grey", linestyle=":", linewidth=0.8)
        panel.set(title=f"{name}, {count}", xlabel="images that the dimension is active on", xscale="log")
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
    flags.add_argument("records", nargs="+", type=Path, help="folders of records of one data set; --gate: of runs")
    which = flags.add_mutually_exclusive_group()
    which.add_argument("--draw", metavar="FILE", help="the picture")
    which.add_argument("--gate", action="store_true", help="bayesncl.py's dimensions behind its gate and without it")
    flags.add_argument("--data-root", help="folder of the data sets, for --gate (default: the run's)")
    args = flags.parse_args(argv)
    if args.gate:
        found = [behind_the_gate(folder, args.data_root) for folder in args.records]
        return print(common.markdown([["run", *found[0]], *(
            [folder.name, *(f"{value:.3g}" for value in one.values())] for folder, one in zip(args.records, found))]))
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
