"""pyslurm in a process of its own: it prints one line of JSON for each line that it is sent.

Not in the daemon's: libslurm ends the process that it is in when slurm.conf is broken, it holds up all of Python
while slurmctld is silent, and pyslurm is linked to one release and under the GPL. Started by `read_pyslurm`; ends
when its input does.

    -> nodes+jobs      <- {"nodes": [[...], ...], "jobs": [[...], ...]}    fields of NodeRow and of JobRow, in order
    -> jobs            <- {"jobs": [...]}
                       <- {"error": "..."}                                 this time
"""

from __future__ import annotations

import json
import pwd
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from malletrain.slurm.formats.records import JobRecord, NodeRecord, job_id

#: What `squeue` shows unless it is asked for more: what has ended is left out.
_SHOWN = frozenset(
    {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"}
    | {"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)


def main() -> int:
    """Serve until the input ends. 3: pyslurm cannot be imported."""
    try:
        import pyslurm
    except Exception as error:  # noqa: BLE001  a broken build raises anything; the reader gets the message
        say({"error": f"pyslurm cannot be imported: {error}"})
        return 3
    say({"version": str(pyslurm.__version__)})
    for line in sys.stdin:
        wanted = line.strip().split("+")
        answer: dict[str, object] = {}
        try:
            # Nodes before jobs: a job that starts in between is then seen on a node that still looks idle.
            if "nodes" in wanted:
                answer["nodes"] = [node_row(node) for node in pyslurm.Nodes.load().values()]
            answer["jobs"] = [row for job in pyslurm.Jobs.load().values() if (row := job_row(job)) is not None]
        except Exception as error:  # noqa: BLE001  RPCError, or what a strange answer makes of a property
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(answer)
    return 0


def say(answer: dict[str, object]) -> None:
    """Write one line to the process that asked."""
    sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def node_row(node: Any) -> NodeRecord:
    """One of pyslurm.Nodes, in Slurm's words."""
    gres = ",".join(f"{name}:{count}" for name, count in (node.configured_gres or {}).items())
    return NodeRecord(
        name=node.name,
        state=node.state,
        partitions=tuple(node.partitions or ()),
        cpus=node.total_cpus or 0,
        cpus_alloc=node.allocated_cpus or 0,
        memory_mib=node.real_memory or 0,
        gres=gres,
        features=tuple(node.active_features or node.available_features or ()),
        weight=1 if node.weight is None else node.weight,
        reason=node.reason or "",
    )


def job_row(job: Any) -> JobRecord | None:
    """One of pyslurm.Jobs; None for one that has ended."""
    if job.state not in _SHOWN:
        return None
    waiting = str(job.array_tasks_waiting or "") if job.array_id else ""
    task, het = job.array_task_id or 0, job.heterogeneous_id or None  # pyslurm says None for task 0 (24.11.0)
    minutes = job.time_limit
    return JobRecord(
        id=job_id(job.id, job.array_id or None, task, waiting, het, job.heterogeneous_offset or 0),
        raw_id=job.id,
        state=job.state,
        user=_user(job.user_id),
        account=_text(lambda: job.account),
        partition=job.partition or "",
        qos=job.qos or "",
        reason=job.state_reason or "",
        name=_text(lambda: job.name),
        node_count=max(1, job.num_nodes or 1),
        array_id=job.array_id or None,
        tasks=waiting and f"[{waiting}]",
        het_id=het,
        time_limit_s=60.0 * minutes if isinstance(minutes, int) else None,
        submit_time=job.submit_time,
        eligible_time=job.eligible_time,
        start_time=job.start_time,
        end_time=job.end_time,
        nodes=job.allocated_nodes or "",
        planned_nodes=job.scheduled_nodes or "",
        required_nodes=job.required_nodes or "",
        excluded_nodes=job.excluded_nodes or "",
        features=_features(job.constraints),
        gres=",".join(f"{name}:{count}" for name, count in (job.gres_per_node or {}).items()),
        dependency=_dependency(job.dependencies or {}),
        priority=job.priority or 0,
        memory_mib=int(job.memory_per_node or job.memory_per_cpu or 0),
    )


def _features(constraints: object) -> str:
    return ",".join(map(str, constraints)) if isinstance(constraints, (list, tuple)) else str(constraints or "")


def _dependency(found: dict[str, object]) -> str:
    """`afterok:7`, as squeue would say it; empty where nothing is waited for."""
    named = [f"{kind}:{':'.join(map(str, jobs))}" for kind, jobs in found.items() if isinstance(jobs, list) and jobs]
    return ",".join([*named, *(["singleton"] if found.get("singleton") else [])])


def _text(read: Callable[[], str | None]) -> str:
    """Text that a user wrote: any bytes at all."""
    try:
        return read() or ""
    except UnicodeDecodeError:
        return "?"


@lru_cache(maxsize=4096)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


if __name__ == "__main__":
    sys.exit(main())
