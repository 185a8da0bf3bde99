"""The landscape of contrastive and non-contrastive learning, on data whose true features are known.

Samples are sparse combinations of d hidden orthonormal features, two views mask random coordinates, and a one-layer
encoder should find the features again:

    x = M z + ε,   a_i = D_i x,   h = φ(BN(W a)),   success: the worst feature's max over neurons i of |cos(W_i, M_j)|

    contrastive (SimCLR)   −log( exp(cos(h1, h2)/τ) / Σ over the other 2B−1 views of exp(cos/τ) )   Eq. (9)
    non-contrastive        ‖ h^o(a1)/‖·‖ − sg[ h^t(a2)/‖·‖ ] ‖², then with o and t exchanged        Eq. (4), (5)
    SimSiam                −cos(W^p h(a1), sg[h(a2)]), one shared encoder

Pokle, Tian, Li, Risteski, "Contrasting the landscape of contrastive and non-contrastive learning", AISTATS 2022, arXiv
2203.15702. Equation, figure and theorem numbers are theirs, "the code" is github ashwinipokle/contrastive_landscape.
All replicas of a setting (seeds × swept factors) train as one batched program. The theorems are in tools/theory.py.

    python sparse_coding.py                                  Table 1 and Figures 1 to 7, fast setting, 3 seeds
    python sparse_coding.py --paper --experiment table1      Table 1, the paper's exact setting, 5 seeds
    python sparse_coding.py --experiment alignment budget variants --seeds 5   what no figure of the paper shows
    python sparse_coding.py --experiment custom --method noncl --lr 0.1 1      your own, with a flag for every factor

Measured on a thread of an AMD EPYC, beside another program (torch 2.15, 2026-11-23; results/landscape*): the first
command takes 38 seconds, the second 21 minutes. Maximum / median / minimum of the second, means of 5 seeds:

    Pr(z_i ≠ 0)     paper              text's layers      code's layers
    SimCLR .1       .94 / .92 / .83    .94 / .92 / .88    .94 / .92 / .88    (paper's .2: .94 / .93 / .90; our data for
           .3       .94 / .92 / .57    .94 / .91 / .87    .95 / .92 / .73     .2 are those of .1)
    SimSiam .1      .94 / .87 / .47    .85 / .57 / .45    .92 / .67 / .43    (paper's .2: .93 / .82 / .45)
            .3      .68 / .45 / .37    .65 / .52 / .44    .69 / .50 / .39

Where the text leaves a choice, or text, code and this file differ:
 1. Latents. The published numbers come from the code's: at d = 10 one −1 and one +1 for Pr .1 and .2, two −1 and one +1
    for .3. The text's entries are independent (--latents iid). One-hot is +1 (in the code −1 in some data sets).
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
 9. Masks keep half; the scripts sweep .75, .5, .25, .1. With --paper 5 seeds, three in the paper's Figures 5 to 7.
10. Replicas of a seed share dictionary, initial weights and masks, so that settings are compared on the same draws.
"""
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
    "head": ("none", ["none", "linear", "mlp"], "W^p h + b^p, projector or predictor (Eq. 5); mlp: SimSiam's, see 4"),
    "similarity": ("cosine", ["cosine", "product"], "of SimSiam and noncl: product normalises nothing, Eq. (6) to (8)"),
    "layers": (1, common.within(0, kind=int), "linear maps in the encoder"),
    "batch_norm": ("yes", ["yes", "affine", "no"], "batch normalisation before φ; affine: scale and shift trained"),
    "activation": ("srelu", ["srelu", "relu", "authors"], "φ: Eq. (14), relu(v − b), relu(v) − relu(−v − 2b); see 4"),
    "bias": (0.0, common.within(0, closed=True), "initial threshold b of φ"),
    "train_bias": ("yes", ["yes", "no"], "train b with the weights; srelu keeps it ≥ 0"),
    "normalise": ("none", ["none", "rows", "columns"], "of the encoder's weights to norm 1, after every step"),
    "warm": (None, common.within(0), "warm start: rows are columns of M plus noise of standard deviation p^(−warm/2)"),
    "warm_columns": ("random", ["random", "aligned", "covered"], "drawn per network, the same in both, none left out"),
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
    "n": (1000, common.within(1, kind=int), "samples"), "p": (50, common.within(0, kind=int), "observed dimensions"),
    "d": (10, common.within(0, kind=int), "hidden features"), "m": (50, common.within(0, kind=int), "neurons"),
    "seeds": (5, common.within(0, kind=int), "train with seeds 1 to N, each with data, weights and masks of its own"),
}
SWEPT = ("sparsity", "keep", "noise", "temperature", "lr", "warm")
DEST = {name: name for name in FACTORS} | {"method": "loss"}  # in args, whose `method` is this program


# ---------------------------------------------------------------------------------------------------------------- data
def generator(seed: int, purpose: int, device="cpu") -> torch.Generator:
    """Random numbers of a seed for 0 M, 1 z, 2 ε, 3, 4 warm columns, 7 projector, 8 batches, 9 W^p, 10, 20 + layer."""
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


class Data:
    """All replicas of a setting, every seed with every combination of swept factors: `replicas`, dicts of these, and
    what they train on, M (R, p, d) and x (R, p, n). The replicas of a seed see the same order and masks."""

    def __init__(self, s: SimpleNamespace, device):
        values = itertools.product(range(1, s.seeds + 1), *(getattr(s, factor) for factor in SWEPT))
        self.replicas = [dict(zip(("seed", *SWEPT), own), uncovered="") for own in values]
        self.s, self.device, self.random = s, device, [generator(seed, 8, device) for seed in range(1, s.seeds + 1)]
        samples = (sample(s, r["seed"], r["sparsity"], r["noise"]) for r in self.replicas)
        self.M, _, self.x = (torch.stack(t).to(device) for t in zip(*samples))
        self.lr, self.temperature = self.each("lr"), self.each("temperature")

    def each(self, factor: str) -> Tensor:
        """The replicas' seeds, or values of a swept factor, (R, 1, 1)."""
        return torch.tensor([r[factor] for r in self.replicas], device=self.device).view(-1, 1, 1)

    def views(self):
        """Yield two views a1, a2 (R, p, B) of each batch of one pass over x in a new order: Eq. (3), or (2)."""
        s, device, own = self.s, self.device, self.each("seed").flatten() - 1
        order = torch.stack([torch.randperm(s.n, generator=g, device=device) for g in self.random])[own]  # (R, n)
        x = self.x.gather(2, order[:, None].expand(-1, s.p, -1))  # (R, p, n)
        words = torch.empty(s.seeds, s.batches, 2, s.p, s.batch_size // 4 + 1, dtype=torch.int64, device=device)
        bits = torch.stack([w.random_(-2**63, None, generator=g) for w, g in zip(words, self.random)]).view(torch.int16)
        threshold = (65536 * self.each("keep") - 32769).round().to(torch.int16)  # kept: 16 random bits not above it
        for step, a in enumerate(x.split(s.batch_size, dim=2)[:s.batches]):  # (R, p, B), the last may be smaller
            D1, D2 = (bits[:, step, i, :, :a.shape[2]][own] <= threshold for i in (0, 1))  # (R, p, B)
            yield (D1 * a, D2 * a) if s.masks == "independent" else (2 * D1 * a, 2 * ~D1 * a)


# ------------------------------------------------------------------------------------------------- losses and metrics
# The leading axis R is that of the replicas: a loss has shape (R,), and the gradient of its sum is each replica's own.
class NTXent(torch.autograd.Function):
    """NT-Xent (Eq. 9) in nats, (R,), of unit embeddings z (R, K, 2B), column i + B the other view of column i, and τ
    (R, 1, 1). By hand its gradient costs half of autograd's: with E = exp((zᵀz − 1)/τ), diagonal 0, and s its row sums,
    ∂L/∂z_i = (Σ_j E_ij (1/s_i + 1/s_j) z_j − 2 z_i⁺) / (2B τ). Few replicas at a time, for a CPU's cache."""

    @staticmethod
    def forward(context, z, temperature):
        views, losses, gradients = z.shape[2], [], []
        few = max(1, (2**21 if z.device.type == "cpu" else 2**28) // views**2)
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


def unit(h: Tensor) -> Tensor:
    """h (R, K, B) with columns of norm 1. (F.normalize over dimension 1 is slow on a CPU.)"""
    return h / h.square().sum(1, keepdim=True).clamp(min=1e-12).sqrt()


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Mean over the batch of cos(u, v), (R,), of u, v (R, K, B): Eq. (4), (5) are 2 − 2 of it."""
    return ((u * v).sum(1) / (u.square().sum(1) * v.square().sum(1)).clamp(min=1e-12).sqrt()).mean(1)


def srelu(v: Tensor, b: Tensor | float) -> Tensor:
    """Symmetric ReLU (Eq. 14): v moved by b ≥ 0 towards 0, and 0 where |v| ≤ b."""
    return F.relu(v - b) - F.relu(-v - b)


SIMILARITIES = {"cosine": cosine, "product": lambda u, v: (u * v).sum(1).mean(1)}  # Eq. (6) to (8): 2 − 2 of it
# The authors' layer is relu(u) − relu(−u − 2b) of u = W a − b, which is Eq. (14). Batch normalisation of u takes away
# the b in it, and what is left has a threshold for negative u alone.
ACTIVATIONS = {"srelu": srelu, "relu": lambda v, b: F.relu(v - b),
               "authors": lambda v, b: F.relu(v) - F.relu(-v - 2 * b)}


def max_cosine(W: Tensor, M: Tensor) -> Tensor:
    """Eq. (12), (R, d): of each feature (column of M (R, p, d)) the largest |cos| at a neuron (row of W (R, m, p))."""
    return (F.normalize(W, dim=2) @ F.normalize(M, dim=1)).abs().amax(1)


def support_separation(W: Tensor, M: Tensor) -> Tensor:
    """Eq. (11) as a number (the paper has none), (R, d): of each feature j's best neuron i, |cos(W_i, M_j)| minus the
    largest |cos(W_i, M_k)|, k ≠ j. 1: the neuron answers to its feature alone; at most 0: not to it most."""
    cosines = (F.normalize(W, dim=2) @ F.normalize(M, dim=1)).abs()  # (R, m, d)
    own = torch.take_along_dim(cosines, cosines.argmax(1, keepdim=True).mT.expand(-1, -1, M.shape[2]), 1)  # (R, d, d)
    return own.diagonal(dim1=1, dim2=2) - own.masked_fill(torch.eye(M.shape[2], dtype=bool, device=M.device), 0).amax(2)


def spread(h: Tensor) -> Tensor:
    """Of embeddings h (R, m, n) the mean standard deviation of h/‖h‖ times sqrt(m), (R,): 1 healthy, 0 collapsed."""
    return unit(h).std(2, correction=0).mean(1) * h.shape[1] ** 0.5


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
    columns = torch.randint(d, (m,), generator=random) if m != d else torch.arange(d)
    if kind == "covered" and m != d:
        columns[torch.randperm(m, generator=random)[:d]] = torch.arange(d)
    return columns


def build(s: SimpleNamespace, data: Data) -> nn.ModuleDict:
    """What is trained: `networks`, online and target or one alone, chains of an encoder and with --head mlp SimSiam's
    projector; `head`, W^p and b^p. Replicas where a feature has no neuron in a warm start are marked in `data`."""
    def gaussian(purpose, *shape):  # (R, *shape), variance 1; replicas of one seed start alike
        draws = [torch.randn(*shape, generator=generator(r["seed"], purpose)) for r in data.replicas]
        return torch.stack(draws).to(data.device)

    def encoder(network):
        noise = [gaussian(10 + 10 * network + i, s.m, s.m if i else s.p) for i in range(s.layers)]
        layers = [W / math.sqrt(s.p * s.d) for W in noise]
        if s.warm[0] is not None:
            purpose = 3 if s.warm_columns == "aligned" else 3 + network
            drawn = [warm_columns(s.warm_columns, s.m, s.d, generator(r["seed"], purpose)) for r in data.replicas]
            features = torch.stack([M[:, columns].T for M, columns in zip(data.M, drawn)])  # (R, m, p)
            layers[0] = features + s.p ** (-data.each("warm") / 2) * noise[0]
            for r, columns in zip(data.replicas, drawn):
                r["uncovered"] = "feature" if len(columns.unique()) < s.d or r["uncovered"] == "feature" else "none"
        return nn.Sequential(Encoder(layers, s, s.normalise))

    networks = nn.ModuleList(encoder(i) for i in range(2 if s.method == "noncl" else 1))
    if s.head == "mlp":
        networks[0].append(Encoder([gaussian(7, s.m, s.m) / math.sqrt(s.p * s.d)], s))
    linear = [gaussian(9, s.m, s.m) / math.sqrt(s.p * s.d), data.M.new_zeros(len(data.M), s.m, 1)]
    return nn.ModuleDict({"networks": networks, "head": nn.ParameterList(linear if s.head != "none" else [])})


# ------------------------------------------------------------------------------------------------------------ training
MEASURED = "min", "median", "max", "loss", "separation", "spread"
REMEMBER = 30  # seconds, at least, from one note of how far a program is to the next


def step(s: SimpleNamespace, data: Data, model: nn.ModuleDict, a1: Tensor, a2: Tensor, turn: int) -> Tensor:
    """One step of plain SGD on two views (R, p, B), of two networks for number `turn`; → the loss before it, (R,)."""
    networks, head, similarity = model["networks"], model["head"], SIMILARITIES[s.similarity]
    predict = lambda h: head[0] @ h + head[1] if head else h
    trained = networks[turn % len(networks)]
    if s.method == "simclr":
        z = unit(predict(torch.cat([trained(a1), trained(a2)], dim=2)))  # (R, m, 2B)
        loss = NTXent.apply(z, data.temperature)  # Eq. (9)
    elif s.method == "simsiam":
        h1, h2 = trained(a1), trained(a2)  # (R, m, B)
        loss = -(similarity(predict(h1), h2.detach()) + similarity(predict(h2), h1.detach())) / 2
    else:
        with torch.no_grad():
            goal = networks[1 - turn](a2)  # (R, m, B)
        loss = 2 - 2 * similarity(predict(trained(a1)), goal)  # Eq. (4) to (8)
    weights = [p for p in (*trained.parameters(), *head) if p.requires_grad]
    for weight, gradient in zip(weights, torch.autograd.grad(loss.sum(), weights)):
        weight.data -= data.lr * gradient  # each replica's own: the others' losses do not depend on its weights
    for encoder in trained:
        encoder.project()
    return loss.detach()


@torch.no_grad()
def measure(encoder: Encoder, data: Data, loss: Tensor) -> Tensor:
    """MEASURED of every replica, (6, R), on the CPU; the `loss` (R,) goes through."""
    W, thirds = encoder.W(), torch.tensor([0, 0.5, 1], device=data.device)
    quantiles = max_cosine(W, data.M).quantile(thirds, dim=1)  # (3, R)
    return torch.stack([*quantiles, loss, support_separation(W, data.M).mean(1), spread(encoder(data.x))]).cpu()


def train(s: SimpleNamespace, device="cpu", records=30, memory: Path | None = None) -> tuple[list[dict], dict]:
    """Train all replicas of setting `s` as one program, and note how far it is in a file `memory`, to go on from there.
    → the replicas, dicts of seed, swept factors and "uncovered"; curves, arrays: "epoch" (T,), and (T, R) each of min,
    median and max (of max_cosine), loss (mean over the epoch that ended; NaN at the start), separation (mean over
    features), spread; T is about twice `records`. BadInput when the loss is not finite."""
    data, saved = Data(s, torch.device(device)), time.perf_counter()
    model = build(s, data)
    spaced = (space(1, s.epochs, records).round() for space in (np.linspace, np.geomspace))
    marks = {s.epochs, round(BUDGET[s.method] / (s.lr[0] * s.steps)), *itertools.chain(*spaced)}  # when to measure
    curves = {0: measure(model["networks"][0][0], data, data.M.new_full((len(data.M),), torch.nan))}  # epoch → (6, R)
    if memory and memory.exists():
        state = common.load_checkpoint(memory)
        model.load_state_dict(state["model"])
        curves = state["curves"]
        for own, noted in zip(data.random, state["random"]):
            own.set_state(noted)
    for epoch in range(max(curves), s.epochs):
        losses = [step(s, data, model, a1, a2, turn=(epoch * s.batches + i) % 2)
                  for i, (a1, a2) in enumerate(data.views())]
        if epoch + 1 in marks:
            loss = torch.stack(losses).mean(0)  # (R,)
            if lost := [r for r, finite in zip(data.replicas, loss.isfinite()) if not finite]:
                raise common.BadInput(f"the loss is not finite in epoch {epoch + 1} for {lost[0]}; try a smaller --lr")
            curves[epoch + 1] = measure(model["networks"][0][0], data, loss)
            if memory and (time.perf_counter() - saved > REMEMBER or epoch + 1 == s.epochs):
                random = [g.get_state() for g in data.random]
                with common.replacing(memory) as file:
                    torch.save(dict(model=model.state_dict(), random=random, curves=curves), file)
                saved = time.perf_counter()
    measured = torch.stack([*curves.values()]).numpy()  # (T, 6, R)
    return data.replicas, {"epoch": np.array([*curves], float), **dict(zip(MEASURED, measured.transpose(1, 0, 2)))}


# --------------------------------------------------------------------------------------------------------- experiments
FAST = dict(batch_size=128, lr=0.5, epochs=100, seeds=3)  # lr × steps: SimCLR 350, SimSiam 400, noncl 200 per network
BUDGET = dict(simclr=200, simsiam=400, noncl=200)  # the paper's, 8000 epochs at .025 of one batch or two
LEVELS = [0.1, 0.3]  # Pr(z_i ≠ 0); at d = 10 the authors' latents for .2 are those for .1
SIMCLR, SIMSIAM = dict(method="simclr", head="linear"), dict(method="simsiam", head="linear")
NONCL, PREDICTOR = dict(method="noncl"), dict(method="noncl", head="linear")
AUTHORS = dict(batch_norm="affine", activation="authors")  # the layers of their code where the text has others
FIG1 = lambda n: dict(latents="onehot-plus", batch_norm="no", fast=dict(lr=0.05, epochs=n))  # lr .5 kills neurons here
FIG7 = NONCL | dict(p=20, d=20, m=20)
EQ6 = dict(normalise="rows", warm=1.25, similarity="product", batch_norm="no")
LONG = dict(sparsity=LEVELS, lr=2.0, batch_size=128)  # to learning rate × steps 4000
OF_PR = lambda *values: dict(zip((0.1, 0.2, 0.3), values))
SIMCLR_1 = {"max": OF_PR(0.94, 0.94, 0.94), "median": OF_PR(0.92, 0.93, 0.92), "min": OF_PR(0.83, 0.90, 0.57)}
SIMSIAM_1 = {"max": OF_PR(0.94, 0.93, 0.678), "median": OF_PR(0.87, 0.82, 0.45), "min": OF_PR(0.47, 0.45, 0.37)}
OURS = {"min": None}  # where the paper reports nothing
# Name → (title, factors, what the paper reports: max-cosine → a number, one per Pr or c, or high, low, falls). Beside
# factors there are `fast`, what differs from FAST, and `by`, by which the table splits replicas as by swept factors.
EXPERIMENTS = {
    "table1": [("SimCLR", SIMCLR | dict(sparsity=LEVELS), SIMCLR_1),
               ("SimCLR, authors' layers", SIMCLR | AUTHORS | dict(sparsity=LEVELS), SIMCLR_1),
               ("SimSiam", SIMSIAM | dict(sparsity=LEVELS), SIMSIAM_1),
               ("SimSiam, authors' layers", SIMSIAM | AUTHORS | dict(head="mlp", sparsity=LEVELS), SIMSIAM_1)],
    "fig1": [("contrastive, one-hot", dict(method="simclr") | FIG1(600), {"min": "high"}),
             ("non-contrastive, one-hot", NONCL | FIG1(1000), {"min": "low"})],
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
    s = SimpleNamespace(**{name: [v] if name in SWEPT and not isinstance(v, list) else v for name, v in chosen.items()})
    s.noise = [math.sqrt(math.log(s.d)) / s.d if noise is None else noise for noise in s.noise]
    s.batches = s.n // s.batch_size if s.method == "simclr" else math.ceil(s.n / s.batch_size)
    s.steps = s.batches / (2 if s.method == "noncl" else 1)
    k, pr = active_features(s.d, max(s.sparsity))[1], max(s.sparsity)
    for wrong, text in [
        (s.d > s.p, f"--d {s.d} orthonormal features need at least as many observed dimensions; --p is {s.p}"),
        (s.batch_size > s.n, f"--batch-size {s.batch_size} is more than --n {s.n} samples"),
        (k > s.d and s.latents in ("authors", "exact"), f"Pr {pr} asks for {k} active features of --d {s.d}"),
        ("warm_columns" in given and s.warm == [None], "--warm-columns needs a warm start; give --warm too"),
        (s.warm_columns == "covered" and s.m < s.d, f"--m {s.m} neurons cannot cover --d {s.d} features"),
        (s.head == "mlp" and s.method != "simsiam", "--head mlp is SimSiam's; give --method simsiam, or --head linear"),
        (s.similarity == "product" and s.method == "simclr", "--similarity product: --method simclr has cosines"),
        (s.activation == "authors" and s.batch_norm == "no", "--activation authors is srelu with --batch-norm no"),
    ]:
        if wrong:
            raise common.BadInput(text)
    return s


def rows(experiment: str, name: str, s: SimpleNamespace, replicas: list[dict], curves: dict, claims: dict):
    """A program's rows of the table, dicts: mean and std over seeds; and its curves, by "experiment/setting/key"."""
    by = [factor for factor in SWEPT if len(getattr(s, factor)) > 1] + getattr(s, "by", [])
    groups, found, kept = {}, [], {}
    for i, r in enumerate(replicas):
        groups.setdefault(tuple(r[factor] for factor in by), []).append(i)
    for values, members in groups.items():
        title = ", ".join([name, *(f"{factor} {v}" for factor, v in zip(by, values) if v not in (None, ""))])
        first, own = replicas[members[0]], {key: c if key == "epoch" else c[:, members] for key, c in curves.items()}
        own["lr_times_steps"] = first["lr"] * curves["epoch"] * s.steps
        kept |= {f"{experiment}/{title}/{key}": curve for key, curve in own.items()}
        ends = [int(np.abs(own["lr_times_steps"] - BUDGET[s.method]).argmin())] * (experiment == "budget") + [-1]
        for (statistic, claim), end in itertools.product(claims.items(), ends):
            start, mean = (float(own[statistic][t].mean()) for t in (0, end))
            claim = claim.get(first["warm"] or first["sparsity"]) if isinstance(claim, dict) else claim
            words = {"high": mean >= 0.8, "low": mean <= 0.65, "falls": mean < start}
            agrees = words[claim] if claim in words else claim is not None and abs(mean - claim) <= 0.1
            found.append(dict(
                experiment=experiment, setting=title, statistic=statistic,
                lr_times_steps=float(own["lr_times_steps"][end]), start=start, end_mean=mean,
                end_std=float(own[statistic][end].std(ddof=1)) if len(members) > 1 else None, paper=claim,
                verdict=None if claim is None else "agrees" if agrees else "differs", seeds=len(members)))
    return found, kept


# ------------------------------------------------------------------------------------------------------------- program
def parser() -> common.Parser:
    """The command line: which experiments, and a flag for every factor."""
    flags, usual = common.Parser(__file__, __doc__), [name for name in EXPERIMENTS if name.startswith(("table", "fig"))]
    flags.add_argument("--experiment", nargs="+", choices=[*EXPERIMENTS, "all"], metavar="NAME", default=usual,
                       help="table1, fig1 … fig7 (by default), alignment, budget, variants, custom, all")
    flags.add_argument("--paper", action="store_true", help="the paper's exact setting: lr .025, 8000 epochs, batch "
                       "512, 5 seeds (without: lr .5, 100 epochs, batch 128, 3 seeds; some experiments have their own)")
    for name, (default, kind, text) in FACTORS.items():
        flags.add_argument("--" + name.replace("_", "-"), dest=DEST[name], nargs="+" if name in SWEPT else None,
                           help=text + (f" (--paper: {default})" if default is not None else ""),
                           **{"choices" if isinstance(kind, list) else "type": kind})
    return flags


def main(argv=None):
    args = parser().parse(argv)
    given = {name: value for name in FACTORS if (value := getattr(args, DEST[name])) is not None}
    as_paper = not set(given) - {"lr", "epochs", "batch_size", "n", "seeds", "sparsity"}  # else its values say nothing
    names = [name for name in EXPERIMENTS if name != "custom"] if "all" in args.experiment else args.experiment
    plan = {experiment: [(name, setting(factors, given, args.paper), claims if as_paper else dict.fromkeys(claims))
                         for name, factors, claims in EXPERIMENTS[experiment]] for experiment in names}
    folder = Path(args.resume or args.out or time.strftime("runs/sparse_coding-%Y%m%d-%H%M%S"))
    memory, found, curves = folder / "memory", [], {}
    if not args.resume:
        (common.new_folder(folder, vars(args), torch.device(args.device)) / "memory").mkdir()  # how far programs are
    elif not memory.exists():
        raise common.BadInput(f"--resume {folder}: this run is complete")
    print(f"sparse_coding on {common.hardware(torch.device(args.device))}: {folder}")
    for experiment, programs in plan.items():
        begin = time.perf_counter()
        for i, (name, s, claims) in enumerate(programs):
            trained = train(s, args.device, memory=memory / f"{experiment}-{i}-{args.device}.pt")  # each device its own
            own_rows, own_curves = rows(experiment, name, s, *trained, claims)
            found, curves = found + own_rows, curves | own_curves
        with common.replacing(folder / "results.json") as file:
            file.write(json.dumps(found, indent=1).encode() + b"\n")
        with common.replacing(folder / "curves.npz") as file:
            np.savez_compressed(file, **curves)
        print(f"{experiment}: {time.perf_counter() - begin:.0f} s", flush=True)
    shutil.rmtree(memory)
    text = lambda v: "–" if v is None else f"{v:.{0 if v >= 10 else 3}f}" if isinstance(v, float) else str(v)
    print(common.markdown([[*found[0]], *([text(value) for value in row.values()] for row in found)]))
    print("Max-cosines: mean and std over seeds. agrees: within 0.1 of the paper's number, high: at least 0.8, low: at "
          f"most 0.65, falls: below the start.\npython look.py {folder} draws the curves.")


if __name__ == "__main__":
    common.launch(main)
