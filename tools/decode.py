"""Decode a folder of images, once, before training.

    python tools/decode.py data/imagenet100 --size 256
    python tools/decode.py data/tiny-imagenet-200 --size 64
    python tools/decode.py data/mine --size 64 --skip-unreadable      leave out files that are damaged

Reads <folder>/{train,test}/<class>/* (val/ serves as test/), in any depth below the class: of Tiny-ImageNet remove the
unlabelled test/ and sort val/ into class folders first. Writes x_train.npy,
x_test.npy, uint8 (N, size, size, 3): shorter side to `size` pixels, then the central square; and the numbers of the
classes, y_train.npy, y_test.npy, int64 (N,), into the folder itself, where --dataset finds them. Until all is done they
are in <folder>/decoding/. What is interrupted goes on there when it is started again; a list of files that has changed,
or another --size, starts afresh.
"""
import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torchvision.transforms.v2.functional as TF
from torchvision.datasets.folder import ImageFolder, pil_loader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402

FILES = ("y_train.npy", "y_test.npy", "x_train.npy", "x_test.npy")  # moved in this order: no part of it loads as data
AT_ONCE = 512  # files; what is interrupted repeats so many at most


def find_images(folder: Path) -> dict[str, ImageFolder]:
    """The image files of "train" and "test" and their classes; BadInput where a folder or a class is missing."""
    test = "test" if (folder / "test").is_dir() else "val"
    try:
        found = {"train": ImageFolder(str(folder / "train")), "test": ImageFolder(str(folder / test))}
    except FileNotFoundError as error:
        raise common.BadInput(error)
    if alone := sorted({*found["train"].classes} ^ {*found["test"].classes}):
        raise common.BadInput(f"{folder}: train/ and {test}/ need the same classes; '{alone[0]}' is in one of them")
    return found


def square(path: str, size: int) -> np.ndarray:
    """An image file as (size, size, 3) uint8: shorter side to `size` pixels, with anti-aliasing; central square."""
    return np.asarray(TF.center_crop(TF.resize(pil_loader(path), [size]), [size, size]))


def start(work: Path, found: dict[str, ImageFolder], size: int) -> dict:
    """How far an earlier decoding of the same files has come, in images per part; 0 where there is none."""
    paths = [path.removeprefix(str(work.parent)) for images in found.values() for path, _ in images.samples]
    files = hashlib.sha256("\n".join([str(size), *paths]).encode(errors="surrogateescape")).hexdigest()
    if (work / "progress.json").exists():
        before = json.loads((work / "progress.json").read_text())
        if before["files"] == files:
            return before
    shutil.rmtree(work, ignore_errors=True)
    needed, free = len(paths) * size * size * 3, shutil.disk_usage(work.parent).free
    if needed > free:  # writing to a map on a full disk would end the program without a word
        raise common.BadInput(f"{work.parent}: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free")
    work.mkdir()
    return {"files": files, "train": 0, "test": 0, "unreadable": {"train": [], "test": []}}


def fill(part: str, images: ImageFolder, size: int, work: Path, progress: dict, skip_unreadable: bool) -> None:
    """Decode what is left of a part into the memory-mapped x_<part>.npy, AT_ONCE files at a time: they are on disk
    before progress.json says so. BadInput names a file that cannot be read, unless those are to be left out."""
    def decode(i):
        """None, or why file i cannot be read."""
        try:
            out[i] = square(images.samples[i][0], size)
        except Exception as error:  # every image format fails in its own way
            return str(error)

    total, first, began = len(images), progress[part], time.perf_counter()
    out = np.lib.format.open_memmap(work / f"x_{part}.npy", "r+" if first else "w+", np.uint8, (total, size, size, 3))
    with ThreadPoolExecutor() as pool:  # PIL lets other threads run while it decodes
        for i in range(first, total, AT_ONCE):
            chunk = range(i, min(i + AT_ONCE, total))
            failed = {j: error for j, error in zip(chunk, pool.map(decode, chunk)) if error is not None}
            if failed and not skip_unreadable:
                j, error = next(iter(failed.items()))
                raise common.BadInput(f"{images.samples[j][0]} cannot be read as an image ({error}); mend or remove "
                                      "it, or leave out all such files with --skip-unreadable")
            out.flush()
            progress["unreadable"][part] += failed
            progress[part] = chunk.stop
            with common.replacing(work / "progress.json") as file:
                file.write(json.dumps(progress).encode())
            if sys.stdout.isatty():
                rate = (chunk.stop - first) / (time.perf_counter() - began)
                print(f"\r\x1b[K{part}: {chunk.stop}/{total} images, {rate:.0f} images/s, "
                      f"{(total - chunk.stop) / rate:.0f} s left", end="\n" * (chunk.stop == total), flush=True)


def complete(part: str, images: ImageFolder, work: Path, unreadable: list[int]) -> None:
    """Take the unreadable images out of x_<part>.npy, say so, and write y_<part>.npy; done twice it changes nothing."""
    path = work / f"x_{part}.npy"
    out = np.load(path, mmap_mode="r")
    kept = np.delete(np.arange(len(images)), unreadable)
    if len(kept) < len(out):
        rest = np.lib.format.open_memmap(work / "kept.npy", "w+", np.uint8, (len(kept), *out.shape[1:]))
        for row, i in enumerate(kept):
            rest[row] = out[i]
        rest.flush()
        os.replace(work / "kept.npy", path)
    np.save(work / f"y_{part}.npy", np.asarray(images.targets, np.int64)[kept])
    print(f"{part}: {len(kept)} images of {len(images.classes)} classes")
    if unreadable:
        print(f"{len(unreadable)} cannot be read and are left out, first {images.samples[unreadable[0]][0]}")


def decode(folder: Path, size: int, skip_unreadable=False) -> None:
    """Decode the images in `folder` to `size` pixels, from where an interrupted decoding ended; see above."""
    work = folder / "decoding"
    if (folder / FILES[-1]).exists():  # the last to be moved
        shutil.rmtree(work, ignore_errors=True)
        pixels = np.load(folder / FILES[-1], mmap_mode="r").shape[1]
        text = f"{folder} is decoded already, to {pixels} pixels; remove its .npy files to decode it again"
        if pixels != size:
            raise common.BadInput(text)
        print(text)
        return
    found = find_images(folder)
    progress = start(work, found, size)
    if not progress.get("complete"):
        for part, images in found.items():
            fill(part, images, size, work, progress, skip_unreadable)
        for part, images in found.items():
            complete(part, images, work, progress["unreadable"][part])
        with common.replacing(work / "progress.json") as file:
            file.write(json.dumps(progress | {"complete": True}).encode())
    for name in FILES:
        if (work / name).exists():  # else moved before an interruption
            os.replace(work / name, folder / name)
    shutil.rmtree(work)


def main(argv=None):
    flags = argparse.ArgumentParser(prog="decode.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("folder", type=Path, help="holds train/ and test/ or val/, a folder per class in each")
    flags.add_argument("--size", type=common.within(0, kind=int), required=True,
                       help="side in pixels: 256 for ImageNet and ImageNet-100 (views of 224), 64 for Tiny-ImageNet")
    flags.add_argument("--skip-unreadable", action="store_true", help="leave out files that cannot be decoded")
    args = flags.parse_args(argv)
    decode(args.folder, args.size, args.skip_unreadable)


if __name__ == "__main__":
    common.launch(main)
