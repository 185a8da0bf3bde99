"""Every test of the files beside this one. Those of tools/ and studies/ are there.

Truth comes from closed forms, loops written off the equations, torchvision's and scikit-learn's own
functions, limits and invariances.

    python -m pytest             all but long trainings: three to five minutes on two cores
    python -m pytest -m slow     longer trainings, and the page in a real browser
"""

import ast
import collections
import contextlib
import functools
import hashlib
import importlib
import io
import itertools
import json
import math
import os
import re
import runpy
import shlex
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import bayesncl
import common
import interpret
import lpjepa
import mmncl
import nce
import ncl
import sae
import shapes
import simclr
import simsiam
import sparse_coding as sc
import sparsehead
from conftest import (
    FLAGS,
    METHODS,
    PENALTIES,
    ROOT,
    Parsed,
    naive_chance,
    program_of,
    records,
    refusal,
    run_program,
    side_by_side,
    write_files,
)
from pretend_gpu import pretended_gpu
from run_folder import load_run, read_run

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
import torchvision.transforms.v2.functional as TF
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch.distributions import Bernoulli, Laplace, Normal, kl_divergence
from torch.testing import assert_close


# ------------------------------------------------------ losses and activations, as naive equations
def numbers(seed, *shape):
    """The same normal numbers on every machine."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def normed(z):
    """Rows of length 1. Those below a hundredth are divided by that, lest gradients explode."""
    return z / z.norm(dim=1, keepdim=True).clamp(min=0.01)


def naive_nt_xent(z1, z2, temperature):
    z = normed(torch.cat([z1, z2]))
    loss = 0
    for i in range(len(z)):
        terms = torch.exp(z @ z[i] / temperature)
        positive = terms[i - len(z1)]  # the other view
        loss = loss - torch.log(positive / (terms.sum() - terms[i]))
    return loss / len(z)


def naive_info_nce(v, t, temperature):
    terms = torch.exp(normed(v) @ normed(t).T / temperature)
    own = terms.diagonal()
    return -(own / terms.sum(1)).log().mean() / 2 - (own / terms.sum(0)).log().mean() / 2


def naive_spectral(z1, z2):
    negatives = [(z1[i] @ z2[j]) ** 2 for i, j in itertools.permutations(range(len(z1)), 2)]
    return -2 * (z1 * z2).sum(1).mean() + torch.stack(negatives).mean()


def naive_negative_cosine(p, z, stop_gradient=True):
    z = z.detach() if stop_gradient else z
    return -(normed(p) * normed(z)).sum() / len(p)


def naive_byol(p, t):
    return 2 + 2 * naive_negative_cosine(p, t)


def naive_barlow(z1, z2, weight=0.005):
    a, b = [(z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt() for z in (z1, z2)]
    C, I = a.T @ b / len(a), torch.eye(z1.shape[1])
    return ((C - I) ** 2 * (I + weight * (1 - I))).sum()


def naive_vicreg(z1, z2, invariance=25, variance=25, covariance=1):
    loss = invariance * ((z1 - z2) ** 2).mean()
    for z in (z1, z2):
        C = z.T.cov()
        hinge = F.relu(1 - (C.diagonal() + 1e-4).sqrt())
        others = C * (1 - torch.eye(len(C)))
        loss = loss + variance * hinge.mean() / 2 + covariance * (others**2).sum() / len(C)
    return loss


def naive_wmse(z1, z2, size, splits):
    loss = 0
    for split in range(1, splits + 1):
        order = (torch.arange(len(z1)) * split * 0.618034).frac().argsort()
        for rows in order.split(size):
            parts = [z[rows] - z[rows].mean(0) for z in (z1, z2)]
            w1, w2 = [F.normalize(z @ torch.linalg.cholesky(z.T.cov()).inverse().T) for z in parts]
            loss = loss + (w1 - w2).square().sum() / (len(z1) * splits)
    return loss


def naive_swav(z1, z2, prototypes, temperature=0.1):
    s1, s2 = [normed(z) @ normed(prototypes).T for z in (z1, z2)]
    loss = 0
    for guesses, others in (s1, s2), (s2, s1):
        Q = torch.exp(others.detach() / 0.05)
        for _ in range(3):
            Q = Q / Q.sum(0, keepdim=True)  # columns of sum 1
            Q = Q / Q.sum(1, keepdim=True)  # rows of sum 1
        p = torch.exp(guesses / temperature)
        loss = loss - (Q * torch.log(p / p.sum(1, keepdim=True))).sum(1).mean() / 2
    return loss


def naive_hsic(*views):
    z, N = normed(torch.cat(views)), len(views[0])
    K = 1 / (1 + (z[:, None] - z).square().sum(2)).sqrt()
    pairs = itertools.permutations(range(len(z)), 2)
    of_one_image = [K[i, j] for i, j in pairs if i % N == j % N]
    H = torch.eye(len(z), dtype=z.dtype) - 1 / len(z)
    hsic_zy = torch.stack(of_one_image).mean() - K.mean()
    return 3 * (H @ K @ H).square().mean().sqrt() - hsic_zy


def naive_distance(z, target, directions):
    """The cost of the cheapest plan that moves one set of points onto the other's, along each."""
    costs = [(z @ d - (target @ d)[:, None]) ** 2 for d in directions]  # (n, n) each
    plans = [scipy.optimize.linear_sum_assignment(cost.detach().numpy()) for cost in costs]
    return sum(cost[plan].mean() for cost, plan in zip(costs, plans)) / len(directions)


def torchs_divergence(alpha, rho):
    p, q = [Bernoulli(x.clamp(0.01, 0.99)) for x in (alpha, torch.tensor(rho))]
    return kl_divergence(p, q).sum(1).mean()


def naive_l21(W):
    """A column of zeros has no gradient."""
    return sum(column.square().sum().sqrt() for column in W.T if column.any())


def naive_topk(z, k):
    least = [row.sort(descending=True).values[k - 1] for row in z]
    return torch.where(z >= torch.stack(least)[:, None], z, 0)


def rep_relu_formula(z):
    """ReLU, with GELU's slope."""
    slope = torch.special.ndtr(z) + z * torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return z.clamp(min=0).detach() + slope.detach() * (z - z.detach())


def rectified_quantiles(u, mu, noise="laplace"):
    return F.relu(mu + NOISE_LAWS[noise].icdf(u))


VIEW1, VIEW2, PROTOTYPES = numbers(1, 7, 5), numbers(2, 7, 5), numbers(3, 6, 5)
VIEW1[1] *= 0.002  # shorter than a hundredth
VIEW2[4] = 0
NOISE_LAWS = {  # of variance 1
    "laplace": Laplace(*torch.tensor([0, 0.5**0.5], dtype=torch.double)),
    "gaussian": Normal(*torch.tensor([0, 1], dtype=torch.double)),
}
MANY1, MANY2 = numbers(4, 12, 3), numbers(5, 12, 3)
ALPHAS = torch.cat([torch.sigmoid(PROTOTYPES), torch.tensor([[0, 1, 0.001, 0.999, 0.005]])])


class Case(NamedTuple):
    """A function of ours, its naive equation, and what both are given."""

    ours: Callable
    naive: Callable
    inputs: tuple = (VIEW1, VIEW2)


LOSSES = {  # of two views, matrices of one shape, and options
    "info_nce": Case(mmncl.info_nce, naive_info_nce, (VIEW1, VIEW2, 0.2)),
    "spectral": Case(ncl.spectral_loss, naive_spectral),
    "simsiam": Case(simsiam.negative_cosine, naive_negative_cosine),
    "simsiam, no stop": Case(simsiam.negative_cosine, naive_negative_cosine, (VIEW1, VIEW2, False)),
    "byol": Case(sparsehead.byol_loss, naive_byol),
    "barlow": Case(sparsehead.barlow_loss, naive_barlow),
    "vicreg": Case(sparsehead.vicreg_loss, naive_vicreg, (VIEW1 / 4, VIEW2, 2, 3, 5)),
    "wmse": Case(sparsehead.wmse_loss, naive_wmse, (MANY1, MANY2, 6, 2)),
    "swav": Case(sparsehead.swav_loss, naive_swav, (VIEW1, VIEW2, PROTOTYPES)),
    "hsic": Case(sparsehead.hsic_loss, naive_hsic, (VIEW1, VIEW2, VIEW2 + 1, VIEW1 * 2)),
    "distance": Case(lpjepa.sliced_wasserstein, naive_distance, (VIEW1, VIEW2, PROTOTYPES[:2])),
}
for method in simclr, ncl, bayesncl, sparsehead:
    case = Case(method.nt_xent, naive_nt_xent, (VIEW1, VIEW2, 0.3))
    LOSSES[f"{method.__name__}.nt_xent"] = case
OTHER_LOSSES = {
    "divergence": Case(bayesncl.bernoulli_kl, torchs_divergence, (ALPHAS, 0.3)),
    "divergence, never": Case(bayesncl.bernoulli_kl, torchs_divergence, (ALPHAS, 0.0)),
    "divergence, always": Case(bayesncl.bernoulli_kl, torchs_divergence, (ALPHAS, 1.0)),
    "class_scores": Case(nce.class_scores, lambda f, W: f @ W.T, (VIEW1, PROTOTYPES)),
    "l21_norm": Case(sparsehead.l21_norm, naive_l21, (VIEW2.T,)),
}
LAPLACE, GAUSSIAN = (ALPHAS[:6], -0.4), (ALPHAS[:6], 0.2, "gaussian")
PARTS = {
    "keep_topk": Case(ncl.keep_topk, naive_topk, (PROTOTYPES, 3)),
    "laplace": Case(lpjepa.rectified_samples, rectified_quantiles, LAPLACE),
    "gaussian": Case(lpjepa.rectified_samples, rectified_quantiles, GAUSSIAN),
}
ACTIVATION_FORMULAS = {
    "rep_relu": rep_relu_formula,
    "relu": lambda z: torch.where(z > 0, z, 0),
    "gelu": lambda z: z * torch.special.ndtr(z),
    "sigmoid": lambda z: 1 / (1 + torch.exp(-z)),
    "softplus": lambda z: torch.log(1 + torch.exp(z)),
    "exp": lambda z: math.e**z,
    "leaky_relu": lambda z: torch.where(z > 0, z, 0.01 * z),
    "none": lambda z: z,
}
for method, kind in itertools.product((ncl, bayesncl, nce, mmncl), ACTIVATION_FORMULAS):
    case = Case(method.ACTIVATIONS[kind], ACTIVATION_FORMULAS[kind], (numbers(6, 9, 4),))
    PARTS[f"{method.__name__} {kind}"] = case


def cast(inputs, kind):
    return [x.to(kind, copy=True) if isinstance(x, torch.Tensor) else x for x in inputs]


def value_and_gradients(function, inputs):
    tensors = [x.requires_grad_() for x in inputs if isinstance(x, torch.Tensor)]
    value = function(*inputs)
    unequal = 1 + torch.arange(value.numel()).cos().view_as(value)  # so that none is for another
    total = (value * unequal).sum()
    return value, *torch.autograd.grad(total, tensors, materialize_grads=True)


@pytest.mark.parametrize("name", LOSSES | OTHER_LOSSES | PARTS)
def test_values_and_gradients_are_the_equations(name):
    ours, naive, inputs = (LOSSES | OTHER_LOSSES | PARTS)[name]
    found = value_and_gradients(ours, cast(inputs, torch.float))
    known = value_and_gradients(naive, cast(inputs, torch.double))
    for x, y in zip(found, known):
        assert_close(x.double(), y, rtol=1e-4, atol=1e-5 * y.abs().max().item())


@pytest.mark.parametrize("name", LOSSES | OTHER_LOSSES)
def test_a_loss_is_float32_under_autocast(name):
    ours, _, (x, *others) = (LOSSES | OTHER_LOSSES)[name]
    inputs = cast([x, *others[:1]], torch.bfloat16) + others[1:]
    with torch.autocast("cpu", torch.bfloat16):
        inside = ours(*inputs)
    assert_close(inside, ours(*cast(inputs, torch.float)), rtol=0, atol=0)  # of one type, too


def test_views_that_are_not_equal_matrices_have_no_loss():
    for ours, _, (z1, z2, *options) in LOSSES.values():
        for a, b in (z1, z2[:1]), (z1, z2[:, :1]), (z1[0], z2[0]), (z1[None], z2[None]):
            with pytest.raises(AssertionError):  # broadcasting would let some pass
                ours(a, b, *options)


NO_LOSS = [  # for what these need there is too little, or it has too many axes
    (ncl.spectral_loss, VIEW1[:1], VIEW2[:1]),
    *[(loss, VIEW1[:1], VIEW2[:1]) for loss in (sparsehead.barlow_loss, sparsehead.vicreg_loss)],
    (sparsehead.hsic_loss, VIEW1),
    (sparsehead.hsic_loss, VIEW1[None], VIEW2[None]),
    (sparsehead.l21_norm, VIEW1[0]),
    (bayesncl.bernoulli_kl, ALPHAS[None], 0.3),
    *[(loss, VIEW1.T[None, :, :1], VIEW2.T[None]) for loss in (sc.cosine, sc.product)],
]


def test_no_class_weight_begins_without_gradient():
    flags = "--weights non-negative --head mlp --activation"
    for activation in "relu", "rep_relu":
        args = nce.parser().parse(f"{flags} {activation}".split())
        args.classes = 5
        W = nce.NCE(args).classifier.weight
        assert (W < 0).any() == (activation == "rep_relu")


@pytest.mark.parametrize("loss, inputs", [(loss, inputs) for loss, *inputs in NO_LOSS])
def test_too_little_has_no_loss(loss, inputs):
    with pytest.raises(AssertionError):
        loss(*inputs)


def test_what_cannot_be_whitened_is_nan():
    z = torch.tensor([2, 2, -2, -2, 0])[:, None].expand(-1, 3)  # three equal columns
    assert sparsehead.whiten(z).isnan().all()


def test_the_expected_share_is_the_noises_tail(run_of):
    for mu, (noise, law) in itertools.product([-2.5, 0.0, 0.8], NOISE_LAWS.items()):
        tail = law.cdf(torch.tensor(mu)).item()  # of μ + ε > 0, as ε is symmetric
        assert lpjepa.expected_active(mu, noise) == pytest.approx(tail, rel=1e-5)
    *_, final = records(run_of("lpjepa"))  # of Gaussian noise
    assert final["expected_act"] == lpjepa.expected_active(-1.15, "gaussian")


def test_the_spectral_loss_is_a_matrix_factorisation():
    """[NCL]: the mean over batches is ‖Ā − F Gᵀ‖² − ‖Ā‖², of Ā = P(x, x') / √(P(x) P(x'))."""
    joint = torch.rand(9, 9)  # P(x, x') of image and caption; of two views F = G
    joint = joint / joint.sum()
    f, g = torch.randn(2, 9, 4).relu()
    p, q = joint.sum(1)[:, None], joint.sum(0)[:, None]
    A = joint / (p * q.T).sqrt()
    product = (p.sqrt() * f) @ (q.sqrt() * g).T
    distance = (A - product).square().sum() - A.square().sum()
    drawn = torch.multinomial(joint.flatten(), 200 * 500, replacement=True).view(200, 500)
    estimates = torch.stack([ncl.spectral_loss(f[pairs // 9], g[pairs % 9]) for pairs in drawn])
    assert abs(estimates.mean() - distance) < 5 * estimates.std() / math.sqrt(200)


# ------------------------------------------------------------------ gates by law, networks by parts
SMALL_SIZES = dict(head_hidden=6, head_out=5, gate_hidden=7, text_width=4, predictor_hidden=3)
IMAGES = numbers(8, 12, 3, 8, 8)


def test_a_noisy_gate_opens_and_slopes_by_gumbels_law():
    noise = -torch.log(-torch.log((torch.arange(1000) + 0.5) / 1000))
    levels = torch.linspace(-4, 4, 40)[:, None]  # none is 0
    logits = levels.repeat(1, 4000).requires_grad_()
    m, alpha = bayesncl.gate(logits, "gumbel", temperature=2.0, training=True)
    (slopes,) = torch.autograd.grad(m.sum(), logits)
    noisy = torch.sigmoid((levels + noise) / 2)
    assert {*m.unique().tolist()} == {0, 1}
    assert_close(m.mean(1), (noisy > 0.5).float().mean(1), rtol=0, atol=0.04)
    assert_close(slopes.mean(1), (noisy * (1 - noisy) / 2).mean(1), rtol=0, atol=0.003)
    assert_close(alpha, torch.sigmoid(logits / 2))


def small_network(command):
    """A program's network with weights of seed 0, for images of 8 pixels; all sizes differ."""
    name, *flags = shlex.split(command)
    method = importlib.import_module(name.removesuffix(".py"))
    flags = [*"--device cpu --arch resnet8 --image-size 8".split(), *flags]
    settings = vars(method.parser().parse(flags)) | SMALL_SIZES | dict(prototypes=9, classes=10)
    torch.manual_seed(0)
    return method.network(SimpleNamespace(**settings))


def assert_equal_with_gradients(model, found, known):
    """Outputs, and the gradients of all weights for a weighted sum of them."""
    results = []
    for outputs in found, known:
        loss = sum((numbers(len(x.T), *x.shape) * x).sum() for x in outputs)
        gradients = torch.autograd.grad(loss, model.parameters(), materialize_grads=True)
        results.append([*outputs, *gradients])
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * (1 + theirs.abs().max().item()))


RARE_FLAGS = "--no-detach --gate-temperature 4 --activation exp --topk 2"
NETWORKS = {  # what comes after h, of the head's output
    "ncl.py --activation exp --topk 2": lambda model, z: [naive_topk(z.exp(), 2)],
    "simsiam.py": lambda model, z: [z, model.predictor(z)],
    "simsiam.py --no-predictor": lambda model, z: [z, z],
    "nce.py --loss ce --head mlp": lambda model, f: [f, f @ model.classifier.weight.T],
    "nce.py --activation exp": lambda model, f: [f.exp(), f.exp() @ model.classifier.weight.T],
    "nce.py --activation exp --weights non-negative": lambda model, f: (
        [f.exp(), f.exp() @ model.classifier.weight.exp().T]
    ),
    **dict.fromkeys(["ncl.py", "mmncl.py"], lambda model, z: [rep_relu_formula(z)]),
    **dict.fromkeys(["simclr.py", "sparsehead.py", "lpjepa.py"], lambda model, z: [z]),
}


@pytest.mark.parametrize("command", NETWORKS)
def test_a_network_is_its_equations(command):
    model = small_network(command)
    h = model.backbone(IMAGES)
    known = [h, *NETWORKS[command](model, model.head(h))]
    assert_equal_with_gradients(model, model(IMAGES), known)
    if command.startswith(("nc", "mm")):
        with torch.autocast("cpu", torch.bfloat16):
            assert {output.dtype for output in model(IMAGES)[1:]} == {torch.float32}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("flags", ["", "--gate soft", "--gate none", "--gate gumbel", RARE_FLAGS])
def test_bayesncls_network_is_its_equations(training, flags):
    model = small_network(f"bayesncl.py {flags}").train(training)
    h = model.backbone(IMAGES)
    z = rep_relu_formula(model.head(h))
    logits = model.gating(h.detach())
    if flags == RARE_FLAGS:
        z, logits = naive_topk(model.head(h).exp(), 2), model.gating(h) / 4
    alpha = torch.sigmoid(logits)
    m = alpha if "soft" in flags else (alpha > 0.5).float() + alpha - alpha.detach()
    if "none" in flags:
        m, alpha = torch.ones(12, 5), alpha.detach()
    if training and "gumbel" in flags:  # noise
        assert not torch.equal(model(IMAGES)[2] > 0.5, m > 0.5)
    else:
        assert_equal_with_gradients(model, model(IMAGES), [h, z * m, m, alpha])
    with torch.autocast("cpu", torch.bfloat16):
        assert {output.dtype for output in model(IMAGES)[1:]} == {torch.float32}


@pytest.mark.parametrize("arch, scales", [("resnet18", [1, 0]), ("resnet50", [1, 1, 0])])
def test_zero_init_is_of_each_branchs_last_norm(arch, scales):
    backbone, _ = common.resnet(arch, 32)
    simsiam.zero_init(backbone)
    norms = [part for part in backbone.layer1[1].modules() if isinstance(part, nn.BatchNorm2d)]
    assert [norm.weight.mean().item() for norm in norms] == scales


# --------------------------------------------------------------------------------- recorded values
# What gates, views, networks and optimisers gave when the quoted runs were made: whoever rewrites
# one of them learns here whether the same seed still gives the same training.
LOGITS = numbers(3, 16, 8)


def fingerprint(x):
    """One number that changes with any entry and with their order."""
    x = x.detach().double().flatten()
    weights = 1 + torch.arange(len(x), dtype=torch.float64).cos()
    return (x * weights).mean().item()


def of_gate(kind):
    return bayesncl.gate(LOGITS, kind, training=True)[0]


def of_views(order):
    view = sparsehead.colour_first if order == "colour-crop" else common.augment
    images = torch.arange(16 * 3 * 12 * 12).remainder(251).view(16, 3, 12, 12).to(torch.uint8)
    options = dict(min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic")
    return torch.stack(common.two_views(images, 8, view, **options))


def of_optimizer(kind):
    """A weight after three steps on ‖w + 1‖²."""
    weight = LOGITS.clone().requires_grad_()
    optimizer = common.OPTIMIZERS[kind]([weight], lr=0.1, weight_decay=0.01)
    for step in range(3):
        common.set_lr(optimizer, common.lr_share(step, 4, warmup=1))
        optimizer.zero_grad()
        (weight + 1).square().sum().backward()
        optimizer.step()
    return weight


def of_network(command):
    """Of each of its weights, as they are drawn, and of its outputs."""
    model = small_network(command).double()
    tensors = [*model.parameters(), *model(IMAGES.double())]
    return torch.tensor([fingerprint(x) for x in tensors])


def if_wanted(row):
    """What a test says beside a value that is no longer the recorded one."""
    return f"if this change is wanted: {row}; and make the records anew that quote such runs"


RECORDED = {
    (of_gate, "gumbel"): 0.554473,
    (of_views, "crop-colour"): -0.185183,
    (of_views, "colour-crop"): -0.0850084,
    (of_optimizer, "lars"): -0.23754,
    (of_optimizer, "adam"): -0.290004,
    (of_network, "simclr.py"): 0.34073,
    (of_network, "simclr.py --arch resnet18"): 0.339485,
    (of_network, "ncl.py"): 0.343555,
    (of_network, "nce.py --head mlp"): 0.320466,
    (of_network, "bayesncl.py"): 0.308297,
    (of_network, "bayesncl.py --gate-layers 3"): 0.289492,
    (of_network, "bayesncl.py --gate-layers 1 --head none"): 0.374082,
    (of_network, "simsiam.py --projector-layers 2 --zero-init-residual"): 0.163416,
    (of_network, "mmncl.py"): 0.281852,
    (of_network, "lpjepa.py"): 0.327605,
    (of_network, "sparsehead.py --base byol"): 0.278535,
    (of_network, "sparsehead.py --base swav --head linear"): 0.304629,
}


@pytest.mark.parametrize("function, what", RECORDED)
def test_a_recorded_value_stays(function, what):
    found = fingerprint(function(what))
    row = f'({function.__name__}, "{what}"): {found:.6g}'
    assert found == pytest.approx(RECORDED[function, what], rel=1e-4), if_wanted(row)


# ----------------------------------------------------------------------------------- sparsehead.py
def test_sparseheads_record_has_its_measures(run_of):
    folder = run_of("sparsehead")
    W = common.load_checkpoint(folder / "checkpoint.pt")["model"]["head.3.weight"]
    with np.load(folder / "embeddings.npz") as kept:
        h, z = torch.from_numpy(kept["h"]), torch.from_numpy(kept["z"])
    *_, final = records(folder)
    assert final == pytest.approx(final | sparsehead.measure(h, z, W))


def test_measures_are_their_definitions():
    h, z, known = numbers(9, 1003, 2), numbers(10, 1003, 3), {}
    h[1002] = h[0]  # a copy
    for name, x in ("representation", h.double().numpy()), ("embedding", z.double().numpy()):
        distances = [np.linalg.norm(np.delete(x, i, 0) - x[i], axis=1) for i in range(len(x))]
        ratios = [row.max() / row.min() - 1 for row in distances if row.min()]
        known[f"min_max_{name}"] = np.mean(ratios)
        eigenvalues = np.linalg.eigvalsh(np.cov(x.T))[::-1]
        assert sparsehead.spectrum(torch.tensor(x)).tolist() == pytest.approx(eigenvalues)
        known[f"rank_{name}"] = math.exp(scipy.stats.entropy(eigenvalues))
    W = torch.diag(torch.tensor([5.0, 0.0051, 0.0049, 0.0]))
    known |= dict(unused_columns=2 / 4, l21=5.01)
    assert sparsehead.measure(h, z, W) == pytest.approx(known, rel=1e-4)
    assert sparsehead.unused_columns(0 * W) == 1
    assert {*sparsehead.measure(torch.ones(9, 4), torch.ones(9, 3), None).values()} == {None}
    assert sparsehead.in_a_line({"ratio": None, "l21": 2 / 3}) == "ratio –, l21 0.6667"


def test_w_mses_rate_warms_up_and_drops_twice():
    short = [sparsehead.step_decay(step, 8, 100, 8) for step in range(8)]
    assert short == pytest.approx([1 / 4, 1 / 2, 3 / 4, 1, 1, 1, 0.2, 0.04])
    long = {0: 0.002, 498: 0.998, 499: 1, 92_149: 1, 92_150: 0.2, 94_574: 0.2, 94_575: 0.04}
    assert {n: sparsehead.step_decay(n, 97_000, 499.6, 1000) for n in long} == pytest.approx(long)


def test_lars_of_the_bases_is_not_clipped(tiny):
    args = sparsehead.parser().parse(shlex.split(f"{tiny} --optimizer lars --bias-lr 0.5"))
    weights, biases = sparsehead.optimizer_of(small_network("sparsehead.py"), args).param_groups
    assert (weights["trust"], weights["clip"], biases["lr"]) == (1e-3, False, 0.5)


# -------------------------------------------------------------------- nce.py's accuracy; mmncl.py
def test_nces_accuracy_is_of_its_own_weights(tiny, tmp_path):
    y = torch.from_numpy(shapes.draw(240, 100)["y_test"])
    f, W = torch.rand(100, 64), torch.randn(10, 64)  # half of the weights are below 0

    def evaluate(model, *_):
        model.classifier.weight.data.copy_(W)
        return {}, f, f

    with mock.patch.object(common, "evaluate", evaluate):
        run_program(f"nce.py {tiny} --limit 60 --weights non-negative --epochs 1 --out", tmp_path)
    scores = f @ W.relu().T
    ranks = (scores > scores.gather(1, y[:, None])).sum(1)
    known = {f"top{most}": 100 * (ranks < most).float().mean().item() for most in (1, 5)}
    *_, final = records(tmp_path)
    assert final == pytest.approx(final | known)


SPOKEN = {
    "A half-disc, LEFT \u2764\ufe0f": ["a", "half-disc", "left"],
    "It's ‘left’: e\u0301te\u0301 2, it’s": ["it's", "left", "été", "2", "it's"],
    "a " * 100: ["a"] * 64,
    "दिन दान می\u200cخورم كَلْب - caf\udce9": ["दिन", "दान", "می\u200cخورم", "كَلْب", "caf"],
}


def test_captions_are_the_numbers_of_their_words():
    padded = []
    for words in SPOKEN.values():
        row = [1 + zlib.crc32(word.encode()) % 8191 for word in words]
        padded.append(row + [0] * (64 - len(row)))
    assert mmncl.numbered(list(SPOKEN)).tolist() == padded


def test_mmncls_network_reads_captions_too():
    model, words = small_network("mmncl.py"), mmncl.numbered(list(SPOKEN))
    g = torch.stack([model.text.weight[row[row > 0]].mean(0) for row in words])
    t = rep_relu_formula(model.text_head(g))
    assert_equal_with_gradients(model, model(IMAGES[:4], words), [*model(IMAGES[:4]), g, t])


def test_classes_have_the_names_of_files_or_labels(tmp_path):
    file = tmp_path / "names.txt"
    file.write_bytes(b"\xef\xbb\xbfant\r\nbee\r\ncow\r\n")
    numbered = dict(y=np.array([0, 2]), background=np.array([1]))
    for dataset, classes, given, names in [
        ("shapes", None, numbered, dict(y=["circle", "square"], background=["grass"])),
        ("unknown", None, numbered, {}),
        ("unknown", file, numbered, dict(y=["ant", "cow"])),
    ]:
        args = SimpleNamespace(dataset=dataset, classes=classes)
        assert mmncl.class_names(args, SimpleNamespace(classes=given)) == names


NAMES_READ = {  # a file of names, and what they are
    b"\xef\xbb\xbf\xef\xbb\xbfant\r\n bee \n": ["\ufeffant", " bee "],
    "ant\u2028\x0b\x0c\x1c\x1d\x1e\x85a\rb\n".encode(): ["ant\u2028\x0b\x0c\x1c\x1d\x1e\x85a\rb"],
    b'"a\\nb"\r\n"caf\\udce9"\n"\\"ant\\""': ["a\nb", "caf\udce9", '"ant"'],
    b'"ant" or "bee"\n"\n"a\tb"\n': ['"ant" or "bee"', '"', '"a\tb"'],
}


def test_files_of_names_are_read_alike(tmp_path):
    for content, names in NAMES_READ.items():
        write_files(tmp_path, {"names.txt": content})
        assert interpret.lines_of(tmp_path / "names.txt") == names
        assert mmncl.names_in(tmp_path / "names.txt", [*range(len(names))]) == names


def test_captions_are_made_of_names_by_templates_in_turn():
    data = SimpleNamespace(train=dict(y=torch.tensor([0, 1, 0, 0, 0, 0, 1])))
    data.test = dict(y=torch.tensor([2]))
    found = mmncl.captions_of(SimpleNamespace(dataset=""), data, dict(y=["ant", "bee", "cow"]))
    ants = ["a photo of a ant", "a picture of a ant", "an image of a ant", "a ant"]
    assert found == (["a ant", "a bee", *ants, "a photo of a bee"], ["a cow"])


def read_by(run, captions):
    """A run's network, and what it makes of test images and captions: v and t (N, K), normed."""
    _, model = load_run(run)
    g, t = model.requires_grad_(False).read(mmncl.numbered(captions))
    with np.load(run / "text.npz") as kept:
        assert kept["captions"].tolist() == list(captions)
        assert_close((kept["h"], kept["z"]), (g.numpy(), t.numpy()))
    with np.load(run / "embeddings.npz") as kept:
        v = torch.from_numpy(kept["z"])
    return model, normed(v), normed(t)


def numbers_of_texts(v, t, alike, arrays):
    """Of images v and texts t. alike: (N,), equal where a text is right for an image too."""
    known, cosines = {}, (v @ t.T).numpy()
    for found, scores in ("text", cosines), ("image", cosines.T):
        right = alike[scores.argsort(1)[:, :-6:-1]] == alike[:, None]  # the nearest five
        known[f"{found}_r1"] = 100 * right[:, 0].mean()
        known[f"{found}_r5"] = 100 * right.any(1).mean()
    for label, prefix in ("y", "text_"), ("background", "text_background_"):
        found = common.of_dimensions(t, torch.from_numpy(arrays[f"{label}_test"]))
        known |= {prefix + name: value for name, value in found.items()}
    return known


def test_a_record_has_the_numbers_of_captions(run_of):
    arrays = shapes.draw(240, 100)
    captions = arrays["captions_test"]
    _, v, t = read_by(run_of("mmncl"), captions)
    *_, final = records(run_of("mmncl"))
    assert final == pytest.approx(final | numbers_of_texts(v, t, captions, arrays))


def test_captions_are_made_of_labels_that_are_words(tiny, tmp_path):
    arrays = shapes.draw(240, 100)
    named = {kind: array for kind, array in arrays.items() if "captions" not in kind}
    words = dict(y=np.array([*"abcdefghi", "j\udce9"]), background=np.array([*"klmnopqrst"]))
    for label, part in itertools.product(words, ("train", "test")):
        named[f"{label}_{part}"] = words[label][arrays[f"{label}_{part}"]]
    np.savez(tmp_path / "tiny.npz", **named)
    small = f"--data-root {tmp_path} --image-size 8 --epochs 1"
    run_program(f"mmncl.py {tiny} {small} --out", tmp_path / "run")
    y = arrays["y_test"]
    model, v, t = read_by(tmp_path / "run", mmncl.made_of(words["y"], torch.from_numpy(y)))
    known = numbers_of_texts(v, t, y, arrays)
    for label, key, prompt in ("y", "", "a {}"), ("background", "background_", "on {}"):
        seen = np.unique(named[f"{label}_train"])
        _, asked = model.read(mmncl.numbered([prompt.format(name) for name in seen]))
        found = seen[(v @ normed(asked).T).argmax(1)]
        known[f"{key}zero_shot"] = 100 * (found == named[f"{label}_test"]).mean()
    *_, final = records(tmp_path / "run")
    assert final == pytest.approx(final | known)


# ---------------------------------------------------------------------------------- common.py: data
X_TRAIN, X_TEST = np.split(np.random.default_rng(0).integers(0, 256, (28, 8, 8, 3), np.uint8), [20])
Y_TRAIN, Y_TEST = np.arange(20) % 4, np.arange(8) % 4
ALL_X, ALL_Y = dict(x_train=X_TRAIN, x_test=X_TEST), dict(y_train=Y_TRAIN, y_test=Y_TEST)
ARRAYS = ALL_X | ALL_Y


def each(change, arrays):
    return {name: change(array) for name, array in arrays.items()}


def as_read(x):
    """(N, 3, H, W) of images (N, H, W, 1) or (N, H, W, 3)."""
    return np.moveaxis(x, 3, 1).repeat(3 // x.shape[3], 1)


GREY_X = dict(x_train=X_TRAIN[..., :1], x_test=X_TEST[..., :1])
INSECTS = np.array(["ant", "bee", "fly", "moth"])
IN_LATIN_1 = np.array([b"ant", b"bee", b"fl\xe9", b"moth"])
READ = ["ant", "bee", "fl\udce9", "moth"]  # the byte that is no text stays
OF_TWO_KINDS = ARRAYS | dict(y_train=2**60 + Y_TRAIN, y_test=2**60 + Y_TEST.astype(np.uint64))
MEDMNIST = dict(train_images=X_TRAIN, train_labels=Y_TRAIN[:, None].astype(np.uint8))
MEDMNIST |= dict(val_images=X_TEST, val_labels=Y_TEST[:, None])
MEDMNIST |= dict(test_images=X_TEST, test_labels=Y_TEST[:, None])
CAPTIONED = dict(captions_train=np.arange(20).astype(str), captions_test=np.arange(8).astype(str))
# Unlabelled images, captions, and a second label, of which one class is not tested.
MORE = CAPTIONED | dict(x_unlabeled=X_TRAIN[5:], background_train=10**6 * (Y_TRAIN // 2) + 7)
MORE |= dict(background_test=np.full(8, 10**6 + 7))

AS_IT_IS = each(as_read, ALL_X) | ALL_Y | dict(classes_of_y=np.arange(4))
OF_MORE = CAPTIONED | dict(seen=as_read(X_TRAIN[5:]), classes_of_background=[7, 10**6 + 7])
OF_MORE |= dict(background_train=Y_TRAIN // 2, background_test=np.ones(8))
DATA_FORMS = {  # arrays of a data set, and what it is to hold
    "channels last": (ARRAYS, AS_IT_IS),
    "channels first": (ARRAYS | each(as_read, ALL_X), AS_IT_IS),
    "grey, no labels": (GREY_X | dict(x_train=X_TRAIN[..., 0]), each(as_read, GREY_X)),
    "int64 beside uint64": (OF_TWO_KINDS, AS_IT_IS | dict(classes_of_y=2**60 + np.arange(4))),
    "bytes": (ARRAYS | each(IN_LATIN_1.take, ALL_Y), AS_IT_IS | dict(classes_of_y=READ)),
    "words": (ARRAYS | each(INSECTS.take, ALL_Y), AS_IT_IS | dict(classes_of_y=INSECTS)),
    "medmnist": (MEDMNIST, AS_IT_IS),
    "more": (ARRAYS | MORE, AS_IT_IS | OF_MORE),
}


def read_data(root, name="mine", limit=None, unlabelled=True):
    args = SimpleNamespace(dataset=name, data_root=root, limit=limit, device="cpu")
    return common.Data(args, unlabelled)


def data_from(root, arrays):
    """The data set of these arrays."""
    write_files(root, {"mine.npz": arrays})
    return read_data(root)


def assert_holds(data, expected):
    """These are all its arrays; what pre-training has `seen` is x_train, if it is not told."""
    found = dict(seen=data.images)
    for part in ("train", "test"):
        found |= {f"{kind}_{part}": values for kind, values in getattr(data, part).items()}
    found |= {f"classes_of_{kind}": classes for kind, classes in data.classes.items()}
    np.testing.assert_equal(found, dict(seen=expected["x_train"]) | expected)


@pytest.mark.parametrize("arrays, expected", DATA_FORMS.values(), ids=DATA_FORMS)
def test_every_form_of_arrays_is_read(tmp_path, arrays, expected):
    assert_holds(data_from(tmp_path, arrays), expected)


def test_a_folder_is_mapped_and_never_written(tmp_path):
    write_files(tmp_path, {f"mine/{name}.npy": array for name, array in (ARRAYS | MORE).items()})
    data = read_data(tmp_path)
    assert_holds(data, AS_IT_IS | OF_MORE)
    labelled = AS_IT_IS | OF_MORE | dict(seen=as_read(X_TRAIN))
    assert_holds(read_data(tmp_path, unlabelled=False), labelled)
    before = (tmp_path / "mine/x_unlabeled.npy").read_bytes()
    data.images.zero_()
    assert (tmp_path / "mine/x_unlabeled.npy").read_bytes() == before
    arrays = common.find_arrays("mine", tmp_path)
    assert isinstance(arrays["x_train"], np.memmap)
    images = common.part_of(arrays, "train")["x"]
    assert images.data_ptr() == arrays["x_train"].ctypes.data  # no byte was copied


@pytest.mark.parametrize("kind", ["CIFAR10", "CIFAR100", "STL10", "SVHN"])
def test_torchvisions_data_sets_are_read(tmp_path, monkeypatch, kind):
    def dataset(root, download, train=None, split=None):
        """One with the attributes of torchvision's: `targets` under `train`, or `labels`."""
        assert download
        if split == "train+unlabeled":
            return SimpleNamespace(data=as_read(X_TRAIN[5:]), labels=np.full(15, -1))
        x, y = (X_TRAIN, Y_TRAIN) if train or split == "train" else (X_TEST, Y_TEST)
        if split:
            return SimpleNamespace(data=as_read(x), labels=y)
        return SimpleNamespace(data=x, targets=y.tolist())

    dataset.__name__ = kind
    monkeypatch.setattr(torchvision.datasets, kind, dataset)
    unlabelled = dict(seen=OF_MORE["seen"]) if kind == "STL10" else {}
    assert_holds(read_data(tmp_path, kind.lower()), AS_IT_IS | unlabelled)
    failing = mock.Mock(side_effect=OSError("no network"), __name__=kind)
    monkeypatch.setattr(torchvision.datasets, kind, failing)
    assert f"{kind} could not be downloaded" in refusal(lambda: read_data(tmp_path, kind.lower()))


def test_of_much_data_a_thousand_rows_tell():
    array = np.broadcast_to(np.arange(2**15, dtype=np.uint16)[:, None], (2**15, 2**13))
    rows = array[[i * 2**15 // 1000 for i in range(1000)]]
    assert common.fingerprint(dict(x=array))["x"][-8:] == f"{zlib.crc32(rows.tobytes()):08x}"


# ---- a limit
def of_numbers(n):
    """n grey images of one pixel, each its own number."""
    return np.arange(n, dtype=np.uint8).reshape(n, 1, 1)


def numbers_in(images):
    return images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("limit", [25, 33, 99, 150])
@pytest.mark.parametrize("shares", [[6, 3, 1], [10]])
def test_a_limit_keeps_proportions_and_pairs(tmp_path, shares, limit):
    y = np.tile(np.repeat(range(len(shares)), shares), 10)
    arrays = dict(x=of_numbers(100), y=y, background=y % 2, captions=np.arange(100).astype(str))
    arrays = {f"{kind}_{part}": a for kind, a in arrays.items() for part in ("train", "test")}
    whole = data_from(tmp_path, arrays | dict(x_unlabeled=of_numbers(200)))
    data = read_data(tmp_path, limit=limit)
    assert numbers_in(data.images) == [i * 200 // limit for i in range(limit)]
    kept = numbers_in(data.train["x"])
    labelled = min(limit, 100)
    assert kept == sorted({*kept})
    assert len(kept) == labelled
    assert (np.abs(np.bincount(y[kept]) - 10 * np.array(shares) * labelled / 100) < 1).all()
    np.testing.assert_equal(data.train, each(lambda a: np.asarray(a)[kept], whole.train))
    np.testing.assert_equal(data.test, each(np.asarray, whole.test))
    assert numbers_in(read_data(tmp_path, limit=labelled, unlabelled=False).images) == kept


# --------------------------------------------------------------------------------- common.py: views
ONE_VIEW = dict(min_scale=0.08, jitter=0.6, gray=0.3, blur=0.4, crop="bicubic")


def varied_images(n, height, width):
    """(n, 3, height, width) uint8: noise, two equal channels, grey and saturated, n / 4 each."""
    x = torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8)
    _, equal, grey, saturated = x.chunk(4)
    equal[:, 1] = equal[:, 0]
    grey[:] = grey[:, :1]
    saturated[:] = saturated // 128 * 255
    return x


def torchvisions_crop(image, top, left, height, width, size, kind):
    box = [int(side) for side in (top, left, height, width)]
    mode = torchvision.transforms.InterpolationMode(kind)
    return TF.resized_crop(image, *box, [size, size], mode, antialias=True)


TORCHVISIONS = {  # operator: torchvision's, and the stage of a view that it belongs to
    common.resized_crop: (torchvisions_crop, "crop"),
    TF.horizontal_flip: (TF.horizontal_flip, "flip"),
    common.adjust_brightness: (TF.adjust_brightness, "colour"),
    common.adjust_contrast: (TF.adjust_contrast, "colour"),
    common.adjust_saturation: (TF.adjust_saturation, "colour"),
    common.adjust_hue: (TF.adjust_hue, "colour"),
    common.grayscale: (lambda image: TF.rgb_to_grayscale(image, 3), "grey"),
    common.gaussian_blur: (lambda image, sigma: TF.gaussian_blur(image, 13, sigma), "blur"),
}
VIEW_STAGES = {
    common.augment: ["crop", "flip", "colour", "grey", "blur"],
    sparsehead.colour_first: ["colour", "grey", "crop", "flip", "blur"],
}


class Call(NamedTuple):
    """An operator of a view, the images that get it, and what was drawn for it."""

    operator: Callable
    images: torch.Tensor
    drawn: tuple = ()


@pytest.fixture
def operators(monkeypatch):
    """The operators of the views that are made in a test, a Call each."""
    calls = []
    crop, coin, change_some = common.resized_crop, common.coin, common.change_some
    # A coin is known by its chance: those of ONE_VIEW differ.
    tossed = {0.5: TF.horizontal_flip, 0.35: TF.horizontal_flip, ONE_VIEW["gray"]: common.grayscale}

    def recorded_crop(x, *drawn):
        calls.append(Call(crop, torch.ones(len(x), dtype=torch.bool), drawn))
        return crop(x, *drawn)

    def recorded_coin(p, x):
        chosen = coin(p, x)
        if p in tossed:
            calls.append(Call(tossed[p], chosen.flatten()))
        return chosen

    def recorded_change(x, chosen, change, values):
        calls.append(Call(change, chosen, (values,)))
        return change_some(x, chosen, change, values)

    monkeypatch.setattr(common, "resized_crop", recorded_crop)
    monkeypatch.setattr(common, "coin", recorded_coin)
    monkeypatch.setattr(common, "change_some", recorded_change)
    return calls


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape, size", [((32, 32), 32), ((96, 80), 32), ((20, 32), 48)])
@pytest.mark.parametrize("make", VIEW_STAGES)
@pytest.mark.parametrize("compiled", [False, True])  # which is changed as on a GPU
def test_views_are_torchvisions(operators, monkeypatch, compiled, make, shape, size, kind):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
    x = varied_images(24, *shape)
    views = common.two_views(x, size, view=make, **ONE_VIEW | dict(jitter=1.0, crop=kind))
    operators.sort(key=lambda call: VIEW_STAGES[make].index(TORCHVISIONS[call.operator][1]))
    assert len(operators) == 1 + 1 + 4 * 4 + 1 + 1
    for i, view in enumerate(torch.cat(views)):
        expected = x[i % 24] / 255
        for operator, chosen, drawn in operators:
            if chosen[i]:
                own = [value[i].item() if torch.is_tensor(value) else value for value in drawn]
                expected = TORCHVISIONS[operator][0](expected, *own).clamp(0, 1)
        assert (view - (expected - 0.5) / 0.25).abs().max() < 2e-4


# ---- what is drawn: all within five standard errors
@pytest.mark.parametrize("h, w, area", [(32, 32, 0.1), (32, 50, 0.5), (32, 90, 0.5), (90, 32, 0.5)])
def test_boxes_are_as_often_as_torchvisions(h, w, area):
    n, image = 4000, torch.empty(3, h, w)
    ours = torch.stack(common.random_boxes(n, h, w, area, "cpu"), 1)
    draw = torchvision.transforms.RandomResizedCrop.get_params
    theirs = torch.tensor([draw(image, (area, 1.0), (3 / 4, 4 / 3)) for _ in range(n)])
    error = ((ours.var(0) + theirs.float().var(0)) / n).sqrt()
    assert ((ours.mean(0) - theirs.float().mean(0)).abs() < 5 * error + 1e-3).all()
    for ours_and_theirs in zip(ours.long().T, theirs.T):
        p, q = (sides.bincount(minlength=91) / n for sides in ours_and_theirs)
        assert ((p - q).abs() < 5 * ((p + q) / n) ** 0.5 + 1e-3).all()
    assert (ours[:, :2] + ours[:, 2:] <= torch.tensor([h, w])).all()


def near(shares, expected, n):
    """Whether shares of n draws are less than five standard errors from the expected one."""
    return ((shares - expected).abs() < 5 * (expected * (1 - expected) / n) ** 0.5).all()


def test_draws_are_even_and_independent(operators):
    """No draw tells anything of another, or of one for the other view."""
    n, x = 8000, torch.randint(0, 256, (4000, 3, 16, 16), dtype=torch.uint8)
    common.two_views(x, 8, **ONE_VIEW, flip=0.35)
    crop, flip, *colours, grey, blur = operators
    top, left, high, wide, *_ = crop.drawn
    factors = torch.stack([call.drawn[0].flatten() for call in colours[:4]])
    jittered = factors[3] != 0  # the hue's: 0 changes nothing
    factors = (factors - torch.tensor([1, 1, 1, 0])[:, None]) / 0.6
    factors[3] *= 4

    turns = torch.zeros(4, n)  # of each operator: when an image gets it
    adjust = common.adjust_brightness, common.adjust_contrast, common.adjust_saturation
    for k, operator in enumerate([*adjust, common.adjust_hue]):
        chosen = torch.stack([call.images for call in colours if call.operator is operator])
        assert (chosen.sum(0) == 1).all()
        turns[k] = chosen.int().argmax(0)
    _, counts = turns.unique(dim=1, return_counts=True)
    assert len(counts) == 24  # orders
    assert near(counts / n, 1 / 24, n)

    shares = flip.images, jittered, grey.images, blur.images
    rates = torch.stack(shares).float().mean(1)
    assert near(rates, torch.tensor([0.35, 0.8, 0.3, 0.4]), n)
    sigma = (blur.drawn[0] - 0.1) / 1.9
    for values in (sigma, *(factors[:, jittered] + 1) / 2):
        assert -1e-5 < values.min() < 0.01 < 0.99 < values.max() < 1 + 1e-5
        deciles = (values[:, None] < torch.arange(1, 10) / 10).float().mean(0)
        assert near(deciles, torch.arange(1, 10) / 10, len(values))

    ratio = (high / wide).log()
    assert ratio.mean().abs() < 5 * (ratio.var() / n) ** 0.5
    box = [(top + 0.5) / (17 - high), (left + 0.5) / (17 - wide), ratio]
    draws = torch.stack([*box, *shares, *factors, turns[0], sigma])
    of_views = torch.cat(draws.float().chunk(2, dim=1))  # each twice, for 4,000 images
    assert torch.corrcoef(of_views).fill_diagonal_(0).abs().max() < 5 / 4000**0.5


# High and wide as given; of 256 pixels 224 are cut.
@pytest.mark.parametrize(
    "high, wide, size, i, j, side",
    [(40, 60, 35, 0, 10, 40), (40, 60, 40, 0, 10, 40), (256, 260, 224, 16, 18, 224)],
)
def test_evaluation_sees_the_central_square(high, wide, size, i, j, side):
    x = varied_images(4, high, wide)
    square = TF.resized_crop(x / 255, i, j, side, side, [size, size])
    assert (common.eval_view(x, size) - (square - 0.5) / 0.25).abs().max() < 1e-5


# ------------------------------------------------------------------------------- common.py: network
@pytest.mark.parametrize("depth, size", [(50, 97), (34, 96), (18, 49), (18, 48)])
def test_backbones_are_torchvisions_but_for_the_stem(depth, size):
    ours, width = common.resnet(f"resnet{depth}", size)
    theirs = getattr(torchvision.models, f"resnet{depth}")()
    assert width == theirs.fc.in_features
    theirs.fc = nn.Identity()
    if size <= 96:
        theirs.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    if size <= 48:
        theirs.maxpool = nn.Identity()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = torch.rand(1, 3, 64, 48)
    with torch.no_grad():
        assert torch.equal(theirs.eval()(x), ours.eval()(x))


@pytest.mark.parametrize("depth", [8, 20])
def test_cifar_networks_are_he_et_als(depth):
    net, d = common.resnet(f"resnet{depth}", 32)
    seen = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            module.register_forward_hook(lambda _, inputs, out: seen.append((*out.shape[1:],)))
            he = (2 / (module.out_channels * 9)) ** 0.5
            assert module.weight.std().item() == pytest.approx(he, rel=0.1)
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, d) == (2, 64)
    n = (depth - 2) // 3  # convolutions in a stage
    assert seen == [(16, 32, 32)] * (1 + n) + [(32, 16, 16)] * n + [(64, 8, 8)] * n


# ------------------------------------------------------------------ common.py: optimiser, schedules
def naive_lars(w, g, velocity, lr, weight_decay, momentum, trust, clip):
    """A layer's weights and velocity after a step (You et al. 2017)."""
    rate, decay = 1.0, weight_decay
    if w.ndim == 1:
        decay = 0.0
    elif w.norm() > 0:
        rate = trust * w.norm() / (g.norm() + decay * w.norm()) * (g.norm() > 0)
        if clip:
            rate = min(rate / lr, 1)
    velocity = momentum * velocity + rate * (g + decay * w)
    return w - lr * velocity, velocity


RISING, FALLING = torch.linspace(-1, 2, 12).view(2, 2, 3), torch.linspace(1, -3, 6).view(3, 2)
LARS_LAYERS = [  # weights and gradient; the last is a bias
    (RISING, RISING.cos()),
    (FALLING, 3 * FALLING.cos()),
    (0 * FALLING, FALLING),
    (FALLING, 0 * FALLING),
    (RISING[0, 0], RISING[1, 1]),
]
NCLS_LARS = dict(lr=0.4, weight_decay=1e-4, momentum=0.9, trust=0.02, clip=True)  # the defaults
OTHER_LARS = dict(lr=0.2, weight_decay=0.3, momentum=0.5, trust=0.001, clip=False)


def test_lars_is_the_loop_for_every_group_and_layer():
    idle = nn.Parameter(torch.ones(2, 2))  # a weight that has no gradient
    groups, layers = [dict(params=[idle])], []
    for settings, typed in (NCLS_LARS, dict(lr=0.4)), (OTHER_LARS, OTHER_LARS):
        own = [[nn.Parameter(w.clone()), w, 0, g, settings] for w, g in LARS_LAYERS]
        groups.append(typed | dict(params=[p for p, *_ in own]))
        layers += own
    optimizer = common.LARS(groups, lr=1.0)
    for scale in (1.0, 1e-4, 5.0):  # clipping matters to a tiny gradient, which asks for much
        for layer in layers:
            p, w, velocity, g, settings = layer
            p.grad = scale * g
            layer[1:3] = naive_lars(w, scale * g, velocity, **settings)
        optimizer.step()
        for p, w, *_ in layers:
            assert torch.allclose(p, w, rtol=1e-4, atol=1e-6)
    assert torch.equal(idle, torch.ones(2, 2))


@pytest.mark.parametrize("steps, asked, warmup", [(99, 8.6, 9), (31, 100, 15), (1, 5, 0)])
def test_the_rate_rises_and_falls_by_cosine(steps, asked, warmup):
    rises = [(step + 1) / (warmup + 1) for step in range(warmup)]
    left = steps - warmup
    falls = [(1 + math.cos(math.pi * step / left)) / 2 for step in range(left)]
    found = [common.lr_share(step, steps, asked) for step in range(steps + 9)]
    assert found == pytest.approx([*rises, *falls, *[0] * 9])


# ----------------------------------------------------------- common.py: probe, neighbours, measures
def clusters(n, d=20):
    """Features (n, d) and labels (n,) of four classes that overlap, of sizes 5 : 2 : 2 : 1."""
    y = torch.tensor([0] * 5 + [1] * 2 + [2] * 2 + [3]).repeat(n // 10)
    x = 3 * torch.eye(4, d)[y] + 2 * torch.randn(n, d)
    mixed = torch.eye(d) + 0.3 * torch.randn(d, d, generator=torch.Generator().manual_seed(0))
    return x @ mixed, y


@pytest.mark.parametrize("l2, d", [(1.0, 20), (0.1, 20), (1e-5, 20), (1e-3, 150)])
def test_probe_scores_are_scikit_learns(l2, d):
    """The scales of features do not matter ([SparseHead], Proposition 5.2), nor a constant one."""
    x, y = clusters(400, d)
    x_test = clusters(50, d)[0] + 5  # from far away
    fit = LogisticRegression(C=1 / (l2 * len(x)), tol=1e-10, max_iter=10_000)
    fit.fit(((x - x.mean(0)) / x.std(0)).double().numpy(), y.numpy())
    expected = fit.decision_function(((x_test - x.mean(0)) / x.std(0)).double().numpy())

    scale, order = 0.1 * torch.rand(d) + 0.01, torch.randperm(d)
    x, x_test = (F.pad((part * scale + 7)[:, order], (0, 1), value=3.0) for part in (x, x_test))
    classify, _ = common.fit_probe(x, y, penalties=[l2, 1e3])
    assert np.abs(classify(x_test).numpy() - expected).max() < 0.015 * np.abs(expected).max()


def test_the_probe_of_collapsed_features_is_fitted():
    line = torch.linspace(-1, 1, 300)[:, None]  # rank 1: float32 rounds more than l2 off
    x, y = line.repeat(1, 256), (line[:, 0] > 0).long()
    classify, _ = common.fit_probe(x, y, penalties=[1e-9])
    assert (classify(x).argmax(1) == y).float().mean() > 0.98


def test_a_probe_goes_on_from_weights_without_doubt():
    y = torch.arange(40) % 2
    x = torch.stack([2.0 * y - 1, torch.ones(40)], 1)
    start = torch.tensor([[-1e4, 1e4], [0, 0]])  # every probability is 0 or 1
    found = (x @ common.logistic_regression(x, y, 0.1, start)).softmax(1)
    expected = (x @ common.logistic_regression(x, y, 0.1, 0 * start)).softmax(1)
    assert_close(found, expected, atol=0.02, rtol=0)


def test_the_first_best_penalty_for_unseen_images_is_chosen():
    y = torch.tensor([0, 0, 0, 1]).repeat(100)
    x = torch.randn(400, 3)
    x[:, 0] = y + 0.1 * x[:, 0]  # 1e3 predicts the commonest class alone; 1e-3 and 1e-4 are right
    assert common.fit_probe(x, y, (1e3, 1e-3, 1e-4))[1] == 1e-3

    y = torch.arange(400) % 2
    x = torch.randn(400, 300)
    x[:, :30] += 0.6 * y[:, None]
    y = torch.where(torch.rand(400) < 0.2, 1 - y, y)  # a weak penalty learns the mistakes by heart
    assert common.fit_probe(x, y, (1.0, 1e-5))[1] == 1.0

    y = torch.arange(200) // 10  # the last tenth of the file has classes of its own
    x = F.one_hot(y) + 0.1 * torch.randn(200, 20)
    assert common.fit_probe(x, y, (1e3, 1e-3))[1] == 1e-3


def test_the_probe_tries_six_penalties():
    assert PENALTIES == pytest.approx([10.0**-k for k in range(6)])


def test_the_likeliest_and_the_five_likeliest_are_counted():
    scores, y = torch.randn(360, 12).cumsum(1), torch.arange(360) % 12
    scores[:12] = torch.nan
    above = (scores > scores.gather(1, y[:, None])).sum(1)
    above[:12] = 12
    expected = [100 * (above < most).float().mean().item() for most in (1, 5)]
    assert common.top_1_and_5(scores, y) == pytest.approx(expected)


@pytest.mark.parametrize("n, n_test, k", [(400, 50, 5), (7, 1010, 9), (200, 90, 4)])
def test_neighbours_vote_as_scikit_learns(n, n_test, k):
    x, y = (part[-n:] for part in clusters(400))
    x_test, y_test = clusters(n_test)
    theirs = KNeighborsClassifier(min(k, n), metric="cosine").fit(x, y)
    expected = 100 * theirs.score(x_test, y_test)  # of equals the smallest class wins
    assert common.knn_accuracy(x, y, x_test, y_test, k) == pytest.approx(expected)


# ---- measures
def test_health_is_the_loop():
    z = torch.randn(6, 4) ** 2
    z[:, 1] *= 1e-7
    columns = (z / z.square().sum(1, keepdim=True).sqrt()).T.tolist()
    spread = sum(statistics.stdev(column) for column in columns) / 4 * math.sqrt(4)
    active = sum(value > 1e-5 for column in columns for value in column)
    assert common.health(-z) == pytest.approx(dict(spread=spread, act=active / 24), rel=1e-5)


def test_measures_of_dimensions_are_the_loop():
    y = torch.arange(3000) % 3 // 2  # 2000 and 1000 images
    z = torch.zeros(3000, 7)
    z[::2, 0] = torch.rand(1500) + 0.1  # tells nothing
    z[2::30, 1] = -torch.rand(100) - 0.1  # one class, by negative numbers
    z[[5, 6, 7, 8], 2] = torch.tensor([1.0, 2, 3, 4])
    z[[5, 8, 11], 3] = 1.0  # just enough for `adjusted`
    z[[5, 6], 4] = 1.0  # too few
    z[::2, 5] = 1e-7  # not active
    cons, entropy = [], []
    for column in (z / z.norm(dim=1, keepdim=True).clamp(min=1e-12)).abs().T[:5]:
        counts = y[column > 1e-5].bincount(minlength=2)
        cons.append(100 * counts.max().item() / counts.sum().item())
        entropy.append(scipy.stats.entropy([column[y == 0].sum(), column[y == 1].sum()]))
    adjusted = [common.of_dimensions(z[:, [k]], y)["adjusted"] for k in range(4)]
    known = dict(cons=np.mean(cons), adjusted=np.mean(adjusted), entropy=np.mean(entropy))
    assert common.of_dimensions(z, y) == pytest.approx(known, rel=1e-5)
    assert common.of_dimensions(z.double(), y) == common.of_dimensions(z, y)
    assert common.of_dimensions(z, 0 * y) == common.of_dimensions(0 * z, y) == {}
    assert common.of_dimensions(z[:, 4:5], y).keys() == {"cons", "entropy"}


def naive_random_directions(h, z, y):
    """Random directions of h, each active on as many images as a dimension of z (N, K)."""
    h = (h - h.mean(0)).double()
    directions = torch.randn(h.shape[1], z.shape[1], generator=torch.Generator().manual_seed(0))
    active = torch.zeros_like(z)
    for k, direction in enumerate(directions.T.double()):
        n = (z[:, k].abs() > 1e-5 * z.norm(dim=1)).sum()
        cosines = torch.stack([row @ direction / row.norm() for row in h])
        active[cosines.argsort(descending=True)[:n], k] = 1
    found = common.of_dimensions(active, y)
    return {"random_cons": found["cons"], "random_adjusted": found["adjusted"]}


@pytest.mark.parametrize("n", [2, 3, 4, 6, 20, 59])
def test_adjusted_consistency_is_above_exact_chance(n):
    sizes = (30, 20, 10)
    y = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    active = torch.randperm(60)[:n]
    cons, chance = y[active].bincount().max().item() / n, naive_chance(sizes)[n - 1]
    found = common.of_dimensions(torch.zeros(60, 1).index_fill(0, active, 1), y)
    assert found["adjusted"] == pytest.approx(100 * (cons - chance) / (1 - chance), abs=2)


def test_a_dimension_on_one_image_is_at_chance():
    y = torch.arange(60) % 3
    assert common.of_dimensions(torch.eye(60), y)["adjusted"] == 0


# ---- what the evaluation is to look at
class Looker(nn.Module):
    """Images (N, 3, 4, 4) → h (N, 48), z (N, 6) with a tiny and a dead dimension, and one more."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.layer = nn.Linear(48, 6)

    def forward(self, x):
        h = self.norm(x).flatten(1)
        z = self.layer(h).relu() * torch.tensor([1, 1, 1, 1, 1e-9, 0])
        return h, z.bfloat16(), None


def test_evaluation_is_of_labelled_images_in_eval_mode(tmp_path):
    rng = np.random.default_rng(0)
    y, background = rng.integers(0, 3, 610), rng.integers(0, 2, 610)
    x = rng.integers(0, 180, (610, 4, 4, 3)) + 25 * y[:, None, None, None]
    x[:, 0] += 25 * background[:, None, None]
    arrays = dict(x_unlabeled=rng.integers(0, 256, (90, 4, 4, 3)).astype(np.uint8))
    for kind, a in dict(x=x.astype(np.uint8), y=y, background=background).items():
        arrays |= {f"{kind}_train": a[:90], f"{kind}_test": a[90:]}  # looked at in two parts
    data, model = data_from(tmp_path, arrays), Looker()
    args = SimpleNamespace(image_size=4, device="cpu", precision="fp32")
    metrics, h, z = common.evaluate(model, data, args)

    with torch.no_grad():
        h_train, z_train, _ = model.eval()(common.eval_view(data.train["x"], 4))
        h_test, z_test, _ = model(common.eval_view(data.test["x"], 4))
    assert torch.allclose(h, h_test, atol=1e-5)
    assert torch.allclose(z, z_test.float(), atol=1e-2)  # a step of bf16
    active = z > 1e-5 * z.norm(dim=1, keepdim=True)
    expected = dict(act=active.float().mean().item(), live_dims=active.any(0).sum().item())
    for label, prefix in ("y", ""), ("background", "background_"):
        y_train, y = data.train[label], data.test[label]
        own = common.of_dimensions(z, y) | naive_random_directions(h, z, y)
        expected |= {prefix + name: value for name, value in own.items()}
        for suffix, train, test in ("", h_train, h), ("_embedding", z_train.float(), z):
            classify, l2 = common.fit_probe(train, y_train)
            right = (classify(test).argmax(1) == y).float().mean().item()
            knn5 = common.knn_accuracy(train, y_train, test, y, k=5)
            found = dict(lp1=100 * right, lp5=100, l2=l2, knn5=knn5)
            expected |= {prefix + name + suffix: value for name, value in found.items()}
    assert metrics == pytest.approx(expected)
    assert common.quick_knn(model, data, args) == metrics["knn5"]
    model.layer.weight.data.fill_(math.inf)
    with pytest.raises(common.BadInput, match="not finite"):
        common.evaluate(model, data, args)


def test_a_quick_accuracy_is_of_images_evenly_spaced(tmp_path):
    y = np.arange(6000) // 1000
    x = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), np.uint8)[y]  # a class, an image
    arrays = dict(x_train=x, y_train=y, x_test=x[::-4], y_test=y[::-4])
    args = SimpleNamespace(image_size=4, device="cpu", precision="fp32")
    assert common.quick_knn(Looker(), data_from(tmp_path, arrays), args) == 100


# ------------------------------------------------------------------------------------------ presets
# What the papers and the authors' code say. What is left out there is left out here. A base of
# sparsehead.py is "sparsehead byol". "lr=0.3 * 16": 0.3 for 256 images, of which a batch has 4,096.
def head(hidden, out):
    return dict(head_hidden=hidden, head_out=out)


STRONG_VIEWS = dict(min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5)
WEAK_VIEWS = dict(min_scale=0.2, jitter=0.4, gray=0.2)

# NCL and, in its authors' code, SimCLR; BayesNCL
OF_NCL = STRONG_VIEWS | dict(arch="resnet18", crop="bicubic")
OF_NCL |= dict(optimizer="lars", warmup=10, weight_decay=1e-4, temperature=0.2, head="mlp")
NCL_32 = OF_NCL | head(2048, 256) | dict(image_size=32, epochs=200, batch_size=256, lr=0.4)
NCL_224 = OF_NCL | head(16384, 2048) | dict(image_size=224, epochs=100, batch_size=128, lr=0.3 / 2)
GATE_32 = dict(gate="ste", gate_layers=2, gate_hidden=2048, gate_lr=0.1, gate_temperature=1)
GATE_32 |= dict(prior=0.8, kl_weight=3e-5, detach=True)

# SparseHead on small images: the settings of W-MSE's code, which warms up for 500 steps
WMSE = dict(optimizer="adam", weight_decay=1e-6, batch_size=512, schedule="step", head_hidden=1024)
WMSE_32 = WMSE | dict(image_size=32, lr=3e-3, epochs=1000, warmup=500 / (50_000 // 512))
WMSE_32 |= dict(head_out=64, whiten_size=128, whiten_splits=1)
WMSE_64 = WMSE | dict(image_size=64, lr=2e-3, head_out=128, whiten_size=256, whiten_splits=4)
WMSE_224 = WMSE | STRONG_VIEWS | dict(lr=2e-3, head_out=128, whiten_size=256, whiten_splits=1)
SPARSEHEAD = WEAK_VIEWS | dict(gray=0.1, blur=0, crop="bicubic", order="colour-crop")
SPARSEHEAD |= dict(arch="resnet18", head="mlp", temperature=0.5, momentum=0.99, sparse_weight=1e-4)
ON_STL10 = WMSE_64 | dict(epochs=2000, warmup=500 / (105_000 // 512))
ON_TINY = WMSE_64 | dict(warmup=500 / (100_000 // 512))

# and on ImageNet those of each base's own paper or code
LARGE = dict(arch="resnet50", image_size=224, epochs=1000, batch_size=4096, weight_decay=1e-6)
LARGE |= dict(optimizer="lars", schedule="cosine", warmup=10)
BYOL = LARGE | head(4096, 256)
WIDE = LARGE | head(8192, 8192) | dict(batch_size=2048, lr=0.2 * 8)
SWAV = LARGE | head(2048, 128) | STRONG_VIEWS | dict(crop="bilinear")
SPARSEHEADS_224 = {
    "sparsehead wmse": WMSE_224,
    "sparsehead simclr": LARGE | head(2048, 128) | dict(lr=0.3 * 16, jitter=0.8, temperature=0.5),
    "sparsehead byol": BYOL | dict(lr=0.2 * 16, weight_decay=1.5e-6, jitter=0.4, momentum=0.996),
    "sparsehead barlow": WIDE | dict(bias_lr=0.0048 * 8, weight_decay=1.5e-6),
    "sparsehead vicreg": WIDE | dict(jitter=0.4, gray=0.2),
    "sparsehead ssl-hsic": BYOL | dict(lr=0.4 * 16, momentum=0.99),
    "sparsehead swav": SWAV | dict(lr=4.8, temperature=0.1, prototypes=3000),
}

LPJEPA = WEAK_VIEWS | dict(mu=0, invariance_weight=25, projections=8192)
LPJEPA |= dict(optimizer="lars", epochs=1000, weight_decay=1e-4, warmup=10)
LPJEPA_32 = LPJEPA | head(512, 512) | dict(arch="resnet18", batch_size=256)
LPJEPA_32 |= dict(lr=0.03, match_weight=250)
LPJEPA_224 = LPJEPA | head(2048, 2048) | dict(arch="resnet50", batch_size=128, blur=0.5)
LPJEPA_224 |= dict(lr=0.165 / 2, match_weight=125)

SIMSIAM = WEAK_VIEWS | dict(batch_size=512, optimizer="sgd", predictor=True, stop_grad=True)
SIMSIAM |= dict(head_out=2048, predictor_hidden=512, zero_init_residual=True)
SIMSIAM_32 = SIMSIAM | dict(arch="resnet18", image_size=32, blur=0, crop="bilinear")
SIMSIAM_32 |= dict(epochs=800, lr=0.03 * 2, weight_decay=5e-4, projector_layers=2)
SIMSIAM_224 = SIMSIAM | dict(arch="resnet50", image_size=224, blur=0.5)
SIMSIAM_224 |= dict(epochs=100, lr=0.05 * 2, weight_decay=1e-4, projector_layers=3)

ON_CIFAR = {
    "simclr": NCL_32,
    "ncl": NCL_32 | dict(activation="rep_relu"),
    "bayesncl": NCL_32 | GATE_32 | dict(activation="rep_relu"),
    "sparsehead": WMSE_32 | SPARSEHEAD,
    "sparsehead wmse": WMSE_32,
    "sparsehead swav": dict(epochs=1000, temperature=0.1),
    "lpjepa": LPJEPA_32,
    "simsiam": SIMSIAM_32,
}
METHODS_224 = {
    "simclr": NCL_224,
    "ncl": NCL_224 | dict(activation="relu"),
    "bayesncl": NCL_224 | dict(activation="relu", gate_lr=0.1, gate_hidden=16384),
    "lpjepa": LPJEPA_224,
}
PUBLISHED = {
    "cifar10": ON_CIFAR,
    "cifar100": ON_CIFAR,
    "stl10": {"sparsehead": ON_STL10 | SPARSEHEAD, "sparsehead wmse": ON_STL10},
    "tiny-imagenet-200": {"sparsehead": ON_TINY | SPARSEHEAD, "sparsehead wmse": ON_TINY},
    "imagenet": SPARSEHEADS_224 | {"simsiam": SIMSIAM_224},
    "imagenet100": SPARSEHEADS_224 | METHODS_224,
}


def parser_of(program):
    name, *base = program.split()
    return importlib.import_module(name).parser(*base)


@pytest.mark.parametrize("name, program", [(n, p) for n in PUBLISHED for p in PUBLISHED[n]])
def test_a_preset_is_the_published_one(name, program):
    published = PUBLISHED[name][program]
    preset = parser_of(program).presets[name]
    assert {key: preset[key] for key in published} == pytest.approx(published)


# Of all presets, ours too: a digest for each program; "sparsehead byol" is its --base.
PRESETS = {
    "simclr": "080825278079dc35",
    "ncl": "1634ed2ff844cd48",
    "bayesncl": "7330bf51481771d8",
    "sparsehead": "6537063217674471",
    "sparsehead byol": "0e9eb3325917de2d",
    "sparsehead barlow": "d6752ddc1b0505b6",
    "sparsehead vicreg": "2b2a87b95759ed09",
    "sparsehead wmse": "3c0aede9bf8e695d",
    "sparsehead swav": "e0190bd7a5f420c4",
    "sparsehead ssl-hsic": "1fdf5bd2a4140e13",
    "simsiam": "d06d541ba69f3fa0",
    "nce": "7236074fde59a0e8",
    "mmncl": "2669b7da306b6ba9",
    "lpjepa": "9cad3f0a6bfea64e",
    "sae": "01019dec0946c5a2",
}


@pytest.mark.parametrize("program", PRESETS)
def test_presets_stay(program):
    settings = []
    for name, preset in parser_of(program).presets.items():
        for key, value in preset.items():
            value = round(value, 9) if isinstance(value, float) else value
            settings.append(f"{name} {key} {value}")
    found = hashlib.sha256(str(sorted(settings)).encode()).hexdigest()[:16]
    assert found == PRESETS[program], if_wanted(f'"{program}": "{found}"')


def settings_of(program, *flags):
    """What the program's parser makes of the flags, but for the names of data set and preset."""
    settings = vars(parser_of(program).parse([*flags, "--device", "cpu"]))
    return {key: settings[key] for key in settings.keys() - {"dataset", "preset", "command"}}


@pytest.mark.parametrize("program", [*PRESETS][:-1])
def test_a_data_sets_name_or_preset_chooses_settings(program):
    default = settings_of(program, "--dataset", "mine")
    assert default["seed"] == 1
    for name, preset in parser_of(program).presets.items():
        chosen = settings_of(program, "--dataset", name)
        assert preset.items() <= chosen.items()
        assert settings_of(program, "--dataset", "mine", "--preset", name) == chosen
        assert (chosen == default) == (name == "default")
    assert settings_of(program, "--dataset", "shapes", "--preset", "default") == default


# ----------------------------------------------------------- every training beside a plain loop
# No setting is a default or without effect: seed, limit, blur, decay, warm-up, temperature.
PLAIN_FLAGS = (
    "--dataset mine --preset shapes --arch resnet8 --image-size 8 --epochs 4 --limit 80 --seed 7"
    " --batch-size 30 --optimizer sgd --lr 0.05 --weight-decay 0.2 --warmup 1 --blur 0.5"
    " --min-scale 0.5 --jitter 0.3 --gray 0.3 --crop bicubic --precision fp32 --device cpu"
)
HALF_COSINE = [0.5 + 0.5 * math.cos(math.pi * k / 6) for k in range(6)]
PLAIN_RATES = {  # by --schedule, shares of the peak at eight steps, two of them warm-up
    "cosine": [1 / 3, 2 / 3, *HALF_COSINE],
    "step": [1 / 2, 1, 1, 1, 1, 1, 0.2, 0.2],
}
TRAINED_PLAINLY = {  # a program, with its base, and its flags
    "simclr": "--temperature 0.3",
    "ncl": "--loss spectral --lr 0.001",  # as vicreg
    "bayesncl": "--temperature 0.3 --kl-weight 0.1 --prior 0.4 --gate-lr 0.01",
    "sparsehead": "--temperature 0.3 --sparse-weight 0.05 --bias-lr 0.02",
    "sparsehead simclr": "--temperature 0.3 --head none --sparse-weight 0",
    "sparsehead byol": "--head-out 8 --momentum 0.9 --prox --sparse-weight 1",
    "sparsehead barlow": "--head-out 8 --order colour-crop",
    "sparsehead vicreg": "--head-out 8 --lr 0.001",  # with 0.05 its loss is not finite
    "sparsehead wmse": "--schedule step --head-out 8 --whiten-size 15 --whiten-splits 2",
    "sparsehead swav": "--temperature 0.3 --prototypes 6",
    "sparsehead ssl-hsic": "--head linear --momentum 0.9",
    "simsiam": "",
    "nce": "",
    "mmncl": "--temperature 0.3",
    "lpjepa": ("--projections 20 --mu 0.3 --noise gaussian --invariance-weight 3 --match-weight 2"),
}


@contextlib.contextmanager
def in_float64():
    """Every network and number is of float64, in which rounding flips no ReLU."""
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def plain_simclr(args, model, views, *_):
    (_, z1), (_, z2) = map(model, views)
    return dict(loss=naive_nt_xent(z1, z2, args.temperature))


def plain_ncl(args, model, views, *_):
    (_, z1), (_, z2) = map(model, views)
    return dict(loss=naive_spectral(z1, z2))


def plain_bayesncl(args, model, views, *_):
    (_, z1, m, alpha1), (_, z2, _, alpha2) = map(model, views)
    kl = torchs_divergence(torch.cat([alpha1, alpha2]), args.prior)
    loss = naive_nt_xent(z1, z2, args.temperature) + args.kl_weight * kl
    return dict(loss=loss, kl=kl, open=m.mean())


def plain_sparsehead(args, model, views, *_):
    z, p, t = [model(view)[1] for view in views], [], []
    if model.target is not None:
        p, t = [*map(model.predictor, z)], [*map(model.target, views)]
    losses = {
        "simclr": lambda: naive_nt_xent(*z, args.temperature),
        "byol": lambda: naive_byol(p[0], t[1]) + naive_byol(p[1], t[0]),
        "barlow": lambda: naive_barlow(*z),
        "vicreg": lambda: naive_vicreg(*z),
        "wmse": lambda: naive_wmse(*z, args.whiten_size, args.whiten_splits),
        "swav": lambda: naive_swav(*z, model.prototypes, args.temperature),
        "ssl-hsic": lambda: naive_hsic(*p, *t),
    }
    matrices = [w for w in model.head.parameters() if w.ndim > 1]
    penalty = 0 if args.prox or not matrices else args.sparse_weight * naive_l21(matrices[-1])
    return dict(loss=losses[args.base](), penalty=penalty)


def plain_simsiam(args, model, views, *_):
    (_, z1, p1), (_, z2, p2) = map(model, views)
    return dict(loss=(naive_negative_cosine(p1, z2) + naive_negative_cosine(p2, z1)) / 2)


def plain_nce(args, model, views, y, *_):
    return dict(loss=F.cross_entropy(model(views[0])[2], y))


def plain_mmncl(args, model, views, y, words, shared):
    _, v, _, t = model(views[0], words)
    return dict(loss=naive_info_nce(v, t, args.temperature))


def plain_lpjepa(args, model, views, y, words, shared):
    (_, z1), (_, z2) = map(model, views)
    directions = F.normalize(torch.randn(args.projections, z1.shape[1], generator=shared))
    u = torch.rand(2, *z1.shape, generator=shared)
    targets = rectified_quantiles(u, args.mu, args.noise)
    distances = [naive_distance(z, t, directions) for z, t in zip((z1, z2), targets)]
    found = dict(invariance=(z1 - z2).square().mean(), distance=sum(distances) / 2)
    loss = args.invariance_weight * found["invariance"] + args.match_weight * found["distance"]
    return dict(loss=loss, **found)


PLAIN_LOSSES = {  # what is recorded of a step; a "penalty" has a gradient, but no record
    "simclr": plain_simclr,
    "ncl": plain_ncl,
    "bayesncl": plain_bayesncl,
    "sparsehead": plain_sparsehead,
    "simsiam": plain_simsiam,
    "nce": plain_nce,
    "mmncl": plain_mmncl,
    "lpjepa": plain_lpjepa,
}


@torch.no_grad()
def follow(args, model, lr, done):
    """After a step of sparsehead.py columns shrink, and a target network follows."""
    for column in model.head[-1].weight.T if args.prox else ():
        column *= (1 - lr * args.sparse_weight / column.norm()).clamp(min=0)
    if model.target is not None:
        momentum = 1 - (1 - args.momentum) * (1 + math.cos(math.pi * done)) / 2
        online = nn.Sequential(model.backbone, model.head).parameters()
        for old, new in zip(model.target.parameters(), online, strict=True):
            old.copy_(momentum * old + (1 - momentum) * new)


def plain_data(args):
    """Images, labels and words of the captions, as --limit takes them."""
    arrays = np.load(Path(args.data_root, "mine.npz"))
    y = torch.from_numpy(arrays["y_train"]).long()
    n = args.limit
    kept = y.argsort(stable=True)[[i * len(y) // n for i in range(n)]].sort().values
    words = mmncl.numbered(arrays["captions_train"][kept].tolist())
    return torch.from_numpy(arrays["x_train"])[kept], y[kept], words


def plain_optimizer(name, args, model):
    """Its second group are those with a rate of their own: a gate, a predictor, biases."""
    own_rate = getattr(args, "gate_lr", None) or getattr(args, "bias_lr", None) or args.lr
    most, own = dict(params=[], lr=args.lr), dict(params=[], lr=own_rate)
    for part, p in model.named_parameters():
        is_bias = name == "sparsehead" and p.ndim == 1
        group = own if is_bias or part.startswith(("gating", "predictor")) else most
        group["params"].append(p)
    return torch.optim.SGD([most, own], momentum=0.9, weight_decay=args.weight_decay)


def train_plainly(program, argv):
    """The weights and the log of a training without common.Data, common.Run and schedules."""
    name = program.split()[0]
    args = parser_of(program).parse(argv)
    torch.manual_seed(args.seed)
    x, y, words = plain_data(args)
    args.classes = 10
    model = importlib.import_module(name).network(args).to(memory_format=torch.channels_last)
    optimizer = plain_optimizer(name, args, model)
    peaks = [group["lr"] for group in optimizer.param_groups]
    rates = PLAIN_RATES[getattr(args, "schedule", "cosine")]
    drawn = ("min_scale", "jitter", "gray", "blur", "crop")
    views = dict(size=args.image_size, **{key: getattr(args, key) for key in drawn})
    if getattr(args, "order", "") == "colour-crop":
        views["view"] = sparsehead.colour_first
    shared, log, step = torch.Generator(), [], 0
    for epoch in range(args.epochs):
        torch.manual_seed((args.seed * 10_007 + epoch) * 10_007)
        shared.manual_seed(args.seed * 10_007 + epoch)
        draw = torch.Generator().manual_seed(args.seed * 1_000_003 + epoch)
        batches = torch.randperm(len(x), generator=draw).split(args.batch_size)[:2]
        steps = []
        for index in batches:
            if name in ("nce", "mmncl"):
                flip = 0.5 if name == "nce" else 0.0  # a caption may say left or right
                images = [common.augment(x[index], flip=flip, **views)]
            else:
                images = common.two_views(x[index], **views)
            found = PLAIN_LOSSES[name](args, model, images, y[index], words[index], shared)
            for group, peak in zip(optimizer.param_groups, peaks):
                group["lr"] = peak * rates[step]
            if name == "simsiam":
                optimizer.param_groups[1]["lr"] = args.lr  # its predictor's rate is constant
            optimizer.zero_grad()
            (found["loss"] + found.pop("penalty", 0)).backward()
            if name == "sparsehead" and args.base == "swav" and epoch == 0:
                model.prototypes.grad = None
            optimizer.step()
            lr = args.lr * rates[step]
            if name == "sparsehead":
                follow(args, model, lr, step / len(rates))
            steps.append(found)
            step += 1
        means = {key: np.mean([found[key].item() for found in steps]) for key in found}
        log.append(means | dict(epoch=epoch + 1, lr=lr))
    return model.state_dict(), log


class Killed(BaseException):
    """As by kill -9: no program catches it."""


@contextlib.contextmanager
def dies(module, name, call, error):
    """Has the given call of a function, counted from 1, raise an error."""
    function, calls = getattr(module, name), itertools.count(1)

    def dying(*args, **options):
        if next(calls) == call:
            raise error
        return function(*args, **options)

    with mock.patch.object(module, name, dying):
        yield


@pytest.mark.parametrize("program", TRAINED_PLAINLY)
def test_an_interrupted_training_ends_as_a_plain_loop(program, tmp_path, capsys):
    arrays = shapes.draw(100, 20)
    for part, n in ("train", 100), ("test", 20):
        arrays[f"captions_{part}"] = np.array([f"word{i % 9} and word{i % 7}" for i in range(n)])
    name, *base = program.split()
    if name in ("nce", "mmncl"):  # which need labels or captions, so not these
        arrays["x_unlabeled"] = 255 - arrays["x_train"]
    np.savez(tmp_path / "mine.npz", **arrays)
    flags = f"{PLAIN_FLAGS} --data-root {tmp_path} {TRAINED_PLAINLY[program]}"
    argv = shlex.split(flags) + [f"--base={kind}" for kind in base]
    run, moved = tmp_path / "run", tmp_path / "moved"
    with in_float64():
        weights, log = train_plainly(program, argv)
        with dies(common, "health", 5, KeyboardInterrupt), pytest.raises(SystemExit) as stop:
            run_program(f"{name}.py", *argv, "--out", run)  # in epoch 3
        write_files(moved, {"mine.npz": arrays})
        (tmp_path / "mine.npz").unlink()
        with dies(common, "evaluate", 1, KeyboardInterrupt), pytest.raises(SystemExit):
            run_program(f"{name}.py --device cpu --data-root {moved} --resume {run}")
    assert stop.value.code == 130
    assert f"stopped: python {sys.argv[0]} --resume {run}\n" in capsys.readouterr().out
    found = common.load_checkpoint(run / "checkpoint.pt")["model"]
    for key, weight in weights.items():
        assert torch.allclose(found[key], weight, rtol=1e-6), key
    for line, expected in zip(records(run), log, strict=True):
        assert {key: line[key] for key in expected} == pytest.approx(expected)


# ------------------------------------------------------------------------- a run and what it leaves
@pytest.fixture(scope="module")
def left(tiny, tmp_path_factory):
    """A finished run of 13 epochs of a second each: folder, settings, data, network, output."""
    root = tmp_path_factory.mktemp("left")
    arrays = shapes.draw(240, 100)
    for part in "train", "test":
        arrays[f"y_{part}"] *= 3  # the classes are 0, 3, …, 27
    np.savez(root / "gaps.npz", **arrays)
    flags = (
        "--dataset gaps --image-size 8 --epochs 13 --limit 220 --batch-size 100 --precision fp32"
    )
    argv = shlex.split(f"{tiny} --data-root {root} {flags} --out {root / 'run'}")
    clock = mock.patch.object(time, "perf_counter", itertools.count().__next__)
    with clock, contextlib.redirect_stdout(io.StringIO()) as printed:
        run_program("ncl.py", *argv)
    args = ncl.parser().parse(argv)
    model = ncl.network(args).to(memory_format=torch.channels_last)
    model.load_state_dict(common.load_checkpoint(root / "run" / "checkpoint.pt")["model"])
    return root / "run", args, common.Data(args), model, printed.getvalue()


def test_a_run_leaves_its_settings_network_and_embeddings(left):
    folder, args, data, model, _ = left
    settings = json.loads((folder / "config.json").read_text())
    assert settings.keys() - vars(args) == {"commit", "hardware", "torch", "date"}
    assert vars(args).items() <= settings.items()
    failed, commit = subprocess.getstatusoutput(f"git -C {shlex.quote(str(ROOT))} rev-parse HEAD")
    assert settings["commit"] is None if failed else commit.startswith(settings["commit"][:10])
    h, z = common.features(model, data.test["x"], 8)
    arrays = np.load(Path(args.data_root, "gaps.npz"))
    expected = dict(h=h, z=z, y=arrays["y_test"], background=arrays["background_test"])
    kept = np.load(folder / "embeddings.npz")
    assert {*kept} == {*expected}
    assert all(np.array_equal(kept[name], expected[name]) for name in expected)
    backbone, _ = common.resnet("resnet8", 8)
    backbone.load_state_dict(torch.load(folder / "backbone.pt", weights_only=True))
    assert torch.allclose(backbone.eval()(common.eval_view(data.test["x"], 8)), h, atol=1e-5)
    files = "config.json metrics.jsonl checkpoint.pt backbone.pt embeddings.npz"
    assert {file.name for file in folder.iterdir()} == {*files.split()}


def test_each_epoch_is_told_and_ten_times_its_neighbours(left):
    folder, *_, printed = left
    *epochs, last = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert [line["epoch"] for line in epochs] == [*range(1, 14)]
    assert [line["epoch"] for line in epochs if "knn" in line] == [2, 3, 4, 6, 7, 8, 10, 11, 12, 13]
    assert epochs[-1]["knn"] == last["knn5"]  # so few images are all asked
    assert {(line["seconds"], line["images_per_s"]) for line in epochs} == {(1, 200)}
    assert last["seconds_train"] == 13
    assert re.search("^epoch 3/13  10 s left  .*images_per_s 200  knn ", printed, re.M)


def test_the_final_record_is_the_evaluation(left):
    folder, args, data, model, printed = left
    metrics, *_ = common.evaluate(model, data, args)
    *_, last = records(folder)
    assert last == pytest.approx(dict(event="final", epochs=13) | metrics)
    with contextlib.redirect_stdout(io.StringIO()) as table:
        common.print_table(last, data)
    assert table.getvalue() in printed
    hints = [f"python tools/{program}.py {folder}" for program in ("interpret", "look")]
    assert printed.splitlines()[-2:] == hints


def test_the_table_has_a_row_for_each_label(capsys):
    numbers = dict(lp1=12.34, lp5=100.0, act=0.0796, live_dims=153, adjusted=-0.04, entropy=2)
    test = dict(y=torch.tensor([0, 1]), background=torch.tensor([1, 1]))
    labels = SimpleNamespace(classes=dict(y=[0, 1], background=["land", "sea"]), test=test)
    common.print_table(numbers | dict(background_cons=50.3, random_adjusted=7), labels)
    _, of_y, random, of_background, _, note, *_ = capsys.readouterr().out.splitlines()
    assert random.split() == "random – – – – 0.080 153 – 7.0 –".split()
    assert of_y.split() == "class 12.3 100.0 – – 0.080 153 – 0.0 2.000".split()
    assert of_background.split() == "background – – – – 0.080 153 50.3 – –".split()
    assert "background has one class" in note


def test_a_label_of_one_class_is_left_out(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one = {f"y_{part}": np.full(n, "cat") for part, n in (("train", 20), ("test", 8))}
    arrays = ARRAYS | one | dict(background_train=Y_TRAIN, background_test=Y_TEST)
    write_files(".", {"mine.npz": arrays})
    run_program(f"mmncl.py {tiny} --dataset mine --data-root . --batch-size 10 --out run")
    assert "y has one class" in capsys.readouterr().out
    first, *_, final = records(Path("run"))
    trivial = {"knn", "lp1", "lp5", "knn5", "cons", "text_r1", "image_r5", "zero_shot"}
    assert trivial & {*first, *final} == set() < {"background_lp1", "background_cons"} & {*final}
    for program in "tools/interpret.py", "tools/look.py":
        run_program(f"{program} run")
        assert "y has one class, cat" in capsys.readouterr().out
    found = json.loads(Path("run/interpret.json").read_text())["numbers"]
    assert "background_cons" in found
    assert "cons" not in found
    run_program("selection.py run")
    assert "no P@10" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------ options
ONE_OF_EACH = [  # of the methods
    "simclr.py --head none --dataset unlabelled --optimizer lars",
    "ncl.py --loss spectral --topk 20 --head linear --activation softplus",
    "bayesncl.py --topk 20 --gate-layers 3 --no-detach",
    "sparsehead.py --base swav --prototypes 20 --bias-lr 1e-3",
    "simsiam.py --no-stop-grad --no-predictor --zero-init-residual",
    "nce.py --weights non-negative --head mlp --crop bicubic",
    "mmncl.py --activation none",
    "lpjepa.py --noise gaussian --projections 30",
]
VARIANTS = [  # those that train by different code
    *ONE_OF_EACH,
    "bayesncl.py --gate soft --kl-weight 1e-3",
    "sparsehead.py --base byol --sparse-weight 0.1 --prox --order colour-crop",
    "sparsehead.py --base barlow --schedule step",
    "sparsehead.py --base vicreg",
    "sparsehead.py --base ssl-hsic",
    "sparsehead.py --base wmse --head-out 8 --whiten-size 12 --whiten-splits 2",
    "simsiam.py",
]


@pytest.mark.parametrize("command", ONE_OF_EACH)
def test_a_training_compiles_once_and_whole(tiny, tmp_path, monkeypatch, command):
    whole_graph = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", whole_graph)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    program, _, flags = command.partition(" ")
    small = f"{tiny} --image-size 8 --limit 60 --batch-size 24 --epochs 2"  # a last batch of 12
    run_program(f"{program} {small} --compile {flags} --out", tmp_path)
    parts = 2 if program == "nce.py" else 3  # views, networks, and a loss of our own
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == parts
    *_, last = records(tmp_path)
    assert ("lp1" in last, last["epochs"]) == ("unlabelled" not in command, 2)
    weights = common.load_checkpoint(tmp_path / "checkpoint.pt")["model"]
    assert not any("_orig_mod" in name for name in weights)


# -------------------------------------------------------------------------------- sparse_coding.py
def landscape(**factors):
    """A setting of a moment, of sizes that all differ; all else is the paper's."""
    moment = dict(n=40, batch_size=16, p=12, d=6, m=8, epochs=4, lr=0.3, seeds=1)
    return sc.setting(moment | factors, {}, paper=True)


# The entries −1 and +1 of the authors' latents; 100 · .14 is 14.000000000000002, and ⌈it⌉ 15.
@pytest.mark.parametrize("d, pr, minus, plus", [(10, 0.1, 1, 1), (100, 0.14, 8, 7)])
def test_samples_have_their_law(d, pr, minus, plus):
    k = minus + plus
    iid = pr / (1 - (1 - pr) ** d)  # given that not all entries are 0
    laws = {  # the shares of −1 and +1; how many entries may be −1, and how many not 0
        "authors": (minus / d, plus / d, {minus}, {k}),
        "one-hot": (0, 1 / d, {0}, {1}),
        "iid": (iid / 2, iid / 2, range(d + 1), range(1, d + 1)),
        "zero-one": (0, iid, {0}, range(1, d + 1)),
    }
    for kind, (share_minus, share_plus, minuses, actives) in laws.items():
        s = landscape(latents=kind, d=d, p=d + 2, n=20_000)
        M, z, x = sc.sample(s, 3, pr, 0.15)
        for value, share in (-1, share_minus), (1, share_plus):
            of_features = (z == value).float().mean(1)  # (d,)
            assert (of_features - share).abs().max() <= 5 * (share / 20_000) ** 0.5, kind
        found = {*(z == -1).sum(0).tolist()}
        assert found <= {*minuses}, kind
        assert (1 in found) == (1 in minuses), kind
        assert {*z.abs().sum(0).tolist()} <= {*actives}, kind
        assert torch.allclose(M.T @ M, torch.eye(d), atol=1e-5)
        assert (x - M @ z).std().item() == pytest.approx(0.15, rel=0.01)


@pytest.mark.parametrize("kind", ["simclr, independent", "noncl, dependent"])
def test_views_are_masked_samples_in_a_new_order(kind):
    method, masks = kind.split(", ")
    factors = dict(n=200, p=40, batch_size=75, seeds=2, noise=[0.1, 0.2], keep=[1.0, 0.3])
    s = landscape(method=method, masks=masks, **factors)
    data = sc.Data(s, "cpu")
    orders, seen_by = set(), {}
    for epoch in range(2):
        batches = list(data.views())
        assert [a1.shape[2] for a1, _ in batches] == [75, 75, 50][: 2 + (method != "simclr")]
        a1, a2 = (torch.cat(views, 2) for views in zip(*batches))  # (R, p, B)
        for i, r in enumerate(data.replicas):
            x = sc.sample(s, r["seed"], r["sparsity"], r["noise"])[2]
            shares = [r["keep"], r["keep"], r["keep"] ** 2]  # of each view, and of both
            if masks == "dependent":
                x, shares = 2 * x, [r["keep"], 1 - r["keep"], 0]
            if r["keep"] == 1:  # then the seed's next replica has the same order
                order = [x[0].tolist().index(value) for value in a1[i, 0].tolist()]
                assert len({*order}) == len(order)
                orders.add(tuple(order))
            views = torch.stack([a1[i], a2[i]])  # (2, p, B)
            seen = views != 0
            assert torch.equal(views, x[:, order] * seen)
            found = [mask.double().mean().item() for mask in (*seen, seen[0] & seen[1])]
            assert found == pytest.approx(shares, abs=0.02)
            assert torch.equal(seen_by.setdefault((r["keep"], r["seed"], epoch), seen), seen)
    assert len(orders) == 4
    masks = torch.cat([seen[0] for (keep, *_), seen in seen_by.items() if keep < 1], 1)
    assert masks.unique(dim=1).shape == masks.shape  # every sample has its own


@pytest.mark.parametrize("factors", [dict(method="noncl"), dict(method="simsiam", head="mlp")])
def test_weights_start_with_the_papers_variance(factors):
    s = landscape(p=100, d=25, m=60, layers=2, lr=[0.1, 0.2], seeds=2, **factors)
    matrices = [W for W in sc.Model(s, sc.Data(s, "cpu")).parameters() if W.shape[2] > 1]
    stds = [W.std().item() * 50 for W in matrices]
    assert stds == pytest.approx([1] * 4, abs=0.05)  # N(0, 1/(pd))
    assert all(torch.equal(W[0], W[1]) for W in matrices)  # of one seed
    assert len({W[r, 0, 0].item() for W in matrices for r in (0, 2)}) == 8


@pytest.mark.parametrize("kind", ["random", "aligned"])
def test_warm_rows_are_noisy_features(kind):
    s = landscape(method="noncl", warm=[2.0, 2.5], warm_columns=kind, p=100, m=12, seeds=40)
    data = sc.Data(s, "cpu")
    given = []
    for chain in sc.Model(s, data).networks:
        W = chain[0].layers[0].detach()  # (R, m, p)
        columns = (W @ data.M).argmax(2)  # (R, m)
        noise = W - data.M.mT.gather(1, columns[..., None].expand(-1, -1, 100))
        deviations = noise[0::2].std().item(), noise[1::2].std().item()
        assert deviations == pytest.approx((0.01, 100**-1.25), rel=0.02)
        given.append(columns.tolist())
    for first, second, replica in zip(*given, data.replicas):
        full = len({*first}) == len({*second}) == 6
        assert replica["uncovered"] == ("none" if full else "feature")
        assert (first == second) == (kind == "aligned")
    assert sc.start_columns(landscape(warm_columns=kind, m=6), 1, 0).tolist() == [0, 1, 2, 3, 4, 5]


# ---- one replica alone, by the equations
class PlainLandscape:
    """A training of one replica in float64; h is (K, B). The start is checked above."""

    def __init__(self, s, r, replica):
        self.s, self.r, self.replica = s, r, replica
        self.M, _, self.x = sc.sample(s, *(replica[name] for name in ("seed", "sparsity", "noise")))
        start = sc.Model(s, sc.Data(s, "cpu")).double().requires_grad_()
        self.networks, self.head = start.networks, start.head
        for network in self.networks:
            for part in network:
                part.b.data.fill_(s.bias)
            self.constrain(network)

    def encode(self, network, h):
        for part in network:
            for W in part.layers:
                h = W[self.r] @ h
            if self.s.batch_norm != "none":
                scale_and_shift = [v[self.r, :, 0] for v in part.affine]
                h = F.batch_norm(h.T, None, None, *scale_and_shift, training=True).T
            b = part.b[self.r]
            phi = dict(srelu=h.sign() * (h.abs() - b).relu(), relu=(h - b).relu())  # Eq. (14)
            phi["one-sided"] = h * (h > 0) + (h + 2 * b) * (h < -2 * b)  # b may be negative
            h = phi[self.s.activation]
        return h

    def predict(self, h):
        return self.head[0][self.r] @ h + self.head[1][self.r] if self.head else h

    def similarity(self, h, goal):
        u, v = self.predict(h), goal.detach()
        if self.s.similarity == "cosine":
            return -naive_negative_cosine(u.T, v.T)
        return (u * v).sum(0).mean()

    def loss(self, a1, a2, turn):
        h1, h2 = (self.encode(self.networks[turn], a) for a in (a1, a2))
        if self.s.method == "simsiam":
            return -self.similarity(h1, h2) / 2 - self.similarity(h2, h1) / 2
        if self.s.method == "noncl":  # Eq. (4) to (8)
            return 2 - 2 * self.similarity(h1, self.encode(self.networks[1 - turn], a2))
        z1, z2 = self.predict(h1).T, self.predict(h2).T
        return naive_nt_xent(z1, z2, self.replica["temperature"])  # Eq. (9)

    def constrain(self, network):
        for part in network:
            part.b.data.clamp_(min=0 if self.s.activation == "srelu" else -math.inf)
        for W in network[0].layers:  # not SimSiam's projector
            if self.s.normalise != "none":
                W.data = F.normalize(W.data, dim=2 if self.s.normalise == "rows" else 1)

    def step(self, a1, a2, turn):
        free = [*self.head]
        for part in self.networks[turn]:
            free += [*part.layers, *part.affine]
            free += [part.b] if self.s.train_bias else []
        loss = self.loss(a1[self.r].double(), a2[self.r].double(), turn)
        for w, gradient in zip(free, torch.autograd.grad(loss, free)):
            w.data -= self.replica["lr"] * gradient
        self.constrain(self.networks[turn])
        return loss.item()

    @torch.no_grad()
    def measure(self, loss):
        """min, median, max, loss, spread, rank: MEASURED of the network o."""
        encoder = self.networks[0][0]
        W = functools.reduce(lambda W, layer: layer @ W, [W[self.r] for W in encoder.layers])
        cosines = F.normalize(W).numpy() @ self.M.double().numpy()
        best = np.abs(cosines).max(0)
        h = self.encode([encoder], self.x.double()).numpy()
        spread = (h / np.linalg.norm(h, axis=0).clip(1e-6)).std(1).mean() * self.s.m**0.5
        rank = math.exp(scipy.stats.entropy(np.linalg.svd(cosines)[1] ** 2))
        return [best.min(), np.median(best), best.max(), loss, spread, rank]


EIGHT_REPLICAS = dict(seeds=2, lr=[0.2, 0.5], keep=[0.5, 0.8])
TWO_AT_A_TIME = dict(method="simclr", batch_norm="none", n=1030, batch_size=512, epochs=1)
LANDSCAPES = {
    "eight replicas": dict(method="simclr", **EIGHT_REPLICAS),
    "data, τ": dict(method="simclr", sparsity=[0.1, 0.3], temperature=[0.2, 0.6]),
    "authors' layers": dict(method="simclr", head="linear", bias=0.2, **sc.AUTHORS),
    "large batches": dict(temperature=[0.1, 0.5, 1], **TWO_AT_A_TIME),
    "two networks": dict(method="noncl", noise=[0.1, 0.3], **EIGHT_REPLICAS),
    "three layers": dict(method="noncl", layers=3, train_bias=False, bias=0.2),
    "products": dict(method="noncl", similarity="product", batch_norm="none", lr=0.05),
    "rows": dict(method="noncl", head="linear", layers=2, normalise="rows", bias=0.1),
    "columns": dict(method="noncl", normalise="columns", warm=[1.0, 1.5], masks="dependent"),
    "SimSiam, authors' layers": dict(method="simsiam", head="mlp", **EIGHT_REPLICAS, **sc.AUTHORS),
    "SimSiam, rows": dict(method="simsiam", head="mlp", normalise="rows", bias=0.2),
    "SimSiam, products": dict(method="simsiam", similarity="product", activation="relu", lr=0.02),
}


@pytest.mark.parametrize("factors", LANDSCAPES.values(), ids=LANDSCAPES)
def test_replicas_train_as_the_plain_loop_alone(factors):
    s = landscape(**factors)
    replicas, curves = sc.train(s)
    assert curves["epoch"].tolist() == list(range(s.epochs + 1))
    found = np.stack([curves[name] for name in sc.MEASURED])  # (6, T, R)
    data = sc.Data(s, "cpu")
    epochs = [list(data.views()) for _ in range(s.epochs)]
    for r, replica in enumerate(replicas):
        plain = PlainLandscape(s, r, replica)
        expected = [plain.measure(math.nan)]
        turns = itertools.cycle(range(len(plain.networks)))
        for views in epochs:
            losses = [plain.step(a1, a2, next(turns)) for a1, a2 in views]
            expected.append(plain.measure(np.mean(losses)))
        assert np.allclose(found[:, :, r].T, expected, rtol=3e-5, atol=3e-5, equal_nan=True)


def test_epochs_are_measured_evenly_by_ratio_and_at_the_budget():
    s = landscape(method="noncl", n=64, epochs=1000, lr=[0.2, 0.5])  # 2 steps of each network
    assert sc.epochs_to_measure(s, 4) == {1, 334, 667, 1000} | {10, 100} | {500, 200}


def test_a_diverging_landscape_is_refused():
    assert "not finite in epoch 1" in refusal(lambda: sc.train(landscape(lr=1e30)))


def test_noise_of_none_is_the_codes():
    assert landscape(d=6, noise=[None, 0.5]).noise == [math.log(6) ** 0.5 / 6, 0.5]


# ---- the experiments; test_studies.py has them beside the records
def landscapes_of(command):
    """What a command line trains: "experiment: title", setting and what the paper reports."""
    programs = sc.plan(sc.parser().parse(command.split()))
    return [(f"{name}: {row[0]}", *row[1:]) for name, rows in programs.items() for row in rows]


def test_flags_replace_epochs_and_seeds():
    settings = [
        s for _, s, _ in landscapes_of("--experiment fig1 budget alignment --epochs 7 --seeds 2")
    ]
    assert {s.epochs for s in settings} == {7}
    assert [s.seeds for s in settings] == [2] * 15 + [60]


def test_table_1_has_the_layers_of_text_and_code():
    for title, s, _ in landscapes_of("--experiment table1"):
        of_code = "authors" in title
        layers = dict(batch_norm="plain", activation="srelu") | (sc.AUTHORS if of_code else {})
        assert layers.items() <= vars(s).items()
        assert (s.head == "mlp") == (of_code and s.method == "simsiam")


NO_SETTINGS = [  # factors that clash, and names and values that there are not
    dict(d=13),
    dict(batch_size=41),
    dict(method="noncl", head="mlp"),
    dict(similarity="product"),
    dict(warm=[None, 1.0]),
    dict(keep=[0.5, 0.0]),
    dict(activaton="relu"),
    *[{name: "other"} for name in (*sc.CHOICES, "activation")],
]


@pytest.mark.parametrize("factors", NO_SETTINGS, ids=str)
def test_a_setting_that_cannot_be_is_refused(factors):
    with pytest.raises(AssertionError):
        landscape(**factors)


# ---- the table
LANDSCAPE_ROWS = {  # a title, what a reported number depends on, and the reported
    "two rows": ("a, sparsity {sparsity}, lr {lr}", "sparsity", {0.1: 0.5, 0.3: "low"}),
    "fig7": ("a, lr {lr}, warm {warm}, uncovered {uncovered}", "warm", {1.0: "falls"}),
}


@pytest.mark.parametrize("case", LANDSCAPE_ROWS)
def test_rows_are_means_over_seeds(case):
    title_of, factor, of_min = LANDSCAPE_ROWS[case]
    own = {"lr": [10.0, 20.0], "seeds": 3, factor: [*of_min, 3.0][:2]}
    own |= dict(by=["uncovered"]) if case == "fig7" else dict(two_rows=True)
    s = landscape(method="noncl", n=64, m=12, **own)  # 2 steps of each network in an epoch
    replicas = sc.Data(s, "cpu").replicas
    curves = {"epoch": np.array([0.0, 1, 5, 9])}
    for name in sc.MEASURED:
        curves[name] = np.random.default_rng(len(curves)).random((4, len(replicas)))
    groups = collections.defaultdict(list)
    for i, replica in enumerate(replicas):
        groups[title_of.format(**replica)].append(i)
    found, kept = sc.rows(case, "a", s, replicas, curves, {"min": of_min, "max": 0.5})
    expected = []
    for title, members in groups.items():
        first = replicas[members[0]]
        spent = (first["lr"] * 2 * curves["epoch"]).tolist()
        assert kept[f"{case}/{title}/lr_times_steps"].tolist() == spent
        ends = [2, 3] if s.two_rows and first["lr"] == 20 else [3]  # 2: lr × steps 200
        reported = ("min", of_min.get(first[factor])), ("max", 0.5)
        for (statistic, paper), end in itertools.product(reported, ends):
            values = curves[statistic][:, members]
            assert np.array_equal(kept[f"{case}/{title}/{statistic}"], values)
            row = dict(experiment=case, setting=title, statistic=statistic, paper=paper)
            row |= dict(start=values[0].mean(), end_mean=values[end].mean(), seeds=len(members))
            row["lr_times_steps"] = spent[end]
            row["end_std"] = statistics.stdev(values[end]) if len(members) > 1 else None
            expected.append(pytest.approx(row))
    assert found == expected


def test_a_stopped_landscape_ends_with_its_table(tmp_path, capsys):
    flags = "--experiment fig2 fig4 --epochs 2 --seeds 2"
    run_program(f"sparse_coding.py {flags} --device cpu --out", tmp_path)
    rows, curves = [], {}
    for title, s, reported in landscapes_of(flags):
        own_rows, own_curves = sc.rows(*title.split(": "), s, *sc.train(s), reported)
        rows += own_rows
        curves |= own_curves
    assert json.loads((tmp_path / "results.json").read_text()) == rows
    assert np.load(tmp_path / "curves.npz").files == [*curves]
    printed = capsys.readouterr().out.splitlines()
    for row in rows:
        cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()]
        told = "  ".join(cells).replace("None", "–")
        assert told in [re.sub("  +", "  ", line.strip()) for line in printed]

    assert "this run is complete" in refusal("sparse_coding.py --resume", tmp_path)
    (tmp_path / "results.json").unlink()
    note = tmp_path / "memory" / "fig4-0-cpu.pt"
    note.parent.mkdir()
    (*_, (_, s, _)) = landscapes_of(flags)
    s.epochs = 1
    sc.train(s, memory=note)
    state = common.load_checkpoint(note)
    state["curves"][0][0] += 1  # min; to see that the note is read
    torch.save(state, note)
    run_program("sparse_coding.py --resume", tmp_path)
    rows[-1]["start"] = pytest.approx(rows[-1]["start"] + 1)
    assert json.loads((tmp_path / "results.json").read_text()) == rows
    assert not note.parent.exists()


# ------------------------------------------------------------------------------------------ sae.py
@pytest.fixture(scope="module")
def run_to_code(tmp_path_factory):
    """What an image method leaves, of 44 images without labels and 40 with; nothing was trained."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("sae")
    x = torch.randint(0, 40, (80, 16, 16, 3), dtype=torch.uint8)
    y = torch.arange(80) % 2
    x[y == 1] += 180
    arrays = dict(x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    np.savez(root / "toy.npz", **arrays, x_unlabeled=shapes.draw(44, 0)["x_train"])
    settings = dict(method="simclr", dataset="toy", data_root=str(root), limit=None)
    settings |= dict(arch="resnet8", image_size=16, min_scale=0.2, jitter=0.4, gray=0.2, blur=0.0)
    settings |= dict(crop="bilinear", order="colour-crop", zero_init_residual=True)
    write_files(root, {"run/config.json": json.dumps(settings)})
    backbone, _ = common.resnet("resnet8", 16)
    torch.save(backbone.state_dict(), root / "run/backbone.pt")
    return root / "run"


def k_largest(scores, k):
    """The k largest of all entries, where positive; the others 0."""
    cut = sorted(scores.flatten().tolist())[-k]
    return scores * ((scores >= cut) & (scores > 0))


def plain_mono_loss(h, z):
    a = (z - z.amin(0)) / (z.amax(0) - z.amin(0)).clamp(min=0.001)
    cosines, weights = 0, 0  # (K,)
    for i, j in itertools.combinations(range(len(h)), 2):
        cosines = cosines + a[i] * a[j] * F.cosine_similarity(h[i], h[j], dim=0)
        weights = weights + a[i] * a[j]
    counts = weights >= 0.01
    return 1 - (cosines[counts] / weights[counts]).mean()


def plain_codes(model, x, training):
    """Scores, codes and what these miss."""
    scores = (x - model.b) @ model.W_enc.T
    z = scores * (scores > model.threshold)
    if training and model.batch_topk:
        z = k_largest(scores, model.k * len(x))
    elif not model.batch_topk:
        z = torch.stack([k_largest(row, model.k) for row in scores])
    return scores, z, x - z @ model.W_dec.T - model.b


def plain_sae_loss(model, x, dead, args):
    scores, z, e = plain_codes(model, x, training=True)
    loss = e.square().sum(1).mean()
    found = dict(unexplained=loss.item(), dead=dead.double().mean().item())
    if dead.any():
        most = min(dead.sum().item(), len(model.b) // 2)
        of_dead = torch.stack([k_largest(row, most) for row in scores[:, dead]])
        rest = e.detach() - of_dead @ model.W_dec[:, dead].T
        loss = loss + args.aux_weight * rest.square().sum() / e.detach().square().sum()
    if args.mono_weight:
        mono = plain_mono_loss(x * model.scale + model.mean, z)
        loss = loss + args.mono_weight * mono
        found["mono_loss"] = mono.item()
    return loss, z, found | dict(loss=loss.item())


def plain_sae(args, images):
    """A training by the equations in float64: the records of its epochs, and the autoencoder."""
    torch.manual_seed(args.seed)
    model = sae.SAE(args)
    model.backbone.load_state_dict(common.load_checkpoint(Path(args.run, "backbone.pt")))
    with torch.no_grad():
        h = model.backbone.eval()(common.eval_view(images, 16)).double()
    model.double()
    model.mean = h.mean(0)
    model.scale = (h - model.mean).norm() / len(h) ** 0.5
    x = (h - model.mean) / model.scale
    if args.frozen_decoder:  # of the covariance of x
        model.W_dec.data = F.normalize(x.T @ torch.randn(len(h), len(model.idle)).double(), dim=0)
    model.W_enc.data = model.W_dec.data.T.clone()
    model.b.data.zero_()
    free = [model.W_enc, model.b] if args.frozen_decoder else [model.W_enc, model.b, model.W_dec]
    adam, records, done = torch.optim.Adam(free), [], 0
    steps = len(x) // args.batch_size
    for epoch in range(args.epochs):
        torch.manual_seed((args.seed * 10_007 + epoch) * 10_007)
        log = []
        for index in torch.randperm(len(x)).split(args.batch_size)[:steps]:
            lr = args.lr * (1 + math.cos(math.pi * done / args.epochs / steps)) / 2
            adam.param_groups[0]["lr"] = lr
            loss, z, found = plain_sae_loss(model, x[index], model.idle >= len(x), args)
            adam.zero_grad()
            loss.backward()
            adam.step()
            if not args.frozen_decoder:
                model.W_dec.data /= model.W_dec.data.norm(dim=0)
            model.idle = torch.where((z > 0).any(0), 0, model.idle + len(index))
            done += 1
            model.threshold += max(0.01, 1 / done) * (z[z > 0].min().detach() - model.threshold)
            log.append(found)
        means = {name: np.mean([found[name] for found in log]) for name in found}
        records.append(pytest.approx(means | dict(epoch=epoch + 1, lr=lr), rel=1e-4))
    return records, model


SAE_RUNS = {  # of 44 images: batches of 12 leave some out. A unit that is alone learns nothing
    "topk": "--topk 2 --units 150 --batch-size 12 --aux-weight 0.5 --seed 3",
    "few units": "--topk 3 --units 30 --batch-size 11 --aux-weight 2",
    "batch-topk": "--batch-topk --topk 4 --units 40 --batch-size 11 --mono-weight 0.7",
    "frozen": "--frozen-decoder --batch-topk --topk 2 --units 40 --batch-size 4 --epochs 12",
}


@pytest.mark.parametrize("flags", SAE_RUNS.values(), ids=SAE_RUNS)
def test_a_stopped_autoencoder_goes_on_as_the_plain_algorithm(flags, run_to_code, tmp_path):
    def write(text):
        if "epoch 4/" in text:  # before it is saved
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    source = shutil.copytree(run_to_code, tmp_path / "source")
    command = f"sae.py {source} --epochs 5 {flags} --lr 0.005 --device cpu --out {folder}"
    screen = SimpleNamespace(write=write, flush=lambda: None)
    with contextlib.redirect_stdout(screen), pytest.raises(SystemExit):
        run_program(command)
    assert len(records(folder)) == 3
    shutil.rmtree(source)  # the checkpoint has the backbone
    run_program("sae.py --resume", folder)

    args, model = load_run(folder)
    assert vars(read_run(run_to_code)).items() - {("method", "simclr")} <= vars(args).items()
    args.run, data = run_to_code, common.Data(args)
    expected, plain = plain_sae(args, data.images)
    *epochs, final = records(folder)
    assert epochs == expected
    found = model.state_dict()
    for name, value in plain.state_dict().items():
        distance = torch.dist(found[name].double(), value.double())
        assert distance <= 1e-3 * value.double().norm(), name

    h = plain.backbone(common.eval_view(data.test["x"], 16).double())
    _, z, e = plain_codes(plain, (h - plain.mean) / plain.scale, training=False)
    arrays = np.load(folder / "embeddings.npz")
    assert np.allclose(arrays["h"], h.detach(), atol=1e-5)
    assert np.allclose(arrays["z"], z.detach(), rtol=1e-3, atol=1e-3)
    error = (plain.scale * e).square().sum(1).mean().item()
    told = dict(reconstruction_error=error, dead_units=(plain.idle >= 44).sum().item())
    told["explained_variance"] = 1 - error / h.var(0, correction=0).sum().item()
    assert {name: final[name] for name in told} == pytest.approx(told, rel=1e-3)


def test_monoloss_is_the_loop_over_pairs():
    h = torch.randn(9, 4).double()
    z = torch.rand(9, 7).double() * (torch.rand(9, 7) < 0.5)
    z[:, 0] += 1  # never 0, so the scale has its least value at 0
    z[:, 1:5] = 0  # the first is idle
    z[3, 2] = 1  # of one image
    z[:2, 3:5] = torch.tensor([[1, 1], [0.0101, 0.0099]])  # a pair that weighs enough; and not
    z[:, 5] *= 3e-5  # of so little that its pairs do not weigh enough
    z.requires_grad_()
    losses = sae.mono_loss(h, z), plain_mono_loss(h, z)
    assert losses[0].item() == pytest.approx(losses[1].item())
    assert torch.allclose(*(torch.autograd.grad(loss, z)[0] for loss in losses))


def test_monoloss_of_half_precision_is_float32():
    half = [3000 * numbers(7, 300, 5).half(), 3000 * numbers(8, 300, 4).half()]
    whole = [x.float() for x in half]
    assert_close(sae.mono_loss(*half), sae.mono_loss(*whole), rtol=0, atol=0)


# --------------------------------------------------------------------------------------- shapes.py
DIGESTS = {  # options; a digest of the bytes of every array
    "the data set": ({}, "350083793bf2cda9"),
    "pairs": (dict(train=0, paired=0.9, turn=2), "24ba3ebf05aeb6cd"),
    "unseen": (dict(train=9, frequencies=shapes.UNSEEN, seed=1), "025da540f88c2261"),
}


@pytest.mark.parametrize("options, digest", DIGESTS.values(), ids=DIGESTS)
def test_images_are_the_same_bytes(options, digest):
    arrays = shapes.draw(**options)
    together = b"".join(arrays[key].tobytes() for key in sorted(arrays))
    found = hashlib.sha256(together).hexdigest()[:16]
    assert found == digest, if_wanted(f'({options}, "{found}")')


def test_captions_name_object_and_background():
    scene = shapes.draw(0, 1000, seed=5)
    classes = ROOT / "assets/classes"
    objects = (classes / "shapes.txt").read_text().split()
    backgrounds = (classes / "shapes-backgrounds.txt").read_text().split()
    shown = zip(scene["captions_test"], scene["y_test"], scene["background_test"])
    for caption, y, background in shown:
        named = {*re.findall(r"[\w-]+", caption)} & {*objects, *backgrounds}
        assert named == {objects[y], backgrounds[background]}


# -------------------------------------------------------------------------------- several processes
def train_variants(folder, tiny):
    """What each process of the next test does: two steps of each variant, without chance.

    And before them README's loop. Leaves the folders "<processes> <variant>", and what a process
    drew next.
    """

    def view(x, *_, start=0, **__):
        """Every fourth pixel."""
        return x[..., ::4, start::4] / 255.0

    run_readmes_loop(folder)

    def frozen(norm, mode=True):  # BatchNorm would see a process's images alone
        return nn.Module.train(norm, False)

    nn.modules.batchnorm._BatchNorm.train = frozen
    common.augment = view
    common.two_views = lambda x, *_, **__: (view(x), view(x, start=1))
    common.evaluate = lambda model, data, _: ({}, *common.features(model, data.test["x"], 8))
    small = f"{tiny} --limit 48 --batch-size 24 --epochs 1 --optimizer sgd --precision fp32"
    with in_float64():
        for variant in VARIANTS:
            program, _, flags = variant.partition(" ")
            out = f"{folder}/{common.WORLD} {variant}"
            argv = [*shlex.split(f"{small} {flags}"), "--out", out]
            importlib.import_module(program.removesuffix(".py")).main(argv)
    torch.save(torch.rand(9), f"{folder}/{common.WORLD}-{common.RANK}.pt")


def run_readmes_loop(folder):
    """README's training loop as it stands, in each process; leaves what its last step had."""
    _, _, text = TEXTS["README.md"].partition("\n## In your own training loop\n")
    names = {}
    torch.distributed.init_process_group = lambda: None  # launch has called it
    exec(text.split("```python\n")[1].split("```")[0], names)
    state = {name: names[name] for name in ("z", "alpha", "loss")}
    state["gradients"] = [p.grad for p in names["model"].parameters()]
    torch.save(state, f"{folder}/loop-{common.WORLD}-{common.RANK}.pt")


@pytest.fixture(scope="session")
def one_and_three(tiny, tmp_path_factory):
    """The folder where one process, and three under torchrun, have trained the variants."""
    folder = tmp_path_factory.mktemp("processes")
    code = "import conftest, common, test_all; "  # conftest.py puts our folders on the path
    code += f"common.launch(lambda: test_all.train_variants('{folder}', '{tiny}'))"
    torchrun = "-m torch.distributed.run --standalone --nproc_per_node=3 --no-python".split()
    side_by_side(["-c", code], [*torchrun, sys.executable, "-c", code])
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_processes_train_as_one(one_and_three, variant):
    one, three = one_and_three / f"1 {variant}", one_and_three / f"3 {variant}"
    for ours, theirs in zip(records(three), records(one), strict=True):
        assert ours == pytest.approx(theirs)
    ours, theirs = (common.load_checkpoint(run / "checkpoint.pt")["model"] for run in (three, one))
    for name in theirs:
        assert torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-9), name


@pytest.mark.parametrize("world", [1, 3])
def test_readmes_loop_counts_the_negatives_of_all_processes(one_and_three, world):
    paths = [one_and_three / f"loop-{world}-{rank}.pt" for rank in range(world)]
    states = [common.load_checkpoint(path) for path in paths]
    z1, z2 = torch.cat([state["z"].view(2, 16, 256) for state in states], 1)
    p = torch.distributions.Bernoulli(torch.cat([state["alpha"] for state in states]))
    kl = torch.distributions.kl_divergence(p, torch.distributions.Bernoulli(0.8)).sum(1).mean()
    loss = bayesncl.nt_xent(z1, z2, 0.2) + 3e-5 * kl
    for state in states:
        assert torch.allclose(state["loss"], loss)
        for gradient, same in zip(state["gradients"], states[0]["gradients"]):
            assert gradient.abs().max() > 0
            assert gradient.equal(same)


def test_processes_draw_views_of_their_own(one_and_three):
    first, second = [common.load_checkpoint(one_and_three / f"3-{rank}.pt") for rank in (0, 1)]
    assert not torch.equal(first, second)


def test_batches_are_whole_and_of_equal_shares(tmp_path, monkeypatch):
    data = data_from(tmp_path, ARRAYS)
    assert [data.steps(size) for size in (9, 20)] == [2, 1]
    monkeypatch.setattr(common, "WORLD", 3)
    for batch_size in (8, 3):  # unequal shares, and of one image
        with pytest.raises(common.BadInput, match="3 processes"):
            data.steps(batch_size)


# ---------------------------------------------------------------------------- nothing is waited for
NOISY = "bayesncl.py --gate gumbel --optimizer lars --blur 1"


@pytest.mark.parametrize("command", [*VARIANTS, NOISY])
def test_no_step_waits_for_a_gpu(tiny, tmp_path, command):
    program, _, flags = command.partition(" ")
    small = "--device cuda --image-size 8 --limit 180"  # three steps
    stop = dies(common.Run, "end_epoch", 1, Killed)
    with pretended_gpu() as record, stop, pytest.raises(Killed):
        run_program(f"{program} {tiny} {small} {flags} --out", tmp_path)
    assert (len(record.steps), record.waits_in_steps) == (2, {})  # from backward to backward


# ----------------------------------------------------------------------------------------- refusals
class Bomb:
    """Where pickled objects are loaded, a file appears."""

    def __reduce__(self):
        return Path.touch, (Path("went-off"),)


def saved(value):
    """The bytes that torch.save makes of it."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def zipped(name):
    """An archive with a text of this name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "text")
    return file.getvalue()


def mine(**arrays):
    """A good data set, but for these arrays."""
    return {"mine.npz": ARRAYS | arrays}


MINE, AGAIN = "simclr.py --dataset mine", "ncl.py --resume copy"
MMNCL, MMNCL_NAMED = "mmncl.py --dataset mine", "mmncl.py --dataset mine --classes names.txt"
MEASURE, MEASURE_NAMED = "interpret.py e.npz", "interpret.py e.npz --classes names.txt"
BESIDE = "interpret.py e.npz --beside b.npz"
DECODE, DECODE_HALF = "decode.py mine --size 8", "decode.py mine --size 8 --test-share .5"
HALF = {"mine.npz": dict(x_train=X_TRAIN, x_test=X_TRAIN, y_test=Y_TRAIN)}
LOOK = "look.py copy"
PAIRS = np.arange(18).reshape(2, 9)  # of indices
OTHERS = "tiny under . is not what this run had; was; and is; --data-root"
MADE_BY = '{"method": "ncl", "processes": %d}'
EMPTY = dict(model={}, optimizer={}, log=[])
UNLABELLED = {"mine.npz": dict(x_train=X_TRAIN, x_test=X_TRAIN)}
IN_BYTES_TOO = dict(captions_train=np.full(20, b"x"), captions_test=np.full(8, b"x"))
NO_WORD = dict(captions_train=np.full(20, "a"), captions_test=np.array([*"abcdefg", "-"]))
NAMES = {"names.txt": "ant\nbee\n"}
X = {"x.npy": X_TRAIN}
ALIKE = {"tiny.npz": ARRAYS | dict(x_train=X_TRAIN[[0] * 20])}
TINY = shapes.draw(240, 100)
RELABELLED = {"tiny.npz": TINY | dict(y_test=TINY["y_test"][::-1])}
WIDER = {"tiny.npz": ARRAYS | dict(x_train=X_TRAIN[:, 1:], x_test=X_TEST[:, 1:])}
Z = np.eye(9, 3)
COUNTED = np.stack([np.arange(20) % 3, np.arange(20)], 1) / 1.0
SAME = torch.zeros(1).expand(9, 3)  # a file of a kilobyte may say that they are a billion
NOT_OURS = "is there, and not one that is written here"
FLIPPED = saved({"z": torch.ones(9, 3)}).replace(b"\x80?", b"\x81?", 1)  # a bit of a number


def z_and(**arrays):
    """An embedding, and these arrays."""
    return {"e.npz": dict(z=Z) | arrays}


NINE = z_and(y=np.arange(9))  # classes


def pictures(names):
    """Files that are images by their names alone."""
    return {f"mine/{name}": b"" for name in names.split()}


def entries(**places):
    """A sparse embedding with two entries, as scipy writes it."""
    return {"e.npz": dict(format="coo", shape=(9, 3), data=np.ones(2), **places)}


# Files that are written into an empty folder; a command; phrases of its refusal, "; " between them.
# In a command {ncl} is the folder of a finished run of ncl.py; copy/ is a copy of it, but for these
# files, and older/ one that does not note its data. A method has the flags of `tiny` too, before
# these; files are its data, if there are any.
REFUSED = {
    "device": ({}, "simclr.py --device tpu", "--device tpu is not there"),
    "a device without numbers": ({}, "simclr.py --device meta", "--device meta is not there"),
    "flag": ({}, "simclr.py --no-such-flag", "unrecognized arguments"),
    "share above 1": ({}, "simclr.py --blur 1.5", "1.5 is not between 0 and 1"),
    "not a number": ({}, "simclr.py --lr nan", "nan is not between"),
    "infinite": ({}, "simclr.py --weight-decay inf", "inf is not between"),
    "large limit": ({}, "simclr.py --limit 241", "there are 240 training images"),
    "memory": ({}, "simclr.py --head-hidden 2147483647", "out of memory; --batch-size"),
    "more than any memory": ({}, "simclr.py --head-hidden 1" + "0" * 30, "and 2147483647"),
    "diverging": ({}, "simclr.py --optimizer sgd --lr 1e30", "epoch 1: the loss; not finite"),
    "too large": ({}, "simclr.py --warmup 1e308", "--warmup: 1e308 is not between 0 and 1e+30"),
    "another run": ({}, "simclr.py --out {ncl}", "is not empty"),
    "another's folder": (
        {"own/config.json": "{}", "tiny.npz": ARRAYS},
        "simclr.py --out own",
        "own is not empty",
    ),
    "no run": ({}, "simclr.py --resume nowhere", "nowhere is no run"),
    "another's run": ({}, "sae.py {ncl} --resume {ncl}", "is a run of ncl.py"),
    "resumed with": ({}, "ncl.py --resume {ncl} --lr .5 --out a", "leave out --lr, --out"),
    "half a config": ({"copy/config.json": b'{"lr":'}, AGAIN, "copy/config.json cannot be read"),
    "deep": ({"copy/config.json": b"[" * 200_000}, AGAIN, "cannot be read (RecursionError"),
    "no dictionary": ({"copy/config.json": b"[]"}, AGAIN, "holds no dict"),
    "processes": ({"copy/config.json": MADE_BY % 2}, AGAIN, "torchrun --nproc_per_node=2"),
    "old": ({"copy/config.json": MADE_BY % 1}, AGAIN, "does not say; 'warmup'"),
    "a bomb": ({"copy/checkpoint.pt": saved(Bomb())}, AGAIN, "checkpoint.pt cannot be read"),
    "no weights": ({"copy/checkpoint.pt": saved(EMPTY)}, AGAIN, "is not a checkpoint of this"),
    "pictures": ({"mine/cats/1.png": b""}, MINE, "no data set mine; mine.npz; decode.py; svhn"),
    "damaged archive": ({"mine.npz": b"PK"}, MINE, "mine; plain numpy arrays"),
    "mapped pickle": ({"mine/x_train.npy": np.array([{}])}, MINE, "plain numpy; Python objects"),
    "a text among arrays": ({"mine.npz": zipped("README.txt")}, MINE, "no x_train; README.txt"),
    "no height": (mine(x_train=X_TRAIN[:, :0]), MINE, "of shape (20, 0, 8, 3)"),
    "no axes": (mine(x_train=np.uint8(7)), MINE, "x_train ()"),
    "one-sided labels": (HALF, MINE, "no y_train"),
    # data
    "two data sets": (mine() | {"mine/x_train.npy": X_TRAIN}, MINE, "two data sets"),
    "no test images": ({"mine.npz": dict(x_train=X_TRAIN)}, MINE, "no x_test"),
    "float images": (mine(x_train=X_TRAIN / 255), MINE, "x_train is float64"),
    "two channels": (mine(x_train=X_TRAIN[..., :2]), MINE, "(20, 8, 8, 2)"),
    "one image": (mine(x_test=X_TRAIN[:1], y_test=Y_TRAIN[:1]), MINE, "two or more"),
    "half a second label": (mine(background_train=Y_TRAIN), MINE, "no background_test"),
    "labels of another length": (mine(y_train=Y_TRAIN[:5]), MINE, "y_train has shape"),
    "one-hot labels": (mine(y_train=np.eye(4, dtype=int)[Y_TRAIN]), MINE, "(20, 4); argmax"),
    "several labels": (mine(y_train=np.ones((20, 14), int)), MINE, "(20, 14); one column"),
    "words as objects": (mine(y_train=np.array([{}] * 20)), MINE, "plain numpy; astype('U')"),
    "negative label": (mine(y_train=Y_TRAIN - 1), MINE, "from 0 on"),
    "float labels": (mine(y_train=Y_TRAIN / 2), MINE, "y_train is float64"),
    "alien class": (mine(y_test=np.arange(8)), MINE, "[4, 5, 6, 7]"),
    "large batch": (mine(), f"{MINE} --batch-size 21", "more than the 20"),
    # methods
    "topk above K": ({}, "ncl.py --topk 9 --head-out 8", "embedding has 8 dimensions"),
    "wmse's K": ({}, "sparsehead.py --base wmse --head-out 9 --whiten-size 9", "above K = 9"),
    "wmse's batch": ({}, "sparsehead.py --base wmse --whiten-size 128", "no multiple of"),
    "no head to make sparse": ({}, "sparsehead.py --head none", "no linear layer"),
    "ce of free features": ({}, "nce.py --loss ce --weights non-negative", "needs --loss nce"),
    "signed weights": ({}, "nce.py --weights non-negative --activation gelu", "never negative"),
    "nce without labels": (UNLABELLED, "nce.py --dataset mine", "has 0 classes"),
    "no captions": (mine(), MMNCL, "lacks captions_train"),
    "captions of bytes": (mine(**IN_BYTES_TOO), MMNCL, "captions are strings"),
    "few names": (mine() | NAMES, MMNCL_NAMED, "names 2 classes"),
    "a caption of no word": (mine(**NO_WORD), MMNCL, "caption 7 of 8; has no word"),
    "a name of no word": (mine() | {"names.txt": "ant\n!\nbee\ncow"}, MMNCL_NAMED, "no word: '!'"),
    "names in Latin-1": (mine() | {"names.txt": b"caf\xe9\n" * 4}, MMNCL_NAMED, "not UTF-8"),
    # interpret.py
    "no file": ({}, "interpret.py nowhere.npz", "nowhere.npz is not there"),
    "a folder of no run": ({"empty/a.txt": ""}, "interpret.py empty", "no embeddings.npz"),
    "no archive": ({"e.npz": b"PK\3\4 and no more"}, MEASURE, "cannot be read"),
    "a flipped bit": ({"e.pt": FLIPPED}, "interpret.py e.pt", "is damaged"),
    "pickled labels": (z_and(y=np.array([{}] * 9)), MEASURE, "cannot be read; np.asarray(y, str)"),
    "words of pandas": (
        z_and() | {"y.npy": np.array([*"abcabcabc"], object)},
        "interpret.py e.npz --labels y.npy",
        "y.npy cannot be read; np.asarray(y, str)",
    ),
    "numpy in a .pt": ({"e.pt": saved(dict(z=Z))}, "interpret.py e.pt", "save tensors, or an .npz"),
    "a module": ({"e.pth": saved(nn.Linear(2, 2))}, "interpret.py e.pth", "save tensors, or an"),
    "a table": (
        {"e.csv": "a,b"},
        "interpret.py e.csv",
        'np.save("e.npy"; read_csv("e.csv"; header',
    ),
    "a table of labels": (
        z_and() | {"y.parquet": b""},
        "interpret.py e.npz --labels y.parquet",
        'np.save("y.npy"; read_parquet("y.parquet")',
    ),
    "one number for all": ({"e.pt": saved(SAME)}, "interpret.py e.pt", "repeats its numbers"),
    "nan": (z_and(z=np.full((9, 3), np.nan)), MEASURE, "z is not finite"),
    "beyond float32": (z_and(z=1e300 * Z), MEASURE, "z is not finite"),
    "half of infinity": (z_and(h=np.float16(Z + np.inf)), MEASURE, "own features is not finite"),
    "large features": (z_and(h=1e30 * Z), MEASURE, "largest number of h is 1e+30"),
    "equal features": (z_and(h=Z[[0] * 9]), MEASURE, "h is equal on all images"),
    "coordinates": (
        {"e.npz": dict(coords=PAIRS, data=np.ones(9), shape=[9, 3])},
        MEASURE,
        "e.npz: (2, 9) looks like indices; save_npz",
    ),
    "indices of tensors": (
        {"e.npz": dict(indices=np.tile(PAIRS, (3, 1)), values=np.ones(9))},
        MEASURE,
        "(6, 9) looks like indices",
    ),
    "two matrices": ({"e.npz": dict(a=Z, b=Z)}, MEASURE, "which array; Save it as z"),
    "a table's numbers of rows": (
        {"e.npz": dict(z=COUNTED)},
        MEASURE,
        "column 1 of z is the row's",
    ),
    "a table's numbers of rows, from 1": (
        {"e.npz": dict(z=COUNTED + 1)},
        MEASURE,
        "column 1 of z is the row's",
    ),
    "a table's labels": (
        {"e.npz": dict(z=COUNTED % 19, y=np.arange(20) % 19 + 1)},
        MEASURE,
        "column 1 of z is the label y",
    ),
    "a table's labels as words": (
        {"e.npz": dict(z=COUNTED % 19, y=(np.arange(20) % 19).astype(str))},
        MEASURE,
        "column 1 of z is the label y",
    ),
    "no features": (z_and(h=Z[:, :0]), MEASURE, "own features is empty: (9, 0)"),
    "a label that is not there": (z_and(y=np.array(8 * ["a"] + ["nan"])), MEASURE, "y has 'nan'"),
    "a top-k": (
        z_and(indices=np.arange(27).reshape(9, 3)),
        MEASURE,
        "indices has whole numbers in z's shape; CSR",
    ),
    "a file of numbers alone": ({"e.npy": b"0123" * 99}, "interpret.py e.npy", "np.save(path"),
    "a list of batches": ({"e.pt": saved([torch.ones(3, 3)])}, "interpret.py e.pt", "dict(z=z"),
    "images without class": (z_and(y=np.arange(9) - 1), MEASURE, "y has -1"),
    "few labels": (z_and(y=np.arange(8)), MEASURE, "9 rows; y has shape (8,)"),
    "one-hot rows": (z_and(y=np.eye(9)), MEASURE, "(9, 9); argmax"),
    "a column for each of several labels": (
        z_and(y=np.ones((9, 14), int)),
        MEASURE,
        "(9, 14); one column; --labels",
    ),
    "signs of several labels": (z_and(y=2 * Z - 1), MEASURE, "(9, 3); one column; --labels"),
    "a name of nothing": (NINE | {"names.txt": "a\n \n" + 7 * "b\n"}, MEASURE_NAMED, "line 2, of"),
    "other names in Latin-1": (NINE | {"names.txt": b"caf\xe9\n" * 9}, MEASURE_NAMED, "not UTF-8"),
    "few features": (z_and(h=Z[:8]), MEASURE, "z has 9 rows; has 8"),
    "few images": (z_and(images=X_TRAIN[:8]), MEASURE, "9 rows; images has shape (8"),
    "indices outside": (entries(row=[0, 1], col=[2, 3]), MEASURE, "indices leave"),
    "an entry twice": (entries(row=[4, 4], col=[1, 1]), MEASURE, "occurs twice"),
    "a share above one": (z_and(), "interpret.py e.npz --active top:2", "nonzero or top"),
    "no share": (z_and(), "look.py e.npz --active top:few", "--active top:few: give auto"),
    "names of few classes": (NINE | NAMES, MEASURE_NAMED, "names 2 classes"),
    "beside fewer images": (
        NINE | {"b.npz": dict(z=Z[:8])},
        BESIDE,
        "has 8 rows and not 9; same images",
    ),
    "beside other labels": (
        NINE | {"b.npz": dict(z=Z, y=np.arange(9)[::-1])},
        BESIDE,
        "b.npz has other labels y; same images",
    ),
    "beside other labels of its own": (
        NINE | {"b.npz": dict(z=Z, y=np.arange(9)[::-1]), "y.npy": np.arange(9)},
        f"{BESIDE} --labels y.npy",
        "b.npz has other labels of its own; same images",
    ),
    "beside other images": (
        z_and(images=X_TRAIN[:9]) | {"b.npz": dict(z=Z, images=X_TRAIN[9:18])},
        BESIDE,
        "b.npz has other images",
    ),
    "beside nothing": (z_and(), BESIDE, "b.npz is not there"),
    "out is a file": (z_and() | {"out": ""}, "interpret.py e.npz --out out", "out cannot be made"),
    # look.py
    "words of a dictionary": (
        {"copy/words.json": '{"words": {"a": 1}}'},
        LOOK,
        "words.json is dam",
    ),
    "words of nan": (
        {"copy/words.json": '{"words": [[["a", NaN]]]}'},
        LOOK,
        "words.json is damaged",
    ),
    "numbers for words": (
        {"copy/words.json": '{"words": [[[1, 2]]]}'},
        LOOK,
        "words.json is damag",
    ),
    "epochs alone": ({"copy/metrics.jsonl": '{"epoch": 1}\n'}, LOOK, "copy has no final record"),
    "a list of lists": ({"copy/metrics.jsonl": "[[]]\n"}, LOOK, "metrics.jsonl is damaged"),
    "no settings": (
        {"run/embeddings.npz": dict(z=Z), "run/config.json": '{"method": "ncl"}'},
        "look.py run",
        "run is not a run; has no; dataset",
    ),
    "not its data": ({"tiny.npz": ARRAYS}, "look.py {ncl} --data-root . --out a", OTHERS),
    "many pictures": (z_and() | X, "look.py e.npz --images x.npy", "x.npy has 20"),
    "no pictures": (z_and() | {"x/a.txt": ""}, "look.py e.npz --images x", "has no image files"),
    "other names": (
        {"x/0.png": b"", "a.npz": dict(z=Z, names=9 * ["0.png"]), "b.npz": dict(z=Z)},
        "look.py a.npz b.npz --images x --out c",
        "b.npz has other 'names'",
    ),
    "one name": (
        {"a/z.npy": Z, "b/z.npy": Z},
        "look.py a/z.npy b/z.npy --out a",
        "would be in one folder",
    ),
    "one file twice": (z_and(), "look.py e.npz ./e.npz", "would be in one folder"),
    "a bad picture": (
        z_and() | {f"x/{i}.png": b"" for i in range(9)},
        "look.py e.npz --images x",
        "cannot be read as an image",
    ),
    "no archive of curves": ({"run/curves.npz": b"no"}, "draw.py run", "curves.npz cannot be read"),
    "no experiment": ({"run/curves.npz": dict(a=Z)}, "draw.py run", "no experiment's curves"),
    "words for curves": (
        {"run/curves.npz": {f"a/b/{key}": ["x"] for key in ("lr_times_steps", "min", "loss")}},
        "draw.py run",
        "curves.npz is damaged",
    ),
    "another's figure": (
        {"run/curves.npz": {"a/b/min": Z}, "run/a.png": b"\x89PNG"},
        "draw.py run",
        "run/a.png is there; move it away",
    ),
    "another's picture": ({"copy/dimensions.png": b""}, "draw.py copy", "dimensions.png is there"),
    "no run to draw": (z_and(), "draw.py e.npz", "e.npz is not a folder of a run"),
    # sae.py
    "no source": ({}, "sae.py", "whose features"),
    "no run of an image method": ({}, "sae.py nowhere", "nowhere is no run"),
    "a run of the landscape": (
        {"run/config.json": '{"method": "sparse_coding"}'},
        "sae.py run",
        "no run of an image method",
    ),
    "many active units": ({}, "sae.py {ncl} --topk 9 --units 8 --batch-size 10", "8 units"),
    "equal images": (ALIKE, "sae.py older --data-root . --batch-size 10", "images are alike"),
    "an autoencoder's other data": ({"tiny.npz": ARRAYS}, "sae.py {ncl} --data-root .", OTHERS),
    # tools/
    "no split": (pictures("a/1.ppm"), DECODE, "train/<class>; --test-share"),
    "a split": (pictures("val/1.ppm"), DECODE_HALF, "already"),
    "other classes": (pictures("train/a/1.png test/b/1.png"), DECODE, "same classes; 'a'"),
    "a class called train": (
        pictures("train/0.png train/1.png bus/0.png bus/1.png"),
        DECODE_HALF,
        "2 images are not in mine/train",
    ),
    "sets deeper in it": (
        pictures("x/train/a/0.png x/train/a/1.png x/test/a/0.png x/test/a/1.png"),
        DECODE_HALF,
        "sets deeper in it",
    ),
    "sets in capitals": (pictures("Train/1.png Test/1.png"), DECODE_HALF, "rename the sets"),
    "an empty class": (pictures("a/1.png a/2.png b/1.heic"), DECODE_HALF, "b has no images; .webp"),
    "one image a class": (pictures("a/1.png b/1.png"), DECODE_HALF, "0 images; only image is for"),
    "a set by another name": (pictures("Training/a/1.png"), DECODE_HALF, "Training; to train/"),
    "another size": (
        {"mine/split.csv": "", "mine/x_train.npy": b"", "mine/x_test.npy": X_TRAIN},
        "decode.py mine --size 9",
        "to 8 pixels",
    ),
    "a stray image": (pictures("a/1.png 2.png"), DECODE_HALF, "2.png lies beside"),
    "an own table": (pictures("0.png 1.png 2.png 3.png split.csv"), DECODE_HALF, "split.csv is"),
    "an old file": ({"z.npz": b""}, "evaluate.py {ncl} --out z.npz", "name a new file"),
    "a file in a new folder": (
        {},
        "evaluate.py {ncl} --dataset nowhere --out new/z.npz",
        "no data set nowhere",
    ),
    "another network": ({"copy/checkpoint.pt": saved(EMPTY)}, "evaluate.py copy", "rebuilt from"),
    "three rates": ({}, "finetune.py {ncl} --labels .1 1 --lr 1 2 3", "--lr has 3 values"),
    "another backbone": ({"copy/backbone.pt": saved({})}, "finetune.py copy --lr 1", "not fit"),
    "a run's other data": ({"tiny.npz": ARRAYS}, "ncl.py --resume {ncl} --data-root .", OTHERS),
    "other labels alone": (RELABELLED, "selection.py {ncl} --data-root .", "y_test was"),
    "other data for tuning": ({"tiny.npz": ARRAYS}, "finetune.py {ncl} --data-root .", OTHERS),
    "other data, corrupted": ({"tiny.npz": ARRAYS}, "robustness.py {ncl} --data-root .", OTHERS),
    "wide images": (WIDER, "robustness.py older --data-root .", "square images only"),
    "no text": ({}, "words.py {ncl}", "no text.npz"),
    "own numbers": ({"copy/selection.json": '{"a": 1}'}, "selection.py copy", NOT_OURS),
    "own numbers, too": ({"copy/robustness.json": "a"}, "robustness.py copy", NOT_OURS),
    "own accuracies": ({"copy/finetune.json": "{}"}, "finetune.py copy --lr 1", NOT_OURS),
    "a diverging fine-tuning": (
        {},
        "finetune.py {ncl} --labels 1 --lr 1e30 --epochs 1 --min-steps 1",
        "weights are not finite",
    ),
    "a folder of weights": ({"copy/notes": ""}, "weights.py {ncl} copy", "is there already"),
    # studies/
    "the theory of SimCLR": ({}, "theory_gate.py {simclr}", "runs of ncl.py and bayesncl.py"),
    "seeds of one network": ({}, "ladder.py minilm-nouns --seeds 1 2", "no repetitions"),
    "rows of nothing": ({}, "run.py ncl --rows nothing", "no runs.txt"),
}


def contents_of(folder):
    """The bytes of every file in a folder, and its folders, but for runs without a checkpoint."""
    found = {path: path.is_file() and path.read_bytes() for path in Path(folder).rglob("*")}
    for path in Path(folder).glob("runs/**"):
        if not (path / "checkpoint.pt").exists():
            found.pop(path, None)
            found.pop(path / "config.json", None)
    return found


@pytest.mark.parametrize("files, command, words", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_refused(run_of, tiny, tmp_path, monkeypatch, files, command, words):
    monkeypatch.chdir(tmp_path)
    if "copy" in command:
        shutil.copytree(run_of("ncl"), "copy")
    if "older" in command:
        shutil.copytree(run_of("ncl"), "older")
        settings = json.loads(Path("older/config.json").read_text())
        del settings["fingerprint"]
        Path("older/config.json").write_text(json.dumps(settings))
    write_files(tmp_path, files)
    runs = {method: run_of(method) for method in re.findall(r"{(\w+)}", command)}
    program, _, flags = command.format(**runs).partition(" ")
    if Path(program).stem in METHODS and "--resume" not in flags:
        of_files = "--data-root . --batch-size 10" if files else ""
        flags = f"{tiny} {of_files} {flags}"
    before = [*map(contents_of, [tmp_path, *runs.values()])]
    message = refusal(f"{program} {flags}")
    assert [part for part in words.split("; ") if part not in message] == [], message
    assert len(message) < 600
    assert [*map(contents_of, [tmp_path, *runs.values()])] == before


def test_a_copied_method_has_runs_of_its_own(run_of, tmp_path, monkeypatch):
    run = shutil.copytree(run_of("ncl"), tmp_path / "run")
    settings = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(settings | dict(method="my_ncl")))
    monkeypatch.syspath_prepend(tmp_path)
    assert "names none of bayesncl, lpjepa" in refusal(lambda: common.settings_of_run(run))
    shutil.copy(ncl.__file__, tmp_path / "my_ncl.py")
    monkeypatch.setattr(common, "__file__", str(tmp_path / "common.py"))
    assert common.settings_of_run(run)["method"] == "my_ncl"


@pytest.mark.parametrize("name, default", [("lr", 1.0), ("l1", common.argparse.SUPPRESS)])
def test_a_flag_has_its_default_in_presets(name, default):
    flags = common.Parser("new.py", "", {"default": dict(lr=0.1)})
    flags.add_argument(f"--{name}", type=float, default=default)
    with pytest.raises(AssertionError, match=f"{name} .* PRESETS"):
        flags.parse([])


# ----------------------------------------------------------------------------- interruption, damage
DEATHS = [  # one after the other, each of the run that the one before has left
    (common, "health", 2),  # in the second of the four steps of epoch 1
    (torch, "save", 1),  # while the first checkpoint is written
    (os, "replace", 2),  # while metrics.jsonl is
    (common, "health", 7),  # in epoch 3
    (common, "evaluate", 1),
    (os, "replace", 3),  # before the final record
]


def results_of(folder):
    """All that a run leaves but its times, to be compared bit for bit."""
    model = common.load_checkpoint(folder / "checkpoint.pt")["model"]
    backbone = common.load_checkpoint(folder / "backbone.pt")
    found = [records(folder)]
    for arrays in model, backbone, np.load(folder / "embeddings.npz"):
        found.append({name: np.asarray(arrays[name]).tobytes() for name in arrays})
    return found


@pytest.mark.parametrize("method", ["bayesncl", "sparsehead"])
def test_a_run_killed_at_any_moment_ends_alike(tiny, tmp_path, method):
    run, whole = tmp_path / "run", tmp_path / "whole"
    command = f"{method}.py {tiny} --dataset unlabelled --image-size 8 {FLAGS[method]} --out"
    run_program(command, whole)
    for module, name, call in DEATHS:
        with dies(module, name, call, Killed), pytest.raises(Killed):
            run_program(command, run)
        command = f"{method}.py --resume"
    for _ in range(2):  # the second time it has finished
        run_program(command, run)
        assert results_of(run) == results_of(whole)


def test_a_resumed_run_that_fails_keeps_its_settings(tiny, tmp_path):
    with dies(common, "health", 2, Killed), pytest.raises(Killed):
        run_program(f"simclr.py {tiny} --out", tmp_path)
    before = contents_of(tmp_path)
    with dies(common, "health", 1, common.BadInput("no")):
        refusal("simclr.py --resume", tmp_path)
    assert contents_of(tmp_path) == before


def test_damaged_checkpoints_load_whole_or_not_at_all(tmp_path):
    path, weights, draw = tmp_path / "checkpoint.pt", torch.arange(5000), np.random.default_rng(1)
    torch.save(weights, path)
    good = path.read_bytes()
    for i in range(300):  # cut off, overwritten, or with a bit flipped
        at = draw.integers(len(good))
        flipped = bytes([good[at] ^ 1 << draw.integers(8)])
        rests = b"", draw.bytes(99) + good[at + 99 :], flipped + good[at + 1 :]
        path.write_bytes(good[:at] + rests[i % 3])
        with contextlib.suppress(common.BadInput):
            assert torch.equal(common.load_checkpoint(path), weights)


@pytest.mark.parametrize("part", ["optimizer", "log"])
def test_a_checkpoint_without_its_parts_is_refused(run_of, tmp_path, part):
    shutil.copytree(run_of("ncl"), tmp_path, dirs_exist_ok=True)
    state = common.load_checkpoint(tmp_path / "checkpoint.pt")
    common.save(tmp_path / "checkpoint.pt", state | {part: 5})
    assert "is not a checkpoint of this training" in refusal("ncl.py --resume", tmp_path)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    write_files(tmp_path, {"a.pt": "good"})
    monkeypatch.setattr(common, "open", lambda *_: open("/dev/full", "wb"), raising=False)
    with pytest.raises(OSError, match="No space left"), common.replacing(tmp_path / "a.pt") as file:
        torch.save(torch.zeros(100_000), file)
    assert contents_of(tmp_path) == {tmp_path / "a.pt": b"good"}


def test_files_are_replaced_never_written_through(tmp_path, monkeypatch):
    write_files(tmp_path, {"theirs": "theirs"})
    monkeypatch.setattr(common.secrets, "token_hex", lambda _: "0")
    for link in "a.pt", "b.pt.0.tmp":
        (tmp_path / link).symlink_to(tmp_path / "theirs")
    common.save(tmp_path / "a.pt", {})
    with pytest.raises(FileExistsError):
        common.save(tmp_path / "b.pt", {})
    assert not (tmp_path / "a.pt").is_symlink()
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "b.pt.0.tmp").is_symlink()


def test_a_weight_that_is_not_finite_ends_the_run(tiny, tmp_path, monkeypatch):
    step, steps = torch.optim.Adam.step, itertools.count(1)

    def step_of_adam(optimizer, *args):
        step(optimizer, *args)
        if next(steps) == 8:  # the last of epoch 2, whose loss is finite
            optimizer.param_groups[0]["params"][0].data[0] = math.inf

    monkeypatch.setattr(torch.optim.Adam, "step", step_of_adam)
    message = refusal(f"ncl.py {tiny} --out", tmp_path)
    assert "epoch 2: the loss or a weight is not finite" in message
    kept = common.load_checkpoint(tmp_path / "checkpoint.pt")
    assert [line["epoch"] for line in [*kept["log"], *records(tmp_path)]] == [1, 1]
    assert all(weight.isfinite().all() for weight in kept["model"].values())


# ---------------------------------------------------------------------------------- what is printed
PROGRESS = {  # seconds an item of 30; of what kind stderr is; what it gets
    "short": (0.2, dict(terminal=False), ""),
    "a file": (4, dict(terminal=False), "x 3/30, 108 s left\nx 18/30, 48 s left\n"),
    "a terminal": (5, dict(terminal=True), None),
    "quiet": (4, dict(QUIET=True), ""),
    "another process": (4, dict(RANK=1), ""),
}


@pytest.mark.parametrize("seconds, where, told", PROGRESS.values(), ids=PROGRESS)
def test_progress_is_told_where_it_takes_long(monkeypatch, capsys, seconds, where, told):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: where.get("terminal", False))
    for name in where.keys() & {"QUIET", "RANK"}:
        monkeypatch.setattr(common, name, where[name])
    done = []
    for item in common.progress(range(30), "x"):
        done.append(item)
        clock[0] += seconds
    assert done == [*range(30)]
    found = capsys.readouterr().err
    if told is None:  # a line for each item, over the last one, and at the end none
        lines = found.split("\r")
        assert lines[1:3] == ["x 0/30\033[K", "x 1/30, 145 s left\033[K"]
        assert (len(lines), lines[-1], "\n" in found) == (32, "\033[K", False)
    else:
        assert found == told


# Flags of a run of 240 images; a line that is printed before its first step.
FIRST_LINES = {
    "what is trained": ("", "resnet8, 0.2 million weights; Adam, batches of 60, 4 steps an epoch"),
    "on what": ("", "240 images of tiny, 3 epochs; settings: shapes"),
    "few steps": ("", "so few steps teach little: --batch-size 16 would give 15"),
    "a laptop": (
        "--arch resnet18 --image-size 8",
        "resnet18 and 3 epochs are for a GPU; "
        "on a laptop: --preset default --arch resnet8 --epochs 20",
    ),
}


@pytest.mark.parametrize("flags, line", FIRST_LINES.values(), ids=FIRST_LINES)
def test_a_training_says_what_it_trains(tiny, tmp_path, capsys, flags, line):
    with dies(common, "health", 1, Killed), pytest.raises(Killed):
        run_program(f"simclr.py {tiny} {flags} --out", tmp_path)
    assert line in capsys.readouterr().out.splitlines()


def test_tensorboard_has_each_epochs_record(tiny, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    command = f"simclr.py {tiny} --tensorboard --out"
    for call in 2, 1:  # a killed run, whose events of an unfinished epoch do not count
        with dies(torch, "save", call, Killed), pytest.raises(Killed):
            run_program(command, tmp_path)
        command = "simclr.py --resume"
    run_program(command, tmp_path)
    board = events.EventAccumulator(str(tmp_path)).Reload()
    losses = [(event.step, event.value) for event in board.Scalars("loss")]
    *epochs, _ = records(tmp_path)
    assert losses == [(line["epoch"], np.float32(line["loss"])) for line in epochs]


def test_without_tensorboard_one_line_says_so(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "pip install tensorboard" in refusal(f"simclr.py {tiny} --tensorboard --out", tmp_path)
    assert not any(tmp_path.iterdir())


# What is in the environment; how many processes common.py takes part in, or the refusal.
TORCHRUN = dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")
ENVIRONMENTS = {
    "torchrun": (TORCHRUN, "2"),
    "nothing": ({}, "1"),
    "empty": ({"RANK": ""}, "1"),
    "a rank alone": ({"RANK": "0"}, "unset it"),
    "a world alone": ({"WORLD_SIZE": "2"}, "unset it"),
    "words": (TORCHRUN | {"WORLD_SIZE": "two"}, "unset it"),
    "without an address": (TORCHRUN | {"MASTER_ADDR": None}, "unset it"),
}


@pytest.mark.parametrize("variables, told", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_ranks_count_only_by_torchrun(monkeypatch, variables, told):
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    fresh = runpy.run_path(str(ROOT / "common.py"))
    if told.isdecimal():
        assert fresh["WORLD"] == int(told)
        return
    assert fresh["WORLD"] == 1
    monkeypatch.setattr(common, "LAUNCHED", fresh["LAUNCHED"])
    assert told in refusal("simclr.py")


# ------------------------------------------------------------------------------------- the programs
TEXTS = {}  # of the project's files, by their paths
for folder, kind in itertools.product(("", "[!.]*/", "studies/*/"), ("*.py", "*.md")):
    for file in ROOT.glob(folder + kind):
        if not file.name.startswith("test_"):
            TEXTS[str(file.relative_to(ROOT))] = file.read_text(encoding="utf-8")
METHOD_FILES = [*METHODS, "sae"]
OWN = {"parser", "main", "network"}  # what each method has its own of


TOP_LEVEL = """
README.md LICENSE CITATION.cff CONTRIBUTING.md pyproject.toml requirements.txt requirements-dev.txt
simclr.py ncl.py bayesncl.py sparsehead.py simsiam.py sparse_coding.py
nce.py mmncl.py lpjepa.py sae.py common.py shapes.py test_all.py conftest.py
tools checks studies weights assets
"""


def test_the_top_level_is_its_list():
    _, listed = subprocess.getstatusoutput(f"git -C {shlex.quote(str(ROOT))} ls-files")
    found = {path.split("/")[0] for path in listed.splitlines()}
    if "README.md" not in found:  # no clone
        found = {*os.listdir(ROOT)} - {"data", "runs", "__pycache__"}
    assert {name for name in found if name[0] != "."} == {*TOP_LEVEL.split()}


def imports_of(path):
    return re.findall(r"^ *(?:from|import) (\w+)", TEXTS[path], re.M)


MAY_IMPORT = {"common.py": {"shapes"}, "shapes.py": set(), "tools/interpret.py": set()}
FOLDER_OF = {Path(path).stem: Path(path).parent for path in TEXTS if path.endswith(".py")}
TOOLS = {name for name, folder in FOLDER_OF.items() if folder == Path("tools")}


@pytest.mark.parametrize("path", [path for path in TEXTS if re.fullmatch(r"(tools/)?\w+.py", path)])
def test_imports_go_from_methods_to_tools(path):
    ours = FOLDER_OF.keys() & {*imports_of(path)}
    if path.startswith("tools/"):
        assert ours <= MAY_IMPORT.get(path, {"common", "shapes", *METHODS} | TOOLS)
    elif path != "conftest.py":
        assert ours == MAY_IMPORT.get(path, {"common"})


@pytest.mark.parametrize(
    "path",
    [f"{name}.py" for name in [*METHOD_FILES, "sparse_coding", "tools/look", "tools/interpret"]],
)
def test_a_program_can_be_run_alone(path):
    block = re.match(r"# /// script\n((?:# .*\n)+)# ///\n", TEXTS[path])
    needed = dict(line[2:].split(" = ") for line in block[1].splitlines())
    assert json.loads(needed["dependencies"]) == (ROOT / "requirements.txt").read_text().split()
    order = imports_of(path)
    if "common" in order:  # which sets what torch reads
        assert order.index("common") < order.index("torch")


OURS = "None" if "_bf16" in common.CPUINFO else "PASSIVE"  # where a user sets nothing


@pytest.mark.parametrize("own, found", [({}, OURS), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_wait_passively_where_bf16_lacks(own, found):
    tell = "import os, common, simclr; print(os.environ.get('OMP_WAIT_POLICY')); "
    tell += "common.launch(lambda: simclr.main(['-h']))"
    others = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    narrow = others | own | {"PYTHONIOENCODING": "ascii"}  # a terminal that lacks our letters
    done = subprocess.run([sys.executable, "-c", tell], cwd=ROOT, env=narrow, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().split()[:2] == [found, "usage:"]


def test_functions_that_methods_share_are_the_same_text():
    sources = {}
    for method in METHOD_FILES:
        for node in ast.parse(TEXTS[f"{method}.py"]).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name not in OWN:
                sources.setdefault(node.name, {}).setdefault(ast.unparse(node), []).append(method)
    assert {name: [*texts.values()] for name, texts in sources.items() if len(texts) > 1} == {}
    assert [*sources["nt_xent"].values()] == [["simclr", "ncl", "bayesncl", "sparsehead"]]
    of_ncls_kind = [TEXTS[f"{method}.py"] for method in ("simclr", "ncl", "bayesncl")]
    contrasts = [re.search(r"def contrast\(.*?\n\n", text, re.S)[0] for text in of_ncls_kind]
    assert len({re.sub(r" +if args.loss == .*\n.*\n", "", text) for text in contrasts}) == 1


@pytest.mark.parametrize("method", METHOD_FILES)
def test_every_flag_is_read(method):
    module = importlib.import_module(method)
    flags = {action.dest for action in module.parser()._actions}
    text = TEXTS[f"{method}.py"] + TEXTS["common.py"]
    read = re.findall(r'(?:\bargs\.|getattr\(args, "|typed\.get\(")(\w+)', text)
    assert flags - {"help"} <= {*read, *common.VIEWS}


# ---------------------------------------------------------------------------------------- the pages
def test_documented_commands_parse(parse_only, monkeypatch):
    start = r"(?:torchrun --\S+|python) ([\w/]+\.py"
    text = "\n".join(TEXTS.values())
    found = re.findall(rf"^ *{start}.*?)(?:  .*)?$", text, re.M)
    found += re.findall(rf"`{start} .*?)`", text)
    assert len({*found}) > 150
    for command in found:
        monkeypatch.setattr(sys, "argv", shlex.split(command.replace("NAME", "ncl"), comments=True))
        if "def main(" not in TEXTS[sys.argv[0]]:  # a picture of the records, without flags
            assert "def draw(" in TEXTS[sys.argv[0]]
            continue
        with pytest.raises(Parsed):
            program_of(sys.argv[0])()


def test_readmes_commands_run(run_of, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    z, h, dino = (torch.randn(60, width).numpy() for width in (7, 5, 4))
    files = {"latents.npz": dict(z=z), "h.npy": h, "dino.npy": dino}
    np.savetxt("embedding.csv", z.clip(0), delimiter=",", header="a,b,c,d,e,f,g", comments="")
    files |= {"y.npy": np.arange(60) % 3, "names.txt": "ant\nbee\ncat"}
    write_files(tmp_path, files | {"data/mine.npz": shapes.draw(240, 100)})
    Path("images").mkdir()
    for i in range(60):
        Image.new("RGB", (8, 8), (i, 9, 99)).save(f"images/{i:02}.png")
    of_run = f" {tiny} --dataset mine --data-root data --out runs/my-run"
    shutil.copytree(run_of("mmncl"), "runs/<run-of-mmncl>")
    for heading in "Your embeddings", "What a run leaves":
        _, _, text = TEXTS["README.md"].partition(f"\n## {heading}\n")
        for command in re.findall(r"^python (.*?)(?:  .*)?$", text.split("```")[1], re.M):
            if command.startswith("-c"):
                subprocess.run(f"{sys.executable} {command}", shell=True, check=True)
            elif not re.match("tools/(finetune|robustness).py ", command):  # which take minutes
                run_program(command.replace(" --out runs/my-run", of_run))
    assert np.array_equal(np.load("embedding.npy"), z.clip(0))
    assert Path("files.txt").read_text().splitlines() == [f"{i}.png" for i in range(1797)]
    assert {"dimensions.csv", "look.html"} <= {*os.listdir("embedding.npy-interpret")}
    assert {"look.html", "dimensions.csv", "selection.json"} <= {*os.listdir("runs/my-run")}


@pytest.mark.parametrize("page", [path for path in TEXTS if path.endswith(".md")])
def test_links_lead_to_what_is_there(page):
    broken = []
    for link in re.findall(r"\]\((?!http)([^()]+)\)", TEXTS[page]):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        there = target.exists()
        if there and anchor and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8").lower(), re.M)
            there = anchor in [re.sub(r"[^\w -]", "", h).replace(" ", "-") for h in headings]
        if not there:
            broken.append(link)
    assert broken == []


def test_readmes_table_is_the_recorded_run(capsys):
    lines = (ROOT / "studies/bayesncl/records.jsonl").read_text(encoding="utf-8").splitlines()
    runs = {line["run"]: line for line in map(json.loads, lines)}
    last = runs["shapes-bayesncl-first-command"]["final"]
    classes = dict(y=torch.arange(10), background=torch.arange(10))
    common.print_table(last, SimpleNamespace(classes=classes, test=classes))
    assert capsys.readouterr().out in TEXTS["README.md"]


def test_readme_explains_each_column_of_its_table():
    _, _, text = TEXTS["README.md"].partition("\n## Try it\n")
    columns = re.search("^ +(LP@1.*)$", text, re.M)[1]
    explained = re.findall(r"\*\*(.*?)\*\*:?", text.partition("\n**On a laptop")[0])
    assert {*re.split("(?<!z:) +", columns)} == {*explained}


# ---------------------------------------------------------------------------------- accuracy gates
COLLAPSE = "--no-stop-grad --image-size 16 --limit 2500 --batch-size 250 --lr 0.4 --epochs 25"
SHORT = "--image-size 16 --epochs 10"
FLOORS = dict(lp1=52, cons=16, background_cons=82, live_dims=80)
SHORT_FLOORS = dict(lp1=43, cons=12.5, background_cons=72, live_dims=80)
LEARNT = {  # floors of the final numbers, and ceilings. Untrained: lp1 38, background_cons 58
    "bayesncl": ("bayesncl.py --epochs 10", FLOORS, dict(act=0.15)),
    "simsiam": ("simsiam.py --epochs 5", dict(lp1=46, lp1_embedding=57, spread=0.5), {}),
    "simsiam that collapses": (f"simsiam.py {COLLAPSE}", {}, dict(spread=0.3)),
    "short simclr": (f"simclr.py {SHORT}", dict(lp1=43, act=0.99), dict(cons=12.5)),
    "short ncl": (f"ncl.py {SHORT}", SHORT_FLOORS, dict(act=0.35)),
    "short bayesncl": (f"bayesncl.py {SHORT}", SHORT_FLOORS, dict(act=0.35)),
}


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """Each training's final numbers and the least spread of its epochs; the longest first."""
    root, commands, found = tmp_path_factory.mktemp("learnt"), [], {}
    for name, (command, *_) in LEARNT.items():
        commands.append([*command.split(), "--seed", 6, "--device", "cpu", "--out", root / name])
    side_by_side(*commands)
    for name in LEARNT:
        *epochs, last = records(root / name)
        found[name] = last | dict(spread=min(line["spread"] for line in epochs))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNT)
def test_a_training_ends_within_its_limits(learnt, name):
    _, floors, ceilings = LEARNT[name]
    assert {key: learnt[name][key] for key in floors if learnt[name][key] < floors[key]} == {}
    assert {key: learnt[name][key] for key in ceilings if learnt[name][key] > ceilings[key]} == {}


@pytest.mark.slow
def test_a_gate_makes_a_training_sparser(learnt):
    gated, ungated = learnt["short bayesncl"], learnt["short ncl"]
    assert gated["act"] < ungated["act"]
    assert gated["live_dims"] < ungated["live_dims"]
