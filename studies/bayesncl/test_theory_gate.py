"""Tests of theory_gate.py: naive losses, planted features, and what it finds in small runs."""

import argparse
import itertools
import json
import shutil
from unittest import mock

import bayesncl
import simclr
from conftest import refusal, run_program

import numpy as np
import pytest
import theory_gate
import torch
import torch.nn.functional as F
from runs import load_run


@pytest.fixture(scope="module")
def toy():
    """The toy without the KL term."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theory_gate, "SETTINGS", [(0.8, 0.0)])
        return theory_gate.toy(seeds=1, steps=150)


def all_open(*_):
    return torch.ones(100)


@pytest.fixture(scope="module")
def gates(runs, tmp_path_factory):
    """What theory_gate.py leaves of a run of NCL and one of BayesNCL; the toy is not trained."""
    root = tmp_path_factory.mktemp("gates")
    folder = root / "out"
    bayesncl = shutil.copytree(runs / "bayesncl", root / "bayesncl")
    config = bayesncl / "config.json"
    config.write_text(config.read_text().replace('"ipw"', '"cosine"'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theory_gate, "train_gate", all_open)
        run_program("theory_gate.py", runs / "ncl", bayesncl, "--out", folder)
    return folder


@pytest.fixture(scope="module")
def of_runs(gates):
    """The numbers of either run, by its method."""
    found = json.loads((gates / "results.json").read_text())["runs"]
    return {name.rpartition("/")[2]: numbers for name, numbers in found.items()}


@pytest.fixture
def views():
    return theory_gate.planted(256)


@pytest.mark.parametrize("rho", [0.8, 0.51, 0.49, 0.3])
def test_the_kl_term_opens_gates_above_one_half(rho):
    # Theorem 4.5 counts the first term alone, log(1/ρ).
    is_open = bayesncl.bernoulli_kl(torch.tensor([[0.99]]), rho)
    is_closed = bayesncl.bernoulli_kl(torch.tensor([[0.01]]), rho)
    assert (is_closed < is_open) == (rho < 0.5)


@pytest.mark.parametrize("k, gains", [(0, True), (99, False)], ids=["rare", "frequent"])
def test_the_gain_is_the_loss_without_a_feature(views, k, gains):
    z1, z2 = views
    kept = torch.arange(100) != k
    without = simclr.nt_xent(z1[:, kept], z2[:, kept], 0.2)
    expected = without - simclr.nt_xent(z1, z2, 0.2)
    assert theory_gate.gain(z1, z2, 0.2)[k].item() == pytest.approx(expected.item(), abs=1e-6)
    assert (expected > 0) == gains


def test_the_gain_may_keep_the_norms(views):
    z = F.normalize(torch.cat(views))
    losses = []
    for parts in (z, z[:, 1:]):
        logits = (parts @ parts.T / 0.2).fill_diagonal_(-torch.inf)
        losses.append(F.cross_entropy(logits, torch.arange(512).roll(256)))
    found = theory_gate.gain(*views, 0.2, norms_kept=True)[0]
    assert found.item() == pytest.approx((losses[1] - losses[0]).item(), abs=1e-6)


def test_planted_features_have_their_frequencies():
    z1, z2 = theory_gate.planted(4000)
    expected = 0.9 * torch.tensor(theory_gate.FREQUENCIES).repeat_interleave(10)
    both = 0.9 * expected  # a view loses one in ten
    assert ((z1 > 0).float().mean(0) - expected).abs().max() < 0.03
    assert (((z1 > 0) & (z2 > 0)).float().mean(0) - both).abs().max() < 0.03
    assert z1[z1 > 0].mean().item() == pytest.approx(1, abs=0.01)


def test_the_gain_follows_the_law_with_norms_kept(toy):
    assert np.corrcoef(toy["norms kept"], theory_gate.LAW)[0, 1] > 0.99


def test_gamma_is_the_nearest_law(toy):
    expected = np.linalg.lstsq(np.array(theory_gate.LAW)[:, None], toy["norms kept"], rcond=None)
    assert toy["gamma"] == pytest.approx(expected[0][0])


def test_frequent_features_lose_with_cosines(toy):
    assert toy["gain"][0] > 0 > toy["gain"][-1]


def test_the_loss_alone_closes_frequent_gates(toy):
    kept = toy["kept"]["ρ 0.8, λ 0"]
    assert max(kept[6:]) < 0.2
    assert kept[0] > 0.5


@pytest.mark.parametrize("rho, least, most", [(0.99, 0.9, 1), (0.01, 0, 0.1)], ids=str)
def test_a_strong_prior_has_its_way(rho, least, most):
    kept = theory_gate.train_gate(rho, 1.0, seed=0, steps=60)
    assert least <= kept.mean() <= most


def test_a_gate_is_trained_with_bayesncls_loss():
    noted = []

    def backward(loss):
        noted.append(loss.item())
        raise StopIteration

    with mock.patch.object(torch.Tensor, "backward", backward), pytest.raises(StopIteration):
        theory_gate.train_gate(0.3, 0.5, seed=0, steps=1)
    torch.manual_seed(0)
    theory_gate.planted(1)
    gating = bayesncl.gating_head(100, 64, 100)
    z1, z2 = theory_gate.planted(256)
    m1, alpha1 = bayesncl.gate(gating(z1))
    m2, alpha2 = bayesncl.gate(gating(z2))
    kl = bayesncl.bernoulli_kl(torch.cat([alpha1, alpha2]), 0.3)
    expected = simclr.nt_xent(z1 * m1, z2 * m2, 0.2) + 0.5 * kl
    assert noted == pytest.approx([expected.item()], rel=1e-4)


def active_mean(gradient, z):
    """256 times the mean of each column over the images that it is active on."""
    return torch.stack([256 * gradient[z[:, k] > 0, k].mean() for k in range(100)])


def test_pull_and_push_add_up_to_the_gradient(views):
    whole = torch.func.grad(simclr.nt_xent)(*views, 0.2)
    found = theory_gate.pull_and_push(*views, 0.2)
    assert torch.allclose(found.sum(0), active_mean(whole, views[0]), atol=1e-5)


def minus_cosine(z1, z2):
    return -F.cosine_similarity(z1, z2).mean() / 0.2


def test_the_pull_is_that_of_positives(views):
    pull = torch.func.grad(minus_cosine)(*views)
    found = theory_gate.pull_and_push(*views, 0.2)
    assert torch.allclose(found[0], active_mean(pull, views[0]), atol=1e-5)


def test_a_dimension_without_images_has_no_gradient(views):
    z1, z2 = views
    z1[:, 3] = 0
    assert (theory_gate.pull_and_push(z1, z2, 0.2)[:, 3] == 0).all()


def test_a_summary_counts_and_takes_medians():
    columns = {
        "pi": [0.5, 0.4, 0.3, 0.02, 0.9],
        "gated": [0.5, 0.3, 0.2, 0.01, 0.04],
        "open": [1.0, 0.75, 0.66, 0.5, 0.04],
        "pull": [-2.0, -2.0, -3.0, -1.0, -1.0],
        "push": [1.0, 2.0, 1.0, 1.0, 2.0],
        "mean": [-1.0, 0.0, -2.0, 0.0, 1.0],
        "std": [2.0, 1.0, 4.0, 1.0, 1.0],
    }
    found = theory_gate.summary({name: torch.tensor(values) for name, values in columns.items()})
    medians = found["frequent_mean_over_std"], found["frequent_left"], found["closed_pi"]
    assert medians == pytest.approx((0.5, 1 / 3, 0.9))
    counts = [found[f"{name}_dims"] for name in ("frequent", "rare", "closed", "open")]
    assert counts == [3, 2, 1, 4]


def test_only_gates_are_closed(of_runs):
    assert of_runs["ncl"]["closed_dims"] == 0 < of_runs["bayesncl"]["closed_dims"]


@pytest.mark.parametrize("method", ["ncl", "bayesncl"])
def test_gradients_of_a_run_are_plausible(of_runs, method):
    numbers = of_runs[method]
    assert numbers["frequent_dims"] > 20
    assert 0 < numbers["frequent_left"] < 1
    assert 0 < numbers["frequent_mean_over_std"] < 3


def test_gradients_are_of_a_training_step(runs, monkeypatch):
    run, model = load_run(runs / "ncl")
    lengths = []

    def pull_and_push(z1, z2, temperature):
        lengths.extend(z1.norm(dim=1).tolist())
        assert model.training
        return torch.ones(2, z1.shape[1])

    monkeypatch.setattr(theory_gate, "pull_and_push", pull_and_push)
    monkeypatch.setattr(theory_gate, "gain", all_open)
    two_views = mock.Mock(wraps=theory_gate.common.two_views)
    monkeypatch.setattr(theory_gate.common, "two_views", two_views)
    theory_gate.conflict(run, model, None, batches=2)
    assert [length for length in lengths if length > 0] == pytest.approx([1] * len(lengths))
    of_training = {name: getattr(run, name) for name in ("min_scale", "jitter", "gray", "blur")}
    assert two_views.call_args.kwargs == of_training | {"crop": run.crop}


def test_mean_and_deviation_are_over_batches(runs, monkeypatch):
    pulls = iter([1.0, 2.0, 6.0])

    def known(*_):
        return torch.stack([torch.full((256,), next(pulls)), torch.ones(256)])

    monkeypatch.setattr(theory_gate, "pull_and_push", known)
    monkeypatch.setattr(theory_gate, "gain", all_open)
    run, model = load_run(runs / "ncl")
    found = theory_gate.conflict(run, model, None, batches=3)
    numbers = [found[name][0].item() for name in ("pull", "push", "mean", "std")]
    assert numbers == pytest.approx([3, 1, 4, 7**0.5])


def test_gates_are_drawn(gates):
    assert (gates / "gate.png").stat().st_size > 30_000


def test_batches_go_on_with_the_next_epochs():
    settings = dict(dataset="shapes", data_root="data", limit=10, batch_size=4)
    args = argparse.Namespace(**settings, seed=0, device="cpu")
    data = theory_gate.common.Data(args)
    found = itertools.islice(theory_gate.endless(data, args), 4)
    expected = [*data.batches(args, 0), *data.batches(args, 1)]
    for batch, (images, _) in zip(found, expected, strict=True):
        assert torch.equal(batch, images)


def test_embeddings_weighted_by_rarity_are_refused(runs):
    assert "with NT-Xent and cosines" in refusal("theory_gate.py", runs / "bayesncl")


def test_runs_of_other_methods_are_refused(runs):
    assert "give runs of ncl.py and bayesncl.py" in refusal("theory_gate.py", runs / "simclr")
