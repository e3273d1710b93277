"""Events as rows of the journal and back: `kind`, and the payload's fields as JSON in `data`."""

import json
import typing
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from malletrain.domain import event as kinds
from malletrain.domain.decision import ACTION_NAMES
from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import Event, JsonValue, Payload
from malletrain.domain.job import Curve, MalleableJob
from malletrain.store.errors import StoreError
from malletrain.wire.codec import Codec

#: Unix seconds of the year 3000; a larger time has another unit.
MAX_UNIX_TIME_S = 32_503_680_000.0

_ACTIONS: dict[str, type[Any]] = {name: action for action, name in ACTION_NAMES.items()}

#: Of what the journal holds.
CODEC = Codec(ValueError, bare=(Curve,))


def event_row(event: Event) -> dict[str, Any]:
    """The columns of an event, checked.
    Raises InvalidInput: `at` is no time, or the payload holds something that JSON cannot."""
    where = f"event {event.kind}"
    if not 0 <= event.at < MAX_UNIX_TIME_S:
        raise InvalidInput(where, f"at={event.at!r} is not a time in Unix seconds")
    try:
        data = json.dumps(payload_data(event.payload), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(where, f"data is not JSON: {error}") from error
    columns = {name: getattr(event, name) for name in ("seq", "at", "job", "pilot", "node", "reason")}
    return columns | {"kind": event.kind, "data": data}


def row_event(row: Row[Any]) -> Event:
    """The event of a row; a kind that only a newer release has becomes an `UnknownFact`.
    Raises StoreError: a field is missing or of the wrong type."""
    seq, at, kind, job, pilot, node, reason, data = tuple(row)  # names of columns are looked up slowly
    try:
        payload = payload_from(kind, json.loads(data))
    except ValueError as error:
        raise StoreError(
            f"event {seq} of the journal, a {kind!r}, cannot be read: {error}; "
            "install the release that wrote it, or restore a backup"
        ) from error
    return Event(at, payload, job, pilot, node, reason, seq)


def payload_data(payload: Payload) -> dict[str, JsonValue]:
    """A payload as JSON. NaN and infinity, which JSON lacks, become "nan", "inf" and "-inf".
    Raises TypeError: something in it is not JSON."""
    match payload:
        case kinds.JobAnnounced():
            return CODEC.to_json(payload.job)
        case kinds.ActionIntent(action=action) | kinds.ActionOutcome(action=action):
            own = CODEC.to_json(payload)
            return {"type": ACTION_NAMES[type(action)], **own.pop("action"), **own}
        case kinds.UnknownFact():
            return dict(payload.data)
        case _:
            return CODEC.to_json(payload)


def payload_from(kind: str, data: Mapping[str, Any]) -> Payload:
    """The reverse of `payload_data`. Unknown keys are passed over; what is missing has its default.
    Raises ValueError: a field is missing or of the wrong type; the message names it."""
    found = kinds.FACTS.get(kind)
    if found is None:
        return kinds.UnknownFact(kind, data)
    if found is kinds.JobAnnounced:
        return kinds.JobAnnounced(CODEC.record(MalleableJob, data))
    if found is kinds.ActionIntent or found is kinds.ActionOutcome:
        action = _ACTIONS.get(str(data.get("type")))
        if action is None:
            raise ValueError(f"type: {data.get('type')!r} is no action of this release")
        return typing.cast(Payload, CODEC.record(found, {**data, "action": CODEC.record(action, data)}))
    return typing.cast(Payload, CODEC.record(found, data))
