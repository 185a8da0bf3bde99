"""Which words activate each dimension of a run of mmncl.py, and do they name its images' content?

    python tools/words.py runs/<run> [runs/<other> ...] [--classes NAMES.txt]

A dimension's words are those on whose captions, in the test set, it is most active on average; a
word that fewer than five captions have is left out.
words.json, in the run's folder, lists five words for each dimension, which look.py shows. It also
has, in % of the dimensions that any image activates,
    nameable        the first word is in the name of the most frequent class, or background, of the
                    images that activate the dimension
    nameable_top    the same for the 20 images that activate it most, including ties
    ..._chance      chance level: the word of one dimension and the images of another, mean over
                    all pairs

This measure is our own; it is not from a paper.
"""

import argparse
import collections
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
import interpret  # noqa: E402
import look  # noqa: E402
from mmncl import LENGTH, words_of  # noqa: E402
from run_folder import read_run, write_json  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

MARKS = {"words.json": b'\n "words": ['}  # as interpret.MARKS


def read_captions(folder: Path, shape: tuple[int, int]) -> tuple[Tensor, list[str]]:
    """Embeddings and strings of a run's N test captions; BadInput if there are none.

    shape: (N, K), of the images' embeddings and of theirs
    """
    try:
        with np.load(folder / "text.npz", allow_pickle=False) as archive:
            t = torch.from_numpy(archive["z"]).float()
            captions = archive["captions"]
        if captions.dtype.kind != "U" or captions.shape != shape[:1] or t.shape != shape:
            found = f"captions {captions.dtype} {captions.shape}, their z {tuple(t.shape)}"
            raise ValueError(f"{found}; the images' z {shape}")
    except Exception as error:  # what a damaged archive may raise is not listed anywhere
        reason = f"{type(error).__name__}: {error}"
        raise common.BadInput(
            f"{folder} has no text.npz of a run of mmncl.py ({reason})"
        ) from error
    return t, captions.tolist()


def activations_by_word(t: Tensor, captions: list[str]) -> tuple[list[str], Tensor]:
    """The V words that occur in five captions or more, and the activations of each, (V, K).

    t: embeddings (N, K) of the captions. A word's activations are the mean of the normalised
    embeddings of the captions that contain it.
    """
    own_words = [{*words_of(caption)[:LENGTH]} for caption in captions]  # what the network reads
    counts = collections.Counter()
    for own in own_words:
        counts.update(own)
    words = sorted(word for word, n in counts.items() if n >= 5)
    place = {word: i for i, word in enumerate(words)}
    sums = t.new_zeros(len(words), t.shape[1])
    for own, of_caption in zip(own_words, F.normalize(t)):
        sums[[place[word] for word in own if word in place]] += of_caption
    return words, sums / t.new_tensor([counts[word] for word in words])[:, None]


def strongest_words(words: list[str], means: Tensor) -> list[list]:
    """For each dimension its five words with mean activations above 0, strongest first.

    means: (V, K), of activations_by_word()
    """
    best = means.topk(min(5, len(words)), 0)  # (5, K)
    said = []
    for indices, values in zip(best.indices.T.tolist(), best.values.T.tolist()):
        pairs = [[words[i], round(value, 4)] for i, value in zip(indices, values) if value > 0]
        said.append(pairs)
    return said


def names_class(first: list[str], chosen: Tensor, y: Tensor, names: list[str]) -> Tensor:
    """Whether a dimension's first word is in the name of another's most frequent class, (K, K).

    first: a word for each dimension, the rows; chosen: bool (N, K), the images of each dimension,
    the columns; y: labels (N,); names: of the classes.
    """
    counts = F.one_hot(y).T.float() @ chosen.float()  # (C, K)
    most_frequent = counts.argmax(0)  # (K,)
    in_names = [words_of(name) for name in names]
    hits = []
    for word in first:
        in_name = torch.tensor([word in words for words in in_names])  # (C,)
        hits.append(in_name[most_frequent])
    return torch.stack(hits)


def nameable(v: Tensor, first: list[str], labels: dict, names: dict) -> dict[str, float]:
    """The numbers of words.json; none if there are no labels or fewer than two live dimensions.

    v: embeddings (N, K) of images. An image activates a dimension where its entry is positive.
    first: the first word of each dimension
    labels, names: for each kind of label, (N,) class numbers, and the class names
    """
    v = F.normalize(v)
    live = (v > common.ACTIVE).any(0)  # (K,)
    v = v[:, live]
    first = [first[k] for k in live.nonzero()[:, 0]]
    n = len(first)
    if n < 2 or not labels:
        return {}

    active = v > common.ACTIVE
    strongest = v.topk(min(20, len(v)), 0).values  # (20, n)
    found = {}
    for key, chosen in ("nameable", active), ("nameable_top", active & (v >= strongest[-1])):
        hits = torch.zeros(n, n, dtype=torch.bool)
        for kind, y in labels.items():
            hits |= names_class(first, chosen, y, names[kind])
        own = hits.diagonal().sum().item()
        others = hits.sum().item() - own
        found[key] = 100 * own / n
        found[f"{key}_chance"] = 100 * others / (n * (n - 1))
    return found


def named_labels(own: dict, names: dict, classes: Path | None) -> tuple[dict, dict]:
    """The labels of a run's images whose classes have names, as numbers, and the names, by prefix.

    own: labels (N,); names: class names in the order of their numbers; classes: the file that the
    names come from
    """
    numbered = "" in own and own[""].dtype.kind != "U"
    common.need(numbered or not classes, f"{classes} names classes, but there are no numbers y")
    labels = {}
    names = dict(names)
    for prefix, y in own.items():
        if y.dtype.kind == "U":  # words: they are the names
            names[prefix], y = np.unique(y, return_inverse=True)
        if len(names[prefix]) > y.max():  # else its names are numbers, which no caption says
            labels[prefix] = torch.from_numpy(y.astype(np.int64))
        elif classes and prefix == "":
            named = f"{classes} names {len(names[prefix])} classes"
            raise common.BadInput(f"{named}; but there is a class {y.max()}")
    return labels, names


def measure(folder: Path, classes: Path | None, data_root: str | None) -> tuple[dict, list[list]]:
    """The numbers of a run, and each dimension's words with their activations."""
    run = read_run(folder)
    e = interpret.read_embedding(folder)
    common.need(isinstance(e.z, np.ndarray), f"{folder} is no run of mmncl.py: its z is sparse")
    t, captions = read_captions(folder, e.z.shape)
    interpret.make_folder(folder, MARKS)
    words, means = activations_by_word(t, captions)
    said = strongest_words(words, means)

    known = look.class_names_of_run(folder, vars(run), data_root, classes)
    labels, names = named_labels(e.labels, known, classes)
    first = []
    for pairs in said:
        first.append(pairs[0][0] if pairs else "")
    return nameable(torch.from_numpy(e.z).float(), first, labels, names), said


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="words.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs of mmncl.py")
    flags.add_argument("--classes", type=Path, help="a file with the class names, one per line")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    args = flags.parse_args(argv)
    rows = [["run", "nameable", "by chance", "nameable by 20", "by chance"]]
    for folder in args.runs:
        numbers, said = measure(folder, args.classes, args.data_root)
        write_json(folder / "words.json", numbers | {"words": said})
        if not numbers:
            print(f"{folder}: nothing is nameable without names of classes and two live dimensions")
        values = [*numbers.values()] or 4 * [None]
        rows.append([folder.name, *[interpret.format_number(value, 1) for value in values]])
    print(interpret.markdown(rows))


if __name__ == "__main__":
    common.launch(main, interpret.BadInput)
