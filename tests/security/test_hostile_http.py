"""Requests that two readers of HTTP may take for different ones, or that are to cost memory, on a real socket."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from malletrain.api.http_server import MAX_HEAD_BYTES, MAX_PIPELINED
from tests.api.house import Caller, House
from tests.security.test_denial import ends

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n"
LOGIN = b"POST /v1/session HTTP/1.1\r\nHost: x\r\n"
CHUNKED = LOGIN + b"Transfer-Encoding: chunked\r\n"


def answer_to(house: House, sent: bytes) -> bytes:
    """What comes until the server hangs up."""
    with socket.create_connection(("127.0.0.1", house.server.port), timeout=60) as connection:
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent
            connection.sendall(sent)
        return ends(connection, 60)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET /v1/health HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(HEALTH + b"Host: y\r\n\r\n", id="two hosts"),
        pytest.param(HEALTH + b"X : y\r\n\r\n", id="space before the colon"),
        pytest.param(HEALTH + b"X: y\r\n z\r\n\r\n", id="a field on two lines"),
        pytest.param(HEALTH + b"X: a\0b\r\n\r\n", id="a zero in a field"),
        pytest.param(b"GET /v1/health HTTP/1.1\nHost: x\n\n", id="bare line feeds"),
        pytest.param(b"GET /v1/health HTTP/1.1\rHost: x\r\r", id="bare carriage returns"),
        pytest.param(b"GET /v1/health HTTP/2.0\r\nHost: x\r\n\r\n", id="version 2"),
        pytest.param(b"GET /v1/health HTTP/0.9\r\nHost: x\r\n\r\n", id="version 0.9"),
        pytest.param(b"GET /v1/health\r\n\r\n", id="no version"),
        pytest.param(b"GET http://y/v1/health HTTP/1.1\r\nHost: x\r\n\r\n", id="an absolute target"),
        pytest.param(b"GET /v1/health#x HTTP/1.1\r\nHost: x\r\n\r\n", id="a fragment"),
        pytest.param(b"GET /v1/\xff HTTP/1.1\r\nHost: x\r\n\r\n", id="a target that is not ASCII"),
        pytest.param(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", id="a tunnel"),
        pytest.param(
            LOGIN + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}", id="an upgrade with a body"
        ),
        pytest.param(LOGIN + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", id="two lengths"),
        pytest.param(LOGIN + b"Content-Length: 2, 2\r\n\r\n{}", id="a list of lengths"),
        pytest.param(LOGIN + b"Content-Length: +2\r\n\r\n{}", id="a signed length"),
        pytest.param(LOGIN + b"Content-Length: -2\r\n\r\n{}", id="a negative length"),
        pytest.param(LOGIN + b"Content-Length: 99999999999999999999999\r\n\r\n{}", id="a length beyond 64 bits"),
        pytest.param(CHUNKED + b"Content-Length: 2\r\n\r\n0\r\n\r\n", id="chunked, with a length"),
        pytest.param(CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="chunked twice"),
        pytest.param(LOGIN + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="another coding"),
        pytest.param(LOGIN + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="an unknown coding"),
        pytest.param(
            b"POST /v1/session HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="chunked in version 1.0"
        ),
        pytest.param(CHUNKED + b"\r\n0x2\r\n{}\r\n0\r\n\r\n", id="a chunk's length with 0x"),
        pytest.param(CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n", id="a chunk's length below zero"),
        pytest.param(CHUNKED + b"\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n", id="a chunk beyond 64 bits"),
        pytest.param(CHUNKED + b"\r\n2\n{}\n0\n\n", id="chunks with bare line feeds"),
        pytest.param(CHUNKED + b"\r\n2\r\n{}xx0\r\n\r\n", id="a chunk longer than it says"),
    ],
)  # fmt: skip
def test_an_ambiguous_request_is_refused_and_its_connection_closed(house: House, sent: bytes) -> None:
    """Also what follows it: it may be the half of it that another reader takes for a request."""
    answer = answer_to(house, sent + HEALTH + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert Caller(house).get("/v1/health").status_code == 200


@pytest.mark.parametrize(
    "begin, piece",
    [
        pytest.param(b"GET /", b"x" * 4096, id="request line"),
        pytest.param(HEALTH + b"X: ", b"x" * 4096, id="field"),
        pytest.param(HEALTH, b"X: y\r\n" * 512, id="fields"),
        pytest.param(b"", b"\r\n" * 2048, id="empty lines"),
        pytest.param(CHUNKED + b"\r\n1;", b"x" * 4096, id="chunk extension"),
        pytest.param(CHUNKED + b"\r\n0\r\n", b"X: y\r\n" * 512, id="trailers"),
        pytest.param(CHUNKED + b"\r\n0\r\nX:", b"y" * 4096, id="trailer"),
    ],
)
def test_what_is_no_body_is_bounded(house: House, begin: bytes, piece: bytes) -> None:
    with socket.create_connection(("127.0.0.1", house.server.port), timeout=60) as connection:
        connection.sendall(begin)
        sent, until = len(begin), time.monotonic() + 60
        try:
            while time.monotonic() < until and sent < 100 * MAX_HEAD_BYTES:
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        # What lies in the kernel's buffers of either side was sent, and never read.
        assert sent < 100 * MAX_HEAD_BYTES, "the server takes it without an end"
    assert Caller(house).get("/v1/health").status_code == 200


def test_a_small_body_in_many_chunks_is_taken(house: House) -> None:
    """Chunks of one byte are more frame than body, and yet no attack."""
    body = b'{"credential": "MUNGE:AAAA:"' + b" " * 14_000 + b"}"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with socket.create_connection(("127.0.0.1", house.server.port), timeout=60) as connection:
        connection.sendall(CHUNKED + b"\r\n" + chunks + b"0\r\n\r\n")
        connection.settimeout(60)
        assert b"application/json" in connection.recv(1000), "the answer is the application's"


def test_requests_that_wait_on_one_connection_are_bounded(house: House) -> None:
    few = answer_to(house, (HEALTH + b"\r\n") * (MAX_PIPELINED - 1) + HEALTH + b"Connection: close\r\n\r\n")
    assert few.count(b"HTTP/1.1 200") == MAX_PIPELINED
    many = answer_to(house, (HEALTH + b"\r\n") * 2000)
    assert many.count(b"HTTP/1.1 200") <= MAX_PIPELINED + 1
    assert b"HTTP/1.1 400" in many


def test_an_upgrade_that_nobody_serves_is_an_ordinary_request(house: House) -> None:
    """As `curl --http2` asks."""
    asks = HEALTH + b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n"
    assert answer_to(house, asks).startswith(b"HTTP/1.1 200")
