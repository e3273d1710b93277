"""How many of the nodes there are will still be there later: what policy `ladder` plans with.

What tells most about a hole's rest is its age: the hazard (chance a second that the main queue takes the node) falls
as a hole grows old. It is constant within bins of age.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

from malletrain.domain.decision import Hole, OpenHole

#: Where the bins of age begin (s). The last has no end.
AGES_S = (0.0, 90.0, 150.0, 240.0, 360.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0)

#: Departures per second at each age: those of 14,683 cohorts on Summit in February 2021 (the log of arXiv
#: 2106.12091). It lacks holes under 70 s: the first bin is as the second.
HAZARDS = (41e-4, 41e-4, 27e-4, 19.6e-4, 12.9e-4, 9.4e-4, 6.6e-4, 5.1e-4, 3.4e-4, 3.0e-4, 0.7e-4, 0.3e-4)

#: Where the periods end (s from now): short first, since holes are lost fastest when they are young.
PERIOD_ENDS_S = (60.0, 180.0, 600.0, 1800.0)


def survival(age_s: float, seconds: float) -> float:
    """The chance that a hole of age `age_s` lasts `seconds` more."""
    now = bisect_right(AGES_S, max(0.0, age_s)) - 1
    exposure, begin = 0.0, 0.0
    for b in range(now, len(AGES_S)):
        end = AGES_S[b + 1] - max(0.0, age_s) if b + 1 < len(AGES_S) else math.inf
        exposure += HAZARDS[b] * max(0.0, min(seconds, end) - begin)
        if seconds <= end:
            break
        begin = end
    return math.exp(-exposure)


def lifetimes(alike: Iterable[tuple[float, float, int]], nodes: int) -> tuple[tuple[float, int], ...]:
    """(end of the period, nodes that are there in it on average) for each of PERIOD_ENDS_S; at most `nodes`.

    `alike`: for nodes that are alike, how old their holes are, after how many seconds their plan ends them in any
    case, and how many there are.
    """
    known = list(alike)
    found: list[tuple[float, int]] = []
    begin, most = 0.0, nodes
    for end in PERIOD_ENDS_S:
        there = sum(n * (_there(age, plan, begin) + _there(age, plan, end)) / 2 for age, plan, n in known)
        most = min(most, int(there + 0.5))
        found.append((end, most))
        begin = end
    return tuple(found)


def lifetimes_of_holes(
    holes: Iterable[Hole], open_holes: Mapping[str, OpenHole], now: float, nodes: int
) -> tuple[tuple[float, int], ...]:
    """As `lifetimes`, of holes; one whose begin is not known counts as new."""
    alike: Counter[tuple[float, float]] = Counter()
    for hole in holes:
        opened = open_holes.get(hole.node)
        alike[0.0 if opened is None else now - opened.began, hole.until - now] += 1
    return lifetimes(((age, plan, n) for (age, plan), n in alike.items()), nodes)


def _there(age_s: float, plan_s: float, seconds: float) -> float:
    return survival(age_s, seconds) if seconds < plan_s else 0.0
