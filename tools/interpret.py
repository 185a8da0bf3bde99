# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.6", "torchvision>=0.21", "numpy>=2.0"]
# ///
"""What do the dimensions of an embedding stand for? Every number comes with what chance, random
directions and the neighbours of random images give.

    python tools/interpret.py runs/my-run   a finished run of any method here
    python tools/interpret.py embedding.npz       z (N, K); where you have them y (N,) and h (N, d)
    python tools/interpret.py latents.npz --labels y.npy --features h.npy --classes names.txt
    python tools/interpret.py runs/seed1 --beside runs/seed2    do its dimensions come back there?

A dimension is judged by the list of images that it is active on, the strongest first. All that is
said about labels is counted over these lists, so the cost grows with the number of active entries,
not with N times K.

Active. Each row of z is first scaled to norm 1. In a sparse embedding a dimension is active on an
image where |z_k| > 1e-5 ([NCL]). An embedding is dense if more than half of its entries are active
(a file of a sparse matrix never is, nor one of 0 and one other value). Then a dimension counts as
active on the 1 % of the images where z_k is largest, of equal ones on some at random; where z has
negative entries, each dimension becomes two: +k is active where z_k is largest, -k where it is
smallest. To choose the rule yourself, give --active nonzero or --active top:0.03. The strength of
an active entry is |z_k|.
    A dimension with the same value on all images is dead, because after the scaling it would vary
with the length of z and say nothing of its own. "The same" means within 1e-5 of the largest value,
or within one step of float16 for an array of that kind. Images with z = 0 are ignored here.

Cons. of a dimension is the share of the commonest class among the images that it is active on. It
is high by chance if the dimension is active on few images. So it is compared with chance, Cons. of
as many random images on average: adj. is (Cons. - chance) / (1 - chance).

It may also be high without any training of z, because the images that lie together in some space
are alike. What a dimension must beat are orders of the images that anybody has for nothing:
    directions   the images in the order of a random direction: those first where it is largest
    images       the neighbours of a random image, the nearest first, without the image itself
each of the features h, which z is made of, and of z itself. (Rows are centred, then of norm 1.)
Each of these four families has 200 to 1,000 orders, of fewer images no more than there are; Cons.
of the first n images of an order is a curve over n. A dimension is compared with the curves at its
own number of images, so a rare one is compared with equally rare ones. Its lead over a family is
its adj. minus the family's mean.
    If it leads directions of h, training z has found something. If it leads directions of z, its
axis is better than others of the same z. If it leads images in h or in z, it says more than a
list of one image's neighbours does.

Controls are rows under the table: as many orders as there are dimensions, each on as many images.
Their Cons. and adj. are those of the curves; numbers that do not depend on n alone are the mean of
five draws. In the row "shuffled" the labels are in random order.

To compare two embeddings, give both --active top:0.01: leads depend on n.

--beside names another embedding of the same images, such as that of another seed. A dimension's
partner there is the one whose strengths correlate most with its own over all images, where a
strength is 0 on what is not active. Two dimensions are mutual partners if each is the other's.
Controls stand in the place of both embeddings, each on as many images as the dimension that it
stands for, the mean of five draws: "rotated", the axes of each z after a rotation of its own;
random images, the same in both, as directions; where both have h, random directions of h.
Dimensions come back better than what costs nothing if they beat all of these, also in how many have
mutual partners: several may have one partner (studies/seeds matches one to one). Rotated axes alone
say nothing of a z that is cut at 0, such as NCL's: any axes that are cut may beat them.

Distinct. Several dimensions may be active on the same images. Dimensions are counted as one where
the Jaccard index of their lists, images of both over images of either, is 0.9 or more: going from
the longest list to the shortest, a dimension joins the first group whose first member it is so
alike, or begins one. interpret.json has the number of groups as distinct_dims.

Other numbers, each a mean over the live dimensions or over the classes:
    H_s           entropy of a dimension's strength over the classes, in nats ([BayesNCL])
    F1, AP        how well a dimension tells its best class from the others: F1 of being active,
                  average precision of its strength (if half of the images are of one class, that
                  is often the best one)
    classes       how many classes are the commonest one of some dimension (not a mean)
    best F1       F1 of the best dimension for each class, chosen on one half of the images and
                  evaluated on the other
    Mono          MonoScore: how similar a dimension's images are to each other in other features,
                  those of --judge or h, minus how similar all images are

Files may be .npy, .npz, .pt, .safetensors, or scipy's sparse .npz. --out receives the printed
table as interpret.txt, interpret.json with all numbers, and dimensions.csv with a row for each
dimension, in which shares are from 0 to 1. Its own older files are replaced, and no others.
    dimension                 its number, from 0, with a sign if there are +k and -k
    n, act, mean              images that it is active on, their share, mean strength over all
    group                     the dimension that its group of alike lists begins with
    class, cons, entropy      the commonest class of its images, its share, H_s
    chance, adjusted          Cons. of as many random images, and adj.
    <family>_lead             adj. minus the mean of a family: directions_of_h, directions_of_z,
                              images_in_h, images_in_z
    <family>_better           the share of the family that is less consistent on as many images
    best, f1, ap              its best class, and how well it tells it; with --classes its name
    mono                      MonoScore
    partner                   its partner in the embedding of --beside
    partner_correlation       and their correlation
Columns of a second label begin with its name, as in background_cons.

[NCL] arXiv 2403.12459. [BayesNCL] arXiv 2605.28441. MonoScore: arXiv 2504.02821.
"""

import argparse
import contextlib
import csv
import functools
import json
import math
import os
import secrets
import sys
import tempfile
import textwrap
import time
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVE = 1e-5  # of a row of norm 1: what is larger counts as active ([NCL])
DENSE = 0.5  # an array with a larger share of active entries is dense
TOP = 0.01  # of the images: where each half of a dense embedding's dimension is active
RARE = 0.001  # of the images: a dimension active on fewer is rare
EXACT = 100  # images: chance of so many and fewer is exact
ORDERS = 2000  # random orders, whose mean is chance of more images; fewer where N > 25,000
FAMILY = 1000  # orders of a family whose Cons. is compared, 200 at least and fewer where N > 10,000
IN_CURVES = 10_000_000  # numbers in its curves, about
ALIKE = 0.7  # partners of a larger correlation are counted
SAME = 0.9  # Jaccard index of two lists of images: the dimensions count as one
USUAL = 0.95  # a dimension stands out that is more consistent than this share of a family
DRAWS = 5  # of each control
LARGE = 2048  # of more live dimensions a sample is controlled, once
SAMPLE = 1024  # dimensions in it
CELLS = 2**21  # numbers of a table, such as classes times dimensions, that are held at a time
PATIENCE = 3  # seconds after which something says how far it is
MARKS = {  # the files that it writes, and what the first 1,000 bytes of each contain
    "interpret.json": b'{\n "source": ',
    "interpret.txt": b"dimensions | ",
    "dimensions.csv": b"dimension,n,",
}


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


def pieces(total: int, cost: int) -> list[slice]:
    """0, 1, ..., total - 1, cut so that a piece holds about CELLS numbers: `cost` for each one."""
    width = max(1, CELLS // cost)
    return [slice(first, min(first + width, total)) for first in range(0, total, width)]


# ------------------------------------------------------------------- the lists of active images
@dataclass
class Entries:
    """The entries of a sparse matrix (N, K), in any order."""

    images: np.ndarray  # (nnz,) int64, the rows
    dims: np.ndarray  # (nnz,) int64, the columns
    values: np.ndarray  # (nnz,)
    N: int
    K: int

    def __post_init__(self):
        self.shape = self.N, self.K

    def take(self, places):
        """The entries at these places alone, in their order; or those where a mask is True."""
        return Entries(self.images[places], self.dims[places], self.values[places], *self.shape)


@dataclass
class Activations:
    """The images that each dimension is active on.

    Dimension k has images[start[k] : start[k + 1]], the strongest first, and their values.
    """

    images: np.ndarray  # (nnz,) int64
    values: np.ndarray  # (nnz,) float32, with their signs
    start: np.ndarray  # (K + 1,) int64
    N: int
    halves: bool = False  # dimensions are +0, +1, ..., then -0, -1, ...

    def __post_init__(self):
        self.K = len(self.start) - 1
        self.n = np.diff(self.start)  # (K,), the number of images of each dimension
        self.dims = np.repeat(np.arange(self.K), self.n)  # (nnz,), the dimension of each entry
        self.strengths = np.abs(self.values)  # (nnz,)

    @property
    def ranks(self):
        """The place of each entry in its dimension's list, from 0, (nnz,)."""
        return np.arange(len(self.dims)) - self.start[self.dims]

    def only(self, dims: np.ndarray | slice):
        """These dimensions alone, in this order (their names are not kept)."""
        n = self.n[dims]
        start = offsets_of(n)
        entries = np.arange(start[-1]) + np.repeat(self.start[dims] - start[:-1], n)
        return Activations(self.images[entries], self.values[entries], start, self.N)

    def name(self, k):
        """What dimension k is called: its number, of halves with a sign."""
        if not self.halves:
            return str(k)
        whole = self.K // 2
        return f"+{k}" if k < whole else f"-{k - whole}"


def offsets_of(n: np.ndarray) -> np.ndarray:
    """Where lists of n (K,) entries in a row begin, and where the last one ends: (K + 1,)."""
    return np.concatenate([[0], np.cumsum(n)])


def sort_by_dimension(entries: Entries, halves=False) -> Activations:
    """Sort entries by dimension, and within a dimension the strongest first."""
    values = entries.values.astype(np.float32)
    # One number to sort by: the dimension in its upper half, and in its lower half the bits of the
    # strength, which as an integer grow with it. numpy's lexsort takes four times as long.
    bits = torch.from_numpy(np.abs(values)).view(torch.int32)
    order = ((torch.from_numpy(entries.dims) << 32) - bits).argsort(stable=True).numpy()
    n = np.bincount(entries.dims, minlength=entries.K)
    return Activations(entries.images[order], values[order], offsets_of(n), entries.N, halves)


# ------------------------------------------------------------------------- what counts as active
def unit(z: np.ndarray | Entries) -> np.ndarray | Entries:
    """z (N, K) with rows of norm 1, and 0 where a dimension is equal on all images.

    Entries of a sparse matrix, or where at most half of it is active, |z_k| > ACTIVE; else an
    array, float32.
    """
    varies = ~is_constant(z)
    if isinstance(z, Entries):
        squares = np.bincount(z.images, np.square(z.values, dtype=np.float64), z.N)
        norms = np.sqrt(squares).clip(1e-12)
        entries = replace(z, values=z.values / norms[z.images])
        return entries.take((np.abs(entries.values) > ACTIVE) & varies[z.dims])
    rows = F.normalize(torch.from_numpy(np.array(z, np.float32, order="C"))).numpy()
    rows *= varies
    dense = (np.abs(rows) > ACTIVE).mean() > DENSE
    return rows if dense else active_entries(rows)


def active_entries(rows: np.ndarray) -> Entries:
    """The active entries of rows (N, K) of norm 1."""
    images, dims = np.nonzero(np.abs(rows) > ACTIVE)
    return Entries(images, dims, rows[images, dims], *rows.shape)


def ranges(z: np.ndarray | Entries) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest value of each dimension of z (N, K), (K,) float64 each."""
    if not isinstance(z, Entries):
        return np.min(z, axis=0).astype(np.float64), np.max(z, axis=0).astype(np.float64)
    has_zero = np.bincount(z.dims, minlength=z.K) < z.N
    least = np.where(has_zero, 0, np.inf)
    largest = np.where(has_zero, 0, -np.inf)
    values = z.values.astype(np.float64)  # as least is: else numpy is ten times slower
    np.minimum.at(least, z.dims, values)
    np.maximum.at(largest, z.dims, values)
    return least, largest


def is_constant(z: np.ndarray | Entries) -> np.ndarray:
    """Which dimensions of z (N, K) are equal on all images, up to rounding, (K,) bool."""
    kind = z.values.dtype if isinstance(z, Entries) else z.dtype
    step = np.finfo(np.float16).eps
    equal = step if np.issubdtype(kind, np.float16) else ACTIVE  # of the largest value
    # Images of z = 0 do not count.
    if isinstance(z, Entries):
        z = replace(z, N=np.count_nonzero(np.bincount(z.images, z.values != 0)))
    elif 0 < np.count_nonzero(z.any(1)) < len(z):
        z = z[z.any(1)]
    least, largest = ranges(z)
    return largest - least <= equal * np.maximum(np.abs(least), np.abs(largest))


def share_of(rule: str) -> float:
    """The share of the images that a rule "top:<share>" makes a dimension active on. BadInput."""
    kind, _, share = rule.partition(":")
    try:
        share = float(share)
    except ValueError:
        share = math.nan
    need(kind == "top" and 0 < share < 1, f"--active {rule}: give auto, nonzero or top:0.01")
    return share


def count_of(share: float, N: int) -> int:
    """How many of N images a share of them is, at least one."""
    return max(1, round(share * N))


def draw_tied(images: np.ndarray, few: int) -> np.ndarray:
    """`few` of the images that are equally strong, at random, but the same of the same images.

    So which of them are listed goes neither by the file's order nor alike in all dimensions.
    """
    images = np.sort(images)
    return np.random.default_rng(zlib.crc32(images)).permutation(images)[:few]


def top(rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """rows.topk(most) of rows (n, N); see draw_tied."""
    largest, places = rows.topk(most)  # (n, most), the largest first
    if most == 0:
        return largest, places
    last = largest[:, -1:]
    tied = rows == last  # (n, N)
    listed = (largest == last).sum(1)  # how many of these are on the list
    for i in (tied.sum(1) > listed).nonzero()[:, 0]:
        few = int(listed[i])
        drawn = draw_tied(tied[i].nonzero()[:, 0].numpy(), few)
        places[i, most - few :] = torch.from_numpy(drawn)
    return largest, places


def activate(u: np.ndarray | Entries, rule: str) -> Activations:
    """The lists of active images of u = unit(z) by a rule: "nonzero", or "top:<share>".

    By "top" a dimension of a z with signs becomes two, +k and -k: where it is largest, and where it
    is smallest. An image does not count where the dimension has its least value (of a sparse z: 0).
    """
    if rule == "nonzero":
        return sort_by_dimension(u if isinstance(u, Entries) else active_entries(u))
    N, K = u.shape
    most = count_of(share_of(rule), N)
    halves = bool((ranges(u)[0] < -ACTIVE).any())
    if isinstance(u, Entries):
        dims = u.dims + K * (u.values < 0)
        a = sort_by_dimension(Entries(u.images, dims, np.abs(u.values), N, 2 * K if halves else K))
        longer = np.flatnonzero(a.n > most)
        last = a.start[longer] + most - 1  # on the list
        for k in longer[a.values[last] == a.values[last + 1]]:
            first, end = a.start[k : k + 2]
            tied = first + np.flatnonzero(a.values[first:end] == a.values[first + most - 1])
            a.images[tied] = draw_tied(a.images[tied], len(tied))
        kept = a.ranks < most
        start = offsets_of(a.n.clip(max=most))
        return Activations(a.images[kept], a.values[kept], start, N, halves)
    images = []
    values = []
    n = []
    for sign in (1, -1) if halves else (1,):
        for part in pieces(K, N):
            columns = sign * torch.from_numpy(u)[:, part].T.contiguous()  # (width, N)
            largest, places = top(columns, most)  # (width, most)
            least = columns.amin(1, keepdim=True)
            # Strengths must be above 0. Where a list's last value is not, all are counted from
            # the dimension's least value.
            strengths = torch.where(largest[:, -1:] <= 0, largest - least, largest)
            kept = largest > least
            images.append(places[kept].numpy())
            values.append(strengths[kept].numpy())
            n.append(kept.sum(1).numpy())
    start = offsets_of(np.concatenate(n))
    return Activations(np.concatenate(images), np.concatenate(values), start, N, halves)


def activations_of(z: np.ndarray | Entries, rule: str) -> tuple[Activations, str]:
    """The lists of active images of z (N, K), and the rule, which is chosen here if it is auto."""
    u = unit(z)
    if rule == "auto":
        is_sparse = isinstance(u, Entries) or ((z == 0) | (z == np.max(z))).all()  # or of bits
        rule = "nonzero" if is_sparse else f"top:{TOP}"
    return activate(u, rule), rule


# ------------------------------------------------------------- Cons. of n images, for every n
def running_consistency(y: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Of the first 1, 2, ..., N images of an order the share of their commonest class, (N,).

    y: (N,), 0, 1, ... (`as_small_integers`); order: (N,), a permutation of the images
    """
    labels = y[order]
    numbers = np.arange(1, len(y) + 1)
    by_class = np.argsort(labels, kind="stable")  # the places of class 0, then of class 1, ...
    sizes = np.bincount(labels)
    first = np.repeat(offsets_of(sizes)[:-1], sizes)  # where the class begins in by_class
    so_far = np.empty_like(numbers)  # how many images up to here have this one's class
    so_far[by_class] = numbers - first
    # The commonest class of the first n has as many as the largest so_far up to n.
    return np.maximum.accumulate(so_far, out=so_far) / numbers


def as_small_integers(y: np.ndarray) -> np.ndarray:
    """Labels in the smallest kind of integer, which numpy sorts ten times as fast."""
    return y.astype(np.min_scalar_type(y.max()))


def exact_chance(sizes: np.ndarray, most: int) -> np.ndarray:
    """The expected Cons. of n = 1, ..., most images drawn at random: (most,).

    sizes: (C,), the images of each class

    P(no class has more than m) is the number of ways to choose n images so, divided by that of all
    ways. Class after class joins, with at most m of its images.
    """
    # Ways to choose j images of a class, times odds**j, which cancels and keeps the sums small.
    odds = most / (2 * sizes.sum())
    ways = np.ones((len(sizes), most + 1))
    for j in range(most):
        ways[:, j + 1] = ways[:, j] * (sizes - j) / (j + 1) * odds
    within = np.zeros((most + 1, most + 1))  # [m, n]: ways to choose n, of no class more than m
    for m in range(most + 1):
        of_all = np.ones(1)  # the product of the classes' polynomials
        for of_class in ways[:, : m + 1]:
            of_all = np.convolve(of_all, of_class)[: most + 1]
        within[m, : len(of_all)] = of_all
    # The expected count of the commonest class is the sum of P(more than m).
    largest = np.sum(1 - within / within[most], axis=0)
    return largest[1:] / np.arange(1, most + 1)


@functools.lru_cache(maxsize=8)
def chance_curve(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Cons. of 1, 2, ..., N images in random order: its mean, and what 5 % exceed, (N,) each.

    sizes: how many images each class has, sorted, which is all that chance hangs on
    """
    y = as_small_integers(np.repeat(np.arange(len(sizes)), sizes))
    random = np.random.default_rng(0)
    total = np.zeros(len(y))
    first_curves = []
    orders = max(200, min(ORDERS, 50_000_000 // len(y)))
    for i in progress(range(orders), "chance, random orders"):
        curve = running_consistency(y, random.permutation(len(y)))
        total += curve
        if i < 200:
            first_curves.append(curve.astype(np.float32))
    mean = total / orders
    exact = min(EXACT, len(y))
    mean[:exact] = exact_chance(np.array(sizes), exact)
    return mean, np.quantile(first_curves, USUAL, axis=0)


class Vectors:
    """Features or an embedding (N, d), centred, then of norm 1, to be projected on directions."""

    def __init__(self, vectors: np.ndarray | Entries):
        self.N, self.d = vectors.shape
        self.sparse = isinstance(vectors, Entries)
        if not self.sparse:
            centre = np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)
            rows = np.asarray(vectors, np.float32) - centre
            self.rows = F.normalize(torch.from_numpy(rows))
            return
        # Centred rows r - c would not be sparse: their products and norms follow from r's and c's.
        by_image = vectors.take(np.argsort(vectors.images, kind="stable"))
        self.dims = torch.from_numpy(by_image.dims)
        self.values = torch.from_numpy(by_image.values.astype(np.float32))
        self.start = torch.from_numpy(offsets_of(np.bincount(by_image.images, minlength=self.N)))
        centre = np.bincount(vectors.dims, vectors.values, self.d) / self.N
        self.centre = torch.from_numpy(centre.astype(np.float32))
        squares = np.bincount(vectors.images, np.square(vectors.values, dtype=np.float64), self.N)
        products = self.of_rows(self.centre[:, None])[:, 0]
        squares = torch.from_numpy(squares) - 2 * products + self.centre @ self.centre
        self.norms = squares.clamp(min=1e-24).sqrt().to(torch.float32)

    def of_rows(self, basis: Tensor) -> Tensor:
        """The products of sparse rows, not centred, with directions (d, D): (N, D)."""
        return F.embedding_bag(
            self.dims,
            basis,
            self.start,
            mode="sum",
            per_sample_weights=self.values,
            include_last_offset=True,
        )

    def along(self, basis: Tensor) -> Tensor:
        """Their projections on directions (d, D): (N, D)."""
        if not self.sparse:
            return self.rows @ basis
        return (self.of_rows(basis) - self.centre @ basis) / self.norms[:, None]

    def random_basis(self, many: int, seed: int) -> Tensor:
        """Random unit directions, (d, many)."""
        draw = torch.Generator().manual_seed(seed)
        basis = torch.randn(self.d, many, generator=draw, dtype=torch.float32)
        return basis.div_(basis.norm(dim=0))

    def towards(self, images: np.ndarray) -> Tensor:
        """The directions towards these images (many,): their own rows, (d, many)."""
        if not self.sparse:
            return self.rows[images].T.contiguous()
        basis = -self.centre[:, None].repeat(1, len(images))
        for j, image in enumerate(images.tolist()):
            entries = slice(self.start[image], self.start[image + 1])
            basis[self.dims[entries], j] += self.values[entries]
        return basis.div_(self.norms[images])  # in place: it may be large


class Family:
    """A family of orders of the images that cost nothing: what a dimension must beat.

    of_images: the neighbours of random images, the image itself last; else random directions.
    """

    def __init__(self, vectors: Vectors, of_images: bool):
        self.vectors = vectors
        self.of_images = of_images
        self.N = vectors.N

    def projections(self, many: int, seed: int):
        """Yield how far the images are along `many` directions, (width, N) at a time.

        The images of each direction in descending order are an order of the family.
        """
        if self.of_images:
            random = np.random.default_rng(seed)
            own = random.choice(self.N, many, replace=many > self.N)
            basis = self.vectors.towards(own)
        else:
            basis = self.vectors.random_basis(many, seed)
        for part in pieces(many, self.N):
            along = self.vectors.along(basis[:, part]).T.contiguous()
            if self.of_images:
                itself = torch.from_numpy(own[part])[:, None]
                along.scatter_(1, itself, -2.0)  # below every cosine
            yield along

    def curves(self, ys: list[np.ndarray]) -> list[np.ndarray]:
        """Cons. of the first 1, 2, ..., N images of each order: for each y (N,), (orders, N)."""
        many = max(200, min(FAMILY, IN_CURVES // self.N))
        if self.of_images:
            many = min(many, self.N)
        ys = [as_small_integers(y) for y in ys]
        found = [np.empty((many, self.N), np.float32) for _ in ys]
        random = np.random.default_rng(0)
        i = 0
        for along in self.projections(many, seed=0):
            for row in along:
                mix = random.permutation(self.N)  # ties must not go by the file's order
                order = mix[row[mix].argsort(descending=True).numpy()]
                for y, curves in zip(ys, found):
                    curves[i] = running_consistency(y, order)
                i += 1
        return found

    def lists(self, n: np.ndarray, seed: int, from_smallest: bool) -> Activations:
        """Orders in the place of dimensions: the k-th is active on its first n[k] images, n (K,).

        Strengths are the projections, or, from_smallest, what they exceed the next image's by: as
        a ReLU would give a sparse embedding.
        """
        images = []
        values = []
        lengths = iter(n.tolist())
        for along in self.projections(len(n), seed):
            for row in along:
                most = next(lengths)
                (strengths,), (places,) = top(row[None], min(most + from_smallest, self.N))
                if from_smallest:  # the next image, which is not on the list, has 0
                    strengths = strengths - strengths[-1]
                images.append(places[:most].numpy())
                values.append(strengths[:most].numpy())
        return Activations(np.concatenate(images), np.concatenate(values), offsets_of(n), self.N)


def families_of(z: np.ndarray | Entries, h: np.ndarray | None) -> dict[str, Family]:
    """The four families by their names, of FAMILIES; without h the two of z."""
    found = {}
    of_z = Vectors(z)
    of_h = None if h is None else Vectors(h)
    for name in FAMILIES:
        vectors = of_h if name.endswith("h") else of_z
        if vectors is not None:
            found[name] = Family(vectors, of_images=name.startswith("images"))
    return found


@dataclass
class Label:
    """A label of the images, as every measure needs it."""

    classes: np.ndarray  # (C,), the classes themselves: numbers or words
    y: np.ndarray  # (N,), numbered 0, 1, ..., C - 1
    chance: np.ndarray  # (N,), the mean Cons. of 1, 2, ..., N random images
    high: np.ndarray  # (N,), what 5 % of random images exceed
    families: dict[str, np.ndarray]  # Family.curves of each family, (orders, N), by its name

    def __post_init__(self):
        self.sizes = np.bincount(self.y)  # (C,), the images of each class


def prepare_labels(labels: dict[str, np.ndarray], families: dict[str, Family]) -> dict[str, Label]:
    """Labels (N,) by their prefix, with their curves."""
    result = {}
    for prefix, own in labels.items():
        classes, y = np.unique(own, return_inverse=True)
        sizes = tuple(sorted(np.bincount(y).tolist()))
        result[prefix] = Label(classes, y, *chance_curve(sizes), {})
    if labels:
        for name, family in progress(families.items(), "families of orders"):
            curves = family.curves([label.y for label in result.values()])
            for label, of_label in zip(result.values(), curves):
                label.families[name] = of_label
    return result


# --------------------------------------------------- what a dimension says about labels: counts
# counts (C, K): of the images that a dimension is active on, how many have each class
# sizes (C,): how many images have each class
# Of a dead dimension Cons. and H_s are nan, F1 is 0.
def class_counts(a: Activations, y: np.ndarray, C: int, weights=None) -> np.ndarray:
    """Counts (C, K) of classes y (N,), or sums of weights (nnz,), one for each entry."""
    cells = y[a.images] * a.K + a.dims
    return np.bincount(cells, weights, C * a.K).reshape(C, a.K)


def consistency(counts: np.ndarray) -> np.ndarray:
    """Cons., (K,): the share of the most frequent class among a dimension's images ([NCL])."""
    return counts.max(0) / counts.sum(0)


def semantic_entropy(mass: np.ndarray) -> np.ndarray:
    """H_s in nats, (K,), of the sums of |z_k| (C, K) over each class's images ([BayesNCL])."""
    p = mass / mass.sum(0)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(0)


def f1_scores(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """F1 of "active" as a test for each class, (C, K): 2 hits / (active + class's images)."""
    return 2 * counts / (counts.sum(0) + sizes[:, None])


def average_precision(a: Activations, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Average precision of dimension k as a search for class wanted[k], the strongest first, (K,).

    sum over ranks r of precision(r) * (recall(r) - recall(r - 1)). Images of equal strength, a tie,
    count at once, as in scikit-learn; so do, at the end, those that the dimension is not active on.
    """
    sizes = np.bincount(y, minlength=wanted.max() + 1)[wanted]  # (K,)
    hit = y[a.images] == wanted[a.dims]  # (nnz,)
    hits = np.concatenate([[0], np.cumsum(hit)])  # among the first 0, 1, ..., nnz entries
    before = hits[a.start[:-1]]  # hits in the lists of the dimensions before, (K,)
    listed = hits[a.start[1:]] - before  # hits in the dimension's list

    last_of_tie = np.ones(len(a.dims), bool)
    other_strength = a.strengths[1:] != a.strengths[:-1]
    other_list = a.dims[1:] != a.dims[:-1]
    last_of_tie[:-1] = other_strength | other_list
    ends = np.flatnonzero(last_of_tie)
    dims = a.dims[ends]
    seen = hits[ends + 1]
    hits_in_tie = np.diff(seen, prepend=0)
    precision = (seen - before[dims]) / (a.ranks[ends] + 1)
    found = np.bincount(dims, hits_in_tie * precision, a.K)

    missed = sizes - listed
    at_the_end = sizes / a.N  # precision where all images are found, these among them
    with np.errstate(invalid="ignore"):
        return (found + missed * at_the_end) / sizes


def label_columns(a: Activations, label: Label) -> dict[str, np.ndarray]:
    """What each dimension says about a label: columns (K,), nan of a dead dimension.

    class      the most frequent class of its images, its place in label.classes; -1: none
    cons       its share of them
    chance     the same of as many random images
    adjusted   (cons - chance) / (1 - chance)
    entropy    of its strengths summed over each class, in nats
    best       the class that it tells best, by F1, as in `class`
    f1, ap     how well it tells this class: F1, average precision

    and for each of the label's families
    <family>_better  the share of its orders that are less consistent on as many images
    <family>_lead    adjusted, less that of the mean order
    """
    cost = len(label.classes)
    for curves in label.families.values():
        cost = max(cost, len(curves))
    found = [columns_of_few(a.only(part), label) for part in pieces(a.K, cost)]
    return {name: np.concatenate([of_part[name] for of_part in found]) for name in found[0]}


def columns_of_few(a: Activations, label: Label) -> dict[str, np.ndarray]:
    """`label_columns` of few dimensions, whose tables fit."""
    C = len(label.classes)
    counts = class_counts(a, label.y, C)
    mass = class_counts(a, label.y, C, a.strengths)
    place = a.n.clip(1) - 1  # where a curve has Cons. of n images
    chance = label.chance[place]
    room = (1 - chance).clip(1e-9)  # how far above chance Cons. can be
    with np.errstate(divide="ignore", invalid="ignore"):
        cons = consistency(counts)
        entropy = semantic_entropy(mass)
        f1 = f1_scores(counts, label.sizes)
    best = f1.argmax(0)
    columns = {"class": counts.argmax(0), "cons": cons, "chance": chance}
    columns["adjusted"] = (cons - chance) / room
    for name, curves in label.families.items():
        at_n = curves[:, place]  # (orders, K)
        # The curves are float32; without rounding, equal shares would differ.
        columns[f"{name}_better"] = (at_n < cons.astype(np.float32)).mean(0)
        columns[f"{name}_lead"] = (cons - at_n.mean(0, dtype=np.float64)) / room
    columns |= {"entropy": entropy, "best": best, "f1": f1.max(0)}
    columns["ap"] = average_precision(a, label.y, best)
    for name, column in columns.items():
        undefined = -1 if name in ("class", "best") else np.nan
        columns[name] = np.where(a.n > 0, column, undefined)
    return columns


# ----------------------------------------------------------- what all dimensions say of a class
def best_dimensions(a: Activations, y: np.ndarray) -> np.ndarray:
    """How well a single dimension tells each class: F1, (C,).

    The dimension is chosen on one half of the images and judged on the other; the mean of both
    ways. So it gains nothing by chance to have many dimensions to choose from. A class of
    fewer than about ten images is judged by few of them; nan where a half has none.
    """
    C = y.max() + 1
    half = np.random.default_rng(0).permutation(a.N) % 2 == 1
    halves = half, ~half
    sizes = [np.bincount(y[half], minlength=C) for half in halves]
    highest = np.full((2, C), -1.0)  # the largest F1 on either half
    judged = np.zeros((2, C))  # the F1 of the same dimension on the other half
    for part in pieces(a.K, C):
        few = a.only(part)
        counts = [class_counts(few, y, C, half[few.images]) for half in halves]
        with np.errstate(divide="ignore", invalid="ignore"):
            f1 = [f1_scores(*of_half) for of_half in zip(counts, sizes)]
        f1 = np.nan_to_num(f1)  # (2, C, width)
        best = f1.argmax(2, keepdims=True)
        on_other = np.take_along_axis(f1[::-1], best, 2)[:, :, 0]
        judged = np.where(f1.max(2) > highest, on_other, judged)
        highest = np.maximum(highest, f1.max(2))
    in_both = np.min(sizes, axis=0) > 0
    return np.where(in_both, judged.mean(0), np.nan)


# -------------------------------------------------------------------------- what needs no label
def unit_judge(h: np.ndarray) -> Tensor:
    """Features h (N, d) as MonoScore needs them: rows of norm 1 in float64, because sums cancel."""
    return F.normalize(torch.from_numpy(np.array(h, np.float64, order="C")))


def sparse_matrix(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape) -> Tensor:
    """A sparse tensor of entries (nnz,), in any order."""
    places = torch.from_numpy(np.stack([rows, columns]))
    values = torch.from_numpy(values)
    return torch.sparse_coo_tensor(places, values, shape, check_invariants=False).coalesce()


def mean_cosine(weights: Tensor, h: Tensor) -> np.ndarray:
    """Mean cosine of all pairs of images, each weighted by the product of their weights: (K,).

    weights: (K, N), sparse or dense; h: (N, d), unit_judge. An image makes no pair with itself: the
    sum over all pairs, |sum_n w_n h_n|^2, is taken without these.
    """
    ones = torch.ones(len(h), 1, dtype=h.dtype)  # "@ ones" sums rows, sparse or dense
    lengths = h.square().sum(1, keepdim=True)  # (N, 1)
    squares = weights**2
    cosines = (weights @ h).square().sum(1) - (squares @ lengths)[:, 0]
    pairs = (weights @ ones)[:, 0].square() - (squares @ ones)[:, 0]
    score = cosines / pairs
    return score.where(pairs > 1e-9, torch.nan).numpy()


def mono_score(a: Activations, h: Tensor) -> np.ndarray:
    """MonoScore, (K,): how alike the images are that a dimension is active on.

    The mean cosine of pairs of images in features h (unit_judge), weighted by the product of their
    strengths, each dimension's scaled to [0, 1]; less that of all pairs. The authors (arXiv
    2504.02821) scale activations with their signs and subtract nothing.
    """
    strengths = a.strengths.astype(np.float64)
    first = a.start[a.dims]  # of each entry: the strongest of its list
    last = a.start[a.dims + 1] - 1
    everywhere = a.n[a.dims] == a.N  # else the least strength is 0, of the images not on the list
    least = np.where(everywhere, strengths[last], 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # of one strength: no scale
        scaled = (strengths - least) / (strengths[first] - least)
    weights = sparse_matrix(a.dims, a.images, scaled, (a.K, a.N))
    equal = torch.ones(1, a.N, dtype=h.dtype)
    return mean_cosine(weights, h) - mean_cosine(equal, h)


def correlation(a: Activations) -> float | None:
    """Corr.: the mean |cosine| of two live dimensions over the images ([NCL], Fig. 3c).

    Of more than SAMPLE live dimensions it is that of so many, at random.
    """
    live = np.flatnonzero(a.n)
    if len(live) > SAMPLE:
        live = np.sort(np.random.default_rng(0).choice(live, SAMPLE, replace=False))
    a = a.only(live)
    vectors = torch.zeros(a.K, a.N)
    vectors[a.dims, a.images] = torch.from_numpy(a.values)
    F.normalize(vectors, out=vectors)  # in place: they may be large
    cosines = (vectors @ vectors.T).abs().double()
    pairs = a.K * (a.K - 1)
    return ((cosines.sum() - cosines.trace()) / pairs).item() if pairs else None


# -------------------------------------------------------- which dimensions have the same images
def shared_images(a: Activations, dims: np.ndarray):
    """Yield for each of these live dimensions how many images it shares with each one, (a.K,)."""
    by_image = np.argsort(a.images, kind="stable")
    ends = np.cumsum(np.bincount(a.images, minlength=a.N))
    dims_of = np.split(a.dims[by_image], ends[:-1])  # of each image
    for k in dims.tolist():
        images = a.images[a.start[k] : a.start[k + 1]]
        together = np.concatenate([dims_of[image] for image in images.tolist()])
        yield np.bincount(together, minlength=a.K)


def groups_of(a: Activations) -> np.ndarray:
    """The dimension that each one's group begins with, (K,); -1 of a dead one.

    Greedy: the longest list first, of equal ones the lower number, each dimension joins the first
    group whose first member's list is the same as its own, Jaccard index >= SAME, or begins a
    group. So all of a group are like its first member, which two of them need not be.
    """
    order = np.argsort(-a.n, kind="stable")[: np.count_nonzero(a.n)]
    a_sorted = a.only(order)
    group = np.full(a.K, -1)
    begins = np.zeros(len(order), bool)
    places = progress(range(len(order)), "groups of dimensions")
    for k, both in zip(places, shared_images(a_sorted, np.arange(len(order)))):
        begins[k] = True  # unless an earlier one is alike
        either = a_sorted.n + a_sorted.n[k] - both
        first = np.argmax(begins & (both >= SAME * either))
        begins[k] = first == k
        group[order[k]] = order[first]
    return group


# ----------------------------------------------------- whether dimensions come back in another z
@dataclass
class Partners:
    """The best partner of each dimension of one embedding in another, and the other way round.

    A dead dimension has none: -1, of correlation nan.
    """

    of_first: np.ndarray  # (K_a,), which dimension of the second is its partner
    r_first: np.ndarray  # (K_a,), and their correlation
    of_second: np.ndarray  # (K_b,), which dimension of the first is each one's partner

    @property
    def mutual(self) -> np.ndarray:
        """Which dimensions of the first are the partner of their partner, (K_a,) bool."""
        back = self.of_second[self.of_first]
        return (self.of_first >= 0) & (back == np.arange(len(back)))


def mean_and_scale(a: Activations) -> tuple[np.ndarray, np.ndarray]:
    """The mean strength of each dimension over all images, and its scale, (K,) float64 each.

    (strength - mean) * scale has norm 1 over the images. Of strengths that only rounding varies the
    scale is 0.
    """
    strengths = a.strengths.astype(np.float64)
    mean = np.bincount(a.dims, strengths, a.K) / a.N
    squares = np.bincount(a.dims, strengths**2, a.K)
    varying = squares - a.N * mean**2
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(varying > 1e-12 * squares, varying**-0.5, 0)
    return mean, scale


def correlations(a: Activations, b: Activations):
    """Yield a slice of the dimensions of b, and those of a's dimensions with them, (K_a, width).

    a and b are of the same images. It is Pearson's correlation, over all of them, of strengths:
    |z_k| in rows of norm 1 on a dimension's list, 0 on the other images. So the length of an
    image's z does not count, nor what a dimension does below its list. Of a dense z with signs +k
    and -k have partners of their own; the sign of a sparse one does not count. It is 0 where one of
    the two does not vary.
    """
    _, scale = mean_and_scale(a)
    rows = sparse_matrix(a.dims, a.images, a.strengths * scale[a.dims], (a.K, a.N))
    for part in pieces(b.K, max(a.N, a.K)):
        few = b.only(part)
        mean, scale = mean_and_scale(few)
        columns = np.zeros((few.N, few.K))
        columns[few.images, few.dims] = few.strengths
        columns = (columns - mean) * scale
        # Each column sums to 0, so that it does not matter what is added to a row.
        yield part, (rows @ torch.from_numpy(columns)).clamp(-1, 1).numpy()


def partners(a: Activations, b: Activations) -> Partners:
    """The best partners of the dimensions of a and b by their `correlations`."""
    live_a = np.flatnonzero(a.n)
    live_b = np.flatnonzero(b.n)
    found = Partners(np.full(a.K, -1), np.full(a.K, np.nan), np.full(b.K, -1))
    if not len(live_a) or not len(live_b):
        return found
    highest = np.full(len(live_a), -np.inf)
    best = np.zeros(len(live_a), int)
    for part, r in correlations(a.only(live_a), b.only(live_b)):
        places = r.argmax(1)
        own = np.take_along_axis(r, places[:, None], 1)[:, 0]
        better = own > highest
        highest[better] = own[better]
        best[better] = part.start + places[better]
        found.of_second[live_b[part]] = live_a[r.argmax(0)]
    found.of_first[live_a] = live_b[best]
    found.r_first[live_a] = highest
    return found


class Rotation(Family):
    """The axes of z after a random rotation, each in the place of a live dimension of a.

    u is unit(z), a its lists. Of more than LARGE axes the new ones are random directions, which are
    then nearly at right angles.
    """

    def __init__(self, u: np.ndarray | Entries, a: Activations):
        self.N, K = u.shape
        self.of_images = False
        live = np.flatnonzero(a.n)
        axes, self.places = np.unique(live % K, return_inverse=True)  # of +k and -k one axis
        self.signs = torch.where(torch.from_numpy(live) < K, 1.0, -1.0)
        self.two_sided = not a.halves and bool((ranges(u)[0] < -ACTIVE).any())
        if isinstance(u, Entries):
            columns = np.searchsorted(axes, u.dims)
            values = u.values.astype(np.float32)
            self.rows = sparse_matrix(u.images, columns, values, (self.N, len(axes)))
        else:
            self.rows = torch.from_numpy(u[:, axes])
        self.d = len(axes)

    def projections(self, many: int, seed: int):
        """Yield how far the images are along the new axes, less the mean, (width, N) at a time."""
        draw = torch.Generator().manual_seed(seed)
        basis = torch.randn(self.d, self.d, generator=draw) / self.d**0.5
        if self.d <= LARGE:
            basis, triangle = torch.linalg.qr(basis)
            basis *= triangle.diagonal().sign()  # else not all rotations are equally likely
        for part in pieces(many, self.N):
            along = (self.rows @ basis[:, self.places[part]]) * self.signs[part]
            along -= along.mean(0)
            if self.two_sided:
                along = along.abs()
            yield along.T.contiguous()


def partner_numbers(found: Partners) -> dict[str, float | None]:
    """Means over the live dimensions of the first embedding.

    correlation: with the best partner; above: how many have one of more than ALIKE, %; mutual: how
    many have a mutual one, %; mutual_correlation: of these alone.
    """
    r = found.r_first
    live = found.of_first >= 0
    return {
        "correlation": mean_of_defined(r[live]),
        "above": mean_of_defined(100 * (r[live] > ALIKE)),
        "mutual": mean_of_defined(100 * found.mutual[live]),
        "mutual_correlation": mean_of_defined(r[found.mutual]),
    }


def controls_of_both(lists, zs, rules, hs=(None, None)):
    """Yield controls in the place of two embeddings: a name, and two lists as long as theirs.

    lists: of the embeddings zs by their rules
    rotated: the axes of each after a rotation of its own; images_in_z: directions of random images,
    the same in both, the longest lists first; directions_of_h: random directions of features hs, if
    both are known. DRAWS of each, of more than LARGE dimensions one.
    """
    lengths = [-np.sort(-own.n[own.n > 0]) for own in lists]
    families = {
        "rotated": [Rotation(unit(z), own) for z, own in zip(zs, lists)],
        "images_in_z": [Family(Vectors(z), of_images=True) for z in zs],
    }
    if all(h is not None for h in hs):
        families["directions_of_h"] = [Family(Vectors(h), of_images=False) for h in hs]
    most = max(map(len, lengths))
    draws = DRAWS if most <= LARGE else 1
    for draw in progress(range(1, draws + 1), "partners by chance, draws"):
        for name, both in families.items():
            same = name == "images_in_z"
            found = []
            for i, (family, n, rule) in enumerate(zip(both, lengths, rules)):
                seed = draw if same else 2 * draw + i
                many = np.resize(n, most) if same else n  # so that both draw the same images
                drawn = family.lists(many, seed, rule == "nonzero")
                found.append(drawn.only(np.arange(len(n))))
            yield name, found


def compare(a: Activations, zs, rules, hs=(None, None)):
    """The partners of the dimensions of one embedding in another one of the same images.

    a: the lists of zs[0] by rules[0], which is not auto
    Returns the partners, the lists of zs[1], and the numbers of interpret.json: those of the
    partners and, means over the draws, of `controls_of_both`.
    """
    b, rule = activations_of(zs[1], rules[1])
    found = partners(a, b)
    drawn = {}
    for name, both in controls_of_both((a, b), zs, (rules[0], rule), hs):
        drawn.setdefault(name, []).append(partner_numbers(partners(*both)))
    numbers = {"live_dims": int((b.n > 0).sum()), "active": rule}
    numbers["partners"] = partner_numbers(found)
    for name, several in drawn.items():
        keys = several[0]
        numbers[name] = {key: mean_of_defined([one[key] for one in several]) for key in keys}
    return found, b, numbers


# ---------------------------------------------------------------------- all of them, and controls
@dataclass
class Embedding:
    """An embedding z (N, K) and what is known of its N images, None where it is not there.

    Lists and tensors become arrays; labels may be those of the prefix "" alone. BadInput where it
    cannot be measured.
    """

    z: np.ndarray | Entries
    labels: dict[str, np.ndarray] = field(default_factory=dict)  # prefix -> (N,)
    judge: np.ndarray | None = None  # (N, d), features by which MonoScore judges
    judge_name: str = ""
    features: np.ndarray | None = None  # (N, d), h, of which z was made
    images: np.ndarray | None = None  # (N, H, W, 3), (N, 3, H, W), (N, H, W); look.py: or files
    names: np.ndarray | None = None  # (N,), of the files of the images, for look.py
    texts: np.ndarray | None = None  # (N,), where the rows of z are of texts and not of images
    saved: np.ndarray | None = None  # (N,), labels that came with z, where others take their place
    title: str = ""

    def __post_init__(self):
        for name in "z", "judge", "features":
            value = getattr(self, name)
            if isinstance(value, Tensor):
                (value,) = arrays_of_tensors({name: value}).values()
            if not isinstance(value, Entries | None):
                value = np.asarray(value)
            setattr(self, name, value)
        if not isinstance(self.labels, dict):
            self.labels = {"": self.labels}
        self.labels = check_embedding(self)

    @property
    def things(self):
        """What the rows of z are of, in words."""
        return "images" if self.texts is None else "rows"

    @property
    def N(self):
        return self.z.shape[0]

    @property
    def K(self):
        return self.z.shape[1]


@dataclass
class Findings:
    """What `interpret` finds of an embedding. The numbers of a second label have its prefix."""

    activations: Activations
    rule: str  # "nonzero" or "top:<share>"
    labels: dict[str, Label]
    columns: dict[str, np.ndarray]  # of each dimension, (K,), or (2K,) of half-dimensions
    numbers: dict[str, float | None]  # None: undefined
    controls: dict[str, dict[str, float | None]]  # the same numbers of each of CONTROLS


def interpret(e: Embedding, rule: str = "auto", controls: bool = True) -> Findings:
    """Measure an embedding, beside four families of orders, and its controls. Raises BadInput.

    rule: what counts as active, auto, nonzero or top:<share>

    columns, beside those of label_columns: n, images it is active on; act, their share of all;
    mean, the sum of strengths on them, divided by the number of all; mono, mono_score; group,
    groups_of, of which numbers has how many there are, distinct_dims.
    """
    a, rule = activations_of(e.z, rule)
    families = families_of(e.z, e.features) if controls else {}
    judge = None if e.judge is None else unit_judge(e.judge)
    labels = prepare_labels(e.labels, families)
    columns, numbers = measure(a, labels, judge)
    numbers["corr"] = correlation(a)
    columns["group"] = groups_of(a)
    numbers["distinct_dims"] = len(np.unique(columns["group"][a.n > 0]))
    findings = Findings(a, rule, labels, columns, numbers, {})
    if controls:
        add_controls(findings, families, judge)
    return findings


def measure(a: Activations, labels: dict[str, Label], judge: Tensor | None):
    """Columns (K,) and numbers of the dimensions of an embedding, or of a control."""
    columns = {"n": a.n, "act": a.n / a.N, "mean": np.bincount(a.dims, a.strengths, a.K) / a.N}
    numbers = activity_numbers(a)
    if judge is not None:
        columns["mono"] = mono_score(a, judge)
        numbers["mono"] = mean_of_defined(columns["mono"])
    for prefix, label in labels.items():
        found = label_columns(a, label)
        means = label_numbers(a, label, found)
        columns |= {prefix + name: column for name, column in found.items()}
        numbers |= {prefix + name: value for name, value in means.items()}
    return columns, numbers


def mean_of_defined(values) -> float | None:
    """The mean of the values that are defined, neither None nor nan; None where none is."""
    values = np.asarray(values, np.float64)  # None becomes nan
    values = values[np.isfinite(values)]
    return values.mean().item() if len(values) else None


def activity_numbers(a: Activations) -> dict[str, float | None]:
    """How much is active.

    act: share of the entries; entries: of an image; live_dims, rare_dims: dimensions active on any
    image, and of these on less than 0.1 %.
    """
    live = a.n > 0
    return {
        "act": mean_of_defined(a.n / a.N),
        "entries": len(a.images) / a.N,
        "live_dims": int(live.sum()),
        "rare_dims": int((live & (a.n < count_of(RARE, a.N))).sum()),
    }


def label_numbers(a: Activations, label: Label, columns: dict) -> dict[str, float | None]:
    """Means of label_columns over live dimensions; those in % times 100.

    adjusted, <family>_lead: of dimensions that are not rare. <family>_above: how many live
    dimensions are more consistent than 95 % of the family; <family>_possible: how many can be,
    because less than 5 % of the family are as consistent as so many images can be. best_f1: mean of
    best_dimensions over classes. classes: how many are the commonest of some dimension.
    """
    numbers = {name: mean_of_defined(100 * columns[name]) for name in ("cons", "f1", "ap")}
    often = a.n >= count_of(RARE, a.N)
    numbers["adjusted"] = mean_of_defined(100 * columns["adjusted"][often])
    for name, curves in label.families.items():
        numbers[f"{name}_lead"] = mean_of_defined(100 * columns[f"{name}_lead"][often])
        numbers[f"{name}_above"] = int((columns[f"{name}_better"] >= USUAL).sum())
        at_most = label.sizes.max() / np.arange(1, a.N + 1)  # Cons. of 1, 2, ..., N images
        can_be_above = (curves < at_most.clip(max=1).astype(np.float32)).mean(0) >= USUAL  # (N,)
        numbers[f"{name}_possible"] = int(can_be_above[a.n[a.n > 0] - 1].sum())
    numbers["entropy"] = mean_of_defined(columns["entropy"])
    numbers["best_f1"] = mean_of_defined(100 * best_dimensions(a, label.y))
    numbers["classes"] = len(np.unique(columns["class"][a.n > 0]))
    return numbers


def add_controls(findings: Findings, families: dict[str, Family], judge) -> None:
    """Measure the controls: Cons. and adj. from curves, the other numbers as the mean of DRAWS.

    Of more than LARGE live dimensions a sample is controlled, in one draw. What depends on how many
    dimensions there are to choose from is then not compared.
    """
    a = findings.activations
    draws = DRAWS
    live = np.flatnonzero(a.n)
    is_sample = len(live) > LARGE
    if is_sample:
        draws = 1
        live = np.sort(np.random.default_rng(0).choice(live, SAMPLE, replace=False))
        a = a.only(live)
    # A control is not compared with families itself.
    labels = {prefix: replace(label, families={}) for prefix, label in findings.labels.items()}

    drawn = []
    for seed in progress(range(1, draws + 1), "controls, draws"):
        found = {}
        if labels:
            # Seed 0 is that of best_dimensions' halves: labels would be shuffled along them.
            order = np.random.default_rng(seed).permutation(a.N)
            mixed = {key: replace(label, y=label.y[order]) for key, label in labels.items()}
            found["shuffled"] = measure(a, mixed, None)[1]
        for name, family in families.items():
            lists = family.lists(a.n, seed, findings.rule == "nonzero")
            found[name] = measure(lists, labels, judge)[1]
        drawn.append(found)
    for name, numbers in drawn[0].items():
        average = {}
        for key in numbers:
            several = [found[name][key] for found in drawn]
            not_compared = is_sample and key.endswith(("best_f1", "classes"))
            average[key] = None if not_compared else mean_of_defined(several)
        # What follows from n alone, of all dimensions.
        average |= activity_numbers(findings.activations)
        for prefix, label in findings.labels.items():
            curve = label.chance
            if name in label.families:
                curve = label.families[name].mean(0, dtype=np.float64)
            average |= numbers_of_curve(findings.activations.n, label, curve, prefix)
        findings.controls[name] = average


def numbers_of_curve(n: np.ndarray, label: Label, curve: np.ndarray, prefix: str) -> dict:
    """Cons. and adj. of a curve (N,) in the place of dimensions on n images each, (K,)."""
    chance = label.chance
    adjusted = (curve - chance) / (1 - chance).clip(1e-9)
    live = n[n > 0]
    often = live[live >= count_of(RARE, len(curve))]
    return {
        f"{prefix}cons": mean_of_defined(100 * curve[live - 1]),
        f"{prefix}adjusted": mean_of_defined(100 * adjusted[often - 1]),
    }


# ------------------------------------------------------------------------------------- printing
COLUMNS = {  # heading of the table: key in Findings.numbers, digits behind the point
    "active": ("entries", 1),
    "live": ("live_dims", 0),
    "Cons.": ("cons", 1),
    "adj.": ("adjusted", 1),
    "classes": ("classes", 0),
    "AP": ("ap", 1),
    "best F1": ("best_f1", 1),
    "Mono": ("mono", 3),
}
OF_THE_WHOLE = "entries", "live_dims", "mono"  # the others are of a label
FAMILIES = "directions_of_h", "directions_of_z", "images_in_h", "images_in_z"
CONTROLS = "shuffled", *FAMILIES
LABELS = {"": "class", "background_": "background"}
LEGEND = """\
active: dimensions active on an image; live: dimensions active on any image. Mono: how alike a
dimension's images are."""
OF_LABELS = """\
Cons.: the share of the commonest class among a dimension's images, %; adj.: how far Cons. is
above as many random images, of dimensions active on 0.1 % of the images or more. classes: how
many are the commonest of some dimension. AP: how well a dimension's strength finds its best
class, %. Cons., adj. and AP are means over live dimensions. best F1: of the best dimension for
a class, judged on other images, mean over classes."""
OF_ROWS = """\
The rows below have, in the place of each dimension, as many images: of shuffled labels; those
first along a random direction of the features h, or of z; the neighbours of a random image in
h, or in z. (interpret.json and dimensions.csv hold more. To compare two embeddings, give both
--active top:0.01.)"""


def markdown(rows: list[list[str]]) -> str:
    """An aligned Markdown table; the first row is its heading."""
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


def format_table(numbers: dict, controls: dict[str, dict]) -> str:
    """The numbers of an embedding for each of its labels, the controls under them."""
    columns = COLUMNS
    labels = {prefix: name for prefix, name in LABELS.items() if prefix + "cons" in numbers}
    if not labels:
        columns = {name: column for name, column in COLUMNS.items() if column[0] in OF_THE_WHOLE}
        labels = {"": "no labels"}
    beside = {name.replace("_", " "): controls[name] for name in CONTROLS if name in controls}
    rows = [["dimensions", *columns]]
    for prefix, label in labels.items():
        for title, found in {label: numbers, **beside}.items():
            cells = [title]
            for key, digits in columns.values():
                if key not in OF_THE_WHOLE:
                    key = prefix + key
                cells.append(format_number(found.get(key), digits))
            rows.append(cells)
    return markdown(rows)


def describe_leads(numbers: dict) -> list[str]:
    """What the dimensions beat, a sentence for each label."""
    lines = []
    for prefix, label in LABELS.items():
        of_h = f"{prefix}directions_of_h_lead" in numbers
        directions = "directions_of_h" if of_h else "directions_of_z"
        over_directions = numbers.get(f"{prefix}{directions}_lead")
        over_images = numbers.get(f"{prefix}images_in_z_lead")
        if over_directions is not None:
            leads = over_directions, over_images
            first, second = ("less pure" if lead < 0 else "purer" for lead in leads)
            also = "and" if second == first else f"and {second}"
            lines.append(
                f"{label}: {first} than random {directions.replace('_', ' ')} by "
                f"{abs(over_directions):.1f} {also} than the neighbours of random images\n"
                f"  in z by {abs(over_images):.1f} points of adj.; "
                f"{describe_above(numbers, prefix)}"
            )
    return lines


def describe_above(numbers: dict, prefix: str) -> str:
    """How many dimensions are purer than nearly all neighbours of random images in z."""
    above = numbers[f"{prefix}images_in_z_above"]
    possible = numbers[f"{prefix}images_in_z_possible"]
    live = numbers["live_dims"]
    usual = f"{100 * USUAL:g} %"
    if not possible:
        return f"none can be purer than {usual} of\n  these, because too many are as pure as can be"
    of_all = f"{live} live dimensions"
    if possible < live:
        of_all += f" ({possible} can be)"
    by_chance = (1 - USUAL) * possible
    return f"{above} of {of_all}\n  are purer than {usual} of these (by chance: {by_chance:.0f})"


def describe_activity(a: Activations, rule: str) -> str:
    """What counts as active, in half a line."""
    if rule == "nonzero":
        share = 100 * len(a.images) / (a.N * a.K)
        return f"active: {share:.3g} % of the entries, |z_k| > {ACTIVE:g} in rows of norm 1"
    share = share_of(rule)
    dimension = "half-dimension" if a.halves else "dimension"
    part = f"on the {100 * share:g} % of the images where z_k / |z| is largest"
    each = count_of(share, a.N)
    doubt = f", which are {each}: too few to trust (--active top:<share> takes more)"
    return f"active: a {dimension} {part}{doubt if each < 10 else ''}"


def worded(text: str, things: str) -> str:
    """A text that speaks of images, or the same of rows."""
    return text if things == "images" else text.replace("an image", "a row").replace("image", "row")


def describe(e: Embedding, findings: Findings) -> str:
    """What was measured, in a few lines."""
    numbers = findings.numbers
    a = findings.activations
    live = numbers["live_dims"]
    active = describe_activity(a, findings.rule)
    lines = [f"{e.N:,} images, {e.K:,} dimensions; {active}"]
    dead = f"{a.K - live:,} dead {'half-' if a.halves else ''}dimensions"
    lines.append(f"{dead}, {numbers['rare_dims']:,} active on less than 0.1 % of the images")
    lines += describe_leads(numbers)
    for prefix, label in findings.labels.items():
        share = label.sizes.max() / e.N
        if share > 0.5:
            commonest = label.classes[label.sizes.argmax()]
            of = f"{100 * share:.0f} % of the images are of class {commonest}"
            what = prefix.removesuffix("_") or "y"
            lines.append(f"{what}: {of}: Cons., adj. and AP say little, read best F1")
    lines = [worded(line, e.things) for line in lines]
    if e.judge is None:
        lines.append("no MonoScore: it needs --features or --judge")
    else:
        lines.append(f"MonoScore by {e.judge_name or 'the features'}")
    if live > LARGE:
        compared = f"{SAMPLE:,} of {live:,} live dimensions"
        lines.append(f"controls: of {compared}, drawn once; their best F1 and classes are left out")
    return f"{e.title}: " + "\n".join(lines)


def describe_partners(title: str, numbers: dict, things="images") -> str:
    """How well dimensions come back in the embedding of --beside, and by chance, a line each."""
    rows = {
        f"partners in {title} ({numbers['live_dims']:,} live, {numbers['active']})": "partners",
        "  of axes rotated in both": "rotated",
        f"  of neighbours of random {things}, the same in both": "images_in_z",
        "  of random directions of h in both": "directions_of_h",
    }
    lines = []
    for text, key in rows.items():
        if key not in numbers:
            continue
        own = numbers[key]
        r, r_mutual = (format_number(own[k], 2) for k in ("correlation", "mutual_correlation"))
        above, mutual = (format_number(own[k], 0) for k in ("above", "mutual"))
        shares = f"above {ALIKE:g}: {above} %; mutual: {mutual} %, of correlation {r_mutual}"
        lines.append(f"{text}: correlation {r}, {shares}")
    lines.append("  (they add something if they beat every line, also in how many are mutual)")
    return "\n".join(lines)


def class_name(label: Label, place: int, names: dict[int, str]) -> str:
    """What the class at this place among label.classes is called."""
    own = label.classes[place].item()
    return own if isinstance(own, str) else names.get(own, f"class {own}")


def tell_most(findings: Findings, names: dict[int, str], things="images") -> str:
    """The five dimensions that tell a class best, one a line. things: as in worded()."""
    columns = findings.columns
    if "f1" not in columns:
        return ""
    lines = ["dimensions that tell a class best:"]
    label = findings.labels[""]
    order = np.argsort(-np.nan_to_num(columns["f1"]), kind="stable")[:5]
    for k in order[columns["n"][order] > 0]:
        dimension = findings.activations.name(k)
        best = columns["best"][k]
        n = columns["n"][k]
        size = label.sizes[best]
        hits = round(columns["f1"][k] * (n + size) / 2)  # F1 is 2 hits / (n + size)
        line = f"  {dimension}: {hits:,} of its {n:,} {things} are {class_name(label, best, names)}"
        line += f", of which there are {size:,}"
        if "images_in_z_better" in columns:
            # 0.57 * 100 is a little less than 57
            better = math.floor(100 * columns["images_in_z_better"][k] + 1e-9)
            line += f"; purer than {better} % of random {things}' neighbours"
        lines.append(line)
    return "\n".join(lines)


def format_cell(value: float) -> str:
    """A number in a csv file, of those that are not whole six digits; empty: undefined."""
    if isinstance(value, np.integer):
        return str(value)
    return "" if math.isnan(value) else f"{round(value, 9) + 0.0:.6g}"  # no -0


def write_csv(
    path: Path, findings: Findings, names: dict[int, str] | None = None, more: dict | None = None
) -> None:
    """dimensions.csv: a row for each dimension, the most active first; empty where undefined.

    more: other columns, of words
    """
    texts = {}
    for key, column in findings.columns.items():
        texts[key] = [format_cell(value) for value in column]
    for prefix, label in findings.labels.items():
        for key in prefix + "class", prefix + "best":
            places = findings.columns[key]
            texts[key] = [str(label.classes[place]) if place >= 0 else "" for place in places]
    named = findings.activations.name
    texts["group"] = [named(k) if k >= 0 else "" for k in findings.columns["group"]]
    if names:
        best = findings.columns["best"]
        label = findings.labels[""]
        texts["name"] = [class_name(label, place, names) if place >= 0 else "" for place in best]
    texts |= more or {}
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["dimension", *texts])
        for k in np.argsort(-findings.columns["mean"], kind="stable"):
            writer.writerow([findings.activations.name(k), *(text[k] for text in texts.values())])


def partner_texts(found: Partners, b: Activations) -> dict[str, list[str]]:
    """The columns of dimensions.csv that tell partners among the dimensions of b."""
    return {
        "partner": [b.name(k) if k >= 0 else "" for k in found.of_first],
        "partner_correlation": [format_cell(r) for r in found.r_first],
    }


# ------------------------------------------------------------------------------------- checking
def check_embedding(e: Embedding) -> dict[str, np.ndarray]:
    """BadInput where an embedding cannot be measured; the labels (N,) by their prefix.

    A label that all images share is left out, and a line says so.
    """
    check_numbers(e.z, "z")
    need(e.N > 1 and e.K > 1, f"z is {e.N} x {e.K}; it needs two images and dimensions or more")
    labels = {}
    for prefix, y in e.labels.items():
        what = prefix.removesuffix("_") or "y"
        y = checked_label(y, e.N, what)
        if (y == y[0]).all():
            print(f"{what} has one class, {y[0]}, so it is left out: dimensions tell nothing apart")
        else:
            labels[prefix] = y
    check_columns(e.z, labels)
    for name, h in (e.judge_name or "the judge", e.judge), ("h", e.features):
        if h is not None:
            dense = not isinstance(h, Entries)
            need(dense, f"{name} is sparse; features must be dense: save h.toarray()")
            check_numbers(h, name)
            need(len(h) == e.N, f"z has {e.N} rows, {name} has {len(h)}")
    if e.texts is not None:
        e.texts = np.asarray(e.texts)
        need(e.texts.dtype.kind == "U", f"texts is {e.texts.dtype}; save np.asarray(texts, str)")
        need(e.texts.shape == (e.N,), f"z has {e.N} rows, texts has shape {e.texts.shape}")
    if e.images is not None:
        images = np.shape(e.images)
        need(images[:1] == (e.N,), f"z has {e.N} rows, images has shape {images}")
    return labels


def check_columns(z: np.ndarray | Entries, labels: dict[str, np.ndarray]) -> None:
    """BadInput where a column of z (N, K) is a label or the row's number, as a table has them.

    Of two classes a dimension may have the numbers, 0 and 1, in earnest.
    """
    if isinstance(z, Entries) or len(z) < 10:
        return
    known = {"the row's number": np.arange(len(z))}
    for prefix, y in labels.items():
        with contextlib.suppress(ValueError):  # of words that are no numbers
            numbers = y.astype(np.float64)
            if len(np.unique(numbers)) > 2:
                known[prefix.removesuffix("_") or "the label y"] = numbers
    first = z[:1].astype(np.float64)  # counted from 0 or from 1
    for what, column in known.items():
        column = column - column[0]
        for k in np.flatnonzero((z[:100] - first == column[:100, None]).all(0)):
            same = np.array_equal(z[:, k] - first[0, k], column)
            need(not same, f"column {k} of z is {what}: leave it out")


def need_same_images(e: Embedding, other: Embedding, path: Path) -> None:
    """BadInput where the other embedding is of other images, as far as rows, labels, names tell."""
    remedy = "not of the same images, in the same order"
    need(e.N == other.N, f"{path}: z has {other.N} rows and not {e.N}: {remedy}")
    for prefix in e.labels.keys() & other.labels.keys():
        same = np.array_equal(e.labels[prefix], other.labels[prefix])
        need(same, f"{path} has other labels {prefix.removesuffix('_') or 'y'}: {remedy}")
    known = {"images": "images", "names": "names", "saved": "labels of its own"}
    for name, what in known.items():
        one = getattr(e, name)
        two = getattr(other, name)
        same = one is None or two is None or np.array_equal(one, two)
        need(same, f"{path} has other {what}: {remedy}")


def check_numbers(z: np.ndarray | Entries, what: str) -> None:
    """BadInput unless z is a matrix of finite numbers."""
    values = z.values if isinstance(z, Entries) else z
    need(values.dtype.kind in "fiub", f"{what} is {values.dtype}; it must be numbers")
    need(len(z.shape) == 2, f"{what} has shape {z.shape}; it must be (N, K)")
    need(min(z.shape) > 0, f"{what} is empty: {z.shape}")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf
        finite = np.isfinite(np.asarray(values, np.float32))
    need(finite.all(), f"{what} is not finite: nan, inf or too large")


def is_whole(a: np.ndarray | Entries) -> bool:
    """Whether an array is of whole numbers."""
    return not isinstance(a, Entries) and a.dtype.kind in "iu"


def is_indices(a: np.ndarray | Entries, beside: dict) -> bool:
    """Whether an array is the indices of a sparse one, as libraries save them beside its values.

    Of whole numbers, and with an axis of 2 or 3, or a column for each number of an array beside it.
    """
    if not is_whole(a) or a.ndim != 2:
        return False
    rows, columns = a.shape
    lengths = [len(other) for other in beside.values() if len(other.shape) == 1]
    return min(a.shape) in (2, 3) or (columns in lengths and rows not in lengths)


def checked_label(y, N: int, what: str) -> np.ndarray:
    """Labels y, (N,) or (N, 1), as (N,): integers of any size or words. Raises BadInput."""
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "surrogateescape")
    if y.dtype.kind == "O" and all(isinstance(word, str) for word in y.flat):
        y = y.astype(str)  # as pandas keeps words
    if y.ndim > 1:
        remedy = "of several labels save one column, (N,), and give it as --labels"
        if y.dtype.kind in "iufb" and (y >= 0).all() and np.allclose(y.sum(1), 1):
            remedy = "of one-hot rows save y.argmax(1)"
        raise BadInput(f"{what} has shape {y.shape}; {remedy}")
    remedy = "labels are words, or the number of each image's class: save y.astype(int)"
    need(y.dtype.kind in "iuU", f"{what} is {y.dtype}; {remedy}")
    need(y.shape == (N,), f"z has {N} rows, {what} has shape {y.shape}")
    remedy = "leave out images that have no class"
    if y.dtype.kind == "i":
        need(y.min() >= 0, f"{what} has {y.min()}: number the classes from 0, and {remedy}")
    for word in NO_CLASS if y.dtype.kind == "U" else ():
        need((y != word).all(), f"{what} has {word!r}: {remedy}")
    return y


# ------------------------------------------------------------------------------------- reading
def read_embedding(
    path: Path, labels: Path | None = None, features: Path | None = None, judge: Path | None = None
) -> Embedding:
    """The embedding in a run's folder or in a file, with what other files hold of its images.

    z: key "z", or the only matrix. y: key "y"; background: a second label; h: features; images;
    names, of image files; texts, a text for each row, which is then called a row and not an image.
    Without a judge the features judge. Raises BadInput for what is missing or cannot be used.
    """
    source = path
    if path.is_dir():
        source = path / "embeddings.npz"
        need(source.exists(), f"{path} has no embeddings.npz: no run, or one that has not finished")
    arrays = read_arrays(source)
    z = choose_array(arrays, "z", 2, source, "the embedding z")
    remedy = "scipy.sparse.save_npz writes what is read here; an embedding must be floats"
    need(not is_indices(z, arrays), f"{source}: {z.shape} looks like indices: {remedy}")
    for key, a in arrays.items():
        pair = key != "h" and a is not z and a.shape == z.shape and is_whole(a)
        remedy = "if they are a top-k's indices, save scipy's CSR matrix: tools/embeddings.md"
        need(not pair, f"{source}: {key} has whole numbers in z's shape; {remedy}")
    own_labels = {}
    for prefix, key in ("", "y"), ("background_", "background"):
        if key in arrays:
            own_labels[prefix] = arrays[key]
    saved = own_labels.get("")
    if labels:
        own_labels[""] = choose_array(read_arrays(labels), "y", 1, labels, "the labels y")
    if not own_labels:
        unread = {key: a for key, a in arrays.items() if key not in ("names", "texts")}
        others = [f"{key} {a.shape}" for key, a in unread.items() if len(a.shape) == 1]
        if others:
            print(f"{source} has no key y, so no labels; not read: {', '.join(others)}")
    h = arrays.get("h")
    if h is z:  # choose_array gives a lone h as z
        h = None
    if features:
        h = choose_array(read_arrays(features), "h", 2, features, "the features h")
    of_judge = h
    judge_name = "" if h is None else "h, the embedding's own features"
    if judge:
        of_judge = choose_array(read_arrays(judge), "h", 2, judge, "the features h")
        judge_name = Path(judge).name
    try:
        e = Embedding(
            z,
            own_labels,
            of_judge,
            judge_name,
            features=h,
            images=arrays.get("images"),
            names=arrays.get("names"),
            texts=arrays.get("texts"),
            saved=saved,
            title=path.resolve().name,
        )
        for what, a in ("z", e.z), ("h", e.features), (e.judge_name, e.judge):
            if a is not None:
                least, largest = ranges(a)
                size = max(largest.max(), -least.min())
                need((least != largest).any(), f"{what} is equal on all images: it tells nothing")
                text = f"the largest number of {what} is {size:.3g}; rescale it to about 1"
                need(1e-8 < size < 1e15, text)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None
    return e


def choose_array(arrays: dict, key: str, axes: int, path: Path, what: str):
    """The only array, else that of this key, else the only one with so many axes. BadInput."""
    if len(arrays) == 1:
        (key,) = arrays
    if key in arrays:
        return arrays[key]
    fitting = {}
    for name, a in arrays.items():
        is_column = a.shape[1:] == (1,) and not isinstance(a, Entries)
        if len(a.shape) == axes or (axes == 1 and is_column):
            fitting[name] = a
    shapes = ", ".join(f"{name or 'array'} {a.shape}" for name, a in arrays.items())
    text = f"which array is {what}? Save it as {key}; there are: {shapes or 'none'}"
    need(len(fitting) == 1, f"{path}: {text}")
    ((name, a),) = fitting.items()
    print(f"{path}: {name} {a.shape} is taken for {what}")
    return a


def read_class_names(path: Path | None, e: Embedding) -> dict[int, str]:
    """Class number -> name, of a file with the name of class 0, 1, ... on each line. BadInput."""
    if path is None:
        return {}
    names = lines_of(path)
    need("" in e.labels, f"--classes {path} names classes, but there are no labels y")
    y = np.asarray(e.labels[""])
    need(y.dtype.kind in "iu", f"--classes {path} names numbers, but the labels are words already")
    need(len(names) > y.max(), f"{path} names {len(names)} classes; there is a class {y.max()}")
    for number in np.unique(y).tolist():
        need(names[number].strip(), f"{path}: line {number + 1}, of class {number}, is empty")
    return dict(enumerate(names))


def lines_of(path: Path) -> list[str]:
    """The lines of a text file in UTF-8, cut where a line ends and nowhere else. BadInput.

    A line that is a string of JSON, as "a\\nb", stands for that string.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BadInput(f"{path} cannot be read ({reason})") from None
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return [unquoted(line) for line in lines]


def unquoted(line: str) -> str:
    """What a string of JSON stands for; any other line as it is."""
    try:
        return json.loads(line) if line.startswith('"') else line
    except ValueError:
        return line


NO_CLASS = "", "nan", "None", "<NA>", "NaT"  # what libraries write for a label that is not there
TABLES = {".csv": "read_csv", ".tsv": "read_table", ".parquet": "read_parquet"}  # by pandas
TABLES |= {".feather": "read_feather", ".xlsx": "read_excel"}
OBJECTS = "objects are not loaded: of words, as of pandas, save np.asarray(y, str)"
REMEDIES = {  # what a library says of a file that holds Python objects; what to do
    "Object arrays": OBJECTS,
    "Python objects in dtype": OBJECTS,
    "Weights only": "it holds more than tensors: save tensors, or an .npz",
    "pickled": "it is no array that numpy saved: np.save(path, array)",
}


def read_arrays(path: Path) -> dict[str, np.ndarray | Entries]:
    """The arrays of a file, by their keys; "" for the array of a file that holds one alone.

    Raises BadInput where there is none, or a damaged one. Pickled objects are never read.
    """
    kind = path.suffix.lower()
    readers = dict.fromkeys([".npy", ".npz"], read_numpy)
    readers |= dict.fromkeys([".pt", ".pth", ".safetensors"], read_torch)
    need(path.exists(), f"{path} is not there")
    need(not path.is_dir(), f"{path} is a folder; give a file of {', '.join(readers)}")
    if kind in TABLES:
        hint = " (header=None without a heading)" if kind in (".csv", ".tsv") else ""
        table = f'pandas.{TABLES[kind]}("{path.name}")'
        numbers = f'np.save("{path.stem}.npy", {table}.select_dtypes("number"))'
        words = f'np.save("y.npy", np.asarray({table}["y"], str))'
        text = f"{path} is a table. Save its numbers, without labels and ids: {numbers}"
        lists = f'of a column of lists, np.stack({table}["embedding"])'
        raise BadInput(f"{text}{hint}; {lists}; or words: {words}")
    need(kind in readers, f"{path}: give a run's folder or a file of {', '.join(readers)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy and torch tell what no user can change
            return readers[kind](path)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except ImportError as error:
        raise BadInput(f"{path} needs a library: pip install {error.name}") from None
    except Exception as error:  # what a damaged file may raise is not listed anywhere
        reason = " ".join(str(error).split())[:200]
        for said, remedy in REMEDIES.items():
            if said in reason:
                raise BadInput(f"{path} cannot be read: {remedy}") from None
        raise BadInput(f"{path} cannot be read ({type(error).__name__}: {reason})") from None


def read_numpy(path: Path) -> dict[str, np.ndarray | Entries]:
    """The array of a .npy file, memory-mapped, or those of a .npz file, where z may be scipy's."""
    arrays = np.load(path, mmap_mode="c", allow_pickle=False)  # "c": never written to
    if isinstance(arrays, np.ndarray):
        return {"": arrays}
    need(path.suffix.lower() == ".npz", "it is an archive of arrays; name it .npz")
    with arrays:
        arrays = dict(arrays)
    if not {"format", "shape", "data"} <= arrays.keys():
        return arrays
    kind = arrays.pop("format").astype(str).item()
    N, K = arrays.pop("shape").tolist()
    values = arrays.pop("data")
    need(kind in ("csr", "csc", "coo"), f"its sparse format is {kind}; it must be csr, csc or coo")
    if kind == "coo":
        images = arrays.pop("row").astype(np.int64)
        dims = arrays.pop("col").astype(np.int64)
    else:
        counts = np.diff(arrays.pop("indptr"))  # of each row, or of each column
        need(len(counts) == (N if kind == "csr" else K), "its indptr does not fit its shape")
        images = np.repeat(np.arange(len(counts)), counts)
        dims = arrays.pop("indices").astype(np.int64)
        if kind == "csc":
            images, dims = dims, images
    fits = len(images) == len(dims) == len(values)
    need(fits, "its indices and data differ in length")
    cells = np.sort(images * K + dims)
    inside = (images >= 0) & (images < N) & (dims >= 0) & (dims < K)
    need(inside.all(), f"its indices leave the shape ({N}, {K})")
    need((np.diff(cells) > 0).all(), "an entry occurs twice; call sum_duplicates() before saving")
    return {"z": Entries(images, dims, values, N, K)} | arrays


def read_torch(path: Path) -> dict[str, np.ndarray | Entries]:
    """The tensors of a .safetensors file, or of torch.save: one, or a dictionary of them."""
    if path.suffix.lower() == ".safetensors":
        from safetensors.torch import load_file

        return arrays_of_tensors(load_file(path))
    mapped = zipfile.is_zipfile(path)  # files of old versions cannot be
    if mapped:
        damaged = zipfile.ZipFile(path).testzip()  # torch.load would not notice
        need(damaged is None, f"{damaged} in it is damaged")
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    if isinstance(saved, Tensor):
        saved = {"": saved}
    text = "it holds neither a tensor nor a dictionary of tensors: torch.save(dict(z=z, y=y), path)"
    need(isinstance(saved, dict), text)
    return arrays_of_tensors(saved)


def arrays_of_tensors(tensors: dict) -> dict[str, np.ndarray | Entries]:
    """Tensors as numpy arrays; bfloat16, which numpy lacks, as float32; sparse ones as Entries.

    Lists of labels, names and texts become arrays, too.
    """
    arrays = {}
    for key, tensor in tensors.items():
        words = key in ("names", "texts")
        if isinstance(tensor, (list, tuple)) and (words or key in ("y", "background")):
            arrays[key] = np.array(tensor, str if words else None)
        if not isinstance(tensor, Tensor):  # an epoch, settings: what else a file may hold
            continue
        tensor = tensor.detach()
        if tensor.layout == torch.strided:
            whole = tensor.nbytes <= tensor.untyped_storage().nbytes()
            need(whole, f"{key} repeats its numbers: save it after .contiguous()")
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        if tensor.layout == torch.strided:
            arrays[key] = tensor.numpy()
        else:
            tensor = tensor.to_sparse_coo().coalesce()
            images, dims = tensor.indices().numpy()
            arrays[key] = Entries(images, dims, tensor.values().float().numpy(), *tensor.shape)
    return arrays


# ------------------------------------------------------------------------------------- the program
class Parser(argparse.ArgumentParser):
    """Errors of one line, exit code 2."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    flags = Parser(prog="interpret.py", description=__doc__, formatter_class=form)
    add = flags.add_argument
    add("source", type=Path, help="a run's folder, or a file with the embedding z (N, K)")
    add("--labels", type=Path, help="a file with labels y (N,)")
    add("--features", type=Path, help="a file with the features h (N, d) that z is made of")
    add("--judge", type=Path, help="a file with another network's features (N, d) of the images")
    add("--classes", type=Path, help="a file with the name of class 0, 1, ... on each line")
    add("--active", default="auto", help="auto, nonzero or top:<share of images>")
    add("--beside", type=Path, help="another run or embedding of the same images, for partners")
    add("--out", type=Path, help="folder (default: the run's, else <file>-interpret beside it)")
    return flags


def folder_for(path: Path, out: Path | None) -> Path:
    """Where the results of a run or file go: --out, the run's folder, or one beside the file."""
    if out:
        return out
    if path.is_dir():
        return path
    return path.with_name(f"{path.name}-interpret")  # no two files share it


def check_rule(rule: str) -> None:
    """BadInput unless this is a rule of what counts as active."""
    if rule not in ("auto", "nonzero"):
        share_of(rule)


def make_folder(out: Path, marks: dict[str, bytes]) -> None:
    """Make a folder for results, or find that it can be written.

    BadInput where not, or where a file that is to be written is there and not ours: its first
    letters lack the mark, or it is a link.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{out} cannot be made or written ({reason}): give --out") from None
    for name, mark in marks.items():
        path = out / name
        if os.path.lexists(path):
            is_ours = path.is_file() and not path.is_symlink()
            if is_ours:
                with open(path, "rb") as file:
                    is_ours = mark in file.read(1000)
            need(is_ours, f"{path} is there, and not one that is written here: move it away")


@contextlib.contextmanager
def replacing(path: Path):
    """A new text file, which takes the place of `path` once the block has ended well."""
    # "x": nothing that is there, no link either, is written to.
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    options = dict(encoding="utf-8", errors="backslashreplace", newline="\n")
    with open(unfinished, "x", **options) as file:
        try:
            yield file
            file.close()  # on a full disk this may fail too
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def main(argv=None):
    args = parser().parse_args(argv)
    check_rule(args.active)
    e = read_embedding(args.source, args.labels, args.features, args.judge)
    names = read_class_names(args.classes, e)
    if args.beside:
        other = read_embedding(args.beside, args.labels)
        need_same_images(e, other, args.beside)
    out = folder_for(args.source, args.out)
    make_folder(out, MARKS)
    print(f"measuring {e.K:,} dimensions on {e.N:,} {e.things} ...", flush=True)
    findings = interpret(e, args.active)
    words = f"{describe(e, findings)}\n{tell_most(findings, names, things=e.things)}".rstrip()
    more = {}
    compared = {}
    if args.beside:
        hs = e.features, other.features
        rules = findings.rule, args.active
        found, lists, compared = compare(findings.activations, (e.z, other.z), rules, hs)
        words = f"{describe_partners(other.title, compared, e.things)}\n\n{words}"
        more = partner_texts(found, lists)
        compared = {"beside": {"source": str(args.beside)} | compared}
    of_labels = OF_LABELS if findings.labels else "Cons., adj. and F1 need --labels."
    legend = textwrap.fill(f"{LEGEND} {of_labels} {OF_ROWS}", 100)
    table = f"{format_table(findings.numbers, findings.controls)}\n{legend}"
    text = f"{worded(table, e.things)}\n\n{words}\n"
    record = {
        "source": str(args.source),
        "images": e.N,
        "dimensions": e.K,
        "active": findings.rule,
        "judge": e.judge_name or None,
        "numbers": findings.numbers,
        **findings.controls,
        **compared,
    }
    with replacing(out / "interpret.json") as file:
        file.write(json.dumps(record, indent=1) + "\n")
    with replacing(out / "interpret.txt") as file:
        file.write(text)
    write_csv(out / "dimensions.csv", findings, names, more)
    print(text, end="")
    print(f"wrote {out}/interpret.json, interpret.txt and dimensions.csv")


def launch(main, *errors) -> None:
    """Run a program's main(): what the user can mend ends in one line and exit code 2.

    errors: other exceptions that the user can mend
    """
    program = Path(sys.argv[0]).name
    for stream in sys.stdout, sys.stderr:  # a terminal may lack a letter, a name may be no text
        if stream:  # None where it is closed
            stream.reconfigure(errors="backslashreplace")
    try:
        main()
    except BrokenPipeError:  # nobody reads on, as of "| head"
        os._exit(1)
    except KeyboardInterrupt:
        print(f"{program}: stopped before its end", file=sys.stderr)
        sys.exit(130)
    except (BadInput, OSError, MemoryError, RuntimeError, *errors) as error:
        # Where memory is short, numpy raises a MemoryError, torch a RuntimeError.
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        print(f"{program}: {' '.join(str(error).split())[:500]}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    launch(main)
