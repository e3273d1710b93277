"""The smallest reserve that keeps what the site promises its main queue.

A main job that finds its nodes in the reserve starts as if there were no pilots. Any other waits for x seconds: the
daemon's look, the worker's leaving, the epilog. If backfill comes meanwhile, which it does to the share
q = min(1, x / C) of jobs at random phases of a cycle of C seconds, the job waits for the next cycle, too (measured:
docs/figures.md). With a reserve of r nodes, F(r) of the jobs find theirs in it, so

    P(delay <= b) = F(r) + (1 - F(r)) G(b),    G(b) = mean over x of  (1 - q) [x <= b] + q [x + C <= b]

F is counted on jobs that have arrived, and its lower confidence bound is taken (Wilson 1927, one-sided), so that few
jobs make a large reserve. Every term falls or rises with r one way, so the smallest sufficient r is found by halving,
and a tighter promise never has a smaller one. All nodes without a main job are always enough.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from malletrain.decide.promise.main_arrivals import HourDemands

#: The share of main jobs that `main_delay_p95` is promised to.
P95 = 0.95

#: Seconds that a node takes to be free while nothing has been measured: leaving and a long epilog.
UNKNOWN_YIELD_S = 70.0

#: Stepping back is halving the share that may be missed; so often at most.
MAX_STEPS_BACK = 6


@dataclass(frozen=True, slots=True)
class MainPromise:
    """What the site promises; None: nothing of that kind. `chance`: with which it is to be kept.

    Attributes:
        p95_s: 95 % of main jobs start at most so much later than without pilots (seconds).
        cycle_ratio: slurmctld's main cycle takes at most so many times as long as without pilots; the number of
            pilots that this allows is learnt, up to `most_pilots`.
        harmless_cycles: also cycles that harm nobody are within it, however short the ones without pilots are.
    """

    p95_s: float | None = None
    cycle_ratio: float | None = None
    chance: float = 0.9
    most_pilots: int = 5000
    harmless_cycles: bool = False

    @property
    def holds_nodes(self) -> bool:
        """Whether it asks for a reserve."""
        return self.p95_s is not None


@dataclass(frozen=True, slots=True)
class YieldTimes:
    """How long nodes take to be free for a main job (seconds each, from the job's arrival on), and C. `expected_s`
    stands for `took_s` while there are none."""

    took_s: Sequence[float] = ()
    cycle_s: float = 30.0
    expected_s: float = UNKNOWN_YIELD_S

    def _waits(self) -> list[tuple[float, float]]:
        cycle = max(self.cycle_s, 0.0)
        times = self.took_s or (self.expected_s,)
        return [(x, min(1.0, x / cycle) if cycle else 0.0) for x in times]

    def within(self, bound_s: float) -> float:
        """G(b): the share of those that wait for pilots that wait for at most `bound_s`."""
        waits = self._waits()
        return sum((1 - q) * (x <= bound_s) + q * (x + self.cycle_s <= bound_s) for x, q in waits) / len(waits)


@dataclass(frozen=True, slots=True)
class PromisedReserve:
    """`nodes` stay idle, for `reason`; at least the share `expected` of main jobs finds its nodes there."""

    nodes: int
    reason: str
    expected: float


def lower_share(hits: int, of: int, chance: float) -> float:
    """The share that `hits` of `of` show with this chance at least (Wilson's one-sided bound)."""
    if of == 0 or hits == 0:
        return 0.0
    z2 = NormalDist().inv_cdf(chance) ** 2
    share = hits / of
    spread = math.sqrt(z2 * share * (1 - share) / of + z2 * z2 / (4 * of * of))
    return max(0.0, (share + z2 / (2 * of) - spread) / (1 + z2 / of))


def promised_reserve(
    promise: MainPromise, hour: HourDemands, times: YieldTimes, at_hand: int, steps_back: int = 0
) -> PromisedReserve:
    """How many of the `at_hand` nodes without a main job stay idle.

    `steps_back`: each halves what may be missed, because the promise was not kept lately.
    """
    needed = hour.needed(at_hand)
    back = min(max(0, steps_back), MAX_STEPS_BACK)
    share = _least_share(promise, times, back)
    words = _words(promise) + (f", {back} steps stricter since it was not kept lately" if back else "")
    if share <= 0.0:
        return PromisedReserve(0, f"{words}: pilots leave quickly enough without a reserve", 0.0)
    if not needed and not hour.demands:
        return PromisedReserve(at_hand, f"{words}: no main job's arrival is known yet, so all nodes stay idle", 1.0)
    low, high = 0, at_hand
    while low < high:
        middle = (low + high) // 2
        if lower_share(bisect_right(needed, middle), len(needed), promise.chance) >= share:
            high = middle
        else:
            low = middle + 1
    found = lower_share(bisect_right(needed, low), len(needed), promise.chance) if low < at_hand else 1.0
    seen = f"{len(needed)} jobs {hour.which} that {at_hand} nodes do for"
    if low >= at_hand:
        why = f"{words}: {share:.1%} of jobs must find nodes idle, and {seen} show no smaller reserve that does it"
    else:
        why = f"{words}: {share:.1%} of jobs must find nodes idle, and at least {found:.1%} do by {seen}"
    return PromisedReserve(low, why, found)


def reserve_curve(
    promise: MainPromise,
    hour: HourDemands,
    times: YieldTimes,
    at_hand: Sequence[tuple[int, float]],
    bounds_s: Sequence[float],
) -> list[tuple[float, float, float]]:
    """What each bound on the 95th percentile costs: (bound, mean nodes in reserve, share of harvest that is left).

    `at_hand`: numbers of nodes without a main job, each with its weight.
    """
    total = sum(nodes * weight for nodes, weight in at_hand)
    weights = sum(weight for _, weight in at_hand)
    points = []
    for bound in bounds_s:
        one = replace(promise, p95_s=bound)
        held = sum(promised_reserve(one, hour, times, nodes).nodes * weight for nodes, weight in at_hand)
        points.append((bound, held / weights if weights else 0.0, 1 - held / total if total else 0.0))
    return points


def _least_share(promise: MainPromise, times: YieldTimes, steps_back: int) -> float:
    """The share of jobs that must find their nodes idle: P(delay <= b) >= 95 % solved for F(r)."""
    if promise.p95_s is None:
        return 0.0
    missed, soon = (1 - P95) * 0.5**steps_back, times.within(promise.p95_s)
    return 1.0 - missed / (1 - soon) if 1 - soon > missed else 0.0


def _words(promise: MainPromise) -> str:
    said = "nothing" if promise.p95_s is None else f"main_delay_p95 = {promise.p95_s:g} s"
    return f"[promise] {said} with a chance of {promise.chance:.0%}"
