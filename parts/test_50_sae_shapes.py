"""sae.py and shapes.py."""

import hashlib
import re
import shutil
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import common
import sae
import shapes
from conftest import METHODS, ROOT, records, refusal, run_program

# ------------------------------------------------------------------------------------------- sae.py
KINDS = pytest.mark.parametrize("batch_topk", [False, True], ids=["topk", "batch-topk"])


def autoencoder(d, K, k, batch_topk=False):
    """An autoencoder of d features, without a backbone."""
    args = SimpleNamespace(arch=None, image_size=None, units=K, topk=k, batch_topk=batch_topk)
    with mock.patch.object(common, "resnet", return_value=(None, d)):
        return sae.SAE(args)


def largest(values, k):
    """The k largest of all entries, where positive; the others 0."""
    cut = values.flatten().sort(descending=True).values[k - 1]
    return values * ((values >= cut) & (values > 0))


def largest_of_rows(values, k):
    return torch.stack([largest(row, k) for row in values])


@pytest.mark.parametrize("k", [1, 3, 8])
def test_top_k_keeps_the_largest_of_a_row(k):
    a = torch.randn(6, 10)
    assert torch.equal(sae.top_k(a, k), largest_of_rows(a, k))


@pytest.mark.parametrize("k", [1, 3, 8])
def test_batch_top_k_keeps_the_largest_of_a_batch(k):
    a = torch.randn(6, 10)
    assert torch.equal(sae.batch_top_k(a, k), largest(a, 6 * k))


DEAD = torch.arange(10) < 3


@pytest.fixture
def untied():
    """Autoencoders of either kind with any weights: d = 4, K = 10, k = 2."""

    def make(batch_topk):
        model = autoencoder(4, 10, 2, batch_topk).double()
        model.b.data = torch.randn(4, dtype=torch.double)
        model.W_enc.data = torch.randn(10, 4, dtype=torch.double)
        return model

    return make


def naive_codes(model, x):
    """Scores and codes of each image, by loops over images and units."""
    rows = []
    for image in x:
        rows.append(torch.stack([w @ (image - model.b) for w in model.W_enc]))
    scores = torch.stack(rows)
    if model.batch_topk:
        return scores, largest(scores, model.k * len(x))
    return scores, largest_of_rows(scores, model.k)


def naive_loss(model, x, weight):
    scores, z = naive_codes(model, x)
    decoded = []
    for code in z:
        units = [c * column for c, column in zip(code, model.W_dec.T)]
        decoded.append(model.b + sum(units))
    e = x - torch.stack(decoded)
    of_dead = largest_of_rows(scores[:, :3], 2)  # d/2 of them
    rest = e.detach() - of_dead @ model.W_dec[:, :3].T
    second = rest.square().sum(1).mean() / e.detach().square().sum(1).mean()
    return e.square().sum(1).mean() + weight * second


@KINDS
def test_codes_are_those_of_the_loops(untied, batch_topk):
    model = untied(batch_topk)
    x = torch.randn(6, 4, dtype=torch.double)
    _, _, z = sae.sae_loss(model, x, DEAD, 0.5)
    _, expected = naive_codes(model, x)
    assert torch.allclose(z, expected)


@KINDS
def test_the_autoencoders_loss_is_its_equation(untied, batch_topk):
    model = untied(batch_topk)
    x = torch.randn(6, 4, dtype=torch.double)
    loss, unexplained, _ = sae.sae_loss(model, x, DEAD, 0.5)
    assert loss.item() == pytest.approx(naive_loss(model, x, 0.5).item())
    assert unexplained.item() == pytest.approx(naive_loss(model, x, 0).item())


@KINDS
def test_the_autoencoders_gradient_is_that_of_its_equation(untied, batch_topk):
    model = untied(batch_topk)
    x = torch.randn(6, 4, dtype=torch.double)
    loss, _, _ = sae.sae_loss(model, x, DEAD, 0.5)
    found = torch.autograd.grad(loss, model.parameters())
    expected = torch.autograd.grad(naive_loss(model, x, 0.5), model.parameters())
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs)


@KINDS
def test_without_dead_units_there_is_no_second_term(untied, batch_topk):
    model = untied(batch_topk)
    x = torch.randn(6, 4, dtype=torch.double)
    loss, unexplained, _ = sae.sae_loss(model, x, torch.zeros(10, dtype=torch.bool), 0.5)
    assert torch.equal(loss, unexplained)


def test_more_features_than_units_are_no_error():
    model = autoencoder(16, 3, 2)
    loss, *_ = sae.sae_loss(model, torch.randn(6, 16), torch.ones(3, dtype=torch.bool), 1.0)
    assert loss.isfinite()


def test_a_unit_idles_until_it_is_active():
    model = autoencoder(4, 3, 2)
    model.update(torch.tensor([[1.0, 0, 0], [0, 0, 0]]), 0)
    model.update(torch.tensor([[0.0, 2, 0]]), 1)
    assert model.idle.tolist() == [1, 0, 3]


@pytest.mark.parametrize("step, expected", [(0, 0.5), (1, 0.75), (3, 0.875), (5000, 0.995)])
def test_the_threshold_follows_the_smallest_entries(step, expected):
    model = autoencoder(4, 3, 2)
    model.threshold.fill_(1)
    model.update(torch.tensor([[0.0, 3, 0.5], [2, 0, 0.6]]), step)
    assert model.threshold.item() == pytest.approx(expected)


def test_a_batch_without_active_entries_leaves_the_threshold():
    model = autoencoder(4, 3, 2)
    model.threshold.fill_(0.25)
    model.update(torch.zeros(2, 3), 0)
    assert model.threshold.item() == 0.25


def test_trained_batch_topk_keeps_what_is_above_the_threshold():
    model = autoencoder(4, 10, 2, batch_topk=True)
    x = torch.randn(6, 4)
    model.threshold.fill_(0.3)
    a = model.scores(x)
    expected = torch.where(a > 0.3, a, 0)
    assert torch.equal(model.encode(x), expected)
    model.threshold.copy_(a.max())
    assert model.encode(x).count_nonzero() == 0


def test_standardised_features_have_mean_0_and_norm_1():
    model = autoencoder(4, 10, 2)
    h = 3 + 5 * torch.randn(50, 4)
    model.fit_standard(h)
    x = model.standard(h)
    assert x.mean(0).tolist() == pytest.approx([0] * 4, abs=1e-6)
    assert x.square().sum(1).mean().item() == pytest.approx(1)


# ---- planted features
def planted_images():
    """2,000 images (N, 16) of two of 24 features each, standardised, and the features (16, 24)."""
    draw = torch.Generator().manual_seed(0)
    M = F.normalize(torch.randn(16, 24, generator=draw), dim=0)
    present = torch.rand(2000, 24, generator=draw).argsort(1) < 2
    strength = 0.5 + torch.rand(2000, 24, generator=draw)
    x = (strength * present) @ M.T
    x = x - x.mean(0)
    return x / x.square().sum(1).mean().sqrt(), M


def train(batch_topk, weight):
    """An autoencoder of planted images, of whose 32 units 24 never win at first."""
    torch.manual_seed(0)
    x, _ = planted_images()
    model = autoencoder(16, 32, 2, batch_topk)
    model.W_enc.data[8:] = -0.01 * torch.eye(16)[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(800):
        batch = x[torch.randint(2000, (200,))]
        loss, _, z = sae.sae_loss(model, batch, model.idle >= 2000, weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update(z, step)
    return model


def found_features(model):
    """The mean over planted features of the largest |cosine| with a unit."""
    _, M = planted_images()
    W = F.normalize(model.W_dec.detach(), dim=0)
    return (W.T @ M).abs().amax(0).mean().item()


@pytest.fixture(scope="module", params=[False, True], ids=["topk", "batch-topk"])
def trained(request):
    return train(request.param, 1 / 32)


def test_revived_units_find_planted_features(trained):
    assert found_features(trained) > 0.95


@KINDS
def test_without_revival_planted_features_are_missed(batch_topk):
    assert found_features(train(batch_topk, 0)) < 0.9


def test_columns_keep_norm_1(trained):
    assert (trained.W_dec.norm(dim=0) - 1).abs().max() < 1e-5


def test_a_trained_autoencoder_keeps_k_units_on_average(trained):
    x, _ = planted_images()
    active = (trained.encode(x) > 0).sum(1).float()
    assert active.mean().item() == pytest.approx(2, abs=0.1)


# ---- the program
SAE_FLAGS = "--epochs 4 --units 40 --topk 4 --batch-size 60 --checkpoint-every 1 --device cpu"


@pytest.fixture(scope="module", params=METHODS)
def coded(request, runs, tmp_path_factory):
    """The finished run of a method, and that of an autoencoder of its features."""
    folder = tmp_path_factory.mktemp("sae") / request.param
    run_program(f"sae.py {SAE_FLAGS}", runs / request.param, "--out", folder)
    return runs / request.param, folder


def test_an_autoencoder_tells_how_well_it_reconstructs(coded):
    _, folder = coded
    args, model = common.load_run(folder)
    data = common.load_data(args.dataset, args.data_root)
    h, z = common.features(model, data.x_test, 16)
    again = (z @ model.W_dec.T + model.b).detach() * model.scale + model.mean
    error = (h - again).square().sum(1).mean().item()
    variance = (h - h.mean(0)).square().sum(1).mean().item()
    final = records(folder)[-1]
    assert final["reconstruction_error"] == pytest.approx(error, rel=1e-3)
    assert final["explained_variance"] == pytest.approx(1 - error / variance, rel=1e-3)


def test_an_autoencoder_standardises_training_features(coded):
    _, folder = coded
    args, model = common.load_run(folder)
    data = common.load_data(args.dataset, args.data_root)
    h, _ = common.features(model, data.x_train, 16)
    assert torch.allclose(model.mean, h.mean(0), atol=1e-5)
    x = model.standard(h)
    assert x.square().sum(1).mean().item() == pytest.approx(1, abs=1e-3)


def test_an_autoencoder_leaves_the_backbone_as_it_was(coded):
    source, folder = coded
    of_source, final = records(source)[-1], records(folder)[-1]
    assert (final["lp1"], final["knn5"]) == (of_source["lp1"], of_source["knn5"])


def test_an_autoencoder_has_k_active_units(coded):
    _, folder = coded
    assert 0.08 < records(folder)[-1]["act"] < 0.101  # 4 of 40, if as many are positive


class Stopped(Exception):
    """What ends a run in the middle."""


@pytest.fixture(scope="module")
def stopped_and_whole(runs, tmp_path_factory):
    """Folders of a BatchTopK run that went on after its second epoch, and of one in one go."""
    root = tmp_path_factory.mktemp("stopped")
    source = shutil.copytree(runs / "lpjepa", root / "source")
    end = common.Run.end_epoch

    def stop(run, epoch, *more):
        end(run, epoch, *more)
        if epoch == 1:
            raise Stopped

    command = f"sae.py {SAE_FLAGS} --batch-topk"
    with mock.patch.object(common.Run, "end_epoch", stop), pytest.raises(Stopped):
        run_program(command, source, "--out", root / "stopped")
    shutil.rmtree(source)
    run_program("sae.py --resume", root / "stopped")  # the checkpoint has the backbone
    run_program(command, runs / "lpjepa", "--out", root / "whole")
    return root / "stopped", root / "whole"


def test_a_stopped_autoencoder_goes_on_without_its_source(stopped_and_whole):
    stopped, whole = stopped_and_whole
    assert len(records(whole)) == 5
    assert records(stopped) == records(whole)


def test_batch_topk_is_another_training(stopped_and_whole, runs, tmp_path):
    _, whole = stopped_and_whole
    run_program(f"sae.py {SAE_FLAGS}", runs / "lpjepa", "--out", tmp_path / "topk")
    assert records(tmp_path / "topk") != records(whole)


def test_dead_units_are_those_idle_for_a_pass(runs, tmp_path):
    run_program(f"sae.py {SAE_FLAGS} --topk 1", runs / "simclr", "--out", tmp_path / "run")
    _, model = common.load_run(tmp_path / "run")
    dead = int((model.idle >= 240).sum())  # the training images
    assert 0 < dead == records(tmp_path / "run")[-1]["dead_units"]


def test_the_learning_rate_falls_along_a_cosine(runs, tmp_path):
    run_program(f"sae.py {SAE_FLAGS} --lr 0.01", runs / "simclr", "--out", tmp_path / "run")
    *epochs, _ = records(tmp_path / "run")
    last_steps = [0.01 * common.lr_at(step, 16) for step in (3, 7, 11, 15)]
    assert [line["lr"] for line in epochs] == pytest.approx(last_steps)


def test_an_autoencoder_takes_over_the_runs_settings(runs, tmp_path):
    run_program(f"sae.py {SAE_FLAGS}", runs / "simclr", "--out", tmp_path / "run")
    settings, source = (
        vars(common.read_run(tmp_path / "run")),
        vars(common.read_run(runs / "simclr")),
    )
    for key in (
        "dataset",
        "data_root",
        "arch",
        "image_size",
        "min_scale",
        "jitter",
        "blur",
        "crop",
    ):
        assert settings[key] == source[key], key


@pytest.fixture
def damaged(runs, tmp_path):
    """A copy of a run whose backbone.pt is what a function makes of it."""

    def make(change):
        folder = shutil.copytree(runs / "simclr", tmp_path / "damaged")
        weights = torch.load(folder / "backbone.pt")
        torch.save({name: change(w) for name, w in weights.items()}, folder / "backbone.pt")
        return folder

    return make


@pytest.mark.parametrize(
    "change, message",
    [
        (torch.zeros_like, "the features of all images are alike"),
        (torch.flatten, "backbone.pt does not fit its config.json"),
    ],
    ids=["alike", "shapes"],
)
def test_unusable_features_are_refused(damaged, tmp_path, change, message):
    assert message in refusal(f"sae.py {SAE_FLAGS}", damaged(change), "--out", tmp_path / "run")


def test_one_process_trains_an_autoencoder(runs, monkeypatch):
    monkeypatch.setattr(common, "world", lambda: 2)
    assert "start it without torchrun" in refusal("sae.py", runs / "simclr")


# ---------------------------------------------------------------------------------------- shapes.py
SHIFTS = {
    "plain": {},
    "unseen": dict(frequencies=shapes.UNSEEN),
    "paired": dict(paired=0.9, turn=2),
}


@pytest.fixture(scope="module")
def scenes():
    """1,000 test images of each shift, by its name."""
    return {name: shapes.draw(0, 1000, **shift) for name, shift in SHIFTS.items()}


def digest(arrays):
    """The first digits of the SHA-256 of arrays, one after the other by their names."""
    together = b"".join(arrays[key].tobytes() for key in sorted(arrays))
    return hashlib.sha256(together).hexdigest()[:16]


def test_built_in_images_are_the_same_bytes():
    assert digest(shapes.draw()) == "350083793bf2cda9"


@pytest.mark.parametrize(
    "shift, expected", [("unseen", "069065b5aa8f2a09"), ("paired", "24ba3ebf05aeb6cd")]
)
def test_shifted_images_are_the_same_bytes(scenes, shift, expected):
    assert digest(scenes[shift]) == expected


def test_training_and_test_images_are_parts_of_one_draw():
    arrays, all_train = shapes.draw(30, 20), shapes.draw(50, 0)
    for key in ("x", "y", "background", "captions"):
        train, test = arrays[f"{key}_train"], arrays[f"{key}_test"]
        assert (len(train), len(test)) == (30, 20)
        assert np.array_equal(np.concatenate([train, test]), all_train[f"{key}_train"]), key


@pytest.mark.parametrize("shift", SHIFTS)
def test_captions_name_object_and_background(scenes, shift):
    scene = scenes[shift]
    objects, backgrounds = shapes.OBJECTS, list(shapes.UNSEEN)
    labels = zip(scene["captions_test"], scene["y_test"], scene["background_test"])
    for caption, y, background in labels:
        words = set(re.findall(r"[\w-]+", caption))
        named = words & {*objects, *backgrounds}
        assert named == {objects[y], backgrounds[background]}


@pytest.mark.parametrize(
    "word, axis, sign", [("left", 1, -1), ("right", 1, 1), ("top", 0, -1), ("bottom", 0, 1)]
)
def test_captions_name_the_place_of_the_object(scenes, word, axis, sign):
    scene = scenes["plain"]
    x = scene["x_test"].astype(float)
    red = x[:, 0] - x[:, 1:].mean(1) > 60  # (N, 32, 32), of which backgrounds have little
    place = np.arange(32).reshape(-1, 1) if axis == 0 else np.arange(32)
    centre = (red * place).sum((1, 2)) / red.sum((1, 2)).clip(1) - 15.5
    named = np.array([word in caption for caption in scene["captions_test"]])
    assert sign * (centre[named].mean() - centre[~named].mean()) > 2


def test_objects_are_equally_frequent(scenes):
    assert np.array_equal(scenes["plain"]["y_test"], np.arange(1000) % 10)


def test_backgrounds_are_as_frequent_as_they_should_be(scenes):
    shares = np.bincount(scenes["plain"]["background_test"]) / 1000
    assert shares.tolist() == pytest.approx([*shapes.BACKGROUNDS.values()], abs=0.04)


def test_unseen_backgrounds_are_on_no_training_image(scenes):
    assert {*scenes["unseen"]["background_test"]} == {5, 6}


def test_objects_are_paired_with_backgrounds(scenes):
    scene = scenes["paired"]
    share = np.mean(scene["background_test"] == (scene["y_test"] + 2) % 5)
    assert 0.9 < share < 0.95  # 0.9, and a fifth of what is left


def test_names_and_functions_are_in_one_order():
    assert list(shapes.TEXTURES) == list(shapes.MEAN_COLOURS) == list(shapes.UNSEEN)
    assert list(shapes.UNSEEN)[:5] == list(shapes.BACKGROUNDS)


@pytest.mark.parametrize(
    "name, classes",
    [("shapes", shapes.OBJECTS), ("shapes-backgrounds", list(shapes.BACKGROUNDS))],
    ids=["objects", "backgrounds"],
)
def test_files_of_class_names_are_those_of_the_images(name, classes):
    assert (ROOT / f"assets/classes/{name}.txt").read_text().split() == classes
