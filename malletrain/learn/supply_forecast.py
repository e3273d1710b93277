"""How many of the nodes there are will still be there later: what policy `ladder` plans with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from malletrain.domain.decision import Hole, OpenHole
from malletrain.learn.hole_forecast import Forecast, RemainingLife

#: Where the periods end (s from now): short first, since holes are lost fastest when they are young.
PERIOD_ENDS_S = (60.0, 180.0, 600.0, 1800.0)


def lifetimes(rests: Iterable[tuple[RemainingLife, float, int]], nodes: int) -> tuple[tuple[float, int], ...]:
    """(end of the period, nodes that are there in it on average) for each of PERIODS_S; at most `nodes`.

    `rests`: for nodes that are alike, how long they probably last, after how many seconds their plan ends them in any
    case, and how many there are.
    """
    known = list(rests)
    found: list[tuple[float, int]] = []
    begin, most = 0.0, nodes
    for end in PERIOD_ENDS_S:
        there = sum(n * (_there(rest, plan, begin) + _there(rest, plan, end)) / 2 for rest, plan, n in known)
        most = min(most, int(there + 0.5))
        found.append((end, most))
        begin = end
    return tuple(found)


def lifetimes_of_holes(
    holes: Iterable[Hole], open_holes: Mapping[str, OpenHole], forecast: Forecast, now: float, nodes: int
) -> tuple[tuple[float, int], ...]:
    """As `lifetimes`, of holes; one whose begin is not known counts as new."""
    alike: Counter[tuple[float, int, float]] = Counter()
    for hole in holes:
        opened = open_holes.get(hole.node)
        age, cohort = (0.0, 1) if opened is None else (now - opened.began, opened.cohort)
        alike[age, cohort, hole.until - now] += 1
    return lifetimes(((forecast.remaining(a, c), plan, n) for (a, c, plan), n in alike.items()), nodes)


def _there(rest: RemainingLife, plan_s: float, seconds: float) -> float:
    return rest.survival(seconds) if seconds < plan_s else 0.0
