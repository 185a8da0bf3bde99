"""Every picture shows the numbers that it was given: a row a picture, read back from its artists.

What is planted hangs on every name that leads to it, so that no two numbers are equal.
"""

import shutil
import zlib
from importlib import import_module
from types import SimpleNamespace

import records
import sparsehead
from conftest import run_program, write_files

import numpy as np
import pandas
import pytest
import torch
from scipy import stats

plt = pytest.importorskip("matplotlib.pyplot")
plt.switch_backend("Agg")
PROGRAMS = "budget collapse curves draw forest spectra theory_gate with_training"
the = SimpleNamespace(**{name: import_module(name) for name in PROGRAMS.split()})


# --------------------------------------------------------------------------- what a picture shows
def key_of(label, colour="C0", style=""):
    """What tells an artist from others: its label, colour and style, and marker or transparency."""
    label = "" if str(label).startswith("_") else label
    return f"{label} {plt.matplotlib.colors.to_hex(colour)} {style.replace('None', '')}"


def read_back(panel):
    """Of each artist of a panel its key and its numbers."""
    drawn = []
    lines = list(panel.lines)
    for group in panel.containers:
        if hasattr(group, "patches"):
            key = key_of("bars", group[0].get_facecolor(), str(group[0].get_alpha()))
            drawn.append([key, *zip(*[(bar.get_center()[0], bar.get_height()) for bar in group])])
            continue
        line, caps, columns = group.lines
        lines = [other for other in lines if other not in (line, *caps)]
        style = line.get_linestyle() + line.get_marker()
        drawn.append([key_of(group.get_label(), line.get_color(), style), *line.get_data()])
        for axis, column in zip([0] * group.has_xerr + [1] * group.has_yerr, columns):
            drawn[-1] += list(np.array(column.get_segments())[:, :, axis].T)
    for line in lines:
        key = key_of(line.get_label(), line.get_color(), line.get_linestyle())
        drawn.append([key, *line.get_data()])
    for artist in panel.collections:
        if isinstance(artist, plt.matplotlib.collections.PathCollection):
            key = key_of("dots", artist.get_facecolor()[0])
            drawn.append([key, *artist.get_offsets().T])
        elif isinstance(artist, plt.matplotlib.collections.PolyCollection) and artist.get_paths():
            edge = artist.get_paths()[0].vertices  # along the low end, and back along the high one
            n = len(edge) // 2 - 1
            key = key_of("band", artist.get_facecolor()[0])
            drawn.append([key, *edge[1 : n + 1].T, edge[-2 : n + 1 : -1, 1]])
    drawn += [["image", image.get_array()] for image in panel.images]
    drawn += [["text " + text.get_text(), *text.get_position()] for text in panel.texts]
    return [entry for entry in drawn if np.size(entry[1]) > 0]


# ------------------------------------------------------------------------ what would be on record
class Numbers(dict):
    """A number under any key."""

    def __missing__(self, key):
        return 10 + zlib.crc32(f"{self['names']} {key}".encode()) % 8000 / 100


def seeds_of(run):
    """The numbers of three or four seeds."""
    return {seed: Numbers(names=(run, seed)) for seed in range(1, 4 + len(run) % 2)}


def values(what, key):
    """A number of each seed, of "A − B" the differences: what records.values() gives."""
    a, *b = [seeds_of(run) for run in what.split(" − ")]
    found = pandas.Series({seed: numbers[key] for seed, numbers in a.items()})
    for other in b:
        found = (found - pandas.Series({seed: own[key] for seed, own in other.items()})).dropna()
    return found.rename_axis("seed")


def bars(key, x, points):
    """The mean over the seeds of each point, ± their standard deviation."""
    mean = np.array([np.mean(point) for point in points])
    std = np.array([np.std(point, ddof=1) for point in points])
    return [key, x, mean, mean - std, mean + std]


def line_and_band(label, colour, style, x, points):
    key, _, middle, *ends = bars(key_of(label, colour, style), x, points)
    return [[key, x, middle], [key_of("band", colour), x, *ends]]


# ------------------------------------------------------------------------------------ the pictures
# Each draws, and returns what every panel must show; None: it is not looked at.
def new_panel():
    return plt.figure().subplots()


def cifar100(place, patch):
    patch.setattr(the.with_training, "values", values)
    the.with_training.draw_panel(new_panel(), "cons")
    drawn = []
    for name, colour in ("NCL", "C1"), ("BayesNCL", "C2"):
        start = f"cifar100/cifar100-long-{name.lower()}"
        runs = [f"{start}{end}" for end in ("-after-20", "-after-50", "-after-100", "")]
        points = [values(run, "cons") for run in runs]
        drawn.append(bars(key_of(name, colour, "-o"), [20, 50, 100, 200], points))
        chance = [values(run, "shuffled_cons").mean() for run in runs]
        drawn.append([key_of("", colour, ":"), [20, 50, 100, 200], chance])
    return [drawn]


def landscape(place, patch):
    draw = np.random.default_rng(0)
    curves = {}
    for sparsity in "0.1", "0.3":
        for name in the.budget.LOSSES.values():
            setting = f"budget/{name}, sparsity {sparsity}"
            curves[f"{setting}/lr_times_steps"] = 1 + draw.random(4)
            curves[f"{setting}/min"] = draw.random((4, 3))
    write_files(place, {"curves.npz": curves})
    patch.setattr(the.budget, "CURVES", place / "curves.npz")
    the.budget.draw(place / "budget.png")
    titles = [panel.get_title()[:7] for panel in plt.gcf().axes]
    assert titles == ["2 of 10", "3 of 10"]
    expected = []
    for sparsity in "0.1", "0.3":
        drawn = [[key_of("", "grey", ":"), [x, x], [0, 1]] for x in (200, 400)]
        for k, (label, name) in enumerate(the.budget.LOSSES.items()):
            setting = f"budget/{name}, sparsity {sparsity}"
            x, y = curves[f"{setting}/lr_times_steps"], curves[f"{setting}/min"]
            drawn += line_and_band(label, f"C{k}", "-", x, y)
        expected.append(drawn)
    return expected


def dictionaries(place, patch):
    draw = np.random.default_rng(0)
    names = "directions_of_h", "directions_of_z", "images_in_h", "images_in_z"
    families = {name: draw.random((50, 30)) for name in names}
    chance, cons = draw.random(30), draw.random(9)
    label = SimpleNamespace(y=np.zeros(30), families=families, chance=chance)
    n = np.array([4, 0, 30, 2, 9, 1, 7, 3, 8])
    columns = {"n": n, "cons": 2 * cons, "background_cons": cons}
    findings = SimpleNamespace(labels={"background_": label}, columns=columns)
    the.curves.draw_panel(new_panel(), findings, "background_", "title")
    x = range(1, 31)
    drawn = [[key_of("chance", "grey", ":"), x, 100 * chance]]
    titles = {"C1": "random directions", "C0": "neighbours of random images"}
    for (colour, title), name in zip(titles.items(), names[1::2]):
        own = 100 * families[name]
        drawn.append([key_of("band", colour), x, *np.percentile(own, [5, 95], axis=0)])
        drawn.append([key_of(f"{title}, middle 90 %", colour, "-"), x, own.mean(0)])
    return [[*drawn, [key_of("dimensions", "C3"), n[n > 0], 100 * cons[n > 0]]]]


def claims(place, patch):
    rows = {"A − B": [("x", "lp1", "q/a − q/b", None), ("y", "cons", "q/aa", 1.5)]}
    patch.setattr(the.forest, "ROWS", rows | {"C": [("z", "cons", "q/a − q/bb", None)]})
    patch.setattr(records, "values", values)
    the.forest.draw(place / "forest.png")
    drawn = [[key_of("", "grey", "-"), [0, 1], [1.5, 1.5]], [key_of("", "C1"), [1.5], [1]]]
    drawn.append([key_of("", "grey", "-"), [0, 0], [0, 1]])
    for y, (key, what) in enumerate(
        [("lp1", "q/a − q/b"), ("cons", "q/aa"), ("cons", "q/a − q/bb")]
    ):
        own = values(what, key)
        half = stats.t.ppf(0.975, len(own) - 1) * stats.sem(own)
        ends = [own.mean() - half], [own.mean() + half]
        drawn.append([key_of("", "C0", "o"), [own.mean()], [y], *ends])
    names = [text.get_text() for text in plt.gca().get_yticklabels()]
    assert names == ["A − B: x, n = 4", "A − B: y, n = 3", "C: z, n = 3"]
    return [drawn]


def simsiam(place, patch):
    seeds = seeds_of("collapses")
    spread = {}  # run, seed: its curve
    for run, _ in the.collapse.PANELS.values():
        for seed, numbers in seeds.items():
            spread[run, seed] = [numbers[run, x] for x in (1, 2, 3)]
    found = [dict(run=r, seed=s, curve=dict(spread=y)) for (r, s), y in spread.items()]
    patch.setattr(the.collapse, "read", lambda question: [*found, dict(run="other", seed=1)])
    the.collapse.draw(place / "collapse.png")
    expected = []
    for run, batch in the.collapse.PANELS.values():
        drawn = [[key_of("", "grey", ":"), [0, 1], [y, y]] for y in (1, 2 / batch**0.5)]
        for k, seed in enumerate(seeds):
            drawn.append([key_of(f"seed {seed}", f"C{k}", "-"), [1, 2, 3], spread[run, seed]])
        expected.append(drawn)
    return expected


def gates(place, patch):
    draw = np.random.default_rng(0)
    toy = {"gain": draw.random(10), "norms kept": draw.random(10), "gamma": 0.37}
    toy["kept"] = {"x": draw.random(10), "y": draw.random(10)}
    keys = "gated", "mean", "std", "gain", "pi", "open"
    runs = [dict(zip(keys, torch.from_numpy(draw.uniform(0.1, 1, (6, 30))))) for _ in "pq"]
    for run in runs:
        run["mean"] *= -1
    the.theory_gate.draw_gate(place / "gate.png", toy, list(zip("pq", runs)))
    x = np.array(the.theory_gate.FREQUENCIES)
    first = [[key_of("cosines", "C0", "-"), x, toy["gain"]]]
    first.append([key_of("norms kept", "C1", "-"), x, toy["norms kept"]])
    first.append([key_of("γ π (1 − π), γ = 0.37", "grey", ":"), x, 0.37 * x * (1 - x)])
    first.append([key_of("", "grey", "-"), [0, 1], [0, 0]])
    second = [[key_of(k, f"C{i}", "-"), x, y] for i, (k, y) in enumerate(toy["kept"].items())]
    third, fourth, fifth = [], [], []
    for k, c in enumerate(runs):
        third.append([key_of("dots", f"C{k}"), c["gated"], -c["mean"] / c["std"]])
        fourth.append([key_of("dots", f"C{k}"), c["gated"], c["gain"]])
        fifth.append([key_of("dots", f"C{k}"), c["pi"], c["open"]])
    return first, second, third, fourth, fifth


def one_run(place, patch):
    draw = np.random.default_rng(0)
    e = draw.normal(size=(50, 60)) * (draw.random((50, 60)) < draw.random(60))
    e[:, 20:] *= np.arange(40) % 2
    the.draw.dimensions(place / "dimensions.png", torch.from_numpy(e).float())
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    live = np.flatnonzero(e.any(0))
    at_random = torch.randperm(len(live), generator=torch.Generator().manual_seed(0))
    f = e[:, live[at_random[:20]]]
    f /= np.linalg.norm(f, axis=0)
    order = np.argsort(-np.abs(e).mean(0), kind="stable")
    rows = [49 * i // 39 for i in range(40)]
    counts = np.bincount((e != 0).sum(1), minlength=62)
    heights = counts[0:62:2] + counts[1:62:2]  # two numbers of active dimensions a bar
    bar = [key_of("bars", "C0", "None"), np.arange(0.5, 62, 2), heights]
    images = [np.abs(f.T @ f), np.abs(e)[rows][:, order]]
    return *([["image", image]] for image in images), [bar]


def spectra(place, patch):
    draw = np.random.default_rng(0)
    runs, ratios = {}, []
    for title in "ab":
        h, z = draw.normal(size=(40, 5)), draw.normal(size=(40, 9)) * np.arange(9)
        runs[title] = {"h": torch.from_numpy(h).float(), "z": torch.from_numpy(z).float()}
    the.spectra.draw(place / "spectra.png", runs)
    expected = {"h": [], "z": []}
    for k, (title, run) in enumerate(runs.items()):
        for kind, drawn in expected.items():
            values = np.linalg.eigvalsh(np.cov(run[kind].double().numpy().T))[::-1]
            rank = sparsehead.effective_rank(torch.from_numpy(values.clip(0)))
            key = key_of(f"{title}: rank {rank:.1f}", f"C{k}", "-")
            values = values.clip(1e-12 * values[0])
            drawn.append([key, np.arange(len(values)) + 1, values])
        ratios.append([key_of(title, f"C{k}", "-"), run["z"]])
    normal = torch.randn(40, 9, generator=torch.Generator().manual_seed(0))
    ratios.append([key_of("independent normal dimensions", "grey", ":"), normal])
    for entry in ratios:
        z = entry.pop()
        entry += [[4, 8], [sparsehead.min_max_ratio(z[:, :d]) for d in (4, 8)]]
    return *expected.values(), ratios


def landscapes(place, patch):
    draw = np.random.default_rng(0)
    settings = {
        "noncl, lr 1": ("C0", "-"),
        "noncl, lr 2": ("C0", "--"),
        "simclr, lr 1": ("C1", "-"),
    }
    curves = {}
    for setting in settings:
        curves[f"budget/{setting}/lr_times_steps"] = 1 + draw.random(4)
        for key in "min", "loss":
            curves[f"budget/{setting}/{key}"] = draw.random((4, 3))
    write_files(place, {"curves.npz": curves})
    assert the.draw.landscapes_of_run(place) == ["budget.png"]
    expected = []
    for key in "min", "loss":
        expected.append([[key_of("", "grey", ":"), [x, x], [0, 1]] for x in (200, 400)])
        for setting, look_of in settings.items():
            x = curves[f"budget/{setting}/lr_times_steps"]
            points = curves[f"budget/{setting}/{key}"]
            expected[-1] += line_and_band(setting, *look_of, x, points)
    return expected


PICTURES = [cifar100, landscape, dictionaries, claims, simsiam, gates]
PICTURES += [spectra, one_run, landscapes]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.__name__)
def test_a_picture_shows_its_numbers(picture, tmp_path, monkeypatch):
    plt.close("all")
    with monkeypatch.context() as patch:
        patch.setattr(plt, "close", lambda *_: None)
        patch.setattr(plt.Figure, "savefig", lambda *_, **__: None)
        expected = picture(tmp_path, patch)
    panels = [panel for number in plt.get_fignums() for panel in plt.figure(number).axes]
    panels = [panel for panel in panels if panel.get_label() != "<colorbar>"]
    plt.close("all")
    for panel, wanted in zip(panels, expected, strict=True):
        found = sorted(read_back(panel), key=lambda entry: entry[0])
        wanted = sorted(wanted, key=lambda entry: entry[0])
        assert [key for key, *_ in found] == [key for key, *_ in wanted]
        for (key, *numbers), (_, *planted) in zip(found, wanted):
            for own, other in zip(numbers, planted, strict=True):
                np.testing.assert_allclose(np.asarray(own, float), other, 1e-4, 1e-5, err_msg=key)


# -------------------------------------------------------------------------- draw.py as a program
def test_pictures_go_into_their_runs_folders(run_of, tmp_path):
    shutil.copytree(run_of("ncl"), tmp_path / "ncl")
    curves = {"fig4/noncl/lr_times_steps": [1, 2], "fig4/noncl/min": np.ones((2, 3))}
    curves["fig4/noncl/loss"] = np.ones((2, 3))
    write_files(tmp_path, {"landscape/curves.npz": curves})
    run_program("draw.py", tmp_path / "ncl", tmp_path / "landscape")
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*.png")}
    assert found == {"ncl/dimensions.png", "landscape/fig4.png"}
