"""A copy of another daemon's journal, kept up to date event by event (docs/adr/0018).

The active daemon ships the rows of each append; they are written here as they are, under the same numbers, and folded
into this copy's own projections. What one page of the other's disk has lost cannot come over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, insert, select

from malletrain.store import schema as t
from malletrain.store.database import reader_engine, storage_errors
from malletrain.store.encoding import row_event
from malletrain.store.errors import OutOfStep, StoreError
from malletrain.store.journal import SqliteJournal, last_number
from malletrain.store.pair.fence import raise_epoch, store_pairing, stored_epoch, stored_pairing
from malletrain.store.projections import project

#: Columns of an event as they are shipped, in this order.
COLUMNS = ("seq", "at", "kind", "job", "pilot", "node", "reason", "data")

#: Events of one shipment while a copy is brought up to date.
SHIPMENT_EVENTS = 1000

#: A shipped event: the values of `COLUMNS`.
ShippedRow = Sequence[Any]


class Replica(SqliteJournal):
    """The journal of the passive daemon. It is written by `receive` alone."""

    def receive(self, rows: Sequence[ShippedRow], epoch: int) -> int:
        """Write events in one transaction; those that are here already count as written. Returns the last number,
        durable then.

        Raises:
            Fenced: `epoch` is over; nothing was written.
            OutOfStep: they do not follow the last event here; nothing was written.
            StoreError: a row is not as it should be, or the disk refuses; nothing was written.
        """
        given = [_columns(row) for row in rows]
        with self.writing() as connection:
            raise_epoch(connection, epoch)
            last = last_number(connection)
            new = [row for row in given if row["seq"] > last]
            if [row["seq"] for row in new] != list(range(last + 1, last + 1 + len(new))):
                raise OutOfStep(f"{self.path}: the next event here is {last + 1}, and {given[0]['seq']} came")
            if new:
                connection.execute(insert(t.event), new)
                project(connection, [row_event(SimpleNamespace(**row)) for row in new])  # type: ignore[arg-type]
                last = new[-1]["seq"]
            self._last = last
        return last

    def pair(self, epoch: int, pairing: int) -> None:
        """Note that all that is acknowledged from now on is here, until the active daemon gives the pairing up.

        Raises:
            Fenced: `epoch` is over.
        """
        with self.writing() as connection:
            store_pairing(connection, epoch, pairing)

    def fence(self) -> tuple[int, int]:
        """The epoch that last wrote here, and the pairing."""
        with self.writing() as connection:
            return stored_epoch(connection), stored_pairing(connection)

    def tip(self) -> tuple[int, str]:
        """The number of the last event, and the digest of its row."""
        with self.writing() as connection:
            last = last_number(connection)
            return last, _digest(connection, last)


class ShippingReader:
    """Reads the active daemon's journal for its replica, beside the writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine = reader_engine(path, connections=1)

    def close(self) -> None:
        """Close the file."""
        self._engine.dispose()

    def is_prefix(self, last: int, digest: str) -> bool:
        """Whether a copy whose last event has this number and digest holds nothing that this journal has not, and
        can be brought up to date event by event."""
        with storage_errors(self._path), self._engine.begin() as connection:
            own = last_number(connection)
            if last > own:
                return False
            after = connection.execute(select(t.event.c.seq).where(t.event.c.seq > last).limit(own - last)).fetchall()
            # Events beyond that were archived or merged are missing: then the file is copied whole.
            return len(after) == own - last and (last == 0 or _digest(connection, last) == digest)

    def after(self, last: int) -> Iterator[list[list[Any]]]:
        """The rows of events above `last`, in shipments."""
        while True:
            with storage_errors(self._path), self._engine.begin() as connection:
                rows = connection.execute(
                    select(*(t.event.c[name] for name in COLUMNS))
                    .where(t.event.c.seq > last)
                    .order_by(t.event.c.seq)
                    .limit(SHIPMENT_EVENTS)
                ).fetchall()
            if not rows:
                return
            yield [list(row) for row in rows]
            last = rows[-1].seq


def _columns(row: ShippedRow) -> dict[str, Any]:
    if len(row) != len(COLUMNS):
        raise StoreError(f"an event has {len(row)} columns, not {len(COLUMNS)}: is the peer of another release?")
    return dict(zip(COLUMNS, row, strict=True))


def _digest(connection: Connection, seq: int) -> str:
    """Of an event's row; empty where the journal no longer has it."""
    query = select(*(t.event.c[name] for name in COLUMNS)).where(t.event.c.seq == seq)
    row = connection.execute(query).first()
    return "" if row is None else digest_of(dict(row._mapping))


def digest_of(row: Mapping[str, Any]) -> str:
    """SHA-256 of an event's columns, as hex digits."""
    text = json.dumps([row[name] for name in COLUMNS], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
