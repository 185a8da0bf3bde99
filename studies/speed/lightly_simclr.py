"""SimCLR as lightly documents it, which studies/speed/benchmark.py sets beside simclr.py.

    pip install lightly
    python studies/speed/lightly_simclr.py --dataset cifar10 --limit 10000 --epochs 10

Transform, batch, optimizer, temperature and head are those of lightly's
examples/pytorch/simclr.py; data, backbone and evaluation are ours. Images are cropped to 32 pixels
and normalised with our two numbers, so that one evaluation serves both. Everything is float32, as
there. Prints the last epoch's images/s and, where there are labels, kNN and linear probe.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2.functional import to_pil_image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import common  # noqa: E402
from common import progress  # noqa: E402

SIZE = 32  # pixels
BATCH_SIZE = 256


class Views(Dataset):
    """Two views of images (N, 3, H, W) uint8, made of one PIL image at a time."""

    def __init__(self, images, transform):
        self.images = [to_pil_image(image) for image in images]
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.transform(self.images[i])


class SimCLR(nn.Module):
    """Images (N, 3, S, S) → h (N, d), z (N, 128)."""

    def __init__(self, arch, projection_head):
        super().__init__()
        self.backbone, d = common.resnet(arch, SIZE)
        self.head = projection_head(d, 512, 128)

    def forward(self, x):
        h = self.backbone(x)  # (N, d)
        z = self.head(h)
        return h, z


def evaluate(model, data, device):
    """kNN and linear probe on the backbone's features, in %."""
    train, _ = common.features(model, data.train["x"], SIZE, device)
    test, _ = common.features(model, data.test["x"], SIZE, device)
    both = train, data.train["y"].to(device), test, data.test["y"].to(device)
    scores = {f"knn{k}": common.knn_accuracy(*both, k=k) for k in (5, 200)}
    return scores | common.linear_probe(*both)


def parser():
    """The command line."""
    flags = argparse.ArgumentParser(
        prog="lightly_simclr.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    archs = ["resnet8", "resnet20", "resnet18"]
    threads = torch.get_num_threads()
    add = flags.add_argument
    add("--dataset", default="shapes", help="as of simclr.py (default: shapes)")
    add("--data-root", default="data", help="folder of the data sets (default: data)")
    add("--limit", type=common.number(int, 256), help="train on N images only")
    add("--arch", default="resnet8", choices=archs, help="backbone")
    add("--epochs", type=common.number(int, 1), default=10, help="default: 10")
    add("--seed", type=int, default=1, help="of weights, views and the order of the images")
    add("--workers", type=int, default=threads, help="processes that make views")
    add("--device", default=common.DEVICE, help="cuda or cpu")
    return flags


def main(argv=None):
    args = parser().parse_args(argv)
    try:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import SimCLRProjectionHead
        from lightly.transforms.simclr_transform import SimCLRTransform
    except ImportError as error:
        raise common.BadInput("lightly is not installed: pip install lightly") from error
    torch.manual_seed(args.seed)
    data = common.Data(argparse.Namespace(**vars(args) | dict(device="cpu")))  # views need it there
    model = SimCLR(args.arch, SimCLRProjectionHead).to(args.device)

    ours = dict(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
    transform = SimCLRTransform(input_size=SIZE, gaussian_blur=0.0, normalize=ours)
    views = Views(data.images, transform)
    loader = DataLoader(views, BATCH_SIZE, shuffle=True, drop_last=True, num_workers=args.workers)
    criterion = NTXentLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)

    for _ in progress(range(args.epochs), "epochs"):
        start = time.perf_counter()
        for x0, x1 in loader:
            _, z0 = model(x0.to(args.device))
            _, z1 = model(x1.to(args.device))
            loss = criterion(z0, z1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds = time.perf_counter() - start

    found = dict(loss=loss.item(), images_per_s=len(loader) * BATCH_SIZE / seconds)
    if "y" in data.train:
        found |= evaluate(model, data, args.device)
    print(json.dumps(found))


if __name__ == "__main__":
    common.launch(main)
