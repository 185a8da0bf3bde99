"""Tests of what judges here: the comparison of two runs, and the outcomes of damaged inputs."""

import json
import os
import shutil

import numpy as np
import pytest
import torch

if not hasattr(os, "fork"):
    pytest.skip("programs are tried in forked processes", allow_module_level=True)

import compare  # noqa: E402
import damage  # noqa: E402
import faults  # noqa: E402
import forked  # noqa: E402
import mutations  # noqa: E402


# ---------------------------------------------------------------------------------- the comparison
def write_run(folder, weight=1.0, feature=2.0, loss=3.0, seconds=4.0):
    """A run's folder with one number of each kind."""
    folder.mkdir()
    state = {"model": {"w": torch.tensor([0.0, weight])}, "seconds": seconds}
    torch.save(state, folder / "checkpoint.pt")
    np.savez(folder / "embeddings.npz", z=np.array([feature], np.float16))
    line = dict(epoch=1, loss=loss, images_per_s=seconds)
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def next_to(value, kind):
    """The next number of this type, one bit away."""
    return float(np.nextafter(kind(value), kind(9)))


@pytest.mark.parametrize(
    "changed, where",
    [
        (dict(weight=next_to(1, np.float32)), "checkpoint.pt/model/w"),
        (dict(feature=next_to(2, np.float16)), "embeddings.npz/z"),
        (dict(loss=next_to(3, np.float64)), "metrics.jsonl/0/loss"),
    ],
    ids=["weight", "feature", "loss"],
)
def test_one_changed_bit_is_a_difference(run, tmp_path, changed, where):
    other = write_run(tmp_path / "other", **changed)
    assert compare.differences(run, other) == [where]


def test_times_are_no_difference(run, tmp_path):
    other = write_run(tmp_path / "other", seconds=5.0)
    assert compare.differences(run, other) == []


def test_minus_zero_is_not_zero(run, tmp_path):
    zero = write_run(tmp_path / "zero", weight=0.0)
    minus = write_run(tmp_path / "minus", weight=-0.0)
    assert compare.differences(zero, minus) == ["checkpoint.pt/model/w"]


def test_a_missing_file_is_a_difference(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    (other / "embeddings.npz").unlink()
    assert compare.differences(run, other) == ["embeddings.npz"]


def test_a_missing_line_is_a_difference(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    (other / "metrics.jsonl").write_text("")
    assert compare.differences(run, other) == ["metrics.jsonl/0/epoch", "metrics.jsonl/0/loss"]


# ------------------------------------------------------------------------------------ the outcomes
ENDINGS = {  # outcome: the exit code, standard error, the numbers found
    "refused": (2, "simclr.py: it is damaged\n", None),
    "equal": (0, "", {"loss": 1.0}),
    "other numbers": (0, "", {"loss": 2.0}),
    "not finite": (0, "", {"loss": float("nan")}),
    "more lines": (2, "a warning\nsimclr.py: it is damaged\n", None),
    "traceback": (1, "Traceback (most recent call last):\nKeyError\n", None),
    "hang": (None, "", None),
    "died": (-11, "", None),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_an_outcome_has_its_name(name):
    code, err, found = ENDINGS[name]
    ending = forked.Ending(code, "", err, 1.0)
    assert mutations.outcome(ending, {"loss": 1.0}, found, certain=False) == name


def test_other_numbers_of_damage_that_shows_are_silent():
    ending = forked.Ending(0, "", "", 1.0)
    assert mutations.outcome(ending, {"loss": 1.0}, {"loss": 2.0}, certain=True) == "silent"


def test_a_number_never_finite_is_no_finding():
    ending = forked.Ending(0, "", "", 1.0)
    expected = {"loss": 1.0, "act": float("nan")}
    found = {"loss": 2.0, "act": float("nan")}
    assert mutations.outcome(ending, expected, found, certain=False) == "other numbers"


@pytest.mark.parametrize("seed", range(20))
def test_damage_changes_the_file(run, seed):
    path = run / "checkpoint.pt"
    good = path.read_bytes()
    damage.damage(path, np.random.default_rng(seed))
    assert not path.exists() or path.read_bytes() != good


# ---------------------------------------------------------------------------- the kill at a write
def write_two(folder, number, after):
    """Write one, then two; be killed at one of them."""
    os.chdir(folder)
    faults.kill_at(number, after, "written")
    for name in "one", "two":
        with open(f"written-{name}", "w") as file:
            file.write(name)


@pytest.mark.parametrize(
    "number, after, left",
    [(0, False, []), (1, False, ["one"]), (1, True, ["one", ""]), (2, False, ["one", "two"])],
    ids=["before one", "before two", "after opening two", "never"],
)
def test_a_kill_comes_at_its_write(tmp_path, number, after, left):
    process = forked.FORK.Process(target=write_two, args=[tmp_path, number, after])
    process.start()
    process.join()
    assert [path.read_text() for path in sorted(tmp_path.glob("written-*"))] == left


@pytest.mark.parametrize(
    "code, err, fits",
    [
        (130, "stopped\n", True),
        (130, "", False),
        (130, "a warning\nstopped\n", False),
        (1, "stopped\n", False),
    ],
    ids=["one line", "no word", "two lines", "other code"],
)
def test_an_end_is_one_line_and_its_code(code, err, fits):
    assert (faults.how_it_ended(code, err, 130) == "") == fits
