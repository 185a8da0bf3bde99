"""Every test. Truth comes from closed forms, from loops written off the equation and from torchvision's own operators.

    python -m pytest             the suite, and tools/'s tests: at most 6 minutes on two cores
    python -m pytest -m slow     trainings with the defaults until a number is reached, as long again
"""
import argparse, ast, base64, colorsys, contextlib, csv, dataclasses, functools, hashlib, importlib, io, itertools, json, math
import os, re, shlex, shutil, subprocess, sys, threading, time, zipfile, zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np, pytest, torch, torch.nn as nn, torch.nn.functional as F, torchvision
from PIL import Image
from torchvision.transforms.v2 import functional as TF

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "tools")]

import bayesncl, common, interpret, lpjepa, mmncl, ncl, nce, sae, shapes, simclr, simsiam, sparsehead, sparse_coding as sc
import benchmark, decode, finetune, look, rarity, report, robustness, selection, sparsity, study, study_landscape, theory
import theory_gate, theory_nmf, words

METHODS = {module.__name__: module for module in (simclr, ncl, bayesncl, sparsehead, simsiam, nce, mmncl, lpjepa)}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def inside(command, *more):  # run a program as its users do, but in this process: importing torch takes seconds
    name, *argv = [*shlex.split(command), *map(str, more)]
    common.launch(lambda: importlib.import_module(Path(name).stem).main(argv))


def refused(command, *more):  # the one line with which a program refuses a command, or what a function in it does
    with pytest.raises(SystemExit) as stop, contextlib.redirect_stderr(io.StringIO()) as errors:
        common.launch(command) if callable(command) else inside(command, *more)
    assert stop.value.code == 2 and errors.getvalue().count("\n") == 1, errors.getvalue()
    return errors.getvalue()


def side_by_side(*commands):  # run programs at the same time, a thread each; three keep two cores busy
    run = functools.partial(subprocess.run, cwd=HERE, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, [[sys.executable, *map(str, command)] for command in commands]))


def lines(folder):  # metrics.jsonl of a run without times: a dict per epoch, and the final one
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("images_per_s", "seconds_train")} for line in records]


# ------------------------------------------------------------------------------------------------------ common.py: data
X, X_TEST = (np.random.default_rng(n).integers(0, 256, (n, 8, 8, 3), dtype=np.uint8) for n in (20, 8))
Y, Y_TEST = np.arange(20) % 4, np.arange(8) % 4
ARRAYS = dict(x_train=X, y_train=Y, x_test=X_TEST, y_test=Y_TEST)
nchw = lambda x: x.transpose(0, 3, 1, 2)
is_arrays = lambda data: all(np.array_equal(vars(data)[k], nchw(a) if a.ndim == 4 else a) for k, a in ARRAYS.items())


def test_built_in_images_are_the_same_bytes_and_as_captions_say_and_other_forms_of_data_load(tmp_path, monkeypatch):
    arrays = b"".join(array.tobytes() for _, array in sorted(shapes.draw().items()))
    assert hashlib.sha256(arrays).hexdigest().startswith("350083793bf2cda9")
    shifts = {}, dict(frequencies=shapes.UNSEEN), dict(paired=0.9, turn=2)
    plain, unseen, paired = scenes = [shapes.draw(0, 1000, **shift) for shift in shifts]
    for scene in scenes:
        for text, y, b in zip(*(scene[f"{key}_test"] for key in ("captions", "y", "background"))):
            assert {*words.split(text)} & {*shapes.OBJECTS, *shapes.UNSEEN} == {shapes.OBJECTS[y], [*shapes.UNSEEN][b]}
    assert {*unseen["background_test"]} == {5, 6} and np.array_equal(plain["y_test"], np.arange(1000) % 10)
    assert 0.9 < np.mean(paired["background_test"] == (paired["y_test"] + 2) % 5) < 0.95  # 0.9, a fifth of what is left
    for name, file in {"": shapes.OBJECTS, "-backgrounds": [*shapes.BACKGROUNDS]}.items():
        assert (HERE / f"assets/classes/shapes{name}.txt").read_text().split() == file
    np.savez(tmp_path / "keras.npz", **ARRAYS)
    np.savez(tmp_path / "torch.npz", **ARRAYS | dict(x_train=nchw(X), x_test=nchw(X_TEST)))
    np.savez(tmp_path / "gaps.npz", **ARRAYS | dict(y_train=10**6 * Y + 7, y_test=10**6 * Y_TEST + 7))
    np.savez(tmp_path / "medmnist.npz", train_images=X, train_labels=Y[:, None].astype(np.uint8), val_images=X,
             val_labels=Y, test_images=X_TEST, test_labels=Y_TEST[:, None])
    zipfile.ZipFile(tmp_path / "keras.npz").extractall(tmp_path / "mapped")  # a folder of .npy files
    assert all(is_arrays(common.load_data(path.stem, tmp_path)) for path in tmp_path.iterdir())
    np.savez(tmp_path / "grey.npz", x_train=X[..., 0], x_test=X_TEST[..., :1])
    data = common.load_data("grey", tmp_path)
    assert torch.equal(data.x_train, torch.from_numpy(nchw(X[..., [0, 0, 0]]))) and data.y_train is None
    np.savez(tmp_path / "more.npz", **ARRAYS, x_unlabeled=X[:15], background_train=Y // 2, background_test=Y_TEST // 2)
    data = common.load_data("more", tmp_path)
    assert is_arrays(data) and data.background_test.max() == 1 and data.steps(5) == 3  # pre-training sees the 15
    def download(root, download, train=None, split=None):  # torchvision's attributes, without its download
        parts = {"test": (X_TEST, Y_TEST), "train": (X, Y), "train+unlabeled": (X[:15], Y[:15])}
        cifar, (x, y) = kind.startswith("CIFAR"), parts[split or ("train" if train else "test")]
        return argparse.Namespace(**dict(data=x, targets=y.tolist()) if cifar else dict(data=nchw(x), labels=y))
    for name, kind in common.DOWNLOADS.items():
        monkeypatch.setattr(torchvision.datasets, kind, download)
        data = common.load_data(name, tmp_path)
        assert is_arrays(data) and len(data.images) == (15 if name == "stl10" else 20), name
        monkeypatch.setattr(torchvision.datasets, kind, None)  # calling it fails, as a download may
        assert f"{name} could not be downloaded" in refused(lambda: common.load_data(name, tmp_path))


def test_what_is_no_data_is_refused_a_limit_keeps_proportions_and_processes_share_seeded_batches(tmp_path, monkeypatch):
    texts = ARRAYS | dict(captions_train=np.array(["x"] * 20), captions_test=np.array(["x"] * 8))
    for message, arrays in {
            "no x_test": dict(x_train=X), "y_train and y_test go together": dict(x_train=X, y_train=Y, x_test=X_TEST),
            "x_train is float64": ARRAYS | dict(x_train=np.full(X.shape, np.nan)),
            "x_train has shape (20, 8, 8, 2)": ARRAYS | dict(x_train=X[..., :2]),
            "y_train is int64 of shape (19,)": ARRAYS | dict(y_train=Y[1:]), "(20,)": ARRAYS | dict(y_train=Y - 1),
            "y_test has classes that y_train has not: 9": ARRAYS | dict(y_test=np.where(Y_TEST == 3, 9, Y_TEST)),
            "cannot be read as plain numpy arrays": ARRAYS | dict(y_train=np.array([{}] * 20, dtype=object)),
            "captions_train and captions_test go together": ARRAYS | dict(captions_test=texts["captions_test"]),
            "captions_train is |S1 of shape (20,)": texts | dict(captions_train=np.array([b"x"] * 20)),
            "captions_test is <U1 of shape (7,)": texts | dict(captions_test=np.array(["x"] * 7)),
            "captions_train is <U1 of shape (20,)": texts | dict(captions_train=np.array([" "] + ["x"] * 19))}.items():
        np.savez(tmp_path / "bad.npz", **arrays)
        assert message in refused(lambda: common.load_data("bad", tmp_path))
    assert "no data set 'none'" in refused(lambda: common.load_data("none", tmp_path))
    x, y = torch.arange(100).view(100, 1, 1, 1), torch.tensor([0] * 6 + [1] * 3 + [2]).repeat(10)
    data = common.subset(common.Data("numbers", x, x, y, y, -y, captions_train=np.arange(100).astype(str)), 33)
    assert all(abs(count - share) < 1 for count, share in zip(data.y_train.bincount().tolist(), (19.8, 9.9, 3.3)))
    kept = data.x_train.flatten()
    assert (kept.diff() > 0).all() and torch.equal(data.background_train, -y[kept]) and data.x_test is x
    assert data.captions_train.tolist() == [str(i) for i in kept.tolist()]
    assert "--limit 34: numbers has 33" in refused(lambda: common.subset(data, 34))
    class Images(list):  # what of a tensor is used; every image is its own number
        device, threads = torch.device("cpu"), set()
        def __getitem__(self, index):
            self.threads.add((threading.current_thread() is threading.main_thread(), torch.get_num_threads()))
            return index
    data = common.Data("numbers", Images([0] * 10), None)
    take = lambda *key: [x.tolist() for x, index in data.batches(4, *key, "cpu") if torch.equal(x, index)]
    passes, whole, shares = [sum(take(seed, epoch), []) for seed in (0, 1) for epoch in (1, 2)], take(0, 1), []
    assert all(len(set(p)) == 8 == len(p) for p in passes) and len({tuple(p) for p in passes}) == 4
    assert sum(whole, []) == passes[0] and Images.threads == {(False, 1)}  # one core at most, the step has the others
    monkeypatch.setattr(common, "world", lambda: 2), monkeypatch.setattr(common, "rank", lambda: rank)
    for rank in (0, 1):
        shares.append(take(0, 1))
    assert [a + b for a, b in zip(*shares)] == whole and len(shares[1][0]) == 2
    assert "--batch-size 5: at most 10 images, and a multiple of 2" in refused(lambda: data.steps(5))


# ----------------------------------------------------------------------------------------------------- common.py: views
@pytest.mark.parametrize("kind,colour_first", [*itertools.product(["bilinear", "bicubic"], [False, True])])
@pytest.mark.parametrize("height,width,size", [(32, 32, 32), (64, 64, 32), (96, 80, 32), (20, 32, 48)])
def test_a_view_is_torchvisions_operators_one_after_the_other(monkeypatch, height, width, size, kind, colour_first):
    def crop(image, top, left, height, width, size, flip, kind):
        box, mode = map(int, (top, left, height, width)), torchvision.transforms.InterpolationMode(kind)
        image = TF.resized_crop(image, *box, [size, size], mode, antialias=True)
        return TF.horizontal_flip(image) if flip else image
    def compared(ours, theirs, x, *drawn):
        result = ours(x, *drawn)
        for i, image in enumerate(x):
            expected = theirs(image, *(a[i].item() if torch.is_tensor(a) else a for a in drawn))
            assert (result[i] - expected).abs().max() < 1e-5
        calls.append((theirs, x, result, drawn))
        return result
    calls, blur = [], lambda image, sigma: TF.gaussian_blur(image, 13, sigma)
    colour = TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue
    monkeypatch.setattr(common, "ADJUST", [functools.partial(compared, *pair) for pair in zip(common.ADJUST, colour)])
    monkeypatch.setattr(common, "resized_crop", functools.partial(compared, common.resized_crop, crop))
    monkeypatch.setattr(common, "gaussian_blur", functools.partial(compared, common.gaussian_blur, blur))
    x = torch.randint(0, 256, (96, 3, height, width), dtype=torch.uint8)
    x[:9, 1], x[20:30], x[30:40] = x[:9, 0], x[20:30, :1], x[30:40] // 128 * 255  # two equal channels, grey, saturated
    for images in x.split(8):
        views = common.augment(images, size, jitter=1.0, gray=0.0, blur=1.0, crop=kind, colour_first=colour_first)
        operators, inputs, outputs, _ = zip(*calls[-6:])
        assert operators.index(crop) == 4 * colour_first and operators.index(blur) == 5
        for before, after in zip([images / 255, *outputs], [*inputs, views]):
            assert torch.allclose(before.clamp(0, 1), after, atol=1e-6)
    for operator, neutral, reach in zip(colour, (1, 1, 1, 0), (1, 1, 1, 0.25)):
        factors = torch.cat([drawn[0] for theirs, _, _, drawn in calls if theirs is operator])
        assert 0.8 * reach < (factors - neutral).abs().max() <= reach


def test_boxes_colour_and_blur_come_at_their_rates_in_every_order_and_without_chance_views_are_the_image(monkeypatch):
    for height, width, scale in (32, 32, 0.08), (32, 50, 0.5), (32, 90, 0.5):
        top, left, h, w = boxes = common.random_boxes(4000, height, width, scale, "cpu")
        args, ours = (torch.empty(3, height, width), (scale, 1.0), (3 / 4, 4 / 3)), torch.stack(boxes, 1)
        theirs = torch.tensor([torchvision.transforms.RandomResizedCrop.get_params(*args) for _ in range(4000)]).float()
        assert min(top.min(), left.min(), h.min() - 1) >= 0 and (top + h).max() <= height and (left + w).max() <= width
        assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * ((ours.var(0) + theirs.var(0)) / 4000).sqrt() + 1e-3).all()
        assert torch.allclose(ours.std(0), theirs.std(0), rtol=0.1, atol=1e-3)
    x = torch.randint(0, 256, (200, 3, 32, 32), dtype=torch.uint8)
    v1, v2 = common.two_views(x[:1].expand(64, -1, -1, -1), 24)
    assert v1.shape == (64, 3, 24, 24) and v1.dtype == torch.float32 and -2.01 <= v1.min() and v1.max() <= 2.01
    assert torch.pdist(torch.cat([v1, v2]).flatten(1)).min() > 0
    whole, plain = common.augment(x, 32, min_scale=0.999999, jitter=0, blur=0), x / 255  # left: flip and grey
    candidates = [plain, plain.flip(3), *(common.grayscale(v).expand_as(v) for v in (plain, plain.flip(3)))]
    distance, choice = (torch.stack(candidates) - whole).abs().amax((2, 3, 4)).min(0)
    assert distance.max() < 1e-5 and set(choice.tolist()) == {0, 1, 2, 3}
    weak, same = (common.augment(x, 32, scale, 0, 0, 0, flip=0.0) for scale in (0.999999, 1.0))
    assert torch.equal(weak, same) and (weak - plain).abs().max() < 1e-5  # a weak view
    x = torch.randint(0, 256, (4, 3, 40, 60), dtype=torch.uint8)  # for evaluation: the central square
    square = lambda size: TF.resize(x[..., 10:50] / 255, [size, size], antialias=True)
    assert all((common.eval_view(x, size) - (square(size) - 0.5) / 0.25).abs().max() < 1e-5 for size in (32, 40))
    assert torch.equal(common.eval_view(x, 35), (x[..., 2:37, 12:47] / 255 - 0.5) / 0.25)  # as 224 of ImageNet's 256
    operators = [lambda x, _: 2 * x, lambda x, _: x + 1, lambda x, _: 3 * x, lambda x, _: x + 5]
    outcomes = {functools.reduce(lambda v, f: f(v, None), order, 1.0) for order in itertools.permutations(operators)}
    for whole in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: whole)  # a GPU, compiled code: an order per image
        x = torch.rand(2000, 3, 1, 1).mul(255).byte().expand(-1, -1, 8, 8)
        changed = (common.augment(x, 8, gray=0.5, blur=0) - x / 255).abs().amax((1, 2, 3)) > 1e-3
        assert abs(changed.float().mean() - (1 - 0.5 * 0.2)) < 0.03  # jittered with 0.8 or grey
        x = torch.tensor([200, 255], dtype=torch.uint8).repeat(2000, 3, 16, 8)  # stripes
        contrast = common.augment(x, 16, 0.999999, 0, blur=0.4)[:, 0, 8].std(1) / (55 / 510)
        assert abs((contrast < 0.65).float().mean() - 0.4 * (2 - 0.48) / 1.9) < 0.04  # σ above 0.48 leaves less
        with mock.patch.object(common, "ADJUST", operators):
            found = common.augment(torch.full((1600, 3, 8, 8), 255, dtype=torch.uint8), 32, blur=0)[:, 0, 0, 0]
        distance, order = (found[:, None] - torch.tensor([*outcomes])).abs().min(1)
        assert distance.max() < 0.02 and len(order.unique()) >= (len(outcomes) if whole else 6)  # white's luma: 0.9999
        assert whole or order.view(-1, 64).float().std(1).max() == 0  # a CPU draws one for 64 images


# ---------------------------------------------------------------------------------- common.py: network and optimisation
def test_networks_have_their_stems_and_load_into_plain_torchvision_and_its_mask_r_cnn(tmp_path):
    widths = dict(resnet8=64, resnet20=64, resnet18=512, resnet50=2048)
    for arch, zero in itertools.product(widths, (False, True)):  # residual branches end in a norm: of scale 0 it is off
        net, d = common.resnet(arch, 32, zero_init_residual=zero)
        blocks = [m for m in net.modules() if hasattr(m, "downsample")]
        assert len(blocks) > 2 and all((getattr(m, "bn3", m.bn2).weight == 0).all() == zero for m in blocks)
        assert d == widths[arch] and net(torch.zeros(2, 3, 32, 32)).shape == (2, d)
    theirs = torchvision.models.resnet18()
    for size, kernel, side in ((224, 7, 56), (64, 3, 32), (32, 3, 32)):  # 64: STL-10 and Tiny-ImageNet
        net = common.resnet("resnet18", size)[0]
        theirs.fc, theirs.conv1 = nn.Identity(), nn.Conv2d(3, 64, kernel, kernel // 3, kernel // 2, bias=False)
        theirs.load_state_dict(net.state_dict(), strict=True)
        assert net.maxpool(net.conv1(torch.zeros(1, 3, size, size))).shape[-1] == side
    torch.save(common.resnet("resnet50", 224)[0].state_dict(), file := tmp_path / "backbone.pt")
    code = re.search(r"^(detector = .*?)```", (HERE / "README.md").read_text(), re.S | re.M)[1]
    exec(code.replace("backbone.pt", str(file)), scope := {"torch": torch, "torchvision": torchvision})
    box = dict(boxes=torch.tensor([[5.0, 5, 40, 40]]), labels=torch.tensor([1]), masks=torch.ones(1, 64, 64))
    scope["detector"].transform.min_size = (64,)
    assert all(loss.isfinite() for loss in scope["detector"]([torch.rand(3, 64, 64)], [box]).values())


CIFAR, IMAGENET = "cifar10 cifar100", "imagenet100 imagenet"
STRONG, WEAK = dict(min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5), dict(min_scale=0.2, jitter=0.4, gray=0.2)  # views
NCL = STRONG | dict(arch="resnet18", image_size=32, epochs=200, batch_size=256, optimizer="lars", lr=0.4, warmup=10,
                    weight_decay=1e-4, temperature=0.2, head="mlp", head_hidden=2048, head_out=256, crop="bicubic")
WMSE = dict(batch_size=512, optimizer="adam", weight_decay=1e-6, schedule="step", head_hidden=1024)
LARGE = dict(arch="resnet50", image_size=224, epochs=1000, optimizer="lars", warmup=10, schedule="cosine")
SIMSIAM = WEAK | dict(batch_size=512, optimizer="sgd", head_out=2048, predictor_hidden=512, zero_init_residual=True)
PUBLISHED = [  # programs, data sets, and what the papers and the authors' code say of them
    ("simclr, ncl, bayesncl", CIFAR, NCL), ("simclr, ncl, bayesncl", "imagenet100", NCL | dict(
        image_size=224, epochs=100, batch_size=128, lr=0.3 * 128 / 256, head_hidden=16384, head_out=2048)),
    ("ncl, bayesncl", CIFAR, dict(activation="rep_relu")), ("ncl, bayesncl", "imagenet100", dict(activation="relu")),
    ("bayesncl", "imagenet100", dict(gate_lr=0.1, gate_hidden=16384)),
    ("bayesncl", CIFAR, dict(gate="ste", gate_layers=2, gate_hidden=2048, gate_lr=0.1, gate_temperature=1, prior=0.8,
                             kl_weight=3e-5, detach=True, similarity="cosine")),
    ("sparsehead", CIFAR + " stl10 tiny-imagenet-200", WMSE | WEAK | dict(arch="resnet18", head="mlp", momentum=0.99,
        temperature=0.5, sparse_weight=1e-4, gray=0.1, blur=0, crop="bicubic", order="colour-crop")),
    ("sparsehead, sparsehead --base wmse", CIFAR, dict(
        image_size=32, epochs=1000, lr=3e-3, head_out=64, whiten_size=128, whiten_splits=1)),
    ("sparsehead, sparsehead --base wmse", "stl10 tiny-imagenet-200", dict(
        image_size=64, lr=2e-3, head_out=128, whiten_size=256, whiten_splits=4)),
    ("sparsehead", "stl10", dict(epochs=2000)), ("sparsehead --base swav", CIFAR, dict(epochs=1000, temperature=0.1)),
    ("sparsehead --base wmse", IMAGENET, WMSE | STRONG | dict(lr=2e-3, head_out=128, whiten_size=256, whiten_splits=1)),
    *((f"sparsehead --base {base}", IMAGENET, LARGE | more | dict(
        batch_size=batch, lr=lr, weight_decay=decay, head_hidden=hidden, head_out=out))
      for base, batch, lr, decay, hidden, out, more in [
        ("simclr", 4096, 0.3 * 16, 1e-6, 2048, 128, dict(jitter=0.8, temperature=0.5)),
        ("byol", 4096, 0.2 * 16, 1.5e-6, 4096, 256, dict(jitter=0.4, momentum=0.996)),
        ("barlow", 2048, 0.2 * 8, 1.5e-6, 8192, 8192, dict(bias_lr=0.0048 * 8)),
        ("vicreg", 2048, 0.2 * 8, 1e-6, 8192, 8192, dict(jitter=0.4, gray=0.2)),
        ("ssl-hsic", 4096, 0.4 * 16, 1e-6, 4096, 256, dict(momentum=0.99)),
        ("swav", 64 * 64, 4.8, 1e-6, 2048, 128, STRONG | dict(temperature=0.1, prototypes=3000, crop="bilinear"))]),
    *(("lpjepa", names, WEAK | more | dict(mu=0, invariance_weight=25, match_weight=match, projections=8192,
       optimizer="lars", epochs=1000, weight_decay=1e-4, warmup=10, head_hidden=K, head_out=K))
      for names, match, K, more in [(CIFAR, 250, 512, dict(arch="resnet18", batch_size=256, lr=0.03)), (
          "imagenet100", 125, 2048, dict(arch="resnet50", batch_size=128, lr=0.165 * 128 / 256, blur=0.5))]),
    ("simsiam", CIFAR, SIMSIAM | dict(arch="resnet18", image_size=32, epochs=800, lr=0.03 * 2, weight_decay=5e-4,
                                      projector_layers=2, blur=0, crop="bilinear", stop_grad=True, predictor=True)),
    ("simsiam", "imagenet", SIMSIAM | dict(arch="resnet50", image_size=224, epochs=100, lr=0.05 * 2, weight_decay=1e-4,
                                           projector_layers=3, blur=0.5))]


def test_presets_lars_and_schedules_are_the_published_ones_any_preset_may_be_named_and_byols_momentum_grows_to_1():
    cases = [(p, n, known) for programs, names, known in PUBLISHED for p in programs.split(", ") for n in names.split()]
    for program, name, published in cases:
        method, *base = program.split()
        parse = lambda *flags: vars(METHODS[method].parser(*base[1:]).parse([*base, "--device", "cpu", *flags]))
        settings = lambda *flags: {k: v for k, v in parse(*flags).items() if k not in ("dataset", "preset", "command")}
        args, default = settings("--dataset", name), settings("--dataset", "mine")
        assert {key: args[key] for key in published} == pytest.approx(published)
        assert args == settings("--dataset", "mine", "--preset", name) != default
        assert default == settings("--dataset", name, "--preset", "default")
    start = [torch.randn(4, 3), torch.zeros(4, 3), torch.randn(4, 3), torch.randn(4)]
    for trust, clip in (0.02, True), (0.001, False):  # NCL's; SimCLR's and BYOL's
        params, velocity = [nn.Parameter(w.clone()) for w in start], [torch.zeros_like(w) for w in start]
        optimizer = common.LARS(params, lr=0.4, weight_decay=1e-2, momentum=0.9, trust=trust, clip=clip)
        for scale in (1.0, 1e-4, 5.0):  # clipping matters to a tiny gradient, which asks for a huge step
            for i, (p, v) in enumerate(zip(params, velocity)):
                p.grad, w, rate = scale * torch.randn_like(p) * (i != 2), p.detach().clone(), 1.0
                if w.ndim > 1 and w.norm() > 0:
                    rate = trust * w.norm() / (p.grad.norm() + 1e-2 * w.norm()) * (p.grad.norm() > 0)
                    rate = min(rate, 0.4) / 0.4 if clip else rate
                v.mul_(0.9).add_(rate * (p.grad + 1e-2 * w * (w.ndim > 1)))
            expected = [p.detach() - 0.4 * v for p, v in zip(params, velocity)]
            optimizer.step()
            assert all(torch.allclose(p, w, rtol=1e-4, atol=1e-6) for p, w in zip(params, expected))
    expected = [min((step + 1) / 11, 0.5 + 0.5 * math.cos(math.pi * max(0, step - 10) / 90)) for step in range(101)]
    assert [common.lr_at(step, 100, 10) for step in range(101)] == pytest.approx(expected) and common.lr_at(0, 100) == 1
    assert {step: rate for step in range(30) if (rate := common.lr_at(step, 30, 100)) >= 1} == {15: 1}  # short run
    groups = [dict(params=[nn.Parameter(torch.zeros(1))], **kw) for kw in ({}, {"lr": 2.0}, {"fixed_lr": True})]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    common.set_lr(optimizer, 0.5), common.set_lr(optimizer, 0.1)  # shares of the peak
    assert [group["lr"] for group in optimizer.param_groups] == [0.5 * 0.1, 2.0 * 0.1, 0.5]
    for name, images in (("cifar10", 50_000), ("stl10", 105_000), ("tiny-imagenet-200", 100_000)):
        assert round(sparsehead.PRESETS[name]["warmup"] * (images // 512)) == 500
    decay, at = sparsehead.step_decay, lambda step: decay(step, 97 * 1000, warmup=500, epochs=1000)  # W-MSE's
    assert [at(0), at(249), at(499), at(582)] == [1 / 500, 0.5, 1, 1]
    assert [at(97 * epoch) for epoch in (949, 950, 974, 975, 999)] == pytest.approx([1, 0.2, 0.2, 0.04, 0.04])
    momentum = [sparsehead.momentum_at(step, 100) for step in range(101)]
    assert momentum[0::50] == pytest.approx([0.99, 0.995, 1]) and momentum == sorted(momentum)


# ------------------------------------------------------------------------------------------------ common.py: evaluation
def test_the_probe_is_its_objectives_minimum_and_neighbours_vote_like_loops():
    """The probe agrees with LBFGS in float64 in the coordinates of the features, and never chooses on the test set."""
    y, y_test, mix = torch.arange(400) % 4, torch.arange(2000) % 4, 1 + 0.1 * torch.randn(20, 20)
    x, x_test = (3 * torch.eye(4, 20)[labels] + 2 * torch.randn(len(labels), 20) for labels in (y, y_test))
    a, b = (((part @ mix - (x @ mix).mean(0)) / (x @ mix).std(0)).double() for part in (x, x_test))
    weight, bias = wb = [torch.zeros(*shape, dtype=torch.double, requires_grad=True) for shape in ((20, 4), (4,))]
    def loss():
        value = F.cross_entropy(a @ weight + bias, y) + 1e-3 / 2 * weight.square().sum()
        weight.grad, bias.grad = torch.autograd.grad(value, wb)
        return value
    torch.optim.LBFGS(wb, max_iter=3000, tolerance_change=0, line_search_fn="strong_wolfe").step(loss)
    scale, order = torch.rand(20) + 0.1, torch.randperm(20)  # [SparseHead] Proposition 5.2: scaled, permuted features
    mixed = [(part @ mix * scale)[:, order] for part in (x, x_test)]
    scores = common.linear_probe(mixed[0], y, mixed[1], (b @ weight + bias).argmax(1), strengths=[1e-3])
    assert scores["lp1"] > 99 and scores["lp5"] == 100 and scores["l2"] == 1e-3  # with twice the l2: 96
    assert len({common.linear_probe(x, y, x_test, labels)["l2"] for labels in (y_test, 3 - y_test, 0 * y_test)}) == 1
    x_test, y_test, right = x_test[:50], y_test[:50], np.zeros(2)
    for query, label in zip(x_test, y_test.tolist()):
        votes, similarity = np.zeros((2, 4)), F.cosine_similarity(query[None], x)
        for place, j in enumerate(similarity.argsort(descending=True)[:200]):
            votes[:, y[j]] += place < 5, math.exp(similarity[j] / 0.1)
        right += votes.argmax(1) == label
    assert common.knn_accuracy(x, y, x_test, y_test) == pytest.approx([*right / 50 * 100])


# ------------------------------------------------------------------------------------------------------- interpret.py
N_IMAGES, N_DIMS, N_CLASSES = 60, 12, 4


def sparse_matrix(signed=False):
    """(60, 12) with three in ten entries active, a dead dimension, a duplicate and an empty row."""
    draw = np.random.default_rng(0)
    z = draw.random((N_IMAGES, N_DIMS)) * (draw.random((N_IMAGES, N_DIMS)) < 0.3)
    z *= draw.choice([-1, 1], z.shape) if signed else 1
    z[:, 3] = 0
    z[:, 7] = z[:, 2]
    z[5] = 0
    return z.astype(np.float32)


def dense_matrix():
    return np.random.default_rng(1).normal(size=(N_IMAGES, N_DIMS)).astype(np.float32)


MATRICES = {
    "sparse": sparse_matrix(),
    "signed": sparse_matrix(signed=True),
    "dense": np.abs(dense_matrix()),
}
LABELS = np.random.default_rng(2).permutation(np.arange(N_IMAGES) % N_CLASSES)
SIZES = np.bincount(LABELS)


@pytest.fixture(params=MATRICES, ids=MATRICES)
def z(request):
    return MATRICES[request.param]


@pytest.fixture
def activations(z):
    return interpret.nonzero(z)


def members(a, k):
    """The images of dimension k."""
    return a.images[a.start[k] : a.start[k + 1]]


def live(a):
    """The dimensions that are active on any image."""
    return [k for k in range(a.K) if a.n[k]]


def test_a_list_is_the_active_images_strongest_first(z, activations):
    strength = np.abs(z) / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    for k in range(N_DIMS):
        expected = [i for i in np.argsort(-strength[:, k], kind="stable") if strength[i, k] > 1e-5]
        assert members(activations, k).tolist() == expected


def test_a_sparse_matrix_has_the_lists_of_the_dense_one(z, activations):
    images, dims = np.nonzero(z)
    entries = interpret.Entries(images, dims, z[images, dims], *z.shape)
    found = interpret.nonzero(entries)
    assert np.array_equal(found.images, activations.images)
    assert np.allclose(found.values, activations.values, atol=1e-6)


def test_half_dimensions_are_the_largest_and_smallest_images():
    z = dense_matrix()
    rows = z / np.linalg.norm(z, axis=1, keepdims=True)
    a = interpret.activate(z, "top:0.1")
    assert {*members(a, 4)} == {*np.argsort(-rows[:, 4])[:6]}
    assert {*members(a, N_DIMS + 4)} == {*np.argsort(rows[:, 4])[:6]}
    assert [a.name(4), a.name(N_DIMS + 4)] == ["+4", "-4"]


def test_the_top_share_of_sparse_dimensions_is_active_there():
    z = sparse_matrix()
    whole, top = interpret.nonzero(z), interpret.activate(z, "top:0.1")
    for k in range(N_DIMS):
        assert members(top, k).tolist() == members(whole, k)[:6].tolist()


@pytest.mark.parametrize("z, rule", [(sparse_matrix(), "nonzero"), (dense_matrix(), "top:0.01")], ids=["sparse", "dense"])
def test_the_rule_is_chosen_by_the_share_of_entries(z, rule):
    assert interpret.rule_for(z) == rule


def test_consistency_entropy_and_f1_are_the_loops(z, activations):
    rows = np.abs(interpret.unit_rows(z))
    columns = interpret.of_label(activations, LABELS, np.zeros(N_IMAGES))
    for k in live(activations):
        counts = np.bincount(LABELS[members(activations, k)], minlength=N_CLASSES)
        mass = np.bincount(LABELS, rows[:, k], N_CLASSES)
        shares = mass[mass > 0] / mass.sum()
        assert columns["cons"][k] == pytest.approx(counts.max() / counts.sum())
        assert columns["entropy"][k] == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-6)
        assert columns["f1"][k] == pytest.approx(max(2 * counts / (counts.sum() + SIZES)))


def test_phi_is_the_correlation_with_a_class(activations):
    with np.errstate(invalid="ignore"):
        phi = interpret.matthews(interpret.class_counts(activations, LABELS, N_CLASSES), SIZES)
    for k in live(activations):
        active = np.isin(np.arange(N_IMAGES), members(activations, k))
        for c in range(N_CLASSES if active.std() else 0):
            assert phi[c, k] == pytest.approx(np.corrcoef(active, LABELS == c)[0, 1])


def test_average_precision_is_scikit_learns(z, activations):
    metrics = pytest.importorskip("sklearn.metrics")
    strength = np.abs(interpret.unit_rows(z)).round(1)  # rounded, so that some images tie
    a = interpret.lists(interpret.Entries(*np.nonzero(strength), strength[strength > 0], *z.shape))
    found = interpret.average_precision(a, LABELS, np.arange(N_DIMS) % N_CLASSES)
    for k in live(a):
        expected = metrics.average_precision_score(LABELS == k % N_CLASSES, strength[:, k])
        assert found[k] == pytest.approx(expected)


def test_information_is_scikit_learns_mutual_information(activations):
    metrics = pytest.importorskip("sklearn.metrics")
    counts = interpret.class_counts(activations, LABELS, N_CLASSES)
    for k, nats in enumerate(interpret.information(counts, SIZES)):
        active = np.isin(np.arange(N_IMAGES), members(activations, k))
        assert nats == pytest.approx(metrics.mutual_info_score(active, LABELS), abs=1e-9)


def test_expected_information_is_the_mean_over_all_orders():
    y = [0, 0, 0, 1, 1, 2]
    for n in range(7):
        orders = set(itertools.permutations(y))
        counts = np.array([np.bincount(order[:n], minlength=3) for order in orders]).T
        mean = interpret.information(counts, np.array([3, 2, 1])).mean()
        assert interpret.expected_information(np.array([n]), np.array([3, 2, 1])) == pytest.approx(mean)


def test_random_consistency_is_a_count():
    y, draw = np.array([0] * 20 + [1] * 9 + [2]), torch.Generator().manual_seed(0)
    for row in interpret.random_consistency(y, 3):
        order = y[torch.randperm(30, generator=draw)].tolist()
        expected = [max(map(order[:n].count, order)) / n for n in range(1, 31)]
        assert row.tolist() == pytest.approx(expected)


def rare_dimensions():
    """Active on one image of 2,000, on all, on two of a class, on all images of a class, on none."""
    z, y = np.zeros((2000, 5), np.float32), np.arange(2000) % 10
    z[0, 0] = 1
    z[:, 1] = 1
    z[[0, 10], 2] = 1
    z[y == 4, 3] = 1
    return z, y


@pytest.mark.parametrize("name, expected", {
    "adjusted": [0, 0, 1, 1, np.nan], "cons": [1, 0.1, 1, 1, np.nan], "f1": [2 / 201, 2 / 11, 4 / 202, 1, np.nan],
    "phi": [0.0671, 0, 0.0949, 1, np.nan], "ap": [0.1045, None, 0.109, 1, np.nan],
    "bits": [0, 0, None, 0.4657, 0]}.items(), ids=lambda value: value if isinstance(value, str) else "")
def test_rare_full_perfect_and_dead_dimensions(name, expected):
    z, y = rare_dimensions()
    (label,) = interpret.truths({"": y}).values()
    column = interpret.of_label(interpret.nonzero(z), label.y, label.chance)[name]
    known = [k for k, value in enumerate(expected) if value is not None]
    assert column[known] == pytest.approx([expected[k] for k in known], abs=2e-3, nan_ok=True)


def test_bits_of_random_dimensions_are_zero_on_average():
    draw = np.random.default_rng(0)
    z = (draw.random((2000, 300)) < 0.02).astype(np.float32)
    y = draw.integers(0, 100, 2000)  # with the usual correction, (C - 1) / 2N, it is far below 0
    bits = interpret.of_label(interpret.nonzero(z), y, np.zeros(2000))["bits"]
    assert abs(bits.mean()) < 3 * bits.std() / 300**0.5


def test_the_best_dimension_is_judged_on_other_images(activations):
    half = interpret.random_half(N_IMAGES)
    active = np.stack([np.isin(np.arange(N_IMAGES), members(activations, k)) for k in range(N_DIMS)], 1)
    expected = np.zeros(N_CLASSES)
    for c, side in itertools.product(range(N_CLASSES), (half, ~half)):
        f1 = []
        for part in (side, ~side):
            hits = active[part & (LABELS == c)].sum(0)
            f1.append(2 * hits / (active[part].sum(0) + (part & (LABELS == c)).sum()))
        expected[c] += f1[1][f1[0].argmax()] / 2
    assert interpret.best_dimensions(activations, LABELS) == pytest.approx(expected)


def test_parts_of_the_dimensions_give_the_same(monkeypatch, activations):
    whole = interpret.best_dimensions(activations, LABELS)
    columns = interpret.of_label(activations, LABELS, np.zeros(N_IMAGES))
    monkeypatch.setattr(interpret, "CELLS", 10)
    assert np.array_equal(interpret.best_dimensions(activations, LABELS), whole)
    for name, column in interpret.of_label(activations, LABELS, np.zeros(N_IMAGES)).items():
        assert column == pytest.approx(columns[name], nan_ok=True), name


def test_sparse_probes_regress_as_scikit_learn_does():
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = np.random.default_rng(0).normal(size=(3, 200, 4)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 3, 200)
    weights = interpret.fit_each_class(torch.from_numpy(x), torch.from_numpy(y), l2=1e-2)
    for c in range(3):
        theirs = linear_model.LogisticRegression(C=1 / (1e-2 * 200), tol=1e-8, max_iter=1000).fit(x[c], y == c)
        assert weights[c, :, 0].tolist() == pytest.approx([*theirs.coef_[0], *theirs.intercept_], abs=2e-3)


def test_a_probe_of_one_dimension_finds_the_class_itself():
    noise = np.random.default_rng(0).random((400, 20)).astype(np.float32)
    y = np.arange(400) % 10
    z = np.concatenate([np.eye(10, dtype=np.float32)[y], 0.1 * noise], 1)
    assert interpret.sparse_probes(z, y)[1] == 100
    assert interpret.sparse_probes(noise, y)[8] < 30


def test_a_probe_reads_lists_as_it_reads_a_matrix():
    z, y = sparse_matrix(), LABELS
    assert interpret.sparse_probes(interpret.nonzero(z), y) == interpret.sparse_probes(interpret.unit_rows(z), y)


def naive_mono(weights, h):
    """Mean cosine of the pairs of different images, weighted by the product of their weights."""
    pairs = ~np.eye(len(h), dtype=bool)
    cosine = F.cosine_similarity(torch.from_numpy(h)[:, None], torch.from_numpy(h), dim=2).numpy()
    return np.average(cosine[pairs], weights=np.outer(weights, weights)[pairs])


def test_mono_score_is_the_loop_over_pairs(z, activations):
    h = np.random.default_rng(3).normal(size=(N_IMAGES, 5))
    found = interpret.mono_score(activations, interpret.unit_judge(h))
    rows = np.abs(interpret.unit_rows(z)).astype(np.float64)
    for k in live(activations):
        weights = (rows[:, k] - rows[:, k].min()) / np.ptp(rows[:, k])
        assert found[k] == pytest.approx(naive_mono(weights, h) - naive_mono(np.ones(N_IMAGES), h), abs=1e-6)


def test_the_authors_mono_score_takes_raw_activations():
    h, z = np.random.default_rng(3).normal(size=(N_IMAGES, 5)), 7 * dense_matrix()
    found = interpret.mono_score_of_authors(z, interpret.unit_judge(h))
    for k in range(N_DIMS):
        assert found[k] == pytest.approx(naive_mono((z[:, k] - z[:, k].min()) / np.ptp(z[:, k]), h))


def test_mono_score_of_one_image_is_undefined():
    z = np.zeros((9, 2), np.float32)
    z[4, 0] = 1
    h = interpret.unit_judge(np.random.default_rng(0).normal(size=(9, 3)))
    assert np.isnan(interpret.mono_score(interpret.nonzero(z), h)).all()


def test_overlaps_are_cosines_with_and_without_their_matrix(z, activations):
    found, mean = interpret.overlaps(activations)
    f = np.abs(interpret.unit_rows(z))[:, live(activations)]
    f = f / np.linalg.norm(f, axis=0)
    cosines = abs(f.T @ f)[~np.eye(f.shape[1], dtype=bool)].reshape(f.shape[1], -1)
    assert mean == pytest.approx(cosines.mean(), abs=1e-6)
    assert found[live(activations)] == pytest.approx(cosines.max(1), abs=1e-6)
    unit = dataclasses.replace(activations, values=interpret.unit_values(activations))
    assert interpret.sparse_overlaps(unit)[0] == pytest.approx(np.nan_to_num(found), abs=1e-6)


def test_signs_are_read_alike_from_sparse_and_dense_files():
    z = sparse_matrix(signed=True)
    images, dims = np.nonzero(z)
    kinds = z, interpret.Entries(images, dims, z[images, dims], *z.shape)
    first, second = (interpret.interpret(interpret.Embedding(kind, {"": LABELS}), "nonzero", False) for kind in kinds)
    assert {key: first.numbers[key] for key in second.numbers} == pytest.approx(second.numbers)


def test_ties_at_the_cut_do_not_follow_the_files_order():
    z = np.random.default_rng(0).choice([-1.0, 1.0], (400, 20)).astype(np.float32)
    y = np.arange(400) // 100  # sorted, as in many files
    columns = interpret.interpret(interpret.Embedding(z, {"": y}), "top:0.05", False).columns
    assert columns["adjusted"].mean() < 0.3


def test_constant_dimensions_of_a_dense_embedding_are_dead():
    z = np.abs(dense_matrix()) + 1
    z[:, 4] = 0
    found = interpret.interpret(interpret.Embedding(z), "top:0.1", False)
    assert found.numbers["live_dims"] == N_DIMS - 1

def test_the_whole_matrix_has_the_papers_geometry(z):
    rows, live = interpret.unit_rows(z), np.flatnonzero(np.abs(z).any(0))
    size, root = np.abs(rows[rows.any(1)]).sum(1), N_DIMS**0.5
    f = rows[:, live] / np.linalg.norm(rows[:, live], axis=0)
    corr = np.mean([abs(a @ b) for a, b in itertools.permutations(f.T, 2)])
    expected = {"l1": size.mean() / root, "hoyer": np.mean((root - size) / (root - 1)), "corr": corr}
    found = interpret.interpret(interpret.Embedding(z), "nonzero", controls=False).numbers
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-6)


def test_precision_at_k_is_the_loop():
    z, y = dense_matrix(), LABELS
    rows = interpret.unit_rows(z)
    found = interpret.precision_at(z, y, (1, 3))
    for k in (1, 3):
        near = [[j for j in np.argsort(-(rows @ rows[i])) if j != i][:k] for i in range(N_IMAGES)]
        assert found[k] == pytest.approx(100 * np.mean([y[near[i]] == y[i] for i in range(N_IMAGES)]))
    assert interpret.precision_at(z[:4], [0, 1, 2, 3], (3, 5)) == {3: 0, 5: None}


def trained_like(N=400, K=32, C=4):
    """Features h of C clusters, and z that has a dimension for each, the others at random."""
    draw = np.random.default_rng(0)
    y = np.arange(N) % C
    h = (0.5 * draw.normal(size=(C, 8))[y] + draw.normal(size=(N, 8))).astype(np.float32)
    z = draw.random((N, K)) * (draw.random((N, K)) < 0.1)
    z[:, :C] += np.eye(C)[y]
    return interpret.Embedding(z.astype(np.float32), {"": y}, judge=h)


def test_controls_are_as_sparse_and_shuffled_labels_tell_nothing():
    found = interpret.interpret(trained_like())
    untrained, shuffled = found.controls["untrained"], found.controls["shuffled"]
    assert untrained["entries"] == round(found.numbers["entries"])
    assert abs(shuffled["adjusted"]) < 3
    assert shuffled["best_f1"] < untrained["best_f1"] < found.numbers["best_f1"]


def test_rare_dimensions_do_not_count_above_chance():
    z, y = rare_dimensions()
    (label,) = interpret.truths({"": y}).values()
    a = interpret.nonzero(z)
    numbers = interpret.label_numbers(a, label.y, interpret.of_label(a, label.y, label.chance))
    assert numbers["adjusted"] == pytest.approx(100 * (0 + 1 + 1) / 3)  # not the one on one image of 2,000
    assert numbers["half_f1"] == 1  # the class that has a dimension of its own


def test_classes_count_from_an_f1_of_one_half(monkeypatch, activations):
    monkeypatch.setattr(interpret, "best_dimensions", lambda *_: np.array([0.45, 0.5, 0.9]))
    columns = interpret.of_label(activations, LABELS, np.zeros(N_IMAGES))
    assert interpret.label_numbers(activations, LABELS, columns)["half_f1"] == 2


@pytest.mark.parametrize("rows, message", [
    ([[1.0, 2.0, 3.0], [1.0, 2.0]], "the rows of column z differ in length"),
    ([[1.0, 2.0], None], "column z has empty rows")], ids=["ragged", "empty"])
def test_a_parquet_column_of_other_lengths_is_refused(tmp_path, rows, message):
    pyarrow = pytest.importorskip("pyarrow")
    importlib.import_module("pyarrow.parquet").write_table(pyarrow.table({"z": rows}), tmp_path / "z.parquet")
    assert message in refused("interpret.py", tmp_path / "z.parquet")


def test_phi_of_millions_of_images_does_not_overflow():
    counts, sizes = np.array([[2_500_000], [0]]), np.array([2_500_000, 2_500_000])
    assert interpret.matthews(counts, sizes)[:, 0].tolist() == pytest.approx([1, -1])


def test_the_untrained_dictionary_is_of_centred_features():
    h = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    first, shifted = (interpret.random_dictionary(x, 16, seed=0) for x in (h, h + 7))
    assert shifted == pytest.approx(first, abs=1e-4)


def test_the_untrained_dictionary_of_a_sparse_matrix_is_centred():
    z = sparse_matrix(signed=True)
    rows = interpret.unit_rows(z)
    basis = F.normalize(torch.randn(N_DIMS, 5, generator=torch.Generator().manual_seed(3)), dim=0).numpy()
    found = interpret.random_dictionary(interpret.entries_of(z), 5, seed=3)
    assert found == pytest.approx((rows - rows.mean(0)) @ basis, abs=1e-5)


def test_half_dimensions_have_half_dimensions_as_control():
    e = trained_like()
    e.z = e.z - e.z.mean(0)
    found = interpret.interpret(e)
    assert found.rule == "top:0.01" and found.activations.halves
    assert found.numbers["entries"] == found.controls["untrained"]["entries"] == 64 * 4 / 400


def test_a_rotation_of_the_features_leaves_the_control_alike():
    e = trained_like()
    first = interpret.interpret(e).controls["untrained"]["adjusted"]
    e.judge = e.judge @ np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0]
    assert interpret.interpret(e).controls["untrained"]["adjusted"] == pytest.approx(first, rel=0.1)


def test_many_dimensions_have_a_smaller_dictionary_as_control(monkeypatch):
    monkeypatch.setattr(interpret, "LARGE", 16)
    found = interpret.interpret(trained_like())
    assert found.directions == 8
    assert found.controls["untrained"]["best_f1"] is None


def test_a_collapsed_embedding_has_undefined_numbers():
    e = interpret.Embedding(np.zeros((20, 4), np.float32), {"": np.arange(20) % 2}, judge=np.eye(20, 3))
    found = interpret.interpret(e)
    assert found.numbers["live_dims"] == found.numbers["act"] == found.numbers["bits"] == 0
    assert found.numbers["cons"] is found.numbers["mono"] is found.numbers["f1"] is None


def test_classes_keep_the_numbers_of_the_labels():
    e = trained_like()
    gaps = np.array([0, 2, 5, 9])
    of_gaps = interpret.interpret(dataclasses.replace(e, labels={"": gaps[e.labels[""]]})).columns
    columns = interpret.interpret(e).columns
    assert np.array_equal(of_gaps["best"], gaps[columns["best"].astype(int)])
    assert np.array_equal(of_gaps["f1"], columns["f1"])


# ---- its files and its program
def save_csr(path, z, **other):
    """Write what scipy.sparse.save_npz writes of z in the CSR layout."""
    images, dims = np.nonzero(z)
    start = np.searchsorted(images, np.arange(len(z) + 1))
    layout = dict(format=b"csr", shape=z.shape, data=z[images, dims], indices=dims, indptr=start)
    np.savez(path, **layout | other)


def write(path, e):
    """An embedding as a file of one of the formats."""
    arrays = {"z": e.z, "y": e.labels[""], "h": e.judge}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pt":
        torch.save({key: torch.from_numpy(a) for key, a in arrays.items()}, path)
    elif path.suffix == ".safetensors":
        save_file = pytest.importorskip("safetensors.numpy").save_file
        save_file(arrays, path)
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({key: a if a.ndim == 1 else list(a) for key, a in arrays.items()})
        importlib.import_module("pyarrow.parquet").write_table(table, path)


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors", ".parquet"])
def test_every_format_is_read_alike(tmp_path, suffix):
    e = trained_like()
    write(tmp_path / f"e{suffix}", e)
    found = interpret.read_embedding(tmp_path / f"e{suffix}")
    assert np.array_equal(found.z, e.z) and np.array_equal(found.judge, e.judge)
    assert np.array_equal(found.labels[""], e.labels[""])


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_scipys_sparse_files_are_read(tmp_path, kind):
    sparse = pytest.importorskip("scipy.sparse")
    z = sparse_matrix(signed=True)
    sparse.save_npz(tmp_path / "z.npz", sparse.csr_matrix(z).asformat(kind))
    found = interpret.nonzero(interpret.read_embedding(tmp_path / "z.npz").z)
    assert np.array_equal(found.images, interpret.nonzero(z).images)


def test_the_program_writes_table_numbers_and_dimensions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    e = trained_like()
    save_csr("latents.npz", e.z)
    np.save("y.npy", e.labels[""])
    np.save("dino.npy", e.judge)
    Path("names.txt").write_text("ant\nbee\ncat\ndog\n")
    inside("interpret.py latents.npz --labels y.npy --judge dino.npy --classes names.txt")
    out, folder = capsys.readouterr().out, tmp_path / "latents-interpret"
    record = json.loads((folder / "interpret.json").read_text())
    rows = (folder / "dimensions.csv").read_text().splitlines()
    assert max(map(len, out.splitlines())) <= 120
    assert " untrained |" in out and "MonoScore by dino.npy" in out
    assert {"numbers", "untrained", "shuffled"} <= record.keys() and record["numbers"]["best_f1"] > 50
    assert len(rows) == 33 and {row.split(",")[-1] for row in rows[1:5]} == {"ant", "bee", "cat", "dog"}


@pytest.mark.parametrize("method", ["simclr", "ncl"])
def test_a_run_is_measured_where_it_lies(whole, method, capsys):
    folder = whole / method
    before = {path.name for path in folder.iterdir()}
    inside("interpret.py", folder)
    after = {path.name for path in folder.iterdir()}
    assert "h, the embedding's own backbone" in capsys.readouterr().out
    assert after - before == {"interpret.json", "interpret.txt", "dimensions.csv"}
    for name in after - before:
        (folder / name).unlink()


GOOD = dict(z=sparse_matrix(), y=LABELS)
BAD_EMBEDDINGS = {
    "words": (dict(z=np.array([["a", "b"]] * 9)), "z is <U1; it must be numbers"),
    "nan": (dict(z=np.full((9, 3), np.nan)), "z is not finite"),
    "lengths": (GOOD | dict(y=LABELS[1:]), "z has 60 rows, y has shape (59,)"),
    "one class": (GOOD | dict(y=0 * LABELS), "y has one class, 0"),
    "one dimension": (dict(z=np.ones((9, 1))), "z is 9 x 1; two images and dimensions or more"),
    "dead": (dict(z=np.zeros((9, 3))), "z is 0 everywhere"),
    "float labels": (GOOD | dict(y=LABELS / 2), "y is float64; labels are integers"),
    "word labels": (GOOD | dict(y=LABELS.astype(str)), "np.unique(y, return_inverse=True)[1]"),
    "pickles": (GOOD | dict(y=np.array([{}] * 60)), "cannot be read (ValueError: Object arrays"),
    "three axes": (dict(z=np.ones((9, 3, 3))), "z has shape (9, 3, 3); it must be (N, K)"),
    "two matrices": (dict(a=np.ones((9, 3)), b=np.ones((9, 3))), "which array is the embedding z?"),
    "judge": (GOOD | dict(h=np.ones((7, 3))), "z has 60 rows, h, the embedding's own backbone has 7"),
    "second label": (GOOD | dict(background=LABELS[2:]), "z has 60 rows, background has shape (58,)"),
}


@pytest.mark.parametrize("arrays, message", BAD_EMBEDDINGS.values(), ids=BAD_EMBEDDINGS)
def test_a_bad_embedding_is_refused_in_one_line(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    assert message in refused("interpret.py", tmp_path / "bad.npz", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change, message", {
    "outside": (dict(indices=np.full(500, 12)), "indices leave the shape (60, 12)"),
    "pointers": (dict(indptr=np.arange(5)), "indptr does not fit"),
    "twice": (dict(indices=np.zeros(500, int)), "an entry occurs twice"),
    "layout": (dict(format=b"bsr"), "its sparse format is bsr"),
}.values(), ids=["outside", "pointers", "twice", "layout"])
def test_a_broken_sparse_file_is_refused(tmp_path, change, message):
    z = sparse_matrix()
    if "indices" in change:
        change = dict(indices=change["indices"][: np.count_nonzero(z)])
    save_csr(tmp_path / "bad.npz", z, **change)
    assert message in refused("interpret.py", tmp_path / "bad.npz")


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".npy", ".safetensors", ".parquet"])
def test_a_file_cut_off_is_refused(tmp_path, suffix):
    e, path = trained_like(), tmp_path / f"cut{suffix}"
    np.save(path, e.z) if suffix == ".npy" else write(path, e)
    path.write_bytes(path.read_bytes()[:-200])
    assert "cannot be read" in refused("interpret.py", path)


@pytest.mark.parametrize("flags, message", [
    ("nowhere.npz", "nowhere.npz is not there"), ("names.txt", "give a run's folder or a file of"),
    ("good.npz --active top:2", "top:2; give auto,"), ("good.npz --active 1%", "1%; give auto,"), (".", "no embeddings.npz"),
    ("good.npz --classes names.txt", "names.txt names 2 classes; there is a class 3"),
    ("good.npz --labels nowhere.npy", "nowhere.npy is not there"), ("good.npz --out names.txt", "cannot be made"),
    ("good.npz --judge good.npz --labels names.npy", "names.npy is not there")])
def test_a_wrong_flag_of_interpret_is_refused(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    np.savez("good.npz", **GOOD)
    Path("names.txt").write_text("ant\nbee\n")
    assert message in refused(f"interpret.py {flags}")


def test_labels_with_gaps_keep_their_numbers(tmp_path):
    gaps = np.array([0, 2, 5, 9])
    np.savez(tmp_path / "gaps.npz", **ARRAYS | dict(y_train=gaps[Y], y_test=gaps[Y_TEST]))
    data = common.load_data("gaps", tmp_path)
    assert data.classes.tolist() == [0, 2, 5, 9] and data.y_test.tolist() == Y_TEST.tolist()


def test_captions_name_classes_by_their_own_numbers(tmp_path):
    gaps = np.array([0, 2, 5, 9])
    np.savez(tmp_path / "gaps.npz", **ARRAYS | dict(y_train=gaps[Y], y_test=gaps[Y_TEST]))
    (tmp_path / "names.txt").write_text("\n".join("abcdefghij"))
    args = argparse.Namespace(classes=str(tmp_path / "names.txt"), dataset="gaps")
    names = mmncl.class_names(args, common.load_data("gaps", tmp_path))
    assert names == {"": ["a", "c", "f", "j"]}


def test_words_compares_images_with_the_name_of_their_class():
    y = torch.tensor([0, 0, 2, 2, 5, 5])
    v = F.one_hot(torch.tensor([0, 0, 1, 1, 2, 2])).float()  # a dimension for each class
    found = words.nameable(v, ["ant", "cow", "fox"], {"": y}, {"": "ant bee cow doe elk fox".split()})
    assert found["nameable"] == 100


# ------------------------------------------------------------------------------------------------------ tools/selection.py
def test_sepin_is_the_loss_without_a_dimension_less_the_loss():
    for kind in nn.Identity(), F.relu, lambda z: F.one_hot(z.argmax(1), 8):
        z = kind(torch.randn(50, 8)).float()
        a, b = F.normalize(z), F.normalize(z + 0.05 * torch.randn(50, 8) * (z != 0))
        loss = lambda *keep: F.cross_entropy(a[:, keep] @ b[:, keep].T / 0.2, torch.arange(50)).item()
        loop = [loss(*(j for j in range(8) if j != i)) - loss(*range(8)) for i in range(8)]
        assert selection.sepin(a, b).tolist() == pytest.approx(loop, abs=1e-5)


def test_selection_takes_what_training_images_activate_most():
    y = torch.arange(400) % 4
    e = torch.cat([F.one_hot(y, 4) * 3.0, 0.5 * torch.rand(400, 28)], 1)[:, torch.randperm(32)]  # four tell the class
    weak = torch.where(e > 2, 0.01, e)  # here they are the weakest
    scores, of_weak = (selection.feature_selection(train, y, weak, y, 1e-3) for train in (e, weak))
    assert scores["p_at_10_top_4"] == 100 > max(scores["p_at_10_random_4"], of_weak["p_at_10_top_4"])
    assert {*scores} == {f"{a}_{b}_{m}" for a in ("p_at_10", "lp1") for b in ("top", "random") for m in (4, 8, 16)}


def test_selection_measures_a_run(whole, tmp_path):
    shutil.copytree(whole / "ncl", folder := tmp_path / "ncl")
    inside("selection.py", folder)
    found = json.loads((folder / "selection.json").read_text())
    assert found["sepin_1"] >= found["sepin_10"] >= found["sepin_100"] >= found["sepin_all"]
    assert {f"lp1_top_{m}" for m in (32, 64, 128)} <= {*found}


# ----------------------------------------------------------------------------------- collapse, spectra, distances of rows
def test_known_embeddings_have_known_geometry():
    assert common.health(torch.randn(2000, 64))["spread"] == pytest.approx(1, abs=0.02)
    health = common.health(torch.diag(torch.tensor([1.0, 1, 1, 0])))  # the last sample has no active entry
    assert common.health(torch.ones(100, 64))["spread"] < 1e-4 and (health["act"], health["empty"]) == (3 / 16, 1 / 4)
    white = torch.linalg.qr(torch.cat([torch.ones(50, 1), torch.randn(50, 3)], 1))[0][:, 1:] * 7  # known: covariance I
    values = sparsehead.spectrum(white * torch.tensor([2.0, 1.0, 0.5]) @ torch.linalg.qr(torch.randn(3, 3))[0] + 9)
    assert values.tolist() == pytest.approx([4.0, 1.0, 0.25], abs=1e-4)
    for eigenvalues, rank in (([0.5, 0.25, 0.25], 2**1.5), ([1.0] * 7, 7), ([3.0, 0, 0], 1)):
        assert sparsehead.effective_rank(torch.tensor(eigenvalues)) == pytest.approx(rank, rel=1e-5)
    assert sparsehead.min_max_ratio(torch.tensor([[0.0], [1.0], [3.0]])) == pytest.approx((2 / 1 + 1 / 1 + 1 / 2) / 3)
    few, many = (sparsehead.min_max_ratio(torch.randn(300, d)) for d in (1000, 10_000))  # Lemma 5.7: like 1/√d
    assert many < 0.05 and few / many == pytest.approx(10**0.5, rel=0.1)


# --------------------------------------------------------------------------------- losses of all methods, sparsehead.py
def naive_nt_xent(z1, z2, temperature):
    rows = torch.exp((z := unit(torch.cat([z1, z2]))) @ z.T / temperature)
    return -sum(torch.log(row[i - len(z1)] / (row.sum() - row[i])) for i, row in enumerate(rows)) / len(z)


def naive_barlow(z1, z2, lambd=0.005):
    s1, s2 = ((z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt() for z in (z1, z2))
    C = {(i, j): (a * b).mean() for (i, a), (j, b) in itertools.product(enumerate(s1.T), enumerate(s2.T))}
    return sum((1 - c) ** 2 if i == j else lambd * c**2 for (i, j), c in C.items())


def naive_wmse(z1, z2):  # of 12 samples, split in two ways into sub-batches of 6
    parts = [rows for split in (1, 2) for rows in (torch.arange(12) * split * 0.618034).frac().argsort().split(6)]
    white = lambda z: unit((z - z.mean(0)) @ torch.linalg.cholesky(z.T.cov()).inverse().T)
    return sum(2 - 2 * a @ b for rows in parts for a, b in zip(white(z1[rows]), white(z2[rows]))) / (12 * 2)


def naive_swav(z1, z2):
    *s, loss = *(unit(z) @ unit(PROTOTYPES).T for z in (z1, z2)), 0
    for ours, other in s, s[::-1]:
        Q = torch.exp(other.detach() / 0.05)
        for _ in range(6):  # three times columns, then rows: what is stacked is transposed
            Q = torch.stack([column / column.sum() for column in Q.T])
        loss = loss - sum(q @ (p / p.sum()).log() for q, p in zip(Q, torch.exp(ours / 0.1))) / (2 * len(z1))
    return loss


def naive_hsic(*views):  # by centred kernel matrices, tr(K H L H), L = 1 for views of one image, less K's diagonal
    z, n, M = unit(torch.cat(views)), sum(map(len, views)), len(views)
    K, L = (1 / (1 + (z[:, None] - z).square().sum(2)).sqrt()), torch.eye(n // M, dtype=z.dtype).tile(M, M)
    H = torch.eye(n, dtype=z.dtype) - 1 / n
    biased = (K @ H @ L @ H).trace() / (n * (M - 1))  # of which K's diagonal of ones and the mean, M times too often:
    return 3 * ((H @ K @ H).square().sum() / n**2).sqrt() - (biased - 1 / (M - 1) + K.mean() * (M / (M - 1) - 1))


unit = lambda z: z / z.norm(dim=1, keepdim=True)
PROTOTYPES = torch.randn(6, 5, dtype=torch.double, generator=torch.Generator().manual_seed(0))
PAIRS = [*itertools.permutations(range(7), 2)]  # of different samples in a batch of 7
LOSSES = [
    *((ours, naive, dict(temperature=t)) for t in (0.1, 0.5) for ours, naive in (
        (simclr.nt_xent, naive_nt_xent), (mmncl.info_nce, lambda *z, temperature: sum(
            ((b - b[i]) @ a[i] / temperature).exp().sum().log()  # of all b it is b[i] that belongs to a[i]; both ways
            for a, b in itertools.permutations(map(unit, z)) for i in range(7)) / 14))),
    (lambda f, W: F.cross_entropy(nce.class_scores(f, W), torch.arange(7) % 3),
     lambda f, W: sum(sum(((W[c] - W[i % 3]) @ f[i]).exp() for c in range(7)).log() for i in range(7)) / 7, {}),
    (simclr.spectral_loss, lambda a, b: sum((a[i] @ b[j])**2 for i, j in PAIRS) / 42 - 2 * (a * b).sum() / 7, {}),
    (sparsehead.barlow_loss, naive_barlow, {}), (sparsehead.barlow_loss, naive_barlow, dict(lambd=0.1)),
    (sparsehead.vicreg_loss, lambda z1, z2: 25 * (z1 - z2).square().mean() + sum(
        12.5 * F.relu(1 - (row[i] + 1e-4).sqrt()) + row.square().sum() - row[i]**2
        for z in (z1, z2) for i, row in enumerate(z.T.cov())) / 5, {}),
    (sparsehead.hsic_loss, naive_hsic, {}), (lambda *views: sparsehead.swav_loss(*views, PROTOTYPES), naive_swav, {}),
    (lambda *views, **_: sparsehead.hsic_loss(*views, *views), lambda *views: naive_hsic(*views, *views), {}),
    (lambda *views: sparsehead.wmse_loss(*(z.repeat(2, 1)[:12, :3] for z in views), size=6, splits=2),
     lambda *views: naive_wmse(*(z.repeat(2, 1)[:12, :3] for z in views)), {}),
    (lambda z, t: lpjepa.sliced_wasserstein(z, t, PROTOTYPES[:2].float()),  # of all plans the best, per direction
     lambda z, t: sum(min(((z - t[[*order]]) @ v).square().mean() for order in itertools.permutations(range(7)))
                      for v in PROTOTYPES[:2]) / 2, {}),
    (sparsehead.byol_loss, lambda p, z: (unit(p) - unit(z.detach())).square().sum() / len(p), {}),
    (simsiam.negative_cosine, lambda p, z: -(unit(p) * unit(z.detach())).sum() / len(p), {}),
    (simsiam.negative_cosine, lambda p, z, **_: -(unit(p) * unit(z)).sum() / len(p), dict(stop_gradient=False))]


def test_every_loss_is_the_loop_of_its_equation_columns_shrink_and_targets_are_moving_averages():
    for ours, naive, options in LOSSES:  # values, gradients, and in float32
        inputs = [torch.randn(7, 5, dtype=torch.double, requires_grad=True) for _ in range(2)]
        a, b = ours(*inputs, **options), naive(*inputs, **options)
        assert a.item() == pytest.approx(b.item(), rel=1e-5)
        for g, h in zip(*(torch.autograd.grad(loss, inputs, allow_unused=True) for loss in (a, b))):  # None: stopped
            assert g is h is None or torch.allclose(g, h, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):  # whatever the caller's autocast
            assert torch.equal(ours(*(z.float() for z in inputs), **options), a) and a.dtype == torch.float32
    W = F.normalize(torch.randn(4, 6, dtype=torch.double), dim=0) * torch.tensor([0, 0.3, 0.7, 1, 2, 3])
    gradient, = torch.autograd.grad(norm := sparsehead.l21_norm(W.requires_grad_()), W)
    assert norm.item() == pytest.approx(sum(math.sqrt(sum(v**2 for v in column)) for column in W.T.tolist()))
    assert (gradient[:, 0] == 0).all() and torch.allclose(gradient[:, 1:], F.normalize(W, dim=0)[:, 1:])
    sparsehead.shrink_columns(V := W.detach().clone(), 0.5)
    assert torch.allclose(V, F.normalize(W, dim=0) * (W.norm(dim=0) - 0.5).clamp(min=0)) and (V[:, :2] == 0).all()
    white = sparsehead.whiten(torch.randn(3, 12, 4, dtype=torch.double))
    assert torch.allclose(torch.stack([w.T.cov() for w in white]), torch.eye(4, dtype=torch.double), atol=1e-9)
    assert sparsehead.whiten(torch.ones(6, 3)).isnan().all()
    backbone, d = common.resnet("resnet8", 32)
    model = sparsehead.SparseHead(backbone, sparsehead.batch_norm_head("mlp", d, 30, 20), "ssl-hsic", 30, 20)
    x, online = torch.randn(2, 4, 3, 32, 32), nn.Sequential(backbone, model.head)
    _, _, p1, p2, t1, t2 = model.both(model, *x)
    (sparsehead.byol_loss(p1, t2) + sparsehead.byol_loss(p2, t1)).backward()
    assert all(name.startswith("target") == (p.grad is None) != p.requires_grad for name, p in model.named_parameters())
    before = [p.detach().clone() for p in online.parameters()]  # the target starts as a copy
    nn.init.normal_(model.head[0].weight)
    sparsehead.update_target(model.target, online, 0.9)
    for target, old, new in zip(model.target.parameters(), before, online.parameters()):
        assert torch.allclose(target, 0.9 * old + 0.1 * new, atol=1e-6)


# ------------------------------------------------------------------------------------------ ncl.py, bayesncl.py, nce.py
def test_ncl_is_not_rotation_invariant_but_a_matrix_factorisation_activations_are_formulas_and_nce_is_cross_entropy():
    """[NCL]: a batch's loss estimates ‖Ā − F Gᵀ‖² − ‖Ā‖², Ā = P(x, x') / √(P(x) P(x')), F, G ≥ 0; of views, G = F, and
    of captions. Trap: rep_relu is 0 on a row of negatives but has a gradient, which eps = 1e-12 multiplies by 1e12."""
    z1, z2 = torch.randn(2, 20, 6, dtype=torch.double)
    Q, a, b = torch.linalg.qr(torch.randn(6, 6, dtype=torch.double))[0], z1.relu(), z2.relu()
    for loss in functools.partial(simclr.nt_xent, temperature=0.2), simclr.spectral_loss:
        assert loss(z1 @ Q, z2 @ Q).item() == pytest.approx(loss(z1, z2).item(), rel=1e-5)
        assert abs(loss((a @ Q).relu(), (b @ Q).relu()) - loss(a, b)) > 0.05
    joint, (f, g) = torch.rand(9, 9, dtype=torch.double), torch.randn(2, 9, 4, dtype=torch.double).relu()
    for joint, g in (joint + joint.T, f), (joint, g):  # P(x, x') of views, of images and captions
        p, q = (joint := joint / joint.sum()).sum(1, keepdim=True), joint.sum(0)[:, None]
        A, F_, G = joint / (p * q.T).sqrt(), p.sqrt() * f, q.sqrt() * g
        distance = (A - F_ @ G.T).square().sum() - A.square().sum()
        pairs = torch.multinomial(joint.flatten(), 200 * 500, replacement=True).view(200, 500)
        estimates = torch.stack([simclr.spectral_loss(f[row // 9], g[row % 9]) for row in pairs])
        assert abs(estimates.mean() - distance) < 5 * estimates.std() / math.sqrt(200)
    z = torch.cat([-torch.rand(2, 6), torch.randn(998, 6)]).requires_grad_()
    formulas, normal = dict(rep_relu=F.relu, exp=torch.exp, none=nn.Identity()), torch.distributions.Normal(0, 1)
    soft = normal.cdf(z) + z * normal.log_prob(z).exp()  # d/dz z·Φ(z)
    for kind, activation in ncl.ACTIVATIONS.items():
        assert torch.allclose(out := activation(z), (formulas.get(kind) or getattr(F, kind))(z), atol=1e-6), kind
        gradient, = torch.autograd.grad(out.sum(), z)
        assert torch.allclose(gradient, soft, atol=1e-6) == (kind in ("rep_relu", "gelu")), kind
    loss = simclr.nt_xent(*map(ncl.ACTIVATIONS["rep_relu"], (z[:8], z[:8].flip(0))), 0.2)
    gradient, = torch.autograd.grad(loss, z)
    assert loss.isfinite() and 0 < gradient[:2].abs().max() and gradient.abs().max() < 200
    assert torch.equal(kept := ncl.keep_topk(z, 3), torch.where(z >= z.sort(1).values[:, -3:-2], z, 0))
    assert torch.equal(torch.autograd.grad(kept.sum(), z)[0], (kept != 0).float())
    backbone, classifier, x = common.resnet("resnet8", 16)[0], nn.Linear(64, 5, bias=False), torch.randn(8, 3, 16, 16)
    model = lambda *how: nce.NCE(backbone, nn.Identity(), classifier, *how)(x)[1:]
    (f, scores), (f_plus, same), (_, other) = model("none"), model("relu"), model("relu", "non-negative")
    assert torch.equal(f, f_plus) and torch.equal(scores, same) and f.min() >= 0  # means of a ReLU
    assert torch.allclose(other, f @ classifier.weight.relu().T, atol=1e-6) and not torch.allclose(other, same)
    assert [nce.accuracy(s, scores.argmax(1)) for s in (scores, -scores)] == [dict(top1=n, top5=100) for n in (100, 0)]


def test_gates_are_thresholds_of_their_noise_kl_is_torchs_and_nothing_reaches_the_backbone_unless_it_is_asked_for():
    logits, w = torch.randn(4000, 8, requires_grad=True), torch.randn(4000, 8)
    m, alpha = bayesncl.gate(logits, "ste", temperature=2.0)  # backward dm/dα = 1, dα/dl = α(1 − α)/T
    assert torch.equal(m, (logits > 0).float()) and torch.allclose(alpha, 1 / (1 + torch.exp(-logits / 2)))
    assert torch.allclose(torch.autograd.grad((w * m).sum(), logits)[0], w * alpha * (1 - alpha) / 2, atol=1e-7)
    soft, alpha = bayesncl.gate(logits, "soft")
    assert torch.equal(soft, alpha) and (bayesncl.gate(logits, "none")[0] == 1).all()
    for kind, probability in ("logistic", alpha), ("gumbel", 1 - (-logits.exp()).exp()):  # P(l + noise > 0)
        m, parts = bayesncl.gate(logits, kind, noise=True)[0], (alpha > 0, alpha < 0.3, (alpha > 0.7) & (alpha < 0.8))
        assert set(m.unique().tolist()) == {0.0, 1.0}
        assert all(abs((m - probability)[part].mean()) < 0.02 for part in parts)
        assert torch.equal(bayesncl.gate(logits, kind)[0], (logits > 0).float())  # without noise in evaluation
    alpha = torch.rand(30, 7).clamp(0.011, 0.989).requires_grad_()
    p, q = (torch.distributions.Bernoulli(probs) for probs in (alpha, torch.tensor(0.3)))
    ours, theirs = bayesncl.bernoulli_kl(alpha, 0.3), torch.distributions.kl_divergence(p, q).sum(1).mean()
    gradients = [torch.autograd.grad(kl, alpha)[0] for kl in (ours, theirs)]
    assert torch.allclose(ours, theirs, rtol=1e-5) and torch.allclose(*gradients, atol=1e-5)
    alpha = torch.tensor([[0.0, 1.0]], requires_grad=True)  # the extremes are finite
    assert torch.autograd.grad(bayesncl.bernoulli_kl(alpha, 0.8), alpha)[0].isfinite().all()
    small, large = (benchmark.cost(bayesncl.PRESETS[name]) for name in ("cifar100", "imagenet100"))
    weights, biases = 512 * 2048 + 2048 * 256, 2048 + 256
    assert [small[key] - small[key + "_ncl"] for key in ("flops", "params")] == [2 * weights, weights + biases]
    assert [round((c["flops"] - c["flops_ncl"]) / 1e9, 3) for c in (small, large)] == [0.003, 0.084]  # the paper's
    for detach in (True, False):
        x, *layers = torch.randn(12, 10), nn.Linear(10, 6), nn.Linear(6, 5), bayesncl.gating_head(6, 8, 5)
        gated, plain = (bayesncl.BayesNCL(*layers, 5, "rep_relu", kind, 1.0, detach=detach) for kind in ("ste", "none"))
        z, (_, masked, m, alpha) = ncl.NCL(*layers[:2])(x)[1], gated(x)
        kl, weights = bayesncl.bernoulli_kl(alpha, 0.8), (layers[0].weight, layers[2][0].weight)
        backbone, gating = torch.autograd.grad(kl, weights, retain_graph=True, allow_unused=True)
        assert (backbone is None) == detach and gating.abs().sum() > 0
        weight = torch.randn(12, 5)  # the loss's gradient into the backbone is the one for a constant mask
        ours, fixed = (torch.autograd.grad((weight * v).sum(), weights[0])[0] for v in (masked, z * m.detach()))
        assert torch.allclose(ours, fixed, atol=1e-6) == detach and torch.equal(plain(x)[1], z)  # gate none is NCL
        plain.similarity, pi = "ipw", 0.99 + 0.01 * (z > 0).float().mean(0)
        assert torch.allclose(plain(x)[1], z / pi.sqrt(), atol=1e-6) and torch.allclose(plain.frequency, pi)
        plain.eval()(x)
        assert torch.allclose(plain.frequency, pi)  # evaluation does not move it


# --------------------------------------------------------------------------------- lpjepa.py, sae.py, tools/sparsity.py
def test_lpjepas_distance_leads_to_the_share_that_mu_sets_in_two_dimensions_and_does_not_see_it_in_256():
    u, z = torch.rand(200_000).double(), torch.rand(6, 4)
    tail = {"laplace": lambda x: 0.5 * math.exp(-x * math.sqrt(2)), "gaussian": lambda x: math.erfc(x / 2**0.5) / 2}
    for (noise, above), mu, least in itertools.product(tail.items(), (-2.5, -1.0, 0.0, 0.8), (0, 0.5)):
        known, samples = above(-mu) if mu <= 0 else 1 - above(mu), lpjepa.rectified_samples(u, mu, noise)
        assert lpjepa.expected_active(mu, noise) == pytest.approx(known) and samples.min() == 0
        assert abs((samples > least).double().mean() - lpjepa.expected_active(mu - least, noise)) < 0.005
    assert lpjepa.sliced_wasserstein(z, z[torch.randperm(6)], torch.randn(5, 4)) < 1e-12
    draw = lambda n, K, mu: lpjepa.rectified_samples(torch.rand(n, K), mu)
    for mu in (-1.0, -0.5, 0.5):  # embeddings of two dimensions that nothing but the distance moves
        optimizer = torch.optim.Adam([w := (2 * torch.rand(500, 2)).requires_grad_()], lr=0.02)
        for _ in range(400):
            optimizer.zero_grad()
            lpjepa.sliced_wasserstein(w.relu(), draw(500, 2, mu), unit(torch.randn(16, 2))).backward()
            optimizer.step()
        assert (w > 0.05).float().mean().item() == pytest.approx(lpjepa.expected_active(mu - 0.05), abs=0.03)
    half = lambda n, K: 2**0.5 * (torch.rand(n, K) < lpjepa.expected_active(-1.15) / 2)  # of equal mean and variance
    for n, K, alike in (2000, 2, False), (256, 256, True):  # of many dimensions projections are nearly normal
        target, v = draw(n, K, -1.15), unit(torch.randn(500, K))
        wrong, right = (lpjepa.sliced_wasserstein(z, target, v) for z in (half(n, K), draw(n, K, -1.15)))
        assert (wrong < 1.2 * right) == alike


def test_autoencoders_keep_the_largest_and_find_planted_features_if_dead_units_are_revived():
    a, x, model, dead = torch.randn(6, 10), torch.randn(6, 4), sae.SAE(None, 4, 10, 2), torch.arange(10) < 3
    largest = lambda values, k: values * (values > 0) * torch.isin(values, values.flatten().topk(k).values)
    of_rows = lambda values, k: torch.stack([largest(row, k) for row in values])
    assert torch.equal(sae.top_k(a, 3), of_rows(a, 3)) and torch.equal(sae.batch_top_k(a, 3), largest(a, 18))
    model.b.data, model.W_enc.data = torch.randn(4), torch.randn(10, 4)
    for model.batch_topk in (False, True):
        loss, unexplained, z = sae.sae_loss(model, x, dead, 0.5)
        scores = torch.stack([torch.stack([w @ (row - model.b) for w in model.W_enc]) for row in x])
        kept = largest(scores, 12) if model.batch_topk else of_rows(scores, 2)
        e = x - torch.stack([model.b + sum(c * w for c, w in zip(row, model.W_dec.T)) for row in kept])
        rest = e.detach() - of_rows(scores[:, :3], 2) @ model.W_dec[:, :3].T
        expected = e.square().sum(1).mean() + 0.5 * rest.square().sum() / e.detach().square().sum()
        gradients = [torch.autograd.grad(value, model.parameters(), retain_graph=True) for value in (loss, expected)]
        assert torch.allclose(z, kept) and torch.allclose(loss, expected)
        assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(*gradients))
        assert torch.equal(sae.sae_loss(model, x, dead & False, 0.5)[0], unexplained)  # no unit is dead
    M, found = F.normalize(torch.randn(16, 24), dim=0), {}
    x = ((0.5 + torch.rand(2000, 24)) * (torch.rand(2000, 24).argsort(1) < 2)) @ M.T  # two features of 24 an image
    x = (x - x.mean(0)) / (x - x.mean(0)).square().sum(1).mean().sqrt()
    for batch_topk, weight in itertools.product((False, True), (0, 1 / 32)):
        model = sae.SAE(None, 16, 32, 2, batch_topk)
        model.W_enc.data[8:] = -0.01 * torch.eye(16)[0]  # 24 units that never win
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(800):
            optimizer.zero_grad()
            loss, _, z = sae.sae_loss(model, x[torch.randint(2000, (200,))], model.idle >= 2000, weight)
            loss.backward()
            optimizer.step()
            model.update(z, step)
        found[batch_topk, weight] = sc.max_cosine(model.W_dec.detach().T[None], M[None]).mean().item()
        assert (model.W_dec.norm(dim=0) - 1).abs().max() < 1e-5
        assert (model.encode(x) > 0).sum(1).float().mean().item() == pytest.approx(2, abs=0.1), batch_topk
    assert all(found[kind, 1 / 32] > 0.95 and found[kind, 0] < 0.9 for kind in (False, True))


# ----------------------------------------------------------------------------------------------------- sparse_coding.py
SMALL = dict(n=64, batch_size=16, p=12, d=6, m=8, epochs=2, lr=0.1, seeds=1)  # all else is as in the paper
landscape = lambda **factors: sc.setting(SMALL | factors, {}, paper=True)


def watched(s):  # train a setting; → the model at the end, and the views (a1, a2) of every step
    with mock.patch.object(sc, "step", wraps=sc.step) as step:
        sc.train(s)
    calls = [call.args for call in step.call_args_list]  # (s, data, model, a1, a2) each
    return calls[-1][2], [args[3:] for args in calls]


def test_sparse_data_and_settings_are_the_papers_the_fast_one_concludes_the_same_and_each_start_and_data_differ():
    for d, beta, minus, plus in (10, 0.1, 1, 1), (10, 0.2, 1, 1), (10, 0.3, 2, 1), (100, 0.14, 8, 7):  # 14.0…02: 15
        draw = lambda kind: sc.latents(kind, 20_000, d, beta, sc.generator(0, 0))
        counts = {-1: minus, 1: plus, 0: d - minus - plus}
        assert all(((draw("authors") == value).sum(0) == n).all() for value, n in counts.items())
        for kind, active in ("exact", minus + plus), ("onehot", 1):
            assert (draw(kind).abs().sum(0) == active).all() and draw(kind).mean().abs() < 0.01
        assert (draw("onehot-plus").sum(0) == 1).all() and draw("onehot-plus").min() == 0
        for kind, sign in (("iid", 0), ("zero-one", 1)):
            z, some = draw(kind), 1 - (1 - beta)**d  # the probability that not all entries are 0
            assert z.abs().amax(0).min() == 1 and z.abs().mean().item() == pytest.approx(beta / some, rel=0.03)
            assert z.mean().item() == pytest.approx(sign * beta / some, abs=0.005)
        M, z, x = sc.sample(landscape(n=4000, p=100, d=d), 3, beta, 0.15)
        assert torch.allclose(M.T @ M, torch.eye(d), atol=1e-5) and abs((x - M @ z).std() - 0.15) < 1e-3
    paper = lambda name: [sc.setting(factors, {}, paper=True) for _, factors, _ in sc.EXPERIMENTS[name]]
    for name, s in [(name, s) for name in ("table1", *(f"fig{i}" for i in range(1, 8))) for s in paper(name)]:
        assert (s.n, s.batch_size, s.lr, s.epochs, s.keep, s.bias, s.seeds) == (1000, 512, [0.025], 8000, [0.5], 0, 5)
        assert (s.masks, s.similarity, s.temperature) == ("independent", "cosine", [0.2])
        assert (s.p, s.d, s.m) == ((20, 20, 20) if name == "fig7" else (50, 10, 50))
        assert s.noise[0] == pytest.approx(0.1517 if s.d == 10 else 0.0865, abs=1e-4)
        assert (s.batch_norm == "no") == (s.latents == "onehot-plus") == (name == "fig1")
        assert s.lr[0] * s.epochs * s.steps == sc.BUDGET[s.method] == (400 if s.method == "simsiam" else 200)
        assert s.sparsity == ([0.1, 0.3] if name in ("table1", "fig2", "fig3") else [0.1])
    assert [(s.head, s.activation) for s in paper("table1")] == [
        ("linear", "srelu"), ("linear", "authors"), ("linear", "srelu"), ("mlp", "authors")]
    assert [(s.head, s.warm) for i in (4, 5, 6, 7) for s in paper(f"fig{i}")[:1]] == [
        ("none", [1]), ("linear", [1]), ("linear", [None]), ("none", [1, 1.25, 1.5, 2])]
    assert 10 in sc.train(landscape(lr=5.0, epochs=12), records=2)[1]["epoch"]  # where lr × steps is 200
    base = dict(method="noncl", warm=1.0, latents="iid", sparsity=0.2, d=5)
    run = lambda **more: sc.train(landscape(**base | more))[1]["loss"][-1]
    for name, value in [("warm", 2.0), ("warm_columns", "aligned"), ("warm_columns", "covered"), ("sparsity", 0.5),
                        ("latents", "authors"), ("noise", 1.0)]:  # what all others do the next tests tell
        assert abs(run(**{name: value}) - run()).max() > 1e-6, name
    end = lambda **factors: sc.train(sc.setting(factors, {}, paper=False))[1]["min"][-1].mean()
    assert end(**sc.SIMCLR) >= 0.85 and end(**sc.NONCL) <= 0.60  # only contrastive learning finds the features
    warm = dict(sc.NONCL, warm=1.0, epochs=78, seeds=5)  # lr × steps 156: it lasts where the networks are aligned
    assert end(**warm, warm_columns="aligned") >= 0.9 and end(**warm, warm_columns="random") <= 0.72


def test_an_epoch_shows_masked_views_of_every_sample_but_the_last_of_simclr_whose_nt_xent_is_a_loop():
    for method, keep in itertools.product(("simclr", "simsiam", "noncl"), (0.2, 0.5, 1.0)):
        s, orders = landscape(method=method, n=160, batch_size=64, epochs=1, seeds=2, keep=keep), []
        batches, widths = watched(s)[1], [64, 64] + [32] * (method != "simclr")
        assert [a1.shape[2] for a1, _ in batches] == widths and s.steps == len(widths) / (1 + (method == "noncl"))
        a1, a2 = (torch.cat(views, 2).mT for views in zip(*batches))  # (R, steps · B, p)
        D1, D2 = a1 != 0, a2 != 0
        for share, expected in (D1, keep), (D2, keep), (D1 & D2, keep**2):
            assert abs(share.float().mean() - expected) <= 4 * math.sqrt(expected * (1 - expected) / a1.numel())
        for seed, (shown, seen) in enumerate(zip(torch.where(D1, a1, a2), D1 | D2), 1):  # what is seen
            x = sc.sample(s, seed, 0.1, s.noise[0])[2].T
            matches = ((shown[:, None] == x) | ~seen[:, None]).all(2)[seen.any(1)]
            assert (matches.sum(1) == 1).all() and (matches.sum(0) <= 1).all() and len(matches) > 0.9 * sum(widths)
            orders.append(matches.int().argmax(1))
        assert not torch.equal(*orders)
        a1, a2 = watched(landscape(method=method, keep=keep, masks="dependent"))[1][0]
        assert not ((a1 != 0) & (a2 != 0)).any() and (a1 + a2 != 0).all()  # 2Dx and 2(I − D)x, Eq. (2)
    h, tau, weights = torch.randn(5, 5, 1024, dtype=torch.double), torch.linspace(0.1, 1, 5), torch.randn(5)
    ours = sc.NTXent.apply(F.normalize(h.requires_grad_(), dim=1), tau.view(5, 1, 1))  # two replicas at a time
    theirs = torch.stack([naive_nt_xent(*views.T.chunk(2), t) for views, t in zip(h, tau)])  # column i's is i + B
    mine, autograds = (torch.autograd.grad((weights * loss).sum(), h)[0] for loss in (ours, theirs))
    assert torch.allclose(ours, theirs, atol=1e-12) and torch.allclose(mine, autograds, atol=1e-12)
    W, M = torch.randn(2, 8, 12), torch.randn(2, 12, 4)
    best, separation = sc.max_cosine(W, M), sc.support_separation(W, M)
    cosines = F.cosine_similarity(W[:, :, None], M.mT[:, None], dim=3).abs()  # (2, 8, 4)
    for r, j in itertools.product(range(2), range(4)):
        neuron = max(cosines[r].tolist(), key=lambda row: row[j])
        expected = neuron[j], neuron[j] - max(neuron[:j] + neuron[j + 1 :])
        assert (best[r, j].item(), separation[r, j].item()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("factors", [
    dict(method="simclr"), dict(method="simclr", head="linear", batch_norm="affine", activation="authors", bias=0.2),
    dict(method="simclr", temperature=0.5, batch_norm="no"), dict(method="noncl", layers=2, train_bias="no", bias=0.2),
    dict(method="noncl"), dict(method="noncl", similarity="product", batch_norm="no", bias=0.1, train_bias="no"),
    dict(method="noncl", head="linear", normalise="rows"), dict(method="noncl", normalise="columns", warm=1.0),
    dict(method="simsiam", head="mlp", batch_norm="affine", activation="authors"),
    dict(method="simsiam", similarity="product", head="linear", activation="relu", bias=0.1)])
def test_training_is_the_plain_algorithm(factors):  # two epochs of SGD for a replica, written out in torch's functions
    s = landscape(n=40, **factors)
    (end, views), (start, plain) = watched(s), (sc.build(s, sc.Data(s, "cpu")).requires_grad_() for _ in range(2))
    mlp, head, encoders = s.head == "mlp", plain["head"], [encoder for chain in plain["networks"] for encoder in chain]
    def encode(i, h):  # h (K, B)
        b, scale_and_shift = encoders[i].b[0], [v.flatten() for v in encoders[i].affine]
        for W in encoders[i].layers:
            h = W[0] @ h
        h = h if s.batch_norm == "no" else F.batch_norm(h.T, None, None, *scale_and_shift, training=True).T
        return {"srelu": (h - b).relu() - (-h - b).relu(), "relu": (h - b).relu(),
                "authors": h.relu() - (-h - 2 * b).relu()}[s.activation]
    embed = lambda a: encode(1, encode(0, a)) if mlp else encode(0, a)
    predict = lambda h: head[0][0] @ h + head[1][0] if head else h
    unit = lambda h: F.normalize(h, dim=0) if s.similarity == "cosine" else h
    distance = lambda u, v: 2 - 2 * (unit(u) * unit(v.detach())).sum(0).mean()  # Eq. (4); of products Eq. (6) to (8)
    for i, (a1, a2) in enumerate((a1[0], a2[0]) for a1, a2 in views):
        trained = [i % 2] if s.method == "noncl" else range(1 + mlp)  # in turn, over the end of an epoch too
        loss = {"simclr": lambda: naive_nt_xent(predict(embed(a1)).T, predict(embed(a2)).T, s.temperature[0]),
                "simsiam": lambda: sum(distance(predict(embed(a)), embed(b)) for a, b in ((a1, a2), (a2, a1))) / 4,
                "noncl": lambda: distance(predict(encode(i % 2, a1)), encode(1 - i % 2, a2))}[s.method]()
        free = [p for i in trained for p in encoders[i].parameters() if p is not encoders[i].b or s.train_bias == "yes"]
        for p, gradient in zip([*free, *head], torch.autograd.grad(loss, [*free, *head])):
            p.data -= 0.1 * gradient
        for i in trained:
            encoders[i].b.data.clamp_(min=0 if s.activation == "srelu" else -math.inf)
            for W in encoders[i].layers if s.normalise != "none" and not (mlp and i == 1) else ():
                W.data = F.normalize(W.data, dim=2 if s.normalise == "rows" else 1)
    for ours, p, before in zip(end.parameters(), plain.parameters(), start.parameters()):
        assert torch.allclose(ours, p, atol=1e-5) and (p.shape[2] == 1 or not torch.allclose(p, before, atol=1e-3))


def test_a_replica_trains_as_if_alone_results_are_complete_and_a_killed_run_ends_like_a_whole_one(tmp_path, capsys):
    for method, head in ("simclr", "linear"), ("simsiam", "mlp"), ("noncl", "linear"):
        factors = dict(method=method, head=head, batch_norm="affine")
        replicas, curves = sc.train(landscape(**factors, seeds=3, sparsity=[0.1, 0.3], lr=[0.1, 0.3], keep=[0.5, 0.8]))
        assert len(replicas) == 24 and curves["min"].shape == (3, 24) and curves["epoch"].tolist() == [0, 1, 2]
        wanted = dict(sparsity=0.3, lr=0.3, keep=0.8)
        i = [replica == replica | wanted | {"seed": 2} for replica in replicas].index(True)
        for name, alone in sc.train(landscape(**factors, seeds=2, **wanted))[1].items():
            assert name == "epoch" or np.allclose(curves[name][:, i], alone[:, 1], atol=1e-5, equal_nan=True), name
    flags = "--experiment table1 budget --epochs 24 --seeds 2 --n 300 --batch-size 128 --device cpu --out".split()
    run, whole = tmp_path / "run", tmp_path / "whole"
    inside("sparse_coding.py", *flags, whole)
    out, found = capsys.readouterr().out, json.loads((whole / "results.json").read_text())
    assert [r["experiment"] for r in found] == ["table1"] * 24 + ["budget"] * 16
    assert all(r["setting"] in out for r in found) and "low: at most 0.65" in out and "python look.py" in out
    often = "import sys, common, sparse_coding as sc; sc.REMEMBER = 0; common.launch(lambda: sc.main(sys.argv[1:]))"
    process = subprocess.Popen([sys.executable, "-c", often, *flags, run], cwd=HERE)
    memory = run / "memory" / "table1-1-cpu.pt"  # of the second of eight programs
    while not memory.exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -9 and 0 < max(common.load_checkpoint(memory)["curves"]) < 24
    inside("sparse_coding.py --resume", run)
    assert all((run / f).read_bytes() == (whole / f).read_bytes() for f in ("results.json", "curves.npz"))
    row = next(r for r in found if r["setting"] == "SimSiam, sparsity 0.3" and r["statistic"] == "median")
    median = np.load(run / "curves.npz")["table1/SimSiam, sparsity 0.3/median"]  # (T, seeds)
    assert (row["paper"], row["seeds"], row["lr_times_steps"]) == (0.45, 2, 0.5 * 24 * 3) and median.shape == (25, 2)
    assert row["end_mean"] == pytest.approx(median[-1].mean(), abs=1e-6)
    assert {path.name for path in run.iterdir()} == {"config.json", "results.json", "curves.npz"}
    assert "this run is complete" in refused("sparse_coding.py --resume", run)


# ------------------------------------------------------------------------------------------------------ tools/theory.py
def test_losses_of_theorem_1_steps_of_2_growth_of_3_are_formulas_and_theory_says_what_holds(tmp_path, monkeypatch):
    d, keep, beta = 3, 0.4, 2.0
    masks = [(D, keep ** sum(D) * (1 - keep) ** (d - sum(D))) for D in itertools.product((0, 1), repeat=d)]  # and P(D)
    for W in F.normalize(torch.randn(4, d, d, dtype=torch.float64), dim=1):
        S = (F.relu(W).mT @ F.relu(W)).tolist()  # ⟨relu(W D1 e_i), relu(W D2 e_j)⟩ where both masks keep the entry
        six, shared, literal = 0, 0, 0
        for i, (D1, p1), (D2, p2) in itertools.product(range(d), masks, masks):
            logits = [beta * D1[i] * D2[j] * S[i][j] for j in range(d)]
            mean = sum(keep * math.exp(beta * D1[i] * S[i][j]) + 1 - keep for j in range(d))  # a mask per negative
            six += p1 * p2 * (2 - 2 * D1[i] * D2[i] * S[i][i]) / d
            shared -= p1 * p2 * (logits[i] - math.log(sum(map(math.exp, logits)))) / d
            literal -= p1 * p2 * (logits[i] - math.log(mean)) / d
        ours = theory.loss_6(W, keep), theory.loss_9(W, keep, beta), theory.loss_9(W, keep, beta, literal=True)
        assert [loss.item() for loss in ours] == pytest.approx([six, shared, literal], abs=1e-9)
    M, (Wo, Wt) = torch.linalg.qr(torch.randn(15, 6, dtype=torch.double))[0], torch.randn(2, 9, 15, dtype=torch.double)
    z = (torch.rand(200_000, 6) < 0.4).double() * (1 - 2 * torch.randint(0, 2, (200_000, 6)))  # draws: Assumption 1
    x, (D1, D2) = z @ M.T + 0.2 * torch.randn(200_000, 15).double(), (torch.rand(2, 200_000, 15) < 0.6).double()
    step = theory.linear_descent(Wo, Wt, M, [0.1], 0.95, 0.6, 0.4, 0.2)[0]
    assert (step - (0.95 * Wo + 0.2 * Wt @ ((D2 * x).T @ (D1 * x)) / len(x))).abs().max() < 0.01
    for bias, keep, kappa in (0.5, 0.6, 0.5), (0.3, 0.9, 0.8), (0.5, 0.9, 0.9):  # Theorem 3: to I where it is below 1
        assert theory.growth(bias, keep, kappa) == pytest.approx(kappa * keep**2 / (1 - bias), rel=0.01)
    monkeypatch.setattr(theory_nmf, "OVERLAPS", (0.0, 0.1, 0.2, 0.3, 0.4))
    monkeypatch.setattr(theory_nmf, "factorise", functools.partial(theory_nmf.factorise, seeds=3, steps=800))
    for program in ("theory", "theory_nmf"):
        inside(f"tools/{program}.py --out", tmp_path / program)
        assert (tmp_path / program / "theory.png").stat().st_size > 20_000
    rows = lambda name: json.loads((tmp_path / name / "results.json").read_text())
    one, two = ([f"{r['setting'].split()[0]} {r['verdict']}" for r in rows(name)] for name in ("theory", "theory_nmf"))
    assert one == ["1(a) holds"] * 2 + ["1(b) holds"] * 3 + ["1(b) fails", "2 holds", "2 fails", "3 holds", "3 fails"]
    assert two == ["2 holds", "4 holds", "4 holds", "5 holds", *["5 not unique"] * 3, "5 unique", "5 unique"]


def test_the_loss_closes_frequent_gates_the_prior_opens_and_images_of_one_class_make_ncls_factors_unique(monkeypatch):
    cost = lambda alpha, rho: bayesncl.bernoulli_kl(torch.tensor([[alpha]]), rho).item()
    for rho in (0.8, 0.51, 0.49, 0.3):  # Theorem 4.5 counts the first term alone, log(1/ρ)
        assert (cost(0.99, rho) > cost(0.01, rho)) == (rho < 0.5)  # closing a gate saves
    z1, z2 = theory_gate.planted(256)
    for k in (0, 99):  # of π = 0.05 and 0.99
        kept = torch.arange(100) != k
        without = simclr.nt_xent(z1[:, kept], z2[:, kept], 0.2) - simclr.nt_xent(z1, z2, 0.2)
        assert abs(theory_gate.gain(z1, z2, 0.2)[k] - without) < 1e-6 and (without > 0) == (k == 0)
    monkeypatch.setattr(theory_gate, "SETTINGS", [(0.8, 0.0)])  # no KL term
    toy = theory_gate.toy(seeds=1, steps=150)
    assert np.corrcoef(toy["norms kept"], theory_gate.LAW)[0, 1] > 0.99 and toy["gain"][0] > 0 > toy["gain"][-1]
    assert max(toy["kept"]["ρ 0.8, λ 0"][6:]) < 0.2 and toy["kept"]["ρ 0.8, λ 0"][0] > 0.5
    whole = torch.func.grad(simclr.nt_xent)(z1, z2, 0.2)
    mean = torch.stack([256 * whole[z1[:, k] > 0, k].mean() for k in range(100)])
    assert torch.allclose(theory_gate.pull_and_push(z1, z2, 0.2).sum(0), mean, atol=1e-5)
    R = torch.linalg.matrix_exp(0.05 * torch.tensor([[0.0, 1, 2, -1], [-1, 0, 1, 1], [-2, -1, 0, 1], [1, -1, -1, 0]]))
    for overlap, mixed, unique in (0.0, "all", True), (0.4, "some", True), (0.4, "all", False):
        prior, given = theory_nmf.co_occurrence(overlap, mixed)
        assert [prior.sum(), *given.sum(0)] == pytest.approx([1] * 5)
        p, A = theory_nmf.normalised(prior, given)
        F = prior.sqrt() * given / p.sqrt()[:, None]  # Theorem 4's, of overlapping classes too
        assert torch.allclose(F @ F.T, A) and ((F @ R.double()).min() < 0) == unique  # another one, unless ≥ 0 forbids
        solutions = theory_nmf.factorise(A, 4, True, seeds=4, steps=1000)
        assert (solutions @ solutions.mT - A).abs().max() < 1e-3 and solutions.min() >= 0
        assert (theory_nmf.between_seeds(solutions) > 0.999) == unique
        assert (theory_nmf.agreement(solutions[0], F) > 0.999) == unique


# ------------------------------------------------------------------------------------------------------ tools/, look.py
def test_decoding_skips_the_unreadable_survives_interruptions_to_torchvisions_pixels(tmp_path, monkeypatch, capsys):
    folder, square, replace, seen = tmp_path / "pets", decode.square, decode.os.replace, []
    for name, i in itertools.product(("train/cat", "train/dog", "val/cat", "val/dog"), range(4)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        x = torch.randint(0, 256, (1 if i == 1 else 3, 20 + 3 * i, 33 - 7 * i), dtype=torch.uint8)
        TF.to_pil_image(x).save(folder / name / f"{i}.png")
    good = (bad := folder / "train/cat/3.png").rename(tmp_path / "good.png")
    bad.write_bytes(b"no image")
    monkeypatch.setattr(decode, "AT_ONCE", 3)  # the first three can be read
    assert re.search("cat/3.png cannot be read .*--skip-unreadable", refused("decode.py --size 16", folder))
    decode.decode(folder, 8, skip_unreadable=True)  # another size starts afresh
    x, y = np.load(folder / "x_train.npy"), np.load(folder / "y_train.npy")
    assert x.shape == (7, 8, 8, 3) and y.tolist() == [0] * 3 + [1] * 4
    assert np.array_equal(x[3], square(str(folder / "train/dog/0.png"), 8))
    assert "1 cannot be read and are left out, first" in (out := capsys.readouterr().out) and "cat/3.png" in out
    good.replace(bad)
    for file in folder.glob("*.npy"):
        file.unlink()
    assert f"python tools/decode.py {folder}" in refused(lambda: common.load_data("pets", tmp_path))
    monkeypatch.setattr(decode, "square", lambda path, size: seen.append(path) or square(path, size))
    monkeypatch.setattr(decode.os, "replace", lambda *paths: replace(*paths) or 1 / 0)
    for _ in range(11):  # stopped after each of six batches, after all of them, and after each of four files is moved
        assert "pets" in refused(lambda: common.load_data("pets", tmp_path))
        pytest.raises(ZeroDivisionError, decode.decode, folder, 16)
    decode.main([str(folder), "--size", "16"])  # says that it is done
    assert len(seen) == 16 and not (folder / "decoding").exists()  # no image twice
    data = common.load_data("pets", tmp_path)
    for part, x, y in ("train", data.x_train, data.y_train), ("val", data.x_test, data.y_test):
        theirs = torchvision.datasets.ImageFolder(str(folder / part))
        expected = [TF.pil_to_tensor(TF.center_crop(TF.resize(image, 16), 16)) for image, _ in theirs]
        assert torch.equal(x, torch.stack(expected)) and y.tolist() == theirs.targets


def leave(folder, **numbers):  # the files of a run; without numbers those of one that was interrupted
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"method": "ncl", "dataset": "mine", "data_root": "."}')
    (folder / "dimensions.csv").write_text("dimension,act,cons\n0,0.5,0.2\n1,0.1,0.8\n")
    z = np.float16([[1, 0, 0], [1, 2, 0]] * 2)
    np.savez(folder / "embeddings.npz", h=z, z=z, y=[0, 1, 1, 1])
    last = json.dumps({"event": "final", "epochs": 1} | numbers) + "\n" if numbers else ""
    (folder / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "open": 0.25}) + "\n" + last)


def fake_run(root):  # what a run leaves, of 40 dark and 40 bright images; nothing was trained
    x, y = torch.randint(0, 40, (80, 16, 16, 3), dtype=torch.uint8), torch.arange(80) % 2
    x[y == 1] += 180
    np.savez(root / "toy.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    leave(folder := root / "run", spread=0.9)
    config = dict(method="simclr", dataset="toy", data_root=str(root), limit=None, arch="resnet8", image_size=16)
    (folder / "config.json").write_text(json.dumps(config | dict(min_scale=0.2, crop="bilinear")))
    torch.save(common.resnet("resnet8", 16)[0].state_dict(), folder / "backbone.pt")
    return folder


def test_finetuning_trains_a_copy_of_the_whole_backbone_and_what_it_or_look_cannot_use_is_refused(tmp_path):
    y = torch.randint(0, 4, (1000,))
    chosen, same, other, few = (finetune.balanced_subset(y, *of) for of in ((0.1, 3), (0.1, 3), (0.1, 4), (1e-6, 3)))
    assert torch.bincount(y[chosen]).tolist() == [25] * 4 and len(chosen.unique()) == 100
    assert torch.equal(chosen, same) and not torch.equal(chosen, other) and len(few) == 4  # one of every class
    before = (path := (folder := fake_run(tmp_path)) / "backbone.pt").read_bytes()
    scores = [(50, 9), (60, 9), (70, 9), (60, 9), (50, 9), (80, 9), mock.DEFAULT, mock.DEFAULT]  # the last two: true
    with mock.patch.object(finetune, "finetune", wraps=finetune.finetune) as train, \
            mock.patch.object(finetune, "accuracy", wraps=finetune.accuracy, side_effect=scores) as asked:
        for flags in "--tune 0.1 0.05", "--from-scratch --lr 0.05 0.02":
            inside(f"finetune.py {folder} --labels 0.1 1 --min-steps 20 {flags}")
    found, calls = json.loads((folder / "finetune.json").read_text()), [call.args for call in train.call_args_list]
    assert [args[6] for args in calls] == [0.05, 0.1, 0.1, 0.05, 0.1, 0.05, 0.05, 0.02]
    assert [len(args[3]) for args in calls][2:] == [4, 36, 36, 40, 4, 40] and len(calls[0][3]) <= 4
    assert [len(call.args[1]) for call in asked.call_args_list] == [4, 4, 40, 4, 4, 40, 40, 40]
    held = {*range(40)} - {*calls[3][3].tolist()}  # a rate is chosen on training images that are not trained on
    assert torch.equal(asked.call_args_list[0].args[1], common.load_data("toy", tmp_path).x_train[sorted(held)])
    assert (found["finetune_1.0_top1"], found["finetune_0.1_lr"]) == (80, 0.1) and found["scratch_1.0_top1"] > 90
    assert path.read_bytes() == before and not torch.equal(calls[0][0][0].weight.cpu(), torch.load(path)["0.weight"])
    toy = dict(np.load(tmp_path / "toy.npz"))
    for kept in {"x_train", "x_test"}, {*toy}:
        np.savez(tmp_path / "toy.npz", **{key: 0 * toy[key] for key in kept})
        assert "needs labels of two classes or more" in refused("finetune.py", folder)
    np.savez(tmp_path / "toy.npz", **toy | {"y_test": 1 - toy["y_test"]}), torch.save({"weight": torch.ones(2)}, path)
    assert "is not the resnet8 of config.json" in refused("finetune.py", folder)
    assert "is not the data set of this run" in refused("look.py", folder)


def tiles(g, sheets):  # the images (N, 3, h, w) in a page's sprites of geometry g
    sheets = [TF.pil_to_tensor(Image.open(io.BytesIO(base64.b64decode(sheet)))) for sheet in sheets]
    assert all(sheet[0].numel() < 16e6 for sheet in sheets)
    grids = [sheet.view(3, -1, g["H"], g["columns"], g["W"]).permute(1, 3, 0, 2, 4) for sheet in sheets]
    return torch.cat([grid.flatten(0, 1)[..., : g["h"], : g["w"]] for grid in grids]).float()


def contents(page):  # of a page's text: meta, and its arrays by name
    meta, numbers = (re.search(f'id="{name}">(.*?)</script>', page)[1] for name in ("meta", "numbers"))
    meta, numbers = json.loads(meta), zlib.decompress(base64.b64decode(numbers))
    kinds = {text: kind for kind, text in look.KINDS.items()}
    arrays = meta["arrays"].items()
    return meta, {name: np.frombuffer(numbers, kinds[kind], n, at) for name, (kind, at, n) in arrays}


def test_a_page_has_what_loops_find_in_the_run(tmp_path):
    folder = fake_run(tmp_path)
    for name in ("<script>alert(1)", "cat"):  # folders of the data set
        (tmp_path / "toy" / "train" / name).mkdir(parents=True)
    z = torch.rand(40, 6) * (torch.rand(40, 6) < torch.tensor([0, 0.05, 0.2, 0.4, 0.6, 1]))
    np.savez(folder / "embeddings.npz", h=torch.randn(40, 8).half(), z=z.half(), y=torch.arange(40) % 2)
    pages = [(look.main([str(folder)]), (folder / "look.html").read_text(encoding="utf-8"))[1] for _ in range(2)]
    meta, a = contents(pages[0])
    assert pages[0] == pages[1] and pages[0].count("<script>") == 1 and "http:" not in pages[0]
    assert meta["labels"] == [["<script>alert(1)", "cat"]] and meta["runs"][0]["metrics"]["epochs"] == 1
    e, row = F.normalize(z.half().float()).numpy(), lambda name, n, i: a["0" + name].reshape(n, -1)[i]
    for k in range(6):
        order = [i for i in np.argsort(-e[:, k], kind="stable").tolist() if e[i, k] > 1e-5]
        shown, value = row("shown", 6, k).tolist(), row("value", 6, k) / 255 * a["0peak"][k]
        assert shown[:48] == (order + [40] * 48)[:48] and shown[48:88] == (order + [40] * 40)[:40]
        assert sorted(i for i in shown[88:] if i < 40) == sorted(order)  # in random order
        assert all(abs(v - e[i, k]) < 0.003 for i, v in zip(shown, value) if i < 40)
        assert row("count", 6, k).tolist() == [sum(i % 2 == c for i in order) for c in (0, 1)]
        assert row("bins", 6, k).sum() == len(order) == a["0n"][k]
        overlap = {o: (e[:, [k, o]].min(1) > 1e-5).sum() / max(1, (e[:, [k, o]].max(1) > 1e-5).sum()) for o in range(6)}
        together, never = ([o for o in row(name, 6, k).tolist() if o < 6] for name in ("together", "never"))
        assert [*map(overlap.get, together)] == sorted((v for o, v in overlap.items() if v and o != k), reverse=True)
        assert {*never} == {o for o in range(6) if not overlap[o] and order and e[:, o].any()}
    for i in range(40):
        near, dims = row("near", 40, i), [k for k in row("dims", 40, i) if k < 6]
        assert (e @ e[i])[near] == pytest.approx(np.sort(np.delete(e @ e[i], i))[:-13:-1], abs=1e-6)
        assert dims == [k for k in np.argsort(-e[i], kind="stable") if e[i, k] > 1e-5]
        assert row("size", 40, i)[: len(dims)] / 32767 * a["0largest"][i] == pytest.approx(e[i, dims], abs=1e-4)
    one = interpret.Activations(np.arange(900), np.arange(900, 0, -1), np.array([0, 900]), 1000)
    many = look.of_dimensions(one, np.arange(1000), {})["shown"][0].tolist()
    assert many[:48] == [*range(48)] and many[48:88] == np.linspace(0, 899, 40).round().tolist()
    assert max(many[88:]) < 900 and len({*many[88:]}) == 40 and np.mean(many[88:]) > 300
    images = tiles(meta["tile"], re.findall('class="sheet">(.*?)</script>', pages[0]))[:40]
    assert (images - common.load_data("toy", tmp_path).x_test).abs().mean() < 9


@pytest.fixture
def looked_at(tmp_path):
    """look.py of a file of these arrays: -> the page's text, meta, arrays."""

    def look_at(*flags, **arrays):
        np.savez(tmp_path / "features.npz", **arrays)
        look.main([str(tmp_path / "features.npz"), "--out", str(tmp_path / "page"), *map(str, flags)])
        page = (tmp_path / "page/look.html").read_text(encoding="utf-8")
        return page, *contents(page)

    return look_at


def test_a_page_without_images_has_no_pictures(looked_at, tmp_path):
    page, meta, _ = looked_at(z=sparse_matrix())
    assert meta["tile"] is None and 'class="sheet"' not in page
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"look.html", "dimensions.csv"}


def test_a_page_of_a_dense_file_has_half_dimensions(looked_at):
    z = dense_matrix()
    _, meta, a = looked_at("--active", "top:0.1", z=z)
    rows = z / np.linalg.norm(z, axis=1, keepdims=True)
    assert meta["runs"][0]["dims"] == [f"{sign}{k}" for sign in "+-" for k in range(N_DIMS)]
    shown = a["0shown"].reshape(2 * N_DIMS, -1)
    assert shown[4, :6].tolist() == np.argsort(-rows[:, 4])[:6].tolist()
    assert shown[N_DIMS + 4, :6].tolist() == np.argsort(rows[:, 4])[:6].tolist()
    strongest = np.argmax(np.concatenate([rows, -rows], 1), 1)
    assert a["0dims"].reshape(N_IMAGES, -1)[:, 0].tolist() == strongest.tolist()


def test_a_page_of_a_sparse_file_has_what_the_dense_one_has(looked_at, tmp_path):
    z = sparse_matrix(signed=True)
    z[:, 7] /= 2  # no ties
    np.save(tmp_path / "y.npy", LABELS)
    _, _, dense = looked_at("--labels", tmp_path / "y.npy", z=z)
    images, dims = z.nonzero()
    coo = dict(format="coo", shape=z.shape, data=z[images, dims], row=images, col=dims)
    _, _, sparse = looked_at("--labels", tmp_path / "y.npy", **coo)
    assert dense.keys() - sparse.keys() == {"0near", "0close"}  # by the judge, which is not there
    for name, array in sparse.items():
        same = len(array) == len(dense[name]) and np.allclose(array, dense[name], atol=1e-5, equal_nan=True)
        assert same or "untrained" in name, name  # which has other random directions


def test_a_page_keeps_the_dimensions_with_the_largest_f1_and_random_images(looked_at, monkeypatch, tmp_path):
    monkeypatch.setattr(look, "MOST", 3), monkeypatch.setattr(look, "PICTURED", 10)
    page, meta, a = looked_at(z=sparse_matrix(), y=LABELS)
    table = np.genfromtxt(tmp_path / "page/dimensions.csv", delimiter=",", names=True)
    kept = np.concatenate([table[table["dimension"] == int(name)] for name in meta["runs"][0]["dims"]])
    assert len(table) == N_DIMS and sorted(kept["f1"]) == sorted(np.nan_to_num(table["f1"]))[-3:]
    assert a["0n"].tolist() == kept["n"].tolist() and a["0f1"] == pytest.approx(kept["f1"], abs=1e-5)
    assert len(a["images"]) == 10 and {*a["0shown"]} <= {*a["images"], N_IMAGES}


def test_a_page_names_classes_with_gaps_by_their_numbers(looked_at, tmp_path):
    numbers = np.array([0, 2, 5, 6])
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in "abcdefg"))
    _, meta, a = looked_at("--classes", tmp_path / "names.txt", z=sparse_matrix(), y=numbers[LABELS])
    assert meta["labels"] == [["a", "c", "f", "g"]] and np.array_equal(a["label0"], LABELS)
    with open(tmp_path / "page/dimensions.csv") as file:
        row = next(csv.DictReader(file))
    assert numbers[a["0best"][int(row["dimension"])]] == int(row["best"]) and row["name"] == "abcdefg"[int(row["best"])]


def test_a_page_of_a_run_knows_its_images_by_the_classes_own_numbers(tmp_path):
    folder, toy = fake_run(tmp_path), dict(np.load(tmp_path / "toy.npz"))
    np.savez(tmp_path / "toy.npz", **toy | {key: 3 * toy[key] + 2 for key in ("y_train", "y_test")})
    numbers = 3 * toy["y_test"] + 2
    np.savez(folder / "embeddings.npz", h=np.random.rand(40, 8), z=np.random.rand(40, 6), y=numbers)
    look.main([str(folder)])
    meta, a = contents((folder / "look.html").read_text(encoding="utf-8"))
    assert meta["labels"] == [["class 2", "class 5"]] and np.array_equal(a["label0"], toy["y_test"])


def test_a_page_has_the_untrained_dictionary_beside_the_dimensions(looked_at):
    z = sparse_matrix()
    _, meta, a = looked_at(z=z, y=LABELS)
    found = interpret.interpret(interpret.Embedding(z, {"": LABELS}))
    kept = found.untrained["n"] > 0
    for name in "n", "cons", "f1":
        assert np.allclose(a["0untrained_" + name], found.untrained[name][kept])
    assert meta["runs"][0]["untrained"]["best_f1"] == pytest.approx(found.controls["untrained"]["best_f1"])


@pytest.mark.parametrize("form", ["channels last", "channels first", "grey", "in the file", "folder"])
def test_a_page_has_the_images_in_their_order(looked_at, tmp_path, form):
    images = np.broadcast_to(np.arange(0, 240, 4, dtype=np.uint8)[:, None, None, None], (N_IMAGES, 96, 80, 3))
    arrays = {"channels first": images.transpose(0, 3, 1, 2), "grey": images[..., 0]}
    flags, more = ["--images", tmp_path / "images.npy"], {}
    np.save(tmp_path / "images.npy", arrays.get(form, images))
    if form == "in the file":
        flags, more = [], {"images": images}
    if form == "folder":
        flags = ["--images", tmp_path / "files"]
        (tmp_path / "files").mkdir()
        for i, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / f"files/{i:02}.png")
    page, meta, _ = looked_at(*flags, z=sparse_matrix(), **more)
    found = tiles(meta["tile"], re.findall('class="sheet">(.*?)</script>', page))[:N_IMAGES]
    assert found.shape[2:] == (64, 53) and (found[:, 0, 30, 30] - torch.arange(0, 240, 4)).abs().max() < 4
    assert (tmp_path / "page/top_images.png").exists()


@pytest.mark.parametrize("flags, message", {
    "--images few.npy": "z has 60 rows, few.npy has 3", "--images noise": "cannot be read as an image",
    "--images sizes": "crop or pad them to one size", "--images empty": "has no image files",
    "--images z.npy": "which array is the images?", "--images float.npy": "must be uint8",
    "--classes names.txt": "names classes, but there are no labels y", "other.npy": "give --out",
    "missing.npy": "missing.npy is not there"}.items())
def test_what_a_page_cannot_show_is_refused(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    for name, array in {"z": sparse_matrix(), "other": sparse_matrix(), "few": np.zeros((3, 8, 8), np.uint8),
                        "float": np.zeros((60, 8, 8))}.items():
        np.save(f"{name}.npy", array)
    Path("names.txt").write_text("one\n")
    for name in "noise", "sizes", "empty":
        Path(name).mkdir()
    for i in range(60):
        Path(f"noise/{i:02}.png").write_text("no image")
        Image.new("RGB", (20, 20 + i)).save(f"sizes/{i:02}.png")
    assert message in refused(f"look.py z.npy {flags}")


# -------------------------------------------------------------------------------- the programs, as their users run them
VARIANTS = ["simclr.py", "simclr.py --loss spectral", "ncl.py --topk 20", "bayesncl.py --no-detach --kl-weight 1e-3",
            "sparsehead.py --base byol --sparse-weight 0.1", "sparsehead.py --base barlow", "simsiam.py",
            "sparsehead.py --base vicreg", "sparsehead.py --base swav --prototypes 20", "sparsehead.py --base ssl-hsic",
            "sparsehead.py --base wmse --head-out 8 --whiten-size 12 --whiten-splits 2",
            "nce.py --weights non-negative --head mlp", "mmncl.py", "lpjepa.py"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):  # flags of a run of a second, 3 epochs of 4 steps; few.npz has 8 images to test on
    root, arrays = tmp_path_factory.mktemp("data"), shapes.draw(240, 100)
    np.savez(root / "tiny.npz", **arrays)
    np.savez(root / "few.npz", **{key: array[:8] if "test" in key else array for key, array in arrays.items()})
    np.savez(root / "unlabelled.npz", x_train=arrays["x_train"], x_test=arrays["x_test"])
    return (f"--dataset tiny --preset shapes --data-root {root} --image-size 16 --epochs 3 --batch-size 60 "
            "--checkpoint-every 1 --device cpu")


@pytest.fixture(scope="session")
def whole(tiny, tmp_path_factory):  # a run of each method; → the folder of runs
    root = tmp_path_factory.mktemp("runs")
    flags = dict(bayesncl="--gate gumbel --similarity ipw", sparsehead="--base byol", lpjepa="--noise gaussian")
    for method in METHODS:
        inside(f"{method}.py {tiny} {flags.get(method, '')} --out", root / method)
    return root


@pytest.mark.parametrize("method", METHODS)
def test_a_run_leaves_its_record_and_evaluation_gives_it_again_and_changes_no_weight(whole, tmp_path, capsys, method):
    folder, checkpoint = whole / method, whole / method / "checkpoint.pt"
    files = {path.name for path in folder.iterdir()}
    assert files - {"text.npz"} == {"config.json", "metrics.jsonl", "checkpoint.pt", "backbone.pt", "embeddings.npz"}
    assert json.loads((folder / "config.json").read_text())["torch"] == torch.__version__
    *epochs, last = lines(folder)
    assert [line["epoch"] for line in epochs] == [1, 2, 3] and {"loss", "spread", "act", "lr"} <= {*epochs[0]}
    assert last["event"] == "final" and {*common.COLUMNS.values(), "background_lp1"} <= {*last}
    if method == "lpjepa":
        assert epochs[0]["loss"] == pytest.approx(25 * epochs[0]["invariance"] + 125 * epochs[0]["distance"])
        assert last["expected_act"] == lpjepa.expected_active(-1.15, "gaussian")
    common.resnet("resnet8", 16)[0].load_state_dict(torch.load(folder / "backbone.pt", weights_only=True), strict=True)
    with mock.patch.object(common, "evaluate", wraps=common.evaluate) as evaluate:
        inside(f"{method}.py --eval-only {checkpoint} --out", tmp_path / "again")
    (_, data, model), saved = evaluate.call_args.args, common.load_checkpoint(checkpoint)["model"]
    assert all(torch.equal(value, saved[key]) for key, value in model.state_dict().items())  # frequencies, means too
    h, z = common.features(model, data.x_test, 16)
    expected = dict(h=h.half(), z=z.half(), y=data.y_test, background=data.background_test)
    with np.load(tmp_path / "again" / "embeddings.npz") as kept:
        assert {*kept} == {*expected} and all(np.array_equal(kept[key], expected[key]) for key in kept)
    assert lines(tmp_path / "again") == [last] and common.table(method, last) in capsys.readouterr().out
    inside(f"{method}.py --eval-only {checkpoint} --dataset few --out", tmp_path / "few")
    assert lines(tmp_path / "few")[0]["p_at_10"] is None and lines(tmp_path / "few")[0]["p_at_5"] >= 0


def test_corruptions_are_their_definitions_and_grow_with_severity_and_tools_ask_runs(whole, tmp_path, monkeypatch):
    x = common.gaussian_blur(torch.rand(20, 3, 32, 32), torch.full((20,), 2.0))  # images, not noise
    x, corrupted = ((x - x.amin()) / (x.amax() - x.amin()) * 255).byte(), robustness.corrupted
    for kind in robustness.CORRUPTIONS:
        images = [corrupted(x, kind, severity).float() for severity in range(1, 6)]
        change = [(image - x).abs().mean().item() for image in images]
        assert change == sorted(change) and 0.2 < change[0] < change[4] and images[0].shape == x.shape, kind
    assert abs((corrupted(torch.full_like(x, 128), "noise", 3) / 255).std() - 0.08) < 0.002
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in (x[0] / 255).flatten(1).T.tolist()]
    bright = [colorsys.hsv_to_rgb(h, s, min(1, v + 0.2)) for h, s, v in hsv]
    assert np.allclose(robustness.brighten(x[:1] / 255, 0.2)[0].flatten(1).T, bright, atol=1e-5)
    assert (corrupted(x, "contrast", 5).float().std((2, 3)) / x.float().std((2, 3)) - 0.15).abs().max() < 0.02
    assert corrupted(x, "pixelation", 5)[0, 0].diff(dim=1).eq(0).float().mean() > 0.25  # 20 columns of 31
    inside("robustness.py", *(whole / method for method in METHODS))
    for method in METHODS:
        found, last = json.loads((whole / method / "robustness.json").read_text()), lines(whole / method)[-1]
        assert (found["h_clean"], found["z_clean"]) == pytest.approx((last["lp1"], last["lp1_embedding"]), abs=4.1)
        assert found["z_jpeg"] == pytest.approx(np.mean([found[f"z_jpeg_{n}"] for n in range(1, 6)]))
        assert len(found) == 2 * (1 + 6 * 5 + 6 + 1)
    config = (shutil.copytree(whole / "ncl", tmp_path / "other") / "config.json")
    config.write_text(config.read_text().replace('"head_out": 256', '"head_out": 8'))
    assert "cannot be rebuilt" in refused("robustness.py", config.parent)
    monkeypatch.setattr(theory_gate, "train_gate", lambda *_: torch.ones(100))
    inside("theory_gate.py", whole / "ncl", whole / "bayesncl", "--out", tmp_path / "gate")
    for name, found in json.loads((tmp_path / "gate" / "results.json").read_text())["runs"].items():
        assert found["frequent_dims"] > 20 and (found["closed_dims"] == 0) == name.endswith("/ncl")
        assert 0 < found["frequent_left"] < 1 and found["frequent_mean_over_std"] < 3
    assert (tmp_path / "gate" / "gate.png").stat().st_size > 30_000


def test_captions_are_bags_of_words_and_name_dimensions_and_every_run_has_its_page_pictures_and_tiles(whole, tmp_path):
    rows = mmncl.numbered(["A half-disc, left", "Left half-disc", "!"])
    assert rows.shape == (3, 3) and rows[0, 1:].tolist() == rows[1, :2].tolist()[::-1] and rows[2].tolist() == [1, 0, 0]
    said = {*" ".join(shapes.draw(0, 500)["captions_test"]).replace(",", "").split()}
    assert len(mmncl.numbered([" ".join(said)]).unique()) == len(said) > 25  # no two share a vector
    vector = (model := mmncl.MMNCL(None, None, nn.Identity(), 4, "none")).text.weight
    means = torch.stack([vector[rows[0]].mean(0), vector[rows[1, :2]].mean(0), vector[1]])
    assert torch.allclose(model.read(rows)[0], means)
    (v, t), caption = torch.randn(2, 30, 8), torch.arange(30) // 2  # every caption twice
    near = [caption[(unit(t) @ unit(v)[i]).argsort(descending=True)[:5]].tolist() for i in range(30)]
    found = [100 * np.mean([i // 2 in row[:k] for i, row in enumerate(near)]) for k in (1, 5)]
    assert mmncl.recall(v, t, caption) == pytest.approx(found)
    y, names = torch.tensor([0, 0, 1, 1, 2, 3]), {"": ["red star", "ring", "plus", "night"]}
    of = lambda said: words.nameable(torch.eye(4)[y], said.split(), {"": y}, names)  # a dimension for each class
    assert of("star ring on night")["nameable"] == 75
    assert of("ring star on plus") == dict(nameable=0, nameable_chance=25, nameable_top=0, nameable_top_chance=25)
    t, captions = torch.rand(60, 5), [" ".join(np.random.default_rng(i).choice([*"abcdef"], 2)) for i in range(60)]
    said, means = words.by_word(t, captions)
    loop = torch.stack([unit(t)[[word in caption for caption in captions]].mean(0) for word in said])
    assert said == [*"abcdef"] and torch.allclose(means, loop)
    inside("words.py --classes", HERE / "assets/classes/shapes.txt", whole / "mmncl")
    (landscape := tmp_path / "landscape").mkdir()
    curves = {"lr_times_steps": np.arange(4.0), "min": np.ones((4, 3)), "loss": np.ones((4, 3))}
    np.savez(landscape / "curves.npz", **{f"budget/SimCLR, lr 1/{key}": curve for key, curve in curves.items()})
    inside("selection.py", whole / "simclr")
    inside("look.py", *(runs := [whole / method for method in ("simclr", "sparsehead", "simsiam", "mmncl")]), landscape)
    assert all((folder / "look.html").exists() and (folder / "dimensions.csv").exists() for folder in runs)
    kept, page = json.loads((whole / "mmncl/words.json").read_text()), (whole / "mmncl/look.html").read_text()
    assert len(kept["words"]) == 256 and 0 <= kept["nameable"] <= 100 and kept["words"][0][0][0] in page
    for n, height, width in (700, 96, 64), (16_000, 17, 20), (700, 224, 224):
        images = (torch.arange(n) % 250).byte().view(-1, 1, 1, 1).expand(-1, 3, height, width)
        g, sheets = look.sprites(images)
        assert g["W"] % 16 == g["H"] % 16 == 0 and g["w"] <= 64 >= g["h"] and len(sheets) == 1 + (n > 700)
        assert (tiles(g, sheets)[:n, 0, g["h"] // 2, g["w"] // 2] - images[:, 0, 0, 0]).abs().max() < 4
    pytest.importorskip("matplotlib")
    more = dict(simclr={"spectra", "selection"}, simsiam={"collapse"}, landscape={"budget"})
    for folder in *runs, landscape:
        every = {"top_images", "active_images", "dimensions"} if folder in runs else set()
        assert {path.stem for path in folder.glob("*.png")} == every | more.get(folder.name, set()), folder


def test_an_autoencoder_takes_any_run_and_leaves_one_and_stability_is_the_cosine_of_greedy_partners(whole, tmp_path):
    flags = "--epochs 4 --units 40 --topk 4 --batch-size 60 --checkpoint-every 1 --device cpu"
    for method in METHODS:
        inside(f"sae.py {flags}", whole / method, "--out", folder := tmp_path / f"{method}-sparsity-sae-4-seed1")
        args, model = common.load_run(folder)
        h, z = common.features(model, common.load_data(args.dataset, args.data_root).x_test, 16)
        again = (z @ model.W_dec.T + model.b).detach() * model.scale + model.mean
        error, variance = ((h - other).square().sum(1).mean().item() for other in (again, h.mean(0)))
        (*_, last), (*_, of_run) = lines(folder), lines(whole / method)
        assert last["reconstruction_error"] == pytest.approx(error, rel=1e-3)
        assert last["explained_variance"] == pytest.approx(1 - error / variance, rel=1e-3)
        assert (last["lp1"], last["knn5"]) == (of_run["lp1"], of_run["knn5"]) and 0.08 < last["act"] < 0.101, method
    shutil.copytree(whole / method, source := tmp_path / "source")
    end, stop = common.Run.end_epoch, lambda run, epoch, *more: end(run, epoch, *more) or epoch == 1 and 1 / 0
    with mock.patch.object(common.Run, "end_epoch", stop):
        pytest.raises(ZeroDivisionError, inside, f"sae.py {flags} --batch-topk", source, "--out", tmp_path / "stopped")
    shutil.rmtree(source), inside("sae.py --resume", tmp_path / "stopped")  # the checkpoint has the backbone
    other = folder.with_name(folder.name.replace("seed1", "seed2"))
    inside(f"sae.py {flags} --batch-topk", whole / method, "--out", other)
    assert lines(tmp_path / "stopped") == lines(other) != lines(folder)
    inside("sparsity.py", folder, other, *[whole / "simclr"] * 2)  # whose representation MonoScore is by
    for run in folder, other:
        interpret.write_csv(run / "dimensions.csv", interpret.interpret(interpret.read_embedding(run), "nonzero", False))
        found, run = report.record(run), lines(run)[-1]
        assert 0 < found["stability_chance"] < found["stability"] < 1 and found["stability_seeds"] == 2
        assert [found["entries"] / 40, 40 - 0.4 * found["dead_dims"]] == pytest.approx([run["act"], run["live_dims"]])
    inside("sparsity.py", folder, other, "--draw", tmp_path / "sparsity.png")
    b = torch.tensor([[2.0, 2], [1, 1.5], [0, 0]])  # the first is near to both, and has the nearer
    assert sparsity.partners(torch.eye(3), b).tolist() == pytest.approx([0.8**0.5, 0.6, 0])
    e = torch.cat([torch.zeros(30, 2), torch.rand(30, 6)], 1)  # two are dead
    first, second = sparsity.stability([e, e.flip(1)])
    assert first == pytest.approx(second) and first["stability"] > 0.999 > 1.05 * first["stability_chance"]


@pytest.mark.parametrize("command", [
    *VARIANTS, "simsiam.py --no-predictor --no-stop-grad --zero-init-residual --optimizer adam --lr 1e-3",
    "simclr.py --head none --optimizer lars --blur 0.5 --crop bicubic", "bayesncl.py --gate logistic --gate-layers 3",
    "ncl.py --activation exp --limit 99 --head none --precision bf16", "bayesncl.py --gate none --warmup 1 --head none",
    "sparsehead.py --preset cifar10 --arch resnet8 --bias-lr 1e-3 --prox", "bayesncl.py --gate soft --head linear",
    "lpjepa.py --noise gaussian --preset default --arch resnet20 --batch-size 40", "simclr.py --dataset unlabelled"])
def test_options_run_and_compile_without_a_break(tiny, tmp_path, monkeypatch, command):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager", fullgraph=True))
    inside(command.replace(".py", f".py {tiny} --epochs 1") + " --compile --out", tmp_path)
    first, last = lines(tmp_path)
    assert np.isfinite(first["loss"]) and last["act"] > 0 and ("lp1" in last) == ("unlabelled" not in command)
    assert not any("_orig_mod" in key for key in common.load_checkpoint(tmp_path / "checkpoint.pt")["model"])


@pytest.mark.parametrize("command,message", {
    "simclr.py --device tpu": "--device tpu is not there", "simclr.py --no-such-flag": "unrecognized arguments",
    "ncl.py --activation tanh": "invalid choice: 'tanh'", "robustness.py .": "is not a run of an image method",
    "simclr.py --blur 1.5": "1.5; it must be ≥ 0 and ≤ 1", "simclr.py --lr nan": "nan; it must be > 0 and < inf",
    "mmncl.py --dataset unlabelled": "lacks captions_train and", "simclr.py --epochs many": "invalid int value: 'many'",
    "sae.py {ncl} --batch-size 300": "300: at most 240 images", "simclr.py --batch-size 241": "241: at most 240 images",
    "simclr.py --resume {simclr} --lr 0.5": "--lr 0.5 contradicts the run's 0.003", "simclr.py --out {ncl}": "is taken",
    "sparsehead.py --head none": "--head none has no linear layer", "ncl.py --topk 300": "embedding has 256 dimensions",
    "sparsehead.py --base wmse": "to divide --batch-size 60", "sparse_coding.py --keep 0.5 1.2": "keep: 1.2; it must",
    "sparsehead.py --base wmse --head-out 20 --whiten-size 20": "must be above K = 20", "finetune.py .": "is not a run",
    "nce.py --loss ce --weights non-negative": "belongs to --loss nce", "nce.py --dataset unlabelled": "has 0 classes",
    "mmncl.py --classes {ncl}/metrics.jsonl": "4 classes; tiny has 10", "sparsity.py {ncl}": "takes two seeds or more",
    "sae.py {ncl} --resume {ncl}": "another program", "mmncl.py --classes {ncl}/no": "No such file",
    "theory_gate.py {simclr}": "give runs of ncl.py and bayesncl.py", "simclr.py --resume nowhere": "nowhere is no run",
    "ncl.py --resume {ncl} --epochs 2": "has trained 3 already", "finetune.py {ncl} --labels 1.1": "1.1 is not a share",
    "ncl.py --resume {ncl} --out no": "it without --out", "finetune.py {ncl} --lr 1 2": "--lr has 2 values",
    "ncl.py --eval-only {simclr}/checkpoint.pt": "another program", "simclr.py --resume .": "an older version made it",
    "simclr.py --eval-only {simclr}/checkpoint.pt --head-out 32": "does not fit these settings",
    "sparsity.py {ncl} --draw no.png": "none of these folders", "ncl.py --eval-only checkpoint.pt": "cannot be read as",
    "rarity.py {ncl}": "is no record with dimensions.csv", "rarity.py {ncl} --gate": "give runs of bayesncl.py",
    "sae.py {ncl} --batch-size 60 --topk 300": "300: there are 256 units", "sae.py --epochs 1": "whose features?",
    "look.py --classes {ncl}/metrics.jsonl {ncl}": "4 classes; tiny has 10", "sae.py .": "is no run of an image method",
    "sparse_coding.py --d 60": "--p is 50", "look.py .": "not the folder of a run",
    "sparse_coding.py --experiment table1 --d 1": "Pr 0.3 asks for 2 active", "words.py {ncl}": "no text.npz of a run",
    "sparse_coding.py --experiment fig1 --activation authors": "--activation authors is srelu with --batch-norm no",
    "sparse_coding.py --experiment fig1 --epochs 2 --lr 1e30": "the loss is not finite in epoch 1"}.items())
def test_what_cannot_be_used_is_refused_in_one_line(whole, tiny, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    bomb = type("Bomb", (), {"__reduce__": lambda self: (os.mkdir, ("went-off",))})()
    torch.save({"model": bomb}, "checkpoint.pt")  # where pickled objects are loaded, a folder appears
    name, _, flags = command.format(ncl=whole / "ncl", simclr=whole / "simclr").partition(".py ")
    if name in METHODS:
        config, flags = (whole / name / "config.json").read_text(), f"{tiny} {flags}"
        Path("config.json").write_text(re.sub(' "warmup": .*\n', "", config) if "--resume ." in command else config)
    out = "--out run" if name in (*METHODS, "sparse_coding") and "--resume" not in flags else ""
    assert message in refused(f"{name}.py {out} {flags}")
    assert {path.name for path in Path("run").glob("*")} <= {"config.json", "metrics.jsonl", "memory"}  # no results
    assert len(lines(whole / "simclr")) == len(lines(whole / "ncl")) == 4 and not Path("went-off").exists()


@pytest.mark.slow
def test_the_page_shows_what_an_address_says_and_asks_for_nothing_else(whole, tmp_path):
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or pytest.skip("no Chromium on the PATH")
    evil, noise, folder = "<script>alert(1)</script>\"'&", [], whole / "ncl"
    (tmp_path / "names.txt").write_text(f"{evil}\n" * 10)
    look.main([str(folder), str(whole / "simclr"), "--classes", str(tmp_path / "names.txt")])
    table, last = np.genfromtxt(folder / "dimensions.csv", delimiter=",", names=True), lines(folder)[-1]
    dead, live = ([row for row in table if (row["act"] > 0) == kind] for kind in (False, True))
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]).new_page()
        for event in ("console", "pageerror", "dialog", "request"):
            page.on(event, lambda what: noise.append(getattr(what, "url", what)))
        def at(address, width=1400):
            page.set_viewport_size(dict(width=width, height=900))
            page.goto(f"{(folder / 'look.html').as_uri()}#{address}")
            page.wait_for_timeout(800)  # functions that wait are strings, which the page's policy forbids
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
            return page.inner_text("main")
        shown = lambda: [int(k) for k in page.eval_on_selector_all(".card", "cards => cards.map(c => c.dataset.k)")]
        assert all(f"{round(last[key], 1) + 0:.1f} %" in at("all") for key in ("cons", "adjusted", "lp1"))  # no -0.0
        assert len(shown()) == len(live) == last["live_dims"] and f"{len(dead)} dead" in page.inner_text("main")
        for key, sign in dict(bits=-1, cons=-1, f1=-1, ap=-1, entropy=1, act=-1, mean=-1).items():
            page.select_option("#sort", key)
            value = {row["dimension"]: sign * row[key] for row in live}
            assert [value[k] for k in shown()] == sorted(value.values()), key
        page.fill("#find", "act>10.5 cons > 15.1"), page.wait_for_timeout(800)
        assert {*shown()} == {row["dimension"] for row in live if row["act"] > 0.105 and row["cons"] > 0.151}
        page.fill("#find", "f1>20.1"), page.select_option("#axis", "f1"), page.wait_for_timeout(800)
        assert {*shown()} == {row["dimension"] for row in live if row["f1"] > 0.201}
        _, arrays = contents((folder / "look.html").read_text(encoding="utf-8"))
        assert page.locator("svg .null").count() == len(arrays["0untrained_n"]) and "untrained" in page.text_content("svg")
        assert "plot=f1" in page.url and page.get_attribute("svg", "aria-label").startswith("F1")
        k, n = int(live[0]["dimension"]), round(100 * live[0]["act"])  # of 100 images
        assert f"Dimension {k}\n" in at(f"dim={k}") and evil in page.inner_text(".bars")
        assert page.locator(".pics a").count() == min(48, n) + 2 * min(40, n)
        page.keyboard.press("ArrowRight"), page.go_back(), page.click(".pics a")
        assert f"dim={k}&image=" in page.url and "Image" in page.inner_text("h1") and evil in page.inner_text("main")
        page.keyboard.press("Escape"), page.keyboard.press("Escape")
        assert page.url.endswith("#all") and page.evaluate("document.activeElement.dataset.k") == str(k)
        assert all("Dimension -3\n" in at(f"dim=-3&run=1{more}") for more in ("", "&label=1"))
        assert "Dimension +3\n" in at("dim=+3&run=1") and "image" in at("run=1&plot=f1")
        assert "φ" in at("class=1") and page.locator(".runs > div").count() == 2
        for address in "image=99 image=100 dim=x dim=<b>&sort=__proto__&run=7 class=99 all&run=1&label=1".split():
            assert len(at(address, 400)) > 10
            at("image=7")
        rgb = page.eval_on_selector("canvas", "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]")
        assert np.mean(rgb[::4]) == pytest.approx(shapes.draw(240, 100)["x_test"][7, 0].mean(), abs=3)  # red
        np.savez(tmp_path / "features.npz", z=sparse_matrix())
        look.main([str(tmp_path / "features.npz"), "--out", str(tmp_path)])
        for address in "all", "dim=0", "image=7":
            page.goto(f"{(tmp_path / 'look.html').as_uri()}#{address}"), page.wait_for_timeout(800)
            assert page.locator("canvas").count() == 0 and len(page.inner_text("main")) > 50, address
    assert {*noise} == {url for url in noise if str(url).startswith("file:")}


# ----------------------------------------------- unbreakable and fast: interruption, damage, no waiting, many processes
@pytest.mark.parametrize("command", ["bayesncl.py --gate gumbel", "sparsehead.py --base byol"])
def test_a_run_killed_twice_ends_like_an_uninterrupted_one_and_may_grow(tiny, tmp_path, command):
    (program, *flags), run, one = shlex.split(f"{command} {tiny} --epochs 10"), tmp_path / "run", tmp_path / "one"
    inside(f"{command} {tiny} --epochs 10 --out", one)
    for done, argv in (0, [*flags, "--out", run]), (3, ["--resume", run]):
        process = subprocess.Popen([sys.executable, HERE / program, *argv], stdout=subprocess.DEVNULL)
        while process.poll() is None and not ((run / "metrics.jsonl").exists() and len(lines(run)) > done):
            time.sleep(0.01)
        time.sleep(np.random.default_rng().uniform(0, 0.3))
        process.kill()
        assert process.wait() == -9, "it ended before it could be killed"
    inside(f"{program} --resume", run)
    assert lines(run) == lines(one)
    ours, theirs = (common.load_checkpoint(folder / "checkpoint.pt")["model"] for folder in (run, one))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    inside(f"{program} --epochs 11 --resume", run)
    assert lines(run)[:10] == lines(one)[:10] and [line.get("epoch") for line in lines(run)[10:]] == [11, None]


def train_variants(folder, tiny):
    """What the processes of the next test do: a whole run; then two steps of each variant, in float64 (in float32
    rounding flips a few ReLUs), of the same views, with BatchNorm frozen. Leaves the folders <processes> <variant>."""
    importlib.import_module("bayesncl").main([*shlex.split(tiny), "--out", f"{folder}/{common.world()}"])
    torch.save(torch.rand(9), f"{folder}/{common.world()}-{common.rank()}.pt")  # what it would draw next
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    nn.modules.batchnorm._BatchNorm.train = lambda norm, mode=True: nn.Module.train(norm, False)
    common.two_views = lambda x, *_, **__: (x[..., ::2, ::2] / 255.0, x[..., ::2, 1::2] / 255.0)
    common.augment = lambda x, *_, **__: x[..., ::2, ::2] / 255.0
    common.evaluate = lambda run, data, model, **_: ({}, *common.features(model, data.x_test, 16))
    for variant in VARIANTS:
        method, _, flags = variant.partition(".py")
        argv = f"{tiny} --limit 48 --batch-size 24 --epochs 1 --optimizer sgd --precision fp32 {flags} --out"
        importlib.import_module(method).main([*shlex.split(argv), f"{folder}/{common.world()} {variant}"])


def test_damage_and_nan_leave_what_was_there_and_two_processes_train_as_one(whole, tiny, tmp_path, monkeypatch, capsys):
    archive, folder, checkpoint = (tmp_path / name for name in ("archive.npz", "mapped", "checkpoint.pt"))
    np.savez(archive, **ARRAYS)
    zipfile.ZipFile(archive).extractall(folder)
    checkpoint.write_bytes((whole / "ncl" / "checkpoint.pt").read_bytes())
    weights, survivors, draw = common.load_checkpoint(checkpoint)["model"], [], np.random.default_rng(0)
    load = {".npz": lambda: common.load_data("archive", tmp_path), ".npy": lambda: common.load_data("mapped", tmp_path),
            ".pt": lambda: survivors.append(common.load_checkpoint(checkpoint)["model"])}
    for file in (archive, *folder.iterdir(), checkpoint):
        good = file.read_bytes()
        for i in range(300):
            at = draw.integers(len(good) if i % 2 or file == checkpoint else 128)  # 128 bytes: numpy's header
            bad = b"", draw.bytes(99) + good[at + 99 :], bytes([good[at] ^ 1 << draw.integers(8)]) + good[at + 1 :]
            file.write_bytes(good[:at] + bad[i % 3])  # cut off, overwritten, or a bit flipped
            with contextlib.suppress(common.BadInput):
                load[file.suffix]()
        file.write_bytes(good)
    assert len(survivors) < 50 and all(torch.equal(model[key], weights[key]) for model in survivors for key in weights)
    (tmp_path / "checkpoint.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(common.BadInput, match="disk full"), common.replacing(checkpoint) as file:
        torch.save(torch.zeros(100_000), file)
    assert checkpoint.read_bytes() == good and {*tmp_path.iterdir()} == {archive, folder, checkpoint}
    two_views, factors = common.two_views, iter([1] * 5 + [np.nan] * 3)  # a step each; 4 an epoch
    monkeypatch.setattr(common, "two_views", lambda x, *a, **k: torch.stack(two_views(x, *a, **k)) * next(factors))
    stop = pytest.raises(SystemExit, inside, f"ncl.py {tiny} --out", run := tmp_path / "run")
    out, error = capsys.readouterr()
    assert stop.value.code == 3 and "epoch 2: the loss is not finite; the last checkpoint stays" in error
    assert common.load_checkpoint(run / "checkpoint.pt")["epochs"] == len(lines(run)) == 1
    line = r"^epoch 1/3  \d+ s left  \d+ images/s  loss [\d.]+  spread [\d.]+  act [\d.]+  empty 0$"
    assert re.search(line, out, re.M)
    code = f"import common, {Path(__file__).stem} as t; common.launch(lambda: t.train_variants('{tmp_path}', '{tiny}'))"
    torchrun = "-m torch.distributed.run --standalone --nproc_per_node=2 --no-python".split()
    side_by_side(["-c", code], [*torchrun, sys.executable, "-c", code])
    for variant in VARIANTS:
        one, two = (tmp_path / f"{world} {variant}" for world in (1, 2))
        assert lines(two) == [pytest.approx(line) for line in lines(one)]
        ours, theirs = (common.load_checkpoint(run / "checkpoint.pt")["model"] for run in (one, two))
        assert all(torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-9) for key in ours), variant
    assert [line.get("epoch") for line in lines(tmp_path / "2")] == [1, 2, 3, None]
    assert not torch.equal(*(torch.load(tmp_path / f"2-{rank}.pt") for rank in (0, 1))), "views of their own"


@pytest.mark.parametrize("command", [*VARIANTS, "bayesncl.py --gate gumbel --similarity ipw --optimizer lars --blur 1"])
def test_nothing_is_read_back_within_an_epoch(tiny, tmp_path, monkeypatch, command):
    class HostReads(torch.utils._python_dispatch.TorchDispatchMode):
        count = 0  # of what would make a GPU wait: values that Python reads, and shapes that depend on values
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            self.count += name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal")
            self.count += name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
            return function(*args, **kwargs or {})
    set_lr, counts = common.set_lr, []
    monkeypatch.setattr(common, "set_lr", lambda *args: (set_lr(*args), counts.append(reads.count)))
    monkeypatch.setattr(common.Run, "end_epoch", lambda *_: next(iter(())))
    monkeypatch.setattr(common, "on_cpu", lambda x: False)  # views as a GPU makes them
    with HostReads() as reads, pytest.raises(StopIteration):
        inside(f"{command} {tiny} --out", tmp_path)
    assert len(counts) == 4 and counts[0] == counts[3]


# ------------------------------------------------------------------------------------------------------- accuracy gates
DENSE, SPARSE = dict(lp1=55), dict(lp1=55, cons=18, background_cons=85, live_dims=80)
FLOORS = {"simclr": DENSE, "ncl": SPARSE, "bayesncl": SPARSE, "sparsehead-simclr": DENSE, "simsiam": dict(lp1=50)}


def gate(folder, floors):  # a run's numbers, which reach their floors
    score = lines(folder)[-1]
    assert {key: score[key] for key, floor in floors.items() if score[key] < floor} == {}, folder
    return score


def test_gate_a_short_training_tells_the_methods_apart(tmp_path):
    short, sparse = "--image-size 16 --epochs 10 --device cpu --out".split(), dict(lp1=43, background_cons=72)
    floors = dict(simclr=dict(lp1=43), ncl=sparse, bayesncl=sparse)  # (48 to 55, 80 to 86; untrained: 38, 58)
    side_by_side(*[[f"{method}.py", *short, tmp_path / method] for method in floors])
    cl, ungated, gated = (gate(tmp_path / method, floors[method]) for method in floors)
    assert gated["act"] < ungated["act"] < 0.35 and 80 < gated["live_dims"] < ungated["live_dims"]
    assert min(ungated["cons"], gated["cons"]) > 12.5 > cl["cons"] and lines(tmp_path / "simclr")[-2]["spread"] > 0.7


@pytest.mark.slow
def test_gates_hold_for_the_defaults_and_simsiam_collapses_without_its_stop_gradient(tmp_path):
    commands = {name: name.partition("-")[0] + ".py" for name in FLOORS} | dict(plain="sparsehead.py --sparse-weight 0",
        collapsed="simsiam.py --no-stop-grad --image-size 16 --batch-size 1000 --lr 0.4 --epochs 50")
    side_by_side(*[[*command.split(), "--seed", 6, "--out", tmp_path / name] for name, command in commands.items()])
    scores = {name: gate(tmp_path / name, FLOORS.get(name, {})) for name in commands}
    assert scores["sparsehead-simclr"]["lp1"] >= scores["plain"]["lp1"] - 3
    spread = {name: min(line["spread"] for line in lines(tmp_path / name)[:-1]) for name in ("simsiam", "collapsed")}
    assert spread["simsiam"] > 0.5 and spread["collapsed"] < 0.2


# ------------------------------------------------------------------------------------------------------------ the house
PYTHON = {str(path.relative_to(HERE)): path.read_text() for path in (*HERE.glob("*.py"), *HERE.glob("tools/*.py"))}


def test_functions_that_methods_share_are_the_same_text():
    sources = {}
    for method in METHODS:
        text = PYTHON[f"{method}.py"]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                sources.setdefault(node.name, set()).add(ast.get_source_segment(text, node))
    own = {"network", "parser", "main", "__init__", "forward"}
    assert [name for name in sources if len(sources[name]) > 1 and name not in own] == []


def test_interpret_needs_nothing_of_ours():
    imported = re.findall(r"^ *(?:from|import) (\w+)", PYTHON["interpret.py"], re.M)
    assert not {Path(name).stem for name in PYTHON} & {*imported}


def test_records_reach_the_gates_pages_show_them_links_and_commands_work_and_methods_read_every_flag(monkeypatch):
    for path in report.PAGES:
        assert report.with_tables(page := path.read_text()) == page, f"python tools/report.py rewrites {path}"
        assert len(re.findall(r"^\| \[[^]]*\]\([\w/]*shapes-[\w-]+-seed1\) \|", page, re.M)) >= 5, "no table of records"
        anchors = {re.sub(r"[^\w -]", "", h).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", page.lower(), re.M)}
        for link in re.findall(r"\]\((?!http)([^()]+)\)", page):
            assert link[1:] in anchors if link[0] == "#" else (path.parent / link.partition("#")[0]).exists(), link
    for folder in filter(Path.is_dir, report.RESULTS.iterdir()):  # the last page is that of results/
        settings, results = json.loads((folder / "config.json").read_text()), folder / "results.json"
        assert {"hardware", "torch", "date"} <= {*settings} and settings.get("data_root", "data") == "data", folder
        assert f"| [{re.sub('-seed[0-9]$', '', folder.name)}](" in page, folder
        assert json.loads(results.read_text()) if results.exists() else report.record(folder), folder
    for name, floors in FLOORS.items():
        lp1 = torch.tensor([gate(report.RESULTS / f"shapes-{name}-seed{seed}", floors)["lp1"] for seed in range(1, 6)])
        told = f"linear probe {lp1.mean():.1f} ± {lp1.std():.1f} %"  # in the docstring
        assert told in PYTHON.get(f"{name}.py", told), told
    for base in sparsehead.IMAGENET_OF:
        told = " / ".join(f"{lp1.mean():.1f} ± {lp1.std():.1f}" for lp1 in (torch.tensor([report.record(
            report.RESULTS / f"shapes-bases-sparsehead-{base}{kind}-seed{seed}")["lp1"] for seed in (1, 2, 3)])
            for kind in ("", "-plain")))
        assert f"{base} {told}" in " ".join(PYTHON["sparsehead.py"].split()), (base, told)
    assert not re.search(r"\| *–? *\|", page), "every cell says something"
    readme, parse = (HERE / "README.md").read_text(), argparse.ArgumentParser.parse_args
    documents, call = "\n".join([readme, *PYTHON.values()]), r"^ *(?:torchrun --\S+|python) ([\w/]+\.py.*?)(?:  .*)?$"
    assert len(commands := [shlex.split(command, comments=True) for command in re.findall(call, documents, re.M)]) > 60
    for name in study.STUDIES:
        studied = sum(study.commands(name, None, None, "--checkpoint-every 50").values(), [])
        commands += [[script, *["runs/run"] * ("/" in script), *argv] for script, *argv in studied]  # tools: of a run
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda *args: parse(*args) and next(iter(())))
    for name, *argv in commands:
        monkeypatch.setattr(sys, "argv", [name, *argv])
        module = importlib.import_module(Path(name).stem)  # whose parser stops when all is parsed
        pytest.raises(StopIteration, module.parser().parse_args if hasattr(module, "parser") else module.main)
    assert common.table("bayesncl", lines(HERE / "results" / "shapes-bayesncl-first-command")[-1]) in readme
    ours = {Path(name).stem for name in PYTHON}
    assert {getattr(module, "EPS", 1e-2) for module in METHODS.values()} == {1e-2}
    for method, module in (METHODS | {"sae": sae}).items():
        text, flags = PYTHON[f"{method}.py"], {action.dest for action in module.parser()._actions} - {"help"}
        assert ours & {*re.findall(r"^ *(?:from|import) (\w+)", text, re.M)} == {"common"}, method
        read = re.findall(r'\bargs\.(\w+)|known(?:\[|\.get\()"(\w+)"', text + PYTHON["common.py"])
        assert flags <= {name for names in read for name in names}, method


def test_what_rarity_gives_a_dimension_is_what_as_many_random_images_have(tiny, tmp_path, capsys):
    two = 0.5 + 0.5 * 999 / 9999  # of the 10,000 images two are of one class or of two
    assert rarity.chance(10, 10_000)[[0, 1, -1]] == pytest.approx([1, two, 0.1], abs=0.03)
    for seed in 1, 2, 3:
        leave(folder := tmp_path / f"cifar10-cpu-ncl-seed{seed}")
        (folder / "config.json").write_text('{"dataset": "cifar10"}')
        (folder / "dimensions.csv").write_text(f"act,cons\n0,\n1e-4,1\n2e-4,1\n0.2,0.{seed + 4}\n")
    found = rarity.summary(*rarity.consistencies(folder)[:3], 10_000)
    assert found["above"] == pytest.approx(100 * (1 - two + 0.6) / 3, abs=1.5) and found["≥ 0.1 %"] == 70
    assert found["≥ 0.1 %, above"] == pytest.approx(60, abs=1) and (found["live"], found["below 0.1 %"]) == (3, 2)
    inside("rarity.py", *tmp_path.iterdir(), "--draw", tmp_path / "rarity.png")
    assert "86.7 ± 3.3 |" in capsys.readouterr().out and (tmp_path / "rarity.png").exists()
    inside(f"bayesncl.py {tiny} --prior 0.1 --kl-weight 1 --gate-lr 0.01 --out", run := tmp_path / "run")
    gate, live = rarity.behind_the_gate(run, None), lines(run)[-1]["live_dims"]
    assert gate["dead"] == rarity.load(run)[0].head_out - live > gate["dead without gate"]  # the prior closes gates
    inside("rarity.py", run, "--gate")
    assert f"| run | {gate['dead']:.3g} |" in re.sub(" +", " ", capsys.readouterr().out)


def test_a_study_records_what_is_not_recorded_and_goes_on_and_cells_are_means(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results"), monkeypatch.setattr(study, "RUNS", tmp_path / "runs")
    for seed, lp1 in enumerate((1.0, 2.0, 6.0), 1):
        leave(report.RESULTS / f"a-seed{seed}", lp1=lp1, act=None), leave(report.RESULTS / f"b-seed{seed}", lp1=1.0)
    assert report.image_cell("[A](a-seed1)", "{lp1:.1f} / {open:.0%}") == "3.0 ± 2.6 / 25 % ± 0 %"  # √(14 / 2)
    assert report.image_cell("[A](a-seed1) − [B](results/b-seed1)", "{lp1:.1f}") == "2.0 ± 2.6"
    assert report.image_cell("[A](a-seed1)", "{cons_weighted:.0f} {cons_0.01:.0f}", "3") == "30 50"
    assert report.image_cell("[A](a-seed1)", "{act:.1f}") is None
    table = "| x | LP@1 | seeds | note |\n|---|---|---|---|\n| [A](a-seed1) | {} | 1, 2 | by hand |\n| B | 7 | 1 | |\n"
    assert report.with_tables(table.format("?")) == table.format("1.5")
    leave(tmp_path / "results" / "a-seed2")
    assert "shows a-seed1, seeds on record, which" in refused(lambda: report.image_cell("[A](a-seed1)", "{lp1:d}"))
    shutil.rmtree(tmp_path / "results")
    leave(tmp_path / "done", lp1=50.0), leave(tmp_path / "runs" / "b")  # b was interrupted
    (method := tmp_path / "method.py").write_text(
        "import shutil, sys\nof = dict(zip(sys.argv[1::2], sys.argv[2::2]))\nif '--bad' in of: sys.exit('a reason')\n"
        f"shutil.copytree('{tmp_path}/done', of.get('--out') or of['--resume'], dirs_exist_ok=True)\n")
    (tmp_path / "tools").mkdir(), monkeypatch.setattr(study, "ROOT", tmp_path)
    (tmp_path / "tools" / "more.py").write_text(
        "import sys\nwith open(sys.argv[1] + '/words.json', 'x') as file: file.write('{\"cons\": 7, \"words\": []}')\n")
    runs = {"a": [[str(method)], ["tools/more.py"]], "b": [[str(method)]], "c": [[str(method), "--bad", "1"], ["no"]]}
    assert study.record_all(runs, 2, "cpu", "data", math.inf) is False
    out, error = capsys.readouterr()
    assert re.search("^a: .* --out", out, re.M) and re.search("^b: .* --resume", out, re.M)
    assert "c: exit code 1: a reason" in error
    kept = {path.name: report.record(path) for path in (tmp_path / "results").iterdir()}
    assert {name: (of["lp1"], of.get("cons")) for name, of in kept.items()} == {"a": (50, 7), "b": (50, None)}
    assert (tmp_path / "results" / "a" / "dimensions.csv").read_text() == (
        "dimension,n,act,mean,mono,class,cons,chance,adjusted,entropy,bits,best,f1,phi,ap,duplicate\n"
        "0,4,1,0.723607,0.368524,1,0.75,0.75,0,0.644611,0,1,0.857143,0,0.666667,0.408248\n"
        "1,2,0.5,0.447214,0.368524,1,1,0.735,1,0,0,1,0.8,0.57735,0.916667,0.408248\n2,0,0,0,,,,,,,0,,,,,\n")
    leave(folder := tmp_path / "runs" / "cifar100-cpu-a"), (seen := {})
    for epochs in 5, 5, 10:
        torch.save(dict(epochs=epochs), folder / "checkpoint.pt"), study.on_the_way(folder.name, seen)
    assert [common.load_checkpoint(folder / f"checkpoint-{epochs}.pt") for epochs in (5, 10)] == [
        dict(epochs=epochs) for epochs in (5, 10)] and len([*folder.glob("checkpoint*")]) == 3
    method.write_text("import time; time.sleep(1000)")
    with pytest.raises(SystemExit, match="--minutes are over; the same command goes on"):
        study.record_all({"d": [[str(method)]]}, 1, "cpu", "data", time.monotonic() + 0.5)
    few = {"few": "--experiment custom --sparsity 0.1 --n 64 --batch-size 32 --epochs 2 --seeds 1 --device cpu"}
    monkeypatch.setattr(study_landscape, "RUNS", study.RUNS), monkeypatch.setattr(study_landscape, "RECORDS", few)
    inside("study_landscape.py")
    assert json.loads((report.RESULTS / "few" / "results.json").read_text())[0]["experiment"] == "custom"
    monkeypatch.setattr(study.subprocess, "Popen", lambda *_, **__: pytest.fail("it is recorded"))
    assert study.record_all({name: runs[name] for name in "ab"}, 2, "cpu", "data", math.inf) is True
    inside("study_landscape.py")
