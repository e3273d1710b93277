"""Pilots that are only imagined, laid over what Slurm really shows: for `malletraind --observe`.

The loop runs over them as over real ones: they "hold" nodes that Slurm shows free, for as long as no main job takes
them. Nothing is asked of Slurm but to be looked at, so the right to look is all that is needed.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from malletrain.domain.decision import Outcome, StartPilot
from malletrain.domain.event import ArrayAttached, Event
from malletrain.domain.job import PilotEnd
from malletrain.domain.snapshot import FREE_STATES, Node, NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.loop.memory import MemoryCluster, MemoryWorkers
from malletrain.loop.ports import Clock, Cluster

#: What users see as the owner of imagined pilots.
NOBODY = "nobody"


class ShadowCluster(MemoryCluster):
    """The port `Cluster` over another one that is only looked at: its tasks are imagined.

    A real pilot would have made a main job wait where this one just gives way: Slurm gives the job its node, and the
    next look shows it. Such a pilot counts as preempted, with the main job's id as the detail. Slurm would have
    preferred idle nodes to those of pilots, so this tells too many of them rather than too few.
    """

    def __init__(self, real: Cluster, partition: str, clock: Clock) -> None:
        """`partition` is the harvest partition; where no node is in one of that name yet, every node counts."""
        super().__init__((), clock, partition)
        self._real = real
        self._seen_running: set[str] = set()
        self._looked = False
        self._main_started = 0

    def take_main_started(self) -> int:
        """How many main jobs have been seen running for the first time since the last call."""
        count, self._main_started = self._main_started, 0
        return count

    def snapshot(self) -> Snapshot:
        """The real cluster, with the imagined pilots that are still possible on it."""
        real = self._with_partition(self._real.snapshot())
        self._count_main(real)
        self._end_impossible(real)
        self._expire()
        rows = tuple(self._row(pilot, task) for pilot, task in sorted(self.tasks.items()) if task.end is None)
        taken = {node for row in rows for node in row.nodes}
        nodes = tuple(_held(node) if node.name in taken else node for node in real.nodes)
        return replace(real, nodes=nodes, jobs=real.jobs + rows)

    def look(self, last: Snapshot) -> Snapshot:
        """As the real one; `last` holds the imagined pilots already."""
        return self._real.look(last)

    def ended_main_jobs(self, nodes: Collection[str]) -> Sequence[SlurmJob]:
        return self._real.ended_main_jobs(nodes)

    def start(self, actions: Sequence[StartPilot]) -> Sequence[Outcome]:
        return [self._start(action.pilot, [action], (action.node,)) for action in actions]

    def _with_partition(self, real: Snapshot) -> Snapshot:
        if any(self.partition in node.partitions for node in real.nodes):
            return real
        nodes = tuple(replace(node, partitions=(*node.partitions, self.partition)) for node in real.nodes)
        return replace(real, nodes=nodes)

    def _count_main(self, real: Snapshot) -> None:
        running = {job.id for job in real.jobs if job.holds_nodes and job.partition != self.partition}
        if self._looked:  # those that ran before are nothing new
            self._main_started += len(running - self._seen_running)
        self._seen_running, self._looked = running, True

    def _end_impossible(self, real: Snapshot) -> None:
        for pilot, task in self.tasks.items():
            taker = next(iter(real.holders.get(task.node, ())), None)
            if taker is not None:
                self.end_pilot(pilot, PilotEnd(SlurmState.PREEMPTED, preempted=True, detail=taker.id))
            elif task.node and task.node not in real.node:
                self.end_pilot(pilot, PilotEnd(SlurmState.NODE_FAIL, detail=f"{task.node} is no longer there"))


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
        self._cluster.submit_array(NOBODY, tasks, array)
        self.report(Event(self.clock.now(), ArrayAttached(array, tasks), job_id))
        return True
