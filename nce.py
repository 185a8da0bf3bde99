"""NCE: cross-entropy on features that cannot be negative, NCL's version of supervised learning.

    f₊ = σ₊(f) ≥ 0,   L = −log softmax_y(f₊ · w_c),   no bias;   --loss ce: the same of f itself

Wang, Zhang, Guo, Wang, "Non-negative Contrastive Learning", ICLR 2024, arXiv 2403.12459: cross-entropy contrasts an
image's features with the weights of the classes, as SimCLR contrasts the views of images.

    python nce.py                                        the built-in data set, on a laptop
    python nce.py --head mlp                             with a projector, where it differs from --loss ce
    python nce.py --dataset imagenet100                  the setting of the paper's Fig. 4, without projector

Measured with the first command (results/shapes-nce-seed*): top-1 95.0 ± 4.1 %, Cons. 10.0 (cross-entropy: 95.1 ± 3.9,
10.1); with --head mlp 92.9 ± 1.3 %, Cons. 19.3 ± 0.7 (cross-entropy: 95.5 ± 2.6, 10.0). Mean ± std of seeds 1 to 5; 15
epochs in a minute on one thread of an Intel Xeon, bf16, torch 2.15, 2026-11-23. ImageNet-100 has not been measured yet.

Differences from the paper: common.py's, and 1. it has no code for NCE, so the recipe is the usual one of supervised
training; 2. whether σ₊ is applied to the class weights too it does not say: --weights; 3. the features of a ResNet are
means of a ReLU, never negative: without projector and with free weights NCE with σ₊ = relu *is* cross-entropy (a test),
and with rep_relu only the gradient differs.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import common

RECIPE = dict(  # ours, as supervised training on CIFAR usually is
    arch="resnet18", image_size=32, epochs=200, batch_size=128, optimizer="sgd", lr=0.1, weight_decay=5e-4,
    warmup=5.0, head="none", head_hidden=2048, head_out=256,
    activation="rep_relu",
    min_scale=0.5, jitter=0.0, gray=0.0, blur=0.0, crop="bicubic")
PRESETS = {  # what a data set's name stands for; any flag overrides
    "cifar10": RECIPE,
    "cifar100": RECIPE,
    "imagenet100": RECIPE | dict(
        image_size=224, epochs=100, batch_size=256, weight_decay=1e-4, head_hidden=16384, head_out=2048, min_scale=0.08,
        activation="relu",
    ),
    "shapes": RECIPE | dict(
        arch="resnet8", epochs=15, batch_size=256, optimizer="adam", lr=3e-3, weight_decay=0.0, warmup=0.75,
        head_hidden=256, crop="bilinear",
    ),
    "default": RECIPE | dict(  # any other data set, and short runs
        epochs=100, lr=0.06, warmup=1.0, head_hidden=512, crop="bilinear",
    ),
}
PRESETS["imagenet"] = PRESETS["imagenet100"] | dict(arch="resnet50")


def class_scores(f, W):
    """Logits f·w_c (N, C) of features f (N, K) and class weights W (C, K)."""
    with torch.autocast(f.device.type, enabled=False):  # float32, whatever the caller's autocast
        return f.float() @ W.float().T


ACTIVATIONS = {  # σ₊; rep_relu is ReLU forward and GELU backward, so that a unit that is off can come back
    "rep_relu": lambda z: F.gelu(z) - F.gelu(z).detach() + F.relu(z).detach(), "relu": F.relu, "gelu": F.gelu,
    "sigmoid": torch.sigmoid, "softplus": F.softplus, "exp": torch.exp, "leaky_relu": F.leaky_relu, "none": lambda z: z}


def projection_head(kind, d, hidden, K):
    """h (N, d) → z (N, K): mlp = Linear-ReLU-Linear, linear, or none (then K is d)."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, K))
    return nn.Linear(d, K) if kind == "linear" else nn.Identity()


class NCE(nn.Module):
    """Images (N, 3, S, S) → representation h (N, d), features f₊ (N, K), logits (N, C)."""

    def __init__(self, backbone, head, classifier, activation="rep_relu", weights="free"):
        super().__init__()
        self.backbone, self.head, self.classifier = backbone, head, classifier
        self.activation, self.weights = activation, weights

    @property
    def W(self):
        """The weights (C, K) of the classes, through σ₊ where they shall not be negative."""
        W = self.classifier.weight
        return W if self.weights == "free" else ACTIVATIONS[self.activation](W)

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        f = ACTIVATIONS[self.activation](self.head(h).float())  # f₊
        return h, f, class_scores(f, self.W)


def network(args):
    """The model that the settings of a run describe."""
    backbone, d = common.resnet(args.arch, args.image_size)
    K = d if args.head == "none" else args.head_out
    head = projection_head(args.head, d, args.head_hidden, K)
    activation = "none" if args.loss == "ce" else args.activation
    return NCE(backbone, head, nn.Linear(K, args.classes, bias=False), activation, args.weights)


def accuracy(scores, y):
    """Top-1 and top-5 of logits (N, C) for labels y (N,), in %."""
    right = scores.topk(min(5, scores.shape[1]), 1).indices == y[:, None]
    return {"top1": 100 * right[:, 0].float().mean().item(), "top5": 100 * right.any(1).float().mean().item()}


def parser():
    """The command line: common flags, then this method's. Values that depend on the data set are in PRESETS."""
    flags = common.Parser(__file__, __doc__)
    flags.image_flags(PRESETS)
    add, positive = flags.add_argument, common.within(0, kind=int)
    add("--loss", choices=["nce", "ce"], default="nce", help="ce: the features as they are")
    add("--weights", choices=["free", "non-negative"], default="free", help="of the classes; non-negative: through σ₊")
    add("--head", choices=["none", "mlp", "linear"], help="projector (paper's Fig. 4: none)")
    add("--head-hidden", type=positive, help="its hidden units (NCL: 2048; 16384 on ImageNet-100)")
    add("--head-out", type=positive, help="its outputs K (NCL: 256; 2048 on ImageNet-100)")
    add("--activation", choices=ACTIVATIONS, help="σ₊ (NCL: rep_relu on CIFAR, relu on ImageNet-100)")
    return flags


def main(argv=None):
    args = parser().parse(argv)
    if args.loss == "ce" and args.weights != "free":
        raise common.BadInput("--weights non-negative belongs to --loss nce")
    torch.manual_seed(args.seed)
    data = common.load_data(args.dataset, args.data_root, limit=args.limit, device=args.device)
    data.x_unlabeled = None  # supervised: only what has labels
    steps = data.steps(args.batch_size)  # in an epoch
    args.classes = 0 if data.y_train is None else 1 + int(data.y_train.max())
    if args.classes < 2:
        raise common.BadInput(f"{data.name} has {args.classes} classes: cross-entropy needs labels, of two or more")

    model = network(args).to(args.device, memory_format=torch.channels_last)
    optimizer = common.OPTIMIZERS[args.optimizer](model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    run = common.Run(args)
    net = run.compile(run.parallel(model))
    one_view = run.compile(lambda x, **options: common.normalise(common.augment(x, args.image_size, **options)))
    labels = data.y_train.to(args.device)
    target_of = torch.eye(args.classes, device=args.device)  # one-hot: common.gather takes float matrices

    for epoch in range(run.restore(model, optimizer), args.epochs):  # from the first that is not done yet
        model.train()
        run.seed(epoch)
        log = []
        batches = data.batches(args.batch_size, args.seed, epoch, args.device)
        for step, (images, index) in enumerate(batches, epoch * steps):
            optimizer.zero_grad()
            x = one_view(images, min_scale=args.min_scale, jitter=args.jitter, gray=args.gray, blur=args.blur,
                         crop=args.crop)  # (N, 3, S, S)
            with torch.autocast(run.device.type, torch.bfloat16, enabled=run.bf16):
                h, f, logits = net(x)
            f, logits, target = common.gather(f, logits, target_of[labels[index]])  # of all processes, with gradient
            loss = F.cross_entropy(logits, target)

            loss.backward()
            common.set_lr(optimizer, common.lr_at(step, args.epochs * steps, args.warmup * steps))
            optimizer.step()
            log.append(dict(loss=loss.detach(), **common.health(f)))
        run.end_epoch(epoch, log, model, optimizer)
    if common.rank() == 0:
        metrics, h, f = common.evaluate(run, data, model)
        metrics |= accuracy(class_scores(f, model.W.detach()), data.y_test.to(f.device))
        run.finish(metrics, model.backbone)
        print(f"The classifier itself: top-1 {metrics['top1']:.1f} %, top-5 {metrics['top5']:.1f} %")


if __name__ == "__main__":
    common.launch(main)
