"""How fast this code is on this machine, and what BayesNCL's gate costs.

    python tools/benchmark.py                the parts of a run, then epochs of simclr.py
    python tools/benchmark.py --peers        beside torchvision on PIL, kornia, lightly, scikit-learn, on the CPU
    python tools/benchmark.py --embeddings   interpret.py on large sparse and dense embeddings
    python tools/benchmark.py --cost         parameters and FLOPs of BayesNCL without and with its gate

Peers that are installed are timed after ours, on the same inputs and threads; a time is the median of a second's calls,
after one that does not count. simclr.py takes turns with tools/lightly_simclr.py; the best of two turns counts.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import bayesncl  # noqa: E402
import common  # noqa: E402
import interpret  # noqa: E402
import shapes  # noqa: E402
import simclr  # noqa: E402


def seconds(call) -> float:
    """Median time of call(), of as many as fit into a second, at least one, after one that does not count."""
    times = []
    while len(times) < 2 or sum(times[1:]) < 1:
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


# Peers: calls by name, for images (N, 3, 32, 32) uint8, the same as `pil`, embeddings z (2N, K), features, labels.
def torchvision_calls(images, pil, z, train, test):
    """The chain of views on PIL images, one by one."""
    chain = v2.Compose([
        v2.RandomResizedCrop(32, interpolation=v2.InterpolationMode.BICUBIC), v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8), v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], 0.5), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    return {"views: torchvision on PIL": lambda: [chain(x) for x in pil]}


def kornia_calls(images, pil, z, train, test):
    """The same chain, batched."""
    import kornia.augmentation as K
    chain = nn.Sequential(K.RandomResizedCrop((32, 32), (0.08, 1), resample="bicubic"), K.RandomHorizontalFlip(),
                          K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8), K.RandomGrayscale(p=0.2),
                          K.RandomGaussianBlur((13, 13), (0.1, 2.0), p=0.5))
    return {"views: kornia": lambda: chain(images.float() / 255)}


def lightly_calls(images, pil, z, train, test):
    """Views, loss and nearest neighbours."""
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform
    from lightly.utils.benchmarking import knn_predict
    two_views, criterion = SimCLRTransform(input_size=32, cj_strength=1.0), NTXentLoss(temperature=0.2)
    query, bank = F.normalize(test[0]), F.normalize(train[0]).T.contiguous()
    vote = lambda k: [knn_predict(part, bank, train[1], 100, k) for part in query.split(500)]
    return {"views: lightly": lambda: [two_views(x) for x in pil[: len(pil) // 2]],
            "NT-Xent: lightly": lambda: criterion(*z.chunk(2)).backward(),
            "kNN: lightly, k = 5, then 200": lambda: (vote(5), vote(200)), "kNN: lightly, k = 200": lambda: vote(200)}


def sklearn_calls(images, pil, z, train, test):
    """Logistic regression with linear_probe's protocol: six strengths on nine tenths, another fit on all."""
    from sklearn.linear_model import LogisticRegression
    warnings.simplefilter("ignore")  # about max_iter, where it stops short of the minimum
    x, y = ((train[0] - train[0].mean(0)) / train[0].std(0)).numpy(), train[1].numpy()
    fit = lambda l2, n: LogisticRegression(C=1 / (l2 * n), max_iter=30).fit(x[:n], y[:n])
    fits = [(0.1**k, len(x) * 9 // 10) for k in range(6)] + [(1e-2, len(x))]
    return {"probe: scikit-learn, 30 steps a fit": lambda: [fit(*strength) for strength in fits]}


def parts(device, peers: bool) -> None:
    """Print what parts of a run take: 256 views of 32 pixels; NT-Xent of 2N = 512, K = 256 with its gradient; probe of
    50,000 features (·, 512) of 100 classes, kNN of 2,000 to them, interpretability of these. With peers theirs too."""
    images = torch.from_numpy(shapes.draw(256, 10)["x_train"]).to(device)
    pil = [v2.functional.to_pil_image(x) for x in images]
    z = torch.randn(512, 256, device=device, requires_grad=True)
    spectrum, y = torch.arange(1, 513, device=device) ** -0.5, torch.arange(52_000, device=device) % 100
    h = (torch.randn(52_000, 512, device=device) + torch.randn(100, 512, device=device)[y]) * spectrum
    h = (h @ torch.randn(512, 512, device=device)).relu()  # correlated, as features are
    train, test = (h[:50_000], y[:50_000]), (h[50_000:], y[50_000:])
    compiled = torch.compile(common.augment)
    h_test, y_test = (array.cpu().numpy() for array in test)
    embedding = interpret.Embedding(h_test, {"": y_test}, judge=h_test)
    calls = {"views: ours": lambda: common.augment(images, 32),
             "views: ours, --compile": lambda: compiled(images, 32),
             "NT-Xent: ours": lambda: simclr.nt_xent(*z.chunk(2), 0.2).backward(),
             "probe: ours, until a step gains 3e-5": lambda: common.linear_probe(*train, *test),
             "kNN: ours, k = 5 and 200": lambda: common.knn_accuracy(*train, *test),
             "interpret.py, with its controls: ours": lambda: interpret.interpret(embedding)}
    for library in (torchvision_calls, kornia_calls, lightly_calls, sklearn_calls) if peers else ():
        try:
            calls |= library(images, pil, z, train, test)
        except ImportError as error:
            print(f"{error.name} is not installed")
    for name in sorted(calls):
        print(f"{name:50} {1000 * seconds(calls[name]):8.1f} ms", flush=True)


# Runs a command and prints its peak memory in kB. It is small itself, because a program inherits its starter's peak.
MEASURE = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)"""


def epoch(program: str, arch: str, images: int, epochs: int, flags: str) -> tuple[float, int]:
    """images/s of the last epoch of a training on random images of 32 pixels, and its peak memory in MB (Linux)."""
    with tempfile.TemporaryDirectory() as folder:
        noise = np.random.default_rng(0).integers(0, 256, (images, 32, 32, 3), np.uint8)
        np.savez(f"{folder}/noise.npz", x_train=noise, x_test=noise[:20])
        flags = f"--dataset noise --data-root {folder} --arch {arch} --epochs {epochs} {flags}".split()
        flags += ["--out", f"{folder}/run", "--batch-size", "256"] if program == "simclr.py" else []
        command = [sys.executable, "-c", MEASURE, sys.executable, program, *flags]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise common.BadInput(f"{program} {' '.join(flags)} failed: {done.stderr[-300:]}")
        text = Path(folder, "run/metrics.jsonl").read_text() if program == "simclr.py" else done.stdout
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        rates = [line["images_per_s"] for line in lines if "images_per_s" in line]
        return rates[-1], int(done.stderr.split()[-1]) // 1024


def epochs(device, peers: bool) -> None:
    """Print images/s of simclr.py and, with peers, of lightly's loop; on a CPU then that growing data cost the same."""
    peers = peers and importlib.util.find_spec("lightly") is not None
    ours = {name: f"--device {device} --precision {name}" for name in ("fp32", "bf16")[: 1 + common.has_bf16(device)]}
    if device.type == "cuda":
        trainings, ours["bf16, --compile"] = {"resnet18": (50_000, 3)}, ours["bf16"] + " --compile"
    else:
        trainings = {"resnet8": (10_000, 1), "resnet20": (10_000, 1), "resnet18": (1024, 1)}
    for arch, size in trainings.items():
        best = dict.fromkeys([*ours, *["lightly's loop"] * peers], (0.0, 0))
        for name in [*best] * 2:
            program = "simclr.py" if name in ours else "tools/lightly_simclr.py"
            best[name] = max(best[name], epoch(program, arch, *size, ours.get(name, f"--device {device}")))
        fastest = max(best[name][0] for name in ours)
        for name, (rate, memory) in best.items():
            print(f"{arch}, batch 256, {name:15} {rate:8.1f} images/s, {memory} MB, 1/{fastest / rate:.2f}", flush=True)
    for images in (2_560, 10_000, 50_000) if device.type == "cpu" else ():
        rate, memory = epoch("simclr.py", "resnet8", images, 1, "")
        print(f"resnet8, {images} images: {rate:8.1f} images/s, {memory} MB", flush=True)


LATENTS = [(50_000, 16_384, 32, 100), (200_000, 65_536, 64, 1000)]  # images, dimensions, active, classes


def sparse_arrays(N: int, K: int, active: int, classes: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Random latents (N, K) in scipy's CSR layout, and labels (N,): half of an image's are its class's own."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, classes, N)
    own = draw.integers(0, K, (classes, 2 * active))  # the latents that a class's images share
    from_own = own[y[:, None], draw.integers(0, 2 * active, (N, active))]
    anywhere = draw.integers(0, K, (N, active))
    dims = np.where(draw.random((N, active)) < 0.5, from_own, anywhere)
    cells = np.unique(np.arange(N)[:, None] * K + dims)  # no latent twice
    start = np.searchsorted(cells, np.arange(N + 1) * K)
    values = draw.random(len(cells), np.float32) + 0.1
    layout = dict(format=np.array(b"csr"), shape=np.array([N, K]))
    return layout | dict(data=values, indices=(cells % K).astype(np.int32), indptr=start), y


def embeddings() -> None:
    """Print the seconds and the peak memory of interpret.py, files read, with its controls (Linux)."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for N, K, active, classes in LATENTS:
            arrays, y = sparse_arrays(N, K, active, classes)
            np.savez(folder / f"{N}x{K}.npz", **arrays)
            np.save(folder / f"{N}x{K}-labels.npy", y)
        N, K = 50_000, 768
        y = np.arange(N) % 100
        centres = np.random.default_rng(1).normal(size=(100, K)).astype(np.float16)
        noise = np.random.default_rng(2).normal(size=(N, K)).astype(np.float16)
        np.savez(folder / f"{N}x{K}.npz", z=centres[y] + noise, y=y)
        for file in sorted(folder.glob("*.npz")):
            labels = folder / f"{file.stem}-labels.npy"
            command = [sys.executable, "interpret.py", file, "--out", folder / "out"]
            command += ["--labels", labels] if labels.exists() else []
            start = time.perf_counter()
            measured = [sys.executable, "-c", MEASURE, *command]
            done = subprocess.run(measured, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                raise common.BadInput(f"interpret.py failed: {done.stderr[-300:]}")
            taken, memory = time.perf_counter() - start, int(done.stderr.split()[-1]) // 1024
            print(f"interpret.py, {file.stem}: {taken:.1f} s, {memory} MB", flush=True)


def cost(settings: dict) -> dict[str, int]:
    """Parameters, and forward FLOPs of one image (multiply and add count as two), of BayesNCL with the settings of a
    preset, without and with its gate. Shapes alone are followed: no weight is made."""
    size, K = settings["image_size"], settings["head_out"]
    count = lambda *modules: sum(p.numel() for module in modules for p in module.parameters())
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        backbone, d = common.resnet(settings["arch"], size)
        head = bayesncl.projection_head("mlp", d, settings["head_hidden"], K)
        gating = bayesncl.gating_head(d, settings["gate_hidden"], K)
        h = backbone(torch.empty(1, 3, size, size))
        head(h)
        flops = counter.get_total_flops()
        gating(h)
        return {"params_ncl": count(backbone, head), "params": count(backbone, head, gating),
                "flops_ncl": flops, "flops": counter.get_total_flops()}


def main(argv=None):
    flags = argparse.ArgumentParser(prog="benchmark.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--peers", action="store_true", help="time other libraries too, on the CPU")
    flags.add_argument("--embeddings", action="store_true", help="time interpret.py on large ones instead")
    flags.add_argument("--cost", action="store_true", help="count parameters and FLOPs instead")
    args = flags.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.peers else "cpu")
    print(f"{common.hardware(device)}, torch {torch.__version__}")
    if args.cost:
        for name in ("cifar100", "imagenet100"):
            print(name, *(f"{key} {value:,}" for key, value in cost(bayesncl.PRESETS[name]).items()), sep="  ")
    elif args.embeddings:
        embeddings()
    else:
        parts(device, args.peers)
        epochs(device, args.peers)


if __name__ == "__main__":
    common.launch(main)
