"""Copies of the journal while it is written (sqlite.org/backup.html)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from malletrain.store.database import storage_errors
from malletrain.store.errors import StoreError


def copy(source: Path, target: Path) -> None:
    """Copy the journal whole, as it is at one moment, into a file for its owner's eyes only.

    The target appears when it is complete, checked and on the disk; one that is there is replaced.
    Raises StoreError: the source cannot be read, or the target not be written."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        raise StoreError(f"{draft}: {error.strerror}: choose a folder that can be written") from error
    try:
        with (
            storage_errors(source),
            closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)) as origin,
            closing(sqlite3.connect(draft)) as copied,
        ):
            origin.backup(copied)
            # A copy of a database in WAL mode is in WAL mode too: as one file it is easier to keep.
            copied.execute("PRAGMA journal_mode=DELETE")
            verify(copied, draft)
        _sync(draft)
        draft.replace(target)
        _sync(target.parent)
    finally:
        draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that the database is sound: its pages, its indexes, its references.
    Raises StoreError: it is not; says what is wrong first."""
    faults = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
    faults += [f"{row[0]} points at no {row[2]}" for row in connection.execute("PRAGMA foreign_key_check")]
    if faults:
        raise StoreError(f"{path}: the journal is damaged ({faults[0]}): move it away and restore the last backup")
