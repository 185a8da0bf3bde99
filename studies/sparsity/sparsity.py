"""Is sparsity better built in or added afterwards? Methods at equal numbers of active entries.

    python studies/run.py ncl sparsity                      trains what is not on record
    python studies/sparsity/sparsity.py runs/*-sparsity-* runs/shapes-{simclr,ncl}-seed[1-4]
                                                            measures runs
    python studies/sparsity/sparsity.py --draw FILE         draws what is on record

On record are seeds 1 to 4 on the built-in data set and, on CIFAR-10, the rows with 2, 8 and 32
entries.

SimCLR with a TopK autoencoder on its features (sae.py), NCL, NCL + TopK, BayesNCL and Rectified
LpJEPA, each brought to about 2, 4, 8, 16 and 32 active entries of an image by its own knob.
NCL's is its number of dimensions; the others have 256, "sae-narrow" as many as NCL. On CIFAR-10 τ
is 0.07, at which NCL with 256 dimensions has 33 (with 0.2: ten).

stability.json, in each run's folder, and "stability" in its record have
    stability          how well the dimensions are found again in runs of other seeds
    stability_chance   the same with the images of the other run in random order
    stability_seeds    how many seeds were compared
    mono_simclr        MonoScore by SimCLR's features, if SimCLR's runs are given too

Stability: the dimensions of two seeds are paired greedily, the pair with the largest cosine first.
The cosine is of their activations (|z|, rows of norm 1) on the test images. It is averaged over a
run's live dimensions, 0 for one that is left without a partner, and over the other seeds. The seeds
of an autoencoder have different backbones.
MonoScore is by one network for all methods: SimCLR's in its run of the next seed.
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "studies")]
import common  # noqa: E402
import interpret  # noqa: E402
import look  # noqa: E402

import records  # noqa: E402
from runs import progress, write_json  # noqa: E402

METHODS = {
    "sae": "SimCLR + SAE",
    "sae-narrow": "SimCLR + SAE, as wide as NCL",
    "ncl": "NCL",
    "ncl-topk": "NCL + TopK",
    "bayesncl": "BayesNCL",
    "lpjepa": "LpJEPA",
}
SHOWN = {  # numbers of a record, and the titles of their panels
    "lp1_embedding": "linear probe on z, %",
    "knn5_embedding": "5-NN on z, %",
    "cons": "Cons., %",
    "adjusted": "adjusted Cons., %",
    "mono_simclr": "MonoScore",
    "dead_dims": "dead dimensions, %",
    "stability": "stability (dotted: by chance)",
}
DATA_SETS = {"cifar10-cpu": "CIFAR-10, 10,000 images", "shapes": "built-in data set"}
LEVELS = (2, 4, 8, 16, 32)  # active entries of an image
ON_RECORD_AS = {  # rows that are runs with another name: question, run, the row's seeds
    "shapes-sparsity-ncl-32": ("ncl", "shapes-ncl", (1, 2, 3, 4)),
    "shapes-sparsity-sae-32": ("sparsity", "shapes-sparsity-sae-narrow-32", (1, 2, 3, 4)),
    "cifar10-cpu-sparsity-sae-narrow-32": ("sparsity", "cifar10-cpu-sparsity-sae-32", (1, 2, 3)),
}


# --------------------------------------------------------------------------------------- stability
def partners(a: Tensor, b: Tensor) -> Tensor:
    """Of each column of a (N, K) the cosine with its partner in b (N, L), (K,); 0 without one.

    The pair with the largest cosine first, then the next among the others (greedy assignment).
    a, b: embeddings of the same images.
    """
    cosines = F.normalize(a, dim=0).T @ F.normalize(b, dim=0)  # (K, L)
    found = torch.zeros(len(cosines))
    for _ in range(min(cosines.shape)):
        i, j = divmod(int(cosines.argmax()), cosines.shape[1])
        found[i] = cosines[i, j]
        cosines[i] = -2  # both are taken
        cosines[:, j] = -2
    return found


def live_dimensions(z: Tensor) -> Tensor:
    """|z/‖z‖| of embeddings z (N, K), without the columns that are active on no image."""
    e = F.normalize(z).abs()
    live = (e > common.ACTIVE).any(0)
    return e[:, live]


def found_again(a: Tensor, others: list[Tensor]) -> float:
    """The mean cosine of the columns of a (N, K) with their partners, over columns and others."""
    means = []
    for b in others:
        total = partners(a, b).sum().item()
        means.append(total / max(1, a.shape[1]))
    return float(np.mean(means))


def stability(seeds: list[Tensor]) -> list[dict[str, float]]:
    """What stability.json says of each of the embeddings (N, K) of two seeds or more.

    All are of the same images.
    """
    live = [live_dimensions(z) for z in seeds]
    order = torch.randperm(len(seeds[0]), generator=torch.Generator().manual_seed(0))
    found = []
    for i, own in enumerate(live):
        others = live[:i] + live[i + 1 :]
        numbers = {
            "stability": found_again(own, others),
            "stability_chance": found_again(own, [other[order] for other in others]),
            "stability_seeds": len(seeds),
        }
        found.append(numbers)
    return found


# ------------------------------------------------------------------------------------ measure runs
def by_row(folders: list[Path]) -> dict[str, list[Path]]:
    """Folders by their names without the seed."""
    rows = {}
    for folder in folders:
        name = re.sub(r"-seed\d+$", "", folder.resolve().name)
        if name not in rows:
            rows[name] = []
        rows[name].append(folder)
    return rows


def check(rows: dict[str, list[Path]]) -> None:
    """BadInput unless every row has runs of two seeds or more on the same test images."""
    for name, folders in rows.items():
        images = set()
        for folder in folders:
            config, arrays = look.read_run(folder)
            images.add((config["dataset"], len(arrays["z"])))
        if len(folders) < 2 or len(images) > 1:
            wanted = "stability takes two seeds or more on the same test images"
            raise common.BadInput(f"{name}: {wanted}")


def judges(rows: dict[str, list[Path]]) -> dict[str, dict[int, np.ndarray]]:
    """Data set → seed → the representation h (N, d) of SimCLR's run, where there is one."""
    found = {}
    for name, folders in rows.items():
        if not re.search("(^|^shapes-|-sparsity-)simclr$", name):
            continue
        for folder in folders:
            config, arrays = look.read_run(folder)
            dataset = config["dataset"]
            if dataset not in found:
                found[dataset] = {}
            found[dataset][config["seed"]] = arrays["h"].numpy()
    return found


def next_seed(seed: int, seeds) -> int:
    """The first of `seeds` after this one, or the first of all."""
    later = [other for other in seeds if other > seed]
    if later:
        return min(later)
    return min(seeds)


def keep(folder: Path, numbers: dict[str, float]) -> None:
    """Write stability.json into a run's folder and, where it is on record, into its record."""
    write_json(folder / "stability.json", numbers)
    records.add(folder, "stability", numbers)


def measure(folders: list[Path]) -> None:
    """Write stability.json of runs and print a table."""
    folders = [folder for folder in folders if not folder.is_file()]  # logs lie beside runs
    rows = by_row(folders)
    check(rows)  # before the minutes that the rest takes
    of_simclr = judges(rows)
    columns = ["stability", "stability_chance", "mono_simclr"]
    table = [["runs", "seeds", "stability", "by chance", "MonoScore"]]
    for name, runs in progress(rows.items(), "stability"):
        read = [look.read_run(folder) for folder in runs]
        found = stability([arrays["z"] for _, arrays in read])
        for folder, (config, arrays), numbers in zip(runs, read, found):
            of_data = of_simclr.get(config["dataset"])
            if of_data:
                h = of_data[next_seed(config["seed"], of_data)]
                activations = interpret.activate(interpret.unit(arrays["z"].numpy()), "nonzero")
                mono = interpret.mono_score(activations, interpret.unit_judge(h))
                numbers["mono_simclr"] = interpret.mean(mono)
            keep(folder, numbers)
        row = [name, str(len(runs))]
        for column in columns:
            values = [numbers.get(column) for numbers in found]
            mean = np.array(values, np.float64).mean()  # nan where a value is None
            row.append(f"{mean:.3f}")
        table.append(row)
    print(interpret.markdown(table))


# ------------------------------------------------------------------------------------ draw records
def records_of(row: str) -> list[dict]:
    """The numbers of the seeds of a row, such as shapes-sparsity-ncl-2, that are on record."""
    question, run, seeds = ON_RECORD_AS.get(row, ("sparsity", row, None))
    found = []
    for seed, record in records.of_seeds(records.file_of(question), run).items():
        if seeds is None or seed in seeds:
            found.append(records.numbers(record))
    return found


def points() -> dict[str, dict[str, list]]:
    """Data set → method → a point for each level: {number: its values, one of each seed}.

    Raises BadInput where a record lacks what this program measures.
    """
    found = {}
    for dataset in DATA_SETS:
        of_methods = {method: [] for method in METHODS}
        for method in METHODS:
            for level in LEVELS:
                row = f"{dataset}-sparsity-{method}-{level}"
                seeds = records_of(row)
                if seeds:
                    of_methods[method].append(point_of(row, seeds))
        if any(of_methods.values()):
            found[dataset] = of_methods
    if not found:
        raise common.BadInput(
            "no run of these methods is on record: python studies/run.py sparsity"
        )
    return found


def point_of(row: str, seeds: list[dict]) -> dict[str, list]:
    """What is drawn of a row: {number: its values, one of each seed}."""
    for numbers in seeds:
        if "mono_simclr" not in numbers:
            measure = "python studies/sparsity/sparsity.py runs/… measures its runs"
            raise common.BadInput(f"{row}: a record lacks its stability; {measure}")
    point = {}
    for key in ("entries", "stability_chance", *SHOWN):
        point[key] = [numbers[key] for numbers in seeds if key in numbers]
    return point


def means(of_method: list[dict], key: str) -> np.ndarray:
    """The mean over seeds of a number at each point."""
    return np.array([np.mean(point[key]) for point in of_method])


def spreads(of_method: list[dict], key: str) -> np.ndarray:
    """The standard deviation over seeds of a number at each point; 0 of two seeds or one."""
    spread = np.zeros(len(of_method))
    for i, point in enumerate(of_method):
        if len(point[key]) > 2:
            spread[i] = np.std(point[key], ddof=1)
    return spread


def draw_panel(panel, of_methods: dict[str, list[dict]], key: str) -> None:
    """A number over active entries of an image, a line a method, ± its standard deviation."""
    for number, (method, label) in enumerate(METHODS.items()):
        line = sorted(of_methods[method], key=mean_entries)
        colour = f"C{number}"
        style = ".--" if method == "sae-narrow" else ".-"
        x, mean, std = means(line, "entries"), means(line, key), spreads(line, key)
        panel.plot(x, mean, style, color=colour, label=label)
        panel.fill_between(x, mean - std, mean + std, color=colour, alpha=0.12)
        if key == "stability":
            panel.plot(x, means(line, "stability_chance"), ":", color=colour)
    panel.set(xscale="log", title=SHOWN[key], xticks=LEVELS, xticklabels=LEVELS)
    panel.minorticks_off()


def mean_entries(point: dict) -> float:
    return np.mean(point["entries"])


def draw(path: str) -> None:
    """SHOWN over active entries of an image: two rows of panels for each data set."""
    found = points()
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(f"--draw needs matplotlib ({error})") from error
    size = (12, 4.6 * len(found))
    figure, axes = plt.subplots(2 * len(found), 4, figsize=size, layout="constrained")
    for i, (dataset, of_methods) in enumerate(found.items()):
        *panels, last = axes[2 * i : 2 * i + 2].flatten()
        for panel, key in zip(panels, SHOWN):
            draw_panel(panel, of_methods, key)
        title = f"{DATA_SETS[dataset]}:\nover active entries per image"
        lines, labels = panels[0].get_legend_handles_labels()
        last.legend(lines, labels, title=title, loc="center", frameon=False)
        last.set_axis_off()
    figure.savefig(path, dpi=80)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="sparsity.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("runs", nargs="*", type=Path, help="folders of runs")
    flags.add_argument("--draw", metavar="FILE", help="measure nothing; draw what is on record")
    args = flags.parse_args(argv)
    if bool(args.draw) == bool(args.runs):
        flags.error("give folders of runs, which are measured, or --draw FILE")
    if args.draw:
        draw(args.draw)
    else:
        measure(args.runs)


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
