"""BayesNCL: NCL with a gate per dimension and image, which is meant to switch off dimensions that many images share.

    α = sigmoid(gating(sg[h]) / T),  m = 1[α > ½] (straight-through),  L = NT-Xent(z⁺ ⊙ m) + λ · KL(Bern(α) ‖ Bern(ρ))

Cui, Zhang, Hu, "Bayesian Gated Non-Negative Contrastive Learning", ICML 2026, arXiv 2605.28441; sg: stop-gradient.
The recipe is that of the NCL authors (arXiv 2403.12459), as in BayesNCL's paper (arXiv 2605.28441).

    python bayesncl.py                                      the built-in data set, on a laptop
    python bayesncl.py --dataset cifar100 --epochs 200      the paper's BayesNCL (STE) row; with --gate gumbel the other

Measured with the first command (results/shapes-bayesncl-seed*): linear probe 68.0 ± 2.3 %, Cons. 26.7 ± 2.3
(mean ± std of seeds 1 to 5; 15 epochs in two minutes on one thread of an Intel Xeon, bf16, torch 2.15, 2026-11-23).
The 200-epoch row has not been measured yet.

Differences from the paper: common.py's, and 1. normalisations use eps = 1e-2; 2. `shapes` and `default` are ours.
3. z⁺ ⊙ m is normalised once, in the loss. 4. ρ = 0.8 and λ = 3e-5 are the authors' on CIFAR-100, ours elsewhere.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import common

EPS = 1e-2  # of the loss's normalisation: a row of norm 0 must not have its gradient divided by the usual 1e-12

PAPER = dict(  # the NCL authors' CIFAR recipe, as in BayesNCL's paper
    arch="resnet18", image_size=32, epochs=200, batch_size=256, optimizer="lars", lr=0.4, weight_decay=1e-4,
    warmup=10.0, temperature=0.2, head_hidden=2048, head_out=256,
    activation="rep_relu",
    gate_hidden=2048, gate_lr=0.1, prior=0.8, kl_weight=3e-5,
    min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic")
PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": PAPER,
    "cifar100": PAPER,
    "imagenet100": PAPER | dict(
        image_size=224, epochs=100, batch_size=128, lr=0.15, head_hidden=16384, head_out=2048,  # lr: 0.3 · 128/256
        activation="relu",
        gate_hidden=16384,
    ),
    "shapes": PAPER | dict(
        arch="resnet8", epochs=15, optimizer="adam", lr=3e-3, weight_decay=0.0, warmup=0.75, head_hidden=256,
        min_scale=0.2, blur=0.0, crop="bilinear",
        gate_hidden=256, gate_lr=3e-2,
    ),
    "default": PAPER | dict(  # any other data set, and short runs: results/README.md
        epochs=100, batch_size=128, optimizer="sgd", lr=0.06, weight_decay=5e-4, warmup=1.0, head_hidden=512,
        min_scale=0.2, jitter=0.5, blur=0.0, crop="bilinear",
    ),
}
PRESETS["imagenet"] = PRESETS["imagenet100"] | dict(arch="resnet50")  # the ImageNet-100 recipe; no paper has this row


def nt_xent(z1, z2, temperature):
    """NT-Xent (SimCLR, Eq. 1) in nats of embeddings z1, z2 (N, K), not necessarily normalised: mean over 2N anchors."""
    with torch.autocast(z1.device.type, enabled=False):  # float32, whatever the caller's autocast
        z = F.normalize(torch.cat([z1, z2]).float(), dim=1, eps=EPS)  # (2N, K)
        logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)  # (2N, 2N), cosine / τ, not with itself
    positive = torch.arange(len(z), device=z.device).roll(len(z1))  # view i's other view
    return F.cross_entropy(logits, positive)


def spectral_loss(z1, z2):
    """Spectral contrastive loss (HaoChen et al. 2021, arXiv 2106.04156) of embeddings z1, z2 (N, K), not normalised:
    −2·mean_i z1_i·z2_i + mean_{i≠j} (z1_i·z2_j)². Of non-negative ones it is a non-negative matrix factorisation of
    the normalised co-occurrence matrix (a theorem of NCL; test_all.py checks it)."""
    n = len(z1)
    with torch.autocast(z1.device.type, enabled=False):  # float32, whatever the caller's autocast
        similarity = z1.float() @ z2.float().T  # (N, N)
    squares = similarity.square()
    return -2 * similarity.diagonal().mean() + (squares.sum() - squares.diagonal().sum()) / (n * (n - 1))


ACTIVATIONS = {  # σ₊; rep_relu is ReLU forward and GELU backward, so that a unit that is off can come back
    "rep_relu": lambda z: F.gelu(z) - F.gelu(z).detach() + F.relu(z).detach(), "relu": F.relu, "gelu": F.gelu,
    "sigmoid": torch.sigmoid, "softplus": F.softplus, "exp": torch.exp, "leaky_relu": F.leaky_relu, "none": lambda z: z}


def ste(alpha):
    """Straight-through estimator, elementwise: m = 1[α > 0.5] forward, dm/dα = 1 backward: m_hard + α − sg[α]."""
    return (alpha > 0.5).float() + (alpha - alpha.detach())


def gate(logits, kind="ste", temperature=1.0, noise=False):
    """Gate logits (N, K) → mask m and keep probabilities α = sigmoid(logits / T), (N, K) each. ste: m = 1[α > 0.5].
    gumbel: with `noise` (training) a Gumbel variable is added to the logits, as in the authors' code; its mean of 0.58
    favours open gates. logistic: the difference of two, mean 0. soft: m = α. none: m = 1, which is NCL."""
    alpha = torch.sigmoid(logits / temperature)
    if kind == "none":
        return torch.ones_like(alpha), alpha.detach()
    if kind == "soft":
        return alpha, alpha
    if kind == "ste" or not noise:
        return ste(alpha), alpha
    u = torch.rand_like(logits).clamp(1e-4, 1 - 1e-4)
    drawn = u.logit() if kind == "logistic" else -(-u.log()).log()
    return ste(torch.sigmoid((logits + drawn) / temperature)), alpha


def bernoulli_kl(alpha, rho):
    """KL(Bern(α) ‖ Bern(ρ)), nats, of α (N, K), both clamped to [.01, .99]: sum over dimensions, mean over batch."""
    alpha, rho = alpha.float().clamp(0.01, 0.99), min(max(rho, 0.01), 0.99)
    return (alpha * (alpha / rho).log() + (1 - alpha) * ((1 - alpha) / (1 - rho)).log()).sum(1).mean()


def gating_head(d, hidden, K, layers=2):
    """h (N, d) → gate logits (N, K): an MLP of 1, 2 (paper) or 3 linear layers, the second of three hidden/2 wide."""
    widths = [d, *(hidden, max(1, hidden // 2))[: layers - 1], K]
    linear = [nn.Linear(a, b) for a, b in zip(widths, widths[1:])]
    return nn.Sequential(*[module for layer in linear for module in (layer, nn.ReLU())][:-1])  # no ReLU at the end


def projection_head(kind, d, hidden, K):
    """h (N, d) → z (N, K): mlp = Linear-ReLU-Linear, linear, or none (then K is d)."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, K))
    return nn.Linear(d, K) if kind == "linear" else nn.Identity()


class BayesNCL(nn.Module):
    """Images (N, 3, S, S) → representation h (N, d), embedding z⁺ ⊙ m, mask m, keep probabilities α, (N, K) each."""

    def __init__(self, backbone, head, gating, K, activation, kind, gate_temperature, detach=True, similarity="cosine"):
        super().__init__()
        self.backbone, self.head = backbone, head
        self.gating, self.activation, self.kind, self.gate_temperature = gating, activation, kind, gate_temperature
        self.detach, self.similarity = detach, similarity
        self.register_buffer("frequency", torch.ones(K))  # π, running share of images with z_k > 0

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        z = ACTIVATIONS[self.activation](self.head(h).float())  # z⁺
        if self.similarity == "ipw":  # cosine under Σ_k z_k z'_k / π_k
            if self.training:
                self.frequency.lerp_(common.gather((z > 0).float())[0].mean(0), 0.01)
            z = z * self.frequency.clamp(min=0.01).rsqrt()
        logits = self.gating(h.detach() if self.detach else h).float()
        m, alpha = gate(logits, self.kind, self.gate_temperature, noise=self.training)
        return h, z * m, m, alpha  # the loss normalises, once: each time divides an empty row's gradient by eps


def network(args):
    """The model that the settings of a run describe."""
    backbone, d = common.resnet(args.arch, args.image_size)
    K = d if args.head == "none" else args.head_out
    head = projection_head(args.head, d, args.head_hidden, K)
    gating = gating_head(d, args.gate_hidden, K, args.gate_layers)
    return BayesNCL(backbone, head, gating, K, args.activation, args.gate, args.gate_temperature, args.detach,
                    args.similarity)


def parser():
    """The command line: common flags, then this method's. Values that depend on the data set are in PRESETS."""
    flags = common.Parser(__file__, __doc__)
    flags.image_flags(PRESETS)
    add, positive = flags.add_argument, common.within(0, kind=int)
    add("--temperature", type=common.within(0), help="τ of NT-Xent (paper: 0.2); the spectral loss has none")
    add("--loss", choices=["ntxent", "spectral"], default="ntxent", help="spectral: HaoChen et al. 2021")
    add("--head", choices=["mlp", "linear", "none"], default="mlp", help="projection head")
    add("--head-hidden", type=positive, help="its hidden units (paper: 2048; 16384 on ImageNet-100)")
    add("--head-out", type=positive, help="its outputs K (paper: 256; 2048 on ImageNet-100)")
    add("--activation", choices=ACTIVATIONS, help="σ₊ (paper: rep_relu on CIFAR, relu on ImageNet-100)")
    add("--gate", choices=["ste", "gumbel", "logistic", "soft", "none"], default="ste", help="none is NCL")
    add("--gate-layers", type=int, choices=[1, 2, 3], default=2, help="linear layers of the gating head (paper: 2)")
    add("--gate-hidden", type=positive, help="hidden units of the gating head (paper: 2048; 16384 on ImageNet-100)")
    add("--gate-lr", type=common.within(0), help="its peak learning rate (authors' CIFAR-100 command: 0.1)")
    add("--gate-temperature", type=common.within(0), default=1.0, help="T of α = sigmoid(logits / T)")
    add("--prior", type=common.within(0, 1), help="ρ, prior probability that a dimension is kept (authors: 0.8)")
    add("--kl-weight", type=common.within(0, closed=True), help="λ of the KL term (authors' CIFAR-100: 3e-5)")
    add("--no-detach", dest="detach", action="store_false", help="the gate's gradient reaches the backbone (ablation)")
    add("--similarity", choices=["cosine", "ipw"], default="cosine", help="ipw, inverse probability: Σ z_k·z'_k / π_k")
    return flags


def main(argv=None):
    args = parser().parse(argv)
    torch.manual_seed(args.seed)
    data = common.load_data(args.dataset, args.data_root, limit=args.limit, device=args.device)
    steps = data.steps(args.batch_size)  # in an epoch
    model = network(args).to(args.device, memory_format=torch.channels_last)
    groups = [dict(params=[*model.backbone.parameters(), *model.head.parameters()]),
              dict(params=model.gating.parameters(), lr=args.gate_lr)]
    optimizer = common.OPTIMIZERS[args.optimizer](groups, lr=args.lr, weight_decay=args.weight_decay)
    run = common.Run(args)
    contrast = spectral_loss if args.loss == "spectral" else lambda z1, z2: nt_xent(z1, z2, args.temperature)
    net = run.parallel(model)
    both = run.compile(lambda v1, v2: (net(v1), net(v2)))  # two calls: BatchNorm sees one view at a time
    two_views, criterion = run.compile(common.two_views), run.compile(contrast)

    for epoch in range(run.restore(model, optimizer), args.epochs):  # from the first that is not done yet
        model.train()
        run.seed(epoch)
        log = []
        for step, (images, _) in enumerate(data.batches(args.batch_size, args.seed, epoch, args.device), epoch * steps):
            optimizer.zero_grad()
            v1, v2 = two_views(images, args.image_size, min_scale=args.min_scale, jitter=args.jitter, gray=args.gray,
                               blur=args.blur, crop=args.crop)  # (N, 3, S, S) each
            with torch.autocast(run.device.type, torch.bfloat16, enabled=run.bf16):
                (h1, z1, m1, alpha1), (h2, z2, m2, alpha2) = both(v1, v2)
            z1, z2, m1, alpha1, alpha2 = common.gather(z1, z2, m1, alpha1, alpha2)  # of all processes, with gradient
            kl = (bernoulli_kl(alpha1, args.prior) + bernoulli_kl(alpha2, args.prior)) / 2
            loss = criterion(z1, z2) + args.kl_weight * kl

            loss.backward()
            common.set_lr(optimizer, common.lr_at(step, args.epochs * steps, args.warmup * steps))
            optimizer.step()
            log.append(dict(loss=loss.detach(), kl=kl.detach(), open=m1.detach().mean(), **common.health(z1)))
        run.end_epoch(epoch, log, model, optimizer)
    if common.rank() == 0:
        metrics, *_ = common.evaluate(run, data, model)
        run.finish(metrics, model.backbone)


if __name__ == "__main__":
    common.launch(main)
