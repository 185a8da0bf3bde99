"""Eigenvalues of h and z, with SparseHead's penalty and without it ([SparseHead] Fig. 3).

    python studies/sparsehead/spectra.py runs/<run> [runs/<run> ...]   assets/sparsehead-spectra.png

A line is a run. Left and middle: eigenvalues of the covariance of h and of z, and their effective
rank. Right: the largest distance of two images less the smallest one, over the smallest one, by the
first d dimensions of z (Lemma 5.7).

[SparseHead]: arXiv 2307.08913.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import interpret  # noqa: E402
from run_folder import read_run  # noqa: E402
from sparsehead import effective_rank, min_max_ratio, spectrum  # noqa: E402

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

plt.style.use(ROOT / "studies" / "pictures.mplstyle")


NAMES = {  # of the base methods
    "simclr": "SimCLR",
    "byol": "BYOL",
    "barlow": "Barlow Twins",
    "vicreg": "VICReg",
    "wmse": "W-MSE",
    "swav": "SwAV",
    "ssl-hsic": "SSL-HSIC",
}


def draw(path: Path, runs: dict[str, dict[str, Tensor]]) -> None:
    """runs: title → {"h": (N, d), "z": (N, K)}."""
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.2))
    of_h, of_z, ratios = panels
    draw_eigenvalues(of_h, "features h", {title: run["h"] for title, run in runs.items()})
    draw_eigenvalues(of_z, "embedding z", {title: run["z"] for title, run in runs.items()})

    embeddings = [run["z"][:1000].float() for run in runs.values()]
    for title, z in zip(runs, embeddings):
        draw_ratios(ratios, z, title)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(embeddings[0].shape, generator=generator)
    draw_ratios(ratios, normal, "independent normal dimensions", linestyle=":", color="grey")
    ratios.set(xscale="log", yscale="log", xlabel="dimensions of the embedding, d")
    ratios.set(title="(δmax − δmin) / δmin")
    # The runs' colours are told beside it.
    ratios.legend(handles=ratios.lines[-1:])
    figure.savefig(path)
    plt.close(figure)


def draw_eigenvalues(panel, name: str, vectors: dict[str, Tensor]) -> None:
    """vectors: title of a run → (N, d)."""
    for title, x in vectors.items():
        values = spectrum(x)
        rank = effective_rank(values)
        told = "constant" if rank is None else f"rank {rank:.1f}"
        label = f"{title}: {told}"
        values = values.clamp(min=1e-12 * values[0])
        panel.plot(range(1, len(values) + 1), values, label=label)
    panel.set(yscale="log", xlabel="eigenvalue", title=name)
    panel.legend()


def draw_ratios(panel, z: Tensor, label: str, **look) -> None:
    """The min-max ratio of the first 4, 8, 16, … dimensions of z (N, K)."""
    sizes = [2**k for k in range(2, z.shape[1].bit_length())]
    values = [min_max_ratio(z[:, :d]) for d in sizes]
    panel.plot(sizes, values, label=label, **look)


def title(run) -> str:
    """The base method of a run, and the penalty's weight."""
    return f"{NAMES[run.base]}, λ = {run.sparse_weight:g}"


def vectors_of(folder: Path) -> dict[str, Tensor]:
    """The features h and the embedding z of the test images of a run."""
    e = interpret.read_embedding(folder)
    vectors = {"h": e.features, "z": e.z}
    return {name: torch.from_numpy(x).float() for name, x in vectors.items()}


if __name__ == "__main__":
    folders = [Path(run) for run in sys.argv[1:]]
    runs = {title(read_run(folder)): vectors_of(folder) for folder in folders}
    draw(ROOT / "assets" / "sparsehead-spectra.png", runs)
