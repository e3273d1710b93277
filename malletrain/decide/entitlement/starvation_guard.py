"""The starvation guard: a job that has waited too long for its fewest nodes gets them, and keeps some for a turn.

Most throughput may be had without a job for ever: it scales badly, or needs many nodes to start. So a job that has
had no node for `max_wait_s` is starving: it then comes before all that others could gain (`JobDemand.must_run`), the
longest waiting first, as far as the nodes reach. Once it runs it keeps that rank for `turn_s`, or it would stop at
the next decision.

The guarantee: among jobs whose fewest nodes fit together, each starts at the first decision after `max_wait_s`.
Where they do not all fit, they take turns: of n such jobs each has waited at most  max_wait_s + n (turn_s + a tick)
whenever the pool holds the nodes of the one whose turn it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malletrain.decide.rules import Rules
from malletrain.domain.job import JobView
from malletrain.sizing.problem import JobDemand
from malletrain.sizing.values import permitted_sizes


def starving_jobs(
    views: Mapping[int, JobView], demands: Sequence[JobDemand], nodes: int, now: float, rules: Rules
) -> frozenset[int]:
    """The jobs that must have nodes now: on their turn, then the longest waiting, as long as their fewest fit."""
    if rules.max_wait_s <= 0:
        return frozenset()
    claims: list[tuple[bool, float, int, JobDemand]] = []
    for demand in demands:
        view = views[int(demand.id)]
        since = now - view.turned_at
        if demand.current and view.waited_s >= rules.max_wait_s and since < rules.turn_s:
            claims.append((False, -since, view.job.id, demand))
        elif not demand.current and not view.active and since >= rules.max_wait_s:
            claims.append((True, view.turned_at, view.job.id, demand))
    found, left = set(), nodes
    for _, _, job_id, demand in sorted(claims, key=lambda claim: claim[:3]):
        least = permitted_sizes(demand, left)[1:2]
        if len(least):
            found.add(job_id)
            left -= int(least[0])
    return frozenset(found)
