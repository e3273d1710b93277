"""Open holes as the daemon sees them, and how long each probably lasts: by the daemon's own forecast, in columns.

A daemon looks at its ticks, so nodes that became idle since the last one are a cohort that begins at the next
(`malletrain.loop.trackers.hole_history`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from malletrain.learn.hole_forecast import FADE_INTERVAL_S, Forecast, HoleHistory

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class HoleRecords:
    """When the hole of each node began and with how many others, and what was learnt of holes so far."""

    def __init__(self, nodes: int) -> None:
        self.began: Floats = np.zeros(nodes)
        self._cohort: Ints = np.full(nodes, -1, np.int64)
        self._began: list[float] = []
        self._size: list[int] = []
        self._history = HoleHistory()
        self._forecast: tuple[float, Forecast] | None = None

    def opened(self, nodes: Ints, seen_at: float) -> None:
        """These nodes are idle; the daemon sees it at `seen_at`. The first have been open for an unknown time."""
        if not len(nodes):
            return
        if not self._began or self._began[-1] != seen_at:
            self._began.append(seen_at)
            self._size.append(0)
        self._size[-1] += len(nodes)
        self._cohort[nodes] = len(self._began) - 1
        self.began[nodes] = seen_at

    def ended(self, nodes: Ints, at: float) -> None:
        """The main queue took these nodes."""
        for cohort, count in zip(*np.unique(self._cohort[nodes], return_counts=True), strict=True):
            lasted = at - self._began[cohort]
            if cohort > 0 and lasted > 0:  # less: it came and went between two looks
                self._history.add(at, lasted, self._size[cohort], taken=True, nodes=int(count))
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
        """The forecast, made anew as often as what it learns from fades."""
        if self._forecast is None or now - self._forecast[0] >= FADE_INTERVAL_S:
            cohorts, counts = np.unique(self._cohort[self._cohort > 0], return_counts=True)
            still = [
                (now - self._began[c], self._size[c], n)
                for c, n in zip(cohorts.tolist(), counts.tolist(), strict=True)
            ]
            self._forecast = (now, self._history.forecast(still))
        return self._forecast[1]
