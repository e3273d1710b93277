"""The fold from events to the tables that people read; kept in the transaction of the append.

A projection is a function of its tables and one event, so that folding the journal anew gives the same rows.
Decisions never read these tables: the loop folds the same events by itself (loop/ledger). An event about a job or
pilot that is not known changes nothing here, and a figure that is not a number counts as absent: the journal keeps
what was said, and people's tables must not stop the daemon.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert

from malletrain.domain.event import Event
from malletrain.domain.job import JobPhase, PilotPhase
from malletrain.store import tables as t

_OVER = tuple(phase.value for phase in JobPhase if phase.is_over)


def project(connection: Connection, events: Iterable[Event]) -> None:
    """Fold events into the projections, in the order of the journal."""
    for event in events:
        fold = _FOLDS.get(event.kind.value)
        if fold is not None:
            fold(connection, event)


def empty(connection: Connection) -> None:
    """Empty the projections, except of archived jobs, whose events the journal no longer has."""
    archived = select(t.job.c.id).where(t.job.c.archived == 1)
    for table in t.PROJECTIONS:
        if table is t.job:
            connection.execute(delete(t.job).where(t.job.c.archived == 0))
        elif table is t.pool:
            connection.execute(delete(t.pool))
        else:
            connection.execute(delete(table).where(table.c.job.not_in(archived)))


def days(start: float, end: float) -> Iterator[tuple[str, float]]:
    """The seconds of each UTC day between two Unix times."""
    while start < end:
        day = datetime.fromtimestamp(start, UTC).date()
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        until = min(end, midnight.timestamp())
        yield day.isoformat(), until - start
        start = until


# --- reading an event's data ----------------------------------------------------------------------------------


def _number(data: Mapping[str, Any], key: str) -> float | None:
    value = data.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            as_float = float(value)
        except OverflowError:
            return None
        return as_float if math.isfinite(as_float) else None
    return None


def _whole(data: Mapping[str, Any], key: str) -> int | None:
    """A whole number that fits SQLite's 64 bits."""
    value = _number(data, key)
    return None if value is None or abs(value) >= 2**63 else int(value)


def _time(event: Event, key: str) -> float:
    """A time that Slurm gave, or the event's own where it gave none that can be right (a year away, or more)."""
    said = _number(event.data, key)
    return event.at if said is None or abs(said - event.at) > 366 * 86400 else said


def _words(data: Mapping[str, Any], key: str, otherwise: str = "") -> str:
    value = data.get(key)
    return value if isinstance(value, str) else otherwise


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    return list(value) if isinstance(value, (list, tuple)) else []


def _of_known_pilot(event: Event) -> ColumnElement[bool]:
    return and_(t.pilot.c.id == event.pilot, t.pilot.c.job == event.job)


def _is_known(connection: Connection, job: int | None) -> bool:
    if job is None:
        return False
    return connection.execute(select(t.job.c.id).where(t.job.c.id == job)).first() is not None


# --- a job's life ---------------------------------------------------------------------------------------------


def _announced(connection: Connection, event: Event) -> None:
    if event.job is None:
        return
    data = event.data
    given_weight, uid = _number(data, "weight"), _whole(data, "uid")
    row = {
        "id": event.job,
        "name": _words(data, "name"),
        "user": _words(data, "user"),
        "uid": -1 if uid is None else uid,
        "account": _words(data, "account"),
        "min_nodes": _whole(data, "min_nodes") or 1,
        "max_nodes": _whole(data, "max_nodes") or 1,
        "sizes": json.dumps(_list(data, "sizes")),
        "weight": 1.0 if given_weight is None else given_weight,
        "elastic": _words(data, "elastic", "live"),
        "total_samples": _number(data, "total_samples"),
        "submitted_at": _time(event, "submitted_at"),
        "phase": JobPhase.ANNOUNCED.value,
        "reason": event.reason,
    }
    connection.execute(insert(t.job).values(row).on_conflict_do_nothing())


def _phase(phase: JobPhase) -> Callable[[Connection, Event], None]:
    def fold(connection: Connection, event: Event) -> None:
        change: dict[str, Any] = {"phase": phase.value, "reason": event.reason}
        if phase.is_over:
            result = event.data.get("result")
            kept = result if isinstance(result, dict) else {}
            change |= {"ended_at": event.at, "members": "[]", "world_nodes": 0, "result": json.dumps(kept)}
        connection.execute(update(t.job).where(t.job.c.id == event.job, t.job.c.phase.not_in(_OVER)).values(change))

    return fold


def _array_refused(connection: Connection, event: Event) -> None:
    connection.execute(update(t.job).where(t.job.c.id == event.job).values(reason=event.reason))


def _tasks_added(connection: Connection, event: Event) -> None:
    array_id = _whole(event.data, "array_id")
    if array_id is None or not _is_known(connection, event.job):
        return
    rows = [
        {"id": f"{array_id}_{task}", "job": event.job, "phase": PilotPhase.HELD.value, "since": event.at}
        for task in _list(event.data, "tasks")
    ]
    if rows:
        connection.execute(insert(t.pilot).on_conflict_do_nothing(), rows)
    connection.execute(
        update(t.job)
        .where(t.job.c.id == event.job, t.job.c.phase == JobPhase.ANNOUNCED.value)
        .values(phase=JobPhase.QUEUED.value)
    )


# --- pilots ---------------------------------------------------------------------------------------------------

_MEANT = {"start": PilotPhase.RELEASED, "leave": PilotPhase.LEAVING, "recycle": PilotPhase.RECYCLING}


def _intent(connection: Connection, event: Event) -> None:
    kind = _words(event.data, "type")
    phase = _MEANT.get(kind)
    if phase is None:
        return
    change: dict[str, Any] = {"phase": phase.value, "reason": event.reason, "since": event.at}
    if phase is not PilotPhase.RECYCLING:
        change["since"] = case((t.pilot.c.phase == phase.value, t.pilot.c.since), else_=event.at)
    if event.node:
        change["node"] = event.node
    connection.execute(update(t.pilot).where(_of_known_pilot(event)).values(change))
    if phase is PilotPhase.LEAVING:
        connection.execute(
            update(t.stay)
            .where(t.stay.c.pilot == event.pilot, t.stay.c.job == event.job, t.stay.c.ended_at.is_(None))
            .values(leave_cause=_words(event.data, "cause"), reason=event.reason)
        )


def _outcome(connection: Connection, event: Event) -> None:
    kind, done = _words(event.data, "type"), event.data.get("done") is True
    if kind == "cancel" and done:
        pilots = [name for name in _list(event.data, "pilots") if isinstance(name, str)]
        for name in pilots:
            connection.execute(
                update(t.pilot)
                .where(t.pilot.c.id == name, t.pilot.c.job == event.job, t.pilot.c.phase == PilotPhase.HELD.value)
                .values(phase=PilotPhase.ENDED.value, since=event.at, node="")
            )
    elif kind == "start" and not done:
        connection.execute(
            update(t.pilot)
            .where(_of_known_pilot(event), t.pilot.c.phase == PilotPhase.RELEASED.value)
            .values(phase=PilotPhase.HELD.value, since=event.at, node="", reason=event.reason)
        )
    elif kind == "cut" and done:
        ends_at = _number(event.data, "ends_at")
        connection.execute(update(t.pilot).where(_of_known_pilot(event)).values(ends_at=ends_at))
        connection.execute(
            update(t.stay)
            .where(t.stay.c.pilot == event.pilot, t.stay.c.job == event.job, t.stay.c.ended_at.is_(None))
            .values(ends_at=ends_at)
        )


def _pilot_started(connection: Connection, event: Event) -> None:
    pilot = connection.execute(select(t.pilot).where(_of_known_pilot(event))).first()
    if pilot is None:
        return
    started_at = _time(event, "started_at")
    ends_at = _number(event.data, "ends_at")
    node = event.node or pilot.node
    leaving = pilot.phase == PilotPhase.LEAVING.value
    running = pilot.phase == PilotPhase.RUNNING.value
    connection.execute(
        update(t.pilot)
        .where(_of_known_pilot(event))
        .values(
            phase=pilot.phase if leaving else PilotPhase.RUNNING.value,
            since=pilot.since if leaving or running else event.at,
            node=node,
            started_at=started_at,
            ends_at=ends_at,
        )
    )
    open_stay = connection.execute(
        select(t.stay).where(t.stay.c.pilot == event.pilot, t.stay.c.ended_at.is_(None))
    ).first()
    if open_stay is not None and open_stay.started_at == started_at and open_stay.node == node:
        connection.execute(update(t.stay).where(t.stay.c.id == open_stay.id).values(ends_at=ends_at))
        return
    _close_stay(connection, event, state="unseen", preempted=False)
    connection.execute(
        insert(t.stay).values(
            id=event.seq, pilot=event.pilot, job=event.job, node=node, started_at=started_at, ends_at=ends_at
        )
    )


def _pilot_phase(phase: PilotPhase) -> Callable[[Connection, Event], None]:
    def fold(connection: Connection, event: Event) -> None:
        changed = connection.execute(
            update(t.pilot)
            .where(_of_known_pilot(event))
            .values(phase=phase.value, since=event.at, node="", started_at=None, ends_at=None, reason=event.reason)
        )
        if changed.rowcount == 0:
            return
        preempted = event.data.get("preempted") is True
        _close_stay(connection, event, _words(event.data, "state", phase.value), preempted)
        if preempted:
            _count(connection, event.job, preemptions=1)
        members = _members(connection, event.job)
        if event.pilot in members:
            _set_members(connection, event.job, [m for m in members if m != event.pilot])

    return fold


def _close_stay(connection: Connection, event: Event, state: str, preempted: bool) -> None:
    """End the pilot's open stay, if it has one, and count it into its days."""
    stay = connection.execute(
        select(t.stay).where(t.stay.c.pilot == event.pilot, t.stay.c.job == event.job, t.stay.c.ended_at.is_(None))
    ).first()
    if stay is None:
        return
    ended_at = max(stay.started_at, _time(event, "ended_at"))
    reason = stay.reason or event.reason
    connection.execute(
        update(t.stay)
        .where(t.stay.c.id == stay.id)
        .values(ended_at=ended_at, state=state, preempted=int(preempted), reason=reason)
    )
    for day, seconds in days(stay.started_at, ended_at):
        _use(connection, day, stay.job, node_seconds=seconds)
    _use(connection, _day(stay.started_at), stay.job, stays=1)
    if preempted:
        _use(connection, _day(ended_at), stay.job, preemptions=1)
    _count(connection, stay.job, node_seconds=ended_at - stay.started_at)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def _use(connection: Connection, day: str, job: int, **more: float) -> None:
    connection.execute(
        insert(t.usage)
        .values(day=day, job=job, **more)
        .on_conflict_do_update(
            index_elements=["day", "job"], set_={name: t.usage.c[name] + value for name, value in more.items()}
        )
    )


def _count(connection: Connection, job: int | None, **more: float) -> None:
    connection.execute(
        update(t.job).where(t.job.c.id == job).values({name: t.job.c[name] + value for name, value in more.items()})
    )


# --- worlds and training --------------------------------------------------------------------------------------


def _members(connection: Connection, job: int | None) -> list[str]:
    found = connection.execute(select(t.job.c.members).where(t.job.c.id == job)).scalar()
    return [] if found is None else list(json.loads(found))


def _set_members(connection: Connection, job: int | None, members: list[str]) -> None:
    change: dict[str, Any] = {"members": json.dumps(members)}
    if not members:
        change["world_nodes"] = 0
    connection.execute(update(t.job).where(t.job.c.id == job).values(change))


def _generation(connection: Connection, event: Event) -> None:
    generation = _whole(event.data, "generation")
    if generation is None or not _is_known(connection, event.job):
        return
    members = [m for m in _list(event.data, "members") if isinstance(m, str)]
    row = {"at": event.at, "members": json.dumps(members), "reason": event.reason}
    connection.execute(
        insert(t.world)
        .values(job=event.job, generation=generation, **row)
        .on_conflict_do_update(index_elements=["job", "generation"], set_=row)
    )
    _set_members(connection, event.job, members)
    connection.execute(update(t.job).where(t.job.c.id == event.job).values(generation=generation))


def _switched(connection: Connection, event: Event) -> None:
    generation = _whole(event.data, "generation")
    job = connection.execute(select(t.job).where(t.job.c.id == event.job)).first()
    if job is None or generation is None:
        return
    nodes, pause = _whole(event.data, "nodes") or 0, _number(event.data, "pause_s") or 0.0
    published = connection.execute(
        select(t.world.c.reason).where(t.world.c.job == event.job, t.world.c.generation == generation)
    ).scalar()
    new = insert(t.resize).values(
        job=event.job,
        generation=generation,
        at=event.at,
        nodes_before=job.world_nodes,
        nodes=nodes,
        pause_s=pause,
        step=_whole(event.data, "step"),
        reason=event.reason or published or "",
    )
    connection.execute(
        new.on_conflict_do_update(
            index_elements=["job", "generation"],
            set_={"pause_s": func.max(t.resize.c.pause_s, new.excluded.pause_s)},
        )
    )
    connection.execute(update(t.job).where(t.job.c.id == event.job).values(world_nodes=nodes))


def _samples(connection: Connection, event: Event) -> None:
    samples, seconds = _number(event.data, "samples") or 0.0, _number(event.data, "seconds") or 0.0
    if not _is_known(connection, event.job) or event.job is None:
        return
    # Every worker reports, and windows leave out what was disturbed: the job's own count is the truth.
    before = connection.execute(select(t.job.c.samples).where(t.job.c.id == event.job)).scalar_one()
    total = _number(event.data, "total")
    trained = samples if total is None else max(0.0, total - before)
    change: dict[str, Any] = {"samples": before + trained}
    if seconds > 0:
        change["rate"] = samples / seconds
    connection.execute(update(t.job).where(t.job.c.id == event.job).values(change))
    _use(connection, _day(event.at), event.job, samples=trained)


def _metric(connection: Connection, event: Event) -> None:
    name, value = _words(event.data, "name"), event.data.get("value")
    if not name or not _is_known(connection, event.job):
        return
    row = {"at": event.at, "value": json.dumps(value), "samples": _number(event.data, "samples")}
    connection.execute(
        insert(t.metric)
        .values(job=event.job, name=name, **row)
        .on_conflict_do_update(index_elements=["job", "name"], set_=row)
    )


def _worker_lost(connection: Connection, event: Event) -> None:
    _count(connection, event.job, lost_workers=1)


def _pool(connection: Connection, event: Event) -> None:
    counts = {name: _whole(event.data, name) or 0 for name in ("idle", "planned", "harvested", "main", "down")}
    connection.execute(insert(t.pool).values(seq=event.seq, at=event.at, **counts))


#: By the event's word, as the journal keeps it.
_FOLDS: Mapping[str, Callable[[Connection, Event], None]] = {
    "job_announced": _announced,
    "array_refused": _array_refused,
    "tasks_added": _tasks_added,
    "job_held": _phase(JobPhase.HELD),
    "job_released": _phase(JobPhase.QUEUED),
    "job_cancelled": _phase(JobPhase.CANCELLED),
    "job_completed": _phase(JobPhase.COMPLETED),
    "job_failed": _phase(JobPhase.FAILED),
    "intent": _intent,
    "outcome": _outcome,
    "pilot_started": _pilot_started,
    "pilot_waits": _pilot_phase(PilotPhase.RELEASED),
    "pilot_held": _pilot_phase(PilotPhase.HELD),
    "pilot_ended": _pilot_phase(PilotPhase.ENDED),
    "worker_lost": _worker_lost,
    "generation": _generation,
    "switched": _switched,
    "samples": _samples,
    "metric": _metric,
    "pool": _pool,
}
