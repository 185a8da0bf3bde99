"""Tests of theory_heads.py: naive loops over samples, and features that are found or not."""

from sparse_coding import generator, sample

import numpy as np
import pytest
import theory_heads as th
import torch


@pytest.fixture
def small(monkeypatch):
    """Two values of λ, few samples."""
    monkeypatch.setattr(th, "PENALTIES", [0.0, 0.03])
    monkeypatch.setattr(th.DATA, "n", 2000)


def test_the_loss_is_the_mean_over_samples(small):
    data = th.Moments(3, "at random", 4, seeds=2)
    W = torch.randn(4, 10, 50)
    B = torch.randn(4, 4, 3, 10)
    error = th.prediction_error(W, B, data)
    own, one = (th.penalty(B, one_head) for one_head in (False, True))
    for i, seed in enumerate((1, 1, 2, 2)):
        M, z, x = sample(th.DATA, seed, 0.3, 0.15)
        A = th.true_heads(3, "at random", 4, generator(seed, th.TASKS))
        total, lengths = 0, 0
        for t in range(4):
            total += (A[t] @ z / 0.3**0.5 - B[i, t] @ W[i] @ x).square().sum(0).mean() / 4
            lengths += sum(B[i, t, :, j].norm() for j in range(10)) / 4
        assert error[i].item() == pytest.approx(total.item(), rel=1e-3)
        assert own[i].item() == pytest.approx(lengths.item(), rel=1e-4)
        of_matrix = B[i].flatten(0, 1).norm(dim=0).sum() / 4**0.5
        assert one[i].item() == pytest.approx(of_matrix.item(), rel=1e-4)
        assert torch.equal(data.M[i], M)


@pytest.mark.parametrize("which, s", [("at random", 3), ("halves", 5), ("at random", 10)])
def test_a_task_needs_its_features_alone(which, s):
    A = th.true_heads(s, which, 200, torch.Generator().manual_seed(1))
    needed = (A != 0).any(1)  # (tasks, d)
    assert torch.equal(needed, (A != 0).all(1))
    assert needed.sum(1).eq(s).all()
    assert A.square().sum((1, 2)).mean().item() == pytest.approx(1, abs=0.1)
    if which == "halves":
        either = [[False] * 5 + [True] * 5, [True] * 5 + [False] * 5]
        assert np.unique(needed.numpy(), axis=0).tolist() == either


def test_matched_features_are_found_in_any_order():
    M, _ = torch.linalg.qr(torch.randn(1, 50, 10))
    W = -3 * M.mT[:, torch.randperm(10)]
    assert th.matched_cosine(W, M).item() == pytest.approx(1, abs=1e-5)
    W[:, 1] = W[:, 0]  # one feature twice, another not at all
    assert th.matched_cosine(W, M).item() == pytest.approx(0.9, abs=1e-5)


@pytest.mark.parametrize("setting", ["3 of 10 at random", "all 10"])
def test_varied_sparse_tasks_find_the_features(small, monkeypatch, setting):
    *rest, _ = th.SETTINGS[setting]
    monkeypatch.setitem(th.SETTINGS, setting, (*rest, 1000))
    without, with_penalty = th.rows_of(setting, seeds=2)
    assert max(without["error"]) < 0.15
    assert max(without["min"]) < 0.8
    found = min(with_penalty["min"]) > 0.95
    assert found == (setting != "all 10")
