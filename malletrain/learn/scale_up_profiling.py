"""Scale-up profiling: the sizes at which a world of unknown scalability is measured while it grows. Pure.

When a job starts, its nodes get ready at about the same moment. Instead of joining all at once they join in stages:
one node trains for a window, then eight, then more. Nothing is moved, and no other job gives up nodes. It costs
what the waiting nodes do not train in some seconds, once for an application, and it shows what starting large never
does: what one node trains, by which the allocation weighs jobs, and a size on the way to where the peak is. A stop on
a few nodes costs nearly all that the target would train, so there is one of them; where the step from one stop to the
next scaled well, the target itself is measured next. So it is after one node where the target is half of all that the
job may ever have: nodes are no scarce good then, and how the job scales in between decides little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

#: The second stop over the first. In half hours with ImageNet and Pollux models jobs train more with 8 than with 2.
SECOND_STOP_RATIO = 8
#: From this scaling exponent on, the next nodes are taken to bring about the same: the way to the target is free.
STEEP_EXPONENT = 0.85
#: The target is at least this many times the last measurement size: nearer ones show nothing.
MIN_TARGET_RATIO = 1.5
#: A target of this part of the job's most nodes is measured right after one node. In half hours with ImageNet models
#: jobs train more so than with a stop at 8.
AMPLE_PART = 0.5


def next_measurement_size(
    rates: Mapping[int, float], target: int, permits: Callable[[int], bool], most: int | None = None
) -> int | None:
    """The size to stop at next on the way to `target` nodes; None when the way is free.

    `rates`: samples/s of the sizes that were stopped at so far, each above zero; `permits`: whether the job may have
    a size; `most`: the most nodes that it may have at any time, None where that is not known.
    """
    if rates and most is not None and target >= AMPLE_PART * most:
        return None
    if not rates:
        least = 1
    else:
        last = max(rates)
        before = max((n for n in rates if n < last), default=None)
        if before is None:
            least = last * SECOND_STOP_RATIO
        elif math.log(rates[last] / rates[before]) >= STEEP_EXPONENT * math.log(last / before):
            return None
        else:
            least = last * 2
    return next((n for n in range(least, math.floor(target / MIN_TARGET_RATIO) + 1) if permits(n)), None)
