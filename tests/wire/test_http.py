"""The commands' client against daemons that are gone, slow, wrong or rude."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from malletrain.wire.errors import WireError
from malletrain.wire.http import DaemonRefused, DaemonUnavailable, Http
from scripts.lab.ports import free_port
from tests.messages import naming

Answer = Callable[[socket.socket, bytes], None]


class RawServer:
    """Answers each request with whatever bytes a test says; keeps what was asked."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.asked: list[bytes] = []
        self.answers: list[Answer] = []
        self.connections = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.settimeout(60)
            with connection, suppress(ConnectionAbortedError):
                while self.answers:
                    request = self._read(connection)
                    if not request:
                        break
                    self.asked.append(request)
                    answer = self.answers.pop(0)
                    answer(connection, request)

    def _read(self, connection: socket.socket) -> bytes:
        request = b""
        try:
            while b"\r\n\r\n" not in request:
                part = connection.recv(65536)
                if not part:
                    return b""
                request += part
            head, _, body = request.partition(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
            )
            while len(body) < length:
                body += connection.recv(65536)
        except OSError:
            return b""
        return head + b"\r\n\r\n" + body

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(15)


def said(value: Any, status: int = 200, keep: bool = True) -> Answer:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()

    def answer(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        if not keep:
            hang_up(connection, _request)

    return answer


def hang_up(connection: socket.socket, _request: bytes) -> None:
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError  # what has come meanwhile is not read


SESSION = said({"token": "t0ken", "lifetime_s": 3600, "user": "ada"})


@pytest.fixture
def server() -> Iterator[RawServer]:
    running = RawServer()
    yield running
    running.close()


@pytest.fixture
def client(server: RawServer, munged: str) -> Iterator[Http]:
    with closing(Http(server.url, munge_socket=munged, timeout_s=60)) as made:
        yield made


def test_one_login_and_one_connection_serve_many_gets(server: RawServer, client: Http) -> None:
    server.answers += [SESSION, said({"a": 1}), said({"a": 2})]
    assert [client.get("/v1/a", {"x": 1, "no": None, "yes": True}), client.get("/v1/b")] == [{"a": 1}, {"a": 2}]
    assert b'"credential": "MUNGE:' in server.asked[0]
    assert server.asked[1].startswith(b"GET /v1/a?x=1&yes=true HTTP/1.1")
    assert b"Authorization: Bearer t0ken" in server.asked[1]
    assert b"Authorization" not in server.asked[0]
    assert server.connections == 1
    assert client.identity == {"lifetime_s": 3600, "user": "ada"}


def test_a_connection_that_the_daemon_closed_meanwhile_is_opened_anew(server: RawServer, client: Http) -> None:
    server.answers += [SESSION, said({"a": 1}, keep=False), said({"a": 2})]
    assert client.get("/v1/a") == {"a": 1}
    assert client.get("/v1/a") == {"a": 2}


def test_a_post_is_never_sent_twice(server: RawServer, client: Http) -> None:
    server.answers += [SESSION, said({"a": 1}), hang_up, said({"never": "asked"})]
    client.get("/v1/a")
    with pytest.raises(DaemonUnavailable):
        client.post("/v1/jobs", {"name": "x"})
    assert [asked.split()[1] for asked in server.asked] == [b"/v1/session", b"/v1/a", b"/v1/jobs"]


def test_a_token_that_has_run_out_is_renewed_once(server: RawServer, client: Http) -> None:
    server.answers += [SESSION, said({"error": "no"}, 401), SESSION, said({"a": 1})]
    assert client.post("/v1/jobs") == {"a": 1}
    server.answers += [said({"error": "no"}, 401), SESSION, said({"error": "still no"}, 401)]
    with pytest.raises(DaemonRefused, match="still no") as refused:
        client.post("/v1/jobs")
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "job 3 is bob's"}, "job 3 is bob's"),
        ({"error": "two\nlines \x1b[31mred"}, "two lines  [31mred"),
        (b"<html>not found</html>", "malletraind?"),
        ([], "malletraind?"),
        (b"[" * 100_000, "malletraind?"),
    ],
)
def test_refusals_become_one_line(server: RawServer, client: Http, body: Any, words: str) -> None:
    server.answers += [SESSION, said(body, 403)]
    with pytest.raises(DaemonRefused) as refused:
        client.get("/v1/jobs")
    assert words in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
def test_an_answer_that_is_no_object_is_told(server: RawServer, client: Http, body: bytes) -> None:
    server.answers += [SESSION, said(body)]
    if body == b"":
        assert client.get("/v1/jobs") == {}
        return
    with pytest.raises(DaemonUnavailable, match=naming("malletraind?")):
        client.get("/v1/jobs")


def test_an_answer_to_the_login_that_is_none(server: RawServer, client: Http) -> None:
    server.answers += [said({"token": ""})]
    with pytest.raises(DaemonUnavailable, match="check the URL"):
        client.get("/v1/jobs")


def test_a_redirect_is_not_followed(server: RawServer, client: Http) -> None:
    server.answers += [SESSION, said(b"", 302)]
    with pytest.raises(DaemonRefused, match="302"):
        client.get("/v1/jobs")


def test_an_endless_answer_is_given_up(server: RawServer, client: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malletrain.wire.http.MAX_ANSWER_BYTES", 3 << 20)

    def flood(connection: socket.socket, _request: bytes) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b" " * 65536)
        except OSError:
            return

    server.answers += [SESSION, flood]
    with pytest.raises(DaemonUnavailable, match="longer than 3 MiB"):
        client.get("/v1/jobs")


def test_a_silent_daemon_is_given_up(server: RawServer, client: Http) -> None:
    done = threading.Event()
    client._timeout_s = 0.3

    def wait(connection: socket.socket, _request: bytes) -> None:
        done.wait(60)

    server.answers += [SESSION, wait]
    with pytest.raises(DaemonUnavailable, match=naming("no answer")):
        client.get("/v1/jobs")
    done.set()


def test_a_dripping_daemon_is_given_up(server: RawServer, client: Http) -> None:
    done = threading.Event()

    def drip(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        try:
            while not done.wait(0.05):
                connection.sendall(b" ")
        except OSError:
            return

    client._timeout_s = 2.0
    server.answers += [SESSION, drip]
    with pytest.raises(DaemonUnavailable, match=naming("no answer")):
        client.get("/v1/jobs")
    done.set()


def test_nobody_there(munged: str) -> None:
    for url, words in (
        (f"http://127.0.0.1:{free_port()}", "malletraind running"),
        ("http://no-such-host.invalid:1", "name is"),
    ):
        with closing(Http(url, munge_socket=munged)) as client, pytest.raises(DaemonUnavailable, match=words):
            client.get("/v1/jobs")


def test_https_to_a_server_that_does_not_speak_it(server: RawServer, munged: str) -> None:
    url = server.url.replace("http:", "https:")
    server.answers += [said(b"")]
    with closing(Http(url, munge_socket=munged, timeout_s=2)) as client, pytest.raises(DaemonUnavailable):
        client.get("/v1/jobs")


def test_an_answer_that_is_cut_short_is_told(server: RawServer, client: Http) -> None:
    def cut(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
        connection.shutdown(socket.SHUT_RDWR)

    server.answers += [SESSION, cut, cut]
    with pytest.raises(DaemonUnavailable, match="IncompleteRead"):
        client.get("/v1/jobs")


@pytest.mark.parametrize("url", ["", "head:8470", "ftp://x", "http://", "http://a:b:c", "http://u@x", "http://x?y"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(WireError, match="is no URL"):
        Http(url)


def test_proxies_of_the_environment_are_not_used(
    server: RawServer, client: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    server.answers += [SESSION, said({"a": 1})]
    assert client.get("/v1/a") == {"a": 1}
