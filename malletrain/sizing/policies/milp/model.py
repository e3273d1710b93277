"""The integer programme over the rows that pricing left, in segment form, solved by HiGHS.

A job's successive sizes whose losses lie on a line are one binary (the segment is used) and one whole number (how far
into it), instead of one binary a size: about 12 variables a job for 64 sizes. Minimised is what a plan loses against
the bound: the losses of its rows and, for each limit, its price times what is left unused. So numbers are small where
they matter, and the solver's tolerances are tolerances of the last digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from malletrain.sizing.constraints import ConstraintRows
from malletrain.sizing.policies.milp.pricing import Prices
from malletrain.sizing.quiet_highs import new_solver
from malletrain.sizing.values import Floats, Ints, ValueTable

#: Branching nodes for a first plan and for settling ties: there the proof is worth less than the time.
FEW_BRANCHES = 100
#: Jobs whose ties are settled by one solve have so many combinations of sizes at most: the objective counts them.
MAX_COUNTED = 200_000
#: Seconds after which HiGHS is stopped in any case. Only a watchdog: a plan found so is marked feasible, not optimal.
WATCHDOG_S = 10.0


@dataclass(frozen=True)
class Found:
    """Rows of the best plan (None: none found), whether that is proven, the least possible loss, and branches."""

    rows: Ints | None
    proven: bool
    least_loss: float
    branches: int


@dataclass(frozen=True)
class _Line:
    """At most `upper` in all of what the rows have, and what is left unused of each limit."""

    of_rows: Floats
    of_unused: Floats
    upper: float


@dataclass(frozen=True)
class _Segments:
    """Variables: each segment's first row, its length, and whether a whole number goes with it."""

    first: Ints
    length: Ints


def _segments(table: ValueTable, limits: ConstraintRows, rows: Ints, loss: Floats, scale: float) -> _Segments:
    """Cuts rows (ascending) into runs of successive sizes on a line of losses, each a node more of one class; 0 and
    the present size stay alone."""
    first: list[int] = []
    length: list[int] = []
    job, size, changed = table.row_job[rows].tolist(), table.size[rows].tolist(), table.changed[rows].tolist()
    losses = loss[rows].tolist()
    index = rows.tolist()
    slope = 0.0
    step = np.diff(limits.coefficient[:, rows], axis=1)
    straight = [False, False, *np.all(np.abs(np.diff(step, axis=1)) <= 1e-12, axis=0).tolist()]
    for i, row in enumerate(index):
        joins = bool(i) and job[i] == job[i - 1] and row == index[i - 1] + 1 and changed[i] == changed[i - 1]
        joins = joins and size[i] == size[i - 1] + 1
        if joins and length[-1] == 1:
            slope = losses[i] - losses[i - 1]
        elif joins:
            joins = straight[i] and abs(losses[i] - losses[i - 1] - slope) <= 1e-13 * scale
        if joins and size[i - length[-1]] > 0:
            length[-1] += 1
        else:
            first.append(row)
            length.append(1)
    # A run of two saves nothing over two binaries.
    out_first: list[int] = []
    out_length: list[int] = []
    for row, count in zip(first, length, strict=True):
        if count == 2:
            out_first += [row, row + 1]
            out_length += [1, 1]
        else:
            out_first.append(row)
            out_length.append(count)
    return _Segments(np.array(out_first, dtype=np.int64), np.array(out_length, dtype=np.int64))


@dataclass(frozen=True)
class Programme:
    """One size for each job, within the limits, at their prices."""

    table: ValueTable
    limits: ConstraintRows
    prices: Prices

    def least_loss(self, rows: Ints, start: Ints | None, gap: float, branches: int) -> Found:
        """The plan over `rows` that loses least; `start` is a plan to begin with, `gap` the loss that it is known to
        have."""
        factor = 1e3 / max(gap, 1e-9 * self.prices.scale)
        return self._solve(rows, start, self.prices.loss * factor, self.prices.limit * factor, (), factor, branches)

    def fewest_changes(self, rows: Ints, start: Ints, loss: float, allowed: float) -> Found:
        """Among plans that lose at most `loss` + `allowed`: the fewest changed jobs, then the fewest nodes, then the
        most nodes for the first jobs: so the plan follows from the problem, whatever plan the solver found first.

        Where a solve needs more branches than are worth it, the ties that are left are as the solver found them.
        """
        factor = 1e3 / max(loss, allowed)
        as_good = _Line(self.prices.loss * factor, self.prices.limit * factor, (loss + allowed) * factor)
        nodes = 1.0 + float(self.table.size.max(initial=0)) * len(self.table.ids)
        cost = (self.table.changed * nodes + self.table.size).astype(np.float64)
        unused = np.zeros(len(self.limits.upper))
        found = self._solve(rows, start, cost, unused, (as_good,), factor, FEW_BRANCHES)
        if found.rows is None or not found.proven:
            return found
        as_few = _Line(cost, unused, float(cost[found.rows].sum()) + 0.5)
        return self._most_for_the_first(rows, found, (as_good, as_few), factor)

    def _most_for_the_first(self, rows: Ints, found: Found, lines: Sequence[_Line], factor: float) -> Found:
        """Among plans that keep `lines` as well: the one of the latest rows for the first jobs, a few at a time."""
        best, branches, jobs = found.rows, found.branches, len(self.table.ids)
        assert best is not None
        begin = np.searchsorted(rows, self.table.start)
        job = 0
        while job < jobs:
            last = rows[begin[job + 1] - 1]
            if best[job] == last:  # it has the most it can have
                job += 1
                continue
            count, end = 1, job
            while end < jobs and count * int(rows[begin[end + 1] - 1] - rows[begin[end]] + 1) <= MAX_COUNTED:
                count *= int(rows[begin[end + 1] - 1] - rows[begin[end]] + 1)
                end += 1
            end = max(end, job + 1)
            cost, weight = np.zeros(len(self.table.size)), 1
            for each in range(end - 1, job - 1, -1):
                mine = rows[begin[each] : begin[each + 1]]
                cost[mine] = -weight * (mine - mine[0])
                weight *= int(mine[-1] - mine[0] + 1)
            left = np.concatenate((best[:job], rows[begin[job] :]))
            solved = self._solve(left, best, cost, np.zeros(len(self.limits.upper)), lines, factor, FEW_BRANCHES)
            branches += solved.branches
            if solved.rows is None or not solved.proven:
                break
            best, job = solved.rows, end
        return Found(best, found.proven, found.least_loss, branches)

    def _solve(
        self,
        rows: Ints,
        start: Ints | None,
        cost: Floats,
        unused_cost: Floats,
        more: Sequence[_Line],
        factor: float,
        branches: int,
    ) -> Found:
        table, limits = self.table, self.limits
        seg = _segments(table, limits, rows, self.prices.loss, self.prices.scale)
        long = np.flatnonzero(seg.length > 1)
        binaries, offsets, lines = len(seg.first), len(long), len(limits.upper)
        jobs = len(table.ids)
        step = seg.first[long] + 1  # the row after the first: one more node

        def column(values: Floats) -> Floats:
            return np.concatenate((values[seg.first], values[step] - values[seg.first[long]]))

        # Lines: limits (what is left unused is a variable), those in `more`, one size a job, offset <= length * used.
        dense = [np.concatenate((column(limits.coefficient[i]), np.eye(lines)[i])) for i in range(lines)]
        low = limits.upper.tolist()
        high = limits.upper.tolist()
        for line in more:
            dense.append(np.concatenate((column(line.of_rows), line.of_unused)))
            low.append(-highspy.kHighsInf)
            high.append(line.upper)
        model = highspy.HighsLp()
        model.num_col_ = binaries + offsets + lines
        tops = len(dense)
        model.num_row_ = tops + jobs + offsets
        model.col_cost_ = np.concatenate((column(cost), unused_cost))
        model.col_lower_ = np.zeros(model.num_col_)
        model.col_upper_ = np.concatenate(
            (np.ones(binaries), seg.length[long] - 1.0, np.full(lines, highspy.kHighsInf))
        )
        model.row_lower_ = np.concatenate((low, np.ones(jobs), np.full(offsets, -highspy.kHighsInf)))
        model.row_upper_ = np.concatenate((high, np.ones(jobs), np.zeros(offsets)))
        head = np.array(dense)
        at_row, at_col = np.nonzero(head)
        row_index = np.concatenate(
            (at_row, tops + table.row_job[seg.first], *(2 * [tops + jobs + np.arange(offsets)]))
        )
        col_index = np.concatenate((at_col, np.arange(binaries), binaries + np.arange(offsets), long))
        entry = np.concatenate((head[at_row, at_col], np.ones(binaries + offsets), 1.0 - seg.length[long]))
        order = np.lexsort((row_index, col_index))
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.searchsorted(col_index[order], np.arange(model.num_col_ + 1)).astype(np.int32)
        model.a_matrix_.index_ = row_index[order].astype(np.int32)
        model.a_matrix_.value_ = entry[order]
        whole = highspy.HighsVarType.kInteger
        model.integrality_ = [whole] * (binaries + offsets) + [highspy.HighsVarType.kContinuous] * lines

        solver = new_solver(
            random_seed=0,
            mip_rel_gap=0.0,
            mip_abs_gap=0.0,
            mip_max_nodes=branches,
            mip_allow_restart=False,
            mip_feasibility_tolerance=1e-9,
            primal_feasibility_tolerance=1e-9,
            time_limit=WATCHDOG_S,
        )
        solver.passModel(model)
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = _as_columns(seg, long, start, limits).tolist()
            solver.setSolution(solution)
        solver.run()
        info = solver.getInfo()
        proven = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            impossible = solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible
            return Found(None, impossible, 0.0, max(int(info.mip_node_count), 0))
        value = np.array(solver.getSolution().col_value)
        extra = np.zeros(binaries, dtype=np.int64)
        extra[long] = np.rint(value[binaries : binaries + offsets]).astype(np.int64)
        used = np.flatnonzero(value[:binaries] > 0.5)
        found = seg.first[used] + np.minimum(extra[used], seg.length[used] - 1)
        bound = float(info.mip_dual_bound) / factor if np.isfinite(info.mip_dual_bound) else 0.0
        if len(found) != jobs or not limits.hold(found):
            return Found(None, False, bound, int(info.mip_node_count))
        return Found(found, proven, max(bound, 0.0), int(info.mip_node_count))


def _as_columns(seg: _Segments, long: Ints, plan: Ints, limits: ConstraintRows) -> Floats:
    """A plan as values of the variables."""
    used = np.zeros(len(seg.first))
    mine = np.searchsorted(seg.first, plan, side="right") - 1
    used[mine] = 1.0
    into = np.zeros(len(seg.first))
    into[mine] = plan - seg.first[mine]
    return np.concatenate((used, into[long], np.maximum(limits.upper - limits.use(plan), 0.0)))
