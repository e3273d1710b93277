"""Policy `equal`: nodes split evenly, whatever they are worth: the heuristic that BFTrainer is compared with
(arXiv 2106.12091). Nodes are shared max-min fairly by count, as far as each job's bounds allow.
"""

from __future__ import annotations

import numpy as np

from malletrain.sizing.constraints import plan_of
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import Ints, ValueRowCache, ValueTable, value_table


class Equal(Policy):
    """Every job gets the same number of nodes as far as its bounds allow, whatever it is worth."""

    name = "equal"

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        table = value_table(problem, cache)
        return split_evenly(problem, table, table.start[1:] - 1, "nodes split evenly")


def split_evenly(problem: Problem, table: ValueTable, last: Ints, reason: str) -> Sizes:
    """An even split in which job i goes no further than row `last[i]` of the table."""
    return plan_of(problem, table, _max_min_rows(table, problem.nodes, last), reason)


def _max_min_rows(table: ValueTable, nodes: int, last: Ints) -> Ints:
    """Rows of an even split in which job i goes no further than row `last[i]`.

    In rounds: each job steps up to its next permitted size, the smallest sizes first, then the lowest id, while it
    fits. Jobs whose first step does not fit stay at zero.
    """
    allowed = ((np.arange(len(table.size)) <= last[table.row_job]) & (table.size > 0)).nonzero()[0]
    order = allowed[np.argsort(table.size[allowed], kind="stable")]  # rows stand by job already
    at, held, spare = table.start[:-1].tolist(), [0] * len(table.ids), nodes
    steps = zip(order.tolist(), table.row_job[order].tolist(), table.size[order].tolist(), strict=True)
    for row, job, size in steps:
        if spare <= 0:
            break
        if at[job] == row - 1 and size - held[job] <= spare:
            spare -= size - held[job]
            at[job], held[job] = row, size
    return np.array(at, dtype=np.int64)
