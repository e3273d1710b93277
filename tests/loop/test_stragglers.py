"""Through the daemon's loop: a slow worker is told from what its world reports, replaced, and goes after that."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from malletrain.domain.decision import LeaveCause, StartPilot
from malletrain.domain.event import Event, JsonValue
from malletrain.domain.job import Curve
from malletrain.learn.stragglers import MIN_WINDOWS
from malletrain.loop.ledger import Ledger
from malletrain.loop.trackers.straggler_history import REST_S
from malletrain.wire.messages import Samples, to_json
from tests.messages import says
from tests.world import World, data_of, event_of, job


def report(world: World, rates: dict[str, float], windows: int = 1, members: Sequence[str] = ()) -> None:
    """What the main worker of job 1 says, as it comes over the wire."""
    members = members or sorted(world.running().values())
    said = Samples(1, 4, 300, 3.0, 10, 0, rates={f"{p}.0": rates.get(p, 100.0) for p in members})
    body = {key: value for key, value in json.loads(json.dumps(to_json(said))).items() if key != "type"}
    for _ in range(windows):
        world.workers.report(event_of(world.clock.now(), "samples", 1, members[0], data=body))


def warm(world: World, *pilots: str) -> None:
    world.workers.report(*(event_of(world.clock.now(), "worker_warm", 1, p) for p in pilots))


def on_four(nodes: int) -> World:
    """Job 1 trains on four nodes of so many, and may not have more."""
    world = World(nodes)
    world.submit(job(1, most=4, given_curve=Curve.linear(4, 25.0)))
    world.tick()
    world.tick()
    assert len(world.running()) == 4
    warm(world, *world.running().values())
    members = tuple(world.running().values())
    world.workers.report(
        event_of(world.clock.now(), "generation", 1, data={"generation": 1, "members": list(members)})
    )
    world.tick()
    return world


def intents(world: World, kind: str) -> list[Event]:
    return [e for e in world.journal.events if e.kind == "intent" and data_of(e)["type"] == kind]


def refused(world: World, subject: str) -> list[str]:
    decision = world.loop.last_decision
    assert decision is not None
    return [r.reason for r in decision.refusals if r.subject == subject]


def test_a_straggler_goes_after_its_replacement_is_ready_and_its_node_rests() -> None:
    world = on_four(6)
    slow_node, slow = sorted(world.running().items())[1]
    report(world, {slow: 60.0}, MIN_WINDOWS)
    world.tick()
    started = intents(world, "start")[-1]
    assert data_of(started)["replaces"] == slow and "60%" in started.reason and slow_node in started.reason
    replacement = started.pilot or ""
    assert len(world.running()) == 5, "the replacement starts while the straggler trains"
    for _ in range(3):
        report(world, {slow: 60.0})
        world.tick()
        assert slow in world.running().values(), "it stays until its replacement is ready"
        assert len(world.running()) == 5, "nobody replaces it twice"
        assert "stays until" in refused(world, "job 1")[0]
    warm(world, replacement)
    world.tick()
    assert slow not in world.running().values() and replacement in world.running().values()
    left = [e for e in intents(world, "leave") if e.pilot == slow]
    assert data_of(left[0])["cause"] == LeaveCause.STRAGGLER and "is ready" in left[0].reason
    world.tick()
    assert world.nodes_of(1) == 4
    # Its job avoids the node for a while; another job may have it at once.
    now = world.clock.now()
    assert says(world.loop.ledger.paces.avoided(now)[1][slow_node], "replaced")
    assert not world.loop.ledger.paces.avoided(now + REST_S)
    world.submit(job(2, most=4, given_curve=Curve.linear(4)))
    for _ in range(3):
        world.tick()
    assert len(world.running()) == 6 and world.nodes_of(1) == 4


def test_without_a_free_node_it_stays_and_the_reason_is_told() -> None:
    world = on_four(4)
    slow = sorted(world.running().values())[0]
    report(world, {slow: 50.0}, MIN_WINDOWS)
    world.tick()
    assert len(world.running()) == 4 and slow in world.running().values()
    assert says(refused(world, "job 1")[0], "free node")


def test_whoever_has_recovered_by_then_stays() -> None:
    world = on_four(6)
    slow = sorted(world.running().values())[2]
    report(world, {slow: 75.0}, MIN_WINDOWS)
    world.tick()
    assert len(world.running()) == 5
    report(world, {}, 10)
    world.tick()
    assert not [e for e in intents(world, "leave") if data_of(e)["cause"] == LeaveCause.STRAGGLER]
    assert world.nodes_of(1) == 4, "one is too many then"


def test_a_job_that_shrinks_gives_up_its_straggler_first() -> None:
    world = on_four(4)
    slow = sorted(world.running().values())[2]
    report(world, {slow: 50.0}, MIN_WINDOWS)
    world.submit(job(2, most=1, weight=100.0))
    world.tick()
    assert slow not in world.running().values()


def test_one_bad_window_moves_nobody() -> None:
    world = on_four(6)
    slow = sorted(world.running().values())[0]
    report(world, {}, MIN_WINDOWS)
    report(world, {slow: 20.0})
    world.tick()
    decision = world.loop.last_decision
    assert decision is not None and not any(isinstance(a, StartPilot) for a in decision.actions)


@pytest.mark.parametrize("rates", [{"no_pilot": 5.0}, {"": 1.0, ".": 2.0, "x.y.z": -1.0}])
def test_rates_of_nobody_change_nothing(rates: dict[str, float]) -> None:
    world = on_four(6)
    data: dict[str, JsonValue] = {"nodes": 4, "samples": 300, "seconds": 3.0, "steps": 10, "rates": {**rates}}
    world.workers.report(*[event_of(world.clock.now(), "samples", 1, data=data)] * MIN_WINDOWS)
    world.tick()
    assert len(world.running()) == 4


def test_a_restarted_daemon_knows_what_the_last_one_knew() -> None:
    world = on_four(6)
    slow = sorted(world.running().values())[0]
    report(world, {slow: 60.0}, MIN_WINDOWS)
    world.tick()
    again = Ledger()
    again.apply(world.journal.events)
    assert again.paces.slow() == world.loop.ledger.paces.slow() != {}
    assert [p for p in again.views()[1].staying if p.replaces == slow]


class Training:
    """Job 1 trains in a world whose ranks are its members' order; `pace(node, rank)` says how fast each computes."""

    def __init__(self, world: World, pace: Callable[[str, int], float]) -> None:
        self.world, self.pace = world, pace
        self.members: tuple[str, ...] = ()
        self.generation = 0

    def windows(self, count: int) -> None:
        for _ in range(count):
            at = {pilot.id: pilot.node for pilot in self.world.loop.ledger.views()[1].staying}
            staying = [p for p in self.members if p in at]
            members = (*staying, *sorted(set(at) - set(staying)))
            if members != self.members:
                self.members, self.generation = members, self.generation + 1
                warm(self.world, *members)
                told: dict[str, JsonValue] = {"generation": self.generation, "members": list(members)}
                self.world.workers.report(event_of(self.world.clock.now(), "generation", 1, data=told))
            report(self.world, {p: self.pace(at[p], rank) for rank, p in enumerate(members)}, members=members)
            self.world.tick()

    def departures(self) -> list[Event]:
        return [e for e in intents(self.world, "leave") if data_of(e)["cause"] == LeaveCause.STRAGGLER]


def training(nodes: int, most: int, pace: Callable[[str, int], float], kinds: Sequence[str] = ()) -> Training:
    world = World(nodes)
    for name, kind in zip(list(world.cluster.nodes), kinds, strict=False):
        world.cluster.nodes[name] = replace(world.cluster.nodes[name], gres=f"gpu:{kind}:4")
    world.submit(job(1, most=most, given_curve=Curve.linear(most, 25.0)), tasks=3 * nodes)
    world.tick()
    return Training(world, pace)


def test_two_classes_of_nodes_are_compared_within_each() -> None:
    """Six fast and six slow nodes, with the classes that Slurm names."""
    kinds = ["fast"] * 6 + ["slow"] * 6
    slow = {f"n{i}" for i in range(6, 12)}
    for most in (8, 11, 12):
        found = training(12, most, lambda node, rank: 60.0 if node in slow else 100.0, kinds)
        found.windows(100)
        assert found.departures() == [], most
    slow = {f"n{i}" for i in range(6, 12)}
    found = training(
        12, 11, lambda node, rank: (60.0 if node in slow else 100.0) * (0.5 if node == "n7" else 1), kinds
    )
    found.windows(100)
    assert {e.node for e in found.departures()} <= {"n7"}, "one that is slow for its class is a straggler"


def test_a_job_that_lies_rests_few_nodes_and_only_for_itself() -> None:
    """Each window another worker is called slow, whichever has the most of the pool to lose."""
    world = World(16)
    world.submit(job(1, most=8, given_curve=Curve.linear(8, 25.0)), tasks=60)
    world.tick()
    found = Training(world, lambda node, rank: 30.0 if int(node[1:]) == min(held) else 100.0)
    for _ in range(60):
        held = [int(pilot.node[1:]) for pilot in world.loop.ledger.views()[1].staying]
        found.windows(1)
    assert len(found.departures()) <= 2
    avoided = world.loop.ledger.paces.avoided(world.clock.now())
    assert set(avoided) <= {1} and len(avoided.get(1, ())) <= 1
    world.submit(job(2, most=8, given_curve=Curve.linear(8)))
    for _ in range(3):
        world.tick()
    assert len(world.running()) == 16, "another job has every node"
