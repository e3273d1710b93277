"""A decision in words: what `malletraind --dry-run` prints. Pure text, one line an action or refusal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from malletrain.domain.decision import (
    Action,
    CancelTasks,
    CutLimit,
    Decision,
    LeavePilot,
    RecyclePilot,
    StartPilot,
    TopUp,
)


def describe(decision: Decision) -> Iterator[str]:
    """The lines."""
    holes, actions = len(decision.holes), len(decision.actions)
    yield f"at {utc(decision.at)}: holes {holes}, actions {actions}, sizing {decision.status.value}"
    for hole in decision.holes:
        yield f"hole    {hole.node} until {utc(hole.until)}: {hole.reason}"
    for job, nodes in sorted(decision.sizes.items()):
        yield f"size    job {job}: {nodes} {'node' if nodes == 1 else 'nodes'}"
    for stray in decision.strays:
        what = f"left alone: {stray.left}" if stray.left else "no pilot: it is ended"
        yield f"stray   job {stray.job} of {stray.user} on {', '.join(stray.nodes) or 'no node yet'}: {what}"
    yield from map(describe_action, decision.actions)
    for refusal in decision.refusals:
        yield f"not     {refusal.subject}: {refusal.reason}"
    if not decision.actions:
        yield "nothing to do"


def describe_action(action: Action) -> str:
    """One action and its reason, in one line."""
    match action:
        case StartPilot():
            what = f"start   {action.pilot} of job {action.job_id} on {action.node} for {action.limit_s:.0f} s"
        case LeavePilot():
            what = (
                f"leave   {action.pilot} of job {action.job_id} from {action.node} by {utc(action.deadline)} "
                f"({action.cause.value})"
            )
        case CutLimit():
            what = f"cut     {action.pilot} of job {action.job_id} on {action.node} to end by {utc(action.ends_at)}"
        case RecyclePilot():
            what = f"recycle {action.pilot} of job {action.job_id} on {action.node}"
        case CancelTasks():
            what = f"cancel  {', '.join(action.pilots)} of job {action.job_id}"
        case TopUp():
            what = f"top up  job {action.job_id} by {action.tasks} held tasks"
    return f"{what}: {action.reason}"


def utc(at: float) -> str:
    """Unix seconds as people write them, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
