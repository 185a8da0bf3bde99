"""Bring the tables of README.md and results/README.md in line with the records in results/.

    python tools/report.py            rewrite the tables; with matplotlib draw assets/background-rates.png
    python tools/report.py --check    change nothing; exit code 1 if a table differs from the records

A row whose label links to a record of an image run shows the mean over its seeds, or over those in a column "seeds";
one with two links shows the difference, by seed; COLUMNS says what a heading stands for. Where a heading links to a
record of sparse_coding.py, a row's label is an experiment and a setting as that program names them. Other cells stay.
"""
import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import common
import interpret
import shapes

TOOLS = "finetune", "robustness", "selection", "words", "stability"
RESULTS, PAGES = ROOT / "results", (ROOT / "README.md", ROOT / "results" / "README.md")
COLUMNS = {  # heading: numbers of a record, {key:format}
    "LP@1": "{lp1:.1f}", "Act.": "{act:.3f}", "5-NN": "{knn5:.1f}", "active": "{entries:.1f}",
    "Cons.": "{cons:.1f}", "bits": "{bits:.3f}", "Corr.": "{corr:.3f}", "‖W‖₂,₁": "{l21:.3g}", "P@10": "{p_at_10:.1f}",
    "LP@1 of z": "{lp1_embedding:.1f}", "tuned on 1 % / 10 %": "{finetune_0.01_top1:.1f} / {finetune_0.1_top1:.1f}",
    "H_s": "{entropy:.2f}", "indicator": "{spread:.2f}", "SEPIN@10": "{sepin_10:.3f}", "seconds": "{seconds_train:.0f}",
    "unused": "{unused_columns:.0%}", "weighted": "{cons_weighted:.1f}", "below 0.1 %": "{rare_dims:.0f}",
    "live": "{live_dims:.0f}", "adj.": "{adjusted:.1f}", "gates open": "{open:.2f}", "MonoScore": "{mono:.3f}",
    "ratio of h / z": "{min_max_representation:.1f} / {min_max_embedding:.3g}",
    "Cons. of background": "{background_cons:.1f}", "rank of h / z": "{rank_representation:.1f} / {rank_embedding:.1f}",
    "top-1": "{top1:.1f}", "image → text, R@1 / R@5": "{text_r1:.1f} / {text_r5:.1f}", "dead": "{dead_dims:.0f} %",
    "text → image, R@1 / R@5": "{image_r1:.1f} / {image_r5:.1f}", "zero-shot object": "{zero_shot:.1f}",
    "zero-shot background": "{background_zero_shot:.1f}", "Cons. of captions": "{text_cons:.1f}",
    "Act. of captions": "{text_act:.3f}", "nameable / by chance": "{nameable:.1f} / {nameable_chance:.1f}",
    "by 20 images / by chance": "{nameable_top:.1f} / {nameable_top_chance:.1f}", "5-NN of z": "{knn5_embedding:.1f}",
    "explained": "{explained_variance:.1%}", "stability / by chance": "{stability:.2f} / {stability_chance:.2f}",
    **{name: f"{{h_{name}:.1f}} / {{z_{name}:.1f}}" for name in (
        "clean", "corrupted", "noise", "blur", "contrast", "brightness", "pixelation", "jpeg", "reversed", "unseen",
        "paired_as_trained", "paired")},
    **{f"{100 * share:g} %{kind}": f"{{{key}_{share}_top1:.1f}}" for share in (0.01, 0.1, 1.0)
       for kind, key in (("", "finetune"), (" from scratch", "scratch"))}, "MonoScore by SimCLR": "{mono_simclr:.3f}",
    **{f"≥ {100 * share:g} %": f"{{cons_{share}:.1f}}" for share in interpret.SHARES}, "aimed at": "{expected_act:.3f}",
    **{name: f"{{dims_{name}:.0f}}, {{rate_{name}:.2f}}" for name in shapes.BACKGROUNDS},
    **{f"{label}, {kind} {m}": f"{{{key}_{kind}_{m}:.1f}}" for label, key in (("P@10", "p_at_10"), ("LP@1", "lp1"))
       for kind in ("top", "random") for m in (32, 64, 128)}}
PICTURED = {"NCL": "ncl", "BayesNCL": "bayesncl", "no KL term": "bayesncl-no-kl", "inverse frequency": "bayesncl-ipw"}
LINK = re.compile(r"\[[^]]*\]\((?:results/)?([^)/#]+)\)")  # to a record, from either page


def dimensions(folder: Path) -> np.ndarray:
    """dimensions.csv, its columns by name; empty where the run has none."""
    file = folder / "dimensions.csv"
    return np.genfromtxt(file, delimiter=",", names=True, ndmin=1) if file.exists() else np.empty(0)


def of_background(columns: np.ndarray, background: int) -> np.ndarray:
    """Activation rates of the dimensions that stand for a background: at least 90 % of their active images have it."""
    return columns["act"][(columns["background_cons"] >= 0.9) & (columns["background_class"] == background)]


def from_dimensions(columns: np.ndarray) -> dict[str, float]:
    """Cons. in % of the dimensions active on a share of the images or more, and weighted by activation; the number that
    is below the smallest share; active entries per image; % of dead dimensions; number, mean rate of backgrounds'."""
    columns, K = columns[columns["act"] > 0], len(columns)
    act, cons = columns["act"], 100 * columns["cons"]
    found = {f"cons_{share}": cons[act >= share].mean() for share in interpret.SHARES if (act >= share).any()}
    found |= {"cons_weighted": np.average(cons, weights=act)} if len(act) else {}
    found |= {"rare_dims": (act < interpret.SHARES[0]).sum(), "entries": act.sum(), "dead_dims": 100 - 100 * len(act) / K}
    for b, name in enumerate(shapes.BACKGROUNDS if "background_cons" in columns.dtype.names else []):
        rates = of_background(columns, b)
        found |= {f"dims_{name}": len(rates), f"rate_{name}": rates.mean() if len(rates) else 0.0}
    return found


def record(folder: Path) -> dict[str, float]:
    """Numbers of an image run: its dimensions', its last epoch's, the final ones, those of tools/; {} if unfinished."""
    file, columns = folder / "metrics.jsonl", dimensions(folder)
    numbers = from_dimensions(columns) if len(columns) else {}
    for line in file.read_text().splitlines()[-2:] if file.exists() else []:
        numbers |= json.loads(line)
    for more in (folder / f"{tool}.json" for tool in TOOLS) if "event" in numbers else ():
        numbers |= json.loads(more.read_text()) if more.exists() else {}
    return {key: value for key, value in numbers.items() if value is not None} if "event" in numbers else {}


def seeds_of(name: str, wanted: str = "") -> dict[str, dict[str, float]]:
    """Seed → record of the image run of which `name` is one; of all seeds, or of those wanted: "1, 2"."""
    kind, seed = re.fullmatch(r"(.*?)(-seed\d)?", name).groups()
    folders = [RESULTS / f"{kind}-seed{n}" for n in re.findall(r"\d", wanted)] or sorted(RESULTS.glob(f"{kind}-seed?"))
    found = {folder.name[-1]: record(folder) for folder in (folders if seed else [RESULTS / name])}
    if not found or not all(found.values()):
        raise common.BadInput(f"a table shows {name}, seeds {wanted or 'on record'}, which results/ lacks")
    return found


def image_cell(label: str, template: str, wanted: str = "") -> str | None:
    """The records that a row's label links to as a cell: for each {key:format} the mean over seeds, with three or more
    ± their standard deviation. None where no record has the number."""
    first, *minus = (seeds_of(name, wanted) for name in LINK.findall(label))

    def number(match):
        key, form = match.groups()
        values = [first[seed][key] - (minus[0][seed][key] if minus else 0) for seed in first]
        spread = f" ± {np.std(values, ddof=1):{form}}" if len(values) > 2 else ""
        return f"{np.mean(values):{form}}{spread}".replace("%", " %")
    try:
        return re.sub(r"-(0(\.0+)?)(?![\d.])", r"\1", re.sub(r"\{([\w.]+):([^}]+)\}", number, template))  # no −0.0
    except KeyError as error:
        if f"{{{error.args[0]}:" in template and not any(error.args[0] in numbers for numbers in first.values()):
            return None
        raise common.BadInput(f"a table shows {label}, but of some of these records there is no {error}")


def landscape_cell(folder: str, label: str) -> str | None:
    """A setting, "experiment: setting", in a record of sparse_coding.py: maximum / median / minimum at the end, or only
    the minimum of the max-cosine: at the start → at each point on record, ± over seeds."""
    short = lambda value: f"{value:.2f}".removeprefix("0")
    ends = {"max": [], "median": [], "min": []}
    for row in json.loads((RESULTS / folder / "results.json").read_text()):
        if f"{row['experiment']}: {row['setting']}" == label:
            start, spread = short(row["start"]), f" ± {short(row['end_std'])}" if row["statistic"] == "min" else ""
            ends[row["statistic"]].append(short(row["end_mean"]) + spread)
    if ends["median"]:
        return " / ".join(found[-1] for found in ends.values())
    return " → ".join([start, *ends["min"]]) if ends["min"] else None


def list_of_records() -> list[str]:
    """A row for each kind of record: its seeds, commit, hardware, torch, date, mean seconds of training."""
    kinds, rows = {}, []
    for file in sorted(RESULTS.glob("*/config.json")):
        facts = json.loads(file.read_text()) | record(file.parent) | {"folder": file.parent.name}
        kinds.setdefault(re.sub(r"-seed\d$", "", file.parent.name), []).append(facts)
    for kind, runs in sorted(kinds.items()):
        what = [", ".join(sorted({str(run[key]) for run in runs if run.get(key) is not None})) or "not noted"
                for key in ("seed", "commit", "hardware", "torch", "date")]
        took = f"{np.mean([run.get('seconds_train', 0) for run in runs]):.0f}"
        rows.append(f"| [{kind}]({runs[0]['folder']}) | {' | '.join([*what, took])} |")
    return rows


def row_of(line: str, head: list[str]) -> str:
    """A row of a table with the cells that records fill made anew; the line itself where it has none."""
    old = [cell.strip() for cell in line[1:-1].split("|")]
    row, seeds = list(old), dict(zip(head, old)).get("seeds", "")
    for i, heading in enumerate(head[1:], 1):
        if heading in COLUMNS and LINK.search(old[0]):
            row[i] = image_cell(old[0], COLUMNS[heading], seeds) or re.sub(r".*\d.*", "–", old[i])
        elif folder := LINK.search(heading):
            row[i] = landscape_cell(folder[1], old[0]) or old[i]
    return f"| {' | '.join(row)} |" if row != old else line


def with_tables(text: str) -> str:
    """A page with its tables as the records have them."""
    def remade(match):
        first, ruler, *lines = match[0].splitlines()
        head = [cell.strip() for cell in first[1:-1].split("|")]
        rows = list_of_records() if head[0] == "records" else [row_of(line, head) for line in lines]
        return "\n".join([first, ruler, *rows]) + "\n"
    return re.sub(r"(?:^\|.*\|\n){2,}", remade, text, flags=re.M)


def unchecked(text: str) -> list[str]:
    """The sentences of a page that quote a decimal number which none of its tables has."""
    blocks = re.compile(r"^\|.*$|^```[^`]*```$", re.M)
    numbers = lambda part: {number.lstrip("0") for number in re.findall(r"(?<![\w.])\d{0,3}\.\d+", part)}
    known = numbers("\n".join(blocks.findall(text)))
    prose = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", blocks.sub("\n", text))
    sentences = re.split(r"(?<=[.:;)*])\s+(?=[A-Z*(])|\n\n+|\n(?=[-#\d])", prose)
    return [" ".join(sentence.split()) for sentence in sentences if numbers(sentence) - known]


def main() -> None:
    flags = argparse.ArgumentParser(prog="report.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a table differs")
    check, differs = flags.parse_args().check, False
    for page in PAGES:
        old, name = page.read_text(), page.relative_to(ROOT)
        new = with_tables(old)
        print(*(f"{name}, by the records: {line}" for line in set(new.splitlines()) - set(old.splitlines())), sep="\n")
        print(*(f"{name}, in no table: {sentence}" for sentence in unchecked(new)), sep="\n")
        differs |= old != new
        check or page.write_text(new)
    if check:
        sys.exit(int(differs))
    try:
        import draw
        draw.background_rates({title: [dimensions(folder) for folder in sorted(RESULTS.glob(f"shapes-{row}-seed?"))]
                               for title, row in PICTURED.items()}, of_background, ROOT / "assets")
    except ImportError:
        print("matplotlib is not installed: the picture stays as it is")


if __name__ == "__main__":
    common.launch(main)
