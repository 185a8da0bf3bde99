"""Dimensions beside chance and random directions; sparsity trained in, or added afterwards."""

from records import table

import pandas as pd

FAIR = "dictionaries/fair"
SPARSITY = "dictionaries/cifar10-cpu-sparsity"
MONO = "dictionaries/monoloss"

COLUMNS = {
    "Cons.": ("cons", 1),
    "chance": ("shuffled_cons", 1),
    "adj.": ("adjusted", 1),
    "adj. less random directions": ("directions_of_h_lead", 1),
    "less those of z": ("adjusted - rotated_adjusted", 1),
}
OF_BACKGROUNDS = {
    "Cons.": ("background_cons", 1),
    "chance": ("shuffled_background_cons", 1),
    "adj.": ("background_adjusted", 1),
    "adj. less random directions": ("background_directions_of_h_lead", 1),
    "less those of z": ("background_adjusted - rotated_background_adjusted", 1),
}

backgrounds = table(
    {"NCL: built-in backgrounds": f"{FAIR}-shapes-ncl"},
    list(OF_BACKGROUNDS),
    OF_BACKGROUNDS,
)
classes = table(
    {
        "NCL: built-in objects": f"{FAIR}-shapes-ncl",
        "NCL: CIFAR-10": f"{FAIR}-cifar10-ncl",
        "NCL: CIFAR-100": f"{FAIR}-cifar100-ncl",
        "NCL: CIFAR-100, 200 epochs, seed 1": "cifar100/cifar100-weights-ncl",
        "BayesNCL − NCL: CIFAR-100": f"{FAIR}-cifar100-bayesncl − {FAIR}-cifar100-ncl",
        "autoencoder: built-in objects": f"{FAIR}-shapes-sae",
        "autoencoder: CIFAR-100": f"{FAIR}-cifar100-sae",
        "decoder trained − random: built-in objects": (
            f"{FAIR}-shapes-sae − {FAIR}-shapes-sae-frozen"
        ),
        "decoder trained − random: CIFAR-100": f"{FAIR}-cifar100-sae − {FAIR}-cifar100-sae-frozen",
    },
    list(COLUMNS),
    COLUMNS,
)
controls = pd.concat([backgrounds, classes])

beside_ncl = table(
    {
        "autoencoder − NCL (16 dimensions), 8 active: CIFAR-10": (
            f"{SPARSITY}-sae-8 − {SPARSITY}-ncl-8"
        ),
        "autoencoder − NCL (256), 32 active: CIFAR-10": f"{SPARSITY}-sae-32 − {SPARSITY}-ncl-32",
        "autoencoder − NCL (256), 32 active: built-in data": (
            "dictionaries/shapes-sparsity-sae-narrow-32 − ncl/shapes-ncl"
        ),
    },
    ["LP@1 of z", "Cons.", "adj."],
)
monoloss = table(
    {
        "with − without MonoLoss: built-in data": f"{MONO}-shapes-1 − {MONO}-shapes-0",
        "with − without MonoLoss: CIFAR-100": f"{MONO}-cifar100-1 − {MONO}-cifar100-0",
        "the same, weight 10 instead of 1": f"{MONO}-cifar100-10 − {MONO}-cifar100-0",
    },
    ["LP@1 of z", "Cons.", "chance", "adj."],
    COLUMNS,
)
afterwards = pd.concat([monoloss, beside_ncl]).fillna("not measured")
