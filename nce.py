# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.6", "torchvision>=0.21", "numpy>=2.0"]
# ///
"""NCE: cross-entropy on features that cannot be negative, NCL's version of supervised learning.

    f₊ = σ₊(f) ≥ 0,   L = −log softmax_y(f₊ · w_c), without bias
    --loss ce         L = −log softmax_y(f · w_c)
    f: the head's output;  w_c: the classifier's weights of class c;  y: the image's class

Wang, Zhang, Guo, Wang, "Non-negative Contrastive Learning", ICLR 2024, arXiv 2403.12459.
Cross-entropy contrasts an image's features with the weights w_c of the classes, as SimCLR
contrasts the views of images. The features h of a ResNet are means of a ReLU, never negative. So
without a projector (f = h) and with free weights, NCE with σ₊ = relu is cross-entropy itself; with
rep_relu only the gradient differs.

    python nce.py                            the built-in data set, on a laptop
    python nce.py --head mlp                 with a projector, where it differs from --loss ce
    python nce.py --dataset imagenet100 --weights non-negative      perhaps the paper's Fig. 4

What to expect of the first command: a linear probe of 99.5 % (labels train the network), after a
minute on one CPU core with bf16.

Where we differ from the paper, besides what common.py lists:
1. It has no code for NCE: the recipe is ours, the usual one of supervised training.
2. σ₊ may be meant for the class weights, too, as a reader supposes, unopposed, in issue 2 of its
   repository: --weights non-negative. Here they are free.
"""

import common

import torch
import torch.nn as nn
import torch.nn.functional as F

# ---------------------------------------------------------------------------------------- settings
# Ours, as supervised training on CIFAR and ImageNet usually is; the heads are NCL's.
# fmt: off
PRESETS = common.presets({
    "preset":       ["cifar10 cifar100", "imagenet100", "shapes",   "default"],
    "arch":         ["resnet18",         "resnet18",    "resnet8",  "resnet18"],
    "image_size":   [32,                 224,           32,         32],
    "head":         ["none",             "none",        "none",     "none"],
    "head_hidden":  [2048,               16384,         256,        512],
    "head_out":     [256,                2048,          256,        256],         # K
    "loss":         ["nce",              "nce",         "nce",      "nce"],
    "weights":      ["free",             "free",        "free",     "free"],
    "activation":   ["rep_relu",         "relu",        "rep_relu", "rep_relu"],  # σ₊
    "epochs":       [200,                100,           15,         100],
    "batch_size":   [128,                256,           256,        128],
    "optimizer":    ["sgd",              "sgd",         "adam",     "sgd"],
    "lr":           [0.1,                0.1,           3e-3,       0.06],        # at its peak
    "weight_decay": [5e-4,               1e-4,          0.0,        5e-4],
    "warmup":       [5.0,                5.0,           0.75,       1.0],         # epochs
    "min_scale":    [0.5,                0.08,          0.5,        0.5],         # of the area
    "jitter":       [0.0,                0.0,           0.0,        0.0],         # of colours
    "gray":         [0.0,                0.0,           0.0,        0.0],         # probability
    "blur":         [0.0,                0.0,           0.0,        0.0],         # probability
    "crop":         ["bicubic",          "bicubic",     "bilinear", "bilinear"],
})
# fmt: on


# ---------------------------------------------------------------------------------------- the loss
def class_scores(f, W):
    """Logits f · w_c (N, C) of features f (N, K) and class weights W (C, K)."""
    with torch.autocast(f.device.type, enabled=False):  # float32, whatever the caller's autocast
        return f.float() @ W.float().T


# --------------------------------------------------------------------------------------- the model
def rep_relu(z):
    """ReLU forward and GELU backward, so that a unit just below 0 can come back.

    Not from far below: GELU's slope is negative under −0.75 and nearly 0 under −4. In networks
    without BatchNorm we saw all units end there for all images; the loss then stays that of a
    random guess.
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


class NCE(nn.Module):
    """Images (N, 3, S, S) → h (N, d), f₊ (N, K), logits (N, C)."""

    def __init__(self, args):
        super().__init__()
        self.backbone, d = common.resnet(args.arch, args.image_size)
        K = d if args.head == "none" else args.head_out
        self.head = projection_head(args.head, d, args.head_hidden, K)
        self.classifier = nn.Linear(K, args.classes, bias=False)
        kind = "none" if args.loss == "ce" else args.activation
        if args.weights == "non-negative" and kind == "relu":
            self.classifier.weight.data.abs_()  # below 0 they would have no gradient
        self.activation = ACTIVATIONS[kind]
        self.weights = args.weights

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        f = self.head(h).float()  # (N, K); σ₊ is computed in float32
        f = self.activation(f)  # f₊
        return h, f, class_scores(f, self.class_weights())

    def class_weights(self):
        """W (C, K), with --weights non-negative σ₊ of it."""
        W = self.classifier.weight
        if self.weights == "non-negative":
            W = self.activation(W)
        return W


network = NCE  # tools/ find the model of any method by this name


# ------------------------------------------------------------------------------------- the program
def parser():
    """The command line: common flags, then this method's. PRESETS has their defaults."""
    flags = common.Parser(__file__, __doc__, PRESETS)
    flags.image_flags()
    count = common.number(int, 1)
    add = flags.add_argument
    add("--loss", choices=["nce", "ce"], help="ce: the features as they are")
    add(
        "--weights",
        choices=["free", "non-negative"],
        help="of the classes; non-negative: through σ₊",
    )
    add("--head", choices=["none", "mlp", "linear"], help="projector (the paper's Fig. 4 has none)")
    add("--head-hidden", type=count, help="its hidden units (of mlp)")
    add("--head-out", type=count, help="its outputs K (of mlp, linear)")
    add("--activation", choices=ACTIVATIONS, help="σ₊ of --loss nce")
    return flags


def main(argv=None):
    args = parser().parse(argv)
    can_be_negative = args.loss == "ce" or args.activation in ("none", "gelu", "leaky_relu")
    if args.weights == "non-negative" and can_be_negative:
        wanted = "--loss nce and an activation that is never negative"
        raise common.BadInput(f"--weights non-negative needs {wanted}")
    torch.manual_seed(args.seed)  # the same weights in each process; run.epochs() seeds each epoch
    data = common.Data(args, unlabelled=False)
    steps = data.steps(args.batch_size)  # in an epoch
    total = args.epochs * steps
    warmup = args.warmup * steps
    view_settings = {name: getattr(args, name) for name in common.VIEWS}

    args.classes = len(data.classes.get("y", []))
    needed = "cross-entropy needs labels of two classes or more"
    common.need(args.classes > 1, f"{args.dataset} has {args.classes} classes: {needed}")
    labels = data.train["y"].to(args.device)
    one_hot = torch.eye(args.classes, device=args.device)  # row c for class c

    model = NCE(args).to(args.device, memory_format=torch.channels_last)
    Optimizer = common.OPTIMIZERS[args.optimizer]
    optimizer = Optimizer(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)

    run = common.Run(args, data, model, optimizer)

    # run.compile: torch.compile with --compile, else nothing.
    one_view = run.compile(common.augment)
    net = run.compile(model)

    for epoch in run.epochs():  # those that are not done yet
        log = []
        batches = data.batches(args, epoch)
        for step, (images, index) in enumerate(batches, start=epoch * steps):
            common.set_lr(optimizer, common.lr_share(step, total, warmup))

            x = one_view(images, args.image_size, **view_settings)  # (N, 3, S, S)
            with torch.autocast(images.device.type, torch.bfloat16, enabled=run.bf16):
                _, f, logits = net(x)
            target = one_hot[labels[index]]  # (N, C)
            # Under torchrun each process has a part of the batch; the loss is of all parts. gather
            # joins matrices of floats alone, so labels go as one-hot rows.
            f, logits, target = common.gather(f, logits, target)
            loss = F.cross_entropy(logits, target)

            optimizer.zero_grad()
            loss.backward()
            common.average_gradients(model)
            optimizer.step()

            log.append(dict(loss=loss.detach(), **common.health(f)))
        run.end_epoch(log)

    if common.RANK == 0:
        metrics, h, f = common.evaluate(model, data, args)
        scores = class_scores(f, model.class_weights().detach())
        top1, top5 = common.top_1_and_5(scores, data.test["y"].to(f.device))
        run.finish(metrics | dict(top1=top1, top5=top5), h, f)
        print(f"The classifier itself: top-1 {top1:.1f} %, top-5 {top5:.1f} %")


if __name__ == "__main__":
    common.launch(main)
