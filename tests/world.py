"""A small world for tests of deciding and of the loop: values with short names, and a greedy stand-in policy."""

from __future__ import annotations

from collections.abc import Iterable

from malletrain.decide.rules import Rules
from malletrain.domain.event import Event, EventKind
from malletrain.domain.job import MalleableJob
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState
from malletrain.loop.journalled import announced
from malletrain.loop.memory import ManualClock, MemoryCluster, MemoryJournal, MemoryWorkers
from malletrain.loop.tick import Loop
from malletrain.sizing.problem import Policy
from malletrain.sizing.registry import policy as policy_named

START = 1_000_000.0
RULES = Rules(margin_s=10.0, min_hole_s=70.0)


def node(name: str, state: NodeState = NodeState.IDLE, **more: object) -> Node:
    return Node(name, state, ("batch", "harvest"), **more)  # type: ignore[arg-type]


def main_job(
    number: int,
    *,
    nodes: Iterable[str] = (),
    count: int = 1,
    start: float | None = None,
    planned: Iterable[str] = (),
    limit_s: float = 600.0,
    reason: str = "Resources",
    priority: int = 100,
    **more: object,
) -> SlurmJob:
    held = tuple(nodes)
    return SlurmJob(
        id=str(number),
        raw_id=number,
        user="main",
        account="main",
        partition="batch",
        qos="normal",
        state=SlurmState.RUNNING if held else SlurmState.PENDING,
        reason="None" if held else reason,
        node_count=len(held) or count,
        start_time=start,
        time_limit_s=limit_s,
        nodes=held,
        planned_nodes=tuple(planned),
        priority=priority,
        **more,  # type: ignore[arg-type]
    )


def job(job_id: int, least: int = 1, most: int = 8, **more: object) -> MalleableJob:
    return MalleableJob(job_id, f"job{job_id}", "alice", 1001, "harvest", least, most, START, **more)  # type: ignore[arg-type]


class World:
    """A loop over the ports in memory."""

    def __init__(self, nodes: int = 8, rules: Rules = RULES, policy: Policy | None = None) -> None:
        self.clock = ManualClock(START)
        self.cluster = MemoryCluster([node(f"n{i}") for i in range(nodes)], self.clock)
        self.workers = MemoryWorkers(self.clock)
        self.journal = MemoryJournal()
        self.loop = Loop(self.cluster, self.workers, self.journal, self.clock, policy or policy_named("exact"), rules)

    def submit(self, wanted: MalleableJob, tasks: int = 12) -> None:
        self.loop.record([Event(self.clock.now(), EventKind.JOB_ANNOUNCED, wanted.id, data=announced(wanted))])
        array = self.cluster.submit_array(wanted.user, tasks)
        data = {"array_id": array, "tasks": tasks}
        self.loop.record([Event(self.clock.now(), EventKind.ARRAY_ATTACHED, wanted.id, data=data)])

    def tick(self, seconds: float = 10.0) -> None:
        self.clock.advance(seconds)
        self.loop.tick()
        self.loop.react()

    def running(self) -> dict[str, str]:
        """Node -> pilot, as the cluster has it."""
        return {t.node: p for p, t in self.cluster.tasks.items() if t.node}

    def nodes_of(self, job_id: int) -> int:
        return len(self.loop.ledger.views()[job_id].staying)
