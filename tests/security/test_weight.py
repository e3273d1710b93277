"""Callers whose requests are few and heavy, on a real socket: what they have written, and what they are answered."""

from __future__ import annotations

import contextlib
import socket
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import pytest

from malletrain.api.rate_limits import ApiLimits, ReportBudget
from malletrain.api.worker_routes import WorkersGate, WorkersRouter
from malletrain.domain.job import MalleableJob
from malletrain.loop.membership.admission import Admission, Claim
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import JobTerms
from malletrain.loop.membership.state import MembershipSettings
from malletrain.wire import messages as wire
from tests.api.house import Caller, House
from tests.waiting import wait_until
from tests.world import announced, event_of

#: What one user may have written here: 64 kB at once, then 1 kB a second. Requests are not counted.
SMALL = ApiLimits(
    user_journal_bytes_rate=1024, user_journal_bytes_burst=65_536, token_rate=1e9, token_burst=1e9,
    worker_events_rate=1e9, worker_events_burst=1e9, user_events_rate=1e9,
    user_events_burst=1e9, refusal_seconds=0.0,
)  # fmt: skip


def _router(house: House) -> Any:
    """Workers of job 1 whose events are written to the journal."""
    lock, clock = contextlib.nullcontext(), house.clock
    membership = Membership(MembershipSettings(), clock, lambda claim: _admit(claim))

    def persist() -> None:
        house.journal.append(membership.reports())

    class _Lock:
        def acquire(self, blocking: bool = True) -> bool:
            return False  # reports take the way on which they are written at once

        def release(self) -> None: ...

        __enter__, __exit__ = lock.__enter__, lock.__exit__

    gate = WorkersGate(membership, cast(Any, _Lock()), persist, clock, ReportBudget(SMALL, clock))
    gate.change = lambda action: _changed(action, persist)  # type: ignore[method-assign]
    house.gate = gate
    return WorkersRouter(gate, house.auth.worker_uid, house.connections)


def _changed(action: Callable[[], Any], persist: Callable[[], None]) -> Any:
    try:
        return action()
    finally:
        persist()


def _admit(claim: Claim) -> Admission:
    return Admission(JobTerms(1, 4))


@pytest.fixture
def house(new_house: Callable[..., House]) -> House:
    return new_house(router=_router, limits=SMALL)


def worker(house: House) -> tuple[Caller, str]:
    body = {
        "credential": house.credential("malletrain-worker-v1"), "job": 1, "slurm_job_id": 8, "array_id": 7, "task": 0,
        "restart": 0, "node": "n000", "pid": 1,
    }  # fmt: skip
    said = Caller(house).post("/v1/workers/hello", json=body).json()
    return Caller(house, said["token"]), f"/v1/workers/{said['worker']}/report"


def written(house: House) -> int:
    """Bytes of the journal's rows."""
    return sum(len(row.reason) + len(str(row.data)) for row in house.views.events(limit=5000)[0])


HEAVY: dict[str, dict[str, Any]] = {
    "rates": {"type": "samples", "step": 1, "nodes": 1, "samples": 8, "seconds": 1.0, "steps": 1, "total": 8,
              "rates": {f"{n:0190}": 1.0 for n in range(2000)}},
    "parts": {"type": "samples", "step": 1, "nodes": 1, "samples": 8, "seconds": 1.0, "steps": 1, "total": 8,
              "parts": {f"{n:0190}": 1.0 for n in range(2000)}},
    "metric": {"type": "metric", "name": "x" * 3900, "value": 1.0, "samples": 1},
    "fault": {"type": "fault", "generation": 1, "step": 1, "how": "closed", "detail": "x" * 3900},
    "switched": {"type": "switched", "generation": 1, "step": 1, "nodes": 1, "pause_s": 1.0, "grew": True},
    "stages": {"type": "warm", "address": "n000:1", "stages": {f"{n:0190}": 1.0 for n in range(2000)}},
    "leaving": {"type": "leaving", "why": "x" * 3900},
}  # fmt: skip


@pytest.mark.parametrize("kind", HEAVY)
def test_a_worker_fills_the_journal_no_faster_than_its_user_may(house: House, kind: str) -> None:
    mine, path = worker(house)
    mine.post(path, json={"events": [{"type": "warm", "address": "n000:1"}]})
    for _ in range(100):
        answer = mine.post(path, json={"events": [HEAVY[kind]] * (1 if len(str(HEAVY[kind])) > 9999 else 100)})
        assert answer.status_code in (204, 401, 429)  # 401: its faults have lost it its world, and it must say hello
    assert house.journal.path.stat().st_size < 2_000_000
    assert written(house) < 65_536 + 60_000
    # Others are answered, and so is this user again, once time has passed.
    assert Caller(house, house.token(1002)).get("/v1/jobs").status_code == 200
    house.clock.ahead += 60.0
    assert mine.post(path, json={"events": [{"type": "leaving", "why": "SIGTERM"}]}).status_code != 429


def test_a_result_that_is_too_long_ends_the_job_all_the_same(house: House) -> None:
    mine, path = worker(house)
    result = {f"k{n}": ["x" * 1000] * 5 for n in range(60)}
    mine.post(path, json={"events": [{"type": "finished", "result": result}]})
    (end,) = house.views.events(kinds=["job_completed"])[0]
    assert len(str(end.data)) < 20_000
    assert "at most" in str(end.data)


def test_a_job_has_so_many_figures(house: House) -> None:
    mine, path = worker(house)
    for n in range(0, 300, 100):
        said = [{"type": "metric", "name": f"loss {m}", "value": 1.0, "samples": 1} for m in range(n, n + 100)]
        mine.post(path, json={"events": said})
    assert len(house.views.events(kinds=["metric"], limit=5000)[0]) == 64


def test_a_long_report_of_figures_does_not_stand_in_the_way_of_what_a_world_needs(house: House) -> None:
    mine, path = worker(house)
    flood = [{"type": "metric", "name": "loss", "value": 1.0, "samples": n} for n in range(64)]
    for _ in range(10):
        assert mine.post(path, json={"events": flood}).status_code == 204, "figures are left out, not refused"
    mine.post(path, json={"events": [{"type": "leaving", "why": "SIGTERM"}]})
    assert house.views.events(kinds=["worker_left", "generation"], limit=10)[0]


def test_announcements_are_weighed(house: House) -> None:
    """2,000 a day are allowed: of 45 kB each these were 90 MB in minutes."""
    mine = Caller(house, house.token(1001))
    job = {"name": "x", "min_nodes": 1, "max_nodes": 1024, "sizes": list(range(1, 1025)),
           "curve": [[n, n + 1e-9 * n] for n in range(1, 1025)]}  # fmt: skip
    codes = [mine.post("/v1/jobs", json=job).status_code for _ in range(20)]
    assert codes[0] == 201
    assert codes[-1] == 429
    assert Caller(house, house.token(1002)).post("/v1/jobs", json=job).status_code == 201


# --- answers --------------------------------------------------------------------------------------------------


def fill(house: House, events: int, size: int) -> None:
    now = house.clock.now()
    house.journal.append([event_of(now, "job_announced", 1, data=announced(job_of(1)))])
    for n in range(events):
        data: dict[str, Any] = {"name": "x" * size, "value": 1.0, "samples": n}
        house.journal.append([event_of(now, "metric", 1, data=data)])


def job_of(number: int) -> MalleableJob:
    return MalleableJob(number, "j", "ada", 1001, "", 1, 4, 1e9)


@pytest.mark.parametrize("query", ["after=0&limit=5000", "latest=5000"])
def test_one_get_of_events_is_a_page_of_bounded_size(house: House, query: str) -> None:
    fill(house, 100, 480_000)
    mine = Caller(house, house.token(1001))
    tracemalloc.start()
    try:
        answer = mine.get(f"/v1/events?{query}")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status_code == 200
    assert len(answer.content) < 1_500_000
    assert peak < 40_000_000


def test_the_pages_of_events_together_are_all_events(house: House) -> None:
    fill(house, 30, 200_000)
    mine, seen, after = Caller(house, house.token(1001)), [], 0
    while page := mine.get(f"/v1/events?after={after}").json():
        if not page["events"]:
            break
        seen += [event["seq"] for event in page["events"]]
        assert page["last"] > after
        after = page["last"]
    assert seen == list(range(1, 32))


def test_a_user_is_answered_so_many_bytes_and_others_all_the_same(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(answer_bytes_rate=1.0, answer_bytes_burst=100_000))
    fill(house, 30, 20_000)
    mine = Caller(house, house.token(1001))
    codes = [mine.get("/v1/events?after=0").status_code for _ in range(2)]
    assert codes == [200, 429]
    assert Caller(house, house.token(1002)).get("/v1/events?after=0").status_code == 200


def test_answers_that_nobody_takes_wait_in_bounded_memory_and_time(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(unsent_bytes=3_000_000, unsent_seconds=1.0, answer_bytes_burst=1e12))
    fill(house, 5, 900_000)
    ask = f"GET /v1/events?after=1&limit=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {house.token(1001)}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        stalled = []
        for _ in range(12):
            each = stack.enter_context(socket.socket())
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect(("127.0.0.1", house.server.port))
            each.sendall(ask.encode() * 1)
            stalled.append(each)
        assert Caller(house, house.token(1002)).get("/v1/jobs").status_code == 200
        wait_until(lambda: len(house.connections) <= 2, 60, "those that take nothing are cut off")


def test_a_list_of_jobs_is_bounded_and_goes_on(house: House) -> None:
    now = house.clock.now()
    for n in range(1, 41):
        house.journal.append([event_of(now, "job_announced", n, data=announced(job_of(n)))])
        failed = event_of(now, "job_failed", n, data={"step": 1}, reason="x" * 400_000)
        house.journal.append([failed])
    seen: list[int] = []
    mine, query = Caller(house, house.token(1001)), ""
    while True:
        answer = mine.get(f"/v1/jobs?limit=10000{query}")
        assert len(answer.content) < 5_500_000
        page = answer.json()
        seen = [job["id"] for job in page["jobs"]] + seen
        if "before" not in page:
            break
        query = f"&before={page['before']}"
    assert seen == list(range(1, 41))


def test_messages_are_cut_at_the_codec_not_refused() -> None:
    said = wire.message_of(HEAVY["metric"])
    assert isinstance(said, wire.Metric) and len(said.name) == 100
    said = wire.message_of(HEAVY["parts"])
    assert isinstance(said, wire.Samples) and len(said.parts) == 32
