"""Journals of earlier schemas (`journals/schemaN.sql`: that of 0.1.0 and the one before this) are brought
up to date, and mean the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from malletrain.domain.event import UnknownFact
from malletrain.loop.ledger import Ledger
from malletrain.store import schema as t
from malletrain.store.journal import SqliteJournal, read_events
from malletrain.store.views import StoreViews
from tests.store.folded_anew import PROJECTIONS, fold_anew

FOLDER = Path(__file__).with_name("journals")
EARLIER = sorted(int(path.stem.removeprefix("schema")) for path in FOLDER.iterdir())


def written_by(schema: int, path: Path) -> Path:
    """The journal of the release that had this schema."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((FOLDER / f"schema{schema}.sql").read_text())
    return path


def tables(path: Path) -> dict[str, Sequence[object]]:
    with closing(sqlite3.connect(path)) as connection:
        return {
            table.name: connection.execute(f"SELECT * FROM {table.name} ORDER BY 1, 2").fetchall()
            for table in (t.event, *PROJECTIONS)
        }


@pytest.mark.parametrize("schema", EARLIER)
def test_it_is_brought_up_to_date_and_folds_to_the_same_tables(schema: int, tmp_path: Path) -> None:
    path = written_by(schema, tmp_path / "journal.db")
    before = [(event.seq, event.at, str(event.kind), event.job, event.pilot) for event in read_events(path)]
    with SqliteJournal(path) as journal:
        events = list(journal.read())
        assert [(event.seq, event.at, str(event.kind), event.job, event.pilot) for event in events] == before
        assert not [event for event in events if isinstance(event.payload, UnknownFact)]
        migrated = tables(path)
        assert fold_anew(journal) == len(events) == 36
        assert tables(path) == migrated
    ledger = Ledger()
    ledger.apply(events)
    views = ledger.views()
    assert {number: view.phase.value for number, view in views.items()} == {1: "queued", 2: "cancelled"}
    assert views[1].job.weight == 2.0
    shown = StoreViews(path)
    try:
        (job,) = shown.jobs(over=False)
    finally:
        shown.close()
    assert (job.samples, job.resizes, job.preemptions, job.metrics) == (980.0, 2, 1, {"loss": 0.5})
    with closing(sqlite3.connect(f"{path}.schema{schema}")) as copy:
        assert copy.execute("SELECT max(version) FROM schema_version").fetchone() == (schema,), "to go back to"


def test_all_of_them_come_to_the_same_tables(tmp_path: Path) -> None:
    found = []
    for schema in EARLIER:
        path = written_by(schema, tmp_path / f"{schema}.db")
        with SqliteJournal(path) as journal:
            fold_anew(journal)
        found.append({name: rows for name, rows in tables(path).items() if name != "event"})
    assert all(each == found[-1] for each in found)
