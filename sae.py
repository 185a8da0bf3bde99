"""A sparse autoencoder (SAE) of a finished run's features: sparsity that is added afterwards, to a fixed backbone.

    z = top_k(W_enc (x − b)) ≥ 0,   x̂ = W_dec z + b,   L = mean ‖x − x̂‖² + α · mean ‖e − ê‖² / mean ‖e‖²,   e = x − x̂

x is the representation h of an image (d entries), centred and scaled so that mean ‖x‖² = 1; W_dec has a column of norm
1 for each of K units. TopK keeps the k largest entries of an image; BatchTopK the k·N largest of a batch of N and, when
it is trained, every entry above a threshold: the smallest that batches kept, on average. The second term brings dead
units back (and is 0 without any): ê = W_dec z', z' the d/2 largest positive entries of the dead units alone.

TopK and the second term: Gao et al., "Scaling and evaluating sparse autoencoders", arXiv 2406.04093.
BatchTopK: Bussmann, Leask, Nanda, "BatchTopK Sparse Autoencoders", arXiv 2412.06410.

    python simclr.py --out runs/my-run                   any run of an image method will do
    python sae.py runs/my-run --out runs/my-sae          k = 8, K = 4·d
    python sae.py runs/my-run --topk 32 --batch-topk
    python look.py runs/my-sae                           what each unit stands for

Measured on SimCLR's runs on the built-in data set (results/shapes-sparsity-sae-8-seed*): 98.8 ± 0.2 % of the variance
explained, linear probe on the code 60.8 ± 1.6 % (mean ± std of seeds 1 to 4; 12 s on one thread of an Intel Xeon).

Differences from the authors' code: 1. one mean and one scale for all images (theirs: each input has norm 1); 2. no bias
in the encoder: as x is centred, a dead unit's W_enc (x − b) is positive on some images, from which it can come back;
3. columns are normalised after a step, their gradients are not projected; 4. a unit is dead when it was idle for a pass
over the images (theirs: for millions of tokens); 5. b starts at 0; the rate falls along a cosine.
"""
import json
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

OF_THE_RUN = "dataset", "limit", "arch", "image_size", "min_scale", "jitter", "gray", "blur", "crop"  # taken over


def top_k(a, k):
    """The k largest of each row of a (N, K), if positive; the others 0."""
    values, index = a.topk(k, 1)
    return torch.zeros_like(a).scatter(1, index, values.relu())


def batch_top_k(a, k):
    """The k·N largest entries of a (N, K), if positive; the others 0."""
    values, index = a.flatten().topk(k * len(a))
    return torch.zeros_like(a).flatten().scatter(0, index, values.relu()).view_as(a)


class SAE(nn.Module):
    """Images (N, 3, S, S) → representation h (N, d) of the backbone and its code z (N, K) ≥ 0."""

    def __init__(self, backbone, d, K, k, batch_topk=False):
        super().__init__()
        self.backbone, self.k, self.batch_topk = backbone, k, batch_topk
        self.W_dec = nn.Parameter(F.normalize(torch.randn(d, K), dim=0))
        self.W_enc = nn.Parameter(self.W_dec.detach().T.clone())  # (K, d)
        self.b = nn.Parameter(torch.zeros(d))
        self.register_buffer("mean", torch.zeros(d))  # of h
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("threshold", torch.zeros(()))  # BatchTopK's
        self.register_buffer("idle", torch.zeros(K))  # images since a unit was last active

    def standard(self, h):
        """h (N, d) → x (N, d)."""
        return (h - self.mean) / self.scale

    def scores(self, x):
        """x (N, d) → what the units compete with, (N, K)."""
        return (x - self.b) @ self.W_enc.T

    def encode(self, x):
        """x (N, d) → z (N, K), of a trained autoencoder."""
        a = self.scores(x)
        return a * (a > self.threshold) if self.batch_topk else top_k(a, self.k)

    def decode(self, z):
        """z (N, K) → x̂ (N, d)."""
        return z @ self.W_dec.T + self.b

    def forward(self, images):
        h = self.backbone(images).float()  # (N, d)
        return h, self.encode(self.standard(h))

    @torch.no_grad()
    def update(self, z, step):
        """After an optimizer's step (from 0) that saw codes z (N, K): norms of the columns, idle units, threshold."""
        self.W_dec.copy_(F.normalize(self.W_dec, dim=0))
        self.idle.copy_(torch.where(z.any(0), 0, self.idle + len(z)))
        smallest = z.where(z > 0, torch.inf).amin()
        smallest = torch.where(z.any(), smallest, self.threshold)
        self.threshold.lerp_(smallest, max(0.01, 1 / (step + 1)))  # a mean over the last hundred steps


def sae_loss(sae, x, dead, weight):
    """The loss of x (N, d), in shares of mean ‖x‖²; "unexplained", its first term; and z (N, K). dead (K,): the units
    that shall come back."""
    a = sae.scores(x)  # (N, K)
    z = batch_top_k(a, sae.k) if sae.batch_topk else top_k(a, sae.k)
    e = x - sae.decode(z)  # (N, d)
    unexplained, rest = e.square().sum(1).mean(), e.detach()
    revived = top_k(a.masked_fill(~dead, -torch.inf), min(len(dead), max(1, x.shape[1] // 2)))  # ReLU makes -inf 0
    auxiliary = (rest - revived @ sae.W_dec.T).square().sum() / rest.square().sum().clamp(min=1e-12)
    return unexplained + weight * dead.any() * auxiliary, unexplained, z


@torch.no_grad()
def representations(backbone, images, size, device):
    """h (M, d) of images (M, 3, H, W) uint8, which are not augmented."""
    backbone.eval()
    return torch.cat([backbone(common.eval_view(part.to(device), size)).float() for part in images.split(500)])


@torch.no_grad()
def reconstruction(sae, h, z):
    """How well codes z (N, K) tell h (N, d): the share of its variance, and mean ‖h − ĥ‖²."""
    error = sae.scale.square() * (sae.standard(h) - sae.decode(z)).square().sum(1).mean()
    explained = 1 - error / (h - h.mean(0)).square().sum(1).mean()
    return {"explained_variance": explained.item(), "reconstruction_error": error.item()}


def network(args):
    """The model that the settings of a run describe."""
    backbone, d = common.resnet(args.arch, args.image_size)
    K = args.units or 4 * d
    if args.topk > K:
        raise common.BadInput(f"--topk {args.topk}: there are {K} units")
    return SAE(backbone, d, K, args.topk, args.batch_topk)


def parser():
    """The command line."""
    flags = common.Parser(__file__, __doc__)
    add, positive = flags.add_argument, common.within(0, kind=int)
    add("run", nargs="?", help="folder of a finished run, whose backbone.pt is read")
    add("--data-root", help="folder of the data sets (default: the run's)")
    add("--topk", type=positive, default=8, help="k: active units of an image (default: 8)")
    add("--batch-topk", action="store_true", help="k units on average over a batch, not of each image")
    add("--units", type=positive, help="K (default: 4·d)")
    add("--epochs", type=common.within(0, kind=int), default=200, help="passes over the features (default: 200)")
    add("--batch-size", type=positive, default=256, help="images per step (default: 256)")
    add("--lr", type=common.within(0), default=3e-3, help="peak learning rate of Adam (default: 3e-3)")
    add("--aux-weight", type=common.within(0, closed=True), default=1 / 32, help="α (paper: 1/32)")
    add("--seed", type=common.within(-1, 2**32, int), default=1, help="of the weights and the order of the images")
    add("--checkpoint-every", type=positive, default=100, help="epochs between checkpoints (default: 100)")
    flags.set_defaults(precision="fp32", eval_only=None)
    return flags


def inherit(args):
    """Complete the settings by those of the run whose features are taken: data and network. BadInput where none is."""
    if not args.run:
        raise common.BadInput("whose features? Give the folder of a finished run")
    folder = Path(args.resume or args.run)  # a run that goes on has them too
    try:
        config = json.loads((folder / "config.json").read_text())
        vars(args).update({key: config[key] for key in OF_THE_RUN}, data_root=args.data_root or config["data_root"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise common.BadInput(f"{folder} is no run of an image method ({type(error).__name__}: {error})")


def main(argv=None):
    args = parser().parse(argv)
    inherit(args)
    if common.world() > 1:
        raise common.BadInput("one process is enough: start it without torchrun")
    torch.manual_seed(args.seed)
    data = common.load_data(args.dataset, args.data_root, limit=args.limit, device=args.device)
    steps = data.steps(args.batch_size)  # in an epoch
    sae = network(args).to(args.device, memory_format=torch.channels_last)
    begun = args.resume and (Path(args.resume) / "checkpoint.pt").exists()  # which has the backbone too
    try:
        begun or sae.backbone.load_state_dict(common.load_checkpoint(Path(args.run) / "backbone.pt"))
    except (RuntimeError, TypeError) as error:
        raise common.BadInput(f"{args.run}/backbone.pt does not fit its config.json ({error})")
    optimizer = torch.optim.Adam([sae.W_enc, sae.W_dec, sae.b], lr=args.lr, fused=True)
    run = common.Run(args)
    done = run.restore(sae, optimizer)
    h = representations(sae.backbone, data.images, args.image_size, args.device)  # (M, d)
    if not begun:
        sae.mean.copy_(h.mean(0))
        sae.scale.copy_((h - sae.mean).square().sum(1).mean().sqrt())
    if not sae.scale > 0:
        raise common.BadInput(f"{args.run}: the features of all images are alike")
    x = sae.standard(h)

    for epoch in range(done, args.epochs):  # from the first that is not done yet
        run.seed(epoch)
        log, order = [], torch.randperm(len(x))[: steps * args.batch_size].view(steps, -1).to(x.device)
        for step, index in enumerate(order, epoch * steps):
            optimizer.zero_grad()
            dead = sae.idle >= len(x)
            loss, unexplained, z = sae_loss(sae, x[index], dead, args.aux_weight)

            loss.backward()
            common.set_lr(optimizer, common.lr_at(step, args.epochs * steps))
            optimizer.step()
            sae.update(z, step)
            log.append(dict(loss=loss.detach(), unexplained=unexplained.detach(), dead=dead.float().mean()))
        run.end_epoch(epoch, log, sae, optimizer)
    metrics, h, z = common.evaluate(run, data, sae)
    metrics |= reconstruction(sae, h, z) | {"dead_units": int((sae.idle >= len(x)).sum())}
    run.finish(metrics, sae.backbone)
    print("{explained_variance:.1%} of the variance of h explained, mean ‖h − ĥ‖² {reconstruction_error:.4g}; "
          "{dead_units} units were idle in the last pass over the training images".format_map(metrics))


if __name__ == "__main__":
    common.launch(main)
