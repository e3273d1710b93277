"""Which of several nodes a job would rather have, by the rule that was asked for (`NodeOrder`)."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.options import NodeOrder
from malletrain.replay.oracle import Lives
from malletrain.replay.pilots.hole_records import HoleRecords

Ints = NDArray[np.int64]


class Nodes(Protocol):
    """What is looked at: by node, when it fell idle, when its pilot started, and whether that one trains."""

    idle_since: NDArray[np.float64]
    started: NDArray[np.float64]
    warm: NDArray[np.bool_]
    now: float


class Preference:
    """The order of nodes. `lives`: how long they stay idle, where the rule goes by that."""

    def __init__(
        self, nodes: Nodes, order: NodeOrder, lives: Lives | None, holes: HoleRecords | None = None,
        limit_s: float = math.inf, margin_s: float = 0.0,
    ) -> None:  # fmt: skip
        """`holes`: what the daemon's forecast goes by (`NodeOrder.FORECAST`); `limit_s`: the pilots' time limit,
        which ends `margin_s` before a hole does."""
        self._of, self._order, self._lives = nodes, order, lives
        self._holes, self._limit_s, self._longest_s = holes, limit_s, limit_s + margin_s

    def best_first(self, nodes: Ints) -> Ints:
        """Nodes in the order in which jobs want them."""
        if self._lives is not None:
            return nodes[np.lexsort((nodes, -self._lives.ends(nodes, self._of.now)))]
        if self._order is NodeOrder.AGE:
            return nodes[np.lexsort((nodes, self._of.idle_since[nodes]))]
        if self._holes is not None:  # as `decide.placement.rank`
            lasts = self._holes.expected_s(nodes, self._of.now, self._longest_s)
            about = self._about(lasts)
            return nodes[np.lexsort((nodes, self._holes.began[nodes], -lasts, -about))]
        return np.sort(nodes)

    def about(self, nodes: Ints) -> NDArray[np.float64]:
        """Nodes with the same are about equally good."""
        if self._holes is None:
            return np.zeros(len(nodes))
        return self._about(self._holes.expected_s(nodes, self._of.now, self._longest_s))

    @staticmethod
    def _about(lasts: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.floor(np.log2(np.maximum(lasts, 1.0)))
        return found

    def longest_first(self, mine: Ints) -> Ints:
        """A job's nodes, those first that it keeps longest: by forecast, or until their pilots' limits."""
        if self._holes is None:
            return mine[np.lexsort((mine, -self._of.started[mine]))]
        ends = self._of.started[mine] + self._limit_s - self._of.now
        lasts = np.minimum(self._holes.expected_s(mine, self._of.now, self._longest_s), ends)
        return mine[np.lexsort((mine, -lasts))]

    def given_up(self, mine: Ints, count: int) -> Ints:
        """Those of a job's nodes that it gives up when it has to give up so many."""
        if self._lives is not None:
            return self.best_first(mine)[::-1][:count]
        if self._order is NodeOrder.GROUP:
            return mine[::-1][:count]
        if self._holes is not None:
            return self.longest_first(mine)[::-1][:count]
        if self._order is NodeOrder.NAME:
            return mine[np.lexsort((-mine, self._of.started[mine]))[:count]]
        # Nodes that do not train yet cost nothing to give up.
        return mine[np.lexsort((-mine, -self._of.idle_since[mine], self._of.warm[mine]))[:count]]
