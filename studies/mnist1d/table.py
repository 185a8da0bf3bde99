"""The published run beside ours, and the paired differences of the methods."""

from records import cell, values

import pandas as pd
from scipy import stats

# A number of the records, the published one, digits behind the point.
PUBLISHED = {
    "training loss": ("loss", 2.88, 2),
    "10-NN of z, %": ("knn10_embedding", 74.1, 1),
    "linear classifier of the signals, %": ("layer_0", 32.8, 1),
    "of layer 1": ("layer_1", 75.1, 1),
    "of layer 2": ("layer_2", 80.9, 1),
    "of h": ("layer_3", 82.1, 1),
    "of layer 4": ("layer_4", 76.1, 1),
    "of z": ("layer_5", 75.0, 1),
}
lines = []
for label, (key, published, digits) in PUBLISHED.items():
    ours = values("mnist1d/mnist1d-published", key).round(digits)
    below = f"{(ours < published).sum()} of {len(ours)}"
    spread = f"{ours.min():.{digits}f} to {ours.max():.{digits}f}"
    lines.append([label, f"{published}", f"{ours.mean():.{digits}f}", spread, below])
reproduced = pd.DataFrame(lines, columns=["", "published", "ours, mean", "range", "ours below"])

MEASURES = {  # of NCL and BayesNCL a dimension is active where it is not 0
    "probe of h": "lp1",
    "probe of z": "lp1_embedding",
    "10-NN of h": "knn10",
    "10-NN of z": "knn10_embedding",
    "live dimensions": "live_dims",
    "Cons.": "cons",
    "adj.": "adjusted",
    "Cons. less shuffled": "cons - shuffled_cons",
    "adj. less random directions": "directions_of_h_lead",
    "AP": "ap",
}
ON_1 = {  # beside SimCLR, whose z is never 0, on its strongest 1 %
    "Cons.": "top_cons",
    "adj.": "top_adjusted",
    "Cons. less shuffled": "top_cons - top_shuffled_cons",
    "adj. less random directions": "top_directions_of_h_lead",
    "AP": "top_ap",
}


def seen(differences: pd.Series) -> str:
    """The smallest difference that so many pairs see with 80 % power, by Student's t."""
    n = len(differences)
    t = stats.t.ppf([0.975, 0.8], n - 1).sum()
    return f"{t * differences.std() / n**0.5:.1f}"


FAILED = 60  # a seed whose probe of h is below it, of either method


def without_failed(differences: pd.Series, methods: tuple[str, str]) -> pd.Series:
    """The differences of the seeds that failed in neither method."""
    for method in methods:
        probes = values(f"mnist1d/mnist1d-{method}", "lp1")
        differences = differences[probes.reindex(differences.index) >= FAILED]
    return differences


lines = []
for label, formula in MEASURES.items():
    of_ncl = values("mnist1d/mnist1d-ncl", formula)
    beside_simclr = values("mnist1d/mnist1d-ncl − mnist1d/mnist1d-simclr", ON_1.get(label, formula))
    of_gate = values("mnist1d/mnist1d-bayesncl − mnist1d/mnist1d-ncl", formula)
    line = [label, cell(of_ncl, 1, label.startswith("adj. less"))]
    for differences in beside_simclr, of_gate:
        line += [cell(differences, 1, True), seen(differences)]
    lines.append([*line, len(of_gate)])
for label in "probe of h", "probe of z":
    formula = MEASURES[label]
    line = [f"{label}, without failed seeds", "–"]
    sizes = []
    for pair in ("ncl", "simclr"), ("bayesncl", "ncl"):
        differences = values(" − ".join(f"mnist1d/mnist1d-{name}" for name in pair), formula)
        differences = without_failed(differences, pair)
        line += [cell(differences, 1, True), seen(differences)]
        sizes.append(len(differences))
    lines.append([*line, " and ".join(map(str, sizes))])
head = ["", "NCL", "NCL − SimCLR", "80 %", "BayesNCL − NCL", "80 %", "n"]
compared = pd.DataFrame(lines, columns=head)
