"""The decision, in eight named steps. A pure function: the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from malletrain.decide.demand import DecisionCache, harvested_by, may_train
from malletrain.decide.draft import Decided, Draft, Inputs, Situation
from malletrain.decide.holes import by_cohort, find_holes, pilot_limit_s
from malletrain.decide.leaving import (
    can_wait,
    clear_away,
    leave_what_must,
    leaving,
    leaving_for,
    may_complete_in_cycle,
    overdue_leaves,
    overdue_pilots,
)
from malletrain.decide.multi_node_pilots import (
    count_tasks,
    make_room,
    pilot_width,
    startable,
    task_groups,
    with_co_allocated,
)
from malletrain.decide.placement import Ground, place, rank, unfit_nodes
from malletrain.decide.reconcile import find_strays, limit_cuts, start_and_leave, top_ups
from malletrain.decide.reserve import free_suffice, plan_reserve
from malletrain.decide.rules import Rules
from malletrain.decide.sizes import Sizing, learn_and_size, replace_stragglers
from malletrain.decide.yielding import YieldPlan, any_pending_fits, availability, emptied_nodes, plan_yields
from malletrain.domain.decision import Action, Decision, Hole, LeaveCause, Refusal
from malletrain.domain.job import JobView, Pilot
from malletrain.domain.snapshot import NodeState, Snapshot
from malletrain.sizing.policy import Policy


def decide(situation: Situation, policy: Policy, rules: Rules, cache: DecisionCache | None = None) -> Decided:
    """Sizes, nodes, actions and refusals for one look at the cluster. Nothing is touched.

    `cache`: of the last decision, by the same caller; it saves time and changes nothing.
    """
    inputs = Inputs.of(situation, policy, rules, cache or DecisionCache())
    draft = Draft(rules.horizon_s)
    draft.yielding = _yields(situation, inputs.live, rules)  # 1. main jobs are given nodes
    _clear_away(draft, inputs)  # 2. what is over, and who did not do as asked
    draft.holes = find_holes(inputs.snapshot, inputs.held, inputs.now, rules)  # 3. also of nodes that pilots hold
    leave_what_must(draft, inputs)  # 4. for main jobs, staff, operators, the end of a hole
    _find_free(draft, inputs)  # 5. what may be started on: less the reserve, and within the cap on pilots
    _keep_reserve(draft, inputs)
    _keep_cap(draft, inputs)
    draft.unfit = unfit_nodes(draft, inputs)
    replace_stragglers(draft, inputs)  # 6.
    sizing = learn_and_size(draft, inputs)  # 7.
    _place_and_reconcile(draft, inputs, sizing)  # 8.
    _leave_after_the_cycle(draft, inputs)
    decision = Decision(
        at=inputs.now,
        sizes=sizing.sizes,
        nodes=draft.nodes,
        held=sizing.held,
        horizon_s=draft.horizon_s,
        status=sizing.answer.status,
        objective=sizing.answer.objective,
        reason="; ".join((sizing.answer.reason, *sizing.budgets.binding(sizing.sizes), *_promised(rules))),
        holes=tuple(draft.holes.values()),
        actions=tuple(draft.actions),
        refusals=tuple(draft.refusals),
        batches=sizing.batches,
        strays=find_strays(inputs.snapshot, situation.views, rules),
    )
    return Decided(decision, draft.yielding, sizing.probes, sizing.advice)


def yield_now(
    situation: Situation, rules: Rules, cache: DecisionCache | None = None
) -> tuple[list[Action], YieldPlan]:
    """Step 1 alone, for the light looks between two decisions; and whoever should have left by now is ended."""
    (cache or DecisionCache()).look(situation.snapshot)
    views = {j: v for j, v in situation.views.items() if not v.phase.is_over}
    given = _yields(situation, views, rules)
    going = [p for _, view in sorted(views.items()) for p in view.staying if p.id in given.leave]
    actions = overdue_leaves(views, situation.now, given)
    actions += [leaving_for(pilot, given, situation.now, rules) for pilot in going]
    return with_co_allocated(actions, views), given


def _yields(situation: Situation, live: Mapping[int, JobView], rules: Rules) -> YieldPlan:
    snapshot, before, now, plan = situation.snapshot, situation.yielded.emptied, situation.now, YieldPlan()
    fits = any_pending_fits(snapshot, rules)
    if not fits and not before:
        return plan
    nodes = harvested_by(live)
    if fits:
        plan = plan_yields(snapshot, nodes, situation.yielded.startable, now, rules)
    # Which nodes are at hand is asked only of those that nobody is given any more.
    at_hand = availability(snapshot, nodes, rules) if before.keys() - plan.given_to.keys() else None
    available = at_hand.free | at_hand.coming if at_hand else ()
    return replace(plan, emptied=emptied_nodes(plan.given_to, before, available, snapshot, now, rules))


def _clear_away(draft: Draft, inputs: Inputs) -> None:
    """Clear away jobs that are over, and end pilots that did not do as asked in time."""
    for job_id, view in sorted(inputs.situation.views.items()):
        if view.phase.is_over:
            over_since = inputs.situation.over_since.get(job_id, inputs.now)
            draft.give_up(clear_away(view, over_since, inputs.now, inputs.rules), inputs)
    draft.give_up(overdue_pilots(inputs.live, inputs.snapshot, inputs.now, inputs.rules, draft.yielding), inputs)


def _find_free(draft: Draft, inputs: Inputs) -> None:
    """The holes that may be started on, best first, each other one refused with the reason; and the nodes that change
    hands."""
    free: list[Hole] = []
    for hole in draft.holes.values():
        if hole.node in inputs.held:
            continue
        if why := _why_not_free(hole, draft.yielding, inputs):
            draft.refusals.append(Refusal(hole.node, why))
        else:
            free.append(hole)
    draft.free = _best_first(free, inputs.snapshot)
    draft.coming = _changing_hands(draft, inputs)


def _why_not_free(hole: Hole, yielding: YieldPlan, inputs: Inputs) -> str:
    """Why no pilot may start in a hole that none holds, or ''."""
    if hole.node in inputs.situation.drained:
        return "drained of pilots by an operator"
    if hole.node in yielding.claimed:
        return f"kept for main job {yielding.claimed[hole.node]}, which could start on it"
    if hole.node in yielding.emptied:
        why = "was given it, until Slurm has had a backfill cycle to use it"
        return f"kept for main job {yielding.emptied[hole.node].job}, which {why}"
    if hole.node in inputs.situation.resting:
        return inputs.situation.resting[hole.node]
    if not pilot_limit_s(hole, inputs.now, inputs.rules):
        return f"hole of {max(0.0, hole.until - inputs.now):.0f} s is too short ({hole.reason})"
    return ""


def _best_first(free: Iterable[Hole], snapshot: Snapshot) -> list[Hole]:
    return sorted(free, key=lambda hole: rank(hole, snapshot.node[hole.node].weight))


def _changing_hands(draft: Draft, inputs: Inputs) -> frozenset[str]:
    """The nodes that pilots are leaving, also those that are asked to at this look: counted, or other jobs would
    change size while they do.

    Not those that a main job, staff or an operator wants, or whose hole is nearly over.
    """
    situation, rules, holes = inputs.situation, inputs.rules, draft.holes
    wanted = {*draft.yielding.given, *situation.drained, *situation.resting}
    leaving = [
        pilot.node
        for view in inputs.live.values()
        for pilot in (*view.leaving, *(each for each in view.staying if each.id in draft.given_up))
    ]
    return frozenset(
        node
        for node in leaving
        if node in holes
        and node not in wanted
        and pilot_limit_s(holes[node], situation.now, rules)
        and all(job.partition == rules.harvest_partition for job in situation.snapshot.holders.get(node, ()))
    )


def _keep_reserve(draft: Draft, inputs: Inputs) -> None:
    """Free nodes, and those that change hands, are left to the reserve; pilots leave where these are too few."""
    snapshot, rules, live = inputs.snapshot, inputs.rules, inputs.live
    if not rules.keep_leaves and not rules.keep_idle:
        return
    held, left = [], frozenset[str]()
    if not free_suffice(draft.free, rules):
        mine = {pilot.id for pilots in draft.staying.values() for pilot in pilots}
        held = [node for node in harvested_by(live) if node.pilot in mine]
        left = availability(snapshot, held, rules).coming - draft.yielding.given - inputs.situation.drained
        # slurmctld, restarted, has not heard of some nodes for seconds: what no pilot holds is as idle as ever.
        unheard = {node.name for node in snapshot.nodes if node.state is NodeState.UNKNOWN} - snapshot.held_names
        left |= {name for name in unheard if rules.may_harvest(name)}
    spare = plan_reserve(draft.free, held, left, snapshot, rules)
    draft.refusals += [Refusal(h.node, spare.kept[h.node]) for h in draft.free if h.node in spare.kept]
    draft.free = [hole for hole in draft.free if hole.node not in spare.kept]
    going = {p.node for pilots in draft.staying.values() for p in pilots if p.id in spare.leave}
    _leave(draft, inputs, spare.leave, LeaveCause.RESERVE)
    # The other nodes of a task that leaves are for pilots again.
    draft.coming = _changing_hands(draft, inputs) - spare.kept.keys() - going


def _leave(draft: Draft, inputs: Inputs, why: Mapping[str, str], cause: LeaveCause) -> None:
    """Pilots leave, each with those of its task, for the reasons that `why` has by pilot."""
    going = [p for pilots in draft.staying.values() for p in pilots if p.id in why]
    draft.give_up([leaving(p, cause, inputs.now, inputs.rules, why[p.id]) for p in going], inputs)


def _keep_cap(draft: Draft, inputs: Inputs) -> None:
    """As many pilots as may be: those beyond a cap leave, and new ones are as wide as it asks for."""
    situation, rules, snapshot = inputs.situation, inputs.rules, inputs.snapshot
    if rules.cap_why:
        _shed_pilots(draft, inputs)
    widest = [max(view.job.max_nodes for view in inputs.live.values())] if inputs.live else []
    draft.width = pilot_width(
        sum(map(len, draft.staying.values())),
        len(draft.free) + len(draft.coming),
        count_tasks(draft.staying),
        max_pilots=rules.max_pilots,
        max_starts=rules.max_starts,
        max_nodes=min([rules.max_nodes, *widest]),
    )
    if draft.width > 1:
        # The nodes of a pilot leave together, so they are of one cohort as far as may be.
        draft.holes = by_cohort(draft.holes, situation.open_holes)
        draft.free = _best_first((draft.holes[hole.node] for hole in draft.free), snapshot)
        if not situation.paused:
            _make_room(draft, inputs)
    draft.free = startable(draft.free, rules.max_pilots - count_tasks(draft.staying), draft.width, snapshot)
    if situation.paused:
        draft.refusals.append(Refusal("all", situation.paused))
        draft.free, draft.coming = [], frozenset()


def _shed_pilots(draft: Draft, inputs: Inputs) -> None:
    """Pilots beyond what slurmctld bears leave, those whose leaving costs training least first."""
    over = count_tasks(draft.staying) - inputs.rules.max_pilots
    if over <= 0:
        return
    of_id = {pilot.id: pilot for pilots in draft.staying.values() for pilot in pilots}
    cheapest = sorted(harvested_by(inputs.live), key=lambda node: (node.cost, node.node))
    tasks = dict.fromkeys(of_id[node.pilot].task for node in cheapest if node.pilot in of_id)
    going = set(list(tasks)[:over])
    why = f"more pilots than slurmctld bears: {inputs.rules.cap_why}"
    _leave(draft, inputs, {p.id: why for p in of_id.values() if p.task in going}, LeaveCause.RESERVE)


def _most_useful(view: JobView) -> int:
    """The most nodes that the job has a use for, as far as that is known."""
    curve = view.curve or view.job.given_curve
    return view.job.max_nodes if curve is None else curve.best_size(view.job.max_nodes)


def _make_room(draft: Draft, inputs: Inputs) -> None:
    """The narrowest pilots leave where the cap keeps wider ones from starting, and none as narrow starts."""
    most, staying = inputs.rules.max_pilots, draft.staying
    room = max(0, most - count_tasks(staying))
    if len(draft.free) <= room:
        return
    growing = [view for j, view in inputs.live.items() if may_train(view) and j not in inputs.situation.set_aside]
    lacking = [max(0, min(_most_useful(view) - len(staying[view.job.id]), view.held_count)) for view in growing]
    waiting = [len(group) for group in task_groups(draft.free, draft.width, inputs.snapshot)]
    tasks: dict[str, list[Pilot]] = {}
    for pilot in (pilot for pilots in staying.values() for pilot in pilots):
        tasks.setdefault(pilot.task, []).append(pilot)
    there = [
        (len(pilots), pilots[0].started_at or pilots[0].since, min(p.node for p in pilots), task)
        for task, pilots in tasks.items()
    ]
    draft.narrowest, going = make_room(there, waiting, lacking, room, draft.width, inputs.now)
    why = f"at most {most} pilots: it makes room for one of up to {draft.width} nodes"
    pilots = [pilot for task in going for pilot in tasks[task]]
    _leave(draft, inputs, {pilot.id: why for pilot in pilots}, LeaveCause.SHRINK)
    draft.coming |= {pilot.node for pilot in pilots}


def _promised(rules: Rules) -> list[str]:
    """What follows from the site's promise, in words."""
    held = [f"{rules.keep_idle} nodes stay idle: {rules.keep_why}"] if rules.keep_why else []
    return [*held, f"at most {rules.max_pilots} pilots: {rules.cap_why}"] if rules.cap_why else held


def _place_and_reconcile(draft: Draft, inputs: Inputs, sizing: Sizing) -> None:
    """Choose nodes for the sizes, and the actions that lead there."""
    situation, snapshot, live, now, rules = inputs.situation, inputs.snapshot, inputs.live, inputs.now, inputs.rules
    ground = Ground(
        free=draft.free,
        weights={hole.node: snapshot.node[hole.node].weight for hole in draft.free},
        holes=draft.holes,
        coming=draft.coming,
        slow={each.pilot for found in situation.slow.values() for each in found},
        avoided=situation.avoided,
        unfit={job: each.nodes for job, each in draft.unfit.items()},
        class_of=sizing.class_of,
    )
    placement = place(sizing.sizes, live, draft.staying, ground, sizing.classes)
    waits = start_and_leave(draft, inputs, placement)
    ending = draft.given_up | {p.id for pilots in placement.drop.values() for p in pilots}
    draft.actions += [cut for cut in limit_cuts(live, draft.holes, now, rules) if cut.pilot not in ending]
    if situation.crowded:
        draft.refusals.append(Refusal("top-up", situation.crowded))
    else:
        draft.actions += top_ups(live, now, rules)
    draft.refusals += waits
    draft.refusals += [Refusal(f"job {j}", why) for j, why in sorted(situation.set_aside.items()) if j in live]
    unmet = {j for j in draft.unfit if j in placement.short or sizing.sizes.get(j, 0) < live[j].job.max_nodes}
    draft.refusals += [Refusal(f"job {job}", draft.unfit[job].why) for job in sorted(unmet)]
    for job in sorted(placement.short.keys() & situation.avoided.keys()):
        draft.refusals += [Refusal(f"job {job}", f"{n}: {why}") for n, why in sorted(situation.avoided[job].items())]


def _leave_after_the_cycle(draft: Draft, inputs: Inputs) -> None:
    """Leaves that can wait are put off to the next look where they could cost a main job its backfill cycle."""
    if not draft.yielding.given or not may_complete_in_cycle(inputs.snapshot.plan, inputs.now, inputs.rules):
        return
    why = "a main job waits for the backfill cycle that comes first, and the node could still complete then"
    draft.refusals += [
        Refusal(action.node, f"pilot {action.pilot} leaves later: {why}")
        for action in draft.actions
        if can_wait(action)
    ]
    draft.actions = [action for action in draft.actions if not can_wait(action)]
