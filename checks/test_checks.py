"""kills.py, damage.py and mutants.py: what they find where something is wrong, and where not."""

import json
import math
import re

import damage  # noqa: F401  a name that is missing shows here, not after an hour
import faults  # noqa: F401
import harness
import mutants
from conftest import run_program, write_files

import pytest
import torch


def test_every_bug_of_the_list_can_be_put_in():
    rows = mutants.rows_of(mutants.HERE / "mutants.txt")
    for file, old, new in rows:
        text = (mutants.ROOT / file).read_text()
        compile(text.replace(old, new), file, "exec")
    assert len(rows) > 100


def test_a_difference_of_one_bit_is_found(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, loss in (ours, 3.0), (theirs, math.nextafter(3, 4)):
        line = dict(epoch=1, loss=loss, images_per_s=loss)
        files = {"metrics.jsonl": json.dumps(line), "embeddings.npz": {"z": [1, loss]}}
        write_files(folder, files | {"results.json": "[]"})
        weights = [0, torch.tensor(loss, dtype=torch.float64)]
        torch.save({"model": weights, "seconds": loss}, folder / "a.pt")
    (theirs / "results.json").rename(theirs / "other.json")
    parts = ["a.pt/model/1", "embeddings.npz/z", "metrics.jsonl/0/loss"]
    assert harness.differences(ours, theirs) == [*parts, "other.json", "results.json"]


@pytest.mark.slow
def test_damage_and_kills_are_survived(capsys):
    run_program("damage.py --each 3 --kinds", "z .npy", "z sparse", "picture")
    run_program("kills.py --programs sparse_coding.py --kills 1")
    rows = re.findall(r"\| +(z \S+|picture|sparse_coding\S+) \|(.*)\|", capsys.readouterr().out)
    counts = {name: [int(n) for n in row.split("|")] for name, row in rows}
    for kind in "z .npy", "z sparse", "picture":
        assert sum(counts[kind][1:4]) == 3, kind  # refused, equal, or numbers of a valid file
    assert counts["sparse_coding.py"][-3:] == [1, 1, 1]
