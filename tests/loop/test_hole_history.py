"""Holes in the journal: opened, ended, lost sight of; and what a restart makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.snapshot import NodeState
from malletrain.loop.ledger import Ledger
from tests.world import RULES, World, data_of, event_of, job, main_job


def holes(world: World) -> list[tuple[str, tuple[str, ...], object]]:
    kinds = ("holes_opened", "holes_ended")
    return [
        (e.kind, tuple(data_of(e)["nodes"]), data_of(e).get("taken", data_of(e).get("seen_whole")))  # type: ignore[arg-type]
        for e in world.journal.events
        if e.kind in kinds
    ]


def test_holes_are_seen_to_open_and_end_through_pilots_that_hold_them() -> None:
    world = World(nodes=4)
    world.cluster.set_main([main_job(1, nodes=["n0", "n1", "n2"])])
    world.tick()
    world.submit(job(1))
    world.cluster.set_main([main_job(1, nodes=["n0"])])
    for _ in range(5):
        world.tick()
    assert set(world.running()) == {"n1", "n2", "n3"}
    world.cluster.set_main([main_job(1, nodes=["n0"]), main_job(2, nodes=["n1", "n2"])])
    world.tick()
    assert holes(world) == [
        ("holes_opened", ("n3",), False),
        ("holes_opened", ("n1", "n2"), True),
        ("holes_ended", ("n1", "n2"), True),
    ]
    assert set(world.loop.ledger.holes.open()) == {"n3"}


def test_a_node_that_staff_takes_ends_its_hole_without_telling_how_long_it_would_have_been() -> None:
    world = World(nodes=1)
    world.cluster.set_main([main_job(1, nodes=["n0"])])
    world.tick()
    world.cluster.set_main([])
    world.tick()
    world.cluster.nodes["n0"] = replace(world.cluster.nodes["n0"], state=NodeState.DRAINED)
    world.tick()
    assert holes(world)[-1] == ("holes_ended", ("n0",), False)


def test_a_gap_between_looks_does_not_pass_for_the_end_of_a_hole() -> None:
    world = World(nodes=2)
    world.cluster.set_main([main_job(1, nodes=["n0", "n1"])])
    world.tick()
    world.cluster.set_main([])
    world.tick()
    world.tick(600.0)
    world.clock.advance(5000.0)
    world.cluster.set_main([main_job(2, nodes=["n0"])])
    world.tick()
    assert holes(world)[-1] == ("holes_ended", ("n0",), False)


def test_a_restart_forgets_what_was_open_but_which_nodes_became_idle_together() -> None:
    world = World(nodes=2)
    world.cluster.set_main([main_job(1, nodes=["n0"])])
    world.tick()
    began = world.clock.now()
    world.cluster.set_main([])
    world.tick()
    world.loop.record([event_of(world.clock.now() + 900.0, "daemon_started")])
    assert world.loop.ledger.holes.open() == {}
    at = world.clock.now() + 910.0
    world.loop.record([event_of(at, "holes_opened", data={"nodes": ["n0", "n1"], "seen_whole": False})])
    opened = world.loop.ledger.holes.open()
    assert opened["n1"] <= began < opened["n0"] < at
    again = Ledger()
    again.apply(world.journal.read())
    assert again.holes.open() == opened


def test_dry_runs_record_no_holes() -> None:
    world = World(nodes=2)
    dry = type(world.loop)(
        world.cluster, world.workers, world.journal, world.clock, world.loop.policy, RULES, act=False
    )
    assert dry.tick() is not None
    assert world.journal.events == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_wide_pilot_holds_nodes_that_became_idle_together_also_those_that_an_earlier_daemon_saw(
    restarted: bool,
) -> None:
    world = World(nodes=8, rules=replace(RULES, max_nodes=4, max_pilots=2, max_wait_s=0.0))
    even, odd = [f"n{i}" for i in range(0, 8, 2)], [f"n{i}" for i in range(1, 8, 2)]
    for running in ([main_job(1, nodes=even), main_job(2, nodes=odd)], [main_job(2, nodes=odd)], []):
        world.cluster.set_main(running)
        world.tick()
    if restarted:
        world.loop.record([event_of(world.clock.now(), "daemon_started")])
        world.tick(200.0)
    world.submit(job(1))
    world.tick()
    tasks: dict[str, set[str]] = {}
    for pilot in world.loop.views[1].staying:
        tasks.setdefault(pilot.task, set()).add(pilot.node or "")
    assert sorted(map(sorted, tasks.values())) == [even, odd]
