"""The records of all runs, studies/<question>/records.jsonl: kept here, and read as pandas frames.

A line is a run, and has, of these, what the run left:

    run          its name, without the seed
    seed         none where a program has seeds of its own
    settings     config.json: the settings, the command, commit, hardware, torch and date
    epoch        metrics.jsonl: the last epoch
    final        metrics.jsonl: the final numbers; of older runs what interpret.py measured, too
    curve        the loss and SimSiam's indicator, "spread", of each epoch
    results      results.json, of sparse_coding.py and of the programs on theory
    finetune, robustness, selection, words     what the programs of tools/ measured
    interpret    what interpret.py measured of the embedding, see measured_by_interpret()
    dimensions, dictionaries, stability        of older runs, by programs that are gone

A later line of the same run and seed replaces an earlier one.
"""

import functools
import json
import math
import re
import shutil
import sys
from pathlib import Path

try:
    import numpy as np
    import pandas as pd
    from scipy import stats
except ImportError as error:
    sys.exit(f"{error}: pip install -r requirements-dev.txt")

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ROOT / "studies"
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(STUDIES)]
import common  # noqa: E402, F401
import interpret  # noqa: E402
from common import read_json  # noqa: E402

TOOLS = "finetune", "robustness", "selection", "words"  # what each measured is in <tool>.json
# A number that two of them have is the later one's.
NUMBERS = "dimensions", "epoch", "final", "dictionaries", *TOOLS, "stability", "interpret"
OF_CURVES = "loss", "spread"
OF_SEEDS = {  # data of ../seeds: its name in the records
    "built-in": "shapes",
    "MNIST-1D": "mnist1d",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
}
# interpret.json's controls, and how the records have called them from the first on.
CONTROLS = {
    "shuffled": "shuffled",
    "directions_of_h": "head",
    "directions_of_z": "rotated",
    "images_in_h": "images_in_h",
    "images_in_z": "images_in_z",
}

COLUMNS = {  # a heading: a number of the records, or a formula of some; digits behind the point
    "LP@1": ("lp1", 1),
    "LP@1 of z": ("lp1_embedding", 1),
    "5-NN": ("knn5", 1),
    "Cons.": ("cons", 1),
    "Cons. less shuffled": ("cons - shuffled_cons", 1),
    "adj.": ("adjusted", 1),
    "adj. less random directions": ("directions_of_h_lead", 1),
    "Act.": ("act", 3),
    "live": ("live_dims", 0),
    "below 0.1 %": ("rare_dims", 0),
    "H_s": ("entropy", 2),
}

# CIFAR-100 by the papers' recipe, 20 epochs, was trained several times with the same three seeds: a
# seed counts once, with the mean of its trainings (by_seed). The first has no shuffled labels. The
# processor of the first three was of SimCLR's kind.
MADE_AGAIN = {
    "cifar100/cifar100-cpu-ncl-lars": "cifar100/cifar100-cpu-bayesncl-lars",
    "dictionaries/claims-cifar100-ncl": "dictionaries/claims-cifar100-bayesncl",
    "dictionaries/claims-cifar100-again-ncl": "dictionaries/claims-cifar100-again-bayesncl",
    "dictionaries/fair-cifar100-ncl": "dictionaries/fair-cifar100-bayesncl",
}
BAYESNCL_ON_CIFAR_100 = [f"{bayesncl} − {ncl}" for ncl, bayesncl in MADE_AGAIN.items()]
NCL_ON_CIFAR_100 = [f"{ncl} − dictionaries/claims-cifar100-simclr" for ncl in [*MADE_AGAIN][:3]]


# --------------------------------------------------------------------------------------- the frames
def read(question: str) -> list[dict]:
    """The records of a question, the last one of each run and seed."""
    found = {}
    file = STUDIES / question / "records.jsonl"
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            found[record["run"], record.get("seed", 0)] = record
    return list(found.values())


def numbers(record: dict) -> dict[str, float]:
    """All numbers of a record, without what is undefined."""
    found = {}
    for part in NUMBERS:
        found |= record.get(part, {})
    found = {key: value for key, value in found.items() if value is not None}
    for key in list(found):  # until November 2026 there was one family
        if re.fullmatch("((top|background)_)*lead", key):
            found[key.replace("lead", "directions_of_h_lead")] = found.pop(key)
    return found


@functools.cache
def frame(question: str) -> pd.DataFrame:
    """Every number on record of a question: a row for each run and seed, NaN where it has none.

    Raises KeyError where nothing is on record.
    """
    rows = []
    for record in read(question):
        rows.append(numbers(record) | {"run": record["run"], "seed": record.get("seed", 0)})
    return pd.DataFrame(rows).set_index(["run", "seed"])


@functools.cache
def column(question: str, formula: str) -> pd.Series:
    """A number, or a formula of some, of all runs of a question."""
    return frame(question).eval(formula)


def values(what: str, formula: str) -> pd.Series:
    """A number of a run by seed; of "A − B" the differences of the seeds that both have.

    what: "ncl/shapes-ncl", or two such with " − " between; formula: "cons - shuffled_cons"
    Raises KeyError where a run or a number is not on record.
    """
    of_runs = []
    for name in what.split(" − "):
        question, run = name.split("/")
        try:
            of_runs.append(column(question, formula).loc[run])
        except (KeyError, pd.errors.UndefinedVariableError) as error:
            raise KeyError(f"{name}: no {formula} is on record") from error
    found = functools.reduce(pd.Series.sub, of_runs).dropna()
    if found.empty:
        raise KeyError(f"{what}: no {formula} is on record")
    return found


def by_seed(trainings: list[str], formula: str) -> pd.Series:
    """The mean by seed of trainings that were made again with the same seeds; see values()."""
    return pd.concat([values(what, formula) for what in trainings]).groupby("seed").mean()


# ---------------------------------------------------------------------------------------- the cells
def half_interval(differences: pd.Series) -> float:
    """Half the 95 % t-interval of the mean of paired differences, of two pairs or more."""
    n = len(differences)
    return stats.t.ppf(0.975, n - 1) * differences.std() / n**0.5


def welch(a: pd.Series, b: pd.Series, level: float) -> tuple[float, float]:
    """The difference of two means and half its interval by Welch's t, infinite if one has n = 1."""
    difference = a.mean() - b.mean()
    if min(len(a), len(b)) < 2:
        return difference, math.inf
    test = stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(level)
    return difference, (interval.high - interval.low) / 2


def power(differences: pd.Series, effect: float) -> float:
    """Of a two-sided t-test at 5 % on as many differences, where they scatter as these do."""
    n = len(differences)
    limit = stats.t.ppf(0.975, n - 1)
    noncentrality = effect / (differences.std() / n**0.5)
    too_high = stats.nct.sf(limit, n - 1, noncentrality)
    too_low = stats.nct.cdf(-limit, n - 1, noncentrality)
    return too_high + too_low


def with_half(mean: float, half: float, digits: int, is_difference: bool) -> str:
    """A number ± half its interval, if there is one; differences have a sign, but for 0."""
    text = f"{mean:{'+' if is_difference else ''}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    if math.isfinite(half):
        text += f" ± {half:.{digits}f}"
    return text.replace("-", "−")


def cell(found: pd.Series, digits: int, is_difference: bool) -> str:
    """The mean over seeds ± their standard deviation; of differences ± half the 95 % interval."""
    spread = half_interval(found) if is_difference else found.std()
    if len(found) <= (1 if is_difference else 2):
        spread = math.nan
    return with_half(found.mean(), spread, digits, is_difference)


def shows_difference(what: str, formula: str) -> bool:
    """Whether a cell is a difference: of two runs, within one, or adj. less random directions'."""
    return " − " in what or " - " in formula or formula.endswith("lead")


def table(rows: dict[str, str], headings: list[str], more: dict | None = None) -> pd.DataFrame:
    """A table of a page: the cells as texts, and n, the number of seeds or of pairs.

    rows: a label: a run, or "A − B"; more: headings beside those of COLUMNS
    """
    known = COLUMNS | (more or {})
    lines = []
    for label, what in rows.items():
        line = {"": label}
        sizes = set()
        for heading in headings:
            formula, digits = known[heading]
            found = values(what, formula)
            line[heading] = cell(found, digits, shows_difference(what, formula))
            sizes.add(len(found))
        line["n"] = " to ".join(str(n) for n in sorted({min(sizes), max(sizes)}))
        lines.append(line)
    return pd.DataFrame(lines)


# ----------------------------------------------------------------------- pairs of seeds (../seeds)
def pairs_of(data: str, row: str, key: str) -> dict[tuple, float]:
    """A number of every pair of seeds of a row of studies/seeds that is on record."""
    found = {}
    for record in read("seeds"):
        settings = record["settings"]
        is_row = (settings.get("data"), settings.get("row")) == (data, row)
        if is_row and key in record["interpret"]:
            found[tuple(settings["pair"])] = record["interpret"][key]
    return found


def seeds_of(pairs: dict[tuple, float]) -> list:
    return sorted({seed for pair in pairs for seed in pair})


def jackknife(pairs: dict[tuple, float]) -> tuple[float, float]:
    """The mean over pairs of seeds, and half its 95 % interval; nan with two seeds or fewer.

    Pairs that share a seed are not independent, so that seeds are left out one by one. The interval
    is right where a pair's number is a sum of its seeds' effects; noise of single pairs widens it.
    """
    mean = np.mean([*pairs.values()]).item()
    seeds = seeds_of(pairs)
    n = len(seeds)
    rests = [[value for pair, value in pairs.items() if seed not in pair] for seed in seeds]
    if n < 3 or not all(rests):
        return mean, math.nan
    error = jackknife_error([np.mean(rest) for rest in rests])
    return mean, stats.t.ppf(0.975, n - 1).item() * error


def jackknife_error(without: list[float]) -> float:
    """The standard error of a number, from its values without each of n seeds."""
    n = len(without)
    return math.sqrt((n - 1) / n * np.square(without - np.mean(without)).sum())


def cell_of_pairs(pairs: dict[tuple, float], digits: int, is_difference: bool) -> str:
    """The mean and half its interval, as cell() shows them; a dash where there is no pair."""
    if not pairs:
        return "–"
    return with_half(*jackknife(pairs), digits, is_difference)


# ----------------------------------------------------------------------------------- a run's record
def split(name: str) -> tuple[str, int | None]:
    """The name of a run's folder as run and seed, None where it has no seed."""
    run, seed = re.fullmatch(r"(.*?)(?:-seed(\d+))?", name).groups()
    return run, None if seed is None else int(seed)


def of_run(folder: Path) -> dict:
    """The record of a finished run in its folder <run>-seed<seed>, or <run>.

    interpret.py has measured it, if it is a training's.
    """
    run, seed = split(folder.name)
    record = {"run": run}
    if seed is not None:
        record["seed"] = seed
    record["settings"] = read_json(folder / "config.json")
    if (folder / "results.json").exists():
        record["results"] = read_json(folder / "results.json", object)  # of some a list
        return record
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    *epochs, record["final"] = [json.loads(line) for line in lines]
    if epochs:
        record["epoch"] = epochs[-1]
        record["curve"] = {}
        for name in OF_CURVES:
            if name in epochs[0]:
                record["curve"][name] = [line[name] for line in epochs]
    for tool in TOOLS:
        if (folder / f"{tool}.json").exists():
            measured = read_json(folder / f"{tool}.json")  # of words.py lists of words, too
            record[tool] = {k: v for k, v in measured.items() if not isinstance(v, list)}
    record["interpret"] = measured_by_interpret(folder)
    return record


def measured_by_interpret(folder: Path) -> dict[str, float | None]:
    """What interpret.py says of a run, of its dimensions as in the papers and of its own rule.

    Of a dense z interpret.json has numbers of half-dimensions, here with "top_" before their names:
    without it they are of whole dimensions. A control's numbers begin with its name in CONTROLS.
    What is undefined is None: an older part's number must not stand in for it.
    """
    embedding = interpret.read_embedding(folder)
    findings = interpret.interpret(embedding, "nonzero", controls=False)
    measured = read_json(folder / "interpret.json")
    top = "" if measured["active"] == "nonzero" else "top_"
    found = findings.numbers | {"active": measured["active"]}
    found |= {f"{top}{name}": value for name, value in measured["numbers"].items()}
    for control, recorded in CONTROLS.items():
        for name, value in measured.get(control, {}).items():
            found[f"{recorded}_{name}"] = value
    return found


def keep(question: str, folder: Path) -> dict:
    """Record a finished run among those of a question, with its curves if it left some."""
    record = of_run(folder)
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    with open(STUDIES / question / "records.jsonl", "a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    if (folder / "curves.npz").exists():
        shutil.copy(folder / "curves.npz", STUDIES / question / f"{folder.name}.npz")
    frame.cache_clear()
    column.cache_clear()
    return record
