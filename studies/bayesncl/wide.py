"""bayesncl.py with 512 features, as many as the papers' ResNet-18 has, on a CPU.

    python studies/bayesncl/wide.py --dataset cifar100 --arch resnet8 --limit 5000 --epochs 20
    python studies/bayesncl/wide.py --dataset cifar100 --arch resnet8 --gate none          NCL

The gating network sees the features h. Those of ResNet-8 are 64; here a convolution of one pixel
widens them before the mean over pixels. ResNet-18 itself would take far longer. The flags are those
of bayesncl.py.

A finished run has no weights: the tools would take them for those of a ResNet-8.
"""

import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import bayesncl  # noqa: E402
import common  # noqa: E402

import torch.nn as nn  # noqa: E402

WIDTH = 512
PROGRAM = "studies/bayesncl/wide.py"
parser = bayesncl.parser  # of the flags, for who reads a recorded command
resnet, BayesNCL, finish = common.resnet, bayesncl.BayesNCL, common.Run.finish


def wider(arch: str, image_size: int) -> tuple[nn.Module, int]:
    """ResNet-8 or 20, (N, 3, S, S) → h (N, 512), and 512."""
    common.need(arch in ("resnet8", "resnet20"), f"--arch {arch}: want resnet8 or resnet20")
    net, d = resnet(arch, image_size)
    *layers, pool, flatten = net
    convolution = nn.Conv2d(d, WIDTH, 1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    layers += [convolution, nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, pool, flatten), WIDTH


def network(args) -> nn.Module:
    """BayesNCL with 512 features; the run's config.json will name this program."""
    args.command = args.command.replace("bayesncl.py", PROGRAM, 1)
    with mock.patch.object(common, "resnet", wider):
        return BayesNCL(args)


def finish_without_weights(run, *measured) -> None:
    """Finish a run, and remove its weights."""
    finish(run, *measured)
    for name in "checkpoint.pt", "backbone.pt":
        (run.folder / name).unlink()


def main(argv=None):
    with (
        mock.patch.object(bayesncl, "BayesNCL", network),
        mock.patch.object(common.Run, "finish", finish_without_weights),
    ):
        bayesncl.main(argv)


if __name__ == "__main__":
    common.launch(main)
