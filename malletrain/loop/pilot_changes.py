"""What a snapshot says of our pilots that the ledger does not know yet: pure comparison, and one question each for
pilots that the queue no longer shows; and what follows when a worker is gone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from malletrain.decide.multi_node_pilots import co_allocated
from malletrain.domain.decision import Action, LeaveCause, LeavePilot, RecyclePilot
from malletrain.domain.event import Event, PilotEnded, PilotHeld, PilotStarted, PilotWaits
from malletrain.domain.job import JobView, Pilot, PilotEnd, PilotPhase, part_of
from malletrain.domain.slurm_reasons import is_unfit
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot

#: A task that was set aside is looked at again after so long: it may have been put right.
ASIDE_S = 600.0


def observe(
    snapshot: Snapshot,
    views: Mapping[int, JobView],
    end_of: Callable[[str], PilotEnd],
    now: float,
    partition: str,
    class_features: Collection[str] = (),
) -> list[Event]:
    """The events that bring the ledger's pilots up to `snapshot`; pilots live in `partition`. `class_features`:
    features of nodes that make a class of their own.

    A pilot that changed after the snapshot was begun is left for the next one. `end_of` asks Slurm what became of
    a pilot that the queue does not show; it may raise ClusterUnavailable.
    """
    rows = {job.id: job for job in snapshot.jobs}
    kinds = functools.cache(lambda: _kinds(snapshot, partition, class_features))
    end_once = functools.cache(end_of)
    events: list[Event] = []
    for job_id, view in sorted(views.items()):
        for pilot_id, pilot in sorted(view.pilots.items()):
            if snapshot.taken_at <= pilot.since <= now:
                continue  # (one that changed after `now` did so before the clock was set back)
            row = rows.get(pilot_id)
            if pilot.phase is PilotPhase.HELD and row is not None and row.is_held and row.partition == partition:
                continue  # as nearly all are
            if pilot.phase is PilotPhase.ENDED:
                seen = _back(pilot, row, partition)
            else:
                seen = _seen(pilot, rows.get(pilot.task), end_once, now, partition)
            if seen is not None:
                payload, reason = _of_part(seen) if pilot.is_part else _with_preemption(seen, pilot)
                node = pilot.node
                if isinstance(payload, PilotStarted):
                    node = _node(pilot, rows[pilot.task])
                    payload = replace(payload, node_class=kinds().get(node))
                events.append(Event(now, payload, job_id, pilot_id, node or None, reason))
    return events


def _kinds(snapshot: Snapshot, partition: str, features: Collection[str]) -> dict[str, str]:
    """The class of each node that pilots may have; nothing where all are of one."""
    found = {node.name: node.kind_with(features) for node in snapshot.nodes if partition in node.partitions}
    return found if len(set(found.values())) > 1 else {}


_Seen = tuple[PilotStarted | PilotHeld | PilotWaits | PilotEnded, str]  # and the reason


def _of_part(seen: _Seen) -> _Seen:
    """What is seen of a task, for a further pilot in it: it goes on or ends with the task, and never waits in an
    array. Preemption is the task's, so it is counted once."""
    payload, reason = seen
    if isinstance(payload, PilotStarted):
        return seen
    if isinstance(payload, PilotWaits):
        return PilotEnded(SlurmState.REQUEUED), f"with its task: {reason}"
    state = payload.state if isinstance(payload, PilotEnded) else SlurmState.REQUEUED
    return PilotEnded(state, left_at=payload.left_at), f"with its task: {reason or 'held again'}"


def _with_preemption(seen: _Seen, pilot: Pilot) -> _Seen:
    """What is seen of a pilot that Slurm had preempted when it was recycled: requeued, its record forgets that."""
    payload, _ = seen
    if not pilot.preempted:
        return seen
    if isinstance(payload, PilotHeld):
        return replace(payload, preempted=True), "preempted"
    return (replace(payload, preempted=True), "preempted") if isinstance(payload, PilotEnded) else seen


def _back(pilot: Pilot, row: SlurmJob | None, partition: str) -> _Seen | None:
    """A task that has ended waits again, in hold: slurmctld was killed before it had saved that end, and has come
    back with the task as it was. (One that was submitted since is of another job: numbers are used again. Slurm's
    clock tells the one time and this machine's the other: a task that existed for less than they differ by stays.)"""
    if row is None or not row.is_held:
        return None
    if row.partition != partition or row.submit_time is None or row.submit_time > pilot.since:
        return None
    return PilotHeld(), "had ended, and Slurm has it again: slurmctld came back from an older state"


def _seen(
    pilot: Pilot, row: SlurmJob | None, end_of: Callable[[str], PilotEnd], now: float, partition: str
) -> _Seen | None:
    if row is not None and row.partition != partition and not row.is_held:
        return PilotEnded(SlurmState.CANCELLED), f"no pilot any more: it was moved to partition {row.partition}"
    if pilot.phase is PilotPhase.ASIDE:
        return _aside(pilot, row, end_of, now)
    if row is None:
        return _ended(pilot, end_of(pilot.task))
    if row.state is SlurmState.COMPLETING:
        return None
    if row.holds_nodes:
        return _running(pilot, row)
    if row.state is SlurmState.PENDING:
        return _pending(pilot, row)
    return _ended(pilot, end_of(pilot.task))


def _aside(pilot: Pilot, row: SlurmJob | None, end_of: Callable[[str], PilotEnd], now: float) -> _Seen | None:
    """A task that was set aside is left alone for a while, and then counts as held again: its next start looks at
    it field by field."""
    if now - pilot.since < ASIDE_S:
        return None
    if row is not None and row.state is SlurmState.PENDING:
        return PilotHeld(), "was set aside; to be looked at again"
    end = end_of(pilot.id)
    if end.held:
        return PilotHeld(), "was set aside; to be looked at again"
    if end.state is SlurmState.PENDING:
        return PilotEnded(SlurmState.CANCELLED), "no pilot any more: it waits in the queue by itself"
    return _ended(pilot, end)


def _running(pilot: Pilot, row: SlurmJob) -> _Seen | None:
    if part_of(pilot.id) >= len(row.nodes) and pilot.is_part:
        return PilotEnded(SlurmState.REQUEUED), f"its task holds {len(row.nodes)} nodes"
    started = pilot.phase in (PilotPhase.HELD, PilotPhase.RELEASED)
    if pilot.phase is PilotPhase.RECYCLING:
        return None
    ends_at, known = row.end_time, pilot.ends_at
    moved = ends_at is not None and (known is None or abs(ends_at - known) > 5.0)  # Slurm's limits are whole minutes
    if not started and not moved:
        return None
    unasked = pilot.unasked or (pilot.phase is PilotPhase.HELD and pilot.asked_on not in row.nodes)
    reason = "started by someone else" if unasked and started else ""
    return PilotStarted(row.start_time, ends_at, unasked=unasked), reason


def _node(pilot: Pilot, row: SlurmJob) -> str:
    return row.nodes[part_of(pilot.id)] if row.nodes else pilot.node


def _pending(pilot: Pilot, row: SlurmJob) -> _Seen | None:
    # One that Slurm holds as unfit has not begun, which says more; it keeps that reason once it is recycled.
    if row.is_held and not (pilot.phase is PilotPhase.RELEASED and is_unfit(row)):
        return None if pilot.phase is PilotPhase.HELD else (PilotHeld(left_at=_left_at(pilot, row)), "")
    if pilot.phase in (PilotPhase.RELEASED, PilotPhase.RECYCLING):
        return None
    return PilotWaits(), f"waits in the queue though it was not released by the daemon ({row.reason})"


def _left_at(pilot: Pilot, row: SlurmJob) -> float | None:
    """When Slurm had requeued the task: once its nodes were free, epilog and all, it counts as submitted anew
    (`batch_requeue_fini` in slurmctld's job_mgr.c). None: it has not run since it was submitted."""
    if pilot.started_at is None or row.submit_time is None or row.submit_time < pilot.started_at:
        return None
    return row.submit_time


def _ended(pilot: Pilot, end: PilotEnd) -> _Seen | None:
    if end.held:
        return None if pilot.phase is PilotPhase.HELD else (PilotHeld(), "")
    if end.state in (SlurmState.PENDING, SlurmState.RUNNING):
        return None  # it came into the queue since: the next snapshot shows it
    reason = "preempted" if end.preempted else end.detail or end.state.value
    return PilotEnded(end.state, end.preempted, end.exit_code, end.detail), reason


def after_loss(pilot: Pilot, view: JobView, *, left: bool, reason: str, deadline: float) -> list[Action]:
    """What follows for a task of several nodes when the worker of one of its pilots is gone: those on its other nodes
    are asked to leave, by `deadline`; when none is there any more, and the last `left` in order (one that was lost
    may be only silent), the nodes are given back."""
    others = co_allocated(pilot.id, view)
    if any(other.ready for other in others):
        why, cause = f"the worker of {pilot.id} on {pilot.node} is gone: {reason}", LeaveCause.CO_ALLOCATED_GONE
        here = PilotPhase.RUNNING, PilotPhase.RELEASED  # a look may show the start after the worker was heard
        going = [each for each in others if each.ready and each.phase in here]
        return [LeavePilot(each.job_id, each.id, each.node, cause, deadline, why) for each in going]
    running = PilotPhase.RUNNING, PilotPhase.LEAVING
    back = [each for each in (pilot, *others) if left and each.phase in running]
    return [RecyclePilot(each.job_id, each.id, each.node, reason) for each in back]
