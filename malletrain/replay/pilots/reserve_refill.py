"""Which pilots make room where too few nodes stay idle for the reserve: decide's `plan_reserve`, in columns.

The daemon does not let sizing choose them: the pilots leave whose jobs lose least by it, a task of several nodes as
one, and what is left is sized.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def cheapest_pilots(
    nodes: Ints, owner: Ints, ends: Floats, task: Ints | None, loss: Callable[[int, int], float], missing: int
) -> Ints:
    """`missing` of the `nodes` that pilots hold, those that cost training least first.

    `owner`, `ends`, `task`: of each of them the job, when its pilot ends (s), and its Slurm task (None: each node is
    a task); `loss(job, size)`: what a job of `size` nodes loses with one of them. The pilots of a job that end
    soonest are the first to go (`malletrain.decide.demand.harvested`); the whole of a task is weighed.
    """
    order = np.lexsort((nodes, ends, owner))
    jobs, first, counts = np.unique(owner[order], return_index=True, return_counts=True)
    cost: Floats = np.zeros(len(nodes))
    for job, begin, count in zip(jobs.tolist(), first.tolist(), counts.tolist(), strict=True):
        cost[order[begin : begin + count]] = [loss(job, size) for size in range(count, 0, -1)]
    if task is not None:
        which = np.unique(task, return_inverse=True)[1]
        by_task: Floats = np.zeros(len(nodes))
        np.add.at(by_task, which, cost)
        cost = by_task[which]
    return nodes[np.lexsort((nodes, cost))[:missing]]
