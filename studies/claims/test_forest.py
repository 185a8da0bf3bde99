"""Tests of forest.py."""

import forest
import numpy as np
import pytest
import records
import report


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    """Runs a, of seeds 1 to 3, and b, of seeds 2 to 4, of one question."""
    for module in (records, forest):
        monkeypatch.setattr(module, "STUDIES", tmp_path)
    report.records_in.cache_clear()
    (tmp_path / "q").mkdir()
    for run, seeds in ("a", (1, 2, 3)), ("b", (2, 3, 4)):
        for seed in seeds:
            final = {"lp1": 10.0 * seed + (run == "a"), "base": 4.0 * seed}
            records.put(tmp_path / "q" / "records.jsonl", dict(run=run, seed=seed, final=final))
    yield
    report.records_in.cache_clear()


def test_differences_are_of_shared_seeds(two_runs):
    assert forest.differences("lp1", "q#a", "q#b") == [1, 1]


def test_a_difference_within_a_run_has_its_seeds(two_runs):
    assert forest.differences("lp1-base", "q#a") == [7, 13, 19]


@pytest.mark.parametrize("title, key, runs, papers", forest.PANELS)
def test_every_row_is_on_record(title, key, runs, papers):
    assert papers.keys() <= runs.keys()
    for names in runs.values():
        found = forest.differences(key, *names)
        assert len(found) > 2, names
        assert np.isfinite(found).all(), names


def test_the_picture_is_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    (tmp_path / "assets").mkdir()
    monkeypatch.setattr(forest, "ROOT", tmp_path)
    forest.main([])
    assert (tmp_path / "assets" / "forest.png").stat().st_size > 10_000
