"""The breaker: at any sign of harm the daemon steps back by itself, and says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: So many looks at slow cycles within an hour are too many on any machine; for how long starts pause then (seconds).
SLOW_CYCLES_PER_HOUR, PAUSE_S = 30, 1800.0


@dataclass(frozen=True, slots=True)
class HarmSignals:
    """Signs of harm, as the times (Unix seconds, rising) at which each was seen; `unsound`: what is wrong with the
    harvest partition by now. Where the site promises by how much main jobs may be later, `late_main_jobs`, those that
    were later and that Slurm preempted pilots for, stands for `preempted`."""

    preempted: Sequence[float] = ()
    late_main_jobs: Sequence[float] = ()
    slow_exits: Sequence[float] = ()
    ailing_nodes: Sequence[float] = ()
    slow_cycles: Sequence[float] = ()
    unsound: str = ""


def why_to_pause(harm: HarmSignals, now: float, preemptions_per_hour: int) -> str:
    """Why nothing new may start now; empty when all is well. The gravest sign speaks. Half as many pilots may be slow
    to leave as are preempted, and a tenth as many nodes ail."""
    if harm.unsound:
        return f"the harvest partition no longer gives way: {harm.unsound}"
    for seen, per_hour, words in (
        (harm.ailing_nodes, max(1, preemptions_per_hour // 10), "nodes ailed after pilots"),
        (harm.preempted, preemptions_per_hour, "times pilots were preempted, so yielding comes too late"),
        (
            harm.late_main_jobs,
            preemptions_per_hour,
            "main jobs that Slurm preempted pilots for were later than promised",
        ),
        (harm.slow_exits, preemptions_per_hour // 2, "pilots were slow to leave"),
        (harm.slow_cycles, SLOW_CYCLES_PER_HOUR, "looks found slurmctld's cycles longer than without pilots"),
    ):
        left = _left_s(seen, now, per_hour)
        if left > 0:
            return f"within an hour more than {per_hour} {words}: nothing new starts for {left:.0f} s (see [breaker])"
    return ""


def _left_s(at: Sequence[float], now: float, per_hour: int) -> float:
    """For how long starts still pause: until `PAUSE_S` after the last one that made more than `per_hour`."""
    for last in range(len(at) - 1, per_hour - 1, -1):
        if now - at[last] >= PAUSE_S:
            return 0.0
        if at[last] - at[last - per_hour] <= 3600.0:
            return PAUSE_S - (now - at[last])
    return 0.0
