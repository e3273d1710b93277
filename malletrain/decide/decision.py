"""The decision, in numbered steps. A pure function: the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from malletrain.decide.budgets import NodeTimeSpent, budgets_for
from malletrain.decide.demand import DecisionCache, JobHoldings, due_of
from malletrain.decide.holes import Foresight, Holes, find_holes, pilot_limit_s
from malletrain.decide.limits import constraints_for
from malletrain.decide.multi_node_pilots import (
    count_tasks,
    replaceable_stragglers,
    startable_holes,
    with_co_allocated,
)
from malletrain.decide.placement import place, rank
from malletrain.decide.profiling import ProbeChange, advice_for, probe_changes, with_advice, within_reach
from malletrain.decide.reconcile import (
    clear_away,
    leaving,
    limit_cuts,
    overdue_leaves,
    overdue_pilots,
    start_and_leave,
    top_ups,
)
from malletrain.decide.reserve import Reserve, free_suffice, plan_reserve
from malletrain.decide.rules import Rules
from malletrain.decide.starvation_guard import starving_jobs
from malletrain.decide.straggler_replacement import replace_stragglers
from malletrain.decide.yielding import YieldPlan, any_pending_fits, availability, plan_yields
from malletrain.domain.decision import Action, CancelTasks, Decision, Hole, LeaveCause, OpenHole, Refusal, TopUp
from malletrain.domain.job import JobPhase, JobView, Pilot
from malletrain.domain.snapshot import LEAVE_STATES, Snapshot
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.batch_choice import chosen_batches
from malletrain.learn.hole_forecast import Forecast
from malletrain.learn.stragglers import Straggler
from malletrain.learn.supply_forecast import lifetimes_of_holes
from malletrain.sizing.objective import Objective, alpha_of, urgency_by_use
from malletrain.sizing.problem import JobDemand, Policy, Problem

_UNKNOWN = JobKnowledge()


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision looks at. `over_since`: when jobs that are over ended; `startable_since`: since when
    main jobs could have started; `paused`: why nothing new may start (the breaker), or '';
    `crowded`: why no more held tasks may be submitted, or ''; `drained`:
    nodes that operators keep pilots off; `known`: what was learnt of each job that is profiled; `open_holes`,
    `forecast`: which holes are open, and what to expect of them (None: nothing beyond the plan); `resting`: nodes
    and jobs (`job 7`) on which pilots did not start lately, or were slow, with the reason; `slow`: by job, workers
    that hold up the others; `supply`: equally likely numbers of nodes to come, where jobs have deadlines; `used`:
    node-seconds by account, old ones fading; `spent`: what budgets are held against."""

    snapshot: Snapshot
    views: Mapping[int, JobView]
    now: float
    over_since: Mapping[int, float] = field(default_factory=dict)
    startable_since: Mapping[str, float] = field(default_factory=dict)
    paused: str = ""
    crowded: str = ""
    drained: frozenset[str] = frozenset()
    used: Mapping[str, float] = field(default_factory=dict)
    spent: NodeTimeSpent = field(default_factory=NodeTimeSpent)
    known: Mapping[int, JobKnowledge] = field(default_factory=dict)
    open_holes: Mapping[str, OpenHole] = field(default_factory=dict)
    forecast: Forecast | None = None
    resting: Mapping[str, str] = field(default_factory=dict)
    supply: tuple[int, ...] = ()
    slow: Mapping[int, tuple[Straggler, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision, and what the next one must remember; `advice`: for each job, what would be measured next."""

    decision: Decision
    startable_since: Mapping[str, float]
    probes: tuple[ProbeChange, ...] = ()
    advice: Mapping[int, str] = field(default_factory=dict)


def decide(situation: Situation, policy: Policy, rules: Rules, memo: DecisionCache | None = None) -> Decided:
    """Observe, yield, size, place, reconcile. Nothing is touched.

    `memo`: of the last decision, by the same caller; it saves time and changes nothing.
    """
    now, site = situation.now, rules
    memo = memo or DecisionCache()
    snapshot = memo.look(situation.snapshot)
    live = {j: v for j, v in situation.views.items() if not v.phase.is_over}
    memo.forget_all_but(live)
    standing = {j: memo.standing(v) for j, v in live.items()}
    shared = any(view.co_allocated for view in live.values())  # some task holds several nodes

    # 1 What is over is cleared away; what did not do as asked is ended.
    actions: list[Action] = []
    for job_id, view in sorted(situation.views.items()):
        if view.phase.is_over:
            actions += clear_away(view, situation.over_since.get(job_id, now), now, rules)
    actions += overdue_pilots(live, snapshot, now, rules)
    given_up = {pilot for action in actions for pilot in pilots_of(action)}

    # 2 Each node's hole, also of those that pilots hold.
    held = frozenset().union(*[each.held for each in standing.values()])
    foresight = None if situation.forecast is None else Foresight(situation.open_holes, situation.forecast, now)
    holes = find_holes(snapshot, held, now, rules, foresight)
    if situation.forecast is not None:
        rules = replace(rules, horizon_s=_horizon_s(holes, situation, situation.forecast, rules))

    # 3 Yield: main jobs that could start now are given their nodes.
    given = _yields(situation, live, rules, memo)

    # 4 Pilots that must go whatever the sizes are.
    for view in in_question(standing, holes, held, given.leave, situation, rules):
        for pilot in view.staying:
            if pilot.id in given_up:
                continue
            must = must_leave(pilot, view, situation, holes, given.leave, rules)
            if must is not None:
                given_up.add(pilot.id)
                closing = holes.get(pilot.node) if must[0] is LeaveCause.HOLE_CLOSES else None
                actions.append(leaving(pilot, must[0], now, rules, must[1], closing))
    actions = with_co_allocated(actions, situation.views)
    given_up |= {pilot for action in actions for pilot in pilots_of(action)}

    # 5 How many nodes there are to share: those of the pilots that stay, and the free holes less the reserve.
    stays = {j: each.without(given_up) for j, each in standing.items()}
    free, refusals = _free_holes(holes, held, given.claimed, situation, rules)
    coming = _changing_hands(live, holes, given.given, situation, rules)
    if rules.keep_leaves or rules.keep_idle:
        spare = _reserve(free, stays, live, given.given, situation, rules, memo)
        refusals += [Refusal(hole.node, spare.kept[hole.node]) for hole in free if hole.node in spare.kept]
        free = [hole for hole in free if hole.node not in spare.kept]
        coming -= spare.kept.keys()
        if spare.leave:
            going = [p for pilots in stays.values() for p in pilots if p.id in spare.leave]
            leaves = with_co_allocated(
                [leaving(p, LeaveCause.RESERVE, now, rules, spare.leave[p.id]) for p in going], live
            )
            actions += leaves
            given_up |= {pilot for action in leaves for pilot in pilots_of(action)}
            stays = {j: each.without(given_up) for j, each in standing.items()}
    busy = sum(len(pilots) for pilots in stays.values())
    free = startable_holes(free, rules.max_pilots - count_tasks(stays, shared), rules.max_nodes, snapshot)
    if situation.paused:
        refusals.append(Refusal("all", situation.paused))
        free, coming = [], frozenset()

    # 6 Stragglers: a free node for the replacement of each, and once that is ready they go.
    replaced = replace_stragglers(replaceable_stragglers(situation.slow, live), live, stays, free, now, rules)
    actions += replaced.leaves
    refusals += replaced.refusals
    given_up |= replaced.gone
    if replaced.uncounted or replaced.nodes:
        stays = {j: [p for p in pilots if p.id not in replaced.uncounted] for j, pilots in stays.items()}
        busy -= len(replaced.uncounted)
        free = [hole for hole in free if hole.node not in replaced.nodes]

    # 7 What to learn, and sizes.
    nodes = busy + len(free) + len(coming)
    training = {
        j: view
        for j, view in sorted(live.items())
        # With pilots that go now, a job may have too few tasks left for its fewest nodes.
        if standing[j].may_train and len(stays[j]) + view.held_count >= max(1, view.job.min_nodes)
    }
    known = {j: situation.known[j] for j in training if j in situation.known}
    share = -(-nodes // max(1, len(training)))
    demands = [
        within_reach(memo.demand(view, stays[j], known[j], site), view, known[j], share, rules)
        if j in known
        else memo.demand(view, stays[j], _UNKNOWN, site)
        for j, view in training.items()
    ]
    demands = _weighed(demands, training, nodes, situation, rules)
    budgets = budgets_for(rules.budgets, situation.spent, training, demands, rules.horizon_s, now)
    refusals += budgets.refusals
    problem = Problem(
        horizon_s=rules.horizon_s,
        nodes=nodes,
        jobs=tuple(demands),
        alpha=alpha_of(rules.objective, rules.alpha),
        constraints=constraints_for(rules.limits, rules.max_resizes, rules.user_share, training, demands, nodes)
        + budgets.caps,
        budgets=budgets.left,
        lifetimes=_lifetimes(policy, holes.values(), situation, nodes),
        supply=situation.supply,
    )
    advice = advice_for(problem, training, known, now, rules, memo.rows)
    answer, put_off = memo.sized(policy, with_advice(problem, advice))
    refusals += [Refusal(name, "cannot be kept by any sizes now, and is put off") for name in put_off]
    sizes = {int(job_id): size for job_id, size in answer.sizes.items()}
    batches = chosen_batches(demands, answer)
    probes = probe_changes(advice, sizes, known)
    sizes.update({j: 0 for j in live if j not in sizes})

    # 8 Nodes, and the actions that lead there.
    weights = {hole.node: snapshot.node[hole.node].weight for hole in free}
    slow = {each.pilot for found in situation.slow.values() for each in found}
    placement = place(sizes, live, stays, free, weights, holes, now, slow, snapshot.leaves)
    room = rules.max_pilots - count_tasks(placement.keep, shared)
    moves, waits = start_and_leave(placement, live, snapshot, now, rules, situation.resting, replaced.starts, room)
    actions += moves
    dropped = {p.id for pilots in placement.drop.values() for p in pilots}
    actions += [cut for cut in limit_cuts(live, holes, now, rules) if cut.pilot not in given_up | dropped]
    if situation.crowded:
        refusals.append(Refusal("top-up", situation.crowded))
    else:
        actions += top_ups(live, now, rules)
    decision = Decision(
        at=now,
        sizes=sizes,
        nodes=nodes,
        held={int(demand.id): demand.current for demand in demands if demand.current},
        horizon_s=rules.horizon_s,
        status=answer.status,
        objective=answer.objective,
        reason="; ".join((answer.reason, *budgets.binding(sizes))),
        holes=holes.values(),
        actions=tuple(actions),
        refusals=tuple(refusals + waits),
        batches=batches,
    )
    return Decided(decision, given.startable, probes, advice.reasons)


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


def _lifetimes(
    policy: Policy, holes: Iterable[Hole], situation: Situation, nodes: int
) -> tuple[tuple[float, int], ...]:
    """For policies that plan ahead: how many of the nodes last how long."""
    if situation.forecast is None or not policy.looks_ahead:
        return ()
    return lifetimes_of_holes(holes, situation.open_holes, situation.forecast, situation.now, nodes)


def yield_now(
    situation: Situation, rules: Rules, memo: DecisionCache | None = None
) -> tuple[list[Action], Mapping[str, float]]:
    """Step 3 alone, for the light looks between two decisions; and whoever should have left by now is ended."""
    memo = memo or DecisionCache()
    memo.look(situation.snapshot)
    views = {j: v for j, v in situation.views.items() if not v.phase.is_over}
    given = _yields(situation, views, rules, memo)
    actions = [
        leaving(pilot, LeaveCause.YIELD, situation.now, rules, given.leave[pilot.id])
        for _, view in sorted(views.items())
        for pilot in view.staying
        if pilot.id in given.leave
    ]
    return with_co_allocated(overdue_leaves(views, situation.now) + actions, views), given.startable


def pilots_of(action: Action) -> tuple[str, ...]:
    """The pilots that an action touches."""
    if isinstance(action, CancelTasks):
        return action.pilots
    return () if isinstance(action, TopUp) else (action.pilot,)


def _horizon_s(holes: Mapping[str, Hole], situation: Situation, forecast: Forecast, rules: Rules) -> float:
    """How far sizing looks ahead: as the site says, or by the forecast of the holes there are."""
    if not rules.auto_horizon:
        return rules.horizon_s
    opened = [situation.open_holes[name] for name in sorted(holes) if name in situation.open_holes]
    return forecast.horizon_s([(situation.now - each.began, each.cohort) for each in opened])


def _yields(situation: Situation, live: Mapping[int, JobView], rules: Rules, memo: DecisionCache) -> YieldPlan:
    if not any_pending_fits(situation.snapshot, rules):
        return YieldPlan()
    nodes = [node for _, view in sorted(live.items()) for node in memo.harvested(view)]
    return plan_yields(situation.snapshot, nodes, situation.startable_since, situation.now, rules)


def in_question(
    standing: Mapping[int, JobHoldings],
    holes: Holes,
    held: frozenset[str],
    yielding: Mapping[str, str],
    situation: Situation,
    rules: Rules,
) -> list[JobView]:
    """The jobs of which some pilot may have to leave, by id: the quick answer, `must_leave` has the exact one."""
    latest = situation.now + rules.margin_s + rules.leave_lead_s
    wanted = holes.ended_by(latest) | situation.drained | (held - holes.names)  # staff wants those without a hole
    return [
        each.view
        for _, each in sorted(standing.items())
        if each.view.phase is JobPhase.HELD
        or each.first_end <= latest
        or not wanted.isdisjoint(each.nodes)
        or not yielding.keys().isdisjoint(each.pilots)
    ]


def must_leave(
    pilot: Pilot,
    view: JobView,
    situation: Situation,
    holes: Mapping[str, Hole],
    yielding: Mapping[str, str],
    rules: Rules,
) -> tuple[LeaveCause, str] | None:
    now = situation.now
    if pilot.id in yielding:
        return LeaveCause.YIELD, yielding[pilot.id]
    if view.phase is JobPhase.HELD:
        return LeaveCause.JOB_OVER, f"job {view.job.id} is held: {view.reason}"
    if pilot.node in situation.drained:
        return LeaveCause.OPERATOR, f"{pilot.node} is drained of pilots by an operator"
    node = situation.snapshot.node.get(pilot.node)
    if node is not None and node.state in LEAVE_STATES:
        return LeaveCause.NODE_WANTED, f"{pilot.node} is {node.state.value} {node.reason}".rstrip()
    if node is not None and rules.harvest_partition not in node.partitions:
        return LeaveCause.NODE_WANTED, f"{pilot.node} is no longer in partition {rules.harvest_partition}"
    if not rules.may_harvest(pilot.node):
        return LeaveCause.NODE_WANTED, f"{pilot.node} is no longer one that may be harvested (pool.include, exclude)"
    hole = holes.get(pilot.node)
    if hole is not None and hole.until - now <= rules.margin_s + rules.leave_lead_s:
        return LeaveCause.HOLE_CLOSES, f"{hole.reason} in {max(0.0, hole.until - now):.0f} s"
    if pilot.ends_at is not None and pilot.ends_at - now <= rules.leave_lead_s:
        return LeaveCause.HOLE_CLOSES, f"its time limit ends in {max(0.0, pilot.ends_at - now):.0f} s"
    return None


def _free_holes(
    holes: Holes,
    held: Collection[str],
    claimed: Mapping[str, str],
    situation: Situation,
    rules: Rules,
) -> tuple[list[Hole], list[Refusal]]:
    """The holes that may be started on, best first; each other one is refused with the reason."""
    snapshot, now = situation.snapshot, situation.now
    free: list[Hole] = []
    refusals: list[Refusal] = []
    for name in sorted(holes.names.difference(held)):
        hole = holes[name]
        if name in situation.drained:
            refusals.append(Refusal(name, "drained of pilots by an operator"))
        elif name in claimed:
            refusals.append(Refusal(name, f"kept for main job {claimed[name]}, which could start on it"))
        elif name in situation.resting:
            refusals.append(Refusal(name, situation.resting[name]))
        elif not pilot_limit_s(hole, now, rules):
            refusals.append(Refusal(name, f"hole of {max(0.0, hole.until - now):.0f} s is too short ({hole.reason})"))
        else:
            free.append(hole)
    free.sort(key=lambda hole: rank(hole, snapshot.node[hole.node].weight))
    return free, refusals


def _reserve(
    free: Sequence[Hole],
    stays: Mapping[int, Sequence[Pilot]],
    views: Mapping[int, JobView],
    given: Collection[str],
    situation: Situation,
    rules: Rules,
    memo: DecisionCache,
) -> Reserve:
    """What stays idle: the reserve of free nodes, of those that pilots have left, and of those that pilots hold."""
    if free_suffice(free, rules):
        return plan_reserve(free, (), (), situation.snapshot, rules)
    mine = {pilot.id for pilots in stays.values() for pilot in pilots}
    held = [node for _, view in sorted(views.items()) for node in memo.harvested(view) if node.pilot in mine]
    left = availability(situation.snapshot, held, rules).coming - set(given) - situation.drained
    return plan_reserve(free, held, left, situation.snapshot, rules)


def _changing_hands(
    views: Mapping[int, JobView],
    holes: Mapping[str, Hole],
    given: Collection[str],
    situation: Situation,
    rules: Rules,
) -> frozenset[str]:
    """The nodes that one pilot is leaving for another: counted, or the plan would change while they do.

    Not those that a main job, staff or an operator wants, or whose hole is nearly over.
    """
    leaving = [p for view in views.values() for p in view.leaving]
    wanted = set(given) | situation.drained
    return frozenset(
        pilot.node
        for pilot in leaving
        if pilot.node in holes
        and pilot.node not in wanted
        and pilot.node not in situation.resting
        and pilot_limit_s(holes[pilot.node], situation.now, rules)
        and all(job.partition == rules.harvest_partition for job in situation.snapshot.holders.get(pilot.node, ()))
    )
