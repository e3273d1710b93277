"""Plans that Slurm showed a moment ago.

squeue(1) shows no planned start, and no nodes of it, from the moment that the start has passed until backfill comes
to the job again: up to bf_interval (30 s by default), and longer while slurmctld is busy. A node that such a job is
about to get would look as if nothing were planned for it (measured on 22.05: the job's other node was still in its
epilog).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from malletrain.decide.rules import Rules
from malletrain.decide.yielding import waits_for_nodes
from malletrain.domain.snapshot import SlurmJob, Snapshot


@dataclass(frozen=True, slots=True)
class _Seen:
    start_time: float
    nodes: tuple[str, ...]
    at: float


class PlannedStarts:
    """The last plan of each waiting main job, for two backfill intervals."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def over(self, snapshot: Snapshot, now: float, rules: Rules) -> Snapshot:
        """`snapshot`, with the last plan of jobs that still wait for nodes alone and have none now.

        `now`: when its queue was looked at (Unix seconds). The same object where nothing is missing.
        """
        since = now - snapshot.plan.lasts_s
        seen: dict[str, _Seen] = {}
        planned: dict[str, SlurmJob] = {}
        for job in snapshot.pending:
            if job.planned_nodes and job.start_time is not None:
                seen[job.id] = _Seen(job.start_time, job.planned_nodes, now)
                continue
            before = self._seen.get(job.id)
            if before is not None and before.at >= since and waits_for_nodes(job, rules):
                seen[job.id] = before
                planned[job.id] = replace(job, start_time=before.start_time, planned_nodes=before.nodes)
        self._seen = seen
        if not planned:
            return snapshot
        return replace(snapshot, jobs=tuple(planned.get(job.id, job) for job in snapshot.jobs))
