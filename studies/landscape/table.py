"""The cosine of the worst-found feature: differences by seed, ± half their 95 % interval."""

from pathlib import Path

from records import cell

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parent
PAPER = "landscape-paper-figures"  # the paper's learning rate and epochs
CODE = "landscape-findings"  # latents of the paper's code; with a ReLU drawn one by one
TEXT = "landscape-findings-iid"  # latents of the paper's text
MASKS = "landscape-masks"
SMALL, LARGE = "landscape-lr-0.1", "landscape-lr-2"  # steps

HEADINGS = "2 of 10", "3 of 10", "Pr = .1", "Pr = .3"
SPARSITIES = "0.1", "0.3", "0.1", "0.3"
BOTH = CODE, CODE, TEXT, TEXT
WARM = CODE, None, TEXT, None

# A row: its label; A and B as sparse_coding.py names them, # being the sparsity; at which learning
# rate × steps each is read, nearly always the last; a run for each heading, or one for A, one for B
ROWS = [
    (
        "contrastive − two networks, the paper's steps",
        ("fig2/contrastive, sparsity #", 200),
        ("fig2/non-contrastive, sparsity #", 200),
        (PAPER, PAPER, None, None),
    ),
    (
        "SimCLR − SimSiam, the paper's lengths",
        ("masks/SimCLR, independent masks, sparsity #", 200),
        ("masks/SimSiam, independent masks, sparsity #", 400),
        (MASKS, MASKS, None, None),
    ),
    (
        "SimCLR: learning rate .1 − 2",
        ("custom/custom, sparsity #", 200),
        ("custom/custom, sparsity #", 200),
        ((SMALL, LARGE), (SMALL, LARGE), None, None),
    ),
    (
        "SimCLR − SimSiam",
        ("budget/SimCLR, sparsity #", 4000),
        ("budget/SimSiam, sparsity #", 4000),
        BOTH,
    ),
    (
        "SimCLR − two networks",
        ("budget/SimCLR, sparsity #", 4000),
        ("budget/non-contrastive, sparsity #", 4000),
        BOTH,
    ),
    (
        "SimCLR − two networks with a predictor",
        ("budget/SimCLR, sparsity #", 4000),
        ("budget/non-contrastive, predictor, sparsity #", 4000),
        BOTH,
    ),
    (
        "ReLU, latents 0 or 1: contrastive − two networks",
        ("variants/contrastive, ReLU, {0, 1}, sparsity #", 350),
        ("variants/non-contrastive, ReLU, {0, 1}, sparsity #", 200),
        (None, None, CODE, CODE),
    ),
    (
        "ReLU, latents 0 or 1: SimCLR − two networks",
        ("variants/SimCLR, ReLU, {0, 1}, sparsity #", 350),
        ("variants/non-contrastive, ReLU, {0, 1}, sparsity #", 200),
        (None, None, CODE, CODE),
    ),
    (
        "warm start of two networks: aligned − not",
        ("alignment/p=50, aligned columns", 200),
        ("alignment/p=50, random columns", 200),
        WARM,
    ),
    (
        "warm start, not aligned: rows normalised − not",
        ("alignment/p=50, random columns, rows normalised", 200),
        ("alignment/p=50, random columns", 200),
        WARM,
    ),
    (
        "SimSiam: independent − dependent masks",
        ("masks/SimSiam, independent masks, sparsity #", 400),
        ("masks/SimSiam, dependent masks, sparsity #", 400),
        (MASKS, MASKS, None, None),
    ),
    (
        "SimCLR: independent − dependent masks",
        ("masks/SimCLR, independent masks, sparsity #", 350),
        ("masks/SimCLR, dependent masks, sparsity #", 350),
        (MASKS, MASKS, None, None),
    ),
    (
        "contrastive: independent − dependent masks",
        ("masks/contrastive, independent masks, sparsity #", 350),
        ("masks/contrastive, dependent masks, sparsity #", 350),
        (MASKS, MASKS, None, None),
    ),
]


def minimum(run: str, setting: str, length: float) -> pd.Series:
    """The cosine of the worst-found feature by seed, at a learning rate × steps."""
    curves = np.load(FOLDER / f"{run}.npz")
    at = np.abs(curves[f"{setting}/lr_times_steps"] - length).argmin()
    return pd.Series(curves[f"{setting}/min"][at])


lines = []
for label, (a, length_a), (b, length_b), runs in ROWS:
    lengths = [length_a] if length_a == length_b else [length_a, length_b]
    line = {"A − B": label, "length": ", ".join(map(str, lengths))}
    for heading, sparsity, run in zip(HEADINGS, SPARSITIES, runs):
        line[heading] = "–"
        if run is not None:
            run_a, run_b = run if isinstance(run, tuple) else (run, run)
            of_a = minimum(run_a, a.replace("#", sparsity), length_a)
            of_b = minimum(run_b, b.replace("#", sparsity), length_b)
            line[heading] = cell(of_a - of_b, 2, True)
            n = len(of_a)
    lines.append(line | {"n": n})
differences = pd.DataFrame(lines)
