"""Make the runs that the pages show and record them in results/<study>-<row>-seed<seed>/. What is recorded is skipped
and what was interrupted goes on. To make a run anew, delete results/<name> and runs/<name> first.

    python tools/study.py shapes              the built-in data set, every method and ablation: three hours on two cores
    python tools/study.py cifar10-cpu         10,000 images of CIFAR-10, ResNet-8: three hours on two cores
    python tools/study.py cifar100-cpu        all of CIFAR-100, ResNet-8, after 5, 10 and 20 epochs: five hours
    python tools/study.py cifar10 cifar100    the papers' recipes for 200 epochs, for a GPU
    python tools/study.py shapes --rows ncl bayesncl --seeds 1 2        --help lists what else there is
    python tools/report.py                    then put the numbers into the pages

On a CPU as many runs at a time as it has cores, each on one thread, which does more than one run on all. Ctrl-C,
SIGTERM and --minutes end the study and its runs, which lose what follows their last checkpoint (--minutes: an epoch).
"""
import argparse
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import torch

import report
import sparsity
from report import ROOT, common  # common.py of the folder above
import interpret

RUNS = ROOT / "runs"
LARS, RECIPE = ["ncl-lars", "bayesncl-lars"], "--preset cifar100 --warmup 1"  # the papers' recipe
ROWS = {  # row: a program and its flags
    **{row: f"{row.split('-')[0]}.py" for row in ("simclr", "ncl", "bayesncl", "simsiam", "mmncl", *LARS)},
    **{f"{method}-spectral": f"{method}.py --loss spectral" for method in ("simclr", "ncl")},
    "ncl-topk": "ncl.py --topk 64", "bayesncl-low-prior": "bayesncl.py --prior 0.3 --kl-weight 1e-3",
    "mmncl-tau-0.05": "mmncl.py --temperature 0.05", "bayesncl-untuned": "bayesncl.py",  # with the authors' ρ and λ
    **{f"bayesncl-{gate}": f"bayesncl.py --gate {gate}" for gate in ("gumbel", "soft")},
    "bayesncl-no-detach": "bayesncl.py --no-detach", "bayesncl-no-kl": "bayesncl.py --kl-weight 0",
    "bayesncl-1-layer": "bayesncl.py --gate-layers 1", "bayesncl-3-layers": "bayesncl.py --gate-layers 3",
    "bayesncl-ipw": "bayesncl.py --gate none --similarity ipw", "simsiam-zero-init": "simsiam.py --zero-init-residual",
    **{f"simsiam-no-{part}": f"simsiam.py --no-{part}" for part in ("stop-grad", "predictor")},
    **{f"sparsehead-simclr-plain-{h}": f"sparsehead.py --sparse-weight 0 --head {h}" for h in ("linear", "none")},
    **{f"sparsehead-simclr-{weight}": f"sparsehead.py --sparse-weight {weight}" for weight in ("1e-2", "1e-1")},
    **{f"sparsehead-simclr-prox-{weight}": f"sparsehead.py --prox --sparse-weight {weight}" for weight in (1, 3, 10)},
    "clip": "mmncl.py --activation none", "clip-tau-0.05": "mmncl.py --activation none --temperature 0.05",
}
LABELLED = {f"{name}{head}{kind}": f"nce.py {loss} {heads} {flags}"
            for head, heads in (("", ""), ("-mlp", "--head mlp")) for name, loss, kind, flags in (
                ("ce", "--loss ce", "", ""), ("nce", "", "", ""), ("nce", "", "-weights", "--weights non-negative"))}
BASES = {f"sparsehead-{base}{kind}": f"sparsehead.py --base {base} --sparse-weight {weight}"
         for base in ("simclr", "byol", "barlow", "vicreg", "wmse", "swav", "ssl-hsic")
         for kind, weight in (("", "1e-4"), ("-plain", "0"))}
GRID = {f"bayesncl-prior{rho}-kl-weight{weight}": f"bayesncl.py --prior {rho} --kl-weight {weight}"
        for rho in ("0.1", "0.3", "0.5", "0.8", "0.95") for weight in ("3e-6", "3e-5", "3e-4", "3e-3", "3e-2")}
EARLY = {f"{row}-after-{epochs}":  # of checkpoints that on_the_way() keeps
         f"{row.split('-')[0]}.py --eval-only runs/{{study}}-{row}-seed{{seed}}/checkpoint-{epochs}.pt"
         for row in ("ncl", "bayesncl", *LARS) for epochs in (5, 10)}
ROWS |= LABELLED | BASES | GRID | EARLY | sparsity.by_rows(sparsity.PROGRAMS)
METHODS, SEEDS = ["simclr", "ncl", "bayesncl", "simsiam", "sparsehead-simclr"], [1, 2, 3, 4, 5]
SPECTRAL = ["simclr-spectral", "ncl-spectral"]
GATE = [f"bayesncl-{kind}" for kind in ("gumbel", "soft", "no-detach", "1-layer", "3-layers")]  # the paper's ablations
OURS = [*(f"bayesncl-{kind}" for kind in ("no-kl", "low-prior", "ipw")), "ncl-topk", "mmncl-tau-0.05", "clip-tau-0.05",
        *(row for row in ROWS if row.startswith(("sparsehead-simclr-1", "sparsehead-simclr-p", "simsiam-")))]
AT_200 = dict.fromkeys([*METHODS[:3], "ncl-topk"], [1, 2, 3]) | dict.fromkeys([*GATE, "simsiam", *BASES], [1])
RATES = dict.fromkeys(METHODS[:3], "0.01 0.2 0.2") | dict.fromkeys(["sparsehead-simclr", "sparsehead-simclr-plain"],
    "0.05 0.2 0.2") | {"scratch": "0.01 0.05 0.2"}  # for 1, 10, 100 % of the labels: seed 1's best, on held-out images
BAYES, CPU = "--prior 0.8 --kl-weight 3e-4", "--dataset cifar10 --preset default --arch resnet8 --epochs 20"
TRIED = ["ncl", *(f"bayesncl-prior{rho}-kl-weight{weight}" for rho in (0.3, 0.5, 0.8) for weight in ("3e-5", "3e-4"))]
STUDIES = {  # study: (flags of every run, row → seeds, row → flags of its own); why these: results/README.md
    "shapes": ("", dict.fromkeys([*METHODS, *LABELLED, "mmncl", "clip"], SEEDS)
               | dict.fromkeys([*GATE, *OURS], [1, 2, 3]), {"ncl-topk": "--topk 16"}),
    "cifar10-cpu": (f"{CPU} --limit 10000", dict.fromkeys([*METHODS, "bayesncl-untuned", *LABELLED, *SPECTRAL,
                    "sparsehead-simclr-plain", "sparsehead-swav", "sparsehead-swav-plain"], [1, 2, 3]),
                    {"bayesncl": BAYES} | dict.fromkeys(SPECTRAL, "--optimizer adam --lr 2e-3")),
    "cifar10-held-out-cpu": (CPU.replace("cifar10", "cifar10-held-out"), dict.fromkeys(TRIED, [1, 2, 3]), {}),
    "shapes-bases": ("", dict.fromkeys(BASES, [1, 2, 3]), {}), "shapes-grid": ("", dict.fromkeys(GRID, [1, 2, 3]), {}),
    "shapes-sparsity": sparsity.study("shapes", "", SEEDS), "cifar10-cpu-page": (CPU, {"simclr": [1], "ncl": [1]}, {}),
    "cifar10-cpu-sparsity": sparsity.study("cifar10-cpu", f"{CPU} --limit 10000", [1, 2, 3], "--temperature 0.07"),
    "cifar100-cpu": (CPU.replace("cifar10", "cifar100") + " --checkpoint-every 5", dict.fromkeys([*METHODS[:3],
        "ncl-topk", *LARS, *EARLY], [1, 2, 3]), {"ncl-topk": "--topk 16"} | {r: RECIPE for r in ROWS if "lars" in r}),
    "simsiam-16px": ("--image-size 16 --batch-size 1000 --lr 0.4 --epochs 50", {"simsiam-no-stop-grad": [1, 2, 3]}, {}),
    **{data: (f"--dataset {data} --epochs 200", AT_200, {}) for data in ("cifar10", "cifar100")},
}


SELECTED = "shapes", "shapes-sparsity", "cifar10-cpu", "cifar10-cpu-sparsity", "cifar10", "cifar100"  # selection.py


def afterwards(study: str, row: str, seed: int) -> list[str]:
    """The programs in tools/ that a run is given to before it is recorded."""
    tune = f"tools/finetune.py --seed {seed} --lr"
    tuned = [f"{tune} {RATES[row]}"] if study == "shapes" and row in RATES else []
    scratch = [f"{tune} {RATES['scratch']} --from-scratch"] if tuned and row == "simclr" else []
    robust = ["tools/robustness.py"] * (study in ("shapes", "cifar10-cpu") and row in RATES)
    chosen = ["tools/selection.py"] * (study in SELECTED and " --eval-only" not in ROWS[row])
    return [*robust, *chosen, *tuned, *scratch, *["tools/words.py"] * row.startswith(("mmncl", "clip"))]


def commands(study: str, rows: list[str] | None, seeds: list[int] | None, extra: str) -> dict[str, list[list[str]]]:
    """The runs of a study, name → command lines; seeds outermost, what takes features or weights of others last."""
    flags, seeds_of, own = STUDIES[study]
    return {f"{study}-{row}-seed{seed}": [*map(shlex.split, [
                f"{ROWS[row]} {flags} {own.get(row, '')} {extra} --seed {seed}".format(study=study, seed=seed),
                *afterwards(study, row, seed)])]
            for later in (False, True) for seed in range(10) for row in rows or seeds_of
            if seed in (seeds or seeds_of.get(row, [1])) and later == ("runs/" in ROWS[row])}


def start(name: str, command: list[str], device: str, data_root: str) -> subprocess.Popen:
    """Begin a run in runs/<name>, go on with it, or give it to a tool; what that prints goes to runs/<name>.log."""
    RUNS.mkdir(exist_ok=True)
    folder, data = os.path.relpath(RUNS / name, ROOT), ["--data-root", data_root]
    if command[0].startswith("tools/"):
        command = [command[0], folder, *command[1:], *data]
    else:
        if "--eval-only" in command:  # which has no --resume
            shutil.rmtree(RUNS / name, ignore_errors=True)
        there = (RUNS / name / "config.json").exists()
        command = [*command, "--resume" if there else "--out", folder, "--device", device, *data]
    print(f"{name}: {shlex.join(command)}", flush=True)
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    with open(RUNS / f"{name}.log", "a") as log:
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                                env=os.environ | alone)


def on_the_way(name: str, seen: dict[str, int]) -> None:
    """Keep a run's checkpoint as checkpoint-<epochs>.pt, for EARLY, before the next takes its place."""
    path = RUNS / name / "checkpoint.pt"
    if name.startswith("cifar100-cpu") and path.exists() and path.stat().st_mtime_ns != seen.get(name):
        seen[name] = path.stat().st_mtime_ns
        shutil.copy(path, path.with_name(f"checkpoint-{common.load_checkpoint(path)['epochs']}.pt"))


def keep(name: str, code: int) -> bool:
    """Record a run that has ended with an exit code; whether it ended well."""
    if code:
        last = (RUNS / f"{name}.log").read_text().splitlines()[-1:]
        print(f"{name}: exit code {code}: {' '.join(last)}", file=sys.stderr, flush=True)
        return False
    (kept := report.RESULTS / name).mkdir(parents=True, exist_ok=True)
    findings = interpret.interpret(interpret.read_embedding(RUNS / name), "nonzero", controls=False)
    interpret.write_csv(kept / "dimensions.csv", findings)
    for file in (*(f"{tool}.json" for tool in report.TOOLS), "config.json", "metrics.jsonl"):  # which makes a record
        if (RUNS / name / file).exists():
            shutil.copy(RUNS / name / file, kept / file)
    print(common.table(name, report.record(kept)), flush=True)
    return True


def record_all(runs: dict[str, list[list[str]]], jobs: int, device: str, data_root: str, end: float) -> bool:
    """Make and record the runs not on record, `jobs` at a time, until monotonic() is `end`; whether all ended well."""
    waiting = [name for name in runs if not report.record(report.RESULTS / name)]
    running, seen, well, left = {}, {}, True, {name: [*commands] for name, commands in runs.items()}
    later = {name for name, commands in runs.items() if "runs/" in " ".join(commands[0])}  # takes what others leave
    try:
        while waiting or running:
            while waiting and len(running) < jobs and time.monotonic() < end and (
                    waiting[0] not in later or later.issuperset(running)):
                name = waiting.pop(0)
                running[name] = start(name, left[name].pop(0), device, data_root)
            time.sleep(0.1)
            for name, program in [*running.items()]:
                on_the_way(name, seen)
                if (code := program.poll()) == 0 and left[name]:
                    running[name] = start(name, left[name].pop(0), device, data_root)
                elif code is not None:
                    del running[name]
                    well &= keep(name, code)
            if (waiting or running) and time.monotonic() > end:
                sys.exit("--minutes are over; the same command goes on where the checkpoints are")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on where the checkpoints are")
    finally:  # no run outlives the study
        for program in running.values():
            program.terminate()
            program.wait()
    return well


def main() -> None:
    flags = argparse.ArgumentParser(prog="study.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("studies", nargs="+", choices=STUDIES, metavar="study", help=", ".join(STUDIES))
    flags.add_argument("--rows", nargs="+", choices=ROWS, metavar="row", help=f"these rows only: {', '.join(ROWS)}")
    flags.add_argument("--seeds", nargs="+", type=int, choices=range(10), metavar="seed", help="these only, 0 to 9")
    flags.add_argument("--jobs", type=int, help="runs at a time (default: one a core on a CPU, one on a GPU)")
    flags.add_argument("--minutes", type=float, default=math.inf, help="end after so many, with a checkpoint per epoch")
    flags.add_argument("--flags", default="", help="further flags of every run, such as --flags='--checkpoint-every 1'")
    flags.add_argument("--data-root", default="data", help="folder of the data sets (default: data)")
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of …-cpu…: always cpu")
    args = flags.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends the study as Ctrl-C does
    well, end = True, time.monotonic() + 60 * args.minutes
    args.flags += " --checkpoint-every 1" if args.minutes < math.inf else ""
    for study in args.studies:
        device = "cpu" if "-cpu" in study else args.device
        jobs = args.jobs or (torch.get_num_threads() if device == "cpu" else 1)
        well &= record_all(commands(study, args.rows, args.seeds, args.flags), jobs, device, args.data_root, end)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    common.launch(main)
