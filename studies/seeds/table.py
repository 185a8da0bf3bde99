"""What comes back with another seed: means over pairs of seeds, with a jackknife over seeds."""

import math
import re

from records import cell_of_pairs, jackknife_error, less, pairs_of, seeds_of, with_half

import numpy as np
import pandas as pd
from scipy import stats

DATA = {"built-in": "shapes", "MNIST-1D": "mnist1d", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
METHODS = {
    "SimCLR": "simclr",
    "NCL": "ncl",
    "BayesNCL": "bayesncl",
    "NCL + TopK": "ncl-topk",
    "LpJEPA": "lpjepa",
}
DICTIONARIES = {"autoencoder": "sae", "k-means": "k-means-of-h", "ICA": "ica", "NMF": "nmf"}
K_MEANS = "k-means-of-h-two"
LESS_ROTATED = "matched_less_rotated"
SHOWN = {  # heading: a number of a pair, digits, whether it is a difference
    "live": ("live", 0, False),
    "matched": ("matched", 2, False),
    "rotated": ("rotated_matched", 2, False),
    "random images": ("images_in_z_matched", 2, False),
    "less rotated": (LESS_ROTATED, 3, True),
    "less random images": ("matched_less_images_in_z", 3, True),
    "above 0.7, less rotated": ("above_less_rotated", 2, True),
}


# ------------------------------------------------------- what comes back, by data set and by method
lines = []
for label, data in DATA.items():
    for name, row in METHODS.items():
        pairs = pairs_of(data, row, "matched")
        if not pairs:
            continue
        line = {"": f"{label}: {name}"}
        for heading, (key, digits, is_difference) in SHOWN.items():
            line[heading] = cell_of_pairs(pairs_of(data, row, key), digits, is_difference)
        lines.append(line | {"n": len(seeds_of(pairs))})
returned = pd.DataFrame(lines)

# ------------------------------------------- what was fixed before looking, and the same of others
NUMBERS = {
    "less rotated": LESS_ROTATED,
    "less rotated, own rule": f"own_{LESS_ROTATED}",
    "less random images": "matched_less_images_in_z",
}
lines = []
for label, data in DATA.items():
    for name, key in NUMBERS.items():
        of_simclr = pairs_of(data, "simclr", key)
        if not of_simclr:
            continue
        line = {"": f"{label}: {name}", "SimCLR": cell_of_pairs(of_simclr, 3, True)}
        for method in [*METHODS][1:]:
            found = less(pairs_of(data, METHODS[method], key), of_simclr)
            if found:
                line[f"{method} − SimCLR"] = cell_of_pairs(found, 3, True)
        found = less(pairs_of(data, "ncl", key), pairs_of(data, K_MEANS, key))
        line["NCL − k-means"] = cell_of_pairs(found, 3, True)
        lines.append(line | {"n": len(seeds_of(of_simclr))})
compared = pd.DataFrame(lines).fillna("–")

# --------------------------------- dictionaries of SimCLR's features, of one training and of two
lines = []
for name, row in DICTIONARIES.items():
    line = {"less rotated": name}
    for label, data in DATA.items():
        for heading, ending in {"one h": "-one", "two h": "-two"}.items():
            pairs = pairs_of(data, row + ending, LESS_ROTATED)
            if pairs:
                n = len(seeds_of(pairs))
                line[f"{label}, {heading} (n = {n})"] = cell_of_pairs(pairs, 3, True)
    lines.append(line)
fitted = pd.DataFrame(lines).fillna("–")

# ----------------------------------------------------- what dimensions that come back say of labels
LABELS = {"shapes": {"objects": "", "backgrounds": "background_"}}
lines = []
for label, data in DATA.items():
    for of, prefix in LABELS.get(data, {"classes": ""}).items():
        for name, row in METHODS.items():
            back = pairs_of(data, row, "back")
            lead = pairs_of(data, row, f"{prefix}lead_of_back")
            if not lead:
                continue
            line = {"": f"{label}, {of}: {name}", "r ≥ 0.9": cell_of_pairs(back, 2, False)}
            for control, key in {"rotated": "rotated", "random images": "images_in_z"}.items():
                line[control] = cell_of_pairs(pairs_of(data, row, f"{key}_back"), 2, False)
            line["lead"] = cell_of_pairs(lead, 1, True)
            full = pairs_of(data, row, f"{prefix}lead_of_back_full")
            line["full lists"] = cell_of_pairs(full, 1, True)
            line["of pairs"] = f"{len(lead)} of {len(back)}"  # in the others none comes back
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
    grid = grid_of(METHODS[name], LESS_ROTATED)
    if len(grid) < 36:  # until every pair of the nine is there
        continue
    line = {"less rotated": f"built-in: {name}"}
    for kind in *KINDS, "same weights − neither", "same order − neither":
        mean = of_kind(grid, kind)
        line[kind] = with_half(mean, half_of_grid(grid, kind), 3, True)
    lines.append(line | {"n": "3 × 3"})  # seeds of weights and of order
differs = pd.DataFrame(lines)
