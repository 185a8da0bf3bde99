# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.11", "torchvision>=0.26", "numpy>=2.0"]
# ///
"""BayesNCL: NCL with a gate per dimension and image, to switch off what many images share.

    h = backbone(image),  z⁺ = σ₊(head(h)) ≥ 0
    α = sigmoid(gating(sg[h]) / T)         keep probability of each dimension, for each image
    m = 1[α > ½]                           straight-through estimator (STE): the gradient is α's
    L = NT-Xent(z⁺ ⊙ m) + λ · KL(Bern(α) ‖ Bern(ρ))
    σ₊: ReLU going forward;  NT-Xent: the loss of simclr.py;  sg: stop-gradient
    T: the gate's temperature;  ρ: prior probability of keeping a dimension;  λ: the KL's weight

Cui, Zhang, Hu, "Bayesian Gated Non-Negative Contrastive Learning", ICML 2026, arXiv 2605.28441.
The recipe is that of the NCL authors (arXiv 2403.12459), as in the paper.

    python bayesncl.py                                                    the built-in data set
    python bayesncl.py --dataset cifar100 --epochs 200                    the BayesNCL (STE) row
    python bayesncl.py --dataset cifar100 --epochs 200 --gate gumbel      the other row

Where we differ from the paper, besides what common.py lists:
1. Embeddings are normalised with eps = 1e-2.
2. The settings `shapes` and `default` are ours.
3. Only z⁺ ⊙ m is normalised, in the loss (theirs: z⁺ too, before the mask).
4. ρ = 0.8 and λ = 3e-5 are the authors' on CIFAR-100, ours elsewhere.
5. The similarity `ipw` is ours, to ask what the gate does.
6. ncl.py's TopK and spectral loss are not here: the paper has neither with a gate.
"""

import common

import torch
import torch.nn as nn
import torch.nn.functional as F

# ---------------------------------------------------------------------------------------- settings
NETWORK = dict(arch="resnet18", image_size=32, head_hidden=2048, head_out=256, gate_hidden=2048)
TRAINING = dict(  # warmup in epochs
    epochs=200, batch_size=256, optimizer="lars", lr=0.4, weight_decay=1e-4, warmup=10.0
)
METHOD = dict(temperature=0.2, activation="rep_relu", similarity="cosine", head="mlp")
GATE = dict(
    gate="ste",
    gate_layers=2,
    gate_temperature=1.0,
    gate_lr=0.1,
    prior=0.8,
    kl_weight=3e-5,
    detach=True,
)
# crop is the interpolation; gray and blur are probabilities.
VIEWS = dict(min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic")
PAPER = NETWORK | TRAINING | METHOD | GATE | VIEWS  # NCL's CIFAR recipe, with BayesNCL's gate

WIDE = dict(image_size=224, head_hidden=16384, head_out=2048, gate_hidden=16384)
HALF = dict(epochs=100, batch_size=128, lr=0.15)  # lr: 0.3 for a batch of 256
IMAGENET100 = PAPER | WIDE | HALF | dict(activation="relu")

SMALL = dict(arch="resnet8", head_hidden=256, gate_hidden=256)
FAST = dict(epochs=15, optimizer="adam", lr=3e-3, gate_lr=3e-2, weight_decay=0.0, warmup=0.75)
SHARP = dict(min_scale=0.2, blur=0.0, crop="bilinear")
SHAPES = PAPER | SMALL | FAST | SHARP

MEDIUM = dict(head_hidden=512)  # the gate stays as wide as the paper's
SGD = dict(epochs=100, batch_size=128, optimizer="sgd", lr=0.06, weight_decay=5e-4, warmup=1.0)
GENTLE = dict(min_scale=0.2, jitter=0.5, blur=0.0, crop="bilinear")
DEFAULT = PAPER | MEDIUM | SGD | GENTLE  # any other data set, and short runs

PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": PAPER,
    "cifar100": PAPER,
    "imagenet100": IMAGENET100,
    "imagenet": IMAGENET100 | dict(arch="resnet50"),  # ours: ImageNet-100's with ResNet-50
    "shapes": SHAPES,
    "default": DEFAULT,
}

# F.normalize divides by max(norm, EPS). With its usual 1e-12 a row of zeros, which NCL's embeddings
# may have, would get a gradient that is far too large.
EPS = 1e-2


# ---------------------------------------------------------------------------------------- the loss
def nt_xent(z1, z2, temperature):
    """NT-Xent (SimCLR, Eq. 1) in nats, the mean over 2N anchors.

    z1, z2: (N, K), the embeddings of two views of N images, not necessarily normalised.
    """
    assert z1.shape == z2.shape == (len(z1), z1.shape[-1]), (z1.shape, z2.shape)
    with torch.autocast(z1.device.type, enabled=False):  # float32, whatever the caller's autocast
        z = torch.cat([z1, z2]).float()  # (2N, K)
        z = F.normalize(z, dim=1, eps=EPS)
        logits = z @ z.T / temperature  # (2N, 2N): cosines / τ
        logits.fill_diagonal_(-torch.inf)  # a view is not compared with itself
    positive = torch.arange(len(z), device=z.device).roll(len(z1))  # (2N,): the other view of each
    return F.cross_entropy(logits, positive)


def bernoulli_kl(alpha, rho):
    """KL(Bern(α) ‖ Bern(ρ)) in nats: the sum over K dimensions, the mean over N images.

    alpha: (N, K). Both probabilities are clamped to [0.01, 0.99]; beyond, α has no gradient.
    """
    assert alpha.ndim == 2, alpha.shape
    alpha = alpha.float().clamp(0.01, 0.99)
    rho = min(max(rho, 0.01), 0.99)
    if_open = alpha * torch.log(alpha / rho)
    if_closed = (1 - alpha) * torch.log((1 - alpha) / (1 - rho))
    return (if_open + if_closed).sum(1).mean()


# --------------------------------------------------------------------------------------- the model
def rep_relu(z):
    """ReLU forward and GELU backward, so that a unit just below 0 can come back.

    Not from far below: under −0.75 GELU's slope is negative, under −4 all but 0. In a network
    without BatchNorm all units of all images may end there. All logits are then equal, and the
    loss rests at that of a guess.
    """
    soft = F.gelu(z)
    return (soft - soft.detach()) + F.relu(z).detach()  # the bracket is 0; its gradient is GELU's


ACTIVATIONS = {  # σ₊; gelu, leaky_relu and none can be negative, to compare with
    "rep_relu": rep_relu,
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "exp": torch.exp,
    "leaky_relu": F.leaky_relu,
    "none": nn.Identity(),
}


def projection_head(kind, d, hidden, K):
    """h (N, d) → z (N, K)."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, K))
    if kind == "linear":
        return nn.Linear(d, K)
    return nn.Identity()  # then K is d


def gating_head(d, hidden, K, layers=2):
    """h (N, d) → gate logits (N, K): linear layers with ReLU between them. The paper has two."""
    if layers == 1:
        return nn.Linear(d, K)
    if layers == 2:
        return nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, K))
    half = max(1, hidden // 2)
    return nn.Sequential(
        nn.Linear(d, hidden),
        nn.ReLU(),
        nn.Linear(hidden, half),
        nn.ReLU(),
        nn.Linear(half, K),
    )


def straight_through(alpha):
    """1[α > ½] forward, the identity backward."""
    hard = (alpha > 0.5).float()
    return hard + (alpha - alpha.detach())  # the bracket is 0, but its gradient is 1


def gate(logits, kind="ste", temperature=1.0, training=False):
    """Gate logits (N, K) → mask m (N, K) and keep probabilities α (N, K).

    ste       m = 1[α > ½]                                          the paper's first row
    gumbel    in training m = 1[sigmoid((logits + noise) / T) > ½]  its second row
    soft      m = α                                                 of its ablation
    none      m = 1: NCL; the KL term is still in the printed loss, but has no gradient

    Without training, gumbel is ste.
    """
    alpha = torch.sigmoid(logits / temperature)
    if kind == "none":
        return torch.ones_like(alpha), alpha.detach()
    if kind == "soft":
        return alpha, alpha
    if kind == "ste" or not training:
        return straight_through(alpha), alpha

    u = torch.rand_like(logits).clamp(1e-4, 1 - 1e-4)  # at 0 and 1 the noise is infinite
    noise = -torch.log(-torch.log(u))  # as in the authors' code; its mean of 0.58 opens gates
    noisy = torch.sigmoid((logits + noise) / temperature)
    return straight_through(noisy), alpha


class BayesNCL(nn.Module):
    """Images (N, 3, S, S) → h (N, d), z⁺ ⊙ m (N, K), m (N, K), α (N, K)."""

    def __init__(self, args):
        super().__init__()
        self.backbone, d = common.resnet(args.arch, args.image_size)
        K = d if args.head == "none" else args.head_out
        self.head = projection_head(args.head, d, args.head_hidden, K)
        self.gating = gating_head(d, args.gate_hidden, K, args.gate_layers)
        self.activation = ACTIVATIONS[args.activation]
        self.args = args
        # Of --similarity ipw: the running share of images with z_k > 0.
        self.register_buffer("frequency", torch.ones(K))

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        z = self.head(h).float()  # (N, K)
        z = self.activation(z)  # z⁺
        if self.args.similarity == "ipw":
            z = self.weighted_by_rarity(z)

        features = h.detach() if self.args.detach else h
        logits = self.gating(features).float()  # (N, K)
        m, alpha = gate(logits, self.args.gate, self.args.gate_temperature, self.training)
        # Not normalised here, only in the loss. Every normalisation divides the gradient of an
        # empty row by EPS; with two of them, our runs lost what they had learnt.
        return h, z * m, m, alpha

    def weighted_by_rarity(self, z):
        """z_k / √π_k, by which the cosine sums z_k z'_k / π_k; π_k: how often z_k > 0.

        Inverse probability weighting (ipw), ours: what many images share counts less.
        """
        if self.training:
            (active,) = common.gather((z > 0).float())
            # A running mean of about a hundred batches; a step has two, one of each view.
            self.frequency.lerp_(active.mean(0), 0.01)
        return z * self.frequency.clamp(min=0.01).rsqrt()  # no factor above 10


network = BayesNCL  # the name by which tools/ build the model of any method


# ------------------------------------------------------------------------------------- the program
def parser():
    """The command line: common flags, then this method's. Their defaults are in PRESETS."""
    flags = common.Parser(__file__, __doc__, PRESETS)
    flags.image_flags()
    count = common.number(int, 1)
    positive = common.number(float, 1e-12)
    add = flags.add_argument
    add("--temperature", type=positive, help="τ of NT-Xent (paper: 0.2)")
    add("--head", choices=["mlp", "linear", "none"], help="projection head")
    add("--head-hidden", type=count, help="its hidden units (paper: 2048; ImageNet-100: 16384)")
    add("--head-out", type=count, help="its outputs K (paper: 256; ImageNet-100: 2048)")
    add("--activation", choices=ACTIVATIONS, help="σ₊ (paper: rep_relu; ImageNet-100: relu)")
    gates = ["ste", "gumbel", "soft", "none"]
    add("--gate", choices=gates, help="m of α (paper: ste; none: NCL, no gate)")
    add("--gate-layers", type=int, choices=[1, 2, 3], help="of the gating head (paper: 2)")
    add("--gate-hidden", type=count, help="its hidden units (paper: 2048; ImageNet-100: 16384)")
    add("--gate-lr", type=positive, help="its peak learning rate (authors: 0.1)")
    add("--gate-temperature", type=positive, help="T of α")
    add(
        "--prior",
        type=common.number(float, 0, 1),
        help="ρ, prior probability that a dimension is kept (authors: 0.8)",
    )
    add("--kl-weight", type=common.number(float, 0), help="λ of the KL term (authors: 3e-5)")
    add("--no-detach", dest="detach", action="store_false", help="the gate trains the backbone too")
    add("--similarity", choices=["cosine", "ipw"], help="ipw: of z_k / √π_k")
    return flags


def main(argv=None):
    args = parser().parse(argv)
    torch.manual_seed(args.seed)
    data = common.Data(args)
    steps = data.steps(args.batch_size)  # in an epoch
    total = args.epochs * steps
    warmup = args.warmup * steps
    views = {name: getattr(args, name) for name in VIEWS}

    model = network(args).to(args.device, memory_format=torch.channels_last)
    Optimizer = common.OPTIMIZERS[args.optimizer]
    others = [*model.backbone.parameters(), *model.head.parameters()]
    gating = dict(params=list(model.gating.parameters()), lr=args.gate_lr)
    groups = [dict(params=others), gating]  # the gate has a learning rate of its own
    optimizer = Optimizer(groups, lr=args.lr, weight_decay=args.weight_decay)

    run = common.Run(args, data, model, optimizer)

    def contrast(z1, z2):
        return nt_xent(z1, z2, args.temperature)

    def both(v1, v2):
        return model(v1), model(v2)  # two calls: BatchNorm sees one view at a time

    # Compiled with --compile, else as they are.
    two_views = run.compile(common.two_views)
    both = run.compile(both)
    contrast = run.compile(contrast)

    for epoch in run.epochs():  # those that are not done yet
        log = []
        batches = data.batches(args, epoch)
        for step, (images, _) in enumerate(batches, start=epoch * steps):
            common.set_lr(optimizer, common.lr_share(step, total, warmup))

            v1, v2 = two_views(images, args.image_size, **views)  # (N, 3, S, S) each
            with torch.autocast(images.device.type, torch.bfloat16, enabled=run.bf16):
                (_, z1, m1, alpha1), (_, z2, _, alpha2) = both(v1, v2)
            # Under torchrun each process has a part of the batch; the loss is of all parts.
            z1, z2, m1, alpha1, alpha2 = common.gather(z1, z2, m1, alpha1, alpha2)

            kl = (bernoulli_kl(alpha1, args.prior) + bernoulli_kl(alpha2, args.prior)) / 2
            loss = contrast(z1, z2) + args.kl_weight * kl

            optimizer.zero_grad()
            loss.backward()
            common.average_gradients(model)
            optimizer.step()

            scalars = dict(loss=loss.detach(), kl=kl.detach(), open=m1.detach().mean())
            log.append(scalars | common.health(z1))
        run.end_epoch(log)

    if common.RANK == 0:
        run.finish(*common.evaluate(model, data, args))


if __name__ == "__main__":
    common.launch(main)
