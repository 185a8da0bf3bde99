"""SparseHead: a projection head that uses few of the representation's features, on SimCLR, BYOL or Barlow Twins.

    L = L_base(z1, z2) + λ ‖W‖₂,₁,   ‖W‖₂,₁ = Σ_j ‖W_:j‖₂,   W (m, d): the last linear layer of the head

A column of W is a feature of the layer's input; a column of zeros is a feature that the loss does not see.
    simclr   NT-Xent with τ = 0.5 (Eq. 2)
    byol     2 − 2 cos(q(z1), sg[t2]) and the same with the views exchanged; t: a target network, an EMA
    barlow   Σ_i (1 − C_ii)² + 0.005 Σ_{i≠j} C_ij²,   C: cross-correlation of the two views' embeddings
Song et al., "Towards the Sparseness of Projection Head in Self-Supervised Learning", arXiv 2307.08913, Eq. (2), (9),
(12). BYOL: Grill et al. 2020, arXiv 2006.07733. Barlow Twins: Zbontar et al. 2021, arXiv 2103.03230.

    python sparsehead.py                                    SimCLR + SparseHead on the built-in data set, on a laptop
    python sparsehead.py --base byol --dataset cifar10      a row of the paper's Table 1, 1000 epochs
    python sparsehead.py --sparse-weight 0 --head linear    with --head none and mlp, and look.py: the paper's Figure 1
    python tools/finetune.py runs/<run>                     then fine-tune on 1 % and 10 % of the labels (Table 2)

Measured with the first command (results/shapes-sparsehead-simclr-seed*): linear probe 64.6 ± 2.3 %
(mean ± std of seeds 1 to 5; 15 epochs in two minutes on one thread of an AMD EPYC, bf16, torch 2.15, 2026-11-21).
With λ = 1e-4 / 0 linear probe 44.7 ± 0.6 / 44.6 ± 0.8 % on 10,000 images of CIFAR-10 (SimCLR, ResNet-8, 20 epochs,
seeds 1 to 3; results/cifar10-cpu-sparsehead-*, with an older recipe). At this λ and these budgets the penalty changes
nothing that we can see. The 1000-epoch rows have not been measured yet.

The penalty and --prox reach different things (built-in data set, seed 1). The base losses normalise what the head puts
out, so the penalty can be lowered for free by scaling W down: at λ = 1e-2 ‖W‖₂,₁ falls from 179 to 3.2 and not one
column falls below 1e-3 of the largest, around which Adam's steps keep them anyway. --prox takes the proximal step
W_:j ← W_:j · max(0, 1 − lr λ / ‖W_:j‖) after each update instead: lr λ long, not rescaled by Adam, hence weak, but it
ends at columns that are exactly zero: none at λ = 1, 6 % at λ = 3, 85 % at λ = 10 (probe 63.5, 63.7 and 55.2 %).

What the paper leaves open (schedule, augmentation, head width) is from the code of W-MSE (Ermolov et al. 2021, arXiv
2007.06346), whose protocol it follows. Differences: common.py's, and 1. normalisations use eps = 1e-2; 2. no BatchNorm
behind SimCLR's head, and each view through its own forward (W-MSE code: both in one); 3. STL-10 is evaluated on the
whole image at 64 pixels (W-MSE code: the central 64 of 70); 4. on ImageNet one recipe of augmentations for all bases
(BYOL and Barlow Twins blur and solarise the two views differently and jitter saturation by half), two layers with bias
in Barlow Twins' head as the paper says (its own: three without), a learning rate that ends at 0 (its own: 0.001 of the
peak), no zero initialisation of its residual branches, τ = 0.5 for SimCLR; 5. `shapes` and `default` are ours.
"""
import copy
import functools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

EPS = 1e-2  # of the loss's normalisation: a row of norm 0 must not have its gradient divided by the usual 1e-12

PAPER = dict(  # lr, weight decay, epochs and τ are the paper's, the rest is from the W-MSE code
    arch="resnet18", image_size=32, epochs=1000, batch_size=512, optimizer="adam", lr=3e-3, weight_decay=1e-6,
    schedule="step", warmup=500 / 97,  # 500 steps, at 50,000 images and this batch size
    temperature=0.5, momentum=0.99, head_hidden=1024, head_out=64,
    min_scale=0.2, jitter=0.4, gray=0.1, blur=0.0, crop="bicubic", order="colour-crop")
PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": PAPER,
    "cifar100": PAPER,
    "stl10": PAPER | dict(image_size=64, epochs=2000, lr=2e-3, warmup=500 / 205, head_out=128),
    "tiny-imagenet-200": PAPER | dict(image_size=64, lr=2e-3, warmup=500 / 195, head_out=128),
    "shapes": PAPER | dict(
        arch="resnet8", epochs=15, batch_size=256, schedule="cosine", warmup=0.75, head_hidden=256, head_out=256,
        jitter=0.8, gray=0.2, crop="bilinear", order="crop-colour",
    ),
    "default": PAPER | dict(  # any other data set, and short runs: results/README.md
        epochs=100, batch_size=128, lr=2e-3, schedule="cosine", warmup=1.0, head_hidden=512, head_out=128,
        jitter=0.5, gray=0.2, crop="bilinear", order="crop-colour",
    ),
}
IMAGENET = PAPER | dict(  # the recipe of each base's own paper; this is SimCLR's
    arch="resnet50", image_size=224, batch_size=4096, optimizer="lars", lr=4.8, schedule="cosine", warmup=10.0,
    head_hidden=2048, head_out=128, min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, order="crop-colour")
IMAGENET_OF = {
    "simclr": IMAGENET,
    "byol": IMAGENET | dict(
        lr=3.2, weight_decay=1.5e-6, momentum=0.996, head_hidden=4096, head_out=256, jitter=0.4,
    ),
    "barlow": IMAGENET | dict(
        batch_size=2048, lr=1.6, bias_lr=0.0384, weight_decay=1.5e-6, head_hidden=8192, head_out=8192, jitter=0.4,
    ),
}


# -------------------------------------------------------------------------------------------------------------- losses
def nt_xent(z1, z2, temperature):
    """NT-Xent (SimCLR, Eq. 1) in nats of embeddings z1, z2 (N, K), not necessarily normalised: mean over 2N anchors."""
    with torch.autocast(z1.device.type, enabled=False):  # float32, whatever the caller's autocast
        z = F.normalize(torch.cat([z1, z2]).float(), dim=1, eps=EPS)  # (2N, K)
        logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)  # (2N, 2N), cosine / τ, not with itself
    positive = torch.arange(len(z), device=z.device).roll(len(z1))  # view i's other view
    return F.cross_entropy(logits, positive)


def byol_loss(p, z):
    """2 − 2 cos(p, sg[z]), mean over the batch, of predictions p and targets z (N, K): in [0, 4] (BYOL, Eq. 2)."""
    with torch.autocast(p.device.type, enabled=False):  # float32, whatever the caller's autocast
        p, z = F.normalize(p.float(), dim=1, eps=EPS), F.normalize(z.detach().float(), dim=1, eps=EPS)
        return (2 - 2 * (p * z).sum(1)).mean()


def barlow_loss(z1, z2, lambd=5e-3):
    """Σ_i (1 − C_ii)² + λ Σ_{i≠j} C_ij², C (K, K) the cross-correlation of z1, z2 (N, K), each standardised over the
    batch (Barlow Twins, Eq. 1, 2)."""
    with torch.autocast(z1.device.type, enabled=False):  # float32, whatever the caller's autocast
        z1, z2 = (z - z.mean(0) for z in (z1.float(), z2.float()))
        z1, z2 = (z / (z.square().mean(0) + 1e-5).sqrt() for z in (z1, z2))
        C = z1.T @ z2 / len(z1)  # (K, K)
    diagonal = C.diagonal()
    return (1 - diagonal).square().sum() + lambd * (C.square().sum() - diagonal.square().sum())


def l21_norm(weight):
    """‖W‖₂,₁ = Σ_j ‖W_:j‖₂ of a layer's weight (m, d), a column per input feature (Eq. 12); its gradient at 0 is 0."""
    return weight.norm(dim=0).sum()


@torch.no_grad()
def shrink_columns(weight, by):
    """Proximal step of by·‖W‖₂,₁, in place: each column of weight (m, d) gets shorter by `by`, at least to zero."""
    weight.mul_((1 - by / weight.norm(dim=0).clamp(min=1e-12)).clamp(min=0))


@torch.no_grad()
def update_target(target, online, momentum):
    """BYOL's target network: ξ ← momentum·ξ + (1 − momentum)·θ for every parameter of two modules of the same shape."""
    torch._foreach_lerp_([*target.parameters()], [*online.parameters()], 1 - momentum)


def momentum_at(step, steps, start=0.99):
    """BYOL's momentum at a step (from 0) of `steps`: from `start` to 1 along half a cosine."""
    return 1 - (1 - start) * (math.cos(math.pi * step / steps) + 1) / 2


def step_decay(step, steps, warmup, epochs):
    """The share of the peak learning rate at a step (from 0) of `steps`: linear over `warmup` steps, at most half, then
    1, ×0.2 at 50 and again at 25 of the `epochs` before the end; a quarter and an eighth of a run of less than 200 (the
    W-MSE code)."""
    warmup = min(round(warmup), steps // 2)
    left = epochs - step * epochs // steps  # epochs, with this one
    drops = (left <= min(50, epochs / 4)) + (left <= min(25, epochs / 8))
    return min(1, (step + 1) / max(1, warmup)) * 0.2**drops


# -------------------------------------------------------------------------------------------------------------- models
def batch_norm_head(kind, d, hidden, K):
    """h (N, d) → z (N, K): mlp = Linear-BN-ReLU-Linear, linear, or none (then K is d)."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, K))
    return nn.Linear(d, K) if kind == "linear" else nn.Identity()


class SparseHead(nn.Module):
    """Images (N, 3, S, S) → representation h (N, d), embedding z (N, K). BYOL adds a predictor and a target network."""

    def __init__(self, backbone, head, base, hidden, K):
        super().__init__()
        self.backbone, self.head, self.base = backbone, head, base
        if base == "byol":
            self.predictor = batch_norm_head("mlp", K, hidden, K)
            self.target = copy.deepcopy(nn.Sequential(backbone, head)).requires_grad_(False)  # x → t (N, K)

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        return h, self.head(h)  # (N, K)

    def both(self, net, v1, v2):
        """Embeddings z1, z2 of two views and BYOL's predictions p1, p2 and targets t1, t2, (N, K) each. net: this
        module, under torchrun in its wrapper."""
        (h1, z1), (h2, z2) = net(v1), net(v2)  # two calls: BatchNorm sees one view at a time
        if self.base != "byol":
            return z1, z2
        with torch.no_grad():
            t1, t2 = self.target(v1), self.target(v2)
        return z1, z2, self.predictor(z1), self.predictor(z2), t1, t2

    @property
    def last(self):
        """W (m, d), the weight of the head's last linear layer; None where there is no head."""
        layers = [module for module in self.head.modules() if isinstance(module, nn.Linear)]
        return layers[-1].weight if layers else None


# ---------------------------------------------------------------------------------------------------------- evaluation
def spectrum(x):
    """Eigenvalues (d,), largest first, of the covariance of x (N, d) ([SparseHead] Fig. 1, 3)."""
    x = (x - x.mean(0)).double()
    return torch.linalg.eigvalsh(x.T @ x / (len(x) - 1)).flip(0).clamp(min=0)


def effective_rank(eigenvalues):
    """exp of the entropy of the normalised eigenvalues (d,): d where they are equal, 1 where one is all."""
    return torch.special.entr(eigenvalues / eigenvalues.sum()).sum().exp().item()


def min_max_ratio(z):
    """(δmax − δmin) / δmin over the distances of a sample to all others, mean over the samples of z (N, K) (Eq. 9)."""
    ratios = []
    for start in range(0, len(z), 1000):
        distance = torch.cdist(z[start : start + 1000], z, compute_mode="donot_use_mm_for_euclid_dist")
        largest = distance.amax(1)
        distance.diagonal(start).fill_(torch.inf)  # a sample is not its own neighbour
        ratios.append(largest / distance.amin(1).clamp(min=1e-12) - 1)
    return torch.cat(ratios).mean().item()


def unused_columns(weight):
    """Share of the columns of weight (m, d) that are shorter than 1e-3 of the longest, or zero."""
    norms = weight.detach().norm(dim=0)
    return ((norms < 1e-3 * norms.max()) | (norms == 0)).float().mean().item()


def measure(h, z, last):
    """Print and return SparseHead's numbers, of h (N, d), embeddings z (N, K) and the head's last weight (m, d)."""
    metrics = {"min_max_representation": min_max_ratio(h), "min_max_embedding": min_max_ratio(z),
               "rank_representation": effective_rank(spectrum(h)), "rank_embedding": effective_rank(spectrum(z))}
    metrics |= {} if last is None else {"unused_columns": unused_columns(last), "l21": l21_norm(last).item()}
    print(", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    return metrics


def network(args):
    """The model that the settings of a run describe."""
    backbone, d = common.resnet(args.arch, args.image_size)
    K = d if args.head == "none" else args.head_out
    return SparseHead(backbone, batch_norm_head(args.head, d, args.head_hidden, K), args.base, args.head_hidden, K)


# ------------------------------------------------------------------------------------------------------------- program
def parser(base="simclr"):
    """The command line: common flags, then this method's. Values that depend on the data set are in PRESETS, on
    ImageNet also on the base."""
    flags = common.Parser(__file__, __doc__)
    flags.image_flags(PRESETS | dict.fromkeys(("imagenet100", "imagenet"), IMAGENET_OF[base]))
    add, positive = flags.add_argument, common.within(0, kind=int)
    add("--base", choices=list(IMAGENET_OF), default="simclr", help="the loss that SparseHead is added to")
    add("--sparse-weight", type=common.within(0, closed=True), default=1e-4, help="λ (paper: 1e-4); 0: the plain base")
    add("--prox", action="store_true", help="proximal step instead of the penalty: exact zeros")
    add("--temperature", type=common.within(0), help="τ of SimCLR (paper: 0.5)")
    add("--barlow-weight", type=common.within(0, closed=True), default=5e-3, help="of C_ij, i ≠ j (paper: 5e-3)")
    add("--momentum", type=common.within(0, 1, closed=True), help="BYOL's at the start (W-MSE: 0.99, BYOL: 0.996)")
    add("--schedule", choices=["cosine", "step"], help="of the learning rate; step: constant, ×0.2 near the end, twice")
    add("--bias-lr", type=common.within(0), help="learning rate of biases and norms (default: --lr)")
    add("--order", choices=["crop-colour", "colour-crop"], help="of the augmentations (W-MSE code: colour-crop)")
    add("--head", choices=["mlp", "linear", "none"], default="mlp", help="projection head")
    add("--head-hidden", type=positive, help="its hidden units (W-MSE code: 1024)")
    add("--head-out", type=positive, help="its outputs K (W-MSE code: 64; 128 on STL-10)")
    return flags


def optimizer_of(model, args):
    """The optimizer of all that is trained, biases and norms with their own learning rate."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [dict(params=[p for p in trained if p.ndim > 1]),
              dict(params=[p for p in trained if p.ndim <= 1], lr=args.bias_lr or args.lr)]
    imagenet = dict(trust=1e-3, clip=False) if args.optimizer == "lars" else {}
    return common.OPTIMIZERS[args.optimizer](groups, lr=args.lr, weight_decay=args.weight_decay, **imagenet)


def base_loss(args):
    """The loss of (z1, z2), for BYOL of (z1, z2, p1, p2, t1, t2)."""
    return {"simclr": lambda z1, z2: nt_xent(z1, z2, args.temperature),
            "byol": lambda z1, z2, p1, p2, t1, t2: byol_loss(p1, t2) + byol_loss(p2, t1),
            "barlow": lambda z1, z2: barlow_loss(z1, z2, args.barlow_weight)}[args.base]


def main(argv=None):
    args = parser(parser().parse_known_args(argv)[0].base).parse(argv)
    if args.head == "none" and args.sparse_weight:
        raise common.BadInput("--head none has no linear layer to make sparse: give --sparse-weight 0 with it")
    torch.manual_seed(args.seed)
    data = common.load_data(args.dataset, args.data_root, limit=args.limit, device=args.device)
    steps = data.steps(args.batch_size)  # in an epoch
    model = network(args).to(args.device, memory_format=torch.channels_last)
    optimizer, W, online = optimizer_of(model, args), model.last, nn.Sequential(model.backbone, model.head)
    schedule = functools.partial(step_decay, epochs=args.epochs) if args.schedule == "step" else common.lr_at
    run = common.Run(args)
    net = run.parallel(model)
    both = run.compile(lambda v1, v2: model.both(net, v1, v2))
    two_views, criterion = run.compile(common.two_views), run.compile(base_loss(args))

    for epoch in range(run.restore(model, optimizer), args.epochs):  # from the first that is not done yet
        model.train()
        run.seed(epoch)
        log = []
        for step, (images, _) in enumerate(data.batches(args.batch_size, args.seed, epoch, args.device), epoch * steps):
            optimizer.zero_grad()
            v1, v2 = two_views(images, args.image_size, min_scale=args.min_scale, jitter=args.jitter, gray=args.gray,
                               blur=args.blur, crop=args.crop, colour_first=args.order == "colour-crop")
            with torch.autocast(run.device.type, torch.bfloat16, enabled=run.bf16):
                embeddings = both(v1, v2)
            z1, z2, *more = common.gather(*embeddings)  # of all processes, with gradient
            loss = criterion(z1, z2, *more)
            penalty = 0.0 if W is None or args.prox else args.sparse_weight * l21_norm(W)  # Eq. (12)

            (loss + penalty).backward()
            common.set_lr(optimizer, schedule(step, args.epochs * steps, args.warmup * steps))
            optimizer.step()
            if args.prox and W is not None:
                shrink_columns(W, optimizer.param_groups[0]["lr"] * args.sparse_weight)
            if args.base == "byol":
                update_target(model.target, online, momentum_at(step, args.epochs * steps, args.momentum))
            log.append(dict(loss=loss.detach(), **common.health(z1)))
        run.end_epoch(epoch, log, model, optimizer)
    if common.rank() == 0:
        metrics, h, z = common.evaluate(run, data, model)
        run.finish(metrics | measure(h, z, W), model.backbone)


if __name__ == "__main__":
    common.launch(main)
