"""What kills.py, faults.py and damage.py share.

They run a program of this repository in a forked process, because importing torch anew takes
seconds, and compare what two runs left, bit for bit. What runs there is the file itself, as
`python <file>` would run it: its errors and exit codes are those that a user sees.
"""

import argparse
import dataclasses
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # an optimizer imports it at its first use
from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import common  # noqa: E402
import shapes  # noqa: E402

METHODS = ["simclr", "ncl", "bayesncl", "sparsehead", "simsiam", "nce", "mmncl", "lpjepa"]
NETWORK = "--preset shapes --arch resnet8 --image-size 16 --batch-size 32"
SMALL = f"--dataset small --data-root . {NETWORK} --device cpu"
EPOCHS = 6
COMMANDS = {f"{name}.py": f"{name}.py {SMALL} --epochs {EPOCHS}" for name in METHODS}
COMMANDS["sae.py"] = f"sae.py of --batch-size 32 --epochs {EPOCHS} --device cpu"
COMMANDS["sparse_coding.py"] = "sparse_coding.py --experiment fig2 fig4 --epochs 25 --device cpu"
FORK = multiprocessing.get_context("fork")
TIMES = {"images_per_s", "seconds_train", "seconds"}  # of a record: no two runs have the same


# ------------------------------------------------------------------------------- running a program


@dataclasses.dataclass
class Ending:
    """How a program ended.

    code: its exit code; negative where a signal ended it, None where it was stopped at the limit
    out, err: what it printed on standard output and on standard error
    """

    code: int | None
    out: str
    err: str
    seconds: float


def run_file(command: str, folder: Path, before) -> None:
    """Run a program in this process, in the folder; what it prints goes to out.txt and err.txt."""
    os.chdir(folder)
    sys.stdout = open("out.txt", "w")
    sys.stderr = open("err.txt", "w")
    sys.argv = command.split()
    if before:
        before()
    runpy.run_path(str(ROOT / sys.argv[0]), run_name="__main__")


def start(command: str, folder: Path, before=None):
    """Start a command line in a forked process of its own, which is returned.

    before: a function that this process calls first
    """
    torch.set_num_threads(1)  # further threads would not be there behind the fork
    process = FORK.Process(target=run_file, args=[command, folder, before])
    process.start()
    return process


def run(command: str, folder: Path, limit=60.0, before=None) -> Ending:
    """Run a command line to its end, or for `limit` seconds."""
    began = time.monotonic()
    process = start(command, folder, before)
    process.join(limit)
    seconds = time.monotonic() - began
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    out = (folder / "out.txt").read_text(errors="replace")
    err = (folder / "err.txt").read_text(errors="replace")
    return Ending(code, out, err, seconds)


def must(command: str, folder: Path, before=None) -> Ending:
    """Run a command line that has to succeed; BadInput where it does not."""
    ending = run(command, folder, 600, before)
    if ending.code != 0:
        raise common.BadInput(f"{command}: exit code {ending.code}: {ending.err}")
    return ending


def write_data(folder: Path) -> None:
    """What COMMANDS need: small.npz, 128 training and 60 test images of the built-in data.

    And `of`, a run whose features sae.py reads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "small.npz", **shapes.draw(128, 60))
    must(f"simclr.py {SMALL} --epochs 1 --out of", folder)


def note_always() -> None:
    """Have sparse_coding.py note how far it is at every measurement, not every thirty seconds."""
    clock = time.perf_counter

    def fast():
        return 10_000 * clock()

    time.perf_counter = fast


# ------------------------------------------------------------------------- comparing two runs
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
        one = parts(load(ours / name))
        other = parts(load(theirs / name))
        for part in sorted(one.keys() | other.keys()):
            same = part in one and part in other and bits(one[part]) == bits(other[part])
            if not same:
                found.append(name + part)
    return found


# -------------------------------------------------------------------------- programs of this folder
def parser(name: str, doc: str) -> argparse.ArgumentParser:
    """The flags that each program here has."""
    raw = argparse.RawDescriptionHelpFormatter
    flags = argparse.ArgumentParser(prog=name, description=doc, formatter_class=raw)
    flags.add_argument("--seed", type=int, default=1, help="of what is drawn (default: 1)")
    flags.add_argument("--write", type=Path, metavar="FILE", help="the result goes there too")
    return flags


def tell(file: Path | None, title: str, text: str) -> None:
    """Print a result under the command, the commit, the machine and the date; write it to file."""
    where = f"{common.hardware('cpu')}, torch {torch.__version__}"
    git = ["git", "-C", str(ROOT), *"describe --always --exclude=* --abbrev=10 --dirty=+".split()]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    date = time.strftime("%Y-%m-%d")
    command = " ".join(["python", *sys.argv])
    result = f"# {title}, {date}, commit {commit}, {where}\n$ {command}\n{text}\n"
    print(result, end="")
    if file:
        file.write_text(result)
