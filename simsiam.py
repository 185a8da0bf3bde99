"""SimSiam: two views predict each other; no negatives, no momentum network, only a predictor and a stop-gradient.

    L = ½ D(p1, sg[z2]) + ½ D(p2, sg[z1]),   D(p, z) = −cos(p, z),   z = projector(backbone(x)),   p = predictor(z)

Chen, He, "Exploring Simple Siamese Representation Learning", CVPR 2021, arXiv 2011.10566, Eq. (1) to (4). The constant
embedding is a minimum of this loss; that training does not find it is the paper's point.

    python simsiam.py                                    the built-in data set, on a laptop
    python simsiam.py --no-stop-grad                     the embedding collapses; so it does with --no-predictor
    python simsiam.py --dataset cifar10 --epochs 800     the paper's CIFAR recipe

Measured with the first command (results/shapes-simsiam-seed*): linear probe 55.1 ± 2.9 %, collapse indicator .99 ± .01
(mean ± std of seeds 1 to 5; 15 epochs in two minutes on one thread of an Intel Xeon, bf16, torch 2.15, 2026-11-23).
With the second 34 ± 9 % and .31 ± .13, with --no-predictor 38 ± 10 % and .23 ± .03 (seeds 1 to 3). The last norm keeps
the mean of a batch at 0, so collapsed embeddings are not equal but lie on one line, a share f of them on the shorter
side, and the indicator is 2·sqrt(f (1 − f)), at least about 2/sqrt(batch); at batch 1000 two seeds end at .10 and .08,
one came down to .10 and bounced (results/simsiam-16px-*). The paper's rows have not been measured yet.

Differences from the paper: common.py's, and 1. normalisations use eps = 1e-2; 2. the settings `shapes` and `default`
are ours, and do without the zero initialisation of residual branches: with it fifteen epochs of `shapes` end at a probe
of 52.1 ± 1.2 % (seeds 1 to 3; results/shapes-simsiam-zero-init-seed*).
"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

EPS = 1e-2  # of the loss's normalisation: a row of norm 0 must not have its gradient divided by the usual 1e-12

PAPER = dict(  # the paper's CIFAR recipe
    arch="resnet18", zero_init_residual=True, image_size=32, epochs=800, batch_size=512, optimizer="sgd", lr=0.06,
    weight_decay=5e-4, warmup=0.0, projector_layers=2, head_out=2048, predictor_hidden=512,
    min_scale=0.2, jitter=0.4, gray=0.2, blur=0.0, crop="bilinear")
PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": PAPER,
    "cifar100": PAPER,
    "imagenet": PAPER | dict(
        arch="resnet50", image_size=224, epochs=100, lr=0.1, weight_decay=1e-4, projector_layers=3, blur=0.5,
    ),
    "shapes": PAPER | dict(
        arch="resnet8", zero_init_residual=False, epochs=15, batch_size=128, lr=0.2, projector_layers=3, head_out=512,
        predictor_hidden=128, jitter=0.8,
    ),
    "default": PAPER | dict(  # any other data set, and short runs: results/README.md
        zero_init_residual=False, epochs=100, batch_size=128, lr=0.2, head_out=512, predictor_hidden=128, jitter=0.5,
    ),
}
PRESETS["imagenet100"] = PRESETS["imagenet"] | dict(arch="resnet18")  # no paper has this row


def negative_cosine(p, z, stop_gradient=True):
    """−mean cos(p, sg[z]) of predictions p and targets z (N, K), in [−1, 1] (Eq. 1, 3), or without sg."""
    z = z.detach() if stop_gradient else z
    with torch.autocast(p.device.type, enabled=False):  # float32, whatever the caller's autocast
        return -(F.normalize(p.float(), dim=1, eps=EPS) * F.normalize(z.float(), dim=1, eps=EPS)).sum(1).mean()


def projector(d, K, layers):
    """h (N, d) → z (N, K): Linear-BN-ReLU blocks, and a last Linear-BN without scale and shift."""
    blocks, width = [], d
    for _ in range(layers - 1):
        blocks += [nn.Linear(width, K, bias=False), nn.BatchNorm1d(K), nn.ReLU()]
        width = K
    return nn.Sequential(*blocks, nn.Linear(width, K, bias=False), nn.BatchNorm1d(K, affine=False))


def bottleneck(K, hidden):
    """The predictor, z (N, K) → p (N, K): Linear-BN-ReLU-Linear."""
    return nn.Sequential(nn.Linear(K, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, K))


class SimSiam(nn.Module):
    """Images (N, 3, S, S) → representation h (N, d), embedding z (N, K), prediction p (N, K) of the other view's z."""

    def __init__(self, backbone, head, predictor):
        super().__init__()
        self.backbone, self.head, self.predictor = backbone, head, predictor

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        z = self.head(h)  # (N, K)
        return h, z, self.predictor(z)


def network(args):
    """The model that the settings of a run describe."""
    backbone, d = common.resnet(args.arch, args.image_size, args.zero_init_residual)
    K = args.head_out
    predictor = bottleneck(K, args.predictor_hidden) if args.predictor else nn.Identity()
    return SimSiam(backbone, projector(d, K, args.projector_layers), predictor)


def parser():
    """The command line: common flags, then this method's. Values that depend on the data set are in PRESETS."""
    flags = common.Parser(__file__, __doc__)
    flags.image_flags(PRESETS)
    add, positive = flags.add_argument, common.within(0, kind=int)
    add("--head-out", type=positive, help="width and outputs K of the projector (paper: 2048)")
    add("--projector-layers", type=positive, help="its linear layers (paper: 3; 2 on CIFAR)")
    add("--predictor-hidden", type=positive, help="hidden units of the predictor (paper: 512)")
    add("--zero-init-residual", action=argparse.BooleanOptionalAction, help="residual branches start at 0 (paper: yes)")
    add("--no-stop-grad", dest="stop_grad", action="store_false", help="ablation: targets get gradient too; collapses")
    add("--no-predictor", dest="predictor", action="store_false", help="ablation: p = z; collapses")
    return flags


def main(argv=None):
    args = parser().parse(argv)
    torch.manual_seed(args.seed)
    data = common.load_data(args.dataset, args.data_root, limit=args.limit, device=args.device)
    steps = data.steps(args.batch_size)  # in an epoch
    model = network(args).to(args.device, memory_format=torch.channels_last)
    groups = [dict(params=[*model.backbone.parameters(), *model.head.parameters()]),
              dict(params=[*model.predictor.parameters()], fixed_lr=True)]  # the predictor's stays constant
    optimizer = common.OPTIMIZERS[args.optimizer](groups, lr=args.lr, weight_decay=args.weight_decay)
    run = common.Run(args)
    net = run.parallel(model)
    both = run.compile(lambda v1, v2: (net(v1), net(v2)))  # two calls: BatchNorm sees one view at a time
    two_views, criterion = run.compile(common.two_views), run.compile(negative_cosine)

    for epoch in range(run.restore(model, optimizer), args.epochs):  # from the first that is not done yet
        model.train()
        run.seed(epoch)
        log = []
        for step, (images, _) in enumerate(data.batches(args.batch_size, args.seed, epoch, args.device), epoch * steps):
            optimizer.zero_grad()
            v1, v2 = two_views(images, args.image_size, min_scale=args.min_scale, jitter=args.jitter, gray=args.gray,
                               blur=args.blur, crop=args.crop)  # (N, 3, S, S) each
            with torch.autocast(run.device.type, torch.bfloat16, enabled=run.bf16):
                (h1, z1, p1), (h2, z2, p2) = both(v1, v2)
            z1, z2, p1, p2 = common.gather(z1, z2, p1, p2)  # of all processes, with gradient
            loss = (criterion(p1, z2, args.stop_grad) + criterion(p2, z1, args.stop_grad)) / 2  # Eq. (4)

            loss.backward()
            common.set_lr(optimizer, common.lr_at(step, args.epochs * steps, args.warmup * steps))
            optimizer.step()
            log.append(dict(loss=loss.detach(), **common.health(z1)))
        run.end_epoch(epoch, log, model, optimizer)
    if common.rank() == 0:
        metrics, *_ = common.evaluate(run, data, model)
        run.finish(metrics, model.backbone)


if __name__ == "__main__":
    common.launch(main)
