"""Tests of collapse.py: the curves that it reads and the picture of them."""

from conftest import refusal, run_program

import collapse
import pytest


@pytest.fixture
def curves(tmp_path, monkeypatch):
    """curves.csv of two seeds of a and one of b."""
    text = "run,seed,epoch,spread,loss\na,1,1,0.5,-1\na,2,1,0.9,-1\na,2,2,0.25,-1\nb,1,1,0.7,-1\n"
    (tmp_path / "curves.csv").write_text(text)
    monkeypatch.setattr(collapse, "CURVES", tmp_path / "curves.csv")


def test_curves_are_of_a_run_by_seed(curves):
    assert collapse.curves_of("a") == {"1": ([1], [0.5]), "2": ([1, 2], [0.9, 0.25])}


def test_a_run_without_a_curve_is_refused(curves):
    def ask():
        collapse.curves_of("c")

    assert "curves.csv has no c" in refusal(ask)


def test_the_picture_is_drawn_of_the_records(tmp_path):
    pytest.importorskip("matplotlib")
    run_program("collapse.py --draw", tmp_path / "collapse.png")
    assert (tmp_path / "collapse.png").stat().st_size > 5_000
