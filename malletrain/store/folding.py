"""What the projections share: one statement for one event, reading an event's fields, counting into days."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Literal

from sqlalchemy import Connection, CursorResult

from malletrain.domain.event import Event


def do(connection: Connection, sql: str, /, event: Event, **values: object) -> CursorResult[Any]:
    """Run one statement; `:job`, `:pilot`, `:at`, `:reason` are the event's."""
    parameters = {"job": event.job, "pilot": event.pilot, "at": event.at, "reason": event.reason, **values}
    return connection.exec_driver_sql(sql, parameters)


def insert(
    connection: Connection, table: str, on_conflict: Literal["ABORT", "IGNORE", "REPLACE"], **row: object
) -> None:
    """Insert one row, in SQLite's way where there is one of its key (sqlite.org/lang_conflict.html)."""
    connection.exec_driver_sql(_insertion(table, on_conflict, tuple(row)), row)


@cache
def _insertion(table: str, on_conflict: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f":{name}" for name in columns)
    return f"INSERT OR {on_conflict} INTO {table} ({', '.join(columns)}) VALUES ({values})"


def number(value: float | None) -> float | None:
    """A figure that sums of it can bear; None for one beyond 10^18."""
    return None if value is None or not -1e18 <= value <= 1e18 else float(value)


def whole(value: int | None) -> int | None:
    """A whole number that SQLite can hold; None for one beyond 10^18."""
    return None if number(value) is None else value


def time_of(event: Event, said: float | None) -> float:
    """A time that Slurm gave, or the event's own where it gave none that can be right (a year away, or more)."""
    return event.at if said is None or not abs(said - event.at) <= 366 * 86400 else said


def is_known(connection: Connection, event: Event) -> bool:
    """Whether the event's job was announced."""
    return do(connection, "SELECT 1 FROM job WHERE id = :job", event).first() is not None


def members_of(connection: Connection, event: Event) -> list[str]:
    """The pilots of the job's present world."""
    found = do(connection, "SELECT members FROM job WHERE id = :job", event).scalar()
    return [] if found is None else list(json.loads(found))


def set_members(connection: Connection, event: Event, members: list[str]) -> None:
    """The job's present world; with none, the next switch is a start and no resize."""
    do(
        connection,
        "UPDATE job SET members = :members, world_nodes = CASE :count WHEN 0 THEN 0 ELSE world_nodes END"
        " WHERE id = :job",
        event,
        members=json.dumps(members),
        count=len(members),
    )


# --- counting into days -----------------------------------------------------------------------------------------


def days(start: float, end: float) -> Iterator[tuple[str, float]]:
    """The seconds of each UTC day between two Unix times."""
    while start < end:
        day = datetime.fromtimestamp(start, UTC).date()
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        until = min(end, midnight.timestamp())
        yield day.isoformat(), until - start
        start = until


def day_of(at: float) -> str:
    """The UTC day of a Unix time."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def use(
    connection: Connection,
    event: Event,
    day: str,
    node_seconds: float = 0.0,
    samples: float = 0.0,
    stays: int = 0,
    preemptions: int = 0,
) -> None:
    """Add to the usage of the event's job on one day."""
    do(
        connection,
        "INSERT INTO usage (day, job, node_seconds, samples, stays, preemptions)"
        " VALUES (:day, :job, :node_seconds, :samples, :stays, :preemptions)"
        " ON CONFLICT (day, job) DO UPDATE SET node_seconds = node_seconds + excluded.node_seconds,"
        " samples = samples + excluded.samples, stays = stays + excluded.stays,"
        " preemptions = preemptions + excluded.preemptions",
        event,
        day=day,
        node_seconds=node_seconds,
        samples=samples,
        stays=stays,
        preemptions=preemptions,
    )
