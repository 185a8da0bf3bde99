"""Step by step: ours with the first weights, the views and the noise of the authors' program.

    git clone https://github.com/Cui-Peng-624/BayesNCL ../BayesNCL
    python studies/authors/steps.py ../BayesNCL ncl --limit 1280
    git clone https://github.com/vturrisi/solo-learn ../solo-learn
    python studies/authors/steps.py ../solo-learn byol --limit 1280

Trainings from other draws can only be compared in distribution. Here main_pretrain.py of the clone
trains two epochs, started as by theirs.py or solo_learn.py, and what it drew is kept; then our file
trains on the same. After each step all weights are compared, once with our own formulas of

    rates   learning rates: their warm-up begins at 3e-5 and is at the peak a step earlier
    noise   Gumbel's: −log(−log(u + 1e-4) + 1e-4); ours clamps u to [1e-4, 1 − 1e-4]

and once with theirs. Even equal formulas do not give equal weights for long, because errors of
rounding grow. A second run of ours, its first weights changed in the last bit, shows how fast.

results.json has, for each of three seeds from --seed on and each of four comparisons, how far the
weights are apart after each step, see apart(). It needs the packages that theirs.py or
solo_learn.py lists.
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
import torchvision  # noqa: E402

GUMBEL = ["--gate", "gumbel"]
THEIR_GUMBEL = ["method_kwargs.gate_type=gumbel_sigmoid"]
METHODS = *theirs.METHODS, "gumbel", *solo_learn.BASES  # gumbel: BayesNCL with its other gate


def parts(weights: dict) -> dict[str, torch.Tensor]:
    """Of backbone, head, gating, predictor and target those that there are, each as one vector.

    Biases and BatchNorm's scales are left out: a bias before BatchNorm has no gradient but errors
    of rounding, of which Adam makes whole steps.
    """
    found = {}
    for name in sorted(weights):
        if weights[name].ndim > 1:
            found.setdefault(name.partition(".")[0], []).append(weights[name].flatten().double())
    return {part: torch.cat(vectors) for part, vectors in found.items()}


def apart(a: list[dict], b: list[dict]) -> list[float]:
    """‖a − b‖ / ‖b − first‖ after each step, of the part for which it is largest.

    a, b: the parts() of two trainings before the first step and after each
    """
    found = []
    for ours, other in zip(a[1:], b[1:], strict=True):
        shares = [
            (ours[part] - other[part]).norm() / (other[part] - b[0][part]).norm() for part in b[0]
        ]
        found.append(max(shares).item())
    return found


class Drawn:
    """What their program draws: a callback of Lightning's keeps it."""

    def __init__(self):
        self.views = []  # of each step: v1, v2
        self.states = []  # of each step: the state of the generator from which noise comes
        self.rates = []  # of each step: {name of a group of weights: its learning rate}
        self.weights = []  # before each step, by our names; later after the last one, too

    def before_step(self, trainer, model, batch, _):
        """Keep what a step begins with, the weights as a copy: training goes on."""
        self.keep(model)
        _, views, _ = batch
        self.views.append(views)
        (optimizer,) = trainer.optimizers
        self.rates.append({group["name"]: group["lr"] for group in optimizer.param_groups})
        self.states.append(torch.get_rng_state())

    def keep(self, model):
        """Keep a copy of the weights, by our names."""
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

    with contextlib.ExitStack() as as_before:  # what the bridge replaces
        for place, name in (lightning, "Trainer"), (torchvision.datasets, "CIFAR100"):
            as_before.enter_context(mock.patch.object(place, name, getattr(place, name)))
        model, _ = theirs.run_their_program(clone, words, bridge)
    drawn.keep(model)
    return drawn


def as_theirs(u: torch.Tensor) -> torch.Tensor:
    """The u' for which −log(−log(u')), our formula of Gumbel's noise, is theirs of u."""
    return (u + 1e-4) * math.exp(-1e-4)


class Trained(Exception):
    """Our file has trained, and would measure now."""


def by_ours(file: str, flags: list[str], drawn: Drawn, first: dict, pieces=()) -> list[dict]:
    """Train with our file on what was drawn: parts() before the first step and after each.

    first: the weights before the first step; pieces: of "rates" and "noise" those that are theirs
    """
    module = importlib.import_module(file)
    build, rand_like = module.network, torch.rand_like
    model = None
    found = []

    def with_first_weights(settings):
        nonlocal model
        model = build(settings)
        model.load_state_dict(first)
        return model

    def two_views(*_, **__):
        step = len(found)
        found.append(parts(model.state_dict()))
        torch.set_rng_state(drawn.states[step])
        return drawn.views[step]

    def set_lr(optimizer, _):  # our files call it before two_views
        rates = drawn.rates[len(found)]
        for group, name in zip(optimizer.param_groups, ["projector", "gating_head"]):
            group["lr"] = rates.get(name, rates["projector"])

    def evaluate(*_):
        found.append(parts(model.state_dict()))
        raise Trained

    with contextlib.ExitStack() as patches, tempfile.TemporaryDirectory() as out:

        def put(place, name, ours):
            patches.enter_context(mock.patch.object(place, name, ours))

        put(module, build.__name__, with_first_weights)  # the name by which main() builds it
        put(common, "two_views", two_views)
        put(common, "evaluate", evaluate)
        put(common.Run, "end_epoch", lambda *_: None)
        put(common, "QUIET", True)  # as --quiet does, which nobody takes back
        if "rates" in pieces:
            put(common, "set_lr", set_lr)
        if "noise" in pieces:
            put(torch, "rand_like", lambda logits: as_theirs(rand_like(logits)))
        try:
            module.main([*flags, "--quiet", "--out", out])
        except Trained:
            return found


def disturbed(weights: dict) -> dict:
    """The weights, each with a normal error of 6e-8 of it: half of them change in the last bit."""
    noise = torch.Generator().manual_seed(0)
    found = dict(weights)
    for name, weight in weights.items():
        if weight.is_floating_point():
            error = 2**-24 * torch.randn(weight.shape, generator=noise, dtype=torch.float64)
            found[name] = (weight * (1 + error)).to(weight.dtype)
    return found


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
    other = [parts(weights) for weights in drawn.weights]
    first = drawn.weights[0]
    train = functools.partial(by_ours, file, flags, drawn)
    both = ["rates", "noise"]
    ours = train(first, both)
    return {
        "ours": apart(train(first), other),
        "their rates": apart(train(first, ["rates"]), other),
        "their rates and noise": apart(ours, other),
        "ours, disturbed": apart(train(disturbed(first), both), ours),
    }


def main(argv=None):
    args = theirs.parser("steps", __doc__, METHODS, 2).parse_args(argv)
    of_base = args.method in solo_learn.BASES
    clone, out = theirs.checked(args, "steps", (solo_learn if of_base else theirs).ADDRESS)
    seeds = list(range(args.seed, args.seed + 3))
    about = dict(vars(args), clone=None, out=str(out), seed=None, seeds=seeds)
    common.new_folder(out, about | dict(authors_commit=theirs.commit_of(clone)), "cpu")
    found = []
    for seed in seeds:
        args.seed = seed
        row = compared(args, clone)
        found.append(dict(seed=seed, **row))
        for name, shares in row.items():
            print(f"seed {seed}, {name:21}", *[f"{share:.1e}" for share in shares], flush=True)
    with common.replacing(out / "results.json") as file:
        file.write(json.dumps(found, indent=1).encode() + b"\n")


if __name__ == "__main__":
    common.launch(main)
