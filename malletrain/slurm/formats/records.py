"""What every format is read into, before sense is made of it: Slurm's own words, field by field."""

from __future__ import annotations

from typing import NamedTuple


class NodeRecord(NamedTuple):
    """One line about one node. `state` is Slurm's text; counts are 0 where the source has none."""

    name: str
    state: str
    partitions: tuple[str, ...] = ()
    cpus: int = 0
    cpus_alloc: int = 0
    memory_mib: int = 0
    gres: str = ""
    features: tuple[str, ...] = ()
    weight: int = 1
    reason: str = ""


class JobRecord(NamedTuple):
    """One line of the queue, times in Unix seconds, node lists still folded.

    `tasks` is an array expression for a row that stands for waiting tasks, else empty.
    """

    id: str
    raw_id: int
    state: str
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    reason: str = ""
    name: str = ""
    node_count: int = 1
    array_id: int | None = None
    tasks: str = ""
    het_id: int | None = None
    time_limit_s: float | None = None
    submit_time: float | None = None
    eligible_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    nodes: str = ""
    planned_nodes: str = ""
    required_nodes: str = ""
    excluded_nodes: str = ""
    features: str = ""
    gres: str = ""
    dependency: str = ""
    priority: int = 0
    memory_mib: int = 0


def job_id(raw: int, array: int | None, task: int | None, tasks: str, het: int | None, offset: int) -> str:
    """A job's id as squeue has it: 12, 12_3, 12_[4-9] or 12+1. `tasks`: the array expression of waiting tasks."""
    if array and tasks:
        return f"{array}_[{tasks}]"
    if array and task is not None:
        return f"{array}_{task}"
    return f"{het}+{offset}" if het else str(raw)


class ReservationRecord(NamedTuple):
    """One reservation, times in Unix seconds."""

    name: str
    start: float
    end: float
    nodes: str
    flags: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
