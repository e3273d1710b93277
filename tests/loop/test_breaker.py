"""The breaker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.loop.breaker import BreakerRules, HarmSignals, why_no_more_tasks, why_to_pause

RULES = BreakerRules(2, 2, 2, 2, pause_s=600.0)


@pytest.mark.parametrize(
    ("sign", "said"),
    [
        ("preempted", "more than 2 times pilots were preempted, so yielding comes too late"),
        (
            "late_main_jobs",
            "more than 2 main jobs that Slurm preempted pilots for were later than",
        ),
        ("slow_exits", "more than 2 pilots were slow to leave"),
        ("ailing_nodes", "more than 2 nodes ailed after pilots"),
        ("slow_cycles", "cycles longer than without pilots"),
    ],
)
def test_each_sign_opens_it_and_it_closes_again(sign: str, said: str) -> None:
    at = [10.0, 20.0, 30.0]

    def why(times: list[float], now: float) -> str:
        seen: dict[str, Any] = {sign: times}
        return why_to_pause(replace(HarmSignals(), **seen), now, RULES)

    assert said in why(at, 31.0)
    assert "for 599 s (see [breaker])" in why(at, 31.0)
    assert why(at, 631.0) == ""
    assert why(at[:2], 31.0) == ""
    assert why([10.0, 5000.0, 9000.0], 9001.0) == ""


def test_a_partition_that_no_longer_gives_way_opens_it_for_as_long_as_that_is_so() -> None:
    assert "no longer gives way: PreemptMode=OFF" in why_to_pause(HarmSignals(unsound="PreemptMode=OFF"), 1.0, RULES)


def test_where_one_is_too_many_one_opens_it() -> None:
    assert why_to_pause(HarmSignals(ailing_nodes=[5.0]), 6.0, replace(RULES, ailing_nodes_per_hour=0))


@given(st.lists(st.floats(0, 1e5), max_size=30).map(sorted), st.integers(1, 40))
def test_it_never_opens_on_fewer(at: list[float], per_hour: int) -> None:
    if len(at) <= per_hour:
        assert why_to_pause(HarmSignals(preempted=at), 1e5, replace(RULES, preemptions_per_hour=per_hour)) == ""


@pytest.mark.parametrize(("known", "most", "full"), [(8999, 10000, False), (9000, 10000, True), (5, 0, False)])
def test_a_nearly_full_queue_gets_no_more_held_tasks(known: int, most: int, full: bool) -> None:
    assert bool(why_no_more_tasks(known, most)) is full
