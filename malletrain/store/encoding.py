"""Events as rows of the journal and back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from sqlalchemy import Row

from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import Event, EventKind, JsonValue
from malletrain.store.errors import StoreError

#: The years 1970 to 3000: a time outside was not in Unix seconds.
LATEST_TIME = 32_503_680_000.0


def plain_event(event: Event) -> Event:
    """The event as it can be written and will be read: its data is JSON and nothing else.

    JSON has no NaN and no infinity, and a diverged loss is worth keeping: they become "nan", "inf" and "-inf".

    Raises:
        InvalidInput: `at` is no time, or `data` holds something else than JSON values.
    """
    where = f"event {event.kind}"
    if not 0 <= event.at < LATEST_TIME:
        raise InvalidInput(where, f"at={event.at!r} is not a time in Unix seconds")
    try:
        data = {key: _plain(value) for key, value in event.data.items()}
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(where, f"data is not JSON: {error}") from error
    return replace(event, data=data)


def event_row(event: Event) -> dict[str, Any]:
    """The columns of a plain event with a number."""
    return {
        "seq": event.seq,
        "at": event.at,
        "kind": event.kind.value,
        "job": event.job,
        "pilot": event.pilot,
        "node": event.node,
        "reason": event.reason,
        "data": json.dumps(dict(event.data), allow_nan=False, separators=(",", ":")),
    }


def row_event(row: Row[Any]) -> Event:
    """The event of a row.

    Raises:
        StoreError: its kind is unknown: a newer release wrote it.
    """
    try:
        kind = EventKind(row.kind)
    except ValueError as error:
        raise StoreError(
            f"event {row.seq} of the journal is a {row.kind!r}, which this release does not know: "
            "install the release that wrote it"
        ) from error
    return Event(row.at, kind, row.job, row.pilot, row.node, row.reason, json.loads(row.data), row.seq)


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("keys must be text")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
