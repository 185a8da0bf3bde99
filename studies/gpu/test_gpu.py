"""The plan for a day on a GPU, tried on a pretended one with three steps a run."""

import subprocess

import shapes
from conftest import ROOT, run_program

import numpy as np
import pytest
import records
import run

PRETENDED = str(ROOT / "tools" / "pretend_gpu.py")
SHORT = "--arch resnet8 --head-hidden 32 --limit 48 --batch-size 16 --epochs 1 --warmup 0"
THREE = "--rows cifar100-bayesncl cifar100-ncl cifar100-simclr --seeds 1"


@pytest.fixture
def small_cifar100(tmp_path):
    """A data root whose cifar100.npz has 48 training images."""
    np.savez(tmp_path / "cifar100.npz", **shapes.draw(48, 40))
    return tmp_path


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A folder for runs and records of run.py, which starts each program on a pretended GPU."""
    popen = subprocess.Popen

    def popen_pretended(command, **options):
        python, program, *flags = command
        return popen([python, PRETENDED, ROOT / program, *flags], **options)

    monkeypatch.setattr(run.subprocess, "Popen", popen_pretended)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(records, "file_of", lambda question: tmp_path / "records.jsonl")
    return tmp_path


@pytest.mark.slow
def test_the_days_first_three_runs_are_recorded(pretended, small_cifar100):
    day = f"run.py gpu {THREE} --device cuda --minutes 26 --jobs 3 --data-root {small_cifar100}"
    with pytest.raises(SystemExit) as stop:
        run_program(day, f"--flags={SHORT}")
    found = {record["run"] for record in records.read(pretended / "records.jsonl")}
    assert stop.value.code == 0
    assert found == {"cifar100-bayesncl", "cifar100-ncl", "cifar100-simclr"}
