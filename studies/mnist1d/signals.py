"""MNIST-1D: a published SimCLR run made again, then SimCLR, NCL and BayesNCL compared on it.

    python studies/mnist1d/signals.py reproduce    the published run, 20 seeds
    python studies/mnist1d/signals.py rates        training losses at four rates of each method
    python studies/mnist1d/signals.py compare      20 seeds of each method, each at its chosen rate
    python studies/mnist1d/signals.py keep         train these again, and keep h and z in runs/
    python studies/mnist1d/signals.py              all four; what is on record is not made again

It needs mnist1d and scikit-learn (requirements-dev.txt). It is also the example of how to take a
loss elsewhere: nt_xent, rep_relu, gate and bernoulli_kl come from the method files as they are, the
measures from interpret.py and common.py.

The published run is the notebook self-supervised-learning of github.com/greydanus/mnist1d. Its
network, views, loss, optimiser and classifiers are those of the method "published" here; only the
random numbers differ, and the tolerance of the linear classifier (`linear_accuracy`).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "studies")]
import bayesncl  # noqa: E402
import common  # noqa: E402
import interpret  # noqa: E402
import ncl  # noqa: E402
import records  # noqa: E402
import simclr  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

METHODS = "simclr", "ncl", "bayesncl"
SEEDS = range(1, 21)
EPOCHS = 200

# From the notebook.
BATCH = 100
TEMPERATURE = 0.5
PUBLISHED_RATE = 0.01

# Of the comparison.
K = 64
RATES = 0.001, 0.003, 0.01, 0.03
TRIAL_SEEDS = 101, 102, 103
TRIAL_EPOCHS = 50
PRIOR = bayesncl.PRESETS["cifar100"]["prior"]
KL_WEIGHT = bayesncl.PRESETS["cifar100"]["kl_weight"]
OURS = bayesncl.PRESETS["shapes"]
GATE_RATE = OURS["gate_lr"] / OURS["lr"]  # times the rate of the rest


# ----------------------------------------------------------------------------------- data and views
def load_signals() -> tuple[torch.Tensor, ...]:
    """x_train (4000, 40), y_train (4000,), x_test (1000, 40), y_test (1000,) of MNIST-1D."""
    try:
        from mnist1d.data import make_dataset
    except ImportError as error:
        raise common.BadInput(f"{error}: pip install mnist1d") from error
    data = make_dataset()  # from its seed 42; nothing is downloaded
    x_train, x_test = (torch.from_numpy(data[name]).float() for name in ("x", "x_test"))
    y_train, y_test = (torch.from_numpy(data[name]) for name in ("y", "y_test"))
    return x_train, y_train, x_test, y_test


def augment(x, generator):
    """A random view of each signal x (N, 40): another mean, another slope, shifted in a circle.

    The signal's mean and slope are taken out. It moves by 0 to 9 places. A slope of
    N(0, 0.04) per place and a mean of N(0, 0.3) are put in.
    """
    N, length = x.shape
    t = torch.arange(length) - (length - 1) / 2  # (40,), from -19.5 to 19.5
    slope = x @ t / t.square().sum()  # (N,)
    level = x - x.mean(1, keepdim=True) - slope[:, None] * t  # (N, 40)
    shift = torch.randint(10, (N, 1), generator=generator)
    source = (torch.arange(length) - shift) % length  # (N, 40), where each place's value comes from
    new_slope = 0.04 * torch.randn(N, 1, generator=generator)
    new_mean = 0.3 * torch.randn(N, 1, generator=generator)
    return level.gather(1, source) + new_slope * t + new_mean


def batches(x, generator):
    """Yield two views v1, v2 (100, 40) of each batch of an epoch."""
    x = x[torch.randperm(len(x), generator=generator)]
    v1 = augment(x, generator)
    v2 = augment(x, generator)
    yield from zip(v1.split(BATCH), v2.split(BATCH))


# ------------------------------------------------------------------------------- network and losses
def convolution(inputs, width, norm):
    """(N, inputs, L) → (N, 25, about L / 2).

    By momentum 1 the running statistics of BatchNorm are those of the last batch; before a
    measurement that is the whole training set.
    """
    layers = [nn.Conv1d(inputs, 25, width, stride=2, padding=1)]
    if norm:
        layers.append(nn.BatchNorm1d(25, momentum=1.0))
    return nn.Sequential(*layers, nn.ReLU())


class Network(nn.Module):
    """Signals (N, 40) → h (N, 125), the embedding z (N, K), and α (N, K) of a gate, else None.

    method: published, simclr, ncl or bayesncl. "published" has K = 16 and no BatchNorm.
    """

    def __init__(self, method):
        super().__init__()
        self.method = method
        norm = method != "published"
        self.block1 = convolution(1, 5, norm)
        self.block2 = convolution(25, 3, norm)
        self.block3 = convolution(25, 3, norm)
        self.hidden = nn.Linear(125, 125)
        self.out = nn.Linear(125, K if norm else 16)
        if method == "bayesncl":
            self.gating = bayesncl.gating_network(125, 125, K)

    def layers(self, x):
        """All layers, flat: (N, 475), (N, 250), h (N, 125), (N, 125) and (N, K)."""
        first = self.block1(x[:, None])  # (N, 25, 19)
        second = self.block2(first)  # (N, 25, 10)
        h = self.block3(second).flatten(1)  # (N, 125)
        hidden = self.hidden(h).relu()  # (N, 125)
        return first.flatten(1), second.flatten(1), h, hidden, self.out(hidden)

    def forward(self, x):
        _, _, h, _, z = self.layers(x)
        if self.method in ("published", "simclr"):
            return h, z, None
        z = ncl.rep_relu(z)  # z⁺
        if self.method == "ncl":
            return h, z, None
        logits = self.gating(h.detach())  # (N, K)
        m, alpha = bayesncl.gate(logits, "ste")
        return h, z * m, alpha


def one_sided(z1, z2):
    """The notebook's loss, in nats: view 1 of each signal finds its view 2 among N. (N, K) each."""
    logits = F.normalize(z1) @ F.normalize(z2).T / TEMPERATURE  # (N, N)
    return F.cross_entropy(logits, torch.arange(len(z1)))


def loss_of(network, v1, v2):
    """The training loss of a batch's two views (N, 40), in nats."""
    _, z1, alpha1 = network(v1)  # two calls: BatchNorm sees one view at a time
    _, z2, alpha2 = network(v2)
    if network.method == "published":
        return one_sided(z1, z2)
    if network.method == "simclr":
        return simclr.nt_xent(z1, z2, TEMPERATURE)
    if network.method == "ncl":
        return ncl.nt_xent(z1, z2, TEMPERATURE)
    kl = bayesncl.bernoulli_kl(alpha1, PRIOR) + bayesncl.bernoulli_kl(alpha2, PRIOR)
    return bayesncl.nt_xent(z1, z2, TEMPERATURE) + KL_WEIGHT * kl / 2


def train(method, seed, rate, x, epochs=EPOCHS):
    """A network trained on signals x (N, 40) by Adam, and its loss in the last epoch, the mean.

    Of one seed, all methods start from the same backbone and see the same views.
    """
    torch.manual_seed(seed)
    network = Network(method)
    gating = [p for name, p in network.named_parameters() if name.startswith("gating")]
    others = [p for name, p in network.named_parameters() if not name.startswith("gating")]
    groups = [dict(params=others), dict(params=gating, lr=GATE_RATE * rate)]
    optimizer = torch.optim.Adam(groups if gating else others, lr=rate)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        losses = []
        for v1, v2 in batches(x, generator):
            loss = loss_of(network, v1, v2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return network, torch.stack(losses).mean().item()


# ----------------------------------------------------------------------------------------- measures
def linear_accuracy(train, y_train, test, y_test):
    """The notebook's linear classifier, % right: logistic regression on standardised inputs.

    Its tolerance is 1e-2; 1e-2 / 4000, for a mean over the signals, gives its 32.8 of the signals.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = LogisticRegression(tol=1e-2 / len(train), max_iter=1000)
    classifier = make_pipeline(StandardScaler(), regression)
    return 100 * classifier.fit(train, y_train).score(test, y_test)


def neighbour_accuracy(train, y_train, test, y_test, metric):
    """The notebook's ten nearest neighbours, % right."""
    from sklearn.neighbors import KNeighborsClassifier

    classifier = KNeighborsClassifier(10, metric=metric)
    return 100 * classifier.fit(train, y_train).score(test, y_test)


@torch.no_grad()
def as_published(network, data):
    """The notebook's numbers: linear accuracy of the signals and each layer, neighbours."""
    x_train, y_train, x_test, y_test = data
    train = x_train, *network.layers(x_train)
    test = x_test, *network.layers(x_test)
    found = {}
    found["knn10_signals"] = neighbour_accuracy(x_train, y_train, x_test, y_test, "euclidean")
    found["knn10_embedding"] = neighbour_accuracy(train[-1], y_train, test[-1], y_test, "cosine")
    for i in range(len(train)):
        found[f"layer_{i}"] = linear_accuracy(train[i], y_train, test[i], y_test)
    return found


@torch.no_grad()
def embeddings(network, x_train, x_test):
    """h (N, 125) and z (N, K) of training and test signals, normed by all training signals."""
    network.train()
    network(x_train)  # sets the running statistics
    network.eval()
    h_train, z_train, _ = network(x_train)
    h, z, _ = network(x_test)
    return h_train, z_train, h, z


def measure(network, data):
    """The measures of the plan, by their names in other records.

    Those of the dimensions are of the test signals. "top_": each dimension is active on the 1 % of
    signals where it is largest (of SimCLR also where it is smallest), else where it is not 0.
    """
    x_train, y_train, x_test, y_test = data
    h_train, z_train, h, z = embeddings(network, x_train, x_test)
    found = {}
    for suffix, train, test in ("", h_train, h), ("_embedding", z_train, z):
        found[f"lp1{suffix}"] = common.linear_probe(train, y_train, test, y_test)["lp1"]
        found[f"knn10{suffix}"] = common.knn_accuracy(train, y_train, test, y_test, k=10)
    embedding = interpret.Embedding(z, y_test, features=h)
    for prefix, rule in ("", "nonzero"), ("top_", "top:0.01"):
        findings = interpret.interpret(embedding, rule)
        for name in "cons", "adjusted", "directions_of_h_lead", "ap", "live_dims", "act":
            found[prefix + name] = findings.numbers.get(name)
        found[f"{prefix}shuffled_cons"] = findings.controls["shuffled"]["cons"]
        found[f"{prefix}head_ap"] = findings.controls["directions_of_h"]["ap"]
    return found


# ------------------------------------------------------------------------------------------ records
def of_seeds(run):
    """Seed → record of a run."""
    found = records.read("mnist1d")
    return {record["seed"]: record for record in found if record["run"] == run}


def put(run, seed, settings, final):
    """Record a run."""
    git = f'git -C "{ROOT}" describe --always --exclude=* --abbrev=10 --dirty=+'
    failed, commit = subprocess.getstatusoutput(git)
    made_by = dict(
        command=f"signals.py {' '.join(sys.argv[1:])}".strip(),
        commit=None if failed else commit,
        hardware=common.hardware("cpu"),
        torch=torch.__version__,
        date=time.strftime("%Y-%m-%d"),
    )
    record = dict(run=run, seed=seed, settings=settings | made_by, final=final)
    with open(Path(__file__).with_name("records.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def make(run, method, seed, rate, data, epochs, measures):
    """Train, measure and record a run that is not on record yet."""
    if seed in of_seeds(run):
        return
    began = time.monotonic()
    network, loss = train(method, seed, rate, data[0], epochs)
    seconds_train = time.monotonic() - began
    final = dict(loss=loss) | measures(network, data)
    final |= dict(seconds_train=seconds_train, seconds=time.monotonic() - began)
    settings = dict(method=method, lr=rate, epochs=epochs, batch_size=BATCH, optimizer="adam")
    settings |= dict(temperature=TEMPERATURE, head_out=network.out.out_features)
    if method == "bayesncl":
        settings |= dict(gate="ste", gate_lr=GATE_RATE * rate, prior=PRIOR, kl_weight=KL_WEIGHT)
    put(run, seed, settings, final)
    print(f"{run} seed {seed}: loss {loss:.4f}, {final['seconds']:.0f} s", flush=True)


def reproduce(data):
    for seed in SEEDS:
        make("mnist1d-published", "published", seed, PUBLISHED_RATE, data, EPOCHS, as_published)


def rates(data):
    def nothing(network, data):
        return {}

    for method in METHODS:
        for rate in RATES:
            for seed in TRIAL_SEEDS:
                run = f"mnist1d-{method}-rate-{rate}"
                make(run, method, seed, rate, data, TRIAL_EPOCHS, nothing)


def trial_loss(method, rate):
    """The mean training loss of a method's trials at a rate."""
    trials = of_seeds(f"mnist1d-{method}-rate-{rate}")
    if not set(TRIAL_SEEDS) <= trials.keys():
        raise common.BadInput(f"trials of {method} are missing: signals.py rates")
    return np.mean([trials[seed]["final"]["loss"] for seed in TRIAL_SEEDS])


def chosen_rate(method):
    return min(RATES, key=lambda rate: trial_loss(method, rate))


def compare(data):
    for seed in SEEDS:
        for method in METHODS:
            rate = chosen_rate(method)
            make(f"mnist1d-{method}", method, seed, rate, data, EPOCHS, measure)


def keep(data):
    """Train what compare() has again, and keep h and z, for ../dictionaries/ladder.py.

    For ../seeds/match.py also u, z before it is cut at 0.
    """
    x_train, y_train, x_test, y_test = data
    for seed in SEEDS:
        for method in METHODS:
            path = ROOT / "runs" / f"mnist1d-{method}-seed{seed}.npz"
            if path.exists():
                continue
            network, _ = train(method, seed, chosen_rate(method), x_train)
            h_train, z_train, h, z = embeddings(network, x_train, x_test)
            u = network.out(network.hidden(h).relu()).detach()
            path.parent.mkdir(exist_ok=True)
            with common.replacing(path) as file:
                np.savez(file, h_train=h_train, z_train=z_train, h=h, z=z, u=u, y=y_test)
            print(f"{path.name} is kept", flush=True)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="signals.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = {"reproduce": reproduce, "rates": rates, "compare": compare, "keep": keep}
    flags.add_argument("part", nargs="?", choices=parts, help="one part alone")
    part = flags.parse_args(argv).part
    torch.set_num_threads(1)  # the network is small
    data = load_signals()
    for name in [part] if part else parts:
        parts[name](data)


if __name__ == "__main__":
    common.launch(main)
