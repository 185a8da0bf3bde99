"""A finished run as pictures and a table of its dimensions, from what it left in its folder; nothing is trained.

    python look.py runs/<run>                     into the run's folder
    python look.py runs/<run> runs/<other> ...    the same for each, and a comparison of their spectra in the first
    python look.py runs/<run> --data-root DATA    where the run's data set is elsewhere now

simclr.py, ncl.py, bayesncl.py, sparsehead.py, simsiam.py:
    top_images.png       a column per dimension, the ten of largest mean |activation|: the test images that activate it
                         most ([NCL] Fig. 1)
    active_images.png    the same columns: of all images on which the dimension is active, evenly from the strongest to
                         the weakest, which is what Cons. measures
    dimensions.csv       what each live dimension stands for on the test images, the most active first
    dimensions.png       correlation of the most active dimensions ([NCL] Fig. 3c); active dimensions per image
    collapse.png         simsiam.py: the collapse indicator over the epochs ([SimSiam] Fig. 2)
    spectra.png          sparsehead.py, and several runs of any file: eigenvalues of the covariances. Runs with
                         --head none, linear and mlp together make [SparseHead] Fig. 1
sparse_coding.py:
    <experiment>.png     minimum max-cosine and loss over training

The first three need no matplotlib. Embeddings are kept in 16 bits: eigenvalues below 1e-8 of the largest are rounding.
"""
import argparse
import itertools
import json
import re
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

import common


# ------------------------------------------------------------------------------------------------------------- reading
def read_run(folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """config.json and embeddings.npz of a run of an image method: h (N, d), z (N, K) float32, labels (N,) of its test
    images. BadInput where there is no run, or one that has not finished."""
    try:
        config = json.loads((folder / "config.json").read_text())
        config["method"], config["dataset"], config["data_root"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise common.BadInput(f"{folder} is not the folder of a run ({type(error).__name__}: {error})")
    if not (folder / "embeddings.npz").exists():
        raise common.BadInput(f"{folder} has no embeddings.npz: the run has not finished, or an older version made it")
    try:
        with np.load(folder / "embeddings.npz", allow_pickle=False) as kept:
            arrays = {key: torch.from_numpy(kept[key]) for key in ("h", "z", *kept.files)}
    except Exception as error:  # what a damaged archive may raise is not listed anywhere
        raise common.BadInput(f"{folder / 'embeddings.npz'} cannot be read ({type(error).__name__}: {error})")
    return config, {key: a.float() if a.is_floating_point() else a for key, a in arrays.items()}


def images_of(config: dict, arrays: dict[str, Tensor], data_root: str | None) -> Tensor:
    """The test images (N, 3, H, W) uint8 behind a run's embeddings; BadInput where the data set is another by now."""
    root = data_root or config["data_root"]
    data = common.load_data(config["dataset"], root)
    same_labels = data.y_test is None or "y" not in arrays or torch.equal(data.y_test, arrays["y"])
    if len(data.x_test) != len(arrays["z"]) or not same_labels:
        raise common.BadInput(f"{config['dataset']} under {root} is not the data set of this run; give its --data-root")
    return data.x_test


def pyplot(otherwise: str):
    """matplotlib.pyplot for drawing to files; where it is not installed, None and a line that says what happens."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot
        return matplotlib.pyplot
    except ImportError:
        print(f"matplotlib is not installed: {otherwise}")


# ------------------------------------------------------------------------------------------------------ image methods
def draw_images(folder: Path, images: Tensor, e: Tensor) -> None:
    """top_images.png and active_images.png of embeddings e (N, K) of images (N, 3, H, W) uint8."""
    e = F.normalize(e).abs()
    e = e[:, e.mean(0).argsort(descending=True)[:10]]  # (N, 10)
    ranked, rows = e.argsort(0, descending=True), min(8, len(e))
    weakest = (e > common.ACTIVE).sum(0).clamp(min=1) - 1
    spread = ranked.gather(0, (torch.linspace(0, 1, rows)[:, None] * weakest).long())  # (8, 10)
    for name, chosen in ("top_images", ranked[:rows]), ("active_images", spread):
        tiles = images[chosen.flatten()].float() / 255
        grid = torchvision.utils.make_grid(tiles, nrow=chosen.shape[1], pad_value=1)
        scale = max(1, 64 // images.shape[-1])  # small images are enlarged, pixel by pixel
        grid = grid.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
        torchvision.utils.save_image(grid, folder / f"{name}.png")


def dimensions(arrays: dict[str, Tensor]) -> str:
    """dimensions.csv of a run's arrays: the number of each live dimension, and what common.dimensions says of it."""
    labels = {key: arrays[name] for key, name in (("", "y"), ("background_", "background")) if name in arrays}
    columns = {"dimension": torch.arange(arrays["z"].shape[1])} | common.dimensions(arrays["z"], labels)
    lines = [line for line in zip(*(column.tolist() for column in columns.values())) if line[1] > 0]  # act
    lines = sorted(lines, key=lambda line: -line[2])  # mean |activation|
    return "".join(",".join(line) + "\n" for line in [columns, *([f"{value:.4g}" for value in line] for line in lines)])


def draw_dimensions(plt, folder: Path, e: Tensor) -> None:
    """dimensions.png of embeddings e (N, K): |C| of the 64 most active live dimensions, and active ones per image."""
    e = F.normalize(e)
    active, order = e.abs() > common.ACTIVE, e.abs().mean(0).argsort(descending=True)
    shown = order[active.any(0)[order]][:64]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
    f = F.normalize(e[:, shown], dim=0)
    picture = left.imshow((f.T @ f).abs().numpy(), vmin=0, vmax=1, cmap="magma")
    left.set(title=f"correlation of the {len(shown)} most active dimensions", xlabel="dimension", ylabel="dimension")
    figure.colorbar(picture, ax=left)
    right.hist(active.sum(1).numpy(), bins=min(50, e.shape[1] + 1), range=(0, e.shape[1]))
    right.set(title="active dimensions per image", xlabel=f"of {e.shape[1]}", ylabel="images")
    figure.savefig(folder / "dimensions.png", dpi=110)
    plt.close(figure)


def draw_collapse(plt, folder: Path, records: list[dict]) -> None:
    """collapse.png: the collapse indicator "spread" over the epochs, of the lines of metrics.jsonl."""
    epochs = [record for record in records if "spread" in record]
    figure, panel = plt.subplots(figsize=(5, 3), layout="constrained")
    panel.plot([record["epoch"] for record in epochs], [record["spread"] for record in epochs], marker=".")
    panel.axhline(1, color="grey", linestyle=":")
    panel.set(xlabel="epoch", ylabel="std of z/‖z‖, times √K", title="1: healthy, 0: collapsed", ylim=(0, 1.1))
    figure.savefig(folder / "collapse.png", dpi=110)
    plt.close(figure)


def spectrum(x):
    """Eigenvalues (d,), largest first, of the covariance of x (N, d) ([SparseHead] Fig. 1, 3)."""
    x = (x - x.mean(0)).double()
    return torch.linalg.eigvalsh(x.T @ x / (len(x) - 1)).flip(0).clamp(min=0)


def effective_rank(eigenvalues):
    """exp of the entropy of the normalised eigenvalues (d,): d where they are equal, 1 where one is all."""
    return torch.special.entr(eigenvalues / eigenvalues.sum()).sum().exp().item()


def draw_spectra(plt, folder: Path, runs: dict[str, dict[str, Tensor]]) -> None:
    """spectra.png: eigenvalues on a log scale, a panel per kind of vectors and a line per run, of runs {title:
    {"representation": (N, d), "embedding": (N, K)}}."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
    for axis, kind in zip(axes, ("representation", "embedding")):
        for title, vectors in runs.items():
            values = spectrum(vectors[kind])
            label = f"{title}, effective rank {effective_rank(values):.0f} of {len(values)}"
            axis.plot(range(1, len(values) + 1), values.clamp(min=1e-12), label=label)
        axis.set(yscale="log", xlabel="eigenvalue", title=kind)
        axis.legend(fontsize=7)
    figure.savefig(folder / "spectra.png", dpi=110)
    plt.close(figure)


def titles(folders: list[Path], configs: list[dict]) -> list[str]:
    """A title per run: the settings in which the runs differ, or their folders' names where these do not tell them."""
    told = [[f"{key} {config.get(key)}" for key in ("method", "base", "head", "seed")] for config in configs]
    named = [", ".join(text for text, *every in zip(own, *told) if len({*every}) > 1) for own in told]
    return named if len({*named}) == len(named) > 1 else [folder.resolve().name for folder in folders]


# ----------------------------------------------------------------------------------------------------------- landscape
def draw_landscape(plt, folder: Path, curves: dict[str, np.ndarray]) -> None:
    """<experiment>.png: minimum max-cosine and loss over learning rate × steps, mean ± std over seeds, of curves named
    <experiment>/<setting>/<key>, (T,) or (T, seeds). A colour per program, a line style per swept value."""
    settings = [key.removesuffix("/min") for key in curves if key.endswith("/min")]
    for experiment, own in itertools.groupby(settings, lambda setting: setting.split("/")[0]):
        figure, panels = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained")
        colours, styles = {}, {}
        for setting in own:
            title = setting.split("/", 1)[1]
            name = re.sub(r"(, (sparsity|keep|noise|temperature|lr|warm|uncovered) [\w.-]+)+$", "", title)
            colour, style = colours.setdefault(name, len(colours)), styles.get(name, 0)
            styles[name] = style + 1
            for panel, key in zip(panels, ("min", "loss")):
                x, y = curves[f"{setting}/lr_times_steps"], curves[f"{setting}/{key}"]
                mean, std = y.mean(1), y.std(1, ddof=min(1, y.shape[1] - 1))
                panel.plot(x, mean, ("-", "--", ":", "-.")[style % 4], color=f"C{colour}", label=title)
                panel.fill_between(x, mean - std, mean + std, color=f"C{colour}", alpha=0.15)
        for panel, label in zip(panels, ("minimum max-cosine", "loss")):
            panel.set(xlabel="learning rate × steps", ylabel=label)
            if experiment == "budget":
                panel.set_xscale("log")
                for paper in (200, 400):  # the paper's: SimCLR and noncl, SimSiam
                    panel.axvline(paper, color="grey", linestyle=":")
        panels[0].set_ylim(0, 1)
        figure.legend(*panels[0].get_legend_handles_labels(), fontsize=7, loc="outside right")
        figure.savefig(folder / f"{experiment}.png", dpi=110)
        plt.close(figure)


# ------------------------------------------------------------------------------------------------------------- program
def look(folders: list[Path], data_root: str | None = None) -> None:
    """All pictures of the runs in `folders`, see above."""
    plt, runs = pyplot("top_images.png and active_images.png are all that is drawn"), []
    for folder in folders:
        if (folder / "curves.npz").exists():
            with np.load(folder / "curves.npz", allow_pickle=False) as curves:
                if plt:
                    draw_landscape(plt, folder, dict(curves))
            continue
        config, arrays = read_run(folder)
        runs.append((folder, config, {"representation": arrays["h"], "embedding": arrays["z"]}))
        draw_images(folder, images_of(config, arrays, data_root), arrays["z"])
        (folder / "dimensions.csv").write_text(dimensions(arrays))
        if plt:
            draw_dimensions(plt, folder, arrays["z"])
        if plt and config["method"] == "simsiam":
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            draw_collapse(plt, folder, [json.loads(line) for line in lines])
    if plt and (len(runs) > 1 or runs and runs[0][1]["method"] == "sparsehead"):
        folders, configs, vectors = zip(*runs)
        draw_spectra(plt, folders[0], dict(zip(titles(folders, configs), vectors)))


def main(argv=None):
    flags = argparse.ArgumentParser(prog="look.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    args = flags.parse_args(argv)
    look(args.runs, args.data_root)


if __name__ == "__main__":
    common.launch(main)
