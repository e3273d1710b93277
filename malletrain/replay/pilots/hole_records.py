"""Open holes as the daemon sees them: which nodes became idle together, in columns.

A daemon looks at its ticks: nodes that became idle since the last one are a cohort that begins there, and a hole ends
at the look that finds its node busy (`malletrain.loop.trackers.hole_history`).
"""

from __future__ import annotations

import copy
import math

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.options import NodeOrder, Options

Floats = NDArray[np.float64]


def has_cohorts(options: Options) -> bool:
    """Whether the daemon tells apart which nodes became idle together: for wide pilots."""
    return options.order is NodeOrder.NAME and options.max_nodes > 1


class HoleRecords:
    """When the hole of each node began."""

    def __init__(self, nodes: int) -> None:
        self.began: Floats = np.zeros(nodes)
        self._is_open = np.zeros(nodes, np.bool_)
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
        self.began[idle & ~self._is_open] = at
        self._is_open = idle.copy()
