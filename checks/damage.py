"""Damage to a file, at random: of its bytes, or by someone who can write its format."""

import io
import json
import pickle
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor


# ----------------------------------------------------------------------------------------- of bytes
# Each of these takes the bytes of a file and a numpy generator, and returns other bytes.
def flip_a_bit(good: bytes, draw) -> bytes:
    at = draw.integers(len(good))
    flipped = good[at] ^ (1 << draw.integers(8))
    return good[:at] + bytes([flipped]) + good[at + 1 :]


def overwrite(good: bytes, draw) -> bytes:
    at = draw.integers(len(good))
    return good[:at] + draw.bytes(99) + good[at + 99 :]


def cut_off(good: bytes, draw) -> bytes:
    return good[: draw.integers(1, len(good))]


def empty(good: bytes, draw) -> bytes:
    return b""


def a_picture(good: bytes, draw) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "png")
    return file.getvalue()


def a_pickle(good: bytes, draw) -> bytes:
    return pickle.dumps({"model": print, "z": [1, 2]})


def an_archive(good: bytes, draw) -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.arange(3))
    return file.getvalue()


def a_list(good: bytes, draw) -> bytes:
    return b"[1, 2]\n"


OF_BYTES = [flip_a_bit, flip_a_bit, overwrite, cut_off, empty]
OF_BYTES += [a_picture, a_pickle, an_archive, a_list]


# ---------------------------------------------------- damage by someone who can write the format
def load(path: Path):
    """What a file holds, as dicts, lists, arrays, tensors and numbers."""
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix == ".npy":
        return {"": np.load(path)}
    if path.suffix == ".npz":
        return dict(np.load(path))
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)
    if path.suffix == ".json":
        return json.loads(path.read_text())
    return [json.loads(line) for line in path.read_text().splitlines()]


def save(path: Path, value) -> None:
    """The reverse of load()."""
    if path.suffix == ".safetensors":
        tensors = {key: entry for key, entry in value.items() if isinstance(entry, Tensor)}
        for key, entry in tensors.items():
            if entry.is_complex():  # which the format lacks
                tensors[key] = torch.view_as_real(entry)
        save_file(tensors, path)
    elif path.suffix == ".npy":
        np.save(path, *value.values())
    elif path.suffix == ".npz":
        np.savez(path, **value)
    elif path.suffix == ".pt":
        torch.save(value, path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(value))
    else:
        path.write_text("".join(json.dumps(line) + "\n" for line in value))


def other_array(a: np.ndarray, draw) -> np.ndarray:
    """An array as it must not be; or as it may be, of another type or size."""
    flat = a.reshape(-1)
    choices = [flat, a[None], flat[:-1], flat[:0], np.full(a.shape, "text")]
    if a.dtype.kind in "fiu":
        spoilt = flat.copy()
        worst = [np.nan, np.inf, 1e38] if a.dtype.kind == "f" else [np.iinfo(a.dtype).max]
        spoilt[draw.integers(a.size)] = draw.choice(worst)
        spoilt = spoilt.reshape(a.shape)
        choices += [spoilt, spoilt, a.astype(float), a.astype(complex), np.zeros_like(a)]
    return choices[draw.integers(len(choices))]


def other_value(value, draw):
    """A value of another type, size or shape."""
    if isinstance(value, np.ndarray):
        return other_array(value, draw)
    if isinstance(value, Tensor):
        array = other_array(value.numpy(), draw)
        if array.dtype.kind in "US":
            return array.tolist()
        return torch.from_numpy(array)
    choices = [None, "text", "", -1, 0, 0.5, 10**9, float("nan"), [], [1], {}, {"a": 1}, True]
    return choices[draw.integers(len(choices))]


def change_something(tree, draw) -> str:
    """Remove or alter one entry, somewhere in nested dicts and lists; → what was done."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = keys[draw.integers(len(keys))]
    value = tree[key]
    nested = isinstance(value, dict | list) and len(value) > 0
    if nested and draw.random() < 0.8:
        return f"{key}/{change_something(value, draw)}"
    what = draw.choice(["remove", "alter", "alter", "alter"])
    if what == "remove" and len(tree) > 1:
        del tree[key]
        return f"{key} removed"
    tree[key] = other_value(value, draw)
    return f"{key} is {described(tree[key])}"


def described(value) -> str:
    """A value in a few words."""
    if isinstance(value, np.ndarray | Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return repr(value)[:60]


def damage(path: Path, draw) -> tuple[bool, str]:
    """Damage a file; → whether its bytes were, or its content, and what was done."""
    writable = path.suffix != ".png"
    if writable and draw.random() < 0.5:
        tree = load(path)
        done = change_something(tree, draw)
        save(path, tree)
        return False, done
    if draw.random() < 0.06:
        path.unlink()
        return True, "deleted"
    change = OF_BYTES[draw.integers(len(OF_BYTES))]
    path.write_bytes(change(path.read_bytes(), draw))
    return True, change.__name__.replace("_", " ")
