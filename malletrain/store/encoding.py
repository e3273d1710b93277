"""Events as rows of the journal and back: `kind`, and the payload's fields as JSON in `data`."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from typing import Any

from sqlalchemy import Row

from malletrain.domain.decision import ACTION_NAMES
from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import (
    ActionIntent,
    ActionOutcome,
    Event,
    JobAnnounced,
    JsonValue,
    Payload,
    UnknownFact,
)
from malletrain.domain.job import Curve, MalleableJob
from malletrain.store.errors import StoreError

#: Unix seconds of the year 3000; a larger time has another unit.
MAX_UNIX_TIME_S = 32_503_680_000.0

_PAYLOADS: dict[str, type[Any]] = {kind.kind: kind for kind in typing.get_args(Payload) if kind is not UnknownFact}
_ACTIONS: dict[str, type[Any]] = {name: action for action, name in ACTION_NAMES.items()}


def event_row(event: Event) -> dict[str, Any]:
    """The columns of an event, checked.

    Raises:
        InvalidInput: `at` is no time, or the payload holds something that JSON cannot.
    """
    where = f"event {event.kind}"
    if not 0 <= event.at < MAX_UNIX_TIME_S:
        raise InvalidInput(where, f"at={event.at!r} is not a time in Unix seconds")
    try:
        data = json.dumps(payload_data(event.payload), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(where, f"data is not JSON: {error}") from error
    return {
        "seq": event.seq,
        "at": event.at,
        "kind": str(event.kind),
        "job": event.job,
        "pilot": event.pilot,
        "node": event.node,
        "reason": event.reason,
        "data": data,
    }


def row_event(row: Row[Any]) -> Event:
    """The event of a row; a kind that only a newer release has becomes an `UnknownFact`.

    Raises:
        StoreError: a field is missing or of the wrong type.
    """
    try:
        payload = payload_from(row.kind, json.loads(row.data))
    except ValueError as error:
        raise StoreError(
            f"event {row.seq} of the journal, a {row.kind!r}, cannot be read: {error}; "
            "install the release that wrote it, or restore a backup"
        ) from error
    return Event(row.at, payload, row.job, row.pilot, row.node, row.reason, row.seq)


def payload_data(payload: Payload) -> dict[str, JsonValue]:
    """A payload as JSON. NaN and infinity, which JSON lacks, become "nan", "inf" and "-inf".

    Raises:
        TypeError: something in it is not JSON.
    """
    match payload:
        case JobAnnounced():
            return _written(payload.job)
        case ActionIntent():
            return _action(payload.action)
        case ActionOutcome():
            more: dict[str, JsonValue] = {} if payload.restarts is None else {"restarts": payload.restarts}
            if payload.preempted:
                more["preempted"] = True
            return {**_action(payload.action), "done": payload.done, "detail": payload.detail, **more}
        case UnknownFact():
            return dict(payload.data)
        case _:
            return _written(payload)


def payload_from(kind: str, data: Mapping[str, Any]) -> Payload:
    """The reverse of `payload_data`. Unknown keys are passed over; what is missing has its default.

    Raises:
        ValueError: a field is missing or of the wrong type; the message names it.
    """
    found = _PAYLOADS.get(kind)
    if found is None:
        return UnknownFact(kind, data)
    if found is JobAnnounced:
        return JobAnnounced(_read(MalleableJob, data))
    if found is ActionIntent or found is ActionOutcome:
        action = _ACTIONS.get(str(data.get("type")))
        if action is None:
            raise ValueError(f"type: {data.get('type')!r} is no action of this release")
        return typing.cast(Payload, _read(found, {**data, "action": _read(action, data)}))
    return typing.cast(Payload, _read(found, data))


def _action(action: Any) -> dict[str, JsonValue]:
    return {"type": ACTION_NAMES[type(action)], **_written(action)}


def _written(value: Any) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    of_type: Any = type(value)
    for name, key, _, default, sparse in _fields(of_type):
        item = getattr(value, name)
        if not sparse or item != default:
            found[key] = plain_json(item)
    return found


def _read(kind: Any, data: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for name, key, reader, default, _ in _fields(kind):
        if key in data:
            try:
                values[name] = reader(data[key])
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{key}: {error}") from error
        elif default is MISSING:
            raise ValueError(f"{key}: missing")
    return kind(**values)


_Field = tuple[str, str, Callable[[Any], Any], Any, bool]


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    """Of each field its name, its key, how it is read, its default (MISSING: none), and whether it is sparse."""
    hints = typing.get_type_hints(kind)
    found = []
    for each in fields(kind):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        key, sparse = each.metadata.get("key", each.name), each.metadata.get("sparse", False)
        found.append((each.name, key, _reader(hints[each.name]), default, sparse))
    return tuple(found)


def _reader(hint: Any) -> Callable[[Any], Any]:
    """How a field of this type is made from JSON."""
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [each for each in arguments if each is not types.NoneType]
        if len(inner) > 1:  # any JSON, or an action, which is read already
            return lambda value: value
        read = _reader(inner[0])
        return lambda value: None if value is None else read(value)
    if typing.get_origin(hint) is tuple:
        item = _reader(arguments[0])
        if arguments[-1] is ...:
            return lambda value: tuple(item(each) for each in _of_type(value, list))
        second = _reader(arguments[1])
        return lambda value: (item(value[0]), second(value[1]))
    if typing.get_origin(hint) is Mapping:
        key, item = arguments[0], _reader(arguments[1])
        return lambda value: {key(name): item(each) for name, each in _of_type(value, dict).items()}
    if hint is Curve:
        points = _reader(tuple[tuple[int, float], ...])
        return lambda value: Curve(points(value))
    if hint is float:
        return _number
    if hint is int:
        return lambda value: int(_number(value))
    if issubclass(hint, Enum):
        return typing.cast(Callable[[Any], Any], hint)
    return lambda value: _of_type(value, hint)


def _of_type(value: Any, wanted: type[Any]) -> Any:
    if not isinstance(value, wanted):
        raise TypeError(f"must be a {wanted.__name__}, not {value!r}"[:200])
    return value


def _number(value: Any) -> Any:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"must be a number, not {value!r}"[:200])
    return value


def plain_json(value: Any) -> JsonValue:
    """A value as JSON has it; NaN and infinity as words.

    Raises:
        TypeError: it is not JSON.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {_key(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if isinstance(value, Curve):
        return [list(point) for point in value.points]
    raise TypeError(f"{type(value).__name__} is not JSON")


def _key(key: object) -> str:
    if not isinstance(key, str | int):
        raise TypeError("keys must be text")
    return str(key)
