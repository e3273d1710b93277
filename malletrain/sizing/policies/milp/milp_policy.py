"""Policy `milp`: prices first, then HiGHS over what they leave, then ties."""

from __future__ import annotations

import numpy as np

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.class_values import ClassTable, class_table
from malletrain.sizing.constraints import ConstraintRows, check, checked, constraint_rows, fallback, plan_of
from malletrain.sizing.policies.milp.model import FEW_BRANCHES, Programme
from malletrain.sizing.policies.milp.pricing import Prices, best_prices
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import Ints, ValueRowCache, ValueTable, value_table

#: Plans within this part of the best are equally good, and the one with the fewest changes is taken.
RELATIVE_TIE = 1e-11
#: Rows that HiGHS is given at once: those of least loss; with more, nothing is proven, and ties are not settled.
MAX_ROWS = 2_000
#: Rows times branching nodes after which the best plan so far is taken: a limit in work is the same on every machine.
MAX_BRANCHED_ROWS = 300_000
#: Branching nodes at most and at least, however few or many rows there are.
MAX_BRANCHES, MIN_BRANCHES = 5_000, 100


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

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        if len(problem.classes) > 1:
            return checked(problem, sized_by_class(problem, class_table(problem)))
        table = value_table(problem, cache)
        if not table.ids:
            return Sizes(SizingStatus.OPTIMAL, 0.0, 0.0, {}, "no jobs")
        search = _searched(table, constraint_rows(problem, table), _known_plan(problem, table))
        if isinstance(search, str):
            return fallback(problem, search)
        assert search.plan is not None
        prices = search.prices
        if problem.constraints:
            rows = search.settled(search.plan)
            if table.worth(rows) < search.worth - 2 * RELATIVE_TIE * prices.scale:
                rows = search.plan
        else:
            unit = float(table.size.max(initial=0)) or 1.0  # what `limits` divides the line of nodes by
            price = knapsack.Price(float(prices.limit[0] / unit), prices.bound, prices.loss, 0)
            rows, _, _ = knapsack.least_loss(table, problem.nodes, price, max(prices.bound - search.worth, 0.0))
        status = SizingStatus.OPTIMAL if search.proven else SizingStatus.FEASIBLE
        reason = "proven best" if search.proven else "best plan found within the solver's limits"
        bound = max(table.worth(rows), prices.bound - search.least_loss)
        return plan_of(problem, table, rows, reason, status, bound, work=search.work)


def sized_by_class(problem: Problem, classes: ClassTable) -> Sizes:
    """Nodes of each class for each job."""
    table = classes.values
    if not table.ids:
        return Sizes(SizingStatus.OPTIMAL, 0.0, 0.0, {}, "no jobs")
    limits, nothing = _class_limits(problem, classes), table.start[:-1].copy()
    search = _searched(table, limits, nothing if limits.hold(nothing) else None)
    if isinstance(search, str):
        return fallback(problem, search)
    assert search.plan is not None
    rows = search.leanest(search.plan)
    worth = table.worth(rows)
    bound = max(worth, search.prices.bound - search.least_loss)
    sizes = dict(zip(table.ids, table.size[rows].tolist(), strict=True))
    gap = max(0.0, bound - worth) / max(abs(bound), 1e-300)
    reason = "proven best by class of nodes" if search.proven else f"by class of nodes, within {gap:.2g} of the best"
    if search.proven and not classes.whole:
        reason = "best by class of nodes, of mixtures of two classes"
    status = SizingStatus.OPTIMAL if search.proven and classes.whole else SizingStatus.FEASIBLE
    bound = bound if classes.whole else np.inf
    return Sizes(status, worth, bound, sizes, reason, search.work, classes=classes.classes_of(rows))


def _class_limits(problem: Problem, classes: ClassTable) -> ConstraintRows:
    """The nodes of each class, and the problem's side constraints."""
    side = constraint_rows(problem, classes.values)
    most = np.maximum(classes.counts.max(axis=1, initial=0), 1).astype(np.float64)
    supply = np.array([problem.classes[name] for name in classes.names], dtype=np.float64)
    return ConstraintRows(
        (*(f"nodes of class {name}" for name in classes.names), *side.names[1:]),
        np.concatenate((classes.counts / most[:, None], side.coefficient[1:])),
        np.concatenate((supply / most, side.upper[1:])),
    )


def _known_plan(problem: Problem, table: ValueTable) -> Ints | None:
    """The present sizes cut to the live nodes, or no nodes for anyone, if they keep the side constraints."""
    for sizes in (fallback(problem, "").sizes, dict.fromkeys(table.ids, 0)):
        if not check(problem, sizes) and table.has(sizes):
            return table.rows_of(dict(sizes))
    return None


def _searched(table: ValueTable, limits: ConstraintRows, plan: Ints | None) -> _Search | str:
    """The best plan that is found, from `plan` on, if there is one to begin with; why there is none, in words."""
    prices = best_prices(table, limits, plan)
    if isinstance(prices, tuple):
        return f"no sizes keep {' and '.join(prices)}"
    search = _Search(table, limits, prices, plan)
    if len(search.survivors()) > len(prices.seen):
        search.over(prices.seen, FEW_BRANCHES)
    if len(search.survivors()) > MAX_ROWS:
        search.over(np.sort(np.argpartition(prices.loss, MAX_ROWS)[:MAX_ROWS]), FEW_BRANCHES)
    survivors = search.survivors()
    search.work |= {"rows_left": len(survivors)}
    search.proven = search.gap <= RELATIVE_TIE * prices.scale
    if not search.proven and len(survivors) <= MAX_ROWS:
        branches = min(MAX_BRANCHES, max(MIN_BRANCHES, MAX_BRANCHED_ROWS // max(len(survivors), 1)))
        search.proven = search.over(survivors, branches)
    elif not search.proven:
        search.least_loss = 0.0
    if search.proven:
        search.least_loss = search.gap
    else:
        search.by_exchanges()
    if search.plan is None:
        done = "no whole sizes keep the side constraints"
        return done if search.proven else "the solver's limit came before any plan"
    return search


class _Search:
    """The best plan so far, and what is proven: no plan loses less than `least_loss`, once all survivors were looked
    at."""

    def __init__(self, table: ValueTable, limits: ConstraintRows, prices: Prices, plan: Ints | None) -> None:
        self.table, self.limits, self.prices, self.plan = table, limits, prices, plan
        self.programme = Programme(table, limits, prices)
        self.proven, self.least_loss = False, 0.0
        self.work = {"pricing_rounds": prices.rounds, "rows": len(table.size), "rows_left": 0, "branches": 0}

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
        """A plan without any solver: what the prices like best, or the best so far, and exchanges of one job's size
        that keep every limit."""
        table, limits = self.table, self.limits
        rows = np.flatnonzero(self.prices.loss <= RELATIVE_TIE * self.prices.scale)
        _, leanest = np.unique(table.row_job[rows], return_index=True)
        for start in (rows[leanest], self.plan):
            if start is None or not limits.hold(start):
                continue
            plan, spare = start.copy(), limits.upper - limits.use(start)
            for _ in range(200):  # where HiGHS stopped before it had proven a plan
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
        found = self.programme.least_loss(rows, self.plan, gap, branches)
        self.work["branches"] += found.branches
        if found.rows is not None and self.table.worth(found.rows) > self.worth:
            self.plan = found.rows
        self.least_loss = min(found.least_loss, self.gap)
        return found.proven

    def leanest(self, plan: Ints) -> Ints:
        """The plan in which each job keeps what it has, or has its fewest nodes, where that is as good for it."""
        table, use = self.table, self.limits.coefficient
        now = plan[table.row_job]
        as_good = table.value >= table.value[now] - RELATIVE_TIE * self.prices.scale
        rows = np.flatnonzero(as_good & np.all(use <= use[:, now], axis=0))
        rows = rows[np.lexsort((table.size[rows], table.changed[rows], table.row_job[rows]))]
        return rows[np.unique(table.row_job[rows], return_index=True)[1]]

    def settled(self, plan: Ints) -> Ints:
        """The plan of the fewest changes among the equally good ones."""
        slack = RELATIVE_TIE * self.prices.scale
        rows = np.union1d(self.survivors(), plan)
        if len(rows) > MAX_ROWS:
            return plan
        found = self.programme.fewest_changes(rows, plan, self.gap, slack)
        self.work["branches"] += found.branches
        return plan if found.rows is None else found.rows
