"""tools/ and look.py; the lead pastes this into test_all.py."""
import json
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
import torchvision
from torchvision.transforms.v2 import functional as TF

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tools"))

import bayesncl
import benchmark
import common
import decode
import finetune
import look


# ---------------------------------------------------------------------------------------------------- tools/, look.py
def photos(folder):
    """Images of several sizes and modes in two classes, of each 4 for training and 2 for testing."""
    for name in ("train/cat/", "train/dog/", "val/cat/", "val/dog/"):
        (folder / name).mkdir(parents=True)
        for i in range(4 if name.startswith("train") else 2):
            x = torch.randint(0, 256, (1 if i == 1 else 3, 20 + 3 * i, 33 - 7 * i), dtype=torch.uint8)
            TF.to_pil_image(x).save(folder / name / f"{i}.png")
    return folder


def test_decoding_goes_on_after_interruptions_and_ends_in_torchvisions_pixels(tmp_path, monkeypatch):
    folder, square, replace, seen = photos(tmp_path / "pets"), decode.square, decode.os.replace, []
    monkeypatch.setattr(decode, "AT_ONCE", 3)
    monkeypatch.setattr(decode, "square", lambda path, size: seen.append(path) or square(path, size))
    monkeypatch.setattr(decode.os, "replace", lambda *paths: replace(*paths) or 1 / 0)
    for _ in range(10):  # stopped after each of five batches, after all of them, and after each of four files is moved
        with pytest.raises(common.BadInput):
            common.load_data("pets", tmp_path)
        with pytest.raises(ZeroDivisionError):
            decode.decode(folder, 16)
    decode.main([str(folder), "--size", "16"])  # says that it is done
    assert len(seen) == 12 and not (folder / "decoding").exists()  # no image twice
    data = common.load_data("pets", tmp_path)
    for part, x, y in ("train", data.x_train, data.y_train), ("val", data.x_test, data.y_test):
        theirs = torchvision.datasets.ImageFolder(str(folder / part))
        expected = [TF.pil_to_tensor(TF.center_crop(TF.resize(image, 16), 16)) for image, _ in theirs]
        assert torch.equal(x, torch.stack(expected)) and y.tolist() == theirs.targets


def test_unreadable_images_are_named_or_left_out(tmp_path, capsys):
    (photos(tmp_path) / "train/dog/0.png").write_bytes(b"no image")
    (tmp_path / "val/dog").rename(tmp_path / "val/wolf")
    with pytest.raises(common.BadInput, match="need the same classes; 'dog'"):
        decode.decode(tmp_path, 8)
    (tmp_path / "val/wolf").rename(tmp_path / "val/dog")
    with pytest.raises(common.BadInput, match="dog/0.png cannot be read as an image .*--skip-unreadable"):
        decode.decode(tmp_path, 16)
    decode.decode(tmp_path, 8, skip_unreadable=True)  # another size starts afresh
    x, y = np.load(tmp_path / "x_train.npy"), np.load(tmp_path / "y_train.npy")
    assert x.shape == (7, 8, 8, 3) and y.tolist() == [0] * 4 + [1] * 3
    assert np.array_equal(x[4], decode.square(str(tmp_path / "train/dog/1.png"), 8))
    assert "1 cannot be read and are left out, first" in (out := capsys.readouterr().out) and "dog/0.png" in out


def fake_run(root, name, method="simclr", **config):
    """What a run leaves, of 40 dark and 40 bright images; nothing was trained."""
    x, y = torch.randint(0, 40, (80, 16, 16, 3), dtype=torch.uint8), torch.arange(80) % 2
    x[y == 1] += 180
    np.savez(root / "toy.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    (folder := root / name).mkdir()
    config |= dict(method=method, dataset="toy", data_root=str(root), limit=None, arch="resnet8", image_size=16)
    (folder / "config.json").write_text(json.dumps(config | dict(min_scale=0.2, crop="bilinear")))
    torch.save(common.resnet("resnet8", 16)[0].state_dict(), folder / "backbone.pt")
    np.savez(folder / "embeddings.npz", h=torch.randn(40, 8).half(), z=torch.rand(40, 6).half(), y=y[40:])
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "spread": 0.9}\n{"event": "final"}\n')
    return folder


def tune(folder, *more):
    finetune.main([str(folder), "--labels", "0.1", "1", "--epochs", "5", *more])


def test_finetuning_trains_a_copy_of_the_whole_backbone_on_balanced_labels(tmp_path, monkeypatch):
    y = torch.randint(0, 4, (1000,))
    chosen, same, other = (finetune.balanced_subset(y, 0.1, seed) for seed in (3, 3, 4))
    assert torch.bincount(y[chosen]).tolist() == [25] * 4 and len(chosen.unique()) == 100
    assert torch.equal(chosen, same) and not torch.equal(chosen, other)
    assert len(finetune.balanced_subset(y, 1e-6, 3)) == 4  # one of every class
    folder, train, trained = fake_run(tmp_path, "run"), finetune.finetune, []
    before = (folder / "backbone.pt").read_bytes()
    monkeypatch.setattr(finetune, "finetune", lambda *args: trained.append(args[0]) or train(*args))
    tune(folder)
    tune(folder, "--from-scratch")
    found = json.loads((folder / "finetune.json").read_text())
    assert [(row["start"][0], row["labels"]) for row in found] == [("b", 4), ("b", 40), ("r", 4), ("r", 40)]
    assert found[1]["top1"] > 90 and (folder / "backbone.pt").read_bytes() == before
    assert not torch.equal(trained[0][0].weight.cpu(), torch.load(folder / "backbone.pt")["0.weight"])


def test_what_cannot_be_fine_tuned_or_looked_at_is_refused(tmp_path):
    def refused(program, message, *given, error=common.BadInput):
        with pytest.raises(error, match=message):
            program(*given)

    folder, draw = fake_run(tmp_path, "run"), lambda folder: look.main([str(folder)])
    toy = dict(np.load(tmp_path / "toy.npz"))
    refused(tune, "2", folder, "--labels", "1.1", error=SystemExit)
    torch.save({"weight": torch.ones(2)}, folder / "backbone.pt")
    refused(tune, "is not the resnet8 of config.json", folder)
    np.savez(tmp_path / "toy.npz", **toy | {"y_test": 1 - toy["y_test"]})
    refused(draw, "is not the data set of this run", folder)
    (folder / "backbone.pt").unlink(), (folder / "embeddings.npz").unlink()
    for program, missing in (tune, "backbone.pt"), (draw, "embeddings.npz"):
        refused(program, f"has no {missing}", folder)
        refused(program, "is not .* run", tmp_path)


def test_every_kind_of_run_has_its_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    folders = [fake_run(tmp_path, head, "sparsehead", head=head) for head in ("none", "linear")]
    folders += [fake_run(tmp_path, "simsiam", "simsiam"), tmp_path / "landscape"]
    folders[-1].mkdir()
    curves = {"lr_times_steps": np.arange(4.0), "min": np.ones((4, 3)), "loss": np.ones((4, 3))}
    np.savez(folders[-1] / "curves.npz", **{f"budget/SimCLR, lr 1/{key}": curve for key, curve in curves.items()})
    look.main([*map(str, folders)])
    every, drawn = {"top_images", "active_images", "dimensions"}, [{p.stem for p in f.glob("*.png")} for f in folders]
    assert drawn == [every | {"spectra"}, every, every | {"collapse"}, {"budget"}]


def test_a_column_of_active_images_is_a_dimension_from_strong_to_weak(tmp_path):
    e, images = torch.zeros(20, 3), torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(-1, 3, 64, 64)
    e[:, 0], e[5:15, 1], e[7, 2] = 1, torch.arange(10, 0, -1) / 10, 0.1  # active on all images, on ten, on one
    look.draw_images(tmp_path, images, e)
    shown = np.asarray(PIL.Image.open(tmp_path / "active_images.png"))[34::66, 34::66, 0]  # (8, 3)
    assert shown[:, 1].tolist() == [5, 6, 7, 8, 10, 11, 12, 14] and shown[:, 2].tolist() == [7] * 8


def test_cost_counts_the_gate():
    small, large = (benchmark.cost(bayesncl.PRESETS[name]) for name in ("cifar100", "imagenet100"))
    assert small["flops"] - small["flops_ncl"] == 2 * (512 * 2048 + 2048 * 256)
    assert small["params"] - small["params_ncl"] == 512 * 2048 + 2048 + 2048 * 256 + 256
    assert small["flops_ncl"] == pytest.approx(2 * 0.5578e9, rel=0.01)  # 0.56 G multiply-adds, as in the literature
    assert [round((c["flops"] - c["flops_ncl"]) / 1e9, 3) for c in (small, large)] == [0.003, 0.084]  # the paper's
