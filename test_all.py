"""Every test, in the order of the files: common.py, simclr.py, ncl.py, bayesncl.py, sparsehead.py,
simsiam.py, sparse_coding.py, then the programs as a user runs them.

    python -m pytest test_all.py                  the suite, a few minutes; TestGate trains until a number is reached
    python -m pytest test_all.py -m slow          other seeds, speed against a peer
    python -m pytest test_all.py -k "not Gate"    without the trainings

Truth comes from closed forms, from loops written off the equation, and from torchvision's own operators.
"""
import contextlib
import copy
import functools
import hashlib
import io
import itertools
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torchvision.transforms.v2 import functional as TF

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "results"))

import bayesncl
import common
import ncl
import report
import simclr
import simsiam
import sparse_coding as sc
import sparsehead
import study

SHAPES_SHA = "17e90be89864656a"
METHODS = {"simclr": simclr, "ncl": ncl, "bayesncl": bayesncl, "sparsehead": sparsehead, "simsiam": simsiam}
PROGRAMS = {f"{name}.py": module for name, module in METHODS.items()} | {"sparse_coding.py": sc}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def program(*argv, cwd=HERE, ok=True):
    """Run a script of this folder as a user would; with ok=False it must end in one line on stderr and exit code 2."""
    name, *rest = shlex.split(argv[0]) if len(argv) == 1 else argv
    done = subprocess.run([sys.executable, str(HERE / name), *map(str, rest)], cwd=cwd, capture_output=True, text=True)
    if ok:
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, (done.returncode, done.stderr)
    return done.stderr


def inside(command, *more):
    """The same in this process, which saves the seconds that importing torch takes."""
    name, *argv = [*shlex.split(command), *map(str, more)]
    common.launch(lambda: PROGRAMS[name].main(argv))


def refused(command, *more):
    """The line with which a command is refused, run in this process."""
    errors = io.StringIO()
    with pytest.raises(SystemExit) as stop, contextlib.redirect_stderr(errors):
        inside(command, *more)
    assert stop.value.code == 2 and errors.getvalue().count("\n") == 1, errors.getvalue()
    return errors.getvalue()


def side_by_side(*commands):
    """Run scripts at the same time, a thread each, which on two cores takes less time than one after the other."""
    running = [subprocess.Popen([sys.executable, *map(str, command)], cwd=HERE, env=os.environ | {"OMP_NUM_THREADS": "1"}) for command in commands]
    assert [process.wait() for process in running] == [0] * len(running)


def final(folder):
    return json.loads((Path(folder) / "metrics.jsonl").read_text().splitlines()[-1])


# ------------------------------------------------------------------------------------------------------- common.py: data
def test_shapes_are_the_same_bytes_everywhere():
    data = common.shapes()
    assert data["x_train"].shape == (5000, 3, 32, 32) and data["x_train"].dtype == np.uint8
    assert hashlib.sha256(data["x_train"].tobytes() + data["x_test"].tobytes()).hexdigest()[:16] == SHAPES_SHA


def test_shapes_classes_are_balanced_and_backgrounds_are_not():
    data = common.shapes()
    assert (np.bincount(data["y_train"]) == 500).all() and (np.bincount(data["y_test"]) == 100).all()
    share = np.bincount(data["background_train"]) / 5000
    assert np.allclose(share, list(common.BACKGROUNDS.values()), atol=0.02)
    joint = np.histogram2d(data["y_train"], data["background_train"], (10, 5))[0] / 5000  # object and background are independent
    assert np.abs(joint - 0.1 * share).max() < 0.01


def arrays(n=20, classes=4, size=8, seed=0):
    random = np.random.default_rng(seed)
    x = lambda m: random.integers(0, 256, (m, size, size, 3), dtype=np.uint8)
    return {"x_train": x(n), "y_train": np.arange(n) % classes, "x_test": x(8), "y_test": np.arange(8) % classes}


def nchw(x):
    return x.transpose(0, 3, 1, 2)


def test_every_form_of_arrays_loads(tmp_path):
    a = arrays()
    np.savez(tmp_path / "keras.npz", **a)
    np.savez(tmp_path / "torch.npz", **a | {"x_train": nchw(a["x_train"]), "x_test": nchw(a["x_test"])})
    np.savez_compressed(tmp_path / "medmnist.npz", train_images=a["x_train"], train_labels=a["y_train"][:, None].astype(np.uint8),
                        val_images=a["x_test"], val_labels=a["y_test"], test_images=a["x_test"], test_labels=a["y_test"][:, None])
    (tmp_path / "mapped").mkdir()
    for key, value in a.items():
        np.save(tmp_path / "mapped" / f"{key}.npy", value)
    for name in ("keras", "torch", "medmnist", "mapped"):
        data = common.load_data(name, tmp_path)
        assert torch.equal(data.x_train, torch.from_numpy(nchw(a["x_train"]))) and torch.equal(data.x_test, torch.from_numpy(nchw(a["x_test"])))
        assert torch.equal(data.y_train, torch.from_numpy(a["y_train"])) and data.y_test.dtype == torch.int64


def test_grey_and_unlabelled_and_second_labels_load(tmp_path):
    a = arrays()
    np.savez(tmp_path / "grey.npz", x_train=a["x_train"][..., 0], x_test=a["x_test"][..., :1])
    data = common.load_data("grey", tmp_path)
    assert data.x_train.shape == (20, 3, 8, 8) and data.y_train is None
    assert torch.equal(data.x_train[:, 0], data.x_train[:, 2])
    np.savez(tmp_path / "more.npz", **a, x_unlabeled=a["x_train"][:15], background_train=a["y_train"] // 2, background_test=a["y_test"] // 2)
    data = common.load_data("more", tmp_path)
    assert data.background_test.max() == 1 and data.steps(5) == 3  # pre-training sees the 15 unlabelled images


def test_image_folder_is_decoded_once(tmp_path, monkeypatch, capsys):
    for part, count in (("train", 3), ("val", 2)):
        for c in ("cat", "dog"):
            (tmp_path / "pets" / part / c).mkdir(parents=True)
            for i in range(count):
                TF.to_pil_image(torch.full((3, 12 + i, 20), 40 * i + (c == "dog"), dtype=torch.uint8)).save(tmp_path / "pets" / part / c / f"{i}.png")
    data = common.load_data("pets", tmp_path, image_size=8)
    assert data.x_train.shape == (6, 3, 8, 8) and data.y_train.tolist() == [0, 0, 0, 1, 1, 1] and data.x_test.shape == (4, 3, 8, 8)
    assert data.x_train[5].unique().item() == 81 and "6/6" in capsys.readouterr().err
    (tmp_path / "pets" / "train" / "cat" / "0.png").write_bytes(b"no image")
    assert torch.equal(common.load_data("pets", tmp_path, image_size=8).x_train, data.x_train)  # from the cache
    with pytest.raises(common.BadInput, match="0.png cannot be read as an image .*--skip-unreadable"):
        common.load_data("pets", tmp_path, image_size=16)
    data = common.load_data("pets", tmp_path, image_size=16, skip_unreadable=True)
    assert data.y_train.tolist() == [0, 0, 1, 1, 1] and data.x_train[:, 0, 0, 0].tolist() == [40, 80, 1, 41, 81] and data.x_test.shape == (4, 3, 16, 16)
    assert "1 of 6 images cannot be read and are left out" in capsys.readouterr().err
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda *args, **kwargs: 1 / 0)  # interrupted after the bad images were taken out
    with pytest.raises(ZeroDivisionError):
        common.load_data("pets", tmp_path, image_size=12, skip_unreadable=True)
    monkeypatch.setattr(Path, "unlink", unlink)
    assert common.load_data("pets", tmp_path, image_size=12, skip_unreadable=True).y_train.tolist() == [0, 0, 1, 1, 1]


def test_interrupted_decoding_goes_on_where_it_was(tmp_path, monkeypatch):
    for i in range(10):
        for part in ("train", "test"):
            (tmp_path / part / "c").mkdir(parents=True, exist_ok=True)
            TF.to_pil_image(torch.full((3, 8, 8), 20 * i, dtype=torch.uint8)).save(tmp_path / part / "c" / f"{i}.png")
    load, seen = torchvision.datasets.folder.pil_loader, []

    def loader(path):
        seen.append(Path(path).stem)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return load(path)

    monkeypatch.setattr(torchvision.datasets.folder, "pil_loader", loader)
    with pytest.raises(KeyboardInterrupt):
        common.decode_folder(tmp_path, 8, at_once=3)
    assert not (tmp_path / "8px").exists()
    first, seen[:] = seen[:], [""] * 6
    done = common.decode_folder(tmp_path, 8, at_once=3)
    assert {"0", "1", "2"} < set(first) and sorted(seen[6:]) == sorted([*map(str, range(3, 10)), *map(str, range(10))])
    assert np.load(done / "x_train.npy")[:, 0, 0, 0].tolist() == [20 * i for i in range(10)]
    assert sorted(p.name for p in done.iterdir()) == ["x_test.npy", "x_train.npy", "y_test.npy", "y_train.npy"]
    (tmp_path / "9px.part").mkdir()
    (tmp_path / "9px.part" / "position.json").write_text('{"files": "others", "train": 9, "test": 0}')
    seen.clear(), seen.extend([""] * 6)
    common.decode_folder(tmp_path, 9, at_once=3)
    assert len(seen) == 26  # of another list of files: from the start


@pytest.mark.parametrize("name", list(common.DOWNLOADS))
def test_torchvision_sets_are_cached(tmp_path, monkeypatch, name):
    calls = []

    class Fake:  # the attributes of torchvision's class, without its download
        def __init__(self, root, download, train=None, split=None):
            calls.append(train if split is None else split)
            a, part = arrays(), "test" if train is False or split == "test" else "train"
            x, y = a[f"x_{part}"], a[f"y_{part}"]
            self.data = x if name.startswith("cifar") else nchw(x)
            vars(self).update({"targets": y.tolist()} if name.startswith("cifar") else {"labels": y})

    monkeypatch.setattr(torchvision.datasets, common.DOWNLOADS[name], Fake)
    data = common.load_data(name, tmp_path)
    assert torch.equal(data.x_train, torch.from_numpy(nchw(arrays()["x_train"]))) and data.y_test.tolist() == arrays()["y_test"].tolist()
    assert (data.x_unlabeled is not None) == (name == "stl10") == ("train+unlabeled" in calls)
    made = len(calls)
    common.load_data(name, tmp_path)
    assert len(calls) == made


def test_a_blocked_download_says_so(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no route\nto host")
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", refuse)
    with pytest.raises(common.BadInput, match=r"could not be downloaded \(no route to host\); put it at .*cifar10.npz by hand"):
        common.load_data("cifar10", tmp_path)


def without(key):
    return lambda a: a.pop(key)


def change(key, function):
    return lambda a: a.update({key: function(a[key])})


MALFORMED = {
    "no x_test": without("x_test"),
    "y_train and y_test go together": without("y_test"),
    "x_train is float32": change("x_train", lambda x: x.astype(np.float32)),
    "x_train is float64": change("x_train", lambda x: np.full(x.shape, np.nan)),
    r"x_train has shape \(20, 8, 8, 2\)": change("x_train", lambda x: x[..., :2]),
    r"x_train has shape \(20, 192\)": change("x_train", lambda x: x.reshape(20, -1)),
    r"x_train has shape \(0,": change("x_train", lambda x: x[:0]),
    r"x_test has shape \(1,": change("x_test", lambda x: x[:1]),
    r"y_train is int64 of shape \(19,\)": change("y_train", lambda y: y[:-1]),
    r"y_train is float64": change("y_train", lambda y: y + 0.5),
    r"y_train is int64 of shape \(20,\)": change("y_train", lambda y: y - 1),
    "y_test has classes that y_train has not: 9": change("y_test", lambda y: np.where(y == 3, 9, y)),
    "cannot be read as plain numpy arrays": change("y_train", lambda y: np.array([{}] * 20, dtype=object)),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_malformed_arrays_are_refused_in_one_line(tmp_path, message):
    a = arrays()
    MALFORMED[message](a)
    np.savez(tmp_path / "bad.npz", **a)
    with pytest.raises(common.BadInput, match=message) as error:
        common.load_data("bad", tmp_path)
    assert "\n" not in str(error.value)


def test_labels_are_numbered_without_gaps(tmp_path):
    a = arrays()
    np.savez(tmp_path / "gaps.npz", **a | {"y_train": a["y_train"] * 1_000_000 + 7, "y_test": a["y_test"] * 1_000_000 + 7})
    data = common.load_data("gaps", tmp_path)
    assert data.y_train.tolist() == a["y_train"].tolist() and data.y_test.tolist() == a["y_test"].tolist()


def test_files_that_are_no_data_are_refused(tmp_path):
    np.save(tmp_path / "one.npy", arrays()["x_train"])
    (tmp_path / "one.npy").rename(tmp_path / "single.npz")
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "cut.npz", **arrays())
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:3000])
    (tmp_path / "mapped").mkdir()
    (tmp_path / "mapped" / "x_train.npy").write_text("hello")
    (tmp_path / "empty" / "train").mkdir(parents=True)
    for name in ("text", "cut", "mapped", "empty", "single"):
        with pytest.raises(common.BadInput) as error:
            common.load_data(name, tmp_path)
        assert "\n" not in str(error.value)
    with pytest.raises(common.BadInput, match="did you mean cifar10"):
        common.load_data("cifar1O", tmp_path)


def test_limit_is_balanced_and_first():
    data = common.load_data("shapes", limit=103)
    whole = common.load_data("shapes")
    assert set(data.y_train.bincount().tolist()) == {10, 11} and torch.equal(data.x_test, whole.x_test)
    zeros = (whole.y_train == 0).nonzero()[: int((data.y_train == 0).sum()), 0]
    assert torch.equal(data.x_train[data.y_train == 0], whole.x_train[zeros])
    with pytest.raises(common.BadInput, match="--limit 5001"):
        common.load_data("shapes", limit=5001)


def test_batches_are_a_seeded_pass():
    data = common.Data("numbers", torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    passes = {(seed, epoch): torch.cat(list(data.batches(4, seed, epoch))).flatten().tolist() for seed in (0, 1) for epoch in (1, 2)}
    assert all(len(set(p)) == 8 == len(p) for p in passes.values())
    assert len({tuple(p) for p in passes.values()}) == 4 and passes[0, 1] == torch.cat(list(data.batches(4, 0, 1))).flatten().tolist()


def test_processes_share_each_batch(monkeypatch):
    data = common.Data("numbers", torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    whole = list(data.batches(4, 0, 1))
    shares = []
    for rank in (0, 1):
        monkeypatch.setattr(common, "world", lambda: 2), monkeypatch.setattr(common, "rank", lambda: rank)
        shares.append(list(data.batches(4, 0, 1)))
    assert all(torch.equal(torch.cat(parts), batch) for batch, *parts in zip(whole, *shares)) and len(shares[1][0]) == 2
    with pytest.raises(common.BadInput, match="--batch-size 5 cannot be shared equally among 2 processes"):
        data.steps(5)


def test_batches_are_read_ahead_in_order():
    started = []

    def slow(i):
        started.append(i)
        if i == 7:
            raise OSError("a broken disk")
        return i * i

    found = common.ahead(slow, range(10))
    assert next(found) == 0
    for _ in range(100):
        if len(started) >= 4:
            break
        time.sleep(0.01)
    assert started == [0, 1, 2, 3]  # three further than what was asked for
    assert [next(found) for _ in range(6)] == [1, 4, 9, 16, 25, 36]
    with pytest.raises(OSError, match="a broken disk"):
        next(found)


@pytest.fixture
def large_map(tmp_path):
    """A data set `large` of as many 512-pixel images as fill the given number of GB: a sparse file that takes no space."""
    def make(gigabytes):
        (tmp_path / "large").mkdir()
        n = math.ceil(gigabytes * 2**30 / (512 * 512 * 3))
        np.lib.format.open_memmap(tmp_path / "large" / "x_train.npy", "w+", np.uint8, (n, 512, 512, 3))
        np.save(tmp_path / "large" / "x_test.npy", np.random.default_rng(0).integers(0, 256, (16, 32, 32, 3), np.uint8))
        return tmp_path
    return make


@pytest.mark.skipif(math.isnan(common.peak_memory()), reason="reads the peak memory where Linux keeps it")
def test_a_pass_over_a_map_does_not_fill_the_memory(large_map):
    data = common.load_data("large", large_map(1))
    common.peak_memory(reset=True)
    before = common.peak_memory()
    assert sum(len(images) for images in data.batches(20, 0, 1)) >= 1360
    assert common.peak_memory() - before < 250  # MB: a few batches of 16 MB


# ------------------------------------------------------------------------------------------------------ common.py: views
N = 300  # random parameters per operator


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("height,width,size", [(32, 32, 32), (64, 64, 32), (96, 80, 32), (20, 32, 48)])
def test_resized_crop_is_torchvisions(height, width, size, kind):
    x = torch.rand(N, 3, height, width)
    boxes = common.random_boxes(N, height, width, 0.08, "cpu")
    flip = torch.rand(N) < 0.5
    ours = common.resized_crop(x, *boxes, size, flip, kind)
    for i in range(N):
        theirs = TF.resized_crop(x[i], *[int(b[i]) for b in boxes], [size, size], torchvision.transforms.InterpolationMode(kind), antialias=True)
        assert (ours[i] - (TF.horizontal_flip(theirs) if flip[i] else theirs)).abs().max() < 1e-5


@pytest.mark.parametrize("ours,theirs,low,high", [
    (common.adjust_brightness, TF.adjust_brightness, 0, 2), (common.adjust_contrast, TF.adjust_contrast, 0, 2),
    (common.adjust_saturation, TF.adjust_saturation, 0, 2), (common.adjust_hue, TF.adjust_hue, -0.5, 0.5)])
def test_colour_is_torchvisions(ours, theirs, low, high):
    x = torch.rand(N, 3, 8, 8)
    x[:50, 1] = x[:50, 0]  # two equal channels
    x[50:60] = x[50:60, :1]  # grey
    x[60:70] = (x[60:70] > 0.5).float()  # saturated
    factor = torch.empty(N).uniform_(low, high)
    result = ours(x, factor)
    for i in range(N):
        assert (result[i] - theirs(x[i], factor[i].item())).abs().max() < 1e-5
    neutral = torch.zeros(N) if ours is common.adjust_hue else torch.ones(N)
    assert (ours(x, neutral) - x).abs().max() < 1e-6


def test_grayscale_and_blur_are_torchvisions():
    x = torch.rand(50, 3, 32, 32)
    assert (common.grayscale(x) - TF.rgb_to_grayscale(x)).abs().max() < 1e-6
    sigma = torch.empty(50).uniform_(0.1, 2)
    for kernel in (3, 9, 13):
        ours = common.gaussian_blur(x, sigma, kernel)
        for i in range(50):
            assert (ours[i] - TF.gaussian_blur(x[i], kernel, sigma[i].item())).abs().max() < 1e-5
    wide = common.gaussian_blur(x, torch.full((50,), 2.0), 41)  # 13 taps are enough for the largest σ
    assert (common.gaussian_blur(x, torch.full((50,), 2.0)) - wide).abs().max() < 2e-3


@pytest.mark.parametrize("height,width,min_scale", [(32, 32, 0.08), (32, 50, 0.5), (32, 90, 0.5)])
def test_boxes_are_distributed_like_torchvisions(height, width, min_scale):
    n = 4000
    ours = torch.stack(common.random_boxes(n, height, width, min_scale, "cpu"), 1)
    get = torchvision.transforms.RandomResizedCrop.get_params
    theirs = torch.tensor([get(torch.empty(3, height, width), (min_scale, 1.0), (3 / 4, 4 / 3)) for _ in range(n)], dtype=torch.float)
    top, left, h, w = ours.unbind(1)
    assert (top >= 0).all() and (left >= 0).all() and (top + h <= height).all() and (left + w <= width).all() and (h >= 1).all()
    error = (ours.var(0) + theirs.var(0)).div(n).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * error + 1e-3).all()
    assert torch.allclose(ours.std(0), theirs.std(0), rtol=0.1, atol=1e-3)


@pytest.mark.parametrize("whole", [False, True])
def test_colour_operators_come_in_every_order(monkeypatch, whole):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: whole)  # a GPU and compiled code draw an order per image
    operators = (lambda x, _: 2 * x, lambda x, _: x + 1, lambda x, _: 3 * x, lambda x, _: x + 5)
    monkeypatch.setattr(common, "ADJUST", operators)
    outcomes = []
    for order in itertools.permutations(operators):
        value = 1.0
        for operator in order:
            value = operator(value, None)
        outcomes.append(value)
    found = common.augment(torch.full((1600, 3, 8, 8), 255, dtype=torch.uint8), 32, blur=0)[:, 0, 0, 0]
    nearest = (found[:, None] - torch.tensor(outcomes)).abs().min(1)
    assert nearest.values.max() < 0.02  # the luma of white is 0.9999
    assert len(nearest.indices.unique()) >= (len(set(outcomes)) if whole else 6)
    assert whole or found.round().view(-1, 64).std(1).max() == 0  # a CPU draws one per 64 images


@pytest.mark.parametrize("whole", [False, True])
def test_blur_and_colour_happen_at_their_rates(monkeypatch, whole):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: whole)
    colour = torch.rand(2000, 3, 1, 1).mul(255).byte().expand(-1, -1, 8, 8)
    for gray in (0.2, 0.6):
        changed = ((common.augment(colour, 8, gray=gray, blur=0) - colour / 255.0).abs().amax((1, 2, 3)) > 1e-3).float().mean()
        assert abs(changed - (1 - (1 - gray) * 0.2)) < 0.05  # jittered with 0.8 or grey
    x = torch.full((2000, 3, 16, 16), 255, dtype=torch.uint8)
    x[..., ::2] = 200
    stripes = common.augment(x, 16, 0.999999, 0, blur=0.4)[:, 0, 8].std(1) / (55 / 510)
    assert abs((stripes < 0.65).float().mean() - 0.4 * (2 - 0.48) / 1.9) < 0.04  # what a σ above 0.48 leaves of them


def test_views_are_torchvisions_chain(monkeypatch):
    """Every operator of a view in its order, colour before and after the crop, with the parameters that were drawn."""
    x = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8)
    drawn, real = {}, {name: getattr(common, name) for name in ("resized_crop", "gaussian_blur")}
    monkeypatch.setattr(torch, "randperm", lambda n: torch.arange(n))  # brightness, contrast, saturation, hue
    factors = []
    monkeypatch.setattr(common, "ADJUST", [lambda x, f, call=call: factors.append(f) or call(x, f) for call in common.ADJUST])
    monkeypatch.setattr(common, "resized_crop", lambda *a: drawn.update(crop=a[1:]) or real["resized_crop"](*a))
    for colour_first in (False, True):
        factors.clear()
        ours = common.augment(x, 24, gray=0.0, blur=0, colour_first=colour_first)
        *boxes, size, flip, kind = drawn["crop"]
        for i in range(40):
            def colour(v):
                for f, call in zip(factors, (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)):
                    v = call(v, f[i].item())
                return v

            def crop(v):
                v = TF.resized_crop(v, *[int(b[i]) for b in boxes], [24, 24], torchvision.transforms.InterpolationMode(kind), antialias=True).clamp(0, 1)
                return TF.horizontal_flip(v) if flip[i] else v

            plain = x[i].float() / 255
            assert kind == "bicubic" and (ours[i] - (crop(colour(plain)) if colour_first else colour(crop(plain)))).abs().max() < 1e-5


def test_views_differ_between_samples_and_between_each_other():
    x = common.load_data("shapes").x_train[:1].expand(64, -1, -1, -1)
    v1, v2 = common.two_views(x, 32)
    assert v1.shape == (64, 3, 32, 32) and v1.dtype == torch.float32 and common.two_views(x, 8)[0].shape[-1] == 8
    assert torch.pdist(torch.cat([v1, v2]).flatten(1)).min() > 0
    assert -2.01 <= v1.min() and v1.max() <= 2.01


def test_views_without_randomness_are_the_image():
    x = common.load_data("shapes").x_train[:200]
    whole = common.augment(x, 32, min_scale=0.999999, jitter=0, blur=0)  # what is left: flip and grey
    plain = x.float() / 255
    candidates = torch.stack([c(f(plain)) for f in (lambda t: t, lambda t: t.flip(3)) for c in (lambda t: t, lambda t: common.grayscale(t).expand_as(t))])
    choice = (candidates - whole).abs().amax((2, 3, 4)).min(0)
    assert choice.values.max() < 1e-5 and set(choice.indices.tolist()) == {0, 1, 2, 3}


def test_eval_view_is_the_central_square():
    x = torch.randint(0, 256, (4, 3, 40, 60), dtype=torch.uint8)
    expected = TF.resize(TF.center_crop(x.float() / 255, [40, 40]), [32, 32], antialias=True)
    assert (common.eval_view(x, 32) - (expected - 0.5) / 0.25).abs().max() < 1e-4
    assert torch.equal(common.eval_view(x[..., :40], 40), (x[..., :40].float() / 255 - 0.5) / 0.25)
    assert torch.equal(common.eval_view(x, 35), (x[..., 2:37, 12:47].float() / 255 - 0.5) / 0.25)  # as 224 of ImageNet's 256


# ----------------------------------------------------------------------------------- common.py: network and optimisation
def test_stem_and_feature_maps():
    for arch, d, millions in (("resnet8", 64, 0.08), ("resnet20", 64, 0.27), ("resnet18", 512, 11.17), ("resnet50", 2048, 23.5)):
        net, width = common.resnet(arch, 32)
        assert width == d and net(torch.zeros(2, 3, 32, 32)).shape == (2, d)
        assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, rel=0.05)
    small, medium, large = (common.resnet("resnet18", size)[0] for size in (32, 64, 224))
    assert small.conv1.stride == (1, 1) and small.conv1.padding == (1, 1) and isinstance(small.maxpool, nn.Identity)
    assert medium.conv1.stride == (1, 1) and medium.maxpool.stride == 2  # STL-10 and Tiny-ImageNet
    assert large.conv1.kernel_size == (7, 7) and large.maxpool.stride == 2
    assert small.layer1(small.conv1(torch.zeros(1, 3, 32, 32))).shape[-1] == 32
    for arch in ("resnet8", "resnet18", "resnet50"):  # every residual branch ends in a norm: at scale 0 it adds nothing
        for zero in (True, False):
            blocks = [m for m in common.resnet(arch, 32, zero_init_residual=zero)[0].modules() if hasattr(m, "downsample")]
            assert len(blocks) > 2 and all((getattr(m, "bn3", m.bn2).weight == 0).all() == zero for m in blocks)


def test_backbone_loads_into_plain_torchvision(tmp_path):
    for size in (32, 224):
        torch.save(common.resnet("resnet18", size)[0].state_dict(), tmp_path / "backbone.pt")
        net = torchvision.models.resnet18()
        net.fc = nn.Identity()
        if size <= 96:
            net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        net.load_state_dict(torch.load(tmp_path / "backbone.pt", weights_only=True), strict=True)


def test_lars_is_the_published_update():
    w, b = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))
    optimizer = common.LARS([w, b], lr=0.4, weight_decay=1e-2, momentum=0.9, trust=0.02)
    w0, b0, vw, vb = w.detach().clone(), b.detach().clone(), torch.zeros(4, 3), torch.zeros(4)
    for scale in (1.0, 1e-4, 5.0):  # the second clips: a tiny gradient would ask for a huge step
        w.grad, b.grad = scale * torch.randn(4, 3), scale * torch.randn(4)
        rate = min(0.02 * w0.norm() / (w.grad.norm() + 1e-2 * w0.norm()), 0.4)
        vw = 0.9 * vw + rate / 0.4 * (w.grad + 1e-2 * w0)
        vb = 0.9 * vb + b.grad
        w0, b0 = w0 - 0.4 * vw, b0 - 0.4 * vb
        optimizer.step()
        assert torch.allclose(w, w0, atol=1e-6) and torch.allclose(b, b0, atol=1e-6)
    w.grad, b.grad = torch.full((4, 3), 1e-4), torch.zeros(4)  # SimCLR's and BYOL's: not clipped
    before, rate = w.detach().clone(), 1e-3 * w.norm() / w.grad.norm()
    common.LARS([w], lr=0.4, weight_decay=0, trust=1e-3, clip=False).step()
    assert torch.allclose(w, before - 0.4 * rate * w.grad, rtol=1e-4)


def test_lars_leaves_a_zero_weight_to_plain_steps():
    w = nn.Parameter(torch.zeros(2, 2))
    w.grad = torch.ones(2, 2)
    common.LARS([w], lr=0.1).step()
    assert torch.allclose(w, torch.full((2, 2), -0.1))


PUBLISHED = {  # program and data set: what the papers and the authors' code say
    ("simclr", "cifar10 cifar100"): dict(
        arch="resnet18", image_size=32, epochs=200, batch_size=256, optimizer="lars", lr=0.4, weight_decay=1e-4, warmup=10, temperature=0.2, head="mlp",
        head_hidden=2048, head_out=256, min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic"),
    ("ncl", "cifar10 cifar100"): dict(activation="rep_relu", lr=0.4, epochs=200, blur=0.5, head_hidden=2048, head_out=256, topk=None),
    ("bayesncl", "cifar10 cifar100"): dict(activation="rep_relu", gate="ste", gate_layers=2, gate_hidden=2048, gate_lr=0.1, gate_temperature=1, prior=0.8,
                                           kl_weight=3e-5, lr=0.4, epochs=200, blur=0.5, no_detach=False),
    ("simclr", "imagenet100"): dict(arch="resnet18", image_size=224, epochs=100, batch_size=128, optimizer="lars", lr=0.3 * 128 / 256, warmup=10, temperature=0.2,
                                    weight_decay=1e-4, head_hidden=16384, head_out=2048, min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic"),
    ("ncl", "imagenet100"): dict(activation="relu", lr=0.15, epochs=100, head_hidden=16384, head_out=2048),
    ("bayesncl", "imagenet100"): dict(activation="relu", lr=0.15, gate_lr=0.1, gate_hidden=16384, head_hidden=16384, head_out=2048, epochs=100, warmup=10),
    ("sparsehead", "cifar10 cifar100"): dict(
        arch="resnet18", image_size=32, epochs=1000, batch_size=512, optimizer="adam", lr=3e-3, weight_decay=1e-6, schedule="step", temperature=0.5,
        momentum=0.99, sparse_weight=1e-4, barlow_weight=5e-3, head="mlp", head_hidden=1024, head_out=64, min_scale=0.2, jitter=0.4, gray=0.1, blur=0,
        crop="bicubic", order="colour-crop"),
    ("sparsehead", "stl10"): dict(image_size=64, epochs=2000, lr=2e-3, head_out=128, head_hidden=1024, jitter=0.4, schedule="step", weight_decay=1e-6),
    ("sparsehead", "tiny-imagenet-200"): dict(image_size=64, epochs=1000, lr=2e-3, head_out=128, head_hidden=1024, gray=0.1, schedule="step"),
    ("sparsehead --base simclr", "imagenet imagenet100"): dict(arch="resnet50", epochs=1000, batch_size=4096, optimizer="lars", lr=0.3 * 16, weight_decay=1e-6,
                                                               temperature=0.5, head_hidden=2048, head_out=128, jitter=0.8, warmup=10, schedule="cosine"),
    ("sparsehead --base byol", "imagenet imagenet100"): dict(epochs=1000, batch_size=4096, optimizer="lars", lr=0.2 * 16, weight_decay=1.5e-6, momentum=0.996,
                                                             head_hidden=4096, head_out=256, jitter=0.4, warmup=10),
    ("sparsehead --base barlow", "imagenet imagenet100"): dict(epochs=1000, batch_size=2048, optimizer="lars", lr=0.2 * 8, bias_lr=0.0048 * 8,
                                                               weight_decay=1.5e-6, head_hidden=8192, head_out=8192, warmup=10),
    ("simsiam", "cifar10 cifar100"): dict(
        arch="resnet18", image_size=32, epochs=800, batch_size=512, optimizer="sgd", lr=0.03 * 2, weight_decay=5e-4, projector_layers=2, head_out=2048,
        predictor_hidden=512, min_scale=0.2, jitter=0.4, gray=0.2, blur=0, crop="bilinear", zero_init_residual=True),
    ("simsiam", "imagenet"): dict(zero_init_residual=True, arch="resnet50", image_size=224, epochs=100, batch_size=512, lr=0.05 * 2, weight_decay=1e-4, projector_layers=3,
                                  head_out=2048, predictor_hidden=512, jitter=0.4, blur=0.5),
}


@pytest.mark.parametrize("program,names", PUBLISHED)
def test_presets_are_the_published_recipes(program, names):
    for name in names.split():
        method, *flags = program.split()
        presets = sparsehead.presets(flags[1] if flags else "simclr") if method == "sparsehead" else METHODS[method].PRESETS
        args = vars(METHODS[method].parser().parse(presets, [*flags, "--dataset", name]))
        assert {key: args[key] for key in PUBLISHED[program, names]} == pytest.approx(PUBLISHED[program, names])


def test_a_data_set_without_a_preset_gets_the_default_and_any_may_be_named():
    for module in METHODS.values():
        parse = lambda *flags: {k: v for k, v in vars(module.parser().parse(module.PRESETS, flags)).items() if k not in ("dataset", "preset")}
        assert parse("--dataset", "mine") == parse("--dataset", "cifar10", "--preset", "default") != parse("--dataset", "cifar10")
        assert parse("--dataset", "mine", "--preset", "cifar10") == parse("--dataset", "cifar10")


def test_warm_up_is_the_papers_ten_epochs_and_at_most_half_a_run(monkeypatch, tmp_path):
    for epochs, expected in ((3, 1.5), (40, 10)):
        rates = []
        monkeypatch.setattr(torch.optim.lr_scheduler, "LambdaLR", lambda optimizer, factor: rates.append(factor) or pytest.skip)
        with pytest.raises(AttributeError):  # the schedule is caught, and the run with it
            simclr.main(["--preset", "cifar10", "--arch", "resnet8", "--limit", "120", "--batch-size", "10", "--epochs", str(epochs), "--device", "cpu",
                         "--out", str(tmp_path / str(epochs))])
        factors = [rates[0](step) for step in range(12 * epochs)]
        assert factors.index(max(factors)) == 12 * expected and max(factors) == 1 and factors[0] < 0.1


def test_step_decay_is_w_mses():
    steps, epochs = 97, 1000
    at = lambda epoch: sparsehead.step_decay(epoch * steps, epochs, steps, 500)
    assert sparsehead.step_decay(0, epochs, steps, 500) == 1 / 500 and sparsehead.step_decay(249, epochs, steps, 500) == 0.5 and at(6) == 1
    assert [at(949), at(950), at(974), at(975), at(999)] == pytest.approx([1, 0.2, 0.2, 0.04, 0.04])
    short = [sparsehead.step_decay(10 * epoch, 40, 10, 0) for epoch in range(40)]
    assert short == pytest.approx([1] * 30 + [0.2] * 5 + [0.04] * 5)
    for name, images in (("cifar10", 50_000), ("stl10", 105_000), ("tiny-imagenet-200", 100_000)):
        assert round(sparsehead.PRESETS[name]["warmup"] * (images // 512)) == 500


def test_schedule_end_points():
    rate = [common.lr_at(step, 100, 10) for step in range(101)]
    assert rate[0] == 1 / 11 and rate[10] == 1 and rate[55] == pytest.approx(0.5) and rate[100] == pytest.approx(0)
    assert np.allclose(np.diff(rate[:11]), 1 / 11) and (np.diff(rate[10:]) < 0).all() and common.lr_at(0, 100) == 1


# ------------------------------------------------------------------------------------------------- common.py: evaluation
def blobs(n=600, d=20, classes=4, noise=1.0):
    y = torch.arange(n) % classes
    return torch.eye(classes, d)[y] * 3 + noise * torch.randn(n, d), y


def test_probe_separates_what_is_separable_and_nothing_else():
    (x, y), (x_test, y_test) = blobs(noise=0.3), blobs(200, noise=0.3)
    assert common.linear_probe(x, y, x_test, y_test)["lp1"] == 100
    scores = common.linear_probe(torch.randn(600, 20), y, torch.randn(2000, 20), torch.arange(2000) % 4)
    assert abs(scores["lp1"] - 25) < 5 and scores["lp5"] == 100


def test_probe_reaches_the_minimum_of_its_objective():
    """Its accuracy is that of the convex problem's solution, found by plain gradient descent in float64."""
    (x, y), (x_test, y_test) = blobs(noise=1.5), blobs(1000, noise=1.5)
    scores = common.linear_probe(x, y, x_test, y_test)
    mean, std = x.mean(0), x.std(0)
    a, b = ((x - mean) / std).double(), ((x_test - mean) / std).double()
    weight, bias = torch.zeros(20, 4, dtype=torch.double, requires_grad=True), torch.zeros(4, dtype=torch.double, requires_grad=True)
    for _ in range(3000):
        loss = F.cross_entropy(a @ weight + bias, y) + scores["l2"] / 2 * weight.square().sum()
        for p, g in zip((weight, bias), torch.autograd.grad(loss, (weight, bias))):
            p.data -= 0.3 * g
    assert abs(scores["lp1"] - 100 * ((b @ weight + bias).argmax(1) == y_test).double().mean().item()) <= 0.3


def test_probe_of_one_strength_chooses_nothing():
    y = torch.arange(600) % 3
    x = torch.randn(600, 8) + F.one_hot(y, 8)
    chosen = common.linear_probe(x[:500], y[:500], x[500:], y[500:])
    for l2 in (chosen["l2"], 1.0):
        alone = common.linear_probe(x[:500], y[:500], x[500:], y[500:], [l2])
        assert alone["l2"] == l2 and (l2 != chosen["l2"] or alone["lp1"] == pytest.approx(chosen["lp1"], abs=2))


def test_probe_never_chooses_on_the_test_set():
    (x, y), (x_test, y_test) = blobs(noise=2.0), blobs(100, noise=2.0)
    scores = common.linear_probe(x, y, x_test, y_test)
    shuffled = common.linear_probe(x, y, x_test, y_test[torch.randperm(100)])
    assert scores["l2"] == shuffled["l2"] and scores["lp1"] > 60 > 45 > shuffled["lp1"]


def test_knn_is_the_loop():
    (x, y), (x_test, y_test) = blobs(noise=2.0), blobs(50, noise=2.0)
    settings = ((1, None), (5, None), (200, 0.1))
    for (k, temperature), ours in zip(settings, common.knn_accuracy(x, y, x_test, y_test, settings)):
        right = 0
        for query, label in zip(x_test, y_test):
            similarity = F.cosine_similarity(query[None], x)
            votes = torch.zeros(4)
            for j in similarity.argsort(descending=True)[:k]:
                votes[y[j]] += 1 if temperature is None else math.exp(similarity[j] / temperature)
            right += votes.argmax() == label
        assert ours == pytest.approx(100 * right.item() / 50)


def test_dimensions_tell_what_each_one_stands_for():
    e, y, background = torch.randn(60, 8).relu(), torch.arange(60) % 3, torch.arange(60) // 30
    e[:, 2] = 0
    e[:, 5] = (y == 2) * 9.0  # the strongest, and pure
    lines = [dict(zip("dimension act mean class cons background_class background_cons".split(), map(float, line.split(","))))
             for line in common.dimensions(e, {"": y, "background_": background}).splitlines()[1:]]
    assert lines[0] | {"mean": 0} == dict(dimension=5, act=pytest.approx(1 / 3, abs=1e-4), mean=0, **{"class": 2}, cons=1, background_class=0, background_cons=0.5)
    assert len(lines) == 7 and all(line["dimension"] != 2 for line in lines) and lines == sorted(lines, key=lambda line: -line["mean"])
    for line in lines:
        on = [i for i in range(60) if e[i, int(line["dimension"])] > 0]
        assert line["act"] == pytest.approx(len(on) / 60, abs=1e-4)
        assert line["background_cons"] == pytest.approx(max(sum(i // 30 == b for i in on) for b in (0, 1)) / len(on), abs=1e-4)
    scores = common.interpretability(e, {"": y})
    assert 100 * np.mean([line["cons"] for line in lines]) == pytest.approx(scores["cons"], abs=0.01)
    weights = [line["act"] for line in lines]
    assert 100 * np.average([line["cons"] for line in lines], weights=weights) == pytest.approx(scores["cons_weighted"], abs=0.02)
    assert common.dimensions(torch.zeros(4, 2), {}) == "dimension,act,mean\n"


def test_consistency_rewards_rare_dimensions_and_the_weighted_one_does_not():
    y = torch.arange(10_000) % 10
    for n, readme in ((1, 100), (10, 27), (100, 15), (1000, 11)):  # dimensions that are active on n images at random say nothing about the class
        drawn = np.random.default_rng(0).multivariate_hypergeometric([1000] * 10, n, 20_000)
        expected = 100 * drawn.max(1).mean() / n  # of the classes of n images the most frequent one's share
        lines = common.dimensions(torch.zeros(10_000, 200).scatter_(0, torch.rand(10_000, 200).argsort(0)[:n], 1.0), {"": y}).splitlines()[1:]
        assert 100 * np.mean([float(line.split(",")[-1]) for line in lines]) == pytest.approx(expected, rel=0.03) and round(expected) == readme
    halves = F.one_hot(torch.arange(1000) % 2, 2).float()  # two halves of all images, five classes each: 20 %
    spoilt = torch.cat([halves, torch.eye(1000)[:, :50]], 1)  # and 50 dimensions that are active on one image each
    before, after = (common.interpretability(e, {"": y[:1000]}) for e in (halves, spoilt))
    assert before["cons"] == before["cons_weighted"] == pytest.approx(20) and after["cons"] > 95
    assert after["cons_weighted"] == pytest.approx(100 * (200 + 50) / (1000 + 50))


def test_the_commit_is_told_where_there_is_one(tmp_path, monkeypatch):
    git = lambda *command: subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *command], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    monkeypatch.setattr(common, "__file__", str(tmp_path / "common.py"))
    assert common.commit() is None
    (tmp_path / "common.py").write_text("1")
    git("init"), git("add", "."), git("commit", "-m", "x")
    assert common.commit() == git("rev-parse", "HEAD")[:10]
    (tmp_path / "common.py").write_text("2")
    assert common.commit() == git("rev-parse", "HEAD")[:10] + "+"


def test_interpretability_is_the_loop():
    n, K, C = 60, 12, 4
    e, y = torch.randn(n, K, dtype=torch.double).relu() * (torch.rand(n, K) < 0.4), torch.arange(n) % C
    e[:, 3] = 0  # a dead dimension
    e[5] = 0  # an empty sample
    ours = common.interpretability(e, {"": y})
    z = torch.stack([row / max(row.norm(), 1e-12) for row in e])
    consistency, entropy, live = [], [], []
    for k in range(K):
        on = [i for i in range(n) if abs(z[i, k]) > 1e-5]
        if on:
            live.append(k)
            consistency.append(max(sum(y[i] == c for i in on) for c in range(C)).item() / len(on))
            p = [sum(z[i, k].abs() for i in range(n) if y[i] == c) for c in range(C)]
            entropy.append(-sum(q / sum(p) * math.log(q / sum(p)) for q in p if q > 0))
    f = [z[:, k] / z[:, k].norm() for k in live]
    correlation = [abs(f[a] @ f[b]) for a in range(len(f)) for b in range(len(f)) if a != b]
    assert ours["live_dims"] == len(live) == K - 1 and ours["live_share"] == (K - 1) / K
    for key, value in {"cons": 100 * np.mean(consistency), "entropy": np.mean(entropy), "corr": np.mean(correlation),
                       "act": np.mean([[abs(v) > 1e-5 for v in row] for row in z])}.items():
        assert ours[key] == pytest.approx(float(value), rel=1e-6)


def test_precision_at_k_is_the_loop():
    n = 60
    e, y = torch.randn(n, 12, dtype=torch.double), torch.arange(n) % 4  # dense: no two neighbours are equally near
    ours, z = common.interpretability(e, {"": y, "other_": y // 2}), F.normalize(e)
    for k in (1, 3, 5, 10):
        precision = []
        for i in range(n):
            order = [j for j in (z @ z[i]).argsort(descending=True, stable=True).tolist() if j != i][:k]
            precision.append(np.mean([(y[j] == y[i]).item() for j in order]))
        assert ours[f"p_at_{k}"] == pytest.approx(100 * np.mean(precision), rel=1e-6)
    assert ours["other_p_at_10"] > ours["p_at_10"]  # half as many classes


def test_dense_embedding_scores_chance():
    for classes in (10, 100):
        y = torch.arange(1000) % classes
        scores = common.interpretability(torch.randn(1000, 16).abs() + 1, {"": y})
        assert scores["cons"] == pytest.approx(100 / classes) and scores["entropy"] == pytest.approx(math.log(classes), abs=0.01)
        assert scores["act"] == scores["live_share"] == 1 and scores["live_dims"] == 16
    one_hot = common.interpretability(F.one_hot(y).float(), {"": y})
    assert one_hot["cons"] == 100 and one_hot["entropy"] == 0 and one_hot["corr"] == 0 and one_hot["p_at_1"] == 100


def test_undefined_metrics_are_none_and_printed_as_such():
    scores = common.interpretability(torch.zeros(20, 4), {"": torch.arange(20) % 2})
    assert scores["cons"] is None and scores["entropy"] is None and scores["corr"] is None and scores["live_dims"] == 0
    lines = common.table("ncl", scores).splitlines()
    assert lines[2].count("n/a") == 8 and len({len(line) for line in lines}) == 1


def test_health_of_good_and_collapsed_embeddings():
    assert common.health(torch.randn(2000, 64))["spread"] == pytest.approx(1, abs=0.02)
    assert common.health(torch.ones(100, 64))["spread"] < 1e-4
    sparse = common.health(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]))
    assert sparse["act"] == 0.125 and sparse["empty"] == 0.5


@pytest.mark.parametrize("method", METHODS)
def test_evaluation_leaves_the_model_bit_identical(tmp_path, method):
    module, d = METHODS[method], 64
    backbone, head = common.resnet("resnet8", 32)[0], simclr.projection_head("mlp", d, 32, 16)
    model = {"simclr": lambda: simclr.SimCLR(backbone, head), "ncl": lambda: ncl.NCL(backbone, head),
             "bayesncl": lambda: bayesncl.BayesNCL(backbone, head, bayesncl.GatingHead(d, 32, 16), 16, ipw=True),
             "sparsehead": lambda: sparsehead.SparseHead(backbone, head, "byol", 32, 16),
             "simsiam": lambda: simsiam.SimSiam(backbone, head, simsiam.bottleneck(16, 8))}[method]()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    args = module.parser().parse(module.PRESETS, ["--out", str(tmp_path), "--device", "cpu"])
    data = common.load_data("shapes", limit=300)
    data.x_test, data.y_test, data.background_test = data.x_test[:200], data.y_test[:200], data.background_test[:200]
    metrics, (e_train, e) = common.evaluate(common.Run(method, args), data, model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert e.shape == (200, 16) and e_train.shape == (300, 16) and {"lp1_embedding", "live_share", "lp1", "lp5", "knn5", "knn200", "cons", "background_cons", "background_lp1", "corr"} <= set(metrics)
    assert (tmp_path / "top_images.png").exists()
    assert all(p.grad is None for p in model.parameters())


# ---------------------------------------------------------------------------------------------------------------- simclr.py
def views(n=7, K=5, dtype=torch.double):
    return [torch.randn(n, K, dtype=dtype, requires_grad=True) for _ in range(2)]


def naive_nt_xent(z1, z2, temperature):
    z = [v / v.norm() for v in [*z1, *z2]]
    total = 0
    for i in range(len(z)):
        j = (i + len(z1)) % len(z)
        others = sum(torch.exp(z[i] @ z[k] / temperature) for k in range(len(z)) if k != i)
        total = total - torch.log(torch.exp(z[i] @ z[j] / temperature) / others)
    return total / len(z)


def same_with_gradient(ours, naive, inputs, tolerance=1e-5):
    a, b = ours(*inputs), naive(*inputs)
    assert a.item() == pytest.approx(b.item(), rel=tolerance)
    for g, h in zip(torch.autograd.grad(a.double(), inputs), torch.autograd.grad(b, inputs)):
        assert torch.allclose(g, h, atol=tolerance)


@pytest.mark.parametrize("temperature", [0.1, 0.2, 1.0])
def test_nt_xent_is_the_loop(temperature):
    same_with_gradient(lambda a, b: simclr.nt_xent(a, b, temperature), lambda a, b: naive_nt_xent(a, b, temperature), views())


def test_nt_xent_of_uninformative_embeddings_is_log_2n_minus_1():
    assert simclr.nt_xent(torch.ones(8, 4), torch.ones(8, 4), 0.2).item() == pytest.approx(math.log(15))
    eye = torch.eye(16)  # all 16 views orthogonal: no pair is alike either
    assert simclr.nt_xent(eye[:8], eye[8:], 0.2).item() == pytest.approx(math.log(15))


def test_nt_xent_of_perfect_embeddings_is_its_minimum():
    eye = torch.eye(8)
    assert simclr.nt_xent(eye, eye, 0.2).item() == pytest.approx(math.log(1 + 14 * math.exp(-5)))


def test_spectral_loss_is_the_loop():
    def naive(z1, z2):
        n = len(z1)
        positive = sum(z1[i] @ z2[i] for i in range(n)) / n
        negative = sum((z1[i] @ z2[j]) ** 2 for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
        return -2 * positive + negative
    same_with_gradient(simclr.spectral_loss, naive, views())


def test_losses_are_float32_inside_anyones_autocast():
    z1, z2 = views(dtype=torch.float)
    alpha = torch.rand(7, 5)
    losses = lambda: [simclr.nt_xent(z1, z2, 0.1), simclr.spectral_loss(z1, z2), bayesncl.bernoulli_kl(alpha, 0.8)]
    plain = losses()
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(plain, losses()))


def rotation(K):
    return torch.linalg.qr(torch.randn(K, K, dtype=torch.double))[0]


@pytest.mark.parametrize("loss", [lambda a, b: simclr.nt_xent(a, b, 0.2), simclr.spectral_loss])
def test_theorem_1_cl_is_rotation_invariant_and_ncl_is_not(loss):
    z1, z2 = views(20, 6)
    Q = rotation(6)
    assert loss(z1 @ Q, z2 @ Q).item() == pytest.approx(loss(z1, z2).item(), rel=1e-5)
    positive = lambda z: ncl.non_negative(z, "relu")
    a, b = positive(z1), positive(z2)
    assert abs(loss(positive(a @ Q), positive(b @ Q)) - loss(a, b)) > 0.05
    P = torch.eye(6, dtype=torch.double)[torch.randperm(6)]  # what is left: permutations of the dimensions
    assert loss(positive(a @ P), positive(b @ P)).item() == pytest.approx(loss(a, b).item(), rel=1e-5)


def test_heads():
    h = torch.randn(3, 10)
    assert simclr.projection_head("mlp", 10, 20, 4)(h).shape == (3, 4) == simclr.projection_head("linear", 10, 20, 4)(h).shape
    assert torch.equal(simclr.projection_head("none", 10, 20, 4)(h), h)
    assert sum(p.numel() for p in simclr.projection_head("mlp", 512, 2048, 256).parameters()) == 512 * 2048 + 2048 + 2048 * 256 + 256


# ------------------------------------------------------------------------------------------------------------------- ncl.py
def test_rep_relu_is_relu_forward_and_gelu_backward():
    z = torch.randn(1000, requires_grad=True)
    out = ncl.non_negative(z, "rep_relu")
    assert torch.equal(out, z.relu())
    gradient, = torch.autograd.grad(out.sum(), z)
    normal = torch.distributions.Normal(0, 1)
    assert torch.allclose(gradient, normal.cdf(z) + z * normal.log_prob(z).exp(), atol=1e-6)  # d/dz z·Φ(z)


@pytest.mark.parametrize("kind,formula", {
    "relu": lambda v: max(v, 0), "gelu": lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))), "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "softplus": lambda v: math.log(1 + math.exp(v)), "exp": math.exp, "leaky_relu": lambda v: max(v, 0.01 * v), "none": lambda v: v}.items())
def test_activations_are_their_formulas(kind, formula):
    z = torch.randn(100)
    assert torch.allclose(ncl.non_negative(z, kind), torch.tensor([formula(v.item()) for v in z]), atol=1e-6)


def test_rows_of_zeros_are_finite_forward_and_backward():
    """The trap: rep_relu is 0 forward on a row of negatives but has a gradient, which eps = 1e-12 multiplies by 1e12."""
    z = torch.randn(8, 6)
    z[:2] = -z[:2].abs()
    z.requires_grad_()
    loss = simclr.nt_xent(ncl.non_negative(z, "rep_relu"), ncl.non_negative(z.flip(0), "rep_relu"), 0.2)
    gradient, = torch.autograd.grad(loss, z)
    assert loss.isfinite() and gradient.isfinite().all() and gradient.abs().max() < 200 and gradient[:2].abs().sum() > 0
    soft = F.gelu(z) - F.gelu(z).detach() + F.relu(z).detach()
    assert torch.autograd.grad(F.normalize(soft).square().sum() + F.normalize(soft).sum(), z)[0].abs().max() > 1e6  # the trap is real


def test_topk_keeps_the_largest():
    z = torch.rand(50, 9, requires_grad=True)
    kept = ncl.keep_topk(z, 3)
    for row, out in zip(z, kept):
        threshold = row.sort(descending=True).values[2]
        assert torch.equal(out, torch.where(row >= threshold, row, 0))
    kept.sum().backward()
    assert torch.equal(z.grad, (kept > 0).float())


def test_spectral_ncl_is_non_negative_matrix_factorisation():
    """Population loss −2 E_pos f·f' + E_indep (f·f')² equals ‖Ā − F Fᵀ‖² + const over random non-negative f ([NCL])."""
    n, K = 9, 4
    joint = torch.rand(n, n, dtype=torch.double)
    joint = (joint + joint.T) / (joint + joint.T).sum()  # P(x, x')
    p = joint.sum(1)
    normalised = joint / (p[:, None] * p[None, :]).sqrt()
    differences = []
    for _ in range(5):
        f = ncl.non_negative(torch.randn(n, K, dtype=torch.double), "relu")
        inner = f @ f.T
        loss = -2 * (joint * inner).sum() + (p[:, None] * p[None, :] * inner.square()).sum()
        root = p.sqrt()[:, None] * f
        differences.append((normalised - root @ root.T).square().sum() - loss)
    differences = torch.stack(differences)
    assert torch.allclose(differences, normalised.square().sum().expand(5), atol=1e-12)


def test_spectral_loss_estimates_the_population_loss():
    """With a batch drawn from P(x, x'), spectral_loss is an unbiased estimate of that population loss."""
    joint = torch.tensor([[0.3, 0.1, 0.0], [0.1, 0.2, 0.05], [0.0, 0.05, 0.2]], dtype=torch.double)
    p, f = joint.sum(1), torch.rand(3, 2, dtype=torch.double)
    inner = f @ f.T
    loss = -2 * (joint * inner).sum() + (p[:, None] * p[None, :] * inner.square()).sum()
    pairs = torch.multinomial(joint.flatten(), 200 * 500, replacement=True).view(200, 500)
    estimates = torch.stack([simclr.spectral_loss(f[row // 3], f[row % 3]).double() for row in pairs])
    assert abs(estimates.mean() - loss) < 5 * estimates.std() / math.sqrt(200)


def test_feature_selection_ranks_by_activation_on_the_training_images():
    y = torch.arange(200) % 4
    order = torch.randperm(32)
    e = torch.cat([F.one_hot(y, 4) * 3.0, 0.5 * torch.rand(200, 28)], 1)[:, order]  # four strong dimensions that tell the class
    scores = common.feature_selection(e, y, e, y, 1e-3)
    assert list(scores) == [f"{what}_{which}_{m}" for m in (4, 8, 16) for which in ("top", "random") for what in ("p_at_10", "lp1")]
    assert scores["p_at_10_top_4"] == scores["lp1_top_4"] == 100 and scores["p_at_10_random_4"] < 90
    weak = torch.where(e > 2, 0.01, e)  # on the test images the four are the weakest
    assert common.feature_selection(e, y, weak, y, 1e-3)["p_at_10_top_4"] == 100 != common.feature_selection(weak, y, weak, y, 1e-3)["p_at_10_top_4"]
    assert common.feature_selection(e, None, e, None, None) == {}


# -------------------------------------------------------------------------------------------------------------- bayesncl.py
def test_ste_is_a_threshold_forward_and_the_identity_backward():
    logits = torch.randn(50, 8, requires_grad=True)
    m, alpha = bayesncl.gate(logits, "ste", temperature=2.0)
    assert torch.equal(m, (logits > 0).float()) and torch.allclose(alpha, 1 / (1 + torch.exp(-logits / 2)))
    weight = torch.randn(50, 8)
    gradient, = torch.autograd.grad((weight * m).sum(), logits)
    assert torch.allclose(gradient, weight * alpha * (1 - alpha) / 2, atol=1e-7)  # dm/dα = 1, dα/dlogit = α(1−α)/T


def test_other_gates():
    logits = torch.randn(4000, 8)
    m, alpha = bayesncl.gate(logits, "soft")
    assert torch.equal(m, alpha)
    assert (bayesncl.gate(logits, "none")[0] == 1).all()
    m, alpha = bayesncl.gate(logits, "logistic", noise=True)
    assert set(m.unique().tolist()) == {0.0, 1.0}
    assert (m - alpha).mean().abs() < 0.02  # logistic noise opens a gate with probability α
    assert ((m - alpha)[(alpha > 0.7) & (alpha < 0.8)]).mean().abs() < 0.03
    m, alpha = bayesncl.gate(logits, "gumbel", noise=True)
    opened = 1 - (-logits.exp()).exp()  # P(l + g > 0) of one standard Gumbel variable g
    assert set(m.unique().tolist()) == {0.0, 1.0} and (m - opened).mean().abs() < 0.02 < (m - alpha).mean()
    for kind in ("gumbel", "logistic"):
        assert torch.equal(bayesncl.gate(logits, kind)[0], (logits > 0).float())  # deterministic in evaluation


def test_gating_head_layers():
    for layers in (1, 2, 3):
        head = bayesncl.GatingHead(10, 20, 6, layers)
        widths = [m.out_features for m in head.modules() if isinstance(m, nn.Linear)]
        assert head(torch.randn(4, 10)).shape == (4, 6) and widths == [20, 10][: layers - 1] + [6]


def test_kl_is_torchs_and_zero_at_the_prior():
    alpha = torch.rand(30, 7).clamp(0.011, 0.989).requires_grad_()
    kl = torch.distributions.kl_divergence(torch.distributions.Bernoulli(alpha), torch.distributions.Bernoulli(torch.tensor(0.8)))
    ours = bayesncl.bernoulli_kl(alpha, 0.8)
    assert torch.allclose(ours, kl.sum(1).mean(), rtol=1e-5) and (kl >= 0).all()
    gradient, = torch.autograd.grad(ours, alpha)
    assert torch.allclose(gradient, (torch.logit(alpha) - math.log(0.8 / 0.2)) / 30, atol=1e-5)
    assert bayesncl.bernoulli_kl(torch.full((5, 7), 0.3), 0.3).item() == pytest.approx(0, abs=1e-6)
    extreme = torch.tensor([[0.0, 1.0]], requires_grad=True)
    value = bayesncl.bernoulli_kl(extreme, 0.8)
    value.backward()
    assert value.isfinite() and extreme.grad.isfinite().all()


def tiny_bayes(**options):
    return bayesncl.BayesNCL(nn.Linear(10, 6), nn.Linear(6, 5), bayesncl.GatingHead(6, 8, 5), 5, **options)


def test_nothing_of_the_gate_reaches_the_backbone():
    x = torch.randn(12, 10)
    for detach in (True, False):
        model = tiny_bayes(detach=detach)
        h, z, m, alpha = model(x)
        for through_gate in (m.sum(), bayesncl.bernoulli_kl(alpha, 0.8)):
            gradient = torch.autograd.grad(through_gate, model.backbone.weight, retain_graph=True, allow_unused=True)[0]
            assert (gradient is None) == detach
        assert torch.autograd.grad(m.sum(), model.gating.net[0].weight)[0].abs().sum() > 0
    model = tiny_bayes()  # and the loss's gradient into the backbone is the one for a constant mask
    h, z, m, alpha = model(x)
    weight = torch.randn(12, 5)
    ours, = torch.autograd.grad((weight * z).sum(), model.backbone.weight)
    h = model.backbone(x)
    constant = ncl.non_negative(model.head(h), "rep_relu") * m.detach()
    assert torch.allclose(ours, torch.autograd.grad((weight * constant).sum(), model.backbone.weight)[0], atol=1e-6)


def test_gate_none_is_ncl():
    model = tiny_bayes(kind="none")
    x = torch.randn(12, 10)
    reference = ncl.NCL(model.backbone, model.head)
    assert torch.equal(model(x)[1], reference(x)[1])


def test_gated_embedding_is_the_papers():
    """The loss normalises z ⊙ m once; the paper's order, normalize(normalize(z) ⊙ m), has the same value and gradient. Nested,
    the gradient of a row of zeros would be multiplied by 1/eps twice."""
    model, x = tiny_bayes(), torch.randn(12, 10)
    h, z, m, alpha = model(x)
    twice = F.normalize(F.normalize(ncl.non_negative(model.head(h), "rep_relu")) * m)
    keep = z.norm(dim=1) > 0.1
    weight = torch.randn(12, 5)
    losses = [(weight * v)[keep].sum() for v in (F.normalize(z, eps=bayesncl.EPS), twice)]
    assert keep.sum() > 5 and losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    for g1, g2 in zip(*[torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]):
        assert torch.allclose(g1, g2, atol=1e-5)


def test_all_gates_off_is_finite_forward_and_backward():
    model = tiny_bayes()
    nn.init.constant_(model.gating.net[2].bias, -50)
    h, z, m, alpha = model(torch.randn(12, 10))
    assert (m == 0).all() and (z == 0).all()
    loss = bayesncl.nt_xent(z[:6], z[6:], 0.2) + bayesncl.bernoulli_kl(alpha, 0.8)
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in model.parameters())
    assert bayesncl.nt_xent(z[:6], z[6:], 0.2).item() == pytest.approx(math.log(11))


def test_ipw_divides_by_the_running_frequency():
    model = tiny_bayes(kind="none", ipw=True).train()
    x = torch.randn(12, 10)
    z = ncl.non_negative(model.head(model.backbone(x)), "rep_relu")
    pi = 0.99 + 0.01 * (z > 0).float().mean(0)
    assert torch.allclose(model(x)[1], z / pi.sqrt(), atol=1e-6) and torch.allclose(model.frequency, pi)
    model.eval()(x)
    assert torch.allclose(model.frequency, pi)  # evaluation does not move it
    model.frequency.copy_(torch.rand(5))
    product = model(x)[1] @ model(x)[1].T  # Σ_k z_k z'_k / π_k
    assert product[0, 1].item() == pytest.approx((z[0] * z[1] / model.frequency.clamp(min=0.01)).sum().item(), rel=1e-5)


def test_cost_counts_the_gate():
    backbone, d = common.resnet("resnet18", 32)
    cost = bayesncl.cost(backbone, bayesncl.projection_head("mlp", 512, 2048, 256), bayesncl.GatingHead(512, 2048, 256), 32, "cpu")
    assert cost["flops"] - cost["flops_ncl"] == 2 * (512 * 2048 + 2048 * 256)
    assert cost["params"] - cost["params_ncl"] == 512 * 2048 + 2048 + 2048 * 256 + 256
    assert cost["flops_ncl"] == pytest.approx(2 * 0.5578e9, rel=0.01)  # 0.56 G multiply-adds, as in the literature
    for name, paper in (("cifar100", 0.003), ("imagenet100", 0.084)):  # G of FLOPs between the paper's NCL and BayesNCL
        preset, backbone = bayesncl.PRESETS[name], nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 512))
        cost = bayesncl.cost(backbone, nn.Identity(), bayesncl.GatingHead(512, preset["gate_hidden"], preset["head_out"]), 8, "cpu")
        assert round((cost["flops"] - cost["flops_ncl"]) / 1e9, 3) == paper


# ----------------------------------------------------------------------------------------------------------------- sparsehead.py
def test_every_base_loss_stands_alone():
    z1, z2 = torch.randn(2, 6, 5)
    assert torch.equal(sparsehead.nt_xent(z1, z2, 0.5), simclr.nt_xent(z1, z2, 0.5))


def test_byol_loss_is_a_loop_in_0_to_4_without_gradient_into_the_target():
    p, z = torch.randn(6, 5, requires_grad=True), torch.randn(6, 5, requires_grad=True)
    loss = sparsehead.byol_loss(p, z)
    naive = sum((p[i] / p[i].norm() - z[i].detach() / z[i].detach().norm()).square().sum() for i in range(6)) / 6
    assert torch.allclose(loss, naive, atol=1e-6)
    assert torch.allclose(torch.autograd.grad(loss, p, retain_graph=True)[0], torch.autograd.grad(naive, p)[0], atol=1e-6)
    loss.backward()
    assert z.grad is None
    assert sparsehead.byol_loss(3 * z, z).item() == pytest.approx(0, abs=1e-6) and sparsehead.byol_loss(-z, z).item() == pytest.approx(4, abs=1e-6)


def naive_barlow(z1, z2, lambd):
    n, K = z1.shape
    s1, s2 = ((z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt() for z in (z1, z2))
    loss = 0
    for i in range(K):
        for j in range(K):
            c = sum(s1[b, i] * s2[b, j] for b in range(n)) / n
            loss = loss + ((1 - c)**2 if i == j else lambd * c**2)
    return loss


def test_barlow_loss_is_a_loop_and_zero_at_identity():
    z1, z2 = (torch.randn(7, 4, requires_grad=True) for _ in range(2))
    ours, naive = sparsehead.barlow_loss(z1, z2, 0.1), naive_barlow(z1, z2, 0.1)
    assert torch.allclose(ours, naive, atol=1e-5)
    for mine, theirs in zip(torch.autograd.grad(ours, (z1, z2)), torch.autograd.grad(naive, (z1, z2))):
        assert torch.allclose(mine, theirs, atol=1e-5)
    white = torch.linalg.qr(torch.cat([torch.ones(64, 1), torch.randn(64, 8)], 1))[0][:, 1:] * 8  # mean 0, covariance I
    assert sparsehead.barlow_loss(white, 5 * white + 3).item() < 1e-6  # whatever the scale and the shift
    assert sparsehead.barlow_loss(white, white.roll(1, 1)).item() == pytest.approx(8 + 0.005 * 8, rel=1e-3)  # a permutation: C_ii = 0


def test_l21_norm_is_a_loop_over_columns_with_a_finite_gradient_at_zero():
    W = torch.randn(3, 5)
    W[:, 2] = 0
    W.requires_grad_()
    assert sparsehead.l21_norm(W).item() == pytest.approx(sum(math.sqrt(sum(W[i, j].item()**2 for i in range(3))) for j in range(5)), abs=1e-5)
    gradient = torch.autograd.grad(sparsehead.l21_norm(W), W)[0]
    assert gradient.isfinite().all() and (gradient[:, 2] == 0).all() and torch.allclose(gradient[:, 0], (W[:, 0] / W[:, 0].norm()).detach(), atol=1e-6)


def test_proximal_step_is_the_minimiser():
    W = torch.randn(4, 6, dtype=torch.float64)
    W[:, 0], W[:, 1] = 0, W[:, 1] / W[:, 1].norm() * 0.3
    V = W.clone()
    sparsehead.shrink_columns(V, 0.5)
    assert (V[:, :2] == 0).all()
    for j in range(2, 6):
        length = W[:, j].norm()
        assert torch.allclose(V[:, j], W[:, j] * max(0.0, 1 - 0.5 / length.item()))
    objective = lambda U: (U - W).square().sum() / 2 + 0.5 * sparsehead.l21_norm(U)
    assert all(objective(V) <= objective(V + 0.01 * torch.randn_like(V)) for _ in range(200))


def test_target_network_is_a_moving_average():
    target, online = nn.Linear(3, 2), nn.Linear(3, 2)
    before = [p.detach().clone() for p in target.parameters()]
    sparsehead.update_target(target, online, 0.9)
    for p, old, new in zip(target.parameters(), before, online.parameters()):
        assert torch.allclose(p, 0.9 * old + 0.1 * new, atol=1e-6)
    sparsehead.update_target(target, online, 0.0)
    assert all(torch.equal(p, q) for p, q in zip(target.parameters(), online.parameters()))
    schedule = [sparsehead.momentum_at(step, 100) for step in range(101)]
    assert schedule[0] == pytest.approx(0.99) and schedule[50] == pytest.approx(0.995) and schedule[100] == 1 and schedule == sorted(schedule)


def test_spectrum_and_effective_rank_on_known_eigenvalues():
    white = torch.linalg.qr(torch.cat([torch.ones(50, 1), torch.randn(50, 3)], 1))[0][:, 1:] * 7  # mean 0, covariance I with N − 1
    rotation = torch.linalg.qr(torch.randn(3, 3))[0]
    values = sparsehead.spectrum(white * torch.tensor([2.0, 1.0, 0.5]) @ rotation + 9)
    assert torch.allclose(values, torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64), atol=1e-4)
    assert sparsehead.effective_rank(torch.tensor([0.5, 0.25, 0.25])) == pytest.approx(2**1.5, rel=1e-5)
    assert sparsehead.effective_rank(torch.ones(7)) == pytest.approx(7, rel=1e-5) and sparsehead.effective_rank(torch.tensor([3.0, 0, 0])) == pytest.approx(1)


def test_min_max_ratio_on_a_known_set():
    assert sparsehead.min_max_ratio(torch.tensor([[0.0], [1.0], [3.0]])) == pytest.approx(((3 - 1) / 1 + (2 - 1) / 1 + (3 - 2) / 2) / 3)
    z = torch.randn(1100, 3)  # more than one part
    distance = (z[:, None] - z).norm(dim=2) + torch.eye(1100) * 1e9
    smallest = distance.amin(1)
    largest = (distance - torch.eye(1100) * 1e9).amax(1)
    assert sparsehead.min_max_ratio(z) == pytest.approx(((largest - smallest) / smallest).mean().item(), rel=1e-3)


def test_unused_columns_and_the_last_layer():
    W = torch.ones(3, 4)
    W[:, 1], W[:, 2] = 1e-4, 0
    assert sparsehead.unused_columns(W) == 0.5 and sparsehead.unused_columns(torch.zeros(3, 4)) == 1
    backbone, d = common.resnet("resnet8", 32)
    for kind, shape in (("mlp", (20, 30)), ("linear", (20, 64))):
        assert sparsehead.SparseHead(backbone, sparsehead.projection_head(kind, d, 30, 20), "byol", 30, 20).last.shape == shape
    assert sparsehead.SparseHead(backbone, sparsehead.projection_head("none", d, 30, d), "simclr", 30, d).last is None


def test_byol_trains_all_but_its_target():
    backbone, d = common.resnet("resnet8", 32)
    model = sparsehead.SparseHead(backbone, sparsehead.projection_head("mlp", d, 30, 20), "byol", 30, 20)
    x = torch.randn(4, 3, 32, 32)
    sparsehead.byol_loss(model.predictor(model(x)[1]), model.target(x)).backward()
    assert all(p.grad is None for p in model.target.parameters())
    assert all(p.grad is not None for p in [*model.backbone.parameters(), *model.head.parameters(), *model.predictor.parameters()])
    assert torch.equal(model.target[1][0].weight, model.head[0].weight) and model.target[1][0].weight is not model.head[0].weight


def test_finetuning_subset_is_balanced_and_seeded():
    y = torch.randint(0, 4, (1000,))
    chosen = sparsehead.balanced_subset(y, 0.1, 3)
    assert torch.bincount(y[chosen]).tolist() == [25] * 4 and len(chosen.unique()) == 100
    assert torch.equal(chosen, sparsehead.balanced_subset(y, 0.1, 3)) and not torch.equal(chosen, sparsehead.balanced_subset(y, 0.1, 4))
    assert len(sparsehead.balanced_subset(y, 1e-6, 3)) == 4  # at least one of every class


def test_finetuning_changes_a_copy_of_the_backbone_and_the_probe_changes_nothing(monkeypatch):
    copies, deepcopy = [], copy.deepcopy

    def spy(module, *memo):
        made = deepcopy(module, *memo)
        copies.append(made)
        return made

    monkeypatch.setattr(copy, "deepcopy", spy)
    x = torch.randint(0, 40, (80, 3, 16, 16), dtype=torch.uint8)
    y = torch.arange(80) % 2
    x[y == 1] += 180
    data = common.Data("toy", x, x, y, y)
    args = sparsehead.parser().parse(sparsehead.PRESETS, ["--finetune-epochs", "5", "--image-size", "16", "--device", "cpu"])
    backbone, d = common.resnet("resnet8", 16)
    before = {k: v.clone() for k, v in backbone.state_dict().items()}
    top1, top5, labels = sparsehead.finetune(backbone, d, data, 0.5, args)
    assert top1 > 90 and top5 == 100 and labels == 40
    h = common.features(sparsehead.SparseHead(backbone, nn.Identity(), "simclr", 1, d), x, 16)[0]
    common.linear_probe(h, y, h, y)
    assert all(torch.equal(v, before[k]) for k, v in backbone.state_dict().items())
    assert not torch.equal(copies[-1].state_dict()["0.weight"], before["0.weight"])


# ----------------------------------------------------------------------------------------------------------------- simsiam.py
def test_negative_cosine_is_a_loop_and_stops_the_gradient():
    p, z = torch.randn(6, 5, requires_grad=True), torch.randn(6, 5, requires_grad=True)
    naive = -sum(p[i] @ z[i].detach() / (p[i].norm() * z[i].detach().norm()) for i in range(6)) / 6
    loss = simsiam.negative_cosine(p, z)
    assert torch.allclose(loss, naive, atol=1e-6)
    assert torch.allclose(torch.autograd.grad(loss, p, retain_graph=True)[0], torch.autograd.grad(naive, p)[0], atol=1e-6)
    assert torch.autograd.grad(loss, z, allow_unused=True)[0] is None
    assert torch.autograd.grad(simsiam.negative_cosine(p, z, stop_gradient=False), z)[0].abs().max() > 0
    assert simsiam.negative_cosine(2 * z, z).item() == pytest.approx(-1, abs=1e-6)


def test_simsiam_heads_are_the_papers():
    head, predictor = simsiam.projector(64, 32, 3), simsiam.bottleneck(32, 8)
    assert [type(m).__name__ for m in head] == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert head[7].weight is None and head[1].weight is not None and len(simsiam.projector(64, 32, 2)) == 5
    assert [tuple(m.weight.shape) for m in predictor if isinstance(m, nn.Linear)] == [(8, 32), (32, 8)] and isinstance(predictor[1], nn.BatchNorm1d)
    z = head(torch.randn(100, 64))
    assert z.mean(0).abs().max() < 1e-5 and torch.allclose(z.var(0, unbiased=False), torch.ones(32), atol=1e-3)


def test_the_predictors_learning_rate_stays(monkeypatch, tmp_path):
    made = []

    class Spy(torch.optim.SGD):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setitem(common.OPTIMIZERS, "sgd", functools.partial(Spy, momentum=0.9))
    simsiam.main(["--limit", "64", "--batch-size", "32", "--epochs", "1", "--device", "cpu", "--lr", "0.1", "--out", str(tmp_path / "run")])
    assert made[0].param_groups[0]["lr"] < 1e-9 and made[0].param_groups[1]["lr"] == 0.1
    assert len(made[0].param_groups[1]["params"]) == 5 and made[0].param_groups[0]["momentum"] == 0.9  # 2 linear layers, a bias, a norm


# ----------------------------------------------------------------------------------------------------------------- sparse_coding.py
def landscape(**factors):
    """A small setting of sparse_coding.py: the paper's with the given factors."""
    return sc.setting(dict(n=64, batch_size=16, p=12, d=6, m=8, epochs=2, lr=0.1, seeds=1) | factors, {}, paper=True)


@pytest.fixture
def spy(monkeypatch):
    """Everything that sparse_coding.train hands to its encoders: initial weights, and every view, in order."""
    class Spy(sc.Encoder):
        made, views = [], []

        def __init__(self, layers, *rest):
            super().__init__(layers, *rest)
            self.start = [W.detach().clone() for W in self.layers]
            Spy.made.append(self)

        def forward(self, a):
            Spy.views.append(a.detach().clone())
            return super().forward(a)

        def seen(s):  # the views of training; measuring shows all n samples, and a projector sees m numbers
            return [a for a in Spy.views if a.shape[1] == s.p and a.shape[2] < s.n]

    monkeypatch.setattr(sc, "Encoder", Spy)
    return Spy


def test_sparse_data_are_the_papers():
    s = landscape(n=4000, p=50, d=10)
    M, z, x = sc.sample(s, 3, 0.1, 0.15)
    assert torch.allclose(M.T @ M, torch.eye(10), atol=1e-5)
    assert (x - M @ z).std().item() == pytest.approx(0.15, rel=0.01) and (x - M @ z).mean().abs() < 1e-3
    assert torch.equal(sc.sample(s, 3, 0.1, 0.15)[2], x) and not torch.equal(sc.sample(s, 4, 0.1, 0.15)[2], x)


@pytest.mark.parametrize("beta", [0.1, 0.3])
def test_latents_have_the_stated_moments(beta):
    n, d = 50_000, 10
    draw = lambda kind: sc.latents(kind, n, d, beta, sc.generator(0, 0))
    for kind, sign in (("iid", 0), ("zero-one", 1)):
        z = draw(kind)
        share = beta / (1 - (1 - beta)**d)  # Pr(z_i ≠ 0), given that not all are 0
        assert z.abs().amax(0).min() == 1 and set(z.unique().tolist()) == ({-1, 0, 1} if sign == 0 else {0, 1})
        assert z.abs().mean().item() == pytest.approx(share, rel=0.02)
        assert z.mean().item() == pytest.approx(sign * share, abs=0.005)
        both = (z[0] * z[1]).mean().item()  # independent, but for all-zero samples
        assert both == pytest.approx(sign * beta**2 / (1 - (1 - beta)**d), abs=0.01)
    z = draw("exact")
    assert (z.abs().sum(0) == {0.1: 2, 0.3: 3}[beta]).all() and z.mean().abs() < 0.01
    for kind in ("exact", "authors"):  # every feature as often
        assert (draw(kind).abs().mean(1) - draw(kind).abs().mean()).abs().max() < 0.01
    assert (draw("onehot").abs().sum(0) == 1).all() and draw("onehot").mean().abs() < 0.01
    assert (draw("onehot-plus").sum(0) == 1).all() and draw("onehot-plus").min() == 0


@pytest.mark.parametrize("d,beta,minus,plus", [(10, 0.1, 1, 1), (10, 0.2, 1, 1), (10, 0.3, 2, 1), (20, 0.3, 3, 3),
                                               (100, 0.14, 8, 7), (10, 1.0, 5, 5)])
def test_the_authors_latents_have_fixed_signs(d, beta, minus, plus):
    """Pr .1 and .2 give the same data at d = 10; 100 · .14 is 14.000000000000002, with the ceiling 15."""
    z = sc.latents("authors", 500, d, beta, sc.generator(0, 0))
    for value, count in ((-1, minus), (1, plus), (0, d - minus - plus)):
        assert ((z == value).sum(0) == count).all()
    s1 = np.ceil(d * beta / 2)  # numpy's ceilings of the same floats
    s2 = max(np.ceil(d * beta), s1 + 1)
    assert (minus, minus + plus) == (s1, s2) == sc.active_features(d, beta)
    assert len(z.unique(dim=1).T) > 50  # at random places


@pytest.mark.parametrize("keep", [0.2, 0.5, 1.0])
def test_masks_keep_at_their_rate_and_views_are_eq_2_and_3(spy, keep):
    s = landscape(keep=keep, noise=0.1, n=512, batch_size=256)
    x = sc.sample(s, 1, 0.1, 0.1)[2]
    sc.train(s)
    views = spy.seen(s)
    a1, a2 = views[0][0], views[1][0]  # (p, B)
    D1, D2 = a1 != 0, a2 != 0
    share = math.sqrt(keep * (1 - keep) / a1.numel())
    assert abs(D1.float().mean() - keep) <= 4 * share and abs((D1 & D2).float().mean() - keep**2) <= 4 * math.sqrt(keep**2 * (1 - keep**2) / a1.numel())
    columns = {tuple(column.tolist()) for column in x.T}
    full = torch.where(D1, a1, a2)
    seen = [tuple(column.tolist()) in columns for column, whole in zip(full.T, (D1 | D2).all(0)) if whole]
    assert all(seen) and (keep < 0.5 or len(seen) > 3)  # a view is a sample, masked; both of the same sample
    if keep < 1:
        assert not torch.equal(views[2], views[0])
    spy.views.clear()
    s = landscape(keep=keep, masks="dependent", noise=0.1)
    sc.train(s)
    views = spy.seen(s)
    halves = (views[0] + views[1]) / 2
    assert not ((views[0] != 0) & (views[1] != 0)).any() and (halves != 0).all()  # 2Dx and 2(I − D)x


def test_the_last_smaller_batch_is_simclrs_alone_to_drop(spy):
    for method, widths in (("simclr", [16, 16]), ("simsiam", [16, 16, 8]), ("noncl", [16, 16, 8])):
        spy.views.clear()
        s = landscape(method=method, n=40, epochs=1)
        x = sc.sample(s, 1, 0.1, s.noise[0])[2]
        sc.train(s)
        assert [a.shape[2] for a in spy.seen(s)] == [width for width in widths for _ in range(2)]
        assert s.steps == {"simclr": 2, "simsiam": 3, "noncl": 1.5}[method]
        shown = torch.cat(spy.seen(s)[::2], 2)[0]  # of every sample what its first mask kept: none twice
        matches = ((shown.T[:, None] == x.T) | (shown.T[:, None] == 0)).all(2) & (shown.T != 0).any(1)[:, None]
        assert (matches.sum(1) <= 1).all() and (matches.sum(0) <= 1).all() and matches.sum() > 0.9 * sum(widths)


def nt_xent_of_columns(z, temperature):
    """Eq. (9) from torch's cross_entropy: unit embeddings z (R, K, 2B), column i + B the other view of column i."""
    views = z.shape[2]
    logits = (z.mT @ z / temperature).masked_fill(torch.eye(views, dtype=torch.bool), -torch.inf)
    return F.cross_entropy(logits, torch.arange(views).roll(views // 2).expand(len(z), -1), reduction="none").mean(1)


def test_landscape_nt_xent_is_eq_9_and_its_gradient_by_hand_is_autograds():
    R, K, B = 3, 5, 4
    z = F.normalize(torch.randn(R, K, 2 * B, dtype=torch.float64), dim=1).requires_grad_()
    tau = torch.tensor([0.2, 0.05, 1.0], dtype=torch.float64).view(R, 1, 1)
    naive = []
    for r in range(R):
        total = 0
        for i in range(2 * B):
            similarity = [math.exp(float(z[r, :, i].detach() @ z[r, :, j].detach()) / float(tau[r])) for j in range(2 * B)]
            total -= math.log(similarity[(i + B) % (2 * B)] / (sum(similarity) - similarity[i]))
        naive.append(total / (2 * B))
    weights = torch.randn(R, dtype=torch.float64)
    for loss in (nt_xent_of_columns(z, tau), sc.NTXent.apply(z, tau)):
        assert torch.allclose(loss, torch.tensor(naive, dtype=torch.float64), atol=1e-12)
        gradient = torch.autograd.grad((weights * loss).sum(), z)[0]
        plain = torch.autograd.grad((weights * nt_xent_of_columns(z, tau)).sum(), z)[0]
        assert torch.allclose(gradient, plain, atol=1e-12)
    same = torch.ones(1, 4, 2 * B) / 2
    assert sc.NTXent.apply(same, torch.ones(1, 1, 1)).item() == pytest.approx(math.log(2 * B - 1), abs=1e-6)


def test_landscape_nt_xent_by_hand_holds_in_float32_over_several_parts():
    z = F.normalize(torch.randn(5, 20, 1024), dim=1).requires_grad_()
    tau = torch.full((5, 1, 1), 0.2)
    ours, plain = sc.NTXent.apply(z, tau), nt_xent_of_columns(z, tau)
    assert torch.allclose(ours, plain, atol=1e-6)
    assert (torch.autograd.grad(ours.sum(), z)[0] - torch.autograd.grad(plain.sum(), z)[0]).abs().max() < 1e-6


def test_srelu_is_eq_14():
    v, b = torch.linspace(-3, 3, 13).view(1, 1, 13), torch.tensor([[[0.7]]])
    cases = [x - 0.7 if x > 0.7 else x + 0.7 if x < -0.7 else 0 for x in v.flatten().tolist()]
    assert torch.allclose(sc.srelu(v, b).flatten(), torch.tensor(cases), atol=1e-6)
    assert torch.equal(sc.srelu(v, torch.zeros(1, 1, 1)), v)


def test_the_authors_activation_is_eq_14_without_and_one_sided_with_batch_norm():
    v, b = torch.linspace(-3, 3, 13), torch.tensor(0.7)
    plain = lambda v, b: torch.tensor([max(x, 0) - max(-x - 2 * b, 0) for x in v.tolist()])
    assert torch.allclose(sc.ACTIVATIONS["authors"](v, b), plain(v, 0.7), atol=1e-6)
    assert torch.allclose(sc.ACTIVATIONS["authors"](v - b, b), sc.srelu(v, b), atol=1e-6)  # b in the linear layer
    assert torch.equal(sc.ACTIVATIONS["authors"](v, b)[v > 0], v[v > 0])
    assert torch.allclose(sc.ACTIVATIONS["relu"](v, b), torch.tensor([max(x - 0.7, 0) for x in v.tolist()]), atol=1e-6)


def test_landscape_cosine_is_torchs():
    u, v = torch.randn(2, 3, 7, 11)
    assert torch.allclose(sc.cosine(u, v), F.cosine_similarity(u, v, dim=1).mean(1), atol=1e-6)
    mean = sum(float(u[1, :, i] @ v[1, :, i]) for i in range(11)) / 11
    assert sc.product(u, v)[1].item() == pytest.approx(mean, abs=1e-5)
    assert torch.allclose(sc.unit(u), F.normalize(u, dim=1), atol=1e-6) and sc.unit(torch.zeros(1, 3, 2)).abs().max() == 0


@pytest.mark.parametrize("kind", ["yes", "affine"])
@pytest.mark.parametrize("layers", [1, 2])
def test_folded_batch_norm_is_torchs_value_and_gradient(layers, kind):
    weights = [torch.randn(3, 8, 12, dtype=torch.float64), torch.randn(3, 8, 8, dtype=torch.float64)][:layers]
    encoder = sc.Encoder(weights, landscape(bias=0.3, batch_norm=kind))
    for parameter in encoder.affine:
        parameter.data += torch.randn_like(parameter)
    a = torch.randn(3, 12, 40, dtype=torch.float64).requires_grad_()
    ours = encoder(a)
    plain = []
    for r in range(3):
        h = a[r].T
        for W in encoder.layers:
            h = h @ W[r].T
        scale, shift = (p[r, :, 0] for p in encoder.affine) if kind == "affine" else (None, None)
        plain.append(sc.srelu(F.batch_norm(h, None, None, scale, shift, training=True).T, encoder.b[r]))
    plain = torch.stack(plain)
    assert torch.allclose(ours, plain, atol=1e-10)
    out = torch.randn_like(ours)
    assert len([*encoder.parameters()]) == layers + 1 + 2 * (kind == "affine")
    gradients = lambda h: torch.autograd.grad((out * h).sum(), [a, *encoder.parameters()], retain_graph=True)
    for mine, theirs in zip(gradients(ours), gradients(plain)):
        assert torch.allclose(mine, theirs, atol=1e-9)


@pytest.mark.parametrize("factors", [
    dict(method="simclr"), dict(method="simclr", head="linear", batch_norm="no"), dict(method="simsiam", head="linear"),
    dict(method="simsiam", head="mlp", batch_norm="affine", activation="authors"),
    dict(method="simsiam", head="mlp", normalise="rows"),
    dict(method="simclr", head="linear", batch_norm="affine", activation="authors", bias=0.2), dict(method="noncl"),
    dict(method="noncl", head="linear", normalise="rows"), dict(method="noncl", layers=2, train_bias="no", bias=0.2),
    dict(method="noncl", normalise="columns", warm=1.0),
    dict(method="noncl", similarity="product", batch_norm="no", bias=0.1, train_bias="no"),
    dict(method="noncl", similarity="product", activation="relu", latents="zero-one", normalise="rows"),
    dict(method="noncl", similarity="product", head="linear", activation="relu", batch_norm="no"),
    dict(method="simsiam", similarity="product", head="linear", activation="relu", bias=0.1)])
def test_training_is_the_plain_algorithm(spy, factors):
    """Two epochs of SGD written out for one replica with torch modules: losses, stop-gradients, turns, projections."""
    s = landscape(n=40, **factors)
    sc.train(s)
    W = lambda network: nn.ParameterList(W[0].clone() for W in network.start)
    norm = lambda: nn.BatchNorm1d(8, affine=s.batch_norm == "affine")
    layers, norms = [W(network) for network in spy.made], [norm() for _ in spy.made]  # of both
    thresholds = [nn.Parameter(torch.full((8, 1), s.bias)) for _ in spy.made]
    weight = lambda purpose: torch.randn(8, 8, generator=sc.generator(1, purpose)) / math.sqrt(12 * 6)
    head = nn.Linear(8, 8)
    head.weight.data, head.bias.data = weight(9), torch.zeros(8)
    if s.head == "mlp":
        assert torch.equal(spy.made[1].start[0][0], weight(7))

    def layer(i, h):  # h (K, B)
        for V in layers[i]:
            h = V @ h
        if s.batch_norm != "no":
            h = norms[i](h.T).T
        b = thresholds[i]
        if s.activation == "authors":
            return F.relu(h) - F.relu(-h - 2 * b)
        return F.relu(h - b) - (F.relu(-h - b) if s.activation == "srelu" else 0)

    encode = lambda i, a: layer(1, layer(0, a)) if s.head == "mlp" else layer(i, a)
    predict = lambda h: h if s.head == "none" else head(h.T).T
    if s.similarity == "product":
        distance = lambda u, v: 2 - 2 * torch.stack([a @ b.detach() for a, b in zip(u.T, v.T)]).mean()  # Eq. (6) to (8)
    else:
        distance = lambda u, v: (F.normalize(u, dim=0) - F.normalize(v.detach(), dim=0)).square().sum(0).mean()  # (4)

    def step(loss, trained):
        free = [*head.parameters()] * (s.head != "none")
        for i in trained:
            free += [*layers[i], *norms[i].parameters(), *[thresholds[i]] * (s.train_bias == "yes")]
        for V, gradient in zip(free, torch.autograd.grad(loss, free)):
            V.data -= s.lr[0] * gradient
        for i in trained:
            if s.activation == "srelu":
                thresholds[i].data.clamp_(min=0)
            for V in layers[i]:
                if s.normalise != "none" and not (s.head == "mlp" and i == 1):
                    V.data = V.data / V.data.norm(dim=1 if s.normalise == "rows" else 0, keepdim=True)

    both = range(1 + (s.head == "mlp"))
    views = spy.seen(s)
    assert len(views) == 2 * 2 * (2 if s.method == "simclr" else 3)
    if s.method == "noncl":  # what is fixed comes first there
        views = [view for i in range(0, len(views), 2) for view in views[i:i + 2][::-1]]
    for i, (a1, a2) in enumerate(zip(views[::2], views[1::2])):
        a1, a2 = a1[0], a2[0]
        if s.method == "simclr":
            z = F.normalize(torch.cat([predict(encode(0, a1)), predict(encode(0, a2))], 1), dim=0).T
            logits = (z @ z.T / s.temperature[0]).fill_diagonal_(-torch.inf)
            step(F.cross_entropy(logits, torch.arange(32).roll(16)), both)
        elif s.method == "simsiam":
            h1, h2 = encode(0, a1), encode(0, a2)
            step((distance(predict(h1), h2) + distance(predict(h2), h1)) / 4, both)  # ‖·‖² = 2 − 2 cos
        else:  # online, target, online, … from batch to batch, over the end of an epoch too
            step(distance(predict(encode(i % 2, a1)), encode(1 - i % 2, a2)), [i % 2])
    for i, network in enumerate(spy.made):
        assert torch.allclose(network.b[0], thresholds[i], atol=1e-5)
        for own, plain in zip(network.affine, norms[i].parameters()):
            assert torch.allclose(own[0, :, 0], plain, atol=1e-5)
        for V, plain, start in zip(network.layers, layers[i], network.start):
            assert torch.allclose(V[0], plain, atol=1e-5) and not torch.allclose(V[0], start[0], atol=1e-3)


@pytest.mark.parametrize("method", ["simclr", "simsiam", "noncl"])
def test_a_replica_trains_the_same_alone_and_among_others(method):
    head = "mlp" if method == "simsiam" else "linear"
    factors = dict(method=method, head=head, batch_norm="affine")
    crowd = landscape(**factors, seeds=3, sparsity=[0.1, 0.3], lr=[0.1, 0.3], keep=[0.5, 0.8])
    replicas, curves = sc.train(crowd)
    assert len(replicas) == 24 and curves["min"].shape == (3, 24) and curves["epoch"].tolist() == [0, 1, 2]
    i = next(i for i, r in enumerate(replicas) if (r["seed"], r["sparsity"], r["lr"], r["keep"]) == (2, 0.3, 0.3, 0.8))
    single = landscape(**factors, seeds=2, sparsity=0.3, lr=0.3, keep=0.8)
    alone = sc.train(single)[1]
    for name in set(curves) - {"epoch"}:
        assert np.allclose(curves[name][:, i], alone[name][:, 1], atol=1e-5, equal_nan=True), name


def test_every_factor_changes_the_run():
    base = dict(method="noncl", head="linear", warm=1.0, latents="iid", sparsity=0.2, n=64, batch_size=16, p=12, d=5, m=8, epochs=2, seeds=1, lr=0.1)
    other = dict(method="simclr", head="none", similarity="product", layers=2, batch_norm="affine", bias=0.5,
                 activation="authors", train_bias="no", normalise="rows", warm=2.0, warm_columns="aligned",
                 latents="authors", sparsity=0.5, masks="dependent", keep=0.9, noise=1.0, lr=0.5, epochs=3, batch_size=8, n=80, p=14, d=4, m=9, seeds=2)
    assert set(other) | {"temperature"} == set(sc.FACTORS)
    run = lambda factors: sc.train(sc.setting(factors, {}, True))[1]
    plain = run(base)
    differs = lambda a, b: a["loss"].shape != b["loss"].shape or abs(a["loss"][-1] - b["loss"][-1]).max() > 1e-6 or abs(a["min"][-1] - b["min"][-1]).max() > 1e-6
    for name, value in other.items():
        assert differs(run(base | {name: value}), plain), name
    assert differs(run(base | dict(method="simclr", temperature=0.5)), run(base | dict(method="simclr")))


def test_max_cosine_is_a_loop():
    W, M = torch.randn(2, 7, 9), torch.randn(2, 9, 4)
    ours = sc.max_cosine(W, M)
    for r in range(2):
        for j in range(4):
            best = max(abs(float(W[r, i] @ M[r, :, j] / (W[r, i].norm() * M[r, :, j].norm()))) for i in range(7))
            assert ours[r, j].item() == pytest.approx(best, abs=1e-6)


def test_support_separation_is_a_loop_and_perfect_at_the_truth():
    M = sc.sample(landscape(), 1, 0.1, 0.1)[0][None]  # (1, 12, 6)
    assert torch.allclose(sc.support_separation(3 * M.mT, M), torch.ones(1, 6), atol=1e-5)
    mixed = (M[:, :, :1] + M[:, :, 1:2]).mT  # the one neuron answers to two features alike
    assert torch.allclose(sc.support_separation(mixed, M)[0], torch.tensor([0, 0] + [-0.5**0.5] * 4), atol=1e-5)
    W, M = torch.randn(2, 8, 12), torch.randn(2, 12, 4)
    ours = sc.support_separation(W, M)
    cos = lambda r, i, j: abs(float(F.cosine_similarity(W[r, i], M[r, :, j], dim=0)))
    for r, j in itertools.product(range(2), range(4)):
        i = max(range(8), key=lambda i: cos(r, i, j))
        others = max(cos(r, i, k) for k in range(4) if k != j)
        assert ours[r, j].item() == pytest.approx(cos(r, i, j) - others, abs=1e-5)


def test_spread_at_its_limits():
    spread = sc.spread(torch.stack([torch.ones(16, 5000), torch.randn(16, 5000)]))
    assert spread[0] < 1e-3 and spread[1] == pytest.approx(1, abs=0.02)


def test_warm_starts_are_the_features_plus_noise(spy):
    draw = lambda kind, seed: sc.warm_columns(kind, 50, 10, sc.generator(seed, 3))
    assert all(len(draw("covered", seed).unique()) == 10 for seed in range(200))
    missing = np.mean([len(draw("random", seed).unique()) < 10 for seed in range(2000)])
    exact = sum((-1)**(k + 1) * math.comb(10, k) * (1 - k / 10)**50 for k in range(1, 10))  # inclusion and exclusion
    assert missing == pytest.approx(exact, abs=0.02) and exact == pytest.approx(0.0507, abs=1e-3)
    for kind, same in (("random", False), ("aligned", True), ("covered", False)):
        spy.made.clear()
        sc.train(landscape(method="noncl", warm=6.0, warm_columns=kind, p=50, d=10, m=50))  # p^−3: hardly any noise
        M = sc.sample(landscape(p=50, d=10, m=50), 1, 0.1, 0.15)[0]
        columns = [(network.start[0][0] @ M).argmax(1) for network in spy.made]
        assert torch.equal(*columns) == same
    spy.made.clear()
    sc.train(landscape(method="noncl", warm=1.0, p=20, d=20, m=20))
    noise = spy.made[0].start[0][0] - sc.sample(landscape(p=20, d=20), 1, 0.1, 0.1)[0].T
    assert noise.std().item() == pytest.approx(20**-0.5, rel=0.1)


def test_theorem_1a_every_non_negative_W_is_a_minimum_of_eq_6():
    d, keep = 4, 0.3
    W = F.normalize(torch.randn(300, d, d, dtype=torch.float64), dim=1)
    for U in (W[0], W[0].abs()):
        naive = 0  # the loss as the paper writes it: over latents and all pairs of masks
        masks = [torch.tensor(bits, dtype=U.dtype) for bits in itertools.product((0.0, 1.0), repeat=d)]
        chance = lambda D: math.prod(keep if bit else 1 - keep for bit in D.tolist())
        for j in range(d):
            e = torch.eye(d, dtype=U.dtype)[j]
            for D1, D2 in itertools.product(masks, masks):
                naive += chance(D1) * chance(D2) * (2 - 2 * float(F.relu(U @ (D1 * e)) @ F.relu(U @ (D2 * e)))) / d
        assert sc.loss_6(U, keep).item() == pytest.approx(naive, abs=1e-9)
    assert torch.allclose(sc.loss_6(W.abs(), keep), torch.full((300,), 2 - 2 * keep**2, dtype=W.dtype), atol=1e-9)
    mixed = (W < 0).any(2).any(1)
    assert mixed.all() and (sc.loss_6(W, keep) > 2 - 2 * keep**2 + 1e-6).all()


def test_theorem_1b_loss_is_its_definition():
    d, keep, beta = 3, 0.4, 2.0
    W = F.normalize(torch.randn(d, d, dtype=torch.float64), dim=0)
    h = lambda bit, j: F.relu(W[:, j]) * bit  # relu(W D e_j) depends on entry j of the mask only
    chance = lambda bits: math.prod(keep if bit else 1 - keep for bit in bits)
    shared, literal = 0, 0
    for i in range(d):
        for first in (0, 1):
            for D2 in itertools.product((0, 1), repeat=d):
                S = [beta * float(h(first, i) @ h(D2[j], j)) for j in range(d)]
                shared -= chance([first]) * chance(D2) * (S[i] - math.log(sum(map(math.exp, S)))) / d
            mean = sum(chance([bit]) * math.exp(beta * float(h(first, i) @ h(bit, j))) for j in range(d) for bit in (0, 1))
            for positive in (0, 1):
                literal -= chance([first]) * chance([positive]) * (beta * float(h(first, i) @ h(positive, i)) - math.log(mean)) / d
    assert sc.loss_9(W, keep, beta).item() == pytest.approx(shared, abs=1e-9)
    assert sc.loss_9(W, keep, beta, literal=True).item() == pytest.approx(literal, abs=1e-9)


def test_theorem_1b_holds_for_a17_and_fails_for_eq_9_where_predicted():
    permutation = torch.eye(5, dtype=torch.float64)[torch.randperm(5)]
    for beta in (2.0, 5.0):
        assert sc.lowest_loss_9(5, 0.5, beta, False) > sc.loss_9(permutation, 0.5, beta).item() - 1e-6
    assert sc.loss_9(permutation, 0.5, 5.0, literal=True).item() == pytest.approx(1.738, abs=1e-3)
    assert sc.lowest_loss_9(5, 0.5, 5.0, True) == pytest.approx(1.354, abs=1e-3)
    # the counter-example: shrink the positive part of every column to c e_j, hide the rest in a negative entry
    c = math.sqrt(math.log(4.5 / 0.5) / 5.0)
    W = c * torch.eye(5, dtype=torch.float64) - math.sqrt(1 - c * c) * torch.eye(5, dtype=torch.float64).roll(1, 0)
    assert torch.allclose(W.norm(dim=0), torch.ones(5, dtype=W.dtype)) and sc.loss_9(W, 0.5, 5.0, True).item() == pytest.approx(1.354, abs=1e-3)
    below, above = math.log(4.5 / 0.5) - 0.2, math.log(4.5 / 0.5) + 0.2  # (1 − α) exp τ = d − α
    assert sc.lowest_loss_9(5, 0.5, below, True) > sc.loss_9(permutation, 0.5, below, True).item() - 1e-6
    assert sc.lowest_loss_9(5, 0.5, above, True) < sc.loss_9(permutation, 0.5, above, True).item() - 1e-4


def test_theorem_2_closed_form():
    lrs = (torch.rand(40) * 0.3).tolist()
    M = torch.linalg.qr(torch.randn(15, 6, dtype=torch.float64))[0]
    Wo, Wt = torch.randn(2, 9, 15, dtype=torch.float64)
    ends = sc.linear_descent(Wo, Wt, M, lrs, 0.95, 0.6, 0.4, 0.2)
    C1, C2, printed = sc.theorem_2(lrs, 0.95, 0.6, 0.4, 0.2)
    for end, start in zip(ends, (Wo, Wt)):
        assert (end @ M - (C1 * start + C2 * (Wo + Wt)) @ M).abs().max() < 1e-10
        assert (end @ M - (C1 * start + printed * (Wo + Wt)) @ M).abs().max() > 1e-3
    a = torch.randn(200_000, 15, dtype=torch.float64)  # one step against a sampled gradient: masks, latents and noise drawn
    z = (torch.rand(200_000, 6) < 0.4).double() * (1 - 2 * torch.randint(0, 2, (200_000, 6)))
    x = z @ M.T + 0.2 * a
    D1, D2 = (torch.rand(2, 200_000, 15) < 0.6).double()
    gradient = -2 * Wt @ ((D2 * x).T @ (D1 * x)) / len(x)
    step = sc.linear_descent(Wo, Wt, M, [0.1], 0.95, 0.6, 0.4, 0.2)[0]
    assert (step - (0.95 * Wo - 0.1 * gradient)).abs().max() < 0.01


@pytest.mark.parametrize("bias,keep,kappa", [(0.5, 0.6, 0.5), (0.3, 0.9, 0.8)])
def test_theorem_3_converges_to_I_below_the_bound(bias, keep, kappa):
    ratio = kappa * keep**2 / (1 - bias)
    assert ratio < 1 and sc.growth(bias, keep, kappa) == pytest.approx(ratio, rel=0.01)
    W = [torch.eye(3, dtype=torch.float64) + (torch.rand(3, 3, dtype=torch.float64) - 0.5) / 15 for _ in range(2)]  # entries below 1/(10 d)
    for half in range(150 if ratio > 0.5 else 40):
        W[half % 2] = sc.half_round(W[half % 2], W[1 - half % 2], bias, keep, kappa)
    assert all((U - torch.eye(3)).abs().max() < 1e-4 for U in W)


def test_theorem_3_fails_above_the_bound():
    bias, keep, kappa = 0.5, 0.9, 0.9
    assert kappa * keep**2 > 1 - bias and sc.growth(bias, keep, kappa) == pytest.approx(1.458, rel=0.01)
    W = [torch.eye(3, dtype=torch.float64) + (torch.rand(3, 3, dtype=torch.float64) - 0.5) / 15 for _ in range(2)]
    for half in range(40):
        W[half % 2] = sc.half_round(W[half % 2], W[1 - half % 2], bias, keep, kappa)
    assert all((U - torch.eye(3)).abs().max() > 0.1 for U in W)


def test_landscape_results_are_complete(tmp_path):
    out = program("sparse_coding.py", "--experiment", "table1", "fig4", "budget", "theory", "--epochs", 2, "--seeds", 2, "--device", "cpu", "--out", tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    assert {r["experiment"] for r in found} == {"table1", "fig4", "budget", "theory"} and len(found) == 24 + 1 + 16 + 10
    for r in found:
        assert r["experiment"] in out and r["setting"] in out
        assert set(r) == {"experiment", "setting", "statistic", "lr_times_steps", "start", "end_mean", "end_std", "paper", "seeds", "verdict"}
    row = next(r for r in found if r["setting"] == "SimSiam, sparsity 0.3" and r["statistic"] == "median")
    curves = np.load(tmp_path / "curves.npz")
    assert row["paper"] == 0.45 and row["seeds"] == 2 and row["lr_times_steps"] == 0.5 * 2 * 8
    assert curves["table1/SimSiam, sparsity 0.3/median"].shape == (3, 2)
    assert row["end_mean"] == pytest.approx(curves["table1/SimSiam, sparsity 0.3/median"][-1].mean(), abs=1e-6)
    assert {"table1.png", "fig4.png", "budget.png", "theory.png", "config.json"} <= {p.name for p in tmp_path.iterdir()}
    changed = tmp_path / "changed"
    inside("sparse_coding.py --experiment table1 --epochs 1 --temperature 0.05 --out", changed)
    assert all(r["paper"] is None and r["verdict"] is None for r in json.loads((changed / "results.json").read_text()))  # not the paper's setting


def test_paper_setting_is_the_papers():
    """--paper against the numbers of Section 4.2, the captions and Table 1."""
    exact = lambda experiment, i: sc.setting(sc.EXPERIMENTS[experiment][i][1], {}, paper=True)
    for experiment in ("table1", *(f"fig{i}" for i in range(1, 8))):
        for i in range(len(sc.EXPERIMENTS[experiment])):
            s = exact(experiment, i)
            assert (s.n, s.batch_size, s.lr, s.epochs, s.keep, s.bias) == (1000, 512, [0.025], 8000, [0.5], 0)
            assert s.masks == "independent" and s.seeds == 5
            assert (s.p, s.d, s.m) == ((20, 20, 20) if experiment == "fig7" else (50, 10, 50))
            assert s.batch_norm != "no" or experiment == "fig1"
            assert s.noise[0] == pytest.approx(0.1517 if s.d == 10 else 0.0865, abs=1e-4)
            assert s.latents == ("onehot-plus" if experiment == "fig1" else "authors") and s.similarity == "cosine"
            assert s.lr[0] * s.epochs * s.steps == sc.BUDGET[s.method] == (400 if s.method == "simsiam" else 200)
    table1 = [exact("table1", i) for i in range(4)]
    assert [(s.method, s.head, s.batch_norm, s.activation) for s in table1] == [
        ("simclr", "linear", "yes", "srelu"), ("simclr", "linear", "affine", "authors"),
        ("simsiam", "linear", "yes", "srelu"), ("simsiam", "mlp", "affine", "authors")]
    assert all(s.temperature == [0.2] and s.sparsity == [0.1, 0.3] for s in table1)
    assert [exact("fig7", i).normalise for i in (0, 1)] == ["rows", "columns"]
    assert exact("fig7", 0).warm == [1, 1.25, 1.5, 2] and exact("fig4", 0).warm == exact("fig5", 0).warm == [1]
    assert exact("fig3", 0).layers == 2 and exact("fig6", 0).warm == [None]
    assert [exact(f"fig{i}", 0).head for i in (4, 5, 6, 7)] == ["none", "linear", "linear", "none"]
    assert [exact(name, 0).sparsity for name in ("fig2", "fig3")] == [[0.1, 0.3]] * 2
    assert sc.active_features(10, 0.2) == sc.active_features(10, 0.1)  # why .2 is left out
    fast = sc.setting({}, {}, paper=False)
    assert (fast.lr, fast.epochs, fast.batch_size, fast.seeds) == ([0.5], 100, 128, 3)


# ------------------------------------------------------------------------------------------------ the programs, as a user runs them
@pytest.fixture(scope="session")
def short_runs(tmp_path_factory):
    """Each method for two epochs on 600 images, once; → the run folders."""
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        inside(f"{method}.py {SHORT} --out", root / method)
    return root


@pytest.mark.parametrize("method", METHODS)
def test_a_run_leaves_its_record(short_runs, method):
    folder = short_runs / method
    assert {p.name for p in folder.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoint.pt", "backbone.pt", "top_images.png"}
    config = json.loads((folder / "config.json").read_text())
    assert config["epochs"] == 2 and config["torch"] == torch.__version__
    assert config.get("temperature", 0.2) == {"sparsehead": 0.5}.get(method, 0.2)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("epoch") for line in lines] == [1, 2, None] and lines[-1]["event"] == "final"
    assert set(lines[0]) >= {"loss", "lr", "images_per_s", "spread", "act"} and lines[1]["lr"] < 1e-12
    assert set(lines[-1]) >= {"lp1", "lp5", "knn5", "knn200", "cons", "entropy", "act", "live_dims", "corr", "p_at_1", "p_at_10",
                              "seconds_train", "images_per_s", "background_cons", "background_p_at_10"}
    keys = torch.load(folder / "backbone.pt", weights_only=True)
    common.resnet("resnet8", 32)[0].load_state_dict(keys, strict=True)


@pytest.mark.parametrize("method", METHODS)
def test_eval_only_gives_the_same_numbers(short_runs, tmp_path, method):
    inside(f"{method}.py", "--eval-only", short_runs / method / "checkpoint.pt", "--device", "cpu", "--out", tmp_path)
    ours, theirs = final(tmp_path), final(short_runs / method)
    timing = {"seconds_train", "images_per_s"}
    assert {k: v for k, v in ours.items() if k not in timing} == {k: v for k, v in theirs.items() if k not in timing}


def record(folder):
    """What a run leaves, but for times: the lines of metrics.jsonl, and the weights."""
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("images_per_s"), line.pop("seconds_train", None)
    return lines, {k: v.numpy().tobytes() for k, v in torch.load(Path(folder) / "checkpoint.pt", weights_only=True)["model"].items()}


SHORT = "--epochs 2 --limit 600 --batch-size 200 --device cpu"


def test_same_seed_same_numbers_other_seed_others(short_runs, tmp_path):
    program(*f"bayesncl.py {SHORT} --seed 1 --gate ste --out".split(), tmp_path / "1")
    inside(f"bayesncl.py {SHORT} --seed 2 --out", tmp_path / "2")
    assert record(tmp_path / "1") == record(short_runs / "bayesncl") and record(tmp_path / "2")[0][0] != record(tmp_path / "1")[0][0]


@pytest.mark.parametrize("command", [
    "simclr.py --head none --loss spectral --optimizer lars --lr 0.1", "simclr.py --head linear --precision fp32 --image-size 24 --blur 0.5 --crop bicubic",
    "simclr.py --preset default --arch resnet8 --jitter 0.2 --gray 0.5", "sparsehead.py --preset cifar10 --arch resnet8 --bias-lr 1e-3 --order crop-colour",
    "ncl.py --activation softplus --topk 20 --min-scale 0.3", "ncl.py --loss spectral --activation relu --weight-decay 1e-5",
    "bayesncl.py --gate gumbel --gate-layers 3 --similarity ipw", "bayesncl.py --gate soft --no-detach --head none",
    "bayesncl.py --gate none --precision bf16 --gate-layers 1", "bayesncl.py --gate logistic --optimizer sgd --lr 0.1",
    "sparsehead.py --base byol --head linear --momentum 0.9 --finetune 0.2 1 --finetune-epochs 1", "sparsehead.py --base barlow --prox --sparse-weight 1",
    "sparsehead.py --base barlow --barlow-weight 0.1 --head none --sparse-weight 0 --optimizer lars --finetune 0.5 --finetune-epochs 1 --finetune-lr 0.1 --classifier-lr 1",
    "simsiam.py --no-predictor --optimizer adam --lr 1e-3 --deterministic", "simsiam.py --no-stop-grad --projector-layers 2 --jitter 0.4 --zero-init-residual"])
def test_options_run(tmp_path, command):
    inside(command, "--epochs", 1, "--limit", 300, "--batch-size", 100, "--out", tmp_path)
    assert math.isfinite(json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["loss"])


def test_a_handful_of_test_images_is_enough(tmp_path):
    np.savez(tmp_path / "few.npz", **arrays(n=64, size=32))
    inside("ncl.py", "--dataset", "few", "--data-root", tmp_path, "--arch", "resnet8", "--epochs", 1, "--batch-size", 32, "--out", tmp_path / "run")
    assert final(tmp_path / "run")["p_at_10"] is None and final(tmp_path / "run")["p_at_5"] is not None


def test_unlabelled_arrays_train(tmp_path, capsys):
    a = arrays(n=64, size=32)
    np.savez(tmp_path / "mine.npz", x_train=a["x_train"], x_test=a["x_test"])
    inside("ncl.py --dataset mine --arch resnet8 --epochs 1 --batch-size 32 --head-hidden 64 --data-root", tmp_path, "--out", tmp_path / "run")
    assert "n/a" in capsys.readouterr().out and final(tmp_path / "run")["act"] > 0 and "lp1" not in final(tmp_path / "run")


@pytest.mark.parametrize("command,message", {
    "simclr.py --dataset shaps": "did you mean shapes",
    "simclr.py --epochs 0": "--epochs: 0 is not above 0",
    "simclr.py --epochs many": "--epochs: invalid int value: 'many'",
    "simclr.py --batch-size 1": "--batch-size: 1 is not above 1",
    "simclr.py --limit 100": "--batch-size 256: shapes has 100 training images",
    "simclr.py --lr nan": "--lr: nan is not above 0 and finite",
    "simclr.py --lr inf": "--lr: inf is not above 0 and finite",
    "simclr.py --blur 1.5": "--blur: 1.5 is not between 0 and 1",
    "simclr.py --seed 100000000000000000000000": "--seed: 100000000000000000000000 is not between",
    "simclr.py --out README.md": "--out README.md is taken",
    "simclr.py --out README.md/run": "--out README.md/run is taken or cannot be written",
    "simclr.py --image-size 4": "--image-size: 4 is not above 7",
    "simclr.py --limit 1": "--limit: 1 is not above 1",
    "simclr.py --data-root nowhere --dataset mine": "no data set 'mine'",
    "simclr.py --data-root {tmp} --dataset empty": "Couldn't find any class folder",
    "simclr.py --checkpoint-every 0": "--checkpoint-every: 0 is not above 0",
    "simclr.py --resume nowhere": "there is no run to go on with",
    "simclr.py --resume {tmp}/cut": "there is no run to go on with",
    "sparse_coding.py --resume nowhere": "there is no run to go on with",
    "ncl.py --temperature 0": "--temperature: 0 is not above 0",
    "ncl.py --topk 300": "--topk 300",
    "ncl.py --activation tanh": "invalid choice: 'tanh'",
    "ncl.py --no-such-flag": "unrecognized arguments: --no-such-flag",
    "bayesncl.py --prior 1": "--prior: 1 is not between 0 and 1",
    "bayesncl.py --device tpu": "--device tpu is not there",
    "bayesncl.py --eval-only README.md": "README.md cannot be used by bayesncl.py",
    "bayesncl.py --eval-only nowhere.pt": "nowhere.pt cannot be used by bayesncl.py",
    "sparsehead.py --head none": "--head none has no linear layer to make sparse",
    "sparsehead.py --finetune 2": "--finetune: 2 is not between 0 and 1",
    "sparsehead.py --compare-heads --eval-only README.md": "README.md cannot be used by sparsehead.py",
    "sparsehead.py --sparse-weight -1": "--sparse-weight: -1 is not at least 0",
    "simsiam.py --optimizer rmsprop": "invalid choice: 'rmsprop'",
    "simclr.py --preset mine": "--preset mine: there are cifar10, cifar100, imagenet100, shapes, default, imagenet",
    "simsiam.py --projector-layers 0": "--projector-layers: 0 is not above 0",
    "sparse_coding.py --d 60": "--d 60 orthonormal features need at least as many observed dimensions; --p is 50",
    "sparse_coding.py --keep 0": "--keep: 0 is not between",
    "sparse_coding.py --keep 0.5 1.2": "--keep: 1.2 is not between",
    "sparse_coding.py --warm-columns aligned": "--warm-columns needs a warm start",
    "sparse_coding.py --experiment fig4 --warm-columns covered --m 8": "--m 8 neurons cannot cover --d 10 features",
    "sparse_coding.py --batch-size 2000": "--batch-size 2000 is more than --n 1000 samples",
    "sparse_coding.py --experiment table1 --d 1": "Pr 0.3 asks for 2 active features of --d 1",
    "sparse_coding.py --experiment fig4 --head mlp": "--head mlp is SimSiam's",
    "sparse_coding.py --experiment table1 --similarity product": "--similarity product: --method simclr has cosines",
    "sparse_coding.py --experiment fig1 --activation authors": "--activation authors without batch normalisation",
    "sparse_coding.py --experiment fig8": "invalid choice: 'fig8'",
    "sparse_coding.py --lr -1": "--lr: -1 is not above 0",
    "sparse_coding.py --epochs 2.5": "--epochs: invalid int value",
    "sparse_coding.py --experiment fig1 --epochs 2 --lr 1e30 --out {tmp}": "the loss is not finite in epoch 1",
}.items())
def test_bad_flags_end_in_one_line(command, message, tmp_path, monkeypatch):
    monkeypatch.chdir(HERE)
    (tmp_path / "empty" / "train").mkdir(parents=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "config.json").write_text('{"method": "simcl')
    assert message in refused(command.format(tmp=tmp_path))
    assert {p.name for p in tmp_path.iterdir()} <= {"empty", "cut", "config.json", "memory"}  # nothing half-written


def test_a_checkpoint_of_another_method_is_refused(short_runs, tmp_path):
    path = short_runs / "simclr" / "checkpoint.pt"
    assert "it is a checkpoint of simclr.py" in program("ncl.py", "--eval-only", path, ok=False)
    (tmp_path / "cut.pt").write_bytes(path.read_bytes()[:20000])
    assert "cannot be used" in refused("simclr.py --eval-only", tmp_path / "cut.pt")
    assert "does not fit these settings" in refused("simclr.py --head-out 32 --eval-only", path, "--out", tmp_path / "o")


def test_a_run_never_overwrites_another(short_runs):
    before = (short_runs / "ncl" / "metrics.jsonl").read_bytes()
    assert "is taken" in refused("ncl.py --limit 600 --out", short_runs / "ncl")
    assert (short_runs / "ncl" / "metrics.jsonl").read_bytes() == before


# ---------------------------------------------------------------------------------------------------- unbreakable: interruption, damage
def kill(command, seconds, started):
    """Start a program, SIGKILL it the given time after the file `started` is there; → whether it was still running."""
    process = subprocess.Popen([sys.executable, *map(str, command)], cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not started.exists() and process.poll() is None:
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_ends_like_an_uninterrupted_one(short_runs, tmp_path, method):
    delay = random.Random(method).uniform(0, 2.5)
    kill([HERE / f"{method}.py", *SHORT.split(), "--checkpoint-every", 1, "--out", tmp_path / "run"], delay, tmp_path / "run" / "config.json")
    inside(f"{method}.py --resume", tmp_path / "run")
    assert record(tmp_path / "run") == record(short_runs / method), f"killed after {delay} s"
    assert not list((tmp_path / "run").glob("*.tmp"))


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path, monkeypatch):
    """Each image program killed four times on its way; two programs at a time, a thread each."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def check(method):
        flags = ["--epochs", 8, "--limit", 600, "--batch-size", 100, "--image-size", 16, "--device", "cpu", "--checkpoint-every", 1]
        whole, run, chance = tmp_path / f"{method}-whole", tmp_path / method, random.Random(method)
        program(f"{method}.py", *flags, "--out", whole)
        command, kills = [HERE / f"{method}.py", *flags, "--out", run], 0
        for _ in range(4):
            kills += kill(command, chance.uniform(0, 1.5) + 3 * ("--resume" in command), run / "config.json")
            command = [HERE / f"{method}.py", "--resume", run]
        program(f"{method}.py", "--resume", run)
        assert record(run) == record(whole) and [line.get("epoch") for line in record(run)[0]] == [*range(1, 9), None]
        return kills

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(check, METHODS)) >= 15  # a fast machine may finish before its fourth


@pytest.mark.parametrize("method,number,step", [("simclr", signal.SIGTERM, 1), ("ncl", signal.SIGINT, 3), ("bayesncl", signal.SIGTERM, 5),
                                                ("sparsehead", signal.SIGINT, 2), ("simsiam", signal.SIGTERM, 6)])
def test_a_signal_ends_the_step_saves_and_says_so(short_runs, tmp_path, monkeypatch, capsys, method, number, step):
    log, steps = common.Run.log, itertools.count(1)

    def signalled(*args, **kwargs):
        if next(steps) == step:
            os.kill(os.getpid(), number)
        log(*args, **kwargs)

    monkeypatch.setattr(common.Run, "log", signalled)
    with pytest.raises(SystemExit) as stop:
        inside(f"{method}.py {SHORT} --out", tmp_path / "run")
    assert stop.value.code == 128 + number
    assert f"stopped by {number.name} in epoch {(step + 2) // 3}, step {(step - 1) % 3 + 1}; --resume {tmp_path / 'run'} goes on" in capsys.readouterr().out
    monkeypatch.undo()
    inside(f"{method}.py --resume", tmp_path / "run")
    assert record(tmp_path / "run") == record(short_runs / method)


def test_byol_resumes_its_target_and_momentum(tmp_path, monkeypatch):
    flags = "sparsehead.py --base byol --momentum 0.9 --epochs 2 --limit 200 --batch-size 100 --device cpu --checkpoint-every 1"
    inside(flags, "--out", tmp_path / "whole")
    end = common.Run.end_epoch
    monkeypatch.setattr(common.Run, "end_epoch", lambda run, epoch, lr: sys.exit(9) if epoch == 2 else end(run, epoch, lr))
    with pytest.raises(SystemExit):
        inside(flags, "--out", tmp_path / "run")
    monkeypatch.undo()
    inside("sparsehead.py --resume", tmp_path / "run")
    assert record(tmp_path / "run") == record(tmp_path / "whole") and any("target" in key for key in record(tmp_path / "run")[1])


@pytest.fixture
def three_epochs(tmp_path):
    """A complete run with a checkpoint of epoch 3 and one of epoch 2 beside it."""
    inside("simclr.py --epochs 3 --limit 200 --batch-size 100 --image-size 16 --device cpu --checkpoint-every 1 --out", tmp_path / "run")
    return tmp_path / "run"


def test_resume_takes_the_runs_settings_and_refuses_others(three_epochs):
    run, before = three_epochs, record(three_epochs)
    inside("simclr.py --batch-size 100 --resume", run)  # repeating one is fine
    assert record(run) == before
    assert "there is no such checkpoint" in refused("simclr.py --resume", run / "next.pt")
    for flags, message in {"--lr 0.5": "--lr 0.5 contradicts the run's 0.003", "--batch-size 50": "--batch-size 50 contradicts the run's 100",
                           "--epochs 2": "--epochs 2: ", "--out elsewhere": "--out elsewhere contradicts"}.items():
        assert message in refused(f"simclr.py {flags} --resume", run)
    assert "it is a run of simclr.py, not a run of ncl.py" in refused("ncl.py --resume", run)
    assert "there is no run to go on with" in refused("simclr.py --resume", run / "nowhere")
    assert record(run) == before
    inside("simclr.py --epochs 4 --resume", run)
    lines, _ = record(run)
    assert [line.get("epoch") for line in lines] == [1, 2, 3, 4, None] and lines[:3] == before[0][:3] and lines[3]["lr"] < 1e-9
    inside("simclr.py --resume", run)  # four epochs are now its setting
    assert record(run)[0] == lines


def test_a_run_of_an_older_version_is_evaluated_but_not_resumed(three_epochs, tmp_path):
    config = json.loads((three_epochs / "config.json").read_text())
    del config["warmup"]
    (three_epochs / "config.json").write_text(json.dumps(config))
    assert "an older version made this run, without --warmup" in refused("simclr.py", "--resume", three_epochs)
    checkpoint = torch.load(three_epochs / "checkpoint.pt", weights_only=True)
    del checkpoint["config"]["warmup"]
    torch.save(checkpoint, tmp_path / "old.pt")
    inside("simclr.py", "--eval-only", tmp_path / "old.pt", "--out", tmp_path / "again")
    assert "--preset and --eval-only" in refused("simclr.py", "--eval-only", tmp_path / "old.pt", "--preset", "default")


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_serves(three_epochs):
    run, before = three_epochs, record(three_epochs)
    (run / "checkpoint.pt").write_bytes((run / "checkpoint.pt").read_bytes()[:5000])
    assert f"The one before it: {run / 'previous.pt'}" in refused("simclr.py --resume", run)
    inside("simclr.py --resume", run / "previous.pt")
    assert record(run) == before


def test_a_full_disk_leaves_the_old_file(tmp_path):
    resource = pytest.importorskip("resource")
    path, limits = tmp_path / "checkpoint.pt", resource.getrlimit(resource.RLIMIT_FSIZE)
    common.replace(path, lambda file: torch.save({"a": 1}, file))
    before = path.read_bytes()
    for content in (torch.zeros(100_000), [torch.zeros(10) for _ in range(500)]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # a write beyond it fails like one to a full disk
        try:
            with pytest.raises(common.BadInput, match="could not be written, is the disk full"):
                common.replace(path, lambda file: torch.save(content, file), keep=tmp_path / "previous.pt")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_loss_that_is_not_finite_stops_the_run_at_its_step(tmp_path, monkeypatch, capsys):
    views, calls = common.two_views, itertools.count(1)
    monkeypatch.setattr(common, "two_views", lambda *args, **kwargs: [v * (math.nan if next(calls) > 9 else 1) for v in views(*args, **kwargs)])
    with pytest.raises(SystemExit) as stop:  # the fifth of six steps; two calls a step
        inside(f"ncl.py {SHORT} --checkpoint-every 1 --out", tmp_path)
    assert stop.value.code == 3 and "the loss is nan in epoch 2, step 2; the last checkpoint stays" in capsys.readouterr().err
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]["done"] == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_collapse_is_warned_about_once(tmp_path, monkeypatch, capsys):
    inside("bayesncl.py --epochs 3 --limit 500 --batch-size 50 --prior 0.01 --kl-weight 10 --device cpu --out", tmp_path)
    said = capsys.readouterr()
    assert said.err.count("every gate is off (gated_off 1 in epoch") == 1 and said.err.count("every dimension of the embedding is dead (act 0 in epoch") == 1
    assert final(tmp_path)["cons"] is None and "n/a" in said.out


def test_out_of_memory_names_a_batch_size(monkeypatch, tmp_path):
    def full(*args, **kwargs):
        torch.empty(10**15)
    monkeypatch.setattr(common, "two_views", full)
    assert "out of memory; try --batch-size 100" in refused(f"simclr.py {SHORT} --out", tmp_path)


def mutations(content: bytes, count: int, seed: int):
    """Copies of a file, cut off, with bytes flipped, a part moved, or filled with something else."""
    chance = random.Random(seed)
    for i in range(count):
        data, at = bytearray(content), chance.randrange(len(content))
        if i % 4 == 0:
            del data[at:]
        elif i % 4 == 1:
            for _ in range(chance.randint(1, 20)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif i % 4 == 2:
            other = chance.randrange(len(content))
            data[at:at + 64], data[other:other + 64] = data[other:other + 64], data[at:at + 64]
        else:
            data[at:at + 200] = chance.randbytes(200)
        yield bytes(data)


def test_damaged_arrays_never_end_in_a_traceback(tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays())
    np.savez_compressed(tmp_path / "small.npz", **arrays())
    outcomes = []
    for name in ("mine", "small"):
        for data in mutations((tmp_path / f"{name}.npz").read_bytes(), 250, 0):
            (tmp_path / "damaged.npz").write_bytes(data)
            try:
                outcomes.append(len(common.load_data("damaged", tmp_path).x_train))
            except common.BadInput as error:
                assert "\n" not in str(error)
                outcomes.append(None)
    assert len(outcomes) == 500 and outcomes.count(None) > 250
    keys = [*arrays()]
    for names in itertools.permutations(keys):  # the right arrays under wrong names
        np.savez(tmp_path / "swapped.npz", **dict(zip(names, arrays().values())))
        with contextlib.suppress(common.BadInput):
            common.load_data("swapped", tmp_path)


class Bomb:
    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_damaged_checkpoints_never_end_in_a_traceback(tmp_path, three_epochs):
    args = simclr.parser().parse(simclr.PRESETS, ["--resume", str(three_epochs)])
    backbone, d = common.resnet(args.arch, args.image_size)
    model = simclr.SimCLR(backbone, simclr.projection_head("mlp", d, 256, 256))
    optimizer = torch.optim.Adam(model.parameters())
    run = common.Run("simclr", args)
    run.state = model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    content, refusals = (three_epochs / "checkpoint.pt").read_bytes(), 0
    for data in mutations(content, 500, 1):
        (tmp_path / "damaged.pt").write_bytes(data)
        try:
            run.load(tmp_path / "damaged.pt", training=True)
        except common.BadInput as error:
            assert "\n" not in str(error)
            refusals += 1
    assert refusals > 450  # a damaged file name or date in the archive does no harm
    whole = torch.load(three_epochs / "checkpoint.pt", weights_only=True)
    for key, other in itertools.permutations(whole, 2):
        torch.save(whole | {key: whole[other]}, tmp_path / "damaged.pt")
        with contextlib.suppress(common.BadInput):
            run.load(tmp_path / "damaged.pt", training=True)
    bomb = Bomb()
    bomb.path = tmp_path / "went off"
    for content in (bomb, whole | {"config": bomb}):
        torch.save(content, tmp_path / "damaged.pt")
        with pytest.raises(common.BadInput):
            run.load(tmp_path / "damaged.pt", training=True)
    np.savez(tmp_path / "damaged.npz", **arrays() | {"y_train": np.array([bomb] * 20)})
    with pytest.raises(common.BadInput):
        common.load_data("damaged", tmp_path)
    assert not bomb.path.exists()


def test_a_killed_landscape_run_ends_like_an_uninterrupted_one(tmp_path):
    flags = ["--paper", "--experiment", "table1", "budget", "--epochs", 40, "--seeds", 2, "--device", "cpu"]
    inside("sparse_coding.py", *flags, "--out", tmp_path / "whole")
    often = "import sys, common, sparse_coding as sc; sc.REMEMBER = 0; common.launch(lambda: sc.main(sys.argv[1:]))"
    kill(["-c", often, *flags, "--out", tmp_path / "run"], 1.5, tmp_path / "run" / "config.json")
    assert list((tmp_path / "run" / "memory").iterdir()) and not (tmp_path / "run" / "theory.png").exists()
    inside("sparse_coding.py --resume", tmp_path / "run")
    assert (tmp_path / "run" / "results.json").read_bytes() == (tmp_path / "whole" / "results.json").read_bytes()
    ours, theirs = (np.load(tmp_path / run / "curves.npz") for run in ("run", "whole"))
    assert ours.files == theirs.files and all(np.array_equal(ours[key], theirs[key], equal_nan=True) for key in ours.files)
    assert "this run is complete" in refused("sparse_coding.py --resume", tmp_path / "run")


@pytest.mark.parametrize("environment", ["stdout closed", "40 columns, NO_COLOR", "no matplotlib"])
def test_poor_surroundings(tmp_path, environment):
    variables, prefix = os.environ | {"COLUMNS": "40", "NO_COLOR": "1"} if "40" in environment else os.environ, ""
    if environment == "no matplotlib":
        prefix = "import sys; sys.modules['matplotlib'] = None; "
    code = f"{prefix}import sys, common, ncl; common.launch(lambda: ncl.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *"--epochs 1 --limit 200 --batch-size 100 --out".split(), str(tmp_path / "run")]
    close = {"preexec_fn": lambda: os.close(1)} if environment == "stdout closed" else {"stdout": subprocess.PIPE}
    done = subprocess.run(command, cwd=HERE, env=variables, stderr=subprocess.PIPE, text=True, **close)
    assert done.returncode == 0 and final(tmp_path / "run")["event"] == "final", done.stderr
    assert environment != "no matplotlib" or "matplotlib is not installed: dimensions.png is left out" in done.stdout
    assert "\x1b" not in (done.stdout or "")


def test_every_flag_is_read():
    for method in METHODS:
        source = (HERE / f"{method}.py").read_text() + (HERE / "common.py").read_text()
        for action in METHODS[method].parser()._actions:
            if action.dest != "help":
                assert re.search(rf"(args|known)\.{action.dest}\b", source), f"{method}.py declares --{action.dest} and reads it nowhere"
        for name, preset in METHODS[method].PRESETS.items():
            assert preset.keys() <= {action.dest for action in METHODS[method].parser()._actions}, name


def test_every_command_in_readme_parses():
    commands = re.findall(r"^(?:torchrun [^\n]*?|(?:CUDA_VISIBLE_DEVICES=\d )?python )((?:simclr|ncl|bayesncl|sparsehead|simsiam|sparse_coding)\.py[^#\n]*)", (HERE / "README.md").read_text(), re.M)
    commands += [c for module in PROGRAMS.values() for c in re.findall(r"^    python (\w+\.py[^#\n]*?)(?:  .*)?$", module.__doc__, re.M)]
    assert len(commands) > 10
    for command in commands:
        script, *argv = shlex.split(command)
        PROGRAMS[script].parser().parse_args(argv)


def test_readme_files_exist():
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", (HERE / "README.md").read_text()):
        assert (HERE / path).exists(), path


def test_method_files_import_common_and_nothing_else_of_ours():
    ours = {path.stem for path in HERE.glob("*.py")} - {"common"}
    assert not ours & set(re.findall(r"^(?:import|from) (\w+)", (HERE / "sparse_coding.py").read_text(), re.M))
    for method in METHODS:
        imported = set(re.findall(r"^(?:import|from) (\w+)", (HERE / f"{method}.py").read_text(), re.M))
        assert imported <= {"torch", "torchvision", "numpy", "common", *sys.stdlib_module_names}, imported


# ------------------------------------------------------------------------------------------------ the runs on record, and README's tables
def test_readme_quotes_the_runs_on_record():
    for path, text in report.pages().items():
        assert path.read_text() == text, "python results/report.py puts the tables of results/ into README.md"


def test_readme_shows_what_the_first_command_printed():
    first = report.runs("shapes-bayesncl-seed1-two-threads")[0]
    assert common.table("bayesncl", first) in (HERE / "README.md").read_text() and first["config"]["seed"] == 1
    assert bayesncl.parser().parse(bayesncl.PRESETS, []).seed == 1


def test_every_record_has_its_settings_its_numbers_and_a_picture():
    folders = [file.parent for file in (HERE / "results").rglob("config.json")]
    assert len(folders) > 80
    for folder in folders:
        assert (folder / "curves.png").read_bytes()[1:4] == b"PNG", folder
        settings = json.loads((folder / "config.json").read_text())
        assert {"hardware", "torch", "date"} <= {*settings}, folder
        if (folder / "metrics.jsonl").exists():
            assert settings["seed"] is not None and settings["out"].endswith(folder.name), folder
            *epochs, last = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
            assert last["event"] == "final" and len(epochs) in (0, settings["epochs"]), folder
        else:
            assert json.loads((folder / "results.json").read_text()), folder


@pytest.fixture
def records(tmp_path, monkeypatch):
    """A folder of results, and a function that records a run in it, as a run of `epochs` would leave it."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)

    def add(name, **numbers):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"seed": int(name[-1])}))
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "open": 0.25}) + "\n" + json.dumps({"event": "final"} | numbers) + "\n")
    return add


def test_a_cell_is_the_mean_and_the_standard_deviation_over_seeds(records):
    assert report.cell("a-seed?", "{lp1:.1f}") == "–"
    records("a-seed1", lp1=1.0, cons=10.0), records("a-seed2", lp1=2.0, cons=20.0)
    assert report.cell("a-seed?", "{lp1:.1f}") == "1.5" and report.cell("a-seed1", "{open:.0%}") == "25 %"
    records("a-seed3", lp1=6.0, cons=60.0)
    assert report.cell("a-seed?", "{lp1:.1f} / {cons:.0f}") == "3.0 ± 2.6 / 30 ± 26"  # sqrt((4 + 1 + 9) / 2)
    assert report.cell("a-seed?", "{runs}") == "3" and report.cell("a-seed?", "{lp5:.1f}") == "–"
    assert report.image_table(["m"], {"LP": ("{}-seed[12]", "{lp1:.0f}")}, {("A",): "a", ("B",): "b"}) == [["m", "LP"], ["A", "2"], ["B", "–"]]
    assert report.with_tables("x\n| m | LP |\n|---|---|\n| old | 0 |\ny\n", [[["m", "LP"], ["A", "2"]]]) == "x\n| m | LP |\n|---|---|\n| A | 2 |\ny\n"
    records("a-seed4", lp1=None, cons=0.0)
    assert report.cell("a-seed?", "{lp1:.1f}") == "–", "a number that is undefined in one run has no mean"
    (report.RESULTS / "a-seed5").mkdir()
    (report.RESULTS / "a-seed5" / "metrics.jsonl").write_text("{}\n")
    assert len(report.runs("a-seed?")) == 4, "a run without its last line is none"
    with pytest.raises(ValueError, match="head of one table"):
        report.with_tables("x\n", [[["m", "LP"], ["A", "2"]]])


def test_settings_are_chosen_by_consistency_where_the_probe_does_not_suffer(records):
    (ncl,), (a, b, c, d) = study.tuning_runs()["ncl"], study.tuning_runs()["bayesncl"]
    numbers = {ncl: (40.0, 20.0), a: (39.5, 21.0), b: (38.9, 99.0), c: (39.1, 22.0), d: (60.0, 20.0)}  # probe, consistency
    with pytest.raises(common.BadInput, match="none of the settings of bayesncl"):
        study.chosen("bayesncl")
    for name, (lp1, cons) in numbers.items():
        records(name, lp1=lp1, cons=cons)
    assert study.chosen("bayesncl") == "--prior 0.5 --kl-weight 3e-5" and study.chosen("simclr") == ""
    for name, lp1 in zip(study.tuning_runs()["simsiam"], (30.0, 31.0)):
        records(name, lp1=lp1, cons=0.0)
    assert study.chosen("simsiam") == "--lr 0.2"


def test_a_study_skips_what_is_recorded_and_goes_on_where_it_was_interrupted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results"), monkeypatch.setattr(study, "RUNS", tmp_path / "runs")
    (tmp_path / "results").mkdir()
    short = "ncl.py --limit 100 --batch-size 50 --epochs 2 --checkpoint-every 1 --seed 1"
    assert not study.record("bad-seed1", short + " --batch-size 101", "cpu", "data") and not (tmp_path / "results" / "bad-seed1").exists()
    assert "bad-seed1: exit code 2: ncl.py: --batch-size 101: shapes has 100 training images" in capsys.readouterr().err
    assert study.final("bad-seed1") == {}
    assert study.record("whole-seed1", short, "cpu", "data")
    assert {file.name for file in (tmp_path / "results" / "whole-seed1").iterdir()} == {"config.json", "metrics.jsonl", "dimensions.csv"}
    shutil.copytree(tmp_path / "runs" / "whole-seed1", tmp_path / "runs" / "cut-seed1")
    lines = (tmp_path / "runs" / "cut-seed1" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs" / "cut-seed1" / "metrics.jsonl").write_text(lines[0])
    (tmp_path / "runs" / "cut-seed1" / "checkpoint.pt").unlink()  # previous.pt, after the first epoch, is left
    assert study.record("cut-seed1", short, "cpu", "data") and "--resume" in capsys.readouterr().out
    same = lambda name: {key: value for key, value in study.final(name).items() if key not in ("folder", "config", "seconds_train", "images_per_s")}
    assert same("cut-seed1") == same("whole-seed1")
    monkeypatch.setattr(study.subprocess, "Popen", lambda *_, **__: pytest.fail("it is recorded"))
    assert study.record("whole-seed1", short, "cpu", "data")


def test_the_validation_images_are_none_of_the_training_images(tmp_path, monkeypatch):
    y = torch.arange(20000) % 10
    whole = common.Data("cifar10", torch.arange(20000).view(-1, 1, 1, 1).expand(-1, 3, 1, 2).to(torch.int32).view(torch.uint8), torch.zeros(1), y, y)
    monkeypatch.setattr(common, "load_data", lambda name, root: whole)
    study.validation_set(tmp_path)
    with np.load(tmp_path / "cifar10-validation.npz") as z:
        train, test = ({*map(bytes, z[f"x_{part}"])} for part in ("train", "test"))
        assert len(train) == 10_000 and len(test) == 2_000 and not train & test
        assert (np.bincount(z["y_train"]) == 1000).all() and (np.bincount(z["y_test"]) == 200).all()
        assert np.array_equal(z["x_train"], common.first(whole, 10_000).x_train), "what --limit 10000 trains on"


# ------------------------------------------------------------------------------------------- fast: no waiting, no graph breaks, many processes
class HostReads(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts what would make a GPU wait: values that Python reads, and shapes that depend on values."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.count += name in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")
        self.count += name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("command", ["simclr.py --optimizer lars --lr 0.1", "simclr.py --loss spectral", "ncl.py --topk 20", "bayesncl.py --gate gumbel --similarity ipw",
                                     "sparsehead.py --base byol", "sparsehead.py --base barlow --prox", "simsiam.py"])
def test_nothing_is_read_back_within_an_epoch(tmp_path, monkeypatch, command):
    class Enough(Exception):
        pass

    def stop(*_):
        raise Enough
    monkeypatch.setattr(common.Run, "end_epoch", stop)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # the views as a GPU makes them
    reads, name = [], command.split()[0]
    for images in (100, 300):
        data = common.load_data("shapes", limit=images)
        monkeypatch.setattr(common, "load_data", lambda *args, **kwargs: data)
        with pytest.raises(Enough), HostReads() as seen:
            PROGRAMS[name].main([*command.split()[1:], "--batch-size", "50", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path / str(images))])
        reads.append(seen.count)
        monkeypatch.undo(), monkeypatch.setattr(common.Run, "end_epoch", stop), monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert reads[1] - reads[0] == 4, "four more steps may read the loss on a CPU, and nothing else"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_never_waits_within_an_epoch(tmp_path, monkeypatch, method):
    log, end = common.Run.log, common.Run.end_epoch
    monkeypatch.setattr(common.Run, "log", lambda *a, **k: (log(*a, **k), torch.cuda.set_sync_debug_mode("error")))  # from the second step on
    monkeypatch.setattr(common.Run, "end_epoch", lambda *a: (torch.cuda.set_sync_debug_mode("default"), end(*a)))
    inside(f"{method}.py --limit 1000 --batch-size 100 --epochs 1 --out", tmp_path)


def test_what_is_compiled_compiles_without_a_break():
    whole = lambda function: torch.compile(function, backend="eager", fullgraph=True)
    images = common.load_data("shapes").x_train[:8]
    v1, v2 = whole(common.two_views)(images, 32, min_scale=0.2, blur=0.5)
    assert v1.shape == v2.shape == (8, 3, 32, 32) and not torch.equal(v1, v2)
    backbone, head = common.resnet("resnet8", 32)[0], simclr.projection_head("mlp", 64, 16, 16)
    for model in (simclr.SimCLR(backbone, head), ncl.NCL(backbone, head, topk=4), bayesncl.BayesNCL(backbone, head, bayesncl.GatingHead(64, 16, 16), 16, ipw=True),
                  sparsehead.SparseHead(backbone, head, "simclr", 16, 16), simsiam.SimSiam(backbone, head, simsiam.bottleneck(16, 8))):
        model.eval()
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(whole(model)(v1), model(v1)))
    z1, z2 = torch.randn(2, 8, 16)
    for loss, args in ((simclr.nt_xent, (z1, z2, 0.2)), (simclr.spectral_loss, (z1, z2)), (bayesncl.bernoulli_kl, (z1.sigmoid(), 0.8)),
                       (sparsehead.byol_loss, (z1, z2)), (sparsehead.barlow_loss, (z1, z2)), (simsiam.negative_cosine, (z1, z2))):
        assert torch.allclose(whole(loss)(*args), loss(*args), atol=1e-5)


VARIANTS = ["simclr.py", "simclr.py --loss spectral", "ncl.py", "bayesncl.py --no-detach", "bayesncl.py --gate none", "bayesncl.py --similarity ipw",
            "sparsehead.py --base barlow", "sparsehead.py --base byol", "simsiam.py"]
FIRST_STEPS = f"""
import sys
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
import bayesncl, common, ncl, simclr, simsiam, sparsehead

torch.set_default_dtype(torch.float64)  # in float32, rounding flips a few ReLUs
found, folder = {{}}, sys.argv[1]
def two_views(x, size, **options):  # the same in every process
    x = common.normalise(x[..., ::2, ::2].double() / 255)
    return x, x.flip(3)
def evaluate(run, data, model):
    found[name]["model"] = {{k: v.clone() for k, v in model.state_dict().items()}}
    found[name]["features"] = common.features(model.float(), data.x_test[:101], 32)
    raise StopIteration
def log(run, images, **values):
    found[name]["logged"].append({{k: v.item() for k, v in values.items()}})
def hook(optimizer, args, kwargs):
    found[name]["gradients"].append([p.grad.clone() for group in optimizer.param_groups for p in group["params"] if p.grad is not None])
data = common.load_data("shapes", limit=64)
common.load_data = lambda *args: data  # drawn once
common.two_views, common.evaluate, common.Run.log = two_views, evaluate, log
common.Run.end_epoch = lambda *args: None
register_optimizer_step_pre_hook(hook)

def main():
    global name
    for name in {VARIANTS}:
        found[name] = dict(logged=[], gradients=[])
        program, *flags = name.split()
        try:
            globals()[program[:-3]].main([*flags, "--limit", "64", "--batch-size", "32", "--epochs", "1", "--precision", "fp32", "--device", "cpu",
                                          "--out", f"{{folder}}/{{common.world()}}/{{len(found)}}"])
        except StopIteration:
            pass
    if common.rank() == 0:
        torch.save(found, f"{{folder}}/{{common.world()}}.pt")
common.launch(main)
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


@pytest.fixture(scope="session")
def first_steps(tmp_path_factory):
    """The first two steps of each variant in 1, 2 and 4 processes, on the same views."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "steps.py").write_text(FIRST_STEPS)
    for command in ([sys.executable], [*TORCHRUN, "--nproc_per_node=2"], [*TORCHRUN, "--nproc_per_node=4"]):
        done = subprocess.run([*command, str(folder / "steps.py"), str(folder)], env=os.environ | {"PYTHONPATH": str(HERE)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return {world: torch.load(folder / f"{world}.pt", weights_only=True) for world in (1, 2, 4)}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_many_processes_compute_what_one_computes(first_steps, variant, world):
    one, many = first_steps[1][variant], first_steps[world][variant]
    assert len(one["logged"]) == 2 and one["logged"][0]["loss"] != one["logged"][1]["loss"]
    for a, b in zip(one["logged"], many["logged"]):
        assert a == pytest.approx(b, abs=1e-5), "the loss or the statistics"
    for a, b in zip(one["gradients"], many["gradients"]):
        scale = max(g.abs().max() for g in a)
        assert len(a) == len(b) and scale > 1e-3
        assert max((x - y).abs().max() for x, y in zip(a, b)) < 1e-4 * scale
    for key, value in one["model"].items():  # weights, and the running statistics of BatchNorm and ipw
        assert torch.allclose(value.double(), many["model"][key].double(), atol=1e-5), key
    assert all(len(a) == 101 and torch.allclose(a, b, atol=1e-4) for a, b in zip(one["features"], many["features"]))


def test_processes_draw_different_views_and_one_of_them_writes(tmp_path):
    """What torchrun's users do, with labels, evaluation and figures."""
    argv = ["--limit", "200", "--epochs", "1", "--batch-size", "100", "--out", str(tmp_path / "run")]
    done = subprocess.run([*TORCHRUN, "--nproc_per_node=2", str(HERE / "ncl.py"), *argv], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("epoch 1/1") == 1, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and {"lp1", "cons", "background_cons", "p_at_10_top_32"} <= set(lines[1])
    assert json.loads((tmp_path / "run" / "config.json").read_text())["processes"] == 2
    assert (tmp_path / "run" / "top_images.png").exists()
    first, second = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["generators"]
    assert not torch.equal(first[0], second[0])


# ------------------------------------------------------------------------------------------------------------------- accuracy gates
class TestGate:
    """The defaults of `python <method>.py`, trained for real (about a minute each on two cores)."""

    @pytest.fixture(scope="class")
    def scores(self, tmp_path_factory):
        root = tmp_path_factory.mktemp("gates")
        program("simclr.py", "--out", root / "simclr")
        side_by_side(*[(f"{method}.py", "--out", root / method) for method in ("ncl", "bayesncl")])
        return {method: final(root / method) for method in ("simclr", "ncl", "bayesncl")}

    def test_simclr_learns_the_objects(self, scores):
        assert scores["simclr"]["lp1"] >= 55 and scores["simclr"]["cons"] == pytest.approx(10, abs=0.1) and scores["simclr"]["seconds_train"] < 120

    def test_ncl_is_more_consistent_than_cl(self, scores):
        assert scores["ncl"]["cons"] >= 1.8 * scores["simclr"]["cons"]

    def test_bayesncl_is_more_consistent_than_cl_with_its_dimensions_alive(self, scores):
        assert scores["bayesncl"]["cons"] >= 1.8 * scores["simclr"]["cons"]
        assert scores["bayesncl"]["live_dims"] >= 0.5 * scores["ncl"]["live_dims"]


class TestLandscapeGate:
    """sparse_coding.py at its fast setting reaches the paper's conclusions, and ours about its figure 4."""

    def test_contrastive_finds_the_features_and_non_contrastive_does_not(self):
        ends = {}
        for experiment, index in ("table1", 0), ("fig2", 1):
            s = sc.setting(sc.EXPERIMENTS[experiment][index][1] | dict(sparsity=0.1), {}, paper=False)
            ends[experiment] = sc.train(s)[1]["min"][-1]
        assert ends["table1"].mean() >= 0.85 and ends["fig2"].mean() <= 0.60

    def test_a_warm_start_lasts_where_the_networks_are_aligned(self):
        end = {}
        for columns in ("random", "aligned"):
            factors = sc.NONCL | dict(warm=1.0, warm_columns=columns, epochs=78, seeds=5)  # lr × steps 156
            end[columns] = sc.train(sc.setting(factors, {}, paper=False))[1]["min"][-1].mean()
        assert end["aligned"] >= 0.9 and end["random"] <= 0.72


@pytest.mark.slow
def test_simsiam_learns_and_collapses_without_its_stop_gradient(tmp_path):
    program("simsiam.py", "--out", tmp_path / "healthy")
    spreads = lambda run: [json.loads(line)["spread"] for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()[:-1]]
    assert final(tmp_path / "healthy")["lp1"] >= 50 and min(spreads("healthy")) > 0.5 and final(tmp_path / "healthy")["seconds_train"] < 120
    program("simsiam.py", "--no-stop-grad", "--image-size", 16, "--batch-size", 1000, "--lr", 0.4, "--epochs", 50, "--out", tmp_path / "collapsed")
    assert min(spreads("collapsed")) < 0.2 and final(tmp_path / "collapsed")["corr"] > 0.99  # to a line: the last norm keeps the batch's mean at 0;
    # on the line it may bounce: rounding decides whether the run ends at .1 or .2


@pytest.mark.slow
def test_sparsehead_costs_no_accuracy_and_unused_columns_grow_with_its_weight(tmp_path):
    side_by_side(*[("sparsehead.py", "--sparse-weight", weight, "--out", tmp_path / f"{weight:g}") for weight in (0, 1e-4)])
    assert final(tmp_path / "0.0001")["lp1"] >= final(tmp_path / "0")["lp1"] - 3
    side_by_side(*[("sparsehead.py", "--prox", "--sparse-weight", weight, "--out", tmp_path / f"{weight}") for weight in (3, 10)])
    unused = [final(tmp_path / f"{weight}")["unused_columns"] for weight in (0, 3, 10)]
    assert unused[0] < unused[1] < unused[2], unused


def gates_hold(scores):
    assert all(score["lp1"] >= 55 for score in scores.values())
    assert all(score["cons"] == pytest.approx(10, abs=0.1) if "simclr" in run else score["cons"] >= 18 for run, score in scores.items())


def test_gates_hold_for_the_five_seeds_on_record():
    scores = {run["folder"].name: run for method in ("simclr", "ncl", "bayesncl") for run in report.runs(f"shapes-{method}-seed[1-5]")}
    assert len(scores) == 15
    gates_hold(scores)


@pytest.mark.slow
def test_gates_hold_for_another_seed(tmp_path):
    """With seed 3 of BayesNCL in the next test."""
    side_by_side(*[(f"{method}.py", "--seed", 2, "--out", tmp_path / method) for method in ("ncl", "bayesncl")])
    gates_hold({method: final(tmp_path / method) for method in ("ncl", "bayesncl")})


@pytest.mark.slow
def test_gates_hold_in_two_processes(tmp_path):
    subprocess.run([*TORCHRUN, "--nproc_per_node=2", str(HERE / "bayesncl.py"), "--seed", "3", "--out", str(tmp_path)], check=True)
    assert final(tmp_path)["lp1"] >= 55 and final(tmp_path)["cons"] >= 18 and final(tmp_path)["live_dims"] >= 80


@pytest.mark.slow
@pytest.mark.skipif(math.isnan(common.peak_memory()), reason="reads the peak memory where Linux keeps it")
def test_training_from_a_map_larger_than_the_memory_it_may_use(tmp_path, large_map):
    """4 GB of images, while malloc gets 2 GB at most (RLIMIT_DATA does not count maps of files); the peak counts both."""
    code = """import resource, sys, common, simclr
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
simclr.main(sys.argv[1:])
print(common.peak_memory())"""
    argv = ["--dataset", "large", "--data-root", large_map(4), "--arch", "resnet8", "--image-size", 32, "--batch-size", 50, "--epochs", 1, "--out", tmp_path / "run"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, argv)], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 2000


@pytest.mark.slow
def test_a_compiled_run_leaves_an_uncompiled_checkpoint(tmp_path):
    program("bayesncl.py", "--compile", "--limit", 1280, "--epochs", 2, "--device", "cpu", "--out", tmp_path / "run")
    assert not any("_orig_mod" in key for key in torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["model"])
    first, second, last = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert second["loss"] < first["loss"] and last["seconds_train"] < 10  # the half minute of compilation is not in it
    inside("bayesncl.py --device cpu --eval-only", tmp_path / "run" / "checkpoint.pt", "--out", tmp_path / "again")
    assert final(tmp_path / "again")["lp1"] == last["lp1"]


@pytest.mark.slow
def test_augmentation_is_five_times_as_fast_as_torchvision_on_pil():
    images = common.load_data("shapes").x_train[:256]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours = common.seconds(lambda: common.augment(images, 32), 20)
    x, y = torch.randn(20, 4), torch.arange(20) % 10
    theirs = common.seconds(common.peer_calls(images, x, (x, y), (x, y), x)["augmentation"]["torchvision on PIL"])
    torch.set_num_threads(threads)
    assert theirs / ours >= 5


@pytest.mark.slow
def test_landscape_replicas_are_faster_together_and_faster_than_the_plain_loop():
    out = program("sparse_coding.py", "--benchmark", "--device", "cpu")
    assert [line.split(":")[0] for line in out.splitlines() if "plain loop" in line][1:] == ["SimCLR", "SimSiam", "non-contrastive"]
    ratios = [float(ratio) for ratio in re.findall(r"15 replicas: .*?, ([\d.]+) times as fast", out)]
    assert len(ratios) == 3 and min(ratios) > 1.5, out


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory where Linux keeps it")
def test_landscape_memory_grows_linearly_in_replicas():
    code = """import re, sparse_coding as sc
for seeds in (20, 60, 100):
    sc.train(sc.setting(sc.SIMCLR | dict(n=512, batch_size=256, epochs=1, seeds=seeds), {}, paper=True), records=1)
    print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])"""
    a, b, c = map(int, subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True, check=True).stdout.split())
    assert b > a and c - b < 1.5 * (b - a) and c - a < 80 * 10_000, (a, b, c)  # kB; under 10 MB a replica


if __name__ == "__main__":
    report.write()
