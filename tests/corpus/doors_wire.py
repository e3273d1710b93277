"""The doors to what travels: messages of workers and the daemon, rows for people, the routes' description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

from malletrain.api.app import create_app
from malletrain.api.auth import Auth
from malletrain.api.people_routes import JournalNotifier, PeopleRoutes
from malletrain.api.roles import Roles
from malletrain.api.worker_routes import WorkersRouter
from malletrain.loop.memory import ManualClock
from malletrain.wire import messages, rows
from malletrain.wire.errors import WireError

Json = dict[str, Any]

#: What is told besides reports, by the word that faults use.
_TOLD: Mapping[str, type[Any]] = {
    "seat": messages.Seat,
    "plan": messages.Plan,
    "directive": messages.Directive,
    "welcome": messages.Welcome,
    "standing": messages.Standing,
    "hello": messages.Hello,
}

_ROWS: Mapping[str, type[rows.Row]] = {
    "pilot": rows.PilotRow,
    "size": rows.SizeRow,
    "profile": rows.ProfileRow,
    "job": rows.JobRow,
    "node": rows.NodeRow,
    "pool": rows.PoolRow,
    "event": rows.EventRow,
    "decision": rows.DecisionRow,
    "status": rows.StatusRow,
    "usage": rows.UsageRow,
}

#: Texts in an OpenAPI document that are for people, or made of names of classes and functions.
_FOR_PEOPLE = {"title", "summary", "description", "operationId"}


def passed_on(kind: str, body: object) -> str:
    """What is read in, written out again, byte for byte; or why it is refused. `kind`: `report`, the name of what is
    told, or `row NAME`."""
    try:
        if kind == "report":
            written = messages.to_json(messages.message_of(body))
        elif kind in _TOLD:
            written = messages.to_json(messages.parse(_TOLD[kind], body))
        else:
            row = _ROWS[kind.removeprefix("row ")]
            written = row.from_json(body).to_json()
    except WireError as error:
        return f"refused: {_plain(str(error))}"
    return json.dumps(written)


def _plain(text: str) -> str:
    """Without the names of classes."""
    for name, row in _ROWS.items():
        text = text.replace(row.__name__, f"<{name}>")
    return text


def routes() -> dict[str, Json]:
    """Every route by method and path, as its OpenAPI operation; texts for people, names of classes and FastAPI's own
    422 are left out, and what is referred to stands in its place."""
    clock = ManualClock(1e6)
    roles = Roles(operators=())
    auth = Auth(["http://head.example.org:8470"], roles, clock, munge_socket="/nonexistent")
    unused: Any = Mock()
    app = create_app(
        PeopleRoutes(unused, unused, auth, roles, JournalNotifier(), clock),
        WorkersRouter(unused, unused, unused),
        unused,
    )
    document = app.openapi()
    return {
        f"{method.upper()} {path}": _resolved(operation, document)
        for path, methods in sorted(document["paths"].items())
        for method, operation in sorted(methods.items())
    }


def _resolved(value: Any, document: Any) -> Any:
    if isinstance(value, dict):
        if "$ref" in value:
            found = document
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            return _resolved(found, document)
        return {
            key: _resolved(each, document)
            for key, each in value.items()
            # A field may be called as what is left out: then it holds an object.
            if key != "422" and (key not in _FOR_PEOPLE or not isinstance(each, str))
        }
    if isinstance(value, list):
        return [_resolved(each, document) for each in value]
    return value
