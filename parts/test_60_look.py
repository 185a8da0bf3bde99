"""look.py: the page and the pictures."""

import base64
import csv
import io
import json
import re
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.transforms.v2 import functional as TF

import interpret
import look
import shapes
from conftest import records, refusal, run_program
from parts.test_25_interpret import LABELS, N_DIMS, N_IMAGES, dense_matrix, sparse_matrix


# ------------------------------------------------------------------------------------------ look.py
def tiles(geometry, sheets):
    """The images (N, 3, h, w) in a page's sprites."""
    images = []
    for sheet in sheets:
        sheet = TF.pil_to_tensor(Image.open(io.BytesIO(base64.b64decode(sheet))))
        grid = sheet.view(3, -1, geometry["H"], geometry["columns"], geometry["W"])
        grid = grid.permute(1, 3, 0, 2, 4).flatten(0, 1)
        images.append(grid[..., : geometry["h"], : geometry["w"]])
    return torch.cat(images).float()


def contents(page):
    """What a page's text has for its script: meta, and the arrays by name."""
    meta = json.loads(re.search('id="meta">(.*?)</script>', page)[1])
    numbers = zlib.decompress(base64.b64decode(re.search('id="numbers">(.*?)</script>', page)[1]))
    kinds = {text: kind for kind, text in look.KINDS.items()}
    arrays = {}
    for name, (kind, at, n) in meta["arrays"].items():
        arrays[name] = np.frombuffer(numbers, kinds[kind], n, at)
    return meta, arrays


def sheets_of(page):
    return re.findall('class="sheet">(.*?)</script>', page)


class Toy:
    """A run of 40 dark and 40 bright images that was not trained, its embedding and its page."""

    def __init__(self, root):
        y = torch.arange(80) % 2
        x = torch.randint(0, 40, (80, 16, 16, 3), dtype=torch.uint8)
        x[y == 1] += 180
        np.savez(root / "toy.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
        self.root = root
        self.images = x[40:]
        self.y = y[40:].numpy()
        self.folder = root / "run"
        self.folder.mkdir()
        config = dict(
            method="simclr",
            dataset="toy",
            data_root=str(root),
            limit=None,
            arch="resnet8",
            image_size=16,
            min_scale=0.2,
            crop="bilinear",
        )
        (self.folder / "config.json").write_text(json.dumps(config))
        last = json.dumps({"event": "final", "epochs": 1, "spread": 0.9})
        (self.folder / "metrics.jsonl").write_text(last + "\n")
        share = torch.tensor([0, 0.05, 0.2, 0.4, 0.6, 1])
        z = torch.rand(40, 6) * (torch.rand(40, 6) < share)
        self.e = F.normalize(z.half().float()).numpy()  # (40, 6)
        self.embed(z=z.half(), h=torch.randn(40, 8).half(), y=self.y)

    def embed(self, **arrays):
        np.savez(self.folder / "embeddings.npz", **arrays)

    def look(self):
        """Make the page: its text, meta and arrays."""
        look.main([str(self.folder)])
        page = (self.folder / "look.html").read_text(encoding="utf-8")
        return page, *contents(page)

    def active(self, k):
        """The images on which dimension k is active, the strongest first."""
        order = np.argsort(-self.e[:, k], kind="stable")
        return [i for i in order.tolist() if self.e[i, k] > 1e-5]


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


@pytest.fixture
def rows(toy):
    """The arrays of the toy's page, a row for each dimension or image."""
    _, _, arrays = toy.look()

    def rows_of(name, n):
        return arrays[f"0{name}"].reshape(n, -1)

    return rows_of


def test_a_page_is_the_same_when_made_again(toy):
    assert toy.look()[0] == toy.look()[0]


def test_a_page_has_one_script_and_no_address(toy):
    page, _, _ = toy.look()
    assert page.count("<script>") == 1
    assert "http:" not in page


def test_folders_of_a_data_set_name_classes_unharmed(toy):
    for name in ("<script>alert(1)", "cat"):
        (toy.root / "toy" / "train" / name).mkdir(parents=True)
    page, meta, _ = toy.look()
    assert meta["labels"] == [["<script>alert(1)", "cat"]]
    assert page.count("<script>") == 1


def test_a_page_knows_the_record_of_its_run(toy):
    _, meta, _ = toy.look()
    assert meta["runs"][0]["metrics"]["epochs"] == 1


def test_a_dimension_shows_its_strongest_images_first(toy, rows):
    for k in range(6):
        order = toy.active(k)
        shown = rows("shown", 6)[k].tolist()
        assert shown[:48] == (order + [40] * 48)[:48]  # 40: none


def test_a_dimension_shows_all_of_few_images(toy, rows):
    for k in range(6):
        order = toy.active(k)
        shown = rows("shown", 6)[k].tolist()
        assert shown[48:88] == (order + [40] * 40)[:40]
        at_random = [i for i in shown[88:] if i < 40]
        assert sorted(at_random) == sorted(order)


def test_a_dimension_has_the_values_of_its_images(toy, rows):
    for k in range(6):
        values = rows("value", 6)[k] / 255 * rows("peak", 6)[k]
        for i, value in zip(rows("shown", 6)[k], values):
            if i < 40:
                assert value == pytest.approx(toy.e[i, k], abs=0.003)


def test_a_dimension_counts_its_images_and_classes(toy, rows):
    for k in range(6):
        order = toy.active(k)
        counts = np.bincount(toy.y[order], minlength=2)
        assert rows("count", 6)[k].tolist() == counts.tolist()
        assert rows("bins", 6)[k].sum() == rows("n", 6)[k] == len(order)


def overlap(toy, k, other):
    """Images with both dimensions active, as a share of those with either."""
    both = set(toy.active(k)) & set(toy.active(other))
    either = set(toy.active(k)) | set(toy.active(other))
    return len(both) / max(1, len(either))


def test_a_dimension_has_partners_by_their_overlap(toy, rows):
    for k in range(6):
        found = [overlap(toy, k, o) for o in rows("together", 6)[k].tolist() if o < 6]
        others = [overlap(toy, k, o) for o in range(6) if o != k]
        assert found == sorted((share for share in others if share), reverse=True)


def test_a_dimension_has_those_it_is_never_active_with(toy, rows):
    for k in range(6):
        never = {o for o in rows("never", 6)[k].tolist() if o < 6}
        live = [o for o in range(6) if toy.active(o) and toy.active(k)]
        assert never == {o for o in live if overlap(toy, k, o) == 0}


def test_an_image_has_its_nearest_by_cosine(toy, rows):
    for i in range(40):
        cosines = toy.e @ toy.e[i]
        near = rows("near", 40)[i]
        nearest = np.sort(np.delete(cosines, i))[::-1][:12]
        assert cosines[near] == pytest.approx(nearest, abs=1e-6)


def test_an_image_has_its_dimensions_and_their_size(toy, rows):
    for i in range(40):
        dims = [k for k in rows("dims", 40)[i] if k < 6]
        order = np.argsort(-toy.e[i], kind="stable")
        assert dims == [k for k in order if toy.e[i, k] > 1e-5]
        sizes = rows("size", 40)[i][: len(dims)] / 32767 * rows("largest", 40)[i]
        assert sizes == pytest.approx(toy.e[i, dims], abs=1e-4)


@pytest.fixture
def many():
    """The images that a dimension active on 900 of 1,000 shows; image i is the i-th strongest."""
    one = interpret.Activations(np.arange(900), np.arange(900, 0, -1), np.array([0, 900]), 1000)
    return look.of_dimensions(one, np.arange(1000), {})["shown"][0].tolist()


def test_many_images_are_shown_evenly_spread(many):
    assert many[:48] == list(range(48))
    assert many[48:88] == np.linspace(0, 899, 40).round().tolist()


def test_many_images_are_shown_at_random_once(many):
    at_random = many[88:]
    assert len(set(at_random)) == 40
    assert max(at_random) < 900
    assert np.mean(at_random) > 300


def test_the_sprites_are_the_runs_images(toy):
    page, meta, _ = toy.look()
    images = tiles(meta["tile"], sheets_of(page))[:40]
    expected = toy.images.permute(0, 3, 1, 2)
    assert (images - expected).abs().mean() < 9  # JPEG


SPRITES = {  # images, height, width, sheets
    "tall": (700, 96, 64, 1),
    "many": (16_000, 17, 20, 2),
    "large": (700, 224, 224, 1),
}


@pytest.mark.parametrize("n, height, width, expected", SPRITES.values(), ids=SPRITES)
def test_sprites_keep_every_image_in_its_place(n, height, width, expected):
    values = (torch.arange(n) % 250).byte()
    images = values.view(-1, 1, 1, 1).expand(-1, 3, height, width)
    geometry, sheets = look.sprites(images)
    assert len(sheets) == expected
    middle = tiles(geometry, sheets)[:n, 0, geometry["h"] // 2, geometry["w"] // 2]
    assert (middle - values).abs().max() < 4


def test_sprites_have_small_tiles_on_jpegs_grid():
    geometry, sheets = look.sprites(torch.zeros(20, 3, 96, 64, dtype=torch.uint8))
    assert geometry["W"] % 16 == geometry["H"] % 16 == 0
    assert max(geometry["w"], geometry["h"]) <= 64
    sheet = Image.open(io.BytesIO(base64.b64decode(sheets[0])))
    assert sheet.width * sheet.height < 16e6


# ---- pages of files
@pytest.fixture
def looked_at(tmp_path):
    """look.py of a file of these arrays: -> the page's text, meta, arrays."""

    def look_at(*flags, **arrays):
        np.savez(tmp_path / "features.npz", **arrays)
        out = tmp_path / "page"
        look.main([str(tmp_path / "features.npz"), "--out", str(out), *map(str, flags)])
        page = (out / "look.html").read_text(encoding="utf-8")
        return page, *contents(page)

    return look_at


def test_a_page_without_images_has_no_pictures(looked_at, tmp_path):
    page, meta, _ = looked_at(z=sparse_matrix())
    assert meta["tile"] is None
    assert 'class="sheet"' not in page
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"look.html", "dimensions.csv"}


def test_a_page_of_a_dense_file_has_half_dimensions(looked_at):
    z = dense_matrix()
    _, meta, arrays = looked_at("--active", "top:0.1", z=z)
    rows = z / np.linalg.norm(z, axis=1, keepdims=True)
    shown = arrays["0shown"].reshape(2 * N_DIMS, -1)
    assert meta["runs"][0]["dims"] == [f"{sign}{k}" for sign in "+-" for k in range(N_DIMS)]
    assert shown[4, :6].tolist() == np.argsort(-rows[:, 4])[:6].tolist()
    assert shown[N_DIMS + 4, :6].tolist() == np.argsort(rows[:, 4])[:6].tolist()


def test_an_image_of_a_dense_file_has_its_strongest_half(looked_at):
    z = dense_matrix()
    _, _, arrays = looked_at("--active", "top:0.1", z=z)
    rows = z / np.linalg.norm(z, axis=1, keepdims=True)
    strongest = np.argmax(np.concatenate([rows, -rows], 1), 1)
    assert arrays["0dims"].reshape(N_IMAGES, -1)[:, 0].tolist() == strongest.tolist()


def test_a_page_of_a_sparse_file_has_what_the_dense_one_has(looked_at, tmp_path):
    z = sparse_matrix(signed=True)
    z[:, 7] /= 2  # no ties
    np.save(tmp_path / "y.npy", LABELS)
    _, _, dense = looked_at("--labels", tmp_path / "y.npy", z=z)
    images, dims = z.nonzero()
    coo = dict(format="coo", shape=z.shape, data=z[images, dims], row=images, col=dims)
    _, _, sparse = looked_at("--labels", tmp_path / "y.npy", **coo)
    assert dense.keys() - sparse.keys() == {"0near", "0close"}  # by the judge, which is not there
    for name, array in sparse.items():
        if "untrained" not in name:  # which has other random directions
            assert array == pytest.approx(dense[name], abs=1e-5, nan_ok=True), name


@pytest.fixture
def cut(looked_at, monkeypatch, tmp_path):
    """A page of more than it may have: its meta and arrays, and the table of all dimensions."""
    monkeypatch.setattr(look, "MOST", 3)  # dimensions
    monkeypatch.setattr(look, "PICTURED", 10)  # images
    _, meta, arrays = looked_at(z=sparse_matrix(), y=LABELS)
    table = np.genfromtxt(tmp_path / "page/dimensions.csv", delimiter=",", names=True)
    return meta, arrays, table


def test_a_page_keeps_the_dimensions_with_the_largest_f1(cut):
    meta, arrays, table = cut
    kept = [table[table["dimension"] == int(name)][0] for name in meta["runs"][0]["dims"]]
    assert len(table) == N_DIMS
    assert sorted(row["f1"] for row in kept) == sorted(np.nan_to_num(table["f1"]))[-3:]
    assert arrays["0n"].tolist() == [row["n"] for row in kept]


def test_a_page_keeps_images_at_random(cut):
    _, arrays, _ = cut
    assert len(arrays["images"]) == 10
    assert set(arrays["0shown"]) <= {*arrays["images"], N_IMAGES}


@pytest.fixture
def numbered(looked_at, tmp_path):
    """A page of classes 0, 2, 5 and 6, which names.txt calls a, c, f and g."""
    numbers = np.array([0, 2, 5, 6])
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\ne\nf\ng\n")
    return looked_at("--classes", tmp_path / "names.txt", z=sparse_matrix(), y=numbers[LABELS])


def test_a_page_names_classes_with_gaps_by_their_numbers(numbered):
    _, meta, arrays = numbered
    assert meta["labels"] == [["a", "c", "f", "g"]]
    assert np.array_equal(arrays["label0"], LABELS)


def test_dimensions_csv_names_classes_by_their_numbers(numbered, tmp_path):
    _, _, arrays = numbered
    with open(tmp_path / "page/dimensions.csv") as file:
        row = next(csv.DictReader(file))
    best = arrays["0best"][int(row["dimension"])]
    assert int(row["best"]) == [0, 2, 5, 6][best]
    assert row["name"] == "acfg"[best]


def test_a_page_of_a_run_knows_its_images_by_the_classes_own_numbers(toy):
    arrays = dict(np.load(toy.root / "toy.npz"))
    for key in ("y_train", "y_test"):
        arrays[key] = 3 * arrays[key] + 2
    np.savez(toy.root / "toy.npz", **arrays)
    toy.embed(h=np.random.rand(40, 8), z=np.random.rand(40, 6), y=arrays["y_test"])
    _, meta, found = toy.look()
    assert meta["labels"] == [["class 2", "class 5"]]
    assert np.array_equal(found["label0"], toy.y)


def test_a_page_has_the_untrained_dictionary_beside_the_dimensions(looked_at):
    z = sparse_matrix()
    _, meta, arrays = looked_at(z=z, y=LABELS)
    found = interpret.interpret(interpret.Embedding(z, {"": LABELS}))
    live = found.untrained["n"] > 0
    for name in "n", "cons", "f1":
        assert np.allclose(arrays["0untrained_" + name], found.untrained[name][live])
    best = found.controls["untrained"]["best_f1"]
    assert meta["runs"][0]["untrained"]["best_f1"] == pytest.approx(best)


def save_images(form, images, folder):
    """The images in one of the forms that --images takes: flags, and arrays of the file."""
    if form == "in the file":
        return [], {"images": images}
    if form == "folder":
        (folder / "files").mkdir()
        for i, image in enumerate(images):
            Image.fromarray(image).save(folder / f"files/{i:02}.png")
        return ["--images", folder / "files"], {}
    if form == "channels first":
        images = images.transpose(0, 3, 1, 2)
    if form == "grey":
        images = images[..., 0]
    np.save(folder / "images.npy", images)
    return ["--images", folder / "images.npy"], {}


@pytest.mark.parametrize(
    "form", ["channels last", "channels first", "grey", "in the file", "folder"]
)
def test_a_page_has_the_images_in_their_order(looked_at, tmp_path, form):
    values = np.arange(0, 240, 4, dtype=np.uint8)
    images = np.broadcast_to(values[:, None, None, None], (N_IMAGES, 96, 80, 3))
    flags, arrays = save_images(form, images, tmp_path)
    page, meta, _ = looked_at(*flags, z=sparse_matrix(), **arrays)
    found = tiles(meta["tile"], sheets_of(page))[:N_IMAGES]
    assert found.shape[2:] == (64, 53)
    assert (found[:, 0, 30, 30] - torch.from_numpy(values)).abs().max() < 4
    assert (tmp_path / "page/top_images.png").exists()


NOT_SHOWN = {
    "--images few.npy": "z has 60 rows, few.npy has 3",
    "--images noise": "cannot be read as an image",
    "--images sizes": "crop or pad them to one size",
    "--images empty": "has no image files",
    "--images z.npy": "which array is the images?",
    "--images float.npy": "must be uint8",
    "--classes names.txt": "names classes, but there are no labels y",
    "other.npy": "give --out",
    "missing.npy": "missing.npy is not there",
}


@pytest.fixture
def files_to_look_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("z.npy", sparse_matrix())
    np.save("other.npy", sparse_matrix())
    np.save("few.npy", np.zeros((3, 8, 8), np.uint8))
    np.save("float.npy", np.zeros((60, 8, 8)))
    Path("names.txt").write_text("one\n")
    for name in "noise", "sizes", "empty":
        Path(name).mkdir()
    for i in range(60):
        Path(f"noise/{i:02}.png").write_text("no image")
        Image.new("RGB", (20, 20 + i)).save(f"sizes/{i:02}.png")


@pytest.mark.parametrize("flags, message", NOT_SHOWN.items(), ids=NOT_SHOWN)
def test_what_a_page_cannot_show_is_refused(files_to_look_at, flags, message):
    assert message in refusal(f"look.py z.npy {flags}")


def test_a_data_set_of_other_labels_is_refused(toy):
    arrays = dict(np.load(toy.root / "toy.npz"))
    np.savez(toy.root / "toy.npz", **arrays | {"y_test": 1 - arrays["y_test"]})
    assert "is not the data set of this run" in refusal("look.py", toy.folder)


# ---- pictures
LOOKED_AT = {  # methods, and the pictures that they have beside those of every run
    "simclr": {"spectra", "selection"},
    "sparsehead": set(),
    "simsiam": {"collapse"},
    "mmncl": set(),
}


@pytest.fixture(scope="session")
def pictured(runs, tmp_path_factory):
    """Copies of runs, and a landscape's folder, after look.py of all of them."""
    root = tmp_path_factory.mktemp("pictured")
    folders = {}
    for method in LOOKED_AT:
        folders[method] = shutil.copytree(runs / method, root / method)
    folders["landscape"] = root / "landscape"
    folders["landscape"].mkdir()
    curves = {
        "budget/SimCLR, lr 1/lr_times_steps": np.arange(4.0),
        "budget/SimCLR, lr 1/min": np.ones((4, 3)),
        "budget/SimCLR, lr 1/loss": np.ones((4, 3)),
    }
    np.savez(folders["landscape"] / "curves.npz", **curves)
    run_program("selection.py", folders["simclr"])
    run_program("look.py", *folders.values())
    return folders


@pytest.mark.parametrize("method", LOOKED_AT)
def test_every_run_gets_its_page_and_table(pictured, method):
    assert (pictured[method] / "look.html").exists()
    assert (pictured[method] / "dimensions.csv").exists()


@pytest.mark.parametrize("method", LOOKED_AT)
def test_every_run_gets_its_pictures(pictured, method):
    pytest.importorskip("matplotlib")
    found = {path.stem for path in pictured[method].glob("*.png")}
    assert found == {"top_images", "active_images", "dimensions"} | LOOKED_AT[method]


def test_a_landscape_gets_its_picture(pictured):
    pytest.importorskip("matplotlib")
    assert {path.stem for path in pictured["landscape"].glob("*.png")} == {"budget"}


# ---- the page in a browser
EVIL = "<script>alert(1)</script>\"'&"


class Browser:
    """The page of NCL beside SimCLR in Chromium, and everything that it said or asked for."""

    def __init__(self, playwright, executable, folder):
        options = ["--no-sandbox", "--disable-gpu"]
        chromium = playwright.chromium.launch(executable_path=executable, args=options)
        self.page = chromium.new_page()
        self.folder = folder
        self.noise = []
        for event in ("console", "pageerror", "dialog", "request"):
            self.page.on(event, self.hear)

    def hear(self, what):
        self.noise.append(getattr(what, "url", what))

    def wait(self):
        self.page.wait_for_timeout(800)  # functions to wait for are strings, which the page forbids

    def at(self, address, width=1400):
        """Go to an address of the page: the text that it shows."""
        self.page.set_viewport_size(dict(width=width, height=900))
        self.page.goto(f"{(self.folder / 'look.html').as_uri()}#{address}")
        self.wait()
        return self.page.inner_text("main")

    def cards(self):
        """The dimensions whose cards are shown, in their order."""
        script = "cards => cards.map(c => c.dataset.k)"
        return [int(k) for k in self.page.eval_on_selector_all(".card", script)]

    def find(self, query):
        self.page.fill("#find", query)
        self.wait()
        return set(self.cards())

    def is_within_its_width(self):
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="session")
def browser(runs, tmp_path_factory):
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium on the PATH")
    playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    root = tmp_path_factory.mktemp("browser")
    ncl = shutil.copytree(runs / "ncl", root / "ncl")
    simclr = shutil.copytree(runs / "simclr", root / "simclr")
    (root / "names.txt").write_text(f"{EVIL}\n" * 10)
    look.main([str(ncl), str(simclr), "--classes", str(root / "names.txt")])
    with playwright() as driver:
        yield Browser(driver, executable, ncl)


@pytest.fixture
def overview(browser):
    """The page's start, and the rows of dimensions.csv that are live there."""
    browser.at("all")
    table = np.genfromtxt(browser.folder / "dimensions.csv", delimiter=",", names=True)
    return browser, [row for row in table if row["act"] > 0]


@pytest.mark.slow
def test_the_overview_has_the_numbers_of_the_record(browser):
    last = records(browser.folder)[-1]
    text = browser.at("all")
    for key in ("cons", "adjusted", "lp1"):
        assert f"{round(last[key], 1) + 0:.1f} %" in text  # never -0.0


@pytest.mark.slow
def test_the_overview_has_a_card_for_each_live_dimension(overview):
    browser, live = overview
    last = records(browser.folder)[-1]
    dead = last["dims"] if "dims" in last else 256 - len(live)
    assert len(browser.cards()) == len(live) == last["live_dims"]
    assert f"{dead} dead" in browser.page.inner_text("main")


SORTED = {"bits": -1, "cons": -1, "f1": -1, "ap": -1, "entropy": 1, "act": -1, "mean": -1}


@pytest.mark.slow
@pytest.mark.parametrize("key", SORTED)
def test_cards_are_sorted_by_a_number(overview, key):
    browser, live = overview
    browser.page.select_option("#sort", key)
    value = {row["dimension"]: SORTED[key] * row[key] for row in live}
    assert [value[k] for k in browser.cards()] == sorted(value.values())


@pytest.mark.slow
def test_cards_are_filtered_by_numbers(overview):
    browser, live = overview
    found = browser.find("act>10.5 cons > 15.1")
    assert found == {row["dimension"] for row in live if row["act"] > 0.105 and row["cons"] > 0.151}
    assert browser.find("f1>20.1") == {row["dimension"] for row in live if row["f1"] > 0.201}


@pytest.mark.slow
def test_the_plot_has_the_untrained_dimensions(overview):
    browser, _ = overview
    browser.page.select_option("#axis", "f1")
    browser.wait()
    _, arrays = contents((browser.folder / "look.html").read_text(encoding="utf-8"))
    assert browser.page.locator("svg .null").count() == len(arrays["0untrained_n"])
    assert "untrained" in browser.page.text_content("svg")


@pytest.mark.slow
def test_the_plots_axis_stands_in_the_address(overview):
    browser, _ = overview
    browser.page.select_option("#axis", "f1")
    browser.wait()
    assert "plot=f1" in browser.page.url
    assert browser.page.get_attribute("svg", "aria-label").startswith("F1")


@pytest.mark.slow
def test_a_dimension_has_its_images_and_classes(overview):
    browser, live = overview
    k = int(live[0]["dimension"])
    n = round(100 * live[0]["act"])  # of 100 images
    assert f"Dimension {k}\n" in browser.at(f"dim={k}")
    assert EVIL in browser.page.inner_text(".bars")
    assert browser.page.locator(".pics a").count() == min(48, n) + 2 * min(40, n)


@pytest.mark.slow
def test_keys_and_clicks_lead_there_and_back(overview):
    browser, live = overview
    k = int(live[0]["dimension"])
    browser.at(f"dim={k}")
    browser.page.keyboard.press("ArrowRight")
    browser.page.go_back()
    browser.page.click(".pics a")
    assert f"dim={k}&image=" in browser.page.url
    browser.page.keyboard.press("Escape")
    browser.page.keyboard.press("Escape")
    assert browser.page.url.endswith("#all")
    assert browser.page.evaluate("document.activeElement.dataset.k") == str(k)


@pytest.mark.slow
def test_an_image_says_its_class(overview):
    browser, live = overview
    browser.at(f"dim={int(live[0]['dimension'])}")
    browser.page.click(".pics a")
    assert "Image" in browser.page.inner_text("h1")
    assert EVIL in browser.page.inner_text("main")


ADDRESSES = {
    "dim=-3&run=1": "Dimension -3\n",
    "dim=-3&run=1&label=1": "Dimension -3\n",
    "dim=+3&run=1": "Dimension +3\n",
    "run=1&plot=f1": "image",
    "class=1": "φ",
}


@pytest.mark.slow
@pytest.mark.parametrize("address, text", ADDRESSES.items(), ids=ADDRESSES)
def test_an_address_leads_to_its_view(browser, address, text):
    assert text in browser.at(address)


@pytest.mark.slow
def test_a_class_has_the_runs_side_by_side(browser):
    browser.at("class=1")
    assert browser.page.locator(".runs > div").count() == 2


NARROW = ["image=99", "image=100", "dim=x", "dim=<b>&sort=__proto__&run=7", "class=99"]
NARROW += ["all&run=1&label=1", "all", "dim=0", "class=1"]


@pytest.mark.slow
@pytest.mark.parametrize("address", NARROW)
def test_any_address_is_a_view_that_fits_a_phone(browser, address):
    browser.at("image=7")
    assert len(browser.at(address, width=400)) > 10
    assert browser.is_within_its_width()


@pytest.mark.slow
@pytest.mark.parametrize("address", ["all", "dim=0", "image=7", "class=1", "run=1"])
def test_a_wide_view_needs_no_scrolling_sideways(browser, address):
    browser.at(address)
    assert browser.is_within_its_width()


@pytest.mark.slow
def test_the_pixels_are_those_of_the_image(browser):
    browser.at("image=7", width=400)
    script = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    rgb = browser.page.eval_on_selector("canvas", script)
    red = shapes.draw(240, 100)["x_test"][7, 0]
    assert np.mean(rgb[::4]) == pytest.approx(red.mean(), abs=3)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["all", "dim=0", "image=7"])
def test_a_page_without_images_works_too(browser, tmp_path, address):
    np.savez(tmp_path / "features.npz", z=sparse_matrix())
    look.main([str(tmp_path / "features.npz"), "--out", str(tmp_path)])
    browser.page.goto(f"{(tmp_path / 'look.html').as_uri()}#{address}")
    browser.wait()
    assert browser.page.locator("canvas").count() == 0
    assert len(browser.page.inner_text("main")) > 50


@pytest.mark.slow
def test_the_page_is_silent_and_asks_for_nothing(browser):
    for address in ("all", "dim=0", "image=7", "class=1"):
        browser.at(address)
    assert all(str(what).startswith("file:") for what in browser.noise)
