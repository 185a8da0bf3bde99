"""Make the runs of a question that are not on record, and record them.

studies/<question>/runs.txt has a run a line, and indented below it the commands that the finished
run is given to, after interpret.py, which measures every run:

    shapes-ncl   1-5   python ncl.py
        python tools/selection.py RUN

Its seeds are 1-5, or 1,2,3, or - where the program has seeds of its own. RUN stands for the run's
folder, {seed} for its seed. To the first command this program adds --seed, --out runs/<run>-seed1,
--device and --flags, to each command --data-root; a program with seeds of its own gets --out alone
and is not measured. What is on record is skipped and what was interrupted goes on; a folder of that
name but of other flags ends in a line. A run that reads what another one leaves, which is on record
but not here, is left out. To make a run anew, delete its line in records.jsonl and its folder in
runs/ first.

    python studies/run.py ncl                        SimCLR, NCL, NCL + TopK
    python studies/run.py ncl bayesncl --rows "cifar10-cpu-*" shapes-ncl --seeds 1 2
    python studies/run.py cifar100 --rows "cifar100-cpu-*"   for 20 epochs
    python studies/run.py landscape --jobs 1         sparse_coding.py, one thread
    python studies/run.py gpu                        the papers' recipes for 200 epochs, for a GPU
    python studies/report.py                         then put the numbers into the pages

On a CPU there are as many runs at a time as cores, each on one thread: that makes more runs an hour
than one run on all cores. Ctrl-C, SIGTERM and --minutes end this program and its runs, which lose
the epoch that they are in.
"""

import argparse
import fnmatch
import importlib
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import records
import torch
from records import ROOT, common, interpret  # of the folder above
from runs import read_json

RUNS = ROOT / "runs"
TELL_EVERY = 10  # seconds, how far it is


# -------------------------------------------------------------------------------------- runs.txt
def questions() -> list[str]:
    """The folders of studies/ that have a runs.txt."""
    return sorted(file.parent.name for file in records.STUDIES.glob("*/runs.txt"))


def seeds_of(text: str) -> list[int | None]:
    """1-5, 1,2,3 or -, a program's own: the seeds, None for its own. Raises ValueError."""
    if text == "-":
        return [None]
    if "-" in text:
        first, last = text.split("-")
        return list(range(int(first), int(last) + 1))
    return [int(seed) for seed in text.split(",")]


def rows_of(question: str) -> dict[str, tuple[list[int | None], list[str]]]:
    """A question's runs.txt: run → its seeds and its command lines, the training's first.

    Raises BadInput for a line that it cannot read.
    """
    file = records.STUDIES / question / "runs.txt"
    rows = {}
    commands = []  # of the last run so far
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if not line.startswith(" "):
                name, seeds, line = line.split(maxsplit=2)
                commands = []
                rows[name] = seeds_of(seeds), commands
            commands.append(without_python(line))
        except ValueError as error:
            wanted = "want a run, its seeds (1-5) and python <program> …, or spaces and the latter"
            raise common.BadInput(f"{file}, line {number}: {wanted} ({error})") from error
    return rows


def without_python(command: str) -> str:
    """The command without its "python". Raises ValueError."""
    first, rest = command.split(maxsplit=1)
    if first != "python":
        raise ValueError(f"this begins with {first}")
    return rest.strip()


def asked_for(name: str, patterns: list[str] | None) -> bool:
    """Whether --rows asks for a run: by its name, by a pattern or by saying nothing."""
    for pattern in patterns or ["*"]:
        if fnmatch.fnmatchcase(name, pattern):
            return True
    return False


def others_read(name: str, lines: list[list[str]]) -> set[str]:
    """The other runs of which the commands of a run read what they leave: features, weights."""
    found = set()
    for line in lines:
        for word in line:
            if word.startswith("runs/"):
                found.add(word.split("/")[1])
    return found - {name}


def commands(
    question: str, patterns: list[str] | None, seeds: list[int] | None, extra: str
) -> dict[str, list[list[str]]]:
    """The runs of a question: name of the folder → command lines, the training's first.

    Seeds are outermost; the runs that take something of others are last.

    patterns, seeds: these only; extra: further flags of the runs that have a seed
    """
    rows = rows_of(question)
    wanted = {}  # row: seeds
    for row, (own_seeds, _) in rows.items():
        if not asked_for(row, patterns):
            continue
        wanted[row] = own_seeds
        if seeds and own_seeds != [None]:
            wanted[row] = seeds
    numbered = set()
    for of_row in wanted.values():
        numbered.update(of_row)
    numbered.discard(None)

    runs = {}
    later = {}
    for seed in [None, *sorted(numbered)]:
        for row, (_, lines) in rows.items():
            if seed not in wanted.get(row, []):
                continue
            name = row
            if seed is not None:
                name += f"-seed{seed}"
            filled = []
            for line in lines:
                text = line.replace("{seed}", str(seed)).replace("RUN", f"runs/{name}")
                filled.append(shlex.split(text))
            if seed is not None:
                filled[0] += shlex.split(extra) + ["--seed", str(seed)]
                filled.insert(1, ["interpret.py", f"runs/{name}"])
            if others_read(name, filled):
                later[name] = filled
            else:
                runs[name] = filled
    return runs | later


# ------------------------------------------------------------------------------------------ a run
def device_of(name: str, device: str) -> str:
    """What a run is made on: with "-cpu" in its name always a CPU."""
    if "-cpu" in name:
        return "cpu"
    return device


def flags_of(command: str) -> dict:
    """The flags of a method's command line, as its own parser reads them; None: not typed."""
    program, *argv = shlex.split(command)
    parser = importlib.import_module(program.removesuffix(".py")).parser()
    not_typed = {action.dest: None for action in parser._actions}
    return not_typed | parser.defaults | vars(parser.parse_args(argv))


def need_same(name: str, command: list[str]) -> None:
    """BadInput where a folder runs/<name> was begun by another command than runs.txt has."""
    config = RUNS / name / "config.json"
    if not config.exists():
        return
    begun = read_json(config).get("command")
    if begun is None:  # it was not noted
        return
    begun_by, _, _ = begun.partition(" ")
    remedy = f"move {config.parent} away"
    common.need(begun_by == command[0], f"{name} was begun by {begun_by}: {remedy}")
    before = flags_of(begun)
    for flag, value in flags_of(shlex.join(command)).items():
        if flag not in common.Parser.OF_A_CALL:
            differs = f"{name} was begun with {flag} {before[flag]}, runs.txt has {value}"
            common.need(before[flag] == value, f"{differs}: {remedy}")


def lacks(name: str, lines: list[list[str]], waiting: list[str]) -> str | None:
    """The first path that a run reads and that is neither there nor to be made before it."""
    for line in lines:
        for word in line:
            if not word.startswith("runs/"):
                continue
            other = word.split("/")[1]
            if other != name and other not in waiting and not (ROOT / word).exists():
                return word
    return None


def begin(name: str, command: list[str], device: str, data_root: str) -> subprocess.Popen:
    """Begin a run in runs/<name>, or go on with it."""
    run = RUNS / name
    _, seed = records.split(name)
    begun = (run / "config.json").exists()
    goes_on = begun
    if seed is None:  # a program with seeds of its own, which notes in memory/ how far it is
        goes_on = (run / "memory").exists()
    if begun and not goes_on:
        shutil.rmtree(run)
    where = "--out"
    if goes_on:  # by the run's own settings
        command = command[:1] + [word for word in command if word == "--compile"]
        where = "--resume"
    if seed is not None:
        command = command + ["--device", device, "--data-root", data_root]
    return start(name, command + [where, os.path.relpath(run, ROOT)], device)


def start(name: str, command: list[str], device: str) -> subprocess.Popen:
    """Start a program. What it prints goes to runs/<name>.log."""
    RUNS.mkdir(exist_ok=True)
    print(f"{name}: {shlex.join(command)}", flush=True)
    environment = dict(os.environ)
    if device == "cpu":
        environment["OMP_NUM_THREADS"] = "1"
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with open(RUNS / f"{name}.log", "a") as log:
        return subprocess.Popen(
            [sys.executable] + command,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def has_ended(name: str) -> bool:
    """Whether runs/<name> is complete, of a program with seeds of its own, which then refuses."""
    run = RUNS / name
    return (run / "results.json").exists() and not (run / "memory").exists()


def keep(question: str, name: str, code: int) -> bool:
    """Record a run that has ended with an exit code; whether it ended well."""
    if code:
        last = (RUNS / f"{name}.log").read_text().splitlines()[-1:]
        print(f"{name}: exit code {code}: {' '.join(last)}", file=sys.stderr, flush=True)
        return False
    try:
        record = records.keep(question, RUNS / name)
    except (common.BadInput, interpret.BadInput) as error:  # as of a collapsed z
        print(f"{name}: not recorded: {error}", file=sys.stderr, flush=True)
        return False
    numbers = records.numbers(record)
    told = [f"{name}: recorded"]
    for key, (heading, digits) in common.COLUMNS.items():
        if key in numbers:
            told.append(f"{heading} {numbers[key]:.{digits}f}")
    print(*told, sep="  ", flush=True)
    return True


# ------------------------------------------------------------------------------------- all of them
def unrecorded(question: str, names: list[str]) -> list[str]:
    """Those of these runs that are not on record."""
    known = [records.by_name(record) for record in records.read(records.file_of(question))]
    left = []
    for name in names:
        run, seed = records.split(name)
        if (run, seed or 0) not in known:
            left.append(name)
    return left


def next_of(waiting: list[str], running: dict, later: set[str]) -> str | None:
    """The run to begin next; None where it reads what a running one will leave.

    later: the runs that read what others leave
    """
    name = waiting[0]
    if name in later and not later.issuperset(running):
        return None
    return name


def record_all(
    question: str,
    runs: dict[str, list[list[str]]],
    jobs: int,
    device: str,
    data_root: str,
    end: float,
) -> bool:
    """Make and record the runs that are not on record; whether all ended well.

    runs: name → command lines; jobs: how many at a time; end: of all, by time.monotonic()
    """
    waiting = unrecorded(question, list(runs))
    print(f"{question}: {len(runs) - len(waiting)} of {len(runs)} runs are on record", flush=True)
    for name in waiting:
        need_same(name, runs[name][0])
    well = True
    for name in list(waiting):
        missing = lacks(name, runs[name], waiting)
        if missing:
            text = f"{name} is left out: it reads {missing}, which is not here"
            print(text, file=sys.stderr, flush=True)
            waiting.remove(name)
            well = False
    total = len(waiting)
    later = {name for name, lines in runs.items() if others_read(name, lines)}
    left = {name: list(lines) for name, lines in runs.items()}  # command lines to come
    running = {}  # name: its program
    next_line = time.monotonic() + TELL_EVERY
    try:
        while waiting or running:
            while waiting and len(running) < jobs and time.monotonic() < end:
                name = next_of(waiting, running, later)
                if name is None:
                    break
                waiting.remove(name)
                if has_ended(name):
                    keep(question, name, 0)
                    continue
                command = left[name].pop(0)
                running[name] = begin(name, command, device_of(name, device), data_root)
            time.sleep(0.1)

            for name, program in list(running.items()):
                code = program.poll()
                if code is None:
                    continue
                if code == 0 and left[name]:
                    command = left[name].pop(0)
                    if command[0] != "interpret.py":  # it reads the run's folder alone
                        command = command + ["--data-root", data_root]
                    running[name] = start(name, command, device_of(name, device))
                    continue
                del running[name]
                if not keep(question, name, code):
                    well = False

            now = time.monotonic()
            if now > next_line:
                ended = total - len(waiting) - len(running)
                text = f"{ended}/{total} runs have ended; running: {', '.join(running)}"
                print(text, file=sys.stderr, flush=True)
                next_line = now + TELL_EVERY
            if (waiting or running) and now > end:
                sys.exit("--minutes are over; the same command goes on where the checkpoints are")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on where the checkpoints are")
    finally:  # no run outlives this program
        for program in running.values():
            program.terminate()
            program.wait()
    return well


# -------------------------------------------------------------------------------------- the program
def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        prog="run.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    known = questions()
    add = flags.add_argument
    add("questions", nargs="+", choices=known, metavar="question", help=", ".join(known))
    rows = "these runs only, by name or pattern (default: every line of runs.txt)"
    add("--rows", nargs="+", metavar="run", help=rows)
    seeds = "these only, whatever runs.txt says"
    add("--seeds", nargs="+", type=common.number(int, 0), metavar="seed", help=seeds)
    jobs = common.number(int, 1)
    add("--jobs", type=jobs, help="runs at a time (default: one a core on a CPU, one on a GPU)")
    minutes = "end after so many"
    add("--minutes", type=common.number(float, 1e-12), default=math.inf, help=minutes)
    more = "further flags of every run, such as --flags=--compile"
    add("--flags", default="", help=more)
    add("--data-root", default="data", help="folder of the data sets (default: data)")
    add("--device", default=device, help="of runs with -cpu in their names: always cpu")
    return flags


def jobs_for(names: list[str], device: str) -> int:
    """One run a core, where all are on a CPU; else one at a time."""
    devices = {device_of(name, device) for name in names}
    if devices == {"cpu"}:
        return torch.get_num_threads()
    return 1


def main(argv=None):
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
    end = time.monotonic() + 60 * args.minutes
    of_questions = {}
    for question in args.questions:
        of_questions[question] = commands(question, args.rows, args.seeds, args.flags)
    rows = [row for question in args.questions for row in rows_of(question)]
    for pattern in args.rows or []:
        found = fnmatch.filter(rows, pattern)
        common.need(found, f"--rows {pattern}: no runs.txt of these questions has such runs")

    well = True
    for question, runs in of_questions.items():
        if not runs:
            continue
        jobs = args.jobs or jobs_for(list(runs), args.device)
        if not record_all(question, runs, jobs, args.device, args.data_root, end):
            well = False
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    common.launch(main)
