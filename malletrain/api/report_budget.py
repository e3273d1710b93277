"""How many figures a worker and a user may have written to the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from malletrain.api.rate_limits import RateLimits, TokenBuckets
from malletrain.loop.ports import Clock
from malletrain.wire import messages as wire

_log = logging.getLogger("malletrain.api")

#: Messages that only inform. Every other one changes a job's world and is always taken.
FIGURES = (wire.Samples, wire.Metric)

#: Seconds between two lines of the log about the same user.
LOG_INTERVAL_S = 3600.0


class ReportBudget:
    """Leaves out what workers report beyond the limits. Safe from any thread.

    Args:
        limits: rates and bursts of one worker and of one user.
        clock: time.
        dropped: called with how many messages were left out.
    """

    def __init__(self, limits: RateLimits, clock: Clock, dropped: Callable[[int], None] = lambda count: None) -> None:
        self._by_worker = TokenBuckets(limits.worker_events_rate, limits.worker_events_burst, clock)
        self._by_user = TokenBuckets(limits.user_events_rate, limits.user_events_burst, clock)
        self._to_log = TokenBuckets(1.0 / LOG_INTERVAL_S, 1.0, clock)
        self._dropped = dropped
        #: After which a report of which something was left out is answered.
        self.refusal_seconds = limits.refusal_seconds

    def within(self, worker: str, uid: int, said: Sequence[wire.Message]) -> list[wire.Message]:
        """Of a report, what is taken."""
        taken = [
            message
            for message in said
            if not isinstance(message, FIGURES) or (self._by_worker.has(worker) and self._by_user.has(str(uid)))
        ]
        if len(taken) < len(said):
            self._dropped(len(said) - len(taken))
            if self._to_log.has(str(uid)):
                _log.warning(
                    "worker %s of uid %d reports too many figures: some are left out (report less often)", worker, uid
                )
        return taken
