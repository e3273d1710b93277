"""Sizes: jobs become demands, the advisor adds what is worth measuring, and the policy shares the nodes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.decide.budgets import BudgetTerms, budgets_for
from malletrain.decide.demand import due_of
from malletrain.decide.draft import Draft, Inputs, Situation
from malletrain.decide.limits import caps_of_unfit, constraints_for
from malletrain.decide.profiling import ProbeChange, advice_for, probe_changes, with_advice, within_reach
from malletrain.decide.rules import Rules
from malletrain.decide.starvation_guard import starving_jobs
from malletrain.domain.decision import Hole, Refusal
from malletrain.domain.job import JobView
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.batch_choice import chosen_batches
from malletrain.learn.supply_forecast import lifetimes_of_holes
from malletrain.sizing.objective import Objective, alpha_of, urgency_by_use
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobDemand, Problem, Sizes

_UNKNOWN = JobKnowledge()


@dataclass(frozen=True, slots=True)
class Sizing:
    """Nodes for every live job, and how they came about; `advice`: by job, what would be measured next."""

    sizes: Mapping[int, int]
    answer: Sizes
    held: Mapping[int, int]
    budgets: BudgetTerms
    batches: Mapping[int, tuple[tuple[int, int], ...]]
    probes: tuple[ProbeChange, ...]
    advice: Mapping[int, str]


def learn_and_size(draft: Draft, inputs: Inputs) -> Sizing:
    """Share out the nodes of the pilots that stay, the free holes, and the nodes that change hands."""
    situation, rules, cache, now = inputs.situation, inputs.rules, inputs.cache, inputs.now
    draft.nodes = sum(map(len, draft.staying.values())) + len(draft.free) + len(draft.coming)
    training = {
        j: view
        for j, view in sorted(inputs.live.items())
        # With pilots that go now, a job may have too few tasks left for its fewest nodes.
        if inputs.holdings[j].may_train
        and j not in situation.set_aside
        and len(draft.staying[j]) + view.held_count >= max(1, view.job.min_nodes)
        and (j not in draft.unfit or draft.nodes - len(draft.unfit[j].nodes) >= max(1, view.job.min_nodes))
    }
    known = {j: situation.known[j] for j in training if j in situation.known}
    share = -(-draft.nodes // max(1, len(training)))
    demands = [
        within_reach(cache.demand(view, draft.staying[j], known[j], rules), view, known[j], share, rules)
        if j in known
        else cache.demand(view, draft.staying[j], _UNKNOWN, rules)
        for j, view in training.items()
    ]
    barred = {j: each.nodes for j, each in draft.unfit.items()}
    demands = [_fitting(d, draft.nodes - len(barred[int(d.id)])) if int(d.id) in barred else d for d in demands]
    demands = _weighed(demands, training, draft.nodes, situation, rules)
    budgets = budgets_for(rules.budgets, situation.spent, training, demands, draft.horizon_s, now)
    draft.refusals += budgets.refusals
    limits = constraints_for(rules.limits, rules.max_resizes, rules.user_share, training, demands, draft.nodes)
    limits += caps_of_unfit(barred, demands, draft.nodes)
    problem = Problem(
        horizon_s=draft.horizon_s,
        nodes=draft.nodes,
        jobs=tuple(demands),
        alpha=alpha_of(rules.objective, rules.alpha),
        constraints=limits + budgets.caps,
        budgets=budgets.left,
        lifetimes=_lifetimes(inputs.policy, draft.holes.values(), situation, draft.nodes),
        supply=situation.supply,
    )
    advice = advice_for(problem, training, known, now, rules, cache.rows)
    answer, put_off = cache.sized(inputs.policy, with_advice(problem, advice))
    draft.refusals += [Refusal(name, "cannot be kept by any sizes now, and is put off") for name in put_off]
    sizes = {int(job_id): size for job_id, size in answer.sizes.items()}
    return Sizing(
        sizes=sizes | {j: 0 for j in inputs.live if j not in sizes},
        answer=answer,
        held={int(demand.id): demand.current for demand in demands if demand.current},
        budgets=budgets,
        batches=chosen_batches(demands, answer),
        probes=probe_changes(advice, sizes, known),
        advice=advice.reasons,
    )


def _weighed(
    demands: Sequence[JobDemand], views: Mapping[int, JobView], nodes: int, situation: Situation, rules: Rules
) -> list[JobDemand]:
    """The demands with what does not follow from a job alone: who has waited too long, who has used most, and
    how long there is until a deadline."""
    waited = starving_jobs(views, demands, nodes, situation.now, rules)
    weighed = []
    for demand in demands:
        job, weight = views[int(demand.id)].job, demand.weight
        if rules.objective is Objective.FAIR:
            weight *= urgency_by_use(situation.used, rules.account_shares, job.account)
        if weight != demand.weight or job.id in waited or job.deadline is not None:
            due = due_of(views[job.id], situation.now)
            demand = replace(demand, weight=weight, must_run=job.id in waited, due=due)
        weighed.append(demand)
    return weighed


def _fitting(demand: JobDemand, most: int) -> JobDemand:
    """The demand of a job that can have `most` nodes of those that are shared out."""
    if demand.max <= most:
        return demand
    locked = demand.locked if demand.locked is not None and demand.locked <= most else None
    bonus = tuple(each for each in demand.bonus if each[0] <= most)
    sizes = tuple(size for size in demand.sizes if size <= most) or ((0,) if demand.sizes else ())
    return replace(demand, max=max(most, demand.min), sizes=sizes, locked=locked, bonus=bonus)


def _lifetimes(
    policy: Policy, holes: Iterable[Hole], situation: Situation, nodes: int
) -> tuple[tuple[float, int], ...]:
    """For policies that plan ahead: how many of the nodes last how long."""
    if situation.forecast is None or not policy.looks_ahead:
        return ()
    return lifetimes_of_holes(holes, situation.open_holes, situation.forecast, situation.now, nodes)
