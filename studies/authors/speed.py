"""How fast the authors' program trains beside ours, in turns on one quiet machine.

    python studies/authors/speed.py ../BayesNCL

Prints images per second of the second of two epochs, and the most memory until then. The settings
are those of runs.txt, on 2,048 images. Their views are made by the process that trains, as there.
"""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402

import torch  # noqa: E402
from theirs import OURS  # noqa: E402

SETTINGS = "--limit 2048 --epochs 2"


def measure(command: str, threads: int, out: Path) -> tuple[float, float]:
    """Images per second and GiB of a program, which is stopped after its second epoch."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), PYTHONUNBUFFERED="1")
    words = [sys.executable, *shlex.split(command), *shlex.split(SETTINGS), "--out", str(out)]
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            if "images_per_s" in line and line.startswith("epoch 2"):
                status = Path(f"/proc/{p.pid}/status").read_text()
                p.kill()
                rate = float(line.split("images_per_s")[1].split()[0])
                return rate, int(status.split("VmHWM:")[1].split()[0]) / 2**20
    raise common.BadInput(f"{command} ended before its second epoch did")


def main(argv=None):
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("clone", type=Path, help="folder of the clone")
    flags.add_argument("--turns", type=common.number(int, 1), default=3)
    args = flags.parse_args(argv)
    theirs = f"studies/authors/theirs.py {shlex.quote(str(args.clone))}"
    programs = {"ours": f"bayesncl.py {OURS} --device cpu", "theirs": f"{theirs} bayesncl"}
    print(f"# BayesNCL, {common.hardware('cpu')}, torch {torch.__version__}: images/s, GiB")
    for turn in range(args.turns):
        for threads in 1, 2:
            for name, command in programs.items():
                out = ROOT / "runs" / f"speed-{name}-{threads}-{turn}-{os.getpid()}"
                rate, memory = measure(command, threads, out)
                print(f"{threads} threads, {name}: {rate:.0f}, {memory:.2f}", flush=True)


if __name__ == "__main__":
    common.launch(main)
