"""Images in Parquet files, as Hugging Face's datasets writes them, for tools/decode.py.

    data/train-00000-of-00002.parquet    "train", "test" or "validation", in the name of a file or
    test/0000.parquet                    of its folder, says of which set it is
    image     bytes of an image file, or {bytes, path}
    label     the number of a class, whose name is in the schema's metadata, or a word; a missing
              one is null or -1

An image is called <file>#<row>.
"""

import bisect
import contextlib
import io
import itertools
import json
import re
from collections import defaultdict
from pathlib import Path

import common

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

PART = re.compile("(?<![a-z])(?:(train)|(test)|(validation|valid|val|dev))(?![a-z])")
SHARD = re.compile(r"(.*)-\d+-of-(\d+)\.parquet")


# ------------------------------------------------------------------------------------------ labels
def find_rows(folder: Path, files: list[str], wanted: str | None):
    """{"train": images, "test": images}, each image a name and a class's number; and the classes.

    files: names in the folder, in order; wanted: the column of labels, where there are several
    Where "test" is missing, or alone has no labels, "validation" serves as it, if there is one.
    BadInput for what is missing or does not fit.
    """
    need_all_shards(folder, files)
    labels = defaultdict(dict)  # of each set the label of each image, None: missing
    all_names = set()
    for file in files:
        own, names = labels_of(folder / file, wanted)
        if any(label is not None for label in own):
            all_names.add(names)
        for row, label in enumerate(own):
            labels[part_of(file)][f"{folder / file}#{row}"] = label
    common.need(len(all_names) < 2, f"{folder}: its files name different classes")

    with_labels = {part for part, own in labels.items() if is_labelled(part, own)}
    test = "test"
    if "test" not in labels or ("validation" in with_labels and "test" not in with_labels):
        test = "validation"
    for part in labels.keys() - {"train", test}:
        print(f"{folder}: the files of '{part}' are left out")
    train_only = with_labels & {"train", test} == {"train"} and labels[test]
    test_only = with_labels & {"train", test} == {test}
    common.need(not (train_only or test_only), f"{folder}: of train and {test} one has no labels")

    classes = ()
    numbers = {None: 0}
    if "train" in with_labels:
        (names,) = all_names
        values = range(len(names)) if names else sorted({*labels["train"].values()})
        numbers = {value: number for number, value in enumerate(values)}
        classes = names or values
    found = {"train": [], "test": []}
    for name, part in ("train", "train"), ("test", test):
        for image, label in labels[part].items():
            common.need(
                label in numbers, f"{image}: class {label} has no name or no training image"
            )
            found[name].append((image, numbers[label]))
    return found, [str(name) for name in classes]


def need_all_shards(folder: Path, files: list[str]) -> None:
    """BadInput where one of <name>-00000-of-00002.parquet, ... is missing."""
    there = defaultdict(int)
    for file in files:
        if shard := SHARD.fullmatch(file):
            there[shard.groups()] += 1
    for (name, total), count in there.items():
        wanted = f"of {folder / name}-*-of-{total}.parquet {count} are there, not {int(total)}"
        common.need(count == int(total), wanted)


def part_of(file: str) -> str:
    """Which set a file is of: what its name says, else its folder's, and so on; else "train"."""
    for name in reversed(Path(file.lower()).parts):
        if word := PART.search(name):
            return ("train", "test", "validation")[word.lastindex - 1]
    return "train"


def is_labelled(part: str, labels: dict) -> bool:
    """Whether all of these images have labels; BadInput where some do and others do not."""
    without = [image for image, label in labels.items() if label is None]
    some = 0 < len(without) < len(labels)
    remedy = "leave out such rows, or the column"
    text = f"{part}: {len(without)} of {len(labels)} images have no label, first"
    common.need(not some, f"{text} {without[:1]}; {remedy}")
    return not without


def labels_of(file: Path, wanted: str | None) -> tuple[list, tuple[str, ...]]:
    """The label of each image, None where it is missing, and the names of the classes or ()."""
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
    """BadInput where a file is damaged, or no Parquet."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise common.BadInput(f"{file} cannot be read as Parquet ({error})") from error


def features_of(schema: pa.Schema) -> dict[str, dict]:
    """What Hugging Face's metadata say of each column."""
    metadata = schema.metadata or {}
    return json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})


def label_column(schema: pa.Schema, file: Path, wanted: str | None):
    """Which column has the labels, None if none has, and the names of the classes or ()."""
    features = features_of(schema)
    candidates = [wanted] if wanted else [name for name in schema.names if name == "label"]
    if not candidates:
        kinds = {name: features.get(name, {}).get("_type") for name in schema.names}
        candidates = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    if not candidates:
        return None, ()
    several = f"{file}: which of {', '.join(candidates)} is the label? Give --label"
    common.need(len(candidates) == 1, several)
    (column,) = candidates
    there = column in schema.names
    common.need(there, f"{file} has no column {column}; there are {', '.join(schema.names)}")
    kind = schema.field(column).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    of_labels = types.is_integer, types.is_string, types.is_large_string, types.is_null
    right = any(is_kind(kind) for is_kind in of_labels)
    common.need(right, f"{file}: {column} is {kind}; labels are integers or words")
    return column, tuple(features.get(column, {}).get("names", ()))


def image_column(schema: pa.Schema, file: Path) -> str:
    """The column of the images; BadInput where there is not just one."""
    of_bytes = types.is_binary, types.is_large_binary
    found = []
    for field in schema:
        kind = field.type
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        if any(is_kind(kind) for is_kind in of_bytes):
            found.append(field.name)
    one = len(found) == 1
    common.need(
        one, f"{file} needs one column of images, as bytes or {{bytes, path}}; it has {found}"
    )
    return found[0]


# -------------------------------------------------------------------------------------- their bytes
def contents(images: list[str]):
    """Yield what image_files.read takes of each image, in order. A group of rows is read once."""
    for file, own in itertools.groupby(images, lambda image: image.rpartition("#")[0]):
        with reading(file), pq.ParquetFile(file) as table:
            column = image_column(table.schema_arrow, file)
            sizes = [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)]
            first = [0, *itertools.accumulate(sizes)]
            read = None
            for image in own:
                row = int(image.rpartition("#")[2])
                group = bisect.bisect(first, row) - 1
                if group != read:
                    read = group
                    values = table.read_row_group(group, [column]).column(0)
                yield source_of(values[row - first[group]].as_py(), file)


def source_of(value: bytes | dict | None, file: str):
    """An image's bytes as a file, or the path that stands for them."""
    if isinstance(value, dict):
        if value["bytes"] is None and value.get("path"):
            return Path(file).parent / value["path"]
        value = value["bytes"]
    return io.BytesIO(value or b"")
