"""Nodes that a reload no longer lets be harvested are left (tests/slurm/test_leaving.py has what the staff does)."""

from __future__ import annotations

from dataclasses import replace

from malletrain.domain.event import EventKind
from tests.world import World, job


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
