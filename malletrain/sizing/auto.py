"""Policy `auto`, the default: the exact core where only counts matter, the MILP once a side constraint is in play."""

from __future__ import annotations

from dataclasses import replace

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constraints import check
from malletrain.sizing.problem import Problem, Sizes


class Auto:
    """Chooses the solver, not the answer: both find the same best plan."""

    name = "auto"

    def size(self, problem: Problem) -> Sizes:
        from malletrain.sizing.registry import policy

        if not problem.constraints:
            return policy("exact").size(problem)
        free = policy("exact").size(replace(problem, constraints=()))
        # Constraints that do not bind leave the best plan as it is.
        if free.status is SizingStatus.OPTIMAL and not check(problem, free.sizes):
            return replace(free, reason=f"{free.reason}; no side constraint binds")
        return policy("milp").size(problem)
