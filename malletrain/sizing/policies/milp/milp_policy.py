"""Policy `milp`: prices first, then HiGHS over what they leave, then ties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.class_values import ClassTable, class_table
from malletrain.sizing.constraints import ConstraintRows, check, checked, constraint_rows, fallback, lower_ids_first
from malletrain.sizing.policies.milp.class_plan import near_plan
from malletrain.sizing.policies.milp.class_prices import class_prices
from malletrain.sizing.policies.milp.model import (
    FEW_BRANCHES,
    MAX_BRANCHED_ROWS,
    MAX_BRANCHES,
    MAX_ROWS_TO_SETTLE,
    MIN_BRANCHES,
    fewest_changes,
    least_loss,
)
from malletrain.sizing.policies.milp.pricing import NoPlan, Prices, best_prices
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import Ints, ValueRowCache, ValueTable, value_table

#: Plans within this part of the best are equally good, and the one with the fewest changes is taken.
RELATIVE_TIE = 1e-11
#: Limits for which cutting planes find the prices; with more, column generation does.
MAX_CUT_LINES = 12
#: Rows by class that HiGHS is given; with more the plan by exchanges stands, with its bound.
MAX_CLASS_ROWS = 2_000
#: Single exchanges tried for a first plan.
MAX_EXCHANGES = 200


class Milp(Policy):
    """Exact under any linear side constraint.

    1. Column generation prices the nodes and every constraint, and bounds the objective.
    2. HiGHS solves the small programme over the rows seen on the way: a good plan.
    3. Rows that alone lose more than that plan are dropped; HiGHS solves over the others. That is the optimum.
    4. Ties: as `exact` where only counts matter; under side constraints the fewest changes, then the fewest nodes,
       then the most nodes for the lower ids, by solves of their own.

    The best plan in hand is never thrown away: where HiGHS stops early the answer is FEASIBLE, with the bound.
    """

    name = "milp"
    handles_constraints = True
    places_classes = True
    weighs_horizon = True

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        if len(problem.classes) > 1:
            return checked(problem, sized_by_class(problem, class_table(problem)))
        table = value_table(problem, cache)
        if not table.ids:
            return Sizes(SizingStatus.OPTIMAL, 0.0, 0.0, {}, "no jobs")
        lines = constraint_rows(problem, table)
        plan = _known_plan(problem, table)
        prices = best_prices(table, lines, plan)
        if isinstance(prices, NoPlan):
            return fallback(problem, f"no sizes keep {' and '.join(prices.limits)}")
        search = _Search(table, lines, prices, plan)
        search.by_exchanges()
        if len(search.survivors()) > len(prices.seen):
            search.over(prices.seen, FEW_BRANCHES)
        survivors = search.survivors()
        branches = min(MAX_BRANCHES, max(MIN_BRANCHES, MAX_BRANCHED_ROWS // max(len(survivors), 1)))
        proven = search.gap <= RELATIVE_TIE * prices.scale or search.over(survivors, branches)
        if proven:
            search.least_loss = search.gap
        if search.plan is None:
            why = "no whole sizes keep the side constraints" if proven else "the solver's limit came before any plan"
            return fallback(problem, why)
        if problem.constraints:
            rows = lower_ids_first(problem, table, search.settled(search.plan))
            if table.worth(rows) < search.worth - 2 * RELATIVE_TIE * prices.scale:
                rows = search.plan
        else:
            price = knapsack.Price(float(prices.limit[0] / _node_unit(table)), prices.bound, prices.loss, 0)
            rows, _, _ = knapsack.least_loss(table, problem.nodes, price, max(prices.bound - search.worth, 0.0))
        worth = table.worth(rows)
        sizes = dict(zip(table.ids, table.size[rows].tolist(), strict=True))
        work = {"pricing_rounds": prices.rounds, "rows": len(table.size), "rows_left": len(survivors),
                "branches": search.branches}  # fmt: skip
        status = SizingStatus.OPTIMAL if proven else SizingStatus.FEASIBLE
        reason = "proven best" if proven else "best plan found within the solver's limits"
        bound = max(worth, prices.bound - search.least_loss)
        return checked(problem, Sizes(status, worth, bound, sizes, reason, work))


def sized_by_class(problem: Problem, classes: ClassTable) -> Sizes:
    """Nodes of each class for each job.

    Prices of classes and side constraints come from cutting planes where no limit is one from below, a first plan
    from exchanges; HiGHS looks at what survives, where that is not too much.
    """
    table = classes.values
    if not table.ids:
        return Sizes(SizingStatus.OPTIMAL, 0.0, 0.0, {}, "no jobs")
    limits = _class_limits(problem, classes)
    nothing = table.start[:-1].copy()
    looked = None
    if float(limits.coefficient.min(initial=0.0)) >= 0 and len(limits.upper) <= MAX_CUT_LINES:
        looked = class_prices(table, limits)
    prices = looked.prices if looked else best_prices(table, limits, nothing if limits.hold(nothing) else None)
    if isinstance(prices, NoPlan):
        return fallback(problem, f"no nodes keep {' and '.join(prices.limits)}")
    plan = near_plan(table, limits, looked) if looked else nothing if limits.hold(nothing) else None
    search = _Search(table, limits, prices, plan)
    if looked is None:
        search.by_exchanges()
    survivors = search.survivors()
    proven = search.gap <= RELATIVE_TIE * prices.scale
    if not proven and len(survivors) <= MAX_CLASS_ROWS:
        branches = min(MAX_BRANCHES, max(MIN_BRANCHES, MAX_BRANCHED_ROWS // max(len(survivors), 1)))
        proven = search.over(survivors, branches)
    elif not proven and looked is None:
        search.over(prices.seen, FEW_BRANCHES)
    if search.plan is None:
        return fallback(problem, "no whole sizes keep the side constraints")
    rows = search.plan
    worth = table.worth(rows)
    bound = max(worth, prices.bound - (search.gap if proven else search.least_loss))
    sizes = dict(zip(table.ids, table.size[rows].tolist(), strict=True))
    work = {"pricing_rounds": prices.rounds, "rows": len(table.size), "rows_left": len(survivors),
            "branches": search.branches}  # fmt: skip
    reason = "proven best by class of nodes" if proven else (
        f"by class of nodes, within {max(0.0, bound - worth) / max(abs(bound), 1e-300):.2g} of the best"
    )  # fmt: skip
    if proven and not classes.whole:
        reason = "best by class of nodes, of mixtures of two classes"
    status = SizingStatus.OPTIMAL if proven and classes.whole else SizingStatus.FEASIBLE
    return Sizes(
        status, worth, bound if classes.whole else np.inf, sizes, reason, work, classes=classes.classes_of(rows)
    )


def _class_limits(problem: Problem, classes: ClassTable) -> ConstraintRows:
    """The nodes of each class, and the problem's side constraints."""
    beside = constraint_rows(problem, classes.values)
    most = np.maximum(classes.counts.max(axis=1, initial=0), 1).astype(np.float64)
    supply = np.array([problem.classes[name] for name in classes.names], dtype=np.float64)
    return ConstraintRows(
        (*(f"nodes of class {name}" for name in classes.names), *beside.names[1:]),
        np.concatenate((classes.counts / most[:, None], beside.coefficient[1:])),
        np.concatenate((supply / most, beside.upper[1:])),
    )


def _node_unit(table: ValueTable) -> float:
    """What `limits` divides the line of nodes by."""
    return float(table.size.max(initial=0)) or 1.0


def _known_plan(problem: Problem, table: ValueTable) -> Ints | None:
    """The present sizes cut to the live nodes, or no nodes for anyone, if they keep the side constraints."""
    for sizes in (fallback(problem, "").sizes, dict.fromkeys(table.ids, 0)):
        if not check(problem, sizes) and table.has(sizes):
            return table.rows_of(dict(sizes))
    return None


@dataclass
class _Search:
    """The best plan so far, and what is proven."""

    table: ValueTable
    limits: ConstraintRows
    prices: Prices
    plan: Ints | None
    least_loss: float = 0.0  # no plan loses less, once all survivors were looked at
    branches: int = 0

    @property
    def worth(self) -> float:
        return -np.inf if self.plan is None else self.table.worth(self.plan)

    @property
    def gap(self) -> float:
        """What the best plan loses at most against the bound."""
        return max(self.prices.bound - self.worth, 0.0)

    def survivors(self) -> Ints:
        """Rows that some plan as good as the best so far could use."""
        slack = RELATIVE_TIE * self.prices.scale
        return np.flatnonzero(self.prices.loss <= self.gap + slack)

    def by_exchanges(self) -> None:
        """A first plan without any solver: what the prices like best, or the known plan, and exchanges of one job's
        size that keep every limit."""
        table, limits = self.table, self.limits
        rows = np.flatnonzero(self.prices.loss <= RELATIVE_TIE * self.prices.scale)
        _, leanest = np.unique(table.row_job[rows], return_index=True)
        for start in (rows[leanest], self.plan):
            if start is None or not limits.hold(start):
                continue
            plan, spare = start.copy(), limits.upper - limits.use(start)
            for _ in range(MAX_EXCHANGES):
                now = plan[table.row_job]
                gain = table.value - table.value[now]
                more = limits.coefficient - limits.coefficient[:, now]
                gain[np.any(more > spare[:, None] + 1e-12, axis=0)] = -np.inf
                row = int(np.argmax(gain))
                if gain[row] <= RELATIVE_TIE * self.prices.scale:
                    break
                spare -= more[:, row]
                plan[table.row_job[row]] = row
            if limits.hold(plan) and table.worth(plan) > self.worth:
                self.plan = plan

    def over(self, rows: Ints, branches: int) -> bool:
        """Looks for a better plan among `rows`. Returns whether it is proven that they hold no better one."""
        rows = rows if self.plan is None else np.union1d(rows, self.plan)
        gap = self.gap if np.isfinite(self.gap) else self.prices.scale
        found = least_loss(self.table, self.limits, self.prices, rows, self.plan, gap, branches)
        self.branches += found.branches
        if found.rows is not None and self.table.worth(found.rows) > self.worth:
            self.plan = found.rows
        self.least_loss = min(found.least_loss, self.gap)
        return found.proven

    def settled(self, plan: Ints) -> Ints:
        """The plan of the fewest changes among the equally good ones."""
        slack = RELATIVE_TIE * self.prices.scale
        rows = np.union1d(self.survivors(), plan)
        if len(rows) > MAX_ROWS_TO_SETTLE:
            return plan
        found = fewest_changes(self.table, self.limits, self.prices, rows, plan, self.gap, slack)
        self.branches += found.branches
        return plan if found.rows is None else found.rows
