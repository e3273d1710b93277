"""What every request passes before any work is done for it: who calls, how often, and a body of bounded size; and
what its answer passes: how much a caller is sent, and how much of it waits to be taken.

A caller is known by the token in the headers, before a byte of the body is read. Requests of callers that are not
known have no body, except at the two logins."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from malletrain.api.connections import ConnectionTable, Peer
from malletrain.api.rate_limits import ApiLimits, TokenBuckets, TooManyRequests
from malletrain.loop.ports import Clock

#: The caller behind a request's path and headers, `user 1000` or `worker 7_3.0`; None without a valid token.
Identify = Callable[[Scope], str | None]

NO_USER = "no valid token: POST a MUNGE credential to /v1/session for one"
NO_WORKER = "no token of this worker: say hello again with a fresh MUNGE credential"

#: After a refusal, what the caller still sends is read and forgotten, for so long and so many bytes. A connection
#: closed with bytes that nobody has read is reset, and the answer may be lost with it (RFC 9112, 9.6).
LINGER_SECONDS = 2.0
LINGER_BYTES = 2 * 1024 * 1024


#: An answer is sent in parts of so many bytes.
PART_BYTES = 64 * 1024


class _Refused(Exception):
    """The request is answered with this status, and its connection closed."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class RequestGuard:
    """ASGI middleware. `identify` looks the caller up, and does not block; `logins`: the paths at which a credential
    is opened, and the longest body there, in bytes."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ApiLimits,
        clock: Clock,
        identify: Identify,
        logins: dict[str, int],
        connections: ConnectionTable,
    ) -> None:
        self._app, self.limits, self._identify = app, limits, identify
        self._logins, self.connections = logins, connections
        self._strangers = TokenBuckets(limits.address_rate, limits.address_burst, clock)
        self._by_login = TokenBuckets(limits.login_rate, limits.login_burst, clock)
        self._callers = TokenBuckets(limits.token_rate, limits.token_burst, clock)
        self.answers = TokenBuckets(limits.answer_bytes_rate, limits.answer_bytes_burst, clock)
        self.unsent: Counter[str] = Counter()  #: bytes of answers that wait to be taken, by caller
        self._buffered_bytes = {True: 0, False: 0}  # of callers that are known, and of others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller, known, body = "", False, bytearray()
        try:
            caller, most = self._admit(scope)
            known = bool(caller)
            if not known and scope["path"] not in self._logins and self._strangers.is_strained(_address(scope)):
                await anyio.sleep(self.limits.refusal_seconds)
            gone = await self._read(scope, receive, body, known, most)
            if not gone:
                answer = _Answer(self, scope, send, caller or _address(scope))
                try:
                    await self._app(scope, _replayed(body, receive), answer.send)
                finally:
                    answer.close()
        except TooManyRequests as refused:
            await anyio.sleep(self.limits.refusal_seconds)
            await _refuse(receive, send, 429, str(refused))
        except _Refused as refused:
            await _refuse(receive, send, refused.status, str(refused))
        finally:
            self._buffered_bytes[known] -= len(body)

    def _admit(self, scope: Scope) -> tuple[str, int]:
        """The caller, "" for a stranger, and how many bytes of a body are read.
        Raises TooManyRequests: it asks too often, or has too many connections; _Refused: it is not known, and sends a
        body."""
        headers, path, address = dict(scope["headers"]), scope["path"], _address(scope)
        if path in self._logins:
            self._by_login.take(address)
            return "", self._bounded(headers, self._logins[path])
        caller = self._identify(scope)
        if caller is None:
            self._strangers.take(address)
            if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
                raise _Refused(401, NO_WORKER if path.startswith("/v1/workers/") else NO_USER)
            return "", 0
        self._callers.take(caller)
        if self.answers.is_empty(caller):
            raise TooManyRequests("you have been answered too much lately: wait a moment, ask for less")
        if not self.connections.vouch(_peer(scope), caller):
            raise TooManyRequests("too many connections: close some, or send your requests over one")
        return caller, self._bounded(headers, self.limits.body_bytes)

    def _bounded(self, headers: dict[bytes, bytes], most: int) -> int:
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 15 or int(declared) > most):
            raise _Refused(413, f"the body is longer than {most} bytes")
        return most

    async def _read(self, scope: Scope, receive: Receive, body: bytearray, known: bool, most: int) -> bool:
        """Reads the body; returns whether the caller hung up meanwhile.
        Raises _Refused: the body is too long, takes too long, or there are too many bodies at once."""
        seconds = self.limits.body_seconds
        whole = self.limits.buffered_bytes if known else self.limits.strangers_buffered_bytes
        try:
            async with asyncio.timeout(seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return True
                    part = message.get("body", b"")
                    more = message.get("more_body", False)
                    body += part
                    self._buffered_bytes[known] += len(part)
                    if len(body) > most:
                        raise _Refused(413, f"the body is longer than {most} bytes")
                    if self._buffered_bytes[known] > whole:
                        raise _Refused(503, "too many requests are being read: send it again in a moment")
        except TimeoutError as error:
            raise _Refused(408, f"the body did not arrive within {seconds:g} s: send it again") from error
        return False


class _Answer:
    """One answer on its way: counted for its caller until it has gone, and sent in parts, so that a caller who takes
    none of it is noticed."""

    def __init__(self, guard: RequestGuard, scope: Scope, send: Send, caller: str) -> None:
        self._guard, self._scope, self._send, self._caller = guard, scope, send, caller
        self._start: Message | None = None
        self._size = 0
        self._is_refused = False

    async def send(self, message: Message) -> None:
        """An ASGI `send`."""
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            self._start = message  # until it is known how long the answer is
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        waits, unsent = self._guard.unsent[self._caller], self._guard.limits.unsent_bytes
        if waits and waits + len(body) > unsent:
            self._is_refused = True
            if self._start is not None:
                await _reply(self._send, 429, "your answers are not taken: read them before you ask for more")
            return
        self._size += len(body)
        self._guard.unsent[self._caller] += len(body)
        self._guard.answers.charge(self._caller, len(body))
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)
        for begin in range(0, max(1, len(body)), PART_BYTES):
            rest = more or begin + PART_BYTES < len(body)
            part = {"type": "http.response.body", "body": body[begin : begin + PART_BYTES], "more_body": rest}
            try:
                async with asyncio.timeout(self._guard.limits.unsent_seconds):
                    await self._send(part)
            except TimeoutError:  # whoever takes none is cut off: the rest waits in memory
                self._guard.connections.drop(_peer(self._scope))

    def close(self) -> None:
        """The answer has gone, or never will."""
        self._guard.unsent[self._caller] -= self._size
        if self._guard.unsent[self._caller] <= 0:
            del self._guard.unsent[self._caller]


def _peer(scope: Scope) -> Peer:
    host, port = scope.get("client") or ("", 0)
    return str(host), int(port)


def _address(scope: Scope) -> str:
    return _peer(scope)[0]


def _replayed(body: bytearray, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read, then what follows, so that handlers can watch for a hang-up."""
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    return replay


async def _refuse(receive: Receive, send: Send, status: int, words: str) -> None:
    """A refusal, after which what the caller still sends is read, until it has sent all, hangs up, or has sent too
    much for too long."""
    await _reply(send, status, words, more=True)
    left, more = LINGER_BYTES, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while more and left > 0:
                message = await receive()
                left, more = left - len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.body"})  # closes the connection


async def _reply(send: Send, status: int, words: str, more: bool = False) -> None:
    """A refusal, after which the connection is closed; `more`: by an empty body that follows."""
    text = json.dumps({"error": words}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text, "more_body": more})
