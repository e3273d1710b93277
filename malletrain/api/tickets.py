"""Random tokens that stand for a caller for a while, kept in memory alone and there as digests.

Neither a copy of the journal nor of the log lets anyone in, and a restart of the daemon ends them all.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from malletrain.loop.ports import Clock

#: Bytes of randomness in a token.
TOKEN_BYTES = 32

Bearer = TypeVar("Bearer")


class TicketTable(Generic[Bearer]):
    """Tokens of one kind, all of which live `lifetime_s` seconds. Safe to call from any thread.

    An owner (a user's id, a worker) holds `per_owner` of them at most; beyond, the oldest ends.
    """

    def __init__(self, clock: Clock, lifetime_s: float, per_owner: int) -> None:
        self.lifetime_s = lifetime_s
        self._clock, self._per_owner = clock, per_owner
        self._lock = threading.Lock()
        self._tickets: dict[bytes, tuple[Hashable, Bearer, float]] = {}  # owner, bearer, end (Clock.elapsed)
        self._of_owner: dict[Hashable, OrderedDict[bytes, None]] = {}

    def issue(self, owner: Hashable, bearer: Bearer) -> str:
        """A new token that stands for `bearer`."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._lock:
            self._forget_expired()
            own = self._of_owner.setdefault(owner, OrderedDict())
            while len(own) >= self._per_owner:
                oldest, _ = own.popitem(last=False)
                del self._tickets[oldest]
            self._tickets[_digest(token)] = (owner, bearer, self._clock.elapsed() + self.lifetime_s)
            own[_digest(token)] = None
        return token

    def bearer(self, authorization: str | None) -> Bearer | None:
        """Whom the token in an Authorization header stands for; None for none, or one that is not `good`."""
        scheme, _, token = (authorization or "").partition(" ")
        return self.good(token.strip()) if scheme.lower() == "bearer" else None

    def good(self, token: str) -> Bearer | None:
        """Whom the token stands for; None for one that has run out or was never issued."""
        # Looked up by digest: neither the comparison's time nor a core dump gives a token away.
        with self._lock:
            _, bearer, ends = self._tickets.get(_digest(token), (None, None, 0.0))
        return bearer if self._clock.elapsed() < ends else None

    def take(self, token: str) -> Bearer | None:
        """As `good`, and the token ends: of two callers that show it, one gets the bearer."""
        with self._lock:
            owner, bearer, ends = self._tickets.pop(_digest(token), (None, None, 0.0))
            self._drop(owner, _digest(token))
        return bearer if self._clock.elapsed() < ends else None

    def _forget_expired(self) -> None:
        now = self._clock.elapsed()
        for digest, (owner, _, ends) in list(self._tickets.items()):
            if ends > now:
                break  # all live equally long, so they end in the order of their making
            del self._tickets[digest]
            self._drop(owner, digest)

    def _drop(self, owner: Hashable, digest: bytes) -> None:
        own = self._of_owner.get(owner)
        if own is not None:
            own.pop(digest, None)
            if not own:
                del self._of_owner[owner]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
