"""From what should be to what to do: level-triggered, so a lost or repeated action mends itself at the next look.

A node that another job still holds is never handed over: its taker waits for the snapshot that shows it free.

Pilots whose leaving can wait do not leave just ahead of a backfill cycle while a main job waits for it. Slurm takes a
node whose job has ended for idle when it chooses nodes for a waiting job, and where its epilog still runs, puts the
job off (`cg_node_bitmap` in src/plugins/sched/backfill/backfill.c). So a job whose nodes were idle begins a cycle
later when another node, which suits it better, completes at that moment; behind a heterogeneous job, which backfill
alone starts, the whole queue does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeGuard

from malletrain.decide.draft import Draft, Inputs
from malletrain.decide.holes import cut_end, pilot_limit_s
from malletrain.decide.multi_node_pilots import co_allocated, count_tasks, task_groups
from malletrain.decide.placement import Placement
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import YieldPlan
from malletrain.domain.decision import (
    KILLED_WHEN_LATE,
    Action,
    CancelTasks,
    CutLimit,
    Hole,
    LeaveCause,
    LeavePilot,
    RecyclePilot,
    Refusal,
    StartPilot,
    Stray,
    TopUp,
)
from malletrain.domain.job import JobPhase, JobView, Pilot, PilotPhase, pilot_name
from malletrain.domain.requirements import Requirements
from malletrain.domain.snapshot import BackfillPlan, Node, SlurmJob, SlurmState, Snapshot


class Diagnosis(NamedTuple):
    """`words`: what Slurm says and what it means; `of_job`: whatever the node, so that the job rests; `unfit`: Slurm
    will never start it on this node."""

    words: str
    of_job: bool = False
    unfit: bool = False


#: By the beginning of the reason; the first that fits counts. Of the node, as it stands now:
_OF_NODE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("ReqNodeNotAvail", "Reservation", "NodeDown", "FrontEndDown"), "Slurm does not give the node away now"),
    (("Resources", "Nodes required", "Nodes_required"), "Slurm keeps the node for jobs of a higher tier"),
    (("Priority", "None"), "Slurm has not come to it: backfill may not reach the harvest partition"),
)

#: Of the job or its owner, whatever the node; so is each reason that is named nowhere here.
_OF_JOB: tuple[tuple[tuple[str, ...], str], ...] = (
    (("MaxMemPerLimit",), "a limit on memory of the partition or the cluster (MaxMemPerNode, MaxMemPerCPU)"),
    (("QOS", "Assoc", "MaxJobs", "MaxMem", "MaxCpu", "MaxNode"), "a limit of the QOS or association"),
    (("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"), "the account or QOS may not run"),
    (("PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig"), "a limit of the harvest partition"),
    (("PartitionDown", "PartitionInactive"), "the harvest partition does not start jobs"),
    (("JobArrayTaskLimit",), "the array's owner lets no more of its tasks run (ArrayTaskThrottle)"),
    (("BeginTime", "Dependency", "JobHeld", "Licenses", "BurstBuffer"), "the task waits for something else"),
)


#: Slurm holds such a task at once, and does not come to it again. For a cycle it gives the other tasks of the array
#: the same reason (measured, 22.05), but these it does not hold.
_UNFIT = "BadConstraints"


def is_unfit(row: SlurmJob) -> bool:
    """Whether Slurm itself holds this task, since no node that it may have will ever do."""
    return row.is_held and row.reason.startswith(_UNFIT)


def diagnose(reason: str, held: bool = False, lacks: str = "") -> Diagnosis:
    """What Slurm's `reason` for a waiting pilot means. `held`: Slurm has set its priority to 0; `lacks`: what the job
    asks for and its node does not have."""
    if held and reason.startswith(_UNFIT):
        of_node = f"the node lacks {lacks}, which the job asks for"
        limit = "a limit of the partition or the cluster, such as MaxMemPerCPU, MaxMemPerNode or MaxCPUsPerNode, is"
        meaning = of_node if lacks else f"{limit} below what the job asks for, or the node is"
        return Diagnosis(f"{meaning} (Slurm says: {reason})", unfit=True)
    for heads, meaning in _OF_NODE:
        if (reason or "None").startswith(heads):
            return Diagnosis(f"{meaning} (Slurm says: {reason or 'nothing'})")
    for heads, meaning in _OF_JOB:
        if reason.startswith(heads):
            return Diagnosis(f"{meaning} (Slurm says: {reason})", of_job=True)
    return Diagnosis(f"Slurm says: {reason}", of_job=True)


def diagnose_waiting(row: SlurmJob | None, node: Node | None) -> Diagnosis:
    """The same of a pilot's row in the queue (None: it has none) and of the node that it was released on."""
    if row is None:
        return diagnose("")
    needs = Requirements(row.gres, row.features, row.memory_mib)
    lacks = str(needs) if needs and node is not None and not needs.met_by(node) else ""
    return diagnose(row.reason, row.is_held, lacks)


#: A moment of the past that lies further ahead is of a clock that was set back since (seconds).
SET_BACK_S = 60.0

#: A main cycle of slurmctld's that takes longer is slow (seconds): less is asked of it then.
SLOW_MAIN_CYCLE_S = 0.5


def leaving(
    pilot: Pilot,
    cause: LeaveCause,
    now: float,
    rules: Rules,
    reason: str,
    hole: Hole | None = None,
    main_job: str = "",
) -> Action:
    """How a pilot gives up its node: a worker is asked first; a pilot that has not started goes back at once.

    `hole`: that closes: a worker that does not leave is killed in time for its end (`margin_s` has KillWait in it).
    """
    if pilot.phase is PilotPhase.RELEASED:
        return RecyclePilot(pilot.job_id, pilot.id, pilot.node, f"not started yet; {reason}", main_job=main_job)
    latest = now + rules.leave_patience_s
    if hole is not None:
        latest = max(now, min(latest, hole.until - rules.margin_s))
    return LeavePilot(pilot.job_id, pilot.id, pilot.node, cause, latest, reason, main_job)


def leaving_for(pilot: Pilot, given: YieldPlan, now: float, rules: Rules) -> Action:
    """How a pilot gives up its node to the main job that `given` names for it.

    For a heterogeneous job Slurm takes it back in the same moment as the others (SIGTERM and KillWait, as at
    preemption): a completing node makes backfill wait, but one that still runs a pilot beside one that is idle
    already makes it put the job off.
    """
    main_job = given.leave[pilot.id]
    if pilot.node in given.at_once and pilot.phase is not PilotPhase.RELEASED:
        return _leaving_at_once(main_job, pilot)
    few = ", with its nodes on few leaf switches" if pilot.node in given.gathered else ""
    reason = f"main job {main_job} could start on {pilot.node}{few}"
    return leaving(pilot, LeaveCause.YIELD, now, rules, reason, main_job=main_job)


def _leaving_at_once(main_job: str, pilot: Pilot) -> Action:
    reason = f"main job {main_job} could start on {pilot.node}, and needs the nodes of all its parts at once"
    return RecyclePilot(pilot.job_id, pilot.id, pilot.node, reason, main_job=main_job)


def _waited_s(pilot: Pilot, now: float) -> float:
    """Seconds since the pilot was asked for what it is to do; endless where the clock was set back since."""
    waited = now - pilot.since
    return math.inf if waited < -SET_BACK_S else waited


def _ago(pilot: Pilot, now: float) -> str:
    waited = _waited_s(pilot, now)
    return "before the clock was set back" if waited == math.inf else f"{waited:.0f} s ago"


def overdue_leaves(views: Mapping[int, JobView], now: float, given: YieldPlan) -> list[Action]:
    """Pilots that were asked to leave, and whose time to do so is over.

    They are killed where the main queue or the staff waits, or is given the node by now. Otherwise Slurm's SIGTERM
    and KillWait follow, in which a checkpoint on the way to another size may still be written. On the nodes that a
    heterogeneous job is given, that time is over at once.
    """
    actions: list[Action] = []
    for _, view in sorted(views.items()):
        for pilot in view.unsettled:
            late = pilot.leave_by is not None and (now >= pilot.leave_by or _waited_s(pilot, now) == math.inf)
            if pilot.phase is PilotPhase.LEAVING and late:
                kill = pilot.leave_cause in KILLED_WHEN_LATE or pilot.node in given.given
                reason = f"asked to leave {_ago(pilot, now)} ({pilot.reason}) and still there"
                reason = f"{reason}: killed" if kill else reason
                actions.append(RecyclePilot(view.job.id, pilot.id, pilot.node, reason, kill=kill))
            elif pilot.phase is PilotPhase.LEAVING and pilot.node in given.at_once:
                actions.append(_leaving_at_once(given.at_once[pilot.node], pilot))
    return actions


def overdue_pilots(
    views: Mapping[int, JobView], snapshot: Snapshot, now: float, rules: Rules, given: YieldPlan
) -> list[Action]:
    """Pilots that were asked for something and did not do it in time. `given`: what main jobs are given."""
    actions = overdue_leaves(views, now, given)
    rows: dict[str, SlurmJob] | None = None
    for _, view in sorted(views.items()):
        for pilot in view.unsettled:
            waited = _waited_s(pilot, now)
            if pilot.phase is PilotPhase.RELEASED and (pilot.since < snapshot.taken_at or waited == math.inf):
                if rows is None:
                    rows = {job.id: job for job in snapshot.jobs if job.partition == rules.harvest_partition}
                if not pilot.node:
                    reason = f"not released by the daemon: {pilot.reason}"
                    actions.append(RecyclePilot(view.job.id, pilot.id, "", reason))
                    continue
                found = diagnose_waiting(rows.get(pilot.task), snapshot.node.get(pilot.node))
                if waited <= rules.start_patience_s and not found.unfit:
                    continue
                reason = f"released on {pilot.node} {_ago(pilot, now)} and not started: {found.words}"
                subject = f"job {view.job.id}" if found.of_job else pilot.node
                if found.of_job and pilot.is_part:
                    subject = ""  # the task's first pilot says so: one failure of the job, not one for each node
                actions.append(RecyclePilot(view.job.id, pilot.id, pilot.node, reason, subject, unfit=found.unfit))
            elif pilot.phase is PilotPhase.RECYCLING and waited > rules.start_patience_s:
                reason = f"requeued {_ago(pilot, now)} and still on {pilot.node}"
                actions.append(RecyclePilot(view.job.id, pilot.id, pilot.node, reason))
    return actions


def start_and_leave(draft: Draft, inputs: Inputs, placement: Placement) -> list[Refusal]:
    """Leaves first (they free nodes), then starts on nodes that the snapshot shows free, replacements before all
    others; what cannot be started is refused."""
    snapshot, now, rules = inputs.snapshot, inputs.now, inputs.rules
    refusals: list[Refusal] = []
    for job_id, pilots in sorted(placement.drop.items()):
        size = len(placement.keep[job_id]) + len(placement.take[job_id])
        for pilot in pilots:
            reason = placement.moved.get(pilot.id) or f"job {job_id} shrinks to {size} nodes"
            draft.actions.append(leaving(pilot, LeaveCause.SHRINK, now, rules, reason))
    most, room = _most_starts(snapshot, rules), rules.max_pilots - count_tasks(placement.keep)
    draft.actions += draft.replacements
    used, begun = {start.pilot for start in draft.replacements}, len(draft.replacements)
    for job_id, holes in sorted(placement.take.items()):
        if not holes:
            continue
        tasks = [task for task in inputs.live[job_id].held if task.id not in used]
        if why := inputs.situation.resting.get(f"job {job_id}"):
            refusals.append(Refusal(f"job {job_id}", why))
            continue
        for group in task_groups(holes, draft.width, snapshot):
            free = [hole for hole in group if snapshot.is_free(hole.node)]
            names = ", ".join(hole.node for hole in free)
            refusals += [
                Refusal(f"job {job_id}", f"{hole.node} is not free yet") for hole in group if hole not in free
            ]
            if not free:
                continue
            if begun >= most:
                reason = f"{names} is for the next look: at most {most} pilots start at one"
                refusals.append(Refusal(f"job {job_id}", reason))
            elif begun >= room:
                refusals.append(Refusal(f"job {job_id}", f"{names}: there are {rules.max_pilots} pilots already"))
            elif not tasks:
                refusals.append(Refusal(f"job {job_id}", f"no held task left to start on {names}"))
            else:
                task, limit = tasks.pop(0).id, min(pilot_limit_s(hole, now, rules) for hole in free)
                for part, hole in enumerate(sorted(free, key=lambda each: each.node)):
                    reason = f"hole of {hole.until - now:.0f} s ({hole.reason})"
                    draft.actions.append(StartPilot(job_id, pilot_name(task, part), hole.node, limit, reason))
                begun += 1
    for job_id, lacking in sorted(placement.short.items()):
        refusals.append(Refusal(f"job {job_id}", f"waits for {lacking} nodes that others are leaving"))
    return refusals


def _most_starts(snapshot: Snapshot, rules: Rules) -> float:
    cycle_s = snapshot.plan.main_cycle_s
    return starts_at_once(rules.max_starts, slow=cycle_s is not None and cycle_s > SLOW_MAIN_CYCLE_S)


def starts_at_once(max_starts: int, *, slow: bool = False) -> float:
    """How many pilots may start at one look: a fifth of the usual while slurmctld's cycles are `slow`."""
    if not max_starts:
        return float("inf")
    return max(1, max_starts // 5) if slow else max_starts


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
        if left >= wanted // 2 or not view.staying:
            continue
        if view.topped_up_at is None or now - view.topped_up_at >= rules.start_patience_s:
            reason = f"{left} held tasks are left for up to {view.job.max_nodes} nodes"
            actions.append(TopUp(view.job.id, wanted - left, reason))
    return actions


def clear_away(view: JobView, over_since: float, now: float, rules: Rules) -> list[Action]:
    """What remains of a job that is over: held tasks are cancelled at once, running ones after their patience."""
    held = [p.id for p in view.held] + [i for i, p in sorted(view.pilots.items()) if p.phase is PilotPhase.ASIDE]
    if now - over_since > rules.exit_patience_s or view.phase is not JobPhase.COMPLETED:
        held += [p.id for p in view.active]
    return [CancelTasks(view.job.id, tuple(held), f"job {view.job.id} is {view.phase.value}")] if held else []


def find_strays(snapshot: Snapshot, views: Mapping[int, JobView], rules: Rules) -> tuple[Stray, ...]:
    """Jobs of the harvest partition that hold nodes, or wait for some, and that the daemon has not started. `views`:
    of all jobs, those that are over included.

    Held tasks are nobody's stray: they start only when they are released.
    """
    if not rules.takes_back:
        return ()
    pilots = {pilot.task for view in views.values() for pilot in view.active}
    rows = [
        job
        for job in (*snapshot.holding, *snapshot.pending)
        if job.partition == rules.harvest_partition and job.id not in pilots and not job.is_held
    ]
    unknown = [job for job in rows if not _is_task_of(job, views, snapshot)]
    return tuple(Stray(job.id, job.user, job.nodes, _why_left(job, snapshot, rules)) for job in unknown)


def _is_task_of(job: SlurmJob, views: Mapping[int, JobView], snapshot: Snapshot) -> bool:
    """Whether it is a task that became something else after the look was begun, or that waits to be looked at."""
    mine = [view.pilots[job.id] for view in views.values() if job.id in view.pilots]
    return any(pilot.phase is PilotPhase.HELD or pilot.since >= snapshot.taken_at for pilot in mine)


def _why_left(job: SlurmJob, snapshot: Snapshot, rules: Rules) -> str:
    if job.state is SlurmState.COMPLETING:
        return "it is ending"
    if rules.harvest_account and job.account != rules.harvest_account:
        return f"its account is {job.account or 'none'}, not {rules.harvest_account}"
    if job.het_id and any(other.het_id == job.het_id and other.partition != job.partition for other in snapshot.jobs):
        return "a part of it is in another partition"
    return ""


#: Leaves for these can wait: nobody wants the node at once.
CAN_WAIT = frozenset({LeaveCause.RESERVE, LeaveCause.SHRINK, LeaveCause.STRAGGLER})

#: Seconds that a worker takes to leave, and sdiag's whole seconds.
LEAVE_S = 3.0

#: So many seconds of each cycle remain in which pilots may leave: a look every `loop.tick_s` must meet them.
LEAST_OPEN_S = 11.0


def may_complete_in_cycle(plan: BackfillPlan, now: float, rules: Rules) -> bool:
    """Whether a node that a pilot leaves now may still complete as the next backfill cycle comes: also where it is
    not known when that comes, since sdiag shows none while the queue is empty, or how long epilogs take.

    False where neither is known, and where epilogs take nearly the whole time between two cycles, or more: then no
    moment is better than another.
    """
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


def can_wait(action: Action) -> TypeGuard[LeavePilot]:
    """Whether the action asks a pilot to leave for something that has time."""
    return isinstance(action, LeavePilot) and action.cause in CAN_WAIT
