"""The comparisons with other programs, as far as they need no clone: weights, inputs, words."""

import importlib
import runpy
import shlex
from argparse import Namespace
from pathlib import Path

import bayesncl
import common
import landscape
import run
import sparse_coding
import sparsehead
from conftest import refusal, write_files

import pandas as pd
import pytest
import solo_learn
import steps
import theirs
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy import stats
from torchvision.transforms import Normalize

TABLE = runpy.run_path(str(Path(theirs.__file__).with_name("table.py")))


def mlp(d, hidden, K):
    return nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, K))


def as_theirs(method):
    """A module with the names and shapes of the one that their program trains."""
    model = nn.Module()
    model.backbone = theirs.Backbone("simclr")
    model.backbone.conv1 = nn.Conv2d(3, 64, 3)
    model.backbone.fc = nn.Identity()
    model.classifier = nn.Linear(64, 100)
    model.projector = mlp(64, 2048, 256)
    if method == "bayesncl":
        model.gating_head = mlp(64, 2048, 256)
    return model.eval()


@pytest.mark.parametrize("method", theirs.METHODS)
def test_their_weights_give_their_outputs(method):
    model = as_theirs(method)
    x = torch.randn(9, 3, 32, 32)
    h = model.backbone(x)
    z = model.projector(h)
    if method != "simclr":
        z = F.relu(z)
    if method == "bayesncl":
        z = z * (model.gating_head(h) > 0)

    program = importlib.import_module(method)
    ours = program.network(program.parser().parse(theirs.OURS.split())).eval()
    ours.load_state_dict(theirs.named_as_ours(model.state_dict()))  # with every name
    assert torch.equal(torch.cat(ours(x)[:2], 1), torch.cat([h, z], 1))


def test_solo_learns_weights_give_byols_outputs():
    def head(d):
        return nn.Sequential(
            nn.Linear(d, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 64)
        )

    model = nn.Module()  # with the names of theirs
    model.backbone, model.momentum_backbone = theirs.Backbone("byol"), theirs.Backbone("byol")
    model.projector, model.momentum_projector, model.predictor = head(64), head(64), head(64)
    model.classifier = nn.Linear(64, 100)
    model.eval()
    x = torch.randn(9, 3, 32, 32)
    h = model.backbone(x)
    z = model.projector(h)
    t = model.momentum_projector(model.momentum_backbone(x))

    words = [*theirs.OURS.split(), *solo_learn.OURS.split(), "--base", "byol"]
    ours = sparsehead.network(sparsehead.parser("byol").parse(words)).eval()
    ours.load_state_dict(theirs.named_as_ours(model.state_dict()))  # with every name
    found = [*ours(x), ours.predictor(z), ours.target(x)]
    assert torch.equal(torch.cat(found, 1), torch.cat([h, z, model.predictor(z), t], 1))


@pytest.mark.parametrize("base", solo_learn.BASES)
def test_both_programs_get_the_same_settings(base):
    settings = []
    for program in "ours", "theirs":
        _, (command,) = run.rows_of("authors")[f"authors-cpu-{base}-{program}"]
        flags = [*shlex.split(command)[1:], "--device", "cpu"]
        if program == "theirs":
            flags = solo_learn.flags_of(solo_learn.parser().parse_args(flags))
        found = vars(sparsehead.parser(base).parse(flags))
        settings.append(found | dict(command=None))
    assert settings[0] == settings[1]


OF_BOTH = {  # solo-learn's name of an argument: its value in the plan
    "optimizer.name": "adam",
    "optimizer.lr": "0.003",
    "optimizer.weight_decay": "1e-06",
    "optimizer.batch_size": "256",
    "max_epochs": "10",
    "scheduler.warmup_epochs": "1",
    "method_kwargs.proj_hidden_dim": "1024",
    "method_kwargs.proj_output_dim": "64",
}
OF_ONE = {
    "barlow": {"method_kwargs.scale_loss": "1", "method_kwargs.lamb": "0.005"},
    "byol": {"method_kwargs.pred_hidden_dim": "1024", "momentum.base_tau": "0.99"},
}


@pytest.mark.parametrize("base", solo_learn.BASES)
def test_solo_learn_gets_what_was_planned(base):
    args = solo_learn.parser().parse_args(["../solo-learn", base])
    settings = sparsehead.parser(base).parse(solo_learn.flags_of(args))
    words = [word.lstrip("+") for word in solo_learn.words_for(settings) if "=" in word]
    given = dict(word.split("=") for word in words)
    expected = OF_BOTH | OF_ONE[base]
    assert {name: given[name] for name in expected} == expected
    (view,) = solo_learn.views_for(settings)
    assert view["rrc"]["crop_min_scale"] == 0.2
    jitter = dict(prob=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    assert view["color_jitter"] == jitter
    assert (view["grayscale"]["prob"], view["gaussian_blur"]["prob"]) == (0.1, 0.0)


def test_their_inputs_are_standardised_pixels():
    pixels = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
    standardise = Normalize(theirs.TheirInputs.MEAN, theirs.TheirInputs.STD)
    inputs = theirs.TheirInputs()(common.eval_view(pixels, 32))
    assert torch.allclose(inputs, standardise(pixels / 255), atol=1e-5)


def test_the_gates_words_are_our_preset():
    preset = bayesncl.PRESETS["cifar100"]
    words = dict(word.split("=") for word in theirs.OF_METHOD["bayesncl"].split())
    found = {key.rpartition(".")[2]: float(value) for key, value in words.items() if "." in value}
    expected = dict(
        bayesian_prior_prob=preset["prior"],
        gate_threshold=0.5,
        bayesian_kl_lambda=preset["kl_weight"],
        sigmoid_temperature=preset["gate_temperature"],
        gating_head_lr=preset["gate_lr"],
    )
    assert found == expected


VERDICTS = {
    "within": Namespace(difference=0.4, half=0.5, told="equivalent"),
    "not 0, but within": Namespace(difference=-0.6, half=0.3, told="equivalent"),
    "reaches beyond": Namespace(difference=0.4, half=0.7, told="undecided"),
    "touches the margin": Namespace(difference=0.5, half=0.5, told="undecided"),
    "just not beyond": Namespace(difference=-1.5, half=0.6, told="undecided"),
    "wholly beyond": Namespace(difference=-1.5, half=0.4, told="differs"),
    "one seed": Namespace(difference=0.0, half=float("inf"), told="undecided"),
}


@pytest.mark.parametrize("row", VERDICTS.values(), ids=VERDICTS)
def test_a_verdict_is_where_the_interval_lies(row):
    assert TABLE["verdict"](row.difference, row.half, 1.0) == row.told


def test_an_interval_is_welchs():
    a, b = pd.Series([1.0, 3.0, 2.0]), pd.Series([7.0, 3.0, 5.0, 5.0])
    share_a, share_b = a.var() / 3, b.var() / 4
    freedom = (share_a + share_b) ** 2 / (share_a**2 / 2 + share_b**2 / 3)
    half = stats.t.ppf(0.95, freedom) * (share_a + share_b) ** 0.5
    assert TABLE["welch"](a, b, 0.90) == pytest.approx((-3, half))
    assert TABLE["welch"](a[:1], b, 0.90) == (-4, float("inf"))


REFUSED = {  # flags, and words of the refusal
    "no clone": ("theirs.py elsewhere ncl", "git clone https://github.com/Cui-Peng-624"),
    "none of solo-learn": ("solo_learn.py elsewhere byol", "git clone https://github.com/vturrisi"),
    "a full folder": ("theirs.py clone ncl --out clone", "--out clone is not empty"),
}


@pytest.mark.parametrize("command, told", REFUSED.values(), ids=REFUSED)
def test_what_cannot_begin_is_refused(tmp_path, monkeypatch, command, told):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"clone/main_pretrain.py": b""})
    assert told in refusal(command)


def test_product_is_the_cosine_of_unit_vectors():
    z = F.normalize(torch.randn(6, 5))
    cosine = nn.CosineSimilarity(dim=2)(z[:, None], z[None])
    assert torch.allclose(landscape.Product(dim=2)(z[:, None], z[None]), cosine, atol=1e-6)


def test_the_landscape_has_our_draws():
    small = dict(n=8, batch_size=4, epochs=1, seeds=2, sparsity=[0.1, 0.3])
    s = sparse_coding.setting(landscape.SIMCLR | small, {}, paper=True)
    draws = landscape.Draws(s)
    starts = {}
    for sparsity in s.sparsity:  # in the order of their loops
        for seed in 1, 2:
            M, z = draws.gen_M(p=s.p, d=s.d), draws.gen_z(n=s.n, d=s.d, prob=sparsity)
            x = M @ z + draws.gen_epsilon(n=s.n, p=s.p, d=s.d, sigma0=None)
            starts[seed, sparsity] = draws.gen_Winit(M, c=None, m=s.m, d=s.d, p=s.p)
            expected = sparse_coding.sample(s, seed, sparsity, s.noise[0])
            for found, ours in zip((M, z, x), expected):
                assert torch.allclose(torch.tensor(found).float(), ours, atol=1e-6)
    (first,) = sparse_coding.start_weights(s, draws.data, 0)
    for replica, W in zip(draws.data.replicas, first):
        assert torch.equal(torch.tensor(starts[replica["seed"], replica["sparsity"]]).float(), W.T)


def test_other_layers_start_as_torchs():
    s = sparse_coding.setting(landscape.SIMSIAM | landscape.SHARED, {}, paper=True)
    data = sparse_coding.Data(s, "cpu")
    found = landscape.start(data, sparse_coding.PURPOSES["head"], s.m, s.m) / (s.p * s.d) ** 0.5
    expected = nn.Linear(s.m, s.m).weight
    assert found.abs().max() <= s.m**-0.5
    assert found.std().item() == pytest.approx(expected.std().item(), rel=0.05)
    assert torch.equal(found[0], found[1])  # of one seed with both sparsities
    assert not torch.equal(found[0], found[-1])


FOLLOWERS = [
    ("ncl", ""),
    ("bayesncl", "--gate gumbel"),
    ("sparsehead", "--base byol --head-out 8"),
]


@pytest.mark.parametrize("file, more", FOLLOWERS)
def test_ours_follows_what_was_drawn(tiny, tmp_path, monkeypatch, file, more):
    drawn = steps.Drawn()
    two_views = common.two_views

    def keep(*images, **options):
        drawn.views.append(two_views(*images, **options))
        drawn.states.append(torch.get_rng_state())
        return drawn.views[-1]

    monkeypatch.setattr(common, "two_views", keep)
    module = importlib.import_module(file)
    flags = [*tiny.split(), *more.split()]
    module.main([*flags, "--out", str(tmp_path)])
    trained = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["model"]

    base = [more.split()[1]] if file == "sparsehead" else []
    settings = module.parser(*base).parse(flags)
    torch.manual_seed(settings.seed)
    first = module.network(settings).state_dict()
    found = steps.by_ours(file, flags, drawn, first)
    assert not common.QUIET
    assert steps.apart(found, [found[0], *[steps.parts(trained)] * (len(found) - 1)])[-1] == 0
    rates = dict(projector=1e-3, gating_head=1e-3)
    drawn.rates = [rates, dict.fromkeys(rates, 0.0), *[rates] * len(found)]
    moved = [found[0], *steps.by_ours(file, flags, drawn, first, ["rates"])[1:]]
    still = [a["head"].equal(b["head"]) for a, b in zip(moved, moved[1:])]
    assert still == [False, True, *[False] * (len(found) - 3)]


def test_a_step_is_kept_by_value():
    model = as_theirs("bayesncl")
    weights = [*model.backbone.parameters(), *model.projector.parameters()]
    optimizer = torch.optim.SGD([dict(params=weights, lr=0.1, name="projector")])
    drawn = steps.Drawn()
    state = torch.get_rng_state()
    views = torch.ones(2, 3), torch.zeros(2, 3)
    drawn.before_step(Namespace(optimizers=[optimizer]), model, (None, views, None), 0)
    drawn.keep(model)
    with torch.no_grad():
        model.projector[0].weight += 1
        optimizer.param_groups[0]["lr"] = 0.2
    torch.rand(1)
    assert torch.equal(drawn.weights[0]["head.0.weight"] + 1, model.projector[0].weight)
    assert drawn.rates == [dict(projector=0.1)]
    assert torch.equal(drawn.states[0], state)
    assert drawn.views[0] == views


def test_apart_is_the_largest_share_of_a_parts_way():
    def of(head, gating):
        return dict(head=torch.tensor(head), gating=torch.tensor(gating))

    b = [of([0.0, 0.0], [0.0]), of([0.0, 4.0], [2.0]), of([8.0, 0.0], [1.0])]
    a = [b[0], of([3.0, 4.0], [2.0]), of([8.0, 0.0], [0.5])]
    assert steps.apart(a, b) == [0.75, 0.5]


def test_parts_have_no_biases_and_no_statistics():
    model = nn.ModuleDict(dict(head=nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))))
    (found,) = steps.parts(model.state_dict()).items()
    assert found[0] == "head"
    assert torch.equal(found[1], model["head"][0].weight.flatten().double())


def test_noise_becomes_theirs():
    u = torch.linspace(0.01, 0.99, 99)
    expected = -torch.log(-torch.log(u + 1e-4) + 1e-4)
    assert torch.allclose(-torch.log(-torch.log(steps.as_theirs(u))), expected, atol=1e-5)


def test_a_disturbance_is_in_the_last_bits():
    weight = torch.rand(1000) + 1
    changed = steps.disturbed({"weight": weight, "steps": torch.tensor(3)})
    assert changed["steps"] == 3
    error = changed["weight"] - weight
    assert error.abs().max() < 1e-6
    assert 0.3 < (error > 0).float().mean() / (error != 0).float().mean() < 0.7
    assert (error != 0).float().mean() > 0.3
