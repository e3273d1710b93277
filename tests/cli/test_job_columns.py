"""A new column of `status`: declared once, it is at the terminal and on the page, and its checklist is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from malletrain.cli import render
from malletrain.store import views
from malletrain.web import series
from malletrain.wire import job_columns
from malletrain.wire.job_columns import JobColumn
from tests.cli import pictures

ROOT = Path(__file__).resolve().parents[2]


def test_a_column_that_is_declared_is_at_the_terminal_and_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = JobColumn("LOST", lambda row: f"{row.lost_workers} lost", number=True)
    for room in (render, series):
        monkeypatch.setattr(room, "JOB_COLUMNS", (*job_columns.JOB_COLUMNS, lost))
    row = pictures.DIGITS
    head, first = render.plain(render.jobs([row], width=200)).splitlines()
    assert re.search(rf"{job_columns.JOB_COLUMNS[-1].head} +LOST  WHY", head)
    assert f"{row.lost_workers} lost" in first
    assert series.short_job(row)["cells"][-1] == ["LOST", True, f"{row.lost_workers} lost"]


def test_a_column_that_the_page_draws_itself_is_not_sent_twice() -> None:
    sent = {head for head, *_ in series.short_job(pictures.DIGITS).get("cells", [])}
    assert sent == {column.head for column in job_columns.JOB_COLUMNS if not column.drawn}


def test_a_field_with_the_name_of_a_column_of_the_journal_is_that_column() -> None:
    assert {"lost_workers", "preemptions", "weight", "fixed_nodes"} <= set(views._OF_JOB)


def test_the_checklist_names_six_files_at_most_that_are_there() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    item = re.search(r"- \*\*A column of `status`\*\*:(.*?)\n- \*\*A kind of event", page, re.DOTALL)
    assert item is not None
    files = set(re.findall(r"`([\w/]+\.\w+)`", item[1]))
    assert len(files) + 1 <= 6, "and a new file in sql/"
    assert all((ROOT / file).is_file() for file in files)
