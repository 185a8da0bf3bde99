"""What do the dimensions of an embedding stand for? Numbers for any embedding, beside what chance
and an untrained dictionary give.

    python interpret.py runs/my-run               a finished run of any method here
    python interpret.py embedding.npz             z (N, K); where you have them y (N,) and h (N, d)
    python interpret.py latents.npz --labels y.npy --features h.npy --classes names.txt

A dimension is the list of images that it is active on, the strongest first. What it says about
labels is counted over these lists, so it costs what the active entries cost, and not N times K.

Active. A sparse embedding enters as it is: |z_k| > 1e-5 in a row of norm 1 ([NCL]). A dense one has
more than half of its entries active. With negative entries each of its dimensions becomes two, +k
and -k, active on the 1 % of the images where z_k is largest and smallest; without, it has +k alone.
--active nonzero or --active top:0.03 decides otherwise.

Controls, measured in the same way:
    untrained   random directions of the features h that z is made of, else of z; made as sparse,
                and active by the same rule
    shuffled    the same dimensions, the labels in random order

Files: .npy, .npz, .pt, .safetensors, .parquet, and scipy's sparse .npz. Into --out go the printed
table, interpret.json with every number and dimensions.csv with every dimension.

[NCL] arXiv 2403.12459. [BayesNCL] arXiv 2605.28441. MonoScore: arXiv 2504.02821.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import math
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVE = 1e-5  # of a row of norm 1: what is larger counts as active ([NCL])
DENSE = 0.5  # an embedding with a larger share of active entries is dense
TOP = 0.01  # of the images: where each half of a dense embedding's dimension is active
SHARES = 0.001, 0.01, 0.05  # Cons. is also given of dimensions active on so many images or more
DUPLICATE = 0.9  # a dimension with a larger |cosine| to another one is a duplicate
PROBES = 1, 2, 4, 8  # dimensions that a sparse probe reads for each class
DRAWS = 5  # of each control
LARGE = 2048  # of an embedding with more dimensions, controls are one draw
KEYS = "z", "y", "background", "h"  # of a file, what is measured
OWN_FEATURES = "h, the embedding's own backbone"  # what the features in its file are called
CELLS = 2**21  # numbers of a table, such as classes times dimensions, that are held at a time
MATRIX = 32 * CELLS  # numbers: so large a matrix of activations or cosines (256 MB) is still held
ROWS = 20_000  # images whose random directions are made at a time
MANY = 10_000  # images: of more, P@k is of QUERIES of them
QUERIES = 2000


class BadInput(ValueError):
    """What the user gave cannot be used. The message is one line: what is wrong, what to do."""


# ------------------------------------------------------------------- the lists of active images
@dataclasses.dataclass
class Entries:
    """The entries of a sparse matrix (N, K), in any order."""

    images: np.ndarray  # (nnz,) int64, the rows
    dims: np.ndarray  # (nnz,) int64, the columns
    values: np.ndarray  # (nnz,)
    N: int
    K: int

    @property
    def shape(self):
        return self.N, self.K

    def filled(self):
        """The matrix itself, (N, K) float32, with zeros between the entries."""
        z = np.zeros(self.shape, np.float32)
        z[self.images, self.dims] = self.values
        return z

    def take(self, places):
        """The entries at these places alone, in their order; or those where a mask is True."""
        images = self.images[places]
        dims = self.dims[places]
        return Entries(images, dims, self.values[places], self.N, self.K)


@dataclasses.dataclass
class Activations:
    """The images that each dimension is active on.

    Dimension k has images[start[k] : start[k + 1]], the strongest first, and their values.
    """

    images: np.ndarray  # (nnz,) int64
    values: np.ndarray  # (nnz,) float32, > 0 (but see with_signs)
    start: np.ndarray  # (K + 1,) int64
    N: int
    halves: bool = False  # dimensions are +0, +1, ..., then -0, -1, ...

    @property
    def K(self):
        return len(self.start) - 1

    @property
    def shape(self):
        return self.N, self.K

    @property
    def n(self):
        """The number of images that each dimension is active on, (K,)."""
        return np.diff(self.start)

    @property
    def dims(self):
        """The dimension of each entry, (nnz,)."""
        return np.repeat(np.arange(self.K), self.n)

    @property
    def ranks(self):
        """The place of each entry in its dimension's list, from 0, (nnz,)."""
        first = np.repeat(self.start[:-1], self.n)  # the first entry of the same list
        return np.arange(len(self.images)) - first

    def part(self, first, last):
        """The dimensions first, ..., last - 1 alone, as far as there are any."""
        start = self.start[first : last + 1]
        entries = slice(start[0], start[-1])
        images = self.images[entries]
        return Activations(images, self.values[entries], start - start[0], self.N)

    def name(self, k):
        """What dimension k is called: its number, of halves with a sign."""
        if not self.halves:
            return str(k)
        whole = self.K // 2
        if k < whole:
            return f"+{k}"
        return f"-{k - whole}"


def starts(n: np.ndarray) -> np.ndarray:
    """Where lists of n (K,) entries in a row begin, and where the last one ends: (K + 1,)."""
    return np.concatenate([[0], np.cumsum(n)])


def lists(entries: Entries) -> Activations:
    """Sort entries by dimension, and within a dimension the strongest first."""
    order = np.lexsort((-entries.values, entries.dims))
    values = entries.values[order].astype(np.float32)
    n = np.bincount(entries.dims, minlength=entries.K)
    return Activations(entries.images[order], values, starts(n), entries.N)


def unit_rows(z: np.ndarray) -> np.ndarray:
    """Rows of z (N, K) in float32, each divided by its norm; rows of zeros stay."""
    rows = torch.from_numpy(np.asarray(z, np.float32))
    return F.normalize(rows).numpy()


def entries_of(z: np.ndarray | Entries) -> Entries:
    """The active entries of z (N, K), with their signs, in rows of norm 1."""
    if isinstance(z, Entries):
        norms = np.bincount(z.images, np.square(z.values, dtype=np.float64), z.N)
        norms = np.sqrt(norms).clip(1e-12)  # (N,)
        values = z.values / norms[z.images]
        unit = dataclasses.replace(z, values=values)
        return unit.take(np.abs(values) > ACTIVE)
    z = unit_rows(z)
    images, dims = np.nonzero(np.abs(z) > ACTIVE)
    return Entries(images, dims, z[images, dims], *z.shape)


def nonzero(z: np.ndarray | Entries) -> Activations:
    """Each dimension of z (N, K), active where it is not 0 ([NCL])."""
    entries = entries_of(z)
    sizes = np.abs(entries.values)
    return lists(dataclasses.replace(entries, values=sizes))


def has_signs(z: np.ndarray | Entries) -> bool:
    """Whether any active entry of z is negative."""
    if isinstance(z, Entries):
        values = entries_of(z).values
    else:
        values = unit_rows(z)
    return bool((values < -ACTIVE).any())


def top_share(z: np.ndarray | Entries, share: float, halves: bool) -> Activations:
    """Each dimension of z (N, K), active on the `share` of the images where it is largest.

    With `halves` 2K half-dimensions +k and -k, -k where it is smallest. An image does not count
    where the dimension has its least value (of a sparse z: 0). Ties at the end go at random.
    """
    random = np.random.default_rng(0)
    if not is_dense(z):
        entries = by_sign(entries_of(z), halves)
        entries = entries.take(random.permutation(len(entries.values)))  # lists() is stable
        return strongest(lists(entries), share, halves)
    if isinstance(z, Entries):
        z = z.filled()
    N = z.shape[0]
    strengths = torch.from_numpy(unit_rows(z)).T.contiguous()  # (K, N): a row for each dimension
    rows = [*strengths]
    if halves:
        rows += [-row for row in strengths]
    images = []
    values = []
    for row in rows:
        order = torch.from_numpy(random.permutation(N))
        own_images, own_values = top_of(row, order, count_of(share, N))
        images.append(own_images)
        values.append(own_values)
    n = [len(own_images) for own_images in images]
    images = torch.cat(images).numpy()
    return Activations(images, torch.cat(values).numpy(), starts(n), N, halves)


def top_of(row: Tensor, order: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The images where a dimension, a row (N,), is largest, the strongest first, and its values.

    order: (N,), all images shuffled, so that which of equal values are listed last falls at random
    most: how many; those where the row has its least value do not count
    """
    largest = row[order].topk(most)
    least = row.min()
    kept = largest.values > least
    values = largest.values[kept]
    # Activations are above 0. A list that ends at 0 or below is counted from the least.
    if largest.values[-1] <= 0:
        values = values - least
    return order[largest.indices[kept]], values


def count_of(share: float, N: int) -> int:
    """How many of N images a share of them is, at least one."""
    return max(1, round(share * N))


def by_sign(entries: Entries, halves: bool) -> Entries:
    """The positive entries (N, K); with `halves` (N, 2K), the sizes of the negative ones behind."""
    if not halves:
        return entries.take(entries.values > 0)
    dims = np.where(entries.values < 0, entries.dims + entries.K, entries.dims)
    sizes = np.abs(entries.values)
    return Entries(entries.images, dims, sizes, entries.N, 2 * entries.K)


def strongest(a: Activations, share: float, halves: bool) -> Activations:
    """Of each dimension's images the strongest, at most a share of all N."""
    most = count_of(share, a.N)
    kept = a.ranks < most
    start = starts(a.n.clip(max=most))
    return Activations(a.images[kept], a.values[kept], start, a.N, halves)


def is_dense(z: np.ndarray | Entries) -> bool:
    """Whether most entries of z (N, K) are active."""
    if isinstance(z, Entries):
        return len(entries_of(z).values) > DENSE * z.N * z.K
    active = np.abs(unit_rows(z)) > ACTIVE
    return active.mean() > DENSE


# --------------------------------------------------- what a dimension says about labels: counts
# counts (C, K): of the images that a dimension is active on, how many have each class
# sizes (C,): how many images have each class
# Of a dimension that is active on no image Cons., H_s and phi are nan, F1 and information 0. In
# of_label all become nan but for bits: such a dimension tells 0 bits.
def class_counts(a: Activations, y: np.ndarray, C: int, weights=None) -> np.ndarray:
    """Counts (C, K) of classes y (N,), or sums of weights (nnz,), one for each entry."""
    cells = y[a.images] * a.K + a.dims
    return np.bincount(cells, weights, C * a.K).reshape(C, a.K)


def consistency(counts: np.ndarray) -> np.ndarray:
    """Cons., (K,): the share of the most frequent class among a dimension's images ([NCL])."""
    return counts.max(0) / counts.sum(0)


def semantic_entropy(mass: np.ndarray) -> np.ndarray:
    """H_s in nats, (K,), of the sums of |z_k| (C, K) over each class's images ([BayesNCL])."""
    return surprise(mass / mass.sum(0)).sum(0)


def surprise(p: np.ndarray) -> np.ndarray:
    """-p log p of probabilities p, in nats; 0 where p is 0."""
    return -p * np.log(np.where(p > 0, p, 1))


def information(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Mutual information of "the dimension is active" and the label, in nats, (K,)."""
    N = sizes.sum()
    share = counts.sum(0) / N
    activity_entropy = surprise(share) + surprise(1 - share)
    label_entropy = surprise(sizes / N).sum()
    active = surprise(counts / N)  # (C, K)
    inactive = surprise((sizes[:, None] - counts) / N)
    joint_entropy = (active + inactive).sum(0)
    return activity_entropy + label_entropy - joint_entropy


def expected_information(n: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The mean of `information`, in nats, over all orders of the labels. n: active images, (K,).

    How many of a class's images are among n then follows the hypergeometric distribution (Vinh,
    Epps, Bailey 2010, who ask it of two clusterings).
    """
    N = sizes.sum()
    logs = np.log(np.arange(1, N + 1))
    log_factorial = np.concatenate([[0], np.cumsum(logs)])

    def log_choose(total, chosen):
        inside = (chosen >= 0) & (chosen <= total)
        chosen = np.where(inside, chosen, 0)
        ways = log_factorial[total] - log_factorial[chosen] - log_factorial[total - chosen]
        return np.where(inside, ways, -np.inf)

    different, inverse = np.unique(n, return_inverse=True)
    joint_entropy = np.zeros(len(different))
    different_sizes, classes = np.unique(sizes, return_counts=True)
    for size, times in zip(different_sizes, classes):
        for first, last in octaves(different):
            most = min(size, different[last - 1])
            i = np.arange(most + 1)  # active images of a class of this size
            terms = surprise(i / N) + surprise((size - i) / N)
            width = max(1, CELLS // len(i))
            for begin in range(first, last, width):
                end = min(begin + width, last)
                some = different[begin:end, None]
                log_inside = log_choose(size, i)
                log_outside = log_choose(N - size, some - i)
                # The probability that i of a dimension's images are of the class.
                p = np.exp(log_inside + log_outside - log_choose(N, some))  # (width, most + 1)
                joint_entropy[begin:end] += times * (p @ terms)
    share = different / N
    activity_entropy = surprise(share) + surprise(1 - share)
    label_entropy = surprise(sizes / N).sum()
    return (activity_entropy + label_entropy - joint_entropy)[inverse]


def octaves(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Where sorted numbers are cut into pieces whose last is at most twice the first: their ends.

    A table as wide as a piece's last number is then about as wide as each of its rows needs.
    """
    found = []
    first = 0
    while first < len(numbers):
        last = int(np.searchsorted(numbers, 2 * numbers[first], side="right"))
        found.append((first, last))
        first = last
    return found


def f1_scores(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """F1 of "active" as a test for each class, (C, K): 2 hits / (active + class's images)."""
    return 2 * counts / (counts.sum(0) + sizes[:, None])


def matthews(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """phi of "active" and each class, (C, K): the correlation of two yes-or-no variables.

    0 of a dimension that is active on all images, as in scikit-learn.
    """
    N = sizes.sum()
    n = counts.sum(0).astype(np.float64)  # products of four are too large for int64
    size = sizes[:, None]
    covariance = N * counts - n * size
    variances = n * (N - n) * size * (N - size)
    return np.where(n == N, 0, covariance / np.sqrt(variances))


def average_precision(a: Activations, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Average precision of dimension k as a search for class wanted[k], the strongest first, (K,).

    sum over ranks r of precision(r) * (recall(r) - recall(r - 1)). Images of equal activation
    count at once, as in scikit-learn; so do, at the end, those that the dimension is not active on.
    """
    class_sizes = np.bincount(y, minlength=wanted.max() + 1)
    sizes = class_sizes[wanted]  # (K,)
    dims = a.dims
    hit = y[a.images] == wanted[dims]  # (nnz,)
    hits = np.concatenate([[0], np.cumsum(hit)])  # among the first 0, 1, ..., nnz entries
    before = hits[a.start[:-1]]  # hits in the lists of the dimensions before, (K,)
    listed = hits[a.start[1:]] - before  # hits in the dimension's list
    seen = hits[1:] - before[dims]  # hits in the dimension's list up to each entry

    # A tie is a group of equal entries of one list; each of its hits counts at the tie's end.
    other_value = a.values[1:] != a.values[:-1]
    other_list = dims[1:] != dims[:-1]
    last_of_tie = np.ones(len(dims), bool)
    last_of_tie[:-1] = other_value | other_list
    ends = np.flatnonzero(last_of_tie)
    end = ends[np.searchsorted(ends, np.arange(len(dims)))]  # of each entry's tie
    precision = seen[end] / (a.ranks[end] + 1)
    found = np.bincount(dims, hit * precision, a.K)

    missed = sizes - listed
    at_the_end = sizes / a.N  # precision where all images are found, these among them
    return (found + missed * at_the_end) / sizes


def random_consistency(y: np.ndarray, orders=200) -> np.ndarray:
    """Cons. of the first 1, 2, ..., N images in random order: (orders, N) float32."""
    draw = torch.Generator().manual_seed(0)
    n = np.arange(1, len(y) + 1)
    sizes = np.bincount(y)
    first_of_class = np.cumsum(sizes) - sizes
    # Class after class, each in the order drawn: the i-th image of a class makes its count i.
    nth = n - np.repeat(first_of_class, sizes)  # 1, 2, ... of class 0, then of class 1, ...
    result = np.empty((orders, len(y)), np.float32)
    for row in result:
        order = torch.randperm(len(y), generator=draw)
        shuffled = y[order.numpy()]
        by_class = np.argsort(shuffled, kind="stable")  # the places of class 0, then of 1, ...
        so_far = np.empty(len(y), np.int64)
        so_far[by_class] = nth  # how many images up to here have this one's class
        most_frequent = np.maximum.accumulate(so_far)
        row[:] = most_frequent / n
    return result


def label_columns(a: Activations, y: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """What counts alone tell of each dimension, columns (K,)."""
    counts = class_counts(a, y, len(sizes))
    mass = class_counts(a, y, len(sizes), a.values)
    f1 = f1_scores(counts, sizes)
    columns = {}
    columns["class"] = counts.argmax(0)
    columns["cons"] = consistency(counts)
    columns["entropy"] = semantic_entropy(mass)
    columns["information"] = information(counts, sizes)
    columns["best"] = f1.argmax(0)
    columns["f1"] = f1.max(0)
    columns["phi"] = matthews(counts, sizes).max(0)
    return columns


def in_parts(a: Activations, y: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """label_columns of a few dimensions at a time, joined."""
    width = max(1, CELLS // len(sizes))
    parts = []
    for first in range(0, a.K, width):
        part = a.part(first, first + width)
        parts.append(label_columns(part, y, sizes))
    columns = {}
    for name in parts[0]:
        columns[name] = np.concatenate([part[name] for part in parts])
    return columns


def of_label(a: Activations, y: np.ndarray, chance: np.ndarray) -> dict[str, np.ndarray]:
    """What each dimension says about labels y (N,), numbered 0, 1, ..., C - 1: columns (K,).

    chance: (N,), the Cons. of 1, 2, ..., N random images.

    class      the most frequent class of its images
    cons       its share of them
    chance     the same of as many random images
    adjusted   (cons - chance) / (1 - chance)
    entropy    of its activations summed over each class, in nats
    bits       mutual information of being active and the label, less that of shuffled labels
    best       the class that it tells best, by F1
    f1, ap     how well it tells this class: F1, average precision
    phi        the largest correlation of being active with a class
    """
    sizes = np.bincount(y)
    dead = a.n == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = in_parts(a, y, sizes)
    by_chance = np.where(dead, np.nan, chance[a.n.clip(1) - 1])
    above = columns["cons"] - by_chance
    columns["chance"] = by_chance
    columns["adjusted"] = above / (1 - by_chance).clip(1e-9)
    nats = columns["information"] - expected_information(a.n, sizes)
    columns["bits"] = nats / math.log(2)
    columns["ap"] = average_precision(a, y, columns["best"])
    for name in "class", "best", "f1", "phi", "ap":
        columns[name] = np.where(dead, np.nan, columns[name])
    order = "class", "cons", "chance", "adjusted", "entropy", "bits", "best", "f1", "phi", "ap"
    return {name: columns[name] for name in order}


# ----------------------------------------------------------- what all dimensions say of a class
def random_half(N: int) -> np.ndarray:
    """Which half of the images each belongs to, (N,), True or False, at random."""
    return np.random.default_rng(0).permutation(N) % 2 == 1


def f1_among(a: Activations, y: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """F1 of "active" as a test for each class, (C, K), among the images that are `chosen` (N,).

    0 where neither the class nor the dimension has an image among them.
    """
    C = y.max() + 1
    counts = class_counts(a, y, C, chosen[a.images])
    sizes = np.bincount(y[chosen], minlength=C)
    with np.errstate(divide="ignore", invalid="ignore"):
        f1 = f1_scores(counts, sizes)
    return np.nan_to_num(f1)


def best_dimensions(a: Activations, y: np.ndarray) -> np.ndarray:
    """How well a single dimension tells each class: F1, (C,).

    The dimension is chosen on one half of the images and judged on the other; the mean of both
    ways. So it gains nothing by chance to have many dimensions to choose from. With less than some
    ten images a class is judged by few; nan where a half has none of it.
    """
    C = y.max() + 1
    classes = np.arange(C)
    half = random_half(a.N)
    highest = np.full((2, C), -1.0)  # [i]: the largest F1 on half i, which chooses
    judged = np.zeros((2, C))  # [i]: the F1 of that dimension on the other half
    width = max(1, CELLS // C)
    for first in range(0, a.K, width):
        part = a.part(first, first + width)
        f1 = [f1_among(part, y, ~half), f1_among(part, y, half)]  # [i]: (C, width), on half i
        for chooses, judges in ((0, 1), (1, 0)):
            best = f1[chooses].argmax(1)  # (C,)
            here = f1[chooses][classes, best]
            there = f1[judges][classes, best]
            better = here > highest[chooses]
            highest[chooses] = np.where(better, here, highest[chooses])
            judged[chooses] = np.where(better, there, judged[chooses])
    sizes = np.bincount(y, minlength=C)
    of_half = np.bincount(y[half], minlength=C)
    in_both = (of_half > 0) & (of_half < sizes)
    return np.where(in_both, judged.mean(0), np.nan)


def sparse_probes(z: np.ndarray | Activations, y: np.ndarray) -> dict[int, float | None]:
    """Accuracy in % of logistic regression that reads k dimensions for each class, by k of PROBES.

    One yes-or-no regression for each class, on the k dimensions whose means differ most between the
    class and the rest; the surest of their answers counts. Chosen and fitted on one half of the
    images, judged on the other; with very many images and classes, on a random part of both, and
    None where that would be less than an image for each class, or z has fewer than k dimensions.
    z: (N, K) or Activations; y: (N,), 0 to C - 1.
    """
    C = y.max() + 1
    enough = probe_images(len(y), C)
    if enough < C:
        return dict.fromkeys(PROBES)
    half = random_half(len(y))
    shuffled = np.random.default_rng(1).permutation(len(y))
    in_train = half[shuffled]
    train = shuffled[in_train][:enough]
    test = shuffled[~in_train][:enough]

    chosen = telling_dimensions(z, y, train, max(PROBES))  # (C, most)
    distinct, place = np.unique(chosen, return_inverse=True)
    place = place.reshape(chosen.shape)  # numpy's versions differ in its shape
    images = np.concatenate([train, test])
    values = torch.from_numpy(read_block(z, images, distinct))
    fitted = values[: len(train)]  # (train, distinct)
    scale = fitted.std(0).clamp(min=1e-6)
    values = (values - fitted.mean(0)) / scale

    of_each = values[:, place]  # (train + test, C, most)
    of_each = of_each.permute(1, 0, 2)
    x_train = of_each[:, : len(train)]
    x_test = of_each[:, len(train) :]
    y_train = torch.from_numpy(y[train])
    y_test = torch.from_numpy(y[test])
    accuracy = {}
    for k in PROBES:
        accuracy[k] = None
        if k > z.shape[1]:
            continue
        weights = fit_each_class(x_train[..., :k].contiguous(), y_train)
        bias = weights[:, -1:]
        answers = x_test[..., :k] @ weights[:, :-1] + bias  # (C, n, 1)
        right = answers[..., 0].argmax(0) == y_test
        accuracy[k] = 100 * right.float().mean().item()
    return accuracy


def probe_images(N: int, C: int) -> int:
    """Images that the probes are fitted on: half of N, at most 10,000, fewer for many classes."""
    return min(N // 2, 10_000, 8 * CELLS // (C * max(PROBES)))


def telling_dimensions(z, y: np.ndarray, among: np.ndarray, most: int) -> np.ndarray:
    """The dimensions whose means differ most between a class and the rest, best first: (C, most).

    z: (N, K) or Activations; y: (N,); the means are of the images `among` these.
    """
    C = y.max() + 1
    K = z.shape[1]
    sizes = np.bincount(y[among], minlength=C)[:, None]
    others = len(among) - sizes
    if isinstance(z, Activations):
        counted = np.isin(np.arange(len(y)), among)
    else:
        one_hot = np.eye(C, dtype=np.float32)[y[among]]  # (n, C)
    best = np.empty((C, 0))  # the largest differences so far
    dims = np.empty((C, 0), np.int64)  # and whose they are
    width = max(1, CELLS // C)
    for first in range(0, K, width):
        if isinstance(z, Activations):
            part = z.part(first, first + width)
            values = part.values * counted[part.images]
            sums = class_counts(part, y, C, values)  # (C, width)
        else:
            sums = one_hot.T @ z[among, first : first + width]
        of_class = sums / sizes.clip(1)
        of_rest = (sums.sum(0) - sums) / others.clip(1)
        difference = np.abs(of_class - of_rest)
        own = first + np.arange(sums.shape[1])  # the numbers of these dimensions
        best = np.concatenate([best, difference], axis=1)
        dims = np.concatenate([dims, np.broadcast_to(own, sums.shape)], axis=1)

        kept = min(most, best.shape[1])
        order = torch.from_numpy(best).topk(kept).indices.numpy()
        best = np.take_along_axis(best, order, 1)
        dims = np.take_along_axis(dims, order, 1)
    return dims


def read_block(z: np.ndarray | Activations, images: np.ndarray, dims: np.ndarray) -> np.ndarray:
    """The values (len(images), len(dims)) of some images in some dimensions."""
    if not isinstance(z, Activations):
        return z[np.ix_(images, dims)]
    # Images that are not asked for all go into one more row, which is cut off at the end.
    row = np.full(z.N, len(images))
    row[images] = np.arange(len(images))
    block = np.zeros((len(images) + 1, len(dims)), np.float32)
    for i, k in enumerate(dims):
        entries = slice(z.start[k], z.start[k + 1])
        rows = row[z.images[entries]]
        block[rows, i] = z.values[entries]
    return block[:-1]


def fit_each_class(x: Tensor, y: Tensor, l2=1e-3, steps=10) -> Tensor:
    """Logistic regressions "of class c or not" on features x (C, n, k): weights (C, k + 1, 1).

    Each is the least mean cross-entropy + l2/2 * |weights|^2, by Newton's method, which needs six
    to ten steps on features of variance 1. The last weight is the bias. y: (n,).
    """
    C, n, k = x.shape
    x = F.pad(x, (0, 1), value=1.0)  # (C, n, k + 1)
    wanted = F.one_hot(y, C).T.to(x.dtype)
    wanted = wanted[..., None]  # (C, n, 1)
    penalty = torch.full((k + 1, 1), l2, dtype=x.dtype)
    penalty[-1] = 1e-6  # next to none for the bias
    weights = torch.zeros(C, k + 1, 1, dtype=x.dtype)
    for _ in range(steps):
        p = torch.sigmoid(x @ weights)  # (C, n, 1)
        gradient = x.mT @ (p - wanted) / n + penalty * weights
        curved = x * p * (1 - p)
        hessian = x.mT @ curved / n + penalty[:, 0].diag()
        weights = weights - torch.linalg.solve(hessian, gradient)
    return weights


# -------------------------------------------------------------------------- what needs no label
def sparse_matrix(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape) -> Tensor:
    """A sparse tensor of entries (nnz,), no two in one place, in the order of their rows."""
    cells = torch.from_numpy(np.stack([rows, columns]))
    values = torch.from_numpy(values)
    return torch.sparse_coo_tensor(cells, values, shape, check_invariants=False, is_coalesced=True)


def scaled(a: Activations) -> np.ndarray:
    """Values (nnz,) such that each dimension's go from 0, of all N images, to 1."""
    least = np.zeros(a.K)  # an image that a dimension is not active on has 0
    everywhere = a.n == a.N
    last = a.start[1:] - 1
    least[everywhere] = a.values[last[everywhere]]
    largest = np.ones(a.K)
    live = a.n > 0
    first = a.start[:-1]
    largest[live] = a.values[first[live]]
    span = largest - least
    with np.errstate(invalid="ignore"):  # a dimension that is equal on all images has no scale
        return (a.values - least[a.dims]) / span[a.dims]


def mean_cosine(weights: Tensor, squares: Tensor, h: Tensor) -> np.ndarray:
    """Mean cosine of all pairs of images, each weighted by the product of their weights: (K,).

    weights: (K, N); squares: their squares; h: (N, d) float64, rows of norm 1. An image makes no
    pair with itself: the sum over all pairs, |sum_n w_n h_n|^2, is taken without these.
    """
    ones = torch.ones(len(h), 1, dtype=h.dtype)  # "@ ones" sums rows, sparse or dense
    lengths = h.square().sum(1, keepdim=True)  # (N, 1)
    own_cosines = (squares @ lengths)[:, 0]
    own_pairs = (squares @ ones)[:, 0]
    cosines = (weights @ h).square().sum(1) - own_cosines
    pairs = (weights @ ones)[:, 0].square() - own_pairs
    score = cosines / pairs
    return score.where(pairs > 1e-9, torch.nan).numpy()


def all_pairs(h: Tensor) -> float:
    """Mean cosine of all pairs of rows of h (N, d) of norm 1: what random images have."""
    equal = torch.ones(1, len(h), dtype=h.dtype)
    return mean_cosine(equal, equal, h).item()


def unit_judge(h: np.ndarray) -> Tensor:
    """Features h (N, d) as MonoScore needs them: rows of norm 1 in float64, because sums cancel."""
    rows = torch.from_numpy(np.asarray(h, np.float64))
    return F.normalize(rows)


def mono_score(a: Activations, h: Tensor) -> np.ndarray:
    """MonoScore, (K,): how alike the images are that a dimension is active on.

    The mean cosine of pairs of images in another network's features h (unit_judge), weighted by the
    product of their activations, each dimension's scaled to [0, 1]; less that of all pairs.
    """
    shape = a.K, a.N
    values = scaled(a).astype(np.float64)
    weights = sparse_matrix(a.dims, a.images, values, shape)
    squares = sparse_matrix(a.dims, a.images, np.square(values), shape)
    return mean_cosine(weights, squares, h) - all_pairs(h)


def mono_score_of_authors(z: np.ndarray, h: Tensor) -> np.ndarray:
    """MonoScore as its authors' code has it, (K,), of a dense z (N, K).

    The raw activations with their signs, each dimension's scaled to [0, 1]; nothing is subtracted.
    """
    z = torch.from_numpy(np.asarray(z, np.float32))
    scores = []
    for part in z.split(256, dim=1):
        columns = part.double()
        least, largest = columns.aminmax(dim=0)
        weights = ((columns - least) / (largest - least)).T  # (k, N), nan of a constant dimension
        scores.append(mean_cosine(weights, weights.square(), h))
    return np.concatenate(scores)


def unit_values(a: Activations) -> np.ndarray:
    """Values (nnz,) such that each live dimension, as a vector of N activations, has norm 1."""
    norms = np.bincount(a.dims, np.square(a.values, dtype=np.float64), a.K)
    norms = np.sqrt(norms).clip(1e-12)  # (K,)
    values = a.values / norms[a.dims]
    return values.astype(np.float32)


def overlaps(a: Activations) -> tuple[np.ndarray, float]:
    """How much dimensions overlap: |cosines| of their vectors of N activations ([NCL], Fig. 3c).

    The largest with another dimension, (K,), and the mean of all pairs of live ones.
    """
    unit = dataclasses.replace(a, values=unit_values(a))
    active = np.bincount(a.images, minlength=a.N).astype(np.float64)  # entries of each image
    meetings = np.square(active).sum()  # of two entries
    products = a.N * a.K * a.K  # of the matrix of activations with itself; one takes far less time
    fits = a.K * a.K <= MATRIX
    faster = a.N * a.K <= MATRIX or meetings > products / 1000
    if fits and faster:
        largest, total = dense_overlaps(unit)
    else:
        largest, total = sparse_overlaps(unit)
    largest = np.where(a.n > 0, largest, np.nan)
    live = np.count_nonzero(a.n)
    pairs = live * (live - 1)
    if pairs == 0:
        return largest, math.nan
    return largest, total / pairs


def dense_overlaps(unit: Activations) -> tuple[np.ndarray, float]:
    """The largest of each dimension's |cosines|, (K,), and the sum of all, by their matrix."""
    order = np.argsort(unit.images, kind="stable")  # image after image
    images = unit.images[order]
    dims = unit.dims[order]
    values = unit.values[order]
    cosines = np.zeros((unit.K, unit.K), np.float32)
    height = MATRIX // unit.K
    for first in range(0, unit.N, height):
        begin, end = np.searchsorted(images, [first, first + height])
        block = np.zeros((min(height, unit.N - first), unit.K), np.float32)
        block[images[begin:end] - first, dims[begin:end]] = values[begin:end]
        cosines += block.T @ block
    cosines = np.abs(cosines)
    np.fill_diagonal(cosines, 0)  # with itself
    return cosines.max(1), cosines.sum(dtype=np.float64)


def sparse_overlaps(unit: Activations) -> tuple[np.ndarray, float]:
    """What dense_overlaps() gives, without the matrix.

    Two dimensions meet where an image activates both. So each entry of a dimension is multiplied
    with all entries of its image.
    """
    order = np.argsort(unit.images, kind="stable")  # image after image
    dims = unit.dims[order]
    values = unit.values[order]
    n = np.bincount(unit.images, minlength=unit.N)  # entries of each image
    start = starts(n)[:-1]
    largest = np.zeros(unit.K)
    total = 0.0
    width = max(1, CELLS // unit.K)
    for first in range(0, unit.K, width):
        part = unit.part(first, first + width)
        part_dims = part.dims
        cosines = np.zeros(part.K * unit.K)
        for some in pieces(n[part.images], 4 * CELLS):
            images = part.images[some]
            meets = n[images]  # products that each entry of the part takes part in
            entry = np.repeat(np.arange(len(images)), meets)  # of each product: the entry
            step = np.arange(len(entry)) - starts(meets)[:-1][entry]  # 0, 1, ... of this entry
            other = start[images[entry]] + step  # of each product: what the entry meets
            pairs = part_dims[some][entry] * unit.K + dims[other]
            products = part.values[some][entry] * values[other]
            cosines += np.bincount(pairs, products, len(cosines))
        cosines = np.abs(cosines.reshape(part.K, unit.K))
        rows = np.arange(part.K)
        cosines[rows, first + rows] = 0  # with itself
        largest[first : first + part.K] = cosines.max(1)
        total += cosines.sum()
    return largest, total


def pieces(sizes: np.ndarray, most: int) -> list[slice]:
    """A list, cut where its items' sizes add up to another `most`."""
    piece = (np.cumsum(sizes) - 1) // most
    cuts = np.flatnonzero(np.diff(piece)) + 1
    return [slice(*ends) for ends in itertools.pairwise([0, *cuts, len(sizes)])]


def of_rows(z: np.ndarray) -> dict[str, float]:
    """How sparse the rows of z (N, K) are, of norm 1.

    l1      mean of |z|_1 / sqrt(K)
    hoyer   mean of (sqrt(K) - |z|_1) / (sqrt(K) - 1): 0 where all are equal, 1 for a single one
    """
    z = torch.from_numpy(unit_rows(z))
    root = math.sqrt(z.shape[1])
    sizes = z[z.any(1)].abs().sum(1)
    l1 = (sizes / root).mean().item()
    if root == 1:
        return {"l1": l1, "hoyer": math.nan}
    hoyer = (root - sizes) / (root - 1)
    return {"l1": l1, "hoyer": hoyer.mean().item()}


def precision_at(z: np.ndarray | Tensor, y, ks=(1, 3, 5, 10)) -> dict[int, float | None]:
    """P@k: % of an image's k nearest others (cosine) in z (N, K) with its label y (N,), by k.

    The mean over all images, of more than MANY over QUERIES at random; None: too few images.
    """
    if not isinstance(z, Tensor):
        z = torch.from_numpy(np.asarray(z, np.float32))
    z = F.normalize(z.float())
    y = torch.as_tensor(y, device=z.device)
    asked = torch.arange(len(z))
    if len(z) > MANY:
        draw = torch.Generator().manual_seed(0)
        asked = torch.randperm(len(z), generator=draw)[:QUERIES]
    most = min(max(ks), len(z) - 1)
    same = []
    for part in asked.to(z.device).split(max(1, min(1000, MATRIX // len(z)))):
        cosines = z[part] @ z.T
        rows = torch.arange(len(part), device=z.device)
        cosines[rows, part] = -2  # not with itself
        nearest = cosines.topk(most).indices
        same.append(y[nearest] == y[part, None])
    same = torch.cat(same).float()  # (queries, most)
    scores = {}
    for k in ks:
        scores[k] = None
        if k < len(z):
            scores[k] = 100 * same[:, :k].mean().item()
    return scores


# ---------------------------------------------------------------------- all of them, and controls
@dataclasses.dataclass
class Embedding:
    """An embedding z (N, K) and what is known of its N images, None where it is not there."""

    z: np.ndarray | Entries
    labels: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # prefix -> (N,)
    judge: np.ndarray | None = None  # (N, d), features by which MonoScore judges
    judge_name: str = ""
    features: np.ndarray | None = None  # (N, d), h, of which z was made
    # (N, H, W, 3), (N, 3, H, W) or grey, uint8; look.py: a list of files too
    images: np.ndarray | list | None = None
    title: str = ""

    @property
    def N(self):
        return self.z.shape[0]

    @property
    def K(self):
        return self.z.shape[1]


@dataclasses.dataclass
class Findings:
    """What `interpret` finds of an embedding. The numbers of a second label have its prefix."""

    activations: Activations
    rule: str  # "nonzero" or "top:<share>"
    columns: dict[str, np.ndarray]  # of each dimension, (K,), or (2K,) of half-dimensions
    numbers: dict[str, float | None]  # None: undefined
    controls: dict[str, dict[str, float | None]]  # "untrained", "shuffled": the same numbers
    directions: int = 0  # of the untrained dictionary
    untrained: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # a draw's columns


def share_of(rule: str) -> float:
    """The share of the images that a rule "top:<share>" makes a dimension active on."""
    return float(rule.removeprefix("top:"))


def rule_for(z: np.ndarray | Entries) -> str:
    """What counts as active where nobody says it."""
    if is_dense(z):
        return f"top:{TOP}"
    return "nonzero"


def activate(z: np.ndarray | Entries, rule: str, halves: bool | None = None) -> Activations:
    """The lists of active images of z (N, K) by a rule: "nonzero", or "top:<share>" of the images.

    halves: with "top", whether each dimension becomes two; by default that of a z with signs does.
    """
    if rule == "nonzero":
        return nonzero(z)
    if halves is None:
        halves = has_signs(z)
    return top_share(z, share_of(rule), halves)


def mean(values) -> float | None:
    """The mean of the values that are defined, neither None nor nan; None where none is."""
    values = np.asarray(values, np.float64)  # None becomes nan
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return None
    return values.mean().item()


def activity(a: Activations) -> dict[str, float | None]:
    """How much is active.

    act: share of the entries; entries: of an image; live_dims, rare_dims: dimensions active on any
    image, and of these on less than 0.1 %; dims_<share>: active on so many images or more.
    """
    numbers = {}
    for share in SHARES:
        numbers[f"dims_{share}"] = int(is_active_on(a, share).sum())
    numbers["act"] = mean(a.n / a.N)
    numbers["entries"] = len(a.images) / a.N
    numbers["live_dims"] = int((a.n > 0).sum())
    numbers["rare_dims"] = numbers["live_dims"] - numbers[f"dims_{SHARES[0]}"]
    return numbers


def is_active_on(a: Activations, share: float) -> np.ndarray:
    """Which dimensions are active on this share of the images or more, (K,) bool.

    The share is rounded to whole images, as by the rule "top", whose lists just reach it.
    """
    return a.n >= count_of(share, a.N)


def label_numbers(a: Activations, y: np.ndarray, columns: dict) -> dict[str, float | None]:
    """Means of of_label's columns over live dimensions; those in % times 100.

    adjusted: of dimensions active on 0.1 % of the images or more; cons_<share>: on so many.
    best_f1: mean of best_dimensions over classes; half_f1: of how many classes it reaches 1/2.
    """
    numbers = {}
    for name in "cons", "f1", "phi", "ap":
        numbers[name] = mean(100 * columns[name])
    for share in SHARES:
        often = is_active_on(a, share)
        numbers[f"cons_{share}"] = mean(100 * columns["cons"][often])
    often = is_active_on(a, SHARES[0])
    numbers["adjusted"] = mean(100 * columns["adjusted"][often])
    numbers["entropy"] = mean(columns["entropy"])
    numbers["bits"] = mean(columns["bits"])  # of all: a dead dimension tells 0
    of_class = best_dimensions(a, y)
    numbers["best_f1"] = mean(100 * of_class)
    numbers["half_f1"] = int((of_class >= 0.5).sum())
    return numbers


@dataclasses.dataclass
class Truth:
    """A label, as every measure needs it."""

    classes: np.ndarray  # (C,), the classes' own numbers
    y: np.ndarray  # (N,), numbered 0, 1, ..., C - 1
    chance: np.ndarray  # (N,), the Cons. of 1, 2, ..., N random images


def truths(labels: dict[str, np.ndarray]) -> dict[str, Truth]:
    """Labels (N,) by their prefix, prepared."""
    result = {}
    for prefix, own in labels.items():
        classes, y = np.unique(own, return_inverse=True)
        chance = random_consistency(y).mean(0)
        result[prefix] = Truth(classes, y, chance)
    return result


def with_signs(z: np.ndarray | Entries, a: Activations, rule: str) -> Activations:
    """All entries of z (N, K) with their signs: values may be < 0, and no list is by strength.

    For measures that ignore the order. It is `a` itself where `a` has these entries already.
    """
    if rule == "nonzero" and not has_signs(z):
        return a
    return lists(entries_of(z))


def prefixed(prefix: str, found: dict) -> dict:
    """What was found of a label, under names with its prefix."""
    return {prefix + name: value for name, value in found.items()}


def measure(z, a: Activations, rule: str, labels: dict[str, Truth], judge: Tensor | None):
    """Columns (K,) and numbers of an embedding z, which is active as a says, or of a control."""
    columns = {}
    columns["n"] = a.n
    columns["act"] = a.n / a.N
    columns["mean"] = np.bincount(a.dims, a.values, a.K) / a.N
    numbers = activity(a)
    if judge is not None:
        columns["mono"] = mono_score(a, judge)
        numbers["mono"] = mean(columns["mono"])
    # The probes read all of z, with its signs.
    if isinstance(z, Entries):
        read = with_signs(z, a, rule)
    else:
        read = unit_rows(z)
    live = a.n > 0
    for prefix, label in labels.items():
        found = of_label(a, label.y, label.chance)
        of_this = label_numbers(a, label.y, found)
        for k, accuracy in sparse_probes(read, label.y).items():
            of_this[f"probe_{k}"] = accuracy
        for name in "class", "best":  # by the classes' own numbers
            number = found[name][live].astype(int)
            found[name][live] = label.classes[number]
        numbers |= prefixed(prefix, of_this)
        columns |= prefixed(prefix, found)
    return columns, numbers


def interpret(e: Embedding, rule: str = "auto", controls: bool = True) -> Findings:
    """Measure an embedding, and its controls.

    columns, beside of_label's: n, images it is active on; act, their share of all; mean, the sum of
    |activation| on them, divided by the number of all (of a dense dimension whose list reaches 0,
    counted from its least value); mono, mono_score; duplicate, the largest |cosine| with another
    dimension.
    """
    if rule == "auto":
        rule = rule_for(e.z)
    a = activate(e.z, rule)
    labels = truths(e.labels)
    judge = None
    if e.judge is not None:
        judge = unit_judge(e.judge)
    columns, numbers = measure(e.z, a, rule, labels, judge)

    signed = a  # by a rule "top" dimensions overlap by what is active alone
    if rule == "nonzero":
        signed = with_signs(e.z, a, rule)
    columns["duplicate"], numbers["corr"] = overlaps(signed)
    numbers["duplicate_dims"] = int((columns["duplicate"] > DUPLICATE).sum())
    if not isinstance(e.z, Entries):
        numbers |= of_rows(e.z)
        if judge is not None:
            numbers["mono_authors"] = mean(mono_score_of_authors(e.z, judge))
        for prefix, label in labels.items():
            for k, value in precision_at(e.z, label.y).items():
                numbers[f"{prefix}p_at_{k}"] = value

    findings = Findings(a, rule, columns, numbers, {})
    if controls:
        add_controls(findings, e, labels, judge)
    for found in (findings.numbers, *findings.controls.values()):
        for name, value in found.items():
            if value is not None and not math.isfinite(value):
                found[name] = None
    return findings


def add_controls(findings: Findings, e: Embedding, labels: dict[str, Truth], judge) -> None:
    """Measure both controls, the mean of DRAWS of each; of many dimensions, one draw."""
    a = findings.activations
    draws = DRAWS
    if e.K > LARGE:
        draws = 1
    share = share_of_codes(e.z, findings.rule)
    findings.directions = directions_for(e.K, share)
    add_untrained(findings, e, labels, judge, draws, share)
    if not labels:
        return

    mixed = []
    for seed in range(draws):
        order = np.random.default_rng(seed + 1).permutation(a.N)  # with 0 it is random_half's
        numbers = {}
        for prefix, label in labels.items():
            y = label.y[order]
            found = of_label(a, y, label.chance)
            numbers |= prefixed(prefix, label_numbers(a, y, found))
        mixed.append(numbers)
    findings.controls["shuffled"] = average(mixed)


def share_of_codes(z: np.ndarray | Entries, rule: str) -> float | None:
    """The share of z's entries that are not 0; None where the rule makes a dense z sparse."""
    if rule != "nonzero" and is_dense(z):
        return None
    N, K = z.shape
    return len(entries_of(z).values) / (N * K)


def directions_for(K: int, share: float | None) -> int:
    """How many random directions stand for an embedding of K dimensions, a share of them active."""
    if K <= LARGE:
        return K
    directions = LARGE // 2
    if share:
        per_image = max(1, round(share * directions))
        directions = round(per_image / share)  # of these, `share` is a whole number an image
    return min(K, directions)


def source_of_directions(e: Embedding) -> tuple[np.ndarray | Entries, str]:
    """What the untrained dictionary has random directions of, and its name."""
    if e.features is not None:
        return e.features, OWN_FEATURES
    return e.z, "z"


def add_untrained(findings: Findings, e: Embedding, labels, judge, draws: int, share) -> None:
    """Measure random directions, made as sparse as z before the same rule applies to them.

    share: of z's entries that are not 0. An image gets about this share of the directions, a whole
    number, at least one, with their signs if z has signs. None: all, real-valued.
    """
    per_image = None
    signs = False
    if share is not None:
        per_image = max(1, round(share * findings.directions))
        signs = has_signs(e.z)
    source, _ = source_of_directions(e)
    if not isinstance(source, Entries):
        source = np.asarray(source, np.float32)
    drawn = []
    for seed in range(draws):
        z = random_dictionary(source, findings.directions, seed, per_image, signs)
        control = activate(z, findings.rule, findings.activations.halves)
        columns, numbers = measure(z, control, findings.rule, labels, judge)
        findings.untrained = columns  # at the end the last draw's
        drawn.append(numbers)
    untrained = average(drawn)
    if findings.directions < e.K:  # with more to choose from these would be better
        choosing = ["best_f1", "half_f1"]
        for k in PROBES:
            choosing.append(f"probe_{k}")
        for prefix in labels:
            untrained |= prefixed(prefix, dict.fromkeys(choosing))
    findings.controls["untrained"] = untrained


def random_dictionary(
    source: np.ndarray | Entries, directions: int, seed: int, k: int | None = None, signs=False
) -> np.ndarray | Entries:
    """Features (N, d), centred, then of norm 1, along random unit directions: (N, directions).

    With k, of each image the k largest alone; with `signs` those of largest size.
    """
    N, d = source.shape
    draw = torch.Generator().manual_seed(seed)
    basis = torch.randn(d, directions, generator=draw, dtype=torch.float32)
    basis = F.normalize(basis, dim=0)
    sparse = isinstance(source, Entries)
    if sparse:
        source = by_image(source)
        centre = np.bincount(source.dims, source.values, d) / N
    else:
        centre = np.mean(source, axis=0, dtype=np.float64)
    centre = torch.from_numpy(centre.astype(np.float32))

    parts = []  # (n, directions) each; with k the largest, (n, k)
    tops = []  # with k: their directions, (n, k) each
    for first in range(0, N, ROWS):
        last = min(first + ROWS, N)
        if sparse:  # centred rows r - c would not be sparse: their products and norms follow
            rows = sparse_rows(source, first, last)
            along = rows @ basis - centre @ basis  # (n, directions)
            squares = (rows * rows).sum(1).to_dense() - 2 * (rows @ centre) + centre @ centre
            along /= squares.clamp(min=1e-24).sqrt()[:, None]
        else:
            rows = torch.from_numpy(source[first:last])
            along = F.normalize(rows - centre) @ basis
        if k is None:
            parts.append(along)
            continue
        sizes = along.abs() if signs else along
        largest = sizes.topk(k).indices  # (n, k)
        tops.append(largest)
        parts.append(along.gather(1, largest))
    values = torch.cat(parts)
    if k is None:
        return values.numpy()
    if not signs:
        values = values.clamp(min=1e-3)  # all k count as active, where fewer are positive too
    dims = torch.cat(tops).flatten()
    images = np.repeat(np.arange(N), k)
    return Entries(images, dims.numpy(), values.flatten().numpy(), N, directions)


def by_image(entries: Entries) -> Entries:
    """The same entries, image after image."""
    return entries.take(np.argsort(entries.images, kind="stable"))


def sparse_rows(z: Entries, first: int, last: int) -> Tensor:
    """The images first, ..., last - 1 of z (N, K), sorted by_image, as a sparse float32 tensor."""
    begin, end = np.searchsorted(z.images, [first, last])
    part = z.take(slice(begin, end))
    values = part.values.astype(np.float32)
    return sparse_matrix(part.images - first, part.dims, values, (last - first, z.K))


def average(draws: list[dict]) -> dict[str, float | None]:
    """The mean of each number over several draws."""
    averages = {}
    for name in draws[0]:
        averages[name] = mean([draw[name] for draw in draws])
    return averages


# ------------------------------------------------------------------------------------- reading
def need(condition, text: str) -> None:
    """BadInput with this text unless the condition holds."""
    if not condition:
        raise BadInput(text)


def read_arrays(path: Path) -> dict[str, np.ndarray | Entries]:
    """The arrays of a file, by their keys; "" for the array of a file that holds one alone.

    Raises BadInput where there is none, or a damaged one. Pickled objects are never read.
    """
    kind = path.suffix.lower()
    readers = {
        ".npy": read_npy,
        ".npz": read_npz,
        ".pt": read_pt,
        ".pth": read_pt,
        ".safetensors": read_safetensors,
        ".parquet": read_parquet,
    }
    need(path.exists(), f"{path} is not there")
    need(not path.is_dir(), f"{path} is a folder; give a file of {', '.join(readers)}")
    need(kind in readers, f"{path}: give a run's folder or a file of {', '.join(readers)}")
    try:
        return readers[kind](path)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except ImportError as error:
        raise BadInput(f"{path} needs a library: pip install {error.name}") from None
    except Exception as error:  # what a damaged file may raise is not listed anywhere
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{path} cannot be read ({type(error).__name__}: {reason})") from None


def read_npy(path: Path) -> dict[str, np.ndarray]:
    """The array of a .npy file, memory-mapped; nothing is written back to the file."""
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    need(isinstance(array, np.ndarray), "it is an archive of arrays; name it .npz")
    return {"": array}


def read_npz(path: Path) -> dict[str, np.ndarray | Entries]:
    """The arrays of a .npz file; where it has scipy's sparse layout, that matrix as z."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    if not {"format", "shape", "data"} <= arrays.keys():
        return arrays
    of_layout = "format", "shape", "data", "indices", "indptr", "row", "col"
    result = {"z": entries_of_scipy(arrays)}
    for key, array in arrays.items():
        if key not in of_layout:
            result[key] = array
    return result


def read_pt(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file of torch.save: one, or a dictionary of them."""
    mapped = zipfile.is_zipfile(path)  # files of old versions cannot be
    if mapped:
        damaged = zipfile.ZipFile(path).testzip()  # torch.load would not notice
        need(damaged is None, f"{damaged} in it is damaged")
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    if isinstance(saved, Tensor):
        saved = {"": saved}
    need(isinstance(saved, dict), "it holds neither a tensor nor a dictionary of tensors")
    return of_tensors(saved)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a .safetensors file."""
    from safetensors.torch import load_file

    return of_tensors(load_file(path))


def of_tensors(tensors: dict) -> dict[str, np.ndarray | Entries]:
    """Tensors as numpy arrays; bfloat16, which numpy lacks, as float32; sparse ones as Entries."""
    arrays = {}
    for key, tensor in tensors.items():
        if not isinstance(tensor, Tensor):  # an epoch, settings: what else a file may hold
            continue
        tensor = tensor.detach()
        if tensor.layout != torch.strided:
            tensor = tensor.to_sparse_coo().coalesce()
            images, dims = tensor.indices().numpy()
            values = tensor.values().float().numpy()
            arrays[key] = Entries(images, dims, values, *tensor.shape)
        elif tensor.dtype == torch.bfloat16:
            arrays[key] = tensor.float().numpy()
        else:
            arrays[key] = tensor.numpy()
    return arrays


def read_parquet(path: Path) -> dict[str, np.ndarray]:
    """The columns of a .parquet file that have a number, or as many numbers, in each row."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    arrays = {}
    for key in table.column_names:
        array = array_of_column(table[key])
        if array is not None:
            arrays[key] = array
        else:  # what else a file may hold: pictures, captions of some images
            wanted = f"column {key} has empty rows, rows of several lengths or no numbers"
            need(key not in KEYS, wanted)
    return arrays


def array_of_column(column) -> np.ndarray | None:
    """A column of a parquet file as (N,) or (N, K); None where its rows are not alike."""
    from pyarrow import compute, types

    kind = column.type
    lists = types.is_list, types.is_large_list, types.is_fixed_size_list
    has_lists = any(is_list(kind) for is_list in lists)
    if has_lists:
        kind = kind.value_type
    is_number = types.is_integer(kind) or types.is_floating(kind)
    if column.null_count or not is_number:
        return None
    column = column.combine_chunks()
    flat = column
    if has_lists:
        if len(compute.list_value_length(column).unique()) != 1:
            return None
        flat = column.flatten()
    if flat.null_count:
        return None
    array = np.array(flat.to_numpy(zero_copy_only=False))  # a copy, which may be written to
    if has_lists:
        array = array.reshape(len(column), -1)
    return array


def entries_of_scipy(arrays: dict[str, np.ndarray]) -> Entries:
    """What scipy.sparse.save_npz wrote of a CSR, CSC or COO matrix."""
    kind = arrays["format"].item()
    if isinstance(kind, bytes):
        kind = kind.decode()
    need(kind in ("csr", "csc", "coo"), f"its sparse format is {kind}; it must be csr, csc or coo")
    N, K = (int(side) for side in arrays["shape"])
    values = arrays["data"]
    if kind == "csr":
        images, dims = uncompressed(arrays, N)
    elif kind == "csc":
        dims, images = uncompressed(arrays, K)
    else:
        images = arrays["row"].astype(np.int64)
        dims = arrays["col"].astype(np.int64)
    need(len(images) == len(dims) == len(values), "its indices and data differ in length")
    if len(values):
        images_fit = images.min() >= 0 and images.max() < N
        dims_fit = dims.min() >= 0 and dims.max() < K
        need(images_fit and dims_fit, f"its indices leave the shape ({N}, {K})")
    cells = images * K + dims
    if not (np.diff(cells) > 0).all():
        cells = np.sort(cells)
    need((np.diff(cells) > 0).all(), "an entry occurs twice; call sum_duplicates() before saving")
    return Entries(images, dims, values, N, K)


def uncompressed(arrays: dict[str, np.ndarray], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each entry of a CSR matrix with so many rows; of CSC, column and row."""
    start = arrays["indptr"].astype(np.int64)
    inner = arrays["indices"].astype(np.int64)
    whole = len(start) == rows + 1 and start[0] == 0 and start[-1] == len(arrays["data"])
    need(whole and (np.diff(start) >= 0).all(), "its indptr does not fit its shape and data")
    outer = np.repeat(np.arange(rows), np.diff(start))
    return outer, inner


def read_embedding(
    path: Path,
    labels: Path | None = None,
    features: Path | None = None,
    judge: Path | None = None,
) -> Embedding:
    """The embedding in a run's folder or in a file, with what other files hold of its images.

    z: key "z", or the only matrix. y: key "y"; background: a second label; h: features; images.
    Without a judge the features judge.
    Raises BadInput, in one line, for what is missing or cannot be used.
    """
    source = path
    if path.is_dir():
        source = path / "embeddings.npz"
        if not source.exists():
            raise BadInput(f"{path} has no embeddings.npz: no run, or one that has not finished")
    arrays = read_arrays(source)
    z = the_array(arrays, "z", 2, source, "the embedding z")
    e = Embedding(z, title=path.resolve().name)
    e.images = arrays.get("images")
    for prefix, key in ("", "y"), ("background_", "background"):
        if key in arrays:
            e.labels[prefix] = arrays[key]
    if labels:
        e.labels[""] = the_array(read_arrays(labels), "y", 1, labels, "the labels y")
    if not e.labels:
        others = [f"{key} {a.shape}" for key, a in arrays.items() if len(a.shape) == 1]
        if others:
            print(f"{source} has no key y, so no labels; not read: {', '.join(others)}")
    if "h" in arrays and arrays["h"] is not z:  # the_array gives a lone h as z
        e.features = arrays["h"]
    if features:
        e.features = the_array(read_arrays(features), "h", 2, features, "the features h")
    if judge:
        e.judge = the_array(read_arrays(judge), "h", 2, judge, "the features h")
        e.judge_name = Path(judge).name
    elif e.features is not None:
        e.judge = e.features
        e.judge_name = OWN_FEATURES
    check(e, source)
    return e


def the_array(arrays: dict, key: str, axes: int, path: Path, what: str):
    """The array of this key, else the only one with so many axes; BadInput if several or none."""
    if key in arrays:
        return arrays[key]
    fitting = [a for a in arrays.values() if len(a.shape) == axes]
    if axes == 1:
        for a in arrays.values():
            if isinstance(a, np.ndarray) and a.ndim == 2 and a.shape[1] == 1:
                fitting.append(a[:, 0])
    shapes = ", ".join(f"{name or 'array'} {a.shape}" for name, a in arrays.items())
    need(len(fitting) == 1, f"{path}: which array is {what}? There are: {shapes or 'none'}")
    return fitting[0]


def check(e: Embedding, source: Path) -> None:
    """BadInput where an embedding cannot be measured, or what is beside it does not fit it."""
    check_numbers(e.z, f"{source}: z")
    need(e.N > 1 and e.K > 1, f"{source}: z is {e.N} x {e.K}; two images and dimensions or more")
    values = values_of(e.z)
    need(values.any(), f"{source}: z is 0 everywhere, so no dimension is active on any image")
    largest = max(float(values.max()), -float(values.min()))
    need(1e-8 < largest < 1e15, f"{source}: the largest |z| is {largest:.3g}; rescale z to about 1")
    for prefix, y in e.labels.items():
        what = prefix.removesuffix("_") or "y"
        e.labels[prefix] = checked_label(y, e.N, what)
    for name, h in (e.judge_name, e.judge), ("h", e.features):
        if h is None:
            continue
        need(
            not isinstance(h, Entries),
            f"{name} is sparse; features must be dense: save h.toarray()",
        )
        check_numbers(h, name)
        need(len(h) == e.N, f"z has {e.N} rows, {name} has {len(h)}")
        need((h != h[0]).any(), f"{name}: the features of all images are equal")
    if e.images is not None:
        shape = np.shape(e.images)
        need(shape[:1] == (e.N,), f"z has {e.N} rows, images has shape {shape}")


def checked_label(y, N: int, what: str) -> np.ndarray:
    """Labels y, (N,) or (N, 1), as (N,); BadInput where they are not N classes' numbers."""
    if np.ndim(y) == 2 and y.shape[1] == 1:
        y = y[:, 0]
    y = np.asarray(y)
    if y.dtype.kind in "USO":
        raise BadInput(f"{what} are words: save np.unique({what}, return_inverse=True)[1]")
    remedy = "labels are integers, the number of a class for each image"
    if y.dtype.kind in "fb" and (y == y.round()).all():
        remedy += f": save {what}.astype(int)"
    need(y.dtype.kind in "iu", f"{what} is {y.dtype}; {remedy}")
    need(y.shape == (N,), f"z has {N} rows, {what} has shape {y.shape}")
    least = y.min()
    remedy = "number the classes from 0, and leave out images that have none"
    need(least >= 0, f"{what} has {least}: {remedy}")
    several = (y != y[0]).any()
    need(several, f"{what} has one class, {y[0]}; a dimension needs two to tell apart")
    return y


def values_of(z: np.ndarray | Entries) -> np.ndarray:
    """The numbers that z (N, K) holds: an array as it is, of Entries (nnz,)."""
    if isinstance(z, Entries):
        return z.values
    return z


def check_numbers(z: np.ndarray | Entries, what: str) -> None:
    """BadInput unless z is a matrix of finite numbers."""
    values = values_of(z)
    number = values.dtype.kind in "fiub"
    need(number, f"{what} is {values.dtype}; it must be numbers")
    need(len(z.shape) == 2, f"{what} has shape {z.shape}; it must be (N, K)")
    for first in range(0, len(values), 10_000):
        part = np.asarray(values[first : first + 10_000], np.float32)
        finite = np.isfinite(part).all()
        need(finite, f"{what} is not finite, near row or entry {first}: nan, inf or too large")


def read_names(path: Path | None, e: Embedding) -> dict[int, str]:
    """Class number -> name, of a file with the name of class 0, 1, ... on each line."""
    if path is None:
        return {}
    try:
        names = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})") from None
    need("" in e.labels, f"--classes {path} names classes, but there are no labels y")
    last = int(e.labels[""].max())
    need(len(names) > last, f"{path} names {len(names)} classes; there is a class {last}")
    return dict(enumerate(names))


# ------------------------------------------------------------------------------------- the program
COLUMNS = {  # heading of the table: key in Findings.numbers, digits behind the point
    "active": ("entries", 1),
    "live": ("live_dims", 0),
    "Cons.": ("cons", 1),
    "adj.": ("adjusted", 1),
    "bits": ("bits", 3),
    "F1": ("f1", 1),
    "φ": ("phi", 1),
    "AP": ("ap", 1),
    "best F1": ("best_f1", 1),
    "≥ ½": ("half_f1", 1),
    "1-probe": ("probe_1", 1),
    "8-probe": ("probe_8", 1),
    "Mono": ("mono", 3),
}
OF_THE_WHOLE = "entries", "live_dims", "mono"  # the others are of a label
LEGEND = """\
active: dimensions of an image; live: dimensions active on any. Cons.: of a dimension's images, the
share of their commonest class, %; adj.: above as many random images. F1, AP: how well being active
(AP: how strongly) tells a dimension's best class, %; φ: its largest correlation with a class, %;
bits: what it tells of the label. best F1: of the best dimension for a class, judged on other
images, mean over classes; ≥ ½: for so many classes. k-probe: accuracy, %, with k dimensions for
each class. Mono: how alike a dimension's images are. Others are means over live dimensions (bits:
over all; adj.: over those active on 0.1 % of the images or more).
untrained: random directions of the features, else of z, active by the same rule; shuffled: the
labels in random order."""


def markdown(rows: list[list[str]]) -> str:
    """An aligned Markdown table; the first row is its head."""
    widths = []
    for column in zip(*rows):
        widths.append(max(len(text) for text in column))
    rule = ["-" * width for width in widths]
    lines = []
    for row in (rows[0], rule, *rows[1:]):
        cells = [text.rjust(width) for text, width in zip(row, widths)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_number(value: float | int | None, digits: int) -> str:
    """A number for a table; a dash where it is undefined."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return str(value)
    value = round(value, digits) + 0.0  # no -0.0
    return f"{value:.{digits}f}"


def table(numbers: dict, controls: dict[str, dict]) -> str:
    """The numbers of an embedding for each of its labels, the controls under them."""
    labels = {}
    for prefix, label in ("", "class"), ("background_", "background"):
        if prefix + "cons" in numbers:
            labels[prefix] = label
    heads = list(COLUMNS)
    if not labels:
        labels[""] = "no labels"
        heads = [head for head in COLUMNS if COLUMNS[head][0] in OF_THE_WHOLE]
    rows = [["dimensions", *heads]]
    for prefix, label in labels.items():
        measured = {label: numbers} | controls
        for name, found in measured.items():
            cells = [name]
            for head in heads:
                key, digits = COLUMNS[head]
                if key not in OF_THE_WHOLE:
                    key = prefix + key
                cells.append(format_number(found.get(key), digits))
            rows.append(cells)
    return markdown(rows)


def about_activity(a: Activations, rule: str) -> str:
    """What counts as active, in half a line."""
    if rule == "nonzero":
        share = 100 * len(a.images) / (a.N * a.K)
        return f"active: {share:.3g} % of the entries, |z_k| > {ACTIVE:g} in rows of norm 1"
    share = share_of(rule)
    dimension = "dimension"
    if a.halves:
        dimension = "half-dimension"
    text = f"active: a {dimension} on the {100 * share:g} % of the images where it is strongest"
    each = count_of(share, a.N)
    if each < 10:
        text += f", which are {each}: too few to trust (--active top:<share> takes more)"
    return text


def about(e: Embedding, findings: Findings) -> str:
    """What was measured, in a few lines."""
    numbers = findings.numbers
    a = findings.activations
    active = about_activity(a, findings.rule)
    lines = [f"{e.title}: {e.N:,} images, {e.K:,} dimensions; {active}"]
    dimensions = "dimensions"
    if a.halves:
        dimensions = "half-dimensions"
    dead = a.K - numbers["live_dims"]
    lines.append(
        f"{dead:,} dead {dimensions}, {numbers['rare_dims']:,} active on less than 0.1 % of the "
        f"images, {numbers['duplicate_dims']:,} with a |cosine| > {DUPLICATE} to another"
    )
    if e.judge is None:
        lines.append("no MonoScore: it needs --features or --judge")
    else:
        lines.append(f"MonoScore by {e.judge_name}")
    if findings.controls:
        _, source = source_of_directions(e)
        draws = f"mean of {DRAWS} draws"
        if e.K > LARGE:
            draws = "one draw"
        if findings.directions < e.K:
            draws += "; best F1 and probes are not compared"
        lines.append(f"untrained: {findings.directions:,} random directions of {source}, {draws}")
    if "" in e.labels:
        sizes = np.unique(e.labels[""], return_counts=True)[1]
        if findings.rule != "nonzero":
            each = count_of(share_of(findings.rule), e.N)
            ceilings = 2 * np.minimum(each, sizes) / (each + sizes)  # all of the smaller are hits
            largest = 100 * ceilings.max()
            lines.append(f"F1 of a dimension on {each:,} images is at most {largest:.1f} %")
        fitted = probe_images(e.N, len(sizes))
        if len(sizes) <= fitted < e.N // 2:
            lines.append(f"probes: fitted on {fitted:,} images, judged on as many")
    return "\n".join(lines)


def tell_most(findings: Findings, names: dict[int, str], most=5) -> str:
    """The dimensions that tell a class best, one a line."""
    columns = findings.columns
    if "f1" not in columns:
        return ""
    f1 = np.nan_to_num(columns["f1"])
    order = np.argsort(-f1, kind="stable")[:most]
    lines = ["dimensions that tell a class best:"]
    for k in order[columns["n"][order] > 0]:
        best = int(columns["best"][k])
        dimension = findings.activations.name(k)
        label = names.get(best, f"class {best}")
        hits = f"F1 {100 * columns['f1'][k]:.0f} %, active on {columns['n'][k]:,} images"
        lines.append(f"  {dimension}: {label}, {hits}")
    return "\n".join(lines)


def cell(value: float) -> str:
    """A number in a csv file: whole ones as they are, others in six digits; empty: undefined."""
    if math.isnan(value):
        return ""
    value = round(float(value), 9)
    if value.is_integer():
        return str(int(value))
    return f"{value:.6g}"


def write_csv(path: Path, findings: Findings, names: dict[int, str] | None = None) -> None:
    """dimensions.csv: a row for each dimension, the most active first; empty where undefined."""
    columns = findings.columns
    head = ["dimension", *columns]
    if names:
        head.append("name")
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        for k in np.argsort(-columns["mean"], kind="stable"):
            row = [findings.activations.name(k)]
            for column in columns.values():
                row.append(cell(column[k]))
            if names:
                row.append(names.get(columns["best"][k], ""))
            writer.writerow(row)


def active_rule(text: str) -> str:
    """An argparse type: auto, nonzero, or top:<share> with a share between 0 and 1."""
    if text in ("auto", "nonzero"):
        return text
    kind, _, share = text.partition(":")
    try:
        valid = kind == "top" and 0 < float(share) < 1
    except ValueError:
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"{text}; give auto, nonzero or top:0.01")
    return f"top:{float(share)}"


class Parser(argparse.ArgumentParser):
    """Errors of one line, exit code 2."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = Parser(
        prog="interpret.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    add("source", type=Path, help="a run's folder, or a file with the embedding z (N, K)")
    add("--labels", type=Path, help="a file with labels y (N,)")
    add("--features", type=Path, help="a file with the features h (N, d) that z is made of")
    add("--judge", type=Path, help="a file with another network's features (N, d) of the images")
    add("--classes", type=Path, help="a file with the name of class 0, 1, ... on each line")
    add("--active", type=active_rule, default="auto", help="auto, nonzero or top:<share of images>")
    add("--out", type=Path, help="folder (default: the run's, else <name>-interpret)")
    return flags


def main(argv=None):
    args = parser().parse_args(argv)
    e = read_embedding(args.source, args.labels, args.features, args.judge)
    names = read_names(args.classes, e)
    out = args.out
    if out is None:
        out = Path(f"{args.source.stem}-interpret")
        if args.source.is_dir():
            out = args.source
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out} cannot be made ({error.strerror})") from None
    print(f"measuring {e.K:,} dimensions on {e.N:,} images ...", flush=True)
    findings = interpret(e, args.active)
    printed = table(findings.numbers, findings.controls)
    words = f"{about(e, findings)}\n{tell_most(findings, names)}".rstrip()
    text = f"{printed}\n{LEGEND}\n\n{words}\n"
    record = {"source": str(args.source), "images": e.N, "dimensions": e.K}
    record["active"] = findings.rule
    record["judge"] = e.judge_name or None
    record["directions"] = findings.directions
    record["numbers"] = findings.numbers
    record |= findings.controls
    (out / "interpret.json").write_text(json.dumps(record, indent=1) + "\n")
    (out / "interpret.txt").write_text(text, encoding="utf-8")
    write_csv(out / "dimensions.csv", findings, names)
    print(text, end="")
    print(f"wrote {out}/interpret.json, interpret.txt and dimensions.csv")


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # a terminal may lack a letter
    try:
        main()
    except KeyboardInterrupt:
        print("interpret.py: stopped before its end", file=sys.stderr)
        sys.exit(130)
    except (BadInput, OSError, MemoryError, RuntimeError) as error:
        # Where memory is short, numpy raises a MemoryError, torch a RuntimeError.
        no_memory = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        if isinstance(error, RuntimeError) and not no_memory:
            raise
        hint = "out of memory: " if no_memory else ""
        print(f"interpret.py: {hint}{' '.join(str(error).split())[:400]}", file=sys.stderr)
        sys.exit(2)
