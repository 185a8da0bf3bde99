"""look.py: what a page holds, and what it shows in a browser."""

import base64
import collections
import hashlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import image_files
import interpret
import look
import shapes
from conftest import (
    ROOT,
    records,
    refusal,
    run_program,
    write_files,
)
from test_interpret import (
    DENSE_Z,
    H_OF_Z,
    IN_WORDS,
    KIND_OF,
    NUMBERED,
    PLACE_OF,
    SIGNED_Z,
    as_csr,
    naive_activity,
    naive_correlations,
    naive_partners,
    naive_projections,
    sparse_z,
)

import numpy as np
import pytest
import scipy.sparse as scipy_sparse
import torch
from PIL import Image, ImageOps


def page_parts(text):
    """What a page's text holds for its script: meta, the arrays by name, its sheets of images."""
    meta = json.loads(re.search('id="meta">(.*?)</script>', text)[1])
    numbers = zlib.decompress(base64.b64decode(re.search('id="numbers">(.*?)</script>', text)[1]))
    kinds = {name: kind for kind, name in look.KINDS.items()}
    arrays = {}
    for name, (kind, at, n) in meta.pop("arrays").items():
        arrays[name] = np.frombuffer(numbers, kinds[kind], n, at)
    sheets = [base64.b64decode(sheet) for sheet in re.findall('class="sheet">(.*?)<', text)]
    return meta, arrays, [np.asarray(Image.open(io.BytesIO(sheet))) for sheet in sheets]


def tiles_of_page(geometry, sheets):
    """The images (N, side, side, 3) in a page's sheets, then the grey that fills the last row."""
    side, pitch, columns = geometry["side"], geometry["pitch"], geometry["columns"]
    assert pitch % 16 == 0  # no block of a JPEG has parts of two images
    tiles = []
    for sheet in sheets:
        assert sheet.size < 3 * 16e6  # what phones take
        tiles += list(sheet.reshape(-1, pitch, columns, pitch, 3).swapaxes(1, 2))
    return np.concatenate(tiles)[:, :side, :side]


# ---- the oracle: what a page has to hold, in plain loops
# So small a page that every limit leaves something out.
PAGE_LIMITS = dict(DIMS=10, PICTURED=50, STRONGEST=6, LISTED=100, PARTNERS=3, TOP=4, NEAR=3)
PAGE_LIMITS |= dict(TELLING=3)


def thinned(lists, most):
    """Of each list the strongest, and evenly spread ones, so that there are LISTED in all."""
    while most > look.STRONGEST and sum(min(len(own), most) for own in lists) > look.LISTED:
        most //= 2
    found = []
    for own in lists:
        many = min(len(own), most)
        places = {round(j * (len(own) - 1) / max(1, many - 1)) for j in range(many)}
        places |= {*range(min(len(own), look.STRONGEST))}
        found.append([own[place] for place in sorted(places)])
    return found


def dimensions_of_page(active, values, kept, chosen):
    """Arrays of the dimensions with pictures, which are among the chosen images."""
    N, K = active.shape
    strengths = abs(values)
    lists = []
    found = {"bins": [], "together": [], "both": []}
    for k in kept:
        on, strength = active[:, k], strengths[:, k]
        order = np.argsort(-strength, kind="stable")
        lists.append([i for i in order if on[i] and i in chosen])
        found["bins"].append(np.histogram(strength[on] / strength.max(), look.BINS, (0, 1))[0])
        meetings = active[on].sum(0)
        share = meetings / (on[:, None] | active).sum(0).clip(1)
        share[k] = 0
        together = np.argsort(-share, kind="stable")[: look.PARTNERS]
        found["together"].append([o if share[o] > 0 else K for o in together])
        found["both"].append(meetings[together])
    peak = strengths[:, kept].max(0)
    listed = thinned(lists, N)
    found |= {"kept": kept, "peak": peak, "seen": [len(own) for own in lists]}
    found["start"] = np.cumsum([0] + [len(own) for own in listed])
    found["listed"] = sum(listed, [])
    shares = [strengths[own, k] / peak[j] for j, (k, own) in enumerate(zip(kept, listed))]
    found["strength"] = np.round(255 * np.concatenate([*shares, []]))
    return found


def telling_of_page(active, label):
    """The dimensions that tell each class best, by F1, and their hits."""
    found = collections.defaultdict(list)
    for c in range(len(label.classes)):
        hits = active[label.y == c].sum(0)
        f1 = 2 * hits / (active.sum(0) + (label.y == c).sum())
        order = np.argsort(-f1, kind="stable")[: look.TELLING]
        found["telling"].append(order)
        found["hits"].append(hits[order])
    return found


def orders_of_page(e):
    """The orders (orders, N) of the images that dimensions are compared with, by family."""
    N, spaces = e.N, {"z": dense(e.z).astype(float)}
    if e.features is not None:
        spaces["h"] = e.features.astype(float)
    found = {}
    for space, vectors in spaces.items():
        for name, of_images in (f"directions_of_{space}", False), (f"images_in_{space}", True):
            along = naive_projections(vectors, N if of_images else interpret.FAMILY, 0, of_images)
            found[name] = np.argsort(-along, 0).T
    return found


def compared_on_page(label, orders, n):
    """What a dimension that is active on n images (m,) is compared with."""
    found = {"chance": label.chance[n - 1], "high": label.high[n - 1]}
    for name, of_family in orders.items():
        is_class = label.y[of_family][..., None] == np.arange(len(label.classes))
        own = is_class.cumsum(1)[:, n - 1].max(2) / n
        found[name] = own.mean(0)
        found[f"{name}_low"], found[f"{name}_high"] = np.percentile(own, [5, 95], axis=0)
    return found


def dense(z):
    """An embedding as an array."""
    if isinstance(z, interpret.Entries):
        return scipy_sparse.coo_array((z.values, (z.images, z.dims)), z.shape).toarray()
    return z


def images_of_page(values, chosen, features, near):
    """Arrays of the chosen images. near: those that are nearest to each by the page."""
    K = values.shape[1]
    orders = np.argsort(-abs(values[chosen]), kind="stable")[:, : look.TOP]
    size = np.take_along_axis(values[chosen], orders, 1)
    found = {"dims": np.where(size == 0, K, orders), "size": size}
    if features is not None:
        x = features[chosen] / np.linalg.norm(features[chosen], axis=1, keepdims=True).clip(1e-12)
        cosines = x @ x.T
        found |= {"near": near, "close": []}
        for i, own in enumerate(np.searchsorted(chosen, near)):
            nearest = sorted(np.delete(cosines[i], i))[::-1][: look.NEAR]
            assert i not in own
            assert cosines[i, own] == pytest.approx(nearest, abs=1e-5)
            found["close"].append(nearest)
    return found


def source_on_page(e, findings, rule, arrays, r):
    """The arrays of source r, and how many dimensions it has."""
    features = e.judge if isinstance(e.z, interpret.Entries) else e.z
    _, active, values = naive_activity(dense(e.z).astype(float), rule)
    columns = findings.columns
    interest = [columns[f"{prefix}f1"] for prefix in findings.labels]
    interest = np.max(interest or [np.nan_to_num(columns.get("mono", columns["mean"]), nan=-9)], 0)
    order = np.argsort(-interest, kind="stable")
    kept = np.sort(order[columns["n"][order] > 0][: look.DIMS])
    chosen = arrays["images"]
    near = arrays.get(f"{r}near", np.zeros(0)).reshape(len(chosen), -1)
    found = {name: columns[name] for name in ("n", "mean", "mono", "group") if name in columns}
    found |= dimensions_of_page(active, values, kept, set(chosen.tolist()))
    found |= images_of_page(values, chosen, features, near)
    found["actives"] = active[chosen].sum(1)
    orders = orders_of_page(e)
    for prefix, label in findings.labels.items():
        classes = np.arange(len(label.classes))
        own = {name: columns[prefix + name] for name in ("class", "best", *look.OF_LABEL)}
        own["count"] = active[:, kept].T.astype(int) @ (label.y[:, None] == classes)
        own |= telling_of_page(active, label)
        own |= compared_on_page(label, orders, arrays["counts"].astype(int))
        found |= {prefix + name: array for name, array in own.items()}
    return found, active.shape[1]


def partners_on_page(e, other, rule, partner):
    """The partner of each dimension of e in another embedding, and their correlation.

    partner: those of the page
    """
    ours, theirs = (abs(naive_activity(dense(one.z).astype(float), rule)[2]) for one in (e, other))
    r = naive_correlations(ours, theirs)
    _, best = naive_partners(r)
    alike = r[range(len(best)), best]
    equal = np.isclose(r[range(len(best)), partner], alike, atol=1e-9)  # of equal ones any
    return np.where(equal, partner, best), alike


# ---- the sources
def numbered_images(N, height, width):
    """Each its own red, green from left to right, blue from top to bottom: (N, H, W, 3)."""
    images = np.zeros((N, height, width, 3), np.uint8)
    images[..., 0] = (101 * np.arange(N) % 251)[:, None, None]
    images[..., 1] = np.linspace(0, 250, width)
    images[..., 2] = np.linspace(250, 0, height)[:, None]
    return images


def shown(files, sources="z.npz", rule="auto", flags="", classes=(), images=None):
    """Files, how they are given, and what a page has of them: names of classes, and images."""
    return SimpleNamespace(**locals())


COLLAPSED = np.outer(2.0 ** (np.arange(40) % 4), [1, 2, 3])  # z differs, z / |z| does not
SMALL_IMAGES = numbered_images(97, 10, 14)
NAMES_OF_ROWS = np.arange(97).astype(str)
LARGE_IMAGES = numbered_images(97, 80, 96)
GREY_IMAGES = numbered_images(97, 17, 17)[..., 0]
TEN_NAMES = ["a", "b", "c\u2028", "d", "e", "f\udce9", *"ghij"]
TEN_LINES = {"names.txt": '\ufeffa\nb\r\nc\u2028\nd\ne\n"f\\udce9"\ng\nh\ni\nj'}
CLASSES = [f"class {c}" for c in range(5)]
BACKGROUNDS = [f"background {c}" for c in range(5)]
OF_WORDS = {"run/words.json": json.dumps({"words": [[[f"w{k}", k]] for k in range(200)]})}


def two_files(**other):
    """Two embeddings of the same images, but for these arrays of the second."""
    one = dict(z=sparse_z(11), y=KIND_OF, images=SMALL_IMAGES, names=NAMES_OF_ROWS)
    files = {"a.npz": one, "b.npz": one | other}
    return shown(files, "a.npz b.npz", classes=[CLASSES[:3]], images=SMALL_IMAGES)


PAGES_LOOKED_AT = {
    "collapsed": shown(
        {"z.npz": dict(z=COLLAPSED, images=SMALL_IMAGES[:40])}, images=SMALL_IMAGES[:40]
    ),
    "no labels": shown({"z.npy": DENSE_Z}, "z.npy", "nonzero"),
    "only h": shown(
        {"z.npz": dict(z=sparse_z(40), h=H_OF_Z, images=GREY_IMAGES)}, images=GREY_IMAGES
    ),
    "signs": shown(
        {"z.npz": as_csr(SIGNED_Z, y=KIND_OF), "h.npz": dict(h=H_OF_Z)}
        | {"x.npy": SMALL_IMAGES.transpose(0, 3, 1, 2)},
        flags="--features h.npz --images x.npy",
        classes=[CLASSES[:3]],
        images=SMALL_IMAGES,
    ),
    "halves": shown(
        {"z.npz": dict(z=DENSE_Z, y=IN_WORDS[KIND_OF], background=PLACE_OF, images=LARGE_IMAGES)},
        rule="top:0.1",
        classes=[sorted(IN_WORDS), BACKGROUNDS[:3]],
        images=LARGE_IMAGES,
    ),
    "a judge": shown(
        {"z.npz": as_csr(SIGNED_Z), "y.npy": NUMBERED[KIND_OF], "h.npy": H_OF_Z} | TEN_LINES,
        rule="top:0.1",
        flags="--judge h.npy --labels y.npy --classes names.txt",
        classes=[[TEN_NAMES[c] for c in NUMBERED]],
    ),
    "same images": two_files(z=DENSE_Z),
    "other labels": two_files(y=KIND_OF[::-1]),
    "other images": two_files(images=SMALL_IMAGES ^ 1),
    "other names": two_files(names=NAMES_OF_ROWS[::-1]),
    "a run": shown(
        TEN_LINES | OF_WORDS, "run", flags="--classes names.txt", classes=[TEN_NAMES, BACKGROUNDS]
    ),
    "its other labels": shown(
        {"y.npy": np.arange(100) % 5}, "run", flags="--labels y.npy", classes=[CLASSES, BACKGROUNDS]
    ),
}


def facts_on_page(e, findings, K, case):
    """What a page says of a run or file."""
    fact = dict(name=e.title, K=K, halves=K > e.K, is_run=False, dataset="")
    fact |= dict(top=min(look.TOP, K), together=min(look.PARTNERS, K))
    fact |= dict(about=interpret.describe(e, findings), words=None)
    fact |= dict.fromkeys(("command", "commit", "date"), "not noted")
    spaces = "z" if e.features is None else "hz"
    kinds = "directions_of", "images_in"
    fact["families"] = [f"{kind}_{space}" for kind in kinds for space in spaces]
    fact["near"] = e.judge_name if isinstance(e.z, interpret.Entries) else "z"
    numbers = findings.numbers
    if case.sources == "run":
        fact |= {"is_run": True, "dataset": "tiny"}
        config = json.loads(Path("run/config.json").read_text())
        fact |= {key: config[key] for key in ("command", "commit", "date")}
        last = records(Path("run"))[-1]
        numbers = numbers | {key: last[key] for key in ("epochs", "background_lp1")}
        if "y.npy" not in case.files:  # the record's probe is of its own
            numbers["lp1"] = last["lp1"]
            fact["words"] = [[[f"w{k}", k]] for k in range(200)]
    defined = {key: value for key, value in numbers.items() if value is not None}
    control = findings.controls["images_in_z"]
    control = {key: value for key, value in control.items() if value is not None}
    return fact | dict(metrics=defined, control=control)


@pytest.mark.parametrize("name", PAGES_LOOKED_AT)
def test_a_page_holds_what_loops_say(name, run_of, tmp_path, monkeypatch, capsys):
    case = PAGES_LOOKED_AT[name]
    monkeypatch.chdir(tmp_path)
    for limit, value in PAGE_LIMITS.items():
        monkeypatch.setattr(look, limit, value)
    monkeypatch.setattr(interpret, "FAMILY", 200)
    if case.sources == "run":
        shutil.copytree(run_of("ncl"), "run")
    write_files(tmp_path, case.files)
    measured = []  # what interpret.py finds is tested above
    measure = interpret.interpret

    def keep(*args):
        measured.append((args[0], measure(*args)))
        return measured[-1][1]

    monkeypatch.setattr(interpret, "interpret", keep)
    of_rule = [] if case.rule == "auto" else ["--active", case.rule]
    argv = [*case.sources.split(), *of_rule, *case.flags.split(), "--out", "page"]
    run_program("look.py", *argv)
    page = Path("page/look.html" if len(measured) == 1 else "page/a/look.html")
    meta, arrays, sheets = page_parts(page.read_text(encoding="utf-8"))
    if name.startswith("other"):  # than of the first source
        measured.pop()  # has a page of its own
        assert f"b.npz has {name}" in capsys.readouterr().out
        other, *_ = page_parts(Path("page/b/look.html").read_text(encoding="utf-8"))
        assert [run["name"] for run in other["runs"]] == ["b.npz"]

    e, findings = measured[0]
    chosen = arrays["images"]
    assert np.diff(chosen.astype(int)).min() > 0
    assert len(chosen) == min(e.N, look.PICTURED)
    assert chosen[-1] >= min(e.N - 1, look.PICTURED)  # not the first ones
    counts = {round(e.N ** (j / (look.CURVE - 1))) for j in range(look.CURVE)}
    for _, findings in measured:
        counts |= {*findings.activations.n.tolist()} - {0}
    counts = sorted(counts)
    e, findings = measured[0]
    expected = {"images": chosen, "counts": counts}
    scores = []  # the label that most is said about opens
    for q, (prefix, label) in enumerate(findings.labels.items()):
        expected[f"label{q}"] = np.searchsorted(np.unique(e.labels[prefix]), e.labels[prefix])
        expected[f"base{q}"] = [(label.y == c).sum() for c in range(len(label.classes))]
        scores.append(findings.numbers[f"{prefix}adjusted"] or 0)
    facts = []
    for r, (e, findings) in enumerate(measured):
        own, K = source_on_page(e, findings, case.rule, arrays, r)
        expected |= {f"{r}{key}": array for key, array in own.items()}
        facts.append(facts_on_page(e, findings, K, case))
    if len(measured) == 2:
        for r, other in (0, 1), (1, 0):
            facts[r]["beside"] = other
            two = measured[r][0], measured[other][0]
            found = partners_on_page(*two, case.rule, arrays[f"{r}partner"])
            expected |= {f"{r}partner": found[0], f"{r}alike": found[1]}
    assert arrays.keys() == expected.keys()
    for key, array in expected.items():
        atol = 1 if key.endswith("strength") else 1e-6  # it is rounded
        np.testing.assert_allclose(arrays[key], np.ravel(array), 1e-5, atol, err_msg=key)
    tile = meta.pop("tile")
    opens = int(np.argmax(scores)) if scores else 0
    told = dict(keys=list(findings.labels), labels=[*case.classes], opens=opens, runs=facts)
    limits = dict(N=e.N, screen=look.STRONGEST, near=look.NEAR, bins=look.BINS)
    limits["telling"] = look.TELLING
    ids = {run.pop("id") for run in meta["runs"]}  # own names of dimensions are kept by it
    assert len(ids) == len(facts)
    assert meta == told | limits | dict(command=shlex.join(["python", "tools/look.py", *argv]))
    images = case.images
    if case.sources == "run":
        images = shapes.draw(240, 100)["x_test"].transpose(0, 2, 3, 1)
    if images is None:
        assert (tile, sheets) == (None, [])
        return
    for found, i in zip(tiles_of_page(tile, sheets), chosen):
        square = ImageOps.fit(Image.fromarray(images[i]).convert("RGB"), found.shape[:2], 2)
        assert np.abs(found - np.asarray(square, int)).mean() < 14  # JPEG


def test_sheets_hold_thousands_of_images():
    shades = np.arange(4100) % 251
    images = torch.tensor(shades, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 64, 64)
    geometry, sheets = look.make_sprites(images)
    sheets = [np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet)))) for sheet in sheets]
    tiles = tiles_of_page(geometry, sheets)[: len(shades)]
    assert tiles.mean((1, 2, 3)) == pytest.approx(shades, abs=3)


BESIDE_LOOK = {"interpret.py", "image_files.py", "look.html"}


@pytest.mark.parametrize("missing", sorted(BESIDE_LOOK))
def test_a_copy_of_look_names_what_it_misses(tmp_path, missing):
    for name in {"look.py"} | BESIDE_LOOK - {missing}:
        shutil.copy(ROOT / "tools" / name, tmp_path)
    command = [sys.executable, tmp_path / "look.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert missing in done.stderr


def test_a_copy_of_look_refuses_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(look, "run_folder", None)  # as where common.py is not there
    write_files(".", {"run/embeddings.npz": dict(z=np.eye(9, 3))})
    assert "needs run_folder.py and common.py" in refusal("look.py run")


# ---- which image file is whose row
SPLIT = 'file,class,set\r\ntrain/c.png,c,train\r\nb.png,,test\r\n"a\nb.png",,test\r\n'
ALIKE_SORTED = ["cat/1.png", "cat/2.GIF", "dog/a/1.png", "dog/b/1.png"]
EXCELS = "\ufefffile,class,set\nb.png,,test\na.png,,test"
BA, CATS = ["b.png", "a.png"], ["cat-big/1.png", "cat/1.png"]
ORDERS = {  # files in a folder; the file that names them; the order, or words of a refusal
    "as all sort": (ALIKE_SORTED[::-1], {}, ALIKE_SORTED),
    "folders in a class": (["cat/b.png", "cat/a/1.png"], {}, "ImageFolder has cat/b.png"),
    "folders in folders": (["c/a/d/1.png", "c/a-b/1.png"], {}, "c/a-b/1.png; --names"),
    "lines": (CATS, {"n.txt": "cat-big/1.png\r\ncat/1.png\n"}, CATS),
    "beside z": (BA, {"e.npz": [b"b.png", b"a.png"]}, BA),
    "beside z in a .pt": (BA, {"e.pt": BA}, BA),
    "an archive": (BA, {"n.npz": dict(names=BA, x=[1, 2])}, BA),
    "of decode.py": (["a\nb.png", "b.png", "train/c.png"], {"s.csv": SPLIT}, ["b.png", "a\nb.png"]),
    "a file twice": (["a.png"], {"n.txt": "a.png\na.png"}, ["a.png", "a.png"]),
    "another number": (BA, {"n.txt": "a.png"}, "has 2 rows; 1 im"),
    "no such file": (["a.png"], {"n.txt": "a.png\nc.png"}, "c.png, of row 1"),
    "a table of Excel": (BA, {"s.csv": EXCELS}, BA),
    "another table": (["a.png"], {"s.csv": "name\na.png"}, "no column 'file'"),
    "above": (["a.png"], {"n.txt": "../e.npz\na.png"}, "row 0 of n.txt; leads out of x"),
    "from the root": (["a.png"], {"n.txt": "a.png\n/etc/hostname"}, "row 1 of n.txt; leads out"),
    "no name": (["a.png"], {"n.txt": "a.png\na\0.png"}, "row 1 of n.txt; leads out"),
    "above, beside z": (BA, {"e.npz": ["x/../../a.png", "a.png"]}, "row 0 of 'names'; leads out"),
    "above, of decode.py": (BA, {"s.csv": "file,set\n../e.npz,\na.png,"}, "of s.csv; leads out"),
    "half a table": (BA, {"s.csv": "set,file\ntest\ntest,a.png"}, "x, of row 0, is not there"),
    "a cell too long": (BA, {"s.csv": f"file\n{200_000 * 'a'}"}, "read as a table; field limit"),
    "both sets": (["a.png"], {"s.csv": SPLIT + "a.png,,train"}, "2 of train; 2 of test"),
}


@pytest.mark.parametrize("files, names, expected", ORDERS.values(), ids=ORDERS)
def test_rows_have_their_own_images(tmp_path, monkeypatch, capsys, files, names, expected):
    monkeypatch.chdir(tmp_path)
    for i, file in enumerate(files):
        Path("x", file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (60 * i, 0, 0)).save(Path("x", file))
    rows = len(expected) if isinstance(expected, list) else 2
    e = {"e.npz": dict(z=np.eye(max(rows, 2)))}
    if "e.npz" in names:
        e["e.npz"]["names"] = names["e.npz"]
    write_files(".", names | e)
    torch.save(dict(z=torch.eye(max(rows, 2)), names=names.get("e.pt")), "e.pt")
    source = "e.pt" if "e.pt" in names else "e.npz"
    flags = [f"--names {file}" for file in names if not file.startswith("e.")]
    command = f"look.py {source} --images x --out page {' '.join(flags)}"
    if isinstance(expected, str):
        message = refusal(command)
        assert all(words in message for words in expected.split("; ")), message
        assert not Path("page").exists()
        return
    run_program(command)
    assert ", ".join(expected[:3]) in capsys.readouterr().out
    meta, _, sheets = page_parts(Path("page/look.html").read_text(encoding="utf-8"))
    tiles = tiles_of_page(meta["tile"], sheets)[:rows, :, :, 0]
    shades = [60 * files.index(name) for name in expected]
    assert tiles.mean((1, 2)) == pytest.approx(shades, abs=3)


def test_links_out_of_a_folder_are_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "x/0.png", "elsewhere/1.png":
        Path(name).parent.mkdir()
        Image.new("RGB", (8, 8)).save(name)
    Path("x/1.png").symlink_to(tmp_path / "elsewhere/1.png")
    Path("x/more").symlink_to("../elsewhere")
    write_files(
        ".", {"z.npy": np.eye(3), "n.txt": "0.png\n0.png\n1.png", "m.txt": "more/1.png\n" * 3}
    )
    run_program("look.py z.npy --images x --out page")  # it lists them itself
    for names in "n.txt", "m.txt":
        assert "leads out of x" in refusal(f"look.py z.npy --images x --names {names}")


def by_numbers(name):
    return [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", name)]


def test_files_in_order_of_numbers_have_a_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(image_files.ORDERS, "natural", by_numbers)
    names = [f"{folder}/{i}.png" for folder in ("a2", "a10") for i in (2, 9, 10, 111)]
    for i, name in enumerate(names):
        Path("x", name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (30 * i, 0, 0)).save(Path("x", name))
    write_files(".", {"z.npy": np.eye(8)})
    told = refusal("look.py z.npy --images x --out page")
    recipe = re.search("python (-c .*) > files.txt", told)[1]
    done = subprocess.run([sys.executable, *shlex.split(recipe)], capture_output=True, text=True)
    assert done.stdout.splitlines() == names
    write_files(".", {"names.txt": done.stdout})
    run_program("look.py z.npy --images x --out page --names names.txt")
    meta, _, sheets = page_parts(Path("page/look.html").read_text(encoding="utf-8"))
    shades = tiles_of_page(meta["tile"], sheets)[:8, :, :, 0].mean((1, 2))
    assert shades == pytest.approx([30 * i for i in range(8)], abs=3)


def test_tiles_are_not_the_first_images_size(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    for i, size in enumerate([(1, 1), (300, 200), (9, 40), (4000, 2), (64, 64)]):
        Image.new("RGB", size, (50 * i, 0, 0)).save(f"x/{i}.png")
    write_files(".", {"z.npy": np.eye(5)})
    run_program("look.py z.npy --images x --out page")
    meta, _, sheets = page_parts(Path("page/look.html").read_text(encoding="utf-8"))
    assert meta["tile"]["side"] == look.LARGEST
    tiles = tiles_of_page(meta["tile"], sheets)[:5, :, :, 0]
    assert tiles.mean((1, 2)) == pytest.approx([0, 50, 100, 150, 200], abs=3)


TEXTS = {  # texts of a file or beside z of two rows; the page's, or words of a refusal
    "lines": ("a\n<b>", None, ["a", "<b>"]),
    "JSON": ('"a\\nb\\u0000"\n"\\udce9"', None, ["a b ", " "]),
    "long": ("x" * 600 + "\n" + "y" * 500, None, ["x" * 500 + "…", "y" * 500]),
    "beside z": (None, ["a", "b"], ["a", "b"]),
    "too few": ("a", None, "z has 2 rows; has 1 lines"),
    "too many, beside z": (None, ["a", "b", "c"], "z has 2 rows; shape (3,)"),
    "numbers": (None, [1, 2], "texts is int64"),
    "no UTF-8": (b"\xff\n", None, "is not UTF-8"),
}


@pytest.mark.parametrize("lines, beside, expected", TEXTS.values(), ids=TEXTS)
def test_rows_have_their_own_texts(tmp_path, monkeypatch, capsys, lines, beside, expected):
    monkeypatch.chdir(tmp_path)
    write_files(".", {"z.npz": dict(z=np.eye(2)) | ({"texts": beside} if beside else {})})
    command = "look.py z.npz --out page"
    if lines is not None:
        write_files(".", {"t.txt": lines})
        command += " --texts t.txt"
    if isinstance(expected, str):
        message = refusal(command)
        assert all(words in message for words in expected.split("; ")), message
        return
    run_program(command)
    meta, arrays, _ = page_parts(Path("page/look.html").read_text(encoding="utf-8"))
    assert json.loads(arrays["texts"].tobytes()) == expected
    assert "z.npz: 2 rows, 2 dimensions" in meta["runs"][0]["about"]
    assert "image" not in capsys.readouterr().out


def test_dimensions_with_pictures_are_the_largest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(".", {"z.npz": dict(z=sparse_z(40), y=KIND_OF)})
    run_program("look.py z.npz --out page --dims 7 --by mean")
    table = np.genfromtxt("page/dimensions.csv", delimiter=",", names=True)
    _, arrays, _ = page_parts(Path("page/look.html").read_text(encoding="utf-8"))
    assert arrays["0kept"].tolist() == sorted(table["dimension"][:7])
    assert "z.npz has n, mean, cons" in refusal("look.py z.npz --by mono")


def test_a_table_of_interpret_stays_with_its_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(".", {"z.npz": dict(z=sparse_z(40), y=KIND_OF)})
    run_program("interpret.py z.npz --active top:0.1 --out out")
    table = Path("out/dimensions.csv").read_bytes()
    run_program("look.py z.npz --out out")
    assert Path("out/dimensions.csv").read_bytes() == table


def names_of(config, *args, **options):
    return look.class_names_of_run(Path("run"), config, *args, **options)[""]


def test_names_are_of_the_first_who_knows(run_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"flag.txt": "a", "run/classes.txt": "b", "data/mine/classes.txt": "c\nd"}
    write_files(tmp_path, files)
    own = dict(dataset="mine", data_root="data", classes="flag.txt")
    assert names_of(own, None, Path("flag.txt")) == ["a"]
    assert names_of(own, None, None) == ["b"]
    Path("run/classes.txt").unlink()
    assert names_of(own | dict(classes=7), None, None) == ["c", "d"]  # nce.py's
    of_shapes = dict(dataset="shapes", data_root="data")
    assert look.class_names_of_run(Path("run"), of_shapes, None, None)["background_"][0] == "sky"

    run = Path(shutil.copytree(run_of("ncl"), "its"))
    write_files(".", {"its/classes.txt": "b", "y.npy": np.arange(100) % 5})
    none = dict.fromkeys(("data_root", "classes", "features", "judge"))
    args = SimpleNamespace(images=Path("x"), **none)
    for args.labels, names in (None, {0: "b"}), (Path("y.npy"), {}):
        assert look.read_folder(run, None, args).names[""] == names


ELSEWHERE = {  # settings of a run, and --data-root; what is read where they say
    "classes": (dict(classes="{}/data/mine/classes.txt"), None, "give --classes"),
    "data_root": (dict(data_root="{}/data"), None, []),
    "data_root, checked": (dict(data_root="{}/data"), "checked", ["c"]),
    "data_root above": (dict(data_root="../data"), None, []),
    "dataset": (dict(dataset="{}/data/mine"), None, []),
    "dataset above": (dict(dataset="../data/mine"), "data", []),
    "dataset above assets": (dict(dataset="../../../{}/data/mine/classes"), None, []),
    "a folder below": (dict(data_root="data"), None, ["c"]),
    "--data-root": (dict(data_root="nowhere"), "{}/data", ["c"]),
}


@pytest.mark.parametrize("settings, root, expected", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_run_does_not_say_what_is_read(tmp_path, monkeypatch, settings, root, expected):
    monkeypatch.chdir(tmp_path)
    write_files(".", {"data/mine/classes.txt": "c"})
    config = dict(dataset="mine", data_root="data")
    config |= {key: value.format(tmp_path) for key, value in settings.items()}
    if isinstance(expected, str):
        assert expected in refusal(lambda: names_of(config, None, None))
    elif root == "checked":
        assert names_of(config, None, None, checked=True) == expected
    else:
        assert names_of(config, root and root.format(tmp_path), None) == expected


def test_a_runs_names_are_no_link_out_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(".", {"own.txt": "mine", "run/config.json": ""})
    Path("run/classes.txt").symlink_to("../own.txt")
    assert "not followed" in refusal(
        lambda: names_of(dict(dataset="mine", data_root="."), None, None)
    )


# ---- the page in a browser
EVIL_NAME = "{{sheets}}<script>alert(1)</script>\"'&"


def test_a_page_is_one_script_of_its_template(tmp_path):
    z = dict(z=SIGNED_Z, y=np.arange(97) % 4)
    write_files(tmp_path, {"z.npz": z, "names.txt": f"{EVIL_NAME}\n" * 4})
    examples = ROOT / "assets/example.html", ROOT / "assets/words.html"
    texts = [example.read_text(encoding="utf-8") for example in examples]
    for _ in range(2):
        flags = "--classes", tmp_path / "names.txt", "--out", tmp_path
        run_program("look.py", tmp_path / "z.npz", *flags)
        texts.append((tmp_path / "look.html").read_text(encoding="utf-8"))
    assert texts[2] == texts[3]
    template = (ROOT / "tools/look.html").read_text(encoding="utf-8")
    script = template.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    for text in texts[:3]:
        assert re.findall("<script>(.*?)</script>", text, re.DOTALL) == [script]
        assert f"script-src 'sha256-{digest}'" in text
        assert not re.search("https?:", text)


@pytest.mark.slow
def test_a_page_leads_to_every_dimension_and_image(run_of, tmp_path):
    driver = pytest.importorskip("playwright.sync_api").sync_playwright
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on the PATH")
    (tmp_path / "names.txt").write_text(f"{EVIL_NAME}\n" * 10)
    flags = "--classes", tmp_path / "names.txt", "--out", tmp_path
    run_program("look.py", run_of("ncl"), *flags)
    table = np.genfromtxt(tmp_path / "dimensions.csv", delimiter=",", names=True)
    live = table[table["act"] > 0]
    better = live["images_in_z_better"] + 1e-6
    near = live["images_in_z_better"].round(6)
    both = tmp_path / "both"
    run_program("look.py", run_of("ncl"), run_of("lpjepa"), "--out", both)
    _, partners, _ = page_parts((both / "ncl/look.html").read_text(encoding="utf-8"))
    meta, arrays, _ = page_parts((tmp_path / "look.html").read_text(encoding="utf-8"))
    numbers = meta["runs"][0]["metrics"]
    last = records(run_of("ncl"))[-1]
    heard = []
    with driver() as start:
        browser = start.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        for event in ("console", "pageerror", "dialog", "request"):
            page.on(event, lambda what: heard.append(str(getattr(what, "url", what))))

        def show(address, width=1400, folder=tmp_path):
            page.set_viewport_size(dict(width=width, height=800))
            page.goto(f"{(folder / 'look.html').as_uri()}#{address}")
            page.wait_for_selector("html[data-ready]", state="attached")
            return page.inner_text("main")

        def cards():
            page.evaluate("""async () => {
              while (built < found().length) {
                scrollTo(0, 1e9);
                await new Promise(requestAnimationFrame);
              }
              scrollTo(0, 0);  // what is out of sight has no text
              await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
            }""")
            return page.eval_on_selector_all(".card", "all => all.map(card => +card.dataset.k)")

        text = show("label=0")
        for key in "cons", "lp1":  # chance, and with it adj., is estimated otherwise
            assert f"{round(last[key], 1):.1f} %" in text
        assert f"{numbers['images_in_z_above']} of {numbers['images_in_z_possible']} that" in text
        columns = {key: live[key] for key in ("cons", "f1", "act")}
        columns |= {"purer": better, "entropy": -live["entropy"], "n": live["n"]}
        for key, column in columns.items():
            page.select_option("#sort", key)
            value = dict(zip(live["dimension"], -column))
            assert [value[k] for k in cards()] == sorted(value.values())
        purer = {}  # of each dimension, in the page's words
        for k, share in zip(live["dimension"], better):
            purer[k] = f"purer than {np.floor(100 * share):.0f} % of random images’ neighbours"
            if arrays["0cons"][int(k)] == 1 and share < 1:
                purer[k] += ", as pure as the others"
        texts = page.eval_on_selector_all(".card .whole", "all => all.map(e => e.textContent)")
        assert texts == [purer[k] for k in cards()]
        k = cards()[0]
        of_counts = np.searchsorted(arrays["counts"], arrays["0n"])  # of each dimension
        n, size = arrays["0n"][k], arrays["base0"][int(arrays["0best"][k])]
        limit = page.evaluate("x => about(x)", 2 * min(n, size).item() / (n + size).item())
        assert f"at most {limit}" in page.inner_text(".card")
        shares = "[.949, Math.fround(.95), .9996, 1].map(rounded_down)"
        assert page.evaluate(shares) == ["94 %", "95 %", "99 %", "100 %"]
        lefts = "all => all.map(mark => parseFloat(mark.style.left))"
        marks = page.eval_on_selector_all(".card u.images", lefts)
        assert marks == pytest.approx(100 * arrays["0images_in_z"][of_counts[cards()]], abs=0.06)
        show("label=0&find=purer>=95")
        assert len(cards()) == sum(better >= 0.95) == numbers["images_in_z_above"]
        least = next(
            x for x in np.arange(0.01, 1, 0.01).round(2) if x in near and np.float32(x) < x
        )
        show(f"label=0&find=purer>={100 * least:.0f}")  # the page's float32 is a little less
        assert len(cards()) == sum(better >= least)
        reason = "– too many neighbour lists are as pure as can be"
        assert (reason in show("label=1")) == (numbers["background_images_in_z_possible"] == 0)
        for space, address in {"z": "label=0", "h": "label=0&space=h"}.items():
            legend = f"nearest to a random one in {space}: mean"
            assert legend in show(address)
            for name, colour in {"directions_of": "--red", "images_in": "--grey"}.items():
                curve = page.locator(f".curve.{name}_{space}")
                assert colour in curve.get_attribute("style")
                points = curve.get_attribute("points").split()
                y = np.array([float(point.split(",")[1]) for point in points])
                places = page.evaluate("places_between(range_of_counts(live(0)))")
                share = np.log(arrays[f"0{name}_{space}"][places])
                expected = np.interp(share[::-1], share[[-1, 0]], y[[-1, 0]])[::-1]
                assert y == pytest.approx(expected, abs=0.2)
        show("label=0")
        first, second = cards()[:2]
        page.click(".card")
        page.keyboard.press("ArrowRight")
        text = page.inner_text("main")
        assert f"Dimension {second}" in text
        assert f"It is {purer[second]}." in text
        titles = {
            "directions_of": "random directions of",
            "images_in": "neighbours of random images in",
        }
        for name in meta["runs"][0]["families"]:
            ends = [arrays[f"0{name}{end}"] for end in ("", "_low", "_high")]
            own = [end[of_counts[second]].item() for end in ends]
            mean, low, high = page.evaluate("shares => shares.map(x => percent(x))", own)
            title = f"{titles[name[:-2]]} {name[-1]}"
            assert f"{title} {mean} 5 to 95 %: {low} to {high}" in " ".join(text.split())
        assert EVIL_NAME in text
        page.keyboard.press("ArrowLeft")
        page.click(".pics a")
        assert f"dim={first}&image=" in page.url
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        assert cards()[:2] == [first, second]
        show("image=7", 400)
        script = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
        pixels = np.reshape(page.eval_on_selector("canvas", script), (-1, 4))[:, :3]
        image = shapes.draw(240, 100)["x_test"][7]
        assert pixels.mean(0) == pytest.approx(image.mean((1, 2)), abs=3)
        bad = (
            "dim=x&run=7",
            "find=xyz",
            "dim=0&of=-1&page=9999999",
            "dim=<img src=x>&of=constructor",
        )
        for address in "all", "dim=0", "image=7", "class=1", *bad:
            assert len(show(address, 390)) > 10
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address

        show("sort=alike", folder=both / "ncl")
        alike = partners["0alike"]
        shown = cards()
        assert [alike[k] for k in shown] == sorted([alike[k] for k in shown], reverse=True)
        other = page.evaluate(
            "([u, k]) => name_at(runs[u], k)", [1, int(partners["0partner"][shown[0]])]
        )
        *_, partner = page.inner_text(".card").partition("↔ ")
        assert partner.startswith(other)
        assert partner.endswith(f", {alike[shown[0]]:.2f}")
        page.click(".card")
        page.click(f"text='{other}'")
        assert f"dim={other}&run=1" in page.url
        show("sort=alike&up=1", folder=both / "ncl")
        assert cards()[0] == shown[-1]
    assert all(what.startswith("file:") for what in heard)


NAMES = ["7", "17", 'a "b" c', "<b>cat</b>", "half disc"]
SEARCHES = {  # what is typed, which dimensions it finds: k, their class c, their images n
    "7": lambda k, c, n: k == 7,
    '"7"': lambda k, c, n: c == 0,
    '"half disc"': lambda k, c, n: c == 4,
    "half disc": lambda k, c, n: c == 4,
    "cat or disc": lambda k, c, n: c >= 3,
    "not cat": lambda k, c, n: c != 3,
    "n<6 not 7": lambda k, c, n: (n < 6) & (c > 1) & (k != 7),
    "22 or 13": lambda k, c, n: (k == 22) | (k == 13),
    "act>=12": lambda k, c, n: n >= 6,  # of 50 images
    "act<12": lambda k, c, n: n < 6,
    "n < 6": lambda k, c, n: n < 6,
    "n>=6 or cat": lambda k, c, n: (n >= 6) | (c == 3),
    "n<": lambda k, c, n: n > 0,
    "act>10%": lambda k, c, n: n > 5,
    "number<3": "there is no “number”",
    "n<x": "“x” is no number",
}


@pytest.mark.slow
def test_a_page_does_what_is_asked(tmp_path):
    driver = pytest.importorskip("playwright.sync_api").sync_playwright
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on the PATH")
    y = np.arange(50) % 5
    k = np.arange(100)
    n = 3 + k // 5 % 4  # of ten images of its class; those of one class and number are alike
    z = (y[:, None] == k % 5) & (np.arange(50)[:, None] // 5 < n)
    z = z.astype(np.float32) * (1 + np.arange(50)[:, None])
    z[:, 90:] = 0
    evil = '<img src=x onerror="alert(1)">'
    texts = [evil, "\u202e\0\x1b[31m", "x" * 100_000, *["an image"] * 47]
    write_files(tmp_path, {"z.npz": dict(z=z, y=y), "t.txt": "\n".join(map(json.dumps, texts))})
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    flags = ["--classes", tmp_path / "names.txt", "--texts", tmp_path / "t.txt"]
    run_program("look.py", tmp_path / "z.npz", "--out", tmp_path, "--dims", 60, "--by", "n", *flags)
    meta, arrays, _ = page_parts((tmp_path / "look.html").read_text(encoding="utf-8"))
    heard = []
    with driver() as start:
        browser = start.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=dict(width=1440, height=900))
        for event in ("console", "pageerror", "dialog", "request"):
            page.on(event, lambda what: heard.append(str(getattr(what, "url", what))))

        def until(condition):  # the page's policy forbids wait_for_function
            for _ in range(600):
                if page.evaluate(condition):
                    return
                page.wait_for_timeout(50)
            raise AssertionError(condition)

        page.goto((tmp_path / "look.html").as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        live = k < 90
        for typed, wanted in SEARCHES.items():
            page.fill("#find", typed)
            until(f"(S.find || '') == {json.dumps(typed)}")
            found = page.evaluate("found().map(d => d.k)")
            if isinstance(wanted, str):
                assert found == []
                assert wanted in page.inner_text(".cards")
            else:
                assert sorted(found) == np.flatnonzero(live & wanted(k, k % 5, n)).tolist(), typed
        page.fill("#find", "cat")
        until("S.find == 'cat'")
        page.click("#measure a:nth-child(2)")
        assert page.input_value("#find") == "cat"
        page.evaluate("go({plot: null, find: null})")
        until("!S.plot")
        page.check("#distinct")
        assert page.locator(".card").count() == meta["runs"][0]["metrics"]["distinct_dims"] == 20
        assert "and 4 like it" in page.inner_text(".cards")
        with page.expect_download() as waiting:
            page.click("#csv")
        rows = Path(waiting.value.path()).read_text().splitlines()
        assert len(rows) == 21

        page.focus(".chart canvas")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert page.url.endswith(f"#dim={page.evaluate('S.dim')}&distinct=1")
        kept, without = arrays["0kept"].tolist(), sorted({*range(90)} - {*arrays["0kept"].tolist()})
        page.evaluate("k => go({dim: k})", without[0])
        until("document.title.startsWith('dim')")
        assert "has pictures of 60 dimensions" in " ".join(page.inner_text("main").split())
        page.evaluate("go({dim: 95})")
        until("S.dim == '95'")
        assert "is dead: no row activates it" in page.inner_text("main")
        first = next(k for k in kept if k % 5 == 0 and n[k] == 6)
        page.evaluate("k => go({dim: k})", first)
        until(f"S.dim == '{first}'")
        page.select_option("#of", "missed")
        missed = page.evaluate("shown(opened_dimension(), 0).map(([i]) => i)")
        assert missed == [i for i in range(50) if y[i] == 0 and z[i, first] == 0]
        page.fill("#own", f"={evil}")
        page.press("#own", "Tab")
        page.reload()
        page.wait_for_selector("html[data-ready]", state="attached")
        assert page.input_value("#own") == f"={evil}"
        assert f"'={evil}".replace('"', '""') in page.evaluate("csv_of(live(0))")
        for i in range(3):
            page.evaluate("i => go({image: i})", i)
            until(f"S.image == '{i}'")
            shown = page.inner_text(".lead")
            assert shown == [evil, "\u202e [31m", "x" * look.LETTERS + "…"][i]
        page.evaluate("go({...HOME, distinct: null})")
        until("!opened()")
        page.evaluate("scrollTo(0, 900)")
        until("history.state?.y == 900")
        page.reload()
        page.wait_for_selector("html[data-ready]", state="attached")
        assert page.evaluate("scrollY") == 900
        page.set_viewport_size(dict(width=1400, height=900))
        until("width == 1400")
        assert page.evaluate("scrollY") == 900
        page.evaluate("localStorage.setItem('look ' + runs[0].id, '[7, {\"constructor\": 1')")
        page.reload()
        page.wait_for_selector("html[data-ready]", state="attached")
        assert page.locator(".card").count() > 0
        assert "image" not in page.inner_text("main").replace("an image", "")
    assert all(what.startswith(("file:", "blob:")) for what in heard), heard
