"""A GPU that is not there: what a program does with one, seen on a machine without.

    python checks/pretend_gpu.py bayesncl.py --epochs 1 --limit 600

runs a program of this project, of any flags, on a pretended GPU. It prints how many kernels a step
launches, and each line at which the host waits for the GPU. A new run goes into a temporary folder,
unless --out names one; a tool writes into the folder of its run, as ever. In a test:

    with pretended_gpu() as record:
        simclr.main([...])
    assert not record.waits_in_steps

How it works. A tensor "on the GPU" is one of the CPU with a mark on its storage, which its views
share. Two modes of torch see all that is done. `Calls` sees what Python calls: it answers x.device,
and makes and moves tensors. `Operators` sees the operators of aten that calls and backward passes
come down to: it compares devices, marks results, and counts.

Pretended
    devices    x.device, factories, moves, generators, pinned memory, what torch.cuda tells
    refusals   where CUDA refuses a device: an error of the same type
    waits      values read (item, if, print), boolean masks, nonzero, unique, checks of linalg,
               synchronize, and copies between host and GPU. Those do not wait that are
               non_blocking and of pinned memory, or to the GPU and at most 64 KB
    launches   operators that compute or copy on the GPU, one each. A fused or a foreach one counts
               once too: it launches one kernel or a few. Views and allocations launch nothing

Not pretended: speed, memory, streams; numerics and autocast's choice of operators, which are the
CPU's; reads by torch.save; other threads; sparse tensors; torch.compile; several GPUs. The code of
an autograd.Function's backward is told that its tensors are on the CPU.

A step is what happens from one backward pass to the next, if all of it happens in a loop that calls
`step` or `optimizer.step`. The rest (the start, the end of an epoch, the evaluation) is counted
apart.
"""

import argparse
import ast
import contextlib
import functools
import importlib
import inspect
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


# ----------------------------------------------------------------------------------------- the mark
def mark(x: Tensor, place: str | None) -> None:
    """Say where the memory of x is: "cuda", "pinned", or None for any other of the host."""
    if x.layout == torch.strided:
        x.untyped_storage().place = place


def place_of(x: Tensor) -> str | None:
    """What `mark` said of the memory of x."""
    if x.layout != torch.strided:
        return None
    return getattr(x.untyped_storage(), "place", None)


def on_gpu(x: Tensor) -> bool:
    """Whether x is pretended to be there."""
    return place_of(x) == "cuda"


def is_gpu(device) -> bool:
    """Whether a device, or its name, is the GPU; RuntimeError for a second one."""
    device = torch.device(device)
    if device.type == "cuda" and device.index not in (None, 0):
        raise RuntimeError("CUDA error: invalid device ordinal")
    return device.type == "cuda"


def tensors_in(value):
    """Yield the tensors in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


# ------------------------------------------------------------------------------ lines of our source
@functools.cache
def is_ours(file: str) -> bool:
    """Whether a file is of this project, and is not this one."""
    path = Path(file)
    return path.is_relative_to(ROOT) and "site-packages" not in path.parts and file != __file__


def our_frames():
    """Yield the frames of the calls under way that are in files of ours, innermost first."""
    frame = inspect.currentframe()
    while frame:
        if is_ours(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def line_of_ours() -> str:
    """Where the program is: file:line."""
    for frame in our_frames():
        file = Path(frame.f_code.co_filename).relative_to(ROOT)
        return f"{file}:{frame.f_lineno}"
    return "elsewhere"


@functools.cache
def training_lines(file: str) -> set[int]:
    """The lines of a file's loops that call `step`, or the `step` of something."""
    nodes = list(ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))))
    loops = [node for node in nodes if isinstance(node, (ast.For, ast.While))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    lines = set()
    for call in calls:
        name = getattr(call.func, "attr", getattr(call.func, "id", None))
        around = [loop for loop in loops if loop.lineno <= call.lineno <= loop.end_lineno]
        if name == "step" and around:
            innermost = around[-1]  # ast.walk comes to outer ones first
            lines.update(range(innermost.lineno, innermost.end_lineno + 1))
    return lines


def in_training_loop() -> bool:
    """Whether the program is in a loop that trains."""
    for frame in our_frames():
        if frame.f_lineno in training_lines(frame.f_code.co_filename):
            return True
    return False


# --------------------------------------------------------------------------------------- the record
class Record:
    """What a program asked of the GPU.

    launches           operator → how often
    steps              launches of each step
    waits_in_steps     (file:line, reason) → how often
    waits_elsewhere    the same of what is no step
    """

    def __init__(self):
        self.launches = Counter()
        self.steps = []
        self.waits_in_steps = Counter()
        self.waits_elsewhere = Counter()
        self.begin(in_loop=False)

    def begin(self, in_loop: bool):
        """Count anew, until the next backward pass."""
        self.in_loop = in_loop  # whether everything so far was in a loop that trains
        self.new_launches = 0
        self.new_waits = Counter()

    def launch(self, name: str):
        self.launches[name] += 1
        self.new_launches += 1
        self.in_loop = self.in_loop and in_training_loop()

    def wait(self, reason: str):
        self.new_waits[line_of_ours(), reason] += 1
        self.in_loop = self.in_loop and in_training_loop()

    def backward(self):
        """A backward pass begins: what came since the last one was a step, or was none."""
        if self.in_loop:
            self.steps.append(self.new_launches)
            self.waits_in_steps += self.new_waits
        else:
            self.waits_elsewhere += self.new_waits
        self.begin(in_loop=True)

    def end(self):
        """What came after the last backward pass was no whole step."""
        self.waits_elsewhere += self.new_waits
        self.begin(in_loop=False)


# -------------------------------------------------------------------------------- the rules of CUDA
TWO_DEVICES = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
)

# Names of aten's operators.
COPIES = {"copy_", "_to_copy", "_foreach_copy_", "set_"}  # from any device to any
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
TAKE_A_NUMBER = {"fill", "fill_", "masked_fill", "masked_fill_"}
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
NO_LAUNCH = {"is_same_size", "_local_scalar_dense"} | ALLOCATIONS  # and views
WAITS = {  # those of which the host needs a value, and the reason that a report names
    "_local_scalar_dense": "value read",
    "_linalg_check_errors": "check of linalg",
    "_linalg_eigh": "check of linalg",
    "_linalg_svd": "check of linalg",
    "allclose": "value read",
    "bincount": "bincount",
    "equal": "equal",
    "masked_select": "boolean mask",
    "nonzero": "nonzero",
    "_unique2": "unique",
    "unique_consecutive": "unique",
    "unique_dim": "unique",
}


def check_devices(func, args, inputs: list[Tensor]) -> None:
    """RuntimeError where CUDA refuses an operator's inputs, of which one is on the GPU."""
    name = func.overloadpacket.__name__
    if name in COPIES:
        return
    if name in INDEXING:
        check_index(*args[:3])
        return
    # To what goes entry by entry, a tensor of the host without axes is a number.
    by_entry = torch.Tag.pointwise in func.tags or name.startswith("_foreach")
    takes_numbers = by_entry or name in TAKE_A_NUMBER
    written = None
    if name.endswith("_") and not name.startswith("_"):
        written = inputs[0]
    for x in inputs:
        is_number = takes_numbers and x.ndim == 0 and x is not written
        if not on_gpu(x) and not is_number:
            raise RuntimeError(f"{TWO_DEVICES} ({func})")


def check_index(x: Tensor, indices, values=None) -> None:
    """The same of x[indices], and of x[indices] = values."""
    if not on_gpu(x) and any(on_gpu(i) for i in tensors_in(indices)):
        allowed = "either on cpu or on the same device as the indexed tensor (cpu)"
        raise RuntimeError(f"indices should be {allowed}")
    if values is None or on_gpu(values) == on_gpu(x):
        return
    if on_gpu(values) or values.ndim > 0:
        raise RuntimeError(f"{TWO_DEVICES} (values of an index)")


def index_waits(x: Tensor, indices, values=None) -> str | None:
    """Why x[indices], or x[indices] = values, waits; None where it does not."""
    indices = list(tensors_in(indices))
    if not all(on_gpu(i) for i in indices):
        return "index of the host"
    has_mask = any(i.dtype in (torch.bool, torch.uint8) for i in indices)
    # x[mask] = 3 fills; where, the host need not know.
    fills = values is not None and values.numel() == 1 and not on_gpu(values)
    if has_mask and not fills:
        return "boolean mask"
    return None


def copy_waits(host: Tensor, to_gpu: bool, non_blocking: bool) -> bool:
    """Whether a copy to the GPU or from it waits; host: its end in the host's memory."""
    if not non_blocking:
        return True
    taken_along = to_gpu and host.nbytes <= 2**16
    return not taken_along and place_of(host) != "pinned"


# --------------------------------------------------------------------------------------- operators
class Operators(TorchDispatchMode):
    """Compares the devices of an operator's inputs, marks its outputs, counts."""

    def __init__(self, record: Record):
        super().__init__()
        self.record = record
        # Whether what has no inputs, as torch.empty, is called by something on the GPU, or for it.
        self.for_gpu = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = list(tensors_in([args, kwargs]))
        on = any(on_gpu(x) for x in inputs)
        if on:
            check_devices(func, args, inputs)
            self.count_waits(func.overloadpacket.__name__, args)
        out = func(*args, **kwargs)
        if on or (self.for_gpu and not inputs):
            self.follow(func, inputs, list(tensors_in(out)))
        return out

    def count_waits(self, name, args):
        if name in WAITS:
            self.record.wait(WAITS[name])
        elif name in INDEXING:
            reason = index_waits(*args[:3])
            if reason:
                self.record.wait(reason)
        elif name == "copy_":
            target, source, *non_blocking = args
            to_gpu = on_gpu(target)
            host = source if to_gpu else target
            if not on_gpu(host) and copy_waits(host, to_gpu, any(non_blocking)):
                self.record.wait("copy")

    def follow(self, func, inputs, outputs):
        """Mark what an operator has made on the GPU, and count its launch."""
        others = []
        for x in outputs:
            if not any(x is given for given in inputs):
                others.append(x)
        made = [x for x in others if not on_gpu(x)]
        for x in made:
            mark(x, "cuda")

        # What was marked before it came out is a view of an input.
        views_only = len(outputs) > 0 and len(others) == len(outputs) and not made
        is_view = views_only or torch.Tag.inplace_view in func.tags
        name = func.overloadpacket.__name__
        if not is_view and name not in NO_LAUNCH:
            self.record.launch(name)


# ----------------------------------------------------------------------------------- Python's calls
class Move(torch.autograd.Function):
    """A copy of x on the other device, and of the gradient on the first."""

    @staticmethod
    def forward(ctx, x, to_gpu, place):
        ctx.to_gpu = to_gpu
        y = x.clone()
        mark(y, place)
        return y

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        mark(gradient, None if ctx.to_gpu else "cuda")
        return gradient, None, None


BACKWARD = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}
FROM_THE_HOST = {torch.tensor, torch.as_tensor}  # which make a tensor there, and copy it
READ_BY_CALLS = {Tensor.tolist: "value read", Tensor.__repr__: "printing"}


def check_generator(generator, on: bool) -> None:
    """RuntimeError where numbers are drawn on another device than the generator's."""
    if generator is None:
        return
    wanted = "cuda" if on else "cpu"
    found = generator.device.type
    if found != wanted:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")


def check_on_host(x: Tensor) -> None:
    """TypeError where numpy is to read the GPU."""
    if on_gpu(x):
        wrong = "can't convert cuda:0 device type tensor to numpy"
        raise TypeError(f"{wrong}. Use Tensor.cpu() to copy the tensor to host memory first.")


class Calls(TorchFunctionMode):
    """Answers for the GPU where Python asks for devices, makes or moves tensors."""

    def __init__(self, record: Record, operators: Operators):
        super().__init__()
        self.record = record
        self.operators = operators
        self.answers = {
            Tensor.device.__get__: self.device,
            Tensor.is_cuda.__get__: on_gpu,
            Tensor.is_cpu.__get__: self.is_cpu,
            Tensor.to: self.to,
            Tensor.cpu: self.cpu,
            Tensor.cuda: self.cuda,
            Tensor.pin_memory: self.pin_memory,
            Tensor.numpy: self.numpy,
            Tensor.__array__: self.array,
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self.answers:
            return self.answers[func](*args, **kwargs)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type not in ("cpu", "cuda"):
            return func(*args, **kwargs)

        on = any(on_gpu(x) for x in tensors_in([args, kwargs]))
        if on:
            self.before(func)
        if device is not None:
            on = is_gpu(device)
            kwargs = kwargs | {"device": CPU}
        check_generator(kwargs.get("generator"), on)
        self.operators.for_gpu = on
        out = func(*args, **kwargs)
        if device is not None:
            return self.made(func, args, out, on)
        if func is Tensor.__deepcopy__ and on:
            mark(out, "cuda")  # it copied the storage, by no operator
        return out

    def before(self, func):
        """Count, or refuse, a call with a tensor on the GPU."""
        if func in BACKWARD:
            self.record.backward()
        if func in READ_BY_CALLS:
            self.record.wait(READ_BY_CALLS[func])

    def made(self, func, args, out, on: bool):
        """What a function was asked to make on a device, on that device."""
        if args and out is args[0]:  # torch.as_tensor of a tensor
            return self.move(out, out, on)
        if func in FROM_THE_HOST and on:
            self.record.launch("copy")
            self.record.wait("copy")
        for x in tensors_in(out):
            mark(x, "cuda" if on else None)
        return out

    def device(self, x):
        return CUDA if on_gpu(x) else x.device

    def is_cpu(self, x):
        return x.is_cpu and not on_gpu(x)

    def to(self, x, *args, **kwargs):
        """x.to(device, …), x.to(other, …), x.to(dtype, …), x.to(device=…, …)."""
        args = list(args)
        to_gpu = on_gpu(x)
        if args and isinstance(args[0], Tensor):
            to_gpu = on_gpu(args[0])
            args[:1] = [CPU, args[0].dtype]
        elif args and isinstance(args[0], (str, int, torch.device)):
            to_gpu = is_gpu(args[0])
            args[0] = CPU
        elif kwargs.get("device") is not None:
            to_gpu = is_gpu(kwargs["device"])
            kwargs["device"] = CPU
        non_blocking = kwargs.get("non_blocking", args[2:3] == [True])
        changed = x.to(*args, **kwargs)  # of another type or order in memory
        return self.move(x, changed, to_gpu, non_blocking)

    def cpu(self, x, memory_format=torch.preserve_format):
        return self.to(x, CPU, memory_format=memory_format)

    def cuda(self, x, device=CUDA, non_blocking=False):
        return self.to(x, device, non_blocking=non_blocking)

    def pin_memory(self, x, device=None):
        if on_gpu(x):
            raise RuntimeError(f"cannot pin '{x.type()}' only dense CPU tensors can be pinned")
        x = x.clone()
        mark(x, "pinned")
        return x

    def numpy(self, x, *, force=False):
        if force:
            x = self.cpu(x)
        check_on_host(x)
        return x.numpy(force=force)

    def array(self, x, dtype=None):
        check_on_host(x)
        return x.__array__(dtype)

    def move(self, x, changed, to_gpu: bool, non_blocking=False):
        """`changed`, which is x or x in another form, on the GPU or off it."""
        if on_gpu(x) == to_gpu:
            return changed
        if to_gpu:
            self.record.launch("copy")
            if copy_waits(x, to_gpu, non_blocking):
                self.record.wait("copy")
            return Move.apply(changed, True, "cuda")
        if not non_blocking:
            self.record.wait("copy")
            return Move.apply(changed, False, None)
        return Move.apply(changed, False, "pinned")  # as torch does


# --------------------------------------------------------------------------------- what torch tells
class Generator(torch.Generator):
    """A generator of the CPU that says for which device it was made."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")

    def __init__(self, device="cpu"):
        self.on = is_gpu(device)

    @property
    def device(self):
        return CUDA if self.on else CPU


TOLD = {  # what functions of torch.cuda return
    "is_available": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": "a pretended GPU",
    "get_device_capability": (9, 0),
    "is_current_stream_capturing": False,
    "manual_seed_all": None,
}


@contextlib.contextmanager
def pretended_gpu(free=2**36):
    """Within the block there is a GPU with so many free bytes; yields its Record."""
    record = Record()
    autocast_of_torch = torch.autocast

    def synchronize(device=None):
        record.wait("synchronize")

    def autocast(device_type, *args, **kwargs):
        if device_type == "cuda":
            return autocast_of_torch("cpu", *args, **kwargs)
        return contextlib.nullcontext()  # the CPU's changes nothing on the GPU

    with contextlib.ExitStack() as stack:

        def replace(owner, name, value):
            stack.enter_context(mock.patch.object(owner, name, value))

        for name, answer in TOLD.items():
            replace(torch.cuda, name, mock.Mock(return_value=answer))
        replace(torch.cuda, "mem_get_info", mock.Mock(return_value=(free, 2**37)))
        replace(torch.cuda, "synchronize", synchronize)
        # Optimisers would ask the real one whether its stream is being captured.
        replace(torch.accelerator, "current_accelerator", mock.Mock(return_value=None))
        replace(torch, "autocast", autocast)
        replace(torch, "Generator", Generator)
        replace(common, "DEVICE", "cuda")  # a program's default

        operators = stack.enter_context(Operators(record))
        stack.enter_context(Calls(record, operators))
        try:
            yield record
        finally:
            record.end()


# -------------------------------------------------------------------------------------- the program
def report(record: Record) -> str:
    """The launches of a step, and all waits, as a text."""
    lines = ["launches a step: not measured, for there were no two steps in a row"]
    if record.steps:
        launches = statistics.median_low(record.steps)
        lines = [f"launches a step: {launches} (median of {len(record.steps)})"]
    kinds = {"within a step": record.waits_in_steps, "elsewhere": record.waits_elsewhere}
    for kind, waits in kinds.items():
        lines.append(f"waits {kind}: {waits.total()}")
        for (line, reason), count in waits.most_common():
            lines.append(f"{count:7}  {line}  {reason}")
    return "\n".join(lines)


def makes_runs(program) -> bool:
    """Whether a program makes runs, and can go on with them."""
    return hasattr(program, "parser") and "--resume" in program.parser().format_help()


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="pretend_gpu.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    add("--no-room", action="store_true", help="on the GPU for the data, which stay in main memory")
    add("program", type=Path, help="a program of this project")
    add("flags", nargs=argparse.REMAINDER, help="its flags")
    args = flags.parse_args(argv)
    if not args.program.exists():
        raise common.BadInput(f"there is no program {args.program}")

    sys.path.insert(0, str(args.program.resolve().parent))
    program = importlib.import_module(args.program.stem)
    command = args.flags
    free = 0 if args.no_room else 2**36
    with tempfile.TemporaryDirectory() as folder, pretended_gpu(free) as record:
        named = any(flag.startswith(("--out", "--resume")) for flag in command)
        if makes_runs(program) and not named:
            command = [*command, "--out", f"{folder}/run"]
        program.main(command)
    print(report(record))


if __name__ == "__main__":
    common.launch(main)
