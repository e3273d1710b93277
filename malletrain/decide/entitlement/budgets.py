"""Budgets of node-hours: an account's for each day, week or month, and a job's own.

What is left of a budget, R node-seconds, bounds the nodes of its jobs together over the horizon T:

    sum_j k_j  <=  floor(R / T)

so a budget is never overspent: sizes shrink as it runs out, and when less than one node for one horizon is left,
nothing runs on it. Periods are calendar ones in UTC; weeks begin on Monday. Policy `budget` gets R itself, the work
that is left of each job, the seconds that are left of the period, and what usually arrives in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from malletrain.domain.decision import Refusal
from malletrain.domain.job import JobView
from malletrain.sizing.constraints import cap
from malletrain.sizing.problem import ArrivingWork, JobDemand, LinearLimit, NodeBudget


class Period(StrEnum):
    """How long a budget lasts before it is there anew."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def begin(self, now: float) -> float:
        """When the period that `now` is in began (Unix seconds)."""
        day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self is Period.WEEK:
            day -= timedelta(days=day.weekday())
        return (day.replace(day=1) if self is Period.MONTH else day).timestamp()

    def end(self, now: float) -> float:
        """When the next one begins."""
        days = {Period.DAY: 1, Period.WEEK: 7, Period.MONTH: 32}[self]
        later = datetime.fromtimestamp(self.begin(now), UTC) + timedelta(days=days)
        return self.begin(later.timestamp())


@dataclass(frozen=True, slots=True)
class AccountBudget:
    """`node_s` node-seconds a period for the jobs of `accounts` together. `name` is what reasons call it."""

    name: str
    accounts: frozenset[str]
    node_s: float
    period: Period


@dataclass(frozen=True, slots=True)
class NodeTimeSpent:
    """Node-seconds that were used: in the present period by the name of the budget, and in all by each job that has
    a budget of its own. `arriving`: by the name of the budget, jobs such as its accounts have submitted lately."""

    by_budget: Mapping[str, float] = field(default_factory=dict)
    by_job: Mapping[int, float] = field(default_factory=dict)
    arriving: Mapping[str, tuple[ArrivingWork, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """What budgets make of one problem: `caps` for every policy, `left` for policy `budget`, and `refusals` for jobs
    that nothing is left for."""

    caps: tuple[LinearLimit, ...] = ()
    left: tuple[NodeBudget, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def binding(self, sizes: Mapping[int, int]) -> list[str]:
        """The caps that leave no room for another node."""
        held = [(each, sum(sizes.get(int(job), 0) for job in each.coefficients)) for each in self.caps]
        return [each.name for each, nodes in held if nodes + 1 > each.upper]


def budgets_for(
    budgets: Sequence[AccountBudget],
    spent: NodeTimeSpent,
    views: Mapping[int, JobView],
    demands: Sequence[JobDemand],
    horizon_s: float,
    now: float,
) -> BudgetTerms:
    """The budgets of the jobs that want nodes now."""
    found: list[tuple[str, list[JobDemand], float, str]] = []
    periods: dict[str, tuple[float, tuple[ArrivingWork, ...]]] = {}
    for budget in budgets:
        mine = [demand for demand in demands if views[int(demand.id)].job.account in budget.accounts]
        left = max(0.0, budget.node_s - spent.by_budget.get(budget.name, 0.0))
        again = datetime.fromtimestamp(budget.period.end(now), UTC)
        what = f"{budget.node_s / 3600:.4g} node-hours a {budget.period}, anew on {again:%Y-%m-%d}"
        found.append((f"budget {budget.name}", mine, left, what))
        rest_s = budget.period.end(now) - now
        periods[f"budget {budget.name}"] = (rest_s, spent.arriving.get(budget.name, ()))
    for demand in demands:
        job = views[int(demand.id)].job
        if job.budget_node_s is not None:
            left = job_budget_left_s(job.budget_node_s, spent.by_job.get(job.id, 0.0))
            found.append((f"budget of job {job.id}", [demand], left, f"{job.budget_node_s / 3600:.4g} node-hours"))
    caps: list[LinearLimit] = []
    said: list[Refusal] = []
    for name, mine, left, what in found:
        most = affordable_nodes(left, horizon_s)
        if not mine or most >= sum(demand.max for demand in mine):
            continue
        caps.append(cap(f"{name} ({left / 3600:.4g} of {what}, left)", [demand.id for demand in mine], most))
        if most < min(max(1, demand.min) for demand in mine):
            said += [Refusal(f"job {demand.id}", f"{name} is spent ({what})") for demand in mine]
    rest = tuple(
        NodeBudget(
            name,
            frozenset(demand.id for demand in mine),
            left,
            {demand.id: work_left_s(views[int(demand.id)], horizon_s) for demand in mine},
            *periods.get(name, ()),
        )
        for name, mine, left, _ in found
        if mine
    )
    return BudgetTerms(tuple(caps), rest, tuple(said))


def work_left_s(view: JobView, least_s: float) -> float:
    """Seconds that the job's remaining work takes on one node. Where it is not known, as long as it has trained (of
    what has lasted long more is left: Lindy's law), at least `least_s`."""
    one = (view.curve.throughput(1) if view.curve else 0.0) or 1.0
    total = view.job.total_samples
    if total is None or view.curve is None:
        return max(least_s, view.samples_done / one if view.curve else 0.0)
    return max(0.0, total - view.samples_done) / one


def affordable_nodes(left_s: float, horizon_s: float) -> int:
    """How many nodes `left_s` node-seconds last for `horizon_s`; without a horizon, none once nothing is left."""
    if horizon_s > 0:
        return math.floor(left_s / horizon_s)
    return math.floor(left_s)


def job_budget_left_s(budget_s: float, spent_s: float) -> float:
    """Node-seconds that a job may still use."""
    return max(0.0, budget_s - spent_s)
