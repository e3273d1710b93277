"""What the site promises its main queue: the smallest reserve that keeps `main_delay_p95`, and as many pilots as
`controller_cycle` bears.

A main job that finds its nodes in the reserve starts as if there were no pilots. Any other waits for x seconds: the
daemon's look, the worker's leaving, the epilog. If backfill comes meanwhile, which it does to the share
q = min(1, x / C) of jobs at random phases of a cycle of C seconds, the job waits for the next cycle, too. With a
reserve of r nodes, F(r) of the jobs find theirs in it, so

    P(delay <= b) = F(r) + (1 - F(r)) G(b),    G(b) = mean over x of  (1 - q) [x <= b] + q [x + C <= b]

F is the lower confidence bound (Wilson 1927, one-sided) of what is counted on jobs that have arrived, so that few
jobs make a large reserve. Where the promise was not kept, the share that may be missed is halved.

slurmctld tries the first blocked job of each main partition against every pilot; what that costs depends on the
queue. So the cap is learnt: while cycles are within the budget and all pilots allowed are there, a few more are
allowed; beyond it, a third fewer (AIMD: Chiu and Jain 1989; docs/adr/0021-harmless-cycles.md).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, median
from typing import NamedTuple

#: An hour of the week is judged by itself from so many jobs on: with fewer, no share of 95 % can be shown with a
#: chance of 90 % (Wilson's bound needs 32 without a single miss).
LEAST_JOBS = 50

#: The share of main jobs that `main_delay_p95` is promised to, and the chance with which a promise is kept.
P95, CHANCE = 0.95, 0.9

#: Seconds that a node takes to be free while nothing has been measured: leaving and a long epilog.
UNKNOWN_YIELD_S = 70.0

#: Stepping back is halving the share that may be missed, so often at most; after so many jobs that kept the promise
#: the daemon takes one step back again.
MAX_STEPS_BACK, JOBS_PER_STEP = 6, 50

#: From so many main jobs that pilots gave way to it is known how long they take to leave: one may have been slow.
ENOUGH_YIELDS = 20

#: A request of slurmctld's waits for a main cycle that runs when it comes; so long (seconds) is harmless, and so is
#: this part of slurmctld's time in all main cycles.
HARMLESS_CYCLE_S, HARMLESS_SHARE = 0.02, 0.01

#: So many looks make a verdict: one long cycle has other causes. And so many cycles without pilots are kept.
LOOKS_PER_VERDICT, KEPT_ALONE = 3, 60

#: What is added to the cap at a time: this many, or this part of it, whichever is more; what is left of it after
#: cycles beyond the budget; and its least: the daemon still learns how cycles take pilots.
LEAST_STEP, STEP_SHARE, DECREASE, LEAST_PILOTS = 2, 0.05, 0.67, 1


class MainArrival(NamedTuple):
    """A main job: when it was submitted (Unix seconds), and its nodes."""

    at: float
    width: int


class ArrivalDemand(NamedTuple):
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
        """Of the jobs that `at_hand` nodes without a main job would do for, the reserve that each needs, ascending;
        never more: what goes beyond waits for main jobs, with pilots or without."""
        if at_hand not in self.cache:
            fit = [min(each.nodes, at_hand) for each in self.demands if each.width <= at_hand]
            self.cache[at_hand] = tuple(sorted(fit))
        return self.cache[at_hand]


def demands(arrivals: Sequence[MainArrival], refill_s: float) -> list[ArrivalDemand]:
    """What each arrival asks of the reserve, in the order of time; `refill_s`: in which a reserve is full again."""
    found: list[ArrivalDemand] = []
    recent: deque[MainArrival] = deque()
    taken = 0
    for each in sorted(arrivals):
        while recent and recent[0].at < each.at - refill_s:
            taken -= recent.popleft().width
        recent.append(each)
        taken += each.width
        found.append(ArrivalDemand(each.at, each.width, taken))
    return found


def of_hour(every: Sequence[ArrivalDemand], now: float) -> HourDemands:
    """The demands that say most of the hour that `now` is in (UTC): those of the same hour (and the one before and
    after) of the same weekday; where these are too few, of that hour on all days, and else all."""
    here, week = int(now // 3600), 7 * 24
    apart = [(each, (int(each.at // 3600) - here) % week) for each in every]
    at_hour = [each for each, hours in apart if hours % 24 in (0, 1, 23)]
    that_day = [each for each, hours in apart if hours in (0, 1, week - 1)]
    for some, which in ((that_day, "of this hour and weekday"), (at_hour, "of this hour")):
        if len(some) >= LEAST_JOBS:
            return HourDemands(some, which)
    return HourDemands(every, "of all hours")


class YieldTimes(NamedTuple):
    """How long nodes take to be free for a main job (seconds each, from the job's arrival on), and C. `expected_s`
    stands for `took_s` while there are none."""

    took_s: Sequence[float] = ()
    cycle_s: float = 30.0
    expected_s: float = UNKNOWN_YIELD_S

    def within(self, bound_s: float) -> float:
        """G(b): the share of those that wait for pilots that wait for at most `bound_s`."""
        cycle, times = max(self.cycle_s, 0.0), self.took_s or (self.expected_s,)
        waits = [(x, min(1.0, x / cycle) if cycle else 0.0) for x in times]
        return sum((1 - q) * (x <= bound_s) + q * (x + self.cycle_s <= bound_s) for x, q in waits) / len(waits)


class PromisedReserve(NamedTuple):
    """`nodes` stay idle, for `reason`."""

    nodes: int
    reason: str


def lower_share(hits: int, of: int, chance: float = CHANCE) -> float:
    """The share that `hits` of `of` show with this chance at least (Wilson's one-sided bound)."""
    if of == 0 or hits == 0:
        return 0.0
    z2 = NormalDist().inv_cdf(chance) ** 2
    share = hits / of
    spread = math.sqrt(z2 * share * (1 - share) / of + z2 * z2 / (4 * of * of))
    return max(0.0, (share + z2 / (2 * of) - spread) / (1 + z2 / of))


def promised_reserve(
    bound_s: float, hour: HourDemands, times: YieldTimes, at_hand: int, steps_back: int = 0
) -> PromisedReserve:
    """How many of the `at_hand` nodes without a main job stay idle for `main_delay_p95` to be at most `bound_s`;
    each of `steps_back` halves what may be missed."""
    needed = hour.needed(at_hand)
    back = min(max(0, steps_back), MAX_STEPS_BACK)
    missed, soon = (1 - P95) * 0.5**back, times.within(bound_s)
    # The share of jobs that must find their nodes idle: P(delay <= b) >= 95 % solved for F(r).
    share = 1.0 - missed / (1 - soon) if 1 - soon > missed else 0.0
    words = f"[promise] main_delay_p95 = {bound_s:g} s with a chance of {CHANCE:.0%}"
    words += f", {back} steps stricter since it was not kept lately" if back else ""
    if share <= 0.0:
        return PromisedReserve(0, f"{words}: pilots leave quickly enough without a reserve")
    if not needed and not hour.demands:
        return PromisedReserve(at_hand, f"{words}: no main job's arrival is known yet, so all nodes stay idle")

    def shown_by(reserve: int) -> float:
        return lower_share(bisect_right(needed, reserve), len(needed))

    least = bisect_left(range(at_hand), share, key=shown_by)
    seen = f"{len(needed)} jobs {hour.which} that {at_hand} nodes do for"
    shown = f"{seen} show no smaller reserve that does it"
    if least < at_hand:
        shown = f"at least {shown_by(least):.1%} do by {seen}"
    return PromisedReserve(least, f"{words}: {share:.1%} of jobs must find nodes idle, and {shown}")


def reserve_curve(
    hour: HourDemands, times: YieldTimes, at_hand: Sequence[int], bounds_s: Sequence[float]
) -> list[tuple[float, float, float]]:
    """What each bound on the 95th percentile costs: (bound, mean nodes in reserve, share of harvest that is left).
    `at_hand`: numbers of nodes without a main job."""
    points, total = [], sum(at_hand)
    for bound in bounds_s:
        held = sum(promised_reserve(bound, hour, times, nodes).nodes for nodes in at_hand)
        points.append((bound, held / max(1, len(at_hand)), 1 - held / total if total else 0.0))
    return points


@dataclass(frozen=True, slots=True)
class PromiseKept:
    """How many main jobs arrived, and how much later those that waited for pilots started (seconds each)."""

    jobs: int
    delays_s: Sequence[float] = ()

    def late(self, bound_s: float) -> int:
        """How many were later than that."""
        return sum(each > bound_s for each in self.delays_s)

    def shows_kept(self, bound_s: float) -> bool:
        """Whether these jobs show the promise to be kept, with its chance."""
        return lower_share(self.jobs - self.late(bound_s), self.jobs) >= P95

    @property
    def delay_p95_s(self) -> float:
        """The delay that 95 % of the jobs did not exceed."""
        behind = int((1 - P95) * self.jobs)
        ordered = sorted(self.delays_s, reverse=True)
        return ordered[behind] if behind < len(ordered) else 0.0

    @property
    def delay_mean_s(self) -> float:
        """The mean over all jobs, those with no delay included."""
        return sum(self.delays_s) / self.jobs if self.jobs else 0.0


def why_broken(bound_s: float | None, seen: PromiseKept) -> str:
    """That these jobs show the promise of `bound_s` seconds to be broken, with its chance; "" where not."""
    late = 0 if bound_s is None else seen.late(bound_s)
    if lower_share(late, seen.jobs) <= 1 - P95:
        return ""
    return f"{late} of {seen.jobs} main jobs started more than {bound_s:g} s later for pilots"


def next_step(bound_s: float | None, seen: PromiseKept, steps: int) -> tuple[int, str]:
    """How many steps back the daemon is from now on, by the jobs since the last change, and why ("": no change)."""
    if why := why_broken(bound_s, seen):
        return min(MAX_STEPS_BACK, steps + 1), why
    if steps and seen.jobs >= JOBS_PER_STEP:
        return steps - 1, f"kept for {seen.jobs} main jobs"
    return steps, ""


def with_trial_pilot(
    held: PromisedReserve, bound_s: float, times: YieldTimes, at_hand: int, seen: PromiseKept
) -> PromisedReserve:
    """`held`, less one node where that is all `at_hand` nodes, few pilots have been seen to give way, and the promise
    is kept even if one more of the main jobs `seen` is late."""
    longest_s = max(times.took_s, default=times.expected_s) + times.cycle_s
    if (
        len(times.took_s) >= ENOUGH_YIELDS
        or not 0 < at_hand <= held.nodes
        or not replace(seen, delays_s=(*seen.delays_s, longest_s)).shows_kept(bound_s)
    ):
        return held
    why = "but for one node, by which it is learnt how long pilots take to leave"
    return PromisedReserve(at_hand - 1, f"{held.reason}; {why}")


def harmless_cycle_s(cycles_per_minute: float | None) -> float:
    """The longest main cycle that harms nobody, where slurmctld runs so many a minute; None: not known."""
    return min(HARMLESS_CYCLE_S, HARMLESS_SHARE * 60.0 / (cycles_per_minute or 1.0))


@dataclass(frozen=True, slots=True)
class ControllerBudget:
    """The cap as learnt so far; `alone`: cycles without pilots, `recent`: (cycle, pilots) since the last verdict."""

    cap: int
    alone: tuple[float, ...] = ()
    recent: tuple[tuple[float, int], ...] = ()
    reason: str = "no cycle of slurmctld's has been seen yet"

    def budget_s(self, ratio: float, harmless_s: float) -> float:
        """The longest cycle that is allowed: `ratio` times one without pilots, or `harmless_s`."""
        return max(harmless_s, ratio * median(self.alone)) if self.alone else harmless_s

    def after(
        self, cycle_s: float | None, pilots: int, ratio: float, most: int, harmless_s: float = 0.0
    ) -> ControllerBudget:
        """The budget after one look: slurmctld's last main cycle beside so many pilots. `most`: the cap's cap;
        `harmless_s`: a cycle no longer than this is within the budget whatever the ratio."""
        if cycle_s is None:
            return self
        if pilots <= LEAST_PILOTS:  # as good as none
            alone = (*self.alone, cycle_s)[-KEPT_ALONE:]
            cap = max(self.cap, LEAST_PILOTS + LEAST_STEP) if len(alone) >= LOOKS_PER_VERDICT else self.cap
            return replace(self, cap=min(most, cap), alone=alone, recent=())
        recent = (*self.recent, (cycle_s, pilots))
        if len(recent) < LOOKS_PER_VERDICT:
            return replace(self, recent=recent)
        cycle, fewest = median(each for each, _ in recent), min(each for _, each in recent)
        allowed, cap = self.budget_s(ratio, harmless_s), self.cap
        if cycle > allowed:
            cap, what = max(LEAST_PILOTS, int(DECREASE * min(cap, fewest))), "a third fewer pilots"
        elif fewest < cap - 1:
            what = "fewer pilots are there than may be"
        else:
            more = min(most, cap + max(LEAST_STEP, int(STEP_SHARE * cap)))
            cap, what = max(cap, more), "a few more pilots"
        seen = f"main cycles take {cycle * 1e3:.3g} ms beside {fewest} pilots, and may take {allowed * 1e3:.3g}"
        return ControllerBudget(cap, self.alone, (), f"{seen}: {what}")
