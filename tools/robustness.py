"""Out-of-distribution robustness: a linear probe is fitted on the frozen features of a run's training images and tested
on shifted images. [NCL] claims that non-negative features are more robust.

    python tools/robustness.py runs/<run> [runs/<other> ...]      each run; robustness.json goes into its folder
    python tools/robustness.py results/* --draw robustness.png    the curves of what was measured, with matplotlib

noise, blur, contrast, brightness, pixelation, jpeg: six of the corruptions of CIFAR-10-C (Hendrycks & Dietterich 2019,
arXiv 1903.12261), five severities each, with its constants, which suit 32 pixels and are mild on larger images. On the
built-in data set also, of 2,000 new images:
reversed    the backgrounds' frequencies are exchanged, so that the rarest becomes the most frequent
unseen      two backgrounds that no training image has
paired      the probe is fitted where nine of ten images have their object's own background (the others any), and
            tested where these have another object's, or ("paired_as_trained") the same
Numbers are % right with the representation, h_<shift>, and with the embedding, z_<shift>, of the corruptions
h_<corruption>_<severity>.
"""
import argparse
import functools
import io
import itertools
import json
import math
import os
import re
import sys
from pathlib import Path

import torch
import torch.nn as nn
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import common  # noqa: E402
import shapes  # noqa: E402


def by_pillow(change):
    """A function of an image of Pillow as one of images (N, 3, H, W) in [0, 1]."""
    one = lambda y, c: TF.to_image(change(TF.to_pil_image((255 * y).byte()), c))
    return lambda x, c: torch.stack([one(y, c) for y in x]).float() / 255


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    """The image after compression."""
    image.save(file := io.BytesIO(), "jpeg", quality=quality)
    return Image.open(file).convert("RGB")


def pixelate(image: Image.Image, scale: float) -> Image.Image:
    """The image shrunk by `scale` and enlarged again, without interpolation."""
    small = image.resize([int(side * scale) for side in image.size], Image.Resampling.BOX)
    return small.resize(image.size, Image.Resampling.BOX)


def brighten(x: Tensor, c: float) -> Tensor:
    """V of HSV plus c, at most 1."""
    value = x.amax(1, keepdim=True)
    return torch.where(value > 0, x / value.clamp(min=1e-9), 1.0) * (value + c).clamp(max=1)


CORRUPTIONS = {  # of x (N, 3, H, W) in [0, 1], and what they take, by severity: make_cifar_c.py of the authors
    "noise": (lambda x, c: x + c * torch.randn_like(x), (0.04, 0.06, 0.08, 0.09, 0.10)),
    "blur": (lambda x, c: common.gaussian_blur(x, torch.full((len(x),), c)), (0.4, 0.6, 0.7, 0.8, 1.0)),
    "contrast": (lambda x, c: torch.lerp(x.mean((2, 3), keepdim=True), x, c), (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (brighten, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "pixelation": (by_pillow(pixelate), (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg": (by_pillow(jpeg), (80, 65, 58, 50, 40))}


SHIFTS = "clean", "reversed", "unseen", "paired_as_trained", "paired"


def corrupted(images: Tensor, kind: str, severity: int) -> Tensor:
    """Images (N, 3, H, W) uint8 after a corruption of severity 1 to 5."""
    change, levels = CORRUPTIONS[kind]
    torch.manual_seed(severity)
    parts = (change(x.float() / 255, levels[severity - 1]) for x in images.cpu().split(1000))
    return torch.cat([(x.clamp(0, 1) * 255).byte() for x in parts])


@functools.cache
def shifted() -> dict[str, tuple[Tensor, Tensor]]:
    """Images and labels of the built-in data set's shifts; "biased": what the probe of "paired" is fitted on."""
    def draw(*sizes, part="test", **shift):
        arrays = shapes.draw(*sizes, **shift)
        return torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"])
    exchanged = dict(zip(shapes.BACKGROUNDS, [*shapes.BACKGROUNDS.values()][::-1]))
    return {"reversed": draw(0, 2000, seed=1, frequencies=exchanged),
            "unseen": draw(0, 2000, seed=1, frequencies=shapes.UNSEEN),
            "paired_as_trained": draw(0, 2000, seed=1, paired=0.9),
            "paired": draw(0, 2000, seed=1, paired=0.9, turn=2),
            "biased": draw(5000, 0, part="train", seed=2, paired=0.9)}


def measure(run: argparse.Namespace, model: nn.Module, data: common.Data, device: str) -> dict[str, float]:
    """The accuracies of a run, by the names that the top of this file gives, and their means over the severities,
    <h or z>_<corruption>, and over the corruptions, <h or z>_corrupted."""
    if data.x_test.shape[2] != data.x_test.shape[3]:
        raise common.BadInput(f"{data.name}: the corruptions take square images only")
    found, embed = {}, lambda images: common.features(model, images, run.image_size, device)  # h, z
    fit = lambda images, y: [common.fit_probe(e, y.to(device))[0] for e in embed(images)]

    def ask(shift, probes, images, y):
        for kind, classify, e in zip("hz", probes, embed(images)):
            found[f"{kind}_{shift}"] = 100 * (classify(e).argmax(1) == y.to(device)).float().mean().item()

    probes = fit(data.x_train, data.y_train)
    ask("clean", probes, data.x_test, data.y_test)
    for kind, severity in itertools.product(CORRUPTIONS, range(1, 6)):
        ask(f"{kind}_{severity}", probes, corrupted(data.x_test, kind, severity), data.y_test)
    for e in "hz":
        found |= {f"{e}_{kind}": sum(found[f"{e}_{kind}_{n}"] for n in range(1, 6)) / 5 for kind in CORRUPTIONS}
        found[f"{e}_corrupted"] = sum(found[f"{e}_{kind}"] for kind in CORRUPTIONS) / len(CORRUPTIONS)
    if run.dataset == "shapes":
        biased = fit(*shifted()["biased"])
        for shift in SHIFTS[1:]:
            ask(shift, biased if "paired" in shift else probes, *shifted()[shift])
    return found


def draw(folders: list[Path], path: str) -> None:
    """Accuracy over the severity of each corruption and on the shifts, a line a row: its mean over the seeds."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise common.BadInput(f"--draw needs matplotlib ({error})")
    runs = {}
    for folder in folders:
        if (file := folder / "robustness.json").exists():
            row = re.sub(r"-seed\d+$", "", folder.resolve().name)  # all seeds of a row are one line
            runs.setdefault(common.read_run(folder).dataset, {}).setdefault(row, []).append(common.read_json(file))
    if not runs:
        raise common.BadInput("none of these folders has a robustness.json")
    ratios = dict(width_ratios=[1] * len(CORRUPTIONS) + [2])
    figure, panels = plt.subplots(len(runs), 1 + len(CORRUPTIONS), figsize=(15, 2.8 * len(runs)), squeeze=False,
                                  layout="constrained", sharey="row", gridspec_kw=ratios)
    for row, (dataset, rows) in zip(panels, runs.items()):
        common_part = os.path.commonprefix([*rows])
        for m, (name, found) in enumerate(rows.items()):
            mean = lambda key: sum(f[key] for f in found) / len(found)
            for z, (e, style) in enumerate([("h", "-"), ("z", "--")]):
                for panel, kind in zip(row, CORRUPTIONS):
                    values = [mean(f"{e}_clean"), *(mean(f"{e}_{kind}_{n}") for n in range(1, 6))]
                    panel.plot(values, style, color=f"C{m}", label=f"{name.removeprefix(common_part)}, {e}")
                    panel.set(title=kind, xlabel="severity")
                names = [shift for shift in SHIFTS if f"{e}_{shift}" in found[0]]
                places = [i + (m + z / 2) * 0.8 / len(rows) for i in range(len(names))]
                row[-1].bar(places, [mean(f"{e}_{shift}") for shift in names], 0.36 / len(rows), color=f"C{m}",
                            alpha=1 - z / 2)
                row[-1].set_xticks([i + 0.3 for i in range(len(names))], [shift.replace("_", "\n") for shift in names])
        row[0].set_ylabel(f"{dataset}: % right")
        row[-1].set_visible("h_paired" in found[0])
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False)
    figure.savefig(path, dpi=80)


def main(argv=None):
    flags = argparse.ArgumentParser(prog="robustness.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs, or with --draw of records")
    flags.add_argument("--draw", metavar="FILE", help="measure nothing; draw what these folders' robustness.json say")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    args = flags.parse_args(argv)
    if args.draw:
        return draw(args.runs, args.draw)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = [["run", "e", *CORRUPTIONS, *SHIFTS]]
    for folder in args.runs:
        run, model = common.load_run(folder)
        found = measure(run, model.to(device), common.labelled(run, args.data_root, "a probe"), device)
        with common.replacing(folder / "robustness.json") as file:
            file.write(json.dumps(found, indent=1).encode() + b"\n")
        rows += [[folder.name, e, *(f"{found.get(f'{e}_{name}', math.nan):.1f}" for name in rows[0][2:])] for e in "hz"]
    print(common.markdown(rows))


if __name__ == "__main__":
    common.launch(main)
