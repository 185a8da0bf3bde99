"""Semi-supervised fine-tuning: the whole backbone of a run and a new linear classifier, on a share of the labels.

    python tools/finetune.py runs/<run>                      1 % and 10 % of the labels: [SparseHead] Table 2
    python tools/finetune.py runs/<run> --labels 1           all of them
    python tools/finetune.py runs/<run> --from-scratch       the same of random weights, as a control

As many labels of every class, random crops and flips, SGD with momentum and cosine decay, top-1 and top-5 on the test
set. Works on a copy of backbone.pt, of a run of any method; config.json tells the data set, the network and the crops.
Prints a table, and adds its rows to finetune.json in the run's folder.
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
    """Indices of a share of the labels y (N,): the same number of every class, at least one, drawn with `seed`."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    classes = y.unique()
    count = max(1, round(share * len(y) / len(classes)))
    return torch.cat([order[y[order] == c][:count] for c in classes])


def read_run(folder: Path, from_scratch: bool) -> tuple[argparse.Namespace, nn.Module, int]:
    """A run's settings, its backbone (with random weights: from_scratch) and d; BadInput for a folder without them."""
    try:
        run = argparse.Namespace(**json.loads((folder / "config.json").read_text()))
        backbone, d = common.resnet(run.arch, run.image_size, getattr(run, "zero_init_residual", False))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise common.BadInput(f"{folder} is not a run of an image method ({type(error).__name__}: {error})")
    if from_scratch:
        return run, backbone, d
    if not (folder / "backbone.pt").exists():
        raise common.BadInput(f"{folder} has no backbone.pt: the run has not finished")
    weights = common.load_checkpoint(folder / "backbone.pt")
    try:
        backbone.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        raise common.BadInput(f"{folder / 'backbone.pt'} is not the {run.arch} of config.json ({error})")
    return run, backbone, d


def finetune(backbone: nn.Module, d: int, data: common.Data, chosen: Tensor, run, args) -> tuple[float, float]:
    """Train the backbone, in place, with a linear classifier on the training images of indices `chosen`; → top-1 and
    top-5 in % on the test set. run: image_size, min_scale, crop; args: epochs, lr, classifier_lr, seed."""
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(backbone, nn.Linear(d, int(data.y_train.max()) + 1)).to(device)
    optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": args.lr},
                                 {"params": model[1].parameters(), "lr": args.classifier_lr}], momentum=0.9)
    batch = min(64, len(chosen))
    steps = len(chosen) // batch  # of an epoch, without the incomplete last batch
    for epoch in range(args.epochs):
        model.train()
        for step, index in enumerate(chosen[torch.randperm(len(chosen))].split(batch)[:steps], epoch * steps):
            x = data.x_train[index].to(device).float() / 255  # (n, 3, H, W)
            boxes = common.random_boxes(len(x), *x.shape[2:], run.min_scale, device)
            x = common.resized_crop(x, *boxes, run.image_size, common.chance(0.5, x).flatten(), run.crop).clamp(0, 1)
            loss = F.cross_entropy(model(common.normalise(x)), data.y_train[index].to(device))

            common.set_lr(optimizer, common.lr_at(step, args.epochs * steps))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        views = (common.eval_view(x.to(device), run.image_size) for x in data.x_test.split(500))
        scores = torch.cat([model(x) for x in views])  # (N, C)
    right = scores.topk(min(5, scores.shape[1]), 1).indices == data.y_test.to(device)[:, None]
    return 100 * right[:, 0].float().mean().item(), 100 * right.any(1).float().mean().item()


def share(text: str) -> float:
    """An argparse type: a number above 0, at most 1."""
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share of the labels: above 0, at most 1")
    return float(text)


def main(argv=None):
    flags = argparse.ArgumentParser(prog="finetune.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("run", type=Path, help="folder of a run")
    flags.add_argument("--labels", type=share, nargs="+", default=[0.01, 0.1], metavar="SHARE",
                       help="shares of the training labels, above 0, at most 1 (default, as in the paper: 0.01 0.1)")
    flags.add_argument("--from-scratch", action="store_true", help="start from random weights")
    flags.add_argument("--epochs", type=common.within(0, kind=int), default=50, help="passes over those labels")
    flags.add_argument("--lr", type=common.within(0), default=0.02, help="peak learning rate of the backbone")
    flags.add_argument("--classifier-lr", type=common.within(0), default=0.5, help="of the new classifier")
    flags.add_argument("--seed", type=common.within(-1, 2**32, int), default=1, help="of labels, weights and crops")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    args = flags.parse_args(argv)

    run = read_run(args.run, args.from_scratch)[0]
    data = common.load_data(run.dataset, args.data_root or run.data_root, limit=run.limit)
    if data.y_train is None:
        raise common.BadInput(f"fine-tuning needs labels, and {data.name} has none")
    path, rows = args.run / "finetune.json", [["start", "share", "labels", "top-1", "top-5"]]
    found = json.loads(path.read_text()) if path.exists() else []
    for part in args.labels:
        torch.manual_seed(args.seed)
        _, backbone, d = read_run(args.run, args.from_scratch)  # each share starts from the same weights
        chosen = balanced_subset(data.y_train, part, args.seed)
        top1, top5 = finetune(backbone, d, data, chosen, run, args)
        start = "random weights" if args.from_scratch else "backbone.pt"
        found.append(dict(start=start, share=part, labels=len(chosen), top1=top1, top5=top5, epochs=args.epochs,
                          lr=args.lr, classifier_lr=args.classifier_lr, seed=args.seed))
        rows.append([start, f"{100 * part:g} %", str(len(chosen)), f"{top1:.1f}", f"{top5:.1f}"])
        with common.replacing(path) as file:
            file.write(json.dumps(found, indent=1).encode() + b"\n")
    print(common.markdown(rows))


if __name__ == "__main__":
    common.launch(main)
