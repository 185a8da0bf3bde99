"""Tests of backgrounds.py: what stands where in its picture."""

import shapes
from conftest import run_program

import backgrounds
import numpy as np
import pytest
import records


@pytest.fixture
def panel():
    """A panel of two seeds: of the first background rates of 0.3 and 0.2, of the second none."""
    plt = pytest.importorskip("matplotlib.pyplot")
    figure, panel = plt.subplots()
    head = "act,background_cons,background_class"
    seeds = [
        records.read_columns([head, "0.3,1,0", "0.1,0.5,0"]),
        records.read_columns([head, "0.2,0.95,0"]),
    ]
    backgrounds.draw_panel(panel, "NCL", seeds)
    yield panel
    plt.close(figure)


def test_a_dot_is_a_dimension_at_its_rate(panel):
    first, second, *_ = panel.collections
    frequency, *_ = shapes.BACKGROUNDS.values()
    assert first.get_offsets()[:, 1].tolist() == [0.3, 0.2]
    assert np.abs(first.get_offsets()[:, 0] - frequency).max() < 0.01
    assert len(second.get_offsets()) == 0


def test_above_is_how_many_a_run_has(panel):
    assert [text.get_text() for text in panel.texts] == ["1", "0", "0", "0", "0"]
    assert panel.get_title() == "NCL, 2 seeds"


def test_the_picture_is_drawn_of_the_records(tmp_path):
    pytest.importorskip("matplotlib")
    run_program("backgrounds.py --draw", tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 10_000
