"""The papers' claims, a row each: the paper's number, ours, and a verdict in words."""

from records import (
    BAYESNCL_ON_CIFAR_100,
    COLUMNS,
    NCL_ON_CIFAR_100,
    OF_SEEDS,
    STUDIES,
    by_seed,
    cell,
    cell_of_pairs,
    half_interval,
    pairs_of,
    power,
    read,
    seeds_of,
    values,
    welch,
)

import numpy as np
import pandas as pd
from scipy import stats

# ---------------------------------------------------------------------------------- the trainings
# Data → the two trainings whose difference is shown, or one. Of those made again, a later time.
CLAIMS = "dictionaries/claims"
NCL_SIMCLR = {
    "CIFAR-10": "ncl/cifar10-cpu-ncl − ncl/cifar10-cpu-simclr",
    "CIFAR-10, spectral": "ncl/cifar10-cpu-ncl-spectral − ncl/cifar10-cpu-simclr-spectral",
    "CIFAR-100": f"{CLAIMS}-cifar100-again-ncl − {CLAIMS}-cifar100-simclr",
    "CIFAR-100, `default`": "cifar100/cifar100-cpu-ncl − cifar100/cifar100-cpu-simclr",
    "MNIST-1D": "mnist1d/mnist1d-ncl − mnist1d/mnist1d-simclr",
}
NCL = {
    "CIFAR-10": "dictionaries/fair-cifar10-ncl",
    "CIFAR-100": f"{CLAIMS}-cifar100-again-ncl",
    "200 epochs": "cifar100/cifar100-weights-ncl",
}
OF_LABELS = "labels-captions/cifar10-cpu"
NCE_CE = {
    "CIFAR-10, projector": f"{OF_LABELS}-nce-mlp − {OF_LABELS}-ce-mlp",
    "CIFAR-10, no projector": f"{OF_LABELS}-nce − {OF_LABELS}-ce",
}
MMNCL_CLIP = {"built-in": "labels-captions/shapes-mmncl − labels-captions/shapes-clip"}
BAYESNCL_NCL = {
    "built-in": f"{CLAIMS}-shapes-bayesncl − {CLAIMS}-shapes-ncl",
    "CIFAR-10": "bayesncl/cifar10-cpu-bayesncl-untuned − ncl/cifar10-cpu-ncl",
    "CIFAR-10, papers' recipe": f"{CLAIMS}-cifar10-bayesncl-lars − {CLAIMS}-cifar10-ncl-lars",
    "200 epochs": "cifar100/cifar100-long-bayesncl − cifar100/cifar100-long-ncl",
    "MNIST-1D": "mnist1d/mnist1d-bayesncl − mnist1d/mnist1d-ncl",
}
DEFAULT = "cifar100/cifar100-cpu"
FAIR = "dictionaries/fair"
WITH_SHUFFLED = BAYESNCL_ON_CIFAR_100[1:]
TOPK_NCL = {"CIFAR-100, `default`": f"{DEFAULT}-ncl-topk − {DEFAULT}-ncl"}
BAYESNCL_TOPK = {"CIFAR-100, `default`": f"{DEFAULT}-bayesncl − {DEFAULT}-ncl-topk"}
GATE = "bayesncl/shapes-gate"
STE_GUMBEL = {"built-in": f"{GATE}-ste − {GATE}-gumbel"}
DETACHING = {"built-in, with detaching less without": f"{GATE}-ste − {GATE}-no-detach"}
HARD_SOFT = {"built-in, hard less soft": f"{GATE}-ste − {GATE}-soft"}
LAYERS = {
    "built-in, two less one": f"{GATE}-ste − {GATE}-1-layer",
    "built-in, two less three": f"{GATE}-ste − {GATE}-3-layers",
}
KL_TERM = {"built-in, with the KL term less without": f"{GATE}-ste − {GATE}-no-kl"}
WEIGHTED_NCL = {"built-in": "bayesncl/shapes-bayesncl-ipw − ncl/shapes-ncl"}
GRID = "bayesncl/shapes-grid-bayesncl-prior0"
LARGE_WEIGHT = {"ρ 0.3, λ 3e-3 less 3e-6": f"{GRID}.3-kl-weight3e-3 − {GRID}.3-kl-weight3e-6"}
PRIORS = [  # ρ = 0.95, the largest, less 0.8, with each λ
    f"{GRID}.95-kl-weight3e-{n} − {GRID}.8-kl-weight3e-{n}" for n in range(2, 7)
]
SPARSEHEAD = "sparsehead/power-sparsehead-simclr"
OF_BYOL = "sparsehead/power-sparsehead-byol"
OF_CIFAR = "sparsehead/cifar10-cpu-sparsehead-simclr"
OF_SHAPES = "sparsehead/shapes-sparsehead-simclr"
SPARSEHEAD_BASE = {
    "built-in": f"{SPARSEHEAD} − {SPARSEHEAD}-plain",
    "BYOL, built-in": f"{OF_BYOL} − {OF_BYOL}-plain",
    "CIFAR-10": f"{OF_CIFAR} − {OF_CIFAR}-plain",
    "built-in, fine-tuned": f"{OF_SHAPES} − {OF_SHAPES}-plain",
}
SIMCLR = {
    "built-in": f"{SPARSEHEAD}-plain",
    "CIFAR-10": f"{OF_CIFAR}-plain",
    "CIFAR-100": f"{CLAIMS}-cifar100-simclr",
}
HEAD = {
    "built-in, MLP less no head": f"{OF_SHAPES}-plain − {OF_SHAPES}-plain-none",
    "built-in, linear less no head": f"{OF_SHAPES}-plain-linear − {OF_SHAPES}-plain-none",
}
STRONG = {"built-in, λ = 0.1": f"{OF_SHAPES}-1e-1 − {OF_SHAPES}-plain"}
SIMSIAM = "simsiam/shapes-simsiam"
NO_STOP_GRADIENT = {"built-in": f"{SIMSIAM}-no-stop-grad − {SIMSIAM}"}
NO_PREDICTOR = {"built-in": f"{SIMSIAM}-no-predictor − {SIMSIAM}"}
LPJEPA = {"built-in, μ = −1.5": "dictionaries/shapes-sparsity-lpjepa-8"}
MONOLOSS = {
    f"CIFAR-100, λ = {weight}": f"dictionaries/monoloss-cifar100-{weight}"
    " − dictionaries/monoloss-cifar100-0"
    for weight in ("1", "0.1")
}

ON_STRONGEST = "dictionary_trained_on_1"  # each dimension on its strongest 1 % of images
NUMBERS = COLUMNS | {  # a name: a formula of record keys, digits behind the point
    "adj. on 1 %, rarer ones left out": (f"{ON_STRONGEST}_full_adjusted", 1),
    "adj., to two digits": ("adjusted", 2),
    "adj. less random directions'": ("directions_of_h_lead", 1),
    "best F1 on 1 %": (f"{ON_STRONGEST}_best_f1", 1),
    "H_s less shuffled": ("entropy - shuffled_entropy", 2),
    "P@10": ("p_at_10", 1),
    "Corr.": ("corr", 3),
    "SEPIN@10": ("sepin_10", 3),
    "LP@1 of z's best quarter": ("lp1_top_64", 1),
    "best quarter less all": ("lp1_top_64 - lp1_embedding", 1),
    "LP@1 of z, corrupted": ("z_corrupted", 1),
    "LP@1, corrupted": ("h_corrupted", 1),
    "corrupted less clean": ("z_corrupted - z_clean", 1),
    "corrupted less clean, h": ("h_corrupted - h_clean", 1),
    "LP@1 less LP@1 of z": ("lp1 - lp1_embedding", 1),
    "top-1": ("top1", 1),
    "top-1, 1 % of the labels": ("`finetune_0.01_top1`", 1),
    "R@1": ("text_r1", 1),
    "nameable share by 20 images": ("nameable_top", 1),
    "share of open gates": ("open", 2),
    "dimensions for the sky": ("dims_sky", 0),
    "rank of h": ("rank_representation", 1),
    "rank of z": ("rank_embedding", 1),
    "rank of h less that of z": ("rank_representation - rank_embedding", 1),
    "ln of the ratio of z": ("log(min_max_embedding)", 2),
    "spread": ("spread", 2),
    "Act. less its target": ("act - expected_act", 3),
    "MonoScore": ("mono", 3),
}


# ------------------------------------------------------------------------------------ our numbers
def with_n(name: str, found: pd.Series, digits: int) -> str:
    return f"{name}: {cell(found, digits, True)} (n = {len(found)})"


def say(heading: str, trainings: dict[str, str], data: str) -> str:
    """A difference with its name: Cons., CIFAR-100: +6.1 ± 0.7 (n = 3)"""
    formula, digits = NUMBERS[heading]
    name = heading.removesuffix(", to two digits")
    return with_n(f"{name}, {data}", values(trainings[data], formula), digits)


def say_two(heading: str, second: str, trainings: dict[str, str], data: str) -> str:
    """Two numbers of the same runs, each a difference with its name."""
    formula, digits = NUMBERS[heading]
    first = cell(values(trainings[data], formula), digits, True)
    formula, digits = NUMBERS[second]
    of_second = values(trainings[data], formula)
    return f"{heading}, {data}: {first}; {with_n(second, of_second, digits)}"


def on_ladder(heading: str, data: str, name: str) -> str:
    """What NCL's dimensions lead by on their strongest 1 %. data: "shapes/background_", say."""
    data, _, prefix = data.partition("/")
    ladder = f"dictionaries/ladder-{data}"
    what, formula = {
        "over directions of z": (f"{ladder}-ncl", "directions_of_z_lead"),
        "over images in z": (f"{ladder}-ncl", "images_in_z_lead"),
        "less images' in SimCLR's z": (f"{ladder}-ncl − {ladder}-images-of-z", "adjusted"),
        "less k-means'": (f"{ladder}-ncl − {ladder}-k-means-of-z", "adjusted"),
    }[heading]
    return with_n(f"adj. {heading}, {name}", values(what, prefix + formula), 1)


def say_means(heading: str, trainings: list[str], name: str) -> str:
    formula, digits = NUMBERS[heading]
    return with_n(f"{heading}, {name}", by_seed(trainings, formula), digits)


def of_monoloss(heading: str) -> str:
    """A difference with each of two weights of MonoLoss."""
    return "; ".join(say(heading, MONOLOSS, data) for data in MONOLOSS)


def detectable(differences: pd.Series) -> float:
    """The smallest effect that this t-test finds with a power of 80 %."""
    standard_error = differences.std() / len(differences) ** 0.5
    effects = np.arange(0, 7, 0.01) * standard_error
    return next(effect for effect in effects if power(differences, effect) >= 0.8)


def ratio(what: str, formula: str) -> str:
    """The ratio of the two runs of "A − B": mean and 95 % t-interval of its logarithm."""
    logarithms = [np.log(values(run, formula)) for run in what.split(" − ")]
    differences = logarithms[0] - logarithms[1]
    half = half_interval(differences)
    mean = differences.mean()
    low, middle, high = np.exp([mean - half, mean, mean + half])
    return f"as a ratio {middle:.2f} [{low:.2f}, {high:.2f}]"


def slower(what: str) -> pd.Series:
    """By how many per cent the first run of "A − B" took longer, by seed."""
    first, second = [values(run, "seconds_train") for run in what.split(" − ")]
    return 100 * (first / second - 1)


def level(name: str, found: pd.Series, digits: int, unit="") -> str:
    """What is no difference: without a sign, its ± half the 95 % interval all the same."""
    return f"{name}: {cell(found, digits, True).removeprefix('+')}{unit} (n = {len(found)})"


def results(question: str, run: str):
    (record,) = [record for record in read(question) if record["run"] == run]
    return record["results"]


def curve(run: str, setting: str, number="min") -> np.ndarray:
    """A number of sparse_coding.py over the training, (T, seeds)."""
    return np.load(STUDIES / "landscape" / f"landscape-{run}.npz")[f"{setting}/{number}"]


def by_their_program(setting: str, sparsity: float, statistic: str) -> pd.Series:
    """A number at the end of the landscape's trainings by its authors' program, by seed."""
    for row in results("authors", "authors-landscape"):
        if (row["setting"], row["sparsity"], row["program"]) == (setting, sparsity, "theirs"):
            return pd.Series(row[statistic])
    raise KeyError(f"authors-landscape: no {setting} is on record")


def of_their_program() -> str:
    """BayesNCL's Cons. less NCL's, both by the authors' program, whose seeds are not paired."""
    gated, plain = (
        values(f"authors/authors-cpu-{method}-theirs", "cons") for method in ("bayesncl", "ncl")
    )
    difference, half = welch(gated, plain, 0.95)
    text = f"{difference:+.1f} ± {half:.1f}".replace("-", "−")
    return f"Cons., CIFAR-100, 5,000 images: {text} (n = {len(gated)} and {len(plain)})"


def of_matched(by_data: dict[str, dict[tuple, float]]) -> str:
    """Differences by pairs of seeds, on each data set that has some."""
    texts = [
        f"{label} {cell_of_pairs(pairs, 2, True)} (n = {len(seeds_of(pairs))})"
        for label, pairs in by_data.items()
        if pairs
    ]
    return f"difference in the correlation of matched dimensions: {'; '.join(texts)}"


def come_back(method: str, control: str) -> str:
    """How much better dimensions match another seed's than a control.

    Where all trainings were made again, it is the mean of both.
    """
    by_data = {}
    for label, data in OF_SEEDS.items():
        found = pairs_of(data, method, f"matched_less_{control}")
        if again := pairs_of(data, f"{method}-first", f"matched_less_{control}"):
            label += ", mean of two trainings"
            found = {pair: (value + again[pair]) / 2 for pair, value in found.items()}
        by_data[label] = found
    return of_matched(by_data)


def beside_images_in_h() -> str:
    """How much better NCL's dimensions match than as many training images in SimCLR's h."""
    by_data = {}
    for label, data in OF_SEEDS.items():
        of_ncl = pairs_of(data, "ncl", "matched")
        of_images = pairs_of(data, "images-of-h", "matched")
        by_data[label] = {pair: of_ncl[pair] - value for pair, value in of_images.items()}
    return of_matched(by_data)


def end(run: str, setting: str, number="min") -> pd.Series:
    return pd.Series(curve(run, setting, number)[-1])


def end_less_start(run: str, setting: str) -> pd.Series:
    of_seeds = curve(run, setting)
    return pd.Series(of_seeds[-1] - of_seeds[0])


def at_length(run: str, setting: str, length: float, number="min") -> pd.Series:
    """A number where training has reached a learning rate × steps; the paper ends at 200."""
    nearest = np.abs(curve(run, setting, "lr_times_steps") - length).argmin()
    return pd.Series(curve(run, setting, number)[nearest])


def two_levels(low: str, high: str, run: str, a: str, b: str) -> str:
    """The differences of two settings at the end, with few latents that are not 0 and with more."""
    few = end(run, f"{a}, sparsity 0.1") - end(run, f"{b}, sparsity 0.1")
    more = end(run, f"{a}, sparsity 0.3") - end(run, f"{b}, sparsity 0.3")
    return f"{low}: {cell(few, 2, True)}; {with_n(high, more, 2)}"


def of_figure_7(what: str) -> str:
    """Figure 7's setting, c = 1.25: with rows or columns normalised; and less without."""
    setting = f"fig7/warm start, {what} normalised, warm 1.25"
    without = end("findings", "alignment/Fig. 7 without normalisation")  # in larger steps
    rise = cell(end_less_start("paper-figures", setting), 2, True)
    more = end("paper-figures", setting) - without
    return f"end − start: {rise}; {with_n('end less that without, in larger steps', more, 2)}"


def of_script_7(name: str, head: str) -> str:
    """The same without batch normalisation, which the script lacks; it has a predictor."""
    setting, without = (
        f"script-fig7/{what} normalised, no BN{head}, warm 1.25" for what in ("rows", "not")
    )
    rise = cell(end_less_start("script-fig7", setting), 2, True)
    more = end("script-fig7", setting) - end("script-fig7", without)
    return f"{name}: {rise}; {with_n('less without', more, 2)}"


def of_landscape(name: str, run: str, setting: str, statistic="min") -> str:
    """A number at the end of a run that left no curve, ± half its 95 % interval."""
    for row in results("landscape", f"landscape-{run}"):
        if (row["setting"], row["statistic"]) == (setting, statistic):
            n = row["seeds"]
            half = stats.t.ppf(0.975, n - 1) * row["end_std"] / n**0.5
            return f"{name}: {row['end_mean']:.2f} ± {half:.2f} (n = {n})"
    raise KeyError(f"{run}: no {statistic} of {setting} is on record")


def of_solutions(setting: str) -> float:
    """What theory_nmf.py found of a setting."""
    for row in results("ncl", "theory-nmf"):
        if row["setting"] == setting:
            return row["end_mean"]
    raise KeyError(f"theory-nmf: no {setting} is on record")


gates = results("bayesncl", "theory-gate")
decided = results("bayesncl", "theory-gate-decides")["runs"]["weights/cifar100-bayesncl"]
toy = gates["toy"]
kept = toy["kept"]["ρ 0.8, λ 3e-05"][toy["frequency"].index(0.5)]
kept_without = toy["kept"]["ρ 0.8, λ 0"][toy["frequency"].index(0.5)]
gain = toy["gain"][toy["frequency"].index(0.8)]
gain_at_half = toy["gain"][toy["frequency"].index(0.5)]


def of_gradients() -> str:
    """What theory_gate.py found of the gradients by z⁺, in frequent dimensions and in rare ones."""
    plain, gated = (
        pd.DataFrame([gates["runs"][f"runs/shapes-{name}-seed{seed}"] for seed in (1, 2, 3)])
        for name in ("ncl", "bayesncl")
    )
    left = cell(plain["frequent_left"] - plain["rare_left"], 3, True)
    deviation = cell(plain["frequent_std"] - plain["rare_std"], 3, True)
    with_gate = gated["frequent_std"] - plain["frequent_std"]
    text = f"frequent less rare: left of pull and push {left}, deviation {deviation}; "
    return text + with_n("deviation of frequent ones, with a gate less without", with_gate, 3)


MEAN_OF_FOUR = "CIFAR-100, mean of four trainings"
MEAN_OF_THREE = "CIFAR-100, mean of three trainings"
on_cifar_10 = values(BAYESNCL_NCL["CIFAR-10, papers' recipe"], "cons")
short = pd.concat([slower(what) for what in BAYESNCL_ON_CIFAR_100])
gain_of_probe = {
    base: values(SPARSEHEAD_BASE[base], "lp1") for base in ("built-in", "BYOL, built-in")
}


def of_heads() -> str:
    """What theory_heads.py found with λ = 0.01."""
    worst = {}
    for row in results("sparsehead", "theory-heads"):
        if row["penalty"] == 0.01:
            worst[row["setting"]] = pd.Series(row["min"])
    own = level("cosine of the worst-found feature", worst["3 of 10 at random"], 2)
    one = level("one head", worst["the same, one head for all tasks"], 2)
    return f"{own}; {one}"


# ------------------------------------------------------------------------------------- the claims
# What is claimed; the folder of the page with the evidence, or a file; where in the paper; its
# number; ours; the verdict.
# fmt: off
OF_NCL = [
    ("dimensions are far more consistent with classes than CL's", "ncl", "abstract, Fig. 1, 3a",
     "+8.91", with_n("Cons. less a dense embedding's 1.0, 200 epochs",
                     values("cifar100/cifar100-long-ncl", "cons - 1"), 1),
     "excludes the paper's value: about half"),
    ("the same after 20 epochs", "ncl", "abstract, Fig. 1, 3a",
     "+8.91", say("Cons.", NCL_SIMCLR, "CIFAR-100")
     + "; " + with_n("NCL's less that with shuffled labels",
                     values(NCL["CIFAR-100"], "cons - shuffled_cons"), 1),
     "in part: most of it is rarity"),
    ("the same, with dimensions active on equally many images", "ncl", "not in the paper",
     "none", say("adj. on 1 %, rarer ones left out", NCL_SIMCLR, "CIFAR-100"), "supported"),
    ("the same on MNIST-1D, at full length", "mnist1d", "not in the paper",
     "none", with_n("adj. on 1 %, MNIST-1D", values(NCL_SIMCLR["MNIST-1D"], "top_adjusted"), 1),
     "supported"),
    ("dimensions are more consistent than random directions of h", "dictionaries",
     "not in the paper", "none", say("adj. less random directions'", NCL, "CIFAR-10"), "supported"),
    ("the same at the papers' length", "dictionaries", "not in the paper",
     "none", say("adj. less random directions'", NCL, "200 epochs"), "open: one seed"),
    ("its axes are better than other directions of its z, on 1 %", "dictionaries",
     "not in the paper", "none", on_ladder("over directions of z", "mnist1d", "MNIST-1D"),
     "supported"),
    ("dimensions are purer than the neighbours of random images in z, on 1 %", "dictionaries",
     "not in the paper", "none", on_ladder("over images in z", "mnist1d", "MNIST-1D"),
     "supported"),
    ("the same on built-in objects", "dictionaries", "not in the paper",
     "none", on_ladder("over images in z", "shapes", "built-in"), "supported"),
    ("the same on built-in backgrounds", "dictionaries", "not in the paper",
     "none", on_ladder("over images in z", "shapes/background_", "backgrounds"), "not supported"),
    ("the same at the papers' length", "dictionaries", "not in the paper",
     "none", on_ladder("over images in z", "cifar100-200", "200 epochs"), "open: one seed"),
    ("dimensions are purer than such neighbours in SimCLR's z", "dictionaries",
     "not in the paper", "none", on_ladder("less images' in SimCLR's z", "mnist1d", "MNIST-1D"),
     "not supported"),
    ("the same on built-in objects", "dictionaries", "not in the paper",
     "none", on_ladder("less images' in SimCLR's z", "shapes", "built-in"), "supported"),
    ("dimensions are purer than k-means of SimCLR's z, on 1 %", "dictionaries",
     "not in the paper", "none", on_ladder("less k-means'", "shapes", "built-in objects"),
     "inconclusive"),
    ("the same on built-in backgrounds", "dictionaries", "not in the paper",
     "none", on_ladder("less k-means'", "shapes/background_", "backgrounds"), "not supported"),
    ("the same on MNIST-1D", "dictionaries", "not in the paper",
     "none", on_ladder("less k-means'", "mnist1d", "MNIST-1D"), "not supported"),
    ("a class's best dimension predicts it better", "ncl", "not in the paper",
     "none", say("best F1 on 1 %", NCL_SIMCLR, "CIFAR-100"), "in part: on CIFAR-100"),
    ("under a tenth of the dimensions are active on an image", "ncl", "Fig. 1, 3b",
     "below 10 %", level("Act., CIFAR-100", values(NCL["CIFAR-100"], "100 * act"), 1, " %"),
     "in part: on CIFAR"),
    ("dimensions are less correlated", "ncl", "abstract, Fig. 3c",
     "a figure", say("Corr.", NCL_SIMCLR, "CIFAR-100"), "supported"),
    ("dimensions are better disentangled", "ncl", "abstract",
     "in words", say("SEPIN@10", NCL_SIMCLR, "CIFAR-10"), "in part: the best ten"),
    ("downstream classification is better", "ncl", "abstract",
     "+0.95", say_means("LP@1", NCL_ON_CIFAR_100, MEAN_OF_THREE)
     + "; " + with_n("of the last alone", values(NCL_SIMCLR["CIFAR-100"], "lp1"), 1),
     "inconclusive"),
    ("the same on MNIST-1D, at full length", "mnist1d", "abstract",
     "in words", say("LP@1", NCL_SIMCLR, "MNIST-1D"), "not supported"),
    ("the same with settings that were chosen for SimCLR", "ncl", "abstract",
     "+0.95", say("LP@1", NCL_SIMCLR, "CIFAR-100, `default`"), "not supported"),
    ("a reparameterisation like ReLU keeps CL's performance: features", "ncl", "TL;DR",
     "in words", say_means("LP@1", NCL_ON_CIFAR_100, MEAN_OF_THREE), "inconclusive"),
    ("the same: embedding", "ncl", "TL;DR",
     "in words", say_means("LP@1 of z", NCL_ON_CIFAR_100, MEAN_OF_THREE),
     "not supported after the ReLU"),
    ("the ReLU is what the embedding's probe loses by; the authors probe before it", "ncl",
     "not in the paper", "none",
     with_n("LP@1 of z before less after, CIFAR-100",
            values("dictionaries/trained-cifar100-ncl", "lp1_signed - lp1_embedding"), 1),
     "supported"),
    ("a subset of features works better than a subset of CL's", "ncl", "abstract",
     "a figure", say_two("LP@1 of z's best quarter", "best quarter less all", NCL_SIMCLR,
                         "CIFAR-10"),
     "not supported: lower, but less is lost"),
    ("robust out of distribution: embedding", "ncl", "TL;DR",
     "in words", say_two("LP@1 of z, corrupted", "corrupted less clean", NCL_SIMCLR, "CIFAR-10"),
     "not supported: lower, but less is lost"),
    ("the same: features", "ncl", "TL;DR",
     "in words", say_two("LP@1, corrupted", "corrupted less clean, h", NCL_SIMCLR, "CIFAR-10"),
     "inconclusive"),
    ("supervised learning gains too (NCE): consistency", "labels-captions", "abstract",
     "in words", say("Cons.", NCE_CE, "CIFAR-10, projector"),
     "in part: with a projector; cross-entropy's are active on nearly all images"),
    ("the same: accuracy", "labels-captions", "abstract",
     "in words", say("top-1", NCE_CE, "CIFAR-10, projector"), "not supported"),
    ("the same without a projector", "labels-captions", "Fig. 4",
     "a figure", say("top-1", NCE_CE, "CIFAR-10, no projector"), "inconclusive"),
    ("extends to image and text (MMNCL): nameable dimensions", "labels-captions", "TL;DR",
     "in words", say("nameable share by 20 images", MMNCL_CLIP, "built-in"),
     "in part: share, not count"),
    ("the same: the right caption comes first, τ = 0.1", "labels-captions", "TL;DR",
     "in words", say("R@1", MMNCL_CLIP, "built-in"), "not supported"),
    ("spectral loss: as accurate", "ncl", "Fig. 5a",
     "a figure", say("LP@1", NCL_SIMCLR, "CIFAR-10, spectral"), "not supported"),
    ("the same: more consistent", "ncl", "Fig. 5b",
     "a figure", say("Cons.", NCL_SIMCLR, "CIFAR-10, spectral"), "supported"),
    ("the same: sparser", "ncl", "Fig. 5c",
     "a figure", say("Act.", NCL_SIMCLR, "CIFAR-10, spectral"), "supported"),
    ("the same: less correlated", "ncl", "Fig. 5d",
     "a figure", say("Corr.", NCL_SIMCLR, "CIFAR-10, spectral"), "supported"),
    ("Theorem 1: CL's loss is invariant to rotations", "ncl", "3",
     "a theorem", "tested; also that NCL's loss is not", "holds"),
    ("axes are tied to the data: they come back with another seed, more than arbitrary ones",
     "seeds", "not in the paper", "none", come_back("ncl", "arbitrary"),
     "in part: not clearly on CIFAR-10"),
    ("they come back more than the neighbours of the same random images in z", "seeds",
     "not in the paper", "none", come_back("ncl", "same_images"), "in part: on MNIST-1D"),
    ("they come back more than the neighbours of as many images in SimCLR's h", "seeds",
     "not in the paper", "none", beside_images_in_h(), "not supported"),
    ("Theorem 2: NCL is a non-negative factorisation", "ncl", "abstract",
     "a theorem", "tested to 1e-15, for the spectral loss, not NT-Xent", "holds"),
    ("Theorems 4, 5: with one-hot latents the solution is unique up to order", "ncl", "abstract",
     "1", "agreement of ten solutions: "
     f"{of_solutions('5 NCL, all mixed, overlap 0.0: agreement of 10 solutions'):.2f}", "holds"),
    ("Theorems 3, 6: downstream guarantees", "ncl", "abstract",
     "theorems", "their statements are not known to us", "open"),
]
OF_BAYESNCL = [
    ("more consistent than NCL", "bayesncl", "abstract, main table",
     "+12.11, ratio 2.22", say("Cons.", BAYESNCL_NCL, "200 epochs")
     + f"; {ratio(BAYESNCL_NCL['200 epochs'], 'cons')}", "excludes the paper's value"),
    ("more consistent, above chance", "cifar100", "not in the paper",
     "none", say("adj., to two digits", BAYESNCL_NCL, "200 epochs"), "not supported"),
    ("more consistent, after 20 epochs", "bayesncl", "abstract, main table",
     "+12.11", say_means("Cons.", BAYESNCL_ON_CIFAR_100, MEAN_OF_FOUR),
     "excludes the paper's value: about half"),
    ("the same by the authors' own program", "authors", "abstract, main table",
     "+12.11", of_their_program(), "excludes the paper's value, in short runs"),
    ("the same, beyond shuffled labels", "bayesncl", "not in the paper",
     "none", say_means("Cons. less shuffled", WITH_SHUFFLED, MEAN_OF_THREE), "inconclusive"),
    ("more consistent, MNIST-1D, at full length", "mnist1d", "abstract, main table",
     "in words", say("Cons.", BAYESNCL_NCL, "MNIST-1D"), "inconclusive"),
    ("more consistent, CIFAR-10", "bayesncl", "abstract, main table",
     "+2.68", say("Cons.", BAYESNCL_NCL, "CIFAR-10, papers' recipe"),
     f"inconclusive: with n = 3, 80 % power needs {detectable(on_cifar_10):.1f}"),
    ("more consistent, CIFAR-10, our recipe, their λ", "bayesncl", "abstract, main table",
     "+2.68", say("Cons.", BAYESNCL_NCL, "CIFAR-10"), "not supported"),
    ("its axes come back with another seed, more than arbitrary ones", "seeds",
     "not in the paper", "none", come_back("bayesncl", "arbitrary"), "supported"),
    ("lower semantic entropy than NCL", "bayesncl", "main table",
     "−1.18, ImageNet-100", say("H_s", BAYESNCL_NCL, "200 epochs"), "inconclusive"),
    ("lower entropy, after 20 epochs", "bayesncl", "main table",
     "−1.18, ImageNet-100", say_means("H_s", BAYESNCL_ON_CIFAR_100, MEAN_OF_FOUR), "supported"),
    ("the same, beyond shuffled labels", "bayesncl", "not in the paper",
     "none", say_means("H_s less shuffled", WITH_SHUFFLED, MEAN_OF_THREE), "not supported"),
    ("on CIFAR-100 TopK (K = 16, ours) is more consistent than NCL", "cifar100/records.jsonl",
     "main table", "+2.41", say("Cons.", TOPK_NCL, "CIFAR-100, `default`"), "not supported"),
    ("BayesNCL is more consistent than TopK", "cifar100/records.jsonl", "main table",
     "+9.70", say_two("Cons.", "adj.", BAYESNCL_TOPK, "CIFAR-100, `default`"),
     "in part: by adj. alone"),
    ("a gate by STE is more consistent than by Gumbel noise", "bayesncl", "main table",
     "+2.82, CIFAR-10", say("Cons.", STE_GUMBEL, "built-in"), "inconclusive"),
    ("as accurate as NCL, or more", "cifar100", "main table",
     "+0.02", say("LP@1", BAYESNCL_NCL, "200 epochs"), "inconclusive"),
    ("as accurate: embedding", "cifar100", "not in the paper",
     "none", say("LP@1 of z", BAYESNCL_NCL, "200 epochs"), "inconclusive"),
    ("as accurate: embedding, after 20 epochs", "bayesncl", "not in the paper",
     "none", say_means("LP@1 of z", BAYESNCL_ON_CIFAR_100, MEAN_OF_FOUR), "not supported"),
    ("more dimensions are live than with NCL", "cifar100", "main table",
     "+0.02 of all, ImageNet-100", say("live", BAYESNCL_NCL, "200 epochs") + " of 256",
     "inconclusive"),
    ("more dimensions, after 15 epochs", "bayesncl", "main table",
     "+0.02 of all, ImageNet-100",
     say("live", BAYESNCL_NCL, "built-in") + " of 256; these gates saturate", "not supported"),
    ("the gate closes frequent, shared features", "bayesncl", "core idea",
     "in words", f"kept in a toy model, of features on half the images: {100 * kept:.0f} %; "
     f"without the KL term {100 * kept_without:.0f} %", "in part: in the toy model"),
    ("Theorem 4.5: cost λ log(1/ρ) against gain γ π (1 − π)", "bayesncl", "4",
     "a gain above 0", f"gain in the toy model at π = 0.8: −{-1000 * gain:.1f} · 10⁻³ nats; "
     f"at 0.5, where it closes as well, +{1000 * gain_at_half:.1f} · 10⁻³",
     "in part: for fixed norms"),
    ("the KL term suppresses frequent features", "bayesncl", "method",
     "in words", say("share of open gates", KL_TERM, "built-in, with the KL term less without"),
     "not supported: ρ = 0.8 opens gates"),
    ("shared features' gradients: mean near 0, large variance, less with a gate", "bayesncl",
     "motivation", "in words",
     of_gradients(), "in part: the variance, not less with a gate"),
    ("weighting by inverse frequency suppresses shared features", "bayesncl", "motivation",
     "in words", say("dimensions for the sky", WEIGHTED_NCL, "built-in")
     + "; with a similarity of our own, in bayesncl.py up to commit db589e1", "inconclusive"),
    ("gates decide image by image, as TopK cannot", "bayesncl", "method",
     "in words", f"200 epochs, seed 1: {decided['live_decided_dims']} of {decided['live_dims']} "
     f"live ones do, but {100 * decided['live_kept']:.0f} % of active entries are kept",
     "in part: after 200 epochs mostly where z⁺ is 0"),
    ("hard gates are more consistent than soft ones", "bayesncl", "ablations",
     "+2.99, ImageNet-100", say("Cons.", HARD_SOFT, "built-in, hard less soft"), "inconclusive"),
    ("detaching the gate makes it more consistent", "bayesncl", "ablations",
     "+13.85, ImageNet-100", say("Cons.", DETACHING, "built-in, with detaching less without"),
     "inconclusive"),
    ("the same: more accurate", "bayesncl", "ablations",
     "+2.97, ImageNet-100", say("LP@1", DETACHING, "built-in, with detaching less without"),
     "inconclusive"),
    ("a gate of two layers is less consistent than of one", "bayesncl", "ablations",
     "−4.71, ImageNet-100", say("Cons.", LAYERS, "built-in, two less one"), "inconclusive"),
    ("… and more consistent than of three", "bayesncl", "ablations",
     "+9.77, ImageNet-100", say("Cons.", LAYERS, "built-in, two less three"), "inconclusive"),
    ("the gate costs few operations", "bayesncl", "overhead",
     "+0.003 G, +0.2 %; ImageNet-100: +2.3 %", "counted, ResNet-18: +0.003 G, +0.28 %",
     "holds on CIFAR-100"),
    ("the gate costs little time", "bayesncl", "overhead",
     "+6 %; ImageNet-100: +13 %", with_n("time in %, 200 epochs, one CPU thread, ResNet-8",
                    slower(BAYESNCL_NCL["200 epochs"]), 1),
     f"in part: 20 epochs scatter from −{-min(short):.0f} to +{max(short):.0f}"),
    ("performance is an inverted U in ρ and λ", "bayesncl", "limitations",
     "in words", say_means("adj.", PRIORS, "built-in, ρ 0.95 less 0.8, mean over five λ") + "; "
     + say("adj.", LARGE_WEIGHT, "ρ 0.3, λ 3e-3 less 3e-6"),
     "in part: it falls at large λ with small ρ; with large ρ all gates are open"),
    ("Theorems 4.7, 4.9: a generalisation bound", "bayesncl", "4",
     "theorems", "their statements are not known to us", "open"),
]
OF_SPARSEHEAD = [
    ("features beat the embedding by 10 points", "sparsehead", "introduction",
     "over 10 %", say("LP@1 less LP@1 of z", SIMCLR, "CIFAR-100")
     + "; " + say("LP@1 less LP@1 of z", SIMCLR, "built-in")
     + "; h has 64 dimensions, z 256: the reverse of the paper's shape",
     "not supported, with another shape"),
    ("the probe rises on every base and data set: SimCLR", "sparsehead", "Table 1",
     "+0.95, CIFAR-10", say("LP@1", SPARSEHEAD_BASE, "built-in"),
     f"inconclusive: power {100 * power(gain_of_probe['built-in'], 0.95):.0f} % for 0.95"),
    ("the same: BYOL", "sparsehead", "Table 1",
     "+0.72, CIFAR-10", say("LP@1", SPARSEHEAD_BASE, "BYOL, built-in"),
     f"inconclusive: power {100 * power(gain_of_probe['BYOL, built-in'], 0.72):.0f} % for 0.72"),
    ("5-NN rises: SimCLR", "sparsehead", "Table 1",
     "+1.90, CIFAR-10", say("5-NN", SPARSEHEAD_BASE, "CIFAR-10")
     + "; " + say("5-NN", SPARSEHEAD_BASE, "built-in"), "excludes the paper's value"),
    ("the L₂,₁ term makes the head sparse", "sparsehead", "abstract, 6",
     "in words", level("unused columns", values(SPARSEHEAD, "100 * unused_columns"), 0, " %")
     + ", after 285 steps of Adam; the paper takes about 97,000", "not supported in 285 steps"),
    ("it raises the rank of the representation, our h", "sparsehead", "Fig. 3",
     "a figure", say("rank of h", SPARSEHEAD_BASE, "built-in")
     + "; " + say("rank of h", SPARSEHEAD_BASE, "CIFAR-10"), "inconclusive: lower on CIFAR-10"),
    ("it lowers the rank of the embedding", "sparsehead", "Fig. 3",
     "a figure", say("rank of z", SPARSEHEAD_BASE, "built-in"), "inconclusive"),
    ("without a head representations have dimensional collapse", "sparsehead", "Fig. 1a",
     "a figure", say("rank of h", HEAD, "built-in, MLP less no head"), "supported"),
    ("a linear head is enough against it", "sparsehead", "Fig. 1b",
     "a figure", say("rank of h", HEAD, "built-in, linear less no head"), "supported"),
    ("embeddings have a lower rank than representations", "sparsehead", "Fig. 1b, c",
     "a figure", say("rank of h less that of z", SIMCLR, "CIFAR-10")
     + "; " + say("rank of h less that of z", SIMCLR, "built-in"), "in part: on CIFAR-10"),
    ("fine-tuning on 1 % and 10 % of the labels improves", "sparsehead", "Table 2",
     "+1.8, ImageNet", say("top-1, 1 % of the labels", SPARSEHEAD_BASE, "built-in, fine-tuned"),
     "inconclusive"),
    ("detection and segmentation improve", "sparsehead", "Table 3",
     "+1.6, BYOL's AP", "not measured", "open"),
    ("large networks collapse even with a head; few features are enough", "sparsehead",
     "Fig. 1d, 2", "figures", "not measured", "open"),
    ("Proposition 5.2: scaled, permuted features generalise alike", "sparsehead", "5",
     "a theorem", "tested", "holds"),
    ("Lemma 5.7: the ratio of independent dimensions vanishes", "sparsehead", "5",
     "a theorem", "tested: it falls like 1/√d; those of embeddings are not independent", "holds"),
    ("Theorem 5.8: with SparseHead this ratio stays above λ C(X)", "sparsehead", "5",
     "a theorem", say("ln of the ratio of z", STRONG, "built-in, λ = 0.1"),
     "in part: it rises with λ; C is not given"),
    ("Theorem 5.6, Corollary 6.1: sparse heads lead to the true features", "sparsehead", "5, 6",
     "theorems", of_heads(),
     "in part: in a linear model, with a head for each task, not with one"),
]
CONTRASTIVE, OTHER = "fig2/contrastive, sparsity 0.1", "fig2/non-contrastive, sparsity 0.1"
RELU = ", ReLU, {0, 1}"
BUDGET_OF_SIMSIAM = "budget/SimSiam, sparsity 0.1"
BUDGET_OF_TWO = "budget/non-contrastive, sparsity 0.1"
ALIGNED, NOT_ALIGNED = "alignment/p=50, aligned columns", "alignment/p=50, random columns"
FIGURE_1 = "script-fig1/contrastive, "
DEPENDENT_1 = "script-fig1/the same, dependent masks"
WARM_START = "fig4/warm start"
WARM_PREDICTOR = "fig5/warm start, predictor"
loss_of_bad = at_length("findings", BUDGET_OF_TWO, 200, "loss")
loss_of_good = end("findings", ALIGNED, "loss")
start = at_length("paper-fig4", WARM_START, 0)
quarter = at_length("paper-fig4", WARM_START, 50)
IN_SHORT_RUNS = "in a hundredth of the steps"
OF_LANDSCAPE = [
    ("Theorem 1: bad optima without contrast, only permutations with it", "landscape",
     "2.1",
     "a theorem", "tested for Eq. (A.17); Eq. (9): proved among W ≥ 0 alone",
     "in part: not for Eq. (9)"),
    ("the contrastive loss recovers the features, the other does not: symmetric latents",
     "landscape", "Fig. 1, 2", "high, low",
     "difference, " + two_levels("2 of 10", "3 of 10", "paper-figures",
                                 "fig2/contrastive", "fig2/non-contrastive"),
     "in part: with 3 of 10 not for every seed"),
    ("the contrastive loss recovers them: one-hot latents, batch normalisation", "landscape",
     "Fig. 1, 5.2.2", "high",
     level("the text's independent masks", end("script-fig1", FIGURE_1 + "one-hot, BN"), 2) + "; "
     + level("the script's dependent ones", end("script-fig1", DEPENDENT_1), 2) + "; "
     + level("two networks", end("script-fig1", "script-fig1/non-contrastive, one-hot, BN"), 2),
     "in part: on dependent masks"),
    ("the same with a ReLU and latents in {0, 1}", "landscape", "not in the paper", "none",
     "difference at lengths 350 and 200, "
     + two_levels("Pr = .1", "Pr = .3", "findings", f"variants/contrastive{RELU}",
                                 f"variants/non-contrastive{RELU}"),
     "not supported"),
    ("the same, with SimCLR's projector", "landscape", "not in the paper", "none",
     "difference at lengths 350 and 200, "
     + two_levels("Pr = .1", "Pr = .3", "findings", f"variants/SimCLR{RELU}",
                                 f"variants/non-contrastive{RELU}"),
     "not supported for Pr = .1"),
    ("training does not avoid the bad optima", "landscape", "abstract", "in words",
     level("cosine, 2 of 10, trained longer: SimSiam", end("findings", BUDGET_OF_SIMSIAM), 2)
     + "; " + level("two networks", end("findings", BUDGET_OF_TWO), 2),
     "in part: SimSiam does avoid them"),
    ("bad features have a loss as low as good ones", "landscape", "abstract", "in words",
     "loss of a cold start, 2 of 10: " + cell(loss_of_bad, 2, True).removeprefix("+") + "; "
     + with_n("less an aligned warm start's", loss_of_bad - loss_of_good, 2),
     "in part: nearly as low"),
    ("Table 1: SimCLR's minimum, 3 of 10", "landscape", "5",
     "0.57", of_landscape("text's layers", "paper-table1", "SimCLR, sparsity 0.3"),
     "excludes the paper's value"),
    ("the same", "landscape", "5",
     "0.57", of_landscape("authors' layers", "paper-table1",
                          "SimCLR, authors' layers, sparsity 0.3"), "inconclusive"),
    ("the same by the authors' own program", "authors", "5",
     "0.57", level("τ = .2", by_their_program("SimCLR, τ = .2", 0.3, "min"), 2) + "; "
     + level("the scripts' .05", by_their_program("SimCLR, τ = .05", 0.3, "min"), 2),
     f"inconclusive, {IN_SHORT_RUNS}"),
    ("Table 1: SimSiam's median, 2 of 10", "landscape", "5",
     "0.87", of_landscape("authors' layers", "paper-table1",
                          "SimSiam, authors' layers, sparsity 0.1", "median"),
     "excludes the paper's value"),
    ("the same by the authors' own program", "authors", "5",
     "0.87", level("cosine", by_their_program("SimSiam", 0.1, "median"), 2),
     f"excludes the paper's value, {IN_SHORT_RUNS}"),
    ("Table 1: everything else, with the authors' layers", "landscape", "5",
     "its table", "within 0.1", "holds"),
    ("with a warm start alone the cosine falls", "landscape", "Fig. 4",
     "falls", "after a quarter: " + cell(quarter - start, 2, True)
     + "; " + with_n("end − start", end_less_start("paper-fig4", WARM_START), 2),
     "in part: in the first quarter"),
    ("with a predictor it rises", "landscape", "Fig. 5",
     "to 0.87", with_n("end − start", end_less_start("paper-figures", WARM_PREDICTOR), 2)
     + "; " + level("end", end("paper-figures", WARM_PREDICTOR), 2), "in part: less high"),
    ("a predictor alone fails", "landscape", "Fig. 6",
     "low", level("end", end("paper-figures", "fig6/cold start, predictor"), 2), "holds"),
    ("the predictor is what makes it rise", "landscape", "Fig. 4, 5",
     "in words", with_n("aligned − random columns, no predictor",
                        end("findings", ALIGNED) - end("findings", NOT_ALIGNED), 2),
     "in part: so does alignment"),
    ("normalised rows make it rise", "landscape", "Fig. 7", "to 0.85",
     of_figure_7("rows"), "in part: it rises without, too"),
    ("normalised columns make it rise", "landscape", "Fig. 7", "to 0.85",
     of_figure_7("columns"), "in part: it rises without, too"),
    ("normalised rows make it rise, without batch normalisation, as in the script", "landscape",
     "Fig. 7", "to 0.85", of_script_7("end − start, with its predictor", ", predictor")
     + "; " + of_script_7("with none", ""),
     "in part: with a predictor; it rises without, too"),
    ("normalised rows help a warm start that is not aligned", "landscape", "not in the paper",
     "none", with_n("with less without", end("findings", f"{NOT_ALIGNED}, rows normalised")
                    - end("findings", NOT_ALIGNED), 2), "not supported"),
    ("a second layer does not help", "landscape", "Fig. 3",
     "low", level("end", end("paper-figures", "fig3/non-contrastive, 2 layers, sparsity 0.1"), 2),
     "holds"),
    ("robust to architecture and data", "landscape", "2.2",
     "in words", of_landscape("SimCLR, noise 0.48", "noise", "custom, sparsity 0.1, noise 0.48"),
     "in part: not to noise"),
    ("bad solutions are not collapsed", "landscape", "abstract",
     "in words", with_n("rank (of ten), bad − good solutions",
                        end("rank", OTHER, "rank") - end("rank", CONTRASTIVE, "rank"), 1),
     "in part: not to a point"),
    ("Theorem 2, Corollary 5: linear networks end in a combination of their starts", "landscape",
     "5", "a theorem", "tested to 1e-15, after correcting one index", "holds"),
    ("Theorem 3: a warm start converges with normalised rows", "landscape", "5",
     "a theorem", "tested near the solution; needs κα² < 1 − b", "in part: near the solution"),
    ("independent masks do better than dependent ones: SimSiam", "landscape", "4.2",
     "in words", with_n("3 of 10",
                        end("masks", "masks/SimSiam, independent masks, sparsity 0.3")
                        - end("masks", "masks/SimSiam, dependent masks, sparsity 0.3"), 2),
     "supported"),
    ("the same: SimCLR", "landscape", "4.2",
     "in words", with_n("3 of 10",
                        end("masks", "masks/SimCLR, independent masks, sparsity 0.3")
                        - end("masks", "masks/SimCLR, dependent masks, sparsity 0.3"), 2),
     "not supported"),
]
OF_OTHERS = [
    ("SimSiam collapses without stop-gradient", "simsiam", "its ablation",
     "in words", say("spread", NO_STOP_GRADIENT, "built-in"), "supported: to a line"),
    ("SimSiam collapses without a predictor", "simsiam", "its ablation",
     "in words", say("spread", NO_PREDICTOR, "built-in"), "supported: to a line"),
    ("LpJEPA's μ sets the share of active entries", "dictionaries/runs.txt", "its method",
     "0", say("Act. less its target", LPJEPA, "built-in, μ = −1.5"), "in part: the order is right"),
    ("MonoLoss makes an autoencoder's units purer", "dictionaries/runs.txt", "abstract",
     "+7.6 to +30.3, ImageNet", of_monoloss("Cons."), "supported, with λ = 1"),
    ("the same above chance", "dictionaries/runs.txt", "not in the paper",
     "none", of_monoloss("adj."), "supported, with λ = 1"),
    ("MonoLoss raises MonoScore", "dictionaries/runs.txt", "abstract",
     "in words", of_monoloss("MonoScore"), "supported, with λ = 1"),
]
# fmt: on
PAPERS = {
    "NCL": OF_NCL,
    "BayesNCL": OF_BAYESNCL,
    "SparseHead": OF_SPARSEHEAD,
    "landscape of sparse coding": OF_LANDSCAPE,
    "SimSiam, LpJEPA, MonoLoss": OF_OTHERS,
}
VERDICTS = [
    "holds",
    "supported",
    "in part",
    "excludes the paper's value",
    "not supported",
    "inconclusive",
    "open",
]


def claims_of(rows: list[tuple]) -> pd.DataFrame:
    lines = []
    for claim, page, where, paper, ours, verdict in rows:
        file = page if "/" in page else f"{page}/README.md"
        lines.append([f"[{claim}](../{file})", where, paper, ours, verdict])
    return pd.DataFrame(lines, columns=["claim", "where", "the paper", "ours", "verdict"])


def counted(papers: dict[str, list]) -> pd.DataFrame:
    """How many rows of a paper have each verdict, by its first words."""
    lines = []
    for paper, rows in papers.items():
        verdicts = [verdict for *_, verdict in rows]
        counts = [sum(text.startswith(word) for text in verdicts) for word in VERDICTS]
        lines.append([paper, *counts])
    return pd.DataFrame(lines, columns=["rows of", *VERDICTS])


# ----------------------------------------------------------------------------------- what came back
BUILT_IN = "ncl/shapes", f"{CLAIMS}-shapes", f"{FAIR}-shapes"
CIFAR_10 = "ncl/cifar10-cpu", f"{CLAIMS}-cifar10", f"{FAIR}-cifar10"
NCL_ON_SHAPES = [f"{time}-ncl − {time}-simclr" for time in BUILT_IN]
NCL_ON_CIFAR_10 = [f"{time}-ncl − {time}-simclr" for time in CIFAR_10]
BAYESNCL_ON_SHAPES = ["bayesncl/shapes-bayesncl − ncl/shapes-ncl"]
BAYESNCL_ON_SHAPES += [f"{time}-bayesncl − {time}-ncl" for time in BUILT_IN[1:]]
MADE_AGAIN = [
    ("NCL − SimCLR, built-in", "LP@1", NCL_ON_SHAPES),
    ("NCL − SimCLR, built-in", "LP@1 of z", NCL_ON_SHAPES),
    ("NCL − SimCLR, built-in", "5-NN", NCL_ON_SHAPES),
    ("NCL − SimCLR, CIFAR-10", "LP@1", NCL_ON_CIFAR_10),
    ("NCL − SimCLR, CIFAR-10", "adj.", NCL_ON_CIFAR_10),
    ("BayesNCL − NCL, built-in", "live", BAYESNCL_ON_SHAPES),
    ("BayesNCL − NCL, built-in", "P@10", BAYESNCL_ON_SHAPES),
    ("BayesNCL − NCL, CIFAR-100", "Cons.", BAYESNCL_ON_CIFAR_100),
    ("BayesNCL − NCL, CIFAR-100", "adj.", BAYESNCL_ON_CIFAR_100),
    ("BayesNCL − NCL, CIFAR-100", "H_s", BAYESNCL_ON_CIFAR_100),
]


def made_again() -> pd.DataFrame:
    lines = []
    for label, heading, times in MADE_AGAIN:
        formula, digits = NUMBERS[heading]
        found = [values(time, formula) for time in times]
        cells = [cell(of_time, digits, True) for of_time in found]
        cells += ["not run"] * (4 - len(cells))
        cells.append(cell(by_seed(times, formula), digits, True))
        lines.append([f"{label}: {heading}", *cells, len(found[0])])
    head = ["difference by seed", "first run", "second run", "third run", "fourth run"]
    head += ["each seed's mean", "n"]
    return pd.DataFrame(lines, columns=head)


verdicts = counted(PAPERS)
ncl, bayesncl, sparsehead, landscape, others = [claims_of(rows) for rows in PAPERS.values()]
again = made_again()
