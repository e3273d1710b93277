"""What the journal has of the past, for pictures: nodes and jobs over time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Select, func, select

from malletrain.domain.event import HolesEnded, HolesOpened, SamplesReported
from malletrain.domain.history import HoleChange, NodeStay, TrainingWindow, WorldChange
from malletrain.store import schema as t
from malletrain.store.database import reader_engine, storage_errors
from malletrain.store.views import pool_row
from malletrain.wire.rows import PoolRow

#: Rows of one answer at most: what is older is left out.
MAX_ROWS = 50_000

_STAYS = select(
    t.stay.c.job, t.job.c.uid, t.stay.c.node, t.stay.c.started_at, t.stay.c.ended_at, t.stay.c.preempted
).join(t.job, t.job.c.id == t.stay.c.job)


class StoreHistory:
    """Reads over connections of its own, which cannot write. Safe to call from many threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine = reader_engine(path)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def stays(self, since: float) -> tuple[NodeStay, ...]:
        """Pilots on nodes at `since` or later, by their begin."""
        ended = _STAYS.where(t.stay.c.ended_at >= since).order_by(t.stay.c.ended_at.desc()).limit(MAX_ROWS)
        lasting = _STAYS.where(t.stay.c.ended_at.is_(None)).limit(MAX_ROWS)
        return _in_order(self._rows(ended, lasting))

    def stays_of(self, job: int, limit: int) -> tuple[NodeStay, ...]:
        """The newest `limit` stays of a job's pilots, by their begin."""
        query = _STAYS.where(t.stay.c.job == job).order_by(t.stay.c.started_at.desc()).limit(limit)
        return _in_order(self._rows(query))

    def holes(self, since: float) -> tuple[HoleChange, ...]:
        """Changes of which nodes have no main job, from `since` on, in order."""
        changes = (HolesOpened.kind, HolesEnded.kind)
        query = select(t.event.c.at, t.event.c.kind, t.event.c.data).where(
            t.event.c.kind.in_(changes), t.event.c.at >= since
        )
        found = []
        for row in self._rows(query.order_by(t.event.c.seq.desc()).limit(MAX_ROWS))[::-1]:
            data = json.loads(row.data)
            found.append(
                HoleChange(row.at, tuple(data["nodes"]), row.kind == HolesOpened.kind, bool(data.get("taken")))
            )
        return tuple(found)

    def pool(self, since: float) -> tuple[PoolRow, ...]:
        """Node counts from `since` on, and those that held then, in order."""
        before = select(t.pool).where(t.pool.c.at < since).order_by(t.pool.c.at.desc()).limit(1)
        after = select(t.pool).where(t.pool.c.at >= since).order_by(t.pool.c.at.desc()).limit(MAX_ROWS)
        return tuple(map(pool_row, self._rows(after, before)[::-1]))

    def worlds(self, job: int, limit: int) -> tuple[WorldChange, ...]:
        """The newest `limit` changes of a job's size, in order."""
        names = ("at", "generation", "nodes_before", "nodes", "pause_s", "reason")
        columns = tuple(t.resize.c[name] for name in names)
        query = select(*columns).where(t.resize.c.job == job).order_by(t.resize.c.generation.desc()).limit(limit)
        return tuple(WorldChange(*row) for row in self._rows(query)[::-1])

    def windows(self, job: int, limit: int) -> tuple[TrainingWindow, ...]:
        """The newest `limit` windows of a job's training, in order."""
        # A row has the speed of each worker besides, which is not wanted.
        names = (
            func.json_extract(t.event.c.data, f"$.{name}").label(name) for name in ("nodes", "seconds", "samples")
        )
        query = select(t.event.c.at, *names).where(t.event.c.job == job, t.event.c.kind == SamplesReported.kind)
        return tuple(
            TrainingWindow(row.at, int(row.nodes or 0), float(row.seconds), float(row.samples or 0.0) / row.seconds)
            for row in self._rows(query.order_by(t.event.c.seq.desc()).limit(limit))[::-1]
            if row.seconds and row.seconds > 0
        )

    def _rows(self, *queries: Select[Any]) -> Sequence[Any]:
        """The rows of all queries, as they are at one moment."""
        with storage_errors(self._path), self._engine.begin() as connection:
            return [row for query in queries for row in connection.execute(query)]


def _in_order(rows: Sequence[Any]) -> tuple[NodeStay, ...]:
    found = (NodeStay(job, uid, node, begun, ended, bool(cut)) for job, uid, node, begun, ended, cut in rows)
    return tuple(sorted(found, key=lambda stay: (stay.started_at, stay.node)))
