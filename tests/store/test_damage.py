"""A journal whose file is damaged is refused, with the way back; damage that no start meets is found by `check`."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from malletrain.domain.event import Event, PoolCounted
from malletrain.store.errors import StoreError
from malletrain.store.journal import SqliteJournal
from malletrain.store.upkeep import Upkeep
from tests.messages import naming, says

PAGE = 4096


def written(path: Path) -> Path:
    with SqliteJournal(path) as journal:
        for first in range(0, 3000, 500):
            journal.append(
                [Event(time.time(), PoolCounted(idle=i), reason=f"number {i}") for i in range(first, first + 500)]
            )
        with journal.outside_transactions() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return path


def fold(path: Path) -> int:
    """What the daemon does at its start: opens the journal, checks it, and reads every event."""
    with SqliteJournal(path) as journal:
        Upkeep(journal).check()
        return sum(1 for _ in journal.read())


def test_no_damage_is_read_as_something_else(tmp_path: Path) -> None:
    """Pages overwritten at random, one at a time: the journal is refused with what to do, or nothing is lost."""
    whole = written(tmp_path / "whole.db").read_bytes()
    rng, refused = random.Random(1), 0
    pages = len(whole) // PAGE
    for page in [0, *rng.sample(range(1, pages), 25)]:
        path = tmp_path / "damaged.db"
        path.write_bytes(whole[: page * PAGE] + rng.randbytes(PAGE) + whole[(page + 1) * PAGE :])
        try:
            assert fold(path) == 3000, f"page {page}"
        except StoreError as error:
            assert says(" ".join(str(error).split()), path, "backup"), str(error)
            refused += 1
        for left in tmp_path.glob("damaged.db*"):
            left.unlink()
    assert refused >= 25, "nearly every page is in use"


def test_a_file_cut_short_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.db")
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreError, match=naming(path, "backup")):
        fold(path)
    path.write_text("not a database at all, but text that is longer than SQLite's header of a hundred bytes" * 9)
    with pytest.raises(StoreError, match=naming(path, "backup")):
        fold(path)
