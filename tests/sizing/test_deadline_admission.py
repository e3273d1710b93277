"""Deadlines at submission: taken where the idle nodes can keep them, refused with the reason where not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Conflict, Identity
from malletrain.api.schemas import JobBody
from malletrain.domain.job import Curve
from malletrain.sizing.registry import policy
from malletrain.slurm.site.site_facts import Harvest
from tests.messages import naming
from tests.world import RULES, START, World, event_of, job

HOUR = 3600.0
ALICE = Identity(1001, 1001, "alice")
#: Ten samples a second and node.
WORK = JobBody(
    name="j", min_nodes=1, max_nodes=16, curve=[[1, 10.0], [16, 160.0]], total_samples=4 * 10.0 * HOUR / 1.1
)


def world_of(nodes: int, name: str = "deadline") -> World:
    """So many nodes stand idle, and have been seen."""
    world = World(nodes, replace(RULES, keep_idle=0), policy(name))
    world.tick()
    return world


def ask(world: World, new: JobBody) -> int:
    numbers = iter(range(len(world.loop.views) + 1, 100))
    requests = LoopRequests(
        world.loop, world.loop._guard, world.clock, Harvest("harvest"), lambda n: (), lambda: next(numbers)
    )
    return requests.announce(new, ALICE)


def due(hours: float, **more: object) -> JobBody:
    # Seven seconds more than the work, since activation is paid too, and ten that the first look has taken.
    return WORK.model_copy(update={"deadline": START + hours * HOUR + 17.0} | more)


def test_a_deadline_that_idle_nodes_can_keep_is_taken_and_its_nodes_come_before_all_gain() -> None:
    world = world_of(12)
    number = ask(world, due(1.0))
    assert world.loop.views[number].job.deadline == START + HOUR + 17.0
    array = world.cluster.submit_array("alice", 16)
    world.loop.record([event_of(START, "array_attached", number, data={"array_id": array, "tasks": 16})])
    world.submit(job(50, most=12, weight=1000.0, given_curve=Curve.linear(12, 10.0)))
    world.tick()
    # Ten seconds have passed without any node: it takes one more than was promised, though others would gain more.
    assert world.nodes_of(number) == 5
    assert world.nodes_of(50) == 7


def test_refused_with_the_reason() -> None:
    world = world_of(4)
    with pytest.raises(Conflict, match=naming("5 nodes", "idle")):
        ask(world, due(0.8))
    with pytest.raises(Conflict, match="late on 16 nodes too"):
        ask(world, due(0.2))
    with pytest.raises(Conflict, match="--total-samples"):
        ask(world, due(1.0).model_copy(update={"total_samples": None}))
    assert ask(world, due(1.0)) == 1
    with pytest.raises(Conflict, match=naming("2 nodes", "idle")):
        ask(world, due(2.0))
    with pytest.raises(Conflict, match=naming("job 1")):
        ask(world, due(0.99, max_nodes=16, total_samples=WORK.total_samples * 0.2))  # type: ignore[operator]
    assert list(world.loop.views) == [1], "what is refused leaves nothing behind"


def test_a_site_with_another_policy_says_so() -> None:
    world = world_of(12, "exact")
    with pytest.raises(Conflict, match=r"sizing\.policy is exact"):
        ask(world, due(1.0))
    assert ask(world, WORK) == 1, "without a deadline anything goes"
