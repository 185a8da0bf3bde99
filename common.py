"""What every method file shares: views, network, optimiser, data, linear probe and neighbours.

    two_views(images, size) → two float32 batches (N, 3, S, S), on the uint8 images' device
    resnet(arch, size) → a ResNet without classifier, and the dimension d of what it returns
    evaluate(run, data, model) → the numbers that the records of all methods have

Below the double line: flags, run folders, checkpoints, torchrun. No loss or training loop is here.

Where all methods differ from their authors' code:
1. The CIFAR stem has padding 1 (NCL: 2).
2. Views are torchvision's operators on floats (theirs: PIL's on bytes, with a box blur; NCL on
   ImageNet-100: DALI's).
3. ImageNet is shrunk to 256 pixels and cut square once: no crop sees the margins.
4. Inputs are (x − 0.5) / 0.25 for every data set.
5. The probe is convex and solved, not trained; neighbours are by cosine (SparseHead: Euclidean).
6. The network is trained in bf16 where that is faster, else in fp32 (NCL: fp16).
7. Rates and momenta change with every step (some: every epoch). A warm-up of n steps starts from
   1/(n + 1) of the peak, by sparsehead.py's --schedule step from 1/n (NCL: from a rate of 3e-5).
8. Under torchrun on CPUs, each process has its own BatchNorm.
"""

import argparse
import contextlib
import copy
import ctypes
import dataclasses
import importlib
import inspect
import io
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import NoReturn

# Threads that wait do not spin: beside another program two cores are then up to four times as fast.
# torch reads this when it is imported, so programs import common first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import interpret
from interpret import ACTIVE, BadInput, markdown, need  # methods use these as common.BadInput, …

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torchvision
import torchvision.transforms.v2.functional as TF
from torch import Tensor


# ------------------------------------------------------------------------------------------- views
# torchvision's operators on float tensors, equal to 1e-5, with parameters drawn for each image.
def crop_matrix(start, length, inputs: int, size: int, flip=None, kind="bilinear") -> Tensor:
    """The matrices (N, size, inputs) that resize one axis of `inputs` pixels to `size`.

    Row o weights the input pixels around the centre of output pixel o, as widely as the crop
    shrinks (anti-aliasing), and none beyond the crop.

    start, length: (N,), the crops in pixels
    flip: (N,), whether the rows are reversed
    kind: a triangle (bilinear) or Keys' cubic with a = −½ (bicubic)
    """
    scale = (length / size)[:, None, None]  # (N, 1, 1): input pixels for each output pixel
    start = start[:, None, None]
    length = length[:, None, None]
    o = torch.arange(size, device=start.device).view(1, -1, 1) + 0.5  # centres of output pixels
    j = torch.arange(inputs, device=start.device).view(1, 1, -1) + 0.5  # and of input pixels
    if flip is not None:
        o = torch.where(flip.view(-1, 1, 1), size - o, o)

    # The centres' distance, in output pixels where the crop shrinks, else in input pixels.
    t = (j - start - scale * o).abs() / scale.clamp(min=1)  # (N, size, inputs)
    triangle = (1 - t).clamp(min=0)
    weight = triangle
    if kind == "bicubic":
        # Keys' cubic is 2 − 4t + 2.5t² − 0.5t³ for 1 < t < 2: this is `wide`, 0 beyond 2.
        # For t < 1 it is 1 − 2.5t² + 1.5t³ = wide − (1 − 2t)(1 − t)²; there `triangle` is 1 − t.
        wide = (0.5 - 0.5 * t) * (2 - t).clamp(min=0).square()
        weight = wide - (1 - 2 * t) * triangle.square()
    inside = (j > start) & (j < start + length)
    weight = weight * inside
    return weight / weight.sum(2, keepdim=True)


def resized_crop(x: Tensor, top, left, height, width, size: int, flip=None, kind="bilinear"):
    """Crops of x (N, 3, H, W), each resized to (3, size, size). Bicubic ones may leave [0, 1].

    top, left, height, width: (N,), the boxes in pixels; flip: (N,), whether they are mirrored.
    """
    n, c, h, w = x.shape
    across = crop_matrix(left, width, w, size, flip, kind)  # (N, size, W)
    down = crop_matrix(top, height, h, size, kind=kind)  # (N, size, H)
    x = torch.bmm(x.reshape(n, c * h, w), across.mT).view(n, c, h, size)
    return down[:, None] @ x


def random_boxes(n: int, h: int, w: int, min_scale: float, device):
    """RandomResizedCrop's boxes in images of h by w pixels: top, left, height, width, (n,) each.

    The area is a share of min_scale to 1, the aspect 3/4 to 4/3. As in torchvision: ten tries, of
    which the first that fits counts, else the largest central box.
    """
    area = h * w * torch.empty(n, 10, device=device).uniform_(min_scale, 1)
    aspect = torch.empty(n, 10, device=device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    width = (area * aspect).sqrt().round()
    height = (area / aspect).sqrt().round()
    fits = (width >= 1) & (width <= w) & (height >= 1) & (height <= h)  # (n, 10)

    found = fits.any(1)
    first = fits.int().argmax(1, keepdim=True)
    width = torch.where(found, width.gather(1, first)[:, 0], min(w, round(h * 4 / 3)))
    height = torch.where(found, height.gather(1, first)[:, 0], min(h, round(w * 4 / 3)))

    place = torch.rand(2, n, device=device)
    top = torch.where(found, place[0] * (h - height + 1), (h - height) / 2).floor()
    left = torch.where(found, place[1] * (w - width + 1), (w - width) / 2).floor()
    return top, left, height, width


def grayscale(x: Tensor) -> Tensor:
    """(N, 3, H, W) in [0, 1] → luma (N, 1, H, W), ITU-R 601-2."""
    return 0.2989 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """x (N, 3, H, W) in [0, 1] times factor (N, 1, 1, 1)."""
    return (x * factor).clamp(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """x (N, 3, H, W) in [0, 1], moved from its mean luma by factor (N, 1, 1, 1)."""
    mean = grayscale(x).mean((2, 3), keepdim=True)
    return torch.lerp(mean, x, factor).clamp(0, 1)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """x (N, 3, H, W) in [0, 1], moved from its luma by factor (N, 1, 1, 1)."""
    return torch.lerp(grayscale(x), x, factor).clamp(0, 1)


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of x (N, 3, H, W) in [0, 1] by shift (N, 1, 1, 1) turns.

    By the formula of HSV without branches: with value V, chroma C and hue H in sixths of a turn,
    a channel is V − C + C · clamp(ramp, 0, 1); the ramps of red, green and blue are
    |H − 3| − 1, 2 − |H − 2| and 2 − |H − 4|.
    """
    r, g, b = x.unbind(1)
    value = x.amax(1)
    chroma = value - x.amin(1)
    scale = 1 / chroma.clamp(min=1e-9)  # a grey pixel has no hue; any will do

    hue = torch.where(value == g, 2 + (b - r) * scale, 4 + (r - g) * scale)
    hue = torch.where(value == r, (g - b) * scale, hue)
    hue = hue + 6 * shift[:, 0]
    hue = hue - 6 * (hue / 6).floor()  # modulo 6

    ramps = [(hue - 3).abs() - 1, 2 - (hue - 2).abs(), 2 - (hue - 4).abs()]
    ramps = torch.stack(ramps, 1).clamp_(0, 1)
    return torch.addcmul((value - chroma)[:, None], chroma[:, None], ramps)


# In the order of random_colour's factors.
COLOUR_OPERATORS = [adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue]


def gaussian_blur(x: Tensor, sigma: Tensor, kernel=13) -> Tensor:
    """Blur x (N, 3, S, S) with standard deviations sigma (N,) in pixels; borders are reflected.

    kernel: odd; 6σ or more for the largest σ in use, which is 2; below 2·S, or it cannot reflect.
    """
    n, c, s, _ = x.shape
    need(kernel % 2 == 1, f"a kernel of {kernel} has no middle: give an odd one")
    if on_cpu(sigma):  # a GPU would have to wait
        need((sigma > 0).all(), "blur needs standard deviations above 0")
    half = kernel // 2
    offset = torch.arange(-half, half + 1, device=x.device)
    taps = (-offset.square() / (2 * sigma.square()[:, None])).softmax(1)  # (N, kernel), a Gaussian

    # One axis is blurred by a matrix (S, S): row i adds up the taps of the pixels around i.
    pixel = torch.arange(s, device=x.device, dtype=x.dtype)
    mirrored = F.pad(pixel[None], (half, half), mode="reflect")[0]  # (S + 2 half)
    source = mirrored.unfold(0, s, 1)  # (kernel, S): the pixel that a tap reads for pixel i
    reads = (source[:, :, None] == pixel).to(x.dtype)  # (kernel, S, S)
    matrix = (taps @ reads.flatten(1)).view(n, s, s)

    x = torch.bmm(x.reshape(n, c * s, s), matrix.mT).view_as(x)
    return matrix[:, None] @ x


def coin(p: float, x: Tensor) -> Tensor:
    """True with probability p for each image of x (N, …): (N, 1, 1, 1)."""
    return torch.rand(len(x), 1, 1, 1, device=x.device) < p


def on_cpu(x: Tensor) -> bool:
    """Whether x is on a CPU, and not being compiled: then to read its values costs no wait."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def change_some(x: Tensor, chosen: Tensor, change, values: Tensor) -> Tensor:
    """The images x (N, 3, H, W) where those that are chosen (N,) became change(x, values).

    values: (N, …). A GPU changes all of them and selects: asking which ones would make it wait. A
    CPU changes the chosen alone; with all, a training of ResNet-8 takes 14 % longer on two cores of
    an Intel Xeon, one of ResNet-20 7 %.
    """
    if on_cpu(x):
        x = x.clone()
        x[chosen] = change(x[chosen], values[chosen])
        return x
    return torch.where(chosen.view(-1, 1, 1, 1), change(x, values), x)


def random_colour(x: Tensor, jitter: float, gray: float) -> Tensor:
    """ColorJitter with probability 0.8, then grey with probability `gray`, of x in [0, 1].

    x: (N, 3, H, W); jitter: the strength of brightness, contrast and saturation; hue has a quarter
    of it. The order of the operators is drawn for each image.
    """
    drawn = torch.empty(4, len(x), 1, 1, 1, device=x.device).uniform_(-1, 1)
    drawn = drawn * coin(0.8, x)  # (4, N, 1, 1, 1); 0 changes nothing
    brightness, contrast, saturation = (1 + jitter * drawn[:3]).clamp(min=0)
    hue = jitter / 4 * drawn[3]
    factors = [brightness, contrast, saturation, hue]
    if jitter:
        order = torch.rand(len(x), 4, device=x.device).argsort(1)  # (N, 4)
        for turn in order.T:  # (N,): the operator that each image gets now
            for k, adjust in enumerate(COLOUR_OPERATORS):
                x = change_some(x, turn == k, adjust, factors[k])
    return torch.where(coin(gray, x), grayscale(x), x)


def augment(
    x: Tensor,
    size: int,
    min_scale=0.08,
    jitter=0.8,
    gray=0.2,
    blur=0.5,
    crop="bicubic",
    colour_first=False,
    flip=0.5,
) -> Tensor:
    """One random view (N, 3, size, size), float32 in [0, 1], of images x (N, 3, H, W) uint8.

    SimCLR's, drawn for each image: RandomResizedCrop, flip, colour, Gaussian blur.

    min_scale: smallest share of the image in a crop
    jitter: strength of the colour jitter; gray, blur, flip: probabilities
    crop: interpolation, bilinear or bicubic
    colour_first: change colours before the crop
    """
    x = x.float() / 255
    if colour_first:
        x = random_colour(x, jitter, gray)
    boxes = random_boxes(len(x), *x.shape[2:], min_scale, x.device)
    mirrored = coin(flip, x).flatten()
    x = resized_crop(x, *boxes, size, mirrored, crop).clamp(0, 1)
    if not colour_first:
        x = random_colour(x, jitter, gray)
    if blur:
        chosen = coin(blur, x).flatten()
        sigma = torch.empty(len(x), device=x.device).uniform_(0.1, 2)  # pixels
        x = change_some(x, chosen, gaussian_blur, sigma)
    return x


def normalise(x: Tensor) -> Tensor:
    """[0, 1] → about zero mean and unit variance, by the same two numbers for every data set."""
    return (x - 0.5) / 0.25


def two_views(x: Tensor, size: int, **options) -> tuple[Tensor, Tensor]:
    """Two independent views, (N, 3, size, size) float32, normalised, of x (N, 3, H, W) uint8.

    options: those of `augment`.
    """
    views = augment(torch.cat([x, x]), size, **options)
    return normalise(views).chunk(2)


def eval_view(x: Tensor, size: int) -> Tensor:
    """The evaluation view (N, 3, size, size) of x (N, 3, H, W) uint8, normalised.

    The central square, resized; for images of 8/7 that size (ImageNet's 256 pixels for 224) the
    central pixels as they are.
    """
    side = min(x.shape[2:])
    if 7 * side == 8 * size:
        side = size
    x = TF.center_crop(x, [side, side]).float() / 255
    if side != size:
        x = TF.resize(x, [size, size], antialias=True)
    return normalise(x)


# ----------------------------------------------------------------------------------------- network
def resnet(arch: str, image_size: int, zero_init_residual=False) -> tuple[nn.Module, int]:
    """A backbone without classifier, (N, 3, S, S) → h (N, d), and d.

    resnet18, 34, 50   torchvision's; up to 96 pixels with a first convolution of 3×3 and stride 1,
                       up to 48 without the max-pool too (the CIFAR stem)
    resnet8, 20        the CIFAR family of He et al. 2016
    zero_init_residual: residual branches start at 0 (Goyal et al. 2017)
    """
    if arch in ("resnet8", "resnet20"):
        depth = int(arch.removeprefix("resnet"))
        return cifar_resnet(depth, zero_init_residual), 64
    net = getattr(torchvision.models, arch)(zero_init_residual=zero_init_residual)
    d = net.fc.in_features
    net.fc = nn.Identity()
    if image_size <= 96:
        net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    if image_size <= 48:
        net.maxpool = nn.Identity()
    return net, d


def cifar_resnet(depth: int, zero_init_residual=False) -> nn.Module:
    """(N, 3, S, S) → (N, 64): three stages of (depth − 2) / 6 blocks, 16, 32 and 64 channels wide.

    He et al. 2016, arXiv 1512.03385, Section 4.2, but with torchvision's shortcuts: a convolution
    where the width changes.
    """
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    width = 16
    for out in (16, 32, 64):
        for _ in range((depth - 2) // 6):
            stride, shortcut = 1, None
            if out > width:
                stride = 2
                shortcut = nn.Sequential(
                    nn.Conv2d(width, out, 1, 2, bias=False), nn.BatchNorm2d(out)
                )
            block = torchvision.models.resnet.BasicBlock(width, out, stride, shortcut)
            if zero_init_residual:
                nn.init.zeros_(block.bn2.weight)
            layers.append(block)
            width = out
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


# --------------------------------------------------------------------------------------- optimiser
class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling: SGD with momentum and a rate for each weight tensor.

    You et al. 2017, arXiv 1708.03888. The gradient g of a weight w becomes r · (g + decay · w),
    with r = trust · ‖w‖ / (‖g‖ + decay · ‖w‖). With `clip` r becomes min(r / lr, 1). Where w = 0, r
    is 1; where g = 0, r is 0. Biases and norms, which have one axis, get plain SGD without decay.
    NCL's authors: trust 0.02 and clip; on ImageNet 0.001 without clip is common.
    """

    def __init__(self, params, lr: float, weight_decay=1e-4, momentum=0.9, trust=0.02, clip=True):
        settings = dict(weight_decay=weight_decay, momentum=momentum, trust=trust, clip=clip)
        super().__init__(params, dict(lr=lr, **settings))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            self.rescale_gradients([p for p in params if p.ndim > 1], group)
            for p in params:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            if params:
                momenta = [self.state[p]["momentum_buffer"] for p in params]
                torch._foreach_mul_(momenta, group["momentum"])
                torch._foreach_add_(momenta, [p.grad for p in params])
                torch._foreach_add_(params, momenta, alpha=-group["lr"])
        return loss

    def rescale_gradients(self, weights: list[Tensor], group: dict) -> None:
        """g ← r · (g + decay · w) of all layers in a few calls (_foreach), for a GPU's speed."""
        if not weights:
            return
        decay = group["weight_decay"]
        gradients = [p.grad for p in weights]
        w_norm = torch.stack(torch._foreach_norm(weights))  # (layers,)
        g_norm = torch.stack(torch._foreach_norm(gradients))  # (layers,)
        r = group["trust"] * w_norm / (g_norm + decay * w_norm + 1e-8)  # 1e-8: not 0 / 0
        if group["clip"]:
            r = (r / max(group["lr"], 1e-12)).clamp(max=1)
        r = torch.where(w_norm > 0, r, 1.0) * (g_norm > 0)
        torch._foreach_add_(gradients, weights, alpha=decay)
        torch._foreach_mul_(gradients, r.unbind())


def sgd(params, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """SGD with momentum 0.9."""
    return torch.optim.SGD(params, lr, momentum=0.9, weight_decay=weight_decay, fused=True)


def adam(params, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adam with torch's other defaults."""
    return torch.optim.Adam(params, lr, weight_decay=weight_decay, fused=True)


OPTIMIZERS = {"lars": LARS, "sgd": sgd, "adam": adam}


def lr_share(step: int, steps: int, warmup: float = 0) -> float:
    """The share of the peak learning rate at a step, which counts from 0.

    Linear over `warmup` steps, at most half of all, then a half cosine to 0, which stays.
    """
    warmup = min(round(warmup), steps // 2)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, steps - warmup)
    return 0.5 + 0.5 * math.cos(math.pi * min(1, done))


def set_lr(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Every group's learning rate to `share` of its peak, but for groups with "fixed_lr"."""
    for group in optimizer.param_groups:
        if "peak_lr" not in group:
            group["peak_lr"] = group["lr"]  # at the first step; checkpoints keep it
        if not group.get("fixed_lr"):
            group["lr"] = group["peak_lr"] * share


# --------------------------------------------------------------------------------------- processes
def rank() -> int:
    """The number of this process among all that train together; 0 for one."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors (n, ·) of this process → (N, ·) of the whole batch, with gradient.

    One process: the tensors themselves. Under torchrun every process computes the same loss of
    the whole batch.
    """
    if world() == 1:
        return tensors
    widths = [t.shape[1] for t in tensors]
    own = torch.cat(tensors, 1)  # one message instead of many
    return GatherRows.apply(own).split(widths, 1)


class GatherRows(torch.autograd.Function):
    """Rows (n, D) of each process → (N, D) of all, in the order of their ranks."""

    @staticmethod
    def forward(ctx, own):
        rows = [torch.empty_like(own) for _ in range(world())]
        dist.all_gather(rows, own.contiguous())
        return torch.cat(rows)

    @staticmethod
    def backward(ctx, gradient):
        # Each process passes on the gradient of its own rows only, and DistributedDataParallel
        # divides the sum over processes by world(). Times world(), the sum itself remains.
        return world() * gradient.chunk(world())[rank()]


# -------------------------------------------------------------------------------------------- data
@dataclasses.dataclass
class Data:
    """Images (N, 3, H, W) uint8, with labels and captions where there are any, else None.

    y, background: labels (N,) int64, numbered 0, 1, … without gaps
    classes, background_classes: (C,), the numbers that the data set itself gives these classes
    captions: (N,) strings
    x_unlabeled: what pre-training sees in the place of x_train
    """

    name: str
    x_train: Tensor
    x_test: Tensor
    y_train: Tensor | None = None
    y_test: Tensor | None = None
    background_train: Tensor | None = None
    background_test: Tensor | None = None
    x_unlabeled: Tensor | None = None
    captions_train: np.ndarray | None = None
    captions_test: np.ndarray | None = None
    classes: Tensor | None = None
    background_classes: Tensor | None = None

    @property
    def images(self) -> Tensor:
        """What pre-training sees: x_unlabeled where there is one, or x_train.

        (STL-10's x_unlabeled has the training images too.)
        """
        return self.x_train if self.x_unlabeled is None else self.x_unlabeled

    def steps(self, batch_size: int) -> int:
        """Batches in an epoch; BadInput without one, or without equal shares for all processes."""
        n = len(self.images)
        need(n >= 2 * world(), f"{n} training images are too few for {world()} processes")
        if batch_size > n:
            power_of_two = 2 ** int(math.log2(n / 2))  # for two steps in an epoch or more
            fitting = max(2, power_of_two // world()) * world()
            raise BadInput(
                f"a batch of {batch_size}, from --batch-size, the run or the preset, is more than "
                f"the {n} training images: add --batch-size {fitting}"
            )
        if batch_size % world():
            raise BadInput(f"--batch-size {batch_size} is no multiple of {world()} processes")
        if batch_size < 2 * world():
            raise BadInput(
                f"--batch-size {batch_size}: each of {world()} processes needs two images"
            )
        return n // batch_size

    def batches(self, batch_size: int, seed: int, epoch: int, device):
        """Yield images (n, 3, H, W) uint8 and their indices, both on the device.

        A shuffled pass without the last, incomplete batch; n is batch_size, under torchrun this
        process's share of it.
        Images in memory or on disk are read by a thread, a batch ahead of the step.
        """
        shuffled = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.images), generator=shuffled)
        steps = self.steps(batch_size)
        shares = order[: steps * batch_size].view(steps, world(), batch_size // world())
        own = shares[:, rank()]  # (steps, batch_size / world)
        if self.images.device.type != "cpu":
            for index in own.to(self.images.device):
                yield self.images[index], index
            return

        on_cuda = torch.device(device).type == "cuda"

        def read(index):
            images = self.images[index]
            if on_cuda:
                images = images.pin_memory()  # it is copied to the GPU while that computes
            return images

        # The first call of torch in a thread fixes its team of OpenMP threads. Were the reader's
        # first, a second team would wait busily on the cores of this one.
        torch.get_num_threads()
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=[1]) as reader:
            coming = reader.submit(read, own[0])
            for step, index in enumerate(own):
                images = coming.result()
                if step + 1 < steps:
                    coming = reader.submit(read, own[step + 1])
                # Not on Apple's GPUs: there a copy may read what has been freed meanwhile.
                index = index.to(device, non_blocking=on_cuda)
                yield images.to(device, non_blocking=on_cuda), index


def load_data(
    name: str, root="data", *, limit: int | None = None, device="cpu", unlabelled=True
) -> Data:
    """A data set by name, with `limit` of its training images; x_unlabeled only if `unlabelled`.

    name: `shapes` (built in), <root>/<name>.npz, <root>/<name>/*.npy (memory-mapped;
    tools/decode.py makes them of image folders) or one that torchvision downloads. Arrays go to a
    GPU with room for twice their size. BadInput, in one line, for what is missing or malformed.
    """
    # One process after the other: what the first downloads, the others find.
    for turn in range(world()):
        if turn == rank():
            data = checked(name, find_arrays(name, Path(root)))
        if world() > 1:
            dist.barrier()
    if not unlabelled:
        data.x_unlabeled = None
    if limit:
        data = subset(data, limit)
    return on_gpu_if_it_fits(data, torch.device(device))


def on_gpu_if_it_fits(data: Data, device: torch.device) -> Data:
    """The data on the GPU, if that has room for twice their size; else as they are."""
    if device.type != "cuda":
        return data
    tensors = {name: value for name, value in vars(data).items() if isinstance(value, Tensor)}
    size = sum(value.nbytes for value in tensors.values())
    free, _ = torch.cuda.mem_get_info(device)
    if 2 * size >= free:
        return data
    moved = {name: value.to(device) for name, value in tensors.items()}
    return dataclasses.replace(data, **moved)


DOWNLOADS = {  # torchvision's classes
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "stl10": "STL10",
    "svhn": "SVHN",
}
MEDMNIST = {  # the keys of that collection's files
    "train_images": "x_train",
    "train_labels": "y_train",
    "test_images": "x_test",
    "test_labels": "y_test",
}


def find_arrays(name: str, root: Path) -> dict[str, np.ndarray]:
    """The arrays of the data set `name`, in the first form that is there."""
    if name == "shapes":
        try:
            import shapes
        except ImportError as error:
            remedy = "copy shapes.py beside common.py, or name another --dataset"
            raise BadInput(f"the built-in data set is not here: {remedy}") from error
        return shapes.draw()
    folder = root / name
    archive = root / f"{name}.npz"
    files = sorted(folder.glob("*.npy"))
    if archive.exists():
        two = f"{archive} and {folder}/*.npy are two data sets of one name: rename one of them"
        need(not files, two)
        arrays = load_numpy(archive)
        return {MEDMNIST.get(key, key): arrays[key] for key in arrays}
    if files:
        return {file.stem: load_numpy(file) for file in files}
    if folder.is_dir() and any(folder.iterdir()):
        command = f"python tools/decode.py {folder} --size 256"
        raise BadInput(f"{folder} has no .npy files; of image files make them once: {command}")
    if name in DOWNLOADS:
        return download(name, root)
    names = ", ".join(DOWNLOADS)
    raise BadInput(f"no data set '{name}': not shapes, {names}; no {archive}, no {folder}/*.npy")


def load_numpy(file: Path):
    """The array of an .npy file, memory-mapped, or the arrays of an .npz file by their keys.

    Pickled objects are never read.
    """
    try:
        loaded = np.load(file, mmap_mode="c", allow_pickle=False)  # c: the file is never written
    except Exception as error:  # what a damaged file may raise is not listed anywhere
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"{file} cannot be read as plain numpy arrays ({reason})") from error
    is_archive = isinstance(loaded, np.lib.npyio.NpzFile)
    kind = ".npz" if is_archive else ".npy"
    need(file.suffix == kind, f"{file} is in truth an {kind} file: rename it")
    if not is_archive:
        return loaded
    arrays = {}
    for key in loaded.files:
        try:
            arrays[key] = loaded[key]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise BadInput(f"{file}: {key} is no plain numpy array ({reason})") from error
    return arrays


def checked(name: str, arrays: dict[str, np.ndarray]) -> Data:
    """Data from arrays whose keys, types, shapes and labels are right; else BadInput."""
    found = {
        "x_train": checked_images(name, arrays, "x_train"),
        "x_test": checked_images(name, arrays, "x_test"),
    }
    if "x_unlabeled" in arrays:
        found["x_unlabeled"] = checked_images(name, arrays, "x_unlabeled")
    for kind in ("y", "background", "captions"):
        train, test = f"{kind}_train", f"{kind}_test"
        together = (train in arrays) == (test in arrays)
        need(together, f"{name}: {train} and {test} go together; one of them is missing")
        if train not in arrays:
            continue
        for key, images in (train, found["x_train"]), (test, found["x_test"]):
            if kind == "captions":
                found[key] = checked_captions(name, arrays, key, len(images))
            else:
                found[key] = checked_labels(name, arrays, key, len(images))
    for kind, classes in ("y", "classes"), ("background", "background_classes"):
        if f"{kind}_train" in found:
            found |= without_gaps(name, kind, classes, found)
    return Data(name, **found)


def checked_images(name: str, arrays: dict, key: str) -> Tensor:
    """arrays[key] as images (N, 3, H, W) uint8; no byte is copied."""
    keys = "x_train, x_test and, for labels, y_train, y_test"
    need(key in arrays, f"{name}: no {key}; the keys are {keys}")
    a = np.asarray(arrays[key])
    need(a.dtype == np.uint8, f"{name}: {key} is {a.dtype}; images are uint8, 0 to 255")
    if a.ndim == 3:
        a = a[..., None]  # grey without a channel axis
    forms = "(N, H, W, 3), (N, 3, H, W) or grey"
    wrong = f"{name}: {key} has shape {a.shape}; needed are two or more images as {forms}"
    need(a.ndim == 4 and len(a) > 1 and 0 not in a.shape, wrong)
    if a.shape[3] in (1, 3):
        a = a.transpose(0, 3, 1, 2)
    need(a.shape[1] in (1, 3), wrong)
    return torch.from_numpy(a).expand(-1, 3, -1, -1)


def checked_labels(name: str, arrays: dict, key: str, n: int) -> Tensor:
    """arrays[key] as n labels, int64."""
    a = np.asarray(arrays[key])
    if a.ndim == 2 and a.shape[1] == 1:
        a = a[:, 0]
    right = a.dtype.kind in "iu" and a.shape == (n,) and a.min() >= 0
    wanted = f"labels are {n} integers from 0 on, one per image"
    if a.dtype.kind in "US":
        wanted += "; of strings y, numpy.unique(y, return_inverse=True)[1] makes them"
    need(right, f"{name}: {key} is {a.dtype} of shape {a.shape}; {wanted}")
    return torch.from_numpy(a.astype(np.int64))


def checked_captions(name: str, arrays: dict, key: str, n: int) -> np.ndarray:
    """arrays[key] as n strings."""
    a = np.asarray(arrays[key])
    if a.ndim == 2 and a.shape[1] == 1:
        a = a[:, 0]
    right = a.dtype.kind == "U" and a.shape == (n,) and all(text.strip() for text in a)
    wanted = f"captions are {n} strings that say something, one per image"
    need(right, f"{name}: {key} is {a.dtype} of shape {a.shape}; {wanted}")
    return a


def without_gaps(name: str, kind: str, classes_key: str, found: dict) -> dict:
    """Labels <kind>_train and <kind>_test renumbered 0, 1, …, and the classes' own numbers."""
    train, test = found[f"{kind}_train"], found[f"{kind}_test"]
    alien = sorted({*test.tolist()} - {*train.tolist()})
    listed = ", ".join(map(str, alien[:5]))
    need(not alien, f"{name}: {kind}_test has classes that {kind}_train has not: {listed}")
    classes, y_train = train.unique(return_inverse=True)
    y_test = torch.searchsorted(classes, test)
    return {f"{kind}_train": y_train, f"{kind}_test": y_test, classes_key: classes}


def subset(data: Data, limit: int) -> Data:
    """`limit` training images in their order; each class keeps its proportion to within one.

    Unlabelled images likewise.
    """
    n = len(data.images)
    if limit > n:
        raise BadInput(f"--limit {limit}: {data.name} has {n} training images")

    def evenly(total):
        """At most `limit` numbers, evenly from 0 to the total."""
        count = min(limit, total)
        return torch.arange(count) * total // count

    by_class = torch.arange(len(data.x_train))
    if data.y_train is not None:
        by_class = data.y_train.argsort(stable=True)
    chosen = by_class[evenly(len(by_class))]
    kept = chosen.sort().values
    changed = {}
    for name, value in vars(data).items():
        if name.endswith("_train") and value is not None:
            changed[name] = value[kept]
    if data.x_unlabeled is not None:
        changed["x_unlabeled"] = data.x_unlabeled[evenly(len(data.x_unlabeled))]
    return dataclasses.replace(data, **changed)


def download(name: str, root: Path) -> dict[str, np.ndarray]:
    """The arrays of one of torchvision's data sets, fetched where they are not there yet."""
    parts = {"train": "train", "test": "test"}
    if name == "stl10":
        parts["unlabeled"] = "train+unlabeled"
    cifar = name.startswith("cifar")
    arrays = {}
    for key, part in parts.items():
        options = {"train": part == "train"} if cifar else {"split": part}
        try:
            kind = getattr(torchvision.datasets, DOWNLOADS[name])
            images = kind(root, download=True, **options)
        except ImportError as error:  # SVHN's files are read by scipy
            raise BadInput(f"{name} needs {error.name}: pip install {error.name}") from error
        except Exception as error:  # whatever the network, the mirror or the archive does
            by_hand = f"put it at {root / name}.npz by hand"
            raise BadInput(f"{name} could not be downloaded ({error}); {by_hand}") from error
        labels = images.targets if cifar else images.labels
        arrays[f"x_{key}"] = images.data
        arrays[f"y_{key}"] = np.asarray(labels)
    return arrays


# -------------------------------------------------------------------------------------- evaluation
@torch.no_grad()
def features(model: nn.Module, images: Tensor, size: int, device="cpu", view=eval_view):
    """h (N, d) and z (N, K): the model's first outputs in eval mode, computed in float32."""
    model.eval()
    all_h, all_z = [], []
    for part in progress(images.split(500), "features, 500 images at a time"):
        h, z, *_ = model(view(part.to(device), size))
        all_h.append(h)
        all_z.append(z)
    return torch.cat(all_h).float(), torch.cat(all_z).float()


def logistic_regression(x: Tensor, y: Tensor, l2: float, start: Tensor | None = None) -> Tensor:
    """The weights (d + 1, C) of the least mean cross-entropy + l2/2 · ‖weights‖².

    x: features (N, d), standardised; y: labels (N,); start: weights to begin from.
    The last row of the weights is the bias, which is not penalised. The problem is convex, so
    there is no rate to tune: LBFGS goes on until a step gains less than 1e-6 nats or moves no
    entry of v, below, by more than 1e-6; at most 300 steps.

    Correlated features would make that slow. So LBFGS optimises v, where weights = T v, with T such
    that the loss is about equally curved in all directions of v: T Tᵀ is the inverse of
    mean p(1 − p) · xᵀx / N + l2, the Hessian if all images and classes had the same p(1 − p) and
    classes did not interact.
    """
    penalty = F.pad(torch.full_like(x[0], l2), (0, 1))  # (d + 1,): 0 for the bias
    x = F.pad(x, (0, 1), value=1.0)  # (N, d + 1): the last column is for the bias
    if start is None:
        start = x.new_zeros(x.shape[1], int(y.max()) + 1)
    p = (x @ start).softmax(1)  # (N, C)
    variance = (p * (1 - p)).mean().clamp(min=1e-6)
    hessian = variance * (x.T @ x) / len(x) + penalty.diag()
    hessian = hessian.cpu().double()
    L, failed = torch.linalg.cholesky_ex(hessian)
    if failed:
        # Features have collapsed, and float32 has rounded off more than l2. A rougher T does: any
        # invertible one leads to the same optimum.
        L = torch.linalg.cholesky(hessian + 1e-6 * hessian.trace() * torch.eye(len(hessian)))
    T = torch.linalg.inv(L).T.to(x)
    v = (L.T.to(x) @ start).requires_grad_()  # (d + 1, C)
    optimizer = torch.optim.LBFGS(
        [v],
        max_iter=300,
        tolerance_grad=0,
        tolerance_change=1e-6,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        weights = T @ v
        decay = (penalty[:, None] * weights.square()).sum() / 2
        loss = F.cross_entropy(x @ weights, y) + decay
        loss.backward()
        return loss

    optimizer.step(closure)
    return (T @ v).detach()


STRENGTHS = 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5  # of the probe's penalty


def fit_probe(train: Tensor, y_train: Tensor, strengths=STRENGTHS):
    """Logistic regression on features (N, d): a function from features to scores (N, C), and l2.

    The l2 is the one of `strengths`, from strong to weak, that is best on a held-out tenth of the
    *training* set; of equals the stronger. Then all of the training set is fitted.
    """
    mean = train.mean(0)
    std = train.std(0).clamp(min=1e-6)

    def standardised(features):
        return (features - mean) / std

    def scores(features, weights):
        return standardised(features) @ weights[:-1] + weights[-1]

    x = standardised(train)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held = (order < max(1, len(x) // 10)).to(x.device)  # whether an image is of a random tenth
    fitted = x[~held]
    y_fitted = y_train[~held]
    unseen = train[held]
    y_unseen = y_train[held]
    best_accuracy = -1.0
    weights = x.new_zeros(x.shape[1] + 1, int(y_train.max()) + 1)
    for l2 in progress(strengths, "linear probe, strengths of its penalty"):
        weights = logistic_regression(fitted, y_fitted, l2, start=weights)
        right = scores(unseen, weights).argmax(1) == y_unseen
        accuracy = right.float().mean().item()
        if accuracy > best_accuracy:
            best_accuracy, best_l2, best_weights = accuracy, l2, weights
    weights = logistic_regression(x, y_train, best_l2, start=best_weights)

    def classify(x):
        return scores(x, weights)

    return classify, best_l2


def linear_probe(train, y_train, test, y_test, **options) -> dict[str, float]:
    """fit_probe of the training set → {"lp1", "lp5"}, % right of the test set, and "l2".

    train, test: features (N, d); y_train, y_test: labels (N,); options: those of fit_probe.
    """
    classify, l2 = fit_probe(train, y_train, **options)
    lp1, lp5 = top_1_and_5(classify(test), y_test)
    return {"lp1": lp1, "lp5": lp5, "l2": l2}


def top_1_and_5(scores: Tensor, y: Tensor) -> tuple[float, float]:
    """How often the likeliest class, and one of the five likeliest, is right, in %.

    scores: (N, C); y: labels (N,). A row with NaN or infinity is never right.
    """
    likeliest = scores.topk(min(5, scores.shape[1]), 1).indices  # (N, 5)
    hits = likeliest == y[:, None]
    hits &= scores.isfinite().all(1, keepdim=True)
    top1 = hits[:, 0].float().mean()
    top5 = hits.any(1).float().mean()
    return 100 * top1.item(), 100 * top5.item()


def neighbours(queries: Tensor, bank: Tensor, k: int, skip_self=False) -> tuple[Tensor, Tensor]:
    """Cosine similarities and indices, (N, k) each, of the nearest rows of the bank, nearest first.

    queries: (N, D); bank: (M, D). With skip_self they are the same rows, and a row is not its own
    neighbour.
    """
    queries = F.normalize(queries)
    bank = F.normalize(bank)
    values, indices = [], []
    for start in range(0, len(queries), 1000):
        similarity = queries[start : start + 1000] @ bank.T
        if skip_self:
            similarity.diagonal(start).fill_(-2)
        nearest = similarity.topk(k, 1)
        values.append(nearest.values)
        indices.append(nearest.indices)
    return torch.cat(values), torch.cat(indices)


def precision_at(z, y, ks=(1, 3, 5, 10)) -> dict[int, float | None]:
    """P@k: % of an image's k nearest others (cosine) in z (N, K) with its label y (N,), by k.

    None where there are too few images.
    """
    z = torch.as_tensor(z).float()
    y = torch.as_tensor(y, device=z.device)
    _, nearest = neighbours(z, z, min(max(ks), len(z) - 1), skip_self=True)
    same = (y[nearest] == y[:, None]).float()
    scores = dict.fromkeys(ks)
    for k in ks:
        if k < len(z):
            scores[k] = 100 * same[:, :k].mean().item()
    return scores


def knn_accuracy(train: Tensor, y_train: Tensor, test: Tensor, y_test: Tensor) -> list[float]:
    """% right on test (N, d) when the 5, and when the 200, nearest rows of train (M, d) vote.

    Nearest by cosine. The 5: their majority, of equals the smaller class number. The 200: each
    weighted by exp(cosine / 0.1) (Wu et al. 2018, arXiv 1805.01978).
    """
    similarity, index = neighbours(test, train, min(200, len(train)))  # (N, 200)
    classes = y_train[index]

    def accuracy(classes, weights):
        votes = test.new_zeros(len(test), int(y_train.max()) + 1)
        votes.scatter_add_(1, classes, weights)
        return 100 * (votes.argmax(1) == y_test).float().mean().item()

    of_5 = accuracy(classes[:, :5], torch.ones_like(similarity[:, :5]))
    of_200 = accuracy(classes, (similarity / 0.1).exp())
    return [of_5, of_200]


def health(z: Tensor) -> dict[str, Tensor]:
    """Signs of collapse in a batch of embeddings z (N, K), as scalar tensors.

    spread   mean standard deviation of z/‖z‖, times √K: 0 collapsed, 1 at most; embeddings ≥ 0 stay
             below, the further the more dimensions are dead or shared by all images
    act      share of active entries, those above 1e-5 in z/‖z‖
    empty    share of samples without an active entry
    """
    z = F.normalize(z.detach().float())
    active = z.abs() > ACTIVE
    return {
        "spread": z.std(0).mean() * z.shape[1] ** 0.5,
        "act": active.float().mean(),
        "empty": (~active).all(1).float().mean(),
    }


def halved(x: Tensor) -> np.ndarray:
    """x in float16, for a file; what this cannot hold becomes its largest number, 65504."""
    return x.clamp(-65504, 65504).half().cpu().numpy()


def evaluate(run: "Run", data: Data, model: nn.Module) -> tuple[dict, Tensor, Tensor]:
    """The final record's numbers, of any method, and h (N, d) and z (N, K) of the test images.

    The second label's numbers have "background_" before their names. embeddings.npz keeps h and z
    in 16 bits, and the labels by the classes' own numbers.
    """
    size = run.args.image_size
    print("evaluating: what the dimensions stand for", flush=True)
    h, z = features(model, data.x_test, size, run.device)
    arrays = {"h": halved(h), "z": halved(z)}
    if data.y_test is not None:
        arrays["y"] = data.classes[data.y_test].cpu().numpy()
    if data.background_test is not None:
        arrays["background"] = data.background_classes[data.background_test].cpu().numpy()
    with replacing(run.folder / "embeddings.npz") as file:
        np.savez(file, **arrays)

    labels = {"": arrays.get("y"), "background_": arrays.get("background")}
    metrics = of_dimensions(arrays["z"], labels, arrays["h"])
    if data.y_train is None and data.background_train is None:
        return metrics, h, z
    print("evaluating: linear probes and neighbours, of h and of z", flush=True)
    h_train, z_train = features(model, data.x_train, size, run.device)
    pairs = {
        "": (data.y_train, data.y_test),
        "background_": (data.background_train, data.background_test),
    }
    for prefix, (y_train, y_test) in pairs.items():
        if y_train is None:
            continue
        y_train, y_test = y_train.to(h.device), y_test.to(h.device)
        for suffix, train, test in ("", h_train, h), ("_embedding", z_train, z):
            found = linear_probe(train, y_train, test, y_test)
            found["knn5"], found["knn200"] = knn_accuracy(train, y_train, test, y_test)
            for name, value in found.items():
                metrics[f"{prefix}{name}{suffix}"] = value
    return metrics, h, z


def of_dimensions(z: np.ndarray, labels: dict, h: np.ndarray) -> dict:
    """What interpret.py finds in embeddings z (N, K), as numbers of a record.

    A dense z is measured twice: as in the papers, where each dimension is active on every image,
    and by half-dimensions, with "top_" before the names. A control's numbers begin with its name.

    labels: prefix of the numbers → (N,) or None
    h: (N, d), of which z was made: MonoScore's judge, and what random directions are of
    """
    several = {}  # labels that have two classes, which a dimension can tell apart
    for prefix, y in labels.items():
        if y is not None and (y != y[0]).any():
            several[prefix] = y
    embedding = interpret.Embedding(z, several, judge=h, features=h)
    findings = interpret.interpret(embedding)
    if findings.rule == "nonzero":
        numbers = findings.numbers
    else:
        of_papers = interpret.interpret(embedding, "nonzero", controls=False).numbers
        top = {f"top_{name}": value for name, value in findings.numbers.items()}
        numbers = of_papers | top
    numbers = {"active": findings.rule} | numbers
    for control, found in findings.controls.items():
        numbers |= {f"{control}_{name}": value for name, value in found.items()}
    for prefix, y in several.items():
        for k, value in precision_at(z, y).items():
            numbers[f"{prefix}p_at_{k}"] = value
    return numbers


# ==================================================================================================
# From here on: command line, run folders, checkpoints, torchrun. Of what changes numbers only a
# run's precision, its seeds and BatchNorm under torchrun are below: see Run.
# ==================================================================================================


# ------------------------------------------------------------------------------------ command line
def whole_number(least, most=math.inf):
    """An argparse type: a whole number from `least` to `most`, both included."""

    def parse(text):
        value = int(text)
        if not least <= value <= most:
            end = f"to {most}"
            if most == math.inf:
                end = "on"
            wanted = f"it must be a whole number from {least} {end}"
            raise argparse.ArgumentTypeError(f"{text}; {wanted}")
        return value

    parse.__name__ = "int"  # for "invalid int value"
    return parse


def within(low, high=math.inf, closed=False):
    """An argparse type: a finite number between low and high, which are included where `closed`."""

    def parse(text):
        value = float(text)
        inside = low < value < high
        if closed:
            inside = low <= value <= high and abs(value) < math.inf
        if not inside:
            above, below = ("≥", "≤") if closed else (">", "<")
            wanted = f"it must be {above} {low} and {below} {high}"
            raise argparse.ArgumentTypeError(f"{text}; {wanted}")
        return value

    parse.__name__ = "float"  # for "invalid float value"
    return parse


def checkpoint_of(text: str) -> str:
    """An argparse type: the checkpoint.pt of a run's folder; a file's own name stays."""
    path = Path(text)
    if path.is_dir():
        path = path / "checkpoint.pt"
    return str(path)


LEGEND = """\
Of each epoch. spread: standard deviation of the normalised embeddings, times √K: 0 collapsed, 1 at
most, less where none is negative. act: share of active entries; empty: of images without any.
open: share of open gates.
Of the test set. LP: logistic regression on the frozen backbone's features (z: on embeddings), %;
NN: nearest neighbours, %; P@10: of an image's 10 nearest embeddings, the share of its class, %.
Act.: share of active entries. H_s: entropy of a dimension's activation over classes, nats. Corr.:
mean |cosine| of two dimensions over the images. Then, of each dimension of the embedding:"""


class Parser(argparse.ArgumentParser):
    """Flags of every program: --device, --out, --resume. Errors are one line, exit code 2.

    image_flags() adds what all image methods share.
    """

    # Not settings of a run.
    OF_A_CALL = {"resume", "eval_only", "out", "device", "compile", "verbose"}
    MAY_CHANGE = {"data_root", "epochs", "checkpoint_every"}  # when a run is resumed

    def __init__(self, file: str, doc: str):
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=Path(file).name, description=doc, formatter_class=raw)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.presets = {}
        self.add_argument("--device", default=device, help="cuda, cuda:1, cpu")
        self.add_argument("--out", help="run folder (default: a new one under runs/)")
        self.add_argument(
            "--resume",
            metavar="RUN",
            help="go on with this run; --epochs of an image method may grow, its schedule too",
        )

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")

    def image_flags(self, presets: dict[str, dict]):
        """Flags of all image methods. presets: data set → settings, the defaults of the flags."""
        self.presets = presets
        self.epilog = f"{LEGEND}\n{interpret.LEGEND}"
        add = self.add_argument
        whole = whole_number(1)
        not_negative = within(0, closed=True)
        share = within(0, 1, closed=True)
        archs = ["resnet8", "resnet20", "resnet18", "resnet34", "resnet50"]
        add("--dataset", default="shapes", help="shapes, cifar10, cifar100, stl10, svhn, your own")
        add("--preset", choices=presets, help="settings of this data set; default: of any other")
        add("--data-root", default="data", help="folder of the data sets (default: data)")
        add("--limit", type=whole_number(2), help="train on so many images, classes in proportion")
        add("--arch", choices=archs, help="backbone")
        add("--image-size", type=whole_number(8), help="side of the views in pixels")
        add("--epochs", type=whole, help="passes over the training images")
        add("--batch-size", type=whole_number(2), help="images a step, of all processes")
        add("--optimizer", choices=OPTIMIZERS, help="sgd with momentum 0.9")
        add("--lr", type=within(0), help="peak learning rate, not scaled by the batch size")
        add("--weight-decay", type=not_negative, help="under LARS not of biases and norms")
        add("--warmup", type=not_negative, help="epochs of linear warm-up, at most half the run")
        add("--min-scale", type=within(1e-3, 1, closed=True), help="smallest area of a crop")
        add("--jitter", type=share, help="strength of colour jitter; hue a quarter of it")
        add("--gray", type=share, help="probability of a grey view")
        add("--blur", type=share, help="probability of Gaussian blur, σ from 0.1 to 2 pixels")
        add("--crop", choices=["bicubic", "bilinear"], help="interpolation of the random crops")
        add(
            "--seed", type=whole_number(0, 2**32 - 1), default=1, help="of weights, views and order"
        )
        add("--precision", choices=["auto", "bf16", "fp32"], default="auto", help="of the network")
        add(
            "--compile",
            action="store_true",
            help="torch.compile: for long runs; a CPU needs a C++ compiler",
        )
        add(
            "--checkpoint-every",
            type=whole,
            help="epochs (default: at a cost of 1 %% of the time)",
        )
        add("--eval-only", metavar="RUN", type=checkpoint_of, help="evaluate its checkpoint.pt")
        add("--verbose", action="store_true", help="first print the shapes within the model")

    def parse(self, argv=None) -> argparse.Namespace:
        """The flags; where one is not given, what the run named by --resume or --eval-only had;
        else the preset of the data set. With --eval-only, a --preset goes before what the run had.
        """
        if argv is None:
            argv = sys.argv[1:]
        method = Path(self.prog).stem
        # None where no --dataset is given: argparse leaves alone what a Namespace has.
        given = self.parse_known_args(argv, argparse.Namespace(dataset=None))[0]
        eval_only = getattr(given, "eval_only", None)
        preset_name = getattr(given, "preset", None)
        named = given.resume != "" and given.out != ""
        need(named, "--resume and --out name a folder, and one of them is empty")
        if given.resume and (given.out or eval_only):
            folder = "the run's own folder"
            raise BadInput(f"--resume writes into {folder}: give it without --out and --eval-only")

        dataset = given.dataset or self.get_default("dataset")
        of_any_other = self.presets.get("default", {})
        preset = self.presets.get(preset_name or dataset, of_any_other)
        saved = {}
        if given.resume:
            saved = self.saved_settings(given.resume, Path(given.resume), method, preset)
        elif eval_only:
            need(Path(eval_only).exists(), f"--eval-only: there is no {eval_only}")
            saved = self.saved_settings(eval_only, Path(eval_only).parent, method, preset)
            if given.dataset and given.dataset != saved.get("dataset"):
                for of_its_data in "limit", "classes":
                    saved.pop(of_its_data, None)

        if preset_name and not given.resume:
            defaults = saved | preset  # it was asked for in this call
        else:
            defaults = preset | saved
        self.set_defaults(**defaults)
        command = shlex.join([self.prog, *argv])
        args = self.parse_args(argv, argparse.Namespace(method=method, command=command))

        if given.resume:
            self.check_resumed(args, saved)
        check_device(args.device)
        if getattr(args, "compile", False):
            check_compiler(args.device)
        return args

    def check_resumed(self, args: argparse.Namespace, saved: dict) -> None:
        """BadInput where a flag contradicts the settings of the run that is to go on."""
        for action in self._actions:
            name = action.dest
            if name not in saved or name in self.MAY_CHANGE:
                continue
            value, before = getattr(args, name), saved[name]
            if value == before:
                continue
            names = action.option_strings or [name]
            told = f"{names[0]} {value}"
            if action.nargs == 0:  # a switch has no value; --no-... is its last name
                told = names[0] if value else names[-1]
            had = "run, which had none" if before is None else f"run's {before}"
            raise BadInput(f"{told} contradicts the {had}")

        before = saved.get("epochs")
        if before is not None:  # else each experiment of sparse_coding.py has its own
            fewer = f"--epochs {args.epochs} is less than the run's {before}"
            need(args.epochs >= before, f"{fewer}: a resumed run may only grow")

    def saved_settings(self, source: str, folder: Path, method: str, preset: dict) -> dict:
        """The settings of a run of this program; BadInput, which names `source`, where none is."""
        try:
            config = json.loads((folder / "config.json").read_text())
            made_by = config["method"]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BadInput(f"{source} is no run: there is no {folder / 'config.json'}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise BadInput(f"{source} is no run: its config.json is damaged ({reason})") from error
        if made_by != method:
            raise BadInput(f"{source} is a run of {made_by}.py, not of {method}.py")
        if config.get("eval_only"):
            raise BadInput(f"{source} is an evaluation, not a training: name the run itself")
        missing = preset.keys() - config.keys()
        if missing:
            older = f"an older version of {method}.py made it"
            raise BadInput(f"{source} does not say {min(missing)}: {older}")
        saved = {}
        for action in self._actions:
            name = action.dest
            if name not in config or name in self.OF_A_CALL:
                continue
            value = config[name]
            fits = can_give(action, value)
            if value is None:
                fits = self.may_be_none(action)
            need(fits, f"{source}: its config.json says {name} is {value!r}, which no flag gives")
            saved[name] = value
        flags = {action.dest for action in self._actions} - {"help"}
        absent = flags - self.OF_A_CALL - config.keys()
        if absent:
            print(f"{source} does not say {', '.join(sorted(absent))}: the defaults count")
        for action in self._actions:
            if action.dest in absent:
                saved[action.dest] = action.default
        return saved

    def may_be_none(self, action: argparse.Action) -> bool:
        """Whether a flag may have no value: it has no default, and not every preset has a value."""
        if action.default is not None:
            return False
        of_presets = [preset.get(action.dest) for preset in self.presets.values()]
        return None in of_presets or not of_presets


def can_give(action: argparse.Action, value) -> bool:
    """Whether a flag can give this value to its setting."""
    if action.nargs == 0:  # a switch
        return isinstance(value, bool)
    values = [value]
    if action.nargs == "+":
        values = value
    if not isinstance(values, list) or len(values) == 0:
        return False
    kind = action.type or str
    try:
        typed = [kind(str(each)) for each in values]
    except (ValueError, argparse.ArgumentTypeError):
        return False
    allowed = action.choices or typed
    return typed == values and all(each in allowed for each in typed)


def check_device(device: str) -> None:
    """BadInput unless a tensor can be made on the device."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ValueError, ImportError) as error:
        reason = str(error).partition(". ")[0].splitlines()[0]  # torch goes on for a page
        raise BadInput(f"--device {device} is not there: {reason}") from error


def check_compiler(device: str) -> None:
    """BadInput unless the C++ compiler is there that torch.compile calls on a CPU."""
    if torch.device(device).type != "cpu":
        return
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", usual)
    need(shutil.which(compiler), f"--compile needs a C++ compiler: there is no {compiler}")


@torch.no_grad()
def print_shapes(model: nn.Module, args: argparse.Namespace) -> None:
    """Print what each part makes of a batch of images: `head: (256, 64) → (256, 256)`.

    Parts that images do not go through have no line.
    """

    def watch(name: str, part: nn.Module):
        def tell(_, inputs, output):
            print(f"{name}: {tuple(inputs[0].shape)} → {tuple(output.shape)}", flush=True)

        return part.register_forward_hook(tell)

    watches = [watch(name, part) for name, part in model.named_children()]
    size = args.image_size
    model.eval()  # BatchNorm's statistics stay as they are
    model(torch.zeros(args.batch_size, 3, size, size, device=args.device))
    for each in watches:
        each.remove()


# -------------------------------------------------------------------------------------- run folder
COLUMNS = {  # of the final table, and their keys in a record; interpret.py's own follows it
    "LP@1": "lp1",
    "LP@5": "lp5",
    "z: LP@1": "lp1_embedding",
    "5-NN": "knn5",
    "200-NN": "knn200",
    "z: 5-NN": "knn5_embedding",
    "P@10": "p_at_10",
    "Act.": "act",
    "H_s": "entropy",
    "Corr.": "corr",
}
# What a finished run and the programs that read it leave; the first says that it is finished.
FINISHED = (
    "backbone.pt",
    "embeddings.npz",
    "text.npz",
    "finetune.json",
    "robustness.json",
    "selection.json",
    "words.json",
    "stability.json",
    "dictionaries.json",
    "interpret.json",
    "interpret.txt",
    "dimensions.csv",
    "look.html",
    "top_images.png",
    "active_images.png",
    "dimensions.png",
    "selection.png",
    "collapse.png",
    "spectra.png",
)


@contextlib.contextmanager
def replacing(path: Path):
    """A binary file that takes the place of `path` once the block has ended well; else BadInput."""
    tmp = path.with_name(path.name + ".tmp")
    try:
        with open(tmp, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(tmp, path)
    except (OSError, RuntimeError) as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # which torch.save hides
            raise error.__context__ from None
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = f"is the disk full? {error}"  # torch.save does not say
        text = f"{path} could not be written ({reason}); what was there before is intact"
        raise BadInput(text) from error
    finally:
        with contextlib.suppress(OSError):
            tmp.unlink()  # where the block has not ended well


def write_json(path: Path, value: dict) -> None:
    """Replace the file `path` by this, as JSON; a file that was there stays whole until then."""
    with replacing(path) as file:
        file.write(json.dumps(value, indent=1).encode() + b"\n")


def new_folder(path: str | Path, settings: dict, device: torch.device) -> Path:
    """An unused run folder with config.json: the settings, the commit, the machine."""
    path = Path(path)
    config = path / "config.json"
    settings = settings | made_by(device)
    need(not config.exists(), f"--out {path} is taken by another run; name a new folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {path} cannot be made ({error.strerror})") from error
    write_json(config, settings)
    return path


def made_by(device: torch.device) -> dict:
    """What a record names beside the settings: commit, hardware, torch and date."""
    return dict(
        commit=commit(),
        hardware=hardware(device),
        torch=torch.__version__,
        date=time.strftime("%Y-%m-%d"),
    )


def commit() -> str | None:
    """The commit of this file, with a + where files have changed since; None outside of git."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=10", "--dirty=+"]
    try:
        here = Path(__file__).parent
        done = subprocess.run(command, cwd=here, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def hardware(device: torch.device) -> str:
    """The GPU's name; or the processor's, where Linux tells it, and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = "CPU"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(": ")[2]
                break
    return f"{name}, {torch.get_num_threads()} threads"


def has_bf16(device: torch.device) -> bool:
    """Whether bf16 is faster than fp32 there: GPUs from Ampere on, CPUs with AMX or AVX512-BF16."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(kind) for kind in ("amx_bf16", "avx512_bf16"))


def load_checkpoint(path: Path) -> dict:
    """A checkpoint, on the CPU; BadInput where it is none or is damaged. Never a pickled object."""
    try:
        damaged = zipfile.ZipFile(path).testzip()  # torch.load would not notice
        if damaged:
            raise ValueError(f"{damaged} in it is damaged")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a truncated archive, a foreign pickle: each fails in its own way
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"{path} cannot be read as a checkpoint ({reason})") from error


class Run:
    """A run's folder, precision and checkpoints. Under torchrun rank 0 alone writes."""

    latest: "Run | None" = None  # the one that Ctrl-C saves

    def __init__(self, args: argparse.Namespace, data: Data):
        self.args = args
        self.device = torch.device(args.device)
        self.epochs = 0  # that are done
        self.seconds = 0.0  # of training
        self.epoch_began = 0.0  # by time.perf_counter()
        self.saved_seconds = 0.0  # those that checkpoint.pt has
        self.write_seconds = 0.0  # that the last writing of it took
        self.unsaved = None  # what checkpoint.pt would hold if it was written now
        now = datetime.now().strftime("%Y%m%d-%H%M%S-%f")  # microseconds, for runs of one loop
        new = f"runs/{args.method}-{Path(args.dataset).name}-seed{args.seed}-{now}"
        self.folder = Path(args.resume or args.out or new)
        precision = args.precision
        if precision == "auto":
            precision = "bf16" if has_bf16(self.device) else "fp32"
        if args.resume:
            precision = self.as_begun(precision)
        self.bf16 = precision == "bf16"
        if rank() == 0 and not args.resume:
            settings = vars(args) | dict(precision_used=precision, processes=world())
            new_folder(self.folder, settings, self.device)
            (self.folder / "metrics.jsonl").touch()
        where = f"{hardware(self.device)}, {precision}: {self.folder}"
        print(f"{args.method} on {args.dataset}, seed {args.seed}, {where}")
        n, _, height, width = data.images.shape
        views = f"views of {args.image_size} × {args.image_size}"
        if args.image_size != max(height, width):
            views += " (--image-size)"
        print(f"{n} training images of {height} × {width} pixels, {views}", flush=True)
        Run.latest = self

    def as_begun(self, precision: str) -> str:
        """The precision that a resumed run began with; BadInput where it had other processes."""
        path = self.folder / "config.json"
        settings = json.loads(path.read_text())
        processes = settings.get("processes", world())
        advice = f"go on with torchrun --nproc_per_node={processes}"
        need(processes == world(), f"the run began with {processes} processes: {advice}")
        kind = settings.get("device", self.device.type).partition(":")[0]
        need(kind == self.device.type, f"the run began on {kind}: add --device {kind}")
        precision = settings.get("precision_used", precision)
        need(precision in ("bf16", "fp32"), f"{path} says precision_used is {precision!r}")
        return precision

    def compile(self, function):
        """torch.compile of a module or function where --compile asks for it."""
        return torch.compile(function) if self.args.compile else function

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model; under torchrun in DistributedDataParallel, on GPUs with one BatchNorm."""
        if world() == 1:
            return model
        if self.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        # static_graph: some weights get no gradient. Each process keeps BatchNorm's statistics of
        # its own, and rank 0 saves its own: torch 2.11 cannot share them here.
        Parallel = nn.parallel.DistributedDataParallel
        share = "forward_sync_buffers"
        if share not in inspect.signature(Parallel).parameters:
            share = "broadcast_buffers"  # before torch 2.13
        return Parallel(model, static_graph=True, **{share: False})

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load what --eval-only or --resume names; → the epochs that are done.

        --eval-only sets args.epochs to these, so that no epoch is left. --verbose prints shapes.

        A run that was killed before its first checkpoint begins anew.
        """
        args = self.args
        if args.verbose:
            print_shapes(model, args)
        if args.eval_only:
            args.epochs = self.load(Path(args.eval_only), model)
            return args.epochs
        if not args.resume:
            return 0

        done = 0
        path = self.folder / "checkpoint.pt"
        if path.exists():
            done = self.load(path, model, optimizer)
        if done > args.epochs:
            trained = f"the run in {self.folder} has trained {done} already"
            raise BadInput(f"--epochs {args.epochs}: {trained}")
        if rank() == 0:
            self.truncate_log(done)  # first: it may refuse, and then all stays
            if done < args.epochs:
                self.unfinish()
            self.renew_config()
        print(f"goes on after epoch {done}")
        return done

    def load(self, path: Path, model: nn.Module, optimizer=None) -> int:
        """Load a checkpoint into the model, and into the optimizer if given; → its epochs."""
        checkpoint = load_checkpoint(path)
        try:
            model.load_state_dict(checkpoint["model"])
            if optimizer:
                optimizer.load_state_dict(checkpoint["optimizer"])
            self.seconds = self.saved_seconds = float(checkpoint["seconds"])
            self.epochs = checkpoint["epochs"]
            if not isinstance(self.epochs, int) or self.epochs < 1:
                raise ValueError(f"epochs is {self.epochs!r}")
            return self.epochs
        except Exception as error:  # what a changed or foreign file may lack
            reason = f"{type(error).__name__}: {error}"
            raise BadInput(f"{path} does not fit these settings ({reason})") from error

    def unfinish(self) -> None:
        """Remove what a finished run leaves: its weights and arrays are of fewer epochs."""
        for name in FINISHED:
            (self.folder / name).unlink(missing_ok=True)

    def truncate_log(self, epochs: int) -> None:
        """Keep the lines of so many epochs: what came after the checkpoint comes again."""
        path = self.folder / "metrics.jsonl"
        path.touch()  # a run that was killed at its very start has none
        lines = path.read_text(errors="replace").splitlines(keepends=True)[:epochs]
        found = []
        with contextlib.suppress(ValueError, TypeError, KeyError):  # what is no record has none
            for line in lines:
                found.append(json.loads(line)["epoch"])
        whole = found == list(range(1, epochs + 1))
        need(whole, f"{path} lacks lines of epochs 1 to {epochs}: restore it, or begin a new run")
        kept = "".join(lines)
        with replacing(path) as file:
            file.write(kept.encode())

    def renew_config(self) -> None:
        """Write into config.json what has changed since the run began.

        data_root, checkpoint_every    as this call has them
        epochs         --epochs, which may have grown
        epochs_before  what it was: the epochs that are done had the learning rates of so many
        resumed        made_by(), for each time that the run went on with other code, on another
                       machine or with another torch
        """
        path = self.folder / "config.json"
        settings = json.loads(path.read_text())
        if self.args.epochs > settings["epochs"]:
            settings["epochs_before"] = [*settings.get("epochs_before", []), settings["epochs"]]
        for name in Parser.MAY_CHANGE:
            settings[name] = getattr(self.args, name)

        latest = settings
        resumed = settings.get("resumed", [])
        if resumed:
            latest = resumed[-1]
        now = made_by(self.device)
        if any(latest.get(key) != now[key] for key in ("commit", "hardware", "torch")):
            settings["resumed"] = [*resumed, now]
        write_json(path, settings)

    def begin_epoch(self, epoch: int) -> None:
        """Start the clock, and seed what the epoch draws by seed, epoch and process alone.

        So resumed runs draw the same.
        """
        # Another number for each of the three, as long as epoch and rank are below 10,007.
        torch.manual_seed((self.args.seed * 10_007 + epoch) * 10_007 + rank())
        self.epoch_began = time.perf_counter()

    def end_epoch(self, epoch: int, log: list[dict], model: nn.Module, optimizer) -> None:
        """Write and show the means of the steps in `log`, of epoch `epoch` (from 0), and save.

        A loss or a weight that is not finite ends the run with exit code 3, before it reaches a
        checkpoint. A warning says where most images have no active dimension.
        """
        means = {}
        for key in log[0]:
            means[key] = torch.stack([step[key] for step in log]).mean().item()
        seconds = time.perf_counter() - self.epoch_began
        self.seconds += seconds
        done = epoch + 1
        finite = torch.stack([p.isfinite().all() for p in model.parameters()]).all()
        if not (finite and math.isfinite(means["loss"])):
            if rank() == 0:
                self.say_lost(done)
            sys.exit(3)
        if rank() > 0:
            return

        epochs = self.args.epochs
        rate = len(log) * self.args.batch_size / seconds
        lr = optimizer.param_groups[0]["lr"]
        line = dict(epoch=done, **means, lr=lr, images_per_s=rate)
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())  # checkpoint.pt is never ahead of it

        left = (epochs - done) * self.seconds / done
        shown = [f"epoch {done}/{epochs}", f"{left:.0f} s left", f"{rate:.0f} images/s"]
        shown += [f"{key} {value:.4g}" for key, value in means.items()]
        print("  ".join(shown), flush=True)
        if means.get("empty", 0) > 0.5:
            text = "of the images have no active dimension: the embedding collapses"
            print(f"epoch {done}: {means['empty']:.0%} {text}", file=sys.stderr)

        self.epochs = done
        self.unsaved = dict(
            epochs=done,
            seconds=self.seconds,
            model=model.state_dict(),
            optimizer=optimizer.state_dict(),
        )
        if self.is_due():
            self.save()
        else:
            self.unsaved = copy.deepcopy(self.unsaved)  # the next steps change the weights

    def say_lost(self, epoch: int) -> None:
        """Save the good epochs, and say that `epoch` is not one."""
        if self.unsaved:
            self.save()
        kept = f"checkpoint.pt is of epoch {self.epochs}"
        if self.epochs == 0:
            kept = "there is no checkpoint yet"
        print(f"epoch {epoch}: the loss or a weight is not finite; {kept}", file=sys.stderr)

    def is_due(self) -> bool:
        """Whether to write a checkpoint: every so many epochs, or at a cost of 1 % of the time."""
        every = self.args.checkpoint_every
        if self.epochs == self.args.epochs:
            return True
        if every:
            return self.epochs % every == 0
        return self.seconds - self.saved_seconds >= 100 * self.write_seconds

    def save(self) -> None:
        """Write checkpoint.pt."""
        start = time.perf_counter()
        with replacing(self.folder / "checkpoint.pt") as file:
            torch.save(self.unsaved, file)
        self.write_seconds = time.perf_counter() - start
        self.saved_seconds = self.seconds
        self.unsaved = None

    def stop(self) -> str:
        """Save the epochs that are done, at Ctrl-C; → a line that says how to go on."""
        if self.args.eval_only:
            return "stopped before its end"
        if self.unsaved:
            self.save()
        launcher = "python" if world() == 1 else f"torchrun --nproc_per_node={world()}"
        again = [sys.argv[0], "--resume", str(self.folder), "--device", self.args.device]
        if getattr(self.args, "compile", False):
            again.append("--compile")
        command = f"{launcher} {shlex.join(again)}"
        return f"stopped after epoch {self.epochs} of {self.args.epochs}; go on: {command}"

    def finish(self, metrics: dict, backbone: nn.Module) -> None:
        """Write the final record, and backbone.pt for torchvision's ResNet; print the tables."""
        epochs = self.args.epochs
        metrics = dict(event="final", epochs=epochs, **metrics, seconds_train=self.seconds)
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(metrics) + "\n")
        weights = {}
        for name, value in backbone.state_dict().items():
            weights[name] = value.cpu().contiguous()
        with replacing(self.folder / "backbone.pt") as file:
            torch.save(weights, file)
        print(table(self.args.method, metrics))
        print(f"{LEGEND}\n{interpret.LEGEND}")
        print(f"{self.seconds:.0f} s of training. Pictures: python look.py {self.folder}")


def table(method: str, metrics: dict) -> str:
    """The final record as Markdown tables: the network's accuracy, then what its dimensions say."""
    prefixes = {"class": ""}
    if "background_cons" in metrics:
        prefixes["background"] = "background_"
    rows = [[method, *COLUMNS]]
    for label, prefix in prefixes.items():
        cells = [label]
        for key in COLUMNS.values():
            digits = 3 if key in ("act", "entropy", "corr") else 1
            cells.append(interpret.format_number(metrics.get(prefix + key), digits))
        rows.append(cells)

    groups = {"top": {}, "shuffled": {}, "head": {}, "rotated": {}}
    for key, value in metrics.items():
        group, _, name = key.partition("_")
        if group in groups:
            groups[group][name] = value
    numbers = groups.pop("top") or metrics
    controls = {name: found for name, found in groups.items() if found}
    beside = "\n".join(interpret.beside_directions(numbers))
    return f"{markdown(rows)}\n\n{interpret.table(numbers, controls)}\n{beside}"


# ----------------------------------------------------------------- what tools need of finished runs
def read_json(path: Path) -> dict:
    """A file of JSON; BadInput where it is damaged."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise BadInput(f"{path} is damaged; delete it ({error})") from error


def read_run(folder: Path) -> argparse.Namespace:
    """A run's settings; BadInput for a folder without them."""
    needed = {"method", "dataset", "data_root", "limit", "arch", "image_size"}
    needed |= {"min_scale", "jitter", "gray", "blur", "crop"}  # of its views
    try:
        settings = json.loads((folder / "config.json").read_text())
        missing = needed - settings.keys()
    except (OSError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"{folder} is not a run of an image method ({reason})") from error
    if missing:
        reason = f"no {min(missing)} in config.json"
        raise BadInput(f"{folder} is not a run of an image method ({reason})")
    return argparse.Namespace(**settings)


def load_run(folder: Path) -> tuple[argparse.Namespace, nn.Module]:
    """The settings and the trained model, on the CPU, of a finished run of any method."""
    run = read_run(folder)
    if getattr(run, "eval_only", None):
        trained = Path(run.eval_only).parent
        lacks = f"is an evaluation of {run.eval_only}, without a checkpoint.pt"
        raise BadInput(f"{folder} {lacks}: name {trained}")
    if not (folder / "backbone.pt").exists():
        raise BadInput(f"{folder} has no backbone.pt: the run has not finished")
    checkpoint = load_checkpoint(folder / "checkpoint.pt")
    try:
        method = importlib.import_module(run.method)
        model = method.network(run)
        model.load_state_dict(checkpoint["model"])
    except (ImportError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"{folder} cannot be rebuilt from its settings ({reason})") from error
    return run, model


def load_backbone(backbone: nn.Module, folder: Path) -> None:
    """Load the weights that a finished run has left; BadInput where they do not fit."""
    path = folder / "backbone.pt"
    need(path.exists(), f"{folder} has no backbone.pt: the run has not finished")
    weights = load_checkpoint(path)
    try:
        backbone.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        raise BadInput(f"{path} does not fit its config.json ({error})") from error


def labelled(run: argparse.Namespace, root: str | None, task: str) -> Data:
    """The data set of a run; BadInput where it lacks labels of two classes for the task."""
    data = load_data(run.dataset, root or run.data_root, limit=run.limit)
    if data.y_train is None or len(data.y_train.unique()) < 2:
        raise BadInput(f"{task} needs labels of two classes or more, which {data.name} lacks")
    return data


def progress(items, what: str):
    """Yield the items and say on standard error how far it is.

    items: anything with a length. A terminal shows one line that rewrites itself; elsewhere there
    is a line every ten seconds at most.
    """
    terminal = sys.stderr.isatty()
    began = time.monotonic()
    next_line = began + 10
    try:
        for done, item in enumerate(items):
            now = time.monotonic()
            if terminal or now >= next_line:
                text = f"{what}: {done}/{len(items)}"
                if done:
                    text += f", {(now - began) / done * (len(items) - done):.0f} s left"
                if terminal:
                    text = f"\r\x1b[K{text}"
                print(text, end="" if terminal else "\n", file=sys.stderr, flush=True)
                next_line = now + 10
            yield item
    finally:  # an error's line begins at the left too
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------- programs
def keep_freed_memory() -> None:
    """Have the C library keep the memory that is freed, where it is glibc's.

    New pages make a training take longer: on two cores of an Intel Xeon by 9 % with ResNet-8 and
    5 % with ResNet-20, on those of an AMD EPYC by 14 % with ResNet-20.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    largest = 2**31 - 1
    if mallopt(M_MMAP_THRESHOLD, largest):  # glibc before 2.35 refuses
        mallopt(M_TRIM_THRESHOLD, largest)


def join_torchrun() -> None:
    """Where torchrun started this process, join the others; only the first of them prints."""
    local_rank = os.environ.get("LOCAL_RANK")
    if local_rank is None:
        return
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        remedy = f"torchrun --nproc_per_node={gpus}, or on CPUs CUDA_VISIBLE_DEVICES= torchrun ..."
        need(int(local_rank) < gpus, f"more processes than GPUs: {remedy}")
        torch.cuda.set_device(int(local_rank))
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        dist.init_process_group("gloo")
    if rank() > 0:
        sys.stdout = open(os.devnull, "w", errors="replace")
        signal.signal(signal.SIGINT, fall_silent)


def fall_silent(*_) -> None:
    """At Ctrl-C in all processes but the first: go on working, and print no errors.

    The first process may need the others to end its step before it saves. Once it has left, they
    fail, and nobody needs to read of that.
    """
    sys.stderr = sys.stdout  # which join_torchrun has sent nowhere


def stop(program: str) -> NoReturn:
    """At Ctrl-C: have the run save what it has, say how to go on, and end with exit code 130."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun sends it again
    advice = "stopped before its end"
    if Run.latest:
        advice = Run.latest.stop()
    print(f"{program}: {advice}", file=sys.stderr)
    sys.exit(130)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory is short: numpy, CUDA and torch on a CPU each say it in another way."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "DefaultCPUAllocator" in str(error)


def launch(main) -> None:
    """Run a program's main(), under torchrun as one of its processes.

    The user's errors are one line and exit code 2. At Ctrl-C an image method saves the epochs that
    are done; exit code 130.
    """
    program = Path(sys.argv[0]).name
    for stream in sys.stdout, sys.stderr:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack a letter
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False  # fp32 is float32
    keep_freed_memory()
    hint = ""
    try:
        join_torchrun()
        try:
            main()
        except KeyboardInterrupt:
            stop(program)
        if dist.is_initialized():  # not after an error: it would wait for the others
            dist.destroy_process_group()
        return
    except (BadInput, OSError) as error:
        reason = error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = error
        hint = "out of memory (in training: halve --batch-size): "
    text = " ".join(str(reason).split())[:400]
    print(f"{program}: {hint}{text}", file=sys.stderr)
    sys.exit(2)
