"""What a user does to get, or keep, more than the site means to give: what he asks for, claims or leaves undone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.decision import LeaveCause, LeavePilot, RecyclePilot
from malletrain.domain.event import ActionIntent
from malletrain.domain.job import JobPhase, PilotEnd
from malletrain.domain.snapshot import SlurmState
from malletrain.loop.memory import MemoryWorkers
from tests.world import RULES, World, job, main_job


class Deaf(MemoryWorkers):
    """Workers that do not leave when they are asked to."""

    def leave(self, action: LeavePilot) -> None:
        pass


def deaf_world(nodes: int, **rules: object) -> World:
    world = World(nodes, replace(RULES, leave_patience_s=10.0, **rules))  # type: ignore[arg-type]
    world.workers = world.loop._workers = Deaf(world.clock)
    return world


def recycled(world: World) -> list[RecyclePilot]:
    return [
        event.payload.action
        for event in world.journal.events
        if isinstance(event.payload, ActionIntent) and isinstance(event.payload.action, RecyclePilot)
    ]


def asked(world: World, cause: LeaveCause) -> list[LeavePilot]:
    return [
        event.payload.action
        for event in world.journal.events
        if isinstance(event.payload, ActionIntent)
        and isinstance(event.payload.action, LeavePilot)
        and event.payload.action.cause is cause
    ]


# -- leaving late ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", ["tick", "watch"])
def test_who_does_not_leave_for_a_main_job_is_killed_at_the_end_of_his_patience(look: str) -> None:
    world = deaf_world(2)
    world.submit(job(1, most=2))
    world.tick()
    world.tick()
    world.cluster.set_main([main_job(9, count=2)])
    world.tick()
    assert not recycled(world)
    world.clock.advance(10.0)
    getattr(world.loop, look)()
    assert [each.kill for each in recycled(world)] == [True, True]
    assert "killed" in recycled(world)[0].reason


def test_a_checkpoint_on_the_way_to_another_size_is_not_cut_short() -> None:
    """No main job waits: Slurm's SIGTERM and KillWait follow, as ever."""
    world = deaf_world(4)
    world.submit(job(1, most=4))
    world.tick()
    world.tick()
    world.submit(job(2, most=4, weight=2.0))
    for _ in range(4):
        world.tick()
    assert asked(world, LeaveCause.SHRINK)
    assert recycled(world) and not any(each.kill for each in recycled(world))


def test_who_was_to_shrink_is_killed_once_a_main_job_waits_for_the_node() -> None:
    world = deaf_world(4)
    world.submit(job(1, most=4))
    world.tick()
    world.tick()
    world.submit(job(2, most=4, weight=2.0))
    world.tick()
    shrunk = asked(world, LeaveCause.SHRINK)
    assert shrunk
    world.cluster.set_main([main_job(9, count=4)])
    world.tick()
    kills = {each.pilot: each.kill for each in recycled(world)}
    assert all(kills[each.pilot] for each in shrunk)


def test_whose_pilots_are_killed_has_not_failed() -> None:
    """Slurm may end the killed task before it is requeued: no fault of a script before its worker was ready."""
    world = deaf_world(8)
    world.submit(job(1))
    world.tick()
    world.tick()
    world.cluster.set_main([main_job(9, count=8)])
    world.tick()
    for pilot in world.running().values():
        world.cluster.end_pilot(pilot, PilotEnd(SlurmState.FAILED, exit_code=137))
    world.tick()
    world.tick()
    assert world.loop.views[1].phase is not JobPhase.FAILED
