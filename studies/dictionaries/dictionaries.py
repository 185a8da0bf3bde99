"""How much of a class consistency have the dimensions learnt, and how much has any sparse code?

    python studies/dictionaries/dictionaries.py runs/<run> [--simclr runs/<run>] [--sae runs/<run>]

It measures a finished run on its test images, and other dictionaries in its place:

    trained            the run's own dimensions
    untrained          random directions of its features h, as interpret.py has them
    rotated            random directions of its embedding z, not orthogonal: other axes
    simclr             random directions of the features of a run of simclr.py
    random_backbone    random directions of the features of a network that has learnt nothing
    sae                the units of a run of sae.py, a dictionary trained on the run's features

Random directions are as many as the run's dimensions, and as active: as many entries per image; of
a dense run, each half-dimension on 1 % of the images. Each number is the mean of five draws.

A backbone that has learnt nothing has the run's architecture and image size, and random weights,
others in each draw. Its BatchNorm has the means and variances of 500 training images, which went
forward once in train mode, without a gradient. An autoencoder is as active as sae.py's --topk says.

dictionaries.json, in the run's folder, and "dictionaries" in its record have of each dictionary
    dictionary_<name>_entries, _live_dims                   active per image; active on any image
    dictionary_<name>_cons, _adjusted, _f1, _best_f1        of the classes, in % (interpret.py)
    dictionary_<name>_top_<s>_entries, _adjusted, _best_f1  with the s strongest entries per image
    dictionary_<name>_on_<p>_...                            the first two lines, of the p % of the
                                                            images where a dimension is strongest
    dictionary_<name>_on_<p>_full_dims, _full_adjusted      of dimensions with so many images alone
s: powers of two below an image's entries that are not 0 (of a dense run K), and "all". The
strongest entries of a dense run are those of largest |z|, and +k and -k are two; where z is never
negative there is no -k. Backgrounds have "background_" before cons, and so on. A sparse z must not
be negative.
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "studies")]
import records  # noqa: E402

import common  # noqa: E402
import interpret  # noqa: E402
import sae  # noqa: E402

SEEN = 500  # training images from which a random backbone's BatchNorm has its statistics
FIRST_SEED = 1000  # of random backbones: no training begins at such weights
OF_A_CURVE = "adjusted", "best_f1"
RULES = {"on_1_": "top:0.01", "on_3_": "top:0.03"}  # prefix of numbers → what is active in them
COLUMNS = {"Cons.": "cons", "adj.": "adjusted", "F1": "f1", "best F1": "best_f1"}
LABELS = {"": "class", "background_": "background"}


# -------------------------------------------------------------------------- a dictionary's numbers
def numbers_of(a: interpret.Activations, labels: dict[str, interpret.Truth]) -> dict[str, float]:
    """Active entries of an image, live dimensions, and COLUMNS of each label."""
    active = interpret.activity(a)
    numbers = {"entries": active["entries"], "live_dims": active["live_dims"]}
    for prefix, label in labels.items():
        columns = interpret.of_label(a, label.y, label.chance)
        found = interpret.label_numbers(a, label.y, columns)
        for key in COLUMNS.values():
            numbers[prefix + key] = found[key]
    return numbers


def of_full(a: interpret.Activations, rule: str, labels: dict[str, interpret.Truth]) -> dict:
    """How many dimensions have all images that a rule "top:<share>" allows; their adj., in %."""
    full = a.n == interpret.count_of(interpret.share_of(rule), a.N)
    numbers = {"full_dims": int(full.sum())}
    for prefix, label in labels.items():
        adjusted = interpret.of_label(a, label.y, label.chance)["adjusted"]
        numbers[f"{prefix}full_adjusted"] = interpret.mean(100 * adjusted[full])
    return numbers


def sizes_of(z, rule: str, halves: bool) -> interpret.Entries:
    """The positive entries of z (N, K); with `halves` (N, 2K), +k and -k apart."""
    entries = interpret.entries_of(z)
    if rule == "nonzero":
        return entries
    return interpret.by_sign(entries, halves)


def ranks_in_images(entries: interpret.Entries) -> np.ndarray:
    """The place of each entry among those of its image, from 0, the strongest first: (nnz,)."""
    order = np.lexsort((-entries.values, entries.images))
    n = np.bincount(entries.images, minlength=entries.N)
    first = np.repeat(interpret.starts(n)[:-1], n)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - first
    return ranks


def levels_of(entries: interpret.Entries) -> dict[str, int]:
    """Name → s: powers of two below the active entries of an image, on average; then all."""
    per_image = len(entries.images) / entries.N
    levels = {}
    s = 1
    while s < per_image:
        levels[str(s)] = s
        s *= 2
    levels["all"] = entries.K
    return levels


def curve(entries: interpret.Entries, levels: dict[str, int], labels) -> dict[str, float]:
    """top_<s>_entries, and OF_A_CURVE of each label, of the s strongest entries of each image."""
    ranks = ranks_in_images(entries)
    numbers = {}
    for name, s in levels.items():
        strongest = interpret.lists(entries.take(ranks < s))
        found = numbers_of(strongest, labels)
        wanted = ["entries"]
        for prefix in labels:
            wanted += [prefix + key for key in OF_A_CURVE]
        for key in wanted:
            numbers[f"top_{name}_{key}"] = found[key]
    return numbers


def measure(z, rule: str, halves: bool, levels: dict[str, int], labels) -> dict[str, float]:
    """The numbers of codes z (N, K), which are active by a rule; their curve; by RULES."""
    active = interpret.activate(z, rule, halves)
    entries = sizes_of(z, rule, halves)
    numbers = numbers_of(active, labels) | curve(entries, levels, labels)
    for prefix, rule_of_share in RULES.items():
        strongest = interpret.activate(z, rule_of_share, halves)
        of_share = numbers_of(strongest, labels) | of_full(strongest, rule_of_share, labels)
        numbers |= interpret.prefixed(prefix, of_share)
    return numbers


# -------------------------------------------------------------------------------- the dictionaries
@torch.no_grad()
def random_backbone(run: argparse.Namespace, images: Tensor, seed: int) -> nn.Module:
    """A backbone of random weights, whose BatchNorm has the statistics of SEEN of the images.

    run: settings with arch, image_size and perhaps zero_init_residual; images: (M, 3, H, W) uint8
    """
    torch.manual_seed(seed)
    zero_init = getattr(run, "zero_init_residual", False)
    backbone, _ = common.resnet(run.arch, run.image_size, zero_init)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # the last batch alone counts
    seen = torch.randperm(len(images))[:SEEN]
    backbone.train()
    backbone(common.eval_view(images[seen], run.image_size))
    return backbone.eval()


def random_features(folder: Path, data_root: str | None, N: int) -> list[np.ndarray]:
    """h (N, d) of the test images of the run in a folder, by a random backbone for each draw.

    BadInput where there are not N of them.
    """
    run = common.read_run(folder)
    data = common.load_data(run.dataset, data_root or run.data_root, limit=run.limit)
    n = len(data.x_test)
    common.need(n == N, f"{data.name} has {n} test images, {folder} has embeddings of {N}")
    drawn = []
    for draw in common.progress(range(interpret.DRAWS), "random backbones"):
        backbone = random_backbone(run, data.images, FIRST_SEED + draw)
        h = sae.representations(backbone, data.x_test, run.image_size, "cpu")
        drawn.append(h.numpy())
    return drawn


def read_other(folder: Path, own: interpret.Embedding) -> interpret.Embedding:
    """The embedding of another run; BadInput unless it is of the same test images."""
    other = interpret.read_embedding(folder)
    for prefix, y in own.labels.items():
        same = np.array_equal(other.labels.get(prefix), y)
        common.need(same, f"{folder} has other test images than {own.title}")
    return other


def read_simclr(folder: Path, own: interpret.Embedding) -> interpret.Embedding:
    """The embedding of a run of simclr.py; BadInput for another method's or of other images."""
    method = common.read_run(folder).method
    common.need(method == "simclr", f"{folder} is a run of {method}.py; --simclr wants simclr.py's")
    return read_other(folder, own)


def read_sae(folder: Path, own: interpret.Embedding) -> interpret.Embedding:
    """The codes of a run of sae.py; BadInput unless they are of the run's own features."""
    codes = read_other(folder, own)
    same = codes.features.shape == own.features.shape
    same = same and np.allclose(codes.features, own.features, rtol=0.01, atol=0.01)
    common.need(same, f"{folder} is not what sae.py makes of {own.title}: it has other features")
    return codes


def dictionaries(folder: Path, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Name → numbers of each dictionary of the run in a folder. Raises BadInput.

    args: simclr and sae, folders or None; data_root
    """
    own = interpret.read_embedding(folder)
    common.need(own.labels, f"{folder} has no labels, so no dimension can agree with them")
    rule = interpret.rule_for(own.z)
    negative = rule == "nonzero" and interpret.has_signs(own.z)
    common.need(not negative, f"{folder} has a sparse embedding with negative entries")
    sources = {
        "untrained": [own.features] * interpret.DRAWS,
        "rotated": [own.z] * interpret.DRAWS,
    }
    if args.simclr:
        sources["simclr"] = [read_simclr(args.simclr, own).features] * interpret.DRAWS
    codes = None
    if args.sae:
        codes = read_sae(args.sae, own)
    sources["random_backbone"] = random_features(folder, args.data_root, own.N)

    labels = interpret.truths(own.labels)
    trained = interpret.activate(own.z, rule)
    halves = trained.halves
    levels = levels_of(sizes_of(own.z, rule, halves))
    per_image = None  # the rule says how active a direction is
    if rule == "nonzero":
        per_image = max(1, round(len(trained.images) / own.N))

    found = {"trained": measure(own.z, rule, halves, levels, labels)}
    for name, drawn in sources.items():
        of_draws = []
        for seed, vectors in enumerate(common.progress(drawn, f"{name}, draws")):
            z = interpret.random_dictionary(vectors.astype(np.float32), own.K, seed, per_image)
            of_draws.append(measure(z, rule, halves, levels, labels))
        found[name] = interpret.average(of_draws)
    if codes:
        found["sae"] = measure(codes.z, "nonzero", False, levels, labels)  # no code is negative
    return found


# ------------------------------------------------------------------------------------------ tables
def tables(found: dict[str, dict[str, float]]) -> str:
    """The numbers of dictionaries, and adj. / best F1 of their strongest entries per image."""
    cell = interpret.format_number
    # The s of the keys: of "top_1_entries", "top_2_entries", ..., "top_all_entries".
    names = re.findall(r"top_(\w+?)_entries", " ".join(found["trained"]))
    whole = [["dictionary", "active", "live", *COLUMNS]]
    parts = [["adj. / best F1", *names]]
    for prefix, label in LABELS.items():
        if prefix + "cons" not in found["trained"]:
            continue
        for name, numbers in found.items():
            title = f"{label}: {name}"
            row = [title, cell(numbers["entries"], 1), cell(numbers["live_dims"], 0)]
            row += [cell(numbers[prefix + key], 1) for key in COLUMNS.values()]
            whole.append(row)
            row = [title]
            for s in names:
                pair = [cell(numbers[f"top_{s}_{prefix}{key}"], 1) for key in OF_A_CURVE]
                row.append(" / ".join(pair))
            parts.append(row)
    text = "With each image's strongest entries alone:"
    return f"{common.markdown(whole)}\n\n{text}\n\n{common.markdown(parts)}"


def keep(folder: Path, found: dict[str, dict[str, float]]) -> None:
    """Write dictionaries.json into a run's folder and, where it is on record, into its record."""
    numbers = {}
    for name, of_dictionary in found.items():
        numbers |= interpret.prefixed(f"dictionary_{name}_", of_dictionary)
    common.write_json(folder / "dictionaries.json", numbers)
    records.add(folder, "dictionaries", numbers)


# ------------------------------------------------------------------------------------- the program
def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="dictionaries.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    add("runs", nargs="+", type=Path, help="folders of runs")
    add("--simclr", type=Path, metavar="RUN", help="a run of simclr.py, on the same images")
    add("--sae", type=Path, metavar="RUN", help="a run of sae.py, on the features of the run")
    add("--data-root", help="folder of the data sets (default: the run's)")
    args = flags.parse_args(argv)
    one = len(args.runs) == 1
    common.need(one or not args.sae, "--sae is of one run's features: give this run alone")
    for folder in args.runs:
        found = dictionaries(folder, args)
        keep(folder, found)
        print(f"{folder}\n\n{tables(found)}\n")


if __name__ == "__main__":
    common.launch(main)
