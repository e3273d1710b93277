"""Jobs of unknown scalability in the loop: what they train tells the advisor; sizes become those of the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from malletrain.domain.event import JsonValue
from malletrain.domain.job import Curve, Profile
from malletrain.learn.advisor import JobKnowledge, ProbeRules
from malletrain.loop.ledger import Ledger
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import JobDemand, Problem
from tests.world import RULES, World, data_of, event_of, job

Rate = Callable[[int], float]


BATCH = 64


class Training:
    """Workers that train at their job's true rate and report a window each tick that leaves the world alone."""

    def __init__(self, world: World, rates: Mapping[int, Rate]) -> None:
        self.world, self.rates = world, rates
        self.members: dict[int, tuple[str, ...]] = {}
        self.generation = 0
        self.sizes: dict[int, list[int]] = {job_id: [] for job_id in rates}

    def tick(self) -> None:
        self.world.tick()
        events = []
        now = self.world.clock.now()
        for job_id, rate in self.rates.items():
            members = tuple(p.id for p in self.world.loop.ledger.views()[job_id].staying)
            self.sizes[job_id].append(len(members))
            if members != self.members.get(job_id, ()):
                self.generation += 1
                data: dict[str, JsonValue] = {"generation": self.generation, "members": list(members)}
                events.append(event_of(now, "generation", job_id, data=data))
            elif members:
                # The batch stays what it is, as a script's does: windows of other batches are not compared.
                seconds = 20 * BATCH / rate(len(members))
                rated = {"nodes": len(members), "samples": 20.0 * BATCH, "seconds": seconds, "steps": 20}
                events.append(event_of(now, "samples", job_id, members[0], data=rated))
            self.members[job_id] = members
        self.world.workers.report(*events)

    def probes(self, job_id: int) -> list[int]:
        kinds = (e for e in self.world.journal.events if e.kind == "probe_begun" and e.job == job_id)
        return [cast(int, data_of(e)["nodes"]) for e in kinds]


def scales(n: int) -> float:
    return 400.0 * math.pow(n, 0.85)


def stalls(n: int) -> float:
    """Gains up to two nodes, loses beyond."""
    return 5.0 * {1: 1.0, 2: 1.9}.get(n, 1.9 / (1 + 0.4 * (n - 2)))


def best(rates: Mapping[int, Rate], nodes: int, most: int) -> dict[int, int]:
    demands = []
    for job_id, rate in rates.items():
        curve = Curve(tuple((n, rate(n) / rate(1)) for n in range(1, most + 1)))
        demands.append(JobDemand(job_id, 0, 1, most, curve))
    return {int(j): n for j, n in Exact().size(Problem(300.0, nodes, tuple(demands))).sizes.items()}


def test_on_a_steady_pool_the_default_trains_as_an_oracle_from_the_tenth_minute_on() -> None:
    """Passive never leaves the even split here: .57 of the oracle for good."""
    world = World(nodes=16)
    rates = {1: scales, 2: stalls}
    for job_id, name in ((1, "convnet"), (2, "recommender")):
        world.submit(replace(job(job_id, most=16), name=name), tasks=40)
    training = Training(world, rates)
    for _ in range(120):
        training.tick()
    ideal = sum(rates[j](n) / rates[j](1) for j, n in best(rates, 16, 16).items())
    trained = [
        sum(rates[j](training.sizes[j][tick]) / rates[j](1) for j in rates if training.sizes[j][tick])
        for tick in range(60, 120)
    ]
    assert sum(trained) / len(trained) > 0.98 * ideal


def test_downward_a_job_is_measured_from_large_to_small_and_rests_at_its_best_size() -> None:
    rules = replace(RULES, probing=ProbeRules(Profile.DOWNWARD))
    for rate, rests in ((scales, 16), (stalls, 2)):
        world = World(nodes=16, rules=rules)
        world.submit(job(1, most=16), tasks=60)
        training = Training(world, {1: rate})
        for _ in range(60):
            training.tick()
        assert max(training.sizes[1]) == 16, "it begins as large as it can"
        assert training.probes(1) == [8, 4, 2, 1]
        assert set(training.sizes[1][-10:]) == {rests}


def test_a_job_whose_phase_changes_is_measured_again_and_changes_places() -> None:
    """n^.85 turns flat and the other way round: within ten minutes the sizes are those of the new curves."""
    world = World(nodes=16)
    rates: dict[int, Rate] = {1: scales, 2: stalls}
    for job_id, name in ((1, "convnet"), (2, "recommender")):
        world.submit(replace(job(job_id, most=16), name=name), tasks=80)
    training = Training(world, rates)
    for _ in range(400):  # longer than windows of one size are kept
        training.tick()
    assert {j: world.nodes_of(j) for j in rates} == best(rates, 16, 16)
    rates |= {1: lambda n: 300.0 * stalls(n), 2: lambda n: scales(n) / 50.0}
    for _ in range(60):
        training.tick()
    expected = best(rates, 16, 16)
    assert expected == {1: 2, 2: 14}
    assert {j: world.nodes_of(j) for j in rates} == expected
    for _ in range(400):
        training.tick()
    assert {j: world.nodes_of(j) for j in rates} == expected, "the old phase does not come back"


def test_probes_are_limited_by_the_hour_and_a_new_phase_has_its_own() -> None:
    known = JobKnowledge(probes=((0.0, 4), (10.0, 4), (3000.0, 8)))
    assert known.tries(3000.0) == {4: 2, 8: 1}
    assert known.tries(3605.0) == {4: 1, 8: 1}
    assert known.tries(7000.0) == {}
    assert replace(known, phase_began=15.0).tries(3000.0) == {8: 1}


def test_a_probe_is_kept_until_its_windows_are_full() -> None:
    world = World(nodes=16)
    world.submit(replace(job(1, most=16), name="convnet"), tasks=40)
    world.submit(replace(job(2, most=16), name="recommender"), tasks=40)
    training = Training(world, {1: scales, 2: stalls})
    held: dict[int, int] = {}
    for _ in range(60):
        training.tick()
        for job_id, known in world.loop.ledger.known().items():
            if known.probe is not None and known.probe.reached:
                assert held.setdefault(job_id, known.probe.nodes) == known.probe.nodes
                assert world.nodes_of(job_id) == known.probe.nodes
            else:
                held.pop(job_id, None)
    assert training.probes(2), "something was tried"
    ends = [e.reason for e in world.journal.events if e.kind == "probe_ended"]
    assert all(reason.startswith("measured") for reason in ends), ends


def test_a_job_is_never_probed_unless_profiling_is_active() -> None:
    for profile in (Profile.PASSIVE, Profile.NONE):
        world = World(nodes=8, rules=replace(RULES, probing=ProbeRules(profile=profile)))
        world.submit(job(1, most=8), tasks=20)
        training = Training(world, {1: stalls})
        for _ in range(20):
            training.tick()
        assert training.probes(1) == []
        assert world.nodes_of(1) == 8


def test_a_worker_that_lies_changes_nothing_and_is_counted() -> None:
    world = World(nodes=4)
    world.submit(job(1, most=4), tasks=20)
    training = Training(world, {1: scales})
    for _ in range(8):
        training.tick()
    before = world.loop.ledger.known()[1]
    done = world.loop.views[1].samples_done
    lies = [
        {"nodes": 64, "samples": 1e9, "seconds": 1.0, "steps": 9}, {"nodes": 4, "samples": math.nan, "seconds": 1.0},
        {"nodes": 4, "samples": -5.0, "seconds": 1.0}, {"nodes": 4, "samples": 1e200, "seconds": 1e-9, "total": 1e9},
        {"nodes": 0, "samples": 1.0, "seconds": 1.0}, {"nodes": 4, "samples": 9.0, "seconds": -math.inf},
        {"nodes": 4, "samples": 9.0, "seconds": 1.0, "total": math.nan},
    ]  # fmt: skip
    now = world.clock.now() - 1e6  # and its clock has jumped
    world.loop.record([event_of(now, "samples", 1, "x", data=data) for data in lies[:-1]])
    after = world.loop.ledger.known()[1]
    assert after.fit == before.fit and world.loop.views[1].samples_done == done
    assert sum(after.ignored.values()) == len(lies) - 1
    world.loop.record([event_of(now, "samples", 1, "x", data=lies[-1])])
    assert math.isfinite(world.loop.views[1].samples_done)
    for _ in range(3):
        training.tick()
    assert world.nodes_of(1) == 4


def test_the_journal_folded_anew_knows_the_same() -> None:
    world = World(nodes=16)
    world.submit(job(1, most=16), tasks=40)
    world.submit(job(2, most=16), tasks=40)
    training = Training(world, {1: scales, 2: stalls})
    for _ in range(25):
        training.tick()
        again = Ledger()
        again.apply(world.journal.events)
        here = world.loop.ledger.known()
        assert {j: (k.probe, k.probes, k.ignored) for j, k in again.known().items()} == {
            j: (k.probe, k.probes, k.ignored) for j, k in here.items()
        }
