"""Tests of sparsity.py: stability in closed form, and the files that it reads and leaves."""

import json
import shlex

import numpy as np
import pytest
import report
import sparsity
import torch

import interpret
from conftest import ROOT, refusal, run_program


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
def study_runs(tmp_path):
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
    mono = interpret.mono_score(interpret.nonzero(z), interpret.unit_judge(h))
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


def test_measuring_says_how_far_it_is(study_runs, capsys):
    run_program("sparsity.py", *study_runs)
    assert "stability: 0/2" in capsys.readouterr().err


def test_an_undefined_mono_score_is_shown_as_nan(tmp_path, study_runs, capsys):
    one = np.zeros((40, 3))
    one[5, 0] = 1  # MonoScore takes two images
    dead = [leave_run(tmp_path / f"dead-seed{seed}", seed, one) for seed in (1, 2)]
    run_program("sparsity.py", *study_runs, *dead)
    assert left(dead[0])["mono_simclr"] is None
    assert " nan |" in capsys.readouterr().out


def test_stability_is_left_on_record_too(study_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "STUDIES", tmp_path / "studies")
    (tmp_path / "studies" / "sparsity").mkdir(parents=True)
    file = records.file_of("sparsity")
    records.put(file, dict(run="tiny-sparsity-ncl-8", seed=2, final={}))
    run_program("sparsity.py", *study_runs)
    (record,) = records.read(file)
    assert record["stability"] == left(study_runs[1])


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


# ------------------------------------------------------------------------------------------ records
def leave_record(folder, seed, entries=(1.0, 0.5, 0.0), **numbers):
    """A record whose dimensions are active on these shares of the images."""
    folder.mkdir(parents=True)
    final = dict(event="final", epochs=3, lp1_embedding=50.0 + seed, cons=None) | numbers
    (folder / "metrics.jsonl").write_text(f'{{"epoch": 3}}\n{json.dumps(final)}\n')
    rows = ["dimension,act,cons"]
    for k, act in enumerate(entries):
        rows.append(f"{k},{act},0.5")
    (folder / "dimensions.csv").write_text("\n".join(rows) + "\n")
    numbers = dict(stability=0.5, stability_chance=0.1 * seed, mono_simclr=0.2)
    (folder / "stability.json").write_text(json.dumps(numbers))
    return folder


def test_a_record_has_entries_and_dead_dimensions(tmp_path):
    found = sparsity.record(leave_record(tmp_path / "run", 1))
    assert found["entries"] == 1.5
    assert found["dead_dims"] == pytest.approx(100 / 3)
    assert "cons" not in found  # it is undefined


def test_an_unfinished_record_is_empty(tmp_path):
    folder = leave_record(tmp_path / "run", 1)
    (folder / "metrics.jsonl").write_text('{"epoch": 3}\n')
    assert sparsity.record(folder) == {}
    assert sparsity.record(tmp_path) == {}


@pytest.mark.parametrize(
    "name", ["shapes-sparsity-sae-8-seed1", "cifar10-cpu-sparsity-ncl-2-seed3"]
)
def test_records_are_read_as_the_tables_read_them(name):
    folder = ROOT / "results" / name
    found, expected = sparsity.record(folder), report.record(folder)
    keys = ["entries", "stability_chance", *sparsity.SHOWN]
    assert [found[key] for key in keys] == [expected[key] for key in keys]


def test_a_finished_runs_record_counts_as_the_run_does(runs, tmp_path):
    findings = interpret.interpret(interpret.read_embedding(runs / "ncl"), "nonzero", False)
    interpret.write_csv(tmp_path / "dimensions.csv", findings)
    final = (runs / "ncl" / "metrics.jsonl").read_text().splitlines()[-1]
    (tmp_path / "metrics.jsonl").write_text(final.replace('"entries"', '"of_the_run"') + "\n")
    found = sparsity.record(tmp_path)
    K = len(findings.columns["act"])
    assert found["entries"] / K == pytest.approx(found["act"], rel=1e-3)
    assert K * (1 - found["dead_dims"] / 100) == pytest.approx(found["live_dims"])


# ------------------------------------------------------------------------------------------- points
@pytest.fixture
def study_records(tmp_path):
    """Records of NCL at two levels, the larger first, with three seeds, and of SAE with two."""
    folders = []
    for seed in (1, 2, 3):
        half = dict(entries=(1.0,) * 8)
        folders.append(leave_record(tmp_path / f"tiny-sparsity-ncl-8-seed{seed}", seed, **half))
        few = dict(entries=(1.0,) * (1 + seed))
        folders.append(leave_record(tmp_path / f"tiny-sparsity-ncl-2-seed{seed}", seed, **few))
    for seed in (1, 2):
        folders.append(leave_record(tmp_path / f"tiny-sparsity-sae-8-seed{seed}", seed))
    folders.append(leave_record(tmp_path / "tiny-simclr-seed1", 1))  # of another study
    return folders


def test_points_are_a_methods_levels(study_records):
    (of_methods,) = sparsity.points(study_records).values()
    assert [point["entries"] for point in of_methods["ncl"]] == [[8, 8, 8], [2, 3, 4]]
    assert [point["lp1_embedding"] for point in of_methods["sae"]] == [[51, 52]]
    assert of_methods["lpjepa"] == []


def test_spreads_are_of_three_seeds_or_more(study_records):
    (of_methods,) = sparsity.points(study_records).values()
    assert sparsity.means(of_methods["ncl"], "entries").tolist() == [8, 3]
    assert sparsity.spreads(of_methods["ncl"], "entries").tolist() == [0, 1]
    assert sparsity.spreads(of_methods["sae"], "lp1_embedding").tolist() == [0]


def test_a_record_that_was_not_measured_is_refused(study_records):
    (study_records[0] / "stability.json").unlink()
    assert "ncl-8: a record lacks" in refusal("sparsity.py --draw no.png", *study_records)


def test_folders_of_no_study_are_refused(tmp_path):
    folder = leave_record(tmp_path / "tiny-simclr-seed1", 1)
    assert "none of these folders is a record" in refusal("sparsity.py --draw no.png", folder)


@pytest.fixture
def panel(study_records):
    plt = pytest.importorskip("matplotlib.pyplot")
    (of_methods,) = sparsity.points(study_records).values()
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


def test_a_picture_of_records_is_drawn(study_records, tmp_path):
    pytest.importorskip("matplotlib")
    for folder in study_records[:-1]:
        final = json.dumps(dict(event="final", **dict.fromkeys(sparsity.SHOWN, 1.0)))
        (folder / "metrics.jsonl").write_text(f"{final}\n")
    run_program("sparsity.py", *study_records, "--draw", tmp_path / "sparsity.png")
    assert (tmp_path / "sparsity.png").read_bytes().startswith(b"\x89PNG")


# ----------------------------------------------------------------------------------------- the runs
@pytest.mark.parametrize("data", sparsity.KNOBS)
def test_every_method_has_a_knob_for_each_level(data):
    assert sparsity.KNOBS[data].keys() == sparsity.METHODS.keys() == sparsity.PROGRAMS.keys()
    for knobs in sparsity.KNOBS[data].values():
        assert len(knobs) == len(sparsity.LEVELS)


def value_of(flags, name):
    words = shlex.split(flags)
    return words[words.index(name) + 1]


@pytest.mark.parametrize("data", sparsity.KNOBS)
def test_narrow_autoencoders_are_as_wide_as_ncl(data):
    knobs = sparsity.KNOBS[data]
    widths = [value_of(flags, "--head-out") for flags in knobs["ncl"]]
    assert [value_of(flags, "--units") for flags in knobs["sae-narrow"]] == widths
    levels = [str(level) for level in sparsity.LEVELS]
    assert [value_of(flags, "--topk") for flags in knobs["sae-narrow"]] == levels


def test_rows_come_level_by_level():
    rows = sparsity.by_rows({"a": ["1", "2", "3", "4", "5"], "b": "x"})
    assert list(rows)[:4] == ["a-2", "b-2", "a-4", "b-4"]
    assert (rows["a-16"], rows["b-32"]) == ("4", "x")


@pytest.mark.parametrize(
    "row, flags",
    {
        "simclr": "--epochs 2 --temperature 0.1",
        "ncl-8": "--epochs 2 --temperature 0.1 --head-out 64",
        "lpjepa-2": "--epochs 2 --mu -2.5",  # it has no τ
        "sae-8": "--units 256 --topk 8",  # it has the settings of SimCLR's run
        "sae-narrow-8": "--units 64 --topk 8",
    }.items(),
)
def test_rows_have_flags_of_their_own(row, flags):
    common_flags, seeds, own = sparsity.study("shapes", "--epochs 2", [1, 2], "--temperature 0.1")
    assert common_flags == ""
    assert seeds[row] == [1, 2]
    assert shlex.split(own[row]) == flags.split()
