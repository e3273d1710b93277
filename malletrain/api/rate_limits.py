"""How much and how fast callers may ask, and have written to the journal: the limits, and token buckets."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from malletrain.domain.errors import MalletrainError
from malletrain.domain.event import Event
from malletrain.loop.ports import Clock
from malletrain.wire import messages as wire

_log = logging.getLogger("malletrain.api")


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
        """Take one token. Raises TooManyRequests: the bucket is empty."""
        if not self.has(key):
            raise TooManyRequests(f"too many requests: at most {self._rate:g} a second; wait a moment")

    def is_strained(self, key: str) -> bool:
        """Whether more than half of the burst is used up."""
        return self._level(key, self._clock.elapsed()) < self._burst / 2

    def is_empty(self, key: str) -> bool:
        """Whether nothing is left."""
        return self._level(key, self._clock.elapsed()) < 1

    def charge(self, key: str, tokens: float) -> None:
        """Take tokens that are spent already, though the bucket may not have them: it owes them then."""
        self._take(key, tokens, owes=True)

    def has(self, key: str) -> bool:
        """Take one token; returns whether there was one."""
        return self._take(key, 1.0, owes=False)

    def _level(self, key: str, now: float) -> float:
        level, then = self._levels.get(key, (self._burst, now))
        return min(self._burst, level + (now - then) * self._rate)

    def _take(self, key: str, tokens: float, *, owes: bool) -> bool:
        now = self._clock.elapsed()
        with self._lock:
            level = self._level(key, now)
            has = owes or level >= tokens
            self._levels[key] = (level - tokens if has else level, now)
            self._levels.move_to_end(key)
            if len(self._levels) > self._keys:
                self._levels.popitem(last=False)
            return has


# --- what is written to the journal ---------------------------------------------------------------------------------

#: Messages that only inform. Every other one changes a job's world and is always taken.
FIGURES = (wire.Samples, wire.Metric)

#: Bytes of a row of the journal besides its texts: numbers, keys, indexes.
ROW_BYTES = 300

#: Seconds between two lines of the log about the same user.
LOG_INTERVAL_S = 3600.0


class ReportBudget:
    """Leaves out what workers report beyond the limits; `dropped` is called with how many messages were left out.
    Safe from any thread."""

    def __init__(self, limits: ApiLimits, clock: Clock, dropped: Callable[[int], None] = lambda count: None) -> None:
        self._by_worker = TokenBuckets(limits.worker_events_rate, limits.worker_events_burst, clock)
        self._by_user = TokenBuckets(limits.user_events_rate, limits.user_events_burst, clock)
        #: Bytes of the journal by user id, for people's requests as well.
        self.journal = TokenBuckets(limits.user_journal_bytes_rate, limits.user_journal_bytes_burst, clock)
        self._to_log = TokenBuckets(1.0 / LOG_INTERVAL_S, 1.0, clock)
        self._dropped = dropped
        #: After which a report of which something was left out is answered.
        self.refusal_seconds = limits.refusal_seconds

    def admit(self, uid: int) -> None:
        """Look whether the user may have anything more written.
        Raises TooManyRequests: nothing of what came is taken; sent again later, it is."""
        if self.journal.is_empty(str(uid)):
            raise TooManyRequests(f"too much is written to the journal for uid {uid}: wait a moment, send less")

    def wrote(self, uid: int, events: Collection[Event]) -> None:
        """What came of a report of the user's is to be written."""
        self.journal.charge(str(uid), sum(map(weight_of, events)))

    def within(self, worker: str, uid: int, said: Sequence[wire.Message]) -> list[wire.Message]:
        """Of a report, what is taken. Half of the user's bytes is kept for what worlds depend on.
        Raises TooManyRequests: as `admit`."""
        self.admit(uid)
        strained = self.journal.is_strained(str(uid))
        taken = [
            message
            for message in said
            if not isinstance(message, FIGURES)
            or (not strained and self._by_worker.has(worker) and self._by_user.has(str(uid)))
        ]
        if len(taken) < len(said):
            self._dropped(len(said) - len(taken))
            if self._to_log.has(str(uid)):
                _log.warning(
                    "worker %s of uid %d reports too many figures: some are left out (report less often)", worker, uid
                )
        return taken


def weight_of(event: Event) -> int:
    """About how many bytes an event takes in the journal."""
    payload = event.payload
    return ROW_BYTES + len(event.reason) + sum(_size(getattr(payload, each.name)) for each in fields(payload))


def _size(value: Any) -> int:
    """About how many bytes a value takes as JSON."""
    if isinstance(value, str):
        return len(value) + 3
    if isinstance(value, Mapping):
        return sum(len(str(key)) + 4 + _size(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return sum(1 + _size(each) for each in value)
    return 20
