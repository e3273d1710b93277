"""A copy of a journal: the same rows and projections, in order, from the daemon of the latest epoch alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from malletrain.domain.event import ArrayAttached, Event, JobAnnounced, PoolCounted
from malletrain.domain.job import MalleableJob
from malletrain.store.errors import Fenced, OutOfStep, StoreError
from malletrain.store.journal import SqliteJournal
from malletrain.store.pair.replica import Replica, ShippingReader

JOB = MalleableJob(id=1, name="a", user="ada", uid=1, account="", min_nodes=1, max_nodes=2, submitted_at=1.0)
EVENTS = [
    Event(1.0, JobAnnounced(JOB), 1),
    Event(2.0, ArrayAttached(7, 3), 1),
    *(Event(3.0 + i, PoolCounted(idle=i), reason=f"{i}") for i in range(5)),
]


def rows_of(path: Path) -> list[list[object]]:
    with closing(ShippingReader(path)) as reader:
        return [row for rows in reader.after(0) for row in rows]


def tables(path: Path) -> dict[str, Sequence[object]]:
    with closing(sqlite3.connect(path)) as connection:
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in ("event", "job", "pool")}


def test_the_copy_has_the_same_rows_and_tables(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "a") as journal, Replica(tmp_path / "b") as copy:
        journal.append(EVENTS)
        rows = rows_of(journal.path)
        assert copy.receive(rows[:3], 1) == 3
        assert copy.receive(rows[1:], 1) == len(rows), "those that are there already count as written"
        assert copy.receive(rows, 1) == copy.last == len(rows)
        assert tables(tmp_path / "a") == tables(tmp_path / "b")
        with closing(ShippingReader(journal.path)) as reader:
            assert reader.is_prefix(*copy.tip())
            journal.append(EVENTS[2:])
            assert reader.is_prefix(*copy.tip())
            assert not reader.is_prefix(copy.tip()[0], "another row")
            assert not reader.is_prefix(100, "")


def test_gaps_and_wrong_rows_are_refused_whole(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "a") as journal, Replica(tmp_path / "b") as copy:
        journal.append(EVENTS)
        rows = rows_of(journal.path)
        with pytest.raises(OutOfStep, match="the next event here is 1, and 2 came"):
            copy.receive(rows[1:], 1)
        with pytest.raises(StoreError, match="columns"):
            copy.receive([rows[0][:-1]], 1)
        assert copy.tip() == (0, "")


def test_an_earlier_epoch_neither_writes_the_copy_nor_its_own_journal(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "a", epoch=3) as journal, Replica(tmp_path / "b") as copy:
        journal.append(EVENTS[:2])
        rows = rows_of(journal.path)
        copy.receive(rows[:1], 4)
        with pytest.raises(Fenced, match="epoch 4"):
            copy.receive(rows, 3)
        with pytest.raises(Fenced, match="epoch 4"):
            copy.pair(3, 9)
        assert copy.fence() == (4, 0)
        # What another process writes into the same file counts in the transaction of the append.
        with closing(sqlite3.connect(tmp_path / "a")) as other, other:
            other.execute("UPDATE fence SET epoch = 4")
        with pytest.raises(Fenced, match="this daemon's is 3"):
            journal.append(EVENTS[2:])
        assert len(rows_of(journal.path)) == 2
    with pytest.raises(Fenced):
        SqliteJournal(tmp_path / "b", epoch=3)
    SqliteJournal(tmp_path / "b", epoch=5).close()
