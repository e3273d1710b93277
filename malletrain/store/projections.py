"""The fold from events to the tables that people read; kept in the transaction of the append.

A projection is a function of its tables and one event, so that folding the journal anew gives the same rows.
Decisions never read these tables: the loop folds the same events by itself (loop/ledger). An event about a job or
pilot that is not known changes nothing here, and a figure that is not a number counts as absent: the journal keeps
what was said, and people's tables must not stop the daemon.

The statements are plain SQL: a tick may fold a thousand events, and building expressions would take most of the time.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row

from malletrain.domain import event as kinds
from malletrain.domain.decision import CancelTasks, CutLimit, LeavePilot, StartPilot
from malletrain.domain.event import UNSAVED_WORDS, Event, JsonValue, stuck_words
from malletrain.domain.job import JobPhase, MalleableJob, Pilot, PilotPhase, ScriptVerdict, part_of, task_of
from malletrain.domain.pilot_life import after
from malletrain.store import schema as t
from malletrain.store.encoding import CODEC
from malletrain.store.folding import OneEvent, day_of, days, number, whole

#: Seconds; a shorter window gives no rate.
SHORTEST_WINDOW_S = 1e-6

#: The event's job, unless it is over.
_OPEN = f"id = :job AND phase NOT IN ({', '.join(repr(phase.value) for phase in JobPhase if phase.is_over)})"


def project(connection: Connection, events: Iterable[Event]) -> None:
    """Fold events into the projections, in the order of the journal."""
    for event in events:
        _fold(OneEvent(connection, event))


def _fold(one: OneEvent) -> None:
    event = one.event
    match event.payload:
        case kinds.JobAnnounced(job=job) if event.job is not None:
            _announced(one, job)
        case kinds.ArrayRefused():
            one.update_job(reason=event.reason)
        case kinds.StartsRefused(refused=refused):
            one.update_job(reason=f"Slurm refuses its pilots: {event.reason}" if refused else "")
        case kinds.ScriptChecked() as checked:
            _checked(one, checked)
        case kinds.JobHeld():
            one.update("job", _OPEN, phase=JobPhase.HELD.value, reason=event.reason)
        case kinds.JobReleased():
            one.update("job", _OPEN, phase=JobPhase.QUEUED.value, reason=event.reason)
        case kinds.JobCancelled():
            _over(one, JobPhase.CANCELLED)
        case kinds.JobFailed():
            _over(one, JobPhase.FAILED)
        case kinds.JobCompleted(result=result):
            _over(one, JobPhase.COMPLETED, result)
        case kinds.WorkerStuck() as stuck:
            _reason(one, stuck.in_words, stuck_words(stuck.worker))
        case kinds.WorkerLeft() as left:
            if left.unsaved or left.saved:
                _reason(one, left.unsaved_in_words, UNSAVED_WORDS)
            _reason(one, "", stuck_words(left.worker))
            fold_pilot(one)
        case kinds.WorkerLost(worker=worker):
            _reason(one, "", stuck_words(worker))
            one.do("UPDATE job SET lost_workers = lost_workers + 1 WHERE id = :job")
        case kinds.GenerationPublished() as published:
            _generation(one, published)
        case kinds.GenerationSwitched() as switched:
            _switched(one, switched)
        case kinds.SamplesReported() as window:
            _samples(one, window)
        case kinds.MetricReported(name=name, value=value, samples=samples):
            if name and one.is_known():
                said = {"value": json.dumps(CODEC.dump(value)), "samples": number(samples)}
                one.insert("metric", "REPLACE", job=event.job, name=name, at=event.at, **said)
        case kinds.PoolCounted() as pool:
            counts = {name: whole(getattr(pool, name)) or 0 for name in _COUNTED}
            one.insert("pool", "ABORT", seq=event.seq, at=event.at, **counts)
        case _:
            fold_pilot(one)


# --- a job's life ---------------------------------------------------------------------------------------------


_MADE = frozenset({"sizes", "total_samples", "submitted_at"})
_AS_ANNOUNCED = t.stored_fields(MalleableJob, t.job, _MADE)
_COUNTED = t.stored_fields(kinds.PoolCounted, t.pool)


def _announced(one: OneEvent, job: MalleableJob) -> None:
    made = {
        "id": one.event.job,
        "sizes": json.dumps(job.sizes),
        "total_samples": number(job.total_samples),
        "submitted_at": one.time(job.submitted_at),
        "phase": JobPhase.ANNOUNCED,
        "reason": one.event.reason,
    }
    one.insert("job", "IGNORE", **{name: getattr(job, name) for name in _AS_ANNOUNCED} | made)


def _checked(one: OneEvent, checked: kinds.ScriptChecked) -> None:
    """A job that is different keeps its size, as `malletrain.decide.limits` has it."""
    found = {"check_verdict": checked.verdict.value, "check_text": checked.text, "check_digest": checked.digest}
    one.update_job(**found, fixed_nodes=None)
    if checked.verdict is ScriptVerdict.DIFFERENT:
        untrusted = "id = :job AND trusted = 0 AND elastic = 'live'"
        one.update("job", untrusted, fixed_nodes=whole(checked.nodes))


def _reason(one: OneEvent, words: str, begins: str) -> None:
    """Says why a job that is not over does not go on; without `words`, takes back what `begins` so."""
    if words:
        one.update("job", _OPEN, reason=words)
    else:
        one.do(f"UPDATE job SET reason = '' WHERE {_OPEN} AND reason LIKE :words", words=f"{begins}%")


def _over(one: OneEvent, phase: JobPhase, result: Mapping[str, JsonValue] | None = None) -> None:
    ended = {"phase": phase.value, "reason": one.event.reason, "ended_at": one.event.at}
    one.update("job", _OPEN, **ended, members="[]", world_nodes=0, result=json.dumps(CODEC.dump(result or {})))


# --- worlds and training --------------------------------------------------------------------------------------


def _generation(one: OneEvent, published: kinds.GenerationPublished) -> None:
    generation, members, event = whole(published.generation), list(published.members), one.event
    if generation is None or not one.is_known():
        return
    row = {"generation": generation, "members": json.dumps(members), "reason": event.reason}
    one.insert("world", "REPLACE", job=event.job, at=event.at, **row)
    one.set_members(members)
    one.update_job(generation=generation, batch=whole(published.batch) or None)


def _switched(one: OneEvent, switched: kinds.GenerationSwitched) -> None:
    generation, nodes = whole(switched.generation), whole(switched.nodes) or 0
    if generation is None or not one.is_known():
        return
    values = {"generation": generation, "nodes": nodes, "pause": number(switched.pause_s) or 0.0}
    one.do(
        "INSERT INTO resize (job, generation, at, nodes_before, nodes, pause_s, step, reason)"
        " VALUES (:job, :generation, :at, (SELECT world_nodes FROM job WHERE id = :job), :nodes, :pause, :step,"
        " COALESCE(NULLIF(:reason, ''),"
        " (SELECT reason FROM world WHERE job = :job AND generation = :generation), ''))"
        " ON CONFLICT (job, generation) DO UPDATE SET pause_s = MAX(pause_s, excluded.pause_s)",
        step=whole(switched.step),
        **values,
    )
    one.update_job(world_nodes=nodes)


def _samples(one: OneEvent, window: kinds.SamplesReported) -> None:
    job = one.do("SELECT samples, noise_scale FROM job WHERE id = :job").first()
    if job is None:
        return
    samples, seconds = number(window.samples) or 0.0, number(window.seconds) or 0.0
    # Every worker reports, and windows leave out what was disturbed: the job's own count is the truth.
    total, noise = number(window.total), number(window.noise_scale)
    trained = samples if total is None else max(0.0, total - job.samples)
    rate = {"rate": samples / seconds} if seconds >= SHORTEST_WINDOW_S else {}
    one.update_job(samples=job.samples + trained, noise_scale=job.noise_scale if noise is None else noise, **rate)
    one.use(day_of(one.event.at), "samples", trained)


_OF_PILOT = ("phase", "since", "node", "started_at", "ends_at", "reason")
_OPEN_STAY = "pilot = :pilot AND job = :job AND ended_at IS NULL"


def fold_pilot(one: OneEvent) -> None:
    """Take in one event; those that change no pilot change nothing."""
    event = one.event
    match event.payload:
        case kinds.TasksAdded() as added:
            _tasks_added(one, added)
        case kinds.ActionOutcome(action=CancelTasks(pilots=names)):
            for name in names:
                _update(one.but(pilot=name))
        case kinds.ActionOutcome(action=CutLimit() as cut, done=True) as outcome:
            ends_at: Any = number(cut.ends_at)
            _update(one.but(payload=replace(outcome, action=replace(cut, ends_at=ends_at))))
            one.update("stay", _OPEN_STAY, ends_at=ends_at)
        case kinds.ActionIntent(action=StartPilot()):
            if event.pilot and part_of(event.pilot):
                # A further node of a task is a pilot only while the task holds it.
                one.do(
                    "INSERT OR IGNORE INTO pilot (id, job, phase, since)"
                    " SELECT :pilot, :job, 'ended', :at FROM pilot WHERE id = :task AND job = :job",
                    task=task_of(event.pilot),
                )
            _update(one)
        case kinds.ActionIntent(action=LeavePilot(cause=cause)):
            _update(one)
            one.update("stay", _OPEN_STAY, leave_cause=cause.value, reason=event.reason)
        case kinds.ActionIntent() | kinds.ActionOutcome():
            _update(one)
        case kinds.PilotStarted() as started:
            _started(one, started)
        case kinds.PilotHeld() | kinds.PilotSetAside() | kinds.PilotWaits() | kinds.PilotEnded():
            _gave_up(one)


def _tasks_added(one: OneEvent, added: kinds.TasksAdded) -> None:
    event = one.event
    if not one.is_known():
        return
    rows = [
        {"id": f"{added.array_id}_{task}", "job": event.job, "phase": PilotPhase.HELD.value, "at": event.at}
        for task in added.tasks
    ]
    # Slurm uses numbers of arrays again: what an earlier job had by this one is no more.
    for sql in (
        "UPDATE stay SET ended_at = :at WHERE pilot = :id AND job <> :job AND ended_at IS NULL",
        "DELETE FROM pilot WHERE id > :id || '+' AND id < :id || ',' AND job <> :job",
        "INSERT INTO pilot (id, job, phase, since) VALUES (:id, :job, :phase, :at) ON CONFLICT (id) DO UPDATE"
        " SET job = excluded.job, phase = excluded.phase, since = excluded.since, node = '', started_at = NULL,"
        " ends_at = NULL, reason = '' WHERE pilot.job <> excluded.job",
    ):
        if rows:
            one.connection.exec_driver_sql(sql, rows)
    one.update("job", "id = :job AND phase = 'announced'", phase=JobPhase.QUEUED.value)


def _update(one: OneEvent) -> Pilot | None:
    """The event's pilot as it is now, in the table too; None for one that is not known."""
    row, event = one.do("SELECT * FROM pilot WHERE id = :pilot AND job = :job").first(), one.event
    if row is None:
        return None
    phase = PilotPhase(row.phase)
    before = Pilot(row.id, row.job, phase, row.since, row.node, row.started_at, row.ends_at, reason=row.reason)
    pilot = after(before, event)
    if pilot != before:
        # People are shown why a start failed.
        failed = isinstance(event.payload, kinds.ActionOutcome) and isinstance(event.payload.action, StartPilot)
        columns = {name: getattr(pilot, name) for name in _OF_PILOT}
        one.update("pilot", "id = :pilot", **columns | ({"reason": event.reason} if failed else {}))
    return pilot


def _started(one: OneEvent, started: kinds.PilotStarted) -> None:
    event, started_at, ends_at = one.event, one.time(started.started_at), number(started.ends_at)
    pilot = _update(one.but(payload=kinds.PilotStarted(started_at, ends_at)))
    if pilot is None:
        return
    lasting = _open_stay(one)
    if lasting is not None and lasting.started_at == started_at and lasting.node == pilot.node:
        one.update("stay", _OPEN_STAY, ends_at=ends_at)
        return
    if lasting is not None:
        _close_stay(one, lasting, state="unseen", preempted=False)
    span = {"started_at": started_at, "ends_at": ends_at}
    one.insert("stay", "ABORT", id=event.seq, pilot=event.pilot, job=event.job, node=pilot.node, **span)


def _gave_up(one: OneEvent) -> None:
    event, pilot = one.event, _update(one)
    if pilot is None:
        return
    preempted, state = False, pilot.phase.value
    if isinstance(event.payload, kinds.PilotEnded):
        preempted, state = event.payload.preempted, event.payload.state.value
    elif isinstance(event.payload, kinds.PilotHeld):
        preempted = event.payload.preempted
    lasting = _open_stay(one)
    if lasting is not None:
        _close_stay(one, lasting, state, preempted)
    if preempted:
        one.do("UPDATE job SET preemptions = preemptions + 1 WHERE id = :job")
    members = one.members()
    if event.pilot in members:
        one.set_members([m for m in members if m != event.pilot])
    if isinstance(event.payload, kinds.PilotSetAside):
        one.update_job(reason=f"task {event.pilot} stays held: {event.reason}")


def _open_stay(one: OneEvent) -> Row[Any] | None:
    return one.do(f"SELECT * FROM stay WHERE {_OPEN_STAY}").first()


def _close_stay(one: OneEvent, stay: Row[Any], state: str, preempted: bool) -> None:
    """End a stay, and count it into its days."""
    ended_at, why = max(stay.started_at, one.event.free_at), stay.reason or one.event.reason
    one.update("stay", _OPEN_STAY, ended_at=ended_at, state=state, preempted=int(preempted), reason=why)
    for day, seconds in days(stay.started_at, ended_at):
        one.use(day, "node_seconds", seconds)
    one.use(day_of(stay.started_at), "stays", 1)
    if preempted:
        one.use(day_of(ended_at), "preemptions", 1)
    one.do("UPDATE job SET node_seconds = node_seconds + :held WHERE id = :job", held=ended_at - stay.started_at)
