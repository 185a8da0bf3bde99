"""Which small bugs do the tests miss?

    python checks/mutants.py                 the bugs of mutants.txt
    python checks/mutants.py mine.txt        those of another list

A row "FILE: OLD → NEW" is a bug: OLD, which FILE has once, becomes NEW, in a copy of the last
commit; ⏎ is a newline. The tests that ran those lines are asked first, then all but the slow ones.
About two hours on two cores.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from coverage import CoverageData

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
COPIES = 2  # tests at a time, one thread each


def rows_of(path):
    """The bugs of a list: (file, old text, new text) each."""
    rows = []
    for line in path.read_text().splitlines():
        if line == "" or line.startswith("#"):
            continue
        file, change = line.split(": ", 1)
        old, new = change.replace("⏎", "\n").split(" →")
        found = (ROOT / file).read_text().count(old)
        if found != 1:
            sys.exit(f"{file} has {old!r} {found} times")
        rows.append((file, old, new.removeprefix(" ")))
    return rows


def tests_pass(copy, *arguments):
    """Whether all tests of a copy pass: the first that fails, or an hour, is enough."""
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *arguments]
    alone = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=alone, capture_output=True, timeout=3600)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def who_ran(coverage, path, old):
    """The tests that ran a line of the old text."""
    first = path.read_text().partition(old)[0].count("\n") + 1
    last = first + old.count("\n")
    tests = set()
    for line, contexts in coverage.contexts_by_lineno(str(path)).items():
        if first <= line <= last:
            tests.update(context.partition("|")[0] for context in contexts)
    return sorted(tests - {""})


def survives(copy, asked, file, old, new):
    """Whether no test of a copy fails where the old text is the new one."""
    path = copy / file
    text = path.read_text()
    path.write_text(text.replace(old, new))
    list_of_tests = copy / "asked.txt"
    list_of_tests.write_text("\n".join(asked))
    missed = asked == [] or tests_pass(copy, "-m", "", f"@{list_of_tests}")
    missed = missed and tests_pass(copy)
    path.write_text(text)
    return missed


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("list", nargs="?", type=Path, default=HERE / "mutants.txt")
    rows = rows_of(p.parse_args(argv).list)

    with tempfile.TemporaryDirectory() as root:
        copies = Queue()
        for k in range(COPIES):
            copy = Path(root, str(k))
            subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
            copies.put(copy)
        if not tests_pass(copy, "-m", "", "--cov=.", "--cov-context=test"):
            sys.exit("the tests fail without a bug")
        coverage = CoverageData(str(copy / ".coverage"))
        coverage.read()
        asked = [who_ran(coverage, copy / file, old) for file, old, _ in rows]

        def missed(row, tests):
            free = copies.get()
            found = survives(free, tests, *row)
            copies.put(free)
            return found

        with ThreadPoolExecutor(COPIES) as pool:
            verdicts = list(pool.map(missed, rows, asked))

    survivors = [row for row, lives in zip(rows, verdicts) if lives]
    for file, old, new in survivors:
        print(f"{file}: {old} → {new}".replace("\n", "⏎"))
    print(f"{len(survivors)} of {len(rows)} bugs live")


if __name__ == "__main__":
    main()
