"""The projections of pilots: what each is now (by `malletrain.domain.pilot_life`), and their stays on nodes."""

from dataclasses import replace
from typing import Any

from sqlalchemy import Row

from malletrain.domain import event as kinds
from malletrain.domain.decision import CancelTasks, CutLimit, LeavePilot, StartPilot
from malletrain.domain.job import JobPhase, Pilot, PilotPhase, part_of, task_of
from malletrain.domain.pilot_life import after
from malletrain.store.folding import OneEvent, day_of, days, number

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
                _update(one.of_pilot(name))
        case kinds.ActionOutcome(action=CutLimit() as cut, done=True) as outcome:
            ends_at: Any = number(cut.ends_at)
            _update(
                OneEvent(
                    one.connection, replace(event, payload=replace(outcome, action=replace(cut, ends_at=ends_at)))
                )
            )
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
    pilot = _update(OneEvent(one.connection, replace(event, payload=kinds.PilotStarted(started_at, ends_at))))
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
    ended_at, why = max(stay.started_at, one.event.at), stay.reason or one.event.reason
    one.update("stay", _OPEN_STAY, ended_at=ended_at, state=state, preempted=int(preempted), reason=why)
    for day, seconds in days(stay.started_at, ended_at):
        one.use(day, "node_seconds", seconds)
    one.use(day_of(stay.started_at), "stays", 1)
    if preempted:
        one.use(day_of(ended_at), "preemptions", 1)
    one.do("UPDATE job SET node_seconds = node_seconds + :held WHERE id = :job", held=ended_at - stay.started_at)
