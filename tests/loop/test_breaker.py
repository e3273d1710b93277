"""The breaker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.loop.trackers.harm_signals import PAUSE_S, HarmSignals, why_to_pause
from tests.messages import says


@pytest.mark.parametrize(
    ("sign", "most", "said"),
    [
        ("preempted", 20, "preempted"),
        ("late_main_jobs", 20, "main jobs"),
        ("slow_exits", 10, "leave"),
        ("ailing_nodes", 2, "nodes"),
        ("slow_cycles", 30, "cycles"),
    ],
)
def test_each_sign_opens_it_and_it_closes_again(sign: str, most: int, said: str) -> None:
    at = [float(second) for second in range(most + 1)]

    def why(times: list[float], now: float) -> str:
        seen: dict[str, Any] = {sign: times}
        return why_to_pause(replace(HarmSignals(), **seen), now, 20)

    assert says(why(at, most + 1.0), most, said)
    assert says(why(at, most + 1.0), "1799 s", "[breaker]")
    assert why(at, most + PAUSE_S) == ""
    assert why(at[1:], most + 1.0) == ""
    assert why([3700.0 * each for each in at], 3700.0 * most + 1.0) == ""


def test_a_partition_that_no_longer_gives_way_opens_it_for_as_long_as_that_is_so() -> None:
    assert says(why_to_pause(HarmSignals(unsound="PreemptMode=OFF"), 1.0, 20), "PreemptMode=OFF")


@given(st.lists(st.floats(0, 1e5), max_size=30).map(sorted), st.integers(1, 40))
def test_it_never_opens_on_fewer(at: list[float], per_hour: int) -> None:
    if len(at) <= per_hour:
        assert why_to_pause(HarmSignals(preempted=at), 1e5, per_hour) == ""
