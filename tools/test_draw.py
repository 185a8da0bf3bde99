"""Tests of draw.py: what its pictures show of records and runs of a moment."""

import json
from pathlib import Path

import sparsehead
from conftest import refusal

import draw
import numpy as np
import pytest
import torch


@pytest.fixture
def drawn(monkeypatch):
    """The figures that draw.py would write, by name."""
    figures = {}

    def keep(figure, path):
        figures[path.name] = figure
        draw.plt.close(figure)

    monkeypatch.setattr(draw, "save", keep)
    return figures


def lines_of(panel):
    """{label: (x, y)} of the curves of a panel."""
    curves = {}
    for line in panel.get_lines():
        curves[line.get_label()] = line.get_xdata().tolist(), line.get_ydata().tolist()
    return curves


def test_one_seed_has_no_deviation():
    mean, std = draw.mean_and_std([[1, 3], [3, 3]])
    assert (mean.tolist(), std.tolist()) == ([2, 3], [pytest.approx(2**0.5), 0])
    assert draw.mean_and_std([[1, 3]])[1].tolist() == [0, 0]


@pytest.mark.parametrize("K", [64, 128, 256])
def test_every_bar_holds_as_many_counts(drawn, tmp_path, K):
    draw.dimensions(tmp_path / "dimensions.png", torch.rand(20, K))
    bars = drawn["dimensions.png"].axes[2].patches
    assert {round(bar.get_width(), 6) % 1 for bar in bars} == {0}
    assert bars[-1].get_x() + bars[-1].get_width() > K


def test_collapse_is_drawn_by_epoch(drawn, tmp_path):
    lines = [dict(epoch=1, spread=0.9), dict(epoch=2, spread=0.4), dict(event="final")]
    draw.collapse(tmp_path / "collapse.png", lines)
    curve = drawn["collapse.png"].axes[0].get_lines()[0]
    assert curve.get_xydata().tolist() == [[1, 0.9], [2, 0.4]]


def label_of(x):
    values = sparsehead.spectrum(x)
    return f"{sparsehead.effective_rank(values):.1f} of {len(values)}"


ratio = sparsehead.min_max_ratio


def test_spectra_are_eigenvalues_and_ratios(drawn, tmp_path):
    h, z = torch.randn(40, 4), torch.randn(40, 8)
    draw.spectra(tmp_path / "spectra.png", {"a": {"h": h, "z": z}})
    of_h, of_z, ratios = drawn["spectra.png"].axes
    ((x, y),) = lines_of(of_h).values()
    expected = torch.linalg.eigvalsh(torch.cov(h.T.double())).flip(0).tolist()
    assert (x, y) == ([1, 2, 3, 4], pytest.approx(expected))
    assert len(lines_of(of_z)["a, effective rank " + label_of(z)][0]) == 8
    assert lines_of(ratios)["a"] == ([4, 8], [ratio(z[:, :4]), ratio(z)])


def final_record(shift):
    numbers = {"p_at_10": 50.0 + shift, "lp1_embedding": 60.0 + shift}
    for m in (8, 16):
        for kind in ("top", "random"):
            numbers[f"p_at_10_{kind}_{m}"] = m + shift
            numbers[f"lp1_{kind}_{m}"] = 2 * m + shift
    return numbers


def test_selection_is_the_mean_over_seeds(drawn, tmp_path):
    seeds = [final_record(0.0), final_record(4.0)]
    draw.selection(tmp_path / "selection.png", {"ncl": seeds}, 33)
    left, right = drawn["selection.png"].axes
    assert lines_of(left)["ncl, top"] == ([8, 16, 33], [10, 18, 52])
    assert lines_of(right)["ncl, random"] == ([8, 16, 33], [18, 34, 62])


@pytest.mark.parametrize(
    "changed, selected", [({}, True), ({"p_at_10": None}, False), (None, False)]
)
def test_selection_is_drawn_of_what_was_selected(drawn, tmp_path, changed, selected):
    numbers = final_record(0.0)
    config = dict(method="ncl", dataset="x", lines=[dict(lp1_embedding=numbers["lp1_embedding"])])
    if changed is not None:
        (tmp_path / "selection.json").write_text(json.dumps(numbers | changed))
    arrays = dict(h=torch.rand(20, 4), z=torch.rand(20, 32))
    draw.pictures([(tmp_path, config, arrays)], [tmp_path])
    assert ("selection.png" in drawn) == selected


def test_only_runs_of_one_recipe_are_seeds():
    first, second = dict(method="ncl", seed=1, topk=None), dict(method="ncl", seed=2, topk=None)
    runs = [(Path("a"), first, {"n": 1}), (Path("b"), first | dict(topk=16), {"n": 2})]
    runs.append((Path("c"), second, {"n": 3}))
    assert draw.as_seeds(runs) == {"ncl": [{"n": 1}, {"n": 3}], "ncl, b": [{"n": 2}]}


def test_autoencoders_of_a_recipes_seeds_are_seeds():
    configs = [dict(method="sae", seed=s, run=f"runs/simclr-seed{s}") for s in (1, 2)]
    runs = [(Path(str(n)), config, {"n": n}) for n, config in enumerate(configs)]
    assert draw.as_seeds(runs) == {"sae": [{"n": 0}, {"n": 1}]}


def test_words_of_a_run_are_no_recipe():
    first = dict(method="mmncl", seed=1, words=["ant"])
    runs = [(Path("a"), first, {"n": 1}), (Path("b"), first | dict(words=["bee"]), {"n": 2})]
    assert draw.as_seeds(runs) == {"mmncl": [{"n": 1}, {"n": 2}]}


def test_constant_embeddings_have_no_rank(drawn, tmp_path):
    draw.spectra(tmp_path / "spectra.png", {"a": {"h": torch.randn(40, 4), "z": torch.ones(40, 8)}})
    _, of_z, _ = drawn["spectra.png"].axes
    assert list(lines_of(of_z)) == ["a, constant, rank 0 of 8"]


def titled(*configs):
    return draw.titles([(Path(f"run{i}"), config, {}) for i, config in enumerate(configs)])


def test_titles_are_what_the_runs_differ_in():
    first, second = dict(method="ncl", seed=1), dict(method="ncl", seed=2)
    assert titled(first, second) == ["seed 1", "seed 2"]
    assert titled(first, second, dict(method="simclr", seed=1))[2] == "method simclr, seed 1"


def test_titles_are_folders_where_settings_do_not_tell():
    first, second = dict(method="ncl", seed=1), dict(method="ncl", seed=2)
    assert titled(first, first, second) == ["run0", "run1", "run2"]
    assert titled(first) == ["run0"]


def test_folders_of_one_name_have_their_paths():
    runs = [(Path("a/run"), dict(method="ncl"), {}), (Path("b/run"), dict(method="ncl"), {})]
    assert draw.titles(runs) == ["a/run", "b/run"]


def test_a_landscape_has_a_colour_for_each_program(drawn, tmp_path):
    curves = {}
    for i, setting in enumerate(("simclr, lr 1", "simclr, lr 2", "noncl, lr 1")):
        curves[f"few/{setting}/lr_times_steps"] = np.array([1.0, 2.0])
        curves[f"few/{setting}/min"] = np.array([[0.1, 0.3], [0.2, 0.6]]) + i
        curves[f"few/{setting}/loss"] = np.array([[1.0], [2.0]])
    draw.landscapes(tmp_path, curves)
    lines = drawn["few.png"].axes[0].get_lines()
    assert [line.get_color() for line in lines] == ["C0", "C0", "C1"]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-"]
    assert lines[0].get_ydata().tolist() == pytest.approx([0.2, 0.4])


def test_a_damaged_landscape_is_refused(tmp_path):
    (tmp_path / "curves.npz").write_text("no archive")

    def ask():
        draw.landscapes_of_run(tmp_path)

    assert "curves.npz cannot be read" in refusal(ask)
