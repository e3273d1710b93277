"""What every format is read into, before sense is made of it: Slurm's own words, field by field."""

from __future__ import annotations

from typing import Any, NamedTuple


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


#: Fields of a job that are text, as scontrol, JSON and pyslurm call them.
JOB_TEXTS = {
    "partition": ("Partition", "partition", "partition"),
    "qos": ("QOS", "qos", "qos"),
    "reason": ("Reason", "state_reason", "state_reason"),
    "nodes": ("NodeList", "nodes", "allocated_nodes"),
    "planned_nodes": ("SchedNodeList", "scheduled_nodes", "scheduled_nodes"),
    "required_nodes": ("ReqNodeList", "required_nodes", "required_nodes"),
    "excluded_nodes": ("ExcNodeList", "excluded_nodes", "excluded_nodes"),
    "features": ("Features", "features", ""),
    "gres": ("TresPerNode", "tres_per_node", ""),
    "dependency": ("Dependency", "dependency", ""),
}
#: Its times, as scontrol calls them.
JOB_TIMES = {
    "submit_time": "SubmitTime",
    "eligible_time": "EligibleTime",
    "start_time": "StartTime",
    "end_time": "EndTime",
}


def identity(raw: int, array: int, task: int | None, tasks: str, het: int, offset: int) -> dict[str, Any]:
    """The fields that say which job it is. `id` as squeue has it: 12, 12_3, 12_[4-9] or 12+1.

    `tasks`: the array expression of waiting tasks; 0: of no array, no heterogeneous job.
    """
    name = f"{het}+{offset}" if het else str(raw)
    if array and tasks:
        name = f"{array}_[{tasks}]"
    elif array and task is not None:
        name = f"{array}_{task}"
    return {
        "id": name,
        "raw_id": raw,
        "array_id": array or None,
        "tasks": tasks if array else "",
        "het_id": het or None,
    }
