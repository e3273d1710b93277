"""Bounds on what a caller may ask, and how fast: ASGI middleware and token buckets.

The middleware wraps `receive` only until the body is complete, so that handlers can still watch for a hang-up.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from malletrain.domain.errors import MalletrainError
from malletrain.loop.ports import Clock


class TooManyRequests(MalletrainError):
    """The caller asks too often (HTTP 429)."""

    exit_status = 1


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Rates are requests per second, bursts how many may come at once."""

    body_bytes: int = 1024 * 1024
    body_seconds: float = 15.0
    user_rate: float = 20.0
    user_burst: float = 200.0
    #: Of callers that nobody vouches for yet: each login costs munged a decoding. A login node is one address.
    address_rate: float = 100.0
    address_burst: float = 1000.0
    #: Of one token, a worker's too.
    token_rate: float = 50.0
    token_burst: float = 500.0
    open_jobs_per_user: int = 500
    long_polls_per_user: int = 64


class TokenBuckets:
    """Token buckets by key: `burst` at once, refilled at `rate` a second. Safe from any thread; memory is bounded."""

    def __init__(self, rate: float, burst: float, clock: Clock, keys: int = 20_000) -> None:
        self._rate, self._burst, self._clock, self._keys = rate, burst, clock, keys
        self._lock = threading.Lock()
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        """Take one token.

        Raises:
            TooManyRequests: the bucket is empty.
        """
        now = self._clock.elapsed()
        with self._lock:
            level, then = self._levels.pop(key, (self._burst, now))
            level = min(self._burst, level + (now - then) * self._rate)
            self._levels[key] = (level - 1 if level >= 1 else level, now)
            if len(self._levels) > self._keys:
                self._levels.popitem(last=False)
            if level < 1:
                raise TooManyRequests(f"too many requests: at most {self._rate:g} a second; wait a moment")


class AddressLimits:
    """Bounds how fast one token, or one address without any, may ask: before any work is done for it."""

    def __init__(self, app: ASGIApp, limits: RateLimits, clock: Clock, logins: tuple[str, ...]) -> None:
        """`logins` are the paths at which a credential is opened: by address alone, whatever token is sent."""
        self._app, self._logins = app, frozenset(logins)
        self._by_address = TokenBuckets(limits.address_rate, limits.address_burst, clock)
        self._by_token = TokenBuckets(limits.token_rate, limits.token_burst, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            token = dict(scope["headers"]).get(b"authorization", b"")
            try:
                if token and scope["path"] not in self._logins:
                    self._by_token.take(hashlib.sha256(token).hexdigest())
                else:
                    self._by_address.take((scope.get("client") or ("",))[0])
            except TooManyRequests as refused:
                await _refuse(send, 429, str(refused))
                return
        await self._app(scope, receive, send)


class BoundedBody:
    """Refuses bodies that are too long or take too long, before anything is done about them."""

    def __init__(self, app: ASGIApp, limits: RateLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 15 or int(declared) > self._limits.body_bytes):
            await _refuse(send, 413, f"the body is longer than {self._limits.body_bytes} bytes")
            return
        body = bytearray()
        gone = False
        try:
            with anyio.fail_after(self._limits.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        gone = True
                        break
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._limits.body_bytes:
                        await _refuse(send, 413, f"the body is longer than {self._limits.body_bytes} bytes")
                        return
        except TimeoutError:
            seconds = self._limits.body_seconds
            await _refuse(send, 408, f"the body did not arrive within {seconds:g} s: send it again")
            return
        if gone:
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self._app(scope, replay, send)


async def _refuse(send: Send, status: int, words: str) -> None:
    text = json.dumps({"error": words}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),  # what is left of the body is not read
    ]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
