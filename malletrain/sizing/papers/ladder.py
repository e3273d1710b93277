"""Policy `ladder`: sizes for several periods ahead, by how long the nodes last (a rolling horizon over lifetimes).

M_l of the nodes are still there in period l, from t_(l-1) to t_l (`Problem.lifetimes`). Job j trains on
K_j1 >= K_j2 >= .. >= K_jL of them, since what it loses does not come back within the plan:

    maximise   sum_j w_j ( sum_l (t_l - t_(l-1)) O_j(K_jl)  -  first_j(K_j1)
                           -  sum_(l>1) [K_jl < K_j,l-1] P_down O_j(K_jl) )
    subject to sum_j K_jl <= M_l  for every l

with first_j what the change now costs over all periods, as the table of values has it for `elastic`, with bonuses and
claims (`malletrain.sizing.values`). Nodes that last a short time so go to jobs that lose little by a resize. Only the
first period's sizes are done; the next decision plans anew.

Dantzig-Wolfe: under a price for each period a job's best steps follow from a dynamic programme over (period, size).
The prices are those of the linear programme over the steps found so far (HiGHS), until no job has better ones; that
bounds every plan. Then the best whole plan over these steps is taken, to a thousandth or as far as a bounded search
comes; the reason says how near to the bound.

Without lifetimes it is one period as long as the horizon, for all nodes. Fairness (`alpha`) and side constraints are
not in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import highspy
import numpy as np
from numpy.typing import NDArray

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constraints import checked, fallback
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import JobId, Problem, Sizes, Value
from malletrain.sizing.quiet_highs import new_solver
from malletrain.sizing.values import Floats, ValueRowCache, permitted_sizes, rates, value_table

Ints = NDArray[np.int64]

#: Rounds of pricing at most.
MAX_PRICING_ROUNDS = 60
#: So near to the bound is good enough: far less than what lifetimes are known to.
MAX_RELATIVE_GAP = 1e-3
#: Branching nodes for the whole plan.
MAX_BRANCHES = 20
#: Relative difference of two sums of the same numbers in another order: it is no gap, and processors differ in it.
SUMMATION_ERROR = 1e-12


@dataclass(frozen=True)
class Planned:
    """Nodes by period of each job that fits, what that is worth, a bound of all such plans, and the work done."""

    sizes: dict[JobId, tuple[int, ...]]
    worth: float
    bound: float
    work: dict[str, int]


class Ladder(Policy):
    """Sizes for now that are best if nodes last as long as is likely."""

    name = "ladder"
    needs = frozenset({Need.LIFETIMES})
    looks_ahead = True

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        found = planned(problem)
        if found is None:
            return fallback(problem, "no whole plan was found within the work allowed")
        sizes: dict[JobId, int] = {job.id: 0 for job in problem.jobs}
        sizes.update({job: of[0] for job, of in found.sizes.items()})
        gap = (found.bound - found.worth) / max(abs(found.bound), 1e-300)
        gap = gap if gap > SUMMATION_ERROR else 0.0
        reason = f"best for {max(1, len(problem.lifetimes))} periods ahead, within {gap:.1e}"
        table = value_table(problem, cache)
        worth = table.worth(table.rows_of(sizes)) if table.has(sizes) else found.worth
        return checked(problem, Sizes(SizingStatus.FEASIBLE, worth, math.inf, sizes, reason, found.work))


def planned(problem: Problem) -> Planned | None:
    """The plan for all periods; None where no whole one was found within the work allowed."""
    jobs = [job for job in problem.in_order() if len(permitted_sizes(job, problem.nodes)) > 1]
    if not jobs:
        return Planned({}, 0.0, 0.0, {})
    periods = problem.lifetimes or ((problem.horizon_s, problem.nodes),)
    spans = np.diff([0.0, *(seconds for seconds, _ in periods)])
    room = np.array([nodes for _, nodes in periods], dtype=np.float64)
    room[0] = problem.nodes  # all that is there may be used now
    steps = _steps(problem, {job.id for job in jobs}, spans)
    plans = _Plans(room)
    for j, each in enumerate(steps):
        plans.add(j, *each.nothing())
    bound = math.inf
    rounds = 0
    while rounds < MAX_PRICING_ROUNDS:
        rounds += 1
        prices, objective, duals = plans.relaxed(len(jobs))
        best = [each.best(prices) for each in steps]
        bound = min(bound, float(prices @ room) + sum(net for net, _, _ in best))
        if bound <= objective + MAX_RELATIVE_GAP * abs(objective):
            break
        for j, (net, sizes, worth) in enumerate(best):
            if net > duals[j] + 1e-12 * abs(bound):
                plans.add(j, sizes, worth)
    chosen, worth = plans.whole(len(jobs))
    gap = bound - worth
    if gap > MAX_RELATIVE_GAP * abs(bound):
        # Steps that alone lose more than the gap are in no better plan; of the others, the best for each size now.
        for j, each in enumerate(steps):
            for net, sizes, found in each.every(prices):
                if best[j][0] - net <= gap:
                    plans.add(j, sizes, found)
        chosen, worth = plans.whole(len(jobs))
    if chosen is None:
        return None
    sizes_of = {job.id: tuple(plans.sizes[row].tolist()) for job, row in zip(jobs, chosen, strict=True)}
    return Planned(sizes_of, worth, max(bound, worth), {"rounds": rounds, "plans": len(plans.worth)})


def _steps(problem: Problem, wanted: Collection[JobId], spans: Floats) -> list[_Steps]:
    """The steps of the jobs `wanted`, in order: each size's worth in each period, less the first period's change."""
    plain = tuple(replace(job, remaining_samples=None, doubt=0.0) for job in problem.jobs)
    whole = replace(problem, horizon_s=float(spans.sum()), jobs=plain, value=Value.ELASTIC, alpha=0.0, lifetimes=())
    table = value_table(whole)
    rate, _ = rates(whole, table)
    found = []
    for i, job in enumerate(whole.in_order()):
        if job.id in wanted:
            rows = slice(int(table.start[i]), int(table.start[i + 1]))
            weighted = job.weight * rate[rows]
            worth = spans[:, None] * weighted[None, :]
            worth[0] -= whole.horizon_s * weighted - table.value[rows]
            found.append(_Steps(table.size[rows], worth, job.shrink_s * weighted))
    return found


@dataclass(frozen=True)
class _Steps:
    """One job: its sizes, what each period at each size is worth, and what changes cost."""

    size: Ints
    worth: Floats  #: period x size; the cost of the change now is in the first period
    shrink: Floats  #: by the size that is shrunk to

    def nothing(self) -> tuple[Ints, float]:
        """No nodes at any time."""
        return np.zeros(len(self.worth), dtype=np.int64), float(self.worth[:, 0].sum())

    def best(self, prices: Floats) -> tuple[float, Ints, float]:
        """The steps that are best at these prices: what is left of them, sizes by period, and their worth."""
        total, goes = self._totals(prices)
        here = int(np.argmax(total))
        return float(total[here]), *self._path(here, goes)

    def every(self, prices: Floats) -> list[tuple[float, Ints, float]]:
        """As `best`, for each size now."""
        total, goes = self._totals(prices)
        return [(float(total[k]), *self._path(k, goes)) for k in range(len(total))]

    def _totals(self, prices: Floats) -> tuple[Floats, list[Ints]]:
        """What the best steps from each size now leave at these prices; and from each period and size, where to."""
        net = self.worth - prices[:, None] * self.size
        index = np.arange(net.shape[1])
        total = net[-1]
        goes: list[Ints] = []
        for of_period in net[-2::-1]:
            lower = total - self.shrink  # shrink to this size when the next period begins
            reach = np.maximum.accumulate(lower)
            at = np.maximum.accumulate(np.where(lower >= reach, index, 0))
            falls = np.concatenate(([False], reach[:-1] > total[1:]))
            goes.append(np.where(falls, np.concatenate(([0], at[:-1])), index))
            total = of_period + np.where(falls, np.concatenate(([-math.inf], reach[:-1])), total)
        return total, goes[::-1]

    def _path(self, first: int, goes: list[Ints]) -> tuple[Ints, float]:
        path = [first]
        for to in goes:
            path.append(int(to[path[-1]]))
        rows = np.array(path)
        shrunk = rows[1:][rows[1:] < rows[:-1]]
        worth = float(self.worth[np.arange(len(rows)), rows].sum() - self.shrink[shrunk].sum())
        return self.size[rows], worth


@dataclass
class _Plans:
    """The steps found so far, and the programmes over them."""

    room: Floats
    job: list[int] = field(default_factory=list)
    sizes: list[Ints] = field(default_factory=list)
    worth: list[float] = field(default_factory=list)

    def add(self, job: int, sizes: Ints, worth: float) -> None:
        self.job.append(job)
        self.sizes.append(sizes)
        self.worth.append(worth)

    def relaxed(self, jobs: int) -> tuple[Floats, float, Floats]:
        """Prices of the periods, the objective, and each job's dual, of the linear programme."""
        solver, scale = self._solved(jobs, whole=False)
        dual = -np.array(solver.getSolution().row_dual) * scale
        objective = -solver.getInfo().objective_function_value * scale
        return np.maximum(dual[jobs:], 0.0), float(objective), dual[:jobs]

    def whole(self, jobs: int) -> tuple[list[int] | None, float]:
        """One plan for each job, and what they are worth together."""
        solver, _ = self._solved(jobs, whole=True)
        if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None, -math.inf
        used = np.flatnonzero(np.array(solver.getSolution().col_value) > 0.5).tolist()
        chosen = sorted(used, key=lambda row: self.job[row])
        if [self.job[row] for row in chosen] != list(range(jobs)):
            return None, -math.inf
        return chosen, float(sum(self.worth[row] for row in chosen))

    def _solved(self, jobs: int, *, whole: bool) -> tuple[highspy.Highs, float]:
        count, periods = len(self.worth), len(self.room)
        scale = max(abs(value) for value in self.worth) or 1.0
        taken = np.array(self.sizes, dtype=np.float64)
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = count, jobs + periods
        model.col_cost_ = -np.array(self.worth) / scale
        model.col_lower_, model.col_upper_ = np.zeros(count), np.ones(count)
        model.row_lower_ = np.concatenate((np.ones(jobs), np.full(periods, -highspy.kHighsInf)))
        model.row_upper_ = np.concatenate((np.ones(jobs), self.room))
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.arange(0, (periods + 1) * (count + 1), periods + 1, dtype=np.int32)
        lines = np.broadcast_to(jobs + np.arange(periods), (count, periods))
        model.a_matrix_.index_ = np.column_stack((np.array(self.job), lines)).ravel().astype(np.int32)
        model.a_matrix_.value_ = np.column_stack((np.ones(count), taken)).ravel()
        if whole:
            model.integrality_ = [highspy.HighsVarType.kInteger] * count
        solver = new_solver(random_seed=0, mip_rel_gap=MAX_RELATIVE_GAP, mip_max_nodes=MAX_BRANCHES)
        solver.passModel(model)
        solver.run()
        return solver, scale
