"""Job termination: a job ends when its pilots keep failing, it has no task (any more), or its budget is spent."""

from __future__ import annotations

from malletrain.decide.entitlement.budgets import affordable_nodes, job_budget_left_s
from malletrain.decide.rules import Rules
from malletrain.domain.event import JobCancelled, JobFailed
from malletrain.domain.job import JobPhase, JobView, MalleableJob
from malletrain.domain.output_files import output_file
from malletrain.domain.snapshot import SlurmState


def termination(view: JobView, rules: Rules, spent_s: float = 0.0) -> tuple[JobCancelled | JobFailed, str] | None:
    """How a job that cannot go on ends, and why; None for one that can. `spent_s`: node-seconds that it has used.

    A pilot that ends before its worker is ready has a fault that the next one has too (a wrong path, a missing
    module): trying on would consume the whole array.
    """
    if view.array_gone and not view.pilots and not view.phase.is_over:
        return JobFailed(), f"{view.array_gone}: submit it again"
    if view.phase not in (JobPhase.QUEUED, JobPhase.RUNNING, JobPhase.HELD) or not view.pilots:
        return None
    budget = view.job.budget_node_s
    if budget is not None and not view.active and spent_s > 0:
        least = max(1, view.job.min_nodes)
        left = job_budget_left_s(budget, spent_s)
        if affordable_nodes(left, rules.horizon_s) < least:
            return JobCancelled(), (
                f"its budget of {budget / 3600:.4g} node-hours is spent: what is left, {left / 3600:.2g}, is too "
                "little for its fewest nodes"
            )
    if view.failures >= rules.max_failures:
        failed = [p for p in view.pilots.values() if p.ended_as is not None]
        last = max(failed, key=lambda p: (p.since, p.id))
        return JobFailed(), (
            f"{view.failures} pilots in a row ended before their worker was ready ({last.reason}): "
            f"see {_output(view.job, last.task)}"
        )
    if view.active or view.held_count * rules.max_nodes >= max(1, view.job.min_nodes):
        return None
    tasks = [p for p in view.pilots.values() if not p.is_part]
    if view.held_count:  # only a living worker can submit more
        return JobFailed(), (
            f"{view.held_count} of its {len(tasks)} tasks are left, too few for its fewest nodes, "
            f"{view.job.min_nodes}: submit it again, and it goes on from its last save"
        )
    last = max(tasks, key=lambda pilot: pilot.since)
    if last.ended_as is SlurmState.CANCELLED:  # (an earlier one may have been cancelled for itself)
        return JobCancelled(), "its array was cancelled in Slurm"
    ends = [p.ended_as for p in tasks]
    if last.ended_as is SlurmState.UNKNOWN:
        unknown = ends.count(SlurmState.UNKNOWN)
        return JobFailed(), (
            f"Slurm no longer knows its tasks ({unknown} of {len(ends)}): slurmctld was killed before it had saved "
            "them, or they ended while nobody looked: submit it again, and it goes on from its last save"
        )
    consumed = ", ".join(f"{ends.count(state)} {state.value}" for state in SlurmState if state in ends)
    return JobFailed(), (
        f"no held task is left (of {len(ends)}: {consumed}): submit it again, and it goes on from its last save"
    )


def _output(job: MalleableJob, task: str) -> str:
    """Where the task's standard error is, in words."""
    if job.output:
        return output_file(job.output[-1], task, job.name, job.user)
    return f"slurm-{task}.out in the folder of the submission"
