"""The integer programme over the rows that pricing left, in segment form, solved by HiGHS.

A job's successive sizes whose losses lie on a line are one binary (the segment is used) and one whole number (how far
into it), instead of one binary a size: about 12 variables a job for 64 sizes. Minimised is what a plan loses against
the bound: the losses of its rows and, for each limit, its price times what is left unused. So numbers are small where
they matter, and the solver's tolerances are tolerances of the last digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from malletrain.sizing.constraints import ConstraintRows
from malletrain.sizing.policies.milp.pricing import Prices
from malletrain.sizing.quiet_highs import new_solver
from malletrain.sizing.values import Floats, ValueTable

Ints = NDArray[np.int64]

#: Rows times branching nodes after which the best plan so far is taken: a limit in work is the same on every machine.
MAX_BRANCHED_ROWS = 300_000
#: Branching nodes at most and at least, however few or many rows there are.
MAX_BRANCHES, MIN_BRANCHES = 5_000, 100
#: Branching nodes for a first plan and for settling ties: there the proof is worth less than the time.
FEW_BRANCHES = 100
#: Above so many rows ties are not settled by a solve of their own: it would cost as much as the plan.
MAX_ROWS_TO_SETTLE = 2_000
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


def least_loss(
    table: ValueTable,
    limits: ConstraintRows,
    prices: Prices,
    rows: Ints,
    start: Ints | None,
    gap: float,
    branches: int,
) -> Found:
    """The plan over `rows` that loses least; `start` is a plan to begin with, `gap` the loss it is known to have."""
    factor = 1e3 / max(gap, 1e-9 * prices.scale)
    return _solve(
        table, limits, prices, rows, start, prices.loss * factor, prices.limit * factor, None, factor, branches
    )


def fewest_changes(
    table: ValueTable, limits: ConstraintRows, prices: Prices, rows: Ints, start: Ints, loss: float, allowed: float
) -> Found:
    """Among plans that lose at most `loss` + `allowed`: the fewest changed jobs, then the fewest nodes."""
    factor = 1e3 / max(loss, allowed)
    nodes = 1.0 + float(table.size.max(initial=0)) * len(table.ids)
    cost = table.changed * 1.0 + table.size / nodes
    return _solve(
        table,
        limits,
        prices,
        rows,
        start,
        cost,
        np.zeros(len(limits.upper)),
        (loss + allowed) * factor,
        factor,
        FEW_BRANCHES,
    )


def _solve(
    table: ValueTable,
    limits: ConstraintRows,
    prices: Prices,
    rows: Ints,
    start: Ints | None,
    cost: Floats,
    unused_cost: Floats,
    most_loss: float | None,
    factor: float,
    branches: int,
) -> Found:
    seg = _segments(table, limits, rows, prices.loss, prices.scale)
    long = np.flatnonzero(seg.length > 1)
    binaries, offsets, lines = len(seg.first), len(long), len(limits.upper)
    jobs = len(table.ids)
    step = seg.first[long] + 1  # the row after the first: one more node

    def column(values: Floats) -> Floats:
        return np.concatenate((values[seg.first], values[step] - values[seg.first[long]]))

    # Lines: limits (with what is left unused as a variable), one size a job, offset <= length * used, the loss bound.
    dense = [np.concatenate((column(limits.coefficient[i]), np.eye(lines)[i])) for i in range(lines)]
    low = limits.upper.tolist()
    high = limits.upper.tolist()
    if most_loss is not None:
        dense.append(np.concatenate((column(prices.loss * factor), prices.limit * factor)))
        low.append(-highspy.kHighsInf)
        high.append(most_loss)
    model = highspy.HighsLp()
    model.num_col_ = binaries + offsets + lines
    tops = len(dense)
    model.num_row_ = tops + jobs + offsets
    model.col_cost_ = np.concatenate((column(cost), unused_cost))
    model.col_lower_ = np.zeros(model.num_col_)
    model.col_upper_ = np.concatenate((np.ones(binaries), seg.length[long] - 1.0, np.full(lines, highspy.kHighsInf)))
    model.row_lower_ = np.concatenate((low, np.ones(jobs), np.full(offsets, -highspy.kHighsInf)))
    model.row_upper_ = np.concatenate((high, np.ones(jobs), np.zeros(offsets)))
    head = np.array(dense)
    at_row, at_col = np.nonzero(head)
    row_index = np.concatenate((at_row, tops + table.row_job[seg.first], *(2 * [tops + jobs + np.arange(offsets)])))
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
        random_seed=0, mip_rel_gap=0.0, mip_abs_gap=0.0, mip_max_nodes=branches, mip_allow_restart=False,
        mip_feasibility_tolerance=1e-9, primal_feasibility_tolerance=1e-9, time_limit=WATCHDOG_S,
    )  # fmt: skip
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
