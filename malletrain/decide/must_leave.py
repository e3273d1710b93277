"""Pilots that must leave whatever the sizes are: main jobs, staff, an operator or the end of a hole take the node.

And jobs that end since they cannot go on: their pilots keep failing, no task is left, or their budget is spent.
"""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.decide.demand import JobHoldings
from malletrain.decide.draft import Draft, Inputs, Situation
from malletrain.decide.holes import Holes
from malletrain.decide.limits import affordable_nodes, job_budget_left_s
from malletrain.decide.reconcile import leaving, leaving_for
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Action, Hole, LeaveCause
from malletrain.domain.event import JobCancelled, JobFailed
from malletrain.domain.job import Elastic, JobPhase, JobView, MalleableJob, Pilot, PilotPhase
from malletrain.domain.output_files import output_file
from malletrain.domain.snapshot import LEAVE_STATES, SlurmState


def leave_what_must(draft: Draft, inputs: Inputs) -> None:
    """End the pilots that cannot stay, each with those of its task."""
    yielding, now, rules = draft.yielding.leave, inputs.now, inputs.rules
    leaves: list[Action] = []
    for view in in_question(inputs.holdings, draft.holes, inputs.held, yielding, inputs.situation, rules):
        for pilot in view.staying:
            if pilot.id in draft.given_up:
                continue
            if pilot.id in yielding:
                leaves.append(leaving_for(pilot, draft.yielding, now, rules))
                continue
            must = must_leave(pilot, view, inputs.situation, draft.holes, rules)
            if must is not None:
                cause, reason = must
                closing = draft.holes.get(pilot.node) if cause is LeaveCause.HOLE_CLOSES else None
                leaves.append(leaving(pilot, cause, now, rules, reason, closing))
    together = inputs.tasks.with_co_allocated([*draft.actions, *leaves])
    draft.actions.clear()
    draft.give_up(together)


def in_question(
    holdings: Mapping[int, JobHoldings],
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
        for _, each in sorted(holdings.items())
        if each.view.phase is JobPhase.HELD
        or each.first_end <= latest
        or each.unasked
        or not wanted.isdisjoint(each.nodes)
        or not yielding.keys().isdisjoint(each.pilots)
        or each.view.job.id in situation.set_aside
        or (rules.join_s and situation.now - each.first_idle > rules.join_s)
        or (each.pilots and why_idle(each.view, situation, rules))
    ]


def must_leave(
    pilot: Pilot,
    view: JobView,
    situation: Situation,
    holes: Mapping[str, Hole],
    rules: Rules,
) -> tuple[LeaveCause, str] | None:
    """Why a pilot that no main job is given must leave all the same, and None where it may stay."""
    now = situation.now
    if view.phase is JobPhase.HELD:
        return LeaveCause.JOB_OVER, f"job {view.job.id} is held: {view.reason}"
    if view.job.id in situation.set_aside:
        return LeaveCause.SET_ASIDE, situation.set_aside[view.job.id]
    if pilot.unasked:
        return LeaveCause.UNASKED, "its task was not released by the daemon"
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
    if why := why_idle(view, situation, rules):
        return LeaveCause.IDLE, why
    if why := _no_worker(pilot, situation, rules):
        alone = all(each.idle_since is not None for each in view.staying)
        return (LeaveCause.IDLE if alone else LeaveCause.NO_WORKER), why
    return None


def why_idle(view: JobView, situation: Situation, rules: Rules) -> str:
    """Why the job's nodes are held for nothing, or ''. Scripts that are restarted report no steps."""
    if not rules.idle_s or view.job.elastic is not Elastic.LIVE:
        return ""
    idle_s = situation.now - max(view.turned_at, view.committed_at or 0.0, situation.heard_since)
    if idle_s <= rules.idle_s:
        return ""
    return f"job {view.job.id} has committed no step for {idle_s:.0f} s on its nodes (pilot.idle_minutes)"


def _no_worker(pilot: Pilot, situation: Situation, rules: Rules) -> str:
    if not rules.join_s or pilot.idle_since is None or pilot.phase is not PilotPhase.RUNNING:
        return ""
    alone_s = situation.now - max(pilot.idle_since, situation.heard_since)
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
