"""What a user does to get, or keep, more than the site means to give: what he asks for, claims or leaves undone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import pytest

from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Identity, Role
from malletrain.api.schemas import JobBody
from malletrain.domain.decision import LeaveCause, LeavePilot, RecyclePilot
from malletrain.domain.errors import Refused
from malletrain.domain.event import (
    ActionIntent,
    DaemonStarted,
    Event,
    GenerationPublished,
    PilotHeld,
    SamplesReported,
    WorkerWarm,
)
from malletrain.domain.job import Curve, Elastic, JobPhase, PilotEnd
from malletrain.domain.snapshot import SlurmState
from malletrain.loop.ledger import Ledger
from malletrain.loop.memory import MemoryWorkers
from malletrain.slurm.site.site_facts import Harvest
from tests.messages import naming, says
from tests.world import RULES, START, World, job, main_job


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


# -- holding nodes for nothing ---------------------------------------------------------------------------------

SLEEPERS = replace(RULES, join_s=600.0, idle_s=1200.0, max_pilot_s=36000.0)


def slept(world: World, until_s: float) -> None:
    while world.clock.now() < START + until_s:
        world.tick(30.0)


def warm(world: World, job_id: int) -> None:
    for pilot in world.loop.views[job_id].staying:
        world.workers.report(Event(world.clock.now(), WorkerWarm(), job_id, pilot.id))


def commit(world: World, job_id: int) -> None:
    for pilot in world.loop.views[job_id].staying:
        window = SamplesReported(nodes=1, samples=10.0, seconds=10.0, steps=1)
        world.workers.report(Event(world.clock.now(), window, job_id, pilot.id))


def test_a_script_that_never_joins_loses_its_nodes_and_waits_longer_each_time() -> None:
    world = World(4, SLEEPERS)
    world.submit(job(1, most=4), tasks=40)
    slept(world, 590.0)
    assert world.nodes_of(1) == 4
    slept(world, 700.0)
    assert world.nodes_of(1) == 0
    assert says(asked(world, LeaveCause.IDLE)[0].reason, "no worker")
    refused = {each.subject: each.reason for each in world.loop.last_decision.refusals}  # type: ignore[union-attr]
    assert says(refused["job 1"], "no nodes")
    slept(world, 700.0 + 1800.0)
    assert world.nodes_of(1) == 4, "it may try again"
    slept(world, 700.0 + 1800.0 + 700.0 + 1800.0)
    assert world.nodes_of(1) == 0, "but the second time it waits for twice as long"


def test_a_job_whose_workers_are_warm_and_commit_nothing_loses_its_nodes() -> None:
    world = World(4, SLEEPERS)
    world.submit(job(1, most=4))
    world.tick()
    world.tick()
    warm(world, 1)
    slept(world, 1190.0)
    assert world.nodes_of(1) == 4
    slept(world, 1300.0)
    assert world.nodes_of(1) == 0
    assert says(asked(world, LeaveCause.IDLE)[0].reason, "no step")


def test_who_trains_keeps_his_nodes_and_only_the_sleeping_ones_go() -> None:
    world = World(4, SLEEPERS)
    world.submit(job(1, most=4), tasks=40)
    world.tick()
    world.tick()
    trains, *sleep = sorted(world.loop.views[1].staying, key=lambda pilot: pilot.id)
    while world.clock.now() < START + 800.0:
        window = SamplesReported(nodes=1, samples=10.0, seconds=10.0, steps=1)
        world.workers.report(Event(world.clock.now(), window, 1, trains.id))
        world.workers.report(Event(world.clock.now(), WorkerWarm(), 1, trains.id))
        world.tick(30.0)
    left = {each.pilot for each in asked(world, LeaveCause.NO_WORKER)}
    assert left == {each.id for each in sleep}
    assert trains.id in {pilot.id for pilot in world.loop.views[1].staying}


def test_a_restarted_job_has_no_steps_to_show_but_must_join() -> None:
    world = World(4, SLEEPERS)
    world.submit(job(1, most=4, elastic=Elastic.RESTART))
    world.tick()
    world.tick()
    warm(world, 1)
    slept(world, 5000.0)
    assert world.nodes_of(1) == 4


def test_a_daemon_that_was_away_gives_everybody_their_time_again() -> None:
    world = World(4, SLEEPERS)
    world.submit(job(1, most=4))
    world.tick()
    world.tick()
    warm(world, 1)
    commit(world, 1)
    world.tick()
    world.clock.advance(3000.0)
    world.loop.record([Event(world.clock.now(), DaemonStarted())])
    world.tick()
    assert world.nodes_of(1) == 4
    world.clock.advance(1190.0)
    world.tick()
    assert world.nodes_of(1) == 0


# -- the breaker by job and by user ----------------------------------------------------------------------------


def late(world: World, job_id: int, pilot: str = "77_0") -> None:
    """The job is late for a main job once more."""
    action = RecyclePilot(job_id, pilot, "n0", "still there", kill=True)
    world.loop.record([Event(world.clock.now(), ActionIntent(action), job_id, pilot, "n0", action.reason)])


def two_users(world: World) -> None:
    world.submit(job(1, most=4))
    world.submit(replace(job(2, most=4), user="bob"))
    world.submit(job(3, most=4))


def test_who_is_late_again_and_again_gets_no_nodes_for_a_while() -> None:
    world = World(12)
    two_users(world)
    for _ in range(3):
        world.tick()
        late(world, 1)
    world.tick()
    assert [world.nodes_of(number) for number in (1, 2, 3)] == [4, 4, 4]
    late(world, 1)
    world.tick()
    world.tick()
    assert [world.nodes_of(number) for number in (1, 2, 3)] == [0, 4, 4]
    assert says(asked(world, LeaveCause.SET_ASIDE)[0].reason, "3 times", "hour")
    world.tick(1800.0)
    world.tick()
    assert world.nodes_of(1) == 4


def test_one_main_job_that_wants_many_nodes_counts_once() -> None:
    world = World(12)
    two_users(world)
    world.tick()
    for task in range(8):
        late(world, 1, f"77_{task}")
    world.tick()
    world.tick()
    assert world.nodes_of(1) == 4


def test_with_many_jobs_the_user_is_set_aside() -> None:
    world = World(12)
    two_users(world)
    world.tick()
    for _ in range(4):
        world.tick(2.0)
        late(world, 1)
    for _ in range(3):
        world.tick(2.0)
        late(world, 3)
    world.tick(2.0)
    world.tick(2.0)
    assert [world.nodes_of(number) for number in (1, 2, 3)] == [0, 4, 0]
    assert "owner's" in asked(world, LeaveCause.SET_ASIDE)[-1].reason


def test_what_follows_from_a_job_that_is_set_aside_does_not_stop_the_site() -> None:
    world = World(12)
    two_users(world)
    world.tick()
    for _ in range(4):
        world.tick(2.0)
        late(world, 1)
    ledger, now = world.loop.ledger, world.clock.now()
    for job_id, pilot in ((1, "1001_7"), (2, "1002_7")):
        leave = LeavePilot(job_id, pilot, "n0", LeaveCause.SHRINK, now, "")
        world.loop.record([Event(now, ActionIntent(leave), job_id, pilot, "n0")])
        world.loop.record([Event(now + 61.0, PilotHeld(), job_id, pilot, "n0")])
    assert len(ledger.harm_signals.seen().slow_exits) == 2
    excused = ledger.harm_signals.seen(
        excused=lambda job_id, at: ledger.conduct.excuses(job_id, at, world.loop.rules)
    )
    assert len(excused.slow_exits) == 1


# -- weights ---------------------------------------------------------------------------------------------------


def announce(world: World, role: Role, weight: float) -> int:
    numbers = iter(range(1, 9))
    requests = LoopRequests(
        world.loop, nullcontext(), world.clock, Harvest("harvest"), lambda count: (), lambda: next(numbers)
    )
    return requests.announce(
        JobBody(name="big", min_nodes=1, max_nodes=4, weight=weight), Identity(1001, 1001, "ada", role)
    )


def test_a_weight_above_the_sites_is_refused_to_users_and_given_by_operators() -> None:
    world = World()
    with pytest.raises(Refused, match=naming("(1)")):
        announce(world, "user", 1.001)
    assert not world.loop.views
    assert announce(world, "user", 0.1) == 1, "who ranks his own jobs makes the lesser ones lighter"
    assert announce(World(), "operator", 1000.0) == 1
    world = World(rules=replace(RULES, max_weight=3.0))
    assert announce(world, "user", 3.0) == 1


# -- curves that are given -------------------------------------------------------------------------------------


def trains(world: World, job_id: int, rates: Mapping[int, float]) -> None:
    """One window of a job whose pilots all train."""
    pilots = world.loop.views[job_id].staying
    if not pilots:
        return
    generation = GenerationPublished(1, tuple(pilot.id for pilot in pilots))
    rate = rates[len(pilots)]
    window = SamplesReported(nodes=len(pilots), samples=10.0 * rate, seconds=10.0, steps=10)
    now = world.clock.now()
    world.workers.report(Event(now, generation, job_id), Event(now, window, job_id, pilots[0].id))


def test_a_curve_that_measurements_contradict_is_believed_no_more() -> None:
    """A boast takes nearly all nodes from a job that scales, until three windows of training."""
    world = World(16)
    boast = Curve(((1, 1.0), (2, 2.2), (16, 1e15)))
    world.submit(job(1, most=16, given_curve=boast), tasks=40)
    real = Curve(((1, 100.0), (16, 1200.0)))
    world.submit(replace(job(2, most=16, given_curve=real), user="bob"), tasks=40)
    for _ in range(12):
        world.tick()
        trains(world, 1, {n: 100.0 + n / 10 for n in range(1, 17)})
        trains(world, 2, {n: real.throughput(n) for n in range(1, 17)})
    view = world.loop.views[1]
    assert "not the" in view.curve_refuted
    assert world.nodes_of(1) <= 2, "it does not scale"
    assert world.nodes_of(2) >= 13
    assert world.loop.views[2].curve is real
    again = Ledger()
    again.apply(world.journal.events)
    assert again.views()[1].curve_refuted == view.curve_refuted, "the same after a crash"


def test_nobody_is_believed_to_train_more_a_node_on_more_nodes() -> None:
    world = World(8)
    world.submit(job(1, most=8, given_curve=Curve(((1, 1e-9), (8, 1e15)))))
    world.submit(replace(job(2, most=8, given_curve=Curve(((1, 100.0), (8, 790.0)))), user="bob"))
    world.tick()
    assert world.loop.views[1].curve is not None
    assert world.loop.views[1].curve.over_one().throughput(8) <= 8.8


# -- shares ----------------------------------------------------------------------------------------------------


def test_many_jobs_bring_no_more_than_the_share_while_another_user_wants_nodes() -> None:
    world = World(12, replace(RULES, user_share=0.5))
    steep = Curve(((1, 1.0), (12, 12.0)))
    for number in range(1, 7):
        world.submit(job(number, most=12, given_curve=steep))
    world.tick()
    world.tick()
    assert sum(world.nodes_of(number) for number in range(1, 7)) == 12, "nobody else wants any"
    world.submit(replace(job(7, most=12, given_curve=Curve(((1, 1.0), (12, 4.0)))), user="bob"), tasks=12)
    for _ in range(4):
        world.tick()
    assert world.nodes_of(7) == 6
