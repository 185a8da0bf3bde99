"""The recipes of embeddings.md, run as they stand there, with tiny networks of random weights."""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import interpret  # noqa: E402
import look  # noqa: E402

PAGE = (ROOT / "tools" / "embeddings.md").read_text(encoding="utf-8")
CLASSES = ["apple", "Birch", "cat"]  # Python's order is Birch, apple, cat
PER_CLASS = 4

TINY_CLIP = {
    "embed_dim": 16,
    "vision_cfg": dict(layers=1, width=32, head_width=16, patch_size=16, image_size=32),
    "text_cfg": dict(layers=1, width=32, heads=2, context_length=8, vocab_size=64),
}


# ---------------------------------------------------------------------------------------- the page
def blocks(heading):
    """The code and the commands under a heading of the page."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    commands = re.search(r"```\n(python .*?)```", section, re.DOTALL)[1]
    return code, commands.splitlines()


def run(heading):
    """Run the code under a heading in the current folder; its variables."""
    code, _ = blocks(heading)
    variables = {}
    exec(compile(code, heading, "exec"), variables)
    return variables


def arguments(heading, program):
    """The arguments of a program in the commands under a heading."""
    _, commands = blocks(heading)
    for command in commands:
        _, name, *argv = shlex.split(command)
        if name == program:
            return argv


def measure(heading):
    """Run the code under a heading and its interpret.py command; interpret.json."""
    run(heading)
    argv = arguments(heading, "interpret.py")
    interpret.main([*argv, "--out", "measured"])
    return json.loads(Path("measured/interpret.json").read_text())


# -------------------------------------------------------------------- images and tiny random models
@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder: images/<class>/*.jpg of noise, no two of a size or as bright."""
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    n = 0
    for name in CLASSES:
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(PER_CLASS):
            pixels = random.integers(15 * n, 15 * n + 90, (70 + n, 90 - n, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{i}.jpg")
            n += 1
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def timm(monkeypatch):
    """timm, whose every model is a tiny one of random weights."""
    timm = pytest.importorskip("timm")
    create_model = timm.create_model

    def tiny(name, pretrained=False, **settings):
        return create_model("test_vit", pretrained=False, **settings)

    monkeypatch.setattr(timm, "create_model", tiny)
    return timm


@pytest.fixture
def open_clip(monkeypatch):
    """open_clip, whose every model is a tiny one of random weights."""
    open_clip = pytest.importorskip("open_clip")
    create_model_and_transforms = open_clip.create_model_and_transforms

    def tiny(name, pretrained=None, **settings):
        return create_model_and_transforms(name, load_weights=False, **TINY_CLIP, **settings)

    monkeypatch.setattr(open_clip, "create_model_and_transforms", tiny)
    return open_clip


@pytest.fixture
def autoencoder(folder):
    """A random autoencoder of the tiny CLIP's features, saved as the page says."""
    latentsae = pytest.importorskip("latentsae")
    sae = latentsae.Sae(16, latentsae.SaeConfig(num_latents=64, k=4))
    sae.save_to_disk("sae")
    return sae


def image_files():
    """The files in the order of the classes' numbers."""
    return sorted(Path("images").glob("*/*.jpg"))


# -------------------------------------------------------------------------------------------- timm
def test_timm_features_are_measured(timm):
    record = measure("timm")
    assert (record["images"], record["dimensions"]) == (12, 64)
    assert record["numbers"]["cons"] is not None
    assert record["numbers"]["best_f1"] is not None


def test_timm_features_are_the_models_own(timm):
    found = run("timm")
    file = image_files()[5]
    x = found["transform"](Image.open(file))[None]
    with torch.inference_mode():
        own = found["model"].eval()(x)[0]
    assert np.load("dino.npz")["z"][5] == pytest.approx(own.numpy(), abs=1e-4)


def test_timm_has_weights_of_the_pages_model():
    timm = pytest.importorskip("timm")
    name = re.search(r'timm.create_model\("(.*?)"', PAGE)[1]
    assert name in timm.list_models(pretrained=True)


# --------------------------------------------------------------------------------------- open_clip
def test_open_clip_features_are_measured(open_clip):
    record = measure("open_clip")
    assert (record["images"], record["dimensions"]) == (12, 16)
    assert record["numbers"]["cons"] is not None
    assert record["numbers"]["best_f1"] is not None


def test_open_clip_features_are_the_models_own(open_clip):
    found = run("open_clip")
    x = found["transform"](Image.open(image_files()[5]))[None]
    with torch.inference_mode():
        own = found["model"].eval().encode_image(x)[0]
    assert np.load("clip.npz")["z"][5] == pytest.approx(own.numpy(), abs=1e-4)


def test_open_clip_transform_has_no_chance(open_clip):
    transform = run("open_clip")["transform"]
    image = Image.open(image_files()[0])
    assert torch.equal(transform(image), transform(image))


def test_open_clip_has_weights_of_the_pages_model():
    open_clip = pytest.importorskip("open_clip")
    models = re.findall(r'create_model_and_transforms\("(.*?)", "(.*?)"\)', PAGE)
    assert len(models) == 2
    assert set(models) <= set(open_clip.list_pretrained())


# ---------------------------------------------------------------------------------- the autoencoder
def test_sparse_latents_are_measured(open_clip, autoencoder):
    record = measure("A sparse autoencoder")
    assert (record["images"], record["dimensions"]) == (12, 64)
    assert record["numbers"]["cons"] is not None
    assert record["numbers"]["mono"] is not None


def test_sparse_latents_are_the_autoencoders_own(open_clip, autoencoder):
    run("A sparse autoencoder")
    h = torch.from_numpy(np.load("h.npy"))
    with torch.inference_mode():
        values, dims = autoencoder.encode(h)
    dense = torch.zeros(12, 64).scatter(1, dims, values)

    entries = interpret.read_arrays(Path("latents.npz"))["z"]
    read = np.zeros((12, 64))
    read[entries.images, entries.dims] = entries.values
    assert read == pytest.approx(dense.numpy(), abs=1e-5)


def test_scipy_reads_the_sparse_latents(open_clip, autoencoder):
    sparse = pytest.importorskip("scipy.sparse")
    run("A sparse autoencoder")
    latents = sparse.load_npz("latents.npz")
    assert latents.format == "csr"
    assert (latents != 0).sum(1).max() == 4


def test_judge_is_what_the_autoencoder_reads(open_clip, autoencoder):
    found = run("A sparse autoencoder")
    x = found["transform"](Image.open(image_files()[5]))[None]
    with torch.inference_mode():
        own = found["model"].eval().encode_image(x)[0]
    assert np.load("h.npy")[5] == pytest.approx(own.numpy(), abs=1e-4)


def test_another_network_may_judge(timm, open_clip, autoencoder):
    run("timm")
    run("A sparse autoencoder")
    e = interpret.read_embedding(Path("latents.npz"), judge=Path("dino.npz"))
    assert e.judge.shape == (12, 64)


# ------------------------------------------------------------------------------------- each of them
FILES = {"timm": "dino.npz", "open_clip": "clip.npz", "A sparse autoencoder": "y.npy"}
NEEDS = {
    "timm": ["timm"],
    "open_clip": ["open_clip"],
    "A sparse autoencoder": ["open_clip", "autoencoder"],
}


@pytest.fixture(params=FILES, ids=["timm", "open_clip", "autoencoder"])
def heading(request):
    """The heading of a recipe, whose models are tiny by now."""
    for fixture in NEEDS[request.param]:
        request.getfixturevalue(fixture)
    return request.param


@pytest.fixture
def finished(heading):
    """A recipe that has run: its variables, and the arrays of its file with the labels."""
    variables = run(heading)
    return variables, interpret.read_arrays(Path(FILES[heading]))


def test_class_numbers_follow_the_folders(finished):
    _, arrays = finished
    y = arrays["y"] if "y" in arrays else arrays[""]
    assert y.tolist() == [0] * PER_CLASS + [1] * PER_CLASS + [2] * PER_CLASS
    assert Path("classes.txt").read_text(encoding="utf-8").splitlines() == sorted(CLASSES)


def test_networks_run_in_evaluation_mode(finished):
    variables, _ = finished
    networks = [value for value in variables.values() if isinstance(value, torch.nn.Module)]
    assert networks
    assert not any(network.training for network in networks)


def test_networks_run_in_inference_mode(finished):
    variables, _ = finished
    batches = variables["h"] if "h" in variables else variables["z"]
    assert all(batch.is_inference() for batch in batches)


@pytest.mark.parametrize("heading", ["timm", "open_clip"], indirect=True)
def test_pictures_are_small_and_in_order(finished):
    _, arrays = finished
    assert arrays["images"].shape == (12, 64, 64, 3)
    assert arrays["images"].dtype == np.uint8
    brightness = [np.asarray(Image.open(file)).mean() for file in image_files()]
    assert arrays["images"].mean((1, 2, 3)) == pytest.approx(brightness, abs=3)


def test_look_writes_a_page(heading):
    run(heading)
    argv = arguments(heading, "look.py")
    look.main([*argv, "--out", "page"])
    assert Path("page/look.html").stat().st_size > 10_000
