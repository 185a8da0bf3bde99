"""Do dimensions come back with another seed? Those of two trainings, matched one to one.

    python studies/seeds/match.py shapes --seeds 1 2 3 4 5    and so for each of DATA
    python studies/seeds/match.py starts                      the trainings of start.py
    python studies/report.py                                  then fill the tables

It measures every pair of what is finished in runs/ and not yet on record. studies/run.py makes it
(seeds; dictionaries --rows "trained-*"), ../mnist1d/signals.py keep, and start.py. A row is a
method, the features of one ("-h"), training images as directions of h ("images-of-h"), or a
dictionary of SimCLR's features h, fitted as in ../dictionaries/ladder.py: with two seeds on one h
("-one"), and on the h of two trainings ("-two"). The plan says what is measured, and why. It needs
scikit-learn.
"""

import argparse
import functools
import itertools
import json
import math
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "studies"), str(ROOT / "studies" / "dictionaries")]
import records  # noqa: E402
import run_folder  # noqa: E402
from records import common, interpret  # noqa: E402

import ladder  # noqa: E402
import numpy as np  # noqa: E402
import start as starts  # noqa: E402
import torch  # noqa: E402
from scipy import optimize, stats  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402

QUESTION = "seeds"
DATA = {name: path for name, path in ladder.DATA.items() if "{seed}" in path}
METHODS = "simclr", "ncl", "bayesncl", "ncl-topk", "lpjepa"
OF_FEATURES = "simclr", "ncl"  # methods whose features h have a row, too
DICTIONARIES = "sae", "k-means-of-h", "ica", "nmf"
IMAGES = "images-of-h"  # the same training images in the place of a dictionary
RULES = {"": "top:0.1", "own_": "auto"}  # before a number's name: what is active
CONTROLS = {"rotated": "both_rotated", "images_in_z": "same_images"}  # their names on record
BACK = 0.9  # a dimension comes back whose match has at least this correlation
SEED_OF_H = 1  # of the training whose h is that of the rows "-one"


# -------------------------------------------------------------------------------------- one pair
def match(a: interpret.Activations, b: interpret.Activations) -> tuple[np.ndarray, ...]:
    """The one-to-one matching of the live dimensions of a and b whose correlations sum to the most.

    The dimensions of a (n,), their matches in b (n,), and the correlations (n,).
    """
    live_a = np.flatnonzero(a.n)
    live_b = np.flatnonzero(b.n)
    parts = [r for _, r in interpret.correlations(a.only(live_a), b.only(live_b))]
    r = np.concatenate(parts, axis=1)  # (live_a, live_b)
    rows, columns = optimize.linear_sum_assignment(r, maximize=True)
    return live_a[rows], live_b[columns], r[rows, columns]


def summary_of(r: np.ndarray) -> dict[str, float]:
    """The mean of matched dimensions' correlations, and the shares above ALIKE and BACK."""
    large = {"above": (r > interpret.ALIKE).mean().item(), "back": (r >= BACK).mean().item()}
    return {"matched": r.mean().item()} | large


@dataclass(eq=False)  # compared by identity, for the caches
class Codes:
    """An embedding z (N, K) of the test images, and their labels (N,) by prefix."""

    z: np.ndarray
    labels: dict[str, np.ndarray]
    u: np.ndarray | None = None  # (N, K), z before it is cut at 0; None where it is not known
    topk: int | None = None  # of TopK: how many of u an image keeps, of those above 0
    h: np.ndarray | None = None  # (N, D), the features; None where they are not kept


def arbitrary_axes(e: Codes, seed: int) -> np.ndarray:
    """z (N, live dimensions), had training found other axes: u, rotated at random, cut as z is.

    A z without negative numbers is cut: each new axis is above 0 on as many images as a live
    dimension; of TopK on as many as u is, and an image keeps the largest. Another one is u.
    """
    along = e.u @ stats.ortho_group.rvs(e.u.shape[1], random_state=seed)
    if e.z.min() < 0:
        return along
    n = interpret.activations_of(e.u.clip(0) if e.topk else e.z, "nonzero")[0].n
    n = n[n > 0]
    along = along[:, : len(n)]
    descending = -np.sort(-along, axis=0)
    floor = descending[n.clip(max=len(along) - 1), np.arange(len(n))]
    z = (along - floor).clip(min=0)
    if e.topk and e.topk < len(n):
        least = -np.partition(-z, e.topk - 1, axis=1)[:, e.topk - 1, None]
        z = np.where(z >= least, z, 0)
    return z


def compare(first: Codes, second: Codes, rule: str) -> dict[str, float]:
    """The numbers of a pair by one rule, without what is undefined.

    live: of the two the mean; matched, above, back: see summary_of; both_rotated_matched,
    same_images_matched, arbitrary_matched and so on: the means over the draws of a control, see
    interpret.controls_of_both and arbitrary_axes; matched_less_same_images and so on: the
    differences. lead_of_back: the lead over images in z of the dimensions that come back, less the
    others', the mean over both embeddings; lead_of_back_full: the same among the dimensions with
    the longest lists.
    """
    zs = first.z, second.z
    (a, rule_a), (b, rule_b) = [interpret.activations_of(z, rule) for z in zs]
    of_a, of_b, r = match(a, b)
    own = summary_of(r)
    found = {"live": (np.count_nonzero(a.n) + np.count_nonzero(b.n)) / 2} | own
    drawn = {}
    for name, both in interpret.controls_of_both((a, b), zs, (rule_a, rule_b)):
        drawn.setdefault(CONTROLS[name], []).append(summary_of(match(*both)[2]))
    if first.u is not None and second.u is not None:
        for seed in range(interpret.DRAWS):
            axes = arbitrary_axes(first, 2 * seed), arbitrary_axes(second, 2 * seed + 1)
            _, _, of_axes = match(*[interpret.activations_of(z, rule)[0] for z in axes])
            drawn.setdefault("arbitrary", []).append(summary_of(of_axes))
    for name, draws in drawn.items():
        for key, value in own.items():
            mean = np.mean([one[key] for one in draws]).item()
            found[f"{name}_{key}"] = mean
            found[f"{key}_less_{name}"] = value - mean
    comes_back = r >= BACK
    for prefix in first.labels:
        gains = []
        for e, lists, dims in (first, a, of_a), (second, b, of_b):
            lead = leads_of(e, rule)[prefix][dims]
            as_many = np.where(lists.n[dims] == lists.n.max(), lead, np.nan)
            gains.append([less_others(values, comes_back) for values in (lead, as_many)])
        of_all, of_full = np.mean(gains, 0).tolist()
        found |= {f"{prefix}lead_of_back": of_all, f"{prefix}lead_of_back_full": of_full}
    return {key: value for key, value in found.items() if not math.isnan(value)}


def less_others(values: np.ndarray, chosen: np.ndarray) -> float:
    """The mean of the chosen less that of the others; nan where one of them is undefined."""
    one, other = (interpret.mean_of_defined(values[which]) for which in (chosen, ~chosen))
    return math.nan if None in (one, other) else one - other


@functools.lru_cache(maxsize=40)
def leads_of(e: Codes, rule: str) -> dict[str, np.ndarray]:
    """By each label the lead of each dimension over images in z, (K,); nan where rare or dead."""
    a, _ = interpret.activations_of(e.z, rule)
    images_in_z = interpret.Family(interpret.Vectors(e.z), of_images=True)
    labels = interpret.prepare_labels(e.labels, {"images_in_z": images_in_z})
    often = a.n >= interpret.count_of(interpret.RARE, a.N)
    found = {}
    for prefix, label in labels.items():
        lead = interpret.label_columns(a, label)["images_in_z_lead"]
        found[prefix] = 100 * np.where(often, lead, np.nan)
    return found


# -------------------------------------------------------------------------------------- the rows
@functools.lru_cache(maxsize=40)
def read(path: Path) -> Codes | None:
    """The embedding of a run's folder or of an .npz; None where there is none, or not yet."""
    file = path / "embeddings.npz" if path.suffix != ".npz" else path
    if not file.exists():
        return None
    e = interpret.read_embedding(path)
    return Codes(e.z, e.labels, *before_the_cut(path, e.features), e.features)


@functools.lru_cache(maxsize=40)
def features(path: Path) -> Codes | None:
    """The features of a run in the place of z; None where they are not kept.

    They are means over positions. Those of an .npz, on MNIST-1D, are cut at 0 and have no row.
    """
    e = read(path)
    return None if e is None or e.h is None or path.suffix else Codes(e.h, e.labels, e.h)


def before_the_cut(path: Path, h: np.ndarray | None) -> tuple[np.ndarray | None, int | None]:
    """What the head makes of h, (N, K), before the cut at 0, None if unknown; its TopK or None."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return arrays.get("u"), None
    if not (path / "checkpoint.pt").exists():
        return None, None
    run, model = run_folder.load_run(path)
    head = model.eval().head
    if isinstance(head[-1], torch.nn.ReLU):  # of lpjepa.py
        head = head[:-1]
    with torch.no_grad():
        return head(torch.from_numpy(h)).numpy(), getattr(run, "topk", None)


def path_of(data: str, method: str, seed: int) -> Path:
    return ROOT / DATA[data].format(method=method, seed=seed)


@functools.lru_cache(maxsize=10)
def network_of(data: str, seed: int, root: str) -> ladder.Network | None:
    """SimCLR's features of training and test images; None where there is no such run."""
    path = path_of(data, "simclr", seed)
    if read(path) is None:
        return None
    return ladder.read_network(path, root)


@functools.lru_cache(maxsize=40)
def dictionary(data: str, name: str, of_h: int, seed: int, root: str) -> Codes | None:
    """The codes of the test images by a dictionary of SimCLR's h, of seed of_h; None without h, K.

    K is the number of NCL's live dimensions, of seed of_h; ICA and NMF have no more than h has.
    IMAGES are the first K of an order that is the same for all seeds.
    """
    network = network_of(data, of_h, root)
    of_ncl = read(path_of(data, "ncl", of_h))
    if network is None or of_ncl is None:
        return None
    K = int((interpret.activations_of(of_ncl.z, RULES[""])[0].n > 0).sum())
    h_train, h = ladder.centred(network.h_train, network.h)
    if name == "nmf":
        if min(network.h_train.min(), network.h.min()) < 0:
            return None
        h_train, h = ladder.unit(network.h_train), ladder.unit(network.h)
    fit = {"k-means-of-h": ladder.k_means, "ica": ladder.ica, "nmf": ladder.nmf}
    if name == IMAGES:
        order = np.random.default_rng(0).permutation(len(h_train))
        codes = ladder.towards(h_train[order[:K]], h)
    elif name == "sae":
        active = min(ladder.ACTIVE.get(data, ladder.MANY_ACTIVE), K)
        codes = ladder.autoencoder(h_train, h, K, seed, active)
    else:
        codes = fit[name](h_train, h, K, seed)
    return Codes(codes, network.labels)


def rows_of(data: str, root: str):
    """Yield a row's name, and a function that gives what it has of a seed."""
    for method in METHODS:
        yield method, lambda seed, method=method: read(path_of(data, method, seed))
    for method in OF_FEATURES:
        yield f"{method}-h", lambda seed, method=method: features(path_of(data, method, seed))
    for name in DICTIONARIES:
        of = functools.partial(dictionary, data, name, root=root)
        yield f"{name}-one", lambda seed, of=of: of(of_h=SEED_OF_H, seed=seed)
        yield f"{name}-two", lambda seed, of=of: of(of_h=seed, seed=seed)
    yield IMAGES, lambda seed: dictionary(data, IMAGES, of_h=seed, seed=0, root=root)


def start(method: str, key: str) -> Codes | None:
    """The embedding of a training of start.py, of w<seed of weights>o<seed of order>."""
    weights, order = key.removeprefix("w").split("o")
    return read(starts.folder(method, int(weights), int(order)))


# ------------------------------------------------------------------------------------ the records
def measure_pair(data: str, row: str, first, second, read_one, done: set[str]) -> None:
    """Measure a pair of seeds that is not on record and of which both are there; record it."""
    run = f"match-{data}-{row}-{first}-{second}"
    if run in done:
        return
    pair = read_one(first), read_one(second)
    if None in pair:
        return
    one, two = pair
    same = one.labels.keys() == two.labels.keys()
    same = same and all(np.array_equal(y, two.labels[key]) for key, y in one.labels.items())
    common.need(same, f"{run}: the two are not of the same images")
    numbers = {}
    for prefix, rule in RULES.items():
        found = compare(*pair, rule)
        numbers |= {prefix + key: value for key, value in found.items()}
    made_by = ladder.made_by() | {"command": " ".join(["match.py", *sys.argv[1:]])}
    settings = {"data": data, "row": row, "pair": [first, second], "rules": RULES}
    record = {"run": run, "settings": settings | made_by, "interpret": numbers}
    with open(records.STUDIES / QUESTION / "records.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record, separators=(",", ":")) + "\n")
    less = numbers["matched_less_same_images"]
    print(f"{run}: matched {numbers['matched']:.3f}, less images {less:+.3f}", flush=True)


def on_record() -> set[str]:
    return {record["run"] for record in records.read(QUESTION)}


def measure_data(data: str, seeds: list[int], root: str) -> None:
    """Every pair of seeds of every row of a data set."""
    done = on_record()
    for row, read_one in rows_of(data, root):
        for first, second in itertools.combinations(sorted(set(seeds)), 2):
            measure_pair(data, row, first, second, read_one, done)


def measure_starts() -> None:
    """Every pair of the trainings of start.py."""
    done = on_record()
    keys = [f"w{w}o{o}" for w, o in itertools.product(starts.SEEDS, starts.SEEDS)]
    for method in starts.METHODS:
        for first, second in itertools.combinations(keys, 2):
            measure_pair("starts", method, first, second, functools.partial(start, method), done)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="match.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = [*DATA, "starts"]
    flags.add_argument("what", choices=what, metavar="what", help=", ".join(what))
    flags.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="default: 1 2 3")
    flags.add_argument("--data-root", default="data", help="folder of the data sets")
    args = flags.parse_args(argv)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    if args.what == "starts":
        measure_starts()
    else:
        measure_data(args.what, args.seeds, args.data_root)


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
