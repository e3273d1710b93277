"""Budgets of node-hours in a replay, as the daemon has them (`malletrain.decide.limits`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.limits import affordable_nodes
from malletrain.decide.rules import AccountBudget, Period
from malletrain.domain.errors import InvalidInput
from malletrain.loop.trackers.account_usage import SubmittedWork, submitted_work
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.constraints import cap
from malletrain.sizing.problem import JobDemand, LinearLimit, NodeBudget

_FORM = re.compile(r"(?:(?P<account>[^=/\s]+)=)?(?P<hours>\d+(?:\.\d+)?)/(?P<period>day|week|month)$")


def parse_budget(text: str, jobs: Sequence[TrainingJob]) -> AccountBudget:
    """Reads `[ACCOUNT=]NODE_HOURS/PERIOD`; without an account it is for all jobs together.

    Raises:
        InvalidInput: not of that form, or no job is of that account.
    """
    found = _FORM.match(text.strip())
    if found is None:
        raise InvalidInput("replay.budget", f"{text!r} is not of the form [ACCOUNT=]NODE_HOURS/day, week or month")
    accounts = frozenset(each.job.account for each in jobs)
    if found["account"] is not None:
        if found["account"] not in accounts:
            raise InvalidInput("replay.budget", f"no job is of account {found['account']!r} (key account of --jobs)")
        accounts = frozenset({found["account"]})
    name = found["account"] or "all"
    return AccountBudget(name, accounts, 3600.0 * float(found["hours"]), Period(found["period"]))


class BudgetAccounts:
    """What is left of each budget while a replay goes on."""

    def __init__(self, budgets: Sequence[AccountBudget], jobs: Sequence[TrainingJob]) -> None:
        self._budgets, self._jobs = budgets, jobs
        self._begun: dict[str, tuple[float, NDArray[np.float64]]] = {}
        self._submitted = [submitted_work(each.job, each.curve, 0.0, _whole_work_s(each)) for each in jobs]

    def next_review(self, now: float, horizon_s: float) -> float:
        """When sizes are to be looked at again though nothing has changed (Unix seconds)."""
        return min([now + horizon_s, *(budget.period.end(now) for budget in self._budgets)])

    def terms(
        self, live: Sequence[int], demands: Sequence[JobDemand], used: NDArray[np.float64],
        left: Callable[[int], float], now: float, horizon_s: float,
    ) -> tuple[tuple[LinearLimit, ...], tuple[NodeBudget, ...]]:  # fmt: skip
        """Caps for every policy, and budgets for policy `budget`. `used`: node-seconds of each job since the replay
        began; `left(j)`: samples that a job has left, inf where it is endless."""
        caps: list[LinearLimit] = []
        budgets: list[NodeBudget] = []
        for budget in self._budgets:
            mine = [i for i, j in enumerate(live) if self._jobs[j].job.account in budget.accounts]
            rest = max(0.0, budget.node_s - self._spent(budget, used, now))
            if not mine:
                continue
            ids = [demands[i].id for i in mine]
            most = affordable_nodes(rest, horizon_s)
            if most < sum(demands[i].max for i in mine):
                caps.append(cap(f"budget {budget.name}", ids, most))
            work = {demands[i].id: self._work(live[i], left(live[i]), horizon_s) for i in mine}
            seen = [each for each in self._submitted if each is not None and each.at <= now]
            arriving = SubmittedWork().arriving(budget.accounts, seen, now)
            budgets.append(
                NodeBudget(
                    f"budget {budget.name}", frozenset(ids), rest, work, budget.period.end(now) - now, arriving
                )
            )
        return tuple(caps), tuple(budgets)

    def _spent(self, budget: AccountBudget, used: NDArray[np.float64], now: float) -> float:
        began = budget.period.begin(now)
        if budget.name not in self._begun or self._begun[budget.name][0] < began:
            before = used.copy() if budget.name in self._begun else np.zeros_like(used)
            self._begun[budget.name] = began, before
        since = used - self._begun[budget.name][1]
        return float(sum(since[j] for j, each in enumerate(self._jobs) if each.job.account in budget.accounts))

    def _work(self, j: int, left: float, horizon_s: float) -> float:
        """Samples that a job is taken to have left: an endless one those of one horizon on one node, as in the policy
        itself; with more, whatever is left of the budget would be too little for it."""
        one = self._jobs[j].curve.throughput(1) or 1.0
        return max(0.0, left) if math.isfinite(left) else one * horizon_s


def _whole_work_s(each: TrainingJob) -> float:
    """Seconds of all its work on one node; 0 where it is endless, or trains nothing there."""
    one, total = each.curve.throughput(1), each.job.total_samples
    return total / one if total is not None and one > 0 else 0.0
