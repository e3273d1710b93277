"""A user whom an operator bans is out at once: jobs, tokens, workers; also for a daemon that starts anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from malletrain.api.worker_routes import WorkersRouter
from malletrain.cli.main import cli
from malletrain.domain.decision import CancelTasks
from malletrain.domain.event import ActionIntent
from malletrain.domain.job import JobPhase
from malletrain.loop.tick import Loop
from malletrain.sizing.registry import policy as policy_named
from malletrain.store.journal import SqliteJournal
from tests.api.house import Caller, House
from tests.messages import says
from tests.security.live_loop import LENIENT, USER, Running

MALLORY, ALICE, ROOT = USER, 1002, 0
BAN = {"user": str(MALLORY), "reason": "mines coins"}


@pytest.fixture
def running() -> list[Running]:
    return []


@pytest.fixture
def door(new_house: Callable[..., House], running: list[Running]) -> House:
    def requests(journal: SqliteJournal, _clock: Any) -> Any:
        running.append(Running(journal))
        return running[0].requests()

    def router(house: House) -> Any:
        house.gate = running[0].gate
        return WorkersRouter(house.gate, house.auth.worker_uid, house.connections)

    # The roles are the loop's, which is made with the house.
    house = new_house(requests=requests, router=router)
    house.roles._bans = running[0].roles._bans
    for _ in range(2):
        running[0].tick()
    return house


def hello(house: House, uid: int, running: Running) -> Any:
    pilot = running.pilots()[0]
    array, task = pilot.split("_")
    view = running.loop.views[running.job].pilots[pilot]
    body = {
        "credential": house.credential("malletrain-worker-v1"), "job": running.job, "slurm_job_id": 1,
        "array_id": int(array), "task": int(task), "restart": 0, "node": view.node, "pid": 1, "standing": None,
    }  # fmt: skip
    house.uid_seen = uid
    try:
        return Caller(house).post("/v1/workers/hello", json=body)
    finally:
        house.uid_seen = None


def test_a_banned_user_is_out_at_once(door: House, running: list[Running]) -> None:
    loop = running[0].loop
    mallory, operator = Caller(door, door.token(MALLORY)), Caller(door, door.token(ROOT))
    alice = Caller(door, door.token(ALICE))
    hers = alice.post("/v1/jobs", json={"name": "a", "min_nodes": 1, "max_nodes": 2}).json()["job"]["id"]
    welcome = hello(door, MALLORY, running[0])
    assert welcome.status_code == 200, welcome.text
    worker, token = welcome.json()["worker"], welcome.json()["token"]
    assert mallory.get("/v1/jobs").status_code == 200

    assert operator.post("/v1/bans", json=BAN).status_code == 202
    refused = mallory.get("/v1/jobs")
    assert refused.status_code == 401, "the token counts for nothing"
    door.uid_seen = MALLORY
    login = Caller(door).post("/v1/session", json={"credential": door.credential()})
    door.uid_seen = None
    assert login.status_code == 403
    assert says(login.json()["error"], "banned", "root: mines coins")
    report = Caller(door, token).post(f"/v1/workers/{worker}/report", json={"events": []})
    assert report.status_code == 401, "so does a worker's"
    assert hello(door, MALLORY, running[0]).status_code == 403
    assert loop.views[running[0].job].phase is JobPhase.CANCELLED
    running[0].clock.ahead += 10.0
    running[0].clock.day_ahead += 10.0
    loop.tick()
    leaving = [event for event in running[0].journal.read() if event.kind == "intent"]
    assert isinstance(leaving[-1].payload, ActionIntent)
    assert isinstance(leaving[-1].payload.action, CancelTasks)
    assert alice.get(f"/v1/jobs/{hers}").json()["job"]["phase"] == "announced", "nobody else's"

    again = Loop(
        running[0].cluster, running[0].gate, running[0].journal, running[0].clock, policy_named("exact"), LENIENT
    )
    again.restore()
    assert again.ledger.bans == loop.ledger.bans
    assert again.ledger.bans.keys() == {MALLORY} and says(again.ledger.bans[MALLORY], "root: mines coins")

    assert operator.get("/v1/bans").json()["bans"][0]["uid"] == MALLORY
    assert operator.request("DELETE", f"/v1/bans/{MALLORY}").status_code == 202
    assert Caller(door, door.token(MALLORY)).get("/v1/jobs").status_code == 200
    assert loop.views[running[0].job].phase is JobPhase.CANCELLED, "what was ended stays so"
    kinds = [event for event in running[0].journal.read() if event.kind == "operator"]
    assert [event.payload.verb for event in kinds] == ["ban", "unban"]  # type: ignore[union-attr]
    assert all(event.payload.by == "root" for event in kinds)  # type: ignore[union-attr]


def test_only_operators_ban_and_no_operator_is_banned(door: House) -> None:
    mallory, operator = Caller(door, door.token(MALLORY)), Caller(door, door.token(ROOT))
    for answer in (
        mallory.post("/v1/bans", json={"user": "1002", "reason": "rival"}),
        mallory.get("/v1/bans"),
        mallory.request("DELETE", "/v1/bans/1002"),
        operator.post("/v1/bans", json={"user": "root", "reason": "x"}),
    ):
        assert answer.status_code == 403, answer.text
    unknown = operator.post("/v1/bans", json={"user": "no-such-user", "reason": "x"})
    assert (unknown.status_code, says(unknown.json()["error"], "no-such-user")) == (404, True)
    assert operator.post("/v1/bans", json={"user": "1002", "reason": "x\x1b[2J"}).status_code == 400
    assert operator.request("DELETE", "/v1/bans/1002").status_code == 202, "nothing to end"
    assert operator.get("/v1/bans").json() == {"bans": []}


def test_the_commands(door: House, running: list[Running]) -> None:
    door.auth._audiences = (door.address,)
    environ = {"MALLETRAIN_URL": door.address, "MUNGE_SOCKET": door.munge_socket}
    door.uid_seen = ROOT

    def run(*argv: str) -> Any:
        return CliRunner().invoke(cli, list(argv), env=environ)

    assert says(run("ban").output, "no user")
    assert says(run("ban", "1001", "--reason", "mines").output, 1001, "refused")
    assert says(run("ban").output, "(1001):", "root: mines")
    assert '"uid": 1001' in run("ban", "--json").output
    assert run("unban", "1001").output == "1001 is admitted\n"
    assert running[0].loop.ledger.bans == {}
    assert "give --reason" in str(run("ban", "1001").output)
    assert "needs a USER" in run("ban", "--reason", "x").output
