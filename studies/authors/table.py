"""Ours less theirs with verdicts, both means, the gate's changes, the steps, the landscape."""

import math

import records
import sparse_coding
from records import cell, values, welch, with_half

import pandas as pd

METHODS = {"SimCLR": "simclr", "NCL": "ncl", "BayesNCL": "bayesncl"}
PROGRAMS = "ours", "theirs"
MEASURES = {  # a number of the records, its margin in the plan, digits behind the point
    "LP@1": ("lp1", 1.5, 1),
    "LP@1 of z": ("lp1_embedding", 1.5, 1),
    "5-NN": ("knn5", 1.5, 1),
    "loss": ("loss", 0.03, 3),
    "Act.": ("act", 0.02, 3),
    "live": ("live_dims", 15, 0),
    "Cons.": ("cons", 3, 1),
    "adj.": ("adjusted", 1.5, 1),
    "H_s": ("entropy", 0.15, 2),
}
OF_A_DENSE_Z = "LP@1", "LP@1 of z", "5-NN", "loss"  # the others are fixed where z is never 0
OF_THE_GATE = {  # a formula of the records, digits behind the point
    "Cons.": ("cons", 1),
    "Cons. less shuffled": ("cons - shuffled_cons", 1),
    "adj.": ("adjusted", 1),
    "adj. less images in z": ("images_in_z_lead", 1),
}


def of_seeds(method: str, program: str, formula: str) -> pd.Series:
    """A number of a method's runs by one of the programs, by seed; empty where none is there."""
    try:
        return values(f"authors/authors-cpu-{method}-{program}", formula)
    except KeyError:
        return pd.Series(dtype=float)


def verdict(difference: float, half: float, margin: float) -> str:
    """Where the interval difference ± half lies: within the margin, beyond it, or neither."""
    if abs(difference) + half < margin:
        return "equivalent"
    if abs(difference) - half > margin:
        return "differs"
    return "undecided"


def text(difference: float, half: float, digits: int) -> str:
    """A difference with half its interval, if there is one; a dash where nothing is on record."""
    return "–" if math.isnan(difference) else with_half(difference, half, digits, True)


def sizes(*found: pd.Series) -> str:
    """How many seeds there are, from the fewest to the most."""
    counts = {len(series) for series in found}
    return " to ".join(str(n) for n in sorted({min(counts), max(counts)}))


# ------------------------------------------------------------------------ the table of the verdicts
def judged(ours: pd.Series, theirs: pd.Series, margin: float, digits: int) -> str:
    """Ours less theirs, half the 90 % interval, and the verdict; a dash where one is missing."""
    difference, half = welch(ours, theirs, 0.90)
    shown = text(difference, half, digits)
    if len(ours) and len(theirs):
        shown += f" {verdict(difference, half, margin)}"
    return shown


lines = []
for measure, (key, margin, digits) in MEASURES.items():
    line = {"ours − theirs": measure, "margin": f"{margin:g}"}
    for label, method in METHODS.items():
        line[label] = "–"
        if label != "SimCLR" or measure in OF_A_DENSE_Z:
            of_both = (of_seeds(method, program, key) for program in PROGRAMS)
            line[label] = judged(*of_both, margin, digits)
    lines.append(line)
compared = pd.DataFrame(lines)

# --------------------------------------------------------------------------- the table of the means
lines = []
for label, method in METHODS.items():
    for program in PROGRAMS:
        line = {"": f"{label}, {program}"}
        found = {}
        for measure, (key, _, digits) in MEASURES.items():
            found[measure] = of_seeds(method, program, key)
            line[measure] = cell(found[measure], digits, False) if len(found[measure]) else "–"
        line["n"] = sizes(*found.values())
        lines.append(line)
means = pd.DataFrame(lines)

# ---------------------------------------------------------------------------- the table of the gate
lines = []
for program in reversed(PROGRAMS):
    line = {"BayesNCL − NCL": program}
    counted = []
    for heading, (formula, digits) in OF_THE_GATE.items():
        gated, plain = (of_seeds(method, program, formula) for method in ("bayesncl", "ncl"))
        line[heading] = text(*welch(gated, plain, 0.95), digits)
        counted += [gated, plain]
    line["n"] = sizes(*counted)
    lines.append(line)
gate = pd.DataFrame(lines)

# --------------------------------------------------------------------------- the table of the steps
STEPS = 2, 10
FOLLOWED = METHODS | {"BayesNCL, Gumbel": "gumbel", "Barlow Twins": "barlow", "BYOL": "byol"}

lines = []
for label, method in FOLLOWED.items():
    for record in records.read("authors"):
        if record["run"] == f"authors-steps-{method}":
            found = pd.DataFrame(record["results"]).drop(columns="seed")  # a row for each seed
            line = {"apart": label}
            for name, of_steps in found.items():
                for step in STEPS:
                    shares = [of_seed[step - 1] for of_seed in of_steps]
                    line[f"{name}: {step}"] = f"{max(shares):.0e}"
            lines.append(line | {"n": len(found)})
steps = pd.DataFrame(lines)

# ----------------------------------------------------------------------- the table of the landscape
REPORTED = {"SimCLR": sparse_coding.TABLE1_SIMCLR, "SimSiam": sparse_coding.TABLE1_SIMSIAM}
OF_FEATURES = {"worst": "min", "median": "median"}
LATENTS = {0.1: "2 of 10", 0.3: "3 of 10"}


found = {}  # a statistic's cosines by seed
for record in records.read("authors"):
    if not record["run"].startswith("authors-landscape"):
        continue
    for row in record["results"]:
        for statistic in OF_FEATURES.values():
            key = row["setting"], row["sparsity"], row["program"], statistic
            found[key] = pd.Series(row[statistic])

lines = []
for setting, sparsity in sorted({key[:2] for key in found}):
    line = {"": f"{setting}; {LATENTS[sparsity]}"}
    for heading, statistic in OF_FEATURES.items():
        method = setting.partition(",")[0]
        ours = found[setting, sparsity, "ours", statistic]
        with_theirs = setting if (setting, sparsity, "theirs", statistic) in found else method
        theirs = found[with_theirs, sparsity, "theirs", statistic]
        reported = REPORTED[method][statistic][sparsity]
        line[f"{heading}: paper"] = f"{reported:.2f}"
        line[f"{heading}: theirs"] = cell(theirs, 2, False)
        line[f"{heading}: ours − theirs"] = cell(ours - theirs, 2, True)
    lines.append(line | {"n": len(ours)})
landscape = pd.DataFrame(lines)
