"""What comes back with another seed: means over pairs of seeds, with a jackknife over seeds."""

import math
import re

from records import OF_SEEDS, cell_of_pairs, jackknife_error, pairs_of, seeds_of, with_half

import numpy as np
import pandas as pd
from scipy import stats

METHODS = {
    "SimCLR": "simclr",
    "NCL": "ncl",
    "BayesNCL": "bayesncl",
    "NCL + TopK": "ncl-topk",
    "LpJEPA": "lpjepa",
}
OTHERS = {  # what a reader would take instead: axes of features h, and dictionaries of SimCLR's h
    "axes of SimCLR's h": {"two h": "simclr-h"},
    "axes of NCL's h": {"two h": "ncl-h"},
    "the same training images in h": {"two h": "images-of-h"},
    "k-means": {"one h": "k-means-of-h-one", "two h": "k-means-of-h-two"},
    "autoencoder": {"one h": "sae-one", "two h": "sae-two"},
    "NMF": {"two h": "nmf-two"},  # of one h it starts at the same decomposition
    "ICA": {"one h": "ica-one", "two h": "ica-two"},
}
SHOWN = {  # heading: a number of a pair, digits, whether it is a difference
    "live": ("live", 0, False),
    "matched": ("matched", 2, False),
    "arbitrary axes": ("arbitrary_matched", 2, False),
    "the same images": ("same_images_matched", 2, False),
    "less arbitrary axes": ("matched_less_arbitrary", 3, True),
    "less the same images": ("matched_less_same_images", 3, True),
}


# ------------------------------------------------------- what comes back, by data set and by method
lines = []
FIRST = {"NCL, first machine": "ncl-first"}  # fp32; the others are of one with bf16
for label, data in OF_SEEDS.items():
    for name, row in (METHODS | FIRST).items():
        pairs = pairs_of(data, row, "matched")
        if not pairs:
            continue
        line = {"": f"{label}: {name}"}
        for heading, (key, digits, is_difference) in SHOWN.items():
            line[heading] = cell_of_pairs(pairs_of(data, row, key), digits, is_difference)
        # As many training images as NCL has live dimensions, in the h of SimCLR of the same seeds.
        beside = pairs_of(data, "images-of-h", "matched") if row == "ncl" else {}
        less = {pair: pairs[pair] - by_image for pair, by_image in beside.items()}
        line["less images in SimCLR's h"] = cell_of_pairs(less, 3, True)
        lines.append(line | {"n": len(seeds_of(pairs))})
returned = pd.DataFrame(lines)

# ---------------------------- axes of features, and dictionaries of those of one training or of two
others = pd.DataFrame({"matched": [*OTHERS]})
for label, data in OF_SEEDS.items():
    for heading in "one h", "two h":
        found = {
            name: pairs_of(data, rows.get(heading), "matched") for name, rows in OTHERS.items()
        }
        sizes = {len(seeds_of(pairs)) for pairs in found.values()} - {0}
        if sizes:
            assert len(sizes) == 1, sizes
            cells = [cell_of_pairs(pairs, 2, False) for pairs in found.values()]
            others[f"{label}, {heading} (n = {max(sizes)})"] = cells

# ------------------------------------------------- the same by each embedding's own rule
NUMBERS = {
    "less arbitrary axes": "own_matched_less_arbitrary",
    "less the same images": "own_matched_less_same_images",
}
lines = []
for label, data in OF_SEEDS.items():
    for name, key in NUMBERS.items():
        line = {"": f"{label}: {name}"}
        for method, row in METHODS.items():
            if found := pairs_of(data, row, key):
                line[method] = f"{cell_of_pairs(found, 3, True)} (n = {len(seeds_of(found))})"
        if len(line) > 1:
            lines.append(line)
by_own_rule = pd.DataFrame(lines).reindex(columns=["", *METHODS])
by_own_rule = by_own_rule.dropna(axis="columns", how="all").fillna("–")

# ----------------------------------------------------- what dimensions that come back say of labels
LABELS = {"shapes": {"objects": "", "backgrounds": "background_"}}
lines = []
for label, data in OF_SEEDS.items():
    for of, prefix in LABELS.get(data, {"classes": ""}).items():
        for name, row in METHODS.items():
            back = pairs_of(data, row, "back")
            lead = pairs_of(data, row, f"{prefix}lead_of_back")
            if not lead:
                continue
            line = {"": f"{label}, {of}: {name}", "r ≥ 0.9": cell_of_pairs(back, 2, False)}
            by_chance = pairs_of(data, row, "same_images_back")
            line["the same images"] = cell_of_pairs(by_chance, 2, False)
            full = pairs_of(data, row, f"{prefix}lead_of_back_full")
            for heading, found in {"lead": lead, "lead, longest lists": full}.items():
                # In other pairs none comes back. Where these are most, the rest would mislead.
                few = 2 * len(found) < len(back)
                line[heading] = "–" if few else cell_of_pairs(found, 1, True)
            lines.append(line | {"n": len(seeds_of(back))})
trusted = pd.DataFrame(lines)


# --------------------------------------------------------- what makes axes differ (start.py's grid)
KINDS = "same weights", "same order", "neither"


def training_of(key: str) -> tuple:
    """w1o2, as match.py records it, → (1, 2): the seeds of weights and of order."""
    return tuple(map(int, re.findall(r"\d+", key)))


def grid_of(row: str, key: str) -> dict[tuple, float]:
    """A number of every pair of start.py's trainings."""
    found = pairs_of("starts", row, key)
    return {(training_of(one), training_of(two)): value for (one, two), value in found.items()}


def kind_of(pair: tuple) -> str:
    (weights, order), (other_weights, other_order) = pair
    if weights == other_weights:
        return "same weights"
    return "same order" if order == other_order else "neither"


def of_kind(grid: dict[tuple, float], kind: str) -> float:
    """The mean of the pairs of a kind; of "A − B" a difference."""
    means = [np.mean([v for p, v in grid.items() if kind_of(p) == k]) for k in kind.split(" − ")]
    return means[0] if len(means) == 1 else means[0] - means[1]


def half_of_grid(grid: dict[tuple, float], kind: str) -> float:
    """Half the 95 % interval of of_kind(): it adds two jackknives, over weights and over order.

    What depends on both seeds counts twice, so that the interval errs on the wide side.
    """
    squares = []
    seeds = {seed for pair in grid for seed, _ in pair}  # as many of order
    for part in range(2):
        without = []
        for seed in seeds:
            rest = {pair: v for pair, v in grid.items() if seed not in [t[part] for t in pair]}
            without.append(of_kind(rest, kind))
        squares.append(jackknife_error(without) ** 2)
    return stats.t.ppf(0.975, len(seeds) - 1).item() * math.sqrt(sum(squares))


lines = []
for name in "SimCLR", "NCL":
    grid = grid_of(METHODS[name], "matched")
    if len(grid) < 36:  # until every pair of the nine is there
        continue
    line = {"matched": f"built-in: {name}"}
    for kind in *KINDS, "same weights − neither", "same order − neither":
        mean = of_kind(grid, kind)
        line[kind] = with_half(mean, half_of_grid(grid, kind), 3, "−" in kind)
    lines.append(line | {"n": "3 × 3"})  # seeds of weights and of order
differs = pd.DataFrame(lines)
