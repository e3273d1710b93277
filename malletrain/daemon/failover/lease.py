"""How long the active daemon may go on without a word from the passive one, and when that one may take over.

Each side measures with its own clock that never jumps and counts suspension (CLOCK_BOOTTIME). The passive daemon
promises, with each answer, not to take over for `lease_s` + `MARGIN_S`; the active one counts `lease_s` from before
it asked. So its lease ends first, whatever the message took, as long as the two clocks' rates differ by less than
MARGIN_S in `lease_s` (a quarter at the default; quartz differs by less than a thousandth).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Seconds between the end of a lease and a takeover.
MARGIN_S = 1.0

#: Parts of a lease after which the active daemon asks again, and goes on alone if there is no answer.
BEAT_PART, ALONE_PART = 0.2, 0.6


class Lease:
    """The active daemon's right to write and to order, until it ends by itself. Thread-safe."""

    def __init__(self, seconds: float, elapsed: Callable[[], float]) -> None:
        self._seconds = seconds
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._asked_at = float("-inf")

    @property
    def seconds(self) -> float:
        return self._seconds

    def now(self) -> float:
        """To be taken before the other is asked, and given to `renew` once it has agreed."""
        return self._elapsed()

    def renew(self, asked_at: float) -> None:
        """The other has agreed to what was asked at `asked_at`."""
        with self._lock:
            self._asked_at = max(self._asked_at, asked_at)

    def end(self) -> None:
        """Give it up now."""
        with self._lock:
            self._asked_at = float("-inf")

    @property
    def age_s(self) -> float:
        """Seconds since the last word; infinite before the first."""
        return self._elapsed() - self._asked_at

    @property
    def holds(self) -> bool:
        return self.age_s < self._seconds


class Promise:
    """The passive daemon's promise not to take over yet. A new one begins at start: it may have made one before."""

    def __init__(self, lease_s: float, elapsed: Callable[[], float]) -> None:
        self._span_s = lease_s + MARGIN_S
        self._elapsed = elapsed
        self._until = elapsed() + self._span_s

    def heard(self) -> None:
        """The active daemon has spoken, and is about to be answered."""
        self._until = self._elapsed() + self._span_s

    def release(self) -> None:
        """The active daemon has ended in order."""
        self._until = float("-inf")

    @property
    def is_over(self) -> bool:
        return self._elapsed() >= self._until
