"""The views of all jobs are those of each, in the order of their numbers; what was given out stays as it was."""

from __future__ import annotations

import pytest

from malletrain.domain.event import Event, JobAnnounced, JobCancelled, JobHeld, JobReleased
from malletrain.domain.job import JobPhase, MalleableJob
from malletrain.loop.ledger import Ledger
from tests.loop.test_histories import history


def announced(number: int, at: float = 1.0) -> Event:
    return Event(at, JobAnnounced(MalleableJob(number, f"j{number}", "ann", 1001, "a", 1, 2, at)), number)


@pytest.mark.parametrize("seed", range(3))
def test_they_are_those_of_each_job_after_every_event(seed: int) -> None:
    ledger = Ledger()
    for event in history(seed, 12).journal.events:
        ledger.apply([event])
        views = ledger.views()
        assert list(views) == sorted(ledger._records)
        assert all(view.pilots == ledger._records[job].pilots for job, view in views.items())
        assert ledger.views() is views, "nothing has changed since"


def test_they_are_in_order_and_earlier_ones_stay_as_they_were() -> None:
    ledger = Ledger()
    ledger.apply([announced(5), announced(3)])
    first = ledger.views()
    ledger.apply([announced(4), Event(2.0, JobHeld("ann"), 5)])
    second = ledger.views()
    assert (list(first), list(second)) == ([3, 5], [3, 4, 5])
    assert (first[5].phase, second[5].phase) == (JobPhase.ANNOUNCED, JobPhase.HELD)
    ledger.apply([Event(3.0, JobReleased("ann"), 5), Event(4.0, JobCancelled("ann"), 3)])
    ledger.forget_over(10.0)
    assert list(ledger.views()) == [4, 5]
    assert list(second) == [3, 4, 5]
    ledger.apply([announced(6)])
    assert list(ledger.views()) == [4, 5, 6]
