"""Workers at the door: credentials, tokens and pilots that are not theirs. What follows inside is membership's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from malletrain.api.worker_routes import WorkersGate, WorkersRouter
from malletrain.domain.errors import Refused
from malletrain.loop.membership.admission import Admission, Claim
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import JobTerms
from malletrain.loop.membership.state import MembershipSettings
from malletrain.wire import messages as wire
from tests.api.house import Caller, House
from tests.messages import says
from tests.waiting import wait_until


def _router(house: House) -> Any:
    def admit(claim: Claim) -> Admission:
        if claim.job != 1 or not claim.pilot.startswith("7_"):
            raise Refused(f"pilot {claim.pilot} is none of job {claim.job}")
        if claim.uid != os.getuid():
            raise Refused("the job is another user's")
        return Admission(JobTerms(1, 4))

    membership = Membership(MembershipSettings(), house.clock, admit)
    gate = WorkersGate(membership, threading.RLock(), lambda: None, house.clock)
    house.gate = gate
    return WorkersRouter(gate, house.auth.worker_uid, house.connections)


@pytest.fixture
def house(new_house: Callable[..., House]) -> House:
    return new_house(router=_router)


def hello(house: House, credential: str, **changes: Any) -> Any:
    body = {
        "credential": credential, "job": 1, "slurm_job_id": 8, "array_id": 7, "task": 0, "restart": 0,
        "node": "n000", "pid": 1,
    }  # fmt: skip
    return Caller(house).post("/v1/workers/hello", json=body | changes)


def worker_credential(house: House) -> str:
    return house.credential("malletrain-worker-v1")


def test_a_worker_gets_a_token_for_itself_alone(house: House) -> None:
    first = hello(house, worker_credential(house)).json()
    second = hello(house, worker_credential(house), task=1).json()
    assert first["pilot"] == "7_0"
    mine = Caller(house, first["token"])
    assert mine.post(f"/v1/workers/{first['worker']}/report", json={"events": []}).status_code == 204
    for path, method in (
        (f"/v1/workers/{second['worker']}/report", "POST"),
        (f"/v1/workers/{second['worker']}/plan", "GET"),
    ):
        refused = mine.request(method, path, json={"events": []} if method == "POST" else None)
        assert refused.status_code == 401
        assert says(refused.json()["error"], "token")


def test_a_worker_token_opens_nothing_of_people_and_the_reverse(house: House) -> None:
    told = hello(house, worker_credential(house)).json()
    assert Caller(house, told["token"]).get("/v1/jobs").status_code == 401
    person = Caller(house, house.token(os.getuid()))
    assert person.post(f"/v1/workers/{told['worker']}/report", json={"events": []}).status_code == 401


def test_credentials_at_the_door(house: House) -> None:
    once = worker_credential(house)
    assert hello(house, once).status_code == 200
    assert hello(house, once).status_code == 401, "replayed"
    assert hello(house, house.credential()).status_code == 401, "a person's"
    assert hello(house, house.credential("malletrain-worker-v1", "http://evil:1")).status_code == 401
    assert hello(house, "MUNGE:AAAA:").status_code == 401


def test_anothers_job_or_pilot_is_refused(house: House) -> None:
    house.uid_seen = os.getuid() + 1
    assert hello(house, worker_credential(house)).status_code == 403
    house.uid_seen = None
    assert hello(house, worker_credential(house), job=2).status_code == 403
    assert hello(house, worker_credential(house), array_id=8).status_code == 403
    assert house.gate.membership.reports() == []


def test_without_munged_workers_are_told_to_come_again(house: House) -> None:
    credential = worker_credential(house)
    house.auth._socket = "/nonexistent/socket"
    refused = hello(house, credential)
    assert (refused.status_code, "systemctl start munge" in refused.json()["error"]) == (503, True)


def test_a_body_beyond_the_bound_is_refused(house: House) -> None:
    assert hello(house, "x" * 2_000_000).status_code == 413


def test_a_daemon_that_ends_answers_those_who_wait_for_events(house: House) -> None:
    got: list[Any] = []
    caller = Caller(house, house.token(os.getuid()))
    waiting = threading.Thread(target=lambda: got.append(caller.get("/v1/events?after=0&wait=50")))
    waiting.start()
    wait_until(lambda: bool(house.notifier._waiting), 30, "the poll waits")
    house.notifier.end()
    waiting.join(20)
    assert [(each.status_code, each.json()["events"]) for each in got] == [(200, [])]


def test_while_the_daemon_is_busy_a_report_waits_and_nobody_else_does(house: House) -> None:
    """Reports and polls are taken on the event loop only where that cannot block it."""
    told = hello(house, worker_credential(house)).json()
    mine = Caller(house, told["token"])
    window = wire.to_json(wire.Samples(30, 1, 300, 3.0, 30, 300))
    report = f"/v1/workers/{told['worker']}/report"
    assert mine.post(report, json={"events": [window]}).status_code == 204
    codes: list[int] = []
    others = [
        threading.Thread(target=lambda: codes.append(mine.post(report, json={"events": [window]}).status_code)),
        threading.Thread(
            target=lambda: codes.append(
                Caller(house, told["token"]).get(f"/v1/workers/{told['worker']}/plan?after=0&wait=0").status_code
            )
        ),
    ]
    with house.gate._lock:
        for each in others:
            each.start()
        assert Caller(house).get("/v1/health").status_code == 200
        assert codes == [], "they wait for the lock"
    for each in others:
        each.join(20)
    assert sorted(codes) == [200, 204]
