import collections
import functools
import importlib
import io
import itertools
import math
import re
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torchvision
import torchvision.transforms.v2.functional as TF

import common
import sparsehead
from conftest import ROOT, refusal


# ---------------------------------------------------------------------------------- common.py: data
def random_images(n):
    """(n, 8, 8, 3) uint8."""
    return np.random.default_rng(n).integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)


TRAIN_IMAGES = random_images(20)
TEST_IMAGES = random_images(8)
TRAIN_LABELS = np.arange(20) % 4
TEST_LABELS = np.arange(8) % 4
ARRAYS = dict(
    x_train=TRAIN_IMAGES,
    y_train=TRAIN_LABELS,
    x_test=TEST_IMAGES,
    y_test=TEST_LABELS,
)
CAPTIONS = dict(captions_train=np.array(["x"] * 20), captions_test=np.array(["x"] * 8))


def channels_first(images):
    return images.transpose(0, 3, 1, 2)


def assert_holds_arrays(data):
    assert np.array_equal(data.x_train, channels_first(TRAIN_IMAGES))
    assert np.array_equal(data.x_test, channels_first(TEST_IMAGES))
    assert np.array_equal(data.y_train, TRAIN_LABELS)
    assert np.array_equal(data.y_test, TEST_LABELS)


def in_columns(labels):
    """(N, 1) bytes, as in MedMNIST."""
    return labels[:, None].astype(np.uint8)


FIRST = dict(x_train=channels_first(TRAIN_IMAGES), x_test=channels_first(TEST_IMAGES))
GAPS = dict(y_train=10**6 * TRAIN_LABELS + 7, y_test=10**6 * TEST_LABELS + 7)
MEDMNIST = dict(
    train_images=TRAIN_IMAGES,
    train_labels=in_columns(TRAIN_LABELS),
    val_images=TRAIN_IMAGES,
    val_labels=in_columns(TRAIN_LABELS),
    test_images=TEST_IMAGES,
    test_labels=in_columns(TEST_LABELS),
)
FORMS = {
    "channels last": ARRAYS,
    "channels first": ARRAYS | FIRST,
    "labels with gaps": ARRAYS | GAPS,
    "medmnist": MEDMNIST,
}


@pytest.mark.parametrize("arrays", FORMS.values(), ids=FORMS)
def test_every_form_of_arrays_is_read(tmp_path, arrays):
    np.savez(tmp_path / "mine.npz", **arrays)
    assert_holds_arrays(common.load_data("mine", tmp_path))


@pytest.fixture
def mapped(tmp_path):
    """The folder of a data set `mine` of .npy files."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for key, array in ARRAYS.items():
        np.save(folder / f"{key}.npy", array)
    return tmp_path


def test_a_folder_of_npy_files_is_read(mapped):
    assert_holds_arrays(common.load_data("mine", mapped))


def test_mapped_files_are_never_written(mapped):
    before = (mapped / "mine/x_train.npy").read_bytes()
    common.load_data("mine", mapped).x_train.zero_()
    assert (mapped / "mine/x_train.npy").read_bytes() == before


def test_grey_images_have_three_equal_channels(tmp_path):
    np.savez(tmp_path / "grey.npz", x_train=TRAIN_IMAGES[..., 0], x_test=TEST_IMAGES[..., :1])
    data = common.load_data("grey", tmp_path)
    for channel in range(3):
        assert np.array_equal(data.x_train[:, channel], TRAIN_IMAGES[..., 0])
        assert np.array_equal(data.x_test[:, channel], TEST_IMAGES[..., 0])


def test_images_need_no_labels(tmp_path):
    np.savez(tmp_path / "bare.npz", x_train=TRAIN_IMAGES, x_test=TEST_IMAGES)
    data = common.load_data("bare", tmp_path)
    assert data.y_train is None
    assert data.y_test is None
    assert data.captions_train is None


def test_classes_keep_their_own_numbers(tmp_path):
    gaps = np.array([0, 2, 5, 9])
    arrays = ARRAYS | dict(y_train=gaps[TRAIN_LABELS], y_test=gaps[TEST_LABELS])
    np.savez(tmp_path / "gaps.npz", **arrays)
    data = common.load_data("gaps", tmp_path)
    assert data.classes.tolist() == [0, 2, 5, 9]
    assert data.y_test.tolist() == TEST_LABELS.tolist()


def test_a_test_set_may_lack_classes(tmp_path):
    np.savez(tmp_path / "few.npz", **ARRAYS | dict(y_test=TEST_LABELS // 2 * 3))
    assert common.load_data("few", tmp_path).y_test.unique().tolist() == [0, 3]


def test_a_second_label_and_captions_are_read(tmp_path):
    more = dict(background_train=TRAIN_LABELS // 2 * 5, background_test=TEST_LABELS // 2 * 5)
    np.savez(tmp_path / "more.npz", **ARRAYS, **CAPTIONS, **more)
    data = common.load_data("more", tmp_path)
    assert np.array_equal(data.background_test, TEST_LABELS // 2)
    assert data.background_classes.tolist() == [0, 5]
    assert data.captions_train.tolist() == ["x"] * 20


def test_pretraining_sees_the_unlabelled_images(tmp_path):
    np.savez(tmp_path / "more.npz", **ARRAYS, x_unlabeled=TRAIN_IMAGES[5:])
    data = common.load_data("more", tmp_path)
    assert_holds_arrays(data)
    assert np.array_equal(data.images, channels_first(TRAIN_IMAGES[5:]))
    assert data.steps(5) == 3


def torchvision_dataset(root, download, train=None, split=None):
    """A data set with the attributes of torchvision's: `targets` under `train`, or `labels`."""
    if split == "train+unlabeled":
        images, labels = TRAIN_IMAGES[5:], TRAIN_LABELS[5:]
    elif train or split == "train":
        images, labels = TRAIN_IMAGES, TRAIN_LABELS
    else:
        images, labels = TEST_IMAGES, TEST_LABELS
    if train is None:
        return SimpleNamespace(data=channels_first(images), labels=labels)
    return SimpleNamespace(data=images, targets=labels.tolist())


@pytest.mark.parametrize("name", common.DOWNLOADS)
def test_torchvisions_data_sets_are_read(tmp_path, monkeypatch, name):
    monkeypatch.setattr(torchvision.datasets, common.DOWNLOADS[name], torchvision_dataset)
    data = common.load_data(name, tmp_path)
    assert_holds_arrays(data)
    assert len(data.images) == (15 if name == "stl10" else 20)


@pytest.mark.parametrize("name", common.DOWNLOADS)
def test_a_failed_download_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(torchvision.datasets, common.DOWNLOADS[name], None)
    message = refusal(functools.partial(common.load_data, name, tmp_path))
    assert f"{name} could not be downloaded" in message


BAD_DATA = {
    "no test images": (dict(x_train=TRAIN_IMAGES), "no x_test"),
    "no test labels": (
        dict(x_train=TRAIN_IMAGES, y_train=TRAIN_LABELS, x_test=TEST_IMAGES),
        "y_train and y_test go together",
    ),
    "no test captions": (
        ARRAYS | dict(captions_test=CAPTIONS["captions_test"]),
        "captions_train and captions_test go together",
    ),
    "float images": (
        ARRAYS | dict(x_train=np.full(TRAIN_IMAGES.shape, np.nan)),
        "x_train is float64",
    ),
    "two channels": (
        ARRAYS | dict(x_train=TRAIN_IMAGES[..., :2]),
        "x_train has shape (20, 8, 8, 2)",
    ),
    "one image": (
        ARRAYS | dict(x_test=TEST_IMAGES[:1], y_test=TEST_LABELS[:1]),
        "x_test has shape (1, 8, 8, 3)",
    ),
    "few labels": (ARRAYS | dict(y_train=TRAIN_LABELS[1:]), "y_train is int64 of shape (19,)"),
    "negative label": (ARRAYS | dict(y_train=TRAIN_LABELS - 1), "y_train is int64 of shape (20,)"),
    "float labels": (ARRAYS | dict(y_train=TRAIN_LABELS / 2), "y_train is float64 of shape (20,)"),
    "alien class": (
        ARRAYS | dict(y_test=np.where(TEST_LABELS == 3, 9, TEST_LABELS)),
        "y_test has classes that y_train has not: 9",
    ),
    "pickles": (
        ARRAYS | dict(y_train=np.array([{}] * 20, dtype=object)),
        "cannot be read as plain numpy arrays",
    ),
    "captions of bytes": (
        ARRAYS | CAPTIONS | dict(captions_train=np.array([b"x"] * 20)),
        "captions_train is |S1 of shape (20,)",
    ),
    "few captions": (
        ARRAYS | CAPTIONS | dict(captions_test=np.array(["x"] * 7)),
        "captions_test is <U1 of shape (7,)",
    ),
    "blank caption": (
        ARRAYS | CAPTIONS | dict(captions_train=np.array([" "] + ["x"] * 19)),
        "captions_train is <U1 of shape (20,)",
    ),
}


@pytest.mark.parametrize("arrays, message", BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_are_refused_in_one_line(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    assert message in refusal(functools.partial(common.load_data, "bad", tmp_path))


def test_an_unknown_data_set_is_refused(tmp_path):
    assert "no data set 'none'" in refusal(functools.partial(common.load_data, "none", tmp_path))


def test_image_files_are_to_be_decoded(tmp_path):
    (tmp_path / "mine/train").mkdir(parents=True)
    message = refusal(functools.partial(common.load_data, "mine", tmp_path))
    assert f"python tools/decode.py {tmp_path / 'mine'} --size 256" in message


# ---- a limit
@pytest.fixture
def hundred():
    """100 images, each its own number, with classes of 60, 30 and 10 and the other labels."""
    x = torch.arange(100).view(100, 1, 1, 1)
    y = torch.tensor([0] * 6 + [1] * 3 + [2]).repeat(10)
    return common.Data(
        "numbers",
        x_train=x,
        x_test=x,
        y_train=y,
        y_test=y,
        background_train=-y,
        background_test=-y,
        captions_train=np.arange(100).astype(str),
    )


def test_a_limit_keeps_the_classes_proportions(hundred):
    counts = common.subset(hundred, 33).y_train.bincount()
    shares = torch.tensor([19.8, 9.9, 3.3])
    assert ((counts - shares).abs() < 1).all()


def test_a_limit_keeps_classes_that_take_turns(hundred):
    hundred.y_train = torch.arange(100) % 4
    counts = common.subset(hundred, 25).y_train.bincount(minlength=4)
    assert ((counts - 6.25).abs() < 1).all()


def test_a_limit_keeps_images_and_labels_together(hundred):
    data = common.subset(hundred, 33)
    kept = data.x_train.flatten()
    assert torch.equal(data.y_train, hundred.y_train[kept])
    assert torch.equal(data.background_train, hundred.background_train[kept])
    assert data.captions_train.tolist() == hundred.captions_train[kept].tolist()


def test_a_limit_keeps_the_images_order(hundred):
    assert (common.subset(hundred, 33).x_train.flatten().diff() > 0).all()


def test_a_limit_leaves_the_test_images(hundred):
    data = common.subset(hundred, 33)
    assert data.x_test is hundred.x_test
    assert data.y_test is hundred.y_test


def test_a_limit_holds_for_unlabelled_images(hundred):
    hundred.x_unlabeled = torch.arange(200)
    assert common.subset(hundred, 50).x_unlabeled.tolist() == list(range(0, 200, 4))
    assert len(common.subset(hundred, 150).x_train) == 100


def test_a_limit_without_labels_is_spread_evenly(hundred):
    hundred.y_train = None
    assert common.subset(hundred, 25).x_train.flatten().tolist() == list(range(0, 100, 4))


def test_load_data_keeps_the_limit(tmp_path):
    np.savez(tmp_path / "mine.npz", **ARRAYS)
    assert len(common.load_data("mine", tmp_path, limit=12).y_train) == 12


def test_too_large_a_limit_is_refused(hundred):
    message = refusal(functools.partial(common.subset, hundred, 101))
    assert "--limit 101: numbers has 100 training images" in message


# ---- batches
@pytest.fixture
def ten():
    """Ten images, each its own number."""
    x = torch.arange(10)
    return common.Data("numbers", x, x)


@pytest.fixture
def become(monkeypatch):
    """A function that makes this process the one of a number among two."""

    def become(number):
        def rank():
            return number

        def world():
            return 2

        monkeypatch.setattr(common, "rank", rank)
        monkeypatch.setattr(common, "world", world)

    return become


def numbers_of(data, seed=0, epoch=0):
    """The images' numbers in the batches of four of an epoch."""
    return [index.tolist() for _, index in data.batches(4, seed, epoch, "cpu")]


def test_a_pass_has_every_image_once_but_for_the_rest(ten):
    first, second = numbers_of(ten)
    assert len(first) == len(second) == 4
    assert len({*first, *second}) == 8


def test_batches_are_the_images_of_their_numbers(ten):
    ten.x_train = 7 * torch.arange(10)
    for images, index in ten.batches(4, 0, 0, "cpu"):
        assert torch.equal(images, 7 * index)


def test_seed_and_epoch_fix_the_order(ten):
    assert numbers_of(ten, seed=3, epoch=5) == numbers_of(ten, seed=3, epoch=5)


def test_every_seed_and_epoch_has_its_order(ten):
    orders = [numbers_of(ten, seed, epoch) for seed in (0, 1) for epoch in (1, 2)]
    for one, other in itertools.combinations(orders, 2):
        assert one != other


class WatchedImages(list):
    """Images that keep who read them: (in the main thread, with how many threads of torch)."""

    device = torch.device("cpu")

    def __init__(self, images):
        super().__init__(images)
        self.readers = set()

    def __getitem__(self, index):
        in_main = threading.current_thread() is threading.main_thread()
        self.readers.add((in_main, torch.get_num_threads()))
        return index


@pytest.fixture
def two_threads():
    """torch with two threads, whatever the environment says."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_another_thread_reads_on_one_core(two_threads):
    images = WatchedImages(range(10))
    numbers_of(common.Data("numbers", images, images))
    assert images.readers == {(False, 1)}


def test_processes_share_the_batches(ten, become):
    whole = numbers_of(ten)
    become(0)
    first = numbers_of(ten)
    become(1)
    second = numbers_of(ten)
    assert [len(share) for share in first] == [2, 2]
    assert [a + b for a, b in zip(first, second)] == whole


@pytest.mark.parametrize("batch_size", [5, 12], ids=["odd", "large"])
def test_a_batch_without_equal_shares_is_refused(ten, become, batch_size):
    become(0)
    message = refusal(functools.partial(ten.steps, batch_size))
    assert f"--batch-size {batch_size}: at most 10 images, and a multiple of 2" in message


def test_a_batch_has_at_most_all_images(ten):
    assert ten.steps(10) == 1
    assert "--batch-size 11: at most 10 images" in refusal(functools.partial(ten.steps, 11))


# ---- a GPU, if it has room for twice the data
@pytest.mark.parametrize("more, moves", [(0, False), (1, True)], ids=["full", "room"])
def test_data_move_to_a_gpu_with_room(ten, monkeypatch, more, moves):
    ten.y_train = torch.arange(10)
    size = 3 * 10 * 8  # bytes
    moved = []

    def mem_get_info(device):
        return 2 * size + more, 0

    def to(tensor, device):
        moved.append(device.type)
        return tensor

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(torch.Tensor, "to", to)
    data = common.on_gpu_if_it_fits(ten, torch.device("cuda"))
    assert moved == (["cuda"] * 3 if moves else [])
    assert (data is ten) != moves


# --------------------------------------------------------------------------------- common.py: views
VIEW_SIZES = {  # height and width of images, and size of views
    "same": (32, 32, 32),
    "smaller": (64, 64, 32),
    "oblong": (96, 80, 32),
    "larger": (20, 32, 48),
}
every_size = pytest.mark.parametrize("height, width, size", VIEW_SIZES.values(), ids=VIEW_SIZES)
each_kind = pytest.mark.parametrize("kind", ["bilinear", "bicubic"])


def some_images(n, height, width):
    """(n, 3, height, width) uint8: noise, two equal channels, grey and saturated, n / 4 each."""
    x = torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8)
    _, equal, grey, saturated = x.chunk(4)
    equal[:, 1] = equal[:, 0]
    grey[:] = grey[:, :1]
    saturated[:] = saturated // 128 * 255
    return x


def torchvisions_crop(image, top, left, height, width, size, mirrored, kind):
    box = [int(side) for side in (top, left, height, width)]
    mode = torchvision.transforms.InterpolationMode(kind)
    image = TF.resized_crop(image, *box, [size, size], mode, antialias=True)
    return TF.horizontal_flip(image) if mirrored else image


def torchvisions_blur(image, sigma):
    return TF.gaussian_blur(image, 13, sigma)


TORCHVISIONS = {  # our operator: torchvision's
    common.resized_crop: torchvisions_crop,
    common.adjust_brightness: TF.adjust_brightness,
    common.adjust_contrast: TF.adjust_contrast,
    common.adjust_saturation: TF.adjust_saturation,
    common.adjust_hue: TF.adjust_hue,
    common.gaussian_blur: torchvisions_blur,
}


def of_image(i, drawn):
    """What was drawn for image i: the entries of tensors, and what holds for all images."""
    own = []
    for value in drawn:
        if torch.is_tensor(value):
            value = value[i].item()
        own.append(value)
    return own


def assert_is_torchvisions(operator, x, *drawn):
    found = operator(x, *drawn)
    for i, image in enumerate(x):
        expected = TORCHVISIONS[operator](image, *of_image(i, drawn))
        assert (found[i] - expected).abs().max() < 1e-5


@each_kind
@every_size
def test_a_crop_is_torchvisions(height, width, size, kind):
    x = some_images(32, height, width) / 255
    boxes = common.random_boxes(len(x), height, width, 0.08, x.device)
    mirrored = torch.rand(len(x)) < 0.5
    assert_is_torchvisions(common.resized_crop, x, *boxes, size, mirrored, kind)


@pytest.mark.parametrize(
    "operator, low, high",
    [
        (common.adjust_brightness, 0, 2),
        (common.adjust_contrast, 0, 2),
        (common.adjust_saturation, 0, 2),
        (common.adjust_hue, -0.5, 0.5),
    ],
    ids=["brightness", "contrast", "saturation", "hue"],
)
def test_a_colour_operator_is_torchvisions(operator, low, high):
    x = some_images(64, 16, 20) / 255
    drawn = torch.empty(len(x), 1, 1, 1).uniform_(low, high)
    assert_is_torchvisions(operator, x, drawn)


def test_a_blur_is_torchvisions():
    x = some_images(32, 24, 24) / 255
    sigma = torch.empty(len(x)).uniform_(0.1, 2)
    assert_is_torchvisions(common.gaussian_blur, x, sigma)


@pytest.fixture
def recorded(monkeypatch):
    """The operators of the views made in a test: (operator, images that get it, what was drawn)."""
    calls = []
    crop = common.resized_crop
    change_some = common.change_some

    def recorded_crop(x, *drawn):
        everyone = torch.ones(len(x), dtype=torch.bool)
        calls.append((crop, everyone, drawn))
        return crop(x, *drawn)

    def recorded_change(x, chosen, change, values):
        calls.append((change, chosen, [values]))
        return change_some(x, chosen, change, values)

    monkeypatch.setattr(common, "resized_crop", recorded_crop)
    monkeypatch.setattr(common, "change_some", recorded_change)
    return calls


@each_kind
@every_size
@pytest.mark.parametrize("colour_first", [False, True], ids=["crop-colour", "colour-crop"])
def test_a_view_is_torchvisions_operators(recorded, height, width, size, kind, colour_first):
    x = some_images(48, height, width)
    options = dict(jitter=1.0, gray=0.0, blur=0.5, crop=kind, colour_first=colour_first)
    views = common.augment(x, size, **options)
    for i, view in enumerate(views):
        expected = x[i] / 255
        for operator, chosen, drawn in recorded:
            if chosen[i]:
                expected = TORCHVISIONS[operator](expected, *of_image(i, drawn)).clamp(0, 1)
        assert (view - expected).abs().max() < 5e-5


@pytest.mark.parametrize(
    "colour_first, place", [(False, 0), (True, -2)], ids=["crop-colour", "colour-crop"]
)
def test_crop_comes_first_or_before_blur(recorded, colour_first, place):
    common.augment(some_images(8, 8, 8), 16, colour_first=colour_first)
    names = [operator.__name__ for operator, _, _ in recorded]
    assert names[place] == "resized_crop"
    assert names[-1] == "gaussian_blur"


@each_kind
def test_the_interpolation_of_crops_is_an_option(recorded, kind):
    common.augment(some_images(8, 8, 8), 16, crop=kind)
    _, _, drawn = recorded[0]
    assert drawn[-1] == kind


# ---- what is drawn
def near(share, expected, n):
    """Whether the share of n draws is less than five standard deviations from the expected."""
    return abs(share - expected) < 5 * (expected * (1 - expected) / n) ** 0.5


each_box = pytest.mark.parametrize(
    "height, width, scale",
    [(32, 32, 0.08), (32, 50, 0.5), (32, 90, 0.5), (90, 32, 0.5)],
    ids=["square", "oblong", "wide", "high"],
)


@each_box
def test_boxes_are_within_the_image(height, width, scale):
    top, left, h, w = common.random_boxes(4000, height, width, scale, "cpu")
    assert min(top.min(), left.min(), h.min() - 1, w.min() - 1) >= 0
    assert (top + h).max() <= height
    assert (left + w).max() <= width


@each_box
def test_boxes_are_as_often_as_torchvisions(height, width, scale):
    n = 4000
    ours = torch.stack(common.random_boxes(n, height, width, scale, "cpu"), 1)
    image = torch.empty(3, height, width)
    draw = torchvision.transforms.RandomResizedCrop.get_params
    theirs = [draw(image, (scale, 1.0), (3 / 4, 4 / 3)) for _ in range(n)]
    theirs = torch.tensor(theirs).float()  # (n, 4)
    error = ((ours.var(0) + theirs.var(0)) / n).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * error + 1e-3).all()
    assert torch.allclose(ours.std(0), theirs.std(0), rtol=0.1, atol=1e-3)


def test_as_many_boxes_are_wide_as_high():
    _, _, h, w = common.random_boxes(4000, 1000, 1000, 0.08, "cpu")
    assert near((w > h).float().mean(), 0.5, 4000)


@pytest.mark.parametrize(
    "operator, neutral, reach",
    [
        (common.adjust_brightness, 1, 0.6),
        (common.adjust_contrast, 1, 0.6),
        (common.adjust_saturation, 1, 0.6),
        (common.adjust_hue, 0, 0.15),
    ],
    ids=["brightness", "contrast", "saturation", "hue"],
)
def test_jitter_is_even_up_to_its_strength(recorded, operator, neutral, reach):
    common.random_colour(torch.rand(4000, 3, 1, 1), jitter=0.6, gray=0.0)
    values = next(drawn[0] for called, _, drawn in recorded if called is operator)
    change = (values - neutral) / reach
    change = change[change.abs() > 1e-6]
    assert change.abs().max() <= 1 + 1e-5
    assert near((change < -0.5).float().mean(), 0.25, 3200)
    assert near((change < 0.5).float().mean(), 0.75, 3200)


def test_factors_are_never_negative(recorded):
    common.random_colour(torch.rand(1000, 3, 1, 1), jitter=2.0, gray=0.0)
    for operator, _, (values,) in recorded:
        if operator is not common.adjust_hue:
            assert values.min() == 0


on_cpu_and_gpu = pytest.mark.parametrize("compiled", [False, True], ids=["cpu", "compiled"])


def compile_or_not(monkeypatch, compiled):
    """Have torch say that the code is compiled, which then does what it does on a GPU."""

    def is_compiling():
        return compiled

    monkeypatch.setattr(torch.compiler, "is_compiling", is_compiling)


@on_cpu_and_gpu
@pytest.mark.parametrize("jitter, gray", [(0.8, 0.0), (0.0, 0.3), (0.8, 0.5)])
def test_colours_change_at_their_rates(monkeypatch, compiled, jitter, gray):
    compile_or_not(monkeypatch, compiled)
    x = torch.rand(4000, 3, 1, 1)
    changed = (common.random_colour(x, jitter, gray) - x).abs().amax((1, 2, 3)) > 1e-3
    jittered = 0.8 if jitter else 0.0
    assert near(changed.float().mean(), 1 - (1 - jittered) * (1 - gray), 4000)


def append_digit(digit, x, _):
    """An operator that writes its digit behind those of x."""
    return 10 * x + digit


@on_cpu_and_gpu
def test_each_image_has_its_order_of_colours(monkeypatch, compiled):
    compile_or_not(monkeypatch, compiled)
    operators = [functools.partial(append_digit, digit) for digit in (1, 2, 3, 4)]
    monkeypatch.setattr(common, "COLOUR_OPERATORS", operators)
    found = common.random_colour(torch.zeros(4800, 3, 1, 1), jitter=0.5, gray=0.0)
    counts = collections.Counter(found[:, 0, 0, 0].tolist())
    orders = {int("".join(digits)) for digits in itertools.permutations("1234")}
    assert counts.keys() == orders
    assert 130 < min(counts.values()) <= max(counts.values()) < 270  # 200 ± 5 · 14


@on_cpu_and_gpu
def test_blur_comes_at_its_rate(monkeypatch, recorded, compiled):
    compile_or_not(monkeypatch, compiled)
    common.augment(some_images(4000, 4, 4), 8, jitter=0, blur=0.4)
    operator, chosen, (sigma,) = recorded[-1]
    assert operator is common.gaussian_blur
    assert near(chosen.float().mean(), 0.4, 4000)
    assert near((sigma < 0.1 + 1.9 / 4).float().mean(), 0.25, 4000)
    assert 0.1 <= sigma.min() < sigma.max() <= 2


@on_cpu_and_gpu
def test_blurred_stripes_lose_contrast(monkeypatch, compiled):
    compile_or_not(monkeypatch, compiled)
    stripes = torch.tensor([200, 255], dtype=torch.uint8).repeat(2000, 3, 16, 8)
    views = common.augment(stripes, 16, 0.999999, jitter=0, blur=0.4)
    contrast = views[:, 0, 8].std(1) / (55 / 510)
    lost = (contrast < 0.65).float().mean()
    assert lost == pytest.approx(0.4 * (2 - 0.48) / 1.9, abs=0.04)  # σ above 0.48 leaves less


# ---- a CPU changes the chosen images alone
@pytest.mark.parametrize("compiled, changed", [(False, 3), (True, 8)], ids=["cpu", "compiled"])
def test_a_cpu_changes_the_chosen_alone(monkeypatch, compiled, changed):
    compile_or_not(monkeypatch, compiled)
    seen = []

    def add(x, values):
        seen.append(len(x))
        return x + values.view(-1, 1, 1, 1)

    x = torch.zeros(8, 3, 2, 2)
    values = torch.arange(1.0, 9)
    chosen = torch.tensor([0, 1, 0, 0, 1, 1, 0, 0], dtype=torch.bool)
    found = common.change_some(x, chosen, add, values)
    assert found.amax((1, 2, 3)).tolist() == [0, 2, 0, 0, 5, 6, 0, 0]
    assert seen == [changed]
    assert x.count_nonzero() == 0  # the images that were given are as they were


def test_compiled_code_makes_the_same_views(monkeypatch):
    x = some_images(64, 20, 20)
    torch.manual_seed(3)
    on_cpu = common.augment(x, 16)
    compile_or_not(monkeypatch, compiled=True)
    torch.manual_seed(3)
    assert torch.allclose(common.augment(x, 16), on_cpu, atol=1e-6)


# ---- whole views
@pytest.fixture
def squares():
    """2000 images (3, 8, 8) uint8 without symmetry."""
    return torch.randint(0, 256, (2000, 3, 8, 8), dtype=torch.uint8)


def test_without_chance_a_view_is_the_image(squares):
    view = common.augment(squares, 8, 1.0, jitter=0, gray=0, blur=0, flip=0.0)
    assert (view - squares / 255).abs().max() < 1e-5


def test_the_largest_crops_are_the_whole_image(squares):
    options = dict(jitter=0, gray=0, blur=0, flip=0.0)
    whole = common.augment(squares, 8, 1.0, **options)
    assert torch.equal(common.augment(squares, 8, 0.999999, **options), whole)


def test_flips_and_grey_come_at_their_rates(squares):
    views = common.augment(squares, 8, 1.0, jitter=0, gray=0.2, blur=0)
    plain = squares / 255
    grey = TF.rgb_to_grayscale(plain, 3)
    candidates = torch.stack([plain, plain.flip(3), grey, grey.flip(3)])
    distance, which = (candidates - views).abs().amax((2, 3, 4)).min(0)  # (2000,)
    assert distance.max() < 1e-4
    for share, expected in zip(which.bincount() / 2000, (0.4, 0.4, 0.1, 0.1)):
        assert near(share, expected, 2000)


def test_the_rate_of_flips_is_an_option(squares):
    views = common.augment(squares, 8, 1.0, jitter=0, gray=0, blur=0, flip=0.1)
    flipped = (views - squares.flip(3) / 255).abs().amax((1, 2, 3)) < 1e-4
    assert near(flipped.float().mean(), 0.1, 2000)


def test_two_views_are_of_the_same_images():
    colours = torch.randint(0, 256, (20, 3, 1, 1), dtype=torch.uint8)
    plain = (colours.expand(-1, -1, 12, 12) / 255 - 0.5) / 0.25
    for view in common.two_views(colours.expand(-1, -1, 16, 16), 12, jitter=0, gray=0):
        assert (view - plain).abs().max() < 1e-4


def test_all_views_of_an_image_differ():
    x = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8).expand(64, -1, -1, -1)
    views = torch.cat(common.two_views(x, 24))
    assert views.shape == (128, 3, 24, 24)
    assert views.dtype == torch.float32
    assert torch.pdist(views.flatten(1)).min() > 0


def test_views_are_normalised():
    v1, v2 = common.two_views(some_images(64, 32, 32), 24)
    assert min(v1.min(), v2.min()) == -2
    assert max(v1.max(), v2.max()) == 2


@pytest.mark.parametrize("size", [32, 40], ids=["resized", "as-it-is"])
def test_evaluation_sees_the_central_square(size):
    x = some_images(4, 40, 60)
    square = TF.resize(x[..., 10:50] / 255, [size, size], antialias=True)
    assert (common.eval_view(x, size) - (square - 0.5) / 0.25).abs().max() < 1e-5


def test_evaluation_takes_224_of_256_pixels():
    x = some_images(4, 40, 60)  # 40 and 35 are as 256 and 224
    assert torch.equal(common.eval_view(x, 35), (x[..., 2:37, 12:47] / 255 - 0.5) / 0.25)


# ------------------------------------------------------------------------------- common.py: network
NETWORKS = {  # the width of h and the number of residual blocks
    "resnet8": (64, 3),
    "resnet20": (64, 9),
    "resnet18": (512, 8),
    "resnet34": (512, 16),
    "resnet50": (2048, 16),
}


@pytest.fixture(params=NETWORKS)
def arch(request):
    return request.param


def residual_blocks(net):
    return [module for module in net.modules() if hasattr(module, "downsample")]


def last_scale(block):
    """The scale of the norm at the end of a residual branch: 0 switches the branch off."""
    norm = block.bn3 if hasattr(block, "bn3") else block.bn2
    return norm.weight


def test_networks_have_their_width_and_depth(arch):
    net, d = common.resnet(arch, 32)
    assert (d, len(residual_blocks(net))) == NETWORKS[arch]
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, d)


@pytest.mark.parametrize("zero", [False, True], ids=["one", "zero"])
def test_residual_branches_start_at_one_or_zero(arch, zero):
    net, _ = common.resnet(arch, 32, zero_init_residual=zero)
    for block in residual_blocks(net):
        assert (last_scale(block) == 1 - zero).all()


@pytest.mark.parametrize(
    "size, side",
    [(224, 56), (97, 25), (96, 48), (64, 32), (49, 25), (48, 48), (32, 32)],
)
def test_small_images_have_a_smaller_stem(size, side):
    net, _ = common.resnet("resnet18", size)
    assert net.maxpool(net.conv1(torch.zeros(1, 3, size, size))).shape[-1] == side


def test_cifar_stages_halve_the_map():
    net, _ = common.resnet("resnet8", 32)
    assert net[:-2](torch.zeros(1, 3, 32, 32)).shape == (1, 64, 8, 8)


def test_cifar_convolutions_start_at_hes_scale():
    net, _ = common.resnet("resnet20", 32)
    weights = [p for p in net.parameters() if p.shape == (64, 32, 3, 3)]
    assert len(weights) == 1
    assert weights[0].std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("size, kernel", [(224, 7), (64, 3), (32, 3)])
def test_backbones_load_into_plain_torchvision(size, kernel):
    ours, _ = common.resnet("resnet18", size)
    theirs = torchvision.models.resnet18()
    theirs.fc = nn.Identity()
    theirs.conv1 = nn.Conv2d(3, 64, kernel, kernel // 3, kernel // 2, bias=False)
    theirs.maxpool = ours.maxpool
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = torch.rand(2, 3, size, size)
    with torch.no_grad():
        assert torch.equal(theirs.eval()(x), ours.eval()(x))


def test_a_backbone_loads_into_mask_r_cnn(tmp_path):
    backbone = tmp_path / "backbone.pt"
    torch.save(common.resnet("resnet50", 224)[0].state_dict(), backbone)
    found = re.search(r"^(detector = .*?)```", (ROOT / "README.md").read_text(), re.S | re.M)
    scope = {"torch": torch, "torchvision": torchvision}
    exec(found[1].replace("backbone.pt", str(backbone)), scope)
    detector = scope["detector"]
    detector.transform.min_size = (64,)
    box = dict(
        boxes=torch.tensor([[5.0, 5, 40, 40]]),
        labels=torch.tensor([1]),
        masks=torch.ones(1, 64, 64),
    )
    losses = detector([torch.rand(3, 64, 64)], [box])
    assert all(loss.isfinite() for loss in losses.values())


# ------------------------------------------------------------------ common.py: optimiser, schedules
def naive_lars(w, g, velocity, lr, decay, trust, clip):
    """A layer's weights and velocity after a step (You et al. 2017), momentum 0.9."""
    rate = 1.0
    if w.ndim == 1:
        decay = 0.0
    elif w.norm() > 0 and g.norm() == 0:
        rate = 0.0
    elif w.norm() > 0:
        rate = trust * w.norm() / (g.norm() + decay * w.norm())
        if clip:
            rate = min(rate / lr, 1)
    velocity = 0.9 * velocity + rate * (g + decay * w)
    return w - lr * velocity, velocity


LAYERS = {  # weights and gradient
    "matrix": (torch.linspace(-1, 2, 12).view(4, 3), torch.linspace(1, -3, 12).view(4, 3)),
    "zero-weights": (torch.zeros(4, 3), torch.linspace(1, -3, 12).view(4, 3)),
    "zero-gradient": (torch.linspace(-1, 2, 12).view(4, 3), torch.zeros(4, 3)),
    "bias": (torch.linspace(-1, 2, 4), torch.linspace(1, -3, 4)),
}


@pytest.mark.parametrize("trust, clip", [(0.02, True), (0.001, False)], ids=["ncl", "imagenet"])
@pytest.mark.parametrize("layer", LAYERS)
def test_lars_is_the_loop(layer, trust, clip):
    expected, gradient = LAYERS[layer]
    options = dict(lr=0.4, trust=trust, clip=clip)
    other = nn.Parameter(torch.ones(2, 2))  # a second layer has a rate of its own
    p = nn.Parameter(expected.clone())
    optimizer = common.LARS([other, p], weight_decay=1e-2, momentum=0.9, **options)
    velocity = torch.zeros_like(expected)
    # Clipping matters to a tiny gradient, which asks for a huge step.
    for scale in (1.0, 1e-4, 5.0):
        g = scale * gradient
        p.grad = g.clone()
        other.grad = torch.ones(2, 2)
        expected, velocity = naive_lars(expected, g, velocity, decay=1e-2, **options)
        optimizer.step()
        assert torch.allclose(p, expected, rtol=1e-4, atol=1e-6)


def test_lars_defaults_are_the_ncl_authors():
    w, g = LAYERS["matrix"]
    p = nn.Parameter(w.clone())
    p.grad = 1e-4 * g
    common.LARS([p], lr=0.4).step()
    expected, _ = naive_lars(w, 1e-4 * g, 0 * w, lr=0.4, decay=1e-4, trust=0.02, clip=True)
    assert torch.allclose(p, expected, rtol=1e-5)


def test_lars_leaves_what_has_no_gradient():
    p = nn.Parameter(torch.ones(2, 2))
    common.LARS([p], lr=0.4).step()
    assert torch.equal(p, torch.ones(2, 2))


@pytest.mark.parametrize(
    "name, plain",
    [("sgd", functools.partial(torch.optim.SGD, momentum=0.9)), ("adam", torch.optim.Adam)],
    ids=["sgd", "adam"],
)
def test_sgd_and_adam_are_torchs(name, plain):
    ours = nn.Parameter(torch.ones(3))
    theirs = nn.Parameter(torch.ones(3))
    optimizers = [
        common.OPTIMIZERS[name]([ours], lr=0.1, weight_decay=0.01),
        plain([theirs], lr=0.1, weight_decay=0.01),
    ]
    for step in range(3):
        ours.grad = torch.arange(3.0) - step
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.allclose(ours, theirs)


def test_the_rate_warms_up_and_falls_along_a_cosine():
    for step in range(101):
        cosine = 0.5 + 0.5 * math.cos(math.pi * max(0, step - 10) / 90)
        expected = min((step + 1) / 11, cosine)
        assert common.lr_at(step, 100, 10) == pytest.approx(expected)


def test_without_warmup_the_rate_starts_at_its_peak():
    assert common.lr_at(0, 100) == 1


def test_a_short_run_warms_up_for_half_of_it():
    rates = [common.lr_at(step, 30, 100) for step in range(30)]
    assert max(rates) == rates[15] == 1
    assert rates.count(1) == 1


@pytest.fixture
def groups():
    """An optimizer of peak rate 0.5 with a group of rate 2 and one whose rate is fixed."""
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    plain = dict(params=[weights[0]])
    faster = dict(params=[weights[1]], lr=2.0)
    fixed = dict(params=[weights[2]], fixed_lr=True)
    return torch.optim.SGD([plain, faster, fixed], lr=0.5)


def rates_of(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_every_group_has_its_share_of_its_peak(groups):
    common.set_lr(groups, 0.5)
    common.set_lr(groups, 0.1)
    assert rates_of(groups) == [0.5 * 0.1, 2.0 * 0.1, 0.5]


def test_a_checkpoint_keeps_the_peak_rates(groups):
    common.set_lr(groups, 0.5)
    groups.load_state_dict(groups.state_dict())
    common.set_lr(groups, 1.0)
    assert rates_of(groups) == [0.5, 2.0, 0.5]


# ---- sparsehead.py's schedules
@pytest.mark.parametrize(
    "name, images", [("cifar10", 50_000), ("stl10", 105_000), ("tiny-imagenet-200", 100_000)]
)
def test_w_mses_warmup_is_500_steps(name, images):
    epochs = sparsehead.parser().parse(["--dataset", name, "--device", "cpu"]).warmup
    assert round(epochs * (images // 512)) == 500


def test_w_mses_warmup_is_linear():
    rates = [sparsehead.step_decay(step, 97_000, 500, 1000) for step in (0, 249, 499, 582)]
    assert rates == [1 / 500, 0.5, 1, 1]


@pytest.mark.parametrize(
    "epoch, rate", [(949, 1), (950, 0.2), (974, 0.2), (975, 0.04), (999, 0.04)]
)
def test_w_mses_rate_drops_twice(epoch, rate):
    assert sparsehead.step_decay(97 * epoch, 97_000, 500, 1000) == pytest.approx(rate)


def test_byols_momentum_grows_to_one():
    momentum = [sparsehead.momentum_at(step, 100) for step in range(101)]
    assert momentum[0::50] == pytest.approx([0.99, 0.995, 1])
    assert momentum == sorted(momentum)


# ------------------------------------------------------------------------------- published settings
# What the papers and the authors' code say, by data set and program ("sparsehead byol": with this
# --base). What is left out there is left out here.
STRONG_VIEWS = dict(min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5)
WEAK_VIEWS = dict(min_scale=0.2, jitter=0.4, gray=0.2)

NCL_RECIPE = STRONG_VIEWS | dict(
    arch="resnet18",
    image_size=32,
    epochs=200,
    batch_size=256,
    optimizer="lars",
    lr=0.4,
    warmup=10,
    weight_decay=1e-4,
    temperature=0.2,
    head="mlp",
    head_hidden=2048,
    head_out=256,
    crop="bicubic",
)
NCL_RECIPE_224 = NCL_RECIPE | dict(
    image_size=224,
    epochs=100,
    batch_size=128,
    lr=0.3 * 128 / 256,
    head_hidden=16384,
    head_out=2048,
)
GATE = dict(
    gate="ste",
    gate_layers=2,
    gate_hidden=2048,
    gate_lr=0.1,
    gate_temperature=1,
    prior=0.8,
    kl_weight=3e-5,
    detach=True,
    similarity="cosine",
)
GATE_224 = dict(gate_lr=0.1, gate_hidden=16384)

WMSE = dict(batch_size=512, optimizer="adam", weight_decay=1e-6, schedule="step", head_hidden=1024)
SPARSE_SIMCLR = dict(
    arch="resnet18",
    head="mlp",
    momentum=0.99,
    temperature=0.5,
    sparse_weight=1e-4,
    gray=0.1,
    blur=0,
    crop="bicubic",
    order="colour-crop",
)
SPARSEHEAD = WMSE | WEAK_VIEWS | SPARSE_SIMCLR
WMSE_32 = dict(image_size=32, epochs=1000, lr=3e-3, head_out=64, whiten_size=128, whiten_splits=1)
WMSE_64 = dict(image_size=64, lr=2e-3, head_out=128, whiten_size=256, whiten_splits=4)
WMSE_224 = dict(lr=2e-3, head_out=128, whiten_size=256, whiten_splits=1)

LARGE = dict(
    arch="resnet50",
    image_size=224,
    epochs=1000,
    optimizer="lars",
    warmup=10,
    schedule="cosine",
    batch_size=4096,
    weight_decay=1e-6,
)
SIMCLR_224 = dict(lr=0.3 * 16, head_hidden=2048, head_out=128, jitter=0.8, temperature=0.5)
BYOL_224 = dict(
    lr=0.2 * 16, weight_decay=1.5e-6, head_hidden=4096, head_out=256, jitter=0.4, momentum=0.996
)
BARLOW_224 = dict(
    batch_size=2048,
    lr=0.2 * 8,
    bias_lr=0.0048 * 8,
    weight_decay=1.5e-6,
    head_hidden=8192,
    head_out=8192,
)
VICREG_224 = dict(
    batch_size=2048, lr=0.2 * 8, head_hidden=8192, head_out=8192, jitter=0.4, gray=0.2
)
HSIC_224 = dict(lr=0.4 * 16, head_hidden=4096, head_out=256, momentum=0.99)
SWAV_224 = STRONG_VIEWS | dict(
    batch_size=64 * 64,
    lr=4.8,
    head_hidden=2048,
    head_out=128,
    temperature=0.1,
    prototypes=3000,
    crop="bilinear",
)

LPJEPA = WEAK_VIEWS | dict(
    mu=0,
    invariance_weight=25,
    projections=8192,
    optimizer="lars",
    epochs=1000,
    weight_decay=1e-4,
    warmup=10,
)
LPJEPA_32 = dict(
    arch="resnet18", batch_size=256, lr=0.03, match_weight=250, head_hidden=512, head_out=512
)
LPJEPA_224 = dict(
    arch="resnet50",
    batch_size=128,
    lr=0.165 * 128 / 256,
    match_weight=125,
    head_hidden=2048,
    head_out=2048,
    blur=0.5,
)

SIMSIAM = WEAK_VIEWS | dict(
    batch_size=512,
    optimizer="sgd",
    head_out=2048,
    predictor_hidden=512,
    zero_init_residual=True,
)
SIMSIAM_32 = dict(
    arch="resnet18",
    image_size=32,
    epochs=800,
    lr=0.03 * 2,
    weight_decay=5e-4,
    projector_layers=2,
    blur=0,
    crop="bilinear",
    stop_grad=True,
    predictor=True,
)
SIMSIAM_224 = dict(
    arch="resnet50",
    image_size=224,
    epochs=100,
    lr=0.05 * 2,
    weight_decay=1e-4,
    projector_layers=3,
    blur=0.5,
)

ON_CIFAR = {
    "simclr": NCL_RECIPE,
    "ncl": NCL_RECIPE | dict(activation="rep_relu"),
    "bayesncl": NCL_RECIPE | dict(activation="rep_relu") | GATE,
    "sparsehead": SPARSEHEAD | WMSE_32,
    "sparsehead wmse": WMSE_32,
    "sparsehead swav": dict(epochs=1000, temperature=0.1),
    "lpjepa": LPJEPA | LPJEPA_32,
    "simsiam": SIMSIAM | SIMSIAM_32,
}
ON_STL10 = {
    "sparsehead": SPARSEHEAD | WMSE_64 | dict(epochs=2000),
    "sparsehead wmse": WMSE_64,
}
ON_TINY_IMAGENET = {
    "sparsehead": SPARSEHEAD | WMSE_64,
    "sparsehead wmse": WMSE_64,
}
BASES_ON_IMAGENET = {
    "sparsehead wmse": WMSE | STRONG_VIEWS | WMSE_224,
    "sparsehead simclr": LARGE | SIMCLR_224,
    "sparsehead byol": LARGE | BYOL_224,
    "sparsehead barlow": LARGE | BARLOW_224,
    "sparsehead vicreg": LARGE | VICREG_224,
    "sparsehead ssl-hsic": LARGE | HSIC_224,
    "sparsehead swav": LARGE | SWAV_224,
}
ON_IMAGENET100 = BASES_ON_IMAGENET | {
    "simclr": NCL_RECIPE_224,
    "ncl": NCL_RECIPE_224 | dict(activation="relu"),
    "bayesncl": NCL_RECIPE_224 | dict(activation="relu") | GATE_224,
    "lpjepa": LPJEPA | LPJEPA_224,
}
ON_IMAGENET = BASES_ON_IMAGENET | {
    "simsiam": SIMSIAM | SIMSIAM_224,
}
PUBLISHED = {
    "cifar10": ON_CIFAR,
    "cifar100": ON_CIFAR,
    "stl10": ON_STL10,
    "tiny-imagenet-200": ON_TINY_IMAGENET,
    "imagenet100": ON_IMAGENET100,
    "imagenet": ON_IMAGENET,
}


def programs_and_data():
    """Every program with each of its data sets: what its id is -> (program, data set, settings)."""
    cases = {}
    for name, programs in PUBLISHED.items():
        for program, settings in programs.items():
            cases[f"{program} {name}"] = (program, name, settings)
    return cases


EVERY_PRESET = programs_and_data()
every_preset = pytest.mark.parametrize(
    "program, name, published", EVERY_PRESET.values(), ids=EVERY_PRESET
)


def settings_of(program, *flags):
    """What the program's parser makes of the flags, but for the names of data set and preset."""
    method, *base = program.split()
    flags = [*flags, "--device", "cpu"]
    for kind in base:
        flags += ["--base", kind]
    parser = importlib.import_module(method).parser(*base)
    settings = vars(parser.parse(flags))
    for key in ("dataset", "preset", "command"):
        del settings[key]
    return settings


@every_preset
def test_a_preset_is_the_published_one(program, name, published):
    settings = settings_of(program, "--dataset", name)
    assert {key: settings[key] for key in published} == pytest.approx(published)


@every_preset
def test_any_preset_may_be_named(program, name, published):
    named = settings_of(program, "--dataset", "mine", "--preset", name)
    assert named == settings_of(program, "--dataset", name)


@every_preset
def test_other_data_have_the_default_settings(program, name, published):
    default = settings_of(program, "--dataset", "mine")
    assert default == settings_of(program, "--dataset", name, "--preset", "default")
    assert default != settings_of(program, "--dataset", name)


# ----------------------------------------------------------------------------- common.py: processes
def test_alone_gather_returns_the_tensors():
    z = torch.rand(3, 2)
    m = torch.rand(3, 1)
    first, second = common.gather(z, m)
    assert first is z
    assert second is m


@pytest.fixture
def second_of_two(become, monkeypatch):
    """The rows of the first process, whose partner this process is."""
    others = torch.arange(6.0).view(2, 3) + 100

    def all_gather(rows, own):
        rows[0].copy_(others)
        rows[1].copy_(own)

    become(1)
    monkeypatch.setattr(dist, "all_gather", all_gather)
    return others


def test_gathered_rows_are_in_the_order_of_ranks(second_of_two):
    z = torch.rand(2, 2)
    m = torch.rand(2, 1)
    all_z, all_m = common.gather(z, m)
    assert torch.equal(all_z, torch.cat([second_of_two[:, :2], z]))
    assert torch.equal(all_m, torch.cat([second_of_two[:, 2:], m]))


def test_gathered_rows_have_the_gradient_of_the_mean(second_of_two):
    own = torch.rand(2, 3, requires_grad=True)
    weights = torch.rand(4, 3)
    (gathered,) = common.gather(own)
    (gathered * weights).sum().backward()
    assert torch.equal(own.grad, 2 * weights[2:])  # of which the mean over processes is taken


@pytest.fixture
def one_process():
    """torch.distributed, with this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_one_process_gathers_its_own_rows(one_process):
    own = torch.rand(4, 3, requires_grad=True)
    weights = torch.rand(4, 3)
    gathered = common.GatherRows.apply(own)
    (gathered * weights).sum().backward()
    assert torch.equal(gathered, own)
    assert torch.equal(own.grad, weights)


def test_one_process_is_the_first_of_one(one_process):
    assert (common.rank(), common.world()) == (0, 1)


# ------------------------------------------------------------------ common.py: probe and neighbours
def clusters(n, d=20):
    """Features (n, d) and labels (n,) of four classes that overlap, of sizes 5 : 2 : 2 : 1."""
    y = torch.tensor([0] * 5 + [1] * 2 + [2] * 2 + [3]).repeat(n // 10)
    x = 3 * torch.eye(4, d)[y] + 2 * torch.randn(n, d)
    mixed = 1 + 0.1 * torch.randn(d, d, generator=torch.Generator().manual_seed(0))
    return x @ mixed, y


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


def objective(x, y, weights, bias, l2):
    """The mean cross-entropy in nats and l2/2 · ‖weights‖², in float64."""
    scores = x.double() @ weights + bias
    return F.cross_entropy(scores, y) + l2 / 2 * weights.square().sum()


def scikit_learns(x, y, l2):
    """Weights (d, C) and bias (C,) of scikit-learn's logistic regression, in float64."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    fit = linear_model.LogisticRegression(C=1 / (l2 * len(x)), tol=1e-10, max_iter=10_000)
    fit.fit(x.double().numpy(), y.numpy())
    return torch.from_numpy(fit.coef_.T), torch.from_numpy(fit.intercept_)


@pytest.mark.parametrize("start", [None, torch.full((21, 4), 0.3)], ids=["cold", "warm"])
@pytest.mark.parametrize("l2", [1.0, 0.1, 0.01, 0.001])
def test_the_probe_is_its_objectives_minimum(l2, start):
    x, y = clusters(400)
    x = standardised(x)
    found = common.logistic_regression(x, y, l2, start).double()
    least = objective(x, y, *scikit_learns(x, y, l2), l2)
    assert objective(x, y, found[:-1], found[-1], l2) - least < 5e-4  # nats


def test_a_start_at_the_minimum_stays_there():
    x, y = clusters(400)
    x = standardised(x)
    weights, bias = scikit_learns(x, y, 0.01)
    start = torch.cat([weights, bias[None]]).float()
    found = common.logistic_regression(x, y, 0.01, start).double()
    gap = objective(x, y, found[:-1], found[-1], 0.01) - objective(x, y, weights, bias, 0.01)
    assert gap < 1e-6  # from 0 it is 4e-5


def test_the_probe_decides_as_scikit_learn_does():
    x, y = clusters(400)
    x_test, _ = clusters(2000)
    weights, bias = scikit_learns(standardised(x), y, 0.01)
    decided = ((x_test - x.mean(0)) / x.std(0)).double() @ weights + bias
    scores = common.linear_probe(x, y, x_test, decided.argmax(1), strengths=[0.01])
    assert scores["lp1"] > 99
    assert scores["lp5"] == 100


def test_scales_and_order_of_features_do_not_matter():
    """[SparseHead], Proposition 5.2."""
    x, y = clusters(400)
    x_test, y_test = clusters(2000)
    scale = torch.rand(20) + 0.1
    order = torch.randperm(20)

    def change(x):
        return (x * scale + 7)[:, order]

    scores = common.linear_probe(x, y, x_test, y_test)
    again = common.linear_probe(change(x), y, change(x_test), y_test)
    assert again["l2"] == scores["l2"]
    assert again["lp1"] == pytest.approx(scores["lp1"], abs=0.5)


def test_a_constant_feature_does_no_harm():
    x, y = clusters(400)
    x_test, y_test = clusters(2000)
    scores = common.linear_probe(x, y, x_test, y_test, strengths=[0.01])
    x = F.pad(x, (0, 1), value=3.0)
    x_test = F.pad(x_test, (0, 1), value=3.0)
    again = common.linear_probe(x, y, x_test, y_test, strengths=[0.01])
    assert again["lp1"] == pytest.approx(scores["lp1"], abs=0.1)


def test_the_strength_does_not_depend_on_the_test_set():
    x, y = clusters(400)
    x_test, y_test = clusters(2000)
    strengths = set()
    for labels in (y_test, 3 - y_test, 0 * y_test):
        strengths.add(common.linear_probe(x, y, x_test, labels)["l2"])
    assert len(strengths) == 1


@pytest.fixture
def fits(monkeypatch):
    """The fits of a probe: (number of images, l2) of each."""
    seen = []
    fit = common.logistic_regression

    def recorded_fit(x, y, l2, start):
        seen.append((len(x), l2))
        return fit(x, y, l2, start)

    monkeypatch.setattr(common, "logistic_regression", recorded_fit)
    return seen


def test_the_chosen_strength_is_fitted_to_all(fits):
    x, y = clusters(400)
    _, l2 = common.fit_probe(x, y, strengths=(100.0, 0.01))
    assert fits == [(360, 100.0), (360, 0.01), (400, l2)]


@pytest.mark.parametrize(
    "strengths, best",
    [((1e3, 1e-3), 1e-3), ((1e-3, 1e-4), 1e-3), ((1e-3, 1e3), 1e-3)],
    ids=["weaker", "equal", "stronger"],
)
def test_the_best_strength_is_chosen(strengths, best):
    """At 1e3 the commonest class alone is predicted; at 1e-3 and 1e-4 all are right."""
    y = torch.tensor([0, 0, 0, 1]).repeat(100)
    x = torch.randn(400, 3)
    x[:, 0] = y + 0.1 * x[:, 0]
    assert common.fit_probe(x, y, strengths)[1] == best


def test_the_five_likeliest_are_counted():
    y = torch.arange(240) % 12
    y_test = torch.arange(360) % 12
    x = torch.eye(12)[y] + torch.randn(240, 12)
    x_test = torch.eye(12)[y_test] + torch.randn(360, 12)
    classify, l2 = common.fit_probe(x, y)
    hits = np.zeros(2)
    for scores, label in zip(classify(x_test), y_test.tolist()):
        above = (scores > scores[label]).sum()
        hits += [above < 1, above < 5]
    scores = common.linear_probe(x, y, x_test, y_test)
    assert [scores["lp1"], scores["lp5"]] == pytest.approx(list(hits / 3.6))
    assert scores["l2"] == l2


def naive_vote(query, bank, y, k, weight):
    """The class of most votes among the k nearest, each of a weight by its cosine."""
    cosine = F.cosine_similarity(query[None], bank)
    votes = np.zeros(4)
    for j in cosine.argsort(descending=True)[:k]:
        votes[y[j]] += weight(cosine[j])
    return votes.argmax()


def alike(cosine):
    return 1


def by_cosine(cosine):
    return math.exp(cosine / 0.1)


@pytest.mark.parametrize("n", [400, 60], ids=["many", "fewer-than-200"])
def test_neighbours_vote_like_loops(n):
    x, y = clusters(n)
    x_test, y_test = clusters(50)
    right = np.zeros(2)
    for query, label in zip(x_test, y_test.tolist()):
        right[0] += naive_vote(query, x, y, 5, alike) == label
        right[1] += naive_vote(query, x, y, 200, by_cosine) == label
    assert common.knn_accuracy(x, y, x_test, y_test) == pytest.approx(list(right / 50 * 100))


@pytest.mark.parametrize("cosine, winner", [(0.885, 1), (0.895, 0)], ids=["far", "near"])
def test_votes_are_weighted_by_cosine_over_a_tenth(cosine, winner):
    """One of cosine 1 against three: exp(1 / 0.1) = 3 exp(cosine / 0.1) at a cosine of 0.89."""
    query = torch.tensor([[1.0, 0.0]])
    others = torch.tensor([[cosine, (1 - cosine**2) ** 0.5]]).repeat(3, 1)
    bank = torch.cat([query, others])
    y = torch.tensor([1, 0, 0, 0])
    assert common.knn_accuracy(bank, y, query, torch.tensor([winner]))[1] == 100


def test_of_equal_votes_the_smaller_class_wins():
    bank = torch.tensor([[1.0, 0], [1, 0.1], [1, 0.2], [1, 0.3], [1, 0.4]])
    y = torch.tensor([2, 2, 1, 1, 0])
    assert common.knn_accuracy(bank, y, bank[:1], torch.tensor([1]))[0] == 100


@pytest.mark.parametrize("skip_self", [False, True], ids=["with-itself", "without-itself"])
def test_neighbours_are_the_nearest_in_order(skip_self):
    rows = torch.randn(1100, 3)  # more than one part of 1000
    unit = rows / rows.norm(dim=1, keepdim=True)
    cosine = unit @ unit.T
    values, indices = common.neighbours(rows, rows, 2, skip_self)
    for i in (0, 1, 999, 1000, 1099):
        order = cosine[i].argsort(descending=True).tolist()
        if skip_self:
            order.remove(i)
        assert indices[i].tolist() == order[:2]
        assert torch.allclose(values[i], cosine[i, order[:2]], atol=1e-6)


class ThreeOutputs(nn.Module):
    """A model of images (N, 3, 4, 4): h (N, 3), e (N, 48), and an output that nobody asks for."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(x).mean((2, 3)), x.flatten(1).half(), None


def test_features_are_those_of_evaluation():
    x = some_images(504, 4, 4)  # more than one part of 500
    model = ThreeOutputs()
    h, e = common.features(model, x, 4)
    view = common.eval_view(x, 4)
    assert torch.allclose(h, view.mean((2, 3)), atol=1e-4)  # BatchNorm has not seen a batch
    assert torch.equal(e, view.flatten(1).half().float())
    assert not h.requires_grad


# ------------------------------------------------------------------------------ common.py: progress
@pytest.fixture
def clock(monkeypatch):
    """A list of one number, the seconds that common.progress sees."""
    seconds = [100.0]

    def monotonic():
        return seconds[0]

    monkeypatch.setattr(common.time, "monotonic", monotonic)
    return seconds


def work(clock, items, seconds):
    """The items that progress yields, of so many seconds each."""
    done = []
    for item in common.progress(items, "views"):
        done.append(item)
        clock[0] += seconds
    return done


def test_progress_yields_the_items(clock):
    assert work(clock, "abc", 4) == ["a", "b", "c"]


def test_plain_progress_is_a_line_each_ten_seconds(clock, capsys):
    work(clock, range(8), 4)
    assert capsys.readouterr().err.splitlines() == [
        "views: 0/8",
        "views: 3/8, 20 s left",
        "views: 6/8, 8 s left",
    ]


def test_fast_work_is_one_line(clock, capsys):
    work(clock, range(90), 0.1)
    assert capsys.readouterr().err == "views: 0/90\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_progress_rewrites_its_line(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    work(clock, range(3), 2)
    lines = ["views: 0/3", "views: 1/3, 4 s left", "views: 2/3, 2 s left", ""]
    assert terminal.getvalue() == "".join(f"\r\x1b[K{line}" for line in lines)
