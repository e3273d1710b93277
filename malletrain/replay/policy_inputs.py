"""What a replay gives to policies that need more than curves: budgets of node-hours, as the daemon has them
(`malletrain.decide.limits`), and nodes of several classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from malletrain.decide.limits import affordable_nodes
from malletrain.decide.rules import AccountBudget, Period
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve
from malletrain.loop.trackers.account_usage import arriving, submitted_work
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.class_values import RatesOnClasses, class_table
from malletrain.sizing.constraints import cap
from malletrain.sizing.problem import JobDemand, LinearLimit, NodeBudget, OnClasses, Problem, Synchronous
from malletrain.sizing.values import Floats

_BUDGET = re.compile(r"(?:(?P<account>[^=/\s]+)=)?(?P<hours>\d+(?:\.\d+)?)/(?P<period>day|week|month)$")


def parse_budget(text: str, jobs: Sequence[TrainingJob]) -> AccountBudget:
    """Reads `[ACCOUNT=]NODE_HOURS/PERIOD`; without an account it is for all jobs together.
    Raises InvalidInput: not of that form, or no job is of that account."""
    found = _BUDGET.match(text.strip())
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
        self._begun: dict[str, tuple[float, Floats]] = {}
        self._submitted = [submitted_work(each.job, each.curve, 0.0, _whole_work_s(each)) for each in jobs]

    def next_review(self, now: float, horizon_s: float) -> float:
        """When sizes are to be looked at again though nothing has changed (Unix seconds)."""
        return min([now + horizon_s, *(budget.period.end(now) for budget in self._budgets)])

    def terms(
        self,
        live: Sequence[int],
        demands: Sequence[JobDemand],
        used: Floats,
        left: Callable[[int], float],
        now: float,
        horizon_s: float,
    ) -> tuple[tuple[LinearLimit, ...], tuple[NodeBudget, ...]]:
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
            budgets.append(
                NodeBudget(
                    f"budget {budget.name}",
                    frozenset(ids),
                    rest,
                    work,
                    budget.period.end(now) - now,
                    arriving(budget.accounts, self._submitted, now),
                )
            )
        return tuple(caps), tuple(budgets)

    def _spent(self, budget: AccountBudget, used: Floats, now: float) -> float:
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


_NODE_CLASS = re.compile(r"(?P<name>[^=\s]+)=(?P<first>\d{1,7}):(?P<last>\d{1,7})(?:@(?P<speed>\d+(?:\.\d+)?))?$")


@dataclass(frozen=True, slots=True)
class NodeClass:
    """The nodes from number `first` up to `last` (by name, counted from 0 in the window); `speed`: how many times as
    fast jobs are on them that say nothing of classes themselves."""

    name: str
    first: int
    last: int
    speed: float = 1.0


def parse_node_class(text: str) -> NodeClass:
    """Reads `NAME=A:B[@SPEED]`.
    Raises InvalidInput: not of that form."""
    found = _NODE_CLASS.match(text.strip())
    if found is None or int(found["last"]) <= int(found["first"]) or float(found["speed"] or 1.0) <= 0:
        raise InvalidInput(
            "replay.node_class", f"{text!r} is not of the form NAME=A:B or NAME=A:B@SPEED, such as a100=0:64@3"
        )
    return NodeClass(found["name"], int(found["first"]), int(found["last"]), float(found["speed"] or 1.0))


class ClassesOfNodes:
    """`names`: the classes in order; `of_node`: the class number of each node."""

    def __init__(self, classes: Sequence[NodeClass], nodes: int) -> None:
        """Raises:
        InvalidInput: a class twice, or nodes of none or of two.
        """
        self.names = tuple(sorted(each.name for each in classes))
        if len(set(self.names)) < len(self.names) or len(self.names) < 2:
            raise InvalidInput("replay.node_class", "two classes at least, each once")
        self.speed = {each.name: each.speed for each in classes}
        self.of_node = np.full(nodes, -1, np.int64)
        for each in classes:
            if (self.of_node[each.first : each.last] >= 0).any():
                raise InvalidInput("replay.node_class", f"nodes of {each.name} are of another class, too")
            self.of_node[each.first : each.last] = self.names.index(each.name)
        if (self.of_node < 0).any():
            first = int(np.flatnonzero(self.of_node < 0)[0])
            raise InvalidInput("replay.node_class", f"node number {first} of {nodes} is of no class")

    def on(self, each: TrainingJob) -> OnClasses:
        """How the job runs on each class: by its own curves, else by the classes' speeds."""
        if each.on_classes is not None:
            return each.on_classes
        return OnClasses(
            {name: Curve(tuple((n, rate * self.speed[name]) for n, rate in each.curve.points)) for name in self.names}
        )

    def demand(self, each: TrainingJob, asked: JobDemand, held: Sequence[int]) -> JobDemand:
        """The demand with the job's curves by class, and of its nodes how many are of which."""
        current = {name: int(k) for name, k in zip(self.names, held, strict=True) if k}
        on = replace(self.on(each), current=current)
        return replace(asked, current=sum(current.values()), on_classes=on, synchronous=_by_ring(on))


def _by_ring(on: OnClasses) -> Synchronous:
    """The job as TPDS has it (policy `matching`): each class by its rate of one node, a ring by what its slowest
    class loses at its widest."""
    rates = {name: curve.throughput(1) for name, curve in sorted(on.curves.items())}
    slow = min(rates, key=lambda name: rates[name])
    nodes, rate = on.curves[slow].points[-1]
    lost = 1.0 / rate - 1.0 / (rates[slow] * nodes) if rate > 0 and rates[slow] > 0 and nodes > 1 else 0.0
    return Synchronous(1.0, rates, max(0.0, lost * nodes / (nodes - 1)) if nodes > 1 else 0.0)


class RatesByClass:
    """What jobs, of whom these are the `demands`, train on nodes of several classes."""

    def __init__(self, classes: ClassesOfNodes, jobs: Sequence[TrainingJob], demands: Sequence[JobDemand]) -> None:
        self._classes, self._jobs = classes, jobs
        self._on = [classes.on(each) for each in jobs]
        self._demands = [
            replace(demand, current=0, on_classes=on, activate_s=0.0)
            for demand, on in zip(demands, self._on, strict=True)
        ]
        self._rates = [RatesOnClasses(demand, classes.names) for demand in self._demands]
        self._known: dict[tuple[int, tuple[int, ...]], float] = {}
        self._best: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def samples_per_s(self, j: int, world: tuple[int, ...]) -> float:
        """Of job j on so many nodes of each class; 0 where it may not run on them."""
        key = (j, world)
        if key not in self._known:
            total = sum(world)
            mixture = [name for name, k in zip(self._classes.names, world, strict=True) if k]
            fewest = self._on[j].min.get(mixture[0], 0) if len(mixture) == 1 else 0
            may = self._jobs[j].job.permits(total) and total >= fewest
            self._known[key] = float(self._rates[j].at(np.array([world]).T)[0]) if may else 0.0
        return self._known[key]

    def ideal(self, live: tuple[int, ...], supply: tuple[int, ...]) -> float:
        """The best sum of speed-ups at no cost, of the jobs `live` on so many idle nodes of each class: the bound
        that the solver proves."""
        if not live or not sum(supply):
            return 0.0
        key = (live, supply)
        if key not in self._best:
            counts = dict(zip(self._classes.names, supply, strict=True))
            # Imported here: a solver costs a tenth of a second to load.
            from malletrain.sizing.policies.milp.milp_policy import sized_by_class

            problem = Problem(1.0, sum(supply), tuple(self._demands[j] for j in live), classes=counts)
            answer = sized_by_class(problem, class_table(problem))
            self._best[key] = answer.bound if np.isfinite(answer.bound) else answer.objective
        return self._best[key]
