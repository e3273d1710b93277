"""The breaker: at any sign of harm the daemon steps back by itself, and says why."""

from __future__ import annotations

from collections.abc import Sequence


def why_to_pause(preempted_at: Sequence[float], now: float, per_hour: int, pause_s: float) -> str:
    """Why nothing new may start now; empty when all is well.

    Yielding should come before preemption. More than `per_hour` preemptions within an hour say that it does not,
    and starts pause until `pause_s` after the one that was too many. `preempted_at`: Unix seconds, rising.
    """
    for last in range(len(preempted_at) - 1, per_hour - 1, -1):
        if now - preempted_at[last] >= pause_s:
            return ""
        if preempted_at[last] - preempted_at[last - per_hour] <= 3600.0:
            left = pause_s - (now - preempted_at[last])
            return (
                f"more than {per_hour} pilots were preempted within an hour, so yielding comes too late: "
                f"nothing new starts for {left:.0f} s (breaker.preemptions_per_hour)"
            )
    return ""
