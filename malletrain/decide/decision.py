"""The decision, in numbered steps. A pure function: the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from malletrain.decide.advisor import Known
from malletrain.decide.forecast import Forecast
from malletrain.decide.holes import foreseen, pilot_limit_s
from malletrain.decide.holes import holes as find_holes
from malletrain.decide.place import place, rank
from malletrain.decide.profiling import ProbeChange, advice_for, advised, bounded, changes, expected_curve
from malletrain.decide.reconcile import clear_away, cuts, leaving, overdue, start_and_leave, top_ups
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import HarvestedNode, yields
from malletrain.domain.decision import Action, CancelTasks, Decision, Hole, LeaveCause, OpenHole, Refusal, TopUp
from malletrain.domain.job import Curve, JobPhase, JobView, Pilot
from malletrain.domain.snapshot import LEAVE_STATES, Snapshot
from malletrain.sizing.problem import JobDemand, Policy, Problem


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision looks at. `over_since`: when jobs that are over ended; `startable_since`: since when
    main jobs could have started; `paused`: why nothing new may start (the breaker), or ''; `drained`:
    nodes that operators keep pilots off; `known`: what was learnt of each job that is profiled; `open_holes`,
    `forecast`: which holes are open, and what to expect of them (None: nothing beyond the plan)."""

    snapshot: Snapshot
    views: Mapping[int, JobView]
    now: float
    over_since: Mapping[int, float] = field(default_factory=dict)
    startable_since: Mapping[str, float] = field(default_factory=dict)
    paused: str = ""
    drained: frozenset[str] = frozenset()
    known: Mapping[int, Known] = field(default_factory=dict)
    open_holes: Mapping[str, OpenHole] = field(default_factory=dict)
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision, and what the next one must remember; `advice`: for each job, what would be measured next."""

    decision: Decision
    startable_since: Mapping[str, float]
    probes: tuple[ProbeChange, ...] = ()
    advice: Mapping[int, str] = field(default_factory=dict)


def decide(situation: Situation, policy: Policy, rules: Rules) -> Decided:
    """Observe, yield, size, place, reconcile. Nothing is touched."""
    snapshot, now = situation.snapshot, situation.now
    live = {j: v for j, v in situation.views.items() if not v.phase.is_over}

    # 1 What is over is cleared away; what did not do as asked is ended.
    actions: list[Action] = []
    for job_id, view in sorted(situation.views.items()):
        if view.phase.is_over:
            actions += clear_away(view, situation.over_since.get(job_id, now), now, rules)
    actions += overdue(live, now, rules)
    given_up = {pilot for action in actions for pilot in pilots_of(action)}

    # 2 Each node's hole, also of those that pilots hold.
    held = {p.node: p.id for view in live.values() for p in view.active}
    holes = {hole.node: hole for hole in find_holes(snapshot, held, now, rules)}
    if situation.forecast is not None:
        holes = foreseen(holes, situation.open_holes, situation.forecast, now)
        rules = replace(rules, horizon_s=_horizon_s(holes, situation, situation.forecast, rules))

    # 3 Yield: main jobs that could start now are given their nodes.
    given = yields(snapshot, _harvested(live), situation.startable_since, now, rules)

    # 4 Pilots that must go whatever the sizes are.
    for _, view in sorted(live.items()):
        for pilot in view.staying:
            if pilot.id in given_up:
                continue
            must = _must_leave(pilot, view, situation, holes, given.leave, rules)
            if must is not None:
                given_up.add(pilot.id)
                actions.append(leaving(pilot, must[0], now, rules, must[1]))

    # 5 How many nodes there are to share: those of the pilots that stay, and the free holes less the reserve.
    stays = {j: [p for p in view.staying if p.id not in given_up] for j, view in live.items()}
    free, refusals = _free_holes(holes, held, given.claimed, situation, rules)
    busy = sum(len(pilots) for pilots in stays.values())
    free = free[: max(0, rules.max_pilots - busy)]
    coming = _changing_hands(live, holes, given.given, situation, rules)
    if situation.paused:
        refusals.append(Refusal("all", situation.paused))
        free, coming = [], 0

    # 6 What to learn, and sizes.
    nodes = busy + len(free) + coming
    training = {j: view for j, view in sorted(live.items()) if _may_train(view)}
    known = {j: situation.known[j] for j in training if j in situation.known}
    share = -(-nodes // max(1, len(training)))
    demands = [
        bounded(_demand(view, stays[j], known[j], rules), view, known[j], share, rules)
        if j in known
        else _demand(view, stays[j], Known(), rules)
        for j, view in training.items()
    ]
    problem = Problem(horizon_s=rules.horizon_s, nodes=nodes, jobs=tuple(demands), alpha=rules.alpha)
    advice = advice_for(problem, training, known, now, rules)
    answer = policy.size(advised(problem, advice))
    sizes = {int(job_id): size for job_id, size in answer.sizes.items()}
    probes = changes(advice, sizes, known)
    sizes.update({j: 0 for j in live if j not in sizes})

    # 7 Nodes, and the actions that lead there.
    weights = {n.name: n.weight for n in snapshot.nodes}
    placement = place(sizes, live, stays, free, weights, holes, now)
    moves, waits = start_and_leave(placement, live, snapshot, now, rules)
    actions += moves
    dropped = {p.id for pilots in placement.drop.values() for p in pilots}
    actions += [cut for cut in cuts(live, holes, now, rules) if cut.pilot not in given_up | dropped]
    actions += top_ups(live, now, rules)
    decision = Decision(
        at=now,
        sizes=sizes,
        status=answer.status,
        objective=answer.objective,
        holes=tuple(holes[name] for name in sorted(holes)),
        actions=tuple(actions),
        refusals=tuple(refusals + waits),
    )
    return Decided(decision, given.startable, probes, advice.reasons)


def yield_now(situation: Situation, rules: Rules) -> tuple[list[Action], Mapping[str, float]]:
    """Step 3 alone, for the light looks between two decisions."""
    views = {j: v for j, v in situation.views.items() if not v.phase.is_over}
    given = yields(situation.snapshot, _harvested(views), situation.startable_since, situation.now, rules)
    actions = [
        leaving(pilot, LeaveCause.YIELD, situation.now, rules, given.leave[pilot.id])
        for _, view in sorted(views.items())
        for pilot in view.staying
        if pilot.id in given.leave
    ]
    return actions, given.startable


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


def _must_leave(
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
    hole = holes.get(pilot.node)
    if hole is not None and hole.until - now <= rules.margin_s + rules.leave_lead_s:
        return LeaveCause.HOLE_CLOSES, f"{hole.reason} in {max(0.0, hole.until - now):.0f} s"
    if pilot.ends_at is not None and pilot.ends_at - now <= rules.leave_lead_s:
        return LeaveCause.HOLE_CLOSES, f"its time limit ends in {max(0.0, pilot.ends_at - now):.0f} s"
    return None


def _harvested(views: Mapping[int, JobView]) -> list[HarvestedNode]:
    """The nodes of staying pilots, each with the speed-up that its job loses without it.

    The last nodes of a job are cheaper than its first: the n-th pilot to go costs O(k-n+1) - O(k-n) over O(1),
    times the job's weight, and a job cut below its minimum loses all that it has.
    """
    found: list[HarvestedNode] = []
    for _, view in sorted(views.items()):
        curve = view.curve or Curve.linear(view.job.max_nodes)
        unit = curve.throughput(1) or 1.0
        # The pilots that end soonest are the first to go.
        pilots = sorted(view.staying, key=lambda p: (p.started_at is not None, p.ends_at or 0.0, p.id))
        size = len(pilots)
        for pilot in pilots:
            left = size - 1
            kept = curve.throughput(left) if left >= view.job.min_nodes else 0.0
            cost = view.job.weight * (curve.throughput(size) - kept) / unit
            found.append(HarvestedNode(pilot.node, pilot.id, view.job.id, cost))
            size = left
    return found


def _free_holes(
    holes: Mapping[str, Hole],
    held: Mapping[str, str],
    claimed: Mapping[str, str],
    situation: Situation,
    rules: Rules,
) -> tuple[list[Hole], list[Refusal]]:
    """The holes that may be started on, best first; each other one is refused with the reason."""
    snapshot, now = situation.snapshot, situation.now
    free: list[Hole] = []
    refusals: list[Refusal] = []
    for name, hole in sorted(holes.items()):
        if name in held:
            continue
        if name in situation.drained:
            refusals.append(Refusal(name, "drained of pilots by an operator"))
        elif name in claimed:
            refusals.append(Refusal(name, f"kept for main job {claimed[name]}, which could start on it"))
        elif not pilot_limit_s(hole, now, rules):
            refusals.append(Refusal(name, f"hole of {max(0.0, hole.until - now):.0f} s is too short ({hole.reason})"))
        else:
            free.append(hole)
    free.sort(key=lambda hole: rank(hole, snapshot.node[hole.node].weight))
    kept = min(rules.keep_idle, len(free))
    reserve = f"one of {rules.keep_idle} nodes that stay idle (pool.keep_idle)"
    refusals += [Refusal(hole.node, reserve) for hole in free[len(free) - kept :]]
    return free[: len(free) - kept], refusals


def _changing_hands(
    views: Mapping[int, JobView],
    holes: Mapping[str, Hole],
    given: Collection[str],
    situation: Situation,
    rules: Rules,
) -> int:
    """How many nodes one pilot is leaving for another: counted, or the plan would change while they do.

    Not those that a main job, staff or an operator wants, or whose hole is nearly over.
    """
    leaving = [p for view in views.values() for p in view.active if p not in view.staying]
    wanted = set(given) | situation.drained
    return sum(
        1
        for pilot in leaving
        if pilot.node in holes
        and pilot.node not in wanted
        and pilot_limit_s(holes[pilot.node], situation.now, rules)
        and all(job.partition == rules.harvest_partition for job in situation.snapshot.holders.get(pilot.node, ()))
    )


def _may_train(view: JobView) -> bool:
    tasks = len(view.held) + len(view.staying)
    return view.phase in (JobPhase.QUEUED, JobPhase.RUNNING) and tasks >= max(1, view.job.min_nodes)


def _demand(view: JobView, stays: Sequence[Pilot], known: Known, rules: Rules) -> JobDemand:
    """One job as the sizing problem sees it. It cannot get more nodes than it has tasks for.

    Throughput counts in speed-ups over one node: samples of different models do not compare, and of a job that
    nobody has measured they are not known.
    """
    job = view.job
    most = min(job.max_nodes, len(stays) + len(view.held))
    curve = expected_curve(view, known, rules)
    unit = curve.throughput(1) or 1.0
    # What remains is left out: a job that ends within the horizon would be worth the same on any number of nodes,
    # and nodes would stand idle (replayed, 60 NAS children: mean completion 33,242 s with it, 27,774 s without).
    return JobDemand(
        id=job.id,
        current=len(stays),
        min=job.min_nodes,
        max=most,
        sizes=tuple(k for k in job.sizes if k <= most),
        weight=job.weight,
        grow_s=view.costs.grow_s,
        shrink_s=view.costs.shrink_s,
        activate_s=view.costs.activate_s,
        curve=Curve(tuple((n, rate / unit) for n, rate in curve.points)),
    )
