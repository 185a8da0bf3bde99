"""The tables of README.md, from records.jsonl.

python studies/mnist1d/compared.py      with scipy
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "studies"), str(ROOT / "studies" / "mnist1d")]
import common  # noqa: E402

import numpy as np  # noqa: E402
import records  # noqa: E402
import signals  # noqa: E402

MEASURES = {  # a row's label: a number of a record; "a-b" is a less b
    "probe of h, %": "lp1",
    "probe of z, %": "lp1_embedding",
    "10-NN of h, %": "knn10",
    "10-NN of z, %": "knn10_embedding",
    "live dimensions": "live_dims",
    "Cons., %": "cons",
    "adj., %": "adjusted",
    "Cons. less shuffled": "cons-shuffled_cons",
    "lead over the random head": "lead",
    "AP, %": "ap",
    "top 1 %: Cons., %": "top_cons",
    "top 1 %: adj., %": "top_adjusted",
    "top 1 %: Cons. less shuffled": "top_cons-top_shuffled_cons",
    "top 1 %: lead": "top_lead",
    "top 1 %: AP, %": "top_ap",
}


def values(method, key):
    """Seed → a number of a method's runs, where it is defined; by the key "a-b" a less b."""
    found = {}
    for seed, record in records.of_seeds(signals.FILE, f"mnist1d-{method}").items():
        parts = [record["final"].get(name) for name in key.split("-")]
        if None not in parts:
            found[seed] = parts[0] - sum(parts[1:])
    return found


def interval(differences):
    """Mean, half the 95 % interval, and the least difference with 80 % power, by Student's t."""
    from scipy.stats import t

    n = len(differences)
    error = np.std(differences, ddof=1) / n**0.5
    of_interval = t.ppf(0.975, n - 1)
    of_power = t.ppf(0.8, n - 1)
    return np.mean(differences), of_interval * error, (of_interval + of_power) * error


def cell(method, key):
    """Mean ± standard deviation over a method's seeds."""
    own = [*values(method, key).values()]
    if len(own) < 2:
        return "–"
    return f"{np.mean(own):.1f} ± {np.std(own, ddof=1):.1f}"


def cells_of_difference(first, second, key):
    """Mean of paired differences ± half the interval, and what so many pairs could see."""
    a, b = values(first, key), values(second, key)
    paired = [a[seed] - b[seed] for seed in a if seed in b]
    if len(paired) < 2:
        return "–", "–"
    mean, half, visible = interval(paired)
    fewer = "" if len(paired) == len(signals.SEEDS) else f" (n = {len(paired)})"
    return f"{mean:+.1f} ± {half:.1f}{fewer}", f"{visible:.1f}"


def print_row(*cells):
    print("|", " | ".join(map(str, cells)), "|")


def print_head(*cells):
    print()
    print_row(*cells)
    print_row(*["---"] * len(cells))


def print_reproduced():
    print_head("", "published", "ours, mean", "range", "of ours below")
    for name, published in signals.PUBLISHED.items():
        digits = 2 if name == "loss" else 1
        ours = np.array([*values("published", name).values()])
        below = (ours.round(digits) < published).sum()
        mean, least, most = (f"{x:.{digits}f}" for x in (ours.mean(), ours.min(), ours.max()))
        print_row(name, published, mean, f"{least} to {most}", f"{below} of {len(ours)}")


def print_rates():
    print_head("training loss at the rate", *signals.RATES)
    for method in signals.METHODS:
        losses = [signals.trial_loss(method, rate) for rate in signals.RATES]
        print_row(method, *(f"{loss:.4f}" for loss in losses))


def print_compared():
    pairs = ("ncl", "simclr"), ("bayesncl", "ncl")
    print_head("", *signals.METHODS, "NCL − SimCLR", "80 %", "BayesNCL − NCL", "80 %")
    for label, key in MEASURES.items():
        cells = [cell(method, key) for method in signals.METHODS]
        for first, second in pairs:
            cells += cells_of_difference(first, second, key)
        print_row(label, *cells)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="compared.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.parse_args(argv)
    print_reproduced()
    print_rates()
    print_compared()


if __name__ == "__main__":
    common.launch(main)
