"""Nodes that a reload no longer lets be harvested are left (tests/slurm/test_leaving.py has what the staff does)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.decision import LeavePilot, RecyclePilot
from malletrain.domain.event import ActionIntent
from malletrain.loop.memory import MemoryWorkers
from tests.world import RULES, START, World, data_of, job, main_job


def test_nodes_excluded_by_a_reload_are_left() -> None:
    world = World(nodes=4)
    world.submit(job(1, most=4))
    world.tick()
    world.tick()
    assert set(world.running()) == {"n0", "n1", "n2", "n3"}
    world.loop.rules = replace(world.loop.rules, exclude_nodes=frozenset({"n1"}))
    world.tick()
    world.tick()
    assert set(world.running()) == {"n0", "n2", "n3"}
    reasons = [e.reason for e in world.journal.events if e.kind == "intent" and e.node == "n1"]
    assert any("pool.include, exclude" in reason for reason in reasons)


class Deaf(MemoryWorkers):
    """Workers that do not leave when they are asked to."""

    def leave(self, action: LeavePilot) -> None:
        pass


@pytest.mark.parametrize("tick", [1.0, 2.0, 5.0, 10.0])
@pytest.mark.parametrize("phase", range(10))
def test_a_worker_that_does_not_leave_is_killed_in_time_for_the_main_job(tick: float, phase: int) -> None:
    """Whatever the phase of the ticks: KillWait, which is in the margin, begins before the margin does."""
    rules = replace(RULES, margin_s=40.0, min_hole_s=120.0, leave_lead_s=tick + 5.0, leave_patience_s=10.0)
    world = World(nodes=1, rules=rules)
    world.workers = world.loop._workers = Deaf(world.clock)
    closes = START + 200.0 + phase
    world.submit(job(1))
    for second in range(1, 201):
        world.clock.advance(1.0)
        if second == 100:  # too late for a limit in whole minutes
            world.cluster.set_main([main_job(9, count=2, start=closes, planned=["n0"])])
        if second % int(tick) == 0:
            world.loop.tick()
        else:
            world.loop.watch()
    ends = ("intent", "pilot_ended")
    given_up = [e for e in world.journal.events if e.kind in ends and data_of(e).get("type", "recycle") == "recycle"]
    assert "still there" in given_up[0].reason or given_up[0].reason == "timeout"
    assert closes - given_up[0].at >= rules.margin_s


def test_slurm_takes_the_nodes_of_a_heterogeneous_job_back_in_one_moment_whatever_their_workers_do() -> None:
    world = World(nodes=4)
    world.workers = world.loop._workers = Deaf(world.clock)
    world.submit(job(1, most=4))
    world.tick()
    world.tick()
    world.cluster.set_main([main_job(10, count=1)])  # one pilot was asked to leave before
    world.loop.watch()
    parts = [main_job(20, count=1, het_id=20, priority=200), main_job(21, count=3, het_id=20, priority=200)]
    world.cluster.set_main(parts)
    world.loop.watch()
    recycled = [
        e.payload.action for e in world.journal.events
        if isinstance(e.payload, ActionIntent) and isinstance(e.payload.action, RecyclePilot)
    ]  # fmt: skip
    assert {action.node for action in recycled} == {"n0", "n1", "n2", "n3"}
    assert {(action.main_job, action.kill) for action in recycled} == {("20", False)}
    assert world.running() == {}


def test_a_pilot_that_slurm_preempts_in_vain_is_ended_by_the_daemon() -> None:
    """It runs on, and the main job waits on: the daemon asks it to leave, and then requeues it itself."""
    world = World(nodes=2)
    world.submit(job(1, most=2))
    for _ in range(3):
        world.tick()
    world.workers.leave = lambda _: None  # type: ignore[method-assign, assignment]
    world.cluster.main = (main_job(9, count=2),)
    for _ in range(4):
        world.tick()
    ended = [e.payload.action for e in world.journal.events if isinstance(e.payload, ActionIntent)]
    assert sum(isinstance(each, RecyclePilot) and each.kill for each in ended) == 2
    assert not world.running()
