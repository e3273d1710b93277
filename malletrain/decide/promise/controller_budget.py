"""How many pilots slurmctld bears: learnt from its main cycle, up by steps and down by a part (AIMD).

slurmctld tries the first blocked job of each main partition against every pilot, so a cycle's time goes with the
number of pilots (docs/figures.md), but how much depends on the queue and on how many nodes are idle.
So nothing is computed: while cycles are within the budget and all pilots allowed are there, a few more are allowed;
when they are beyond it, a third fewer (Chiu and Jain 1989: increase by addition and decrease by multiplication
converges where both sides answer late).

A ratio alone would let slurmctld's users decide who is served: where a cycle takes .5 ms, half as long again is a
quarter of a millisecond, which nobody feels and no look measures. So `auto` counts a cycle as within the budget, too,
while it is harmless by both of what it takes from others: the wait of a request that comes meanwhile
(`HARMLESS_CYCLE_S`) and slurmctld's time (`HARMLESS_SHARE`), by how often cycles run. A ratio that a site states is
kept as it is (docs/adr/0021-harmless-cycles.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

#: A request of slurmctld's waits for a main cycle that runs when it comes; so long (seconds) is harmless.
HARMLESS_CYCLE_S = 0.02

#: Main cycles that take this part of slurmctld's time in all are harmless.
HARMLESS_SHARE = 0.01

#: So many looks make a verdict: one long cycle has other causes.
LOOKS_PER_VERDICT = 3

#: Cycles without pilots that are kept.
KEPT_ALONE = 60

#: What is added at a time: this many, or this part of the cap, whichever is more.
LEAST_STEP = 2
STEP_SHARE = 0.05

#: What is left after cycles beyond the budget.
DECREASE = 0.67

#: Never fewer pilots than this: the daemon still learns how cycles take them.
LEAST_PILOTS = 1


def harmless_cycle_s(cycles_per_minute: float | None) -> float:
    """The longest main cycle that harms nobody, where slurmctld runs so many a minute; None: not known."""
    if not cycles_per_minute:
        return HARMLESS_CYCLE_S
    return min(HARMLESS_CYCLE_S, HARMLESS_SHARE * 60.0 / cycles_per_minute)


@dataclass(frozen=True, slots=True)
class ControllerBudget:
    """The cap as learnt so far; `alone`: cycles without pilots, `lately`: (cycle, pilots) since the last verdict."""

    cap: int
    alone: tuple[float, ...] = ()
    lately: tuple[tuple[float, int], ...] = ()
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
            return replace(self, cap=min(most, cap), alone=alone, lately=())
        lately = (*self.lately, (cycle_s, pilots))
        if len(lately) < LOOKS_PER_VERDICT:
            return replace(self, lately=lately)
        return replace(_judged(self, lately, self.budget_s(ratio, harmless_s), most), lately=())


def _judged(
    budget: ControllerBudget, lately: Sequence[tuple[float, int]], allowed: float, most: int
) -> ControllerBudget:
    cycle, pilots = median(each[0] for each in lately), min(each[1] for each in lately)
    seen = f"main cycles take {cycle * 1e3:.3g} ms beside {pilots} pilots, and may take {allowed * 1e3:.3g}"
    if cycle > allowed:
        cap = max(LEAST_PILOTS, int(DECREASE * min(budget.cap, pilots)))
        return replace(budget, cap=cap, reason=f"{seen}: a third fewer pilots")
    if pilots < budget.cap - 1:
        return replace(budget, reason=f"{seen}: fewer pilots are there than may be")
    cap = min(most, budget.cap + max(LEAST_STEP, int(STEP_SHARE * budget.cap)))
    return replace(budget, cap=max(budget.cap, cap), reason=f"{seen}: a few more pilots")
