"""How wide the band beyond the measured sizes is, as a part of what the mixture of shapes says.

Where the batch a node is fixed, throughput on n nodes is n / (1 + c): c is the time of a step that does not train,
over the time that one node computes. d log(n / (1 + c)) = -(1 - efficiency) d log c: an overhead that turns out
another by some factor moves log throughput in proportion to what is lost, 1 - efficiency. The mixture knows little of
that, since its misfits are parts of the throughput, whatever of it is lost: its band was too wide for jobs that lose
little, and too narrow for those that lose much (docs/figures.md has the figures behind the constants).
"""

from __future__ import annotations

from malletrain.learn.curve_families import Scaling

#: Width of the band where the batch a node is fixed: so many times the part that is lost, and the least of it.
WIDTH_OVER_LOSS, MIN_LOSS = 2.2, 0.08
#: Width of the band where the total batch is fixed: the largest that holds no more than .95 of the only such set.
STRONG_WIDTH = 0.85


def width_factor(scaling: Scaling | None, efficiency: float) -> float:
    """What the mixture's band is multiplied by, over log throughput, on a size larger than any that was measured.
    `efficiency`: the expected throughput a node over that of one node, which was measured."""
    if scaling is Scaling.WEAK:
        return WIDTH_OVER_LOSS * (max(1.0 - efficiency, 0.0) + MIN_LOSS)
    return STRONG_WIDTH if scaling is Scaling.STRONG else 1.0
