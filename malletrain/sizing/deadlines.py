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

from malletrain.sizing.problem import JobDemand, JobId, id_order
from malletrain.sizing.values import permitted_sizes

#: A deadline must be met with this chance.
MIN_PROBABILITY = 0.9

#: Time that resizes and nodes that are lost take, as a factor on training.
SLACK_FACTOR = 1.1


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
