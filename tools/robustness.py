"""Fit a linear probe of a run on clean images and test it on corrupted and shifted ones.

    python tools/robustness.py runs/<run> [runs/<other> ...]

[NCL] claims that non-negative features are more robust. robustness.json, in the run's folder, has
the accuracies in % of a probe of the features, h_..., and of the embedding, z_...,
    clean                       on the test images
    <corruption>_<severity>     on corrupted ones: noise, blur, contrast, brightness, pixelation,
                                jpeg, severities 1 to 5 (CIFAR-10-C)
    <corruption>, corrupted     means over the severities, and over the corruptions
and, of 2,000 new images of the built-in data set,
    reversed             the backgrounds' frequencies are reversed: the rarest is the most frequent
    unseen               two backgrounds that no training image has
    paired               the probe is fitted on images of which nine in ten have a background that
                         belongs to their object; here these have another object's background
    paired_as_trained    the same probe, with backgrounds as in the images it was fitted on

CIFAR-10-C: Hendrycks and Dietterich 2019, arXiv 1903.12261. The constants are the authors' for
32 pixels; on larger images they are mild. Where we differ from their code: the blur mirrors an
image at its borders (theirs repeats the outermost pixel), which changes the outer 2 to 4 pixels.
[NCL]: arXiv 2403.12459.
"""

import argparse
import io
import itertools
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
import interpret  # noqa: E402
import shapes  # noqa: E402
from common import progress  # noqa: E402
from run_folder import labelled_data, load_run, write_json  # noqa: E402

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
from torch import Tensor  # noqa: E402
from torchvision.transforms.v2 import functional as TF  # noqa: E402


# ------------------------------------------------------------------------------------- corruptions
# Of images x (N, 3, H, W) in [0, 1]; c says how much. The result may leave [0, 1].
def add_noise(x: Tensor, c: float) -> Tensor:
    """Gaussian noise of standard deviation c."""
    return x + c * torch.randn_like(x)


def blur(x: Tensor, c: float) -> Tensor:
    """Gaussian blur of standard deviation c pixels."""
    return common.gaussian_blur(x, torch.full((len(x),), c))


def lower_contrast(x: Tensor, c: float) -> Tensor:
    """Each pixel's distance to its channel's mean is multiplied by c."""
    mean = x.mean((2, 3), keepdim=True)
    return torch.lerp(mean, x, c)


def brighten(x: Tensor, c: float) -> Tensor:
    """c is added to the value V of HSV, up to 1."""
    value = x.amax(1, keepdim=True)
    hue_and_saturation = torch.where(value > 0, x / value.clamp(min=1e-9), 1.0)
    return hue_and_saturation * (value + c).clamp(max=1)


def pixelate(x: Tensor, c: float) -> Tensor:
    """Shrunk by c and enlarged again, without interpolation."""

    def change(image):
        width, height = image.size
        size = max(1, int(width * c)), max(1, int(height * c))
        small = image.resize(size, Image.Resampling.BOX)
        return small.resize(image.size, Image.Resampling.BOX)

    return by_pillow(change, x)


def compress(x: Tensor, c: int) -> Tensor:
    """JPEG of quality c."""

    def change(image):
        file = io.BytesIO()
        image.save(file, "jpeg", quality=c)
        return Image.open(file).convert("RGB")

    return by_pillow(change, x)


def by_pillow(change, x: Tensor) -> Tensor:
    """Apply `change` to each image, as an image of Pillow."""
    changed = []
    for y in x:
        image = TF.to_pil_image((255 * y).byte())
        changed.append(TF.to_image(change(image)))
    return torch.stack(changed).float() / 255


CORRUPTIONS = {  # and what they take, by severity
    "noise": (add_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "blur": (blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "contrast": (lower_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (brighten, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "pixelation": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg": (compress, (80, 65, 58, 50, 40)),
}
SEVERITIES = range(1, 6)


def corrupted(images: Tensor, kind: str, severity: int) -> Tensor:
    """Images (N, 3, H, W) uint8 after a corruption of severity 1 to 5."""
    change, amounts = CORRUPTIONS[kind]
    torch.manual_seed(severity)
    parts = []
    for x in images.cpu().split(1000):
        x = change(x.float() / 255, amounts[severity - 1])
        parts.append((x.clamp(0, 1) * 255).byte())
    return torch.cat(parts)


# ---------------------------------------------------------------- shifts of the built-in data set
EXCHANGED = dict(zip(shapes.BACKGROUNDS, reversed(shapes.BACKGROUNDS.values())))
SHIFTS = {  # and what shapes.draw takes
    "reversed": dict(frequencies=EXCHANGED),
    "unseen": dict(frequencies=shapes.UNSEEN),
    "paired_as_trained": dict(paired=0.9),
    "paired": dict(paired=0.9, turn=2),
}


def shifted_test_images(name: str) -> tuple[Tensor, Tensor]:
    """2,000 test images (N, 3, 32, 32) uint8 of a shift, and their labels (N,)."""
    arrays = shapes.draw(0, 2000, seed=1, **SHIFTS[name])
    return torch.from_numpy(arrays["x_test"]), torch.from_numpy(arrays["y_test"])


def paired_training_images() -> tuple[Tensor, Tensor]:
    """The 5,000 images and labels on which the probe of "paired" is fitted."""
    arrays = shapes.draw(5000, 0, seed=2, paired=0.9)
    return torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"])


# --------------------------------------------------------------------------------------- measuring
def measure(run: argparse.Namespace, model: nn.Module, data: common.Data, device: str):
    """The numbers of a run's robustness.json; BadInput if its images are not square."""
    if data.test["x"].shape[2] != data.test["x"].shape[3]:
        raise common.BadInput(f"{run.dataset}: the corruptions take square images only")

    def fit_probes(images, y):
        """Probes of h and of z: functions from features to scores."""
        probes = []
        for e in common.features(model, images, run.image_size, device):
            classify, _ = common.fit_probe(e, y.to(device))
            probes.append(classify)
        return probes

    def accuracies(name, probes, images, y):
        """The accuracies h_<name> and z_<name> of the probes, in %."""
        h, z = common.features(model, images, run.image_size, device)
        scores = {f"h_{name}": probes[0](h), f"z_{name}": probes[1](z)}  # (N, C) each
        found = {}
        for key, of_classes in scores.items():
            right = of_classes.argmax(1) == y.to(device)
            found[key] = 100 * right.float().mean().item()
        return found

    probes = fit_probes(data.train["x"], data.train["y"])
    found = accuracies("clean", probes, data.test["x"], data.test["y"])
    pairs = list(itertools.product(CORRUPTIONS, SEVERITIES))
    for kind, severity in progress(pairs, "corruptions"):
        images = corrupted(data.test["x"], kind, severity)
        found |= accuracies(f"{kind}_{severity}", probes, images, data.test["y"])
    for which in "h", "z":
        for kind in CORRUPTIONS:
            scores = [found[f"{which}_{kind}_{severity}"] for severity in SEVERITIES]
            found[f"{which}_{kind}"] = sum(scores) / len(scores)
        scores = [found[f"{which}_{kind}"] for kind in CORRUPTIONS]
        found[f"{which}_corrupted"] = sum(scores) / len(scores)
    if run.dataset != "shapes":
        return found

    of_paired = fit_probes(*paired_training_images())
    for name in progress(SHIFTS, "shifts"):
        fitted = of_paired if name.startswith("paired") else probes
        found |= accuracies(name, fitted, *shifted_test_images(name))
    return found


# ----------------------------------------------------------------------------------------- program
def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="robustness.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    flags.add_argument("--device", default=common.DEVICE, help="cuda, cuda:1, cpu")
    args = flags.parse_args(argv)
    common.check_device(args.device)
    columns = [*CORRUPTIONS, "clean", *SHIFTS]
    rows = [["run", "e", *columns]]
    for folder in args.runs:
        run, model = load_run(folder)
        interpret.make_folder(folder, {"robustness.json": b'"h_clean"'})
        data = labelled_data(run, args.data_root, "a probe")
        print(f"{folder}: fitting probes ...", flush=True)
        found = measure(run, model.to(args.device), data, args.device)
        write_json(folder / "robustness.json", found)
        for e in "h", "z":
            cells = [interpret.format_number(found.get(f"{e}_{name}"), 1) for name in columns]
            rows.append([folder.name, e, *cells])
    print(interpret.markdown(rows))


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
