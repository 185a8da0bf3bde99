"""Trainings that share their first weights, or the order of their images, but not both.

    python studies/seeds/start.py                        all that are missing in runs/
    python studies/seeds/start.py --methods ncl --flags "--limit 1000 --epochs 5"    a trial

A method's --seed draws the weights, then, for each epoch anew, the order of the images and their
views. Here the weights are drawn from a seed of their own. Where both seeds are the same the
training is the method's own. Each of three seeds of weights goes with each of three of order: nine
trainings of SimCLR and of NCL on the built-in data. match.py starts compares them.
"""

import argparse
import importlib
import shlex
import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402

import torch  # noqa: E402

SEEDS = 1, 2, 3
METHODS = "simclr", "ncl"


def folder(method: str, weights: int, order: int, kind="start") -> Path:
    """The run's folder of a training."""
    return ROOT / f"runs/{kind}-shapes-{method}-weights{weights}-order{order}"


def train(method: str, weights: int, order: int, flags: list[str], out: Path) -> None:
    """Train into a folder, or go on there: weights of one seed, order and views of another."""
    module = importlib.import_module(method)
    Network = module.network

    def from_seed(args):
        args.weights_seed = weights  # for config.json
        torch.manual_seed(weights)
        return Network(args)

    argv = [*flags, "--seed", str(order), "--out", str(out)]
    if (out / "config.json").exists():  # it was interrupted
        argv = ["--resume", str(out)]
    with (
        mock.patch.object(module, Network.__name__, from_seed),  # the name by which main builds it
        mock.patch.object(sys, "argv", [f"{method}.py"]),  # which goes on with it, too
    ):
        module.main(argv)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="start.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    add("--methods", nargs="+", choices=METHODS, default=METHODS, help="default: both")
    add("--flags", default="", help="of the methods, for a trial in runs/trial-...")
    args = flags.parse_args(argv)
    for method in args.methods:
        for weights in SEEDS:
            for order in SEEDS:
                out = folder(method, weights, order, "trial" if args.flags else "start")
                if not (out / "embeddings.npz").exists():
                    train(method, weights, order, shlex.split(args.flags), out)


if __name__ == "__main__":
    common.launch(main)
