"""The seam between the replay's columns and the policies: present counts in, next counts out."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from malletrain.decide.rules import AccountBudget
from malletrain.domain.decision import SizingStatus
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve
from malletrain.replay.policy_inputs import BudgetAccounts, ClassesOfNodes
from malletrain.replay.workload import TrainingJob
from malletrain.sizing import knapsack
from malletrain.sizing.batching import best_batch, equal_sample_worth, statistical_efficiency
from malletrain.sizing.constrained import size_within_constraints
from malletrain.sizing.objective import Objective, alpha_of, urgencies_by_rank, urgency_by_rest
from malletrain.sizing.policy import Need, Policy, require_inputs
from malletrain.sizing.problem import Due, JobDemand, Problem, Sizes, Value
from malletrain.sizing.registry import policy as registered
from malletrain.sizing.values import Bools, Floats, Ints, ValueRowCache, value_table

#: BFTrainer's published default, kept for comparison (facts of its repository; here 120 to 600 s pay best).
BFTRAINER_HORIZON_S = 10.0

ONE_NODE = "one-node"


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """By place in `live`: `allowed`, which of the sizes 0, 1, ... a job may have now, where not all; `must`, which
    jobs must have nodes before anything that others gain."""

    allowed: Mapping[int, Bools]
    must: frozenset[int]


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy as the command line names it: `exact`, `bftrainer`, or with a horizon `exact:120`. `unlimited`: none
    of the daemon's rules bind it."""

    name: str
    policy: str
    horizon_s: float
    value: Value = Value.ELASTIC
    alpha: float = 0.0
    objective: Objective = Objective.THROUGHPUT
    unlimited: bool = False


def parse_policy(
    text: str,
    horizon_s: float | None,
    alpha: float = 0.0,
    objective: Objective = Objective.THROUGHPUT,
    usual_horizon_s: float = 300.0,
) -> PolicyChoice:
    """Reads `NAME[:HORIZON]`. Besides the policies by name: `bftrainer` is the published objective, solved exactly,
    at its own horizon of 10 s; `one-node` gives each job its least size; `ideal-machine` sizes exactly, and is a
    bound: none of the daemon's rules (`Options.rules`) limit it.
    Raises InvalidInput: no such policy, or no sound horizon."""
    name, colon, available = text.strip().partition(":")
    alpha = alpha_of(objective, alpha)
    own = BFTRAINER_HORIZON_S if name == "bftrainer" else usual_horizon_s
    horizon = own if horizon_s is None else horizon_s
    if colon:
        try:
            horizon = float(available)
        except ValueError:
            horizon = -1.0
    if not 0 < horizon < 1e7:
        raise InvalidInput("--policy", f"{text.strip()!r}: the horizon must be a number of seconds above 0")
    if name == "bftrainer":
        return PolicyChoice(text.strip(), "exact", horizon, Value.BFTRAINER, alpha)
    if name == ONE_NODE:
        return PolicyChoice(text.strip(), ONE_NODE, horizon)
    if name == "ideal-machine":  # that none of the daemon's rules limit: the upper bound of what a daemon can reach
        return PolicyChoice(text.strip(), "exact", horizon, Value.ELASTIC, alpha, objective, unlimited=True)
    registered(name)
    return PolicyChoice(text.strip(), name, horizon, Value.ELASTIC, alpha, objective)


#: Objectives whose weights change with what jobs have left.
BY_REST = frozenset({Objective.JCT, Objective.SRPT})
#: Answers of a policy that are kept: where a cap on pilots binds, half of a replay's questions come again.
MAX_KEPT_ANSWERS = 4096
MAX_KEPT_DEMANDS = 1 << 16


class PolicySizer:
    """Asks a policy of `malletrain.sizing`, as the daemon does, for new sizes of the jobs `live` (numbers into the
    workload), which hold `counts` nodes, when `nodes` are there in all. `bounds`: what the daemon's rules ask for
    besides.

    Each job's value is weighed by 1/O(1), so that the objective is the sum of speed-ups: in raw samples a fast model
    would starve the others. Demands are kept by (job, size): building them anew would cost more than solving.
    The samples that remain are left out: a value capped by them makes a job that ends within the horizon worth the
    same on any number of nodes, and so leaves nodes idle (on Summit's events, 60 jobs of mix nas: 19 % longer JCT).
    """

    def __init__(
        self, choice: PolicyChoice, jobs: Sequence[TrainingJob], budgets: Sequence[AccountBudget] = ()
    ) -> None:
        self._policy = policy_of(choice)
        self.choice, self._jobs = choice, jobs
        self._budgets = BudgetAccounts(budgets, jobs) if budgets else None
        #: Node-seconds that each job has held so far; for budgets.
        self.used: Callable[[], Floats] | None = None
        #: When it is to be asked again though nothing has changed (Unix seconds).
        self.review_at = math.inf
        self._demands: dict[tuple[int, int], JobDemand] = {}
        #: Samples that a job has left (inf: it is endless), as the replay has it; for `jct` and `srpt`.
        self.left: Callable[[int], float] | None = None
        #: What time it is (Unix seconds), for policies that keep deadlines.
        self.clock: Callable[[], float] | None = None
        self._cache = ValueRowCache()
        self._bounded: dict[tuple[int, int, int], tuple[JobDemand, Bools]] = {}
        self._answers: dict[Hashable, tuple[list[int], SizeBounds | None]] = {}
        # A replay has no side constraints: the core is asked at once.
        self._is_knapsack = self._policy.is_knapsack and choice.objective not in BY_REST and self._budgets is None

    def __call__(
        self, live: Sequence[int], counts: Sequence[int], nodes: int, bounds: SizeBounds | None = None
    ) -> list[int]:
        choice = self.choice
        if self._is_knapsack:
            return self._exact(live, counts, nodes, bounds)
        demands = tuple(self._demand(j, count) for j, count in zip(live, counts, strict=True))
        if bounds is not None:
            demands = tuple(_bounded(each, i, bounds) for i, each in enumerate(demands))
        if choice.objective in BY_REST and self.left is not None:
            demands = tuple(self._urgent(live, demands, self.left))
        if Need.DEADLINES in self._policy.needs and self.clock is not None and self.left is not None:
            now = self.clock()
            demands = tuple(self._due(j, each, now, self.left(j)) for j, each in zip(live, demands, strict=True))
        problem = Problem(choice.horizon_s, nodes, demands, choice.value, choice.alpha)
        if self._budgets is not None and self.used and self.clock and self.left:
            now = self.clock()
            caps, budgets = self._budgets.terms(live, demands, self.used(), self.left, now, choice.horizon_s)
            problem = replace(problem, constraints=caps, budgets=budgets)
            self.review_at = self._budgets.next_review(now, choice.horizon_s)
        sizes = size_within_constraints(self._policy, problem)[0].sizes
        return [sizes[self._jobs[j].job.id] for j in live]

    def by_class(self, classes: ClassesOfNodes, live: Sequence[int], held: Ints, supply: Sequence[int]) -> Ints:
        """New nodes of each class (columns) for each of `live` (rows), which hold `held`, when `supply` are there."""
        choice = self.choice
        demands = [self._demand(j, int(sum(mine))) for j, mine in zip(live, held.tolist(), strict=True)]
        if choice.objective in BY_REST and self.left is not None:
            demands = self._urgent(live, demands, self.left)
        asked = tuple(
            classes.demand(self._jobs[j], each, mine)
            for j, each, mine in zip(live, demands, held.tolist(), strict=True)
        )
        counts = dict(zip(classes.names, supply, strict=True))
        problem = Problem(choice.horizon_s, sum(supply), asked, choice.value, choice.alpha, classes=counts)
        answer = size_within_constraints(self._policy, problem)[0]
        found = np.zeros_like(held)
        for i, j in enumerate(live):
            of = answer.classes.get(self._jobs[j].job.id, {})
            found[i] = [of.get(name, 0) for name in classes.names]
        return found

    def _exact(self, live: Sequence[int], counts: Sequence[int], nodes: int, bounds: SizeBounds | None) -> list[int]:
        """What policy `exact` answers, or has answered to the same question."""
        allowed, must = ({}, frozenset[int]()) if bounds is None else (bounds.allowed, bounds.must)
        # By identity: what a kept answer's jobs may have is kept with it.
        key = (tuple(live), tuple(counts), nodes, must, tuple((at, id(may)) for at, may in allowed.items()))
        known = self._answers.get(key)
        if known is not None:
            return known[0]
        demands = tuple(
            self._demand_within(j, count, allowed.get(at))
            for at, (j, count) in enumerate(zip(live, counts, strict=True))
        )
        choice = self.choice
        table = value_table(Problem(choice.horizon_s, nodes, demands, choice.value, choice.alpha), self._cache)
        if must:  # no nodes cost each of them more than all jobs can gain
            places = np.isin(table.ids, [self._jobs[live[at]].job.id for at in must]).nonzero()[0]
            table.value[table.start[places]] -= 2.0 * np.abs(table.value).max(initial=0.0) * len(live) + 1.0
        best = knapsack.solve(table, nodes, self._cache.price)
        self._cache.price = best.price
        sizes = dict(zip(table.ids, table.size[best.rows].tolist(), strict=True))
        if len(self._answers) >= MAX_KEPT_ANSWERS:
            self._answers.clear()
        answer = [sizes[self._jobs[j].job.id] for j in live]
        self._answers[key] = answer, bounds
        return answer

    def _demand_within(self, j: int, count: int, may: Bools | None) -> JobDemand:
        """With the sizes that it may have now. The same each time, so that its values are those kept."""
        if may is None:
            return self._demand(j, count)
        key = j, count, id(may)
        if key not in self._bounded:
            if len(self._bounded) >= MAX_KEPT_DEMANDS:
                self._bounded.clear()
            self._bounded[key] = _with_sizes(self._demand(j, count), may), may
        return self._bounded[key][0]

    def _due(self, j: int, each: JobDemand, now: float, left: float) -> JobDemand:
        deadline = self._jobs[j].job.deadline
        return each if deadline is None else replace(each, due=Due(max(0.0, deadline - now), max(0.0, left)))

    def _urgent(
        self, live: Sequence[int], demands: Sequence[JobDemand], left: Callable[[int], float]
    ) -> list[JobDemand]:
        rests = [left(j) / self._jobs[j].curve.of_one for j in live]
        if self.choice.objective is Objective.SRPT:
            urgencies = urgencies_by_rank(rests)
        else:
            urgencies = [urgency_by_rest(rest if math.isfinite(rest) else None, 0.0) for rest in rests]
        return [replace(each, weight=each.weight * by) for each, by in zip(demands, urgencies, strict=True)]

    def _demand(self, j: int, count: int) -> JobDemand:
        known = self._demands.get((j, count))
        if known is None:
            known = self._demands[(j, count)] = demand(self._jobs[j], count)
        return known


class OneNode(Policy):
    """The baseline without malleability: every job has its least number of nodes, in the order of ids while there are
    nodes; one that runs goes before one that waits."""

    name = ONE_NODE

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        sizes, left = {job.id: 0 for job in problem.jobs}, problem.nodes
        for job in sorted(problem.in_order(), key=lambda job: job.current < job.min):
            if job.min <= left:
                sizes[job.id] = job.min
                left -= job.min
        return Sizes(SizingStatus.FEASIBLE, 0.0, math.inf, sizes, "the fewest nodes of each")


def policy_of(choice: PolicyChoice) -> Policy:
    """The policy that sizes the jobs by that choice."""
    return OneNode() if choice.policy == ONE_NODE else registered(choice.policy)


#: Where a replay has what policies need from.
_REMEDIES = {
    Need.BATCHES: "give jobs batches in --jobs",
    Need.NOISE_SCALE: "give jobs a noise_scale in --jobs",
    Need.DEADLINES: "give jobs a deadline_s in --jobs",
    Need.BUDGETS: "give replay.budget",
    Need.NODE_CLASSES: "give replay.node_class",
}


def require_replay_inputs(
    choices: Sequence[PolicyChoice],
    jobs: Sequence[TrainingJob],
    budgets: Sequence[AccountBudget] = (),
    *,
    has_classes: bool = False,
) -> None:
    """Refuse policies that lack inputs: a replay has what jobs and options give.
    Raises InvalidInput: naming the policy, and what is missing."""
    has = {
        Need.DEADLINES: any(each.job.deadline is not None for each in jobs),
        Need.BATCHES: any(each.batches for each in jobs),
        Need.NOISE_SCALE: any(each.noise_scale is not None for each in jobs),
        Need.BUDGETS: bool(budgets),
        Need.NODE_CLASSES: has_classes,
    }
    available = {need for need in has if has[need]}
    for policy in map(policy_of, choices):
        missing = [need for need in Need if need in policy.needs - available]
        remedies = [_REMEDIES[need] for need in missing if need in _REMEDIES]
        remedy = " and ".join(remedies) if len(remedies) == len(missing) else "a replay has none"
        require_inputs(policy, available, "--policy", f"{remedy}, or choose another policy")


def trained_curve(each: TrainingJob, choice: PolicyChoice | None) -> Curve:
    """What the job really trains at each size: progress at the batch that the policy chooses there, or at its own
    batch where the policy chooses none. None: with the best batch at each size, whatever policy."""
    needs = frozenset({Need.BATCHES, Need.NOISE_SCALE}) if choice is None else policy_of(choice).needs
    if not each.batches or Need.BATCHES not in needs:
        return each.curve
    asked = demand(each, 0)
    worth = statistical_efficiency if Need.NOISE_SCALE in needs else equal_sample_worth
    points = []
    for nodes in range(1, each.job.max_nodes + 1):
        batch = best_batch(asked, nodes, worth)
        points.append((nodes, dict(each.batches)[batch].throughput(nodes) * statistical_efficiency(asked, batch)))
    return Curve(tuple(points))


def _bounded(job: JobDemand, at: int, bounds: SizeBounds) -> JobDemand:
    if at in bounds.must:
        job = replace(job, must_run=True)
    return _with_sizes(job, bounds.allowed[at]) if at in bounds.allowed else job


def _with_sizes(job: JobDemand, may: Bools) -> JobDemand:
    sizes = job.sizes or range(max(1, job.min), job.max + 1)
    return replace(job, sizes=tuple(k for k in sizes if may[min(k, len(may) - 1)]) or (0,))


def demand(each: TrainingJob, count: int) -> JobDemand:
    """A job that holds `count` nodes, as policies get it."""
    return JobDemand(
        id=each.job.id,
        current=count,
        min=each.job.min_nodes,
        max=each.job.max_nodes,
        curve=each.curve,
        sizes=each.job.sizes,
        weight=each.job.weight / each.curve.of_one,
        grow_s=each.costs.grow_s,
        shrink_s=each.costs.shrink_s,
        activate_s=each.costs.activate_s,
        batches=each.batches,
        noise_scale=each.noise_scale,
    )


def speedups(each: TrainingJob, most: int, trained: Curve | None = None) -> Floats:
    """O(k)/O(1) for k = 0..most; 0 where the job may not run on k nodes. `trained`: O(k), where it is not that of the
    job's own batch; O(1) always is."""
    unit, curve = each.curve.of_one, trained or each.curve
    rates = [curve.throughput(k) / unit if each.job.permits(k) else 0.0 for k in range(most + 1)]
    return np.array(rates)
