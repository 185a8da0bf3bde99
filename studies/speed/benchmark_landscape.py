"""How fast sparse_coding.py's replicas are beside a loop over one, as one would write it first.

python studies/speed/benchmark_landscape.py
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from benchmark import seconds
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import common  # noqa: E402
import simclr  # noqa: E402
import sparse_coding as sc  # noqa: E402

REPLICAS = (1, 5, 15, 45)  # that train together


def plain_loop(s):
    """A replica of SimCLR or SimSiam on sparse codes: a function that trains an epoch."""
    _, _, x = sc.sample(s, 1, s.sparsity[0], s.noise[0])  # (p, n)
    contrastive = s.method == "simclr"
    loader = DataLoader(TensorDataset(x.T), s.batch_size, shuffle=True, drop_last=contrastive)
    linear = nn.Linear(s.p, s.m, bias=False)
    network = nn.Sequential(linear, nn.BatchNorm1d(s.m, affine=False))
    head = nn.Linear(s.m, s.m)
    b = nn.Parameter(torch.zeros(s.m))
    weights = [*network.parameters(), *head.parameters(), b]
    optimizer = torch.optim.SGD(weights, s.lr[0])

    def encode(x):
        mask = torch.rand_like(x) < s.keep[0]
        return sc.srelu(network(x * mask), b)  # (B, m)

    def cosine(u, v):
        return F.cosine_similarity(u, v).mean()

    def epoch():
        for (x,) in loader:
            h1 = encode(x)
            h2 = encode(x)
            if contrastive:
                loss = simclr.nt_xent(head(h1), head(h2), s.temperature[0])
            else:
                to_second = cosine(head(h1), h2.detach())
                to_first = cosine(head(h2), h1.detach())
                loss = -(to_second + to_first) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def seconds_of_replicas(factors: dict, seeds: int, device) -> float:
    """Of an epoch, for each of `seeds` replicas that train together."""

    def training(epochs):
        s = sc.setting(factors | dict(seeds=seeds, epochs=epochs), {}, paper=True)

        def train():
            sc.train(s, device, records=1)

        return train

    # The difference leaves out what happens once.
    return (seconds(training(12)) - seconds(training(2))) / 10 / seeds


def landscape(device) -> None:
    """Print seconds per epoch and replica at n = 3000, batch 512, for growing numbers of them."""
    for method in (sc.SIMCLR, sc.SIMSIAM):
        factors = method | dict(n=3000)
        plain = seconds(plain_loop(sc.setting(factors, {}, paper=True)))
        name = method["method"]
        print(f"{name}: plain loop on the CPU {plain:.4f} s per epoch", flush=True)
        for seeds in REPLICAS:
            ours = seconds_of_replicas(factors, seeds, device)
            text = f"{ours:.4f} s per replica, {plain / ours:.1f} times as fast"
            print(f"{seeds:5} replicas: {text}", flush=True)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="benchmark_landscape.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.parse_args(argv)
    print(f"{common.hardware(common.DEVICE)}, torch {torch.__version__}")
    landscape(common.DEVICE)


if __name__ == "__main__":
    common.launch(main)
