"""Tests of run.py: what it reads in runs.txt, what it starts, and what it records."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from unittest import mock

import common
from conftest import Parsed, program_of, refusal, run_program

import numpy as np
import pytest
import records
import run
import torch


@pytest.fixture
def studies(tmp_path, monkeypatch):
    """Where run.py works: a folder with runs/ to come and a question, "q", without records."""
    monkeypatch.setattr(records, "STUDIES", tmp_path / "studies")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "RUNS", tmp_path / "runs")
    (tmp_path / "studies" / "q").mkdir(parents=True)
    (tmp_path / "studies" / "q" / "runs.txt").write_text("a  1  python ncl.py\n")
    return tmp_path / "studies"


@pytest.fixture
def write(studies):
    """Write the runs.txt of a question."""

    def write(text, question="q"):
        (studies / question).mkdir(exist_ok=True)
        (studies / question / "runs.txt").write_text(text)

    return write


# ----------------------------------------------------------------------------------------- runs.txt
ROWS = [
    "# a comment",
    "a      1-3  python ncl.py --lr 1",
    "    python tools/words.py RUN --seed {seed}",
    "",
    "later  1    python sae.py runs/a-seed{seed} --topk 2",
    "b-cpu  2,9  python simclr.py",
    "own    -    python sparse_coding.py --seeds 5",
]


@pytest.fixture
def rows(write):
    write("\n".join(ROWS))
    return run.rows_of("q")


def test_a_row_has_seeds_and_commands(rows):
    seeds, lines = rows["a"]
    assert seeds == [1, 2, 3]
    assert lines[1] == "tools/words.py RUN --seed {seed}"


@pytest.mark.parametrize(
    "text, seeds", [("1-3", [1, 2, 3]), ("1,3", [1, 3]), ("4", [4]), ("-", [None])]
)
def test_seeds_are_a_range_list_or_none(text, seeds):
    assert run.seeds_of(text) == seeds


@pytest.mark.parametrize(
    "line",
    ["a python ncl.py", "a 1 ncl.py", "a one python ncl.py", "a 1", "    tools/words.py RUN", "a"],
)
def test_a_line_that_is_no_row_is_refused(write, line):
    write(f"b 1 python ncl.py\n{line}\n")

    def ask():
        run.rows_of("q")

    assert "runs.txt, line 2: want a run, its seeds (1-5) and python" in refusal(ask)


def test_a_command_has_both_kinds_of_flags(write):
    write("a 2 python ncl.py --lr 1\n")
    training, _ = run.commands("q", None, None, "--x 2")["a-seed2"]
    assert training == "ncl.py --lr 1 --x 2 --seed 2".split()


def test_interpret_and_tools_are_given_the_folder(rows):
    _, *others = run.commands("q", ["a"], [3], "--x 2")["a-seed3"]
    assert others[0] == ["interpret.py", "runs/a-seed3"]
    assert others[1] == ["tools/words.py", "runs/a-seed3", "--seed", "3"]


def test_own_seeds_are_left_to_the_program(rows):
    assert run.commands("q", ["own"], [7], "--x 2") == {
        "own": [["sparse_coding.py", "--seeds", "5"]]
    }


def test_an_autoencoder_reads_the_run_of_its_seed(rows):
    (lines,) = run.commands("q", ["later"], [3], "").values()
    assert lines[0][:2] == ["sae.py", "runs/a-seed3"]


def test_every_seed_of_runs_txt_is_made(write):
    write("a 1-20 python ncl.py\nb 2024 python ncl.py\n")
    names = list(run.commands("q", None, None, ""))
    assert len(names) == 21
    assert names[-1] == "b-seed2024"


def test_seeds_are_outermost_readers_of_runs_last(rows):
    names = list(run.commands("q", ["a", "b-cpu", "later"], [2, 1], ""))
    expected = ["a-seed1", "b-cpu-seed1", "a-seed2", "b-cpu-seed2"]
    assert names == expected + ["later-seed1", "later-seed2"]


@pytest.mark.parametrize(
    "patterns, seeds, expected",
    [
        (None, None, ["own", "a-seed1", "a-seed2", "b-cpu-seed2", "a-seed3", "b-cpu-seed9"]),
        (["b-cpu", "own"], [0, 9], ["own", "b-cpu-seed0", "b-cpu-seed9"]),
        (["*-cpu"], None, ["b-cpu-seed2", "b-cpu-seed9"]),
        (["c"], None, []),
    ],
    ids=["all", "by name", "by pattern", "none"],
)
def test_rows_and_seeds_are_the_wanted_ones(rows, patterns, seeds, expected):
    names = list(run.commands("q", patterns, seeds, ""))
    assert [name for name in names if name != "later-seed1"] == expected


def test_rows_that_no_file_has_are_refused(rows):
    message = refusal("run.py q --rows a c")
    assert "--rows c: no runs.txt of these questions has such runs" in message


# ------------------------------------------------------------------------- the runs.txt as they are
@pytest.mark.parametrize("question", run.questions())
def test_commands_of_a_question_parse(parse_only, monkeypatch, question):
    for lines in run.commands(question, None, None, "--epochs 50").values():
        for program, *argv in lines:
            monkeypatch.setattr(sys, "argv", [program, *argv])
            with pytest.raises(Parsed):
                program_of(program)()


RUN_BY_HAND = "theory-gate", "shapes-bayesncl-first-command", "shapes-bayesncl-seed1-two-threads"
NAMED_OTHERWISE = {  # the same runs; flags of older versions, which changed no number
    "runs/shapes-sparsity-simclr-": "runs/shapes-simclr-",
    r"runs/cifar100-weights-(\w+)-seed1": r"weights/cifar100-\1",
    r" --checkpoint-every \d+| --verbose": "",
}
ADDED = common.Parser.OF_A_CALL | {"seed"}
RECORDS = {question: records.read(records.file_of(question)) for question in run.questions()}


def needs_a_row(record):
    """Not what was run by hand, nor what older versions evaluated by --eval-only."""
    return record["run"] not in RUN_BY_HAND and not record["settings"].get("eval_only")


@pytest.mark.parametrize("question", run.questions())
def test_what_is_on_record_has_a_row(question):
    rows = run.rows_of(question)
    for record in filter(needs_a_row, RECORDS[question]):
        seeds, _ = rows[record["run"]]
        assert record.get("seed") in seeds, record["run"]


@pytest.mark.parametrize("question", run.questions())
def test_rows_are_the_commands_on_record(question):
    rows = run.rows_of(question)
    read = {}  # as a run's seeds have the same command
    for record in filter(needs_a_row, RECORDS[question]):
        command = record["settings"].get("command")
        if command is None:  # it was not noted of theory-nmf
            continue
        for old, new in NAMED_OTHERWISE.items():
            command = re.sub(old, new, command)
        recorded = run.flags_of(command)
        line = rows[record["run"]][1][0].replace("{seed}", str(record.get("seed")))
        if line not in read:
            read[line] = run.flags_of(line)
        for name, value in read[line].items():
            if name in ADDED:
                continue
            assert recorded[name] == value, (record["run"], name)


# -------------------------------------------------------------------------------------------- a run
def leave_run(folder, finished=True, **numbers):
    """The files of a run of three dimensions, which interpret.py has measured."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"method": "ncl", "dataset": "mine", "data_root": "."}')
    z = np.float16([[1, 0, 0], [1, 2, 0]] * 2)
    np.savez(folder / "embeddings.npz", h=z, z=z, y=[0, 1, 1, 1])
    measured = {"active": "nonzero", "numbers": {}}
    (folder / "interpret.json").write_text(json.dumps(measured))
    lines = [{"epoch": 1, "open": 0.25}]
    if finished:
        lines.append({"event": "final", "epochs": 1} | numbers)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)


@pytest.fixture
def started(studies, monkeypatch):
    """What run.py would call: the command and the environment."""
    calls = []

    def popen(command, env, **_):
        calls.append((command[1:], env))

    monkeypatch.setattr(run.subprocess, "Popen", popen)
    return calls


def test_a_new_run_has_its_own_folder(started):
    run.begin("a-seed1", ["ncl.py", "--x"], "cpu", "d")
    words = started[0][0]
    assert " ".join(words) == "ncl.py --x --device cpu --data-root d --out runs/a-seed1"


def test_an_interrupted_run_is_resumed(started):
    leave_run(run.RUNS / "a-seed1", finished=False)
    run.begin("a-seed1", "ncl.py --lr 1 --compile --seed 1".split(), "cpu", "d")
    words, _ = started[0]
    assert words == "ncl.py --compile --device cpu --data-root d --resume runs/a-seed1".split()


def test_a_folder_that_no_run_left_stays(started):
    (run.RUNS / "a-seed1").mkdir(parents=True)
    (run.RUNS / "a-seed1" / "mine.txt").write_text("mine")
    run.begin("a-seed1", ["ncl.py"], "cpu", "d")
    assert (run.RUNS / "a-seed1" / "mine.txt").exists()


@pytest.mark.parametrize(
    "begun, reason",
    [
        ("ncl.py --seed 1 --epochs 2 --out x", "epochs 2, runs.txt has None"),
        ("ncl.py --seed 2", "seed 2, runs.txt has 1"),
        ("simclr.py --seed 1", "begun by simclr.py"),
    ],
    ids=["flag", "seed", "program"],
)
def test_a_folder_of_other_flags_is_refused(studies, begun, reason):
    leave_run(run.RUNS / "a-seed1", finished=False)
    (run.RUNS / "a-seed1" / "config.json").write_text(json.dumps(dict(command=begun)))
    with pytest.raises(common.BadInput, match=reason):
        run.record_all("q", {"a-seed1": [["ncl.py", "--seed", "1"]]}, 1, "cpu", "data", math.inf)


def test_what_cannot_be_recorded_did_not_end_well(studies, monkeypatch, capsys):
    monkeypatch.setattr(records, "keep", mock.Mock(side_effect=common.BadInput("it collapsed")))
    assert not run.keep("q", "a-seed1", 0)
    assert "a-seed1: not recorded: it collapsed" in capsys.readouterr().err


def test_a_finished_program_of_other_flags_is_refused(studies):
    leave_run(run.RUNS / "own")
    begun = dict(command="sparse_coding.py --experiment masks --seeds 2")
    (run.RUNS / "own" / "config.json").write_text(json.dumps(begun))
    (run.RUNS / "own" / "results.json").write_text("[]")
    command = "sparse_coding.py --experiment masks --seeds 20".split()
    with pytest.raises(common.BadInput, match="begun with seeds 2, runs.txt has 20"):
        run.record_all("q", {"own": [command]}, 1, "cpu", "data", math.inf)


def test_a_run_whose_source_is_gone_is_left_out(studies, capsys):
    runs = {
        "b-seed1": [["sae.py", "runs/a-seed1"]],
        "c-seed1": [["sae.py", "runs/b-seed1"]],
    }
    assert not run.record_all("q", runs, 1, "cpu", "data", math.inf)
    told = capsys.readouterr().err
    assert "b-seed1 is left out: it reads runs/a-seed1, which is not here" in told
    assert "c-seed1 is left out" in told


def test_a_source_lacks_nothing_if_it_is_made(studies):
    lines = [["sae.py", "runs/a-seed1"]]
    assert run.lacks("b-seed1", lines, ["a-seed1"]) is None
    assert run.lacks("b-seed1", lines, []) == "runs/a-seed1"
    leave_run(run.RUNS / "a-seed1")
    assert run.lacks("b-seed1", lines, []) is None


def test_a_folder_of_the_same_flags_is_taken(studies):
    leave_run(run.RUNS / "a-seed1", finished=False)
    begun = "ncl.py --lr 1e-1 --seed 1 --device cpu --compile --out x"
    (run.RUNS / "a-seed1" / "config.json").write_text(json.dumps(dict(command=begun)))
    run.need_same("a-seed1", ["ncl.py", "--seed", "1", "--lr", "0.1"])


def test_programs_with_own_seeds_take_no_data(started):
    run.begin("own", ["sparse_coding.py"], "cpu", "d")
    assert " ".join(started[0][0]) == "sparse_coding.py --out runs/own"


def test_a_cpu_run_has_one_thread_alone(started, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for device in ("cpu", "cuda"):
        run.begin("a-seed1", ["ncl.py"], device, "d")
    (_, on_cpu), (_, on_gpu) = started
    assert (on_cpu["OMP_NUM_THREADS"], on_cpu["CUDA_VISIBLE_DEVICES"]) == ("1", "")
    assert on_gpu == os.environ


# ---------------------------------------------------------------------------------------- all runs
METHOD = """
import shutil, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "--bad" in flags:
    sys.exit("a reason")
folder = flags.get("--out") or flags["--resume"]
shutil.copytree("done", folder, dirs_exist_ok=True)
"""
TOOL = """
import sys
with open(sys.argv[1] + "/words.json", "x") as file:  # x: it is run once
    file.write('{"told": 7, "words": []}')
"""
RUNS = {
    "a-seed1": [["method.py"], ["more.py", "runs/a-seed1"]],
    "b-seed1": [["method.py"]],
    "c-seed1": [["method.py", "--bad", "1"], ["no"]],
}


@pytest.fixture
def programs(studies, tmp_path):
    """A method that copies the run "done", and a tool; run b was interrupted."""
    leave_run(tmp_path / "done", lp1=50.0)
    leave_run(tmp_path / "runs" / "b-seed1", finished=False)
    (tmp_path / "method.py").write_text(METHOD)
    (tmp_path / "more.py").write_text(TOOL)
    return tmp_path


def record_all(rows, jobs=2, end=math.inf):
    runs = {f"{row}-seed1": RUNS[f"{row}-seed1"] for row in rows}
    return run.record_all("q", runs, jobs, "cpu", "data", end)


def on_record():
    """Run → record."""
    return {record["run"]: record for record in records.read(records.file_of("q"))}


def test_what_ended_well_is_recorded(programs):
    assert record_all("ab") is True
    found = {name: records.numbers(record) for name, record in on_record().items()}
    assert {name: numbers["lp1"] for name, numbers in found.items()} == {"a": 50, "b": 50}
    assert (found["a"]["told"], "told" in found["b"]) == (7, False)  # the tool's


def test_it_says_what_it_starts(programs, capsys):
    record_all("ab")
    lines = capsys.readouterr().out.splitlines()
    assert "a-seed1: method.py --device cpu --data-root data --out runs/a-seed1" in lines
    assert "b-seed1: method.py --device cpu --data-root data --resume runs/b-seed1" in lines
    assert "a-seed1: more.py runs/a-seed1 --data-root data" in lines


def test_interpret_reads_no_data_set(programs, capsys):
    (programs / "interpret.py").write_text(TOOL)
    runs = {"a-seed1": [["method.py"], ["interpret.py", "runs/a-seed1"]]}
    assert run.record_all("q", runs, 1, "cpu", "data", math.inf) is True
    assert "a-seed1: interpret.py runs/a-seed1" in capsys.readouterr().out.splitlines()


def test_a_failed_run_is_told_not_recorded(programs, capsys):
    assert record_all("cb") is False
    assert "c-seed1: exit code 1: a reason" in capsys.readouterr().err
    assert list(on_record()) == ["b"]


def test_what_is_recorded_is_not_run_again(programs, monkeypatch):
    record_all("a")
    monkeypatch.setattr(run.subprocess, "Popen", None)
    assert record_all("a") is True


def test_no_more_jobs_run_than_asked_for(programs, monkeypatch):
    running = []
    popen = subprocess.Popen

    def count(*args, **options):
        running.append(popen(*args, **options))
        assert sum(program.poll() is None for program in running) <= 1
        return running[-1]

    monkeypatch.setattr(run.subprocess, "Popen", count)
    assert record_all("ab", jobs=1) is True
    assert len(running) == 3


def test_a_run_that_reads_another_waits_for_it(programs):
    slow = f"import time\ntime.sleep(0.5)\n{METHOD}"
    reader = f"import os\nassert os.path.exists('runs/a-seed1/metrics.jsonl')\n{METHOD}"
    (programs / "method.py").write_text(slow)
    (programs / "reader.py").write_text(reader)
    runs = {"a-seed1": [["method.py"]], "later-seed1": [["reader.py", "runs/a-seed1", "--x"]]}
    run.record_all("q", runs, 2, "cpu", "data", math.inf)
    assert "AssertionError" not in (programs / "runs" / "later-seed1.log").read_text()


@pytest.fixture
def endless(programs, monkeypatch):
    """The method never ends. The programs that are started."""
    (programs / "method.py").write_text("import time\ntime.sleep(1000)\n")
    popen = subprocess.Popen
    running = []

    def start(*args, **options):
        running.append(popen(*args, **options))
        return running[-1]

    monkeypatch.setattr(run.subprocess, "Popen", start)
    return running


def test_minutes_end_it_and_its_runs(endless):
    with pytest.raises(SystemExit, match="--minutes are over; the same command goes on"):
        record_all("a", end=time.monotonic() + 0.3)
    assert [program.poll() for program in endless] == [-signal.SIGTERM]


def test_an_interrupt_ends_it_and_its_runs(endless, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run.time, "sleep", interrupted)
    with pytest.raises(SystemExit, match="interrupted; the same command goes on"):
        record_all("a")
    assert [program.poll() for program in endless] == [-signal.SIGTERM]


def test_sigterm_is_an_interrupt(asked, monkeypatch):
    handlers = {}
    monkeypatch.setattr(run.signal, "signal", handlers.__setitem__)
    exit_code("run.py q")
    assert handlers == {signal.SIGTERM: signal.default_int_handler}


def test_it_says_how_far_it_is(endless, monkeypatch, capsys):
    monkeypatch.setattr(run, "TELL_EVERY", 0.2)
    with pytest.raises(SystemExit):
        record_all("ab", jobs=1, end=time.monotonic() + 0.7)
    assert "0/2 runs have ended; running: a-seed1\n" in capsys.readouterr().err


# ----------------------------------------------------------------- programs with seeds of their own
OWN = """
import pathlib, sys
folder = pathlib.Path(sys.argv[-1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.json").write_text("{}")
(folder / "results.json").write_text('["%s"]' % sys.argv[-2])
"""


@pytest.fixture
def own(studies, tmp_path):
    """Record such a program."""
    (tmp_path / "own.py").write_text(OWN)

    def record():
        return run.record_all("q", {"own": [["own.py"]]}, 1, "cpu", "data", math.inf)

    return record


def test_its_results_are_recorded(own, capsys):
    assert own() is True
    assert on_record()["own"] == {"run": "own", "settings": {}, "results": ["--out"]}
    assert "own: recorded" in capsys.readouterr().out


def test_it_is_not_run_again(own, monkeypatch):
    own()
    monkeypatch.setattr(run.subprocess, "Popen", None)
    assert own() is True


def test_it_goes_on_where_it_was_interrupted(own):
    (run.RUNS / "own" / "memory").mkdir(parents=True)
    for file in ("config.json", "results.json"):
        (run.RUNS / "own" / file).write_text("{}")
    own()
    assert on_record()["own"]["results"] == ["--resume"]


def test_it_begins_anew_where_it_notes_nothing(own):
    (run.RUNS / "own").mkdir(parents=True)
    (run.RUNS / "own" / "config.json").write_text("{}")
    own()
    assert on_record()["own"]["results"] == ["--out"]


def test_it_is_recorded_where_it_is_complete(own, monkeypatch):
    (run.RUNS / "own").mkdir(parents=True)
    (run.RUNS / "own" / "config.json").write_text("{}")
    (run.RUNS / "own" / "results.json").write_text("[1]")
    monkeypatch.setattr(run.subprocess, "Popen", None)
    assert own() is True
    assert on_record()["own"]["results"] == [1]


# ------------------------------------------------------------------------------------- the program
@pytest.fixture
def asked(studies, write, monkeypatch):
    """What main() asks record_all() for; it is told that all runs but those of "bad" end well."""
    write("a 1 python ncl.py\n")
    write("a 1 python ncl.py\nb-cpu 1-2 python ncl.py\n", "mixed")
    write("a-cpu 1 python ncl.py\n", "small")
    write("a 1 python ncl.py\n", "bad")
    calls = []

    def record(*args):
        calls.append(args)
        return args[0] != "bad"

    monkeypatch.setattr(run, "record_all", record)
    return calls


def exit_code(command):
    with pytest.raises(SystemExit) as stop:
        run_program(command)
    return stop.value.code


def test_the_exit_code_says_whether_all_ended_well(asked):
    assert exit_code("run.py bad q") == 1
    assert exit_code("run.py q small") == 0
    assert [call[0] for call in asked] == ["bad", "q", "q", "small"]


def test_an_unknown_question_is_refused(asked, capsys):
    assert exit_code("run.py nothing") == 2
    assert "'nothing'" in capsys.readouterr().err


def test_flags_and_minutes_are_handed_on(asked):
    exit_code("run.py q --minutes 2 --flags=--compile")
    _, runs, *_, end = asked[0]
    assert " ".join(runs["a-seed1"][0]) == "ncl.py --compile --seed 1"
    assert 100 < end - time.monotonic() < 121


@pytest.mark.parametrize("name, device", {"a-cpu-seed1": "cpu", "a-seed1": "cuda"}.items())
def test_a_cpu_run_is_made_on_one(name, device):
    assert run.device_of(name, "cuda") == device


def test_what_is_asked_for_is_handed_on(asked):
    exit_code("run.py q --rows a --seeds 4 --device cuda --jobs 3 --data-root d")
    assert list(asked[0][1]) == ["a-seed4"]
    assert asked[0][2:] == (3, "cuda", "d", math.inf)


def test_jobs_are_the_cores_or_the_gpu(asked, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", [6].pop)
    exit_code("run.py small mixed q --device cuda")
    assert [call[2] for call in asked] == [6, 1, 1]
