"""interpret.py: measures, controls, files, refusals."""

import dataclasses
import importlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import interpret
from conftest import refusal, run_program

# ------------------------------------------------------------------------------------- interpret.py
N_IMAGES, N_DIMS, N_CLASSES = 60, 12, 4


def sparse_matrix(signed=False):
    """(60, 12) with three in ten entries active, a dead dimension, a duplicate and an empty row."""
    draw = np.random.default_rng(0)
    z = draw.random((N_IMAGES, N_DIMS)) * (draw.random((N_IMAGES, N_DIMS)) < 0.3)
    if signed:
        z *= draw.choice([-1, 1], z.shape)
    z[:, 3] = 0
    z[:, 7] = z[:, 2]
    z[5] = 0
    return z.astype(np.float32)


def dense_matrix():
    return np.random.default_rng(1).normal(size=(N_IMAGES, N_DIMS)).astype(np.float32)


MATRICES = {
    "sparse": sparse_matrix(),
    "signed": sparse_matrix(signed=True),
    "dense": np.abs(dense_matrix()),
}
LABELS = np.random.default_rng(2).permutation(np.arange(N_IMAGES) % N_CLASSES)
SIZES = np.bincount(LABELS)


@pytest.fixture(params=MATRICES, ids=MATRICES)
def z(request):
    return MATRICES[request.param]


@pytest.fixture
def activations(z):
    return interpret.nonzero(z)


def members(a, k):
    """The images of dimension k."""
    return a.images[a.start[k] : a.start[k + 1]]


def live(a):
    """The dimensions that are active on any image."""
    return [k for k in range(a.K) if a.n[k]]


def test_a_list_is_the_active_images_strongest_first(z, activations):
    strength = np.abs(z) / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    for k in range(N_DIMS):
        expected = [i for i in np.argsort(-strength[:, k], kind="stable") if strength[i, k] > 1e-5]
        assert members(activations, k).tolist() == expected


def test_a_sparse_matrix_has_the_lists_of_the_dense_one(z, activations):
    images, dims = np.nonzero(z)
    entries = interpret.Entries(images, dims, z[images, dims], *z.shape)
    found = interpret.nonzero(entries)
    assert np.array_equal(found.images, activations.images)
    assert np.allclose(found.values, activations.values, atol=1e-6)


def test_half_dimensions_are_the_largest_and_smallest_images():
    z = dense_matrix()
    rows = z / np.linalg.norm(z, axis=1, keepdims=True)
    a = interpret.activate(z, "top:0.1")
    assert {*members(a, 4)} == {*np.argsort(-rows[:, 4])[:6]}
    assert {*members(a, N_DIMS + 4)} == {*np.argsort(rows[:, 4])[:6]}
    assert [a.name(4), a.name(N_DIMS + 4)] == ["+4", "-4"]


def test_the_top_share_of_sparse_dimensions_is_active_there():
    z = sparse_matrix()
    every = interpret.nonzero(z)
    top = interpret.activate(z, "top:0.1")
    for k in range(N_DIMS):
        assert members(top, k).tolist() == members(every, k)[:6].tolist()


RULES = {"sparse": (sparse_matrix(), "nonzero"), "dense": (dense_matrix(), "top:0.01")}


@pytest.mark.parametrize("z, rule", RULES.values(), ids=RULES)
def test_the_rule_is_chosen_by_the_share_of_entries(z, rule):
    assert interpret.rule_for(z) == rule


def test_consistency_entropy_and_f1_are_the_loops(z, activations):
    rows = np.abs(interpret.unit_rows(z))
    columns = interpret.of_label(activations, LABELS, np.zeros(N_IMAGES))
    for k in live(activations):
        counts = np.bincount(LABELS[members(activations, k)], minlength=N_CLASSES)
        mass = np.bincount(LABELS, rows[:, k], N_CLASSES)
        shares = mass[mass > 0] / mass.sum()
        assert columns["cons"][k] == pytest.approx(counts.max() / counts.sum())
        assert columns["entropy"][k] == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-6)
        assert columns["f1"][k] == pytest.approx(max(2 * counts / (counts.sum() + SIZES)))


def test_phi_is_the_correlation_with_a_class(activations):
    counts = interpret.class_counts(activations, LABELS, N_CLASSES)
    with np.errstate(invalid="ignore"):
        phi = interpret.matthews(counts, SIZES)
    for k in live(activations):
        active = np.isin(np.arange(N_IMAGES), members(activations, k))
        if active.all():
            continue  # no correlation with a constant
        for c in range(N_CLASSES):
            assert phi[c, k] == pytest.approx(np.corrcoef(active, LABELS == c)[0, 1])


def test_average_precision_is_scikit_learns(z, activations):
    metrics = pytest.importorskip("sklearn.metrics")
    strength = np.abs(interpret.unit_rows(z)).round(1)  # rounded, so that some images tie
    a = interpret.lists(interpret.Entries(*np.nonzero(strength), strength[strength > 0], *z.shape))
    found = interpret.average_precision(a, LABELS, np.arange(N_DIMS) % N_CLASSES)
    for k in live(a):
        expected = metrics.average_precision_score(LABELS == k % N_CLASSES, strength[:, k])
        assert found[k] == pytest.approx(expected)


def test_information_is_scikit_learns_mutual_information(activations):
    metrics = pytest.importorskip("sklearn.metrics")
    counts = interpret.class_counts(activations, LABELS, N_CLASSES)
    for k, nats in enumerate(interpret.information(counts, SIZES)):
        active = np.isin(np.arange(N_IMAGES), members(activations, k))
        assert nats == pytest.approx(metrics.mutual_info_score(active, LABELS), abs=1e-9)


def test_expected_information_is_the_mean_over_all_orders():
    y = [0, 0, 0, 1, 1, 2]
    for n in range(7):
        orders = set(itertools.permutations(y))
        counts = np.array([np.bincount(order[:n], minlength=3) for order in orders]).T
        mean = interpret.information(counts, np.array([3, 2, 1])).mean()
        found = interpret.expected_information(np.array([n]), np.array([3, 2, 1]))
        assert found == pytest.approx(mean)


def test_random_consistency_is_a_count():
    y = np.array([0] * 20 + [1] * 9 + [2])
    draw = torch.Generator().manual_seed(0)
    for row in interpret.random_consistency(y, 3):
        order = y[torch.randperm(30, generator=draw)].tolist()
        expected = [max(map(order[:n].count, order)) / n for n in range(1, 31)]
        assert row.tolist() == pytest.approx(expected)


def rare_dimensions():
    """Active on one image of 2,000, on all, on two of a class, on all of a class, on none."""
    z = np.zeros((2000, 5), np.float32)
    y = np.arange(2000) % 10
    z[0, 0] = 1
    z[:, 1] = 1
    z[[0, 10], 2] = 1
    z[y == 4, 3] = 1
    return z, y


RARE_NUMBERS = {  # None: not known in closed form
    "adjusted": [0, 0, 1, 1, np.nan],
    "cons": [1, 0.1, 1, 1, np.nan],
    "f1": [2 / 201, 2 / 11, 4 / 202, 1, np.nan],
    "phi": [0.0671, 0, 0.0949, 1, np.nan],
    "ap": [0.1045, None, 0.109, 1, np.nan],
    "bits": [0, 0, None, 0.4657, 0],
}


@pytest.mark.parametrize("name, expected", RARE_NUMBERS.items(), ids=RARE_NUMBERS)
def test_rare_full_perfect_and_dead_dimensions(name, expected):
    z, y = rare_dimensions()
    (label,) = interpret.truths({"": y}).values()
    column = interpret.of_label(interpret.nonzero(z), label.y, label.chance)[name]
    known = [k for k, value in enumerate(expected) if value is not None]
    assert column[known] == pytest.approx([expected[k] for k in known], abs=2e-3, nan_ok=True)


def test_bits_of_random_dimensions_are_zero_on_average():
    draw = np.random.default_rng(0)
    z = (draw.random((2000, 300)) < 0.02).astype(np.float32)
    y = draw.integers(0, 100, 2000)  # with the usual correction, (C - 1) / 2N, it is far below 0
    bits = interpret.of_label(interpret.nonzero(z), y, np.zeros(2000))["bits"]
    assert abs(bits.mean()) < 3 * bits.std() / 300**0.5


def test_the_best_dimension_is_judged_on_other_images(activations):
    half = interpret.random_half(N_IMAGES)
    active = np.zeros((N_IMAGES, N_DIMS), bool)
    for k in range(N_DIMS):
        active[members(activations, k), k] = True

    def f1(part, c):
        """Of each dimension for class c on a part of the images."""
        of_class = part & (LABELS == c)
        hits = active[of_class].sum(0)
        return 2 * hits / (active[part].sum(0) + of_class.sum())

    expected = np.zeros(N_CLASSES)
    for c in range(N_CLASSES):
        for part in (half, ~half):
            best = f1(part, c).argmax()
            expected[c] += f1(~part, c)[best] / 2
    assert interpret.best_dimensions(activations, LABELS) == pytest.approx(expected)


def test_parts_of_the_dimensions_give_the_same(monkeypatch, activations):
    whole = interpret.best_dimensions(activations, LABELS)
    columns = interpret.of_label(activations, LABELS, np.zeros(N_IMAGES))
    monkeypatch.setattr(interpret, "CELLS", 10)
    assert np.array_equal(interpret.best_dimensions(activations, LABELS), whole)
    for name, column in interpret.of_label(activations, LABELS, np.zeros(N_IMAGES)).items():
        assert column == pytest.approx(columns[name], nan_ok=True), name


def test_sparse_probes_regress_as_scikit_learn_does():
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = np.random.default_rng(0).normal(size=(3, 200, 4)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 3, 200)
    weights = interpret.fit_each_class(torch.from_numpy(x), torch.from_numpy(y), l2=1e-2)
    for c in range(3):
        theirs = linear_model.LogisticRegression(C=1 / (1e-2 * 200), tol=1e-8, max_iter=1000)
        theirs.fit(x[c], y == c)
        expected = [*theirs.coef_[0], *theirs.intercept_]
        assert weights[c, :, 0].tolist() == pytest.approx(expected, abs=2e-3)


def test_a_probe_of_one_dimension_finds_the_class_itself():
    noise = np.random.default_rng(0).random((400, 20)).astype(np.float32)
    y = np.arange(400) % 10
    z = np.concatenate([np.eye(10, dtype=np.float32)[y], 0.1 * noise], 1)
    assert interpret.sparse_probes(z, y)[1] == 100
    assert interpret.sparse_probes(noise, y)[8] < 30


def test_a_probe_reads_lists_as_it_reads_a_matrix():
    z = sparse_matrix()
    of_lists = interpret.sparse_probes(interpret.nonzero(z), LABELS)
    assert of_lists == interpret.sparse_probes(interpret.unit_rows(z), LABELS)


def naive_mono(weights, h):
    """Mean cosine of the pairs of different images, weighted by the product of their weights."""
    pairs = ~np.eye(len(h), dtype=bool)
    cosine = F.cosine_similarity(torch.from_numpy(h)[:, None], torch.from_numpy(h), dim=2).numpy()
    return np.average(cosine[pairs], weights=np.outer(weights, weights)[pairs])


def test_mono_score_is_the_loop_over_pairs(z, activations):
    h = np.random.default_rng(3).normal(size=(N_IMAGES, 5))
    found = interpret.mono_score(activations, interpret.unit_judge(h))
    rows = np.abs(interpret.unit_rows(z)).astype(np.float64)
    base = naive_mono(np.ones(N_IMAGES), h)
    for k in live(activations):
        weights = (rows[:, k] - rows[:, k].min()) / np.ptp(rows[:, k])
        assert found[k] == pytest.approx(naive_mono(weights, h) - base, abs=1e-6)


def test_the_authors_mono_score_takes_raw_activations():
    h = np.random.default_rng(3).normal(size=(N_IMAGES, 5))
    z = 7 * dense_matrix()
    found = interpret.mono_score_of_authors(z, interpret.unit_judge(h))
    for k in range(N_DIMS):
        weights = (z[:, k] - z[:, k].min()) / np.ptp(z[:, k])
        assert found[k] == pytest.approx(naive_mono(weights, h))


def test_mono_score_of_one_image_is_undefined():
    z = np.zeros((9, 2), np.float32)
    z[4, 0] = 1
    h = interpret.unit_judge(np.random.default_rng(0).normal(size=(9, 3)))
    assert np.isnan(interpret.mono_score(interpret.nonzero(z), h)).all()


def test_overlaps_are_cosines_with_and_without_their_matrix(z, activations):
    found, mean = interpret.overlaps(activations)
    f = np.abs(interpret.unit_rows(z))[:, live(activations)]
    f = f / np.linalg.norm(f, axis=0)
    cosines = abs(f.T @ f)[~np.eye(f.shape[1], dtype=bool)].reshape(f.shape[1], -1)
    assert mean == pytest.approx(cosines.mean(), abs=1e-6)
    assert found[live(activations)] == pytest.approx(cosines.max(1), abs=1e-6)
    unit = dataclasses.replace(activations, values=interpret.unit_values(activations))
    without, _ = interpret.sparse_overlaps(unit)
    assert without == pytest.approx(np.nan_to_num(found), abs=1e-6)


def test_signs_are_read_alike_from_sparse_and_dense_files():
    z = sparse_matrix(signed=True)
    images, dims = np.nonzero(z)
    entries = interpret.Entries(images, dims, z[images, dims], *z.shape)

    def numbers(z):
        e = interpret.Embedding(z, {"": LABELS})
        return interpret.interpret(e, "nonzero", controls=False).numbers

    dense, sparse = numbers(z), numbers(entries)
    assert {key: dense[key] for key in sparse} == pytest.approx(sparse)


def test_ties_at_the_cut_do_not_follow_the_files_order():
    z = np.random.default_rng(0).choice([-1.0, 1.0], (400, 20)).astype(np.float32)
    y = np.arange(400) // 100  # sorted, as in many files
    columns = interpret.interpret(interpret.Embedding(z, {"": y}), "top:0.05", False).columns
    assert columns["adjusted"].mean() < 0.3


def test_constant_dimensions_of_a_dense_embedding_are_dead():
    z = np.abs(dense_matrix()) + 1
    z[:, 4] = 0
    found = interpret.interpret(interpret.Embedding(z), "top:0.1", False)
    assert found.numbers["live_dims"] == N_DIMS - 1


def test_the_whole_matrix_has_the_papers_geometry(z):
    rows = interpret.unit_rows(z)
    size = np.abs(rows[rows.any(1)]).sum(1)
    root = N_DIMS**0.5
    f = rows[:, z.any(0)]
    f = f / np.linalg.norm(f, axis=0)
    cosines = [abs(a @ b) for a, b in itertools.permutations(f.T, 2)]
    expected = {
        "l1": size.mean() / root,
        "hoyer": np.mean((root - size) / (root - 1)),
        "corr": np.mean(cosines),
    }
    found = interpret.interpret(interpret.Embedding(z), "nonzero", controls=False).numbers
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-6)


def test_precision_at_k_is_the_loop():
    z = dense_matrix()
    rows = interpret.unit_rows(z)
    found = interpret.precision_at(z, LABELS, (1, 3))
    for k in (1, 3):
        right = []
        for i in range(N_IMAGES):
            nearest = np.argsort(-(rows @ rows[i]))
            others = nearest[nearest != i][:k]
            right.append(LABELS[others] == LABELS[i])
        assert found[k] == pytest.approx(100 * np.mean(right))


def test_precision_at_k_needs_more_than_k_images():
    found = interpret.precision_at(dense_matrix()[:4], [0, 1, 2, 3], (3, 5))
    assert found == {3: 0, 5: None}


def trained_like(N=400, K=32, C=4):
    """Features h of C clusters, and z that has a dimension for each, the others at random."""
    draw = np.random.default_rng(0)
    y = np.arange(N) % C
    h = (0.5 * draw.normal(size=(C, 8))[y] + draw.normal(size=(N, 8))).astype(np.float32)
    z = draw.random((N, K)) * (draw.random((N, K)) < 0.1)
    z[:, :C] += np.eye(C)[y]
    return interpret.Embedding(z.astype(np.float32), {"": y}, judge=h)


def test_controls_are_as_sparse_and_shuffled_labels_tell_nothing():
    found = interpret.interpret(trained_like())
    untrained, shuffled = found.controls["untrained"], found.controls["shuffled"]
    assert untrained["entries"] == round(found.numbers["entries"])
    assert abs(shuffled["adjusted"]) < 3
    assert shuffled["best_f1"] < untrained["best_f1"] < found.numbers["best_f1"]


def test_rare_dimensions_do_not_count_above_chance():
    z, y = rare_dimensions()
    (label,) = interpret.truths({"": y}).values()
    a = interpret.nonzero(z)
    numbers = interpret.label_numbers(a, label.y, interpret.of_label(a, label.y, label.chance))
    # Of the four live dimensions not the one that is active on one image of 2,000.
    assert numbers["adjusted"] == pytest.approx(100 * (0 + 1 + 1) / 3)
    assert numbers["half_f1"] == 1  # the class that has a dimension of its own


def test_classes_count_from_an_f1_of_one_half(monkeypatch, activations):
    monkeypatch.setattr(interpret, "best_dimensions", lambda *_: np.array([0.45, 0.5, 0.9]))
    columns = interpret.of_label(activations, LABELS, np.zeros(N_IMAGES))
    assert interpret.label_numbers(activations, LABELS, columns)["half_f1"] == 2


@pytest.mark.parametrize(
    "rows, message",
    [
        ([[1.0, 2.0, 3.0], [1.0, 2.0]], "the rows of column z differ in length"),
        ([[1.0, 2.0], None], "column z has empty rows"),
    ],
    ids=["ragged", "empty"],
)
def test_a_parquet_column_of_other_lengths_is_refused(tmp_path, rows, message):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"z": rows})
    importlib.import_module("pyarrow.parquet").write_table(table, tmp_path / "z.parquet")
    assert message in refusal("interpret.py", tmp_path / "z.parquet")


def test_phi_of_millions_of_images_does_not_overflow():
    counts = np.array([[2_500_000], [0]])
    sizes = np.array([2_500_000, 2_500_000])
    assert interpret.matthews(counts, sizes)[:, 0].tolist() == pytest.approx([1, -1])


def test_the_untrained_dictionary_is_of_centred_features():
    h = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    first = interpret.random_dictionary(h, 16, seed=0)
    shifted = interpret.random_dictionary(h + 7, 16, seed=0)
    assert shifted == pytest.approx(first, abs=1e-4)


def test_the_untrained_dictionary_of_a_sparse_matrix_is_centred():
    z = sparse_matrix(signed=True)
    rows = interpret.unit_rows(z)
    basis = torch.randn(N_DIMS, 5, generator=torch.Generator().manual_seed(3))
    basis = F.normalize(basis, dim=0).numpy()
    found = interpret.random_dictionary(interpret.entries_of(z), 5, seed=3)
    assert found == pytest.approx((rows - rows.mean(0)) @ basis, abs=1e-5)


def test_half_dimensions_have_half_dimensions_as_control():
    e = trained_like()
    e.z = e.z - e.z.mean(0)
    found = interpret.interpret(e)
    assert found.rule == "top:0.01"
    assert found.activations.halves
    assert found.numbers["entries"] == found.controls["untrained"]["entries"] == 64 * 4 / 400


def test_a_rotation_of_the_features_leaves_the_control_alike():
    e = trained_like()
    first = interpret.interpret(e).controls["untrained"]["adjusted"]
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))
    e.judge = e.judge @ rotation
    rotated = interpret.interpret(e).controls["untrained"]["adjusted"]
    assert rotated == pytest.approx(first, rel=0.1)


def test_many_dimensions_have_a_smaller_dictionary_as_control(monkeypatch):
    monkeypatch.setattr(interpret, "LARGE", 16)
    found = interpret.interpret(trained_like())
    assert found.directions == 8
    assert found.controls["untrained"]["best_f1"] is None


def test_a_collapsed_embedding_has_undefined_numbers():
    z = np.zeros((20, 4), np.float32)
    e = interpret.Embedding(z, {"": np.arange(20) % 2}, judge=np.eye(20, 3))
    found = interpret.interpret(e)
    assert found.numbers["live_dims"] == found.numbers["act"] == found.numbers["bits"] == 0
    assert found.numbers["cons"] is found.numbers["mono"] is found.numbers["f1"] is None


def test_classes_keep_the_numbers_of_the_labels():
    e = trained_like()
    gaps = np.array([0, 2, 5, 9])
    columns = interpret.interpret(e).columns
    e.labels = {"": gaps[e.labels[""]]}
    of_gaps = interpret.interpret(e).columns
    assert np.array_equal(of_gaps["best"], gaps[columns["best"].astype(int)])
    assert np.array_equal(of_gaps["f1"], columns["f1"])


# ---- its files and its program
def save_csr(path, z, **other):
    """Write what scipy.sparse.save_npz writes of z in the CSR layout."""
    images, dims = np.nonzero(z)
    start = np.searchsorted(images, np.arange(len(z) + 1))
    layout = dict(format=b"csr", shape=z.shape, data=z[images, dims], indices=dims, indptr=start)
    np.savez(path, **layout | other)


def write(path, e):
    """An embedding as a file of one of the formats."""
    arrays = {"z": e.z, "y": e.labels[""], "h": e.judge}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pt":
        torch.save({key: torch.from_numpy(a) for key, a in arrays.items()}, path)
    elif path.suffix == ".safetensors":
        save_file = pytest.importorskip("safetensors.numpy").save_file
        save_file(arrays, path)
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({key: a if a.ndim == 1 else list(a) for key, a in arrays.items()})
        importlib.import_module("pyarrow.parquet").write_table(table, path)


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors", ".parquet"])
def test_every_format_is_read_alike(tmp_path, suffix):
    e = trained_like()
    write(tmp_path / f"e{suffix}", e)
    found = interpret.read_embedding(tmp_path / f"e{suffix}")
    assert np.array_equal(found.z, e.z)
    assert np.array_equal(found.judge, e.judge)
    assert np.array_equal(found.labels[""], e.labels[""])


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_scipys_sparse_files_are_read(tmp_path, kind):
    sparse = pytest.importorskip("scipy.sparse")
    z = sparse_matrix(signed=True)
    sparse.save_npz(tmp_path / "z.npz", sparse.csr_matrix(z).asformat(kind))
    found = interpret.nonzero(interpret.read_embedding(tmp_path / "z.npz").z)
    assert np.array_equal(found.images, interpret.nonzero(z).images)


@pytest.fixture
def measured(tmp_path, monkeypatch, capsys):
    """What interpret.py prints about scipy's sparse layout, and the folder that it leaves."""
    monkeypatch.chdir(tmp_path)
    e = trained_like()
    save_csr("latents.npz", e.z)
    np.save("y.npy", e.labels[""])
    np.save("dino.npy", e.judge)
    Path("names.txt").write_text("ant\nbee\ncat\ndog\n")
    run_program("interpret.py latents.npz --labels y.npy --judge dino.npy --classes names.txt")
    return capsys.readouterr().out, tmp_path / "latents-interpret"


def test_the_program_prints_a_table_that_fits(measured):
    text, _ = measured
    assert max(map(len, text.splitlines())) <= 120
    assert " untrained |" in text
    assert "MonoScore by dino.npy" in text


def test_the_program_writes_the_numbers(measured):
    _, folder = measured
    record = json.loads((folder / "interpret.json").read_text())
    assert {"numbers", "untrained", "shuffled"} <= record.keys()
    assert record["numbers"]["best_f1"] > 50


def test_the_program_writes_a_row_for_each_dimension(measured):
    _, folder = measured
    _, *rows = (folder / "dimensions.csv").read_text().splitlines()
    best_classes = {row.split(",")[-1] for row in rows[:4]}
    assert len(rows) == 32
    assert best_classes == {"ant", "bee", "cat", "dog"}


@pytest.mark.parametrize("method", ["simclr", "ncl"])
def test_a_run_is_measured_where_it_lies(runs, method, capsys):
    folder = runs / method
    before = {path.name for path in folder.iterdir()}
    run_program("interpret.py", folder)
    after = {path.name for path in folder.iterdir()}
    assert "h, the embedding's own backbone" in capsys.readouterr().out
    assert after - before == {"interpret.json", "interpret.txt", "dimensions.csv"}
    for name in after - before:
        (folder / name).unlink()


GOOD = dict(z=sparse_matrix(), y=LABELS)
BAD_EMBEDDINGS = {
    "words": (dict(z=np.array([["a", "b"]] * 9)), "z is <U1; it must be numbers"),
    "nan": (dict(z=np.full((9, 3), np.nan)), "z is not finite"),
    "lengths": (GOOD | dict(y=LABELS[1:]), "z has 60 rows, y has shape (59,)"),
    "one class": (GOOD | dict(y=0 * LABELS), "y has one class, 0"),
    "one dimension": (dict(z=np.ones((9, 1))), "z is 9 x 1; two images and dimensions or more"),
    "dead": (dict(z=np.zeros((9, 3))), "z is 0 everywhere"),
    "float labels": (GOOD | dict(y=LABELS / 2), "y is float64; labels are integers"),
    "word labels": (GOOD | dict(y=LABELS.astype(str)), "np.unique(y, return_inverse=True)[1]"),
    "pickles": (GOOD | dict(y=np.array([{}] * 60)), "cannot be read (ValueError: Object arrays"),
    "three axes": (dict(z=np.ones((9, 3, 3))), "z has shape (9, 3, 3); it must be (N, K)"),
    "two matrices": (dict(a=np.ones((9, 3)), b=np.ones((9, 3))), "which array is the embedding z?"),
    "judge": (GOOD | dict(h=np.ones((7, 3))), "h, the embedding's own backbone has 7"),
    "second label": (GOOD | dict(background=LABELS[2:]), "background has shape (58,)"),
}


@pytest.mark.parametrize("arrays, message", BAD_EMBEDDINGS.values(), ids=BAD_EMBEDDINGS)
def test_a_bad_embedding_is_refused_in_one_line(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    assert message in refusal("interpret.py", tmp_path / "bad.npz", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


BROKEN_LAYOUTS = {
    "outside": (dict(indices=np.full(500, 12)), "indices leave the shape (60, 12)"),
    "pointers": (dict(indptr=np.arange(5)), "indptr does not fit"),
    "twice": (dict(indices=np.zeros(500, int)), "an entry occurs twice"),
    "layout": (dict(format=b"bsr"), "its sparse format is bsr"),
}


@pytest.mark.parametrize("change, message", BROKEN_LAYOUTS.values(), ids=BROKEN_LAYOUTS)
def test_a_broken_sparse_file_is_refused(tmp_path, change, message):
    z = sparse_matrix()
    if "indices" in change:
        change = dict(indices=change["indices"][: np.count_nonzero(z)])
    save_csr(tmp_path / "bad.npz", z, **change)
    assert message in refusal("interpret.py", tmp_path / "bad.npz")


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".npy", ".safetensors", ".parquet"])
def test_a_file_cut_off_is_refused(tmp_path, suffix):
    e = trained_like()
    path = tmp_path / f"cut{suffix}"
    if suffix == ".npy":
        np.save(path, e.z)
    else:
        write(path, e)
    path.write_bytes(path.read_bytes()[:-200])
    assert "cannot be read" in refusal("interpret.py", path)


WRONG_FLAGS = {
    "nowhere.npz": "nowhere.npz is not there",
    "names.txt": "give a run's folder or a file of",
    ".": "no embeddings.npz",
    "good.npz --active top:2": "top:2; give auto,",
    "good.npz --active 1%": "1%; give auto,",
    "good.npz --classes names.txt": "names.txt names 2 classes; there is a class 3",
    "good.npz --labels nowhere.npy": "nowhere.npy is not there",
    "good.npz --judge good.npz --labels names.npy": "names.npy is not there",
    "good.npz --out names.txt": "cannot be made",
}


@pytest.mark.parametrize("flags, message", WRONG_FLAGS.items(), ids=WRONG_FLAGS)
def test_a_wrong_flag_of_interpret_is_refused(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    np.savez("good.npz", **GOOD)
    Path("names.txt").write_text("ant\nbee\n")
    assert message in refusal(f"interpret.py {flags}")
