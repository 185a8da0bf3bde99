"""Make a small copy of a finished run for sharing: in half precision, without the optimizer.

    python tools/weights.py runs/<run> weights/<name>
    python tools/evaluate.py weights/<name>             evaluate it again

The copy has config.json, checkpoint.pt and backbone.pt. evaluate.py, selection.py, robustness.py
and finetune.py read it like the original run; interpret.py and look.py read what evaluate.py --out
writes. It cannot be trained further.
"""

import argparse
import io
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
from run_folder import load_run  # noqa: E402

import torch  # noqa: E402
from torch import Tensor  # noqa: E402


def halved(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state_dict in half precision, counters unchanged. BadInput if a weight is too large."""
    small = {}
    for name, value in weights.items():
        if value.is_floating_point():
            value = value.half()
            common.need(value.isfinite().all(), f"{name} is too large for half precision")
        small[name] = value
    return small


def copy_run(folder: Path, new: Path) -> None:
    """Write the copy into `new`; BadInput if the run has not finished or `new` exists."""
    _, model = load_run(folder)
    common.need(not os.path.lexists(new), f"{new} is there already; name a new folder")
    small = dict(model=halved(model.state_dict()))
    small_backbone = halved(common.load_checkpoint(folder / "backbone.pt"))
    new.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=new.parent, prefix=new.name) as work:
        unfinished = Path(work, new.name)
        unfinished.mkdir()
        shutil.copy(folder / "config.json", unfinished)
        for name, weights in ("checkpoint.pt", small), ("backbone.pt", small_backbone):
            save_deflated(unfinished / name, weights)
        unfinished.rename(new)


def save_deflated(path: Path, weights: dict) -> None:
    """torch.save, with the entries of its zip archive compressed; torch.load can read that."""
    stored = io.BytesIO()
    torch.save(weights, stored)
    with common.replacing(path) as file, zipfile.ZipFile(stored) as archive:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as smaller:
            for name in archive.namelist():
                smaller.writestr(name, archive.read(name))


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="weights.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("run", type=Path, help="folder of a finished run")
    flags.add_argument("new", type=Path, help="folder to write, which must not exist yet")
    args = flags.parse_args(argv)
    copy_run(args.run, args.new)
    size = sum(file.stat().st_size for file in args.new.iterdir())
    print(f"{args.new}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    common.launch(main)
