"""Pilots of several nodes: one Slurm task holds nodes that become idle together and leave together.

It spares slurmctld jobs and commands: one pin, one release, one requeue for all. The price is that the nodes come and
go as one, so only nodes are put together that are alike and whose holes end at the same time; sizing is offered no
size that would break a task up (`whole_sizes`); and a main job that wants one of the nodes is weighed against the
loss of all (`malletrain.decide.demand.harvested`). How wide tasks are follows from how many there may be
(`malletrain.decide.pilot_width`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.decide.pilot_width import task_numbers, tasks_kept, unbroken_sizes, widths_of
from malletrain.domain.decision import Action, Hole, LeaveCause, LeavePilot, RecyclePilot
from malletrain.domain.job import JobView, Pilot, PilotPhase, task_of
from malletrain.domain.snapshot import Snapshot
from malletrain.learn.stragglers import Straggler


@dataclass(frozen=True, slots=True)
class MultiNodePilots:
    """How the pilots of one decision share Slurm tasks; `shared`: whether any do."""

    views: Mapping[int, JobView]
    snapshot: Snapshot
    shared: bool

    def with_co_allocated(self, actions: Iterable[Action]) -> list[Action]:
        """`actions`, and for each pilot that leaves those of its task that do not yet."""
        return with_co_allocated(actions, self.views)

    def count(self, pilots: Mapping[int, Sequence[Pilot]]) -> int:
        """How many Slurm tasks these pilots are."""
        if not self.shared:
            return sum(map(len, pilots.values()))
        return len({pilot.task for each in pilots.values() for pilot in each})

    def startable(self, free: Sequence[Hole], tasks: int, width: int) -> list[Hole]:
        """Of `free`, best first, those that so many more tasks of `width` nodes can hold."""
        if width <= 1:
            return list(free[: max(0, tasks)])
        groups = task_groups(free, width, self.snapshot)[: max(0, tasks)]
        held = {hole.node for group in groups for hole in group}
        return [hole for hole in free if hole.node in held]

    def replaceable(self, slow: Mapping[int, tuple[Straggler, ...]]) -> dict[int, tuple[Straggler, ...]]:
        """The stragglers that can be replaced one by one: not those in a task of several nodes."""
        return {
            job: tuple(
                each for each in found if job not in self.views or not co_allocated(each.pilot, self.views[job])
            )
            for job, found in slow.items()
        }


def task_groups(holes: Sequence[Hole], most: int, snapshot: Snapshot) -> list[tuple[Hole, ...]]:
    """`holes`, each once and in groups of at most `most`, in the order of each group's first.

    The nodes of a group have the same hardware and features, and their holes end at the same time. Nodes that became
    idle together stand side by side in `holes`, and so come into one group as far as its width allows.
    """
    if most <= 1:
        return [(hole,) for hole in holes]
    nodes = (snapshot.node[hole.node] for hole in holes)
    alike = ((h.until, n.cpus, n.memory_mib, n.gres, n.features) for h, n in zip(holes, nodes, strict=True))
    groups: dict[int, list[Hole]] = {}
    for hole, number in zip(holes, task_numbers(alike, most), strict=True):
        groups.setdefault(number, []).append(hole)
    return [tuple(group) for group in groups.values()]


def whole_sizes(
    pilots: Sequence[Pilot], least: int, most: int, sizes: tuple[int, ...], width: int = 1, narrowest: int = 1
) -> tuple[int, ...]:
    """The sizes that a job on `pilots` can take without breaking up a task, of those that it may have (`least` to
    `most`, in `sizes` unless that is empty), and growing by tasks of `width` nodes, or of `narrowest` at least;
    `sizes` as it is where no task holds several nodes and none is to."""
    if width <= 1 and not any(pilot.is_part for pilot in pilots):
        return sizes
    widths = widths_of(pilot.task for pilot in pilots)
    # An empty tuple would mean any size: this one is no size at all.
    return unbroken_sizes(tuple(widths.values()), least, most, width, sizes, narrowest) or (0,)


def keep_whole_tasks(ranked: Sequence[Pilot], size: int) -> tuple[Pilot, ...]:
    """Of `ranked`, best first, pilots for at most `size` nodes, as many as can be without breaking up a task."""
    if not any(pilot.is_part for pilot in ranked):
        return tuple(ranked[:size])
    kept = tasks_kept((pilot.task for pilot in ranked), size)
    return tuple(pilot for pilot in ranked if pilot.task in kept)


def with_co_allocated(actions: Iterable[Action], views: Mapping[int, JobView]) -> list[Action]:
    """`actions`, and for each pilot that leaves those of its task that do not yet."""
    found = list(actions)
    going = {action.pilot for action in found if isinstance(action, LeavePilot | RecyclePilot)}
    for action in tuple(found):
        if not isinstance(action, LeavePilot | RecyclePilot):
            continue
        for other in co_allocated(action.pilot, views[action.job_id]):
            asked = other.phase in (PilotPhase.LEAVING, PilotPhase.RECYCLING) and isinstance(action, LeavePilot)
            if other.id not in going and not asked:
                going.add(other.id)
                reason = f"{action.reason}; with {action.pilot}"
                found.append(_same(action, other, reason))
    return found


def co_allocated(pilot: str, view: JobView) -> tuple[Pilot, ...]:
    """The other active pilots of its task; none for a pilot by itself."""
    if not view.co_allocated:
        return ()
    return tuple(each for each in view.co_allocated.get(task_of(pilot), ()) if each.id != pilot)


def after_loss(pilot: Pilot, view: JobView, *, left: bool, reason: str, deadline: float) -> list[Action]:
    """What follows for a task of several nodes when the worker of one of its pilots is gone.

    `left`: in order; else it was lost, and may turn out to be only silent. The workers on its other nodes are asked
    to leave, by `deadline`; when none is there any more, and the last left in order, the nodes are given back.
    """
    others = co_allocated(pilot.id, view)
    running = PilotPhase.RUNNING, PilotPhase.LEAVING
    here = PilotPhase.RUNNING, PilotPhase.RELEASED  # a look may show the start after the worker was heard
    if any(other.ready for other in others):
        why = f"the worker of {pilot.id} on {pilot.node} is gone: {reason}"
        return [
            LeavePilot(each.job_id, each.id, each.node, LeaveCause.CO_ALLOCATED_GONE, deadline, why)
            for each in others
            if each.ready and each.phase in here
        ]
    return [
        RecyclePilot(each.job_id, each.id, each.node, reason)
        for each in (pilot, *others)
        if left and each.phase in running
    ]


def _same(action: LeavePilot | RecyclePilot, other: Pilot, reason: str) -> Action:
    if isinstance(action, LeavePilot):
        return replace(action, pilot=other.id, node=other.node, reason=reason)
    return replace(action, pilot=other.id, node=other.node, reason=reason, unstarted="")
