"""How much and how fast callers may ask: the limits, and token buckets."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from malletrain.domain.errors import MalletrainError
from malletrain.loop.ports import Clock


class TooManyRequests(MalletrainError):
    """The caller asks too often (HTTP 429)."""

    exit_status = 1


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Rates are requests (or bytes, where the name says so) per second, bursts how many may come at once."""

    #: Connections in all; of an address that has shown no valid token (a login node is one); of a user, or a worker.
    connections: int = 16_384
    connections_of_address: int = 256
    connections_of_caller: int = 128
    #: After which a request that is one too many is answered, and a login that fails: so a flood is slowed down.
    refusal_seconds: float = 1.0
    body_bytes: int = 1024 * 1024
    body_seconds: float = 15.0
    #: Of all bodies that are being read, and of those of callers that are not known yet.
    buffered_bytes: int = 64 * 1024 * 1024
    strangers_buffered_bytes: int = 4 * 1024 * 1024
    #: Of callers without a valid token, by address.
    address_rate: float = 100.0
    address_burst: float = 500.0
    #: Each login costs munged a decoding. A login node is one address; one user's share of it is bounded afterwards.
    login_rate: float = 200.0
    login_burst: float = 1000.0
    user_login_rate: float = 2.0
    user_login_burst: float = 100.0
    #: Of one user, or of one worker.
    token_rate: float = 50.0
    token_burst: float = 500.0
    #: Figures and windows of training that workers report; what is beyond is counted and left out.
    worker_events_rate: float = 5.0
    worker_events_burst: float = 500.0
    user_events_rate: float = 200.0
    user_events_burst: float = 20_000.0
    #: What one user may have written to the journal, by his commands and his workers: some 2 MB a minute.
    user_journal_bytes_rate: float = 32 * 1024.0
    user_journal_bytes_burst: float = 4 * 1024 * 1024.0
    #: What one user, or worker, is answered; and of that, what may wait to be taken, for so many seconds.
    answer_bytes_rate: float = 4 * 1024 * 1024.0
    answer_bytes_burst: float = 64 * 1024 * 1024.0
    unsent_bytes: int = 16 * 1024 * 1024
    unsent_seconds: float = 30.0
    announcements_a_day: int = 2000
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
        if not self.has(key):
            raise TooManyRequests(f"too many requests: at most {self._rate:g} a second; wait a moment")

    def is_strained(self, key: str) -> bool:
        """Whether more than half of the burst is used up."""
        return self._level(key) < self._burst / 2

    def is_empty(self, key: str) -> bool:
        """Whether nothing is left."""
        return self._level(key) < 1

    def charge(self, key: str, tokens: float) -> None:
        """Take tokens that are spent already, though the bucket may not have them: it owes them then."""
        now = self._clock.elapsed()
        with self._lock:
            self._put(key, self._refilled(key, now) - tokens, now)

    def has(self, key: str) -> bool:
        """Take one token; returns whether there was one."""
        now = self._clock.elapsed()
        with self._lock:
            level = self._refilled(key, now)
            self._put(key, level - 1 if level >= 1 else level, now)
            return level >= 1

    def _level(self, key: str) -> float:
        with self._lock:
            return self._refilled(key, self._clock.elapsed())

    def _refilled(self, key: str, now: float) -> float:
        level, then = self._levels.get(key, (self._burst, now))
        return min(self._burst, level + (now - then) * self._rate)

    def _put(self, key: str, level: float, now: float) -> None:
        self._levels[key] = (level, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._keys:
            self._levels.popitem(last=False)
