"""Nodes that a reload no longer lets be harvested are left (tests/slurm/test_leaving.py has what the staff does)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from malletrain.decide.promise.promised_reserve import MainPromise
from malletrain.domain.decision import LeavePilot, RecyclePilot
from malletrain.domain.event import ActionIntent, EventKind
from malletrain.domain.snapshot import Snapshot
from malletrain.loop.memory import MemoryWorkers
from malletrain.loop.trackers.hetjobs_seen import HetjobsSeen
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
    reasons = [e.reason for e in world.journal.events if e.kind is EventKind.INTENT and e.node == "n1"]
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
    ends = (EventKind.INTENT, EventKind.PILOT_ENDED)
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


def test_a_reserve_that_holds_only_a_part_of_a_heterogeneous_job_is_given_up_for_a_week() -> None:
    world = World(nodes=4, rules=replace(RULES, keep_idle=1, spare_hetjobs=True))
    world.submit(job(1, most=4))
    world.tick()
    world.tick()
    assert len(world.running()) == 3
    assert world.loop.reserve_notice() == ""
    world.cluster.set_main([main_job(n, count=n - 7, het_id=8, reason="Dependency") for n in (8, 9)])
    world.tick()
    assert world.loop.last_decision is not None
    assert "heterogeneous jobs of 3 nodes" in world.loop.last_decision.reason
    notice, why = world.loop.reserve_notice(), "pool.keep_idle = 1 would let Slurm start a part of heterogeneous jobs"
    until = datetime.fromtimestamp(world.clock.now() + 7 * 86_400.0, UTC)
    assert notice.startswith(
        f"0 nodes stay idle until {until:%Y-%m-%d %H:%M} UTC, 7 days after the last of them: {why}"
    )
    world.cluster.set_main([])
    world.tick()
    assert len(world.running()) == 4
    world.tick(8 * 86_400.0)
    world.tick()
    assert len(world.running()) == 3


@pytest.mark.parametrize("changed", [{}, {"keep_idle": 3, "spare_hetjobs": True}])
def test_a_reserve_stays_that_holds_the_whole_or_that_the_site_wants(changed: dict[str, object]) -> None:
    world = World(nodes=4, rules=replace(RULES, **{"keep_idle": 1, **changed}))  # type: ignore[arg-type]
    world.submit(job(1, most=4))
    world.cluster.set_main([main_job(n, count=n - 7, het_id=8, reason="Dependency") for n in (8, 9)])
    world.tick()
    world.tick()
    assert len(world.running()) == 4 - world.loop.rules.keep_idle
    assert world.loop.reserve_notice() == ""


def test_a_reserve_that_a_promise_asks_for_is_not_made_smaller() -> None:
    seen = HetjobsSeen()
    parts = tuple(main_job(n, count=n - 7, het_id=8) for n in (8, 9))
    seen.look(Snapshot(START, (), parts), RULES.harvest_partition, START)
    rules = replace(RULES, keep_idle=2, spare_hetjobs=True)
    assert seen.rules(rules).keep_idle == 0
    promised = replace(rules, promise=MainPromise(p95_s=2.0))
    assert seen.rules(promised) == promised
    cycles = replace(rules, promise=MainPromise(cycle_ratio=1.5))
    assert seen.rules(cycles).keep_idle == 0


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
