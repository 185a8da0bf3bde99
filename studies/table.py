"""The race of README.md, and the table of ../weights."""

from records import cell, table, values

LADDER = "dictionaries/ladder"
ON_1 = {  # each dimension on the 1 % of the test images where it is largest
    "adj.": ("adjusted", 1),
    "best F1": ("best_f1", 1),
    "classes": ("classes", 0),
    "over directions of h": ("directions_of_h_lead", 1),
    "over directions of z": ("directions_of_z_lead", 1),
    "over images in h": ("images_in_h_lead", 1),
    "over images in z": ("images_in_z_lead", 1),
}
OF_SHAPES, OF_CIFAR_100 = f"{LADDER}-shapes", f"{LADDER}-cifar100-200"

race = table(
    {
        "built-in objects: axes of SimCLR's z": f"{OF_SHAPES}-simclr",
        "k-means of SimCLR's z": f"{OF_SHAPES}-k-means-of-z",
        "`python ncl.py`": f"{OF_SHAPES}-ncl",
        "CIFAR-100, 200 epochs: axes of SimCLR's z": f"{OF_CIFAR_100}-simclr",
        "k-means of SimCLR's z ": f"{OF_CIFAR_100}-k-means-of-z",
        "NCL": f"{OF_CIFAR_100}-ncl",
        "BayesNCL": f"{OF_CIFAR_100}-bayesncl",
    },
    ["adj.", "best F1", "classes", "over images in z"],
    ON_1,
)
weights = table(
    {
        "SimCLR": f"{OF_CIFAR_100}-simclr",
        "k-means of SimCLR's z": f"{OF_CIFAR_100}-k-means-of-z",
        "NCL": f"{OF_CIFAR_100}-ncl",
        "BayesNCL": f"{OF_CIFAR_100}-bayesncl",
    },
    list(ON_1),
    ON_1,
)


def show_lists_of_z(shown, label: str, data: str) -> None:
    """In the row of k-means, leads over lists of SimCLR's z, not over lists of its own codes."""
    for heading in shown.columns.intersection(["over directions of z", "over images in z"]):
        lead, digits = ON_1[heading]
        of_lists = values(f"{data}-simclr", f"adjusted - {lead}")
        more = values(f"{data}-k-means-of-z", "adjusted") - of_lists
        shown.loc[shown[""] == label, heading] = cell(more, digits, True)


show_lists_of_z(race, "k-means of SimCLR's z", OF_SHAPES)
show_lists_of_z(race, "k-means of SimCLR's z ", OF_CIFAR_100)
show_lists_of_z(weights, "k-means of SimCLR's z", OF_CIFAR_100)
