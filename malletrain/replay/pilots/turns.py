"""Jobs that wait too long for nodes get their fewest, for a turn: decide's limits, in columns."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.limits import Waits, on_turn_or_starving

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Turns:
    """Since when each job has nodes, or has none though it is there, and how long it had waited before."""

    def __init__(self, submitted: Floats, least: Ints, max_wait_s: float, turn_s: float) -> None:
        self._max_wait_s, self._turn_s = max_wait_s, turn_s
        self._least = least
        self.turned: Floats = submitted.copy()
        self.waited: Floats = np.zeros(len(submitted))
        self._had: NDArray[np.bool_] = np.zeros(len(submitted), np.bool_)

    def note(self, live: Ints, held: Ints, now: float, seen_at: float) -> bool:
        """What the jobs `live` hold now; returns whether one has nodes that had none, or none that had some.
        `seen_at`: the look at which the daemon sees that pilots have gone."""
        if self._max_wait_s <= 0:
            return False
        has = held > 0
        turned = live[has != self._had[live]]
        if not len(turned):
            return False
        begun = turned[~self._had[turned]]
        self.waited[begun] = np.maximum(0.0, now - self.turned[begun])
        self.turned[turned] = seen_at
        self.turned[begun] = now
        self._had[live] = has
        return True

    def must(
        self, live: Ints, held: Ints, nodes: int, now: float, least: Callable[[int], int] | None = None
    ) -> frozenset[int]:
        """The jobs that must have nodes now: those on their turn, then the longest waiting, as far as nodes reach.
        `held`: what they hold at this look, less pilots that leave at it, which end a turn and begin no wait.
        `least(job)`: the fewest nodes that it may have at this moment, where these may not be its fewest ever."""
        if self._max_wait_s <= 0 or not len(live):
            return frozenset()
        waits = Waits(live, held > 0, self._had[live], self.turned[live], self.waited[live])

        def fewest(job: int, left: int) -> int:
            fewest_of_job = int(self._least[job]) if least is None else least(job)
            return fewest_of_job if fewest_of_job <= left else 0

        return on_turn_or_starving(waits, nodes, now, self._max_wait_s, self._turn_s, fewest)

    def next_change(self, live: Ints, now: float) -> float:
        """When a job will have waited too long, or its turn ends."""
        if self._max_wait_s <= 0 or not len(live):
            return math.inf
        has = self._had[live]
        on_turn = has & (self.waited[live] >= self._max_wait_s)
        moments = self.turned[live] + np.where(on_turn, self._turn_s, np.where(has, math.inf, self._max_wait_s))
        moments = moments[moments > now]
        return float(moments.min(initial=math.inf))
