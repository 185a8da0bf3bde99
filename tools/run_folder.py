"""What tools/ and studies/ share: reading a finished run, and writing JSON."""

import argparse
import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
import simclr  # noqa: E402
from common import BadInput, need  # noqa: E402

import torch.nn as nn  # noqa: E402

# ----------------------------------------------------------------------------------- a run's folder
# What a run of an image method has: its data, network and views.
NEEDED = "dataset", "data_root", "limit", "arch", "image_size", *common.VIEWS


def read_run(folder: Path) -> argparse.Namespace:
    """The settings in config.json of an image method's run; BadInput if it is no such run."""
    settings = common.settings_of_run(folder)
    missing = [name for name in NEEDED if name not in settings]
    need(not missing, f"{folder} is not a run of an image method: it has no {missing[:1]}")
    # sae.py has taken them over from another run: its own flags do not tell what they may be.
    simclr.parser().check({name: settings[name] for name in NEEDED}, folder)
    if settings.get("fingerprint") is None:  # an older version noted none
        settings.pop("fingerprint", None)
    return argparse.Namespace(**settings)


def read_log(folder: Path) -> list[dict]:
    """The records in a run's metrics.jsonl, of each epoch and at last the final one, if finished.

    Values are numbers, strings or None. BadInput where the file is damaged.
    """
    path = folder / "metrics.jsonl"
    try:
        records = [json.loads(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"{path} cannot be read ({reason})") from error
    plain = str, int, float, type(None)
    for record in records:
        need(isinstance(record, dict), f"{path} is damaged: a line holds no dictionary")
        for key, value in record.items():
            need(isinstance(value, plain), f"{path} is damaged: {key} is no number")
    return records


def inside(folder: Path, name: str) -> Path:
    """A path that a file in this folder names; BadInput where it leads out of the folder."""
    path = folder / name
    try:
        stays = path.resolve().is_relative_to(folder.resolve())
    except (RuntimeError, ValueError):  # links in a circle, a name with a null byte
        stays = False
    need(stays, f"{folder} names {name!r}, which is not in it: such a path is not followed")
    return path


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


def data_of(
    run: argparse.Namespace, root: str | None = None, same=True, typed=False
) -> common.Data:
    """A run's data set on the CPU; BadInput if it is another one by now, unless same=False.

    root: its folder, if not the run's; typed: whether the user has named the data set
    """
    # A run may be somebody else's. Its config.json must not decide what is read from this disk,
    # unless it knows the data already: these are compared.
    named = Path(run.dataset) if root else Path(run.data_root, run.dataset)
    outside = named.is_absolute() or ".." in named.parts
    known = typed or (same and getattr(run, "fingerprint", None))
    need(known or not outside, f"the run's data were {named}: give --data-root")
    root = root or run.data_root
    settings = vars(run) | dict(data_root=root, device="cpu")
    if not same:
        settings["fingerprint"] = None
    return common.Data(argparse.Namespace(**settings))


def labelled_data(run: argparse.Namespace, root: str | None, task: str) -> common.Data:
    """A run's data set; BadInput if it lacks the two labelled classes that the task needs."""
    data = data_of(run, root)
    several = len(data.classes.get("y", [])) > 1
    need(several, f"{task} needs labels of two classes or more, which {run.dataset} lacks")
    return data


# --------------------------------------------------------------------------------------------- JSON
def write_json(path: Path, value: dict) -> None:
    """Write `value` as JSON to `path`; an existing file stays whole until it is replaced."""
    with common.replacing(path) as file:
        file.write(json.dumps(value, indent=1).encode() + b"\n")
