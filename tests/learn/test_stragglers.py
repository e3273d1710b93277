"""Slow workers: found when slow for long, never by one window, never half of a world; replaced before they go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.learn.stragglers import EMA_WEIGHT, MIN_WINDOWS, SLOW_SHARE, WorkerSpeed, stragglers


def paces(*rates: float) -> dict[str, WorkerSpeed]:
    return {f"1_{i}": WorkerSpeed(rate, MIN_WINDOWS) for i, rate in enumerate(rates)}


def test_one_slow_worker_of_four_is_found() -> None:
    found = stragglers(paces(100, 100, 70, 101))
    assert [s.pilot for s in found] == ["1_2"]
    assert found[0].share == pytest.approx(0.7)
    assert "70%" in found[0].reason


def test_a_worker_is_compared_within_its_class_of_nodes() -> None:
    classes = {f"1_{i}": "old" if i > 4 else "new" for i in range(10)}
    assert stragglers(paces(100, 100, 100, 100, 100, 50, 50, 50, 50, 50), classes) == ()
    assert [s.pilot for s in stragglers(paces(100, 100, 100, 100, 100, 50, 50, 50, 50, 30), classes)] == ["1_9"]


def test_several_that_are_slow_alike_are_a_class_without_a_name() -> None:
    assert stragglers(paces(*[100] * 10, 61, 60)) == ()
    assert [s.pilot for s in stragglers(paces(*[100] * 10, 61, 40))] == ["1_11", "1_10"]
    assert stragglers(paces(*[100] * 6, 61, 40, 20)) == (), "more than a quarter"


def test_just_above_the_bound_is_not() -> None:
    assert stragglers(paces(100, 100, 81, 100)) == ()


def test_two_workers_cannot_say_who_is_slow() -> None:
    assert stragglers(paces(100, 10)) == ()


def test_one_bad_window_is_noise_and_a_slow_worker_shows_in_time() -> None:
    pace = WorkerSpeed()
    for _ in range(20):
        pace = pace.after(100.0)
    assert pace.after(10.0).rate == pytest.approx((1 - EMA_WEIGHT) * 100 + EMA_WEIGHT * 10)
    assert pace.after(10.0).rate > SLOW_SHARE * 100
    windows = 0
    while pace.rate >= SLOW_SHARE * 100:
        pace, windows = pace.after(60.0), windows + 1
    assert 5 <= windows <= 10


def test_rates_that_cannot_be_are_left_out() -> None:
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        assert WorkerSpeed(5.0, 3).after(rate) == WorkerSpeed(5.0, 3)


def test_new_workers_are_not_judged() -> None:
    found = stragglers({**paces(100, 100, 100), "1_9": WorkerSpeed(10, MIN_WINDOWS - 1)})
    assert found == ()


@given(
    st.dictionaries(st.text(min_size=1, max_size=4), st.builds(WorkerSpeed, st.floats(0.1, 1e6), st.integers(0, 20)))
)
def test_never_half_of_a_world_and_always_the_same(given_paces: dict[str, WorkerSpeed]) -> None:
    found = stragglers(given_paces)
    assert 2 * len(found) < max(1, len(given_paces))
    assert found == stragglers(dict(reversed(given_paces.items())))
    assert all(s.share < SLOW_SHARE for s in found)
