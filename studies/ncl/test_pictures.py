"""Tests of pictures.py: its curves of small records, and the pictures of what is on record."""

from conftest import run_program

import pictures
import pytest


def test_a_kept_curve_ends_with_all_dimensions():
    seed = {"lp1_top_32": 1.0, "lp1_top_64": 2.0, "lp1_top_128": 3.0, "lp1_embedding": 4.0}
    assert pictures.kept_curves([seed], "lp1", "lp1_embedding", "top") == [[1, 2, 3, 4]]


def test_a_severity_is_the_mean_over_corruptions():
    seed = {"z_clean": 9.0}
    for severity in range(1, 6):
        seed[f"z_noise_{severity}"] = 1.0 + severity
        seed[f"z_blur_{severity}"] = 3.0 + severity
    assert pictures.severity_curves([seed], "z", ("noise", "blur")) == [[9, 3, 4, 5, 6, 7]]


def test_the_deviation_is_over_seeds():
    mean, std = pictures.mean_and_std([[1, 5], [3, 5]])
    assert (mean.tolist(), std.tolist()) == ([2, 5], [pytest.approx(2**0.5), 0])


def test_both_pictures_are_drawn_of_the_records(tmp_path):
    pytest.importorskip("matplotlib")
    run_program("pictures.py --out", tmp_path)
    sizes = [file.stat().st_size for file in tmp_path.glob("*.png")]
    assert len(sizes) == 2
    assert min(sizes) > 10_000
