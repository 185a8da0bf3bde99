# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.6", "torchvision>=0.21", "numpy>=2.0"]
# ///
"""An embedding as a page to browse what its dimensions stand for, as pictures and as a table.

    python tools/look.py runs/my-run               a finished run, into its folder
    python tools/look.py runs/my-run runs/other    the first's page has all runs of the same images
    python tools/look.py embedding.npz --images images.npy --classes names.txt
    python tools/look.py latents.npz --labels y.npy --features h.npy --images folder/
    python tools/look.py latents.npz --texts rows.txt      a line for each row, or a JSON string

A file is what interpret.py reads: z (N, K), where you have them y, h, images and texts. Without
images the page has the texts, or neither. interpret.py says what counts as active and what the
numbers mean. The image files of a folder are in the order of --names, else of `names` beside z,
else of their sorted paths. Names may not lead out of the folder, by a link either; without names
links in it are followed.

To use look.py elsewhere, copy interpret.py, image_files.py and look.html with it. Runs also need
run_folder.py, and common.py in the folder above.

look.html            dimensions, images, and the words that tools/words.py found: one offline file
dimensions.csv       interpret.py's numbers, a row for each dimension, the most active first, unless
                     interpret.py has written it here

The page has the numbers of all dimensions, and pictures of the 2,000 with the largest F1 for a
class, else MonoScore, else mean activation; with --dims 500 --by n of the 500 with the largest n.

tools/draw.py draws the papers' figures of a run.
"""

import argparse
import base64
import csv
import dataclasses
import hashlib
import io
import json
import math
import os
import shlex
import sys
import unicodedata
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
for name in "interpret.py", "image_files.py", "look.html":
    if not (HERE / name).exists():
        print(f"look.py: {name} is missing: copy it to {HERE}", file=sys.stderr)
        sys.exit(2)

try:
    import run_folder  # of runs alone. First, because its common.py sets what torch reads
except ImportError:
    run_folder = None
import image_files  # noqa: E402
import interpret  # noqa: E402
from interpret import Activations, BadInput, need  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torchvision.transforms.v2.functional as TF  # noqa: E402
from PIL import Image  # noqa: E402
from torch import Tensor  # noqa: E402

ASSETS = HERE.parent / "assets"
# How much a page shows at most
DIMS = 2000  # dimensions with pictures, unless --dims says otherwise
PICTURED = 20_000  # images, at random
LARGEST = 64  # pixels of an image's side
LETTERS = 500  # of a text
CURVE = 300  # points of a curve at most: rounded to whole images, some coincide
LISTED = 1_500_000  # images of all dimensions, about; of more each dimension's list is thinned
# and of a dimension
STRONGEST = 48  # images on a screen; of a thinned list the strongest so many are there
PARTNERS = 8  # other dimensions that are active together with it
BINS = 32  # bars of its histogram
# and of an image
TOP = 32  # dimensions that it activates most
NEAR = 12  # nearest other images
# and of a class
TELLING = 10  # dimensions that tell it best
# A command that lists the files of a folder by the numbers in their names.
FILES = "glob.glob('**/*.*', root_dir='{}', recursive=True)"
NUMBER = "re.sub('[0-9]+', lambda n: n[0].zfill(20), name)"  # 7 becomes 00000000000000000007
LISTING = f"import glob, re; print(*sorted({FILES}, key=lambda name: {NUMBER}), sep='\\n')"
BY_NUMBER = f'python -c "{LISTING}" > files.txt'
OF_RECORD = "epochs", "explained_variance", "lp1", "background_lp1"  # of a run's final record
MARKS = {  # as interpret.MARKS
    "dimensions.csv": interpret.MARKS["dimensions.csv"],
    "look.html": b"'\">\n<title>look</title>",
}
KINDS = {  # numpy's and JavaScript's names
    "<f4": "Float32Array",
    "<i4": "Int32Array",
    "<u2": "Uint16Array",
    "|u1": "Uint8Array",
}
# Columns of interpret.py: what --by may name of all embeddings, and of those with a label
ORDERS = "n", "mean", "mono"
OF_LABEL = "cons", "adjusted", "entropy", "f1", "ap", "images_in_z_better"


@dataclasses.dataclass
class Source:
    """A run or a file, and what was found in it.

    A label's prefix is "" of y and "background_" of a second label: its columns begin with it.
    """

    path: Path
    folder: Path  # for what is written
    embedding: interpret.Embedding
    names: dict[str, dict[int, str]]  # label's prefix -> {number of a class: its name}
    config: dict = dataclasses.field(default_factory=dict)  # of a run
    tiles: Tensor | None = None  # (P, 3, side, side), the images of the page
    files: list[str] | None = None  # (P,), what they are called
    findings: interpret.Findings | None = None
    kept: np.ndarray | None = None  # (D,), the dimensions with pictures, ascending


# ---------------------------------------------------------------------------------- reading a run
def read_run(folder: Path) -> dict:
    """The settings of a finished run of an image method.

    They have beside them "record", the final one, and "words" of words.json or None.
    Raises BadInput where there is no run, or one that has not finished.
    """
    need(run_folder, f"{folder}: to read a run, look.py needs run_folder.py and common.py")
    config = vars(run_folder.read_run(folder))
    log = run_folder.read_log(folder)
    need(log and "epochs" in log[-1], f"{folder} has no final record: it has not finished")
    config["record"] = log[-1]
    config["words"] = None
    path = folder / "words.json"
    if path.exists():
        config["words"] = run_folder.common.read_json(path).get("words")
        need(are_words(config["words"]), f"{path} is damaged: delete it, and run tools/words.py")
    return config


def are_words(found) -> bool:
    """Whether this is a list for each dimension, of pairs: a word, a number."""
    lists = isinstance(found, list) and all(isinstance(pairs, list) for pairs in found)
    return lists and all(is_pair(pair) for pairs in found for pair in pairs)


def is_pair(pair) -> bool:
    """Whether this is a list of a word and a finite number."""
    is_list = isinstance(pair, list) and len(pair) == 2
    return is_list and isinstance(pair[0], str) and is_finite(pair[1])


def is_finite(value) -> bool:
    """Whether this is a finite number."""
    return isinstance(value, (int, float)) and abs(value) < math.inf


def test_images(config: dict, e: interpret.Embedding, root: str | None) -> np.ndarray:
    """The test images (N, H, W, 3) uint8 behind a run's embedding, which has its own labels.

    root: --data-root. Raises BadInput where the data set is another one by now.
    """
    data = run_folder.data_of(argparse.Namespace(**config | {"limit": None}), root)
    same = len(data.test["x"]) == e.N
    for label, classes in data.classes.items():
        prefix = "" if label == "y" else f"{label}_"
        if same and prefix in e.labels:
            same = np.array_equal(classes[data.test[label]], e.labels[prefix])
    where = f"{config['dataset']} under {root or config['data_root']}"
    need(same, f"{where} is not the data set of this run; give its --data-root")
    return data.test["x"].permute(0, 2, 3, 1).numpy()


def class_names_of_run(
    folder: Path, config: dict, root: str | None, given: Path | None, checked=False
) -> dict[str, list[str]]:
    """The names of a run's classes 0, 1, ... of each label, by its prefix; [] where unknown.

    They are in the first of these files that is there: given, --classes; the run's classes.txt,
    which mmncl.py writes; that of a known data set; that of tools/decode.py beside the data.
    root: --data-root. checked: the run's data have been found to be its own.

    A run may be somebody else's, so its config.json does not decide what is read from this disk.
    """
    dataset = config["dataset"]
    files = [given] if given else [run_folder.inside(folder, "classes.txt")]
    if isinstance(config.get("classes"), str):  # of nce.py it is a number
        gone = f"{files[0]}, the names of the classes, is not there: give --classes"
        need(files[0].exists(), gone)
    if not leads_out(dataset):
        files.append(ASSETS / "classes" / f"{dataset}.txt")
    beside = Path(root or config["data_root"], dataset)
    if checked or not leads_out(dataset if root else beside):
        files.append(beside / "classes.txt")
    names = {"": [], "background_": []}
    there = [file for file in files if file == given or file.exists()]
    if there:
        names[""] = interpret.lines_of(there[0])
    of_backgrounds = ASSETS / "classes" / f"{dataset}-backgrounds.txt"
    if not leads_out(dataset) and of_backgrounds.exists():
        names["background_"] = interpret.lines_of(of_backgrounds)
    return names


def leads_out(path: str | Path) -> bool:
    """Whether a path that stands in a file leads out of the folder that it is in."""
    return Path(path).is_absolute() or ".." in Path(path).parts


# ------------------------------------------------------------------------------- reading pictures
def image_at(images: np.ndarray | list[Path], i: int) -> Image.Image:
    """One image of an array or of image files, in RGB; BadInput: it cannot be read.

    The array is (N, H, W) or (N, H, W, 3) uint8, and may be memory-mapped.
    """
    if isinstance(images, np.ndarray):
        return Image.fromarray(np.ascontiguousarray(images[i])).convert("RGB")
    try:
        return image_files.read(images[i], at_least=2 * LARGEST)
    except Exception as error:  # what a damaged image may raise is not listed anywhere
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"{images[i]} cannot be read as an image ({reason})") from None


def read_squares(images: np.ndarray | list[Path], chosen: np.ndarray) -> Tensor:
    """The central squares of the chosen images, (n, 3, side, side) uint8.

    A square has at most LARGEST pixels a side; all are enlarged to the largest of them.
    """

    def square(i: int) -> Tensor:
        image = image_at(images, i)
        return TF.pil_to_tensor(image_files.square(image, min(LARGEST, *image.size)))

    with ThreadPoolExecutor() as pool:
        found = pool.map(square, chosen.tolist())
        tiles = [next(found) for _ in interpret.progress(chosen, "reading images")]
    side = max(tile.shape[-1] for tile in tiles)
    return torch.stack([TF.resize(tile, [side, side]) for tile in tiles])


def read_images(path: Path, given: Path | None, e: interpret.Embedding) -> np.ndarray | list[Path]:
    """The images of the embedding in a file of arrays, or in a folder of image files.

    given: a file that names the image files, row by row. BadInput for what is missing or unclear.
    """
    if path.is_dir():
        names = file_names(given, e)
        order = f"of {given}" if given else "of 'names'"
        if names is not None:
            need_inside(path, names, order)
        else:
            names = image_files.find(path)
            need(names, f"{path} has no image files ({', '.join(image_files.ENDINGS)})")
            order = "of their sorted paths"
            need_one_order(path, names)
        need(len(names) == e.N, f"z has {e.N} rows; {len(names)} images are in the order {order}")
        for row, name in enumerate(names):
            need((path / name).is_file(), f"{path / name}, of row {row}, is not there")
        print(f"{path}: {len(names):,} images in the order {order}: {', '.join(names[:3])}, ...")
        return [path / name for name in names]
    need(not given, f"--names {given} is of image files; {path} is not a folder")
    arrays = interpret.read_arrays(path)
    fitting = []
    shapes = []
    for key, a in arrays.items():
        if not isinstance(a, np.ndarray):
            continue
        shapes.append(f"{key or 'array'} {a.shape}")
        if a.ndim in (3, 4):
            fitting.append(a)
    if "images" in arrays:
        fitting = [arrays["images"]]
    shapes = ", ".join(shapes) or "none"
    need(len(fitting) == 1, f"{path}: which array is the images? There are: {shapes}")
    return channels_last(fitting[0], path)


def file_names(given: Path | None, e: interpret.Embedding) -> list[str] | None:
    """What the image files are called, row by row: as given, else beside z; None if nowhere."""
    names = e.names
    if given is not None:
        kind = given.suffix.lower()
        if kind == ".csv":
            return file_names_of_set(given, e.N)
        if kind not in (".npy", ".npz"):
            return interpret.lines_of(given)
        names = interpret.choose_array(interpret.read_arrays(given), "names", 1, given, "the names")
    if names is None:
        return None
    are_words = isinstance(names, np.ndarray) and names.dtype.kind in "US"
    need(are_words, "the names of image files must be words")
    return [os.fsdecode(name) for name in names.ravel()]


def file_names_of_set(table: Path, N: int) -> list[str]:
    """The N files of the training or of the test set in tools/decode.py's split.csv."""
    need(table.is_file(), f"{table} is not there")
    sets = {"train": [], "test": []}
    with open(table, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file)
        need("file" in (rows.fieldnames or ()), f"{table} has no column 'file'")
        try:
            for row in rows:
                sets.setdefault(row.get("set"), []).append(row["file"] or "")
        except csv.Error as error:
            raise BadInput(f"{table} cannot be read as a table ({error})") from None
    fitting = [names for names in sets.values() if len(names) == N]
    sizes = ", ".join(f"{len(names)} of {name}" for name, names in sets.items())
    need(len(fitting) == 1, f"{table} names {sizes}: which are the {N} rows of z? Give a text file")
    return fitting[0]


def need_inside(folder: Path, names: list[str], order: str) -> None:
    """BadInput where a file names an image file that is not in the folder."""
    real = os.path.realpath(folder)
    for row, name in enumerate(names):
        stays = not leads_out(name) and "\0" not in name
        if stays:
            at = os.path.realpath(folder / name)
            stays = os.path.commonpath([real, at]) == real
        told = f"row {row} {order} is {name!r}, which leads out of {folder}"
        need(stays, f"{told}: names are paths in that folder")


def need_one_order(folder: Path, names: list[str]) -> None:
    """BadInput where programs would sort the image files otherwise."""
    first = sorted(names, key=image_files.ORDERS["sorted"])
    for program, key in image_files.ORDERS.items():
        for one, other in zip(first, sorted(names, key=key)):
            text = f"{folder}: whose order? Where sorted() has {one}, {program} has {other}"
            remedy = "say with --names, a text file, which row of z is which"
            if program == "natural":
                remedy += f". In the order of numbers: {BY_NUMBER.format(folder)}"
            need(one == other, f"{text}: {remedy}")


def channels_last(images: np.ndarray, path: Path) -> np.ndarray:
    """Images as image_at takes them, of (N, 3, H, W) and the like; BadInput for other arrays."""
    need(images.dtype == np.uint8, f"{path}: images are {images.dtype}; they must be uint8")
    need(images.size, f"{path}: images have shape {images.shape}: no pixel")
    if images.ndim == 4 and images.shape[3] not in (1, 3) and images.shape[1] in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    forms = "(N, H, W, 3), (N, 3, H, W) or (N, H, W)"
    good = images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)
    need(good, f"{path}: images have shape {images.shape}; it must be {forms}")
    return images


# ------------------------------------------------------------------------- what the page is made of
def of_most_interest(findings: interpret.Findings, most=DIMS, by: str | None = None) -> np.ndarray:
    """The live dimensions of which the page has pictures, at most so many, ascending.

    Those that are largest in the column `by`. Without it: with labels in F1 for any class of any of
    them; else in MonoScore, or without a judge in mean activation.
    """
    columns = findings.columns
    interest = columns[by] if by else columns.get("mono", columns["mean"])
    if findings.labels and not by:
        interest = np.fmax.reduce([columns[prefix + "f1"] for prefix in findings.labels])
    order = np.argsort(-np.nan_to_num(interest, nan=-np.inf), kind="stable")
    order = order[columns["n"][order] > 0]
    return np.sort(order[:most])


def check_order(by: str, e: interpret.Embedding) -> None:
    """BadInput unless --by names a column that this embedding will have."""
    names = [name for name in ORDERS if name != "mono" or e.judge is not None]
    names += [prefix + name for prefix in e.labels for name in OF_LABEL]
    need(by in names, f"--by {by}: {e.title} has {', '.join(names)}")


def random_images(N: int) -> np.ndarray:
    """The images of the page: all N, or PICTURED of them at random."""
    if N <= PICTURED:
        return np.arange(N)
    return np.sort(np.random.default_rng(0).choice(N, PICTURED, replace=False))


def only_images(a: Activations, chosen: np.ndarray) -> Activations:
    """The same dimensions, active on the chosen images alone, which keep their numbers."""
    is_chosen = np.zeros(a.N, bool)
    is_chosen[chosen] = True
    kept = is_chosen[a.images]
    offsets = interpret.offsets_of(np.bincount(a.dims[kept], minlength=a.K))
    return Activations(a.images[kept], a.values[kept], offsets, a.N)


def thinned(a: Activations) -> np.ndarray:
    """The entries of a that the page lists: all, or of each dimension at most so many that there
    are LISTED in all; then they are the strongest, and others evenly spread over its list.
    """
    most = a.N
    while most > STRONGEST and np.minimum(a.n, most).sum() > LISTED:
        most //= 2
    kept = []
    for start, n in zip(a.start.tolist(), a.n.tolist()):
        spread = np.linspace(0, n - 1, min(n, most)).round().astype(int)
        kept.append(start + np.union1d(np.arange(min(n, STRONGEST)), spread))
    return np.concatenate([np.zeros(0, int), *kept])


def active_together(a: Activations, kept: np.ndarray) -> dict[str, np.ndarray]:
    """For each of the kept dimensions (D,) the others of a that are active together with it.

    together   (D, PARTNERS) by images of both over images of either, the largest first; K: none
    both       (D, PARTNERS) the images of both
    """
    found = {name: np.zeros((len(kept), min(PARTNERS, a.K)), int) for name in ("together", "both")}
    for place, both in enumerate(interpret.shared_images(a, kept)):
        k = kept[place]
        share = both / (a.n + a.n[k] - both)
        share[k] = 0
        order = np.argsort(-share, kind="stable")[:PARTNERS]
        found["together"][place] = np.where(share[order] > 0, order, a.K)
        found["both"][place] = both[order]
    return found


def arrays_of_dimensions(
    a: Activations, kept: np.ndarray, chosen: np.ndarray, labels: dict[str, interpret.Label]
) -> dict[str, np.ndarray]:
    """What the page shows of the kept dimensions of a, D, beside interpret.py's columns.

    kept       (D,) which they are
    peak       (D,) their largest strengths
    seen       (D,) how many of the chosen images activate them
    start      (D + 1,) where their lists begin, and where the last one ends
    listed     the chosen images that activate them, the strongest first, as `thinned` has them
    strength   of these, 255 is the dimension's peak
    bins       (D, BINS) a histogram of its strengths
    <prefix>count (D, C), its images of each class; and active_together()
    """
    own = a.only(kept)
    peak = own.strengths[own.start[:-1]]
    share = own.strengths / peak[own.dims]
    bin_of_entry = (share * BINS).astype(int).clip(max=BINS - 1)
    histogram = np.bincount(own.dims * BINS + bin_of_entry, minlength=own.K * BINS)

    seen = only_images(own, chosen)
    places = thinned(seen)
    dims = seen.dims[places]
    found = {
        "kept": kept,
        "peak": peak,
        "seen": seen.n,
        "start": interpret.offsets_of(np.bincount(dims, minlength=own.K)),
        "listed": seen.images[places],
        "strength": (255 * seen.strengths[places] / peak[dims]).round().astype(np.uint8),
        "bins": histogram.reshape(own.K, BINS),
    }
    for prefix, label in labels.items():
        counts = interpret.class_counts(own, label.y, len(label.classes))
        found[prefix + "count"] = counts.T
    return found | active_together(a, kept)


def tell_best(a: Activations, label: interpret.Label) -> dict[str, np.ndarray]:
    """The TELLING dimensions that tell each class best, by F1, (C, TELLING), and their hits."""
    C = len(label.classes)
    most = min(TELLING, a.K)
    scores = np.zeros((C, 0))
    dims = np.zeros((C, 0), int)
    hits = np.zeros((C, 0), int)
    for part in interpret.pieces(a.K, C):
        few = a.only(part)
        counts = interpret.class_counts(few, label.y, C)  # (C, width)
        numbers = np.broadcast_to(np.arange(part.start, part.start + few.K), counts.shape)
        scores = np.concatenate([scores, interpret.f1_scores(counts, label.sizes)], 1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
        scores = np.take_along_axis(scores, order, 1)
        dims = np.take_along_axis(np.concatenate([dims, numbers], 1), order, 1)
        hits = np.take_along_axis(np.concatenate([hits, counts], 1), order, 1)
    return {"telling": dims, "hits": hits}


def compared_with(label: interpret.Label, n: np.ndarray) -> dict[str, np.ndarray]:
    """Cons. of n images (m,) by chance, and of the first n of each family's orders, (m,) each.

    chance, <family>              the means
    high                          what 5 % of random images exceed
    <family>_low, <family>_high   what 5 % of the orders fall below, and what 5 % exceed
    """
    found = {"chance": label.chance[n - 1], "high": label.high[n - 1]}
    for name, curves in label.families.items():
        at_n = curves[:, n - 1]  # (orders, m)
        low, high = np.quantile(at_n, [1 - interpret.USUAL, interpret.USUAL], axis=0)
        found[name] = at_n.mean(0, dtype=np.float64)
        found |= {f"{name}_low": low, f"{name}_high": high}
    return found


def arrays_of_images(
    e: interpret.Embedding, a: Activations, chosen: np.ndarray
) -> dict[str, np.ndarray]:
    """What the page shows of the chosen images, P rows each.

    dims       (P, TOP) the strongest dimensions that it activates; K: none
    size       (P, TOP) their values
    actives    (P,) how many it activates
    near       (P, NEAR) the nearest images by cosine in z, of a sparse z in the judge's features
    close      (P, NEAR) their cosines
    """
    turned = interpret.Entries(a.dims, a.images, a.values, a.K, a.N)
    lists = interpret.sort_by_dimension(turned).only(chosen)  # of each image its dimensions
    top = lists.ranks < min(TOP, a.K)
    cells = lists.dims[top], lists.ranks[top]
    dims = np.full((len(chosen), min(TOP, a.K)), a.K)
    dims[cells] = lists.images[top]
    values = np.zeros(dims.shape, np.float32)
    values[cells] = lists.values[top]
    found = {
        "dims": dims,
        "size": values,
        "actives": lists.n,
    }
    features = e.z
    if isinstance(e.z, interpret.Entries):
        features = e.judge
    if features is not None:
        x = torch.from_numpy(np.array(features[chosen], np.float32))
        x = F.normalize(x)
        near, close = [], []
        for piece in interpret.pieces(len(x), len(x)):
            cosines = x[piece] @ x.T
            cosines.diagonal(piece.start).fill_(-2)  # an image is not its own neighbour
            largest = cosines.topk(min(NEAR, len(x) - 1), 1)
            close.append(largest.values)
            near.append(largest.indices)
        found["near"] = chosen[torch.cat(near).numpy()]
        found["close"] = torch.cat(close).numpy()
    return found


# --------------------------------------------------------------------------------------- the page
def pack(arrays: dict[str, np.ndarray]) -> tuple[dict[str, list], str]:
    """{name: array} -> {name: [JavaScript's type, offset, length]}, and all in base64, compressed.

    Floats of 32 bits, integers of 32 or as few as they need.
    """
    where = {}
    parts = []
    at = 0
    for name, a in arrays.items():
        a = np.asarray(a)
        kind = "<f4" if a.dtype.kind == "f" else "<i4"
        if a.dtype == np.uint8:
            kind = "|u1"
        elif kind == "<i4" and a.size and 0 <= a.min() and a.max() < 2**16:
            kind = "<u2"
        where[name] = [KINDS[kind], at, a.size]
        part = a.astype(kind).tobytes()
        part += bytes(-len(part) % 4)  # arrays of 32 bits begin at multiples of 4
        parts.append(part)
        at += len(part)
    return where, base64.b64encode(zlib.compress(b"".join(parts), 9)).decode()


def shortened(text: str) -> str:
    """A text as the page shows it: its first letters, with a space for what ends a line or is no
    letter at all."""
    kept = text[: LETTERS + 1]
    kept = "".join(" " if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in kept)
    return kept if len(text) <= LETTERS else kept[:LETTERS] + "…"


def as_bytes(texts: list[str]) -> np.ndarray:
    """Texts as the bytes of a JSON list, (bytes,) uint8."""
    return np.frombuffer(json.dumps(texts).encode(), np.uint8)


def make_sprites(images: Tensor, quality=85) -> tuple[dict[str, int], list[str]]:
    """Images (N, 3, side, side) uint8 as tiles of JPEGs in base64, and their geometry.

    A JPEG has less than 16 megapixels, which phones take. From one tile to the next it is a
    multiple of 16 pixels, the pitch, so that no block of the compression has parts of two.
    """
    side = images.shape[-1]
    pitch = 16 * math.ceil(side / 16)
    margin = pitch - side
    columns = min(4096 // pitch, len(images))
    rows = 15_900_000 // (columns * pitch * pitch)
    sheets = []
    for part in images.split(columns * rows):
        tiles = F.pad(part.float(), (0, margin, 0, margin), mode="replicate").byte()
        missing = -len(part) % columns
        tiles = torch.cat([tiles, tiles.new_full((missing, 3, pitch, pitch), 127)])
        grid = tiles.view(-1, columns, 3, pitch, pitch).permute(2, 0, 3, 1, 4)
        sheet = TF.to_pil_image(grid.reshape(3, -1, columns * pitch))
        jpeg = io.BytesIO()
        sheet.save(jpeg, "jpeg", quality=quality)
        sheets.append(base64.b64encode(jpeg.getvalue()).decode())
    return {"side": side, "pitch": pitch, "columns": columns, "rows": rows}, sheets


def finite(numbers: dict) -> dict:
    """Those that are defined."""
    result = {}
    for key, value in numbers.items():
        if is_finite(value):
            result[key] = value
    return result


def counts_of_curves(sources: list[Source]) -> np.ndarray:
    """The numbers of images for which the page knows what chance and families give.

    Those of the dimensions, and for the curves 1, ..., N, evenly on a log scale.
    """
    N = sources[0].embedding.N
    counts = [np.geomspace(1, N, CURVE).round().astype(int)]
    counts += [source.findings.activations.n for source in sources]
    return np.setdiff1d(np.concatenate(counts), 0)


def arrays_of(source: Source, chosen: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """What the page holds of a run or file: arrays by their names."""
    findings = source.findings
    a = findings.activations
    columns = findings.columns
    arrays = {name: columns[name] for name in (*ORDERS, "group") if name in columns}
    arrays |= arrays_of_dimensions(a, source.kept, chosen, findings.labels)
    arrays |= arrays_of_images(source.embedding, a, chosen)
    for prefix, label in findings.labels.items():
        own = {name: columns[prefix + name] for name in ("class", "best", *OF_LABEL)}
        own |= tell_best(a, label) | compared_with(label, counts)
        arrays |= {prefix + name: array for name, array in own.items()}
    return arrays


def facts_of(source: Source) -> dict:
    """What the page says of a run or file."""
    e = source.embedding
    findings = source.findings
    a = findings.activations
    config = source.config
    record = {}
    words = None
    if config:
        record = {key: config["record"].get(key) for key in OF_RECORD}
        words = config["words"]
    near = "z"
    if isinstance(e.z, interpret.Entries):
        near = e.judge_name
    facts = {
        "name": e.title,
        "dataset": config.get("dataset", ""),
        "K": a.K,
        "halves": a.halves,
        "top": min(TOP, a.K),
        "together": min(PARTNERS, a.K),
        "metrics": finite(record | findings.numbers),
        "control": finite(findings.controls["images_in_z"]),
        "families": [name for name in interpret.FAMILIES if name in findings.controls],
        "about": interpret.describe(e, findings),
        "words": words,
        "id": hashlib.sha256(a.images.tobytes() + a.start.tobytes()).hexdigest()[:16],
        "near": near,
        "is_run": bool(config),
    }
    for key in "command", "commit", "date":
        facts[key] = str(config.get(key) or "not noted")
    return facts


def best_told(findings: interpret.Findings) -> int:
    """Which label the page opens on: that with the largest mean adj."""
    told = [findings.numbers[prefix + "adjusted"] or 0.0 for prefix in findings.labels]
    return int(np.argmax(told)) if told else 0


def class_names_on_page(label: interpret.Label, prefix: str, known: dict[int, str]) -> list[str]:
    """The names of classes on the page: "class 0" or "background 0" where nobody knows them."""
    what = prefix.removesuffix("_") or "class"
    numbered = {c: f"{what} {c}" for c in label.classes.tolist()}
    places = range(len(label.classes))
    return [interpret.class_name(label, place, numbered | known) for place in places]


def class_names_of_first(sources: list[Source], prefix: str) -> dict[int, str]:
    """A label's names by the first of these sources that knows them; {} where none does."""
    for source in sources:
        if source.names.get(prefix):
            return source.names[prefix]
    return {}


def make_page(sources: list[Source], command: str) -> str:
    """look.html of runs and files of the same images, written by `command`.

    Its arrays, where q is a label's place among the labels and r a source's among the sources:
    images      (P,) the numbers of the images that it shows
    files       what their files are called, as_bytes(), if there are files
    texts       and their texts
    counts      the numbers of images for which compared_with() says what they give
    label<q>    (N,) of each image the place of its class
    base<q>     (C,) the images of each class
    <r>partner  (K,) of each dimension the best partner in the source beside it
    <r>alike    (K,) and their correlation
    <r><name>   a column of interpret.py, or what arrays_of_dimensions, arrays_of_images, tell_best
                or compared_with call so
    """
    first = sources[0].embedding
    labels = sources[0].findings.labels
    chosen = random_images(first.N)
    tiles = sources[0].tiles
    counts = counts_of_curves(sources)
    arrays = {"images": chosen, "counts": counts}
    if sources[0].files:
        arrays["files"] = as_bytes(sources[0].files)
    if first.texts is not None:
        arrays["texts"] = as_bytes([shortened(text) for text in first.texts[chosen].tolist()])
    names = []
    for q, (prefix, label) in enumerate(labels.items()):
        arrays[f"label{q}"] = label.y
        arrays[f"base{q}"] = label.sizes
        names.append(class_names_on_page(label, prefix, class_names_of_first(sources, prefix)))
    facts = []
    for r, source in enumerate(sources):
        fact = facts_of(source)
        own = arrays_of(source, chosen, counts)
        if len(sources) > 1:
            fact["beside"] = 0 if r else 1
            other = sources[fact["beside"]].findings.activations
            found = interpret.partners(source.findings.activations, other)
            own |= {"partner": found.of_first, "alike": found.r_first}
        facts.append(fact)
        for name, array in own.items():
            arrays[f"{r}{name}"] = array

    where, numbers = pack(arrays)
    geometry = None
    sheets = []
    if tiles is not None:
        geometry, sheets = make_sprites(tiles)
    meta = {
        "N": first.N,
        "labels": names,
        "keys": list(labels),
        "opens": best_told(sources[0].findings),
        "runs": facts,
        "screen": STRONGEST,
        "telling": TELLING,
        "near": min(NEAR, len(chosen) - 1),
        "bins": BINS,
        "tile": geometry,
        "arrays": where,
        "command": command,
    }
    return fill_template(meta, numbers, sheets)


def fill_template(meta: dict, numbers: str, sheets: list[str]) -> str:
    """tools/look.html with a page's contents in their places."""
    text = (HERE / "look.html").read_text(encoding="utf-8")
    script = text.split("<script>")[1].split("</script>")[0]  # the one that may run
    digest = hashlib.sha256(script.encode()).digest()
    sheets = [f'<script type="text/plain" class="sheet">{sheet}</script>' for sheet in sheets]
    text = text.replace("{{hash}}", base64.b64encode(digest).decode())
    text = text.replace("{{numbers}}", numbers)
    text = text.replace("{{sheets}}", "\n".join(sheets))
    meta = json.dumps(meta, sort_keys=True).replace("<", "\\u003c")
    return text.replace("{{meta}}", meta)  # the last, as a name of a class may be {{numbers}}


# ------------------------------------------------------------------------------------ the program
def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = interpret.Parser(
        prog="look.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    add("sources", nargs="+", type=Path, help="folders of runs, files with an embedding z (N, K)")
    add("--labels", type=Path, help="a file with labels y (N,)")
    add("--features", type=Path, help="a file with the features h (N, d) that z is made of")
    add("--judge", type=Path, help="a file with another network's features (N, d) of the images")
    add("--classes", type=Path, help="a file with the name of class 0, 1, ... on each line")
    add("--images", type=Path, help="a file with uint8 images, or a folder of image files")
    of_names = "the files in that folder, row by row: a text file, an .npz with names, split.csv"
    add("--names", type=Path, help=of_names)
    add("--texts", type=Path, help="a file with the text of each row on a line of its own")
    add("--dims", type=int, default=DIMS, help="how many dimensions have pictures")
    add("--by", help="in which column of dimensions.csv these are the largest")
    active = "auto, nonzero or top:<share of images>"
    add("--active", default="auto", help=active)
    add("--data-root", help="folder of the data sets (default: the run's)")
    out = "folder (default: the run's, else <file>-interpret); of several, a folder in it for each"
    add("--out", type=Path, help=out)
    return flags


def source_name(path: Path) -> str:
    """What a run or file is called: the folder's name, or the file's without its ending."""
    if path.is_file():
        return path.resolve().stem
    return path.resolve().name


def folders_for(paths: list[Path], out: Path | None) -> list[Path]:
    """Where to write what is made of each path. BadInput: two would go into one folder."""
    if len(paths) == 1 or out is None:
        folders = [interpret.folder_for(path, out) for path in paths]
    else:
        folders = [out / source_name(path) for path in paths]
    is_double = len({folder.resolve() for folder in folders}) < len(folders)
    need(not is_double, f"two sources would be in one folder: {', '.join(map(str, folders))}")
    return folders


def read_file(path: Path, folder: Path, args: argparse.Namespace) -> Source:
    """The embedding of a file, with its own images unless others are given."""
    e = interpret.read_embedding(path, args.labels, args.features, args.judge)
    source = Source(path, folder, e, {"": interpret.read_class_names(args.classes, e)})
    if e.images is not None and not args.images:
        source.tiles = read_squares(channels_last(e.images, path), random_images(e.N))
    return source


def read_folder(path: Path, folder: Path, args: argparse.Namespace) -> Source:
    """The embedding of a run, with its own images unless others are given."""
    e = interpret.read_embedding(path, None, args.features, args.judge)
    config = read_run(path)
    source = Source(path, folder, e, {}, config)
    if not args.images:
        source.tiles = read_squares(test_images(config, e, args.data_root), random_images(e.N))
    known = class_names_of_run(path, config, args.data_root, args.classes, not args.images)
    for prefix, names in known.items():
        source.names[prefix] = dict(enumerate(names))
    if args.labels:
        e.saved = e.labels.get("")
        arrays = interpret.read_arrays(args.labels)
        e.labels[""] = interpret.choose_array(arrays, "y", 1, args.labels, "the labels y")
        e.labels = interpret.check_embedding(e)
        config["record"].pop("lp1", None)  # the record's probe was of other labels
        source.names[""] = {}  # whose classes these are, nobody knows
    if args.classes:
        source.names[""] = interpret.read_class_names(args.classes, e)
    return source


def need_same_images(one: Source, other: Source) -> None:
    """BadInput where two embeddings are not of the same images, with the same kinds of labels."""
    a = one.embedding
    b = other.embedding
    interpret.need_same_images(a, b, other.path)
    need(a.labels.keys() == b.labels.keys(), f"{other.path} has other labels")
    need(np.array_equal(a.texts, b.texts), f"{other.path} has other texts")
    same = one.tiles is None or other.tiles is None or torch.equal(one.tiles, other.tiles)
    need(same, f"{other.path} has other pictures")


def give_images(sources: list[Source], path: Path, names: Path | None) -> None:
    """The images at this path, for all sources; BadInput where they do not fit."""
    first = sources[0].embedding
    images = read_images(path, names, first)
    for source in sources:
        e = source.embedding
        need(len(images) == e.N, f"{source.path}: z has {e.N} rows, {path} has {len(images)}")
        same = names or not path.is_dir() or np.array_equal(e.names, first.names)
        need(same, f"{source.path} has other 'names' of its images: give --names, or show it alone")
    chosen = random_images(first.N)
    tiles = read_squares(images, chosen)
    files = None
    if path.is_dir():
        files = [str(images[i].relative_to(path)) for i in chosen]
    for source in sources:
        source.tiles = tiles
        source.files = files


def give_texts(sources: list[Source], path: Path) -> None:
    """The texts in this file, for all sources; BadInput where they do not fit."""
    lines = interpret.lines_of(path)
    for source in sources:
        e = source.embedding
        need(len(lines) == e.N, f"{source.path}: z has {e.N} rows, {path} has {len(lines)} lines")
        e.texts = np.array(lines, object)  # else each is as large as the longest


def measure(source: Source, args: argparse.Namespace) -> None:
    """Measure what was read: its findings, and their table as a file."""
    e = source.embedding
    print(f"{e.title}: measuring {e.K:,} dimensions on {e.N:,} {e.things} ...", flush=True)
    source.findings = interpret.interpret(e, args.active)
    source.kept = of_most_interest(source.findings, args.dims, args.by)
    names = source.names.get("", {})
    if not (source.folder / "interpret.json").exists():  # its table would not fit to it
        interpret.write_csv(source.folder / "dimensions.csv", source.findings, names)


def write_page(source: Source, shown: list[Source], command: str) -> None:
    """look.html of the sources shown, into the folder of this one."""
    text = make_page(shown, command)
    path = source.folder / "look.html"
    with interpret.replacing(path) as file:
        file.write(text)
    print(f"open {path} in a browser ({len(text) / 1e6:.1f} MB)")


def main(argv=None):
    if argv is None:
        argv = sys.argv[1:]
    args = parser().parse_args(argv)
    command = shlex.join(["python", "tools/look.py", *argv])
    for path in args.sources:
        need(path.exists(), f"{path} is not there")
    interpret.check_rule(args.active)
    need(args.images or not args.names, "--names names the files of --images, a folder")
    need(args.dims > 0, f"--dims {args.dims}: give the number of dimensions with pictures")

    sources = []
    for path, folder in zip(args.sources, folders_for(args.sources, args.out)):
        read_source = read_file if path.is_file() else read_folder
        sources.append(read_source(path, folder, args))
    if args.images:
        give_images(sources, args.images, args.names)
    if args.texts:
        give_texts(sources, args.texts)
    for source in sources:
        if args.by:
            check_order(args.by, source.embedding)
        interpret.make_folder(source.folder, MARKS)
    for source in sources:
        measure(source, args)
    first, *others = sources
    beside = [first]
    for other in others:
        try:
            need_same_images(first, other)
            beside.append(other)
        except BadInput as error:
            print(f"{error}: it has a page of its own, and is not on the first one")
    write_page(first, beside, command)
    for other in others:
        write_page(other, [other], command)


if __name__ == "__main__":
    interpret.launch(main, *([run_folder.BadInput] if run_folder else []))
