"""What the tests share: programs run as their users run them, and small runs to look at."""

import argparse
import contextlib
import functools
import importlib
import inspect
import io
import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent
FOLDERS = [ROOT / name for name in ("tools", "checks", "studies")]
FOLDERS += dict.fromkeys(file.parent for file in sorted(ROOT.glob("studies/*/*.py")))
sys.path[:0] = [str(ROOT), *map(str, FOLDERS)]

import common  # noqa: E402
import interpret  # noqa: E402
import shapes  # noqa: E402

PENALTIES = common.fit_probe.__defaults__[0]  # as users have them; see quick_measures
METHODS = ["simclr", "ncl", "bayesncl", "sparsehead", "simsiam", "nce", "mmncl", "lpjepa"]
FLAGS = {  # of the runs below: a noisy gate, a target network, the other noise
    "bayesncl": "--gate gumbel",
    "sparsehead": "--base byol",
    "lpjepa": "--noise gaussian",
}


def run_program(command, *more):
    """Run a command line in this process, because importing torch anew takes seconds."""
    name, *argv = [*shlex.split(command), *map(str, more)]
    program = importlib.import_module(Path(name).stem)
    # What its own last line lets launch() catch: elsewhere a user would see a traceback.
    caught = [] if "common.launch(main)" in inspect.getsource(program) else [interpret.BadInput]
    common.launch(lambda: program.main(argv), *caught)


def refusal(command, *more):
    """The one line on stderr with which a command, or a function, ends with exit code 2."""
    errors = io.StringIO()
    with pytest.raises(SystemExit) as stop, contextlib.redirect_stderr(errors):
        if callable(command):
            common.launch(command, interpret.BadInput)
        else:
            run_program(command, *more)
    assert stop.value.code == 2
    told = re.sub(r".* \d+/\d+(, \d+ s left)?\n", "", errors.getvalue())  # progress
    assert told.count("\n") == 1, errors.getvalue()
    return told


def side_by_side(*commands):
    """Run programs at the same time, a thread each; three keep two cores busy."""

    def run(command):
        alone = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, env=alone, check=True)

    with ThreadPoolExecutor(3) as pool:
        [*pool.map(run, commands)]


def records(folder):
    """metrics.jsonl of a run without its times: a dict for each epoch, and the final one."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    times = {"images_per_s", "seconds", "seconds_train"}
    return [{name: line[name] for name in line if name not in times} for line in found]


def write_files(root, files):
    """Write files, by their names: bytes, words, the arrays of an archive, or an array."""
    for name, content in files.items():
        path = Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, (bytes, str)):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        elif isinstance(content, dict):
            np.savez(path, **content)
        else:
            np.save(path, content)


@functools.cache
def naive_chance(sizes):
    """The mean share of the commonest class of 1, 2, ..., N random images: every draw counted."""
    N = sum(sizes)
    total = [0] * (N + 1)
    for counts in itertools.product(*(range(size + 1) for size in sizes)):
        total[sum(counts)] += math.prod(map(math.comb, sizes, counts)) * max(counts)
    return [total[n] / (n * math.comb(N, n)) for n in range(1, N + 1)]


class Parsed(Exception):
    """A command line is good."""


@pytest.fixture
def parse_only(monkeypatch):
    """Programs stop when their command line is parsed."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(*args):
        parse(*args)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)


def program_of(path):
    """The function of a program that reads sys.argv."""
    return importlib.import_module(Path(path).stem).main


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def quick_measures():
    """In this process a probe tries two penalties instead of six, and a family has 200 orders."""
    common.fit_probe.__defaults__ = ((1.0, 1e-1),)
    interpret.FAMILY = 200


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Flags of a run of a second: three epochs of four steps. few.npz has eight test images."""
    root = tmp_path_factory.mktemp("data")
    arrays = shapes.draw(240, 100)
    np.savez(root / "tiny.npz", **arrays)
    few = {name: a[:8] if "test" in name else a for name, a in arrays.items()}
    np.savez(root / "few.npz", **few)
    np.savez(root / "unlabelled.npz", x_train=arrays["x_train"], x_test=arrays["x_test"])
    flags = "--preset shapes --image-size 16 --epochs 3 --batch-size 60 --device cpu"
    return f"--dataset tiny --data-root {root} {flags}"


@pytest.fixture(scope="session")
def run_of(tiny, tmp_path_factory):
    """The folder of a method's finished run, which is trained when somebody asks for it."""
    root = tmp_path_factory.mktemp("runs")

    @functools.cache
    def folder_of(method):
        run_program(f"{method}.py {tiny} {FLAGS.get(method, '')} --out", root / method)
        return root / method

    return folder_of
