"""The daemon's clock is set forward or back by hours between two looks: no job fails for it, and all goes on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from malletrain.decide.leaving import overdue_leaves, overdue_pilots
from malletrain.decide.yielding import YieldPlan
from malletrain.domain.decision import Action, LeaveCause, RecyclePilot
from malletrain.domain.event import ActionIntent, Event
from malletrain.domain.job import JobPhase, JobView, Pilot, PilotPhase
from malletrain.domain.snapshot import Snapshot
from malletrain.loop.tick import Loop
from malletrain.loop.trackers.start_backoff import StartBackoff
from malletrain.site_rules import IDLE_S, JOIN_S
from malletrain.sizing.registry import policy as policy_named
from tests.world import RULES, START, World, event_of, job

HOUR_S = 3600.0
JUMPS = [-26 * HOUR_S, -5 * HOUR_S, -400.0, 400.0, 5 * HOUR_S, 26 * HOUR_S]


class DaemonsClock:
    """The cluster's, set forward or back by `ahead_s`."""

    def __init__(self, of: World) -> None:
        self.of, self.ahead_s = of, 0.0

    def now(self) -> float:
        return self.of.clock.now() + self.ahead_s

    def elapsed(self) -> float:
        return self.of.clock.elapsed()


class Jumping(World):
    """A daemon on a machine of its own: its clock jumps, Slurm's does not."""

    def __init__(self, nodes: int = 4) -> None:
        super().__init__(nodes)
        self.daemons = DaemonsClock(self)
        rules = replace(RULES, join_s=JOIN_S, idle_s=IDLE_S)
        self.loop = Loop(self.cluster, self.workers, self.journal, self.daemons, policy_named("exact"), rules)
        take = self.cluster.snapshot
        self.cluster.snapshot = lambda: replace(take(), taken_at=self.daemons.now())  # type: ignore[method-assign]

    def until(self, pilots: int, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()
            if len(self.running()) == pilots:
                return
        raise AssertionError(f"{len(self.running())} pilots after {ticks} looks: {self.journal.events[-20:]}")

    def warm(self) -> None:
        for name, pilot in self.running().items():
            self.loop.record([event_of(self.daemons.now(), "worker_warm", 1, pilot, name)])


@pytest.mark.parametrize("by_s", JUMPS)
@pytest.mark.parametrize("ready", [True, False])
def test_no_job_fails_and_its_nodes_are_its_own_again(by_s: float, ready: bool) -> None:
    world = Jumping()
    world.submit(job(1), tasks=60)
    world.until(4, ticks=6)
    if ready:
        world.warm()
    for sign in (1, -1, 1):
        world.daemons.ahead_s += sign * by_s
        world.until(4, ticks=30)
        world.warm()
    view = world.loop.ledger.views()[1]
    assert (view.failures, view.phase.is_over) == (0, False), view.reason


@pytest.mark.parametrize("by_s", [*JUMPS, -2400.0, 2400.0])
@pytest.mark.parametrize("joined", [True, False])
def test_nobody_leaves_for_time_that_the_clock_alone_has_counted(by_s: float, joined: bool) -> None:
    """Set forward by 40 minutes it had every job leave all its nodes, and set the job aside."""
    world = Jumping()
    world.submit(job(1), tasks=60)
    world.until(4, ticks=6)
    if joined:
        world.warm()
    world.tick()
    for sign in (1, -1, 1):
        world.daemons.ahead_s += sign * by_s
        for _ in range(3):
            world.tick()
    assert not [e for e in world.journal.events if re.search("no step|no worker", e.reason)]


def test_one_that_trains_nothing_leaves_after_its_time_all_the_same() -> None:
    world = Jumping()
    world.submit(job(1), tasks=60)
    world.until(4, ticks=6)
    world.daemons.ahead_s += 400.0
    for _ in range(60):
        world.tick(JOIN_S / 30)
    assert [e for e in world.journal.events if "no worker" in e.reason]


@pytest.mark.parametrize("phase", [PilotPhase.RELEASED, PilotPhase.LEAVING, PilotPhase.RECYCLING])
def test_what_was_asked_for_before_the_clock_was_set_back_is_overdue(phase: PilotPhase) -> None:
    """Not hours later, when the clock reads again what it read then."""
    asked = START + 5 * HOUR_S
    pilot = Pilot("9_0", 1, phase, asked, "n0", started_at=START, leave_by=asked + 30, leave_cause=LeaveCause.YIELD)
    views = {1: JobView(job(1), JobPhase.RUNNING, {pilot.id: pilot})}
    (action,) = overdue(views)
    assert isinstance(action, RecyclePilot)
    early = {1: replace(views[1], pilots={pilot.id: replace(pilot, since=START - 1, leave_by=START + 30)})}
    assert overdue(early) == []


def overdue(views: dict[int, JobView]) -> list[Action]:
    leaves = overdue_leaves(views, START, YieldPlan(), RULES)
    return leaves + overdue_pilots(views, Snapshot(START, (), ()), START, RULES)


def test_a_rest_that_was_begun_before_the_clock_was_set_back_is_over() -> None:
    backoff, at = StartBackoff(), START + 5 * HOUR_S
    for number in (1, 2):
        recycled = RecyclePilot(number, f"{number}_0", "n0", "Slurm says: Priority", unstarted="n0")
        backoff.apply(Event(at, ActionIntent(recycled), number, f"{number}_0", "n0", "why"))
        recycled = RecyclePilot(number, f"{number}_1", "n1", "Slurm says: Licenses", unstarted=f"job {number}")
        backoff.apply(Event(at, ActionIntent(recycled), number, f"{number}_1", "n1", "why"))
    assert backoff.resting(at + 1)
    assert backoff.resting_on(at + 1)
    assert all(each.rests for each in backoff.doubtful(at + 1).values())
    assert not backoff.resting(START)
    assert not backoff.resting_on(START)
    assert not any(each.rests for each in backoff.doubtful(START).values())
