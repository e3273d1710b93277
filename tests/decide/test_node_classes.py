"""Nodes of several classes: a curve is that of the class which the job trains on; others tell of its shape."""

from __future__ import annotations

from dataclasses import replace

from malletrain.domain.event import JsonValue
from malletrain.domain.job import ThroughputSample
from malletrain.domain.snapshot import Node, NodeState
from malletrain.learn.curve import fit_curve
from malletrain.learn.samples import KeptWindows
from tests.world import START, World, event_of, job


def windows(node_class: str, rates: dict[int, float], count: int = 3) -> list[ThroughputSample]:
    return [ThroughputSample(0.0, n, 10 * r, 10.0, 20, node_class) for n, r in rates.items() for _ in range(count)]


def test_a_job_that_moves_to_faster_nodes_keeps_the_shape_and_not_the_level() -> None:
    slow = {n: 100.0 * n**0.7 for n in (1, 2, 4, 8, 16)}
    moved = fit_curve([*windows("v100", slow), *windows("a100", {4: 900.0})])
    alone = fit_curve(windows("a100", {4: 900.0}))
    assert moved is not None and alone is not None
    assert moved.node_class == "a100"
    assert {m.nodes for m in moved.measured} == {4}
    truth = 900.0 * 4**0.7
    (with_shape,), (without,) = moved.at([16]), alone.at([16])
    assert abs(with_shape.rate / truth - 1) < 0.05
    assert with_shape.error < 0.5 * without.error, "the other class tells of the shape"
    assert sum(moved.ignored.values()) == 15


def test_windows_of_each_class_are_kept_apart() -> None:
    kept = KeptWindows()
    for sample in [*windows("a", {1: 1.0}, 40), *windows("b", {1: 2.0}, 40)]:
        kept.keep(sample)
    assert {sum(s.node_class == name for s in kept) for name in "ab"} == {32}


def test_the_class_of_a_node_is_its_gres_and_processors() -> None:
    node = Node("n1", NodeState.IDLE, cpus=64, gres="gpu:a100:4(S:0-1)")
    assert node.kind == "gpu:a100:4 64 cpus"
    assert replace(node, gres="", cpus=0).kind == ""


def test_samples_carry_the_class_of_the_nodes_that_trained() -> None:
    world = World(2)
    world.cluster.nodes["n0"] = replace(world.cluster.nodes["n0"], gres="gpu:v100:4")
    world.submit(job(1, most=2))
    for _ in range(3):
        world.tick()
    view = world.loop.views[1]
    assert {p.node: p.node_class for p in view.staying} == {"n0": "gpu:v100:4", "n1": ""}
    members: list[JsonValue] = [p.id for p in view.staying]
    world.loop.record([
        event_of(START + 50, "generation", 1, data={"generation": 9, "members": members}),
        event_of(START + 60, "samples", 1, data={"nodes": 2, "samples": 10.0, "seconds": 1.0, "steps": 5}),
    ])  # fmt: skip
    assert [s.node_class for s in world.loop.ledger._records[1].samples] == ["gpu:v100:4"]
