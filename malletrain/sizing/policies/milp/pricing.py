"""Prices of nodes and of every side constraint, by column generation (Dantzig and Wolfe, 1960).

The linear relaxation picks a mixture of sizes for each job under the limits. It is solved over a few rows a job; rows
that its prices make attractive are added until none is left. The prices bound every plan (Lagrange), and say what
each row loses against its job's best: the measure by which nearly all rows are fixed before any branching.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np

from malletrain.sizing.constraints import ConstraintRows
from malletrain.sizing.quiet_highs import new_solver
from malletrain.sizing.values import Floats, Ints, ValueTable

RELATIVE_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Prices:
    """Price of each limit, the bound they prove, each row's loss at them, and the rows that were looked at.

    `scale` is the magnitude that differences are small against: the bound's, or the largest value's.
    """

    limit: Floats
    bound: float
    loss: Floats
    scale: float
    seen: Ints
    rounds: int


def best_prices(table: ValueTable, limits: ConstraintRows, plan: Ints | None) -> Prices | tuple[str, ...]:
    """Minimises the bound over the prices; where no sizes keep all limits, the names of those that clash. `plan`:
    rows known to keep every limit, if any are."""
    scale = max(float(np.abs(table.value).max(initial=0.0)), 1e-200)  # keeps quotients finite
    start = {*table.start[:-1].tolist(), *_best_rows(table, table.value).tolist()}
    start |= set(np.flatnonzero(~table.changed).tolist())
    if plan is None:
        # First only make it feasible: each limit may be broken at a cost of 1, nothing else has a value.
        first = _Master(table, limits, np.zeros_like(table.value), sorted(start), breakable=True)
        first.run()
        broken = first.broken()
        if broken:
            return tuple(limits.names[i] for i in broken)
        start = set(first.rows)
    else:
        start |= set(plan.tolist())
    master = _Master(table, limits, table.value / scale, sorted(start), breakable=False)
    price, bound = master.run()
    net = table.value - (price * scale) @ limits.coefficient
    best = np.maximum.reduceat(net, table.start[:-1])
    return Prices(
        price * scale,
        float(best.sum() + (price * scale) @ limits.upper),
        best[table.row_job] - net,
        max(abs(bound * scale), scale),
        np.array(sorted(master.rows), dtype=np.int64),
        master.rounds,
    )


def _best_rows(table: ValueTable, net: Floats) -> Ints:
    """The best row of each job; the leanest of equals."""
    best = np.maximum.reduceat(net, table.start[:-1])
    rows = np.flatnonzero(net >= best[table.row_job])
    _, first = np.unique(table.row_job[rows], return_index=True)
    return rows[first]


class _Master:
    """The relaxation over the rows added so far. Lines: the limits, then `one size a job`."""

    def __init__(
        self, table: ValueTable, limits: ConstraintRows, value: Floats, rows: list[int], *, breakable: bool
    ) -> None:
        self._table, self._limits, self._value = table, limits, value
        self.rows: list[int] = []
        self.rounds = 0
        self._known: set[int] = set()
        self._breakable = len(limits.upper) if breakable else 0
        self._lp = new_solver(random_seed=0, primal_feasibility_tolerance=1e-9, dual_feasibility_tolerance=1e-9)
        none = np.zeros(0, dtype=np.int32)
        lines, jobs = len(limits.upper), len(table.ids)
        self._lp.addRows(
            lines + jobs,
            np.concatenate((np.full(lines, -highspy.kHighsInf), np.ones(jobs))),
            np.concatenate((limits.upper, np.ones(jobs))),
            0,
            np.zeros(lines + jobs, dtype=np.int32),
            none,
            np.zeros(0),
        )
        for line in range(self._breakable):
            self._lp.addCol(1.0, 0.0, highspy.kHighsInf, 1, np.array([line], dtype=np.int32), np.array([-1.0]))
        self._add(rows)

    def _add(self, rows: list[int]) -> None:
        rows = [row for row in rows if row not in self._known]
        self._known.update(rows)
        self.rows += rows
        if not rows:
            return
        at = np.array(rows, dtype=np.int64)
        lines = len(self._limits.upper)
        use = self._limits.coefficient[:, at]
        dense = np.concatenate((use, np.ones((1, len(at)))), axis=0)
        index = np.concatenate(
            (np.tile(np.arange(lines)[:, None], (1, len(at))), (lines + self._table.row_job[at])[None])
        )
        keep = dense.T != 0
        begin = np.concatenate(([0], np.cumsum(keep.sum(axis=1))[:-1]))
        self._lp.addCols(
            len(at),
            -self._value[at],
            np.zeros(len(at)),
            np.full(len(at), highspy.kHighsInf),
            int(keep.sum()),
            begin.astype(np.int32),
            index.T[keep].astype(np.int32),
            dense.T[keep],
        )

    def run(self) -> tuple[Floats, float]:
        """Adds rows until the prices are best. Returns the prices and the bound they prove."""
        table, limits = self._table, self._limits
        best_price, best_bound = np.zeros(len(limits.upper)), np.inf
        for _ in range(200):  # the bound holds wherever it stops
            self.rounds += 1
            self._lp.run()
            dual = np.array(self._lp.getSolution().row_dual)[: len(limits.upper)]
            price = np.maximum(-dual, 0.0)
            if self._breakable:
                price = np.minimum(price, 1.0)
            net = self._value - price @ limits.coefficient
            rows = _best_rows(table, net)
            bound = float(net[rows].sum() + price @ limits.upper)
            if bound < best_bound:
                best_price, best_bound = price, bound
            reached = -self._lp.getInfo().objective_function_value
            new = [row for row in rows.tolist() if row not in self._known]
            if best_bound - reached <= RELATIVE_TOLERANCE * max(1.0, abs(reached)) or not new:
                break
            self._add(new)
        return best_price, best_bound

    def broken(self) -> list[int]:
        """The limits that no mixture of sizes keeps."""
        amount = np.array(self._lp.getSolution().col_value)[: self._breakable]
        return np.flatnonzero(amount > 1e-7).tolist()
