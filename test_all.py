"""Every test, in the order of the files: common.py, simclr.py, ncl.py, bayesncl.py, then the programs as a user runs them.

    python -m pytest test_all.py                  the suite, a few minutes; TestGate trains until a number is reached
    python -m pytest test_all.py -m slow          other seeds, speed against a peer
    python -m pytest test_all.py -k "not Gate"    without the trainings

Truth comes from closed forms, from loops written off the equation, and from torchvision's own operators.
"""
import hashlib
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torchvision.transforms.v2 import functional as TF

import bayesncl
import common
import ncl
import simclr

HERE = Path(__file__).resolve().parent
SHAPES_SHA = "17e90be89864656a"
METHODS = {"simclr": simclr, "ncl": ncl, "bayesncl": bayesncl}


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


def test_image_folder_is_decoded_once(tmp_path, capsys):
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
    with pytest.raises(common.BadInput, match="0.png cannot be read as an image"):
        common.load_data("pets", tmp_path, image_size=16)


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
    assert (data.x_unlabeled is not None) == (name == "stl10")
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


# ------------------------------------------------------------------------------------------------------ common.py: views
N = 300  # random parameters per operator


@pytest.mark.parametrize("height,width,size", [(32, 32, 32), (64, 64, 32), (96, 80, 32), (20, 32, 48)])
def test_resized_crop_is_torchvisions(height, width, size):
    x = torch.rand(N, 3, height, width)
    boxes = common.random_boxes(N, height, width, 0.08, "cpu")
    flip = torch.rand(N) < 0.5
    ours = common.resized_crop(x, *boxes, size, flip)
    for i in range(N):
        theirs = TF.resized_crop(x[i], *[int(b[i]) for b in boxes], [size, size], antialias=True)
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
    for kernel in (3, 9):
        ours = common.gaussian_blur(x, sigma, kernel)
        for i in range(50):
            assert (ours[i] - TF.gaussian_blur(x[i], kernel, sigma[i].item())).abs().max() < 1e-5


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


def test_views_differ_between_samples_and_between_each_other():
    x = common.load_data("shapes").x_train[:1].expand(64, -1, -1, -1)
    v1, v2 = common.two_views(x, 32)
    assert v1.shape == (64, 3, 32, 32) and v1.dtype == torch.float32
    assert torch.pdist(torch.cat([v1, v2]).flatten(1)).min() > 0
    assert -2.01 <= v1.min() and v1.max() <= 2.01


def test_views_without_randomness_are_the_image():
    x = common.load_data("shapes").x_train[:200]
    whole = common.augment(x, 32, min_scale=0.999999, jitter=(0, 0, 0, 0))  # what is left: flip and grey
    plain = x.float() / 255
    candidates = torch.stack([c(f(plain)) for f in (lambda t: t, lambda t: t.flip(3)) for c in (lambda t: t, lambda t: common.grayscale(t).expand_as(t))])
    choice = (candidates - whole).abs().amax((2, 3, 4)).min(0)
    assert choice.values.max() < 1e-5 and set(choice.indices.tolist()) == {0, 1, 2, 3}


def test_solarize_blur_and_colour_happen_at_their_rates():
    x = torch.full((2000, 3, 16, 16), 255, dtype=torch.uint8)
    x[..., ::2] = 200
    dark = (common.augment(x, 16, 0.999999, (0, 0, 0, 0), solarize=0.3).amax((1, 2, 3)) < 0.5).float().mean()
    assert abs(dark - 0.3) < 0.05
    colour = torch.rand(2000, 3, 1, 1).mul(255).byte().expand(-1, -1, 8, 8)
    changed = ((common.augment(colour, 8, jitter=(0, 0, 0, 0.2)) - colour / 255.0).abs().amax((1, 2, 3)) > 1e-3).float().mean()
    assert abs(changed - (1 - 0.2 * 0.8)) < 0.05  # jittered with 0.8 or grey with 0.2
    stripes = common.augment(x, 16, 0.999999, (0, 0, 0, 0), blur=0.4)[:, 0, 8].std(1)  # a blur of 3 pixels with σ > 0.4 halves them
    assert abs((stripes < 0.08).float().mean() - 0.4 * 1.6 / 1.9) < 0.05


def test_eval_view_is_the_central_square():
    x = torch.randint(0, 256, (4, 3, 40, 60), dtype=torch.uint8)
    expected = TF.resize(TF.center_crop(x.float() / 255, [40, 40]), [32, 32], antialias=True)
    assert (common.eval_view(x, 32) - (expected - 0.5) / 0.25).abs().max() < 1e-4
    assert torch.equal(common.eval_view(x[..., :40], 40), (x[..., :40].float() / 255 - 0.5) / 0.25)


# ----------------------------------------------------------------------------------- common.py: network and optimisation
def test_stem_and_feature_maps():
    for arch, d, millions in (("resnet8", 64, 0.08), ("resnet20", 64, 0.27), ("resnet18", 512, 11.17), ("resnet50", 2048, 23.5)):
        net, width = common.resnet(arch, 32)
        assert width == d and net(torch.zeros(2, 3, 32, 32)).shape == (2, d)
        assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, rel=0.05)
    small, large = common.resnet("resnet18", 64)[0], common.resnet("resnet18", 224)[0]
    assert small.conv1.stride == (1, 1) and small.conv1.padding == (1, 1) and isinstance(small.maxpool, nn.Identity)
    assert large.conv1.kernel_size == (7, 7) and large.maxpool.stride == 2
    assert small.layer1(small.conv1(torch.zeros(1, 3, 32, 32))).shape[-1] == 32


def test_backbone_loads_into_plain_torchvision(tmp_path):
    for size in (32, 224):
        torch.save(common.resnet("resnet18", size)[0].state_dict(), tmp_path / "backbone.pt")
        net = torchvision.models.resnet18()
        net.fc = nn.Identity()
        if size <= 64:
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


def test_lars_leaves_a_zero_weight_to_plain_steps():
    w = nn.Parameter(torch.zeros(2, 2))
    w.grad = torch.ones(2, 2)
    common.LARS([w], lr=0.1).step()
    assert torch.allclose(w, torch.full((2, 2), -0.1))


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
    assert ours["live_dims"] == len(live) == K - 1
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
        assert scores["act"] == 1 and scores["live_dims"] == 16
    one_hot = common.interpretability(F.one_hot(y).float(), {"": y})
    assert one_hot["cons"] == 100 and one_hot["entropy"] == 0 and one_hot["corr"] == 0 and one_hot["p_at_1"] == 100


def test_undefined_metrics_are_none_and_printed_as_such():
    scores = common.interpretability(torch.zeros(20, 4), {"": torch.arange(20) % 2})
    assert scores["cons"] is None and scores["entropy"] is None and scores["corr"] is None and scores["live_dims"] == 0
    lines = common.table("ncl", scores).splitlines()
    assert lines[2].count("n/a") == 7 and len({len(line) for line in lines}) == 1


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
             "bayesncl": lambda: bayesncl.BayesNCL(backbone, head, bayesncl.GatingHead(d, 32, 16), 16, ipw=True)}[method]()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    args = module.parser().parse(module.PRESETS, ["--out", str(tmp_path), "--device", "cpu"])
    data = common.load_data("shapes", limit=300)
    data.x_test, data.y_test, data.background_test = data.x_test[:200], data.y_test[:200], data.background_test[:200]
    metrics, e = common.evaluate(common.Run(method, args), data, model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert e.shape == (200, 16) and {"lp1", "lp5", "knn5", "knn200", "cons", "background_cons", "background_lp1", "corr"} <= set(metrics)
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


def test_feature_selection_ranks_by_activation():
    y = torch.arange(200) % 4
    e = torch.cat([F.one_hot(y, 4) * 3.0, 0.5 * torch.rand(200, 28)], 1)  # four strong dimensions that tell the class
    scores = ncl.feature_selection(e, y)
    assert list(scores) == ["p_at_10_top_4", "p_at_10_top_8", "p_at_10_top_16", "p_at_10_top_32"] and scores["p_at_10_top_4"] == 100
    assert ncl.feature_selection(e, None) == {}


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
    m, alpha = bayesncl.gate(logits, "gumbel", noise=True)
    assert set(m.unique().tolist()) == {0.0, 1.0}
    assert (m - alpha).mean().abs() < 0.02  # logistic noise opens a gate with probability α
    assert ((m - alpha)[(alpha > 0.7) & (alpha < 0.8)]).mean().abs() < 0.03
    assert torch.equal(bayesncl.gate(logits, "gumbel")[0], (logits > 0).float())  # deterministic in evaluation


def test_gating_head_layers():
    for layers in (1, 2, 3):
        head = bayesncl.GatingHead(10, 20, 6, layers)
        assert head(torch.randn(4, 10)).shape == (4, 6) and sum(isinstance(m, nn.Linear) for m in head.modules()) == layers


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


# ------------------------------------------------------------------------------------------------ the programs, as a user runs them
@pytest.fixture(scope="session")
def short_runs(tmp_path_factory):
    """Each method for two epochs on 600 images, once; → the run folders."""
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        program(f"{method}.py", "--epochs", 2, "--limit", 600, "--batch-size", 200, "--device", "cpu", "--out", root / method)
    return root


@pytest.mark.parametrize("method", METHODS)
def test_a_run_leaves_its_record(short_runs, method):
    folder = short_runs / method
    assert {p.name for p in folder.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoint.pt", "backbone.pt", "top_images.png"}
    config = json.loads((folder / "config.json").read_text())
    assert config["epochs"] == 2 and config["torch"] == torch.__version__ and config["temperature"] == 0.2
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("epoch") for line in lines] == [1, 2, None] and lines[-1]["event"] == "final"
    assert set(lines[0]) >= {"loss", "lr", "images_per_s", "spread", "act"} and lines[1]["lr"] < 1e-12
    assert set(lines[-1]) >= {"lp1", "lp5", "knn5", "knn200", "cons", "entropy", "act", "live_dims", "corr", "p_at_1", "p_at_10",
                              "seconds_train", "images_per_s", "background_cons", "background_p_at_10"}
    keys = torch.load(folder / "backbone.pt", weights_only=True)
    common.resnet("resnet8", 32)[0].load_state_dict(keys, strict=True)


@pytest.mark.parametrize("method", METHODS)
def test_eval_only_gives_the_same_numbers(short_runs, tmp_path, method):
    program(f"{method}.py", "--eval-only", short_runs / method / "checkpoint.pt", "--device", "cpu", "--out", tmp_path)
    ours, theirs = final(tmp_path), final(short_runs / method)
    timing = {"seconds_train", "images_per_s"}
    assert {k: v for k, v in ours.items() if k not in timing} == {k: v for k, v in theirs.items() if k not in timing}


def test_same_seed_same_numbers_other_seed_others(short_runs, tmp_path):
    for seed in (1, 2):
        program("bayesncl.py", "--epochs", 2, "--limit", 600, "--batch-size", 200, "--device", "cpu", "--out", tmp_path / str(seed), "--seed", seed, "--gate", "ste")
    losses = [[json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()[:2]]
              for folder in (short_runs / "bayesncl", tmp_path / "1", tmp_path / "2")]
    assert losses[0] == losses[1] != losses[2]
    weights = [torch.load(folder / "backbone.pt", weights_only=True) for folder in (short_runs / "bayesncl", tmp_path / "1")]
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])


@pytest.mark.parametrize("command", [
    "simclr.py --head none --loss spectral --optimizer lars --lr 0.1", "simclr.py --head linear --precision fp32 --image-size 24 --blur 0.5",
    "ncl.py --activation softplus --topk 20 --min-scale 0.3", "ncl.py --loss spectral --activation relu --weight-decay 1e-5",
    "bayesncl.py --gate gumbel --gate-layers 3 --similarity ipw", "bayesncl.py --gate soft --no-detach --head none",
    "bayesncl.py --gate none --precision bf16 --gate-layers 1"])
def test_options_run(tmp_path, command):
    program(*shlex.split(command), "--epochs", 1, "--limit", 300, "--batch-size", 100, "--out", tmp_path)
    assert math.isfinite(json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["loss"])


def test_a_handful_of_test_images_is_enough(tmp_path):
    np.savez(tmp_path / "few.npz", **arrays(n=64, size=32))
    program("ncl.py", "--dataset", "few", "--data-root", tmp_path, "--arch", "resnet8", "--epochs", 1, "--batch-size", 32, "--out", tmp_path / "run")
    assert final(tmp_path / "run")["p_at_10"] is None and final(tmp_path / "run")["p_at_5"] is not None


def test_unlabelled_arrays_train(tmp_path):
    a = arrays(n=64, size=32)
    np.savez(tmp_path / "mine.npz", x_train=a["x_train"], x_test=a["x_test"])
    out = program("ncl.py", "--dataset", "mine", "--data-root", tmp_path, "--arch", "resnet8", "--epochs", 1, "--batch-size", 32,
                  "--head-hidden", 64, "--out", tmp_path / "run")
    assert "n/a" in out and final(tmp_path / "run")["act"] > 0 and "lp1" not in final(tmp_path / "run")


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
    "ncl.py --temperature 0": "--temperature: 0 is not above 0",
    "ncl.py --topk 300": "--topk 300",
    "ncl.py --activation tanh": "invalid choice: 'tanh'",
    "ncl.py --no-such-flag": "unrecognized arguments: --no-such-flag",
    "bayesncl.py --prior 1": "--prior: 1 is not between 0 and 1",
    "bayesncl.py --device tpu": "--device tpu is not there",
    "bayesncl.py --eval-only README.md": "README.md cannot be used by bayesncl.py",
    "bayesncl.py --eval-only nowhere.pt": "nowhere.pt cannot be used by bayesncl.py",
}.items())
def test_bad_flags_end_in_one_line(command, message):
    assert message in program(command, ok=False)


def test_a_checkpoint_of_another_method_is_refused(short_runs, tmp_path):
    path = short_runs / "simclr" / "checkpoint.pt"
    assert "it is a checkpoint of simclr.py" in program("ncl.py", "--eval-only", path, ok=False)
    (tmp_path / "cut.pt").write_bytes(path.read_bytes()[:20000])
    assert "cannot be used" in program("simclr.py", "--eval-only", tmp_path / "cut.pt", ok=False)
    assert "does not fit these settings" in program("simclr.py", "--eval-only", path, "--head-out", 32, "--out", tmp_path / "o", ok=False)


def test_a_run_never_overwrites_another(short_runs):
    before = (short_runs / "ncl" / "metrics.jsonl").read_bytes()
    assert "is taken" in program("ncl.py", "--limit", 600, "--out", short_runs / "ncl", ok=False)
    assert (short_runs / "ncl" / "metrics.jsonl").read_bytes() == before


def test_every_flag_is_read():
    for method in METHODS:
        source = (HERE / f"{method}.py").read_text() + (HERE / "common.py").read_text()
        for action in METHODS[method].parser()._actions:
            if action.dest != "help":
                assert re.search(rf"(args|known)\.{action.dest}\b", source), f"{method}.py declares --{action.dest} and reads it nowhere"
        for name, preset in METHODS[method].PRESETS.items():
            assert preset.keys() <= {action.dest for action in METHODS[method].parser()._actions}, name


def test_every_command_in_readme_parses():
    commands = re.findall(r"^(?:CUDA_VISIBLE_DEVICES=\d )?python ((?:simclr|ncl|bayesncl)\.py[^#\n]*)", (HERE / "README.md").read_text(), re.M)
    commands += [c for method in METHODS for c in re.findall(r"^    python (\w+\.py[^#\n]*?)(?:   .*)?$", METHODS[method].__doc__, re.M)]
    assert len(commands) > 10
    for command in commands:
        script, *argv = shlex.split(command)
        known = METHODS[script[:-3]].parser().parse_args([a for a in argv])
        assert known is not None


def test_readme_files_exist():
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", (HERE / "README.md").read_text()):
        assert (HERE / path).exists(), path


def test_method_files_import_common_and_nothing_else_of_ours():
    for method in METHODS:
        imported = set(re.findall(r"^(?:import|from) (\w+)", (HERE / f"{method}.py").read_text(), re.M))
        assert imported <= {"torch", "torchvision", "numpy", "common"}, imported


# ------------------------------------------------------------------------------------------------------------------- accuracy gates
class TestGate:
    """The defaults of `python <method>.py`, trained for real (about a minute each on two cores)."""

    @pytest.fixture(scope="class")
    def scores(self, tmp_path_factory):
        root = tmp_path_factory.mktemp("gates")
        for method in METHODS:
            program(f"{method}.py", "--out", root / method)
        return {method: final(root / method) for method in METHODS}

    def test_simclr_learns_the_objects(self, scores):
        assert scores["simclr"]["lp1"] >= 55 and scores["simclr"]["cons"] == pytest.approx(10, abs=0.1) and scores["simclr"]["seconds_train"] < 120

    def test_ncl_is_more_consistent_than_cl(self, scores):
        assert scores["ncl"]["cons"] >= 1.8 * scores["simclr"]["cons"]

    def test_bayesncl_is_more_consistent_than_cl_with_its_dimensions_alive(self, scores):
        assert scores["bayesncl"]["cons"] >= 1.8 * scores["simclr"]["cons"]
        assert scores["bayesncl"]["live_dims"] >= 0.5 * scores["ncl"]["live_dims"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_gates_hold_for_other_seeds(tmp_path, seed):
    for method in METHODS:
        program(f"{method}.py", "--seed", seed, "--out", tmp_path / method)
    scores = {method: final(tmp_path / method) for method in METHODS}
    assert all(s["lp1"] >= 55 for s in scores.values())
    assert scores["ncl"]["cons"] >= 18 and scores["bayesncl"]["cons"] >= 18 and scores["simclr"]["cons"] == pytest.approx(10, abs=0.1)


@pytest.mark.slow
def test_augmentation_is_five_times_as_fast_as_torchvision_on_pil():
    images = common.load_data("shapes").x_train[:256]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours = common.seconds(lambda: common.augment(images, 32), 20)
    theirs = common.seconds(common.peer_augmentations(images)["torchvision on PIL"])
    torch.set_num_threads(threads)
    assert theirs / ours >= 5
