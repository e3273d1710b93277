"""Who may have how many nodes, whatever training gains: a site's limits, budgets, and turns of jobs that wait too
long.

What is left of a budget, R node-seconds, bounds the nodes of its jobs together over the horizon T,
sum_j k_j <= floor(R / T): it is never overspent, and nothing runs on it when less than one node for one horizon is
left. Periods are calendar ones in UTC; weeks begin on Monday.

Most throughput may be had without a job for ever: it scales badly, or needs many nodes to start. So a job that has
had no node for `max_wait_s` is starving: it comes before all that others could gain (`JobDemand.must_run`), the
longest waiting first, as far as the nodes reach. Once it runs it keeps that rank for `turn_s`, or it would stop at
the next decision. Of n whose fewest nodes do not fit together, each has waited at most
max_wait_s + n (turn_s + a tick)  whenever the pool holds the nodes of the one whose turn it is.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.rules import Rules
from malletrain.domain.decision import Refusal
from malletrain.domain.job import JobView
from malletrain.sizing.constraints import cap, guaranteed_share
from malletrain.sizing.problem import ArrivingWork, JobDemand, LinearLimit, NodeBudget
from malletrain.sizing.values import permitted_sizes


def constraints_for(
    rules: Rules, views: Mapping[int, JobView], demands: Sequence[JobDemand], nodes: int
) -> tuple[LinearLimit, ...]:
    """The constraints of one problem by the site's limits and its `user_share`; those that no sizes could break are
    left out."""
    found: list[LinearLimit] = []
    for limit in rules.limits:
        mine = [demand for demand in demands if limit.covers(views[int(demand.id)])]
        ids = [demand.id for demand in mine]
        if mine and limit.most_nodes is not None and _most(mine, nodes) > limit.most_nodes:
            found.append(cap(f"{limit.name} (most_nodes)", ids, limit.most_nodes))
        if mine and limit.least_nodes:
            found.append(guaranteed_share(f"{limit.name} (least_nodes)", mine, limit.least_nodes, nodes))
        if mine and limit.available is not None:
            drawn = dict.fromkeys(ids, limit.per_node)  # watts, licences
            found.append(LinearLimit(f"{limit.name} (available)", drawn, limit.available))
    return (*found, *_shares_of_users(rules, views, demands, nodes))


def _shares_of_users(
    rules: Rules, views: Mapping[int, JobView], demands: Sequence[JobDemand], nodes: int
) -> Iterator[LinearLimit]:
    """What each of several users holds at most: his share; more where nodes would stand idle else, and the minimum of
    his least job: in any case, or where jobs take turns (`max_wait_s`) during the turn of such a job only. Else a job
    that says that it needs every node would have them as long as the others are patient."""
    users: dict[str, list[JobDemand]] = {}
    for demand in demands:
        users.setdefault(views[int(demand.id)].job.user, []).append(demand)
    if rules.user_share >= 1.0 or len(users) < 2:
        return
    part, wants = math.floor(rules.user_share * nodes), {user: _most(mine, nodes) for user, mine in users.items()}
    share = max(part, _fair_level(list(wants.values()), nodes))
    in_turns = rules.max_wait_s > 0
    # The fewest nodes of each user's jobs that may have these beyond his share.
    allowed = {user: [max(d.min, 1) for d in mine if d.must_run or not in_turns] for user, mine in users.items()}
    # Who cannot run on his share waits for his turn; what he would have had the others may hold.
    waiting = {user for user, mine in users.items() if not allowed[user] and min(max(d.min, 1) for d in mine) > share}
    others = max(part, _fair_level([want for user, want in wants.items() if user not in waiting], nodes))
    for user, mine in sorted(users.items()):
        most = share if user in waiting else max(others, min(allowed[user], default=1))
        if wants[user] > most:
            yield cap(f"user {user} (sizing.user_share)", [demand.id for demand in mine], most)


def caps_of_unfit(
    unfit: Mapping[int, Collection[str]], demands: Sequence[JobDemand], nodes: int
) -> tuple[LinearLimit, ...]:
    """Jobs that cannot have some of the `nodes` nodes hold no more than the rest, together: for each set of such
    nodes, the jobs that cannot have any of it. `unfit`: by job, the nodes that it cannot have."""
    of = [(demand, frozenset(unfit.get(int(demand.id), ()))) for demand in demands]
    found: list[LinearLimit] = []
    for barred in dict.fromkeys(filter(None, (nodes_of for _, nodes_of in of))):
        mine, most = [demand for demand, nodes_of in of if nodes_of >= barred], nodes - len(barred)
        if _most(mine, nodes) > most:
            names = ", ".join(f"job {demand.id}" for demand in mine[:3]) + (", ..." if len(mine) > 3 else "")
            found.append(cap(f"nodes that {names} can have", [demand.id for demand in mine], most))
    return tuple(found)


def _fair_level(wants: Sequence[int], nodes: int) -> int:
    """The least number of nodes that each user may hold so that, together, they can hold all that they want, or all
    there are (max-min fairness)."""
    enough = min(nodes, sum(wants))
    return bisect_left(range(nodes + 1), enough, key=lambda level: sum(min(want, level) for want in wants))


def _most(demands: Sequence[JobDemand], nodes: int) -> int:
    return min(nodes, sum(demand.max for demand in demands))


@dataclass(frozen=True, slots=True)
class NodeTimeSpent:
    """Node-seconds that were used: in the present period by the name of the budget, and in all by each job that has
    a budget of its own. `arriving`: by the name of the budget, jobs such as its accounts have submitted lately."""

    by_budget: Mapping[str, float] = field(default_factory=dict)
    by_job: Mapping[int, float] = field(default_factory=dict)
    arriving: Mapping[str, tuple[ArrivingWork, ...]] = field(default_factory=dict)


class BudgetTerms(NamedTuple):
    """What budgets make of one problem: `caps` for every policy, `left` for policy `budget`, and `refusals` for jobs
    that nothing is left for."""

    caps: tuple[LinearLimit, ...]
    left: tuple[NodeBudget, ...]
    refusals: tuple[Refusal, ...]

    def binding(self, sizes: Mapping[int, int]) -> list[str]:
        """The caps that leave no room for another node."""
        held = [(each, sum(sizes.get(int(job), 0) for job in each.coefficients)) for each in self.caps]
        return [each.name for each, nodes in held if nodes + 1 > each.upper]


def budgets_for(
    rules: Rules, spent: NodeTimeSpent, views: Mapping[int, JobView], demands: Sequence[JobDemand], now: float
) -> BudgetTerms:
    """The budgets of the jobs that want nodes now."""
    found: list[tuple[str, list[JobDemand], float, str, tuple[float, tuple[ArrivingWork, ...]] | None]] = []
    for budget in rules.budgets:
        mine = [demand for demand in demands if views[int(demand.id)].job.account in budget.accounts]
        left, end = max(0.0, budget.node_s - spent.by_budget.get(budget.name, 0.0)), budget.period.end(now)
        anew = f"a {budget.period}, anew on {datetime.fromtimestamp(end, UTC):%Y-%m-%d}"
        what = f"{budget.node_s / 3600:.4g} node-hours {anew}"
        found.append((f"budget {budget.name}", mine, left, what, (end - now, spent.arriving.get(budget.name, ()))))
    for demand in demands:
        job = views[int(demand.id)].job
        if job.budget_node_s is not None:
            left = max(0.0, job.budget_node_s - spent.by_job.get(job.id, 0.0))
            what = f"{job.budget_node_s / 3600:.4g} node-hours"
            found.append((f"budget of job {job.id}", [demand], left, what, None))
    caps: list[LinearLimit] = []
    rest: list[NodeBudget] = []
    spent_up: list[Refusal] = []
    for name, mine, left, what, period in found:
        ids, most = [demand.id for demand in mine], affordable_nodes(left, rules.horizon_s)
        if not mine:
            continue
        work = {demand.id: work_left_s(views[int(demand.id)], rules.horizon_s) for demand in mine}
        rest.append(NodeBudget(name, frozenset(ids), left, work, *(period or ())))
        if most < sum(demand.max for demand in mine):
            caps.append(cap(f"{name} ({left / 3600:.4g} of {what}, left)", ids, most))
        if most < min(max(1, demand.min) for demand in mine):
            spent_up += [Refusal(f"job {job}", f"{name} is spent ({what})") for job in ids]
    return BudgetTerms(tuple(caps), tuple(rest), tuple(spent_up))


def work_left_s(view: JobView, least_s: float) -> float:
    """Seconds that the job's remaining work takes on one node. Where it is not known, as long as it has trained (of
    what has lasted long more is left: Lindy's law), at least `least_s`."""
    left = view.left_s
    return max(least_s, view.done_s if view.curve else 0.0) if left is None else left


def affordable_nodes(left_s: float, horizon_s: float) -> int:
    """How many nodes `left_s` node-seconds last for `horizon_s`; without a horizon, none once nothing is left."""
    return math.floor(left_s / horizon_s if horizon_s > 0 else left_s)


class Waits(NamedTuple):
    """Jobs in columns: their numbers, whether each keeps nodes at this look, whether it has any, since when it has
    some or none (Unix seconds), and how long it had waited before it got the last."""

    job: NDArray[np.int64]
    keeps: NDArray[np.bool_]
    has: NDArray[np.bool_]
    nodes_since: NDArray[np.float64]
    waited_s: NDArray[np.float64]


def on_turn_or_starving(
    waits: Waits, nodes: int, now: float, max_wait_s: float, turn_s: float, fewest: Callable[[int, int], int]
) -> frozenset[int]:
    """The jobs that must have nodes now: on their turn, then the longest waiting, as long as their fewest fit.
    `fewest(job, left)`: the fewest nodes that it may have of `left`; 0 where it may have none."""
    since = now - waits.nodes_since
    on_turn = waits.keeps & (waits.waited_s >= max_wait_s) & (since < turn_s)
    starving = ~waits.keeps & ~waits.has & (since >= max_wait_s)
    jobs, nodes_since = waits.job.tolist(), waits.nodes_since.tolist()
    claims = [(False, -float(since[i]), jobs[i]) for i in on_turn.nonzero()[0].tolist()]
    claims += [(True, nodes_since[i], jobs[i]) for i in starving.nonzero()[0].tolist()]
    found, left = set(), nodes
    for _, _, job in sorted(claims):
        if least := fewest(job, left):
            found.add(job)
            left -= least
    return frozenset(found)


def starving_jobs(
    views: Mapping[int, JobView], demands: Sequence[JobDemand], nodes: int, now: float, rules: Rules
) -> frozenset[int]:
    """The jobs that must have nodes now: on their turn, then the longest waiting, as long as their fewest fit."""
    if rules.max_wait_s <= 0:
        return frozenset()
    by_job = {int(demand.id): demand for demand in demands}
    mine = [views[job] for job in by_job]
    waits = Waits(
        np.array(list(by_job), np.int64),
        np.array([demand.current > 0 for demand in demands], np.bool_),
        np.array([bool(view.active) for view in mine], np.bool_),
        np.array([view.nodes_since for view in mine], np.float64),
        np.array([view.waited_s for view in mine], np.float64),
    )

    def fewest(job: int, left: int) -> int:
        return int(permitted_sizes(by_job[job], left)[1:2].sum())

    return on_turn_or_starving(waits, nodes, now, rules.max_wait_s, rules.turn_s, fewest)
