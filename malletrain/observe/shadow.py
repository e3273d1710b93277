"""Pilots that are only imagined, laid over what Slurm really shows: for `malletraind --observe`.

The loop runs over them as over real ones: they "hold" nodes that Slurm shows free, for as long as no main job takes
them. Nothing is asked of Slurm but to be looked at, so the right to look is all that is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from malletrain.domain.decision import CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.event import ArrayAttached, Event
from malletrain.domain.job import ArrayReport, MalleableJob, PilotEnd
from malletrain.domain.snapshot import FREE_STATES, Node, NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.loop.memory import MemoryWorkers
from malletrain.loop.ports import Clock, Cluster

#: What users see as the owner of imagined pilots.
NOBODY = "nobody"


@dataclass
class _Task:
    """One imagined task: `node` while it runs, `end` once it is consumed."""

    node: str = ""
    start: float = 0.0
    ends_at: float = 0.0
    end: PilotEnd | None = None


class ShadowCluster:
    """The port `Cluster` over another one that is only looked at.

    A real pilot would have made a main job wait where this one just gives way: Slurm gives the job its node, and the
    next look shows it. Such a pilot counts as preempted, with the main job's id as the detail. Slurm would have
    preferred idle nodes to those of pilots, so this tells too many of them rather than too few.
    """

    def __init__(self, real: Cluster, partition: str, now: Callable[[], float]) -> None:
        """`partition` is the harvest partition; where no node is in one of that name yet, every node counts."""
        self._real = real
        self._partition = partition
        self._now = now
        self._tasks: dict[str, _Task] = {}
        self._seen_running: set[str] = set()
        self._looked = False
        self._main_started = 0

    def submit(self, array_id: int, tasks: int) -> None:
        """Imagine a held array."""
        self._tasks.update({f"{array_id}_{n}": _Task() for n in range(tasks)})

    def take_main_started(self) -> int:
        """How many main jobs have been seen running for the first time since the last call."""
        count, self._main_started = self._main_started, 0
        return count

    # -- what is seen ------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The real cluster, with the imagined pilots that are still possible on it."""
        real = self._with_partition(self._real.snapshot())
        self._count_main(real)
        self._end_impossible(real)
        return self._laid_over(real)

    def look(self, last: Snapshot) -> Snapshot:
        """As the real one; `last` holds the imagined pilots already."""
        return self._real.look(last)

    def inspect(self, array_id: int, job: MalleableJob) -> ArrayReport:
        own = (pilot.partition("_") for pilot in self._tasks)
        return ArrayReport(array_id, tuple(sorted(int(task) for array, _, task in own if array == str(array_id))))

    def ended_main_jobs(self, nodes: Collection[str]) -> Sequence[SlurmJob]:
        return self._real.ended_main_jobs(nodes)

    def end_of(self, pilot: str) -> PilotEnd:
        task = self._tasks.get(pilot)
        if task is None:
            return PilotEnd(SlurmState.UNKNOWN, detail="imagined before the daemon was started")
        if task.end is not None:
            return task.end
        return PilotEnd(SlurmState.RUNNING) if task.node else PilotEnd(SlurmState.PENDING, held=True)

    # -- what is imagined to be done ---------------------------------------------------------------------------

    def start(self, actions: Sequence[StartPilot]) -> Sequence[Outcome]:
        now = self._now()
        for action in actions:
            self._tasks[action.pilot] = _Task(action.node, now, now + action.limit_s)
        return [Outcome(True, "imagined") for _ in actions]

    def cut(self, action: CutLimit) -> Outcome:
        self._tasks[action.pilot].ends_at = action.ends_at
        return Outcome(True, "imagined")

    def recycle(self, actions: Sequence[RecyclePilot]) -> Sequence[Outcome]:
        for action in actions:
            task = self._tasks.get(action.pilot)
            if task is not None and task.end is None:
                self._tasks[action.pilot] = _Task()
        return [Outcome(True, "imagined") for _ in actions]

    def cancel(self, action: CancelTasks) -> Outcome:
        for pilot in action.pilots:
            self._tasks[pilot] = _Task(end=PilotEnd(SlurmState.CANCELLED))
        return Outcome(True, "imagined")

    def take_back(self, strays: Sequence[Stray]) -> Sequence[Outcome]:
        return [Outcome(True, "imagined") for _ in strays]

    # -- parts -------------------------------------------------------------------------------------------------

    def _with_partition(self, real: Snapshot) -> Snapshot:
        if any(self._partition in node.partitions for node in real.nodes):
            return real
        nodes = tuple(replace(node, partitions=(*node.partitions, self._partition)) for node in real.nodes)
        return replace(real, nodes=nodes)

    def _count_main(self, real: Snapshot) -> None:
        running = {job.id for job in real.jobs if job.holds_nodes and job.partition != self._partition}
        if self._looked:  # those that ran before are nothing new
            self._main_started += len(running - self._seen_running)
        self._seen_running, self._looked = running, True

    def _end_impossible(self, real: Snapshot) -> None:
        for task in self._tasks.values():
            if not task.node or task.end is not None:
                continue
            taker = next(iter(real.holders.get(task.node, ())), None)
            if taker is not None:
                task.end = PilotEnd(SlurmState.PREEMPTED, preempted=True, detail=taker.id)
            elif task.node not in real.node:
                task.end = PilotEnd(SlurmState.NODE_FAIL, detail=f"{task.node} is no longer there")
            elif real.taken_at >= task.ends_at:
                task.end = PilotEnd(SlurmState.TIMEOUT)

    def _laid_over(self, real: Snapshot) -> Snapshot:
        alive = {pilot: task for pilot, task in self._tasks.items() if task.end is None}
        taken = {task.node for task in alive.values() if task.node}
        rows = tuple(self._row(pilot, task) for pilot, task in sorted(alive.items()))
        nodes = tuple(_held(node) if node.name in taken else node for node in real.nodes)
        return replace(real, nodes=nodes, jobs=real.jobs + rows)

    def _row(self, pilot: str, task: _Task) -> SlurmJob:
        array = pilot.partition("_")[0]
        return SlurmJob(
            id=pilot,
            raw_id=0,
            user=NOBODY,
            account="",
            partition=self._partition,
            qos="",
            state=SlurmState.RUNNING if task.node else SlurmState.PENDING,
            reason="" if task.node else "JobHeldUser",
            array_id=int(array),
            start_time=task.start if task.node else None,
            end_time=task.ends_at if task.node else None,
            nodes=(task.node,) if task.node else (),
        )


def _held(node: Node) -> Node:
    """The node as Slurm would show it under a pilot: allocated, unless staff wants it."""
    return replace(node, state=NodeState.ALLOCATED) if node.state in FREE_STATES else node


class ShadowWorkers(MemoryWorkers):
    """The workers of imagined pilots: they leave at once, and submit more tasks when asked."""

    def __init__(self, cluster: ShadowCluster, next_array: int, clock: Clock) -> None:
        """`next_array` is the number of the next array that they submit."""
        super().__init__(clock)
        self.next_array = next_array
        self._cluster = cluster

    def pilots_ended(self, job_id: int, pilots: Collection[str]) -> None:
        """Does nothing: nobody looks, and there are ever new ones."""

    def top_up(self, job_id: int, tasks: int) -> bool:
        array, self.next_array = self.next_array, self.next_array + 1
        self._cluster.submit(array, tasks)
        self.report(Event(self.clock.now(), ArrayAttached(array, tasks), job_id))
        return True
