"""The projections of pilots: what each is now, and their stays on nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Row

from malletrain.domain.event import Event
from malletrain.domain.job import PilotPhase, part_of, task_of
from malletrain.store.folding import (
    day_of,
    days,
    do,
    is_known,
    items,
    members_of,
    number,
    set_members,
    time_of,
    use,
    whole,
    words,
)


def _tasks_added(connection: Connection, event: Event) -> None:
    array_id = whole(event.data, "array_id")
    if array_id is None or not is_known(connection, event):
        return
    rows = [
        {"id": f"{array_id}_{task}", "job": event.job, "phase": PilotPhase.HELD.value, "at": event.at}
        for task in items(event.data, "tasks")
    ]
    if rows:
        insert = "INSERT OR IGNORE INTO pilot (id, job, phase, since) VALUES (:id, :job, :phase, :at)"
        connection.exec_driver_sql(insert, rows)
    do(connection, "UPDATE job SET phase = 'queued' WHERE id = :job AND phase = 'announced'", event)


def _intent(connection: Connection, event: Event) -> None:
    kind = words(event.data, "type")
    if kind == "recycle":
        do(
            connection,
            "UPDATE pilot SET phase = 'recycling', since = :at, reason = :reason,"
            " node = COALESCE(NULLIF(:node, ''), node) WHERE id = :pilot AND job = :job",
            event,
            node=event.node,
        )
    elif kind in ("start", "leave"):
        if kind == "start" and event.pilot and part_of(event.pilot):
            # A further node of a task is a pilot only while the task holds it.
            do(
                connection,
                "INSERT OR IGNORE INTO pilot (id, job, phase, since)"
                " SELECT :pilot, :job, 'ended', :at FROM pilot WHERE id = :task AND job = :job",
                event,
                task=task_of(event.pilot),
            )
        do(
            connection,
            "UPDATE pilot SET since = CASE phase WHEN :phase THEN since ELSE :at END, phase = :phase,"
            " reason = :reason, node = COALESCE(NULLIF(:node, ''), node) WHERE id = :pilot AND job = :job",
            event,
            node=event.node,
            phase=(PilotPhase.RELEASED if kind == "start" else PilotPhase.LEAVING).value,
        )
    if kind == "leave":
        do(
            connection,
            "UPDATE stay SET leave_cause = :cause, reason = :reason"
            " WHERE pilot = :pilot AND job = :job AND ended_at IS NULL",
            event,
            cause=words(event.data, "cause"),
        )


def _outcome(connection: Connection, event: Event) -> None:
    kind, done = words(event.data, "type"), event.data.get("done") is True
    if kind == "cancel" and done:
        for name in items(event.data, "pilots"):
            if isinstance(name, str):
                do(
                    connection,
                    "UPDATE pilot SET phase = 'ended', since = :at, node = ''"
                    " WHERE id = :name AND job = :job AND phase IN ('held', 'aside')",
                    event,
                    name=name,
                )
    elif kind == "start" and not done:
        do(
            connection,
            "UPDATE pilot SET phase = :phase, since = :at, node = '', reason = :reason"
            " WHERE id = :pilot AND job = :job AND phase = 'released'",
            event,
            phase=(PilotPhase.ENDED if part_of(event.pilot or "") else PilotPhase.HELD).value,
        )
    elif kind == "cut" and done:
        ends_at = number(event.data, "ends_at")
        do(connection, "UPDATE pilot SET ends_at = :end WHERE id = :pilot AND job = :job", event, end=ends_at)
        do(
            connection,
            "UPDATE stay SET ends_at = :end WHERE pilot = :pilot AND job = :job AND ended_at IS NULL",
            event,
            end=ends_at,
        )


def _pilot_started(connection: Connection, event: Event) -> None:
    pilot = do(connection, "SELECT * FROM pilot WHERE id = :pilot AND job = :job", event).first()
    if pilot is None:
        return
    started_at, ends_at = time_of(event, "started_at"), number(event.data, "ends_at")
    node = event.node or pilot.node
    do(
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
        do(connection, "UPDATE stay SET ends_at = :end WHERE id = :id", event, end=ends_at, id=lasting.id)
        return
    if lasting is not None:
        _close_stay(connection, event, lasting, state="unseen", preempted=False)
    do(
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
        changed = do(
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
            _close_stay(connection, event, lasting, words(event.data, "state", phase.value), preempted)
        if preempted:
            do(connection, "UPDATE job SET preemptions = preemptions + 1 WHERE id = :job", event)
        members = members_of(connection, event)
        if event.pilot in members:
            set_members(connection, event, [m for m in members if m != event.pilot])

    return fold


def _pilot_aside(connection: Connection, event: Event) -> None:
    _pilot_phase(PilotPhase.ASIDE)(connection, event)
    told = f"task {event.pilot} stays held: {event.reason}"
    do(connection, "UPDATE job SET reason = :told WHERE id = :job", event, told=told)


def _open_stay(connection: Connection, event: Event) -> Row[Any] | None:
    return do(
        connection, "SELECT * FROM stay WHERE pilot = :pilot AND job = :job AND ended_at IS NULL", event
    ).first()


def _close_stay(connection: Connection, event: Event, stay: Row[Any], state: str, preempted: bool) -> None:
    """End a stay, and count it into its days."""
    ended_at = max(stay.started_at, time_of(event, "ended_at"))
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


#: By the event's word, as the journal keeps it.
PILOT_FOLDS: Mapping[str, Callable[[Connection, Event], None]] = {
    "tasks_added": _tasks_added,
    "intent": _intent,
    "outcome": _outcome,
    "pilot_started": _pilot_started,
    "pilot_waits": _pilot_phase(PilotPhase.RELEASED),
    "pilot_aside": _pilot_aside,
    "pilot_held": _pilot_phase(PilotPhase.HELD),
    "pilot_ended": _pilot_phase(PilotPhase.ENDED),
}
