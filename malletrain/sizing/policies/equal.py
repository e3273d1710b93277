"""Policy `equal`: the nodes split evenly (the heuristic that BFTrainer is compared with, arXiv 2106.12091)."""

from __future__ import annotations

import math

import numpy as np

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constraints import checked
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import value_table


class Equal:
    """Every job gets the same number of nodes as far as its bounds allow, whatever it is worth.

    Rounds: each job steps up to its next permitted size, the smallest sizes first, then the lowest id, while it fits.
    Jobs whose first step does not fit stay at zero.
    """

    name = "equal"

    def size(self, problem: Problem) -> Sizes:
        table = value_table(problem)
        spare = problem.nodes
        at = table.start[:-1].copy()
        end = table.start[1:] - 1
        for level in np.unique(table.size[table.size > 0]).tolist():
            if spare <= 0:
                break
            for job in range(len(at)):
                step = at[job] + 1
                if step <= end[job] and table.size[step] == level:
                    more = int(level - table.size[at[job]])
                    if more <= spare:
                        spare -= more
                        at[job] = step
        sizes = dict(zip(table.ids, table.size[at].tolist(), strict=True))
        answer = Sizes(SizingStatus.FEASIBLE, table.worth(at), math.inf, sizes, "nodes split evenly")
        return checked(problem, answer)
