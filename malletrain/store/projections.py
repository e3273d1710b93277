"""The fold from events to the tables that people read; kept in the transaction of the append.

A projection is a function of its tables and one event, so that folding the journal anew gives the same rows.
Decisions never read these tables: the loop folds the same events by itself (loop/ledger). An event about a job or
pilot that is not known changes nothing here, and a figure that is not a number counts as absent: the journal keeps
what was said, and people's tables must not stop the daemon.

The statements are plain SQL: a tick may fold a thousand events, and building expressions would take most of the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from malletrain.domain.event import (
    UNSAVED_WORDS,
    ArrayRefused,
    Event,
    GenerationPublished,
    GenerationSwitched,
    JobAnnounced,
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobHeld,
    JobReleased,
    JsonValue,
    MetricReported,
    PoolCounted,
    SamplesReported,
    ScriptChecked,
    StartsRefused,
    WorkerLeft,
    WorkerLost,
    WorkerStuck,
    stuck_words,
)
from malletrain.domain.job import JobPhase, MalleableJob, ScriptVerdict
from malletrain.store import schema as t
from malletrain.store.encoding import CODEC
from malletrain.store.folding import day_of, do, insert, is_known, number, set_members, time_of, use, whole
from malletrain.store.pilot_tables import fold_pilot

#: Seconds; a shorter window gives no rate.
SHORTEST_WINDOW_S = 1e-6

_OVER = ", ".join(f"'{phase.value}'" for phase in JobPhase if phase.is_over)


def project(connection: Connection, events: Iterable[Event]) -> None:
    """Fold events into the projections, in the order of the journal."""
    for event in events:
        _fold(connection, event)


def empty(connection: Connection) -> None:
    """Empty the projections, except of old jobs (`archived`), whose events the journal no longer has."""
    for table in t.PROJECTIONS:
        if table is t.job:
            connection.exec_driver_sql("DELETE FROM job WHERE archived = 0")
        elif table is t.pool:
            connection.exec_driver_sql("DELETE FROM pool")
        else:
            of_others = "WHERE job NOT IN (SELECT id FROM job WHERE archived = 1)"
            connection.exec_driver_sql(f"DELETE FROM {table.name} {of_others}")


def _fold(connection: Connection, event: Event) -> None:
    match event.payload:
        case JobAnnounced(job=job) if event.job is not None:
            _announced(connection, event, job)
        case ArrayRefused():
            do(connection, "UPDATE job SET reason = :reason WHERE id = :job", event)
        case StartsRefused(refused=refused):
            refusal = f"Slurm refuses its pilots: {event.reason}" if refused else ""
            do(connection, "UPDATE job SET reason = :refusal WHERE id = :job", event, refusal=refusal)
        case ScriptChecked() as checked:
            _checked(connection, event, checked)
        case JobHeld():
            _phase(connection, event, JobPhase.HELD)
        case JobReleased():
            _phase(connection, event, JobPhase.QUEUED)
        case JobCancelled():
            _over(connection, event, JobPhase.CANCELLED)
        case JobFailed():
            _over(connection, event, JobPhase.FAILED)
        case JobCompleted(result=result):
            _over(connection, event, JobPhase.COMPLETED, result)
        case WorkerStuck() as stuck:
            _stuck(connection, event, stuck)
        case WorkerLeft() as left:
            _left(connection, event, left)
            _stuck(connection, event, WorkerStuck(left.worker))
            fold_pilot(connection, event)
        case WorkerLost(worker=worker):
            _stuck(connection, event, WorkerStuck(worker))
            do(connection, "UPDATE job SET lost_workers = lost_workers + 1 WHERE id = :job", event)
        case GenerationPublished() as published:
            _generation(connection, event, published)
        case GenerationSwitched() as switched:
            _switched(connection, event, switched)
        case SamplesReported() as window:
            _samples(connection, event, window)
        case MetricReported() as metric:
            _metric(connection, event, metric)
        case PoolCounted() as pool:
            _pool(connection, event, pool)
        case _:
            fold_pilot(connection, event)


# --- a job's life ---------------------------------------------------------------------------------------------


_MADE = frozenset({"sizes", "elastic", "total_samples", "submitted_at", "trusted"})
_AS_ANNOUNCED = t.stored_fields(MalleableJob, t.job, _MADE)
_COUNTED = t.stored_fields(PoolCounted, t.pool)


def _announced(connection: Connection, event: Event, job: MalleableJob) -> None:
    insert(
        connection,
        "job",
        "IGNORE",
        **{name: getattr(job, name) for name in _AS_ANNOUNCED} | {"id": event.job},
        sizes=json.dumps(job.sizes),
        elastic=job.elastic.value,
        total_samples=number(job.total_samples),
        submitted_at=time_of(event, job.submitted_at),
        trusted=int(job.trusted),
        phase=JobPhase.ANNOUNCED.value,
        reason=event.reason,
    )


def _phase(connection: Connection, event: Event, phase: JobPhase) -> None:
    do(
        connection,
        f"UPDATE job SET phase = :phase, reason = :reason WHERE id = :job AND phase NOT IN ({_OVER})",
        event,
        phase=phase.value,
    )


def _checked(connection: Connection, event: Event, checked: ScriptChecked) -> None:
    """A job that is different keeps its size, as `malletrain.decide.limits` has it."""
    do(
        connection,
        "UPDATE job SET check_verdict = :verdict, check_text = :text, check_digest = :digest, fixed_nodes ="
        " CASE WHEN :differs AND trusted = 0 AND elastic = 'live' THEN :nodes END WHERE id = :job",
        event,
        verdict=checked.verdict.value,
        text=checked.text,
        digest=checked.digest,
        differs=checked.verdict is ScriptVerdict.DIFFERENT,
        nodes=whole(checked.nodes),
    )


def _left(connection: Connection, event: Event, left: WorkerLeft) -> None:
    """What became of the state, if the worker was to save it."""
    if left.unsaved:
        query = f"UPDATE job SET reason = :words WHERE id = :job AND phase NOT IN ({_OVER})"
        do(connection, query, event, words=left.unsaved_in_words)
    elif left.saved:
        query = f"UPDATE job SET reason = '' WHERE id = :job AND reason LIKE :words AND phase NOT IN ({_OVER})"
        do(connection, query, event, words=f"{UNSAVED_WORDS}%")


def _stuck(connection: Connection, event: Event, stuck: WorkerStuck) -> None:
    """Where a worker makes no step, until it goes on or is gone."""
    if stuck.place:
        query = f"UPDATE job SET reason = :words WHERE id = :job AND phase NOT IN ({_OVER})"
        do(connection, query, event, words=stuck.in_words)
    else:
        query = f"UPDATE job SET reason = '' WHERE id = :job AND reason LIKE :words AND phase NOT IN ({_OVER})"
        do(connection, query, event, words=f"{stuck_words(stuck.worker)}%")


def _over(
    connection: Connection, event: Event, phase: JobPhase, result: Mapping[str, JsonValue] | None = None
) -> None:
    do(
        connection,
        "UPDATE job SET phase = :phase, reason = :reason, ended_at = :at, members = '[]', world_nodes = 0,"
        f" result = :result WHERE id = :job AND phase NOT IN ({_OVER})",
        event,
        phase=phase.value,
        result=json.dumps(CODEC.dump(result or {})),
    )


# --- worlds and training --------------------------------------------------------------------------------------


def _generation(connection: Connection, event: Event, published: GenerationPublished) -> None:
    generation, members = whole(published.generation), list(published.members)
    if generation is None or not is_known(connection, event):
        return
    insert(
        connection, "world", "REPLACE",
        job=event.job, generation=generation, at=event.at, members=json.dumps(members), reason=event.reason,
    )  # fmt: skip
    set_members(connection, event, members)
    do(
        connection,
        "UPDATE job SET generation = :generation, batch = :batch WHERE id = :job",
        event,
        generation=generation,
        batch=whole(published.batch) or None,
    )


def _switched(connection: Connection, event: Event, switched: GenerationSwitched) -> None:
    generation, nodes = whole(switched.generation), whole(switched.nodes) or 0
    if generation is None or not is_known(connection, event):
        return
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
        pause=number(switched.pause_s) or 0.0,
        step=whole(switched.step),
    )
    do(connection, "UPDATE job SET world_nodes = :nodes WHERE id = :job", event, nodes=nodes)


def _samples(connection: Connection, event: Event, window: SamplesReported) -> None:
    job = do(connection, "SELECT samples FROM job WHERE id = :job", event).first()
    if job is None:
        return
    samples, seconds = number(window.samples) or 0.0, number(window.seconds) or 0.0
    # Every worker reports, and windows leave out what was disturbed: the job's own count is the truth.
    total = number(window.total)
    trained = samples if total is None else max(0.0, total - job.samples)
    rate_known = seconds >= SHORTEST_WINDOW_S
    do(
        connection,
        "UPDATE job SET samples = :done, rate = CASE WHEN :rate_known THEN :rate ELSE rate END,"
        " noise_scale = COALESCE(:noise, noise_scale) WHERE id = :job",
        event,
        noise=number(window.noise_scale),
        done=job.samples + trained,
        rate_known=rate_known,
        rate=samples / seconds if rate_known else 0.0,
    )
    use(connection, event, day_of(event.at), samples=trained)


def _metric(connection: Connection, event: Event, metric: MetricReported) -> None:
    if metric.name and is_known(connection, event):
        value = json.dumps(CODEC.dump(metric.value))
        insert(
            connection, "metric", "REPLACE",
            job=event.job, name=metric.name, at=event.at, value=value, samples=number(metric.samples),
        )  # fmt: skip


def _pool(connection: Connection, event: Event, pool: PoolCounted) -> None:
    counts = {name: whole(getattr(pool, name)) or 0 for name in _COUNTED}
    insert(connection, "pool", "ABORT", seq=event.seq, at=event.at, **counts)
