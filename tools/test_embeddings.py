"""The recipes of embeddings.md, run as they stand there, with tiny networks of random weights."""

import json
import re
import shlex
from functools import partial
from pathlib import Path

from conftest import run_program

import numpy as np
import pytest
import torch
from PIL import Image

timm = pytest.importorskip("timm")
open_clip = pytest.importorskip("open_clip")
latentsae = pytest.importorskip("latentsae")
sparse = pytest.importorskip("scipy.sparse")

PAGE = Path(__file__).with_name("embeddings.md").read_text(encoding="utf-8")
RECIPES = {"timm": 64, "open_clip": 16, "A sparse autoencoder": 64}  # heading: dimensions
CLASSES = ["Birch", "apple", "cat"]  # as Python sorts them
VISION = dict(layers=1, width=32, head_width=16, patch_size=16, image_size=32)
TEXT = dict(layers=1, width=32, heads=2, context_length=8, vocab_size=64)
TINY_CLIP = dict(embed_dim=16, vision_cfg=VISION, text_cfg=TEXT, load_weights=False)


@pytest.fixture(params=RECIPES)
def recipe(request, tmp_path, monkeypatch):
    """A heading, the variables of the code below it, which has run here, and its commands."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for n in range(12):  # no two images of a size or as bright
        pixels = draw.integers(15 * n, 15 * n + 90, (70 + n, 90 - n, 3), dtype=np.uint8)
        file = Path("images", CLASSES[n // 4], f"{n}.jpg")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    vit = partial(timm.create_model, "test_vit")
    clip = partial(open_clip.create_model_and_transforms, **TINY_CLIP)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **more: vit(**more))
    monkeypatch.setattr(open_clip, "create_model_and_transforms", lambda name, tag: clip(name))
    latentsae.Sae(16, latentsae.SaeConfig(num_latents=64, k=4)).save_to_disk("sae")
    section = PAGE.split(f"\n## {request.param}\n")[1].split("\n## ")[0]
    code, commands = re.search(r"```python\n(.*?)```.*```\n(python .*?)```", section, re.S).groups()
    variables = {}
    exec(compile(code, request.param, "exec"), variables)
    return request.param, variables, commands.splitlines()


def test_a_recipes_files_hold_what_its_model_says(recipe):
    heading, found, _ = recipe
    model = found["model"]
    pictures = [Image.open(file) for file in sorted(Path("images").glob("*/*.jpg"))]
    x = torch.stack([found["transform"](picture) for picture in pictures])
    with torch.inference_mode():
        own = model(x) if heading == "timm" else model.encode_image(x)
    if heading == "A sparse autoencoder":
        arrays = {"y": np.load("y.npy"), "z": np.load("h.npy")}
        with torch.inference_mode():
            values, dims = found["sae"].encode(own)
        latents = torch.zeros(12, 64).scatter(1, dims, values).numpy()
        assert sparse.load_npz("latents.npz").toarray() == pytest.approx(latents, abs=1e-5)
    else:
        arrays = np.load("dino.npz" if heading == "timm" else "clip.npz")
        assert arrays["images"].shape == (12, 64, 64, 3)
        brightness = [np.asarray(picture).mean() for picture in pictures]
        assert arrays["images"].mean((1, 2, 3)) == pytest.approx(brightness, abs=3)
    assert arrays["z"] == pytest.approx(own.numpy(), abs=1e-4)
    assert arrays["y"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert Path("classes.txt").read_text(encoding="utf-8").splitlines() == CLASSES
    assert not any(found[name].training for name in ("model", "sae") if name in found)
    assert found["h" if "h" in found else "z"][0].is_inference()


def test_the_commands_below_a_recipe_measure_and_show_it(recipe):
    heading, _, commands = recipe
    for command in commands:
        run_program(*shlex.split(command)[1:], "--out", "out")
    record = json.loads(Path("out/interpret.json").read_text())
    assert (record["images"], record["dimensions"]) == (12, RECIPES[heading])
    assert Path("out/look.html").exists()


def test_the_pages_models_have_weights():
    assert re.search(r'timm.create_model\("(.*?)"', PAGE)[1] in timm.list_models(pretrained=True)
    first, second = re.findall(r'create_model_and_transforms\("(.*?)", "(.*?)"\)', PAGE)
    assert {first, second} <= set(open_clip.list_pretrained())
