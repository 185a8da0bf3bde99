"""What the methods share, in the order in which a training uses it: flags, data, views, network,
optimiser, processes, progress, run folder; then the linear probe, the papers' measures, launch.

No loss and no training loop is here. A method file and this one are a whole program; the built-in
data set needs shapes.py too. A run leaves a folder, which the programs in tools/ read.

These decide a run's numbers: Data.batches, two_views, resnet, OPTIMIZERS, lr_share, gather,
Run.epochs, features, fit_probe, of_dimensions. Most of the rest checks input, keeps files and
prints: skip it at first. --seed draws the weights (in each method's main), an epoch's order
(Data.batches) and its views (Run.epochs). The probe's held-out tenth, the chance level and the
random directions always have seed 0.

Where all methods differ from their authors' code:
1. The CIFAR stem has padding 1 (NCL, LpJEPA: 2).
2. Views are torchvision's operators on floats (theirs: PIL's on bytes, with a box blur; NCL on
   ImageNet-100: DALI's).
3. ImageNet's images are stored as squares of 256 pixels, cut from their centres: no crop sees the
   margins. They are turned as their EXIF data say.
4. Inputs are (x − 0.5) / 0.25 for every data set.
5. The probe is convex and solved, not trained; neighbours are by cosine (SparseHead: Euclidean).
6. The network is trained in bf16 where that is faster, else in fp32 (NCL, LpJEPA: fp16).
7. Rates and momenta change with every step (some: every epoch), and the warm-up begins near 0 (NCL:
   at a rate of 3e-5, and it reaches the peak a step earlier).
8. Under torchrun on CPUs, each process has its own BatchNorm.
Given the same random draws, SimCLR, NCL and BayesNCL take the same steps as their authors' program,
Barlow Twins and BYOL the same as solo-learn's, but for rounding and 7. With other draws we can tell
no effect of 2, 4 and 7: of 22 results 16 are equal within margins, 6 undecided (studies/authors).
"""

import argparse
import contextlib
import ctypes
import functools
import importlib
import io
import json
import math
import os
import platform
import secrets
import shlex
import subprocess
import sys
import time
import zipfile
import zlib
from datetime import datetime
from pathlib import Path

# Two settings that make training on a CPU faster (studies/speed has the measurements); skip them on
# a first reading. Without bf16, threads that wait should sleep and not spin, which leaves the cores
# to other programs: torch reads this when it is imported, so every program imports common first.
# And glibc should keep the memory that is freed, because new pages cost 5 to 14 % of the time.
CPUINFO = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
CPU_HAS_BF16 = "amx_bf16" in CPUINFO or "avx512_bf16" in CPUINFO
if not CPU_HAS_BF16:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGEST = -1, -3, 2**31 - 1
    if ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGEST):  # glibc before 2.35 refuses
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, LARGEST)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torchvision  # noqa: E402
import torchvision.transforms.v2.functional as TF  # noqa: E402
from torch import Tensor  # noqa: E402


class BadInput(ValueError):
    """What the user gave cannot be used. The message is one line: what is wrong, what to do."""


def need(condition, text: str) -> None:
    """BadInput with this text unless the condition holds."""
    if not condition:
        raise BadInput(text)


# ------------------------------------------------------------------------------------------- flags
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# torchrun sets these, and MASTER_ADDR. A cluster may set some of them for purposes of its own.
OF_TORCHRUN = "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"
LAUNCHED = all(os.environ.get(name, "").isdecimal() for name in OF_TORCHRUN)
LAUNCHED = LAUNCHED and "MASTER_ADDR" in os.environ
RANK = int(os.environ["RANK"]) if LAUNCHED else 0  # this process's number
WORLD = int(os.environ["WORLD_SIZE"]) if LAUNCHED else 1  # how many train together
QUIET = False  # with --quiet: progress says nothing


def number(kind, least, most=None):
    """An argparse type: an int or a float from `least` to `most`, which is finite."""
    if most is None:
        most = 2**31 - 1 if kind is int else 1e30

    def parse(text):
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most:.10g}")
        return value

    parse.__name__ = kind.__name__  # argparse says "invalid int value"
    return parse


def presets(table: dict[str, list]) -> dict[str, dict]:
    """A table of settings → the settings of each preset, {name: {setting: value}}.

    table: {setting: its values, one for each column}. The row "preset" names the columns; a column
    with several names is a preset under each of them.
    """
    named = {}
    for column in zip(*table.values()):
        settings = dict(zip(table, column))
        for name in settings.pop("preset").split():
            named[name] = settings
    return named


def as_table(named: dict[str, dict]) -> str:
    """Named presets as text for --help: a row for each setting; equal presets share a column."""
    columns = {}  # values → the names of the presets that have them
    for name, settings in named.items():
        columns.setdefault(tuple(map(str, settings.values())), []).append(name)
    rows = [("", *map(", ".join, columns.values())), *zip(named["default"], *columns)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(map(str.ljust, row, widths)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


class Parser(argparse.ArgumentParser):
    """--device, --out, --resume, --quiet; image_flags() adds what all image methods share.

    A flag that is left out has the preset's value, or that of the run which --resume names. So no
    flag has a default of its own, and argparse tells only what was typed (SUPPRESS).
    """

    def __init__(self, file: str, doc: str, presets: dict[str, dict]):
        what = "presets, by the name of the data set" if len(presets) > 1 else "defaults"
        super().__init__(
            description=doc,
            epilog=f"The {what}:\n\n{as_table(presets)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
        )
        self.method = Path(file).stem
        self.presets = presets
        self.defaults = dict(device=DEVICE, out=None, resume=None)
        # --resume may add them; the config.json of an older run need not have them.
        self.may_be_added = dict(quiet=False, tensorboard=False)
        self.add_argument("--device", help="cuda, cuda:1, cpu")
        self.add_argument("--out", help="run folder (default: a new one under runs/)")
        self.add_argument("--resume", metavar="RUN", help="go on with this run, as it was begun")
        self.add_argument("--quiet", action="store_true", help="no progress within an epoch")

    def image_flags(self) -> None:
        """Flags of all image methods."""
        self.defaults |= dict(dataset="shapes", preset=None, data_root="data", limit=None, seed=1)
        self.defaults |= dict(precision="auto", compile=False)
        count = number(int, 1)
        not_negative = number(float, 0)
        share = number(float, 0, 1)
        add = self.add_argument
        add("--dataset", help="shapes, cifar10, cifar100, stl10, svhn, your own (default: shapes)")
        add("--preset", choices=self.presets, help="settings of this name, not the data set's")
        add("--data-root", help="folder of the data sets (default: data)")
        add("--limit", type=count, help="train on so many images, classes in proportion")
        archs = ["resnet8", "resnet20", "resnet18", "resnet34", "resnet50"]
        add("--arch", choices=archs, help="backbone")
        add("--image-size", type=number(int, 8), help="side of the views in pixels")
        add("--epochs", type=count, help="passes over the training images")
        add("--batch-size", type=number(int, 2), help="images a step, of all processes")
        add("--optimizer", choices=OPTIMIZERS, help="lars and sgd have momentum 0.9")
        add("--lr", type=number(float, 1e-12), help="peak learning rate")
        add("--weight-decay", type=not_negative, help="under LARS not of biases and norms")
        add("--warmup", type=not_negative, help="epochs of linear warm-up, at most half the run")
        add("--min-scale", type=number(float, 1e-3, 1), help="smallest area of a crop")
        add("--jitter", type=share, help="strength of colour jitter; hue a quarter of it")
        add("--gray", type=share, help="probability of a grey view")
        add("--blur", type=share, help="probability of Gaussian blur, σ from 0.1 to 2 pixels")
        add("--crop", choices=["bicubic", "bilinear"], help="interpolation of the random crops")
        add("--seed", type=number(int, 0, 2**32 - 1), help="of weights, views and order")
        add("--precision", choices=["auto", "bf16", "fp32"], help="of the network")
        add("--compile", action="store_true", help="torch.compile, for long runs; views differ")
        add("--tensorboard", action="store_true", help="the epochs' records for TensorBoard, too")

    def error(self, message):
        raise BadInput(f"{message} (--help lists the flags)")

    def parse(self, argv=None) -> argparse.Namespace:
        """The settings of a new run, or of the one that --resume names."""
        rows = {*self.defaults, *self.presets["default"], *self.may_be_added, "help"}
        for flag in self._actions:
            known = flag.dest in rows or not flag.option_strings
            assert known, f"{flag.dest} needs a row in PRESETS"
            assert flag.default == argparse.SUPPRESS, f"{flag.dest} has its default in PRESETS"
        typed = vars(self.parse_args(argv))
        alone = not (os.environ.get("RANK") or os.environ.get("WORLD_SIZE"))
        text = "RANK or WORLD_SIZE is set, but not by torchrun: unset it, or start with torchrun"
        need(alone or LAUNCHED, text)
        if "resume" in typed:
            settings = self.settings_to_resume(Path(typed["resume"]))
            free = {"resume", "device", "data_root", "compile", *self.may_be_added}
            more = sorted(typed.keys() - free)
            flags = ", ".join("--" + name.replace("_", "-") for name in more)
            need(not more, f"--resume goes on by the run's settings; leave out {flags}")
        else:
            name = typed.get("preset") or typed.get("dataset") or "shapes"
            name = name if name in self.presets else "default"
            words = sys.argv[1:] if argv is None else argv
            command = shlex.join([f"{self.method}.py", *words])
            origin = dict(method=self.method, command=command, preset=name, processes=WORLD)
            origin["fingerprint"] = None  # Data notes it
            settings = self.defaults | self.presets[name] | origin
        args = argparse.Namespace(**self.may_be_added | settings | typed)
        global QUIET
        QUIET = args.quiet
        check_device(args.device)
        if getattr(args, "precision", None) == "auto":
            args.precision = "bf16" if has_bf16(args.device) else "fp32"
        return args

    def settings_to_resume(self, run: Path) -> dict:
        """The settings of a run of this program that can go on here."""
        settings = settings_of_run(run)
        method, processes = settings["method"], settings.get("processes")
        need(method == self.method, f"{run} is a run of {method}.py, not of {self.method}.py")
        launcher = f"torchrun --nproc_per_node={processes}"
        need(processes == WORLD, f"{run} is a run of {processes} processes: {launcher}")
        missing = {*self.defaults, *self.presets["default"]} - settings.keys()
        need(not missing, f"{run} does not say {sorted(missing)}: an older version made it")
        return settings

    def check(self, settings: dict, run: Path) -> None:
        """BadInput where a setting of a run is not what its flag takes."""
        known = [self.defaults, *self.presets.values()]
        for flag in self._actions:
            name = flag.dest
            if name not in settings:
                continue
            value = settings[name]
            may_be_none = any(name in some and some[name] is None for some in known)
            values = value if flag.nargs == "+" and isinstance(value, list) else [value]
            fits = (value is None and may_be_none) or all(takes(flag, one) for one in values)
            need(fits, f"{run}/config.json is damaged: {name} is {str(value)[:100]!r}")


def takes(flag: argparse.Action, value) -> bool:
    """Whether a value out of JSON is one that a flag takes."""
    if flag.nargs == 0:  # as --compile has it
        return isinstance(value, bool)
    try:
        same = (flag.type or str)(str(value)) == value
    except (ValueError, argparse.ArgumentTypeError):
        return False
    return same and (not flag.choices or value in flag.choices)


def check_device(device: str) -> None:
    """BadInput unless a tensor can be made on the device."""
    try:
        torch.zeros(1, device=device).item()  # of torch's "meta" there are no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]  # torch goes on for a page
        raise BadInput(f"--device {device} is not there: {reason}") from error


def has_bf16(device: str) -> bool:
    """Whether bf16 is faster than fp32 there: GPUs from Ampere on, CPUs with AMX or AVX512-BF16."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_capability(device)[0] >= 8
    return CPU_HAS_BF16


# -------------------------------------------------------------------------------------------- data
class Data:
    """The data set args.dataset, with args.limit of its training images.

    unlabelled: whether to pre-train on x_unlabeled where there is one, as in STL-10

    train, test   "x", images (N, 3, H, W) uint8; perhaps labels "y" (N,) int64, a second label
                  "background", and "captions" for mmncl.py
    classes       what 0, 1, … of "y" and of "background" stand for: (C,) integers or words
    images        what pre-training sees: x_unlabeled or train["x"]

    All images are in memory, so there is no DataLoader: a batch is a row of indices.
    """

    def __init__(self, args: argparse.Namespace, unlabelled=True):
        if RANK > 0:
            dist.barrier()  # until the first process has the data, which it may have to download
        arrays = find_arrays(args.dataset, Path(args.data_root))
        if RANK == 0 and WORLD > 1:
            dist.barrier()
        self.fingerprint = fingerprint(arrays)
        if getattr(args, "fingerprint", None) is None:  # a new run, or one of an older version
            args.fingerprint = self.fingerprint  # config.json will have it
        self.compare(args)
        self.train = part_of(arrays, "train")
        self.test = part_of(arrays, "test")
        self.classes = {}
        for kind in ("y", "background"):
            if kind in self.train or kind in self.test:
                self.classes[kind] = number_labels(self.train, self.test, kind)
        separate = unlabelled and "x_unlabeled" in arrays
        self.images = part_of(arrays, "unlabeled")["x"] if separate else self.train["x"]
        if args.limit:
            n = len(self.images)
            need(args.limit <= n, f"--limit {args.limit}: there are {n} training images")
            # Without labels all images are of one class.
            labels = self.train.get("y", torch.zeros(len(self.train["x"])))
            chosen = in_proportion(labels, args.limit)
            self.train = {kind: values[chosen] for kind, values in self.train.items()}
            self.images = self.images[evenly(args.limit, n)] if separate else self.train["x"]
        if args.device.startswith("cuda"):
            free, _ = torch.cuda.mem_get_info(args.device)
            if 2 * self.images.nbytes < free:
                self.images = self.images.to(args.device)

    def compare(self, args: argparse.Namespace) -> None:
        """BadInput where a run had other data."""
        where = f"{args.dataset} under {args.data_root}"
        need(isinstance(args.fingerprint, dict), f"{where}: the run's fingerprint of it is damaged")
        for name in sorted(args.fingerprint.keys() | self.fingerprint.keys()):
            was = args.fingerprint.get(name, "absent")
            now = self.fingerprint.get(name, "absent")
            text = f"{where} is not what this run had: {name} was {was}, and is {now}"
            need(was == now, f"{text}; give the --data-root of its data")

    def steps(self, batch_size: int) -> int:
        """Batches in an epoch; BadInput without one, or if the processes' shares differ."""
        n = len(self.images)
        text = f"--batch-size {batch_size} is more than the {n} training images"
        need(batch_size <= n, f"{text}: give {max(2, n // 10)}")
        equal = batch_size % WORLD == 0 and batch_size >= 2 * WORLD
        need(equal, f"--batch-size {batch_size}: {WORLD} processes take an equal part, two or more")
        return n // batch_size

    def batches(self, args: argparse.Namespace, epoch: int):
        """Yield images (n, 3, H, W) uint8 and their indices, on the device, in random order.

        The last, incomplete batch is left out. Under torchrun: this process's share of each.
        """
        steps = self.steps(args.batch_size)
        # A generator of its own: each process must draw the same order.
        shuffled = torch.Generator().manual_seed(args.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.images), generator=shuffled)
        order = order[: steps * args.batch_size].view(steps, WORLD, -1)  # (steps, WORLD, n)
        own = order[:, RANK].to(self.images.device)
        for index in progress(own, f"epoch {epoch + 1}/{args.epochs}: step"):
            images = self.images[index]
            if args.device.startswith("cuda") and not images.is_cuda:
                images = images.pin_memory()  # it is copied while the GPU computes
            images = images.to(args.device, non_blocking=True)
            yield images, index.to(args.device, non_blocking=True)


def fingerprint(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """What tells a data set from another: of each array the type, the shape, a checksum.

    Of more than 256 MB the checksum is of 1,000 evenly spaced images.
    """
    found = {}
    for name, array in arrays.items():
        rows = array
        if array.nbytes > 2**28:
            rows = array[evenly(1000, len(array))]
        found[name] = f"{array.dtype} {array.shape} {zlib.crc32(rows.tobytes()):08x}"
    return found


def evenly(most: int, total: int) -> Tensor:
    """At most `most` of the numbers 0, …, total − 1, evenly spaced."""
    count = min(most, total)
    return torch.arange(count) * total // count


def in_proportion(y: Tensor, most: int) -> Tensor:
    """The indices of at most `most` images in which the classes of y (N,) are in proportion."""
    # In order of their classes, evenly spaced places fall on each class in proportion.
    by_class = y.argsort(stable=True)
    return by_class[evenly(most, len(y))].sort().values


MEDMNIST = dict(train_images="x_train", train_labels="y_train")  # the keys of its files
MEDMNIST |= dict(test_images="x_test", test_labels="y_test")


def find_arrays(name: str, root: Path) -> dict[str, np.ndarray]:
    """x_train, x_test and, for labels, y_train, y_test of a data set; perhaps x_unlabeled.

    name: `shapes` (built in), <root>/<name>.npz, <root>/<name>/*.npy (memory-mapped;
    tools/decode.py makes them of image folders), or one that torchvision downloads
    """
    if name == "shapes":
        here = Path(__file__).with_name("shapes.py")
        need(here.exists(), "the built-in data need shapes.py beside common.py; or give --dataset")
        import shapes

        return shapes.draw()
    archive = root / f"{name}.npz"
    files = sorted((root / name).glob("*.npy"))
    two = archive.exists() and files
    need(not two, f"{archive} and {root / name}/*.npy are two data sets: rename one")
    try:
        if archive.is_file():
            arrays = dict(np.load(archive))
            return {MEDMNIST.get(key, key): np.asarray(array) for key, array in arrays.items()}
        if files:
            return {file.stem: np.lib.format.open_memmap(file, "c") for file in files}
    except Exception as error:  # what a damaged file may raise is not listed anywhere
        reason = f"{type(error).__name__}: {error}"
        remedy = "; save words with .astype('U')" if "Object arrays" in reason else ""
        raise BadInput(f"{name} cannot be read as plain numpy arrays ({reason}){remedy}") from error
    downloads = dict(cifar10="CIFAR10", cifar100="CIFAR100", stl10="STL10", svhn="SVHN")
    there = f"no {archive}, no {root / name}/*.npy (of pictures: tools/decode.py)"
    need(name in downloads, f"no data set {name}: {there}, and not one of {', '.join(downloads)}")
    return download(getattr(torchvision.datasets, downloads[name]), root)


def download(Dataset, root: Path) -> dict[str, np.ndarray]:
    """The arrays of a class of torchvision's data sets, fetched where they are not there yet."""
    name = Dataset.__name__
    splits = dict(train="train", test="test")
    if name == "STL10":
        splits["unlabeled"] = "train+unlabeled"
    arrays = {}
    cifar = name.startswith("CIFAR")
    for part, split in splits.items():
        options = dict(split=split)
        if cifar:
            options = dict(train=part == "train")
        try:
            found = Dataset(root, download=True, **options)
        except Exception as error:  # whatever the network, the mirror, the archive or scipy does
            raise BadInput(f"{name} could not be downloaded to {root}: {error}") from error
        arrays[f"x_{part}"] = found.data
        arrays[f"y_{part}"] = np.array(found.targets if cifar else found.labels)
    return arrays


def part_of(arrays: dict[str, np.ndarray], part: str) -> dict[str, Tensor | np.ndarray]:
    """The arrays "x", "y", … of x_<part>, y_<part>, …; images as (N, 3, H, W), no byte copied."""
    kinds = "x", "y", "background", "captions"
    found = {kind: arrays[f"{kind}_{part}"] for kind in kinds if f"{kind}_{part}" in arrays}
    need("x" in found, f"the data have no x_{part}; there are {', '.join(arrays)}")
    x = found["x"]
    for kind, array in found.items():
        equal = array.shape[:1] == x.shape[:1]
        need(equal, f"{kind}_{part} has shape {array.shape}, x_{part} {x.shape}: not one an image")
    told = f"x_{part} is {x.dtype} of shape {x.shape}"
    if x.ndim == 3:
        x = x[..., None]  # grey without a channel axis
    if x.ndim == 4 and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    right = x.dtype == np.uint8 and x.ndim == 4 and x.shape[1] in (1, 3) and len(x) > 1 and x.size
    need(right, f"{told}; needed: two or more uint8 (N, H, W, 3), (N, 3, H, W) or grey images")
    found["x"] = torch.from_numpy(x).expand(-1, 3, -1, -1)  # grey becomes three equal channels
    return found


def number_labels(train: dict, test: dict, kind: str) -> np.ndarray:
    """Replace labels, integers or words, by numbers 0, 1, … without gaps; → the classes (C,)."""
    for part, found in ("train", train), ("test", test):
        n = len(found["x"])
        need(kind in found, f"the data have no {kind}_{part}, only the other one")
        y = found[kind]
        if y.dtype.kind == "S":
            found[kind] = y = np.char.decode(y, "utf-8", "surrogateescape")
        right = y.size == n and (y.dtype.kind == "U" or (y.dtype.kind in "iu" and y.min() >= 0))
        told = f"{kind}_{part} is {y.dtype} of shape {y.shape}"
        remedy = "one for each image"
        if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind != "U":
            one_hot = (y.sum(1) == 1).all()
            remedy += "; of one-hot rows save argmax(1)" if one_hot else "; save one column of them"
        need(right, f"{told}; labels are {n} integers from 0 on or words, {remedy}")
    classes = np.unique(train[kind])
    # In Python: numpy compares int64 with uint64 as floats.
    numbers = {label: number for number, label in enumerate(classes.tolist())}
    alien = sorted({*test[kind].ravel().tolist()} - numbers.keys())
    need(not alien, f"{kind}_test has classes that {kind}_train has not: {alien[:5]}")
    for found in (train, test):
        found[kind] = torch.tensor([numbers[label] for label in found[kind].ravel().tolist()])
    return classes


# ------------------------------------------------------------------------------------------- views
# torchvision's operators on float tensors, equal to 1e-5, with parameters drawn for each image.
def resizing(start, length, inputs: int, size: int, interpolation: str) -> Tensor:
    """The matrices (N, size, inputs) that crop and resize one axis of `inputs` pixels to `size`.

    A matrix for each image, because each has its own crop; torchvision would take them one by one.
    Row o holds the weights of the input pixels in output pixel o. They fall with the distance of
    the centres: by a triangle (bilinear) or Keys' cubic with a = −½ (bicubic). Where a crop shrinks
    n-fold, that is n times as wide (anti-aliasing). Two pixels made of four by a triangle:
    [[.43, .43, .14, 0], [0, .14, .43, .43]].

    start, length: (N,), the crops in pixels
    """
    scale = (length / size)[:, None, None]  # (N, 1, 1): input pixels for each output pixel
    start = start[:, None, None]
    length = length[:, None, None]
    o = torch.arange(size, device=start.device)[:, None] + 0.5  # centres of output pixels
    j = torch.arange(inputs, device=start.device) + 0.5  # and of input pixels

    # The centres' distance, in output pixels where the crop shrinks, else in input pixels.
    t = (j - start - scale * o).abs() / scale.clamp(min=1)  # (N, size, inputs)
    to_1 = (1 - t).clamp(min=0)  # 1 − t for t < 1, beyond it 0
    weight = to_1
    if interpolation == "bicubic":
        to_2 = (2 - t).clamp(min=0)  # 2 − t for t < 2, beyond it 0
        # Keys' cubic. From 1 to 2: (½ − ½t)(2 − t)² = 2 − 4t + 2.5t² − 0.5t³.
        # Below 1: that − (1 − 2t)(1 − t)² = 1 − 2.5t² + 1.5t³.
        weight = (0.5 - 0.5 * t) * to_2.square() - (1 - 2 * t) * to_1.square()
    inside = (j > start) & (j < start + length)
    weight = weight * inside
    return weight / weight.sum(2, keepdim=True)


def random_boxes(n: int, h: int, w: int, min_scale: float, device):
    """Boxes for n random crops of h × w pixels: top, left, height, width, each (n,), in pixels.

    The area is a share of min_scale to 1, the aspect 3/4 to 4/3. As in torchvision: ten tries, of
    which the first that fits counts, else the largest central box.
    """
    area = h * w * torch.empty(n, 10, device=device).uniform_(min_scale, 1)
    aspect = torch.empty(n, 10, device=device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    width = (area * aspect).sqrt().round()
    height = (area / aspect).sqrt().round()
    fits = (width >= 1) & (width <= w) & (height >= 1) & (height <= h)  # (n, 10)

    one_fits = fits.any(1)
    first = fits.int().argmax(1, keepdim=True)  # the first of the tries that fit
    width = torch.where(one_fits, width.gather(1, first)[:, 0], min(w, round(h * 4 / 3)))
    height = torch.where(one_fits, height.gather(1, first)[:, 0], min(h, round(w * 4 / 3)))
    place = torch.rand(2, n, device=device)
    top = torch.where(one_fits, place[0] * (h - height + 1), (h - height) / 2).floor()
    left = torch.where(one_fits, place[1] * (w - width + 1), (w - width) / 2).floor()
    return top, left, height, width


def resized_crop(x: Tensor, top, left, height, width, size: int, interpolation: str) -> Tensor:
    """Crops of x (N, 3, H, W) in [0, 1], a box (N,) for each, resized to (3, size, size)."""
    n, c, h, w = x.shape
    across = resizing(left, width, w, size, interpolation)  # (N, size, W)
    down = resizing(top, height, h, size, interpolation)  # (N, size, H)
    x = torch.bmm(x.reshape(n, c * h, w), across.mT).view(n, c, h, size)
    return (down[:, None] @ x).clamp(0, 1)  # bicubic may leave [0, 1]


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

    To HSV, where the hue counts from 0 to 6 (0 red, 2 green, 4 blue), and back.
    """
    r, g, b = x.unbind(1)
    value = x.amax(1)  # (N, H, W): the largest channel
    chroma = value - x.amin(1)  # and how far the smallest lies below it
    scale = 1 / chroma.clamp(min=1e-9)  # a grey pixel has no hue; any will do

    hue = torch.where(value == g, 2 + (b - r) * scale, 4 + (r - g) * scale)
    hue = torch.where(value == r, (g - b) * scale, hue)
    hue = hue + 6 * shift[:, 0]
    hue = hue - 6 * (hue / 6).floor()  # modulo 6

    # Back: a channel is value − chroma + chroma · share. Its share is 1 up to 1 away from its own
    # hue (red: 0 and 6, green: 2, blue: 4), 0 from 2 away on, and linear between.
    share = [(hue - 3).abs() - 1, 2 - (hue - 2).abs(), 2 - (hue - 4).abs()]
    share = torch.stack(share, 1).clamp(0, 1)  # (N, 3, H, W)
    return torch.addcmul((value - chroma)[:, None], chroma[:, None], share)


def gaussian_blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Blur x (N, 3, S, S) with standard deviations sigma (N,), above 0 and at most 2 pixels.

    The kernel has 13 pixels, or 2 · S − 1 where that is less: borders are reflected.
    """
    n, c, s, _ = x.shape
    half = min(6, s - 1)
    offset = torch.arange(-half, half + 1, device=x.device)
    weight = (-offset.square() / (2 * sigma.square()[:, None])).softmax(1)  # (N, kernel), Gaussian
    # Output pixel i is the sum over the offsets of weight · (pixel i + offset). Along one axis that
    # is a matrix (N, S, S): image, output pixel, input pixel.
    pixel = torch.arange(s, device=x.device)[:, None] + offset  # (S, kernel)
    pixel = pixel.abs()  # reflected at the first pixel
    pixel = s - 1 - (s - 1 - pixel).abs()  # and at the last
    blur = x.new_zeros(n, s, s)
    blur.scatter_add_(2, pixel.expand(n, -1, -1), weight[:, None].expand(-1, s, -1))
    x = torch.bmm(x.reshape(n, c * s, s), blur.mT).view_as(x)
    return blur[:, None] @ x


def coin(p: float, x: Tensor) -> Tensor:
    """True with probability p for each image of x (N, …): (N, 1, 1, 1)."""
    return torch.rand(len(x), 1, 1, 1, device=x.device) < p


def can_be_asked(x: Tensor) -> bool:
    """Whether Python may look at the values of x without a wait: on a CPU, not while compiling."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def change_some(x: Tensor, chosen: Tensor, change, values: Tensor) -> Tensor:
    """change(x, values) where `chosen` (N,) is True, x (N, 3, H, W) elsewhere; values: (N, …).

    A GPU changes all images and selects: asking which ones would make it wait. A CPU changes the
    chosen ones alone, and in x itself, by which a training takes 7 to 14 % less time.
    """
    if can_be_asked(x):
        x[chosen] = change(x[chosen], values[chosen])
        return x
    return torch.where(chosen.view(-1, 1, 1, 1), change(x, values), x)


def random_colour(x: Tensor, jitter: float, gray: float) -> Tensor:
    """ColorJitter with probability 0.8, then grey with probability `gray`, of x in [0, 1].

    x: (N, 3, H, W); jitter: the strength of brightness, contrast and saturation; hue has a quarter
    of it. The order of the operators is drawn for each image. On a CPU x itself changes.
    """
    drawn = torch.empty(4, len(x), 1, 1, 1, device=x.device).uniform_(-1, 1)
    drawn = drawn * coin(0.8, x)  # (4, N, 1, 1, 1). A fifth of the images get 0: no change.
    factor = 1 + jitter * drawn[:3]
    shift = jitter / 4 * drawn[3]
    changes = [
        (adjust_brightness, factor[0]),
        (adjust_contrast, factor[1]),
        (adjust_saturation, factor[2]),
        (adjust_hue, shift),
    ]
    if jitter:
        order = torch.rand(len(x), 4, device=x.device).argsort(1)  # (N, 4)
        for turn in order.T:  # (N,): which of the four changes each image gets next
            for k, (adjust, values) in enumerate(changes):
                x = change_some(x, turn == k, adjust, values)
    return torch.where(coin(gray, x), grayscale(x), x)


def random_blur(x: Tensor, p: float) -> Tensor:
    """Gaussian blur of x (N, 3, S, S) with probability p, σ from 0.1 to 2 pixels."""
    if p == 0:
        return x
    chosen = coin(p, x).flatten()
    sigma = torch.empty(len(x), device=x.device).uniform_(0.1, 2)
    return change_some(x, chosen, gaussian_blur, sigma)


def normalise(x: Tensor) -> Tensor:
    """[0, 1] → about zero mean and unit variance, by the same two numbers for every data set."""
    return (x - 0.5) / 0.25


VIEWS = "min_scale", "jitter", "gray", "blur", "crop"  # the settings of a view


def augment(x: Tensor, size: int, min_scale, jitter, gray, blur, crop, flip=0.5) -> Tensor:
    """One random view (N, 3, size, size), normalised, of images x (N, 3, H, W) uint8.

    SimCLR's, drawn for each image: RandomResizedCrop, flip, colour, Gaussian blur.

    min_scale: smallest share of the image in a crop
    jitter: strength of the colour jitter; gray, blur, flip: probabilities
    crop: interpolation, bilinear or bicubic
    """
    n, _, h, w = x.shape
    boxes = random_boxes(n, h, w, min_scale, x.device)
    x = resized_crop(x.float() / 255, *boxes, size, crop)
    x = torch.where(coin(flip, x), x.flip(3), x)
    x = random_colour(x, jitter, gray)
    x = random_blur(x, blur)
    return normalise(x)


def two_views(x: Tensor, size: int, view=augment, **options) -> tuple[Tensor, Tensor]:
    """Two independent views, (N, 3, size, size) each, of x (N, 3, H, W); options: the view's."""
    return view(torch.cat([x, x]), size, **options).chunk(2)


def eval_view(x: Tensor, size: int) -> Tensor:
    """The view (N, 3, size, size) of x (N, 3, H, W) for evaluation: its central square, resized.

    Of 256 pixels the central 224 are cut instead, as is usual with ImageNet.
    """
    side = min(x.shape[2:])
    if (side, size) == (256, 224):
        side = size
    x = TF.center_crop(x, [side, side]).float() / 255
    return normalise(TF.resize(x, [size, size], antialias=True))


# ----------------------------------------------------------------------------------------- network
def resnet(arch: str, image_size: int) -> tuple[nn.Module, int]:
    """A backbone without classifier, (N, 3, S, S) → h (N, d), and d.

    resnet18, 34, 50   torchvision's; up to 96 pixels with a first convolution of 3×3 and stride 1,
                       up to 48 without the max-pool too (the CIFAR stem)
    resnet8, 20        the CIFAR family of He et al. 2016
    """
    if arch in ("resnet8", "resnet20"):
        return cifar_resnet(depth=int(arch.removeprefix("resnet"))), 64
    net = getattr(torchvision.models, arch)()
    d = net.fc.in_features
    net.fc = nn.Identity()
    if image_size <= 96:
        # With nn.Conv2d's own initial weights, not torchvision's (Kaiming normal).
        net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    if image_size <= 48:
        net.maxpool = nn.Identity()
    return net, d


def cifar_resnet(depth: int) -> nn.Module:
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
            layers.append(torchvision.models.resnet.BasicBlock(width, out, stride, shortcut))
            width = out
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


# --------------------------------------------------------------------------------------- optimiser
class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling: SGD with momentum and a rate for each weight tensor.

    You et al. 2017, arXiv 1708.03888. SGD gets r · (g + decay · w) for the gradient g of a weight
    w, with r = trust · ‖w‖ / (‖g‖ + decay · ‖w‖): a step is in proportion to the weight. With
    `clip` it gets min(r / lr, 1) for r, so that a layer's rate, lr times that, is min(r, lr). Where
    w = 0, r is 1; where g = 0, r is 0. Biases and norms (one axis) get SGD without decay.
    NCL's authors: trust 0.02 and clip; on ImageNet 0.001 without clip is common.
    """

    def __init__(self, params, lr: float, weight_decay=1e-4, momentum=0.9, trust=0.02, clip=True):
        settings = dict(weight_decay=weight_decay, momentum=momentum, trust=trust, clip=clip)
        super().__init__(params, dict(lr=lr, **settings))

    @torch.no_grad()
    def step(self):
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


OPTIMIZERS = {
    "lars": LARS,
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9, fused=True),
    "adam": functools.partial(torch.optim.Adam, fused=True),
}


def lr_share(step: int, steps: int, warmup: float = 0) -> float:
    """The share of the peak learning rate at a step, which counts from 0.

    Linear over `warmup` steps, at most half of all, then half a cosine down to 0, where it stays.
    """
    warmup = min(round(warmup), steps // 2)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, steps - warmup)
    return 0.5 + 0.5 * math.cos(math.pi * min(1, done))


def set_lr(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Every group's learning rate to `share` of its peak, the rate that it had at the first call.

    A group with "fixed_lr" (SimSiam's predictor) keeps its own.
    """
    for group in optimizer.param_groups:
        if "peak_lr" not in group:  # the first call of a run; checkpoints keep it
            group["peak_lr"] = group["lr"]
        if not group.get("fixed_lr"):
            group["lr"] = group["peak_lr"] * share


# --------------------------------------------------------------------------------------- processes
def gather(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors (n, ·) of this process → (N, ·) of the whole batch, with gradient.

    Under torchrun each process embeds its own part of a batch, and all of them compute the same
    loss of the whole batch. (DistributedDataParallel has a loss of each part, with fewer
    negatives.) The rows of other processes are constants here. So of a weight used before gather
    each process has a part of the gradient, and the parts' sum is the whole; of a weight used after
    it, such as SwAV's prototypes, each has the whole. average_gradients takes the mean, which is
    right for the second; for the first, gather multiplies the gradient by the number of processes.
    """
    if WORLD == 1:
        return tensors
    widths = [t.shape[1] for t in tensors]
    own = torch.cat(tensors, 1)  # one message instead of many
    rows = [torch.empty_like(own) for _ in range(WORLD)]
    dist.all_gather(rows, own.detach())
    if own.requires_grad:
        own.register_hook(lambda gradient: WORLD * gradient)
    rows[RANK] = own  # the rows that have a gradient
    return torch.cat(rows).split(widths, 1)


def average_gradients(model: nn.Module) -> None:
    """Under torchrun: the mean of all processes' gradients, in one message; see gather."""
    if WORLD == 1:
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    means = (flat / WORLD).split([g.numel() for g in gradients])
    for g, mean in zip(gradients, means):
        g.copy_(mean.view_as(g))


# ---------------------------------------------------------------------------------------- progress
def progress(items, what: str):
    """Yield the items, and say on stderr how far they are.

    On a terminal one line is written anew each second and erased at the end. A file gets a line
    after ten seconds, then each minute.
    items: anything with a length
    """
    terminal = sys.stderr.isatty()
    began = time.monotonic()
    next_line = began + (0 if terminal else 10)
    told = False
    for done, item in enumerate(items):
        now = time.monotonic()
        if now >= next_line and not QUIET and RANK == 0:
            text = f"{what} {done}/{len(items)}"
            if done:
                left = (now - began) / done * (len(items) - done)
                text += f", {left:.0f} s left"
            if terminal:
                text = f"\r{text}\033[K"  # over the last one, of which nothing stays
            print(text, end="" if terminal else "\n", file=sys.stderr, flush=True)
            next_line = now + (1 if terminal else 60)
            told = True
        yield item
    if told and terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


# -------------------------------------------------------------------------------------- run folder
def new_folder(path: Path, settings: dict, device: str) -> None:
    """A new run's folder with config.json: the settings, the commit, the machine.

    BadInput where the folder holds anything, which would be another run or somebody else's.
    """
    path.mkdir(parents=True, exist_ok=True)
    empty = not any(path.iterdir())
    need(empty, f"--out {path} is not empty: name a new folder, or go on with --resume {path}")
    git = f'git -C "{Path(__file__).parent}" describe --always --exclude=* --abbrev=10 --dirty=+'
    failed, commit = subprocess.getstatusoutput(git)  # with a + where files have changed since
    made_by = dict(
        commit=None if failed else commit,
        hardware=hardware(device),
        torch=torch.__version__,
        date=time.strftime("%Y-%m-%d"),
    )
    with replacing(path / "config.json") as file:
        file.write(json.dumps(settings | made_by, indent=1).encode() + b"\n")


def methods() -> list[str]:
    """The programs beside this file that have its Parser: the methods, also under new names."""
    found = []
    for path in Path(__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "= common.Parser(__file__" in text and path.name != Path(__file__).name:
            found.append(path.stem)
    return sorted(found)


def settings_of_run(run: Path) -> dict:
    """The settings in config.json of a run of any method; BadInput if it is no such run."""
    need((run / "config.json").exists(), f"{run} is no run: it has no config.json")
    settings = read_json(run / "config.json")
    method = settings.get("method")
    known = methods()
    need(method in known, f"{run} is no run: its config.json names none of {', '.join(known)}")
    importlib.import_module(method).parser().check(settings, run)
    return settings


def read_json(path: Path, expected=dict):
    """What a JSON file holds, of the `expected` type; BadInput if there is none."""
    if path.exists():  # reading a pipe would wait, reading a huge file fill the memory
        ours = path.is_file() and path.stat().st_size < 2**27
        need(ours, f"{path} is none of ours: it is no file, or above 128 MB")
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"{path} cannot be read ({reason})") from error
    need(isinstance(found, expected), f"{path} is damaged: it holds no {expected.__name__}")
    return found


def hardware(device: str) -> str:
    """The GPU's name; or the processor's, where Linux tells it, and the number of threads."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    name = CPUINFO.partition("model name")[2].partition(": ")[2].partition("\n")[0]
    return f"{name or platform.machine()}, {torch.get_num_threads()} threads"


class Run:
    """What surrounds a training's steps: seeds, precision, compiling, records, and a run's folder.

    config.json                    the settings, the commit, the machine
    checkpoint.pt                  after every epoch: model, optimizer, and the records so far
    metrics.jsonl                  a record for each epoch; at the end the final record
    backbone.pt, embeddings.npz    at the end

    The first process writes them. A record has the epoch; the means over its steps of loss, spread,
    act and the method's own scalars; lr of the last step; images_per_s; ten times in a run knn, the
    5-NN accuracy; and seconds. Under torchrun on GPUs, BatchNorm becomes SyncBatchNorm.

    What an epoch draws depends on its number alone. So a run that was killed at any moment and goes
    on from its last epoch ends with the same numbers, on a CPU bit for bit.
    """

    def __init__(self, args, data: Data, model: nn.Module, optimizer, knn=True):
        self.args = args
        self.data = data
        self.model = model
        self.optimizer = optimizer
        self.knn = knn and "y" in data.train and len(data.classes["y"]) > 1
        self.records = []  # a record for each epoch that is done
        self.board = None
        self.began = 0.0  # when the epoch began
        # Without the package it refuses, before there is a folder.
        Writer = tensorboard_writer() if args.tensorboard and RANK == 0 else None
        self.bf16 = args.precision == "bf16"
        now = datetime.now().strftime("%Y%m%d-%H%M%S-%f")  # microseconds, as runs may start at once
        new = f"runs/{args.method}-{Path(args.dataset).name}-seed{args.seed}-{now}"
        self.folder = Path(args.resume or args.out or new)
        if WORLD > 1 and args.device.startswith("cuda"):
            # One BatchNorm for all processes: layers change in place, parameters stay the same.
            nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if args.resume:
            self.load()
        elif RANK == 0:
            new_folder(self.folder, vars(args), args.device)
        self.describe()
        if Writer:
            # What a killed run wrote beyond its last epoch is hidden.
            self.board = Writer(self.folder, purge_step=len(self.records) + 1)
        done = f"{len(self.records)} of {args.epochs} epochs done"
        print(f"{self.folder}: {args.device}, {args.precision}, {done}", flush=True)
        launcher = "python" if WORLD == 1 else f"torchrun --nproc_per_node={WORLD}"
        command = f"{shlex.quote(sys.argv[0])} --resume {shlex.quote(str(self.folder))}"
        print(f"to go on if it is stopped: {launcher} {command}", flush=True)

    def describe(self) -> None:
        """Print what is trained, and what a newcomer should know before the first step."""
        args = self.args
        n = len(self.data.images)
        steps = self.data.steps(args.batch_size)
        weights = sum(p.numel() for p in self.model.parameters()) / 1e6
        optimizer = type(self.optimizer).__name__
        batches = f"batches of {args.batch_size}, {steps} steps an epoch"
        print(f"{args.arch}, {weights:.1f} million weights; {optimizer}, {batches}")
        preset = getattr(args, "preset", None) or "not noted"
        print(f"{n:,} images of {args.dataset}, {args.epochs} epochs; settings: {preset}")
        if not hasattr(args, "optimizer"):  # sae.py's, which trains no backbone
            return
        print("spread: 0 is a collapse; act: share of active entries; knn: 5-NN accuracy, %")
        large = args.arch in ("resnet18", "resnet34", "resnet50")
        if args.device == "cpu" and large:
            laptop = "on a laptop: --preset default --arch resnet8"
            print(f"{args.arch} and {args.epochs} epochs are for a GPU; {laptop} --epochs 20")
        elif steps < 10 and n >= 20:
            size = 2 ** int(math.log2(n / 10))
            print(f"so few steps teach little: --batch-size {size} would give {n // size}")

    def load(self) -> None:
        """Go on from checkpoint.pt; without one, from the beginning."""
        path = self.folder / "checkpoint.pt"
        if path.exists():
            saved = load_checkpoint(path)
            try:
                self.model.load_state_dict(saved["model"])
                self.optimizer.load_state_dict(saved["optimizer"])
                self.records = [dict(record) for record in saved["log"]]
            except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
                reason = f"{type(error).__name__}: {error}"
                raise BadInput(f"{path} is not a checkpoint of this training ({reason})") from error

    def compile(self, function):
        """torch.compile of a module or function where --compile asks for it."""
        return torch.compile(function) if self.args.compile else function

    def epochs(self):
        """Yield the epochs not done yet, which count from 0; each is seeded, in training mode."""
        for epoch in range(len(self.records), self.args.epochs):
            # No two epochs or processes share a seed, with fewer than 10,007 of each.
            torch.manual_seed((self.args.seed * 10_007 + epoch) * 10_007 + RANK)
            self.model.train()
            self.began = time.perf_counter()
            yield epoch

    def end_epoch(self, log: list[dict]) -> None:
        """Show the means of the scalars of the steps in `log`, and save the epoch.

        A loss or a weight that is not finite ends the run; checkpoint.pt stays that of the last
        good epoch. Ten times in a run the 5-NN accuracy is measured too.
        """
        args = self.args
        epoch = len(self.records) + 1
        record = dict(epoch=epoch)
        for key in log[0]:
            record[key] = torch.stack([step[key] for step in log]).mean().item()
        seconds = time.perf_counter() - self.began  # after .item(), which waits for a GPU
        finite = torch.stack([p.isfinite().all() for p in self.model.parameters()]).all()
        finite = finite and math.isfinite(record["loss"])
        # Refused in all processes, so that all of them stop.
        need(finite, f"epoch {epoch}: the loss or a weight is not finite; those before it are kept")
        if RANK > 0:
            return
        record["lr"] = self.optimizer.param_groups[0]["lr"]
        record["images_per_s"] = len(log) * args.batch_size / seconds
        tenths = 10 * epoch // args.epochs
        tenths_before = 10 * (epoch - 1) // args.epochs
        if self.knn and tenths > tenths_before:
            record["knn"] = quick_knn(self.model, self.data, args)
        if self.board:
            for key, value in record.items():
                self.board.add_scalar(key, value, epoch)
            self.board.flush()
        self.records.append(record | dict(seconds=seconds))
        shown = [f"{key} {value:.4g}" for key, value in record.items() if key != "epoch"]
        left = (args.epochs - epoch) * sum(past["seconds"] for past in self.records) / epoch
        print(f"epoch {epoch}/{args.epochs}  {left:.0f} s left ", *shown, sep="  ", flush=True)
        state = dict(model=self.model.state_dict(), optimizer=self.optimizer.state_dict())
        save(self.folder / "checkpoint.pt", state | dict(log=self.records))
        self.write(self.records)

    def write(self, records: list[dict]) -> None:
        """Write metrics.jsonl anew: what a killed run wrote beyond its checkpoint is gone then."""
        with replacing(self.folder / "metrics.jsonl") as file:
            for record in records:
                file.write(json.dumps(record).encode() + b"\n")

    def finish(self, metrics: dict, h: Tensor, z: Tensor) -> None:
        """Write the final record, the backbone and embeddings.npz, of the test images; print."""
        arrays = dict(h=h.cpu().numpy(), z=z.cpu().numpy())
        for label, classes in self.data.classes.items():
            arrays[label] = classes[self.data.test[label]]
        with replacing(self.folder / "embeddings.npz") as file:
            np.savez(file, **arrays)
        weights = {name: w.cpu() for name, w in self.model.backbone.state_dict().items()}
        save(self.folder / "backbone.pt", weights)
        seconds = sum(record["seconds"] for record in self.records)
        final = dict(event="final", epochs=len(self.records), **metrics, seconds_train=seconds)
        self.write([*self.records, final])
        print_table(metrics, self.data)
        print(f"{seconds:.0f} s of training. More of the dimensions, and pictures of them:")
        folder = shlex.quote(str(self.folder))
        print(f"python tools/interpret.py {folder}\npython tools/look.py {folder}")


def tensorboard_writer():
    """The class that writes what TensorBoard shows."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BadInput("--tensorboard needs a package: pip install tensorboard") from error
    return SummaryWriter


@contextlib.contextmanager
def replacing(path: Path):
    """A new binary file that takes the place of `path` once the block has ended well."""
    # A new name, and "x": nothing is overwritten.
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    with open(unfinished, "xb") as file:
        try:
            yield file
            file.close()  # on a full disk this may fail too
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def save(path: Path, state: dict) -> None:
    """torch.save in place of the file `path`, which stays whole until the new one is."""
    buffer = io.BytesIO()  # writing to a file, torch.save hides a full disk behind a RuntimeError
    torch.save(state, buffer)
    with replacing(path) as file:
        file.write(buffer.getbuffer())


def load_checkpoint(path: Path) -> dict:
    """A file of torch.save, on the CPU; BadInput where it is damaged. Never a pickled object."""
    try:
        damaged = zipfile.ZipFile(path).testzip()  # torch.load would not notice
        if damaged is None:
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a truncated archive, a foreign pickle: each fails in its own way
        raise BadInput(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    raise BadInput(f"{path} cannot be read ({damaged} in it is damaged)")


# -------------------------------------------------------------------------------------- evaluation
ACTIVE = 1e-5  # of a row of norm 1: what is larger counts as active (NCL)


def health(z: Tensor) -> dict[str, Tensor]:
    """Signs of collapse in a batch of embeddings z (N, K), as scalar tensors.

    spread   mean standard deviation of z/‖z‖, times √K: 0 is collapsed, about 1 the most there can
             be; embeddings ≥ 0 stay below 1
    act      share of active entries
    """
    z = F.normalize(z.detach().float())
    spread = z.std(0).mean() * z.shape[1] ** 0.5
    return dict(spread=spread, act=(z.abs() > ACTIVE).float().mean())


@torch.no_grad()
def features(model: nn.Module, images: Tensor, size: int, device="cpu", view=eval_view):
    """h (N, d) and z (N, K), float32: the model's first outputs in eval mode, in which it stays."""
    model.eval()
    all_h, all_z = [], []
    for part in progress(images.split(500), "features, 500 images at a time:"):
        h, z, *_ = model(view(part.to(device), size))
        all_h.append(h)
        all_z.append(z)
    return torch.cat(all_h).float(), torch.cat(all_z).float()


def quick_knn(model: nn.Module, data: Data, args) -> float:
    """5-NN of at most 1,000 test images among 5,000 training images, in %, in args.precision.

    The final record's is of all images, in float32. As this draws no random numbers, a training
    goes on as without it.
    """
    found = []
    device_type = torch.device(args.device).type
    for part, most in (data.train, 5000), (data.test, 1000):
        some = evenly(most, len(part["x"]))
        with torch.autocast(device_type, torch.bfloat16, enabled=args.precision == "bf16"):
            h, _ = features(model, part["x"][some], args.image_size, args.device)
        found += [h, part["y"][some].to(h.device)]
    return knn_accuracy(*found)


def logistic_regression(x: Tensor, y: Tensor, l2: float, start: Tensor) -> Tensor:
    """The weights (d + 1, C) of the least mean cross-entropy + l2/2 · ‖weights‖².

    x: (N, d + 1), features that are uncorrelated, then 1 for the bias, which is not penalised
    start: weights to begin from

    The problem is convex, so there is no rate to tune: LBFGS goes on until a step gains less than
    1e-6 nats, at most 300 steps. It solves for v = weights / scale, along whose entries the loss is
    about equally curved: its second derivatives are about mean p(1 − p) · mean x² + l2. Without the
    scale, and on correlated features, it takes up to five times as long, or stops too early.
    """
    penalty = torch.full_like(x[0], l2)[:, None]  # (d + 1, 1)
    penalty[-1] = 0
    p = (x @ start).softmax(1)  # (N, C)
    curvature = (p * (1 - p)).mean().clamp(min=1e-6) * x.square().mean(0)[:, None]
    scale = (curvature + penalty).rsqrt()  # (d + 1, 1)
    v = (start / scale).requires_grad_()
    stop = dict(max_iter=300, tolerance_grad=0, tolerance_change=1e-6)
    solver = torch.optim.LBFGS([v], line_search_fn="strong_wolfe", **stop)

    def closure():
        solver.zero_grad()
        weights = scale * v
        loss = F.cross_entropy(x @ weights, y) + (penalty * weights.square()).sum() / 2
        loss.backward()
        return loss

    solver.step(closure)
    return (scale * v).detach()


def fit_probe(train: Tensor, y: Tensor, penalties=(1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)):
    """Logistic regression on features (N, d): a function from features to scores (N, C), and l2.

    The l2 is the one of `penalties`, from strong to weak, that is best on a held-out tenth of the
    *training* set, of equals the strongest. Then all of the training set is fitted.
    """
    mean = train.mean(0)
    std = train.std(0).clamp(min=1e-6)
    standardised = (train - mean) / std
    # Along their principal axes features are uncorrelated, so that logistic_regression can scale
    # each by itself. A rotation leaves ‖weights‖ as it is.
    products = (standardised.T @ standardised).double().cpu()
    axes = torch.linalg.eigh(products).eigenvectors.to(train)

    def inputs(features):
        standardised = (features - mean) / std
        return F.pad(standardised @ axes, (0, 1), value=1.0)  # 1: for the bias

    x = inputs(train)
    place = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held = (place < max(1, len(x) // 10)).to(x.device)  # whether an image is of a random tenth
    x_fitted, y_fitted = x[~held], y[~held]
    weights = x.new_zeros(x.shape[1], int(y.max()) + 1)
    highest = -1.0
    for l2 in progress(penalties, "linear probe, l2"):
        weights = logistic_regression(x_fitted, y_fitted, l2, weights)
        accuracy, _ = top_1_and_5(x[held] @ weights, y[held])
        if accuracy > highest:
            highest, best_l2, start = accuracy, l2, weights
    weights = logistic_regression(x, y, best_l2, start)

    def classify(features):
        return inputs(features) @ weights

    return classify, best_l2


def linear_probe(train, y_train, test, y_test, **options) -> dict[str, float]:
    """fit_probe of the training set → {"lp1", "lp5"}, % right of the test set, and "l2".

    train, test: features (N, d); y_train, y_test: labels (N,); options: those of fit_probe.
    """
    classify, l2 = fit_probe(train, y_train, **options)
    lp1, lp5 = top_1_and_5(classify(test), y_test)
    return dict(lp1=lp1, lp5=lp5, l2=l2)


def top_1_and_5(scores: Tensor, y: Tensor) -> tuple[float, float]:
    """How often the likeliest class, and one of the five likeliest, is y (N,), in %."""
    hits = scores.topk(min(5, scores.shape[1]), 1).indices == y[:, None]  # (N, 5)
    hits &= scores.isfinite().all(1, keepdim=True)  # NaN would rank first
    top1 = hits[:, 0].float().mean()
    top5 = hits.any(1).float().mean()
    return 100 * top1.item(), 100 * top5.item()


def knn_accuracy(train: Tensor, y_train: Tensor, test: Tensor, y_test: Tensor, k=5) -> float:
    """% right on test (N, d) by the commonest class of the k nearest in train (M, d), by cosine."""
    train = F.normalize(train)
    votes = []
    for part in F.normalize(test).split(1000):
        nearest = (part @ train.T).topk(min(k, len(train)), 1).indices  # (n, k)
        votes.append(F.one_hot(y_train[nearest], int(y_train.max()) + 1).sum(1))  # (n, C)
    right = torch.cat(votes).argmax(1) == y_test  # of equally common classes the first
    return 100 * right.float().mean().item()


def consistency_by_chance(classes: Tensor, n: Tensor) -> Tensor:
    """The expected share of the commonest class among n random images, for each of n (D,): (D,).

    classes: (N, C), one-hot. An estimate: forty times the images are put in random order and cut
    into groups of n; the mean share of a group's commonest class. A small n, for which luck varies
    most, has the most groups.
    """
    numbers, place = n.unique(return_inverse=True)
    chance = torch.zeros(len(numbers), device=n.device)
    shuffled = torch.Generator().manual_seed(0)
    for _ in range(40):
        order = torch.randperm(len(classes), generator=shuffled)
        so_far = classes[order].cumsum(0)  # (N, C): among the first 1, 2, … N images
        for i, size in enumerate(numbers.tolist()):
            ends = so_far[size - 1 :: size]  # (N // size, C): up to the end of each part
            counts = ends.diff(dim=0, prepend=torch.zeros_like(ends[:1]))  # in each part
            chance[i] += counts.amax(1).mean()
    # Divided after the sum: else rounding would leave the chance of one image a little below 1.
    return chance[place] / 40 / n


def of_dimensions(z: Tensor, y: Tensor) -> dict[str, float]:
    """What the dimensions of z (N, K) say about labels y (N,), by name.

    Each is a mean over live dimensions, those that are active on at least one image:
    cons      class consistency (NCL), %: of the images that a dimension is active on, the share of
              their commonest class
    adjusted  (cons − chance) / (1 − chance), % (ours); chance is the cons of as many random images
              as the dimension is active on. Only of dimensions active on at least 0.1 % of all
    entropy   H_s (BayesNCL), nats: of a dimension's |z|, summed over each class

    Empty where there is one class or no live dimension.
    """
    z = F.normalize(z.float()).abs()
    z = z * (z > ACTIVE)
    z = z[:, z.any(0)]  # (N, live)
    if z.shape[1] == 0 or (y == y[0]).all():
        return {}
    n = z.count_nonzero(0)  # (live,): images that a dimension is active on
    classes = F.one_hot(y).float()  # (N, C)
    cons = (classes.T @ (z > 0).float()).amax(0) / n
    mass = classes.T @ z  # (C, live)
    entropy = torch.special.entr(mass / mass.sum(0)).sum(0)
    chance = consistency_by_chance(classes, n)
    adjusted = (cons - chance) / (1 - chance).clamp(min=1e-9)
    often = n >= max(1, round(len(y) / 1000))
    found = dict(cons=100 * cons, adjusted=100 * adjusted[often], entropy=entropy)
    return {name: values.mean().item() for name, values in found.items() if len(values)}


def of_random_directions(h: Tensor, z: Tensor, y: Tensor) -> dict[str, float]:
    """`of_dimensions` of random directions of h (N, d) in the place of the dimensions of z (N, K).

    Each is active on as many images as its dimension: those where it is largest, h being centred
    and its rows of norm 1. A baseline: the dimensions of z are worth training only if they exceed
    it. The entropy does not compare: which images are active is known, but not how much.
    """
    n = (F.normalize(z).abs() > ACTIVE).sum(0)  # (K,)
    draw = torch.Generator().manual_seed(0)
    directions = torch.randn(h.shape[1], len(n), generator=draw).to(h.device)  # (d, K)
    scores = F.normalize(h - h.mean(0)) @ directions  # (N, K)
    descending = scores.sort(0, descending=True).values
    least = descending.gather(0, (n - 1).clamp(min=0)[None])  # (1, K): the n-th largest score
    active = (scores >= least) & (n > 0)
    return of_dimensions(active, y)


def evaluate(model: nn.Module, data: Data, args) -> tuple[dict, Tensor, Tensor]:
    """The numbers of the final record, and h (N, d) and z (N, K) of the test images.

    The second label's numbers have "background_" before their names.
    """
    print("evaluating: linear probes, neighbours, dimensions", flush=True)
    h, z = features(model, data.test["x"], args.image_size, args.device)
    h_train, z_train = features(model, data.train["x"], args.image_size, args.device)
    sound = all(e.isfinite().all() for e in (h, z, h_train, z_train))
    need(sound, "features are not finite: try a smaller --lr or a larger --batch-size")
    active = F.normalize(z).abs() > ACTIVE
    metrics = dict(act=active.float().mean().item(), live_dims=active.any(0).sum().item())
    for label, classes in data.classes.items():
        if len(classes) < 2:
            continue
        y_train, y = data.train[label].to(h.device), data.test[label].to(h.device)
        found = of_dimensions(z, y)
        random = of_random_directions(h, z, y)
        found |= {f"random_{name}": random[name] for name in ("cons", "adjusted") if name in random}
        for suffix, train, test in ("", h_train, h), ("_embedding", z_train, z):
            probed = linear_probe(train, y_train, test, y)
            probed["knn5"] = knn_accuracy(train, y_train, test, y)
            found |= {name + suffix: value for name, value in probed.items()}
        prefix = "" if label == "y" else f"{label}_"
        metrics |= {prefix + name: value for name, value in found.items()}
    return metrics, h, z


COLUMNS = {  # of the table at the end: key in the record → name, decimals
    "lp1": ("LP@1", 1),
    "lp5": ("LP@5", 1),
    "lp1_embedding": ("z: LP@1", 1),
    "knn5": ("5-NN", 1),
    "act": ("Act.", 3),
    "live_dims": ("live", 0),
    "cons": ("Cons.", 1),
    "adjusted": ("adj.", 1),
    "entropy": ("H_s", 3),
}
OF_ALL = "act", "live_dims"  # the others are of a label
LEGEND = """\
LP: linear probe of the features (z: of the embedding), %. Act.: share of entries that are active.
Cons.: share of the commonest class in a dimension's images, %; adj.: above chance. H_s: entropy.
random: the same of as many random directions of the features, each on as many images."""


def print_table(metrics: dict, data: Data) -> None:
    """The final record, a row for each label, and what its columns are."""
    print(" " * 10, *(f"{name:>7}" for name, _ in COLUMNS.values()))
    for label in data.classes or ["no labels"]:
        prefix = "" if label == "y" else f"{label}_"
        rows = {"class" if label == "y" else label: ""}
        if label in data.classes:
            rows["random"] = "random_"
        for title, of_random in rows.items():
            cells = []
            for key, (_, digits) in COLUMNS.items():
                value = metrics.get(key if key in OF_ALL else f"{prefix}{of_random}{key}")
                if value is not None:
                    value = f"{round(value, digits) + 0:.{digits}f}"  # + 0: no −0.0
                cells.append(value or "–")
            print(f"{title:10}", *(f"{cell:>7}" for cell in cells))
        if label in data.classes and len(data.test[label].unique()) == 1:
            print(f"{label} has one class among the test images: dimensions tell nothing apart")
    print(LEGEND)


# ---------------------------------------------------------------------------------------- programs
OUT_OF_MEMORY = "allocate", "ALLOC_FAILED", "out of memory"  # of torch, numpy and CUDA's libraries


def launch(main, *errors) -> None:
    """Run a program's main(), under torchrun as one of its processes; only the first prints.

    On GPUs float32 is float32 (no TF32), and cuDNN tries which of its algorithms is fastest.
    Bad input, errors of files and a lack of memory are one line and exit code 2; Ctrl-C is 130.
    errors: more exceptions that are one line
    """
    program = Path(sys.argv[0]).name
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may lack our Greek letters
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False  # TF32 keeps 10 of float32's 23 bits
    torch.backends.cuda.matmul.allow_tf32 = False  # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE turns it on
    try:
        if WORLD > 1:
            cuda = torch.cuda.is_available()
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
            if cuda:
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if RANK > 0:
            sys.stdout = open(os.devnull, "w")
        main()
        if WORLD > 1:
            dist.destroy_process_group()
    except BrokenPipeError:  # nobody reads on, as of "| head"
        os._exit(1)
    except KeyboardInterrupt:
        if RANK == 0:
            print(f"{program}: stopped", file=sys.stderr)
        sys.exit(130)
    except (BadInput, OSError, MemoryError, RuntimeError, *errors) as error:
        text = " ".join(str(error).split())[:400]
        if isinstance(error, (MemoryError, RuntimeError)):
            if not any(words in text for words in OUT_OF_MEMORY):
                raise  # a bug, whose traceback is wanted
            text = f"out of memory, of which a smaller --batch-size needs less: {text}"
        print(f"{program}: {text}", file=sys.stderr)
        sys.exit(2)
