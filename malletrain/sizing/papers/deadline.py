"""Policy `deadline`: jobs that have a deadline get the nodes that it takes, the others share what is left.

After ElasticFlow (Gu et al., ASPLOS 2023): minimum satisfactory shares first, earliest deadline first, then each
further node where it gains most. Shares and chances: `malletrain.sizing.deadlines`. Here the nodes come and go, so
a job has a promise only where its deadline is met with a chance of `least` or more. Those are served first, then jobs
whose deadline has become less likely since they were taken (decide's `admission_refusal`), as far as
their shares fit now. What is left is shared by the exact core over the problem's own values; ElasticFlow goes by
marginal gain.

A job that would be late at any size takes part as one without a deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.constraints import checked
from malletrain.sizing.deadlines import MIN_PROBABILITY, DeadlineGuarantee, deadline_guarantees, satisfactory_share
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import JobDemand, JobId, Problem, Sizes, id_order
from malletrain.sizing.values import ValueRowCache, value_table


class Deadline(Policy):
    """Shares for deadlines, then the best plan."""

    name = "deadline"
    needs = frozenset({Need.DEADLINES})

    def __init__(self, least: float = MIN_PROBABILITY) -> None:
        self._least = least

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        given = deadline_guarantees(problem.jobs, problem.supply, problem.nodes, self._least)
        shares = _shares_now(problem, given)
        kept = tuple(_kept(job, shares[job.id]) if job.id in shares else job for job in problem.jobs)
        table = value_table(replace(problem, jobs=kept), cache)
        best = knapsack.solve(table, problem.nodes)
        sizes: dict[JobId, int] = dict(zip(table.ids, table.size[best.rows].tolist(), strict=True))
        own = value_table(problem, cache)
        worth = own.worth(own.rows_of(sizes)) if own.has(sizes) else best.objective
        reason = _said(problem.jobs, {each.job: each for each in given}, self._least)
        return checked(problem, Sizes(SizingStatus.FEASIBLE, worth, float("inf"), sizes, reason, best.work))


def _shares_now(problem: Problem, given: Sequence[DeadlineGuarantee]) -> dict[JobId, int]:
    """Shares as far as they fit on the nodes that are there, promised ones first, the earliest deadline first."""
    promised = {each.job for each in given}
    due = [(job.id not in promised, job.due.seconds, id_order(job.id), job) for job in problem.jobs if job.due]
    left, shares = problem.nodes, dict[JobId, int]()
    for *_, job in sorted(due, key=lambda each: each[:3]):
        share = satisfactory_share(job)
        if share and share <= left:
            shares[job.id] = share
            left -= share
    return shares


def _kept(job: JobDemand, share: int) -> JobDemand:
    """The job with its share at least, before all others' gain. What is measured of it can wait."""
    return replace(job, min=max(job.min, share), must_run=True, locked=None, bonus=())


def _said(jobs: tuple[JobDemand, ...], given: Mapping[JobId, DeadlineGuarantee], least: float) -> str:
    words = []
    for job in jobs:
        if job.due is None:
            continue
        promise = given.get(job.id)
        if promise is not None:
            words.append(f"job {job.id!r}: {promise.share} nodes, {promise.chance:.0%}")
        else:
            share = satisfactory_share(job)
            words.append(
                f"job {job.id!r}: no promise, "
                + (
                    "too late at any size"
                    if share is None
                    else f"{share} nodes more are there in less than {least:.0%}"
                )
            )
    return "deadlines: " + ("; ".join(words) or "none")
