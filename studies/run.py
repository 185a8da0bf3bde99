"""Make the runs of a question that are not on record, and record them.

studies/<question>/runs.txt has a run a line, its seeds and its command; indented below it are the
commands that the finished run is given to, after interpret.py, which measures every run:

    shapes-ncl   1-5   python ncl.py
        python tools/selection.py RUN

Seeds are 1-5, or 1,2,3, or - where the program has seeds of its own. RUN stands for the run's
folder, {seed} for its seed. What is on record is skipped, what was interrupted goes on. To make a
run anew, delete its line in records.jsonl and its folder in runs/ first.

    python studies/run.py ncl                      SimCLR, NCL, NCL + TopK
    python studies/run.py cifar100 --rows "cifar100-cpu-*" --seeds 1 2
    python studies/run.py speed --rows "cifar100-*" --flags=--compile       200 epochs, for a GPU
    python studies/report.py                       then fill the tables

Rows come one after another, their seeds --jobs at a time, each on one thread if on a CPU. Ctrl-C
and SIGTERM end the trainings too, which lose the epoch that they are in.
"""

import argparse
import fnmatch
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import records
from common import read_json
from records import ROOT, STUDIES, common

import torch

RUNS = Path("runs")  # of ROOT
RUNNING = set()  # the programs
STARTING = threading.Lock()  # who holds it starts one; none can start while this program ends


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
    file = STUDIES / question / "runs.txt"
    rows = {}
    commands = []  # of the last run so far
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if not line.startswith(" "):
                name, seeds, line = line.split(maxsplit=2)
                if name in rows:
                    raise ValueError(f"{name} stands above, too")
                commands = []
                rows[name] = seeds_of(seeds), commands
            python, command = line.split(maxsplit=1)
            if python != "python":
                raise ValueError(f"this begins with {python}")
        except ValueError as error:
            wanted = "want a run, its seeds (1-5) and python <program> …, or spaces and the latter"
            raise common.BadInput(f"{file}, line {number}: {wanted} ({error})") from error
        commands.append(command.strip())
    return rows


def begin_or_go_on(folder: Path, command: list[str], here: list[str]) -> list[str]:
    """The command that begins a run in its folder, or goes on with it; [] where it is complete.

    here: flags that do not make it another run. A folder that another command began is refused.
    """
    if (ROOT / folder / "config.json").exists():
        begun = read_json(ROOT / folder / "config.json").get("command", "")
        typed, after = shlex.split(begun), len(command)
        same = typed[:after] == command and typed[after:][:1] in ([], ["--device"], ["--out"])
        # The programs on theory note no command.
        common.need(same or not begun, f"{folder} was begun by {begun}: move it away")
        memory = (ROOT / folder / "memory").exists()
        if (ROOT / folder / "results.json").exists() and not memory:
            return []
        log = ROOT / folder / "metrics.jsonl"
        if log.exists() and '"event": "final"' in log.read_text():
            return []
        if here or memory:
            compiled = [word for word in command if word == "--compile"]
            return [command[0], *compiled, *here, "--resume", str(folder)]
        shutil.rmtree(ROOT / folder)  # a program that notes nothing on its way
    return [*command, *here, "--out", str(folder)]


class Failed(Exception):
    """A command that ended with another exit code than 0, or a run that cannot be recorded."""


def last_line(log: Path) -> str:
    """What a program printed last into a file."""
    *_, last = ["", *log.read_text(errors="replace").splitlines()]
    return last


def call(command: list[str], log: Path, device: str) -> None:
    """Run a program to its end; what it prints is added to a file. Raises Failed.

    Until then stderr has its last line every ten seconds if that is a terminal, else every minute.
    """
    environment = dict(os.environ)
    if device == "cpu":
        environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with open(log, "a") as file, STARTING:
        started = [sys.executable, *command]
        program = subprocess.Popen(started, cwd=ROOT, stdout=file, stderr=file, env=environment)
        RUNNING.add(program)
    code = None
    while code is None:
        try:
            code = program.wait(10 if sys.stderr.isatty() else 60)
        except subprocess.TimeoutExpired:
            print(f"{log.stem}: {last_line(log)}", file=sys.stderr, flush=True)
    RUNNING.discard(program)
    if code:
        raise Failed(f"{shlex.join(command)}: exit code {code}: {last_line(log)}")


def make(question: str, run: str, seed: int | None, lines: list[str], args) -> bool:
    """Make, measure and record one run; whether that went well."""
    name = run if seed is None else f"{run}-seed{seed}"
    folder = RUNS / name
    device = "cpu" if "-cpu" in run else args.device
    log = ROOT / RUNS / f"{name}.log"
    filled = []
    for line in lines:
        text = line.replace("{seed}", str(seed)).replace("RUN", str(folder))
        filled.append(shlex.split(text))
    command, *measured = filled
    data = ["--data-root", args.data_root]
    here = []
    if seed is not None:
        command += [*shlex.split(args.flags), "--seed", str(seed)]
        here = ["--device", device, *data]
    try:
        command = begin_or_go_on(folder, command, here)
        print(f"{name}: {shlex.join(command) or 'complete'}", flush=True)
        if command:
            call(command, log, device)
        if seed is not None:
            call(["tools/interpret.py", str(folder)], log, device)
        for line in measured:
            call([*line, *data], log, device)
        record = records.keep(question, ROOT / folder)
    except (Failed, OSError, ValueError) as error:  # BadInput is one, as of a collapsed z
        print(f"{name}: not recorded: {error}", file=sys.stderr, flush=True)
        return False
    found = records.numbers(record)
    told = [f"{key} {found[key]:.4g}" for key in ("lp1", "cons", "adjusted") if key in found]
    print(f"{name}: recorded", *told, sep="  ", flush=True)
    return True


def make_all(question: str, args) -> bool:
    """Make and record what runs.txt has and records.jsonl has not; whether all went well."""
    on_record = {(record["run"], record.get("seed")) for record in records.read(question)}
    well = True
    for run, (seeds, lines) in rows_of(question).items():
        if not any(fnmatch.fnmatchcase(run, pattern) for pattern in args.rows):
            continue
        if args.seeds and seeds != [None]:
            seeds = args.seeds
        missing = [seed for seed in seeds if (run, seed) not in on_record]
        with ThreadPoolExecutor(args.jobs) as pool:
            made = [pool.submit(make, question, run, s, lines, args) for s in missing]
            well = all([one.result() for one in made]) and well
    return well


def end(*_) -> None:
    """End all that runs, and this program."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # once is enough
    STARTING.acquire()
    for program in list(RUNNING):
        program.terminate()
    for program in list(RUNNING):
        program.wait()
    os._exit(1)  # other threads wait for a program, or to start one


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="run.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = sorted(file.parent.name for file in STUDIES.glob("*/runs.txt"))
    on_gpu = torch.cuda.is_available()
    jobs = 1 if on_gpu else torch.get_num_threads()
    add = flags.add_argument
    add("questions", nargs="+", choices=known, metavar="question", help=", ".join(known))
    rows = "these runs only, by name or pattern (default: every line of runs.txt)"
    add("--rows", nargs="+", metavar="run", default=["*"], help=rows)
    seed, count = common.number(int, 0), common.number(int, 1)
    add("--seeds", nargs="+", type=seed, metavar="seed", help="these, whatever runs.txt says")
    add("--jobs", type=count, default=jobs, help=f"seeds at a time (default: {jobs} here)")
    add("--flags", default="", help="further flags of every training, such as --flags=--compile")
    add("--data-root", default="data", help="folder of the data sets (default: data)")
    device = "cuda" if on_gpu else "cpu"
    add("--device", default=device, help="of runs with -cpu in their names always cpu")
    args = flags.parse_args(argv)

    known = [row for question in args.questions for row in rows_of(question)]
    for pattern in args.rows:
        found = fnmatch.filter(known, pattern)
        common.need(found, f"--rows {pattern}: no runs.txt of these questions has such runs")

    (ROOT / RUNS).mkdir(exist_ok=True)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    well = [make_all(question, args) for question in args.questions]
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    common.launch(main)
