"""The landscape of contrastive and non-contrastive learning, on data whose true features are known.

Samples are sparse combinations of d hidden orthonormal features, two views mask random coordinates, and a one-layer
encoder should find the features again:

    x = M z + ε,   a_i = D_i x,   h = φ(BN(W a)),   success: the worst feature's max over neurons i of |cos(W_i, M_j)|

    contrastive (SimCLR)   −log( exp(cos(h1, h2)/τ) / Σ over the other 2B−1 views of exp(cos/τ) )   Eq. (9)
    non-contrastive        ‖ h^o(a1)/‖·‖ − sg[ h^t(a2)/‖·‖ ] ‖², then with o and t exchanged        Eq. (4), (5)
    SimSiam                −cos(W^p h(a1), sg[h(a2)]), one shared encoder

Pokle, Tian, Li, Risteski, "Contrasting the landscape of contrastive and non-contrastive learning", AISTATS 2022.
Equation, figure and theorem numbers are theirs, "the code" is github ashwinipokle/contrastive_landscape. All replicas
of a setting (seeds × swept factors) train as one batched program.

    python sparse_coding.py                                     Table 1 and Figures 1 to 7, fast setting, 3 seeds
    python sparse_coding.py --paper --experiment table1         Table 1, the paper's exact setting, 5 seeds
    python sparse_coding.py --experiment alignment budget variants theory --seeds 5   what no figure shows, theorems
    python sparse_coding.py --experiment custom --method noncl --lr 0.1 1   your own, with a flag for every factor
    python sparse_coding.py --benchmark

Measured on a thread of an AMD EPYC, beside other programs (torch 2.15, 2026-11-21; results/landscape*): the first
command takes one to two minutes, the second 35. Maximum / median / minimum of the second, means of 5 seeds:

    Pr(z_i ≠ 0)            .1                 .3
    SimCLR, paper          .94 / .92 / .83    .94 / .92 / .57     (.2: .94 / .93 / .90; our data are those of .1)
      text's layers        .94 / .92 / .88    .94 / .91 / .87
      code's layers        .94 / .92 / .88    .95 / .92 / .73
    SimSiam, paper         .94 / .87 / .47    .68 / .45 / .37     (.2: .93 / .82 / .45)
      text's layers        .85 / .57 / .45    .65 / .52 / .44
      code's layers        .92 / .67 / .43    .69 / .50 / .39

Where the text leaves a choice, or text, code and this file differ:
 1. Latents. The published numbers come from the code's: at d = 10 one −1 and one +1 for Pr .1 and for .2, two −1 and
    one +1 for .3. The text's entries are independent (--latents iid). One-hot is +1 (in the code −1 in some data sets).
 2. σ0 = sqrt(log d)/d = .15 is the code's; the text read as a variance gives .48, at which SimCLR ends at .41.
 3. b starts at 0 as in the text, is trained, and kept ≥ 0 for Eq. (14). Fixed at 0, φ is the identity, the features can
    be found only up to a rotation, and SimCLR ends at .57. The code's starts uniform and may be negative.
 4. Layers. In the code φ after batch normalisation has a threshold on one side only, the normalisation a scale and a
    shift, SimSiam a projector before its predictor. Table 1 is trained with these too, the rest with the text's. Two
    layers are two maps and one φ here, and the cosine their product's; in the code φ follows each, the first counts.
 5. Weights start at N(0, 1/(pd)), b^p at 0, as in the text; the code's projector and predictor as torch's layers do.
 6. τ = .2; the text has none, the scripts .05, at which SimCLR ends at .62.
 7. Steps. SimCLR drops the last, smaller batch, the others keep it; noncl trains one network a batch, in turn (in the
    code the online one begins each epoch). So lr × steps is 200, SimSiam's 400, noncl's 200 per network; with the
    scripts' n = 3000 and lr .005 200, 240 and 120.
 8. Figures. The scripts' non-contrastive model of Figures 1 and 2 ignores its batch normalisation flag, Figure 7's has
    a predictor; the captions decide here. Figure 7's caption has c = 2 and Eq. (6), its text normalised outputs
    and a start at .62: we show four c, and Eq. (6) among the variants.
 9. Masks keep half; the scripts sweep .75, .5, .25, .1. All are 5 seeds here, Figures 5 to 7 three in the paper.
10. Replicas of a seed share dictionary, initial weights and masks, so that settings are compared on the same draws.
"""
import argparse
import functools
import itertools
import json
import math
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

import common

# Every factor: its value under --paper, what it may be, what it means. Several values of one in SWEPT train together.
FACTORS = {
    "method": ("simclr", ["simclr", "simsiam", "noncl"], "loss: Eq. (9), SimSiam's, or Eq. (4) with two networks"),
    "head": ("none", ["none", "linear", "mlp"], "W^p h + b^p, SimCLR's projector, the others' predictor (Eq. 5); "
             "mlp: SimSiam's in the authors' code, a projector built like the encoder before it"),
    "similarity": ("cosine", ["cosine", "product"], "of SimSiam and noncl: product normalises nothing, Eq. (6) to (8)"),
    "layers": (1, common.within(0, kind=int), "linear maps in the encoder"),
    "batch_norm": ("yes", ["yes", "affine", "no"], "batch normalisation before φ; affine: scale and shift trained"),
    "activation": ("srelu", ["srelu", "relu", "authors"], "φ: Eq. (14), relu(v − b), or what the authors' code has "
                   "after batch normalisation, relu(v) − relu(−v − 2b)"),
    "bias": (0.0, common.within(0, closed=True), "initial threshold b of φ"),
    "train_bias": ("yes", ["yes", "no"], "train b with the weights; srelu keeps it ≥ 0"),
    "normalise": ("none", ["none", "rows", "columns"], "of the encoder's weights to norm 1, after every step"),
    "warm": (None, common.within(0), "warm start: rows are columns of M plus noise of standard deviation p^(−warm/2)"),
    "warm_columns": ("random", ["random", "aligned", "covered"], "independent per network, the same in both, each at "
                     "least once; where m = d neuron i has feature i"),
    "latents": ("authors", ["authors", "iid", "zero-one", "exact", "onehot", "onehot-plus"],
                "⌈dPr/2⌉ entries −1, up to ⌈dPr⌉ but at least one +1; iid: ±1 with probability Pr (the text); "
                "zero-one: 1 with probability Pr; exact: as many as authors, of random sign; one ±1; one +1"),
    "sparsity": (0.1, common.within(1e-3, 1, closed=True), "Pr(z_i ≠ 0), before all-zero samples are drawn again"),
    "masks": ("independent", ["independent", "dependent"], "D1 x and D2 x (Eq. 3) or 2 D x and 2 (I − D) x (Eq. 2)"),
    "keep": (0.5, common.within(1e-3, 1, closed=True), "probability that a mask keeps a coordinate"),
    "noise": (None, common.within(0, closed=True), "standard deviation of ε (default: sqrt(log d) / d)"),
    "temperature": (0.2, common.within(0), "τ of SimCLR"),
    "lr": (0.025, common.within(0), "learning rate of plain SGD"),
    "epochs": (8000, common.within(0, kind=int), "passes over the samples"),
    "batch_size": (512, common.within(1, kind=int), "samples per step; only SimCLR drops the last, smaller batch"),
    "n": (1000, common.within(1, kind=int), "samples"),
    "p": (50, common.within(0, kind=int), "observed dimensions"),
    "d": (10, common.within(0, kind=int), "hidden features"),
    "m": (50, common.within(0, kind=int), "neurons"),
    "seeds": (5, common.within(0, kind=int), "train with seeds 1 to N, each with data, weights and masks of its own"),
}
SWEPT = ("sparsity", "keep", "noise", "temperature", "lr", "warm")


# ---------------------------------------------------------------------------------------------------------------- data
def generator(seed: int, purpose: int, device="cpu") -> torch.Generator:
    """Random numbers of a seed for a purpose: 0 M, 1 z, 2 ε, 3, 4 warm columns, 7 projector, 8 batches and masks,
    9 W^p, 10 + i, 20 + i layer i."""
    return torch.Generator(device).manual_seed(1000 * seed + purpose)


def active_features(d: int, sparsity: float) -> tuple[int, int]:
    """How many entries −1 and how many in all the authors' latents have, in their floats: ⌈10 · .3⌉ is 3."""
    minus = math.ceil(d * sparsity / 2)
    return minus, max(math.ceil(d * sparsity), minus + 1)


def latents(kind: str, n: int, d: int, sparsity: float, random: torch.Generator) -> Tensor:
    """z (d, n) with entries in {−1, 0, 1}, of a kind of FACTORS["latents"]. Columns of zeros are drawn again."""
    minus, k = (0, 1) if kind.startswith("onehot") else active_features(d, sparsity)
    if kind in ("iid", "zero-one"):
        active = torch.zeros(d, n, dtype=torch.bool)
        while (empty := ~active.any(0)).any():
            active[:, empty] = torch.rand(d, int(empty.sum()), generator=random) < sparsity
    else:
        order = torch.rand(d, n, generator=random).argsort(0)  # a permutation of the features per sample
        active = order < k
    if kind == "authors":
        return active.float() - 2 * (order < minus).float()
    sign = 1 - 2 * torch.randint(0, 2, (d, n), generator=random)
    return (active if kind in ("zero-one", "onehot-plus") else active * sign).float()


def sample(s, seed: int, sparsity: float, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """One data set x = M z + ε (Eq. 1): M (p, d) with orthonormal columns, z (d, n), x (p, n)."""
    M = torch.linalg.qr(torch.randn(s.p, s.d, generator=generator(seed, 0)))[0]
    z = latents(s.latents, s.n, s.d, sparsity, generator(seed, 1))
    return M, z, M @ z + noise * torch.randn(s.p, s.n, generator=generator(seed, 2))


# -------------------------------------------------------------------------------------------------------------- losses
# The leading axis R is that of the replicas: a loss has shape (R,), and the gradient of its sum is each replica's own.
class NTXent(torch.autograd.Function):
    """NT-Xent (Eq. 9) in nats, (R,), of unit embeddings z (R, K, 2B) whose column i + B is the other view of column i,
    at temperature (R, 1, 1). Its gradient by hand has half the cost of autograd's: with E = exp((zᵀz − 1)/τ), diagonal
    0, and s its row sums, ∂L/∂z_i = (Σ_j E_ij (1/s_i + 1/s_j) z_j − 2 z_i⁺) / (2B τ). Few replicas at a time, in two
    buffers that stay in the cache."""

    @staticmethod
    def forward(context, z, temperature):
        views, losses, gradients = z.shape[2], [], []
        few = max(1, 2**21 // views**2)
        buffers = z.new_empty(2, min(few, len(z)), views, views)
        for part, t in zip(z.split(few), temperature.split(few)):
            E, weight = buffers[:, :len(part)]  # (few, 2B, 2B) each
            ones = torch.ones_like(part[:, :1])  # one more row: the product is (zᵀz − 1)/τ, whose exp cannot overflow
            torch.bmm(torch.cat([part, -ones], 1).mT, torch.cat([part, ones], 1) / t, out=E).exp_()
            E.diagonal(dim1=1, dim2=2).zero_()
            s = E.sum(1, keepdim=True)  # (few, 1, 2B)
            positive = part.roll(views // 2, 2)
            losses.append((s.log() + (1 - (part * positive).sum(1, keepdim=True)) / t).mean((1, 2)))
            torch.add(1 / s, 1 / s.mT, out=weight)
            gradients.append((part @ E.mul_(weight) - 2 * positive) / (views * t))
        context.save_for_backward(torch.cat(gradients))
        return torch.cat(losses)

    @staticmethod
    def backward(context, upstream):
        return upstream[:, None, None] * context.saved_tensors[0], None


def product(u: Tensor, v: Tensor) -> Tensor:
    """Mean over the batch of ⟨u, v⟩, (R,), of u, v (R, K, B): Eq. (6), (7), (8) are 2 − 2 of it."""
    return (u * v).sum(1).mean(1)


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Mean over the batch of cos(u, v), (R,), of u, v (R, K, B): Eq. (4), (5) are 2 − 2 of it."""
    return ((u * v).sum(1) / (u.square().sum(1) * v.square().sum(1)).clamp(min=1e-12).sqrt()).mean(1)


def unit(h: Tensor) -> Tensor:
    """h (R, K, B) with columns of norm 1. (F.normalize over dimension 1 is slow on a CPU.)"""
    return h / h.square().sum(1, keepdim=True).clamp(min=1e-12).sqrt()


def srelu(v: Tensor, b: Tensor | float) -> Tensor:
    """Symmetric ReLU (Eq. 14): v moved by b ≥ 0 towards 0, and 0 where |v| ≤ b."""
    return F.relu(v - b) - F.relu(-v - b)


# The authors' layer is relu(u) − relu(−u − 2b) of u = W a − b, which is Eq. (14). Batch normalisation of u takes away
# the b in it, and what is left has a threshold for negative u alone.
ACTIVATIONS = {"srelu": srelu, "relu": lambda v, b: F.relu(v - b),
               "authors": lambda v, b: F.relu(v) - F.relu(-v - 2 * b)}


# ------------------------------------------------------------------------------------------------------------ networks
class Encoder(nn.Module):
    """R encoders a (R, p, B) → φ(BN(W a)) (R, m, B); `layers` holds their weights (R, m, p), (R, m, m), …"""

    def __init__(self, layers: list[Tensor], s: SimpleNamespace, normalise="none"):
        super().__init__()
        self.layers, self.normalise, self.batch_norm = nn.ParameterList(layers), normalise, s.batch_norm
        self.activation, ones = s.activation, torch.ones_like(layers[-1][:, :, :1])  # (R, m, 1)
        self.b = nn.Parameter(s.bias * ones, requires_grad=s.train_bias == "yes")
        self.affine = nn.ParameterList([ones.clone(), 0 * ones] if s.batch_norm == "affine" else [])  # scale, shift
        self.project()

    def forward(self, a: Tensor) -> Tensor:
        W = self.W()
        if self.batch_norm != "no":  # all before φ is linear: the variance of a neuron over the batch is w Cov(a) wᵀ
            a = a - a.mean(2, keepdim=True)
            W = W / ((W @ (a @ a.mT / a.shape[2]) * W).sum(2, keepdim=True) + 1e-5).sqrt()
        v = self.affine[0] * W @ a + self.affine[1] if self.affine else W @ a
        return ACTIVATIONS[self.activation](v, self.b)

    def W(self) -> Tensor:
        """What the linear maps do together, (R, m, p)."""
        return functools.reduce(lambda product, layer: layer @ product, self.layers)

    @torch.no_grad()
    def project(self) -> None:
        """Back into the allowed set after a step: b ≥ 0 for Eq. (14), and rows or columns of norm 1."""
        if self.activation == "srelu":
            self.b.clamp_(min=0)
        if self.normalise != "none":
            for W in self.layers:
                W.copy_(F.normalize(W, dim=2 if self.normalise == "rows" else 1))


def warm_columns(kind: str, m: int, d: int, random: torch.Generator) -> Tensor:
    """Which feature each of m neurons starts at, (m,). m = d: neuron i at feature i."""
    if m == d:
        return torch.arange(d)
    columns = torch.randint(d, (m,), generator=random)
    if kind == "covered":
        columns[torch.randperm(m, generator=random)[:d]] = torch.arange(d)
    return columns


# ------------------------------------------------------------------------------------------------------------- metrics
def max_cosine(W: Tensor, M: Tensor) -> Tensor:
    """Eq. (12), (R, d): of each feature (column of M (R, p, d)) the largest |cos| at a neuron (row of W (R, m, p))."""
    return (F.normalize(W, dim=2) @ F.normalize(M, dim=1)).abs().amax(1)


def support_separation(W: Tensor, M: Tensor) -> Tensor:
    """Eq. (11) as a number (the paper has none), (R, d): of each feature j's best neuron i, |cos(W_i, M_j)| minus the
    largest |cos(W_i, M_k)|, k ≠ j. 1: the neuron answers to its feature alone; at most 0: not to it most."""
    cosines = (F.normalize(W, dim=2) @ F.normalize(M, dim=1)).abs()  # (R, m, d)
    own = torch.take_along_dim(cosines, cosines.argmax(1, keepdim=True).mT.expand(-1, -1, M.shape[2]), 1)  # (R, d, d)
    itself = torch.eye(M.shape[2], dtype=torch.bool, device=M.device)
    return own.diagonal(dim1=1, dim2=2) - own.masked_fill(itself, 0).amax(2)


def spread(h: Tensor) -> Tensor:
    """Of embeddings h (R, m, n) the mean standard deviation of h/‖h‖ times sqrt(m), (R,): 1 healthy, 0 collapsed."""
    return unit(h).std(2, correction=0).mean(1) * h.shape[1] ** 0.5


# ------------------------------------------------------------------------------------------------------------ training
REMEMBER = 30  # seconds between two notes of how far a program is


def train(s: SimpleNamespace, device="cpu", records=30, memory: Path | None = None) -> tuple[list[dict], dict]:
    """Train all replicas of setting `s`, every seed with every combination of swept factors, as one program. Returns
    the replicas (dicts of seed, swept factors, "uncovered") and curves, arrays: "epoch" (T,), and (T, R) each of min,
    median and max (of max_cosine), loss (mean over the epoch that ended; NaN at the start), separation (mean over
    features), spread. With a file `memory` it notes twice a minute how far it is, and goes on from there when called
    again. BadInput when the loss is not finite."""
    replicas = [dict(zip(("seed", *SWEPT), values), uncovered="") for values in
                itertools.product(range(1, s.seeds + 1), *(getattr(s, factor) for factor in SWEPT))]
    R, B, count = len(replicas), s.batch_size, s.batches
    per_replica = lambda factor: torch.tensor([r[factor] for r in replicas], device=device).view(R, 1, 1)
    lr, temperature = per_replica("lr"), per_replica("temperature")
    threshold = (65536 * per_replica("keep") - 32769).round().to(torch.int16)  # kept: 16 random bits that are not above
    samples = (sample(s, r["seed"], r["sparsity"], r["noise"]) for r in replicas)
    M, _, x = (torch.stack(t).to(device) for t in zip(*samples))

    def gaussian(purpose, *shape):  # (R, *shape), variance 1; replicas of one seed start alike
        return torch.stack([torch.randn(*shape, generator=generator(r["seed"], purpose)) for r in replicas]).to(device)

    def encoder(network):
        noise = [gaussian(10 + 10 * network + i, s.m, s.m if i else s.p) for i in range(s.layers)]
        layers = [W / math.sqrt(s.p * s.d) for W in noise]
        if s.warm[0] is not None:
            purpose = 3 if s.warm_columns == "aligned" else 3 + network
            drawn = [warm_columns(s.warm_columns, s.m, s.d, generator(r["seed"], purpose)) for r in replicas]
            features = torch.stack([M_r[:, columns].T for M_r, columns in zip(M, drawn)])
            layers[0] = features + s.p ** (-per_replica("warm") / 2) * noise[0]
            for r, columns in zip(replicas, drawn):
                if len(columns.unique()) < s.d:  # a feature that no neuron starts at
                    r["uncovered"] = "feature"
        return Encoder(layers, s, s.normalise).to(device)

    networks = nn.ModuleList(encoder(i) for i in range(1 + (s.method == "noncl")))  # online and target, or one
    online, similarity = networks[0], {"cosine": cosine, "product": product}[s.similarity]
    head, projector = nn.ParameterList(), None
    if s.head != "none":  # W^p and b^p
        head.extend([gaussian(9, s.m, s.m) / math.sqrt(s.p * s.d), torch.zeros(R, s.m, 1, device=device)])
    if s.head == "mlp":
        projector = Encoder([gaussian(7, s.m, s.m) / math.sqrt(s.p * s.d)], s).to(device)
    everything = nn.ModuleList([networks, head] + [projector] * (projector is not None))
    embed = lambda a: projector(online(a)) if projector else online(a)  # (R, m, B)
    predict = lambda h: head[0] @ h + head[1] if head else h

    def descend(loss, network):  # plain SGD; replica r's part of the sum is all that its weights have a gradient of
        weights = [p for module in [network, *everything[1:]] for p in module.parameters() if p.requires_grad]
        for weight, gradient in zip(weights, torch.autograd.grad(loss.sum(), weights)):
            weight.data -= lr * gradient
        for module in [network] + [projector] * (projector is not None):
            module.project()

    random = [generator(seed, 8, device) for seed in range(1, s.seeds + 1)]
    of_seed = torch.tensor([r["seed"] - 1 for r in replicas], device=device)
    spaced = (space(1, s.epochs, records).round() for space in (np.linspace, np.geomspace))
    marks = {0, *itertools.chain(*spaced), round(BUDGET[s.method] / (s.lr[0] * s.steps))}
    marks = sorted(mark for mark in marks if mark <= s.epochs)  # epochs after which to measure
    losses, curves, start, saved = [x.new_full((R,), torch.nan)], {}, 0, time.perf_counter()
    weights = [p.data for p in everything.parameters()]
    if memory and memory.exists():
        start, losses, curves = recall(memory, weights, random, device)
    remember = lambda epoch: common.replace(memory, lambda file: torch.save(dict(
        epoch=epoch, weights=weights, random=[g.get_state() for g in random], losses=losses,
        curves={name: [torch.from_numpy(v) for v in values] for name, values in curves.items()}), file))
    for epoch in range(start, s.epochs + 1):
        if memory and time.perf_counter() - saved > REMEMBER:
            remember(epoch)
            saved = time.perf_counter()
        if epoch in marks:
            loss = torch.stack(losses).mean(0)
            broken = [r for r, finite in zip(replicas, loss.isfinite().tolist()) if not finite]
            if epoch and broken:
                raise common.BadInput(f"the loss is not finite in epoch {epoch} for {broken[0]}; try a smaller --lr")
            with torch.no_grad():
                W = online.W()
                quantiles = max_cosine(W, M).quantile(torch.tensor([0, 0.5, 1], device=device), dim=1)
                measured = [*quantiles, loss, support_separation(W, M).mean(1), spread(online(x))]
            for name, value in zip(("min", "median", "max", "loss", "separation", "spread"), measured):
                curves.setdefault(name, []).append(value.cpu().numpy())
        if epoch == s.epochs:
            break
        order = torch.stack([torch.randperm(s.n, generator=g, device=device) for g in random])[of_seed]
        shuffled = x.gather(2, order[:, None].expand(-1, s.p, -1))  # (R, p, n)
        words = torch.empty(s.seeds, count, 2, s.p, B // 4 + 1, dtype=torch.int64, device=device)  # 16 bits an entry
        bits = torch.stack([w.random_(-2**63, None, generator=g) for w, g in zip(words, random)]).view(torch.int16)
        losses = []
        for step in range(count):
            batch = shuffled[:, :, step * B:(step + 1) * B]  # (R, p, B), the last one may be smaller
            D1, D2 = (bits[:, step, i, :, :batch.shape[2]][of_seed] <= threshold for i in (0, 1))  # (R, p, B)
            a1, a2 = (D1 * batch, D2 * batch) if s.masks == "independent" else (2 * D1 * batch, 2 * ~D1 * batch)
            if s.method == "simclr":
                h = predict(torch.cat([online(a1), online(a2)], dim=2))  # (R, m, 2B)
                loss, trained = NTXent.apply(unit(h), temperature), online  # Eq. (9)
            elif s.method == "simsiam":
                h1, h2 = embed(a1), embed(a2)  # (R, m, B)
                loss = -(similarity(predict(h1), h2.detach()) + similarity(predict(h2), h1.detach())) / 2
                trained = online
            else:
                trained, fixed = networks if (epoch * count + step) % 2 == 0 else reversed(networks)  # in alternation
                with torch.no_grad():
                    goal = fixed(a2)
                loss = 2 - 2 * similarity(predict(trained(a1)), goal)  # Eq. (4) to (8)
            descend(loss, trained)
            losses.append(loss.detach())
    if memory:
        remember(s.epochs + 1)
    return replicas, {"epoch": np.array(marks)} | {name: np.stack(values) for name, values in curves.items()}


def recall(memory: Path, weights: list, random: list, device) -> tuple[int, list, dict]:
    """What train() wrote to `memory`: the weights and generators are set, the epoch, losses and curves returned."""
    try:
        state = torch.load(memory, map_location=device, weights_only=True)
        for weight, value in zip(weights, state["weights"], strict=True):
            weight.copy_(value)
        for own, value in zip(random, state["random"], strict=True):
            own.set_state(value.cpu())
        curves = {name: [v.cpu().numpy() for v in values] for name, values in state["curves"].items()}
        return state["epoch"], state["losses"], curves
    except Exception as error:  # a damaged file fails in its own way
        why = f"{type(error).__name__}: {error}"
        raise common.BadInput(f"{memory} cannot be used, remove it to train this part again ({why})")


# --------------------------------------------------------------------------------------------------------- experiments
FAST = dict(batch_size=128, lr=0.5, epochs=100, seeds=3)  # lr × steps: SimCLR 350, SimSiam 400, noncl 200 per network
BUDGET = dict(simclr=200, simsiam=400, noncl=200)  # the paper's, 8000 epochs at .025 of one batch or two
LEVELS = [0.1, 0.3]  # Pr(z_i ≠ 0); at d = 10 the authors' latents for .2 are those for .1
SIMCLR, SIMSIAM = dict(method="simclr", head="linear"), dict(method="simsiam", head="linear")
NONCL, PREDICTOR = dict(method="noncl"), dict(method="noncl", head="linear")
AUTHORS = dict(batch_norm="affine", activation="authors")  # the layers of their code where the text has others
FIG1 = dict(latents="onehot-plus", batch_norm="no")
SLOW = lambda epochs: dict(fast=dict(lr=0.05, epochs=epochs))  # without batch normalisation .5 kills neurons
FIG7 = NONCL | dict(p=20, d=20, m=20)
EQ6 = dict(normalise="rows", warm=1.25, similarity="product", batch_norm="no")
LONG = dict(sparsity=LEVELS, lr=2.0, batch_size=128)  # to learning rate × steps 4000
SIMCLR_1 = {"max": {0.1: 0.94, 0.2: 0.94, 0.3: 0.94}, "median": {0.1: 0.92, 0.2: 0.93, 0.3: 0.92},
            "min": {0.1: 0.83, 0.2: 0.90, 0.3: 0.57}}
SIMSIAM_1 = {"max": {0.1: 0.94, 0.2: 0.93, 0.3: 0.678}, "median": {0.1: 0.87, 0.2: 0.82, 0.3: 0.45},
             "min": {0.1: 0.47, 0.2: 0.45, 0.3: 0.37}}
OURS = {"min": None}  # where the paper reports nothing
# Name → (title, factors, what the paper reports: max-cosine → a number, one per Pr or c, or high, low, falls). Beside
# factors there are `fast`, what differs from FAST, and `by`, by which the table splits replicas as by swept factors.
EXPERIMENTS = {
    "table1": [("SimCLR", SIMCLR | dict(sparsity=LEVELS), SIMCLR_1),
               ("SimCLR, authors' layers", SIMCLR | AUTHORS | dict(sparsity=LEVELS), SIMCLR_1),
               ("SimSiam", SIMSIAM | dict(sparsity=LEVELS), SIMSIAM_1),
               ("SimSiam, authors' layers", SIMSIAM | AUTHORS | dict(head="mlp", sparsity=LEVELS), SIMSIAM_1)],
    "fig1": [("contrastive, one-hot", dict(method="simclr") | FIG1 | SLOW(600), {"min": "high"}),
             ("non-contrastive, one-hot", NONCL | FIG1 | SLOW(1000), {"min": "low"})],
    "fig2": [("contrastive", dict(method="simclr", sparsity=LEVELS), {"min": "high"}),
             ("non-contrastive", NONCL | dict(sparsity=LEVELS), {"min": "low"})],
    "fig3": [("non-contrastive, 2 layers", NONCL | dict(layers=2, sparsity=LEVELS), {"min": "low"})],
    "fig4": [("warm start", NONCL | dict(warm=1.0), {"min": "falls"})],
    "fig5": [("warm start, predictor", PREDICTOR | dict(warm=1.0), {"min": 0.87})],
    "fig6": [("cold start, predictor", PREDICTOR, {"min": "low"})],
    "fig7": [(f"warm start, {what} normalised", FIG7 | dict(normalise=what, warm=[1.0, 1.25, 1.5, 2.0]),
              {"min": {1.0: 0.85, 1.25: 0.85}}) for what in ("rows", "columns")],  # from .62, between these
    "alignment": [*((f"p={p}, {columns} columns{note}", factors | dict(warm=1.0, p=p, warm_columns=columns), OURS)
                    for factors, p, note in ((NONCL, 50, ""), (NONCL | dict(normalise="rows"), 50, ", rows normalised"),
                                             (NONCL, 20, ""), (PREDICTOR, 50, ", predictor"))
                    for columns in ("random", "aligned")),
                  ("Fig. 7 without normalisation", FIG7 | dict(warm=1.25), OURS),
                  ("Fig. 5 with 60 seeds", PREDICTOR | dict(warm=1.0, seeds=60, by=["uncovered"]), OURS)],
    "budget": [(name, method | LONG | dict(epochs=epochs), OURS) for name, method, epochs in
               (("SimCLR", SIMCLR, 286), ("SimSiam", SIMSIAM, 250), ("non-contrastive", NONCL, 500),
                ("non-contrastive, predictor", PREDICTOR, 500))],
    "variants": [*((f"{name}, ReLU, {{0, 1}}", method | dict(activation="relu", latents="zero-one", sparsity=LEVELS),
                    OURS) for name, method in (("contrastive", dict(method="simclr")), ("SimCLR", SIMCLR),
                                               ("SimSiam", SIMSIAM), ("non-contrastive", NONCL))),
                 *((f"Fig. 7 by Eq. (6), {note}", FIG7 | EQ6 | dict(bias=bias, train_bias=train), OURS)
                   for note, bias, train in (("b trained", 0.0, "yes"), ("b = 0.2", 0.2, "no")))],
    "custom": [("custom", {}, OURS)],
}


def setting(factors: dict, given: dict, paper: bool) -> SimpleNamespace:
    """Every factor of a program: the user's over the experiment's over FAST (unless `paper`) over the paper's; and what
    follows from them: batches an epoch, steps an epoch of each network. BadInput where they clash."""
    fast = {} if paper else FAST | factors.get("fast", {})
    chosen = {name: factor[0] for name, factor in FACTORS.items()} | fast | factors | given
    chosen["seeds"] = factors.get("seeds", chosen["seeds"])  # an experiment's own number of seeds is part of it
    several = lambda name, value: [value] if name in SWEPT and not isinstance(value, list) else value
    s = SimpleNamespace(**{name: several(name, value) for name, value in chosen.items()})
    s.noise = [math.sqrt(math.log(s.d)) / s.d if noise is None else noise for noise in s.noise]
    s.batches = s.n // s.batch_size if s.method == "simclr" else math.ceil(s.n / s.batch_size)
    s.steps = s.batches / (2 if s.method == "noncl" else 1)
    k = active_features(s.d, max(s.sparsity))[1]
    for wrong, text in [
        (s.d > s.p, f"--d {s.d} orthonormal features need at least as many observed dimensions; --p is {s.p}"),
        (s.batch_size > s.n, f"--batch-size {s.batch_size} is more than --n {s.n} samples"),
        (s.latents in ("authors", "exact") and k > s.d,
         f"--latents {s.latents}: Pr {max(s.sparsity)} asks for {k} active features of --d {s.d}"),
        ("warm_columns" in given and s.warm == [None],
         "--warm-columns needs a warm start; give --warm too (the paper's c is 1)"),
        (s.warm_columns == "covered" and s.m < s.d,
         f"--warm-columns covered: --m {s.m} neurons cannot cover --d {s.d} features"),
        (s.head == "mlp" and s.method != "simsiam", "--head mlp is SimSiam's; give --method simsiam, or --head linear"),
        (s.similarity == "product" and s.method == "simclr",
         "--similarity product: --method simclr has cosines, Eq. (9)"),
        (s.activation == "authors" and s.batch_norm == "no",
         "--activation authors without batch normalisation is srelu; give that, or --batch-norm affine"),
    ]:
        if wrong:
            raise common.BadInput(text)
    return s


def rows(experiment: str, name: str, s: SimpleNamespace, replicas: list[dict], curves: dict, claims: dict):
    """A program's rows of the table (dicts), mean and std over the seeds of every combination of swept factors; and
    their curves, by setting."""
    by = [factor for factor in SWEPT if len(getattr(s, factor)) > 1] + getattr(s, "by", [])
    groups, found, drawn = {}, [], {}
    for i, r in enumerate(replicas):
        groups.setdefault(tuple(r[factor] for factor in by), []).append(i)
    for values, members in groups.items():
        title = ", ".join([name, *(f"{factor} {v}" for factor, v in zip(by, values) if v not in (None, ""))])
        drawn[title] = own = {key: curve if key == "epoch" else curve[:, members] for key, curve in curves.items()}
        own["lr_times_steps"] = replicas[members[0]]["lr"] * curves["epoch"] * s.steps
        ends = [int(np.abs(own["lr_times_steps"] - BUDGET[s.method]).argmin())] * (experiment == "budget") + [-1]
        for (statistic, claim), end in itertools.product(claims.items(), ends):
            start, mean = (float(own[statistic][t].mean()) for t in (0, end))
            if isinstance(claim, dict):
                claim = claim.get(replicas[members[0]]["warm"] or replicas[members[0]]["sparsity"])
            words = {"high": mean >= 0.8, "low": mean <= 0.65, "falls": mean < start}
            agrees = words[claim] if claim in words else claim is not None and abs(mean - claim) <= 0.1
            found.append(dict(
                experiment=experiment, setting=title, statistic=statistic,
                lr_times_steps=float(own["lr_times_steps"][end]), start=start, end_mean=mean,
                end_std=float(own[statistic][end].std(ddof=1)) if len(members) > 1 else None, paper=claim,
                verdict=None if claim is None else "agrees" if agrees else "differs", seeds=len(members)))
    return found, drawn


def draw(plt, path, programs: list[dict], log: bool) -> None:
    """Min max-cosine and loss over training, mean ± std over seeds: a colour per program, a line style per setting."""
    figure, panels = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained")
    for panel, key, label in zip(panels, ("min", "loss"), ("minimum max-cosine", "loss")):
        for colour, program in enumerate(programs):
            for (title, own), style in zip(program.items(), itertools.cycle(("-", "--", ":", "-."))):
                x, mean = own["lr_times_steps"], own[key].mean(1)
                std = own[key].std(1, ddof=min(1, own[key].shape[1] - 1))
                panel.plot(x, mean, style, color=f"C{colour}", label=title)
                panel.fill_between(x, mean - std, mean + std, color=f"C{colour}", alpha=0.15)
        panel.set(xlabel="learning rate × steps", ylabel=label)
        if log:
            panel.set_xscale("log")
            for paper in BUDGET.values():
                panel.axvline(paper, color="grey", linestyle=":")
    panels[0].set_ylim(0, 1)
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=7, loc="outside right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


# -------------------------------------------------------------------------------------------------------------- theory
def loss_6(W: Tensor, keep: float) -> Tensor:
    """Population value of Eq. (6) per latent, (…,), of W (…, d, d) in the setting of Theorem 1: M = I, no noise, one-hot +1 latents,
    of which D1 and D2 both keep the one entry with probability α²."""
    return (2 - 2 * keep**2 * F.relu(W).square().sum(-2)).mean(-1)


def loss_9(W: Tensor, keep: float, inverse_temperature: float, literal=False) -> Tensor:
    """Population value of the contrastive loss with |B| → ∞, (…,), of W (…, d, d) in the setting of Theorem 1: Eq. (A.17), where all
    samples share a mask, or `literal`: Eq. (9) with every negative's own mask. Here the temperature multiplies the similarity."""
    similarity = inverse_temperature * F.relu(W).mT @ F.relu(W)  # (…, d, d)
    d = W.shape[-1]
    if literal:
        partition = (keep * similarity.exp() + 1 - keep).sum(-1).log()  # (…, d)
    else:
        D2 = torch.cartesian_prod(*[W.new_tensor([0.0, 1.0])] * d)  # (2^d, d), every mask
        chance = (D2 * keep + (1 - D2) * (1 - keep)).prod(-1)
        partition = (similarity[..., None, :, :] * D2[:, None]).logsumexp(-1).mul(chance[:, None]).sum(-2)
    positive = keep * similarity.diagonal(dim1=-2, dim2=-1)  # where D1 keeps entry i; where it does not, the loss is log d
    return (keep * (partition - positive) + (1 - keep) * math.log(d)).mean(-1)


def lowest_loss_9(d: int, keep: float, inverse_temperature: float, literal: bool, starts=32, steps=400) -> float:
    """The lowest loss_9 that Adam finds over W with columns of norm 1, from random starts of either sign."""
    V = torch.randn(starts, d, d, dtype=torch.float64, generator=generator(0, 0)).requires_grad_()
    optimizer = torch.optim.Adam([V], lr=0.05)
    for _ in range(steps):
        loss = loss_9(F.normalize(V, dim=1), keep, inverse_temperature, literal)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    return loss.min().item()


def linear_descent(Wo: Tensor, Wt: Tensor, M: Tensor, lrs: list[float], decay: float, keep: float, kappa: float, noise: float):
    """Both weights (m, p) of the dual linear network after simultaneous steps W ← decay·W − lr·∇ on the population value of
    Eq. (7), 2 − 2 α² tr(W^o E[x xᵀ] W^tᵀ) with E[x xᵀ] = κ M Mᵀ + σ0² I (Theorem 2)."""
    second_moment = kappa * M @ M.mT + noise**2 * torch.eye(len(M), dtype=M.dtype)
    for lr in lrs:
        Wo, Wt = Wo.detach().requires_grad_(), Wt.detach().requires_grad_()
        loss = 2 - 2 * keep**2 * (Wo @ second_moment * Wt).sum()
        gradients = torch.autograd.grad(loss, (Wo, Wt))
        Wo, Wt = (decay * W - lr * gradient for W, gradient in zip((Wo, Wt), gradients))
    return Wo.detach(), Wt.detach()


def theorem_2(lrs: list[float], decay: float, keep: float, kappa: float, noise: float) -> tuple[float, float, float]:
    """C1 and C2 of W^o_t M = C1 W^o_0 M + C2 (W^o_0 M + W^t_0 M): Π(λ − c_i) and ½[Π(λ + c_i) − Π(λ − c_i)], c_i = 2 lr_i α² (κ + σ0²);
    and C2 as the paper prints it, a sum over j with a product that starts at j where it has to start at j + 1."""
    c = [2 * lr * keep**2 * (kappa + noise**2) for lr in lrs]
    minus = lambda terms: math.prod(decay - x for x in terms)
    plus = lambda terms: math.prod(decay + x for x in terms)
    return minus(c), (plus(c) - minus(c)) / 2, sum(c[j] * minus(c[j:]) * plus(c[:j]) for j in range(len(c)))


def half_round(W: Tensor, other: Tensor, bias: float, keep: float, kappa: float, steps=60, lr=10.0) -> Tensor:
    """Theorem 3: W (d, d) after steps of descent on the population value of Eq. (15) with M = I and no noise, `other` fixed, rows
    normalised after each. The expectation runs over all 3^d latents and 2^d masks."""
    z = torch.cartesian_prod(*[W.new_tensor([-1.0, 0.0, 1.0])] * len(W))  # (3^d, d)
    D = torch.cartesian_prod(*[W.new_tensor([0.0, 1.0])] * len(W))  # (2^d, d)
    of_z, of_D = (kappa / 2 * z.abs() + (1 - kappa) * (1 - z.abs())).prod(1), (keep * D + (1 - keep) * (1 - D)).prod(1)
    mean = lambda W: (srelu(z[:, None] * D @ W.mT, bias) * of_D[:, None]).sum(1)  # (3^d, d), over masks
    goal = mean(other)
    for _ in range(steps):
        W = W.detach().requires_grad_()
        loss = 2 - 2 * (of_z[:, None] * mean(W) * goal).sum()
        W = F.normalize(W.detach() - lr * torch.autograd.grad(loss, W)[0], dim=1)
    return W


def growth(bias: float, keep: float, kappa: float, d=3) -> float:
    """By what an off-diagonal entry is multiplied in one half_round from a warm start (Theorem 3: κα²/(1 − b))."""
    W = torch.eye(d, dtype=torch.float64) + 1e-4 * torch.randn(d, d, dtype=torch.float64, generator=generator(0, 1))
    off = ~torch.eye(d, dtype=torch.bool)
    return (half_round(W, W, bias, keep, kappa)[off] / W[off]).mean().item()


def theory(folder, plt) -> list[dict]:
    """Theorems 1 to 3 in numbers: rows for the table, and with matplotlib theory.png, the regions in which 1(b) and 3 fail."""
    random, found = generator(0, 2), []

    def row(text, measured, theorem, holds):
        found.append(dict(experiment="theory", setting=text, statistic=None, lr_times_steps=None, start=None, end_mean=measured,
                          end_std=None, paper=theorem, verdict="holds" if holds else "fails", seeds=None))

    d, keep = 5, 0.5
    W = F.normalize(torch.randn(1000, d, d, dtype=torch.float64, generator=random), dim=1)
    largest, smallest, bound = loss_6(W.abs(), keep).max().item(), loss_6(W, keep).min().item(), 2 - 2 * keep**2
    row("1(a) Eq. (6), largest of 1,000 W ≥ 0", largest, bound, largest < bound + 1e-9)
    row("1(a) Eq. (6), smallest of 1,000 W of mixed signs", smallest, bound, smallest > bound)
    betas, readings = [1, 2, 3, 4, 5, 6], {}
    for name, literal in (("Eq. (A.17)", False), ("Eq. (9), a mask per negative", True)):
        permutation = [loss_9(torch.eye(d, dtype=W.dtype), keep, beta, literal).item() for beta in betas]
        lowest = [lowest_loss_9(d, keep, beta, literal) for beta in betas]
        readings[name] = {"a permutation": permutation, "lowest found": lowest}
        for i in (1, 4):
            row(f"1(b) {name}, τ = {betas[i]}: lowest found, permutation", lowest[i], permutation[i], lowest[i] > permutation[i] - 1e-3)
    lrs = torch.rand(50, generator=random).mul(0.2).tolist()
    M = torch.linalg.qr(torch.randn(20, d, dtype=torch.float64, generator=random))[0]
    Wo, Wt = torch.randn(2, 8, 20, dtype=torch.float64, generator=random)
    after = linear_descent(Wo, Wt, M, lrs, 0.97, keep, 0.3, 0.1)[0] @ M
    C1, C2, printed = theorem_2(lrs, 0.97, keep, 0.3, 0.1)
    for C, text in (C2, ""), (printed, ", C2 as printed"):
        error = ((C1 * Wo @ M + C * (Wo + Wt) @ M - after).abs().max() / after.abs().max()).item()
        row("2 W^o M after 50 steps, relative error of the closed form" + text, error, 0.0, error < 1e-10)
    regions = list(itertools.product((0.3, 0.6), (0.5, 0.7, 0.9), (0.3, 0.6, 0.9)))  # b, α, κ
    ratios, growths = [kappa * keep**2 / (1 - b) for b, keep, kappa in regions], [growth(*region) for region in regions]
    for i in (0, -1):
        row("3 off-diagonal entries times this in a half-round: κα²/(1−b), below 1", growths[i], ratios[i], growths[i] < 1)
    if plt:
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
        for colour, (name, reading) in enumerate(readings.items()):
            for style, (what, losses) in zip(("-", "o"), reading.items()):
                left.plot(betas, losses, style, color=f"C{colour}", label=f"{name}: {what}")
        left.axvline(math.log((d - keep) / (1 - keep)), color="grey", linestyle=":", label="(1 − α) exp τ = d − α")
        left.set(xlabel="τ, multiplying the similarity", ylabel="contrastive loss (nats)", title="Theorem 1(b), d = 5, α = 0.5")
        right.plot([0, 2], [0, 2], "grey", label="κα²/(1 − b)")
        right.plot(ratios, growths, "o", label="measured")
        right.axhspan(1, 2, color="red", alpha=0.1, label="does not converge to I")
        right.set(xlabel="κα²/(1 − b)", ylabel="growth of off-diagonal entries", title="Theorem 3, a half-round")
        left.legend(fontsize=7)
        right.legend(fontsize=7)
        figure.savefig(folder / "theory.png", dpi=110)
        plt.close(figure)
    return found


# ----------------------------------------------------------------------------------------------------------- benchmark
def plain_loop(s: SimpleNamespace):
    """One replica as one would write it first: nn.Linear, nn.BatchNorm1d, DataLoader. A call trains an epoch."""
    data = torch.utils.data.TensorDataset(sample(s, 1, s.sparsity[0], s.noise[0])[2].T)  # (n, p)
    loader = torch.utils.data.DataLoader(data, s.batch_size, shuffle=True, drop_last=s.method == "simclr")
    encoder = lambda: nn.Sequential(nn.Linear(s.p, s.m, bias=False), nn.BatchNorm1d(s.m, affine=False))
    networks = [encoder(), encoder()] if s.method == "noncl" else [encoder()]
    head = nn.Linear(s.m, s.m) if s.head == "linear" else nn.Identity()
    b = nn.Parameter(torch.zeros(s.m))
    optimizer = torch.optim.SGD([*nn.ModuleList([*networks, head]).parameters(), b], s.lr[0])
    cos = lambda u, v: F.cosine_similarity(u, v).mean()

    def epoch():
        for (x,) in loader:
            a1, a2 = (x * (torch.rand_like(x) < s.keep[0]) for _ in range(2))  # (B, p)
            h1, h2 = srelu(networks[0](a1), b), srelu(networks[-1](a2), b)  # (B, m)
            if s.method == "simclr":
                z = F.normalize(head(torch.cat([h1, h2])))
                logits = (z @ z.T / s.temperature[0]).fill_diagonal_(-torch.inf)
                loss = F.cross_entropy(logits, torch.arange(len(z)).roll(len(h1)))
            elif s.method == "simsiam":
                loss = -(cos(head(h1), h2.detach()) + cos(head(h2), h1.detach())) / 2
            else:
                loss = 2 - 2 * cos(head(h1), h2.detach())
                networks.reverse()  # the other one's turn
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return epoch


def benchmark(device: str) -> None:
    """Seconds per epoch and replica at n = 3000, B = 512 for growing numbers of replicas, and of the plain loop."""
    hardware = common.hardware(torch.device(device))
    print(f"{hardware}, torch {torch.__version__}, n = 3000, batch 512; plain loop on the CPU")
    for name, method in (("SimCLR", SIMCLR), ("SimSiam", SIMSIAM), ("non-contrastive", NONCL)):
        plain = common.seconds(plain_loop(setting(method | dict(n=3000), {}, paper=True)), repeat=3)
        print(f"{name}: plain loop {plain:.4f} s per epoch")
        for seeds in (1, 5, 15, 45):
            both = [setting(method | dict(n=3000, seeds=seeds, epochs=epochs), {}, paper=True) for epochs in (2, 12)]
            short, long = (common.seconds(lambda: train(s, device, records=1), repeat=1) for s in both)
            ours = (long - short) / 10 / seeds  # the difference leaves out what happens once
            print(f"    {seeds:3d} replicas: {ours:.4f} s per epoch and replica, {plain / ours:.1f} times as fast")


# ------------------------------------------------------------------------------------------------------------- program
def parser() -> argparse.ArgumentParser:
    """The command line: which experiments, and a flag for every factor."""
    flags = common.BareParser("sparse_coding", __doc__, "runs/sparse_coding-<time>")
    flags.add_argument("--experiment", nargs="+", choices=[*EXPERIMENTS, "theory", "all"], metavar="NAME",
                       default=[name for name in EXPERIMENTS if name.startswith(("table", "fig"))],
                       help="table1, fig1 … fig7 (by default), alignment, budget, variants, theory, custom, all")
    flags.add_argument("--paper", action="store_true", help="the paper's exact setting: lr .025, 8000 epochs, batch "
                       "512, 5 seeds (without: lr .5, 100 epochs, batch 128, 3 seeds; some experiments have their own)")
    flags.add_argument("--resume", metavar="RUN", help="go on with the run in this folder")
    flags.add_argument("--benchmark", action="store_true", help="time this program and a plain loop, and end")
    for name, (default, kind, text) in FACTORS.items():
        flags.add_argument("--" + name.replace("_", "-"), nargs="+" if name in SWEPT else None,
                           help=text + (f" (--paper: {default})" if default is not None else ""),
                           **{"choices" if isinstance(kind, list) else "type": kind})
    return flags


def main(argv=None):
    flags = parser()
    args = flags.parse_args(argv)
    if args.resume:
        args = flags.resumed(argv, common.read_settings(args.resume, "sparse_coding"), {"resume"})
    if args.benchmark:
        return benchmark(args.device)
    given = {name: getattr(args, name) for name in FACTORS if getattr(args, name) is not None}
    as_paper = not set(given) - {"lr", "epochs", "batch_size", "n", "seeds", "sparsity"}  # else its values say nothing
    every = [*(name for name in EXPERIMENTS if name != "custom"), "theory"]
    names = every if "all" in args.experiment else args.experiment
    plan = {experiment: [(name, setting(factors, given, args.paper), claims if as_paper else dict.fromkeys(claims))
                         for name, factors, claims in EXPERIMENTS.get(experiment, [])] for experiment in names}
    if args.resume:
        folder = Path(args.resume)
        if not (folder / "memory").exists():
            raise common.BadInput(f"--resume {folder}: this run is complete")
    else:
        folder = args.out or time.strftime("runs/sparse_coding-%Y%m%d-%H%M%S")
        folder, _ = common.new_folder(folder, vars(args) | {"program": "sparse_coding"}, torch.device(args.device))
    (folder / "memory").mkdir(exist_ok=True)  # how far each program is, for --resume
    print(f"sparse_coding on {common.hardware(torch.device(args.device))}: {folder}")
    plt, found, curves = common.pyplot("the pictures are left out"), [], {}
    for experiment, programs in plan.items():
        begin, drawn = time.perf_counter(), []
        for i, (name, s, claims) in enumerate(programs):
            trained = train(s, args.device, memory=folder / "memory" / f"{experiment}-{i}.pt")
            table, settings = rows(experiment, name, s, *trained, claims)
            found += table
            drawn.append(settings)
            curves |= {f"{experiment}/{title}/{key}": c for title, own in settings.items() for key, c in own.items()}
        if experiment == "theory":
            found += theory(folder, plt)
        elif plt:
            draw(plt, folder / f"{experiment}.png", drawn, log=experiment == "budget")
        common.replace(folder / "results.json", lambda file: file.write(json.dumps(found, indent=1).encode() + b"\n"))
        common.replace(folder / "curves.npz", lambda file: np.savez_compressed(file, **curves))
        print(f"{experiment}: {time.perf_counter() - begin:.0f} s", flush=True)
    shutil.rmtree(folder / "memory")
    columns = ["experiment", "setting", "max-cosine", "lr × steps", "start", "end", "±", "paper", "verdict", "seeds"]
    short = lambda v: f"{v:.0f}" if v >= 10 else f"{v:.3g}"
    text = lambda v: "–" if v is None else short(v) if isinstance(v, float) else str(v)
    print(common.markdown([columns, *([text(value) for value in row.values()] for row in found)]))
    print("Mean and std over seeds. agrees: within 0.1 of the paper's number, high: at least 0.8, low: at most 0.65, "
          "falls: below the start.")


if __name__ == "__main__":
    common.launch(main)
