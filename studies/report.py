"""Bring the tables of README.md and of the pages in studies/ in line with the records.

    python studies/report.py            rewrite the tables
    python studies/report.py --check    change nothing; exit code 1 if a table differs

A row whose label links to a run of images, [NCL](ncl/records.jsonl#shapes-ncl), shows the mean over
its seeds, or over those in a column "seeds"; #shapes-ncl-seeds1-4 and #shapes-ncl-seed1 are these
seeds alone. A label with two links shows the mean of the differences by seed ± half its 95 %
t-interval, with more pairs of links of all differences together; a heading "a − b" does the same
within a run. COLUMNS says what a heading stands for. Where a heading
links to a run of sparse_coding.py, a row's label is an experiment and a setting as that program
names them, or "experiment: setting − another": the differences by seed, "− start" from its own
start. n, the number of seeds, is filled too. Other cells stay.
"""

import argparse
import functools
import re
import sys
from pathlib import Path

import numpy as np
import records
from records import ROOT, common, interpret, shapes  # of the folder above
from runs import progress

# ---------------------------------------------------------------------- what the headings stand for
COLUMNS = {  # heading: numbers of a record, {key:format}; {a-b:format} is the number a less b
    "LP@1": "{lp1:.1f}",
    "LP@1 of z": "{lp1_embedding:.1f}",
    "5-NN": "{knn5:.1f}",
    "5-NN of z": "{knn5_embedding:.1f}",
    "P@10": "{p_at_10:.1f}",
    "top-1": "{top1:.1f}",
    "seconds": "{seconds_train:.0f}",
    # of dimensions
    "Act.": "{act:.3f}",
    "active": "{entries:.1f}",
    "live": "{live_dims:.0f}",
    "dead": "{dead_dims:.0f} %",
    "below 0.1 %": "{rare_dims:.0f}",
    "Cons.": "{cons:.1f}",
    "by chance": "{cons_by_chance:.1f}",
    "Cons., shuffled": "{shuffled_cons:.1f}",
    "above chance": "{cons-cons_by_chance:.1f}",
    "weighted": "{cons_weighted:.1f}",
    "adj.": "{adjusted:.1f}",
    "F1": "{f1:.1f}",
    "best F1": "{best_f1:.1f}",
    "adj. of background": "{background_adjusted:.1f}",
    "Cons. of background": "{background_cons:.1f}",
    "bits": "{bits:.3f}",
    "H_s": "{entropy:.2f}",
    "H_s, shuffled": "{shuffled_entropy:.2f}",
    "Corr.": "{corr:.3f}",
    "SEPIN@10": "{sepin_10:.3f}",
    "SEPIN, all": "{sepin_all:.4f}",
    "MonoScore": "{mono:.3f}",
    "MonoScore by SimCLR": "{mono_simclr:.3f}",
    "φ": "{phi:.1f}",
    "AP": "{ap:.1f}",
    "1-probe": "{probe_1:.1f}",
    "2-probe": "{probe_2:.1f}",
    "4-probe": "{probe_4:.1f}",
    "8-probe": "{probe_8:.1f}",
    "stability / by chance": "{stability:.2f} / {stability_chance:.2f}",
    # of one method
    "gates open": "{open:.2f}",
    "indicator": "{spread:.2f}",
    "aimed at": "{expected_act:.3f}",
    "explained": "{explained_variance:.1%}",
    "‖W‖₂,₁": "{l21:.3g}",
    "unused": "{unused_columns:.0%}",
    "rank of h / z": "{rank_representation:.1f} / {rank_embedding:.1f}",
    "ratio of h / z": "{min_max_representation:.1f} / {min_max_embedding:.3g}",
    # of captions
    "image → text, R@1 / R@5": "{text_r1:.1f} / {text_r5:.1f}",
    "text → image, R@1 / R@5": "{image_r1:.1f} / {image_r5:.1f}",
    "zero-shot object": "{zero_shot:.1f}",
    "zero-shot background": "{background_zero_shot:.1f}",
    "Cons. of captions": "{text_cons:.1f}",
    "Act. of captions": "{text_act:.3f}",
    "nameable / by chance": "{nameable:.1f} / {nameable_chance:.1f}",
    "by 20 images / by chance": "{nameable_top:.1f} / {nameable_top_chance:.1f}",
    # of fine-tuning on a share of the labels
    "1 %": "{finetune_0.01_top1:.1f}",
    "10 %": "{finetune_0.1_top1:.1f}",
    "100 %": "{finetune_1.0_top1:.1f}",
    "1 % from scratch": "{scratch_0.01_top1:.1f}",
    "10 % from scratch": "{scratch_0.1_top1:.1f}",
    "100 % from scratch": "{scratch_1.0_top1:.1f}",
    "1 % − scratch": "{finetune_0.01_top1-scratch_0.01_top1:.1f}",
    "10 % − scratch": "{finetune_0.1_top1-scratch_0.1_top1:.1f}",
    "100 % − scratch": "{finetune_1.0_top1-scratch_1.0_top1:.1f}",
}
CHANGES = ["clean", "corrupted", "noise", "blur", "contrast", "brightness", "pixelation", "jpeg"]
SHIFTS = ["reversed", "unseen", "paired_as_trained", "paired"]
for name in CHANGES + SHIFTS:  # of tools/robustness.py
    COLUMNS[name] = f"{{h_{name}:.1f}} / {{z_{name}:.1f}}"
for name in ("corrupted", "unseen"):
    COLUMNS[f"{name} − clean"] = f"{{h_{name}-h_clean:.1f}} / {{z_{name}-z_clean:.1f}}"
for severity in range(1, 6):
    of_contrast = f"contrast_{severity}"
    COLUMNS[f"contrast, {severity}"] = f"{{h_{of_contrast}:.1f}} / {{z_{of_contrast}:.1f}}"
for name in shapes.BACKGROUNDS:
    COLUMNS[name] = f"{{dims_{name}:.0f}}, {{rate_{name}:.2f}}"
for share in interpret.SHARES:
    COLUMNS[f"≥ {100 * share:g} %"] = f"{{cons_{share}:.1f}}"
for m in (32, 64, 128):  # of tools/selection.py
    COLUMNS[f"P@10, {m} − all"] = f"{{p_at_10_top_{m}-p_at_10:.1f}}"
    COLUMNS[f"LP@1, {m} − all"] = f"{{lp1_top_{m}-lp1_embedding:.1f}}"
    COLUMNS[f"P@10, {m} − random"] = f"{{p_at_10_top_{m}-p_at_10_random_{m}:.1f}}"
    COLUMNS[f"LP@1, {m} − random"] = f"{{lp1_top_{m}-lp1_random_{m}:.1f}}"

LABELS = {"": "", "background ": "background_"}
# Beside interpret.py's controls. A dense run's are of half-dimensions, each on 1 % of the images:
# for its rows there are the columns with ", 1 %".
BESIDE = {"shuffled": "shuffled", "random head": "head", "rotated": "rotated"}
COMPARED = {  # a measure: its number, digits behind the point
    "Cons.": ("cons", 1),
    "adj.": ("adjusted", 1),
    "F1": ("f1", 1),
    "best F1": ("best_f1", 1),
    "AP": ("ap", 1),
    "φ": ("phi", 1),
    "bits": ("bits", 3),
    "H_s": ("entropy", 2),
    "1-probe": ("probe_1", 1),
    "2-probe": ("probe_2", 1),
    "4-probe": ("probe_4", 1),
    "8-probe": ("probe_8", 1),
}
for of_share, top in {"": "", ", 1 %": "top_"}.items():
    for of_label, prefix in LABELS.items():
        own = f"{top}{prefix}"
        COLUMNS[f"{of_label}adj. − random directions{of_share}"] = f"{{{own}lead:.1f}}"
        COLUMNS[f"{of_label}above 95 %{of_share}"] = f"{{{own}above:.0f}}"
        for measure, (key, digits) in COMPARED.items():
            for heading, control in BESIDE.items():
                less = f"{{{own}{key}-{control}_{prefix}{key}:.{digits}f}}"
                COLUMNS[f"{of_label}{measure} − {heading}{of_share}"] = less
    COLUMNS[f"MonoScore − random head{of_share}"] = f"{{{top}mono-head_mono:.3f}}"

# Of older runs, what dictionaries.py measured, which is gone. "Full" are dimensions that are active
# on as many images as the rule allows, 1 % of all.
TRAINED, UNTRAINED = "dictionary_trained_", "dictionary_untrained_"
FULL = "on_1_full_adjusted"
COLUMNS |= {
    "adj., trained": f"{{{TRAINED}adjusted:.1f}}",
    "F1, trained": f"{{{TRAINED}f1:.1f}}",
    "best F1, trained": f"{{{TRAINED}best_f1:.1f}}",
    "full adj., trained, 1 %": f"{{{TRAINED}{FULL}:.1f}}",
    "full adj., untrained, 1 %": f"{{{UNTRAINED}{FULL}:.1f}}",
    "full adj., trained − untrained, 1 %": f"{{{TRAINED}{FULL}-{UNTRAINED}{FULL}:.1f}}",
}

LINK = re.compile(r"\[[^]]*\]\(([^()#]*records\.jsonl)#([^()]+)\)")  # to a record: file, run
# A run, and its seeds where it names them.
SEEDS = re.compile(r"(.*?)(?:-seed(\d+)|-seeds(\d+)-(\d+))?")
NUMBER = re.compile(r"\{([\w.-]+):([^}]+)\}")  # {key:format}
# Student's t of 97.5 %, with 1, 2, … degrees of freedom.
T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160]
T += [2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060]
MINUS_ZERO = re.compile(r"[+−](0(\.0+)?)(?![\d.])")
TABLE = re.compile(r"((?:^\|.*\|\n){2,})", re.M)


# ---------------------------------------------------------------------------------------- a record
@functools.cache
def records_in(file: Path) -> list[dict]:
    """The records in a file, which a page asks for again and again."""
    return records.read(file)


def runs_in(file: Path, run: str) -> dict[int, dict]:
    """Seed → record of a run in a file."""
    return {record.get("seed", 0): record for record in records_in(file) if record["run"] == run}


def seeds_of(file: Path, name: str, wanted: str = "") -> dict[int, dict[str, float]]:
    """Seed → numbers of a run of images.

    file, name: where a link leads, "shapes-ncl", "shapes-ncl-seed1" or "shapes-ncl-seeds1-4"
    wanted: the seeds that the row names, such as "1, 2"; those of the link if it is empty
    Raises BadInput where a record is missing.
    """
    run, only, first, last = SEEDS.fullmatch(name).groups()
    found = runs_in(file, run)
    seeds = list(found)
    if only:
        seeds = [int(only)]
    if first:
        seeds = list(range(int(first), int(last) + 1))
    if re.search(r"\d", wanted):
        seeds = [int(seed) for seed in re.findall(r"\d+", wanted)]
    if not seeds or not set(seeds) <= set(found):
        of_seeds = wanted or "on record"
        raise common.BadInput(f"a table shows {name}, seeds {of_seeds}, which {file} lacks")
    by_chance = cons_by_chance(records.STUDIES)
    numbers = {}
    for seed in seeds:
        numbers[seed] = records.numbers(found[seed])
        if (run, seed) in by_chance:
            numbers[seed]["cons_by_chance"] = by_chance[run, seed]
    return numbers


@functools.cache
def random_cons(dataset: str) -> np.ndarray:
    """Expected Cons. in % of 1, 2, …, all test images of a data set, drawn at random."""
    return 100 * records.random_consistency(dataset)


@functools.cache
def cons_by_chance(studies: Path) -> dict[tuple[str, int], float]:
    """(run, seed) → the part of its Cons. that chance gives, in %.

    That is the mean over live dimensions of the Cons. of as many random test images, of the runs
    whose dimensions are kept.
    """
    found = {}
    if not (studies / "consistency" / "dimensions.csv").exists():
        return found
    for run, seeds in records.kept_dimensions("consistency").items():
        of_images = random_cons(run.partition("-")[0])
        for seed, columns in seeds.items():
            act = columns["act"]
            images = np.round(act[act > 0] * len(of_images)).astype(int)
            found[run, seed] = float(of_images[images - 1].mean())
    return found


# ------------------------------------------------------------------------------------------- a cell
def number(numbers: dict[str, float], key: str) -> float:
    """A number of a record; by the key "a-b" the number a less b. Raises KeyError."""
    first, _, second = key.partition("-")
    if second:
        return numbers[first] - numbers[second]
    return numbers[first]


def is_difference(key: str) -> bool:
    """Whether a number is a difference within a run: "a-b", or adj. less random directions'."""
    return "-" in key or key.endswith("lead")


def has(numbers: dict[str, float], key: str) -> bool:
    """Whether a record has a number, by the key "a-b" both."""
    return all(part in numbers for part in key.split("-"))


def values_of(key: str, label: str, linked: list[dict]) -> list[float]:
    """A number of each seed; of pairs A, B of records, A less B of each seed. Raises BadInput.

    linked: what seeds_of() says of each record that a row's label links to: one, or A, B, A, B, ...
    """
    values = []
    try:
        if len(linked) == 1:
            values += [number(numbers, key) for numbers in linked[0].values()]
        for a, b in zip(linked[::2], linked[1::2]):
            values += [number(a[seed], key) - number(b[seed], key) for seed in a]
    except KeyError as error:
        (missing,) = error.args
        lacks = f"no number {missing}"
        if isinstance(missing, int):
            lacks = f"no seed {missing}"
        text = f"a table shows {label}, but among these records there is {lacks}"
        raise common.BadInput(text) from error
    return values


def written(text: str) -> str:
    """A formatted number as the pages have it: with a minus sign and a space before %."""
    if text.startswith("-"):
        text = "−" + text[1:]
    return text.replace("%", " %")


def mean_and_spread(values: list[float], form: str) -> str:
    """The mean over seeds, with three or more ± their standard deviation."""
    text = f"{np.mean(values):{form}}"
    if len(values) > 2:
        text += f" ± {np.std(values, ddof=1):{form}}"
    return written(text)


def interval(differences: list[float]) -> float:
    """Half the 95 % t-interval of the mean of paired differences, of two pairs or more.

    Of more pairs than T has, a little wide: with its last value.
    """
    n = len(differences)
    t = T[min(n - 2, len(T) - 1)]
    return t * np.std(differences, ddof=1) / n**0.5


def mean_and_interval(differences: list[float], form: str) -> str:
    """The mean of paired differences, with its sign, ± half its 95 % interval."""
    text = f"{np.mean(differences):+{form}}"
    if len(differences) > 1:
        text += f" ± {interval(differences):{form}}"
    return written(text)


def image_cell(folder: Path, label: str, template: str, wanted: str = "") -> str | None:
    """The records that a row's label links to as a cell. None where no record has a number.

    folder: of the page; template: the cell with {key:format} for each number; wanted: the seeds, as
    in seeds_of().
    """
    linked = []
    for file, name in LINK.findall(label):
        linked.append(seeds_of(folder / file, name, wanted))
    cell = template
    for key, form in NUMBER.findall(template):
        if not any(has(numbers, key) for numbers in linked[0].values()):
            return None
        values = values_of(key, label, linked)
        if len(linked) > 1 or is_difference(key):
            text = mean_and_interval(values, form)
        else:
            text = mean_and_spread(values, form)
        cell = cell.replace(f"{{{key}:{form}}}", text)
    return MINUS_ZERO.sub(r"\1", cell)


@functools.cache
def curves_in(file: Path) -> dict[str, np.ndarray]:
    """The curves of a run of sparse_coding.py; none where there is no file."""
    if not file.exists():
        return {}
    return dict(np.load(file))


def curve_cell(file: Path, name: str, label: str) -> str | None:
    """A difference of minimum max-cosines as a cell. None where the first setting is not there.

    label: "experiment: setting − another", both at the end, or "experiment: setting − start", its
    end less its start. Raises BadInput where the other setting is not there.
    """
    curves = curves_in(file.with_name(f"{name}.npz"))
    experiment, _, settings = label.partition(": ")
    setting, _, other = settings.partition(" − ")
    curve = curves.get(f"{experiment}/{setting}/min")  # (T, seeds)
    if curve is None:
        return None
    if other == "start":
        less = curve[0]
    elif f"{experiment}/{other}/min" in curves:
        less = curves[f"{experiment}/{other}/min"][-1]
    else:
        raise common.BadInput(f"a table shows {label}, but {name}.npz has no {other}")
    cell = mean_and_interval(curve[-1] - less, ".2f")
    return MINUS_ZERO.sub(r"\1", cell).replace("0.", ".")


def short(value: float) -> str:
    """0.123 → .12"""
    return f"{value:.2f}".removeprefix("0")


def landscape_cell(file: Path, name: str, label: str) -> str | None:
    """A setting in a record of sparse_coding.py as a cell. None where it is not in the record.

    Maximum / median / minimum at the end; where there is the minimum of the max-cosine alone:
    at the start → at each point on record, ± over seeds. label: "experiment: setting".
    Raises BadInput where the record is missing.
    """
    found = runs_in(file, name)
    if not found:
        raise common.BadInput(f"a table shows {name}, which {file} lacks")
    (record,) = found.values()
    largest = median = start = ""
    smallest = []
    for row in record["results"]:
        if f"{row['experiment']}: {row['setting']}" != label:
            continue
        start = short(row["start"])
        end = short(row["end_mean"])
        if row["statistic"] == "max":
            largest = end
        elif row["statistic"] == "median":
            median = end
        elif row["statistic"] == "min":
            smallest.append(f"{end} ± {short(row['end_std'])}")
    if median:
        return f"{largest} / {median} / {smallest[-1]}"
    if smallest:
        return " → ".join([start] + smallest)
    return None


# ------------------------------------------------------------------------------------------ a table
def cells_of(line: str) -> list[str]:
    """A line of a Markdown table as its cells."""
    return [cell.strip() for cell in line[1:-1].split("|")]


def row_of(line: str, head: list[str], folder: Path) -> str:
    """A row of a table with the cells that records fill made anew; the line where it has none.

    n, the number of seeds or of pairs, is filled too: in a column of that name, and in a label's
    "n = 3".
    """
    old = cells_of(line)
    label = old[0]
    seeds = dict(zip(head, old)).get("seeds", "")
    row = [label]
    n = None
    if LINK.search(label) and any(heading in COLUMNS for heading in head):
        n = 0
        for file, name in LINK.findall(label)[::2]:  # of a pair A − B it is A's
            n += len(seeds_of(folder / file, name, seeds))
        row = [re.sub(r"\bn = \d+", f"n = {n}", label)]
    for heading, cell in zip(head[1:], old[1:]):
        of_landscape = LINK.search(heading)
        if heading == "n" and n:
            row.append(str(n))
        elif heading in COLUMNS and LINK.search(label):
            found = image_cell(folder, label, COLUMNS[heading], seeds)
            row.append(found or re.sub(r".*\d.*", "–", cell))
        elif of_landscape:
            file, name = of_landscape.groups()
            if " − " in label:
                found = curve_cell(folder / file, name, label)
            else:
                found = landscape_cell(folder / file, name, label)
            row.append(found or cell)
        else:
            row.append(cell)
    if row == old:
        return line
    return f"| {' | '.join(row)} |"


def remade(table: str, folder: Path) -> str:
    """A Markdown table as the records have it. folder: of the page"""
    first, ruler, *lines = table.splitlines()
    head = cells_of(first)
    rows = [row_of(line, head, folder) for line in lines]
    return "\n".join([first, ruler] + rows) + "\n"


def with_tables(text: str, folder: Path) -> str:
    """A page in a folder with its tables as the records have them."""
    pieces = TABLE.split(text)  # the second, fourth, … are the tables
    for i in progress(range(1, len(pieces), 2), "tables"):
        pieces[i] = remade(pieces[i], folder)
    return "".join(pieces)


# ----------------------------------------------------------------------------------------- the text
def decimals(text: str) -> set[str]:
    """The decimal numbers in a text, without leading zeros."""
    found = re.findall(r"(?<![\w.])\d{0,3}\.\d+", text)
    return {number.lstrip("0") for number in found}


def unchecked(text: str) -> list[str]:
    """The sentences of a page that quote a decimal number which none of its tables has."""
    blocks = re.compile(r"^\|.*$|^```[^`]*```$", re.M)  # rows of tables, code and output
    known = decimals("\n".join(blocks.findall(text)))
    prose = blocks.sub("\n", text)
    prose = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", prose)  # without code and addresses
    sentences = re.split(r"(?<=[.:;)*])\s+(?=[A-Z*(])|\n\n+|\n(?=[-#\d])", prose)
    found = []
    for sentence in sentences:
        if decimals(sentence) - known:
            found.append(" ".join(sentence.split()))
    return found


# -------------------------------------------------------------------------------------- the program
def pages() -> list[Path]:
    """README.md, studies/README.md and the questions' pages."""
    of_questions = sorted(records.STUDIES.glob("*/README.md"))
    return [ROOT / "README.md", records.STUDIES / "README.md"] + of_questions


def bring_in_line(page: Path, check: bool) -> bool:
    """Rewrite a page's tables, unless `check`, and say what differs; whether anything does."""
    name = page.relative_to(ROOT)
    old = page.read_text(encoding="utf-8")
    new = with_tables(old, page.parent)
    known = set(old.splitlines())
    for line in new.splitlines():
        if line not in known:
            print(f"{name}, by the records: {line}")
    for sentence in unchecked(new):
        print(f"{name}, in no table: {sentence}")
    if not check:
        page.write_text(new, encoding="utf-8")
    return old != new


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="report.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 if a table differs"
    )
    args = flags.parse_args(argv)
    differs = False
    for page in pages():
        if bring_in_line(page, args.check):
            differs = True
    if args.check:
        sys.exit(int(differs))


if __name__ == "__main__":
    common.launch(main)
