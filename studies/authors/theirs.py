"""Train with the authors' own program: main_pretrain.py of a clone, as it is, with our ResNet-8.

    git clone https://github.com/Cui-Peng-624/BayesNCL ../BayesNCL
    python studies/authors/theirs.py ../BayesNCL simclr --limit 5000 --seed 1
    python studies/authors/theirs.py ../BayesNCL ncl --limit 5000 --seed 1
    python studies/authors/theirs.py ../BayesNCL bayesncl --limit 5000 --seed 1

Theirs are loss, gate, views, batches, LARS, schedule and training loop (PyTorch Lightning), with
the settings of their scripts/pretrain/cifar/*.yaml and, for BayesNCL, of their README. Ours are the
network's layers, the images as arrays, and 20 epochs, one of them warm-up, in fp32 on one core.
The trained weights are then measured by common.evaluate, in our model but with their inputs.

It needs PyTorch Lightning of the authors' time, in an environment of its own:

    pip install -r requirements-dev.txt
    pip install --no-deps pytorch-lightning==1.9.5 lightning-utilities hydra-core==1.3.2 \
        omegaconf==2.3.0 antlr4-python3-runtime==4.9.3 torchmetrics==0.11.4 einops \
        lightning-bolts==0.7.0 timm==0.6.13 h5py seaborn

What stops their program today is bridged, see bridge().

The run folder has config.json, metrics.jsonl and embeddings.npz, as that of a method, and
authors.pt, their weights. It has no checkpoint: tools that read images would give this network
our inputs, and it was trained on theirs.
"""

import argparse
import functools
import importlib
import importlib.machinery
import json
import runpy
import shlex
import subprocess
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torchvision  # noqa: E402
from PIL import Image  # noqa: E402

METHODS = "simclr", "ncl", "bayesncl"
ADDRESS = "https://github.com/Cui-Peng-624/BayesNCL"
OURS = "--dataset cifar100 --arch resnet8 --warmup 1 --precision fp32"  # of the shared settings

# -------------------------------------------------------------------------- words of their program
EVERY_RUN = "wandb.enabled=False checkpoint.enabled=False data.num_workers=0"
CONFIG = {"simclr": "simclr.yaml", "ncl": "ncl.yaml", "bayesncl": "ncl.yaml"}
OF_METHOD = {
    # simclr.yaml has None, which YAML reads as a word; the program refuses it.
    "simclr": "method_kwargs.non_neg=null",
    "ncl": "",
    # as in their README
    "bayesncl": "method_kwargs.use_bayes=True method_kwargs.bayesian_prior_prob=0.8 "
    "method_kwargs.gate_threshold=0.5 method_kwargs.bayesian_kl_lambda=0.00003 "
    "method_kwargs.sigmoid_temperature=1.0 optimizer.gating_head_lr=0.1",
}


def words_for(method: str, epochs: int, warmup: float, seed: int) -> list[str]:
    """What is typed after main_pretrain.py."""
    config = f"--config-path scripts/pretrain/cifar --config-name {CONFIG[method]} name={method}"
    length = f"max_epochs={epochs} +scheduler.warmup_epochs={warmup:g} +seed={seed}"
    return f"{config} {EVERY_RUN} {length} {OF_METHOD[method]}".split()


# ------------------------------------------------------------------------------------- the network
class Backbone(nn.Module):
    """Our ResNet-8 in the place of theirs.

    For CIFAR their program gives the backbone another conv1 and maxpool, and takes its fc away. Of
    this one they are bystanders: forward does not call them.
    """

    def __init__(self, method: str):
        super().__init__()
        self.net, self.inplanes = common.resnet("resnet8", 32)

    def forward(self, x):
        return self.net(x)


RENAMED = {
    "backbone.net.": "backbone.",
    "projector.": "head.",
    "gating_head.": "gating.",
    "predictor.": "predictor.",  # this and the target network: of solo_learn.py's BYOL
    "momentum_backbone.net.": "target.0.",
    "momentum_projector.": "target.1.",
}


def named_as_ours(state: dict) -> dict:
    """Their weights by our names; without conv1, a bystander, and their online classifier."""
    found = {}
    for name, weight in state.items():
        for theirs, ours in RENAMED.items():
            if name.startswith(theirs):
                found[ours + name.removeprefix(theirs)] = weight
    return found


class TheirInputs(nn.Module):
    """Our inputs (x − 0.5) / 0.25 → theirs, (x − mean) / std of CIFAR-100's channels."""

    MEAN = 0.5071, 0.4865, 0.4409
    STD = 0.2673, 0.2564, 0.2762

    def forward(self, inputs):
        mean = inputs.new_tensor(self.MEAN).view(3, 1, 1)
        std = inputs.new_tensor(self.STD).view(3, 1, 1)
        x = 0.25 * inputs + 0.5  # in [0, 1]
        return (x - mean) / std


# -------------------------------------------------------------------------------------- the bridges
def data_set_of(data: common.Data):
    """A class in the place of torchvision's CIFAR100."""

    class CIFAR100(torch.utils.data.Dataset):
        def __init__(self, root, train=True, transform=None, **_):
            part = data.train if train else data.test
            self.images = part["x"].permute(0, 2, 3, 1).numpy()  # (N, 32, 32, 3)
            self.labels = part["y"].tolist()
            self.transform = transform

        def __len__(self):
            return len(self.labels)

        def __getitem__(self, index):
            image = Image.fromarray(self.images[index])
            return self.transform(image), self.labels[index]

    return CIFAR100


def nce_and_kl(model, logged: dict) -> dict[str, float]:
    """The losses of an epoch, of what their model has logged."""
    found = dict(loss=logged["train_nce_loss_epoch"].item())
    if model.use_bayes:
        found["kl"] = logged["train_bayesian_kl_loss_epoch"].item()
        found["loss"] += model.bayesian_kl_lambda * found["kl"]
        found["open"] = logged["gating_head_output_hard_mean"].item()  # of the first batch
    return found


def trainer_of(lightning, trained: list, losses):
    """A class in the place of Lightning's Trainer: one core, and no pass over the test images.

    When it has trained a model, it appends the model and a record of each epoch, with `losses`.
    """

    class Trainer(lightning.Trainer):
        def __init__(self, max_epochs, **_):
            self.records = []
            watch = lightning.callbacks.LambdaCallback(
                on_train_epoch_start=self.begin_epoch, on_train_epoch_end=self.end_epoch
            )
            super().__init__(
                max_epochs=max_epochs,
                accelerator="cpu",
                devices=1,
                callbacks=[watch],
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
            )

        def begin_epoch(self, *_):
            self.began = time.perf_counter()

        def end_epoch(self, _, model):
            record = dict(epoch=len(self.records) + 1, **losses(model, self.callback_metrics))
            record["seconds"] = time.perf_counter() - self.began
            images = self.num_training_batches * model.batch_size
            record["images_per_s"] = images / record["seconds"]
            self.records.append(record)
            print(*[f"{key} {value:.4g}" for key, value in record.items()], sep="  ", flush=True)

        def fit(self, model, train_loader, *_, **__):
            super().fit(model, train_loader)
            trained.extend([model, self.records])

    return Trainer


def find_program(clone: Path) -> None:
    """Let the modules of the clone be found; wandb and umap, which are not used here, are empty."""
    sys.path.insert(0, str(clone))
    for name in "wandb", "umap":
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules.setdefault(name, module)


def put_ours(package: str, data: common.Data, trained: list, losses) -> None:
    """Put our network, images and trainer where main_pretrain.py finds them.

    package: the name by which it imports Lightning
    """
    lightning = importlib.import_module(package)
    lightning.Trainer = trainer_of(lightning, trained, losses)
    torchvision.datasets.CIFAR100 = data_set_of(data)
    base = importlib.import_module("solo.methods.base")
    base.BaseMethod._BACKBONES["resnet18"] = Backbone


def bridge(data: common.Data, trained: list) -> None:
    """Put ours into main_pretrain.py, and mend what stops it.

    1. Its LARS imports `required`, which torch no longer has.
    2. It logs orthogonality, a matrix, where Lightning wants a number; here it is the mean.
    """
    importlib.import_module("torch.optim.optimizer").required = object()
    put_ours("pytorch_lightning", data, trained, nce_and_kl)
    lightning = importlib.import_module("pytorch_lightning")
    log = lightning.LightningModule.log

    def log_mean(self, name, value, *args, **options):
        log(self, name, torch.as_tensor(value).float().mean(), *args, **options)

    lightning.LightningModule.log = log_mean


def run_their_program(clone: Path, words: list[str], bridge):
    """The model that main_pretrain.py of the clone trains, and a record of each epoch.

    bridge: a function that gets the list to which they are appended
    """
    trained = []
    try:
        find_program(clone)
        bridge(trained)
    except ImportError as error:
        raise common.BadInput(f"{error}: install the packages that --help lists") from error
    program = str(clone / "main_pretrain.py")
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")
    return trained


# -------------------------------------------------------------------------------------- the program
def measured_by_authors(z: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """What the functions of their main_eval.py say of an embedding (N, K)."""
    from solo.methods import bayesncl_eval_helper_functions as theirs

    z = F.normalize(z)
    return dict(
        authors_act=1 - theirs.sparsity(z).item(),
        authors_live_dims=theirs.act_dim(z).item(),
        authors_cons=100 * theirs.semantic_consistency(z, y).item(),
        authors_entropy=theirs.semantic_entropy_sum_activation(z, y).item(),
    )


def measure_and_write(out, clone, words, settings, data, trained, measured=lambda z, y: {}):
    """Measure what run_their_program returned, in our model, and write a finished run's folder.

    measured: a function of z and y, for further numbers
    """
    their_model, records = trained
    weights = their_model.state_dict()
    model = importlib.import_module(settings.method).network(settings)
    model.load_state_dict(named_as_ours(weights))
    metrics, h, z = common.evaluate(nn.Sequential(TheirInputs(), model), data, settings)
    metrics |= measured(z, data.test["y"])
    common.print_table(metrics, data)

    seconds = sum(record["seconds"] for record in records)
    final = dict(event="final", epochs=len(records), **metrics, seconds_train=seconds)
    arrays = dict(h=h.numpy(), z=z.numpy(), y=data.classes["y"][data.test["y"]])
    command = shlex.join(["main_pretrain.py", *words])
    about = dict(vars(settings), authors_commit=commit_of(clone), authors_command=command)
    del about["command"]  # it was not our program
    common.new_folder(out, about, "cpu")
    with common.replacing(out / "embeddings.npz") as file:
        np.savez(file, **arrays)
    common.save(out / "authors.pt", weights)
    with common.replacing(out / "metrics.jsonl") as file:
        for record in [*records, final]:
            file.write(json.dumps(record).encode() + b"\n")


def commit_of(clone: Path) -> str | None:
    """The clone's commit; None where git knows none."""
    git = f"git -C {shlex.quote(str(clone))} rev-parse --short=10 HEAD"
    failed, commit = subprocess.getstatusoutput(git)
    return None if failed else commit


def parser(name: str, doc: str, methods, epochs: int):
    """The command line of this program and of solo_learn.py."""
    flags = argparse.ArgumentParser(
        prog=f"{name}.py",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count = common.number(int, 1)
    add = flags.add_argument
    add("clone", type=Path, help="folder of the clone")
    add("method", choices=methods)
    add("--epochs", type=count, default=epochs)
    add("--limit", type=count, help="train on so many images, classes in proportion")
    add("--seed", type=common.number(int, 0), default=1)
    add("--data-root", default="data", help="folder of the data sets (default: data)")
    add("--device", choices=["cpu"], default="cpu")
    add("--out", type=Path, help=f"run folder (default: runs/{name}-METHOD-seedSEED)")
    return flags


def checked(args, name: str, address: str) -> tuple[Path, Path]:
    """The folders of the clone and of the run; BadInput where they are not there, or not empty."""
    clone = args.clone.resolve()
    there = (clone / "main_pretrain.py").exists()
    common.need(there, f"{clone} has no main_pretrain.py: git clone {address} {args.clone}")
    out = args.out or Path(f"runs/{name}-{args.method}-seed{args.seed}")
    common.need(not out.exists() or not any(out.iterdir()), f"--out {out} is not empty")
    return clone, out


def flags_of(args) -> list[str]:
    """Our programs' flags of the settings that both have: they choose the images."""
    flags = [*OURS.split(), "--epochs", str(args.epochs), "--seed", str(args.seed)]
    flags += ["--data-root", args.data_root, "--device", args.device]
    return flags + (["--limit", str(args.limit)] if args.limit else [])


def main(argv=None):
    args = parser("theirs", __doc__, METHODS, 20).parse_args(argv)
    clone, out = checked(args, "theirs", ADDRESS)
    settings = importlib.import_module(args.method).parser().parse(flags_of(args))
    data = common.Data(settings)
    words = words_for(args.method, args.epochs, settings.warmup, args.seed)
    trained = run_their_program(clone, words, functools.partial(bridge, data))
    measure_and_write(out, clone, words, settings, data, trained, measured_by_authors)


if __name__ == "__main__":
    common.launch(main)
