"""Make the runs that README quotes, and record them here: results/<study>-<row>-seed<seed>/ with config.json, metrics.jsonl and
dimensions.csv. What is recorded is skipped, what was interrupted goes on, so the same command adds what is missing.

    python results/study.py shapes                  the built-in data set, every method and ablation: 1 hour on two cores
    python results/study.py cifar10-cpu             10,000 images of CIFAR-10, ResNet-8: about 1 hour on two cores
    python results/study.py cifar10 cifar100        the papers' setting, 200 epochs; needs a GPU
    python results/study.py shapes --rows ncl bayesncl --seeds 1 2
    python results/report.py                        then the tables and pictures of README

On a CPU as many runs at a time as there are cores, each on one thread, which does more in all than one run on all of them.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

import report
from report import ROOT, common

RUNS = ROOT / "runs"

ROWS = {  # what a row of the tables is: a program and its flags
    "simclr": "simclr.py",
    "ncl": "ncl.py",
    "ncl-topk": "ncl.py --topk 16",
    "bayesncl": "bayesncl.py",
    "bayesncl-gumbel": "bayesncl.py --gate gumbel",
    "bayesncl-soft": "bayesncl.py --gate soft",
    "bayesncl-no-detach": "bayesncl.py --no-detach",
    "bayesncl-1-layer": "bayesncl.py --gate-layers 1",
    "bayesncl-3-layers": "bayesncl.py --gate-layers 3",
    "bayesncl-no-kl": "bayesncl.py --kl-weight 0",
    "bayesncl-low-prior": "bayesncl.py --prior 0.3 --kl-weight 1e-3",
    "bayesncl-ipw": "bayesncl.py --gate none --similarity ipw",
    "simsiam": "simsiam.py",
    "sparsehead-simclr": "sparsehead.py",
    "sparsehead-simclr-plain": "sparsehead.py --sparse-weight 0",
    "sparsehead-byol": "sparsehead.py --base byol",
    "sparsehead-byol-plain": "sparsehead.py --base byol --sparse-weight 0",
    "sparsehead-barlow": "sparsehead.py --base barlow",
    "sparsehead-barlow-plain": "sparsehead.py --base barlow --sparse-weight 0",
}
FIRST = ["simclr", "ncl", "bayesncl", "simsiam", "sparsehead-simclr", "sparsehead-simclr-plain"]
PAPERS = [row for row in ROWS if row not in ("bayesncl-no-kl", "bayesncl-low-prior", "bayesncl-ipw")]  # what a paper has a value for
STUDIES = {  # study: (flags of every run, rows, seeds)
    "shapes": ("", [*ROWS], [1, 2, 3, 4, 5]),
    "cifar10-cpu": ("--dataset cifar10 --limit 10000 --arch resnet8 --epochs 20", FIRST, [1, 2, 3]),
    "cifar10": ("--dataset cifar10 --epochs 200", PAPERS, [1, 2, 3]),
    "cifar100": ("--dataset cifar100 --epochs 200", PAPERS, [1, 2, 3]),
}
# On a CPU the heads of SimSiam are as narrow as on the built-in data set, and its batch as small: 20 epochs are few steps.
CPU = {"simsiam": "--batch-size 128 --head-out 512 --predictor-hidden 128"}

# For 20 epochs of CIFAR-10 these are chosen with seed 0 on 2,000 other images of the training set: of each row's settings the one
# with the best score, which for BayesNCL is its consistency, where the probe loses at most one point against NCL's.
VALIDATION = "cifar10-validation"
SETTINGS = {
    "ncl": [""],
    "bayesncl": ["--prior 0.8 --kl-weight 3e-5", "--prior 0.8 --kl-weight 3e-4", "--prior 0.5 --kl-weight 3e-5", "--prior 0.2 --kl-weight 3e-4"],
    "sparsehead-simclr": ["--sparse-weight 1e-4", "--sparse-weight 1e-2"],
    "simsiam": ["--lr 0.06", "--lr 0.2"],
}


def final(name: str) -> dict | None:
    """The numbers of a recorded run; None where there is none."""
    return next(iter(report.runs(name)), None)


def record(name: str, command: str, data_root: str, threads: int | None) -> bool:
    """Run a command line to its end, in runs/<name>; keep what is small in results/<name>. False where the program fails."""
    if final(name):
        return True
    (program, *flags), folder = shlex.split(command), os.path.relpath(RUNS / name, ROOT)
    where = ["--resume", folder] if (RUNS / name / "config.json").exists() else [*flags, "--out", folder]
    print(f"{name}: {program} {shlex.join(where)}", flush=True)
    done = subprocess.run([sys.executable, program, *where, "--data-root", data_root], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env=os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {}))
    if done.returncode:
        print(f"{name}: exit code {done.returncode}: {(done.stdout.splitlines() or [''])[-1]}", file=sys.stderr, flush=True)
        return False
    kept = report.RESULTS / name
    kept.mkdir(exist_ok=True)
    for file in ("config.json", "dimensions.csv", "metrics.jsonl"):  # the last is what final() looks for
        (kept / file).write_bytes((RUNS / name / file).read_bytes())
    print(common.table(name, final(name)), flush=True)
    return True


def record_all(commands: dict[str, str], data_root: str) -> None:
    """Record the runs, name → command line, several at a time on a CPU; exit code 1 where one failed, after the others."""
    at_once, threads = (1, None) if torch.cuda.is_available() else (os.cpu_count(), 1)
    with ThreadPoolExecutor(at_once) as pool:
        succeeded = list(pool.map(lambda item: record(*item, data_root, threads), commands.items()))
    if not all(succeeded):
        sys.exit(1)


def validation_set(data_root: str) -> None:
    """Write cifar10-validation.npz: the 10,000 training images of the study, and the 2,000 that follow them as test set."""
    path = Path(data_root) / f"{VALIDATION}.npz"
    if path.exists():
        return
    whole = common.load_data("cifar10", data_root)
    kept, wider = common.first(whole, 10_000), common.first(whole, 12_000)
    shown = {image.numpy().tobytes() for image in kept.x_train}
    other = [i for i, image in enumerate(wider.x_train) if image.numpy().tobytes() not in shown]
    np.savez(path, x_train=kept.x_train, y_train=kept.y_train, x_test=wider.x_train[other], y_test=wider.y_train[other])


def tuning_runs() -> dict[str, dict[str, str]]:
    """Row → its settings' runs, name → flags."""
    return {row: {f"cifar10-cpu-tuning-{row}{flags.replace(' --', '-').replace('--', '-').replace(' ', '')}-seed0": flags for flags in settings}
            for row, settings in SETTINGS.items()}


def chosen(row: str) -> str:
    """The setting of a row that did best on the validation images, by the rule above SETTINGS; "" for a row without settings."""
    runs = tuning_runs().get(row, {})
    floor = final(*tuning_runs()["ncl"])["lp1"] - 1 if row == "bayesncl" else 0
    score = lambda name: (final(name)["lp1"] >= floor, final(name)["cons" if row == "bayesncl" else "lp1"])
    return runs[max(runs, key=score)] if runs else ""


def study(name: str, rows: list[str], seeds: list[int], data_root: str) -> None:
    """Record the rows of a study, the seeds outermost, so that every row has some early."""
    flags, _, _ = STUDIES[name]
    own = dict.fromkeys(rows, "")
    if name == "cifar10-cpu":
        validation_set(data_root)
        tuning = {run: f"{ROWS[row]} {flags.replace('cifar10 --limit 10000', VALIDATION)} {CPU.get(row, '')} {setting} --seed 0"
                  for row, runs in tuning_runs().items() for run, setting in runs.items() if row in rows}
        record_all(tuning, data_root)
        own = {row: f"{CPU.get(row, '')} {chosen(row)}" for row in rows}
    record_all({f"{name}-{row}-seed{seed}": f"{ROWS[row]} {flags} {own[row]} --seed {seed}" for seed in seeds for row in rows}, data_root)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("studies", nargs="+", choices=STUDIES, metavar="study", help=", ".join(STUDIES))
    flags.add_argument("--rows", nargs="+", choices=ROWS, metavar="row", help=f"these rows only: {', '.join(ROWS)}")
    flags.add_argument("--seeds", nargs="+", type=int, help="these seeds only")
    flags.add_argument("--data-root", default="data", help="folder of the data sets (default: data)")
    args = flags.parse_args()
    for name in args.studies:
        _, rows, seeds = STUDIES[name]
        study(name, [row for row in rows if row in (args.rows or rows)], args.seeds or seeds, args.data_root)


if __name__ == "__main__":
    common.launch(main)
