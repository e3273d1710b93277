"""The breaker: at any sign of harm the daemon steps back by itself, and says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Beyond this share of MaxJobCount no held tasks are submitted: at 1 the main queue's submissions are refused.
FULL = 0.9


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """How many signs of harm within an hour are too many, and how long starts pause after the one that was."""

    preemptions_per_hour: int = 20
    slow_exits_per_hour: int = 10
    ailing_nodes_per_hour: int = 2
    slow_cycles_per_hour: int = 30
    pause_s: float = 1800.0


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


def why_to_pause(harm: HarmSignals, now: float, rules: BreakerRules) -> str:
    """Why nothing new may start now; empty when all is well. The gravest sign speaks."""
    if harm.unsound:
        return f"the harvest partition no longer gives way: {harm.unsound}"
    preemptions = rules.preemptions_per_hour
    for seen, per_hour, words in (
        (harm.ailing_nodes, rules.ailing_nodes_per_hour, "nodes ailed after pilots"),
        (harm.preempted, preemptions, "times pilots were preempted, so yielding comes too late"),
        (harm.late_main_jobs, preemptions, "main jobs that Slurm preempted pilots for were later than promised"),
        (harm.slow_exits, rules.slow_exits_per_hour, "pilots were slow to leave"),
        (harm.slow_cycles, rules.slow_cycles_per_hour, "looks found slurmctld's cycles longer than without pilots"),
    ):
        left = _left_s(seen, now, per_hour, rules.pause_s)
        if left > 0:
            return f"within an hour more than {per_hour} {words}: nothing new starts for {left:.0f} s (see [breaker])"
    return ""


def why_no_more_tasks(known_jobs: int, max_job_count: int) -> str:
    """Why no held tasks may be submitted now: Slurm's queue is nearly full, and refuses the main queue's next."""
    if max_job_count <= 0 or known_jobs < FULL * max_job_count:
        return ""
    return f"Slurm has {known_jobs} of at most {max_job_count} jobs (MaxJobCount)"


def _left_s(at: Sequence[float], now: float, per_hour: int, pause_s: float) -> float:
    """For how long starts still pause: until `pause_s` after the last one that made more than `per_hour`."""
    for last in range(len(at) - 1, per_hour - 1, -1):
        if now - at[last] >= pause_s:
            return 0.0
        if at[last] - at[last - per_hour] <= 3600.0:
            return pause_s - (now - at[last])
    return 0.0
