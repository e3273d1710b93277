"""Policy `deadline`: jobs that have a deadline get the nodes that it takes, the others share what is left.

After ElasticFlow (Gu et al., ASPLOS 2023): minimum satisfactory shares first, earliest deadline first, as far as the
nodes reach (`malletrain.sizing.deadlines`), then each further node where it gains most. What is left is shared by the
exact core over the problem's own values; ElasticFlow goes by marginal gain. A job that would be late at any size, or
whose share does not fit, takes part as one without a deadline.
"""

from __future__ import annotations

from dataclasses import replace

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.constraints import checked
from malletrain.sizing.deadlines import satisfactory_share, shares_by_deadline
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import JobDemand, JobId, Problem, Sizes
from malletrain.sizing.values import ValueRowCache, value_table


class Deadline(Policy):
    """Shares for deadlines, then the best plan."""

    name = "deadline"
    needs = frozenset({Need.DEADLINES})

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        shares = shares_by_deadline(problem.jobs, problem.nodes)
        kept = tuple(_kept(job, shares[job.id]) if shares.get(job.id) else job for job in problem.jobs)
        table = value_table(replace(problem, jobs=kept), cache)
        best = knapsack.solve(table, problem.nodes)
        sizes: dict[JobId, int] = dict(zip(table.ids, table.size[best.rows].tolist(), strict=True))
        own = value_table(problem, cache)
        worth = own.worth(own.rows_of(sizes)) if own.has(sizes) else best.objective
        said = "; ".join(_said(job, job.id in shares) for job in problem.jobs if job.due is not None)
        reason = f"deadlines: {said or 'none'}"
        return checked(problem, Sizes(SizingStatus.FEASIBLE, worth, float("inf"), sizes, reason, best.work))


def _kept(job: JobDemand, share: int) -> JobDemand:
    """The job with its share at least, before all others' gain. What is measured of it can wait."""
    return replace(job, min=max(job.min, share), must_run=True, locked=None, bonus=())


def _said(job: JobDemand, has_share: bool) -> str:
    share = satisfactory_share(job)
    if share is None:
        return f"job {job.id!r}: too late at any size"
    return f"job {job.id!r}: {share} nodes" + ("" if has_share else ", more than earlier deadlines leave")
