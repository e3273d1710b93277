"""The active daemon's lease is over before the passive one's promise is, whenever messages arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.daemon.failover.lease import MARGIN_S, Lease, Promise


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_counts_from_the_question() -> None:
    time = Time()
    lease = Lease(4.0, time)
    assert lease.age_s == float("inf"), "none before the first answer"
    asked_at = lease.now()
    time.now += 3.0
    lease.renew(asked_at)
    assert lease.age_s == 3.0
    assert lease.holds
    time.now += 1.0
    lease.renew(asked_at)
    assert lease.age_s == 4.0, "it is over"
    lease.renew(time.now)
    lease.renew(asked_at)  # an answer that was overtaken
    assert lease.age_s == 0.0
    lease.end()
    assert lease.age_s == float("inf")


def test_a_promise_begins_with_the_daemon() -> None:
    time = Time()
    promise = Promise(4.0, time)
    time.now += 4.0 + MARGIN_S - 0.01
    assert not promise.is_over, "it may have made one before it was started again"
    promise.heard()
    time.now += 4.9
    assert not promise.is_over
    promise.release()
    assert promise.is_over


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.floats(0, 3), st.booleans()), max_size=20))
def test_never_both(messages: list[tuple[float, float, float, bool]]) -> None:
    """Each message has a delay before, on its way there and on its way back, and its answer may be lost."""
    time = Time()
    lease, promise = Lease(4.0, time), Promise(4.0, time)
    for pause, there, back, lost in messages:
        time.now += pause
        assert not (lease.holds and promise.is_over)
        asked_at = lease.now()
        time.now += there
        if promise.is_over:
            return  # it has taken over, and answers no more
        promise.heard()
        time.now += back
        assert not (lease.holds and promise.is_over)
        if not lost:
            lease.renew(asked_at)
        assert not (lease.holds and promise.is_over)
