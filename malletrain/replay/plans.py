"""What the main queue's plan says of each node: when it is next wanted. The daemon reads the same from squeue."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """From `time[i]` on, in order of time, node `node[i]` is next wanted at `start[i]` (inf: never)."""

    time: Floats
    node: NDArray[np.int32]
    start: Floats


class PlanBook:
    """The plan as it stands at the last moment asked for."""

    def __init__(self, changes: PlanChanges | None, nodes: int) -> None:
        self._changes = changes
        self._next = 0
        self.wanted_at: Floats = np.full(nodes, math.inf)

    def next_change(self) -> float:
        """When the plan next changes."""
        changes = self._changes
        return math.inf if changes is None or self._next >= len(changes.time) else float(changes.time[self._next])

    def tell(self, now: float) -> NDArray[np.int64]:
        """The nodes whose plan has changed by `now`."""
        changes = self._changes
        if changes is None or self.next_change() > now:
            return np.empty(0, np.int64)
        stop = int(np.searchsorted(changes.time, now, side="right"))
        nodes = changes.node[self._next : stop].astype(np.int64)
        self.wanted_at[nodes] = changes.start[self._next : stop]  # the last word on a node stands
        self._next = stop
        return np.unique(nodes)
