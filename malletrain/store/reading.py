"""Reads a journal that another process may be writing: for looks that must not disturb it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select

from malletrain.domain.event import Event
from malletrain.store import tables as t
from malletrain.store.database import reader_engine, storage_errors
from malletrain.store.encoding import row_event


def read_events(path: Path) -> Iterator[Event]:
    """Every event of the journal at `path`, in order; none when there is no journal yet.

    Raises:
        StoreError: the file is there and cannot be read.
    """
    if not path.exists():
        return
    engine = reader_engine(path)
    try:
        with storage_errors(path), engine.begin() as connection:
            for row in connection.execute(select(t.event).order_by(t.event.c.seq)):
                yield row_event(row)
    finally:
        engine.dispose()
