"""The small weights in weights/."""

import common
import interpret
from conftest import ROOT

import pytest
import records
from runs import data_of, load_run

DATA = ROOT / "data"
FOLDERS = {path.parent.name: path.parent for path in ROOT.glob("weights/*/checkpoint.pt")}
MEASURED = "lp1", "lp1_embedding", "knn5", "entries", "cons", "adjusted", "f1", "best_f1"


@pytest.mark.parametrize("name", FOLDERS)
def test_weights_fit_their_method(name):
    run, _ = load_run(FOLDERS[name])
    assert name == f"{run.dataset}-{run.method}"


@pytest.mark.parametrize("name", FOLDERS)
def test_weights_have_at_most_four_megabytes(name):
    sizes = [file.stat().st_size for file in FOLDERS[name].iterdir()]
    assert sum(sizes) < 4e6


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "cifar100.npz").exists(), reason="needs CIFAR-100")
@pytest.mark.parametrize("name", FOLDERS)
def test_weights_give_the_recorded_numbers(name):
    dataset, method = name.split("-")
    run, model = load_run(FOLDERS[name])
    data = data_of(run, str(DATA))
    found, _, z = common.evaluate(model, data, run)
    embedding = interpret.Embedding(z.half().numpy(), {"": data.test["y"].numpy()})
    found |= interpret.interpret(embedding, "nonzero", controls=False).numbers
    on_record = records.of_seeds(records.file_of(dataset), f"{dataset}-weights-{method}")
    for key in MEASURED:
        of_key = on_record[1]["final"][key]
        assert found[key] == pytest.approx(of_key, abs=0.3), key  # on any processor
