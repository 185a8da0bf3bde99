"""NCL: SimCLR on embeddings that cannot be negative, which makes them sparse and each dimension a cluster.

    z⁺ = σ₊(z) ≥ 0,   L = NT-Xent(z⁺)

Wang, Zhang, Guo, Wang, "Non-negative Contrastive Learning", ICLR 2024, arXiv 2403.12459.
The recipe is that of the NCL authors (arXiv 2403.12459), as in BayesNCL's paper (arXiv 2605.28441).

    python ncl.py                                        the built-in data set, on a laptop
    python ncl.py --dataset cifar100 --epochs 200        the papers' NCL row; with --topk 64 the NCL + TopK baseline

Measured with the first command (results/shapes-ncl-seed*): linear probe 69.0 ± 1.8 %, Cons. 27.8 ± 2.9
(mean ± std of seeds 1 to 5; 15 epochs in two minutes on one thread of an Intel Xeon, bf16, torch 2.15, 2026-11-23).
The 200-epoch row has not been measured yet.

Differences from the paper: common.py's, and 1. normalisations use eps = 1e-2; 2. `shapes` and `default` are ours.
3. No source gives TopK's k. 4. Dimensions are selected on the training images (theirs: on the test images).
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
    min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic")
PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": PAPER,
    "cifar100": PAPER,
    "imagenet100": PAPER | dict(
        image_size=224, epochs=100, batch_size=128, lr=0.15, head_hidden=16384, head_out=2048,  # lr: 0.3 · 128/256
        activation="relu",
    ),
    "shapes": PAPER | dict(
        arch="resnet8", epochs=15, optimizer="adam", lr=3e-3, weight_decay=0.0, warmup=0.75, head_hidden=256,
        min_scale=0.2, blur=0.0, crop="bilinear",
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


def keep_topk(z, k):
    """The k largest entries of each row of z (N, K), the others 0."""
    values, index = z.topk(k, 1)
    return torch.zeros_like(z).scatter(1, index, values)


def projection_head(kind, d, hidden, K):
    """h (N, d) → z (N, K): mlp = Linear-ReLU-Linear, linear, or none (then K is d)."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, K))
    return nn.Linear(d, K) if kind == "linear" else nn.Identity()


class NCL(nn.Module):
    """Images (N, 3, S, S) → representation h (N, d), embedding (N, K)."""

    def __init__(self, backbone, head, activation="rep_relu", topk=None):
        super().__init__()
        self.backbone, self.head = backbone, head
        self.activation, self.topk = activation, topk

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        z = ACTIVATIONS[self.activation](self.head(h).float())  # z⁺
        return h, keep_topk(z, self.topk) if self.topk else z


def network(args):
    """The model that the settings of a run describe."""
    backbone, d = common.resnet(args.arch, args.image_size)
    K = d if args.head == "none" else args.head_out
    head = projection_head(args.head, d, args.head_hidden, K)
    if args.topk and args.topk > K:
        raise common.BadInput(f"--topk {args.topk}: the embedding has {K} dimensions")
    return NCL(backbone, head, args.activation, args.topk)


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
    add("--topk", type=positive, help="keep only the largest entries of each embedding (64 is ours: no source gives k)")
    return flags


def main(argv=None):
    args = parser().parse(argv)
    torch.manual_seed(args.seed)
    data = common.load_data(args.dataset, args.data_root, limit=args.limit, device=args.device)
    steps = data.steps(args.batch_size)  # in an epoch
    model = network(args).to(args.device, memory_format=torch.channels_last)
    optimizer = common.OPTIMIZERS[args.optimizer](model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
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
                (h1, z1), (h2, z2) = both(v1, v2)
            z1, z2 = common.gather(z1, z2)  # of all processes, with gradient
            loss = criterion(z1, z2)

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
