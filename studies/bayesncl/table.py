"""BayesNCL less NCL wherever both were trained, and what the gate keeps."""

from records import BAYESNCL_ON_CIFAR_100, COLUMNS, by_seed, cell, read, table, values

import pandas as pd

CLAIMS = "dictionaries/claims-"
FAIR = "dictionaries/fair-"
LONG = "cifar100/cifar100-long-"
SHORT = "authors/authors-cpu-"
WIDE = "bayesncl/wide-cpu-"
HEADINGS = ["LP@1", "LP@1 of z", "Cons.", "Cons. less shuffled", "adj.", "H_s"]

SHUFFLED = {"H_s less shuffled": ("entropy - shuffled_entropy", 2)}


def opened(run: str) -> str:
    """How many of a run's gates are open, where nearly all are."""
    return f"{100 * values(run, 'open').mean():.1f} % of gates open"


with_control = table(
    {
        "built-in data": f"{FAIR}shapes-bayesncl − {FAIR}shapes-ncl",
        "CIFAR-10, papers' recipe": f"{CLAIMS}cifar10-bayesncl-lars − {CLAIMS}cifar10-ncl-lars",
        f"CIFAR-10, `default`, λ = 3e-4 ({opened(f'{FAIR}cifar10-bayesncl')})": (
            f"{FAIR}cifar10-bayesncl − {FAIR}cifar10-ncl"
        ),
        "CIFAR-100, 10,000 images": f"{CLAIMS}cifar100-10k-bayesncl − {CLAIMS}cifar100-10k-ncl",
        "CIFAR-100, 200 epochs": f"{LONG}bayesncl − {LONG}ncl",
        "CIFAR-100, 5,000 images": f"{SHORT}bayesncl-ours − {SHORT}ncl-ours",
        "CIFAR-100, 5,000 images, 512 features": f"{WIDE}bayesncl − {WIDE}ncl",
    },
    HEADINGS + list(SHUFFLED),
    SHUFFLED,
)
UNTUNED = "bayesncl/cifar10-cpu-bayesncl-untuned"
DEFAULT = "cifar100/cifar100-cpu-"
without_control = table(
    {
        "CIFAR-10, `default`, λ = 3e-5": f"{UNTUNED} − ncl/cifar10-cpu-ncl",
        f"CIFAR-100, `default` ({opened(f'{DEFAULT}bayesncl')})": (
            f"{DEFAULT}bayesncl − {DEFAULT}ncl"
        ),
    },
    [heading for heading in HEADINGS if "shuffled" not in heading],
)

repeated = {"": "CIFAR-100, papers' recipe, mean of four trainings"}
for heading in HEADINGS + list(SHUFFLED):
    formula, digits = (COLUMNS | SHUFFLED)[heading]
    without = 1 if "shuffled" in heading else 0
    of_seeds = by_seed(BAYESNCL_ON_CIFAR_100[without:], formula)
    repeated[heading] = cell(of_seeds, digits, True)
repeated["n"] = len(of_seeds)
before, after = with_control[:3], with_control[3:]
differences = pd.concat([before, pd.DataFrame([repeated]), after, without_control]).fillna("–")
differences = differences.rename(columns={"": "BayesNCL − NCL"})
OF_PAPER = {"CIFAR-10": "+2.68", "CIFAR-100": "+12.11"}  # of its Cons.
data = [label.split(",")[0] for label in differences["BayesNCL − NCL"]]
differences.insert(4, "paper: Cons.", [OF_PAPER.get(name, "–") for name in data])
PRESET = "bayesncl/shapes-bayesncl"
STE = "bayesncl/shapes-gate-ste"
gates = table(
    {
        "preset": PRESET,
        "ρ = 0.3, λ = 1e-3": "dictionaries/shapes-sparsity-bayesncl-2",
        "`--gate-lr 1e-3`": STE,
        "the authors', CIFAR-100, 200 epochs": f"{LONG}bayesncl",
        "the authors', CIFAR-100, 5,000 images": f"{SHORT}bayesncl-ours",
        "the same, 512 features": f"{WIDE}bayesncl",
        "`--gate-lr 1e-3`: no KL term − with": f"bayesncl/shapes-gate-no-kl − {STE}",
        "the same: Gumbel noise − none": f"bayesncl/shapes-gate-gumbel − {STE}",
        "the same: soft − hard": f"bayesncl/shapes-gate-soft − {STE}",
        "the same: not detached − detached": f"bayesncl/shapes-gate-no-detach − {STE}",
        "the same: one layer − two": f"bayesncl/shapes-gate-1-layer − {STE}",
        "the same: three layers − two": f"bayesncl/shapes-gate-3-layers − {STE}",
    },
    ["gates open", "live", "LP@1", "Cons.", "adj."],
    {"gates open": ("open", 2)},
)
gates = gates.rename(columns={"": "gate, built-in data unless named"})

# ---------------------------------------------- whether a gate decides image by image (theory_gate)
MEASURED = {
    "preset, seed 1": "runs/preset-bayesncl-seed",
    "`--gate-lr 1e-3`": "runs/shapes-gate-ste-seed",
    "the authors', CIFAR-100, 200 epochs": "weights/cifar100-bayesncl",
}
(record,) = [r for r in read("bayesncl") if r["run"] == "theory-gate-decides"]
lines = []
for label, path in MEASURED.items():
    runs = [found for name, found in record["results"]["runs"].items() if name.startswith(path)]
    of_runs = pd.DataFrame(runs)
    shown = {
        "α outside [0.01, 0.99], %": 100 * of_runs["clamped"],
        "live": of_runs["live_dims"],
        "of them open on 5 to 95 % of images": of_runs["live_decided_dims"],
        "their gates open, %": 100 * of_runs["live_m"],
        "active entries kept, %": 100 * of_runs["live_kept"],
    }
    cells = {heading: cell(found, 0, False) for heading, found in shown.items()}
    lines.append({"gate": label} | cells | {"n": len(runs)})
deciding = pd.DataFrame(lines)
