"""The actuator's wire protocol: five verbs, each with a fixed set of fields. A request is one line of JSON, as is its
reply; every other form is refused: the reader holds Slurm's rights, and the writer listens on the network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from malletrain.domain.decision import CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.errors import InvalidInput

#: A longer line is refused.
MAX_LINE_BYTES = 4 * 1024 * 1024

#: Pilots in one request at most; no site runs as many at a time.
MAX_PILOTS = 5000

#: A reason is for the audit log, and cut to so many characters.
MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class ActuatorRequest:
    """One verb with its actions, all of one kind. `owners`: the uid that announced each job, as the daemon has it."""

    actions: tuple[StartPilot | RecyclePilot | CutLimit | CancelTasks | Stray, ...]
    owners: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ActuatorReply:
    """An outcome for each action, or a text: `unavailable` (Slurm did not answer) or `refused` (by the actuator)."""

    outcomes: tuple[Outcome, ...] = ()
    unavailable: str = ""
    refused: str = ""


class Field(NamedTuple):
    """One field of an order: its name on the wire, whose value it is of an action, what fits, and in words."""

    name: str
    attribute: str
    fits: Callable[[Any], bool]
    must_be: str


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _whole(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value <= most


def _seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1e11


#: ARRAY_TASK, and +INDEX for one node of a task that holds several.
_is_pilot = _text(r"[1-9][0-9]{0,9}_[0-9]{1,7}(?:\+[1-9][0-9]{0,3})?")

_JOB = Field("job", "job_id", _whole(2**53), "a whole number of 0 or more")
_REASON = Field(
    "reason", "reason", _text(rf"(?s).{{0,{MAX_REASON_CHARS}}}"), f"at most {MAX_REASON_CHARS} characters"
)
_PILOT = Field("pilot", "pilot", _is_pilot, "an array's number and a task's, as 123_4 or 123_4+1")
_NODE = Field("node", "node", _text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"), "a node's name")
_PILOTS = Field(
    "pilots",
    "pilots",
    lambda value: isinstance(value, list) and len(value) <= MAX_PILOTS and all(map(_is_pilot, value)),
    "a list of pilots, and not of too many",
)
_LIMIT = Field("limit_s", "limit_s", _seconds, "a number of seconds")
_KILL = Field("kill", "kill", lambda value: type(value) is bool, "true or false")
_ENDS_AT = Field("ends_at", "ends_at", _seconds, "a number of seconds")
#: A job as squeue has it: 123, 123_4, 123_[5-9] or 123+1. Only compared with what squeue shows, as is the user.
_SLURM_JOB = r"[1-9][0-9]{0,9}(?:_[0-9]{1,7}|_\[[0-9,%:-]{1,200}\]|\+[0-9]{1,4})?"
_STRAY = Field("job", "job", _text(_SLURM_JOB), "as Slurm has it")
_USER = Field("user", "user", _text(r"[^\x00-\x1f\x7f]{1,255}"), "as Slurm has it")
#: Of a start: who announced the job.
_UID = Field("uid", "", _whole(2**32 - 2), "a whole number of 0 or more")


class Order(NamedTuple):
    """A verb: the kind of its actions, their fields on the wire, and most actions in a request."""

    kind: type
    fields: tuple[Field, ...]
    most: int = MAX_PILOTS


ORDERS = {
    "start": Order(StartPilot, (_JOB, _REASON, _PILOT, _NODE, _LIMIT, _UID)),
    "recycle": Order(RecyclePilot, (_JOB, _REASON, _PILOT, _NODE, _KILL)),
    "cut": Order(CutLimit, (_JOB, _REASON, _PILOT, _NODE, _ENDS_AT), most=1),
    "cancel": Order(CancelTasks, (_JOB, _REASON, _PILOTS), most=1),
    "take_back": Order(Stray, (_STRAY, _USER)),
}


def verb_of(request: ActuatorRequest) -> str:
    """What the request orders."""
    return next(verb for verb, order in ORDERS.items() if isinstance(request.actions[0], order.kind))


def rows_of(request: ActuatorRequest) -> list[dict[str, Any]]:
    """The actions, by the fields that they have on the wire."""
    fields = ORDERS[verb_of(request)].fields
    rows = [
        {field.name: getattr(action, field.attribute or "job_id") for field in fields} for action in request.actions
    ]
    for row in rows:
        if "reason" in row:
            row["reason"] = row["reason"][:MAX_REASON_CHARS]
        if "uid" in row:
            row["uid"] = request.owners.get(row["job"])
    return rows


def write_request(request: ActuatorRequest) -> bytes:
    """The request as one line of JSON."""
    return json.dumps({"verb": verb_of(request), "actions": rows_of(request)}).encode() + b"\n"


def read_request(line: bytes, most_s: float) -> ActuatorRequest:
    """The request in `line`. `most_s`: the longest time limit that is accepted, in seconds. Raises `InvalidInput`:
    the line is not a request, or a field has a wrong type or value."""
    body = _json(line, "request")
    verb = body.get("verb") if isinstance(body, dict) else None
    order = ORDERS.get(verb) if isinstance(verb, str) else None
    if order is None or set(body) != {"verb", "actions"}:
        raise InvalidInput("request", f"is none of {', '.join(ORDERS)} with its actions")
    rows = body["actions"]
    if not isinstance(rows, list) or not 1 <= len(rows) <= order.most:
        raise InvalidInput("request.actions", "must be a list of some actions, and not of too many")
    names = {field.name for field in order.fields}
    actions = []
    for row in rows:
        if not isinstance(row, dict) or set(row) != names:
            raise InvalidInput("request.actions", f"each must have {', '.join(sorted(names))}, no more and no less")
        for field in order.fields:
            if not field.fits(row[field.name]):
                raise InvalidInput(f"request.{field.name}", f"must be {field.must_be}")
        if row.get("limit_s", 0) > most_s:
            raise InvalidInput("request.limit_s", f"must be from 0 to {most_s:g} s")
        values = {field.attribute: row[field.name] for field in order.fields if field.attribute}
        actions.append(order.kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}))
    return ActuatorRequest(tuple(actions), {row["job"]: row["uid"] for row in rows if "uid" in row})


def write_reply(answer: ActuatorReply) -> bytes:
    """The reply as one line of JSON."""
    rows = [
        {key: value for key, value in asdict(outcome).items() if value is not None and (value or key != "preempted")}
        for outcome in answer.outcomes
    ]
    body = {"outcomes": rows, "unavailable": answer.unavailable, "refused": answer.refused}
    return json.dumps(body).encode() + b"\n"


def read_answer(line: bytes) -> ActuatorReply:
    """The reply in `line`. Raises `InvalidInput`: the line is not a reply of this release."""
    body = _json(line, "answer")
    try:
        outcomes = tuple(Outcome(**row) for row in body["outcomes"])
        return ActuatorReply(outcomes, str(body["unavailable"]), str(body["refused"]))
    except (KeyError, TypeError) as error:
        raise InvalidInput("answer", f"is none of an actuator of this release ({error})") from error


def _json(line: bytes, what: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(what, "is no line of JSON") from error
