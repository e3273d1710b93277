"""Sizes: jobs become demands, the advisor adds what is worth measuring, and the policy shares the nodes out.

A straggler is replaced after Or, Zhang, Freedman (MLSys 2020): a free node is started on in its stead, and it leaves
once that worker is ready, so the job never trains on fewer nodes. Each job replaces one at a time, its slowest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from malletrain.decide.demand import (
    change_interval_s,
    due_of,
    explored,
    least_on,
    may_train,
    on_classes,
    profile_of,
    rest_s,
)
from malletrain.decide.draft import Decided, Draft, ProbeEvent, Situation
from malletrain.decide.holes import pilot_limit_s
from malletrain.decide.leaving import leaving
from malletrain.decide.limits import budgets_for, caps_of_unfit, constraints_for, starving_jobs
from malletrain.decide.multi_node_pilots import co_allocated
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Action, Decision, LeaveCause, RecyclePilot, StartPilot
from malletrain.domain.event import ProbeBegun, ProbeEnded
from malletrain.domain.job import Elastic, JobView, PilotPhase, Profile
from malletrain.learn import advisor
from malletrain.learn.advisor import Advice, JobKnowledge
from malletrain.learn.batch_choice import chosen_batches
from malletrain.learn.class_curves import class_speeds
from malletrain.sizing.knapsack import best_price
from malletrain.sizing.objective import Objective, alpha_of, urgencies_by_rank, urgency_by_use
from malletrain.sizing.problem import JobDemand, Problem
from malletrain.sizing.values import ValueRowCache, permitted_sizes, value_table

_UNKNOWN = JobKnowledge()


def learn_and_size(draft: Draft) -> Decided:
    """Share out the nodes of the pilots that stay, the free holes, and the nodes that change hands."""
    situation, rules, cache, now = draft.situation, draft.rules, draft.cache, draft.now
    nodes = draft.nodes
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
    wanted = {}
    for j, view in training.items():
        interval_s = change_interval_s(view, rules.horizon_s, now)
        stays, learnt = draft.staying[j], known.get(j, _UNKNOWN)
        demand = cache.demand(view, stays, learnt, rules, draft.width, draft.narrowest, interval_s)
        wanted[j] = explored(demand, view, rules.horizon_s, now)
    demands = within_reach(wanted, training, known, nodes, rules)
    demands = [_within_bounds(d, most=most.get(int(d.id))) for d in demands]
    demands = _weighed(demands, training, nodes, situation, rules)
    budgets = budgets_for(rules.budgets, situation.spent, training, demands, rules.horizon_s, now)
    limits = constraints_for(rules, training, demands, nodes) + caps_of_unfit(barred, demands, nodes)
    problem = Problem(
        horizon_s=rules.horizon_s,
        nodes=nodes,
        jobs=tuple(demands),
        alpha=alpha_of(rules.objective, rules.alpha),
        constraints=limits + budgets.caps,
        budgets=budgets.left,
        supply=situation.supply,
    )
    advice = advice_for(problem, training, known, now, rules, cache.rows)
    draft.class_of = _classes_of_nodes(draft, training)
    advised = _by_class(with_advice(problem, advice), draft, known, training)
    answer, put_off = cache.sized(draft.policy, advised)
    for job in doubtful:
        draft.refuse(job, *([situation.doubtful[job].why] if job in situation.doubtful else []))
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
    told_apart = len(set(found.values())) > 1 or any(view.job.class_min for view in views.values())
    return found if told_apart and len(found) == len(shared) else {}


def _by_class(
    problem: Problem, draft: Draft, known: Mapping[int, JobKnowledge], views: Mapping[int, JobView]
) -> Problem:
    """The problem with the nodes of each class, and each job's curves on them."""
    class_of, classes = draft.class_of, dict(sorted(Counter(draft.class_of.values()).items()))
    # Pilots of jobs that do not train now hold nodes that are not to be had; all the same they count, as ever.
    if not classes or sum(classes.values()) != problem.nodes:
        return problem
    if len(classes) == 1:
        (only,) = classes
        least = [least_on(views[int(each.id)].job.class_min, (only,)).get(only, 0) for each in problem.jobs]
        return replace(problem, jobs=tuple(map(_within_bounds, problem.jobs, least)))
    speeds = class_speeds(
        filter(None, (each.by_class for each in known.values())),
        filter(None, (each.worker_speeds for each in known.values())),
    )
    jobs = []
    for demand in problem.jobs:
        job = int(demand.id)
        barred = draft.unfit[job].nodes if job in draft.unfit else ()
        left = Counter(classes) - Counter(class_of[n] for n in barred if n in class_of)
        open_to = [name for name in classes if left[name] > 0]
        on = on_classes(demand, draft.staying[job], known.get(job, _UNKNOWN), open_to, class_of, speeds, views[job])
        jobs.append(replace(demand, on_classes=on))
    return replace(problem, jobs=tuple(jobs), classes=classes)


def caps_of_doubtful(draft: Draft) -> dict[int, int]:
    """The most nodes of jobs whose last starts did not begin: what they have, and of the free ones no more than ran
    before, or, once their rest is over, one step more at a time. Other jobs lose none to them."""
    left = {hole.node for hole in draft.free}
    unstarted = [action for action in draft.actions if isinstance(action, RecyclePilot) and action.unstarted]
    fails_now = {action.job_id for action in unstarted if action.unstarted != action.node}
    doubtful = {job: doubt for job, doubt in draft.situation.doubtful.items() if job in draft.live}
    caps = {job: len(draft.staying[job]) for job in sorted(doubtful.keys() | fails_now)}
    for job, has in caps.items():
        view = draft.live[job]
        if job in fails_now or any(pilot.phase is PilotPhase.RELEASED for pilot in view.staying):
            continue
        doubt, unfit = doubtful[job], draft.unfit[job].nodes if job in draft.unfit else frozenset()
        again = [size for size in range(has + 1, doubt.begun + 1) if view.job.permits(size)]
        larger = range(has + max(1, draft.narrowest), 0 if doubt.rests else view.job.max_nodes + 1)
        step = (size for size in larger if view.job.permits(size))
        wanted = (again[-1] if again else next(step, has)) - has
        usable = sorted(left - unfit)
        if wanted <= len(usable):
            caps[job] += wanted
            left.difference_update(usable[:wanted])
    return caps


def within_reach(
    demands: Mapping[int, JobDemand], views: Mapping[int, JobView], known: Mapping[int, JobKnowledge], nodes: int,
    rules: Rules,
) -> list[JobDemand]:  # fmt: skip
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
    demand: JobDemand, view: JobView, known: JobKnowledge, share: int, factor: int, rules: Rules
) -> JobDemand:
    """The demand without sizes beyond `factor` times what was measured. `share`: the job's fair part of the nodes."""
    profile, fresh = profile_of(view, rules), known.fit is None and known.prior_jobs is None
    if profile in (Profile.NONE, Profile.GIVEN) or (profile is Profile.DOWNWARD and fresh):
        return demand  # downward is from large to small
    most = min(demand.max, advisor.max_explored_size(known, demand.min, demand.current, share, factor))
    return replace(demand, max=most, sizes=tuple(k for k in demand.sizes if k <= most) or demand.sizes[:1])


def advice_for(
    problem: Problem, views: Mapping[int, JobView], known: Mapping[int, JobKnowledge], now: float, rules: Rules,
    cache: ValueRowCache | None = None,
) -> Advice:  # fmt: skip
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
    return advisor.advise(candidates, price, problem.nodes, problem.horizon_s, now, rules.probing, problem.alpha)


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


def _candidate(demand: JobDemand, view: JobView, known: JobKnowledge, nodes: int, rules: Rules) -> advisor.Candidate:
    rate, total = view.curve.throughput(demand.current) if view.curve else 0.0, view.job.total_samples
    left_s = None if total is None or rate <= 0 else max(0.0, total - view.samples_done) / rate
    return advisor.Candidate(
        id=view.job.id, current=demand.current, sizes=tuple(permitted_sizes(demand, nodes)[1:].tolist()),
        curve=demand.curve, weight=max(demand.weight, 1e-9), costs=view.costs, known=known,
        profile=profile_of(view, rules), left_s=left_s,
    )  # fmt: skip


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
        barred = {*avoids, *(draft.unfit[job].nodes if job in draft.unfit else ())}
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
