"""Tests of study_landscape.py and benchmark_landscape.py."""

import json
import subprocess
from types import SimpleNamespace

import benchmark_landscape
import pytest
import study_landscape
import torch

import sparse_coding as sc
from conftest import run_program

# -------------------------------------------------------------------------------- study_landscape
MOMENTS_FLAGS = "--experiment custom --sparsity 0.1 --n 64 --batch-size 32 --epochs 2 --seeds 1"


@pytest.fixture
def study_folder(tmp_path, monkeypatch):
    """A folder with runs/ and results/ of a study of two records of a moment, few and more."""
    few = f"{MOMENTS_FLAGS} --device cpu"
    monkeypatch.setattr(study_landscape, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(study_landscape, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(study_landscape, "RECORDS", {"few": few, "more": f"{few} --lr 1"})
    return tmp_path


@pytest.fixture
def called(study_folder, monkeypatch):
    """The commands that the study calls; instead of training, each leaves a finished run."""
    commands = []

    def call(command, cwd):
        commands.append(command[1:])
        run = cwd / command[-1]
        run.mkdir(parents=True, exist_ok=True)
        if (run / "memory").exists():
            (run / "memory").rmdir()
        for file in study_landscape.KEPT:
            (run / file).write_text(command[-2])
        return 0

    monkeypatch.setattr(study_landscape, "subprocess", SimpleNamespace(call=call))
    return commands


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_study_records_a_run(study_folder):
    run_program("study_landscape.py few")
    found = json.loads((study_folder / "results/few/results.json").read_text())
    assert found[0]["experiment"] == "custom"
    assert names(study_folder / "results/few") == {"config.json", "results.json", "curves.npz"}


def test_a_study_records_all_by_default(study_folder, called):
    run_program("study_landscape.py")
    assert names(study_folder / "results") == {"few", "more"}
    more = called[1]
    assert more[:3] == ["sparse_coding.py", "--experiment", "custom"]
    assert more[-4:-1] == ["--lr", "1", "--out"]


def test_a_study_records_what_is_asked_for(study_folder, called):
    run_program("study_landscape.py more")
    assert names(study_folder / "results") == {"more"}


def test_what_is_recorded_is_skipped(study_folder, called):
    (study_folder / "results/few").mkdir(parents=True)
    run_program("study_landscape.py few")
    assert called == []


def test_an_interrupted_run_goes_on(study_folder, called):
    (study_folder / "runs/few/memory").mkdir(parents=True)
    run_program("study_landscape.py few")
    assert called[0][-2] == "--resume"
    assert names(study_folder / "results") == {"few"}


def test_a_finished_run_is_copied(study_folder, called):
    run = study_folder / "runs/few"
    run.mkdir(parents=True)
    for file in study_landscape.KEPT:
        (run / file).write_text(f"my {file}")
    run_program("study_landscape.py few")
    assert called == []
    assert (study_folder / "results/few/curves.npz").read_text() == "my curves.npz"


def test_a_failed_run_ends_the_study(study_folder, monkeypatch):
    def fail(command, cwd):
        return 2

    monkeypatch.setattr(subprocess, "call", fail)
    with pytest.raises(SystemExit, match="2"):
        run_program("study_landscape.py")
    assert not (study_folder / "results").exists()


def test_an_unknown_record_is_named(study_folder, capsys):
    with pytest.raises(SystemExit) as stop:
        run_program("study_landscape.py few nothing")
    assert stop.value.code == 2
    assert "no such record: nothing" in capsys.readouterr().err


@pytest.mark.parametrize("name, flags", study_landscape.RECORDS.items())
def test_records_have_flags_that_parse(name, flags):
    assert name.startswith("landscape")
    assert sc.plan(sc.parser().parse(flags.split()))


# ---------------------------------------------------------------------------- benchmark_landscape
METHODS_TIMED = {"simclr": sc.SIMCLR, "simsiam": sc.SIMSIAM}


@pytest.mark.parametrize("factors", METHODS_TIMED.values(), ids=METHODS_TIMED)
def test_the_plain_loop_is_the_same_training(factors, monkeypatch):
    """As many steps, and at the end about the loss of replicas."""
    s = sc.setting(factors | dict(n=1000, batch_size=128, lr=0.5, epochs=40), {}, paper=True)
    losses = []
    backward = torch.Tensor.backward

    def watch(loss):
        losses.append(loss.item())
        backward(loss)

    monkeypatch.setattr(torch.Tensor, "backward", watch)
    epoch = benchmark_landscape.plain_loop(s)
    for _ in range(s.epochs):
        epoch()
    _, curves = sc.train(s)
    assert len(losses) == s.epochs * s.steps
    of_last_epoch = sum(losses[-int(s.steps) :]) / s.steps
    ours = float(curves["loss"][-1].mean())
    assert of_last_epoch == pytest.approx(ours, rel=0.05)


@pytest.fixture
def timed(monkeypatch):
    """How often each setting of replicas, (method, seeds, epochs), is trained; 2 s an epoch."""
    trained = []

    def train(s, device, records):
        trained.append((s.method, s.seeds, s.epochs))

    def seconds(call):
        before = len(trained)
        call()
        if len(trained) == before:  # the plain loop
            return 9.0
        return 100.0 + 2 * trained[-1][2]

    monkeypatch.setattr(sc, "train", train)
    monkeypatch.setattr(benchmark_landscape, "seconds", seconds)
    return trained


def test_replicas_are_timed_without_their_start(timed):
    assert benchmark_landscape.seconds_of_replicas(sc.SIMCLR, 5, "cpu") == pytest.approx(2 / 5)
    assert timed == [("simclr", 5, 12), ("simclr", 5, 2)]


def test_a_benchmark_prints_both_methods(timed, monkeypatch, capsys):
    monkeypatch.setattr(benchmark_landscape, "REPLICAS", (1, 4))
    run_program("benchmark_landscape.py")
    _, *lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "simclr: plain loop on the CPU 9.0000 s per epoch",
        "    1 replicas: 2.0000 s per replica, 4.5 times as fast",
        "    4 replicas: 0.5000 s per replica, 18.0 times as fast",
        "simsiam: plain loop on the CPU 9.0000 s per epoch",
        "    1 replicas: 2.0000 s per replica, 4.5 times as fast",
        "    4 replicas: 0.5000 s per replica, 18.0 times as fast",
    ]


def test_seconds_are_a_median_without_the_first(monkeypatch):
    waits = iter([9.0, 0.1, 0.5, 0.2, 0.3])
    now = [0.0]

    def clock():
        return now[0]

    def work():
        now[0] += next(waits)

    monkeypatch.setattr(benchmark_landscape.time, "perf_counter", clock)
    assert benchmark_landscape.seconds(work) == pytest.approx(0.25)
