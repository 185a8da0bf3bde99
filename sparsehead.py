"""SparseHead: a projection head that uses few of the representation's features, on seven base methods.

    L = L_base(z1, z2) + λ ‖W‖₂,₁,   ‖W‖₂,₁ = Σ_j ‖W_:j‖₂,   W (m, d): the last linear layer of the head

A column of W is a feature of the layer's input; a column of zeros is a feature that the loss does not see.
    simclr     NT-Xent with τ = 0.5 (Eq. 2)
    byol       2 − 2 cos(q(z1), sg[t2]) and the same with the views exchanged; t: a target network, an EMA
    barlow     Σ_i (1 − C_ii)² + 0.005 Σ_{i≠j} C_ij²,   C: cross-correlation of the two views' embeddings
    vicreg     25 (z1 − z2)² + 25 (hinge of standard deviations below 1) + Σ_{i≠j} Cov_ij² / K
    wmse       2 − 2 cos of whitened embeddings
    swav       each view predicts the other's soft assignment to prototypes, made by Sinkhorn's iterations
    ssl-hsic   −HSIC(Z, Y) + 3 √HSIC(Z, Z),   Y: of which image an embedding is; predictor and target as in byol
Song et al., "Towards the Sparseness of Projection Head in Self-Supervised Learning", arXiv 2307.08913, Eq. (2), (9),
(12). The bases (Grill, Zbontar, Bardes, Ermolov, Caron, Li, each et al.): BYOL, arXiv 2006.07733; Barlow Twins,
2103.03230; VICReg, 2105.04906; W-MSE, 2007.06346; SwAV, 2006.09882; SSL-HSIC, 2106.08320.

    python sparsehead.py                                    SimCLR + SparseHead on the built-in data set, on a laptop
    python sparsehead.py --base byol --dataset cifar10      a row of the paper's Table 1, 1000 epochs
    python sparsehead.py --sparse-weight 0 --head linear    with --head none and mlp, and look.py: the paper's Figure 1
    python tools/finetune.py runs/<run>                     then fine-tune on 1 % and 10 % of the labels (Table 2)

Linear probe with λ = 1e-4 / 0 on the built-in data set, %, mean ± std of seeds 1 to 3 (results/shapes-bases-*; 15
epochs, 2 minutes on a thread of an Intel Xeon, bf16, torch 2.15, 2026-11-23): simclr 63.8 ± 1.4 / 62.9 ± 1.1, byol
54.0 ± 0.6 / 50.5 ± 3.4, barlow 56.4 ± 2.3 / 56.8 ± 3.1, vicreg 64.2 ± 2.3 / 63.0 ± 2.7, wmse 54.9 ± 9.7 / 65.1 ± 7.3,
swav 57.9 ± 1.3 / 58.1 ± 3.3, ssl-hsic 52.4 ± 1.2 / 50.8 ± 2.9. The 1000-epoch rows have not been measured.
All losses but VICReg's normalise what the head puts out, so W can be scaled down for free: at λ = 1e-2 no column of
SimCLR's is below 1e-3 of the largest. --prox gives exact zeros: 5 % of the columns at λ = 3, 83 % at λ = 10.

What the paper leaves open is from the code of W-MSE, whose protocol it follows. Differences: common.py's, and 1.
normalisations use eps = 1e-2; 2. no BatchNorm behind SimCLR's head, and each view through its own forward (W-MSE code:
both in one); 3. STL-10 is evaluated on whole images (W-MSE code: their central 64 of 70 pixels); 4. on ImageNet one
recipe of augmentations for all bases (four blur and solarise the two views differently, and jitter saturation by half),
heads of two layers with bias (Barlow Twins, VICReg: three), a learning rate that ends at 0, all residual branches on,
τ = 0.5 for SimCLR, two crops for SwAV (its best: eight), whose biases LARS leaves alone; 5. SwAV's prototypes are
normalised in the loss (its code: in place), rest for one epoch (313 steps), are 512 off ImageNet, no queue; 6. exact
kernel of SSL-HSIC, c = 1 (512 random features, c learnt), no EMA for evaluation; 7. `shapes` and `default` are ours.
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
    temperature=0.5, momentum=0.99, head_hidden=1024, head_out=64, whiten_size=128, whiten_splits=1, prototypes=512,
    min_scale=0.2, jitter=0.4, gray=0.1, blur=0.0, crop="bicubic", order="colour-crop")
AT_64 = dict(image_size=64, lr=2e-3, head_out=128, whiten_size=256, whiten_splits=4)
PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": PAPER, "cifar100": PAPER,
    "stl10": PAPER | AT_64 | dict(epochs=2000, warmup=500 / 205),
    "tiny-imagenet-200": PAPER | AT_64 | dict(warmup=500 / 195),
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
WIDE = dict(batch_size=2048, lr=1.6, head_hidden=8192, head_out=8192, jitter=0.4)
LIKE_BYOL = dict(head_hidden=4096, head_out=256, jitter=0.4)
IMAGENET_OF = {
    "simclr": IMAGENET,
    "byol": IMAGENET | LIKE_BYOL | dict(lr=3.2, weight_decay=1.5e-6, momentum=0.996),
    "barlow": IMAGENET | WIDE | dict(bias_lr=0.0384, weight_decay=1.5e-6),
    "vicreg": IMAGENET | WIDE,
    "wmse": PAPER | AT_64 | dict(arch="resnet50", image_size=224, warmup=500 / 247, whiten_splits=1, min_scale=0.08,
                                 jitter=0.8, gray=0.2, blur=0.5),  # of its code for ImageNet-100, warm-up too
    "swav": IMAGENET | dict(temperature=0.1, prototypes=3000, crop="bilinear"),
    "ssl-hsic": IMAGENET | LIKE_BYOL | dict(lr=6.4, momentum=0.99),
}


def presets(base):
    """The presets of a base by data set. Ours have K = 64 for W-MSE, whose sub-batches have to be larger than K."""
    named = {name: preset | {"temperature": 0.1 if base == "swav" else 0.5} for name, preset in PRESETS.items()}
    for name in ("shapes", "default") if base == "wmse" else ():
        named[name]["head_out"] = 64
    return named | dict.fromkeys(("imagenet100", "imagenet"), IMAGENET_OF[base])


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


def vicreg_loss(z1, z2, invariance=25.0, variance=25.0, covariance=1.0):
    """Mean squared difference of z1, z2 (N, K); the hinge of each standard deviation below 1, mean over dimensions and
    views; Σ_{i≠j} Cov_ij² / K, sum over views; each times its weight (VICReg, Eq. 6, with the means of its code)."""
    with torch.autocast(z1.device.type, enabled=False):  # float32, whatever the caller's autocast
        z1, z2 = z1.float(), z2.float()
        loss = invariance * F.mse_loss(z1, z2)
        for z in (z1 - z1.mean(0), z2 - z2.mean(0)):
            C = z.T @ z / (len(z) - 1)  # (K, K)
            loss = loss + variance / 2 * F.relu(1 - (C.diagonal() + 1e-4).sqrt()).mean()
            loss = loss + covariance * (C.square().sum() - C.diagonal().square().sum()) / len(C)
    return loss


def whiten(z):
    """(z − mean) L⁻ᵀ, L Lᵀ = Cov(z), of z (…, n, K): covariance I over the n rows, in float64 (W-MSE). Where Cov(z) has
    no Cholesky factor L: NaN, which ends a run; a larger sub-batch or a smaller learning rate may help."""
    z = z.double() - z.double().mean(-2, keepdim=True)
    L, failed = torch.linalg.cholesky_ex(z.mT @ z / (z.shape[-2] - 1))  # does not wait for a GPU
    L = L.masked_fill((failed > 0)[..., None, None], torch.nan)
    return torch.linalg.solve_triangular(L, z.mT, upper=False).mT


def wmse_loss(z1, z2, size=128, splits=1):
    """2 − 2 cos of z1, z2 (N, K), each whitened in sub-batches of `size` > K rows, mean over the batch and `splits`
    ways to split it (W-MSE). A batch is in random order, so fixed permutations split it at random (several not
    independently) and alike in all processes."""
    z, row, loss = torch.stack([z1, z2]), torch.arange(len(z1), device=z1.device), 0.0
    for split in range(1, splits + 1):
        order = (row * split * 0.618034).frac().argsort()
        w1, w2 = whiten(z[:, order].unflatten(1, (-1, size)))  # (N / size, size, K), float64 under autocast too
        loss = loss + (2 - 2 * F.cosine_similarity(w1, w2, dim=2).mean()) / splits
    return loss.float()


@torch.no_grad()
def sinkhorn(scores, epsilon=0.05, iterations=3):
    """Soft assignment (N, P) of a batch to P prototypes by scores (N, P): rows sum to 1, columns to about N/P, as near
    to exp(scores / ε) as that allows (SwAV, Sinkhorn-Knopp)."""
    Q = ((scores - scores.max()) / epsilon).exp()
    for _ in range(iterations):
        Q = Q / Q.sum(0)
        Q = Q / Q.sum(1, keepdim=True)
    return Q


def swav_loss(z1, z2, prototypes, temperature=0.1):
    """Cross-entropy in nats of a view's assignment to prototypes (P, K) and what the other view, softmax(cos / τ), says
    of it, mean over both directions and the batch of z1, z2 (N, K) (SwAV, Eq. 1, 2)."""
    with torch.autocast(z1.device.type, enabled=False):  # float32, whatever the caller's autocast
        z1, z2, c = (F.normalize(x.float(), dim=1, eps=EPS) for x in (z1, z2, prototypes))
        s1, s2 = z1 @ c.T, z2 @ c.T  # (N, P)
        return (F.cross_entropy(s1 / temperature, sinkhorn(s2)) + F.cross_entropy(s2 / temperature, sinkhorn(s1))) / 2


def hsic_loss(*views, gamma=3.0):
    """−HSIC(Z, Y) + γ √HSIC(Z, Z) of M views (N, K), Y the image that an embedding is of, with the kernel
    1/√(1 + ‖z − z'‖²) of normalised embeddings; memory grows with (M N)² (SSL-HSIC)."""
    with torch.autocast(views[0].device.type, enabled=False):  # float32, whatever the caller's autocast
        M, N, z = len(views), len(views[0]), F.normalize(torch.cat(views).float(), dim=1, eps=EPS)
        square = z.square().sum(1)
        k = (1 + (square[:, None] + square - 2 * z @ z.T).clamp(min=0)).rsqrt()  # (MN, MN)
        same = k.unflatten(1, (M, N)).unflatten(0, (M, N)).diagonal(dim1=1, dim2=3)  # (M, M, N): views of one image
        hsic_zy = (same.sum() - same.diagonal().sum()) / (N * M * (M - 1)) - k.mean()  # unbiased, without its 1/N
        k = k - k.mean(0)
        hsic_zz = (k - k.mean(1, keepdim=True)).square().mean()
        return gamma * (hsic_zz + 1e-12).sqrt() - hsic_zy


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
    """Share of the peak learning rate at a step (from 0): linear over `warmup` steps, at most half, then 1, ×0.2 at 50
    and at 25 epochs before the end, or a quarter and an eighth of a run below 200 epochs (W-MSE code)."""
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
    """Images (N, 3, S, S) → representation h (N, d), embedding z (N, K). BYOL and SSL-HSIC add a predictor and a
    target network, SwAV adds P prototypes."""

    def __init__(self, backbone, head, base, hidden, K, P=512):
        super().__init__()
        self.backbone, self.head, self.target = backbone, head, None
        if base == "swav":
            self.prototypes = nn.Parameter(F.normalize(torch.randn(P, K), dim=1))
        if base in ("byol", "ssl-hsic"):
            self.predictor = batch_norm_head("mlp", K, hidden, K)
            self.target = copy.deepcopy(nn.Sequential(backbone, head)).requires_grad_(False)  # x → t (N, K)

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        return h, self.head(h)  # (N, K)

    def both(self, net, v1, v2):
        """Embeddings z1, z2 of two views and, where there is a target network, predictions p1, p2 and targets t1, t2,
        (N, K) each. net: this module, under torchrun in its wrapper."""
        (h1, z1), (h2, z2) = net(v1), net(v2)  # two calls: BatchNorm sees one view at a time
        if self.target is None:
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
    """The model that the settings of a run describe. BadInput where W-MSE's sub-batches do not fit."""
    backbone, d = common.resnet(args.arch, args.image_size)
    K, size = d if args.head == "none" else args.head_out, args.whiten_size
    if args.base == "wmse" and (size <= K or args.batch_size % size):
        raise common.BadInput(f"--whiten-size {size} must be above K = {K} (--head-out), or there is no covariance to "
                              f"invert, and to divide --batch-size {args.batch_size}")
    head = batch_norm_head(args.head, d, args.head_hidden, K)
    return SparseHead(backbone, head, args.base, args.head_hidden, K, args.prototypes)


# ------------------------------------------------------------------------------------------------------------- program
def parser(base="simclr"):
    """The command line: common flags, then this method's. Values that depend on data set and base are in presets."""
    flags = common.Parser(__file__, __doc__)
    flags.image_flags(presets(base))
    add, positive = flags.add_argument, common.within(0, kind=int)
    add("--base", choices=list(IMAGENET_OF), default="simclr", help="the loss that SparseHead is added to")
    add("--sparse-weight", type=common.within(0, closed=True), default=1e-4, help="λ (paper: 1e-4); 0: the plain base")
    add("--prox", action="store_true", help="proximal step instead of the penalty: exact zeros")
    add("--temperature", type=common.within(0), help="τ of SimCLR (paper: 0.5) and SwAV (0.1)")
    add("--momentum", type=common.within(0, 1, closed=True), help="of a target network, at the start (W-MSE: 0.99)")
    add("--whiten-size", type=positive, help="images in a sub-batch of W-MSE, above K (128; 256 for K = 128)")
    add("--whiten-splits", type=positive, help="ways to split a batch into these (W-MSE: 1; 4 for K = 128)")
    add("--prototypes", type=positive, help="of SwAV (SwAV on ImageNet: 3000)")
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


def base_loss(args, model):
    """The loss of (z1, z2), with a target network of (z1, z2, p1, p2, t1, t2)."""
    return {"simclr": lambda z1, z2: nt_xent(z1, z2, args.temperature),
            "byol": lambda z1, z2, p1, p2, t1, t2: byol_loss(p1, t2) + byol_loss(p2, t1),
            "barlow": barlow_loss, "vicreg": vicreg_loss,
            "wmse": lambda z1, z2: wmse_loss(z1, z2, args.whiten_size, args.whiten_splits),
            "swav": lambda z1, z2: swav_loss(z1, z2, model.prototypes, args.temperature),
            "ssl-hsic": lambda z1, z2, p1, p2, t1, t2: hsic_loss(p1, p2, t1, t2)}[args.base]


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
    two_views, criterion = run.compile(common.two_views), run.compile(base_loss(args, model))

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
            if args.base == "swav" and epoch == 0:
                model.prototypes.grad = None  # they wait for embeddings that tell images apart
            common.set_lr(optimizer, schedule(step, args.epochs * steps, args.warmup * steps))
            optimizer.step()
            if args.prox and W is not None:
                shrink_columns(W, optimizer.param_groups[0]["lr"] * args.sparse_weight)
            if model.target is not None:
                update_target(model.target, online, momentum_at(step, args.epochs * steps, args.momentum))
            log.append(dict(loss=loss.detach(), **common.health(z1)))  # without the penalty, to compare by
        run.end_epoch(epoch, log, model, optimizer)
    if common.rank() == 0:
        metrics, h, z = common.evaluate(run, data, model)
        run.finish(metrics | measure(h, z, W), model.backbone)


if __name__ == "__main__":
    common.launch(main)
