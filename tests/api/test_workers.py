"""The routes of workers over real HTTP: who may say what, and the long poll."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from malletrain.api.worker_routes import _body
from malletrain.domain.job import ScriptCheck, ScriptVerdict
from malletrain.wire import messages
from malletrain.wire.worker_client import PilotIdentity, Rejected, TokenUnknown, WorkerClient
from scripts.lab.ports import free_port
from tests.elastic.coordinator import ARRAY, JOB, SECRET, Coordinator
from tests.messages import naming, says
from tests.waiting import wait_until


@pytest.fixture
def daemon() -> Iterator[Coordinator]:
    coordinator = Coordinator(free_port())
    coordinator.start()
    yield coordinator
    coordinator.stop()


def client(daemon: Coordinator, task: int = 0, secret: str = SECRET) -> WorkerClient:
    return WorkerClient(daemon.url, PilotIdentity(JOB, 1, ARRAY, task, 0, f"n{task}"), lambda: secret)


def raw(daemon: Coordinator, method: str, path: str, body: bytes = b"", token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    try:
        connection.request(method, path, body or None, {"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def test_a_worker_says_hello_and_gets_its_plan(daemon: Coordinator) -> None:
    worker = client(daemon)
    welcome = worker.hello()
    assert welcome.worker == f"{ARRAY}_0.0"
    assert welcome.mode == "live"
    worker.report([messages.Warm("h:1", {"import": 1.0})])
    directive = worker.poll(0, 1.0)
    assert directive is not None
    assert directive.plan is not None
    assert directive.plan.members == (messages.Seat(welcome.worker, "h:1"),)


def world(daemon: Coordinator, size: int) -> tuple[list[WorkerClient], int]:
    """So many workers that train together, and the generation; none has a poll open."""
    workers = [client(daemon, task) for task in range(size)]
    for task, worker in enumerate(workers):
        worker.hello()
        worker.report([messages.Warm(f"h:{task}", {})])
    end = time.monotonic() + 60
    while len(daemon.world()) < size:
        assert time.monotonic() < end
        for worker in workers:
            directive = worker.poll(0, 0.0)
            plan = directive.plan if directive is not None else None
            if plan is not None and any(seat.worker == worker.worker for seat in plan.members):
                worker.report([messages.Switched(plan.generation, 1, len(plan.members), 0.0, True)])
    formed = daemon.membership.world(JOB)
    assert formed is not None
    return workers, formed.generation


def test_a_worker_that_is_killed_between_two_polls_is_noticed_at_once(daemon: Coordinator) -> None:
    """Its last poll was answered, so no request of it is there to be broken off."""
    workers, generation = world(daemon, 3)
    workers[2].close()
    dead = f"{ARRAY}_2.0"

    def dropped() -> bool:
        known = daemon.membership.worker(dead)
        return known is not None and known.dropped

    wait_until(dropped, 30, "the connection that ended was the worker's")
    workers[0].report([messages.Fault(generation, 1, "closed", "connection reset")])
    lost = daemon.seen("worker_lost")
    assert [(event.pilot, says(event.reason, "connection")) for event in lost] == [(f"{ARRAY}_2", True)]


def test_a_connection_that_ends_while_the_worker_polls_on_another_means_nothing(daemon: Coordinator) -> None:
    (worker,), _ = world(daemon, 1)
    worker.close()
    token = worker.welcome.token if worker.welcome else ""
    path = f"/v1/workers/{ARRAY}_0.0/plan?after=0&wait=1"
    old = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    old.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    old.getresponse().read()
    thread = threading.Thread(target=worker.poll, args=(1000, 50.0))
    thread.start()
    wait_until(lambda: bool(daemon.gate._waiting), 30, "its poll is open")
    old.close()
    wait_until(lambda: len(daemon.connections) <= 2, 30, "the daemon has seen the end of the old connection")
    known = daemon.membership.worker(f"{ARRAY}_0.0")
    assert known is not None and not known.dropped
    daemon.gate.end_polls()
    thread.join()


def test_what_a_worker_said_before_it_was_killed_does_not_revive_it(daemon: Coordinator) -> None:
    """Its report waits for a thread while the end of its connection is noticed."""
    (worker,), _ = world(daemon, 1)
    name = f"{ARRAY}_0.0"
    daemon.gate.change(lambda: daemon.membership.disconnected(name))
    worker.report([])
    known = daemon.membership.worker(name)
    assert known is not None and known.dropped


def begin_poll(
    daemon: Coordinator, worker: WorkerClient, wait_s: float
) -> tuple[messages.Directive, threading.Thread, list[messages.Directive | None]]:
    """A poll that waits for what follows the worker's first directive: that, the poll's thread, and its answer."""
    worker.hello()
    first = worker.poll(0, 0.0)
    assert first is not None
    got: list[messages.Directive | None] = []
    waiting = threading.Thread(target=lambda: got.append(worker.poll(first.seq, wait_s)))
    waiting.start()
    wait_until(lambda: bool(daemon.gate._waiting), 30, "the poll waits")
    return first, waiting, got


def test_a_poll_waits_and_is_woken(daemon: Coordinator) -> None:
    began = time.monotonic()
    _, waiting, got = begin_poll(daemon, client(daemon), 55.0)
    daemon.gate.end_job(JOB, "cancelled")
    waiting.join(60)
    assert time.monotonic() - began < 50
    assert got[0] is not None
    assert got[0].end == "cancelled"


def test_a_daemon_that_ends_answers_every_poll_at_once(daemon: Coordinator) -> None:
    worker = client(daemon)
    first, waiting, got = begin_poll(daemon, worker, 50.0)
    daemon.gate.end_polls()
    waiting.join(40)
    assert got == [first], "as it is, and the worker asks again"
    assert worker.poll(first.seq, 50.0) == first


def test_a_poll_that_nothing_answers_ends_in_time(daemon: Coordinator) -> None:
    worker = client(daemon)
    worker.hello()
    first = worker.poll(0, 0.0)
    assert first is not None
    again = worker.poll(first.seq, 0.3)
    assert again == first


def test_a_dropped_poll_is_noticed(daemon: Coordinator) -> None:
    worker = client(daemon)
    token = worker.hello().token
    first = worker.poll(0, 0.0)
    assert first is not None
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    path = f"/v1/workers/{worker.worker}/plan?after={first.seq}&wait=20"
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    wait_until(lambda: bool(daemon.gate._waiting), 30, "the poll waits")
    connection.close()

    def dropped() -> bool:
        known = daemon.membership.worker(worker.worker)
        return known is not None and known.dropped

    wait_until(dropped, 30, "the hang-up is noticed")


def test_a_wrong_credential_is_refused(daemon: Coordinator) -> None:
    with pytest.raises(Rejected, match="wrong credential"):
        client(daemon, secret="forged").hello()
    assert not daemon.seen("worker_joined")


def test_nobody_speaks_for_another(daemon: Coordinator) -> None:
    mine, theirs = client(daemon, 0), client(daemon, 1)
    token = mine.hello().token
    theirs.hello()
    for method, path in (("GET", "plan?after=0&wait=0"), ("POST", "report")):
        status, answer = raw(daemon, method, f"/v1/workers/{theirs.worker}/{path}", b'{"events": []}', token)
        assert status == 401
        assert says(answer["error"], "hello")
    assert raw(daemon, "GET", f"/v1/workers/{mine.worker}/plan", token="")[0] == 401


def test_a_token_of_another_daemon_is_unknown(daemon: Coordinator) -> None:
    worker = client(daemon)
    worker.hello()
    worker.welcome = messages.Welcome(worker.worker, "x" * 43, "", 20.0)
    with pytest.raises(TokenUnknown):
        worker.report([])


@pytest.mark.parametrize(("body", "status", "words"), [
    (b"{", 400, "JSON"),
    (b"[]", 400, "events: "),
    (b'{"events": [{"type": "warm"}]}', 400, "address: missing"),
    (json.dumps({"events": [{"type": "leaving", "why": ""}] * 257}).encode(), 400, "at most 256"),
])  # fmt: skip
def test_bad_reports_are_refused_whole(daemon: Coordinator, body: bytes, status: int, words: str) -> None:
    worker = client(daemon)
    token = worker.hello().token
    got, answer = raw(daemon, "POST", f"/v1/workers/{worker.worker}/report", body, token)
    assert got == status
    assert words in answer["error"]


def test_a_caller_that_is_gone_before_its_body_is_no_fault_of_the_server() -> None:
    said: Iterator[Message] = iter(
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> Message:
        return next(said)

    with pytest.raises(HTTPException, match=naming("body")):
        asyncio.run(_body(Request({"type": "http"}, receive)))


def test_a_report_with_one_bad_message_changes_nothing(daemon: Coordinator) -> None:
    worker = client(daemon)
    token = worker.hello().token
    body = json.dumps({"events": [{"type": "warm", "address": "h:1"}, {"type": "warm"}]}).encode()
    assert raw(daemon, "POST", f"/v1/workers/{worker.worker}/report", body, token)[0] == 400
    assert not daemon.seen("worker_warm")


@pytest.mark.parametrize("query", ["after=-1", "wait=61", "wait=nan", "after=x", "wait=-1"])
def test_bad_polls_are_refused(daemon: Coordinator, query: str) -> None:
    worker = client(daemon)
    token = worker.hello().token
    status, answer = raw(daemon, "GET", f"/v1/workers/{worker.worker}/plan?{query}", token=token)
    assert status == 400
    assert answer["error"]


def test_a_worker_asks_once_whether_its_script_is_to_be_checked_and_says_what_was_found(daemon: Coordinator) -> None:
    first, second = client(daemon), client(daemon, 1)
    for worker in (first, second):
        worker.hello()
    digest = "0123456789abcdef"
    assert first.is_to_check(digest)
    assert not second.is_to_check(digest)
    first.report([messages.CheckDone(digest, "different", "w differs")])
    (found,) = [event for event in daemon.events if event.kind == "script_checked"]
    assert found.reason == "w differs"
    assert not first.is_to_check(digest)
    token = second.welcome.token if second.welcome else ""
    path = f"/v1/workers/{first.worker}/check"
    body = json.dumps({"digest": digest}).encode()
    assert raw(daemon, "POST", path, body, token)[0] == 401, "nobody asks for another"
    for bad in (b"[]", b"{}", b'{"digest": "../etc"}', b'{"digest": "' + b"0" * 5000 + b'"}'):
        status, answer = raw(daemon, "POST", path, bad, first.welcome.token if first.welcome else "")
        assert status == 400, answer
    assert first.is_to_check("f" * 16) is False, "it keeps its size to its end"
    with pytest.raises(Rejected, match=naming("text:")):
        first.report([messages.CheckDone(digest, "equal", "x" * 5000)])


def test_a_script_that_another_job_of_the_same_user_ran_is_not_checked_again(daemon: Coordinator) -> None:
    before = ScriptCheck("0123456789abcdef", ScriptVerdict.EQUAL)
    daemon.gate._checked = lambda uid, digest: before if digest == before.digest else None
    worker = client(daemon)
    worker.hello()
    assert not worker.is_to_check(before.digest)
    assert [event.kind for event in daemon.events][-1] == "script_checked"
    assert worker.is_to_check("f" * 16)
