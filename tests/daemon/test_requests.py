"""What people ask for, on a loop in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from itertools import count

import pytest

from malletrain.api.requests import MAX_UNATTACHED_JOBS, LoopRequests
from malletrain.api.roles import Conflict, Identity
from malletrain.api.schemas import JobBody
from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import Event, PilotEnded, TasksAdded
from malletrain.domain.job import JobPhase, Profile
from malletrain.domain.snapshot import SlurmState
from malletrain.loop.ledger import Ledger
from malletrain.slurm.site.site_facts import Harvest
from tests.messages import naming, says
from tests.world import World

DIGITS = JobBody(name="digits", min_nodes=1, max_nodes=4)


def requests_of(world: World, account: str = "", account_of: Callable[[str], str] | None = None) -> LoopRequests:
    """Requests on the world's loop; jobs are numbered from 1. `account`: of the pilots."""
    loop, harvest, numbers = world.loop, Harvest("harvest", account), count(1)
    return LoopRequests(
        loop, nullcontext(), world.clock, harvest, lambda count: (), lambda: next(numbers), account_of=account_of
    )


def test_a_request_that_is_sent_again_is_one_job_of_its_owner() -> None:
    world = World()
    requests = requests_of(world)
    ada, bob = (Identity(uid, uid, user) for uid, user in ((1001, "ada"), (1002, "bob")))
    wanted = JobBody(name="trial-1", min_nodes=1, max_nodes=4, profile="active", key="abc")
    first = requests.announce(wanted, ada)
    assert requests.announce(wanted, ada) == first
    assert requests.announce(wanted, bob) != first, "a key is its owner's"
    assert requests.announce(DIGITS, ada) != requests.announce(DIGITS, ada)
    again = Ledger()
    again.apply(world.journal.events)
    assert again.views()[first].job.key == "abc", "known after a crash, too"
    assert again.views()[first].job.profile is Profile.ACTIVE


class Killed(Exception):
    """The daemon, between two writes."""


def die_after_one_write(world: World) -> None:
    append, written = world.journal.append, list[int]()

    def once(events: Iterable[Event]) -> Sequence[Event]:
        if written:
            raise Killed
        written.append(1)
        return append(events)

    world.journal.append = once  # type: ignore[method-assign]


def test_a_daemon_that_is_killed_never_has_a_job_without_its_dependency() -> None:
    """A repeated request is given the job that is there: it ran at once."""
    world = World()
    requests = requests_of(world)
    ada = Identity(1001, 1001, "ada")
    first = requests.announce(JobBody(name="a", min_nodes=1, max_nodes=4), ada)
    die_after_one_write(world)
    with suppress(Killed):
        requests.announce(JobBody(name="b", min_nodes=1, max_nodes=4, key="b", after=[f"afterok:{first}"]), ada)
    again = Ledger()
    again.apply(world.journal.events)
    assert again.views()[2].phase is JobPhase.HELD


def test_a_daemon_that_is_killed_never_has_one_array_for_two_jobs() -> None:
    world = World()
    requests = requests_of(world)
    ada = Identity(1001, 1001, "ada")
    first, second = (requests.announce(DIGITS, ada) for _ in range(2))
    requests.attach_array(first, 4711, 2, ada)
    die_after_one_write(world)
    with suppress(Killed):
        requests.attach_array(second, 4711, 2, ada)
    again = Ledger()
    again.apply(world.journal.events)
    assert again.unseen_arrays() == {second: (4711,)}


def test_a_job_is_of_the_account_that_its_owner_is_charged_to() -> None:
    world = World()
    requests = requests_of(world, "harvest", lambda user: f"of-{user}")
    ada = Identity(1001, 1001, "ada")
    number = requests.announce(JobBody(name="digits", min_nodes=1, max_nodes=4, account="harvest"), ada)
    assert world.loop.views[number].job.account == "of-ada"


def test_a_user_announces_few_jobs_without_an_array() -> None:
    """Each would cost everybody: a row of the status, a part of each decision."""
    world = World()
    requests = requests_of(world)
    mallory, alice = Identity(1001, 1001, "mallory"), Identity(1002, 1002, "alice")
    wanted = JobBody(name="x", min_nodes=1, max_nodes=4)
    made = [requests.announce(wanted, mallory) for _ in range(MAX_UNATTACHED_JOBS)]
    with pytest.raises(Conflict, match=naming("32 jobs", "mallory", "`malletrain cancel 1`")):
        requests.announce(wanted, mallory)
    requests.announce(wanted, alice)
    requests.attach_array(made[3], 4711, 2, mallory)
    requests.announce(wanted, mallory)
    with pytest.raises(Conflict):
        requests.announce(wanted, mallory)
    requests.cancel(made[0], mallory)
    requests.announce(wanted, mallory)


def test_a_job_whose_array_slurm_lost_fails_when_its_number_is_another_jobs() -> None:
    """slurmctld was killed before it had saved the first array, and gave its number to the owner's next one. The
    daemon, away meanwhile, took that one's tasks for those of both: the first job waited for ever."""
    world = World()
    requests = requests_of(world)
    ada = Identity(1001, 1001, "ada")
    first, second = (requests.announce(DIGITS, ada) for _ in range(2))
    for job in (first, second, second):
        requests.attach_array(job, 4711, 2, ada)
    assert world.loop.ledger.unseen_arrays() == {second: (4711,)}
    world.loop.tick()
    view = world.loop.views[first]
    assert view.phase is JobPhase.FAILED
    assert says(view.reason, "lost array 4711", f"job {second}'s")


def test_an_array_is_of_one_job_until_slurm_uses_its_number_again() -> None:
    world = World()
    requests = requests_of(world)
    ada = Identity(1001, 1001, "ada")
    first, second, third = (requests.announce(DIGITS, ada) for _ in range(3))
    requests.attach_array(first, 4711, 2, ada)
    world.loop.record([Event(world.clock.now(), TasksAdded(4711, (0, 1)), first)])
    with pytest.raises(Conflict, match=naming("array 4711")):
        requests.attach_array(second, 4711, 2, ada)
    requests.cancel(first, ada)
    requests.attach_array(second, 4711, 2, ada)
    world.loop.record([Event(world.clock.now(), TasksAdded(4711, (0, 1)), second)])
    assert not world.loop.views[first].pilots
    ended = [Event(world.clock.now(), PilotEnded(SlurmState.FAILED), second, f"4711_{task}") for task in (0, 1)]
    world.loop.record(ended)
    with pytest.raises(Conflict, match=naming("array 4711")):
        requests.attach_array(third, 4711, 2, ada)


def test_a_drain_takes_the_lists_that_slurm_takes_and_refuses_what_names_no_node() -> None:
    world = World(12)
    requests = requests_of(world)
    root = Identity(0, 0, "root")
    world.loop.tick()
    assert list(requests.drain("n[9-11],n0", 9e9, root)) == ["n0", "n10", "n11", "n9"]
    assert len(requests.drain("", 9e9, root)) == 12
    for text, why in (
        ("n[11-9]", "backwards"),
        ("(null)", "no node"),
        ("n12", "knows no n12"),
        ("n[0-9999999]", "more"),
    ):
        with pytest.raises(InvalidInput, match=why):
            requests.drain(text, 9e9, root)
