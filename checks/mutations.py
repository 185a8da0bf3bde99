"""What becomes of damaged input? Each is to be refused in one line, or to change no number.

    python checks/mutations.py --write checks/mutations-<date>.txt

Files of every kind that a program reads are damaged at random: bits flipped, bytes overwritten,
cut off, another file or nothing in its place; and by someone who can write the format: a key
missing, a value of another type, shape or size, NaN. Then the program reads it.
"""

import csv
import json
import resource
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import forked
from compare import parts, read
from damage import damage
from forked import NETWORK, SMALL

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import common  # noqa: E402
import interpret  # noqa: E402
from run_folder import progress  # noqa: E402

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
        "pictures/7.png",
        "look.py z.npz --images pictures --out new",
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
    forked.write_data(root)
    arrays = dict(np.load(root / "small.npz"))
    (root / "mapped").mkdir()
    for key, array in arrays.items():
        np.save(root / "mapped" / f"{key}.npy", array)

    forked.must(f"{TRAIN} run", root)
    config = root / "run" / "config.json"
    settings = json.loads(config.read_text()) | dict(epochs=2)  # the second is there to go on with
    config.write_text(json.dumps(settings))
    words = {"nameable": 50.0, "words": 16 * [[["red", 0.5], ["on", 0.1]]]}
    (root / "run" / "words.json").write_text(json.dumps(words))
    landscape = "sparse_coding.py --experiment fig4 --epochs 20 --device cpu --out noted"
    forked.must(landscape, root, before=keep_notes)

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
        Image.fromarray(arrays["x_test"][i].transpose(1, 2, 0)).save(root / f"pictures/{i}.png")


# ------------------------------------------------------------------------------------ what followed
def numbers_of(path: Path) -> dict | None:
    """Every number in a result, by its name; None where there is none."""
    if not path.exists():
        return None
    if path.suffix != ".csv":
        return parts(read(path))
    rows = csv.reader(path.open())
    return {str(i): row for i, row in enumerate(rows)}


def finite(value) -> bool:
    """Whether a value, or a cell of a table, is no number that is not finite."""
    text = str(value).lower()
    return "nan" not in text and "inf" not in text


def outcome(ending: forked.Ending, expected: dict, found: dict | None, certain: bool) -> str:
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
    ending = forked.run(command, root, before=limit_memory)
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
    forked.must(command, root, before=limit_memory)
    return numbers_of(root / result)


# -------------------------------------------------------------------------------------- the program
def main(argv=None):
    flags = forked.parser("mutations.py", __doc__)
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
    forked.tell(args.write, "Damaged inputs", "\n".join([text, *told]))


if __name__ == "__main__":
    common.launch(main)
