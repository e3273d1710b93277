"""Curves that owners give: how far they are believed."""

from __future__ import annotations

from malletrain.domain.job import Curve, ThroughputSample
from malletrain.learn.samples import MIN_WINDOWS, plausible, refutation

GIVEN = Curve(((1, 100.0), (4, 360.0), (16, 1000.0)))


def windows(rate: float, nodes: int = 4, count: int = MIN_WINDOWS, node_class: str = "") -> list[ThroughputSample]:
    return [ThroughputSample(float(i), nodes, 10 * rate, 10.0, 10, node_class) for i in range(count)]


def test_what_nodes_cannot_bring_is_cut_and_the_rest_left_alone() -> None:
    assert plausible(GIVEN) is GIVEN
    found = plausible(Curve(((1, 1e-9), (64, 1e15)))).over_one()
    assert found.throughput(64) <= 71.0
    assert plausible(Curve(((4, 10.0), (8, 1e15)))).throughput(8) == 22.0


def test_measurements_that_agree_leave_it_and_others_refute_it() -> None:
    for rate in (290.0, 360.0, 440.0):
        assert refutation(GIVEN, windows(rate), windows(rate)[-1]) == ""
    for rate in (100.0, 1000.0):
        assert f"4 nodes train {rate:g} samples/s, not the 360" in refutation(GIVEN, windows(rate), windows(rate)[-1])


def test_few_windows_of_other_sizes_or_classes_do_not_tell() -> None:
    assert refutation(GIVEN, windows(1.0, count=MIN_WINDOWS - 1), windows(1.0)[-1]) == ""
    others = [*windows(1.0, node_class="old"), *windows(1.0, nodes=2), *windows(360.0)]
    assert refutation(GIVEN, others, others[-1]) == ""
