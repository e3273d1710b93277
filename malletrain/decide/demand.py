"""Malleable jobs as the sizing problem sees them, and their nodes as yielding does.

Most jobs are the same at one decision as at the last, so what follows from a job alone is remembered as long as the
job's view is: with a `DecisionCache` or without, the answer is the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import is_

from malletrain.decide.multi_node_pilots import whole_sizes
from malletrain.decide.nodes_left import HarvestedNode
from malletrain.decide.rules import Rules
from malletrain.domain.job import Curve, Elastic, JobPhase, JobView, Pilot, Profile
from malletrain.domain.snapshot import Snapshot
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.class_curves import curves_on_classes
from malletrain.learn.curve import expected_speedup
from malletrain.sizing.constrained import size_within_constraints
from malletrain.sizing.objective import Objective, rest_by_attained, urgency_by_rest
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Due, JobDemand, OnClasses, Problem, Sizes
from malletrain.sizing.values import ValueRowCache, mean_interval_s


@dataclass
class DecisionCache:
    """What was made of each job at the last decision, the snapshot that it saw, and its sizing. Not thread-safe; one
    loop has one."""

    rows: ValueRowCache = field(default_factory=ValueRowCache)
    snapshot: Snapshot | None = None
    _demands: dict[int, tuple[tuple[object, ...], tuple[object, ...], JobDemand]] = field(default_factory=dict)
    _sized: tuple[Policy, Problem, tuple[Sizes, tuple[str, ...]]] | None = None

    def look(self, snapshot: Snapshot) -> None:
        """Take the snapshot in, made ready by what the last one was."""
        self.snapshot = snapshot.after(self.snapshot)

    def sized(self, policy: Policy, problem: Problem) -> tuple[Sizes, tuple[str, ...]]:
        """As `size_within_constraints`: policies are stateless, so an equal problem has the same answer."""
        last = self._sized
        if last is None or last[0] is not policy or last[1] != problem:
            last = self._sized = (policy, problem, size_within_constraints(policy, problem, self.rows))
        return last[2]

    def demand(
        self, view: JobView, stays: Sequence[Pilot], known: JobKnowledge, rules: Rules, width: int = 1,
        narrowest: int = 1, interval_s: float | None = None,
    ) -> JobDemand:  # fmt: skip
        """One job as the sizing problem sees it. It cannot get more nodes than it has tasks for, and grows by pilots
        of `width` nodes, or of `narrowest` at least; a stall has to pay within `interval_s` (None: the horizon).

        Throughput counts in speed-ups over one node: samples of different models do not compare, and of a job that
        was never measured they are not known.
        """
        terms = len(stays), width, narrowest, interval_s
        # By identity: comparing what a job is would cost as much as making its demand.
        of = view, known.fit, known.prior_jobs, rules.objective, rules.account_weights, rules.probing
        last = self._demands.get(view.job.id)
        if last is not None and last[1] == terms and all(map(is_, last[0], of)):
            return last[2]
        demand = _demand(view, stays, known, rules, width, narrowest, interval_s)
        if not view.co_allocated:  # else it matters which pilots stay, not only how many
            self._demands[view.job.id] = of, terms, demand
        return demand

    def forget_all_but(self, live: Mapping[int, JobView]) -> None:
        """Jobs that are over are not asked for again."""
        for job_id in self._demands.keys() - live.keys():
            del self._demands[job_id]


def may_train(view: JobView) -> bool:
    """Whether the job wants nodes, and has tasks for its fewest."""
    tasks = view.held_count + len(view.staying)
    return view.phase in (JobPhase.QUEUED, JobPhase.RUNNING) and tasks >= max(1, view.job.min_nodes)


#: A learned cost that forbids a change is doubted after so long (seconds) without one.
RETRY_S = 1800.0


def explored(demand: JobDemand, view: JobView, horizon_s: float, now: float) -> JobDemand:
    """The demand with learned costs of more than half the horizon doubted: a change that these forbid would never be
    measured again. Of the horizon no more than a half counts after `RETRY_S` without a change, then a quarter, ..."""
    since = view.worlds_at[-1] if demand.current and view.worlds_at else view.turned_at
    tries = min(10, int(max(0.0, now - since) // RETRY_S))
    if not tries or max(demand.grow_s, demand.activate_s) <= horizon_s / 2:
        return demand
    most = horizon_s * 0.5**tries
    return replace(demand, grow_s=min(demand.grow_s, most), activate_s=min(demand.activate_s, most))


def change_interval_s(view: JobView, horizon_s: float, now: float) -> float | None:
    """How long a job that is restarted keeps its nodes in the mean between two changes, in seconds; None: the horizon
    serves. Worlds that follow each other within a restart are one change. Rounded down to a quarter of a power of
    two, so that a demand stays the same for a while."""
    if view.job.elastic is not Elastic.RESTART or not view.worlds_at or horizon_s <= 0:
        return None
    restart_s = max(view.costs.grow_s, view.costs.shrink_s)
    changes = sum(after - before > restart_s for before, after in pairwise(view.worlds_at))
    mean_s = mean_interval_s(horizon_s, max(0.0, now - view.worlds_at[0]), changes)
    return horizon_s * math.exp2(math.floor(math.log2(mean_s / horizon_s) * 4 + 1e-9) / 4)


def _demand(
    view: JobView, stays: Sequence[Pilot], known: JobKnowledge, rules: Rules, width: int, narrowest: int,
    interval_s: float | None,
) -> JobDemand:  # fmt: skip
    job, windows = view.job, known.windows.get(len(stays), 0) if known.fit else 0
    most = min(job.max_nodes, len(stays) + view.held_count)
    one = _rate_of_one(view)
    # What remains is left out: a job that ends within the horizon would be worth the same on any number of nodes,
    # and nodes would stand idle (replayed, 60 NAS children: mean completion 33,242 s with it, 27,774 s without).
    return JobDemand(
        id=job.id,
        current=len(stays),
        min=job.min_nodes,
        max=most,
        sizes=whole_sizes(stays, job.min_nodes, most, tuple(k for k in job.sizes if k <= most), width, narrowest),
        weight=weight_of(view, rules),
        doubt=known.fit.noise / math.sqrt(windows) if known.fit and windows else 0.0,
        grow_s=view.costs.grow_s,
        shrink_s=view.costs.shrink_s,
        activate_s=view.costs.start_s + view.costs.activate_s,
        curve=expected_curve(view, known, rules).over_one(),
        batches=tuple((batch, Curve(tuple((n, rate / one) for n, rate in of.points))) for batch, of in view.batches),
        noise_scale=view.noise_scale,
        interval_s=interval_s,
    )


def on_classes(
    demand: JobDemand, stays: Sequence[Pilot], known: JobKnowledge, classes: Sequence[str],
    class_of: Mapping[str, str], speeds: Mapping[tuple[str, str], float], view: JobView,
) -> OnClasses:  # fmt: skip
    """How a job runs on each class, in the units of its demand: speed-ups over one node as its curve has it.

    A job may train on several classes at once: of a step each node has an equal share, so the slowest class gates it;
    of independent items each takes as many as it can.
    """
    main, one = known.fit.node_class if known.fit is not None else "", _rate_of_one(view)
    scaled = Curve(tuple((n, rate * one) for n, rate in demand.curve.points))
    by_items = view.job.elastic is Elastic.TASKS
    curves = curves_on_classes(classes, scaled, main, known.by_class, speeds, demand.max, balanced=by_items)
    return OnClasses(
        {name: Curve(tuple((n, rate / one) for n, rate in curve.points)) for name, curve in curves.items()},
        dict(sorted(Counter(class_of[pilot.node] for pilot in stays).items())),
        least_on(view.job.class_min, classes),
        spans=True,
        equal_shares=not by_items,
    )


def least_on(asked: Sequence[tuple[str, int]], classes: Sequence[str]) -> Mapping[str, int]:
    """The fewest nodes of each of `classes`, by words `asked` for with a number: a word names every class that has
    it, or has it as a part of its GRES (`k80` the class `gpu:k80:4 64 cpus`)."""
    parts = {name: {*name.split(), *re.split("[:, ]", name)} for name in classes}
    least = {name: max((nodes for word, nodes in asked if word in parts[name]), default=0) for name in classes}
    return {name: nodes for name, nodes in least.items() if nodes}


def due_of(view: JobView, now: float) -> Due | None:
    """What is left until the job's deadline, in the units of its demand; None where it has none."""
    job = view.job
    if job.deadline is None or job.total_samples is None:
        return None
    one = _rate_of_one(view)
    return Due(max(0.0, job.deadline - now), max(0.0, job.total_samples - view.samples_done) / one)


def weight_of(view: JobView, rules: Rules) -> float:
    """The job's weight with its account's, and its urgency where that follows from the job alone."""
    job = view.job
    weight = job.weight * rules.account_weights.get(job.account, 1.0)
    if rules.objective is not Objective.JCT:
        return weight
    return weight * urgency_by_rest(left_s(view), done_s(view))


def rest_s(view: JobView) -> float:
    """Seconds of one node's work that are left, by those that were done where that is not known: for `srpt`."""
    left = left_s(view)
    return rest_by_attained(done_s(view)) if left is None else left


def left_s(view: JobView) -> float | None:
    """Seconds of one node's work that are left; None where that is not known."""
    if view.job.total_samples is None or view.curve is None:
        return None
    return max(view.job.total_samples - view.samples_done, 0.0) / _rate_of_one(view)


def done_s(view: JobView) -> float:
    """Seconds of one node's work that were done."""
    return view.samples_done / _rate_of_one(view)


def _rate_of_one(view: JobView) -> float:
    """Samples/s on one node; 1 where that is not known: what turns samples into the units of speed-ups."""
    return (view.curve.throughput(1) if view.curve else 0.0) or 1.0


def leaving_costs(throughput: Callable[[int], float], size: int, least: int) -> list[float]:
    """What a job of `size` nodes trains less with each that goes, in that order: the last nodes of a job are cheaper
    than its first, and one cut below its `least` loses all that it has."""
    return [throughput(k) - (throughput(k - 1) if k > least else 0.0) for k in range(size, 0, -1)]


def with_whole_tasks(costs: Sequence[float], tasks: Sequence[Hashable]) -> list[float]:
    """Of each pilot the cost of all pilots of its task, which leave together."""
    whole: dict[Hashable, float] = {}
    for cost, task in zip(costs, tasks, strict=True):
        whole[task] = whole.get(task, 0.0) + cost
    return [whole[task] for task in tasks]


def harvested(view: JobView) -> list[HarvestedNode]:
    """The nodes of the job's staying pilots, each with the speed-up that it loses without it: the n-th to go costs
    O(k-n+1) - O(k-n) over O(1), times the job's weight."""
    curve = (view.curve or Curve.linear(view.job.max_nodes)).over_one()
    # The pilots that end soonest are the first to go.
    pilots = sorted(view.staying, key=lambda p: (p.started_at is not None, p.ends_at or 0.0, p.node, p.id))
    costs = leaving_costs(curve.throughput, len(pilots), view.job.min_nodes)
    if view.co_allocated:
        # A node of a task that holds several is given up with all of them.
        costs = with_whole_tasks(costs, [pilot.task for pilot in pilots])
    together = {task: frozenset(each.node for each in whole) for task, whole in view.co_allocated.items()}
    return [
        HarvestedNode(p.node, p.id, view.job.id, view.job.weight * cost, together.get(p.task, frozenset()))
        for p, cost in zip(pilots, costs, strict=True)
    ]


def harvested_by(live: Mapping[int, JobView]) -> list[HarvestedNode]:
    """The nodes of all these jobs, as `harvested` has them."""
    return [node for _, view in sorted(live.items()) for node in harvested(view)]


def profile_of(view: JobView, rules: Rules) -> Profile:
    """How the job's scalability is learnt: a curve that its owner gave is believed until measurements refute it.
    Independent items scale perfectly: there is nothing to learn."""
    if view.job.elastic is Elastic.TASKS:
        return Profile.NONE
    of_site = rules.probing.profile if view.job.elastic is Elastic.LIVE else rules.probing.restart_profile
    if view.job.given_curve is None:
        return view.job.profile or of_site
    return of_site if view.curve_refuted else Profile.GIVEN


def expected_curve(view: JobView, known: JobKnowledge, rules: Rules) -> Curve:
    """What is taken for the job's curve: given, measured, that of its application, or perfect scaling."""
    if profile_of(view, rules) is Profile.NONE:
        return Curve.linear(view.job.max_nodes)
    if view.curve is None and known.prior_jobs is not None:
        return expected_speedup(known.prior_jobs, view.job.max_nodes)
    given = None if view.curve_refuted else view.job.given_curve
    return view.curve or given or Curve.linear(view.job.max_nodes)
