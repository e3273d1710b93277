"""Generic resources and features that a job asks for: on which nodes it may start, and how nodes are shared then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from malletrain.domain.job import Profile
from malletrain.domain.requirements import Requirements, has_features
from malletrain.domain.snapshot import NodeState, SlurmJob, Snapshot
from tests.messages import says
from tests.world import RULES, World, data_of, job, main_job, node


@pytest.mark.parametrize(
    ("wanted", "there", "fits"),
    [
        ("gpu:2", "gpu:4", True),
        ("gres:gpu:2", "gpu:a100:4(S:0-1),shard:16", True),  # squeue 22.05
        ("gres/gpu:a100:4", "gpu:a100:4(S:0-1)", True),  # squeue 24.11
        ("gpu:5", "gpu:a100:4", False),
        ("gpu:5", "gpu:a100:4,gpu:h100:4", True),
        ("gpu:h100:5", "gpu:a100:4,gpu:h100:4", False),
        ("gpu", "", False),
        ("gpu", "(null)", False),
        ("bandwidth:4K", "bandwidth:lustre:no_consume:1M", True),
        ("gpu:2,shard:4", "gpu:2", False),
        ("gpu:1g.10gb:2", "gpu:1g.10gb:7", True),
    ],
)
def test_generic_resources(wanted: str, there: str, fits: bool) -> None:
    assert Requirements(gres=wanted).satisfied_by(node("n0", gres=there)) is fits


@pytest.mark.parametrize(("asked", "there", "fits"), [
    (0, 1000, True), (1000, 1000, True), (1001, 1000, True), (2000, 1000, False), (2000, 1, True), (2000, 0, True),
])  # fmt: skip
def test_memory(asked: int, there: int, fits: bool) -> None:
    """1: Slurm has no RealMemory of the node; and squeue's sizes are rounded."""
    assert Requirements(memory_mib=asked).satisfied_by(node("n0", memory_mib=there)) is fits


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ("", True), ("a", True), ("c", False), ("a&b", True), ("a,b", True), ("a&c", False), ("a|c", True),
        ("(a|c)&b", True), ("(c|d)&b", False), ("[a|c]", True), ("[c|d]", False), ("c*2", True), ("!c", True),
        ("(a", True), ("(null)", True),
    ],
)  # fmt: skip
def test_features(expression: str, fits: bool) -> None:
    assert has_features(expression, ("a", "b")) is fits


class Mixed(World):
    """Half of the nodes have GPUs; `asking`: by array, the first being 1, the gres that squeue shows."""

    def __init__(self, gpu: int, plain: int) -> None:
        super().__init__(gpu + plain, RULES)
        for i, each in enumerate(list(self.cluster.nodes.values())):
            if i < gpu:
                self.cluster.nodes[each.name] = replace(each, gres="gpu:4", features=("big",))
        self.asking: dict[int, str] = {}
        self.memory: dict[int, int] = {}
        snapshot: Callable[[], Snapshot] = self.cluster.snapshot

        def shown() -> Snapshot:
            seen = snapshot()
            return replace(seen, jobs=tuple(map(self._asking, seen.jobs)))

        self.cluster.snapshot = shown  # type: ignore[method-assign]

    def _asking(self, row: SlurmJob) -> SlurmJob:
        number = (row.array_id or 0) - 1000
        return replace(
            row, gres=self.asking.get(number, row.gres), memory_mib=self.memory.get(number, row.memory_mib)
        )

    def on(self, number: int) -> set[str]:
        return {pilot.node for pilot in self.loop.views[number].staying}


def with_memory(world: Mixed, **mib: int) -> None:
    for name, size in mib.items():
        world.cluster.nodes[name] = replace(world.cluster.nodes[name], memory_mib=size)


def test_a_job_starts_only_where_its_generic_resources_are_and_the_others_get_the_rest() -> None:
    world = Mixed(gpu=2, plain=4)
    world.asking[1] = "gres:gpu:4"
    world.submit(job(1, most=6, profile=Profile.NONE))
    world.submit(job(2, most=4, profile=Profile.NONE))
    for _ in range(4):
        world.tick()
    assert world.on(1) == {"n0", "n1"}
    assert world.on(2) == {"n2", "n3", "n4", "n5"}


def test_by_class_a_job_that_can_go_elsewhere_leaves_the_nodes_that_another_needs() -> None:
    world = Mixed(gpu=2, plain=2)
    for name in ("n2", "n3"):
        world.cluster.nodes[name] = replace(world.cluster.nodes[name], state=NodeState.DRAINED)
    world.submit(job(1, most=2))
    for _ in range(2):
        world.tick()
    assert world.on(1) == {"n0", "n1"}
    for name in ("n2", "n3"):
        world.cluster.nodes[name] = replace(world.cluster.nodes[name], state=NodeState.IDLE)
    world.asking[2] = "gres:gpu:4"
    world.submit(job(2, most=2))
    for _ in range(8):
        world.tick()
    assert (world.on(1), world.on(2)) == ({"n2", "n3"}, {"n0", "n1"})


def test_nodes_that_a_job_can_have_are_left_by_one_that_can_go_elsewhere() -> None:
    world = Mixed(gpu=0, plain=4)
    with_memory(world, n0=64_000, n1=64_000, n2=32_000, n3=32_000)
    world.submit(job(1, most=2))
    for _ in range(2):
        world.tick()
    assert world.on(1) == {"n0", "n1"}
    world.memory[2] = 64_000
    world.submit(job(2, most=2))
    for _ in range(8):
        world.tick()
    assert world.on(2) == {"n0", "n1"}
    assert world.on(1) == {"n2", "n3"}
    moved = [e.reason for e in world.journal.events if data_of(e).get("type") == "leave" and "moves to" in e.reason]
    assert len(moved) == 2
    assert all(says(words, "job 2") for words in moved)


def test_a_job_that_no_node_can_serve_gets_none_and_says_why() -> None:
    world = Mixed(gpu=1, plain=3)
    world.asking[1] = "gres:gpu:8"
    world.submit(job(1))
    world.tick()
    world.tick()
    assert world.running() == {}
    assert world.loop.last_decision is not None
    refused = {r.subject: r.reason for r in world.loop.last_decision.refusals}
    assert says(refused["job 1"], "4 of 4 nodes", "gpu:8")


def test_a_main_job_that_asks_for_gpus_is_given_nodes_that_have_them() -> None:
    world = Mixed(gpu=2, plain=2)
    world.submit(job(1, most=4))
    for _ in range(3):
        world.tick()
    world.cluster.set_main([main_job(7, count=2, gres="gres:gpu:4")])
    world.tick()
    world.tick()
    assert world.on(1) == {"n2", "n3"}


def test_no_pilot_starts_where_its_memory_is_not() -> None:
    """The partition's DefMemPerNode, say, is more than its small nodes have."""
    world = Mixed(gpu=0, plain=3)
    with_memory(world, n0=32_000, n1=64_000, n2=32_000)
    world.memory[1] = 64_000
    world.submit(job(1, most=3, profile=Profile.NONE))
    world.submit(job(2, most=2, profile=Profile.NONE))
    for _ in range(4):
        world.tick()
    assert (world.on(1), world.on(2)) == ({"n1"}, {"n0", "n2"})


def test_a_main_job_that_asks_for_memory_is_given_nodes_that_have_it() -> None:
    world = Mixed(gpu=0, plain=4)
    with_memory(world, n0=32_000, n1=64_000, n2=32_000, n3=64_000)
    world.submit(job(1, most=4))
    for _ in range(3):
        world.tick()
    world.cluster.set_main([main_job(7, count=2, memory_mib=60_000)])
    world.tick()
    world.tick()
    assert world.on(1) == {"n0", "n2"}
