"""Policy `deadline`: jobs that have a deadline get the nodes that it takes, the others share what is left.

After ElasticFlow (Gu et al., ASPLOS 2023): minimum satisfactory shares first, earliest deadline first, then each
further node where it gains most. Shares and chances: `malletrain.sizing.promises`. Here the nodes come and go, so
a job has a promise only where its deadline is met with a chance of `least` or more. What is left is shared by the
exact core over the problem's own values; ElasticFlow goes by marginal gain.

A job without a promise (its deadline cannot be met, or not surely enough) takes part as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.constraints import checked
from malletrain.sizing.problem import JobDemand, JobId, Problem, Sizes
from malletrain.sizing.promises import Promise, promises, share_of
from malletrain.sizing.values import value_table

#: A deadline must be met with this chance.
LEAST_CHANCE = 0.9


class Deadline:
    """Shares for deadlines, then the best plan."""

    name = "deadline"

    def __init__(self, least: float = LEAST_CHANCE) -> None:
        self._least = least

    def size(self, problem: Problem) -> Sizes:
        given = promises(problem.jobs, problem.supply, problem.nodes, self._least)
        # Now and then fewer nodes are there than was likely: then the earliest deadlines have theirs.
        now = {each.job: each for each in given if each.needs <= problem.nodes and each.share > 0}
        kept = tuple(_kept(job, now[job.id].share) if job.id in now else job for job in problem.jobs)
        table = value_table(replace(problem, jobs=kept))
        best = knapsack.solve(table, problem.nodes)
        sizes: dict[JobId, int] = dict(zip(table.ids, table.size[best.rows].tolist(), strict=True))
        own = value_table(problem)
        worth = own.worth(own.rows_of(sizes)) if own.has(sizes) else best.objective
        reason = _said(problem.jobs, {each.job: each for each in given}, self._least)
        return checked(problem, Sizes(SizingStatus.FEASIBLE, worth, float("inf"), sizes, reason, best.work))


def _kept(job: JobDemand, share: int) -> JobDemand:
    """The job with its share at least, before all others' gain. What is measured of it can wait."""
    return replace(job, min=max(job.min, share), owed=True, locked=None, bonus=())


def _said(jobs: tuple[JobDemand, ...], given: Mapping[JobId, Promise], least: float) -> str:
    words = []
    for job in jobs:
        if job.due is None:
            continue
        promise = given.get(job.id)
        if promise is not None:
            words.append(f"job {job.id!r}: {promise.share} nodes, {promise.chance:.0%}")
        else:
            share = share_of(job)
            words.append(
                f"job {job.id!r}: no promise, "
                + (
                    "too late at any size"
                    if share is None
                    else f"{share} nodes more are there in less than {least:.0%}"
                )
            )
    return "deadlines: " + ("; ".join(words) or "none")
