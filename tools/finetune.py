"""Semi-supervised fine-tuning: the whole backbone of a run and a new linear classifier, on a share of the labels.

    python tools/finetune.py runs/<run>                      1 %, 10 % ([SparseHead] Table 2) and all of the labels
    python tools/finetune.py runs/<run> --from-scratch       the same of random weights, as a control
    python tools/finetune.py runs/<run> --lr 0.02            this rate instead of the best of --tune

As many labels of every class, random crops and flips, SGD with momentum, weight decay and cosine decay. The learning
rate is the one of --tune that does best on a tenth of the *training* images, which is left out for that; then all of
the share is trained on. (That choice reads labels beyond the share; --lr does without.) Works on a copy of backbone.pt,
of a run of any method; config.json tells the data set, the network and the crops. Prints top-1 and top-5 on the test
set and adds them to finetune.json in the run's folder.
"""
import argparse
import json
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402


def balanced_subset(y: Tensor, share: float, seed: int) -> Tensor:
    """Indices of a share of the labels y (N,): of every class the same number, but at least one and at most what there
    is, drawn with `seed`; a share of 1 is all of them."""
    if share == 1:
        return torch.arange(len(y))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    classes = y.unique()
    count = max(1, round(share * len(y) / len(classes)))
    return torch.cat([order[y[order] == c][:count] for c in classes])


def backbone_of(folder: Path, run: argparse.Namespace, from_scratch: bool) -> tuple[nn.Module, int]:
    """The backbone of a run, with random weights if from_scratch, and d."""
    backbone, d = common.resnet(run.arch, run.image_size, getattr(run, "zero_init_residual", False))
    if from_scratch:
        return backbone, d
    if not (folder / "backbone.pt").exists():
        raise common.BadInput(f"{folder} has no backbone.pt: the run has not finished")
    weights = common.load_checkpoint(folder / "backbone.pt")
    try:
        backbone.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        raise common.BadInput(f"{folder / 'backbone.pt'} is not the {run.arch} of config.json ({error})")
    return backbone, d


def finetune(backbone: nn.Module, d: int, data: common.Data, chosen: Tensor, run, args, lr: float) -> nn.Module:
    """Train the backbone, in place, with a linear classifier on the training images of indices `chosen`; → both as one.
    run: image_size, min_scale, crop; args: epochs, min_steps, classifier_lr, weight_decay, seed."""
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(backbone, nn.Linear(d, int(data.y_train.max()) + 1))
    model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": lr},
                                 {"params": model[1].parameters(), "lr": args.classifier_lr}],
                                momentum=0.9, weight_decay=args.weight_decay)
    batch = min(64, len(chosen))
    steps = len(chosen) // batch  # of an epoch, without the incomplete last batch
    epochs, bf16 = max(args.epochs, -(-args.min_steps // steps)), common.has_bf16(device)
    for epoch in range(epochs):
        model.train()
        for step, index in enumerate(chosen[torch.randperm(len(chosen))].split(batch)[:steps], epoch * steps):
            x = common.augment(data.x_train[index].to(device), run.image_size, run.min_scale, 0, 0, 0, run.crop)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                scores = model(common.normalise(x))
            loss = F.cross_entropy(scores.float(), data.y_train[index].to(device))

            common.set_lr(optimizer, common.lr_at(step, epochs * steps))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, y: Tensor, size: int) -> tuple[float, float]:
    """Top-1 and top-5 in % of a classifier of views of that size, on images of labels y."""
    model.eval()
    device = next(model.parameters()).device
    scores = torch.cat([model(common.eval_view(x.to(device), size)) for x in images.split(500)])  # (N, C)
    right = scores.topk(min(5, scores.shape[1]), 1).indices == y.to(device)[:, None]
    return 100 * right[:, 0].float().mean().item(), 100 * right.any(1).float().mean().item()


def tuned_lr(new_backbone, data: common.Data, chosen: Tensor, run, args) -> float:
    """The learning rate of args.tune with the best top-1 on a tenth of the training images when it is trained on the
    others of `chosen`; the smallest of equals."""
    order = torch.randperm(len(data.y_train), generator=torch.Generator().manual_seed(0))
    held = order < max(1, len(order) // 10)
    x, y, others, tried = data.x_train[held], data.y_train[held], chosen[~held[chosen]], {}
    others = others if len(others) else chosen  # too few labels to leave any out
    for lr in sorted(args.tune):
        tried[lr] = accuracy(finetune(*new_backbone(), data, others, run, args, lr), x, y, run.image_size)[0]
    return max(tried, key=tried.get)


def share(text: str) -> float:
    """An argparse type: a number above 0, at most 1."""
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share of the labels: above 0, at most 1")
    return float(text)


def main(argv=None):
    flags = argparse.ArgumentParser(prog="finetune.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    add = flags.add_argument
    add("run", type=Path, help="folder of a run")
    add("--labels", type=share, nargs="+", default=[0.01, 0.1, 1.0], metavar="SHARE", help="shares of the labels")
    add("--from-scratch", action="store_true", help="start from random weights")
    add("--epochs", type=common.within(0, kind=int), default=10, help="passes over those labels ([NCL]'s code: 30)")
    add("--min-steps", type=common.within(0, kind=int), default=300, help="more passes where these are fewer steps")
    add("--tune", type=common.within(0), nargs="+", default=[0.01, 0.05, 0.2], metavar="LR", help="peak rates to try")
    add("--lr", type=common.within(0), nargs="+", help="peak learning rate of the backbone, one or one for each share")
    add("--classifier-lr", type=common.within(0), default=0.1, help="of the new classifier ([NCL]'s code: 0.1)")
    add("--weight-decay", type=common.within(0, closed=True), default=1e-4, help="([NCL]'s code: 1e-4)")
    add("--seed", type=common.within(-1, 2**32, int), default=1, help="of labels, weights and crops")
    add("--data-root", help="folder of the data sets (default: the run's)")
    args = flags.parse_args(argv)
    if args.lr and len(args.lr) not in (1, len(args.labels)):
        raise common.BadInput(f"--lr has {len(args.lr)} values; give one, or one for each of --labels")

    run = common.read_run(args.run)
    data = common.labelled(run, args.data_root, "fine-tuning")
    path, rows = args.run / "finetune.json", [["start", "share", "labels", "rate", "top-1", "top-5"]]
    start = "scratch" if args.from_scratch else "finetune"

    def new_backbone():
        torch.manual_seed(args.seed)
        return backbone_of(args.run, run, args.from_scratch)  # every training starts from the same weights

    for i, part in enumerate(args.labels):
        chosen = balanced_subset(data.y_train, part, args.seed)
        lr = args.lr[i % len(args.lr)] if args.lr else tuned_lr(new_backbone, data, chosen, run, args)
        model = finetune(*new_backbone(), data, chosen, run, args, lr)
        top1, top5 = accuracy(model, data.x_test, data.y_test, run.image_size)
        found = common.read_json(path) if path.exists() else {}
        found |= {f"{start}_{part}_{name}": value for name, value in dict(top1=top1, top5=top5, lr=lr).items()}
        rows.append([start, f"{100 * part:g} %", str(len(chosen)), f"{lr:g}", f"{top1:.1f}", f"{top5:.1f}"])
        with common.replacing(path) as file:
            file.write(json.dumps(found, indent=1).encode() + b"\n")
    print(common.markdown(rows))


if __name__ == "__main__":
    common.launch(main)
