"""A quarter of an hour on a GPU: how fast it trains, then a paper's run of CIFAR-100.

    python studies/speed/quarter.py               images/s of BayesNCL; five minutes at most
    python studies/speed/quarter.py bayesncl      200 epochs, or as many as fit into ten

The first trains three short epochs, as they are and with --compile, and adds the last one's
images/s to rates.jsonl. The second takes the faster way, and

    epochs = 0.8 · seconds · images/s / training images, at most the papers' 200.

A fifth of the time is for start, compiling, checkpoints and evaluation. At 95 % all ends, and the
same command goes on from the last whole epoch. studies/run.py, which needs requirements-dev.txt,
measures and records what is complete: the run cifar100-bayesncl of runs.txt; one of fewer epochs
has their number in its name, and becomes a row of runs.txt.

What is to be looked at was fixed before the first run. It counts if LP@1 is 58 or more. Then Cons.,
also less that of shuffled labels, the dimensions on fewer than ten images, and adj. beside random
directions.
"""

import argparse
import importlib.util
import json
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
SHORT = 12_800  # images: 50 steps
WAYS = "", "--compile"


def call(command: list[str], end: float) -> None:
    """Run a program, until time.monotonic() is `end` at most. BadInput unless it ends well."""
    left = max(0, end - time.monotonic())
    try:
        done = subprocess.run([sys.executable, *command], cwd=ROOT, timeout=left)
    except subprocess.TimeoutExpired as error:
        raise common.BadInput(f"time is up for {command[0]}; what is done is kept") from error
    common.need(done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}")


def measure(images: int, here: list[str], end: float) -> None:
    """Add to rates.jsonl the images/s of the last of three short epochs, each way."""
    for way in WAYS:
        command = f"bayesncl.py --dataset cifar100 --epochs 3 --limit {min(images, SHORT)} {way}"
        with tempfile.TemporaryDirectory() as name:
            run = Path(name, "run")
            call([*command.split(), *here, "--out", str(run)], end)
            config = json.loads((run / "config.json").read_text())
            *_, last, _ = (run / "metrics.jsonl").read_text().splitlines()
        rate = {key: config[key] for key in ("hardware", "torch", "commit", "date")}
        rate |= dict(way=way, images_per_s=json.loads(last)["images_per_s"])
        with open(HERE / "rates.jsonl", "a") as file:
            file.write(json.dumps(rate) + "\n")


def fastest(device: str) -> tuple[float, str]:
    """The images/s of the faster way on such a device with this torch, and the way."""
    file = HERE / "rates.jsonl"
    latest = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        rate = json.loads(line)
        if (rate["hardware"], rate["torch"]) == (common.hardware(device), torch.__version__):
            latest[rate["way"]] = rate["images_per_s"]
    common.need(latest, "first measure this device: python studies/speed/quarter.py")
    return max((rate, way) for way, rate in latest.items())


def epochs_that_fit(images_per_s: float, minutes: float, images: int) -> int:
    """How many epochs of so many images four fifths of the time have, at most EPOCHS."""
    return min(EPOCHS, int(0.8 * 60 * minutes * images_per_s / images))


def train(method: str, seed: int, epochs: int, way: str, here: list[str], end: float) -> None:
    """Make a run of so many epochs in runs/, or go on with it, and record it."""
    name = f"cifar100-{method}"
    command = f"{method}.py --dataset cifar100 --epochs {epochs}"
    if epochs < EPOCHS:
        name = f"{name}-{epochs}-epochs"
        rows = HERE / "runs.txt"
        if f"\n{name} " not in rows.read_text():
            with open(rows, "a") as file:
                file.write(f"\n{name}  1-3  python {command}\n")
    run = f"runs/{name}-seed{seed}"
    if (ROOT / run / "config.json").exists():
        call([f"{method}.py", *way.split(), *here, "--resume", run], end)
    else:
        call([*command.split(), *way.split(), "--seed", str(seed), *here, "--out", run], end)

    record = ["studies/run.py", "speed", "--rows", name, "--seeds", str(seed), f"--flags={way}"]
    if importlib.util.find_spec("pandas"):
        call([*record, *here], end + 3600)
    else:
        print(f"pip install -r requirements-dev.txt, then record it: python {' '.join(record)}")


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
    add("--seed", type=common.number(int, 0), default=1, help="default: 1")
    add("--data-root", default="data", help="folder of the data sets (default: data)")
    add("--device", default=common.DEVICE, help=f"default: {common.DEVICE} here")
    args = flags.parse_args(argv)

    began = time.monotonic()
    common.check_device(args.device)
    here = ["--device", args.device, "--data-root", args.data_root]
    arrays = common.find_arrays("cifar100", Path(args.data_root))  # downloaded if need be
    images = len(arrays["x_train"])
    if args.method is None:
        measure(images, here, began + 0.95 * 60 * 5)
    rate, way = fastest(args.device)
    epochs = epochs_that_fit(rate, args.minutes, images)
    print(f"{common.hardware(args.device)}, torch {torch.__version__}: {rate:.0f} images/s {way}")
    print(f"{epochs} of {EPOCHS} epochs fit into {args.minutes:g} minutes", flush=True)
    if args.method:
        common.need(epochs, "give more --minutes")
        train(args.method, args.seed, epochs, way, here, began + 0.95 * 60 * args.minutes)


if __name__ == "__main__":
    common.launch(main)
