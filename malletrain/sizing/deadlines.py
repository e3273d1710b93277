"""Deadlines: how many nodes a job needs to meet one, and how likely it is to have them.

Job j has X samples to train within D seconds. Its *share* is the fewest nodes that do it without a break:

    k_j = min { k permitted : W + SLACK X / O(k) <= D }

(the minimum satisfactory share of ElasticFlow: Gu et al., ASPLOS 2023), W its activation, SLACK for what resizes
take.
Earlier deadlines come first, so job j meets its own as long as there are nodes for all shares up to its own:

    P(meet_j) = P( N >= sum of k_i over jobs i with deadlines up to j's )

over the numbers N of nodes that the pool is likely to have (`Problem.supply`). N is taken at one instant: over a time
its mean varies less, so long jobs are more likely to meet their deadlines than is said.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.domain.job import Curve, JobView
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import Due, JobDemand, JobId, id_order
from malletrain.sizing.values import permitted_sizes

#: A deadline must be met with this chance.
MIN_PROBABILITY = 0.9

#: Time that resizes and nodes that are lost take, as a factor on training.
SLACK_FACTOR = 1.1

#: The shortest observation of the pool from which its supply of nodes is estimated (s).
MIN_OBSERVED_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class DeadlineGuarantee:
    """`share`: nodes that the job is to have until its deadline; `needs`: those of earlier deadlines too; `chance`:
    how likely so many are there."""

    job: JobId
    share: int
    needs: int
    chance: float


def satisfactory_share(job: JobDemand) -> int | None:
    """The fewest nodes with which the job meets its deadline; None where it does with none of its sizes."""
    if job.due is None:
        return None
    if job.due.samples <= 0:
        return 0
    for k in permitted_sizes(job, job.max).tolist()[1:]:
        rate = job.curve.throughput(k)
        if rate > 0 and job.activate_s + SLACK_FACTOR * job.due.samples / rate <= job.due.seconds:
            return int(k)
    return None


def supply_probability(nodes: int, supply: Sequence[int], present: int) -> float:
    """How likely there are `nodes` nodes. Where no supply is known, those that are `present` are all there is."""
    if not supply:
        return 1.0 if nodes <= present else 0.0
    return 1.0 - bisect_left(supply, nodes) / len(supply)


def deadline_guarantees(
    jobs: Iterable[JobDemand], supply: Sequence[int], present: int, least: float
) -> list[DeadlineGuarantee]:
    """Jobs whose deadline is met with a chance of at least `least`, the earliest first; others have no promise."""
    due = [job for job in jobs if job.due is not None]
    found: list[DeadlineGuarantee] = []
    needs = 0
    for job in sorted(due, key=lambda job: (job.due.seconds if job.due else math.inf, id_order(job.id))):
        share = satisfactory_share(job)
        if share is None:
            continue
        chance = supply_probability(needs + share, supply, present)
        if chance >= least:
            needs += share
            found.append(DeadlineGuarantee(job.id, share, needs, chance))
    return found


def supply_quantiles(levels: Sequence[float], weights: Sequence[float], count: int = 40) -> tuple[int, ...]:
    """`count` equally likely numbers of nodes from `levels` seen for `weights` seconds each; empty for none."""
    order = np.argsort(levels, kind="stable")
    level, weight = np.asarray(levels, dtype=np.float64)[order], np.asarray(weights, dtype=np.float64)[order]
    if not len(level) or weight.sum() <= 0:
        return ()
    reached = np.cumsum(weight) / weight.sum()
    at = np.searchsorted(reached, (np.arange(count) + 0.5) / count)
    return tuple(int(n) for n in level[np.minimum(at, len(level) - 1)])


def due_of(view: JobView, now: float) -> Due | None:
    """What is left until the job's deadline, in the units of its demand; None where it has none."""
    job = view.job
    if job.deadline is None or job.total_samples is None:
        return None
    return Due(max(0.0, job.deadline - now), max(0.0, job.total_samples - view.samples_done) / view.rate_of_one)


def admission_refusal(
    wanted: JobView, others: Iterable[JobView], supply: Sequence[int], seen_s: float, now: float, policy: Policy
) -> str:
    """Why `wanted`, whose job has a deadline, is not taken beside the `others` that are not over; '' where it is.
    `supply`: equally likely numbers of nodes, from `seen_s` seconds of watching; `policy`: what sizes jobs here."""
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
    found = {each.job for each in deadline_guarantees([*earlier, mine], supply, 0, MIN_PROBABILITY)}
    if job.id in found:
        broken = sorted(before - found, key=str)
        return f"it needs {share} nodes until then, which are promised to job {broken[0]}" if broken else ""
    chance = f"a chance of {MIN_PROBABILITY:.0%}"
    return f"it needs {share} nodes until then, more than are idle with {chance} and not promised: give it more time"


def _demand(view: JobView, now: float) -> JobDemand:
    """The job as far as its deadline goes: whatever tasks it has now, it may have more."""
    job = view.job
    curve = (view.curve or job.given_curve or Curve.linear(job.max_nodes)).over_one()
    return JobDemand(
        id=job.id,
        current=len(view.staying),
        min=job.min_nodes,
        max=job.max_nodes,
        curve=curve,
        sizes=job.sizes,
        activate_s=view.costs.start_s + view.costs.activate_s,
        due=due_of(view, now),
    )
