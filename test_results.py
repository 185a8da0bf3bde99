"""Temporary: for the end of test_all.py, which has these imports and HERE."""
import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "tools")]
import common
import report
import study


# ----------------------------------------------------------------------------------------- the records and their pages
@pytest.mark.parametrize("page", report.PAGES, ids=["README.md", "results/README.md"])
def test_the_pages_quote_the_records(page):
    text = page.read_text()
    assert report.with_tables(text) == text, f"python tools/report.py puts the records into {page}"
    assert len(re.findall(r"^\| \[[^]]*\]\([\w/]*shapes-[\w-]+-seed1\) \|", text, re.M)) >= 5, "no table of records"


def test_every_record_has_its_settings_and_its_numbers_and_is_on_the_page():
    page = (report.RESULTS / "README.md").read_text()
    for folder in filter(Path.is_dir, report.RESULTS.iterdir()):
        settings, results = json.loads((folder / "config.json").read_text()), folder / "results.json"
        assert {"hardware", "torch", "date"} <= {*settings}, folder
        assert f"| [{re.sub('-seed[0-9]$', '', folder.name)}](" in page, folder
        assert json.loads(results.read_text()) if results.exists() else report.record(folder), folder
    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", page, re.M)}
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page):
        assert link[1:] in anchors if link.startswith("#") else (report.RESULTS / link).exists(), link
    assert not re.search(r"\| *–? *\|", page), "every cell says something"


def leave(folder, **numbers):
    """Files as a run leaves them; without numbers as one that was interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "dimensions.csv").write_text("dimension,act,cons\n0,0.5,0.2\n1,0.1,0.8\n")
    np.savez(folder / "embeddings.npz", z=np.float16([[1, 0, 0], [1, 2, 0], [1, 0, 0], [1, 2, 0]]), y=[0, 1, 1, 1])
    last = json.dumps({"event": "final"} | numbers) + "\n" if numbers else ""
    (folder / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "open": 0.25}) + "\n" + last)


def test_a_cell_is_the_mean_and_the_standard_deviation_over_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    for seed, lp1 in enumerate((1.0, 2.0, 6.0), 1):
        leave(tmp_path / f"a-seed{seed}", lp1=lp1, act=None), leave(tmp_path / f"b-seed{seed}", lp1=1.0)
    assert report.image_cell("[A](a-seed1)", "{lp1:.1f} / {open:.0%}") == "3.0 ± 2.6 / 25 % ± 0 %"  # √(14 / 2)
    assert report.image_cell("[A](a-seed1) − [B](results/b-seed1)", "{lp1:.1f}") == "2.0 ± 2.6"
    assert report.image_cell("[A](a-seed1)", "{cons_weighted:.0f} {cons_0.01:.0f}", "3") == "30 50"
    assert report.image_cell("[A](a-seed1)", "{act:.1f}") is None
    table = "| x | LP@1 | seeds | note |\n|---|---|---|---|\n| [A](a-seed1) | {} | 1, 2 | by hand |\n| B | 7 | 1 | |\n"
    assert report.with_tables(table.format("?")) == table.format("1.5")
    leave(tmp_path / "a-seed2")
    with pytest.raises(common.BadInput, match="a table shows a-seed1, seeds on record, which results/ lacks"):
        report.image_cell("[A](a-seed1)", "{lp1:.1f}")
    assert report.unchecked("It has .5 more. It has 1.5 of 2.\n| 1.5 |\n") == ["It has .5 more."]


def test_a_study_skips_what_is_recorded_and_goes_on_where_it_was_interrupted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results"), monkeypatch.setattr(study, "RUNS", tmp_path / "runs")
    leave(tmp_path / "done", lp1=50.0), leave(tmp_path / "runs" / "b")  # b was interrupted
    method = tmp_path / "method.py"
    method.write_text("import shutil, sys\nflags = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
                      "if '--bad' in flags: sys.exit('what is wrong')\n"
                      "folder = flags.get('--out') or flags['--resume']\n"
                      f"shutil.copytree('{tmp_path}/done', folder, dirs_exist_ok=True)\n")
    runs = {"a": [str(method)], "b": [str(method)], "c": [str(method), "--bad", "1"]}
    assert study.record_all(runs, 2, "cpu", "data") is False
    out, error = capsys.readouterr()
    assert re.search("^a: .* --out", out, re.M) and re.search("^b: .* --resume", out, re.M)
    assert "c: exit code 1: what is wrong" in error
    assert {path.name: report.record(path)["lp1"] for path in (tmp_path / "results").iterdir()} == {"a": 50, "b": 50}
    assert (tmp_path / "results" / "a" / "dimensions.csv").read_text() == (
        "dimension,act,mean,class,cons,entropy\n0,1,0.7236,1,0.75,0.6446\n1,0.5,0.4472,1,1,0\n")
    monkeypatch.setattr(study.subprocess, "Popen", lambda *_, **__: pytest.fail("it is recorded"))
    assert study.record_all({name: runs[name] for name in "ab"}, 2, "cpu", "data") is True
    for name in study.STUDIES:  # and every command is one that its program takes
        for script, *argv in study.commands(name, None, None, "--checkpoint-every 50").values():
            importlib.import_module(script.removesuffix(".py")).parser().parse_args(argv)
