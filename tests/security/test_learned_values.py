"""What one user's jobs report or do, and what of it other users' jobs are planned with."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from malletrain.api.explain import explain
from malletrain.decide.sizes import demand_of
from malletrain.domain.decision import Hole
from malletrain.domain.event import Event, GenerationSwitched, JobAnnounced, JsonValue
from malletrain.domain.job import JobPhase, JobView
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.profiling import RETRY_S, explored
from malletrain.loop.trackers.costs import NOTICED_S, Costs, ReleaseLatency
from malletrain.loop.trackers.start_backoff import StartBackoff
from malletrain.loop.waiting_reason import why_without_nodes
from malletrain.wire import messages as wire
from tests.loop.stage import Stage
from tests.messages import says
from tests.world import RULES, START, World, event_of, job

_numbers = count(1)


def grown(costs: Costs, user: str, pause_s: float, took_s: float = 1.0, at: float = START) -> None:
    """A job of `user`'s takes a larger world, `took_s` after its plan was published."""
    number = next(_numbers)
    plan: dict[str, JsonValue] = {"generation": 1, "members": ["a"], "switched_by": "plan"}
    plans = [event_of(at, "generation", number, data=plan)]
    grows: dict[str, JsonValue] = {"generation": 2, "members": ["a", "b"], "switched_by": "plan"}
    plans.append(event_of(at + 50, "generation", number, data=grows))
    said: dict[str, JsonValue] = {"generation": 2, "nodes": 2, "pause_s": pause_s, "step": 0, "grew": True}
    plans.append(event_of(at + 50 + took_s, "switched", number, data=said))
    for event in plans:
        costs.apply(event, (user, "train"))


def warmed(costs: Costs, user: str, seconds: float, **stages: float) -> None:
    data: dict[str, JsonValue] = {"worker": "a", "stages": dict(stages)}
    event = event_of(START + seconds, "worker_warm", next(_numbers), "1_0", data=data)
    costs.apply(event, (user, "train"), START)


def test_a_pause_of_a_billion_seconds_keeps_nobody_elses_job_small() -> None:
    costs = Costs()
    grown(costs, "mallory", 1e9)
    assert costs.of(10**6, ("ada", "mine")).grow_s <= 30.0, "one vote of few"
    assert costs.of(10**6, ("mallory", "other")).grow_s <= NOTICED_S + 1.0, "no longer than the time that there was"


def test_one_user_has_one_vote_however_many_jobs() -> None:
    costs = Costs()
    for user in ("ada", "bob", "eve"):
        grown(costs, user, 0.4)
        warmed(costs, user, 20.0)
    for _ in range(200):
        grown(costs, "mallory", 80.0, took_s=100.0)
        warmed(costs, "mallory", 3600.0)
        costs.started(3600.0, "mallory")
    costs.started(2.0, "ada")
    costs.started(3.0, "bob")
    found = costs.of(10**6, ("new", "mine"))
    assert found.grow_s == pytest.approx(0.4)
    assert found.activate_s == pytest.approx(20.0)
    assert found.start_s == pytest.approx(3.0)


def test_a_restart_folds_the_same() -> None:
    one, two = Costs(), Costs()
    for costs in (one, two):
        global _numbers
        _numbers = count(1)
        grown(costs, "ada", 3.0)
        grown(costs, "bob", 1.0)
    assert one.of(99, ("x", "y")) == two.of(99, ("x", "y"))


def test_an_exit_that_one_user_draws_out_moves_the_sites_margin_by_little() -> None:
    exits = ReleaseLatency()
    for n in range(40):
        for user, seconds in (("ada", 8.0), ("bob", 9.0), ("mallory", 590.0)):
            pilot = f"{user}_{n}"
            exits.apply(event_of(START, "pilot_started", 1, pilot, "n0"), user)
            exits.apply(event_of(START + 1, "intent", 1, pilot, "n0", data={"type": "recycle"}), user)
            exits.apply(event_of(START + 1 + seconds, "pilot_held", 1, pilot), user)
    assert exits.usual_s() == pytest.approx(19.0)


def unstarted(backoff: StartBackoff, number: int, user: str) -> None:
    backoff.apply(Event(START, JobAnnounced(replace(job(number), user=user)), number))
    data: dict[str, JsonValue] = {"type": "recycle", "unstarted": "n0"}
    backoff.apply(event_of(START, "intent", number, f"{number}_0", "n0", data=data))


def test_one_users_jobs_take_no_node_from_others() -> None:
    backoff = StartBackoff()
    backoff.apply(Event(START, JobAnnounced(replace(job(9), user="ada")), 9))
    unstarted(backoff, 1, "mallory")
    unstarted(backoff, 2, "mallory")
    assert backoff.resting(START + 1) == {}
    assert set(backoff.resting_on(START + 1)) == {1, 2}, "his own"
    unstarted(backoff, 3, "ada")
    assert "n0" in backoff.resting(START + 1)


def dear(world: World) -> JobView:
    """A job whose first start took 2,000 s has given its nodes up."""
    world.submit(job(1))
    world.tick()
    world.tick()
    first = world.loop.views[1].staying[0]
    assert first.started_at is not None
    warm = event_of(first.started_at + 2000.0, "worker_warm", 1, first.id, first.node, data={"worker": "w"})
    world.loop.record([warm])
    return replace(world.loop.views[1], phase=JobPhase.QUEUED, world=None, worlds_at=(), nodes_since=START)


def test_a_cost_that_forbids_a_change_is_doubted_in_time() -> None:
    view = dear(World(4))
    demand = demand_of(view, (), JobKnowledge(), RULES)
    assert explored(demand, view, 600.0, START + RETRY_S - 1).activate_s == 2000.0
    assert explored(demand, view, 600.0, START + RETRY_S).activate_s == 300.0
    assert explored(demand, view, 600.0, START + 3 * RETRY_S).activate_s == 75.0
    usual = replace(demand, activate_s=60.0, grow_s=20.0)
    assert explored(usual, view, 600.0, START + 1e6) is usual


def test_the_reason_of_a_job_that_a_slow_start_keeps_from_nodes_is_told() -> None:
    world = World(4)
    view = replace(dear(world), pilots={p.id: p for p in world.loop.views[1].held})
    empty = World(4)
    empty.tick()
    decision, snapshot = empty.loop.last_decision, empty.loop.last_snapshot
    assert decision is not None and snapshot is not None
    idle = replace(decision, refusals=(), horizon_s=600.0)
    with_holes = replace(idle, holes=tuple(Hole(name, START + 3600.0, "") for name in ("n0", "n1")))
    why = why_without_nodes(view, with_holes, snapshot)
    assert says(why, "2000 s", "600 s")
    lines = explain("1", {1: view}, None, with_holes, ())
    assert any(says(line, "grows little", "2000 s") for line in lines)


def test_a_reported_pause_is_no_longer_than_the_daemon_saw_the_world_stand() -> None:
    stage = Stage()
    first, *_ = stage.begin(1)
    stage.warm(1)
    stage.clock.at += 4.0
    plan = stage.plan(first)
    assert plan is not None and len(plan.members) == 2
    stage.members.report(first, wire.Switched(plan.generation, 5, 2, 1e9, True))
    said = stage.seen("switched")[-1].payload
    assert isinstance(said, GenerationSwitched)
    assert 4.0 <= said.pause_s <= 5.0


@pytest.mark.parametrize("said", [1e101, 1e299, float("nan"), -1e299])
def test_a_noise_scale_beyond_reason_is_not_taken_and_stops_no_look(said: float) -> None:
    """The wire takes numbers up to 1e300, a plan's up to 1e100: every look failed, for all users."""
    world = World()
    world.submit(job(1))
    world.submit(replace(job(2), user="bob"))
    world.tick()
    pilots = [pilot.id for pilot in world.loop.ledger.views()[1].staying]
    plan: dict[str, JsonValue] = {"generation": 1, "members": list(pilots)}
    world.workers.report(event_of(world.clock.now(), "generation", 1, data=plan))
    sound: dict[str, JsonValue] = {"nodes": len(pilots), "samples": 100, "seconds": 10.0, "steps": 20}
    for noise in (7.0, said):
        data = {**sound, "noise_scale": noise}
        world.workers.report(event_of(world.clock.now(), "samples", 1, pilots[0], data=data))
        world.tick()
    assert world.loop.ledger.views()[1].noise_scale == 7.0
