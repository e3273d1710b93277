"""Callers who ask too much, too fast or too slowly; and that the log gives nothing away."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.api.http_server import serve
from malletrain.api.rate_limits import ApiLimits, TokenBuckets, TooManyRequests
from malletrain.api.roles import Unavailable
from tests.api.house import Caller, House
from tests.messages import naming, says
from tests.waiting import wait_until


def talk(house: House, sent: bytes, seconds: float = 60) -> bytes:
    """Send bytes, and read until the server hangs up."""
    with socket.create_connection(("127.0.0.1", house.server.port), timeout=seconds) as connection:
        connection.sendall(sent)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def head(house: House) -> bytes:
    """Of a request with a valid token."""
    return HEAD + f"Authorization: Bearer {house.token(1001)}\r\n".encode()


def test_a_body_that_says_it_is_too_long_is_refused_at_once(house: House) -> None:
    answer = talk(house, head(house) + b"Content-Length: 99999999999\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"longer than 1048576 bytes" in answer


def test_a_body_that_grows_too_long_is_refused(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(body_bytes=2000))
    chunk = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    answer = talk(house, head(house) + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3)
    assert answer.startswith(b"HTTP/1.1 413")
    assert house.requests.asked == []


@pytest.mark.parametrize(
    ("asked", "length", "status"),
    [
        (b"POST /v1/jobs HTTP/1.1\r\n", 300_000, b"401"),
        (b"POST /v1/session HTTP/1.1\r\n", 300_000, b"413"),
        (b"POST /v1/session HTTP/1.1\r\n", 10_000, b"429"),
    ],
)
def test_a_refusal_can_be_read_by_who_sends_its_body_all_the_same(
    new_house: Callable[..., House], asked: bytes, length: int, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("malletrain.api.request_guard.LINGER_SECONDS", 60.0)  # this side may be slow
    house = new_house(limits=ApiLimits(login_rate=0.001, login_burst=0 if status == b"429" else 5))
    with socket.create_connection(("127.0.0.1", house.server.port), timeout=60) as connection:
        connection.sendall(asked + f"Host: x\r\nContent-Length: {length}\r\n\r\n".encode())
        assert select.select([connection], [], [], 60)[0], "no answer before the body"
        for _ in range(10):
            connection.sendall(b"x" * (length // 10))
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 " + status)
    assert received.endswith(b'"}')


def test_who_never_ends_its_body_is_hung_up_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malletrain.api.request_guard.LINGER_SECONDS", 0.2)
    began = time.monotonic()
    assert talk(house, HEAD + b"Content-Length: 100\r\n\r\n").startswith(b"HTTP/1.1 401")
    assert time.monotonic() - began < 15


def test_a_kept_connection_serves_on_and_its_second_slow_head_is_given_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = f"Authorization: Bearer {house.token(1001)}\r\n".encode()  # a stranger's is kept for seconds only
    with socket.create_connection(("127.0.0.1", house.server.port), timeout=60) as connection:
        for _ in range(2):
            connection.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n" + who + b"\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                part = connection.recv(65536)
                assert part, answer
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")
        monkeypatch.setattr("malletrain.api.http_server.HEAD_SECONDS", 0.5)
        connection.sendall(b"GET /v1/hea")
        assert connection.recv(65536) == b""


def test_logins_are_bounded_before_munge_is_asked(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(login_rate=0.001, login_burst=3))
    caller = Caller(house)
    body = {"credential": "MUNGE:AAAA:"}
    codes = [
        caller.post("/v1/session", json=body, headers={"Authorization": f"Bearer {i}"}).status_code for i in range(4)
    ]
    assert codes == [401, 401, 401, 429]


def test_one_user_is_bounded_whatever_the_token(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(token_rate=0.001, token_burst=3))
    first, second = (Caller(house, house.token(1001)) for _ in range(2))
    assert [first.get(f"/v1/nowhere{i}").status_code for i in range(3)] == [404, 404, 404]
    refused = second.get("/v1/jobs")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert says(refused.json()["error"], "requests")
    assert Caller(house, house.token(1002)).get("/v1/jobs").status_code == 200


def test_logins_of_one_user_are_bounded(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(user_login_rate=0.001, user_login_burst=2))
    codes = [Caller(house).post("/v1/session", json={"credential": house.credential()}).status_code for _ in range(3)]
    assert codes == [200, 200, 429]
    house.uid_seen = 1002
    assert Caller(house).post("/v1/session", json={"credential": house.credential()}).status_code == 200


def test_announcements_of_a_day_are_bounded(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(announcements_a_day=2))
    ada, bob = Caller(house, house.token(1001)), Caller(house, house.token(1002))
    job = {"name": "j", "min_nodes": 1, "max_nodes": 2}
    codes = [ada.post("/v1/jobs", json=job).status_code for _ in range(3)]
    assert codes == [201, 201, 429]
    assert bob.post("/v1/jobs", json=job).status_code == 201


def test_long_polls_of_one_user_are_bounded(new_house: Callable[..., House]) -> None:
    house = new_house(limits=ApiLimits(long_polls_per_user=0))
    refused = Caller(house, house.token(1001)).get("/v1/events?after=0&wait=30")
    assert (refused.status_code, "long polls" in refused.json()["error"]) == (429, True)


def test_a_failure_is_told_without_its_innards(house: House, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_subject: str, _sight: object) -> list[str]:
        raise RuntimeError("password=hunter2")

    house.requests.explain = broken
    answer = Caller(house, house.token(1001)).get("/v1/explain/n001")
    assert (answer.status_code, answer.json().keys(), says(answer.text, "log")) == (500, {"error"}, True)
    assert "hunter2" not in answer.text
    assert "hunter2" in caplog.text


def test_a_taken_port_is_told(house: House) -> None:
    with pytest.raises(Unavailable, match=naming(f"127.0.0.1:{house.server.port}:")):
        serve(house.app, "127.0.0.1", house.server.port, house.connections)


def test_closing_ends_long_polls_and_frees_the_port(new_house: Callable[..., House]) -> None:
    house = new_house()
    waiting = socket.create_connection(("127.0.0.1", house.server.port), timeout=30)
    request = (
        f"GET /v1/events?after=0&wait=60 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {house.token(1001)}\r\n\r\n"
    )
    waiting.sendall(request.encode())
    wait_until(lambda: bool(house.notifier._waiting), 60, "the poll waits")
    began = time.monotonic()
    house.server.close()
    house.server.close()
    assert not house.server.is_serving
    assert time.monotonic() - began < 10
    waiting.close()
    with closing(serve(house.app, "127.0.0.1", house.server.port, house.connections)) as again:
        assert again.port == house.server.port


class _Still:
    """A clock that tests set."""

    at = 0.0

    def now(self) -> float:
        return self.at

    def elapsed(self) -> float:
        return self.at


@given(steps=st.lists(st.tuples(st.floats(0, 3), st.sampled_from("ab")), max_size=60))
def test_no_key_gets_more_than_its_burst_and_rate(steps: list[tuple[float, str]]) -> None:
    clock = _Still()
    buckets = TokenBuckets(2.0, 5.0, clock)
    taken = {"a": 0, "b": 0}
    for pause, key in steps:
        clock.at += pause
        try:
            buckets.take(key)
            taken[key] += 1
        except TooManyRequests:
            continue
        assert taken[key] <= 5 + 2 * clock.at + 1e-6


def test_buckets_do_not_grow_without_end() -> None:
    buckets = TokenBuckets(1.0, 1.0, _Still(), keys=10)
    for key in range(100):
        buckets.take(str(key))
    assert len(buckets._levels) == 10
