"""Sizes: jobs become demands, the advisor adds what is worth measuring, and the policy shares the nodes out.

A straggler is replaced after Or, Zhang, Freedman (MLSys 2020): a free node is started on in its stead, and it leaves
once that worker is ready, so the job never trains on fewer nodes. Each job replaces one at a time, its slowest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import is_

from malletrain.decide.draft import Decided, Draft, Situation
from malletrain.decide.holes import pilot_limit_s
from malletrain.decide.leaving import leaving
from malletrain.decide.limits import budgets_for, caps_of_unfit, constraints_for, starving_jobs
from malletrain.decide.multi_node_pilots import co_allocated
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Action, Decision, LeaveCause, RecyclePilot, StartPilot
from malletrain.domain.job import JobPhase, JobView, Pilot, PilotPhase
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.batch_choice import chosen_batches
from malletrain.learn.class_curves import class_speeds, least_on, on_classes
from malletrain.learn.profiling import (
    advice_for,
    change_interval_s,
    expected_curve,
    explored,
    probe_changes,
    with_advice,
    within_reach,
)
from malletrain.sizing.deadlines import due_of
from malletrain.sizing.objective import (
    Objective,
    alpha_of,
    rest_or_attained,
    urgencies_by_rank,
    urgency_by_rest,
    urgency_by_use,
)
from malletrain.sizing.problem import JobDemand, Problem
from malletrain.sizing.whole_tasks import whole_sizes

_UNKNOWN = JobKnowledge()


def learn_and_size(draft: Draft) -> Decided:
    """Share out the nodes of the pilots that stay, the free holes, and the nodes that change hands."""
    situation, rules, now, nodes = draft.situation, draft.rules, draft.now, draft.nodes
    doubtful = caps_of_doubtful(draft)
    barred = {j: each.nodes for j, each in draft.unfit.items()}
    most = {job: nodes - len(unfit) for job, unfit in barred.items()}
    most |= {job: min(cap, most.get(job, cap)) for job, cap in doubtful.items()}
    training = {
        j: view
        for j, view in sorted(draft.live.items())
        # With pilots that go now, a job may have too few tasks left for its fewest nodes.
        if may_train(view)
        and j not in situation.set_aside
        and min(len(draft.staying[j]) + view.held_count, most.get(j, inf)) >= max(1, view.job.min_nodes)
    }
    known = {j: situation.known[j] for j in training if j in situation.known}
    wanted = {
        j: explored(_demand(draft, view, known.get(j, _UNKNOWN)), view, rules.horizon_s, now)
        for j, view in training.items()
    }
    demands = within_reach(wanted, training, known, nodes, rules.probing)
    demands = [_within_bounds(d, most=most.get(int(d.id))) for d in demands]
    demands = _weighed(demands, training, nodes, situation, rules)
    budgets = budgets_for(rules, situation.spent, training, demands, now)
    limits = constraints_for(rules, training, demands, nodes) + caps_of_unfit(barred, demands, nodes)
    problem = Problem(
        horizon_s=rules.horizon_s,
        nodes=nodes,
        jobs=tuple(demands),
        alpha=alpha_of(rules.objective, rules.alpha),
        constraints=limits + budgets.caps,
        budgets=budgets.left,
    )
    advice = advice_for(problem, training, known, now, rules.probing, draft.cache.rows)
    draft.class_of = _classes_of_nodes(draft, training)
    advised = _by_class(with_advice(problem, advice), draft, known)
    answer, put_off = draft.cache.sized(draft.policy, advised)
    for job in doubtful:
        draft.refuse(job, situation.doubtful[job].why if job in situation.doubtful else "")
    draft.refusals += budgets.refusals
    for name in put_off:
        draft.refuse(name, "cannot be kept by any sizes now, and is put off")
    sizes = {int(job_id): size for job_id, size in answer.sizes.items()}
    draft.classes = {int(job_id): dict(held) for job_id, held in answer.classes.items()}
    decision = Decision(
        at=now,
        sizes=sizes | {j: 0 for j in draft.live if j not in sizes},
        nodes=nodes,
        held={int(demand.id): demand.current for demand in demands if demand.current},
        horizon_s=rules.horizon_s,
        status=answer.status,
        objective=answer.objective,
        reason="; ".join((answer.reason, *budgets.binding(sizes))),
        batches=chosen_batches(demands, answer),
    )
    return Decided(decision, draft.yielding, probe_changes(advice, sizes, known), advice.reasons)


def _weighed(
    demands: Sequence[JobDemand], views: Mapping[int, JobView], nodes: int, situation: Situation, rules: Rules
) -> list[JobDemand]:
    """The demands with what does not follow from a job alone: who has waited too long, who has used most, who ends
    first, and how long there is until a deadline."""
    waited = starving_jobs(views, demands, nodes, situation.now, rules)
    urgencies = [1.0] * len(demands)
    if rules.objective is Objective.SRPT:
        wants = [views[int(demand.id)] for demand in demands]
        urgencies = urgencies_by_rank([rest_or_attained(view.left_s, view.done_s) for view in wants])
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


def _within_bounds(demand: JobDemand, least: int = 0, most: int | None = None) -> JobDemand:
    """The demand of a job that has a use for no fewer than `least` nodes, and cannot have more than `most`."""
    least, most = min(least, demand.max), demand.max if most is None else most
    if demand.max <= most and least <= demand.min:
        return demand

    def permits(size: int | None) -> bool:
        return size is not None and least <= size <= most

    return replace(
        demand,
        min=max(least, demand.min),
        max=max(min(most, demand.max), demand.min),
        sizes=tuple(filter(permits, demand.sizes)) or ((0,) if demand.sizes else ()),
        locked=demand.locked if permits(demand.locked) else None,
        bonus=tuple(each for each in demand.bonus if permits(each[0])),
    )


def _classes_of_nodes(draft: Draft, views: Mapping[int, JobView]) -> Mapping[str, str]:
    """The class of each node that is shared out; nothing where they are all of one that no job asks more nodes of, or
    are not told apart."""
    rules, node = draft.rules, draft.snapshot.node
    if draft.width > 1 or any(view.co_allocated for view in draft.live.values()):
        return {}
    held = [pilot.node for pilot in draft.mine]
    shared = {*held, *(hole.node for hole in draft.free), *draft.coming}
    found = {name: node[name].kind_with(rules.class_features) for name in sorted(shared) if name in node}
    differ = len(set(found.values())) > 1 or any(view.job.class_min for view in views.values())
    return found if differ and len(found) == len(shared) else {}


def _by_class(problem: Problem, draft: Draft, known: Mapping[int, JobKnowledge]) -> Problem:
    """The problem with the nodes of each class, and each job's curves on them."""
    class_of, classes = draft.class_of, dict(sorted(Counter(draft.class_of.values()).items()))
    # Pilots of jobs that do not train now hold nodes that are not to be had; all the same they count, as ever.
    if not classes or sum(classes.values()) != problem.nodes:
        return problem
    if len(classes) == 1:
        (only,) = classes
        least = [least_on(draft.live[int(each.id)].job.class_min, (only,)).get(only, 0) for each in problem.jobs]
        return replace(problem, jobs=tuple(map(_within_bounds, problem.jobs, least)))
    speeds = class_speeds(
        filter(None, (each.by_class for each in known.values())),
        filter(None, (each.worker_speeds for each in known.values())),
    )
    jobs = []
    for demand in problem.jobs:
        job = int(demand.id)
        left = Counter(classes) - Counter(class_of[node] for node in draft.barred(job) if node in class_of)
        open_to, stays = [name for name in classes if left[name] > 0], draft.staying[job]
        on = on_classes(demand, stays, known.get(job, _UNKNOWN), open_to, class_of, speeds, draft.live[job])
        jobs.append(replace(demand, on_classes=on))
    return replace(problem, jobs=tuple(jobs), classes=classes)


def caps_of_doubtful(draft: Draft) -> dict[int, int]:
    """The most nodes of jobs whose last starts did not begin: what they have, and of the free ones no more than ran
    before, or, once their rest is over, one pilot more at a time. Other jobs lose none to them."""
    left = {hole.node for hole in draft.free}
    unstarted = [action for action in draft.actions if isinstance(action, RecyclePilot) and action.unstarted]
    fails_now = {action.job_id for action in unstarted if action.unstarted != action.node}
    doubtful = {job: doubt for job, doubt in draft.situation.doubtful.items() if job in draft.live}
    caps = {job: len(draft.staying[job]) for job in sorted(doubtful.keys() | fails_now)}
    for job, has in caps.items():
        view = draft.live[job]
        waits = any(pilot.phase is PilotPhase.RELEASED for pilot in view.staying)
        if job in fails_now or waits or has + view.held_count < view.job.min_nodes:
            continue
        doubt, usable = doubtful[job], sorted(left - draft.barred(job))
        demand = _demand(draft, view, draft.situation.known.get(job, _UNKNOWN))
        larger = [size for size in demand.sizes or range(demand.max + 1) if size > has and view.job.permits(size)]
        again = [size for size in larger if size <= doubt.begun]
        wanted = (again[-1] if again else has if doubt.rests or not larger else larger[0]) - has
        if wanted <= len(usable):
            caps[job] += wanted
            left.difference_update(usable[:wanted])
    return caps


#: Most nodes that a job avoids for slow workers at a time, as a part of its nodes; one always may.
MAX_AVOIDED_PART = 0.125


def replace_stragglers(draft: Draft) -> None:
    """Start a replacement for each straggler on a free node; once it is ready, the straggler leaves."""
    situation, now, rules = draft.situation, draft.now, draft.rules
    uncounted: set[str] = set()  # their replacement counts instead, so that sizing does not take both for the job's
    starts: list[StartPilot] = []
    leaves: list[Action] = []
    for job, found in sorted(situation.slow.items()):
        view, mine = situation.views.get(job), {pilot.id: pilot for pilot in draft.staying.get(job, ())}
        for_whom = {pilot.replaces: pilot for pilot in mine.values() if pilot.replaces}
        # Not those in a task of several nodes. First whoever has a replacement, then the slowest.
        here = [each for each in found if each.pilot in mine and view and not co_allocated(each.pilot, view)]
        chosen = next((each for each in here if each.pilot in for_whom), here[0] if here else None)
        if chosen is None:
            continue
        pilot, stand_in = mine[chosen.pilot], for_whom.get(chosen.pilot)
        slow_one = f"{pilot.id} on {pilot.node}: {chosen.reason}"
        avoids, held = situation.avoided.get(job, {}), draft.live[job].held
        barred = draft.barred(job).union(avoids)
        hole = next((each for each in draft.free if each.node not in barred), None)
        if stand_in is not None:
            uncounted.add(pilot.id)
            where = f"{stand_in.id} on {stand_in.node}"
            if stand_in.ready:
                reason = f"{chosen.reason}; its replacement, {where}, is ready"
                leaves.append(leaving(pilot, LeaveCause.STRAGGLER, now, rules, reason))
                continue
            why = f"it stays until {where} is ready"
        elif len(avoids) >= max(1, int(MAX_AVOIDED_PART * len(mine))):
            why = f"its job avoids {', '.join(sorted(avoids))} for that already"
        elif hole is None or not held:
            why = f"no {'free node' if hole is None else 'held task of its job'} is there to replace it"
        else:
            draft.free.remove(hole)
            limit, reason = pilot_limit_s(hole, now, rules), f"replaces {slow_one}"
            starts.append(StartPilot(job, held[0].id, hole.node, limit, reason, replaces=pilot.id))
            continue
        draft.refuse(job, f"{slow_one}; {why}")
    draft.give_up(leaves)
    draft.replacements = starts
    staying = draft.staying.items()
    draft.staying = {job: [p for p in pilots if p.id not in uncounted] for job, pilots in staying}


def _demand(draft: Draft, view: JobView, known: JobKnowledge) -> JobDemand:
    """As `demand_of`, and the one of the last decision where nothing of it has changed."""
    stays, rules, job = draft.staying[view.job.id], draft.rules, view.job.id
    interval_s = change_interval_s(view, rules.horizon_s, draft.now)
    terms = len(stays), draft.width, draft.narrowest, interval_s
    # By identity: comparing what a job is would cost as much as making its demand.
    of = view, known.fit, known.prior_jobs, rules.objective, rules.account_weights, rules.probing
    last = draft.cache.demands.get(job)
    if last is not None and last[1] == terms and all(map(is_, last[0], of)):
        return last[2]
    demand = replace(demand_of(view, stays, known, rules, draft.width, draft.narrowest), interval_s=interval_s)
    if not view.co_allocated:  # else it matters which pilots stay, not only how many
        draft.cache.demands[job] = of, terms, demand
    return demand


def may_train(view: JobView) -> bool:
    """Whether the job wants nodes, and has tasks for its fewest."""
    tasks = view.held_count + len(view.staying)
    return view.phase in (JobPhase.QUEUED, JobPhase.RUNNING) and tasks >= max(1, view.job.min_nodes)


def demand_of(
    view: JobView, stays: Sequence[Pilot], known: JobKnowledge, rules: Rules, width: int = 1, narrowest: int = 1
) -> JobDemand:
    """A job on the pilots `stays` as the sizing problem sees it. It cannot get more nodes than it has tasks for, and
    grows by pilots of `width` nodes, or of `narrowest` at least.

    Throughput counts in speed-ups over one node: samples of different models do not compare, and of a job that was
    never measured they are not known.
    """
    job, windows = view.job, known.windows.get(len(stays), 0) if known.fit else 0
    most = min(job.max_nodes, len(stays) + view.held_count)
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
        curve=expected_curve(view, known, rules.probing).over_one(),
        batches=tuple((batch, curve.over(view.rate_of_one)) for batch, curve in view.batches),
        noise_scale=view.noise_scale,
    )


def weight_of(view: JobView, rules: Rules) -> float:
    """The job's weight with its account's, and its urgency where that follows from the job alone."""
    weight = view.job.weight * rules.account_weights.get(view.job.account, 1.0)
    return weight * urgency_by_rest(view.left_s, view.done_s) if rules.objective is Objective.JCT else weight
