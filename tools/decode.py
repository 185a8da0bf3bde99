"""Decode a folder of images, once, before training.

    python tools/decode.py data/imagenet100 --size 256
    python tools/decode.py data/tiny-imagenet-200 --size 64
    python tools/decode.py data/mine --size 64 --test-share 0.2     split what has no test set
    python tools/decode.py data/mine --size 64 --skip-unreadable    leave out files that are damaged

Reads one of
    <folder>/{train,test}/<class>/*    in any depth below the class; without test/ val/ serves as it
    <folder>/{train,test}/*            images without labels
    <folder>/<class>/*, <folder>/*     with --test-share, which splits them (or train/ alone)
Images are files that end in .jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff or .webp; others are
left alone: convert .gif, .heic and .avif first.
(Of Tiny-ImageNet remove the unlabelled test/ and sort val/ into class folders first.)

Writes into the folder, where --dataset finds them
    x_train.npy, x_test.npy    uint8 (N, size, size, 3): the shorter side to `size` pixels, then the
                               central square
    y_train.npy, y_test.npy    int64 (N,): the numbers of the classes, where there are labels
    split.csv                  file, class and set of each image, in the order of the arrays
    classes.txt                the name of class 0, 1, ... on each line, where there are labels

--test-share draws images one by one. Where several are of one patient or scene, make train/ and
test/ yourself, so that both are in one of them.

Grey values of 16 bits are divided by 257: stretch what has 12 bits to 16 first, or it is nearly
black. Of 16-bit colours the upper byte is taken. A TIFF with several pages cannot be read.

Until all is done they are in <folder>/decoding/. What is interrupted goes on there when it is
started again; a list of files that has changed, another --size or another split starts afresh.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import shutil
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402

import torch  # noqa: E402
import torchvision.transforms.v2.functional as TF  # noqa: E402
from runs import progress, read_json  # noqa: E402
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset  # noqa: E402

# In the order in which they are moved: before the last, the folder does not load as a data set.
FILES = ("split.csv", "classes.txt", "y_train.npy", "y_test.npy", "x_train.npy", "x_test.npy")
WORK = "decoding"  # the folder of what is not complete
BITS_PER_SAMPLE = 258  # a TIFF file's tag
AT_ONCE = 512  # files; so many at most are decoded again after an interruption


Images = list[tuple[str, int]]  # of each its file and the number of its class


# ------------------------------------------------------------------------------------- image files
def list_images(folder: Path, work: Path) -> tuple[Images, list[str]]:
    """The images in a folder and the names of their classes, which are the folders in it.

    Without such folders, the images have no names of classes and all the number 0.
    work: where the program writes; it is no class.
    """
    names = sorted(os.listdir(folder))
    classes = [name for name in names if (folder / name).is_dir() and folder / name != work]
    files = [str(folder / name) for name in names if name.lower().endswith(IMG_EXTENSIONS)]
    if not classes:
        return [(file, 0) for file in files], []
    if files:
        remedy = "put each into the folder of its class, or remove it"
        raise common.BadInput(f"{files[0]} lies beside the folders of the classes; {remedy}")
    numbers = {name: number for number, name in enumerate(classes)}
    try:
        return make_dataset(str(folder), numbers, IMG_EXTENSIONS), classes
    except FileNotFoundError as error:  # a class has no images
        raise common.BadInput(f"{folder}: {error}") from error


def split(images: Images, share: float, seed: int) -> dict[str, Images]:
    """The images as "train" and "test", in their order: a share of each class, at random, to test.

    Where a class has two images or more, each part gets one at least. A single one is in "train".
    """
    random = torch.Generator().manual_seed(seed)
    members = defaultdict(list)  # number of a class: which images, in random order
    for i in torch.randperm(len(images), generator=random).tolist():
        _, number = images[i]
        members[number].append(i)
    chosen = set()
    for of_class in members.values():
        count = max(1, round(share * len(of_class)))
        count = min(count, len(of_class) - 1)
        chosen.update(of_class[:count])

    found = {"train": [], "test": []}
    for i, image in enumerate(images):
        part = "test" if i in chosen else "train"
        found[part].append(image)
    return found


def find_images(folder: Path, share=None, seed=0) -> tuple[dict[str, Images], list[str]]:
    """The images of "train" and "test", and the names of their classes; none without labels.

    share: of each class, which becomes the test set where the folder has none
    BadInput says which layouts there are, or names a class that is in one part alone.
    """
    common.need(folder.is_dir(), f"{folder} is not a folder")
    work = folder / WORK
    train = folder / "train"
    test = folder / "test"
    if not test.is_dir():
        test = folder / "val"
    elif (folder / "val").is_dir():
        print(f"{folder / 'val'} is left out, as there is a test/")

    if share is None:
        layout = "train/<class>/*.jpg and test/<class>/*.jpg"
        unlabelled = "without labels train/*.jpg and test/*.jpg"
        remedy = "to split <class>/*.jpg or *.jpg, add --test-share 0.2"
        wanted = f"{folder} needs {layout} ({unlabelled}); {remedy}"
        common.need(train.is_dir() and test.is_dir(), wanted)
        found = {}
        found["train"], classes = list_images(train, work)
        found["test"], of_test = list_images(test, work)
        alone = sorted({*classes} ^ {*of_test})
        if alone:
            wanted = f"train/ and {test.name}/ need the same classes"
            raise common.BadInput(f"{folder}: {wanted}; '{alone[0]}' is in one of them")
    else:
        common.need(not test.is_dir(), f"{test} is a test set already: leave out --test-share")
        whole = train if train.is_dir() else folder
        images, classes = list_images(whole, work)
        found = split(images, share, seed)
    for part, images in found.items():
        wanted = f"two or more are needed, of {', '.join(IMG_EXTENSIONS)}"
        common.need(len(images) > 1, f"{folder}: the {part} set has {len(images)} images; {wanted}")
    return found, classes


# ---------------------------------------------------------------------------------------- decoding
def read(path: str) -> Image.Image:
    """An image file in RGB of 8 bits. ValueError where it does not tell how large a value can be.

    Grey values v of 16 bits become v / 257, rounded. Of 16-bit colours Pillow takes the upper byte.
    """
    with Image.open(path) as image:
        if image.format == "TIFF" and image.n_frames > 1:
            raise ValueError("it has several pages; save each as a file of its own")
        if not image.mode.startswith(("I", "F")):
            return image.convert("RGB")
        of_16_bits = image.mode == "I" and image.format in ("PNG", "PPM")
        if not (of_16_bits or image.mode.startswith("I;16")):
            kind = "floats" if image.mode == "F" else "signed or 32-bit integers"
            raise ValueError(f"it holds {kind} of unknown range; save it with 8 or 16 bits")
        bits = 16
        if image.format == "TIFF":
            (bits,) = image.tag_v2[BITS_PER_SAMPLE]  # 12 or 16
        largest = 2**bits - 1
        values = np.asarray(image) * (255 / largest)
    return Image.fromarray(values.round().astype(np.uint8)).convert("RGB")


def square(path: str, size: int) -> np.ndarray:
    """An image file as (size, size, 3) uint8.

    The shorter side to `size` pixels, with anti-aliasing, then the central square.
    """
    image = TF.resize(read(path), [size])
    return np.asarray(TF.center_crop(image, [size, size]))


def name_of(path: str, folder: Path) -> str:
    """What an image file is called in its data set's folder, however that is written."""
    return Path(path).relative_to(folder).as_posix()


def write_state(work: Path, state: dict) -> None:
    """Say in progress.json how far the decoding is."""
    with common.replacing(work / "progress.json") as file:
        file.write(json.dumps(state).encode())


def need_room(folder: Path, size: int) -> None:
    """BadInput where the disk lacks `size` bytes.

    Else writing to a map would end the program without a word.
    """
    free = shutil.disk_usage(folder).free
    wanted = f"{size / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
    common.need(size <= free, f"{folder}: {wanted}")


def start(work: Path, found: dict[str, Images], size: int) -> dict:
    """How far an earlier decoding of the same files has come; else a new one.

    files: a hash of their names, their parts and the size
    train, test: images that are decoded
    unreadable: the numbers of those that cannot be, by part
    """
    names = [str(size)]
    for part, images in found.items():
        names.append(part)
        for path, _ in images:
            names.append(name_of(path, work.parent))
    text = "\n".join(names).encode(errors="surrogateescape")
    files = hashlib.sha256(text).hexdigest()

    path = work / "progress.json"
    state = read_json(path) if path.exists() else {}
    if state.get("files") != files:
        shutil.rmtree(work, ignore_errors=True)
        state = {"files": files, "train": 0, "test": 0, "unreadable": {"train": [], "test": []}}
    left = sum(len(images) - state[part] for part, images in found.items())
    need_room(work.parent, left * size * size * 3)
    work.mkdir(exist_ok=True)
    return state


def need_all(found: dict[str, Images], unreadable: dict[str, list[int]], work: Path) -> None:
    """BadInput where an earlier decoding, with --skip-unreadable, has left out a file."""
    for part, images in found.items():
        for i in unreadable[part]:
            path, _ = images[i]
            remedy = f"add --skip-unreadable again, or mend it, remove {work} and start afresh"
            raise common.BadInput(f"{path} could not be read and was left out; {remedy}")


def fill(part: str, images: Images, size: int, work: Path, state: dict, skip: bool) -> None:
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
            out[i] = square(images[i][0], size)
        except MemoryError:
            raise  # which says nothing of the file
        except Exception as error:  # every image format fails in its own way
            return str(error)
        return None

    starts = range(state[part], total, AT_ONCE)
    with ThreadPoolExecutor() as pool:  # PIL lets other threads run while it decodes
        for first in progress(starts, f"{part}, {AT_ONCE} images at a time"):
            chunk = range(first, min(first + AT_ONCE, total))
            errors = list(pool.map(decode_one, chunk))
            failed = [i for i, error in zip(chunk, errors) if error is not None]
            if failed and not skip:
                i = failed[0]
                reason = f"cannot be read as an image ({errors[i - first]})"
                remedy = "mend or remove it, or leave out all such files with --skip-unreadable"
                raise common.BadInput(f"{images[i][0]} {reason}; {remedy}")
            out.flush()
            state["unreadable"][part] += failed
            state[part] = chunk.stop
            write_state(work, state)


def copy_rows(source: Path, target: Path, rows: np.ndarray, what: str) -> None:
    """Write rows of the array in one .npy file into another; neither stays mapped into memory."""
    array = np.load(source, mmap_mode="r")
    shape = (len(rows), *array.shape[1:])
    target.unlink(missing_ok=True)  # of an interrupted copy
    need_room(target.parent, math.prod(shape) * array.itemsize)
    copy = np.lib.format.open_memmap(target, "w+", array.dtype, shape)
    for i, row in enumerate(progress(rows, what)):
        copy[i] = array[row]
    copy.flush()


def complete(part: str, images: Images, classes: list[str], work: Path, unreadable: list[int]):
    """Take the unreadable images out of x_<part>.npy, say so, and write y_<part>.npy.

    Done twice it changes nothing. Returns the images that are left.
    """
    kept = np.delete(np.arange(len(images)), unreadable)
    common.need(len(kept), f"no image of the {part} set can be read, the first is {images[0][0]}")
    path = work / f"x_{part}.npy"
    decoded, *_ = np.load(path, mmap_mode="r").shape
    if len(kept) < decoded:
        copy_rows(path, work / "kept.npy", kept, f"{part}, images that are kept")
        os.replace(work / "kept.npy", path)  # neither is mapped: Windows would not replace it
    left = [images[i] for i in kept]
    labels = np.array([number for _, number in left], np.int64)
    kind = "without labels"
    if classes:
        kind = f"of {len(np.unique(labels))} classes"
        np.save(work / f"y_{part}.npy", labels)
    print(f"{part}: {len(left)} images {kind}")
    if unreadable:
        first, _ = images[unreadable[0]]
        print(f"{len(unreadable)} could not be read and are left out, first {first}")
    return left


def write_split(work: Path, kept: dict[str, Images], classes: list[str]) -> None:
    """split.csv: which file is in which set, in the order of the arrays."""
    errors = "surrogateescape"  # names of files are bytes
    with open(work / "split.csv", "w", newline="", encoding="utf-8", errors=errors) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["file", "class", "set"])
        for part, images in kept.items():
            for path, number in images:
                name = name_of(path, work.parent)
                of_class = classes[number] if classes else ""
                table.writerow([name, of_class, part])


def write_names(work: Path, classes: list[str]) -> None:
    """classes.txt: the name of class 0, 1, ... on each line."""
    lines = [f"{name}\n" for name in classes]
    text = "".join(lines).encode(errors="surrogateescape")
    (work / "classes.txt").write_bytes(text)


def decode(folder: Path, size: int, skip_unreadable=False, test_share=None, seed=0) -> None:
    """Decode the images in `folder` to `size` pixels, from where an interrupted decoding ended."""
    work = folder / WORK
    last = folder / FILES[-1]
    if last.exists():
        shutil.rmtree(work, ignore_errors=True)
        pixels = np.load(last).shape[1]
        again = "remove split.csv, classes.txt and the .npy files to decode it again"
        text = f"{folder} is decoded already, to {pixels} pixels; {again}"
        if pixels != size:
            raise common.BadInput(text)
        print(text)
        return

    found, classes = find_images(folder, test_share, seed)
    state = start(work, found, size)
    if not skip_unreadable:
        need_all(found, state["unreadable"], work)
    if not state.get("complete"):
        tables = ["split.csv"]
        if classes:
            tables.append("classes.txt")
        for name in tables:
            mine = folder / name
            common.need(not mine.exists(), f"{mine} would be overwritten: move or remove it")
        for part, images in found.items():
            fill(part, images, size, work, state, skip_unreadable)
        kept = {}
        for part, images in found.items():
            kept[part] = complete(part, images, classes, work, state["unreadable"][part])
        write_split(work, kept, classes)
        if classes:
            write_names(work, classes)
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
    of_folder = "holds the images, laid out in one of these ways"
    of_size = (
        "side in pixels: 256 for ImageNet and ImageNet-100 (views of 224), 64 for Tiny-ImageNet"
    )
    of_share = "share of each class that becomes the test set, of a folder without one"
    whole = common.number(int, 0, 2**32 - 1)
    add("folder", type=Path, help=of_folder)
    add("--size", type=common.number(int, 1), required=True, help=of_size)
    add("--skip-unreadable", action="store_true", help="leave out files that cannot be decoded")
    add("--test-share", type=common.number(float, 0.001, 0.999), help=of_share)
    add("--seed", type=whole, default=0, help="of that choice (default: 0)")
    args = flags.parse_args(argv)
    decode(args.folder, args.size, args.skip_unreadable, args.test_share, args.seed)


if __name__ == "__main__":
    common.launch(main)
