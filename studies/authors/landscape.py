"""Table 1 of the landscape study by the authors' own program and by ours, on the same draws.

    git clone https://github.com/ashwinipokle/contrastive_landscape ../contrastive_landscape
    python studies/authors/landscape.py ../contrastive_landscape
    python studies/authors/landscape.py ../contrastive_landscape --start         see start()

Theirs are layers, loss, masks, batches and training loop, as main_simclr.py and main_simsiam.py of
the clone have them. Features, latents, noise and the first layer's first weights are ours in both
programs, so that their results can be compared seed by seed. It needs seaborn beside
requirements-dev.txt; what stops their program today, or makes it slow, is bridged, see bridge().

Their 8,000 epochs have a learning rate of .005; here it is .5, in 80 epochs: as much learning rate
× steps, in a hundredth of the steps. results.json has the cosine of the best-, the median- and the
worst-found feature by seed.
"""

import argparse
import importlib
import json
import math
import pickle
import runpy
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402
import sparse_coding  # noqa: E402

import numpy as np  # noqa: E402
import theirs  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402

STATISTICS = "max", "median", "min"
SPARSITIES = [0.1, 0.3]  # 2 and 3 of 10 latents are not 0
# n and batch size are those of their config/overpara_nopre_alter.yaml.
SHARED = dict(n=3000, batch_size=512, lr=0.5, epochs=80, seeds=5, sparsity=SPARSITIES)
gaussian = sparse_coding.gaussian  # which start() takes the place of
SIMCLR = sparse_coding.SIMCLR | sparse_coding.AUTHORS
SIMSIAM = sparse_coding.SIMSIAM | sparse_coding.AUTHORS | dict(head="mlp")

# A setting: our factors; their program, and what is typed after it.
SETTINGS = {
    "SimCLR, τ = .05": (
        SIMCLR | dict(temperature=0.05),
        "main_simclr.py --model simclr-orig --use_masking True --temperature 0.05",
    ),
    "SimCLR, τ = .2": (
        SIMCLR | dict(temperature=0.2),
        "main_simclr.py --model simclr-orig --use_masking True --temperature 0.2",
    ),
    "SimSiam": (SIMSIAM, "main_simsiam.py --model simsiam --use_bn True"),
}


# -------------------------------------------------------------------------------------- the bridges
class Product(nn.Module):
    """nn.CosineSimilarity of unit vectors a (N, 1, m) and b (1, N, m), without an (N, N, m)."""

    def __init__(self, dim):
        super().__init__()

    def forward(self, a, b):
        return a[:, 0] @ b[0].T  # (N, N)


class Draws:
    """Our features, latents, noise and first weights in the place of their generators'.

    Their program asks for these four in this order, for each sparsity and each seed.
    """

    def __init__(self, s):
        self.data = sparse_coding.Data(s, "cpu")
        (self.first,) = sparse_coding.start_weights(s, self.data, 0)  # (R, m, p)
        sparsities = [replica["sparsity"] for replica in self.data.replicas]
        self.order = iter(np.argsort(sparsities, kind="stable"))

    def gen_M(self, **_):
        self.now = next(self.order)
        return self.data.M[self.now].double().numpy()  # (p, d)

    def gen_z(self, prob, **_):
        replica = self.data.replicas[self.now]
        assert prob == replica["sparsity"]
        noise = replica["noise"]
        _, z, x = sparse_coding.sample(self.data.s, replica["seed"], prob, noise)
        self.epsilon = (x - self.data.M[self.now] @ z).double().numpy()
        return z.double().numpy()  # (d, n)

    def gen_epsilon(self, **_):
        return self.epsilon  # (p, n)

    def gen_Winit(self, *_, **__):
        return self.first[self.now].T.double().numpy()  # (p, m)


def bridge(ends: list) -> None:
    """Mend what stops their program today, and note how each of its trainings ends.

    1. It imports wandb and yacs: the first is not used, give() stands in for the second.
    2. It calls int and float by names that numpy no longer has.
    3. Its loss compares all pairs of 1,024 outputs in one (1024, 1024, 50).
    4. It pickles the models, which fails with Product in them; nothing is pickled.
    """
    sys.modules["wandb"] = types.ModuleType("wandb")
    np.float, np.int = float, int
    nn.CosineSimilarity = Product
    pickle.dump = lambda *_: None
    functions = importlib.import_module("functions.train")
    train = functions.train

    def train_and_note(*args, **options):
        found = train(*args, **options)
        ends.append([float(value) for value in found["final_metric"][:3]])
        return found

    functions.train = train_and_note


def give(s, folder: str) -> None:
    """Put settings and draws where their program finds them; it writes into a folder."""
    config = types.ModuleType("config")
    config.config = types.SimpleNamespace(
        nn=s.n, p=s.p, d=s.d, m=s.m, lr=s.lr[0], num_exp=s.seeds, NUM_EPOCHES=s.epochs,
        batch_size=s.batch_size, sparsity_levels=s.sparsity, masking_probs=[0.5], sigma0=None,
        gaussian_noise_levels=[None], ws_noise_levels=[None], one_hot_latent=False,
        has_online_ReLU=True, has_target_ReLU=True, has_target_predictor=False, batch_norm=None,
        LOG_DIR=folder,
    )  # fmt: skip
    config.update_config = lambda *_: None
    sys.modules["config"] = config
    sys.modules.pop("common_args", None)  # it has the config of the last time

    draws = Draws(s)
    generators = importlib.import_module("data_model.gen_sparse_coding_data")
    for name in ("gen_M", "gen_z", "gen_epsilon", "gen_Winit"):
        setattr(generators, name, getattr(draws, name))


# -------------------------------------------------------------------------------------- the program
def by_theirs(clone: Path, words: str, s, ends: list) -> np.ndarray:
    """STATISTICS at the end of their program's trainings, (sparsities, seeds, 3)."""
    program, *flags = words.split()
    sys.argv = [program, "--cfg", "given", *flags]
    ends.clear()
    with tempfile.TemporaryDirectory() as folder:
        give(s, folder)
        runpy.run_path(str(clone / program), run_name="__main__")
    return np.array(ends).reshape(len(s.sparsity), s.seeds, 3)


def start(data, purpose: int, *shape: int) -> torch.Tensor:
    """sparse_coding.gaussian, but of projector and predictor as nn.Linear starts them, as theirs.

    That is uniform within ± 1/√m; our N(0, 1/(pd)) is about half as wide.
    """
    others = [sparse_coding.PURPOSES[name] for name in ("projector", "head")]
    if purpose not in others:
        return gaussian(data, purpose, *shape)
    s = data.s
    seeds = [replica["seed"] for replica in data.replicas]
    drawn = [torch.rand(*shape, generator=sparse_coding.generator(i, purpose)) for i in seeds]
    return (2 * torch.stack(drawn) - 1) * math.sqrt(s.p * s.d / s.m)  # its caller takes / √(pd)


def by_ours(s, what: str) -> np.ndarray:
    """The same of our program."""
    replicas, curves = sparse_coding.train(s, what=what)
    ends = np.empty((len(s.sparsity), s.seeds, 3))
    for i, replica in enumerate(replicas):
        place = s.sparsity.index(replica["sparsity"]), replica["seed"] - 1
        ends[place] = [curves[statistic][-1, i] for statistic in STATISTICS]
    return ends


def main(argv=None):
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    whole = common.number(int, 1)
    flags.add_argument("clone", type=Path, help="folder of the clone")
    flags.add_argument("--epochs", type=whole, default=SHARED["epochs"])
    flags.add_argument("--seeds", type=whole, default=SHARED["seeds"], help="1 to SEEDS")
    text = "SimSiam by our program alone, projector and predictor started as in theirs"
    flags.add_argument("--start", action="store_true", help=text)
    flags.add_argument("--out", type=Path, default=Path("runs/authors-landscape"))
    args = flags.parse_args(argv)
    clone = args.clone.resolve()
    address = "https://github.com/ashwinipokle/contrastive_landscape"
    there = (clone / "main_simclr.py").exists()
    common.need(there, f"{clone} has no main_simclr.py: git clone {address} {args.clone}")
    about = dict(method="landscape", authors_commit=theirs.commit_of(clone), out=str(args.out))
    common.new_folder(args.out, about | dict(epochs=args.epochs, seeds=args.seeds), "cpu")

    ends = []
    sys.path.insert(0, str(clone))
    bridge(ends)
    found = []
    settings, programs = SETTINGS, ["ours", "theirs"]
    if args.start:
        sparse_coding.gaussian = start
        settings, programs = {"SimSiam, ours started as theirs": SETTINGS["SimSiam"]}, ["ours"]
    for name, (factors, words) in settings.items():
        given = SHARED | dict(epochs=args.epochs, seeds=args.seeds)
        s = sparse_coding.setting(factors | given, {}, paper=True)
        for program in programs:
            if program == "ours":
                measured = by_ours(s, name)
            else:
                measured = by_theirs(clone, words, s, ends)
            for sparsity, of_seeds in zip(s.sparsity, measured):
                row = dict(setting=name, program=program, sparsity=sparsity)
                for statistic, values in zip(STATISTICS, of_seeds.T):
                    row[statistic] = values.round(4).tolist()
                found.append(row)
                print(row, flush=True)
    with common.replacing(args.out / "results.json") as file:
        file.write(json.dumps(found, indent=1).encode() + b"\n")


if __name__ == "__main__":
    common.launch(main)
