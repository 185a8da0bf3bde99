"""Make the runs that the pages show and record them in results/<study>-<row>-seed<seed>/.

What is recorded is skipped and what was interrupted goes on. To make a run anew, delete
results/<name> and runs/<name> first.

    python tools/study.py shapes              every method and ablation: three hours on two cores
    python tools/study.py cifar10-cpu         10,000 images, ResNet-8: three hours on two cores
    python tools/study.py cifar100-cpu        all of it, after 5, 10 and 20 epochs: five hours
    python tools/study.py cifar10 cifar100    the papers' recipes for 200 epochs, for a GPU
    python tools/study.py shapes --rows ncl bayesncl --seeds 1 2        --help lists all of them
    python tools/report.py                    then put the numbers into the pages

On a CPU as many runs at a time as it has cores, each on one thread, which does more than one run on
all. Ctrl-C, SIGTERM and --minutes end the study and its runs, which lose what follows their last
checkpoint (--minutes: an epoch).
"""

import argparse
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import report
import sparsity
import torch
from report import ROOT, common  # common.py of the folder above

import interpret

RUNS = ROOT / "runs"
TELL_EVERY = 10  # seconds, how far it is

# -------------------------------------------------------------------- rows: a program and its flags
OF_METHODS = {
    "simclr": "simclr.py",
    "ncl": "ncl.py",
    "bayesncl": "bayesncl.py",
    "simsiam": "simsiam.py",
    "mmncl": "mmncl.py",
    "ncl-lars": "ncl.py",
    "bayesncl-lars": "bayesncl.py",
    "simclr-spectral": "simclr.py --loss spectral",
    "ncl-spectral": "ncl.py --loss spectral",
    "ncl-topk": "ncl.py --topk 64",
    "bayesncl-low-prior": "bayesncl.py --prior 0.3 --kl-weight 1e-3",
    "mmncl-tau-0.05": "mmncl.py --temperature 0.05",
    "bayesncl-untuned": "bayesncl.py",  # with the authors' ρ and λ
    "bayesncl-gumbel": "bayesncl.py --gate gumbel",
    "bayesncl-soft": "bayesncl.py --gate soft",
    "bayesncl-no-detach": "bayesncl.py --no-detach",
    "bayesncl-no-kl": "bayesncl.py --kl-weight 0",
    "bayesncl-1-layer": "bayesncl.py --gate-layers 1",
    "bayesncl-3-layers": "bayesncl.py --gate-layers 3",
    "bayesncl-ipw": "bayesncl.py --gate none --similarity ipw",
    "simsiam-zero-init": "simsiam.py --zero-init-residual",
    "simsiam-no-stop-grad": "simsiam.py --no-stop-grad",
    "simsiam-no-predictor": "simsiam.py --no-predictor",
    "sparsehead-simclr-plain-linear": "sparsehead.py --sparse-weight 0 --head linear",
    "sparsehead-simclr-plain-none": "sparsehead.py --sparse-weight 0 --head none",
    "sparsehead-simclr-1e-2": "sparsehead.py --sparse-weight 1e-2",
    "sparsehead-simclr-1e-1": "sparsehead.py --sparse-weight 1e-1",
    "sparsehead-simclr-prox-1": "sparsehead.py --prox --sparse-weight 1",
    "sparsehead-simclr-prox-3": "sparsehead.py --prox --sparse-weight 3",
    "sparsehead-simclr-prox-10": "sparsehead.py --prox --sparse-weight 10",
    "clip": "mmncl.py --activation none",
    "clip-tau-0.05": "mmncl.py --activation none --temperature 0.05",
}
LABELLED = {
    "ce": "nce.py --loss ce",
    "nce": "nce.py",
    "nce-weights": "nce.py --weights non-negative",
    "ce-mlp": "nce.py --loss ce --head mlp",
    "nce-mlp": "nce.py --head mlp",
    "nce-mlp-weights": "nce.py --head mlp --weights non-negative",
}


def bases() -> dict[str, str]:
    """SparseHead on each of its bases, with its penalty and plain."""
    rows = {}
    for base in ("simclr", "byol", "barlow", "vicreg", "wmse", "swav", "ssl-hsic"):
        program = f"sparsehead.py --base {base} --sparse-weight"
        rows[f"sparsehead-{base}"] = f"{program} 1e-4"
        rows[f"sparsehead-{base}-plain"] = f"{program} 0"
    return rows


def grid(priors: list[str], kl_weights: list[str]) -> dict[str, str]:
    """BayesNCL with each ρ and λ."""
    rows = {}
    for rho in priors:
        for weight in kl_weights:
            name = f"bayesncl-prior{rho}-kl-weight{weight}"
            rows[name] = f"bayesncl.py --prior {rho} --kl-weight {weight}"
    return rows


def early() -> dict[str, str]:
    """Evaluations of the checkpoints that keep_checkpoint() keeps."""
    rows = {}
    for row in ("ncl", "bayesncl", "ncl-lars", "bayesncl-lars"):
        program = OF_METHODS[row]
        for epochs in (5, 10):
            checkpoint = f"runs/{{study}}-{row}-seed{{seed}}/checkpoint-{epochs}.pt"
            rows[f"{row}-after-{epochs}"] = f"{program} --eval-only {checkpoint}"
    return rows


BASES = bases()
GRID = grid(["0.1", "0.3", "0.5", "0.8", "0.95"], ["3e-6", "3e-5", "3e-4", "3e-3", "3e-2"])
TRIED = grid(["0.3", "0.5", "0.8"], ["3e-5", "3e-4"])
EARLY = early()
SPARSE = sparsity.by_rows(sparsity.PROGRAMS)
ROWS = OF_METHODS | LABELLED | BASES | GRID | EARLY | SPARSE

# ------------------------------------------------------------------------------------------ studies
METHODS = ["simclr", "ncl", "bayesncl", "simsiam", "sparsehead-simclr"]
CONTRASTIVE = ["simclr", "ncl", "bayesncl"]
SPECTRAL = ["simclr-spectral", "ncl-spectral"]
LARS = ["ncl-lars", "bayesncl-lars"]
GATE = [  # the paper's ablations
    "bayesncl-gumbel",
    "bayesncl-soft",
    "bayesncl-no-detach",
    "bayesncl-1-layer",
    "bayesncl-3-layers",
]
OURS = [
    "bayesncl-no-kl",
    "bayesncl-low-prior",
    "bayesncl-ipw",
    "ncl-topk",
    "mmncl-tau-0.05",
    "clip-tau-0.05",
    "simsiam-zero-init",
    "simsiam-no-stop-grad",
    "simsiam-no-predictor",
    "sparsehead-simclr-plain-linear",
    "sparsehead-simclr-plain-none",
    "sparsehead-simclr-1e-2",
    "sparsehead-simclr-1e-1",
    "sparsehead-simclr-prox-1",
    "sparsehead-simclr-prox-3",
    "sparsehead-simclr-prox-10",
    "sparsehead-simclr-plain",
]
SOME_BASES = ["sparsehead-simclr-plain", "sparsehead-swav", "sparsehead-swav-plain"]

ONE = [1]
THREE = [1, 2, 3]
FIVE = [1, 2, 3, 4, 5]


def seeds_for(rows: list[str], seeds: list[int]) -> dict[str, list[int]]:
    """Row → seeds, the same for all."""
    return dict.fromkeys(rows, seeds)


ON_SHAPES = seeds_for(METHODS + list(LABELLED) + ["mmncl", "clip"], FIVE)
ON_SHAPES |= seeds_for(GATE + OURS, THREE)
ON_CIFAR10 = METHODS + ["bayesncl-untuned"] + list(LABELLED) + SPECTRAL + SOME_BASES
ON_CIFAR100 = CONTRASTIVE + ["ncl-topk"] + LARS + list(EARLY)
AT_200 = seeds_for(CONTRASTIVE + ["ncl-topk"], THREE)
AT_200 |= seeds_for(GATE + ["simsiam"] + list(BASES), ONE)

SHORT = "--preset default --arch resnet8 --epochs 20"
CIFAR10 = f"--dataset cifar10 {SHORT}"
CIFAR10_PART = f"{CIFAR10} --limit 10000"
CIFAR10_HELD_OUT = f"--dataset cifar10-held-out {SHORT}"
CIFAR100 = f"--dataset cifar100 {SHORT} --checkpoint-every 5"
COLLAPSE = "--image-size 16 --batch-size 1000 --lr 0.4 --epochs 50"

TOPK = {"ncl-topk": "--topk 16"}
OWN_ON_CIFAR10 = dict.fromkeys(SPECTRAL, "--optimizer adam --lr 2e-3")
OWN_ON_CIFAR10["bayesncl"] = "--prior 0.8 --kl-weight 3e-4"
OWN_ON_CIFAR100 = dict(TOPK)
for row in ROWS:
    if "lars" in row:
        OWN_ON_CIFAR100[row] = "--preset cifar100 --warmup 1"  # the papers' recipe

STUDIES = {  # study: flags of every run, row → seeds, row → its own flags; why: results/README.md
    "shapes": ("", ON_SHAPES, TOPK),
    "cifar10-cpu": (CIFAR10_PART, seeds_for(ON_CIFAR10, THREE), OWN_ON_CIFAR10),
    "cifar10-held-out-cpu": (CIFAR10_HELD_OUT, seeds_for(["ncl"] + list(TRIED), THREE), {}),
    "shapes-bases": ("", seeds_for(BASES, THREE), {}),
    "shapes-grid": ("", seeds_for(GRID, THREE), {}),
    "shapes-sparsity": sparsity.study("shapes", "", FIVE),
    "cifar10-cpu-page": (CIFAR10, seeds_for(["simclr", "ncl"], ONE), {}),
    "cifar10-cpu-sparsity": sparsity.study(
        "cifar10-cpu", CIFAR10_PART, THREE, "--temperature 0.07"
    ),
    "cifar100-cpu": (CIFAR100, seeds_for(ON_CIFAR100, THREE), OWN_ON_CIFAR100),
    "simsiam-16px": (COLLAPSE, seeds_for(["simsiam-no-stop-grad"], THREE), {}),
    "cifar10": ("--dataset cifar10 --epochs 200", AT_200, {}),
    "cifar100": ("--dataset cifar100 --epochs 200", AT_200, {}),
}

# Studies whose runs are given to tools/robustness.py and tools/selection.py.
SHIFTED = "shapes", "cifar10-cpu"
SELECTED = (
    "shapes",
    "shapes-sparsity",
    "cifar10-cpu",
    "cifar10-cpu-sparsity",
    "cifar10",
    "cifar100",
)

# Learning rates of fine-tuning on 1, 10, 100 % of the labels: seed 1's best, on held-out images.
RATES = {
    "simclr": "0.01 0.2 0.2",
    "ncl": "0.01 0.2 0.2",
    "bayesncl": "0.01 0.2 0.2",
    "sparsehead-simclr": "0.05 0.2 0.2",
    "sparsehead-simclr-plain": "0.05 0.2 0.2",
}
RATES_FROM_SCRATCH = "0.01 0.05 0.2"


# ----------------------------------------------------------------------------------------- commands
def afterwards(study: str, row: str, seed: int) -> list[str]:
    """The programs in tools/ that a run is given to before it is recorded."""
    programs = []
    if study in SHIFTED and row in RATES:
        programs.append("tools/robustness.py")
    if study in SELECTED and " --eval-only" not in ROWS[row]:
        programs.append("tools/selection.py")
    if study == "shapes" and row in RATES:
        tune = f"tools/finetune.py --seed {seed} --lr"
        programs.append(f"{tune} {RATES[row]}")
        if row == "simclr":
            programs.append(f"{tune} {RATES_FROM_SCRATCH} --from-scratch")
    if row.startswith(("mmncl", "clip")):
        programs.append("tools/words.py")
    return programs


def takes_of_others(program: str) -> bool:
    """Whether a row's program reads what other runs leave: features, weights."""
    return "runs/" in program


def commands(
    study: str, rows: list[str] | None, seeds: list[int] | None, extra: str
) -> dict[str, list[list[str]]]:
    """The runs of a study: name → command lines, the training's first.

    Seeds are outermost; the runs that take something of others are last.

    rows, seeds: these only; extra: further flags of every run
    """
    flags, seeds_of, own = STUDIES[study]
    runs = {}
    later = {}
    for seed in range(10):
        for row in rows or seeds_of:
            wanted = seeds or seeds_of.get(row, ONE)
            if seed not in wanted:
                continue
            program = ROWS[row].format(study=study, seed=seed)
            training = f"{program} {flags} {own.get(row, '')} {extra} --seed {seed}"
            lines = [training] + afterwards(study, row, seed)
            group = later if takes_of_others(program) else runs
            group[f"{study}-{row}-seed{seed}"] = [shlex.split(line) for line in lines]
    return runs | later


# ----------------------------------------------------------------------------------------- the runs
def start(name: str, command: list[str], device: str, data_root: str) -> subprocess.Popen:
    """Begin a run in runs/<name>, go on with it, or give it to a tool.

    What the program prints goes to runs/<name>.log.
    """
    RUNS.mkdir(exist_ok=True)
    run = RUNS / name
    folder = os.path.relpath(run, ROOT)
    program, *options = command
    if program.startswith("tools/"):
        command = [program, folder] + options
    else:
        if "--eval-only" in command:  # which has no --resume
            shutil.rmtree(run, ignore_errors=True)
        where = "--resume" if (run / "config.json").exists() else "--out"
        command = command + [where, folder, "--device", device]
    command = command + ["--data-root", data_root]
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


def keep_checkpoint(name: str, seen: dict[str, int]) -> None:
    """Keep a run's checkpoint as checkpoint-<epochs>.pt before the next takes its place.

    seen: name → when the last one that was kept was written
    """
    path = RUNS / name / "checkpoint.pt"
    if not name.startswith("cifar100-cpu") or not path.exists():
        return
    written = path.stat().st_mtime_ns
    if written != seen.get(name):
        seen[name] = written
        epochs = common.load_checkpoint(path)["epochs"]
        shutil.copy(path, path.with_name(f"checkpoint-{epochs}.pt"))


def keep(name: str, code: int) -> bool:
    """Record a run that has ended with an exit code; whether it ended well."""
    if code:
        last = (RUNS / f"{name}.log").read_text().splitlines()[-1:]
        print(f"{name}: exit code {code}: {' '.join(last)}", file=sys.stderr, flush=True)
        return False
    run = RUNS / name
    kept = report.RESULTS / name
    kept.mkdir(parents=True, exist_ok=True)
    embedding = interpret.read_embedding(run)
    findings = interpret.interpret(embedding, "nonzero", controls=False)
    interpret.write_csv(kept / "dimensions.csv", findings)
    files = [f"{tool}.json" for tool in report.TOOLS]
    for file in files + ["config.json", "metrics.jsonl"]:  # the last makes it a record
        if (run / file).exists():
            shutil.copy(run / file, kept / file)
    print(common.table(name, report.record(kept)), flush=True)
    return True


def record_all(
    runs: dict[str, list[list[str]]], jobs: int, device: str, data_root: str, end: float
) -> bool:
    """Make and record the runs that are not on record; whether all ended well.

    runs: name → command lines; jobs: how many at a time; end: of the study, by time.monotonic()
    """
    waiting = [name for name in runs if not report.record(report.RESULTS / name)]
    total = len(waiting)
    later = {name for name, lines in runs.items() if takes_of_others(" ".join(lines[0]))}
    left = {name: list(lines) for name, lines in runs.items()}  # command lines to come
    running = {}  # name: its program
    seen = {}
    well = True
    next_line = time.monotonic() + TELL_EVERY
    try:
        while waiting or running:
            while waiting and len(running) < jobs and time.monotonic() < end:
                name = waiting[0]
                if name in later and not later.issuperset(running):
                    break  # until the runs that others read from have ended
                waiting.remove(name)
                running[name] = start(name, left[name].pop(0), device, data_root)
            time.sleep(0.1)

            for name, program in list(running.items()):
                keep_checkpoint(name, seen)
                code = program.poll()
                if code is None:
                    continue
                if code == 0 and left[name]:
                    running[name] = start(name, left[name].pop(0), device, data_root)
                    continue
                del running[name]
                if not keep(name, code):
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
    finally:  # no run outlives the study
        for program in running.values():
            program.terminate()
            program.wait()
    return well


# -------------------------------------------------------------------------------------- the program
def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        prog="study.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add = flags.add_argument
    add("studies", nargs="+", choices=STUDIES, metavar="study", help=", ".join(STUDIES))
    rows = f"these rows only: {', '.join(ROWS)}"
    add("--rows", nargs="+", choices=ROWS, metavar="row", help=rows)
    seeds = "these only, 0 to 9"
    add("--seeds", nargs="+", type=int, choices=range(10), metavar="seed", help=seeds)
    add("--jobs", type=int, help="runs at a time (default: one a core on a CPU, one on a GPU)")
    minutes = "end after so many, with a checkpoint per epoch"
    add("--minutes", type=float, default=math.inf, help=minutes)
    more = "further flags of every run, such as --flags='--checkpoint-every 1'"
    add("--flags", default="", help=more)
    add("--data-root", default="data", help="folder of the data sets (default: data)")
    add("--device", default=device, help="of …-cpu…: always cpu")
    return flags


def main(argv=None):
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
    end = time.monotonic() + 60 * args.minutes
    extra = args.flags
    if args.minutes < math.inf:
        extra += " --checkpoint-every 1"
    well = True
    for study in args.studies:
        runs = commands(study, args.rows, args.seeds, extra)
        device = "cpu" if "-cpu" in study else args.device
        jobs = args.jobs
        if not jobs:
            jobs = torch.get_num_threads() if device == "cpu" else 1
        if not record_all(runs, jobs, device, args.data_root, end):
            well = False
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    common.launch(main)
