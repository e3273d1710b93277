"""Reads events in batches, beside the writer: no transaction stays open in between, which would hold up WAL's
checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from sqlalchemy import Connection, select

from malletrain.domain.event import Event, EventKind
from malletrain.store import schema as t
from malletrain.store.database import reader_engine, storage_errors
from malletrain.store.encoding import row_event

#: Events read in one go.
READ_BATCH = 2000


def read_events(path: Path, kinds: Collection[EventKind] = (), after: int = 0) -> Iterator[Event]:
    """The events of the journal at `path` with `seq` above `after`, or those of these kinds, in order; none when
    there is no journal yet.

    For looks that must not disturb the daemon that may be writing it.
    Raises StoreError: the file is there and cannot be read."""
    if not path.exists():
        return
    engine = reader_engine(path, connections=1)
    try:
        while True:
            with storage_errors(path), engine.begin() as connection:
                batch = batch_after(connection, after, kinds)
            if not batch:
                return
            yield from batch
            after = batch[-1].seq
    finally:
        engine.dispose()


def batch_after(connection: Connection, after: int, kinds: Collection[EventKind] = ()) -> list[Event]:
    """The next events with `seq` above `after`, or those of these kinds; none at the end."""
    query = select(t.event).where(t.event.c.seq > after).order_by(t.event.c.seq).limit(READ_BATCH)
    if kinds:
        query = query.where(t.event.c.kind.in_([kind.value for kind in kinds]))
    return [row_event(row) for row in connection.execute(query)]


def observed_path(journal: Path) -> Path:
    """Where `malletraind --observe` keeps its journal: beside that of real jobs, the daemon's at `journal`."""
    return journal.with_name(f"{journal.stem}-observed{journal.suffix}")
