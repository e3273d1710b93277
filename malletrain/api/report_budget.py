"""How many figures, and how many bytes, a worker and a user may have written to the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from malletrain.api.rate_limits import ApiLimits, TokenBuckets, TooManyRequests
from malletrain.domain.event import Event
from malletrain.loop.ports import Clock
from malletrain.wire import messages as wire

_log = logging.getLogger("malletrain.api")

#: Messages that only inform. Every other one changes a job's world and is always taken.
FIGURES = (wire.Samples, wire.Metric)

#: Bytes of a row of the journal besides its texts: numbers, keys, indexes.
ROW_BYTES = 300

#: Seconds between two lines of the log about the same user.
LOG_INTERVAL_S = 3600.0


class ReportBudget:
    """Leaves out what workers report beyond the limits. Safe from any thread.

    Args:
        limits: rates and bursts of one worker and of one user.
        clock: time.
        dropped: called with how many messages were left out.
    """

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

        Raises:
            TooManyRequests: nothing of what came is taken; sent again later, it is.
        """
        if self.journal.is_empty(str(uid)):
            raise TooManyRequests(f"too much is written to the journal for uid {uid}: wait a moment, send less")

    def wrote(self, uid: int, events: Collection[Event]) -> None:
        """What came of a report of the user's is to be written."""
        self.journal.charge(str(uid), sum(map(weight_of, events)))

    def within(self, worker: str, uid: int, said: Sequence[wire.Message]) -> list[wire.Message]:
        """Of a report, what is taken. Half of the user's bytes is kept for what worlds depend on.

        Raises:
            TooManyRequests: as `admit`.
        """
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
