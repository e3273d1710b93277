"""From what should be to what to do: level-triggered, so a lost or repeated action mends itself at the next look.

A node that another job still holds is never handed over: its taker waits for the snapshot that shows it free.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from malletrain.decide.draft import Draft
from malletrain.decide.holes import cut_end, pilot_limit_s
from malletrain.decide.leaving import leaving
from malletrain.decide.multi_node_pilots import co_allocated, count_tasks, task_groups
from malletrain.decide.placement import Placement
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Action, CutLimit, Hole, LeaveCause, StartPilot, Stray, TopUp
from malletrain.domain.job import JobView, PilotPhase, pilot_name
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot

#: A main cycle of slurmctld's that takes longer is slow (seconds): less is asked of it then.
SLOW_MAIN_CYCLE_S = 0.5


def start_and_leave(draft: Draft, placement: Placement) -> None:
    """Leaves first (they free nodes), then starts on nodes that the snapshot shows free, replacements before all
    others; what cannot be started is refused."""
    snapshot, now, rules = draft.snapshot, draft.now, draft.rules
    for job_id, pilots in sorted(placement.drop.items()):
        size = len(placement.keep[job_id]) + len(placement.take[job_id])
        for pilot in pilots:
            reason = placement.moved.get(pilot.id) or f"job {job_id} shrinks to {size} nodes"
            draft.actions.append(leaving(pilot, LeaveCause.SHRINK, now, rules, reason))
    cycle_s, room = snapshot.plan.main_cycle_s, rules.max_pilots - count_tasks(placement.keep)
    most = starts_at_once(rules.max_starts, slow=cycle_s is not None and cycle_s > SLOW_MAIN_CYCLE_S)
    draft.actions += draft.replacements
    used, begun = {start.pilot for start in draft.replacements}, len(draft.replacements)
    for job_id, holes in sorted(placement.take.items()):
        tasks = [task.id for task in draft.live[job_id].held if task.id not in used]
        if holes and (rests := draft.situation.resting.get(f"job {job_id}")):
            draft.refuse(job_id, rests)
            continue
        for group in task_groups(holes, draft.width, snapshot):
            free = [hole for hole in group if snapshot.is_free(hole.node)]
            names = ", ".join(hole.node for hole in free)
            draft.refuse(job_id, *(f"{hole.node} is not free yet" for hole in group if hole not in free))
            if not free:
                continue
            if begun >= most:
                why = f"{names} is for the next look: at most {most} pilots start at one"
            elif begun >= room:
                why = f"{names}: there are {rules.max_pilots} pilots already"
            elif not tasks:
                why = f"no held task left to start on {names}"
            else:
                task, limit = tasks.pop(0), min(pilot_limit_s(hole, now, rules) for hole in free)
                for part, hole in enumerate(sorted(free, key=lambda each: each.node)):
                    reason = f"hole of {hole.until - now:.0f} s ({hole.reason})"
                    draft.actions.append(StartPilot(job_id, pilot_name(task, part), hole.node, limit, reason))
                begun += 1
                continue
            draft.refuse(job_id, why)
    for job_id, lacking in sorted(placement.short.items()):
        draft.refuse(job_id, f"waits for {lacking} nodes that others are leaving")


def starts_at_once(max_starts: int, *, slow: bool = False) -> float:
    """How many pilots may start at one look: a fifth of the usual while slurmctld's cycles are `slow`."""
    return max(1, max_starts // 5) if slow and max_starts else max_starts or inf


def limit_cuts(views: Mapping[int, JobView], holes: Mapping[str, Hole], now: float, rules: Rules) -> list[CutLimit]:
    """Limits that run past the end of their hole by now: a plan moved forward, or a reservation was made."""
    actions: list[CutLimit] = []
    for _, view in sorted(views.items()):
        for pilot in view.staying:
            if pilot.ends_at is None or pilot.phase is not PilotPhase.RUNNING or pilot.node not in holes:
                continue
            # A task that holds several nodes ends with the shortest of their holes.
            task = [holes[each.node] for each in co_allocated(pilot.id, view) if each.node in holes]
            hole = min([holes[pilot.node], *task], key=lambda each: each.until)
            latest = cut_end(pilot.ends_at, hole.until, now, rules.margin_s)
            if latest is not None:
                actions.append(CutLimit(view.job.id, pilot.id, pilot.node, latest, hole.reason))
    return actions


#: Held tasks that even a job of one node is topped up to: only a living worker can submit more, and on a busy machine
#: several of its tasks may end one after the other before one has lived long enough.
RESERVE_TASKS = 4


def top_ups(views: Mapping[int, JobView], now: float, rules: Rules) -> list[Action]:
    """Jobs that run low on held tasks, because preemption consumes them: a worker submits more, as its owner."""
    actions: list[Action] = []
    for _, view in sorted(views.items()):
        left, wanted = view.held_count, max(RESERVE_TASKS, min(view.job.max_nodes, rules.max_top_up))
        was_asked = view.topped_up_at is not None and now - view.topped_up_at < rules.start_patience_s
        if left < wanted // 2 and view.staying and not was_asked:
            reason = f"{left} held tasks are left for up to {view.job.max_nodes} nodes"
            actions.append(TopUp(view.job.id, wanted - left, reason))
    return actions


def find_strays(snapshot: Snapshot, views: Mapping[int, JobView], rules: Rules) -> tuple[Stray, ...]:
    """Jobs of the harvest partition that hold nodes, or wait for some, and that the daemon has not started. `views`:
    of all jobs, those that are over included. Held tasks are nobody's stray: they start only once released."""
    if not rules.takes_back:
        return ()
    pilots = {pilot.task for view in views.values() for pilot in view.active}
    rows = [
        job
        for job in (*snapshot.holding, *snapshot.pending)
        if job.partition == rules.harvest_partition and job.id not in pilots and not job.is_held
    ]
    # Not a task that became something else after the look was begun, or that waits to be looked at.
    tasks = [view.pilots[job.id] for job in rows for view in views.values() if job.id in view.pilots]
    mine = {task.id for task in tasks if task.phase is PilotPhase.HELD or task.since >= snapshot.taken_at}
    return tuple(
        Stray(job.id, job.user, job.nodes, _why_left(job, snapshot, rules)) for job in rows if job.id not in mine
    )


def _why_left(job: SlurmJob, snapshot: Snapshot, rules: Rules) -> str:
    if job.state is SlurmState.COMPLETING:
        return "it is ending"
    if rules.harvest_account and job.account != rules.harvest_account:
        return f"its account is {job.account or 'none'}, not {rules.harvest_account}"
    if job.het_id and any(other.het_id == job.het_id and other.partition != job.partition for other in snapshot.jobs):
        return "a part of it is in another partition"
    return ""
