"""Tests of study.py, report.py, draw.py and benchmark.py."""

import argparse
import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import benchmark
import draw
import numpy as np
import pytest
import report
import study
import torch

import bayesncl
import common
import shapes
import sparsehead
from conftest import refusal, run_program


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Where report.py and study.py look for records: an empty folder."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def leave_run(folder, finished=True, **numbers):
    """The files of a run of two dimensions: rates 0.5 and 0.1, Cons. 20 and 80 %."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"method": "ncl", "dataset": "mine", "data_root": "."}')
    (folder / "dimensions.csv").write_text("dimension,act,cons\n0,0.5,0.2\n1,0.1,0.8\n")
    z = np.float16([[1, 0, 0], [1, 2, 0]] * 2)
    np.savez(folder / "embeddings.npz", h=z, z=z, y=[0, 1, 1, 1])
    lines = [{"epoch": 1, "open": 0.25}]
    if finished:
        lines.append({"event": "final", "epochs": 1} | numbers)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)


# ---------------------------------------------------------------------------- report.py: a record
def test_a_record_joins_its_files(results):
    leave_run(results / "a", lp1=1.0, act=None)
    (results / "a" / "words.json").write_text('{"lp1": 2, "nameable": 3}')
    found = report.record(results / "a")
    assert (found["lp1"], found["open"], found["nameable"]) == (2, 0.25, 3)  # the later one counts
    assert "act" not in found  # what is undefined


def test_final_numbers_count_before_those_of_dimensions(results):
    leave_run(results / "a", cons_weighted=7.0)
    assert report.record(results / "a")["cons_weighted"] == 7


@pytest.mark.parametrize("tool", ["finetune", "robustness", "selection", "words", "stability"])
def test_a_record_has_the_numbers_of_tools(results, tool):
    leave_run(results / "a")
    (results / "a" / f"{tool}.json").write_text('{"told": 5}')
    assert report.record(results / "a")["told"] == 5


def test_an_unfinished_run_has_no_numbers(results):
    leave_run(results / "a", finished=False)
    assert report.record(results / "a") == report.record(results / "nowhere") == {}


def csv_columns(tmp_path, text):
    (tmp_path / "dimensions.csv").write_text(text)
    return report.dimensions(tmp_path)


def test_dimensions_are_counted_by_their_rates(tmp_path):
    columns = csv_columns(tmp_path, "act,cons\n0,\n0.0005,1\n0.001,0.6\n0.5,0.2\n")
    found = report.from_dimensions(columns)
    assert found["cons_0.001"] == pytest.approx(40)
    assert found["cons_weighted"] == pytest.approx(100 * 0.1011 / 0.5015)
    assert found["entries"] == pytest.approx(0.5015)
    assert (found["rare_dims"], found["dead_dims"]) == (1, 25)


def test_shares_that_no_dimension_reaches_are_left_out(tmp_path):
    found = report.from_dimensions(csv_columns(tmp_path, "act,cons\n0.005,1\n0,\n"))
    assert "cons_0.001" in found
    assert "cons_0.01" not in found


def test_a_dimension_stands_for_a_background_from_90_percent(tmp_path):
    head = "act,cons,background_cons,background_class\n"
    rows = "0.1,1,0.9,0\n0.3,1,1,0\n0.2,1,0.89,0\n0.4,1,1,1\n"
    found = report.from_dimensions(csv_columns(tmp_path, head + rows))
    first, second, third, *_ = shapes.BACKGROUNDS
    assert found[f"rate_{first}"] == pytest.approx(0.2)
    assert [found[f"dims_{name}"] for name in (first, second, third)] == [2, 1, 0]
    assert found[f"rate_{third}"] == 0


# ------------------------------------------------------------------------------ report.py: a cell
@pytest.fixture
def six_records(results):
    """Seeds 1 to 3 of a, whose lp1 is 1, 2 and 6, and of b, whose lp1 is 1."""
    for seed, lp1 in enumerate((1.0, 2.0, 6.0), 1):
        leave_run(results / f"a-seed{seed}", lp1=lp1, act=None)
        leave_run(results / f"b-seed{seed}", lp1=1.0)
    return results


def refused_cell(*args):
    """The line with which a cell is refused."""

    def ask():
        report.image_cell(*args)

    return refusal(ask)


def test_a_cell_is_the_mean_over_seeds(six_records):
    cell = report.image_cell("[A](a-seed1)", "{lp1:.1f} / {open:.0%}")
    assert cell == "3.0 ± 2.6 / 25 % ± 0 %"  # √(14 / 2)


def test_two_links_are_a_difference(six_records):
    cell = report.image_cell("[A](a-seed1) − [B](results/b-seed1)", "{lp1:.1f}")
    assert cell == "2.0 ± 2.6"


def test_differences_are_by_seed(six_records):
    for seed, lp1 in enumerate((1.0, 2.0, 6.0), 1):
        leave_run(six_records / f"b-seed{seed}", lp1=lp1 - 1)
    assert report.image_cell("[A](a-seed1) − [B](b-seed1)", "{lp1:.1f}") == "1.0 ± 0.0"


def test_two_seeds_have_no_deviation(six_records):
    assert report.image_cell("[A](a-seed1)", "{lp1:.1f}", "1, 2") == "1.5"


def test_wanted_seeds_alone_are_shown(six_records):
    cell = report.image_cell("[A](a-seed1)", "{cons_weighted:.0f} {cons_0.01:.0f}", "3")
    assert cell == "30 50"


def test_a_name_without_a_seed_is_one_run(six_records):
    leave_run(six_records / "first-command", lp1=9.0)
    assert report.image_cell("[A](first-command)", "{lp1:.1f}") == "9.0"


def test_a_number_that_no_record_has_is_no_cell(six_records):
    assert report.image_cell("[A](a-seed1)", "{act:.1f}") is None


def test_there_is_no_minus_zero(six_records):
    cell = report.image_cell("[B](b-seed1) − [A](a-seed1)", "{lp1:.0f} {open:.1f}", "1")
    assert cell == "0 0.0"
    leave_run(six_records / "c", lp1=-0.04)
    assert report.image_cell("[C](c)", "{lp1:.1f}") == "0.0"
    assert report.image_cell("[C](c)", "{lp1:.2f}") == "-0.04"


def test_an_unfinished_record_is_refused(six_records):
    leave_run(six_records / "a-seed2", finished=False)
    error = refused_cell("[A](a-seed1)", "{lp1:.1f}")
    assert "shows a-seed1, seeds on record, which" in error


def test_a_record_that_is_not_there_is_refused(six_records):
    error = refused_cell("[A](a-seed1)", "{lp1:.1f}", "1, 7")
    assert "shows a-seed1, seeds 1, 7, which" in error


def test_a_number_that_some_records_lack_is_refused(six_records):
    leave_run(six_records / "a-seed2")
    error = refused_cell("[A](a-seed1)", "{lp1:.1f}")
    assert "of some of these records there is no 'lp1'" in error


def test_a_difference_of_other_seeds_is_refused(six_records):
    shutil.rmtree(six_records / "b-seed2")
    error = refused_cell("[A](a-seed1) − [B](b-seed1)", "{lp1:.1f}")
    assert "of some of these records there is no '2'" in error


def setting(statistic, end, std=0.0, name="lr 1"):
    numbers = dict(start=0.1, end_mean=end, end_std=std)
    return dict(experiment="budget", setting=name, statistic=statistic) | numbers


@pytest.fixture
def landscape(results):
    """landscape_cell of a record with these rows."""

    def cell(rows, label="budget: lr 1"):
        (results / "few").mkdir(exist_ok=True)
        (results / "few" / "results.json").write_text(json.dumps(rows))
        return report.landscape_cell("few", label)

    return cell


def test_a_landscape_cell_has_three_statistics(landscape):
    earlier = [setting(statistic, 0.0) for statistic in ("min", "median", "max")]
    last = [setting("min", 0.254, 0.012), setting("median", 0.5), setting("max", 1.0)]
    assert landscape(earlier + last) == "1.00 / .50 / .25 ± .01"


def test_a_landscape_cell_goes_from_its_start(landscape):
    assert (
        landscape([setting("min", 0.2), setting("min", 0.9, 0.1)]) == ".10 → .20 ± .00 → .90 ± .10"
    )


def test_a_landscape_cell_is_of_its_setting(landscape):
    rows = [setting("min", 0.2), setting("min", 0.9, name="lr 2")]
    assert landscape(rows) == ".10 → .20 ± .00"
    assert landscape(rows, "budget: lr 3") is None


# ----------------------------------------------------------------------------- report.py: a table
SEEDS_TABLE = """| x | LP@1 | seeds | note |
|---|---|---|---|
| [A](a-seed1) | {} | 1, 2 | by hand |
| B | 7 | 1 | |
"""


def test_a_table_is_filled_where_records_are_linked(six_records):
    assert report.with_tables(SEEDS_TABLE.format("?")) == SEEDS_TABLE.format("1.5")


def test_text_around_tables_stays(six_records):
    page = "one\n\n{}\ntwo | three\n\n{}\nend"
    before = page.format(SEEDS_TABLE.format("3"), SEEDS_TABLE.format("4"))
    after = page.format(SEEDS_TABLE.format("1.5"), SEEDS_TABLE.format("1.5"))
    assert report.with_tables(before) == after


@pytest.mark.parametrize("old, new", [("12.0", "–"), ("–", "–"), ("none", "none")])
def test_a_number_that_is_gone_becomes_a_dash(six_records, old, new):
    table = "| x | Act. |\n|---|---|\n| [A](a-seed1) | {} |\n"
    assert report.with_tables(table.format(old)) == table.format(new)


def test_a_landscape_table_is_filled_by_its_heading(landscape):
    landscape([setting("min", 0.2)])
    table = "| x | [n](results/few) |\n|---|---|\n| budget: lr 1 | {} |\n| other | 3 |\n"
    assert report.with_tables(table.format("?")) == table.format(".10 → .20 ± .00")


def test_the_list_of_records_has_a_row_for_each_kind(results):
    for seed, seconds in (1, 10.0), (2, 21.0):
        leave_run(results / f"a-seed{seed}", seconds_train=seconds)
        facts = dict(seed=seed, commit="abc", hardware="a CPU", torch="2.1", date=None)
        (results / f"a-seed{seed}" / "config.json").write_text(json.dumps(facts))
    table = "| records | seeds |\n|---|---|\n| old | 1 |\n"
    row = report.with_tables(table).splitlines()[2:]
    assert row == ["| [a](a-seed1) | 1, 2 | abc | a CPU | 2.1 | not noted | 16 |"]


def test_a_sentence_whose_number_no_table_has_is_found():
    table = "| x |\n|---|\n| 0.50 and 12.5 |\n"
    prose = "It is .50 or 12.5. It was 3.75 before. In `3.9` and [a](b-1.5.md) none. No 7.\n"
    assert report.unchecked(f"{prose}\n{table}") == ["It was 3.75 before."]


def test_output_in_a_page_counts_as_a_table():
    assert report.unchecked("```\n| 4.25 |\nLP@1 4.5\n```\nIt is 4.25. It is 4.5.\n") == []


@pytest.fixture
def page(six_records, tmp_path, monkeypatch):
    """A page whose table is not as the records have it, in place of the real ones."""
    path = tmp_path / "README.md"
    path.write_text(SEEDS_TABLE.format("9"))
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "PAGES", [path])
    return path


def test_check_tells_a_difference_and_changes_nothing(page, capsys):
    with pytest.raises(SystemExit) as stop:
        run_program("report.py --check")
    assert stop.value.code == 1
    assert "README.md, by the records: | [A](a-seed1) | 1.5 |" in capsys.readouterr().out
    assert page.read_text() == SEEDS_TABLE.format("9")


def test_report_rewrites_a_page_and_then_check_passes(page, monkeypatch):
    monkeypatch.setattr(report, "draw_background_rates", list)
    run_program("report.py")
    assert page.read_text() == SEEDS_TABLE.format("1.5")
    with pytest.raises(SystemExit) as stop:
        run_program("report.py --check")
    assert stop.value.code == 0


# ----------------------------------------------------------------------- the pages and the records
RECORDS = [folder for folder in sorted(report.RESULTS.iterdir()) if folder.is_dir()]
RESULTS_PAGE = (report.RESULTS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", report.PAGES, ids=["README", "results"])
def test_tables_are_as_the_records_have_them(path):
    text = path.read_text(encoding="utf-8")
    assert report.with_tables(text) == text, "python tools/report.py rewrites it"


@pytest.mark.parametrize("path", report.PAGES, ids=["README", "results"])
def test_a_page_shows_records_of_the_built_in_data(path):
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:3] == "| ["]
    assert sum("shapes-" in row and "-seed1) |" in row for row in rows) >= 5


def test_every_cell_says_something():
    rows = [line for line in RESULTS_PAGE.splitlines() if line.startswith("|")]
    assert [row for row in rows if {"", "–"} & {*report.cells_of(row)}] == []


def test_records_say_where_and_when_they_were_made():
    for folder in RECORDS:
        settings = json.loads((folder / "config.json").read_text())
        assert {"hardware", "torch", "date"} <= settings.keys(), folder
        assert settings.get("data_root", "data") == "data", folder  # no path of a machine


def test_records_are_finished():
    for folder in RECORDS:
        landscape = folder / "results.json"
        found = json.loads(landscape.read_text()) if landscape.exists() else report.record(folder)
        assert found, folder


def test_records_are_listed():
    for folder in RECORDS:
        kind = folder.name
        if kind[-6:-1] == "-seed":
            kind = kind[:-6]
        assert f"| [{kind}](" in RESULTS_PAGE, folder


# ------------------------------------------------------------------------------ study.py: commands
class Parsed(Exception):
    """A command line is good."""


@pytest.mark.parametrize("name", study.STUDIES)
def test_commands_of_a_study_parse(monkeypatch, name):
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(*args):
        parse(*args)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    for lines in study.commands(name, None, None, "--checkpoint-every 50").values():
        for program, *argv in lines:
            if "/" in program:
                argv = ["runs/run", *argv]
            module = importlib.import_module(program.rpartition("/")[2][:-3])
            monkeypatch.setattr(sys, "argv", [program, *argv])
            reads = module.parser().parse_args if hasattr(module, "parser") else module.main
            with pytest.raises(Parsed):
                reads()


def test_a_command_has_the_flags_of_study_row_and_caller():
    (lines,) = study.commands("cifar10-cpu", ["bayesncl"], [2], "--x 1").values()
    flags = "--dataset cifar10 --preset default --arch resnet8 --epochs 20 --limit 10000"
    own = "--prior 0.8 --kl-weight 3e-4"
    assert " ".join(lines[0]) == f"bayesncl.py {flags} {own} --x 1 --seed 2"


def test_seeds_are_outermost_and_what_reads_runs_is_last():
    names = [*study.commands("shapes-sparsity", ["sae-2", "simclr", "ncl-2"], [2, 1], "")]
    expected = ["simclr-seed1", "ncl-2-seed1", "simclr-seed2", "ncl-2-seed2"]
    expected += ["sae-2-seed1", "sae-2-seed2"]
    assert names == [f"shapes-sparsity-{name}" for name in expected]


def test_an_autoencoder_reads_the_run_of_its_study_and_seed():
    (lines,) = study.commands("shapes-sparsity", ["sae-2"], [3], "").values()
    assert lines[0][:2] == ["sae.py", "runs/shapes-sparsity-simclr-seed3"]


@pytest.mark.parametrize(
    "rows, seeds, expected",
    [
        (["ncl", "ncl-topk"], None, [1, 2, 3, 4, 5, 1, 2, 3]),
        (["ncl-lars"], None, [1]),  # which is not in the study
        (["ncl"], [0, 9], [0, 9]),
    ],
    ids=["the study's", "another row's", "wanted"],
)
def test_seeds_are_those_of_the_study_or_the_wanted(rows, seeds, expected):
    names = study.commands("shapes", rows, seeds, "")
    assert sorted(int(name[-1]) for name in names) == sorted(expected)


@pytest.mark.parametrize(
    "of, programs",
    {
        ("shapes", "ncl"): ["robustness", "selection", "finetune"],
        ("shapes", "simclr"): ["robustness", "selection", "finetune", "finetune"],
        ("shapes", "bayesncl-soft"): ["selection"],
        ("shapes", "mmncl"): ["selection", "words"],
        ("shapes", "clip-tau-0.05"): ["selection", "words"],
        ("shapes-grid", "bayesncl-prior0.3-kl-weight3e-4"): [],
        ("cifar10-cpu", "ncl"): ["robustness", "selection"],
        ("cifar10-cpu", "ncl-after-5"): [],
        ("cifar100", "ncl"): ["selection"],
        ("cifar100-cpu", "ncl"): [],
    }.items(),
    ids=" ".join,
)
def test_a_run_is_given_to_tools(of, programs):
    lines = study.afterwards(*of, seed=4)
    assert [line.split()[0] for line in lines] == [f"tools/{name}.py" for name in programs]


def test_fine_tuning_has_the_rates_and_the_seed():
    *_, tuned, scratch = study.afterwards("shapes", "simclr", 4)
    assert tuned == "tools/finetune.py --seed 4 --lr 0.01 0.2 0.2"
    assert scratch == "tools/finetune.py --seed 4 --lr 0.01 0.05 0.2 --from-scratch"


# -------------------------------------------------------------------------------- study.py: a run
@pytest.fixture
def studied(tmp_path, results, monkeypatch):
    """A folder in which study.py works: runs/, results/ and programs to come."""
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(study, "RUNS", tmp_path / "runs")
    (tmp_path / "tools").mkdir()
    return tmp_path


@pytest.fixture
def started(studied, monkeypatch):
    """What study.start() would call: the command and the environment."""
    calls = []

    def popen(command, env, **_):
        calls.append((command[1:], env))

    monkeypatch.setattr(study.subprocess, "Popen", popen)
    return calls


def test_a_new_run_has_a_folder_of_its_own(started):
    study.start("a", ["ncl.py", "--x"], "cpu", "d")
    words = started[0][0]
    assert " ".join(words) == "ncl.py --x --out runs/a --device cpu --data-root d"


def test_an_interrupted_run_is_resumed(started, studied):
    leave_run(studied / "runs" / "a", finished=False)
    study.start("a", ["ncl.py"], "cpu", "d")
    assert started[0][0][1:3] == ["--resume", "runs/a"]


def test_an_evaluation_begins_anew(started, studied):
    leave_run(studied / "runs" / "a", finished=False)
    study.start("a", ["ncl.py", "--eval-only", "b"], "cpu", "d")
    assert started[0][0][1:5] == ["--eval-only", "b", "--out", "runs/a"]
    assert not (studied / "runs" / "a").exists()


def test_a_tool_is_given_the_folder_first(started):
    study.start("a", ["tools/finetune.py", "--lr", "1"], "cpu", "d")
    assert " ".join(started[0][0]) == "tools/finetune.py runs/a --lr 1 --data-root d"


def test_a_run_on_a_cpu_has_one_thread_and_no_gpu(started, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for device in ("cpu", "cuda"):
        study.start("a", ["ncl.py"], device, "d")
    (_, on_cpu), (_, on_gpu) = started
    assert (on_cpu["OMP_NUM_THREADS"], on_cpu["CUDA_VISIBLE_DEVICES"]) == ("1", "")
    assert on_gpu == os.environ


# ----------------------------------------------------------------------------- study.py: all runs
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
    file.write('{"cons": 7, "words": []}')
"""
RUNS = {
    "a": [["method.py"], ["tools/more.py"]],
    "b": [["method.py"]],
    "c": [["method.py", "--bad", "1"], ["no"]],
}


@pytest.fixture
def programs(studied):
    """A method that copies the run "done", and a tool; run b was interrupted."""
    leave_run(studied / "done", lp1=50.0)
    leave_run(studied / "runs" / "b", finished=False)
    (studied / "method.py").write_text(METHOD)
    (studied / "tools" / "more.py").write_text(TOOL)
    return studied


def record_all(names, jobs=2, end=math.inf):
    runs = {name: RUNS[name] for name in names}
    return study.record_all(runs, jobs, "cpu", "data", end)


def test_a_study_records_what_ended_well(programs, results):
    assert record_all("ab") is True
    kept = {folder.name: report.record(folder) for folder in results.iterdir()}
    assert {name: found["lp1"] for name, found in kept.items()} == {"a": 50, "b": 50}
    assert (kept["a"]["cons"], "cons" in kept["b"]) == (7, False)  # the tool's


def test_a_study_says_what_it_starts(programs, capsys):
    record_all("ab")
    lines = capsys.readouterr().out.splitlines()
    assert "a: method.py --out runs/a --device cpu --data-root data" in lines
    assert "b: method.py --resume runs/b --device cpu --data-root data" in lines
    assert "a: tools/more.py runs/a --data-root data" in lines


def test_a_run_that_fails_is_told_and_not_recorded(programs, results, capsys):
    assert record_all("cb") is False
    assert "c: exit code 1: a reason" in capsys.readouterr().err
    assert [folder.name for folder in results.iterdir()] == ["b"]


def test_dimensions_are_recorded_by_todays_definitions(programs, results):
    record_all("b")
    head, *rows = (results / "b" / "dimensions.csv").read_text().splitlines()
    assert head.startswith("dimension,n,act,mean,mono,class,cons,chance,adjusted,entropy,bits,best")
    assert rows == [
        "0,4,1,0.723607,0.368524,1,0.75,0.75,0,0.644611,0,1,0.857143,0,0.666667,0.408248",
        "1,2,0.5,0.447214,0.368524,1,1,0.735,1,0,0,1,0.8,0.57735,0.916667,0.408248",
        "2,0,0,0,,,,,,,0,,,,,",
    ]


def test_dense_dimensions_are_recorded_whole(programs, results):
    z = np.random.default_rng(0).normal(size=(100, 3))
    np.savez(programs / "done" / "embeddings.npz", h=z, z=z, y=np.arange(100) % 2)
    record_all("b")
    columns = report.dimensions(results / "b")
    assert columns["dimension"].tolist() == [0, 1, 2]  # not +0, -0, …
    assert columns["n"].tolist() == [100, 100, 100]


def test_what_is_recorded_is_not_run_again(programs, results, monkeypatch):
    record_all("a")
    monkeypatch.setattr(study.subprocess, "Popen", None)
    assert record_all("a") is True


def test_no_more_jobs_at_a_time_than_asked_for(programs, monkeypatch):
    running = []
    popen = subprocess.Popen

    def count(*args, **options):
        running.append(popen(*args, **options))
        assert sum(program.poll() is None for program in running) <= 1
        return running[-1]

    monkeypatch.setattr(study.subprocess, "Popen", count)
    assert record_all("ab", jobs=1) is True
    assert len(running) == 3


def test_a_run_that_reads_another_waits_for_it(programs, results):
    slow = f"import time\ntime.sleep(0.5)\n{METHOD}"
    reader = f"import os\nassert os.path.exists('runs/a/metrics.jsonl')\n{METHOD}"
    (programs / "method.py").write_text(slow)
    (programs / "reader.py").write_text(reader)
    runs = {"a": [["method.py"]], "later": [["reader.py", "runs/a", "--x"]]}
    study.record_all(runs, 2, "cpu", "data", math.inf)
    assert "AssertionError" not in (programs / "runs" / "later.log").read_text()


@pytest.fixture
def endless(programs, monkeypatch):
    """The method never ends. The programs that are started."""
    (programs / "method.py").write_text("import time\ntime.sleep(1000)\n")
    popen = subprocess.Popen
    running = []

    def start(*args, **options):
        running.append(popen(*args, **options))
        return running[-1]

    monkeypatch.setattr(study.subprocess, "Popen", start)
    return running


def test_minutes_end_a_study_and_its_runs(endless):
    with pytest.raises(SystemExit, match="--minutes are over; the same command goes on"):
        record_all("a", end=time.monotonic() + 0.3)
    assert [program.poll() for program in endless] == [-signal.SIGTERM]


def test_an_interrupt_ends_a_study_and_its_runs(endless, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(study.time, "sleep", interrupted)
    with pytest.raises(SystemExit, match="interrupted; the same command goes on"):
        record_all("a")
    assert [program.poll() for program in endless] == [-signal.SIGTERM]


def test_a_long_study_says_how_far_it_is(endless, monkeypatch, capsys):
    monkeypatch.setattr(study, "TELL_EVERY", 0.2)
    with pytest.raises(SystemExit):
        record_all("ab", jobs=1, end=time.monotonic() + 0.7)
    assert "0/2 runs have ended; running: a\n" in capsys.readouterr().err


def test_checkpoints_on_the_way_are_kept(studied):
    folder = studied / "runs" / "cifar100-cpu-a"
    leave_run(folder)
    seen = {}
    for epochs in 5, 5, 10:
        torch.save(dict(epochs=epochs), folder / "checkpoint.pt")
        study.keep_checkpoint(folder.name, seen)
    kept = {path.name for path in folder.glob("checkpoint-*")}
    assert kept == {"checkpoint-5.pt", "checkpoint-10.pt"}
    assert common.load_checkpoint(folder / "checkpoint-5.pt") == dict(epochs=5)


def test_a_checkpoint_is_read_once(studied, monkeypatch):
    folder = studied / "runs" / "cifar100-cpu-a"
    leave_run(folder)
    torch.save(dict(epochs=5), folder / "checkpoint.pt")
    seen = {}
    study.keep_checkpoint(folder.name, seen)
    monkeypatch.setattr(common, "load_checkpoint", None)
    study.keep_checkpoint(folder.name, seen)


def test_checkpoints_of_other_studies_are_not_kept(studied):
    folder = studied / "runs" / "cifar10-cpu-a"
    leave_run(folder)
    torch.save(dict(epochs=5), folder / "checkpoint.pt")
    study.keep_checkpoint(folder.name, {})
    assert [path.name for path in folder.glob("checkpoint*")] == ["checkpoint.pt"]


@pytest.fixture
def asked(monkeypatch):
    """What study.py's main() asks record_all() for; it is told that the runs end well."""
    calls = []

    def record(*args):
        calls.append(args)
        return "simclr" not in str(args[0])

    monkeypatch.setattr(study, "record_all", record)
    return calls


def program_exit(command):
    with pytest.raises(SystemExit) as stop:
        run_program(command)
    return stop.value.code


def test_the_exit_code_says_whether_all_ended_well(asked):
    assert program_exit("study.py shapes-grid cifar10-cpu-page") == 1
    assert program_exit("study.py shapes-grid shapes-bases --rows ncl") == 0
    assert len(asked) == 4


def test_minutes_ask_for_a_checkpoint_an_epoch(asked):
    program_exit("study.py shapes --rows ncl --seeds 1 --minutes 2 --flags=--compile")
    runs, *_, end = asked[0]
    assert " ".join(runs["shapes-ncl-seed1"][0]) == "ncl.py --compile --checkpoint-every 1 --seed 1"
    assert 100 < end - time.monotonic() < 121


@pytest.mark.parametrize("name, device", {"cifar10-cpu": "cpu", "cifar10": "cuda"}.items())
def test_a_study_of_a_cpu_runs_on_one(asked, name, device):
    program_exit(f"study.py {name} --rows ncl --device cuda --jobs 3 --data-root d")
    assert asked[0][1:] == (3, device, "d", math.inf)


def test_jobs_are_the_cores_or_the_gpu(asked, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", [6].pop)
    program_exit("study.py cifar10-cpu cifar10 --rows ncl --device cuda")
    assert [call[1] for call in asked] == [6, 1]


# ----------------------------------------------------------------------------------------- draw.py
@pytest.fixture
def drawn(monkeypatch):
    """The figures that draw.py would write, by name."""
    figures = {}

    def keep(figure, path):
        figures[path.name] = figure
        draw.plt.close(figure)

    monkeypatch.setattr(draw, "save", keep)
    return figures


def lines_of(panel):
    """{label: (x, y)} of the curves of a panel."""
    curves = {}
    for line in panel.get_lines():
        curves[line.get_label()] = line.get_xdata().tolist(), line.get_ydata().tolist()
    return curves


def test_one_seed_has_no_deviation():
    mean, std = draw.mean_and_std([[1, 3], [3, 3]])
    assert (mean.tolist(), std.tolist()) == ([2, 3], [pytest.approx(2**0.5), 0])
    assert draw.mean_and_std([[1, 3]])[1].tolist() == [0, 0]


def test_collapse_is_drawn_by_epoch(drawn, tmp_path):
    lines = [dict(epoch=1, spread=0.9), dict(epoch=2, spread=0.4), dict(event="final")]
    draw.collapse(tmp_path / "collapse.png", lines)
    curve = drawn["collapse.png"].axes[0].get_lines()[0]
    assert curve.get_xydata().tolist() == [[1, 0.9], [2, 0.4]]


def label_of(x):
    values = sparsehead.spectrum(x)
    return f"{sparsehead.effective_rank(values):.1f} of {len(values)}"


ratio = sparsehead.min_max_ratio


def test_spectra_are_eigenvalues_and_ratios(drawn, tmp_path):
    h, z = torch.randn(40, 4), torch.randn(40, 8)
    draw.spectra(tmp_path / "spectra.png", {"a": {"h": h, "z": z}})
    of_h, of_z, ratios = drawn["spectra.png"].axes
    ((x, y),) = lines_of(of_h).values()
    expected = torch.linalg.eigvalsh(torch.cov(h.T.double())).flip(0).tolist()
    assert (x, y) == ([1, 2, 3, 4], pytest.approx(expected))
    assert len(lines_of(of_z)["a, effective rank " + label_of(z)][0]) == 8
    assert lines_of(ratios)["a"] == ([4, 8], [ratio(z[:, :4]), ratio(z)])


def final_record(shift):
    numbers = {"p_at_10": 50.0 + shift, "lp1_embedding": 60.0 + shift}
    for m in (8, 16):
        for kind in ("top", "random"):
            numbers[f"p_at_10_{kind}_{m}"] = m + shift
            numbers[f"lp1_{kind}_{m}"] = 2 * m + shift
    return numbers


def test_selection_is_the_mean_over_seeds(drawn, tmp_path):
    seeds = [final_record(0.0), final_record(4.0)]
    draw.selection(tmp_path / "selection.png", {"ncl": seeds})
    left, right = drawn["selection.png"].axes
    assert lines_of(left)["ncl, top"] == ([8, 16, 32], [10, 18, 52])
    assert lines_of(right)["ncl, random"] == ([8, 16, 32], [18, 34, 62])


def titled(*configs):
    return draw.titles([(Path(f"run{i}"), config, {}) for i, config in enumerate(configs)])


def test_titles_are_what_the_runs_differ_in():
    first, second = dict(method="ncl", seed=1), dict(method="ncl", seed=2)
    assert titled(first, second) == ["seed 1", "seed 2"]
    assert titled(first, second, dict(method="simclr", seed=1))[2] == "method simclr, seed 1"


def test_titles_are_folders_where_settings_do_not_tell():
    first, second = dict(method="ncl", seed=1), dict(method="ncl", seed=2)
    assert titled(first, first, second) == ["run0", "run1", "run2"]
    assert titled(first) == ["run0"]


def test_a_landscape_has_a_colour_for_each_program(drawn, tmp_path):
    curves = {}
    for i, setting in enumerate(("simclr, lr 1", "simclr, lr 2", "noncl, lr 1")):
        curves[f"few/{setting}/lr_times_steps"] = np.array([1.0, 2.0])
        curves[f"few/{setting}/min"] = np.array([[0.1, 0.3], [0.2, 0.6]]) + i
        curves[f"few/{setting}/loss"] = np.array([[1.0], [2.0]])
    draw.landscape(tmp_path, curves)
    lines = drawn["few.png"].axes[0].get_lines()
    assert [line.get_color() for line in lines] == ["C0", "C0", "C1"]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-"]
    assert lines[0].get_ydata().tolist() == pytest.approx([0.2, 0.4])


def test_a_damaged_landscape_is_refused(tmp_path):
    (tmp_path / "curves.npz").write_text("no archive")

    def ask():
        draw.landscapes([tmp_path])

    assert "curves.npz cannot be read" in refusal(ask)


def test_background_rates_are_drawn(tmp_path):
    seeds = [report.dimensions(folder) for folder in RECORDS if "shapes-ncl-seed" in folder.name]
    draw.background_rates({"NCL": seeds, "again": seeds}, report.of_background, tmp_path)
    assert (tmp_path / "background-rates.png").stat().st_size > 10_000


# ------------------------------------------------------------------------------------ benchmark.py
def test_the_gate_costs_what_the_paper_says():
    small = benchmark.cost(bayesncl.PRESETS["cifar100"])
    weights, biases = 512 * 2048 + 2048 * 256, 2048 + 256
    assert small["params"] - small["params_ncl"] == weights + biases
    assert small["flops"] - small["flops_ncl"] == 2 * weights


@pytest.mark.parametrize("name, giga", {"cifar100": 0.003, "imagenet100": 0.084}.items())
def test_the_gates_flops_are_the_papers(name, giga):
    found = benchmark.cost(bayesncl.PRESETS[name])
    assert round((found["flops"] - found["flops_ncl"]) / 1e9, 3) == giga


def test_costs_are_printed(capsys):
    run_program("benchmark.py --cost")
    assert "params_ncl 12,744,000  params 14,319,168" in capsys.readouterr().out


def test_a_time_is_the_median_without_the_first(monkeypatch):
    clock = iter([0, 50, 50, 50.1, 60, 60.8, 70, 70.2])
    monkeypatch.setattr(benchmark.time, "perf_counter", clock.__next__)
    assert benchmark.seconds(list) == pytest.approx(0.2)


def test_large_latents_are_a_csr_matrix():
    arrays, y = benchmark.sparse_arrays(200, 512, 16, 4)
    start, dims = arrays["indptr"], arrays["indices"]
    rows = [set(dims[start[i] : start[i + 1]].tolist()) for i in range(200)]
    assert sum(map(len, rows)) == len(dims) == len(arrays["data"])  # no latent twice
    same = [len(rows[0] & rows[i]) for i in range(1, 200) if y[i] == y[0]]
    other = [len(rows[0] & rows[i]) for i in range(1, 200) if y[i] != y[0]]
    assert np.mean(same) > 2 * np.mean(other)


def test_a_program_is_measured(tmp_path):
    (tmp_path / "program.py").write_text("x = bytearray(100_000_000)\nprint('done')\n")
    out, memory = benchmark.measured("it", [tmp_path / "program.py"])
    assert out == "done\n"
    assert 95 < memory < 300


def test_a_program_that_fails_is_told(tmp_path):
    (tmp_path / "program.py").write_text("import sys\nsys.exit('a reason')\n")

    def ask():
        benchmark.measured("it", [tmp_path / "program.py"])

    assert "it failed: a reason" in refusal(ask)
