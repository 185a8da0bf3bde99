"""What becomes of damaged input? Each is to be refused in one line, or to change no number.

    python checks/damage.py --write checks/damage-<date>.txt

Files of every kind that a program reads are damaged at random: bits flipped, bytes overwritten,
cut off, another file or nothing in its place; and by someone who can write the format: a key
missing, a value of another type, shape or size, NaN. Then the program reads it.
"""

import csv
import io
import json
import pickle
import resource
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import harness
from harness import NETWORK, SMALL

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import common  # noqa: E402
import interpret  # noqa: E402
from common import progress  # noqa: E402

LAYERS = "--head-hidden 32 --head-out 16"
TRAIN = f"simclr.py {SMALL} {LAYERS} --epochs 1 --out"
MAPPED = f"simclr.py --dataset mapped --data-root . {NETWORK} {LAYERS} --epochs 1 --out new"
RESUME = "simclr.py --resume run"
SELECT = "tools/selection.py run --device cpu"
INTERPRET = "tools/interpret.py {} --out new"

INPUTS = {  # what it is: the damaged file, who reads it, and where its numbers are then
    "checkpoint, --resume": ("run/checkpoint.pt", RESUME, "run/metrics.jsonl"),
    "checkpoint, tools/": ("run/checkpoint.pt", SELECT, "run/selection.json"),
    "config, --resume": ("run/config.json", RESUME, "run/metrics.jsonl"),
    "config, tools/": ("run/config.json", SELECT, "run/selection.json"),
    "config, look.py": ("run/config.json", "tools/look.py run", "run/dimensions.csv"),
    "metrics, look.py": ("run/metrics.jsonl", "tools/look.py run", "run/dimensions.csv"),
    "words, look.py": ("run/words.json", "tools/look.py run", "run/dimensions.csv"),
    "embeddings, look.py": ("run/embeddings.npz", "tools/look.py run", "run/dimensions.csv"),
    "backbone, sae.py": (
        "run/backbone.pt",
        "sae.py run --batch-size 32 --epochs 2 --device cpu --out new",
        "new/metrics.jsonl",
    ),
    "data .npz": ("small.npz", f"{TRAIN} new", "new/metrics.jsonl"),
    "data .npy": ("mapped/x_train.npy", MAPPED, "new/metrics.jsonl"),
    "labels .npy": ("mapped/y_train.npy", MAPPED, "new/metrics.jsonl"),
    "z .npz": ("z.npz", INTERPRET.format("z.npz"), "new/interpret.json"),
    "z .npy": ("z.npy", INTERPRET.format("z.npy"), "new/interpret.json"),
    "z .safetensors": ("z.safetensors", INTERPRET.format("z.safetensors"), "new/interpret.json"),
    "z .pt": ("z.pt", INTERPRET.format("z.pt"), "new/interpret.json"),
    "z sparse": ("sparse.npz", INTERPRET.format("sparse.npz"), "new/interpret.json"),
    "curves, draw.py": ("noted/curves.npz", "tools/draw.py noted", "noted/results.json"),
    "picture": (
        "pictures/07.png",
        "tools/look.py z.npz --images pictures --out new",
        "new/dimensions.csv",
    ),
    "note, sparse_coding.py": (
        "noted/memory/fig4-0-cpu.pt",
        "sparse_coding.py --device cpu --resume noted",
        "noted/results.json",
    ),
}
ACCEPTED = ["refused", "equal", "other numbers"]
FINDINGS = ["silent", "not finite", "more lines", "traceback", "hang", "died"]
CHECKSUMS = {".npz", ".pt", ".png"}  # in which a changed byte can be noticed
GIGABYTES = 12  # of memory for a program


# ---------------------------------------------------------------------------------- undamaged files
def keep_notes() -> None:
    """Have sparse_coding.py leave its notes, as where it is killed just before its end."""
    shutil.rmtree = print


def write_good(root: Path) -> None:
    """Every file of INPUTS, undamaged."""
    harness.write_data(root)
    arrays = dict(np.load(root / "small.npz"))
    (root / "mapped").mkdir()
    for key, array in arrays.items():
        np.save(root / "mapped" / f"{key}.npy", array)

    harness.must(f"{TRAIN} run", root)
    config = root / "run" / "config.json"
    settings = json.loads(config.read_text()) | dict(epochs=2)  # the second is there to go on with
    config.write_text(json.dumps(settings))
    words = {"nameable": 50.0, "words": 16 * [[["red", 0.5], ["on", 0.1]]]}
    (root / "run" / "words.json").write_text(json.dumps(words))
    landscape = "sparse_coding.py --experiment fig4 --epochs 20 --device cpu --out noted"
    harness.must(landscape, root, before=keep_notes)

    z = np.random.default_rng(0).normal(size=(60, 12)).astype(np.float32).clip(0)
    y = np.arange(60) % 4
    np.save(root / "z.npy", z)
    np.savez(root / "z.npz", z=z, y=y, h=z[:, :5])
    tensors = {"z": torch.from_numpy(z), "y": torch.from_numpy(y)}
    torch.save(tensors, root / "z.pt")
    save_file(tensors, root / "z.safetensors")
    rows, columns = z.nonzero()
    layout = dict(format="coo", shape=z.shape, data=z[rows, columns], row=rows, col=columns)
    np.savez(root / "sparse.npz", **layout, y=y)
    (root / "pictures").mkdir()
    for i in range(60):
        Image.fromarray(arrays["x_test"][i].transpose(1, 2, 0)).save(root / f"pictures/{i:02}.png")


# --------------------------------------------------------------------------------- damage to bytes
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


# --------------------------------------------------- damage by somebody who can write the format
def save(path: Path, value) -> None:
    """Write what harness.load() reads."""
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
        tree = harness.load(path)
        done = change_something(tree, draw)
        save(path, tree)
        return False, done
    if draw.random() < 0.06:
        path.unlink()
        return True, "deleted"
    change = OF_BYTES[draw.integers(len(OF_BYTES))]
    path.write_bytes(change(path.read_bytes(), draw))
    return True, change.__name__.replace("_", " ")


# ------------------------------------------------------------------------------------ what followed
def numbers_of(path: Path) -> dict | None:
    """Every number in a result, by its name; None where there is none."""
    if not path.exists():
        return None
    if path.suffix != ".csv":
        return harness.parts(harness.load(path))
    rows = csv.reader(path.open())
    return {str(i): row for i, row in enumerate(rows)}


def finite(value) -> bool:
    """Whether a value, or a cell of a table, is no number that is not finite."""
    text = str(value).lower()
    return "nan" not in text and "inf" not in text


def outcome(ending: harness.Ending, expected: dict, found: dict | None, certain: bool) -> str:
    """One of ACCEPTED or FINDINGS.

    expected, found: the numbers that the program gives of undamaged input, and those it gave
    certain: whether the program could know of the damage; else other numbers are no fault
    """
    if ending.code is None:
        return "hang"
    if "Traceback" in ending.err + ending.out:
        return "traceback"
    if ending.code == 2:
        return "refused" if ending.err.count("\n") == 1 else "more lines"
    if ending.code != 0 or found is None:
        return "died"
    if found == expected:
        return "equal"
    for name, value in found.items():
        if not finite(value) and finite(expected.get(name, 0)):
            return "not finite"
    return "silent" if certain else "other numbers"


def limit_memory() -> None:
    size = GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def case(good: Path, root: Path, kind: str, expected: dict, draw) -> tuple[str, str]:
    """One damaged input of a kind; → its outcome, and a line that tells of it."""
    name, command, result = INPUTS[kind]
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(good, root)
    of_bytes, done = damage(root / name, draw)
    ending = harness.run(command, root, before=limit_memory)
    found = None
    if ending.code == 0:
        found = numbers_of(root / result)
    certain = of_bytes and (root / name).suffix in CHECKSUMS
    what = outcome(ending, expected, found, certain)
    said = ending.err.strip().splitlines() or [""]
    return what, f"{kind}: {done}: {what}: {said[-1][:160]}"


def undamaged(good: Path, root: Path, kind: str) -> dict:
    """The numbers that a program gives of undamaged input."""
    _, command, result = INPUTS[kind]
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(good, root)
    harness.must(command, root, before=limit_memory)
    return numbers_of(root / result)


# -------------------------------------------------------------------------------------- the program
def main(argv=None):
    flags = harness.parser("damage.py", __doc__)
    flags.add_argument(
        "--each", type=int, default=24, help="damaged inputs of a kind (default: 24)"
    )
    flags.add_argument("--kinds", nargs="+", choices=INPUTS, default=list(INPUTS))
    args = flags.parse_args(argv)
    rows = [["input", "n", *ACCEPTED, *FINDINGS]]
    told = []
    with tempfile.TemporaryDirectory() as name:
        good = Path(name) / "good"
        root = Path(name) / "damaged"
        write_good(good)
        for kind in progress(args.kinds, "kinds of input"):
            expected = undamaged(good, root, kind)
            counts = Counter()
            for i in range(args.each):
                draw = np.random.default_rng([args.seed, list(INPUTS).index(kind), i])
                what, line = case(good, root, kind, expected, draw)
                counts[what] += 1
                if what not in ("refused", "equal"):
                    told.append(line)
            rows.append([kind, str(args.each), *[str(counts[what]) for what in rows[0][2:]]])
    text = interpret.markdown(rows)
    harness.tell(args.write, "Damaged inputs", "\n".join([text, *told]))


if __name__ == "__main__":
    common.launch(main)
