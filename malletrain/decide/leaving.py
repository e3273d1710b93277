"""Why pilots leave, and how: the one vocabulary of it.

Pilots whose leaving can wait do not leave just ahead of a backfill cycle while a main job waits for it. Slurm takes a
node whose job has ended for idle when it chooses nodes for a waiting job, and where its epilog still runs, puts the
job off (`cg_node_bitmap` in src/plugins/sched/backfill/backfill.c). So a job whose nodes were idle begins a cycle
later when another node, which suits it better, completes at that moment; behind a heterogeneous job, which backfill
alone starts, the whole queue does.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from malletrain.decide.draft import Draft, Situation
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import YieldPlan
from malletrain.domain.decision import (
    KILLED_WHEN_LATE,
    Action,
    CancelTasks,
    LeaveCause,
    LeavePilot,
    RecyclePilot,
)
from malletrain.domain.job import Elastic, JobPhase, JobView, Pilot, PilotPhase
from malletrain.domain.slurm_reasons import diagnose
from malletrain.domain.snapshot import LEAVE_STATES, BackfillPlan, Snapshot

#: A moment of the past that lies further ahead is of a clock that was set back since (seconds).
SET_BACK_S = 60.0


def leaving(
    pilot: Pilot, cause: LeaveCause, now: float, rules: Rules, reason: str, main_job: str = "", until: float = inf
) -> Action:
    """How a pilot gives up its node: a worker is asked first; a pilot that has not started goes back at once.
    `until`: the end of its hole; a worker that does not leave is killed in time for it (`margin_s` has KillWait)."""
    if pilot.phase is PilotPhase.RELEASED:
        return RecyclePilot(pilot.job_id, pilot.id, pilot.node, f"not started yet; {reason}", main_job=main_job)
    latest = max(now, min(now + rules.leave_patience_s, until - rules.margin_s))
    return LeavePilot(pilot.job_id, pilot.id, pilot.node, cause, latest, reason, main_job)


def leaving_for(pilot: Pilot, yields: YieldPlan, now: float, rules: Rules) -> Action:
    """How a pilot gives up its node to the main job that `yields` names for it.

    For a heterogeneous job all are taken back in one moment (SIGTERM and KillWait, as at preemption): a completing
    node makes backfill wait, but one that runs a pilot beside one that is idle makes it put the job off.
    """
    main_job = yields.at_once.get(pilot.node) or yields.leave[pilot.id]
    reason = f"main job {main_job} could start on {pilot.node}"
    if pilot.node in yields.at_once and pilot.phase is not PilotPhase.RELEASED:
        reason += ", and needs the nodes of all its parts at once"
        return RecyclePilot(pilot.job_id, pilot.id, pilot.node, reason, main_job=main_job)
    return leaving(pilot, LeaveCause.YIELD, now, rules, reason, main_job)


def _asked(pilot: Pilot, now: float) -> tuple[float, str]:
    """Seconds since the pilot was asked for what it is to do, and in words; endless where the clock was set back."""
    waited_s = now - pilot.since
    if waited_s < -SET_BACK_S:
        return inf, "before the clock was set back"
    return waited_s, f"{waited_s:.0f} s ago"


def overdue_leaves(views: Mapping[int, JobView], now: float, yields: YieldPlan, rules: Rules) -> list[Action]:
    """Pilots that were asked to leave, and whose time to do so is over; at once on nodes that a hetjob is given.
    Where neither the main queue nor staff waits, a checkpoint may still be written within Slurm's KillWait."""
    actions: list[Action] = []
    for pilot in (p for _, view in sorted(views.items()) for p in view.unsettled if p.phase is PilotPhase.LEAVING):
        waited_s, ago = _asked(pilot, now)
        if pilot.leave_by is not None and (now >= pilot.leave_by or waited_s == inf):
            kill = pilot.leave_cause in KILLED_WHEN_LATE or pilot.node in yields.kept
            reason = f"asked to leave {ago} ({pilot.reason}) and still there{': killed' if kill else ''}"
            actions.append(RecyclePilot(pilot.job_id, pilot.id, pilot.node, reason, kill=kill))
        elif pilot.node in yields.at_once:
            actions.append(leaving_for(pilot, yields, now, rules))
    return actions


def clear_away(draft: Draft) -> None:
    """What remains of jobs that are over goes, held tasks at once, running ones after their patience; and pilots end
    that did not do as asked in time."""
    situation, now, rules = draft.situation, draft.now, draft.rules
    for job_id, view in sorted(situation.views.items()):
        if not view.phase.is_over:
            continue
        rest = [p.id for p in view.held] + [i for i, p in sorted(view.pilots.items()) if p.phase is PilotPhase.ASIDE]
        over_s = now - situation.over_since.get(job_id, now)
        if over_s > rules.exit_patience_s or view.phase is not JobPhase.COMPLETED:
            rest += [p.id for p in view.active]
        if rest:
            draft.give_up([CancelTasks(job_id, tuple(rest), f"job {job_id} is {view.phase.value}")])
    overdue = overdue_leaves(draft.live, now, draft.yielding, rules)
    draft.give_up(overdue + overdue_pilots(draft.live, draft.snapshot, now, rules))


def overdue_pilots(views: Mapping[int, JobView], snapshot: Snapshot, now: float, rules: Rules) -> list[Action]:
    """Pilots that were to start or to be taken back, and did not in time."""
    actions: list[Action] = []
    unsettled = [pilot for _, view in sorted(views.items()) for pilot in view.unsettled]
    released = {pilot.task for pilot in unsettled if pilot.phase is PilotPhase.RELEASED}
    rows = {job.id: job for job in snapshot.jobs if job.id in released} if released else {}
    for pilot in unsettled:
        waited_s, ago = _asked(pilot, now)
        if pilot.phase is PilotPhase.RELEASED and (pilot.since < snapshot.taken_at or waited_s == inf):
            if not pilot.node:
                actions.append(
                    RecyclePilot(pilot.job_id, pilot.id, "", f"not released by the daemon: {pilot.reason}")
                )
                continue
            found = diagnose(rows.get(pilot.task), snapshot.node.get(pilot.node))
            if waited_s <= rules.start_patience_s and not found.unfit:
                continue
            reason = f"released on {pilot.node} {ago} and not started: {found.words}"
            # Of a task's pilots the first says so: one failure of the job, not one for each node.
            of_job = "" if pilot.is_part else f"job {pilot.job_id}"
            subject = of_job if found.of_job else pilot.node
            actions.append(RecyclePilot(pilot.job_id, pilot.id, pilot.node, reason, subject, unfit=found.unfit))
        elif pilot.phase is PilotPhase.RECYCLING and waited_s > rules.start_patience_s:
            reason = f"requeued {ago} and still on {pilot.node or 'its node'}"
            actions.append(RecyclePilot(pilot.job_id, pilot.id, pilot.node, reason))
    return actions


#: Why a pilot leaves: for Slurm's side of it, and in words.
Why = tuple[LeaveCause, str]


def leave_what_must(draft: Draft) -> None:
    """End the pilots that cannot stay, each with those of its task."""
    rules, now = draft.rules, draft.now
    leaves: list[Action] = []
    for job, staying in sorted(draft.staying.items()):
        view = draft.live[job]
        of_job = _job_must_leave(view, draft.situation, rules)
        for pilot in staying:
            if pilot.id in draft.yielding.leave:
                leaves.append(leaving_for(pilot, draft.yielding, now, rules))
            elif must := _must_leave(pilot, view, of_job, draft):
                cause, reason = must
                closes = cause is LeaveCause.HOLE_CLOSES and pilot.node in draft.holes
                until = draft.holes[pilot.node].until if closes else inf
                leaves.append(leaving(pilot, cause, now, rules, reason, until=until))
    draft.give_up(leaves)


def _node_is_wanted(name: str, draft: Draft) -> Why | None:
    """That an operator, staff or the end of its hole takes a node that a pilot holds, and why."""
    rules, hole, node = draft.rules, draft.holes.get(name), draft.snapshot.node.get(name)
    if name in draft.situation.drained:
        return LeaveCause.OPERATOR, f"{name} is drained of pilots by an operator"
    if hole is not None:
        why = f"{hole.reason} in {max(0.0, hole.until - draft.now):.0f} s"
        soon = draft.now + rules.margin_s + rules.leave_lead_s
        return (LeaveCause.HOLE_CLOSES, why) if hole.until <= soon else None
    why = "" if rules.may_harvest(name) else f"{name} is no longer one that may be harvested (pool.include, exclude)"
    if node is not None and node.state in LEAVE_STATES:
        why = f"{name} is {node.state.value} {node.reason}".rstrip()
    elif node is not None and rules.harvest_partition not in node.partitions:
        why = f"{name} is no longer in partition {rules.harvest_partition}"
    return (LeaveCause.NODE_WANTED, why) if why else None


def _job_must_leave(view: JobView, situation: Situation, rules: Rules) -> Why | None:
    """Why all pilots of the job leave. Scripts that are restarted report no steps."""
    job = view.job.id
    if view.phase is JobPhase.HELD:
        return LeaveCause.JOB_OVER, f"job {job} is held: {view.reason}"
    if job in situation.set_aside:
        return LeaveCause.SET_ASIDE, situation.set_aside[job]
    idle_s = situation.now - max(view.nodes_since, view.committed_at or 0.0, situation.up_since)
    if rules.idle_s and view.job.elastic is Elastic.LIVE and idle_s > rules.idle_s:
        why = f"job {job} has committed no step for {idle_s:.0f} s on its nodes (pilot.idle_minutes)"
        return LeaveCause.IDLE, why
    return None


def _must_leave(pilot: Pilot, view: JobView, of_job: Why | None, draft: Draft) -> Why | None:
    """Why a pilot that no main job is given must leave all the same."""
    now, rules = draft.now, draft.rules
    if of_job and of_job[0] is not LeaveCause.IDLE:
        return of_job
    if pilot.unasked:
        return LeaveCause.UNASKED, "its task was not released by the daemon"
    if wanted := _node_is_wanted(pilot.node, draft):
        return wanted
    if pilot.ends_at is not None and pilot.ends_at - now <= rules.leave_lead_s:
        return LeaveCause.HOLE_CLOSES, f"its time limit ends in {max(0.0, pilot.ends_at - now):.0f} s"
    if of_job or pilot.idle_since is None or pilot.phase is not PilotPhase.RUNNING:
        return of_job
    alone_s = now - max(pilot.idle_since, draft.situation.up_since)
    if not rules.join_s or alone_s <= rules.join_s:
        return None
    everyone = all(each.idle_since is not None for each in view.staying)
    why = f"no worker has joined from {pilot.node} for {alone_s:.0f} s (pilot.join_minutes)"
    return LeaveCause.IDLE if everyone else LeaveCause.NO_WORKER, why


#: Leaves for these can wait: nobody wants the node at once.
CAN_WAIT = frozenset({LeaveCause.RESERVE, LeaveCause.SHRINK, LeaveCause.STRAGGLER})

#: Seconds that a worker takes to leave, and sdiag's whole seconds.
LEAVE_S = 3.0

#: So many seconds of each cycle remain in which pilots may leave: a look every `loop.tick_s` must meet them.
LEAST_OPEN_S = 11.0


def may_complete_in_cycle(plan: BackfillPlan, now: float, rules: Rules) -> bool:
    """Whether a node that a pilot leaves now may still complete as the next backfill cycle comes: also where it is
    not known when that comes, or how long epilogs take. False where neither is known, and where epilogs take nearly
    the whole time between two cycles, or more: then no moment is better than another."""
    cycle_s, shut_s = plan.interval_s, (rules.free_s or 0.0) + LEAVE_S
    if cycle_s - shut_s < LEAST_OPEN_S:
        return False
    last_at = None if plan.is_stale(now) else plan.last_cycle_at
    if rules.free_s is None:
        return last_at is not None and bool(rules.exit_s)
    if last_at is None:
        return True
    passed_s = (now - last_at) % cycle_s
    return not 1.0 <= passed_s < cycle_s - shut_s


def leave_after_the_cycle(draft: Draft) -> None:
    """Leaves that can wait are put off to the next look where they could cost a main job its backfill cycle."""
    if not draft.yielding.kept or not may_complete_in_cycle(draft.snapshot.plan, draft.now, draft.rules):
        return
    why = "a main job waits for the backfill cycle that comes first, and the node could still complete then"
    for action in tuple(draft.actions):
        if isinstance(action, LeavePilot) and action.cause in CAN_WAIT:
            draft.refuse(action.node, f"pilot {action.pilot} leaves later: {why}")
            draft.actions.remove(action)
