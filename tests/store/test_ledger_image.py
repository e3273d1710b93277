"""The image in the journal's file: whole, damaged, of another release or of other events; upkeep and what it has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.domain.event import Event, JobAnnounced, SamplesReported
from malletrain.domain.job import MalleableJob
from malletrain.loop.ledger import Ledger
from malletrain.store.database import copy
from malletrain.store.errors import StoreError
from malletrain.store.journal import SqliteJournal
from malletrain.store.ledger_image import LedgerImage, image_of, keep_image
from malletrain.store.upkeep import DAY_S, Retention, Upkeep

START = 1_793_491_200.0
ANNOUNCED = Event(START, JobAnnounced(MalleableJob(1, "net", "ada", 1001, "harvest", 1, 8, START)), 1)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with SqliteJournal(tmp_path / "journal.db") as opened:
        opened.append([ANNOUNCED, *(window(second) for second in range(9))])
        yield opened


def window(second: float, samples: float = 10.0) -> Event:
    return Event(START + second, SamplesReported(nodes=1, samples=samples, seconds=5.0, steps=1), 1, "7_0")


def test_the_last_image_is_found(journal: SqliteJournal) -> None:
    assert image_of(journal.path, "fold") is None
    for seq in (4, 9):
        keep_image(journal, LedgerImage(seq, "fold", b"state" * 1000))
    assert image_of(journal.path, "fold") == LedgerImage(9, "fold", b"state" * 1000)
    assert image_of(journal.path, "of another release") is None


def test_a_copy_of_the_journal_has_its_image(journal: SqliteJournal, tmp_path: Path) -> None:
    keep_image(journal, LedgerImage(4, "fold", b"state"))
    copy(journal.path, tmp_path / "backup.db")
    keep_image(journal, LedgerImage(9, "fold", b"later"))
    assert image_of(tmp_path / "backup.db", "fold") == LedgerImage(4, "fold", b"state")


@pytest.mark.parametrize("seq", [0, 11])
def test_an_image_of_events_that_are_not_there_is_refused(journal: SqliteJournal, seq: int) -> None:
    keep_image(journal, LedgerImage(4, "fold", b"state"))
    with pytest.raises(StoreError, match="has no event"):
        keep_image(journal, LedgerImage(seq, "fold", b"other"))
    assert image_of(journal.path, "fold") == LedgerImage(4, "fold", b"state")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE ledger_image SET state = substr(state, 1, length(state) / 2)",
        "UPDATE ledger_image SET state = zeroblob(length(state))",
        "UPDATE ledger_image SET sha256 = ''",
        "UPDATE ledger_image SET seq = 5",
    ],
)
def test_a_damaged_image_is_not_used(journal: SqliteJournal, damage: str) -> None:
    keep_image(journal, LedgerImage(4, "fold", b"state" * 100))
    with closing(sqlite3.connect(journal.path)) as connection, connection:
        connection.execute(damage)
    assert image_of(journal.path, "fold") is None


def test_an_image_newer_than_its_journal_is_not_used(journal: SqliteJournal) -> None:
    keep_image(journal, LedgerImage(10, "fold", b"state"))
    with closing(sqlite3.connect(journal.path)) as connection, connection:
        connection.execute("DELETE FROM event WHERE seq > 5")
        connection.execute("UPDATE sqlite_sequence SET seq = 5 WHERE name = 'event'")
    assert image_of(journal.path, "fold") is None


@given(cut=st.integers(0, 40), now=st.floats(0, 5 * 3600.0), gap=st.sampled_from([60.0, 400.0]))
@settings(max_examples=15)
def test_upkeep_never_merges_what_an_image_has_with_what_it_has_not(
    tmp_path_factory: pytest.TempPathFactory, cut: int, now: float, gap: float
) -> None:
    with SqliteJournal(tmp_path_factory.mktemp("merge") / "j.db") as journal:
        journal.append([ANNOUNCED, *(window(gap * n, 10.0 + n) for n in range(40))])
        whole, begun = Ledger(), Ledger()
        whole.apply(journal.read())
        begun.apply(event for event in journal.read() if event.seq <= cut)
        if cut:
            keep_image(journal, LedgerImage(cut, "fold", b"state"))
        Upkeep(journal, Retention(windows_s=0.0)).tend(START + now)
        begun.apply(journal.read(cut))
        assert begun.views()[1].samples_done == pytest.approx(whole.views()[1].samples_done)


def test_upkeep_with_an_image_still_merges(journal: SqliteJournal) -> None:
    keep_image(journal, LedgerImage(6, "fold", b"state"))
    assert Upkeep(journal, Retention(windows_s=0.0)).tend(START + DAY_S).merged == 4 + 2, "the newest is left alone"
