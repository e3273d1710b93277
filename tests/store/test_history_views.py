"""The past, as it is read back from a journal on disk."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from malletrain.store.history_views import StoreHistory
from malletrain.store.journal import SqliteJournal
from tests.web.invented_past import InventedMachine
from tests.world import data_of

NOW = 1_700_000_000.0
MACHINE = InventedMachine(16, 4, 2.0, NOW, mean_main_s=900.0, mean_hole_s=600.0)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[SqliteJournal, StoreHistory]:
    journal = SqliteJournal(tmp_path_factory.mktemp("past") / "journal.db")
    MACHINE.write(journal)
    return journal, StoreHistory(journal.path)


def test_an_invented_past_is_the_same_each_time(tmp_path: Path, past: tuple[SqliteJournal, StoreHistory]) -> None:
    again = SqliteJournal(tmp_path / "journal.db")
    MACHINE.write(again)
    assert list(again.read()) == list(past[0].read())


def test_stays_are_those_of_the_events(past: tuple[SqliteJournal, StoreHistory]) -> None:
    journal, history = past
    begun = Counter((e.job, e.node) for e in journal.read() if e.kind == "pilot_started")
    stays = history.stays(0.0)
    assert Counter((stay.job, stay.node) for stay in stays) == begun
    since = NOW - 1800
    assert history.stays(since) == tuple(s for s in stays if s.ended_at is None or s.ended_at >= since)
    assert history.stays_of(2, 10_000) == tuple(stay for stay in stays if stay.job == 2)
    assert len(history.stays_of(2, 3)) == 3


def test_holes_and_counts(past: tuple[SqliteJournal, StoreHistory]) -> None:
    journal, history = past
    since = NOW - 1800
    found = history.holes(since)
    wanted = [e for e in journal.read() if e.at >= since and e.kind in ("holes_opened", "holes_ended")]
    assert [(change.at, change.nodes[0], change.opened) for change in found] == [
        (event.at, data_of(event)["nodes"][0], event.kind == "holes_opened")  # type: ignore[index]
        for event in wanted
    ]
    counts = history.pool(since)
    assert counts[0].at < since <= counts[1].at
    assert all(row.idle + row.harvested + row.main + row.down == 16 for row in counts)


def test_worlds_and_windows_of_a_job(past: tuple[SqliteJournal, StoreHistory]) -> None:
    history = past[1]
    worlds = history.worlds(1, 500)
    assert all(after.before in (before.nodes, 0) for before, after in pairwise(worlds))
    assert history.worlds(1, 5) == worlds[-5:]
    windows = history.windows(1, 2000)
    assert windows == tuple(sorted(windows, key=lambda window: window.at))
    assert all(window.rate > 0 and window.nodes > 0 for window in windows)
    assert history.windows(1, 7) == windows[-7:]
