"""What is learnt of each job, as one decision needs it: the curve that is taken for it, how far beyond what was
measured it may go, what the advisor asks the sizing for, which probes begin and end, which costs are doubted. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from malletrain.domain.event import ProbeBegun, ProbeEnded
from malletrain.domain.job import Curve, Elastic, JobView, Profile
from malletrain.learn import advisor
from malletrain.learn.advisor import Advice, JobKnowledge, ProbeRules
from malletrain.learn.curve import expected_speedup
from malletrain.sizing.knapsack import best_price
from malletrain.sizing.problem import JobDemand, Problem
from malletrain.sizing.values import ValueRowCache, mean_interval_s, permitted_sizes, value_table

#: A probe of a job begins or ends, and why.
ProbeEvent = tuple[int, ProbeBegun | ProbeEnded, str]

#: A learned cost that forbids a change is doubted after so long (seconds) without one.
RETRY_S = 1800.0


def profile_of(view: JobView, rules: ProbeRules) -> Profile:
    """How the job's scalability is learnt: a curve that its owner gave is believed until measurements refute it.
    Independent items scale perfectly: there is nothing to learn."""
    if view.job.elastic is Elastic.TASKS:
        return Profile.NONE
    of_site = rules.profile if view.job.elastic is Elastic.LIVE else rules.restart_profile
    if view.job.given_curve is None:
        return view.job.profile or of_site
    return of_site if view.curve_refuted else Profile.GIVEN


def expected_curve(view: JobView, known: JobKnowledge, rules: ProbeRules) -> Curve:
    """What is taken for the job's curve: given, measured, that of its application, or perfect scaling."""
    if profile_of(view, rules) is Profile.NONE:
        return Curve.linear(view.job.max_nodes)
    if view.curve is None and known.prior_jobs is not None:
        return expected_speedup(known.prior_jobs, view.job.max_nodes)
    claim = None if view.curve_refuted else view.job.given_curve
    return view.curve or claim or Curve.linear(view.job.max_nodes)


def within_reach(
    demands: Mapping[int, JobDemand],
    views: Mapping[int, JobView],
    known: Mapping[int, JobKnowledge],
    nodes: int,
    rules: ProbeRules,
) -> list[JobDemand]:
    """The demands, by job, without sizes that nothing speaks for yet; those of jobs that are not `known` as they are.
    Where some of the `nodes` could not be used then, sizes twice as far off are let in, and so on: nodes that nobody
    else can have are tried at no cost to others."""
    share = -(-nodes // max(1, len(demands)))
    factor, widest = advisor.MAX_EXPLORATION_FACTOR, sum(demand.max for demand in demands.values())
    while True:
        found = [
            _within(demand, views[job], known[job], share, factor, rules) if job in known else demand
            for job, demand in demands.items()
        ]
        if sum(demand.max for demand in found) >= min(nodes, widest) or factor > nodes:
            return found
        factor *= 2


def _within(
    demand: JobDemand, view: JobView, known: JobKnowledge, share: int, factor: int, rules: ProbeRules
) -> JobDemand:
    """The demand without sizes beyond `factor` times what was measured. `share`: the job's fair part of the nodes."""
    profile, fresh = profile_of(view, rules), known.fit is None and known.prior_jobs is None
    if profile in (Profile.NONE, Profile.GIVEN) or (profile is Profile.DOWNWARD and fresh):
        return demand  # downward is from large to small
    most = min(demand.max, advisor.max_explored_size(known, demand.min, demand.current, share, factor))
    return replace(demand, max=most, sizes=tuple(k for k in demand.sizes if k <= most) or demand.sizes[:1])


def advice_for(
    problem: Problem,
    views: Mapping[int, JobView],
    known: Mapping[int, JobKnowledge],
    now: float,
    rules: ProbeRules,
    cache: ValueRowCache | None = None,
) -> Advice:
    """What the advisor says to a problem without bonuses. `cache`: that of `value_table`."""
    candidates = [
        _candidate(demand, views[int(demand.id)], known[int(demand.id)], problem.nodes, rules)
        for demand in problem.jobs
        if int(demand.id) in known
    ]
    if not any(c.profile in advisor.TRYING and (c.known.fit or c.known.probe) for c in candidates):
        return Advice(reasons={c.id: "not measured yet: its first size will be" for c in candidates})
    price = 0.0
    if problem.horizon_s:
        price = best_price(value_table(problem, cache), problem.nodes).node / problem.horizon_s
    market = advisor.Market(price, problem.nodes, problem.horizon_s, now, rules, problem.alpha)
    return advisor.advise(candidates, market)


def _candidate(
    demand: JobDemand, view: JobView, known: JobKnowledge, nodes: int, rules: ProbeRules
) -> advisor.Candidate:
    rate, total = view.curve.throughput(demand.current) if view.curve else 0.0, view.job.total_samples
    left_s = None if total is None or rate <= 0 else max(0.0, total - view.samples_done) / rate
    return advisor.Candidate(
        id=view.job.id,
        current=demand.current,
        sizes=tuple(permitted_sizes(demand, nodes)[1:].tolist()),
        curve=demand.curve,
        weight=max(demand.weight, 1e-9),
        costs=view.costs,
        known=known,
        profile=profile_of(view, rules),
        left_s=left_s,
    )


def with_advice(problem: Problem, advice: Advice) -> Problem:
    """The problem with the advisor's bonuses and locks."""
    if not advice.bonus and not advice.locked:
        return problem
    of = [(demand, int(demand.id)) for demand in problem.jobs]
    bonus = {job: (each,) for job, each in advice.bonus.items()}
    jobs = [replace(demand, bonus=bonus.get(job, ()), locked=advice.locked.get(job)) for demand, job in of]
    return replace(problem, jobs=tuple(jobs))


def probe_changes(
    advice: Advice, sizes: Mapping[int, int], known: Mapping[int, JobKnowledge]
) -> tuple[ProbeEvent, ...]:
    """Probes that are over, and those that the sizes begin."""
    ended: list[ProbeEvent] = [
        (job, ProbeEnded(probe.nodes), why)
        for job, why in sorted(advice.ended.items())
        if (probe := known[job].probe) is not None
    ]
    begun: list[ProbeEvent] = [
        (job, ProbeBegun(size), advice.reasons[job])
        for job, (size, _) in sorted(advice.bonus.items())
        if sizes.get(job) == size
    ]
    return (*ended, *begun)


def scale_up_jobs(
    views: Mapping[int, JobView], known: Mapping[int, JobKnowledge], rules: ProbeRules
) -> frozenset[int]:
    """Jobs whose worlds are measured on their way up when they begin: of each application without prior jobs, one."""
    found: dict[tuple[str, str], tuple[bool, int]] = {}
    for job, learnt in known.items():
        view = views.get(job)
        if learnt.fit is not None or learnt.prior_jobs is not None or view is None or view.job.max_nodes < 2:
            continue
        if view.job.elastic is Elastic.LIVE and profile_of(view, rules) is Profile.ACTIVE:
            # Who has nodes already comes first, then who came first.
            first = found.get(learnt.application, (True, job))
            found[learnt.application] = min(first, (not view.staying, job))
    return frozenset(job for _, job in found.values())


def explored(demand: JobDemand, view: JobView, horizon_s: float, now: float) -> JobDemand:
    """The demand with learned costs of more than half the horizon doubted: a change that these forbid would never be
    measured again. Of the horizon no more than a half counts after `RETRY_S` without a change, then a quarter, ..."""
    since = view.worlds_at[-1] if demand.current and view.worlds_at else view.nodes_since
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
