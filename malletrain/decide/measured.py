"""The curve that decisions use: what was measured stays, and growth beyond it is assumed nearly linear."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from malletrain.domain.job import Curve, ThroughputSample

#: Assumed of sizes larger than any measured: rate ~ n^0.9. Between the published ImageNet curves (0.93-0.99) and
#: Pollux's (0.6-0.9); a hopeful value costs one resize that is then measured, a timid one is never found out.
ASSUMED_EXPONENT = 0.9


def curve_of(samples: Sequence[ThroughputSample], max_nodes: int) -> Curve | None:
    """The scalability curve of a job from its windows of training; None before the first window.

    Each measured size stands at the median of its windows; sizes between are interpolated by `Curve`, the largest
    permitted size is assumed at `ASSUMED_EXPONENT` from the largest measured one, and one node, when smaller sizes
    were never tried, likewise.
    """
    by_size: dict[int, list[float]] = {}
    for sample in samples:
        if sample.nodes > 0 and sample.rate > 0:
            by_size.setdefault(sample.nodes, []).append(sample.rate)
    if not by_size:
        return None
    points = {size: median(rates) for size, rates in by_size.items()}
    smallest, largest = min(points), max(points)
    if smallest > 1:
        points[1] = points[smallest] / smallest**ASSUMED_EXPONENT
    if largest < max_nodes:
        points[max_nodes] = points[largest] * (max_nodes / largest) ** ASSUMED_EXPONENT
    return Curve(tuple(sorted(points.items())))
