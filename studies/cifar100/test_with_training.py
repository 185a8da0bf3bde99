"""Tests of with_training.py: a curve of small records, and the picture of what is on record."""

from conftest import run_program

import pytest
import records
import report
import with_training


@pytest.fixture
def run_a(tmp_path, monkeypatch):
    """Run a of two seeds: Cons. of 5, 10 and 20 after as many epochs, two more in seed 2."""
    for module in (records, with_training):
        monkeypatch.setattr(module, "STUDIES", tmp_path)
    report.records_in.cache_clear()
    (tmp_path / "cifar100").mkdir()
    for epochs, ending in with_training.EPOCHS.items():
        for seed in (1, 2):
            record = dict(run=f"a{ending}", seed=seed, final={"cons": epochs + 2.0 * (seed - 1)})
            records.put(records.file_of("cifar100"), record)
    yield "a"
    report.records_in.cache_clear()


def test_a_curve_is_the_mean_over_seeds(run_a):
    mean, std = with_training.curve(run_a, "cons")
    assert mean.tolist() == [6, 11, 21]
    assert std.tolist() == pytest.approx([2**0.5] * 3)


def test_the_picture_is_drawn_of_the_records(tmp_path):
    pytest.importorskip("matplotlib")
    run_program("with_training.py --draw", tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 10_000
