"""One node is harvested to learn how long pilots take to leave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.loop.trackers.queue_promise import PromisedReserve, PromiseKept, YieldTimes, with_trial_pilot

BOUND_S = 2.0
ALL = PromisedReserve(16, "all nodes")


def test_one_node_where_one_late_job_does_not_break_the_promise() -> None:
    held = with_trial_pilot(ALL, BOUND_S, YieldTimes(), 16, PromiseKept(66))
    assert (held.nodes, "one node, by which it is learnt" in held.reason) == (15, True)


@pytest.mark.parametrize(
    ("bound_s", "times", "at_hand", "seen"),
    [
        (BOUND_S, YieldTimes(), 16, PromiseKept(65)),
        (BOUND_S, YieldTimes(), 16, PromiseKept(66, (9.0,))),
        (BOUND_S, YieldTimes((9.0,) * 20), 16, PromiseKept(1000)),
        (BOUND_S, YieldTimes(), 0, PromiseKept(1000)),
        (BOUND_S, YieldTimes(), 20, PromiseKept(1000)),
    ],
    ids=["few jobs", "one was late", "known", "no node", "some are harvested"],
)
def test_none_otherwise(bound_s: float, times: YieldTimes, at_hand: int, seen: PromiseKept) -> None:
    assert with_trial_pilot(ALL, bound_s, times, at_hand, seen) == ALL


def test_one_slow_pilot_is_not_the_last_word() -> None:
    assert with_trial_pilot(ALL, BOUND_S, YieldTimes((9.0,)), 16, PromiseKept(1000, (9.0,))).nodes == 15


@given(
    bound_s=st.floats(0.1, 60.0), jobs=st.integers(0, 2000), at_hand=st.integers(0, 20),
)  # fmt: skip
def test_even_the_slowest_leave_keeps_the_promise(bound_s: float, jobs: int, at_hand: int) -> None:
    held = PromisedReserve(at_hand, "")
    found = with_trial_pilot(held, bound_s, YieldTimes(), at_hand, PromiseKept(jobs))
    assert held.nodes - 1 <= found.nodes <= held.nodes
    if found != held:
        assert PromiseKept(jobs, (100.0,)).shows_kept(bound_s)
