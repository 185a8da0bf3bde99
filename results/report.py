"""Put what results/ holds into README.md and results/README.md: tables, pictures, the list of runs.

    python results/report.py            tables, and where matplotlib is installed the pictures
"""
import contextlib
import csv
import json
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import common

RESULTS = ROOT / "results"


# ------------------------------------------------------------------------------------------------------------- records
def dimensions(folder: Path) -> dict[str, np.ndarray]:
    """dimensions.csv as columns; empty where the run has none."""
    file = folder / "dimensions.csv"
    lines = list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []
    return {key: np.array([float(line[key]) for line in lines]) for key in (lines[0] if lines else [])}


def consistencies(columns: dict[str, np.ndarray]) -> dict[str, float]:
    """Cons. in % of the dimensions that are active on at least a share of the samples, "cons_at_least_<share>", and weighted by how
    often they are active, "cons_weighted"."""
    if "cons" not in columns:
        return {}
    found = {"cons_weighted": 100 * np.average(columns["cons"], weights=columns["act"])}
    for share in (0.001, 0.01, 0.05):
        if (often := columns["act"] >= share).any():
            found[f"cons_at_least_{share}"] = 100 * columns["cons"][often].mean()
    return found


def runs(pattern: str) -> list[dict]:
    """The complete runs whose folder matches, sorted: the last epoch's numbers under the final ones, "folder" and "config"."""
    found = []
    for file in sorted(RESULTS.glob(f"{pattern}/metrics.jsonl")):
        *epochs, last = [{}] + [json.loads(line) for line in file.read_text().splitlines()]
        if last.get("event") == "final":
            numbers = {key: value for key, value in (epochs[-1] | last).items() if value is not None}
            if columns := dimensions(file.parent):
                numbers |= consistencies(columns)
            config = json.loads((file.parent / "config.json").read_text())
            if "live_dims" in numbers and config.get("head") != "none":
                numbers["live_share"] = numbers["live_dims"] / config["head_out"]
            found.append(numbers | dict(folder=file.parent, config=config))
    return found


def cell(pattern: str, template: str) -> str:
    """A table's cell: for each {key:format} the mean over the runs that match, ± their standard deviation where there are three
    or more; – where there is no run or a run lacks a number. {runs} is how many there are."""
    matching = runs(pattern)

    def number(match):
        key, form = match.groups()
        values = [run[key] for run in matching]
        spread = f" ± {np.std(values, ddof=1):{form}}" if len(values) > 2 else ""
        return f"{np.mean(values):{form}}{spread}".replace("%", " %")

    with contextlib.suppress(KeyError):
        return re.sub(r"\{([\w.]+):([^}]+)\}", number, template.replace("{runs}", str(len(matching)))) if matching else "–"
    return "–"


def landscape(folder: str, experiment: str, setting: str, statistic="min", last=True) -> dict | None:
    """The record of a landscape run: start, end_mean and end_std of a max-cosine, at the run's end or, in the budget
    experiment and with last=False, at the paper's learning rate × steps."""
    file = RESULTS / folder / "results.json"
    rows = json.loads(file.read_text()) if file.exists() else []
    wanted = (experiment, setting, statistic)
    found = [row for row in rows if (row["experiment"], row["setting"], row["statistic"]) == wanted]
    return found[-1 if last else 0] if found else None


def short(value: float) -> str:
    """.83 for 0.83."""
    return f"{value:.2f}".removeprefix("0")


# -------------------------------------------------------------------------------------------------------------- tables
# Headings are columns. What a cell shows is a template of metrics, see cell(); where it is a pair, (folder pattern, template), the
# pattern's {} is the row's name; else the row's name is the pattern.
ACCURACY = {"LP@1": "{lp1:.1f}", "5-NN": "{knn5:.1f}"}
DIMENSIONS = {"Cons.": "{cons:.1f}", "weighted": "{cons_weighted:.1f}", "H_s": "{entropy:.2f}", "P@10": "{p_at_10:.1f}"}
SPARSITY = {"Act.": "{act:.3f}", "live": "{live_dims:.0f}", "Corr.": "{corr:.3f}"}
CONSISTENCY = {"Cons.": "{cons:.1f}", "weighted": "{cons_weighted:.1f}", "Cons. of background": "{background_cons:.1f}"}


def of_study(study: str, columns: dict) -> dict:
    """The columns, filled from a study's runs."""
    return {heading: (f"{study}-{{}}-seed?", template) for heading, template in columns.items()}


METHODS = {"SimCLR": "simclr", "NCL": "ncl", "BayesNCL": "bayesncl", "SimSiam": "simsiam", "SparseHead's SimCLR, λ = 0": "sparsehead-simclr-plain",
           "SimCLR + SparseHead": "sparsehead-simclr"}
BASES = {"BYOL + SparseHead": "sparsehead-byol", "Barlow Twins + SparseHead": "sparsehead-barlow"}

# The papers' values beside ours; a row: its name, and what the paper has in each column
PAPER_200 = {
    "CL (SimCLR)": ("simclr", "10.00", "87.88", "1.00", "59.72", "1.00", "4.59", "1.00", "68.31 / 90.24"),
    "NCL": ("ncl", "53.82", "87.80", "9.91", "60.67", "14.93", "3.28", "0.48", "69.63 / 91.23"),
    "NCL + TopK": ("ncl-topk", "51.81", "", "12.32", "", "14.27", "3.35", "0.47", ""),
    "BayesNCL, Gumbel": ("bayesncl-gumbel", "53.68", "", "20.75", "", "11.66", "3.36", "0.13", ""),
    "BayesNCL, STE": ("bayesncl", "56.50", "88.02", "22.02", "60.69", "36.14", "2.10", "0.50", "70.44 / 91.71"),
}
PAPER_GATE = {
    "full": ("bayesncl", "36.14", "70.44"), "soft gate": ("bayesncl-soft", "33.15", "69.87"), "no detach": ("bayesncl-no-detach", "22.29", "67.47"),
    "1-layer gate": ("bayesncl-1-layer", "40.85", "69.55"), "3-layer gate": ("bayesncl-3-layers", "26.37", "68.09"),
}
SPARSEHEAD_1 = {  # Table 1: linear / 5-NN on four data sets, top-1 / top-5 on two
    "SimCLR": ("sparsehead-simclr-plain", "91.80 / 88.42", "66.83 / 56.57", "90.51 / 85.68", "48.82 / 32.86", "70.15 / 89.75", "69.32 / 89.15"),
    "BYOL": ("sparsehead-byol-plain", "91.73 / 89.26", "66.60 / 56.82", "91.86 / 88.61", "51.01 / 36.14", "74.89 / 92.83", "74.31 / 91.62"),
    "Barlow Twins": ("sparsehead-barlow-plain", "90.88 / 88.78", "66.67 / 56.39", "90.71 / 86.31", "49.74 / 33.61", "72.88 / 90.99", "73.22 / 91.01"),
    "SimSiam": ("simsiam", "91.51 / 89.31", "66.73 / 56.87", "91.92 / 88.54", "50.92 / 35.98", "74.78 / 92.84", "71.33 / –"),
    "W-MSE": (None, "91.99 / 89.87", "67.64 / 56.45", "91.65 / 88.49", "49.22 / 35.44", "75.33 / 92.78", "72.56 / –"),
    "SwAV": (None, "90.17 / 86.45", "65.23 / 54.77", "89.12 / 84.12", "47.13 / 31.07", "75.77 / 92.86", "75.30 / –"),
    "SSL-HSIC": (None, "91.95 / 89.91", "67.22 / 57.01", "92.06 / 88.87", "51.42 / 36.03", "74.77 / 92.56", "72.13 / 90.33"),
    "VICReg": (None, "91.08 / 88.93", "66.91 / 56.47", "91.11 / 86.24", "50.17 / 34.24", "74.88 / 92.84", "–"),
    "SimCLR + SparseHead": ("sparsehead-simclr", "92.75 / 90.32", "67.55 / 56.84", "92.24 / 88.49", "51.42 / 36.16", "72.27 / 91.24", "71.44 / 90.82"),
    "BYOL + SparseHead": ("sparsehead-byol", "92.45 / 90.05", "67.52 / 56.86", "92.60 / 88.63", "52.16 / 36.74", "75.94 / 92.91", "75.52 / 92.76"),
    "Barlow Twins + SparseHead": ("sparsehead-barlow", "91.28 / 89.87", "66.91 / 56.47", "91.45 / 88.46", "51.49 / 35.26", "75.75 / 92.95", "75.32 / 92.28"),
}
SPARSEHEAD_2 = {  # Table 2: ImageNet, fine-tuned on 1 % and 10 % of the labels, top-1 / top-5
    "SimCLR": ("sparsehead-simclr-plain-finetune", "48.3 / 75.5", "65.6 / 87.8"), "BYOL": (None, "53.2 / 78.4", "68.8 / 89.1"),
    "SwAV": (None, "53.9 / 78.5", "70.2 / 89.9"), "Barlow Twins": (None, "54.9 / 79.4", "69.6 / 89.1"),
    "SimCLR + SparseHead": ("sparsehead-simclr-finetune", "50.1 / 76.4", "67.5 / 88.7"),
    "BYOL + SparseHead": (None, "54.3 / 78.5", "69.4 / 89.5"), "Barlow Twins + SparseHead": (None, "56.2 / 79.5", "70.6 / 89.6"),
}
SPARSEHEAD_3 = {  # Table 3: COCO, Mask R-CNN with a C4 backbone, AP / AP50 / AP75
    "SimCLR": (None, "37.9 / 57.7 / 40.9", "33.2 / 54.6 / 35.3"), "SwAV": (None, "37.6 / 57.6 / 40.2", "33.0 / 54.2 / 35.1"),
    "BYOL": (None, "37.9 / 57.8 / 40.9", "33.1 / 54.3 / 35.0"), "SimSiam": (None, "37.9 / 57.5 / 40.9", "33.3 / 54.2 / 35.2"),
    "Barlow Twins": (None, "39.2 / 59.0 / 42.5", "34.2 / 56.0 / 36.5"), "SimCLR + SparseHead": (None, "37.7 / 58.5 / 42.1", "34.7 / 55.4 / 36.2"),
    "BYOL + SparseHead": (None, "39.5 / 59.8 / 43.4", "35.8 / 56.2 / 37.2"), "Barlow Twins + SparseHead": (None, "39.9 / 59.6 / 43.8", "35.4 / 56.4 / 36.9"),
}
TABLE1 = {  # row: what the paper has, maximum / median / minimum; the program; its Pr in our runs
    "SimCLR, Pr .1": (".94 / .92 / .83 ± .16", "SimCLR", 0.1),
    "SimCLR, Pr .2": (".94 / .93 / .90 ± .01", "SimCLR", 0.1),
    "SimCLR, Pr .3": (".94 / .92 / .57 ± .02", "SimCLR", 0.3),
    "SimSiam, Pr .1": (".94 / .87 / .47 ± .07", "SimSiam", 0.1),
    "SimSiam, Pr .2": (".93 / .82 / .45 ± .01", "SimSiam", 0.1),
    "SimSiam, Pr .3": (".68 / .45 / .37 ± .03", "SimSiam", 0.3),
}
OF_EACH_PR = [f", sparsity {level}" for level in (0.1, 0.3)]
OF_EACH_C = [f", warm {c}" for c in (1.0, 1.25, 1.5, 2.0)]
LANDSCAPE = {  # row: (paper's value, experiment, its settings, whether to show where each started)
    "Fig. 1, one-hot, contrastive": ("high", "fig1", ["contrastive, one-hot"], False),
    "Fig. 1, one-hot, non-contrastive": ("low", "fig1", ["non-contrastive, one-hot"], False),
    "Fig. 2, contrastive, Pr .1 / .3": ("high", "fig2", ["contrastive" + pr for pr in OF_EACH_PR], False),
    "Fig. 2, non-contrastive, Pr .1 / .3": ("low", "fig2", ["non-contrastive" + pr for pr in OF_EACH_PR], False),
    "Fig. 3, two layers, non-contrastive, Pr .1 / .3": (
        "low", "fig3", ["non-contrastive, 2 layers" + pr for pr in OF_EACH_PR], False),
    "Fig. 4, warm start": ("falls", "fig4", ["warm start"], True),
    "Fig. 5, warm start, predictor": ("rises to .87", "fig5", ["warm start, predictor"], True),
    "Fig. 6, cold start, predictor": ("low", "fig6", ["cold start, predictor"], False),
    "Fig. 7, rows normalised, c = 1 / 1.25 / 1.5 / 2": (
        ".62 → .85", "fig7", ["warm start, rows normalised" + c for c in OF_EACH_C], True),
    "the same, columns normalised": ("", "fig7", ["warm start, columns normalised" + c for c in OF_EACH_C], True),
}


def papers(*headings: str) -> dict[str, None]:
    """Columns of a paper's values that nothing of ours stands beside."""
    return dict.fromkeys(headings)


def image_table(own: list[str], columns: dict, rows: dict[tuple, str]) -> list[list[str]]:
    """Cells of a table of image runs: the head, then a row for each of `rows`, own cells → name of its runs."""
    pairs = [column if isinstance(column, tuple) else ("{}", column) for column in columns.values()]
    return [[*own, *columns], *([*cells, *(cell(pattern.format(name), template) for pattern, template in pairs)] for cells, name in rows.items())]


def beside(own: list[str], paper: dict, ours: dict, columns: dict) -> list[list[str]]:
    """Cells of a table that has, for each row of `paper`, the paper's value under the headings of `ours`, ∣ ours where we can have
    one, then further columns."""
    table = [[*own, *ours, *columns]]
    for label, (name, *values) in paper.items():
        pairs = [f"{value or '–'} ∣ {cell(column[0].format(name), column[1])}" if column else value or "–" for value, column in zip(values, ours.values())]
        table.append([label, *pairs, *(cell(pattern.format(name), template) for pattern, template in columns.values())])
    return table


def landscape_tables() -> list[list[list[str]]]:
    """The tables of sparse_coding.py: Table 1, the figures, alignment, budget, ReLU."""
    spread = lambda row: f"{short(row['end_mean'])} ± {short(row['end_std'])}" if row else "–"
    way = lambda row: f"{short(row['start'])} → {spread(row)}" if row else "–"

    def three(folder, setting):
        found = [landscape(folder, "table1", setting, statistic) for statistic in ("max", "median", "min")]
        return " / ".join([*(short(row["end_mean"]) for row in found[:2]), spread(found[2])]) if all(found) else "–"

    table1 = [["Table 1: max / median / min", "paper",
               *(f"{layers} layers, {run}" for layers in ("text's", "code's") for run in ("fast", "exact"))]]
    for label, (paper, name, level) in TABLE1.items():
        ours = [three(folder, f"{name}{layers}, sparsity {level}") for layers in ("", ", authors' layers")
                for folder in ("landscape-table1", "landscape-paper-table1")]
        table1.append([label, paper, *(["as .1"] * 4 if ".2" in label else ours)])
    figures = [["minimum max-cosine", "paper", "fast setting, 3 seeds", "exact setting, 5 seeds"]]
    for label, (paper, experiment, settings, start) in LANDSCAPE.items():
        cells = []
        for folder in ("landscape", "landscape-paper-figures"):
            found = [row for setting in settings if (row := landscape(folder, experiment, setting))]
            cells.append(" / ".join((f"{short(row['start'])} → " if start else "") + short(row["end_mean"]) for row in found) or "–")
        figures.append([label, paper, *cells])
    both, suffixes = ("landscape-findings", "landscape-findings-iid"), ("", ", the text's latents")
    kinds = ("random", "aligned")
    found = lambda *what: [way(landscape(folder, "alignment", setting)) for folder in both for setting in what]
    alignment = [["warm start, no predictor", *(f"{columns} columns{of}" for of in suffixes for columns in kinds)]]
    for label, p, note in (("p = 50", 50, ""), ("p = 50, rows normalised", 50, ", rows normalised"), ("p = 20", 20, ""),
                           ("p = 50, with a predictor", 50, ", predictor")):
        alignment.append([label, *found(*(f"p={p}, {columns} columns{note}" for columns in kinds))])
    alone = found("Fig. 7 without normalisation")
    alignment.append(["Fig. 7 without normalisation, c = 1.25", "", alone[0], "", alone[1]])
    budget = [["cold start, Pr .1 / .3", *(f"at {end}{of}" for of in suffixes for end in ("the paper's", "4000"))]]
    for label in ("SimCLR", "SimSiam", "non-contrastive", "non-contrastive, predictor"):
        ends = [[spread(landscape(folder, "budget", label + pr, last=last)) for pr in OF_EACH_PR]
                for folder in both for last in (False, True)]
        budget.append([label, *map(" / ".join, ends)])
    relu = [["ReLU, latents in {0, 1}, cold start", "Pr .1", "Pr .3"]]
    for label in ("contrastive", "SimCLR", "SimSiam", "non-contrastive"):
        settings = [f"{label}, ReLU, {{0, 1}}{pr}" for pr in OF_EACH_PR]
        relu.append([label, *(spread(landscape(both[0], "variants", setting)) for setting in settings)])
    return [table1, figures, alignment, budget, relu]


def tables() -> list[list[list[str]]]:
    """Every table of README that quotes a run, as rows of cells; the first row is the head, by which README has it."""
    at_200 = {f"CIFAR-{n} {label}": (f"cifar{n}-{{}}-seed?", template)
              for n in (10, 100) for label, template in (("Cons.", "{cons:.2f}"), ("LP@1", "{lp1:.2f}"))}
    cifar = lambda n, label, template: {f"our CIFAR-{n}, 200 epochs: {label}": (f"cifar{n}-{{}}-seed?", template)}
    cpu = lambda label, template: {f"our CPU study: {label}": ("cifar10-cpu-{}-seed?", template)}
    seeds, live = {"seeds": "{runs}"}, {"Act.": "{act:.3f}", "live": "{live_dims:.0f}"}
    methods = {(label,): name for label, name in METHODS.items()}
    untuned = {("BayesNCL, the authors' CIFAR-100 ρ and λ",): "bayesncl-untuned"}
    gates = {("ste (the paper's)", ""): "bayesncl", ("Gumbel", "`--gate gumbel`"): "bayesncl-gumbel", ("soft", "`--gate soft`"): "bayesncl-soft",
             ("none: NCL", "`--gate none`"): "ncl", ("no detach", "`--no-detach`"): "bayesncl-no-detach",
             ("1 layer", "`--gate-layers 1`"): "bayesncl-1-layer", ("3 layers", "`--gate-layers 3`"): "bayesncl-3-layers",
             ("no KL term", "`--kl-weight 0`"): "bayesncl-no-kl", ("low prior", "`--prior 0.3 --kl-weight 1e-3`"): "bayesncl-low-prior",
             ("none, inverse frequency", "`--gate none --similarity ipw`"): "bayesncl-ipw", ("NCL + TopK", "`ncl.py --topk 16`"): "ncl-topk"}
    tried = {(folder.name.removeprefix("cifar10-cpu-tuning-").removesuffix("-seed0"),): folder.name for folder in sorted(RESULTS.glob("cifar10-cpu-tuning-*"))}
    heads = {("SimCLR, plain",): "plain-finetune", ("SimCLR + SparseHead, λ = 1e-4",): "finetune", ("λ = 1e-2",): "1e-2", ("λ = 1e-1",): "1e-1",
             ("`--prox`, λ = 1",): "prox-1", ("`--prox`, λ = 3",): "prox-3", ("`--prox`, λ = 10",): "prox-10"}
    rare = {"one image": ("{}-seed?", "{cons:.1f}")} | {f"{100 * share:g} %": ("{}-seed?", f"{{cons_at_least_{share}:.1f}}") for share in (0.001, 0.01, 0.05)}
    rare |= {"weighted by activation": ("{}-seed?", "{cons_weighted:.1f}"), "live": ("{}-seed?", "{live_dims:.0f}")}
    head_columns = ACCURACY | {
        "rank of r / z": "{rank_representation:.1f} / {rank_embedding:.1f}", "ratio of r / z": "{min_max_representation:.1f} / {min_max_embedding:.3g}",
        "‖W‖₂,₁": "{l21:.3g}", "columns unused": "{unused_columns:.0%}", "fine-tuned 1 % / 10 %": "{finetune_0.01_top1:.1f} / {finetune_0.1_top1:.1f}"}
    return [
        beside(["ResNet-18, CIFAR 200 epochs, IN-100 100: paper ∣ ours"], PAPER_200, at_200 | papers("IN-100 Cons.", "IN-100 H_s", "IN-100 Act.", "IN-100 LP@1 / @5"),
               cpu("Cons.", "{cons:.1f}") | cpu("LP@1", "{lp1:.1f}") | cpu("active entries / dimensions", "{act:.2f} / {live_share:.2f}")),
        beside(["gate, ImageNet-100, 100 epochs: paper ∣ ours"], PAPER_GATE, papers("Cons.", "LP@1"),
               cifar(100, "Cons. / LP@1", "{cons:.1f} / {lp1:.1f}") 
               | {"built-in data, seeds 1 and 2: Cons. / LP@1": ("shapes-{}-seed[12]", "{cons:.1f} / {lp1:.1f}")}),
        image_table(["CIFAR-10, 10,000 images"], of_study("cifar10-cpu", ACCURACY | DIMENSIONS | SPARSITY | seeds | {"s": "{seconds_train:.0f}"}), methods | untuned),
        image_table(["settings tried, seed 0"], ACCURACY | {"Cons.": "{cons:.1f}", "weighted": "{cons_weighted:.1f}"} | live, tried),
        image_table(["built-in data set"], of_study("shapes", ACCURACY | DIMENSIONS | {"Cons. of background": "{background_cons:.1f}"} | SPARSITY | seeds
                                                    | {"s": "{seconds_train:.0f}"}), methods | {(label,): name for label, name in BASES.items()}),
        image_table(["gate, seeds 1 and 2", "flags"], {heading: ("shapes-{}-seed[12]", template) for heading, template in (
            ACCURACY | CONSISTENCY | {"gates open": "{open:.2f}"} | live).items()}, gates),
        background_table(),
        image_table(["Cons. of the dimensions that are active on at least"], rare, {
            ("CIFAR-10, NCL",): "cifar10-cpu-ncl", ("CIFAR-10, BayesNCL",): "cifar10-cpu-bayesncl",
            ("CIFAR-10, BayesNCL, the authors' CIFAR-100 ρ and λ",): "cifar10-cpu-bayesncl-untuned",
            ("built-in data, NCL",): "shapes-ncl", ("built-in data, BayesNCL",): "shapes-bayesncl"}),
        image_table(["P@10 with NCL's m most active dimensions"], {f"m = {m}": f"{{p_at_10_top_{m}:.1f}}" for m in (32, 64, 128)} | {"all 256": "{p_at_10:.1f}"},
                    {("built-in data set",): "shapes-ncl-seed?", ("CIFAR-10, CPU study",): "cifar10-cpu-ncl-seed?"}),
        image_table([""], of_study("shapes", ACCURACY | {"collapse indicator": "{spread:.2f}", "Corr.": "{corr:.2f}"} | seeds),
                    {("SimSiam",): "simsiam", ("`--no-stop-grad`",): "simsiam-no-stop-grad", ("`--no-predictor`",): "simsiam-no-predictor"}),
        image_table(["SparseHead, seed 1"], of_study("shapes-sparsehead-simclr", head_columns), heads),
        *landscape_tables(),
    ]


def sparsehead_tables() -> list[list[list[str]]]:
    """Tables 1 to 3 of the SparseHead paper, and what we have of the kind, for results/README.md."""
    both, shapes = "{lp1:.1f} / {knn5:.1f}", {"built-in data: LP@1 / 5-NN": ("shapes-{}-seed?", "{lp1:.1f} / {knn5:.1f}")}
    four, two = papers("CIFAR-10", "CIFAR-100", "STL-10", "Tiny-ImageNet"), papers("ImageNet-100", "ImageNet")
    shares = {f"built-in data, {100 * share:g} %": ("shapes-{}-seed?", f"{{finetune_{share}_top1:.1f}} / {{finetune_{share}_top5:.1f}}") for share in (0.01, 0.1)}
    return [beside(["Table 1: linear / 5-NN, top-1 / top-5"], SPARSEHEAD_1, four | two, {"our CPU study: LP@1 / 5-NN": ("cifar10-cpu-{}-seed?", both)} | shapes),
            beside(["Table 2: fine-tuned, top-1 / top-5"], SPARSEHEAD_2, papers("ImageNet, 1 %", "ImageNet, 10 %"), shares),
            beside(["Table 3: COCO, AP / AP50 / AP75"], SPARSEHEAD_3, papers("detection", "segmentation"), {})]


BACKGROUND_ROWS = {"NCL": "ncl", "BayesNCL": "bayesncl", "BayesNCL, no KL term": "bayesncl-no-kl", "inverse frequency": "bayesncl-ipw"}


def background_dimensions(name: str) -> list[list[np.ndarray]]:
    """For each background, most frequent first: of each seed's run the activation rates of the dimensions that stand for it, those
    whose active images have it to at least 90 %."""
    found = [columns for run in runs(f"shapes-{name}-seed?") if (columns := dimensions(run["folder"]))]
    stand_for = lambda columns, b: (columns["background_cons"] >= 0.9) & (columns["background_class"] == b)
    return [[columns["act"][stand_for(columns, b)] for columns in found] for b in range(len(common.BACKGROUNDS))]


def background_table() -> list[list[str]]:
    """How many dimensions stand for each background and how often they are active, means over seeds."""
    table = [["dimensions of a background: number, rate", *(f"{name}, {100 * frequency:.0f} %" for name, frequency in common.BACKGROUNDS.items())]]
    for title, name in BACKGROUND_ROWS.items():
        of_each = background_dimensions(name)
        table.append([title, *(f"{np.mean([len(r) for r in rates]):.0f}, {np.concatenate(rates).mean():.2f}" if rates else "–" for rates in of_each)])
    return table


def list_of_runs() -> list[list[str]]:
    """A row per kind of run: what made it, where and how long."""
    kinds = {}
    for file in [*RESULTS.rglob("metrics.jsonl"), *RESULTS.rglob("results.json")]:
        kinds.setdefault(re.sub(r"-seed\d+$", "", str(file.parent.relative_to(RESULTS))), []).append(file.parent)
    table = [["runs", "seeds", "commit", "hardware", "precision", "torch", "date", "training, s"]]
    for kind, folders in sorted(kinds.items()):
        configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
        seconds = [run["seconds_train"] for folder in folders for run in runs(folder.relative_to(RESULTS)) if run.get("seconds_train")]
        of = lambda key: ", ".join(sorted({str(config.get(key) or "–") for config in configs}))
        took = f"{min(seconds):.0f}" + (f" to {max(seconds):.0f}" if len(seconds) > 1 else "") if seconds else "–"
        table.append([kind, of("seed"), of("commit"), of("hardware"), of("precision_used"), of("torch"), of("date"), took])
    return table


def with_tables(text: str, found: list[list[list[str]]]) -> str:
    """The Markdown text with each table, known by its head, made anew."""
    for rows in found:
        lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
        lines.insert(1, "|" + "---|" * len(rows[0]))
        head = f"^{re.escape(lines[0])}\n"
        if len(re.findall(head, text, re.M)) != 1:
            raise ValueError(f"this is not the head of one table: {lines[0]}")
        text = re.sub(rf"{head}(\|.*\n)*", lambda _: "\n".join(lines) + "\n", text, flags=re.M)
    return text


def pages() -> dict[Path, str]:
    """README.md and results/README.md as the records have them."""
    found = {ROOT / "README.md": tables(), RESULTS / "README.md": [*sparsehead_tables(), list_of_runs()]}
    return {path: with_tables(path.read_text(), own) for path, own in found.items()}


# ------------------------------------------------------------------------------------------------------------ pictures
def draw_run(plt, folder: Path) -> None:
    """curves.png of an image run: its loss; and of each dimension how often it is active and how consistent it then is, where that
    is on record, else what else was logged per epoch."""
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = epochs.pop()
    figure, (left, right) = plt.subplots(1, 2, figsize=(5, 1.9), layout="constrained")
    if epochs:
        left.plot([e["epoch"] for e in epochs], [e["loss"] for e in epochs])
        left.set(xlabel="epoch", ylabel="loss")
    else:
        shown = {key: value for key, value in last.items() if key in ("lp1", "knn5") or key.startswith("finetune") and key.endswith("top1")}
        left.barh([*shown], [*shown.values()])
        left.set(xlabel="%")
    if columns := dimensions(folder):
        for key, label in (("cons", "class"), ("background_cons", "background")):
            if key in columns:
                right.scatter(columns["act"], 100 * columns[key], 3, label=label)
        right.set(xlabel="a dimension's activation rate", ylabel="consistency, %", ylim=(0, 105))
        right.legend(fontsize=6)
    else:
        for key in ("act", "spread", "open", "unused_columns"):
            if epochs and key in epochs[0]:
                right.plot([e["epoch"] for e in epochs], [e[key] for e in epochs], label=key)
        right.set(xlabel="epoch", ylim=(-0.05, 1.1), visible=bool(epochs))
        if right.lines:
            right.legend(fontsize=6)
    figure.suptitle(folder.name, fontsize=7)
    figure.savefig(folder / "curves.png", dpi=80)
    plt.close(figure)


def draw_landscape(plt, folder: Path) -> None:
    """curves.png of a landscape run: minimum max-cosine, mean over seeds, a panel per experiment."""
    with np.load(folder / "curves.npz") as curves:
        settings = {}
        for key in curves.files:
            if key.endswith("/min"):
                settings.setdefault(key.split("/")[0], []).append(key.removesuffix("/min"))
        figure, panels = plt.subplots(1, len(settings), figsize=(2.1 * len(settings) + 0.6, 1.9), layout="constrained", squeeze=False, sharey=True)
        for panel, (experiment, own) in zip(panels[0], settings.items()):
            for setting in own:
                panel.plot(curves[f"{setting}/lr_times_steps"], curves[f"{setting}/min"].mean(1), linewidth=1, label=setting.split("/", 1)[1])
            panel.set(title=experiment, xlabel="lr × steps", ylim=(0, 1), xscale="log" if experiment == "budget" else "linear")
            panel.legend(fontsize=4, loc="lower right")
        panels[0][0].set_ylabel("min max-cosine")
        figure.savefig(folder / "curves.png", dpi=80)
        plt.close(figure)


def draw_backgrounds(plt, path: Path) -> None:
    """The activation rate of each dimension that stands for a background over that background's frequency in the data: on the line it
    is active on all its images. Above, how many dimensions a run has there."""
    found = {title: background_dimensions(name) for title, name in BACKGROUND_ROWS.items()}
    if not all(of_each[0] for of_each in found.values()):
        return
    draw = np.random.default_rng(0)
    figure, panels = plt.subplots(1, len(found), figsize=(12, 3.2), layout="constrained", sharey=True)
    for panel, (title, of_each) in zip(panels, found.items()):
        for frequency, rates in zip(common.BACKGROUNDS.values(), of_each):
            pooled = np.concatenate(rates)
            panel.scatter(frequency + draw.uniform(-0.008, 0.008, len(pooled)), pooled, 6, color="C0", alpha=0.4)
            panel.annotate(f"{len(pooled) / len(rates):.0f}", (frequency, 0.43), ha="center", fontsize=8)
        panel.plot([0, 0.42], [0, 0.42], color="grey", linewidth=0.8)
        panel.set(title=f"{title}, {len(of_each[0])} seeds", xlabel="frequency of the dimension's background", ylim=(0, 0.46))
    panels[0].set_ylabel("activation rate of the dimension")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def side_by_side(plt, picture: str, methods: dict[str, str], path: Path) -> None:
    """One picture out of the run folders of several methods, seed 1, where these are still there."""
    files = [ROOT / "runs" / f"shapes-{name}-seed1" / picture for name in methods.values()]
    if not all(file.exists() for file in files):
        return
    images = [plt.imread(file) for file in files]
    height, width = images[0].shape[:2]
    figure, panels = plt.subplots(1, len(files), figsize=(12, 12 / len(files) * height / width + 0.3), layout="constrained")
    for panel, title, image in zip(panels, methods, images):
        panel.imshow(image)
        panel.set_title(title)
        panel.axis("off")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def draw() -> None:
    """Every picture that is made of records; curves.png only where there is none yet."""
    if not (plt := common.pyplot("the pictures stay as they are")):
        return
    plt.rcParams.update({"font.size": 7})
    for folder in sorted(path.parent for path in RESULTS.rglob("config.json")):
        if (folder / "curves.png").exists():
            continue
        if (folder / "curves.npz").exists():
            draw_landscape(plt, folder)
        elif (folder / "metrics.jsonl").exists():
            draw_run(plt, folder)
    plt.rcParams.update({"font.size": 9})
    draw_backgrounds(plt, ROOT / "assets" / "background-rates.png")
    side_by_side(plt, "active_images.png", {"SimCLR": "simclr", "NCL": "ncl", "BayesNCL": "bayesncl"}, ROOT / "assets" / "active-images.png")
    side_by_side(plt, "dimensions.png", {"SimCLR": "simclr", "NCL": "ncl"}, ROOT / "assets" / "correlation.png")


def write() -> None:
    """Put the tables and the pictures where they belong."""
    for path, text in pages().items():
        path.write_text(text)
    draw()


if __name__ == "__main__":
    write()
