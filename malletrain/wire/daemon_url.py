"""The daemon's URL as scripts and client files have it, and connections to it."""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlsplit

from malletrain.wire.errors import WireError
from malletrain.wire.tls import TlsConnector


def first_url(text: str) -> str:
    """The URL without a trailing slash: the first one of a list, which earlier releases took."""
    return next(iter(text.replace(",", " ").split()), text).rstrip("/")


class DaemonUrl:
    """Where a daemon is called: `text` is its URL, `base` the path of that. Safe to use from several threads.

    Raises:
        WireError: it is no http or https URL, or the file of certificates cannot be used.
    """

    def __init__(self, url: str, tls: TlsConnector | None = None, munge_socket: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment or parts.username:
            raise WireError(f"{url!r} is no URL such as http://head.example.org:8470")
        self.text, self.base = url.rstrip("/"), parts.path.rstrip("/")
        self._host, self._port = host, port
        is_tls = parts.scheme == "https"
        self._tls = tls or TlsConnector(self.text, munge_socket=munge_socket) if is_tls else None

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection that is open; `timeout_s` is for each step of connecting. Raises what sockets raise."""
        if self._tls is not None:
            return self._tls.connect(self._host, self._port, self.base, timeout_s)
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        connection.connect()
        return connection


class KeptConnection:
    """A connection to a daemon, made when it is needed and kept. Not thread-safe."""

    def __init__(self, daemon: DaemonUrl) -> None:
        self._daemon = daemon
        self._connection: http.client.HTTPConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next request goes over a connection that the daemon may have closed meanwhile."""
        return self._connection is not None

    def ask(
        self, method: str, path: str, body: object, token: str, connect_s: float, answer_s: float
    ) -> http.client.HTTPResponse:
        """Send a request, `body` as JSON unless it is None; its answer has begun, and is to be read whole.

        `connect_s` and `answer_s` are for each step of connecting, and of the answer. Raises what sockets raise.
        """
        if self._connection is None:
            self._connection = self._daemon.connect(connect_s)
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.timeout = answer_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(answer_s)
        headers = {"Accept": "application/json", "User-Agent": "malletrain"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        payload = None
        if body is not None:
            payload = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        self._connection.request(method, self._daemon.base + path, payload, headers)
        return self._connection.getresponse()

    def close(self) -> None:
        """Close it; the next request makes another. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
