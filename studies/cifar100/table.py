"""BayesNCL less NCL along the papers' 200 epochs, and where each method ends."""

from records import BAYESNCL_ON_CIFAR_100, COLUMNS, by_seed, cell, table

import pandas as pd

LONG = "cifar100/cifar100-long-"
HEADINGS = ["LP@1", "LP@1 of z", "Cons.", "Cons. less shuffled", "adj.", "live", "below 0.1 %"]


def difference(ending: str) -> str:
    """The two runs of 200 epochs, at the length that their names end in."""
    return f"{LONG}bayesncl{ending} − {LONG}ncl{ending}"


differences = table(
    {
        "BayesNCL − NCL, after 20 of 200": difference("-after-20"),
        "after 50": difference("-after-50"),
        "after 100": difference("-after-100"),
        "after 200": difference(""),
    },
    HEADINGS,
)

repeated = {"": "BayesNCL − NCL, 20 epochs in all, mean of four trainings"}
for heading in HEADINGS:
    formula, digits = COLUMNS[heading]
    without = 1 if "shuffled" in heading else 0
    of_seeds = by_seed(BAYESNCL_ON_CIFAR_100[without:], formula)
    repeated[heading] = cell(of_seeds, digits, True)
repeated["n"] = len(of_seeds)

paper = {"": "the paper's, ResNet-18, after 200", "LP@1": "+0.02", "Cons.": "+12.11", "n": "–"}
methods = table(
    {
        "NCL after 20 of 200": f"{LONG}ncl-after-20",
        "NCL after 200": f"{LONG}ncl",
        "BayesNCL after 200": f"{LONG}bayesncl",
    },
    HEADINGS,
)
# The control of a dense embedding is of other dimensions, of halves on 1 % of the images.
dense = table(
    {"SimCLR after 200, seed 1": "cifar100/cifar100-weights-simclr"},
    [heading for heading in HEADINGS if heading != "Cons. less shuffled"],
)

first, last = pd.DataFrame([repeated]), pd.DataFrame([paper])
lengths = pd.concat([first, differences, last, methods, dense]).fillna("–")
lengths = lengths.rename(columns={"": "CIFAR-100, papers' recipe"})
