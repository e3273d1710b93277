"""Jobs that wait for other jobs, as sbatch's `--dependency` has it: when they may begin, and when they never will."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from malletrain.domain.event import JobHeld, JobReleased
from malletrain.domain.job import DependencyKind, JobPhase, JobView, MalleableJob

_MET = {
    DependencyKind.AFTER: frozenset(
        {JobPhase.RUNNING, JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.CANCELLED}
    ),
    DependencyKind.AFTER_ANY: frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.CANCELLED}),
    DependencyKind.AFTER_OK: frozenset({JobPhase.COMPLETED}),
    DependencyKind.AFTER_NOT_OK: frozenset({JobPhase.FAILED, JobPhase.CANCELLED}),
}  # fmt: skip


def waiting_reason(job: MalleableJob, views: Mapping[int, JobView]) -> tuple[str, bool]:
    """Why a job may not begin yet, or ""; and whether it never may.

    Args:
        job: with its dependencies.
        views: of every job that is known. One that is not is over: the ledger keeps those that others wait for.
    """
    waits = []
    for kind, other in job.after:
        view = views.get(other)
        if view is None:
            if kind in (DependencyKind.AFTER_OK, DependencyKind.AFTER_NOT_OK):
                return (
                    f"never begins by itself ({kind.value}:{other}): how job {other} ended is not known any more",
                    True,
                )
        elif view.phase not in _MET[kind]:
            if view.phase.is_over:
                return f"never begins by itself ({kind.value}:{other}): job {other} is {view.phase.value}", True
            waits.append(f"{kind.value}:{other}, which is {view.phase.value}")
    return (f"waits for {'; '.join(waits)}" if waits else ""), False


def settle(views: Mapping[int, JobView]) -> Iterator[tuple[int, JobHeld | JobReleased, str]]:
    """What becomes of the jobs that wait: job, event and reason. Nothing for those that wait on as before."""
    for job_id, view in sorted(views.items()):
        if not view.waits:
            continue
        reason, _ = waiting_reason(view.job, views)
        if not reason:
            yield job_id, JobReleased(), "what it waited for has come to pass"
        elif reason != view.reason:
            yield job_id, JobHeld(waits=True), reason
