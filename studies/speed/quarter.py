"""A quarter of an hour on a GPU: how fast it trains, then a paper's run of CIFAR-100.

    python studies/speed/quarter.py               images/s of BayesNCL; five minutes at most
    python studies/speed/quarter.py bayesncl      200 epochs, or as many as fit into ten

The first trains three short epochs, as they are and with --compile, and adds the last one's
images/s to rates.jsonl. The second takes the faster way, and

    epochs = 0.8 · seconds · images/s / training images, at most the papers' 200.

A fifth of the time is for what images/s leaves out: start, compiling, checkpoints, evaluation. At
95 % the training ends; the same command goes on from the last whole epoch. A complete run is
measured and recorded after that by studies/run.py, which needs requirements-dev.txt. Of 200 epochs
it is the run cifar100-bayesncl of runs.txt; of fewer their number is in its name, and runs.txt gets
a row.

What is to be looked at was fixed before the first run. One of 200 epochs counts if LP@1 is 58 or
more. Then Cons., also less that of shuffled labels, the dimensions on fewer than ten images, and
adj. beside random directions.
"""

import argparse
import importlib.util
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402

import torch  # noqa: E402

EPOCHS = 200  # the papers'
SHORT = 25_600  # images: 100 steps
WAYS = "", "--compile"


def call(command: list[str], end: float | None = None) -> None:
    """Run a program, at most until time.monotonic() is `end`. BadInput unless it ends well."""
    left = None if end is None else max(0, end - time.monotonic())
    program = subprocess.Popen([sys.executable, *command], cwd=ROOT)
    try:
        code = program.wait(left)
    except subprocess.TimeoutExpired as error:
        raise common.BadInput(f"time is up for {command[0]}") from error
    finally:
        program.terminate()  # if it has not ended, as after Ctrl-C
        program.wait()
    common.need(code == 0, f"{shlex.join(command)}: exit code {code}")


def measure(images: int, device: str, end: float) -> None:
    """Add to rates.jsonl the images/s of the last of three short epochs, each way."""
    for way in WAYS:
        command = f"bayesncl.py --dataset cifar100 --epochs 3 --limit {min(images, SHORT)} {way}"
        with tempfile.TemporaryDirectory() as name:
            run = Path(name, "run")
            try:
                call([*command.split(), "--device", device, "--out", str(run)], end)
            except common.BadInput as error:  # such as --compile without a compiler
                print(f"not measured: {error}", flush=True)
                continue
            config = json.loads((run / "config.json").read_text())
            *_, last, _ = (run / "metrics.jsonl").read_text().splitlines()
        rate = {key: config[key] for key in ("hardware", "torch", "commit", "date")}
        rate |= dict(way=way, images_per_s=json.loads(last)["images_per_s"])
        with open(HERE / "rates.jsonl", "a") as file:
            file.write(json.dumps(rate) + "\n")


def fastest(device: str) -> tuple[float, str]:
    """The latest images/s of the faster way on such a device with this torch, and the way."""
    file = HERE / "rates.jsonl"
    here = common.hardware(device), torch.__version__
    latest = {}
    for number, line in enumerate(file.read_text().splitlines() if file.exists() else [], 1):
        try:
            rate = json.loads(line)
            if (rate["hardware"], rate["torch"]) == here:
                latest[rate["way"]] = rate["images_per_s"]
        except (ValueError, LookupError, TypeError) as error:
            raise common.BadInput(f"{file}, line {number} is damaged: delete it") from error
    common.need(latest, "python studies/speed/quarter.py has not measured this device yet")
    return max((rate, way) for way, rate in latest.items())


def epochs_that_fit(images_per_s: float, minutes: float, images: int) -> int:
    """How many epochs of so many images four fifths of the time have, at most EPOCHS."""
    return int(min(EPOCHS, 0.8 * 60 * minutes * images_per_s / images))


def train(method: str, seed: int, epochs: int, way: str, device: str, end: float) -> None:
    """Make a run of so many epochs in runs/, or go on with it, and record it."""
    name = f"cifar100-{method}"
    if epochs < EPOCHS:
        name = f"{name}-{epochs}-epochs"
    command = f"{method}.py --dataset cifar100 --epochs {epochs}"
    folder = f"runs/{name}-seed{seed}"
    here = ["--device", device]
    if (ROOT / folder / "config.json").exists():
        begun = json.loads((ROOT / folder / "config.json").read_text())["command"]
        common.need(begun.startswith(f"{command} "), f"{folder} was begun by {begun}: move it away")
        way = "--compile" if "--compile" in begun else ""
        call([f"{method}.py", *way.split(), *here, "--resume", folder], end)
    else:
        call([*command.split(), *way.split(), "--seed", str(seed), *here, "--out", folder], end)

    rows = HERE / "runs.txt"
    if f"\n{name} " not in rows.read_text():
        with open(rows, "a") as file:
            file.write(f"\n{name}  1-3  python {command}\n")
    record = f"studies/run.py speed --rows {name} --seeds {seed} --flags={way}"
    if all(map(importlib.util.find_spec, ("pandas", "scipy"))):
        call([*record.split(), *here])
    else:
        print(f"to record it: pip install -r requirements-dev.txt, then python {record}")


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="quarter.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    methods = ["bayesncl", "ncl", "simclr"]
    add("method", nargs="?", choices=methods, help=f"what to train: {', '.join(methods)}")
    minutes = common.number(float, 1e-3)
    add("--minutes", type=minutes, default=10, help="for the training (default: 10)")
    add("--seed", type=int, choices=[1, 2, 3], default=1, help="default: 1")
    add("--device", default=common.DEVICE, help=f"default: {common.DEVICE} here")
    args = flags.parse_args(argv)

    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, it ends what runs
    common.check_device(args.device)
    print(f"{common.hardware(args.device)}, torch {torch.__version__}", flush=True)
    images = len(common.find_arrays("cifar100", ROOT / "data")["x_train"])  # or downloads them
    if args.method is None:
        measure(images, args.device, began + 0.95 * 60 * 5)
    rate, way = fastest(args.device)
    epochs = epochs_that_fit(rate, args.minutes, images)
    told = f"{rate:.0f} images/s {way or 'as it is'}"
    print(f"{told}: {epochs} of {EPOCHS} epochs fit into {args.minutes:g} minutes", flush=True)
    if args.method:
        common.need(epochs, "give more --minutes")
        end = began + 0.95 * 60 * args.minutes
        train(args.method, args.seed, epochs, way, args.device, end)


if __name__ == "__main__":
    common.launch(main)
