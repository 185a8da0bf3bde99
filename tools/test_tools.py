"""The tools beside, compared with torchvision, Pillow, loops and a training by hand."""

import contextlib
import csv
import functools
import io
import itertools
import json
import math
import os
import re
import runpy
import shutil
import struct
import time
import warnings
import zlib
from argparse import Namespace
from pathlib import Path

import common
import decode
import finetune
import image_files
import interpret
import look
import mmncl
import robustness
import selection
import shapes
import sparsehead
import words
from common import read_json
from conftest import ROOT, records, refusal, run_program, write_files
from run_folder import data_of, inside, load_run, read_log, read_run, write_json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional as TF


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(common, "DEVICE", "cpu")


def copy_of(run, root, **settings):
    folder = shutil.copytree(run, root / run.name)
    write_json(folder / "config.json", read_json(folder / "config.json") | settings)
    return folder


# ------------------------------------------------------------------------------------------ decode
def write_images(folder, names):
    """An image file of each name: of many shapes, every third grey."""
    for i, name in enumerate(names):
        shape = (1 if i % 3 == 1 else 3, 7 + i % 5, 11 - i % 4)
        image = TF.to_pil_image(torch.randint(0, 256, shape, dtype=torch.uint8))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(folder / name)


def check_arrays(folder, size):
    """The rows of split.csv, of whose files the arrays are torchvision's."""
    rows = list(csv.DictReader((folder / "split.csv").read_text().splitlines()))
    classes = sorted({row["class"] for row in rows} - {""})
    arrays = {}
    for part in "train", "test":
        own = [row for row in rows if row["set"] == part]
        assert own == sorted(own, key=lambda row: row["file"])
        files = [Image.open(folder / row["file"]).convert("RGB") for row in own]
        images = [TF.resize(image, size) for image in files]
        arrays[f"x_{part}"] = [np.asarray(TF.center_crop(image, size)) for image in images]
        if classes:
            arrays[f"y_{part}"] = [classes.index(row["class"]) for row in own]
            assert (folder / "classes.txt").read_text().splitlines() == classes
    found = {file.stem: np.load(file) for file in folder.glob("*.npy")}
    np.testing.assert_equal(found, {name: np.array(rows) for name, rows in arrays.items()})
    assert not (folder / ".decoding").exists()
    return rows


PETS = " ".join(f"cat/{i}.png" for i in range(4)) + " cow/0.png dog/0.bmp dog/1.PNG dog/2.webp"
LAYOUTS = {  # train and test: how many images of each class they get
    "val": Namespace(
        files="train/a/1.tif train/a/b/0.png train/b/2.ppm val/a/3.png val/b/4.png",
        flags="",
        train=[2, 1],
        test=[1, 1],
    ),
    "test": Namespace(
        files="train/a/0.png train/b/1.png val/a/2.png test/a/3.png test/b/4.jpg",
        flags="",
        train=[1, 1],
        test=[1, 1],
    ),
    "no labels": Namespace(
        files="train/b.png train/a.png test/d.png test/c.png", flags="", train=[2], test=[2]
    ),
    "a hundredth": Namespace(
        files=PETS, flags="--test-share 0.01", train=[3, 1, 2], test=[1, 0, 1]
    ),
    "six tenths": Namespace(files=PETS, flags="--test-share 0.6", train=[2, 1, 1], test=[2, 0, 2]),
    "a class of that name": Namespace(
        files="decoding/0.png decoding/1.png b/0.png b/1.png",
        flags="--test-share .5",
        train=[1, 1],
        test=[1, 1],
    ),
    "nearly all": Namespace(
        files="train/" + PETS.replace(" ", " train/"),
        flags="--test-share 0.99",
        train=[1, 1, 1],
        test=[3, 0, 2],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_folder_becomes_arrays(tmp_path, layout):
    write_images(tmp_path, layout.files.split())
    run_program(f"decode.py --size 6 {layout.flags}", tmp_path)
    rows = check_arrays(tmp_path, 6)
    classes = sorted({row["class"] for row in rows})
    for part, counts in ("train", layout.train), ("test", layout.test):
        own = [row for row in rows if row["set"] == part]
        assert [sum(row["class"] == name for row in own) for name in classes] == counts
        if not layout.flags:
            assert all(row["file"].startswith("train/") == (part == "train") for row in own)


@pytest.mark.parametrize("size", [4, 5])
def test_what_has_changed_starts_afresh(tmp_path, size):
    """The first 512 images are decoded when one is found that cannot be."""
    write_images(tmp_path, [f"cat/{i:03}.png" for i in range(515)] + ["dog/0.png", "dog/1.png"])
    (tmp_path / "dog/2.png").write_bytes(b"no image")
    assert "dog/2.png" in refusal("decode.py --size 4 --test-share 0.001 --seed 1", tmp_path)
    if size == 4:
        (tmp_path / "cat/000.png").rename(tmp_path / "dog/3.png")
    run_program(f"decode.py --size {size} --test-share 0.001 --seed 1 --skip-unread", tmp_path)
    assert len(check_arrays(tmp_path, size)) == 517
    one, same, other = [decode.find_images(tmp_path, 0.5, seed)[:2] for seed in (1, 1, 2)]
    assert one == same != other


def test_interruptions_change_nothing(tmp_path, monkeypatch):
    """Ctrl-C comes after each step that is kept; what is decoded is not decoded again."""
    write_images(tmp_path, [f"train/{i:03}.png" for i in range(520)] + ["test/a.png", "test/b.png"])
    for name in "007", "518":
        (tmp_path / f"train/{name}.png").write_bytes(b"no image")
    image = (tmp_path / "train/000.png").read_bytes()
    replace = os.replace

    def replace_and_stop(source, target):
        replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace_and_stop)
    for step in range(9):  # a start, three batches, a copy, "complete", three files
        with pytest.raises(KeyboardInterrupt):
            decode.decode(tmp_path, 4, skip=True)
        if step > 0:
            (tmp_path / "train/000.png").write_bytes(b"changed")
        assert (tmp_path / "x_test.npy").exists() == (step == 8)
        if step == 5:
            assert "007.png could not be read" in refusal(lambda: decode.decode(tmp_path, 4))
    monkeypatch.undo()
    (tmp_path / "train/000.png").write_bytes(image)
    run_program("decode.py --size 4", tmp_path)  # only tidies up
    assert len(check_arrays(tmp_path, 4)) == 520


def png(kind, bits, raw, transparent=b"", palette=b"", exif=b""):
    """A PNG of one row of three pixels, as the format's parts."""
    text = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", 3, 1, bits, kind, 0, 0, 0)
    parts = {b"IHDR": header, b"PLTE": palette, b"tRNS": transparent, b"eXIf": exif}
    for name, part in (parts | {b"IDAT": zlib.compress(b"\0" + raw), b"IEND": b""}).items():
        if part or name == b"IEND":
            check = struct.pack(">I", zlib.crc32(name + part))
            text += struct.pack(">I", len(part)) + name + part + check
    return text


GREY16 = struct.pack(">3H", 0, 40000, 65535)


def tiff(polarity, raw, bits=16, packed=1):
    """A TIFF of one row of three grey pixels, as the format's parts; the pixels are the last."""
    tags = {256: 3, 257: 1, 258: bits, 259: packed, 262: polarity, 273: 122, 277: 1, 278: 1}
    tags[279] = len(raw)
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags.items())
    header = struct.pack("<2sHIH", b"II", 42, 8, len(tags))
    return header + entries + bytes(4) + raw


ROWS = {  # three pixels of a file -> what they are, in 8 bits
    "grey": (png(0, 8, b"\0\7\xff"), [0, 7, 255]),
    "grey, one colour transparent": (png(0, 8, b"\0\7\x09", b"\0\7"), [0, 255, 9]),
    "16 bits": (png(0, 16, GREY16), [0, 156, 255]),
    "16 bits, one value transparent": (png(0, 16, GREY16, GREY16[2:4]), [0, 255, 255]),
    "grey and alpha": (png(4, 8, b"\0\0\7\xff\0\x80"), [255, 7, 127]),
    "palette": (png(3, 8, b"\1\0\2", b"\xff\0", b"\1\1\1\2\2\2\3\3\3"), [255, 1, 3]),
    "tiff of 16 bits": (tiff(1, struct.pack("<3H", 0, 40000, 65535)), [0, 156, 255]),
    "tiff of 12 bits": (tiff(1, b"\0\x07\xff\xff\xf0", 12), [0, 127, 255]),
    "damaged exif": (png(0, 8, b"\0\7\xff", exif=b"MM\0*\0"), [0, 7, 255]),
    "tiff, white is 0": (tiff(0, struct.pack("<3H", 0, 40000, 65535)), [255, 99, 0]),
    "pgm of 16 bits": (b"P5 3 1 65535\n" + GREY16, [0, 156, 255]),
}


@pytest.mark.parametrize("content, grey", ROWS.values(), ids=ROWS)
def test_pixels_are_what_their_file_says(content, grey):
    found = np.asarray(image_files.read(io.BytesIO(content)))
    assert found.tolist() == [[[value] * 3 for value in grey]]


def saved(mode, format="tiff", **options):
    file = io.BytesIO()
    Image.new(mode, (3, 1)).save(file, format, **options)
    return file.getvalue()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
PAGES = dict(save_all=True, append_images=[Image.new("L", (3, 1))])
DEFLATED, PACKED = (8, zlib.compress(bytes(3))), (32773, b"\2abc")  # TIFF's compressions
NOT_READ = {  # a file -> words of the reason
    "several pages": (saved("L", **PAGES), "several pages"),
    "floats": (saved("F"), "floats"),
    "signed": (saved("I"), "signed or 32-bit"),
    "eps": (EPS, "or none of BMP, "),
    "pcx": (saved("RGB", "pcx"), "or none of BMP, "),
    "empty": (b"", "or none of BMP, "),
    "a tiff of jpeg, cut": (saved("RGB", compression="jpeg")[:-9], "decoder error"),
    "a deflated tiff, cut": (tiff(1, DEFLATED[1], 8, DEFLATED[0])[:-6], "decoder error"),
    "a tiff of runs, cut": (tiff(1, PACKED[1], 8, PACKED[0])[:-2], "decoder error"),
    "a plain tiff, cut": (tiff(1, GREY16)[:-1], "truncated"),
    "of 400 megapixels": (b"P5 20000 20000 255\n", "make it smaller"),
    "a long one": (b"P6 900000 200 255\n", "make it smaller"),
}


@pytest.mark.parametrize("content, reason", NOT_READ.values(), ids=NOT_READ)
def test_what_no_picture_says_is_not_guessed(content, reason):
    with pytest.raises((ValueError, OSError), match=reason):
        image_files.read(io.BytesIO(content))


NOTED = {  # of Pillow's warnings
    "large": b"P5 10000 9000 255\n",
    "damaged exif": png(0, 8, b"\0\7\xff", exif=b"MM\0*\0\0\0\x08\0\1"),
    "a cut tiff": tiff(1, GREY16)[:60],
}


@pytest.mark.parametrize("content", NOTED.values(), ids=NOTED)
def test_reading_pictures_warns_of_nothing(content):
    with warnings.catch_warnings(record=True) as told, contextlib.suppress(Exception):
        warnings.simplefilter("always")
        runpy.run_path(image_files.__file__)["read"](io.BytesIO(content))
    assert told == []


def naive(path, size):
    """An image file as an array (size, size, 3), as a user of Pillow would write it."""
    image = Image.open(path)
    inverted = image.mode == "I;16" and getattr(image, "tag_v2", {}).get(262) == 0
    image = ImageOps.exif_transpose(image)
    if image.mode == "I;16":
        values = np.asarray(image) / 257
        image = Image.fromarray(np.rint(255 - values if inverted else values).astype(np.uint8))
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    scaled = [int(size * side / min(image.size)) for side in image.size]
    image = white.convert("RGB").resize(scaled, Image.Resampling.BILINEAR)
    left, top = (round((side - size) / 2) for side in scaled)
    return np.asarray(image.crop((left, top, left + size, top + size)))


MODES = {  # of Pillow, and the endings of files that take them
    "RGB": "jpg png webp tif bmp ppm",
    "RGBA": "png webp tif",
    "LA": "png tif",
    "L": "jpg png tif pgm gif",
    "P": "png gif tif",
    "1": "png tif",
    "CMYK": "jpg tif",
    "YCbCr": "jpg tif",
    "I;16": "png tif",
}
SIZES = (9, 7), (7, 9), (1, 1), (3, 90), (200, 2), (6, 6), (31, 6), (5, 12)  # height, width


def write_mixed_images(folder, n):
    """n files of all modes, endings, orientations, polarities and SIZES, in classes a, b, c."""
    random = np.random.default_rng(0)
    kinds = [(mode, end) for mode, ends in MODES.items() for end in ends.split()]
    for i, (mode, end) in zip(range(n), itertools.cycle(kinds)):
        shape = SIZES[i % 8]
        image = Image.fromarray(random.integers(0, 256, (*shape, 4), np.uint8), "RGBA")
        if mode == "I;16":
            image = Image.fromarray(random.integers(0, 2**16, shape, np.uint16))
        else:
            image = image.convert(mode)
        options = {}
        if end in ("jpg", "png", "webp", "tif") and i // len(kinds) % 3:
            options["exif"] = Image.Exif()
            options["exif"][0x112] = i % 10  # 1 to 8 mean something
        if mode in ("L", "I;16") and end == "tif" and i % 2:
            options["tiffinfo"] = {262: 0}  # white is 0
            options.pop("exif", None)
        if mode == "P" and end in ("png", "gif"):
            options["transparency"] = i % 5
        name = f"{'abc'[i % 3]}/{i % 4}/{i:03}.{end}"
        if i % 7 == 0:
            name = name.upper()
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(
            folder / name, {"jpg": "jpeg", "tif": "tiff", "pgm": "ppm"}.get(end, end), **options
        )


def test_mixed_files_are_as_naively_read(tmp_path):
    for part, n in ("train", 300), ("test", 60):
        write_mixed_images(tmp_path / part, n)
    run_program("decode.py --size 6", tmp_path)
    rows = list(csv.DictReader(open(tmp_path / "split.csv")))
    assert len(rows) == 360
    for part in "train", "test":
        files = [tmp_path / row["file"] for row in rows if row["set"] == part]
        expected = np.stack([naive(file, 6) for file in files])
        np.testing.assert_array_equal(np.load(tmp_path / f"x_{part}.npy"), expected)


def test_a_strip_is_cut_before_it_grows():
    strip = Image.new("RGB", (3_000_000, 1), "blue")  # enlarged, Pillow would refuse it
    assert image_files.square(strip, 256).getcolors() == [(256 * 256, (0, 0, 255))]


HIDDEN = "a/.ipynb_checkpoints/0-copy.png .git/x.png b/__MACOSX/1.png b/._1.png b/.b/c/2.png"


def test_hidden_copies_are_no_images(tmp_path, capsys):
    write_images(tmp_path, HIDDEN.split() + ["a/0.png", "a/c/1.GIF", "b/1.png", "b/2.pgm"])
    for name in "b/.DS_Store", "b/3.HEIC", "b/notes.txt":
        (tmp_path / name).touch()
    run_program("decode.py --size 4 --test-share .5", tmp_path)
    said = capsys.readouterr().out
    assert "5 hidden files or folders are left out" in said
    assert "1 pictures are left out; convert them" in said
    rows = list(csv.DictReader(open(tmp_path / "split.csv")))
    assert {row["file"] for row in rows} == {"a/0.png", "a/c/1.GIF", "b/1.png", "b/2.pgm"}


def test_links_are_followed_but_not_back(tmp_path):
    write_images(tmp_path, ["there/0.png", "there/1.png", "mine/b/0.png"])
    (tmp_path / "mine/a").symlink_to(tmp_path / "there")
    (tmp_path / "mine/b/1.png").symlink_to(tmp_path / "there/1.png")
    (tmp_path / "mine/b/back").symlink_to(tmp_path / "mine")
    (tmp_path / "mine/gone").symlink_to(tmp_path / "gone")
    expected = ["gone", "a/0.png", "a/1.png", "b/0.png", "b/1.png"]
    assert image_files.find(tmp_path / "mine") == expected


def test_files_are_in_image_folders_order(tmp_path):
    names = "cat/b cat/a/1 cat/a/d/2 cat/a-b/3 cat/a.b cat/A cat-big/1 Cat/1 cat+/0/1"
    write_images(tmp_path, [f"{name}.png" for name in names.split()])
    expected = [file for file, _ in torchvision.datasets.ImageFolder(tmp_path).samples]
    assert [str(tmp_path / name) for name in image_files.find(tmp_path)] == expected


IN_LOOPS = {  # names in natural order
    "numbers": ["0.png", "2.png", "9.png", "10.png", "100.png"],
    "with words": ["a/1-2.png", "a/1-10.png", "a/10-1.png", "b/02.png", "b/10.png"],
    "one without": ["a.png", "a2.png", "a10.png"],
    "codes": ["n01_9f.png", "n01_10.png", "n2_1.png"],
}


@pytest.mark.parametrize("names", IN_LOOPS.values(), ids=IN_LOOPS)
def test_the_natural_order_is_that_of_numbers(names):
    assert sorted(sorted(names), key=image_files.ORDERS["natural"]) == names


NAMES = ["\ufefftop", " two  blanks ", "a\u2028b", "a\x0bb", "a\x85b", "a\nb", "a\rb"]
NAMES += ['say "a"', '"a"', "{}", "\\u0041", "a,b", "cafe\u0301"]
NAMES += [os.fsdecode(b"caf\xe9"), "-1", "\u0926\u093f"]


def test_names_of_folders_come_back_equal(tmp_path):
    write_images(tmp_path, [f"{name}/{name}{i}.png" for name in NAMES for i in range(3)])
    run_program("decode.py --size 4 --test-share .3", tmp_path)
    names = interpret.lines_of(tmp_path / "classes.txt")
    assert names == mmncl.names_in(tmp_path / "classes.txt", range(len(NAMES))) == sorted(NAMES)
    for n in 1, 2:  # of a class's three, in the test set and in training
        files = look.file_names_of_set(tmp_path / "split.csv", n * len(NAMES))
        assert [os.path.dirname(file) for file in files[::n]] == sorted(NAMES)
        assert all((tmp_path / file).exists() for file in files)


def test_copies_in_both_sets_are_named(tmp_path, capsys):
    write_images(tmp_path, [f"train/a/{i}.png" for i in range(9)] + ["test/a/8.png"])
    for i in 0, 3, 4:
        shutil.copy(tmp_path / f"train/a/{i}.png", tmp_path / f"test/a/{7 - i}.png")
    for name in "train/a/00", "test/a/5":
        (tmp_path / f"{name}.png").write_bytes(b"no image")
    run_program("decode.py --size 4 --skip-unreadable", tmp_path)
    said = "3 of 4 test images are also in training: test/a/3.png, test/a/4.png, test/a/7.png\n"
    assert said in capsys.readouterr().out


PNG = png(0, 8, b"\0\7\xff")
TWO_CLASSES = {f"{file}.png": PNG for file in ("a/0", "a/1", "b/0", "b/1")}
CAFES = {f"caf{letter}/{i}.png": PNG for letter in ("\u00e9", "e\u0301") for i in range(2)}
SETS = {"train/caf\u00e9/0.png": PNG, "test/cafe\u0301/0.png": PNG}
HALF = "--test-share .5"
DECODED = TWO_CLASSES | {"split.csv": "", "x_train.npy": b""}
BAD_FOLDERS = {  # files, or links to what they name; flags; words of the refusal
    "classes that look the same": (CAFES, HALF, "look the same; NFC"),
    "sets that look the same": (SETS, "", "look the same; NFC"),
    "save_to_disk": (
        {"train/data-00000-of-00001.arrow": b"", "dataset_dict.json": "{}"},
        HALF,
        "to_parquet",
    ),
    "save_to_disk, one set": (
        {"data-00000-of-00001.arrow": b"", "state.json": "{}"},
        "",
        "to_parquet",
    ),
    "an own folder": (
        TWO_CLASSES | {".decoding/thesis.txt": "mine"},
        HALF,
        "not made by decode.py",
    ),
    "an own folder's progress": (
        TWO_CLASSES | {".decoding/progress.json": '{"epoch": 3}'},
        HALF,
        "not of",
    ),
    "an own folder, decoded": (
        TWO_CLASSES | {".decoding/a.txt": "mine", "x_test.npy": np.zeros((2, 4, 4, 3), np.uint8)},
        HALF,
        "not made by decode.py",
    ),
    "an own file": (TWO_CLASSES | {".decoding": "mine"}, HALF, "not a folder of decode.py"),
    "a link to a folder": (
        TWO_CLASSES | {".decoding": Path("a")},
        HALF,
        "not a folder of decode.py",
    ),
    "a link to nothing": (
        TWO_CLASSES | {".decoding": Path("gone")},
        HALF,
        "not a folder of decode.py",
    ),
    "an array alone": (
        TWO_CLASSES | {"x_test.npy": np.zeros((2, 4, 4, 3), np.uint8)},
        HALF,
        "x_test.npy is there already",
    ),
    "other arrays": (
        DECODED | {"x_test.npy": np.zeros(4)},
        HALF,
        "x_test.npy is damaged; float64",
    ),
    "no arrays": (DECODED | {"x_test.npy": b"no"}, HALF, "x_test.npy is damaged"),
    "objects": (DECODED | {"x_test.npy": np.array([{}])}, HALF, "x_test.npy is damaged"),
    "a class that vanishes": (
        TWO_CLASSES | {"b/0.png": b"", "b/1.png": b""},
        f"{HALF} --skip",
        "class b",
    ),
    "a class of training": (
        {f"{part}/{name}": PNG for part in ("train", "test") for name in TWO_CLASSES}
        | {"train/a/0.png": b"no image", "train/a/1.png": PNG[:40]},
        "--skip",
        "class a",
    ),
    "a large picture": (
        TWO_CLASSES | {"b/0.ppm": b"P6 20000 20000 255\n"},
        HALF,
        "0.ppm; it smaller; ); leave out",
    ),
    "several pages": (
        TWO_CLASSES | {"b/0.tif": saved("L", **PAGES)},
        HALF,
        "0.tif; a separate file); leave out",
    ),
    "a cut picture": (TWO_CLASSES | {"b/0.png": PNG[:40]}, HALF, "0.png; ); repair"),
}


def contents_of(folder):
    """All that is in a folder: the bytes of files, the targets of links."""
    found = {}
    for path in folder.rglob("*"):
        found[path] = path.is_file() and path.read_bytes()
        if path.is_symlink():
            found[path] = os.readlink(path)
    return found


@pytest.mark.parametrize("files, flags, words", BAD_FOLDERS.values(), ids=BAD_FOLDERS)
def test_folders_that_do_not_fit_are_refused(tmp_path, files, flags, words):
    links = {name: target for name, target in files.items() if isinstance(target, Path)}
    write_files(tmp_path, {name: files[name] for name in files.keys() - links.keys()})
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    before = contents_of(tmp_path)
    message = refusal(f"decode.py --size 4 {flags}", tmp_path)
    assert [part for part in words.split("; ") if part not in message] == [], message
    after = contents_of(tmp_path)
    assert {path: after.get(path) for path in before} == before


STARTED = dict(train=1, test=0, unreadable=dict(train=[0], test=[]))
DAMAGE = {  # what progress.json says instead, or a file beside it; words of the refusal
    "negative": (dict(train=-1), "damaged"),
    "more than there are": (dict(train=3), "damaged"),
    "a word": (dict(test="1"), "damaged"),
    "a truth value": (dict(test=True), "damaged"),
    "no lists": (dict(unreadable=7), "damaged"),
    "another image": (dict(unreadable=dict(train=[1], test=[])), "damaged"),
    "words for images": (dict(unreadable=dict(train=["0"], test=[])), "damaged"),
    "no hash": (dict(files=None), "damaged"),
    "a number for complete": (dict(complete=1), "damaged"),
    "deep": (b"[" * 200_000, "cannot be read"),
    "another array": ({"x_train.npy": np.zeros((2, 5, 4, 3), np.uint8)}, "x_train.npy is damaged"),
    "no array": ({"hash_train.npy": b"no"}, "hash_train.npy is damaged"),
    "an own file": ({"mine.txt": "mine"}, "mine.txt was not made by decode.py"),
    "a link": ({"x_train.npy": Path("../a/0.png")}, "x_train.npy is a link"),
    "a link elsewhere": ({"split.csv": Path("/gone")}, "split.csv is a link"),
}


@pytest.mark.parametrize("damage, words", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_start_is_refused(tmp_path, monkeypatch, damage, words):
    write_files(tmp_path, TWO_CLASSES)
    monkeypatch.setattr(decode, "AT_ONCE", 1)
    command = f"decode.py --size 4 {HALF} --skip-unreadable"
    work = tmp_path / ".decoding"

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(decode, "finish_part", stop)
        decode.decode(tmp_path, 4, skip=True, share=0.5)
    state = read_json(work / "progress.json")
    write_json(work / "progress.json", state | STARTED)
    if isinstance(damage, bytes):
        (work / "progress.json").write_bytes(damage)
    elif damage.keys() & {*state, "complete"}:
        write_json(work / "progress.json", state | STARTED | damage)
    else:
        ((name, content),) = damage.items()
        (work / name).unlink(missing_ok=True)
        if isinstance(content, Path):
            (work / name).symlink_to(content)
        else:
            write_files(work, damage)
    before = contents_of(tmp_path)
    assert words in refusal(command, tmp_path)
    assert contents_of(tmp_path) == before


def test_decoding_is_never_silent_for_long(tmp_path, monkeypatch, capsys):
    write_files(tmp_path, TWO_CLASSES)
    clock = itertools.count(0, 6)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    run_program(f"decode.py --size 4 {HALF}", tmp_path)
    told = capsys.readouterr().err
    steps = "files so far; images listed:; names compared:; train images decoded:; in split.csv:"
    assert [step for step in steps.split("; ") if step not in told] == []


# ---- Parquet
def write_table(root, name, labels, names):
    """A Parquet file of four images, in groups of two; Hugging Face's where classes have names.

    Returns what decode.py is to make of the images. The last one lies elsewhere.
    """
    images = np.random.default_rng(len(name)).integers(0, 256, (4, 6, 9, 3), np.uint8)
    contents = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "png")
        contents.append(file.getvalue())
    columns = {"id": range(4), "img": contents}
    folder = (root / name).parent
    write_files(folder, {f"elsewhere/{len(name)}": contents[3]})
    if names:
        columns["img"] = [dict(bytes=content, path="") for content in contents]
        columns["img"][3] = dict(bytes=None, path=f"elsewhere/{len(name)}")
    if labels is not None:
        columns["label"] = pa.array(labels)
        if isinstance(labels[0], str):
            columns["label"] = columns["label"].dictionary_encode()
    table = pa.table(columns)
    features = {"img": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
    if names:
        told = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": told})
    pq.write_table(table, root / f"{name}.parquet", row_group_size=2)
    return images[:, :, 2:8]  # of 9 columns


TWO, ONE = [1, 0, 1, 0], [0, 2, 0, 2]
TABLES = {  # files: of training, then of the test set, with their labels; names: of the classes
    "shards": Namespace(
        files={
            "data/train-00000-of-00002": TWO,
            "data/train-00001-of-00002": ONE,
            "data/a_test": ONE,
        },
        names=["a", "b\u2028", "c"],
        y_train=TWO + ONE,
        y_test=ONE,
    ),
    "a test set without labels": Namespace(
        files={"train/0": TWO, "test/0": 4 * [-1], "validation/0": ONE},
        names=["a", "b", "c"],
        y_train=TWO,
        y_test=ONE,
    ),
    "no names": Namespace(
        files={"test-run/train": [7, 9, 7, 2**60], "test-run/val": [9, 9, 9, 7]},
        names=None,
        y_train=[0, 1, 0, 2],
        y_test=[1, 1, 1, 0],
    ),
    "words": Namespace(
        files={"train": [*"yxzx"], "test": [*"xxzx"]},
        names=None,
        y_train=[1, 0, 2, 0],
        y_test=[0, 0, 2, 0],
    ),
    "no labels": Namespace(
        files={"train": None, "test": None}, names=None, y_train=None, y_test=None
    ),
    "null labels": Namespace(
        files={"train": 4 * [None], "test": 4 * [-1]}, names=["a"], y_train=None, y_test=None
    ),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tables_become_arrays(tmp_path, table):
    images = {}
    for file, labels in table.files.items():
        images[file] = write_table(tmp_path, file, labels, table.names)
    run_program("decode.py --size 6", tmp_path)
    of_train = [file for file in table.files if "train" in file]
    parts = ("train", of_train, table.y_train), ("test", [*table.files][-1:], table.y_test)
    for part, own, y in parts:
        found = np.load(tmp_path / f"x_{part}.npy")
        np.testing.assert_array_equal(found, np.concatenate([images[file] for file in own]))
        file = tmp_path / f"y_{part}.npy"
        assert (np.load(file).tolist() if file.exists() else None) == y
    if table.y_train:
        values = table.names or sorted({*table.files[of_train[0]]})
        assert interpret.lines_of(tmp_path / "classes.txt") == [*map(str, values)]


def test_tables_of_datasets_are_read(tmp_path, monkeypatch):
    """Written by Hugging Face's own library, with two columns of labels and no test set."""
    import datasets

    images = [Image.fromarray(np.full((6, 6, 3), 20 * i, np.uint8)) for i in range(8)]
    features = {"image": datasets.Image(), "fine": datasets.ClassLabel(names=["x", "y"])}
    features["coarse"] = datasets.ClassLabel(names=["p", "q", "r"])
    columns = {"image": images, "fine": 4 * [0, 1], "coarse": [2, 2, 2, 2, 0, 0, 0, 0]}
    of_hub = datasets.Dataset.from_dict(columns, datasets.Features(features))
    of_hub.to_parquet(tmp_path / "0000.parquet")
    command = "decode.py --size 6 --test-share .5"
    assert "fine, coarse" in refusal(command, tmp_path)
    assert "no column x" in refusal(f"{command} --label x", tmp_path)
    replace = os.replace

    def stop_at_the_first(source, target):
        replace(source, target)
        if os.path.basename(target) == "split.csv":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", stop_at_the_first)
        decode.decode(tmp_path, 6, share=0.5, label="fine")
    assert "split.csv is there already" in refusal(f"{command} --label coarse", tmp_path)
    (tmp_path / "split.csv").unlink()
    run_program(f"{command} --label coarse", tmp_path)
    assert interpret.lines_of(tmp_path / "classes.txt") == ["p", "q", "r"]
    for row in csv.DictReader(open(tmp_path / "split.csv")):
        number = int(row["file"].removeprefix("0000.parquet#"))
        assert row["class"] == "r" if number < 4 else "p"
    x = np.concatenate([np.load(tmp_path / f"x_{part}.npy") for part in ("train", "test")])
    assert sorted(x[:, 0, 0, 0].tolist()) == [20 * i for i in range(8)]


KINDS = {  # of a column of images; of a column of labels
    "views": (pa.binary_view(), pa.string_view()),
    "large": (pa.large_binary(), pa.large_string()),
    "dictionaries": (pa.dictionary(pa.int32(), pa.binary()), pa.dictionary(pa.int8(), pa.string())),
    "views in it": (pa.struct({"bytes": pa.binary_view(), "path": pa.string_view()}), pa.int8()),
}


@pytest.mark.parametrize("of_image, of_label", KINDS.values(), ids=KINDS)
def test_columns_of_all_encodings_are_read(tmp_path, of_image, of_label):
    images = [PNG, png(0, 8, b"\1\2\3"), PNG, PNG]
    if pa.types.is_struct(of_image):
        images = [dict(bytes=image, path="no.png") for image in images]
    labels = [0, 1, 1, 0] if of_label == pa.int8() else [*"abba"]
    columns = {"image": pa.array(images, of_image), "label": pa.array(labels, of_label)}
    for part in "train", "test":
        pq.write_table(pa.table(columns), tmp_path / f"{part}.parquet")
    run_program("decode.py --size 1", tmp_path)
    assert np.load(tmp_path / "x_test.npy").ravel().tolist() == 3 * [7] + 3 * [2] + 6 * [7]
    assert np.load(tmp_path / "y_train.npy").tolist() == [0, 1, 1, 0]


PLACES = {  # what stands in a Parquet file instead of an image -> words of the refusal
    "no picture": (None, "train.parquet#1 cannot be read"),
    "neither": (dict(bytes=None, path=None), "train.parquet#1 cannot be read"),
    "absolute": (dict(bytes=None, path="/etc/passwd"), "is not in it"),
    "above": (dict(bytes=None, path="../secret.png"), "is not in it"),
    "above, later": (dict(bytes=None, path="a/../../secret.png"), "is not in it"),
    "a link": (dict(bytes=None, path="out.png"), "is not in it"),
    "through a link": (dict(bytes=None, path="out/secret.png"), "is not in it"),
    "round": (dict(bytes=None, path="round/1.png"), "is not in it"),
    "no name": (dict(bytes=None, path="a\0b"), "is not in it"),
    "not there": (dict(bytes=None, path="gone.png"), "train.parquet#1 cannot be read"),
}


@pytest.mark.parametrize("place, words", PLACES.values(), ids=PLACES)
def test_a_path_in_a_table_stays_in_its_folder(tmp_path, place, words):
    write_files(tmp_path, {"secret.png": PNG, "mine/a/0.txt": ""})
    mine = tmp_path / "mine"
    for link, target in {"out": "..", "out.png": "../secret.png", "round": "round"}.items():
        (mine / link).symlink_to(target)
    of_image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([dict(bytes=PNG, path=None), place], of_image)
    for part in "train", "test":
        pq.write_table(pa.table({"image": images}), mine / f"{part}.parquet")
    assert words in refusal("decode.py --size 4", mine)
    assert not (mine / "x_train.npy").exists()


BAD_TABLES = {  # files with their labels, names of the classes, and words of the refusal
    "a missing shard": Namespace(
        files={"train-00000-of-00002": TWO, "test": TWO}, names=["a", "b"], told="are there, not 2"
    ),
    "some labels missing": Namespace(
        files={"train": [0, -1, 0, 1], "test": TWO}, names=["a", "b"], told="train.parquet#1"
    ),
    "labels in one set": Namespace(
        files={"train": TWO, "test": None}, names=["a", "b"], told="one has no labels"
    ),
    "an unknown class": Namespace(
        files={"train": TWO, "test": ONE}, names=["a", "b"], told="class 2"
    ),
    "real labels": Namespace(
        files={"train": [0.5, 1, 0, 1], "test": TWO}, names=None, told="label is double"
    ),
    "no test set": Namespace(files={"train": TWO}, names=["a", "b"], told="--test-share"),
    "no training set": Namespace(
        files={"test": TWO}, names=["a", "b"], told="no Parquet file of a training set"
    ),
    "a hash in its name": Namespace(
        files={"train-00000-of-00002-1f": TWO, "test": TWO}, names=["a", "b"], told="1 are there"
    ),
    "of no set": Namespace(
        files={"train": TWO, "test": TWO, "extra": TWO}, names=["a", "b"], told="of which set"
    ),
    "two configurations": Namespace(
        files={"a/train": TWO, "b/train": TWO}, names=["a", "b"], told="in a, b"
    ),
    "numbers and words": Namespace(
        files={"train-0": TWO, "train-1": [*"abab"], "test": TWO},
        names=None,
        told="words in another",
    ),
}


@pytest.mark.parametrize("table", BAD_TABLES.values(), ids=BAD_TABLES)
def test_tables_that_do_not_fit_are_refused(tmp_path, table):
    for file, labels in table.files.items():
        write_table(tmp_path, file, labels, table.names)
    assert table.told in refusal("decode.py --size 6", tmp_path)
    assert not (tmp_path / ".decoding").exists()


# --------------------------------------------------------------------------------- a run's settings
BAD_SETTINGS = {  # config.json, all of it or what is changed; words of the refusal
    "not there": (None, "is no run"),
    "no JSON": ('{"method": "n', "JSONDecodeError"),
    "a list": ("[1, 2]", "holds no dict"),
    "deep": (200_000 * '{"a":', "RecursionError"),
    "digits": ('{"epochs": ' + 9999 * "1" + "}", "ValueError"),
    "not text": ("\xff\xfe", "cannot be read"),
    "another program's": (dict(method="theory_gate"), "names none of bayesncl"),
    "a module": (dict(method="os"), "names none of bayesncl"),
    "no method": (dict(method=["ncl"]), "names none of bayesncl"),
    "a number for a name": (dict(dataset=5), "dataset is '5'"),
    "a number for a folder": (dict(data_root=-1), "data_root is '-1'"),
    "null for a share": (dict(gray=None), "gray is 'None'"),
    "a size in words": (dict(image_size="32"), "image_size is '32'"),
    "half a pixel": (dict(image_size=32.5), "image_size is '32.5'"),
    "a negative size": (dict(image_size=-1), "image_size is '-1'"),
    "a huge size": (dict(image_size=10**9 * 10**9), "image_size is '1000000000000000000'"),
    "nan": (dict(jitter=math.nan), "jitter is 'nan'"),
    "a limit in words": (dict(limit="x"), "limit is 'x'"),
    "truth for a number": (dict(epochs=True), "epochs is 'True'"),
    "a number for truth": (dict(compile=1), "compile is '1'"),
    "no such network": (dict(arch="vit"), "arch is 'vit'"),
    "a list of networks": (dict(arch=["resnet8"]), "arch is"),
}


@pytest.mark.parametrize("text, told", BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_a_runs_settings_are_read_or_refused(run_of, tmp_path, text, told):
    good = read_json(run_of("ncl") / "config.json")
    assert vars(read_run(run_of("ncl"))) == good
    if isinstance(text, dict):
        text = json.dumps(good | text)
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
    assert told in refusal(lambda: read_run(tmp_path))


BAD_LOGS = {  # metrics.jsonl, and words of the refusal
    "not there": (None, "FileNotFoundError"),
    "half a line": ('{"epoch": 1}\n{"ep', "JSONDecodeError"),
    "a list": ("[]", "holds no dictionary"),
    "deep": (200_000 * "[", "RecursionError"),
    "a number of numbers": ('{"lp1": {"a": 1}}', "lp1 is no number"),
}


@pytest.mark.parametrize("text, told", BAD_LOGS.values(), ids=BAD_LOGS)
def test_damaged_logs_are_refused(tmp_path, text, told):
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    assert told in refusal(lambda: read_log(tmp_path))


# A run that somebody gives away does not decide what is read from the reader's disk.
@pytest.mark.parametrize(
    "settings",
    [dict(data_root="/private"), dict(data_root="../private"), dict(dataset="../private/data")],
)
def test_no_setting_leads_out_of_the_folder(run_of, tmp_path, settings):
    folder = copy_of(run_of("ncl"), tmp_path, fingerprint=None, **settings)
    assert "give --data-root" in refusal(lambda: data_of(read_run(folder)))
    if "dataset" in settings:  # its own root is the user's word for where data are
        assert "give --data-root" in refusal("evaluate.py --data-root .", folder)


OUTSIDE = "/etc/hostname", "../a.txt", "b/../../a.txt", "link", "into/a.txt"


@pytest.mark.parametrize("name", OUTSIDE)
def test_paths_that_files_name_stay_inside(tmp_path, name):
    write_files(tmp_path, {"a.txt": "", "run/b/c.txt": ""})
    (tmp_path / "run/link").symlink_to(tmp_path / "a.txt")
    (tmp_path / "run/into").symlink_to(tmp_path)
    assert inside(tmp_path / "run", "b/../b/c.txt").exists()
    assert "is not followed" in refusal(lambda: inside(tmp_path / "run", name))


def test_evaluation_tells_whose_data_it_reads(run_of, tmp_path, capsys):
    root = read_run(run_of("ncl")).data_root
    shutil.copy(f"{root}/few.npz", tmp_path / "tiny.npz")
    told = []
    for flags in "", f"--data-root {root}", f"--data-root {tmp_path}":
        run_program(f"evaluate.py --device cpu {flags}", run_of("ncl"))
        told.append(capsys.readouterr().out.splitlines()[0])
    own = "tiny: 240 training and 100 test images"
    other = "tiny: 240 training and 8 test images, not those of the run"
    assert told == [own, own, other]


def test_a_limit_may_be_of_unlabelled_images(run_of, tmp_path):
    arrays = dict(np.load(f"{read_run(run_of('ncl')).data_root}/tiny.npz"))
    unlabelled = np.concatenate([arrays["x_train"]] * 2)
    np.savez(tmp_path / "tiny.npz", **arrays, x_unlabeled=unlabelled)
    folder = copy_of(run_of("ncl"), tmp_path, limit=300, fingerprint=None)
    data = data_of(read_run(folder), str(tmp_path))
    assert (len(data.images), len(data.train["x"])) == (300, 240)


# -------------------------------------------------------------------------------- evaluate and runs
@pytest.mark.parametrize("method", ["bayesncl", "sparsehead", "mmncl"])
def test_evaluation_repeats_the_trainings_end(run_of, tmp_path, capsys, method):
    data = data_of(read_run(run_of(method)))
    expected = dict(np.load(run_of(method) / "embeddings.npz")) | {"images": data.test["x"].numpy()}
    flags, settings = "", {}
    if method == "bayesncl":  # on the same images with words for numbers, without the run's limit
        flags = f"--dataset words --data-root {tmp_path}"
        settings = dict(dataset="mine", data_root="nowhere", limit=7)
        arrays = dict(np.load(f"{read_run(run_of(method)).data_root}/tiny.npz"))
        words = {f"y_{part}": arrays[f"y_{part}"].astype(str) for part in ("train", "test")}
        np.savez(tmp_path / "words.npz", **arrays | words)
        expected["y"] = words["y_test"]
    folder = copy_of(run_of(method), tmp_path, **settings)
    capsys.readouterr()
    common.print_table(records(folder)[-1], data)
    table = capsys.readouterr().out
    run_program(f"evaluate.py --device cpu {flags} --out", tmp_path / "new/mine.npz", folder)
    assert table in capsys.readouterr().out
    np.testing.assert_equal(dict(np.load(tmp_path / "new/mine.npz")), expected)


# ---------------------------------------------------------------------------------------- finetune
def accuracies_by_hand(folder, args, data, chosen, lr, x_test, y_test):
    """Top-1 and top-5, %, after SGD with momentum."""
    run = read_run(folder)
    x, y = data.train["x"][chosen], data.train["y"][chosen]
    torch.manual_seed(args.seed)
    backbone, _ = common.resnet("resnet8", 16)
    if not args.from_scratch:
        backbone.load_state_dict(torch.load(folder / "backbone.pt", weights_only=True))
    torch.manual_seed(args.seed)
    model = nn.Sequential(backbone, nn.Linear(64, 10)).to(memory_format=torch.channels_last)
    momenta = [torch.zeros_like(p) for p in model.parameters()]
    rates = [lr] * (len(momenta) - 2) + [args.classifier_lr] * 2
    batch = min(64, len(y))
    in_epoch = len(y) // batch
    epochs = max(args.epochs, -(-args.min_steps // in_epoch))
    for epoch in range(epochs):
        order = torch.randperm(len(y))
        for i in range(in_epoch):
            own = order[batch * i : batch * (i + 1)]
            view = common.augment(x[own], 16, run.min_scale, 0, 0, 0, run.crop)
            with torch.autocast("cpu", torch.bfloat16, enabled=common.has_bf16("cpu")):
                scores = model(view)
            model.zero_grad()
            F.cross_entropy(scores.float(), y[own]).backward()
            fall = (1 + np.cos(np.pi * (epoch + i / in_epoch) / epochs)) / 2
            with torch.no_grad():
                for p, momentum, rate in zip(model.parameters(), momenta, rates):
                    momentum.mul_(0.9).add_(p.grad + args.weight_decay * p)
                    p -= rate * fall * momentum
    scores = model.eval()(common.eval_view(x_test, 16))
    likelier = (scores > scores.gather(1, y_test[:, None])).sum(1)  # classes than the right one
    return [100 * (likelier < k).float().mean().item() for k in (1, 5)]


@pytest.mark.parametrize(
    "flags",
    [
        "--labels 0.3 1 --tune 0.2 0.02 --seed 3",
        "--labels 0.3 --tune 2e-11 1e-11 --from-scratch",  # of equal rates the smallest
        "--labels 0.01 0.6 --lr 0.1 0.03",
    ],
)
def test_finetuning_is_a_training_by_hand(run_of, tmp_path, flags):
    folder = copy_of(run_of("bayesncl"), tmp_path, limit=160)
    flags += " --epochs 2 --min-steps 5 --classifier-lr 0.2 --weight-decay 0.05"
    args = finetune.parser().parse_args([str(folder), *flags.split()])
    data = data_of(read_run(folder))
    x, y = data.train["x"], data.train["y"]
    by_hand = functools.partial(accuracies_by_hand, folder, args, data)
    held = torch.randperm(160, generator=torch.Generator().manual_seed(0)) < 16
    order = torch.randperm(160, generator=torch.Generator().manual_seed(args.seed))
    expected = {"finetune_0.9_top1": 7}
    for i, share in enumerate(args.labels):
        count = max(1, round(share * 160 / 10))
        chosen = torch.cat([order[y[order] == c][:count] for c in range(10)])
        if share == 1:
            chosen = torch.arange(160)
        others = chosen[~held[chosen]]
        rates = args.lr[i : i + 1] if args.lr else sorted(args.tune)
        tried = {lr: by_hand(others, lr, x[held], y[held])[0] for lr in rates}
        lr = max(tried, key=tried.get)  # of equals the first
        top1, top5 = by_hand(chosen, lr, data.test["x"], data.test["y"])
        numbers = dict(top1=top1, top5=top5, lr=lr, tuned=not args.lr, seed=args.seed)
        torch.manual_seed(args.seed)
        backbone, _ = finetune.new_backbone(folder, read_run(folder), args.from_scratch)
        parts = x[chosen], data.test["x"]
        with torch.no_grad():
            train, test = [backbone.eval()(common.eval_view(part, 16)) for part in parts]
        probe = common.linear_probe(train, y[chosen], test, data.test["y"])
        numbers |= dict(frozen=probe["lp1"], labels=len(chosen))
        numbers |= dict(epochs=2, min_steps=5, classifier_lr=0.2, weight_decay=0.05)
        start = "scratch" if args.from_scratch else "finetune"
        expected |= {f"{start}_{share}_{name}": value for name, value in numbers.items()}
    write_json(folder / "finetune.json", {"finetune_0.9_top1": 7})
    run_program(f"finetune.py {flags}", folder)
    assert read_json(folder / "finetune.json") == pytest.approx(expected)


def test_no_rate_is_tried_on_held_out_images(monkeypatch, capsys):
    trained_on = []
    monkeypatch.setattr(finetune, "finetune", lambda *given: trained_on.append(given[3]))
    monkeypatch.setattr(finetune, "accuracy", lambda *_: (50, 50))
    data = Namespace(train=dict(x=torch.zeros(40, 1), y=torch.arange(40) % 2))
    args, run = Namespace(tune=[0.1, 0.2]), Namespace(image_size=8)
    finetune.tuned_lr(lambda: (None, 1), data, torch.arange(40), run, args)
    held = torch.randperm(40, generator=torch.Generator().manual_seed(0)) < 4
    assert [chosen.tolist() for chosen in trained_on] == 2 * [(~held).nonzero()[:, 0].tolist()]
    told = "36 labels, rate 0.1: 50.0 % on the held-out tenth"
    at_the_edge = "rate 0.1 is the last of --tune: one beyond it may be better"
    assert capsys.readouterr().out.splitlines() == [told, told.replace("0.1", "0.2"), at_the_edge]


def test_a_single_label_is_not_trained_on():
    """Of two labels one is held out; BatchNorm takes no batch of one."""
    x, y = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8), torch.arange(20) % 2
    data = Namespace(train=dict(x=x, y=y))
    run = Namespace(image_size=8, min_scale=1, crop="bicubic")
    args = Namespace(tune=[0.1], epochs=1, min_steps=1, classifier_lr=1, weight_decay=0, seed=1)
    args.device = "cpu"

    def network():
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192)), 192

    held = torch.randperm(20, generator=torch.Generator().manual_seed(0)) < 2
    chosen = torch.stack([held.int().argmax(), held.int().argmin()])
    assert finetune.tuned_lr(network, data, chosen, run, args) == 0.1
    assert "one label" in refusal(
        lambda: finetune.finetune(*network(), data, chosen[:1], run, args, 1)
    )


# -------------------------------------------------------------------------------------- robustness
def brighten(x, c):
    hsv = rgb_to_hsv(x.permute(1, 2, 0))
    hsv[..., 2] = np.minimum(1, hsv[..., 2] + c)
    return torch.tensor(hsv_to_rgb(hsv)).permute(2, 0, 1)


def pixelate(x, c):
    image = TF.to_pil_image((255 * x).round().byte())
    small = image.resize([int(side * c) for side in image.size], Image.Resampling.BOX)
    return TF.to_image(small.resize(image.size, Image.Resampling.BOX)) / 255


CORRUPTIONS = {  # CIFAR-10-C's constants for 32 pixels; what they do to an image
    "noise": ((0.04, 0.06, 0.08, 0.09, 0.10), lambda x, c: x + c * torch.randn(3, 32, 32)),
    "blur": ((0.4, 0.6, 0.7, 0.8, 1.0), lambda x, c: TF.gaussian_blur(x, 13, c)),
    "contrast": ((0.75, 0.5, 0.4, 0.3, 0.15), lambda x, c: c * x + (1 - c) * x.mean((1, 2), True)),
    "brightness": ((0.05, 0.1, 0.15, 0.2, 0.3), brighten),
    "pixelation": ((0.95, 0.9, 0.85, 0.75, 0.65), pixelate),
    "jpeg": ((80, 65, 58, 50, 40), lambda x, c: TF.jpeg((255 * x).round().byte(), c) / 255),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruptions_are_those_of_cifar_10_c(kind):
    images = common.gaussian_blur(torch.rand(4, 3, 32, 32), torch.full((4,), 1.0))
    images = (255 * (2.5 * images - 0.8).clamp(0, 1)).byte()
    images[:, :, :3] = 0  # black
    amounts, plain = CORRUPTIONS[kind]
    for severity, amount in enumerate(amounts, 1):
        torch.manual_seed(severity)
        expected = 255 * torch.stack([plain(x, amount) for x in images / 255]).clamp(0, 1)
        found = robustness.corrupted(images, kind, severity)
        assert (expected - found).abs().max() <= 1.001  # bytes are rounded down


@pytest.mark.parametrize("side", [1, 2, 6])
def test_small_images_are_corrupted_too(side):
    x = torch.rand(2, 3, side, side)
    blurred = common.gaussian_blur(x, torch.full((2,), 2.0))
    assert torch.allclose(blurred, TF.gaussian_blur(x, 2 * side - 1, 2.0), atol=1e-5)
    for kind in CORRUPTIONS:
        assert robustness.corrupted((255 * x).byte(), kind, 5).shape == x.shape


class Colours(nn.Module):
    def forward(self, x):
        h = F.adaptive_avg_pool2d(x, 3).flatten(1)  # the mean colours of nine parts of an image
        return h, h[:, 3:12].relu()


def test_robustness_is_the_accuracy_of_probes():
    def drawn(part, *sizes, **shift):
        arrays = shapes.draw(*sizes, **shift)
        return dict(x=torch.tensor(arrays[f"x_{part}"]), y=torch.tensor(arrays[f"y_{part}"]))

    train, test = drawn("train", 300, 0), drawn("test", 0, 90)
    pairs = drawn("train", 5000, 0, seed=2, paired=0.9)
    exchanged = dict(sky=0.08, grass=0.12, sand=0.15, water=0.25, night=0.40)
    asked = {
        "clean": test,
        "reversed": drawn("test", 0, 2000, seed=1, frequencies=exchanged),
        "unseen": drawn("test", 0, 2000, seed=1, frequencies=shapes.UNSEEN),
        "paired": drawn("test", 0, 2000, seed=1, paired=0.9, turn=2),
        "paired_as_trained": drawn("test", 0, 2000, seed=1, paired=0.9),
    }
    for kind, s in itertools.product(CORRUPTIONS, range(1, 6)):
        asked[f"{kind}_{s}"] = dict(x=robustness.corrupted(test["x"], kind, s), y=test["y"])
    expected = {}
    for place, e in enumerate("hz"):
        probes = []
        for part in train, pairs:
            x = common.features(Colours(), part["x"], 32)[place]
            probes.append(common.fit_probe(x, part["y"])[0])
        for name, part in asked.items():
            x = common.features(Colours(), part["x"], 32)[place]
            right = probes["paired" in name](x).argmax(1) == part["y"]
            expected[f"{e}_{name}"] = 100 * right.float().mean().item()
        for kind in CORRUPTIONS:
            expected[f"{e}_{kind}"] = np.mean([expected[f"{e}_{kind}_{s}"] for s in range(1, 6)])
        expected[f"{e}_corrupted"] = np.mean([expected[f"{e}_{kind}"] for kind in CORRUPTIONS])
    run = Namespace(dataset="shapes", image_size=32)
    found = robustness.measure(run, Colours(), Namespace(train=train, test=test), "cpu")
    assert found == pytest.approx(expected, abs=1e-4)


# --------------------------------------------------------------------------------------- selection
def plain_sepin(z1, z2):
    """Of each dimension the loss without it, less the loss with all."""
    a, b = F.normalize(z1), F.normalize(z2)
    dims = list(range(a.shape[1]))
    losses = []
    for kept in [dims, *(dims[:k] + dims[k + 1 :] for k in dims)]:
        logits = a[:, kept] @ b[:, kept].T / 0.2
        losses.append(F.cross_entropy(logits, torch.arange(len(a))).item())
    return [loss - losses[0] for loss in losses[1:]]


def plain_precision(z, y, k):
    """Of an image's k nearest others by cosine those with its label, %."""
    same = []
    for i in range(len(z)):
        cosines = F.cosine_similarity(z[i : i + 1], z)
        cosines[i] = -2
        same.append(y[cosines.topk(k).indices] == y[i])
    return 100 * torch.stack(same).float().mean().item()


def test_many_images_are_compared_as_by_loops():
    z = torch.randn(1005, 4) * torch.tensor([1, 2, 0.5, 3])
    views = z + 0.3 * torch.randn_like(z), (z + 0.3 * torch.randn_like(z)) * torch.rand(1005, 1)
    y = (z[:, 1] + torch.randn(1005) > 0).long()
    assert selection.sepin(*views).tolist() == pytest.approx(plain_sepin(*views), abs=1e-5)
    assert selection.precision_at_10(z, y) == pytest.approx(plain_precision(z, y, 10), abs=0.02)
    assert selection.precision_at_10(z[:10], y[:10]) is None
    assert selection.precision_at_10(z, 0 * y) is None  # where all others are right


def test_precision_does_not_follow_the_files_order():
    y = torch.arange(1000) // 900
    of_ties = selection.precision_at_10(torch.ones(1000, 2), y)
    assert of_ties == pytest.approx(100 * (900 * 899 + 100 * 99) / (1000 * 999), abs=2)


def test_dead_dimensions_are_no_random_ones():
    z = torch.randn(300, 16)
    z[:, 4:] = 0
    y = (z.sum(1) > 0).long()
    found = selection.feature_selection(z, y, z, y)
    assert (
        found["lp1_random_4"] == found["lp1_random_8"] == found["lp1_all"]
    )  # all four that are live
    assert found["lp1_random_2"] < found["lp1_all"]


def test_what_comes_before_the_relu_is_probed(run_of, tmp_path):
    folder = copy_of(run_of("bayesncl"), tmp_path)
    run_program("selection.py", folder)
    run, model = load_run(folder)
    data = data_of(run)
    parts = data.images, data.test["x"]
    with torch.no_grad():
        train, test = [model.eval().head(common.features(model, x, 16)[0]) for x in parts]
    assert (train < 0).any()
    expected = common.linear_probe(train, data.train["y"], test, data.test["y"])["lp1"]
    assert read_json(folder / "selection.json")["lp1_signed"] == pytest.approx(expected)


def test_tools_measure_a_run_as_by_loops(run_of, tmp_path):
    folder = copy_of(run_of("sparsehead"), tmp_path, order="colour-crop")
    run_program("selection.py", folder)
    run, model = load_run(folder)
    data = data_of(run)
    options = {name: vars(run)[name] for name in ("min_scale", "jitter", "gray", "blur", "crop")}
    view = functools.partial(sparsehead.colour_first, **options)
    torch.manual_seed(run.seed)
    views = [common.features(model, data.test["x"], 16, view=view)[1] for _ in range(2)]
    gains = sorted(plain_sepin(*views), reverse=True)
    expected = {f"sepin_{k}": sum(gains[:k]) / k for k in (1, 10, 100)}
    expected["sepin_all"] = sum(gains) / len(gains)
    train, test = [common.features(model, x, 16)[1] for x in (data.images, data.test["x"])]
    y = data.test["y"]
    final = records(folder)[-1]
    by_size = F.normalize(train).abs().mean(0).argsort(descending=True)
    at_random = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    expected |= {"p_at_10": plain_precision(test, y, 10), "lp1_all": final["lp1_embedding"]}
    for name, m in itertools.product(["top", "random"], [32, 64, 128]):
        own = (by_size if name == "top" else at_random)[:m]
        probe, _ = common.fit_probe(train[:, own], data.train["y"], [final["l2_embedding"]])
        right = probe(test[:, own]).argmax(1) == y
        expected[f"lp1_{name}_{m}"] = 100 * right.float().mean().item()
        expected[f"p_at_10_{name}_{m}"] = plain_precision(test[:, own], y, 10)
    assert read_json(folder / "selection.json") == pytest.approx(expected, abs=1e-5)
    run_program("robustness.py", folder)
    found = read_json(folder / "robustness.json")
    assert [found["h_clean"], found["z_clean"]] == pytest.approx(
        [final["lp1"], final["lp1_embedding"]],
        abs=1.01,  # rounding may turn one of 100 images
    )


# ------------------------------------------------------------------------------------------- words
def test_words_that_no_network_reads_do_not_count():
    captions = ["a " * mmncl.LENGTH + word for word in ["lion", "zebra"] * 5]
    told, means = words.activations_by_word(torch.eye(10), captions)
    assert told == ["a"]
    assert means.tolist() == [pytest.approx([0.1] * 10)]


def plain_nameable(v, first, labels, names):
    """The numbers of words.json, by loops over pairs of dimensions."""
    v = F.normalize(v)
    active = v > 1e-5
    live = [k for k in range(v.shape[1]) if active[:, k].any()]
    twentieth = v.sort(0, descending=True).values[19]
    found = {}
    for key, chosen in ("nameable", active), ("nameable_top", active & (v >= twentieth)):
        hits = {True: [], False: []}  # of a dimension's own word, of another's
        for k in live:
            said = set()
            for kind, y in labels.items():
                most = np.bincount(y[chosen[:, k]]).argmax()  # of equals the first
                said |= set(names[kind][most].lower().split())
            for j in live:
                hits[j == k].append(first[j] in said)
        found[key] = 100 * np.mean(hits[True])
        found[f"{key}_chance"] = 100 * np.mean(hits[False])
    return found


def test_a_runs_words_are_those_of_its_captions(run_of, tmp_path):
    """Objects have the names in a file, in which two are wrong; backgrounds are words."""
    folder = copy_of(run_of("mmncl"), tmp_path)
    run_program("words.py", folder)  # it knows no name of a class
    assert read_json(folder / "words.json").keys() == {"words"}
    names = {"": (ROOT / "assets/classes/shapes.txt").read_text().title().split()}
    names[""][:2] = "Square and", "a ring"
    names["background_"] = ["dark night", "grass", "sand", "sky-blue", "water"]
    (tmp_path / "names.txt").write_text("\n".join(names[""]))
    arrays = dict(np.load(folder / "embeddings.npz"))
    labels = {"": arrays["y"], "background_": arrays["background"]}
    arrays["background"] = np.array(names["background_"])[arrays["background"]]
    arrays["z"][:, ::7] *= -1
    np.savez(folder / "embeddings.npz", **arrays)
    run_program("words.py --classes", tmp_path / "names.txt", folder)
    found = read_json(folder / "words.json")
    text = np.load(folder / "text.npz")
    t = F.normalize(torch.from_numpy(text["z"]).float())
    said = [re.findall(r"[\w'-]+", caption.lower()) for caption in text["captions"].tolist()]
    has = {w: torch.tensor([w in caption for caption in said]) for w in itertools.chain(*said)}
    means = {word: t[own].mean(0) for word, own in has.items() if own.sum() >= 5}
    first = []
    for k, pairs in enumerate(found.pop("words")):
        values = sorted((mean[k].item() for mean in means.values()), reverse=True)[:5]
        values = [value for value in values if value > 0]
        assert [value for _, value in pairs] == pytest.approx(values, abs=1e-4)
        assert values == pytest.approx([means[word][k].item() for word, _ in pairs], abs=1e-4)
        first.append(pairs[0][0] if pairs else "")
    assert found == pytest.approx(plain_nameable(torch.tensor(arrays["z"]), first, labels, names))


def test_a_run_keeps_the_names_of_its_classes(tiny, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("\n".join("ant bee cow dog eel fox gnu hen ibis jay".split()))
    flags = f"{tiny} --epochs 1 --classes {names} --out"
    run_program(f"mmncl.py {flags}", tmp_path / "run")
    own = tmp_path / "run/classes.txt"
    assert own.read_text() == names.read_text()
    names.unlink()
    run_program("mmncl.py --resume", tmp_path / "run")
    run_program("words.py", tmp_path / "run")
    assert "nameable" in read_json(tmp_path / "run/words.json")
    files = dict(np.load(tmp_path / "run/text.npz"))
    for key, damaged in ("captions", np.arange(100)), ("z", files["z"][:, 1:]):
        np.savez(tmp_path / "run/text.npz", **files | {key: damaged})
        assert "no text.npz of" in refusal("words.py", tmp_path / "run")
    np.savez(tmp_path / "run/text.npz", **files)
    own.write_text("another's")
    (tmp_path / "run/words.json").write_text("{}")
    assert "names 1 classes" in refusal("mmncl.py --resume", tmp_path / "run")
    assert "words.json is there" in refusal("words.py", tmp_path / "run")


# ----------------------------------------------------------------------------------------- weights
def test_a_copys_backbone_is_plain_torchvisions(run_of, tmp_path):
    folder = copy_of(run_of("sparsehead"), tmp_path, arch="resnet18", image_size=104)
    model = sparsehead.network(read_run(folder))
    torch.save(dict(model=model.state_dict(), optimizer=7), folder / "checkpoint.pt")
    torch.save(model.backbone.state_dict(), folder / "backbone.pt")
    write_files(tmp_path, {"small.unfinished/thesis.txt": "mine"})
    run_program("weights.py", folder, tmp_path / "small")
    assert common.load_checkpoint(tmp_path / "small/checkpoint.pt").keys() == {"model"}
    _, copied = load_run(tmp_path / "small")
    for name, value in copied.state_dict().items():
        assert value.equal(model.state_dict()[name].half().to(value.dtype)), name
    assert {*os.listdir(tmp_path)} == {folder.name, "small", "small.unfinished"}
    assert (tmp_path / "small.unfinished/thesis.txt").exists()
    theirs = torchvision.models.resnet18()
    theirs.fc = nn.Identity()
    theirs.load_state_dict(torch.load(tmp_path / "small/backbone.pt", weights_only=True))
    x = torch.randn(2, 3, 104, 104)
    assert torch.allclose(theirs.eval()(x), copied.backbone.eval()(x), atol=1e-4)
