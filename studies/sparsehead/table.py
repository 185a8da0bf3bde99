"""Seven base methods with SparseHead's penalty and without it, and stronger penalties on SimCLR."""

from records import table

POWER = "sparsehead/power-sparsehead-"
BASES = "sparsehead/shapes-bases-sparsehead-"
CIFAR = "sparsehead/cifar10-cpu-sparsehead-"
SIMCLR = "sparsehead/shapes-sparsehead-simclr"

HEADINGS = {
    "rank of h": ("rank_representation", 1),
    "rank of z": ("rank_embedding", 1),
    "unused, %": ("100 * unused_columns", 0),
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

gains = table(with_and_without, ["LP@1", "5-NN", *HEADINGS], HEADINGS)
gains = gains.rename(columns={"": "λ = 1e-4 − λ = 0"})
# SparseHead's Table 1, CIFAR-10: differences of its rows; it has none of the other bases
of_paper = {
    "SimCLR": "+0.95 / +1.90",
    "BYOL": "+0.72 / +0.79",
    "Barlow Twins": "+0.40 / +1.09",
    "SimCLR, CIFAR-10": "+0.95 / +1.90",
}
gains["paper, CIFAR-10: LP@1 / 5-NN"] = [of_paper.get(base, "none") for base in with_and_without]

stronger = table(
    {
        "λ = 1e-2": f"{SIMCLR}-1e-2 − {SIMCLR}-plain",
        "λ = 1e-1": f"{SIMCLR}-1e-1 − {SIMCLR}-plain",
        "`--prox`, λ = 1": f"{SIMCLR}-prox-1 − {SIMCLR}-plain",
        "`--prox`, λ = 3": f"{SIMCLR}-prox-3 − {SIMCLR}-plain",
        "`--prox`, λ = 10": f"{SIMCLR}-prox-10 − {SIMCLR}-plain",
    },
    ["LP@1", "5-NN", "unused, %"],
    HEADINGS,
)
stronger = stronger.rename(columns={"": "SimCLR, difference from λ = 0"})
