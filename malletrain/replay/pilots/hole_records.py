"""Open holes as the daemon sees them, and how long each probably lasts: by the daemon's own forecast, in columns.

A daemon looks at its ticks: nodes that became idle since the last one are a cohort that begins there, and a hole ends
at the look that finds its node busy (`malletrain.loop.trackers.hole_history`).
"""

from __future__ import annotations

import copy
import math

import numpy as np
from numpy.typing import NDArray

from malletrain.learn.hole_forecast import Forecast, HoleHistory
from malletrain.replay.options import NodeOrder, Options

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def has_cohorts(options: Options) -> bool:
    """Whether the daemon tells apart which nodes became idle together: for its forecast, and for wide pilots."""
    return options.order is NodeOrder.FORECAST or (options.order is NodeOrder.NAME and options.max_nodes > 1)


class HoleRecords:
    """When the hole of each node began and with how many others, and what was learnt of holes so far."""

    def __init__(self, nodes: int, start: float) -> None:
        """Holes that are open at `start` have been so for an unknown time."""
        self.began: Floats = np.zeros(nodes)
        self._start = start
        self._cohort: Ints = np.full(nodes, -1, np.int64)
        self._began: list[float] = []
        self._size: list[int] = []
        #: Nodes of each cohort that was seen whole whose holes are open.
        self._open: dict[int, int] = {}
        self._history = HoleHistory()
        self._forecast: tuple[float, Forecast] | None = None
        self._due = math.inf

    def change(self, at: float, idle: NDArray[np.bool_], look_at: float) -> None:
        """Nodes change at `at`, and were `idle` or not until then; the daemon sees it when it looks at `look_at`."""
        if self._due < at:
            self.look(idle, self._due)
        self._due = look_at

    def until(self, idle: NDArray[np.bool_], at: float) -> HoleRecords:
        """A copy of what the daemon has seen before `at`, for a replay that begins there; nodes are `idle` or not."""
        if self._due < at:
            self.look(idle, self._due)
        return copy.deepcopy(self)

    def look(self, idle: NDArray[np.bool_], at: float) -> None:
        """The daemon looks at `at` (seconds), at the latest, and sees which nodes are idle or held by pilots."""
        if at < self._due:
            return
        at, self._due = self._due, math.inf
        open_ = self._cohort >= 0
        self._ended(np.flatnonzero(open_ & ~idle), at)
        self._opened(np.flatnonzero(idle & ~open_), at)

    def _opened(self, nodes: Ints, at: float) -> None:
        if not len(nodes):
            return
        if at > self._start:
            self._open[len(self._began)] = len(nodes)
        self._cohort[nodes] = len(self._began)
        self._began.append(at)
        self._size.append(len(nodes))
        self.began[nodes] = at

    def _ended(self, nodes: Ints, at: float) -> None:
        for cohort, count in zip(*(each.tolist() for each in np.unique(self._cohort[nodes], return_counts=True)),
                                 strict=True):  # fmt: skip
            if cohort in self._open:
                self._history.add(at, at - self._began[cohort], self._size[cohort], taken=True, nodes=count)
                self._open[cohort] -= count
                if not self._open[cohort]:
                    del self._open[cohort]
        self._cohort[nodes] = -1

    def expected_s(self, nodes: Ints, now: float, longest_s: float) -> Floats:
        """Seconds that the hole of each node probably lasts, at most `longest_s`."""
        forecast = self._now(now)
        cohorts, which = np.unique(self._cohort[nodes], return_inverse=True)
        lasts = [
            forecast.expected_remaining_s(now - self._began[c], self._size[c], longest_s) if c >= 0 else 0.0
            for c in cohorts.tolist()
        ]
        return np.array(lasts)[which] if lasts else np.zeros(0)

    def _now(self, now: float) -> Forecast:
        """What the daemon expects when it looks `now`."""
        if self._forecast is None or self._forecast[0] != now:
            still = ((now - self._began[c], self._size[c], nodes) for c, nodes in self._open.items())
            self._forecast = (now, self._history.forecast(still))
        return self._forecast[1]
