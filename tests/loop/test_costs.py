"""What a change costs is measured: Slurm's own delay is part of what new nodes cost, for every job of the site."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.decide.sizes import demand_of
from malletrain.domain.event import Event, JsonValue
from malletrain.domain.job import Elastic, ResizeCosts
from malletrain.learn.advisor import JobKnowledge
from malletrain.loop.trackers.costs import Costs
from tests.world import RULES, START, World, event_of, job


def test_slurms_delay_counts_before_activation() -> None:
    world = World(4)
    world.submit(job(1))
    world.submit(job(2))
    world.tick()
    pilot = world.loop.views[1].staying[0]
    released = pilot.since
    assert world.loop.views[1].costs == ResizeCosts()
    data = {"started_at": released + 12.0, "ends_at": START + 3600.0}
    world.loop.record([event_of(released + 13.0, "pilot_started", 1, pilot.id, pilot.node, data=data)])
    world.loop.record([event_of(released + 14.0, "job_held", 2), event_of(released + 15.0, "job_released", 2)])
    costs = world.loop.views[2].costs
    assert costs.start_s == 12.0, "measured on one job, known for the other"
    view = world.loop.views[2]
    assert demand_of(view, (), JobKnowledge(), RULES).activate_s == 12.0 + costs.activate_s


def test_a_relaunch_that_is_told_twice_counts_once() -> None:
    """When the script is started, and when it trains again: the later one is what the change cost."""
    world = World(4)
    world.submit(job(1))
    world.tick()
    for generation, told in ((2, (1.0, 9.0)), (3, (1.0, 11.0)), (4, (1.0, 10.0))):
        for pause_s in told:
            data = {"generation": generation, "nodes": 2, "pause_s": pause_s, "step": 0, "grew": True}
            world.loop.record([event_of(START + generation, "switched", 1, data=data)])
    world.loop.record([event_of(START + 9.0, "job_held", 1), event_of(START + 9.5, "job_released", 1)])
    assert world.loop.views[1].costs.grow_s == 10.0


def test_it_is_kept_when_a_job_had_another_world() -> None:
    world = World(4)
    world.submit(job(1))
    world.tick()

    def published(at: float, generation: int, *members: str) -> None:
        data: dict[str, JsonValue] = {"generation": generation, "members": list(members)}
        world.loop.record([event_of(START + at, "generation", 1, data=data)])

    published(10.0, 1, "1_0")
    published(20.0, 2, "1_0", "1_1")
    published(30.0, 3, "1_1", "1_0")  # mended: the same nodes
    published(40.0, 4)
    published(50.0, 5, "1_1")
    assert world.loop.views[1].worlds_at == (START + 10.0, START + 20.0, START + 50.0)
    for generation in range(6, 40):
        published(10.0 * generation, generation, f"1_{generation % 2}")
    assert len(world.loop.views[1].worlds_at) == 17
    assert world.loop.views[1].worlds_at[-1] == START + 390.0


def test_a_relaunch_is_dear_until_it_was_measured() -> None:
    """What live jobs have shown says nothing of it, and neither does a world that begins."""
    world = World(8)
    world.submit(replace(job(1), elastic=Elastic.RESTART))
    world.submit(job(2))
    world.tick()

    def switched(at: float, of: int, pause_s: float) -> None:
        data = {"generation": int(at), "nodes": 2, "pause_s": pause_s, "step": 0, "grew": True}
        world.loop.record([event_of(START + at, "switched", of, data=data)])

    switched(2.0, 2, 0.2)
    switched(3.0, 1, 0.0)
    assert world.loop.views[1].costs.grow_s == world.loop.views[1].costs.shrink_s == 20.0
    assert world.loop.views[2].costs.grow_s == 0.2
    switched(4.0, 1, 9.0)
    assert world.loop.views[1].costs.grow_s == 9.0
    assert world.loop.views[2].costs.grow_s == 0.2


def test_costs_of_a_start_are_known_for_the_next_of_the_application() -> None:
    world = World(8)
    world.submit(replace(job(1), name="trial-1"))
    world.submit(replace(job(2), name="trial-2"))
    world.submit(replace(job(3), name="other"))
    world.tick()
    for pilot in world.loop.views[1].staying:
        data = {"started_at": START + 20.0, "ends_at": START + 3600.0}
        world.loop.record([
            event_of(START + 21.0, "pilot_started", 1, pilot.id, pilot.node, data=data),
            event_of(START + 31.0, "worker_warm", 1, pilot.id, pilot.node),
        ])  # fmt: skip
    costs = world.loop.ledger.costs[Elastic.LIVE]
    assert costs.of(2, ("alice", "trial")).activate_s == 11.0, "as the application's other job"
    assert costs.of(3, ("alice", "other")).activate_s == 11.0, "as the site's jobs, nearer than what is assumed"


def switched(at: int, members: int, pause_s: float, *, grew: bool, fault: bool = False) -> list[Event]:
    generation: dict[str, JsonValue] = {
        "generation": at, "members": [str(i) for i in range(members)], "switched_by": "fault" if fault else "plan",
    }  # fmt: skip
    data: dict[str, JsonValue] = {
        "generation": at, "nodes": members, "pause_s": pause_s, "step": 0, "grew": grew,
    }  # fmt: skip
    return [event_of(START + at, kind, 1, data=each) for kind, each in (
        ("generation", generation), ("switched", data),
    )]  # fmt: skip


def fold(events: list[Event], costs: Costs | None = None) -> Costs:
    costs = costs or Costs()
    for event in events:
        costs.apply(event, ("alice", "a"))
    return costs


def test_growing_shrinking_and_losing_are_told_apart() -> None:
    found = fold([
        *switched(1, 1, 0.0, grew=True), *switched(2, 4, 0.5, grew=True), *switched(3, 2, 0.05, grew=False),
        *switched(4, 1, 2.0, grew=False, fault=True),
    ]).of(1, ("alice", "a"))  # fmt: skip
    assert (found.shrink_s, found.loss_s) == (0.05, 2.0)
    assert found.grow_s == 0.5


def test_costs_are_bounded_and_forget() -> None:
    costs = fold([event for at in range(1, 300) for event in switched(at, 1 + at % 2, 0.1, grew=at % 2 == 1)])
    assert costs.of(1, ("alice", "a")).grow_s == pytest.approx(0.1)
    costs.forget(1)
    assert costs.of(1, ("alice", "a")).grow_s == pytest.approx(0.1), "its application remembers"
    assert costs.of(9, ("bob", "b")).grow_s == pytest.approx(0.1), "and the site"
    assert Costs().of(9, ("bob", "b")) == ResizeCosts()
