"""The fold from events to the tables that people read; kept in the transaction of the append.

A projection is a function of its tables and one event, so that folding the journal anew gives the same rows.
Decisions never read these tables: the loop folds the same events by itself (loop/ledger). An event about a job or
pilot that is not known changes nothing here, and a figure that is not a number counts as absent: the journal keeps
what was said, and people's tables must not stop the daemon.

The statements are plain SQL: a tick may fold a thousand events, and building expressions would take most of the time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from sqlalchemy import Connection

from malletrain.domain.event import Event
from malletrain.domain.job import JobPhase
from malletrain.store import schema as t
from malletrain.store.folding import day_of, do, is_known, items, number, set_members, time_of, use, whole, words
from malletrain.store.pilot_tables import PILOT_FOLDS

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


# --- a job's life ---------------------------------------------------------------------------------------------


def _announced(connection: Connection, event: Event) -> None:
    if event.job is None:
        return
    data = event.data
    weight, uid = number(data, "weight"), whole(data, "uid")
    do(
        connection,
        "INSERT OR IGNORE INTO job (id, name, user, uid, account, min_nodes, max_nodes, sizes, weight, elastic,"
        " total_samples, submitted_at, phase, reason, batch_min, batch_max)"
        " VALUES (:job, :name, :user, :uid, :account, :min_nodes, :max_nodes, :sizes, :weight, :elastic,"
        " :total_samples, :submitted_at, :phase, :reason, :batch_min, :batch_max)",
        event,
        name=words(data, "name"),
        user=words(data, "user"),
        uid=-1 if uid is None else uid,
        account=words(data, "account"),
        min_nodes=whole(data, "min_nodes") or 1,
        max_nodes=whole(data, "max_nodes") or 1,
        sizes=json.dumps(items(data, "sizes")),
        weight=1.0 if weight is None else weight,
        elastic=words(data, "elastic", "live"),
        total_samples=number(data, "total_samples"),
        submitted_at=time_of(event, "submitted_at"),
        phase=JobPhase.ANNOUNCED.value,
        batch_min=whole(data, "batch_min"),
        batch_max=whole(data, "batch_max"),
    )


def _phase(phase: JobPhase) -> Callable[[Connection, Event], None]:
    def fold(connection: Connection, event: Event) -> None:
        do(
            connection,
            f"UPDATE job SET phase = :phase, reason = :reason WHERE id = :job AND phase NOT IN ({_OVER})",
            event,
            phase=phase.value,
        )

    return fold


def _over(phase: JobPhase) -> Callable[[Connection, Event], None]:
    def fold(connection: Connection, event: Event) -> None:
        result = event.data.get("result")
        do(
            connection,
            "UPDATE job SET phase = :phase, reason = :reason, ended_at = :at, members = '[]', world_nodes = 0,"
            f" result = :result WHERE id = :job AND phase NOT IN ({_OVER})",
            event,
            phase=phase.value,
            result=json.dumps(result if isinstance(result, dict) else {}),
        )

    return fold


def _array_refused(connection: Connection, event: Event) -> None:
    do(connection, "UPDATE job SET reason = :reason WHERE id = :job", event)


def _starts_refused(connection: Connection, event: Event) -> None:
    told = f"Slurm refuses its pilots: {event.reason}" if event.data.get("refused") else ""
    do(connection, "UPDATE job SET reason = :told WHERE id = :job", event, told=told)


# --- worlds and training --------------------------------------------------------------------------------------


def _generation(connection: Connection, event: Event) -> None:
    generation = whole(event.data, "generation")
    if generation is None or not is_known(connection, event):
        return
    members = [m for m in items(event.data, "members") if isinstance(m, str)]
    do(
        connection,
        "INSERT OR REPLACE INTO world (job, generation, at, members, reason)"
        " VALUES (:job, :generation, :at, :members, :reason)",
        event,
        generation=generation,
        members=json.dumps(members),
    )
    set_members(connection, event, members)
    do(
        connection,
        "UPDATE job SET generation = :generation, batch = :batch WHERE id = :job",
        event,
        generation=generation,
        batch=whole(event.data, "batch"),
    )


def _switched(connection: Connection, event: Event) -> None:
    generation = whole(event.data, "generation")
    if generation is None or not is_known(connection, event):
        return
    nodes = whole(event.data, "nodes") or 0
    do(
        connection,
        "INSERT INTO resize (job, generation, at, nodes_before, nodes, pause_s, step, reason)"
        " VALUES (:job, :generation, :at, (SELECT world_nodes FROM job WHERE id = :job), :nodes, :pause, :step,"
        " COALESCE(NULLIF(:reason, ''),"
        " (SELECT reason FROM world WHERE job = :job AND generation = :generation), ''))"
        " ON CONFLICT (job, generation) DO UPDATE SET pause_s = MAX(pause_s, excluded.pause_s)",
        event,
        generation=generation,
        nodes=nodes,
        pause=number(event.data, "pause_s") or 0.0,
        step=whole(event.data, "step"),
    )
    do(connection, "UPDATE job SET world_nodes = :nodes WHERE id = :job", event, nodes=nodes)


def _samples(connection: Connection, event: Event) -> None:
    job = do(connection, "SELECT samples FROM job WHERE id = :job", event).first()
    if job is None:
        return
    samples, seconds = number(event.data, "samples") or 0.0, number(event.data, "seconds") or 0.0
    # Every worker reports, and windows leave out what was disturbed: the job's own count is the truth.
    total = number(event.data, "total")
    trained = samples if total is None else max(0.0, total - job.samples)
    can_be_told = seconds >= SHORTEST_WINDOW_S
    do(
        connection,
        "UPDATE job SET samples = :done, rate = CASE WHEN :told THEN :rate ELSE rate END,"
        " noise_scale = COALESCE(:noise, noise_scale) WHERE id = :job",
        event,
        noise=number(event.data, "noise_scale"),
        done=job.samples + trained,
        told=can_be_told,
        rate=samples / seconds if can_be_told else 0.0,
    )
    use(connection, event, day_of(event.at), samples=trained)


def _metric(connection: Connection, event: Event) -> None:
    name = words(event.data, "name")
    if name and is_known(connection, event):
        do(
            connection,
            "INSERT OR REPLACE INTO metric (job, name, at, value, samples)"
            " VALUES (:job, :name, :at, :value, :samples)",
            event,
            name=name,
            value=json.dumps(event.data.get("value")),
            samples=number(event.data, "samples"),
        )


def _worker_lost(connection: Connection, event: Event) -> None:
    do(connection, "UPDATE job SET lost_workers = lost_workers + 1 WHERE id = :job", event)


def _pool(connection: Connection, event: Event) -> None:
    counts = {name: whole(event.data, name) or 0 for name in ("idle", "planned", "harvested", "main", "down")}
    do(
        connection,
        "INSERT INTO pool (seq, at, idle, planned, harvested, main, down)"
        " VALUES (:seq, :at, :idle, :planned, :harvested, :main, :down)",
        event,
        seq=event.seq,
        **counts,
    )


#: By the event's word, as the journal keeps it.
_FOLDS: Mapping[str, Callable[[Connection, Event], None]] = {
    **PILOT_FOLDS,
    "job_announced": _announced,
    "array_refused": _array_refused,
    "starts_refused": _starts_refused,
    "job_held": _phase(JobPhase.HELD),
    "job_released": _phase(JobPhase.QUEUED),
    "job_cancelled": _over(JobPhase.CANCELLED),
    "job_completed": _over(JobPhase.COMPLETED),
    "job_failed": _over(JobPhase.FAILED),
    "worker_lost": _worker_lost,
    "generation": _generation,
    "switched": _switched,
    "samples": _samples,
    "metric": _metric,
    "pool": _pool,
}
