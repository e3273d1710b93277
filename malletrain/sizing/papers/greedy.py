"""Policy `greedy`: the largest gain a node first, on each job's concave hull.

For concave values of single nodes that is optimal; with jumps (stalls, minimum sizes, lists of sizes) it is not, and
`python -m scripts.bench.sizing` measures by how much. It is here as the baseline that exactness is compared with.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from malletrain.sizing.constraints import plan_of
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import Floats, Ints, ValueRowCache, value_table


class Greedy(Policy):
    """Steps along the hulls in falling order of gain a node, each taken if it still fits and its job is that far."""

    name = "greedy"

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        table = value_table(problem, cache)
        steps: list[tuple[float, int, int, int]] = []  # -gain a node, job, row before, row after
        at = np.empty(len(table.ids), dtype=np.int64)
        for job in range(len(table.ids)):
            begin, end = int(table.start[job]), int(table.start[job + 1])
            hull = concave_hull(table.size[begin:end], table.value[begin:end])
            at[job] = begin + hull[0]
            for a, b in pairwise(hull):
                gain = (table.value[begin + b] - table.value[begin + a]) / (
                    table.size[begin + b] - table.size[begin + a]
                )
                steps.append((-float(gain), job, begin + a, begin + b))
        steps.sort()
        spare = problem.nodes
        for gain, job, before, after in steps:
            more = int(table.size[after] - table.size[before])
            if gain < 0 and at[job] == before and more <= spare:
                at[job] = after
                spare -= more
        return plan_of(problem, table, at, "largest gain a node first")


def concave_hull(size: Ints, value: Floats) -> list[int]:
    """Indices of the upper concave hull of points with rising sizes, from the first one (no nodes) on."""
    hull: list[int] = []
    for i, (x, y) in enumerate(zip(size.tolist(), value.tolist(), strict=True)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (value[b] - value[a]) * (x - size[a]) > (y - value[a]) * (size[b] - size[a]):
                break
            hull.pop()
        hull.append(i)
    return hull
