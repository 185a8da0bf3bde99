"""Tests of benchmark.py and benchmark_landscape.py."""

import bayesncl
import sparse_coding as sc
from conftest import refusal, run_program

import benchmark
import benchmark_landscape
import numpy as np
import pytest
import torch


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
