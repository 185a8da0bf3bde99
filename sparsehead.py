"""SparseHead: a projection head that uses few of the representation's features, on SimCLR, BYOL or Barlow Twins.

    L = L_base(z1, z2) + λ ‖W‖₂,₁,   ‖W‖₂,₁ = Σ_j ‖W_:j‖₂,   W (m, d): the last linear layer of the head

A column of W is a feature of the layer's input; a column of zeros is a feature that the loss does not see.
    simclr   NT-Xent with τ = 0.5 (Eq. 2)
    byol     2 − 2 cos(q(z1), sg[t2]) and the same with the views exchanged; t: a target network, the EMA of backbone and head
    barlow   Σ_i (1 − C_ii)² + 0.005 Σ_{i≠j} C_ij²,   C: cross-correlation of the two views' embeddings
Song et al., "Towards the Sparseness of Projection Head in Self-Supervised Learning", arXiv 2307.08913, Eq. (2), (9), (12).
BYOL: Grill et al. 2020, arXiv 2006.07733. Barlow Twins: Zbontar et al. 2021, arXiv 2103.03230.

    python sparsehead.py                                             SimCLR + SparseHead on the built-in data set, on a laptop
    python sparsehead.py --base byol --dataset cifar10 --epochs 1000    a row of the paper's Table 1
    python sparsehead.py --sparse-weight 0 --compare-heads           the paper's Figure 1: no head, linear, MLP
    python sparsehead.py --finetune 0.01 0.1                         then fine-tune on 1 % and 10 % of the labels (Table 2)

Measured with λ = 1e-4 / 0: linear probe 44.7 ± 0.6 / 44.6 ± 0.8 % on 10,000 images of CIFAR-10 (SimCLR, ResNet-8, 20 epochs, mean ±
std of seeds 1 to 3; results/cifar10-cpu-sparsehead-*, with an older recipe); with the first command 64.6 ± 2.3 % (seeds 1 to 5; 15
epochs in about 2 minutes on one thread of an AMD EPYC, bf16, torch 2.15, 2026-11-21; results/shapes-sparsehead-*). At this λ and
these budgets the penalty changes nothing that we can see. The 1000-epoch rows have not been measured yet.

The penalty and --prox reach different things (built-in data set, seed 1). The base losses normalise what the head puts out, so the
penalty can be lowered for free by scaling W down: at λ = 1e-2 ‖W‖₂,₁ falls from 179 to 3.2 and not one column falls below 1e-3 of
the largest, around which Adam's steps keep them anyway. --prox takes the proximal step W_:j ← W_:j · max(0, 1 − lr λ / ‖W_:j‖)
after each update instead: lr λ long, not rescaled by Adam, hence weak, but it ends at columns that are exactly zero: none at λ = 1,
6 % at λ = 3, 85 % at λ = 10 (probe 63.5, 63.7 and 55.2 %).

What the paper leaves open (schedule, augmentation, head width) is from the code of W-MSE (Ermolov et al. 2021, arXiv 2007.06346),
whose protocol it follows. Differences: common.py's, and 1. normalisations use eps = 1e-2; 2. no BatchNorm behind SimCLR's head, and
each view through its own forward (W-MSE code: both in one); 3. STL-10 is evaluated on the whole image at 64 pixels (W-MSE code: the
central 64 of 70); 4. on ImageNet one recipe of augmentations for all bases (BYOL and Barlow Twins blur and solarise the two views
differently and jitter saturation by half), two layers with bias in Barlow Twins' head as the paper says (its own: three without), a
learning rate that ends at 0 (its own: 0.001 of the peak), no zero initialisation of its residual branches, τ = 0.5 for SimCLR; 5. the
settings `shapes` and `default` are ours.
"""
import argparse
import copy
import functools
import math
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

EPS = 1e-2  # of every normalisation: a row of norm 0 must not have its gradient divided by the usual 1e-12

PAPER = dict(  # lr, weight decay, epochs and τ are the paper's, the rest is from the W-MSE code, whose protocol the paper follows
    arch="resnet18", image_size=32, epochs=1000, batch_size=512, optimizer="adam", lr=3e-3, weight_decay=1e-6, schedule="step",
    warmup=500 / 97,  # 500 steps, at 50,000 images and this batch size
    temperature=0.5, momentum=0.99, head_hidden=1024, head_out=64,
    min_scale=0.2, jitter=0.4, gray=0.1, blur=0.0, crop="bicubic", order="colour-crop")
PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": PAPER,
    "cifar100": PAPER,
    "stl10": PAPER | dict(image_size=64, epochs=2000, lr=2e-3, warmup=500 / 205, head_out=128),
    "tiny-imagenet-200": PAPER | dict(image_size=64, lr=2e-3, warmup=500 / 195, head_out=128),
    "shapes": PAPER | dict(arch="resnet8", epochs=15, batch_size=256, schedule="cosine", warmup=0.75, head_hidden=256, head_out=256,
                           jitter=0.8, gray=0.2, crop="bilinear", order="crop-colour"),
    "default": PAPER | dict(epochs=100, batch_size=128, lr=2e-3, schedule="cosine", warmup=1.0, head_hidden=512, head_out=128,
                            jitter=0.5, gray=0.2, crop="bilinear", order="crop-colour"),
}
IMAGENET = PAPER | dict(  # the recipe of each base's own paper; this is SimCLR's
    arch="resnet50", image_size=224, decode_size=256, batch_size=4096, optimizer="lars", lr=4.8, schedule="cosine", warmup=10.0,
    head_hidden=2048, head_out=128, min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, order="crop-colour")
IMAGENET_OF = {
    "simclr": IMAGENET,
    "byol": IMAGENET | dict(lr=3.2, weight_decay=1.5e-6, momentum=0.996, head_hidden=4096, head_out=256, jitter=0.4),
    "barlow": IMAGENET | dict(batch_size=2048, lr=1.6, bias_lr=0.0384, weight_decay=1.5e-6, head_hidden=8192, head_out=8192, jitter=0.4),
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
    """Σ_i (1 − C_ii)² + λ Σ_{i≠j} C_ij² with C (K, K) the cross-correlation of z1, z2 (N, K), each standardised over the batch
    (Barlow Twins, Eq. 1, 2)."""
    with torch.autocast(z1.device.type, enabled=False):  # float32, whatever the caller's autocast
        z1, z2 = (z - z.mean(0) for z in (z1.float(), z2.float()))
        z1, z2 = (z / (z.square().mean(0) + 1e-5).sqrt() for z in (z1, z2))
        C = z1.T @ z2 / len(z1)  # (K, K)
    diagonal = C.diagonal()
    return (1 - diagonal).square().sum() + lambd * (C.square().sum() - diagonal.square().sum())


def l21_norm(weight):
    """‖W‖₂,₁ = Σ_j ‖W_:j‖₂ of a linear layer's weight (m, d): a column per input feature (Eq. 12). A column of zeros has
    gradient zero."""
    return weight.norm(dim=0).sum()


@torch.no_grad()
def shrink_columns(weight, by):
    """Proximal step of by·‖W‖₂,₁, in place: each column of weight (m, d) gets shorter by `by`, at least to zero."""
    weight.mul_((1 - by / weight.norm(dim=0).clamp(min=1e-12)).clamp(min=0))


@torch.no_grad()
def update_target(target, online, momentum):
    """BYOL's target network: ξ ← momentum·ξ + (1 − momentum)·θ for every parameter of two modules of the same shape."""
    for xi, theta in zip(target.parameters(), online.parameters()):
        xi.lerp_(theta, 1 - momentum)


def momentum_at(step, steps, start=0.99):
    """BYOL's momentum at a step (from 0) of `steps`: from `start` to 1 along half a cosine."""
    return 1 - (1 - start) * (math.cos(math.pi * step / steps) + 1) / 2


def step_decay(step, epochs, steps, warmup):
    """Factor of the learning rate at a step (from 0), `steps` in an epoch: linear over `warmup` steps, then 1, ×0.2 at 50 and again
    at 25 epochs before the end; a quarter and an eighth of a run of less than 200 (the W-MSE code)."""
    left = epochs - step // steps  # epochs, with this one
    drops = (left <= min(50, epochs / 4)) + (left <= min(25, epochs / 8))
    return min(1, (step + 1) / max(1, warmup)) * 0.2**drops


# -------------------------------------------------------------------------------------------------------------- models
def projection_head(kind, d, hidden, out):
    """h (N, d) → z (N, out): mlp = Linear-BN-ReLU-Linear, linear, or none (then out is d)."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out))
    return nn.Linear(d, out) if kind == "linear" else nn.Identity()


class SparseHead(nn.Module):
    """Images (N, 3, S, S) → representation h (N, d), embedding z (N, K). BYOL adds a predictor and a target network."""

    def __init__(self, backbone, head, base, hidden, K):
        super().__init__()
        self.backbone, self.head = backbone, head
        if base == "byol":
            self.predictor = projection_head("mlp", K, hidden, K)
            self.target = copy.deepcopy(nn.Sequential(backbone, head)).requires_grad_(False)  # x → t (N, K)

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        return h, self.head(h)  # (N, K)

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


def report(run, data, model):
    """common.evaluate's numbers, and what SparseHead is about; → metrics, spectra {"representation": (d,), "embedding": (K,)}."""
    metrics, (_, z) = common.evaluate(run, data, model)
    h, _ = common.features(model, data.x_test, run.args.image_size, run.device)
    spectra = {"representation": spectrum(h).cpu(), "embedding": spectrum(z).cpu()}
    metrics |= {f"rank_{name}": effective_rank(values) for name, values in spectra.items()}
    metrics |= {"min_max_representation": min_max_ratio(h), "min_max_embedding": min_max_ratio(z)}
    if model.last is not None:
        metrics |= {"unused_columns": unused_columns(model.last), "l21": l21_norm(model.last).item()}
    return metrics, spectra


def draw_spectra(path, panels):
    """Eigenvalues on a log scale, a panel per title → {label: eigenvalues}, as [SparseHead] Fig. 1 and 3; needs matplotlib."""
    if plt := common.pyplot(f"{path.name} is left out"):
        figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), layout="constrained", squeeze=False)
        for axis, (title, lines) in zip(axes[0], panels.items()):
            for label, values in lines.items():
                axis.plot(range(1, len(values) + 1), values.clamp(min=1e-12), label=f"{label}, effective rank {effective_rank(values):.0f}")
            axis.set(yscale="log", xlabel="eigenvalue", title=title)
            axis.legend(fontsize=7)
        figure.savefig(path, dpi=110)
        plt.close(figure)


def balanced_subset(y, share, seed):
    """Indices of a share of the labels y (N,): the same number of every class, at least one, drawn with `seed`."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(y.device)
    classes = y.unique()
    count = max(1, round(share * len(y) / len(classes)))
    return torch.cat([order[y[order] == c][:count] for c in classes])


def finetune(backbone, d, data, share, args):
    """Semi-supervised fine-tuning ([SparseHead] Table 2): a copy of the whole backbone and a new linear classifier on a
    class-balanced share of the training labels, random crops and flips, SGD with cosine decay; → top-1, top-5 in % on the
    test set, number of labels."""
    chosen = balanced_subset(data.y_train, share, args.seed)
    torch.manual_seed(args.seed)
    model = nn.Sequential(copy.deepcopy(backbone), nn.Linear(d, int(data.y_train.max()) + 1)).to(args.device)
    optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": args.finetune_lr},
                                 {"params": model[1].parameters(), "lr": args.classifier_lr}], momentum=0.9)
    batch = min(64, len(chosen))
    steps = args.finetune_epochs * (len(chosen) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: common.lr_at(step, steps))
    model.train()
    for _ in range(args.finetune_epochs):
        for index in chosen[torch.randperm(len(chosen), device=chosen.device)].split(batch)[: len(chosen) // batch]:
            x = data.x_train[index.to(data.x_train.device)].to(args.device).float() / 255  # (n, 3, H, W)
            x = common.random_crop(x, args.image_size, args.min_scale, args.crop)
            loss = F.cross_entropy(model(common.normalise(x)), data.y_train[index].to(args.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(common.eval_view(x.to(args.device), args.image_size)) for x in data.x_test.split(500)])
    right = scores.topk(min(5, scores.shape[1]), 1).indices == data.y_test.to(scores.device)[:, None]
    return 100 * right[:, 0].float().mean().item(), 100 * right.any(1).float().mean().item(), len(chosen)


# ------------------------------------------------------------------------------------------------------------- program
def presets(base):
    """PRESETS, and for ImageNet and ImageNet-100 those of a base loss."""
    return PRESETS | dict.fromkeys(("imagenet100", "imagenet"), IMAGENET_OF[base])


def parser():
    """The command line: common flags, then this method's. Values that depend on the data set are in PRESETS."""
    flags = common.Parser("sparsehead", __doc__)
    flags.add_argument("--base", choices=["simclr", "byol", "barlow"], default="simclr", help="the loss that SparseHead is added to")
    flags.add_argument("--sparse-weight", type=common.within(0, closed=True), default=1e-4, help="λ (paper: 1e-4); 0: the plain base")
    flags.add_argument("--prox", action="store_true", help="proximal step instead of the penalty: exact zeros")
    flags.add_argument("--temperature", type=common.within(0), help="τ of SimCLR (paper: 0.5)")
    flags.add_argument("--barlow-weight", type=common.within(0, closed=True), default=5e-3, help="of Barlow Twins' off-diagonal (paper: 5e-3)")
    flags.add_argument("--momentum", type=common.within(0, 1, closed=True), help="BYOL's at the start; ends at 1 (W-MSE code: 0.99, BYOL: 0.996)")
    flags.add_argument("--schedule", choices=["cosine", "step"], help="of the learning rate; step: constant, ×0.2 near the end, twice")
    flags.add_argument("--warmup", type=common.within(0, closed=True), help="epochs of linear warm-up, at most half the run (W-MSE code: 500 steps)")
    flags.add_argument("--bias-lr", type=common.within(0), help="learning rate of biases and norms (default: --lr)")
    flags.add_argument("--order", choices=["crop-colour", "colour-crop"], help="of the augmentations (W-MSE code: colour-crop)")
    flags.add_argument("--head", choices=["mlp", "linear", "none"], default="mlp", help="projection head")
    flags.add_argument("--head-hidden", type=common.within(0, kind=int), help="its hidden units (W-MSE code: 1024)")
    flags.add_argument("--head-out", type=common.within(0, kind=int), help="its outputs K (W-MSE code: 64; 128 on STL-10)")
    flags.add_argument("--compare-heads", action="store_true", help="train with no, a linear and an MLP head; one figure")
    flags.add_argument("--finetune", type=common.within(0, 1, closed=True), nargs="+", default=[], metavar="SHARE",
                       help="then fine-tune on these shares of the labels (paper: 0.01 0.1)")
    flags.add_argument("--finetune-epochs", type=common.within(0, kind=int), default=50, help="passes over those labels")
    flags.add_argument("--finetune-lr", type=common.within(0), default=0.02, help="learning rate of the backbone")
    flags.add_argument("--classifier-lr", type=common.within(0), default=0.5, help="learning rate of the new classifier")
    return flags


def train(args, data):
    """One run: pre-training, evaluation, fine-tuning; → the spectra."""
    torch.manual_seed(args.seed)
    steps = data.steps(args.batch_size)

    backbone, d = common.resnet(args.arch, args.image_size)
    K = d if args.head == "none" else args.head_out
    head = projection_head(args.head, d, args.head_hidden, K)
    model = SparseHead(backbone, head, args.base, args.head_hidden, K)
    model.to(args.device, memory_format=torch.channels_last)
    run = common.Run("sparsehead", args)
    net, two_views = run.compile(run.parallel(model)), run.compile(common.two_views)
    criterion = run.compile({"simclr": nt_xent, "byol": byol_loss, "barlow": barlow_loss}[args.base])

    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.ndim > 1]}, {"params": [p for p in trained if p.ndim <= 1], "lr": args.bias_lr or args.lr}]
    make = functools.partial(common.LARS, trust=1e-3, clip=False) if args.optimizer == "lars" else common.OPTIMIZERS[args.optimizer]
    optimizer = make(groups, lr=args.lr, weight_decay=args.weight_decay)
    warmup = min(round(args.warmup * steps), args.epochs * steps // 2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (
        step_decay(step, args.epochs, steps, warmup) if args.schedule == "step" else common.lr_at(step, args.epochs * steps, warmup)))
    W, online = model.last, nn.Sequential(backbone, head)

    for epoch in run.epochs(model, optimizer, schedule):
        model.train()
        for images in data.batches(args.batch_size, args.seed, epoch, args.device, run.step):  # (N, 3, H, W) uint8
            v1, v2 = two_views(images, args.image_size, min_scale=args.min_scale, jitter=args.jitter, gray=args.gray,
                               blur=args.blur, crop=args.crop, colour_first=args.order == "colour-crop")
            with run.autocast():
                (h1, z1), (h2, z2) = net(v1), net(v2)  # each view through its own forward: its own BatchNorm statistics
                if args.base == "byol":
                    p1, p2 = model.predictor(z1), model.predictor(z2)  # (N, K)
                    with torch.no_grad():
                        t1, t2 = model.target(v1), model.target(v2)  # (N, K)
            if args.base == "byol":
                z1, p1, p2, t1, t2 = common.gather(z1, p1, p2, t1, t2)  # of all processes, with gradient
                loss = criterion(p1, t2) + criterion(p2, t1)
            else:
                z1, z2 = common.gather(z1, z2)
                loss = criterion(z1, z2, args.temperature if args.base == "simclr" else args.barlow_weight)
            penalty = 0.0 if W is None or args.prox else args.sparse_weight * l21_norm(W)  # Eq. (12)

            optimizer.zero_grad()
            (loss + penalty).backward()
            optimizer.step()
            if args.prox and W is not None:
                shrink_columns(W, optimizer.param_groups[0]["lr"] * args.sparse_weight)
            if args.base == "byol":
                update_target(model.target, online, momentum_at(schedule.last_epoch, args.epochs * steps, args.momentum))
            schedule.step()
            run.log(len(images), loss=loss, **common.health(z1))
        run.end_epoch(epoch, schedule.get_last_lr()[0])
    run.save_backbone(backbone)

    metrics, spectra = report(run, data, model)
    if run.folder:
        draw_spectra(run.folder / "spectra.png", {f"{args.base}, {args.head} head": spectra})
    lines = []
    for share in args.finetune:
        top1, top5, labels = finetune(backbone, d, data, share, args)
        metrics |= {f"finetune_{share:g}_top1": top1, f"finetune_{share:g}_top5": top5}
        lines.append(f"fine-tuned on {labels} labels ({100 * share:g} %): top-1 {top1:.1f} %, top-5 {top5:.1f} %")
    run.finish(metrics)
    print(f"effective rank: representation {metrics['rank_representation']:.1f} of {d}, embedding {metrics['rank_embedding']:.1f} of {K}; min-max distance "
          f"ratio: {metrics['min_max_representation']:.2f}, {metrics['min_max_embedding']:.2f}")
    if W is not None:
        print(f"‖W‖₂,₁ {metrics['l21']:.3g}; {100 * metrics['unused_columns']:.1f} % of its {W.shape[1]} columns unused")
    print(*lines, sep="\n", end="\n" if lines else "")
    return spectra


def main(argv=None):
    base = parser().parse_known_args(argv)[0].base  # on which ImageNet's preset depends
    args = parser().parse(presets(base), argv)
    if args.head == "none" and args.sparse_weight and not args.compare_heads:
        raise common.BadInput("--head none has no linear layer to make sparse: give --sparse-weight 0 with it")
    data = common.load_data(args.dataset, args.data_root, args.image_size, args.limit, args.device, args.decode_size,
                            args.skip_unreadable)
    if args.finetune and data.y_train is None:
        raise common.BadInput(f"--finetune needs labels, and {data.name} has none")
    if args.compare_heads and args.eval_only:
        raise common.BadInput("--compare-heads trains; it cannot be used with --eval-only")
    if not args.compare_heads:
        train(args, data)
        return
    folder = Path(args.out or f"runs/sparsehead-{args.dataset}-heads-seed{args.seed}-{time.strftime('%Y%m%d-%H%M%S')}")
    spectra = {}
    for head in ("none", "linear", "mlp"):
        own = dict(head=head, out=str(folder / head), compare_heads=False, sparse_weight=0.0 if head == "none" else args.sparse_weight)
        spectra[head] = train(argparse.Namespace(**vars(args) | own), data)
    if common.rank() == 0:
        draw_spectra(folder / "heads.png", {
            "representation, by head": {head: found["representation"] for head, found in spectra.items()},
            "linear head": spectra["linear"], "MLP head": spectra["mlp"]})


if __name__ == "__main__":
    common.launch(main)
