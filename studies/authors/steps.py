"""Step by step: ours with the first weights, the views and the noise of the authors' program.

    git clone https://github.com/Cui-Peng-624/BayesNCL ../BayesNCL
    python studies/authors/steps.py ../BayesNCL ncl --limit 2560
    git clone https://github.com/vturrisi/solo-learn ../solo-learn
    python studies/authors/steps.py ../solo-learn byol --limit 2560

Trainings from other draws can only be compared in distribution. Here main_pretrain.py of the clone
trains two epochs, started as by theirs.py or solo_learn.py, and what it drew is kept; then our file
trains on the same. After each step all weights are compared. Where they part, pieces of ours become
theirs:

    rates   learning rates: their warm-up begins at 3e-5 and is at the peak a step earlier
    eps     norms below it count as it: 1e-12, not 0.01
    noise   of Gumbel's gates: −log(−log(u + 1e-4) + 1e-4); ours clamps u to [1e-4, 1 − 1e-4]

Equal formulas do not give equal weights for long, because errors of rounding grow. How fast, ours
tells against itself, with first weights that are disturbed in the last of float32's 24 bits.

results.json has, for each of three seeds from --seed on and each of four comparisons, by step:
‖a − b‖ / ‖b − first‖. It needs the packages that theirs.py or solo_learn.py lists.
"""

import contextlib
import functools
import importlib
import json
import math
import sys
import tempfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402
import sparsehead  # noqa: E402

import solo_learn  # noqa: E402
import theirs  # noqa: E402
import torch  # noqa: E402

GUMBEL = ["--gate", "gumbel"]
THEIR_GUMBEL = ["method_kwargs.gate_type=gumbel_sigmoid"]
METHODS = *theirs.METHODS, "gumbel", *solo_learn.BASES  # gumbel: BayesNCL with its other gate
PIECES = "rates", "eps", "noise"


def vector(weights: dict) -> torch.Tensor:
    """A network's weights, without BatchNorm's statistics, as one vector."""
    names = sorted(name for name in weights if "running" not in name and "num_b" not in name)
    return torch.cat([weights[name].flatten().double() for name in names])


class Drawn:
    """What their program draws; Lightning calls before_step, where the noise's seed is set too."""

    def __init__(self):
        self.views = []  # of each step: v1, v2
        self.rates = []  # of each step: {name of a group of weights: its learning rate}
        self.weights = []  # before each step; later after the last one, too

    def before_step(self, trainer, model, batch, _):
        self.keep(model)
        _, views, _ = batch
        self.views.append(views)
        (optimizer,) = trainer.optimizers
        self.rates.append({group["name"]: group["lr"] for group in optimizer.param_groups})
        torch.manual_seed(len(self.views))

    def keep(self, model):
        weights = theirs.named_as_ours(model.state_dict())
        self.weights.append({name: weight.clone() for name, weight in weights.items()})


def by_theirs(clone: Path, words: list[str], put, package: str) -> Drawn:
    """Train with their program.

    put: a bridge of theirs.py or solo_learn.py; package: the name of its Lightning
    """
    drawn = Drawn()
    lightning = importlib.import_module(package)

    def bridge(trained):
        put(trained)
        watch = lightning.callbacks.LambdaCallback(on_train_batch_start=drawn.before_step)

        class Trainer(lightning.Trainer):
            def fit(self, *args, **options):
                self.callbacks.append(watch)
                super().fit(*args, **options)

        lightning.Trainer = Trainer

    with mock.patch.object(lightning, "Trainer", lightning.Trainer):  # for the next seed
        model, _ = theirs.run_their_program(clone, words, bridge)
    drawn.keep(model)
    return drawn


def as_theirs(u: torch.Tensor) -> torch.Tensor:
    """Of u in [0, 1) that of which our formula of Gumbel's noise, −log(−log(u)), makes theirs."""
    return (u + 1e-4) * math.exp(-1e-4)


class Trained(Exception):
    """Our file has trained, and would measure now."""


def by_ours(file: str, flags: list[str], drawn: Drawn, first: dict, pieces=()):
    """Train with our file on what was drawn: its weights before each step and after the last one.

    first: the weights before the first step; pieces: of "rates", "eps", "noise" those that are
    theirs. Returns vectors.
    """
    module = importlib.import_module(file)
    Network, rand_like = module.network, torch.rand_like
    models = []
    found = []

    def network(settings):
        models.append(Network(settings))
        models[0].load_state_dict(first)
        return models[0]

    def two_views(*_, **__):
        found.append(vector(models[0].state_dict()))
        torch.manual_seed(len(found))
        return drawn.views[len(found) - 1]

    def evaluate(*_):
        found.append(vector(models[0].state_dict()))
        raise Trained

    def set_lr(optimizer, _):
        rates = drawn.rates[len(found)]
        for group, name in zip(optimizer.param_groups, ["projector", "gating_head"]):
            group["lr"] = rates.get(name, rates["projector"])

    with contextlib.ExitStack() as patches, tempfile.TemporaryDirectory() as out:

        def put(place, name, ours):
            patches.enter_context(mock.patch.object(place, name, ours))

        put(module, Network.__name__, network)  # the name by which main() builds it
        put(common, "two_views", two_views)
        put(common, "evaluate", evaluate)
        put(common.Run, "end_epoch", lambda *_: None)
        if "rates" in pieces:
            put(common, "set_lr", set_lr)
        if "eps" in pieces:
            put(module, "EPS", 1e-12)
        if "noise" in pieces:
            put(torch, "rand_like", lambda logits: as_theirs(rand_like(logits)))
        try:
            module.main([*flags, "--out", out])
        except Trained:
            return found


def disturbed(weights: dict) -> dict:
    """The weights, each with a normal error of 6e-8 of it, half a unit of float32's last bit."""
    noise = torch.Generator().manual_seed(0)
    found = dict(weights)
    for name, weight in weights.items():
        if weight.is_floating_point():
            error = 2**-24 * torch.randn(weight.shape, generator=noise)
            found[name] = weight * (1 + error)
    return found


def apart(a: list, b: list) -> list[float]:
    """How far two trainings are apart after each step, as a share of the second one's way."""
    pairs = zip(a[1:], b[1:], strict=True)
    return [((ours - other).norm() / (other - b[0]).norm()).item() for ours, other in pairs]


def both_programs(args):
    """Our file and its flags; the words of their program, its bridge, the name of its Lightning."""
    if args.method in solo_learn.BASES:
        flags = solo_learn.flags_of(args)
        s = sparsehead.parser(args.method).parse(flags)
        bridge = functools.partial(solo_learn.bridge, s, common.Data(s))
        return "sparsehead", flags, solo_learn.words_for(s), bridge, "lightning.pytorch"
    gumbel = args.method == "gumbel"
    file = "bayesncl" if gumbel else args.method
    flags = theirs.flags_of(args) + (GUMBEL if gumbel else [])
    s = importlib.import_module(file).parser().parse(flags)
    words = theirs.words_for(file, s.epochs, s.warmup, s.seed) + (THEIR_GUMBEL if gumbel else [])
    return file, flags, words, functools.partial(theirs.bridge, common.Data(s)), "pytorch_lightning"


def compared(args, clone: Path) -> dict[str, list[float]]:
    """The four comparisons with one seed, by step."""
    file, flags, words, bridge, package = both_programs(args)
    drawn = by_theirs(clone, words, bridge, package)
    other = [vector(weights) for weights in drawn.weights]
    first = drawn.weights[0]
    train = functools.partial(by_ours, file, flags, drawn)
    ours = train(first, PIECES)
    return {
        "ours − theirs": apart(train(first), other),
        "with their rates": apart(train(first, ["rates"]), other),
        "with all pieces": apart(ours, other),
        "ours, disturbed": apart(train(disturbed(first), PIECES), ours),
    }


def main(argv=None):
    args = theirs.parser("steps", __doc__, METHODS, 2).parse_args(argv)
    of_base = args.method in solo_learn.BASES
    clone, out = theirs.checked(args, "steps", (solo_learn if of_base else theirs).ADDRESS)
    about = dict(vars(args), clone=None, out=str(out), authors_commit=theirs.commit_of(clone))
    common.new_folder(out, about, "cpu")
    found = []
    for seed in range(args.seed, args.seed + 3):
        args.seed = seed
        row = compared(args, clone)
        found.append(dict(seed=seed, **row))
        for name, shares in row.items():
            print(f"seed {seed}, {name:16}", *[f"{share:.1e}" for share in shares], flush=True)
    with common.replacing(out / "results.json") as file:
        file.write(json.dumps(found, indent=1).encode() + b"\n")


if __name__ == "__main__":
    common.launch(main)
