"""Policy `exact`: the best plan where only counts matter, in milliseconds."""

from __future__ import annotations

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.constraints import checked, fallback
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import ValueRowCache, value_table


class Exact:
    """The multiple-choice knapsack core (`malletrain.sizing.knapsack`). It knows no side constraints."""

    name = "exact"

    def size(self, problem: Problem) -> Sizes:
        if problem.constraints:
            return fallback(problem, "policy exact knows no side constraints; use auto, milp or lp")
        table = value_table(problem)
        memo = problem.memo or ValueRowCache()
        best = knapsack.solve(table, problem.nodes, memo.price)
        memo.price = best.price
        sizes = dict(zip(table.ids, table.size[best.rows].tolist(), strict=True))
        return checked(
            problem, Sizes(SizingStatus.OPTIMAL, best.objective, best.bound, sizes, "proven best", best.work)
        )
