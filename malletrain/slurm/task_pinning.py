"""What is to start on which nodes: pilots of one task together, on all their nodes or not at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from malletrain.domain.decision import StartPilot
from malletrain.domain.job import task_of
from malletrain.domain.snapshot import FREE_STATES, Node
from malletrain.slurm.formats.squeue import TaskRecord
from malletrain.slurm.site.site_facts import Harvest


@dataclass(frozen=True, slots=True)
class PinnedTask:
    """A held task that is to hold `nodes` for at most `limit_s` seconds. `jobs`: for whom, which must be one."""

    task: str
    jobs: frozenset[int]
    nodes: tuple[str, ...]
    limit_s: float

    @property
    def job(self) -> int:
        return min(self.jobs)

    @property
    def minutes(self) -> int:
        """The limit in Slurm's unit."""
        return int(self.limit_s // 60)

    def fault(self, harvest: Harvest) -> str:
        """What is wrong with it whatever Slurm shows, or ''."""
        if self.limit_s < 60:
            return f"the hole of {self.limit_s:.0f} s is shorter than Slurm's least limit, 1 minute"
        if len(self.nodes) > harvest.max_nodes:
            return f"it would hold {len(self.nodes)} nodes, and pilot.max_nodes is {harvest.max_nodes}"
        if len(self.jobs) > 1 or len(set(self.nodes)) < len(self.nodes):
            return "the nodes of a task are different ones, all for one job"
        return ""

    def not_to_be_had(self, nodes: Mapping[str, Node], partition: str) -> str:
        """Which of its nodes cannot be taken now, and why, or ''. `nodes`: those that are in Slurm."""
        for name in self.nodes:
            node = nodes.get(name)
            if node is None:
                return f"Slurm knows no node {name}"
            if node.state not in FREE_STATES:
                return f"{name} is {node.state} now" + (f" ({node.reason[:80]})" if node.reason else "")
            if partition not in node.partitions:
                return f"{name} is not in partition {partition}"
        return ""

    def pin(self, row: TaskRecord, now: float) -> list[str]:
        """The command that pins the held task to its nodes, and limits it; `now` in Unix seconds."""
        update = ["scontrol", "update", f"JobId={self.task}"]
        count = len(self.nodes)
        if count > 1 or row.node_count > 1:  # a task that ran before is as wide as it was then
            update += [f"NumNodes={count}-{count}", f"NumTasks={count}"]
        update += [f"NodeList={','.join(self.nodes)}", f"TimeLimit={self.minutes}"]
        if row.requeue:  # left so by a daemon that died in the midst of recycling
            update.append("Requeue=0")
        if row.restarts or (row.eligible_time is not None and row.eligible_time > now):
            update.append("StartTime=now")  # a requeued task would wait about 120 s
        return update


def together(actions: Iterable[StartPilot]) -> dict[str, PinnedTask]:
    """What is to start, by task, in the order of `actions`."""
    same: dict[str, list[StartPilot]] = {}
    for action in actions:
        same.setdefault(task_of(action.pilot), []).append(action)
    return {
        task: PinnedTask(
            task,
            frozenset(each.job_id for each in found),
            tuple(each.node for each in found),
            min(each.limit_s for each in found),
        )
        for task, found in same.items()
    }
