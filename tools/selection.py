"""How much a few dimensions of a run's embedding can do, and what each tells alone.

    python tools/selection.py runs/<run> [runs/<other> ...]

selection.json, in the run's folder, has for m = K/8, K/4, K/2 of the K dimensions ([NCL], feature
selection)
    p_at_10_top_<m>      P@10 of the test images, %, with the m of largest mean activation
    lp1_top_<m>          linear probe on these, %, with the penalty that is best for all K
    ..._random_<m>       the same with m random dimensions, one draw, which is equal for equal K
and how disentangled the dimensions are (SEPIN: Do and Tran 2020)
    sepin_1, _10, _100   what a dimension alone tells of the image, in nats: mean of the 1, 10, 100
                         best; null where there are fewer
    sepin_all            of all K

Where we differ from [NCL]: dimensions are ranked by |activation| on the *training* images (theirs:
the signed sum on the test images), and P@10 is by cosine (theirs: Euclidean).
[NCL]: arXiv 2403.12459.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
import interpret  # noqa: E402


def sepin(z1: Tensor, z2: Tensor, temperature=0.2) -> Tensor:
    """I(x; z_k | all others) in nats, (K,): what dimension k alone tells (Do and Tran 2020).

    NT-Xent from each first view to all N second ones, of normalised embeddings: the loss without
    dimension k (the rest is not normalised again), less the loss with it.
    z1, z2: (N, K), the embeddings of two views
    """
    a = F.normalize(z1)
    b = F.normalize(z2)
    gain = torch.zeros(a.shape[1], device=a.device)
    parts = torch.arange(len(a), device=a.device).split(1000)
    for own in common.progress(parts, "SEPIN, 1,000 images at a time"):
        logits = a[own] @ b.T / temperature  # (n, N)
        whole = F.cross_entropy(logits, own, reduction="sum")
        for k in range(a.shape[1]):
            of_k = a[own, k, None] * b[:, k] / temperature  # what k adds to the logits
            gain[k] += F.cross_entropy(logits - of_k, own, reduction="sum") - whole
    return gain / len(a)


def feature_selection(train: Tensor, y_train: Tensor, test: Tensor, y: Tensor, l2: float) -> dict:
    """P@10 and probe (of strength l2) in % with the most active and with random dimensions.

    train, test: embeddings (M, K) and (N, K) with labels y_train (M,) and y (N,).
    """
    K = test.shape[1]
    by_activation = F.normalize(train).abs().mean(0).argsort(descending=True)
    at_random = torch.randperm(K, generator=torch.Generator().manual_seed(0)).to(test.device)
    scores = {}
    for part in (8, 4, 2):
        m = max(1, K // part)
        for name, order in ("top", by_activation), ("random", at_random):
            kept = order[:m]
            probe = common.linear_probe(train[:, kept], y_train, test[:, kept], y, strengths=[l2])
            scores[f"lp1_{name}_{m}"] = probe["lp1"]
            scores[f"p_at_10_{name}_{m}"] = common.precision_at(test[:, kept], y, [10])[10]
    return scores


def measure(folder: Path, data_root: str | None, device: str) -> dict[str, float]:
    """The numbers of selection.json of the run in a folder."""
    args, model = common.load_run(folder)
    model.to(device)
    data = common.load_data(args.dataset, data_root or args.data_root, limit=args.limit)

    colour_first = getattr(args, "order", None) == "colour-crop"  # sparsehead.py's

    def random_view(x, size):
        """As in the training, but flipped whatever the method does."""
        view = common.augment(
            x,
            size,
            min_scale=args.min_scale,
            jitter=args.jitter,
            gray=args.gray,
            blur=args.blur,
            crop=args.crop,
            colour_first=colour_first,
        )
        return common.normalise(view)

    torch.manual_seed(args.seed)
    views = []
    for _ in range(2):
        _, z = common.features(model, data.x_test, args.image_size, device, random_view)
        views.append(z)
    told = sepin(*views).sort(descending=True).values
    numbers = {}
    for k in (1, 10, 100):
        numbers[f"sepin_{k}"] = None
        if k <= len(told):
            numbers[f"sepin_{k}"] = told[:k].mean().item()
    numbers["sepin_all"] = told.mean().item()
    if data.y_train is None:
        return numbers

    _, train = common.features(model, data.x_train, args.image_size, device)
    _, test = common.features(model, data.x_test, args.image_size, device)
    y_train = data.y_train.to(device)
    y = data.y_test.to(device)
    l2 = common.linear_probe(train, y_train, test, y)["l2"]
    return numbers | feature_selection(train, y_train, test, y, l2)


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="selection.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = flags.parse_args(argv)
    common.check_device(args.device)
    rows = [["run", "SEPIN@10", "dimensions", "P@10", "at random", "LP@1", "at random"]]
    for folder in args.runs:
        print(f"{folder}: measuring ...", flush=True)
        numbers = measure(folder, args.data_root, args.device)
        common.write_json(folder / "selection.json", numbers)
        sizes = [key.removeprefix("lp1_top_") for key in numbers if key.startswith("lp1_top_")]
        for m in sizes or [""]:
            keys = f"p_at_10_top_{m}", f"p_at_10_random_{m}", f"lp1_top_{m}", f"lp1_random_{m}"
            cells = [interpret.format_number(numbers.get(key), 1) for key in keys]
            alone = interpret.format_number(numbers["sepin_10"], 4)
            rows.append([folder.name, alone, m, *cells])
    print(common.markdown(rows))


if __name__ == "__main__":
    common.launch(main)
