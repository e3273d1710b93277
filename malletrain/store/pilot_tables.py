"""The projections of pilots: what each is now (by `malletrain.domain.pilot_life`), and their stays on nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row

from malletrain.domain.decision import CancelTasks, CutLimit, LeavePilot, StartPilot
from malletrain.domain.event import (
    ActionIntent,
    ActionOutcome,
    Event,
    PilotEnded,
    PilotHeld,
    PilotSetAside,
    PilotStarted,
    PilotWaits,
    TasksAdded,
)
from malletrain.domain.job import Pilot, PilotPhase, part_of, task_of
from malletrain.domain.pilot_life import after
from malletrain.store.folding import day_of, days, do, insert, is_known, members_of, number, set_members, time_of, use


def fold_pilot(connection: Connection, event: Event) -> None:
    """Take in one event; those that change no pilot change nothing."""
    match event.payload:
        case TasksAdded() as added:
            _tasks_added(connection, event, added)
        case ActionOutcome(action=CancelTasks(pilots=names)):
            for name in names:
                _update(connection, replace(event, pilot=name))
        case ActionOutcome(action=CutLimit() as cut, done=True) as outcome:
            ends_at: Any = number(cut.ends_at)
            _update(connection, replace(event, payload=replace(outcome, action=replace(cut, ends_at=ends_at))))
            do(
                connection,
                "UPDATE stay SET ends_at = :end WHERE pilot = :pilot AND job = :job AND ended_at IS NULL",
                event,
                end=ends_at,
            )
        case ActionIntent(action=StartPilot()):
            if event.pilot and part_of(event.pilot):
                # A further node of a task is a pilot only while the task holds it.
                do(
                    connection,
                    "INSERT OR IGNORE INTO pilot (id, job, phase, since)"
                    " SELECT :pilot, :job, 'ended', :at FROM pilot WHERE id = :task AND job = :job",
                    event,
                    task=task_of(event.pilot),
                )
            _update(connection, event)
        case ActionIntent(action=LeavePilot(cause=cause)):
            _update(connection, event)
            do(
                connection,
                "UPDATE stay SET leave_cause = :cause, reason = :reason"
                " WHERE pilot = :pilot AND job = :job AND ended_at IS NULL",
                event,
                cause=cause.value,
            )
        case ActionIntent() | ActionOutcome():
            _update(connection, event)
        case PilotStarted() as started:
            _started(connection, event, started)
        case PilotHeld() | PilotSetAside() | PilotWaits() | PilotEnded():
            _gave_up(connection, event)


def _tasks_added(connection: Connection, event: Event, added: TasksAdded) -> None:
    if not is_known(connection, event):
        return
    rows = [
        {"id": f"{added.array_id}_{task}", "job": event.job, "phase": PilotPhase.HELD.value, "at": event.at}
        for task in added.tasks
    ]
    if rows:
        # Slurm uses numbers of arrays again: what an earlier job had by this one is no more.
        for sql in (
            "UPDATE stay SET ended_at = :at WHERE pilot = :id AND job <> :job AND ended_at IS NULL",
            "DELETE FROM pilot WHERE id > :id || '+' AND id < :id || ',' AND job <> :job",
        ):
            connection.exec_driver_sql(sql, rows)
        take_over = (
            "INSERT INTO pilot (id, job, phase, since) VALUES (:id, :job, :phase, :at) ON CONFLICT (id) DO UPDATE"
            " SET job = excluded.job, phase = excluded.phase, since = excluded.since, node = '', started_at = NULL,"
            " ends_at = NULL, reason = '' WHERE pilot.job <> excluded.job"
        )
        connection.exec_driver_sql(take_over, rows)
    do(connection, "UPDATE job SET phase = 'queued' WHERE id = :job AND phase = 'announced'", event)


def _update(connection: Connection, event: Event) -> Pilot | None:
    """The event's pilot as it is now, in the table too; None for one that is not known."""
    row = do(connection, "SELECT * FROM pilot WHERE id = :pilot AND job = :job", event).first()
    if row is None:
        return None
    phase = PilotPhase(row.phase)
    before = Pilot(row.id, row.job, phase, row.since, row.node, row.started_at, row.ends_at, reason=row.reason)
    pilot = after(before, event)
    if pilot == before:
        return pilot
    # People are shown why a start failed.
    failed = isinstance(event.payload, ActionOutcome) and isinstance(event.payload.action, StartPilot)
    do(
        connection,
        "UPDATE pilot SET phase = :phase, since = :since, node = :node, started_at = :started_at, ends_at = :ends_at,"
        " reason = :why WHERE id = :pilot",
        event,
        phase=pilot.phase.value,
        since=pilot.since,
        node=pilot.node,
        started_at=pilot.started_at,
        ends_at=pilot.ends_at,
        why=event.reason if failed else pilot.reason,
    )
    return pilot


def _started(connection: Connection, event: Event, started: PilotStarted) -> None:
    started_at, ends_at = time_of(event, started.started_at), number(started.ends_at)
    pilot = _update(connection, replace(event, payload=PilotStarted(started_at, ends_at)))
    if pilot is None:
        return
    lasting = _open_stay(connection, event)
    if lasting is not None and lasting.started_at == started_at and lasting.node == pilot.node:
        do(connection, "UPDATE stay SET ends_at = :end WHERE id = :id", event, end=ends_at, id=lasting.id)
        return
    if lasting is not None:
        _close_stay(connection, event, lasting, state="unseen", preempted=False)
    insert(
        connection, "stay", "ABORT",
        id=event.seq, pilot=event.pilot, job=event.job, node=pilot.node, started_at=started_at, ends_at=ends_at,
    )  # fmt: skip


def _gave_up(connection: Connection, event: Event) -> None:
    pilot = _update(connection, event)
    if pilot is None:
        return
    preempted, state = False, pilot.phase.value
    if isinstance(event.payload, PilotEnded):
        preempted, state = event.payload.preempted, event.payload.state.value
    elif isinstance(event.payload, PilotHeld):
        preempted = event.payload.preempted
    lasting = _open_stay(connection, event)
    if lasting is not None:
        _close_stay(connection, event, lasting, state, preempted)
    if preempted:
        do(connection, "UPDATE job SET preemptions = preemptions + 1 WHERE id = :job", event)
    members = members_of(connection, event)
    if event.pilot in members:
        set_members(connection, event, [m for m in members if m != event.pilot])
    if isinstance(event.payload, PilotSetAside):
        reason = f"task {event.pilot} stays held: {event.reason}"
        do(connection, "UPDATE job SET reason = :reason WHERE id = :job", event, reason=reason)


def _open_stay(connection: Connection, event: Event) -> Row[Any] | None:
    return do(
        connection, "SELECT * FROM stay WHERE pilot = :pilot AND job = :job AND ended_at IS NULL", event
    ).first()


def _close_stay(connection: Connection, event: Event, stay: Row[Any], state: str, preempted: bool) -> None:
    """End a stay, and count it into its days."""
    ended_at = max(stay.started_at, event.at)
    do(
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
        use(connection, event, day, node_seconds=seconds)
    use(connection, event, day_of(stay.started_at), stays=1)
    if preempted:
        use(connection, event, day_of(ended_at), preemptions=1)
    held = ended_at - stay.started_at
    do(connection, "UPDATE job SET node_seconds = node_seconds + :held WHERE id = :job", event, held=held)
