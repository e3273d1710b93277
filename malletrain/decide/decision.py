"""The decision, in eight named steps. A pure function: the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from malletrain.decide.draft import Decided, DecisionCache, Draft, Situation
from malletrain.decide.holes import best_first, find_holes, pilot_limit_s, plan_reserve
from malletrain.decide.leaving import (
    clear_away,
    leave_after_the_cycle,
    leave_what_must,
    leaving,
    leaving_for,
    overdue_leaves,
)
from malletrain.decide.multi_node_pilots import (
    count_tasks,
    make_room,
    pilot_width,
    startable,
    task_groups,
    with_co_allocated,
)
from malletrain.decide.placement import place, unfit_nodes
from malletrain.decide.reconcile import find_strays, limit_cuts, start_and_leave, top_ups
from malletrain.decide.rules import Rules
from malletrain.decide.sizes import learn_and_size, may_train, replace_stragglers
from malletrain.decide.yielding import (
    YieldPlan,
    any_pending_fits,
    availability,
    emptied_nodes,
    harvested_by,
    plan_yields,
)
from malletrain.domain.decision import Action, Hole, LeaveCause
from malletrain.domain.job import JobView, Pilot
from malletrain.domain.snapshot import NodeState
from malletrain.sizing.policy import Policy


def decide(situation: Situation, policy: Policy, rules: Rules, cache: DecisionCache | None = None) -> Decided:
    """Sizes, nodes, actions and refusals for one look at the cluster. Nothing is touched.

    `cache`: of the last decision, by the same caller; it saves time and changes nothing.
    """
    draft = Draft(situation, policy, rules, cache or DecisionCache())
    draft.yielding = _yields(situation, draft.live, rules)  # 1. main jobs are given nodes
    clear_away(draft)  # 2. what is over, and who did not do as asked
    draft.holes = find_holes(draft.snapshot, draft.held, draft.now, rules)  # 3. also of nodes that pilots hold
    leave_what_must(draft)  # 4. for main jobs, staff, operators, the end of a hole
    _find_free(draft)  # 5. what may be started on: less the reserve, and within the cap on pilots
    _keep_reserve(draft)
    _keep_cap(draft)
    draft.unfit = unfit_nodes(draft)
    replace_stragglers(draft)  # 6.
    decided = learn_and_size(draft)  # 7.
    _place_and_reconcile(draft, decided.decision.sizes)  # 8.
    leave_after_the_cycle(draft)
    promised = [f"{rules.keep_idle} nodes stay idle: {rules.keep_why}"] if rules.keep_why else []
    promised += [f"at most {rules.max_pilots} pilots: {rules.cap_why}"] if rules.cap_why else []
    decision = replace(
        decided.decision,
        reason="; ".join((decided.decision.reason, *promised)),
        holes=tuple(draft.holes.values()),
        actions=tuple(draft.actions),
        refusals=tuple(draft.refusals),
        strays=find_strays(draft.snapshot, situation.views, rules),
    )
    return replace(decided, decision=decision)


def yield_now(
    situation: Situation, rules: Rules, cache: DecisionCache | None = None
) -> tuple[list[Action], YieldPlan]:
    """Step 1 alone, for the light looks between two decisions; and whoever should have left by now is ended."""
    (cache or DecisionCache()).look(situation.snapshot)
    views = {j: v for j, v in situation.views.items() if not v.phase.is_over}
    yields = _yields(situation, views, rules)
    going = [p for _, view in sorted(views.items()) for p in view.staying if p.id in yields.leave]
    actions = overdue_leaves(views, situation.now, yields, rules)
    actions += [leaving_for(pilot, yields, situation.now, rules) for pilot in going]
    return with_co_allocated(actions, views), yields


def _yields(situation: Situation, live: Mapping[int, JobView], rules: Rules) -> YieldPlan:
    snapshot, before, now, plan = situation.snapshot, situation.yielded.emptied, situation.now, YieldPlan()
    fits = any_pending_fits(snapshot, rules)
    if not fits and not before:
        return plan
    nodes = harvested_by(live)
    if fits:
        plan = plan_yields(snapshot, nodes, situation.yielded.startable, now, rules)
    # Which nodes are at hand is asked only of those that nobody is given any more.
    at_hand = availability(snapshot, nodes, rules) if before.keys() - plan.assigned.keys() else None
    available = at_hand.free | at_hand.coming if at_hand else ()
    return replace(plan, emptied=emptied_nodes(plan.assigned, before, available, snapshot, now))


def _find_free(draft: Draft) -> None:
    """The holes that may be started on, each other one refused; and the nodes that change hands."""
    why_not = {hole: _why_not_free(hole, draft) for hole in draft.holes.values() if hole.node not in draft.held}
    for hole, why in why_not.items():
        draft.refuse(hole.node, why)
    draft.free = best_first((hole for hole, why in why_not.items() if not why), draft.snapshot)
    draft.coming = _changing_hands(draft)


def _why_not_free(hole: Hole, draft: Draft) -> str:
    """Why no pilot may start in a hole that none holds, or ''."""
    node, yielding = hole.node, draft.yielding
    if node in draft.situation.drained:
        return "drained of pilots by an operator"
    if node in yielding.claimed:
        return f"kept for main job {yielding.claimed[node]}, which could start on it"
    if node in yielding.emptied:
        job = yielding.emptied[node].job
        return f"kept for main job {job}, which was given it, until Slurm has had a backfill cycle to use it"
    if node in draft.situation.resting:
        return draft.situation.resting[node]
    if not pilot_limit_s(hole, draft.now, draft.rules):
        return f"hole of {max(0.0, hole.until - draft.now):.0f} s is too short ({hole.reason})"
    return ""


def _changing_hands(draft: Draft) -> frozenset[str]:
    """The nodes that pilots are leaving, also those that are asked to at this look: counted, or other jobs would
    change size while they do. Not those that a main job, staff or an operator wants, or whose hole is nearly over."""
    situation, rules, holders = draft.situation, draft.rules, draft.snapshot.holders
    going = [pilot.node for view in draft.live.values() for pilot in view.leaving]
    going += [pilot.node for view in draft.live.values() for pilot in view.staying if pilot.id in draft.ending]
    among = draft.holes.keys() & going
    among -= {*draft.yielding.kept, *situation.drained, *situation.resting}
    return frozenset(
        node
        for node in among
        if pilot_limit_s(draft.holes[node], situation.now, rules)
        and all(job.partition == rules.harvest_partition for job in holders.get(node, ()))
    )


def _keep_reserve(draft: Draft) -> None:
    """Free nodes, and those that change hands, are left to the reserve; pilots leave where these are too few."""
    snapshot, rules = draft.snapshot, draft.rules
    if not rules.keep_leaves and not rules.keep_idle:
        return
    held, left = [], frozenset[str]()
    # Where the free holes alone fill it, neither pilots nor nodes that are coming free matter.
    if rules.keep_leaves or len(draft.free) < rules.keep_idle:
        mine = {pilot.id for pilot in draft.mine}
        held = [node for node in harvested_by(draft.live) if node.pilot in mine]
        left = availability(snapshot, held, rules).coming - draft.yielding.kept - draft.situation.drained
        # slurmctld, restarted, has not heard of some nodes for seconds: what no pilot holds is as idle as ever.
        unheard = {node.name for node in snapshot.nodes if node.state is NodeState.UNKNOWN} - snapshot.held_names
        left |= {name for name in unheard if rules.may_harvest(name)}
    kept, leave = plan_reserve(draft.free, held, left, snapshot, rules)
    for hole in draft.free:
        draft.refuse(hole.node, kept.get(hole.node, ""))
    draft.free = [hole for hole in draft.free if hole.node not in kept]
    going = {pilot.node for pilot in draft.mine if pilot.id in leave}
    _leave(draft, leave, LeaveCause.RESERVE)
    # The other nodes of a task that leaves are for pilots again.
    draft.coming = _changing_hands(draft) - kept.keys() - going


def _leave(draft: Draft, why: Mapping[str, str], cause: LeaveCause) -> None:
    """Pilots leave, each with those of its task, for the reasons that `why` has by pilot."""
    going = [pilot for pilot in draft.mine if pilot.id in why]
    draft.give_up([leaving(p, cause, draft.now, draft.rules, why[p.id]) for p in going])


def _keep_cap(draft: Draft) -> None:
    """As many pilots as may be: those beyond a cap leave, and new ones are as wide as it asks for."""
    situation, rules, snapshot = draft.situation, draft.rules, draft.snapshot
    if rules.cap_why:
        _shed_pilots(draft)
    free = len(draft.free) + len(draft.coming)
    widest_job = max((view.job.max_nodes for view in draft.live.values()), default=rules.max_nodes)
    draft.width = pilot_width(len(draft.mine), free, count_tasks(draft.staying), widest_job, rules)
    if draft.width > 1:
        # The nodes of a pilot leave together, so they are of one cohort as far as may be.
        draft.holes = {
            node: hole._replace(cohort=situation.open_holes.get(node)) for node, hole in draft.holes.items()
        }
        draft.free = best_first((draft.holes[hole.node] for hole in draft.free), snapshot)
        if not situation.paused:
            _make_room(draft)
    draft.free = startable(draft.free, rules.max_pilots - count_tasks(draft.staying), draft.width, snapshot)
    draft.refuse("all", situation.paused)
    if situation.paused:
        draft.free, draft.coming = [], frozenset()


def _shed_pilots(draft: Draft) -> None:
    """Pilots beyond what slurmctld bears leave, those whose leaving costs training least first."""
    over = max(0, count_tasks(draft.staying) - draft.rules.max_pilots)
    task_of = {pilot.id: pilot.task for pilot in draft.mine}
    cheapest = sorted(harvested_by(draft.live), key=lambda node: (node.cost, node.node)) if over else ()
    tasks = dict.fromkeys(task_of[node.pilot] for node in cheapest if node.pilot in task_of)
    going = set(list(tasks)[:over])
    why = f"more pilots than slurmctld bears: {draft.rules.cap_why}"
    _leave(draft, {pilot: why for pilot, task in task_of.items() if task in going}, LeaveCause.RESERVE)


def _make_room(draft: Draft) -> None:
    """The narrowest pilots leave where the cap keeps wider ones from starting, and none as narrow starts."""
    most, staying = draft.rules.max_pilots, draft.staying
    room = max(0, most - count_tasks(staying))
    if len(draft.free) <= room:
        return
    lacking: list[int] = []
    for j, view in draft.live.items():
        if may_train(view) and j not in draft.situation.set_aside:
            curve, most_useful = view.curve or view.job.given_curve, view.job.max_nodes
            most_useful = curve.best_size(most_useful) if curve else most_useful
            lacking.append(max(0, min(most_useful - len(staying[j]), view.held_count)))
    waiting = [len(group) for group in task_groups(draft.free, draft.width, draft.snapshot)]
    tasks: dict[str, list[Pilot]] = {}
    for pilot in draft.mine:
        tasks.setdefault(pilot.task, []).append(pilot)
    there = [
        (len(pilots), pilots[0].started_at or pilots[0].since, min(p.node for p in pilots), task)
        for task, pilots in tasks.items()
    ]
    draft.narrowest, going = make_room(there, waiting, lacking, room, draft.width, draft.now)
    why = f"at most {most} pilots: it makes room for one of up to {draft.width} nodes"
    pilots = [pilot for task in going for pilot in tasks[task]]
    _leave(draft, {pilot.id: why for pilot in pilots}, LeaveCause.SHRINK)
    draft.coming |= {pilot.node for pilot in pilots}


def _place_and_reconcile(draft: Draft, sizes: Mapping[int, int]) -> None:
    """Choose nodes for the sizes, and the actions that lead there."""
    situation, live, now, rules = draft.situation, draft.live, draft.now, draft.rules
    placement = place(draft, sizes)
    draft.refuse("top-up", situation.crowded)
    start_and_leave(draft, placement)
    ending = draft.ending | {p.id for pilots in placement.drop.values() for p in pilots}
    draft.actions += [cut for cut in limit_cuts(live, draft.holes, now, rules) if cut.pilot not in ending]
    if not situation.crowded:
        draft.actions += top_ups(live, now, rules)
    for job, why in sorted(situation.set_aside.items()):
        draft.refuse(job, why if job in live else "")
    for job, unfit in sorted(draft.unfit.items()):
        if job in placement.short or sizes.get(job, 0) < live[job].job.max_nodes:
            draft.refuse(job, unfit.why)
    for job in sorted(placement.short.keys() & situation.avoided.keys()):
        draft.refuse(job, *(f"{node}: {why}" for node, why in sorted(situation.avoided[job].items())))
