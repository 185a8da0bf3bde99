"""Tests of records.py: what a record has of a run, and the files that are kept beside it."""

import csv
import json
import os
import shutil

import interpret
import shapes

import numpy as np
import pytest
import records
import report

# What the pages show of every run, and of each label beside the controls.
ALWAYS = "lp1 lp1_embedding knn5 knn5_embedding seconds_train spread act entries live_dims mono"
ALWAYS += " corr dead_dims rare_dims cons_weighted cons_0.001 p_at_10 dims_sky rate_sky"
COMPARED = "cons adjusted f1 best_f1 ap phi entropy".split()


@pytest.fixture
def studies(tmp_path, monkeypatch):
    """Where records.py looks for questions: one, "q", without records."""
    monkeypatch.setattr(records, "STUDIES", tmp_path / "studies")
    (tmp_path / "studies" / "q").mkdir(parents=True)
    return tmp_path / "studies"


@pytest.fixture
def run(tmp_path):
    """A finished run of two epochs and three dimensions, the last of them dead."""
    folder = tmp_path / "runs" / "a-seed2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"method": "ncl", "dataset": "mine", "data_root": "."}')
    lines = [{"epoch": 1, "open": 0.5}, {"epoch": 2, "open": 0.25, "spread": 0.75, "loss": 1.5}]
    lines.append({"event": "final", "lp1": 1.0, "act": None})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    z = np.float16([[1, 0, 0], [2, 2, 0]] * 2)
    np.savez(folder / "embeddings.npz", h=z, z=z, y=[0, 1, 1, 1])
    leave_interpret(folder)
    return folder


def leave_interpret(folder, rule="nonzero", **numbers):
    """interpret.json with these numbers of the run and 1 of each control."""
    controls = dict.fromkeys(interpret.CONTROLS, dict.fromkeys(numbers, 1.0))
    measured = {"active": rule, "images": 4, "numbers": numbers} | controls
    (folder / "interpret.json").write_text(json.dumps(measured))


def test_a_record_has_the_files_of_a_run(run):
    found = records.of_run(run)
    assert (found["run"], found["seed"], found["settings"]["method"]) == ("a", 2, "ncl")
    assert found["epoch"]["open"] == 0.25
    assert found["final"]["lp1"] == 1


@pytest.mark.parametrize("tool", records.TOOLS)
def test_a_record_has_the_numbers_of_tools(run, tool):
    (run / f"{tool}.json").write_text('{"told": 5, "words": [["sky", 1]]}')
    assert records.of_run(run)[tool] == {"told": 5}


@pytest.mark.parametrize("rule, top", {"nonzero": "", "top:0.01": "top_"}.items())
def test_numbers_of_interpret_have_prefixes(run, rule, top):
    leave_interpret(run, rule, ap=3.0, background_lead=4.0)
    found = records.of_run(run)["interpret"]
    expected = {"active": rule, f"{top}ap": 3, f"{top}background_lead": 4}
    for control in "shuffled", "head", "rotated":
        expected |= {f"{control}_ap": 1, f"{control}_background_lead": 1}
    assert expected.items() <= found.items()


def test_whole_dimensions_are_measured_beside_halves(run):
    leave_interpret(run, "top:0.01", cons=100.0)
    found = records.of_run(run)["interpret"]
    assert (found["cons"], found["top_cons"]) == (100 * (0.75 + 1) / 2, 100)


def test_neighbours_are_counted(run):
    z = np.float16([[1, 0], [2, 0.1], [0, 1], [0.1, 1]])
    np.savez(run / "embeddings.npz", h=z, z=z, y=[3, 3, 7, 8], background=["a", "a", "b", "b"])
    found = records.of_run(run)["interpret"]
    assert (found["p_at_1"], found["background_p_at_1"]) == (50, 100)
    assert (found["p_at_3"], found["p_at_10"]) == (pytest.approx(100 / 6), None)


def test_a_run_that_was_not_measured_is_refused(run):
    (run / "interpret.json").unlink()
    with pytest.raises(FileNotFoundError):
        records.of_run(run)


@pytest.fixture(scope="module")
def measured(runs, tmp_path_factory):
    """Records of a run that is sparse and of one that is dense, by its method."""
    found = {}
    for method in "ncl", "simclr":
        folder = shutil.copytree(runs / method, tmp_path_factory.mktemp("measured") / method)
        interpret.main([str(folder)])
        found[method] = records.of_run(folder)
    return found


@pytest.mark.parametrize("method, top", {"ncl": "", "simclr": "top_"}.items())
def test_a_record_has_what_pages_show(measured, method, top):
    wanted = set(ALWAYS.split())
    for prefix in report.LABELS.values():
        for of in "", top, "shuffled_", "head_", "rotated_":
            wanted |= {f"{of}{prefix}{key}" for key in COMPARED}
        for key in f"{top}{prefix}lead", f"{top}{prefix}above", f"head_{prefix}probe_8":
            wanted.add(key)
    assert wanted <= records.numbers(measured[method]).keys()


@pytest.mark.parametrize("method", ["ncl", "simclr"])
def test_a_training_counts_as_interpret_does(measured, method):
    final, interpreted = measured[method]["final"], measured[method]["interpret"]
    for key in "act", "live_dims", "cons", "entropy", "background_cons":
        assert interpreted[key] == pytest.approx(final[key], rel=1e-3), key
    assert interpreted["adjusted"] == pytest.approx(final["adjusted"], abs=0.5)


def test_a_record_of_sparse_codes_has_results(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "results.json").write_text('[{"end_mean": 0.5}]')
    found = records.of_run(tmp_path)
    assert found == {"run": tmp_path.name, "settings": {}, "results": [{"end_mean": 0.5}]}


def test_dimensions_are_weighted_by_todays_definitions(run):
    found = records.of_run(run)["dimensions"]
    assert found["cons_weighted"] == pytest.approx(100 * (0.75 + 0.5) / 1.5)


def test_dimensions_are_written_by_todays_definitions(run):
    records.of_run(run)
    head, *rows = (run / "dimensions.csv").read_text().splitlines()
    assert head.startswith("dimension,n,act,mean,mono,class,cons,chance,adjusted,entropy,best")
    assert rows == [
        "0,4,1,0.853553,0.195262,1,0.75,0.75,0,0.604722,1,0.857143,0,0.666667,0.57735",
        "1,2,0.5,0.353553,0.195262,1,1,0.75,1,0,1,0.8,0.57735,0.916667,0.57735",
        "2,0,0,0,,,,,,,,,,,",
    ]


def test_dense_dimensions_are_counted_whole(run):
    z = np.random.default_rng(0).normal(size=(100, 3))
    np.savez(run / "embeddings.npz", h=z, z=z, y=np.arange(100) % 2)
    records.of_run(run)
    columns = records.read_columns(run / "dimensions.csv")
    assert columns["dimension"].tolist() == [0, 1, 2]  # not +0, -0, …
    assert columns["n"].tolist() == [100, 100, 100]


def test_dead_and_live_dimensions_are_all(measured):
    dimensions, final = measured["ncl"]["dimensions"], measured["ncl"]["final"]
    K = measured["ncl"]["settings"]["head_out"]
    assert K * (1 - dimensions["dead_dims"] / 100) == pytest.approx(final["live_dims"])


# -------------------------------------------------------------------------------------- its numbers
def test_of_two_numbers_the_later_counts():
    parts = dict(dimensions={"a": 1, "b": 1}, final={"b": 2, "c": 2}, words={"c": 3})
    assert records.numbers(parts) == {"a": 1, "b": 2, "c": 3}
    assert records.numbers(parts | {"interpret": {"c": 4}}) == {"a": 1, "b": 2, "c": 4}


def test_no_older_number_stands_in_for_an_undefined_one():
    assert records.numbers(dict(final={"cons": 1, "ap": 2}, interpret={"cons": None})) == {"ap": 2}


def test_old_records_have_their_dictionaries():
    assert records.numbers(dict(final={}, dictionaries={"dictionary_sae_f1": 1})) != {}


def test_what_is_undefined_is_no_number():
    assert records.numbers(dict(final={"act": None, "lp1": 0})) == {"lp1": 0}


def columns_of(text):
    return records.read_columns(text.splitlines())


def test_dead_dimensions_are_a_share_of_all():
    found = records.from_dimensions(columns_of("act,cons\n0,\n0.0005,1\n0.001,0.6\n0.5,0.2"))
    assert found["dead_dims"] == 25


def test_consistency_is_weighted_by_activation():
    found = records.from_dimensions(columns_of("act,cons\n0,\n0.0005,1\n0.001,0.6\n0.5,0.2"))
    assert found["cons_weighted"] == pytest.approx(100 * 0.1011 / 0.5015)


def test_dimensions_stand_for_backgrounds_from_90_percent():
    head = "act,cons,background_cons,background_class\n"
    rows = "0.1,1,0.9,0\n0.3,1,1,0\n0.2,1,0.89,0\n0.4,1,1,1"
    found = records.from_dimensions(columns_of(head + rows))
    first, second, third, *_ = shapes.BACKGROUNDS
    assert found[f"rate_{first}"] == pytest.approx(0.2)
    assert [found[f"dims_{name}"] for name in (first, second, third)] == [2, 1, 0]
    assert found[f"rate_{third}"] == 0


# ---------------------------------------------------------------------------------------- the files
def test_a_record_replaces_an_older_one(studies):
    file = records.file_of("q")
    for run, seed, lp1 in ("b", 1, 1), ("a", 10, 2), ("a", 9, 3), ("b", 1, 4):
        records.put(file, dict(run=run, seed=seed, final={"lp1": lp1}))
    assert [record["final"]["lp1"] for record in records.read(file)] == [3, 2, 4]  # by run, seed
    assert records.of_seeds(file, "b") == {1: dict(run="b", seed=1, final={"lp1": 4})}


def test_there_are_no_records_without_a_file(studies):
    assert records.read(records.file_of("q")) == []


def folder_of(tmp_path, name, **settings):
    """A run's folder with these settings."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def test_numbers_are_added_to_what_is_on_record(studies, tmp_path):
    settings = dict(command="ncl.py", commit="1")
    records.put(records.file_of("q"), dict(run="a", seed=1, settings=settings, final={}))
    for seed, value in (1, 0.5), (2, 0.7):  # the second is not on record
        folder = folder_of(tmp_path, f"a-seed{seed}", **settings)
        records.add(folder, "stability", {"stability": value})
    (record,) = records.read(records.file_of("q"))
    assert record["stability"] == {"stability": 0.5}


def test_another_runs_record_stays_as_it_is(studies, tmp_path, capsys):
    settings = dict(command="ncl.py", commit="1")
    records.put(records.file_of("q"), dict(run="a", seed=1, settings=settings, final={}))
    another = folder_of(tmp_path, "a-seed1", command="ncl.py --topk 4", commit="1")
    records.add(another, "stability", {"stability": 0.5})
    (record,) = records.read(records.file_of("q"))
    assert "stability" not in record
    assert "has another a-seed1 on record" in capsys.readouterr().out


@pytest.mark.skipif(records.fcntl is None, reason="Windows has no such lock")
def test_one_program_at_a_time_writes_records(studies):
    folder = records.file_of("q").parent
    with records.alone(folder):
        handle = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            records.fcntl.flock(handle, records.fcntl.LOCK_EX | records.fcntl.LOCK_NB)
        os.close(handle)


def lines_of(file):
    with open(file, newline="") as text:
        return list(csv.DictReader(text))


def test_dimensions_are_kept_where_a_picture_shows_them(studies, run, monkeypatch):
    monkeypatch.setattr(records, "WITH_DIMENSIONS", {"q": ["a"]})
    records.keep("q", run)
    records.keep("q", run)  # again: in the place of the former
    found = lines_of(studies / "q" / "dimensions.csv")
    assert list(found[0]) == ["run", "seed", "dimension", "act", "cons", "class"]
    assert [line["act"] for line in found] == ["1", "0.5", "0"]


def test_kept_dimensions_are_read_by_run_and_seed(studies):
    text = "run,seed,dimension,act,cons\na,1,0,0.5,1\na,1,1,0,\na,2,0,0.25,1\nb,1,0,1,1\n"
    (studies / "q" / "dimensions.csv").write_text(text)
    found = records.kept_dimensions("q")
    assert {run: list(seeds) for run, seeds in found.items()} == {"a": [1, 2], "b": [1]}
    assert found["a"][1]["act"].tolist() == [0.5, 0]
    assert np.isnan(found["a"][1]["cons"][1])


def test_epochs_are_kept_where_a_picture_shows_them(studies, run, monkeypatch):
    monkeypatch.setattr(records, "WITH_CURVES", {"q": ["a"]})
    records.keep("q", run)
    text = (studies / "q" / "curves.csv").read_text()
    assert text == "run,seed,epoch,spread,loss\na,2,1,,\na,2,2,0.75,1.5\n"


def test_curves_of_sparse_codes_are_copied(studies, run, monkeypatch):
    monkeypatch.setattr(records, "WITH_CURVES", {"q": ["a"]})
    (run / "curves.npz").write_text("curves")
    records.keep("q", run)
    assert (studies / "q" / "a.npz").read_text() == "curves"


def test_of_other_runs_only_the_record_is_kept(studies, run):
    records.keep("q", run)
    assert [file.name for file in (studies / "q").iterdir()] == ["records.jsonl"]


# ------------------------------------------------------------------------------ what is on record
ON_RECORD = []
for file in sorted(records.STUDIES.glob("*/records.jsonl")):
    ON_RECORD += records.read(file)


def test_every_run_is_recorded_once():
    names = [records.by_name(record) for record in ON_RECORD]
    assert len(names) == len(set(names)) > 500


def test_records_say_where_and_when_they_were_made():
    for record in ON_RECORD:
        settings = record["settings"]
        assert {"hardware", "torch", "date"} <= settings.keys(), record["run"]
        assert settings.get("data_root", "data") == "data", record["run"]  # no path of a machine


def test_records_are_finished():
    for record in ON_RECORD:
        assert "results" in record or record["final"]["event"] == "final", record["run"]


@pytest.mark.parametrize("question", records.WITH_DIMENSIONS)
def test_dimensions_say_what_their_records_say(question):
    of_runs = {records.by_name(record): record for record in ON_RECORD}
    kept = records.kept_dimensions(question)
    assert set(kept) == set(records.WITH_DIMENSIONS[question])
    for run, seeds in kept.items():
        for seed, columns in seeds.items():
            recorded = of_runs[run, seed]["dimensions"]
            for key, value in records.from_dimensions(columns).items():
                assert recorded[key] == value, (run, seed, key)
