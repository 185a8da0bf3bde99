"""ladder.py: dictionaries of planted clusters, and what is recorded of them."""

import warnings

import records

import ladder
import numpy as np
import pytest

CLASSES = np.arange(400) % 8


def planted(noise):
    """Features of training and test images, non-negative, in eight clusters; their embeddings."""
    draw = np.random.default_rng(0)
    centres = draw.exponential(size=(8, 12))
    h_train, h = [
        abs(centres[CLASSES] + noise * draw.normal(size=(400, 12))).astype(np.float32)
        for _ in range(2)
    ]
    mix = draw.normal(size=(12, 10))
    z_train, z = [(x @ mix).astype(np.float32) for x in (h_train, h)]
    return ladder.Network(h_train, h, z_train, z, {"": CLASSES})


def measured(network):
    """The numbers of each dictionary of eight dimensions."""
    of_h = ladder.families_of_h(network)
    rungs = ladder.dictionaries(network, K=8, seed=1, active=2)
    return {name: ladder.measure(u, network, of_h, 8, seed=1) for name, u in rungs}


@pytest.fixture(scope="module")
def of_clusters():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return measured(planted(noise=0.05))


def test_every_dictionary_has_as_many_dimensions(of_clusters):
    of_h = "h", "pca", "ica", "nmf", "sae", "sae-few", "sae-frozen", "k-means-of-h", "images-of-h"
    assert [*of_clusters] == [*of_h, "k-means-of-z", "images-of-z"]
    assert {found["live_dims"] for found in of_clusters.values()} <= {7, 8}


def test_the_axes_of_h_are_measured_as_they_are(of_clusters):
    network = planted(noise=0.05)
    axes = ladder.unit(network.h)
    expected = ladder.measure(axes, network, ladder.families_of_h(network), 8, seed=1)
    assert of_clusters["h"] == expected


@pytest.mark.parametrize("rung", ["k-means-of-h", "k-means-of-z"])
def test_k_means_finds_planted_clusters(of_clusters, rung):
    found = of_clusters[rung]
    assert found["adjusted"] > 99
    assert found["classes"] >= 7


def test_what_is_on_record_is_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "STUDIES", tmp_path)
    monkeypatch.setattr(ladder, "DATA", {"planted": str(tmp_path / "{method}-{seed}.npz")})
    (tmp_path / "dictionaries").mkdir()
    for method in "simclr", "ncl":
        arrays = vars(planted(noise=0.3)) | {"y": CLASSES}
        arrays.pop("labels")
        np.savez(tmp_path / f"{method}-3.npz", **arrays)
    ladder.main(["planted", "--seeds", "3"])
    made = records.read("dictionaries")
    assert len(made) == 13
    assert {record["settings"]["K"] for record in made} == {20}  # ten dimensions, each in halves
    monkeypatch.setattr(ladder, "measure", None)
    ladder.main(["planted", "--seeds", "3"])
    assert len((tmp_path / "dictionaries/records.jsonl").read_text().splitlines()) == 13
