"""Random tokens that stand for a caller for a while, kept in memory alone and there as digests.

Neither a copy of the journal nor of the log lets anyone in, and a restart of the daemon ends them all.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass

from malletrain.api.ports import Identity
from malletrain.loop.ports import Clock

#: Bytes of randomness in a token.
TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Ticket:
    identity: Identity
    ends: float  # of Clock.elapsed


class TicketTable:
    """Tokens of one kind, all of which live `lifetime_s` seconds. Safe to call from any thread.

    A user holds `per_user` of them at most; beyond, the oldest ends.
    """

    def __init__(self, clock: Clock, lifetime_s: float, per_user: int) -> None:
        self.lifetime_s = lifetime_s
        self._clock, self._per_user = clock, per_user
        self._lock = threading.Lock()
        self._tickets: dict[bytes, _Ticket] = {}
        self._of_user: dict[int, OrderedDict[bytes, None]] = {}

    def issue(self, identity: Identity) -> str:
        """A new token for the caller."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        digest = _digest(token)
        with self._lock:
            self._forget_expired()
            own = self._of_user.setdefault(identity.uid, OrderedDict())
            while len(own) >= self._per_user:
                oldest, _ = own.popitem(last=False)
                del self._tickets[oldest]
            self._tickets[digest] = _Ticket(identity, self._clock.elapsed() + self.lifetime_s)
            own[digest] = None
        return token

    def identity(self, token: str) -> Identity | None:
        """The caller that the token stands for; None for a token that has run out or was never issued."""
        # Looked up by digest: neither the comparison's time nor a core dump gives a token away.
        with self._lock:
            ticket = self._tickets.get(_digest(token))
        return None if ticket is None or ticket.ends <= self._clock.elapsed() else ticket.identity

    def take(self, token: str) -> Identity | None:
        """As `identity`, and the token ends: of two callers that show it, one gets the identity."""
        with self._lock:
            ticket = self._tickets.pop(_digest(token), None)
            if ticket is not None:
                self._drop(ticket.identity.uid, _digest(token))
        return None if ticket is None or ticket.ends <= self._clock.elapsed() else ticket.identity

    def _forget_expired(self) -> None:
        now = self._clock.elapsed()
        for digest, ticket in list(self._tickets.items()):
            if ticket.ends > now:
                break  # all live equally long, so they end in the order of their making
            del self._tickets[digest]
            self._drop(ticket.identity.uid, digest)

    def _drop(self, uid: int, digest: bytes) -> None:
        own = self._of_user.get(uid)
        if own is not None:
            own.pop(digest, None)
            if not own:
                del self._of_user[uid]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
