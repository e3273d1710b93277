"""The daemon's URL as scripts and client files have it, and connections to it."""

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from malletrain.wire.errors import WireError

#: Names a file of certificates (PEM) to trust instead of the system's; `mtbatch` hands it on to pilots.
CA_VARIABLE = "MALLETRAIN_CA"


class AnswerTooLong(http.client.HTTPException):
    """An answer is longer than its reader takes."""


def first_url(text: str) -> str:
    """The URL without a trailing slash: the first one of a list, which earlier releases took."""
    return next(iter(text.replace(",", " ").split()), text).rstrip("/")


def parts_of(url: str) -> SplitResult:
    """The parts of a daemon's URL.
    Raises WireError: it is no http or https URL."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or parts.username:
        raise WireError(f"{url!r} is no URL such as http://head.example.org:8470")
    return parts


def client_context(ca: str = "") -> ssl.SSLContext:
    """A context that checks the daemon's certificate and host name.

    `ca`: a PEM file with the only authorities to trust; empty: that of MALLETRAIN_CA, else the system's.
    Raises WireError: the file cannot be read, or holds no certificate."""
    path = ca or os.environ.get(CA_VARIABLE, "")
    try:
        return ssl.create_default_context(cafile=path or None)
    except (OSError, ssl.SSLError) as error:
        raise WireError(f"{path}: no file of certificates (client.toml: ca, or {CA_VARIABLE}): {error}") from error


def with_trust(environ: Mapping[str, str], ca: str) -> dict[str, str]:
    """The environment with MALLETRAIN_CA as a client file gives it, unless it has one."""
    return {**({CA_VARIABLE: ca} if ca else {}), **environ}


class KeptConnection:
    """A connection to a daemon, made when it is needed and kept. Not thread-safe.
    Raises WireError: `url` is no http or https URL, or the file of certificates cannot be used (`client_context`)."""

    def __init__(self, url: str, ca: str = "") -> None:
        parts = parts_of(url)
        self._host, self._port, self._base = parts.hostname or "", parts.port, parts.path.rstrip("/")
        self._context = client_context(ca) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: object, token: str, timeout_s: float, wait_s: float, most_bytes: int
    ) -> tuple[int, bytes]:
        """Send a request, `body` as JSON unless it is None; status and body of the answer.

        The daemon may have closed a kept connection meanwhile: then the request is sent once more, on a new one.
        `timeout_s` is for each step of connecting; the whole answer has `wait_s` more.
        Raises AnswerTooLong: it is longer than `most_bytes`; OSError, http.client.HTTPException: there is none."""
        headers = {"Accept": "application/json", "User-Agent": "malletrain"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        payload = None
        if body is not None:
            payload = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        while True:
            is_kept = self._connection is not None
            try:
                connection = self._open(timeout_s, timeout_s + wait_s)
                deadline = time.monotonic() + timeout_s + wait_s
                connection.request(method, self._base + path, payload, headers)
                answer = connection.getresponse()
                data = _whole(answer, deadline, most_bytes)
                if answer.will_close:
                    self.close()
                return answer.status, data
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not is_kept or isinstance(error, TimeoutError | AnswerTooLong):
                    raise

    def close(self) -> None:
        """Close it; the next request makes another. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self, connect_s: float, answer_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._context is None:
                made = http.client.HTTPConnection(self._host, self._port, timeout=connect_s)
            else:
                made = http.client.HTTPSConnection(self._host, self._port, timeout=connect_s, context=self._context)
            made.connect()
            made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = made
        self._connection.timeout = answer_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(answer_s)
        return self._connection


def _whole(answer: http.client.HTTPResponse, deadline: float, most_bytes: int) -> bytes:
    data = bytearray()
    while part := answer.read1(1 << 20):
        data += part
        if len(data) > most_bytes:
            raise AnswerTooLong(f"the answer is longer than {most_bytes >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer takes too long")
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    answer.read()  # read1 does not notice that it has read all: only so is the connection free again
    return bytes(data)
