"""Make the runs that README quotes, and record them here: results/<study>-<row>-seed<seed>/ with config.json, metrics.jsonl and
dimensions.csv. What is recorded is skipped, what was interrupted goes on, so the same command adds what is missing; to make a run
anew, delete results/<name> and runs/<name>.

    python results/study.py shapes                  the built-in data set, every method and ablation: 1.2 hours on two cores
    python results/study.py cifar10-cpu             10,000 images of CIFAR-10, ResNet-8: 1.5 hours on two cores
    python results/study.py cifar10 cifar100        the papers' recipes for 200 epochs, for a GPU
    python results/study.py shapes --rows ncl bayesncl --seeds 1 2
    python results/report.py                        then the tables and pictures of README

On a CPU as many runs at a time as there are cores, each on one thread, which does more in all than one run on all of them.
"""
import argparse
import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

import report
from report import ROOT, common  # common.py of the folder above

RUNS = ROOT / "runs"

ROWS = {  # what a row of the tables is: a program and its flags
    "simclr": "simclr.py",
    "ncl": "ncl.py",
    "ncl-topk": "ncl.py --topk 64",
    "bayesncl": "bayesncl.py",
    "bayesncl-gumbel": "bayesncl.py --gate gumbel",
    "bayesncl-soft": "bayesncl.py --gate soft",
    "bayesncl-no-detach": "bayesncl.py --no-detach",
    "bayesncl-1-layer": "bayesncl.py --gate-layers 1",
    "bayesncl-3-layers": "bayesncl.py --gate-layers 3",
    "bayesncl-no-kl": "bayesncl.py --kl-weight 0",
    "bayesncl-low-prior": "bayesncl.py --prior 0.3 --kl-weight 1e-3",
    "bayesncl-ipw": "bayesncl.py --gate none --similarity ipw",
    "bayesncl-untuned": "bayesncl.py",  # with the ρ and λ of the authors' CIFAR-100 command, where the row bayesncl has chosen ones
    "simsiam": "simsiam.py",
    "simsiam-zero-init": "simsiam.py --zero-init-residual",
    "simsiam-no-stop-grad": "simsiam.py --no-stop-grad",
    "simsiam-no-predictor": "simsiam.py --no-predictor",
    "sparsehead-simclr": "sparsehead.py",
    "sparsehead-simclr-plain": "sparsehead.py --sparse-weight 0",
    "sparsehead-byol": "sparsehead.py --base byol",
    "sparsehead-byol-plain": "sparsehead.py --base byol --sparse-weight 0",
    "sparsehead-barlow": "sparsehead.py --base barlow",
    "sparsehead-barlow-plain": "sparsehead.py --base barlow --sparse-weight 0",
    "sparsehead-simclr-finetune": "sparsehead.py --finetune 0.01 0.1",
    "sparsehead-simclr-plain-finetune": "sparsehead.py --sparse-weight 0 --finetune 0.01 0.1",
    "sparsehead-simclr-1e-2": "sparsehead.py --sparse-weight 1e-2",
    "sparsehead-simclr-1e-1": "sparsehead.py --sparse-weight 1e-1",
    "sparsehead-simclr-prox-1": "sparsehead.py --prox --sparse-weight 1",
    "sparsehead-simclr-prox-3": "sparsehead.py --prox --sparse-weight 3",
    "sparsehead-simclr-prox-10": "sparsehead.py --prox --sparse-weight 10",
}
METHODS = ["simclr", "ncl", "bayesncl", "simsiam", "sparsehead-simclr"]
GATE = [row for row in ROWS if row.startswith("bayesncl-") and row != "bayesncl-untuned"]
BASES = ["sparsehead-simclr-plain", "sparsehead-byol", "sparsehead-byol-plain", "sparsehead-barlow", "sparsehead-barlow-plain"]
ONCE = [row for row in ROWS if row not in [*METHODS, *GATE, *BASES, "ncl-topk", "bayesncl-untuned", "simsiam-zero-init"]]
PAPERS = [row for row in GATE if row not in ("bayesncl-no-kl", "bayesncl-low-prior", "bayesncl-ipw")] + ["simsiam", "sparsehead-simclr", *BASES]
AT_200 = dict.fromkeys(["simclr", "ncl", "ncl-topk", "bayesncl"], [1, 2, 3]) | dict.fromkeys(PAPERS, [1])
STUDIES = {  # study: (flags of every run, row → seeds)
    "shapes": ("", dict.fromkeys(METHODS, [1, 2, 3, 4, 5]) | dict.fromkeys(["ncl-topk", *GATE], [1, 2]) | dict.fromkeys([*BASES, *ONCE], [1])
               | {"simsiam-zero-init": [1, 2, 3]}),
    "cifar10-cpu": ("--dataset cifar10 --preset default --limit 10000 --arch resnet8 --epochs 20", dict.fromkeys([*METHODS, "bayesncl-untuned", "sparsehead-simclr-plain"], [1, 2, 3])),
    "cifar10": ("--dataset cifar10 --epochs 200", AT_200),
    "cifar100": ("--dataset cifar100 --epochs 200", AT_200),
}
OWN = {  # (study, row): further flags
    ("shapes", "ncl-topk"): "--topk 16",  # NCL activates 28 of its 256 dimensions per image there
}

# For 20 epochs of CIFAR-10 these are chosen with seed 0 on 2,000 other images of the training set: of each row's settings the one
# with the best probe, for BayesNCL with the best consistency where the probe loses at most one point against NCL's.
VALIDATION = "cifar10-validation"
SETTINGS = {
    "ncl": [""],
    "bayesncl": ["--prior 0.8 --kl-weight 3e-5", "--prior 0.8 --kl-weight 3e-4", "--prior 0.5 --kl-weight 3e-5", "--prior 0.2 --kl-weight 3e-4"],
    "sparsehead-simclr": ["--sparse-weight 1e-4", "--sparse-weight 1e-2"],
    "simsiam": ["--lr 0.06", "--lr 0.2"],
}
RUNNING = set()  # programs


def final(name: str) -> dict:
    """The numbers of a recorded run; empty where there is none."""
    return next(iter(report.runs(name)), {})


def record(name: str, command: str, device: str, data_root: str) -> bool:
    """Run a command line to its end, in runs/<name>; keep what is small in results/<name>. False where the program fails."""
    if final(name):
        return True
    started, folder = (RUNS / name / "config.json").exists(), os.path.relpath(RUNS / name, ROOT)
    command = [*shlex.split(command), "--resume" if started else "--out", folder]
    print(f"{name}: {shlex.join(command)}", flush=True)
    RUNS.mkdir(exist_ok=True)
    with open(RUNS / f"{name}.log", "w+") as log:
        program = subprocess.Popen([sys.executable, *command, "--device", device, "--data-root", data_root], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                                   env=os.environ | {"PYTHONUNBUFFERED": "1"} | ({"OMP_NUM_THREADS": "1"} if device == "cpu" else {}))
        RUNNING.add(program)
        code = program.wait()
        RUNNING.remove(program)
        log.seek(0)
        if code:
            print(f"{name}: exit code {code}: {(log.read().splitlines() or [''])[-1]}", file=sys.stderr, flush=True)
            return False
    kept = report.RESULTS / name
    kept.mkdir(exist_ok=True)
    for file in ("config.json", "dimensions.csv", "metrics.jsonl"):  # the last makes it a record
        common.replace(kept / file, lambda out: out.write((RUNS / name / file).read_bytes()))
    (kept / "curves.png").unlink(missing_ok=True)
    print(common.table(name, final(name)), flush=True)
    return True


def record_all(commands: dict[str, str], device: str, data_root: str) -> bool:
    """Record the runs, name → command line, several at a time on a CPU; whether all succeeded."""
    pool = ThreadPoolExecutor(torch.get_num_threads() if device == "cpu" else 1)
    try:
        return all(list(pool.map(lambda item: record(*item, device, data_root), commands.items())))
    finally:
        pool.shutdown(cancel_futures=True)


def validation_set(data_root: str) -> None:
    """Write cifar10-validation.npz: the 10,000 training images of the study, and the 2,000 that follow them as test set."""
    path = ROOT / data_root / f"{VALIDATION}.npz"
    if path.exists():
        return
    whole = common.load_data("cifar10", ROOT / data_root)
    kept, wider = common.first(whole, 10_000), common.first(whole, 12_000)
    shown = {image.numpy().tobytes() for image in kept.x_train}
    other = [i for i, image in enumerate(wider.x_train) if image.numpy().tobytes() not in shown]
    common.replace(path, lambda file: np.savez(file, x_train=kept.x_train, y_train=kept.y_train, x_test=wider.x_train[other], y_test=wider.y_train[other]))


def tuning_runs() -> dict[str, dict[str, str]]:
    """Row → its settings' runs, name → flags."""
    return {row: {f"cifar10-cpu-tuning-{row}{flags.replace(' --', '-').replace('--', '-').replace(' ', '')}-seed0": flags for flags in settings}
            for row, settings in SETTINGS.items()}


def chosen(row: str) -> str:
    """The setting of a row that did best on the validation images, by the rule above SETTINGS; "" for a row without settings."""
    if row not in SETTINGS:
        return ""
    scores = {flags: final(name) for name, flags in tuning_runs()[row].items() if final(name)}
    reference = final(*tuning_runs()["ncl"])
    if not scores or not reference:
        raise common.BadInput(f"none of the settings of {row}, or of NCL to compare with, has come to its end")
    allowed = [flags for flags in scores if row != "bayesncl" or scores[flags]["lp1"] >= reference["lp1"] - 1]
    return max(allowed or scores, key=lambda flags: scores[flags].get("cons" if row == "bayesncl" else "lp1", 0))


def study(name: str, seeds_of: dict[str, list[int]], device: str, data_root: str) -> bool:
    """Record the rows of a study, row → seeds; the seeds outermost, so that every row has some early. Whether all succeeded."""
    flags, _ = STUDIES[name]
    own = {row: OWN.get((name, row), "") for row in ROWS}
    if name == "cifar10-cpu":
        validation_set(data_root)
        needed = {"ncl", *seeds_of} if SETTINGS.keys() & seeds_of.keys() else {}
        record_all({run: f"{ROWS[row]} {flags} --dataset {VALIDATION} {own[row]} {setting} --seed 0"
                    for row, runs in tuning_runs().items() if row in needed for run, setting in runs.items()}, device, data_root)
        own |= {row: f"{own[row]} {chosen(row)}" for row in seeds_of}
    return record_all({f"{name}-{row}-seed{seed}": f"{ROWS[row]} {flags} {own[row]} --seed {seed}"
                       for seed in range(10) for row, seeds in seeds_of.items() if seed in seeds}, device, data_root)


def stop(number, _) -> None:
    """End the programs with this one; Ctrl-C in a terminal has reached them already."""
    for program in RUNNING if number == signal.SIGTERM else ():
        program.terminate()
    sys.exit(128 + number)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("studies", nargs="+", choices=STUDIES, metavar="study", help=", ".join(STUDIES))
    flags.add_argument("--rows", nargs="+", choices=ROWS, metavar="row", help=f"these rows only: {', '.join(ROWS)}")
    flags.add_argument("--seeds", nargs="+", type=int, choices=range(10), metavar="seed", help="these seeds only, 0 to 9")
    flags.add_argument("--data-root", default="data", help="folder of the data sets (default: data)")
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, cpu (default: cuda where there is one)")
    args = flags.parse_args()
    succeeded = []
    with common.on_signals(stop):
        for name in args.studies:
            rows = STUDIES[name][1]
            seeds_of = {row: args.seeds or rows.get(row, [1]) for row in args.rows or rows}
            succeeded.append(study(name, seeds_of, "cpu" if name == "cifar10-cpu" else args.device, args.data_root))
    if not all(succeeded):
        sys.exit(1)


if __name__ == "__main__":
    common.launch(main)
