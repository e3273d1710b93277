"""How many pilots slurmctld bears: learnt from its main cycle, up by steps and down by a part (AIMD).

slurmctld tries the first blocked job of each main partition against every pilot, so a cycle's time goes with the
number of pilots (docs/explanation/measurements.md), but how much depends on the queue and on how many nodes are idle.
So nothing is computed: while cycles are within the budget and all pilots allowed are there, a few more are allowed;
when they are beyond it, a third fewer (Chiu and Jain 1989: increase by addition and decrease by multiplication
converges where both sides answer late).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

#: A cycle shorter than this (seconds) is within the budget, however short the ones without pilots are.
HARMLESS_CYCLE_S = 0.02

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


@dataclass(frozen=True, slots=True)
class ControllerBudget:
    """The cap as learnt so far; `alone`: cycles without pilots, `lately`: (cycle, pilots) since the last verdict."""

    cap: int
    alone: tuple[float, ...] = ()
    lately: tuple[tuple[float, int], ...] = ()
    reason: str = "no cycle of slurmctld's has been seen yet"

    def budget_s(self, ratio: float) -> float:
        """The longest cycle that is allowed."""
        return max(HARMLESS_CYCLE_S, ratio * median(self.alone)) if self.alone else HARMLESS_CYCLE_S

    def after(self, cycle_s: float | None, pilots: int, ratio: float, most: int) -> ControllerBudget:
        """The budget after one look: slurmctld's last main cycle beside so many pilots. `most`: the cap's cap."""
        if cycle_s is None:
            return self
        if pilots <= LEAST_PILOTS:  # as good as none
            alone = (*self.alone, cycle_s)[-KEPT_ALONE:]
            cap = max(self.cap, LEAST_PILOTS + LEAST_STEP) if len(alone) >= LOOKS_PER_VERDICT else self.cap
            return replace(self, cap=min(most, cap), alone=alone, lately=())
        lately = (*self.lately, (cycle_s, pilots))
        if len(lately) < LOOKS_PER_VERDICT:
            return replace(self, lately=lately)
        return replace(_judged(self, lately, ratio, most), lately=())


def _judged(
    budget: ControllerBudget, lately: Sequence[tuple[float, int]], ratio: float, most: int
) -> ControllerBudget:
    cycle, pilots = median(each[0] for each in lately), min(each[1] for each in lately)
    allowed = budget.budget_s(ratio)
    seen = f"main cycles take {cycle * 1e3:.3g} ms beside {pilots} pilots, and may take {allowed * 1e3:.3g}"
    if cycle > allowed:
        cap = max(LEAST_PILOTS, int(DECREASE * min(budget.cap, pilots)))
        return replace(budget, cap=cap, reason=f"{seen}: a third fewer pilots")
    if pilots < budget.cap - 1:
        return replace(budget, reason=f"{seen}: fewer pilots are there than may be")
    cap = min(most, budget.cap + max(LEAST_STEP, int(STEP_SHARE * budget.cap)))
    return replace(budget, cap=max(budget.cap, cap), reason=f"{seen}: a few more pilots")
