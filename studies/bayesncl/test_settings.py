"""Tests of settings.py: what stands where in its pictures of what is on record."""

from conftest import run_program

import pytest
import settings


@pytest.fixture
def panel():
    plt = pytest.importorskip("matplotlib.pyplot")
    figure, panel = plt.subplots()
    yield panel
    plt.close(figure)


def known(run, key):
    """A mean that tells its run's λ and number, and a deviation of 0.5."""
    weight = run.rpartition("weight")[2]
    return {"cons": 10, "lp1": 50}[key] + settings.WEIGHTS.index(weight), 0.5


def test_a_line_goes_over_all_weights(panel, monkeypatch):
    monkeypatch.setattr(settings, "mean_and_std", known)
    settings.draw_line(panel, "0.5", "cons", "C0")  # the middle one stands on its λ
    line = panel.get_lines()[0]
    assert line.get_xdata().tolist() == [3e-6, 3e-5, 3e-4, 3e-3, 3e-2]
    assert line.get_ydata().tolist() == [10, 11, 12, 13, 14]


def test_a_dot_is_cons_over_another_number(panel, monkeypatch):
    monkeypatch.setattr(settings, "mean_and_std", known)
    settings.draw_dot(panel, "a-weight3e-4", "lp1", {"fmt": "o"})
    assert panel.get_lines()[0].get_xydata().tolist() == [[52, 12]]


def test_the_setting_chosen_is_the_best_allowed():
    of_ncl, _ = settings.mean_and_std("cifar10-held-out-cpu-ncl", "lp1")
    allowed = {}
    for prior in settings.HELD_OUT_PRIORS:
        for weight in settings.HELD_OUT_WEIGHTS:
            run = f"cifar10-held-out-cpu-bayesncl-prior{prior}-kl-weight{weight}"
            probe, _ = settings.mean_and_std(run, "lp1")
            if probe >= of_ncl - settings.ALLOWED:
                allowed[prior, weight], _ = settings.mean_and_std(run, "cons")
    assert max(allowed, key=allowed.get) == ("0.8", "3e-4")


def test_both_pictures_are_drawn_of_the_records(tmp_path):
    pytest.importorskip("matplotlib")
    run_program("settings.py --out", tmp_path)
    sizes = [file.stat().st_size for file in tmp_path.glob("*.png")]
    assert len(sizes) == 2
    assert min(sizes) > 10_000
