"""The routes of people over real HTTP: what they do, and what they refuse to whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from malletrain.api.rate_limits import ApiLimits
from malletrain.api.schemas import JobBody
from malletrain.domain.job import Curve
from malletrain.wire.rows import EventRow, JobRow, StatusRow, UsageRow
from tests.api.house import Caller, House
from tests.messages import says
from tests.world import event_of

Users = Callable[[int], Caller]

ADA, BOB, ROOT = 1001, 1002, 0
JOB: dict[str, Any] = {"name": "digits", "min_nodes": 1, "max_nodes": 4}


def announce(caller: Caller, **changes: Any) -> int:
    answer = caller.post("/v1/jobs", json=JOB | changes)
    assert answer.status_code == 201, answer.text
    return JobRow.from_json(answer.json()["job"]).id


def test_a_job_from_its_announcement_to_its_end(house: House, as_user: Users) -> None:
    ada = as_user(ADA)
    wanted = {"sizes": [4, 2, 1], "weight": 2, "elastic": "restart", "account": "harvest", "partition": "harvest"}
    wanted |= {"curve": [[1, 10.5], [4, 40]], "total_samples": 1000}
    number = announce(ada, **wanted)
    asked = JobBody.model_validate(JOB | wanted)
    assert house.requests.asked == [("announce", asked, ADA)]
    job = asked.job(number, "ada", ADA, 1.0, "harvest", "")
    assert (job.sizes, job.given_curve) == ((1, 2, 4), Curve(((1, 10.5), (4, 40.0))))
    assert ada.post(f"/v1/jobs/{number}/arrays", json={"array_id": 42, "tasks": 4}).status_code == 202
    assert ada.post(f"/v1/jobs/{number}/hold").status_code == 202
    assert ada.post(f"/v1/jobs/{number}/release").status_code == 202
    assert ada.post(f"/v1/jobs/{number}/cancel").status_code == 202
    assert house.requests.asked[1:] == [
        ("attach", number, 42, 4, ADA), ("hold", number, ADA), ("release", number, ADA), ("cancel", number, ADA),
    ]  # fmt: skip
    row = JobRow.from_json(ada.get(f"/v1/jobs/{number}").json()["job"])
    assert (row.phase, row.uid, row.sizes, row.weight, row.elastic) == ("cancelled", ADA, (1, 2, 4), 2.0, "restart")
    assert ada.post(f"/v1/jobs/{number}/cancel").status_code == 202, "cancelling twice is no fault"
    assert len(house.requests.asked) == 5, "and is not asked twice"
    for late in (f"/v1/jobs/{number}/hold", f"/v1/jobs/{number}/release"):
        assert ada.post(late).status_code == 409
    refused = ada.post(f"/v1/jobs/{number}/arrays", json={"array_id": 43, "tasks": 1})
    assert refused.status_code == 409
    assert "scancel 43" in refused.json()["error"]


def test_nobody_touches_anothers_job(house: House, as_user: Users) -> None:
    ada, bob = as_user(ADA), as_user(BOB)
    number = announce(ada)
    before = list(house.requests.asked)
    for verb in ("cancel", "hold", "release"):
        refused = bob.post(f"/v1/jobs/{number}/{verb}")
        assert refused.status_code == 403
        assert "only 1001 and operators" in refused.json()["error"]
    assert bob.post(f"/v1/jobs/{number}/arrays", json={"array_id": 42, "tasks": 4}).status_code == 403
    assert house.requests.asked == before
    assert bob.get(f"/v1/jobs/{number}").status_code == 200, "the queue is public, as with squeue"


def test_an_operator_steers_every_job_but_gives_it_no_pilots(house: House, as_user: Users) -> None:
    number = announce(as_user(ADA))
    operator = as_user(ROOT)
    assert operator.post(f"/v1/jobs/{number}/hold").status_code == 202
    assert house.requests.asked[-1] == ("hold", number, ROOT)
    refused = operator.post(f"/v1/jobs/{number}/arrays", json={"array_id": 42, "tasks": 4})
    assert refused.status_code == 403


def test_only_operators_drain(house: House, as_user: Users) -> None:
    body = {"nodes": "n[001-002]", "until": 2e9}
    refused = as_user(ADA).post("/v1/drain", json=body)
    assert (refused.status_code, "no operator" in refused.json()["error"]) == (403, True)
    assert as_user(ROOT).post("/v1/drain", json=body).json() == {"nodes": ["n001", "n002"]}
    assert house.requests.asked == [("drain", "n[001-002]", 2e9, ROOT)]
    listed = as_user(ADA).get("/v1/drain").json()["drains"]
    assert listed[-1] == {"node": "n007", "until": 3e9}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"name": "a\nb"}, "printable"),
        ({"min_nodes": 0}, "min_nodes"),
        ({"max_nodes": 100_001}, "max_nodes"),
        ({"min_nodes": 5}, "min_nodes 5 is above max_nodes 4"),
        ({"min_nodes": True}, "min_nodes"),
        ({"min_nodes": "1"}, "min_nodes"),
        ({"sizes": [1] * 1025}, "sizes"),
        ({"sizes": [5]}, "5 is"),
        ({"weight": 0}, "weight"),
        ({"elastic": "rubber"}, "elastic"),
        ({"account": "a;b"}, "account"),
        ({"partition": "--help"}, "partition"),
        ({"curve": []}, "curve"),
        ({"curve": [[1, 2], [1, 3]]}, "rise"),
        ({"curve": [[1.5, 2]]}, "whole"),
        ({"curve": [[1]]}, "curve"),
        ({"total_samples": -1}, "total_samples"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_bad_job_is_refused_with_its_field(
    house: House, as_user: Users, changes: dict[str, Any], words: str
) -> None:
    answer = as_user(ADA).post("/v1/jobs", json=JOB | changes)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert house.requests.asked == []


def test_bodies_that_are_no_json_are_refused(house: House, as_user: Users) -> None:
    ada = as_user(ADA)
    headers = {"Content-Type": "application/json"}
    for content in (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"name": NaN}'):
        answer = ada.post("/v1/jobs", content=content, headers=headers)
        assert answer.status_code == 400, content[:20]
        assert answer.json()["error"]


def test_unknown_things_are_not_found(house: House, as_user: Users) -> None:
    ada = as_user(ADA)
    for path in ("/v1/jobs/99", "/v1/nothing", "/v1/explain/nowhere"):
        answer = ada.get(path)
        assert answer.status_code == 404, path
        assert answer.json()["error"]
    assert ada.get("/v1/jobs/0").status_code == 400
    assert ada.get("/v1/jobs/99999999999999999999").status_code == 400
    assert ada.put("/v1/jobs").status_code == 405


def test_jobs_of_one_user_are_bounded(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(open_jobs_per_user=2))
    ada, bob = Caller(house, house.token(ADA)), Caller(house, house.token(BOB))
    first, _ = announce(ada), announce(ada)
    refused = ada.post("/v1/jobs", json=JOB)
    assert (refused.status_code, "cancel some" in refused.json()["error"]) == (409, True)
    announce(bob)
    ada.post(f"/v1/jobs/{first}/cancel")
    announce(ada)


def test_status_shows_pool_nodes_jobs(house: House, as_user: Users) -> None:
    ada = as_user(ADA)
    number = announce(ada)
    now = house.clock.now()
    house.journal.append(
        [
            event_of(now, "tasks_added", number, data={"array_id": 7, "tasks": [0, 1]}),
            event_of(now, "pilot_started", number, "7_0", "n000", data={"started_at": now, "ends_at": now + 60}),
            event_of(now, "pool", data={"idle": 3, "planned": 1, "harvested": 1, "main": 5, "down": 0}),
        ]
    )
    status = StatusRow.from_json(ada.get("/v1/status").json())
    assert (status.pool.idle, status.pool.main, status.taken_at) == (3, 5, None)
    assert [(n.name, n.state, n.job, n.pilot) for n in status.nodes] == [("n000", "pilot", number, "7_0")]
    assert [(j.id, j.nodes, j.held_tasks) for j in status.jobs] == [(number, 1, 1)]
    assert StatusRow.from_json(ada.get("/v1/status?nodes=false").json()).nodes == ()
    (usage,) = (UsageRow.from_json(row) for row in ada.get("/v1/usage").json()["usage"])
    assert (usage.user, usage.stays, usage.jobs) == ("1001", 1, 1)
    assert ada.get("/v1/usage?since=2999-01-01").json() == {"usage": []}
    assert ada.get("/v1/usage?since=yesterday").status_code == 400


def test_a_long_poll_returns_as_soon_as_something_happens(house: House, as_user: Users) -> None:
    ada = as_user(ADA)
    last = ada.get("/v1/events").json()["last"]
    answers: list[dict[str, Any]] = []
    waiting = threading.Thread(
        target=lambda: answers.append(ada.get(f"/v1/events?after={last}&wait=30&job=7").json())
    )
    began = time.monotonic()
    waiting.start()
    while not house.notifier._waiting:
        assert time.monotonic() < began + 10
    house.journal.append([event_of(1.0, "pool", 8)])  # another job's: it goes on waiting
    house.journal.append([event_of(2.0, "pool", 7), event_of(3.0, "pool", 7)])
    waiting.join(20)
    assert time.monotonic() - began < 15
    assert [EventRow.from_json(e).at for e in answers[0]["events"]] == [2.0, 3.0]
    assert answers[0]["last"] == last + 3


def test_a_long_poll_ends_with_nothing(house: House, as_user: Users) -> None:
    began = time.monotonic()
    answer = as_user(ADA).get("/v1/events?after=0&wait=0.3").json()
    assert answer == {"events": [], "last": 0}
    assert 0.25 < time.monotonic() - began < 10


def test_events_are_paged_filtered_and_the_newest_given(house: House, as_user: Users) -> None:
    ada = as_user(ADA)
    house.journal.append([event_of(float(i), "pool" if i % 2 else "decided") for i in range(20)])
    page = ada.get("/v1/events?limit=8").json()
    assert ([e["seq"] for e in page["events"]], page["last"]) == (list(range(1, 9)), 8)
    rest = ada.get(f"/v1/events?after={page['last']}").json()
    assert [e["seq"] for e in rest["events"]] == list(range(9, 21))
    assert {e["kind"] for e in ada.get("/v1/events?kind=pool").json()["events"]} == {"pool"}
    newest = ada.get("/v1/events?latest=3").json()
    assert ([e["seq"] for e in newest["events"]], newest["last"]) == ([18, 19, 20], 20)
    assert ada.get("/v1/events?wait=61").status_code == 400


def test_health_and_metrics_need_no_token(house: House) -> None:
    caller = Caller(house)
    assert caller.get("/v1/health").json()["status"] == "well"
    assert caller.get("/metrics").text == caller.get("/v1/metrics").text == "malletrain_up 1\n"
    house.ailments.append("slurmctld has not answered for 60 s")
    ill = caller.get("/v1/health")
    assert (ill.status_code, says(ill.json()["error"], "slurmctld", "60 s")) == (503, True)
