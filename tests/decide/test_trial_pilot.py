"""One node is harvested to learn how long pilots take to leave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.queue_promise import PromisedReserve, PromiseKept, YieldTimes, shows_kept, with_trial_pilot
from malletrain.decide.rules import MainPromise

P95 = MainPromise(p95_s=2.0)
ALL = PromisedReserve(16, "all nodes", 1.0)


def test_one_node_where_one_late_job_does_not_break_the_promise() -> None:
    held = with_trial_pilot(ALL, P95, YieldTimes(), 16, PromiseKept(66))
    assert (held.nodes, "one node, by which it is learnt" in held.reason) == (15, True)


@pytest.mark.parametrize(
    ("promise", "times", "at_hand", "seen"),
    [
        (P95, YieldTimes(), 16, PromiseKept(65)),
        (P95, YieldTimes(), 16, PromiseKept(66, (9.0,))),
        (P95, YieldTimes((9.0,) * 20), 16, PromiseKept(1000)),
        (P95, YieldTimes(), 0, PromiseKept(1000)),
        (P95, YieldTimes(), 20, PromiseKept(1000)),
    ],
    ids=["few jobs", "one was late", "known", "no node", "some are harvested"],
)
def test_none_otherwise(promise: MainPromise, times: YieldTimes, at_hand: int, seen: PromiseKept) -> None:
    assert with_trial_pilot(ALL, promise, times, at_hand, seen) == ALL


def test_one_slow_pilot_is_not_the_last_word() -> None:
    assert with_trial_pilot(ALL, P95, YieldTimes((9.0,)), 16, PromiseKept(1000, (9.0,))).nodes == 15


@given(
    p95_s=st.none() | st.floats(0.1, 60.0), jobs=st.integers(0, 2000), at_hand=st.integers(0, 20),
)  # fmt: skip
def test_even_the_slowest_leave_keeps_the_promise(p95_s: float | None, jobs: int, at_hand: int) -> None:
    promise = MainPromise(p95_s)
    held = PromisedReserve(at_hand, "", 1.0)
    found = with_trial_pilot(held, promise, YieldTimes(), at_hand, PromiseKept(jobs))
    assert held.nodes - 1 <= found.nodes <= held.nodes
    if found != held:
        assert shows_kept(promise, PromiseKept(jobs, (100.0,)))
