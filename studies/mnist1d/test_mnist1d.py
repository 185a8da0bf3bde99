"""Tests of studies/mnist1d: the published numbers and naive loops."""

import numpy as np
import pytest
import signals
import torch


def test_signals_are_the_published_ones():
    pytest.importorskip("mnist1d.data")
    pytest.importorskip("sklearn")
    data = signals.load_signals()
    assert round(signals.neighbour_accuracy(*data, metric="euclidean"), 1) == 59.6
    assert round(signals.linear_accuracy(*data), 1) == 32.8


def test_views_equal_a_naive_loop():
    x = torch.randn(20, 40)
    views = signals.augment(x, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    shifts = torch.randint(10, (20, 1), generator=generator)
    slopes, means = (torch.randn(20, 1, generator=generator) for _ in range(2))
    places = np.arange(40) - 19.5
    for i in range(20):
        fitted = np.polyfit(places, x[i].numpy(), 1)
        rest = x[i].numpy() - np.polyval(fitted, places)
        wanted = np.roll(rest, shifts[i].item())
        wanted += 0.04 * slopes[i].item() * places + 0.3 * means[i].item()
        np.testing.assert_allclose(views[i], wanted, atol=1e-5)


def test_published_size_and_loss():
    network = signals.Network("published")
    assert sum(p.numel() for p in network.parameters()) == 21716  # which the notebook prints
    z1, z2 = torch.randn(2, 5, 16)
    losses = []
    for i in range(5):
        scores = torch.cosine_similarity(z1[i], z2) / 0.5  # (5,)
        losses.append(scores.exp().sum().log() - scores[i])
    torch.testing.assert_close(signals.one_sided(z1, z2), torch.stack(losses).mean())


def test_methods_of_a_seed_differ_in_the_head_alone():
    x = torch.randn(300, 40)
    networks = [signals.train(method, 1, 1e-9, x, 1)[0] for method in signals.METHODS]
    h, z, alpha = zip(*(network.eval()(x) for network in networks))
    torch.testing.assert_close(h[0], h[1], atol=1e-4, rtol=0)
    torch.testing.assert_close(z[1], z[0].relu(), atol=1e-4, rtol=0)
    torch.testing.assert_close(z[2], z[1] * (alpha[2] > 0.5), atol=1e-4, rtol=0)
