"""Evaluate a run's network again, on its own data set or another one.

    python tools/evaluate.py runs/my-run --dataset mine
    python tools/evaluate.py runs/my-run --dataset mine --out mine.npz
    python tools/look.py mine.npz                                     or interpret.py

This prints the same table as the end of a training and does not change the run. Probes are fitted
on the training images of the chosen data set. --out saves h, z, labels and images of the test set.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
from run_folder import data_of, load_run  # noqa: E402

import torch  # noqa: E402


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="evaluate.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("run", type=Path, help="folder of a finished run")
    flags.add_argument("--dataset", help="data set to evaluate on (default: the run's)")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    flags.add_argument("--device", default=common.DEVICE, help="cuda, cpu")
    flags.add_argument("--out", type=Path, metavar="FILE", help="save h, z, ... in a new .npz file")
    args = flags.parse_args(argv)
    common.check_device(args.device)
    if args.out:
        new = args.out.suffix == ".npz" and not os.path.lexists(args.out)
        common.need(new, f"--out {args.out}: name a new file that ends in .npz")
    run, model = load_run(args.run)
    if args.dataset not in (None, run.dataset):
        run.dataset = args.dataset
        run.limit = None  # it was for another data set
    same = not (args.dataset or args.data_root)
    data = data_of(run, args.data_root, same, typed=bool(args.dataset))
    noted = getattr(run, "fingerprint", data.fingerprint)  # an older version noted none
    whose = "" if data.fingerprint == noted else ", not those of the run"
    counts = f"{len(data.train['x']):,} training and {len(data.test['x']):,} test images"
    print(f"{run.dataset}: {counts}{whose}")
    run.device = args.device
    model.to(args.device, memory_format=torch.channels_last)
    metrics, h, z = common.evaluate(model, data, run)
    common.print_table(metrics, data)
    if args.out:
        arrays = dict(h=h.cpu().numpy(), z=z.cpu().numpy(), images=data.test["x"].numpy())
        for label, classes in data.classes.items():
            arrays[label] = classes[data.test[label]]
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with common.replacing(args.out) as file:
            np.savez(file, **arrays)


if __name__ == "__main__":
    common.launch(main)
