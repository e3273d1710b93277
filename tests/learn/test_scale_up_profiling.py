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


def test_a_model_is_stopped_once_on_few_nodes_and_not_again_if_it_scales() -> None:
    assert climbed(64, exponent=0.95) == [1, 8], "who scales is measured on the target itself"
    assert climbed(64, exponent=0.6) == [1, 8, 16, 32]
    assert climbed(32, {1: 1.0, 8: 0.75, 16: 1.2}) == [1, 8, 16], "a boundary that costs is no end"
    assert climbed(1) == [] and climbed(2) == [1] and climbed(11) == [1] and climbed(12) == [1, 8]
    assert climbed(64, least=4) == [4, 32]


def test_a_job_with_half_of_all_that_it_may_have_is_stopped_on_one_node_only() -> None:
    def stops(target: int, most: int) -> list[int]:
        seen: dict[int, float] = {}
        while (stop := next_measurement_size(seen, target, lambda n: True, most)) is not None:
            seen[stop] = stop**0.6
        return list(seen)

    assert stops(32, most=64) == stops(57, most=64) == stops(16, most=16) == [1]
    assert stops(31, most=64) == [1, 8, 16], "nodes are scarce: a size on the way decides who gets them"


@given(
    target=st.integers(1, 300), rates=st.lists(st.floats(1e-3, 1e6), min_size=10, max_size=10),
    permitted=st.sets(st.integers(1, 300)), most=st.none() | st.integers(1, 300),
)  # fmt: skip
def test_stops_rise_are_permitted_and_below_the_target(
    target: int, rates: list[float], permitted: set[int], most: int | None
) -> None:
    seen: dict[int, float] = {}
    for rate in rates:
        stop = next_measurement_size(seen, target, permitted.__contains__, most)
        if stop is None:
            break
        assert stop in permitted and max(seen, default=0) < stop < target
        seen[stop] = rate
    assert len(seen) < 10, "at most as many as there are doublings"
