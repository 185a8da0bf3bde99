"""What the folders of two runs hold, compared bit for bit."""

import json
import sys
from pathlib import Path

import numpy as np
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402

TIMES = {"images_per_s", "seconds_train", "seconds"}  # of a record


def parts(value, name="") -> dict:
    """What nested dicts and lists hold: a name such as "/model/head.0.weight" → a value."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {name: value}
    found = {}
    for key, inner in items:
        if key not in TIMES:
            found |= parts(inner, f"{name}/{key}")
    return found


def read(path: Path):
    """What a file of a run's folder holds."""
    if path.suffix == ".pt":
        return common.load_checkpoint(path)
    if path.suffix == ".npz":
        return dict(np.load(path))
    lines = path.read_text().splitlines()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in lines]
    return json.loads("".join(lines))


def bits(value):
    """A value in a form that is equal where all bits are."""
    if isinstance(value, Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return repr(value)


def differences(ours: Path, theirs: Path) -> list[str]:
    """The files, and parts of files, in which two runs' folders differ.

    config.json is left out, which has each run's own command.
    """
    found = []
    names = {path.name for path in [*ours.iterdir(), *theirs.iterdir()]}
    for name in sorted(names - {"config.json"}):
        if not (ours / name).exists() or not (theirs / name).exists():
            found.append(name)
            continue
        one = parts(read(ours / name))
        other = parts(read(theirs / name))
        for part in sorted(one.keys() | other.keys()):
            same = part in one and part in other and bits(one[part]) == bits(other[part])
            if not same:
                found.append(name + part)
    return found
