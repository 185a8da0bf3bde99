"""SimCLR as lightly documents it (its examples/pytorch/simclr.py: transform, batch, optimizer, temperature, head), with
our data, backbone and evaluation: what tools/benchmark.py sets beside simclr.py.

    pip install lightly
    python tools/lightly_simclr.py --dataset cifar10 --limit 10000 --arch resnet8 --epochs 10 --seed 1

Images are cropped to 32 pixels and normalised with our two numbers, so that one evaluation serves both. Everything is
float32, as there. Prints the last epoch's images/s and, where there are labels, kNN and linear probe.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision.transforms.v2.functional import to_pil_image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402
import simclr  # noqa: E402


class Views(torch.utils.data.Dataset):
    """Two views of PIL images, one image at a time."""
    def __init__(self, images, transform):
        self.images, self.transform = [to_pil_image(x) for x in images], transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.transform(self.images[i])


def main(argv=None):
    flags = argparse.ArgumentParser(prog="lightly_simclr.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--dataset", default="shapes", help="as of simclr.py (default: shapes)")
    flags.add_argument("--data-root", default="data", help="folder of the data sets (default: data)")
    flags.add_argument("--limit", type=common.within(255, kind=int), help="train on N images only")
    flags.add_argument("--arch", default="resnet8", choices=["resnet8", "resnet20", "resnet18"], help="backbone")
    flags.add_argument("--epochs", type=common.within(0, kind=int), default=10, help="default: 10")
    flags.add_argument("--seed", type=int, default=1, help="of weights, views and the order of the images")
    flags.add_argument("--workers", type=int, default=torch.get_num_threads(), help="processes that make views")
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    args = flags.parse_args(argv)
    try:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import SimCLRProjectionHead
        from lightly.transforms.simclr_transform import SimCLRTransform
    except ImportError:
        raise common.BadInput("lightly is not installed: pip install lightly")
    torch.manual_seed(args.seed)
    data = common.load_data(args.dataset, args.data_root, limit=args.limit)
    backbone, d = common.resnet(args.arch, 32)
    model = simclr.SimCLR(backbone, SimCLRProjectionHead(d, 512, 128)).to(args.device)
    transform = SimCLRTransform(input_size=32, gaussian_blur=0.0, normalize=dict(mean=[0.5] * 3, std=[0.25] * 3))
    loader = DataLoader(Views(data.images, transform), 256, shuffle=True, drop_last=True, num_workers=args.workers)
    criterion, optimizer = NTXentLoss(), torch.optim.SGD(model.parameters(), lr=0.06)
    for _ in range(args.epochs):
        start = time.perf_counter()
        for x0, x1 in loader:
            loss = criterion(model(x0.to(args.device))[1], model(x1.to(args.device))[1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found = dict(loss=loss.item(), images_per_s=len(loader) * 256 / (time.perf_counter() - start))
    if data.y_train is not None:
        pairs = [common.features(model, x, 32, args.device)[0] for x in (data.x_train, data.x_test)]
        train, test = zip(pairs, [y.to(args.device) for y in (data.y_train, data.y_test)])
        found["knn5"], found["knn200"] = common.knn_accuracy(*train, *test)
        found |= common.linear_probe(*train, *test)
    print(json.dumps(found))


if __name__ == "__main__":
    common.launch(main)
