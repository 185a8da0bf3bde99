"""What every method file shares: views, network, evaluation; below a ruler files and flags. No loss, no training loop.

    two_views(images, size) → two float32 batches (N, 3, S, S), augmented where the uint8 images are
    resnet(arch, size) → a ResNet without classifier and its dimension d; LARS, lr_at, set_lr
    evaluate(run, data, model) → linear probe, kNN, what the dimensions stand for; gather for torchrun

Where all methods differ from their authors' code: 1. the CIFAR stem has padding 1 (NCL: 2); 2. views are torchvision's
operators on floats, theirs PIL's on bytes with box blur (NCL on ImageNet-100: DALI's); on a CPU parts of a batch share
an order of colour operators; 3. ImageNet is shrunk to 256 pixels and cut square: no crop sees the margins; 4. inputs
are (x − 0.5) / 0.25; 5. the probe is convex, neighbours are by cosine (SparseHead's: Euclidean); 6. bf16 (NCL: fp16),
rates and momenta per step (some: epoch), warm-ups from 1/(n + 1) of the peak (3e-5); 7. on a CPU BatchNorm per process.
"""
import argparse
import contextlib
import ctypes
import dataclasses
import importlib
import json
import math
import os
import shlex
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torchvision
import torchvision.transforms.v2.functional as TF
from torch import Tensor

import interpret
from interpret import ACTIVE, BadInput, markdown


# ------------------------- views: torchvision's operators on float tensors, with parameters per image, equal to 1e-5
def crop_matrix(start: Tensor, length: Tensor, inputs: int, size: int, flip=None, kind="bilinear") -> Tensor:
    """Crop starts and lengths (N,), in pixels → (N, size, inputs): row o weights the input pixels of output pixel o,
    around its centre, as wide as the shrinkage (anti-aliasing), cut off at the crop's border and normalised: a triangle
    (bilinear) or Keys' cubic with a = −½ (bicubic). Rows reversed where `flip` (N,) is true."""
    scale = (length / size)[:, None, None]
    start, length = start[:, None, None], length[:, None, None]
    o = torch.arange(size, device=start.device).view(1, -1, 1) + 0.5  # centres of output pixels
    j = torch.arange(inputs, device=start.device).view(1, 1, -1) + 0.5  # and of input pixels
    o = o if flip is None else torch.where(flip.view(-1, 1, 1), size - o, o)
    t = (j - start - scale * o).abs() / scale.clamp(min=1)  # (N, size, inputs), distance from the centre
    weight = near = (1 - t).clamp(min=0)
    if kind == "bicubic":  # 1 − 2.5 t² + 1.5 t³ up to 1, 2 − 4 t + 2.5 t² − 0.5 t³ up to 2; as one formula it is faster
        weight = (0.5 - 0.5 * t) * (2 - t).clamp(min=0).square() - (1 - 2 * t) * near.square()
    weight = weight * ((j > start) & (j < start + length))
    return weight / weight.sum(2, keepdim=True)


def resized_crop(x: Tensor, top, left, height, width, size: int, flip=None, kind="bilinear") -> Tensor:
    """Boxes (N,), in pixels, of x (N, 3, H, W) → (N, 3, size, size), mirrored where `flip`. Bicubic leaves [0, 1]."""
    n, c, h, w = x.shape
    across = crop_matrix(left, width, w, size, flip, kind)
    x = torch.bmm(x.reshape(n, c * h, w), across.mT).view(n, c, h, size)
    return crop_matrix(top, height, h, size, kind=kind)[:, None] @ x


def random_boxes(n: int, h: int, w: int, min_scale: float, device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """RandomResizedCrop's boxes: top, left, height, width, each (n,): area min_scale to 1, aspect 3/4 to 4/3. Like
    torchvision: ten tries, the first that fits, else the largest central box."""
    area = h * w * torch.empty(n, 10, device=device).uniform_(min_scale, 1)
    aspect = torch.empty(n, 10, device=device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    width, height = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (width >= 1) & (width <= w) & (height >= 1) & (height <= h)
    found, pick = fits.any(1), fits.int().argmax(1, keepdim=True)
    width = torch.where(found, width.gather(1, pick)[:, 0], min(w, round(h * 4 / 3)))
    height = torch.where(found, height.gather(1, pick)[:, 0], min(h, round(w * 4 / 3)))
    place = torch.rand(2, n, device=device)
    top = torch.where(found, place[0] * (h - height + 1), (h - height) / 2).floor()
    left = torch.where(found, place[1] * (w - width + 1), (w - width) / 2).floor()
    return top, left, height, width


def grayscale(x: Tensor) -> Tensor:
    """(N, 3, H, W) in [0, 1] → luma (N, 1, H, W), ITU-R 601-2."""
    return 0.2989 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of x (N, 3, H, W) in [0, 1] by shift (N, 1, 1, 1) turns. Of value V, chroma C, hue h in sixths,
    each channel is V − C + C·clamp(q, 0, 1), q a ramp of the hue: |h − 3| − 1, 2 − |h − 2|, 2 − |h − 4| for R, G, B."""
    r, g, b = x.unbind(1)
    value = x.amax(1)
    chroma = value - x.amin(1)
    scale = 1 / chroma.clamp(min=1e-9)  # a grey pixel has no hue; any will do
    hue = torch.where(value == g, 2 + (b - r) * scale, 4 + (r - g) * scale)
    hue = torch.where(value == r, (g - b) * scale, hue) + 6 * shift[:, 0]
    hue = hue - 6 * (hue / 6).floor()  # modulo 6
    q = torch.stack([(hue - 3).abs() - 1, 2 - (hue - 2).abs(), 2 - (hue - 4).abs()], 1).clamp_(0, 1)
    return torch.addcmul((value - chroma)[:, None], chroma[:, None], q)


ADJUST = [  # by factors (N, 1, 1, 1), of which 1, or 0 for hue, changes nothing: brightness, contrast, saturation, hue
    lambda x, factor: (x * factor).clamp(0, 1),
    lambda x, factor: torch.lerp(grayscale(x).mean((2, 3), keepdim=True), x, factor).clamp(0, 1),
    lambda x, factor: torch.lerp(grayscale(x), x, factor).clamp(0, 1),
    adjust_hue]


def gaussian_blur(x: Tensor, sigma: Tensor, kernel=13) -> Tensor:
    """Blur x (N, 3, S, S) with standard deviations sigma (N,) pixels, borders reflected. kernel: odd, at least 6σ of
    the largest σ in use, 2, and below 2·S."""
    n, c, s, _ = x.shape
    i, k = torch.arange(s, device=x.device), torch.arange(kernel, device=x.device) - kernel // 2
    taps = (-k.square() / (2 * sigma.square()[:, None])).softmax(1)  # (N, kernel), a normalised Gaussian
    source = s - 1 - (s - 1 - (i + k[:, None]).abs()).abs()  # (kernel, S): i + k, reflected at 0 and at S − 1
    matrix = (taps @ (source[:, :, None] == i).to(x.dtype).flatten(1)).view(n, s, s)
    return matrix[:, None] @ torch.bmm(x.reshape(n, c * s, s), matrix.mT).view_as(x)


def chance(p: float, x: Tensor) -> Tensor:
    """True with probability p for each image of x (N, …): (N, 1, 1, 1)."""
    return torch.rand(len(x), 1, 1, 1, device=x.device) < p


def on_cpu(x: Tensor) -> bool:
    """Whether x is worked on eagerly by a CPU, which may ask for values without waiting."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def random_colour(x: Tensor, jitter: float, gray: float) -> Tensor:
    """ColorJitter(jitter, jitter, jitter, jitter / 4) with probability 0.8, then grey with probability `gray`, of x
    (N, 3, H, W) in [0, 1]. The order of the operators is drawn per image; where on_cpu, to be fast, once for x."""
    change = torch.empty(4, len(x), 1, 1, 1, device=x.device).uniform_(-1, 1) * chance(0.8, x)  # 0 changes nothing
    factor = [*(1 + jitter * change[:3]).clamp(min=0), jitter / 4 * change[3]]
    if on_cpu(x):
        for k in torch.randperm(4).tolist() if jitter else ():
            x = ADJUST[k](x, factor[k])
    elif jitter:
        for turn in torch.rand(len(x), 4, device=x.device).argsort(1).T.view(4, -1, 1, 1, 1):
            before = x  # turn (N, 1, 1, 1): the operator that each image gets next
            for k in range(4):
                x = torch.where(turn == k, ADJUST[k](before, factor[k]), x)
    return torch.where(chance(gray, x), grayscale(x), x)


def augment(x, size, min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic", colour_first=False, flip=0.5):
    """One random view (N, 3, size, size) float32 in [0, 1] of images x (N, 3, H, W) uint8, drawn per image (SimCLR):
    RandomResizedCrop (area min_scale to 1), flip (p = `flip`), colour, Gaussian blur (p = `blur`, σ ~ U(0.1, 2))."""
    part = max(1, 2**16 // max(size**2, x[0, 0].numel()))  # images that stay in a CPU's cache, by measurement
    if len(x) > part and on_cpu(x):
        options = min_scale, jitter, gray, blur, crop, colour_first, flip
        return torch.cat([augment(y, size, *options) for y in x.split(part)])
    x = random_colour(x.float() / 255, jitter, gray) if colour_first else x.float() / 255
    boxes = random_boxes(len(x), *x.shape[2:], min_scale, x.device)
    x = resized_crop(x, *boxes, size, chance(flip, x).flatten(), crop).clamp(0, 1)
    x = x if colour_first else random_colour(x, jitter, gray)
    if blur:
        chosen, sigma = chance(blur, x).flatten(), torch.empty(len(x), device=x.device).uniform_(0.1, 2)
        if on_cpu(x):
            x[chosen] = gaussian_blur(x[chosen], sigma[chosen])
        else:
            x = torch.where(chosen.view(-1, 1, 1, 1), gaussian_blur(x, sigma), x)
    return x


def normalise(x: Tensor) -> Tensor:
    """[0, 1] → about zero mean and unit variance, with the same two numbers for every data set."""
    return (x - 0.5) / 0.25


def two_views(x: Tensor, size: int, **options) -> tuple[Tensor, Tensor]:
    """Two independent views, (N, 3, size, size) float32, normalised, of x (N, 3, H, W) uint8; `augment`'s options."""
    return normalise(augment(torch.cat([x, x]), size, **options)).chunk(2)


def eval_view(x: Tensor, size: int) -> Tensor:
    """The evaluation view (N, 3, size, size) of x (N, 3, H, W) uint8, normalised: the central square, resized; for
    images of 8/7 that size (ImageNet's 256 for 224) the central pixels as they are."""
    side = min(x.shape[2:])
    x = TF.center_crop(x, [size if 7 * side == 8 * size else side]).float() / 255
    return normalise(x if x.shape[3] == size else TF.resize(x, [size, size], antialias=True))


# ------------------------------------------------------------------------------------------------------------- network
def resnet(arch: str, image_size: int, zero_init_residual=False) -> tuple[nn.Module, int]:
    """A backbone without classifier, (N, 3, S, S) → h (N, d), and d. resnet18, 34, 50: torchvision's; up to 96 pixels
    with a 3×3 stride-1 first convolution, up to 48 without max-pool too (the CIFAR stem). resnet8, 20: the CIFAR family
    of He et al. 2016, shortcuts as torchvision's. zero_init_residual: branches start at 0 (Goyal et al. 2017)."""
    if arch in ("resnet18", "resnet34", "resnet50"):
        net = getattr(torchvision.models, arch)(zero_init_residual=zero_init_residual)
        d, net.fc = net.fc.in_features, nn.Identity()
        net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if image_size <= 96 else net.conv1
        net.maxpool = nn.Identity() if image_size <= 48 else net.maxpool
        return net, d
    net, width = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)), 16
    for out in (16, 32, 64):
        for _ in range((int(arch.removeprefix("resnet")) - 2) // 6):
            skip = nn.Sequential(nn.Conv2d(width, out, 1, 2, bias=False), nn.BatchNorm2d(out)) if out > width else None
            net.append(torchvision.models.resnet.BasicBlock(width, out, stride=2 if skip else 1, downsample=skip))
            nn.init.constant_(net[-1].bn2.weight, 0.0 if zero_init_residual else 1.0)
            width = out
    for convolution in (module for module in net.modules() if isinstance(module, nn.Conv2d)):
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return net.append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten()), 64


class LARS(torch.optim.SGD):
    """Layer-wise adaptive rate scaling (You et al. 2017, arXiv 1708.03888): SGD with momentum; a weight's gradient g
    becomes r·(g + decay·w), r = trust·‖w‖ / (‖g‖ + decay·‖w‖), with `clip` min(r / lr, 1); r = 1 if w = 0, 0 if g = 0.
    Biases and norms: plain SGD without decay. NCL: trust 0.02 and clip; on ImageNet 0.001 without is common."""
    def __init__(self, params, lr: float, weight_decay=1e-4, momentum=0.9, trust=0.02, clip=True):
        super().__init__(params, lr=lr, momentum=momentum)
        self.decay, self.trust, self.clip = weight_decay, trust, clip

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:  # all layers in a few calls, on which a GPU's speed depends
            weights = [p for p in group["params"] if p.ndim > 1 and p.grad is not None]
            if weights:
                gradients = [p.grad for p in weights]
                w, g = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, gradients))  # (layers,)
                ratio = self.trust * w / (g + self.decay * w + 1e-8)
                ratio = (ratio / max(group["lr"], 1e-12)).clamp(max=1) if self.clip else ratio
                torch._foreach_add_(gradients, weights, alpha=self.decay)
                torch._foreach_mul_(gradients, (torch.where(w > 0, ratio, 1.0) * (g > 0)).unbind())
        super().step()


OPTIMIZERS = {"lars": LARS, "sgd": lambda params, **kw: torch.optim.SGD(params, momentum=0.9, fused=True, **kw),
              "adam": lambda params, **kw: torch.optim.Adam(params, fused=True, **kw)}


def lr_at(step: int, steps: int, warmup: float = 0) -> float:
    """The share of the peak learning rate at a step (from 0): linear over `warmup` steps, at most half, then cosine."""
    warmup = min(round(warmup), steps // 2)
    after = (step - warmup) / max(1, steps - warmup)
    return (step + 1) / (warmup + 1) if step < warmup else 0.5 + 0.5 * math.cos(math.pi * after)


def set_lr(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Every group's learning rate to `share` of its peak, but for groups with "fixed_lr"."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("peak_lr", group["lr"]) * (1 if group.get("fixed_lr") else share)


# ---------------------------------------------------------------------------------------------------------- evaluation
@torch.no_grad()
def features(model: nn.Module, images: Tensor, size: int, device="cpu", view=eval_view) -> tuple[Tensor, Tensor]:
    """h (N, d) and e (N, K), the methods' z, float32, of a view of images: the model's first outputs in eval mode."""
    model.eval()
    pairs = [model(view(part.to(device), size))[:2] for part in images.split(500)]
    return tuple(torch.cat(outputs).float() for outputs in zip(*pairs))


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T of a (N, D), b (M, D), which may be `packed` before."""
    a, b = packed(a), packed(b)
    return F.linear(a, b).to_dense() if a.is_mkldnn else a @ b.T


def packed(x: Tensor) -> Tensor:
    """x, if float32 on a CPU, in oneDNN's layout, whose products on AMD's are 2 to 4 times as fast as MKL's."""
    own = x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return x.to_mkldnn() if own and not x.is_mkldnn else x


def logistic_regression(x: Tensor, y: Tensor, W: Tensor, strengths):
    """Features x (N, D), the last a constant 1; labels y (N,); a first W (C, D). Yield for each l2 of `strengths` the W
    of the least mean cross-entropy + l2/2·‖W‖², the constant's column free, from the last one on: by LBFGS until a step
    gains less than 3e-5 nats, in V = W·L, LLᵀ = mean p(1 − p)·xᵀx/N + l2, because V's Hessian is near 1."""
    rows, columns = packed(x), packed(x.T)
    second = product(columns, columns).cpu().double() / len(x)  # (D, D)
    target = product(F.one_hot(y, len(W)).T.to(x.dtype), columns) / len(x)  # (C, D)
    for l2 in strengths:
        p, penalty = product(W, rows).softmax(0), F.pad(torch.full_like(W[0, 1:], l2), (0, 1))  # (C, N), (D,)
        L = torch.linalg.cholesky((p * (1 - p)).mean().clamp(min=1e-6).item() * second + penalty.cpu().double().diag())
        unscale = 1e3 * torch.linalg.inv(L).to(x)  # LBFGS's first step is −gradient, times 1/‖gradient‖₁
        V = W @ L.to(x) / 1e3  # if that is below 1, as it were without V / 1e3 and loss / 1e6
        def closure():
            W = V @ unscale
            logits = product(W, rows)  # (C, N)
            p = logits.softmax(0)
            V.grad = 1e-6 * (product(p, columns) / len(x) - target + penalty * W) @ unscale.T
            logsumexp = logits.amax(0) - p.amax(0).log()
            return 1e-6 * (logsumexp.mean() - (W * target).sum() + (penalty * W.square()).sum() / 2)
        torch.optim.LBFGS([V], max_iter=200, tolerance_grad=0, tolerance_change=3e-11,
                          line_search_fn="strong_wolfe").step(closure)
        yield (W := V @ unscale)


def fit_probe(train: Tensor, y_train: Tensor, strengths=(1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)):
    """Logistic regression on features (N, d), standardised: a function from features to scores (N, C), and its l2, the
    best of `strengths` on a held-out tenth of the *training* set, all of which is then fitted."""
    mean, std = train.mean(0), train.std(0).clamp(min=1e-6)
    standard = lambda x: F.pad((x - mean) / std, (0, 1), value=1.0)
    train = standard(train)
    held = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)) < max(1, len(train) // 10)
    held, zero = held.to(train.device), train.new_zeros(int(y_train.max()) + 1, train.shape[1])
    tried = [*logistic_regression(train[~held], y_train[~held], zero, strengths)]
    right = [(product(train[held], W).argmax(1) == y_train[held]).float().mean().item() for W in tried]
    l2, start = max(zip(right, strengths, tried), key=lambda fit: fit[:2])[1:]  # of equals the stronger
    W = next(logistic_regression(train, y_train, start, [l2]))  # (C, d + 1)
    return lambda x: product(standard(x), W), l2


def linear_probe(train, y_train, test, y_test, **options) -> dict[str, float]:
    """fit_probe of the training set → {"lp1", "lp5"}, % of the test set (features (N, d), labels (N,)), and "l2"."""
    classify, l2 = fit_probe(train, y_train, **options)
    hits = (classify(test).topk(min(5, int(y_train.max()) + 1), 1).indices == y_test[:, None]).float()  # (N, 5)
    return {"lp1": 100 * hits[:, 0].mean().item(), "lp5": 100 * hits.amax(1).mean().item(), "l2": l2}


def neighbours(queries: Tensor, bank: Tensor, k: int, skip_self=False) -> tuple[Tensor, Tensor]:
    """Cosine similarities and indices, each (N, k), of the k nearest rows of bank (M, D) for queries (N, D), nearest
    first. With skip_self queries and bank are the same rows, and a row is not its own neighbour."""
    queries, bank, found = F.normalize(queries), packed(F.normalize(bank)), []
    for start in range(0, len(queries), 1000):
        similarity = product(queries[start : start + 1000], bank)
        if skip_self:
            similarity.diagonal(start).fill_(-2)
        found.append(similarity.topk(k, 1))
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def knn_accuracy(train: Tensor, y_train: Tensor, test: Tensor, y_test: Tensor) -> list[float]:
    """Accuracy in % of the votes of the nearest (cosine) in train (M, d) of test (N, d): the majority of 5, ties to the
    smaller class number; and of 200, each weighted by exp(cosine / 0.1) (Wu et al. 2018)."""
    (similarity, index), accuracy = neighbours(test, train, min(200, len(train))), []  # (N, 200) each
    for weight in (torch.ones_like(similarity[:, :5]), (similarity / 0.1).exp()):
        votes = torch.zeros(len(test), int(y_train.max()) + 1, device=test.device)
        votes.scatter_add_(1, y_train[index[:, : weight.shape[1]]], weight)
        accuracy.append(100 * (votes.argmax(1) == y_test).float().mean().item())
    return accuracy


def health(z: Tensor) -> dict[str, Tensor]:
    """Collapse indicators of a batch of embeddings z (N, K), as tensors (): "spread", mean std of z/‖z‖ times sqrt(K)
    (1 healthy, 0 collapsed); "act", share of active entries; "empty", of samples with none."""
    active = (z := F.normalize(z.detach().float())).abs() > ACTIVE
    return {"spread": z.std(0).mean() * z.shape[1] ** 0.5, "act": active.float().mean(),
            "empty": (~active).all(1).float().mean()}


# =================== from here on: data, flags, folders. Results are computed above; evaluate() calls what does it.
def rank() -> int:
    """The number of this process among all that train together; 0 for one."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors (n, ·) of this process → (N, ·) of the whole batch, of which under torchrun every process computes the
    same loss. Each back-propagates into its own rows, times world(): DistributedDataParallel takes the mean."""
    if world() == 1:
        return tensors
    own = torch.cat(tensors, 1)
    rows = [torch.empty_like(own) for _ in range(world())]
    dist.all_gather(rows, own.detach())
    rows[rank()] = own + (world() - 1) * (own - own.detach())  # the same value, the gradient times world()
    return torch.cat(rows).split([t.shape[1] for t in tensors], 1)


# ---------------------------------------------------------------------------------------------------------------- data
@dataclasses.dataclass
class Data:
    """Images (N, 3, H, W) uint8; of them labels, second labels `background` (N,) int64, captions (N,) str, or None.
    Labels are numbered 0, 1, ... without gaps; `classes` (C,) are the numbers that the data set gives these classes."""
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
        """What pre-training sees: x_unlabeled where there is one (STL-10's has the training images too), or x_train."""
        return self.x_train if self.x_unlabeled is None else self.x_unlabeled

    def steps(self, batch_size: int) -> int:
        """Batches in an epoch; BadInput when there is none, or no equal share of it for every process."""
        if batch_size > len(self.images) or batch_size % world():
            raise BadInput(f"--batch-size {batch_size}: at most {len(self.images)} images, and a multiple of {world()}")
        return len(self.images) // batch_size

    def batches(self, batch_size: int, seed: int, epoch: int, device):
        """Yield images (batch_size, 3, H, W) uint8 and their numbers on the device: a shuffled pass without the last,
        incomplete batch, under torchrun this process's share. From memory or disk a thread reads ahead of the step."""
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        order = order[: self.steps(batch_size) * batch_size].view(-1, world(), batch_size // world())[:, rank()]
        if self.images.device.type != "cpu":
            yield from ((self.images[index], index) for index in order.to(self.images.device))
            return
        read = lambda i: self.images[i].pin_memory() if torch.device(device).type == "cuda" else self.images[i]
        torch.get_num_threads()  # fixes this thread's OpenMP team; a second team would wait busily on its cores
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=[1]) as thread:
            following = thread.submit(read, order[0])
            for index, after in zip(order, [*order[1:], order[0, :0]]):  # at the end it reads nothing
                images, following = following.result(), thread.submit(read, after)
                yield images.to(device, non_blocking=True), index.to(device, non_blocking=True)


def load_data(name: str, root="data", *, limit: int | None = None, device="cpu") -> Data:
    """A data set by name: `shapes` (built in), <root>/<name>.npz, <root>/<name>/*.npy (memory-mapped; tools/decode.py
    makes them of image folders) or one that torchvision downloads; `limit` of its training images. Arrays go to a GPU
    with room for twice their size. BadInput, in one line, for anything that is missing or malformed."""
    for turn in range(world()):  # one process after the other: what the first downloads, the others find
        if turn == rank():
            data = checked(name, find_arrays(name, Path(root)))
        if world() > 1:
            dist.barrier()
    data = subset(data, limit) if limit else data
    tensors = {key: value for key, value in vars(data).items() if isinstance(value, Tensor)}
    bytes_of_all, cuda = sum(t.nbytes for t in tensors.values()), torch.device(device).type == "cuda"
    if cuda and 2 * bytes_of_all < torch.cuda.mem_get_info(device)[0]:
        data = dataclasses.replace(data, **{key: t.to(device) for key, t in tensors.items()})
    return data


DOWNLOADS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "stl10": "STL10", "svhn": "SVHN"}  # torchvision's classes
MEDMNIST = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}


def find_arrays(name: str, root: Path) -> dict[str, np.ndarray]:
    """The arrays of the data set `name`, in the first form that is there. Pickled objects are never read."""
    folder, archive = root / name, root / f"{name}.npz"
    if name == "shapes":
        import shapes
        return shapes.draw()
    files = [archive] if archive.exists() else sorted(folder.glob("*.npy"))
    if not files and (folder / "train").is_dir():
        raise BadInput(f"{folder} holds image files; decode them once: python tools/decode.py {folder} --size 256")
    if not files and name in DOWNLOADS:
        return download(name, root)
    if not files:
        raise BadInput(f"no data set '{name}': not shapes, {', '.join(DOWNLOADS)}; no {archive}, no {folder}/*.npy")
    arrays = {}
    for file in files:
        try:
            loaded = np.load(file, mmap_mode="c", allow_pickle=False)  # c: nothing is written back to the file
            arrays |= {MEDMNIST.get(k, k): loaded[k] for k in loaded.files} if file == archive else {file.stem: loaded}
        except Exception as error:  # what a damaged archive may raise is not listed anywhere
            raise BadInput(f"{file} cannot be read as plain numpy arrays ({type(error).__name__}: {error})")
    return arrays


def checked(name: str, arrays: dict[str, np.ndarray]) -> Data:
    """Data from arrays whose keys, types, shapes and labels are right; BadInput names the first that is not."""
    def need(condition, text):
        if not condition:
            raise BadInput(f"{name}: {text}")
    tensors = {}
    for key in ("x_train", "x_test", *(["x_unlabeled"] if "x_unlabeled" in arrays else [])):
        need(key in arrays, f"no {key}; the keys are x_train, x_test and, for labels, y_train, y_test")
        a = np.asarray(arrays[key])
        need(a.dtype == np.uint8, f"{key} is {a.dtype}; images are uint8, 0 to 255")
        a = a[..., None] if a.ndim == 3 else a  # grey without a channel axis
        need(a.ndim == 4 and len(a) > 1 and 0 not in a.shape and {a.shape[1], a.shape[3]} & {1, 3},
             f"{key} has shape {a.shape}; needed are two or more images as (N, H, W, 3), (N, 3, H, W) or grey")
        x = torch.from_numpy(a if a.shape[1] in (1, 3) and a.shape[3] not in (1, 3) else a.transpose(0, 3, 1, 2))
        tensors[key] = x.expand(-1, 3, -1, -1)  # no byte moves
    for kind in ("y", "background", "captions"):
        words, (train, test) = kind == "captions", (keys := (f"{kind}_train", f"{kind}_test"))
        need((train in arrays) == (test in arrays), f"{train} and {test} go together; one of them is missing")
        for key in keys if train in arrays else ():
            a, n = np.asarray(arrays[key]), len(tensors["x" + key.removeprefix(kind)])
            a = a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a
            right = a.dtype.kind == "U" and all(map(str.strip, a.flat)) if words else a.dtype.kind in "iu"
            what = f"captions are {n} strings that say something" if words else f"labels are {n} integers from 0 on"
            need(right and a.shape == (n,) and (words or a.min() >= 0),
                 f"{key} is {a.dtype} of shape {a.shape}; {what}, one per image")
            tensors[key] = a if words else torch.from_numpy(a.astype(np.int64))
        if train in arrays and not words:
            alien = sorted({*tensors[test].tolist()} - {*tensors[train].tolist()})
            need(not alien, f"{test} has classes that {train} has not: {str(alien[:5])[1:-1]}")
            classes, tensors[train] = tensors[train].unique(return_inverse=True)  # numbered 0, 1, … without gaps
            tensors[test] = torch.searchsorted(classes, tensors[test])
            tensors["classes" if kind == "y" else "background_classes"] = classes
    return Data(name, **tensors)


def subset(data: Data, limit: int) -> Data:
    """`limit` training images in their order, of every class its proportion to within one; x_unlabeled likewise."""
    if limit > len(data.images):
        raise BadInput(f"--limit {limit}: {data.name} has {len(data.images)} training images")
    spread = lambda n: torch.arange(min(limit, n)) * n // min(limit, n)  # evenly from 0 to n
    by_class = torch.arange(len(data.x_train)) if data.y_train is None else data.y_train.argsort(stable=True)
    keep = by_class[spread(len(by_class))].sort().values
    kept = {key: value[keep] for key, value in vars(data).items() if key.endswith("train") and value is not None}
    more = data.x_unlabeled if data.x_unlabeled is None else data.x_unlabeled[spread(len(data.x_unlabeled))]
    return dataclasses.replace(data, **kept, x_unlabeled=more)


def download(name: str, root: Path) -> dict[str, np.ndarray]:
    """The arrays of one of torchvision's data sets, which it fetches where they are not there yet."""
    cifar, parts, arrays = name.startswith("cifar"), {"train": "train", "test": "test"}, {}
    for key, part in (parts | {"unlabeled": "train+unlabeled"} if name == "stl10" else parts).items():
        try:
            split = {"train": part == "train"} if cifar else {"split": part}
            images = getattr(torchvision.datasets, DOWNLOADS[name])(root, download=True, **split)
        except Exception as error:  # whatever the network, the mirror or the archive does
            raise BadInput(f"{name} could not be downloaded ({error}); put it at {root / name}.npz by hand")
        arrays |= {f"x_{key}": images.data, f"y_{key}": np.asarray(images.targets if cifar else images.labels)}
    return arrays


# -------------------------------------------------------------------------------------------------------- command line
def within(low, high=math.inf, kind=float, closed=False):
    """An argparse type: a finite number between low and high, which are included where `closed`."""
    def parse(text):
        value = kind(text)
        if not (low < value < high or closed and value in (low, high) and abs(value) < math.inf):
            raise argparse.ArgumentTypeError(f"{text}; it must be {'>≥'[closed]} {low} and {'<≤'[closed]} {high}")
        return value
    parse.__name__ = kind.__name__  # for "invalid int value"
    return parse


class Parser(argparse.ArgumentParser):
    """Errors of one line, exit code 2; --device, --out, --resume. image_flags() adds what all image methods share."""
    OF_A_CALL = {"resume", "eval_only", "out", "device", "compile"}  # flags that belong to a call, not to a run
    presets = {}
    def __init__(self, file: str, doc: str):
        super().__init__(prog=Path(file).name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, cuda:1, cpu")
        self.add_argument("--out", help="run folder (default: a new one under runs/)")
        self.add_argument("--resume", metavar="RUN", help="go on with the run in this folder; --epochs may grow")

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")

    def image_flags(self, presets: dict[str, dict]):
        self.presets, add = presets, self.add_argument
        add("--dataset", default="shapes", help="shapes (built in), cifar10, cifar100, stl10, svhn, or your own")
        add("--preset", choices=presets, help="the settings of this data set; default: of any, good for short runs")
        add("--data-root", default="data", help="folder of the data sets (default: data)")
        add("--limit", type=within(1, kind=int), help="train on N images only, every class in its proportion")
        add("--arch", choices=["resnet8", "resnet20", "resnet18", "resnet34", "resnet50"], help="backbone")
        add("--image-size", type=within(7, kind=int), help="side of the views in pixels")
        add("--epochs", type=within(0, kind=int), help="passes over the training images")
        add("--batch-size", type=within(1, kind=int), help="images per step, of all processes together")
        add("--optimizer", choices=OPTIMIZERS, help="sgd with momentum 0.9")
        add("--lr", type=within(0), help="peak learning rate, not scaled by the batch size")
        add("--weight-decay", type=within(0, closed=True), help="not applied to biases and norms under LARS")
        add("--warmup", type=within(0, closed=True), help="epochs of linear warm-up, at most half the run")
        add("--min-scale", type=within(1e-3, 1, closed=True), help="smallest area of a random crop")
        add("--jitter", type=within(0, 1, closed=True), help="strength of colour jitter; hue a quarter of it")
        add("--gray", type=within(0, 1, closed=True), help="probability of a grey view")
        add("--blur", type=within(0, 1, closed=True), help="probability of Gaussian blur, σ from 0.1 to 2 pixels")
        add("--crop", choices=["bicubic", "bilinear"], help="interpolation of the random crops")
        add("--seed", type=within(-1, 2**32, int), default=1, help="of weights, views and the order of the images")
        add("--precision", choices=["auto", "bf16", "fp32"], default="auto", help="of the network; losses are fp32")
        add("--compile", action="store_true", help="torch.compile network, views and loss: for long runs on a GPU")
        add("--checkpoint-every", type=within(0, kind=int), default=10, help="epochs between checkpoints (default: 10)")
        add("--eval-only", metavar="CHECKPOINT", help="evaluate a run's checkpoint.pt; its settings are the defaults")

    def parse(self, argv=None) -> argparse.Namespace:
        """Flags over the settings of the run that --resume or --eval-only names, over the preset of the data set."""
        known, method, saved = vars(self.parse_known_args(argv)[0]), Path(self.prog).stem, {}
        preset = self.presets.get(known.get("preset") or known.get("dataset"), self.presets.get("default", {}))
        if source := known["resume"] or known.get("eval_only"):
            try:
                folder = Path(source) if known["resume"] else Path(source).parent
                saved = json.loads((folder / "config.json").read_text())
                if saved["method"] != method or saved.get("eval_only") or preset.keys() - saved.keys():
                    raise ValueError("another program, an evaluation or an older version made it")
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadInput(f"{source} is no run that {method}.py can go on with ({type(error).__name__}: {error})")
        if known["resume"] and (known["out"] or known.get("eval_only")):
            raise BadInput("--resume writes into the run's own folder: give it without --out and --eval-only")
        saved = {a.dest: saved[a.dest] for a in self._actions if a.dest in saved.keys() - self.OF_A_CALL}
        self.set_defaults(**(saved | preset if known.get("preset") and not known["resume"] else preset | saved))
        command = shlex.join([self.prog, *(sys.argv[1:] if argv is None else argv)])
        args = self.parse_args(argv, argparse.Namespace(method=method, command=command))
        for name in saved.keys() - {"data_root", "epochs", "checkpoint_every"} if known["resume"] else ():
            if getattr(args, name) != saved[name]:
                raise BadInput(f"--{name.replace('_', '-')} {getattr(args, name)} contradicts the run's {saved[name]}")
        try:
            torch.zeros(1, device=args.device).item()
        except (RuntimeError, AssertionError, ValueError) as error:
            raise BadInput(f"--device {args.device} is not there: {error}")
        return args


# ---------------------------------------------------------------------------------------------------------- run folder
COLUMNS = {  # of the final table; interpret.py's own follows it
    "LP@1": "lp1", "LP@5": "lp5", "z: LP@1": "lp1_embedding", "5-NN": "knn5", "200-NN": "knn200",
    "z: 5-NN": "knn5_embedding", "P@10": "p_at_10", "Act.": "act", "H_s": "entropy", "Corr.": "corr"}


@contextlib.contextmanager
def replacing(path: Path):
    """A binary file that takes the place of `path` once the block has ended well; BadInput where it cannot."""
    tmp = path.with_name(path.name + ".tmp")
    try:
        with open(tmp, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(tmp, path)
    except (OSError, RuntimeError) as error:  # torch.save raises both
        tmp.unlink(missing_ok=True)
        raise BadInput(f"{path} could not be written, is the disk full? What was there before is intact ({error})")


def new_folder(path: str | Path, settings: dict, device: torch.device) -> Path:
    """A run folder that nobody has used, with config.json: the settings, and the commit and machine they ran on."""
    commit, git = None, ["git", "describe", "--always", "--exclude=*", "--abbrev=10", "--dirty=+"]  # +: changed since
    with contextlib.suppress(OSError):
        commit = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip() or None
    about = dict(commit=commit, hardware=hardware(device), torch=torch.__version__, date=time.strftime("%Y-%m-%d"))
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with open(Path(path) / "config.json", "x") as file:
            file.write(json.dumps(settings | about, indent=1) + "\n")
    except OSError as error:
        raise BadInput(f"--out {path} is taken or cannot be written ({error.strerror}); name a new folder")
    return Path(path)


def hardware(device: torch.device) -> str:
    """The GPU's name; or the processor's, where Linux tells it, and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = cpu.read_text().partition("model name\t: ")[2] if (cpu := Path("/proc/cpuinfo")).exists() else ""
    return f"{name.partition(chr(10))[0] or 'CPU'}, {torch.get_num_threads()} threads"


def has_bf16(device: torch.device) -> bool:
    """Whether bf16 is faster than fp32 there: GPUs from Ampere on, CPUs with AMX or AVX512-BF16."""
    cpu = device.type == "cpu" and any(torch.cpu.get_capabilities().get(kind) for kind in ("amx_bf16", "avx512_bf16"))
    return cpu or device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


def load_checkpoint(path: Path) -> dict:
    """A checkpoint, on the CPU; BadInput where it is none or is damaged. Pickled objects are never loaded."""
    try:
        if damaged := zipfile.ZipFile(path).testzip():  # torch.load would not notice
            raise ValueError(f"{damaged} in it is damaged")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a truncated archive, a foreign pickle: each fails in its own way
        raise BadInput(f"{path} cannot be read as a checkpoint ({type(error).__name__}: {error})")


def evaluate(run: "Run", data: "Data", model: nn.Module) -> tuple[dict, Tensor, Tensor]:
    """Every number of the final record, and h (N, d) and e (N, K) of the test images.

    The second label's numbers have "background_" before their names. embeddings.npz keeps h, e and
    the labels by the classes' own numbers; h and e in 16 bits, which is what look.py will show.
    """
    size = run.args.image_size
    h, e = features(model, data.x_test, size, run.device)
    h, e = h.clamp(-65504, 65504), e.clamp(-65504, 65504)  # what 16 bits can hold
    arrays = {"h": h.half(), "z": e.half()}
    if data.y_test is not None:
        arrays["y"] = data.classes[data.y_test]
    if data.background_test is not None:
        arrays["background"] = data.background_classes[data.background_test]
    arrays = {name: array.cpu().numpy() for name, array in arrays.items()}
    np.savez(run.folder / "embeddings.npz", **arrays)

    labels = {"": arrays.get("y"), "background_": arrays.get("background")}
    metrics = of_dimensions(arrays["z"], labels, arrays["h"])
    if data.y_train is None and data.background_train is None:
        return metrics, h, e
    h_train, e_train = features(model, data.x_train, size, run.device)
    pairs = {"": (data.y_train, data.y_test)}
    pairs["background_"] = (data.background_train, data.background_test)
    for prefix, (y_train, y_test) in pairs.items():
        if y_train is None:
            continue
        y_train, y_test = y_train.to(h.device), y_test.to(h.device)
        for suffix, train, test in ("", h_train, h), ("_embedding", e_train, e):
            scores = linear_probe(train, y_train, test, y_test)
            scores["knn5"], scores["knn200"] = knn_accuracy(train, y_train, test, y_test)
            metrics |= {prefix + name + suffix: value for name, value in scores.items()}
    return metrics, h, e


def of_dimensions(z: np.ndarray, labels: dict, judge: np.ndarray) -> dict:
    """What interpret.py says of embeddings z (N, K), as numbers of a record.

    labels: prefix -> (N,) or None; judge: (N, d). Numbers of a control have its name before them. A
    dense z has the papers' numbers, by which each dimension is active on every image, and those of
    interpret.py's half-dimensions, which have "top_" before their names.
    """
    labels = {prefix: y for prefix, y in labels.items() if y is not None}
    embedding = interpret.Embedding(z, labels, judge)
    findings = interpret.interpret(embedding)
    numbers = {"active": findings.rule} | findings.numbers
    if findings.rule != "nonzero":
        top = {f"top_{name}": value for name, value in findings.numbers.items()}
        of_papers = interpret.interpret(embedding, "nonzero", controls=False).numbers
        numbers = {"active": findings.rule} | of_papers | top
    for control, found in findings.controls.items():
        numbers |= {f"{control}_{name}": value for name, value in found.items()}
    return numbers


class Run:
    """A run's folder, precision and checkpoints; the loop is the method's. Under torchrun rank 0 alone writes."""
    def __init__(self, args: argparse.Namespace):
        self.args, self.device, self.seconds = args, torch.device(args.device), 0.0
        self.bf16 = args.precision == "bf16" or args.precision == "auto" and has_bf16(self.device)
        name = f"runs/{args.method}-{Path(args.dataset).name}-seed{args.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.folder, precision = Path(args.resume or args.out or name), "bf16" if self.bf16 else "fp32"
        if rank() == 0 and not args.resume:
            new_folder(self.folder, vars(args) | dict(precision_used=precision, processes=world()), self.device)
            (self.folder / "metrics.jsonl").touch()
        print(f"{args.method} on {args.dataset}, seed {args.seed}, {hardware(self.device)}, {precision}: {self.folder}")

    def compile(self, function):
        """torch.compile of a module or function where --compile asks for it."""
        return torch.compile(function) if self.args.compile else function

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model; under torchrun in DistributedDataParallel, on GPUs with one BatchNorm for all of them."""
        if world() == 1:
            return model
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if self.device.type == "cuda" else model
        return nn.parallel.DistributedDataParallel(model, static_graph=True)  # some weights get no gradient

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load what --eval-only or --resume names, if there is a checkpoint yet; → the epochs that need no training."""
        args, done, path = self.args, 0, Path(self.args.eval_only or self.folder / "checkpoint.pt")
        if args.eval_only or args.resume and path.exists():
            checkpoint = load_checkpoint(path)
            try:
                model.load_state_dict(checkpoint["model"])
                done, self.seconds = checkpoint["epochs"], checkpoint["seconds"]
                if args.eval_only:
                    args.epochs = done
                    return done
                optimizer.load_state_dict(checkpoint["optimizer"])
            except Exception as error:  # what a changed or foreign file may lack
                raise BadInput(f"{path} does not fit these settings ({type(error).__name__}: {error})")
        if done > args.epochs:
            raise BadInput(f"--epochs {args.epochs}: the run in {self.folder} has trained {done} already")
        if args.resume and rank() == 0:  # what was written after the checkpoint comes again
            lines = (self.folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:done]
            settings = json.loads((self.folder / "config.json").read_text()) | {"epochs": args.epochs}  # may have grown
            for name, text in ("metrics.jsonl", "".join(lines)), ("config.json", json.dumps(settings, indent=1) + "\n"):
                with replacing(self.folder / name) as file:
                    file.write(text.encode())
        return done

    def seed(self, epoch: int) -> None:
        """What an epoch draws depends on seed, epoch and process alone: a resumed run draws what the other would."""
        torch.manual_seed((self.args.seed * 10_007 + epoch) * 10_007 + rank())
        self.start = time.perf_counter()

    def end_epoch(self, epoch: int, log: list[dict], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write and show the means of the steps in `log`, of epoch `epoch` (from 0), and save the checkpoint. A loss or
        a weight that is not finite ends the run with exit code 3, before it reaches a checkpoint."""
        means = {key: torch.stack([step[key] for step in log]).mean().item() for key in log[0]}
        seconds, done, epochs = time.perf_counter() - self.start, epoch + 1, self.args.epochs
        if not all(p.isfinite().all() for p in (*model.parameters(), torch.tensor(means["loss"]))):
            print(f"epoch {done}: the loss is not finite; the last checkpoint stays", file=sys.stderr)
            sys.exit(3)
        self.seconds += seconds
        if rank() == 0:
            rate, lr = len(log) * self.args.batch_size / seconds, optimizer.param_groups[0]["lr"]
            with open(self.folder / "metrics.jsonl", "a") as file:
                file.write(json.dumps(dict(epoch=done, **means, lr=lr, images_per_s=rate)) + "\n")
            print(f"epoch {done}/{epochs}  {(epochs - done) * self.seconds / done:.0f} s left  {rate:.0f} images/s",
                  *(f"{key} {value:.4g}" for key, value in means.items()), sep="  ", flush=True)
        if rank() == 0 and (done % self.args.checkpoint_every == 0 or done == epochs):
            state = dict(epochs=done, seconds=self.seconds, model=model.state_dict(), optimizer=optimizer.state_dict())
            with replacing(self.folder / "checkpoint.pt") as file:
                torch.save(state, file)

    def finish(self, metrics: dict, backbone: nn.Module) -> None:
        """Write the final record, and backbone.pt for torchvision's ResNet; print the table."""
        for tool in ("finetune", "robustness", "selection", "words", "stability"):  # what they left may be of other weights
            (self.folder / f"{tool}.json").unlink(missing_ok=True)
        metrics = dict(event="final", epochs=self.args.epochs, **metrics, seconds_train=self.seconds)
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(metrics) + "\n")
        with replacing(self.folder / "backbone.pt") as file:
            torch.save({key: value.cpu().contiguous() for key, value in backbone.state_dict().items()}, file)
        print(table(self.args.method, metrics))
        print("Test set. LP: logistic regression on the frozen backbone's features (z: on embeddings); NN:\n"
              f"nearest neighbours; the rest is of embeddings.\n{interpret.LEGEND}\n"
              f"{self.seconds:.0f} s of training. Pictures: python look.py {self.folder}")


def table(method: str, metrics: dict) -> str:
    """The final record as Markdown tables: the network's accuracy, then what its dimensions say."""
    prefixes = {"class": "", "background": "background_"}
    if "background_cons" not in metrics:
        del prefixes["background"]
    rows = [[method, *COLUMNS]]
    for label, prefix in prefixes.items():
        cells = [label]
        for key in COLUMNS.values():
            digits = 3 if key in ("act", "entropy", "corr") else 1
            cells.append(interpret.format_number(metrics.get(prefix + key), digits))
        rows.append(cells)

    groups = {"top": {}, "untrained": {}, "shuffled": {}}
    for key, value in metrics.items():
        group, _, name = key.partition("_")
        if group in groups:
            groups[group][name] = value
    numbers = groups.pop("top") or metrics
    controls = {name: found for name, found in groups.items() if found}
    return f"{markdown(rows)}\n\n{interpret.table(numbers, controls)}"


# ------------------------------------------------------------------------------ what tools/ need of finished runs
def read_json(path: Path) -> dict:
    """A file of JSON; BadInput where it is damaged."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise BadInput(f"{path} is damaged; delete it ({error})")


def read_run(folder: Path) -> argparse.Namespace:
    """A run's settings; BadInput for a folder without them."""
    needed = {"method", "dataset", "data_root", "limit", "arch", "image_size", "min_scale", "crop"}
    try:
        settings = json.loads((folder / "config.json").read_text())
        missing = needed - settings.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise BadInput(f"{folder} is not a run of an image method ({type(error).__name__}: {error})")
    if missing:
        raise BadInput(f"{folder} is not a run of an image method (no {min(missing)} in config.json)")
    return argparse.Namespace(**settings)


def load_run(folder: Path) -> tuple[argparse.Namespace, nn.Module]:
    """The settings and the trained model, on the CPU, of a finished run of any method."""
    run = read_run(folder)
    if not (folder / "backbone.pt").exists():
        raise BadInput(f"{folder} has no backbone.pt: the run has not finished")
    checkpoint = load_checkpoint(folder / "checkpoint.pt")
    try:
        method = importlib.import_module(run.method)
        model = method.network(run)
        model.load_state_dict(checkpoint["model"])
    except (ImportError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"{folder} cannot be rebuilt from its settings ({type(error).__name__}: {error})")
    return run, model


def labelled(run: argparse.Namespace, root: str | None, task: str) -> Data:
    """The data set of a run; BadInput where it does not have the labels of two classes, which the task needs."""
    data = load_data(run.dataset, root or run.data_root, limit=run.limit)
    if data.y_train is None or len(data.y_train.unique()) < 2:
        raise BadInput(f"{task} needs labels of two classes or more, which {data.name} lacks")
    return data


def progress(items, what: str):
    """Yield the items and say on standard error how far it is.

    items: anything with a length. A terminal shows one line that rewrites itself; elsewhere there
    is a line at the start and then one every ten seconds at most.
    """
    terminal = sys.stderr.isatty()
    began = time.monotonic()
    next_line = began
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
    if terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def launch(main) -> None:
    """Run a program's main(), under torchrun as one of its processes. The user's errors: one line, exit code 2."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False  # fp32 is float32
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt and mallopt(-3, 2**31 - 1):  # M_MMAP_THRESHOLD, which glibc before 2.35 refuses
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: keep freed memory; new pages cost a CPU's step a tenth of its time
    try:
        if local := os.environ.get("LOCAL_RANK"):
            torch.cuda.set_device(int(local) if torch.cuda.is_available() else -1)  # -1: none
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
            sys.stdout = open(os.devnull, "w") if rank() > 0 else sys.stdout
        main()
        if dist.is_initialized():  # not after an error: it would wait for the others
            dist.destroy_process_group()
    except (BadInput, OSError, MemoryError, torch.OutOfMemoryError) as error:
        hint = "" if isinstance(error, (BadInput, OSError)) else "out of memory (in training: halve --batch-size): "
        print(f"{Path(sys.argv[0]).name}: {hint}{' '.join(str(error).split())[:400]}", file=sys.stderr)
        sys.exit(2)
