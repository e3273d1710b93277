"""Why a job that could train has no node, and when that may change, from what the last decision saw."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.decide.demand import RETRY_S
from malletrain.decide.limits import MIN_OBSERVED_S
from malletrain.domain.decision import Decision
from malletrain.domain.job import Elastic, JobPhase, JobView
from malletrain.domain.snapshot import Snapshot

#: Seconds without a report of training after which that is said.
SILENT_S = 60.0


def why_silent(view: JobView, now: float) -> str:
    """What to look at where a world has reported no step for long; "" where it has, or there is none. (Only a session
    reports steps.)"""
    if view.phase is not JobPhase.RUNNING or view.world is None or view.job.elastic is not Elastic.LIVE:
        return ""
    silent_s = now - max(view.world.since, view.committed_at or 0.0)
    if silent_s < SILENT_S:
        return ""
    return (
        f"has reported no step for {silent_s // 60:.0f} min: a long step, an evaluation, or one of its "
        f"{len(view.world.members)} ranks does not come: see `malletrain logs {view.job.id} --rank N`"
    )


def why_without_nodes(
    view: JobView,
    decision: Decision,
    snapshot: Snapshot,
    harvest_partition: str,
    supply: Sequence[int],
    observed_s: float,
    now: float,
) -> str:
    """The reason with an estimate; "" for a job that has nodes, or is held, or over.

    Args:
        harvest_partition: in which pilots run; the others' jobs are main jobs.
        supply: equally likely numbers of nodes to harvest, from `observed_s` seconds of watching.
        now: Unix seconds.
    """
    if view.phase is not JobPhase.QUEUED or view.world is not None:
        return ""
    begun = sorted(pilot.node for pilot in view.staying if pilot.node)
    if begun:
        return f"begins on {', '.join(begun[:4])}" + (f" and {len(begun) - 4} more" if len(begun) > 4 else "")
    least, tasks = max(1, view.job.min_nodes), view.held_count
    if tasks < least:
        return f"has {tasks} held tasks in Slurm and needs {least} for its fewest nodes"
    refused = {refusal.subject: refusal.reason for refusal in decision.refusals}
    kept = sorted(name for name in refused if name in snapshot.node and snapshot.is_free(name))
    free = sum(1 for hole in decision.holes if snapshot.is_free(hole.node) and hole.node not in refused)
    lacking = least - free
    if refusal := refused.get(f"job {view.job.id}") or refused.get("all"):
        reason = refusal
    elif lacking > 0:
        reason = f"needs {least} nodes, and {free or 'none'} can be used now"
        if kept:
            more = f" and {len(kept) - 1} more idle nodes are" if len(kept) > 1 else ", which is idle, is"
            reason += f" ({kept[0]}{more} left out: {refused[kept[0]]})"
    elif why := why_too_dear(view, decision.horizon_s):
        reason = why
    else:
        reason = "other jobs gain more from the nodes that are idle"
    ends = [
        (job.end_time, len(job.nodes))
        for job in snapshot.jobs
        if job.holds_nodes and job.end_time is not None and job.partition != harvest_partition
    ]
    return reason + "".join(f"; {each}" for each in _estimates(least, lacking, ends, supply, observed_s, now))


def why_too_dear(view: JobView, horizon_s: float) -> str:
    """Whether what a start or growing was learned to cost keeps the job from more nodes, in words; or ""."""
    costs = view.costs
    start_s, grow_s = costs.start_s + costs.activate_s, costs.grow_s
    if not 0.0 < horizon_s / 2 < max(start_s, grow_s):
        return ""
    what = f"a start has cost {start_s:.0f} s" if start_s >= grow_s else f"growing has stalled it for {grow_s:.0f} s"
    by = f" by {view.costs_from} changes" if view.costs_from else ""
    return (
        f"{what}{by}, too much for the {horizon_s:.0f} s looked ahead; "
        f"every {RETRY_S / 60:.0f} min without one it is taken for less, and tried again"
    )


def _estimates(
    least: int,
    lacking: int,
    ends: Sequence[tuple[float, int]],
    supply: Sequence[int],
    observed_s: float,
    now: float,
) -> list[str]:
    """`ends`: when main jobs reach their time limits, and how many nodes each has."""
    found = []
    soon = _frees_by(lacking, ends, now) if lacking > 0 else None
    if soon is not None:
        found.append(f"main jobs' time limits free {lacking} more within {_minutes(soon)}, if no main job takes them")
    if supply and observed_s >= MIN_OBSERVED_S:
        share = sum(1 for nodes in supply if nodes >= least) / len(supply)
        found.append(f"lately there were so many for {share:.0%} of the time, all malleable jobs together")
    return found


def _frees_by(lacking: int, ends: Sequence[tuple[float, int]], now: float) -> float | None:
    """Seconds until jobs with so many nodes are past their time limits; None where there are not as many."""
    freed = 0
    for end, nodes in sorted(ends):
        freed += nodes
        if freed >= lacking:
            return max(0.0, end - now)
    return None


def _minutes(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
