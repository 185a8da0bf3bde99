"""The ladder: what dimensions lead by and cover; and NCL's dimensions at their own numbers."""

from records import cell, table, values

import pandas as pd

LADDER = "dictionaries/ladder"
OBJECTS = "built-in objects"
BACKGROUNDS = "built-in backgrounds"
TRAINED_HERE = {  # data: its name in the records, what its numbers begin with
    OBJECTS: ("shapes", ""),
    BACKGROUNDS: ("shapes", "background_"),
    "MNIST-1D": ("mnist1d", ""),
    "CIFAR-100, 200 epochs": ("cifar100-200", ""),
}
OF_OTHERS = {
    "EfficientNet on CIFAR-10": ("efficientnet-cifar10", ""),
    "MiniLM on nouns": ("minilm-nouns", ""),
}
RUNGS = {  # a rung: its name in the records
    "SimCLR's axes": "simclr",
    "axes of h": "h",
    "PCA of h": "pca",
    "ICA of h": "ica",
    "NMF of h": "nmf",
    "TopK autoencoder of h": "sae",
    "the same, 4 active": "sae-few",
    "the same, decoder random": "sae-frozen",
    "k-means of h": "k-means-of-h",
    "training images in h": "images-of-h",
    "k-means of z": "k-means-of-z",
    "training images in z": "images-of-z",
    "NCL's axes": "ncl",
    "BayesNCL's axes": "bayesncl",
}


def mean(data: str, prefix: str, rung: str, number: str, digits: int, sign="") -> str:
    """The mean over seeds of a rung's number; a dash where it is not on record."""
    try:
        found = values(f"{LADDER}-{data}-{rung}", prefix + number).mean()
    except KeyError:
        return "–"
    return f"{round(found, digits) + 0:{sign}.{digits}f}".replace("-", "−")


# ---------------------------------------------------------------- the comparisons that were planned
lines = []
for label, (data, prefix) in TRAINED_HERE.items():
    ncl = f"{LADDER}-{data}-ncl"
    beside_k_means = f"{ncl} − {LADDER}-{data}-k-means-of-z"
    over_images = values(ncl, f"{prefix}images_in_z_lead")
    line = {"": label, "NCL's axes over images in z": cell(over_images, 1, True)}
    beside_images = values(f"{ncl} − {LADDER}-{data}-images-of-z", f"{prefix}adjusted")
    line["less images in SimCLR's z"] = cell(beside_images, 1, True)
    for heading, number in ("adj.", "adjusted"), ("best F1", "best_f1"):
        found = values(beside_k_means, prefix + number)
        line[f"less k-means of SimCLR's z: {heading}"] = cell(found, 1, True)
    over_directions = values(ncl, f"{prefix}directions_of_z_lead")
    line["over directions of z"] = cell(over_directions, 1, True)
    line["n"] = len(over_images)
    lines.append(line)
compared = pd.DataFrame(lines)

# --------------------------------------------------------------------------------------- the ladder
lines, covered = [], []
for label, rung in RUNGS.items():
    line, coverage = {"": label}, {"": label}
    for name, (data, prefix) in (TRAINED_HERE | OF_OTHERS).items():
        adjusted = mean(data, prefix, rung, "adjusted", 1)
        lead = mean(data, prefix, rung, "images_in_h_lead", 1, "+")
        best_f1 = mean(data, prefix, rung, "best_f1", 1)
        classes = mean(data, prefix, rung, "classes", 0)
        line[name] = f"{adjusted} ({lead})" if adjusted != "–" else "–"
        coverage[name] = f"{best_f1} / {classes}" if adjusted != "–" else "–"
    lines.append(line)
    covered.append(coverage)
ladder, coverage = pd.DataFrame(lines), pd.DataFrame(covered)

# --------------------------------------------------------- NCL's dimensions, each at its own number
AT_OWN = {
    "Cons.": ("cons", 1),
    "chance": ("shuffled_cons", 1),
    "adj.": ("adjusted", 1),
    "over directions of h": ("directions_of_h_lead", 1),
    "over directions of z": ("adjusted - rotated_adjusted", 1),
}
OF_BACKGROUNDS = {
    "Cons.": ("background_cons", 1),
    "chance": ("shuffled_background_cons", 1),
    "adj.": ("background_adjusted", 1),
    "over directions of h": ("background_directions_of_h_lead", 1),
    "over directions of z": ("background_adjusted - rotated_background_adjusted", 1),
}
FAIR = "dictionaries/fair"
of_backgrounds = table({BACKGROUNDS: f"{FAIR}-shapes-ncl"}, list(AT_OWN), OF_BACKGROUNDS)
of_classes = table(
    {
        OBJECTS: f"{FAIR}-shapes-ncl",
        "CIFAR-10": f"{FAIR}-cifar10-ncl",
        "CIFAR-100": f"{FAIR}-cifar100-ncl",
        "CIFAR-100, 200 epochs, seed 1": "cifar100/cifar100-weights-ncl",
    },
    list(AT_OWN),
    AT_OWN,
)
own = pd.concat([of_classes[:1], of_backgrounds, of_classes[1:]])
