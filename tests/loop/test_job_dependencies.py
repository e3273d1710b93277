"""Jobs that wait for others: held until these have come so far, then released; never begun against a failure."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Conflict, Identity
from malletrain.api.schemas import JobBody
from malletrain.domain.event import Event, JobCancelled, JobCompleted, JobFailed, Payload
from malletrain.domain.job import JobPhase
from malletrain.loop.ledger import Ledger
from malletrain.slurm.site.site_facts import Harvest
from tests.messages import naming, says
from tests.world import World, job

ADA, BOB = Identity(1001, 1001, "ada"), Identity(1002, 1002, "bob")


class Site:
    """A world whose jobs are announced as people do it."""

    def __init__(self) -> None:
        self.world = World(nodes=4)
        numbers = iter(range(1, 100))
        self.requests = LoopRequests(
            self.world.loop, nullcontext(), self.world.clock, Harvest("harvest"), lambda _: (), lambda: next(numbers)
        )

    def announce(self, *after: tuple[str, int]) -> int:
        waits = [f"{kind}:{job}" for kind, job in after]
        number = self.requests.announce(JobBody(name="digits", min_nodes=1, max_nodes=2, after=waits), ADA)
        self.requests.attach_array(number, self.world.cluster.submit_array("ada", 4), 4, ADA)
        self.world.tick()
        return number

    def end(self, number: int, how: Payload) -> None:
        self.world.loop.record([Event(self.world.clock.now(), how, number)])
        self.world.tick()

    def phase(self, number: int) -> JobPhase:
        return self.world.loop.views[number].phase

    def reason(self, number: int) -> str:
        return self.world.loop.views[number].reason


@pytest.mark.parametrize(
    ("kind", "end", "begins"),
    [
        ("afterok", JobCompleted(), True),
        ("afterok", JobFailed(), False),
        ("afternotok", JobFailed(), True),
        ("afternotok", JobCancelled(), True),
        ("afternotok", JobCompleted(), False),
        ("afterany", JobFailed(), True),
        ("after", JobFailed(), True),
    ],
)
def test_a_job_begins_when_the_other_has_ended_so(kind: str, end: Payload, begins: bool) -> None:
    site = Site()
    first = site.announce()
    second = site.announce((kind, first))
    assert site.phase(second) is JobPhase.HELD and site.world.nodes_of(second) == 0
    assert says(site.reason(second), f"{kind}:{first}", "queued")
    site.end(first, end)
    site.world.tick()
    if begins:
        assert site.world.nodes_of(second) == 2
    else:
        assert site.phase(second) is JobPhase.HELD
        assert says(site.reason(second), "never", f"({kind}:{first})", f"job {first}")
        site.requests.release(second, ADA)
        site.world.tick()
        assert site.world.nodes_of(second) == 2, "its owner may let it begin"


def test_all_must_be_met_and_the_journal_tells_the_same() -> None:
    site = Site()
    first, second = site.announce(), site.announce()
    third = site.announce(("afterok", first), ("afterany", second))
    site.end(first, JobCompleted())
    assert says(site.reason(third), f"afterany:{second}", "queued")
    assert f":{first}" not in site.reason(third)
    again = Ledger()
    again.apply(site.world.journal.events)
    view = again.views()[third]
    assert (view.phase, view.waits, view.job.after) == (
        JobPhase.HELD,
        True,
        (("afterok", first), ("afterany", second)),
    )
    site.world.loop.ledger.forget_over(site.world.clock.now() + 1)
    assert first in site.world.loop.ledger.views(), "jobs that others wait for are kept"
    site.end(second, JobCancelled())
    assert site.phase(third) is JobPhase.QUEUED


def test_a_hold_of_its_owner_outlasts_what_it_waits_for() -> None:
    site = Site()
    first = site.announce()
    second = site.announce(("afterok", first))
    site.requests.hold(second, ADA)
    site.end(first, JobCompleted())
    assert site.phase(second) is JobPhase.HELD
    assert says(site.reason(second), "ada")


def test_a_dependency_that_cannot_be_is_refused() -> None:
    site = Site()
    first = site.announce()
    with pytest.raises(Conflict, match=naming("afterok:99:", 99)):
        site.announce(("afterok", 99))
    with pytest.raises(Conflict, match=naming(f"afterok:{first}:", f"no job {first}")):
        site.requests.announce(JobBody(name="digits", min_nodes=1, max_nodes=2, after=[f"afterok:{first}"]), BOB)
    site.end(first, JobFailed())
    with pytest.raises(Conflict, match=naming("never", f"(afterok:{first})", f"job {first}")):
        site.announce(("afterok", first))


def test_a_job_that_is_not_known_any_more_is_over() -> None:
    world = World(nodes=4)
    waiting = replace(job(2), after=(("afterany", 1),))  # type: ignore[arg-type]
    world.submit(waiting)
    world.tick()
    assert world.nodes_of(2) > 0
