"""Nodes that pilots have left for a main job stay empty until Slurm has had a cycle to use them, or the job is gone.

Which nodes a job is given is found anew at each look, and what Slurm shows changes between two: a better job is
planned on these nodes, a part of a heterogeneous job is taken back, a reason changes for a moment. A pilot that
starts on them then has to be taken back when the turn of the job comes, and costs it the cycle they were emptied for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from malletrain.decide.rules import Rules
from malletrain.domain.snapshot import BackfillPlan, SlurmJob, Snapshot


@dataclass(frozen=True, slots=True)
class EmptiedNode:
    """A node that a main job was given. `job`: its id; `whole`: that of its array or heterogeneous job; `free_since`:
    when a look first showed the node free (Unix seconds), None before."""

    job: str
    whole: int
    free_since: float | None = None


def whole_of(job: SlurmJob) -> int:
    """The number that the tasks of an array, or the parts of a heterogeneous job, share."""
    return job.het_id or job.array_id or job.raw_id


def emptied_nodes(
    given: Mapping[str, str],
    before: Mapping[str, EmptiedNode],
    available: Collection[str],
    snapshot: Snapshot,
    now: float,
    rules: Rules,
) -> Mapping[str, EmptiedNode]:
    """The nodes that no pilot starts on: those that main jobs are `given` at this look (node -> job), and those of
    the last answer, `before`, whose job still waits and which no backfill cycle has found free.

    `available`: nodes that are free, or coming free.
    """
    whole = {job.id: whole_of(job) for job in snapshot.pending if job.partition != rules.harvest_partition}
    found = {node: EmptiedNode(name, whole[name]) for node, name in given.items()}
    waiting = set(whole.values())
    for node, kept in before.items():
        mine = found.get(node)
        if mine is not None and mine.whole == kept.whole:
            found[node] = replace(mine, free_since=kept.free_since)
        elif mine is None and kept.whole in waiting and node in available and not _had_its_cycle(kept, snapshot, now):
            found[node] = kept
    return {
        node: replace(each, free_since=now) if each.free_since is None and snapshot.is_free(node) else each
        for node, each in found.items()
    }


def _had_its_cycle(node: EmptiedNode, snapshot: Snapshot, now: float) -> bool:
    """Whether backfill has begun a cycle since the node was free, and ended it; where no cycle is known of, or none
    comes, whether the time of two is over."""
    plan: BackfillPlan = snapshot.plan
    if node.free_since is None:
        return False
    if now - node.free_since > plan.lasts_s:
        return True
    began = plan.last_cycle_at
    return began is not None and began > node.free_since and now - began > (plan.backfill_cycle_s or 0.0)
