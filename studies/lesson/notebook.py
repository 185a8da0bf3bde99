"""The lesson as a notebook: lesson.ipynb, made of README.md.

    python studies/lesson/notebook.py              writes lesson.ipynb
    python studies/lesson/notebook.py --check      ends with 1 where it is not what README.md gives

Text becomes cells of text. A block ```python becomes a cell of code, a block ```sh one whose lines
begin with "!". A block without a name, such as a printed table, stays in the text. The first cell
of code finds the repository, or clones it. The file is nbformat 4, without outputs.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402

README = Path(__file__).with_name("README.md")
NOTEBOOK = Path(__file__).with_name("lesson.ipynb")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)\n```$", re.M | re.S)  # its language, its lines

FIRST_CELL = """\
# Run this cell first. A CPU is enough.
# In a copy of the repository it goes to the repository's folder. On a hosted notebook write the
# repository's address between the quotation marks: it is cloned.
from pathlib import Path

ADDRESS = ""
if ADDRESS and not Path("simclr.py").exists():
    !git clone --depth 1 {ADDRESS} repository
    %cd repository
if not Path("simclr.py").exists():
    %cd ../..
!pip install --quiet -r requirements.txt"""


def text_cell(text: str) -> dict:
    """A cell of Markdown."""
    return {"cell_type": "markdown", "metadata": {}, "source": lines_of(text)}


def code_cell(code: str) -> dict:
    """A cell of code that has not been run."""
    cell = {"cell_type": "code", "metadata": {}, "source": lines_of(code)}
    return cell | {"execution_count": None, "outputs": []}


def lines_of(text: str) -> list[str]:
    """A text as nbformat keeps it: lines that end in a newline, but the last."""
    return text.splitlines(keepends=True)


def shell(commands: str) -> str:
    """Commands, one a line, as a notebook runs them."""
    lines = []
    for line in commands.splitlines():
        lines.append(f"!{line}")
    return "\n".join(lines)


def cells_of(page: str) -> list[dict]:
    """The cells of a page in Markdown, in its order; after its first text the FIRST_CELL."""
    cells = []
    pieces = BLOCK.split(page)  # text, language, lines, text, language, lines, ..., text
    for i in range(0, len(pieces), 3):
        text = pieces[i].strip()
        if text:
            cells.append(text_cell(text))
        if i == 0:
            cells.append(code_cell(FIRST_CELL))
        if i + 1 == len(pieces):
            break
        language, code = pieces[i + 1 : i + 3]
        if language == "sh":
            code = shell(code)
        cells.append(code_cell(code))
    return cells


def notebook(page: str) -> str:
    """The text of the notebook of a page."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    contents = {
        "cells": cells_of(page),
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    return json.dumps(contents, indent=1, ensure_ascii=False) + "\n"


def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="notebook.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 if lesson.ipynb differs"
    )
    args = flags.parse_args(argv)
    text = notebook(README.read_text(encoding="utf-8"))
    if not args.check:
        NOTEBOOK.write_text(text, encoding="utf-8")
        return
    if not NOTEBOOK.exists() or NOTEBOOK.read_text(encoding="utf-8") != text:
        print("lesson.ipynb is not what README.md gives: python studies/lesson/notebook.py")
        sys.exit(1)


if __name__ == "__main__":
    common.launch(main)
