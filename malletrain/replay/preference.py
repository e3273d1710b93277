"""Which of several nodes a job would rather have, by the rule that was asked for (`NodeOrder`)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.options import NodeOrder

Ints = NDArray[np.int64]


class Nodes(Protocol):
    """What is looked at: by node, when its pilot started."""

    started: NDArray[np.float64]
    now: float


class Preference:
    """The order of nodes. `lives`: how long they stay idle, where the rule goes by that."""

    def __init__(self, nodes: Nodes, order: NodeOrder, lives: Lives | None) -> None:
        self._of, self._order, self._lives = nodes, order, lives

    def best_first(self, nodes: Ints) -> Ints:
        """Nodes in the order in which jobs want them."""
        if self._lives is not None:
            return nodes[np.lexsort((nodes, -self._lives.ends(nodes, self._of.now)))]
        return np.sort(nodes)

    def longest_first(self, mine: Ints) -> Ints:
        """A job's nodes, those first that it keeps longest: until their pilots' limits."""
        return mine[np.lexsort((mine, -self._of.started[mine]))]

    def given_up(self, mine: Ints, count: int) -> Ints:
        """Those of a job's nodes that it gives up when it has to give up so many."""
        if self._lives is not None:
            return self.best_first(mine)[::-1][:count]
        if self._order is NodeOrder.GROUP:
            return mine[::-1][:count]
        return mine[np.lexsort((-mine, self._of.started[mine]))[:count]]


class Lives:
    """What only the log shows: when each idle node is next taken."""

    def __init__(self, trace: ClusterTrace) -> None:
        holes = trace.intervals()
        self._start, self._span, self._end = trace.start, trace.seconds + 1.0, holes.end
        self._key = holes.node * self._span + (holes.begin - trace.start)

    def ends(self, nodes: Ints, now: float) -> NDArray[np.float64]:
        """When the holes end in which the nodes are now."""
        at = np.searchsorted(self._key, nodes * self._span + (now - self._start), side="right") - 1
        ends: NDArray[np.float64] = self._end[at]
        return ends
