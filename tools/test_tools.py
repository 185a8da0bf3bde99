"""decode, draw as a program, evaluate, finetune, robustness, runs, selection, weights, words.

On toys whose answer is known, and on runs of a second.
"""

import argparse
import colorsys
import csv
import importlib
import itertools
import json
import re
import runpy
import shutil
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import common
import look
import shapes
import sparsehead
import weights
from conftest import METHODS, ROOT, records, refusal, run_program, write_toy_run

import decode
import finetune
import numpy as np
import pytest
import robustness
import selection
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
import words
from PIL import Image
from runs import labelled, load_run, progress, read_json, read_run, write_json
from torchvision.transforms.v2 import functional as TF


def load(name, root):
    """A data set on the CPU."""
    return common.Data(argparse.Namespace(dataset=name, data_root=root, limit=None, device="cpu"))


def data_set(x, x_test, y, y_test):
    """Arrays as common.Data holds them."""
    return SimpleNamespace(train={"x": x, "y": y}, test={"x": x_test, "y": y_test})


# ------------------------------------------------------------------------------------------ decode
def write_images(folder, parts=("train", "val"), per_class=4):
    """Image files of two classes in parts: of many shapes, the second of a class grey."""
    for part in parts:
        for name in "cat", "dog":
            (folder / part / name).mkdir(parents=True)
            for i in range(per_class):
                shape = (1 if i == 1 else 3, 20 + 3 * i, 33 - 7 * i)
                image = TF.to_pil_image(torch.randint(0, 256, shape, dtype=torch.uint8))
                image.save(folder / part / name / f"{i}.png")


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """A folder of 8 training and 8 test images that are decoded three at a time."""
    monkeypatch.setattr(decode, "AT_ONCE", 3)
    write_images(tmp_path / "pets")
    return tmp_path / "pets"


@pytest.fixture
def damaged(pets):
    """The same, with one file that is no image: the fourth of eight."""
    (pets / "train/cat/3.png").write_bytes(b"no image")
    return pets


@pytest.fixture
def interrupted(monkeypatch):
    """Every step that is kept, a file that is put in its place, interrupts the program.

    The list of the images that are decoded.
    """
    square, replace, decoded = decode.square, decode.os.replace, []

    def spy(path, size):
        decoded.append(path)
        return square(path, size)

    def replace_and_stop(source, target):
        replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(decode, "square", spy)
    monkeypatch.setattr(decode.os, "replace", replace_and_stop)
    return decoded


@pytest.mark.parametrize("part, mine", [("train", "train"), ("val", "test")])
def test_decoded_pixels_are_torchvisions(pets, part, mine):
    run_program("decode.py --size 16", pets)
    theirs = torchvision.datasets.ImageFolder(str(pets / part))
    expected = [TF.center_crop(TF.resize(image, 16), 16) for image, _ in theirs]
    found = getattr(load("pets", pets.parent), mine)
    assert torch.equal(found["x"], torch.stack([TF.pil_to_tensor(x) for x in expected]))
    assert found["y"].tolist() == theirs.targets


def test_an_image_that_cannot_be_read_is_named(damaged):
    with pytest.raises(common.BadInput, match="cat/3.png cannot be read .*--skip-unreadable"):
        decode.decode(damaged, 16)


def test_unreadable_images_are_left_out(damaged, capsys):
    run_program("decode.py --size 8 --skip-unreadable", damaged)
    x, y = np.load(damaged / "x_train.npy"), np.load(damaged / "y_train.npy")
    assert x.shape == (7, 8, 8, 3)
    assert y.tolist() == [0] * 3 + [1] * 4
    assert re.search("\n1 could not be read .* first .*cat/3.png\n", capsys.readouterr().out)


def test_images_left_out_change_no_order(damaged):
    decode.decode(damaged, 8, skip_unreadable=True)
    x = np.load(damaged / "x_train.npy")
    for row, name in enumerate(["cat/0", "cat/1", "cat/2", "dog/0", "dog/1", "dog/2", "dog/3"]):
        assert np.array_equal(x[row], decode.square(damaged / f"train/{name}.png", 8))


def test_another_size_starts_afresh(damaged):
    with pytest.raises(common.BadInput):
        decode.decode(damaged, 16)  # the first three are done
    decode.decode(damaged, 8, skip_unreadable=True)
    x = np.load(damaged / "x_train.npy")
    assert x.shape == (7, 8, 8, 3)
    assert np.array_equal(x[0], decode.square(damaged / "train/cat/0.png", 8))


def test_other_files_start_afresh(damaged):
    with pytest.raises(common.BadInput):
        decode.decode(damaged, 8)
    (damaged / "train/cat/3.png").unlink()
    (damaged / "train/cat/0.png").rename(damaged / "train/dog/9.png")
    decode.decode(damaged, 8)
    x = np.load(damaged / "x_train.npy")
    assert np.array_equal(x[0], decode.square(damaged / "train/cat/1.png", 8))


def test_no_image_is_decoded_twice(pets, interrupted):
    for _ in range(13):  # after six batches, after all of them, after each of the six files
        refusal(lambda: load("pets", pets.parent))
        with pytest.raises(KeyboardInterrupt):
            decode.decode(pets, 16)
    assert sorted(interrupted) == sorted({*interrupted})
    assert len(interrupted) == 16


def test_an_interruption_changes_no_byte(pets, interrupted, monkeypatch, tmp_path, capsys):
    shutil.copytree(pets, tmp_path / "whole")
    for _ in range(13):
        with pytest.raises(KeyboardInterrupt):
            decode.decode(pets, 16)
    decode.decode(pets, 16)  # all that is left is to say so
    monkeypatch.undo()
    decode.decode(tmp_path / "whole", 16)
    for name in decode.FILES:
        assert (pets / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "pets is decoded already, to 16 pixels" in capsys.readouterr().out
    assert not (pets / "decoding").exists()


def test_images_taken_out_stay_out_after_an_interruption(damaged, interrupted):
    for _ in range(14):  # one more: the array without the unreadable image
        with pytest.raises(KeyboardInterrupt):
            decode.decode(damaged, 8, skip_unreadable=True)
    assert np.load(damaged / "x_train.npy").shape == (7, 8, 8, 3)
    assert np.load(damaged / "y_train.npy").shape == (7,)


def test_decoding_says_how_far_it_is(pets, capsys, monkeypatch):
    ten_seconds_each = itertools.count(0, 10)
    monkeypatch.setattr(common.time, "monotonic", ten_seconds_each.__next__)
    decode.decode(pets, 8)
    assert "train, 3 images at a time: 0/3" in capsys.readouterr().err


def test_another_size_than_the_decoded_is_refused(pets):
    decode.decode(pets, 8)
    assert "decoded already, to 8 pixels; remove split.csv" in refusal("decode.py --size 16", pets)


def test_test_images_go_before_validation_images(tmp_path, capsys):
    write_images(tmp_path, ["train", "test", "val"], 1)
    found, _ = decode.find_images(tmp_path)
    path, _ = found["test"][0]
    assert path == str(tmp_path / "test/cat/0.png")
    assert f"{tmp_path / 'val'} is left out" in capsys.readouterr().out


def test_classes_without_test_images_are_refused(pets):
    shutil.rmtree(pets / "val/dog")
    assert "train/ and val/ need the same classes; 'dog'" in refusal("decode.py --size 8", pets)


def test_a_part_without_images_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    assert "the train set has 0 images" in refusal("decode.py --size 8", tmp_path)


def test_a_class_without_images_is_refused(pets):
    (pets / "train/cow").mkdir()
    message = refusal("decode.py --size 8", pets)
    assert "train: Found no valid file for the classes cow" in message


def test_a_set_of_unreadable_images_is_refused(pets):
    for file in pets.glob("train/*/*.png"):
        file.write_bytes(b"no image")
    message = refusal("decode.py --size 8 --skip-unreadable", pets)
    assert "no image of the train set can be read" in message


def test_a_disk_without_room_is_refused(pets, monkeypatch):
    one_short = SimpleNamespace(free=16 * 8 * 8 * 3 - 1)
    monkeypatch.setattr(decode.shutil, "disk_usage", lambda _: one_short)
    assert "GB are needed" in refusal("decode.py --size 8", pets)
    assert not (pets / "decoding").exists()


def test_a_disk_with_just_the_room_is_filled(pets, monkeypatch):
    enough = SimpleNamespace(free=16 * 8 * 8 * 3)
    monkeypatch.setattr(decode.shutil, "disk_usage", lambda _: enough)
    decode.decode(pets, 8)
    assert (pets / "x_test.npy").exists()


def test_a_copy_without_an_image_needs_room(tmp_path, monkeypatch):
    one_short = SimpleNamespace(free=7 * 8 * 8 * 3 - 1)
    monkeypatch.setattr(decode.shutil, "disk_usage", lambda _: one_short)
    np.save(tmp_path / "x.npy", np.zeros((8, 8, 8, 3), np.uint8))
    with pytest.raises(common.BadInput, match="GB are needed"):
        decode.copy_rows(tmp_path / "x.npy", tmp_path / "kept.npy", np.arange(7), "")


def test_lacking_memory_is_not_the_files_fault(pets, monkeypatch):
    monkeypatch.setattr(decode, "square", mock.Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        decode.decode(pets, 8, skip_unreadable=True)


MAPS = Path("/proc/self/maps")  # of Linux: the files that are mapped into memory


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list what is mapped")
def test_no_file_is_mapped_while_it_is_replaced(damaged, monkeypatch):
    replace = decode.os.replace
    replaced = []

    def look_and_replace(source, target):
        mapped = MAPS.read_text()
        assert str(source) not in mapped
        assert str(target) not in mapped
        replace(source, target)
        replaced.append(Path(target).name)

    monkeypatch.setattr(decode.os, "replace", look_and_replace)
    decode.decode(damaged, 8, skip_unreadable=True)
    assert replaced.count("x_train.npy") == 2  # without the unreadable image, then to its place


# ---- images of more than eight bits
EVERY_VALUE = np.arange(2**16, dtype=np.uint16).reshape(256, 256)


def written_by_pillow(kind, path):
    Image.fromarray(EVERY_VALUE.astype(kind)).save(path)


def written_by_hand(kind, path):
    path.write_bytes(b"P5 256 256 65535\n" + EVERY_VALUE.astype(kind).tobytes())


@pytest.mark.parametrize(
    "write, kind, name",
    [
        (written_by_pillow, "<u2", "grey.png"),
        (written_by_pillow, "<u2", "grey.tif"),
        (written_by_pillow, ">u2", "big-endian.tif"),
        (written_by_hand, ">u2", "grey.pgm"),
    ],
    ids=["png", "tif", "big-endian tif", "pgm"],
)
def test_sixteen_bits_are_rescaled_to_eight(tmp_path, write, kind, name):
    path = tmp_path / name
    write(kind, path)
    expected = (EVERY_VALUE.astype(int) + 128) // 257
    assert np.array_equal(np.asarray(decode.read(path)), expected[..., None].repeat(3, 2))


def test_a_ramp_of_16_bits_stays_one(pets):
    ramp = np.arange(256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(257 * ramp).save(pets / "train/cat/0.png")
    decode.decode(pets, 16)
    assert np.array_equal(np.load(pets / "x_train.npy")[0, :, :, 0], ramp)


def test_white_of_twelve_bits_is_white(tmp_path):
    path = tmp_path / "white.tif"
    Image.fromarray(np.full((8, 8), 65535, np.uint16)).save(path)
    tag = struct.pack("<HHI", 258, 3, 1)  # of the bits of a value
    with_16, with_12 = tag + struct.pack("<I", 16), tag + struct.pack("<I", 12)
    path.write_bytes(path.read_bytes().replace(with_16, with_12))
    assert np.asarray(decode.read(path)).min() == 255


def test_a_stack_of_pages_is_no_image(tmp_path):
    path = tmp_path / "stack.tif"
    page = Image.new("L", (8, 8))
    page.save(path, save_all=True, append_images=[page])
    with pytest.raises(ValueError, match="it has several pages"):
        decode.read(path)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_values_of_unknown_range_are_refused(pets, kind):
    Image.fromarray(np.ones((20, 20), kind)).save(pets / "train/dog/9.tif")
    message = refusal("decode.py --size 8", pets)
    assert "dog/9.tif cannot be read" in message
    assert "of unknown range; save it with 8 or 16 bits" in message


# ---- folders without a test set, and images without labels
@pytest.fixture
def whole(tmp_path):
    """A folder of four images of a cat, four of a dog and one of a cow; no test set."""
    write_images(tmp_path, ["whole"])
    (tmp_path / "whole/cow").mkdir()
    shutil.copy(tmp_path / "whole/cat/0.png", tmp_path / "whole/cow")
    return tmp_path / "whole"


@pytest.fixture
def flat(tmp_path):
    """A folder of eight images, in it and nowhere deeper."""
    write_images(tmp_path, ["of"])
    (tmp_path / "flat").mkdir()
    for file in tmp_path.glob("of/*/*.png"):
        shutil.copy(file, tmp_path / "flat" / f"{file.parent.name}{file.name}")
    return tmp_path / "flat"


def rows_of(folder):
    """split.csv: (file, class, set) of each image."""
    with open(folder / "split.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["file", "class", "set"]
    return rows


@pytest.mark.parametrize("layout", ["whole", "flat"])
def test_a_folder_without_tests_hears_the_layouts(request, layout):
    message = refusal("decode.py --size 8", request.getfixturevalue(layout))
    assert "needs train/<class>/*.jpg and test/<class>/*.jpg" in message
    assert "add --test-share 0.2" in message


@pytest.mark.parametrize("share, tested", [(0.01, 1), (0.5, 2), (0.99, 3)])
def test_each_class_is_split(whole, share, tested):
    run_program(f"decode.py --size 8 --test-share {share}", whole)
    assert np.bincount(np.load(whole / "y_test.npy")).tolist() == [tested, 0, tested]
    assert np.bincount(np.load(whole / "y_train.npy")).tolist() == [4 - tested, 1, 4 - tested]


def test_split_csv_has_the_rows_of_the_arrays(whole):
    (whole / "dog/2.png").write_bytes(b"no image")
    run_program("decode.py --size 8 --test-share 0.5 --skip-unreadable", whole)
    x = np.concatenate([np.load(whole / "x_train.npy"), np.load(whole / "x_test.npy")])
    rows = rows_of(whole)
    assert len(rows) == len(x) == 8
    for image, (file, _, _) in zip(x, rows):
        assert np.array_equal(image, decode.square(whole / file, 8))


def test_split_csv_names_class_and_set(whole):
    run_program("decode.py --size 8 --test-share 0.5", whole)
    numbers = {"cat": 0, "cow": 1, "dog": 2}
    for part in "train", "test":
        classes = [of_class for _, of_class, of_part in rows_of(whole) if of_part == part]
        y = np.load(whole / f"y_{part}.npy")
        assert [numbers[name] for name in classes] == y.tolist()


def test_classes_txt_names_the_numbers(whole):
    run_program("decode.py --size 8 --test-share 0.5", whole)
    assert (whole / "classes.txt").read_text() == "cat\ncow\ndog\n"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_is_a_split(whole, tmp_path, seed):
    again = shutil.copytree(whole, tmp_path / "again")
    run_program("decode.py --size 8 --test-share 0.5 --seed 0", whole)
    run_program(f"decode.py --size 8 --test-share 0.5 --seed {seed}", again)
    assert (rows_of(whole) == rows_of(again)) == (seed == 0)


def test_training_images_alone_are_split(whole, tmp_path):
    whole.rename(tmp_path / "train")
    found, classes = decode.find_images(tmp_path, 0.5)
    assert classes == ["cat", "cow", "dog"]
    assert (len(found["train"]), len(found["test"])) == (5, 4)


def test_a_split_replaces_no_test_set(pets):
    message = refusal("decode.py --size 8 --test-share 0.2", pets)
    assert "val is a test set already: leave out --test-share" in message


def test_too_few_images_are_not_split(flat):
    for file in list(flat.iterdir())[2:]:
        file.unlink()
    message = refusal("decode.py --size 8 --test-share 0.5", flat)
    assert "the train set has 1 images; two or more are needed" in message


def test_another_split_starts_afresh(whole, monkeypatch):
    monkeypatch.setattr(decode, "AT_ONCE", 3)
    (whole / "dog/3.png").write_bytes(b"no image")
    with pytest.raises(common.BadInput):
        decode.decode(whole, 8, test_share=0.01)
    assert (whole / "decoding").is_dir()  # it is no class
    decode.decode(whole, 8, skip_unreadable=True, test_share=0.99)
    for image, (file, _, _) in zip(np.load(whole / "x_train.npy"), rows_of(whole)):
        assert np.array_equal(image, decode.square(whole / file, 8))


def test_the_same_files_in_other_parts_start_afresh(tmp_path):
    a, b, c = [(str(tmp_path / name), 0) for name in ("a.png", "b.png", "c.png")]
    first = decode.start(tmp_path / "first", {"train": [a, b], "test": [c]}, 8)
    second = decode.start(tmp_path / "second", {"train": [a], "test": [b, c]}, 8)
    assert first["files"] != second["files"]


def test_a_folder_is_the_same_from_within(pets, monkeypatch):
    monkeypatch.chdir(pets)
    found, _ = decode.find_images(pets)
    here, _ = decode.find_images(Path("."))
    absolute = decode.start(pets / "decoding", found, 8)
    assert decode.start(Path("decoding"), here, 8)["files"] == absolute["files"]


def test_images_beside_class_folders_are_refused(whole):
    shutil.copy(whole / "cat/0.png", whole / "loose.png")
    message = refusal("decode.py --size 8 --test-share 0.5", whole)
    assert "loose.png lies beside the folders of the classes" in message


@pytest.mark.parametrize("name", ["split.csv", "classes.txt"])
def test_a_table_of_ones_own_is_kept(whole, name):
    (whole / name).write_text("mine")
    message = refusal("decode.py --size 8 --test-share 0.5", whole)
    assert f"{name} would be overwritten" in message
    assert (whole / name).read_text() == "mine"


def test_what_was_left_out_is_not_forgotten(damaged, interrupted):
    for _ in range(2):  # the fourth file is in the second batch
        with pytest.raises(KeyboardInterrupt):
            decode.decode(damaged, 8, skip_unreadable=True)
    message = "cat/3.png could not be read and was left out; add --skip-unreadable again"
    with pytest.raises(common.BadInput, match=message):
        decode.decode(damaged, 8)


def test_images_without_classes_load_without_labels(flat):
    run_program("decode.py --size 8 --test-share 0.25", flat)
    data = load("flat", flat.parent)
    assert (len(data.train["x"]), len(data.test["x"])) == (6, 2)
    assert data.classes == {}


def test_parts_without_classes_load_without_labels(flat, tmp_path):
    for part in "train", "test":
        shutil.copytree(flat, tmp_path / "mine" / part)
    run_program("decode.py --size 8", tmp_path / "mine")
    data = load("mine", tmp_path)
    assert (len(data.train["x"]), len(data.test["x"])) == (8, 8)
    assert data.classes == {}


def test_a_split_folder_trains(flat, tmp_path):
    run_program("decode.py --size 16 --test-share 0.25", flat)
    mine = f"--dataset flat --data-root {flat.parent} --preset shapes --batch-size 4"
    options = f"{mine} --epochs 1 --limit 4 --image-size 16 --device cpu"
    run_program(f"ncl.py {options} --out", tmp_path / "run")
    assert records(tmp_path / "run")[-1]["epochs"] == 1


# ------------------------------------------------------------------------------------------ draw.py
@pytest.fixture
def without_matplotlib(monkeypatch):
    """As if it was not installed."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "draw", raising=False)


def start_draw():
    """What `python tools/draw.py` does, with the arguments in sys.argv."""
    runpy.run_path(str(ROOT / "tools/draw.py"), run_name="__main__")


def test_draw_has_help_without_matplotlib(without_matplotlib, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["draw.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        start_draw()
    assert "python look.py runs/<run>" in capsys.readouterr().out


def test_draw_refuses_to_draw_without_matplotlib(without_matplotlib, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["draw.py", "runs/mine"])
    assert "pip install matplotlib" in refusal(start_draw)


def test_who_needs_draw_hears_what_to_install(without_matplotlib):
    with pytest.raises(ImportError, match="pip install matplotlib"):
        importlib.import_module("draw")


# ---------------------------------------------------------------------------------------- evaluate
def evaluated(folder, *flags):
    """The numbers that evaluate.py prints."""
    with mock.patch.object(common, "print_table") as table:
        run_program("evaluate.py --device cpu", folder, *flags)
    return table.call_args.args[0]


@pytest.mark.parametrize("method", METHODS)
def test_evaluation_ends_like_the_training(runs, method):
    final = records(runs / method)[-1]
    found = evaluated(runs / method)
    assert found.keys() >= {"act", "lp1", "knn5_embedding", "background_lp1"}
    assert found == {name: final[name] for name in found}


def test_an_autoencoder_is_evaluated(runs, tmp_path):
    folder = tmp_path / "sae"
    run_program("sae.py --device cpu --epochs 1 --batch-size 60 --out", folder, runs / "simclr")
    found = evaluated(folder)
    assert found == {name: records(folder)[-1][name] for name in found}


def test_another_data_set_is_evaluated_whole(runs, tmp_path):
    write_toy_run(tmp_path)
    folder = copy_of(runs / "ncl", tmp_path, limit=60)  # toy has 40 images
    found = evaluated(folder, "--dataset", "toy", "--data-root", tmp_path)
    assert found["lp1"] == 100  # dark or bright
    assert "background_lp1" not in found


def test_what_was_evaluated_is_kept(runs, tmp_path):
    before = {file: file.read_bytes() for file in (runs / "ncl").iterdir()}
    evaluated(runs / "ncl", "--out", tmp_path / "new" / "mine.npz")
    assert {file: file.read_bytes() for file in (runs / "ncl").iterdir()} == before
    kept = dict(np.load(tmp_path / "new" / "mine.npz"))
    assert kept.pop("images").shape == (100, 3, 32, 32)
    of_run = dict(np.load(runs / "ncl" / "embeddings.npz"))
    assert kept.keys() == of_run.keys()
    assert all(np.array_equal(kept[name], of_run[name]) for name in kept)


def test_no_file_is_replaced_by_an_evaluation(runs, tmp_path):
    (tmp_path / "mine.npz").touch()
    for name in "mine.npz", "new.npy":
        message = refusal("evaluate.py", runs / "ncl", "--out", tmp_path / name)
        assert f"{name}: name a new file that ends in .npz" in message


# -------------------------------------------------------------------------------------------- runs
def copy_of(run, root, **settings):
    """A copy of a run with other settings."""
    folder = shutil.copytree(run, root / run.name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("config.json", None, "is not a run of an image method"),
        ("config.json", b"{", "is not a run of an image method"),
        ("config.json", b"[]", "is not a run of an image method"),
        ("config.json", b"{}", "it has no ['arch'"),
        ("backbone.pt", None, "it has not finished"),
        ("checkpoint.pt", None, "checkpoint.pt cannot be read"),
        ("checkpoint.pt", b"no archive", "checkpoint.pt cannot be read"),
    ],
)
def test_a_damaged_run_is_refused(runs, tmp_path, name, content, message):
    folder = shutil.copytree(runs / "ncl", tmp_path / "ncl")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert message in refusal("evaluate.py", folder)


@pytest.mark.parametrize(
    "settings", [dict(head_out=8), dict(method="nothing"), dict(arch="resnet7")], ids=str
)
def test_a_run_of_other_settings_cannot_be_rebuilt(runs, tmp_path, settings):
    folder = copy_of(runs / "ncl", tmp_path, **settings)
    assert "cannot be rebuilt from its settings" in refusal("evaluate.py", folder)


def test_a_run_is_measured_on_its_share_of_the_data(runs, tmp_path):
    run = read_run(copy_of(runs / "ncl", tmp_path, limit=60))
    assert len(labelled(run, None, "a probe").train["y"]) == 60


def test_progress_is_a_line_each_ten_seconds(monkeypatch, capsys):
    seconds = iter([0, 0, 4, 10, 12, 25])
    monkeypatch.setattr(common.time, "monotonic", seconds.__next__)
    assert "".join(progress("abcde", "letters")) == "abcde"
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["letters: 2/5, 15 s left", "letters: 4/5, 6 s left"]


def test_what_cannot_be_written_replaces_nothing(tmp_path):
    write_json(tmp_path / "numbers.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "numbers.json", {"a": {1}})
    assert read_json(tmp_path / "numbers.json") == {"a": 1}


# ---------------------------------------------------------------------------------------- finetune
def test_a_share_has_every_class_alike():
    y = torch.randint(0, 4, (1000,))
    chosen = finetune.balanced_subset(y, 0.1, seed=3)
    assert y[chosen].bincount().tolist() == [25] * 4
    assert len(chosen.unique()) == 100


def test_a_share_depends_on_the_seed_alone():
    y = torch.randint(0, 4, (1000,))
    chosen = finetune.balanced_subset(y, 0.1, seed=3)
    assert torch.equal(chosen, finetune.balanced_subset(y, 0.1, seed=3))
    assert not torch.equal(chosen, finetune.balanced_subset(y, 0.1, seed=4))


def test_a_small_share_has_one_of_every_class():
    y = torch.arange(100) % 4
    chosen = finetune.balanced_subset(y, 1e-6, seed=3)
    assert sorted(y[chosen].tolist()) == [0, 1, 2, 3]


def test_a_share_of_one_is_all_labels():
    y = torch.tensor([0, 0, 0, 1])
    assert finetune.balanced_subset(y, 1.0, seed=3).tolist() == [0, 1, 2, 3]


@pytest.fixture
def toy_run(tmp_path):
    return write_toy_run(tmp_path)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """What finetune.py did with a toy run: its results and the calls of its two functions.

    The accuracies are made up, but for the two of random weights.
    """
    root = tmp_path_factory.mktemp("finetune")
    torch.manual_seed(0)
    folder = write_toy_run(root)
    before = (folder / "backbone.pt").read_bytes()
    of_tenth = [(50.0, 9.0), (60.0, 9.0), (70.0, 9.0)]  # two rates are tried, one is used
    of_all = [(60.0, 9.0), (60.0, 9.0), (80.0, 9.0)]
    scores = [*of_tenth, *of_all, mock.DEFAULT, mock.DEFAULT]
    train = mock.patch.object(finetune, "finetune", wraps=finetune.finetune)
    ask = mock.patch.object(finetune, "accuracy", wraps=finetune.accuracy, side_effect=scores)
    with train as trained, ask as asked:
        command = f"finetune.py {folder} --labels 0.1 1 --min-steps 20"
        run_program(f"{command} --tune 0.1 0.05")
        run_program(f"{command} --from-scratch --lr 0.05 0.02")
    return SimpleNamespace(
        data=load("toy", root),
        folder=folder,
        found=json.loads((folder / "finetune.json").read_text()),
        before=before,
        trained=[call.args for call in trained.call_args_list],
        tested=[call.args for call in asked.call_args_list],
    )


def test_rates_rise_and_the_best_is_used(calls):
    rates = [lr for *_, lr in calls.trained]
    assert rates[:3] == [0.05, 0.1, 0.1]
    assert calls.found["finetune_0.1_lr"] == 0.1


def test_of_equal_rates_the_smallest_is_used(calls):
    rates = [lr for *_, lr in calls.trained]
    assert rates[3:6] == [0.05, 0.1, 0.05]
    assert calls.found["finetune_1.0_lr"] == 0.05


def test_every_share_has_its_given_rate(calls):
    rates = [lr for *_, lr in calls.trained]
    assert rates[6:] == [0.05, 0.02]
    assert (calls.found["scratch_0.1_lr"], calls.found["scratch_1.0_lr"]) == (0.05, 0.02)


def test_rates_are_tried_without_held_out_images(calls):
    sizes = [len(chosen) for _, _, _, chosen, *_ in calls.trained]
    assert sizes[2:] == [4, 36, 36, 40, 4, 40]


def test_held_out_training_images_choose_a_rate(calls):
    chosen = calls.trained[3][3]
    held = sorted({*range(40)} - {*chosen.tolist()})
    _, images, y, size = calls.tested[3]
    assert torch.equal(images, calls.data.train["x"][held])
    assert torch.equal(y, calls.data.train["y"][held])
    assert size == 16


def test_accuracies_are_of_the_test_images(calls):
    sizes = [len(images) for _, images, *_ in calls.tested]
    assert sizes == [4, 4, 40, 4, 4, 40, 40, 40]
    assert torch.equal(calls.tested[2][1], calls.data.test["x"])


def test_both_accuracies_are_kept(calls):
    assert calls.found["finetune_1.0_top1"] == 80
    assert calls.found["finetune_1.0_top5"] == 9
    assert calls.found["finetune_0.1_top1"] == 70


def test_a_share_keeps_its_settings(calls):
    tuned = calls.found["finetune_0.1_tuned"], calls.found["scratch_0.1_tuned"]
    assert tuned == (True, False)
    assert calls.found["finetune_1.0_seed"] == 1


def test_random_weights_learn_dark_from_bright(calls):
    assert calls.found["scratch_1.0_top1"] > 90
    assert calls.found["scratch_1.0_top5"] == 100


def test_finetuning_changes_a_copy_of_the_backbone(calls):
    path = calls.folder / "backbone.pt"
    saved = torch.load(path, weights_only=True)
    trained = calls.trained[0][0].state_dict()
    assert path.read_bytes() == calls.before
    for name in "0.weight", "1.weight", "1.running_mean":
        assert not torch.equal(trained[name].cpu(), saved[name])


def test_from_scratch_is_not_the_runs_weights(toy_run):
    run = read_run(toy_run)
    saved = torch.load(toy_run / "backbone.pt", weights_only=True)["0.weight"]
    loaded, _ = finetune.backbone_of(toy_run, run, from_scratch=False)
    fresh, _ = finetune.backbone_of(toy_run, run, from_scratch=True)
    assert torch.equal(loaded[0].weight, saved)
    assert not torch.equal(fresh[0].weight, saved)


def new_args(**changed):
    settings = dict(epochs=1, min_steps=1, classifier_lr=0.1, weight_decay=0.0, seed=1)
    return argparse.Namespace(**settings | changed)


TOY_VIEW = argparse.Namespace(image_size=16, min_scale=0.2, crop="bilinear")


@pytest.fixture
def few():
    """Twelve random images of three classes."""
    x = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8)
    y = torch.arange(12) % 3
    return data_set(x, x, y, y)


def train_few(data, chosen, lr=0.1, seed=0, **settings):
    """The backbone and the classifier that finetune() makes, from the same weights every time."""
    torch.manual_seed(seed)
    backbone, d = common.resnet("resnet8", 16)
    args = new_args(**settings)
    return finetune.finetune(backbone, d, data, torch.tensor(chosen), TOY_VIEW, args, lr)


@pytest.mark.parametrize(
    "epochs, min_steps, expected", [(2, 1, 2), (1, 4, 4)], ids=["epochs", "steps"]
)
def test_few_labels_are_passed_more_often(few, epochs, min_steps, expected):
    with mock.patch.object(common, "augment", wraps=common.augment) as views:
        train_few(few, range(12), epochs=epochs, min_steps=min_steps)
    assert len(views.call_args_list) == expected  # of one batch each


def test_an_epoch_shows_every_label_once(few):
    with mock.patch.object(common, "augment", wraps=common.augment) as views:
        train_few(few, range(2, 12), epochs=2)
    for call in views.call_args_list:
        shown = {bytes(image) for image in call.args[0].numpy()}
        assert shown == {bytes(image) for image in few.train["x"][2:].numpy()}


def test_an_epoch_of_two_batches_shows_all():
    x = torch.randint(0, 256, (128, 3, 8, 8), dtype=torch.uint8)
    data = data_set(x, x, torch.arange(128) % 3, None)
    with mock.patch.object(common, "augment", wraps=common.augment) as views:
        train_few(data, range(128))
    shown = torch.cat([call.args[0] for call in views.call_args_list])
    assert {bytes(image) for image in shown.numpy()} == {bytes(image) for image in x.numpy()}


def test_two_epochs_have_two_orders(few):
    with mock.patch.object(common, "augment", wraps=common.augment) as views:
        train_few(few, range(12), epochs=2)
    first, second = [call.args[0] for call in views.call_args_list]
    assert not torch.equal(first, second)


def test_an_incomplete_batch_is_left_out(few):
    data = data_set(few.train["x"].repeat(6, 1, 1, 1), None, few.train["y"].repeat(6), None)
    with mock.patch.object(common, "augment", wraps=common.augment) as views:
        train_few(data, range(72), epochs=2)
    assert [len(call.args[0]) for call in views.call_args_list] == [64, 64]


def test_views_are_crops_without_colour_or_blur(few):
    with mock.patch.object(common, "augment", wraps=common.augment) as views:
        train_few(few, range(12))
    (call,) = views.call_args_list
    _, size, min_scale = call.args
    assert (size, min_scale) == (16, 0.2)
    assert call.kwargs == dict(jitter=0, gray=0, blur=0, crop="bilinear")


def test_the_classifier_has_its_own_rate(few):
    backbone, _ = train_few(few, range(12), lr=1e-30, classifier_lr=0.1)
    _, still = train_few(few, range(12), lr=0.1, classifier_lr=1e-30)
    torch.manual_seed(0)
    untrained, d = common.resnet("resnet8", 16)
    torch.manual_seed(1)
    assert torch.equal(backbone[0].weight, untrained[0].weight)
    assert torch.equal(still.weight, nn.Linear(d, 3).weight)


def test_the_rate_falls_to_zero(few):
    with mock.patch.object(common, "set_lr", wraps=common.set_lr) as rates:
        train_few(few, range(12), epochs=4)
    shares = [call.args[1] for call in rates.call_args_list]
    assert shares == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5])


def test_training_is_sgd_with_momentum_and_decay(few, monkeypatch):
    monkeypatch.setattr(common, "has_bf16", lambda _: False)
    monkeypatch.setattr(common, "augment", lambda x, *_, **options: x / 255)
    settings = dict(epochs=3, classifier_lr=0.2, weight_decay=0.01)
    trained = train_few(few, range(12), lr=0.05, **settings)

    torch.manual_seed(0)
    backbone, d = common.resnet("resnet8", 16)
    torch.manual_seed(1)
    model = nn.Sequential(backbone, nn.Linear(d, 3))
    rates = [0.05] * len(list(backbone.parameters())) + [0.2, 0.2]
    velocities = [torch.zeros_like(p) for p in model.parameters()]
    for share in 1, 0.75, 0.25:
        model.zero_grad()
        F.cross_entropy(model(few.train["x"] / 255), few.train["y"]).backward()
        with torch.no_grad():
            for p, velocity, rate in zip(model.parameters(), velocities, rates):
                velocity.mul_(0.9).add_(p.grad + 0.01 * p)
                p -= rate * share * velocity
    for p, q in zip(model.parameters(), trained.parameters()):
        assert torch.allclose(p, q.cpu(), atol=1e-4)


def test_finetuning_depends_on_the_seed_alone(few):
    def weight(**settings):
        _, classifier = train_few(few, range(12), **settings)
        return classifier.weight

    assert torch.equal(weight(), weight())
    assert not torch.equal(weight(), weight(seed=2))


class Known(nn.Module):
    """A classifier of seven classes: the pixels of an image are its scores."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x.flatten(1)[:, :7]


def test_accuracy_counts_first_and_first_five():
    ranks = torch.tensor([[6, 5, 4, 3, 2, 1, 0]] * 4, dtype=torch.uint8)  # class 0 scores highest
    images = torch.zeros(4, 3, 7, 7, dtype=torch.uint8)
    images[:, 0, 0] = 10 * ranks
    y = torch.tensor([0, 1, 4, 5])
    assert finetune.accuracy(Known(), images, y, 7) == (25, 75)


class Diverged(nn.Module):
    """Scores that are no numbers."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.full((7,), torch.nan))

    def forward(self, x):
        return self.scores.expand(len(x), 7)


def test_a_network_that_has_diverged_is_never_right():
    images = torch.zeros(4, 3, 7, 7, dtype=torch.uint8)
    assert finetune.accuracy(Diverged(), images, torch.arange(4), 7) == (0, 0)


def test_every_rate_starts_from_the_same_random_weights(toy_run):
    started = []

    def spy(backbone, *_):
        started.append(backbone[0].weight)
        torch.rand(1)

    with mock.patch.multiple(finetune, finetune=spy, accuracy=lambda *_: (0.0, 0.0)):
        run_program("finetune.py --from-scratch --tune 0.1 0.2 --labels=1", toy_run)
    first, *others = started
    assert len(others) == 2
    assert all(torch.equal(first, other) for other in others)


def test_too_few_labels_are_tried_and_trained_on(toy_run):
    data = load("toy", toy_run.parent)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    held = (order < 4).nonzero()[:, 0]
    seen = []

    def spy(backbone, d, data, chosen, run, args, lr):
        seen.append(chosen)
        return None

    args = argparse.Namespace(tune=[0.1])
    with mock.patch.multiple(finetune, finetune=spy, accuracy=lambda *_: (0.0, 0.0)):
        assert finetune.tuned_lr(lambda: (None, 1), data, held, TOY_VIEW, args) == 0.1
    assert torch.equal(seen[0], held)


@pytest.mark.parametrize("kept", [{"x_train", "x_test"}, None], ids=["unlabelled", "one class"])
def test_finetuning_needs_two_classes(toy_run, kept):
    path = toy_run.parent / "toy.npz"
    arrays = dict(np.load(path))
    np.savez(path, **{name: 0 * arrays[name] for name in kept or arrays})
    assert "needs labels of two classes or more" in refusal("finetune.py", toy_run)


def test_the_weights_of_another_network_are_refused(toy_run):
    torch.save({"weight": torch.ones(2)}, toy_run / "backbone.pt")
    assert "backbone.pt does not fit its config.json" in refusal("finetune.py --lr=0.1", toy_run)


def test_a_run_without_weights_is_refused(toy_run):
    (toy_run / "backbone.pt").unlink()
    assert "the run has not finished" in refusal("finetune.py --lr=0.1", toy_run)


def test_a_damaged_record_is_not_overwritten(toy_run):
    (toy_run / "finetune.json").write_text("{")
    with pytest.raises(common.BadInput, match="is damaged; delete it"):
        finetune.main([str(toy_run), *"--labels 0.1 --lr 0.1 --epochs 1 --min-steps 1".split()])
    assert (toy_run / "finetune.json").read_text() == "{"


# -------------------------------------------------------------------------------------- robustness
@pytest.fixture
def photographs():
    """Twenty images (20, 3, 32, 32) uint8 that are smooth, with all values from 0 to 255."""
    x = common.gaussian_blur(torch.rand(20, 3, 32, 32), torch.full((20,), 2.0))
    x = (x - x.amin()) / (x.amax() - x.amin())
    return (x * 255).byte()


def test_severities_are_those_of_cifar_10_c():
    assert {kind: sizes for kind, (_, sizes) in robustness.CORRUPTIONS.items()} == dict(
        noise=(0.04, 0.06, 0.08, 0.09, 0.10),
        blur=(0.4, 0.6, 0.7, 0.8, 1.0),
        contrast=(0.75, 0.5, 0.4, 0.3, 0.15),
        brightness=(0.05, 0.1, 0.15, 0.2, 0.3),
        pixelation=(0.95, 0.9, 0.85, 0.75, 0.65),
        jpeg=(80, 65, 58, 50, 40),
    )


@pytest.mark.parametrize("kind", robustness.CORRUPTIONS)
def test_corruptions_grow_with_severity(photographs, kind):
    change = []
    for severity in range(1, 6):
        images = robustness.corrupted(photographs, kind, severity)
        assert images.shape == photographs.shape
        change.append((images.float() - photographs.float()).abs().mean().item())
    assert change == sorted(change)
    assert 0.2 < change[0] < change[4]


def test_noise_has_cifar_10_cs_deviation():
    grey = torch.full((20, 3, 32, 32), 128, dtype=torch.uint8)
    noisy = robustness.corrupted(grey, "noise", 3) / 255
    assert noisy.std() == pytest.approx(0.08, abs=0.002)


def test_noise_depends_on_the_severity_alone(photographs):
    noisy = robustness.corrupted(photographs, "noise", 3)
    assert torch.equal(robustness.corrupted(photographs, "noise", 3), noisy)


def test_more_than_a_thousand_images_keep_their_order(photographs):
    many = photographs[:, :, :8, :8].repeat(101, 1, 1, 1)  # 2,020
    changed = robustness.corrupted(many, "contrast", 2)
    assert torch.equal(changed[-20:], robustness.corrupted(many[-20:], "contrast", 2))


def test_blur_is_torchvisions(photographs):
    x = photographs / 255
    theirs = TF.gaussian_blur(x, 13, 0.7)
    assert torch.allclose(robustness.blur(x, 0.7), theirs, atol=1e-5)


def test_brightness_is_added_to_the_value_of_hsv(photographs):
    x = photographs[:1] / 255
    expected = []
    for pixel in x[0].flatten(1).T.tolist():
        h, s, v = colorsys.rgb_to_hsv(*pixel)
        expected.append(colorsys.hsv_to_rgb(h, s, min(1, v + 0.2)))
    brightened = robustness.brighten(x, 0.2)[0].flatten(1).T
    assert np.allclose(brightened, expected, atol=1e-5)


def test_black_becomes_grey_when_brightened():
    black = torch.zeros(1, 3, 2, 2)
    assert torch.allclose(robustness.brighten(black, 0.2), torch.full_like(black, 0.2))


def test_contrast_shrinks_the_distance_to_the_channels_mean(photographs):
    x = photographs / 255
    changed = robustness.lower_contrast(x, 0.15)
    assert torch.allclose(changed.mean((2, 3)), x.mean((2, 3)), atol=1e-5)
    assert torch.allclose(changed.std((2, 3)), 0.15 * x.std((2, 3)), atol=1e-5)


def test_pixelation_repeats_pixels(photographs):
    changed = robustness.corrupted(photographs, "pixelation", 5)
    repeated = changed[0, 0].diff(dim=1) == 0
    assert repeated.float().mean() > 0.25  # 20 columns of 31


def test_pixels_are_means_of_what_they_cover(photographs):
    mean = F.avg_pool2d(photographs / 255, 2)
    expected = F.interpolate(mean, scale_factor=2, mode="nearest")
    assert torch.allclose(robustness.pixelate(photographs / 255, 0.5), expected, atol=1.1 / 255)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compression_is_torchvisions(photographs):
    theirs = TF.jpeg(photographs, 40)
    ours = robustness.corrupted(photographs, "jpeg", 5)
    assert (ours.float() - theirs.float()).abs().mean() < 1


def test_the_rarest_background_becomes_the_most_frequent():
    assert robustness.EXCHANGED == dict(sky=0.08, grass=0.12, sand=0.15, water=0.25, night=0.40)


def test_shifts_are_drawn_as_they_say(monkeypatch):
    asked = []

    def draw(train=5000, test=1000, **shift):
        asked.append((train, test, shift))
        numbers = np.zeros(2)
        return dict(x_train=numbers, y_train=numbers, x_test=numbers, y_test=numbers)

    monkeypatch.setattr(shapes, "draw", draw)
    robustness.shifted("unseen")
    robustness.shifted("paired")
    robustness.biased()
    assert asked == [
        (0, 2000, dict(seed=1, frequencies=shapes.UNSEEN)),
        (0, 2000, dict(seed=1, paired=0.9, turn=2)),
        (5000, 0, dict(seed=2, paired=0.9)),
    ]


class Brightness(nn.Module):
    """h is an image's mean pixel and z is nothing."""

    def forward(self, x):
        h = x.mean((1, 2, 3))[:, None]
        return h, 0 * h


@pytest.fixture
def shifts_of_brightness(monkeypatch):
    """Numbers of `Brightness`, which tells bright from dark images.

    Corruptions from severity 3 on exchange bright and dark; so does what "paired" is fitted on.
    """
    x = torch.randint(0, 40, (80, 3, 8, 8), dtype=torch.uint8)
    y = torch.arange(80) % 2
    x[y == 1] += 180
    data = data_set(x[:40], x[40:], y[:40], y[40:])

    def corrupted(images, kind, severity):
        return 255 - images if severity >= 3 else images

    monkeypatch.setattr(robustness, "corrupted", corrupted)
    monkeypatch.setattr(robustness, "shifted", lambda name: (x, y))
    monkeypatch.setattr(robustness, "biased", lambda: (x, 1 - y))
    run = argparse.Namespace(dataset="shapes", image_size=8)
    return robustness.measure(run, Brightness(), data, "cpu")


def test_clean_images_are_asked_with_both_features(shifts_of_brightness):
    assert shifts_of_brightness["h_clean"] == 100
    assert shifts_of_brightness["z_clean"] == 50


@pytest.mark.parametrize("kind", robustness.CORRUPTIONS)
def test_the_mean_over_severities_is_kept(shifts_of_brightness, kind):
    scores = [shifts_of_brightness[f"h_{kind}_{severity}"] for severity in range(1, 6)]
    assert scores == [100, 100, 0, 0, 0]
    assert shifts_of_brightness[f"h_{kind}"] == pytest.approx(40)
    assert shifts_of_brightness[f"z_{kind}"] == pytest.approx(50)


def test_the_mean_over_corruptions_is_kept(shifts_of_brightness):
    assert shifts_of_brightness["h_corrupted"] == pytest.approx(40)
    assert shifts_of_brightness["z_corrupted"] == pytest.approx(50)


@pytest.mark.parametrize(
    "shift, expected", [("reversed", 100), ("unseen", 100), ("paired", 0), ("paired_as_trained", 0)]
)
def test_paired_backgrounds_are_asked_of_their_own_probe(shifts_of_brightness, shift, expected):
    assert shifts_of_brightness[f"h_{shift}"] == expected
    assert shifts_of_brightness[f"z_{shift}"] == 50


def test_images_that_are_not_square_are_refused():
    x, y = torch.zeros(4, 3, 8, 9, dtype=torch.uint8), torch.arange(4) % 2
    data = data_set(x, x, y, y)
    run = argparse.Namespace(dataset="wide", image_size=8)
    with pytest.raises(common.BadInput, match="wide: the corruptions take square images only"):
        robustness.measure(run, Brightness(), data, "cpu")


@pytest.mark.parametrize("method", METHODS)
def test_robustness_measures_a_run_of_any_method(runs, tmp_path, capsys, method):
    folder = tmp_path / method
    shutil.copytree(runs / method, folder)
    run_program("robustness.py", folder)
    found = json.loads((folder / "robustness.json").read_text())
    last = records(folder)[-1]
    of_record = last["lp1"], last["lp1_embedding"]
    assert (found["h_clean"], found["z_clean"]) == pytest.approx(of_record, abs=4.1)
    assert len(found) == 2 * (1 + 6 * 5 + 6 + 1)
    assert f"{found['z_jpeg']:.1f}" in capsys.readouterr().out


@pytest.fixture
def measured(tmp_path):
    """Records of two seeds of a row, 10 and 30 % right, and of another data set, 50 %."""
    names = ["clean"]
    for kind in robustness.CORRUPTIONS:
        names += [f"{kind}_{severity}" for severity in range(1, 6)]
    for row, dataset, score in ("a-seed1", "x", 10), ("a-seed12", "x", 30), ("b-seed1", "y", 50):
        folder = write_config(tmp_path / row, dataset)
        scores = {f"{e}_{name}": score for e in "hz" for name in names}
        (folder / "robustness.json").write_text(json.dumps(scores))
    return [tmp_path / row for row in ("a-seed1", "a-seed12", "b-seed1")]


def write_config(folder, dataset):
    """A folder with the settings of a run."""
    folder.mkdir()
    needed = "method data_root limit arch image_size min_scale jitter gray blur crop".split()
    (folder / "config.json").write_text(json.dumps(dict.fromkeys(needed) | {"dataset": dataset}))
    return folder


def test_the_seeds_of_a_row_become_one_line(measured):
    found = robustness.read_records(measured)
    assert {dataset: [*rows] for dataset, rows in found.items()} == {"x": ["a"], "y": ["b"]}
    assert found["x"]["a"]["h_blur_4"] == 20


def test_runs_on_record_are_read_as_folders_are(measured, tmp_path):
    lines = ['{"run": "c", "seed": 1, "settings": {"dataset": "x"}}']  # which was not measured
    for folder in measured:
        run, _, seed = folder.name.partition("-seed")
        settings = json.loads((folder / "config.json").read_text())
        numbers = json.loads((folder / "robustness.json").read_text())
        record = dict(run=run, seed=int(seed), settings=settings, robustness=numbers)
        lines.append(json.dumps(record))
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    found = robustness.read_records([tmp_path / "records.jsonl"])
    assert found == robustness.read_records(measured)


def test_runs_with_other_numbers_are_not_averaged(measured):
    file = measured[1] / "robustness.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"h_paired": 10}))
    with pytest.raises(common.BadInput, match="x, a: a run lacks a number"):
        robustness.read_records(measured)


def test_a_run_is_drawn_once(measured):
    with pytest.raises(common.BadInput, match="two runs are called a-seed1"):
        robustness.read_records(measured + measured[:1])


def test_a_runs_file_is_not_its_folder(measured):
    with pytest.raises(common.BadInput, match="is neither the folder of a run nor"):
        robustness.read_records([measured[0] / "robustness.json"])


def test_a_line_starts_at_the_clean_images(measured):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    row = robustness.read_records(measured)["x"]
    row["a"]["z_jpeg_5"] = 1
    _, panels = pyplot.subplots(1, 7)
    robustness.draw_row(panels, row)
    h, z = panels[5].get_lines()
    assert h.get_ydata().tolist() == [20] * 6
    assert z.get_ydata().tolist() == [20] * 5 + [1]


def test_measured_runs_are_drawn(measured, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    nothing = write_config(tmp_path / "c-seed1", "x")
    run_program("robustness.py", *measured, nothing, "--draw", tmp_path / "robustness.png")
    assert (tmp_path / "robustness.png").stat().st_size > 20_000
    assert "c-seed1 has no robustness.json's numbers: left out" in capsys.readouterr().out


def test_folders_without_measurements_cannot_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    nothing = write_config(tmp_path / "c-seed1", "x")
    message = refusal("robustness.py", nothing, "--draw", tmp_path / "no.png")
    assert "none of these has the numbers of a robustness.json" in message


def test_legends_are_of_their_own_data_set(measured, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    robustness.draw(measured, tmp_path / "robustness.png")
    legends = [part.legends[0] for part in pyplot.gcf().subfigs]
    told = [[text.get_text() for text in legend.get_texts()] for legend in legends]
    assert told == [["a, h", "a, z"], ["b, h", "b, z"]]


UNDRAWN = {
    "no.jsonl": ("", "no.jsonl is not there"),
    "damaged.jsonl": ("{", "damaged.jsonl is no file of records"),
    "other.jsonl": ('{"robustness": {}}', "other.jsonl is no file of records"),
}


@pytest.mark.parametrize("name", UNDRAWN)
def test_files_without_records_are_not_drawn(tmp_path, name):
    pytest.importorskip("matplotlib")
    content, message = UNDRAWN[name]
    if content:
        (tmp_path / name).write_text(content)
    assert message in refusal("robustness.py", tmp_path / name, "--draw", tmp_path / "no.png")


def test_a_picture_of_unknown_kind_is_refused(measured, tmp_path):
    pytest.importorskip("matplotlib")
    assert "no.foo" in refusal("robustness.py", *measured, "--draw", tmp_path / "no.foo")


# --------------------------------------------------------------------------------------- selection
def one_hot(z):
    return F.one_hot(z.argmax(1), z.shape[1]).float()


@pytest.mark.parametrize(
    "kind", [nn.Identity(), F.relu, one_hot], ids=["signed", "relu", "one-hot"]
)
def test_sepin_is_what_losing_a_dimension_costs(kind):
    z = kind(torch.randn(50, 8))
    a, b = F.normalize(z), F.normalize(z + 0.05 * torch.randn(50, 8) * (z != 0))

    def loss(kept):
        return F.cross_entropy(a[:, kept] @ b[:, kept].T / 0.2, torch.arange(50)).item()

    expected = []
    for k in range(8):
        others = [j for j in range(8) if j != k]
        expected.append(loss(others) - loss(range(8)))
    assert selection.sepin(a, b).tolist() == pytest.approx(expected, abs=1e-5)


def test_sepin_of_many_images_is_of_all():
    z1, z2 = torch.randn(2, 1200, 4)
    a, b = F.normalize(z1), F.normalize(z2)
    own = torch.arange(1200)
    whole = F.cross_entropy(a @ b.T / 0.2, own)
    without = F.cross_entropy(a[:, 1:] @ b[:, 1:].T / 0.2, own)
    assert selection.sepin(z1, z2)[0].item() == pytest.approx((without - whole).item(), abs=1e-5)


@pytest.fixture
def telling():
    """Embeddings (400, 32) of which four dimensions tell the class, strongly or weakly; labels."""
    y = torch.arange(400) % 4
    strong = torch.cat([F.one_hot(y, 4) * 3.0, 0.5 * torch.rand(400, 28)], 1)
    strong = strong[:, torch.randperm(32)]
    weak = torch.where(strong > 2, 0.01, strong)
    return strong, weak, y


def test_selection_takes_what_training_images_activate_most(telling):
    strong, weak, y = telling
    of_strong = selection.feature_selection(strong, y, weak, y, 1e-3)
    of_weak = selection.feature_selection(weak, y, weak, y, 1e-3)
    assert of_strong["p_at_10_top_4"] == 100
    assert of_strong["p_at_10_random_4"] < 100
    assert of_weak["p_at_10_top_4"] < 100


def test_selection_ranks_by_the_absolute_activation(telling):
    strong, weak, y = telling
    found = selection.feature_selection(-strong, y, weak, y, 1e-3)
    assert found["p_at_10_top_4"] == 100


def test_the_probe_sees_the_selected_dimensions_alone(telling):
    strong, _, y = telling
    found = selection.feature_selection(strong, y, strong, y, 1e-3)
    assert found["lp1_top_4"] == 100
    assert found["lp1_random_4"] < 100


def test_selection_probes_with_the_penalty_of_all(telling):
    strong, weak, y = telling
    with mock.patch.object(common, "linear_probe", return_value={"lp1": 0}) as probe:
        selection.feature_selection(strong, y, weak, y, 0.03)
    assert [call.kwargs["strengths"] for call in probe.call_args_list] == [[0.03]] * 6


def test_selection_keeps_an_eighth_a_quarter_and_half(telling):
    strong, weak, y = telling
    keys = {"p_at_10"}
    for m in 4, 8, 16:
        keys |= {f"p_at_10_top_{m}", f"p_at_10_random_{m}", f"lp1_top_{m}", f"lp1_random_{m}"}
    assert {*selection.feature_selection(strong, y, weak, y, 1e-3)} == keys


def test_selection_measures_a_run(runs, tmp_path):
    folder = shutil.copytree(runs / "ncl", tmp_path / "ncl")
    run_program("selection.py", folder)
    selected = json.loads((folder / "selection.json").read_text())
    assert {f"sepin_{k}" for k in (1, 10, 100, "all")} <= {*selected}
    assert {f"lp1_top_{m}" for m in (32, 64, 128)} <= {*selected}
    z, y = (torch.from_numpy(np.load(folder / "embeddings.npz")[key]) for key in "zy")
    assert selected["p_at_10"] == selection.precision_at(z, y, [10])[10]


def test_sepin_is_of_two_views_as_in_training(runs, tmp_path):
    folder = shutil.copytree(runs / "ncl", tmp_path / "ncl")
    with mock.patch.object(common, "augment", wraps=common.augment) as augment:
        run_program("selection.py", folder)
    run = read_run(folder)
    names = "min_scale", "jitter", "gray", "blur", "crop"
    expected = {name: getattr(run, name) for name in names}
    assert [call.kwargs for call in augment.call_args_list] == [expected] * 2


def test_sparseheads_colours_come_first(runs, tmp_path):
    folder = shutil.copytree(runs / "ncl", tmp_path / "ncl")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"order": "colour-crop"}))
    with mock.patch.object(sparsehead, "colour_first", wraps=sparsehead.colour_first) as view:
        run_program("selection.py", folder)
    assert len(view.call_args_list) == 2


def test_sepin_is_the_mean_of_the_best(runs, tmp_path):
    folder = shutil.copytree(runs / "ncl", tmp_path / "ncl")
    told = torch.arange(256.0)[torch.randperm(256)]
    with mock.patch.object(selection, "sepin", return_value=told):
        run_program("selection.py", folder)
    found = json.loads((folder / "selection.json").read_text())
    assert [found[f"sepin_{k}"] for k in (1, 10, 100, "all")] == [255, 250.5, 205.5, 127.5]


def test_a_run_without_labels_has_sepin_alone(tiny, tmp_path, capsys):
    run_program(f"simclr.py {tiny} --epochs 1 --dataset unlabelled --out", tmp_path / "run")
    run_program("selection.py", tmp_path / "run")
    found = json.loads((tmp_path / "run" / "selection.json").read_text())
    assert {*found} == {"sepin_1", "sepin_10", "sepin_100", "sepin_all"}


# ------------------------------------------------------------------------------------------- words
def test_words_are_told_apart_as_one_reads_them():
    assert words.split("A half-disc, the child's; Left!") == [
        "a",
        "half-disc",
        "the",
        "child's",
        "left",
    ]


def test_words_compares_images_with_class_names():
    y = torch.tensor([0, 0, 2, 2, 5, 5])
    v = F.one_hot(torch.tensor([0, 0, 1, 1, 2, 2])).float()  # a dimension for each class
    names = {"": "ant bee cow doe elk fox".split()}
    found = words.nameable(v, ["ant", "cow", "fox"], {"": y}, names)
    assert found["nameable"] == 100


OF_EACH_CLASS = torch.tensor([0, 0, 1, 1, 2, 3])
CLASSES_SAID = {"": ["red star", "ring", "plus", "night"]}


def nameable_by(said):
    """The numbers where a dimension for each class has these words."""
    return words.nameable(
        torch.eye(4)[OF_EACH_CLASS], said.split(), {"": OF_EACH_CLASS}, CLASSES_SAID
    )


def test_a_word_of_its_class_names_it():
    assert nameable_by("star ring on night")["nameable"] == 75


def test_chance_is_the_other_dimensions_images():
    none_own = dict(nameable=0, nameable_chance=25, nameable_top=0, nameable_top_chance=25)
    assert nameable_by("ring star on plus") == none_own


def test_a_dimension_without_words_is_not_nameable():
    found = words.nameable(torch.eye(2), ["", "b"], {"": torch.arange(2)}, {"": ["a", "b"]})
    assert (found["nameable"], found["nameable_chance"]) == (50, 0)


def test_dead_dimensions_are_not_counted():
    v = torch.eye(4)[OF_EACH_CLASS]
    v = torch.cat([v[:, :1], torch.zeros(6, 1), -v[:, 1:2], v[:, 2:]], 1)  # negative ones are dead
    said = "star dead dead plus on".split()
    found = words.nameable(v, said, {"": OF_EACH_CLASS}, CLASSES_SAID)
    assert found["nameable"] == pytest.approx(200 / 3)
    assert found["nameable_chance"] == 0


@pytest.mark.parametrize("kind, said", [("", ["star", "ring"]), ("background_", ["sea", "sky"])])
def test_a_word_names_an_object_or_a_background(kind, said):
    labels = {"": torch.tensor([0, 1, 0, 1]), "background_": torch.tensor([0, 0, 1, 1])}
    names = {"": ["star", "ring"], "background_": ["sea", "sky"]}
    v = torch.eye(2)[labels[kind]]
    assert words.nameable(v, said, labels, names)["nameable"] == 100


def test_the_strongest_twenty_images_are_asked_apart():
    y = torch.tensor([0] * 30 + [1] * 20)
    v = torch.full((50, 3), 1e-3)
    v[:30, 0] = 0.1  # most images are of the first class, the strongest of the second
    v[30:, 0] = 1.0
    v[:, 2] = 1.0
    v[0, 0] = 10.0  # but for the very strongest
    v[30:] *= 0.01  # which changes no direction
    found = words.nameable(v, ["ring", "no", "no"], {"": y}, {"": ["star", "ring"]})
    assert found["nameable"] == 0
    assert found["nameable_top"] == pytest.approx(100 / 3)


def test_nothing_is_nameable_without_labels():
    assert words.nameable(torch.eye(3), ["a", "b", "c"], {}, {}) == {}


def test_a_words_activations_are_its_captions_mean():
    t = torch.rand(60, 5)
    draw = np.random.default_rng(0)
    captions = [" ".join(draw.choice([*"abcdef"], 2)) for _ in range(60)]
    said, means = words.by_word(t, captions)
    assert said == [*"abcdef"]
    for word, mean in zip(said, means):
        has_word = [word in caption for caption in captions]
        assert torch.allclose(mean, F.normalize(t)[has_word].mean(0))


def test_rare_words_are_not_said():
    said, _ = words.by_word(torch.rand(9, 3), ["often"] * 5 + ["seldom seldom"] * 4)
    assert said == ["often"]


def test_the_strongest_words_come_first():
    means = torch.tensor([[0.1, -1.0], [0.30004, -2.0], [0.2, 0.5]])
    said = words.strongest_words(["a", "b", "c"], means, most=2)
    assert said == [[["b", 0.3], ["c", 0.2]], [["c", 0.5]]]


@pytest.fixture
def worded(runs, tmp_path):
    """A run of mmncl.py with its words."""
    folder = tmp_path / "mmncl"
    shutil.copytree(runs / "mmncl", folder)
    run_program("words.py --classes", ROOT / "assets/classes/shapes.txt", folder)
    return folder


def test_every_dimension_of_a_run_has_words(worded):
    kept = json.loads((worded / "words.json").read_text())
    assert len(kept["words"]) == 256
    assert 0 <= kept["nameable"] <= 100
    assert max(map(len, kept["words"])) == 5


def test_words_name_nothing_where_names_are_unknown(runs, tmp_path):
    folder = shutil.copytree(runs / "mmncl", tmp_path / "mmncl")
    run_program("words.py", folder)
    assert json.loads((folder / "words.json").read_text()).keys() == {"words"}


def test_labels_that_are_words_are_their_names():
    arrays = {"y": np.array(["ring", "ant", "ring"]), "background": np.array([0, 7, 0])}
    labels, names = words.named_labels(arrays, {"": [], "background_": ["sea", "sky"]}, None)
    assert [names[""][i] for i in labels.pop("")] == ["ring", "ant", "ring"]
    assert labels == {}  # of class 7 no name is known


def test_words_and_look_say_the_same(worded):
    config, _ = look.read_run(worded)
    assert config["words"] == json.loads((worded / "words.json").read_text())["words"]


# ----------------------------------------------------------------------------------------- weights
@pytest.fixture(scope="module")
def small_copy(runs, tmp_path_factory):
    new = tmp_path_factory.mktemp("weights") / "bayesncl"
    run_program("weights.py", runs / "bayesncl", new)
    return new


def test_a_copy_has_the_weights_halved(runs, small_copy):
    _, trained = load_run(runs / "bayesncl")
    _, copied = load_run(small_copy)
    for name, value in copied.state_dict().items():
        assert value.equal(trained.state_dict()[name].half().to(value.dtype)), name


def test_a_copy_is_a_quarter_of_the_run(runs, small_copy):
    whole = (runs / "bayesncl" / "checkpoint.pt").stat().st_size
    assert (small_copy / "checkpoint.pt").stat().st_size < 0.3 * whole


def test_a_copy_is_evaluated_like_the_run(runs, small_copy):
    of_run = records(runs / "bayesncl")[-1]
    assert evaluated(small_copy)["act"] == pytest.approx(of_run["act"], rel=0.02)


def test_a_copy_does_not_replace_a_folder(runs, small_copy):
    assert "is there already" in refusal("weights.py", runs / "bayesncl", small_copy)


def test_an_unfinished_run_is_not_copied(tmp_path):
    folder = write_toy_run(tmp_path)
    (folder / "backbone.pt").unlink()
    assert "has not finished" in refusal("weights.py", folder, tmp_path / "new")


# --------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    "command, message",
    {
        "robustness.py .": "is not a run of an image method",
        "finetune.py .": "is not a run",
        "finetune.py {ncl} --labels 1.1": "1.1 is not between",
        "finetune.py {ncl} --labels 0": "0 is not between",
        "finetune.py {ncl} --lr 1 2": "--lr has 2 values",
        "selection.py .": "is not a run of an image method",
        "words.py .": "not the folder of a run",
        "words.py {ncl}": "no text.npz of a run",
        "words.py {mmncl} --classes {ncl}/metrics.jsonl": "4 classes; there is a class 9",
        "decode.py . --size 0": "0 is not between 1 and",
        "decode.py . --size 8 --test-share 1": "1 is not between",
        "decode.py nowhere --size 8": "nowhere is not a folder",
    }.items(),
)
def test_what_a_tool_cannot_use_is_refused(runs, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    before = sorted(runs.rglob("*"))
    assert message in refusal(command.format(ncl=runs / "ncl", mmncl=runs / "mmncl"))
    assert sorted(runs.rglob("*")) == before


def test_weights_that_half_precision_lacks_are_refused():
    with pytest.raises(common.BadInput, match="w is too large for half precision"):
        weights.halved({"w": torch.tensor([1e6])})


def test_captions_of_other_images_are_refused(runs, tmp_path):
    folder = tmp_path / "mmncl"
    shutil.copytree(runs / "mmncl", folder)
    kept = dict(np.load(folder / "text.npz"))
    np.savez(folder / "text.npz", z=kept["z"][1:], captions=kept["captions"][1:])
    assert "99 captions and 99 embeddings of 100 images" in refusal("words.py", folder)
