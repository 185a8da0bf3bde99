"""Seven base methods with SparseHead's penalty and without it, and stronger penalties on SimCLR."""

from records import power, read, table, values

import pandas as pd

POWER = "sparsehead/power-sparsehead-"
BASES = "sparsehead/shapes-bases-sparsehead-"
CIFAR = "sparsehead/cifar10-cpu-sparsehead-"
SIMCLR = "sparsehead/shapes-sparsehead-simclr"

HEADINGS = {
    "rank of h": ("rank_representation", 1),
    "rank of z": ("rank_embedding", 1),
    "unused, %": ("100 * unused_columns", 0),
    "ln ratio of z": ("log(min_max_embedding)", 2),
    "ln ‖W‖₂,₁": ("log(l21)", 1),
}

with_and_without = {}
for base, start in {
    "SimCLR": f"{POWER}simclr",
    "BYOL": f"{POWER}byol",
    "Barlow Twins": f"{BASES}barlow",
    "VICReg": f"{BASES}vicreg",
    "W-MSE": f"{BASES}wmse",
    "SwAV": f"{BASES}swav",
    "SSL-HSIC": f"{BASES}ssl-hsic",
    "SimCLR, CIFAR-10": f"{CIFAR}simclr",
    "SwAV, CIFAR-10": f"{CIFAR}swav",
}.items():
    with_and_without[base] = f"{start} − {start}-plain"

shown = ["LP@1", "5-NN", "rank of h", "rank of z", "unused, %"]
gains = table(with_and_without, shown, HEADINGS)
gains = gains.rename(columns={"": "λ = 1e-4 − λ = 0"})
# SparseHead's Table 1, CIFAR-10: differences of its rows, LP@1 and 5-NN; it has no other bases.
OF_PAPER = {
    "SimCLR": (0.95, 1.90),
    "BYOL": (0.72, 0.79),
    "Barlow Twins": (0.40, 1.09),
    "SimCLR, CIFAR-10": (0.95, 1.90),
}


of_paper, powers = [], []
for base, runs in with_and_without.items():
    if base not in OF_PAPER:
        of_paper.append("none")
        powers.append("none")
        continue
    of_probe, of_neighbours = OF_PAPER[base]
    of_paper.append(f"{of_probe:+.2f} / {of_neighbours:+.2f}")
    powers.append(f"{100 * power(values(runs, 'lp1'), of_probe):.0f}")
gains["paper, CIFAR-10: LP@1 / 5-NN"] = of_paper
gains["power for that LP@1, %"] = powers

stronger = table(
    {
        "λ = 1e-4": f"{POWER}simclr − {POWER}simclr-plain",
        "λ = 1e-2": f"{SIMCLR}-1e-2 − {SIMCLR}-plain",
        "λ = 1e-1": f"{SIMCLR}-1e-1 − {SIMCLR}-plain",
        "`--prox`, λ = 1": f"{SIMCLR}-prox-1 − {SIMCLR}-plain",
        "`--prox`, λ = 3": f"{SIMCLR}-prox-3 − {SIMCLR}-plain",
        "`--prox`, λ = 10": f"{SIMCLR}-prox-10 − {SIMCLR}-plain",
    },
    ["LP@1", "5-NN", "unused, %", "ln ‖W‖₂,₁", "ln ratio of z"],
    HEADINGS,
)
stronger = stronger.rename(columns={"": "SimCLR, difference from λ = 0"})

heads = table(
    {
        "linear head": f"{SIMCLR}-plain-linear − {SIMCLR}-plain",
        "no head": f"{SIMCLR}-plain-none − {SIMCLR}-plain",
    },
    ["LP@1", "5-NN", "rank of h", "rank of z", "ln ratio of z"],
    HEADINGS,
)
heads = heads.rename(columns={"": "SimCLR, λ = 0, difference from the two-layer head"})

# What theory_heads.py found: |cos| over seeds.
(of_theory,) = [record for record in read("sparsehead") if record["run"] == "theory-heads"]
lines = {}
for row in of_theory["results"]:
    line = lines.setdefault(row["setting"], {"each task needs": row["setting"]})
    least = pd.Series(row["min"])
    line[f"λ = {row['penalty']:g}"] = f"{least.mean():.2f} ± {least.std():.2f}"
    if row["penalty"] == 0.01:
        line["median, λ = 0.01"] = f"{pd.Series(row['median']).mean():.2f}"
        line["matched, λ = 0.01"] = f"{pd.Series(row['matched']).mean():.2f}"
recovery = pd.DataFrame(lines.values())
