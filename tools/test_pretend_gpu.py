"""pretend_gpu.py itself; then, marked slow, every program on the GPU that it pretends."""

import inspect
import re
import shutil

import shapes
from conftest import ROOT, run_program

import numpy as np
import pretend_gpu
import pytest
import torch
from pretend_gpu import pretended_gpu

# Of x (3, 3) on the GPU and c of the CPU: where the result is, launches, and reasons of waits.
SEEN = {
    "torch.zeros(2, device='cuda:0') + 1": ("cuda", 2, ""),
    "x.T[0].view(3, 1).expand(3, 2)": ("cuda", 0, ""),
    "((x + c.sum()).relu() @ x).sum()": ("cuda", 4, ""),
    "c.add_(1)": ("cpu", 0, ""),
    "c.to('cuda', torch.float64)": ("cuda", 1, "copy"),
    "c.to('cuda', non_blocking=True)": ("cuda", 1, ""),
    "torch.ones(20_000).to(x, non_blocking=True)": ("cuda", 1, "copy"),
    "torch.ones(20_000).pin_memory().to('cuda', non_blocking=True)": ("cuda", 1, ""),
    "x.cpu()": ("cpu", 1, "copy"),
    "c.copy_(x)": ("cpu", 1, "copy"),
    "x.to('cuda')": ("cuda", 0, ""),
    "torch.tensor([1, 2], device='cuda')": ("cuda", 1, "copy"),
    "torch.ones(3) * x[0, 0].item()": ("cpu", 0, "value read"),
    "x[x > 0]": ("cuda", 2, "boolean mask"),
    "x.index_put_((x > 0,), torch.tensor(3.0))": ("cuda", 2, ""),
    "x[torch.tensor([0, 2])]": ("cuda", 1, "index of the host"),
    "x[x.long() - 1]": ("cuda", 3, ""),
    "x.nonzero()": ("cuda", 1, "nonzero"),
    "torch.nn.Linear(3, 3).to('cuda')(x)": ("cuda", 3, "copy copy"),
    "torch.rand(2, device='cuda', generator=torch.Generator('cuda'))": ("cuda", 1, ""),
}


@pytest.mark.parametrize("expression", SEEN)
def test_places_launches_and_waits_are_seen(expression):
    with pretended_gpu() as record:
        names = {"x": torch.ones(3, 3, device="cuda"), "c": torch.ones(3, 3)}
        record.launches.clear()
        place = eval(expression, globals(), names).device.type
    reasons = [reason for _, reason in record.waits_elsewhere.elements()]
    assert (place, record.launches.total(), " ".join(reasons)) == SEEN[expression]
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


def train(waits, device):
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
    expected = train(waits, "cpu")
    with pretended_gpu() as record:
        assert train(waits, "cuda") == expected
    lines, first = inspect.getsourcelines(train)
    line = first + lines.index("                loss.item()\n")
    found = {(f"tools/test_pretend_gpu.py:{line}", "value read"): count} if count else {}
    assert record.waits_in_steps == found
    assert record.steps == [5] * 6  # mul and sum; ones_like and mul; the optimiser's
    text = f"launches a step: 5 (median of 6)\nwaits within a step: {count}\n"
    assert pretend_gpu.report(record).startswith(text)


# -------------------------------------------------------------------------------- all our programs
# Launches of a step with ResNet-8 and the settings for `shapes`, counted with torch 2.14, at most.
# They decide how fast a small network trains on a GPU. A change that raises one says why.
PROGRAMS = {
    "simclr.py {flags}": 629,
    "ncl.py {flags} --topk 20": 652,
    "bayesncl.py {flags} --gate gumbel --similarity ipw": 807,
    "sparsehead.py {flags} --base byol": 832,
    "simsiam.py {flags}": 717,
    "nce.py {flags} --head mlp": 250,
    "--no-room mmncl.py {flags}": 320,  # images, and captions by their indices, in main memory
    "lpjepa.py {flags}": 680,
    "sae.py {run} --epochs 2 --batch-size 60": 84,
    "tools/finetune.py {run} --labels 1 --epochs 1 --min-steps 4 --tune 0.05 0.1": 222,
    "tools/selection.py {run}": 0,  # it does not train
    "tools/robustness.py {run}": 0,
    "sparse_coding.py --experiment custom --masks dependent --latents iid --epochs 3": 150,
}


@pytest.mark.slow
@pytest.mark.parametrize("command", PROGRAMS)
def test_no_step_waits_or_launches_more(command, run_of, tmp_path, monkeypatch, capsys):
    run = shutil.copytree(run_of("bayesncl"), tmp_path / "run")
    np.savez(tmp_path / "few.npz", **shapes.draw(48, 40))
    flags = f"--dataset few --preset shapes --data-root {tmp_path} --image-size 16"
    command_line = command.format(run=run, flags=f"{flags} --epochs 2 --batch-size 16")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(torch.optim.LBFGS, "step", lambda *_: None)  # the probe's takes long
    run_program("pretend_gpu.py", *command_line.split())
    text = capsys.readouterr().out
    (launches,) = re.findall(r"launches a step: (\d+|not measured)", text)
    assert "waits within a step: 0\n" in text
    assert int(launches.replace("not measured", "0")) <= PROGRAMS[command]
    assert launches != "not measured" or PROGRAMS[command] == 0
