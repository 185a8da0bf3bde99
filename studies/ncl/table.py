"""NCL less SimCLR: how much more consistent its dimensions are, and what that costs."""

from records import NCL_ON_CIFAR_100, by_seed, cell, pd, table, values

AGAIN = "dictionaries/claims-"
CIFAR100 = "cifar100/cifar100-cpu-"
SPECTRAL = "ncl/cifar10-cpu-"

PAPERS_RECIPE = "CIFAR-100, papers' recipe, mean of three trainings (1 %: of one)"
ROWS = {
    "built-in data": f"{AGAIN}shapes-ncl − {AGAIN}shapes-simclr",
    "CIFAR-10, our recipe": f"{AGAIN}cifar10-ncl − {AGAIN}cifar10-simclr",
    "CIFAR-10, spectral loss": f"{SPECTRAL}ncl-spectral − {SPECTRAL}simclr-spectral",
    "CIFAR-100, our recipe": f"{CIFAR100}ncl − {CIFAR100}simclr",
    PAPERS_RECIPE: f"{AGAIN}cifar100-again-ncl − {AGAIN}cifar100-simclr",
    "the same, 10,000 images": f"{AGAIN}cifar100-10k-ncl − {AGAIN}cifar100-10k-simclr",
}
ON_ALL = {
    "features' probe (LP@1)": ("lp1", 1),
    "embedding's probe": ("lp1_embedding", 1),
    "dimensions ever active (live)": ("live_dims", 0),
    "Cons.": ("cons", 1),
    "above chance (adj.)": ("adjusted", 1),
}
ON_1 = "dictionary_trained_on_1_"  # each dimension on its strongest 1 % of the images
ON_EQUALLY_MANY = {
    "adj. on each dimension's strongest 1 %": (f"{ON_1}adjusted", 1),
    "the same, rarer ones left out": (f"{ON_1}full_adjusted", 1),
    "F1 of a class's best dimension, on 1 %": (f"{ON_1}best_f1", 1),
}
NOT_MEASURED_SO = "CIFAR-10, spectral loss", "CIFAR-100, our recipe"
LONG = "cifar100/cifar100-long-"  # SimCLR with one seed

on_all = table(ROWS, list(ON_ALL), ON_ALL)
last = {"": "the same, all images, 200 epochs", "n": 3}
for heading, (formula, digits) in ON_ALL.items():
    mean = by_seed(NCL_ON_CIFAR_100, formula)
    on_all.loc[on_all[""] == PAPERS_RECIPE, heading] = cell(mean, digits, True)
    of_seed_1 = values(f"{LONG}ncl − {LONG}simclr", formula)
    last[heading] = f"{cell(of_seed_1, digits, True)} (n = 1)"
# Cons. and adj. of any dense embedding of CIFAR-100 are 1 and 0, whatever SimCLR's seed is.
last["Cons."] = cell(values(f"{LONG}ncl", "cons - 1"), 1, True)
last["above chance (adj.)"] = cell(values(f"{LONG}ncl", "adjusted"), 1, True)

measured = {label: runs for label, runs in ROWS.items() if label not in NOT_MEASURED_SO}
on_equally_many = table(measured, list(ON_EQUALLY_MANY), ON_EQUALLY_MANY)
differences = on_all.drop(columns="n").merge(on_equally_many.drop(columns="n"), "left", on="")
differences["n"] = on_all["n"]
differences = pd.concat([differences, pd.DataFrame([last])]).fillna("not measured")
differences = differences.rename(columns={"": "NCL − SimCLR"})

# The paper's other claims, of the embedding.
OTHERS = {
    "correlation of dimensions (Corr.)": ("corr", 3),
    "disentanglement of the best ten (SEPIN@10)": ("sepin_10", 3),
    "probe of the 64 most active of 256 dimensions": ("lp1_top_64", 1),
    "the same − of all": ("lp1_top_64 - lp1_embedding", 1),
    "probe, corrupted images": ("z_corrupted", 1),
    "corrupted − clean images": ("z_corrupted - z_clean", 1),
}
others = table(
    {
        "built-in data": "ncl/shapes-ncl − ncl/shapes-simclr",
        "CIFAR-10": "ncl/cifar10-cpu-ncl − ncl/cifar10-cpu-simclr",
    },
    list(OTHERS),
    OTHERS,
).rename(columns={"": "NCL − SimCLR, embedding"})
