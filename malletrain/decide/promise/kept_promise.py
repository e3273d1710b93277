"""Whether the promise was kept, and when the daemon steps back because it was not, and forward again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.decide.promise.promised_reserve import MAX_STEPS_BACK, P95, MainPromise, lower_share

#: After so many jobs that kept the promise the daemon takes one step back again.
JOBS_PER_STEP = 50


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
