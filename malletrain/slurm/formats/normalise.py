"""Rows of any format made into one `Snapshot`: sense is made here, and nowhere else.

Oddities that leave the rest trustworthy become warnings, each kind once with its count; an answer that cannot be
right raises `InvalidInput`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import BackfillPlan, Node, NodeState, Reservation, SlurmJob, SlurmState, Snapshot
from malletrain.slurm.formats import hostlist, scalars
from malletrain.slurm.formats.records import JOB_TEXTS, JobRecord, NodeRecord
from malletrain.slurm.formats.states import STRENGTH, job_state, node_state

#: Fields of a job that are lists of nodes.
_NODE_LISTS = ("nodes", "planned_nodes", "required_nodes", "excluded_nodes")


class Warnings:
    """Oddities met on the way: each kind once, with its count and one example."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, kind: str, example: str) -> None:
        count, first = self._found.get(kind, (0, example))
        self._found[kind] = (count + 1, first)

    def lines(self) -> tuple[str, ...]:
        """`kind (3 times, first: example)`, by kind."""
        found = sorted(self._found.items())
        return tuple(f"{kind} ({n} time{'s' * (n != 1)}, first: {first[:120]})" for kind, (n, first) in found)


def snapshot(
    taken_at: float,
    nodes: Sequence[NodeRecord],
    jobs: Iterable[JobRecord] = (),
    reservations: Iterable[Reservation] = (),
    plan: BackfillPlan | None = None,
    *,
    task_by_task: str | None = None,
    warnings: Warnings | None = None,
) -> Snapshot:
    """One snapshot of all rows. Raises `InvalidInput`: there is no node at all, or a node list is none.

    `task_by_task`: the partition whose waiting array tasks are wanted one by one; elsewhere a row that stands for
    10,000 tasks stays one job.
    """
    warnings = warnings or Warnings()
    if not nodes:
        raise InvalidInput("nodes", "Slurm showed no node at all")
    known = _merge(nodes, warnings)
    queue: list[SlurmJob] = []
    for row in jobs:
        one = job(row, warnings)
        if row.tasks and row.partition == task_by_task:
            queue += (replace(one, id=f"{one.array_id}_{task}", task_count=1) for task in scalars.tasks(row.tasks))
        else:
            queue.append(one)
    _cross_check(known, queue, warnings)
    return Snapshot(
        taken_at=taken_at,
        nodes=tuple(known[name] for name in sorted(known)),
        jobs=tuple(queue),
        reservations=tuple(reservations),
        plan=plan or BackfillPlan(),
        warnings=warnings.lines(),
    )


@lru_cache(maxsize=65536)
def node(row: NodeRecord) -> Node:
    """One node of one row, kept: most rows come again at every tick. An idle node with processors given away is
    MIXED: partly busy is not idle."""
    state, flags, _ = node_state(row.state)
    if row.cpus_alloc > 0 and state in (NodeState.IDLE, NodeState.PLANNED):
        state = NodeState.MIXED
    values = row._asdict()
    del values["cpus_alloc"]
    return Node(**values | {"state": state, "flags": flags})


def _merge(rows: Sequence[NodeRecord], warnings: Warnings) -> dict[str, Node]:
    """Nodes by name. Of one that is named several times, partitions add up and the strongest state holds."""
    known: dict[str, Node] = {}
    for row in rows:
        if unknown := node_state(row.state).unknown:
            warnings.add(f"unknown node state {unknown[0][:40]!r}", row.name)
        new, old = node(row), known.get(row.name)
        if old is None:
            known[row.name] = new
            continue
        stronger, other = (new, old) if STRENGTH[new.state] > STRENGTH[old.state] else (old, new)
        if stronger.state is not other.state:
            warnings.add("a node in two states, the stronger taken", f"{row.name} {old.state} and {new.state}")
        known[row.name] = replace(
            stronger,
            partitions=tuple(dict.fromkeys((*old.partitions, *new.partitions))),
            cpus=max(old.cpus, new.cpus),
            memory_mib=max(old.memory_mib, new.memory_mib),
            gres=old.gres or new.gres,
            features=old.features or new.features,
            weight=max(old.weight, new.weight),
            flags=old.flags | new.flags,
            reason=old.reason or new.reason,
        )
    return known


def job(row: JobRecord, warnings: Warnings) -> SlurmJob:
    state = job_state(row.state)
    if state is SlurmState.UNKNOWN:
        warnings.add(f"unknown job state {row.state[:40]!r}", row.id)
    values = row._asdict()
    tasks = values.pop("tasks")
    for name in _NODE_LISTS:
        values[name] = _open(values[name], JOB_TEXTS[name][0], row.id, warnings)
    return SlurmJob(**values | {"state": state, "task_count": scalars.count_tasks(tasks) if tasks else 1})


def _open(text: str, field: str, job: str, warnings: Warnings) -> tuple[str, ...]:
    """The nodes of one field. What a job holds must be readable; what it only plans or excludes may be left out."""
    if not text:
        return ()
    try:
        return hostlist.expand(text)
    except InvalidInput as error:
        if field == "NodeList":
            raise InvalidInput(f"job {job}, {field}", error.what) from error
        warnings.add(f"unreadable {field}", f"job {job}: {error.what}")
        return ()


def _cross_check(known: Mapping[str, Node], queue: Sequence[SlurmJob], warnings: Warnings) -> None:
    held: set[str] = set()
    for job in queue:
        if job.holds_nodes:
            held.update(job.nodes)
            if not job.nodes and job.state in (SlurmState.RUNNING, SlurmState.SUSPENDED):
                warnings.add("a running job without nodes", job.id)
    for name in sorted(held - known.keys()):
        warnings.add("a job holds a node that is not listed", name)
    if queue:  # a file of nodes alone says nothing about jobs
        for name, one in known.items():
            if one.state is NodeState.ALLOCATED and name not in held:
                warnings.add("a busy node whose job is not shown (PrivateData=jobs?)", name)
