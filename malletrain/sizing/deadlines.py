"""Deadlines: how many nodes a job needs to meet one, and which jobs have as many.

Job j has X samples to train within D seconds. Its *share* is the fewest nodes that do it without a break:

    k_j = min { k permitted : W + SLACK X / O(k) <= D }

(the minimum satisfactory share of ElasticFlow: Gu et al., ASPLOS 2023), W its activation, SLACK for what resizes
take. Earlier deadlines come first, so a job meets its own as long as there are nodes for all shares up to its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from malletrain.domain.job import Curve, JobView
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import Due, JobDemand, JobId, id_order
from malletrain.sizing.values import permitted_sizes

#: Time that resizes and nodes that are lost take, as a factor on training.
SLACK_FACTOR = 1.1


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


def shares_by_deadline(jobs: Iterable[JobDemand], nodes: int) -> dict[JobId, int]:
    """The shares that fit on so many nodes together, the earliest deadline first."""
    shares: dict[JobId, int] = {}
    for job in sorted(jobs, key=lambda job: (job.due.seconds if job.due else math.inf, id_order(job.id))):
        share = satisfactory_share(job)
        if share is not None and share <= nodes:
            shares[job.id] = share
            nodes -= share
    return shares


def due_of(view: JobView, now: float) -> Due | None:
    """What is left until the job's deadline, in the units of its demand; None where it has none."""
    job = view.job
    if job.deadline is None or job.total_samples is None:
        return None
    return Due(max(0.0, job.deadline - now), max(0.0, job.total_samples - view.samples_done) / view.rate_of_one)


def admission_refusal(wanted: JobView, others: Iterable[JobView], nodes: int, now: float, policy: Policy) -> str:
    """Why `wanted`, whose job has a deadline, is not taken beside the `others` that are not over; '' where it is.
    `nodes`: that pilots may hold now; `policy`: what sizes jobs here."""
    job = wanted.job
    if Need.DEADLINES not in policy.needs:
        return f"this site keeps no deadlines (its sizing.policy is {policy.name}): leave --deadline out"
    if job.total_samples is None or job.given_curve is None:
        return "a deadline needs to know the work and the speed: give --total-samples and --curve too"
    mine = _demand(wanted, now)
    share = satisfactory_share(mine)
    if share is None:
        return f"it would be late on {job.max_nodes} nodes too: it needs more nodes, or more time"
    earlier = [_demand(view, now) for view in others if view.job.deadline is not None]
    before, found = shares_by_deadline(earlier, nodes), shares_by_deadline([*earlier, mine], nodes)
    if job.id not in found:
        return f"it needs {share} nodes until then, more than are idle now and not promised: give it more time"
    broken = sorted(before.keys() - found.keys(), key=str)
    return f"it needs {share} nodes until then, which are promised to job {broken[0]}" if broken else ""


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
