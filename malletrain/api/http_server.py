"""Uvicorn in a thread of the daemon, on a port that is known before the first request."""

import asyncio
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from malletrain.api.connections import ConnectionTable, Peer
from malletrain.api.listening import Listening, listen
from malletrain.api.roles import Unavailable

#: Seconds within which a request's head must be complete. Uvicorn itself would wait for ever.
HEAD_SECONDS = 15.0

#: Seconds that requests in progress (long polls) are given at the end.
GOODBYE_SECONDS = 2

#: Seconds that an idle connection is kept: of a caller that has shown a token, and of any other.
KEEP_ALIVE_SECONDS, STRANGERS_KEEP_ALIVE_SECONDS = 75, 5

#: Connections that wait in the kernel to be accepted.
WAITING_CONNECTIONS = 2048

#: Connections accepted before the loop serves others again. asyncio takes its backlog for both numbers.
ACCEPTS_AT_ONCE = 8

#: Bytes of a request besides its body: its line and fields, and what frames a chunked body.
MAX_HEAD_BYTES = 64 * 1024

#: What frames a chunk, at most, where nothing is padded: its length in hexadecimal and two line ends (RFC 9112, 7.1).
CHUNK_FRAME_BYTES = 16

#: Requests that a connection may have sent before the first of them is answered.
MAX_PIPELINED = 8


#: Of every answer: a browser runs and shows nothing but the daemon's own files, in no other site's frame.
SAFE_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class _BadRequest(Exception):
    """This request is refused with status 400, and the connection closed: httptools would let it pass."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 that closes connections whose head does not come, and those that the table has no room for.

    httptools has llhttp's grammar of a request, but bounds neither a head, trailers and chunk extensions, nor the
    requests that wait on one connection; and where two readers could take a request for two different ones (RFC 9112,
    11.2), it is lenient. Such requests are refused here."""

    table: ConnectionTable
    called = ""
    """The address of this machine that is served; "" for all that it listens on."""
    peer: Peer | None = None
    head_timer: asyncio.TimerHandle | None = None
    field_bytes = 0
    """Of the request line, fields and trailers that have come whole."""
    loose_bytes = 0
    """Received for this request, less its body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client, self.server = _plain(self.client), _plain(self.server)
        if self.called and (self.server is None or self.server[0] != self.called):
            transport.abort()
            return
        self._await_head()
        if self.client is not None:
            self.peer = self.client
            self.table.opened(self.peer, transport.abort)

    def data_received(self, data: bytes) -> None:
        self.loose_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.loose_bytes > MAX_HEAD_BYTES:
            self.send_400_response("The head of the request is too long.")
        elif self.cycle is None or self.cycle.response_complete:
            # Part of a head: the first piece starts the clock, further ones do not set it back.
            if self.head_timer is None:
                self._await_head()
        else:
            self._stop_timer()

    def on_message_begin(self) -> None:
        self.field_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.loose_bytes = max(0, self.loose_bytes - len(body) - CHUNK_FRAME_BYTES)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.loose_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        known = self.peer is not None and self.table.is_known(self.peer)
        self.timeout_keep_alive = KEEP_ALIVE_SECONDS if known else STRANGERS_KEEP_ALIVE_SECONDS
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self.peer is not None:
            self.table.closed(self.peer)
        super().connection_lost(exc)

    def _count(self, count: int) -> None:
        self.field_bytes += count
        if self.field_bytes > MAX_HEAD_BYTES:
            raise _BadRequest("its head or its trailers are too long")

    def _check_head(self) -> None:
        """Refuses what llhttp accepts and h11 does not, and what no caller of the daemon's sends.
        Raises _BadRequest: in a callback of the parser, which ends with an `HttpParserError` then."""
        version, names = self.parser.get_http_version(), [name for name, _ in self.headers]
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        has_body = bool(codings) or any(n == b"content-length" and v.strip(b"0") for n, v in self.headers)
        if version not in ("1.0", "1.1"):
            raise _BadRequest("its version is neither 1.0 nor 1.1")
        hosts = names.count(b"host")
        if hosts > 1 or (not hosts and version == "1.1"):
            raise _BadRequest("it must name one host")
        if codings and (codings[0].lower() != b"chunked" or len(codings) > 1 or version == "1.0"):
            raise _BadRequest("its transfer coding is not chunked")
        if codings and b"content-length" in names:
            raise _BadRequest("it has two lengths")
        if self.parser.should_upgrade() and (has_body or self.parser.get_method() == b"CONNECT"):
            raise _BadRequest("what follows its head is not for a server of HTTP")
        if not self.url.startswith(b"/") or b"#" in self.url:
            raise _BadRequest("its target is no path")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _BadRequest("too many requests wait before it on this connection")

    def _await_head(self) -> None:
        self.head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None


def _plain(end: Any) -> Any:
    """An end of a connection, without what a socket of both families puts before an IPv4 address."""
    return None if end is None else (end[0].removeprefix("::ffff:"), end[1])


class HttpServer:
    """A running server. `port` is the bound one, also when 0 was asked for; `is_inherited`: systemd holds it, and in
    both families if `was_held`."""

    def __init__(self, server: uvicorn.Server, listening: Listening, thread: threading.Thread) -> None:
        self._server, self._listening, self._thread = server, listening, thread
        self.host, self.port = listening.sockets[0].getsockname()[:2]
        self.is_inherited = listening.is_inherited
        self.was_held = listening.is_inherited and not listening.guards

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive() and self._server.started and not self._server.should_exit

    def close(self, *, at_once: bool = False) -> None:
        """Stop taking requests, let those in progress end unless it is to be `at_once`, return when all is over.
        Idempotent."""
        self._server.should_exit, self._server.force_exit = True, at_once
        self._thread.join(GOODBYE_SECONDS + 10)
        self._listening.close()


def serve(app: ASGIApp, host: str, port: int, connections: ConnectionTable) -> HttpServer:
    """Serve `app` in a thread; returns when it answers. `port` 0: any; `connections` are this server's alone.
    Raises InvalidInput, Unavailable: as `listen`; or the server did not start."""
    listening = listen(host, port, WAITING_CONNECTIONS)
    for sock in listening.sockets:
        # What the kernel keeps of an answer for a caller who takes none, else 4 MB. Connections inherit it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 256 * 1024)
    config = uvicorn.Config(
        app,
        http=type("Protocol", (BoundedProtocol,), {"table": connections, "called": listening.address}),
        ws="none",
        lifespan="off",
        # An address is the connection's own: any account of this machine could write another into X-Forwarded-For.
        proxy_headers=False,
        log_config=None,
        server_header=False,
        headers=list(SAFE_HEADERS.items()),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        backlog=ACCEPTS_AT_ONCE,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": list(listening.sockets)}, name="api", daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            server.should_exit = True
            listening.close()
            raise Unavailable("the HTTP server did not start: the log says why")
        thread.join(0.005)
    for sock in listening.sockets:
        sock.listen(WAITING_CONNECTIONS)  # asyncio has set it to ACCEPTS_AT_ONCE
    return HttpServer(server, listening, thread)
