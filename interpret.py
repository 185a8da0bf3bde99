"""What do the dimensions of an embedding stand for? Numbers for any embedding, beside what chance
and random directions give.

    python interpret.py runs/my-run               a finished run of any method here
    python interpret.py embedding.npz             z (N, K); where you have them y (N,) and h (N, d)
    python interpret.py latents.npz --labels y.npy --features h.npy --classes names.txt

A dimension is the list of images that it is active on, the strongest first. What it says about
labels is counted over these lists, so it costs what the active entries cost, and not N times K.

Active. A sparse embedding enters as it is: |z_k| > 1e-5 in a row of norm 1 ([NCL]). A dense one has
more than half of its entries active. With negative entries each of its dimensions becomes two, +k
and -k, active on the 1 % of the images where z_k is largest and smallest; without, it has +k alone.
--active nonzero or --active top:0.03 decides otherwise. Strength is that of z / |z|, except that a
dimension which is equal on all images is dead: there it would measure 1 / |z|.

Cons. of a dimension is the share of its commonest class. It is high by chance where a dimension is
active on few images, and high without any training of the head where the features are good. So each
dimension is compared with two curves, at its own number n of images:
    chance        Cons. of the first n images in a random order, its mean
    random head   Cons. of the first n images in the order of a random direction of the features h
                  that z is made of (without h: of z), for 200 to 1,000 directions
Rarity and the number of candidates cancel in both. adj. is (Cons. - chance) / (1 - chance).

Controls, for what is no function of n alone, each the mean of five draws:
    shuffled      the same dimensions, the labels in random order
    random head   for each live dimension a random direction of h, active on exactly as many images:
                  those where it is largest
    rotated       the same with directions of z itself: other axes of the same embedding

Files: .npy, .npz, .pt, .safetensors, .parquet, and scipy's sparse .npz. Into --out go the printed
table, interpret.json with every number and dimensions.csv with every dimension.

[NCL] arXiv 2403.12459. [BayesNCL] arXiv 2605.28441. MonoScore: arXiv 2504.02821.
"""

import argparse
import csv
import dataclasses
import functools
import json
import math
import sys
import time
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
EXACT = 100  # images: chance of so many and fewer is exact
ORDERS = 2000  # random orders behind chance of more images
DIRECTIONS = 1000  # random directions behind the curves of a random head; of many images 200
USUAL = 0.95  # a dimension stands out that is more consistent than this share of them
DRAWS = 5  # of each control
LARGE = 2048  # of more live dimensions a sample is controlled, once
SAMPLE = 1024  # dimensions in it
CELLS = 2**21  # numbers of a table, such as classes times dimensions, that are held at a time
MATRIX = 32 * CELLS  # numbers: so large a matrix of activations or cosines (256 MB) is still held
PATIENCE = 3  # seconds after which something says how far it is


class BadInput(ValueError):
    """What the user gave cannot be used. The message is one line: what is wrong, what to do."""


def need(condition, text: str) -> None:
    """BadInput with this text unless the condition holds."""
    if not condition:
        raise BadInput(text)


def progress(items, what: str):
    """The items, one by one. Where they take long, a line on stderr says how far they are."""
    items = list(items)
    told = time.monotonic()
    for i, item in enumerate(items):
        if time.monotonic() > told + PATIENCE:
            told = time.monotonic()
            print(f"  {what}: {i}/{len(items)}", file=sys.stderr, flush=True)
        yield item


def pieces(total: int, cost) -> list[slice]:
    """0, 1, ..., total - 1, cut so that what is held of a piece has about CELLS numbers.

    cost: numbers of each one, an array (total,) where they differ
    """
    costs = np.broadcast_to(cost, total)
    piece = (np.cumsum(costs) - 1) // CELLS
    cuts = np.flatnonzero(np.diff(piece)) + 1
    ends = [0, *cuts.tolist(), total]
    return [slice(first, last) for first, last in zip(ends, ends[1:])]


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
    values: np.ndarray  # (nnz,) float32, with their signs
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

    @property
    def strengths(self):
        """|values|, (nnz,)."""
        return np.abs(self.values)

    def only(self, dims: np.ndarray):
        """These dimensions alone, in this order."""
        n = self.n[dims]
        start = starts(n)
        first = np.repeat(self.start[dims] - start[:-1], n)
        entries = first + np.arange(start[-1])
        return Activations(self.images[entries], self.values[entries], start, self.N)

    def parts(self, cost: int):
        """A few dimensions at a time, (slice, part); cost: numbers that are held of each."""
        for some in pieces(self.K, cost):
            start = self.start[some.start : some.stop + 1]
            entries = slice(start[0], start[-1])
            images = self.images[entries]
            yield some, Activations(images, self.values[entries], start - start[0], self.N)

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


def lists(entries: Entries, halves=False) -> Activations:
    """Sort entries by dimension, and within a dimension the strongest first."""
    order = np.lexsort((-np.abs(entries.values), entries.dims))
    values = entries.values[order].astype(np.float32)
    n = np.bincount(entries.dims, minlength=entries.K)
    return Activations(entries.images[order], values, starts(n), entries.N, halves)


# ------------------------------------------------------------------------- what counts as active
def unit(z: np.ndarray | Entries) -> np.ndarray | Entries:
    """z (N, K) with rows of norm 1, and 0 where a dimension is equal on all images.

    Entries where at most half of it is active, |z_k| > ACTIVE; else an array, float32.
    """
    varies = ~is_constant(z)
    N, K = z.shape
    if isinstance(z, Entries):
        norms = np.sqrt(np.bincount(z.images, np.square(z.values, dtype=np.float64), N))
        rows = dataclasses.replace(z, values=z.values / norms.clip(1e-12)[z.images])
        entries = rows.take((np.abs(rows.values) > ACTIVE) & varies[z.dims])
        if len(entries.values) <= DENSE * N * K:
            return entries
        rows = np.zeros((N, K), np.float32)
        rows[entries.images, entries.dims] = entries.values
        return rows
    rows = F.normalize(torch.from_numpy(np.array(z, np.float32, order="C"))).numpy()
    rows *= varies
    active = np.abs(rows) > ACTIVE
    if active.mean() > DENSE:
        return rows
    images, dims = np.nonzero(active)
    return Entries(images, dims, rows[images, dims], N, K)


def is_constant(z: np.ndarray | Entries) -> np.ndarray:
    """Which dimensions of z (N, K) have one value on all images, (K,) bool."""
    if not isinstance(z, Entries):
        return np.max(z, axis=0) == np.min(z, axis=0)
    n = np.bincount(z.dims, minlength=z.K)
    constant = n == 0
    for k in np.flatnonzero(n == z.N):
        constant[k] = np.ptp(z.values[z.dims == k]) == 0
    return constant


def rule_for(u: np.ndarray | Entries) -> str:
    """What counts as active in unit(z) where nobody says it."""
    if isinstance(u, Entries):
        return "nonzero"
    return f"top:{TOP}"


def share_of(rule: str) -> float:
    """The share of the images that a rule "top:<share>" makes a dimension active on."""
    return float(rule.removeprefix("top:"))


def count_of(share: float, N: int) -> int:
    """How many of N images a share of them is, at least one."""
    return max(1, round(share * N))


def activate(u: np.ndarray | Entries, rule: str) -> Activations:
    """The lists of active images of u = unit(z) by a rule: "nonzero", or "top:<share>".

    By "top" a dimension of a z with signs becomes two, +k and -k: where it is largest, and where it
    is smallest. An image does not count where the dimension has its least value (of a sparse z: 0).
    """
    N, K = u.shape
    values = values_of(u)
    if rule == "nonzero":
        if isinstance(u, Entries):
            return lists(u)
        images, dims = np.nonzero(np.abs(u) > ACTIVE)
        return lists(Entries(images, dims, u[images, dims], N, K))
    halves = bool((values < -ACTIVE).any())
    most = count_of(share_of(rule), N)
    # Images in random order: which of equal values are listed last then falls at random.
    order = np.random.default_rng(0).permutation(N)
    if isinstance(u, Entries):
        if halves:
            dims = np.where(values < 0, u.dims + K, u.dims)
            u = Entries(u.images, dims, np.abs(values), N, 2 * K)
        place = np.argsort(order)[u.images]
        u = u.take(np.argsort(place, kind="stable"))  # lists() keeps this among equals
        a = lists(u.take(u.values > 0))
        kept = a.ranks < most
        start = starts(a.n.clip(max=most))
        return Activations(a.images[kept], a.values[kept], start, N, halves)
    shuffled = torch.from_numpy(u[order])
    images = []
    values = []
    for sign in (1, -1) if halves else (1,):
        for some in pieces(K, N):
            for row in sign * shuffled[:, some].T.contiguous():
                place, strongest = strongest_of(row, most)
                images.append(order[place])
                values.append(strongest)
    start = starts([len(own) for own in images])
    return Activations(np.concatenate(images), np.concatenate(values), start, N, halves)


def strongest_of(row: Tensor, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The places where a dimension, a row (N,), is largest, the strongest first, and its values.

    most: how many; those where the row has its least value do not count
    """
    largest = row.topk(most)
    least = row.min()
    kept = largest.values > least
    values = largest.values[kept]
    # Strengths are above 0. A list that ends at 0 or below is counted from the least.
    if largest.values[-1] <= 0:
        values = values - least
    return largest.indices[kept].numpy(), values.numpy()


# ------------------------------------------------------------- Cons. of n images, for every n
def running_consistency(y: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Of the first 1, 2, ..., N images of an order the share of their commonest class, (N,).

    y: (N,), 0, 1, ...; order: (N,), a permutation of the images
    """
    N = len(y)
    labels = y[order].astype(np.min_scalar_type(y.max()))  # numpy sorts small integers faster
    by_class = np.argsort(labels, kind="stable")  # the places of class 0, then of class 1, ...
    sizes = np.bincount(labels)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)  # where the class begins in by_class
    so_far = np.empty(N, np.int64)
    so_far[by_class] = np.arange(N) - first + 1  # how many images up to here have this one's class
    most_frequent = np.maximum.accumulate(so_far)
    return most_frequent / np.arange(1, N + 1)


def exact_chance(sizes: np.ndarray, most: int) -> np.ndarray:
    """The expected Cons. of n = 1, ..., most images drawn at random: (most,).

    sizes: (C,), the images of each class

    How many of n images belong to each class follows the hypergeometric distribution: independent
    binomials, given that their sum is n. So P(no class has more than m) is a coefficient of the
    product of the classes' binomials cut off behind m, divided by that of the whole ones.
    """
    p = min(0.5, most / (2 * sizes.sum()))  # any p is right; this one keeps the numbers large
    different, times = np.unique(sizes, return_counts=True)
    whole = []  # P(i of a class's images), i = 0, ..., most, of each size
    for size in different.tolist():
        i = np.arange(most + 1)
        logs = log_choose(size, i) + i * math.log(p) + (size - i).clip(0) * math.log1p(-p)
        whole.append(np.exp(logs))
    total = product(whole, times, most)
    largest = np.zeros(most + 1)  # the expected count of the commonest class: sum of P(> m)
    for m in range(most):
        cut = [np.where(np.arange(most + 1) <= m, one, 0) for one in whole]
        largest += 1 - product(cut, times, most) / total
    return largest[1:] / np.arange(1, most + 1)


def product(polynomials: list[np.ndarray], times: np.ndarray, degree: int) -> np.ndarray:
    """The product of polynomials, each as often as `times` says, up to a degree: coefficients."""
    result = np.zeros(degree + 1)
    result[0] = 1
    for power, left in zip(polynomials, times.tolist()):
        while left:
            if left % 2:
                result = np.convolve(result, power)[: degree + 1]
            power = np.convolve(power, power)[: degree + 1]
            left //= 2
    return result


def log_choose(total, chosen: np.ndarray) -> np.ndarray:
    """log of the number of ways to choose; -inf where there is none. total: a number or an array"""
    total = np.asarray(total)
    inside = (chosen >= 0) & (chosen <= total)
    chosen = np.where(inside, chosen, 0)
    table = log_factorials(int(total.max()))
    ways = table[total] - table[chosen] - table[total - chosen]
    return np.where(inside, ways, -np.inf)


@functools.lru_cache(maxsize=4)
def log_factorials(most: int) -> np.ndarray:
    """log 0!, log 1!, ..., log most!"""
    return np.concatenate([[0], np.cumsum(np.log(np.arange(1, most + 1)))])


@functools.lru_cache(maxsize=8)
def chance_curve(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Cons. of 1, 2, ..., N images in random order: its mean, and what 5 % exceed, (N,) each.

    sizes: how many images each class has, sorted, which is all that chance hangs on
    """
    y = np.repeat(np.arange(len(sizes)), sizes)
    random = np.random.default_rng(0)
    total = np.zeros(len(y))
    some = []
    for i in progress(range(ORDERS), "chance, random orders"):
        curve = running_consistency(y, random.permutation(len(y)))
        total += curve
        if i < 200:
            some.append(curve.astype(np.float32))
    mean = total / ORDERS
    exact = min(EXACT, len(y))
    mean[:exact] = exact_chance(np.array(sizes), exact)
    return mean, np.quantile(some, USUAL, axis=0)


class Vectors:
    """Features or an embedding (N, d), centred, then of norm 1, to be projected on directions."""

    def __init__(self, vectors: np.ndarray | Entries):
        self.N, self.d = vectors.shape
        self.sparse = isinstance(vectors, Entries)
        if not self.sparse:
            x = torch.from_numpy(np.array(vectors, np.float32, order="C"))
            self.rows = F.normalize(x - x.mean(0, dtype=torch.float64).float())
            return
        # Centred rows r - c would not be sparse: their products and norms follow from r's and c's.
        vectors = vectors.take(np.argsort(vectors.images, kind="stable"))
        values = vectors.values.astype(np.float32)
        self.rows = sparse_matrix(vectors.images, vectors.dims, values, vectors.shape)
        centre = np.bincount(vectors.dims, vectors.values, self.d) / self.N
        self.centre = torch.from_numpy(centre.astype(np.float32))
        squares = torch.from_numpy(np.bincount(vectors.images, np.square(values), self.N))
        squares = squares - 2 * (self.rows @ self.centre) + self.centre @ self.centre
        self.norms = squares.clamp(min=1e-24).sqrt().float()

    def along(self, basis: Tensor) -> Tensor:
        """Their projections on directions (d, D): (N, D)."""
        if not self.sparse:
            return self.rows @ basis
        return (self.rows @ basis - self.centre @ basis) / self.norms[:, None]

    def random_basis(self, directions: int, seed: int) -> Tensor:
        """Random unit directions, (d, directions)."""
        draw = torch.Generator().manual_seed(seed)
        basis = torch.randn(self.d, directions, generator=draw)
        return F.normalize(basis, dim=0)


def sparse_matrix(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape) -> Tensor:
    """A sparse tensor of entries (nnz,), no two in one place, in the order of their rows."""
    cells = torch.from_numpy(np.stack([rows, columns]))
    values = torch.from_numpy(values)
    return torch.sparse_coo_tensor(cells, values, shape, check_invariants=False, is_coalesced=True)


def head_curves(vectors: Vectors, ys: list[np.ndarray]) -> list[np.ndarray]:
    """Cons. of the n images where a random direction is largest, n = 1, ..., N, for each label.

    ys: labels (N,) each; of each label comes (directions, N) float32
    """
    directions = max(200, min(DIRECTIONS, 10_000_000 // vectors.N))
    basis = vectors.random_basis(directions, seed=0)
    curves = [np.empty((directions, vectors.N), np.float32) for _ in ys]
    for some in progress(pieces(directions, vectors.N), "random directions"):
        along = vectors.along(basis[:, some]).T.contiguous()  # (width, N)
        orders = along.argsort(descending=True).numpy()
        for j, order in enumerate(orders, some.start):
            for of_label, y in zip(curves, ys):
                of_label[j] = running_consistency(y, order)
    return curves


@dataclasses.dataclass
class Label:
    """A label of the images, as every measure needs it."""

    classes: np.ndarray  # (C,), the classes themselves: numbers or words
    y: np.ndarray  # (N,), numbered 0, 1, ..., C - 1
    chance: np.ndarray  # (N,), the mean Cons. of 1, 2, ..., N random images
    high: np.ndarray  # (N,), what 5 % of random images exceed
    heads: np.ndarray | None = None  # (directions, N), of random directions

    @property
    def sizes(self):
        """The images of each class, (C,)."""
        return np.bincount(self.y)


def prepared(labels: dict[str, np.ndarray], vectors: Vectors | None = None) -> dict[str, Label]:
    """Labels (N,) by their prefix, with their curves; without vectors there are no heads."""
    result = {}
    for prefix, own in labels.items():
        classes, y = np.unique(own, return_inverse=True)
        sizes = tuple(sorted(np.bincount(y).tolist()))
        result[prefix] = Label(classes, y, *chance_curve(sizes))
    if vectors is not None:
        curves = head_curves(vectors, [label.y for label in result.values()])
        for label, heads in zip(result.values(), curves):
            label.heads = heads
    return result


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
    active = surprise(counts / N)  # (C, K)
    inactive = surprise((sizes[:, None] - counts) / N)
    joint_entropy = (active + inactive).sum(0)
    return separate_entropy(counts.sum(0), sizes) - joint_entropy


def separate_entropy(n: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Entropy of "active" on n (K,) images plus that of the label, in nats, (K,)."""
    N = sizes.sum()
    return surprise(n / N) + surprise(1 - n / N) + surprise(sizes / N).sum()


def expected_information(n: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The mean of `information`, in nats, over all orders of the labels. n: active images, (K,).

    How many of a class's images are among n then follows the hypergeometric distribution (Vinh,
    Epps, Bailey 2010, who ask it of two clusterings).
    """
    N = sizes.sum()
    different, inverse = np.unique(n, return_inverse=True)
    different = different[::-1]  # the widest rows of a table first, so that a piece is cut by them
    joint_entropy = np.zeros(len(different))
    sizes_once, times = np.unique(sizes, return_counts=True)
    for size, classes in progress(zip(sizes_once.tolist(), times), "bits, sizes of classes"):
        first = 0
        while first < len(different):
            i = np.arange(min(size, different[first]) + 1)  # active images of a class of this size
            some = slice(first, first + max(1, CELLS // len(i)))
            active = different[some, None]
            logs = log_choose(size, i) + log_choose(N - size, active - i) - log_choose(N, active)
            terms = surprise(i / N) + surprise((size - i) / N)
            joint_entropy[some] += classes * (np.exp(logs) @ terms)
            first = some.stop
    return (separate_entropy(different, sizes) - joint_entropy)[::-1][inverse]


def f1_scores(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """F1 of "active" as a test for each class, (C, K): 2 hits / (active + class's images).

    nan where a dimension is active on no image and the class has none.
    """
    return 2 * counts / (counts.sum(0) + sizes[:, None])


def matthews(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """phi of "active" and each class, (C, K): the correlation of two yes-or-no variables.

    0 of a dimension that is active on all images, as in scikit-learn; nan of a dead one.
    """
    N = sizes.sum()
    n = counts.sum(0).astype(np.float64)  # products of four are too large for int64
    size = sizes[:, None]
    covariance = N * counts - n * size
    variances = n * (N - n) * size * (N - size)
    return np.where(n == N, 0, covariance / np.sqrt(variances))


def average_precision(a: Activations, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Average precision of dimension k as a search for class wanted[k], the strongest first, (K,).

    sum over ranks r of precision(r) * (recall(r) - recall(r - 1)). Images of equal strength count
    at once, as in scikit-learn; so do, at the end, those that the dimension is not active on. nan
    where the wanted class has no image.
    """
    class_sizes = np.bincount(y, minlength=wanted.max() + 1)
    sizes = class_sizes[wanted]  # (K,)
    dims = a.dims
    strengths = a.strengths
    hit = y[a.images] == wanted[dims]  # (nnz,)
    hits = np.concatenate([[0], np.cumsum(hit)])  # among the first 0, 1, ..., nnz entries
    before = hits[a.start[:-1]]  # hits in the lists of the dimensions before, (K,)
    listed = hits[a.start[1:]] - before  # hits in the dimension's list
    seen = hits[1:] - before[dims]  # hits in the dimension's list up to each entry

    # A tie is a group of equal entries of one list; each of its hits counts at the tie's end.
    other_strength = strengths[1:] != strengths[:-1]
    other_list = dims[1:] != dims[:-1]
    last_of_tie = np.ones(len(dims), bool)
    last_of_tie[:-1] = other_strength | other_list
    ends = np.flatnonzero(last_of_tie)
    end = ends[np.searchsorted(ends, np.arange(len(dims)))]  # of each entry's tie
    precision = seen[end] / (a.ranks[end] + 1)
    found = np.bincount(dims, hit * precision, a.K)

    missed = sizes - listed
    at_the_end = sizes / a.N  # precision where all images are found, these among them
    with np.errstate(invalid="ignore"):
        return (found + missed * at_the_end) / sizes


def of_label(a: Activations, label: Label) -> dict[str, np.ndarray]:
    """What each dimension says about a label: columns (K,).

    class      the most frequent class of its images, its place in label.classes; -1: none
    cons       its share of them
    chance     the same of as many random images
    adjusted   (cons - chance) / (1 - chance)
    head       Cons. of as many images where a random direction is largest, the mean of directions
    lead       (cons - head) / (1 - chance): adjusted, less that of the mean direction
    better     the share of directions that are less consistent on as many images
    entropy    of its strengths summed over each class, in nats
    bits       mutual information of being active and the label, less that of shuffled labels
    best       the class that it tells best, by F1, as in `class`
    f1, ap     how well it tells this class: F1, average precision
    phi        the largest correlation of being active with a class

    head, lead and better only where the label has `heads`.
    """
    sizes = label.sizes
    C = len(sizes)
    rows = []
    for _, part in a.parts(C):
        counts = class_counts(part, label.y, C)
        mass = class_counts(part, label.y, C, part.strengths)
        with np.errstate(divide="ignore", invalid="ignore"):
            f1 = f1_scores(counts, sizes)
            phi = matthews(counts, sizes).max(0)
            cons, entropy = consistency(counts), semantic_entropy(mass)
        told = information(counts, sizes)
        rows.append([counts.argmax(0), cons, entropy, told, f1.argmax(0), f1.max(0), phi])
    largest, cons, entropy, told, best, f1, phi = (np.concatenate(row) for row in zip(*rows))

    n = a.n
    place = n.clip(1) - 1  # in a curve
    room = (1 - label.chance[place]).clip(1e-9)
    columns = {"class": largest, "cons": cons, "chance": label.chance[place]}
    columns["adjusted"] = (cons - columns["chance"]) / room
    if label.heads is not None:
        columns["head"], columns["better"] = beside_heads(cons, label.heads, place)
        columns["lead"] = (cons - columns["head"]) / room
    columns["entropy"] = entropy
    columns["bits"] = (told - expected_information(n, sizes)) / math.log(2)
    columns |= {"best": best, "f1": f1, "phi": phi}
    columns["ap"] = average_precision(a, label.y, best)
    for name, column in columns.items():
        if name in ("class", "best"):
            columns[name] = np.where(n > 0, column, -1)
        elif name != "bits":
            columns[name] = np.where(n > 0, column, np.nan)
    return columns


def beside_heads(cons: np.ndarray, heads: np.ndarray, place: np.ndarray):
    """Of dimensions with cons (K,) at these places of the curves heads: their mean, and the share
    of them that are less consistent, (K,) each."""
    mean = heads.mean(0, dtype=np.float64)[place]
    better = np.empty(len(cons))
    for some in pieces(len(cons), len(heads)):
        less = heads[:, place[some]] < cons[some].astype(np.float32)  # rounded as the curves are
        better[some] = less.mean(0)
    return mean, better


# ----------------------------------------------------------- what all dimensions say of a class
def random_half(N: int) -> np.ndarray:
    """Which half of the images each belongs to, (N,), True or False, at random."""
    return np.random.default_rng(0).permutation(N) % 2 == 1


def best_dimensions(a: Activations, y: np.ndarray) -> np.ndarray:
    """How well a single dimension tells each class: F1, (C,).

    The dimension is chosen on one half of the images and judged on the other; the mean of both
    ways. So it gains nothing by chance to have many dimensions to choose from. With less than some
    ten images a class is judged by few; nan where a half has none of it.
    """
    C = y.max() + 1
    half = random_half(a.N)
    sizes = np.bincount(y, minlength=C)
    of_half = np.bincount(y[half], minlength=C)
    highest = np.full((2, C), -1.0)  # [i]: the largest F1 on half i, which chooses
    judged = np.zeros((2, C))  # [i]: the F1 of that dimension on the other half
    for _, part in a.parts(C):
        counts = class_counts(part, y, C)
        in_half = class_counts(part, y, C, half[part.images])
        with np.errstate(divide="ignore", invalid="ignore"):
            f1 = [f1_scores(in_half, of_half), f1_scores(counts - in_half, sizes - of_half)]
        f1 = np.nan_to_num(f1)  # (2, C, width)
        for chooses, judges in (0, 1), (1, 0):
            best = f1[chooses].argmax(1)[:, None]  # (C, 1)
            here = np.take_along_axis(f1[chooses], best, 1)[:, 0]
            there = np.take_along_axis(f1[judges], best, 1)[:, 0]
            better = here > highest[chooses]
            highest[chooses] = np.where(better, here, highest[chooses])
            judged[chooses] = np.where(better, there, judged[chooses])
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
    sizes = np.bincount(y[among], minlength=C)[:, None]
    others = len(among) - sizes
    if isinstance(z, Activations):
        counted = np.isin(np.arange(len(y)), among)
        sums_of = (
            (some, class_counts(part, y, C, part.values * counted[part.images]))
            for some, part in z.parts(C)
        )
    else:
        one_hot = np.eye(C, dtype=np.float32)[y[among]]  # (n, C)
        sums_of = ((some, one_hot.T @ z[among, some]) for some in pieces(z.shape[1], C))
    best = np.empty((C, 0))  # the largest differences so far
    dims = np.empty((C, 0), np.int64)  # and whose they are
    for some, sums in sums_of:  # (C, width)
        of_class = sums / sizes.clip(1)
        of_rest = (sums.sum(0) - sums) / others.clip(1)
        own = np.arange(some.start, some.stop)  # the numbers of these dimensions
        best = np.concatenate([best, np.abs(of_class - of_rest)], axis=1)
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
    some = z.only(dims)
    block = np.zeros((len(images) + 1, len(dims)), np.float32)
    block[row[some.images], some.dims] = some.values
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
def scaled(a: Activations) -> np.ndarray:
    """Strengths (nnz,) such that each dimension's go from 0, of all N images, to 1."""
    strengths = a.strengths.astype(np.float64)
    least = np.zeros(a.K)  # an image that a dimension is not active on has 0
    largest = np.ones(a.K)
    live = a.n > 0
    everywhere = a.n == a.N
    least[everywhere] = strengths[a.start[1:][everywhere] - 1]
    largest[live] = strengths[a.start[:-1][live]]
    span = largest - least
    with np.errstate(divide="ignore", invalid="ignore"):  # of one strength: no scale
        return (strengths - least[a.dims]) / span[a.dims]


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
    return F.normalize(torch.from_numpy(np.array(h, np.float64, order="C")))


def mono_score(a: Activations, h: Tensor) -> np.ndarray:
    """MonoScore, (K,): how alike the images are that a dimension is active on.

    The mean cosine of pairs of images in features h (unit_judge), weighted by the product of their
    strengths, each dimension's scaled to [0, 1]; less that of all pairs. The authors (arXiv
    2504.02821) scale activations with their signs and subtract nothing: mono_score_of_authors.
    """
    values = scaled(a)
    weights = sparse_matrix(a.dims, a.images, values, a.shape[::-1])
    squares = sparse_matrix(a.dims, a.images, np.square(values), a.shape[::-1])
    return mean_cosine(weights, squares, h) - all_pairs(h)


def mono_score_of_authors(z: np.ndarray, h: Tensor) -> np.ndarray:
    """MonoScore as its authors' code has it, (K,), of a dense z (N, K).

    The raw activations with their signs, each dimension's scaled to [0, 1]; nothing is subtracted.
    """
    scores = []
    for some in pieces(z.shape[1], len(z)):
        columns = torch.from_numpy(np.array(z[:, some], np.float64))
        least, largest = columns.aminmax(dim=0)
        weights = ((columns - least) / (largest - least)).T  # (k, N), nan of a constant dimension
        scores.append(mean_cosine(weights, weights.square(), h))
    return np.concatenate(scores)


def overlaps(a: Activations) -> tuple[np.ndarray, float]:
    """How much dimensions overlap: |cosines| of their vectors of N activations ([NCL], Fig. 3c).

    The largest with another dimension, (K,), and the mean of all pairs of live ones, Corr. (The
    paper's figure shows 20 random features of them.)
    """
    N, K = a.shape
    norms = np.sqrt(np.bincount(a.dims, np.square(a.values, dtype=np.float64), K)).clip(1e-12)
    unit = dataclasses.replace(a, values=(a.values / norms[a.dims]).astype(np.float32))
    dense = N * K <= MATRIX
    cost = K
    if dense:
        every = torch.zeros(N, K)
        every[unit.images, unit.dims] = torch.from_numpy(unit.values)
    else:
        every = by_image(unit)
        products = np.bincount(a.dims, every.n[a.images], K)  # of one dimension with all
        cost = K + products
    largest = np.zeros(K)
    total = 0.0
    for some, part in progress(unit.parts(cost), "duplicates"):
        if dense:
            cosines = (every[:, some].T @ every).numpy()  # (width, K)
        else:
            cosines = products_with_all(part, every)
        cosines = np.abs(cosines)
        rows = np.arange(part.K)
        cosines[rows, some.start + rows] = 0  # with itself
        largest[some] = cosines.max(1)
        total += cosines.sum(dtype=np.float64)
    live = np.count_nonzero(a.n)
    pairs = live * (live - 1)
    return np.where(a.n > 0, largest, np.nan), total / pairs if pairs else math.nan


def by_image(a: Activations) -> Activations:
    """The same entries, a list for each image of the dimensions that are active on it."""
    order = np.argsort(a.images, kind="stable")
    n = np.bincount(a.images, minlength=a.N)
    return Activations(a.dims[order], a.values[order], starts(n), a.K)


def products_with_all(part: Activations, every: Activations) -> np.ndarray:
    """Scalar products (width, K) of a few dimensions with all. every: the lists by image.

    Two dimensions meet where an image activates both. So each entry of a dimension is multiplied
    with all entries of its image.
    """
    meets = every.n[part.images]  # products that each entry takes part in
    entry = np.repeat(np.arange(len(meets)), meets)  # of each product: the entry
    step = np.arange(len(entry)) - starts(meets)[entry]  # 0, 1, ... of this entry
    other = every.start[part.images[entry]] + step  # of each product: what the entry meets
    cells = part.dims[entry] * every.N + every.images[other]
    products = part.values[entry] * every.values[other]
    return np.bincount(cells, products, part.K * every.N).reshape(part.K, every.N)


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
    labels: dict[str, Label]
    columns: dict[str, np.ndarray]  # of each dimension, (K,), or (2K,) of half-dimensions
    numbers: dict[str, float | None]  # None: undefined
    controls: dict[str, dict[str, float | None]]  # "shuffled", "head", "rotated": the same numbers
    controlled: int = 0  # for how many dimensions there are random directions


def interpret(e: Embedding, rule: str = "auto", controls: bool = True) -> Findings:
    """Measure an embedding, beside random directions, and its controls. Raises BadInput.

    columns, beside of_label's: n, images it is active on; act, their share of all; mean, the sum of
    strengths on them, divided by the number of all (of a dense dimension whose list reaches 0,
    counted from its least value); mono, mono_score; duplicate, the largest |cosine| with another
    dimension.
    """
    own_labels = check(e)
    u = unit(e.z)
    if rule == "auto":
        rule = rule_for(u)
    a = activate(u, rule)
    vectors = None
    if controls:
        vectors = Vectors(source_of_directions(e)[0])
    labels = prepared(own_labels, vectors)
    judge = None
    if e.judge is not None:
        judge = unit_judge(e.judge)
    read = a  # what the probes read: all of z
    if rule != "nonzero":
        read = lists(u) if isinstance(u, Entries) else u
    columns, numbers = measure(a, read, labels, judge)
    columns["duplicate"], numbers["corr"] = overlaps(a)
    numbers["duplicate_dims"] = int((columns["duplicate"] > DUPLICATE).sum())
    numbers["constant_dims"] = int((is_constant(e.z) & (largest_sizes(e.z) > 0)).sum())
    if judge is not None and not isinstance(e.z, Entries):
        numbers["mono_authors"] = mean(mono_score_of_authors(e.z, judge))
    findings = Findings(a, rule, labels, columns, numbers, {})
    if controls:
        add_controls(findings, e, vectors, read, judge)
    return findings


def measure(a: Activations, read, labels: dict[str, Label], judge: Tensor | None):
    """Columns (K,) and numbers of the dimensions of an embedding, or of a control.

    read: what the probes read, (N, K) or Activations; None: there are no probes
    """
    columns = {"n": a.n, "act": a.n / a.N, "mean": np.bincount(a.dims, a.strengths, a.K) / a.N}
    numbers = activity(a)
    if judge is not None:
        columns["mono"] = mono_score(a, judge)
        numbers["mono"] = mean(columns["mono"])
    for prefix, label in labels.items():
        found = of_label(a, label)
        of_this = label_numbers(a, label, found)
        if read is not None:
            for k, accuracy in sparse_probes(read, label.y).items():
                of_this[f"probe_{k}"] = accuracy
        numbers |= {prefix + name: value for name, value in of_this.items()}
        columns |= {prefix + name: column for name, column in found.items()}
    return columns, numbers


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


def label_numbers(a: Activations, label: Label, columns: dict) -> dict[str, float | None]:
    """Means of of_label's columns over live dimensions; those in % times 100.

    adjusted, lead: of dimensions active on 0.1 % of the images or more; cons_<share>: on so many.
    above: how many live dimensions are more consistent than 95 % of random directions.
    best_f1: mean of best_dimensions over classes; half_f1: of how many classes it reaches 1/2.
    """
    numbers = {}
    for name in "cons", "f1", "phi", "ap":
        numbers[name] = mean(100 * columns[name])
    for share in SHARES:
        numbers[f"cons_{share}"] = mean(100 * columns["cons"][is_active_on(a, share)])
    often = is_active_on(a, SHARES[0])
    numbers["adjusted"] = mean(100 * columns["adjusted"][often])
    if "lead" in columns:
        numbers["lead"] = mean(100 * columns["lead"][often])
        numbers["above"] = int((columns["better"] >= USUAL).sum())
    numbers["entropy"] = mean(columns["entropy"])
    numbers["bits"] = mean(columns["bits"])  # of all: a dead dimension tells 0
    of_class = best_dimensions(a, label.y)
    numbers["best_f1"] = mean(100 * of_class)
    numbers["half_f1"] = int((of_class >= 0.5).sum())
    return numbers


def source_of_directions(e: Embedding) -> tuple[np.ndarray | Entries, str]:
    """What a random head has random directions of, and its name."""
    if e.features is not None:
        return e.features, "h"
    return e.z, "z"


def add_controls(findings: Findings, e: Embedding, vectors: Vectors, read, judge) -> None:
    """Measure the three controls, the mean of DRAWS of each. vectors: of source_of_directions.

    Of more than LARGE live dimensions a sample is controlled, in one draw; what hangs on the number
    of candidates (best F1, probes, bits) is then not compared.
    """
    a = findings.activations
    labels = {}  # without heads: a control is not compared with itself
    for prefix, label in findings.labels.items():
        labels[prefix] = dataclasses.replace(label, heads=None)
    draws = DRAWS
    live = np.flatnonzero(a.n)
    findings.controlled = len(live)
    if len(live) > LARGE:
        draws = 1
        live = np.sort(np.random.default_rng(0).choice(live, SAMPLE, replace=False))
        findings.controlled = SAMPLE
        a = a.only(live)
        read = None

    if labels:
        shuffled = []
        for seed in progress(range(draws), "shuffled labels, draws"):
            order = np.random.default_rng(seed + 1).permutation(a.N)  # with 0 it is random_half's
            mixed = {}
            for prefix, label in labels.items():
                mixed[prefix] = dataclasses.replace(label, y=label.y[order])
            shuffled.append(measure(a, None, mixed, None)[1])
        findings.controls["shuffled"] = average(shuffled)
    sources = {"rotated": vectors}
    if e.features is not None:
        sources = {"head": vectors, "rotated": Vectors(e.z)}
    for name, source in sources.items():
        drawn = []
        for seed in progress(range(1, draws + 1), f"random directions, {name}, draws"):
            control, control_read = matched(source, a, read, seed)
            drawn.append(measure(control, control_read, labels, judge)[1])
        findings.controls[name] = average(drawn)
    if read is None:
        for found in findings.controls.values():
            for name in list(found):
                if name.endswith(("best_f1", "half_f1", "bits")):
                    found[name] = None


def matched(vectors: Vectors, a: Activations, read, seed: int):
    """A random direction for each dimension of a, active on as many images; what probes read.

    Strengths are the projections; of a sparse z counted from the smallest on the list, as a ReLU
    would. The probes read the directions just as they read z: as sparse as it is, or dense.
    """
    K = a.K
    if read is not None:
        K = max(K, read.shape[1])
    basis = vectors.random_basis(K, seed)
    control = along_directions(vectors, basis, a.n, read is a)
    control.halves = a.halves
    if read is None:
        return control, None
    if read is a:
        return control, control
    if isinstance(read, Activations):
        return control, along_directions(vectors, basis, read.n, True)
    return control, vectors.along(basis[:, : read.shape[1]]).numpy()


def along_directions(vectors: Vectors, basis: Tensor, n: np.ndarray, from_smallest) -> Activations:
    """Direction j of the basis, active on the n[j] images where it is largest."""
    images = []
    values = []
    for some in pieces(len(n), vectors.N):
        along = vectors.along(basis[:, some]).T.contiguous()  # (width, N)
        for row, most in zip(along, n[some].tolist()):
            largest = row.topk(most)
            strengths = largest.values
            if from_smallest and most:
                strengths = strengths - strengths[-1]
            images.append(largest.indices.numpy())
            values.append(strengths.numpy())
    return Activations(np.concatenate(images), np.concatenate(values), starts(n), vectors.N)


def average(draws: list[dict]) -> dict[str, float | None]:
    """The mean of each number over several draws."""
    return {name: mean([draw[name] for draw in draws]) for name in draws[0]}


# ------------------------------------------------------------------------------------- printing
COLUMNS = {  # heading of the table: key in Findings.numbers, digits behind the point
    "active": ("entries", 1),
    "live": ("live_dims", 0),
    "Cons.": ("cons", 1),
    "adj.": ("adjusted", 1),
    "AP": ("ap", 1),
    "best F1": ("best_f1", 1),
    "8-probe": ("probe_8", 1),
    "Mono": ("mono", 3),
}
OF_THE_WHOLE = "entries", "live_dims", "mono"  # the others are of a label
CONTROLS = {"shuffled": "shuffled", "head": "random head", "rotated": "rotated"}
LABELS = {"": "class", "background_": "background"}
LEGEND = """\
active: dimensions of an image; live: dimensions active on any. Cons.: of a dimension's images, the
share of their commonest class, %; adj.: above as many random images, of dimensions active on 0.1 %
of the images or more. AP: how well a dimension's strength finds its best class, %. All three are
means over live dimensions. best F1: of the best dimension for a class, judged on other images, mean
over classes. 8-probe: accuracy, %, with 8 dimensions for each class. Mono: how alike a dimension's
images are. shuffled: labels in random order; random head: as many random directions of the features
h, active on as many images; rotated: of z. (interpret.json and dimensions.csv hold more.)"""


def markdown(rows: list[list[str]]) -> str:
    """An aligned Markdown table; the first row is its head."""
    widths = [max(len(text) for text in column) for column in zip(*rows)]
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
    labels = {prefix: name for prefix, name in LABELS.items() if prefix + "cons" in numbers}
    heads = list(COLUMNS)
    if not labels:
        labels[""] = "no labels"
        heads = [head for head in COLUMNS if COLUMNS[head][0] in OF_THE_WHOLE]
    rows = [["dimensions", *heads]]
    for prefix, label in labels.items():
        measured = {label: numbers}
        for name, title in CONTROLS.items():
            if name in controls:
                measured[title] = controls[name]
        for title, found in measured.items():
            cells = [title]
            for head in heads:
                key, digits = COLUMNS[head]
                if key not in OF_THE_WHOLE:
                    key = prefix + key
                cells.append(format_number(found.get(key), digits))
            rows.append(cells)
    return markdown(rows)


def beside_directions(numbers: dict, source="h") -> list[str]:
    """How the dimensions stand beside random directions, a line for each label."""
    lines = []
    for prefix, label in LABELS.items():
        if numbers.get(prefix + "lead") is None:
            continue
        live = numbers["live_dims"]
        lead = numbers[prefix + "lead"]
        above = numbers[prefix + "above"]
        by_chance = (1 - USUAL) * live
        text = (
            f"{label}: adj. is {lead:+.1f} beside random directions of {source} on as many images;"
        )
        text += (
            f" {above} of {live} live dimensions\n  are more consistent than {100 * USUAL:g} % of"
        )
        lines.append(f"{text} them ({by_chance:.0f} would be by chance)")
    return lines


def about_activity(a: Activations, rule: str) -> str:
    """What counts as active, in half a line."""
    if rule == "nonzero":
        share = 100 * len(a.images) / (a.N * a.K)
        return f"active: {share:.3g} % of the entries, |z_k| > {ACTIVE:g} in rows of norm 1"
    share = share_of(rule)
    dimension = "half-dimension" if a.halves else "dimension"
    text = (
        f"active: a {dimension} on the {100 * share:g} % of the images where z_k / |z| is largest"
    )
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
    dimensions = "half-dimensions" if a.halves else "dimensions"
    dead = f"{a.K - numbers['live_dims']:,} dead {dimensions}"
    if numbers["constant_dims"]:
        dead += f" ({numbers['constant_dims']:,} equal on all images)"
    lines.append(
        f"{dead}, {numbers['rare_dims']:,} active on less than 0.1 % of the images, "
        f"{numbers['duplicate_dims']:,} with a |cosine| > {DUPLICATE} to another"
    )
    _, source = source_of_directions(e)
    lines += beside_directions(numbers, source)
    if e.judge is None:
        lines.append("no MonoScore: it needs --features or --judge")
    else:
        lines.append(f"MonoScore by {e.judge_name or 'the features'}")
    if 0 < findings.controlled < numbers["live_dims"]:
        compared = f"{findings.controlled:,} of {numbers['live_dims']:,} live dimensions"
        lines.append(f"controls: of {compared}, one draw; best F1 and probes are not compared")
    return "\n".join(lines)


def class_name(label: Label, place: int, names: dict[int, str]) -> str:
    """What the class at this place among label.classes is called."""
    own = label.classes[place].item()
    if isinstance(own, str):
        return own
    return names.get(own, f"class {own}")


def tell_most(findings: Findings, names: dict[int, str], most=5) -> str:
    """The dimensions that tell a class best, one a line."""
    columns = findings.columns
    if "f1" not in columns:
        return ""
    order = np.argsort(-np.nan_to_num(columns["f1"]), kind="stable")[:most]
    lines = ["dimensions that tell a class best:"]
    for k in order[columns["n"][order] > 0]:
        name = class_name(findings.labels[""], columns["best"][k], names)
        line = f"  {findings.activations.name(k)}: {name}, F1 {100 * columns['f1'][k]:.0f} %"
        line += f", active on {columns['n'][k]:,} images"
        if "better" in columns:
            line += (
                f", more consistent than {100 * columns['better'][k]:.0f} % of random directions"
            )
        lines.append(line)
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
    texts = {}
    for key, column in findings.columns.items():
        texts[key] = [cell(value) for value in column]
    for prefix, label in findings.labels.items():
        for key in prefix + "class", prefix + "best":
            places = findings.columns[key]
            texts[key] = [str(label.classes[place]) if place >= 0 else "" for place in places]
    if names:
        best = findings.columns["best"]
        label = findings.labels[""]
        texts["name"] = [class_name(label, place, names) if place >= 0 else "" for place in best]
    with open(path, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["dimension", *texts])
        for k in np.argsort(-findings.columns["mean"], kind="stable"):
            writer.writerow([findings.activations.name(k), *(text[k] for text in texts.values())])


# ------------------------------------------------------------------------------------- checking
def check(e: Embedding) -> dict[str, np.ndarray]:
    """BadInput where an embedding cannot be measured; the labels (N,) by their prefix."""
    check_numbers(e.z, "z")
    need(e.N > 1 and e.K > 1, f"z is {e.N} x {e.K}; it needs two images and dimensions or more")
    labels = {}
    for prefix, y in e.labels.items():
        labels[prefix] = checked_label(y, e.N, prefix.removesuffix("_") or "y")
    for name, h in (e.judge_name or "the judge", e.judge), ("h", e.features):
        if h is None:
            continue
        dense = not isinstance(h, Entries)
        need(dense, f"{name} is sparse; features must be dense: save h.toarray()")
        check_numbers(h, name)
        need(len(h) == e.N, f"z has {e.N} rows, {name} has {len(h)}")
    if e.images is not None:
        images = np.shape(e.images)
        need(images[:1] == (e.N,), f"z has {e.N} rows, images has shape {images}")
    return labels


def check_numbers(z: np.ndarray | Entries, what: str) -> None:
    """BadInput unless z is a matrix of finite numbers."""
    values = values_of(z)
    need(values.dtype.kind in "fiub", f"{what} is {values.dtype}; it must be numbers")
    need(len(z.shape) == 2, f"{what} has shape {z.shape}; it must be (N, K)")
    for some in pieces(len(values), z.shape[1]):
        part = np.asarray(values[some], np.float32)
        finite = np.isfinite(part).all()
        need(finite, f"{what} is not finite, near row or entry {some.start}: nan, inf or too large")


def values_of(z: np.ndarray | Entries) -> np.ndarray:
    """The numbers that z (N, K) holds: an array as it is, of Entries (nnz,)."""
    if isinstance(z, Entries):
        return z.values
    return z


def largest_sizes(z: np.ndarray | Entries) -> np.ndarray:
    """The largest |z_k| of each dimension, (K,)."""
    if not isinstance(z, Entries):
        return np.maximum(np.max(z, axis=0), -np.min(z, axis=0).astype(np.float64))
    largest = np.zeros(z.K)
    np.maximum.at(largest, z.dims, np.abs(z.values))
    return largest


def checked_label(y, N: int, what: str) -> np.ndarray:
    """Labels y, (N,) or (N, 1), as (N,): integers of any size or words. Raises BadInput."""
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8")
    remedy = "labels are words, or integers, the number of a class for each image"
    if y.dtype.kind in "fb" and (y == y.round()).all():
        remedy += f": save {what}.astype(int)"
    need(y.dtype.kind in "iuU", f"{what} is {y.dtype}; {remedy}")
    need(y.shape == (N,), f"z has {N} rows, {what} has shape {y.shape}")
    if y.dtype.kind == "i":
        remedy = "number the classes from 0, and leave out images that have none"
        need(y.min() >= 0, f"{what} has {y.min()}: {remedy}")
    several = (y != y[0]).any()
    need(several, f"{what} has one class, {y[0]}; a dimension needs two to tell apart")
    return y


# ------------------------------------------------------------------------------------- reading
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
        missing = f"{path} has no embeddings.npz: no run, or one that has not finished"
        need(source.exists(), missing)
    arrays = read_arrays(source)
    z = the_array(arrays, "z", 2, source, "the embedding z")
    e = Embedding(z, title=path.resolve().name, images=arrays.get("images"))
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
        e.judge_name = "h, the embedding's own features"
    try:
        check(e)
        for what, h in (e.judge_name, e.judge), ("h", e.features):
            if h is not None:
                need((h != h[0]).any(), f"{what}: the features of all images are equal")
        largest = largest_sizes(e.z).max()
        need(largest > 0, "z is 0 everywhere, so no dimension is active on any image")
        need(1e-8 < largest < 1e15, f"the largest |z| is {largest:.3g}; rescale z to about 1")
        need(not is_constant(e.z).all(), "z is equal on all images, so its dimensions tell nothing")
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None
    return e


def the_array(arrays: dict, key: str, axes: int, path: Path, what: str):
    """The array of this key, else the only one with so many axes; BadInput if several or none."""
    if key in arrays:
        return arrays[key]
    fitting = [a for a in arrays.values() if len(a.shape) == axes]
    if axes == 1:
        columns = [a for a in arrays.values() if len(a.shape) == 2 and a.shape[1] == 1]
        fitting += [a[:, 0] for a in columns if isinstance(a, np.ndarray)]
    shapes = ", ".join(f"{name or 'array'} {a.shape}" for name, a in arrays.items())
    need(len(fitting) == 1, f"{path}: which array is {what}? There are: {shapes or 'none'}")
    return fitting[0]


def read_names(path: Path | None, e: Embedding) -> dict[int, str]:
    """Class number -> name, of a file with the name of class 0, 1, ... on each line. BadInput."""
    if path is None:
        return {}
    names = lines_of(path)
    need("" in e.labels, f"--classes {path} names classes, but there are no labels y")
    y = np.asarray(e.labels[""])
    need(y.dtype.kind in "iu", f"--classes {path} names numbers, but the labels are words already")
    need(len(names) > y.max(), f"{path} names {len(names)} classes; there is a class {y.max()}")
    return dict(enumerate(names))


def lines_of(path: Path) -> list[str]:
    """The lines of a text file in UTF-8, cut where a line ends and nowhere else. BadInput."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BadInput(f"{path} cannot be read ({reason})") from None
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


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
    others = {key: array for key, array in arrays.items() if key not in of_layout}
    return {"z": entries_of_scipy(arrays)} | others


def entries_of_scipy(arrays: dict[str, np.ndarray]) -> Entries:
    """What scipy.sparse.save_npz wrote of a CSR, CSC or COO matrix."""
    kind = arrays["format"].item()
    if isinstance(kind, bytes):
        kind = kind.decode()
    need(kind in ("csr", "csc", "coo"), f"its sparse format is {kind}; it must be csr, csc or coo")
    N, K = (int(side) for side in arrays["shape"])
    values = arrays["data"]
    if kind == "coo":
        images, dims = arrays["row"].astype(np.int64), arrays["col"].astype(np.int64)
    else:
        rows = N if kind == "csr" else K
        start = arrays["indptr"].astype(np.int64)
        whole = len(start) == rows + 1 and start[0] == 0 and start[-1] == len(values)
        need(whole and (np.diff(start) >= 0).all(), "its indptr does not fit its shape and data")
        outer = np.repeat(np.arange(rows), np.diff(start))
        inner = arrays["indices"].astype(np.int64)
        images, dims = (outer, inner) if kind == "csr" else (inner, outer)
    need(len(images) == len(dims) == len(values), "its indices and data differ in length")
    if len(values):
        inside = images.min() >= 0 and images.max() < N and dims.min() >= 0 and dims.max() < K
        need(inside, f"its indices leave the shape ({N}, {K})")
    cells = np.sort(images * K + dims)
    need((np.diff(cells) > 0).all(), "an entry occurs twice; call sum_duplicates() before saving")
    return Entries(images, dims, values, N, K)


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
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        if tensor.layout == torch.strided:
            arrays[key] = tensor.numpy()
            continue
        tensor = tensor.to_sparse_coo().coalesce()
        images, dims = tensor.indices().numpy()
        arrays[key] = Entries(images, dims, tensor.values().float().numpy(), *tensor.shape)
    return arrays


def read_parquet(path: Path) -> dict[str, np.ndarray]:
    """The columns of a .parquet file that have a number, or as many numbers, in each row."""
    import pyarrow.parquet

    arrays = {}
    columns = pyarrow.parquet.read_table(path)
    for key in columns.column_names:
        array = array_of_column(columns[key])
        if array is not None:
            arrays[key] = array
        else:  # what else a file may hold: pictures, captions of some images
            wanted = f"column {key} has empty rows, rows of several lengths or no numbers"
            need(key not in ("z", "y", "background", "h"), wanted)
    return arrays


def array_of_column(column) -> np.ndarray | None:
    """A column of a parquet file as (N,) or (N, K); None where its rows are not alike."""
    from pyarrow import compute, types

    kind = column.type
    has_lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if has_lists:
        kind = kind.value_type
    is_number = types.is_integer(kind) or types.is_floating(kind)
    is_word = (types.is_string(kind) or types.is_large_string(kind)) and not has_lists
    if column.null_count or not (is_number or is_word):
        return None
    column = column.combine_chunks()
    if is_word:
        return np.array(column.to_pylist())
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


# ------------------------------------------------------------------------------------- the program
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
    add("--out", type=Path, help="folder (default: the run's, else <file>-interpret beside it)")
    return flags


def folder_for(path: Path, out: Path | None) -> Path:
    """Where the results of a run or file go: --out, the run's folder, or one beside the file."""
    if out:
        return out
    if path.is_dir():
        return path
    return path.with_name(f"{path.name}-interpret")  # no two files share it


def make_folder(out: Path) -> None:
    """Make a folder for results; BadInput where that cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{out} cannot be made ({error.strerror}): give --out") from None


def main(argv=None):
    args = parser().parse_args(argv)
    e = read_embedding(args.source, args.labels, args.features, args.judge)
    names = read_names(args.classes, e)
    out = folder_for(args.source, args.out)
    make_folder(out)
    print(f"measuring {e.K:,} dimensions on {e.N:,} images ...", flush=True)
    findings = interpret(e, args.active)
    printed = table(findings.numbers, findings.controls)
    words = f"{about(e, findings)}\n{tell_most(findings, names)}".rstrip()
    text = f"{printed}\n{LEGEND}\n\n{words}\n"
    record = {
        "source": str(args.source),
        "images": e.N,
        "dimensions": e.K,
        "active": findings.rule,
        "judge": e.judge_name or None,
        "directions_of": source_of_directions(e)[1],
        "controlled": findings.controlled,
        "numbers": findings.numbers,
    }
    record |= findings.controls
    (out / "interpret.json").write_text(json.dumps(record, indent=1) + "\n")
    (out / "interpret.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
    write_csv(out / "dimensions.csv", findings, names)
    print(text, end="")
    print(f"wrote {out}/interpret.json, interpret.txt and dimensions.csv")


if __name__ == "__main__":
    for stream in sys.stdout, sys.stderr:  # a terminal may lack a letter, a name may be no text
        stream.reconfigure(errors="backslashreplace")
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
