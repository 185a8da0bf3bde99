"""How fast the replicas of sparse_coding.py are beside a loop over one, as one would write it first.

    python tools/benchmark_landscape.py
"""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

from benchmark import common, seconds, simclr

import sparse_coding as sc


def plain_loop(s):
    """A replica of SimCLR or SimSiam on sparse codes, as one would write it first; a call trains an epoch."""
    x = TensorDataset(sc.sample(s, 1, s.sparsity[0], s.noise[0])[2].T)  # (n, p)
    loader = DataLoader(x, s.batch_size, shuffle=True, drop_last=s.method == "simclr")
    network = nn.Sequential(nn.Linear(s.p, s.m, bias=False), nn.BatchNorm1d(s.m, affine=False))
    head, b = nn.Linear(s.m, s.m), nn.Parameter(torch.zeros(s.m))
    optimizer = torch.optim.SGD([*network.parameters(), *head.parameters(), b], s.lr[0])
    cos = lambda u, v: nn.functional.cosine_similarity(u, v).mean()

    def epoch():
        for (x,) in loader:
            h1, h2 = (sc.srelu(network(x * (torch.rand_like(x) < s.keep[0])), b) for _ in range(2))  # (B, m)
            if s.method == "simclr":
                loss = simclr.nt_xent(head(h1), head(h2), s.temperature[0])
            else:
                loss = -(cos(head(h1), h2.detach()) + cos(head(h2), h1.detach())) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return epoch


def landscape(device) -> None:
    """Print seconds per epoch and replica at n = 3000, batch 512, for growing numbers of replicas."""
    for method in (sc.SIMCLR, sc.SIMSIAM):
        setting = lambda **more: sc.setting(method | dict(n=3000) | more, {}, paper=True)
        plain = seconds(plain_loop(setting()))
        print(f"{method['method']}: plain loop on the CPU {plain:.4f} s per epoch", flush=True)
        for seeds in (1, 5, 15, 45):
            run = lambda epochs: seconds(lambda: sc.train(setting(seeds=seeds, epochs=epochs), device, records=1))
            ours = (run(12) - run(2)) / 10 / seeds  # the difference leaves out what happens once
            print(f"{seeds:5} replicas: {ours:.4f} s per replica, {plain / ours:.1f} times as fast", flush=True)


def main() -> None:
    argparse.ArgumentParser(prog="benchmark_landscape.py", usage=argparse.SUPPRESS, description=__doc__,
                            formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{common.hardware(device)}, torch {torch.__version__}")
    landscape(device)


if __name__ == "__main__":
    common.launch(main)
