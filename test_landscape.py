"""The section of sparse_coding.py and tools/theory.py of test_all.py."""
# The head of test_all.py has these.
import contextlib
import copy
import io
import itertools
import json
import math
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tools"))

import common
import sparse_coding as sc
import theory


def inside(command, *more):
    name, *argv = [*shlex.split(command), *map(str, more)]
    common.launch(lambda: {"sparse_coding.py": sc, "tools/theory.py": theory}[name].main(argv))


def refused(command, *more):
    with pytest.raises(SystemExit) as stop, contextlib.redirect_stderr(io.StringIO()) as errors:
        inside(command, *more)
    assert stop.value.code == 2 and errors.getvalue().count("\n") == 1, errors.getvalue()
    return errors.getvalue()


# ---------------------------------------------------------------------------------------------------- sparse_coding.py
def landscape(**factors):
    """A small setting of sparse_coding.py: the paper's with the given factors."""
    return sc.setting(dict(n=64, batch_size=16, p=12, d=6, m=8, epochs=2, lr=0.1, seeds=1) | factors, {}, paper=True)


@pytest.fixture
def watched(monkeypatch):
    """A function that trains a setting; → the model at its start and end, and the views (a1, a2) of every step."""
    def run(s):
        models, views = [], []

        def step(s, data, model, a1, a2, turn):
            models[:] = models or [copy.deepcopy(model), model]
            views.append((a1, a2))
            return original(s, data, model, a1, a2, turn)

        monkeypatch.setattr(sc, "step", step)
        sc.train(s)
        return *models, views

    original = sc.step
    return run


@pytest.mark.parametrize("d,beta,minus,plus", [(10, 0.1, 1, 1), (10, 0.2, 1, 1), (10, 0.3, 2, 1), (100, 0.14, 8, 7)])
def test_sparse_data_are_the_papers(d, beta, minus, plus):
    """Pr .1 and .2 give the authors the same data at d = 10; 100 · .14 is 14.000000000000002, with the ceiling 15."""
    draw = lambda kind: sc.latents(kind, 20_000, d, beta, sc.generator(0, 0))
    for value, count in ((-1, minus), (1, plus), (0, d - minus - plus)):
        assert ((draw("authors") == value).sum(0) == count).all()
    assert (draw("exact").abs().sum(0) == minus + plus).all() and draw("exact").mean().abs() < 0.01
    assert (draw("onehot").abs().sum(0) == 1).all() and draw("onehot").mean().abs() < 0.01
    assert (draw("onehot-plus").sum(0) == 1).all() and draw("onehot-plus").min() == 0
    for kind, sign in (("iid", 0), ("zero-one", 1)):
        z, some = draw(kind), 1 - (1 - beta)**d  # the probability that not all entries are 0
        assert z.abs().amax(0).min() == 1 and z.abs().mean().item() == pytest.approx(beta / some, rel=0.03)
        assert z.mean().item() == pytest.approx(sign * beta / some, abs=0.005)
    M, z, x = sc.sample(landscape(n=4000, p=100, d=d), 3, beta, 0.15)
    assert torch.allclose(M.T @ M, torch.eye(d), atol=1e-5) and abs((x - M @ z).std() - 0.15) < 1e-3


@pytest.mark.parametrize("keep", [0.2, 0.5, 1.0])
def test_views_are_masked_samples(watched, keep):
    s = landscape(keep=keep, noise=0.1, n=512, batch_size=256)
    (a1, a2), (b1, _) = [(a1[0], a2[0]) for a1, a2 in watched(s)[2]][:2]  # (p, B)
    D1, D2 = a1 != 0, a2 != 0
    for share, expected in (D1, keep), (D1 & D2, keep**2):
        assert abs(share.float().mean() - expected) <= 4 * math.sqrt(expected * (1 - expected) / a1.numel())
    whole = torch.where(D1, a1, a2)[:, (D1 | D2).all(0)]  # of the samples that two masks show
    same = (whole.T[:, None] == sc.sample(s, 1, 0.1, 0.1)[2].T).all(2)
    assert (same.sum(1) == 1).all() and (keep < 0.5 or len(same) > 3) and (keep == 1 or not torch.equal(a1, b1))
    a1, a2 = watched(landscape(keep=keep, masks="dependent", noise=0.1))[2][0]
    assert not ((a1 != 0) & (a2 != 0)).any() and (a1 + a2 != 0).all()  # 2Dx and 2(I − D)x, Eq. (2)


def test_an_epoch_shows_every_sample_once_and_simclr_drops_the_last_smaller_batch(watched):
    for method, widths in (("simclr", [16, 16]), ("simsiam", [16, 16, 8]), ("noncl", [16, 16, 8])):
        s = landscape(method=method, n=40, epochs=1, seeds=2)
        shown, orders = [a1 for a1, _ in watched(s)[2]], []  # (R, p, B) each
        assert [a.shape[2] for a in shown] == widths and s.steps == len(widths) / (2 if method == "noncl" else 1)
        for seed, a in enumerate(torch.cat(shown, 2).mT, 1):  # (steps · B, p)
            x = sc.sample(s, seed, 0.1, s.noise[0])[2].T
            matches = ((a[:, None] == x) | (a[:, None] == 0)).all(2) & (a != 0).any(1)[:, None]
            assert (matches.sum(1) <= 1).all() and (matches.sum(0) <= 1).all() and matches.sum() > 0.9 * sum(widths)
            orders.append(matches.int().argmax(1))
        assert not torch.equal(*orders)


def test_landscape_nt_xent_is_eq_9_and_its_gradient_by_hand_is_autograds():
    def plain(z, tau):  # from torch's cross_entropy; column i + B is the other view of column i
        views = z.shape[2]
        logits = (z.mT @ z / tau).masked_fill(torch.eye(views, dtype=torch.bool), -torch.inf)
        positives = torch.arange(views).roll(views // 2).expand(len(z), -1)
        return F.cross_entropy(logits, positives, reduction="none").mean(1)

    for R, B, kind, tolerance in (3, 4, torch.float64, 1e-12), (5, 512, torch.float32, 2e-6):  # two replicas at a time
        z = F.normalize(torch.randn(R, 5, 2 * B, dtype=kind), dim=1).requires_grad_()
        tau, weights = torch.linspace(0.1, 1, R, dtype=kind).view(R, 1, 1), torch.randn(R, dtype=kind)
        ours, theirs = sc.NTXent.apply(z, tau), plain(z, tau)
        assert torch.allclose(ours, theirs, atol=tolerance)
        mine, autograds = (torch.autograd.grad((weights * loss).sum(), z)[0] for loss in (ours, theirs))
        assert torch.allclose(mine, autograds, atol=tolerance)
    z, by_loop = z[0, :, :8], 0
    for i in range(8):
        similarity = [math.exp(float(z[:, i].detach() @ z[:, j].detach()) / 0.5) for j in range(8)]
        by_loop -= math.log(similarity[(i + 4) % 8] / (sum(similarity) - similarity[i])) / 8
    assert sc.NTXent.apply(z[None], torch.full((1, 1, 1), 0.5)).item() == pytest.approx(by_loop, abs=1e-6)


@pytest.mark.parametrize("factors", [
    dict(method="simclr"), dict(method="simclr", head="linear", batch_norm="no"), dict(method="simsiam", head="linear"),
    dict(method="simsiam", head="mlp", batch_norm="affine", activation="authors"), dict(method="noncl"),
    dict(method="simsiam", head="mlp", normalise="rows"), dict(method="noncl", layers=2, train_bias="no", bias=0.2),
    dict(method="simclr", head="linear", batch_norm="affine", activation="authors", bias=0.2),
    dict(method="noncl", head="linear", normalise="rows"), dict(method="noncl", normalise="columns", warm=1.0),
    dict(method="noncl", similarity="product", batch_norm="no", bias=0.1, train_bias="no"),
    dict(method="simsiam", similarity="product", head="linear", activation="relu", bias=0.1)])
def test_training_is_the_plain_algorithm(watched, factors):
    """Two epochs of SGD written out for one replica with torch modules: losses, stop-gradients, turns, projections."""
    s = landscape(n=40, **factors)
    start, end, views = watched(s)
    mlp, made = s.head == "mlp", [encoder for chain in start["networks"] for encoder in chain]
    layers = [nn.ParameterList(W[0].clone() for W in encoder.layers) for encoder in made]
    norms = [nn.BatchNorm1d(8, affine=s.batch_norm == "affine") for _ in made]
    thresholds, head = [nn.Parameter(torch.full((8, 1), s.bias)) for _ in made], nn.Linear(8, 8)
    head.weight.data, head.bias.data = torch.randn(8, 8, generator=sc.generator(1, 9)) / 72**0.5, torch.zeros(8)

    def encode(i, h):  # h (K, B)
        for V in layers[i]:
            h = V @ h
        h, b = norms[i](h.T).T if s.batch_norm != "no" else h, thresholds[i]
        return {"srelu": (h - b).relu() - (-h - b).relu(), "relu": (h - b).relu(),
                "authors": h.relu() - (-h - 2 * b).relu()}[s.activation]

    embed = lambda a: encode(1, encode(0, a)) if mlp else encode(0, a)
    predict = lambda h: h if s.head == "none" else head(h.T).T
    distance = lambda u, v: (F.normalize(u, dim=0) - F.normalize(v.detach(), dim=0)).square().sum(0).mean()  # Eq. (4)
    if s.similarity == "product":
        distance = lambda u, v: 2 - 2 * (u * v.detach()).sum(0).mean()  # Eq. (6) to (8)
    for i, (a1, a2) in enumerate((a1[0], a2[0]) for a1, a2 in views):
        trained = [i % 2] if s.method == "noncl" else range(1 + mlp)  # in turn, over the end of an epoch too
        if s.method == "simclr":
            z = F.normalize(torch.cat([predict(embed(a1)), predict(embed(a2))], 1), dim=0).T
            logits = (z @ z.T / s.temperature[0]).fill_diagonal_(-torch.inf)
            loss = F.cross_entropy(logits, torch.arange(32).roll(16))
        elif s.method == "simsiam":
            loss = (distance(predict(embed(a1)), embed(a2)) + distance(predict(embed(a2)), embed(a1))) / 4
        else:
            loss = distance(predict(encode(i % 2, a1)), encode(1 - i % 2, a2))
        free = [p for i in trained for p in (*layers[i], *norms[i].parameters(), thresholds[i])] + [*head.parameters()]
        for V, gradient in zip(free, torch.autograd.grad(loss, free, allow_unused=True)):
            if gradient is not None and (V.shape != (8, 1) or s.train_bias == "yes"):  # (8, 1): a threshold
                V.data -= 0.1 * gradient
        for i in trained:
            thresholds[i].data.clamp_(min=0 if s.activation == "srelu" else -math.inf)
            for V in layers[i] if s.normalise != "none" and not (mlp and i == 1) else ():
                V.data = F.normalize(V.data, dim=1 if s.normalise == "rows" else 0)
    pairs, trained = [*zip(end["head"], head.parameters())], [encoder for chain in end["networks"] for encoder in chain]
    for own, old, plain, norm, b in zip(trained, made, layers, norms, thresholds):
        pairs += [*zip(own.layers, plain), *zip(own.affine, norm.parameters()), (own.b, b)]
        assert not torch.allclose(own.layers[0], old.layers[0], atol=1e-3)
    assert all(torch.allclose(V[0].squeeze(), U.squeeze(), atol=1e-5) for V, U in pairs)


@pytest.mark.parametrize("method,head", [("simclr", "linear"), ("simsiam", "mlp"), ("noncl", "linear")])
def test_a_replica_trains_the_same_alone_and_among_others(method, head):
    factors = dict(method=method, head=head, batch_norm="affine")
    replicas, curves = sc.train(landscape(**factors, seeds=3, sparsity=[0.1, 0.3], lr=[0.1, 0.3], keep=[0.5, 0.8]))
    assert len(replicas) == 24 and curves["min"].shape == (3, 24) and curves["epoch"].tolist() == [0, 1, 2]
    wanted = dict(sparsity=0.3, lr=0.3, keep=0.8)
    i = next(i for i, r in enumerate(replicas) if (wanted | {"seed": 2}).items() <= r.items())
    for name, alone in sc.train(landscape(**factors, seeds=2, **wanted))[1].items():
        assert name == "epoch" or np.allclose(curves[name][:, i], alone[:, 1], atol=1e-5, equal_nan=True), name


def test_every_factor_changes_the_run():
    base = dict(method="noncl", head="linear", warm=1.0, latents="iid", sparsity=0.2, d=5)
    other = dict(method="simclr", head="none", similarity="product", layers=2, batch_norm="affine", bias=0.5,
                 activation="authors", train_bias="no", normalise="rows", warm=2.0, warm_columns="aligned", seeds=2,
                 latents="authors", sparsity=0.5, masks="dependent", keep=0.9, noise=1.0, lr=0.5, epochs=3,
                 batch_size=8, n=80, p=14, d=4, m=9)
    assert set(other) | {"temperature"} == set(sc.FACTORS)
    run = lambda **more: [sc.train(landscape(**base | more))[1][key] for key in ("loss", "min")]
    same = lambda a, b: all(u.shape == v.shape and abs(u[-1] - v[-1]).max() < 1e-6 for u, v in zip(a, b))
    assert [name for name, value in other.items() if same(run(**{name: value}), run())] == []
    assert not same(run(method="simclr", temperature=0.5), run(method="simclr"))


def test_landscape_metrics_are_loops():
    W, M = torch.randn(2, 8, 12), torch.randn(2, 12, 4)
    best, separation = sc.max_cosine(W, M), sc.support_separation(W, M)
    for r, j in itertools.product(range(2), range(4)):
        cos = [[abs(float(F.cosine_similarity(w, m, dim=0))) for m in M[r].T] for w in W[r]]
        i = max(range(8), key=lambda i: cos[i][j])
        others = max(cos[i][k] for k in range(4) if k != j)
        assert best[r, j].item() == pytest.approx(cos[i][j], abs=1e-6)
        assert separation[r, j].item() == pytest.approx(cos[i][j] - others, abs=1e-5)
    spread = sc.spread(torch.stack([torch.ones(16, 5000), torch.randn(16, 5000)]))
    assert spread[0] < 1e-3 and spread[1] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("kind", ["random", "aligned", "covered"])
def test_warm_starts_are_the_features_plus_noise(watched, kind):
    s = landscape(method="noncl", warm=1.0, warm_columns=kind, p=400, d=10, m=25, seeds=20)
    M = torch.stack([sc.sample(s, seed, 0.1, 0.15)[0] for seed in range(1, 21)])  # (R, p, d)
    starts = [chain[0].layers[0].detach() for chain in watched(s)[0]["networks"]]  # (R, m, p)
    columns = [(W @ M).argmax(2) for W in starts]  # (R, m)
    noise = starts[0] - torch.stack([M_r.T[c] for M_r, c in zip(M, columns[0])])
    assert noise.std().item() == pytest.approx(400**-0.5, rel=0.05) and torch.equal(*columns) == (kind == "aligned")
    missing = [any(len(own[r].unique()) < 10 for own in columns) for r in range(20)]
    assert ["feature" * is_missing for is_missing in missing] == [r["uncovered"] for r in sc.train(s)[0]]
    assert any(missing) == (kind != "covered")


def test_paper_setting_is_the_papers():
    """--paper against the numbers of Section 4.2, the captions and Table 1."""
    paper = lambda name: [sc.setting(factors, {}, paper=True) for _, factors, _ in sc.EXPERIMENTS[name]]
    for name, s in [(name, s) for name in ("table1", *(f"fig{i}" for i in range(1, 8))) for s in paper(name)]:
        assert (s.n, s.batch_size, s.lr, s.epochs, s.keep, s.bias, s.seeds) == (1000, 512, [0.025], 8000, [0.5], 0, 5)
        assert (s.masks, s.similarity, s.temperature) == ("independent", "cosine", [0.2])
        assert (s.p, s.d, s.m) == ((20, 20, 20) if name == "fig7" else (50, 10, 50))
        assert s.noise[0] == pytest.approx(0.1517 if s.d == 10 else 0.0865, abs=1e-4)
        assert (s.batch_norm == "no") == (s.latents == "onehot-plus") == (name == "fig1")
        assert s.lr[0] * s.epochs * s.steps == sc.BUDGET[s.method] == (400 if s.method == "simsiam" else 200)
        assert s.sparsity == ([0.1, 0.3] if name in ("table1", "fig2", "fig3") else [0.1])
    assert [(s.head, s.activation) for s in paper("table1")] == [
        ("linear", "srelu"), ("linear", "authors"), ("linear", "srelu"), ("mlp", "authors")]
    assert [(s.head, s.warm) for i in (4, 5, 6, 7) for s in paper(f"fig{i}")[:1]] == [
        ("none", [1]), ("linear", [1]), ("linear", [None]), ("none", [1, 1.25, 1.5, 2])]
    assert 10 in sc.train(landscape(lr=5.0, epochs=12), records=2)[1]["epoch"]  # where lr × steps is 200


def test_landscape_results_are_complete(tmp_path, capsys):
    inside("sparse_coding.py --experiment table1 budget --epochs 2 --seeds 2 --device cpu --out", tmp_path / "run")
    out, found = capsys.readouterr().out, json.loads((tmp_path / "run" / "results.json").read_text())
    assert [r["experiment"] for r in found] == ["table1"] * 24 + ["budget"] * 16
    assert all(r["setting"] in out for r in found) and "low: at most 0.65" in out and "python look.py" in out
    row = next(r for r in found if r["setting"] == "SimSiam, sparsity 0.3" and r["statistic"] == "median")
    median = np.load(tmp_path / "run" / "curves.npz")["table1/SimSiam, sparsity 0.3/median"]  # (T, seeds)
    assert (row["paper"], row["seeds"], row["lr_times_steps"]) == (0.45, 2, 0.5 * 2 * 8) and median.shape == (3, 2)
    assert row["end_mean"] == pytest.approx(median[-1].mean(), abs=1e-6)
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"config.json", "results.json", "curves.npz"}
    assert "this run is complete" in refused("sparse_coding.py --resume", tmp_path / "run")
    inside("sparse_coding.py --experiment table1 --epochs 1 --temperature 0.05 --out", tmp_path / "other")
    found = json.loads((tmp_path / "other" / "results.json").read_text())
    assert all(r["paper"] is None and r["verdict"] is None for r in found)  # not the paper's setting


def test_a_killed_landscape_run_ends_like_an_uninterrupted_one(tmp_path):
    flags = "--experiment fig2 --epochs 24 --seeds 2 --n 300 --batch-size 128 --device cpu --out".split()
    inside("sparse_coding.py", *flags, tmp_path / "whole")
    often = "import sys, common, sparse_coding as sc; sc.REMEMBER = 0; common.launch(lambda: sc.main(sys.argv[1:]))"
    process = subprocess.Popen([sys.executable, "-c", often, *flags, tmp_path / "run"], cwd=HERE)
    memory = tmp_path / "run" / "memory" / "fig2-1-cpu.pt"  # of the second of two programs
    while not memory.exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL and 0 < max(common.load_checkpoint(memory)["curves"]) < 24
    inside("sparse_coding.py --resume", tmp_path / "run")
    assert (tmp_path / "run" / "results.json").read_bytes() == (tmp_path / "whole" / "results.json").read_bytes()
    ours, theirs = (np.load(tmp_path / run / "curves.npz") for run in ("run", "whole"))
    assert ours.files == theirs.files and all(np.array_equal(ours[k], theirs[k], equal_nan=True) for k in ours.files)


@pytest.mark.parametrize("command,message", {
    "--resume nowhere": "nowhere is no run that sparse_coding.py can go on with",
    "--d 60": "--d 60 orthonormal features need at least as many observed dimensions; --p is 50",
    "--keep 0.5 1.2": "--keep: 1.2 is not between",
    "--warm-columns aligned": "--warm-columns needs a warm start",
    "--experiment table1 --d 1": "Pr 0.3 asks for 2 active features of --d 1",
    "--experiment table1 --similarity product": "--similarity product: --method simclr has cosines",
    "--experiment fig1 --activation authors": "--activation authors is srelu with --batch-norm no",
    "--experiment fig8": "invalid choice: 'fig8'",
    "--experiment fig1 --epochs 2 --lr 1e30 --out {tmp}": "the loss is not finite in epoch 1",
}.items())
def test_bad_landscape_flags_end_in_one_line(command, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused("sparse_coding.py " + command.format(tmp=tmp_path))
    assert {p.name for p in tmp_path.iterdir()} <= {"config.json", "memory"}  # nothing half-written


class TestLandscapeGate:
    """sparse_coding.py at its fast setting reaches the paper's conclusions, and ours about its figure 4."""

    end = staticmethod(lambda **factors: sc.train(sc.setting(factors, {}, paper=False))[1]["min"][-1].mean())

    def test_contrastive_finds_the_features_and_non_contrastive_does_not(self):
        assert self.end(**sc.SIMCLR) >= 0.85 and self.end(**sc.NONCL) <= 0.60

    def test_a_warm_start_lasts_where_the_networks_are_aligned(self):
        warm = dict(sc.NONCL, warm=1.0, epochs=78, seeds=5)  # lr × steps 156
        assert self.end(**warm, warm_columns="aligned") >= 0.9 and self.end(**warm, warm_columns="random") <= 0.72


# ---------------------------------------------------------------------------------------------------- tools/theory.py
def masks(d, keep):
    """Every mask of d entries and its probability."""
    return [(D, math.prod(keep if bit else 1 - keep for bit in D)) for D in itertools.product((0.0, 1.0), repeat=d)]


def test_theorem_1_losses_are_their_definitions():
    d, keep, beta = 3, 0.4, 2.0
    for W in F.normalize(torch.randn(4, d, d, dtype=torch.float64), dim=1):
        S = (F.relu(W).mT @ F.relu(W)).tolist()  # ⟨relu(W D1 e_i), relu(W D2 e_j)⟩ where both masks keep the entry
        six, shared, literal = 0, 0, 0
        for i, (D1, p1), (D2, p2) in itertools.product(range(d), masks(d, keep), masks(d, keep)):
            logits = [beta * D1[i] * D2[j] * S[i][j] for j in range(d)]
            mean = sum(keep * math.exp(beta * D1[i] * S[i][j]) + 1 - keep for j in range(d))  # a mask per negative
            six += p1 * p2 * (2 - 2 * D1[i] * D2[i] * S[i][i]) / d
            shared -= p1 * p2 * (logits[i] - math.log(sum(map(math.exp, logits)))) / d
            literal -= p1 * p2 * (logits[i] - math.log(mean)) / d
        ours = theory.loss_6(W, keep), theory.loss_9(W, keep, beta), theory.loss_9(W, keep, beta, literal=True)
        assert [loss.item() for loss in ours] == pytest.approx([six, shared, literal], abs=1e-9)


def test_theorem_2_closed_form():
    lrs = (torch.rand(40) * 0.3).tolist()
    M = torch.linalg.qr(torch.randn(15, 6, dtype=torch.float64))[0]
    Wo, Wt = torch.randn(2, 9, 15, dtype=torch.float64)
    C1, C2, printed = theory.closed_form(lrs, 0.95, 0.6, 0.4, 0.2)
    for end, start in zip(theory.linear_descent(Wo, Wt, M, lrs, 0.95, 0.6, 0.4, 0.2), (Wo, Wt)):
        assert (end @ M - (C1 * start + C2 * (Wo + Wt)) @ M).abs().max() < 1e-10
        assert (end @ M - (C1 * start + printed * (Wo + Wt)) @ M).abs().max() > 1e-3
    z = (torch.rand(200_000, 6) < 0.4).double() * (1 - 2 * torch.randint(0, 2, (200_000, 6)))  # draws: Assumption 1
    x, (D1, D2) = z @ M.T + 0.2 * torch.randn(200_000, 15).double(), (torch.rand(2, 200_000, 15) < 0.6).double()
    step = theory.linear_descent(Wo, Wt, M, [0.1], 0.95, 0.6, 0.4, 0.2)[0]
    assert (step - (0.95 * Wo + 0.2 * Wt @ ((D2 * x).T @ (D1 * x)) / len(x))).abs().max() < 0.01


@pytest.mark.parametrize("bias,keep,kappa", [(0.5, 0.6, 0.5), (0.3, 0.9, 0.8), (0.5, 0.9, 0.9)])
def test_theorem_3_converges_to_I_below_its_bound_and_not_above(bias, keep, kappa):
    ratio, eye = kappa * keep**2 / (1 - bias), torch.eye(3, dtype=torch.float64)
    assert theory.growth(bias, keep, kappa) == pytest.approx(ratio, rel=0.01)
    W = [eye + (torch.rand(3, 3, dtype=torch.float64) - 0.5) / 15 for _ in range(2)]  # entries off by 1/(10 d)
    for half in range(150 if 0.5 < ratio < 1 else 40):
        W[half % 2] = theory.half_round(W[half % 2], W[1 - half % 2], bias, keep, kappa)
    errors = [(U - eye).abs().max() for U in W]
    assert max(errors) < 1e-4 if ratio < 1 else min(errors) > 0.1


def test_theory_says_what_holds_and_draws_it(tmp_path):
    inside("tools/theory.py --out", tmp_path)
    found = [r["setting"].split()[0] + " " + r["verdict"] for r in json.loads((tmp_path / "results.json").read_text())]
    assert found == ["1(a) holds"] * 2 + ["1(b) holds"] * 3 + ["1(b) fails", "2 holds", "2 fails", "3 holds", "3 fails"]
    assert (tmp_path / "theory.png").exists()
