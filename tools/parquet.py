"""Images in Parquet files, as Hugging Face's datasets writes them, for tools/decode.py.

    data/train-00000-of-00002.parquet    the name of a file or of its folder contains "train",
    test/0000.parquet                    "test" or "validation", which says what set it belongs to
    image     bytes of an image file, or {bytes, path}, where the path stays in the file's folder
    label     a word, or the number of a class whose name is in the schema's metadata; null or -1
              if it is missing

An image is called <file>#<row>.
"""

import contextlib
import io
import itertools
import json
import os
import re
from collections import defaultdict
from pathlib import Path

import common
from common import progress
from run_folder import inside

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import types
except ImportError as error:
    raise common.BadInput(f"Parquet files need: pip install pyarrow ({error})") from None

PARTS = {  # what names say, as in datasets
    "train": ("train", "training"),
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "val", "dev"),
}
SHARD = re.compile(r"(.*)-\d+-of-(\d+)(?:-\w+)?\.parquet", re.IGNORECASE)


# ------------------------------------------------------------------------------------------ labels
def find_rows(folder: Path, files: list[str], wanted: str | None):
    """{"train": images, "test": images}, each image a name and a class number; and the class names.

    files: names in the folder, in order; wanted: the column of labels, if there are several
    If "test" is missing, or is the only set without labels, "validation" takes its place.
    BadInput if something is missing or does not fit.
    """
    need_complete(folder, files)
    labels = {part: {} for part in PARTS}  # of each image; None: missing
    all_names = set()
    for file in progress(files, "Parquet files, labels read:"):
        own, names = labels_of(folder / file, wanted)
        if any(label is not None for label in own):
            all_names.add(names)
        for row, label in enumerate(own):
            labels[part_of(file) or "train"][f"{folder / file}#{row}"] = label
    common.need(len(all_names) < 2, f"{folder}: its files have different class names")
    common.need(labels["train"], f"{folder} has no Parquet file of a training set")

    with_labels = [part for part, own in labels.items() if is_labelled(part, own)]
    test, other = "test", "validation"
    if not labels[test] or (test not in with_labels and other in with_labels):
        test, other = other, test
    if labels[other]:
        print(f"{folder}: the '{other}' files are not used")
    alike = ("train" in with_labels) == (test in with_labels)
    common.need(alike or not labels[test], f"{folder}: of train and {test} one has no labels")

    classes = []
    numbers = {None: 0}
    if "train" in with_labels:
        (names,) = all_names
        found = {*labels["train"].values()}
        one_kind = len({type(label) for label in found}) == 1
        common.need(one_kind, f"{folder}: labels are numbers in one file and words in another")
        values = range(len(names)) if names else sorted(found)
        classes = [str(name) for name in names or values]
        numbers = {value: number for number, value in enumerate(values)}
    else:
        print(f"{folder}: no labels, as there is no column 'label'; name another with --label")
    return {
        "train": numbered(labels["train"], numbers),
        "test": numbered(labels[test], numbers),
    }, classes


def numbered(labels: dict, numbers: dict) -> list[tuple[str, int]]:
    """Images with their class numbers; BadInput for a class without a number."""
    images = []
    for image, label in labels.items():
        known = label in numbers
        common.need(known, f"{image}: class {label} has neither a name nor a training image")
        images.append((image, numbers[label]))
    return images


def need_complete(folder: Path, files: list[str]) -> None:
    """BadInput for a missing shard, or a file that might belong to any set."""
    shards = defaultdict(int)
    folders = defaultdict(set)
    for file in files:
        if shard := SHARD.fullmatch(file):
            shards[shard.groups()] += 1
        folders[part_of(file)].add(os.path.dirname(file))
        remedy = "put the set into the file's name, or remove the file"
        unsaid = part_of(file) == "" and any(map(part_of, files))
        common.need(not unsaid, f"{folder / file}: of which set is this file? {remedy}")
    for (name, total), count in shards.items():
        wanted = f"of {folder / name}-*-of-{total}.parquet {count} are there, not {int(total)}"
        common.need(count == int(total), wanted)
    for part, own in folders.items():
        several = f"{folder}: files of '{part}' are in {', '.join(sorted(own))}; give one of these"
        common.need(len(own) == 1, several)


def part_of(file: str) -> str:
    """Which set a file belongs to, by its name, else by its folder's, and so on; "" if unknown."""
    for name in reversed(Path(file.lower()).parts):
        for word in re.findall("[a-z]+", name):
            for part, words in PARTS.items():
                if word in words:
                    return part
    return ""


def is_labelled(part: str, labels: dict) -> bool:
    """Whether all of these images have labels; BadInput if only some of them do."""
    without = [image for image, label in labels.items() if label is None]
    some = 0 < len(without) < len(labels)
    remedy = "remove such rows, or the column"
    text = f"{part}: {len(without)} of {len(labels)} images have no label, first"
    common.need(not some, f"{text} {without[:1]}; {remedy}")
    return bool(labels) and not without


def labels_of(file: Path, wanted: str | None) -> tuple[list, tuple[str, ...]]:
    """The label of each image, None if it is missing, and the class names or ()."""
    with reading(file), pq.ParquetFile(file) as table:
        schema = table.schema_arrow
        image_column(schema, file)  # or says that there is none
        column, names = label_column(schema, file, wanted)
        if column is None:
            return table.metadata.num_rows * [None], ()
        labels = table.read([column]).column(0).to_pylist()
    return [None if label == -1 else label for label in labels], names


# ------------------------------------------------------------------------------------------ columns
@contextlib.contextmanager
def reading(file):
    """BadInput if a file is damaged or is not a Parquet file."""
    try:
        yield
    except common.BadInput:
        raise
    except (OSError, LookupError, RuntimeError, ValueError, pa.ArrowException) as error:
        raise common.BadInput(f"{file} cannot be read as Parquet ({error})") from error


def features_of(schema: pa.Schema) -> dict[str, dict]:
    """What Hugging Face's metadata say about each column."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {name: of for name, of in features.items() if isinstance(of, dict)}
    # Another program's, or none.
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return {}


def label_column(schema: pa.Schema, file: Path, wanted: str | None):
    """The column of the labels, None if there is none, and the class names or ()."""
    features = features_of(schema)
    candidates = [wanted] if wanted else [name for name in schema.names if name == "label"]
    if not candidates:
        kinds = {name: features.get(name, {}).get("_type") for name in schema.names}
        candidates = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    if not candidates:
        return None, ()
    several = f"{file}: which of {', '.join(candidates)} holds the labels? Choose with --label"
    common.need(len(candidates) == 1, several)
    (column,) = candidates
    there = column in schema.names
    common.need(there, f"{file} has no column {column}; there are {', '.join(schema.names)}")
    kind = kind_of(schema.field(column))
    words = types.is_string, types.is_large_string, types.is_string_view
    right = any(is_kind(kind) for is_kind in (types.is_integer, *words, types.is_null))
    common.need(right, f"{file}: {column} is {kind}; labels are integers or words")
    names = features.get(column, {}).get("names") or []
    right = isinstance(names, list) and all(isinstance(name, str) for name in names)
    common.need(right, f"{file}: the metadata's names of classes are not a list of words")
    return column, tuple(names)


def kind_of(field: pa.Field) -> pa.DataType:
    """The type of a column's values, however they are encoded."""
    return field.type.value_type if types.is_dictionary(field.type) else field.type


def image_column(schema: pa.Schema, file: Path) -> str:
    """The column of the images; BadInput unless there is exactly one."""
    of_bytes = types.is_binary, types.is_large_binary, types.is_binary_view
    found = []
    for field in schema:
        kind = kind_of(field)
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind_of(kind.field("bytes"))
        if any(is_kind(kind) for is_kind in of_bytes):
            found.append(field.name)
    wanted = "one column of images, as bytes or {bytes, path}"
    common.need(len(found) == 1, f"{file} needs {wanted}; it has {found}")
    return found[0]


# -------------------------------------------------------------------------------------- their bytes
def contents(images: list[str]):
    """Yield each image in a form that image_files.read takes, in order, with few in memory."""
    in_pieces = dict(pre_buffer=False, buffer_size=2**20)  # else a group of rows is read as a whole
    for file, own in itertools.groupby(images, lambda image: image.rpartition("#")[0]):
        wanted = {int(image.rpartition("#")[2]) for image in own}
        row = 0
        with reading(file), pq.ParquetFile(file, **in_pieces) as table:
            column = image_column(table.schema_arrow, file)
            for batch in table.iter_batches(16, columns=[column]):
                for value in batch.column(0):
                    if row in wanted:
                        yield source_of(value.as_py(), file)
                    row += 1


def source_of(value: bytes | dict | None, file: str):
    """An image's bytes as a file, or the path to them."""
    if isinstance(value, dict):
        if value["bytes"] is None and value.get("path"):
            return inside(Path(file).parent, str(value["path"]))
        value = value["bytes"]
    return io.BytesIO(value or b"")
