"""Keeps the journal small and sound: merges old windows of training, deletes old events, gives room back.

What is merged or deleted is chosen so that the projections stay as they are, folded anew too: sums are kept within
the hour, the newest window of a job is left alone, and jobs whose events are deleted keep their rows."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Row, Select, delete, func, or_, select, update

from malletrain.domain import event as kinds
from malletrain.store import schema as t
from malletrain.store.database import storage_errors, verify
from malletrain.store.journal import SqliteJournal
from malletrain.store.projections import SHORTEST_WINDOW_S

DAY_S = 86_400.0

#: Events handled in one transaction: appends wait a fraction of a second for one. Old SQLite takes 999 parameters.
EVENTS_PER_TRANSACTION = 900

#: Kinds that are deleted first: only the pool's history, and which nodes became idle together, are folded from
#: them, and of both the newest counts.
_NOTE_KINDS = (
    kinds.SizesDecided.kind,
    kinds.PoolCounted.kind,
    kinds.MainJobsStarted.kind,
    kinds.MainJobsArrived.kind,
    kinds.MainJobMet.kind,
    kinds.HolesOpened.kind,
    kinds.HolesEnded.kind,
    kinds.SlurmUnavailable.kind,
)

#: What is merged.
_FIGURES = (kinds.SamplesReported.kind, kinds.MetricReported.kind)


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long (seconds) things stay as they were written.

    What a start reads of the events that are left says `malletrain.store.start`."""

    #: Then windows of training and reported figures are merged by the hour. A job that reports every 3 s makes 28,800
    #: a day; what is learnt goes by the last 32 of each size (`malletrain.learn.samples`).
    windows_s: float = 3600.0
    notes_s: float = 30 * DAY_S  #: then decisions, refusals, holes and node counts are deleted
    #: After its end a job's events are deleted; its row and usage stay. Budgets go by calendar months.
    jobs_s: float = 60 * DAY_S


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """What one round of upkeep has done: numbers of events, and bytes given back to the file system."""

    merged: int = 0
    deleted: int = 0
    freed_bytes: int = 0


class Upkeep:
    """Tends one journal, beside the daemon that writes it."""

    def __init__(self, journal: SqliteJournal, retention: Retention | None = None) -> None:
        self._journal = journal
        self._retention = retention or Retention()

    def tend(self, now: float) -> UpkeepReport:
        """One round, in many short transactions. Raises StoreError: the disk refuses."""
        merged = self._merge_windows(now - self._retention.windows_s)
        notes = (t.event.c.at < now - self._retention.notes_s, t.event.c.kind.in_(_NOTE_KINDS))
        deleted = self._delete(select(t.event.c.seq).where(*notes).order_by(t.event.c.seq))
        deleted += sum(map(self._delete_events, self._old_jobs(now)))
        return UpkeepReport(merged, deleted, self._give_back())

    def check(self) -> None:
        """Look through the whole file for damage; the daemon may write meanwhile.
        Raises StoreError: it is damaged."""
        with (
            storage_errors(self._journal.path),
            closing(sqlite3.connect(f"file:{quote(str(self._journal.path))}?mode=ro", uri=True)) as connection,
        ):
            verify(connection, self._journal.path)

    # --- merging

    def _merge_windows(self, before: float) -> int:
        """Merge old windows by job, size and hour; of figures keep the hour's last."""
        old = (t.event.c.kind.in_(_FIGURES), t.event.c.at < before, t.event.c.job.is_not(None))
        with self._journal.writing() as connection:
            jobs = connection.scalars(select(t.event.c.job).where(*old).distinct().order_by(t.event.c.job)).all()
        return sum(self._merge_job(job, before) for job in jobs)

    def _merge_job(self, job: int, before: float) -> int:
        with self._journal.writing() as connection:
            if _mixes_counts(connection, job):
                return 0
            # What is appended meanwhile is newer still, and the job's rate comes from the newest alone.
            long_enough = func.json_extract(t.event.c.data, "$.seconds") >= SHORTEST_WINDOW_S
            windows = (t.event.c.job == job, t.event.c.kind == kinds.SamplesReported.kind)
            newest = connection.execute(select(func.max(t.event.c.seq)).where(*windows, long_enough)).scalar()
        merged, after = 0, 0
        while True:
            with self._journal.writing() as connection:
                old = (t.event.c.job == job, t.event.c.seq > after, t.event.c.at < before)
                query = select(t.event).where(*old, t.event.c.kind.in_(_FIGURES)).order_by(t.event.c.seq)
                rows = connection.execute(query.limit(EVENTS_PER_TRANSACTION)).all()
                # Only what was written one after the other within an hour: sums by day then stay as they are.
                for _, part in groupby(rows, key=lambda row: row.at // 3600.0):
                    groups: dict[Any, list[Row[Any]]] = {}
                    for row in part:
                        key = _group(row)
                        if key is not None and row.seq != newest:
                            groups.setdefault(key, []).append(row)
                    for group in groups.values():
                        merged += _merge(connection, group)
            if len(rows) < EVENTS_PER_TRANSACTION:
                return merged
            after = rows[-1].seq

    # --- deleting

    def _old_jobs(self, now: float) -> Sequence[int]:
        """Jobs that ended long ago and have events."""
        open_stay = select(t.stay.c.job).where(t.stay.c.ended_at.is_(None))
        query = select(t.job.c.id).where(
            t.job.c.ended_at < now - self._retention.jobs_s,
            or_(t.job.c.archived == 0, t.job.c.id.in_(select(t.event.c.job))),
            t.job.c.id.not_in(open_stay),
        )
        with self._journal.writing() as connection:
            return connection.scalars(query).all()

    def _delete_events(self, job: int) -> int:
        with self._journal.writing() as connection:
            # First the mark: a job of which half is deleted must not be folded anew from what is left.
            connection.execute(update(t.job).where(t.job.c.id == job).values(archived=1))
        return self._delete(select(t.event.c.seq).where(t.event.c.job == job))

    def _delete(self, numbers: Select[tuple[int]]) -> int:
        total = 0
        while True:
            with self._journal.writing() as connection:
                part = connection.scalars(numbers.limit(EVENTS_PER_TRANSACTION)).all()
                connection.execute(delete(t.event).where(t.event.c.seq.in_(part)))
                connection.execute(delete(t.pool).where(t.pool.c.seq.in_(part)))
            total += len(part)
            if len(part) < EVENTS_PER_TRANSACTION:
                return total

    # --- room

    def _give_back(self) -> int:
        before = self._journal.path.stat().st_size
        with self._journal.outside_transactions() as connection:
            # As a script: `execute` gives back one page and stops.
            connection.executescript("PRAGMA incremental_vacuum(2500)")  # pages of 4 KiB
            connection.execute("PRAGMA optimize")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return max(0, before - self._journal.path.stat().st_size)


def _mixes_counts(connection: Connection, job: int) -> bool:
    """Whether some of a job's windows tell the job's total and some do not: their order then matters."""
    of_job = (t.event.c.job == job, t.event.c.kind == kinds.SamplesReported.kind)
    counted = func.count(func.json_extract(t.event.c.data, "$.total"))
    all_of_them, with_total = connection.execute(select(func.count(), counted).where(*of_job)).one()
    return 0 < with_total < all_of_them


def _group(row: Row[Any]) -> tuple[Any, ...] | None:
    """What an event is merged with; None for one that is left alone."""
    data = json.loads(row.data)
    if row.kind == kinds.MetricReported.kind:
        return (row.kind, str(data.get("name")))
    figures = [data.get(key) for key in ("nodes", "samples", "seconds", "steps", "total")]
    if any(isinstance(v, bool) or not isinstance(v, (int, float, type(None))) for v in figures):
        return None
    if None in figures[:4] or data["seconds"] < SHORTEST_WINDOW_S:
        return None
    return (row.kind, data["nodes"], data.get("steady"), row.pilot)


def _merge(connection: Connection, group: list[Row[Any]]) -> int:
    """Put a group's sums into its last event, and drop the others; returns how many."""
    if len(group) < 2:
        return 0
    last = group[-1]
    if last.kind == kinds.SamplesReported.kind:
        data = json.loads(last.data)
        data.pop("parts", None)  # a breakdown of one window's seconds
        each = [json.loads(row.data) for row in group]
        for key in ("samples", "seconds", "steps"):
            data[key] = sum(one[key] for one in each)
        if data.get("total") is not None:
            data["total"] = max(one["total"] for one in each)
        data["merged"] = sum(one.get("merged", 1) for one in each)
        connection.execute(update(t.event).where(t.event.c.seq == last.seq).values(data=json.dumps(data)))
    connection.execute(delete(t.event).where(t.event.c.seq.in_([row.seq for row in group[:-1]])))
    return len(group) - 1
