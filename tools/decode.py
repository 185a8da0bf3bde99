"""Decode a folder of images, once, before training.

    python tools/decode.py data/imagenet100 --size 256
    python tools/decode.py data/tiny-imagenet-200 --size 64
    python tools/decode.py data/mine --size 64 --skip-unreadable    leave out files that are damaged

Reads <folder>/{train,test}/<class>/*, in any depth below the class; val/ serves as test/. (Of
Tiny-ImageNet remove the unlabelled test/ and sort val/ into class folders first.) Writes into the
folder, where --dataset finds them
    x_train.npy, x_test.npy    uint8 (N, size, size, 3): the shorter side to `size` pixels, then the
                               central square
    y_train.npy, y_test.npy    int64 (N,): the numbers of the classes

Until all is done they are in <folder>/decoding/. What is interrupted goes on there when it is
started again; a list of files that has changed, or another --size, starts afresh.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torchvision.transforms.v2.functional as TF
from torchvision.datasets.folder import ImageFolder, pil_loader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402

# In the order in which they are moved: before the last, the folder does not load as a data set.
FILES = ("y_train.npy", "y_test.npy", "x_train.npy", "x_test.npy")
AT_ONCE = 512  # files; so many at most are decoded again after an interruption


def find_images(folder: Path) -> dict[str, ImageFolder]:
    """The image files of "train" and "test" and their classes; BadInput where one has none."""
    test = "test" if (folder / "test").is_dir() else "val"
    try:
        found = {
            "train": ImageFolder(str(folder / "train")),
            "test": ImageFolder(str(folder / test)),
        }
    except FileNotFoundError as error:
        raise common.BadInput(error) from error
    alone = sorted({*found["train"].classes} ^ {*found["test"].classes})
    if alone:
        wanted = f"train/ and {test}/ need the same classes"
        raise common.BadInput(f"{folder}: {wanted}; '{alone[0]}' is in one of them")
    return found


def square(path: str, size: int) -> np.ndarray:
    """An image file as (size, size, 3) uint8.

    The shorter side to `size` pixels, with anti-aliasing, then the central square.
    """
    image = TF.resize(pil_loader(path), [size])
    return np.asarray(TF.center_crop(image, [size, size]))


def write_state(work: Path, state: dict) -> None:
    """Say in progress.json how far the decoding is."""
    with common.replacing(work / "progress.json") as file:
        file.write(json.dumps(state).encode())


def start(work: Path, found: dict[str, ImageFolder], size: int) -> dict:
    """How far an earlier decoding of the same files has come; else a new one.

    files: a hash of their names and the size
    train, test: images that are decoded
    unreadable: the numbers of those that cannot be, by part
    """
    names = [str(size)]
    for images in found.values():
        for path, _ in images.samples:
            names.append(path.removeprefix(str(work.parent)))
    text = "\n".join(names).encode(errors="surrogateescape")
    files = hashlib.sha256(text).hexdigest()

    path = work / "progress.json"
    if path.exists():
        state = json.loads(path.read_text())
        if state["files"] == files:
            return state
    shutil.rmtree(work, ignore_errors=True)
    needed = (len(names) - 1) * size * size * 3
    free = shutil.disk_usage(work.parent).free
    if needed > free:  # writing to a map on a full disk would end the program without a word
        wanted = f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
        raise common.BadInput(f"{work.parent}: {wanted}")
    work.mkdir()
    return {"files": files, "train": 0, "test": 0, "unreadable": {"train": [], "test": []}}


def fill(part: str, images: ImageFolder, size: int, work: Path, state: dict, skip: bool) -> None:
    """Decode what is left of a part into the memory-mapped x_<part>.npy, AT_ONCE files at a time.

    Images are on disk before progress.json says so. BadInput names a file that cannot be read,
    unless such files are to be skipped.
    """
    total = len(images)
    mode = "r+" if state[part] else "w+"
    shape = (total, size, size, 3)
    out = np.lib.format.open_memmap(work / f"x_{part}.npy", mode, np.uint8, shape)

    def decode_one(i):
        """None, or why file i cannot be read."""
        try:
            out[i] = square(images.samples[i][0], size)
        except Exception as error:  # every image format fails in its own way
            return str(error)
        return None

    starts = range(state[part], total, AT_ONCE)
    with ThreadPoolExecutor() as pool:  # PIL lets other threads run while it decodes
        for first in common.progress(starts, f"{part}, {AT_ONCE} images at a time"):
            chunk = range(first, min(first + AT_ONCE, total))
            errors = list(pool.map(decode_one, chunk))
            failed = [i for i, error in zip(chunk, errors) if error is not None]
            if failed and not skip:
                i = failed[0]
                reason = f"cannot be read as an image ({errors[i - first]})"
                remedy = "mend or remove it, or leave out all such files with --skip-unreadable"
                raise common.BadInput(f"{images.samples[i][0]} {reason}; {remedy}")
            out.flush()
            state["unreadable"][part] += failed
            state[part] = chunk.stop
            write_state(work, state)


def complete(part: str, images: ImageFolder, work: Path, unreadable: list[int]) -> None:
    """Take the unreadable images out of x_<part>.npy, say so, and write y_<part>.npy.

    Done twice it changes nothing.
    """
    path = work / f"x_{part}.npy"
    out = np.load(path, mmap_mode="r")
    kept = np.delete(np.arange(len(images)), unreadable)
    if len(kept) < len(out):
        shape = (len(kept), *out.shape[1:])
        rest = np.lib.format.open_memmap(work / "kept.npy", "w+", np.uint8, shape)
        for row, i in enumerate(common.progress(kept, f"{part}, images that are kept")):
            rest[row] = out[i]
        rest.flush()
        os.replace(work / "kept.npy", path)
    labels = np.asarray(images.targets, np.int64)
    np.save(work / f"y_{part}.npy", labels[kept])
    print(f"{part}: {len(kept)} images of {len(images.classes)} classes")
    if unreadable:
        first = images.samples[unreadable[0]][0]
        print(f"{len(unreadable)} cannot be read and are left out, first {first}")


def decode(folder: Path, size: int, skip_unreadable=False) -> None:
    """Decode the images in `folder` to `size` pixels, from where an interrupted decoding ended."""
    work = folder / "decoding"
    last = folder / FILES[-1]
    if last.exists():
        shutil.rmtree(work, ignore_errors=True)
        pixels = np.load(last, mmap_mode="r").shape[1]
        again = "remove its .npy files to decode it again"
        text = f"{folder} is decoded already, to {pixels} pixels; {again}"
        if pixels != size:
            raise common.BadInput(text)
        print(text)
        return

    found = find_images(folder)
    state = start(work, found, size)
    if not state.get("complete"):
        for part, images in found.items():
            fill(part, images, size, work, state, skip_unreadable)
        for part, images in found.items():
            complete(part, images, work, state["unreadable"][part])
        write_state(work, state | {"complete": True})
    for name in FILES:
        if (work / name).exists():  # else it was moved before an interruption
            os.replace(work / name, folder / name)
    shutil.rmtree(work)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="decode.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    of_folder = "holds train/ and test/ or val/, a folder per class in each"
    of_size = (
        "side in pixels: 256 for ImageNet and ImageNet-100 (views of 224), 64 for Tiny-ImageNet"
    )
    add("folder", type=Path, help=of_folder)
    add("--size", type=common.within(0, kind=int), required=True, help=of_size)
    add("--skip-unreadable", action="store_true", help="leave out files that cannot be decoded")
    args = flags.parse_args(argv)
    decode(args.folder, args.size, args.skip_unreadable)


if __name__ == "__main__":
    common.launch(main)
