"""How fast this code is on this machine, and what BayesNCL's gate costs.

    python tools/benchmark.py                the parts of a run, then epochs of simclr.py
    python tools/benchmark.py --peers        beside torchvision on PIL, kornia, lightly, scikit-learn, on the CPU
    python tools/benchmark.py --landscape    replicas of sparse_coding.py beside a plain loop
    python tools/benchmark.py --cost         parameters and FLOPs of BayesNCL without and with its gate

Peers that are installed are timed after ours, on the same inputs and threads; a time is the median of a second's calls.
An epoch of simclr.py is the second of two: load, views, forward, backward, update.
"""
import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms import v2

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import bayesncl  # noqa: E402
import common  # noqa: E402
import simclr  # noqa: E402
import sparse_coding as sc  # noqa: E402


def seconds(call) -> float:
    """Median time of call(), of as many as fit into a second, on this program's number of threads."""
    from torch.utils.benchmark import Timer  # complains on machines with CUDA and without a GPU
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=1).median


# Peers: calls by name, for images (N, 3, 32, 32) uint8, the same as `pil`, embeddings z (2N, K), features, labels.
def torchvision_calls(images, pil, z, train):
    """The chain of views on PIL images, one by one."""
    chain = v2.Compose([
        v2.RandomResizedCrop(32, interpolation=v2.InterpolationMode.BICUBIC), v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8), v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], 0.5), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    return {"views: torchvision on PIL": lambda: [chain(x) for x in pil]}


def kornia_calls(images, pil, z, train):
    """The same chain, batched."""
    import kornia.augmentation as K
    chain = nn.Sequential(K.RandomResizedCrop((32, 32), (0.08, 1), resample="bicubic"), K.RandomHorizontalFlip(),
                          K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8), K.RandomGrayscale(p=0.2),
                          K.RandomGaussianBlur((13, 13), (0.1, 2.0), p=0.5))
    return {"views: kornia": lambda: chain(images.float() / 255)}


def lightly_calls(images, pil, z, train):
    """Views, loss, and the SimCLR loop of its documentation with our ResNet-18."""
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform
    two_views, criterion = SimCLRTransform(input_size=32, cj_strength=1.0), NTXentLoss(temperature=0.2)
    collate = lambda chosen: [torch.stack(view) for view in zip(*map(two_views, chosen))]
    loader = DataLoader(pil, batch_size=256, shuffle=True, collate_fn=collate)
    model = nn.Sequential(common.resnet("resnet18", 32)[0], simclr.projection_head("mlp", 512, 2048, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)

    def epoch():
        for x0, x1 in loader:
            criterion(model(x0), model(x1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"views: lightly": lambda: [two_views(x) for x in pil[: len(pil) // 2]],
            "NT-Xent: lightly": lambda: criterion(*z.chunk(2)).backward(),
            "epoch: lightly's loop, 256 images, resnet18, fp32": epoch}


def sklearn_calls(images, pil, z, train):
    """Logistic regression with linear_probe's protocol: six strengths on nine tenths, another fit on all."""
    from sklearn.linear_model import LogisticRegression
    warnings.simplefilter("ignore")  # about max_iter, which both sides share
    x, y = ((train[0] - train[0].mean(0)) / train[0].std(0)).numpy(), train[1].numpy()
    fit = lambda l2, n: LogisticRegression(C=1 / (l2 * n), max_iter=30).fit(x[:n], y[:n])
    fits = [(0.1**k, len(x) * 9 // 10) for k in range(6)] + [(1e-2, len(x))]
    return {"probe: scikit-learn": lambda: [fit(*strength) for strength in fits]}


def parts(device, peers: bool) -> None:
    """Print what parts of a run take: 256 views of 32 pixels; NT-Xent of 2N = 512, K = 256 with its gradient; probe and
    kNN of 20,000 to 2,000 features (·, 512) of 10 classes; interpretability of these 2,000. With peers also others'."""
    images = torch.from_numpy(common.shapes(256, 10)["x_train"]).to(device)
    pil = [v2.functional.to_pil_image(x) for x in images]
    z = torch.randn(512, 256, device=device, requires_grad=True)
    h, y = torch.randn(22000, 512, device=device), torch.arange(22000, device=device) % 10
    h[torch.arange(22000), y] += 2
    train, test = (h[:20000], y[:20000]), (h[20000:], y[20000:])
    calls = {"views: ours": lambda: common.augment(images, 32),
             "NT-Xent: ours": lambda: simclr.nt_xent(*z.chunk(2), 0.2).backward(),
             "probe: ours": lambda: common.linear_probe(*train, *test),
             "kNN: ours, k = 5 and 200": lambda: common.knn_accuracy(*train, *test),
             "interpretability: ours": lambda: common.interpretability(test[0], {"": test[1]})}
    for library in (torchvision_calls, kornia_calls, lightly_calls, sklearn_calls) if peers else ():
        try:
            calls |= library(images, pil, z, train)
        except ImportError as error:
            print(f"{error.name} is not installed")
    for name in sorted(calls):
        print(f"{name:50} {1000 * seconds(calls[name]):8.1f} ms", flush=True)


def epochs(device) -> None:
    """Print images/s of simclr.py on random images of 32 pixels."""
    with tempfile.TemporaryDirectory() as folder:
        noise = np.random.default_rng(0).integers(0, 256, (2560, 32, 32, 3), np.uint8)
        np.savez(f"{folder}/noise.npz", x_train=noise, x_test=noise[:20])
        for arch, n in (("resnet8", 2560), ("resnet20", 1024), ("resnet18", 512)):
            for precision in ("fp32", "bf16")[: 1 + common.has_bf16(device)]:
                out = f"{folder}/{arch}-{precision}"
                command = f"simclr.py --dataset noise --data-root {folder} --limit {n} --arch {arch} --epochs 2 " \
                          f"--batch-size 256 --precision {precision} --device {device} --out {out}"
                subprocess.run([sys.executable, *command.split()], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
                rate = json.loads(Path(out, "metrics.jsonl").read_text().splitlines()[1])["images_per_s"]
                print(f"    {arch}, {precision}: {rate:.1f} images/s, {256_000 / rate:.1f} ms for 256", flush=True)


def plain_loop(s):
    """A replica of SimCLR or SimSiam on sparse codes, as one would write it first; a call trains an epoch."""
    x = TensorDataset(sc.sample(s, 1, s.sparsity[0], s.noise[0])[2].T)  # (n, p)
    loader = DataLoader(x, s.batch_size, shuffle=True, drop_last=s.method == "simclr")
    network = nn.Sequential(nn.Linear(s.p, s.m, bias=False), nn.BatchNorm1d(s.m, affine=False))
    head, b = nn.Linear(s.m, s.m), nn.Parameter(torch.zeros(s.m))
    optimizer = torch.optim.SGD([*network.parameters(), *head.parameters(), b], s.lr[0])
    cos = lambda u, v: nn.functional.cosine_similarity(u, v).mean()

    def epoch():
        for (x,) in loader:
            h1, h2 = (sc.srelu(network(x * (torch.rand_like(x) < s.keep[0])), b) for _ in range(2))  # (B, m)
            if s.method == "simclr":
                loss = simclr.nt_xent(head(h1), head(h2), s.temperature[0])
            else:
                loss = -(cos(head(h1), h2.detach()) + cos(head(h2), h1.detach())) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return epoch


def landscape(device) -> None:
    """Print seconds per epoch and replica at n = 3000, batch 512, for growing numbers of replicas."""
    for method in (sc.SIMCLR, sc.SIMSIAM):
        setting = lambda **more: sc.setting(method | dict(n=3000) | more, {}, paper=True)
        plain = seconds(plain_loop(setting()))
        print(f"{method['method']}: plain loop on the CPU {plain:.4f} s per epoch", flush=True)
        for seeds in (1, 5, 15, 45):
            run = lambda epochs: seconds(lambda: sc.train(setting(seeds=seeds, epochs=epochs), device, records=1))
            ours = (run(12) - run(2)) / 10 / seeds  # the difference leaves out what happens once
            print(f"{seeds:5} replicas: {ours:.4f} s per replica, {plain / ours:.1f} times as fast", flush=True)


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
    flags.add_argument("--landscape", action="store_true", help="time sparse_coding.py instead")
    flags.add_argument("--cost", action="store_true", help="count parameters and FLOPs instead")
    args = flags.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.peers else "cpu")
    print(f"{common.hardware(device)}, torch {torch.__version__}")
    if args.cost:
        for name in ("cifar100", "imagenet100"):
            print(name, *(f"{key} {value:,}" for key, value in cost(bayesncl.PRESETS[name]).items()), sep="  ")
    elif args.landscape:
        landscape(device)
    else:
        parts(device, args.peers)
        epochs(device)


if __name__ == "__main__":
    common.launch(main)
