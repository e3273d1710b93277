"""What a change costs is measured: Slurm's own delay is part of what new nodes cost, for every job of the site."""

from __future__ import annotations

from malletrain.decide.advisor import Known
from malletrain.decide.demand import demand_of
from malletrain.domain.event import Event, EventKind
from malletrain.domain.job import ResizeCosts
from tests.world import RULES, START, World, job


def test_slurms_delay_counts_before_activation() -> None:
    world = World(4)
    world.submit(job(1))
    world.submit(job(2))
    world.tick()
    pilot = world.loop.views[1].staying[0]
    released = pilot.since
    assert world.loop.views[1].costs == ResizeCosts()
    data = {"started_at": released + 12.0, "ends_at": START + 3600.0}
    world.loop.record([Event(released + 13.0, EventKind.PILOT_STARTED, 1, pilot.id, pilot.node, data=data)])
    world.loop.record(
        [Event(released + 14.0, EventKind.JOB_HELD, 2), Event(released + 15.0, EventKind.JOB_RELEASED, 2)]
    )
    costs = world.loop.views[2].costs
    assert costs.start_s == 12.0, "measured on one job, known for the other"
    view = world.loop.views[2]
    assert demand_of(view, (), Known(), RULES).activate_s == 12.0 + costs.activate_s


def test_a_relaunch_that_is_told_twice_counts_once() -> None:
    """When the script is started, and when it trains again: the later one is what the change cost."""
    world = World(4)
    world.submit(job(1))
    world.tick()
    for generation, told in ((2, (1.0, 9.0)), (3, (1.0, 11.0)), (4, (1.0, 10.0))):
        for pause_s in told:
            data = {"generation": generation, "nodes": 2, "pause_s": pause_s, "step": 0, "grew": True}
            world.loop.record([Event(START + generation, EventKind.SWITCHED, 1, data=data)])
    world.loop.record([Event(START + 9.0, EventKind.JOB_HELD, 1), Event(START + 9.5, EventKind.JOB_RELEASED, 1)])
    assert world.loop.views[1].costs.grow_s == 10.0
