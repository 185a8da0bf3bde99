"""How useful a few dimensions of a run's embedding are, and what each one alone tells.

    python tools/selection.py runs/<run> [runs/<other> ...]

selection.json, in the run's folder, has for m = K/8, K/4, K/2 of the K dimensions ([NCL], feature
selection)
    p_at_10_top_<m>      P@10 of the test images, %, with the m most active on average
    lp1_top_<m>          linear probe of these, %, with the penalty that is best for all K
    ..._random_<m>       the same with m random ones of those that any training image activates,
                         drawn once; with all of these where they are fewer
    p_at_10, lp1_all     with all K
    lp1_signed           a probe of what comes before σ₊, with a penalty of its own
and how disentangled the dimensions are (SEPIN: Do and Tran 2020)
    sepin_1, _10, _100   what only this dimension tells about the image, in nats: mean of the 1, 10,
                         100 best; null if there are fewer
    sepin_all            of all K

Where we differ from [NCL]: dimensions are ranked by |activation| on the training images (theirs:
for P@10 by the signed sum on the test images); P@10 is by cosine (theirs: Euclidean); and probes
read z, NCL's after σ₊ (theirs: before it, as lp1_signed does).
[NCL]: arXiv 2403.12459.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
import interpret  # noqa: E402
import sparsehead  # noqa: E402
from common import progress  # noqa: E402
from run_folder import data_of, load_run, read_run, write_json  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402


def sepin(z1: Tensor, z2: Tensor, temperature=0.2) -> Tensor:
    """I(x; z_k | all others) in nats, (K,): what only dimension k tells (Do and Tran 2020).

    NT-Xent from each first view to all N second ones, of normalised embeddings: the loss without
    dimension k (the rest is not normalised again), minus the loss with it.
    z1, z2: (N, K), the embeddings of two views
    """
    a = F.normalize(z1)
    b = F.normalize(z2)
    gain = torch.zeros(a.shape[1], device=a.device)
    parts = torch.arange(len(a), device=a.device).split(1000)
    for own in progress(parts, "SEPIN, 1,000 images at a time"):
        logits = a[own] @ b.T / temperature  # (n, N)
        whole = F.cross_entropy(logits, own, reduction="sum")
        for k in range(a.shape[1]):
            of_k = a[own, k, None] * b[:, k] / temperature  # what k adds to the logits
            gain[k] += F.cross_entropy(logits - of_k, own, reduction="sum") - whole
    return gain / len(a)


def feature_selection(train: Tensor, y_train: Tensor, test: Tensor, y: Tensor) -> dict:
    """P@10 and a probe, in %, of all, of the most active and of random dimensions.

    train, test: embeddings (M, K) and (N, K) with labels y_train (M,) and y (N,).
    """
    K = test.shape[1]
    size = F.normalize(train).abs()
    by_activation = size.mean(0).argsort(descending=True)
    live = (size > common.ACTIVE).any(0).nonzero()[:, 0].cpu()
    shuffled = torch.randperm(len(live), generator=torch.Generator().manual_seed(0))
    at_random = live[shuffled].to(test.device)
    probe = common.linear_probe(train, y_train, test, y)
    l2 = probe["l2"]
    scores = {"p_at_10": precision_at_10(test, y), "lp1_all": probe["lp1"]}
    for part in (8, 4, 2):
        m = max(1, K // part)
        for name, order in ("top", by_activation), ("random", at_random):
            kept = order[:m]
            probe = common.linear_probe(train[:, kept], y_train, test[:, kept], y, penalties=[l2])
            scores[f"lp1_{name}_{m}"] = probe["lp1"]
            scores[f"p_at_10_{name}_{m}"] = precision_at_10(test[:, kept], y)
    return scores


def precision_at_10(z: Tensor, y: Tensor) -> float | None:
    """% of an image's ten nearest others (cosine) in z (N, K) with its label y (N,).

    Of equally near ones any. None if there are too few images, or only one class.
    """
    if len(z) < 11 or (y == y[0]).all():
        return None
    directions = F.normalize(z.double())
    same = []
    for start in range(0, len(z), 1000):
        cosines = directions[start : start + 1000] @ directions.T
        cosines += 1e-9 * torch.rand_like(cosines)  # else the file's order decides between ties
        cosines.diagonal(start).fill_(-2)  # an image is not its own neighbour
        nearest = cosines.topk(10, 1).indices  # (n, 10)
        same.append(y[nearest] == y[start : start + 1000, None])
    return 100 * torch.cat(same).float().mean().item()


def measure(folder: Path, data_root: str | None, device: str) -> dict[str, float]:
    """The numbers of selection.json for the run in a folder."""
    run, model = load_run(folder)
    model.to(device)
    data = data_of(run, data_root)
    views = {name: getattr(run, name) for name in common.VIEWS}
    one_view = common.augment
    if getattr(run, "order", None) == "colour-crop":
        one_view = sparsehead.colour_first

    def random_view(x, size):
        """A view as in training, but always with random flips, whatever the method does."""
        return one_view(x, size, **views)

    torch.manual_seed(run.seed)
    embeddings = []
    for _ in range(2):
        _, z = common.features(model, data.test["x"], run.image_size, device, random_view)
        embeddings.append(z)
    alone = sepin(*embeddings).sort(descending=True).values  # (K,)
    numbers = {}
    for k in (1, 10, 100):
        numbers[f"sepin_{k}"] = None
        if k <= len(alone):
            numbers[f"sepin_{k}"] = alone[:k].mean().item()
    numbers["sepin_all"] = alone.mean().item()
    if len(data.classes.get("y", [])) < 2:
        return numbers

    h_train, train = common.features(model, data.train["x"], run.image_size, device)
    h_test, test = common.features(model, data.test["x"], run.image_size, device)
    y_train = data.train["y"].to(device)
    y = data.test["y"].to(device)
    numbers |= feature_selection(train, y_train, test, y)
    if hasattr(model, "activation"):  # σ₊, which z has been through
        with torch.no_grad():
            train, test = model.head(h_train), model.head(h_test)
        numbers["lp1_signed"] = common.linear_probe(train, y_train, test, y)["lp1"]
    return numbers


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="selection.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    flags.add_argument("--device", default=common.DEVICE, help="cuda, cuda:1, cpu")
    args = flags.parse_args(argv)
    common.check_device(args.device)
    rows = [["run", "SEPIN@10", "dimensions", "P@10", "at random", "LP@1", "at random"]]
    for folder in args.runs:
        read_run(folder)
    for folder in args.runs:
        interpret.make_folder(folder, {"selection.json": b'"sepin_1"'})
        print(f"{folder}: measuring ...", flush=True)
        numbers = measure(folder, args.data_root, args.device)
        write_json(folder / "selection.json", numbers)
        if numbers.get("p_at_10") is None:
            print("no P@10: it needs more than ten test images and at least two classes")
        if "lp1_all" in numbers:
            print(f"LP@1 of all dimensions {numbers['lp1_all']:.1f}", end="")
            print(f", before σ₊ {numbers['lp1_signed']:.1f}" if "lp1_signed" in numbers else "")
        sizes = [key.removeprefix("lp1_top_") for key in numbers if key.startswith("lp1_top_")]
        for m in sizes or [""]:
            keys = f"p_at_10_top_{m}", f"p_at_10_random_{m}", f"lp1_top_{m}", f"lp1_random_{m}"
            cells = [interpret.format_number(numbers.get(key), 1) for key in keys]
            alone = interpret.format_number(numbers["sepin_10"], 4)
            rows.append([folder.name, alone, m, *cells])
    print(interpret.markdown(rows))


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
