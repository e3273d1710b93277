"""The actuator's wire protocol: five verbs (start, recycle, cut, cancel, take_back), each with a fixed set of fields.

A request is one line of JSON, as is its reply. `read_request` refuses every other form, because the reader holds
Slurm's rights and the writer listens on the network.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from malletrain.domain.decision import CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.errors import InvalidInput

#: A longer line is refused.
MAX_LINE_BYTES = 4 * 1024 * 1024

#: Pilots in one request at most; no site runs as many at a time.
MAX_PILOTS = 5000

#: A reason is for the audit log, and cut to so many characters.
MAX_REASON_CHARS = 500

#: ARRAY_TASK, and +INDEX for one node of a task that holds several.
_PILOT = re.compile(r"[1-9][0-9]{0,9}_[0-9]{1,7}(?:\+[1-9][0-9]{0,3})?")
#: A job as squeue has it: 123, 123_4, 123_[5-9] or 123+1. Only compared with what squeue shows, as is the user.
_JOB = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,7}|_\[[0-9,%:-]{1,200}\]|\+[0-9]{1,4})?")
_USER = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True, slots=True)
class ActuatorRequest:
    """One verb with its actions, all of one kind. `owners`: the uid that announced each job, as the daemon has it."""

    actions: (
        tuple[StartPilot, ...] | tuple[RecyclePilot, ...] | tuple[CutLimit] | tuple[CancelTasks] | tuple[Stray, ...]
    )
    owners: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ActuatorReply:
    """An outcome for each action, or a text: `unavailable` (Slurm did not answer) or `refused` (by the actuator)."""

    outcomes: tuple[Outcome, ...] = ()
    unavailable: str = ""
    refused: str = ""


def write_request(request: ActuatorRequest) -> bytes:
    """The request as one line of JSON."""
    first = request.actions[0]
    verb = next(verb for verb, (kind, _) in _VERBS.items() if isinstance(first, kind))
    rows: list[dict[str, Any]] = []
    for action in request.actions:
        if isinstance(action, Stray):
            rows.append({"job": action.job, "user": action.user})
            continue
        row: dict[str, Any] = {"job": action.job_id, "reason": action.reason[:MAX_REASON_CHARS]}
        match action:
            case StartPilot():
                uid = request.owners.get(action.job_id)
                row |= {"pilot": action.pilot, "node": action.node, "limit_s": action.limit_s, "uid": uid}
            case RecyclePilot():
                row |= {"pilot": action.pilot, "node": action.node, "kill": action.kill}
            case CutLimit():
                row |= {"pilot": action.pilot, "node": action.node, "ends_at": action.ends_at}
            case CancelTasks():
                row |= {"pilots": list(action.pilots)}
        rows.append(row)
    return json.dumps({"verb": verb, "actions": rows}).encode() + b"\n"


def read_request(line: bytes, most_s: float) -> ActuatorRequest:
    """The request in `line`. `most_s`: the longest time limit that is accepted, in seconds.

    Raises:
        InvalidInput: the line is not a request, or a field has a wrong type or value.
    """
    body = _json(line, "request")
    verb = body.get("verb") if isinstance(body, dict) else None
    if not isinstance(verb, str) or verb not in _VERBS or set(body) != {"verb", "actions"}:
        raise InvalidInput("request", f"is none of {', '.join(_VERBS)} with its actions")
    _, wanted = _VERBS[verb]
    rows = body["actions"]
    if not isinstance(rows, list) or not 1 <= len(rows) <= (MAX_PILOTS if verb in _MANY else 1):
        raise InvalidInput("request.actions", "must be a list of some actions, and not of too many")
    actions: list[Any] = []
    owners: dict[int, int] = {}
    for row in rows:
        if not isinstance(row, dict) or set(row) != wanted:
            raise InvalidInput("request.actions", f"each must have {', '.join(sorted(wanted))}, no more and no less")
        if verb == "take_back":
            actions.append(Stray(_matching(_JOB, row["job"], "job"), _matching(_USER, row["user"], "user")))
            continue
        job, reason = _whole(row["job"], "job", 2**53), _reason(row["reason"])
        match verb:
            case "start":
                owners[job] = _whole(row["uid"], "uid", 2**32 - 2)
                limit = _seconds(row["limit_s"], "limit_s", 0.0, most_s)
                actions.append(StartPilot(job, _pilot(row["pilot"]), _node(row["node"]), limit, reason))
            case "recycle":
                kill = _flag(row["kill"], "kill")
                actions.append(RecyclePilot(job, _pilot(row["pilot"]), _node(row["node"]), reason, kill=kill))
            case "cut":
                ends_at = _seconds(row["ends_at"], "ends_at", 0.0, 1e11)
                actions.append(CutLimit(job, _pilot(row["pilot"]), _node(row["node"]), ends_at, reason))
            case _:
                if not isinstance(row["pilots"], list) or len(row["pilots"]) > MAX_PILOTS:
                    raise InvalidInput("request.pilots", "must be a list of pilots, and not of too many")
                actions.append(CancelTasks(job, tuple(_pilot(pilot) for pilot in row["pilots"]), reason))
    return ActuatorRequest(tuple(actions), owners)


def write_reply(answer: ActuatorReply) -> bytes:
    """The reply as one line of JSON."""
    rows = [
        {"done": o.done, "detail": o.detail, "unfit": o.unfit, "refused": o.refused}
        | ({} if o.restarts is None else {"restarts": o.restarts})
        | ({"preempted": True} if o.preempted else {})
        for o in answer.outcomes
    ]
    body = {"outcomes": rows, "unavailable": answer.unavailable, "refused": answer.refused}
    return json.dumps(body).encode() + b"\n"


def read_answer(line: bytes) -> ActuatorReply:
    """The reply in `line`.

    Raises:
        InvalidInput: the line is not a reply of this release.
    """
    body = _json(line, "answer")
    try:
        outcomes = tuple(
            Outcome(
                bool(o["done"]),
                str(o["detail"]),
                unfit=bool(o["unfit"]),
                refused=bool(o.get("refused")),
                restarts=_restarts(o.get("restarts")),
                preempted=o.get("preempted") is True,
            )
            for o in body["outcomes"]
        )
        return ActuatorReply(outcomes, str(body["unavailable"]), str(body["refused"]))
    except (KeyError, TypeError) as error:
        raise InvalidInput("answer", f"is none of an actuator of this release ({error})") from error


#: Each verb: the kind of its actions, and the fields that they must have.
_VERBS: Mapping[str, tuple[type, frozenset[str]]] = {
    "start": (StartPilot, frozenset({"job", "reason", "pilot", "node", "limit_s", "uid"})),
    "recycle": (RecyclePilot, frozenset({"job", "reason", "pilot", "node", "kill"})),
    "cut": (CutLimit, frozenset({"job", "reason", "pilot", "node", "ends_at"})),
    "cancel": (CancelTasks, frozenset({"job", "reason", "pilots"})),
    "take_back": (Stray, frozenset({"job", "user"})),
}

#: Verbs that take many actions at once.
_MANY: Sequence[str] = ("start", "recycle", "take_back")


def _json(line: bytes, what: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(what, "is no line of JSON") from error


def _restarts(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _whole(value: object, name: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidInput(f"request.{name}", "must be a whole number of 0 or more")
    return value


def _seconds(value: object, name: str, least: float, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput(f"request.{name}", "must be a number of seconds")
    if not least <= value <= most:
        raise InvalidInput(f"request.{name}", f"must be from {least:g} to {most:g} s")
    return float(value)


def _pilot(value: object) -> str:
    if not isinstance(value, str) or not _PILOT.fullmatch(value):
        raise InvalidInput("request.pilot", "must be an array's number and a task's, as 123_4 or 123_4+1")
    return value


def _matching(pattern: re.Pattern[str], value: object, name: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidInput(f"request.{name}", "must be as Slurm has it")
    return value


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"request.{name}", "must be true or false")
    return value


def _reason(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_REASON_CHARS:
        raise InvalidInput("request.reason", f"must be text of at most {MAX_REASON_CHARS} characters")
    return value


def _node(value: object) -> str:
    if not isinstance(value, str) or not _NODE.fullmatch(value):
        raise InvalidInput("request.node", "must be a node's name")
    return value
