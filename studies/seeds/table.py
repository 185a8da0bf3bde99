"""What comes back with another seed: means over pairs of seeds, with a jackknife over seeds."""

from records import cell_of_pairs, less, pairs_of, seeds_of

import numpy as np
import pandas as pd

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
OWN = "own_"  # before a number by each embedding's own rule
SHOWN = {  # heading: a number of a pair, digits, whether it is a difference
    "matched": ("matched", 2, False),
    "rotated": ("rotated_matched", 2, False),
    "random images": ("images_matched", 2, False),
    "matched less rotated": ("matched_less_rotated", 3, True),
    "above 0.7, less rotated": ("above_less_rotated", 2, True),
    "matched less rotated, own rule": (OWN + "matched_less_rotated", 3, True),
}


def by_what_differs(pairs: dict[tuple, float]) -> dict[str, dict[tuple, float]]:
    """Pairs of starts, by what is the same. What differs is the pair: of both, the two starts."""
    found = {"same weights": {}, "same order": {}, "neither": {}}
    for (one, two), value in pairs.items():
        weights = one.split("o")[0], two.split("o")[0]
        order = one.split("o")[1], two.split("o")[1]
        if weights[0] == weights[1]:
            found["same weights"].setdefault(order, []).append(value)
        elif order[0] == order[1]:
            found["same order"].setdefault(weights, []).append(value)
        else:
            found["neither"].setdefault(tuple(sorted(weights)), []).append(value)
    return {
        what: {pair: float(np.mean(values)) for pair, values in of_pairs.items()}
        for what, of_pairs in found.items()
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

# --------------------------------------------------------------- what was fixed before looking, and
# the same of the other rule and methods
RULES = {"the 10 % largest": "", "own rule": OWN}
lines = []
for label, data in DATA.items():
    for rule, prefix in RULES.items():
        key = prefix + "matched_less_rotated"
        of_simclr = pairs_of(data, "simclr", key)
        line = {"matched less rotated": f"{label}, {rule}"}
        for name, row in ROWS.items():
            if row in ("ncl", "bayesncl", "ncl-topk", "lpjepa"):
                line[f"{name} − SimCLR"] = cell_of_pairs(
                    less(pairs_of(data, row, key), of_simclr), 3, True
                )
        if set(line.values()) - {"–"} != {line["matched less rotated"]}:
            lines.append(line)
compared = pd.DataFrame(lines)

# ----------------------------------------------------- what dimensions that come back say of labels
LABELS = {"shapes": {"objects": "", "backgrounds": "background_"}}
lines = []
for label, data in DATA.items():
    for name, row in ROWS.items():
        back = pairs_of(data, row, "back")
        if not back or row not in ("ncl", "bayesncl", "ncl-topk", "lpjepa"):
            continue
        line = {"": f"{label}: {name}", "come back (r ≥ 0.9)": cell_of_pairs(back, 2, False)}
        for of, prefix in LABELS.get(data, {"classes": ""}).items():
            pairs = pairs_of(data, row, prefix + "lead_of_back")
            line[f"lead of these − others: {of}"] = cell_of_pairs(pairs, 1, True)
        lines.append(line)
trusted = pd.DataFrame(lines).fillna("–")
