"""How well four losses find the worst-found feature, the longer they train.

python studies/landscape/budget.py      draws assets/landscape-budget.png
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
plt.style.use(ROOT / "studies" / "pictures.mplstyle")

CURVES = ROOT / "studies" / "landscape" / "landscape-findings.npz"
LOSSES = {  # a label: its name in the curves
    "SimCLR": "SimCLR",
    "SimSiam": "SimSiam",
    "two networks, predictor": "non-contrastive, predictor",
    "two networks": "non-contrastive",
}
PANELS = {"2 of 10 latents not 0": "0.1", "3 of 10 latents not 0": "0.3"}  # a title: the sparsity
OF_PAPER = 200, 400  # the paper's learning rate × steps; SimSiam has 400


def draw(path: Path) -> None:
    curves = np.load(CURVES)
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True)
    for panel, (title, sparsity) in zip(panels, PANELS.items()):
        for label, name in LOSSES.items():
            setting = f"budget/{name}, sparsity {sparsity}"
            length = curves[f"{setting}/lr_times_steps"]  # (T,)
            cosine = curves[f"{setting}/min"]  # (T, seeds)
            mean = cosine.mean(1)
            std = cosine.std(1, ddof=1)
            (line,) = panel.plot(length, mean, label=label)
            panel.fill_between(length, mean - std, mean + std, color=line.get_color(), alpha=0.15)
        for length in OF_PAPER:
            panel.axvline(length, color="grey", linestyle=":")
        panel.set(title=title, xscale="log", xlabel="length: learning rate × steps", ylim=(0, 1))
    panels[0].set_ylabel("cosine of the worst-found feature")
    panels[0].legend(loc="lower left")
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "assets" / "landscape-budget.png")
