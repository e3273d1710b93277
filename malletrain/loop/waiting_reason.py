"""Why a job waits, for other jobs as sbatch's `--dependency` has it, or for nodes; and when it waits in vain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from malletrain.decide.limits import affordable_nodes
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Decision
from malletrain.domain.event import JobCancelled, JobFailed, JobHeld, JobReleased
from malletrain.domain.job import DependencyKind, Elastic, JobPhase, JobView, MalleableJob, output_file
from malletrain.domain.snapshot import SlurmState, Snapshot
from malletrain.learn.profiling import RETRY_S

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


def why_without_nodes(view: JobView, decision: Decision, snapshot: Snapshot) -> str:
    """The reason; "" for a job that has nodes, or is held, or over."""
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
    if refusal := refused.get(f"job {view.job.id}") or refused.get("all"):
        return refusal
    if free < least:
        reason = f"needs {least} nodes, and {free or 'none'} can be used now"
        if kept:
            more = f" and {len(kept) - 1} more idle nodes are" if len(kept) > 1 else ", which is idle, is"
            reason += f" ({kept[0]}{more} left out: {refused[kept[0]]})"
        return reason
    return why_too_dear(view, decision.horizon_s) or "other jobs gain more from the nodes that are idle"


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


_IN_PHASES = {
    DependencyKind.AFTER: frozenset({JobPhase.RUNNING, JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.CANCELLED}),
    DependencyKind.AFTER_ANY: frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.CANCELLED}),
    DependencyKind.AFTER_OK: frozenset({JobPhase.COMPLETED}),
    DependencyKind.AFTER_NOT_OK: frozenset({JobPhase.FAILED, JobPhase.CANCELLED}),
}


def why_held(job: MalleableJob, views: Mapping[int, JobView]) -> tuple[str, bool]:
    """Why a job may not begin yet, or ""; and whether it never may. A job that is not known is over: the ledger keeps
    those that others wait for."""
    waits = []
    for kind, other in job.after:
        view = views.get(other)
        if view is None:
            if kind in (DependencyKind.AFTER_OK, DependencyKind.AFTER_NOT_OK):
                return (
                    f"never begins by itself ({kind.value}:{other}): how job {other} ended is not known any more",
                    True,
                )
        elif view.phase not in _IN_PHASES[kind]:
            if view.phase.is_over:
                return f"never begins by itself ({kind.value}:{other}): job {other} is {view.phase.value}", True
            waits.append(f"{kind.value}:{other}, which is {view.phase.value}")
    return (f"waits for {'; '.join(waits)}" if waits else ""), False


def settle(views: Mapping[int, JobView]) -> Iterator[tuple[int, JobHeld | JobReleased, str]]:
    """What becomes of the jobs that wait: job, event and reason. Nothing for those that wait on as before."""
    for job_id, view in sorted(views.items()):
        if not view.waits:
            continue
        reason, _ = why_held(view.job, views)
        if not reason:
            yield job_id, JobReleased(), "what it waited for has come to pass"
        elif reason != view.reason:
            yield job_id, JobHeld(waits=True), reason


def termination(view: JobView, rules: Rules, spent_s: float = 0.0) -> tuple[JobCancelled | JobFailed, str] | None:
    """How a job that cannot go on ends, and why; None for one that can. `spent_s`: node-seconds that it has used.

    A pilot that ends before its worker is ready has a fault that the next one has too (a wrong path, a missing
    module): trying on would consume the whole array.
    """
    job, again = view.job, "submit it again, and it goes on from its last save"
    if view.array_gone and not view.pilots and not view.phase.is_over:
        return JobFailed(), f"{view.array_gone}: submit it again"
    if view.phase not in (JobPhase.QUEUED, JobPhase.RUNNING, JobPhase.HELD) or not view.pilots:
        return None
    least = max(1, job.min_nodes)
    if job.budget_node_s is not None and not view.active and spent_s > 0:
        left = max(0.0, job.budget_node_s - spent_s)
        if affordable_nodes(left, rules.horizon_s) < least:
            spent = f"its budget of {job.budget_node_s / 3600:.4g} node-hours is spent"
            return JobCancelled(), f"{spent}: what is left, {left / 3600:.2g}, is too little for its fewest nodes"
    if view.failures >= rules.max_failures:
        failed = [p for p in view.pilots.values() if p.ended_as is not None]
        last = max(failed, key=lambda p: (p.since, p.id))
        output = f"slurm-{last.task}.out in the folder of the submission"
        if job.output:
            output = output_file(job.output[-1], last.task, job.name, job.user)
        in_a_row = f"{view.failures} pilots in a row ended before their worker was ready ({last.reason})"
        return JobFailed(), f"{in_a_row}: see {output}"
    if view.active or view.held_count * rules.max_nodes >= least:
        return None
    tasks = [p for p in view.pilots.values() if not p.is_part]
    if view.held_count:  # only a living worker can submit more
        few = f"{view.held_count} of its {len(tasks)} tasks are left, too few for its fewest nodes, {job.min_nodes}"
        return JobFailed(), f"{few}: {again}"
    last = max(tasks, key=lambda pilot: pilot.since)
    if last.ended_as is SlurmState.CANCELLED:  # (an earlier one may have been cancelled for itself)
        return JobCancelled(), "its array was cancelled in Slurm"
    ends = [p.ended_as for p in tasks]
    if last.ended_as is SlurmState.UNKNOWN:
        return JobFailed(), (
            f"Slurm no longer knows its tasks ({ends.count(last.ended_as)} of {len(ends)}): slurmctld was killed "
            f"before it had saved them, or they ended while nobody looked: {again}"
        )
    consumed = ", ".join(f"{ends.count(state)} {state.value}" for state in SlurmState if state in ends)
    return JobFailed(), f"no held task is left (of {len(ends)}: {consumed}): {again}"
