"""Tests of sparse_coding.py."""

import contextlib
import io
import itertools
import json
import math
import re
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import common
import sparse_coding as sc
from conftest import ROOT, refusal, run_program

# A setting of a moment; all else is as in the paper.
MOMENT = dict(n=64, batch_size=16, p=12, d=6, m=8, epochs=2, lr=0.1, seeds=1)
METHODS_OF_LANDSCAPE = ["simclr", "simsiam", "noncl"]


def small_setting(**factors):
    return sc.setting(MOMENT | factors, {}, paper=True)


def watched(s):
    """Train a setting; → the model at the end, and the views (a1, a2) of every step."""
    with mock.patch.object(sc, "step", wraps=sc.step) as step:
        sc.train(s)
    calls = [call.args for call in step.call_args_list]  # (s, data, model, a1, a2, number) each
    return calls[-1][2], [(a1, a2) for _, _, _, a1, a2, _ in calls]


def last_loss(**factors):
    _, curves = sc.train(small_setting(**factors))
    return curves["loss"][-1]


# ------------------------------------------------------------------------------------- the samples
LATENTS = {  # d, Pr(z_i ≠ 0), entries −1 and +1 of the authors' latents
    "d=10, .1": (10, 0.1, 1, 1),
    "d=10, .2": (10, 0.2, 1, 1),
    "d=10, .3": (10, 0.3, 2, 1),
    "d=100, .14": (100, 0.14, 8, 7),  # 100 · .14 is 14.000000000000002, and ⌈it⌉ 15
}


@pytest.fixture(params=LATENTS.values(), ids=LATENTS)
def drawn(request):
    """d, Pr, entries −1 and +1; and a function from a kind to 20,000 samples of it."""
    d, pr, minus, plus = request.param

    def draw(kind):
        return sc.latents(kind, 20_000, d, pr, sc.generator(0, 0))

    return d, pr, minus, plus, draw


def test_authors_latents_have_fixed_counts(drawn):
    d, _, minus, plus, draw = drawn
    z = draw("authors")
    for value, count in {-1: minus, 1: plus, 0: d - minus - plus}.items():
        assert ((z == value).sum(0) == count).all(), value


def test_exact_latents_have_random_signs(drawn):
    _, _, minus, plus, draw = drawn
    z = draw("exact")
    assert (z.abs().sum(0) == minus + plus).all()
    assert z.mean().abs() < 0.01


def test_one_hot_latents_have_one_entry(drawn):
    z = drawn[-1]("onehot")
    assert (z.abs().sum(0) == 1).all()
    assert z.mean().abs() < 0.01


def test_positive_one_hot_latents_are_one_hot(drawn):
    z = drawn[-1]("onehot-plus")
    assert (z.sum(0) == 1).all()
    assert z.min() == 0


@pytest.mark.parametrize("kind, sign", [("iid", 0), ("zero-one", 1)])
def test_independent_latents_have_their_probability(drawn, kind, sign):
    d, pr, _, _, draw = drawn
    z = draw(kind)
    share = pr / (1 - (1 - pr) ** d)  # given that not all entries are 0
    assert z.abs().amax(0).min() == 1
    assert z.abs().mean().item() == pytest.approx(share, rel=0.03)
    assert z.mean().item() == pytest.approx(sign * share, abs=0.005)


def test_every_feature_is_equally_frequent(drawn):
    d, _, minus, plus, draw = drawn
    share = (draw("authors") != 0).float().mean(1)  # (d,)
    expected = (minus + plus) / d
    assert (share - expected).abs().max() < 5 * math.sqrt(expected / 20_000)


@pytest.mark.parametrize("d", [10, 100])
def test_samples_are_noisy_sums_of_orthonormal_features(d):
    M, z, x = sc.sample(small_setting(n=4000, p=100, d=d), 3, 0.1, 0.15)
    assert torch.allclose(M.T @ M, torch.eye(d), atol=1e-5)
    assert abs((x - M @ z).std() - 0.15) < 1e-3


# --------------------------------------------------------------------------------------- the views
KEEPS = [0.2, 0.5, 1.0]


@pytest.fixture(scope="module", params=itertools.product(METHODS_OF_LANDSCAPE, KEEPS), ids=str)
def one_epoch(request):
    """A setting, and the views (R, p, n) of an epoch of it, all batches side by side."""
    method, keep = request.param
    s = small_setting(method=method, n=160, batch_size=64, epochs=1, seeds=2, keep=keep)
    _, batches = watched(s)
    a1 = torch.cat([a1 for a1, _ in batches], 2)
    a2 = torch.cat([a2 for _, a2 in batches], 2)
    return s, a1, a2, [a1.shape[2] for a1, _ in batches]


def places_of(s, seed, a1, a2):
    """Which samples (n) the views (p, B) can be of, (B, n), for the views with a coordinate."""
    _, _, x = sc.sample(s, seed, 0.1, s.noise[0])
    shown = torch.where(a1 != 0, a1, a2).T  # (B, p)
    seen = ((a1 != 0) | (a2 != 0)).T
    matches = (shown[:, None] == x.T) | ~seen[:, None]  # (B, n, p)
    return matches.all(2)[seen.any(1)]


def test_only_simclr_drops_the_last_batch(one_epoch):
    s, *_, widths = one_epoch
    assert widths == ([64, 64] if s.method == "simclr" else [64, 64, 32])
    assert s.steps == (1.5 if s.method == "noncl" else len(widths))  # for each network


def test_masks_keep_their_share_independently(one_epoch):
    s, a1, a2, _ = one_epoch
    keep = s.keep[0]
    first, second = a1 != 0, a2 != 0
    for mask, expected in (first, keep), (second, keep), (first & second, keep**2):
        bound = 4 * math.sqrt(expected * (1 - expected) / a1.numel())
        assert abs(mask.float().mean() - expected) <= bound


def test_an_epoch_shows_each_sample_once(one_epoch):
    s, a1, a2, widths = one_epoch
    for i in range(2):
        places = places_of(s, i + 1, a1[i], a2[i])
        assert (places.sum(1) == 1).all()
        assert (places.sum(0) <= 1).all()
        assert len(places) > 0.9 * sum(widths)


def test_seeds_have_their_own_order(one_epoch):
    s, a1, a2, _ = one_epoch
    first, second = (places_of(s, i + 1, a1[i], a2[i]).int().argmax(1) for i in range(2))
    assert not torch.equal(first, second)


def test_epochs_have_their_own_order_and_masks():
    _, batches = watched(small_setting(n=16, batch_size=16))
    (before, _), (after, _) = batches
    assert not torch.equal(before.sum(1).sort().values, after.sum(1).sort().values)
    assert not torch.equal(before != 0, after != 0)


@pytest.mark.parametrize("keep", [0.2, 0.5])
def test_dependent_masks_share_a_sample_out(keep):
    """2 D x and 2 (I − D) x, Eq. (2)."""
    s = small_setting(masks="dependent", keep=keep)
    _, batches = watched(s)
    a1 = torch.cat([a1 for a1, _ in batches], 2)
    a2 = torch.cat([a2 for _, a2 in batches], 2)
    assert not ((a1 != 0) & (a2 != 0)).any()
    assert ((a1 != 0).float().mean() - keep).abs() < 0.1
    _, _, x = sc.sample(s, 1, 0.1, s.noise[0])
    first_epoch = (a1 + a2)[0, :, :64]
    assert torch.allclose(first_epoch.sum(1), 2 * x.sum(1), atol=1e-4)


# ------------------------------------------------------------------------------ losses and metrics
def contrastive_loop(z1, z2, temperature):
    """Eq. (9) as written, of views (N, K)."""
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    loss = 0
    for i in range(len(z)):
        similarities = torch.exp(z @ z[i] / temperature)
        positive = similarities[i - len(z1)]
        others = similarities.sum() - similarities[i]
        loss = loss - torch.log(positive / others)
    return loss / len(z)


@pytest.fixture
def five_replicas():
    """h (5, 5, 1024) and τ (5,): a CPU has two replicas at a time, so that one is left over."""
    return torch.randn(5, 5, 1024, dtype=torch.double), torch.linspace(0.1, 1, 5)


def test_nt_xent_is_the_loop(five_replicas):
    h, tau = five_replicas
    ours = sc.NTXent.apply(F.normalize(h, dim=1), tau.view(5, 1, 1))
    for i in range(5):
        z1, z2 = h[i].T.chunk(2)  # column i + B is the other view of column i
        assert ours[i].item() == pytest.approx(contrastive_loop(z1, z2, tau[i]).item(), abs=1e-12)


def test_nt_xents_gradient_is_autograds(five_replicas):
    h, tau = five_replicas
    h.requires_grad_()
    weights = torch.randn(5)
    ours = sc.NTXent.apply(F.normalize(h, dim=1), tau.view(5, 1, 1))
    loops = [contrastive_loop(*h[i].T.chunk(2), tau[i]) for i in range(5)]
    (mine,) = torch.autograd.grad((weights * ours).sum(), h)
    (autograds,) = torch.autograd.grad((weights * torch.stack(loops)).sum(), h)
    assert torch.allclose(mine, autograds, atol=1e-12)


def test_nt_xent_does_not_overflow():
    z = F.normalize(torch.ones(1, 4, 6), dim=1)  # all alike, at a τ where exp(1/τ) is infinite
    loss = sc.NTXent.apply(z, torch.full((1, 1, 1), 0.005))
    assert loss.item() == pytest.approx(math.log(5))


def test_cosine_is_a_mean_over_the_batch():
    u, v = torch.randn(2, 3, 4, 5)
    expected = F.cosine_similarity(u, v, dim=1).mean(1)
    assert torch.allclose(sc.cosine(u, v), expected, atol=1e-6)


@pytest.fixture
def neurons_and_features():
    """W (2, 8, 12), M (2, 12, 4), and |cos| (2, 8, 4) of each neuron and feature."""
    W, M = torch.randn(2, 8, 12), torch.randn(2, 12, 4)
    cosines = F.cosine_similarity(W[:, :, None], M.mT[:, None], dim=3).abs()
    return W, M, cosines


def test_max_cosine_is_the_best_neurons(neurons_and_features):
    W, M, cosines = neurons_and_features
    found = sc.max_cosine(W, M)
    for r, j in itertools.product(range(2), range(4)):
        best = max(cosines[r, :, j].tolist())
        assert found[r, j].item() == pytest.approx(best, abs=1e-6)


def test_support_separation_is_the_best_neurons_margin(neurons_and_features):
    W, M, cosines = neurons_and_features
    found = sc.support_separation(W, M)
    for r, j in itertools.product(range(2), range(4)):
        i = int(cosines[r, :, j].argmax())
        of_neuron = cosines[r, i].tolist()
        own = of_neuron.pop(j)
        assert found[r, j].item() == pytest.approx(own - max(of_neuron), abs=1e-6)


def test_spread_is_one_for_random_embeddings():
    h = torch.randn(2, 50, 4000)
    h[1] = h[1, :, :1]  # all alike
    assert sc.spread(h).tolist() == pytest.approx([1, 0], abs=0.02)


def test_measured_numbers_are_of_their_definitions():
    s = small_setting(method="noncl", seeds=2, layers=2)
    data = sc.Data(s, "cpu")
    model = sc.Model(s, data)
    loss = torch.tensor([1.0, 2.0])
    found = dict(zip(sc.MEASURED, sc.measure(model, data, loss)))
    encoder = model.networks[0][0]
    first, second = encoder.layers
    best = sc.max_cosine(second @ first, data.M).sort().values  # (2, 6)
    assert torch.equal(found["min"], best[:, 0])
    assert torch.allclose(found["median"], (best[:, 2] + best[:, 3]) / 2)
    assert torch.equal(found["max"], best[:, -1])
    assert torch.equal(found["loss"], loss)
    separation = sc.support_separation(second @ first, data.M).mean(1)
    assert torch.allclose(found["separation"], separation)
    assert torch.allclose(found["spread"], sc.spread(encoder(data.x)))


# --------------------------------------------------------------------------------------- the start
def first_weights(**factors):
    s = small_setting(**factors)
    data = sc.Data(s, "cpu")
    model = sc.Model(s, data)
    return data, [chain[0].layers[0].detach() for chain in model.networks]


def test_cold_weights_have_the_texts_variance():
    _, (W,) = first_weights(p=100, d=25, m=400)
    assert W.std().item() * 50 == pytest.approx(1, abs=0.02)  # N(0, 1/(pd))


def test_two_networks_start_apart():
    _, (online, target) = first_weights(method="noncl")
    assert not torch.allclose(online, target, atol=0.1)


def test_warm_rows_are_noisy_columns_of_m():
    data, (W,) = first_weights(p=100, d=6, m=200, warm=1.25, warm_columns="covered")
    nearest = (W[0] @ data.M[0]).argmax(1)  # (m,)
    noise = W[0] - data.M[0].T[nearest]
    assert noise.std().item() == pytest.approx(100 ** (-1.25 / 2), rel=0.02)


@pytest.mark.parametrize("kind, alike", {"aligned": True, "random": False}.items())
def test_aligned_networks_start_at_the_same_columns(kind, alike):
    s = small_setting(method="noncl", warm=1.0, warm_columns=kind)
    columns = [sc.start_columns(s, 1, network) for network in (0, 1)]
    assert torch.equal(*columns) == alike


def test_as_many_neurons_as_features_start_in_order():
    assert sc.warm_columns("random", 6, 6, sc.generator(1, 3)).tolist() == [0, 1, 2, 3, 4, 5]


def test_covered_columns_leave_no_feature_out():
    for seed in range(20):
        columns = sc.warm_columns("covered", 7, 6, sc.generator(seed, 3))
        assert set(columns.tolist()) == set(range(6))


def test_a_replica_knows_its_uncovered_features():
    s = small_setting(method="noncl", warm=1.0, m=14, seeds=20)
    found = set()
    for replica in sc.Data(s, "cpu").replicas:
        given = [sc.start_columns(s, replica["seed"], network).unique() for network in (0, 1)]
        all_there = len(given[0]) == len(given[1]) == 6
        assert replica["uncovered"] == ("none" if all_there else "feature")
        found.add(replica["uncovered"])
    assert found == {"none", "feature"}


def test_a_cold_start_has_no_uncovered_features():
    assert sc.Data(small_setting(), "cpu").replicas[0]["uncovered"] == ""


FACTORS_OF_DATA = {
    "warm": 2.0,
    "warm_columns": "aligned",
    "sparsity": 0.5,
    "latents": "authors",
    "noise": 1.0,
}


@pytest.mark.parametrize("name, value", FACTORS_OF_DATA.items(), ids=FACTORS_OF_DATA)
def test_a_factor_of_start_or_data_counts(name, value):
    base = dict(method="noncl", warm=1.0, latents="iid", sparsity=0.2, d=5)
    changed = base | {name: value}
    assert abs(last_loss(**changed) - last_loss(**base)).max() > 1e-6


def test_covered_columns_count():
    base = dict(method="noncl", warm=1.0, latents="iid", sparsity=0.2, d=5)
    assert abs(last_loss(**base, warm_columns="covered") - last_loss(**base)).max() > 1e-6


# ------------------------------------------------------------------------------------ the training
PLAIN = {
    "simclr": dict(method="simclr"),
    "simclr, authors' layers": dict(
        method="simclr", head="linear", batch_norm="affine", activation="authors", bias=0.2
    ),
    "simclr, τ": dict(method="simclr", temperature=0.5, batch_norm="no"),
    "noncl": dict(method="noncl"),
    "noncl, 2 layers": dict(method="noncl", layers=2, train_bias="no", bias=0.2),
    "noncl, products": dict(
        method="noncl", similarity="product", batch_norm="no", bias=0.1, train_bias="no"
    ),
    "noncl, rows": dict(method="noncl", head="linear", normalise="rows"),
    "noncl, columns": dict(method="noncl", normalise="columns", warm=1.0),
    "simsiam, authors' layers": dict(
        method="simsiam", head="mlp", batch_norm="affine", activation="authors"
    ),
    "simsiam, rows": dict(method="simsiam", head="mlp", normalise="rows"),
    "simsiam, products": dict(
        method="simsiam", similarity="product", head="linear", activation="relu", bias=0.1
    ),
}


class PlainModel:
    """One replica, written out in torch's own functions; h is (K, B)."""

    def __init__(self, s):
        self.s = s
        model = sc.Model(s, sc.Data(s, "cpu")).requires_grad_()
        self.weights = list(model.parameters())
        self.head = list(model.head)
        self.chains = [list(chain) for chain in model.networks]

    def encode(self, encoder, h):
        b = encoder.b[0]
        for W in encoder.layers:
            h = W[0] @ h
        if self.s.batch_norm != "no":
            scale_and_shift = [v.flatten() for v in encoder.affine]
            h = F.batch_norm(h.T, None, None, *scale_and_shift, training=True).T
        if self.s.activation == "srelu":
            return (h - b).relu() - (-h - b).relu()
        if self.s.activation == "relu":
            return (h - b).relu()
        return h.relu() - (-h - 2 * b).relu()

    def embed(self, a, network=0):
        for encoder in self.chains[network]:
            a = self.encode(encoder, a)
        return a

    def predict(self, h):
        if self.s.head == "none":
            return h
        weight, bias = self.head
        return weight[0] @ h + bias[0]

    def distance(self, u, v):
        """Eq. (4); of products Eq. (6) to (8)."""
        v = v.detach()
        if self.s.similarity == "cosine":
            u, v = F.normalize(u, dim=0), F.normalize(v, dim=0)
        return 2 - 2 * (u * v).sum(0).mean()

    def loss(self, a1, a2, turn):
        if self.s.method == "simclr":
            z1, z2 = self.predict(self.embed(a1)), self.predict(self.embed(a2))
            return contrastive_loop(z1.T, z2.T, self.s.temperature[0])
        if self.s.method == "simsiam":
            to_second = self.distance(self.predict(self.embed(a1)), self.embed(a2))
            to_first = self.distance(self.predict(self.embed(a2)), self.embed(a1))
            return (to_second + to_first) / 4
        return self.distance(self.predict(self.embed(a1, turn)), self.embed(a2, 1 - turn))

    def step(self, a1, a2, turn):
        free = list(self.head)
        for encoder in self.chains[turn]:
            for p in encoder.parameters():
                if p is not encoder.b or self.s.train_bias == "yes":
                    free.append(p)
        gradients = torch.autograd.grad(self.loss(a1, a2, turn), free)
        for p, gradient in zip(free, gradients):
            p.data -= 0.1 * gradient
        if self.s.activation == "srelu":
            for encoder in self.chains[turn]:
                encoder.b.data.clamp_(min=0)
        if self.s.normalise != "none":
            dim = 2 if self.s.normalise == "rows" else 1
            for W in self.chains[turn][0].layers:  # not SimSiam's projector
                W.data = F.normalize(W.data, dim=dim)


@pytest.mark.parametrize("factors", PLAIN.values(), ids=PLAIN)
def test_training_is_the_plain_algorithm(factors):
    s = small_setting(n=40, **factors)
    trained, views = watched(s)
    plain = PlainModel(s)
    for i, (a1, a2) in enumerate(views):
        turn = i % 2 if s.method == "noncl" else 0  # over the end of an epoch too
        plain.step(a1[0], a2[0], turn)
    for ours, theirs in zip(trained.parameters(), plain.weights, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("factors", PLAIN.values(), ids=PLAIN)
def test_training_moves_every_weight(factors):
    s = small_setting(n=40, **factors)
    trained, _ = watched(s)
    start = sc.Model(s, sc.Data(s, "cpu"))
    for ours, before in zip(trained.parameters(), start.parameters(), strict=True):
        if ours.shape[2] > 1:  # thresholds may stay at 0
            assert not torch.allclose(ours, before, atol=1e-3)


def test_the_loss_of_an_epoch_is_its_mean():
    s = small_setting(method="simclr", epochs=1)
    with mock.patch.object(sc, "step", side_effect=[torch.tensor([float(i)]) for i in range(4)]):
        _, curves = sc.train(s)
    assert np.isnan(curves["loss"][0, 0])
    assert curves["loss"][1, 0] == 1.5


ALONE = {"simclr": "linear", "simsiam": "mlp", "noncl": "linear"}


@pytest.mark.parametrize("method, head", ALONE.items(), ids=ALONE)
def test_a_replica_trains_as_if_alone(method, head):
    factors = dict(method=method, head=head, batch_norm="affine")
    swept = dict(sparsity=[0.1, 0.3], lr=[0.1, 0.3], keep=[0.5, 0.8])
    replicas, together = sc.train(small_setting(**factors, **swept, seeds=3))
    assert together["min"].shape == (3, 24)
    assert together["epoch"].tolist() == [0, 1, 2]

    wanted = dict(sparsity=0.3, lr=0.3, keep=0.8)
    of_wanted = [replica == replica | wanted | {"seed": 2} for replica in replicas]
    i = of_wanted.index(True)
    _, alone = sc.train(small_setting(**factors, **wanted, seeds=2))
    for name in sc.MEASURED:
        close = np.allclose(together[name][:, i], alone[name][:, 1], atol=1e-5, equal_nan=True)
        assert close, name


def test_epochs_are_measured_evenly_and_by_ratio():
    s = small_setting(epochs=1000)
    assert sc.marks(s, 4) == {1, 334, 667, 1000} | {10, 100} | {500}  # 500: lr × steps 200


def test_the_papers_budget_is_measured():
    _, curves = sc.train(small_setting(lr=5.0, epochs=12), records=2)
    assert 10 in curves["epoch"]  # where lr × steps is 200


def test_a_training_says_how_far_it_is(capsys):
    sc.train(small_setting(), what="fig9: a test")
    assert capsys.readouterr().err == "fig9: a test: 0/2\n"


def test_a_lost_loss_names_its_replica():
    unbounded = dict(method="noncl", similarity="product", batch_norm="no")
    with pytest.raises(common.BadInput, match="not finite in epoch 1 for {'seed': 1, .*'lr': 1e"):
        sc.train(small_setting(**unbounded, lr=[0.1, 1e30]))


def test_a_lost_loss_ends_the_program(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        run_program("sparse_coding.py --experiment fig1 --epochs 2 --lr 1e30 --out run")
    assert stop.value.code == 2
    assert "the loss is not finite in epoch 1" in capsys.readouterr().err
    assert not (tmp_path / "run/results.json").exists()


# ------------------------------------------------------------------- only contrast finds features
def fast_minimum(**factors):
    """Mean of the smallest max-cosine after training with the fast setting."""
    _, curves = sc.train(sc.setting(factors, {}, paper=False))
    return curves["min"][-1].mean()


def test_simclr_finds_the_features():
    assert fast_minimum(**sc.SIMCLR) >= 0.85


def test_two_networks_do_not_find_them():
    assert fast_minimum(**sc.NONCL) <= 0.60


WARM_ENDS = {"aligned": (0.9, 1), "random": (0, 0.72)}


@pytest.mark.parametrize("kind, ends", WARM_ENDS.items(), ids=WARM_ENDS)
def test_a_warm_start_lasts_where_networks_are_aligned(kind, ends):
    factors = dict(sc.NONCL, warm=1.0, epochs=78, seeds=5)  # lr × steps: 156
    low, high = ends
    assert low <= fast_minimum(**factors, warm_columns=kind) <= high


# ------------------------------------------------------------------------------------ the settings
OF_THE_PAPER = ["table1", *(f"fig{i}" for i in range(1, 8))]


def programs_of_paper():
    """Experiment and factors, by a name, of all that the paper has."""
    programs = {}
    for experiment in OF_THE_PAPER:
        for title, factors, _ in sc.EXPERIMENTS[experiment]:
            programs[f"{experiment}: {title}"] = (experiment, factors)
    return programs


@pytest.fixture(params=programs_of_paper().values(), ids=programs_of_paper())
def program_of_paper(request):
    """The name of one of the paper's experiments, and the exact setting of one of its programs."""
    experiment, factors = request.param
    return experiment, sc.setting(factors, {}, paper=True)


def test_a_program_has_the_papers_training(program_of_paper):
    _, s = program_of_paper
    assert (s.n, s.batch_size, s.lr, s.epochs, s.seeds) == (1000, 512, [0.025], 8000, 5)
    assert (s.masks, s.keep, s.similarity) == ("independent", [0.5], "cosine")
    assert (s.temperature, s.bias) == ([0.2], 0)


def test_a_program_has_the_papers_data(program_of_paper):
    experiment, s = program_of_paper
    assert (s.p, s.d, s.m) == ((20, 20, 20) if experiment == "fig7" else (50, 10, 50))
    noise = 0.1517 if s.d == 10 else 0.0865
    assert s.noise[0] == pytest.approx(noise, abs=1e-4)
    several = experiment in ("table1", "fig2", "fig3")
    assert s.sparsity == ([0.1, 0.3] if several else [0.1])


def test_only_figure_1_is_one_hot(program_of_paper):
    experiment, s = program_of_paper
    of_figure_1 = experiment == "fig1"
    assert (s.batch_norm == "no") == of_figure_1
    assert (s.latents == "onehot-plus") == of_figure_1


def test_a_program_has_the_papers_budget(program_of_paper):
    _, s = program_of_paper
    budget = 400 if s.method == "simsiam" else 200
    assert s.lr[0] * s.epochs * s.steps == sc.BUDGET[s.method] == budget


def exact(experiment):
    """The exact settings of an experiment's programs."""
    return [sc.setting(factors, {}, paper=True) for _, factors, _ in sc.EXPERIMENTS[experiment]]


def test_table_1_has_both_kinds_of_layers():
    kinds = [(s.method, s.head, s.activation, s.batch_norm) for s in exact("table1")]
    assert kinds == [
        ("simclr", "linear", "srelu", "yes"),
        ("simclr", "linear", "authors", "affine"),
        ("simsiam", "linear", "srelu", "yes"),
        ("simsiam", "mlp", "authors", "affine"),
    ]


FIGURES = {  # method, head, layers, warm
    "fig1": [("simclr", "none", 1, [None]), ("noncl", "none", 1, [None])],
    "fig2": [("simclr", "none", 1, [None]), ("noncl", "none", 1, [None])],
    "fig3": [("noncl", "none", 2, [None])],
    "fig4": [("noncl", "none", 1, [1])],
    "fig5": [("noncl", "linear", 1, [1])],
    "fig6": [("noncl", "linear", 1, [None])],
    "fig7": [("noncl", "none", 1, [1, 1.25, 1.5, 2])] * 2,
}


@pytest.mark.parametrize("figure, expected", FIGURES.items(), ids=FIGURES)
def test_figures_have_their_networks(figure, expected):
    assert [(s.method, s.head, s.layers, s.warm) for s in exact(figure)] == expected


def test_figure_7_normalises_rows_then_columns():
    assert [s.normalise for s in exact("fig7")] == ["rows", "columns"]


def test_the_fast_setting_spends_the_papers_budget():
    of_budget = {}
    for method in METHODS_OF_LANDSCAPE:
        s = sc.setting(dict(method=method), {}, paper=False)
        of_budget[method] = s.lr[0] * s.epochs * s.steps
    assert of_budget == dict(simclr=350, simsiam=400, noncl=200)


def test_an_experiments_own_pace_is_the_fast_settings():
    assert sc.setting(sc.NONCL | sc.FAST_1, {}, paper=False).lr == [0.05]
    assert sc.setting(sc.NONCL | sc.FAST_1, {}, paper=True).lr == [0.025]


def test_flags_go_before_the_experiment():
    s = sc.setting(dict(p=30, lr=1.0, seeds=60), dict(p=40, lr=[2.0], seeds=2), paper=False)
    assert (s.p, s.lr) == (40, [2.0])
    assert s.seeds == 60  # it is part of what the experiment asks


def test_budget_goes_to_4000():
    for _, factors, _ in sc.EXPERIMENTS["budget"]:
        s = sc.setting(factors, {}, paper=False)
        assert s.lr[0] * s.epochs * s.steps == pytest.approx(4000, rel=0.002)


def test_help_names_the_papers_values():
    text = " ".join(sc.parser().format_help().split())
    for name, value in sc.PAPER.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            assert re.search(rf"{flag} [^()]+(\([^()]*\)[^()]*)*\(--paper: {value}\)", text), name


def test_every_factor_has_a_flag():
    flags = {action.dest for action in sc.parser()._actions}
    assert {sc.DEST.get(name, name) for name in sc.PAPER} <= flags


def test_swept_factors_take_several_values():
    several = {action.dest for action in sc.parser()._actions if action.nargs == "+"}
    assert several == {*sc.SWEPT, "experiment"}


CLASHES = {
    "d": (dict(d=13), "--p is 12"),
    "batch size": (dict(batch_size=65), "--batch-size 65 is more than --n 64"),
    "Pr": (dict(sparsity=[0.1, 1.0], d=1), "Pr 1.0 asks for 2 active features of --d 1"),
    "columns": (dict(warm_columns="aligned"), "needs a warm start; give --warm too"),
    "cover": (dict(warm=[1.0], warm_columns="covered", m=5), "--m 5 neurons cannot cover --d 6"),
    "mlp": (dict(method="noncl", head="mlp"), "--head mlp is SimSiam's"),
    "product": (dict(similarity="product"), "--method simclr has cosines"),
    "authors": (dict(activation="authors", batch_norm="no"), "is srelu with --batch-norm no"),
}


@pytest.mark.parametrize("given, message", CLASHES.values(), ids=CLASHES)
def test_factors_that_clash_are_refused(given, message):
    with pytest.raises(common.BadInput, match=re.escape(message)):
        sc.setting(MOMENT, given, paper=True)


def test_factors_at_their_limits_are_taken():
    given = dict(d=12, batch_size=64, warm=[1.0], warm_columns="covered", m=12)
    assert sc.setting(MOMENT, given, paper=True).batches == 1


# --------------------------------------------------------------------------------------- the table
VERDICTS = {  # claim, start, end
    (None, 0.3, 0.9): None,
    ("high", 0.3, 0.8): "agrees",
    ("high", 0.3, 0.79): "differs",
    ("low", 0.3, 0.65): "agrees",
    ("low", 0.3, 0.66): "differs",
    ("falls", 0.7, 0.69): "agrees",
    ("falls", 0.7, 0.7): "differs",
    (0.5, 0.3, 0.59): "agrees",
    (0.5, 0.3, 0.41): "agrees",
    (0.5, 0.3, 0.61): "differs",
}


@pytest.mark.parametrize("case, expected", VERDICTS.items(), ids=map(str, VERDICTS))
def test_a_verdict_is_of_its_claim(case, expected):
    assert sc.verdict(*case) == expected


def invented(s, minimum):
    """Replicas of a setting and curves, of which `min` is this (T, R)."""
    replicas = sc.Data(s, "cpu").replicas
    curves = {"epoch": np.arange(len(minimum), dtype=float)}
    for name in sc.MEASURED:
        curves[name] = np.array(minimum)
    return replicas, curves


def test_rows_are_means_over_seeds():
    s = small_setting(seeds=2)
    replicas, curves = invented(s, [[0.2, 0.4], [0.5, 0.6], [0.7, 0.9]])
    (row,), _ = sc.rows("fig2", "a", s, replicas, curves, {"min": "high"})
    numbers = row["start"], row["end_mean"], row["end_std"], row["lr_times_steps"]
    assert numbers == pytest.approx((0.3, 0.8, 0.02**0.5, 0.1 * 2 * 4))
    assert (row["experiment"], row["setting"], row["statistic"]) == ("fig2", "a", "min")
    assert (row["paper"], row["verdict"], row["seeds"]) == ("high", "agrees", 2)


def test_one_seed_has_no_deviation():
    s = small_setting()
    (row,), _ = sc.rows("fig2", "a", s, *invented(s, [[0.2], [0.5]]), {"min": None})
    assert (row["end_std"], row["verdict"]) == (None, None)


def test_swept_factors_split_the_rows():
    s = small_setting(sparsity=[0.1, 0.3], lr=[0.1, 0.2], seeds=2)
    minimum = [[0.0] * 8, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]]  # seed 1, then seed 2
    claims = {"min": {0.1: 0.3, 0.3: 0.9}}
    found, kept = sc.rows("x", "a", s, *invented(s, minimum), claims)
    assert [row["setting"] for row in found] == [
        "a, sparsity 0.1, lr 0.1",
        "a, sparsity 0.1, lr 0.2",
        "a, sparsity 0.3, lr 0.1",
        "a, sparsity 0.3, lr 0.2",
    ]
    assert [row["end_mean"] for row in found] == pytest.approx([0.3, 0.4, 0.5, 0.6])
    assert [row["paper"] for row in found] == [0.3, 0.3, 0.9, 0.9]
    assert kept["x/a, sparsity 0.3, lr 0.2/lr_times_steps"].tolist() == [0, 0.2 * 4]


def test_warm_starts_split_the_claims():
    s = small_setting(warm=[1.0, 2.0])
    found, _ = sc.rows("x", "a", s, *invented(s, [[0.1, 0.1]]), {"min": {1.0: 0.85}})
    assert [row["paper"] for row in found] == [0.85, None]


def test_uncovered_features_split_the_rows():
    s = small_setting(method="noncl", warm=1.0, m=14, seeds=20, by=["uncovered"])
    replicas, curves = invented(s, [[0.0] * 20])
    found, _ = sc.rows("x", "a", s, replicas, curves, {"min": None})
    uncovered = sum(replica["uncovered"] == "feature" for replica in replicas)
    seeds = {row["setting"]: row["seeds"] for row in found}
    assert seeds == {"a, uncovered feature": uncovered, "a, uncovered none": 20 - uncovered}


def test_a_budget_has_two_ends():
    s = small_setting(lr=20.0)  # lr × steps: 80 an epoch
    curves = invented(s, [[0.0], [0.1], [0.2], [0.3], [0.4], [0.5]])
    found, _ = sc.rows("budget", "a", s, *curves, {"min": None})
    assert [row["lr_times_steps"] for row in found] == [160, 400]  # 160 and 240 are as near to 200
    assert [row["end_mean"] for row in found] == [0.2, 0.5]


CELLS = {
    None: "–",
    0.5: "0.500",
    9.9996: "10.000",
    10.0: "10",
    4004.0: "4004",
    5: "5",
    "low": "low",
}


@pytest.mark.parametrize("value, shown", CELLS.items(), ids=map(str, CELLS))
def test_a_cell_shows_its_value(value, shown):
    assert sc.cell(value) == shown


# ----------------------------------------------------------------------------------------- the run
FLAGS_OF_RUN = "--experiment table1 budget --epochs 24 --seeds 2 --n 300 --batch-size 128"


@pytest.fixture(scope="module")
def landscape_run(tmp_path_factory):
    """The folder of a finished run and what it printed."""
    folder = tmp_path_factory.mktemp("landscape") / "run"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run_program(f"sparse_coding.py {FLAGS_OF_RUN} --device cpu --out", folder)
    return folder, printed.getvalue()


@pytest.fixture(scope="module")
def table_rows(landscape_run):
    return json.loads((landscape_run[0] / "results.json").read_text())


def test_a_run_has_all_of_its_rows(table_rows):
    # 4 programs of 2 levels and 3 statistics; then 4 of 2 levels and 2 ends
    assert [row["experiment"] for row in table_rows] == ["table1"] * 24 + ["budget"] * 16


def test_a_run_prints_its_table(landscape_run, table_rows):
    _, printed = landscape_run
    for row in table_rows:
        assert row["setting"] in printed
    assert "low: at most 0.65" in printed
    assert "python look.py" in printed


def test_a_run_leaves_three_files(landscape_run):
    files = {path.name for path in landscape_run[0].iterdir()}
    assert files == {"config.json", "results.json", "curves.npz"}


def test_rows_agree_with_curves(landscape_run, table_rows):
    curves = np.load(landscape_run[0] / "curves.npz")
    median = curves["table1/SimSiam, sparsity 0.3/median"]  # (T, seeds)
    assert median.shape == (25, 2)
    for row in table_rows:
        if (row["setting"], row["statistic"]) == ("SimSiam, sparsity 0.3", "median"):
            break
    assert (row["paper"], row["seeds"], row["lr_times_steps"]) == (0.45, 2, 0.5 * 24 * 3)
    assert row["end_mean"] == pytest.approx(median[-1].mean(), abs=1e-6)


def test_a_complete_run_is_not_resumed(landscape_run):
    assert "this run is complete" in refusal("sparse_coding.py --resume", landscape_run[0])


def test_a_killed_run_ends_like_a_whole_one(landscape_run, tmp_path):
    whole, run = landscape_run[0], tmp_path / "run"
    often = (
        "import sys, common, sparse_coding as sc; sc.REMEMBER = 0;"
        " common.launch(lambda: sc.main(sys.argv[1:]))"
    )
    flags = f"{FLAGS_OF_RUN} --device cpu --out".split()
    process = subprocess.Popen([sys.executable, "-c", often, *flags, run], cwd=ROOT)
    memory = run / "memory" / "table1-1-cpu.pt"  # of the second of eight programs
    while not memory.exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -9
    assert 0 < max(common.load_checkpoint(memory)["curves"]) < 24

    run_program("sparse_coding.py --resume", run)
    for file in "results.json", "curves.npz":
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file


def planned(*flags):
    """The claims of the programs that a command line asks for, by experiment."""
    programs = sc.plan(sc.parser().parse(list(flags)))
    return {name: [claims for _, _, claims in listed] for name, listed in programs.items()}


def test_the_default_is_the_paper():
    assert list(planned()) == OF_THE_PAPER


def test_all_is_all_but_custom():
    assert list(planned("--experiment", "all")) == list(sc.EXPERIMENTS)[:-1]


def test_claims_stand_with_other_seeds_and_levels():
    flags = "--experiment fig2 --seeds 9 --sparsity 0.2 --lr 1 --epochs 9 --n 200 --batch-size 90"
    assert planned(*flags.split()) == {"fig2": [{"min": "high"}, {"min": "low"}]}


def test_claims_fall_with_any_other_factor():
    assert planned("--experiment", "fig2", "--keep", "0.4") == {"fig2": [{"min": None}] * 2}
