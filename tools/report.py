"""Bring the tables of README.md and results/README.md in line with the records in results/.

    python tools/report.py            rewrite the tables; with matplotlib draw background-rates.png
    python tools/report.py --check    change nothing; exit code 1 if a table differs

A row whose label links to a record of an image run shows the mean over its seeds, or over those in
a column "seeds"; one with two links shows the difference, by seed; COLUMNS says what a heading
stands for. Where a heading links to a record of sparse_coding.py, a row's label is an experiment
and a setting as that program names them. Other cells stay. The picture is in assets/.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402
import interpret  # noqa: E402
import shapes  # noqa: E402

RESULTS = ROOT / "results"
PAGES = ROOT / "README.md", ROOT / "results" / "README.md"
TOOLS = "finetune", "robustness", "selection", "words", "stability"  # <tool>.json, in a record

# ---------------------------------------------------------------------- what the headings stand for
COLUMNS = {  # heading: numbers of a record, {key:format}
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
    "weighted": "{cons_weighted:.1f}",
    "adj.": "{adjusted:.1f}",
    "Cons. of background": "{background_cons:.1f}",
    "bits": "{bits:.3f}",
    "H_s": "{entropy:.2f}",
    "Corr.": "{corr:.3f}",
    "SEPIN@10": "{sepin_10:.3f}",
    "MonoScore": "{mono:.3f}",
    "MonoScore by SimCLR": "{mono_simclr:.3f}",
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
    "tuned on 1 % / 10 %": "{finetune_0.01_top1:.1f} / {finetune_0.1_top1:.1f}",
    "1 %": "{finetune_0.01_top1:.1f}",
    "10 %": "{finetune_0.1_top1:.1f}",
    "100 %": "{finetune_1.0_top1:.1f}",
    "1 % from scratch": "{scratch_0.01_top1:.1f}",
    "10 % from scratch": "{scratch_0.1_top1:.1f}",
    "100 % from scratch": "{scratch_1.0_top1:.1f}",
}
CHANGES = ["clean", "corrupted", "noise", "blur", "contrast", "brightness", "pixelation", "jpeg"]
SHIFTS = ["reversed", "unseen", "paired_as_trained", "paired"]
for name in CHANGES + SHIFTS:  # of tools/robustness.py
    COLUMNS[name] = f"{{h_{name}:.1f}} / {{z_{name}:.1f}}"
for name in shapes.BACKGROUNDS:
    COLUMNS[name] = f"{{dims_{name}:.0f}}, {{rate_{name}:.2f}}"
for share in interpret.SHARES:
    COLUMNS[f"≥ {100 * share:g} %"] = f"{{cons_{share}:.1f}}"
for kind in ("top", "random"):  # of tools/selection.py
    for m in (32, 64, 128):
        COLUMNS[f"P@10, {kind} {m}"] = f"{{p_at_10_{kind}_{m}:.1f}}"
        COLUMNS[f"LP@1, {kind} {m}"] = f"{{lp1_{kind}_{m}:.1f}}"

PICTURED = {  # a panel's title: a row of the study "shapes"
    "NCL": "ncl",
    "BayesNCL": "bayesncl",
    "no KL term": "bayesncl-no-kl",
    "inverse frequency": "bayesncl-ipw",
}
LINK = re.compile(r"\[[^]]*\]\((?:results/)?([^)/#]+)\)")  # to a record, from either page
NUMBER = re.compile(r"\{([\w.]+):([^}]+)\}")  # {key:format}
MINUS_ZERO = re.compile(r"-(0(\.0+)?)(?![\d.])")
TABLE = re.compile(r"((?:^\|.*\|\n){2,})", re.M)


# ----------------------------------------------------------------------------------------- a record
def dimensions(folder: Path) -> np.ndarray:
    """dimensions.csv, its columns by name; empty where the run has none."""
    file = folder / "dimensions.csv"
    if not file.exists():
        return np.empty(0)
    return np.genfromtxt(file, delimiter=",", names=True, ndmin=1)


def of_background(columns: np.ndarray, background: int) -> np.ndarray:
    """Activation rates of the dimensions that stand for a background.

    At least 90 % of the images that they are active on have it.
    """
    stands_for = columns["background_class"] == background
    consistent = columns["background_cons"] >= 0.9
    return columns["act"][stands_for & consistent]


def from_dimensions(columns: np.ndarray) -> dict[str, float]:
    """What dimensions.csv says of a run.

    cons_<share>     Cons. in % of the dimensions active on that share of the images or more
    cons_weighted    Cons. in %, weighted by activation
    rare_dims        the number of live dimensions below the smallest share
    entries          active entries of an image
    dead_dims        dead dimensions in %
    dims_, rate_<background>    number and mean rate of the dimensions that stand for it
    """
    K = len(columns)
    columns = columns[columns["act"] > 0]
    act = columns["act"]
    cons = 100 * columns["cons"]
    found = {}
    for share in interpret.SHARES:
        frequent = act >= share
        if frequent.any():
            found[f"cons_{share}"] = cons[frequent].mean()
    if len(act):
        found["cons_weighted"] = np.average(cons, weights=act)
    found["rare_dims"] = (act < interpret.SHARES[0]).sum()
    found["entries"] = act.sum()
    found["dead_dims"] = 100 - 100 * len(act) / K
    if "background_cons" in columns.dtype.names:
        for b, name in enumerate(shapes.BACKGROUNDS):
            rates = of_background(columns, b)
            found[f"dims_{name}"] = len(rates)
            found[f"rate_{name}"] = rates.mean() if len(rates) else 0.0
    return found


def record(folder: Path) -> dict[str, float]:
    """The numbers of an image run; {} if it is unfinished.

    Those of its dimensions, of its last epoch, the final ones, those of tools/, without what is
    undefined. Of a number that is in two of them the later one counts.
    """
    file = folder / "metrics.jsonl"
    lines = []
    if file.exists():
        lines = file.read_text().splitlines()
    last = {}
    for line in lines[-2:]:  # the last epoch, the final ones
        last |= json.loads(line)
    if "event" not in last:
        return {}

    numbers = {}
    columns = dimensions(folder)
    if len(columns):
        numbers |= from_dimensions(columns)
    numbers |= last
    for tool in TOOLS:
        more = folder / f"{tool}.json"
        if more.exists():
            numbers |= json.loads(more.read_text())
    return {key: value for key, value in numbers.items() if value is not None}


def seeds_of(name: str, wanted: str = "") -> dict[str, dict[str, float]]:
    """Seed → record of the image run of which `name` is one.

    wanted: the seeds, such as "1, 2"; all that are on record if it is empty.
    Raises BadInput where a record is missing or unfinished.
    """
    kind, seed = re.fullmatch(r"(.*?)(-seed\d)?", name).groups()
    folders = [RESULTS / name]
    if seed and re.search(r"\d", wanted):
        folders = [RESULTS / f"{kind}-seed{n}" for n in re.findall(r"\d", wanted)]
    elif seed:
        folders = sorted(RESULTS.glob(f"{kind}-seed?"))
    found = {folder.name[-1]: record(folder) for folder in folders}
    if not found or not all(found.values()):
        seeds = wanted or "on record"
        raise common.BadInput(f"a table shows {name}, seeds {seeds}, which results/ lacks")
    return found


# ------------------------------------------------------------------------------------------- a cell
def values_of(key: str, label: str, linked: list[dict]) -> list[float]:
    """A number of each seed; of two kinds of records the difference. Raises BadInput.

    linked: what seeds_of() says of each record that a row's label links to.
    """
    first = linked[0]
    try:
        values = [numbers[key] for numbers in first.values()]
        if len(linked) > 1:
            subtracted = [linked[1][seed][key] for seed in first]
            values = [value - less for value, less in zip(values, subtracted)]
    except KeyError as error:
        text = f"a table shows {label}, but of some of these records there is no {error}"
        raise common.BadInput(text) from error
    return values


def mean_and_spread(values: list[float], form: str) -> str:
    """The mean over seeds, with three or more ± their standard deviation."""
    text = f"{np.mean(values):{form}}"
    if len(values) > 2:
        text += f" ± {np.std(values, ddof=1):{form}}"
    return text.replace("%", " %")


def image_cell(label: str, template: str, wanted: str = "") -> str | None:
    """The records that a row's label links to as a cell. None where no record has a number.

    template: the cell with {key:format} for each number; wanted: the seeds, as in seeds_of().
    """
    linked = [seeds_of(name, wanted) for name in LINK.findall(label)]
    cell = template
    for key, form in NUMBER.findall(template):
        if not any(key in numbers for numbers in linked[0].values()):
            return None
        text = mean_and_spread(values_of(key, label, linked), form)
        cell = cell.replace(f"{{{key}:{form}}}", text)
    return MINUS_ZERO.sub(r"\1", cell)


def short(value: float) -> str:
    """0.123 → .12"""
    return f"{value:.2f}".removeprefix("0")


def landscape_cell(folder: str, label: str) -> str | None:
    """A setting in a record of sparse_coding.py as a cell. None where it is not in the record.

    Maximum / median / minimum at the end; where there is the minimum of the max-cosine alone:
    at the start → at each point on record, ± over seeds. label: "experiment: setting".
    """
    largest = median = start = ""
    smallest = []
    for row in json.loads((RESULTS / folder / "results.json").read_text()):
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
def distinct(runs: list[dict], key: str) -> str:
    """The values of a setting of runs, each once."""
    values = {str(run[key]) for run in runs if run.get(key) is not None}
    return ", ".join(sorted(values)) or "not noted"


def list_of_records() -> list[str]:
    """A row for each kind of record: seeds, commit, hardware, torch, date, seconds of training."""
    kinds = {}  # a folder's name without its seed: its runs
    for file in sorted(RESULTS.glob("*/config.json")):
        name = file.parent.name
        facts = json.loads(file.read_text()) | record(file.parent)
        facts["folder"] = name
        kind = re.sub(r"-seed\d$", "", name)
        kinds.setdefault(kind, []).append(facts)
    rows = []
    for kind, runs in sorted(kinds.items()):
        cells = [f"[{kind}]({runs[0]['folder']})"]
        for key in ("seed", "commit", "hardware", "torch", "date"):
            cells.append(distinct(runs, key))
        seconds = np.mean([run.get("seconds_train", 0) for run in runs])
        cells.append(f"{seconds:.0f}")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def cells_of(line: str) -> list[str]:
    """A line of a Markdown table as its cells."""
    return [cell.strip() for cell in line[1:-1].split("|")]


def row_of(line: str, head: list[str]) -> str:
    """A row of a table with the cells that records fill made anew; the line where it has none."""
    old = cells_of(line)
    label = old[0]
    seeds = dict(zip(head, old)).get("seeds", "")
    row = [label]
    for heading, cell in zip(head[1:], old[1:]):
        of_landscape = LINK.search(heading)
        if heading in COLUMNS and LINK.search(label):
            found = image_cell(label, COLUMNS[heading], seeds)
            row.append(found or re.sub(r".*\d.*", "–", cell))
        elif of_landscape:
            row.append(landscape_cell(of_landscape[1], label) or cell)
        else:
            row.append(cell)
    if row == old:
        return line
    return f"| {' | '.join(row)} |"


def remade(table: str) -> str:
    """A Markdown table as the records have it."""
    first, ruler, *lines = table.splitlines()
    head = cells_of(first)
    if head[0] == "records":
        rows = list_of_records()
    else:
        rows = [row_of(line, head) for line in lines]
    return "\n".join([first, ruler] + rows) + "\n"


def with_tables(text: str) -> str:
    """A page with its tables as the records have them."""
    pieces = TABLE.split(text)  # the second, fourth, … are the tables
    for i in common.progress(range(1, len(pieces), 2), "tables"):
        pieces[i] = remade(pieces[i])
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
def bring_in_line(page: Path, check: bool) -> bool:
    """Rewrite a page's tables, unless `check`, and say what differs; whether anything does."""
    name = page.relative_to(ROOT)
    old = page.read_text()
    new = with_tables(old)
    known = set(old.splitlines())
    for line in new.splitlines():
        if line not in known:
            print(f"{name}, by the records: {line}")
    for sentence in unchecked(new):
        print(f"{name}, in no table: {sentence}")
    if not check:
        page.write_text(new)
    return old != new


def draw_background_rates() -> None:
    """assets/background-rates.png, where matplotlib is installed."""
    try:
        import draw
    except ImportError:
        print("matplotlib is not installed: the picture stays as it is")
        return
    runs = {}
    for title, row in PICTURED.items():
        folders = sorted(RESULTS.glob(f"shapes-{row}-seed?"))
        runs[title] = [dimensions(folder) for folder in folders]
    draw.background_rates(runs, of_background, ROOT / "assets")


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
    for page in PAGES:
        if bring_in_line(page, args.check):
            differs = True
    if args.check:
        sys.exit(int(differs))
    draw_background_rates()


if __name__ == "__main__":
    common.launch(main)
