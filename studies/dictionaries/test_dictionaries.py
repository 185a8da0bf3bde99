"""Tests of dictionaries.py and its picture: closed forms, naive loops, invariances, small runs."""

import argparse
import json
import shutil

import dictionaries
import dictionaries_picture as picture
import numpy as np
import pytest
import records
import report
import torch

import common
import interpret
from conftest import records as lines_of
from conftest import refusal, run_program

Y = np.arange(1000) % 10
LEVELS = {"1": 1, "all": 100}


@pytest.fixture(scope="module")
def labels():
    return interpret.truths({"": Y})


def measured(z, labels, levels=LEVELS):
    return dictionaries.measure(np.float32(z), "nonzero", False, levels, labels)


@pytest.fixture(scope="module")
def random_z():
    """Codes (1000, 12) of which about half are 0."""
    z = np.random.default_rng(0).normal(size=(1000, 12))
    return np.float32(z.clip(0))


# -------------------------------------------------------------------------- a dictionary's numbers
def test_a_dimension_for_each_class_is_perfect(labels):
    found = measured(np.eye(10)[Y], labels)
    for key in dictionaries.COLUMNS.values():
        assert found[key] == pytest.approx(100), key
    assert found["entries"] == 1


@pytest.mark.parametrize("merged", [2, 5])
def test_a_dimension_for_several_classes(labels, merged):
    found = measured(np.eye(10)[Y // merged], labels)
    chance = labels[""].chance[100 * merged - 1]
    assert found["cons"] == pytest.approx(100 / merged)
    assert found["adjusted"] == pytest.approx(100 * (1 / merged - chance) / (1 - chance))
    assert found["f1"] == pytest.approx(200 / (merged + 1))


def shuffled(y):
    return interpret.truths({"": np.random.default_rng(1).permutation(y)})


def test_shuffled_labels_have_no_consistency(labels):
    of_class = np.random.default_rng(0).normal(size=(10, 16))
    h = of_class[Y] + np.random.default_rng(1).normal(size=(1000, 16))
    z = interpret.random_dictionary(np.float32(h), 64, 0, 8)
    true = dictionaries.measure(z, "nonzero", False, LEVELS, labels)
    false = dictionaries.measure(z, "nonzero", False, LEVELS, shuffled(Y))
    assert true["adjusted"] > 20
    assert abs(false["adjusted"]) < 1
    assert abs(false["top_1_adjusted"]) < 2


# --------------------------------------------------------------------- the strongest of each image
def test_all_entries_have_the_plain_numbers(labels, random_z):
    found = measured(random_z, labels)
    for key in "entries", "adjusted", "best_f1":
        assert found[f"top_all_{key}"] == found[key], key


@pytest.mark.parametrize("s", [1, 3, 12])
def test_the_strongest_entries_of_each_image(labels, random_z, s):
    kept = np.zeros_like(random_z)
    for row, own in zip(kept, random_z):
        for k in sorted(range(12), key=own.__getitem__)[-s:]:
            row[k] = own[k]
    found = measured(random_z, labels, {"s": s})
    expected = measured(kept, labels)
    for key in "entries", "adjusted", "best_f1":
        assert found[f"top_s_{key}"] == pytest.approx(expected[key]), key


def test_the_strongest_entry_may_be_negative():
    z = np.float32([[3, -4], [2, 1]])
    entries = dictionaries.sizes_of(z, "top:0.01", halves=True)
    strongest = entries.take(dictionaries.ranks_in_images(entries) < 1)
    of_image = dict(zip(strongest.images.tolist(), strongest.dims.tolist()))
    assert of_image == {0: 3, 1: 0}  # dimensions are +0, +1, −0, −1


@pytest.mark.parametrize(
    "active, levels",
    [(1, ["all"]), (2, ["1", "all"]), (5, ["1", "2", "4", "all"]), (8, ["1", "2", "4", "all"])],
)
def test_levels_are_powers_of_two_and_all(active, levels):
    z = np.zeros((4, 9))
    z[:, :active] = 1
    found = dictionaries.levels_of(interpret.entries_of(z))
    assert list(found) == levels
    assert found["all"] == 9


# ---------------------------------------------------------------- the strongest of each dimension
def test_each_dimension_alone_on_its_strongest_images(labels, random_z):
    unit = random_z / np.linalg.norm(random_z, axis=1, keepdims=True)
    kept = np.zeros_like(unit)
    for k in range(12):
        strongest = unit[:, k].argsort()[-30:]
        kept[strongest, k] = unit[strongest, k]
    found = measured(unit, labels)
    expected = measured(kept, labels)
    for key in "entries", "adjusted", "best_f1":
        assert found[f"on_3_{key}"] == pytest.approx(expected[key]), key


def test_dimensions_with_fewer_images_are_left_out(labels):
    z = np.zeros((1000, 2))
    z[Y == 3, 0] = 1  # a hundred images of one class
    z[:20, 1] = 1  # twenty, two of each class
    found = measured(z, labels)
    assert found["on_3_full_dims"] == 1
    assert found["on_3_full_adjusted"] == pytest.approx(100)
    assert found["on_3_adjusted"] < 60


# -------------------------------------------------------------------------------- the dictionaries
@pytest.fixture(scope="module")
def codes(runs, tmp_path_factory):
    """A run of sae.py on the features of runs / "ncl"."""
    folder = tmp_path_factory.mktemp("codes") / "sae"
    run_program(
        "sae.py --topk 4 --epochs 2 --batch-size 60 --device cpu", runs / "ncl", "--out", folder
    )
    return folder


def options(**given):
    return argparse.Namespace(**dict(simclr=None, sae=None, data_root=None) | given)


@pytest.fixture(scope="module")
def of_ncl(runs, codes):
    return dictionaries.dictionaries(runs / "ncl", options(simclr=runs / "simclr", sae=codes))


@pytest.fixture(scope="module")
def of_simclr(runs):
    return dictionaries.dictionaries(runs / "simclr", options(simclr=runs / "simclr"))


@pytest.fixture(params=["ncl", "simclr"])
def method(request, runs, of_ncl, of_simclr):
    """A sparse and a dense run, and what is found of it."""
    found = {"ncl": of_ncl, "simclr": of_simclr}
    return runs / request.param, found[request.param]


KEYS = ["entries", "live_dims", "cons", "adjusted", "f1", "best_f1"]
KEYS += ["background_cons", "background_adjusted", "background_f1", "background_best_f1"]


@pytest.mark.parametrize("key", KEYS)
def test_numbers_are_those_of_the_final_record(method, key):
    folder, found = method
    final = lines_of(folder)[-1]
    trained = final.get(f"top_{key}", final[key])  # "top_": of a dense run
    assert found["trained"][key] == pytest.approx(trained)
    assert found["untrained"][key] == pytest.approx(final[f"untrained_{key}"])


@pytest.mark.parametrize("control", ["untrained", "rotated", "simclr", "random_backbone"])
def test_controls_are_as_active_as_the_run(of_ncl, of_simclr, control):
    assert of_ncl[control]["entries"] == round(of_ncl["trained"]["entries"])
    halves = 512 * 1 / 100  # 512 half-dimensions, each on 1 of 100 images
    assert of_simclr[control]["entries"] == of_simclr["trained"]["entries"] == halves


def test_directions_of_simclr_are_of_its_own_features(of_simclr):
    assert of_simclr["simclr"] == of_simclr["untrained"]


def test_an_autoencoder_is_as_active_as_it_says(of_ncl):
    assert of_ncl["sae"]["entries"] <= 4
    assert of_ncl["sae"]["top_all_entries"] == of_ncl["sae"]["entries"]


def test_each_dictionary_is_another(of_ncl):
    names = ["trained", "untrained", "rotated", "simclr", "random_backbone", "sae"]
    assert list(of_ncl) == names
    values = {found["background_adjusted"] for found in of_ncl.values()}
    assert len(values) == len(of_ncl)


@pytest.fixture
def small():
    """Settings and images of a small network."""
    images = torch.randint(0, 256, (60, 3, 16, 16), dtype=torch.uint8)
    return argparse.Namespace(arch="resnet8", image_size=16), images


def test_a_random_backbone_has_learnt_nothing(small):
    backbone = dictionaries.random_backbone(*small, seed=7)
    torch.manual_seed(7)
    fresh, _ = common.resnet("resnet8", 16)
    for own, other in zip(backbone.parameters(), fresh.parameters()):
        assert torch.equal(own, other)


def test_a_random_backbone_normalises_as_in_training(small):
    settings, images = small  # of which BatchNorm sees all
    backbone = dictionaries.random_backbone(settings, images, seed=7)
    view = common.eval_view(images, 16)
    assert not backbone.training
    h = backbone(view)
    backbone.train()
    assert torch.allclose(h, backbone(view), atol=0.01)


def test_a_random_backbone_is_the_same_again(small):
    settings, images = small
    view = common.eval_view(images, 16)
    first, second = [dictionaries.random_backbone(*small, seed=7)(view) for _ in range(2)]
    assert torch.equal(first, second)


def test_each_draw_has_another_backbone(runs):
    drawn = dictionaries.random_features(runs / "ncl", None, 100)
    assert len(drawn) == interpret.DRAWS
    for h in drawn[1:]:
        assert not np.allclose(h, drawn[0], atol=0.1)


def test_random_features_are_of_the_test_images(runs):
    run = common.read_run(runs / "ncl")
    data = common.load_data(run.dataset, run.data_root)
    seed = dictionaries.FIRST_SEED + 2
    backbone = dictionaries.random_backbone(run, data.images, seed)
    expected = backbone(common.eval_view(data.x_test, run.image_size)).detach().numpy()
    found = dictionaries.random_features(runs / "ncl", None, 100)[2]
    assert np.allclose(found, expected, atol=1e-5)


# ---------------------------------------------------------------------------- what is left of a run
@pytest.fixture
def studies(tmp_path, monkeypatch):
    """Where records.py looks for records: none so far."""
    monkeypatch.setattr(records, "STUDIES", tmp_path / "studies")
    (tmp_path / "studies" / "dictionaries").mkdir(parents=True)
    return tmp_path / "studies"


@pytest.fixture
def own_run(runs, tmp_path):
    """A copy of a run, which may be changed."""
    return shutil.copytree(runs / "simclr", tmp_path / "mine-seed3")


def test_numbers_are_left_in_folder_and_record(studies, own_run, capsys):
    file = records.file_of("dictionaries")
    settings = json.loads((own_run / "config.json").read_text())
    records.put(file, dict(run="mine", seed=3, settings=settings, final={}))
    run_program("dictionaries.py", own_run)
    left = json.loads((own_run / "dictionaries.json").read_text())
    (record,) = records.read(file)
    assert record["dictionaries"] == left == records.of_run(own_run)["dictionaries"]
    assert f"{left['dictionary_untrained_adjusted']:.1f}" in capsys.readouterr().out


def change(folder, **arrays):
    """Replace arrays of a run's embeddings; None: leave one out."""
    with np.load(folder / "embeddings.npz") as archive:
        every = dict(archive) | arrays
    kept = {name: array for name, array in every.items() if array is not None}
    np.savez(folder / "embeddings.npz", **kept)


def test_a_run_without_labels_is_refused(own_run):
    change(own_run, y=None, background=None)
    assert "mine-seed3 has no labels" in refusal("dictionaries.py", own_run)


def test_a_sparse_embedding_with_signs_is_refused(own_run):
    z = np.zeros((100, 8), np.float16)
    z[:, 0] = -1
    change(own_run, z=z)
    assert "a sparse embedding with negative entries" in refusal("dictionaries.py", own_run)


def test_an_autoencoder_is_of_one_run(runs, codes):
    told = refusal("dictionaries.py", runs / "ncl", runs / "simclr", "--sae", codes)
    assert "--sae is of one run's features" in told


def test_other_test_images_are_refused(runs, own_run):
    change(own_run, y=np.arange(100) % 3)
    told = refusal("dictionaries.py", runs / "ncl", "--simclr", own_run)
    assert "mine-seed3 has other test images than ncl" in told


def test_another_method_is_refused_as_simclr(runs):
    told = refusal("dictionaries.py", runs / "simclr", "--simclr", runs / "ncl")
    assert "is a run of ncl.py; --simclr wants simclr.py's" in told


def test_an_autoencoder_of_other_features_is_refused(runs, codes):
    told = refusal("dictionaries.py", runs / "simclr", "--sae", codes)
    assert "is not what sae.py makes of simclr" in told


def test_other_data_are_refused(own_run):
    settings = json.loads((own_run / "config.json").read_text())
    (own_run / "config.json").write_text(json.dumps(settings | {"dataset": "few"}))
    assert "few has 8 test images" in refusal("dictionaries.py", own_run)


# ------------------------------------------------------------------------------------- the picture
def leave_record(run, seed, trained):
    """A record of a run whose trained dimensions have these numbers at s = 1, and twice as much."""
    found = {}
    for name, value in ("trained", trained), ("untrained", trained / 2):
        for s, times in ("1", 1), ("all", 2):
            start = f"dictionary_{name}_top_{s}_"
            found[f"{start}entries"] = 10.0 * times
            for prefix in dictionaries.LABELS:
                for key in dictionaries.OF_A_CURVE:
                    found[start + prefix + key] = value * times
    record = dict(run=run, seed=seed, final={}, dictionaries=found)
    records.put(records.file_of("dictionaries"), record)


@pytest.fixture
def on_record(studies):
    for seed, value in (1, 6.0), (2, 8.0), (3, 10.0):
        leave_record("claims-shapes-ncl", seed, value)
    leave_record("claims-cifar10-simclr", 1, 4.0)
    records.put(records.file_of("dictionaries"), dict(run="claims-cifar10-ncl", seed=1, final={}))


def test_rows_are_the_data_on_record(on_record):
    rows = picture.on_record()
    assert list(rows) == list(picture.ROWS)[:3]  # nothing of CIFAR-100
    assert list(rows["CIFAR-10, default, class"]) == ["simclr"]


def test_a_curve_has_means_and_intervals(on_record):
    seeds = picture.on_record()["built-in data set, class"]["ncl"]
    half = report.interval([6.0, 8.0, 10.0])
    found = picture.points(seeds, "trained", "adjusted")
    assert found == pytest.approx(np.array([[10, 8, half], [20, 16, 2 * half]]))
    untrained = picture.points(seeds, "untrained", "adjusted")
    assert untrained[:, 1] == pytest.approx([4, 8])


def test_one_seed_has_no_interval(on_record):
    seeds = picture.on_record()["CIFAR-10, default, class"]["simclr"]
    assert picture.points(seeds, "trained", "best_f1")[:, 2].tolist() == [0, 0]


def test_a_curve_has_what_all_seeds_have(on_record):
    seeds = picture.on_record()["built-in data set, class"]["ncl"]
    del seeds[1]["dictionary_trained_top_1_entries"]
    assert len(picture.points(seeds, "trained", "adjusted")) == 1


def test_the_picture_is_drawn(on_record, tmp_path):
    pytest.importorskip("matplotlib")
    run_program("dictionaries_picture.py --draw", tmp_path / "dictionaries.png")
    assert (tmp_path / "dictionaries.png").stat().st_size > 20_000


def test_nothing_on_record_is_refused(studies):
    assert "no run on record has dictionaries" in refusal("dictionaries_picture.py")
