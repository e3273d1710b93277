"""The journal on disk: the port `loop.ports.Journal` over SQLite."""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, func, insert, select, text

from malletrain.domain.event import Event
from malletrain.store import schema as t
from malletrain.store.database import WriterLock, copy, create_file, reading, storage_errors, writer_engine
from malletrain.store.encoding import event_row, row_event
from malletrain.store.errors import StoreError
from malletrain.store.migrate import migrate
from malletrain.store.projections import project
from malletrain.wire.codec import steers_nothing

#: Events read in one go.
READ_BATCH = 2000


class SqliteJournal:
    """The append-only record and, in the same transactions, the projections that people read.

    One process writes a journal at a time, held by a lock; its threads take turns. Close it when done."""

    def __init__(self, path: Path, *, mode: int = 0o600) -> None:
        """Open the journal at `path`, made with file mode `mode` if it is new, and bring its schema up to date.
        Raises JournalInUse: another process writes it; StoreError: a newer release wrote it,
        or folder or file cannot be used; the message says why."""
        self.path = path
        self._writer_lock = threading.Lock()
        self._listeners: list[Callable[[int], None]] = []
        self._closed = False
        create_file(path, mode)
        self._lock = WriterLock(path, mode)
        self._writer = writer_engine(path)
        try:
            with storage_errors(path):
                migrate(
                    self._writer, before=lambda version: copy(path, path.with_name(f"{path.name}.schema{version}"))
                )
                with self._writer.begin() as connection:
                    self._last = last_number(connection)
        except BaseException:
            self.close()
            raise

    @property
    def last(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._last

    def append(self, events: Iterable[Event]) -> Sequence[Event]:
        """Write in one transaction; returns the events with their numbers. Durable when it returns.

        Reasons are written without control characters (`steers_nothing`).
        Raises InvalidInput: an event holds something that JSON cannot; nothing was written; StoreError: the disk or
        the file refuses; nothing was written."""
        cleaned = [
            # Slurm's words (names, reasons of nodes) are in reasons; people look at the file with sqlite3, too.
            event if event.reason.isprintable() else replace(event, reason=steers_nothing(event.reason))
            for event in events
        ]
        rows = [event_row(event) for event in cleaned]
        if not cleaned:
            return ()
        with self._writer_lock:
            self._check_open()
            with storage_errors(self.path), self._writer.begin() as connection:
                # Read anew: a commit whose answer was lost may have been written after all.
                first = last_number(connection) + 1
                numbered = [replace(event, seq=first + i) for i, event in enumerate(cleaned)]
                for row, event in zip(rows, numbered, strict=True):
                    row["seq"] = event.seq
                connection.execute(insert(t.event), rows)
                project(connection, numbered)
            self._last = numbered[-1].seq
        for listener in tuple(self._listeners):
            listener(self._last)
        return tuple(numbered)

    def probe(self) -> None:
        """Write and take back a page, to learn whether an append would do. Raises StoreError: it would not."""
        with self.writing() as connection:
            connection.execute(text("UPDATE event SET seq = seq WHERE seq = (SELECT max(seq) FROM event)"))

    def read(self, after: int = 0) -> Iterator[Event]:
        """Events with `seq` above `after`, in order, as they are when read."""
        return read_events(self.path, after=after)

    def on_append(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with the newest number after each append, in the thread that appended. It must be quick."""
        self._listeners.append(listener)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction of the writer, for upkeep: nothing is appended meanwhile, so be quick."""
        with self._writer_lock:
            self._check_open()
            with storage_errors(self.path), self._writer.begin() as connection:
                yield connection

    @contextmanager
    def outside_transactions(self) -> Iterator[sqlite3.Connection]:
        """SQLite's own connection of the writer, for what no transaction may hold: checkpoints, vacuum."""
        with self._writer_lock:
            self._check_open()
            with storage_errors(self.path), closing(self._writer.raw_connection()) as connection:
                inner = connection.driver_connection
                if not isinstance(inner, sqlite3.Connection):
                    raise StoreError(f"{self.path}: the journal is closed")
                yield inner

    def close(self) -> None:
        """Give the file back. Idempotent."""
        with self._writer_lock:
            self._closed = True
            self._writer.dispose()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the journal is closed")


def last_number(connection: Connection) -> int:
    """The highest number ever given, also when its event is deleted (sqlite.org/autoinc.html)."""
    ever = connection.execute(text("SELECT seq FROM sqlite_sequence WHERE name = 'event'")).scalar()
    kept = connection.execute(select(func.max(t.event.c.seq))).scalar()
    return max(ever or 0, kept or 0)


# --- reading beside the writer: no transaction stays open in between, which would hold up WAL's checkpoints ------


def read_events(path: Path, after: int = 0) -> Iterator[Event]:
    """The events of the journal at `path` with `seq` above `after`, in order; none when there is no journal yet.

    For looks that must not disturb the daemon that may be writing it.
    Raises StoreError: the file is there and cannot be read."""
    if not path.exists():
        return
    while True:
        with reading(path) as connection:
            batch = batch_after(connection, after)
        if not batch:
            return
        yield from batch
        after = batch[-1].seq


def batch_after(connection: Connection, after: int) -> list[Event]:
    """The next events with `seq` above `after`; none at the end."""
    query = select(t.event).where(t.event.c.seq > after).order_by(t.event.c.seq).limit(READ_BATCH)
    return [row_event(row) for row in connection.execute(query)]


def observed_path(journal: Path) -> Path:
    """Where `malletraind --observe` keeps its journal: beside that of real jobs, the daemon's at `journal`."""
    return journal.with_name(f"{journal.stem}-observed{journal.suffix}")
