"""What people ask for, on a loop in memory."""

from __future__ import annotations

from contextlib import nullcontext

from malletrain.api.ports import Identity, NewJob
from malletrain.daemon.requests import LoopRequests
from malletrain.domain.job import Profile
from malletrain.loop.ledger import Ledger
from malletrain.slurm.site_facts import Harvest
from tests.world import World


def test_a_request_that_is_sent_again_is_one_job_of_its_owner() -> None:
    world = World()
    numbers = iter(range(1, 100))
    requests = LoopRequests(
        world.loop, nullcontext(), world.clock, Harvest("harvest"), lambda count: (), lambda: next(numbers)
    )
    ada, bob = (Identity(uid, uid, user) for uid, user in ((1001, "ada"), (1002, "bob")))
    wanted = NewJob("trial-1", 1, 4, profile="active", key="abc")
    first = requests.announce(wanted, ada)
    assert requests.announce(wanted, ada) == first
    assert requests.announce(wanted, bob) != first, "a key is its owner's"
    unnamed = NewJob("trial-1", 1, 4)
    assert requests.announce(unnamed, ada) != requests.announce(unnamed, ada)
    again = Ledger()
    again.apply(world.journal.events)
    assert again.views()[first].job.key == "abc", "known after a crash, too"
    assert again.views()[first].job.profile is Profile.ACTIVE
