"""interpret.py: each number beside a naive loop, chance in closed form, planted dimensions."""

import collections
import csv
import functools
import itertools
import json
import math
import os
import re
import runpy
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import common
import interpret
import look
import run_folder
import shapes
from conftest import ROOT, naive_chance, refusal, run_program, write_files

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as scipy_sparse
import scipy.stats
import torch
from safetensors.torch import save_file
from sklearn import metrics as sklearn_metrics


# ---- the oracle, in plain loops: what interpret.py has to find, and a page of look.py to hold
def naive_activity(z, rule):
    """The rule that is meant; on which images the dimensions of z (N, K), or their halves, are
    active, and how strongly, with signs: (N, K) or (N, 2K) each.
    """
    rows = z / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-12)
    rows[:, z.min(0) == z.max(0)] = 0
    is_sparse = (abs(rows) > 1e-5).mean() <= 0.5
    if rule == "auto":
        rule = "nonzero" if is_sparse else "top:0.01"
    if rule == "nonzero":
        active = abs(rows) > 1e-5
        return rule, active, rows * active
    most = max(1, round(float(rule.removeprefix("top:")) * len(rows)))
    halves = np.concatenate([rows, -rows], 1) if (rows < 0).any() else rows
    least = np.maximum(halves.min(0), 0 if is_sparse else -1)
    active = (np.argsort(np.argsort(-halves, 0), 0) < most) & (halves > least)
    ends_at_0 = np.sort(halves, 0)[-most] <= 0  # then a list's strengths are those above the least
    return rule, active, active * (halves - least * ends_at_0)


def naive_dimension(on, strength, y, orders):
    """What a dimension says about a label. orders: of the images, (orders, N), by family."""
    sizes, n = np.bincount(y), on.sum()
    if n == 0:
        return {}
    chance = naive_chance(tuple(sizes))[n - 1]
    hits = np.bincount(y[on], minlength=len(sizes))
    cons, room = hits.max() / n, max(1 - chance, 1e-9)
    f1 = 2 * hits / (n + sizes)
    best = np.argmax(f1)
    ap = sklearn_metrics.average_precision_score(y == best, np.where(on, strength, -1))
    own = {"class": hits.argmax(), "best": best, "cons": cons, "chance": chance, "f1": max(f1)}
    own |= {"entropy": scipy.stats.entropy(np.bincount(y, strength)), "ap": ap}
    own["adjusted"] = (cons - chance) / room
    for name, of_family in orders.items():
        counts = np.max([(y[of_family[:, :n]] == c).sum(1) for c in range(len(sizes))], 0)
        own[f"{name}_lead"] = (cons - counts.mean() / n) / room
        own[f"{name}_better"] = np.mean(counts < hits.max())
        own[f"{name}_pure"] = np.mean(counts == min(n, sizes.max()))
        own[f"{name}_cons"] = counts.mean() / n
        own[f"{name}_adjusted"] = (counts.mean() / n - chance) / room
    return own


def naive_mono(strength, judge):
    """The mean cosine of pairs of images, by the product of their strengths; less that of all."""
    unit = judge / np.linalg.norm(judge, axis=1, keepdims=True)
    scaled = (strength - strength.min()) / max(np.ptp(strength), 1e-12)
    pairs = ~np.eye(len(judge), dtype=bool)
    cosines, weights = (unit @ unit.T)[pairs], np.outer(scaled, scaled)[pairs]
    return np.average(cosines, weights=weights) - cosines.mean() if weights.any() else np.nan


def naive_best_f1(active, y):
    """F1 of the dimension for each class that is best on the other half of the images."""
    half = np.random.default_rng(0).permutation(len(y)) % 2 == 1
    scores = []
    for c in range(y.max() + 1):
        f1 = []
        for part in half, ~half:
            size = (part & (y == c)).sum() or np.nan
            f1.append(2 * active[part & (y == c)].sum(0) / (active[part].sum(0) + size))
        scores.append((f1[0][f1[1].argmax()] + f1[1][f1[0].argmax()]) / 2)
    return np.array(scores)


def naive_measure(active, values, labels, judge=None, orders=types.MappingProxyType({})):
    """Columns and numbers of an embedding or a control, and of curves in its dimensions' places."""
    n, strengths = active.sum(0), abs(values)
    often = n >= max(1, round(interpret.RARE * len(active)))
    columns = {"n": n, "act": active.mean(0), "mean": strengths.mean(0)}
    numbers = {"act": active.mean(), "entries": n.sum() / len(active), "live_dims": sum(n > 0)}
    numbers["rare_dims"] = numbers["live_dims"] - often.sum()
    of_curves = collections.defaultdict(dict)
    if judge is not None:
        columns["mono"] = np.array([naive_mono(strength, judge) for strength in strengths.T])
        numbers["mono"] = np.nanmean(columns["mono"])
    for prefix, y in labels.items():
        each = [naive_dimension(*pair, y, orders) for pair in zip(active.T, strengths.T)]
        found = {}
        for key in max(each, key=len):
            found[key] = np.array([own.get(key, np.nan) for own in each])
        numbers[f"{prefix}classes"] = len(np.unique(found["class"][n > 0]))
        numbers[f"{prefix}entropy"] = np.nanmean(found["entropy"])
        percent = {key: found[key] for key in ("cons", "f1", "ap")}
        percent |= {"adjusted": found["adjusted"][often], "best_f1": naive_best_f1(active, y)}
        for name in orders:
            percent[f"{name}_lead"] = found[f"{name}_lead"][often]
            numbers[f"{prefix}{name}_above"] = sum(found[f"{name}_better"] >= 0.95)
            numbers[f"{prefix}{name}_possible"] = sum(found.pop(f"{name}_pure") <= 0.05)
            curve = {"cons": found.pop(f"{name}_cons")}
            curve["adjusted"] = found.pop(f"{name}_adjusted")[often]
            for key, column in curve.items():
                of_curves[name][prefix + key] = 100 * np.nanmean(column)
        chance = {"cons": 100 * np.nanmean(found["chance"]), "adjusted": 0}
        of_curves["shuffled"] |= {prefix + key: number for key, number in chance.items()}
        columns |= {prefix + key: column for key, column in found.items()}
        numbers |= {prefix + key: 100 * np.nanmean(column) for key, column in percent.items()}
    return columns, numbers, of_curves


def naive_projections(vectors, many, seed, of_images):
    """Centred vectors of norm 1 along random directions, or towards random ones: (N, many)."""
    centred = vectors - vectors.mean(0, dtype=np.float64)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    if of_images:
        own = np.random.default_rng(seed).choice(len(unit), many, replace=many > len(unit))
        along = unit @ unit[own].T
        along[own, range(many)] = -2  # an image is not its own neighbour
        return along
    draw = torch.Generator().manual_seed(seed)
    basis = torch.randn(vectors.shape[1], many, generator=draw).numpy()
    return unit @ (basis / np.linalg.norm(basis, axis=0))


def naive_cosines(values):
    """The |cosine| of each two dimensions over the images, (K, K), 0 of a dimension with itself."""
    unit = values / np.linalg.norm(values, axis=0).clip(1e-12)
    return abs(unit.T @ unit) * ~np.eye(len(unit.T), dtype=bool)


def naive_groups(active):
    """Of each dimension the first before it whose images are the same, Jaccard index >= 0.9."""
    lists = [set(np.flatnonzero(on).tolist()) for on in active.T]
    group, firsts = np.full(len(lists), -1), []
    for k in sorted(range(len(lists)), key=lambda k: (-len(lists[k]), k)):
        for first in [*firsts, k]:
            if lists[k] and 10 * len(lists[k] & lists[first]) >= 9 * len(lists[k] | lists[first]):
                group[k] = first
                firsts += [k] * (first == k)
                break
    return group


def naive_findings(z, rule, labels, h, judge):
    """The rule, columns, the numbers of interpret.json, and those of each control."""
    rule, active, values = naive_activity(z, rule)
    n, live = active.sum(0), active.any(0).sum()
    families = {"directions_of_h": h, "directions_of_z": z, "images_in_h": h, "images_in_z": z}
    families = {name: vectors for name, vectors in families.items() if vectors is not None}
    orders = {}
    for name, vectors in families.items():
        of_images = name.startswith("images")
        many = len(z) if of_images else interpret.FAMILY
        along = naive_projections(vectors, many, 0, of_images)
        orders[name] = np.argsort(-along, 0).T
    columns, numbers, of_curves = naive_measure(active, values, labels, judge, orders)
    numbers["corr"] = naive_cosines(values).sum() / (live * (live - 1))
    columns["group"] = naive_groups(active)
    numbers["distinct_dims"] = len({*columns["group"]} - {-1})
    controls = collections.defaultdict(collections.Counter)
    for seed in 1, 2, 3, 4, 5:
        mix = np.random.default_rng(seed).permutation(len(z))
        mixed = {prefix: y[mix] for prefix, y in labels.items()}
        draws = {"shuffled": naive_measure(active, values, mixed)[1]} if labels else {}
        for name, vectors in families.items():
            along = naive_projections(vectors, len(n), seed, name.startswith("images"))
            matched = np.argsort(np.argsort(-along, 0), 0) < n
            order = np.sort(along, 0)[::-1]
            least = order[np.minimum(n, len(z) - 1), range(len(n))] if rule == "nonzero" else 0
            along = np.where(matched, along - least, 0)
            draws[name] = naive_measure(matched, along, labels, judge)[1]
        for name, own in draws.items():
            controls[name].update({key: number / 5 for key, number in own.items()})  # adds
    for name, own in of_curves.items():
        controls[name] = dict(controls[name]) | own
    return rule, columns, numbers, controls


# ---- what is measured
def sparse_z(dims, signed=False):
    """(97, dims), few entries: a dead dimension, one of a single image, an empty row."""
    draw = np.random.default_rng(0)
    z = draw.uniform(0.1, 2, (97, dims))
    z[:, 2:] *= draw.random((97, dims - 2)) < 0.3
    if signed:
        z *= draw.choice([-1, 1], z.shape)
    z[:, 3] = z[1:, 10] = z[5] = 0
    z[0, 10] = 1
    return z.astype(np.float32)


def as_csr(z, **others):
    """z as scipy writes it."""
    a = scipy_sparse.csr_array(z)
    parts = dict(format="csr", shape=a.shape, data=a.data, indices=a.indices, indptr=a.indptr)
    return parts | others


SIGNED_Z = sparse_z(12, signed=True)
DENSE_Z = np.random.default_rng(1).normal(size=(97, 12)).astype(np.float32)
DENSE_Z[:, 4] += 9  # so -4 is never above 0
DENSE_Z[:, 9] = -0.5
H_OF_Z = np.random.default_rng(2).normal(size=(97, 5)).astype(np.float32) + 1
KIND_OF = np.random.default_rng(3).permutation(np.repeat([0, 1, 2], [44, 31, 22]))
PLACE_OF = np.random.default_rng(5).permutation(np.repeat([0, 1, 2], [60, 36, 1]))
NUMBERED = np.array([0, 2, 5])  # classes of y; below, of other files and of the background
LARGE_INTS = np.array([2**63 + 1, 2**63 + 2, 2**64 - 1], np.uint64)
IN_BYTES = np.array([b"ant", b"bee", b"c\xe9"])
IN_WORDS = np.array(["bée", "cat\u2028tabby", '"dog", cow'])
CLASS_NAMES = ["ant\u2028a", "", " cow", "cat\x1c\x85", "dog", "bee\x0b\x0c"]
CLASS_NAMES_FILE = "\ufeff" + "\r\n".join(CLASS_NAMES) + "\r\n"  # with a mark and ends of Windows


def measured(z, classes=None, known="", rule="auto", flags="", layout=dict, source="a.npz"):
    """An embedding, the classes of y, what else is known of it, and how it is given."""
    return SimpleNamespace(**locals())


MEASURED = {
    "sparse": measured(sparse_z(50), NUMBERED, "h", flags="--classes names.txt"),
    "entries": measured(
        SIGNED_Z, IN_BYTES, "background h", flags="--judge judge.npy", layout=as_csr
    ),
    "its strongest": measured(
        SIGNED_Z, LARGE_INTS, "h", rule="top:0.1", flags="--out b/c", layout=as_csr
    ),
    "all active": measured(abs(DENSE_Z[:, :6]), NUMBERED, "h", rule="nonzero"),
    "halves": measured(DENSE_Z, NUMBERED, "background", rule="top:0.06", source="run"),
    "no labels": measured(SIGNED_Z, None, "h", rule="top:0.1", layout=as_csr),
    "few": measured(abs(DENSE_Z)),
}


@functools.cache
def naive_expected(name):
    case = MEASURED[name]
    labels = {} if case.classes is None else {"": KIND_OF}
    if "background" in case.known:
        labels["background_"] = PLACE_OF
    h = H_OF_Z if "h" in case.known.split() else None
    judge = H_OF_Z**2 if "judge" in case.flags else h
    return naive_findings(case.z.astype(float), case.rule, labels, h, judge)


TABLE = {"active": ("entries", ".1f"), "live": ("live_dims", ".0f"), "Cons.": ("cons", ".1f")}
TABLE |= {
    "adj.": ("adjusted", ".1f"),
    "classes": ("classes", ".0f"),
    "AP": ("ap", ".1f"),
    "best F1": ("best_f1", ".1f"),
}
TABLE |= {"Mono": ("mono", ".3f")}


def expected_table(numbers, controls):
    """The cells of the printed table."""
    titles = {"": "class", "background_": "background"}
    titles = {prefix: titles[prefix] for prefix in titles if prefix + "cons" in numbers}
    headings = list(TABLE) if titles else ["active", "live", "Mono"]
    rows = [["dimensions", *headings]]
    for prefix, title in (titles or {"": "no labels"}).items():
        for name, own in {title: numbers, **controls}.items():
            row = [name.replace("_", " ")]
            for key, digits in [TABLE[heading] for heading in headings]:
                number = own.get(prefix + key, own.get(key, math.nan))
                text = re.sub(r"^-(0\.0*)$", r"\1", format(number, digits))
                row.append(text.replace("nan", "–"))
            rows.append(row)
    return rows


def test_groups_are_those_of_a_loop():
    draw = np.random.default_rng(0)
    kinds = draw.random((100, 12)) < draw.uniform(0, 0.7, 12)
    active = np.concatenate([kinds, *(kinds ^ (draw.random((5, 100, 12)) < 0.02))], 1)
    active[:, 70] = active[:, 71] = np.arange(100) < 10
    active[9, 71] = False  # just alike enough
    entries = interpret.active_entries(active.astype(np.float32))
    found = interpret.groups_of(interpret.sort_by_dimension(entries))
    assert found.tolist() == naive_groups(active).tolist()
    assert found[71] == 70
    assert 12 < len({*found.tolist()}) < 72


@pytest.mark.parametrize("cells", [2**21, 144], ids=["whole", "in parts"])
@pytest.mark.parametrize("name", MEASURED)
def test_what_interpret_finds_is_counted_naively(tmp_path, monkeypatch, name, cells):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interpret, "CELLS", cells)
    monkeypatch.setattr(interpret, "RARE", 0.03)  # on two images or fewer
    case = MEASURED[name]
    beside = {"background": IN_WORDS[PLACE_OF], "h": H_OF_Z}
    arrays = case.layout(z=case.z) | {key: beside[key] for key in case.known.split()}
    if case.classes is not None:
        arrays["y"] = case.classes[KIND_OF]
    files = {"a.npz": arrays, "run/embeddings.npz": arrays, "judge.npy": H_OF_Z**2}
    write_files(".", files | {"names.txt": CLASS_NAMES_FILE.encode()})
    of_rule = "" if case.rule == "auto" else f"--active {case.rule}"
    run_program(f"interpret.py {case.source} {of_rule} {case.flags}")
    rule, columns, numbers, controls = naive_expected(name)
    (folder,) = [path.parent for path in Path(".").rglob("interpret.json")]
    assert str(folder) == {"its strongest": "b/c", "halves": "run"}.get(name, "a.npz-interpret")
    record = json.loads((folder / "interpret.json").read_text().replace("null", "NaN"))
    assert (record["source"], record["active"]) == (case.source, rule)
    close = functools.partial(pytest.approx, rel=1e-4, abs=1e-5, nan_ok=True)
    assert record["numbers"] == close(numbers)
    for control in interpret.CONTROLS:
        assert record.get(control, {}) == close(controls.get(control, {})), control

    order = np.argsort(-columns["mean"], kind="stable")  # of the rows of dimensions.csv
    names = [str(k) for k in range(case.z.shape[1])]
    if len(order) > len(names):
        names = [sign + k for sign in "+-" for k in names]
    with open(folder / "dimensions.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["dimension"] for row in rows] == [names[k] for k in order]
    assert rows[0].keys() - {"name"} == {"dimension", *columns}
    if "names" in case.flags:
        names_of = {"": ""} | {str(c): CLASS_NAMES[c] for c in case.classes}
        assert [row["name"] for row in rows] == [names_of[row["best"]] for row in rows]
    for key, column in columns.items():
        texts = [row[key] for row in rows]
        if key.endswith(("class", "best")):
            own = IN_WORDS if "_" in key else case.classes
            own = [*map(str, ["ant", "bee", r"c\udce9"] if own is IN_BYTES else own), ""]
            assert texts == [own[c] for c in np.nan_to_num(column[order], nan=-1).astype(int)], key
        elif key == "group":
            assert texts == [[*names, ""][k] for k in column[order]]
        else:
            assert [float(text or "nan") for text in texts] == close(column[order]), key

    text = (folder / "interpret.txt").read_text(encoding="utf-8")
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("|")]
    table = [re.split(r" +\| +", line) for line in lines]
    assert [table[0], *table[2:]] == expected_table(numbers, controls)
    live = numbers["live_dims"]
    words = [f"97 images, {len(case.z.T)} dimensions", f"\n{len(order) - live} dead "]
    words += [f"{numbers['rare_dims']} active on less than 0.1 %"]
    if case.classes is not None:
        of_directions = "directions_of_h" if "h" in case.known.split() else "directions_of_z"
        words += [f" by {abs(numbers[f'{of_directions}_lead']):.1f} and "]
        words += [f"in z by {abs(numbers['images_in_z_lead']):.1f} points of adj."]
        best = np.nanargmax(columns["f1"])
        size = np.bincount(KIND_OF)[int(columns["best"][best])]
        hits = columns["f1"][best] * (columns["n"][best] + size) / 2
        words += [f"best:\n  {names[best]}: {hits:.0f} of its {columns['n'][best]} images are "]
        words += [f"of which there are {size}; purer than "]
    assert [phrase for phrase in words if phrase not in text] == []


ABOVE = {  # of 100 live dimensions: above, possible; what is said
    "all can be": (
        17,
        100,
        "17 of 100 live dimensions are purer than 95 % of these (by chance: 5)",
    ),
    "some can be": (3, 40, "3 of 100 live dimensions (40 can be) are purer than 95 %"),
    "none can be": (0, 0, "none can be purer than 95 % of these"),
}


@pytest.mark.parametrize("above, possible, said", ABOVE.values(), ids=ABOVE)
def test_ties_at_one_class_are_told(above, possible, said):
    numbers = {"images_in_z_above": above, "images_in_z_possible": possible, "live_dims": 100}
    assert said in " ".join(interpret.describe_above(numbers, "").split())


LEADS = {  # over directions, over images: the beginning of the sentence
    (10.1, 3.0): "purer than random directions of h by 10.1 and than the neighbours",
    (10.1, -3.0): "purer than random directions of h by 10.1 and less pure than the neighbours",
    (-10.1, 3.0): "less pure than random directions of h by 10.1 and purer than the neighbours",
    (-10.1, -3.0): "less pure than random directions of h by 10.1 and than the neighbours",
}


@pytest.mark.parametrize("leads, said", LEADS.items())
def test_a_negative_lead_is_less_pure(leads, said):
    numbers = {"directions_of_h_lead": leads[0], "images_in_z_lead": leads[1]}
    numbers |= {"images_in_z_above": 1, "images_in_z_possible": 1, "live_dims": 1}
    (line,) = interpret.describe_leads(numbers)
    assert " ".join(line.split()).startswith(
        f"class: {said} of random images in z by 3.0 points of adj.; 1 of 1"
    )


# ---- what a dimension must beat
@pytest.mark.parametrize("family", interpret.FAMILIES)
def test_axes_without_meaning_lead_no_family(family):
    draw = np.random.default_rng(0)
    h = draw.normal(size=(1000, 32))
    z = np.maximum(h @ draw.normal(size=(32, 200)) - 5, 0)
    e = interpret.Embedding(z, {"": draw.integers(10, size=1000)}, features=h)
    found = interpret.interpret(e)
    lead = found.columns[f"{family}_lead"]
    error = 100 * np.nanstd(lead) / len(lead) ** 0.5
    assert abs(found.numbers[f"{family}_lead"]) < 4 * error < 2
    assert found.numbers[f"{family}_above"] < 25  # of 200; 10 by chance


@pytest.mark.parametrize("family", interpret.FAMILIES)
def test_planted_dimensions_lead_every_family(family):
    draw = np.random.default_rng(0)
    y = draw.integers(10, size=1000)
    h = draw.normal(size=(1000, 32))
    z = np.maximum(h @ draw.normal(size=(32, 20)), 0)
    z[:, :10] = np.eye(10)[y]
    found = interpret.interpret(interpret.Embedding(z, {"": y}, features=h), "top:0.05")
    better = found.columns[f"{family}_better"]
    assert better[:10].min() == 1 > better[10:].mean()
    assert found.numbers[f"{family}_lead"] > 30


def images_of(data):
    """Test images (N, 3, 32, 32) and their classes: built-in, or CIFAR-100's if they are there."""
    if data == "shapes":
        arrays = shapes.draw(1, 1000)
        return torch.from_numpy(arrays["x_test"]), arrays["y_test"]
    path = ROOT / "data" / f"{data}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["x_test"]).permute(0, 3, 1, 2), arrays["y_test"].ravel()


@pytest.mark.parametrize("data, most", [("shapes", 4), ("cifar100", 1)])  # lists of 10, of 100
def test_simclrs_axes_are_no_better_than_others(data, most, monkeypatch):
    monkeypatch.setattr(interpret, "DRAWS", 1)
    run, model = run_folder.load_run(ROOT / "weights" / "cifar100-simclr")
    images, y = images_of(data)
    _, z = common.features(model, images, run.image_size)
    numbers = interpret.interpret(interpret.Embedding(z, y)).numbers
    assert abs(numbers["directions_of_z_lead"]) < most


def test_of_many_dimensions_a_sample_is_compared(monkeypatch):
    monkeypatch.setattr(interpret, "LARGE", 8)
    monkeypatch.setattr(interpret, "SAMPLE", 7)
    labels = {"": KIND_OF, "background_": PLACE_OF}
    lists = interpret.Family.lists
    with mock.patch.object(interpret.Family, "lists", autospec=True, side_effect=lists) as drawn:
        found = interpret.interpret(interpret.Embedding(SIGNED_Z, labels))
    assert found.numbers["live_dims"] == 11
    assert [len(call.args[1]) for call in drawn.call_args_list] == [7, 7]
    for control in found.controls.values():
        undefined = {key for key, value in control.items() if value is None}
        of_choice = {"best_f1", "classes"}
        assert undefined == of_choice | {f"background_{key}" for key in of_choice}
    _, _, values = naive_activity(SIGNED_Z.astype(float), "nonzero")
    cosines = naive_cosines(values)
    samples = itertools.combinations(np.flatnonzero(values.any(0)), 7)
    means = [cosines[np.ix_(dims, dims)].sum() / (7 * 6) for dims in samples]
    assert min(abs(np.array(means) - found.numbers["corr"])) < 1e-6


# ---- whether dimensions come back in another embedding
def naive_correlations(a, b):
    """numpy's correlation of each two columns of strengths, (K_a, K_b); of one dead: nan."""
    found = np.full((len(a.T), len(b.T)), np.nan)
    for j, k in np.ndindex(found.shape):
        if a[:, j].any() and b[:, k].any():
            varies = np.ptp(a[:, j]) > 0 and np.ptp(b[:, k]) > 0
            found[j, k] = np.corrcoef(a[:, j], b[:, k])[0, 1] if varies else 0
    return found


def naive_partners(r):
    """The numbers of interpret.json of correlations (K_a, K_b); partners, -1: none."""
    live = ~np.isnan(r).all(1)
    best = np.where(live, np.nan_to_num(r, nan=-9).argmax(1), -1)
    back = np.nan_to_num(r, nan=-9).argmax(0)
    own = r[np.arange(len(r)), best]
    mutual = live & (back[best] == np.arange(len(r)))
    numbers = dict(correlation=own[live].mean(), above=100 * (own[live] > 0.7).mean())
    numbers |= dict(mutual=100 * mutual[live].mean(), mutual_correlation=own[mutual].mean())
    return numbers, best


def naive_lists(along, n, from_smallest):
    """Strengths (N, m) of the n (m,) images that lie farthest along each direction."""
    order = np.sort(along, 0)[::-1]
    least = order[np.minimum(n, len(along) - 1), range(len(n))] if from_smallest else 0
    on = np.argsort(np.argsort(-along, 0), 0) < n
    return np.where(on, abs(along - least), 0)


def naive_rivals(z, h, rule, most, draw, i):
    """Strengths (N, live) of controls in the place of the i-th embedding z, with h or without."""
    rule, active, values = naive_activity(z, rule)
    n = -np.sort(-active.sum(0)[active.any(0)])
    live = np.flatnonzero(active.any(0))
    axes, places = np.unique(live % len(z.T), return_inverse=True)
    seed = 2 * draw + i
    rows = z / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-12)
    random = torch.Generator().manual_seed(seed)
    square = torch.randn(len(axes), len(axes), generator=random).double().numpy()
    q, triangle = np.linalg.qr(square)
    along = rows[:, axes] @ (q * np.sign(np.diag(triangle)))
    rotated = (along - along.mean(0))[:, places] * np.where(live < len(z.T), 1, -1)
    if (values < 0).any():  # sparse with signs: both sides are active
        rotated = abs(rotated)
    found = {"rotated": rotated, "images_in_z": naive_projections(z, most, draw, True)[:, : len(n)]}
    if h is not None:
        found["directions_of_h"] = naive_projections(h, len(n), seed, False)
    return {name: naive_lists(along, n, rule == "nonzero") for name, along in found.items()}


BESIDE = {  # an embedding, another one, the rule, how the other is given
    "sparse": (sparse_z(50), abs(SIGNED_Z), "auto", dict),
    "entries": (SIGNED_Z, sparse_z(30, signed=True), "auto", as_csr),
    "its strongest": (SIGNED_Z, sparse_z(30), "top:0.1", as_csr),
    "halves": (DENSE_Z, DENSE_Z[:, ::-1] + SIGNED_Z, "top:0.06", dict),
    "each by its own rule": (sparse_z(20), DENSE_Z[:, :3], "auto", dict),
    "all active": (abs(DENSE_Z[:, :6]), abs(DENSE_Z[::-1]), "nonzero", dict),
    "with features": (sparse_z(50), sparse_z(40), "auto", functools.partial(dict, h=DENSE_Z)),
}


@pytest.mark.parametrize("cells", [2**21, 1500], ids=["whole", "in parts"])
@pytest.mark.parametrize("name", BESIDE)
def test_partners_are_found_naively(tmp_path, monkeypatch, name, cells):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interpret, "CELLS", cells)
    z, other, rule, layout = BESIDE[name]
    features = dict(h=H_OF_Z) if name == "with features" else {}
    write_files(".", {"a.npz": dict(z=z) | features, "b.npz": layout(z=other)})
    run_program(f"interpret.py a.npz --beside b.npz --active {rule} --out out")
    _, _, values = naive_activity(z.astype(float), rule)
    own_rule, _, others = naive_activity(other.astype(float), rule)
    expected, best = naive_partners(naive_correlations(abs(values), abs(others)))
    close = functools.partial(pytest.approx, rel=1e-3, abs=1e-4)
    found = json.loads(Path("out/interpret.json").read_text())["beside"]
    live = others.any(0).sum()
    about = dict(source="b.npz", active=own_rule, live_dims=live)
    assert {key: found.pop(key) for key in about} == about
    assert found.pop("partners") == close(expected)
    by_draw = collections.defaultdict(list)
    most = max(values.any(0).sum(), live)
    hs = (H_OF_Z.astype(float), DENSE_Z.astype(float)) if features else (None, None)
    for draw in 1, 2, 3, 4, 5:
        one, two = [
            naive_rivals(x.astype(float), h, rule, most, draw, i)
            for i, (x, h) in enumerate(zip((z, other), hs))
        ]
        for what in one:
            pairs = naive_partners(naive_correlations(one[what], two[what]))[0]
            by_draw[what].append(pairs)
    for what, draws in by_draw.items():
        mean = {key: np.nanmean([draw[key] for draw in draws]) for key in draws[0]}
        assert found.pop(what) == close(mean), what
    assert not found

    with open("out/dimensions.csv", encoding="utf-8", newline="") as file:
        rows = {row["dimension"]: row for row in csv.DictReader(file)}
    names = [sign + str(k) for sign in "+-" for k in range(len(z.T))]
    names = names if len(best) > len(z.T) else [name[1:] for name in names]
    partner_names = [sign + str(k) for sign in "+-" for k in range(len(other.T))]
    if len(others.T) == len(other.T):
        partner_names = [name[1:] for name in partner_names]
    for own, k, of_all in zip(names, best, naive_correlations(abs(values), abs(others))):
        row = rows.pop(own)
        if k == -1:
            assert row["partner"] == row["partner_correlation"] == ""
        else:  # lists of one image may be equally good partners
            of_partner = of_all[partner_names.index(row["partner"])]
            assert float(row["partner_correlation"]) == close(of_all[k])
            assert of_partner == close(of_all[k])
    assert not rows
    text = Path("out/interpret.txt").read_text(encoding="utf-8")
    first = (
        f"partners in b.npz ({live} live, {own_rule}): correlation {expected['correlation']:.2f}"
    )
    assert first in text
    assert text.count("; mutual: ") == 3 + bool(features)


@pytest.mark.parametrize("z", [sparse_z(50), DENSE_Z], ids=["sparse", "dense"])
def test_dimensions_come_back_in_another_order(z):
    draw = np.random.default_rng(0)
    order = draw.permutation(len(z.T))
    again = np.pad(z[:, order] * draw.uniform(0.5, 2, (97, 1)), [(0, 0), (0, 3)])
    (a, _), (b, _) = [interpret.activations_of(x, "auto") for x in (z, again)]
    b.values *= draw.uniform(0.5, 2, b.K)[b.dims]  # of each dimension
    found = interpret.partners(a, b)
    live = a.n > 0
    back = [b.name(k).lstrip("+-") for k in found.of_first[live]]
    own = [a.name(k).lstrip("+-") for k in np.flatnonzero(live)]
    if z is not DENSE_Z:  # whose lists are one image, which several may share
        assert [order[int(k)] for k in back] == [int(k) for k in own]
        assert found.mutual[live].all()
    assert found.r_first[live] == pytest.approx(1)
    dead = b.n == 0
    assert (found.of_second[dead] == -1).all()
    assert dead.sum() >= 3


def test_a_rotation_comes_back_as_rotated():
    draw = np.random.default_rng(0)
    z = draw.normal(size=(1000, 20)).astype(np.float32)
    turned = z @ np.linalg.qr(draw.normal(size=(20, 20)))[0]
    a, rule = interpret.activations_of(z, "top:0.1")
    numbers = interpret.compare(a, (z, turned), (rule, rule))[2]
    r, by_chance = [numbers[key]["correlation"] for key in ("partners", "rotated")]
    assert r == pytest.approx(by_chance, abs=0.02)
    again = interpret.compare(a, (z, z), (rule, rule))[2]
    assert again["partners"]["correlation"] == pytest.approx(1)


BITS = np.random.default_rng(0).permuted(np.tile(np.arange(200) < 16, (2, 1000, 1)), axis=2)


@pytest.mark.parametrize("pair", [np.where(BITS[..., :64], 1, -1), 1 * BITS], ids=["signs", "bits"])
@pytest.mark.parametrize("sparse", [False, True])
def test_embeddings_alike_in_ties_alone_do_not_come_back(pair, sparse):
    one, two = pair
    if sparse:
        one, two = (
            interpret.Entries(*np.nonzero(z), z[np.nonzero(z)], *z.shape) for z in (one, two)
        )
    a, _ = interpret.activations_of(one, "top:0.01")
    numbers = interpret.compare(a, (one, two), ("top:0.01", "top:0.01"))[2]
    of_partners = numbers["partners"]["correlation"]
    assert of_partners < numbers["rotated"]["correlation"] + 0.02
    assert interpret.partners(a, a).r_first.min() > 0.999


@pytest.mark.parametrize("most, told", [(5, False), (6, True)])
def test_a_class_of_most_images_is_told(most, told):
    y = np.arange(10).clip(min=most - 1)
    e = interpret.Embedding(np.random.default_rng(0).normal(size=(10, 3)), y[::-1])
    said = f"y: {10 * most} % of the images are of class {most - 1}: Cons., adj. and AP say little"
    assert (said in interpret.describe(e, interpret.interpret(e))) == told


def test_a_dead_embedding_has_no_partners():
    a, b = [interpret.activate(interpret.unit(z), "nonzero") for z in (np.zeros((97, 4)), SIGNED_Z)]
    for pair in (a, b), (b, a):
        found = interpret.partner_numbers(interpret.partners(*pair))
        assert set(found.values()) == {None}


# ---- chance, ties and limits
def test_chance_is_what_random_images_have():
    mean, high = interpret.chance_curve((1, 20, 300, 400))
    draws = np.random.default_rng(0)
    for n in 40, 100, 101, 500:
        cons = draws.multivariate_hypergeometric([1, 20, 300, 400], n, size=4000).max(1) / n
        assert mean[n - 1] == pytest.approx(cons.mean(), abs=2e-3)
        assert high[n - 1] == pytest.approx(np.quantile(cons, 0.95), abs=1 / n)


@pytest.mark.parametrize("levels", [[-1.0, 1.0], [0.0, 0.0, 0.0, 1.0]], ids=["dense", "sparse"])
def test_ties_ignore_the_order_of_the_file(levels):
    z = np.random.default_rng(0).choice(levels, (400, 20))
    e = interpret.Embedding(z, {"": np.arange(400) // 100})  # sorted, as in many files
    found = interpret.interpret(e, "top:0.02", controls=False)
    assert np.nanmean(found.columns["adjusted"]) < 0.3


@pytest.mark.parametrize("family", interpret.FAMILIES)
def test_ties_of_controls_ignore_it_too(family):
    z = np.eye(20)[np.random.default_rng(0).integers(20, size=2000)]  # says nothing of the classes
    e = interpret.Embedding(z, {"": np.arange(2000) // 200}, features=z)
    found = interpret.interpret(e, "top:0.01")
    assert found.numbers[f"{family}_lead"] == pytest.approx(0, abs=5)


def test_equally_near_images_are_listed_at_random():
    z = np.eye(4)[np.arange(400) // 100]  # each image has 99 neighbours as near as can be
    family = interpret.Family(interpret.Vectors(z), of_images=True)
    lists = family.lists(np.full(200, 10), 1, from_smallest=False)
    assert len(np.unique(lists.images)) > 350


def test_an_array_may_be_sparse_and_a_sparse_matrix_is():
    entries_of = {(2, 2, 0, 0): [2, 2], (3, 2, 2, 0, 0): [1, 3], (2, 3e-5, 1.5e-5, 0, 0): [2, 2]}
    entries_of[2, 2, 2, 0, 0] = [3, 3]  # bits
    for row, expected in entries_of.items():
        z = np.array([np.roll(row, i) for i in range(len(row))])
        both = z, interpret.Entries(*np.nonzero(z), z[np.nonzero(z)], *z.shape)
        found = [interpret.interpret(interpret.Embedding(z), controls=False) for z in both]
        assert [of_one.numbers["entries"] for of_one in found] == expected


def rounded(size, noise):
    """`size` on 400 images, up to noise."""
    return size * (1 + noise * np.random.default_rng(1).uniform(-1, 1, 400))


COLUMNS_3 = {  # a column of z; whether it is equal on all images
    "equal": (rounded(0.3, 0), True),
    "rounded": (rounded(-0.3, 3e-6).astype(np.float32), True),
    "a step of float16": (np.float16([0.3, 0.3002] * 200), True),
    "a step of integers": (np.array([1000, 1001] * 200), False),
    "of images that are not 0": (np.array([0.3, 0, 0.3, 0.3] * 100), True),
    "small": (rounded(0.1, 1) - 0.1, False),
    "far from 0": (rounded(5, 1e-3), False),
}


@pytest.mark.parametrize("column, equal", COLUMNS_3.values(), ids=COLUMNS_3)
@pytest.mark.parametrize("rule", ["nonzero", "top:0.2"])
def test_what_rounding_alone_varies_is_dead(rule, column, equal):
    z = np.random.default_rng(0).normal(size=(400, 9)) * (1 + np.arange(400) % 3)[:, None]
    z = (100 * z).astype(column.dtype)
    z[column == 0] = 0
    z[:, 3] = column
    for values in z, interpret.Entries(*np.nonzero(z), z[np.nonzero(z)], *z.shape):
        found = interpret.interpret(interpret.Embedding(values), rule, controls=False)
        assert found.activations.n[3::9].any() != equal


FORMS = {  # of one z
    "reversed": lambda z: z[::-1].copy()[::-1],
    "list": np.ndarray.tolist,
    "with gradient": lambda z: torch.tensor(z).requires_grad_(),
    "bfloat16": lambda z: torch.tensor(z).bfloat16(),
    "sparse": lambda z: torch.tensor(z).to_sparse(),
    "float16": lambda z: z.astype(np.float16),
    "big-endian": lambda z: z.astype(">f8"),
    "by columns": np.asfortranarray,
    "read-only": lambda z: np.frombuffer(z.tobytes(), z.dtype).reshape(z.shape),
}
IN_OBJECTS = np.array(["ant", "bee", "cat"], object)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_an_embedding_is_measured_alike(form):
    z = np.round(4 * SIGNED_Z) / 4
    plain = interpret.interpret(interpret.Embedding(z, {"": KIND_OF}), controls=False)
    for y in KIND_OF.tolist(), {"": IN_OBJECTS[KIND_OF]}:
        found = interpret.interpret(interpret.Embedding(form(z), y), controls=False)
        assert found.numbers == pytest.approx(plain.numbers)


def test_a_collapsed_embedding_has_undefined_numbers():
    e = interpret.Embedding(np.zeros((20, 4)), {"": np.arange(20) % 2}, judge=np.eye(20, 3))
    numbers = interpret.interpret(e).numbers
    assert numbers["live_dims"] == numbers["act"] == 0
    assert numbers["cons"] is numbers["mono"] is numbers["f1"] is numbers["corr"] is None


# ---- its files
Z_READ = np.round(4 * SIGNED_Z) / 4  # bfloat16 can hold it
ALL_READ = {"z": Z_READ, "y": KIND_OF[:, None], "h": H_OF_Z}
ALL_READ = {key: torch.tensor(array) for key, array in ALL_READ.items()}
WRITTEN = {  # a file, how it is written
    "all.npz": lambda path: np.savez(path, **ALL_READ),
    "other key.npz": lambda path: np.savez(path, latents=Z_READ, b=KIND_OF),
    "lone h.npz": lambda path: np.savez(path, h=Z_READ),
    "csr.npz": lambda path: scipy_sparse.save_npz(path, scipy_sparse.csr_array(Z_READ)),
    "csc.npz": lambda path: scipy_sparse.save_npz(path, scipy_sparse.csc_array(Z_READ)),
    "coo.npz": lambda path: scipy_sparse.save_npz(path, scipy_sparse.coo_array(Z_READ)),
    "all.pt": lambda path: torch.save(ALL_READ | {"epoch": 3}, path),
    "all, y a list.pt": lambda path: torch.save(ALL_READ | {"y": KIND_OF.tolist()}, path),
    "all.pth": lambda path: torch.save(ALL_READ, path, _use_new_zipfile_serialization=False),
    "bfloat16.PT": lambda path: torch.save(ALL_READ["z"].bfloat16(), path),
    "sparse.pt": lambda path: torch.save({"z": ALL_READ["z"].to_sparse()}, path),
    "all.safetensors": lambda path: save_file(ALL_READ, path),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", WRITTEN)
def test_every_format_is_read_alike(tmp_path, name):
    WRITTEN[name](tmp_path / name)
    e = interpret.read_embedding(tmp_path / name)
    if isinstance(e.z, interpret.Entries):
        e.z = scipy_sparse.coo_array((e.z.values, (e.z.images, e.z.dims)), e.z.shape).toarray()
    assert np.array_equal(e.z, Z_READ)
    if "all" not in name:
        assert (e.labels, e.features) == ({}, None)
    else:
        assert np.array_equal(e.labels[""], KIND_OF)
        assert np.array_equal(e.features, H_OF_Z)


def in_the_way(folder):
    """What is where results are to be written, by a name for it: a function that puts it there."""
    own = folder / "own.txt"
    own.write_bytes(b"".join([*interpret.MARKS.values(), *look.MARKS.values()]))
    out = folder / "out"
    return {
        "a file of that name": lambda name: (out.mkdir(), (out / name).write_text("mine")),
        "an empty file": lambda name: (out.mkdir(), (out / name).touch()),
        "a folder of that name": lambda name: (out / name).mkdir(parents=True),
        "a link": lambda name: (out.mkdir(), (out / name).symlink_to(own)),
        "a link to nothing": lambda name: (out.mkdir(), (out / name).symlink_to("nowhere")),
        "out is a link to nothing": lambda name: out.symlink_to("nowhere"),
        "out is a file": lambda name: out.write_text("mine"),
    }


WRITES = [("interpret.py", name) for name in interpret.MARKS]
WRITES += [("look.py", name) for name in ("dimensions.csv", "look.html")]


@pytest.mark.parametrize("program, name", WRITES)
def test_what_is_not_ours_is_kept(tmp_path, monkeypatch, program, name):
    measure = mock.Mock(side_effect=AssertionError("measured before"))
    monkeypatch.setattr(interpret, "interpret", measure)
    for what in in_the_way(tmp_path):
        root = tmp_path / what
        root.mkdir()
        in_the_way(root)[what](name)
        np.save(root / "z.npy", Z_READ)
        before = sorted((path, path.is_file() and path.read_bytes()) for path in root.rglob("*"))
        told = refusal(f"{program}", root / "z.npy", "--out", root / "out")
        assert "out cannot be made" in told or f"{name} is there" in told
        after = sorted((path, path.is_file() and path.read_bytes()) for path in root.rglob("*"))
        assert after == before


@pytest.mark.parametrize("program", ["interpret.py", "look.py"])
def test_older_results_stay_whole_on_a_full_disk(tmp_path, monkeypatch, program):
    np.save(tmp_path / "z.npy", DENSE_Z)
    run_program(program, tmp_path / "z.npy", "--out", tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    run_program(program, tmp_path / "z.npy", "--out", tmp_path / "out")  # they are ours
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(csv, "writer", full)  # of dimensions.csv, when it is open
    assert "No space left" in refusal(program, tmp_path / "z.npy", "--out", tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("share, said", [(0.949, 94), (0.57, 57), (0.9999, 99), (1.0, 100)])
def test_shares_of_neighbours_are_rounded_down(share, said):
    y = np.array([0, 0, 1, 1])
    e = interpret.Embedding(np.eye(4)[:, :3], y)
    found = interpret.interpret(e)
    found.columns["images_in_z_better"][:] = share
    assert f"purer than {said} % of" in interpret.tell_most(found, {})


def test_ctrl_c_ends_interpret_in_one_line(tmp_path, monkeypatch, capsys):
    path = tmp_path / os.fsdecode(b"caf\xe9.npy")  # a name that is no text
    np.save(path, Z_READ)
    monkeypatch.setattr(sys, "argv", ["interpret.py", str(path)])
    runpy.run_path(interpret.__file__, run_name="__main__")
    assert "caf" in capsys.readouterr().out
    monkeypatch.setattr(csv, "writer", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(interpret.__file__, run_name="__main__")
    found = stop.value.code, capsys.readouterr().err
    assert found == (130, "interpret.py: stopped before its end\n")
