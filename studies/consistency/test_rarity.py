"""Tests of rarity.py: what as many random images have, in closed forms, and small runs."""

import re

from conftest import records as lines_of
from conftest import refusal, run_program

import numpy as np
import pytest
import rarity
import records
import torch

PAIR = 0.5 + 0.5 * 999 / 9999  # of two of 10,000 images of ten classes


@pytest.fixture(scope="module")
def by_chance():
    return records.random_consistency("cifar10")


def columns_of(cons=0.7):
    """Four dimensions: a dead one, two rare ones, one on a fifth of the images."""
    lines = ["act,cons", "0,", "1e-4,1", "2e-4,1", f"0.2,{cons}"]
    return records.read_columns(lines)


@pytest.fixture
def three_seeds(tmp_path, monkeypatch):
    """dimensions.csv has three seeds, whose frequent dimension has a Cons. of 0.5, 0.6 and 0.7."""
    lines = ["run,seed,dimension,act,cons"]
    for seed in (1, 2, 3):
        for k, act_and_cons in enumerate(["0,", "1e-4,1", "2e-4,1", f"0.2,{(seed + 4) / 10}"]):
            lines.append(f"cifar10-cpu-ncl,{seed},{k},{act_and_cons}")
    lines.append("shapes-ncl,1,0,0.5,0.2")
    (tmp_path / "consistency").mkdir()
    (tmp_path / "consistency" / "dimensions.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(records, "STUDIES", tmp_path)


@pytest.fixture(scope="module")
def closing_run(tiny, tmp_path_factory):
    """A run of bayesncl.py whose prior closes gates."""
    folder = tmp_path_factory.mktemp("closing") / "run"
    flags = "--prior 0.1 --kl-weight 1 --gate-lr 0.01 --out"
    run_program(f"bayesncl.py {tiny} {flags}", folder)
    return folder


# --------------------------------------------------------------------------- consistency and chance
def test_chance_of_one_two_and_all_images(by_chance):
    assert by_chance[[0, 1, -1]] == pytest.approx([1, PAIR, 0.1], abs=0.03)


def test_live_dimensions_have_chance_of_their_images(by_chance):
    n, cons, at_random = rarity.consistencies(columns_of(), by_chance)
    assert n.tolist() == [1, 2, 2000]
    assert cons.tolist() == [1, 1, 0.7]
    assert at_random.tolist() == by_chance[[0, 1, 1999]].tolist()


def test_what_is_above_chance(by_chance):
    found = rarity.summary(*rarity.consistencies(columns_of(), by_chance), 10_000)
    assert found["above"] == pytest.approx(100 * (0 + 1 - PAIR + 0.6) / 3, abs=1.5)
    assert found["above"] == pytest.approx(found["Cons."] - found["by chance"])


def test_frequent_dimensions_alone(by_chance):
    found = rarity.summary(*rarity.consistencies(columns_of(), by_chance), 10_000)
    assert found["≥ 0.1 %"] == 70
    assert found["≥ 0.1 %, above"] == pytest.approx(60, abs=1)
    assert (found["live"], found["below 0.1 %"]) == (3, 2)


def test_a_thousandth_of_the_images_is_frequent():
    numbers = np.array([9, 10]), np.array([0.2, 0.4]), np.array([0.1, 0.1])
    found = rarity.summary(*numbers, images=10_000)
    assert (found["below 0.1 %"], found["≥ 0.1 %"]) == (1, 40)


def test_a_run_without_frequent_dimensions_has_a_row():
    found = rarity.summary(np.array([1]), np.array([1.0]), np.array([1.0]), images=10_000)
    assert np.isnan(found["≥ 0.1 %"])


def test_the_table_has_means_over_seeds(three_seeds, capsys):
    run_program("rarity.py cifar10-cpu-ncl")
    out = capsys.readouterr().out
    assert "| cifar10-cpu-ncl |     3 | 86.7 ± 3.3 |" in out


def test_two_seeds_have_no_deviation():
    assert rarity.cell([1.0, 2.0]) == "1.5"


@pytest.mark.parametrize(
    "runs, told",
    {
        "shapes-ncl cifar10-cpu-ncl": "these runs are of several data sets: cifar10, shapes",
        "mine-ncl": "mine-ncl: the first word of a run is its data set, of shapes, cifar10",
        "cifar10-cpu-simclr": "dimensions.csv has no cifar10-cpu-simclr; it has cifar10-cpu-ncl",
    }.items(),
    ids=["several", "other data", "not there"],
)
def test_runs_that_cannot_be_compared_are_refused(three_seeds, runs, told):
    assert told in refusal(f"rarity.py {runs}")


# -------------------------------------------------------------------------------------- the picture
def test_the_picture_is_drawn(three_seeds, tmp_path):
    run_program("rarity.py cifar10-cpu-ncl --draw", tmp_path / "rarity.png")
    assert (tmp_path / "rarity.png").stat().st_size > 20_000


def test_means_are_of_dimensions_on_enough_images():
    n, values = np.array([1, 2, 5]), np.array([0.9, 0.6, 0.3])
    means = rarity.means_from(np.array([1, 2, 5, 6]), n, values)
    assert means == pytest.approx([60, 45, 30, np.nan], nan_ok=True)


@pytest.mark.parametrize(
    "name, title",
    [
        ("cifar100-cpu-ncl-lars", "NCL"),
        ("cifar100-cpu-bayesncl", "BayesNCL"),
        ("cifar100-cpu-ncl-after-5", "ncl-after-5"),
    ],
)
def test_rows_have_titles_for_readers(name, title):
    assert rarity.title_of(name) == title


# ----------------------------------------------------------------------------------------- the gate
def test_a_closed_gate_makes_dimensions_dead(closing_run):
    before, behind = rarity.shares(closing_run, None)
    found = rarity.behind_the_gate(before, behind)
    live = lines_of(closing_run)[-1]["live_dims"]
    assert found["dead"] == len(behind) - live > found["dead without gate"]


def test_what_the_gate_makes_rare():
    #                       dead  dead  rare  made    made   frequent
    before = torch.tensor([0.000, 0.10, 5e-4, 0.100, 0.500, 0.6])
    behind = torch.tensor([0.000, 0.00, 4e-4, 0.0005, 0.0005, 0.3])
    found = rarity.behind_the_gate(before, behind)
    assert list(found.values())[:4] == [2, 1, 3, 1]
    assert found["frequency before, %"] == pytest.approx(10)  # the lower of two
    assert found["of it kept, %"] == pytest.approx(0.1)


def test_where_the_gate_makes_none_rare():
    share = torch.tensor([0.0, 0.5])
    assert np.isnan(rarity.behind_the_gate(share, share)["frequency before, %"])


def test_the_table_of_gates(closing_run, capsys):
    run_program("rarity.py", closing_run, "--gate")
    out = re.sub(" +", " ", capsys.readouterr().out)
    dead = rarity.behind_the_gate(*rarity.shares(closing_run, None))["dead"]
    assert f"| run | {dead:.3g} |" in out


def test_the_gate_of_another_method_is_refused(runs):
    assert "give runs of bayesncl.py" in refusal("rarity.py", runs / "ncl", "--gate")
