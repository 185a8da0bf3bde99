"""Which words activate each dimension of a run of mmncl.py, and do they name what its images show?

    python tools/words.py runs/<run> [runs/<other> ...] [--classes NAMES.txt]

Of the test captions: a dimension's words are those whose captions it is most active on, on average. words.json in the
run's folder has five of each, which look.py shows, and these numbers, in % of the dimensions that any image activates:
nameable      the first word is in the name of the most frequent class, or background, of the images that activate it
nameable_top  ... of the 20 images that activate it most
..._chance    the words of one dimension and the images of another, all pairs
"""
import argparse
import collections
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
import look  # noqa: E402

split = lambda text: re.findall(r"[\w'-]+", text.lower())


def read_text(folder: Path, n: int) -> tuple[Tensor, list[str]]:
    """Embeddings (N, K) and strings of a run's N test captions; BadInput where there are none."""
    try:
        with np.load(folder / "text.npz", allow_pickle=False) as kept:
            t, captions = torch.from_numpy(kept["z"]).float(), kept["captions"].tolist()
        if len(captions) != len(t) or len(t) != n:
            raise ValueError(f"{len(captions)} captions and {len(t)} embeddings of {n} images")
    except Exception as error:  # what a damaged archive may raise is not listed anywhere
        raise common.BadInput(f"{folder} has no text.npz of a run of mmncl.py ({type(error).__name__}: {error})")
    return t, captions


def by_word(t: Tensor, captions: list[str], at_least=5) -> tuple[list[str], Tensor]:
    """The words that at least so many captions have, V, and the means (V, K) of normalised embeddings t (N, K) over the
    captions that have each."""
    of = [{*split(caption)} for caption in captions]
    counts = collections.Counter(word for words in of for word in words)
    words = sorted(word for word, n in counts.items() if n >= at_least)
    has = torch.tensor([[word in own for word in words] for own in of], dtype=t.dtype)  # (N, V)
    return words, has.T @ F.normalize(t) / has.sum(0)[:, None]


def nameable(v: Tensor, first: list[str], labels: dict[str, Tensor], names: dict[str, list[str]]) -> dict[str, float]:
    """What the top of this file says, of embeddings v (N, K) and the first word of each dimension. Of embeddings with
    signs an image activates the dimensions where it is positive."""
    v = F.normalize(v)
    live, found = (v > common.ACTIVE).any(0).nonzero()[:, 0].tolist(), {}
    if len(live) < 2 or not labels:
        return found
    active, least = v > common.ACTIVE, v.topk(min(20, len(v)), 0).values[-1]
    for kind, chosen in ("", active), ("_top", active & (v >= least)):
        hits = torch.zeros(len(live), len(live), dtype=torch.bool)  # words of one, images of another
        for key, y in labels.items():
            most = (F.one_hot(y).T.float() @ chosen.float()).argmax(0)[live].tolist()  # a class for each dimension
            hits |= torch.tensor([[first[k] in split(names[key][c]) for c in most] for k in live])
        right, all_pairs = hits.diagonal().sum().item(), hits.sum().item()
        found |= {f"nameable{kind}": 100 * right / len(live),
                  f"nameable{kind}_chance": 100 * (all_pairs - right) / (len(live) * (len(live) - 1))}
    return found


def main(argv=None):
    flags = argparse.ArgumentParser(prog="words.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs of mmncl.py")
    flags.add_argument("--classes", type=Path, help="a file with the name of a class on each line")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    args = flags.parse_args(argv)
    rows = [["run", "nameable", "by chance", "nameable by 20", "by chance"]]
    for folder in args.runs:
        config, arrays = look.read_run(folder)
        t, captions = read_text(folder, len(arrays["z"]))
        words, means = by_word(t, captions)
        best = means.topk(min(5, len(words)), 0)  # (5, K)
        said = [[[words[i], round(value, 4)] for i, value in zip(*dimension) if value > 0]
                for dimension in zip(best.indices.T.tolist(), best.values.T.tolist())]
        labels = look.labels_of(arrays)
        given = args.classes or (Path(config["classes"]) if config.get("classes") else None)
        names = look.class_names(config["dataset"], args.data_root or config["data_root"], labels, given)
        first = [pairs[0][0] if pairs else "" for pairs in said]
        found = nameable(arrays["z"], first, labels, dict(zip(labels, names)))
        with common.replacing(folder / "words.json") as file:
            file.write(json.dumps(found | {"words": said}).encode())
        rows.append([folder.name, *(f"{value:.1f}" for value in found.values() or [math.nan] * 4)])
    print(common.markdown(rows))


if __name__ == "__main__":
    common.launch(main)
