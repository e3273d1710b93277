"""Between the decision and the advisor: jobs as candidates, advice as part of their demands, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.decide.rules import Rules
from malletrain.domain.job import Curve, Elastic, JobView, Profile
from malletrain.learn.advisor import (
    MAX_EXPLORATION_FACTOR,
    TRYING,
    Advice,
    Candidate,
    JobKnowledge,
    advise,
    max_explored_size,
)
from malletrain.learn.curve import expected_speedup
from malletrain.sizing.knapsack import best_price
from malletrain.sizing.problem import JobDemand, Problem
from malletrain.sizing.values import ValueRowCache, permitted_sizes, value_table


@dataclass(frozen=True, slots=True)
class ProbeChange:
    """A probe begins or ends: for the journal."""

    job: int
    nodes: int
    begun: bool
    reason: str


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


def within_reach(
    demands: Mapping[int, JobDemand],
    views: Mapping[int, JobView],
    known: Mapping[int, JobKnowledge],
    nodes: int,
    rules: Rules,
) -> list[JobDemand]:
    """The demands, by job, without sizes that nothing speaks for yet; those of jobs that are not `known` as they are.

    Where so few sizes are left that some of the `nodes` could not be used, sizes twice as far off are let in, and so
    on: nodes that nobody else can have are tried at no cost to others.
    """
    share = -(-nodes // max(1, len(demands)))
    factor, widest = MAX_EXPLORATION_FACTOR, sum(demand.max for demand in demands.values())
    while True:
        found = [
            _within(demand, views[job], known[job], share, factor, rules) if job in known else demand
            for job, demand in demands.items()
        ]
        if sum(demand.max for demand in found) >= min(nodes, widest) or factor > nodes:
            return found
        factor *= 2


def _within(
    demand: JobDemand, view: JobView, known: JobKnowledge, share: int, factor: int, rules: Rules
) -> JobDemand:
    """The demand without sizes beyond `factor` times what was measured. `share`: the job's fair part of the nodes."""
    profile = profile_of(view, rules)
    if profile is Profile.DOWNWARD and known.fit is None and known.prior_jobs is None:
        return demand  # from large to small
    if profile not in (Profile.ACTIVE, Profile.PASSIVE, Profile.DOWNWARD):
        return demand
    most = min(demand.max, max_explored_size(known, demand.min, demand.current, share, factor))
    return replace(demand, max=most, sizes=tuple(k for k in demand.sizes if k <= most) or demand.sizes[:1])


def advice_for(
    problem: Problem,
    views: Mapping[int, JobView],
    known: Mapping[int, JobKnowledge],
    now: float,
    rules: Rules,
    cache: ValueRowCache | None = None,
) -> Advice:
    """What the advisor says to a problem without bonuses. `cache`: that of `value_table`."""
    candidates = []
    for demand in problem.jobs:
        job = int(demand.id)
        if job in known:
            candidates.append(_candidate(demand, views[job], known[job], problem.nodes, rules))
    if not any(c.profile in TRYING and (c.known.fit or c.known.probe) for c in candidates):
        return Advice(reasons={c.id: "not measured yet: its first size will be" for c in candidates})
    price = 0.0
    if problem.horizon_s:
        price = best_price(value_table(problem, cache), problem.nodes).node / problem.horizon_s
    return advise(candidates, price, problem.nodes, problem.horizon_s, now, rules.probing, problem.alpha)


def with_advice(problem: Problem, advice: Advice) -> Problem:
    """The problem with the advisor's bonuses and locks."""
    if not advice.bonus and not advice.locked:
        return problem
    jobs = []
    for demand in problem.jobs:
        job = int(demand.id)
        bonus = (advice.bonus[job],) if job in advice.bonus else ()
        jobs.append(replace(demand, bonus=bonus, locked=advice.locked.get(job)))
    return replace(problem, jobs=tuple(jobs))


def probe_changes(
    advice: Advice, sizes: Mapping[int, int], known: Mapping[int, JobKnowledge]
) -> tuple[ProbeChange, ...]:
    """Probes that are over, and those that the sizes begin."""
    found: list[ProbeChange] = []
    for job, why in sorted(advice.ended.items()):
        probe = known[job].probe
        if probe is not None:
            found.append(ProbeChange(job, probe.nodes, False, why))
    for job, (size, _) in sorted(advice.bonus.items()):
        if sizes.get(job) == size:
            found.append(ProbeChange(job, size, True, advice.reasons[job]))
    return tuple(found)


def scale_up_jobs(views: Mapping[int, JobView], known: Mapping[int, JobKnowledge], rules: Rules) -> frozenset[int]:
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


def sizes_of(demand: JobDemand, nodes: int) -> Sequence[int]:
    """The sizes that a job may have, without zero."""
    return [int(k) for k in permitted_sizes(demand, nodes)[1:]]


def _candidate(demand: JobDemand, view: JobView, known: JobKnowledge, nodes: int, rules: Rules) -> Candidate:
    rate = view.curve.throughput(demand.current) if view.curve else 0.0
    left = None
    if view.job.total_samples is not None and rate > 0:
        left = max(0.0, view.job.total_samples - view.samples_done) / rate
    return Candidate(
        id=view.job.id,
        current=demand.current,
        sizes=tuple(sizes_of(demand, nodes)),
        curve=demand.curve,
        weight=max(demand.weight, 1e-9),
        costs=view.costs,
        known=known,
        profile=profile_of(view, rules),
        left_s=left,
    )
