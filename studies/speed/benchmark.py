"""How fast this code is on this machine, and what BayesNCL's gate costs.

    python studies/speed/benchmark.py                 the parts of a run, then epochs of simclr.py
    python studies/speed/benchmark.py --peers         beside other libraries, on the CPU
    python studies/speed/benchmark.py --embeddings    interpret.py on large embeddings
    python studies/speed/benchmark.py --cost          parameters and FLOPs of BayesNCL's gate

The peers are torchvision on PIL, kornia, lightly and scikit-learn. Those that are installed are
timed after ours, on the same inputs and threads; a time is the median of a second's calls, after
one that does not count. simclr.py takes turns with lightly_simclr.py; the best of two turns counts.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms import v2

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import bayesncl  # noqa: E402
import common  # noqa: E402
import interpret  # noqa: E402
import shapes  # noqa: E402
import simclr  # noqa: E402
from common import progress  # noqa: E402

VIEWS = dict(min_scale=0.08, jitter=0.8, gray=0.2, blur=0.5, crop="bicubic")  # the papers'


def seconds(call) -> float:
    """Median time of call(): of as many as fit into a second, after one that does not count."""
    times = []
    while len(times) < 2 or sum(times[1:]) < 1:
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


# ---------------------------------------------------------------------------------------- the peers
# Calls by name, for images (N, 3, 32, 32) uint8, the same as `pil`, embeddings z (2N, K), and the
# features and labels of a probe, train and test.
def torchvision_calls(images, pil, z, train, test):
    """The chain of views on PIL images, one by one."""
    jitter = v2.ColorJitter(0.8, 0.8, 0.8, 0.2)
    chain = v2.Compose(
        [
            v2.RandomResizedCrop(32, interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([jitter], 0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], 0.5),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )

    def views():
        return [chain(x) for x in pil]

    return {"views: torchvision on PIL": views}


def kornia_calls(images, pil, z, train, test):
    """The same chain, batched."""
    import kornia.augmentation as K

    chain = nn.Sequential(
        K.RandomResizedCrop((32, 32), (0.08, 1), resample="bicubic"),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.RandomGaussianBlur((13, 13), (0.1, 2.0), p=0.5),
    )

    def views():
        return chain(images.float() / 255)

    return {"views: kornia": views}


def lightly_calls(images, pil, z, train, test):
    """Views, loss and nearest neighbours."""
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform
    from lightly.utils.benchmarking import knn_predict

    two_views = SimCLRTransform(input_size=32, cj_strength=1.0)
    criterion = NTXentLoss(temperature=0.2)
    query = F.normalize(test[0])
    bank = F.normalize(train[0]).T.contiguous()

    def views():
        return [two_views(x) for x in pil[: len(pil) // 2]]

    def loss():
        z1, z2 = z.chunk(2)
        criterion(z1, z2).backward()

    def neighbours():
        return [knn_predict(part, bank, train[1], 100, 200) for part in query.split(500)]

    return {
        "views: lightly": views,
        "NT-Xent: lightly": loss,
        "kNN: lightly, k = 200": neighbours,
    }


def sklearn_calls(images, pil, z, train, test):
    """Logistic regression with linear_probe's protocol: six strengths on nine tenths, another fit
    on all.
    """
    from sklearn.linear_model import LogisticRegression

    warnings.simplefilter("ignore")  # about max_iter, where it stops short of the minimum
    features, labels = train
    x = ((features - features.mean(0)) / features.std(0)).numpy()
    y = labels.numpy()

    def fit(l2, n):
        LogisticRegression(C=1 / (l2 * n), max_iter=30).fit(x[:n], y[:n])

    def probe():
        for k in range(6):
            fit(0.1**k, len(x) * 9 // 10)
        fit(1e-2, len(x))

    return {"probe: scikit-learn, 30 steps a fit": probe}


# ----------------------------------------------------------------------------------- parts of a run
def parts(device, peers: bool) -> None:
    """Print what parts of a run take; with peers theirs too.

    256 views of 32 pixels; NT-Xent of 2N = 512, K = 256 with its gradient; a probe of 50,000
    features (·, 512) of 100 classes, kNN of 2,000 to them, interpretability of these.
    """
    images = torch.from_numpy(shapes.draw(256, 10)["x_train"]).to(device)
    pil = [v2.functional.to_pil_image(x) for x in images]
    z = torch.randn(512, 256, device=device, requires_grad=True)

    y = torch.arange(52_000, device=device) % 100
    centres = torch.randn(100, 512, device=device)
    spectrum = torch.arange(1, 513, device=device) ** -0.5
    h = (torch.randn(52_000, 512, device=device) + centres[y]) * spectrum
    h = (h @ torch.randn(512, 512, device=device)).relu()  # correlated, as features are
    train = h[:50_000], y[:50_000]
    test = h[50_000:], y[50_000:]
    h_test = test[0].cpu().numpy()
    embedding = interpret.Embedding(
        h_test, {"": test[1].cpu().numpy()}, judge=h_test, features=h_test
    )
    compiled = torch.compile(common.augment)

    def views():
        return common.augment(images, 32, **VIEWS)

    def views_compiled():
        return compiled(images, 32, **VIEWS)

    def loss():
        z1, z2 = z.chunk(2)
        simclr.nt_xent(z1, z2, 0.2).backward()

    def probe():
        return common.linear_probe(*train, *test)

    def neighbours():
        return common.knn_accuracy(*train, *test, k=200)

    def interpretability():
        return interpret.interpret(embedding)

    calls = {
        "views: ours": views,
        "views: ours, --compile": views_compiled,
        "NT-Xent: ours": loss,
        "probe: ours, until a step gains 1e-6": probe,
        "kNN: ours, k = 200": neighbours,
        "interpret.py, with its controls: ours": interpretability,
    }
    if peers:
        for library in (torchvision_calls, kornia_calls, lightly_calls, sklearn_calls):
            try:
                calls |= library(images, pil, z, train, test)
            except ImportError as error:
                print(f"{error.name} is not installed")
    times = {}
    for name in progress(list(calls), "parts of a run"):
        times[name] = seconds(calls[name])
    for name, taken in times.items():
        print(f"{name:50} {1000 * taken:8.1f} ms", flush=True)


# ------------------------------------------------------------------------------- programs, measured
# Runs a command and prints its peak memory in kB. It is small itself, because a program inherits
# its starter's peak.
MEASURE = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)"""


def measured(what: str, command: list) -> tuple[str, int]:
    """Run a Python program to its end: what it printed, and its peak memory in MB (Linux).

    Raises BadInput where it fails, with what the error calls it.
    """
    python = [sys.executable, "-c", MEASURE, sys.executable]
    done = subprocess.run(python + command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise common.BadInput(f"{what} failed: {done.stderr[-300:]}")
    kilobytes = int(done.stderr.split()[-1])
    return done.stdout, kilobytes // 1024


def epoch(program: str, arch: str, images: int, epochs: int, flags: str) -> tuple[float, int]:
    """A training on random images of 32 pixels: images/s of its last epoch, peak memory in MB."""
    with tempfile.TemporaryDirectory() as folder:
        noise = np.random.default_rng(0).integers(0, 256, (images, 32, 32, 3), np.uint8)
        np.savez(f"{folder}/noise.npz", x_train=noise, x_test=noise[:20])
        command = [program, "--dataset", "noise", "--data-root", folder]
        command += ["--arch", arch, "--epochs", str(epochs)] + flags.split()
        if program == "simclr.py":
            command += ["--out", f"{folder}/run", "--batch-size", "256"]
        text, memory = measured(" ".join(command), command)
        if program == "simclr.py":
            text = Path(folder, "run/metrics.jsonl").read_text()
    rates = []
    for line in text.splitlines():
        if line.startswith("{") and "images_per_s" in line:
            rates.append(json.loads(line)["images_per_s"])
    return rates[-1], memory


def epochs(device, peers: bool) -> None:
    """Print images/s of simclr.py and, with peers, of lightly's loop; on a CPU then that growing
    data cost the same.
    """
    flags = {"fp32": f"--device {device} --precision fp32"}  # name: those of simclr.py
    if common.has_bf16(device):
        flags["bf16"] = f"--device {device} --precision bf16"
        flags["bf16, --compile"] = f"{flags['bf16']} --compile"
    if device == "cuda":
        trainings = {"resnet18": (50_000, 3)}  # images, epochs: the first one compiles
    else:
        trainings = {"resnet8": (10_000, 2), "resnet20": (10_000, 2), "resnet18": (1024, 2)}
    ours = list(flags)
    peer = "lightly's loop"
    if peers and importlib.util.find_spec("lightly") is not None:
        flags[peer] = f"--device {device}"

    for arch, size in trainings.items():
        best = dict.fromkeys(flags, (0.0, 0))  # images/s and MB
        for name in progress(list(flags) * 2, f"trainings of {arch}"):
            program = "studies/speed/lightly_simclr.py" if name == peer else "simclr.py"
            found = epoch(program, arch, *size, flags[name])
            best[name] = max(best[name], found)
        fastest = max(best[name][0] for name in ours)
        for name, (rate, memory) in best.items():
            share = f"1/{fastest / rate:.2f}"
            text = f"{arch}, batch 256, {name:15} {rate:8.1f} images/s, {memory} MB, {share}"
            print(text, flush=True)
    if device != "cpu":
        return
    found = {}
    for images in progress([2_560, 10_000, 50_000], "trainings on growing data"):
        found[images] = epoch("simclr.py", "resnet8", images, 1, "")
    for images, (rate, memory) in found.items():
        print(f"resnet8, {images} images: {rate:8.1f} images/s, {memory} MB", flush=True)


# --------------------------------------------------------------------------------- large embeddings
LATENTS = [(50_000, 16_384, 32, 100), (200_000, 65_536, 64, 1000)]  # N, K, active, classes
DENSE = 50_000, 768  # N, K


def sparse_arrays(N: int, K: int, active: int, classes: int) -> tuple[dict, np.ndarray]:
    """Random latents (N, K) in scipy's CSR layout, and labels (N,).

    Half of an image's active latents are its class's own.
    """
    draw = np.random.default_rng(0)
    y = draw.integers(0, classes, N)
    own = draw.integers(0, K, (classes, 2 * active))  # the latents that a class's images share
    from_own = own[y[:, None], draw.integers(0, 2 * active, (N, active))]
    anywhere = draw.integers(0, K, (N, active))
    dims = np.where(draw.random((N, active)) < 0.5, from_own, anywhere)
    cells = np.unique(np.arange(N)[:, None] * K + dims)  # no latent twice
    start = np.searchsorted(cells, np.arange(N + 1) * K)
    values = draw.random(len(cells), np.float32) + 0.1
    arrays = dict(
        format=np.array(b"csr"),
        shape=np.array([N, K]),
        data=values,
        indices=(cells % K).astype(np.int32),
        indptr=start,
    )
    return arrays, y


def dense_arrays(N: int, K: int, classes=100) -> dict[str, np.ndarray]:
    """Random embeddings z (N, K) around the centres of their classes y (N,), in 16 bits."""
    y = np.arange(N) % classes
    centres = np.random.default_rng(1).normal(size=(classes, K)).astype(np.float16)
    noise = np.random.default_rng(2).normal(size=(N, K)).astype(np.float16)
    return dict(z=centres[y] + noise, y=y)


def embeddings() -> None:
    """Print the seconds and the peak memory of interpret.py, files read, with its controls."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for N, K, active, classes in progress(LATENTS, "files"):
            arrays, y = sparse_arrays(N, K, active, classes)
            np.savez(folder / f"{N}x{K}.npz", **arrays)
            np.save(folder / f"{N}x{K}-labels.npy", y)
        N, K = DENSE
        np.savez(folder / f"{N}x{K}.npz", **dense_arrays(N, K))

        lines = []
        for file in progress(sorted(folder.glob("*.npz")), "interpret.py"):
            command = ["tools/interpret.py", file, "--out", folder / "out"]
            labels = folder / f"{file.stem}-labels.npy"
            if labels.exists():
                command += ["--labels", labels]
            start = time.perf_counter()
            _, memory = measured("interpret.py", command)
            taken = time.perf_counter() - start
            lines.append(f"interpret.py, {file.stem}: {taken:.1f} s, {memory} MB")
        print("\n".join(lines), flush=True)


# ----------------------------------------------------------------------------------------- the gate
def parameters(*modules: nn.Module) -> int:
    """How many weights modules have."""
    count = 0
    for module in modules:
        for p in module.parameters():
            count += p.numel()
    return count


def cost(settings: dict) -> dict[str, int]:
    """Parameters and FLOPs of BayesNCL with the settings of a preset, without and with its gate.

    FLOPs are those of one image's forward pass; multiply and add count as two. Shapes alone are
    followed: no weight is made.
    """
    size, K = settings["image_size"], settings["head_out"]
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        backbone, d = common.resnet(settings["arch"], size)
        head = bayesncl.projection_head("mlp", d, settings["head_hidden"], K)
        gating = bayesncl.gating_network(d, settings["gate_hidden"], K)
        h = backbone(torch.empty(1, 3, size, size))
        head(h)
        without = counter.get_total_flops()
        gating(h)
        return {
            "params_ncl": parameters(backbone, head),
            "params": parameters(backbone, head, gating),
            "flops_ncl": without,
            "flops": counter.get_total_flops(),
        }


def print_costs() -> None:
    """A line for each data set of the paper."""
    for name in ("cifar100", "imagenet100"):
        found = cost(bayesncl.PRESETS[name])
        cells = [f"{key} {value:,}" for key, value in found.items()]
        print(name, *cells, sep="  ")


# -------------------------------------------------------------------------------------- the program
def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        prog="benchmark.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    add("--peers", action="store_true", help="time other libraries too, on the CPU")
    add("--embeddings", action="store_true", help="time interpret.py on large ones instead")
    add("--cost", action="store_true", help="count parameters and FLOPs instead")
    return flags


def main(argv=None):
    args = parser().parse_args(argv)
    device = "cpu" if args.peers else common.DEVICE
    print(f"{common.hardware(device)}, torch {torch.__version__}")
    if args.cost:
        print_costs()
    elif args.embeddings:
        embeddings()
    else:
        parts(device, args.peers)
        epochs(device, args.peers)


if __name__ == "__main__":
    common.launch(main)
