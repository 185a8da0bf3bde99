"""The papers' claims, a row each: the paper's number, ours, and a verdict in words."""

from records import COLUMNS, STUDIES, cell, read, values

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
NCE_CE = {"CIFAR-10": "labels-captions/cifar10-cpu-nce-mlp − labels-captions/cifar10-cpu-ce-mlp"}
MMNCL_CLIP = {"built-in": "labels-captions/shapes-mmncl − labels-captions/shapes-clip"}
BAYESNCL_NCL = {
    "built-in": f"{CLAIMS}-shapes-bayesncl − {CLAIMS}-shapes-ncl",
    "CIFAR-10": "bayesncl/cifar10-cpu-bayesncl-untuned − ncl/cifar10-cpu-ncl",
    "CIFAR-10, papers' recipe": f"{CLAIMS}-cifar10-bayesncl-lars − {CLAIMS}-cifar10-ncl-lars",
    "CIFAR-100": "dictionaries/fair-cifar100-bayesncl − dictionaries/fair-cifar100-ncl",
    "200 epochs": "cifar100/cifar100-long-bayesncl − cifar100/cifar100-long-ncl",
    "MNIST-1D": "mnist1d/mnist1d-bayesncl − mnist1d/mnist1d-ncl",
}
DEFAULT = "cifar100/cifar100-cpu"
TOPK_NCL = {"CIFAR-100, `default`": f"{DEFAULT}-ncl-topk − {DEFAULT}-ncl"}
BAYESNCL_TOPK = {"CIFAR-100, `default`": f"{DEFAULT}-bayesncl − {DEFAULT}-ncl-topk"}
GATE = "bayesncl/shapes-bayesncl"
STE_GUMBEL = {"built-in": f"{GATE} − {GATE}-gumbel"}
DETACHING = {"built-in, with detaching less without": f"{GATE} − {GATE}-no-detach"}
KL_TERM = {"built-in, with the KL term less without": f"{GATE} − {GATE}-no-kl"}
WEIGHTED_NCL = {"built-in": f"{GATE}-ipw − ncl/shapes-ncl"}
GRID = "bayesncl/shapes-grid-bayesncl-prior0"
PRIORS = {"built-in, ρ 0.95 less 0.8": f"{GRID}.95-kl-weight3e-3 − {GRID}.8-kl-weight3e-3"}
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
SIMCLR = {"CIFAR-10": f"{OF_CIFAR}-plain", "CIFAR-100": f"{CLAIMS}-cifar100-simclr"}
HEAD = {"built-in, MLP less no head": f"{OF_SHAPES}-plain − {OF_SHAPES}-plain-none"}
SIMSIAM = "simsiam/shapes-simsiam"
NO_STOP_GRADIENT = {"built-in": f"{SIMSIAM}-no-stop-grad − {SIMSIAM}"}
NO_PREDICTOR = {"built-in": f"{SIMSIAM}-no-predictor − {SIMSIAM}"}
LPJEPA = {"built-in, μ = −1.5": "dictionaries/shapes-sparsity-lpjepa-8"}
MONOLOSS = {"CIFAR-100": "dictionaries/monoloss-cifar100-1 − dictionaries/monoloss-cifar100-0"}

ON_STRONGEST = "dictionary_trained_on_1"  # each dimension on its strongest 1 % of images
NUMBERS = COLUMNS | {  # a name: a formula of record keys, digits behind the point
    "adj. on 1 %": (f"{ON_STRONGEST}_full_adjusted", 1),
    "adj., to two digits": ("adjusted", 2),
    "adj. less random directions'": ("lead", 1),
    "best F1 on 1 %": (f"{ON_STRONGEST}_best_f1", 1),
    "H_s less shuffled": ("entropy - shuffled_entropy", 2),
    "P@10": ("p_at_10", 1),
    "Corr.": ("corr", 3),
    "SEPIN@10": ("sepin_10", 3),
    "LP@1 of z, best quarter less all": ("lp1_top_64 - lp1_embedding", 1),
    "LP@1 of z, corrupted less clean": ("z_corrupted - z_clean", 1),
    "LP@1 less LP@1 of z": ("lp1 - lp1_embedding", 1),
    "top-1": ("top1", 1),
    "top-1, 1 % of the labels": ("`finetune_0.01_top1`", 1),
    "R@1": ("text_r1", 1),
    "nameable share": ("nameable", 1),
    "share of open gates": ("open", 2),
    "dimensions for the sky": ("dims_sky", 0),
    "rank of h": ("rank_representation", 1),
    "rank of h less that of z": ("rank_representation - rank_embedding", 1),
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


def level(name: str, found: pd.Series, digits: int, unit="") -> str:
    """What is no difference: without a sign, its ± half the 95 % interval all the same."""
    return f"{name}: {cell(found, digits, True).removeprefix('+')}{unit} (n = {len(found)})"


def results(question: str, run: str):
    (record,) = [record for record in read(question) if record["run"] == run]
    return record["results"]


def curve(run: str, setting: str, number="min") -> np.ndarray:
    """A number of sparse_coding.py over the training, (T, seeds)."""
    return np.load(STUDIES / "landscape" / f"landscape-{run}.npz")[f"{setting}/{number}"]


def end(run: str, setting: str, number="min") -> pd.Series:
    return pd.Series(curve(run, setting, number)[-1])


def end_less_start(run: str, setting: str) -> pd.Series:
    of_seeds = curve(run, setting)
    return pd.Series(of_seeds[-1] - of_seeds[0])


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
toy = gates["toy"]
kept = toy["kept"]["ρ 0.8, λ 3e-05"][toy["frequency"].index(0.5)]
gain = toy["gain"][toy["frequency"].index(0.8)]
left = {}  # seed: of NCL's gradient, what pull and push leave in frequent dimensions less in rare
for seed in 1, 2, 3:
    of_run = gates["runs"][f"runs/shapes-ncl-seed{seed}"]
    left[seed] = of_run["frequent_left"] - of_run["rare_left"]


# ------------------------------------------------------------------------------------- the claims
# What is claimed; the folder of the page with the evidence, or a file; where in the paper; its
# number; ours; the verdict.
# fmt: off
OF_NCL = [
    ("dimensions are far more consistent with classes than CL's", "ncl", "abstract, Fig. 1, 3a",
     "+8.91", say("Cons.", NCL_SIMCLR, "CIFAR-100"), "supported, more strongly"),
    ("the same, with dimensions active on equally many images", "ncl", "not in the paper",
     "none", say("adj. on 1 %", NCL_SIMCLR, "CIFAR-100"), "supported"),
    ("dimensions are more consistent than random directions of h", "dictionaries",
     "not in the paper", "none", say("adj. less random directions'", NCL, "CIFAR-10"), "supported"),
    ("the same at the papers' length", "dictionaries", "not in the paper",
     "none", say("adj. less random directions'", NCL, "200 epochs"), "open: one seed"),
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
     "+0.95", say("LP@1", NCL_SIMCLR, "CIFAR-100"), "excludes the paper's value"),
    ("the same on MNIST-1D, at full length", "mnist1d", "abstract",
     "in words", say("LP@1", NCL_SIMCLR, "MNIST-1D"), "not supported"),
    ("the same with our recipe", "ncl", "abstract",
     "+0.95", say("LP@1", NCL_SIMCLR, "CIFAR-100, `default`"), "not supported"),
    ("a reparameterisation like ReLU keeps CL's performance", "ncl", "TL;DR",
     "in words", say("LP@1 of z", NCL_SIMCLR, "CIFAR-100"), "not supported"),
    ("a subset of features works better than a subset of CL's", "ncl", "abstract",
     "a figure", say("LP@1 of z, best quarter less all", NCL_SIMCLR, "CIFAR-10"),
     "in part: CIFAR-10, by the probe"),
    ("robust out of distribution", "ncl", "TL;DR",
     "in words", say("LP@1 of z, corrupted less clean", NCL_SIMCLR, "CIFAR-10"),
     "in part: embedding, CIFAR-10"),
    ("supervised learning gains too (NCE): consistency", "labels-captions", "abstract",
     "in words", say("Cons.", NCE_CE, "CIFAR-10"), "in part: with a projector"),
    ("the same: accuracy", "labels-captions", "abstract, Fig. 4",
     "a figure", say("top-1", NCE_CE, "CIFAR-10"), "not supported"),
    ("extends to image and text (MMNCL): nameable dimensions", "labels-captions", "TL;DR",
     "in words", say("nameable share", MMNCL_CLIP, "built-in"),
     "in part: share, not count"),
    ("the same: the right caption comes first, τ = 0.1", "labels-captions", "TL;DR",
     "in words", say("R@1", MMNCL_CLIP, "built-in"), "not supported"),
    ("spectral loss: sparser, more consistent, as accurate", "ncl", "Fig. 5",
     "0", say("LP@1", NCL_SIMCLR, "CIFAR-10, spectral"), "in part: not as accurate"),
    ("Theorem 1: CL's loss is invariant to rotations", "ncl", "3",
     "a theorem", "tested; also that NCL's loss is not", "holds"),
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
     "+12.11", say("Cons.", BAYESNCL_NCL, "200 epochs"), "excludes the paper's value"),
    ("more consistent, above chance", "cifar100", "not in the paper",
     "none", say("adj., to two digits", BAYESNCL_NCL, "200 epochs"), "not supported"),
    ("more consistent, after 20 epochs", "bayesncl", "abstract, main table",
     "+12.11", say("Cons.", BAYESNCL_NCL, "CIFAR-100"), "supported, but smaller"),
    ("the same, beyond shuffled labels", "bayesncl", "not in the paper",
     "none", say("Cons. less shuffled", BAYESNCL_NCL, "CIFAR-100"), "inconclusive"),
    ("more consistent, MNIST-1D, at full length", "mnist1d", "abstract, main table",
     "in words", say("Cons.", BAYESNCL_NCL, "MNIST-1D"), "inconclusive"),
    ("more consistent, CIFAR-10", "bayesncl", "abstract, main table",
     "+2.68", say("Cons.", BAYESNCL_NCL, "CIFAR-10, papers' recipe"), "inconclusive"),
    ("more consistent, CIFAR-10, our recipe, their λ", "bayesncl", "abstract, main table",
     "+2.68", say("Cons.", BAYESNCL_NCL, "CIFAR-10"), "not supported"),
    ("lower semantic entropy than NCL", "bayesncl", "main table",
     "−1.18, ImageNet-100", say("H_s", BAYESNCL_NCL, "200 epochs"), "inconclusive"),
    ("lower entropy, after 20 epochs", "bayesncl", "main table",
     "−1.18, ImageNet-100", say("H_s", BAYESNCL_NCL, "CIFAR-100"), "supported"),
    ("the same, beyond shuffled labels", "bayesncl", "not in the paper",
     "none", say("H_s less shuffled", BAYESNCL_NCL, "CIFAR-100"), "not supported"),
    ("TopK is more consistent than NCL", "cifar100/records.jsonl", "main table",
     "+2.41", say("Cons.", TOPK_NCL, "CIFAR-100, `default`"), "not supported"),
    ("BayesNCL is more consistent than TopK", "cifar100/records.jsonl", "main table",
     "+9.70 of Cons.", say("adj.", BAYESNCL_TOPK, "CIFAR-100, `default`"), "in part: by adj."),
    ("a gate by STE is more consistent than by Gumbel noise", "bayesncl", "main table",
     "+2.82, CIFAR-10", say("Cons.", STE_GUMBEL, "built-in"), "excludes the paper's value"),
    ("as accurate as NCL, or more", "cifar100", "main table",
     "+0.02", say("LP@1", BAYESNCL_NCL, "200 epochs"), "inconclusive"),
    ("as accurate: embedding", "cifar100", "not in the paper",
     "none", say("LP@1 of z", BAYESNCL_NCL, "200 epochs"), "inconclusive"),
    ("as accurate: embedding, after 20 epochs", "bayesncl", "not in the paper",
     "none", say("LP@1 of z", BAYESNCL_NCL, "CIFAR-100"), "not supported"),
    ("more dimensions are live than with NCL", "cifar100", "main table",
     "+2 %, ImageNet-100", say("live", BAYESNCL_NCL, "200 epochs"), "inconclusive"),
    ("more dimensions, after 15 epochs", "bayesncl", "main table",
     "+2 %, ImageNet-100", say("live", BAYESNCL_NCL, "built-in"), "not supported"),
    ("the gate closes frequent, shared features", "bayesncl", "core idea",
     "in words", f"kept in a toy model, of features on half the images: {100 * kept:.0f} %",
     "in part: in the toy model"),
    ("Theorem 4.5: cost λ log(1/ρ) against gain γ π (1 − π)", "bayesncl", "4",
     "a gain above 0", f"gain in the toy model at π = 0.8: −{-1000 * gain:.1f} · 10⁻³ nats",
     "in part: for fixed norms"),
    ("the KL term suppresses frequent features", "bayesncl", "method",
     "in words", say("share of open gates", KL_TERM, "built-in, with the KL term less without"),
     "not supported: ρ = 0.8 opens gates"),
    ("shared features' gradients: mean near 0, large variance, less with a gate", "bayesncl",
     "motivation", "in words",
     with_n("left of pull and push, frequent less rare", pd.Series(left), 3),
     "in part: the variance"),
    ("weighting by inverse frequency suppresses shared features", "bayesncl", "motivation",
     "in words", say("dimensions for the sky", WEIGHTED_NCL, "built-in")
     + "; with a similarity of our own, in bayesncl.py up to commit db589e1", "inconclusive"),
    ("gates decide image by image, as TopK cannot", "bayesncl", "method",
     "in words", "a gate that is open is open for nearly all images", "open: one seed"),
    ("hard gates beat soft ones; detaching and two layers matter", "bayesncl", "ablations",
     "+13.85, detaching", say("Cons.", DETACHING, "built-in, with detaching less without"),
     "excludes the paper's value"),
    ("+0.2 % operations, +6 % time", "bayesncl", "overhead",
     "+0.2 %", "operations, counted: +0.28 %", "in part: time is open"),
    ("performance is an inverted U in ρ and λ", "bayesncl", "limitations",
     "in words", say("adj.", PRIORS, "built-in, ρ 0.95 less 0.8"), "inconclusive"),
    ("Theorems 4.7, 4.9: a generalisation bound", "bayesncl", "4",
     "theorems", "their statements are not known to us", "open"),
]
OF_SPARSEHEAD = [
    ("features beat the embedding by 10 points", "sparsehead", "introduction",
     "+10", say("LP@1 less LP@1 of z", SIMCLR, "CIFAR-100"), "excludes the paper's value"),
    ("the probe rises on every base and data set: SimCLR", "sparsehead", "Table 1",
     "+0.95, CIFAR-10", say("LP@1", SPARSEHEAD_BASE, "built-in"), "inconclusive"),
    ("the same: BYOL", "sparsehead", "Table 1",
     "+0.72, CIFAR-10", say("LP@1", SPARSEHEAD_BASE, "BYOL, built-in"),
     "excludes the paper's value"),
    ("5-NN rises: SimCLR", "sparsehead", "Table 1",
     "+1.90, CIFAR-10", say("5-NN", SPARSEHEAD_BASE, "built-in"), "excludes the paper's value"),
    ("the L₂,₁ term makes the head sparse", "sparsehead", "abstract, 6",
     "in words", level("unused columns", values(SPARSEHEAD, "100 * unused_columns"), 0, " %"),
     "not supported"),
    ("it lowers the rank of Z and raises that of R, our h", "sparsehead", "Fig. 3",
     "a figure", say("rank of h", SPARSEHEAD_BASE, "CIFAR-10"), "not supported"),
    ("without a head representations have dimensional collapse", "sparsehead", "Fig. 1a",
     "a figure", say("rank of h", HEAD, "built-in, MLP less no head"), "supported"),
    ("embeddings have a lower rank than representations", "sparsehead", "Fig. 1b, c",
     "a figure", say("rank of h less that of z", SIMCLR, "CIFAR-10"), "in part: on CIFAR-10"),
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
     "a theorem", "the paper does not give C", "cannot be tested"),
    ("Theorem 5.6, Corollary 6.1: sparse heads lead to the true features", "sparsehead", "5, 6",
     "theorems", "the true features would have to be known", "cannot be tested"),
]
CONTRASTIVE, OTHER = "fig2/contrastive, sparsity 0.1", "fig2/non-contrastive, sparsity 0.1"
RELU = "contrastive, ReLU, {0, 1}, sparsity 0.3"
ALIGNED, NOT_ALIGNED = "alignment/p=50, aligned columns", "alignment/p=50, random columns"
OF_LANDSCAPE = [
    ("Theorem 1: bad optima without contrast, only permutations with it", "landscape",
     "2.1",
     "a theorem", "tested for Eq. (A.17); for Eq. (9) only among W ≥ 0", "holds"),
    ("the contrastive loss recovers the features, the other does not", "landscape", "Fig. 1, 2",
     "high, low", with_n("difference, 2 of 10",
                         end("paper-figures", CONTRASTIVE) - end("paper-figures", OTHER), 2),
     "in part: with 3 of 10 not for every seed"),
    ("the same with a ReLU and latents in {0, 1}", "landscape", "not in the paper",
     "none", with_n("difference, Pr = .3", end("findings", f"variants/{RELU}")
                    - end("findings", f"variants/non-{RELU}"), 2), "not supported"),
    ("training does not avoid the bad optima", "landscape", "abstract",
     "in words", with_n("SimCLR − SimSiam, trained longer",
                        end("findings", "budget/SimCLR, sparsity 0.1")
                        - end("findings", "budget/SimSiam, sparsity 0.1"), 2),
     "in part: SimSiam does avoid them"),
    ("Table 1: SimCLR's minimum, 3 of 10", "landscape", "5",
     "0.57", of_landscape("text's layers", "paper-table1", "SimCLR, sparsity 0.3"),
     "excludes the paper's value"),
    ("the same", "landscape", "5",
     "0.57", of_landscape("authors' layers", "paper-table1",
                          "SimCLR, authors' layers, sparsity 0.3"), "inconclusive"),
    ("Table 1: SimSiam's median, 2 of 10", "landscape", "5",
     "0.87", of_landscape("authors' layers", "paper-table1",
                          "SimSiam, authors' layers, sparsity 0.1", "median"),
     "excludes the paper's value"),
    ("Table 1: everything else, with the authors' layers", "landscape", "5",
     "its table", "within 0.1", "holds"),
    ("with a warm start alone the cosine falls", "landscape", "Fig. 4",
     "falls", with_n("end − start", end_less_start("paper-fig4", "fig4/warm start"), 2),
     "in part: in the first quarter"),
    ("with a predictor it rises", "landscape", "Fig. 5",
     "to 0.87", level("end", end("paper-figures", "fig5/warm start, predictor"), 2),
     "in part: less high"),
    ("a predictor alone fails", "landscape", "Fig. 6",
     "low", level("end", end("paper-figures", "fig6/cold start, predictor"), 2), "holds"),
    ("the predictor is what makes it rise", "landscape", "Fig. 4, 5",
     "in words", with_n("aligned − random columns, no predictor",
                        end("findings", ALIGNED) - end("findings", NOT_ALIGNED), 2),
     "in part: so does alignment"),
    ("normalised rows or columns make it rise", "landscape", "Fig. 7",
     "to 0.85", with_n("with normalised rows less without, not aligned",
                       end("findings", f"{NOT_ALIGNED}, rows normalised")
                       - end("findings", NOT_ALIGNED), 2),
     "in part: it rises without, too"),
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
     "a theorem", "tested near the solution; needs κα² < 1 − b", "holds"),
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
    ("LpJEPA's μ sets the share of active entries", "dictionaries", "its method",
     "0", say("Act. less its target", LPJEPA, "built-in, μ = −1.5"), "in part: the order is right"),
    ("MonoLoss makes an autoencoder's units purer", "dictionaries", "abstract",
     "+7.6 to +30.3, ImageNet", say("Cons.", MONOLOSS, "CIFAR-100"), "supported"),
    ("the same above chance", "dictionaries", "not in the paper",
     "none", say("adj.", MONOLOSS, "CIFAR-100"), "supported"),
    ("MonoLoss raises MonoScore", "dictionaries", "abstract",
     "in words", say("MonoScore", MONOLOSS, "CIFAR-100"), "supported"),
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
    "cannot be tested",
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
FAIR = "dictionaries/fair"
BUILT_IN = "ncl/shapes", f"{CLAIMS}-shapes", f"{FAIR}-shapes"
CIFAR_10 = "ncl/cifar10-cpu", f"{CLAIMS}-cifar10", f"{FAIR}-cifar10"
CIFAR_100 = f"{CLAIMS}-cifar100", f"{CLAIMS}-cifar100-again", f"{FAIR}-cifar100"
NCL_ON_SHAPES = [f"{time}-ncl − {time}-simclr" for time in BUILT_IN]
NCL_ON_CIFAR_10 = [f"{time}-ncl − {time}-simclr" for time in CIFAR_10]
BAYESNCL_ON_SHAPES = ["bayesncl/shapes-bayesncl − ncl/shapes-ncl"]
BAYESNCL_ON_SHAPES += [f"{time}-bayesncl − {time}-ncl" for time in BUILT_IN[1:]]
BAYESNCL_ON_CIFAR_100 = [f"{DEFAULT}-bayesncl-lars − {DEFAULT}-ncl-lars"]
BAYESNCL_ON_CIFAR_100 += [f"{time}-bayesncl − {time}-ncl" for time in CIFAR_100]
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
        lines.append([f"{label}: {heading}", *cells, len(found[0])])
    head = ["difference by seed", "first run", "second run", "third run", "fourth run", "n"]
    return pd.DataFrame(lines, columns=head)


verdicts = counted(PAPERS)
ncl, bayesncl, sparsehead, landscape, others = [claims_of(rows) for rows in PAPERS.values()]
again = made_again()
