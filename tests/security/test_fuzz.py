"""Whatever people and workers send: never a 500, and never a tick of the loop behind it that fails.

The routes stand on the daemon's own loop, ledger, membership and journal; Slurm is in memory.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Roles
from malletrain.api.worker_routes import WorkersRouter
from malletrain.store.journal import SqliteJournal
from malletrain.wire import messages as wire
from tests.api.house import Caller, HandClock, House
from tests.security.live_loop import UNBOUNDED, USER, Running

FUZZED = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def fuzzed(tmp_path: Path, munged: str) -> Iterator[House]:
    made: list[Running] = []

    def requests(journal: SqliteJournal, _clock: HandClock) -> LoopRequests:
        made.append(Running(journal))
        return made[0].requests()

    def router(house: House) -> Any:
        house.gate = made[0].gate
        return WorkersRouter(made[0].gate, house.auth.worker_uid, house.connections)

    house = House(
        tmp_path, munged, limits=UNBOUNDED, requests=requests, router=router,
        roles=Roles(operators=[1003], private_data=lambda: ["jobs"]),
        views={"snapshot": lambda: made[0].loop.last_snapshot, "decision": lambda: made[0].loop.last_decision},
    )  # fmt: skip
    house.running = made[0]  # type: ignore[attr-defined]
    for _ in range(3):
        made[0].tick()
    yield house
    made[0].check_restart()
    house.close()


def running_of(house: House) -> Running:
    running: Running = house.running  # type: ignore[attr-defined]
    return running


@pytest.mark.parametrize("uid", [USER, 1003], ids=["user", "operator"])
def test_people_send_whatever_they_like(fuzzed: House, uid: int) -> None:
    """schemathesis over the daemon's own description: sound and unsound requests of each route."""
    import schemathesis  # for two seconds, which no other test needs
    from schemathesis.checks import not_a_server_error

    schema: Any = schemathesis.openapi.from_url(f"{fuzzed.address}/v1/openapi.json")
    headers = {"Authorization": f"Bearer {fuzzed.token(uid)}"}
    running, seen = running_of(fuzzed), set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.label == "DELETE /v1/session":
            continue  # it would end the token

        @given(case=operation.as_strategy())
        @settings(FUZZED, max_examples=8)
        def holds(case: Any) -> None:
            if "wait" in (case.query or {}):
                case.query["wait"] = 0.01
            case.validate_response(case.call(headers=headers, timeout=60), checks=[not_a_server_error])
            running.tick()

        holds()
        seen.add(operation.label)
    assert {"POST /v1/jobs", "POST /v1/drain", "GET /v1/events", "GET /v1/explain/{subject}"} <= seen


#: What JSON holds, and what Python's reader of JSON takes besides.
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from([2**63, -(2**63) - 1, 10**400, 1e308, "\x00", "\x1b]0;x\x07", "\ud800", "9" * 5000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
NUMBERS = st.integers(-2, 12) | st.sampled_from([2**31, 2**53, 2**62])


def _of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type that are likely to be taken."""
    if hint is int:
        return NUMBERS
    if hint is float:
        return st.floats(0, 1e6) | st.sampled_from([0.0, 1e-300, 1e300])
    if hint is str:
        return st.text(max_size=20) | st.sampled_from(["closed", "stalled", "build", "n1:1", "1001_0.0"])
    if hint is bool:
        return st.booleans()
    if dataclasses.is_dataclass(hint):
        return _fields(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(_of(arguments[0]), max_size=4)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(st.text(max_size=8), JUNK if arguments[1] is Any else _of(arguments[1]), max_size=4)
    if arguments:
        return st.one_of(*map(_of, arguments))
    return st.none()


def _fields(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    hints = typing.get_type_hints(kind)
    return st.fixed_dictionaries({field.name: _of(hints[field.name]) for field in dataclasses.fields(kind)})


KINDS = typing.get_args(wire.Message)


def _message(kind: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _fields(kind).map(lambda body: {"type": kind.__name__.lower(), **body})


SOUND = st.one_of(*map(_message, KINDS))


@st.composite
def _spoilt(draw: st.DrawFn) -> Any:
    body = dict(draw(SOUND))
    name = draw(st.sampled_from(sorted(body)))
    body[name] = draw(JUNK)
    return body


REPORTS = st.lists(SOUND | _spoilt() | JUNK, max_size=4)


def _send(house: House, path: str, body: object, token: str = "") -> Any:
    headers = {"Content-Type": "application/json"}
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    with Caller(house, token).http as http:
        return http.post(path, content=content, headers=headers)


def _hello(house: House, pilot: str, **changes: Any) -> Any:
    array, _, task = pilot.partition("_")
    running = running_of(house)
    found = running.loop.views[running.job].pilots.get(pilot)
    house.uid_seen = USER
    body = {
        "credential": house.credential("malletrain-worker-v1"), "job": running.job, "slurm_job_id": 1,
        "array_id": int(array), "task": int(task), "restart": running.runs,
        "node": "" if found is None else found.node, "pid": 1, "standing": None,
    }  # fmt: skip
    try:
        return _send(house, "/v1/workers/hello", body | changes)
    finally:
        house.uid_seen = None


def test_workers_report_whatever_they_like(fuzzed: House) -> None:
    """Of a worker that was let in: messages of every kind, sound, spoilt, and no message at all."""
    running, taken = running_of(fuzzed), 0

    @given(reports=st.lists(REPORTS, min_size=1, max_size=4))
    @settings(FUZZED, max_examples=40)
    def holds(reports: list[Any]) -> None:
        nonlocal taken
        running.tick()
        pilots = running.pilots()
        assert pilots or running.loop.views
        for pilot in pilots[:2]:
            running.runs += 1  # Slurm in memory counts no restarts: each hello is of a new process
            welcome = _hello(fuzzed, pilot)
            assert welcome.status_code in (200, 403, 409), welcome.text
            if welcome.status_code != 200:
                continue
            worker, token = welcome.json()["worker"], welcome.json()["token"]
            for events in reports:
                answer = _send(fuzzed, f"/v1/workers/{worker}/report", {"events": events}, token)
                assert answer.status_code < 500, answer.text
                taken += answer.status_code == 204
            with Caller(fuzzed, token).http as http:
                assert http.get(f"/v1/workers/{worker}/plan?after=0&wait=0").status_code < 500
        running.tick()

    holds()
    assert taken > 50, "the strategy finds messages that are taken"


@pytest.mark.parametrize("part", ["report", "hello"])
def test_workers_send_no_messages_at_all(fuzzed: House, part: str) -> None:
    running = running_of(fuzzed)

    @given(body=JUNK | st.fixed_dictionaries({"events": JUNK}) | _fields(wire.Hello))
    @FUZZED
    def holds(body: Any) -> None:
        path = "/v1/workers/hello" if part == "hello" else "/v1/workers/1001_0.0/report"
        assert _send(fuzzed, path, body).status_code < 500
        running.tick()

    holds()


def test_workers_tell_of_whatever_world_they_like(fuzzed: House) -> None:
    running = running_of(fuzzed)

    @given(standing=_fields(wire.Standing) | JUNK, name=st.sampled_from(["array_id", "task", "node", "pid", "part"]),
           junk=JUNK)  # fmt: skip
    @FUZZED
    def holds(standing: Any, name: str, junk: Any) -> None:
        running.tick()
        for pilot in running.pilots()[:1]:
            assert _hello(fuzzed, pilot, standing=standing).status_code < 500
            assert _hello(fuzzed, pilot, **{name: junk}).status_code < 500
        running.tick()

    holds()
