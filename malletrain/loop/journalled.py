"""Jobs and actions as the journal keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from malletrain.domain.decision import (
    Action,
    CancelTasks,
    CutLimit,
    LeavePilot,
    Outcome,
    RecyclePilot,
    StartPilot,
    TopUp,
)
from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import JsonValue
from malletrain.domain.job import Curve, Elastic, MalleableJob, Profile

_ACTION_NAMES: Mapping[type[Action], str] = {
    StartPilot: "start",
    LeavePilot: "leave",
    CutLimit: "cut",
    RecyclePilot: "recycle",
    CancelTasks: "cancel",
    TopUp: "top_up",
}


def action_data(action: Action) -> dict[str, JsonValue]:
    """An action as the journal keeps it."""
    data = cast(dict[str, JsonValue], asdict(action))
    if isinstance(action, CancelTasks):
        data["pilots"] = list(action.pilots)
    return {"type": _ACTION_NAMES[type(action)], **data}


def outcome_data(outcome: Outcome) -> dict[str, JsonValue]:
    """What became of an action, as the journal keeps it beside the action."""
    data: dict[str, JsonValue] = {"done": outcome.done, "detail": outcome.detail}
    return data if outcome.restarts is None else {**data, "restarts": outcome.restarts}


def announced(job: MalleableJob) -> dict[str, JsonValue]:
    """A job as JOB_ANNOUNCED keeps it."""
    data = cast(dict[str, JsonValue], asdict(job))
    data["sizes"] = list(job.sizes)
    data["elastic"] = job.elastic.value
    data["profile"] = job.profile.value if job.profile else None
    data["given_curve"] = [list(p) for p in job.given_curve.points] if job.given_curve else None
    return data


def job_from(data: Mapping[str, Any]) -> MalleableJob:
    """The reverse of `announced`.

    Raises:
        InvalidInput: a field is missing or unknown: the journal is of another version.
    """
    try:
        fields = dict(data)
        points = fields.get("given_curve")
        fields["given_curve"] = Curve(tuple((int(n), float(r)) for n, r in points)) if points else None
        fields["sizes"] = tuple(fields.get("sizes") or ())
        fields["elastic"] = Elastic(fields.get("elastic", "live"))
        fields["profile"] = Profile(fields["profile"]) if fields.get("profile") else None
        return MalleableJob(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            "journal", f"a job cannot be read ({error}); was it written by another version?"
        ) from error
