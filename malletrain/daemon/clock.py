"""The clock of everything that is live."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()
