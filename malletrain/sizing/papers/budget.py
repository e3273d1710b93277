"""Policy `budget`: node-time within a budget, spent where it shortens jobs most (after BOA Constrictor: Li, Zhu,
Mukhopadhyay, Harchol-Balter, Berg, arXiv 2602.01404).

With s(k) = O(k)/O(1), x the seconds that the job's remaining work takes on one node, w its weight, job j on k nodes
takes x/s(k) seconds and x k/s(k) node-seconds:

    minimise  sum_j w_j x_j / s_j(k_j)    subject to  sum_j x_j k_j / s_j(k_j) <= B

Under one price mu of a node-second this falls apart into  k_j = argmin_k (w_j + mu k) / s_j(k).  The price is found
by bisection. At the budget some jobs stand between two adjacent widths: in the order of ids they get the wider one
while the budget lasts. The nodes of the cluster, which the paper rents without limit, are a second constraint,
sum_j k_j <= N, with a price nu of its own on each node held:  argmin_k w_j x_j / s_j(k) + mu x_j k / s_j(k) + nu k.

Budgets are those of the problem (`Problem.budgets`: node-seconds left to a group of jobs, an account's for its
period); jobs outside any are bound by the nodes alone. What arrives in the rest of the period (lambda_i jobs a second
of class i, for T seconds) is paid from it too, as in the paper's average over time:

    sum_j x_j k_j / s_j(k_j)  +  T sum_i lambda_i x_i k_i / s_i(k_i)  <=  B,    k_i at the same price

so a job's width hardly depends on who else is there. Where the budget is too small even for the cheapest widths of
all, who is there comes before who may come. A job whose remaining work is not known counts with one horizon on one
node. A job that no budget or node is left for gets none; the last ids go first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constraints import plan_of
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import NodeBudget, Problem, Sizes
from malletrain.sizing.values import Bools, Floats, Ints, ValueRowCache, ValueTable, rates, value_table


class Budget(Policy):
    """A width for each job at the price of a node-second that just spends the budget."""

    name = "budget"
    needs = frozenset({Need.BUDGETS})

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        table = value_table(problem, cache)
        if not table.ids:
            return Sizes(SizingStatus.FEASIBLE, 0.0, math.inf, {}, "no jobs")
        widths = _Widths.of(problem, table)
        price = np.zeros(len(table.ids))
        rows = widths.at(price, 0.0)
        said = []
        for budget in problem.budgets:
            mine = np.array([job in budget.jobs for job in table.ids], dtype=np.bool_)
            held = widths.node_seconds * mine[table.row_job]
            coming = _Coming.of(budget)
            at = partial(widths.at_least, price, mine)
            rows, mu = _within(table, rows, held, budget.node_s, at, coming.node_seconds)
            price = np.where(mine, np.maximum(price, mu), price)
            said.append(f"{budget.name}: a node-second costs {mu:.3g} s")
        nodes = table.size.astype(np.float64)
        rows, nu = _within(table, rows, nodes, float(problem.nodes), lambda nu: widths.at(price, nu))
        said.append(f"a node costs {nu:.3g} s")
        return plan_of(problem, table, rows, "; ".join(said))


@dataclass(frozen=True)
class _Widths:
    """Weighted seconds and node-seconds to a job's end of every row; rows that train nothing never end."""

    table: ValueTable
    seconds: Floats
    node_seconds: Floats

    @staticmethod
    def of(problem: Problem, table: ValueTable) -> _Widths:
        jobs = problem.in_order()
        rate, of_one = rates(problem, table)
        of_budgets = {job: work for budget in problem.budgets for job, work in budget.left.items()}
        left = [
            of_budgets.get(j.id, horizon) if j.remaining_samples is None else j.remaining_samples
            for j, horizon in zip(jobs, (problem.horizon_s * of_one).tolist(), strict=True)
        ]
        trains = (table.size > 0) & (rate > 0)
        took = np.where(trains, np.array(left)[table.row_job] / np.where(trains, rate, 1.0), np.inf)
        weight = np.array([job.weight for job in jobs], dtype=np.float64)[table.row_job]
        held = np.where(table.size > 0, took * np.maximum(table.size, 1), 0.0)
        return _Widths(table, np.where(trains, weight * np.where(trains, took, 0.0), np.inf), held)

    def at_least(self, price: Floats, mine: Bools, mu: float) -> Ints:
        """The best rows when the jobs in `mine` pay at least `mu`."""
        return self.at(np.where(mine, np.maximum(price, mu), price), 0.0)

    def at(self, price: Floats, node_price: float) -> Ints:
        """The best row of each job at these prices; of equals the fewest nodes; none where nothing trains."""
        table, of_row = self.table, self.table.row_job
        trains = np.isfinite(self.seconds)
        spent = price[of_row] * np.where(trains, self.node_seconds, 0.0) + node_price * table.size
        cost = np.where(trains, self.seconds + spent, np.inf)
        best = np.minimum.reduceat(cost, table.start[:-1])
        hit = np.flatnonzero((cost <= best[of_row]) & trains)
        job, first = np.unique(of_row[hit], return_index=True)
        rows = table.start[:-1].copy()
        rows[job] = hit[first]
        return rows


@dataclass(frozen=True)
class _Coming:
    """What arrives while a budget lasts: of every arriving job (`first`: its first row) seconds and node-seconds by
    size, times how many come."""

    seconds: Floats
    node_s: Floats
    first: Ints
    job: Ints

    @staticmethod
    def of(budget: NodeBudget) -> _Coming:
        seconds: list[float] = []
        node_s: list[float] = []
        first: list[int] = []
        for each in budget.arriving:
            rows = [(k, speedup) for k, speedup in each.curve.points if speedup > 0]
            count = each.per_s * budget.seconds
            if not rows or count * each.work_s <= 0:
                continue
            first.append(len(seconds))
            seconds += [each.weight * count * each.work_s / speedup for _, speedup in rows]
            node_s += [count * each.work_s * k / speedup for k, speedup in rows]
        start = np.array(first, dtype=np.int64)
        count_of = np.diff(np.append(start, len(seconds)))
        return _Coming(np.array(seconds), np.array(node_s), start, np.repeat(np.arange(len(start)), count_of))

    def node_seconds(self, mu: float) -> float:
        """What arriving jobs use in all at that price, each at its best size."""
        if not len(self.first):
            return 0.0
        cost = self.seconds + mu * self.node_s
        best = np.minimum.reduceat(cost, self.first)
        hit = np.flatnonzero(cost <= best[self.job])
        _, at = np.unique(self.job[hit], return_index=True)
        return float(self.node_s[hit[at]].sum())


def _within(
    table: ValueTable,
    rows: Ints,
    use: Floats,
    most: float,
    at: Callable[[float], Ints],
    others_use: Callable[[float], float] = lambda _: 0.0,
) -> tuple[Ints, float]:
    """Rows that use at most `most` in all, and the price that does it. No job gets more nodes than in `rows`.
    `beside`: what others use at a price, from the same."""

    def used(chosen: Ints) -> float:
        return float(use[chosen].sum())

    def priced(mu: float) -> Ints:
        return np.minimum(rows, at(mu))

    if used(rows) + others_use(0.0) <= most:
        return rows, 0.0
    low, high = 0.0, 1e12
    for _ in range(100):
        mu = math.sqrt(low * high) if low > 0 else high / 1e6 if high > 1e-12 else high / 2
        low, high = (mu, high) if used(priced(mu)) + others_use(mu) > most else (low, mu)
    lean, wide = priced(high), priced(low)
    most = max(most - others_use(high), min(most, used(lean)))
    if used(lean) > most:  # even the cheapest widths are too dear
        lean, wide = np.where(use[lean] > 0, table.start[:-1], lean), lean
    out, spent = lean.copy(), used(lean)
    for job in np.flatnonzero(wide > lean).tolist():
        more = float(use[wide[job]] - use[lean[job]])
        if spent + more <= most:
            out[job] = wide[job]
            spent += more
    return out, high
