"""Nodes of two classes in the loop: jobs are measured on both, and end where each class is worth most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from malletrain.decide.rules import Rules
from malletrain.domain.event import JsonValue
from malletrain.domain.job import Curve, Elastic, Profile, ThroughputSample
from malletrain.domain.snapshot import Node, NodeState
from malletrain.learn.class_curves import class_speeds, curves_on_classes, fits_by_class, least_on
from tests.world import RULES, World, event_of, job

NEW, OLD = "gpu:a100:4", "gpu:v100:4"
#: Samples/s of one node of the class.
Speeds = Mapping[str, float]
PLAIN = replace(RULES, probing=replace(RULES.probing, profile=Profile.PASSIVE))


def world_of(new: int, old: int, rules: Rules = PLAIN) -> World:
    world = World(new + old, rules)
    for i in range(new + old):
        name = f"n{i}"
        world.cluster.nodes[name] = replace(world.cluster.nodes[name], gres=f"{NEW if i < new else OLD}(S:0-1)")
    return world


class Training:
    """Workers with equal shares: the slowest of a world gates it."""

    def __init__(
        self, world: World, jobs: Mapping[int, Speeds], shape: Callable[[int], float], *, balanced: bool = False
    ) -> None:
        self.world, self.jobs, self.shape, self.balanced = world, jobs, shape, balanced
        self.members: dict[int, tuple[str, ...]] = {}
        self.generation = 0

    def counts(self, job_id: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for pilot in self.world.loop.ledger.views()[job_id].staying:
            kind = self.world.cluster.nodes[pilot.node].kind
            found[kind] = found.get(kind, 0) + 1
        return found

    def rate(self, job_id: int) -> float:
        held = self.counts(job_id)
        if self.balanced and held:
            nodes = sum(held.values())
            return sum(n * self.jobs[job_id][kind] for kind, n in held.items()) / nodes * self.shape(nodes)
        return min(self.jobs[job_id][kind] for kind in held) * self.shape(sum(held.values())) if held else 0.0

    def tick(self) -> None:
        self.world.tick()
        now, events = self.world.clock.now(), []
        for job_id in self.jobs:
            members = tuple(p.id for p in self.world.loop.ledger.views()[job_id].staying)
            if members != self.members.get(job_id, ()):
                self.generation += 1
                data: dict[str, JsonValue] = {"generation": self.generation, "members": list(members)}
                events.append(event_of(now, "generation", job_id, data=data))
            elif members:
                kinds = {
                    p.id: self.world.cluster.nodes[p.node].kind
                    for p in self.world.loop.ledger.views()[job_id].staying
                }
                rates: dict[str, JsonValue] = {f"{m}.0": self.jobs[job_id][kinds[m]] for m in members}
                rated: dict[str, JsonValue] = {
                    "nodes": len(members), "samples": 10 * self.rate(job_id), "seconds": 10.0, "steps": 20,
                    "rates": rates,
                }  # fmt: skip
                events.append(event_of(now, "samples", job_id, members[0], data=rated))
            self.members[job_id] = members
        self.world.workers.report(*events)


def shape(n: int) -> float:
    return float(n**0.9)


def shown(training: Training, job_id: int, kind: str, sizes: tuple[int, ...] = (1, 2, 4)) -> None:
    """The job has trained on that class before."""
    record = training.world.loop.ledger._records[job_id]
    for n in sizes:
        rate = training.jobs[job_id][kind] * shape(n)
        for _ in range(3):
            record.samples.keep(ThroughputSample(0.0, n, 10 * rate, 10.0, 20, kind))
    record.samples_taken += 1


def test_each_class_goes_to_the_job_that_gains_most_by_it() -> None:
    """Job 1 is four times as fast on the new class, job 2 as fast on either: they are not split evenly."""
    world = world_of(4, 4)
    jobs = {1: {NEW: 400.0, OLD: 100.0}, 2: {NEW: 110.0, OLD: 100.0}}
    for number, name in ((1, "convnet"), (2, "recommender")):
        world.submit(replace(job(number, most=4), name=name), tasks=40)
    training = Training(world, jobs, shape)
    for number in jobs:
        for kind in (OLD, NEW):
            shown(training, number, kind)
    for _ in range(30):
        training.tick()
    assert (training.counts(1), training.counts(2)) == ({NEW: 4}, {OLD: 4})


def test_pilots_move_to_the_class_of_the_plan_and_stay_there() -> None:
    """A main job leaves the new nodes: the job moves there, once."""
    world = world_of(4, 4)
    for i in range(4):
        world.cluster.nodes[f"n{i}"] = replace(world.cluster.nodes[f"n{i}"], state=NodeState.DRAINED)
    world.submit(job(1, most=4), tasks=60)
    training = Training(world, {1: {NEW: 400.0, OLD: 100.0}}, shape)
    for kind in (NEW, OLD):
        shown(training, 1, kind)
    for _ in range(10):
        training.tick()
    assert training.counts(1) == {OLD: 4}
    for i in range(4):
        world.cluster.nodes[f"n{i}"] = replace(world.cluster.nodes[f"n{i}"], state=NodeState.IDLE)
    held = []
    for _ in range(20):
        training.tick()
        held.append(training.counts(1))
    assert held[-1] == {NEW: 4}
    assert held[-12:] == [{NEW: 4}] * 12, "and rests there"


def test_a_site_of_one_class_is_sized_by_count() -> None:
    world = world_of(8, 0)
    world.submit(job(1, most=8), tasks=20)
    world.tick()
    assert "class" not in (world.loop.last_decision.reason if world.loop.last_decision else "")
    assert world.nodes_of(1) == 8


def test_curves_by_class_learn_from_one_another() -> None:
    def windows(kind: str, level: float, sizes: tuple[int, ...]) -> list[ThroughputSample]:
        return [ThroughputSample(0.0, n, 10 * level * n**0.8, 10.0, 20, kind) for n in sizes for _ in range(3)]

    seen = fits_by_class([*windows("new", 400.0, (1, 2, 4, 8)), *windows("old", 100.0, (1, 2, 4, 8))])
    assert set(seen) == {"new", "old"}
    speeds = class_speeds([seen, fits_by_class(windows("new", 1.0, (1,)))])
    assert speeds["new", "old"] == pytest.approx(4.0, rel=0.02)
    # Another job was seen on the old class only: on the new one it is taken to be as much faster as the first.
    present = Curve(((1, 50.0), (4, 150.0)))
    curves = curves_on_classes(["new", "old", "other"], present, "old", {}, speeds, 8)
    assert curves["old"] == present and curves["other"] == present
    assert curves["new"].throughput(4) == pytest.approx(600.0, rel=0.02)
    # A class on which one size was measured has that level and the other class's shape.
    few = fits_by_class([*windows("old", 100.0, (1, 2, 4, 8)), *windows("new", 300.0, (4,))])
    assert few["new"].at([8])[0].rate == pytest.approx(300.0 * 8**0.8, rel=0.05)


def test_classes_are_gres_processors_and_the_features_that_the_site_names() -> None:
    node = Node("n1", NodeState.IDLE, cpus=64, gres="gpu:a100:4(S:0-1)", features=("ib", "big"), memory_mib=515_000)
    assert node.kind == node.kind_with(()) == "gpu:a100:4 64 cpus"
    assert node.kind_with({"big"}) == "gpu:a100:4 64 cpus big"
    assert node.kind_with({"memory"}) == "gpu:a100:4 64 cpus 512 GiB"
    assert replace(node, memory_mib=191_000).kind_with({"memory"}).endswith("192 GiB")


def test_a_world_of_two_classes_teaches_how_fast_they_are() -> None:
    """No job was measured on each class alone: workers' own speeds show it; new nodes alone train more than all."""
    world = world_of(4, 2)
    world.submit(job(1, most=6), tasks=60)
    training = Training(world, {1: {NEW: 400.0, OLD: 100.0}}, shape)
    training.tick()
    seen = [training.counts(1)]
    for _ in range(25):
        training.tick()
        seen.append(training.counts(1))
    assert {NEW: 4, OLD: 2} in seen, "it began on whatever there was"
    assert world.loop.ledger.known()[1].worker_speeds == {NEW: 400.0, OLD: 100.0}
    assert seen[-1] == {NEW: 4} and seen[-10:] == [{NEW: 4}] * 10


def test_a_job_of_independent_items_keeps_the_slow_nodes() -> None:
    world = world_of(4, 2)
    world.submit(replace(job(1, most=6), elastic=Elastic.TASKS), tasks=60)
    training = Training(world, {1: {NEW: 400.0, OLD: 100.0}}, lambda n: float(n), balanced=True)
    for _ in range(25):
        training.tick()
    assert training.counts(1) == {NEW: 4, OLD: 2}


def test_worlds_that_span_classes_count_where_no_job_was_measured_on_both() -> None:
    speeds = class_speeds(
        [], [{"new": 400.0, "old": 100.0}, {"new": 300.0, "old": 100.0}, {"new": 200.0, "old": 100.0}]
    )
    assert speeds == {("new", "old"): 3.0, ("old", "new"): pytest.approx(1 / 3)}
    present = Curve(((6, 600.0),))
    gated = curves_on_classes(["new", "old"], present, "new + old", {}, speeds, 8)
    assert gated["old"].throughput(6) == pytest.approx(600.0), (
        "equal shares: the world trains at the level of the slowest"
    )
    assert gated["new"].throughput(6) == pytest.approx(1800.0)
    measured = fits_by_class([
        ThroughputSample(0.0, n, 10 * level * n, 10.0, 20, kind)
        for kind, level in (("new", 500.0), ("old", 100.0)) for n in (1, 2, 4) for _ in range(3)
    ])  # fmt: skip
    assert class_speeds([measured], [{"new": 400.0, "old": 100.0}])["new", "old"] == pytest.approx(5.0, rel=0.02)


def test_fewest_nodes_count_where_all_nodes_are_of_the_class() -> None:
    for old, held in ((3, {}), (4, {OLD: 4})):
        world = world_of(0, old)
        world.submit(replace(job(1, most=8), class_min=(("v100", 4),)), tasks=60)
        training = Training(world, {1: {OLD: 100.0}}, shape)
        for _ in range(5):
            training.tick()
        assert training.counts(1) == held


def test_a_word_names_the_classes_that_have_it() -> None:
    classes = ["gpu:k80:4 64 cpus", "gpu:v100:4 64 cpus big 192 GiB", "64 cpus"]
    assert least_on((("k80", 4), ("big", 2)), classes) == {classes[0]: 4, classes[1]: 2}
    assert least_on((("gpu", 2), ("gpu:k80:4", 3)), classes) == {classes[0]: 3, classes[1]: 2}
    assert least_on((("k8", 4),), classes) == {}
