"""Nodes and jobs through pyslurm, where a site has it for its very release; all else through Slurm's commands.

pyslurm runs in a process of its own, one for each look: libslurm ends the process that it is in when slurm.conf is
broken, holds up all of Python while slurmctld is silent, is linked to one release, and pyslurm is under the GPL.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.domain.snapshot import ENDED_STATES
from malletrain.slurm.command import Commands
from malletrain.slurm.formats.records import JOB_TEXTS, JOB_TIMES, JobRecord, NodeRecord, identity
from malletrain.slurm.formats.states import job_state
from malletrain.wire.munge import user_name

#: The environment variable that names a Python that has pyslurm, where that is not the daemon's own.
PYTHON = "MALLETRAIN_PYSLURM_PYTHON"

#: Users by their ids: there are many jobs of each.
_user = lru_cache(maxsize=4096)(user_name)

#: What the Python that has pyslurm runs; it need not have MalleTrain.
_PROGRAM = "import sys; sys.path.append({!r}); from malletrain.slurm.read_pyslurm import main; main(sys.argv[1])"


def choose(commands: Commands, release: tuple[int, int], python: str = "") -> tuple[tuple[str, ...], str]:
    """The command that reads a Slurm of this release through pyslurm, and one line on why it is that; none where
    Slurm's own commands read it. `python`: the Python that has pyslurm; empty: this one."""
    if not python and importlib.util.find_spec("pyslurm") is None:
        return (), "Slurm is read by its commands: pyslurm is not installed"
    command = (python or sys.executable, "-P", "-c", _PROGRAM.format(str(Path(__file__).parents[2])))
    try:
        version = commands.ask([*command, "version"]).strip()
    except ClusterUnavailable as error:
        return (), f"Slurm is read by its commands: {error}"
    if version.split(".")[:2] != [str(part) for part in release]:
        ours = ".".join(f"{part:02d}" for part in release)
        return (), f"Slurm is read by its commands: pyslurm is for {version}, slurmctld is {ours}"
    return command, f"Slurm is read by pyslurm {version}"


def ask(commands: Commands, command: Sequence[str]) -> tuple[list[NodeRecord], list[JobRecord]]:
    """All nodes, and all jobs that have not ended. `command`: of `choose`. Raises `ClusterUnavailable`: no answer in
    time, or an error; `InvalidInput`: an answer that cannot be right."""
    try:
        answer = json.loads(commands.ask([*command, "rows"]))
        nodes = [NodeRecord(*row) for row in answer["nodes"]]
        jobs = [JobRecord(*row) for row in answer["jobs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput("pyslurm", f"an answer of the wrong shape: {error}") from error
    return [node._replace(partitions=tuple(node.partitions), features=tuple(node.features)) for node in nodes], jobs


def main(wanted: str) -> None:
    """Print pyslurm's version, or the fields of all nodes and jobs as JSON: in the process that has pyslurm."""
    import pyslurm

    if wanted == "version":
        print(pyslurm.__version__)
        return
    # Nodes before jobs: a job that starts in between is then seen on a node that still looks idle.
    nodes = [node_row(node) for node in pyslurm.Nodes.load().values()]
    jobs = [row for job in pyslurm.Jobs.load().values() if (row := job_row(job)) is not None]
    json.dump({"nodes": nodes, "jobs": jobs}, sys.stdout)


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
    if job_state(job.state) in ENDED_STATES:
        return None
    waiting = str(job.array_tasks_waiting or "") if job.array_id else ""
    # pyslurm says None for task 0 (24.11.0).
    task, het, offset = job.array_task_id or 0, job.heterogeneous_id or 0, job.heterogeneous_offset or 0
    which = identity(job.id, job.array_id or 0, task, waiting, het, offset)
    texts: dict[str, Any] = {name: getattr(job, key) or "" for name, (*_, key) in JOB_TEXTS.items() if key}
    times: dict[str, Any] = {name: getattr(job, name) for name in JOB_TIMES}
    return JobRecord(
        **which | texts | times | {"tasks": waiting and f"[{waiting}]"},
        state=job.state,
        user=_user(job.user_id),
        account=_text(lambda: job.account),
        name=_text(lambda: job.name),
        node_count=max(1, job.num_nodes or 1),
        time_limit_s=60.0 * job.time_limit if isinstance(job.time_limit, int) else None,
        features=job.constraints if isinstance(job.constraints, str) else ",".join(map(str, job.constraints or ())),
        gres=",".join(f"{name}:{count}" for name, count in (job.gres_per_node or {}).items()),
        dependency=_dependency(job.dependencies or {}),
        priority=job.priority or 0,
        memory_mib=int(job.memory_per_node or job.memory_per_cpu or 0),
    )


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
