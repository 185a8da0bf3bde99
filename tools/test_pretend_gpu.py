"""pretend_gpu.py itself, in seconds; then, marked slow, every program on the GPU that it pretends.

In expressions below, x is a (3, 3) tensor on the GPU and c one of the CPU.
"""

import copy
import inspect
import json
import re
import shutil
from pathlib import Path
from unittest import mock

import common
import shapes
import sparse_coding
from conftest import ROOT, records, refusal, run_program

import numpy as np
import pretend_gpu
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: F401, of expressions
from pretend_gpu import CUDA, pretended_gpu

HERE = "tools/test_pretend_gpu.py"


@pytest.fixture
def gpu():
    """A pretended GPU for one test: its record."""
    with pretended_gpu() as record:
        yield record


def evaluate(expression):
    """The value of an expression with x on the GPU and c on the CPU, and the record."""
    with pretended_gpu() as record:
        x = torch.ones(3, 3, device="cuda")
        c = torch.ones(3, 3)
        record.launches.clear()
        value = eval(expression, globals(), {"x": x, "c": c})
    return value, record


# ----------------------------------------------------------------------------------------- devices
@pytest.mark.parametrize(
    "expression",
    [
        "torch.zeros(2, device='cuda')",
        "torch.tensor([1, 2], device='cuda:0')",
        "torch.arange(3, device=torch.device('cuda'))",
        "torch.rand(2, device=0)",
        "torch.zeros_like(c, device='cuda')",
        "torch.as_tensor(c, device='cuda')",
        "x.new_zeros(2)",
        "torch.full_like(x, 2)",
    ],
)
def test_what_is_made_there_says_so(gpu, expression):
    x = torch.ones(3, 3, device="cuda")
    made = eval(expression, globals(), {"x": x, "c": torch.ones(3)})
    assert made.device == CUDA
    assert made.is_cuda
    assert not made.is_cpu


@pytest.mark.parametrize("expression", ["torch.zeros(2)", "torch.zeros_like(x, device='cpu')"])
def test_what_is_made_elsewhere_says_so(gpu, expression):
    x = torch.ones(3, 3, device="cuda")
    made = eval(expression, globals(), {"x": x})
    assert made.device.type == "cpu"
    assert not made.is_cuda


@pytest.mark.parametrize("view", ["x[0]", "x.T", "x.view(9)", "x.detach()", "x.unbind()[1]"])
def test_a_view_is_where_its_tensor_is(gpu, view):
    x = torch.ones(3, 3, device="cuda")
    assert eval(view, {"x": x}).device == CUDA


@pytest.mark.parametrize("result", ["x + 1", "x @ x", "torch.cat([x, x])", "x.sort().indices"])
def test_a_result_is_where_its_inputs_are(gpu, result):
    x = torch.ones(3, 3, device="cuda")
    assert eval(result, {"x": x, "torch": torch}).device == CUDA


@pytest.mark.parametrize(
    "move",
    [
        "c.to('cuda')",
        "c.to(device='cuda')",
        "c.to('cuda', torch.float64)",
        "c.to(x)",
        "torch.empty(3, 3, device='cuda').copy_(c)",
    ],
)
def test_a_move_to_the_gpu_is_a_copy(gpu, move):
    c = torch.rand(3, 3)
    before = c.clone()
    moved = eval(move, globals(), {"x": torch.ones(3, 3, device="cuda"), "c": c})
    assert moved.device == CUDA
    assert torch.equal(moved.cpu().float(), before)
    moved.zero_()
    assert torch.equal(c, before)


@pytest.mark.parametrize("move", ["x.cpu()", "x.to('cpu')", "x.to(c)", "c.copy_(x)"])
def test_a_move_to_the_cpu_is_a_copy(gpu, move):
    x = torch.rand(3, 3, device="cuda")
    moved = eval(move, {"x": x, "c": torch.ones(3, 3)})
    assert moved.device.type == "cpu"
    x.zero_()
    assert (moved > 0).all()


@pytest.mark.parametrize("same", ["x.to('cuda')", "x.to(x)", "x.cuda()", "x.to(torch.float32)"])
def test_a_move_to_where_it_is_does_nothing(gpu, same):
    x = torch.ones(3, 3, device="cuda")
    moved = eval(same, {"x": x, "torch": torch})
    assert moved.data_ptr() == x.data_ptr()
    assert moved.device == CUDA


def test_a_move_to_another_has_its_type(gpu):
    other = torch.ones(2, device="cuda", dtype=torch.float64)
    assert torch.ones(3).to(other).dtype == torch.float64


def test_a_move_keeps_the_order_in_memory(gpu):
    x = torch.ones(2, 3, 4, 4).to("cuda", memory_format=torch.channels_last)
    assert x.device == CUDA
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_a_deep_copy_stays_on_the_gpu(gpu):
    x = copy.deepcopy(torch.ones(3, device="cuda"))
    assert x.device == CUDA


def test_autocast_stays_on_the_gpu(gpu):
    x = torch.ones(3, 3, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        y = x @ x
    assert y.device == CUDA
    assert y.dtype == torch.bfloat16


def test_a_generator_says_where_it_draws(gpu):
    random = torch.Generator("cuda").manual_seed(0)
    assert random.device.type == "cuda"
    assert torch.rand(3, device="cuda", generator=random).device == CUDA
    assert random.get_state().device.type == "cpu"


def test_nothing_is_pretended_after_the_block():
    before = (torch.cuda.is_available, torch.autocast, torch.Generator, common.DEVICE)
    with pretended_gpu():
        assert torch.cuda.is_available()
        x = torch.ones(3, device="cuda")
    after = (torch.cuda.is_available, torch.autocast, torch.Generator, common.DEVICE)
    assert before == after
    assert x.device.type == "cpu"


# ---------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "wrong",
    [
        "x + c",
        "x @ c",
        "torch.cat([x, c])",
        "torch.where(c > 0, x, x)",
        "c.add_(x)",
        "c.sum().add_(x[0, 0])",
        "x.addmm_(x, c)",
        "F.linear(x, c)",
        "F.cross_entropy(x, torch.tensor([0, 1, 2]))",
        "F.cross_entropy(x[0], torch.tensor(1))",
        "x.gather(1, torch.tensor([[0]]))",
        "c[x.long()]",
        "c[x > 0]",
        "x.index_put_((torch.tensor([0]),), c[:1])",
        "torch.add(x, x, out=c)",
        "torch.rand(3, device='cuda', generator=torch.Generator())",
        "torch.rand(3, generator=torch.Generator('cuda'))",
        "x.normal_(generator=torch.Generator())",
        "torch.zeros(3, device='cuda:1')",
        "x.pin_memory()",
    ],
)
def test_a_wrong_device_raises(wrong):
    with pytest.raises(RuntimeError, match="device|cpu|pin"):
        evaluate(wrong)


@pytest.mark.parametrize("wrong", ["x.numpy()", "np.asarray(x)"])
def test_numpy_does_not_read_the_gpu(wrong):
    with pytest.raises(TypeError, match="to host memory first"):
        evaluate(wrong)


def test_numpy_forced_reads_the_gpu():
    value, record = evaluate("x.numpy(force=True)")
    assert value.tolist() == 3 * [[1.0, 1.0, 1.0]]
    assert record.waits_elsewhere.total() == 1


@pytest.mark.parametrize(
    "right",
    [
        "x + c.sum()",
        "torch.where(x > 0, c.sum(), x)",
        "x.fill_(c.sum())",
        "x.masked_fill(x > 0, c.sum())",
        "x[torch.tensor([0, 2])]",
        "x.copy_(c)",
        "c.copy_(x)",
    ],
)
def test_what_cuda_takes_from_the_host_is_taken(right):
    evaluate(right)


# ------------------------------------------------------------------------------------------- waits
@pytest.mark.parametrize(
    "expression, what",
    [
        ("x[0, 0].item()", "value read"),
        ("bool(x.any())", "value read"),
        ("int(x[0, 0])", "value read"),
        ("1 if x[0, 0] > 0 else 0", "value read"),
        ("x.tolist()", "value read"),
        ("torch.allclose(x, x)", "value read"),
        ("torch.equal(x, x)", "equal"),
        ("x.nonzero()", "nonzero"),
        ("torch.where(x > 0)", "nonzero"),
        ("x[x > 0]", "boolean mask"),
        ("x.masked_select(x > 0)", "boolean mask"),
        ("x.unique()", "unique"),
        ("torch.linalg.inv(torch.eye(3, device='cuda'))", "check of linalg"),
        ("x.cpu()", "copy"),
        ("c.to('cuda')", "copy"),
        ("x.copy_(c)", "copy"),
        ("c.copy_(x)", "copy"),
        ("torch.tensor([1, 2], device='cuda')", "copy"),
        ("torch.ones(20_000).to('cuda', non_blocking=True)", "copy"),
        ("x[torch.tensor([0, 2])]", "index of the host"),
        ("print(x)", "printing"),
        ("torch.cuda.synchronize()", "synchronize"),
    ],
)
def test_a_wait_is_counted_with_its_reason(expression, what):
    _, record = evaluate(expression)
    reasons = [reason for _, reason in record.waits_elsewhere.elements()]
    assert reasons == [what]


def test_a_wait_is_counted_with_its_line(gpu):
    x = torch.ones(3, device="cuda")
    for _ in range(2):
        line = inspect.currentframe().f_lineno + 1
        x.sum().item()
    gpu.end()
    assert gpu.waits_elsewhere == {(f"{HERE}:{line}", "value read"): 2}


def test_a_wait_in_torch_has_our_line(gpu):
    model = nn.Linear(3, 3)
    line = inspect.currentframe().f_lineno + 1
    model.to("cuda")
    gpu.end()
    assert gpu.waits_elsewhere == {(f"{HERE}:{line}", "copy"): 2}


@pytest.mark.parametrize(
    "expression",
    [
        "x.sum() + 1",
        "x[x.long() - 1]",
        "torch.where(x > 0, x, 0)",
        "x.masked_fill_(x > 0, 3)",
        "x.__setitem__(x > 0, 3)",
        "x.copy_(2 * x)",
        "torch.ones(3).to('cuda', non_blocking=True)",
        "torch.ones(3).to('cuda', torch.float64, True)",
        "torch.ones(20_000).pin_memory().to('cuda', non_blocking=True)",
        "torch.empty(20_000, device='cuda').copy_(torch.ones(20_000).pin_memory(), True)",
        "x.to('cpu', non_blocking=True)",
        "c.sum().item()",
        "torch.full((3,), 2.0, device='cuda')",
    ],
)
def test_what_need_not_wait_is_not_counted(expression):
    _, record = evaluate(expression)
    assert not record.waits_elsewhere


# ---------------------------------------------------------------------------------------- launches
@pytest.mark.parametrize(
    "expression, launches",
    [
        ("((x + 1).relu() @ x).sum()", {"add": 1, "relu": 1, "mm": 1, "sum": 1}),
        ("x.T[0].view(3, 1).expand(3, 2)", {}),
        ("torch.empty(3, device='cuda')", {}),
        ("x.mul_(2).unsqueeze_(0)", {"mul_": 1}),
        ("torch.zeros(3, device='cuda')", {"zeros": 1}),
        ("c.to('cuda')", {"copy": 1}),
        ("c + 1", {}),
        ("torch._foreach_add_([x, x, x], 1)", {"_foreach_add_": 1}),
    ],
)
def test_launches_are_the_operators_that_compute(expression, launches):
    _, record = evaluate(expression)
    assert record.launches == launches


def test_a_backward_pass_launches(gpu):
    x = torch.ones(3, device="cuda", requires_grad=True)
    loss = (x * x).sum()
    gpu.launches.clear()
    loss.backward()
    # Of the sum ones, spread out as a view; of the product one for each factor, and their sum.
    assert gpu.launches == {"ones_like": 1, "mul": 2, "add": 1}


# ---------------------------------------------------------------------------------------- training
def trainable(device):
    """Weights (4,) and their gradient, the same everywhere."""
    weight = torch.arange(4.0, device=device).requires_grad_()
    weight.square().sum().backward()
    return weight


def test_gradients_are_where_the_weights_are(gpu):
    assert trainable("cuda").grad.device == CUDA


def test_a_gradient_returns_through_a_move(gpu):
    weight = torch.ones(3, device="cuda", requires_grad=True)
    of_host = torch.ones(3, requires_grad=True)
    loss = 3 * of_host + (2 * weight).cpu()
    loss.sum().backward()
    assert of_host.grad.device.type == "cpu"
    assert weight.grad.device == CUDA
    assert weight.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "make", [*common.OPTIMIZERS.values(), torch.optim.AdamW], ids=["lars", "sgd", "adam", "adamw"]
)
def test_an_optimiser_steps_on_the_gpu(gpu, make):
    weight = trainable("cuda")
    optimizer = make([weight], lr=0.1, weight_decay=0.01)
    optimizer.step()
    kept = [x for x in optimizer.state[weight].values() if torch.is_tensor(x) and x.ndim]
    assert all(x.device == CUDA for x in kept)
    gpu.end()
    assert not gpu.waits_elsewhere

    of_cpu = trainable("cpu")
    make([of_cpu], lr=0.1, weight_decay=0.01).step()
    assert torch.allclose(weight.cpu(), of_cpu)


def test_loaded_weights_stay_on_the_gpu(gpu):
    saved = nn.Linear(2, 3).state_dict()
    model = nn.Linear(2, 3).to("cuda")
    model.load_state_dict(saved)
    assert model.weight.device == CUDA
    assert torch.equal(model.weight.cpu(), saved["weight"])


def test_a_loaded_optimiser_is_where_its_weights_are(gpu):
    of_cpu = torch.optim.Adam([trainable("cpu")], fused=True)
    of_cpu.step()
    weight = trainable("cuda")
    optimizer = torch.optim.Adam([weight], fused=True)
    optimizer.load_state_dict(of_cpu.state_dict())
    assert {x.device for x in optimizer.state[weight].values()} == {CUDA}
    optimizer.step()


def launch(weight):
    weight.sum()


def wait(weight):
    weight[0].item()


def train(in_step, at_end):
    """Two epochs of four steps, in a loop like those of the programs."""
    weight = torch.ones(3, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    for _ in range(2):
        for batch in torch.ones(4, 3).to("cuda"):
            loss = (weight * batch).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            in_step(weight)
        at_end(weight)


@pytest.mark.parametrize("at_end", [launch, wait])
def test_a_step_lasts_from_backward_to_backward(gpu, at_end):
    train(launch, at_end)
    # mul and sum; ones_like and mul; the optimiser's; the sum of `launch`
    assert gpu.steps == [6] * 6


def test_backward_passes_outside_a_loop_are_no_steps(gpu):
    trainable("cuda")
    trainable("cuda")
    assert gpu.steps == []


def test_waits_of_epochs_are_not_of_steps(gpu):
    train(launch, wait)
    gpu.end()
    reasons = [reason for _, reason in gpu.waits_elsewhere.elements()]
    assert not gpu.waits_in_steps
    assert sorted(reasons) == ["copy"] * 2 + ["value read"] * 2


def test_a_wait_within_a_step_is_told_apart(gpu):
    train(wait, launch)
    line = wait.__code__.co_firstlineno + 1
    assert gpu.waits_in_steps == {(f"{HERE}:{line}", "value read"): 6}


def test_a_report_has_launches_and_waits(gpu):
    train(wait, launch)
    text = pretend_gpu.report(gpu)
    assert text.startswith(
        "launches a step: 5 (median of 6)\nwaits within a step: 6\n      6  tools"
    )


# -------------------------------------------------------------------------------- all our programs
# Launches of a step with ResNet-8 and the settings for `shapes`, counted with torch 2.14.
# They decide how fast a small network trains on a GPU: a change may lower them. One that raises
# them says why.
LAUNCHES = {
    "simclr": 629,
    "simclr --optimizer lars --lr 0.1 --blur 0.5": 665,
    "simclr --loss spectral --precision fp32": 585,
    "simclr --head none": 597,
    "ncl": 640,
    "ncl --topk 20": 652,
    "bayesncl": 769,
    "bayesncl --gate gumbel --similarity ipw": 807,
    "bayesncl --gate logistic --gate-layers 3": 803,
    "bayesncl --gate soft --no-detach": 765,
    "bayesncl --gate none": 691,
    "bayesncl --optimizer lars --lr 0.1": 807,
    "sparsehead --base byol": 832,
    "sparsehead --base barlow --prox": 692,
    "sparsehead --base vicreg": 715,
    "sparsehead --base swav": 736,
    "sparsehead --base ssl-hsic": 855,
    "sparsehead --base simclr": 649,
    "sparsehead --head linear --schedule step --order colour-crop --bias-lr 1e-3": 623,
    "sparsehead --base wmse --head-out 4 --whiten-size 8": 701,
    "sparsehead --base wmse --head-out 4 --whiten-size 8 --whiten-splits 2": 787,
    "simsiam": 717,
    "simsiam --no-stop-grad": 751,
    "simsiam --no-predictor --zero-init-residual --optimizer adam --lr 1e-3": 682,
    "nce --head mlp": 250,
    "nce --loss ce": 227,
    "nce --weights non-negative": 237,
    "mmncl": 319,
    "lpjepa": 680,
    "lpjepa --noise gaussian": 675,
}
OF_SAE = {"": 84, "--batch-topk": 84}
OF_FINETUNE = 247  # in the first step, which makes the momenta; later 222

# Waits outside of steps, which a change may lower too. No step of any program waits.
WAITS = {
    # In an epoch: the means of three numbers of its steps, and whether the weights are finite.
    "end_epoch": 4,
    # Without its solver. That is torch's LBFGS, which reads the device some 400 times a fit: these
    # waits bound the probe, and only a solver of our own could do without them.
    "fit_probe": 30,
}


def run_there(command, *more, free=2**36):
    """Run a command on a GPU with so many free bytes; the record.

    The probe's solver, which would take most of the time, does nothing.
    """
    with pretended_gpu(free) as record, mock.patch.object(torch.optim.LBFGS, "step"):
        run_program(command, *more)
    return record


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Flags of a run of two epochs, of three steps each."""
    root = tmp_path_factory.mktemp("data")
    arrays = shapes.draw(48, 40)
    np.savez(root / "few.npz", **arrays)
    return (
        f"--dataset few --preset shapes --data-root {root} --image-size 16 --batch-size 16"
        " --epochs 2"
    )


@pytest.fixture(scope="module", params=LAUNCHES)
def trained(request, flags, tmp_path_factory):
    """A command line, the folder of its run on the GPU, and the record."""
    folder = tmp_path_factory.mktemp("run") / "run"
    record = run_there(f"{request.param} {flags} --out", folder)
    return request.param, folder, record


@pytest.fixture(scope="module")
def finished(flags, tmp_path_factory):
    """The folder of a run on the CPU."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_program(f"simclr.py {flags} --epochs 1 --out", folder)
    return folder


@pytest.mark.slow
def test_no_step_waits(trained):
    _, _, record = trained
    assert len(record.steps) == 4
    assert not record.waits_in_steps


@pytest.mark.slow
def test_no_step_launches_more_than_recorded(trained):
    command, _, record = trained
    later = record.steps[1:]  # the first makes the optimiser's state
    assert max(later) <= LAUNCHES[command]


# ---- data in main memory, --resume
def trained_by(*commands):
    """The runs of `trained` that differ in what a test is of."""
    return pytest.mark.parametrize("trained", commands, indirect=True)


@pytest.mark.slow
@trained_by("simclr", "mmncl")  # mmncl reads captions by the images' indices
def test_data_in_main_memory_train_the_same(trained, flags, tmp_path):
    command, folder, _ = trained
    record = run_there(f"{command} {flags} --out", tmp_path / "run", free=0)
    assert len(record.steps) == 4
    assert not record.waits_in_steps
    assert records(tmp_path / "run") == records(folder)


def ask_for_epochs(epochs, folder):
    """Have a run train for so many epochs, of which it has done some."""
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | dict(epochs=epochs)))


@pytest.mark.slow
@trained_by("bayesncl --gate gumbel --similarity ipw", "sparsehead --base byol")  # have a state
def test_a_run_goes_on_there(trained, tmp_path):
    command, folder, _ = trained
    copied = shutil.copytree(folder, tmp_path / "run")
    ask_for_epochs(3, copied)
    record = run_there(f"{command.split()[0]} --resume", copied)
    assert len(record.steps) == 2
    assert not record.waits_in_steps
    assert records(copied)[-1]["epochs"] == 3


# ---- what is no step
def waits_of(record, function):
    """How often lines of a function waited outside of steps."""
    source, first = inspect.getsourcelines(function)
    file = Path(inspect.getsourcefile(function)).relative_to(ROOT)
    lines = {f"{file}:{first + i}" for i in range(len(source))}
    found = 0
    for (line, _), count in record.waits_elsewhere.items():
        if line in lines:
            found += count
    return found


@pytest.mark.slow
@trained_by("simclr")
def test_an_epochs_end_waits_once_for_weights(trained):
    _, _, record = trained
    assert waits_of(record, common.Run.end_epoch) <= 2 * WAITS["end_epoch"]


def test_a_probe_waits_for_little_but_its_solver(gpu):
    x = torch.randn(60, 5, device="cuda")
    y = torch.arange(60, device="cuda") % 3
    with mock.patch.object(torch.optim.LBFGS, "step"):
        common.fit_probe(x, y)
    gpu.end()
    assert gpu.waits_elsewhere.total() <= WAITS["fit_probe"]


# ---- the other programs
@pytest.mark.slow
@pytest.mark.parametrize("free", [2**36, 0], ids=["on-the-gpu", "in-main-memory"])
@pytest.mark.parametrize("mode", OF_SAE, ids=["topk", "batch-topk"])
def test_no_step_of_sae_waits(finished, tmp_path, mode, free):
    command = f"sae.py {finished} --epochs 2 --batch-size 16 {mode} --out"
    record = run_there(command, tmp_path / "run", free=free)
    assert len(record.steps) == 4
    assert not record.waits_in_steps
    assert max(record.steps[1:]) <= OF_SAE[mode]


@pytest.mark.slow
def test_sae_goes_on_there(finished, tmp_path):
    run_there(f"sae.py {finished} --batch-size 16 --epochs 1 --out", tmp_path / "run")
    ask_for_epochs(2, tmp_path / "run")
    run_there("sae.py --resume", tmp_path / "run")
    assert records(tmp_path / "run")[-1]["epochs"] == 2


@pytest.mark.slow
def test_no_step_of_finetune_waits(finished):
    command = f"finetune.py {finished} --labels 0.5 1 --epochs 1 --min-steps 4 --tune 0.05"
    record = run_there(command)
    assert len(record.steps) == 12  # in four trainings of four, the first of each left out
    assert not record.waits_in_steps
    assert max(record.steps) <= OF_FINETUNE


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["robustness", "selection"])
def test_a_tool_measures_there(finished, tool):
    record = run_there(f"{tool}.py {finished}")
    assert "convolution" in record.launches
    assert not record.waits_in_steps
    assert (finished / f"{tool}.json").exists()


def last_alone(s, records):
    """Marks of a training that is measured after its last epoch alone."""
    return {s.epochs}


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment", ["all", "custom --masks dependent --latents iid"], ids=["all", "custom"]
)
def test_no_step_of_the_landscape_waits(tmp_path, monkeypatch, experiment):
    monkeypatch.setattr(sparse_coding, "marks", last_alone)
    command = f"sparse_coding.py --experiment {experiment} --epochs 3 --seeds 2 --out"
    with pretended_gpu() as record:
        run_program(command, tmp_path / "run")
    assert record.steps
    assert not record.waits_in_steps


@pytest.mark.slow
def test_the_landscape_goes_on_there(tmp_path):
    def train(epochs, memory=None):
        s = sparse_coding.setting({}, dict(epochs=epochs, seeds=2), paper=False)
        with pretended_gpu():
            return sparse_coding.train(s, "cuda", memory=memory)[1]

    train(2, tmp_path / "memory.pt")
    assert np.array_equal(train(3, tmp_path / "memory.pt")["min"], train(3)["min"])


@pytest.mark.slow
def test_the_program_reports_of_another(flags, capsys):
    pretend_gpu.main([str(ROOT / "ncl.py"), *flags.split()])
    text = capsys.readouterr().out
    launches, steps = re.search(r"launches a step: (\d+) \(median of (\d+)\)", text).groups()
    assert int(launches) <= LAUNCHES["ncl"]
    assert steps == "4"


def test_an_unknown_program_is_refused():
    assert "no program nought.py" in refusal("pretend_gpu.py nought.py")
