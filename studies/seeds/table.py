"""What comes back with another seed: means over pairs of seeds, with a jackknife over seeds."""

import math
import re

from records import cell_of_pairs, jackknife_error, less, pairs_of, seeds_of, with_half

import numpy as np
import pandas as pd
from scipy import stats

DATA = {"built-in": "shapes", "MNIST-1D": "mnist1d", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
ROWS = {
    "SimCLR": "simclr",
    "NCL": "ncl",
    "BayesNCL": "bayesncl",
    "NCL + TopK": "ncl-topk",
    "LpJEPA": "lpjepa",
    "autoencoder, one h": "sae-one",
    "autoencoder, two h": "sae-two",
    "k-means, one h": "k-means-of-h-one",
    "k-means, two h": "k-means-of-h-two",
    "ICA, one h": "ica-one",
    "ICA, two h": "ica-two",
    "NMF, one h": "nmf-one",
    "NMF, two h": "nmf-two",
}
NON_NEGATIVE = "NCL", "BayesNCL", "NCL + TopK", "LpJEPA"
DIFFERENCES = *((name, "SimCLR") for name in NON_NEGATIVE), ("NCL", "k-means, two h")
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
    for name, row in ROWS.items():
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
        for one, other in DIFFERENCES:
            found = less(pairs_of(data, ROWS[one], key), pairs_of(data, ROWS[other], key))
            if found:
                line[f"{one} − {other}"] = cell_of_pairs(found, 3, True)
        lines.append(line | {"n": len(seeds_of(of_simclr))})
compared = pd.DataFrame(lines).fillna("–")

# ----------------------------------------------------- what dimensions that come back say of labels
LABELS = {"shapes": {"objects": "", "backgrounds": "background_"}}
lines = []
for label, data in DATA.items():
    for name in "SimCLR", *NON_NEGATIVE:
        row = ROWS[name]
        back = pairs_of(data, row, "back")
        if not back:
            continue
        line = {"": f"{label}: {name}", "r ≥ 0.9": cell_of_pairs(back, 2, False)}
        line["rotated"] = cell_of_pairs(pairs_of(data, row, "rotated_back"), 2, False)
        line["random images"] = cell_of_pairs(pairs_of(data, row, "images_in_z_back"), 2, False)
        for of, prefix in LABELS.get(data, {"classes": ""}).items():
            for heading, ending in {of: "", f"{of}, full lists": "_full"}.items():
                pairs = pairs_of(data, row, f"{prefix}lead_of_back{ending}")
                line[heading] = cell_of_pairs(pairs, 1, True)
        lines.append(line | {"n": len(seeds_of(back))})
trusted = pd.DataFrame(lines).fillna("–")


# --------------------------------------------------------- what makes axes differ (start.py's grid)
KINDS = "same weights", "same order", "neither"


def grid_of(row: str, key: str) -> dict[tuple, float]:
    """A number of every pair of start.py's trainings; a training is (seed of weights, of order)."""
    found = pairs_of("starts", row, key)
    return {tuple(tuple(map(int, re.findall(r"\d+", t))) for t in p): v for p, v in found.items()}


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
    grid = grid_of(ROWS[name], LESS_ROTATED)
    if len(grid) < 36:  # until every pair of the nine is there
        continue
    line = {"less rotated": f"built-in: {name}"}
    for kind in *KINDS, "same weights − neither", "same order − neither":
        mean = of_kind(grid, kind)
        line[kind] = with_half(mean, half_of_grid(grid, kind), 3, True)
    lines.append(line)
differs = pd.DataFrame(lines)
