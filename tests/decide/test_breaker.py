"""The breaker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.breaker import why_to_pause


def test_it_trips_on_too_many_within_an_hour_and_closes_again() -> None:
    at = [10.0, 20.0, 30.0]
    assert why_to_pause(at, 31.0, per_hour=3, pause_s=600.0) == ""
    assert "preempted" in why_to_pause(at, 31.0, per_hour=2, pause_s=600.0)
    assert why_to_pause(at, 631.0, per_hour=2, pause_s=600.0) == ""
    assert why_to_pause([10.0, 5000.0, 9000.0], 9001.0, per_hour=2, pause_s=600.0) == ""


@given(st.lists(st.floats(0, 1e5), max_size=30).map(sorted), st.integers(1, 40))
def test_it_never_trips_on_fewer(at: list[float], per_hour: int) -> None:
    if len(at) <= per_hour:
        assert why_to_pause(at, 1e5, per_hour, 600.0) == ""
