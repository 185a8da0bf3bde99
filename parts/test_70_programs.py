"""The programs as their users run them."""

import contextlib
import functools
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn as nn
from torch.utils._python_dispatch import TorchDispatchMode

import common
import lpjepa
from conftest import METHODS, ROOT, records, refusal, run_program, side_by_side

# ------------------------------------------------------------------------- a run and what it leaves
VARIANTS = [  # of the methods, which train by different code
    "simclr.py",
    "simclr.py --loss spectral",
    "ncl.py --topk 20",
    "bayesncl.py --no-detach --kl-weight 1e-3",
    "sparsehead.py --base byol --sparse-weight 0.1",
    "sparsehead.py --base barlow",
    "simsiam.py",
    "sparsehead.py --base vicreg",
    "sparsehead.py --base swav --prototypes 20",
    "sparsehead.py --base ssl-hsic",
    "sparsehead.py --base wmse --head-out 8 --whiten-size 12 --whiten-splits 2",
    "nce.py --weights non-negative --head mlp",
    "mmncl.py",
    "lpjepa.py",
]


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


@pytest.fixture(scope="session")
def evaluated(runs, tmp_path_factory):
    """What --eval-only gave, by method: its folder, the data, the model, what was printed."""
    root = tmp_path_factory.mktemp("evaluated")
    found = {}
    for method in METHODS:
        text = io.StringIO()
        with mock.patch.object(common, "evaluate", wraps=common.evaluate) as evaluate:
            with contextlib.redirect_stdout(text):
                checkpoint = runs / method / "checkpoint.pt"
                run_program(f"{method}.py --eval-only {checkpoint} --out", root / method)
        _, data, model = evaluate.call_args.args
        found[method] = (root / method, data, model, text.getvalue())
    return found


def test_a_run_leaves_its_files(runs, method):
    files = {path.name for path in (runs / method).iterdir() if path.suffix != ".npz"}
    assert files == {"config.json", "metrics.jsonl", "checkpoint.pt", "backbone.pt"}
    assert (runs / method / "embeddings.npz").exists()


def test_a_run_names_its_torch_and_machine(runs, method):
    settings = json.loads((runs / method / "config.json").read_text())
    assert settings["torch"] == torch.__version__
    assert {"commit", "hardware", "date", "command"} <= settings.keys()


def test_a_record_has_every_epoch_and_number(runs, method):
    *epochs, last = records(runs / method)
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    assert {"loss", "spread", "act", "empty", "lr"} <= epochs[0].keys()
    assert {"event", "background_lp1", *common.COLUMNS.values()} <= last.keys()


def test_lpjepa_records_the_parts_of_its_loss(runs):
    first, *_, last = records(runs / "lpjepa")
    assert first["loss"] == pytest.approx(25 * first["invariance"] + 125 * first["distance"])
    assert last["expected_act"] == lpjepa.expected_active(-1.15, "gaussian")


def test_backbone_pt_loads_into_the_plain_network(runs, method):
    weights = torch.load(runs / method / "backbone.pt", weights_only=True)
    backbone, _ = common.resnet("resnet8", 16)
    backbone.load_state_dict(weights, strict=True)
    trained = common.load_checkpoint(runs / method / "checkpoint.pt")["model"]
    name = next(iter(weights))
    assert torch.equal(weights[name], trained[f"backbone.{name}"])


def test_evaluating_again_gives_the_same_record(runs, evaluated, method):
    folder, _, _, text = evaluated[method]
    last = records(runs / method)[-1]
    assert records(folder) == [last]
    assert common.table(method, last) in text


def test_evaluation_changes_no_weight(runs, evaluated, method):
    _, _, model, _ = evaluated[method]
    saved = common.load_checkpoint(runs / method / "checkpoint.pt")["model"]
    for name, value in model.state_dict().items():  # running frequencies and means too
        assert torch.equal(value, saved[name]), name


def test_embeddings_npz_is_what_the_network_says(evaluated, method):
    folder, data, model, _ = evaluated[method]
    h, z = common.features(model, data.x_test, 16)
    expected = {"h": h.half(), "z": z.half(), "y": data.y_test, "background": data.background_test}
    with np.load(folder / "embeddings.npz") as kept:
        assert set(kept) == set(expected)
        for name, array in expected.items():
            assert np.array_equal(kept[name], array), name


def test_eight_test_images_are_enough(runs, tmp_path, method):
    checkpoint = runs / method / "checkpoint.pt"
    run_program(f"{method}.py --eval-only {checkpoint} --dataset few --out", tmp_path / "few")
    (found,) = records(tmp_path / "few")
    assert found["p_at_10"] is None  # there are seven neighbours
    assert found["p_at_5"] >= 0


def test_a_line_of_an_epoch_says_how_far_it_is(tiny, tmp_path, capsys):
    run_program(f"ncl.py {tiny} --epochs 1 --out", tmp_path / "run")
    line = r"^epoch 1/1  0 s left  \d+ images/s  loss [\d.]+  spread [\d.]+  act [\d.]+  empty 0$"
    assert re.search(line, capsys.readouterr().out, re.MULTILINE)


# ------------------------------------------------------------------------------------------ options
OPTIONS = [
    *VARIANTS,
    "simsiam.py --no-predictor --no-stop-grad --zero-init-residual --optimizer adam --lr 1e-3",
    "simclr.py --head none --optimizer lars --blur 0.5 --crop bicubic",
    "bayesncl.py --gate logistic --gate-layers 3",
    "bayesncl.py --gate none --warmup 1 --head none",
    "bayesncl.py --gate soft --head linear",
    "ncl.py --activation exp --limit 99 --head none --precision bf16",
    "sparsehead.py --preset cifar10 --arch resnet8 --bias-lr 1e-3 --prox",
    "lpjepa.py --noise gaussian --preset default --arch resnet20 --batch-size 40",
    "simclr.py --dataset unlabelled",
]


@pytest.mark.parametrize("command", OPTIONS)
def test_options_run_and_compile_without_a_break(tiny, tmp_path, monkeypatch, command):
    whole_graph = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", whole_graph)
    program, _, flags = command.partition(" ")
    run_program(f"{program} {tiny} --epochs 1 {flags} --compile --out", tmp_path)
    first, last = records(tmp_path)
    assert np.isfinite(first["loss"])
    assert last["act"] > 0
    assert ("lp1" in last) == ("unlabelled" not in command)


def test_a_compiled_run_leaves_plain_weights(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    run_program(f"bayesncl.py {tiny} --epochs 1 --compile --out", tmp_path)
    weights = common.load_checkpoint(tmp_path / "checkpoint.pt")["model"]
    assert not any("_orig_mod" in name for name in weights)


# ----------------------------------------------------------------------------------------- refusals
REFUSED_FLAGS = {
    "simclr.py --device tpu": "--device tpu is not there",
    "simclr.py --no-such-flag": "unrecognized arguments",
    "simclr.py --blur 1.5": "1.5; it must be ≥ 0 and ≤ 1",
    "simclr.py --lr nan": "nan; it must be > 0 and < inf",
    "simclr.py --epochs many": "invalid int value: 'many'",
    "simclr.py --batch-size 241": "241: at most 240 images",
    "ncl.py --activation tanh": "invalid choice: 'tanh'",
    "ncl.py --topk 300": "embedding has 256 dimensions",
    "sparsehead.py --head none": "--head none has no linear layer",
    "sparsehead.py --base wmse": "to divide --batch-size 60",
    "sparsehead.py --base wmse --head-out 20 --whiten-size 20": "must be above K = 20",
    "nce.py --loss ce --weights non-negative": "belongs to --loss nce",
    "nce.py --dataset unlabelled": "has 0 classes",
    "mmncl.py --dataset unlabelled": "lacks captions_train and",
    "mmncl.py --classes {ncl}/metrics.jsonl": "4 classes; tiny has 10",
    "mmncl.py --classes {ncl}/no": "No such file",
}
REFUSED_RUNS = {
    "simclr.py --out {ncl}": "is taken",
    "simclr.py --resume nowhere": "nowhere is no run",
    "simclr.py --resume {simclr} --lr 0.5": "--lr 0.5 contradicts the run's 0.003",
    "ncl.py --resume {ncl} --epochs 2": "has trained 3 already",
    "ncl.py --resume {ncl} --out no": "it without --out",
    "ncl.py --eval-only {simclr}/checkpoint.pt": "another program",
    "simclr.py --eval-only {simclr}/checkpoint.pt --head-out 32": "does not fit these settings",
    "sae.py {ncl} --resume {ncl}": "another program",
}
REFUSED_PROGRAMS = {
    "sae.py .": "is no run of an image method",
    "sae.py --epochs 1": "whose features?",
    "sae.py {ncl} --batch-size 300": "300: at most 240 images",
    "sae.py {ncl} --batch-size 60 --topk 300": "300: there are 256 units",
    "look.py .": "not the folder of a run",
    "look.py --classes {ncl}/metrics.jsonl {ncl}": "4 classes; tiny has 10",
    "sparse_coding.py --keep 0.5 1.2": "keep: 1.2; it must",
    "sparse_coding.py --d 60": "--p is 50",
    "sparse_coding.py --experiment table1 --d 1": "Pr 0.3 asks for 2 active",
    "sparse_coding.py --experiment fig1 --activation authors": "is srelu with --batch-norm no",
    "sparse_coding.py --experiment fig1 --epochs 2 --lr 1e30": "the loss is not finite in epoch 1",
}
REFUSED = REFUSED_FLAGS | REFUSED_RUNS | REFUSED_PROGRAMS


def complete(command, runs, tiny):
    """The command with its folders filled in, as one that would train for a second."""
    program, _, flags = command.format(ncl=runs / "ncl", simclr=runs / "simclr").partition(" ")
    name = program.removesuffix(".py")
    if name in METHODS:
        flags = f"{tiny} {flags}"
    trains = name in METHODS or name == "sparse_coding"
    if trains and "--resume" not in flags and "--out" not in flags:
        flags = f"--out run {flags}"
    return f"{program} {flags}"


@pytest.mark.parametrize("command, message", REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_used_is_refused(runs, tiny, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(complete(command, runs, tiny))
    left = {path.name for path in Path("run").glob("*")}
    assert left <= {"config.json", "metrics.jsonl", "memory"}  # no results


@pytest.mark.parametrize("command", REFUSED_RUNS)
def test_refusals_leave_runs_alone(runs, tiny, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    before = records(runs / "simclr") + records(runs / "ncl")
    refusal(complete(command, runs, tiny))
    assert records(runs / "simclr") + records(runs / "ncl") == before


def test_a_run_of_an_older_version_is_refused(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = json.loads((runs / "simclr" / "config.json").read_text())
    del settings["warmup"]
    Path("config.json").write_text(json.dumps(settings))
    assert "an older version made it" in refusal("simclr.py --resume .")


class Bomb:
    """Where pickled objects are loaded, a folder appears."""

    def __reduce__(self):
        return os.mkdir, ("went-off",)


def test_pickled_objects_are_never_loaded(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Bomb()}, "checkpoint.pt")
    Path("config.json").write_text((runs / "ncl" / "config.json").read_text())
    assert "cannot be read as" in refusal("ncl.py --eval-only checkpoint.pt --out run")
    assert not Path("went-off").exists()


# ----------------------------------------------------------------------------- interruption, damage
def kill_after(epochs, run, argv):
    """Start a training and kill it a moment after it has recorded so many epochs."""
    process = subprocess.Popen([sys.executable, *map(str, argv)], stdout=subprocess.DEVNULL)
    log = run / "metrics.jsonl"
    while process.poll() is None and not (log.exists() and len(records(run)) >= epochs):
        time.sleep(0.01)
    time.sleep(np.random.default_rng().uniform(0, 0.3))
    process.kill()
    assert process.wait() == -9, "it ended before it could be killed"


@pytest.fixture(
    scope="module",
    params=["bayesncl.py --gate gumbel", "sparsehead.py --base byol"],
    ids=["bayesncl", "byol"],
)
def killed(request, tiny, tmp_path_factory):
    """A program, its run that was killed twice and resumed, and one that was not."""
    folder = tmp_path_factory.mktemp("killed")
    run, one = folder / "run", folder / "one"
    program, *flags = shlex.split(f"{request.param} {tiny} --epochs 10")
    run_program(shlex.join([program, *flags, "--out"]), one)
    kill_after(1, run, [ROOT / program, *flags, "--out", run])
    kill_after(4, run, [ROOT / program, "--resume", run])
    run_program(f"{program} --resume", run)
    return program, run, one


def test_a_run_killed_twice_ends_like_a_whole_one(killed):
    _, run, one = killed
    assert records(run) == records(one)
    ours = common.load_checkpoint(run / "checkpoint.pt")["model"]
    theirs = common.load_checkpoint(one / "checkpoint.pt")["model"]
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name


def test_a_finished_run_may_grow(killed):
    program, run, one = killed
    run_program(f"{program} --epochs 11 --resume", run)
    lines = records(run)
    assert lines[:10] == records(one)[:10]
    assert [line.get("epoch") for line in lines[10:]] == [11, None]


@pytest.fixture
def files(runs, tmp_path):
    """Good files of each kind that is read: an archive, mapped arrays, a checkpoint."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (28, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(28) % 4
    np.savez(
        tmp_path / "archive.npz",
        x_train=images[:20],
        y_train=labels[:20],
        x_test=images[20:],
        y_test=labels[20:],
    )
    zipfile.ZipFile(tmp_path / "archive.npz").extractall(tmp_path / "mapped")
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes((runs / "ncl" / "checkpoint.pt").read_bytes())
    return tmp_path


def damaged(good, i, draw, near):
    """The bytes cut off, overwritten or with a bit flipped, somewhere among the first `near`."""
    at = draw.integers(near)
    if i % 3 == 0:
        return good[:at]
    if i % 3 == 1:
        return good[:at] + draw.bytes(99) + good[at + 99 :]
    flipped = bytes([good[at] ^ 1 << draw.integers(8)])
    return good[:at] + flipped + good[at + 1 :]


@pytest.mark.parametrize("name", ["archive.npz", "mapped/x_train.npy", "mapped/y_test.npy"])
def test_damaged_arrays_load_or_are_refused(files, name):
    draw = np.random.default_rng(1)
    good = (files / name).read_bytes()
    data_set = name.partition(".")[0].partition("/")[0]
    for i in range(300):
        near = len(good) if i % 2 else 128  # numpy's header has 128 bytes
        (files / name).write_bytes(damaged(good, i, draw, near))
        with contextlib.suppress(common.BadInput):
            common.load_data(data_set, files)


def test_damaged_checkpoints_load_whole_or_not_at_all(files):
    path = files / "checkpoint.pt"
    good = path.read_bytes()
    weights = common.load_checkpoint(path)["model"]
    draw = np.random.default_rng(2)
    loaded = []
    for i in range(300):
        path.write_bytes(damaged(good, i, draw, len(good)))
        with contextlib.suppress(common.BadInput):
            loaded.append(common.load_checkpoint(path)["model"])
    assert len(loaded) < 50
    for model in loaded:
        assert all(torch.equal(model[name], weights[name]) for name in weights)


def test_a_full_disk_leaves_the_old_checkpoint(files):
    path = files / "checkpoint.pt"
    good = path.read_bytes()
    before = set(files.iterdir())
    (files / "checkpoint.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(common.BadInput, match="disk full"), common.replacing(path) as file:
        torch.save(torch.zeros(100_000), file)
    assert path.read_bytes() == good
    assert set(files.iterdir()) == before


def test_a_loss_that_is_not_finite_ends_the_run(tiny, tmp_path, monkeypatch, capsys):
    two_views = common.two_views
    factors = iter([1] * 5 + [np.nan] * 3)  # one for each step; an epoch has four

    def spoilt(*args, **options):
        factor = next(factors)
        return [view * factor for view in two_views(*args, **options)]

    monkeypatch.setattr(common, "two_views", spoilt)
    with pytest.raises(SystemExit) as stop:
        run_program(f"ncl.py {tiny} --out", tmp_path / "run")
    assert stop.value.code == 3
    message = "epoch 2: the loss is not finite; the last checkpoint stays"
    assert message in capsys.readouterr().err
    assert common.load_checkpoint(tmp_path / "run" / "checkpoint.pt")["epochs"] == 1


# -------------------------------------------------------------------------------- several processes
def train_variants(folder, tiny):
    """What each process of the next tests does.

    A whole run; then two steps of each variant, of the same views, with BatchNorm frozen, in
    float64: in float32 rounding flips a few ReLUs. Leaves the folders "<processes> <variant>".
    """
    importlib.import_module("bayesncl").main(
        [*shlex.split(tiny), "--out", f"{folder}/{common.world()}"]
    )
    drawn = torch.rand(9)  # what the process would draw next
    torch.save(drawn, f"{folder}/{common.world()}-{common.rank()}.pt")

    def frozen(norm, mode=True):
        return nn.Module.train(norm, False)

    def two_views(x, *_, **__):
        return x[..., ::2, ::2] / 255.0, x[..., ::2, 1::2] / 255.0

    def augment(x, *_, **__):
        return x[..., ::2, ::2] / 255.0

    def evaluate(run, data, model, **_):
        return {}, *common.features(model, data.x_test, 16)

    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    nn.modules.batchnorm._BatchNorm.train = frozen
    common.two_views = two_views
    common.augment = augment
    common.evaluate = evaluate
    small = "--limit 48 --batch-size 24 --epochs 1 --optimizer sgd --precision fp32"
    for variant in VARIANTS:
        method, _, flags = variant.partition(".py")
        argv = shlex.split(f"{tiny} {small} {flags}")
        out = ["--out", f"{folder}/{common.world()} {variant}"]
        importlib.import_module(method).main([*argv, *out])


@pytest.fixture(scope="session")
def one_and_two(tiny, tmp_path_factory):
    """The folder in which one process, and two under torchrun, have trained the variants."""
    folder = tmp_path_factory.mktemp("processes")
    this = Path(__file__)
    code = (
        f"import sys; sys.path[:0] = ['{this.parent}', '{ROOT}']; import common, {this.stem} as t; "
    )
    code += f"common.launch(lambda: t.train_variants('{folder}', '{tiny}'))"
    torchrun = "-m torch.distributed.run --standalone --nproc_per_node=2 --no-python".split()
    side_by_side(["-c", code], [*torchrun, sys.executable, "-c", code])
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_processes_train_as_one(one_and_two, variant):
    one, two = one_and_two / f"1 {variant}", one_and_two / f"2 {variant}"
    for ours, theirs in zip(records(two), records(one)):
        assert ours == pytest.approx(theirs)
    ours = common.load_checkpoint(two / "checkpoint.pt")["model"]
    theirs = common.load_checkpoint(one / "checkpoint.pt")["model"]
    for name in theirs:
        assert torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-9), name


def test_two_processes_leave_one_record(one_and_two):
    epochs = [line.get("epoch") for line in records(one_and_two / "2")]
    assert epochs == [1, 2, 3, None]


def test_processes_draw_views_of_their_own(one_and_two):
    first = torch.load(one_and_two / "2-0.pt")
    second = torch.load(one_and_two / "2-1.pt")
    assert not torch.equal(first, second)


# ---------------------------------------------------------------------------- nothing is waited for
class HostReads(TorchDispatchMode):
    """Counts what makes a GPU wait: values that Python reads, shapes that depend on values."""

    NAMES = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"}

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in self.NAMES:
            self.count += 1
        if name == "index":
            masks = [i for i in args[1] if i is not None and i.dtype == torch.bool]
            self.count += len(masks)
        return function(*args, **(kwargs or {}))


class EndOfEpoch(Exception):
    pass


@pytest.mark.parametrize(
    "command", [*VARIANTS, "bayesncl.py --gate gumbel --similarity ipw --optimizer lars --blur 1"]
)
def test_nothing_is_read_back_within_an_epoch(tiny, tmp_path, monkeypatch, command):
    set_lr = common.set_lr
    reads = HostReads()
    counts = []  # at each of the four steps

    def counting(*args):
        set_lr(*args)
        counts.append(reads.count)

    def end(*_):
        raise EndOfEpoch

    monkeypatch.setattr(common, "set_lr", counting)
    monkeypatch.setattr(common.Run, "end_epoch", end)
    monkeypatch.setattr(common, "on_cpu", lambda x: False)  # views as a GPU makes them
    with reads, pytest.raises(EndOfEpoch):
        run_program(f"{command} {tiny} --out", tmp_path)
    counts.append(reads.count)
    assert len(counts) == 5
    assert counts[0] == counts[4]
