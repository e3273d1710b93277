"""Strays: jobs in the harvest partition that are no pilots. They would hold the pool past every rule of the site's,
so their nodes are taken back at the look that shows them."""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.decide.rules import Rules
from malletrain.domain.decision import Stray
from malletrain.domain.job import JobView, PilotPhase
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot


def find_strays(snapshot: Snapshot, views: Mapping[int, JobView], rules: Rules) -> tuple[Stray, ...]:
    """Jobs of the harvest partition that hold nodes, or wait for some, and that the daemon has not started. `views`:
    of all jobs, those that are over included.

    Held tasks are nobody's stray: they start only when they are released.
    """
    if not rules.takes_back:
        return ()
    pilots = {pilot.task for view in views.values() for pilot in view.active}
    rows = [
        job
        for job in (*snapshot.holding, *snapshot.pending)
        if job.partition == rules.harvest_partition and job.id not in pilots and not job.is_held
    ]
    unknown = [job for job in rows if not _is_task_of(job, views, snapshot)]
    return tuple(Stray(job.id, job.user, job.nodes, _why_left(job, snapshot, rules)) for job in unknown)


def _is_task_of(job: SlurmJob, views: Mapping[int, JobView], snapshot: Snapshot) -> bool:
    """Whether it is a task that became something else after the look was begun, or that waits to be looked at."""
    mine = [view.pilots[job.id] for view in views.values() if job.id in view.pilots]
    return any(pilot.phase is PilotPhase.HELD or pilot.since >= snapshot.taken_at for pilot in mine)


def _why_left(job: SlurmJob, snapshot: Snapshot, rules: Rules) -> str:
    if job.state is SlurmState.COMPLETING:
        return "it is ending"
    if rules.harvest_account and job.account != rules.harvest_account:
        return f"its account is {job.account or 'none'}, not {rules.harvest_account}"
    if job.het_id and any(other.het_id == job.het_id and other.partition != job.partition for other in snapshot.jobs):
        return "a part of it is in another partition"
    return ""
