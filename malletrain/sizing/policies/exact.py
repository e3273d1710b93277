"""Policies `auto` and `exact`, two names of one: the best plan, by the knapsack core where only counts matter, and by
`milp` once a side constraint binds or nodes are of several classes."""

from __future__ import annotations

from dataclasses import replace

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.constrained import EXACT_UNDER_CONSTRAINTS
from malletrain.sizing.constraints import check, plan_of
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import ValueRowCache, value_table


class Auto(Policy):
    """Chooses the solver, not the answer: both find the same best plan."""

    name = "auto"
    places_classes = True
    handles_constraints = True
    is_knapsack = True

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        from malletrain.sizing.registry import policy

        if len(problem.classes) <= 1:
            free = _by_counts(problem if not problem.constraints else replace(problem, constraints=()), cache)
            if not problem.constraints:
                return free
            # Constraints that do not bind leave the best plan as it is.
            if free.status is SizingStatus.OPTIMAL and not check(problem, free.sizes):
                return replace(free, reason=f"{free.reason}; no side constraint binds")
        return policy(EXACT_UNDER_CONSTRAINTS).size(problem, cache)


class Exact(Auto):
    """As `auto`."""

    name = "exact"


def _by_counts(problem: Problem, cache: ValueRowCache | None) -> Sizes:
    cache = cache or ValueRowCache()
    table = value_table(problem, cache)
    best = knapsack.solve(table, problem.nodes, cache.price)
    cache.price = best.price
    return plan_of(problem, table, best.rows, "proven best", SizingStatus.OPTIMAL, best.bound, work=best.work)
