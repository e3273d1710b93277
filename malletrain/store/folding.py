"""What the projections share: statements about one event, reading its fields, counting into days."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Literal

from sqlalchemy import Connection, CursorResult

from malletrain.domain.event import Event


class OneEvent:
    """An event that is folded over a connection. In statements `:job`, `:pilot`, `:at`, `:reason` are the event's."""

    def __init__(self, connection: Connection, event: Event) -> None:
        self.connection, self.event = connection, event

    def but(self, **changes: Any) -> "OneEvent":
        """The same event, with other fields."""
        return OneEvent(self.connection, replace(self.event, **changes))

    def do(self, sql: str, **values: object) -> CursorResult[Any]:
        """Run one statement."""
        event = self.event
        parameters = {"job": event.job, "pilot": event.pilot, "at": event.at, "reason": event.reason, **values}
        return self.connection.exec_driver_sql(sql, parameters)

    def insert(self, table: str, on_conflict: Literal["ABORT", "IGNORE", "REPLACE"], **row: object) -> None:
        """Insert one row, in SQLite's way where there is one of its key (sqlite.org/lang_conflict.html)."""
        self.connection.exec_driver_sql(_insertion(table, on_conflict, tuple(row)), row)

    def update(self, table: str, where: str, **columns: object) -> None:
        """Set columns."""
        self.do(_update(table, where, tuple(columns)), **columns)

    def update_job(self, **columns: object) -> None:
        """Set columns of the event's job."""
        self.update("job", "id = :job", **columns)

    def is_known(self) -> bool:
        """Whether the event's job was announced."""
        return self.do("SELECT 1 FROM job WHERE id = :job").first() is not None

    def members(self) -> list[str]:
        """The pilots of the job's present world."""
        found = self.do("SELECT members FROM job WHERE id = :job").scalar()
        return [] if found is None else list(json.loads(found))

    def set_members(self, members: list[str]) -> None:
        """The job's present world; with none, the next switch is a start and no resize."""
        self.update_job(members=json.dumps(members), **({} if members else {"world_nodes": 0}))

    def time(self, said: float | None) -> float:
        """A time that Slurm gave, or the event's own where it gave none that can be right (a year away, or more)."""
        at = self.event.at
        return at if said is None or not abs(said - at) <= 366 * 86400 else said

    def use(self, day: str, column: Literal["node_seconds", "samples", "stays", "preemptions"], more: float) -> None:
        """Add to the usage of the event's job on one day."""
        self.do(
            f"INSERT INTO usage (day, job, {column}) VALUES (:day, :job, :more)"
            f" ON CONFLICT (day, job) DO UPDATE SET {column} = {column} + :more",
            day=day,
            more=more,
        )


@cache
def _insertion(table: str, on_conflict: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f":{name}" for name in columns)
    return f"INSERT OR {on_conflict} INTO {table} ({', '.join(columns)}) VALUES ({values})"


@cache
def _update(table: str, where: str, columns: tuple[str, ...]) -> str:
    return f"UPDATE {table} SET {', '.join(f'{name} = :{name}' for name in columns)} WHERE {where}"


def number(value: float | None) -> float | None:
    """A figure that sums of it can bear; None for one beyond 10^18."""
    return None if value is None or not -1e18 <= value <= 1e18 else float(value)


def whole(value: int | None) -> int | None:
    """A whole number that SQLite can hold; None for one beyond 10^18."""
    return None if number(value) is None else value


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
