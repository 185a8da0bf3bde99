"""Tests of notebook.py and idea.py, and of the lesson's argument."""

import json
import re

import interpret
from conftest import ROOT

import idea
import notebook
import numpy as np
import pytest
import torch
from selection import precision_at

PAGE = """\
# A lesson

Run this.

```sh
python ncl.py
diff a b
```

It prints

```
| 1 | 2 |
```

```python
x = 1

y = 2
```
"""
BY_KIND = {  # keys that nbformat 4 wants in a cell, and no others
    "markdown": {"cell_type", "metadata", "source"},
    "code": {"cell_type", "metadata", "source", "execution_count", "outputs"},
}


# ----------------------------------------------------------------------------------- the notebook
@pytest.fixture
def cells():
    """The texts of the cells that PAGE becomes."""
    return ["".join(cell["source"]) for cell in notebook.cells_of(PAGE)]


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """A page and its notebook in a folder of their own."""
    monkeypatch.setattr(notebook, "README", tmp_path / "README.md")
    monkeypatch.setattr(notebook, "NOTEBOOK", tmp_path / "lesson.ipynb")
    (tmp_path / "README.md").write_text(PAGE)
    notebook.main([])
    return tmp_path


@pytest.fixture(scope="module")
def committed():
    """lesson.ipynb as it is in the repository."""
    return json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))


def test_the_notebook_is_what_the_page_gives():
    notebook.main(["--check"])


def test_check_tells_a_difference_and_changes_nothing(lesson, capsys):
    old = (lesson / "lesson.ipynb").read_text()
    (lesson / "README.md").write_text(PAGE + "\nMore.\n")
    with pytest.raises(SystemExit) as stop:
        notebook.main(["--check"])
    assert stop.value.code == 1
    assert capsys.readouterr().out.count("\n") == 1
    assert (lesson / "lesson.ipynb").read_text() == old


def test_check_is_silent_without_a_difference(lesson, capsys):
    notebook.main(["--check"])
    assert capsys.readouterr().out == ""


def test_the_first_code_finds_the_repository(cells):
    assert cells[1] == notebook.FIRST_CELL


def test_shell_lines_are_marked(cells):
    assert cells[2] == "!python ncl.py\n!diff a b"


def test_python_stays_as_it_is(cells):
    assert cells[-1] == "x = 1\n\ny = 2"


def test_printed_tables_stay_in_the_text(cells):
    assert cells[3] == "It prints\n\n```\n| 1 | 2 |\n```"


def test_the_notebook_is_of_format_four(committed):
    assert committed.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (committed["nbformat"], committed["nbformat_minor"]) == (4, 4)


def test_cells_have_the_keys_of_their_kind(committed):
    for cell in committed["cells"]:
        assert cell.keys() == BY_KIND[cell["cell_type"]]
        assert all(isinstance(line, str) for line in cell["source"])


def test_no_cell_has_an_output(committed):
    code = [cell for cell in committed["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in code)
    assert all(cell["execution_count"] is None for cell in code)


def test_links_lead_somewhere_from_the_notebook(committed):
    broken = []
    for cell in committed["cells"]:
        for link in re.findall(r"\]\((?!http)([^()#]+)", "".join(cell["source"])):
            if not (notebook.NOTEBOOK.parent / link).exists():
                broken.append(link)
    assert broken == []


def test_no_answer_is_cut_by_a_block():
    page = notebook.README.read_text(encoding="utf-8")
    answers = re.findall(r"<details>.*?</details>", page, re.S)
    assert len(answers) > 4
    assert not any(notebook.BLOCK.search(answer) for answer in answers)


# ------------------------------------------------------------------- a rotation of the embeddings
CLASS_SIZES = [50, 30, 20]


@pytest.fixture(scope="module")
def one_hot():
    """Embeddings z (100, 3) with each class along an axis, and the classes y (100,)."""
    y = np.repeat([0, 1, 2], CLASS_SIZES)
    return np.eye(3, dtype=np.float32)[y], y


@pytest.fixture(scope="module")
def dense():
    """Embeddings z (100, 3) about the mean of their class, and the classes y (100,)."""
    y = np.repeat([0, 1, 2], CLASS_SIZES)
    draw = np.random.default_rng(0)
    means = draw.standard_normal((3, 3))
    z = means[y] + 0.5 * draw.standard_normal((100, 3))
    return z.astype(np.float32), y


@pytest.fixture(scope="module")
def rotation():
    """A random orthogonal matrix (3, 3), no entry of which is near 0."""
    draw = torch.Generator().manual_seed(0)
    matrix, _ = torch.linalg.qr(torch.randn(3, 3, generator=draw))
    assert matrix.abs().min() > 0.05
    return matrix.numpy()


def mean_cons(z, y):
    """Cons. of the dimensions of z (N, K)."""
    active = interpret.activate(interpret.unit(z), "nonzero")
    counts = interpret.class_counts(active, y, 3)
    return interpret.consistency(counts).mean()


@pytest.mark.parametrize("kind", ["one_hot", "dense"])
def test_a_rotation_leaves_the_neighbours(kind, rotation, request):
    z, y = request.getfixturevalue(kind)
    before, after, y = map(torch.from_numpy, (z, z @ rotation, y))
    assert precision_at(after, y) == pytest.approx(precision_at(before, y))


def test_each_axis_has_one_class_before_a_rotation(one_hot):
    assert mean_cons(*one_hot) == 1


def test_rotated_axes_have_the_commonest_class(one_hot, rotation):
    z, y = one_hot
    assert mean_cons(z @ rotation, y) == 0.5  # the base rate: 50 of 100


def test_a_rotation_leaves_the_cons_of_dense_axes(dense, rotation):
    z, y = dense
    assert mean_cons(z, y) == mean_cons(z @ rotation, y) == 0.5


# ------------------------------------------------------------------------------------- the picture
def test_a_rectified_cloud_stays_in_the_orthant():
    z = idea.cloud(1, np.random.default_rng(0), rectified=True)
    assert z.min() >= 0
    assert (z.argmax(1) == 1).all()


def test_axes_are_seen_a_third_turn_apart():
    places = idea.seen(np.eye(3))
    assert places[0] == pytest.approx([0, (2 / 3) ** 0.5])
    assert idea.turned(places, 120) == pytest.approx(np.roll(places, -1, axis=0))


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    idea.main(["--draw", str(tmp_path / "idea.png")])
    assert 10_000 < (tmp_path / "idea.png").stat().st_size < 60_000


def test_the_committed_picture_is_small():
    assert (ROOT / "assets" / "lesson-idea.png").stat().st_size < 60_000
