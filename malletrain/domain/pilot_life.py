"""The life of a pilot: how each event about it changes it. The ledger and the journal's tables both follow this."""

from __future__ import annotations

from dataclasses import replace

from malletrain.domain import event as kinds
from malletrain.domain.decision import CancelTasks, CutLimit, LeavePilot, RecyclePilot, StartPilot
from malletrain.domain.event import Event
from malletrain.domain.job import Pilot, PilotPhase
from malletrain.domain.snapshot import SlurmState

#: Exit status of a pilot that no daemon took: none answered, or the one there refused it. Its script has not begun.
#: (The launcher's, which knows no events: `malletrain.elastic.launch`.)
NO_DAEMON_STATUS = 118


#: Such a pilot waits in its array.
_WAITS = (PilotPhase.HELD, PilotPhase.ASIDE)


def is_without_node(event: Event) -> bool:
    """Whether the event says that a pilot has no node any more, or none yet."""
    return isinstance(event.payload, kinds.PilotHeld | kinds.PilotSetAside | kinds.PilotWaits | kinds.PilotEnded)


def after(pilot: Pilot, event: Event) -> Pilot:
    """The pilot after an event about it; the same object where the event changes nothing."""
    match event.payload:
        case kinds.ActionIntent(action=StartPilot(replaces=replaces)):
            return replace(_asked(pilot, event, PilotPhase.RELEASED), replaces=replaces)
        case kinds.ActionIntent(action=LeavePilot(deadline=deadline, cause=cause)):
            return replace(_asked(pilot, event, PilotPhase.LEAVING), leave_by=deadline, leave_cause=cause)
        case kinds.ActionIntent(action=RecyclePilot()):
            return replace(_asked(pilot, event, PilotPhase.RECYCLING), since=event.at)
        case kinds.ActionOutcome(action=StartPilot(), done=False) if pilot.phase is PilotPhase.RELEASED:
            phase = PilotPhase.ENDED if pilot.is_part else PilotPhase.HELD
            return replace(pilot, phase=phase, since=event.at, node="", asked_on=pilot.node)
        case kinds.ActionOutcome(action=StartPilot(), done=True, restarts=restarts):
            return replace(pilot, restarts=restarts)
        case kinds.ActionOutcome(action=RecyclePilot(), preempted=True):
            return replace(pilot, preempted=True)
        case kinds.ActionOutcome(action=CancelTasks(), done=True) if pilot.phase in _WAITS:
            return replace(pilot, phase=PilotPhase.ENDED, since=event.at, node="")
        case kinds.ActionOutcome(action=CutLimit(ends_at=ends_at), done=True):
            return replace(pilot, ends_at=ends_at)
        case kinds.PilotStarted() as started:
            return _started(pilot, event, started)
        case kinds.PilotWaits():
            return _without_node(pilot, event, PilotPhase.RELEASED)
        case kinds.PilotSetAside():
            return _without_node(pilot, event, PilotPhase.ASIDE)
        case kinds.PilotHeld():
            return _without_node(pilot, event, PilotPhase.HELD)
        case kinds.PilotEnded(state=state, preempted=preempted):
            ended_as = SlurmState.PREEMPTED if preempted else state
            return replace(_without_node(pilot, event, PilotPhase.ENDED), ended_as=ended_as)
        case kinds.WorkerWarm():
            return replace(pilot, ready=True, was_warm=True, unheard=False, idle_since=None)
        case kinds.WorkerLeft() | kinds.WorkerLost() if pilot.ready:
            unheard = isinstance(event.payload, kinds.WorkerLost)
            return without_worker(replace(pilot, ready=False, unheard=unheard), event.at)
    return pilot


def without_worker(pilot: Pilot, at: float) -> Pilot:
    """The pilot once its worker is gone."""
    return pilot if pilot.idle_since is not None else replace(pilot, idle_since=at)


def _asked(pilot: Pilot, event: Event, phase: PilotPhase) -> Pilot:
    since = pilot.since if phase is pilot.phase else event.at
    node = event.node or pilot.node
    return replace(pilot, phase=phase, since=since, node=node, reason=event.reason, leave_by=None, leave_cause=None)


def _started(pilot: Pilot, event: Event, started: kinds.PilotStarted) -> Pilot:
    phase = pilot.phase if pilot.phase is PilotPhase.LEAVING else PilotPhase.RUNNING
    same_node = event.node in (None, pilot.node)
    return replace(
        pilot,
        phase=phase,
        since=pilot.since if phase is pilot.phase else event.at,
        node=event.node or pilot.node,
        started_at=started.started_at,
        ends_at=started.ends_at,
        asked_on="",
        unasked=started.unasked,
        # A look may show the start only after the worker has been heard.
        idle_since=event.at if phase is not pilot.phase and not pilot.ready else pilot.idle_since,
        node_class=(pilot.node_class if same_node else "") if started.node_class is None else started.node_class,
    )


def _without_node(pilot: Pilot, event: Event, phase: PilotPhase) -> Pilot:
    return Pilot(pilot.id, pilot.job_id, phase, event.at, reason=event.reason)
