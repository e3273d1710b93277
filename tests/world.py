"""A small world for tests of deciding and of the loop: values with short names, and a greedy stand-in policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from malletrain.decide.rules import Rules
from malletrain.domain.event import ArrayAttached, Event, JobAnnounced, JsonValue
from malletrain.domain.job import MalleableJob
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState
from malletrain.loop.memory import ManualClock, MemoryCluster, MemoryJournal, MemoryWorkers
from malletrain.loop.tick import Loop
from malletrain.sizing.policy import Policy
from malletrain.sizing.registry import policy as policy_named
from malletrain.store.encoding import payload_data, payload_from

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


#: What an action of no matter which fields has.
_ANY_ACTION: dict[str, JsonValue] = {
    "limit_s": 60.0, "deadline": 0.0, "cause": "shrink", "ends_at": 0.0, "pilots": [], "tasks": 0, "done": True,
}  # fmt: skip


def event_of(
    at: float,
    kind: str,
    job: int | None = None,
    pilot: str | None = None,
    node: str | None = None,
    reason: str = "",
    data: Mapping[str, JsonValue] | None = None,
    seq: int = 0,
) -> Event:
    """An event of a row as the journal has it; of an action only the fields that the test is about."""
    row = dict(data or {})
    if kind in ("intent", "outcome"):
        of_envelope: dict[str, JsonValue] = {
            "job_id": job or 0,
            "pilot": pilot or "",
            "node": node or "",
            "reason": reason,
        }
        row = {**_ANY_ACTION, **of_envelope, **row}
    return Event(at, payload_from(kind, row), job, pilot, node, reason, seq)


def announced(wanted: MalleableJob) -> dict[str, JsonValue]:
    """A job as its row has it."""
    return payload_data(JobAnnounced(wanted))


def data_of(event: Event) -> dict[str, JsonValue]:
    """What the journal's row of the event has."""
    return payload_data(event.payload)


class World:
    """A loop over the ports in memory."""

    def __init__(self, nodes: int = 8, rules: Rules = RULES, policy: Policy | None = None) -> None:
        self.clock = ManualClock(START)
        self.cluster = MemoryCluster([node(f"n{i}") for i in range(nodes)], self.clock)
        self.workers = MemoryWorkers(self.clock)
        self.journal = MemoryJournal()
        self.loop = Loop(self.cluster, self.workers, self.journal, self.clock, policy or policy_named("exact"), rules)

    def submit(self, wanted: MalleableJob, tasks: int = 12) -> None:
        self.loop.record([Event(self.clock.now(), JobAnnounced(wanted), wanted.id)])
        array = self.cluster.submit_array(wanted.user, tasks)
        self.loop.record([Event(self.clock.now(), ArrayAttached(array, tasks), wanted.id)])

    def tick(self, seconds: float = 10.0) -> None:
        self.clock.advance(seconds)
        self.loop.tick()
        self.loop.react()

    def running(self) -> dict[str, str]:
        """Node -> pilot, as the cluster has it."""
        return {t.node: p for p, t in self.cluster.tasks.items() if t.node}

    def nodes_of(self, job_id: int) -> int:
        return len(self.loop.ledger.views()[job_id].staying)
