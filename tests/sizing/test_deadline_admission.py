"""Deadlines at submission: taken where they are likely to be met, refused with the reason where not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Conflict, Identity
from malletrain.api.schemas import JobBody
from malletrain.domain.event import EventKind
from malletrain.domain.job import Curve
from malletrain.loop.ledger import Ledger
from malletrain.loop.trackers.hole_history import LONGEST_S
from malletrain.sizing.registry import policy
from malletrain.slurm.site.site_facts import Harvest
from tests.world import RULES, START, World, event_of, job

HOUR = 3600.0
ALICE = Identity(1001, 1001, "alice")
#: Ten samples a second and node; a fifth of the time only 4 nodes are there, else 12.
WORK = JobBody(
    name="j", min_nodes=1, max_nodes=16, curve=[[1, 10.0], [16, 160.0]], total_samples=4 * 10.0 * HOUR / 1.1
)


def seen(world: World, hours: float = 10.0) -> None:
    """The pool as it was seen for so many hours before now."""
    at, level = world.clock.now() - hours * HOUR, 0
    while at < world.clock.now():
        counts = {"idle": 4 if level % 5 == 0 else 12, "planned": 0, "harvested": 0, "main": 0, "down": 0}
        world.loop.record([event_of(at, EventKind.POOL, data=dict(counts))])
        at, level = at + HOUR, level + 1
    world.loop.record([event_of(world.clock.now(), EventKind.DAEMON_STARTED)])


@pytest.fixture
def world() -> World:
    return World(12, replace(RULES, keep_idle=0), policy("deadline"))


def ask(world: World, new: JobBody) -> int:
    numbers = iter(range(len(world.loop.views) + 1, 100))
    requests = LoopRequests(
        world.loop, world.loop._guard, world.clock, Harvest("harvest"), lambda n: (), lambda: next(numbers)
    )
    return requests.announce(new, ALICE)


def due(hours: float, **more: object) -> JobBody:
    # Seven seconds more than the work: activation is paid too.
    return WORK.model_copy(update={"deadline": START + hours * HOUR + 7.0} | more)


def test_a_deadline_that_is_likely_is_taken_and_its_nodes_come_before_all_gain(world: World) -> None:
    seen(world)
    number = ask(world, due(1.0))
    assert world.loop.views[number].job.deadline == START + HOUR + 7.0
    array = world.cluster.submit_array("alice", 16)
    world.loop.record([event_of(START, EventKind.ARRAY_ATTACHED, number, data={"array_id": array, "tasks": 16})])
    world.submit(job(50, most=12, weight=1000.0, given_curve=Curve.linear(12, 10.0)))
    world.tick()
    # Ten seconds have passed without any node: it takes one more than was promised, though others would gain more.
    assert world.nodes_of(number) == 5
    assert world.nodes_of(50) == 7


def test_refused_with_the_reason(world: World) -> None:
    with pytest.raises(Conflict, match=r"watched for 0\.0 h"):
        ask(world, due(1.0))
    seen(world)
    with pytest.raises(Conflict, match="needs 5 nodes until then, more than are idle with a chance of 90%"):
        ask(world, due(0.8))
    with pytest.raises(Conflict, match="late on 16 nodes too"):
        ask(world, due(0.2))
    with pytest.raises(Conflict, match="--total-samples"):
        ask(world, due(1.0).model_copy(update={"total_samples": None}))
    assert ask(world, due(1.0)) == 1
    with pytest.raises(Conflict, match="needs 2 nodes until then, more than"):
        ask(world, due(2.0))
    with pytest.raises(Conflict, match="promised to job 1"):
        ask(world, due(0.99, max_nodes=16, total_samples=WORK.total_samples * 0.2))  # type: ignore[operator]
    assert list(world.loop.views) == [1], "what is refused leaves nothing behind"


def test_a_site_with_another_policy_says_so() -> None:
    world = World(12)
    seen(world)
    with pytest.raises(Conflict, match=r"sizing\.policy is exact"):
        ask(world, due(1.0))
    assert ask(world, WORK) == 1, "without a deadline anything goes"


def test_levels_count_for_as_long_as_they_lasted_and_no_longer_than_can_be_known() -> None:
    ledger = Ledger()
    counts = {"idle": 3, "planned": 1, "harvested": 4, "main": 2, "down": 0}
    ledger.apply([event_of(0.0, EventKind.POOL, data=dict(counts)), event_of(100.0, EventKind.DAEMON_STOPPED)])
    ledger.apply([event_of(5000.0, EventKind.DAEMON_STARTED)])
    assert ledger.pool.seen_s == 100.0
    ledger.apply([event_of(6000.0, EventKind.POOL, data={**counts, "idle": 0})])
    ledger.apply([event_of(6000.0 + 10 * LONGEST_S, EventKind.DAEMON_STARTED)])
    assert ledger.pool.seen_s == 100.0 + LONGEST_S
    assert set(ledger.pool.supply(RULES)) == {5}, "what lasted longest by far"
    assert ledger.pool.supply(replace(RULES, keep_idle=3, max_pilots=1)) == (1,) * 40
