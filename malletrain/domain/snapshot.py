"""What Slurm showed at one moment: nodes, queue, reservations.

Times are Unix seconds, durations seconds, memory MiB. A snapshot is never edited: the next look makes a new one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter


class NodeState(StrEnum):
    """One word for a node; the words of `malletrain snapshot`. DRAINED covers draining nodes too: leave them."""

    IDLE = "idle"
    PLANNED = "planned"
    MIXED = "mixed"
    ALLOCATED = "allocated"
    COMPLETING = "completing"
    RESERVED = "reserved"
    MAINT = "maint"
    DRAINED = "drained"
    DOWN = "down"
    POWERED_DOWN = "powered_down"
    UNKNOWN = "unknown"


#: A node in one of these states can be given to a pilot when no job holds it. PLANNED: idle now, kept by Slurm
#: for a planned start, so only as long as its hole lasts.
FREE_STATES = frozenset({NodeState.IDLE, NodeState.PLANNED})

#: A pilot on a node in one of these states leaves within one tick: the staff wants the node.
LEAVE_STATES = frozenset(
    {NodeState.RESERVED, NodeState.MAINT, NodeState.DRAINED, NodeState.DOWN, NodeState.POWERED_DOWN}
)


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `flags` keeps Slurm's own words (upper case) for what `state` leaves out."""

    name: str
    state: NodeState
    partitions: tuple[str, ...] = ()
    cpus: int = 0
    memory_mib: int = 0
    gres: str = ""
    features: tuple[str, ...] = ()
    weight: int = 1
    flags: frozenset[str] = frozenset()
    reason: str = ""

    @property
    def kind(self) -> str:
        """The node's class: its GRES without the sockets that they are bound to, and its processors."""
        return self.kind_with(())

    def kind_with(self, features: Collection[str]) -> str:
        """The node's class with those of its features that are among `features`; `memory` there stands for its
        memory, to the nearest of 1 or 1.5 times a power of two GiB."""
        gres = re.sub(r"\([^)]*\)", "", self.gres).strip()
        words = [gres, f"{self.cpus} cpus" if self.cpus else "", *(f for f in self.features if f in features)]
        if "memory" in features and self.memory_mib > 0:
            words.append(_about(self.memory_mib / 1024))
        return " ".join(word for word in words if word)


def _about(gib: float) -> str:
    """A size of memory as nodes that are alike have it, whatever the kernel keeps for itself."""
    power = math.floor(math.log2(gib))
    near = min((f * 2.0**p for p in (power, power + 1) for f in (1.0, 1.5)), key=lambda g: abs(math.log(g / gib)))
    return f"{near:g} GiB"


class SlurmState(StrEnum):
    """States of a Slurm job that this project tells apart (squeue(1), JOB STATE CODES)."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETING = "completing"
    CONFIGURING = "configuring"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    OUT_OF_MEMORY = "out_of_memory"
    REQUEUED = "requeued"
    UNKNOWN = "unknown"


#: Such a job holds its nodes. The commonest first: thousands of rows are asked, and enumerations compare faster than
#: they hash.
HOLDING_STATES = (SlurmState.RUNNING, SlurmState.COMPLETING, SlurmState.CONFIGURING, SlurmState.SUSPENDED)

#: Such a job is over.
ENDED_STATES = frozenset(SlurmState) - {*HOLDING_STATES, SlurmState.PENDING, SlurmState.REQUEUED, SlurmState.UNKNOWN}

#: Slurm holds a waiting job by this priority, which it gives to no other; the words of the reason beside it change.
HELD_PRIORITY = 0


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One row of the queue: a job, an array task (`123_4`), or the waiting rest of an array (`123_[5-9]`).

    `id` is what squeue prints as `%i`, `raw_id` the number behind it (`%A`), `array_id` the array's (`%F`).
    `nodes` are held now; `planned_nodes` are those that backfill keeps for a waiting job from `start_time` on.
    `task_count` is how many tasks the row stands for.
    """

    id: str
    raw_id: int
    user: str
    account: str
    partition: str
    qos: str
    state: SlurmState
    reason: str = ""
    name: str = ""
    node_count: int = 1
    array_id: int | None = None
    task_count: int = 1
    het_id: int | None = None
    time_limit_s: float | None = None
    submit_time: float | None = None
    eligible_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    nodes: tuple[str, ...] = ()
    planned_nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    features: str = ""
    gres: str = ""
    dependency: str = ""
    priority: int = 0
    memory_mib: int = 0  #: of each node at least; where it is asked for by processor, that of one
    switches: int | None = None  #: leaf switches asked for (sbatch --switches); None: any number

    @property
    def holds_nodes(self) -> bool:
        return self.state in HOLDING_STATES

    @property
    def is_held(self) -> bool:
        """Whether it waits in hold: of its user, of staff, of Slurm itself, or after `requeuehold`."""
        return self.state is SlurmState.PENDING and self.priority == HELD_PRIORITY


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation of nodes; `flags` are Slurm's words (MAINT, IGNORE_JOBS, ...)."""

    name: str
    start: float
    end: float
    nodes: tuple[str, ...]
    flags: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """How fresh and how deep Slurm's backfill plan is (sdiag(1)). None: not known."""

    last_cycle_at: float | None = None
    interval_s: float = 30.0
    depth: int | None = None
    queue_length: int | None = None
    main_cycle_s: float | None = None  #: how long slurmctld's main scheduler took last
    backfill_cycle_s: float | None = None  #: how long its backfill scheduler took last
    main_cycles_per_minute: float | None = None  #: how often its main scheduler ran since it began to count

    @property
    def cycle_s(self) -> float:
        """From the begin of one backfill cycle to that of the next."""
        return self.interval_s + (self.backfill_cycle_s or 0.0)

    @property
    def lasts_s(self) -> float:
        """For how long a planned start is believed that backfill has not renewed: two intervals."""
        return 2 * self.interval_s

    def is_stale(self, now: float) -> bool:
        """Whether planned starts can no longer be relied on: the last cycle is older than that."""
        return self.last_cycle_at is not None and now - self.last_cycle_at > self.lasts_s


@dataclass(frozen=True, slots=True)
class NodeIndex:
    """The nodes of a look by name, and which of them are in a free state and in one that pilots leave."""

    by_name: Mapping[str, Node]
    free: frozenset[str]
    staffed: frozenset[str]
    partitions: Mapping[str, frozenset[str]]  #: the nodes of each

    @staticmethod
    def of(nodes: tuple[Node, ...]) -> NodeIndex:
        of_partitions: dict[tuple[str, ...], list[str]] = {}
        for node in nodes:
            of_partitions.setdefault(node.partitions, []).append(node.name)
        partitions: dict[str, frozenset[str]] = {}
        for those, names in of_partitions.items():
            for partition in those:
                partitions[partition] = partitions.get(partition, frozenset()).union(names)
        by_name = dict(zip(map(attrgetter("name"), nodes), nodes, strict=True))
        return NodeIndex(by_name, _in(nodes, FREE_STATES), _in(nodes, LEAVE_STATES), partitions)


def _in(nodes: Iterable[Node], states: frozenset[NodeState]) -> frozenset[str]:
    """The names of those that are in one of the states."""
    some = tuple(states)  # enumerations compare faster than they hash
    return frozenset([node.name for node in nodes if node.state in some])


@dataclass(frozen=True, slots=True)
class MainQueue:
    """A look at the main queue alone."""

    waiting: tuple[SlurmJob, ...]
    #: Of the others, those that have begun since its nodes were looked at last, and those that do not run: a job that
    #: completes gives its nodes up soon.
    changed: tuple[SlurmJob, ...]
    ended: frozenset[str]  #: the ids of those that did not wait then, and have ended or wait again

    @staticmethod
    def of(jobs: Iterable[SlurmJob], known: frozenset[str]) -> MainQueue:
        """Of all its jobs; `known`: the ids of those that did not wait before. Jobs that run on may be left out of
        both."""
        waiting: list[SlurmJob] = []
        active: list[SlurmJob] = []
        for job in jobs:
            (waiting if job.state is SlurmState.PENDING else active).append(job)
        changed = tuple(job for job in active if job.id not in known or job.state is not SlurmState.RUNNING)
        return MainQueue(tuple(waiting), changed, known.difference(job.id for job in active))


@dataclass(frozen=True)
class Snapshot:
    """The cluster at `taken_at`. Node names are unique; `warnings` say what could not be read; `leaves`: the leaf
    switch of each node, empty where Slurm knows no switches."""

    taken_at: float
    nodes: tuple[Node, ...]
    jobs: tuple[SlurmJob, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    plan: BackfillPlan = field(default_factory=BackfillPlan)
    warnings: tuple[str, ...] = ()
    leaves: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def index(self) -> NodeIndex:
        """Its nodes by name and state."""
        return NodeIndex.of(self.nodes)

    def after(self, before: Snapshot | None) -> Snapshot:
        """This snapshot; a light look, with the nodes of the one `before`, shares its index."""
        if before is not None and before.nodes is self.nodes:
            self.__dict__["index"] = before.index
        return self

    def active_ids(self, harvest_partition: str) -> frozenset[str]:
        """The ids of the main queue's jobs that do not wait."""
        return frozenset(
            job.id for job in self.jobs if job.state is not SlurmState.PENDING and job.partition != harvest_partition
        )

    def with_main_queue(self, queue: MainQueue, harvest_partition: str) -> Snapshot:
        """This snapshot after a later look at the main queue: with its jobs, and with nodes idle on which one has
        ended since and no other is. (A node that the staff takes meanwhile looks idle until the next snapshot.)"""
        anew = queue.ended | {job.id for job in queue.changed}
        kept = tuple(
            job
            for job in self.jobs
            if job.partition == harvest_partition or (job.state is not SlurmState.PENDING and job.id not in anew)
        )
        jobs = kept + queue.changed + queue.waiting
        freed = {name for job in self.jobs if job.id in queue.ended for name in job.nodes}
        freed -= {name for job in jobs if job.state is not SlurmState.PENDING for name in job.nodes}
        if not freed:
            return replace(self, jobs=jobs)
        taken = (NodeState.ALLOCATED, NodeState.COMPLETING)
        nodes = tuple(
            replace(node, state=NodeState.IDLE) if node.name in freed and node.state in taken else node
            for node in self.nodes
        )
        return replace(self, jobs=jobs, nodes=nodes)

    @property
    def node(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return self.index.by_name

    @cached_property
    def holders(self) -> Mapping[str, tuple[SlurmJob, ...]]:
        """The jobs that hold each node, by node name; a node that no job holds is absent."""
        holders: dict[str, list[SlurmJob]] = {}
        for job in self.holding:
            for name in job.nodes:
                holders.setdefault(name, []).append(job)
        return {name: tuple(jobs) for name, jobs in holders.items()}

    @cached_property
    def holding(self) -> tuple[SlurmJob, ...]:
        """The jobs that hold nodes, completing ones included."""
        return tuple([job for job in self.jobs if job.nodes and job.state in HOLDING_STATES])

    @cached_property
    def pending(self) -> tuple[SlurmJob, ...]:
        """The jobs that wait, for whatever."""
        return tuple([job for job in self.jobs if job.state is SlurmState.PENDING])

    @cached_property
    def held_names(self) -> frozenset[str]:
        """Every node that some job holds, completing ones included."""
        return frozenset().union(*[job.nodes for job in self.holding])

    @cached_property
    def free_names(self) -> frozenset[str]:
        """The nodes that are wholly idle: in a free state and held by no job."""
        return self.index.free - self.held_names

    def is_free(self, name: str) -> bool:
        """Whether the node is wholly idle: in a free state and held by no job, completing ones included."""
        return name in self.free_names
