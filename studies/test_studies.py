"""Tests of studies/: small records and runs, naive loops, closed forms, and what is on record."""

import csv
import functools
import itertools
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bayesncl
import common
import interpret
import shapes
import simclr
from conftest import Parsed, program_of, refusal, run_program, write_files

import benchmark
import compare
import mutants
import notebook
import numpy as np
import pytest
import rarity
import records
import report
import run
import theory
import theory_gate
import theory_nmf
import torch
import torch.nn.functional as F


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of its own: the folders of a few questions, no run and no record."""
    monkeypatch.setattr(records, "STUDIES", tmp_path / "studies")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "RUNS", tmp_path / "runs")
    for question in "q", "ncl", "bayesncl", "simsiam", "landscape", "consistency":
        (tmp_path / "studies" / question).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # run.py has another
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def exit_code(command):
    """The code, or the text, with which a program ends."""
    with pytest.raises(SystemExit) as stop:
        run_program(command)
    return stop.value.code


def put(name, seed, **parts):
    """Write a record of question q."""
    records.put(records.file_of("q"), dict(run=name, seed=seed, settings={}) | parts)


def on_record(question="q"):
    """(run, seed) → record, in the order of the file."""
    return {records.by_name(found): found for found in records.read(records.file_of(question))}


# --------------------------------------------------------------------------- records.py: a record
Y = np.arange(40) % 3
BACKGROUND = np.arange(40) % 4  # of the five backgrounds the last has no image
PLANTED = np.random.default_rng(0).random((40, 8)) + 0.1  # more than half of the entries
PLANTED[:, 0] *= BACKGROUND == 0  # of the ten images four are of one class
PLANTED[:, 1] *= (BACKGROUND == 0) & (np.arange(40) > 12)  # two of six
PLANTED[:, 2] *= (BACKGROUND == 2) | (np.arange(40) == 5)  # five of eleven; ten have background 2
PLANTED[:, 7] = 0  # dead; of forty images of the four others fourteen are of one class
DIMENSIONS = dict(dims_sky=2, rate_sky=0.2, dims_sand=1, rate_sand=11 / 40, dead_dims=12.5)
DIMENSIONS["cons_weighted"] = 100 * (4 + 2 + 5 + 4 * 14) / (10 + 6 + 11 + 4 * 40)
DIMENSIONS |= dict.fromkeys("dims_grass rate_grass dims_water rate_water".split(), 0)
DIMENSIONS |= dict.fromkeys("dims_night rate_night".split(), 0)
EPOCHS = [{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": 1.5, "spread": 0.25}]
FINAL = {"event": "final", "epochs": 2, "lp1": 50.0, "act": None}
MEASURED = {"ap": 5.0, "cons": 6.0, "f1": None}
CONTROLS = {"shuffled": {"ap": 1.0}, "head": {"ap": 2.0, "cons": 3.0}, "rotated": {"ap": 4.0}}


def leave_run(folder, rule="nonzero"):
    """What a training, interpret.py and tools/words.py leave in a run's folder."""
    z = PLANTED.astype(np.float16)
    files = {
        "config.json": '{"method": "ncl", "dataset": "mine", "data_root": "."}',
        "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in [*EPOCHS, FINAL]),
        "embeddings.npz": dict(h=z[:, ::-1], z=z, y=Y, background=BACKGROUND),
        "interpret.json": json.dumps({"active": rule, "numbers": MEASURED} | CONTROLS),
        "words.json": '{"nameable": 7.0, "words": [["sky", 1]]}',
    }
    write_files(folder, files)
    return folder


@pytest.mark.parametrize("rule, top", {"nonzero": "", "top:0.01": "top_"}.items())
def test_a_record_is_what_a_runs_files_say(tmp_path, rule, top):
    folder = leave_run(tmp_path / "a-seed2", rule)
    found = records.of_run(folder)
    whole = interpret.interpret(interpret.read_embedding(folder), "nonzero", controls=False)
    expected = whole.numbers | {top + key: value for key, value in MEASURED.items()}
    for control, numbers in CONTROLS.items():
        expected |= {f"{control}_{key}": value for key, value in numbers.items()}
    z = torch.from_numpy(PLANTED.astype(np.float16))
    for prefix, y in ("", Y), ("background_", BACKGROUND):
        for k, value in records.precision_at(z, torch.from_numpy(y)).items():
            expected[f"{prefix}p_at_{k}"] = value
    assert found.pop("interpret") == expected | {"active": rule}
    assert found.pop("dimensions") == pytest.approx(DIMENSIONS, rel=1e-5)
    config = json.loads((folder / "config.json").read_text())
    known = dict(run="a", seed=2, settings=config, epoch=EPOCHS[-1], final=FINAL)
    assert found == known | {"words": {"nameable": 7}}


@pytest.mark.skipif(records.fcntl is None, reason="Windows has no such lock")
def test_programs_at_once_lose_no_record(repository):
    def put_one(seed):
        put("a" if seed > 5 else "b", seed, final={})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put_one, [11, 2, 9, 4, 5, 10, 7, 8, 1, 3, 6, 12]))
    put("b", 5, final={"lp1": 1})  # in the place of the former
    names = [("a", seed) for seed in range(6, 13)] + [("b", seed) for seed in range(1, 6)]
    assert [*on_record()] == names
    assert on_record()["b", 5]["final"] == {"lp1": 1}


@pytest.mark.skipif(records.fcntl is None, reason="Windows has no such lock")
@pytest.mark.parametrize("other", [{}, {"commit": "b"}, {"command": "nce.py"}])
def test_tools_add_to_the_record_of_this_run(repository, other):
    settings = dict(command="ncl.py", commit="a")
    put("a", 2, settings=settings)
    write_files(repository / "a-seed2", {"config.json": json.dumps(settings | other)})
    records.add(repository / "a-seed2", "robustness", {"h": 1.0})
    assert on_record()["a", 2].get("robustness") == (None if other else {"h": 1})


def test_what_pictures_show_is_kept_besides(repository):
    dimensions = repository / "studies/bayesncl/dimensions.csv"
    head = "run,seed,dimension,act,cons,class,background_cons,background_class"
    others = ["shapes-ncl,12,7,0.125,,1,,", "z,2,7,0.5,0.75,1,1,3"]
    dimensions.write_text("\n".join([head, "shapes-ncl,2,7,1,1,1,1,1", *others]))
    dense = leave_run(repository / "shapes-ncl-seed2")
    collapsed = leave_run(repository / "shapes-simsiam-no-stop-grad-seed2")
    codes = repository / "landscape-lr-2"
    write_files(codes, {"config.json": "{}", "results.json": "[3]", "curves.npz": b"curves"})
    for question in "ncl", "simsiam", "landscape":
        for folder in dense, collapsed, codes:
            records.keep(question, folder)
    with open(dense / "dimensions.csv") as file:
        for line in csv.DictReader(file):
            others.append(",".join(["shapes-ncl,2", *[line[key] for key in head.split(",")[2:]]]))
    assert dimensions.read_text().splitlines() == [head, *others]
    columns = records.kept_dimensions("bayesncl")
    assert {name: [*seeds] for name, seeds in columns.items()} == {"shapes-ncl": [12, 2], "z": [2]}
    assert columns["z"][2][["act", "background_class"]].tolist() == [(0.5, 3)]
    name = "shapes-simsiam-no-stop-grad,2"
    text = f"run,seed,epoch,spread,loss\n{name},1,,2.5\n{name},2,0.25,1.5\n"
    assert (repository / "studies/simsiam/curves.csv").read_text() == text
    assert (repository / "studies/landscape/landscape-lr-2.npz").read_bytes() == b"curves"
    kept = {path.name for path in repository.glob("studies/*/*")} - {"records.jsonl"}
    assert kept == {"dimensions.csv", "curves.csv", "landscape-lr-2.npz"}
    of_codes = dict(run="landscape-lr-2", settings={}, results=[3])
    assert on_record("ncl")["landscape-lr-2", 0] == of_codes


# -------------------------------------------------------------------------------- report.py: cells
RUNS = [  # run, number, its values of seeds 0 to 3
    ("a", "lp1", None, 1, 2, 6),
    ("a", "finetune_0.01_top1", None, 4, 7, 13),
    ("a", "scratch_0.01_top1", None, 1, 2, 3),
    ("a", "lead", None, 1, 2, 6),
    ("a", "corr", None, -0.004, None, 1),
    ("a", "phi", None, -0.04, 0, 0),
    ("b", "lp1", 9, 0.5, 0.5, 5),
    ("b", "finetune_0.01_top1", 9, 2, 4, 8),
    ("b", "scratch_0.01_top1", 0, 1, 3, 6),
    ("c", "lp1", None, 2.5, 0.5, 8),
]
CELLS = {  # runs, "A" or "A − B", heading, seeds: the cell
    "mean and deviation": ("a", "LP@1", "", "3.0 ± 2.6"),  # √(14 / 2)
    "a link's seeds": ("a-seeds1-2", "LP@1", "", "1.5"),
    "the row's seeds first": ("a-seed3", "LP@1", "2", "2.0"),
    "a difference by seed": ("a − b", "LP@1", "", "+1.0 ± 1.2"),  # of .5, 1.5, 1: 4.303 · .5 / √3
    "pairs together": ("a − b, c − b", "LP@1", "", "+1.3 ± 1.1"),  # 2.571 · 1.08 / √6
    "within a run": ("a", "1 % − scratch", "", "+6.0 ± 9.0"),  # of 3, 5, 10: 4.303 √13 / √3
    "of two differences": ("a − b", "1 % − scratch", "2, 3", "+6.0 ± 25.4"),  # 12.706 · 2.83 / √2
    "a lead": ("a", "adj. − random directions", "", "+3.0 ± 6.6"),
    "no plus zero": ("b − b", "LP@1", "1", "0.0"),
    "no minus zero": ("a", "φ", "1", "0.0"),
    "a small minus": ("a", "Corr.", "1", "−0.004"),
    "none on record": ("a", "Act.", "", "–"),
    "n of all pairs": ("a − b, c − b", "n", "", "6"),
}
REFUSED_CELLS = [  # the same, and words of the line
    ("a", "LP@1", "1, 7", "shows a, seeds 1, 7"),
    ("a", "Corr.", "", "no number corr"),
    ("b − a", "LP@1", "", "no seed 0"),
]


@pytest.fixture
def shown(repository):
    """RUNS as records, whose final numbers count, or those of a tool."""
    numbers = defaultdict(dict)
    for name, key, *values in RUNS:
        for seed, value in enumerate(values):
            if value is not None:
                numbers[name, seed][key] = value
    for (name, seed), final in numbers.items():
        others = dict(epoch={"lp1": 99}, dictionaries={"act": 1}, stability={"act": None})
        put(name, seed, final=final, **others)


def cell(names, heading, seeds):
    """A cell that held a 9, of a page in a folder beside q, in a row that links to runs."""
    label = re.sub(r"[\w-]+", r"[\g<0>](../q/records.jsonl#\g<0>)", names)
    page = f"| x | {heading} | seeds | LP@1 |\n|--|--|--|--|\n| {label} | 9 | {seeds} | 9 |\n"
    line = report.with_tables(page, records.STUDIES / "ncl").splitlines()[2]
    return report.cells_of(line)[1]


@pytest.mark.parametrize("names, heading, seeds, expected", CELLS.values(), ids=CELLS)
def test_a_cell_is_of_its_records(shown, names, heading, seeds, expected):
    assert cell(names, heading, seeds) == expected


def test_a_cell_without_records_is_refused(shown):
    for names, heading, seeds, told in REFUSED_CELLS:
        assert told in refusal(lambda: cell(names, heading, seeds))  # noqa: B023


@pytest.mark.parametrize("n", [2, 3, 7, 26, 200])
def test_an_interval_is_students(n):
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).normal(size=n)
    t = stats.t.ppf(0.975, min(n, 26) - 1)  # of more than 26 a little wide
    assert report.interval(values) == pytest.approx(t * stats.sem(values), rel=5e-4)


PAGE = """\
It is 3.0 ± 2.6. It was 3.75 once. Neither `1.25` nor [a](b-1.5.md).

| run | n | LP@1 | Act. | by hand |
|---|---|---|---|---|
| [A](records.jsonl#a), n = {n} | {n} | {lp1} | {act} | 7 |
| B, n = 9 | 9 | 9 | 9 | |

a | 9
"""
OLD = PAGE.format(n=9, lp1="?", act="4.5")
NEW = PAGE.format(n=3, lp1="3.0 ± 2.6", act="–")


def test_a_page_is_told_and_rewritten(shown, repository, capsys):
    for path in "README.md", "studies/README.md", "studies/q/README.md":
        (repository / path).write_text(OLD if "q" in path else "no table\n")
    page = repository / "studies/q/README.md"
    assert exit_code("report.py --check") == 1
    row, sentence = capsys.readouterr().out.splitlines()
    assert row.endswith("by the records: | [A](records.jsonl#a), n = 3 | 3 | 3.0 ± 2.6 | – | 7 |")
    assert sentence == "studies/q/README.md, in no table: It was 3.75 once."
    assert page.read_text() == OLD
    run_program("report.py")
    assert page.read_text() == NEW
    assert exit_code("report.py --check") == 0


# ------------------------------------------------------------------------ run.py: a small runs.txt
PROGRAM = """# Every program of a small repository.
import json, os, shutil, sys, time
from pathlib import Path
name, *words = sys.argv
flags = dict(zip(words, words[1:]))
folder = Path(flags.get("--out") or flags.get("--resume") or words[0])
folder.mkdir(parents=True, exist_ok=True)
with open(folder / "calls.txt", "a") as file:
    print(os.environ["OMP_NUM_THREADS"], *sys.argv, file=file)
if name == "interpret.py":
    (folder / "interpret.json").write_text('{"active": "nonzero", "numbers": {"ap": 8.0}}')
elif name == "tools/words.py":
    (folder / "words.json").write_text('{"nameable": 9.0}')
elif name == "sparse_coding.py":
    (folder / "config.json").write_text("{}")
    (folder / "results.json").write_text("[5]")
else:
    if name == "sae.py" and not Path(words[0]).exists():
        sys.exit(words[0] + " is not there")
    Path("now", folder.name).write_text(str(os.getpid()))
    time.sleep({"9": 30}.get(flags.get("--lr"), 0.6))
    with open("together.txt", "a") as file:
        file.write(str(len(os.listdir("now"))))
    Path("now", folder.name).unlink()
    shutil.copytree("done", folder, dirs_exist_ok=True)
    if flags.get("--lr") == "7":
        sys.exit("a reason")
    if flags.get("--lr") == "8":
        (folder / "embeddings.npz").unlink()
"""
RUNS_TXT = """# A comment.

a         1-2  python ncl.py --lr 0.1
    python tools/words.py RUN --seed {seed}
later     2    python sae.py runs/b-cpu-seed{seed}/metrics.jsonl
b-cpu     2,9  python ncl.py
noted     -    python sparse_coding.py --seeds 5
anew      -    python sparse_coding.py --seeds 5
complete  -    python sparse_coding.py --seeds 5
failing   1    python ncl.py --lr 7
spoilt    1    python ncl.py --lr 8
lost      1    python sae.py runs/nowhere-seed1/metrics.jsonl
"""
LEFT = {  # what an earlier call left in runs/
    "a-seed2/config.json": '{"command": "ncl.py --lr 1e-1 --seed 2 --device cpu --out x"}',
    "b-cpu-seed2/mine.txt": "mine",
    "noted/config.json": "{}",
    "noted/memory/note.pt": "",
    "noted/results.json": "[1]",
    "anew/config.json": "{}",
    "anew/calls.txt": "before",
    "complete/config.json": "{}",
    "complete/results.json": "[1]",
}
ADDED = "--device cuda --data-root d --out"
CALLS = f"""\
7 ncl.py --lr 0.1 --compile --seed 1 {ADDED} runs/a-seed1
7 interpret.py runs/a-seed1
7 tools/words.py runs/a-seed1 --seed 1 --data-root d
7 ncl.py --compile --device cuda --data-root d --resume runs/a-seed2
7 interpret.py runs/a-seed2
7 tools/words.py runs/a-seed2 --seed 2 --data-root d
7 sparse_coding.py --seeds 5 --out runs/anew
1 ncl.py --compile --seed 2 --device cpu --data-root d --out runs/b-cpu-seed2
1 interpret.py runs/b-cpu-seed2
7 ncl.py --lr 7 --compile --seed 1 {ADDED} runs/failing-seed1
7 sae.py runs/b-cpu-seed2/metrics.jsonl --compile --seed 2 {ADDED} runs/later-seed2
7 interpret.py runs/later-seed2
7 sparse_coding.py --resume runs/noted
7 ncl.py --lr 8 --compile --seed 1 {ADDED} runs/spoilt-seed1
7 interpret.py runs/spoilt-seed1
"""


@pytest.fixture
def planted(repository, monkeypatch):
    """Write runs.txt; every program of the repository is PROGRAM."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    names = "ncl.py", "sae.py", "interpret.py", "sparse_coding.py", "tools/words.py"
    write_files(repository, dict.fromkeys(names, PROGRAM))
    leave_run(repository / "done")
    (repository / "now").mkdir()
    return (repository / "studies/q/runs.txt").write_text


def calls():
    """What the programs of all runs were given, by their folders."""
    return "".join(path.read_text() for path in sorted(Path().glob("runs/*/calls.txt")))


def test_runs_are_made_measured_and_recorded(planted, capsys):
    planted(RUNS_TXT)
    write_files(run.RUNS, LEFT)
    put("b-cpu", 9, final={"lp1": 3})
    command = "run.py q --jobs 3 --device cuda --data-root d --flags=--compile"
    assert exit_code(command) == 1
    assert calls() == CALLS
    assert max(Path("together.txt").read_text()) == "3"
    assert (run.RUNS / "b-cpu-seed2/mine.txt").exists()
    told = capsys.readouterr().err
    assert "failing-seed1: exit code 1: a reason" in told
    assert "spoilt-seed1: not recorded" in told
    assert "lost-seed1 is left out: it reads runs/nowhere-seed1/metrics.jsonl" in told
    found = on_record()
    images = ("a", 1), ("a", 2), ("b-cpu", 2), ("b-cpu", 9), ("later", 2)
    assert found.keys() == {*images, ("noted", 0), ("anew", 0), ("complete", 0)}
    record = found["a", 2]
    assert (record["final"], record["epoch"]) == (FINAL, EPOCHS[-1])
    assert (record["interpret"]["ap"], record["words"]) == (8, {"nameable": 9})
    assert [found[name, 0]["results"] for name in ("noted", "anew", "complete")] == [[5], [5], [1]]
    assert exit_code(f"{command} --rows a later *-cpu anew") == 0
    assert calls() == CALLS
    assert "q: 6 of 6 runs are on record" in capsys.readouterr().out


REFUSED = [  # a row of runs.txt, the command that began its folder, words of the refusal
    ("a 1 python ncl.py", "ncl.py --seed 1 --epochs 2", "begun with epochs 2"),
    ("a 1 python ncl.py", "simclr.py --seed 1", "begun by simclr.py"),
    ("a one python ncl.py", "ncl.py --seed 1", "line 2"),
    ("    ncl.py RUN", "ncl.py --seed 1", "line 2"),
]


def test_other_flags_and_other_lines_are_refused(planted):
    for row, begun, told in REFUSED:
        planted(f"b 1 python ncl.py\n{row}\n")
        write_files(run.RUNS / "a-seed1", {"config.json": json.dumps({"command": begun})})
        assert told in refusal("run.py q")
    assert calls() == ""


@pytest.mark.parametrize("flags, told", [("--minutes 0.02", "minutes"), ("", "interrupted")])
def test_an_end_ends_the_runs_too(planted, flags, told):
    planted("a 1 python ncl.py --lr 9\n")

    def terminate():
        while not Path("now/a-seed1").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    if not flags:
        threading.Thread(target=terminate).start()
    assert told in exit_code(f"run.py q {flags} --device cpu")
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("now/a-seed1").read_text()), 0)


ASKED = [  # rows, seeds: the runs, seed by seed, what reads another last
    (None, None, "noted a-seed1 a-seed2 b-cpu-seed2 b-cpu-seed9 later-seed2"),
    (["b-cpu", "noted"], [9, 0], "noted b-cpu-seed0 b-cpu-seed9"),
    (["*a*"], [2, 1], "a-seed1 a-seed2 later-seed1 later-seed2"),
]


def test_runs_are_those_that_are_asked_for(planted):
    planted(RUNS_TXT.partition("anew")[0])
    for rows, seeds, expected in ASKED:
        assert " ".join(run.commands("q", rows, seeds, "")) == expected


@pytest.mark.slow
def test_a_run_on_a_pretended_gpu_is_recorded(planted, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = (records.ROOT / "studies/gpu/runs.txt").read_text()
    planted(re.search("^cifar100-bayesncl .*", text, re.M).group())
    argv = [str(records.ROOT / name) for name in ("tools/pretend_gpu.py", "bayesncl.py")]
    lines = f"import runpy, sys; sys.argv[:1] = {argv}; "
    write_files(".", {"bayesncl.py": f"{lines}runpy.run_path(sys.argv[0], None, '__main__')"})
    np.savez("cifar100.npz", **shapes.draw(48, 40))
    short = "--arch resnet8 --head-hidden 32 --limit 48 --batch-size 16 --epochs 1 --warmup 0"
    assert exit_code(f"run.py q --seeds 1 --device cuda --data-root . --flags='{short}'") == 0
    (record,) = on_record().values()
    assert record["settings"]["device"] == "cuda"
    assert {"epoch", "final", "dimensions", "interpret"} <= record.keys()


# ---------------------------------------------------------------------------------------- theory.py
def naive_one_mask(S, i, D1, D2):
    """The loss of latent i, of views with the masks D1, D2; S: similarities of all latents."""
    logits = [2 * D1[i] * D2[j] * S[i][j] for j in range(3)]
    return math.log(sum(map(math.exp, logits))) - logits[i]


def naive_own_masks(S, i, D1, D2):
    """The same where each negative has a mask of its own, over which exp is averaged."""
    kept = [0.4 * math.exp(2 * D1[i] * S[i][j]) + 0.6 for j in range(3)]
    return math.log(sum(kept)) - 2 * D1[i] * D2[i] * S[i][i]


READINGS = [(naive_one_mask, theory.one_mask), (naive_own_masks, theory.mask_per_negative)]


@pytest.mark.parametrize("naive, reading", READINGS, ids=["(A.17)", "(9)"])
def test_a_loss_is_the_mean_over_masks(naive, reading):
    W = F.normalize(torch.randn(4, 3, 3, dtype=torch.float64), dim=1)
    expected = []
    for S in (F.relu(W).mT @ F.relu(W)).tolist():
        total = 0
        for D in itertools.product((0, 1), repeat=6):
            p = 0.4 ** sum(D) * 0.6 ** (6 - sum(D))
            total += p * sum(naive(S, i, D[:3], D[3:]) for i in range(3)) / 3
        expected.append(total)
    assert theory.loss_9(W, 0.4, 2.0, reading).tolist() == pytest.approx(expected)


def test_the_closed_form_is_what_steps_give():
    M, _ = torch.linalg.qr(torch.randn(15, 6, dtype=torch.float64))
    Wo, Wt = torch.randn(2, 9, 15, dtype=torch.float64)
    lrs, decay, keep, kappa, noise = [0.3, 0.1, 0.2], 0.95, 0.6, 0.4, 0.2
    moment = keep**2 * (kappa * M @ M.T + noise**2 * torch.eye(15))
    A, B = Wo, Wt
    for lr in lrs:
        A, B = decay * A + 2 * lr * B @ moment, decay * B + 2 * lr * A @ moment
    learnt = theory.linear_descent(Wo, Wt, M, lrs, decay, keep, kappa, noise)
    assert torch.allclose(torch.stack(learnt), torch.stack([A, B]))
    C1, C2, printed = theory.closed_form(lrs[:2], decay, keep, kappa, noise)
    after_two, _ = theory.linear_descent(Wo, Wt, M, lrs[:2], decay, keep, kappa, noise)
    assert torch.allclose(after_two @ M, C1 * Wo @ M + C2 * (Wo + Wt) @ M)
    a, b = (2 * lr * keep**2 * (kappa + noise**2) for lr in lrs[:2])
    early = a * (decay - a) * (decay - b) + b * (decay - b) * (decay + a)  # an index
    assert printed == pytest.approx(early)


@pytest.mark.slow
def test_theorems_hold_and_fail_as_the_page_says(tmp_path):
    run_program("theory.py --out", tmp_path / "new")
    rows = json.loads((tmp_path / "new/results.json").read_text())
    told = [f"{row['setting'].split()[0]} {row['verdict']}" for row in rows]
    holds = ["1(a) holds"] * 2 + ["1(b) holds"] * 3
    assert told == holds + ["1(b) fails", "2 holds", "2 fails", "3 holds", "3 fails"]
    measured = [rows[k]["end_mean"] for k in (0, 2, 8, 9)]
    assert measured == pytest.approx([1.5, 1.315, 0.3 * 0.5**2 / 0.7, 0.9**3 / 0.4], rel=1e-3)


# ------------------------------------------------------------------------------------ theory_nmf.py
# Overlap, which images are mixed, and whether the factor is unique.
OVERLAPS = [(0.0, "all", True), (0.4, "some", True), (0.4, "all", False)]


@pytest.mark.parametrize("overlap, mixed, unique", OVERLAPS, ids=str)
def test_solutions_agree_where_unique(overlap, mixed, unique):
    prior, given = theory_nmf.co_occurrence(overlap, mixed)
    own = torch.eye(4).repeat_interleave(6, 0).bool()
    shares = [prior.sum(), *given.sum(0), *given.masked_fill(own, 0).sum(0)]
    assert shares == pytest.approx([1] * 5 + [overlap] * 4)
    joint = sum(prior[c] * torch.outer(given[:, c], given[:, c]) for c in range(4))
    p, A = theory_nmf.normalised(theory_nmf.joint_of(prior, given))
    assert torch.allclose(A, joint / torch.outer(joint.sum(1), joint.sum(0)).sqrt())
    factor = prior.sqrt() * given / p.sqrt()[:, None]  # Theorem 4's
    assert torch.allclose(factor @ factor.T, A)

    solutions = theory_nmf.factorise(A, 4, True, seeds=4, steps=1000)
    assert (solutions @ solutions.mT - A).abs().max() < 1e-3
    assert solutions.min() >= 0
    assert (theory_nmf.between_seeds(solutions) > 0.999) == unique
    assert (theory_nmf.agreement(solutions[0], factor) > 0.999) == unique
    signed = theory_nmf.factorise(A, 4, False, seeds=2, steps=800)
    assert (signed @ signed.mT - A).abs().max() < 1e-3
    assert theory_nmf.between_seeds(signed) < 0.95
    verdicts = [row["verdict"] for row in theory_nmf.theorem_4(solutions[0])]
    assert (verdicts == ["holds"] * 2) == (overlap == 0)
    assert theory_nmf.theorem_2()["verdict"] == "holds"  # the loss is that of the factorisation
    G, _ = torch.linalg.qr(torch.randn(9, 4))
    assert theory_nmf.agreement(G, -G[:, [2, 0, 3, 1]]) == pytest.approx(1)
    assert theory_nmf.agreement(G[:, :2], G[:, 1:3]) == pytest.approx(0.5)


# ----------------------------------------------------------------------------------- theory_gate.py
def test_a_gain_is_the_loss_without_a_feature():
    z1, z2 = theory_gate.planted(64)
    z = F.normalize(torch.cat([z1, z2]))
    for k in 0, 60, 99:
        kept = torch.arange(100) != k
        lost = simclr.nt_xent(z1[:, kept], z2[:, kept], 0.2) - simclr.nt_xent(z1, z2, 0.2)
        losses = []
        for parts in z[:, kept], z:
            logits = (parts @ parts.T / 0.2).fill_diagonal_(-torch.inf)
            losses.append(F.cross_entropy(logits, torch.arange(128).roll(64)))
        gains = [theory_gate.gain(z1, z2, 0.2, norms_kept)[k] for norms_kept in (False, True)]
        assert torch.allclose(torch.stack(gains), torch.stack([lost, losses[0] - losses[1]]))


def test_pull_and_push_are_the_gradients_parts():
    def positives(z1, z2):
        return -F.cosine_similarity(z1, z2).mean() / 0.2

    z1, z2 = theory_gate.planted(64)
    z1[:, 3] = 0
    pull = torch.func.grad(positives)(z1, z2)
    push = torch.func.grad(simclr.nt_xent)(z1, z2, 0.2) - pull
    found = theory_gate.pull_and_push(z1, z2, 0.2)
    for part, gradient in zip(found, (pull, push)):
        means = [64 * gradient[z1[:, k] > 0, k].mean() for k in range(100)]
        assert torch.allclose(part, torch.stack(means).nan_to_num(), atol=1e-5)


def test_the_toy_has_planted_frequencies_and_gates():
    z1, z2 = theory_gate.planted(4000)
    expected = 0.9 * torch.tensor(theory_gate.FREQUENCIES).repeat_interleave(10)
    assert ((z1 > 0).float().mean(0) - expected).abs().max() < 0.03
    both = ((z1 > 0) & (z2 > 0)).float().mean(0)
    assert (both - 0.9 * expected).abs().max() < 0.03  # a view loses one in ten
    closed, opened = (theory_gate.train_gate(rho, 1, seed=0, steps=60) for rho in (0.01, 0.99))
    assert closed.mean() < 0.1 < 0.9 < opened.mean()  # a strong prior has its way


# --------------------------------------------------------------------------------------- rarity.py
def test_a_row_has_the_means_of_a_loop():
    draw = np.random.default_rng(0)
    by_chance = draw.random(2000)  # of 1, 2, … images
    n = [0, 1, 2, 2, 700, 1999, 2000, 0, 1]  # a thousandth of the images is 2
    cons = draw.random(9)

    def means(least):
        kept = [k for k in range(9) if n[k] >= least]
        own = 100 * np.mean([cons[k] for k in kept])
        chance = 100 * np.mean([by_chance[n[k] - 1] for k in kept])
        return own, chance, own - chance

    lines = [f"{count / 2000},{value}" for count, value in zip(n, cons)]
    found = rarity.consistencies(records.read_columns(["act,cons", *lines]), by_chance)
    expected = dict(zip(["Cons.", "by chance", "above"], means(least=1)))
    names = ["≥ 0.1 %", "≥ 0.1 %, by chance", "≥ 0.1 %, above"]
    expected |= dict(zip(names, means(least=2))) | {"live": 7, "below 0.1 %": 2}
    assert rarity.summary(*found, 2000) == pytest.approx(expected)
    assert [rarity.cell([1.0, 2.0]), rarity.cell([1.0, 2.0, 6.0])] == ["1.5", "3.0 ± 2.6"]


def test_what_the_gate_makes_dead_or_rare():
    #                       dead  dead  rare  made    made    frequent
    before = torch.tensor([0.000, 0.10, 5e-4, 0.1000, 0.5000, 0.6])
    behind = torch.tensor([0.000, 0.00, 4e-4, 0.0005, 0.0005, 0.3])
    found = rarity.behind_the_gate(before, behind)
    assert list(found.values()) == pytest.approx([2, 1, 3, 1, 10, 0.1], rel=1e-5)  # lower of two


# ------------------------------------------------------------------------------------- sparsity.py
def naive_stability(seeds, order):
    """stability() of embeddings, by greedy pairs; order: of the other seeds' images."""
    live = []
    for z in seeds:
        e = abs(z) / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-12)
        live.append(e[:, (e > 1e-5).any(0)])
    found = []
    for a in live:
        means = []
        for b in live:
            cosines = (a / np.linalg.norm(a, axis=0)).T @ (b / np.linalg.norm(b, axis=0))[order]
            total = 0
            while a is not b and min(cosines.shape):
                i, j = np.unravel_index(cosines.argmax(), cosines.shape)
                total += cosines[i, j]
                cosines = np.delete(np.delete(cosines, i, 0), j, 1)
            means.append(total / a.shape[1])
        found.append(sum(means) / (len(seeds) - 1))
    return found


def test_runs_are_measured_beside_other_seeds(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "STUDIES", tmp_path)
    draw = np.random.default_rng(0)
    z, h = {}, {}
    for name in "t-sparsity-ncl-8", "t-sparsity-simclr", "other-ncl":
        for seed in (1, 2, 4):
            folder = tmp_path / f"{name}-seed{seed}"
            z[folder] = draw.normal(size=(40, 6)).clip(0).astype(np.float16)
            z[folder][:, : 3 - seed] = 0  # dead ones
            h[folder] = draw.normal(size=(40, 5)).astype(np.float16)
            config = dict(method="ncl", dataset=name[:5], data_root=".", seed=seed)
            files = {"metrics.jsonl": '{"event": "final", "epochs": 3}\n'}
            files |= {"embeddings.npz": dict(h=h[folder], z=z[folder])}
            write_files(folder, files | {"config.json": json.dumps(config)})
    (tmp_path / "a.log").write_text("lies beside runs")
    run_program("sparsity.py", *z, tmp_path / "a.log")
    told = capsys.readouterr().out
    folders = list(z)
    shuffled = torch.randperm(40, generator=torch.Generator().manual_seed(0)).numpy()
    for row in folders[:3], folders[3:6], folders[6:]:
        embeddings = [z[folder].astype(float) for folder in row]
        stable = naive_stability(embeddings, np.arange(40))
        by_chance = naive_stability(embeddings, shuffled)
        for i, judge in enumerate(folders[k] for k in (4, 5, 3)):  # SimCLR's of the next seed
            expected = dict(stability=stable[i], stability_chance=by_chance[i], stability_seeds=3)
            if row[0].name[0] == "t":
                activations = interpret.activate(interpret.unit(z[row[i]]), "nonzero")
                mono = interpret.mono_score(activations, interpret.unit_judge(h[judge]))
                expected["mono_simclr"] = np.nanmean(mono)
            left = json.loads((row[i] / "stability.json").read_text())
            assert left == pytest.approx(expected, rel=1e-5)
        assert re.search(rf"{row[0].name[:-6]} \| +3 \| +{np.mean(stable):.3f} \|", told)


# -------------------------------------------------------------------------------------- the lesson
def test_the_notebook_is_what_the_page_gives():
    notebook.main(["--check"])


@pytest.mark.slow
def test_the_notebooks_cells_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    short = "--epochs 1 --limit 256 --image-size 16 --batch-size 64 --device cpu"
    names = {}
    for cell in json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" or "git clone" in source:
            continue
        if not source.startswith("!"):
            exec(source, names)
        for command in re.findall("^!python (?!look)(.*)", source, re.M):
            run_program(command.replace(" --limit 2000", "").replace("--epochs 4", short))
    told = re.findall("Cons. of the background (.*)|more than (.*)", capsys.readouterr().out)
    (dense, _), (rotated, _), (_, moved), (ncl, _), (ncl_rotated, _), _ = told
    assert dense == rotated == ncl_rotated == "41.6" != ncl
    assert moved < "0.00001"


# ------------------------------------------------------------------------------------- reliability
def test_every_bug_of_the_list_can_be_put_in():
    rows = mutants.rows_of(mutants.HERE / "mutants.txt")
    for file, old, new in rows:
        text = (mutants.ROOT / file).read_text()
        compile(text.replace(old, new), file, "exec")
    assert len(rows) > 100


def test_a_difference_of_one_bit_is_found(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, loss in (ours, 3.0), (theirs, math.nextafter(3, 4)):
        line = dict(epoch=1, loss=loss, images_per_s=loss)
        files = {"metrics.jsonl": json.dumps(line), "embeddings.npz": {"z": [1, loss]}}
        write_files(folder, files | {"results.json": "[]"})
        weights = [0, torch.tensor(loss, dtype=torch.float64)]
        torch.save({"model": weights, "seconds": loss}, folder / "a.pt")
    (theirs / "results.json").rename(theirs / "other.json")
    parts = ["a.pt/model/1", "embeddings.npz/z", "metrics.jsonl/0/loss"]
    assert compare.differences(ours, theirs) == [*parts, "other.json", "results.json"]


@pytest.mark.slow
def test_damage_and_kills_are_survived(capsys):
    run_program("mutations.py --each 3 --kinds", "z .npy", "z sparse")
    run_program("kills.py --programs sparse_coding.py --kills 1")
    rows = re.findall(r"\| +(z \S+|sparse_coding\S+) \|(.*)\|", capsys.readouterr().out)
    counts = {name: [int(n) for n in row.split("|")] for name, row in rows}
    assert sum(counts["z .npy"][1:4]) == sum(counts["z sparse"][1:4]) == 3
    assert counts["sparse_coding.py"][-3:] == [1, 1, 1]


# -------------------------------------------------------------------------------- speed and the GPU
def test_the_gate_costs_what_the_paper_says():
    small = benchmark.cost(bayesncl.PRESETS["cifar100"])
    weights, biases = 512 * 2048 + 2048 * 256, 2048 + 256
    assert small["params"] - small["params_ncl"] == weights + biases
    assert small["flops"] - small["flops_ncl"] == 2 * weights


# ------------------------------------------------------------------------------ what is on record
ON_RECORD = {question: records.read(records.file_of(question)) for question in run.questions()}
ALL = {records.by_name(one): one for of_one in ON_RECORD.values() for one in of_one}
BY_HAND = "theory-gate", "shapes-bayesncl-first-command", "shapes-bayesncl-seed1-two-threads"
OF_A_CALL = common.Parser.OF_A_CALL | {"seed", "run"}  # flags; sae.py's runs had other names
PAGES = {str(page.relative_to(report.ROOT)): page for page in report.pages()}


def test_records_are_whole_and_say_where_they_were_made():
    assert len(ALL) == sum(map(len, ON_RECORD.values())) > 500
    for name, record in ALL.items():
        settings = record["settings"]
        assert {"hardware", "torch", "date"} <= settings.keys(), name
        assert settings.get("data_root", "data") == "data", name
        assert "results" in record or record["final"]["event"] == "final", name
    for question, names in records.WITH_DIMENSIONS.items():
        kept = records.kept_dimensions(question)
        assert set(kept) == set(names)
        for name, seeds in kept.items():
            for seed, columns in seeds.items():
                found = records.from_dimensions(columns)
                assert found.items() <= ALL[name, seed]["dimensions"].items(), (name, seed)


@pytest.mark.parametrize("question", ON_RECORD)
def test_commands_of_runs_txt_parse(parse_only, monkeypatch, question):
    for lines in run.commands(question, None, None, "--epochs 50").values():
        for program, *argv in lines:
            monkeypatch.setattr(sys, "argv", [program, *argv])
            with pytest.raises(Parsed):
                program_of(program)()


@pytest.mark.parametrize("question", ON_RECORD)
def test_what_is_on_record_is_a_row_of_runs_txt(question):
    rows = run.rows_of(question)
    flags_of = functools.cache(run.flags_of)
    for record in ON_RECORD[question]:
        name, seed, settings = record["run"], record.get("seed"), record["settings"]
        if name in BY_HAND or "command" not in settings or settings.get("eval_only"):
            continue
        seeds, (line, *_) = rows[name]
        assert seed in seeds, name
        wanted = flags_of(line.replace("{seed}", str(seed)))
        found = flags_of(re.sub(r" --checkpoint-every \d+| --verbose", "", settings["command"]))
        assert {flag for flag in wanted if wanted[flag] != found[flag]} <= OF_A_CALL, name


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_records_have_it(name):
    folder = PAGES[name].parent
    text = PAGES[name].read_text(encoding="utf-8")
    assert report.with_tables(text, folder) == text, "python studies/report.py rewrites it"
    for table in report.TABLE.findall(text):
        rows = [report.cells_of(line) for line in table.splitlines()]
        assert len({len(row) for row in rows}) == 1, table
        if name != "README.md":
            assert not {"", "–"} & set().union(*rows), table
    for link, target in re.findall(r"\]\((?!http)([^()#]*)#?([^()]*)\)", text):
        file = folder / link
        assert file.exists(), link
        if file.suffix == ".jsonl":
            of_target, *_ = report.SEEDS.fullmatch(target).groups()
            assert report.runs_in(file, of_target), target
