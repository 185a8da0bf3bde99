"""match.py and start.py: planted dimensions, known intervals, and what is recorded."""

import itertools
import json
import math
import runpy
from pathlib import Path

import interpret
import records
from conftest import run_program

import match
import numpy as np
import pytest
import start
import torch

CLASSES = np.arange(300) % 6
TABLE = runpy.run_path(str(Path(match.__file__).with_name("table.py")))


def planted(common, own, seed):
    """Codes (300, common + own): dimensions that all seeds have, in another order, and others."""
    draw = np.random.default_rng(seed)
    shared = np.random.default_rng(100).exponential(size=(300, common))
    z = np.concatenate([shared, draw.exponential(size=(300, own))], 1)
    z[draw.random(z.shape) < 0.6] *= 1e-3
    order = draw.permutation(common + own)
    return match.Codes(z[:, order].astype(np.float32), {"": CLASSES})


@pytest.fixture
def draw():
    return np.random.default_rng(0)


def lists(z):
    return interpret.activations_of(z, "nonzero")[0]


def test_a_matching_is_the_best_of_all_orders(draw):
    a, b = [lists(np.maximum(draw.normal(size=(50, 5)), 0)) for _ in range(2)]
    r = np.concatenate([r for _, r in interpret.correlations(a, b)], 1)
    orders = itertools.permutations(range(5))
    best = max(orders, key=lambda order: r[range(5), order].sum())
    of_a, of_b, matched = match.match(a, b)
    assert dict(zip(of_a.tolist(), of_b.tolist())) == dict(enumerate(best))
    assert matched == pytest.approx(r[range(5), best])


def test_more_dimensions_are_left_without_match(draw):
    z = np.maximum(draw.normal(size=(200, 9)), 0)
    z[:, 4] = 0
    few = z[:, [7, 4, 2, 8]]
    a, b = [interpret.activate(interpret.unit(x), "nonzero") for x in (few, z)]
    of_a, of_b, _ = match.match(a, b)
    assert of_a.tolist() == [0, 2, 3]  # the dead one has none
    assert len(set(of_b.tolist())) == 3


@pytest.mark.parametrize("rule", match.RULES.values())
def test_axes_of_the_data_beat_rotated_ones(rule, draw):
    e = planted(12, 0, 1)
    order = draw.permutation(12)
    again = match.Codes(2 * e.z[:, order], e.labels)
    found = match.compare(e, again, rule)
    assert found["matched"] == pytest.approx(1)
    assert found["above"] == found["back"] == 1
    assert found["both_rotated_matched"] < 0.8
    assert "lead_of_back" not in found  # there are no others


def test_axes_of_a_rotated_space_do_not(draw):
    z = draw.normal(size=(600, 40))
    turned = z @ np.linalg.qr(draw.normal(size=(40, 40)))[0]
    found = match.compare(match.Codes(z, {}), match.Codes(turned, {}), "top:0.1")
    assert found["matched_less_both_rotated"] == pytest.approx(0, abs=0.03)


def cut(u):
    """Codes of ReLU units, each above 0 on a quarter of the images."""
    return match.Codes(np.maximum(u - np.quantile(u, 0.75, axis=0), 0), {}, u)


@pytest.mark.parametrize("rule", match.RULES.values())
def test_arbitrary_cut_axes_only_beat_uncut_ones(rule, draw):
    h = draw.normal(size=(800, 12))
    first, second = (cut(h @ draw.normal(size=(12, 40))) for _ in range(2))
    found = match.compare(first, second, rule)
    assert found["matched_less_both_rotated"] > 0.08
    assert found["matched_less_arbitrary"] == pytest.approx(0, abs=0.03)


def test_arbitrary_axes_keep_the_largest_of_an_image(draw):
    """Of TopK: as many of an image, and axes that are random in both beat none of them."""
    gains = []
    for _ in range(4):
        pair = []
        for _ in range(2):
            u = draw.normal(size=(500, 12)) @ draw.normal(size=(12, 40))
            least = np.sort(u, axis=1)[:, -6, None]
            pair.append(match.Codes(np.where(u >= least, u, 0).clip(0), {}, u, topk=6))
        axes = match.arbitrary_axes(pair[0], 0)
        assert ((axes > 0).sum(1) == np.minimum((axes > 0).sum(1), 6)).all()
        assert (axes > 0).sum() == pytest.approx((pair[0].z > 0).sum(), rel=0.02)
        gains.append(match.compare(*pair, "top:0.1")["matched_less_arbitrary"])
    assert np.mean(gains) == pytest.approx(0, abs=0.02)


def test_axes_of_the_data_beat_arbitrary_cut_ones(draw):
    causes = draw.exponential(size=(800, 20)) * (draw.random((800, 20)) < 0.2)
    first, second = (cut(causes[:, draw.permutation(20)]) for _ in range(2))
    found = match.compare(first, second, "top:0.1")
    assert found["matched"] == pytest.approx(1)
    assert found["matched_less_arbitrary"] > 0.3


def test_arbitrary_axes_are_as_rare_as_the_live_ones(draw):
    u = draw.normal(size=(300, 9)) - 1
    u[:, 4] = -1
    e = match.Codes(np.maximum(u, 0), {}, u)
    found = match.arbitrary_axes(e, 0)
    assert (found > 0).sum(0).tolist() == np.delete((u > 0).sum(0), 4).tolist()
    whole = match.Codes(u, {}, u)
    assert match.arbitrary_axes(whole, 0).shape == (300, 9)
    gram = u @ u.T
    turned = match.arbitrary_axes(whole, 1)
    assert turned @ turned.T == pytest.approx(gram, abs=1e-3)


def test_what_comes_back_leads_by_what_was_planted(draw):
    one, two = [draw.exponential(size=(300, 12)) * (draw.random((300, 12)) < 0.3) for _ in range(2)]
    for z in one, two:
        z[:, :6] = 9 * np.eye(6)[CLASSES]
    one[:200, 11] = two[:100, 11] = 1  # the longest lists
    first, second = (match.Codes(z, {"": CLASSES}) for z in (one, two))
    found = match.compare(first, second, "auto")
    assert found["back"] == 0.5
    leads = [match.leads_of(e, "auto")[""] for e in (first, second)]
    gains = [lead[:6].mean() - lead[6:].mean() for lead in leads]
    assert found["lead_of_back"] == pytest.approx(np.mean(gains))
    assert np.mean(gains) > 30
    assert "lead_of_back_full" not in found  # none of those that come back has such a list
    assert match.compare(second, first, "auto")["lead_of_back"] == pytest.approx(np.mean(gains))


def test_both_embeddings_of_a_pair_are_controlled(draw):
    one, two = (np.maximum(draw.normal(size=(200, K)), 0) for K in (9, 5))
    two[:, 3] *= draw.random(200) < 0.2
    found = match.compare(match.Codes(one, {}), match.Codes(two, {}), "top:0.1")
    assert found["live"] == 7
    lists = [interpret.activations_of(z, "top:0.1")[0] for z in (one, two)]
    controls = interpret.controls_of_both(lists, (one, two), ("top:0.1", "nonzero"))
    means = {}
    for control, both in controls:
        means.setdefault(match.CONTROLS[control], []).append(match.match(*both)[2].mean())
    assert means.keys() == {"both_rotated", "same_images"}
    for name, draws in means.items():
        assert found[f"{name}_matched"] == pytest.approx(np.mean(draws), abs=0.02)
        less = found["matched"] - found[f"{name}_matched"]
        assert found[f"matched_less_{name}"] == pytest.approx(less)


def test_features_stand_in_the_place_of_z(tmp_path, draw):
    h = draw.exponential(size=(300, 8)).astype(np.float32)
    for file in tmp_path / "run/embeddings.npz", tmp_path / "mnist1d.npz":
        file.parent.mkdir(exist_ok=True)
        np.savez(file, z=planted(6, 4, 1).z, h=h, y=CLASSES)
    of_run = match.features(tmp_path / "run")
    assert (of_run.z == h).all()
    assert of_run.u is of_run.z
    assert match.features(tmp_path / "mnist1d.npz") is None  # these are cut at 0


def test_a_jackknife_of_sums_is_the_t_interval():
    of_seed = {1: 0.2, 2: 0.5, 3: -0.1, 4: 0.9}
    pairs = {(i, j): of_seed[i] + of_seed[j] for i, j in itertools.combinations(of_seed, 2)}
    values = np.array([*of_seed.values()])
    mean, half = records.jackknife(pairs)
    assert mean == pytest.approx(2 * values.mean())
    error = 2 * values.std(ddof=1) / 4**0.5
    assert half == pytest.approx(3.182446 * error)  # Student's t, three degrees of freedom
    assert math.isnan(records.jackknife({(1, 2): 0.3})[1])


def test_a_cell_of_pairs_is_mean_and_half_interval():
    pairs = {(1, 2): 0.7, (1, 3): 0.1, (2, 3): 0.4}
    assert records.cell_of_pairs(pairs, 2, True) == "+0.40 ± 1.49"
    assert records.cell_of_pairs({(1, 2): -0.04}, 1, True) == "0.0"
    assert records.cell_of_pairs({}, 1, True) == "–"


def grid(number):
    """number(training, other) of every pair of nine trainings (seed of weights, of order)."""
    trainings = itertools.product((1, 2, 3), repeat=2)
    return {pair: number(*pair) for pair in itertools.combinations(trainings, 2)}


def test_pairs_are_told_by_what_they_share():
    planted = {"same weights": 5.0, "same order": 2.0, "neither": 1.0}
    pairs = grid(lambda *pair: planted[TABLE["kind_of"](pair)])
    assert TABLE["kind_of"](((1, 2), (1, 3))) == "same weights"
    assert TABLE["kind_of"](((1, 3), (2, 3))) == "same order"
    assert TABLE["of_kind"](pairs, "same order") == 2
    assert TABLE["of_kind"](pairs, "same weights − neither") == 4


@pytest.mark.parametrize("of_weights", [(0.0, 0.0, 0.0), (0.2, 0.5, -0.1)])
@pytest.mark.parametrize("of_order", [(0.0, 0.0, 0.0), (0.3, -0.4, 0.7)])
def test_an_interval_counts_both_seeds(of_weights, of_order):
    def effect(weights, order):
        return of_weights[weights - 1] + of_order[order - 1]

    pairs = grid(lambda one, other: effect(*one) + effect(*other))
    error = 2 * math.sqrt((np.var(of_weights, ddof=1) + np.var(of_order, ddof=1)) / 3)
    half = TABLE["half_of_grid"]
    assert half(pairs, "neither") == pytest.approx(4.302653 * error)  # Student's t, two degrees
    assert half(pairs, "same order − neither") == pytest.approx(0, abs=1e-9)


def effects_of_trainings(draw):
    effect = dict(zip(itertools.product((1, 2, 3), repeat=2), draw.normal(size=9)))
    return lambda one, other: effect[one] + effect[other]


def effects_of_shared_seeds(draw):
    weights, order = draw.normal(size=(2, 4))
    return lambda a, b: (a[0] == b[0]) * weights[a[0]] + (a[1] == b[1]) * order[a[1]]


def effects_of_pairs(draw):
    return lambda one, other: draw.normal()


@pytest.mark.parametrize(
    "effects", [effects_of_trainings, effects_of_shared_seeds, effects_of_pairs]
)
@pytest.mark.parametrize("kind", ["same weights", "same weights − neither"])
def test_an_interval_covers_zero_nearly_always(effects, kind, draw):
    covered = []
    for _ in range(300):
        pairs = grid(effects(draw))
        covered.append(
            abs(TABLE["of_kind"](pairs, kind)) <= TABLE["half_of_grid"](pairs, kind) + 1e-9
        )
    assert np.mean(covered) > 0.92  # of 0.95, by chance; the others cover more


@pytest.fixture
def kept(tmp_path, monkeypatch, draw):
    """Three seeds of NCL in files, and of SimCLR two; records of their own."""
    monkeypatch.setattr(records, "STUDIES", tmp_path)
    monkeypatch.setattr(match, "DATA", {"shapes": str(tmp_path / "{method}-{seed}.npz")})
    monkeypatch.setattr(match, "DICTIONARIES", ("k-means-of-h", "nmf"))  # the others are slow
    (tmp_path / "seeds").mkdir()
    for method, seeds in {"ncl": (1, 2, 3), "simclr": (1, 2)}.items():
        for seed in seeds:
            z = planted(6, 4, seed).z
            h_train, h = draw.exponential(size=(2, 300, 8)).astype(np.float32)
            arrays = dict(z=z, h=h, h_train=h_train, y=CLASSES)
            np.savez(tmp_path / f"{method}-{seed}.npz", **arrays)
    for cached in match.read, match.features, match.network_of, match.dictionary:
        cached.cache_clear()
    return tmp_path / "seeds/records.jsonl"


def test_pairs_are_measured_once_and_read(kept):
    run_program("match.py shapes --seeds 1 2 3")
    rows = [record["settings"] for record in map(json.loads, kept.read_text().splitlines())]
    pairs = {}
    for row in rows:
        pairs.setdefault(row["row"], []).append(tuple(row["pair"]))
    of_three = [(1, 2), (1, 3), (2, 3)]
    expected = {"ncl": of_three, "simclr": [(1, 2)]}
    expected[match.IMAGES] = [(1, 2)]
    for name in match.DICTIONARIES:
        expected |= {f"{name}-one": of_three, f"{name}-two": [(1, 2)]}
    assert pairs == expected
    before = kept.read_bytes()
    run_program("match.py shapes --seeds 1 2 3")
    assert kept.read_bytes() == before
    ncl = records.pairs_of("shapes", "ncl", "matched_less_same_images")
    simclr = records.pairs_of("shapes", "simclr", "matched_less_same_images")
    assert [*ncl] == of_three
    assert [*simclr] == [(1, 2)]


def test_images_are_the_same_of_all_seeds(kept):
    whole, few = [match.dictionary("shapes", match.IMAGES, h, 0, "data").z for h in (1, 2)]
    with np.load(kept.parents[1] / "simclr-1.npz") as arrays:
        h_train, h = [arrays[name] - arrays["h_train"].mean(0) for name in ("h_train", "h")]
    chosen = h_train[np.random.default_rng(0).permutation(300)[: whole.shape[1]]]
    lengths = np.linalg.norm(h, axis=1)[:, None] * np.linalg.norm(chosen, axis=1)
    assert whole == pytest.approx(1 + h @ chosen.T / lengths, abs=1e-5)
    assert few.shape == whole.shape


def test_trainings_of_the_grid_are_told_apart(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(start, "ROOT", tmp_path)
    common_of = {(1, 2): 6, (3, 2): 4, (1, 3): 2}  # dimensions that all have; of the others 6
    for (weights, order), common in common_of.items():
        z = planted(common, 6, 10 * weights + order).z
        folder = start.folder("ncl", weights, order)
        folder.mkdir(parents=True)
        np.savez(folder / "embeddings.npz", z=z, y=CLASSES)
    run_program("match.py starts")
    found = TABLE["grid_of"]("ncl", "live")
    of = {((1, 2), (1, 3)): 10, ((1, 2), (3, 2)): 11, ((1, 3), (3, 2)): 9}
    assert found == of
    assert TABLE["of_kind"](found, "same order") == 11


@pytest.mark.parametrize("method", start.METHODS)
def test_a_start_shares_weights_and_not_order(tiny, tmp_path, monkeypatch, method):
    monkeypatch.chdir(tmp_path)
    flags = tiny.split()
    first = {}  # the weights before the first step
    orders = {}  # the images of the first batch

    def keep(args, data, model, *more):
        first[args.out] = torch.cat([w.flatten() for w in model.state_dict().values()])
        _, orders[args.out] = next(data.batches(args, 0))
        raise KeyboardInterrupt

    monkeypatch.setattr(match.common, "Run", keep)
    module = __import__(method)
    of_method = module.network
    for weights, order in (1, 1), (1, 2), (2, 2):
        with pytest.raises(KeyboardInterrupt):
            start.train(method, weights, order, flags, Path(f"{weights}{order}"))
    with pytest.raises(KeyboardInterrupt):
        module.main([*flags, "--seed", "1", "--out", "own"])
    assert torch.equal(first["11"], first["own"])
    assert torch.equal(first["11"], first["12"])
    assert not torch.equal(first["12"], first["22"])
    assert torch.equal(orders["12"], orders["22"])
    assert not torch.equal(orders["11"], orders["12"])
    assert getattr(module, of_method.__name__) is of_method
