# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.6", "torchvision>=0.21", "numpy>=2.0"]
# ///
"""SAE: a sparse autoencoder on a finished run's features, which adds sparsity to a fixed backbone.

    z = top_k(W_enc (x − b)) ≥ 0          code (K units)
    x̂ = W_dec z + b                       reconstruction; the columns of W_dec have norm 1
    e = x − x̂                             reconstruction error
    L = mean ‖e‖² + α · mean ‖e − ê‖² / mean ‖e‖² + λ · (1 − mean MonoScore)

x is the representation h of an image (d entries), centred and scaled so that mean ‖x‖² = 1.
TopK keeps the k largest scores of an image. In training, BatchTopK keeps the k·N largest of a batch
of N. Afterwards it keeps every score above a threshold: the average of the smallest score that a
batch kept.
The second term, with the weight α (--aux-weight), revives dead units, those that were 0 on as many
images as the data set has. ê = W_dec z' is their reconstruction of the error e, where z' are an
image's d/2 largest positive scores among them. If no unit is dead, the term is 0.
The third, MonoLoss, rewards units whose images are alike. Its weight λ (--mono-weight) is 0 by
default. A unit's MonoScore is the mean cosine of h over pairs of images, weighted by the product of
their activations, which are scaled to [0, 1] within the batch. (tools/interpret.py subtracts the
mean cosine of all pairs.)

With --frozen-decoder, a control, W_dec is drawn from a Gaussian with the covariance of x and stays
fixed; W_enc and b are trained. Comparing it with a trained W_dec at the same k shows how much of a
unit's numbers comes from learning the dictionary.

TopK and the second term: Gao et al., "Scaling and evaluating sparse autoencoders",
arXiv 2406.04093. BatchTopK: Bussmann, Leask, Nanda, "BatchTopK Sparse Autoencoders",
arXiv 2412.06410. MonoLoss: Nasiri-Sarvi et al., arXiv 2602.12403. The frozen decoder: Korznikov
et al., "Sanity Checks for Sparse Autoencoders", arXiv 2602.14111.

    python simclr.py --out runs/my-run                   any run of an image method will do
    python sae.py runs/my-run --out runs/my-sae          k = 8, K = 4·d
    python sae.py runs/my-run --topk 32 --batch-topk
    python sae.py runs/my-run --mono-weight 0.1
    python sae.py runs/my-run --frozen-decoder           the control
    python tools/look.py runs/my-sae                     what each unit stands for

What to expect on the built-in data: 99 % of the variance of h explained, three to fifteen of the
256 units dead, in 13 to 25 seconds on one CPU core.

Where we differ from the authors' code for TopK (O: sparse_autoencoder of openai) and BatchTopK (B:
BatchTopK of bartbussmann), from dictionary_learning of saprmarks, which has both (D), and in 14 to
16 from the code for MonoLoss (M: MonoLoss of AtlasAnalyticsLab):
1. x has one mean and one scale for all images (O, B: one for each input; D: at most a scale).
2. The encoder has no bias (O, D: one). As x is centred, a dead unit's score is positive on some
   images while b is small, so it can recover.
3. W_dec is drawn from a Gaussian (O, B, D: uniform). b starts at 0 (O, D: at the geometric median),
   W_enc at W_decᵀ (O, B: with other norms).
4. The second term is divided by the mean square of e (O, D: by its variance; B: by nothing).
5. The second term treats e as a constant, and trains b only through the scores (O: b through the
   decoder too; B: everything that e depends on).
6. z' has d/2 entries, as in D (O: 256 with d = 768; B: 512 with d = 768).
7. A unit is dead once it has been idle for as many inputs as there are images (O, D: 10,000,000
   inputs; B: 5 batches). Idle means 0 (O: 0.001 or less). This is decided before a step: a unit
   that becomes active in the step still counts as dead (O, B, D: no longer).
8. Columns of W_dec are normalised after a step (O, B: before it, so that they reach the next batch
   with other norms); gradients are not projected (O, B, D: they are).
9. The learning rate is 3e-3 and falls along a cosine (O: 1e-4; B: 3e-4; D: 2e-4 · √(16384 / K);
   all constant), without warm-up (D: 1,000 steps).
10. Adam has eps = 1e-8 (O: 6.25e-10) and β₂ = 0.999 (B: 0.99).
11. Gradients are not clipped (D: to norm 1).
12. The threshold is a running average from the first step on, over about a hundred steps; a batch
    that keeps nothing does not count (D: after 1,000 steps, over about a thousand; it counts as 0.
    B has no threshold and keeps the k·N largest of a batch outside training, too).
13. Batches have 256 images (O: 131,072 inputs; B: 4,096), in float32 (O: fp16).
14. The third term uses the pairs of 256 images (M: 2,048), so that a unit is active on few of them.
    If on exactly two, it learns nothing, because their cosine is its MonoScore.
    M's first term is ‖e‖² / ‖x‖² of each image, with x not centred: its λ acts like two to three
    times as much here.
15. A unit counts in it only if its pairs weigh 0.01 or more, and activations are divided by at
    least 0.001 (M: 1e-8 for both, below float32's rounding).
16. M's TopK ties W_enc to W_decᵀ, so that its third term trains the dictionary, too; here it trains
    W_enc and b alone. M also standardises each image's x, gives units biases, and draws dead ones
    anew.
"""

from pathlib import Path

import common

import torch
import torch.nn as nn
import torch.nn.functional as F

# ---------------------------------------------------------------------------------------- settings
PRESETS = {
    "default": dict(
        topk=8,  # k
        batch_topk=False,
        units=None,  # K; None is 4·d
        aux_weight=1 / 32,  # α
        mono_weight=0.0,  # λ
        frozen_decoder=False,
        epochs=200,
        batch_size=256,
        lr=3e-3,  # at its peak
        seed=1,
        precision="fp32",
        data_root=None,  # the run's
    )
}

# Settings taken over from the run whose features are used: those of its data and network; those of
# its views, and what some methods alone have, for the programs in tools/.
OF_ITS_NETWORK = "dataset", "limit", "arch", "image_size"
OF_SOME = "order", "zero_init_residual", "fingerprint"

LEAST_WEIGHT = 0.01  # of a unit's pairs of images in a batch; with less its MonoScore is noise


# ---------------------------------------------------------------------------------------- the loss
def top_k(a, k):
    """The k largest entries of each row of a (N, K), where positive; the others 0."""
    values, index = a.topk(k, 1)
    return torch.zeros_like(a).scatter(1, index, values.relu())


def batch_top_k(a, k):
    """The k·N largest entries of a (N, K), where positive; the others 0."""
    flat = a.flatten()
    values, index = flat.topk(k * len(a))
    return torch.zeros_like(flat).scatter(0, index, values.relu()).view_as(a)


def revival_loss(e, a, dead, W_dec):
    """The second term: the share of the error e (N, d) that dead units leave; 0 if none is dead.

    a: scores (N, K); dead: (K,), True for a dead unit; W_dec: (d, K).
    """
    K, d = len(dead), e.shape[1]
    of_dead = a.masked_fill(~dead, -torch.inf)
    z = top_k(of_dead, min(K, d // 2))  # z' (N, K), in which −inf has become 0
    rest = e - z @ W_dec.T  # (N, d)
    # Without dead units this is 1, not 0: hence the factor.
    share = rest.square().sum() / e.square().sum().clamp(min=1e-12)
    return share * dead.any()


def mono_loss(h, z):
    """The third term: 1 − MonoScore, mean over units whose pairs weigh enough; 1 without any.

    h: features (N, d); z: codes (N, K). Each unit's activations are scaled to [0, 1] in the batch.
    """
    # In float16 a squared sum over images may be infinite.
    kind = torch.promote_types(z.dtype, torch.float32)
    h, z = h.to(kind), z.to(kind)
    least, largest = z.amin(0), z.amax(0)  # (K,)
    scaled = (z - least) / (largest - least).clamp(min=1e-3)  # (N, K), of an idle unit 0
    directions = F.normalize(h)  # (N, d)
    # A squared sum over images has each pair twice, and each image with itself.
    with_itself = scaled.square().sum(0)  # (K,)
    weighted_cosines = ((scaled.T @ directions).square().sum(1) - with_itself) / 2
    weights = (scaled.sum(0).square() - with_itself) / 2
    mono_scores = weighted_cosines / weights.clamp(min=LEAST_WEIGHT)
    counts = weights >= LEAST_WEIGHT
    return 1 - (mono_scores * counts).sum() / counts.sum().clamp(min=1)


def sae_loss(sae, x, dead, aux_weight, mono_weight):
    """The loss L of x (N, d); the terms that are logged, by name; the codes z (N, K).

    The first term is the unexplained share of mean ‖x‖².
    dead: (K,), True for a dead unit; aux_weight: α; mono_weight: λ.
    """
    a = sae.scores(x)  # (N, K)
    if sae.batch_topk:
        z = batch_top_k(a, sae.k)
    else:
        z = top_k(a, sae.k)
    e = x - sae.decode(z)  # (N, d)
    loss = e.square().sum(1).mean()
    terms = {"unexplained": loss.detach()}
    # A CPU asks whether any unit is dead, and may spare the second term. A GPU would wait.
    if not common.can_be_asked(x) or dead.any():
        loss = loss + aux_weight * revival_loss(e.detach(), a, dead, sae.W_dec)
    if mono_weight > 0:
        third = mono_loss(sae.original(x), z)
        loss = loss + mono_weight * third
        terms["mono_loss"] = third.detach()
    return loss, terms, z


# --------------------------------------------------------------------------------------- the model
class Autoencoder(nn.Module):
    """Features h (N, d), as x of scale 1 → code z (N, K) ≥ 0 with k active units → x̂ (N, d)."""

    def __init__(self, d, K, k, batch_topk=False):
        super().__init__()
        self.k = k
        self.batch_topk = batch_topk

        W = F.normalize(torch.randn(d, K), dim=0)
        self.W_dec = nn.Parameter(W)  # (d, K)
        self.W_enc = nn.Parameter(W.T.clone())  # (K, d)
        self.b = nn.Parameter(torch.zeros(d))
        self.register_buffer("mean", torch.zeros(d))  # of h
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("threshold", torch.zeros(()))  # BatchTopK's
        idle = torch.zeros(K, dtype=torch.long)  # images since a unit was last active
        self.register_buffer("idle", idle)

    @torch.no_grad()
    def fit_standard(self, h):
        """Take mean and scale from h (M, d), by which mean ‖x‖² becomes 1."""
        self.mean.copy_(h.mean(0))
        self.scale.copy_((h - self.mean).square().sum(1).mean().sqrt())

    @torch.no_grad()
    def draw_dictionary(self, x):
        """Draw W_dec from a Gaussian with the covariance of x (M, d); W_enc is its transpose."""
        draws = torch.randn(len(x), self.W_dec.shape[1], device=x.device)  # (M, K)
        self.W_dec.copy_(F.normalize(x.T @ draws, dim=0))
        self.W_enc.copy_(self.W_dec.T)

    def standard(self, h):
        """h (N, d) → x (N, d)."""
        return (h - self.mean) / self.scale

    def original(self, x):
        """x (N, d) → h (N, d)."""
        return x * self.scale + self.mean

    def scores(self, x):
        """x (N, d) → what the units compete with, (N, K)."""
        return (x - self.b) @ self.W_enc.T

    def encode(self, x):
        """x (N, d) → z (N, K), of a trained autoencoder."""
        a = self.scores(x)
        if self.batch_topk:
            return a * (a > self.threshold)
        return top_k(a, self.k)

    def decode(self, z):
        """z (N, K) → x̂ (N, d)."""
        return z @ self.W_dec.T + self.b

    @torch.no_grad()
    def update(self, z, step):
        """What follows step `step` of the optimizer, from 0, whose codes were z (N, K)."""
        if self.W_dec.requires_grad:
            self.W_dec.copy_(F.normalize(self.W_dec, dim=0))

        active = z > 0
        self.idle.add_(len(z))
        self.idle.masked_fill_(active.any(0), 0)

        # BatchTopK's threshold: the running mean of the smallest entry that a batch kept.
        smallest = torch.where(active, z, torch.inf).min()
        # A batch that kept nothing leaves it as it is: at 0 in the first step.
        smallest = torch.where(active.any(), smallest, self.threshold)
        # The plain mean of the first hundred steps, then an exponential one of about as many.
        share = max(0.01, 1 / (step + 1))
        self.threshold.lerp_(smallest, share)


class SAE(Autoencoder):
    """Images (N, 3, S, S) → representation h (N, d) of the backbone, code z (N, K) ≥ 0."""

    def __init__(self, args):
        backbone, d = common.resnet(args.arch, args.image_size)
        K = args.units or 4 * d
        if args.topk > K:
            raise common.BadInput(f"--topk {args.topk}: there are {K} units")
        super().__init__(d, K, args.topk, args.batch_topk)
        self.backbone = backbone

    def forward(self, images):
        h = self.backbone(images).float()  # (N, d)
        x = self.standard(h)
        return h, self.encode(x)


network = SAE  # tools/ find the model of any method by this name


@torch.no_grad()
def representations(backbone, images, args):
    """h (M, d) of images (M, 3, H, W) uint8, which are not augmented."""
    backbone.eval()
    all_h = []
    for part in images.split(500):
        view = common.eval_view(part.to(args.device), args.image_size)
        all_h.append(backbone(view).float())
    return torch.cat(all_h)


@torch.no_grad()
def reconstruction(sae, h, z):
    """How well codes z (N, K) reconstruct h (N, d): share of its variance, and mean ‖h − ĥ‖²."""
    e = sae.standard(h) - sae.decode(z)  # (N, d)
    error = sae.scale.square() * e.square().sum(1).mean()
    variance = (h - h.mean(0)).square().sum(1).mean()
    explained = 1 - error / variance
    return {"explained_variance": explained.item(), "reconstruction_error": error.item()}


# ------------------------------------------------------------------------------------- the program
def parser():
    """The command line: the flags every program has, then this method's. Defaults: PRESETS."""
    flags = common.Parser(__file__, __doc__, PRESETS)
    count = common.number(int, 1)
    weight = common.number(float, 0)
    add = flags.add_argument
    add("run", nargs="?", help="folder of a finished run, whose backbone.pt is read")
    add("--data-root", help="folder of the data sets (default: the run's)")
    add("--topk", type=count, help="k: at most so many active units of an image")
    add(
        "--batch-topk", action="store_true", help="k units on average in a batch, not of each image"
    )
    add("--units", type=count, help="K")
    add("--epochs", type=count, help="passes over the features")
    add("--batch-size", type=common.number(int, 2), help="images per step")
    add("--lr", type=common.number(float, 1e-12), help="peak rate of Adam")
    add("--aux-weight", type=weight, help="α (paper: 1/32)")
    add("--mono-weight", type=weight, help="λ (its authors': 0.09 to 0.9 with TopK)")
    add("--frozen-decoder", action="store_true", help="W_dec stays as it was drawn: a control")
    add("--seed", type=common.number(int, 0, 2**32 - 1), help="of weights and order")
    return flags


def inherit(args):
    """Take data and network over from the run whose features are used; BadInput where none is."""
    run = getattr(args, "run", None)
    common.need(run, "whose features? Give the folder of a finished run")
    settings = common.settings_of_run(Path(run))
    for key in (*OF_ITS_NETWORK, *common.VIEWS):
        common.need(key in settings, f"{run} is no run of an image method: it has no {key}")
        setattr(args, key, settings[key])
    for key in OF_SOME:
        if key in settings:
            setattr(args, key, settings[key])
    args.data_root = args.data_root or settings["data_root"]


def main(argv=None):
    args = parser().parse(argv)
    if not args.resume:
        inherit(args)
    common.need(common.WORLD == 1, "one process is enough: start it without torchrun")
    torch.manual_seed(args.seed)  # for the weights; run.epochs() seeds each epoch
    data = common.Data(args)
    steps = data.steps(args.batch_size)  # in an epoch
    total = args.epochs * steps

    sae = SAE(args).to(args.device, memory_format=torch.channels_last)
    sae.W_dec.requires_grad_(not args.frozen_decoder)
    backbone = Path(args.run, "backbone.pt")
    begun = args.resume and Path(args.resume, "checkpoint.pt").exists()
    if not begun:  # a checkpoint has the backbone too
        common.need(backbone.exists(), f"{args.run} has no backbone.pt: it has not finished")
        try:
            sae.backbone.load_state_dict(common.load_checkpoint(backbone))
        except RuntimeError as error:
            text = f"{backbone} does not fit its config.json ({error})"
            raise common.BadInput(text) from error
    trained = [w for w in (sae.W_enc, sae.W_dec, sae.b) if w.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=args.lr, fused=True)

    run = common.Run(args, data, sae, optimizer, knn=False)
    h = representations(sae.backbone, data.images, args)  # (M, d)
    if not begun:
        sae.fit_standard(h)
    least = 1e-5 * h.norm(dim=1).mean()  # below it features are equal but for rounding
    common.need(sae.scale > least, f"{args.run}: the features of all images are alike")
    x = sae.standard(h)  # (M, d)
    del h  # as large as x
    if args.frozen_decoder and not begun:
        sae.draw_dictionary(x)

    for epoch in run.epochs():  # those that are not done yet
        log = []
        order = torch.randperm(len(x))[: steps * args.batch_size]
        batches = order.view(steps, args.batch_size).to(x.device)
        for step, index in enumerate(batches, start=epoch * steps):
            common.set_lr(optimizer, common.lr_share(step, total))

            dead = sae.idle >= len(x)  # (K,)
            loss, terms, z = sae_loss(sae, x[index], dead, args.aux_weight, args.mono_weight)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sae.update(z, step)

            log.append(dict(loss=loss.detach(), **terms, dead=dead.float().mean()))
        run.end_epoch(log)

    metrics, h, z = common.evaluate(sae, data, args)
    metrics |= reconstruction(sae, h, z)
    dead = sae.idle >= len(x)
    metrics["dead_units"] = int(dead.sum())
    run.finish(metrics, h, z)
    explained = f"{metrics['explained_variance']:.1%} of the variance of h explained"
    error = f"mean ‖h − ĥ‖² {metrics['reconstruction_error']:.4g}"
    idle = f"{metrics['dead_units']} units are dead: idle for {len(x)} images"
    print(f"{explained}, {error}; {idle}")


if __name__ == "__main__":
    common.launch(main)
