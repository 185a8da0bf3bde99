"""Make the landscape's records, results/landscape*/.

What is recorded is skipped and what was interrupted goes on. To make a record anew, delete its
folder in results/ first.

    OMP_NUM_THREADS=1 python tools/study_landscape.py     all of them: 45 minutes on one thread
    python tools/study_landscape.py landscape-table1      this one
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402

RUNS = ROOT / "runs"
RESULTS = ROOT / "results"
CUSTOM = "--experiment custom --head linear --sparsity 0.1 0.3 --seeds 5"
RELU = "--method noncl --activation relu --latents zero-one --sparsity 0.1 0.3"
RECORDS = {  # folder in results/: flags of sparse_coding.py
    "landscape": "",
    "landscape-table1": "--experiment table1 --seeds 5",
    "landscape-findings": "--experiment alignment budget variants --seeds 5",
    "landscape-findings-iid": "--experiment alignment budget --latents iid --seeds 5",
    "landscape-paper-table1": "--paper --experiment table1",
    "landscape-paper-figures": "--paper --experiment fig4 fig5 fig6 fig7 fig3 fig2 fig1",
    "landscape-paper-relu": f"--paper --experiment custom {RELU}",
    "landscape-noise": f"{CUSTOM} --noise 0.152 0.48",
    "landscape-temperature": f"{CUSTOM} --temperature 0.05 0.2 0.5",
    "landscape-fixed-threshold": f"{CUSTOM} --train-bias no",
}
KEPT = ("config.json", "results.json", "curves.npz")


def train(name: str) -> None:
    """The run of a record in runs/, begun, gone on with or found complete."""
    run = RUNS / name
    started = run.exists()
    if started and not (run / "memory").exists():  # which sparse_coding.py removes at the end
        return
    where = "--resume" if started else "--out"
    flags = shlex.split(RECORDS[name])
    command = [sys.executable, "sparse_coding.py", *flags, where, os.path.relpath(run, ROOT)]
    code = subprocess.call(command, cwd=ROOT)
    if code:
        sys.exit(code)


def keep(name: str) -> None:
    """Copy what a record has of its run."""
    record = RESULTS / name
    record.mkdir(parents=True)
    for file in KEPT:
        shutil.copy(RUNS / name / file, record / file)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="study_landscape.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join(RECORDS)
    flags.add_argument("records", nargs="*", metavar="record", help=f"these only: {known}")
    args = flags.parse_args(argv)
    unknown = set(args.records) - set(RECORDS)
    if unknown:
        flags.error(f"no such record: {', '.join(sorted(unknown))}")
    for name in args.records or RECORDS:
        if not (RESULTS / name).exists():
            train(name)
            keep(name)


if __name__ == "__main__":
    common.launch(main)
