"""Policy `elastic_batch`: nodes and batch size chosen together (Saxena, Jayaram, Basu, Sabharwal, Verma: Effective
Elastic Scaling of Deep Learning Workloads, MASCOTS 2020, arXiv 2006.13878).

    P(j, n) = max_k  speedup_j(k) + P(j - 1, n - k)        speedup_j(k) = max_b O_j(k, b) / max_b O_j(1, b)

over the batch sizes b that the job tolerates. Every admitted job gets at least its minimum; jobs are admitted in the
order of their ids while their minima fit, the others wait with no nodes. The dynamic programme is the knapsack core,
which finds the same optimum. The batch that reaches the best throughput goes to the worker; of equals the smallest.
"""

from __future__ import annotations

import math

import numpy as np

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.batching import at_best_batches, best_batch
from malletrain.sizing.constraints import plan_of
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import Floats, Ints, ValueRowCache, ValueTable, rates, value_table


class ElasticBatch(Policy):
    """Most speed-up over all admitted jobs, each with at least its minimum."""

    name = "elastic_batch"
    needs = frozenset({Need.BATCHES})

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        best = at_best_batches(problem)
        table = value_table(best, cache)
        if not table.ids:
            return Sizes(SizingStatus.FEASIBLE, 0.0, math.inf, {}, "no jobs")
        rate, of_one = rates(best, table)
        speedup = rate / of_one[table.row_job]
        admitted, spare = [], problem.nodes
        for job in range(len(table.ids)):
            has_sizes = table.start[job + 1] - table.start[job] > 1
            least = int(table.size[table.start[job] + 1]) if has_sizes else problem.nodes + 1
            if least <= spare:
                admitted.append(job)
                spare -= least
        rows = table.start[:-1].copy()
        if admitted:
            rows[admitted] = _shared(table, speedup, np.array(admitted, dtype=np.int64), spare)
        sizes = dict(zip(table.ids, table.size[rows].tolist(), strict=True))
        batches = {j.id: best_batch(j, sizes[j.id]) for j in problem.in_order() if j.batches and sizes[j.id]}
        waiting = len(table.ids) - len(admitted)
        return plan_of(
            problem, table, rows, f"most speed-up with free batch sizes; {waiting} jobs wait", batches=batches
        )


def _shared(table: ValueTable, speedup: Floats, jobs: Ints, spare: int) -> Ints:
    """Rows of the admitted jobs: the knapsack over what each may have beyond its minimum."""
    begin, end = table.start[jobs] + 1, table.start[jobs + 1]
    rows = np.concatenate([np.arange(a, b) for a, b in zip(begin.tolist(), end.tolist(), strict=True)])
    start = np.concatenate(([0], np.cumsum(end - begin)))
    row_job = np.repeat(np.arange(len(jobs)), end - begin)
    beyond = table.size[rows] - table.size[begin][row_job]
    above = ValueTable(
        tuple(table.ids[j] for j in jobs.tolist()),
        table.current[jobs],
        start,
        row_job,
        beyond,
        speedup[rows],
        table.changed[rows],
    )
    return rows[knapsack.solve(above, spare).rows]
