"""How long idle nodes stay idle: what no policy can know, for the clairvoyant baseline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.cluster_trace import ClusterTrace

Ints = NDArray[np.int64]


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
