"""Fill the tables of the pages from the records, or print all that is on record.

    python studies/report.py                fill the tables of every page
    python studies/report.py --check        change nothing; exit code 1 if something differs
    python studies/report.py ncl --all      every number of every run of a question

A page's tables are pandas frames in table.py of its folder, those of README.md and weights/ in
studies/table.py. In the page a line <!-- NAME --> stands above the table that shows the frame NAME.
A row is of one run, the mean over seeds ± their standard deviation, or of a difference A − B by
seed, the mean ± half its 95 % t-interval.

A decimal number in the text must stand in a table: of the page, or of a page that it links to.
Sentences where one does not are printed.
"""

import argparse
import json
import re
import runpy
import sys
from pathlib import Path

from records import ROOT, STUDIES, cell, common, frame, pd, read

TABLE = re.compile(r"^<!-- (\w+) -->\n(?:\|.*\n)*", re.M)
LINK = re.compile(r"\]\(([^()#]*README\.md)")
SHOWN = r"^\|.*|^```(?s:.*?)^```"  # rows of tables, and what programs print
NO_PROSE = re.compile(rf"{SHOWN}|`[^`\n]*`|\]\([^)]*\)|<!--(?s:.*?)-->", re.M)
DECIMAL = re.compile(r"(?<![\w.])([+−]?)0*(\d{0,3}\.\d+)")  # no arXiv number


def pages() -> dict[str, Path]:
    """README.md and the pages of checks/, weights/, studies/ and the questions, by their paths."""
    found = [ROOT / name for name in ("README.md", "checks/README.md", "weights/README.md")]
    found.append(STUDIES / "README.md")
    found += sorted(STUDIES.glob("*/README.md"))
    return {str(page.relative_to(ROOT)): page for page in found}


def markdown(table: pd.DataFrame) -> str:
    """A frame of texts as a table of Markdown."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.values.tolist()]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def filled(page: Path) -> str:
    """The text of a page with its tables as the records have them; BadInput if one is not made."""
    text = page.read_text(encoding="utf-8")
    names = [found[1] for found in TABLE.finditer(text)]
    if not names:
        return text
    folder = STUDIES if page.parent in (ROOT, ROOT / "weights") else page.parent
    program = folder / "table.py"
    tables = runpy.run_path(str(program)) if program.exists() else {}
    for name in names:
        common.need(name in tables, f"{page} shows {name}, which {program} does not make")
    return TABLE.sub(lambda found: f"<!-- {found[1]} -->\n{markdown(tables[found[1]])}", text)


# ----------------------------------------------------------------------------------------- the text
def decimals(text: str) -> set[str]:
    """The decimal numbers in a text with their signs, without leading zeros."""
    return {sign + number for sign, number in DECIMAL.findall(text)}


def in_tables(page: Path) -> set[str]:
    """The decimals in the tables and outputs of programs on a page, with signs and without."""
    text = page.read_text(encoding="utf-8")
    found = decimals("\n".join(re.findall(SHOWN, text, re.M)))
    return found | {number.lstrip("+−") for number in found}


def unchecked(page: Path) -> list[str]:
    """The paragraphs of a page with a decimal that no table has, here or where they link to."""
    found = []
    own = in_tables(page)
    for paragraph in re.split(r"\n\n+|\n(?=[-#\d])", page.read_text(encoding="utf-8")):
        known = own.union(*[in_tables(page.parent / link) for link in LINK.findall(paragraph)])
        if not decimals(NO_PROSE.sub("", paragraph)) <= known:
            found.append(" ".join(paragraph.split()))
    return found


# -------------------------------------------------------------------------------------- the program
def print_all(question: str) -> None:
    """A line for each number of each run: mean ± standard deviation, n, and the seeds' values.

    Of runs with seeds of their own, as sparse_coding.py's, a line for each of their results.
    """
    for record in read(question):
        results = record.get("results", [])
        for row in results if isinstance(results, list) else [results]:
            print(record["run"], json.dumps(row, ensure_ascii=False), sep="\t")
    for run, of_seeds in frame(question).groupby(level="run"):
        for name, column in of_seeds.droplevel("run").items():
            column = pd.to_numeric(column, errors="coerce").dropna()
            if len(column):
                by_seed = " ".join(f"{seed}: {value:.6g}" for seed, value in column.items())
                print(run, name, cell(column, 4, False), f"n = {len(column)}", by_seed, sep="\t")


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="report.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = flags.add_argument
    add("questions", nargs="*", metavar="question", help="of --all: folders of studies/")
    add("--check", action="store_true", help="change nothing; exit code 1 if something differs")
    add("--all", action="store_true", help="print every number on record of these questions")
    args = flags.parse_args(argv)
    common.need(args.all == bool(args.questions), "--all wants a question, and a question --all")
    for question in args.questions:
        known = (STUDIES / question / "records.jsonl").exists()
        common.need(known, f"{question}: studies/ has no records of that name")
    if args.all:
        for question in args.questions:
            print_all(question)
        return
    differs = False
    for name, page in pages().items():
        new = filled(page)
        if new != page.read_text(encoding="utf-8"):
            print(f"{name}: its tables differ from the records")
            differs = True
            if not args.check:
                page.write_text(new, encoding="utf-8")
        for paragraph in unchecked(page):
            print(f"{name}, in no table: {paragraph}")
    if args.check:
        sys.exit(int(differs))


if __name__ == "__main__":
    common.launch(main)
