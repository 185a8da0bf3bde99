"""The ladder: dimensions beside random directions and random images, of h and of z.

    python studies/dictionaries/ladder.py shapes --seeds 1 2 3 4 5     and so for each of DATA
    python studies/report.py                                           then fill the tables

It measures what is finished in runs/ (studies/run.py makes it: dictionaries --rows "trained-*";
../mnist1d/signals.py keep; others.py) and not yet on record. A rung is a way to dimensions: the
axes of an embedding, or a dictionary that anybody can fit to a network's features h or embedding z.
All have as many dimensions, K: as NCL of the same seed has live ones; NMF and the axes of h at most
as many as h, PCA and ICA twice as many, in halves. Each dimension is a list of the 1 % of the test
images where it is largest, in rows of norm 1 (similarities to a cluster's centre or to an image: as
they are). Leads over lists in z are of the rung's own codes. It needs scikit-learn.
"""

import argparse
import functools
import json
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "studies")]
import common  # noqa: E402
import interpret  # noqa: E402
import records  # noqa: E402
import run_folder  # noqa: E402
import sae  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn import cluster, decomposition  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402

QUESTION = "dictionaries"
RULE = "top:0.01"
interpret.FAMILY, interpret.IN_CURVES = 3000, 30_000_000  # the mean of a family varies less
METHODS = "simclr", "ncl", "bayesncl", "ncl-topk"
FITTED = 5000  # training images at most that a dictionary is fitted on
UNITS = 256  # K where there is no NCL
DATA = {  # where the embeddings of a method and seed are
    "shapes": "runs/trained-shapes-{method}-seed{seed}",
    "cifar10": "runs/trained-cifar10-{method}-seed{seed}",
    "cifar100": "runs/trained-cifar100-{method}-seed{seed}",
    "cifar100-200": "weights/cifar100-{method}",
    "mnist1d": "runs/mnist1d-{method}-seed{seed}.npz",
    "efficientnet-cifar10": "runs/efficientnet-cifar10.npz",
    "efficientnet-cifar100": "runs/efficientnet-cifar100.npz",
    "minilm-nouns": "runs/minilm-nouns.npz",
}
ACTIVE = {"mnist1d": 8}  # active units of an image's code, of the autoencoder
MANY_ACTIVE = 32  # where the data has no number of its own
FEW_ACTIVE = 4  # of a second autoencoder


@dataclass
class Network:
    """What is measured of a network: features h and embedding z of training and test images."""

    h_train: np.ndarray  # (M, d)
    h: np.ndarray  # (N, d)
    z_train: np.ndarray | None  # (M, K), None where others trained it
    z: np.ndarray | None  # (N, K)
    labels: dict[str, np.ndarray]  # prefix -> (N,)


# ------------------------------------------------------------------------------------- the networks
def read_network(path: Path, root: str) -> Network:
    """A run's folder, or an .npz with h_train, h, y and perhaps z_train, z. root: of the data."""
    if path.suffix == ".npz":
        with np.load(path) as found:
            z_train = found.get("z_train")
            return Network(found["h_train"], found["h"], z_train, found.get("z"), {"": found["y"]})
    run, model = run_folder.load_run(path)
    data = run_folder.data_of(run, root)
    few = data.train["x"][common.evenly(FITTED, len(data.train["x"]))]
    h_train, z_train = common.features(model, few, run.image_size)
    h, z = common.features(model, data.test["x"], run.image_size)
    labels = {}
    for label in data.classes:
        prefix = "" if label == "y" else f"{label}_"
        labels[prefix] = data.test[label].numpy()
    return Network(h_train.numpy(), h.numpy(), z_train.numpy(), z.numpy(), labels)


def unit(x):
    """x (N, d) with rows of norm 1."""
    return x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12)


def centred(train, test):
    """Training rows (M, d) and test rows (N, d), less the training rows' mean, of norm 1."""
    centre = train.mean(0)
    return unit(train - centre), unit(test - centre)


# --------------------------------------------------------------------------------- the dictionaries
# Each is fitted on x_train (M, d) and gives the codes (N, K) of x (N, d).
def pca(x_train, x, K, seed):
    return decomposition.PCA(min(K, x.shape[1]), random_state=seed).fit(x_train).transform(x)


def ica(x_train, x, K, seed):
    ica = decomposition.FastICA(min(K, x.shape[1]), random_state=seed, max_iter=500, tol=1e-3)
    return ica.fit(x_train).transform(x)


def nmf(x_train, x, K, seed):
    nmf = decomposition.NMF(min(K, x.shape[1]), init="nndsvda", random_state=seed, max_iter=500)
    return nmf.fit(x_train).transform(x)


def towards(directions, x):
    """1 + cosine, so that a direction is one dimension and not two halves."""
    return 1 + x @ unit(directions).T


def k_means(x_train, x, K, seed):
    clusters = cluster.KMeans(K, n_init=3, random_state=seed).fit(x_train)
    return towards(clusters.cluster_centers_, x)


def training_images(x_train, x, K, seed):
    chosen = np.random.default_rng(seed).choice(len(x_train), K, replace=False)
    return towards(x_train[chosen], x)


def autoencoder(x_train, x, K, seed, active, frozen=False):
    """sae.py's TopK autoencoder, K units; frozen: with a decoder that stays random."""
    settings = sae.PRESETS["default"]
    torch.manual_seed(seed)
    x_train, x = torch.from_numpy(x_train), torch.from_numpy(x)
    model = sae.Autoencoder(x.shape[1], K, active)
    model.fit_standard(x_train)
    x_train = model.standard(x_train)
    if frozen:
        model.draw_dictionary(x_train)
        model.W_dec.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    steps = max(1, len(x_train) // settings["batch_size"])
    total = steps * settings["epochs"]
    for step in range(total):
        if step % steps == 0:
            order = torch.randperm(len(x_train)).chunk(steps)
        for group in optimizer.param_groups:
            group["lr"] = settings["lr"] * common.lr_share(step, total)
        dead = model.idle >= len(x_train)
        batch = x_train[order[step % steps]]
        loss, _, z = sae.sae_loss(model, batch, dead, settings["aux_weight"], mono_weight=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update(z, step)
    with torch.no_grad():
        return model.encode(model.standard(x)).numpy()


def dictionaries(network: Network, K: int, seed: int, active: int):
    """Yield each dictionary's name and how large its K dimensions are on the images, (N, K).

    The first are the axes of h itself, (N, d), which nobody has to fit.
    """
    yield "h", interpret.unit(network.h)
    h_train, h = centred(network.h_train, network.h)
    yield "pca", interpret.unit(pca(h_train, h, K, seed))
    yield "ica", interpret.unit(ica(h_train, h, K, seed))
    if min(network.h_train.min(), network.h.min()) >= 0:
        yield "nmf", interpret.unit(nmf(unit(network.h_train), unit(network.h), K, seed))
    yield "sae", interpret.unit(autoencoder(h_train, h, K, seed, active))
    yield "sae-few", interpret.unit(autoencoder(h_train, h, K, seed, FEW_ACTIVE))
    yield "sae-frozen", interpret.unit(autoencoder(h_train, h, K, seed, active, frozen=True))
    yield "k-means-of-h", k_means(h_train, h, K, seed)
    yield "images-of-h", training_images(h_train, h, K, seed)
    if network.z is not None:
        z_train, z = centred(network.z_train, network.z)
        yield "k-means-of-z", k_means(z_train, z, K, seed)
        yield "images-of-z", training_images(z_train, z, K, seed)


# ------------------------------------------------------------------------------------- the measures
def lists_of(u, K: int, seed: int) -> interpret.Activations:
    """The lists of the live dimensions of u (N, K'), of more than K so many at random."""
    a = interpret.activate(u, RULE)
    live = np.flatnonzero(a.n)
    if len(live) > K:
        live = np.sort(np.random.default_rng(seed).choice(live, K, replace=False))
    return a.only(live)


def measure(u, network: Network, of_h: dict, K: int, seed: int) -> dict:
    """The numbers of the dimensions of u (N, K'). of_h: the families of h, see families_of_h."""
    a = lists_of(u, K, seed)
    found = {"live_dims": a.K, "images": len(np.unique(a.images))}
    labels = interpret.prepare_labels(network.labels, interpret.families_of(u, None))
    for prefix, label in labels.items():
        label.families |= of_h[prefix].families
        columns = interpret.label_columns(a, label)
        numbers = interpret.label_numbers(a, label, columns)
        found |= {prefix + name: value for name, value in numbers.items()}
    return found


def families_of_h(network: Network) -> dict[str, interpret.Label]:
    """The labels by their prefix, with the families of h."""
    vectors = interpret.Vectors(network.h)
    families = {
        "directions_of_h": interpret.Family(vectors, of_images=False),
        "images_in_h": interpret.Family(vectors, of_images=True),
    }
    return interpret.prepare_labels(network.labels, families)


# --------------------------------------------------------------------------------------- the record
@functools.cache
def made_by() -> dict:
    """What the records say of this program's run; of its start, as they change the files."""
    git = f'git -C "{ROOT}" describe --always --exclude=* --abbrev=10 --dirty=+'
    failed, commit = subprocess.getstatusoutput(git)
    return {
        "command": " ".join(["ladder.py", *sys.argv[1:]]),
        "commit": None if failed else commit,
        "hardware": common.hardware("cpu"),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def keep(run: str, seed: int, settings: dict, numbers: dict) -> None:
    """Add a rung to the records, and print what it leads by."""
    record = {"run": run, "seed": seed, "settings": settings | made_by(), "interpret": numbers}
    with open(records.STUDIES / QUESTION / "records.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record, separators=(",", ":")) + "\n")
    told = [f"{name} {numbers[f'{name}_lead']:+.1f}" for name in interpret.FAMILIES]
    told = [f"adj. {numbers['adjusted']:.1f}", f"best F1 {numbers['best_f1']:.1f}", *told]
    print(f"{run} seed {seed}:", ", ".join(told), flush=True)


def climb(data: str, seed: int, root: str) -> None:
    """Measure and record the rungs of one data set and seed that are not on record."""
    done = {(record["run"], record.get("seed")) for record in records.read(QUESTION)}
    networks = {}
    for method in METHODS:
        path = ROOT / DATA[data].format(method=method, seed=seed)
        if path.is_file() or (path / "backbone.pt").exists():
            networks[method] = read_network(path, root)
        if "{method}" not in DATA[data]:
            break  # there is one network
    K = UNITS
    if "{method}" in DATA[data]:
        if "ncl" not in networks:
            return  # it says how many dimensions there are
        u = interpret.unit(networks["ncl"].z)
        K = lists_of(u, UNITS, seed).K
    settings = {"K": K, "active": min(ACTIVE.get(data, MANY_ACTIVE), K), "rule": RULE, "data": data}
    for method, network in networks.items():
        of_h = families_of_h(network)
        rungs = []
        if network.z is not None:
            rungs.append((method, interpret.unit(network.z)))
        if method == "simclr":
            rungs += dictionaries(network, K, seed, settings["active"])
        for rung, u in rungs:
            run = f"ladder-{data}-{rung}"
            if (run, seed) not in done:
                keep(run, seed, settings, measure(u, network, of_h, K, seed))


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="ladder.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("data", choices=DATA, metavar="data", help=", ".join(DATA))
    flags.add_argument("--seeds", nargs="+", type=int, default=[1], help="default: 1")
    flags.add_argument("--data-root", default="data", help="folder of the data sets")
    args = flags.parse_args(argv)
    one = "{seed}" in DATA[args.data] or len(args.seeds) == 1
    common.need(one, f"{args.data} has one network, so that seeds are no repetitions: give one")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    for seed in args.seeds:
        climb(args.data, seed, args.data_root)


if __name__ == "__main__":
    common.launch(main)
