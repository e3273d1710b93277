"""Callers who want to keep others from being served, on a real socket."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.api.connections import GRACE_S, ConnectionTable
from malletrain.api.rate_limits import ApiLimits, ReportBudget
from malletrain.wire import messages as wire
from malletrain.wire.http import DaemonUnavailable
from tests.api.house import Caller, House, http_of
from tests.waiting import wait_until

STALLED = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n"


@contextlib.contextmanager
def connections(house: House, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", house.server.port), timeout=60))
            connection.sendall(sent)
            opened.append(connection)
        yield opened


def ends(connection: socket.socket, seconds: float) -> bytes:
    """What comes until the server hangs up; raises `TimeoutError` if it does not."""
    connection.settimeout(seconds)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def test_a_token_that_nobody_has_is_a_stranger(house: House) -> None:
    with connections(house, 1, STALLED + b"Authorization: Bearer made-up\r\n\r\n") as (stranger,):
        assert ends(stranger, 60).startswith(b"HTTP/1.1 401")
    report = b"POST /v1/workers/7_0.0/report HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n"
    with connections(house, 1, report + b"Authorization: Bearer made-up\r\n\r\n") as (stranger,):
        assert b"say hello again" in ends(stranger, 60)


def test_made_up_tokens_do_not_evade_the_limit_of_an_address(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(address_rate=0.001, address_burst=5))
    caller = Caller(house)
    codes = [caller.get("/v1/jobs", headers={"Authorization": f"Bearer {i}"}).status_code for i in range(8)]
    assert codes == [401] * 5 + [429] * 3
    assert Caller(house, house.token(1001)).get("/v1/jobs").status_code == 200, "a neighbour at the same address"
    assert Caller(house).post("/v1/session", json={"credential": house.credential()}).status_code == 200


def test_stalled_logins_hold_a_bounded_amount_of_memory(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(strangers_buffered_bytes=50_000, body_seconds=60))
    part = (
        b"POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 16000\r\n\r\n"
        + b"x" * 15_000
    )
    with connections(house, 6, part) as stalled:

        def answered() -> list[socket.socket]:
            return select.select(stalled, [], [], 0)[0]

        wait_until(lambda: len(answered()) >= 3, 60, "an answer to each body beyond the budget")
        assert Caller(house, house.token(1001)).get("/v1/jobs").status_code == 200
        refused = answered()
        assert len(refused) == 3, "three bodies fit the budget"
        assert all(connection.recv(100).startswith(b"HTTP/1.1 503") for connection in refused)
    wait_until(lambda: len(house.connections) <= 1)
    login = Caller(house).post("/v1/session", json={"credential": house.credential()})
    assert login.status_code == 200, "what was read is given back"


def test_idle_strangers_make_room_for_others(new_house: Callable[..., House]) -> None:
    house = new_house(connections=ApiLimits(connections_of_address=20))
    known = Caller(house, house.token(1001))
    assert known.get("/v1/jobs").status_code == 200
    at = [time.monotonic()]
    house.connections._elapsed = lambda: at[0]
    with connections(house, 100, b"GET /v1/health HTTP/1.1\r\n") as idle, contextlib.ExitStack() as later:
        wait_until(lambda: len(house.connections) == 101)
        at[0] += 2.0  # none is within its first second
        later.enter_context(connections(house, 1))
        wait_until(lambda: len(house.connections) <= 21)
        assert known.get("/v1/jobs").status_code == 200, "a known caller keeps its connection"
        assert Caller(house, house.token(1002)).get("/v1/jobs").status_code == 200, "a newcomer gets one"
        assert ends(idle[0], 60) == b"", "the oldest stranger went"


def test_a_caller_has_so_many_connections(new_house: Callable[..., House]) -> None:
    house = new_house(connections=ApiLimits(connections_of_caller=3))
    request = f"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {house.token(1001)}\r\n\r\n".encode()
    with connections(house, 4, request) as mine:
        answers = []
        for connection in mine:
            connection.settimeout(60)
            answers.append(connection.recv(12))
        assert sorted(answers) == [b"HTTP/1.1 200"] * 3 + [b"HTTP/1.1 429"]
    wait_until(lambda: len(house.connections) == 0)
    assert Caller(house, house.token(1001)).get("/v1/jobs").status_code == 200


def test_a_stranger_does_not_keep_an_idle_connection(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malletrain.api.http_server.STRANGERS_KEEP_ALIVE_SECONDS", 0.3)
    with connections(house, 1, b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n") as (stranger,):
        assert ends(stranger, 60).startswith(b"HTTP/1.1 200")


def test_refusals_of_a_flood_are_slow(new_house: Callable[..., House]) -> None:
    """So a flood is as fast as its connections, and costs little; others are answered meanwhile."""
    house = new_house(limits=ApiLimits(token_rate=0.001, token_burst=2, refusal_seconds=0.4))
    flood, other = Caller(house, house.token(1001)), Caller(house, house.token(1002))
    codes = [flood.get("/v1/jobs").status_code for _ in range(2)]
    began = time.monotonic()
    codes.append(flood.get("/v1/jobs").status_code)
    assert codes == [200, 200, 429]
    assert time.monotonic() - began >= 0.4
    assert other.get("/v1/jobs").status_code == 200


def test_logins_that_fail_are_answered_slowly_and_others_are_not(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(refusal_seconds=2.0, address_rate=0.001, address_burst=10))
    began = time.monotonic()
    assert Caller(house).post("/v1/session", json={"credential": "MUNGE:AwQDAAAAAAAA:"}).status_code == 401
    assert time.monotonic() - began >= 2.0
    patient = new_house(limits=ApiLimits(refusal_seconds=50.0, address_rate=0.001, address_burst=10))
    began = time.monotonic()
    for each in (house, patient):
        assert Caller(each).post("/v1/session", json={"credential": each.credential()}).status_code == 200
        assert Caller(each).get("/v1/jobs").status_code == 401, "a token that ran out: say so at once"
    assert time.monotonic() - began < 50.0
    stranger = Caller(house)
    began = time.monotonic()
    assert [stranger.get("/v1/jobs").status_code for _ in range(6)] == [401] * 6
    assert time.monotonic() - began >= 2.0, "not to one who goes on and on"


def test_a_users_requests_wait_for_each_other_not_others_for_them(new_house: Callable[..., House]) -> None:
    """Else whoever sends several at once has all threads."""
    house = new_house()
    go_on, begun = threading.Event(), threading.Semaphore(0)
    real = house.views.jobs

    def slow(over: bool = True, uid: int | None = None, limit: int = 10_000, before: int | None = None) -> Any:
        if uid == 1001:
            begun.release()
            assert go_on.wait(120)
        return real(over, uid, limit, before)

    house.views.jobs = slow  # type: ignore[method-assign]
    flood = [Caller(house, house.token(1001)) for _ in range(8)]
    threads = [threading.Thread(target=caller.get, args=("/v1/jobs?mine=true",)) for caller in flood]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=60)
    try:
        assert Caller(house, house.token(1002)).get("/v1/jobs?mine=true").status_code == 200
    finally:
        go_on.set()
        for thread in threads:
            thread.join(60)


@pytest.mark.parametrize("kind", ["head", "body", "login"])
def test_a_slow_loris_is_cut_off(kind: str, new_house: Callable[..., House], monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not set the clock back: neither in a head, nor in a known caller's body or a login."""
    monkeypatch.setattr("malletrain.api.http_server.HEAD_SECONDS", 0.5)
    monkeypatch.setattr("malletrain.api.request_guard.LINGER_SECONDS", 60.0)  # this side may be slow
    house = new_house(limits=ApiLimits(body_seconds=0.5))
    token = f"Authorization: Bearer {house.token(1001)}\r\n\r\n".encode()
    login = b"POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n"
    begin = {"head": b"GET /v1/status HTTP/1.1\r\nX: ", "body": STALLED + token, "login": login}[kind]
    with connections(house, 1, begin) as (loris,):
        loris.settimeout(0.05)
        began, answer = time.monotonic(), None
        while answer is None:
            assert time.monotonic() - began < 40
            try:
                loris.sendall(b"x")
                answer = loris.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:  # a byte was on the way as the server hung up
                answer = b""
        assert answer[:12] in ((b"",) if kind == "head" else (b"HTTP/1.1 408",))


def test_others_are_served_while_all_attacks_run(new_house: Callable[..., House]) -> None:
    """The budget is wide, and the median's: this machine may be busy."""
    house = new_house(connections=ApiLimits(connections_of_address=32))
    over = threading.Event()

    def attack(sent: bytes) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), connections(house, 20, sent):
                over.wait(0.05)

    login = (
        b'POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n{"credential": "MUNGE:AwQDAAAAAAAAAAA"}  '
    )
    sends = [b"", b"GET / HT", STALLED, STALLED + b"\r\n", STALLED + b"Authorization: Bearer x\r\n\r\nxx", login]
    attackers = [threading.Thread(target=attack, args=(sent,)) for sent in sends]
    caller = Caller(house, house.token(1001))
    for attacker in attackers:
        attacker.start()
    took = []
    try:
        for _ in range(40):
            began = time.monotonic()
            assert caller.get("/v1/jobs").status_code == 200
            took.append(time.monotonic() - began)
        # A login from the attackers' own address waits for its turn.
        end = time.monotonic() + 60
        while True:
            try:
                with closing(http_of(house)) as client:
                    assert "jobs" in client.get("/v1/jobs")
                break
            except DaemonUnavailable:
                assert time.monotonic() < end
    finally:
        over.set()
        for attacker in attackers:
            attacker.join(60)
    assert sorted(took)[len(took) // 2] < 2.0


class _Clock:
    at = 0.0

    def now(self) -> float:
        return self.at

    def elapsed(self) -> float:
        return self.at


def test_figures_beyond_the_budget_are_left_out_and_nothing_else() -> None:
    dropped: list[int] = []
    limits = ApiLimits(worker_events_rate=1.0, worker_events_burst=10, user_events_rate=1.0, user_events_burst=15)
    clock = _Clock()
    budget = ReportBudget(limits, clock, dropped.append)
    flood: list[wire.Message] = [wire.Metric("loss", 0.5, n) for n in range(100)]
    vital: list[wire.Message] = [wire.Leaving("SIGTERM"), wire.Left(3, 7)]
    assert len(budget.within("7_0.0", 1001, flood)) == 10
    assert budget.within("7_0.0", 1001, vital) == vital
    assert len(budget.within("7_1.0", 1001, flood)) == 5, "what is left of the user's share"
    assert len(budget.within("8_0.0", 1002, flood)) == 10, "another user's"
    assert dropped == [90, 95, 90]
    clock.at += 4.0
    assert len(budget.within("7_0.0", 1001, flood)) == 4


@given(
    st.lists(st.tuples(st.sampled_from("ovc"), st.integers(0, 2), st.integers(1, 12), st.integers(0, 2)), max_size=80)
)
def test_the_table_is_within_its_limits_whatever_comes(steps: list[tuple[str, int, int, int]]) -> None:
    limits, clock = ApiLimits(connections_of_address=4, connections_of_caller=3), _Clock()
    table = ConnectionTable(limits, 9, clock.elapsed)
    alive: set[tuple[str, int]] = set()

    def closing(peer: tuple[str, int]) -> Callable[[], None]:
        return lambda: alive.discard(peer)

    for kind, address, port, caller in steps:
        clock.at += GRACE_S  # without it, an address may have more for a moment
        peer = (f"10.0.0.{address}", port)
        if kind == "o" and peer not in alive:
            alive.add(peer)
            table.opened(peer, closing(peer))
        elif kind == "v" and peer in alive and not table.vouch(peer, f"user {caller}"):
            assert sum(table.is_known(each) for each in alive) >= limits.connections_of_caller
        elif kind == "c" and peer in alive:
            alive.discard(peer)
            table.closed(peer)
        assert len(table) == len(alive) <= 9
        strangers = [each[0] for each in alive if not table.is_known(each)]
        assert all(strangers.count(each) <= 4 for each in strangers)
