"""Pilots that must leave whatever the sizes are: main jobs, staff, an operator or the end of a hole take the node.

And jobs that end since they cannot go on: their pilots keep failing, no task is left, or their budget is spent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from malletrain.decide.draft import Draft, Inputs, Situation
from malletrain.decide.limits import affordable_nodes, job_budget_left_s
from malletrain.decide.reconcile import leaving, leaving_for
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Action, Hole, LeaveCause
from malletrain.domain.event import JobCancelled, JobFailed
from malletrain.domain.job import Elastic, JobPhase, JobView, MalleableJob, Pilot, PilotPhase
from malletrain.domain.output_files import output_file
from malletrain.domain.snapshot import LEAVE_STATES, SlurmState

#: Why a pilot leaves: for Slurm's side of it, and in words.
Why = tuple[LeaveCause, str]


def leave_what_must(draft: Draft, inputs: Inputs) -> None:
    """End the pilots that cannot stay, each with those of its task."""
    situation, rules, now = inputs.situation, inputs.rules, inputs.now
    given_up, yielding = draft.given_up, draft.yielding.leave
    wanted = _wanted_nodes(inputs.held, draft.holes, situation, rules)
    leaves: list[Action] = []
    for _, view in sorted(inputs.live.items()):
        of_job = _job_must_leave(view, situation)
        idle = _why_idle(view, situation, rules)
        for pilot in view.staying:
            if pilot.id in given_up:
                continue
            if pilot.id in yielding:
                leaves.append(leaving_for(pilot, draft.yielding, now, rules))
                continue
            must = of_job or _must_leave(pilot, view, wanted, idle, situation, rules)
            if must is not None:
                cause, reason = must
                closing = draft.holes.get(pilot.node) if cause is LeaveCause.HOLE_CLOSES else None
                leaves.append(leaving(pilot, cause, now, rules, reason, closing))
    draft.give_up(leaves, inputs)


def _wanted_nodes(
    held: Collection[str], holes: Mapping[str, Hole], situation: Situation, rules: Rules
) -> dict[str, Why]:
    """Of the nodes that pilots hold (`held`), those that an operator, staff or their hole's end takes, and why."""
    now, latest = situation.now, situation.now + rules.margin_s + rules.leave_lead_s
    found: dict[str, Why] = {}
    for name in held:
        if name in holes and holes[name].until <= latest:
            left_s = max(0.0, holes[name].until - now)
            found[name] = LeaveCause.HOLE_CLOSES, f"{holes[name].reason} in {left_s:.0f} s"
    for name in set(held) - holes.keys():
        node = situation.snapshot.node.get(name)
        if node is not None and node.state in LEAVE_STATES:
            found[name] = LeaveCause.NODE_WANTED, f"{name} is {node.state.value} {node.reason}".rstrip()
        elif node is not None and rules.harvest_partition not in node.partitions:
            found[name] = LeaveCause.NODE_WANTED, f"{name} is no longer in partition {rules.harvest_partition}"
        elif not rules.may_harvest(name):
            why = f"{name} is no longer one that may be harvested (pool.include, exclude)"
            found[name] = LeaveCause.NODE_WANTED, why
    for name in situation.drained.intersection(held):
        found[name] = LeaveCause.OPERATOR, f"{name} is drained of pilots by an operator"
    return found


def _job_must_leave(view: JobView, situation: Situation) -> Why | None:
    if view.phase is JobPhase.HELD:
        return LeaveCause.JOB_OVER, f"job {view.job.id} is held: {view.reason}"
    if view.job.id in situation.set_aside:
        return LeaveCause.SET_ASIDE, situation.set_aside[view.job.id]
    return None


def _must_leave(
    pilot: Pilot, view: JobView, wanted: Mapping[str, Why], idle: str, situation: Situation, rules: Rules
) -> Why | None:
    """Why a pilot that no main job is given must leave all the same. `idle`: as of `_why_idle`."""
    if pilot.unasked:
        return LeaveCause.UNASKED, "its task was not released by the daemon"
    if pilot.node in wanted:
        return wanted[pilot.node]
    if pilot.ends_at is not None and pilot.ends_at - situation.now <= rules.leave_lead_s:
        return LeaveCause.HOLE_CLOSES, f"its time limit ends in {max(0.0, pilot.ends_at - situation.now):.0f} s"
    if idle:
        return LeaveCause.IDLE, idle
    if pilot.idle_since is not None and (why := _no_worker(pilot, pilot.idle_since, situation, rules)):
        alone = all(each.idle_since is not None for each in view.staying)
        return (LeaveCause.IDLE if alone else LeaveCause.NO_WORKER), why
    return None


def _why_idle(view: JobView, situation: Situation, rules: Rules) -> str:
    """Why the job's nodes are held for nothing, or ''. Scripts that are restarted report no steps."""
    if not rules.idle_s or view.job.elastic is not Elastic.LIVE:
        return ""
    idle_s = situation.now - max(view.turned_at, view.committed_at or 0.0, situation.heard_since)
    if idle_s <= rules.idle_s:
        return ""
    return f"job {view.job.id} has committed no step for {idle_s:.0f} s on its nodes (pilot.idle_minutes)"


def _no_worker(pilot: Pilot, idle_since: float, situation: Situation, rules: Rules) -> str:
    if not rules.join_s or pilot.phase is not PilotPhase.RUNNING:
        return ""
    alone_s = situation.now - max(idle_since, situation.heard_since)
    if alone_s <= rules.join_s:
        return ""
    return f"no worker has joined from {pilot.node} for {alone_s:.0f} s (pilot.join_minutes)"


def termination(view: JobView, rules: Rules, spent_s: float = 0.0) -> tuple[JobCancelled | JobFailed, str] | None:
    """How a job that cannot go on ends, and why; None for one that can. `spent_s`: node-seconds that it has used.

    A pilot that ends before its worker is ready has a fault that the next one has too (a wrong path, a missing
    module): trying on would consume the whole array.
    """
    if view.array_gone and not view.pilots and not view.phase.is_over:
        return JobFailed(), f"{view.array_gone}: submit it again"
    if view.phase not in (JobPhase.QUEUED, JobPhase.RUNNING, JobPhase.HELD) or not view.pilots:
        return None
    budget = view.job.budget_node_s
    if budget is not None and not view.active and spent_s > 0:
        least = max(1, view.job.min_nodes)
        left = job_budget_left_s(budget, spent_s)
        if affordable_nodes(left, rules.horizon_s) < least:
            return JobCancelled(), (
                f"its budget of {budget / 3600:.4g} node-hours is spent: what is left, {left / 3600:.2g}, is too "
                "little for its fewest nodes"
            )
    if view.failures >= rules.max_failures:
        failed = [p for p in view.pilots.values() if p.ended_as is not None]
        last = max(failed, key=lambda p: (p.since, p.id))
        return JobFailed(), (
            f"{view.failures} pilots in a row ended before their worker was ready ({last.reason}): "
            f"see {_output(view.job, last.task)}"
        )
    if view.active or view.held_count * rules.max_nodes >= max(1, view.job.min_nodes):
        return None
    tasks = [p for p in view.pilots.values() if not p.is_part]
    if view.held_count:  # only a living worker can submit more
        return JobFailed(), (
            f"{view.held_count} of its {len(tasks)} tasks are left, too few for its fewest nodes, "
            f"{view.job.min_nodes}: submit it again, and it goes on from its last save"
        )
    last = max(tasks, key=lambda pilot: pilot.since)
    if last.ended_as is SlurmState.CANCELLED:  # (an earlier one may have been cancelled for itself)
        return JobCancelled(), "its array was cancelled in Slurm"
    ends = [p.ended_as for p in tasks]
    if last.ended_as is SlurmState.UNKNOWN:
        unknown = ends.count(SlurmState.UNKNOWN)
        return JobFailed(), (
            f"Slurm no longer knows its tasks ({unknown} of {len(ends)}): slurmctld was killed before it had saved "
            "them, or they ended while nobody looked: submit it again, and it goes on from its last save"
        )
    consumed = ", ".join(f"{ends.count(state)} {state.value}" for state in SlurmState if state in ends)
    return JobFailed(), (
        f"no held task is left (of {len(ends)}: {consumed}): submit it again, and it goes on from its last save"
    )


def _output(job: MalleableJob, task: str) -> str:
    """Where the task's standard error is, in words."""
    if job.output:
        return output_file(job.output[-1], task, job.name, job.user)
    return f"slurm-{task}.out in the folder of the submission"
