"""Tests of report.py: cells and tables of small records, and the pages as they are."""

from conftest import refusal, run_program

import numpy as np
import pytest
import records
import report


def record_of(run, seed, **final):
    """A run whose gates were a quarter open."""
    return dict(run=run, seed=seed, settings={}, epoch={"open": 0.25}, final=final)


@pytest.fixture
def studies(tmp_path, monkeypatch):
    """The folder of pages. q/records.jsonl has three seeds of a, lp1 1, 2 and 6, and of b, 1."""
    monkeypatch.setattr(records, "STUDIES", tmp_path / "studies")
    (tmp_path / "studies" / "q").mkdir(parents=True)
    for seed, lp1 in enumerate((1.0, 2.0, 6.0), 1):
        put(record_of("a", seed, lp1=lp1, act=None))
        put(record_of("b", seed, lp1=1.0))
    return tmp_path / "studies"


def put(record):
    records.put(records.file_of("q"), record)
    report.records_in.cache_clear()


def cell(studies, label, template, wanted=""):
    """A cell of a row whose label is "A" or "A − B", linked to the run of that name."""
    links = [f"[{name}](q/records.jsonl#{name})" for name in label.split(" − ")]
    return report.image_cell(studies, " − ".join(links), template, wanted)


def refused_cell(*args):
    """The line with which a cell is refused."""

    def ask():
        cell(*args)

    return refusal(ask)


# ------------------------------------------------------------------------------------------- a cell
def test_a_cell_is_the_mean_over_seeds(studies):
    assert cell(studies, "a", "{lp1:.1f} / {open:.0%}") == "3.0 ± 2.6 / 25 % ± 0 %"  # √(14 / 2)


def test_two_links_are_a_difference(studies):
    assert cell(studies, "a − b", "{lp1:.1f}") == "+2.0 ± 6.6"  # 4.303 √7 / √3


def test_differences_are_by_seed(studies):
    for seed, lp1 in enumerate((1.0, 2.0, 6.0), 1):
        put(record_of("b", seed, lp1=lp1 - 1))
    assert cell(studies, "a − b", "{lp1:.1f}") == "+1.0 ± 0.0"


def test_pairs_of_runs_are_taken_together(studies):
    for seed in (1, 2, 3):
        put(record_of("c", seed, lp1=2.0))
    a, b, c = (f"[{name}](q/records.jsonl#{name})" for name in "abc")
    found = report.image_cell(studies, f"{a} − {b}, {c} − {b}", "{lp1:.1f}")
    assert found == "+1.5 ± 1.8"  # of 0, 1, 5, 1, 1, 1: 2.571 √3.1 / √6


def test_n_counts_the_seeds_of_all_pairs(studies):
    link = "[a](q/records.jsonl#a) − [b](q/records.jsonl#b)"
    row = report.row_of(f"| {link}, {link} | x | x |", ["label", "n", "LP@1"], studies)
    assert report.cells_of(row)[1] == "6"


def test_a_difference_within_a_run_is_by_seed(studies):
    for seed, (lp1, whole) in enumerate(((3.0, 1.0), (5.0, 1.0), (10.0, 1.0)), 1):
        put(record_of("c", seed, lp1=lp1, whole=whole))
    assert cell(studies, "c", "{lp1-whole:.1f}") == "+5.0 ± 9.0"  # 4.303 √13 / √3
    assert cell(studies, "a", "{lp1-whole:.1f}") is None


def test_a_lead_is_a_difference_within_a_run(studies):
    for seed, lead in enumerate((3.0, 5.0, 10.0), 1):
        put(record_of("c", seed, lead=lead, background_lead=2 * lead, top_lead=4.0))
    column = "adj. − random directions"
    assert cell(studies, "c", report.COLUMNS[column]) == "+6.0 ± 9.0"  # 4.303 √13 / √3
    assert cell(studies, "c", report.COLUMNS[f"background {column}"]) == "+12.0 ± 17.9"
    assert cell(studies, "c", report.COLUMNS[f"{column}, 1 %"]) == "+4.0 ± 0.0"


@pytest.mark.parametrize(
    "column, first, second",
    [
        ("AP − random head", "ap", "head_ap"),
        ("background AP − random head", "background_ap", "head_background_ap"),
        (
            "background 8-probe − rotated, 1 %",
            "top_background_probe_8",
            "rotated_background_probe_8",
        ),
        ("Cons. − shuffled", "cons", "shuffled_cons"),
        ("MonoScore − random head", "mono", "head_mono"),
    ],
)
def test_a_control_is_compared_with_its_run(studies, column, first, second):
    put(record_of("c", 1, **{first: 5.0, second: 3.0}))
    assert float(cell(studies, "c", report.COLUMNS[column])) == 2


def test_two_links_may_compare_differences(studies):
    for seed in (1, 2, 3):
        put(record_of("c", seed, lp1=3.0, whole=1.0))
        put(record_of("d", seed, lp1=9.0, whole=8.0))
    assert cell(studies, "c − d", "{lp1-whole:.1f}") == "+1.0 ± 0.0"


def test_chance_is_the_mean_over_live_dimensions(studies):
    (studies / "consistency").mkdir()
    lines = ["run,seed,dimension,act,cons", "cifar10-a,1,0,0.0001,1", "cifar10-a,1,1,1,0.1"]
    lines.append("cifar10-a,1,2,0,")
    (studies / "consistency" / "dimensions.csv").write_text("\n".join(lines))
    put(record_of("cifar10-a", 1, cons=60.0))
    # One image has one class, all images have a tenth of each.
    assert cell(studies, "cifar10-a", "{cons_by_chance:.1f}") == "55.0"
    assert cell(studies, "cifar10-a", "{cons-cons_by_chance:.1f}") == "+5.0"


def test_many_pairs_have_the_last_t():
    many = [0.0, 1.0] * 50
    expected = report.T[-1] * (25 / 99) ** 0.5 / 10
    assert report.interval(many) == pytest.approx(expected)


def test_students_t_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    of_n = [stats.t.ppf(0.975, n) for n in range(1, len(report.T) + 1)]
    assert report.T == pytest.approx(of_n, abs=6e-4)


def test_two_seeds_have_no_deviation(studies):
    assert cell(studies, "a", "{lp1:.1f}", "1, 2") == "1.5"


def test_wanted_seeds_alone_are_shown(studies):
    assert cell(studies, "a", "{lp1:.1f}", "3") == "6.0"


@pytest.mark.parametrize("link, value", {"a-seed3": "6.0", "a-seeds1-2": "1.5"}.items())
def test_a_link_may_name_seeds(studies, link, value):
    assert cell(studies, link, "{lp1:.1f}") == value


def test_a_column_of_seeds_goes_before_a_links(studies):
    assert cell(studies, "a-seed3", "{lp1:.1f}", "2") == "2.0"


def test_a_name_may_have_seed_in_it(studies):
    put(record_of("a-seed1-two-threads", 1, lp1=9.0))
    assert cell(studies, "a-seed1-two-threads", "{lp1:.1f}") == "9.0"


def test_a_number_without_record_is_no_cell(studies):
    assert cell(studies, "a", "{act:.1f}") is None


def test_there_is_no_minus_zero(studies):
    assert cell(studies, "b − a", "{lp1:.0f} {open:.1f}", "1") == "0 0.0"
    put(record_of("c", 1, lp1=-0.04))
    assert cell(studies, "c", "{lp1:.1f}") == "0.0"
    assert cell(studies, "c", "{lp1:.2f}") == "−0.04"  # a minus sign


@pytest.mark.parametrize(
    "link, wanted, told",
    [
        ("a", "1, 7", "shows a, seeds 1, 7, which"),
        ("a-seeds1-4", "", "shows a-seeds1-4, seeds on record, which"),
        ("nowhere", "", "shows nowhere, seeds on record, which"),
    ],
    ids=["a seed", "a link's seed", "a run"],
)
def test_a_record_that_is_not_there_is_refused(studies, link, wanted, told):
    assert told in refused_cell(studies, link, "{lp1:.1f}", wanted)


def test_a_number_that_some_records_lack_is_refused(studies):
    put(record_of("a", 2))
    error = refused_cell(studies, "a", "{lp1:.1f}")
    assert "among these records there is no number lp1" in error


def test_a_difference_of_other_seeds_is_refused(studies):
    put(record_of("c", 1, lp1=1.0))
    error = refused_cell(studies, "a − c", "{lp1:.1f}")
    assert "among these records there is no seed 2" in error


# ----------------------------------------------------------------------------- a landscape's cell
def setting(statistic, end, std=0.0, name="lr 1"):
    numbers = dict(start=0.1, end_mean=end, end_std=std)
    return dict(experiment="budget", setting=name, statistic=statistic) | numbers


@pytest.fixture
def landscape(studies):
    """landscape_cell of a record with these rows."""

    def cell(rows, label="budget: lr 1"):
        put(dict(run="few", settings={}, results=rows))
        return report.landscape_cell(records.file_of("q"), "few", label)

    return cell


def test_a_landscape_cell_has_three_statistics(landscape):
    earlier = [setting(statistic, 0.0) for statistic in ("min", "median", "max")]
    last = [setting("min", 0.254, 0.012), setting("median", 0.5), setting("max", 1.0)]
    assert landscape(earlier + last) == "1.00 / .50 / .25 ± .01"


def test_a_landscape_cell_goes_from_its_start(landscape):
    rows = [setting("min", 0.2), setting("min", 0.9, 0.1)]
    assert landscape(rows) == ".10 → .20 ± .00 → .90 ± .10"


def test_a_landscape_cell_is_of_its_setting(landscape):
    rows = [setting("min", 0.2), setting("min", 0.9, name="lr 2")]
    assert landscape(rows) == ".10 → .20 ± .00"
    assert landscape(rows, "budget: lr 3") is None


def test_a_landscape_without_record_is_refused(studies):
    def ask():
        report.landscape_cell(records.file_of("q"), "few", "budget: lr 1")

    assert "a table shows few, which" in refusal(ask)


@pytest.fixture
def curves(studies):
    """few.npz: two settings with curves of two seeds each."""
    good = [[0.2, 0.2], [0.8, 0.9]]
    bad = [[0.2, 0.2], [0.5, 0.5]]
    file = studies / "q" / "few.npz"
    np.savez(file, **{"budget/good/min": np.array(good), "budget/bad/min": np.array(bad)})


def curve_cell(label):
    return report.curve_cell(records.file_of("q"), "few", label)


@pytest.mark.parametrize(
    "label, cell",
    [("good − bad", "+.35 ± .64"), ("good − start", "+.65 ± .64"), ("none − bad", None)],
    ids=["two settings", "from the start", "not on record"],
)
def test_curves_are_compared_at_their_ends(curves, label, cell):
    assert curve_cell(f"budget: {label}") == cell  # 12.706 · 0.0707 / √2


def test_a_curve_that_is_not_there_is_refused(curves):
    def ask():
        curve_cell("budget: good − best")

    assert "few.npz has no best" in refusal(ask)


# ------------------------------------------------------------------------------------------ a table
SEEDS_TABLE = """| x | LP@1 | seeds | note |
|---|---|---|---|
| [A](q/records.jsonl#a) | {} | 1, 2 | by hand |
| B | 7 | 1 | |
"""


N_TABLE = """| x | n | LP@1 |
|---|---|---|
| [A](q/records.jsonl#a), n = {} | {} | 3.0 ± 2.6 |
| B, n = 9 | 9 | 1.5 |
"""


def test_the_number_of_seeds_is_filled(studies):
    assert report.with_tables(N_TABLE.format("9", "9"), studies) == N_TABLE.format("3", "3")


def test_a_table_is_filled_where_records_are_linked(studies):
    assert report.with_tables(SEEDS_TABLE.format("?"), studies) == SEEDS_TABLE.format("1.5")


@pytest.mark.parametrize(
    "folder, link",
    {"..": "studies/q/records.jsonl", "q": "records.jsonl", "p": "../q/records.jsonl"}.items(),
)
def test_links_are_relative_to_the_page(studies, folder, link):
    (studies / "p").mkdir()
    table = SEEDS_TABLE.replace("q/records.jsonl", link)
    assert report.with_tables(table.format("?"), studies / folder) == table.format("1.5")


def test_text_around_tables_stays(studies):
    page = "one\n\n{}\ntwo | three\n\n{}\nend"
    before = page.format(SEEDS_TABLE.format("3"), SEEDS_TABLE.format("4"))
    after = page.format(SEEDS_TABLE.format("1.5"), SEEDS_TABLE.format("1.5"))
    assert report.with_tables(before, studies) == after


@pytest.mark.parametrize("old, new", [("12.0", "–"), ("–", "–"), ("none", "none")])
def test_a_number_that_is_gone_becomes_a_dash(studies, old, new):
    table = "| x | Act. |\n|---|---|\n| [A](q/records.jsonl#a) | {} |\n"
    assert report.with_tables(table.format(old), studies) == table.format(new)


def test_a_landscape_table_is_filled_by_its_heading(studies, landscape):
    landscape([setting("min", 0.2)])
    head = "| x | [n](q/records.jsonl#few) |\n|---|---|\n"
    table = head + "| budget: lr 1 | {} |\n| other | 3 |\n"
    assert report.with_tables(table.format("?"), studies) == table.format(".10 → .20 ± .00")


# ------------------------------------------------------------------------------------- the program
def test_a_number_in_no_table_is_found():
    table = "| x |\n|---|\n| 0.50 and 12.5 |\n"
    prose = "It is .50 or 12.5. It was 3.75 before. In `3.9` and [a](b-1.5.md) none. No 7.\n"
    assert report.unchecked(f"{prose}\n{table}") == ["It was 3.75 before."]


def test_output_in_a_page_counts_as_a_table():
    assert report.unchecked("```\n| 4.25 |\nLP@1 4.5\n```\nIt is 4.25. It is 4.5.\n") == []


@pytest.fixture
def page(studies, tmp_path, monkeypatch):
    """A question's page whose table is not as the records have it; no page has another."""
    monkeypatch.setattr(report, "ROOT", tmp_path)
    for path in tmp_path / "README.md", studies / "README.md":
        path.write_text("no table\n")
    path = studies / "q" / "README.md"
    path.write_text(SEEDS_TABLE.replace("q/records", "records").format("9"))
    return path


def exit_code(command):
    with pytest.raises(SystemExit) as stop:
        run_program(command)
    return stop.value.code


def test_check_tells_a_difference_and_changes_nothing(page, capsys):
    before = page.read_text()
    assert exit_code("report.py --check") == 1
    told = "studies/q/README.md, by the records: | [A](records.jsonl#a) | 1.5 |"
    assert told in capsys.readouterr().out
    assert page.read_text() == before


def test_report_rewrites_a_page_and_then_check_passes(page):
    run_program("report.py")
    assert "| [A](records.jsonl#a) | 1.5 | 1, 2 |" in page.read_text()
    assert exit_code("report.py --check") == 0


# ---------------------------------------------------------------------------- the pages as they are
PAGES = {str(page.relative_to(report.ROOT)): page for page in report.pages()}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_tables_are_as_the_records_have_them(page):
    text = page.read_text(encoding="utf-8")
    assert report.with_tables(text, page.parent) == text, "python studies/report.py rewrites it"


@pytest.mark.parametrize("name, rows", {"README.md": 2, "studies/ncl/README.md": 5}.items())
def test_a_page_shows_the_built_in_data(name, rows):
    lines = PAGES[name].read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if line[:3] == "| [" and "records.jsonl#shapes-" in line]
    assert len(found) >= rows


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_links_lead_to_what_is_on_record(page):
    for file, name in report.LINK.findall(page.read_text(encoding="utf-8")):
        run, *_ = report.SEEDS.fullmatch(name).groups()
        assert report.runs_in(page.parent / file, run), name


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_rows_are_as_wide_as_their_head(page):
    for table in report.TABLE.findall(page.read_text(encoding="utf-8")):
        widths = {len(report.cells_of(line)) for line in table.splitlines()}
        assert len(widths) == 1, table


@pytest.mark.parametrize("name", [name for name in PAGES if name != "README.md"])
def test_every_cell_says_something(name):
    for line in PAGES[name].read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            assert not {"", "–"} & {*report.cells_of(line)}, line
