"""pretend_gpu.py itself; what goes wrong on GPUs alone; then, marked slow, every program on one."""

import functools
import inspect
import json
import re
import shutil
import time
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import common
import pretend_gpu
import shapes
from conftest import ROOT, refusal, run_program
from pretend_gpu import pretended_gpu

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn

# Of x (3, 3) on the GPU and c of the CPU: where the result is, launches, and reasons of waits.
SEEN = {
    "torch.zeros(2, device='cuda:0') + 1": dict(place="cuda", launches=2, waits=""),
    "x.T[0].view(3, 1).expand(3, 2)": dict(place="cuda", launches=0, waits=""),
    "((x + c.sum()).relu() @ x).sum()": dict(place="cuda", launches=4, waits=""),
    "c.add_(1)": dict(place="cpu", launches=0, waits=""),
    "c.to('cuda', torch.float64)": dict(place="cuda", launches=1, waits="copy"),
    "c.to('cuda', non_blocking=True)": dict(place="cuda", launches=1, waits=""),
    "torch.ones(20_000).to(x, non_blocking=True)": dict(place="cuda", launches=1, waits="copy"),
    "torch.ones(20_000).pin_memory().to('cuda', non_blocking=True)": dict(
        place="cuda", launches=1, waits=""
    ),
    "x.cpu()": dict(place="cpu", launches=1, waits="copy"),
    "c.copy_(x)": dict(place="cpu", launches=1, waits="copy"),
    "x.to('cuda')": dict(place="cuda", launches=0, waits=""),
    "torch.tensor([1, 2], device='cuda')": dict(place="cuda", launches=1, waits="copy"),
    "torch.ones(3) * x[0, 0].item()": dict(place="cpu", launches=0, waits="value read"),
    "x[x > 0]": dict(place="cuda", launches=2, waits="boolean mask"),
    "x.index_put_((x > 0,), torch.tensor(3.0))": dict(place="cuda", launches=2, waits=""),
    "x[torch.tensor([0, 2])]": dict(place="cuda", launches=1, waits="index of the host"),
    "x[x.long() - 1]": dict(place="cuda", launches=3, waits=""),
    "x.nonzero()": dict(place="cuda", launches=1, waits="nonzero"),
    "torch.nn.Linear(3, 3).to('cuda')(x)": dict(place="cuda", launches=3, waits="copy copy"),
    "torch.rand(2, device='cuda', generator=torch.Generator('cuda'))": dict(
        place="cuda", launches=1, waits=""
    ),
}


@pytest.mark.parametrize("expression", SEEN)
def test_places_launches_and_waits_are_seen(expression):
    with pretended_gpu() as record:
        names = {"x": torch.ones(3, 3, device="cuda"), "c": torch.ones(3, 3)}
        record.launches.clear()
        place = eval(expression, globals(), names).device.type
    reasons = " ".join(reason for _, reason in record.waits_elsewhere.elements())
    found = dict(place=place, launches=record.launches.total(), waits=reasons)
    assert found == SEEN[expression]
    assert torch.ones(1).device.type == "cpu"


REFUSED = [
    "x + c",
    "x @ c",
    "c.add_(x)",
    "c.sum().add_(x[0, 0])",
    "torch.where(c > 0, x, x)",
    "torch.nn.functional.cross_entropy(x[0], torch.tensor(1))",
    "c[x > 0]",
    "torch.rand(3, device='cuda', generator=torch.Generator())",
    "torch.zeros(3, device='cuda:1')",
    "x.numpy()",
    "np.asarray(x)",
]


@pytest.mark.parametrize("expression", REFUSED)
def test_a_wrong_device_is_refused(expression):
    with pretended_gpu(), pytest.raises((RuntimeError, TypeError), match="device|cpu|host"):
        names = {"x": torch.ones(3, 3, device="cuda"), "c": torch.ones(3, 3)}
        eval(expression, globals(), names)


def two_epochs(waits, device):
    """Two epochs of four steps; what is read in each step, or at each epoch's end."""
    weight = torch.ones(3, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    for _ in range(2):
        for batch in torch.arange(12.0).view(4, 3).to(device):
            loss = (weight * batch).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if waits == "step":
                loss.item()
        weight.sum().item()
    return weight.tolist()


@pytest.mark.parametrize("waits, count", [("step", 6), ("epoch", 0)])
def test_a_step_is_from_backward_to_backward(waits, count):
    expected = two_epochs(waits, "cpu")
    with pretended_gpu() as record:
        assert two_epochs(waits, "cuda") == expected
    lines, first = inspect.getsourcelines(two_epochs)
    line = first + lines.index("                loss.item()\n")
    found = {(f"checks/test_pretend_gpu.py:{line}", "value read"): count} if count else {}
    assert record.waits_in_steps == found
    assert record.steps == [5] * 6  # mul and sum; ones_like and mul; the optimiser's
    text = f"launches a step: 5 (median of 6)\nwaits within a step: {count}\n"
    assert pretend_gpu.report(record).startswith(text)


# ------------------------------------------------------------------- what goes wrong on GPUs alone
BYTES = 20 * 64 * 64 * 3  # of all images; of six more than the 64 KB that are copied without a wait


@pytest.mark.parametrize("more, place, waits", [(1, "cuda", 1), (0, "cpu", 0)])
def test_images_are_where_there_is_room(tmp_path, more, place, waits):
    x = np.random.default_rng(0).integers(0, 255, (20, 64, 64, 3), np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=x, x_test=x)
    settings = dict(dataset="mine", data_root=tmp_path, limit=None, batch_size=6, seed=1)
    args = SimpleNamespace(**settings, device="cuda", epochs=1)
    with pretended_gpu(2 * BYTES + more) as record:
        data = common.Data(args)
        assert data.images.device.type == place
        record.end()
        record.waits_elsewhere.clear()
        batches = list(data.batches(args, 0))
        record.end()
        assert all(part.is_cuda for batch in batches for part in batch)
    assert record.waits_elsewhere.total() == waits  # for the order of an epoch
    assert len(batches) == 3
    for images, index in batches:
        assert np.array_equal(images.permute(0, 2, 3, 1), x[index])


@pytest.fixture
def train(tiny, tmp_path, monkeypatch):
    """Train simclr.py for an epoch on the GPU, into tmp_path / "run"; its probe is not fitted."""
    monkeypatch.setattr(torch.optim.LBFGS, "step", lambda *_: None)
    flags = f"{tiny} --dataset few --epochs 1 --device cuda --out {tmp_path}/run"
    return functools.partial(run_program, f"simclr.py {flags}")


@pytest.fixture
def dtypes():
    """What convolutions return, while a network trains and while it is evaluated."""
    found = dict(training=set(), evaluation=set())

    def note(module, inputs, output):
        if isinstance(module, nn.Conv2d):
            found["training" if module.training else "evaluation"].add(output.dtype)

    handle = nn.modules.module.register_module_forward_hook(note)
    yield found
    handle.remove()


@pytest.mark.parametrize("capability, kind", [((7, 5), torch.float32), ((8, 0), torch.bfloat16)])
def test_networks_train_in_bf16_from_ampere_on(train, dtypes, capability, kind):
    with pretended_gpu(), mock.patch.object(torch.cuda, "get_device_capability") as told:
        told.return_value = capability
        train()
    assert dtypes["training"] == {kind}
    assert dtypes["evaluation"] == {kind, torch.float32}


def test_the_clock_is_read_after_a_wait(train, tmp_path, monkeypatch):
    with pretended_gpu() as record:
        counts = record.waits_in_steps, record.waits_elsewhere
        monkeypatch.setattr(
            time, "perf_counter", lambda: sum(map(Counter.total, [*counts, record.new_waits]))
        )
        train()
    first, _ = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    # For the epoch's order, and for the mean of loss, spread and act each.
    assert json.loads(first)["seconds"] == 4


def test_a_backbone_loads_without_a_gpu(train, monkeypatch):
    there = {}
    monkeypatch.setattr(common, "save", lambda path, state: there.update({path.name: state}))
    with pretended_gpu():
        train()
        assert not any(w.is_cuda for w in there["backbone.pt"].values())


@pytest.mark.parametrize("device, kind", [("cuda", nn.SyncBatchNorm), ("cpu", nn.BatchNorm1d)])
def test_processes_on_gpus_share_their_batch_statistics(tmp_path, monkeypatch, device, kind):
    monkeypatch.setattr(common, "WORLD", 2)
    settings = dict(method="m", dataset="d", seed=1, out=None, resume=str(tmp_path), epochs=1)
    args = SimpleNamespace(**settings, device=device, precision="fp32", tensorboard=False)
    monkeypatch.setattr(common.Run, "describe", lambda run: None)
    model = nn.Sequential(nn.BatchNorm1d(3))
    common.Run(args, SimpleNamespace(train={}), model, None)
    assert type(model[0]) is kind


def test_every_process_has_a_gpu(monkeypatch):
    monkeypatch.setattr(common, "WORLD", 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for owner, name in (dist, "init_process_group"), (dist, "destroy_process_group"):
        monkeypatch.setattr(owner, name, mock.Mock())
    with pretended_gpu(), mock.patch.object(torch.cuda, "set_device") as chosen:
        common.launch(lambda: None)
    chosen.assert_called_once_with(1)
    dist.init_process_group.assert_called_once_with("cpu:gloo,cuda:nccl")


def test_fp32_is_no_tf32():
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    common.launch(lambda: None)
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


OF_MEMORY = [
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB",
    "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
]


@pytest.mark.parametrize("text", OF_MEMORY)
def test_a_full_gpu_is_told_in_a_line(text):
    def fail():
        raise RuntimeError(text)

    told = refusal(fail)
    assert "out of memory, of which a smaller --batch-size needs less: CUDA" in told


def test_other_errors_of_a_gpu_are_shown_whole():
    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError):
        common.launch(fail)


# -------------------------------------------------------------------------------- all our programs
# Launches of a step with ResNet-8 and the settings for `shapes`, counted with torch 2.14, at most;
# None: the program does not train. They decide how fast a small network trains on a GPU.
LAUNCHES = {
    "simclr.py {flags}": 629,
    "ncl.py {flags} --topk 20": 652,
    "bayesncl.py {flags} --gate gumbel": 791,
    "sparsehead.py {flags} --base byol": 832,
    "simsiam.py {flags}": 717,
    "nce.py {flags} --head mlp": 250,
    "--no-room mmncl.py {flags}": 320,  # images, and captions by their indices, in main memory
    "lpjepa.py {flags}": 680,
    "sae.py {run} --epochs 2 --batch-size 60": 84,
    "tools/finetune.py {run} --labels 1 --epochs 1 --min-steps 4 --tune 0.05 0.1": 222,
    "tools/selection.py {run}": None,
    "tools/robustness.py {run}": None,
    "sparse_coding.py --experiment masks --epochs 3": 174,
}


@pytest.mark.slow
@pytest.mark.parametrize("command, most", LAUNCHES.items(), ids=LAUNCHES)
def test_no_step_waits_or_launches_more(
    command, most, run_of, tmp_path, monkeypatch, capsys, dtypes
):
    run = shutil.copytree(run_of("bayesncl"), tmp_path / "run")
    dtypes["training"].clear()  # those of that run, on the CPU
    np.savez(tmp_path / "few.npz", **shapes.draw(48, 40))
    flags = f"--dataset few --preset shapes --data-root {tmp_path} --image-size 16"
    command_line = command.format(run=run, flags=f"{flags} --epochs 2 --batch-size 16")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(torch.optim.LBFGS, "step", lambda *_: None)  # the probe's takes long
    run_program("pretend_gpu.py", *command_line.split())
    text = capsys.readouterr().out
    assert "waits within a step: 0\n" in text
    assert dtypes["training"] <= {torch.bfloat16}
    (launches,) = re.findall(r"launches a step: (\d+|not measured)", text)
    if most is None:
        assert launches == "not measured"
    else:
        wanted = f"if this change is wanted, write {launches} beside {command!r} and say why"
        assert int(launches) <= most, wanted
