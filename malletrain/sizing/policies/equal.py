"""Policy `equal`: the nodes split evenly (the heuristic that BFTrainer is compared with, arXiv 2106.12091)."""

from __future__ import annotations

import math

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constraints import checked
from malletrain.sizing.max_min import max_min_rows
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import value_table


class Equal:
    """Every job gets the same number of nodes as far as its bounds allow, whatever it is worth."""

    name = "equal"

    def size(self, problem: Problem) -> Sizes:
        table = value_table(problem)
        rows = max_min_rows(table, problem.nodes, table.start[1:] - 1)
        sizes = dict(zip(table.ids, table.size[rows].tolist(), strict=True))
        answer = Sizes(SizingStatus.FEASIBLE, table.worth(rows), math.inf, sizes, "nodes split evenly")
        return checked(problem, answer)
