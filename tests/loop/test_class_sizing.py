"""Nodes of two classes in the loop: jobs are measured on both, and end where each class is worth most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from malletrain.decide.rules import NodeClasses, Rules
from malletrain.domain.event import EventKind, JsonValue
from malletrain.domain.job import Curve, Profile, ThroughputSample
from malletrain.domain.snapshot import Node, NodeState
from malletrain.learn.class_curves import class_speeds, curves_on_classes, fits_by_class
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

    def __init__(self, world: World, jobs: Mapping[int, Speeds], shape: Callable[[int], float]) -> None:
        self.world, self.jobs, self.shape = world, jobs, shape
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
        return min(self.jobs[job_id][kind] for kind in held) * self.shape(sum(held.values())) if held else 0.0

    def tick(self) -> None:
        self.world.tick()
        now, events = self.world.clock.now(), []
        for job_id in self.jobs:
            members = tuple(p.id for p in self.world.loop.ledger.views()[job_id].staying)
            if members != self.members.get(job_id, ()):
                self.generation += 1
                data: dict[str, JsonValue] = {"generation": self.generation, "members": list(members)}
                events.append(event_of(now, EventKind.GENERATION, job_id, data=data))
            elif members:
                rated = {"nodes": len(members), "samples": 10 * self.rate(job_id), "seconds": 10.0, "steps": 20}
                events.append(event_of(now, EventKind.SAMPLES, job_id, members[0], data=rated))
            self.members[job_id] = members
        self.world.workers.report(*events)


def shape(n: int) -> float:
    return float(n**0.9)


def shown(training: Training, job_id: int, kind: str, sizes: tuple[int, ...] = (1, 2, 4)) -> None:
    """The job has trained on that class before."""
    record = training.world.loop.ledger._records[job_id]
    for n in sizes:
        rate = training.jobs[job_id][kind] * shape(n)
        record.samples += [ThroughputSample(0.0, n, 10 * rate, 10.0, 20, kind)] * 3
    record.samples_taken += 1
    record.view = None


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


def test_by_count_the_classes_are_mixed_and_the_slowest_gates() -> None:
    """What came of it before: the same jobs with `sizing.classes = "off"`."""
    rates = {}
    for classes in NodeClasses:
        world = world_of(3, 5, replace(PLAIN, classes=classes))
        jobs = {1: {NEW: 400.0, OLD: 100.0}, 2: {NEW: 110.0, OLD: 100.0}}
        for number, name in ((1, "convnet"), (2, "recommender")):
            world.submit(replace(job(number, most=4), name=name), tasks=40)
        training = Training(world, jobs, shape)
        for number in jobs:
            for kind in (OLD, NEW):
                shown(training, number, kind)
        for _ in range(30):
            training.tick()
        rates[classes] = sum(training.rate(j) / jobs[j][OLD] for j in jobs)
        if classes is NodeClasses.ONE:
            assert all(len(training.counts(j)) <= 1 for j in jobs)
    assert rates[NodeClasses.MIX] >= rates[NodeClasses.ONE] > 1.5 * rates[NodeClasses.OFF]


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
