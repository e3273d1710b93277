"""The page of figures has what its file has, and a row is measured as its form says."""

from __future__ import annotations

import pytest

from scripts.bench import figures


def test_the_page_has_the_tables_of_the_file() -> None:
    page = figures.PAGE.read_text(encoding="utf-8")
    assert figures.written(page, figures.tables()) == page, "run: python -m scripts.bench.figures --write"
    assert {mark[2] for mark in figures.MARKS.finditer(page)} == figures.tables().keys()


def test_each_row_of_runs_can_be_run_again() -> None:
    """By its command, by that of the row above with what the note says, or by the table that it links to."""
    rows = [row for table in figures.tables().values() for row in table["rows"] if isinstance(row, dict)]
    again = [row for row in rows if row.get("note", "").startswith(("the same", "`..."))]
    assert [row["what"] for row in rows if not (row["command"] or row in again or "](#" in row["what"])] == []


def test_a_row_says_what_its_bench_measured_where_and_when(monkeypatch: pytest.MonkeyPatch) -> None:
    form = "{run[results][0][exact_ms][median]:.0f} ms"
    row = {"what": "a plan", "aim": "5 s", "command": "sizing --grid 8x2 --repeats 1 --peers greedy", "form": form}
    found = figures.measured({**row, "measured": "", "date": ""})
    assert 0 <= float(found["measured"].removesuffix(" ms")) < 5000
    assert found["date"] and found["commit"] in figures.cells(found)[3]


def test_a_table_that_is_not_in_the_file_is_named() -> None:
    with pytest.raises(KeyError, match="nothing-of-it"):
        figures.written("<!-- table nothing-of-it -->\n<!-- end -->\n", {})
