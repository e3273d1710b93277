"""Whether the promise was kept, and when the daemon steps back because it was not, and forward again.

One node is harvested to learn how long pilots take to leave, where the promise bears it. Until a pilot has left, 70 s
are reckoned with. On a busy machine no reserve but the whole keeps a tight promise then, so that nothing is
harvested, and nothing learnt: not even that nodes are free within a second. A promise lets some jobs be late, though:
that of 95 % one of 66, with a chance of 90 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from malletrain.decide.promise.promised_reserve import (
    MAX_STEPS_BACK,
    P95,
    MainPromise,
    PromisedReserve,
    YieldTimes,
    lower_share,
)

#: After so many jobs that kept the promise the daemon takes one step back again.
JOBS_PER_STEP = 50

#: From so many main jobs that pilots gave way to it is known how long they take to leave: one may have been slow.
ENOUGH_YIELDS = 20


@dataclass(frozen=True, slots=True)
class PromiseKept:
    """How many main jobs arrived, and how much later those that waited for pilots started (seconds each)."""

    jobs: int
    delays_s: Sequence[float] = ()

    def late(self, bound_s: float) -> int:
        """How many were later than that."""
        return sum(each > bound_s for each in self.delays_s)

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


def why_broken(promise: MainPromise, seen: PromiseKept) -> str:
    """Which promise these jobs show to be broken, with its chance; "" for none."""
    if promise.p95_s is not None:
        late = seen.late(promise.p95_s)
        if lower_share(late, seen.jobs, promise.chance) > 1 - P95:
            return f"{late} of {seen.jobs} main jobs started more than {promise.p95_s:g} s later for pilots"
    return ""


def next_step(promise: MainPromise, seen: PromiseKept, steps: int) -> tuple[int, str]:
    """How many steps back the daemon is from now on, and why that changes ("": it does not).

    `seen`: the jobs since the last change.
    """
    if why := why_broken(promise, seen):
        return min(MAX_STEPS_BACK, steps + 1), why
    if steps and seen.jobs >= JOBS_PER_STEP:
        return steps - 1, f"kept for {seen.jobs} main jobs"
    return steps, ""


def with_trial_pilot(
    held: PromisedReserve, promise: MainPromise, times: YieldTimes, at_hand: int, seen: PromiseKept
) -> PromisedReserve:
    """`held`, less one node where that is all `at_hand` nodes, few pilots have been seen to give way, and the promise
    is kept even if one more of the main jobs `seen` is late."""
    if len(times.took_s) >= ENOUGH_YIELDS or not 0 < at_hand <= held.nodes:
        return held
    longest_s = max(times.took_s, default=times.expected_s) + times.cycle_s
    if not shows_kept(promise, replace(seen, delays_s=(*seen.delays_s, longest_s))):
        return held
    why = "but for one node, by which it is learnt how long pilots take to leave"
    return PromisedReserve(at_hand - 1, f"{held.reason}; {why}", held.expected)


def shows_kept(promise: MainPromise, seen: PromiseKept) -> bool:
    """Whether these jobs show the promise to be kept, with its chance."""
    if promise.p95_s is None:
        return True
    return lower_share(seen.jobs - seen.late(promise.p95_s), seen.jobs, promise.chance) >= P95
