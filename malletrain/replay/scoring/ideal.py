"""The zero-cost ideal: at each instant the best sizes for the jobs then there, as if changing them cost nothing.

max sum_j O_j(k_j)/O_j(1) subject to sum_j k_j <= N, exactly: no policy can train faster at any instant with these
jobs on these nodes. Where jobs' batches may change, O_j(k) is progress at the best batch there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from malletrain.replay.sizer import demand, speedups, trained_curve
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.knapsack import solve
from malletrain.sizing.problem import Problem
from malletrain.sizing.values import Floats, Ints, value_table


class Ideal:
    """Best total speed-ups by node count for sets of jobs. `speedup[j]` holds O_j(k)/O_j(1) for k = 0, 1, ..."""

    def __init__(self, jobs: Sequence[TrainingJob], speedup: Sequence[Floats], nodes: int) -> None:
        self._jobs, self._speedup, self._nodes = jobs, speedup, nodes
        self._tables: dict[tuple[int, ...], Floats] = {}
        self._points: dict[tuple[tuple[int, ...], int], float] = {}
        self._asked: dict[tuple[int, ...], int] = {}

    @staticmethod
    def of_all(jobs: Sequence[TrainingJob], idle: Ints, nodes: int) -> Floats:
        """The best sum of speed-ups of all `jobs` together on each number of `idle` nodes, of `nodes` at most."""
        rows = [speedups(each, min(each.job.max_nodes, nodes), trained_curve(each, None)) for each in jobs]
        ideal, live = Ideal(jobs, rows, nodes), tuple(range(len(jobs)))
        levels, of = np.unique(idle, return_inverse=True)
        best: Floats = np.array([ideal.at(live, count) for count in levels.tolist()])[of]
        return best

    def at(self, live: tuple[int, ...], nodes: int) -> float:
        """The best sum of speed-ups of the jobs `live` on `nodes` nodes."""
        if not live or nodes <= 0:
            return 0.0
        table = self._tables.get(live)
        if table is not None:
            return float(table[nodes])
        key = (live, nodes)
        if key not in self._points:
            self._asked[live] = self._asked.get(live, 0) + 1
            if self._asked[live] > 20:  # a set that stays: all its node counts at once
                self._tables[live] = self._table(live)
                return float(self._tables[live][nodes])
            self._points[key] = self._solve(live, nodes)
        return self._points[key]

    def _solve(self, live: tuple[int, ...], nodes: int) -> float:
        demands = [
            replace(demand(each, 0), curve=trained_curve(each, None), weight=1.0 / each.curve.of_one, activate_s=0.0)
            for each in map(self._jobs.__getitem__, live)
        ]
        return solve(value_table(Problem(1.0, nodes, tuple(demands))), nodes).objective

    def _table(self, live: tuple[int, ...]) -> Floats:
        """By dynamic programming over jobs: best[n] = max_k best'[n - k] + O(k)/O(1)."""
        most = max(len(self._speedup[j]) - 1 for j in live)
        reach = min(self._nodes, sum(len(self._speedup[j]) - 1 for j in live))
        best = np.zeros(reach + 1)
        for j in live:
            before = best.copy()
            for k in range(1, min(most, len(self._speedup[j]) - 1, reach) + 1):
                gain = float(self._speedup[j][k])
                if gain > 0:
                    np.maximum(best[k:], before[: reach + 1 - k] + gain, out=best[k:])
        return np.concatenate([best, np.full(self._nodes - reach, best[-1])])
