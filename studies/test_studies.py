"""Tests of studies/: small records and runs, naive loops, closed forms, and what is on record."""

import functools
import importlib
import itertools
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections import defaultdict
from pathlib import Path

import bayesncl
import common
import interpret
import records
import report
import run
import shapes
import simclr
import sparse_coding as sc
from conftest import Parsed, program_of, refusal, run_program, write_files
from records import STUDIES

import benchmark
import notebook
import numpy as np
import pytest
import quarter
import theory
import theory_gate
import theory_nmf
import torch
import torch.nn.functional as F


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of its own: the folder of a question, no run and no record."""
    for module, name, folder in [
        (records, "STUDIES", "studies"),
        (report, "STUDIES", "studies"),
        (report, "ROOT", ""),
        (run, "STUDIES", "studies"),
        (run, "ROOT", ""),
    ]:
        monkeypatch.setattr(module, name, tmp_path / folder)
    (tmp_path / "studies/q").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for cached in records.frame, records.column:
        cached.cache_clear()
    yield tmp_path
    for cached in records.frame, records.column:
        cached.cache_clear()


def exit_code(command):
    """The code with which a program ends."""
    with pytest.raises(SystemExit) as stop:
        run_program(command)
    return stop.value.code


def put(*lines):
    """Write records of question q."""
    text = "".join(f"{json.dumps({'settings': {}} | line)}\n" for line in lines)
    write_files(records.STUDIES, {"q/records.jsonl": text})


def on_record():
    """(run, seed) → record of question q."""
    return {(found["run"], found.get("seed")): found for found in records.read("q")}


# --------------------------------------------------------------------------- records.py: a record
PLANTED = np.random.default_rng(0).random((40, 8)) + 0.1  # more than half of the entries
EPOCHS = [{"epoch": 1, "loss": 2.5, "spread": 0.5}, {"epoch": 2, "loss": 1.5, "spread": 0.25}]
FINAL = {"event": "final", "epochs": 2, "lp1": 50.0, "act": None}
MEASURED = {"ap": 5.0, "cons": 6.0, "f1": None}
OF_CONTROLS = {  # in interpret.json
    "shuffled": {"ap": 1.0},
    "directions_of_h": {"ap": 2.0, "cons": 3.0},
    "directions_of_z": {"ap": 4.0},
}
RECORDED = {"shuffled_ap": 1.0, "head_ap": 2.0, "head_cons": 3.0, "rotated_ap": 4.0}


def leave_run(folder, rule="nonzero"):
    """What a training, interpret.py and tools/words.py leave in a run's folder."""
    z = PLANTED.astype(np.float16)
    files = {
        "config.json": '{"method": "ncl", "dataset": "mine", "data_root": "."}',
        "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in [*EPOCHS, FINAL]),
        "embeddings.npz": dict(h=z[:, ::-1], z=z, y=np.arange(40) % 3),
        "interpret.json": json.dumps({"active": rule, "numbers": MEASURED} | OF_CONTROLS),
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
    assert found.pop("interpret") == expected | RECORDED | {"active": rule}
    config = json.loads((folder / "config.json").read_text())
    known = dict(run="a", seed=2, settings=config, epoch=EPOCHS[-1], final=FINAL)
    curve = dict(loss=[2.5, 1.5], spread=[0.5, 0.25])
    assert found == known | {"curve": curve, "words": {"nameable": 7}}
    write_files(folder, {"metrics.jsonl": '{"loss": 1}\n{"event": "final"}\n'})
    assert records.of_run(folder)["curve"] == {"loss": [1]}


def test_a_later_record_replaces_an_earlier_one(repository):
    put(dict(run="a", seed=1, final={"lp1": 1}), dict(run="landscape-x", results=[1]))
    assert records.values("q/a", "lp1")[1] == 1
    records.keep("q", leave_run(repository / "a-seed1"))
    codes = repository / "landscape-x"
    write_files(codes, {"config.json": "{}", "results.json": "[3]", "curves.npz": b"curves"})
    records.keep("q", codes)
    assert records.values("q/a", "lp1")[1] == 50
    assert on_record().keys() == {("a", 1), ("landscape-x", None)}
    assert len(records.read("q")) == 2
    assert on_record()["landscape-x", None]["results"] == [3]
    assert (repository / "studies/q/landscape-x.npz").read_bytes() == b"curves"


def test_a_number_that_is_undefined_is_left_out():
    assert records.numbers({"final": {"rank": None, "lp1": 1.5}}) == {"lp1": 1.5}


# -------------------------------------------------------------------------------- records.py: cells
RUNS = [  # run, number, its values of seeds 0 to 3
    ("a", "lp1", None, 1, 2, 6),
    ("a", "shuffled_lp1", None, -2, -3, -4),
    ("a", "background_lead", None, 1, 2, 6),
    ("a", "corr", None, -0.004, None, 1),
    ("b", "lp1", 9, 0.5, 0.5, 5),
    ("c", "lp1", 1, None, None, None),
    ("d", "lp1", 1, 2, None, None),
    ("e", "mono", -0.04, None, None, None),
]
CELLS = {
    "mean and deviation": Namespace(what="q/a", number="lp1", cell="3.0 ± 2.6"),  # √(14 / 2)
    # .5, 1.5, 1: 4.303 · .5 / √3
    "a difference by seed": Namespace(what="q/a − q/b", number="lp1", cell="+1.0 ± 1.2"),
    # 3, 5, 10: 4.303 √13 / √3
    "within a run": Namespace(what="q/a", number="lp1 - shuffled_lp1", cell="+6.0 ± 9.0"),
    "a lead": Namespace(what="q/a", number="background_directions_of_h_lead", cell="+3.0 ± 6.6"),
    # −8, 1.5: 12.706 · 6.72 / √2
    "seeds that both have": Namespace(what="q/d − q/b", number="lp1", cell="−3.2 ± 60.4"),
    "one pair": Namespace(what="q/c − q/b", number="lp1", cell="−8.0"),
    "a seed without it": Namespace(what="q/a", number="corr", cell="0.5"),
    "one seed": Namespace(what="q/c", number="lp1", cell="1.0"),
    "two have no deviation": Namespace(what="q/d", number="lp1", cell="1.5"),
    "no plus zero": Namespace(what="q/c − q/c", number="lp1", cell="0.0"),
    "no minus zero": Namespace(what="q/e", number="mono", cell="0.0"),
}


@pytest.fixture
def shown(repository):
    """RUNS as records, whose final numbers count, or those of a tool."""
    numbers = defaultdict(dict)
    for name, key, *values in RUNS:
        for seed, value in enumerate(values):
            if value is not None:
                numbers[name, seed][key] = value
    others = dict(epoch={"lp1": 99}, dictionaries={"act": 1}, stability={"act": None})
    put(*[dict(run=name, seed=seed, final=own, **others) for (name, seed), own in numbers.items()])


@pytest.mark.parametrize("row", CELLS.values(), ids=CELLS)
def test_a_cell_is_of_its_records(shown, row):
    found = records.values(row.what, row.number)
    is_difference = records.shows_difference(row.what, row.number)
    assert records.cell(found, 1, is_difference) == row.cell


@pytest.mark.parametrize(
    "what, formula", [("q/x", "lp1"), ("q/a − q/e", "corr"), ("q/a", "act1"), ("none/a", "lp1")]
)
def test_a_cell_without_records_is_an_error(shown, what, formula):
    with pytest.raises(KeyError):
        records.values(what, formula)


PAGE = """\
It is 3.0 ± 2.6 of 0.4, by arXiv 2403.12459. Neither `1.25` nor [a](b-1.5.md).

It was 3.75, now 3.0.

<!-- means -->
{table}
By hand | 9

It was 4.75.
"""
OLD = PAGE.format(table="| run | LP@1 |\n|---|---|\n| old | 9.9 |\n")
ROW = "| .4 | 3.0 ± 2.6 | 0.5 | 2 to 3 |\n"
NEW = PAGE.format(table=f"|  | LP@1 | c | n |\n| --- | --- | --- | --- |\n{ROW}")
PROGRAM_OF_PAGE = """from records import table
means = table({".4": "q/a"}, ["LP@1", "c"], {"c": ("corr", 1)})
"""
TOLD = """\
README.md, in no table: 7.5
checks/README.md, in no table: 6.5
weights/README.md, in no table: 4.5
studies/README.md, in no table: 8.5
studies/p/README.md, in no table: - not 2.6
studies/q/README.md, in no table: It was 3.75, now 3.0.
studies/q/README.md, in no table: It was 4.75.
"""


def test_a_page_is_told_and_rewritten(shown, repository, capsys):
    files = {"README.md": "7.5\n\n<!-- means -->\n", "checks/README.md": "6.5"}
    files |= {"weights/README.md": "4.5", "studies/README.md": "8.5"}
    files["studies/p/README.md"] = "- [3.0](../q/README.md)\n- not 2.6"
    files |= {"studies/q/README.md": OLD, "studies/q/table.py": PROGRAM_OF_PAGE}
    files["studies/table.py"] = PROGRAM_OF_PAGE
    write_files(repository, files)
    page = repository / "studies/q/README.md"
    assert exit_code("report.py --check") == 1
    assert page.read_text() == OLD
    run_program("report.py")
    assert page.read_text() == NEW
    assert Path("README.md").read_text().endswith(ROW)
    capsys.readouterr()
    assert exit_code("report.py --check") == 0
    assert capsys.readouterr().out == TOLD
    for command in "report.py q", "report.py --all":
        assert "--all" in refusal(command)
    assert "no records" in refusal("report.py p --all")
    (repository / "studies/q/table.py").unlink()
    assert "shows means" in refusal("report.py")


def test_all_that_is_on_record_is_printed(shown, capsys):
    with open(records.STUDIES / "q/records.jsonl", "a") as file:
        file.write('{"run": "own", "results": [{"x": 1}, {"x": 2}]}\n')
        file.write('{"run": "one", "results": {"x": 3}}\n')
    run_program("report.py q --all")
    told = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert told[:3] == [["own", '{"x": 1}'], ["own", '{"x": 2}'], ["one", '{"x": 3}']]
    assert ["a", "corr", "0.4980", "n = 2", "1: -0.004 3: 1"] in told
    assert len(told) == 3 + 9  # lp1 of five runs, three more of a, mono; act is undefined


def test_a_reader_may_stop_before_the_end():
    command = [sys.executable, STUDIES / "report.py", "ncl", "--all"]
    with subprocess.Popen(command, stdout=-1, stderr=-1) as program:
        program.stdout.readline()
        program.stdout.close()
        assert program.stderr.read() == b""


# ------------------------------------------------------------------------ run.py: a small runs.txt
PROGRAM = """# Every program of a small repository.
import json, os, shutil, signal, sys, time
from pathlib import Path
name, *words = sys.argv
flags = dict(zip(words, words[1:]))
folder = Path(flags.get("--out") or flags.get("--resume") or words[0])
folder.mkdir(parents=True, exist_ok=True)
with open(folder / "calls.txt", "a") as file:
    threads, gpus = (os.environ[name] for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"))
    print(threads + gpus, *sys.argv, file=file)
if name == "tools/interpret.py":
    (folder / "interpret.json").write_text('{"active": "nonzero", "numbers": {"ap": 8.0}}')
elif name == "tools/words.py":
    (folder / "words.json").write_text('{"nameable": 9.0}')
elif name == "sparse_coding.py":
    (folder / "config.json").write_text("{}")
    (folder / "results.json").write_text("[5]")
else:
    if flags.get("--lr") == "9":
        signal.signal(signal.SIGTERM, lambda *_: time.sleep(0.5) or sys.exit(3))
    Path("now", folder.name).write_text(str(os.getpid()))
    time.sleep({"9": 30}.get(flags.get("--lr"), 0.6))
    with open("together.txt", "a") as file:
        file.write(str(len(os.listdir("now"))))
    Path("now", folder.name).unlink()
    shutil.copytree("done", folder, dirs_exist_ok=True)
    if flags.get("--lr") == "6":
        os.kill(os.getpid(), signal.SIGKILL)
    if flags.get("--lr") == "7":
        sys.exit("a reason")
    if flags.get("--lr") == "8":
        (folder / "embeddings.npz").unlink()
"""
RUNS_TXT = """# A comment.

failing   1    python ncl.py --lr 7
killed    1    python ncl.py --lr 6
spoilt    1    python ncl.py --lr 8
nothing   -    python tools/words.py
a         1-2  python ncl.py --lr 0.1
    python tools/words.py RUN --seed {seed}
b-cpu     2,9  python ncl.py
noted     -    python sparse_coding.py --seeds 5
anew      -    python sparse_coding.py --seeds 5
complete  -    python sparse_coding.py --seeds 5
whole     1    python ncl.py
"""
BEGUN = "ncl.py --lr 0.1 --compile --seed 2 --device cpu --out x"
LEFT = {  # what an earlier call left in runs/
    "a-seed2/config.json": json.dumps({"command": BEGUN}),
    "a-seed2/metrics.jsonl": '{"epoch": 1}\n',
    "b-cpu-seed2/mine.txt": "mine",
    "noted/config.json": '{"command": "sparse_coding.py --seeds 5 --out runs/noted"}',
    "noted/memory/note.pt": "",
    "noted/results.json": "[4]",
    "anew/config.json": "{}",
    "anew/calls.txt": "before",
    "complete/config.json": '{"command": "sparse_coding.py --seeds 5"}',
    "complete/results.json": "[6]",
}
HERE = "--device cuda --data-root d"
CALLS = f"""\
70 ncl.py --lr 0.1 --compile --seed 1 {HERE} --out runs/a-seed1
70 tools/interpret.py runs/a-seed1
70 tools/words.py runs/a-seed1 --seed 1 --data-root d
70 ncl.py --compile {HERE} --resume runs/a-seed2
70 tools/interpret.py runs/a-seed2
70 tools/words.py runs/a-seed2 --seed 2 --data-root d
70 sparse_coding.py --seeds 5 --out runs/anew
1 ncl.py --compile --seed 2 --device cpu --data-root d --out runs/b-cpu-seed2
1 tools/interpret.py runs/b-cpu-seed2
70 ncl.py --lr 7 --compile --seed 1 {HERE} --out runs/failing-seed1
70 ncl.py --lr 6 --compile --seed 1 {HERE} --out runs/killed-seed1
70 sparse_coding.py --resume runs/noted
70 tools/words.py --out runs/nothing
70 ncl.py --lr 8 --compile --seed 1 {HERE} --out runs/spoilt-seed1
70 tools/interpret.py runs/spoilt-seed1
70 tools/interpret.py runs/whole-seed1
"""


@pytest.fixture
def planted(repository, monkeypatch):
    """Write runs.txt; every program of the repository is PROGRAM."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    names = "ncl.py", "sparse_coding.py", "tools/interpret.py", "tools/words.py"
    write_files(repository, dict.fromkeys(names, PROGRAM))
    leave_run(repository / "done")
    (repository / "now").mkdir()
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield (repository / "studies/q/runs.txt").write_text
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before):
        signal.signal(number, handler)


def calls():
    """What the programs of all runs were given, by their folders."""
    return "".join(path.read_text() for path in sorted(Path().glob("runs/*/calls.txt")))


def test_runs_are_made_measured_and_recorded(planted, capsys):
    planted(RUNS_TXT)
    write_files(leave_run(Path("runs/whole-seed1")), {"config.json": '{"command": ""}'})
    write_files("runs", LEFT)
    put(dict(run="b-cpu", seed=9, final={"lp1": 3}))
    write_files(records.STUDIES, {"r/runs.txt": ""})
    command = f"run.py q r --jobs 3 {HERE} --flags=--compile --rows"
    assert "--rows x-*" in refusal(f"{command} a x-*")
    assert exit_code(f"{command} [!b]* b-cpu") == 1
    assert calls() == CALLS
    assert max(Path("together.txt").read_text()) == "2"  # the seeds of a row
    assert Path("runs/b-cpu-seed2/mine.txt").exists()
    told = capsys.readouterr().err
    assert "failing-seed1: not recorded: ncl.py --lr 7" in told
    assert "exit code 1: a reason" in told
    for name in "killed-seed1", "spoilt-seed1", "nothing":
        assert f"{name}: not recorded" in told
    images = ("a", 1), ("a", 2), ("b-cpu", 2), ("b-cpu", 9), ("whole", 1)
    results = {"noted": [5], "anew": [5], "complete": [6]}
    assert on_record().keys() == {*images, *[(name, None) for name in results]}
    record = on_record()["a", 2]
    assert (record["final"], record["epoch"]) == (FINAL, EPOCHS[-1])
    assert (record["interpret"]["ap"], record["words"]) == (8, {"nameable": 9})
    assert {name: on_record()[name, None]["results"] for name in results} == results
    assert exit_code(f"{command} a b-* anew --seeds 2") == 0
    assert calls() == CALLS


OF_A = "a 1 python ncl.py"
REFUSED = {  # a row of runs.txt, the command that began its folder, words of the refusal
    "another length": Namespace(
        row=OF_A, begun="ncl.py --epochs 2 --seed 1 --device cpu", told="begun by ncl.py --epochs 2"
    ),
    "a flag after the seed": Namespace(
        row=OF_A, begun="ncl.py --seed 1 --epochs 2 --device cpu", told="begun by ncl.py --seed 1"
    ),
    "another program": Namespace(
        row=OF_A, begun="simclr.py --seed 1 --device cpu", told="begun by simclr.py"
    ),
    "no seeds": Namespace(row="a one python ncl.py", begun="", told="line 2"),
    "a run twice": Namespace(row="b 2 python ncl.py", begun="", told="b stands above"),
    "no python": Namespace(row="    ncl.py RUN", begun="", told="line 2"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_other_flags_and_other_lines_are_refused(planted, capsys, case):
    planted(f"b 1 python ncl.py\n{case.row}\n")
    write_files("runs/a-seed1", {"config.json": json.dumps({"command": case.begun})})
    if not case.begun:
        assert case.told in refusal("run.py q")
    else:
        assert exit_code("run.py q --rows a --device cpu") == 1
        assert case.told in capsys.readouterr().err
    assert calls() == ""


@pytest.mark.parametrize("terminal, seconds", [(True, 10), (False, 60)])
def test_the_last_line_of_a_log_is_told(repository, monkeypatch, capsys, terminal, seconds):
    class Program:
        """It has printed a line whenever it is waited for, and has ended the third time."""

        def __init__(self, command, stdout, **_):
            self.lines = iter(["one", "two"])
            self.log = Path(stdout.name)

        def wait(self, timeout):
            assert timeout == seconds
            for line in self.lines:
                with open(self.log, "a") as file:
                    print(line, file=file)
                raise subprocess.TimeoutExpired("", timeout)
            return 0

    monkeypatch.setattr(subprocess, "Popen", Program)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    run.call(["ncl.py"], Path("a-seed1.log"), "cpu")
    assert capsys.readouterr().err == "a-seed1: one\na-seed1: two\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_ends_the_runs_too(planted, number):
    planted("a 1-2 python ncl.py --lr 9\n")
    lines = f"import sys; sys.path[:0] = {sys.path!r}; import run; from pathlib import Path; "
    lines += "run.ROOT = Path.cwd(); run.STUDIES = run.records.STUDIES = Path('studies'); "
    command = [sys.executable, "-c", f"{lines}run.main('q --jobs 1 --device cpu'.split())"]
    program = subprocess.Popen(command)
    note = Path("now/a-seed1")  # by the training: its number
    while not (note.exists() and note.read_text()):
        assert program.poll() is None
        time.sleep(0.05)
    training = int(note.read_text())
    for _ in range(2):
        program.send_signal(number)
        time.sleep(0.1)
    assert program.wait(20) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(training, 0)
    assert not Path("runs/a-seed2").exists()


@pytest.mark.slow
def test_a_run_on_a_pretended_gpu_is_recorded(planted, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = (records.ROOT / "studies/speed/runs.txt").read_text()
    planted(re.search("^cifar100-bayesncl .*", text, re.M).group())
    argv = [str(records.ROOT / name) for name in ("checks/pretend_gpu.py", "bayesncl.py")]
    lines = f"import runpy, sys; sys.argv[:1] = {argv}; "
    write_files(".", {"bayesncl.py": f"{lines}runpy.run_path(sys.argv[0], None, '__main__')"})
    np.savez("cifar100.npz", **shapes.draw(48, 40))
    short = "--arch resnet8 --head-hidden 32 --limit 48 --batch-size 16 --epochs 1 --warmup 0"
    assert exit_code(f"run.py q --seeds 1 --device cuda --data-root . --flags='{short}'") == 0
    (record,) = on_record().values()
    assert record["settings"]["device"] == "cuda"
    assert {"epoch", "final", "interpret"} <= record.keys()


# --------------------------------------------------------------------------------------- quarter.py
TRAINING = """# Leaves what a training does, twice as fast if compiled. Seed 2 fails, 3 takes long.
import sys, time
from pathlib import Path
words = " ".join(sys.argv)
with open("calls.txt", "a") as file:
    print(words, file=file)
if "--seed 2" in words:
    sys.exit(3)
if "--seed 3" in words:
    time.sleep(60)
if sys.argv[0] != "studies/run.py":
    folder = Path(sys.argv[-1])
    folder.mkdir(parents=True, exist_ok=True)
    command = words.partition(" --device")[0]
    config = Path("config.json").read_text().replace("COMMAND", command)
    (folder / "config.json").write_text(config)
    rate = 200 if "--compile" in words else 100
    lines = f'1\\n{{"images_per_s": {rate}}}\\n{{"event": "final"}}'
    (folder / "metrics.jsonl").write_text(lines)
"""
WHOLE = "\ncifar100-bayesncl 1-3 python bayesncl.py --dataset cifar100 --epochs 200\n"
QUARTER = """\
bayesncl.py --dataset cifar100 --epochs 3 --limit 80 {here} --out
bayesncl.py --dataset cifar100 --epochs 3 --limit 80 --compile {here} --out
ncl.py --dataset cifar100 --epochs 120 --compile --seed 1 {here} --out runs/{few}-seed1
studies/run.py speed --rows {few} --seeds 1 --flags=--compile {here}
ncl.py --compile {here} --resume runs/{few}-seed1
studies/run.py speed --rows {few} --seeds 1 --flags=--compile {here}
bayesncl.py --dataset cifar100 --epochs 200 --compile --seed 1 {here} --out runs/{whole}-seed1
"""


@pytest.fixture
def quarter_of_an_hour(tmp_path, monkeypatch):
    """A repository of fake trainings and 80 images, where this device was measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quarter, "ROOT", tmp_path)
    monkeypatch.setattr(quarter, "HERE", tmp_path)
    machine = dict(hardware=common.hardware("cpu"), torch=torch.__version__, commit=1, date=2)
    elsewhere = machine | {"torch": "1.0", "way": "x"}, machine | {"hardware": "y", "way": "y"}
    known = [*elsewhere, machine | {"way": ""}]  # the last one will be measured anew
    rates = [json.dumps(rate | {"images_per_s": 999}) + "\n" for rate in known]
    names = "bayesncl.py", "ncl.py", "studies/run.py"
    config = json.dumps(machine | {"command": "COMMAND"})
    write_files(".", dict.fromkeys(names, TRAINING) | {"config.json": config, "runs.txt": WHOLE})
    write_files(
        ".", {"data/cifar100.npz": dict(x_train=np.ones(80)), "rates.jsonl": "".join(rates)}
    )
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_quarter_measures_trains_and_records(quarter_of_an_hour, monkeypatch, capsys):
    here = "--device cpu"
    run_program(f"quarter.py {here}")
    assert quarter.fastest("cpu") == (200, "--compile")
    for _ in range(2):
        run_program(f"quarter.py ncl --minutes 1 {here}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    run_program(f"quarter.py bayesncl {here}")
    assert "then python studies/run.py speed --rows cifar100-bayesncl" in capsys.readouterr().out
    few = "cifar100-ncl-120-epochs"  # 0.8 · 60 s · 200 images/s / 80 images
    called = re.sub(" --out /.*", " --out", Path("calls.txt").read_text())
    assert called == QUARTER.format(here=here, few=few, whole="cifar100-bayesncl")
    row = f"\n{few}  1-3  python ncl.py --dataset cifar100 --epochs 120\n"
    assert Path("runs.txt").read_text() == WHOLE + row


@pytest.mark.parametrize(
    "flags, told",
    {
        "ncl --seed 2": "exit code 3",
        "ncl --seed 3 --minutes 0.02": "time is up for ncl.py",
        "ncl --minutes 0.001": "give more --minutes",
        "bayesncl": "was begun by sae.py",
        "simclr": "line 4 is damaged",
    }.items(),
)
def test_a_quarter_ends_in_one_line(quarter_of_an_hour, flags, told):
    begun = "runs/cifar100-bayesncl-seed1/config.json"
    write_files(".", {begun: '{"command": "sae.py"}'})
    if flags == "simclr":
        with open("rates.jsonl", "a") as file:
            file.write("half a li")
    assert told in refusal(f"quarter.py --device cpu {flags}")


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


OF_FOUR = sc.setting(dict(epochs=4, seeds=1), {}, True)
I = torch.eye(2, dtype=torch.float64)
LOOPS = {  # each of four steps; what it is called
    "3, b = 0.5: step": lambda: theory.half_round(I, I, 0.5, 0.5, 0.5, steps=4),
    "1(b), τ = 3: step": lambda: theory.lowest_loss_9(2, 0.5, 3, theory.one_mask, 1, steps=4),
    "fig4: epoch": lambda: sc.train(OF_FOUR, what="fig4"),
    "": lambda: sc.train(OF_FOUR),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_long_loop_tells_how_far_it_is(monkeypatch, capsys, name):
    clock = itertools.count(0, 6)  # six seconds a step
    monkeypatch.setattr(common, "time", Namespace(monotonic=lambda: next(clock)))
    LOOPS[name]()
    told = f"{name} 1/4, 36 s left\n" if name else ""
    assert capsys.readouterr().err == told


@pytest.mark.slow
def test_theorems_hold_and_fail_as_the_page_says(tmp_path):
    run_program("theory.py --out", tmp_path / "new")
    rows = json.loads((tmp_path / "new/results.json").read_text())
    told = [f"{row['setting'].split()[0]} {row['verdict']}" for row in rows]
    holds = ["1(a) holds"] * 2 + ["1(b) holds"] * 3
    assert told == holds + ["1(b) fails", "2 holds", "2 fails", "3 holds", "3 fails"]
    measured = [rows[k]["end_mean"] for k in (0, 2, 8, 9)]
    assert measured == pytest.approx([1.5, 1.315, 0.3 * 0.5**2 / 0.7, 0.9**3 / 0.4], rel=1e-3)


# ---- the landscape's runs: their first epoch again, with at most two seeds
LANDSCAPES = {record["run"]: record for record in records.read("landscape")}
OF_AN_EPOCH = "min", "median", "max", "loss", "spread"
# The flag of a factor that has had another name or value since.
RENAMED = {"train_bias no": False, "train_bias yes": True, "batch_norm no": "none"}


def typed_factors(settings):
    """The factors of which an older run had flags; --method was "loss"."""
    found = {}
    for factor in sc.PAPER.keys() - {"seeds"}:
        value = settings.get("loss" if factor == "method" else factor)
        if value is not None:
            found[factor] = RENAMED.get(f"{factor} {value}", value)
    return found


@pytest.mark.parametrize("name", LANDSCAPES)
def test_a_landscape_begins_as_on_record(name):
    record = LANDSCAPES[name]
    _, (command, *_) = run.rows_of("landscape")[name]
    args = sc.parser().parse(shlex.split(command)[1:])
    assert args.seeds == record["settings"]["seeds"]
    rows, curves = [], {}
    for experiment, programs in sc.plan(args).items():
        for title, s, reported in programs:
            assert typed_factors(record["settings"]).items() <= vars(s).items()
            measured_at = [0, *sorted(sc.epochs_to_measure(s, 30))]
            s.epochs = 1
            s.seeds = s.seeds if s.by else 2
            replicas, measured = sc.train(s)
            later = (0, len(measured_at) - 2), (0, 0)
            measured = {key: np.pad(measured[key], later) for key in sc.MEASURED}
            measured["epoch"] = np.array(measured_at, float)
            own_rows, own_curves = sc.rows(experiment, title, s, replicas, measured, reported)
            rows += own_rows
            curves |= own_curves
    for row, recorded in zip(rows, record["results"], strict=True):
        for key in "statistic", "lr_times_steps", "paper":
            assert row[key] == recorded[key]
    if not (STUDIES / "landscape" / f"{name}.npz").exists():
        return
    recorded = np.load(STUDIES / "landscape" / f"{name}.npz")
    titles, recorded_titles = [
        dict.fromkeys(k.rpartition("/")[0] for k in c) for c in (curves, recorded)
    ]
    for title, recorded_title in zip(titles, recorded_titles, strict=True):
        assert title.replace("-iid/", "/") == recorded_title or "custom/" in recorded_title
        for key in OF_AN_EPOCH:
            first = curves[f"{title}/{key}"][:2]  # (2, seeds)
            expected = recorded[f"{recorded_title}/{key}"][:2, : first.shape[1]]
            assert np.allclose(first, expected, atol=1e-5, equal_nan=True)


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


# ------------------------------------------------------------------------------------------ wide.py
def test_a_wide_run_has_512_features_and_no_weights(tiny, tmp_path):
    run_program(f"wide.py {tiny} --epochs 1 --gate none --out", tmp_path / "wide")
    with np.load(tmp_path / "wide/embeddings.npz") as arrays:
        assert arrays["h"].shape[1] == 512
    assert not list(tmp_path.glob("wide/*.pt"))
    command = common.read_json(tmp_path / "wide/config.json")["command"]
    assert command.startswith("studies/bayesncl/wide.py --dataset tiny")
    assert common.resnet("resnet8", 32)[1] == 64


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


def test_a_runs_gates_are_counted(run_of):
    run, model = theory_gate.load_run(run_of("bayesncl"))
    opened = torch.arange(run.head_out) % 3 > 0

    class Gates(torch.nn.Module):
        def forward(self, h):
            logits = torch.where(opened, 4.0, -100.0).repeat(len(h), 1)  # α of 0.982 and 0
            logits[:, 1] = 100 * (h[:, 0] - h[:, 0].median()).sign()  # open on half the images
            return logits

    model.gating = Gates()
    found = theory_gate.conflict(run, model, None, batches=2)
    assert found["m"][1] == pytest.approx(0.5, abs=0.05)
    assert torch.equal(found["m"][2:], opened[2:].float())
    assert torch.equal(found["clamped"][2:], (~opened[2:]).float())
    numbers = theory_gate.summary(found)
    live = found["gated"] >= 0.001
    assert numbers["live_dims"] == (live & opened).sum()
    assert numbers["live_decided_dims"] == live[1]
    assert numbers["live_m"] == pytest.approx(found["m"][live].mean().item())


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
            command = re.sub(r"--epochs \d+", short, command.replace(" --limit 2000", ""))
            run_program(command)
    told = re.findall("Cons. of the background (.*)|more than (.*)", capsys.readouterr().out)
    (dense, _), (rotated, _), (_, moved), (ncl, _), (ncl_rotated, _), _ = told
    assert dense == rotated == ncl_rotated == "41.6" != ncl
    assert moved < "0.00001"


# -------------------------------------------------------------------------------- speed and the GPU
def test_the_gate_costs_what_the_paper_says():
    small = benchmark.cost(bayesncl.PRESETS["cifar100"])
    weights, biases = 512 * 2048 + 2048 * 256, 2048 + 256
    assert small["params"] - small["params_ncl"] == weights + biases
    assert small["flops"] - small["flops_ncl"] == 2 * weights


# ------------------------------------------------------------------------------ what is on record
QUESTIONS = sorted(file.parent.name for file in records.STUDIES.glob("*/records.jsonl"))
MADE_BY_RUN = [question for question in QUESTIONS if (STUDIES / question / "runs.txt").exists()]
ON_RECORD = {question: records.read(question) for question in QUESTIONS}
NO_ROW = {  # of runs.txt: made by hand, or by an option that is gone
    "theory-gate",
    "theory-gate-decides",
    "shapes-bayesncl-first-command",
    "shapes-bayesncl-seed1-two-threads",
    "shapes-bayesncl-ipw",
    "cifar10-cpu-simclr-spectral",
}
# Flags that make no other run; "run" is sae.py's, whose runs had other names.
OF_A_CALL = {"device", "out", "resume", "data_root", "compile", "quiet", "seed", "run"}
PAGES = report.pages()
WORDS = {"README.md": 900, "studies/claims/README.md": 500, "studies/landscape/README.md": 500}
WORDS |= {"studies/lesson/README.md": 1350}


def flags_of(command):
    """The flags of a method's command line, as its own parser reads them; None: not typed."""
    program, *argv = shlex.split(command)
    parser = importlib.import_module(Path(program).stem).parser()
    not_typed = {action.dest: None for action in parser._actions}
    return not_typed | parser.defaults | vars(parser.parse_args(argv))


def test_records_say_where_they_were_made():
    assert sum(map(len, ON_RECORD.values())) > 500
    for record in sum(ON_RECORD.values(), []):
        settings = record["settings"]
        assert {"hardware", "torch", "date"} <= settings.keys(), record["run"]
        assert settings.get("data_root", "data") == "data", record["run"]
        assert {"results", "final", "interpret"} & record.keys(), record["run"]


@pytest.mark.parametrize("question", sorted({*MADE_BY_RUN, "speed"}))
def test_commands_of_runs_txt_parse(parse_only, monkeypatch, question):
    for seeds, lines in run.rows_of(question).values():
        for line in lines:
            text = line.replace("{seed}", str(seeds[0])).replace("RUN", "runs/x")
            monkeypatch.setattr(sys, "argv", shlex.split(text))
            with pytest.raises(Parsed):
                program_of(sys.argv[0])()


@pytest.mark.parametrize("question", sorted({*MADE_BY_RUN} - {"landscape"}))  # that one is above
def test_what_is_on_record_is_a_row_of_runs_txt(question):
    rows = run.rows_of(question)
    flags = functools.cache(flags_of)
    for record in ON_RECORD[question]:
        name, seed, settings = record["run"], record.get("seed"), record["settings"]
        if name in NO_ROW or "command" not in settings or settings.get("eval_only"):
            continue
        if settings["command"].startswith(("ladder.py", "match.py")):
            continue
        assert name in rows, f"runs.txt lacks {name}; its record: {settings['command']}"
        seeds, (line, *_) = rows[name]
        assert seed in seeds, f"{name}: write seed {seed} into runs.txt"
        wanted = flags(line.replace("{seed}", str(seed)))
        found = flags(re.sub(r" --checkpoint-every \d+| --verbose", "", settings["command"]))
        assert {flag for flag in wanted if wanted[flag] != found[flag]} <= OF_A_CALL, name


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_records_have_it(name):
    page = PAGES[name]
    text = page.read_text(encoding="utf-8")
    assert report.filled(page) == text, "python studies/report.py rewrites it"
    assert report.unchecked(page) == []
    for link in re.findall(r"\]\((?!http)([^()#]+)", text):
        assert (page.parent / link).exists(), link
    words = [word for word in report.NO_PROSE.sub("", text).split() if re.search(r"\w", word)]
    most = WORDS.get(name, 250)
    assert len(words) <= most, f"{len(words)} words are {len(words) - most} too many"
