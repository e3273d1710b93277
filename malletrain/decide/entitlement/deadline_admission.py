"""Deadline admission: a job is taken only where its deadline is likely to be met and no earlier guarantee breaks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from malletrain.decide.demand import due_of
from malletrain.domain.job import Curve, JobView
from malletrain.sizing.deadlines import MIN_PROBABILITY, deadline_guarantees, satisfactory_share, supply_probability
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import JobDemand

#: The shortest observation of the pool from which its supply of nodes is estimated (s).
MIN_OBSERVED_S = 6 * 3600.0


def admission_refusal(
    wanted: JobView, others: Iterable[JobView], supply: Sequence[int], seen_s: float, now: float, policy: Policy
) -> str:
    """Why `wanted`, whose job has a deadline, is not taken; '' where it is.

    `others`: the jobs that are not over. `supply`: equally likely numbers of nodes, from `seen_s` seconds of
    watching. `policy`: what sizes the jobs here; one that takes no deadlines keeps none.
    """
    job = wanted.job
    if Need.DEADLINES not in policy.needs:
        return f"this site keeps no deadlines (its sizing.policy is {policy.name}): leave --deadline out"
    if job.total_samples is None or job.given_curve is None:
        return "a deadline needs to know the work and the speed: give --total-samples and --curve too"
    if seen_s < MIN_OBSERVED_S:
        least = MIN_OBSERVED_S / 3600
        return f"the idle nodes have been watched for {seen_s / 3600:.1f} h only, {least:.0f} h are needed"
    mine = _demand(wanted, now)
    share = satisfactory_share(mine)
    if share is None:
        return f"it would be late on {job.max_nodes} nodes too: it needs more nodes, or more time"
    earlier = [_demand(view, now) for view in others if view.job.deadline is not None]
    before = {each.job for each in deadline_guarantees(earlier, supply, 0, MIN_PROBABILITY)}
    found = {each.job: each for each in deadline_guarantees([*earlier, mine], supply, 0, MIN_PROBABILITY)}
    broken = sorted(before - found.keys(), key=str)
    if broken and job.id in found:
        return f"it needs {share} nodes until then, which are promised to job {broken[0]}"
    if job.id not in found:
        least = mine.due.seconds if mine.due else 0.0
        others_need = sum(e.share for e in found.values() if _seconds(earlier, e.job) <= least)
        chance = supply_probability(others_need + share, supply, 0)
        promised = f" beside {others_need} that are promised" if others_need else ""
        return (
            f"it needs {share} nodes until then{promised}; so many are idle with a chance of {chance:.0%}, "
            f"below {MIN_PROBABILITY:.0%}: give it more time"
        )
    return ""


def _seconds(demands: Sequence[JobDemand], job: object) -> float:
    return next((d.due.seconds for d in demands if d.id == job and d.due is not None), math.inf)


def _demand(view: JobView, now: float) -> JobDemand:
    """The job as far as its deadline goes: whatever tasks it has now, it may have more."""
    job = view.job
    curve = (view.curve or job.given_curve or Curve.linear(job.max_nodes)).over_one()
    return JobDemand(
        id=job.id, current=len(view.staying), min=job.min_nodes, max=job.max_nodes, curve=curve, sizes=job.sizes,
        activate_s=view.costs.start_s + view.costs.activate_s, due=due_of(view, now),
    )  # fmt: skip
