"""Fine-tune a run's whole backbone and a new linear classifier, on a share of the labels.

    python tools/finetune.py runs/<run>                   1 %, 10 % ([SparseHead] Table 2) and all
    python tools/finetune.py runs/<run> --from-scratch    the same from random weights, as a control
    python tools/finetune.py runs/<run> --lr 0.02         this learning rate, without tuning

A copy of backbone.pt is trained on equally many labels of every class, with random crops and flips.
A run of any method will do, but nce.py's has seen all labels, and mmncl.py's captions. The data
set, network and crops are those in config.json. The program prints accuracies on the test set and
adds to finetune.json, in the run's folder, for every share
    finetune_<share>_top1, _top5    accuracies in %; scratch_... from random weights
    finetune_<share>_frozen         top-1 of a linear probe of the same labels, backbone as it is
    finetune_<share>_labels         how many labels that is
    finetune_<share>_lr, _tuned     the rate, and whether --tune chose it
    finetune_<share>_epochs, ...    the other flags, except --tune
A later call replaces the numbers of its shares.

A random tenth of the *training* images is held out. Each learning rate of --tune is tried on the
rest of the share and judged on that tenth. The best one is then used to train on the whole share.
So this choice uses labels beyond the share; with --lr none of these are used. With few labels and
strong crops fine-tuning may stay behind the frozen probe.

[NCL]'s code fine-tunes too, on all labels of CIFAR. Where we differ from it:
1. SGD with momentum 0.9 and a tuned rate, 0.1 for the classifier (theirs: LARS at 0.4 for both).
2. Batches of 64 (256), and 10 epochs or 300 steps, whichever is more (30 epochs).
3. Cosine decay from the first step on (after a warm-up of 10 epochs).
4. All weights decay (not biases and norms).
[NCL]: arXiv 2403.12459. [SparseHead]: arXiv 2307.08913.
"""

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
import interpret  # noqa: E402
import simsiam  # noqa: E402
from common import progress, read_json  # noqa: E402
from run_folder import labelled_data, load_backbone, read_run, write_json  # noqa: E402

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

SETTINGS = "epochs", "min_steps", "classifier_lr", "weight_decay", "seed"  # kept beside accuracies


def balanced_subset(y: Tensor, share: float, seed: int) -> Tensor:
    """Indices of a share of the labels y (N,), equally many of every class, drawn with `seed`.

    At least one of each class, and at most all that it has; a share of 1 takes everything.
    """
    if share == 1:
        return torch.arange(len(y))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    classes = y.unique()
    count = max(1, round(share * len(y) / len(classes)))
    chosen = []
    for c in classes:
        of_class = order[y[order] == c]
        chosen.append(of_class[:count])
    return torch.cat(chosen)


def new_backbone(
    folder: Path, run: argparse.Namespace, from_scratch: bool
) -> tuple[nn.Module, int]:
    """A run's backbone, with random weights if from_scratch, and d; BadInput if it has none."""
    backbone, d = common.resnet(run.arch, run.image_size)
    if getattr(run, "zero_init_residual", False):
        simsiam.zero_init(backbone)
    if not from_scratch:
        load_backbone(backbone, folder)
    return backbone, d


def finetune(
    backbone: nn.Module, d: int, data: common.Data, chosen: Tensor, run, args, lr: float
) -> nn.Module:
    """Train the backbone, in place, and a linear classifier; returns both as one network.

    chosen: indices of the training images
    run: image_size, min_scale, crop
    args: epochs, min_steps, classifier_lr, weight_decay, seed, device
    lr: peak rate of the backbone
    """
    common.need(len(chosen) > 1, "one label is too few: give --labels a larger share")
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    classifier = nn.Linear(d, int(data.train["y"].max()) + 1)
    model = nn.Sequential(backbone, classifier)
    model.to(device, memory_format=torch.channels_last)
    groups = [
        {"params": backbone.parameters(), "lr": lr},
        {"params": classifier.parameters(), "lr": args.classifier_lr},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=args.weight_decay)

    batch = min(64, len(chosen))
    steps = len(chosen) // batch  # in an epoch, without the incomplete last batch
    epochs = max(args.epochs, math.ceil(args.min_steps / steps))
    bf16 = common.has_bf16(device.type)
    model.train()
    for step in progress(range(epochs * steps), f"{len(chosen)} labels, rate {lr:g}: step"):
        if step % steps == 0:
            order = chosen[torch.randperm(len(chosen))]
            batches = order.split(batch)
        common.set_lr(optimizer, common.lr_share(step, epochs * steps))

        index = batches[step % steps]
        x = data.train["x"][index]
        if device.type == "cuda":
            x = x.pin_memory()  # it is copied to the GPU while that computes
        x = x.to(device, non_blocking=True)
        x = common.augment(
            x, run.image_size, run.min_scale, jitter=0, gray=0, blur=0, crop=run.crop
        )
        y = data.train["y"][index].to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            scores = model(x)  # (n, C)
        loss = F.cross_entropy(scores.float(), y)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor, size: int) -> Tensor:
    """What a network in eval mode gives of images, seen at `size` pixels: (N, ·), on its device."""
    model.eval()
    device = next(model.parameters()).device
    parts = []
    for x in progress(images.split(500), "evaluation, 500 images at a time:"):
        parts.append(model(common.eval_view(x.to(device), size)))
    return torch.cat(parts)


def accuracy(model: nn.Module, images: Tensor, y: Tensor, size: int) -> tuple[float, float]:
    """Top-1 and top-5 accuracy in % of a classifier, on images with labels y (N,)."""
    scores = outputs(model, images, size)
    return common.top_1_and_5(scores, y.to(scores.device))


def frozen_accuracy(backbone: nn.Module, data: common.Data, chosen: Tensor, size: int) -> float:
    """Top-1 in % of a linear probe of the backbone's features, by the labels of `chosen`."""
    train = outputs(backbone, data.train["x"][chosen], size)
    test = outputs(backbone, data.test["x"], size)
    y = data.train["y"][chosen].to(train.device)
    return common.linear_probe(train, y, test, data.test["y"].to(test.device))["lp1"]


def tuned_lr(start, data: common.Data, chosen: Tensor, run, args) -> float:
    """The rate of args.tune with the best top-1 on a held-out tenth of the training images.

    start: a function that returns the backbone to train and d
    Training uses the images of `chosen` outside that tenth. A tie goes to the smallest rate.
    """
    rank = torch.randperm(len(data.train["y"]), generator=torch.Generator().manual_seed(0))
    held = rank < max(1, len(rank) // 10)  # a random tenth
    others = chosen[~held[chosen]]
    if len(others) < 2:
        others = chosen  # too few labels to leave any out
    best_accuracy = -1.0
    for lr in sorted(args.tune):
        model = finetune(*start(), data, others, run, args, lr)
        top1, _ = accuracy(model, data.train["x"][held], data.train["y"][held], run.image_size)
        print(f"{len(others)} labels, rate {lr:g}: {top1:.1f} % on the held-out tenth", flush=True)
        if top1 > best_accuracy:
            best_accuracy = top1
            best_lr = lr
    if len(args.tune) > 1 and best_lr in (min(args.tune), max(args.tune)):
        print(f"rate {best_lr:g} is the last of --tune: one beyond it may be better")
    return best_lr


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        prog="finetune.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    positive = common.number(int, 1)
    rate = common.number(float, 1e-12)
    decay = common.number(float, 0)
    seed = common.number(int, 0, 2**32 - 1)
    shares = [0.01, 0.1, 1.0]
    rates = [0.01, 0.05, 0.2]
    of_lr = "peak learning rate of the backbone: one, or one for each share"
    add = flags.add_argument
    add("run", type=Path, help="folder of a run")
    add(
        "--labels",
        type=common.number(float, 1e-6, 1),
        nargs="+",
        default=shares,
        metavar="SHARE",
        help="shares of the labels",
    )
    add("--from-scratch", action="store_true", help="start from random weights")
    add("--epochs", type=positive, default=10, help="passes over the share")
    add(
        "--min-steps",
        type=positive,
        default=300,
        help="train at least this many steps, with more passes over a small share",
    )
    add(
        "--tune",
        type=rate,
        nargs="+",
        default=rates,
        metavar="LR",
        help="peak learning rates to try if there is no --lr",
    )
    add("--lr", type=rate, nargs="+", help=of_lr)
    add("--classifier-lr", type=rate, default=0.1, help="peak learning rate of the new classifier")
    add("--weight-decay", type=decay, default=1e-4, help="([NCL]'s code: 1e-4)")
    add("--seed", type=seed, default=1, help="random seed of labels, weights and crops")
    add("--data-root", help="folder of the data sets (default: the run's)")
    add("--device", default=common.DEVICE, help="cuda, cuda:1, cpu")
    return flags


def main(argv=None):
    args = parser().parse_args(argv)
    if args.lr and len(args.lr) not in (1, len(args.labels)):
        wanted = "give one, or one for each of --labels"
        raise common.BadInput(f"--lr has {len(args.lr)} values; {wanted}")

    common.check_device(args.device)
    run = read_run(args.run)
    data = labelled_data(run, args.data_root, "fine-tuning")
    path = args.run / "finetune.json"
    # If it is damaged or not ours, fail now and not after training.
    interpret.make_folder(args.run, {"finetune.json": b"_top1"})
    if path.exists():
        read_json(path)
    prefix = "scratch" if args.from_scratch else "finetune"

    def same_start():
        """Every training starts from the same weights."""
        torch.manual_seed(args.seed)
        return new_backbone(args.run, run, args.from_scratch)

    rows = [["start", "share", "labels", "rate", "top-1", "top-5", "frozen top-1"]]
    for i, share in enumerate(args.labels):
        chosen = balanced_subset(data.train["y"], share, args.seed)
        if args.lr:
            lr = args.lr[i % len(args.lr)]
        else:
            lr = tuned_lr(same_start, data, chosen, run, args)
        model = finetune(*same_start(), data, chosen, run, args, lr)
        finite = all(p.isfinite().all() for p in model.parameters())
        common.need(finite, f"at rate {lr:g} the weights are not finite: give a smaller --lr")
        top1, top5 = accuracy(model, data.test["x"], data.test["y"], run.image_size)
        untouched = same_start()[0].to(args.device)
        frozen = frozen_accuracy(untouched, data, chosen, run.image_size)
        shown = [f"{value:.1f}" for value in (top1, top5, frozen)]
        rows.append([prefix, f"{100 * share:g} %", str(len(chosen)), f"{lr:g}", *shown])

        results = {"top1": top1, "top5": top5, "lr": lr, "tuned": not args.lr}
        results |= {"frozen": frozen, "labels": len(chosen)}
        results |= {name: getattr(args, name) for name in SETTINGS}
        found = read_json(path) if path.exists() else {}
        for name, value in results.items():
            found[f"{prefix}_{share}_{name}"] = value
        write_json(path, found)
    print(interpret.markdown(rows))


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
