"""Policies `efficiency` and `utility`: the scaling conditions of Or, Zhang and Freedman (Resource Elasticity in
Distributed Deep Learning, MLSys 2020). Nodes are shared max-min fairly by count, up to the size at which each job
settles.

A job grows step by step through its permitted sizes while the policy's condition passes, and settles at the last size
that passed. With R the throughput, k -> k' a step:

`efficiency`   s = ((R' - R) / (k' - k)) / (R / k) > 0.1      (the paper's threshold; 400 -> 480, 4 to 5, gives 0.8)
`utility`      what ending sooner is worth > the price of the node-time that it adds:
               u (1/R - 1/R') > k'/R' - k/R                   (a sample's share of either; the job's length cancels)

The paper finds R by growing for real; here R is the job's curve. What several jobs want beyond the nodes is shared
evenly; the paper, with one job in the cloud, leaves that open.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from malletrain.domain.job import Curve
from malletrain.sizing.policies.equal import split_evenly
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import ValueRowCache, value_table

#: (k, R, k', R', weight) -> whether the step passes
Condition = Callable[[int, float, int, float, float], bool]


class Efficiency(Policy):
    """Grow while the throughput added a node is more than `threshold` of the throughput a node so far (.1: the
    paper's default)."""

    name = "efficiency"

    def __init__(self, threshold: float = 0.1) -> None:
        self._threshold = threshold

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        return _settled(problem, cache, self._passes, f"scaling efficiency above {self._threshold:g}")

    def _passes(self, k: int, rate: float, next_k: int, next_rate: float, _: float) -> bool:
        return rate > 0 and (next_rate - rate) / (next_k - k) > self._threshold * rate / k


class Utility(Policy):
    """Grow while ending sooner is worth more than the node-time it costs, at so many node-seconds for a second of a
    job of weight 1: 16 is ours, the paper leaves it to users."""

    name = "utility"

    def __init__(self, second_in_node_seconds: float = 16.0) -> None:
        self._worth = second_in_node_seconds

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        return _settled(problem, cache, self._passes, f"a second sooner is worth {self._worth:g} node-seconds")

    def _passes(self, k: int, rate: float, next_k: int, next_rate: float, weight: float) -> bool:
        if rate <= 0 or next_rate <= 0:
            return False
        sooner = weight * self._worth * (1 / rate - 1 / next_rate)
        return sooner > next_k / next_rate - k / rate


def _settled(problem: Problem, cache: ValueRowCache | None, passes: Condition, reason: str) -> Sizes:
    table = value_table(problem, cache)
    last = table.start[:-1].copy()
    for i, job in enumerate(problem.in_order()):
        rows = range(int(table.start[i]) + 1, int(table.start[i + 1]))
        sizes = [int(table.size[row]) for row in rows]
        if sizes:
            last[i] = rows[_last_passing(sizes, job.curve, job.weight, passes)]
    return split_evenly(problem, table, np.asarray(last), reason)


def _last_passing(sizes: list[int], curve: Curve, weight: float, passes: Condition) -> int:
    """The place of the size at which a job settles; it always has the smallest."""
    at, rate = 0, curve.throughput(sizes[0])
    for place in range(1, len(sizes)):
        next_rate = curve.throughput(sizes[place])
        if not passes(sizes[at], rate, sizes[place], next_rate, weight):
            break
        at, rate = place, next_rate
    return at
