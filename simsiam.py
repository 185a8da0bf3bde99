"""SimSiam: two views predict each other; no negatives, no momentum network, only a predictor and a stop-gradient.

    L = ½ D(p1, sg[z2]) + ½ D(p2, sg[z1]),   D(p, z) = −cos(p, z),   z = projector(backbone(x)),   p = predictor(z)

Chen, He, "Exploring Simple Siamese Representation Learning", CVPR 2021, arXiv 2011.10566, Eq. (1) to (4). The constant
embedding is a minimum of this loss; that training does not find it is the paper's point:

    python simsiam.py                                    the built-in data set, on a laptop
    python simsiam.py --no-stop-grad                     the embedding collapses; so it does with --no-predictor
    python simsiam.py --dataset cifar10 --epochs 800     the paper's CIFAR recipe

Measured with the first command: linear probe 55.0 ± 1.1 %, collapse indicator .99 ± .01 (mean ± std of seeds 1 to 5; object label;
15 epochs in about 125 s on one thread of an AMD EPYC, bf16, torch 2.15, 2026-11-21; results/shapes-simsiam-seed*); with the second
34.3 % and .21, with --no-predictor 61.7 % and .22 (seed 1). The last norm keeps the mean of a batch at 0, so collapsed embeddings
are not equal but lie on one line, a share f of them on the shorter side, and the indicator is 2·sqrt(f (1 − f)), at least about
2/sqrt(batch); at batch 1000 two runs end at .09 and .12, one came down to .17 and bounced (results/simsiam-collapse-16px*). The paper's rows have not been measured yet.

Differences from the paper: common.py's, and 1. normalisations use eps = 1e-2; 2. the settings `shapes` and `default` are ours, and do
without the zero initialisation of residual branches: with it fifteen epochs of `shapes` end at a probe of 45.3 ± 0.8 % (seeds 1 to
3; results/shapes-simsiam-zero-init-seed*).
"""
import argparse
import json

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

EPS = 1e-2  # of every normalisation: a row of norm 0 must not have its gradient divided by the usual 1e-12

PAPER = dict(  # the paper's CIFAR recipe
    arch="resnet18", zero_init_residual=True, image_size=32, epochs=800, batch_size=512, optimizer="sgd", lr=0.06, weight_decay=5e-4,
    projector_layers=2, head_out=2048, predictor_hidden=512, min_scale=0.2, jitter=0.4, gray=0.2, blur=0.0, crop="bilinear")
PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": PAPER,
    "cifar100": PAPER,
    "imagenet": PAPER | dict(arch="resnet50", image_size=224, decode_size=256, epochs=100, lr=0.1, weight_decay=1e-4,  # 0.05 · 512/256
                             projector_layers=3, blur=0.5),
    "shapes": PAPER | dict(arch="resnet8", zero_init_residual=False, epochs=15, batch_size=128, lr=0.2, projector_layers=3,
                           head_out=512, predictor_hidden=128, jitter=0.8),
    "default": PAPER | dict(zero_init_residual=False, epochs=100, batch_size=128, lr=0.2, head_out=512, predictor_hidden=128,
                            jitter=0.5),
}
PRESETS["imagenet100"] = PRESETS["imagenet"] | dict(arch="resnet18")  # no paper has this row


def negative_cosine(p, z, stop_gradient=True):
    """−mean cos(p, sg[z]) of predictions p and targets z (N, K), in [−1, 1] (Eq. 1, 3); stop_gradient=False is the ablation."""
    z = z.detach() if stop_gradient else z
    with torch.autocast(p.device.type, enabled=False):  # float32, whatever the caller's autocast
        return -(F.normalize(p.float(), dim=1, eps=EPS) * F.normalize(z.float(), dim=1, eps=EPS)).sum(1).mean()


def projector(d, out, layers):
    """h (N, d) → z (N, out): Linear-BN-ReLU, and a last Linear-BN without scale and shift."""
    blocks, width = [], d
    for _ in range(layers - 1):
        blocks += [nn.Linear(width, out, bias=False), nn.BatchNorm1d(out), nn.ReLU()]
        width = out
    return nn.Sequential(*blocks, nn.Linear(width, out, bias=False), nn.BatchNorm1d(out, affine=False))


def bottleneck(out, hidden):
    """The predictor, z (N, out) → p (N, out): Linear-BN-ReLU-Linear."""
    return nn.Sequential(nn.Linear(out, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out))


class SimSiam(nn.Module):
    """Images (N, 3, S, S) → representation h (N, d), embedding z (N, K), prediction p (N, K) of the other view's z."""

    def __init__(self, backbone, head, predictor):
        super().__init__()
        self.backbone, self.head, self.predictor = backbone, head, predictor

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        z = self.head(h)  # (N, K)
        return h, z, self.predictor(z)


def draw_collapse(folder):
    """collapse.png: the collapse indicator over the epochs of the run in `folder`; needs matplotlib."""
    epochs = [record for record in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "epoch" in record]
    if epochs and (plt := common.pyplot("collapse.png is left out")):
        figure, panel = plt.subplots(figsize=(5, 3), layout="constrained")
        panel.plot([record["epoch"] for record in epochs], [record["spread"] for record in epochs], marker=".")
        panel.axhline(1, color="grey", linestyle=":")
        panel.set(xlabel="epoch", ylabel="std of z/‖z‖, times √K", title="1: healthy, 0: collapsed", ylim=(0, 1.1))
        figure.savefig(folder / "collapse.png", dpi=110)
        plt.close(figure)


def parser():
    """The command line: common flags, then this method's. Values that depend on the data set are in PRESETS."""
    flags = common.Parser("simsiam", __doc__)
    flags.add_argument("--head-out", type=common.within(0, kind=int), help="width and outputs K of the projector (paper: 2048)")
    flags.add_argument("--projector-layers", type=common.within(0, kind=int), help="its linear layers (paper: 3; 2 on CIFAR)")
    flags.add_argument("--predictor-hidden", type=common.within(0, kind=int), help="hidden units of the predictor (paper: 512)")
    flags.add_argument("--zero-init-residual", action=argparse.BooleanOptionalAction, help="residual branches start at 0 (paper: yes)")
    flags.add_argument("--no-stop-grad", action="store_true", help="ablation: the targets get gradient too; collapses")
    flags.add_argument("--no-predictor", action="store_true", help="ablation: p = z; collapses")
    return flags


def main(argv=None):
    args = parser().parse(PRESETS, argv)
    torch.manual_seed(args.seed)
    data = common.load_data(args.dataset, args.data_root, args.image_size, args.limit, args.device, args.decode_size,
                            args.skip_unreadable)
    steps = data.steps(args.batch_size)

    backbone, d = common.resnet(args.arch, args.image_size, args.zero_init_residual)
    head = projector(d, args.head_out, args.projector_layers)
    predictor = nn.Identity() if args.no_predictor else bottleneck(args.head_out, args.predictor_hidden)
    model = SimSiam(backbone, head, predictor)
    model.to(args.device, memory_format=torch.channels_last)
    run = common.Run("simsiam", args)
    net, two_views = run.compile(run.parallel(model)), run.compile(common.two_views)
    criterion = run.compile(negative_cosine)

    groups = [{"params": [*backbone.parameters(), *head.parameters()]}, {"params": list(predictor.parameters())}]
    optimizer = common.OPTIMIZERS[args.optimizer](groups, lr=args.lr, weight_decay=args.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda step: common.lr_at(step, args.epochs * steps), lambda step: 1.0])  # the predictor's stays constant

    for epoch in run.epochs(model, optimizer, schedule):
        model.train()
        for images in data.batches(args.batch_size, args.seed, epoch, args.device, run.step):  # (N, 3, H, W) uint8
            v1, v2 = two_views(images, args.image_size, min_scale=args.min_scale, jitter=args.jitter, gray=args.gray,
                               blur=args.blur, crop=args.crop)
            with run.autocast():
                (h1, z1, p1), (h2, z2, p2) = net(v1), net(v2)  # each view through its own forward: its own BatchNorm statistics
            z1, z2, p1, p2 = common.gather(z1, z2, p1, p2)  # of all processes, with gradient
            loss = (criterion(p1, z2, not args.no_stop_grad) + criterion(p2, z1, not args.no_stop_grad)) / 2  # Eq. (4)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            run.log(len(images), loss=loss, **common.health(z1))
        run.end_epoch(epoch, schedule.get_last_lr()[0])
    run.save_backbone(backbone)
    metrics, _ = common.evaluate(run, data, model)
    if run.folder:
        draw_collapse(run.folder)
    run.finish(metrics)


if __name__ == "__main__":
    common.launch(main)
