"""What every method file shares: data, views, ResNet, evaluation, run folders. Never a method's loss or training loop.

    data          load_data(name) → Data: uint8 images (N, 3, H, W), int64 labels, on the training device
    views         two_views(images, size) → two float32 batches (N, 3, S, S), augmented where the images are
    network       resnet(arch, size) → a ResNet without classifier and its feature dimension d; LARS, lr_at
    evaluation    evaluate(run, data, model) → linear probe, kNN, interpretability metrics, figures
    processes     gather, Run.parallel: one loss over the batch of all GPUs under torchrun
    plumbing      Parser, Run, launch

Where this differs from the authors' code, for every method: 1. the CIFAR stem has padding 1 (the NCL authors': 2); 2. views are
torchvision's operators on floats, the authors' are PIL's on bytes, with a blur approximated by boxes where ours is a Gaussian of 13
taps (NCL on ImageNet-100: DALI's, its colour in one step); on a CPU the order of the colour operators is drawn per part of a batch;
3. ImageNet's images are shrunk to 256 pixels and cut square once, so that crops never see the margins; 4. inputs are
(x − 0.5) / 0.25 for every data set; 5. the probe is a convex one (linear_probe), neighbours are by cosine (SparseHead's: Euclidean);
6. bf16 (the NCL authors: fp16), learning rates and momenta follow their schedule per step where some do per epoch, and a warm-up
of n steps starts at 1/(n + 1) of the peak (the NCL authors': at 3e-5).

    python common.py            benchmark of the parts and of whole epochs on this machine
    python common.py --peers    the same next to torchvision on PIL, kornia, lightly and scikit-learn, where they are installed
"""
import argparse
import collections
import contextlib
import dataclasses
import datetime
import difflib
import functools
import hashlib
import importlib
import json
import math
import mmap
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
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


class BadInput(ValueError):
    """What the user gave cannot be used. The message is one line: what is wrong and what to do."""

    def __init__(self, text):
        super().__init__(" ".join(str(text).split())[:400])


# ---------------------------------------------------------------------------------------------------------------- data
@dataclasses.dataclass
class Data:
    """Images (N, 3, H, W) uint8 and labels (N,) int64. Labels, the second label `background` and `x_unlabeled` may be None."""

    name: str
    x_train: Tensor
    x_test: Tensor
    y_train: Tensor | None = None
    y_test: Tensor | None = None
    background_train: Tensor | None = None
    background_test: Tensor | None = None
    x_unlabeled: Tensor | None = None

    @property
    def images(self) -> Tensor:
        """What pre-training sees: x_unlabeled where there is one (STL-10: its training and unlabelled images), else x_train."""
        return self.x_train if self.x_unlabeled is None else self.x_unlabeled

    def steps(self, batch_size: int) -> int:
        """Batches in an epoch; BadInput when there is not even one, or not an equal share of it for every process."""
        if batch_size > len(self.images):
            raise BadInput(f"--batch-size {batch_size}: {self.name} has {len(self.images)} training images")
        if batch_size % world():
            raise BadInput(f"--batch-size {batch_size} cannot be shared equally among {world()} processes")
        return len(self.images) // batch_size

    def batches(self, batch_size: int, seed: int, epoch: int, device="cpu", start=0):
        """Yield (batch_size, 3, H, W) uint8 on the device: one shuffled pass from batch `start` on, the incomplete last batch dropped;
        under torchrun this process's share of each. Images in main memory or on disk are read by a thread, ahead of the step."""
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        indices = [batch.tensor_split(world())[rank()] for batch in order.to(self.images.device).split(batch_size)[start : self.steps(batch_size)]]
        if self.images.device.type != "cpu":
            yield from (self.images[index] for index in indices)
            return

        def read(index):
            images = self.images[index]
            drop_pages()
            return images.pin_memory() if torch.device(device).type == "cuda" else images

        for images in ahead(read, indices):
            yield images.to(device, non_blocking=True)


def ahead(function, items, depth=3):
    """Yield function(item) for each item, in order, computed by a background thread that is up to `depth` items ahead."""
    with ThreadPoolExecutor(1) as thread:
        pending = collections.deque()
        for item in items:
            pending.append(thread.submit(function, item))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def load_data(name: str, root="data", image_size: int | None = None, limit: int | None = None, device="cpu", decode_size: int | None = None,
              skip_unreadable=False) -> Data:
    """A data set by name: `shapes` (built in), <root>/<name>.npz, <root>/<name>/*.npy, <root>/<name>/{train,test}/<class>/*
    or one that torchvision downloads, in this order. README, "Your own data", shows each form.

    Arrays go to the device when they fill less than half of its free memory, else they stay where they are (.npy files
    stay memory-mapped). Image folders are decoded once, to `decode_size` pixels (default: `image_size`). `limit` keeps the
    first `limit` training images, the same number of each class (±1). Under torchrun one process per machine goes first.
    Raises BadInput, in one line, for anything that is missing or malformed.
    """
    with first_on_this_machine():
        data = checked(name, find_arrays(name, Path(root), decode_size or image_size or 32, skip_unreadable))
    data = first(data, limit) if limit else data
    if torch.device(device).type == "cuda":
        tensors = {k: v for k, v in vars(data).items() if isinstance(v, Tensor)}
        if sum(t.nbytes for t in tensors.values()) < torch.cuda.mem_get_info(device)[0] / 2:
            data = dataclasses.replace(data, **{k: t.to(device) for k, t in tensors.items()})
    return data


def find_arrays(name: str, root: Path, size: int, skip_unreadable: bool) -> dict[str, np.ndarray]:
    """The arrays of the data set `name`, in the first form that is there; image folders at `size` pixels."""
    folder, archive = root / name, root / f"{name}.npz"
    if name == "shapes":
        return shapes()
    if archive.exists():
        return read_arrays(archive)
    if any(folder.glob("*.npy")):
        return read_arrays(folder)
    if (folder / "train").is_dir():
        return read_arrays(decode_folder(folder, size, skip_unreadable))
    if name in DOWNLOADS:
        return read_arrays(download(name, root))
    here = {p.stem for p in root.glob("*.npz")} | {p.parent.name for p in [*root.glob("*/x_train.npy"), *root.glob("*/train")]}
    known = sorted({"shapes", *DOWNLOADS, *here} - {f"{n}.part" for n in DOWNLOADS})
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise BadInput(f"no data set '{name}': {hint}there are {', '.join(known)}; your own goes to {archive} or {folder}/")


RENAME = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}  # MedMNIST's keys


MAPS = weakref.WeakSet()  # the open memory maps


def drop_pages() -> None:
    """Let go of what was read through memory maps, so that a pass over the data does not fill the memory; it can be read again."""
    for opened in MAPS if hasattr(mmap, "MADV_DONTNEED") else ():
        opened.madvise(mmap.MADV_DONTNEED)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz, or of a folder's .npy files, by name; the latter memory-mapped. Pickled objects are never read."""
    arrays = {}
    for file in path.glob("*.npy") if path.is_dir() else [path]:
        try:
            loaded = np.load(file, mmap_mode="r", allow_pickle=False)
            if isinstance(loaded, np.ndarray) != path.is_dir():
                raise ValueError("its content is not what its ending says")
            if isinstance(loaded, np.memmap):
                MAPS.add(loaded.base)
            arrays |= {file.stem: loaded} if path.is_dir() else {RENAME.get(key, key): loaded[key] for key in loaded.files}
        except Exception as error:  # what a damaged archive may raise is not listed anywhere
            raise BadInput(f"{file} cannot be read as plain numpy arrays ({type(error).__name__}: {error})")
    return arrays


def checked(name: str, arrays: dict[str, np.ndarray]) -> Data:
    """Data from arrays whose keys, types, shapes and labels are right, else BadInput that names the first that is not."""
    tensors = {}
    for key in ("x_train", "x_test", "x_unlabeled"):
        if (a := arrays.get(key)) is None:
            if key != "x_unlabeled":
                raise BadInput(f"{name}: no {key}; the keys are x_train, y_train, x_test, y_test (labels may be left out)")
            continue
        if a.dtype != np.uint8:
            raise BadInput(f"{name}: {key} is {a.dtype}; images are uint8, 0 to 255")
        a = a[..., None] if a.ndim == 3 else a  # grey without a channel axis
        if a.ndim != 4 or len(a) < 2 or 0 in a.shape or not {a.shape[1], a.shape[3]} & {1, 3}:
            raise BadInput(f"{name}: {key} has shape {a.shape}; needed are two or more images as (N, H, W, 3), (N, 3, H, W) or grey")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a read-only map: nothing here writes to images
            x = torch.from_numpy(a)
        x = x.permute(0, 3, 1, 2) if a.shape[3] in (1, 3) else x  # a view: no byte moves
        tensors[key] = x.expand(-1, 3, -1, -1)
    for kind in ("y", "background"):
        train, test = keys = f"{kind}_train", f"{kind}_test"
        if (train in arrays) != (test in arrays):
            raise BadInput(f"{name}: {train} and {test} go together; one of them is missing")
        for key in [k for k in keys if k in arrays]:
            a, n = arrays[key], len(tensors["x" + key[len(kind):]])
            a = a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a
            if a.dtype.kind not in "iu" or a.shape != (n,) or a.min() < 0:
                raise BadInput(f"{name}: {key} is {a.dtype} of shape {a.shape}; labels are {n} integers from 0 on, one per image")
            tensors[key] = torch.from_numpy(a.astype(np.int64))
        if train in tensors and (alien := sorted({*tensors[test].tolist()} - {*tensors[train].tolist()})):
            raise BadInput(f"{name}: {test} has classes that {train} has not: {str(alien[:5])[1:-1]}")
        if train in tensors:  # numbered 0, 1, … without gaps
            known, tensors[train] = tensors[train].unique(return_inverse=True)
            tensors[test] = torch.searchsorted(known, tensors[test])
    return Data(name, **tensors)


def first(data: Data, limit: int) -> Data:
    """The first `limit` training images, class-balanced to within one image, in their order."""
    if limit > len(data.x_train):
        raise BadInput(f"--limit {limit}: {data.name} has {len(data.x_train)} training images")
    place = torch.arange(len(data.x_train))
    if data.y_train is not None:  # an image's rank among those of its class; the lowest ranks of all classes are kept
        by_class, counts = data.y_train.argsort(stable=True), data.y_train.bincount()
        place[by_class] = torch.arange(len(by_class)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    keep = place.argsort(stable=True)[:limit].sort().values
    return dataclasses.replace(data, **{k: v[keep] for k, v in vars(data).items() if k.endswith("train") and v is not None},
                               x_unlabeled=None if data.x_unlabeled is None else data.x_unlabeled[:limit])


def decode_folder(folder: Path, size: int, skip_unreadable=False, at_once=1000) -> Path:
    """Decode <folder>/{train,test}/<class>/* (val/ serves as test/) once, shorter side to `size` pixels, centre crop, into
    <folder>/<size>px/*.npy; returns that folder. A pool of threads decodes `at_once` images, straight into the
    memory-mapped array, then notes how far it is; what is interrupted goes on from there, unless the list of files has changed.
    BadInput names an image that cannot be read, unless those are to be left out."""
    done, tmp = folder / f"{size}px", folder / f"{size}px.part"
    if done.exists():
        return done
    try:
        found = {part: torchvision.datasets.ImageFolder(str(folder / part)) for part in ("train", "test" if (folder / "test").is_dir() else "val")}
    except FileNotFoundError as error:
        raise BadInput(error)
    if len({tuple(images.classes) for images in found.values()}) > 1:
        raise BadInput(f"{folder}: train/ and test/ must have the same class folders")

    def decode(job):  # → None, or the number of an image that is left out
        out, i, path = job
        try:
            image = TF.resize(torchvision.datasets.folder.pil_loader(path), size)
            out[i] = np.asarray(TF.center_crop(image, [size, size]))
        except Exception as error:  # every image format fails in its own way
            if skip_unreadable:
                return i
            raise BadInput(f"{path} cannot be read as an image ({error}); mend it, remove it, or give --skip-unreadable")

    tmp.mkdir(exist_ok=True)
    files = hashlib.sha256("\n".join(path for images in found.values() for path, _ in images.samples).encode()).hexdigest()
    position = {"files": files, "train": 0, "test": 0, "unreadable_train": [], "unreadable_test": []}  # decoded so far
    with contextlib.suppress(OSError, ValueError):
        before = json.loads((tmp / "position.json").read_text())
        position = before if before.get("files") == files else position
    for part, images in zip(("train", "test"), found.values()):
        file, shape = tmp / f"x_{part}.npy", (len(images), size, size, 3)
        out = np.lib.format.open_memmap(file, "r+" if position[part] else "w+", np.uint8, None if position[part] else shape)
        MAPS.add(out.base)
        with ThreadPoolExecutor() as pool:
            while (start := position[part]) < len(images):
                stop = min(start + at_once, len(images))
                left_out = pool.map(decode, [(out, i, images.samples[i][0]) for i in range(start, stop)])
                position[f"unreadable_{part}"] += [i for i in left_out if i is not None]
                out.flush()
                drop_pages()
                position[part] = stop
                replace(tmp / "position.json", lambda file: file.write(json.dumps(position).encode()))
                print(f"\rdecoding {images.root}: {stop}/{len(images)}", end="" if stop < len(images) else "\n", file=sys.stderr, flush=True)
        bad = position[f"unreadable_{part}"]
        if bad:
            print(f"{images.root}: {len(bad)} of {len(images)} images cannot be read and are left out, the first is {images.samples[bad[0]][0]}",
                  file=sys.stderr)
        if bad and len(out) == len(images):  # not yet done before an interruption
            kept = np.lib.format.open_memmap(tmp / "kept.npy", "w+", np.uint8, (len(images) - len(bad), size, size, 3))
            for i, row in enumerate(np.delete(np.arange(len(images)), bad)):
                kept[i] = out[row]
            os.replace(tmp / "kept.npy", file)
        np.save(tmp / f"y_{part}.npy", np.delete(images.targets, bad))
    (tmp / "position.json").unlink()
    return tmp.rename(done)


def replace(path: Path, write, keep: Path | None = None) -> None:
    """Make `path` what write(binary file) writes, flushed to disk: whatever happens, the old content or the new is there,
    never a part. The old content moves to `keep` first. BadInput when the new one cannot be written; then nothing has changed."""
    tmp = path.with_name(path.name + ".tmp")
    try:
        with open(tmp, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if keep and path.exists():
            os.replace(path, keep)
        os.replace(tmp, path)
    except (OSError, RuntimeError) as error:  # torch.save raises both
        with contextlib.suppress(OSError):
            tmp.unlink(missing_ok=True)
        raise BadInput(f"{path} could not be written, is the disk full? What was there before is intact ({error})")


DOWNLOADS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "stl10": "STL10", "svhn": "SVHN"}  # name → torchvision's class


def download(name: str, root: Path) -> Path:
    """Fetch a data set with torchvision and keep it as <root>/<name>/*.npy; returns that folder."""
    tmp = root / f"{name}.part"
    for part in ("train", "test", "unlabeled")[: 3 if name == "stl10" else 2]:  # x_unlabeled: all that pre-training sees
        split = {"train": part == "train"} if name.startswith("cifar") else {"split": "train+unlabeled" if part == "unlabeled" else part}
        try:
            images = getattr(torchvision.datasets, DOWNLOADS[name])(root, download=True, **split)
        except Exception as error:  # whatever the network, the mirror or the archive does
            raise BadInput(f"{name} could not be downloaded ({error}); put it at {root / name}.npz by hand")
        tmp.mkdir(parents=True, exist_ok=True)
        np.save(tmp / f"x_{part}.npy", images.data)
        if part != "unlabeled":
            np.save(tmp / f"y_{part}.npy", np.asarray(images.targets if name.startswith("cifar") else images.labels, np.int64))
    return tmp.rename(root / name)


SHAPES = "circle triangle square hexagon star clover ring plus half-disc crescent".split()
BACKGROUNDS = {"sky": 0.40, "grass": 0.25, "sand": 0.15, "water": 0.12, "night": 0.08}


def shapes(train=5000, test=1000, seed=0) -> dict[str, np.ndarray]:
    """The built-in data set: images (N, 3, 32, 32) uint8 of one of 10 objects `y`, equally many each, on one of 5 `background`s
    of unequal frequency; drawn from closed forms in float64, so that the bytes are the same on every machine."""
    n = train + test
    draw = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.rand(*shape, 1, 1, generator=draw, dtype=torch.float64)
    y = torch.arange(n) % len(SHAPES)
    frequency = torch.tensor(list(BACKGROUNDS.values()), dtype=torch.float64)
    background = torch.multinomial(frequency, n, replacement=True, generator=draw)
    v, u = torch.meshgrid(*[(torch.arange(32, dtype=torch.float64) + 0.5) / 16 - 1] * 2, indexing="ij")  # pixel centres in [-1, 1]

    noise = torch.rand(n, 32, 32, generator=draw, dtype=torch.float64)
    colours = torch.tensor([(0.45, 0.65, 0.95), (0.25, 0.55, 0.15), (0.85, 0.75, 0.5), (0.1, 0.45, 0.6), (0.05, 0.05, 0.15)], dtype=torch.float64)
    images = colours[background].view(n, 3, 1, 1).repeat(1, 1, 32, 32)
    for b, texture in enumerate([  # (32, 32), or (n_b, 32, 32) with noise; roughly in [-1, 1]
        lambda _: 0.7 * v + 0.6 * ((3 * u).sin() * (5 * v).sin()).clamp(min=0),  # haze to the horizon, soft clouds
        lambda noise: (22 * u + 3 * (4 * v).sin()).sin() * (0.4 + 0.6 * noise),  # blades
        lambda noise: 2.4 * noise - 1.2,  # grains
        lambda _: (14 * v + 1.5 * (3 * u).sin()).sin(),  # waves
        lambda noise: 4.5 * (noise > 0.96),  # stars
    ]):
        images[background == b] += 0.22 * texture(noise[background == b]).unsqueeze(-3)

    size, turn = 0.7 + 0.22 * rand(n), 2 * math.pi * rand(n)
    cx, cy = (2 * rand(n) - 1) * (1.05 - size), (2 * rand(n) - 1) * (1.05 - size)
    fill = torch.tensor([0.65, 0.15, 0.15], dtype=torch.float64).view(3, 1, 1) + 0.27 * rand(n, 3)  # reds
    px, py = (u - cx) / size, (v - cy) / size
    px, py = px * turn.cos() + py * turn.sin(), py * turn.cos() - px * turn.sin()
    r, phi = (px**2 + py**2).sqrt(), torch.atan2(py, px)

    def polygon(sides):  # outward distance to a regular polygon of circumradius 1
        wedge = math.pi / sides
        return lambda x, y, r, phi: r * (torch.remainder(phi, 2 * wedge) - wedge).cos() - math.cos(wedge)

    def star(x, y, r, phi):  # five tips at radius 1, valleys at 0.45
        t = (torch.remainder(phi + math.pi / 5, 2 * math.pi / 5) - math.pi / 5).abs()
        ax, ay = 0.45 * math.cos(math.pi / 5) - 1, 0.45 * math.sin(math.pi / 5)
        return ((r * t.cos() - 1) * ay - r * t.sin() * ax) / math.hypot(ax, ay)

    outlines = [  # negative inside, in units of the object's size; in the order of SHAPES
        lambda x, y, r, phi: r - 0.9,
        polygon(3), polygon(4), polygon(6), star,
        lambda x, y, r, phi: r - 0.6 - 0.4 * (4 * phi).cos(),
        lambda x, y, r, phi: (r - 0.7).abs() - 0.22,
        lambda x, y, r, phi: torch.minimum(torch.maximum(x.abs() - 0.3, y.abs() - 0.95), torch.maximum(y.abs() - 0.3, x.abs() - 0.95)),
        lambda x, y, r, phi: torch.maximum(r - 1, y),
        lambda x, y, r, phi: torch.maximum(r - 1, 0.8 - ((x - 0.5) ** 2 + y**2).sqrt()),
    ]
    for c, outline in enumerate(outlines):
        i = (y == c).nonzero()[:, 0]
        inside = (0.5 - 16 * size[i] * outline(px[i], py[i], r[i], phi[i])).clamp(0, 1)[:, None]  # one pixel of anti-aliasing
        images[i] = images[i] * (1 - inside) + fill[i] * inside
    images = (images.clamp(0, 1) * 255 + 0.5).to(torch.uint8)
    parts = {"x": images, "y": y, "background": background}
    return {f"{k}_train": v[:train].numpy() for k, v in parts.items()} | {f"{k}_test": v[train:].numpy() for k, v in parts.items()}


# --------------------------------------------------------------------------------------------------------------- views
# Each operator is torchvision.transforms.v2.functional's on float tensors, with parameters per sample; equal to 1e-5.
def crop_matrix(start: Tensor, length: Tensor, inputs: int, size: int, flip: Tensor | None = None, kind="bilinear") -> Tensor:
    """(N,) crop starts and lengths in pixels → (N, size, inputs): row o weights the input pixels that make output pixel o.

    Resizing with anti-aliasing is linear along each axis: weights around the output pixel's centre, as wide as the
    shrinkage, cut off at the crop's border and normalised; a triangle (bilinear) or Keys' cubic with a = −½ (bicubic).
    Rows reversed where `flip` (N,) is true.
    """
    scale = (length / size)[:, None, None]
    start, length = start[:, None, None], length[:, None, None]
    o = torch.arange(size, device=start.device).view(1, -1, 1) + 0.5
    j = torch.arange(inputs, device=start.device).view(1, 1, -1) + 0.5
    if flip is not None:
        o = torch.where(flip.view(-1, 1, 1), size - o, o)
    t = (j - start - scale * o).abs() / scale.clamp(min=1)  # (N, size, inputs), distance from the centre
    if kind == "bilinear":
        weight = (1 - t).clamp(min=0)
    else:
        near, far = (1 - t).clamp(min=0), (2 - t).clamp(min=0)  # without a branch: 1 − 2.5 t² + 1.5 t³ to 1, 2 − 4 t + 2.5 t² − 0.5 t³ to 2
        weight = (0.5 - 0.5 * t) * far.square() - (1 - 2 * t) * near.square()
    weight = weight * ((j > start) & (j < start + length))
    return weight / weight.sum(2, keepdim=True)


def resized_crop(x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int, flip=None, kind="bilinear") -> Tensor:
    """Crop boxes (N,) in pixels out of x (N, 3, H, W) float, resized to (N, 3, size, size), mirrored where flip (N,). Bicubic
    may leave [0, 1]."""
    n, c, h, w = x.shape
    across = crop_matrix(left, width, w, size, flip, kind)
    x = torch.bmm(x.reshape(n, c * h, w), across.mT).view(n, c, h, size)
    return crop_matrix(top, height, h, size, kind=kind)[:, None] @ x


def chance(p: float, x: Tensor) -> Tensor:
    """True with probability p for each image of x (N, …): (N,)."""
    return torch.rand(len(x), device=x.device) < p


def random_boxes(n: int, h: int, w: int, min_scale: float, device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """RandomResizedCrop's boxes: top, left, height, width, each (n,): area min_scale to 1, aspect 3/4 to 4/3. Like
    torchvision: ten tries, the first that fits, else the largest central box."""
    area = h * w * torch.empty(n, 10, device=device).uniform_(min_scale, 1)
    aspect = torch.empty(n, 10, device=device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    width, height = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (width >= 1) & (width <= w) & (height >= 1) & (height <= h)
    pick = fits.int().argmax(1, keepdim=True)
    found = fits.any(1)
    width = torch.where(found, width.gather(1, pick)[:, 0], min(w, round(h * 4 / 3)))
    height = torch.where(found, height.gather(1, pick)[:, 0], min(h, round(w * 4 / 3)))
    place = torch.rand(2, n, device=device)
    top = torch.where(found, place[0] * (h - height + 1), (h - height) / 2).floor()
    left = torch.where(found, place[1] * (w - width + 1), (w - width) / 2).floor()
    return top, left, height, width


def grayscale(x: Tensor) -> Tensor:
    """(N, 3, H, W) in [0, 1] → luma (N, 1, H, W), ITU-R 601-2."""
    return 0.2989 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """x (N, 3, H, W) in [0, 1] times factor (N,); 1 changes nothing."""
    return (x * factor.view(-1, 1, 1, 1)).clamp(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """x (N, 3, H, W) in [0, 1] away from its mean luma by factor (N,); 1 changes nothing."""
    return torch.lerp(grayscale(x).mean((2, 3), keepdim=True), x, factor.view(-1, 1, 1, 1)).clamp(0, 1)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """x (N, 3, H, W) in [0, 1] away from its grey version by factor (N,); 1 changes nothing."""
    return torch.lerp(grayscale(x), x, factor.view(-1, 1, 1, 1)).clamp(0, 1)


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of x (N, 3, H, W) in [0, 1] by shift (N,), in turns. HSV without branches: with value V, chroma C and hue
    h in sixths, R, G, B are V − C + C·clamp(q, 0, 1) with q = |h − 3| − 1, 2 − |h − 2|, 2 − |h − 4|."""
    r, g, b = x.unbind(1)
    value = x.amax(1)
    chroma = value - x.amin(1)
    scale = 1 / chroma.clamp(min=1e-9)  # a grey pixel has no hue; any will do
    hue = torch.where(value == r, (g - b) * scale, torch.where(value == g, 2 + (b - r) * scale, 4 + (r - g) * scale))
    hue = hue + 6 * shift.view(-1, 1, 1)
    hue = hue - 6 * (hue / 6).floor()  # modulo 6
    q = torch.stack([(hue - 3).abs() - 1, 2 - (hue - 2).abs(), 2 - (hue - 4).abs()], 1).clamp_(0, 1)
    return torch.addcmul((value - chroma)[:, None], chroma[:, None], q)


ADJUST = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)


def gaussian_blur(x: Tensor, sigma: Tensor, kernel=13) -> Tensor:
    """Blur x (N, 3, S, S) with standard deviations sigma (N,) pixels, borders reflected. The odd kernel size is wide enough
    for 3σ of the largest σ in use, 2, and less than 2·S."""
    n, c, s, _ = x.shape
    i, k = torch.arange(s, device=x.device), torch.arange(kernel, device=x.device) - kernel // 2
    taps = (-k.square() / (2 * sigma.square()[:, None])).softmax(1)  # (N, kernel), a normalised Gaussian
    source = s - 1 - (s - 1 - (i + k[:, None]).abs()).abs()  # (kernel, S), the pixel under each tap of each output
    matrix = (taps @ (source[:, :, None] == i).to(x.dtype).flatten(1)).view(n, s, s)
    return matrix[:, None] @ torch.bmm(x.reshape(n, c * s, s), matrix.mT).view_as(x)


def random_crop(x: Tensor, size: int, min_scale: float, kind: str) -> Tensor:
    """RandomResizedCrop and a flip with probability ½ of x (N, 3, H, W) in [0, 1] → (N, 3, size, size) in [0, 1]."""
    boxes = random_boxes(len(x), *x.shape[2:], min_scale, x.device)
    return resized_crop(x, *boxes, size, chance(0.5, x), kind).clamp(0, 1)


def random_colour(x: Tensor, jitter: float, gray: float, one_order: bool) -> Tensor:
    """ColorJitter(jitter, jitter, jitter, jitter / 4) with probability 0.8, then grey with probability `gray`, of x (N, 3, H, W)
    in [0, 1]. The order of the four operators is drawn per image, or once for all."""
    n = len(x)
    change = torch.empty(4, n, device=x.device).uniform_(-1, 1) * chance(0.8, x)  # 0 changes nothing
    factor = [*(1 + jitter * change[:3]).clamp(min=0), jitter / 4 * change[3]]
    if one_order:
        for k in torch.randperm(4).tolist():
            x = ADJUST[k](x, factor[k])
    else:  # without a branch and without asking the host
        for turn in torch.rand(n, 4, device=x.device).argsort(1).unbind(1):
            x, before = ADJUST[0](x, factor[0]), x
            for k in (1, 2, 3):
                x = torch.where((turn == k).view(-1, 1, 1, 1), ADJUST[k](before, factor[k]), x)
    return torch.where(chance(gray, x).view(-1, 1, 1, 1), grayscale(x), x)


def augment(x: Tensor, size: int, min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic", colour_first=False) -> Tensor:
    """One random view (N, 3, size, size) float32 in [0, 1] of images x (N, 3, H, W) uint8: SimCLR's augmentations, crop (area
    min_scale to 1, bicubic or bilinear) and flip, colour, Gaussian blur with probability `blur` and σ ~ U(0.1, 2) pixels.

    Every parameter is drawn per image, but for the order of the four colour operators on a CPU: it works on parts of the
    batch that stay in its cache, with one order for each.
    """
    parts, in_parts = [], x.device.type == "cpu" and not torch.compiler.is_compiling()
    for x in x.split(max(1, 2**16 // max(size**2, x[0, 0].numel())) if in_parts else len(x)):
        x = x.float() / 255
        if colour_first:
            x = random_crop(random_colour(x, jitter, gray, in_parts), size, min_scale, crop)
        else:
            x = random_colour(random_crop(x, size, min_scale, crop), jitter, gray, in_parts)
        if blur:
            chosen, sigma = chance(blur, x), torch.empty(len(x), device=x.device).uniform_(0.1, 2)
            if in_parts:
                x[chosen] = gaussian_blur(x[chosen], sigma[chosen])
            else:
                x = torch.where(chosen.view(-1, 1, 1, 1), gaussian_blur(x, sigma), x)
        parts.append(x)
    return torch.cat(parts)


def normalise(x: Tensor) -> Tensor:
    """[0, 1] → about zero mean and unit variance, with the same two numbers for every data set."""
    return (x - 0.5) / 0.25


def two_views(x: Tensor, size: int, **options) -> tuple[Tensor, Tensor]:
    """Two independent views, each (N, 3, size, size) float32 and normalised, of images x (N, 3, H, W) uint8; `augment`'s options."""
    return normalise(augment(torch.cat([x, x]), size, **options)).chunk(2)


def eval_view(x: Tensor, size: int) -> Tensor:
    """The evaluation view: the central square of x (N, 3, H, W) uint8, resized to (N, 3, size, size), normalised; of images of
    8/7 that size (ImageNet's 256 for 224) the central size × size pixels instead."""
    side = min(x.shape[2:])
    x = TF.center_crop(x, [size if 7 * side == 8 * size else side]).float() / 255
    return normalise(x if x.shape[3] == size else TF.resize(x, [size, size], antialias=True))


# ------------------------------------------------------------------------------------------------------------- network
def resnet(arch: str, image_size: int, zero_init_residual=False) -> tuple[nn.Module, int]:
    """A backbone without classifier, (N, 3, S, S) → h (N, d), and its d.

    resnet18, 34, 50: torchvision's; up to 96 pixels with a 3×3 stride-1 first convolution, up to 48 without max-pool too (the
    CIFAR stem; with max-pool: STL-10 and Tiny-ImageNet at 64 pixels). resnet8, 20: the CIFAR family of He et al. 2016 (three
    stages of 16, 32, 64 channels), small enough for a CPU. zero_init_residual: residual branches start at 0 (Goyal et al. 2017).
    """
    if arch not in ("resnet8", "resnet20"):
        net = getattr(torchvision.models, arch)(zero_init_residual=zero_init_residual)
        d, net.fc = net.fc.in_features, nn.Identity()
        if image_size <= 96:
            net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        if image_size <= 48:
            net.maxpool = nn.Identity()
        return net, d
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    width = 16
    for out in (16, 32, 64):
        for _ in range((int(arch[6:]) - 2) // 6):
            skip = None if out == width else nn.Sequential(nn.Conv2d(width, out, 1, 2, bias=False), nn.BatchNorm2d(out))
            net.append(torchvision.models.resnet.BasicBlock(width, out, stride=1 if out == width else 2, downsample=skip))
            width = out
            if zero_init_residual:
                nn.init.zeros_(net[-1].bn2.weight)
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    return net.append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten()), 64


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017, arXiv 1708.03888) over SGD with momentum, as SimCLR uses it.

    For a weight w with gradient g:  r = trust·‖w‖ / (‖g‖ + weight_decay·‖w‖), where `clip`: min(r / lr, 1),
    v ← momentum·v + r·(g + weight_decay·w),  w ← w − lr·v.
    Biases and norms (one-dimensional parameters) take plain momentum steps: r = 1, no weight decay. A weight of norm 0 has r = 1,
    a gradient of norm 0 r = 0. trust = 0.02 with clipping is the NCL authors', 0.001 without is common on ImageNet.
    """

    def __init__(self, params, lr: float, weight_decay=1e-4, momentum=0.9, trust=0.02, clip=True):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, trust=trust, clip=clip))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, decay = group["lr"], group["weight_decay"]
            params = [p for p in group["params"] if p.grad is not None]
            weights, rest = [p for p in params if p.ndim > 1], [p for p in params if p.ndim <= 1]
            updates = [p.grad for p in weights]
            if weights:  # all layers in a few calls, which is what a GPU's speed depends on
                w_norm, g_norm = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(updates))
                ratio = group["trust"] * w_norm / (g_norm + decay * w_norm + 1e-8)
                ratio = torch.where(w_norm > 0, (ratio / lr).clamp(max=1) if group["clip"] else ratio, 1.0) * (g_norm > 0)
                updates = torch._foreach_add(updates, weights, alpha=decay)
                torch._foreach_mul_(updates, ratio.unbind())
            params, updates = weights + rest, [*updates, *(p.grad for p in rest)]
            if params:
                for p in params:
                    if not self.state[p]:
                        self.state[p]["momentum"] = torch.zeros_like(p)
                momentum = [self.state[p]["momentum"] for p in params]
                torch._foreach_mul_(momentum, group["momentum"])
                torch._foreach_add_(momentum, updates)
                torch._foreach_add_(params, momentum, alpha=-lr)


OPTIMIZERS = {"lars": LARS, "sgd": functools.partial(torch.optim.SGD, momentum=0.9, fused=True),
              "adam": functools.partial(torch.optim.Adam, fused=True)}


def lr_at(step: int, steps: int, warmup: int = 0) -> float:
    """The learning rate of a step (from 0) as a share of its peak: linear over `warmup` steps, then cosine to 0 at `steps`."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup))


# ----------------------------------------------------------------------------------------------------------- processes
# Under torchrun every process computes its share of the views and of the network, and then the whole loss.
def rank() -> int:
    """The number of this process among all that train together; 0 for one."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


class Gather(torch.autograd.Function):
    """x (n, K) of this process → (n·world, K) of all, in their order. The processes compute the same loss from it, so that the
    gradients of their losses add up to world() times this process's own; DistributedDataParallel then takes the mean."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(world())[rank()] * world()


def gather(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors (n, ·) of this process → (N, ·) of the whole batch, with gradient, in one exchange; one process: as they are."""
    if world() == 1:
        return tensors
    return Gather.apply(torch.cat(tensors, 1)).split([t.shape[1] for t in tensors], 1)


class Sum(torch.autograd.Function):
    """The sum of x over all processes; so is its gradient."""

    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x := x.clone())
        return x

    backward = forward


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """torch.nn.SyncBatchNorm for CPUs, where torch has none: statistics of the batch of all processes, of equal shares."""

    def forward(self, x):
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        z, axes, shape = x.to(self.running_mean.dtype), [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
        n = z.numel() // z.shape[1] * world()
        z = z - (mean := Sum.apply(z.sum(axes)) / n).view(shape)
        variance = Sum.apply(z.square().sum(axes)) / n
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * n / (n - 1), self.momentum)
        scale = (variance + self.eps).rsqrt()
        if not self.affine:
            return (z * scale.view(shape)).to(x.dtype)
        return torch.addcmul(self.bias.view(shape), z, (scale * self.weight).view(shape)).to(x.dtype)


def mean_over_processes(x: Tensor) -> Tensor:
    """The mean of a statistic x over all processes, without gradient."""
    return Sum.apply(x.detach()) / world() if world() > 1 else x.detach()


@contextlib.contextmanager
def first_on_this_machine():
    """Under torchrun the first process of all runs the block, then the first of each machine, then the others: what one prepares
    all find, and what is wrong with it each of them."""
    if world() == 1:
        yield
        return
    turn = 0 if rank() == 0 else 1 if os.environ.get("LOCAL_RANK") == "0" else 2
    patient = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=1))  # decoding a data set takes hours
    for _ in range(turn):
        dist.barrier(patient)
    try:
        yield
    finally:
        for _ in range(2 - turn):
            dist.barrier(patient)


# ---------------------------------------------------------------------------------------------------------- evaluation
@torch.no_grad()
def features(model: nn.Module, images: Tensor, size: int, device="cpu", batch=500) -> tuple[Tensor, Tensor]:
    """Representations h (N, d) and embeddings e (N, K), float32, of un-augmented images (N, 3, H, W) uint8, in eval mode;
    the model's first two outputs are h and e."""
    model.eval()
    shares, pairs = images.tensor_split(world()), []  # each process takes one
    for part in shares[rank()].split(batch):
        pairs.append(model(eval_view(part.to(device), size))[:2])
        drop_pages()
    found = [torch.cat(part).float() for part in zip(*pairs)]
    if world() > 1:  # the first shares may be an image longer than the last
        whole = gather(*[F.pad(part, (0, 0, 0, len(shares[0]) - len(part))) for part in found])
        found = [torch.cat([part[: len(share)] for part, share in zip(padded.chunk(world()), shares)]) for padded in whole]
    return tuple(found)


def linear_probe(train: Tensor, y_train: Tensor, test: Tensor, y_test: Tensor, strengths=(1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)) -> dict[str, float]:
    """Linear probe: multinomial logistic regression on frozen features (N, d), standardised; → {"lp1", "lp5"} in % of the
    test set, and the "l2" it chose.

    min over W, b of mean cross-entropy + l2/2·‖W‖², by full-batch LBFGS. l2 is the best of `strengths`, strong to weak, on a
    held-out tenth of the *training* set; then all of it is fitted again. The test set is read once, at the end.
    """
    mean, std = train.mean(0), train.std(0).clamp(min=1e-6)
    train, test = (train - mean) / std, (test - mean) / std
    classes = int(y_train.max()) + 1
    held = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).to(train.device) < max(1, len(train) // 10)

    def fit(x, y, l2, weight, bias):  # from a start, left as it is, to the minimum
        weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()

        def closure():
            solver.zero_grad()
            loss = F.cross_entropy(F.linear(x, weight, bias), y) + l2 / 2 * weight.square().sum()
            loss.backward()
            return loss

        with torch.enable_grad():
            solver = torch.optim.LBFGS([weight, bias], max_iter=30, line_search_fn="strong_wolfe")
            solver.step(closure)
        return weight.detach(), bias.detach()

    start = torch.zeros(classes, train.shape[1], device=train.device), torch.zeros(classes, device=train.device)
    best, x_kept, y_kept, chosen, chosen_start = -1.0, train[~held], y_train[~held], strengths[0], start
    for l2 in strengths if len(strengths) > 1 else ():  # each from the last one's solution
        start = fit(x_kept, y_kept, l2, *start)
        right = (F.linear(train[held], *start).argmax(1) == y_train[held]).float().mean().item()
        if right > best:  # of equals the stronger
            best, chosen, chosen_start = right, l2, start
    weight, bias = fit(train, y_train, chosen, *chosen_start)
    ranked = F.linear(test, weight, bias).topk(min(5, classes), 1).indices == y_test[:, None]
    return {"lp1": 100 * ranked[:, 0].float().mean().item(), "lp5": 100 * ranked.any(1).float().mean().item(), "l2": chosen}


def neighbours(queries: Tensor, bank: Tensor, k: int, skip_self=False) -> tuple[Tensor, Tensor]:
    """Cosine similarities and indices, each (N, k), of the k nearest rows of bank (M, D) for queries (N, D), nearest first.
    With skip_self queries and bank are the same rows, and a row is not its own neighbour."""
    queries, bank = F.normalize(queries), F.normalize(bank)
    found = []
    for start in range(0, len(queries), 1000):
        similarity = queries[start : start + 1000] @ bank.T
        if skip_self:
            similarity.diagonal(start).fill_(-2)
        found.append(similarity.topk(k, 1))
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def knn_accuracy(train, y_train, test, y_test, settings=((5, None), (200, 0.1))) -> list[float]:
    """Accuracy in % of cosine k-nearest-neighbour votes, a number per (k, temperature): majority (ties to the smaller class
    number) where the temperature is None, else votes weighted by exp(cosine / temperature) (Wu et al. 2018)."""
    similarity, index = neighbours(test, train, min(max(k for k, _ in settings), len(train)))
    accuracy = []
    for k, temperature in settings:
        s, label = similarity[:, :k], y_train[index[:, :k]]
        weight = torch.ones_like(s) if temperature is None else (s / temperature).exp()
        votes = torch.zeros(len(test), int(y_train.max()) + 1, device=s.device).scatter_add_(1, label, weight)
        accuracy.append(100 * (votes.argmax(1) == y_test).float().mean().item())
    return accuracy


ACTIVE = 1e-5  # a dimension is active on a sample when |e| of the L2-normalised embedding exceeds this ([NCL])


def correlation(e: Tensor) -> Tensor:
    """e (N, K) → C (K, K), C_ij = Σ_x f̃_i f̃_j with f̃_i = e_i / sqrt(Σ_x e_i²) ([NCL] Fig. 3c)."""
    f = F.normalize(e, dim=0)
    return f.T @ f


def interpretability(e: Tensor, labels: dict[str, Tensor]) -> dict[str, float | None]:
    """What the dimensions of embeddings e (N, K) stand for; None where a number is undefined.

    act: share of active entries; live_share: share of the dimensions that are active on any sample, and live_dims, how many
    (the papers' activation rate can be read either way). corr: mean off-diagonal |C_ij| of live dimensions.
    And for each label (N,) in `labels`, its key in front:
    cons, %: the share of a dimension's active samples that are of its most frequent class, mean over live dimensions ([NCL]).
    cons_weighted, %: the same, each dimension weighted by how often it is active (ours): cons counts a dimension that is active on
    one sample, and so 100 % consistent, as much as one that is active on half of them.
    entropy, nats: of a dimension's summed |activation| over the classes, mean over live dimensions ([BayesNCL], H_s).
    p_at_k, %: share of a sample's k nearest others (cosine) that have its label, mean over samples.
    """
    e = F.normalize(e)
    active = (e.abs() > ACTIVE).to(e.dtype)
    live = active.any(0)
    c, n = correlation(e[:, live]).abs(), int(live.sum())
    metrics = {"act": active.mean().item(), "live_share": n / e.shape[1], "live_dims": n}
    metrics["corr"] = ((c.sum() - c.trace()) / (n * (n - 1))).item() if n > 1 else None
    nearest = neighbours(e, e, min(10, len(e) - 1), skip_self=True)[1]
    for key, y in labels.items():
        classes = F.one_hot(y).to(e.dtype)
        count, mass = classes.T @ active[:, live], classes.T @ e[:, live].abs()  # (C, live)
        metrics[key + "cons"] = 100 * (count.amax(0) / count.sum(0)).mean().item() if n else None
        metrics[key + "cons_weighted"] = 100 * (count.amax(0).sum() / count.sum()).item() if n else None
        metrics[key + "entropy"] = torch.special.entr(mass / mass.sum(0)).sum(0).mean().item() if n else None
        same = (y[nearest] == y[:, None]).to(e.dtype)
        metrics |= {f"{key}p_at_{k}": 100 * same[:, :k].mean().item() if k < len(e) else None for k in (1, 3, 5, 10)}
    return metrics


def dimensions(e: Tensor, labels: dict[str, Tensor]) -> str:
    """What each live dimension of embeddings e (N, K) stands for, as CSV, the most active first: its number, act, the share of
    samples it is active on, its mean |activation|; and for each label (N,) in `labels` the most frequent class of those samples, and
    cons, its share of them, whose mean over the dimensions is interpretability's, in %."""
    e = F.normalize(e)
    active = (e.abs() > ACTIVE).to(e.dtype)
    columns = {"dimension": torch.arange(e.shape[1]), "act": active.mean(0), "mean": e.abs().mean(0)}
    for key, y in labels.items():
        count = F.one_hot(y).to(e.dtype).T @ active  # (C, K)
        columns |= {key + "class": count.argmax(0), key + "cons": count.amax(0) / count.sum(0)}
    lines = zip(*(column.tolist() for column in columns.values()))
    live = sorted((line for line in lines if line[1] > 0), key=lambda line: -line[2])
    return "\n".join([",".join(columns), *(",".join(f"{value:.4g}" for value in line) for line in live)]) + "\n"


def feature_selection(e_train: Tensor, y_train: Tensor | None, e: Tensor, y: Tensor | None, l2: float | None) -> dict[str, float]:
    """Feature selection ([NCL]): of the K dimensions of embeddings keep the m of largest mean |activation| on the *training* images
    e_train (M, K), for m = K/8, K/4, K/2. → {"p_at_10_top_<m>", "lp1_top_<m>"}, both in %, P@10 among the test images e (N, K)
    and a linear probe of strength l2 on these dimensions, not normalised, and the same of m dimensions drawn at random,
    "…_random_<m>". {} without labels."""
    if y is None:
        return {}
    K, scores, y_train, y = e.shape[1], {}, y_train.to(e.device), y.to(e.device)
    orders = {"top": F.normalize(e_train).abs().mean(0).argsort(descending=True),
              "random": torch.randperm(K, generator=torch.Generator().manual_seed(0)).to(e.device)}
    for m in (max(1, K // part) for part in (8, 4, 2)):
        for name, order in orders.items():
            kept = order[:m]
            nearest = neighbours(e[:, kept], e[:, kept], min(10, len(e) - 1), skip_self=True)[1]
            scores[f"p_at_10_{name}_{m}"] = 100 * (y[nearest] == y[:, None]).float().mean().item()
            scores[f"lp1_{name}_{m}"] = linear_probe(e_train[:, kept], y_train, e[:, kept], y, [l2])["lp1"]
    return scores


def evaluate(run: "Run", data: Data, model: nn.Module) -> tuple[dict, tuple[Tensor | None, Tensor]]:
    """Every number of the final table, by the same protocol for every method, and the embeddings of the training images (M, K), None
    without labels, and of the test images (N, K); writes dimensions.csv and draws the figures. The model's first two outputs are h
    (B, d) and e (B, K)."""
    h, e = features(model, data.x_test, run.args.image_size, run.device)
    kinds = {"": "y", "background_": "background"}
    labels = {key: [t.to(h.device) for t in (getattr(data, f"{kind}_train"), getattr(data, f"{kind}_test"))]
              for key, kind in kinds.items() if getattr(data, f"{kind}_train") is not None}
    of_test = {key: y_test for key, (_, y_test) in labels.items()}
    metrics = interpretability(e, of_test)
    h_train, e_train = features(model, data.x_train, run.args.image_size, run.device) if labels else (None, None)
    for key, (y_train, y_test) in labels.items():
        scores = linear_probe(h_train, y_train, h, y_test)
        of_z = linear_probe(e_train, y_train, e, y_test)
        scores |= {"lp1_embedding": of_z["lp1"], "l2_embedding": of_z["l2"]}
        scores["knn5"], scores["knn200"] = knn_accuracy(h_train, y_train, h, y_test)
        metrics |= {key + name: value for name, value in scores.items()}
    if run.folder:
        (run.folder / "dimensions.csv").write_text(dimensions(e, of_test))
        figures(run.folder, data.x_test, e.cpu())
    return metrics, (e_train, e)


def pyplot(otherwise: str):
    """matplotlib.pyplot for drawing to files; where it is not installed, None and a line that says what happens otherwise."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot
        return matplotlib.pyplot
    except ImportError:
        print(f"matplotlib is not installed: {otherwise}")


def figures(folder: Path, images: Tensor, e: Tensor) -> None:
    """Pictures of the embeddings e (N, K) of images (N, 3, H, W), a column per dimension, the 10 of largest mean activation:
    top_images.png, the images that activate it most ([NCL] Fig. 1); active_images.png, of all images on which it is active,
    evenly from the strongest to the weakest, which is what Cons. measures. With matplotlib also dimensions.png."""
    e = F.normalize(e)
    active, order = e.abs() > ACTIVE, e.abs().mean(0).argsort(descending=True)
    ranked = e[:, order[:10]].abs().argsort(0, descending=True)  # (N, 10)
    weakest = active[:, order[:10]].sum(0).clamp(min=1) - 1
    rows = min(8, len(e))
    spread = ranked.gather(0, (torch.linspace(0, 1, rows)[:, None] * weakest).long())  # (8, 10)
    for name, chosen in ("top_images", ranked[:rows]), ("active_images", spread):
        tiles = images[chosen.flatten().to(images.device)].float() / 255
        grid = torchvision.utils.make_grid(tiles, nrow=chosen.shape[1], pad_value=1)
        scale = max(1, 64 // images.shape[-1])
        torchvision.utils.save_image(grid.repeat_interleave(scale, 1).repeat_interleave(scale, 2), folder / f"{name}.png")
    if not (plt := pyplot("dimensions.png is left out")):
        return
    shown = order[active.any(0)[order]][:64]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
    picture = left.imshow(correlation(e[:, shown]).abs().numpy(), vmin=0, vmax=1, cmap="magma")
    left.set(title=f"correlation of the {len(shown)} most active dimensions", xlabel="dimension", ylabel="dimension")
    figure.colorbar(picture, ax=left)
    right.hist(active.sum(1).numpy(), bins=min(50, e.shape[1] + 1), range=(0, e.shape[1]))
    right.set(title="active dimensions per image", xlabel=f"of {e.shape[1]}", ylabel="images")
    figure.savefig(folder / "dimensions.png", dpi=110)
    plt.close(figure)


# ------------------------------------------------------------------------------------------------------------ plumbing
def within(low, high=math.inf, kind=float, closed=False):
    """An argparse type: a finite number between low and high, which are included where `closed`."""
    def parse(text):
        value = kind(text)
        if not (low < value < high or closed and value in (low, high) and abs(value) < math.inf):
            bounds = f"between {low} and {high}" if high < math.inf else f"{'at least' if closed else 'above'} {low} and finite"
            raise argparse.ArgumentTypeError(f"{text} is not {bounds}")
        return value
    parse.__name__ = kind.__name__
    return parse


ELSEWHERE = {"resume", "device", "data_root", "compile"}  # flags that belong to a machine, not to a run


class BareParser(argparse.ArgumentParser):
    """--device, --out, and errors of one line (exit code 2): the flags that every program of this repository has."""

    def __init__(self, method: str, doc: str, out: str):
        super().__init__(prog=f"{method}.py", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, cuda:1, cpu (default: cuda where there is one)")
        self.add_argument("--out", help=f"run folder (default: {out})")

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")

    def parse_args(self, argv=None, namespace=None):
        args = super().parse_args(argv, namespace)
        try:
            torch.zeros(1, device=args.device).item()
        except (RuntimeError, AssertionError, ValueError) as error:
            raise BadInput(f"--device {args.device} is not there: {error}")
        if "LOCAL_RANK" in os.environ and args.device.startswith("cuda:"):
            raise BadInput(f"--device {args.device}: under torchrun every process has a GPU of its own; give --device cuda")
        if args.device == "cuda" and (processes := int(os.environ.get("LOCAL_WORLD_SIZE", 1))) > torch.cuda.device_count():
            raise BadInput(f"--nproc_per_node={processes}: this machine has {torch.cuda.device_count()} GPUs")
        return args

    def resumed(self, argv, saved: dict, may_differ: set[str]) -> argparse.Namespace:
        """The settings of a run, `saved`, under the flags that are given now; BadInput where one contradicts the run's."""
        unset = object()
        names = {action.dest for action in self._actions} - {"help"}
        given = vars(argparse.ArgumentParser.parse_args(self, argv, argparse.Namespace(**dict.fromkeys(names, unset))))
        given = {name: value for name, value in given.items() if value is not unset}
        for name, value in given.items():
            if name in saved and name not in may_differ and value != saved[name]:
                raise BadInput(f"--{name.replace('_', '-')} {value} contradicts the run's {saved[name]}; leave it out, or start a new run")
        self.set_defaults(**{name: value for name, value in saved.items() if name in names})
        return self.parse_args(argv)


class Parser(BareParser):
    """The flags that all image methods share, and presets per data set."""

    def __init__(self, method: str, doc: str):
        super().__init__(method, doc, "runs/<method>-<dataset>-seed<seed>-<time>")
        add = self.add_argument
        add("--dataset", default="shapes", help="shapes (built in), cifar10, cifar100, stl10, svhn, or a name under --data-root (default: shapes)")
        add("--preset", help="the settings of this data set instead of its own; `default`: for any data set and short runs")
        add("--data-root", default="data", help="folder of the data sets (default: data)")
        add("--limit", type=within(1, kind=int), help="train on the first N images only, class-balanced")
        add("--arch", choices=["resnet8", "resnet20", "resnet18", "resnet34", "resnet50"], help="backbone")
        add("--image-size", type=within(7, kind=int), help="side of the views in pixels")
        add("--decode-size", type=within(7, kind=int), help="side to which image folders are decoded, once (default: --image-size)")
        add("--epochs", type=within(0, kind=int), help="passes over the training images")
        add("--batch-size", type=within(1, kind=int), help="images per step, of all processes together")
        add("--optimizer", choices=OPTIMIZERS, help="sgd with momentum 0.9")
        add("--lr", type=within(0), help="peak learning rate, not scaled by the batch size")
        add("--weight-decay", type=within(0, closed=True), help="not applied to biases and norms under LARS")
        add("--min-scale", type=within(1e-3, 1, closed=True), help="smallest area of a random crop, as a share of the image")
        add("--jitter", type=within(0, 1, closed=True), help="strength of colour jitter; hue a quarter of it")
        add("--gray", type=within(0, 1, closed=True), help="probability of a grey view")
        add("--blur", type=within(0, 1, closed=True), help="probability of Gaussian blur, σ from 0.1 to 2 pixels")
        add("--crop", choices=["bicubic", "bilinear"], help="interpolation of the random crops")
        add("--seed", type=within(-1, 2**32, int), default=1, help="of weights, views and the order of the images")
        add("--precision", choices=["auto", "bf16", "fp32"], default="auto", help="of the network; losses are always fp32 (TF32 beside bf16 on a GPU)")
        add("--compile", nargs="?", const="default", choices=["default", "reduce-overhead", "max-autotune"],
            help="torch.compile model, views and loss, in this mode: for long runs on a GPU; the clock starts after the third step")
        add("--eval-only", metavar="CHECKPOINT", help="evaluate a checkpoint.pt; its settings are the defaults")
        add("--resume", metavar="RUN", help="go on with the run in this folder, or from its previous.pt; --epochs may grow")
        add("--checkpoint-every", type=within(0, kind=int), default=10, help="epochs between checkpoints (default: 10)")
        add("--deterministic", action="store_true", help="the same numbers again on a GPU too, slower; a CPU gives them anyway")
        add("--skip-unreadable", action="store_true", help="leave out image files that cannot be decoded, and say how many")

    def parse(self, presets: dict[str, dict], argv=None) -> argparse.Namespace:
        """Flags over the data set's preset (`default` for a data set without its own) or over a checkpoint's settings."""
        known = self.parse_known_args(argv)[0]
        preset = presets.get(known.preset or known.dataset, presets["default"])
        if known.preset and known.preset not in presets:
            self.error(f"--preset {known.preset}: there are {', '.join(presets)}")
        if known.resume:
            saved = read_settings(known.resume, Path(self.prog).stem)
            if unknown := sorted(preset.keys() - saved.keys()):
                raise BadInput(f"--resume {known.resume}: an older version made this run, without --{unknown[0].replace('_', '-')}; start a new one")
            return self.resumed(argv, saved, ELSEWHERE | {"epochs", "checkpoint_every"})
        if known.eval_only:
            if known.preset:
                self.error("--preset and --eval-only: the settings are the checkpoint's")
            preset = preset | load_checkpoint(known.eval_only, Path(self.prog).stem)["config"]
        self.set_defaults(**preset)
        return self.parse_args(argv)


def load_checkpoint(path: str | Path, method: str) -> dict:
    """A checkpoint of this method, on the CPU; BadInput for any other file. Pickled objects are never loaded."""
    previous = Path(path).with_name("previous.pt")
    try:
        if damaged := zipfile.ZipFile(path).testzip():  # torch.load would not notice
            raise ValueError(f"{damaged} in it is damaged")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if checkpoint["method"] == method and isinstance(checkpoint["config"], dict) and isinstance(checkpoint["model"], dict):
            return checkpoint
        wrong = f"it is a checkpoint of {checkpoint['method']}.py"
    except Exception as error:  # a truncated archive, a foreign pickle, a missing key: each fails in its own way
        wrong = f"{type(error).__name__}: {error}"
    hint = f" The one before it: {previous}." if previous.exists() and previous != Path(path) else ""
    raise BadInput(f"{path} cannot be used by {method}.py.{hint} ({wrong})")


def run_folder(path: str | Path) -> Path:
    """The folder of what --resume names: itself, or that of a checkpoint in it."""
    return Path(path).parent if Path(path).suffix == ".pt" else Path(path)


def read_settings(path: str | Path, method: str) -> dict:
    """config.json of the run that --resume names; BadInput where there is none of this method."""
    file = run_folder(path) / "config.json"
    try:
        settings = json.loads(file.read_text())
        program, kind = settings.get("program") or settings["method"], "an evaluation" if settings.get("eval_only") else "a run"
        if program != method or kind != "a run":
            raise BadInput(f"--resume {path}: it is {kind} of {program}.py, not a run of {method}.py")
        return settings
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, BadInput) else BadInput(f"--resume {path}: there is no run to go on with ({type(error).__name__}: {error})")


def new_folder(path: str | Path, settings: dict, device: torch.device) -> tuple[Path, dict]:
    """A run folder that nobody has used, with config.json: the settings and where they ran, returned as well."""
    folder = Path(path)
    about = settings | dict(commit=commit(), hardware=hardware(device), torch=torch.__version__, torchvision=torchvision.__version__,
                            numpy=np.__version__, python=platform.python_version(), date=time.strftime("%Y-%m-%d"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "config.json", "x") as file:
            file.write(json.dumps(about, indent=1) + "\n")
    except OSError as error:
        raise BadInput(f"--out {folder} is taken or cannot be written ({error.strerror}); name a new folder")
    return folder, about


def commit() -> str | None:
    """The commit of this code, with a + where files have changed since; None outside a git repository."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=10", "--dirty=+"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


class Run:
    """One training run: device, precision, seed, run folder, checkpoints and what is printed. The loop itself is the method's."""

    latest = None  # the run of this process

    def __init__(self, method: str, args: argparse.Namespace):
        Run.latest = self
        self.method, self.args, self.device, self.folder = method, args, torch.device(args.device), None
        self.done, self.step, self.images, self.sums, self.seconds = 0, 0, 0, {}, 0.0  # epochs done; and of the current one
        self.losses, self.warned, self.signals = [], set(), []
        self.bf16 = args.precision == "bf16" or args.precision == "auto" and has_bf16(self.device)
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = not args.deterministic
            torch.set_float32_matmul_precision("high" if self.bf16 else "highest")
        if args.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        if rank() > 0:  # the first process alone writes
            return
        settings = vars(args) | dict(method=method, precision_used="bf16" if self.bf16 else "fp32", processes=world())
        if args.resume:
            self.folder = run_folder(args.resume)
            print(f"{method} on {args.dataset}, seed {args.seed}, goes on: {self.folder}")
            return
        name = args.out or f"runs/{method}-{args.dataset}-seed{args.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.folder, about = new_folder(name, settings, self.device)
        (self.folder / "metrics.jsonl").touch()
        print(f"{method} on {args.dataset}, seed {args.seed}, {about['hardware']}, {about['precision_used']}: {self.folder}")

    def autocast(self):
        """bf16 for the network where the hardware is good at it (or --precision says so), else nothing."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def compile(self, function):
        """torch.compile of a module or function where --compile asks for it, else the same. Checkpoints are of the original."""
        return torch.compile(function, mode=self.args.compile) if self.args.compile else function

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model; under torchrun in DistributedDataParallel, its BatchNorm synchronised in place, and from here on every
        process draws other random numbers."""
        if world() == 1:
            return model
        torch.manual_seed((rank() + 1) * 2**32 + self.args.seed)
        if self.device.type == "cuda":
            nn.SyncBatchNorm.convert_sync_batchnorm(model)
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.__class__ = SyncBatchNorm
        return nn.parallel.DistributedDataParallel(model, static_graph=True)  # some ablations leave parameters without gradient

    def epochs(self, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LambdaLR):
        """Yield the epochs, from 1, that are to be trained: with --resume those after the checkpoint, from the step it was saved
        at; with --eval-only, which loads the model, none. Saves every --checkpoint-every epochs and at the end."""
        self.state = model, optimizer, schedule
        if self.args.eval_only:
            self.load(self.args.eval_only, training=False)
            return
        if self.args.resume:
            self.load_last()
        with on_signals(self.note_signal):
            for epoch in range(self.done + 1, self.args.epochs + 1):
                self.start = time.perf_counter()
                yield epoch
                self.done, self.step, self.images, self.sums, self.losses = epoch, 0, 0, {}, []
                if epoch % self.args.checkpoint_every == 0 or epoch == self.args.epochs:
                    self.save()
            if self.signals:  # it came after the last step
                sys.exit(128 + self.signals[0])

    def note_signal(self, number, _) -> None:
        """Let the step end before the run does; a second signal does not wait."""
        if self.signals:
            sys.exit(128 + number)
        self.signals.append(number)

    def log(self, images: int, **values: Tensor) -> None:
        """Add a step's image count and scalars to the epoch's means; on a GPU they stay there, so that nothing waits. Where a
        signal has come, save and exit."""
        self.images, self.step = self.images + images * world(), self.step + 1
        for key, value in values.items():
            self.sums[key] = self.sums.get(key, 0) + value.detach()
        self.losses.append(values["loss"].detach().clone())  # CUDA graphs write the next loss over this one
        if self.device.type == "cpu":
            self.check_losses()
        if self.args.compile:
            torch.compiler.cudagraph_mark_step_begin()
            if self.step == 3 and self.seconds == 0:  # compiled by now
                float(self.sums["loss"])  # wait for the device
                self.start, self.images = time.perf_counter(), 0
        stop = max(self.signals, default=0)
        if world() > 1:  # all or none; they ask each other at every tenth step of the run
            flag, asked = torch.tensor(stop), self.state[2].last_epoch % 10 == 0
            if asked:
                dist.all_reduce(flag, dist.ReduceOp.MAX)
            stop = asked * flag.item()
        if stop:
            self.check_losses()
            self.seconds += time.perf_counter() - self.start
            self.save()
            print(f"\n{self.method}: stopped by {signal.Signals(stop).name} in epoch {self.done + 1}, step {self.step}; "
                  f"--resume {self.folder} goes on from there")
            sys.exit(128 + stop)

    def check_losses(self) -> None:
        """End the run, with exit code 3, where a loss since the last look is not finite; the last checkpoint stays. On a CPU a look is
        free and taken at every step, on a GPU at the end of the epoch."""
        if not self.losses:
            return
        values, self.losses = torch.stack(self.losses), []
        if not values.isfinite().all():
            step = self.step - len(values) + 1 + int((~values.isfinite()).int().argmax())
            saved = "the last checkpoint stays" if self.folder and (self.folder / "checkpoint.pt").exists() else "there is no checkpoint yet"
            if rank() == 0:
                print(f"{self.method}: the loss is {values[~values.isfinite()][0].item()} in epoch {self.done + 1}, step {step}; {saved}; "
                      "try a smaller --lr", file=sys.stderr)
            sys.exit(3)

    def end_epoch(self, epoch: int, lr: float) -> None:
        """Write and show the means of epoch `epoch` (from 1)."""
        self.check_losses()
        means = {key: float(value) / self.step for key, value in self.sums.items()}
        seconds = time.perf_counter() - self.start
        self.seconds += seconds
        self.write(epoch=epoch, **means, lr=lr, images_per_s=self.images / seconds)
        line = f"epoch {epoch}/{self.args.epochs}  {(self.args.epochs - epoch) * self.seconds / epoch:.0f} s left  {self.images / seconds:.0f} images/s  "
        line += "  ".join(f"{key} {value:.4g}" for key, value in means.items())
        if sys.stdout and sys.stdout.isatty():  # one line that rewrites itself
            print(f"\r\x1b[K{line[:shutil.get_terminal_size().columns - 1]}", end="" if epoch < self.args.epochs else "\n", flush=True)
        else:
            print(line, flush=True)
        for key, beyond, meaning in COLLAPSE:
            if key in means and beyond(means[key]) and key not in self.warned and rank() == 0:
                self.warned.add(key)
                print(f"{self.method}: warning: {meaning} ({key} {means[key]:.3g} in epoch {epoch})", file=sys.stderr)

    def write(self, **record) -> None:
        """Append one line to metrics.jsonl."""
        if not self.folder:
            return
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")

    def save(self) -> None:
        """checkpoint.pt: all that the rest of the run depends on, and what --eval-only needs; the one before stays as previous.pt."""
        model, optimizer, schedule = self.state
        generators = [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else [])]
        every = [generators]
        if world() > 1:  # each process has its own
            dist.all_gather_object(every := [None] * world(), generators)
        if not self.folder:
            return
        config = {k: v for k, v in vars(self.args).items() if k not in ELSEWHERE | {"eval_only", "out"}}
        progress = dict(done=self.done, step=self.step, seconds=self.seconds, sums={k: v.cpu() for k, v in self.sums.items()})
        content = dict(method=self.method, config=config, model=weights(model), optimizer=optimizer.state_dict(), schedule=schedule.state_dict(),
                       generators=every, progress=progress)
        replace(self.folder / "checkpoint.pt", lambda file: torch.save(content, file), keep=self.folder / "previous.pt")

    def save_backbone(self, backbone: nn.Module) -> None:
        """backbone.pt, for torchvision's ResNet."""
        if self.folder:
            replace(self.folder / "backbone.pt", lambda file: torch.save(weights(backbone), file))

    def load_last(self) -> None:
        """Go on from the checkpoint that --resume names, the run's last, or from the beginning where there is none yet; metrics.jsonl
        is cut to the epochs it has behind it."""
        folder = run_folder(self.args.resume)
        if folder != Path(self.args.resume) and not Path(self.args.resume).is_file():
            raise BadInput(f"--resume {self.args.resume}: there is no such checkpoint; {folder} names the run's last")
        path = next((p for p in (Path(self.args.resume), folder / "checkpoint.pt", folder / "previous.pt") if p.is_file()), None)
        if path:
            self.load(path, training=True)
        if self.done > self.args.epochs or self.done == self.args.epochs and self.step:
            raise BadInput(f"--epochs {self.args.epochs}: {path} is already in epoch {self.done + 1}")
        if self.folder:
            lines = (self.folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)[: self.done]
            replace(self.folder / "metrics.jsonl", lambda file: file.write(b"".join(lines)))
            settings = read_settings(folder, self.method) | dict(epochs=self.args.epochs)
            replace(self.folder / "config.json", lambda file: file.write(json.dumps(settings, indent=1).encode() + b"\n"))

    def load(self, path: str | Path, training: bool) -> None:
        """A checkpoint's model, and for training all the rest, into this run; BadInput where it does not fit."""
        checkpoint, (model, optimizer, schedule) = load_checkpoint(path, self.method), self.state
        try:
            model.load_state_dict(checkpoint["model"])
            if not training:
                return
            optimizer.load_state_dict(checkpoint["optimizer"])
            schedule.load_state_dict(checkpoint["schedule"])
            for group, base, factor in zip(optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas):
                group["lr"] = base * factor(schedule.last_epoch)  # --epochs may have grown
            self.done, self.step, self.seconds = (checkpoint["progress"][name] for name in ("done", "step", "seconds"))
            self.sums = {name: value.to(self.device) for name, value in checkpoint["progress"]["sums"].items()}
            if len(checkpoint["generators"]) == world():  # else other random numbers, as from the start with as many processes
                torch.set_rng_state(checkpoint["generators"][rank()][0])
                if self.device.type == "cuda" and len(checkpoint["generators"][rank()]) > 1:
                    torch.cuda.set_rng_state(checkpoint["generators"][rank()][1], self.device)
        except Exception as error:  # what a changed or damaged file may lack
            raise BadInput(f"{path} does not fit these settings: {type(error).__name__}: {error}")

    def finish(self, metrics: dict) -> None:
        """Write the final record, print the table and the protocol behind it."""
        if not self.folder:
            return
        rates = [json.loads(line)["images_per_s"] for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        self.write(event="final", **metrics, seconds_train=self.seconds, images_per_s=float(np.median(rates)) if rates else None)
        print(table(self.method, metrics))
        print(f"{self.args.epochs} epochs, {self.args.arch}, {self.seconds:.0f} s of training. LP: logistic regression on frozen backbone features (z: on "
              "embeddings),\nits L2 chosen on a held-out tenth of the training set; NN: cosine on the same features; the rest: embeddings. All on the test set.")


COLLAPSE = [("act", lambda v: v < 1e-6, "every dimension of the embedding is dead"), ("gated_off", lambda v: v > 0.999, "every gate is off"),
            ("spread", lambda v: v < 0.01, "the embedding is constant, it has collapsed")]


def weights(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module as it loads on any machine."""
    return {k: v.cpu().contiguous() for k, v in module.state_dict().items()}


@contextlib.contextmanager
def on_signals(handle):
    """Within the block SIGINT and SIGTERM call handle(number, frame)."""
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


COLUMNS = {"LP@1": ("lp1", ".1f"), "LP@5": ("lp5", ".1f"), "z: LP@1": ("lp1_embedding", ".1f"),
           "5-NN": ("knn5", ".1f"), "200-NN": ("knn200", ".1f"), "Cons.": ("cons", ".1f"),
           "H_s": ("entropy", ".3f"), "P@1": ("p_at_1", ".1f"), "P@10": ("p_at_10", ".1f"), "Act.": ("act", ".3f"), "live": ("live_dims", ".0f"),
           "Corr.": ("corr", ".3f")}


def markdown(rows: list[list[str]]) -> str:
    """An aligned Markdown table; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths)) + " |"
                     for row in (rows[0], ["-" * width for width in widths], *rows[1:]))


def table(method: str, metrics: dict) -> str:
    """The final record as a Markdown table: a row for the class label, one for the background if there is one."""
    rows = [[method, *COLUMNS]]
    for label, prefix in {"class": "", "background": "background_"}.items():
        if not prefix or prefix + "cons" in metrics:
            row = [(metrics.get(prefix + key, "" if prefix else None), digits) for key, digits in COLUMNS.values()]
            rows.append([label, *("n/a" if v is None else "" if v == "" else format(v, digits) for v, digits in row)])
    return markdown(rows)


def has_bf16(device: torch.device) -> bool:
    """Whether bf16 is faster than fp32 there: GPUs from Ampere on, CPUs with AMX or AVX512-BF16."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    flags = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(flags.get("amx_bf16") or flags.get("avx512_bf16"))


def hardware(device: torch.device) -> str:
    """The GPU's or the processor's name, as far as the system tells, and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError, TypeError):
        cpu = re.search("model name\\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
        return f"{cpu}, {torch.get_num_threads()} threads"
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def health(z: Tensor) -> dict[str, Tensor]:
    """Collapse indicators of a batch of embeddings z (N, K), as 0-dimensional tensors: "spread", mean std of z/‖z‖ times
    sqrt(K) (1 healthy, 0 collapsed); "act", share of active entries; "empty", share of samples without an active one."""
    z = F.normalize(z.detach().float())
    active = z.abs() > ACTIVE
    return {"spread": z.std(0).mean() * z.shape[1] ** 0.5, "act": active.float().mean(), "empty": 1 - active.any(1).float().mean()}


def launch(main) -> None:
    """Run a program's main(), under torchrun as one of its processes, of which the first alone prints; what the user did wrong
    ends in one line on stderr and exit code 2."""
    with on_signals(lambda number, _: sys.exit(128 + number)):
        try:
            if "LOCAL_RANK" in os.environ:
                local = int(os.environ["LOCAL_RANK"])
                if local < torch.cuda.device_count():
                    torch.cuda.set_device(local)
                dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
                if rank() > 0:
                    sys.stdout = open(os.devnull, "w")
            main()
            if dist.is_initialized():  # not after an error: it would wait for the others
                dist.destroy_process_group()
        except (BadInput, OSError) as error:
            print(f"{Path(sys.argv[0]).name}: {BadInput(error)}", file=sys.stderr)
            sys.exit(2)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "can't allocate memory" not in str(error):
                raise
            half = f"try --batch-size {Run.latest.args.batch_size // 2}" if Run.latest else "use less data"
            print(f"{Path(sys.argv[0]).name}: out of memory; {half}", file=sys.stderr)
            sys.exit(2)


# ----------------------------------------------------------------------------------------------------------- benchmark
def seconds(call, repeat=5) -> float:
    """Median wall time of call() over `repeat` calls, after as many to warm up."""
    times = []
    for _ in range(2 * repeat):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times[repeat:]))


def peak_memory(reset=False) -> float:
    """The most main memory this process has held so far, or since the last call with reset, in MB; nan where Linux does not tell."""
    with contextlib.suppress(OSError, TypeError):
        peak = int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]) / 1000
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        return peak
    return math.nan


def compare(what: str, ours, peers: dict, repeat=5) -> None:
    """Print the time and the extra memory of ours(), and of each peer's call with the ratio, measured one after the other."""
    took = {}
    for name, call in {what: ours, **peers}.items():
        peak_memory(reset=True)
        before = peak_memory()
        took[name] = seconds(call, repeat)
        ratio = f"; ours is {took[name] / took[what]:.1f} times as fast" if name != what else ""
        print(f"{name if name == what else '    ' + name:60} {1000 * took[name]:8.1f} ms, {peak_memory() - before:5.0f} MB{ratio}", flush=True)


def run_simclr(folder: Path, images: int, flags: str) -> tuple[float, float]:
    """simclr.py for two epochs on `images` random 32-pixel images, in a process of its own; → images/s of the second, its peak in MB."""
    random = np.random.default_rng(0)
    if not (folder / f"{images}.npz").exists():
        np.savez(folder / f"{images}.npz", x_train=random.integers(0, 256, (images, 32, 32, 3), np.uint8),
                 x_test=random.integers(0, 256, (20, 32, 32, 3), np.uint8))
    out = folder / f"run{len(list(folder.iterdir()))}"
    argv = ["--dataset", str(images), "--data-root", str(folder), "--epochs", "2", "--out", str(out), *flags.split()]
    code = f"import torch, common, simclr; torch.set_num_threads({torch.get_num_threads()}); simclr.main({argv}); print(common.peak_memory())"
    printed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    return json.loads((out / "metrics.jsonl").read_text().splitlines()[1])["images_per_s"], float(printed.split()[-1])


def lightly_epoch(images: int, workers: int) -> tuple[float, float]:
    """The SimCLR loop of lightly's documentation with our backbone, for two epochs on as many random images; as run_simclr."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform
    pil = [TF.to_pil_image(x) for x in torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8)]
    transform = SimCLRTransform(input_size=32, cj_strength=1.0, gaussian_blur=0.0)
    loader = torch.utils.data.DataLoader([*range(images)], batch_size=256, shuffle=True, drop_last=True, num_workers=workers,
                                         collate_fn=lambda chosen: [torch.stack(view) for view in zip(*[transform(pil[i]) for i in chosen])])
    model = nn.Sequential(resnet("resnet18", 32)[0], SimCLRProjectionHead(512, 2048, 256))
    criterion, optimizer = NTXentLoss(), torch.optim.SGD(model.parameters(), lr=0.06)
    for _ in range(2):
        start = time.perf_counter()
        for x0, x1 in loader:
            loss = criterion(model(x0), model(x1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return len(loader) * 256 / (time.perf_counter() - start), peak_memory()


def peer_calls(images: Tensor, z: Tensor, train: tuple, test: tuple, e: Tensor) -> dict[str, dict]:
    """What other libraries, where installed, do for the same inputs: part of the benchmark → {name: call}."""
    from torchvision.transforms import v2
    size, pil = images.shape[-1], [v2.functional.to_pil_image(x) for x in images]
    chain = v2.Compose([v2.RandomResizedCrop(size, interpolation=v2.InterpolationMode.BICUBIC), v2.RandomHorizontalFlip(),
                        v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8), v2.RandomGrayscale(0.2),
                        v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], 0.5), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def loop():  # cons and entropy dimension by dimension, then P@10
        y, f = test[1].numpy(), F.normalize(e).numpy()
        for column in f.T:
            counts, mass = np.bincount(y[abs(column) > ACTIVE]), np.bincount(y, abs(column))
            counts.max() / counts.sum(), (mass / mass.sum() * np.log(mass / mass.sum() + 1e-12)).sum()
        np.fill_diagonal(similarity := f @ f.T, -2)
        (y[similarity.argpartition(-10, 1)[:, -10:]] == y[:, None]).mean()

    calls = {"augmentation": {"torchvision on PIL": lambda: torch.stack([chain(x) for x in pil])},
             "interpretability": {"numpy, a loop over dimensions": loop},
             "NT-Xent": {}, "probe": {}, "kNN": {}}
    try:
        import kornia.augmentation as K
        batched = nn.Sequential(K.RandomResizedCrop((size, size), (0.08, 1), resample="bicubic"), K.RandomHorizontalFlip(),
                                K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8), K.RandomGrayscale(p=0.2), K.RandomGaussianBlur((13, 13), (0.1, 2.0), p=0.5))
        calls["augmentation"]["kornia"] = lambda: batched(images.float() / 255)
    except ImportError:
        print("kornia is not installed")
    try:
        from lightly.loss import NTXentLoss
        from lightly.transforms import SimCLRTransform
        from lightly.utils.benchmarking import knn_predict
        pair, criterion = SimCLRTransform(input_size=size, cj_strength=1.0, gaussian_blur=0.5), NTXentLoss(temperature=0.2)  # two views a call
        calls["augmentation"]["lightly"] = lambda: [torch.stack([pair(x)[0] for x in pil[: len(pil) // 2]])]
        calls["NT-Xent"]["lightly"] = lambda: criterion(*z.chunk(2)).backward()
        bank = F.normalize(train[0]).T.contiguous()
        calls["kNN"]["lightly, k = 200 only"] = lambda: [knn_predict(F.normalize(q), bank, train[1], 10) for q in test[0].split(500)]
    except ImportError:
        print("lightly is not installed")
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.neighbors import KNeighborsClassifier
        x, y = ((train[0] - train[0].mean(0)) / train[0].std(0)).numpy(), train[1].numpy()

        def probe():  # linear_probe's protocol: six strengths on nine tenths, one more fit on all
            kept = len(x) * 9 // 10
            for l2, n in [(0.1**k, kept) for k in range(6)] + [(1e-2, len(x))]:
                LogisticRegression(C=1 / (l2 * n), max_iter=30).fit(x[:n], y[:n])

        calls["probe"]["scikit-learn, lbfgs"] = probe
        calls["kNN"]["scikit-learn, k = 5 only"] = lambda: KNeighborsClassifier(5, metric="cosine", algorithm="brute").fit(x, y).predict(test[0].numpy())
    except ImportError:
        print("scikit-learn is not installed")
    return calls


def benchmark(device: torch.device, peers: bool) -> None:
    """Print what each part of a run costs on this machine; with peers, what it costs with other libraries. Method files are run as
    programs, and NT-Xent is theirs."""
    warnings.simplefilter("ignore")  # scikit-learn's about max_iter, which both sides share
    print(f"{hardware(device)}, torch {torch.__version__}, torchvision {torchvision.__version__}, {time.strftime('%Y-%m-%d')}")
    nt_xent = importlib.import_module("simclr").nt_xent
    images = torch.from_numpy(shapes(256, 10)["x_train"]).to(device)
    z = torch.randn(512, 256, device=device, requires_grad=True)
    h, y = torch.randn(22000, 512, device=device), torch.arange(22000, device=device) % 10
    h[torch.arange(22000), y] += 2
    train, test, e = (h[:20000], y[:20000]), (h[20000:], y[20000:]), h[20000:, :256].relu()
    calls = collections.defaultdict(dict, peer_calls(images, z, train, test, e) if peers and device.type == "cpu" else {})
    compare("augmentation, 256 views of 32 px", lambda: augment(images, 32), calls["augmentation"])
    compare("NT-Xent and its gradient, 2N = 512, K = 256", lambda: nt_xent(*z.chunk(2), 0.2).backward(), calls["NT-Xent"], 20)
    compare("probe, 20,000 × 512, 10 classes, 6 strengths", lambda: linear_probe(*train, *test), calls["probe"], 1)
    compare("kNN, 2,000 against 20,000, k = 5 and 200", lambda: knn_accuracy(*train, *test), calls["kNN"])
    compare("interpretability, 2,000 × 256, with P@k", lambda: interpretability(e, {"": test[1]}), calls["interpretability"])

    precisions, rates = ("fp32", "bf16")[: 1 + has_bf16(device)], {}
    with tempfile.TemporaryDirectory() as folder:
        run = lambda images, flags: run_simclr(Path(folder), images, f"--device {device} --batch-size 256 {flags}")
        for arch, n in (("resnet8", 2560), ("resnet20", 1024), ("resnet18", 512)):
            for precision in precisions:
                rates[precision], peak = run(n, f"--arch {arch} --precision {precision}")
                print(f"an epoch of simclr.py, {arch}, batch 256, {precision}: {rates[precision]:8.1f} images/s, {peak:.0f} MB", flush=True)
        if peers and calls["NT-Xent"]:
            for workers in (0, torch.get_num_threads()):
                code = f"import torch, common; torch.set_num_threads({torch.get_num_threads()}); print(*common.lightly_epoch(512, {workers}))"
                done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
                theirs, peak = map(float, done.stdout.split())
                ratios = " and ".join(f"{rate / theirs:.2f} ({precision})" for precision, rate in rates.items())
                print(f"    lightly's loop, resnet18, fp32, {workers} workers: {theirs:8.1f} images/s, {peak:.0f} MB; "
                      f"ours is {ratios} times as fast", flush=True)
        for batch in (64, 128, 256, 512, 1024):
            print(f"an epoch of simclr.py, resnet8, batch {batch}: {run(2048, f'--arch resnet8 --batch-size {batch}')[0]:8.1f} images/s", flush=True)
        for n in (1000, 10000, 50000):
            rate, peak = run(n, "--arch resnet8 --batch-size 250")
            print(f"an epoch of simclr.py, resnet8, {n} images: {n / rate:8.2f} s, {peak:.0f} MB", flush=True)


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--peers", action="store_true", help="on a CPU: time torchvision on PIL, kornia, lightly and scikit-learn on the same inputs")
    flags.add_argument("--threads", type=within(0, kind=int), help="CPU threads")
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = flags.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    benchmark(torch.device(args.device), args.peers)
