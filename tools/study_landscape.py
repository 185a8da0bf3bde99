"""Make the landscape's records, results/landscape*/. What is recorded is skipped and what was interrupted goes on.

    OMP_NUM_THREADS=1 python tools/study_landscape.py     all of them: 45 minutes on one thread
    python tools/study_landscape.py landscape-table1      this one; to make it anew, delete its folder in results/ first
"""
import argparse
import os
import shlex
import shutil
import subprocess
import sys

import report
from report import ROOT, common

RUNS, CUSTOM = ROOT / "runs", "--experiment custom --head linear --sparsity 0.1 0.3 --seeds 5"
RECORDS = {  # folder in results/: flags of sparse_coding.py
    "landscape": "",
    "landscape-table1": "--experiment table1 --seeds 5",
    "landscape-findings": "--experiment alignment budget variants --seeds 5",
    "landscape-findings-iid": "--experiment alignment budget --latents iid --seeds 5",
    "landscape-paper-table1": "--paper --experiment table1",
    "landscape-paper-figures": "--paper --experiment fig4 fig5 fig6 fig7 fig3 fig2 fig1",
    "landscape-paper-relu": "--paper --experiment custom --method noncl --activation relu --latents zero-one "
                            "--sparsity 0.1 0.3",
    "landscape-noise": f"{CUSTOM} --noise 0.152 0.48",
    "landscape-temperature": f"{CUSTOM} --temperature 0.05 0.2 0.5",
    "landscape-fixed-threshold": f"{CUSTOM} --train-bias no",
}


def main(argv: list[str] | None = None) -> None:
    flags = argparse.ArgumentParser(prog="study_landscape.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("records", nargs="*", metavar="record", help=f"these only: {', '.join(RECORDS)}")
    args = flags.parse_args(argv)
    if unknown := {*args.records} - {*RECORDS}:
        flags.error(f"no such record: {', '.join(sorted(unknown))}")
    for name in args.records or RECORDS:
        run, kept = RUNS / name, report.RESULTS / name
        if kept.exists():
            continue
        if not run.exists() or (run / "memory").exists():  # which sparse_coding.py removes at the end
            where = ["--resume" if run.exists() else "--out", os.path.relpath(run, ROOT)]
            command = [sys.executable, "sparse_coding.py", *shlex.split(RECORDS[name]), *where]
            if code := subprocess.call(command, cwd=ROOT):
                sys.exit(code)
        kept.mkdir(parents=True)
        for file in "config.json", "results.json", "curves.npz":
            shutil.copy(run / file, kept / file)


if __name__ == "__main__":
    common.launch(main)
