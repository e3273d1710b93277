"""Uvicorn in a thread of the daemon, on a port that is known before the first request."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import TracebackType
from typing import Self

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from malletrain.api.connections import ConnectionTable, Peer
from malletrain.api.ports import Unavailable
from malletrain.domain.errors import InvalidInput

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


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections whose head does not come, and those that the table has no room for."""

    table: ConnectionTable
    peer: Peer | None = None
    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        if self.client is not None:
            self.peer = self.client
            self.table.opened(self.peer, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            # Part of a head: the first piece starts the clock, further ones do not set it back.
            if self.head_timer is None:
                self._await_head()
        else:
            self._stop_timer()

    def on_response_complete(self) -> None:
        known = self.peer is not None and self.table.is_known(self.peer)
        self.timeout_keep_alive = KEEP_ALIVE_SECONDS if known else STRANGERS_KEEP_ALIVE_SECONDS
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self.peer is not None:
            self.table.closed(self.peer)
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self.head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _give_up(self) -> None:
        self.head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


class HttpServer:
    """A running server. `port` is the bound one, also when 0 was asked for."""

    def __init__(self, server: uvicorn.Server, sock: socket.socket, thread: threading.Thread) -> None:
        self._server, self._socket, self._thread = server, sock, thread
        self.host, self.port = sock.getsockname()[:2]

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive() and self._server.started and not self._server.should_exit

    def close(self, *, at_once: bool = False) -> None:
        """Stop taking requests, let those in progress end unless it is to be `at_once`, return when all is over.
        Idempotent."""
        self._server.should_exit, self._server.force_exit = True, at_once
        self._thread.join(GOODBYE_SECONDS + 10)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(app: ASGIApp, host: str, port: int, connections: ConnectionTable) -> HttpServer:
    """Serve `app` in a thread; returns when it answers.

    Args:
        app: the application.
        host, port: where to listen; port 0 for any.
        connections: bounds and counts the connections; of this server alone.

    Raises:
        InvalidInput: this user may not listen on that port.
        Unavailable: the address is taken, or not there yet; or the server did not start.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=WAITING_CONNECTIONS)
    except OSError as error:
        where = f"api.host, api.port {host}:{port}"
        why = f"cannot be listened on ({error.strerror}): choose another"
        if isinstance(error, PermissionError):
            raise InvalidInput(where, why) from error
        raise Unavailable(f"{where}: {why}") from error
    config = uvicorn.Config(
        app,
        http=type("Protocol", (BoundedProtocol,), {"table": connections}),
        ws="none",
        lifespan="off",
        access_log=False,
        # An address is the connection's own: any account of this machine could write another into X-Forwarded-For.
        proxy_headers=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        h11_max_incomplete_event_size=64 * 1024,
        backlog=ACCEPTS_AT_ONCE,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="api", daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            server.should_exit = True
            sock.close()
            raise Unavailable("the HTTP server did not start: the log says why")
        thread.join(0.005)
    sock.listen(WAITING_CONNECTIONS)  # asyncio has set it to ACCEPTS_AT_ONCE
    return HttpServer(server, sock, thread)
