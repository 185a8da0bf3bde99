"""The records of all runs, studies/<question>/records.jsonl, read and written here alone.

A line is a run, and has, of these, what the run left:

    run          its name, without the seed
    seed         none where a program has seeds of its own
    settings     config.json: the settings, the command, commit, hardware, torch and date
    epoch        metrics.jsonl: the last epoch
    final        metrics.jsonl: the final numbers; of older runs what interpret.py measured, too
    results      results.json, of sparse_coding.py and of the programs on theory
    dimensions   what from_dimensions() says of the numbers of all dimensions
    finetune, robustness, selection, words     what the programs of tools/ measured
    stability    what sparsity/sparsity.py measured
    interpret    what interpret.py measured of the embedding, see of_interpret(), and its P@k
    dictionaries of older runs: what dictionaries.py measured, which was in dictionaries/ then

Of some runs a question keeps more, because a picture shows it: dimensions.csv (a line a dimension),
curves.csv (a line an epoch) and <run>.npz (the curves of sparse_coding.py).
"""

import contextlib
import csv
import json
import os
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import common  # noqa: E402
import interpret  # noqa: E402
import shapes  # noqa: E402

import torch  # noqa: E402
from runs import read_json  # noqa: E402
from selection import precision_at  # noqa: E402

STUDIES = ROOT / "studies"
# <tool>.json of a run.
TOOLS = "finetune", "robustness", "selection", "words", "stability"
# Of a number in two of them the later one counts.
NUMBERS = "dimensions", "epoch", "final", "dictionaries", *TOOLS, "interpret"

# Runs of which more is kept: question → runs.
WITH_DIMENSIONS = {
    "bayesncl": ["shapes-ncl", "shapes-bayesncl", "shapes-bayesncl-no-kl", "shapes-bayesncl-ipw"],
    "consistency": [
        "cifar10-cpu-page-ncl",
        "cifar100-cpu-ncl",
        "cifar100-cpu-ncl-after-5",
        "cifar100-cpu-ncl-after-10",
        "cifar100-cpu-ncl-lars",
        "cifar100-cpu-ncl-lars-after-5",
        "cifar100-cpu-ncl-lars-after-10",
        "cifar100-cpu-ncl-topk",
        "cifar100-cpu-bayesncl",
        "cifar100-cpu-bayesncl-after-5",
        "cifar100-cpu-bayesncl-after-10",
        "cifar100-cpu-bayesncl-lars",
        "cifar100-cpu-bayesncl-lars-after-5",
        "cifar100-cpu-bayesncl-lars-after-10",
    ],
}
WITH_CURVES = {
    "simsiam": ["shapes-simsiam-no-stop-grad", "simsiam-16px-simsiam-no-stop-grad"],
    "landscape": [
        "landscape-findings",
        "landscape-findings-iid",
        "landscape-fig4",
        "landscape-lr-0.1",
        "landscape-lr-0.5",
        "landscape-lr-2",
        "landscape-masks",
        "landscape-paper-fig4",
        "landscape-paper-figures",
        "landscape-rank",
        "landscape-rank-eq6",
    ],
}
# Data set, a run's first word → its classes, of equal size, and its test images.
TEST_SETS = {"shapes": (10, 1000), "cifar10": (10, 10_000), "cifar100": (100, 10_000)}
OF_A_DIMENSION = "dimension", "act", "cons", "class", "background_cons", "background_class"
OF_AN_EPOCH = "epoch", "spread", "loss"


# ---------------------------------------------------------------------------------------- the lines
def file_of(question: str) -> Path:
    return STUDIES / question / "records.jsonl"


def read(file: Path) -> list[dict]:
    """The records in a file; none where there is no file."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def by_name(record: dict) -> tuple[str, int]:
    return record["run"], record.get("seed", 0)


@contextlib.contextmanager
def alone(folder: Path):
    """One program at a time works on the records in a folder. Windows has no such lock."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def put(file: Path, record: dict) -> None:
    """Write a record into a file, in the place of an older one of the same run and seed."""
    with alone(file.parent):
        write_with(file, record)


def write_with(file: Path, record: dict) -> None:
    """What put() does while no other program is at it."""
    kept = [old for old in read(file) if by_name(old) != by_name(record)]
    lines = []
    for one in sorted(kept + [record], key=by_name):
        line = json.dumps(one, ensure_ascii=False, separators=(",", ":"))
        lines.append(f"{line}\n")
    with common.replacing(file) as new:
        new.write("".join(lines).encode())


def add(folder: Path, part: str, numbers: dict[str, float]) -> None:
    """Write what was measured of the run in a folder into its record, where it is on record.

    part: one of TOOLS. A record of another run of that name stays as it is, which a line says.
    """
    folder = folder.resolve()
    settings = json.loads((folder / "config.json").read_text())
    run, seed = split(folder.name)
    for file in STUDIES.glob("*/records.jsonl"):
        with alone(file.parent):
            record = of_seeds(file, run).get(seed or 0)
            if record is None:
                continue
            recorded = record["settings"]
            if any(recorded.get(name) != settings.get(name) for name in ("command", "commit")):
                print(f"{file.parent.name} has another {folder.name} on record: nothing is added")
                continue
            write_with(file, record | {part: numbers})


def of_seeds(file: Path, run: str) -> dict[int, dict]:
    """Seed → record of a run in a file, by seed."""
    found = [record for record in read(file) if record["run"] == run]
    return {record.get("seed", 0): record for record in found}


def numbers(record: dict) -> dict[str, float]:
    """All numbers of a record, without what is undefined."""
    found = {}
    for part in NUMBERS:
        found |= record.get(part, {})
    return {key: value for key, value in found.items() if value is not None}


# ----------------------------------------------------------------------------------- the dimensions
def read_columns(file: Path | list[str]) -> np.ndarray:
    """A dimensions.csv, or its lines: the columns by name, NaN where one is empty."""
    return np.genfromtxt(file, delimiter=",", names=True, ndmin=1)


def random_consistency(dataset: str) -> np.ndarray:
    """Expected Cons. of 1, 2, …, all N test images of a data set, drawn at random: (N,)."""
    classes, images = TEST_SETS[dataset]
    mean, _ = interpret.chance_curve((images // classes,) * classes)
    return mean


def kept_dimensions(question: str) -> dict[str, dict[int, np.ndarray]]:
    """Run → seed → the columns that a question's dimensions.csv has of it."""
    text = (STUDIES / question / "dimensions.csv").read_text(encoding="utf-8")
    first, *lines = text.splitlines()
    names = first.removeprefix("run,seed,")
    lines_of = defaultdict(list)  # of each run and seed
    for line in lines:
        run, seed, rest = line.split(",", 2)
        lines_of[run, int(seed)].append(rest)
    found = defaultdict(dict)
    for (run, seed), own in lines_of.items():
        found[run][seed] = read_columns([names, *own])
    return found


def of_background(columns: np.ndarray, background: int) -> np.ndarray:
    """Activation rates of the dimensions that stand for a background.

    At least 90 % of the images that they are active on have it.
    """
    stands_for = columns["background_class"] == background
    consistent = columns["background_cons"] >= 0.9
    return columns["act"][stands_for & consistent]


def from_dimensions(columns: np.ndarray) -> dict[str, float]:
    """What the numbers of all dimensions say of a run.

    cons_weighted    Cons. in %, weighted by activation
    dead_dims        dead dimensions in %
    dims_, rate_<background>    number and mean rate of the dimensions that stand for it
    """
    K = len(columns)
    columns = columns[columns["act"] > 0]
    act = columns["act"]
    cons = 100 * columns["cons"]
    found = {}
    if len(act):
        found["cons_weighted"] = float(np.average(cons, weights=act))
    found["dead_dims"] = 100 - 100 * len(act) / K
    if "background_cons" in columns.dtype.names:
        for b, name in enumerate(shapes.BACKGROUNDS):
            rates = of_background(columns, b)
            found[f"dims_{name}"] = len(rates)
            found[f"rate_{name}"] = float(rates.mean()) if len(rates) else 0.0
    return found


# ----------------------------------------------------------------------------------- a run's record
def split(name: str) -> tuple[str, int | None]:
    """The name of a run's folder as run and seed, None where it has no seed."""
    run, seed = re.fullmatch(r"(.*?)(?:-seed(\d+))?", name).groups()
    if seed is None:
        return run, None
    return run, int(seed)


def of_run(folder: Path) -> dict:
    """The record of a finished run in its folder <run>-seed<seed>, or <run>.

    interpret.py has measured it. Writes dimensions.csv there, of the dimensions as in the papers.
    """
    run, seed = split(folder.name)
    record = {"run": run}
    if seed is not None:
        record["seed"] = seed
    record["settings"] = json.loads((folder / "config.json").read_text())
    if (folder / "results.json").exists():
        record["results"] = json.loads((folder / "results.json").read_text())
        return record

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    *epochs, final = [json.loads(line) for line in lines]
    if epochs:
        record["epoch"] = epochs[-1]
    record["final"] = final
    embedding = interpret.read_embedding(folder)
    findings = interpret.interpret(embedding, "nonzero", controls=False)
    interpret.write_csv(folder / "dimensions.csv", findings)
    record["dimensions"] = from_dimensions(read_columns(folder / "dimensions.csv"))
    for tool in TOOLS:
        file = folder / f"{tool}.json"
        if file.exists():
            record[tool] = without_lists(json.loads(file.read_text()))
    measured = read_json(folder / "interpret.json")
    record["interpret"] = findings.numbers | of_interpret(measured) | of_neighbours(embedding)
    return record


def without_lists(measured: dict) -> dict:
    """The numbers of what a tool measured: words.json has lists of words too."""
    return {key: value for key, value in measured.items() if not isinstance(value, list)}


def of_interpret(measured: dict) -> dict[str, float | None]:
    """What interpret.json says, by the names of a record.

    Of a dense z these are numbers of half-dimensions, with "top_" before their names: without it
    they are of whole dimensions, as in the papers. A control's numbers begin with its name. What is
    undefined stays, as None: an older part's number must not stand in for it.
    """
    top = "" if measured["active"] == "nonzero" else "top_"
    found = {"active": measured["active"]}
    found |= {f"{top}{name}": value for name, value in measured["numbers"].items()}
    for control in interpret.CONTROLS:
        for name, value in measured.get(control, {}).items():
            found[f"{control}_{name}"] = value
    return found


def of_neighbours(embedding: interpret.Embedding) -> dict[str, float | None]:
    """P@k of the embedding for each of its labels: p_at_1, …, background_p_at_1, …"""
    z = torch.from_numpy(embedding.z)
    found = {}
    for prefix, y in embedding.labels.items():
        _, y = np.unique(y, return_inverse=True)
        for k, value in precision_at(z, torch.from_numpy(y)).items():
            found[f"{prefix}p_at_{k}"] = value
    return found


def keep(question: str, folder: Path) -> dict:
    """Record a finished run among those of a question, and what pictures show of it."""
    record = of_run(folder)
    put(file_of(question), record)
    run, seed = split(folder.name)
    for other, runs in WITH_DIMENSIONS.items():
        if run in runs:
            with open(folder / "dimensions.csv", encoding="utf-8", newline="") as file:
                lines = list(csv.DictReader(file))
            add_lines(STUDIES / other / "dimensions.csv", run, seed, OF_A_DIMENSION, lines)
    if run in WITH_CURVES.get(question, []):
        if (folder / "curves.npz").exists():
            shutil.copy(folder / "curves.npz", STUDIES / question / f"{run}.npz")
        else:
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            epochs = [json.loads(line) for line in lines[:-1]]
            add_lines(STUDIES / question / "curves.csv", run, seed, OF_AN_EPOCH, epochs)
    return record


def add_lines(file: Path, run: str, seed: int, wanted: tuple, lines: list[dict]) -> None:
    """Add lines of a run to a .csv file, in the place of older ones of the same run and seed.

    wanted: the columns, of which those are written that the file or these lines have.
    """
    with alone(file.parent):
        add_lines_with(file, run, seed, wanted, lines)


def add_lines_with(file: Path, run: str, seed: int, wanted: tuple, lines: list[dict]) -> None:
    """What add_lines() does while no other program is at it."""
    kept = []
    if file.exists():
        with open(file, encoding="utf-8", newline="") as old:
            kept = list(csv.DictReader(old))
    name = {"run": run, "seed": str(seed)}
    kept = [line for line in kept if (line["run"], line["seed"]) != (run, str(seed))]
    every = kept + [name | line for line in lines]
    present = set().union(*every)
    names = ["run", "seed"] + [name for name in wanted if name in present]
    with common.replacing(file) as new:
        text = [",".join(names)]
        for line in every:
            text.append(",".join(str(line.get(name, "")) for name in names))
        new.write(("\n".join(text) + "\n").encode())
