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

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.rules import Rules
from malletrain.domain.job import JobView
from malletrain.sizing.problem import JobDemand
from malletrain.sizing.values import permitted_sizes


class Waits(NamedTuple):
    """Jobs in columns: their numbers, whether each keeps nodes at this look, whether it has any, since when it has
    some or none (Unix seconds), and how long it had waited before it got the last."""

    job: NDArray[np.int64]
    keeps: NDArray[np.bool_]
    has: NDArray[np.bool_]
    turned_at: NDArray[np.float64]
    waited_s: NDArray[np.float64]


def on_turn_or_starving(
    waits: Waits, nodes: int, now: float, max_wait_s: float, turn_s: float, fewest: Callable[[int, int], int]
) -> frozenset[int]:
    """The jobs that must have nodes now: on their turn, then the longest waiting, as long as their fewest fit.

    `fewest(job, left)`: the fewest nodes that it may have of `left`; 0 where it may have none.
    """
    since = now - waits.turned_at
    on_turn = waits.keeps & (waits.waited_s >= max_wait_s) & (since < turn_s)
    starving = ~waits.keeps & ~waits.has & (since >= max_wait_s)
    jobs, turned_at = waits.job.tolist(), waits.turned_at.tolist()
    claims = [(False, -float(since[i]), jobs[i]) for i in on_turn.nonzero()[0].tolist()]
    claims += [(True, turned_at[i], jobs[i]) for i in starving.nonzero()[0].tolist()]
    found, left = set(), nodes
    for _, _, job in sorted(claims):
        least = fewest(job, left)
        if least:
            found.add(job)
            left -= least
    return frozenset(found)


def starving_jobs(
    views: Mapping[int, JobView], demands: Sequence[JobDemand], nodes: int, now: float, rules: Rules
) -> frozenset[int]:
    """The jobs that must have nodes now: on their turn, then the longest waiting, as long as their fewest fit."""
    if rules.max_wait_s <= 0:
        return frozenset()
    by_job = {int(demand.id): demand for demand in demands}
    mine = [views[job] for job in by_job]
    waits = Waits(
        np.array(list(by_job), np.int64),
        np.array([demand.current > 0 for demand in demands], np.bool_),
        np.array([bool(view.active) for view in mine], np.bool_),
        np.array([view.turned_at for view in mine], np.float64),
        np.array([view.waited_s for view in mine], np.float64),
    )

    def fewest(job: int, left: int) -> int:
        return int(permitted_sizes(by_job[job], left)[1:2].sum())

    return on_turn_or_starving(waits, nodes, now, rules.max_wait_s, rules.turn_s, fewest)
