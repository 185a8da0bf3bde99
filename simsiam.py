# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.6", "torchvision>=0.21", "numpy>=2.0"]
# ///
"""SimSiam: two views predict each other, without negatives and without a momentum network.

    L = ½ D(p1, sg[z2]) + ½ D(p2, sg[z1])         sg: stop-gradient
    D(p, z) = −cos(p, z)
    z = projector(backbone(x)),   p = predictor(z)

Chen, He, "Exploring Simple Siamese Representation Learning", CVPR 2021, arXiv 2011.10566,
Eq. (1) to (4). Constant embeddings are a minimum of L; the paper's point is that training does
not collapse to it. Without the stop-gradient, or without the predictor, it does collapse, to a
line through 0 (two points, once normalised), as the projector's last BatchNorm keeps the mean at 0.

    python simsiam.py                                    the built-in data set, on a laptop
    python simsiam.py --no-stop-grad                     the embeddings collapse to a line
    python simsiam.py --no-predictor                     they collapse here, too
    python simsiam.py --dataset cifar10                  the paper's CIFAR recipe, 800 epochs

What to expect of the first command: a linear probe of 55 % (50 to 58 with other seeds), after 115
seconds of training on one CPU core with bf16.

Where we differ from the paper, besides what common.py lists:
1. Embeddings are normalised with eps = 1e-2.
2. The settings `imagenet100`, `shapes` and `default` are ours. In `shapes` and `default`, residual
   branches do not start at 0.
"""

import argparse

import common

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models.resnet import BasicBlock, Bottleneck

# ---------------------------------------------------------------------------------------- settings
# For CIFAR and ImageNet these are the paper's; for any other data set they are ours.
# fmt: off
PRESETS = common.presets({
    "preset":             ["cifar10 cifar100", "imagenet", "shapes",   "default"],
    "arch":               ["resnet18",         "resnet50", "resnet8",  "resnet18"],
    "image_size":         [32,                 224,        32,         32],
    "zero_init_residual": [True,               True,       False,      False],
    "head_out":           [2048,               2048,       512,        512],  # K
    "projector_layers":   [2,                  3,          3,          2],
    "predictor_hidden":   [512,                512,        128,        128],
    "stop_grad":          [True,               True,       True,       True],
    "predictor":          [True,               True,       True,       True],
    "epochs":             [800,                100,        15,         100],
    "batch_size":         [512,                512,        128,        128],
    "optimizer":          ["sgd",              "sgd",      "sgd",      "sgd"],
    "lr":                 [0.06,               0.1,        0.2,        0.2],  # at its peak
    "weight_decay":       [5e-4,               1e-4,       5e-4,       5e-4],
    "warmup":             [0.0,                0.0,        0.0,        0.0],  # epochs
    "min_scale":          [0.2,                0.2,        0.2,        0.2],  # of the area
    "jitter":             [0.4,                0.4,        0.8,        0.5],  # of colours
    "gray":               [0.2,                0.2,        0.2,        0.2],  # probability
    "blur":               [0.0,                0.5,        0.0,        0.0],  # probability
    "crop":               ["bilinear",         "bilinear", "bilinear", "bilinear"],
})
# fmt: on
PRESETS["imagenet100"] = PRESETS["imagenet"] | dict(arch="resnet18")

# The gradient of a cosine grows without limit as its vectors get shorter. Norms below EPS count as
# EPS, so that a z near 0 does not get a gradient that is far too large.
EPS = 1e-2


# ---------------------------------------------------------------------------------------- the loss
def negative_cosine(p, z, stop_gradient=True):
    """D(p, z) = −cos(p, z) (SimSiam, Eq. 1), the mean over N predictions, in [−1, 1].

    p, z: (N, K), predictions and their targets, not necessarily normalised.
    stop_gradient: z gets no gradient (Eq. 3).
    """
    assert p.ndim == 2, p.shape
    assert p.shape == z.shape, (p.shape, z.shape)
    if stop_gradient:
        z = z.detach()
    with torch.autocast(p.device.type, enabled=False):  # float32, whatever the caller's autocast
        p = F.normalize(p.float(), dim=1, eps=EPS)
        z = F.normalize(z.float(), dim=1, eps=EPS)
        cosines = (p * z).sum(1)  # (N,)
    return -cosines.mean()


# --------------------------------------------------------------------------------------- the model
def projector(d, K, layers):
    """h (N, d) → z (N, K): Linear-BN-ReLU blocks, and a last Linear-BN without scale and shift.

    The last norm keeps the mean of a batch at 0, so that collapsed embeddings are not equal: they
    lie on a line through 0. With a share f of them on one side the indicator of collapse, `spread`
    in common.health, is 2√(f (1 − f)).
    """
    blocks = []
    width = d
    for _ in range(layers - 1):
        blocks += [nn.Linear(width, K, bias=False), nn.BatchNorm1d(K), nn.ReLU()]
        width = K
    blocks += [nn.Linear(width, K, bias=False), nn.BatchNorm1d(K, affine=False)]
    return nn.Sequential(*blocks)


def prediction_head(K, hidden):
    """z (N, K) → p (N, K): Linear-BN-ReLU-Linear, a bottleneck."""
    return nn.Sequential(
        nn.Linear(K, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, K),
    )


def zero_init(backbone):
    """Let each residual branch start at 0 (Goyal et al. 2017): the scale of its last norm is 0."""
    for block in backbone.modules():
        if isinstance(block, BasicBlock):
            nn.init.zeros_(block.bn2.weight)
        if isinstance(block, Bottleneck):
            nn.init.zeros_(block.bn3.weight)


class SimSiam(nn.Module):
    """Images (N, 3, S, S) → h (N, d), z (N, K), p (N, K)."""

    def __init__(self, args):
        super().__init__()
        self.backbone, d = common.resnet(args.arch, args.image_size)
        if args.zero_init_residual:
            zero_init(self.backbone)
        K = args.head_out
        if args.predictor:
            self.predictor = prediction_head(K, args.predictor_hidden)
        else:
            self.predictor = nn.Identity()
        self.head = projector(d, K, args.projector_layers)

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        z = self.head(h)  # (N, K)
        p = self.predictor(z)  # (N, K): a guess of the other view's z
        return h, z, p


network = SimSiam  # tools/ find the model of any method by this name


# ------------------------------------------------------------------------------------- the program
def parser():
    """The command line: common flags, then this method's. PRESETS has their defaults."""
    flags = common.Parser(__file__, __doc__, PRESETS)
    flags.image_flags()
    count = common.number(int, 1)
    yes_or_no = argparse.BooleanOptionalAction
    add = flags.add_argument
    add("--head-out", type=count, help="width and outputs K of the projector")
    add("--projector-layers", type=count, help="its linear layers")
    add("--predictor-hidden", type=count, help="hidden units of the predictor")
    add("--zero-init-residual", action=yes_or_no, help="residual branches start at 0")
    add("--no-stop-grad", dest="stop_grad", action="store_false", help="ablation; collapses")
    add("--no-predictor", dest="predictor", action="store_false", help="ablation: p = z; collapses")
    return flags


def main(argv=None):
    args = parser().parse(argv)
    torch.manual_seed(args.seed)  # the same weights in each process; run.epochs() seeds each epoch
    data = common.Data(args)
    steps = data.steps(args.batch_size)  # in an epoch
    total = args.epochs * steps
    warmup = args.warmup * steps
    view_settings = {name: getattr(args, name) for name in common.VIEWS}

    model = SimSiam(args).to(args.device, memory_format=torch.channels_last)
    Optimizer = common.OPTIMIZERS[args.optimizer]
    others = [*model.backbone.parameters(), *model.head.parameters()]
    predicting = dict(params=list(model.predictor.parameters()), fixed_lr=True)
    groups = [dict(params=others), predicting]  # the predictor's learning rate stays constant
    optimizer = Optimizer(groups, lr=args.lr, weight_decay=args.weight_decay)

    run = common.Run(args, data, model, optimizer)

    # run.compile: torch.compile with --compile, else nothing.
    two_views = run.compile(common.two_views)

    @run.compile
    def both(v1, v2):
        return model(v1), model(v2)  # two calls: BatchNorm sees one view at a time

    @run.compile
    def D(p, z):
        return negative_cosine(p, z, args.stop_grad)

    for epoch in run.epochs():  # those that are not done yet
        log = []
        batches = data.batches(args, epoch)
        for step, (images, _) in enumerate(batches, start=epoch * steps):
            common.set_lr(optimizer, common.lr_share(step, total, warmup))

            v1, v2 = two_views(images, args.image_size, **view_settings)  # (N, 3, S, S) each
            with torch.autocast(images.device.type, torch.bfloat16, enabled=run.bf16):
                (_, z1, p1), (_, z2, p2) = both(v1, v2)
            # Under torchrun each process has a part of the batch; the loss is of all parts.
            z1, z2, p1, p2 = common.gather(z1, z2, p1, p2)
            loss = D(p1, z2) / 2 + D(p2, z1) / 2  # Eq. (4)

            optimizer.zero_grad()
            loss.backward()
            common.average_gradients(model)
            optimizer.step()

            log.append(dict(loss=loss.detach(), **common.health(z1)))
        run.end_epoch(log)

    if common.RANK == 0:
        metrics, h, z = common.evaluate(model, data, args)
        run.finish(metrics, h, z)


if __name__ == "__main__":
    common.launch(main)
