"""Tests of studies/mnist1d: the published numbers, naive loops, and what is on record."""

import numpy as np
import pytest
import signals
import torch


def random_numbers(seed, N):
    """What augment() draws for N signals: shifts, slopes and means."""
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randint(10, (N, 1), generator=generator)
    slope = 0.04 * torch.randn(N, 1, generator=generator)
    mean = 0.3 * torch.randn(N, 1, generator=generator)
    return shift.flatten().tolist(), slope.flatten().numpy(), mean.flatten().numpy()


def test_signals_are_the_published_ones():
    pytest.importorskip("mnist1d.data")
    pytest.importorskip("sklearn")
    data = signals.load_signals()
    assert [len(part) for part in data] == [4000, 4000, 1000, 1000]
    assert round(signals.neighbour_accuracy(*data, metric="euclidean"), 1) == 59.6
    assert round(signals.linear_accuracy(*data), 1) == 32.8


def test_views_equal_a_naive_loop():
    x = torch.randn(20, 40)
    views = signals.augment(x, torch.Generator().manual_seed(3))
    places = np.arange(40) - 19.5
    for signal, view, shift, slope, mean in zip(x.numpy(), views, *random_numbers(3, 20)):
        fitted = np.polynomial.polynomial.polyfit(places, signal, 1)
        rest = signal - np.polynomial.polynomial.polyval(places, fitted)
        wanted = np.roll(rest, shift) + mean + slope * places
        np.testing.assert_allclose(view, wanted, atol=1e-5)


def test_published_network_and_loss():
    network = signals.Network("published")
    assert sum(p.numel() for p in network.parameters()) == 21716  # which the notebook prints
    z1, z2 = torch.randn(2, 5, 16)
    losses = []
    for i in range(5):
        scores = [float(torch.cosine_similarity(z1[i], z2[j], dim=0)) / 0.5 for j in range(5)]
        losses.append(np.log(np.exp(scores).sum()) - scores[i])
    assert signals.one_sided(z1, z2).item() == pytest.approx(np.mean(losses), rel=1e-5)


def test_methods_of_a_seed_differ_in_the_head_alone():
    x = torch.randn(300, 40)
    first = {method: signals.train(method, 1, 1e-9, x, 1)[0] for method in signals.METHODS}
    h, z, alpha = zip(*(network.eval()(x) for network in first.values()))
    torch.testing.assert_close(h[0], h[1], atol=1e-4, rtol=0)
    torch.testing.assert_close(z[1], z[0].relu(), atol=1e-4, rtol=0)
    torch.testing.assert_close(z[2], z[1] * (alpha[2] > 0.5), atol=1e-3, rtol=0)
    again, _ = signals.train("bayesncl", 1, 1e-9, x, 1)
    torch.testing.assert_close(again.state_dict(), first["bayesncl"].state_dict(), atol=0, rtol=0)
