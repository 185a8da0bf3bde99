"""NCL: non-negative contrastive learning. SimCLR on embeddings that cannot be negative, which makes them sparse and each
dimension a cluster.

    z⁺ = σ₊(z) ≥ 0,   L = NT-Xent(z⁺ / ‖z⁺‖)

Wang, Zhang, Guo, Wang, "Non-negative Contrastive Learning", ICLR 2024, arXiv 2403.12459. Minimising the spectral loss
this way is a non-negative matrix factorisation of the normalised co-occurrence matrix (a theorem; test_all.py checks it).

    python ncl.py                                        the built-in data set, on a laptop
    python ncl.py --dataset cifar100 --epochs 200        the papers' NCL row
    python ncl.py --dataset cifar100 --topk 64           the NCL + TopK baseline of BayesNCL

Measured with the first command: linear probe 69.2 ± 2.9 %, Cons. 28.5 ± 3.8, 11 % of the entries active
(mean ± std of seeds 1 to 5; object label; 15 epochs in about 115 s on one thread of an AMD EPYC, bf16, torch 2.15, 2026-11-21;
results/shapes-ncl-seed*). The 200-epoch row has not been measured yet.

Differences from the papers: common.py's, and 1. normalisations use eps = 1e-2; 2. the settings `shapes` and `default` are ours
(no blur, bilinear crops); 3. no source gives TopK's K; 4. feature selection ranks dimensions
on the training images (theirs: on the test images).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import common

EPS = 1e-2  # of every normalisation: a row of norm 0 must not have its gradient divided by the usual 1e-12

PAPER = dict(  # the NCL authors' CIFAR recipe, which BayesNCL's share
    arch="resnet18", image_size=32, epochs=200, batch_size=256, optimizer="lars", lr=0.4, weight_decay=1e-4, warmup=10.0,
    temperature=0.2, head_hidden=2048, head_out=256, activation="rep_relu", min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic")
PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": PAPER,
    "cifar100": PAPER,
    "imagenet100": PAPER | dict(image_size=224, decode_size=256, epochs=100, batch_size=128, lr=0.15,  # 0.3 · 128/256
                                head_hidden=16384, head_out=2048, activation="relu"),
    "shapes": PAPER | dict(arch="resnet8", epochs=15, optimizer="adam", lr=3e-3, weight_decay=0.0, warmup=0.75,
                           head_hidden=256, min_scale=0.2, blur=0.0, crop="bilinear"),
    "default": PAPER | dict(epochs=100, batch_size=128, optimizer="sgd", lr=0.06, weight_decay=5e-4, warmup=1.0,  # results/recipe.md
                            head_hidden=512, min_scale=0.2, jitter=0.5, blur=0.0, crop="bilinear"),
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
    −2·mean_i z1_i·z2_i + mean_{i≠j} (z1_i·z2_j)²."""
    n = len(z1)
    with torch.autocast(z1.device.type, enabled=False):  # float32, whatever the caller's autocast
        similarity = z1.float() @ z2.float().T  # (N, N)
    squares = similarity.square()
    return -2 * similarity.diagonal().mean() + (squares.sum() - squares.diagonal().sum()) / (n * (n - 1))


def non_negative(z, kind):
    """σ₊ (Wang et al.), elementwise on z of any shape. rep_relu is ReLU forward and GELU backward, so that a unit that
    is off can come back. leaky_relu and gelu go slightly below 0; none returns z and gives SimCLR back."""
    if kind == "rep_relu":
        soft = F.gelu(z)
        return soft - soft.detach() + F.relu(z).detach()
    return {"relu": F.relu, "gelu": F.gelu, "sigmoid": torch.sigmoid, "softplus": F.softplus, "exp": torch.exp,
            "leaky_relu": F.leaky_relu, "none": lambda z: z}[kind](z)


def keep_topk(z, k):
    """The k largest entries of each row of z (N, K), the others 0."""
    return torch.zeros_like(z).scatter(1, *reversed(z.topk(k, 1)))


def projection_head(kind, d, hidden, out):
    """h (N, d) → z (N, out): mlp = Linear-ReLU-Linear, linear, or none (then out is d)."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, out))
    return nn.Linear(d, out) if kind == "linear" else nn.Identity()


class NCL(nn.Module):
    """Images (N, 3, S, S) → representation h (N, d), embedding z⁺ (N, K)."""

    def __init__(self, backbone, head, activation="rep_relu", topk=None):
        super().__init__()
        self.backbone, self.head, self.activation, self.topk = backbone, head, activation, topk

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        z = non_negative(self.head(h).float(), self.activation)  # (N, K)
        return h, keep_topk(z, self.topk) if self.topk else z


def parser():
    """The command line: common flags, then this method's. Values that depend on the data set are in PRESETS."""
    flags = common.Parser("ncl", __doc__)
    flags.add_argument("--warmup", type=common.within(0, closed=True), help="epochs of linear warm-up, at most half the run (paper: 10)")
    flags.add_argument("--temperature", type=common.within(0), help="τ of NT-Xent (paper: 0.2); the spectral loss has none")
    flags.add_argument("--loss", choices=["ntxent", "spectral"], default="ntxent", help="spectral: HaoChen et al. 2021")
    flags.add_argument("--head", choices=["mlp", "linear", "none"], default="mlp", help="projection head")
    flags.add_argument("--head-hidden", type=common.within(0, kind=int), help="its hidden units (paper: 2048)")
    flags.add_argument("--head-out", type=common.within(0, kind=int), help="its outputs K (paper: 256)")
    flags.add_argument("--activation", help="σ₊ (paper: rep_relu on CIFAR, relu on ImageNet-100)",
                       choices=["rep_relu", "relu", "gelu", "sigmoid", "softplus", "exp", "leaky_relu", "none"])
    flags.add_argument("--topk", type=common.within(0, kind=int), help="keep only the K largest entries of each embedding (K is ours: no source gives it)")
    return flags


def main(argv=None):
    args = parser().parse(PRESETS, argv)
    torch.manual_seed(args.seed)
    data = common.load_data(args.dataset, args.data_root, args.image_size, args.limit, args.device, args.decode_size,
                            args.skip_unreadable)
    steps = data.steps(args.batch_size)

    backbone, d = common.resnet(args.arch, args.image_size)
    K = d if args.head == "none" else args.head_out
    head = projection_head(args.head, d, args.head_hidden, K)
    if args.topk and args.topk > K:
        raise common.BadInput(f"--topk {args.topk}: the embedding has {K} dimensions")
    model = NCL(backbone, head, args.activation, args.topk)
    model.to(args.device, memory_format=torch.channels_last)
    run = common.Run("ncl", args)
    net, two_views = run.compile(run.parallel(model)), run.compile(common.two_views)
    criterion = run.compile(nt_xent if args.loss == "ntxent" else spectral_loss)

    optimizer = common.OPTIMIZERS[args.optimizer](model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    warmup = min(round(args.warmup * steps), args.epochs * steps // 2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: common.lr_at(step, args.epochs * steps, warmup))

    for epoch in run.epochs(model, optimizer, schedule):
        model.train()
        for images in data.batches(args.batch_size, args.seed, epoch, args.device, run.step):  # (N, 3, H, W) uint8
            v1, v2 = two_views(images, args.image_size, min_scale=args.min_scale, jitter=args.jitter, gray=args.gray,
                               blur=args.blur, crop=args.crop)
            with run.autocast():
                (h1, z1), (h2, z2) = net(v1), net(v2)  # each view through its own forward: its own BatchNorm statistics
            z1, z2 = common.gather(z1, z2)  # of all processes, with gradient
            loss = criterion(z1, z2, args.temperature) if args.loss == "ntxent" else criterion(z1, z2)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            run.log(len(images), loss=loss, **common.health(z1))
        run.end_epoch(epoch, schedule.get_last_lr()[0])
    run.save_backbone(backbone)
    metrics, (e_train, e) = common.evaluate(run, data, model)
    run.finish(metrics | common.feature_selection(e_train, data.y_train, e, data.y_test, metrics.get("l2_embedding")))


if __name__ == "__main__":
    common.launch(main)
