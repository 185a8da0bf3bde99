"""What tools/ and studies/ share: reading a finished run, reading and writing JSON, progress."""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
from common import BadInput, need  # noqa: E402

import torch.nn as nn  # noqa: E402

# ----------------------------------------------------------------------------------- a run's folder
NEEDED = {  # settings of every run of an image method: its data, network and views
    "method": str,
    "dataset": str,
    "data_root": str,
    "limit": int | None,
    "arch": str,
    "image_size": int,
    "min_scale": float | int,
    "jitter": float | int,
    "gray": float | int,
    "blur": float | int,
    "crop": str,
}


def read_run(folder: Path) -> argparse.Namespace:
    """The settings in config.json of an image method's run; BadInput if it is no such run."""
    path = folder / "config.json"
    try:
        settings = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"{folder} is not a run of an image method ({reason})") from error
    need(isinstance(settings, dict), f"{path} is damaged: it holds no settings")
    for name, kind in NEEDED.items():
        known = name in settings and isinstance(settings[name], kind)
        need(known, f"{folder} is not a run of an image method: {path} has no valid {name}")
    return argparse.Namespace(**settings)


def load_run(folder: Path) -> tuple[argparse.Namespace, nn.Module]:
    """The settings and the trained model, on the CPU, of a finished run of any method."""
    run = read_run(folder)
    need((folder / "backbone.pt").exists(), f"{folder} has no backbone.pt: it has not finished")
    checkpoint = common.load_checkpoint(folder / "checkpoint.pt")
    try:
        model = importlib.import_module(run.method).network(run)
        model.load_state_dict(checkpoint["model"])
    except (ImportError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"{folder} cannot be rebuilt from its settings ({reason})") from error
    return run, model


def load_backbone(backbone: nn.Module, folder: Path) -> None:
    """Load the weights of a finished run; BadInput if they do not fit."""
    path = folder / "backbone.pt"
    need(path.exists(), f"{folder} has no backbone.pt: the run has not finished")
    weights = common.load_checkpoint(path)
    try:
        backbone.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        raise BadInput(f"{path} does not fit its config.json ({error})") from error


def data_of(run: argparse.Namespace, root: str | None = None) -> common.Data:
    """A run's data set, without x_unlabeled, on the CPU. root: its folder, if not the run's."""
    settings = vars(run) | dict(data_root=root or run.data_root, device="cpu")
    return common.Data(argparse.Namespace(**settings), unlabelled=False)


def labelled_data(run: argparse.Namespace, root: str | None, task: str) -> common.Data:
    """A run's data set; BadInput if it lacks the two labelled classes that the task needs."""
    data = data_of(run, root)
    several = len(data.classes.get("y", [])) > 1
    need(several, f"{task} needs labels of two classes or more, which {run.dataset} lacks")
    return data


# --------------------------------------------------------------------------------------------- JSON
def read_json(path: Path) -> dict:
    """The contents of a JSON file; BadInput if it is damaged."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise BadInput(f"{path} is damaged; delete it ({error})") from error


def write_json(path: Path, value: dict) -> None:
    """Write `value` as JSON to `path`; an existing file stays whole until it is replaced."""
    with common.replacing(path) as file:
        file.write(json.dumps(value, indent=1).encode() + b"\n")


# ----------------------------------------------------------------------------------------- progress
def progress(items, what: str):
    """Yield the items, and report progress on standard error at most every ten seconds.

    items: anything with a length
    """
    began = time.monotonic()
    next_line = began + 10
    for done, item in enumerate(items):
        now = time.monotonic()
        if now >= next_line:
            left = (now - began) / max(1, done) * (len(items) - done)
            print(f"{what}: {done}/{len(items)}, {left:.0f} s left", file=sys.stderr, flush=True)
            next_line = now + 10
        yield item
