"""The breaker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.loop.trackers.harm_signals import PAUSE_S, HarmSignals, why_to_pause


@pytest.mark.parametrize(
    ("sign", "most", "said"),
    [
        ("preempted", 20, "more than 20 times pilots were preempted, so yielding comes too late"),
        ("late_main_jobs", 20, "more than 20 main jobs that Slurm preempted pilots for were later than"),
        ("slow_exits", 10, "more than 10 pilots were slow to leave"),
        ("ailing_nodes", 2, "more than 2 nodes ailed after pilots"),
        ("slow_cycles", 30, "cycles longer than without pilots"),
    ],
)
def test_each_sign_opens_it_and_it_closes_again(sign: str, most: int, said: str) -> None:
    at = [float(second) for second in range(most + 1)]

    def why(times: list[float], now: float) -> str:
        seen: dict[str, Any] = {sign: times}
        return why_to_pause(replace(HarmSignals(), **seen), now, 20)

    assert said in why(at, most + 1.0)
    assert "for 1799 s (see [breaker])" in why(at, most + 1.0)
    assert why(at, most + PAUSE_S) == ""
    assert why(at[1:], most + 1.0) == ""
    assert why([3700.0 * each for each in at], 3700.0 * most + 1.0) == ""


def test_a_partition_that_no_longer_gives_way_opens_it_for_as_long_as_that_is_so() -> None:
    assert "no longer gives way: PreemptMode=OFF" in why_to_pause(HarmSignals(unsound="PreemptMode=OFF"), 1.0, 20)


@given(st.lists(st.floats(0, 1e5), max_size=30).map(sorted), st.integers(1, 40))
def test_it_never_opens_on_fewer(at: list[float], per_hour: int) -> None:
    if len(at) <= per_hour:
        assert why_to_pause(HarmSignals(preempted=at), 1e5, per_hour) == ""
