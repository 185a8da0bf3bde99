"""Is sparsity better built in or added afterwards? Methods at equal numbers of active entries per image.

    python tools/study.py shapes-sparsity                the runs, five seeds: two hours on two cores
    python tools/study.py cifar10-cpu-sparsity           three seeds: four hours
    python tools/sparsity.py runs/shapes-sparsity-*      stability over seeds, stability.json in each folder
    python tools/sparsity.py results/*-sparsity-* --draw assets/sparsity.png     each metric over active entries

SimCLR with a TopK autoencoder on its features (sae.py), NCL, NCL + TopK, BayesNCL and Rectified LpJEPA, each brought
to about 2, 4, 8, 16 and 32 active entries by its own knob, KNOBS. NCL's is its number of dimensions; the others have
256, "sae-narrow" as many as NCL. On CIFAR-10 τ is 0.07, at which NCL with 256 dimensions has 32 (with 0.2: nine).

Stability: of each dimension that is live in one run, the cosine of its activations (of normalised embeddings, absolute)
on the test images with those of its partner in a run of another seed, where the pair with the largest cosine is made
first; mean over dimensions (0: no partner is left, as where a run has more live ones) and over the other seeds. By
chance: the same with the images of the other run in random order. An autoencoder's seeds are of different backbones.
MonoScore is by one network for all: that of SimCLR's run of the next seed, if SimCLR's runs are given too.
"""
import argparse
import json
import re
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import report
from report import common

import interpret
import look

LEVELS = (2, 4, 8, 16, 32)  # active entries per image
WIDTHS = {"shapes": (16, 32, 64, 128, 256), "cifar10-cpu": (4, 8, 16, 64, 256)}  # dimensions of NCL that have as many
METHODS = {"sae": "SimCLR + SAE", "sae-narrow": "SimCLR + SAE, as wide as NCL", "ncl": "NCL", "ncl-topk": "NCL + TopK",
           "bayesncl": "BayesNCL", "lpjepa": "LpJEPA"}
PROGRAMS = dict.fromkeys(["sae", "sae-narrow"], "sae.py runs/{study}-simclr-seed{seed}") | {
    "ncl": "ncl.py", "ncl-topk": "ncl.py", "bayesncl": "bayesncl.py", "lpjepa": "lpjepa.py"}
KNOBS = {data: {  # data: method: what sets the number of its active entries, by LEVELS
    "sae": [f"--units 256 --topk {k}" for k in LEVELS], "ncl": [f"--head-out {K}" for K in widths],
    "sae-narrow": [f"--units {K} --topk {k}" for K, k in zip(widths, LEVELS)],
} for data, widths in WIDTHS.items()}
KNOBS["shapes"] |= {
    "ncl-topk": [f"--topk {k}" for k in (3, 7, 20, 80, 200)],
    "bayesncl": [f"--prior {rho} --kl-weight {weight}" for rho, weight in (
        (0.3, 1e-3), (0.3, 3e-4), (0.4, 3e-4), (0.5, 3e-4), (0.95, 3e-2))],
    "lpjepa": [f"--mu {mu}" for mu in (-2.5, -1.9, -1.5, -1.15, -0.5)]}
KNOBS["cifar10-cpu"] |= {
    "ncl-topk": [f"--topk {k}" for k in LEVELS],
    "bayesncl": [f"--prior {rho} --kl-weight {weight}" for rho, weight in (
        (0.2, 1e-3), (0.3, 1e-3), (0.3, 3e-4), (0.4, 3e-4), (0.95, 3e-2))],
    "lpjepa": [f"--mu {mu}" for mu in (-3.7, -3.1, -2.4, -1.8, -1.3)]}
SHOWN = {"lp1_embedding": "linear probe on z, %", "knn5_embedding": "5-NN on z, %", "cons": "Cons., %",
         "adjusted": "adjusted Cons., %", "mono_simclr": "MonoScore", "dead_dims": "dead dimensions, %",
         "stability": "stability (dotted: by chance)"}


def by_rows(of_method: dict[str, str | list[str]]) -> dict[str, str]:
    """{method: flags, or flags by LEVELS} → {"<method>-<level>": flags}, level by level."""
    return {f"{method}-{level}": text if isinstance(text, str) else text[i]
            for i, level in enumerate(LEVELS) for method, text in of_method.items()}


def study(data: str, flags: str, seeds: list[int], contrastive: str = "") -> tuple[str, dict, dict]:
    """What study.py's STUDIES says of a study: flags of all runs, row → seeds, row → its own flags. `flags` go to all
    rows but autoencoders, which have the settings of SimCLR's run, `contrastive` to those with NT-Xent."""
    of = {method: "" if "sae" in method else f"{flags} " if method == "lpjepa" else f"{flags} {contrastive} "
          for method in KNOBS[data]}
    own = {"simclr": f"{flags} {contrastive}"} | by_rows(
        {method: [of[method] + knob for knob in knobs] for method, knobs in KNOBS[data].items()})
    return "", dict.fromkeys(own, seeds), own


def partners(a: Tensor, b: Tensor) -> Tensor:
    """Of embeddings a (N, K), b (N, L) of the same images: cosine of each column of a with its partner in b, (K,), 0 if
    none is left. The pair with the largest cosine first, then the next among the others (greedy assignment)."""
    cosines = F.normalize(a, dim=0).T @ F.normalize(b, dim=0)  # (K, L)
    found = torch.zeros(len(cosines))
    for _ in range(min(cosines.shape)):
        i, j = divmod(int(cosines.argmax()), cosines.shape[1])
        found[i] = cosines[i, j]
        cosines[i], cosines[:, j] = -2, -2
    return found


def stability(seeds: list[Tensor]) -> list[dict[str, float]]:
    """For each of the embeddings (N, K) of two seeds or more on the same images, what stability.json says."""
    live = [F.normalize(e).abs() for e in seeds]
    live = [e[:, (e > common.ACTIVE).any(0)] for e in live]
    order = torch.randperm(len(seeds[0]), generator=torch.Generator().manual_seed(0))
    found = []
    for e in live:
        others = [other for other in live if other is not e]
        means = {key: float(np.mean([partners(e, other[rows]).sum().item() / max(1, e.shape[1]) for other in others]))
                 for key, rows in (("stability", slice(None)), ("stability_chance", order))}
        found.append(means | {"stability_seeds": len(seeds)})
    return found


def by_row(folders: list[Path]) -> dict[str, list[Path]]:
    """Folders by their names without the seed."""
    found = {}
    for folder in folders:
        found.setdefault(re.sub(r"-seed\d+$", "", folder.resolve().name), []).append(folder)
    return found


def measure(folders: list[Path]) -> None:
    """Write stability.json of runs, and where a run is on record, there too; print a table."""
    table = [["runs", "seeds", "stability", "by chance", "MonoScore"]]
    rows = by_row([folder for folder in folders if not folder.is_file()])  # logs lie beside runs
    of_simclr = [folder for name in rows if re.search("(^|-sparsity-)simclr$", name) for folder in rows[name]]
    judges = {(config["dataset"], config["seed"]): arrays["h"] for config, arrays in map(look.read_run, of_simclr)}
    for name, runs in rows.items():
        read = [look.read_run(folder) for folder in runs]
        if len(runs) < 2 or len({(config["dataset"], len(arrays["z"])) for config, arrays in read}) > 1:
            raise common.BadInput(f"{name}: stability takes two seeds or more on the same test images")
        found = stability([arrays["z"] for _, arrays in read])
        for numbers, folder, (config, arrays) in zip(found, runs, read):
            if of := sorted(seed for dataset, seed in judges if dataset == config["dataset"]):
                judge = next((seed for seed in of if seed > config["seed"]), of[0])
                features = interpret.unit_judge(judges[config["dataset"], judge].numpy())
                mono = interpret.mono_score(interpret.nonzero(arrays["z"].numpy()), features)
                numbers["mono_simclr"] = interpret.mean(mono)
            for place in {folder, report.RESULTS / folder.resolve().name}:
                if place.exists():
                    with common.replacing(place / "stability.json") as file:
                        file.write(json.dumps(numbers).encode() + b"\n")
        means = [np.mean([numbers.get(key, np.nan) for numbers in found])
                 for key in ("stability", "stability_chance", "mono_simclr")]
        table.append([name, str(len(runs)), *(f"{mean:.3f}" for mean in means)])
    print(common.markdown(table))


def draw(folders: list[Path], path: str) -> None:
    """SHOWN over active entries per image: two rows of panels a data set, a line a method: the mean of its seeds, of
    three or more ± std."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(f"--draw needs matplotlib ({error})")
    found = {}  # data set → method → a {metric: its values, one a seed} for each level
    for name, runs in by_row(folders).items():
        kind = re.fullmatch(r"(.*)-sparsity-(.*)-\d+", name)
        if kind and kind[2] in METHODS:
            records = [report.record(folder) for folder in runs]
            if not all("mono_simclr" in record and "entries" in record for record in records):
                raise common.BadInput(f"{name}: a record lacks dimensions.csv, or what this program measures of runs")
            found.setdefault(kind[1], {}).setdefault(kind[2], []).append(
                {key: [r[key] for r in records if key in r] for key in ("entries", "stability_chance", *SHOWN)})
    if not found:
        raise common.BadInput("none of these folders is a record of a study of sparsity")
    figure, axes = plt.subplots(2 * len(found), 4, figsize=(12, 4.6 * len(found)), layout="constrained")
    for i, (dataset, methods) in enumerate(found.items()):
        *panels, last = axes[2 * i : 2 * i + 2].flatten()
        for panel, (key, title) in zip(panels, SHOWN.items()):
            for colour, method in enumerate(METHODS):
                points = sorted(methods.get(method, []), key=lambda point: np.mean(point["entries"]))
                x = [np.mean(point["entries"]) for point in points]
                mean = np.array([np.mean(point[key]) for point in points])
                std = np.array([np.std(point[key], ddof=1) if len(point[key]) > 2 else 0 for point in points])
                style = ".--" if method == "sae-narrow" else ".-"
                panel.plot(x, mean, style, color=f"C{colour}", label=METHODS[method])
                panel.fill_between(x, mean - std, mean + std, color=f"C{colour}", alpha=0.12)
                if key == "stability":
                    panel.plot(x, [np.mean(point["stability_chance"]) for point in points], ":", color=f"C{colour}")
            panel.set(xscale="log", title=title, xticks=LEVELS, xticklabels=LEVELS)
            panel.minorticks_off()
        title = {"shapes": "built-in data set", "cifar10-cpu": "CIFAR-10, 10,000 images"}.get(dataset, dataset)
        last.legend(*panels[0].get_legend_handles_labels(), title=f"{title}:\nover active entries per image",
                    loc="center", frameon=False)
        last.set_axis_off()
    figure.savefig(path, dpi=80)


def main(argv=None):
    flags = argparse.ArgumentParser(prog="sparsity.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs, or with --draw of records")
    flags.add_argument("--draw", metavar="FILE", help="measure nothing; draw what these folders hold")
    args = flags.parse_args(argv)
    draw(args.runs, args.draw) if args.draw else measure(args.runs)


if __name__ == "__main__":
    common.launch(main)
