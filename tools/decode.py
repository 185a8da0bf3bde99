"""Decode a folder of images, once, before training.

    python tools/decode.py data/imagenet100 --size 256
    python tools/decode.py data/tiny-imagenet-200 --size 64
    python tools/decode.py data/mine --size 64 --test-share 0.2     split, if there is no test set
    python tools/decode.py data/mine --size 64 --skip-unreadable    leave out damaged files

Reads one of these layouts:
    <folder>/{train,test}/<class>/*    at any depth below the class; without test/, val/ is used
    <folder>/{train,test}/*            images without labels
    <folder>/<class>/*, <folder>/*     with --test-share, which splits them (also for train/ alone)
    <folder>/data/train-*.parquet      as Hugging Face's datasets writes them, and test-*.parquet or
                                       validation-*.parquet; needs pyarrow (tools/parquet.py)
Images end in .jpg, .jpeg, .png, .ppm, .bmp, .gif, .pgm, .tif, .tiff or .webp (convert .heic and
.avif first). Names that begin with a dot are left out; links are followed.
(For Tiny-ImageNet, first remove the unlabelled test/ and sort val/ into class folders.)

Writes these files into the folder, where --dataset finds them:
    x_train.npy, x_test.npy    uint8 (N, size, size, 3): the shorter side is resized to `size`
                               pixels, then the central square is cut out
    y_train.npy, y_test.npy    int64 (N,): class numbers, if there are labels
    split.csv                  file, class and set of each image, in the order of the arrays
    classes.txt                the name of class 0, 1, ..., one per line, if there are labels

Images are rotated as EXIF says (ImageFolder does not do this), and transparent pixels become white.
16-bit grey values are divided by 257: rescale 12-bit images to 16 bits first, or they will be
nearly black.

--test-share draws single images at random. If several images show the same patient or scene, make
train/ and test/ yourself, so that these stay together. The program prints which test images are
also in the training set.

Until everything is done, the files are in <folder>/.decoding/. An interrupted decoding continues
from there when it is started again, unless the list of files, --size or the split has changed: then
it starts from the beginning. A folder of this name that decode.py did not make is refused.
"""

import argparse
import csv
import hashlib
import json
import os
import shutil
import sys
import unicodedata
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
import image_files  # noqa: E402
from common import progress, read_json  # noqa: E402
from run_folder import write_json  # noqa: E402

import torch  # noqa: E402

# In the order in which they are moved: before the last, the folder does not load as a data set.
FILES = ("split.csv", "classes.txt", "y_train.npy", "y_test.npy", "x_train.npy", "x_test.npy")
WORK = ".decoding"  # the folder of what is not complete; hidden, so no class
STATE = "progress.json"  # in it: how far the decoding is
IN_WORK = {STATE, *FILES, "hash_train.npy", "hash_test.npy", "kept.npy"}  # all that is ever in it
SETS = ("train", "training", "test", "testing", "val", "valid", "validation")  # their names
AT_ONCE = 512  # files; so many at most are decoded again after an interruption
Images = list[tuple[str, int]]  # of each its file and the number of its class


# ------------------------------------------------------------------------------------- image files
def list_images(folder: Path, part: str, files: list[str]) -> tuple[Images, list[str]]:
    """The images in folder/part and the names of their classes, which are the folders in it.

    Without class folders there are no names, and every image has the number 0.
    files: paths relative to `folder`
    """
    inside = os.path.join(part, "")
    names = [file.removeprefix(inside) for file in files if file.startswith(inside)]
    folders = [entry.name for entry in os.scandir(folder / part) if entry.is_dir()]
    classes = sorted(name for name in folders if not image_files.is_hidden(name))
    numbers = {name: number for number, name in enumerate(classes)}
    images = []
    for name in progress(sorted(names, key=image_files.image_folder), "images listed:"):
        of_class = name.split(os.sep)[0]
        file = os.path.join(folder, part, name)
        beside = f"{file} lies beside the class folders: move it into one of them, or remove it"
        common.need(of_class in numbers or not classes, beside)
        images.append((file, numbers.get(of_class, 0)))
    for number in {*range(len(classes))} - {number for _, number in images}:
        remedy = f"remove it, or convert its images to one of {', '.join(image_files.ENDINGS)}"
        raise common.BadInput(f"{folder / part / classes[number]} has no images: {remedy}")
    return images, classes


def need_distinct(folder: Path, classes) -> None:
    """BadInput if two names of classes look the same, as they differ only in their Unicode form."""
    forms = defaultdict(set)
    for name in classes:
        forms[unicodedata.normalize("NFC", name)].add(name)
    for name, alike in forms.items():
        text = f"{folder}: '{name}' is written in two ways that look the same (NFC and NFD)"
        common.need(len(alike) == 1, f"{text}: give both classes one name, or different ones")


def split(images: Images, share: float, seed: int) -> dict[str, Images]:
    """Split the images into "train" and "test", in order; `share` of each class is for testing.

    If a class has two images or more, each part gets at least one. A single image goes to "train".
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
        found["test" if i in chosen else "train"].append(image)
    return found


def find_files(folder: Path, files: list[str], share) -> tuple[dict[str, Images], list[str]]:
    """The image files of each set, all in "train" if they are to be split, and the class names."""
    sets = [name for name in os.listdir(folder) if name.lower() in SETS]
    train, test, val = [name if name in sets else "" for name in ("train", "test", "val")]
    known = len(sets) < 2 or {*sets} == {train, test, val} - {""}
    common.need(known, f"{folder}: rename the sets {', '.join(sets)} to train/ and test/")
    test = test or val
    if share is not None:
        inner = {file: [name.lower() for name in Path(file).parts[1:-1]] for file in files}
        deeper = [file for file, names in inner.items() if not {*SETS}.isdisjoint(names)]
        common.need(not deeper, f"{folder} has sets deeper in it, {deeper[:1]}: name their folder")
        common.need(not test, f"{folder / test} is already a test set: leave out --test-share")
        images, classes = list_images(folder, train, files)
        need_distinct(folder, classes)
        if len(classes) == 1:
            text = f"{folder} has one folder, {classes[0]}: rename it to train/"
            common.need(classes[0].lower() not in SETS, text)
        others = f"{len(files) - len(images)} images are not in {folder / 'train'}"
        remedy = "move them there, or rename train/ if it is a class"
        common.need(len(images) == len(files), f"{others}: {remedy}")
        return {"train": images, "test": []}, classes
    layout = "train/<class>/*.jpg and test/<class>/*.jpg (if there are no labels, without <class>/)"
    remedy = "to split <class>/*.jpg or *.jpg, add --test-share 0.2"
    common.need(train and test, f"{folder} needs {layout}; {remedy}")
    images, classes = list_images(folder, train, files)
    of_test, classes_of_test = list_images(folder, test, files)
    need_distinct(folder, {*classes, *classes_of_test})
    for name in sorted({*classes} ^ {*classes_of_test}):
        wanted = f"train/ and {test}/ need the same classes"
        raise common.BadInput(f"{folder}: {wanted}; only one of them has '{name}'")
    if others := len(files) - len(images) - len(of_test):
        print(f"{folder}: {others} images are in neither train/ nor {test}/ and left out")
    return {"train": images, "test": of_test}, classes


def find_images(folder: Path, share=None, seed=0, label=None):
    """The images of "train" and "test"; the class names, none without labels; contents.

    share: the share of each class that becomes the test set, if the folder has none
    label: the column of labels, if Parquet files have several
    contents: a function from image names to what image_files.read takes
    """
    common.need(folder.is_dir(), f"{folder} is not a folder")
    names = image_files.find(folder, (*image_files.ENDINGS, ".parquet", ".arrow"))
    of_kind = {".parquet": [], ".arrow": []}
    files = []
    for name in names:
        of_kind.get(os.path.splitext(name)[1].lower(), files).append(name)
    tables, arrows = of_kind.values()
    remedy = "load_from_disk(...).to_parquet('train.parquet') in Python writes what is read here"
    others_only = arrows and not files and not tables
    common.need(
        not others_only, f"{folder} has .arrow files, as of datasets' save_to_disk: {remedy}"
    )
    contents = iter
    if tables and not any(name.startswith(f"train{os.sep}") for name in files):
        import parquet  # which needs pyarrow

        found, classes = parquet.find_rows(folder, tables, label)
        need_distinct(folder, classes)
        contents = parquet.contents
    else:
        found, classes = find_files(folder, files, share)
    remedy = f"two are needed, of {', '.join(image_files.ENDINGS)}; to split, use --test-share 0.2"
    if share is not None:
        common.need(not found["test"], f"{folder} has a test set: leave out --test-share")
        if found["train"]:
            sizes = np.bincount([number for _, number in found["train"]])
            named = classes or [str(folder)]
            for number in np.flatnonzero(sizes == 1):
                print(f"{named[number]} has only one image, which goes into the training set")
            remedy = "give a larger --test-share; a class's only image is for training"
        found = split(found["train"], share, seed)
    for part, images in found.items():
        common.need(len(images) > 1, f"{folder}: the {part} set has {len(images)} images; {remedy}")
    return found, classes, contents


# ---------------------------------------------------------------------------------------- decoding
def name_of(path: str, folder: Path) -> str:
    """An image file's path relative to its data set's folder, however that folder is written."""
    return path.removeprefix(os.path.join(folder, "")).replace(os.sep, "/")


def need_room(folder: Path, size: int) -> None:
    """BadInput if the disk lacks `size` bytes: writing to a memory map would crash silently."""
    free = shutil.disk_usage(folder).free
    wanted = f"{size / 1e9:.1f} GB of disk are needed, but only {free / 1e9:.1f} GB are free"
    common.need(size <= free, f"{folder}: {wanted}")


def read_state(work: Path) -> dict:
    """How far an earlier decoding is, {} if none has begun; BadInput if `work` is not its folder.

    files: a hash of their names, sets and classes, and of the size
    train, test: how many images have been decoded
    unreadable: for each set, the indices of images that cannot be decoded
    complete: whether all files are made, and have only to be moved
    """
    if not os.path.lexists(work):
        return {}
    remedy = "rename or remove"
    is_folder = work.is_dir() and not work.is_symlink()
    common.need(is_folder, f"{work} is not a folder of decode.py: {remedy} it")
    names = os.listdir(work)
    if not names:
        return {}
    for name in names:
        ours = name in IN_WORK or name.startswith(f"{STATE}.")
        common.need(ours, f"{work / name} was not made by decode.py: {remedy} it or {work}")
        linked = f"{work / name} is a link, which decode.py never makes: remove {work}"
        common.need(not (work / name).is_symlink(), linked)

    state = read_json(work / STATE)
    unreadable = state.get("unreadable")
    good = isinstance(state.get("files"), str) and isinstance(state.get("complete", False), bool)
    good = good and isinstance(unreadable, dict)
    for part in "train", "test":
        good = good and is_count(state.get(part)) and isinstance(unreadable.get(part), list)
        good = good and all(is_count(i) and i < state[part] for i in unreadable[part])
    common.need(good, f"{work / STATE} is damaged, or not of decode.py: rename or remove {work}")
    return state


def is_count(value) -> bool:
    """Whether a value from JSON is an integer that is not negative."""
    return type(value) is int and value >= 0


def begin_or_go_on(work: Path, state: dict, found: dict[str, Images], size: int, skip: bool):
    """The state of an earlier decoding if it was of the same files, or else of a new one."""
    names = [f"{size} pixels"]
    for part, images in found.items():
        names.append(part)
        for path, number in progress(images, f"{part}, names compared:"):
            names.append(f"{number} {name_of(path, work.parent)}")
    text = "\n".join(names).encode(errors="surrogateescape")
    files = hashlib.sha256(text).hexdigest()

    same = state.get("files") == files
    moved = same and state.get("complete")
    for name in FILES:
        mine = work.parent / name
        common.need(moved or not mine.exists(), f"{mine} is there already: move or remove it")
    if not same:
        state = {"files": files, "train": 0, "test": 0, "unreadable": {"train": [], "test": []}}
    for part, images in found.items():
        possible = state[part] <= len(images)
        common.need(possible, f"{work / STATE} is damaged: remove {work} and start again")
        for i in state["unreadable"][part]:
            remedy = f"add --skip-unreadable again, or remove {work} and start again"
            common.need(skip, f"{images[i][0]} could not be read and was left out; {remedy}")
    left = sum(len(images) - state[part] for part, images in found.items())
    need_room(work.parent, left * size * size * 3)
    if not same:
        if work.exists():
            shutil.rmtree(work)
        work.mkdir()
        write_json(work / STATE, state)
    return state


def open_array(path: Path, mode: str, dtype, shape: tuple) -> np.ndarray:
    """A memory-mapped .npy file of ours; BadInput if it holds another array.

    mode: "r" to read it, "r+" also to change it, "w+" to make it
    shape: with None for a length that may be any
    """
    remedy = "remove what decode.py has made, and start again"
    try:
        array = np.lib.format.open_memmap(path, mode, dtype, shape)
    except ValueError as error:
        raise common.BadInput(f"{path} is damaged ({error}): {remedy}") from error
    fits = array.dtype == dtype and array.ndim == len(shape)
    fits = fits and all(wanted in (None, length) for wanted, length in zip(shape, array.shape))
    common.need(fits, f"{path} is damaged ({array.dtype} of shape {array.shape}): {remedy}")
    return array


def decode_part(
    part: str, images: Images, contents, size: int, work: Path, state: dict, skip: bool
):
    """Decode the rest of a set into the memory-mapped x_<part>.npy,
    and write a hash of each image's pixels into hash_<part>.npy.

    Images are on disk before STATE says so. BadInput names a file that cannot be read, unless such
    files are skipped.
    """
    total = len(images)
    if state[part] == total:
        return
    mode = "r+" if state[part] else "w+"
    out = open_array(work / f"x_{part}.npy", mode, np.uint8, (total, size, size, 3))
    hashes = open_array(work / f"hash_{part}.npy", mode, "S32", (total,))

    def decode_one(i, source):
        """None, or the error that says why image i cannot be read."""
        try:
            out[i] = image_files.square(image_files.read(source), size)
            hashes[i] = hashlib.sha256(out[i]).digest()
        except MemoryError:
            raise  # it is not the file's fault
        except Exception as error:  # every image format fails in its own way
            return error
        return None

    sources = contents([name for name, _ in images[state[part] :]])
    rest = range(state[part], total)

    def in_order():
        """Decode the rest, AT_ONCE files at a time; yield what decode_one says of each."""
        for first in rest[::AT_ONCE]:
            chunk = range(first, min(first + AT_ONCE, total))
            yield from pool.map(decode_one, chunk, sources)

    with ThreadPoolExecutor() as pool:  # PIL lets other threads run while it decodes
        for i, error in zip(progress(rest, f"{part} images decoded:"), in_order()):
            if error is not None and skip:
                state["unreadable"][part].append(i)
            elif error is not None:
                pool.shutdown(cancel_futures=True)
                remedy = "leave out all such files with --skip-unreadable"
                if not isinstance(error, image_files.Unsuitable):
                    remedy = f"repair or remove it, or {remedy}"
                text = f"{images[i][0]} cannot be read as an image ({error}); {remedy}"
                raise common.BadInput(text)
            done = i + 1
            if done % AT_ONCE == 0 or done == total:
                out.flush()
                hashes.flush()
                state[part] = done
                write_json(work / STATE, state)


def copy_rows(source: Path, target: Path, rows: np.ndarray, what: str) -> None:
    """Copy rows of the array in one .npy file to another; afterwards neither is memory-mapped."""
    array = open_array(source, "r", np.uint8, (None, None, None, 3))
    target.unlink(missing_ok=True)  # of an interrupted copy
    need_room(target.parent, len(rows) * array[0].nbytes)
    copy = np.lib.format.open_memmap(target, "w+", array.dtype, (len(rows), *array.shape[1:]))
    for i, row in enumerate(progress(rows, what)):
        copy[i] = array[row]
    copy.flush()


def finish_part(part: str, images: Images, classes: list[str], work: Path, unreadable: list[int]):
    """Take the unreadable images out of x_<part>.npy, say so, and write y_<part>.npy.

    Done twice it changes nothing. Returns the images that are left.
    """
    kept = np.delete(np.arange(len(images)), unreadable)
    common.need(len(kept), f"no image of the {part} set can be read; the first is {images[0][0]}")
    path = work / f"x_{part}.npy"
    if len(kept) < len(open_array(path, "r", np.uint8, (None, None, None, 3))):
        copy_rows(path, work / "kept.npy", kept, f"{part}, images that are kept")
        os.replace(work / "kept.npy", path)  # neither is mapped: Windows would not replace it
    left = [images[i] for i in kept]
    labels = np.array([number for _, number in left], np.int64)
    for number in {number for _, number in images} - {*labels.tolist()}:
        text = f"{part}: no image of class {classes[number]} can be read"
        # A class may be missing from the test set, as with --test-share.
        common.need(part == "test", f"{text}: repair some and remove {work}, or remove the class")
        print(text)
    kind = f"of {len(np.unique(labels))} classes" if classes else "without labels"
    if classes:
        np.save(work / f"y_{part}.npy", labels)
    print(f"{part}: {len(left)} images {kind}")
    if unreadable:
        print(f"{len(unreadable)} unreadable images are left out, first {images[unreadable[0]][0]}")
    return left


def tell_of_copies(work: Path, kept: dict[str, Images], unreadable: dict[str, list[int]]) -> None:
    """Print which test images are also in the training set: there a probe has seen the answer."""
    train, test = [
        np.delete(open_array(work / f"hash_{part}.npy", "r", "S32", (None,)), unreadable[part])
        for part in ("train", "test")
    ]
    copies = np.flatnonzero(np.isin(test, train))
    if len(copies):
        names = [name_of(kept["test"][i][0], work.parent) for i in copies[:3]]
        of_all = f"{len(copies)} of {len(test)} test images are also in training"
        print(f"{of_all}: {', '.join(names)}{', ...' * (len(copies) > 3)}")


def write_split(work: Path, kept: dict[str, Images], classes: list[str]) -> None:
    """Write split.csv: which file is in which set, in the order of the arrays."""
    errors = "surrogateescape"  # names of files are bytes
    with open(work / "split.csv", "w", newline="", encoding="utf-8", errors=errors) as file:
        table = csv.writer(file)
        table.writerow(["file", "class", "set"])
        for part, images in kept.items():
            for path, number in progress(images, f"{part} images listed in split.csv:"):
                of_class = classes[number] if classes else ""
                table.writerow([name_of(path, work.parent), of_class, part])


def write_names(work: Path, classes: list[str]) -> None:
    """Write classes.txt: the name of class 0, 1, ..., one per line, if need be as a JSON string."""
    with open(work / "classes.txt", "w", encoding="utf-8", newline="\n") as file:
        for name in classes:
            plain = name.isprintable() and not name.startswith('"')
            file.write(f"{name if plain else json.dumps(name)}\n")


def decode(folder: Path, size: int, skip=False, share=None, seed=0, label=None) -> None:
    """Decode the images in `folder` to `size` pixels, continuing an interrupted decoding."""
    work = folder / WORK
    last = folder / FILES[-1]
    state = read_state(work)
    if all((folder / name).exists() for name in ("split.csv", "x_train.npy", last.name)):
        pixels = open_array(last, "r", np.uint8, (None, None, None, 3)).shape[1]
        if state:
            shutil.rmtree(work)
        again = "to decode it again, remove split.csv, classes.txt and the .npy files"
        text = f"{folder} has already been decoded, to {pixels} pixels; {again}"
        common.need(pixels == size, text)
        print(text)
        return

    found, classes, contents = find_images(folder, share, seed, label)
    state = begin_or_go_on(work, state, found, size, skip)
    if not state.get("complete"):
        for part, images in found.items():
            decode_part(part, images, contents, size, work, state, skip)
        kept = {}
        for part, images in found.items():
            kept[part] = finish_part(part, images, classes, work, state["unreadable"][part])
        tell_of_copies(work, kept, state["unreadable"])
        write_split(work, kept, classes)
        if classes:
            write_names(work, classes)
        write_json(work / STATE, state | {"complete": True})
    for name in FILES:
        if (work / name).exists():  # else it was moved before an interruption
            os.replace(work / name, folder / name)
    shutil.rmtree(work)
    if folder.parent.name == "data":
        print(f"now: python ncl.py --dataset {folder.name} --arch resnet8 --epochs 20")


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="decode.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    of_size = "side in pixels: 256 for ImageNet(-100) (views of 224), 64 for Tiny-ImageNet"
    of_share = "share of each class to use as the test set, if the folder has none"
    add("folder", type=Path, help="folder of images, in one of the layouts above")
    add("--size", type=common.number(int, 1), required=True, help=of_size)
    add("--skip-unreadable", action="store_true", help="leave out files that cannot be decoded")
    add("--test-share", type=common.number(float, 0.001, 0.999), help=of_share)
    add("--label", metavar="COLUMN", help="column of the labels, if Parquet files have several")
    add(
        "--seed",
        type=common.number(int, 0, 2**32 - 1),
        default=0,
        help="random seed of the split (default: 0)",
    )
    args = flags.parse_args(argv)
    decode(args.folder, args.size, args.skip_unreadable, args.test_share, args.seed, args.label)


def silence_libraries() -> None:
    """Let only Python write to stderr: of a damaged file, libtiff would print lines of its own."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


if __name__ == "__main__":
    silence_libraries()
    common.launch(main)
