"""Tests of sparsity.py: stability in closed form, and the files that it reads and leaves."""

import itertools
import json
import shlex

import common
import interpret
from conftest import refusal, run_program

import numpy as np
import pytest
import records
import run
import sparsity
import torch


# ---------------------------------------------------------------------------------------- stability
def test_the_nearest_pair_are_partners_first():
    # The first column of b is near to two axes; the second is nearer to the first axis.
    b = torch.tensor([[2.0, 2], [1, 1.5], [0, 0]])
    found = sparsity.partners(torch.eye(3), b)
    assert found.tolist() == pytest.approx([0.8**0.5, 0.6, 0])


def test_partners_are_those_of_the_greedy_loop():
    a, b = torch.rand(20, 6), torch.rand(20, 4)
    cosines = torch.cosine_similarity(a[:, :, None], b[:, None, :], dim=0)
    pairs = sorted(((cosines[i, j].item(), i, j) for i in range(6) for j in range(4)), reverse=True)
    expected, taken = [0.0] * 6, set()
    for cosine, i, j in pairs:
        if expected[i] == 0 and j not in taken:
            expected[i] = cosine
            taken.add(j)
    assert sparsity.partners(a, b).tolist() == pytest.approx(expected)


def test_live_dimensions_are_normalised_and_absolute():
    z = torch.tensor([[3.0, 0, -4], [0, 0, 2]])
    found = sparsity.live_dimensions(z)
    assert torch.allclose(found, torch.tensor([[0.6, 0.8], [0, 1]]))


@pytest.fixture
def same_up_to_order():
    """What is said of an embedding with two dead dimensions and of the same in reverse order."""
    z = torch.cat([torch.zeros(30, 2), torch.rand(30, 6)], dim=1)
    return sparsity.stability([z, z.flip(1)])


def test_the_order_of_dimensions_does_not_matter(same_up_to_order):
    first, second = same_up_to_order
    assert first == pytest.approx(second)
    assert first["stability"] > 0.999
    assert first["stability_seeds"] == 2


def test_random_images_are_less_stable(same_up_to_order):
    first, _ = same_up_to_order
    assert 0 < first["stability_chance"] < first["stability"] / 1.05


def test_dimensions_without_a_partner_count_as_0():
    z = torch.eye(4)
    few = z.clone()
    few[:, 2:] = 0  # the other run has two live ones
    four, two = sparsity.stability([z, few])
    assert four["stability"] == pytest.approx(0.5)
    assert two["stability"] == pytest.approx(1)


def test_stability_is_a_mean_over_the_other_seeds():
    z = torch.eye(4)
    few = z.clone()
    few[:, 1:] = 0
    found = sparsity.stability([z, z, few])
    means = [numbers["stability"] for numbers in found]
    assert means == pytest.approx([(1 + 0.25) / 2, (1 + 0.25) / 2, 1])


def test_a_dead_run_is_not_stable():
    found = sparsity.stability([torch.eye(4), torch.zeros(4, 4)])
    assert [numbers["stability"] for numbers in found] == [0, 0]


# ---------------------------------------------------------------------------------------- measuring
def sparse(seed, N=40, K=8):
    """(N, K) with a third of the entries active and the last dimension dead."""
    draw = np.random.default_rng(seed)
    z = draw.random((N, K)) * (draw.random((N, K)) < 1 / 3)
    z[:, -1] = 0
    return z


def leave_run(folder, seed, z=None, dataset="tiny"):
    """What sparsity.py reads of a finished run."""
    z = sparse(seed) if z is None else z
    h = np.random.default_rng(100 + seed).normal(size=(len(z), 5))
    folder.mkdir(parents=True)
    config = dict(method="ncl", dataset=dataset, data_root="data", seed=seed)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text('{"event": "final", "epochs": 3, "lp1": null}\n')
    np.savez(folder / "embeddings.npz", h=h.astype(np.float16), z=z.astype(np.float16))
    return folder


@pytest.fixture
def studies(tmp_path, monkeypatch):
    """Where records are looked for: two questions without any."""
    monkeypatch.setattr(records, "STUDIES", tmp_path / "studies")
    for question in ("ncl", "sparsity"):
        (tmp_path / "studies" / question).mkdir(parents=True)


@pytest.fixture
def study_runs(studies, tmp_path):
    """Three seeds of a method, 1, 2 and 4, and of SimCLR."""
    folders = []
    for method in ("ncl-8", "simclr"):
        for seed in (1, 2, 4):
            folders.append(leave_run(tmp_path / f"tiny-sparsity-{method}-seed{seed}", seed))
    return folders


def left(folder):
    return json.loads((folder / "stability.json").read_text())


def embeddings(folder):
    with np.load(folder / "embeddings.npz") as archive:
        return archive["h"].astype(np.float32), archive["z"].astype(np.float32)


def test_stability_is_left_in_each_runs_folder(study_runs):
    run_program("sparsity.py", *study_runs)
    for method in study_runs[:3], study_runs[3:]:
        zs = [torch.from_numpy(embeddings(folder)[1]) for folder in method]
        for folder, numbers in zip(method, sparsity.stability(zs)):
            found = left(folder)
            assert {key: found[key] for key in numbers} == numbers


@pytest.mark.parametrize("run, judge", [(0, 4), (1, 5), (2, 3)], ids=["1", "2", "last"])
def test_the_judge_is_simclr_of_the_next_seed(study_runs, run, judge):
    run_program("sparsity.py", *study_runs)
    h, _ = embeddings(study_runs[judge])
    _, z = embeddings(study_runs[run])
    activations = interpret.activate(interpret.unit(z), "nonzero")
    mono = interpret.mono_score(activations, interpret.unit_judge(h))
    assert left(study_runs[run])["mono_simclr"] == pytest.approx(np.nanmean(mono))


def test_the_judge_is_of_the_same_data(study_runs, tmp_path):
    other = [leave_run(tmp_path / f"few-seed{seed}", seed, dataset="few") for seed in (1, 2)]
    run_program("sparsity.py", *study_runs, *other)
    assert "mono_simclr" not in left(other[0])


def test_a_table_shows_the_means_of_the_seeds(study_runs, capsys):
    run_program("sparsity.py", *study_runs)
    found = [left(folder) for folder in study_runs[:3]]
    columns = ("stability", "stability_chance", "mono_simclr")
    means = [f"{np.mean([numbers[key] for numbers in found]):.3f}" for key in columns]
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "ncl-8" in line]
    assert row.replace("|", " ").split() == ["tiny-sparsity-ncl-8", "3", *means]


def test_measuring_says_how_far_it_is(study_runs, capsys, monkeypatch):
    ten_seconds_each = itertools.count(0, 10)
    monkeypatch.setattr(common.time, "monotonic", ten_seconds_each.__next__)
    run_program("sparsity.py", *study_runs)
    assert "stability: 0/2" in capsys.readouterr().err


def test_an_undefined_mono_score_is_shown_as_nan(tmp_path, study_runs, capsys):
    one = np.zeros((40, 3))
    one[5, 0] = 1  # MonoScore takes two images
    dead = [leave_run(tmp_path / f"dead-seed{seed}", seed, one) for seed in (1, 2)]
    run_program("sparsity.py", *study_runs, *dead)
    assert left(dead[0])["mono_simclr"] is None
    assert " nan |" in capsys.readouterr().out


def test_stability_is_left_on_record_too(study_runs):
    file = records.file_of("sparsity")
    settings = json.loads((study_runs[1] / "config.json").read_text())
    records.put(file, dict(run="tiny-sparsity-ncl-8", seed=2, settings=settings, final={}))
    run_program("sparsity.py", *study_runs)
    (record,) = records.read(file)
    assert record["stability"] == left(study_runs[1])


@pytest.mark.parametrize("name", ["simclr", "shapes-simclr", "cifar10-cpu-sparsity-simclr"])
def test_simclr_is_a_judge_by_its_name(tmp_path, name):
    rows = {name: [leave_run(tmp_path / f"{name}-seed1", 1)]}
    assert list(sparsity.judges(rows)["tiny"]) == [1]


def test_other_methods_are_no_judges(tmp_path):
    rows = {}
    for name in ("shapes-sparsehead-simclr", "shapes-ncl"):
        rows[name] = [leave_run(tmp_path / f"{name}-seed1", 1)]
    assert sparsity.judges(rows) == {}


def test_logs_beside_runs_are_no_runs(study_runs, tmp_path):
    log = tmp_path / "tiny-sparsity-ncl-8-seed1.log"
    log.write_text("epoch 1\n")
    run_program("sparsity.py", *study_runs, log)
    assert left(study_runs[0])["stability_seeds"] == 3


@pytest.mark.parametrize("seeds", [[1], [1, 2]], ids=["one seed", "other images"])
def test_runs_that_cannot_be_compared_are_refused(tmp_path, seeds):
    sizes = {1: 40, 2: 39}
    for seed in seeds:
        leave_run(tmp_path / f"ncl-seed{seed}", seed, sparse(seed, N=sizes[seed]))
    assert "ncl: stability takes two seeds or more" in refusal("sparsity.py", *tmp_path.iterdir())


def test_runs_on_other_data_sets_are_refused(tmp_path):
    leave_run(tmp_path / "ncl-seed1", 1)
    leave_run(tmp_path / "ncl-seed2", 2, dataset="few")
    message = "on the same test images"
    assert message in refusal("sparsity.py", *tmp_path.iterdir())
    assert not list(tmp_path.glob("*/stability.json"))


def test_a_folder_without_a_run_is_refused(tmp_path):
    assert "is not the folder of a run" in refusal("sparsity.py", tmp_path)


# ------------------------------------------------------------------------------------------- points
def leave_record(run, seed, entries=1.5, **measured):
    """A record of a run that is active on so many entries of an image."""
    final = dict(event="final", lp1_embedding=50.0 + seed, cons=None)
    record = dict(run=run, seed=seed, settings={}, final=final, dimensions={"entries": entries})
    numbers = dict(stability=0.5, stability_chance=0.1 * seed, mono_simclr=0.2) | measured
    question = "ncl" if run == "shapes-ncl" else "sparsity"
    records.put(records.file_of(question), record | {"stability": numbers})


@pytest.fixture
def study_records(studies):
    """Records of NCL at two levels with three seeds and of SAE with two, on CIFAR-10."""
    for seed in (1, 2, 3):
        leave_record("cifar10-cpu-sparsity-ncl-8", seed, entries=8)
        leave_record("cifar10-cpu-sparsity-ncl-2", seed, entries=1 + seed)
    for seed in (1, 2):
        leave_record("cifar10-cpu-sparsity-sae-8", seed)
    leave_record("cifar10-cpu-sparsity-simclr", 1)  # which no line shows


def test_points_are_a_methods_levels(study_records):
    (of_methods,) = sparsity.points().values()
    assert [point["entries"] for point in of_methods["ncl"]] == [[2, 3, 4], [8, 8, 8]]
    assert [point["lp1_embedding"] for point in of_methods["sae"]] == [[51, 52]]
    assert of_methods["lpjepa"] == []


def test_what_is_undefined_is_left_out(study_records):
    (of_methods,) = sparsity.points().values()
    assert of_methods["ncl"][0]["cons"] == []


def test_a_row_may_be_another_runs_record(studies):
    for seed in range(1, 6):
        leave_record("shapes-ncl", seed, entries=seed)
    found = sparsity.records_of("shapes-sparsity-ncl-32")
    assert [numbers["entries"] for numbers in found] == [1, 2, 3, 4]


def test_spreads_are_of_three_seeds_or_more(study_records):
    (of_methods,) = sparsity.points().values()
    assert sparsity.means(of_methods["ncl"], "entries").tolist() == [3, 8]
    assert sparsity.spreads(of_methods["ncl"], "entries").tolist() == [1, 0]
    assert sparsity.spreads(of_methods["sae"], "lp1_embedding").tolist() == [0]


def test_a_record_that_was_not_measured_is_refused(study_records):
    file = records.file_of("sparsity")
    records.put(file, dict(run="cifar10-cpu-sparsity-ncl-8", seed=4, final={}))
    told = "cifar10-cpu-sparsity-ncl-8: a record lacks its stability"
    assert told in refusal("sparsity.py --draw no.png")


def test_nothing_on_record_is_refused(studies):
    assert "no run of these methods is on record" in refusal("sparsity.py --draw no.png")


@pytest.mark.parametrize("flags", ["", "runs/a --draw no.png"])
def test_runs_or_a_picture_are_wanted(flags, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_program(f"sparsity.py {flags}")
    assert "give folders of runs, which are measured, or --draw FILE" in capsys.readouterr().err


@pytest.fixture
def panel(study_records):
    plt = pytest.importorskip("matplotlib.pyplot")
    (of_methods,) = sparsity.points().values()
    for point in of_methods["ncl"] + of_methods["sae"]:
        point["stability"] = [value + 0.4 for value in point["stability_chance"]]
    figure, panel = plt.subplots()
    sparsity.draw_panel(panel, of_methods, "stability")
    yield panel
    plt.close(figure)


def line_of(panel, label):
    """The points of a line and of the dotted one that follows it."""
    lines = panel.get_lines()
    i = [line.get_label() for line in lines].index(label)
    return [line.get_xydata().tolist() for line in lines[i : i + 2]]


def test_a_line_goes_over_active_entries(panel):
    line, by_chance = line_of(panel, "NCL")
    assert line == pytest.approx(np.array([[3, 0.6], [8, 0.6]]))
    assert by_chance == pytest.approx(np.array([[3, 0.2], [8, 0.2]]))


def test_a_picture_of_records_is_drawn(studies, tmp_path):
    pytest.importorskip("matplotlib")
    for seed in (1, 2):
        shown = dict.fromkeys(sparsity.SHOWN, 1.0)
        leave_record("cifar10-cpu-sparsity-ncl-8", seed, entries=8, **shown)
    run_program("sparsity.py --draw", tmp_path / "sparsity.png")
    assert (tmp_path / "sparsity.png").read_bytes().startswith(b"\x89PNG")


# -------------------------------------------------------------------------------- runs.txt as it is
@pytest.mark.parametrize("data", sparsity.DATA_SETS)
@pytest.mark.parametrize("method", sparsity.METHODS)
def test_every_method_has_a_run_for_each_level(data, method):
    known = set(run.rows_of("sparsity"))
    for level in sparsity.LEVELS:
        row = f"{data}-sparsity-{method}-{level}"
        if row in sparsity.ON_RECORD_AS:
            question, other, _ = sparsity.ON_RECORD_AS[row]
            assert other in run.rows_of(question)
        else:
            assert row in known


def value_of(row, flag):
    """The value of a flag in a row's training."""
    _, (training, *_) = run.rows_of("sparsity")[row]
    words = shlex.split(training)
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("data", ["shapes", "cifar10-cpu"])
def test_narrow_autoencoders_are_as_wide_as_ncl(data):
    for level in (2, 4, 8, 16):
        narrow = f"{data}-sparsity-sae-narrow-{level}"
        assert value_of(narrow, "--units") == value_of(f"{data}-sparsity-ncl-{level}", "--head-out")
        assert value_of(narrow, "--topk") == str(level)


def test_the_widest_autoencoder_is_as_wide_as_ncl():
    units = value_of("cifar10-cpu-sparsity-sae-32", "--units")
    assert units == value_of("cifar10-cpu-sparsity-ncl-32", "--head-out")
