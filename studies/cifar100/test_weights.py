"""The small weights in weights/."""

import common
from conftest import ROOT, run_program
from conftest import records as log_of

import pytest
import records

DATA = ROOT / "data"
FOLDERS = {path.parent.name: path.parent for path in ROOT.glob("weights/*/checkpoint.pt")}
MEASURED = "lp1", "lp1_embedding", "knn5", "entries", "cons", "adjusted", "f1", "best_f1"


@pytest.mark.parametrize("name", FOLDERS)
def test_weights_fit_their_method(name):
    run, _ = common.load_run(FOLDERS[name])
    assert name == f"{run.dataset}-{run.method}"


@pytest.mark.parametrize("name", FOLDERS)
def test_weights_have_at_most_four_megabytes(name):
    sizes = [file.stat().st_size for file in FOLDERS[name].iterdir()]
    assert sum(sizes) < 4e6


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "cifar100.npz").exists(), reason="needs CIFAR-100")
@pytest.mark.parametrize("name", FOLDERS)
def test_weights_give_the_recorded_numbers(name, tmp_path):
    dataset, method = name.split("-")
    evaluate = f"{method}.py --device cpu --eval-only"
    run_program(evaluate, FOLDERS[name], "--data-root", DATA, "--out", tmp_path / "run")
    found = log_of(tmp_path / "run")[-1]
    on_record = records.of_seeds(records.file_of(dataset), f"{dataset}-weights-{method}")
    for key in MEASURED:
        of_key = on_record[1]["final"][key]
        assert found[key] == pytest.approx(of_key, abs=0.3), key  # on any processor
