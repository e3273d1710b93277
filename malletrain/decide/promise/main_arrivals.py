"""When main jobs arrive and how wide they are: what a reserve must hold at this hour of this weekday."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

#: An hour of the week is judged by itself from so many jobs on: with fewer, no share of 95 % can be shown with a
#: chance of 90 % (Wilson's bound needs 32 without a single miss).
LEAST_JOBS = 50


@dataclass(frozen=True, slots=True)
class MainArrival:
    """A main job: when it was submitted (Unix seconds), and its nodes."""

    at: float
    width: int


@dataclass(frozen=True, slots=True)
class ArrivalDemand:
    """`width`: nodes of one main job; `nodes`: those and the ones that jobs before it have taken while the reserve
    was not full again: the reserve must be as large for the job to wait for no pilot."""

    at: float
    width: int
    nodes: int


@dataclass(frozen=True, slots=True)
class HourDemands:
    """The demands that count at an hour. `which` says of which hours they are."""

    demands: Sequence[ArrivalDemand]
    which: str
    cache: dict[int, tuple[int, ...]] = field(default_factory=dict, compare=False)

    def needed(self, at_hand: int) -> tuple[int, ...]:
        """Of the jobs that `at_hand` nodes without a main job would do for, the reserve that each needs, ascending.

        Never more than `at_hand`: what goes beyond waits for main jobs, with pilots or without.
        """
        found = self.cache.get(at_hand)
        if found is None:
            fit = [min(each.nodes, at_hand) for each in self.demands if each.width <= at_hand]
            found = self.cache[at_hand] = tuple(sorted(fit))
        return found


def demands(arrivals: Sequence[MainArrival], refill_s: float) -> list[ArrivalDemand]:
    """What each arrival asks of the reserve, in the order of time; `refill_s`: in which a reserve is full again."""
    found: list[ArrivalDemand] = []
    lately: deque[MainArrival] = deque()
    taken = 0
    for each in sorted(arrivals, key=lambda arrival: (arrival.at, arrival.width)):
        while lately and lately[0].at < each.at - refill_s:
            taken -= lately.popleft().width
        lately.append(each)
        taken += each.width
        found.append(ArrivalDemand(each.at, each.width, taken))
    return found


def of_hour(every: Sequence[ArrivalDemand], now: float) -> HourDemands:
    """The demands that say most of the hour that `now` is in (UTC): those of the same hour (and the one before and
    after) of the same weekday; where these are too few, of that hour on all days, and else all."""
    at_hour: list[ArrivalDemand] = []
    that_day: list[ArrivalDemand] = []
    here = int(now // 3600)
    for each in every:
        apart = (int(each.at // 3600) - here) % (7 * 24)
        if apart % 24 in (0, 1, 23):
            at_hour.append(each)
            if apart in (0, 1, 7 * 24 - 1):
                that_day.append(each)
    if len(that_day) >= LEAST_JOBS:
        return HourDemands(that_day, "of this hour and weekday")
    if len(at_hour) >= LEAST_JOBS:
        return HourDemands(at_hour, "of this hour")
    return HourDemands(every, "of all hours")
