"""Sizes: jobs become demands, the advisor adds what is worth measuring, and the policy shares the nodes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from malletrain.decide.demand import change_interval_s, due_of, explored, least_on, on_classes, rest_s
from malletrain.decide.draft import Draft, Inputs, Situation
from malletrain.decide.entitlement.budgets import BudgetTerms, budgets_for
from malletrain.decide.entitlement.limits import caps_of_unfit, constraints_for
from malletrain.decide.entitlement.starvation_guard import starving_jobs
from malletrain.decide.profiling import ProbeChange, advice_for, probe_changes, with_advice, within_reach
from malletrain.decide.rules import Rules
from malletrain.decide.start_diagnosis import caps_of_doubtful
from malletrain.domain.decision import Hole, Refusal
from malletrain.domain.job import JobView
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.batch_choice import chosen_batches
from malletrain.learn.class_curves import class_speeds
from malletrain.learn.supply_forecast import lifetimes_of_holes
from malletrain.sizing.objective import Objective, alpha_of, urgencies_by_rank, urgency_by_use
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobDemand, Problem, Sizes

_UNKNOWN = JobKnowledge()


@dataclass(frozen=True, slots=True)
class Sizing:
    """Nodes for every live job, and how they came about; `advice`: by job, what would be measured next; `classes`: by
    job, of its nodes how many of which class, where the nodes (`class_of`) are of several."""

    sizes: Mapping[int, int]
    answer: Sizes
    held: Mapping[int, int]
    budgets: BudgetTerms
    batches: Mapping[int, tuple[tuple[int, int], ...]]
    probes: tuple[ProbeChange, ...]
    advice: Mapping[int, str]
    classes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    class_of: Mapping[str, str] = field(default_factory=dict)


def learn_and_size(draft: Draft, inputs: Inputs) -> Sizing:
    """Share out the nodes of the pilots that stay, the free holes, and the nodes that change hands."""
    situation, rules, cache, now = inputs.situation, inputs.rules, inputs.cache, inputs.now
    draft.nodes = sum(map(len, draft.staying.values())) + len(draft.free) + len(draft.coming)
    caps = caps_of_doubtful(draft, inputs)
    training = {
        j: view
        for j, view in sorted(inputs.live.items())
        # With pilots that go now, a job may have too few tasks left for its fewest nodes.
        if inputs.holdings[j].may_train
        and j not in situation.set_aside
        and len(draft.staying[j]) + view.held_count >= max(1, view.job.min_nodes)
        and (j not in caps or caps[j] >= max(1, view.job.min_nodes))
        and (j not in draft.unfit or draft.nodes - len(draft.unfit[j].nodes) >= max(1, view.job.min_nodes))
    }
    known = {j: situation.known[j] for j in training if j in situation.known}
    wanted = {}
    for j, view in training.items():
        interval_s = change_interval_s(view, draft.horizon_s, now)
        known_of, stays = known.get(j, _UNKNOWN), draft.staying[j]
        demand = cache.demand(view, stays, known_of, rules, draft.width, draft.narrowest, interval_s)
        wanted[j] = explored(demand, view, draft.horizon_s, now)
    demands = within_reach(wanted, training, known, draft.nodes, rules)
    barred = {j: each.nodes for j, each in draft.unfit.items()}
    demands = [_fitting(d, draft.nodes - len(barred[int(d.id)])) if int(d.id) in barred else d for d in demands]
    demands = [_fitting(d, caps[int(d.id)]) if int(d.id) in caps else d for d in demands]
    draft.refusals += [Refusal(f"job {j}", situation.doubtful[j].why) for j in caps if j in situation.doubtful]
    demands = _weighed(demands, training, draft.nodes, situation, rules)
    budgets = budgets_for(rules.budgets, situation.spent, training, demands, draft.horizon_s, now)
    draft.refusals += budgets.refusals
    take_turns = rules.max_wait_s > 0
    limits = constraints_for(rules.limits, rules.user_share, training, demands, draft.nodes, take_turns=take_turns)
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
    class_of = _classes_of_nodes(draft, inputs, training)
    advised = _by_class(with_advice(problem, advice), draft, class_of, known, training, barred)
    answer, put_off = cache.sized(inputs.policy, advised)
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
        classes={int(job_id): dict(held) for job_id, held in answer.classes.items()},
        class_of=class_of,
    )


def _weighed(
    demands: Sequence[JobDemand], views: Mapping[int, JobView], nodes: int, situation: Situation, rules: Rules
) -> list[JobDemand]:
    """The demands with what does not follow from a job alone: who has waited too long, who has used most, who ends
    first, and how long there is until a deadline."""
    waited = starving_jobs(views, demands, nodes, situation.now, rules)
    urgencies = [1.0] * len(demands)
    if rules.objective is Objective.SRPT:
        urgencies = urgencies_by_rank([rest_s(views[int(demand.id)]) for demand in demands])
    weighed = []
    for demand, urgency in zip(demands, urgencies, strict=True):
        job, weight = views[int(demand.id)].job, demand.weight * urgency
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
    if not policy.looks_ahead:
        return ()
    return lifetimes_of_holes(holes, situation.open_holes, situation.now, nodes)


def _classes_of_nodes(draft: Draft, inputs: Inputs, views: Mapping[int, JobView]) -> Mapping[str, str]:
    """The class of each node that is shared out; nothing where they are all of one that no job asks more nodes of, or
    are not told apart."""
    rules, node = inputs.rules, inputs.snapshot.node
    if draft.width > 1 or inputs.tasks.shared:
        return {}
    held = [pilot.node for pilots in draft.staying.values() for pilot in pilots]
    shared = {*held, *(hole.node for hole in draft.free), *draft.coming}
    found = {name: node[name].kind_with(rules.class_features) for name in sorted(shared) if name in node}
    told_apart = len(set(found.values())) > 1 or any(view.job.class_min for view in views.values())
    return found if told_apart and len(found) == len(shared) else {}


def _by_class(
    problem: Problem,
    draft: Draft,
    class_of: Mapping[str, str],
    known: Mapping[int, JobKnowledge],
    views: Mapping[int, JobView],
    barred: Mapping[int, Collection[str]],
) -> Problem:
    """The problem with the nodes of each class, and each job's curves on them."""
    if not class_of:
        return problem
    held = Counter(class_of[pilot.node] for pilots in draft.staying.values() for pilot in pilots)
    counts = held + Counter(class_of[hole.node] for hole in draft.free)
    counts += Counter(class_of[node] for node in draft.coming)
    classes = dict(sorted(counts.items()))
    # Pilots of jobs that do not train now hold nodes that are not to be had; all the same they count, as ever.
    if sum(classes.values()) != problem.nodes:
        return problem
    if len(classes) == 1:
        return replace(problem, jobs=tuple([_least_of(each, views, tuple(classes)) for each in problem.jobs]))
    speeds = class_speeds(
        (each.by_class for each in known.values() if each.by_class),
        (each.worker_speeds for each in known.values() if each.worker_speeds),
    )
    jobs = []
    for demand in problem.jobs:
        job = int(demand.id)
        left = Counter(class_of.values()) - Counter(class_of[n] for n in barred.get(job, ()) if n in class_of)
        open_to = [name for name in classes if left[name] > 0]
        on = on_classes(demand, draft.staying[job], known.get(job), open_to, class_of, speeds, views[job])
        jobs.append(replace(demand, on_classes=on))
    return replace(problem, jobs=tuple(jobs), classes=classes)


def _least_of(demand: JobDemand, views: Mapping[int, JobView], only: Sequence[str]) -> JobDemand:
    """The demand on nodes of one class, with the fewest nodes that its job has there."""
    least = least_on(views[int(demand.id)].job.class_min, only).get(only[0], 0)
    if least <= demand.min:
        return demand
    least = min(least, demand.max)
    locked = demand.locked if demand.locked is None or demand.locked >= least else None
    bonus = tuple(each for each in demand.bonus if each[0] >= least)
    sizes = tuple(size for size in demand.sizes if size >= least) or ((0,) if demand.sizes else ())
    return replace(demand, min=least, sizes=sizes, locked=locked, bonus=bonus)
