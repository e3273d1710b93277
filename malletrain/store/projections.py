"""The fold from events to the tables that people read; kept in the transaction of the append.

A projection is a function of its tables and one event, so that folding the journal anew gives the same rows.
Decisions never read these tables: the loop folds the same events by itself (loop/ledger). An event about a job or
pilot that is not known changes nothing here, and a figure that is not a number counts as absent: the journal keeps
what was said, and people's tables must not stop the daemon.

The statements are plain SQL: a tick may fold a thousand events, and building expressions would take most of the time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, CursorResult, Row

from malletrain.domain.event import Event
from malletrain.domain.job import JobPhase, PilotPhase
from malletrain.store import tables as t

#: From a shorter window no rate can be told.
SHORTEST_WINDOW_S = 1e-6

_OVER = ", ".join(f"'{phase.value}'" for phase in JobPhase if phase.is_over)


def project(connection: Connection, events: Iterable[Event]) -> None:
    """Fold events into the projections, in the order of the journal."""
    for event in events:
        fold = _FOLDS.get(event.kind.value)
        if fold is not None:
            fold(connection, event)


def empty(connection: Connection) -> None:
    """Empty the projections, except of archived jobs, whose events the journal no longer has."""
    for table in t.PROJECTIONS:
        if table is t.job:
            connection.exec_driver_sql("DELETE FROM job WHERE archived = 0")
        elif table is t.pool:
            connection.exec_driver_sql("DELETE FROM pool")
        else:
            of_others = "WHERE job NOT IN (SELECT id FROM job WHERE archived = 1)"
            connection.exec_driver_sql(f"DELETE FROM {table.name} {of_others}")


def days(start: float, end: float) -> Iterator[tuple[str, float]]:
    """The seconds of each UTC day between two Unix times."""
    while start < end:
        day = datetime.fromtimestamp(start, UTC).date()
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        until = min(end, midnight.timestamp())
        yield day.isoformat(), until - start
        start = until


def _do(connection: Connection, sql: str, /, event: Event, **values: object) -> CursorResult[Any]:
    """Run one statement; `:job`, `:pilot`, `:at`, `:reason` are the event's."""
    given = {"job": event.job, "pilot": event.pilot, "at": event.at, "reason": event.reason, **values}
    return connection.exec_driver_sql(sql, given)


# --- reading an event's data ----------------------------------------------------------------------------------


def _number(data: Mapping[str, Any], key: str) -> float | None:
    """A number that sums of it can bear: 10^18 at most."""
    value = data.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -1e18 <= value <= 1e18:
        return float(value)
    return None


def _whole(data: Mapping[str, Any], key: str) -> int | None:
    value = _number(data, key)
    return None if value is None else int(value)


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


def _is_known(connection: Connection, event: Event) -> bool:
    return _do(connection, "SELECT 1 FROM job WHERE id = :job", event).first() is not None


# --- a job's life ---------------------------------------------------------------------------------------------


def _announced(connection: Connection, event: Event) -> None:
    if event.job is None:
        return
    data = event.data
    weight, uid = _number(data, "weight"), _whole(data, "uid")
    _do(
        connection,
        "INSERT OR IGNORE INTO job (id, name, user, uid, account, min_nodes, max_nodes, sizes, weight, elastic,"
        " total_samples, submitted_at, phase, reason)"
        " VALUES (:job, :name, :user, :uid, :account, :min_nodes, :max_nodes, :sizes, :weight, :elastic,"
        " :total_samples, :submitted_at, :phase, :reason)",
        event,
        name=_words(data, "name"),
        user=_words(data, "user"),
        uid=-1 if uid is None else uid,
        account=_words(data, "account"),
        min_nodes=_whole(data, "min_nodes") or 1,
        max_nodes=_whole(data, "max_nodes") or 1,
        sizes=json.dumps(_list(data, "sizes")),
        weight=1.0 if weight is None else weight,
        elastic=_words(data, "elastic", "live"),
        total_samples=_number(data, "total_samples"),
        submitted_at=_time(event, "submitted_at"),
        phase=JobPhase.ANNOUNCED.value,
    )


def _phase(phase: JobPhase) -> Callable[[Connection, Event], None]:
    def fold(connection: Connection, event: Event) -> None:
        _do(
            connection,
            f"UPDATE job SET phase = :phase, reason = :reason WHERE id = :job AND phase NOT IN ({_OVER})",
            event,
            phase=phase.value,
        )

    return fold


def _over(phase: JobPhase) -> Callable[[Connection, Event], None]:
    def fold(connection: Connection, event: Event) -> None:
        result = event.data.get("result")
        _do(
            connection,
            "UPDATE job SET phase = :phase, reason = :reason, ended_at = :at, members = '[]', world_nodes = 0,"
            f" result = :result WHERE id = :job AND phase NOT IN ({_OVER})",
            event,
            phase=phase.value,
            result=json.dumps(result if isinstance(result, dict) else {}),
        )

    return fold


def _array_refused(connection: Connection, event: Event) -> None:
    _do(connection, "UPDATE job SET reason = :reason WHERE id = :job", event)


def _tasks_added(connection: Connection, event: Event) -> None:
    array_id = _whole(event.data, "array_id")
    if array_id is None or not _is_known(connection, event):
        return
    rows = [
        {"id": f"{array_id}_{task}", "job": event.job, "phase": PilotPhase.HELD.value, "at": event.at}
        for task in _list(event.data, "tasks")
    ]
    if rows:
        insert = "INSERT OR IGNORE INTO pilot (id, job, phase, since) VALUES (:id, :job, :phase, :at)"
        connection.exec_driver_sql(insert, rows)
    _do(connection, "UPDATE job SET phase = 'queued' WHERE id = :job AND phase = 'announced'", event)


# --- pilots ---------------------------------------------------------------------------------------------------


def _intent(connection: Connection, event: Event) -> None:
    kind = _words(event.data, "type")
    if kind == "recycle":
        _do(
            connection,
            "UPDATE pilot SET phase = 'recycling', since = :at, reason = :reason,"
            " node = COALESCE(NULLIF(:node, ''), node) WHERE id = :pilot AND job = :job",
            event,
            node=event.node,
        )
    elif kind in ("start", "leave"):
        _do(
            connection,
            "UPDATE pilot SET since = CASE phase WHEN :phase THEN since ELSE :at END, phase = :phase,"
            " reason = :reason, node = COALESCE(NULLIF(:node, ''), node) WHERE id = :pilot AND job = :job",
            event,
            node=event.node,
            phase=(PilotPhase.RELEASED if kind == "start" else PilotPhase.LEAVING).value,
        )
    if kind == "leave":
        _do(
            connection,
            "UPDATE stay SET leave_cause = :cause, reason = :reason"
            " WHERE pilot = :pilot AND job = :job AND ended_at IS NULL",
            event,
            cause=_words(event.data, "cause"),
        )


def _outcome(connection: Connection, event: Event) -> None:
    kind, done = _words(event.data, "type"), event.data.get("done") is True
    if kind == "cancel" and done:
        for name in _list(event.data, "pilots"):
            if isinstance(name, str):
                _do(
                    connection,
                    "UPDATE pilot SET phase = 'ended', since = :at, node = ''"
                    " WHERE id = :name AND job = :job AND phase = 'held'",
                    event,
                    name=name,
                )
    elif kind == "start" and not done:
        _do(
            connection,
            "UPDATE pilot SET phase = 'held', since = :at, node = '', reason = :reason"
            " WHERE id = :pilot AND job = :job AND phase = 'released'",
            event,
        )
    elif kind == "cut" and done:
        ends_at = _number(event.data, "ends_at")
        _do(connection, "UPDATE pilot SET ends_at = :end WHERE id = :pilot AND job = :job", event, end=ends_at)
        _do(
            connection,
            "UPDATE stay SET ends_at = :end WHERE pilot = :pilot AND job = :job AND ended_at IS NULL",
            event,
            end=ends_at,
        )


def _pilot_started(connection: Connection, event: Event) -> None:
    pilot = _do(connection, "SELECT * FROM pilot WHERE id = :pilot AND job = :job", event).first()
    if pilot is None:
        return
    started_at, ends_at = _time(event, "started_at"), _number(event.data, "ends_at")
    node = event.node or pilot.node
    _do(
        connection,
        "UPDATE pilot SET since = CASE WHEN phase IN ('leaving', 'running') THEN since ELSE :at END,"
        " phase = CASE phase WHEN 'leaving' THEN phase ELSE 'running' END,"
        " node = :node, started_at = :started_at, ends_at = :ends_at WHERE id = :pilot AND job = :job",
        event,
        node=node,
        started_at=started_at,
        ends_at=ends_at,
    )
    lasting = _open_stay(connection, event)
    if lasting is not None and lasting.started_at == started_at and lasting.node == node:
        _do(connection, "UPDATE stay SET ends_at = :end WHERE id = :id", event, end=ends_at, id=lasting.id)
        return
    if lasting is not None:
        _close_stay(connection, event, lasting, state="unseen", preempted=False)
    _do(
        connection,
        "INSERT INTO stay (id, pilot, job, node, started_at, ends_at)"
        " VALUES (:id, :pilot, :job, :node, :started_at, :ends_at)",
        event,
        id=event.seq,
        node=node,
        started_at=started_at,
        ends_at=ends_at,
    )


def _pilot_phase(phase: PilotPhase) -> Callable[[Connection, Event], None]:
    def fold(connection: Connection, event: Event) -> None:
        changed = _do(
            connection,
            "UPDATE pilot SET phase = :phase, since = :at, node = '', started_at = NULL, ends_at = NULL,"
            " reason = :reason WHERE id = :pilot AND job = :job",
            event,
            phase=phase.value,
        )
        if changed.rowcount == 0:
            return
        preempted = event.data.get("preempted") is True
        lasting = _open_stay(connection, event)
        if lasting is not None:
            _close_stay(connection, event, lasting, _words(event.data, "state", phase.value), preempted)
        if preempted:
            _do(connection, "UPDATE job SET preemptions = preemptions + 1 WHERE id = :job", event)
        members = _members(connection, event)
        if event.pilot in members:
            _set_members(connection, event, [m for m in members if m != event.pilot])

    return fold


def _open_stay(connection: Connection, event: Event) -> Row[Any] | None:
    return _do(
        connection, "SELECT * FROM stay WHERE pilot = :pilot AND job = :job AND ended_at IS NULL", event
    ).first()


def _close_stay(connection: Connection, event: Event, stay: Row[Any], state: str, preempted: bool) -> None:
    """End a stay, and count it into its days."""
    ended_at = max(stay.started_at, _time(event, "ended_at"))
    _do(
        connection,
        "UPDATE stay SET ended_at = :end, state = :state, preempted = :preempted, reason = :why WHERE id = :id",
        event,
        id=stay.id,
        end=ended_at,
        state=state,
        preempted=int(preempted),
        why=stay.reason or event.reason,
    )
    for day, seconds in days(stay.started_at, ended_at):
        _use(connection, event, day, node_seconds=seconds)
    _use(connection, event, _day(stay.started_at), stays=1)
    if preempted:
        _use(connection, event, _day(ended_at), preemptions=1)
    held = ended_at - stay.started_at
    _do(connection, "UPDATE job SET node_seconds = node_seconds + :held WHERE id = :job", event, held=held)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def _use(
    connection: Connection,
    event: Event,
    day: str,
    node_seconds: float = 0.0,
    samples: float = 0.0,
    stays: int = 0,
    preemptions: int = 0,
) -> None:
    _do(
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


# --- worlds and training --------------------------------------------------------------------------------------


def _members(connection: Connection, event: Event) -> list[str]:
    found = _do(connection, "SELECT members FROM job WHERE id = :job", event).scalar()
    return [] if found is None else list(json.loads(found))


def _set_members(connection: Connection, event: Event, members: list[str]) -> None:
    _do(
        connection,
        "UPDATE job SET members = :members, world_nodes = CASE :count WHEN 0 THEN 0 ELSE world_nodes END"
        " WHERE id = :job",
        event,
        members=json.dumps(members),
        count=len(members),
    )


def _generation(connection: Connection, event: Event) -> None:
    generation = _whole(event.data, "generation")
    if generation is None or not _is_known(connection, event):
        return
    members = [m for m in _list(event.data, "members") if isinstance(m, str)]
    _do(
        connection,
        "INSERT OR REPLACE INTO world (job, generation, at, members, reason)"
        " VALUES (:job, :generation, :at, :members, :reason)",
        event,
        generation=generation,
        members=json.dumps(members),
    )
    _set_members(connection, event, members)
    _do(connection, "UPDATE job SET generation = :generation WHERE id = :job", event, generation=generation)


def _switched(connection: Connection, event: Event) -> None:
    generation = _whole(event.data, "generation")
    if generation is None or not _is_known(connection, event):
        return
    nodes = _whole(event.data, "nodes") or 0
    _do(
        connection,
        "INSERT INTO resize (job, generation, at, nodes_before, nodes, pause_s, step, reason)"
        " VALUES (:job, :generation, :at, (SELECT world_nodes FROM job WHERE id = :job), :nodes, :pause, :step,"
        " COALESCE(NULLIF(:reason, ''),"
        " (SELECT reason FROM world WHERE job = :job AND generation = :generation), ''))"
        " ON CONFLICT (job, generation) DO UPDATE SET pause_s = MAX(pause_s, excluded.pause_s)",
        event,
        generation=generation,
        nodes=nodes,
        pause=_number(event.data, "pause_s") or 0.0,
        step=_whole(event.data, "step"),
    )
    _do(connection, "UPDATE job SET world_nodes = :nodes WHERE id = :job", event, nodes=nodes)


def _samples(connection: Connection, event: Event) -> None:
    job = _do(connection, "SELECT samples FROM job WHERE id = :job", event).first()
    if job is None:
        return
    samples, seconds = _number(event.data, "samples") or 0.0, _number(event.data, "seconds") or 0.0
    # Every worker reports, and windows leave out what was disturbed: the job's own count is the truth.
    total = _number(event.data, "total")
    trained = samples if total is None else max(0.0, total - job.samples)
    can_be_told = seconds >= SHORTEST_WINDOW_S
    _do(
        connection,
        "UPDATE job SET samples = :done, rate = CASE WHEN :told THEN :rate ELSE rate END WHERE id = :job",
        event,
        done=job.samples + trained,
        told=can_be_told,
        rate=samples / seconds if can_be_told else 0.0,
    )
    _use(connection, event, _day(event.at), samples=trained)


def _metric(connection: Connection, event: Event) -> None:
    name = _words(event.data, "name")
    if name and _is_known(connection, event):
        _do(
            connection,
            "INSERT OR REPLACE INTO metric (job, name, at, value, samples)"
            " VALUES (:job, :name, :at, :value, :samples)",
            event,
            name=name,
            value=json.dumps(event.data.get("value")),
            samples=_number(event.data, "samples"),
        )


def _worker_lost(connection: Connection, event: Event) -> None:
    _do(connection, "UPDATE job SET lost_workers = lost_workers + 1 WHERE id = :job", event)


def _pool(connection: Connection, event: Event) -> None:
    counts = {name: _whole(event.data, name) or 0 for name in ("idle", "planned", "harvested", "main", "down")}
    _do(
        connection,
        "INSERT INTO pool (seq, at, idle, planned, harvested, main, down)"
        " VALUES (:seq, :at, :idle, :planned, :harvested, :main, :down)",
        event,
        seq=event.seq,
        **counts,
    )


#: By the event's word, as the journal keeps it.
_FOLDS: Mapping[str, Callable[[Connection, Event], None]] = {
    "job_announced": _announced,
    "array_refused": _array_refused,
    "tasks_added": _tasks_added,
    "job_held": _phase(JobPhase.HELD),
    "job_released": _phase(JobPhase.QUEUED),
    "job_cancelled": _over(JobPhase.CANCELLED),
    "job_completed": _over(JobPhase.COMPLETED),
    "job_failed": _over(JobPhase.FAILED),
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
