"""Where a world stops on its way up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.learn.scale_up_profiling import next_measurement_size


def climbed(target: int, rate: dict[int, float] | None = None, least: int = 1, exponent: float = 1.0) -> list[int]:
    seen: dict[int, float] = {}
    while (stop := next_measurement_size(seen, target, lambda n: n >= least)) is not None:
        seen[stop] = rate[stop] if rate else stop**exponent
    return list(seen)


def test_a_model_that_scales_is_stopped_seldom_and_one_that_does_not_at_every_doubling() -> None:
    assert climbed(64, exponent=0.95) == [1, 2, 8, 32]
    assert climbed(64, exponent=0.6) == [1, 2, 4, 8, 16, 32]
    assert climbed(16, {1: 1.0, 2: 0.75, 4: 1.2, 8: 1.8}) == [1, 2, 4, 8], "a boundary that costs is no end"
    assert climbed(1) == [] and climbed(2) == [1] and climbed(5) == [1, 2]
    assert climbed(16, least=4) == [4, 8]


@given(
    target=st.integers(1, 300), rates=st.lists(st.floats(1e-3, 1e6), min_size=10, max_size=10),
    permitted=st.sets(st.integers(1, 300)),
)  # fmt: skip
def test_stops_rise_are_permitted_and_below_the_target(target: int, rates: list[float], permitted: set[int]) -> None:
    seen: dict[int, float] = {}
    for rate in rates:
        stop = next_measurement_size(seen, target, permitted.__contains__)
        if stop is None:
            break
        assert stop in permitted and max(seen, default=0) < stop < target
        seen[stop] = rate
    assert len(seen) < 10, "at most as many as there are doublings"
