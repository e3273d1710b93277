"""Holes in the journal: opened, ended, lost sight of; and what a restart makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.event import EventKind
from malletrain.domain.snapshot import NodeState
from malletrain.loop.ledger import Ledger
from tests.world import RULES, START, World, data_of, event_of, job, main_job

FORESEEING = replace(RULES, forecast=True, auto_horizon=True)


def holes(world: World) -> list[tuple[str, tuple[str, ...], object]]:
    kinds = (EventKind.HOLES_OPENED, EventKind.HOLES_ENDED)
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
    forecast = world.loop.ledger.holes.forecast(world.clock.now())
    assert forecast.departures == pytest.approx(1.0), "a cohort that left together is one departure"
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
    assert world.loop.ledger.holes.forecast(world.clock.now()).departures == 0.0
    assert sum(map(sum, world.loop.ledger.holes.history.at_risk_s)) == pytest.approx(10.0)


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
    assert world.loop.ledger.holes.forecast(world.clock.now()).departures == 0.0
    # It was last seen open 600 s after it began: half a cohort for so long.
    assert sum(map(sum, world.loop.ledger.holes.history.at_risk_s)) == pytest.approx(300.0)


def test_a_restart_forgets_what_was_open_and_keeps_what_was_learnt() -> None:
    world = World(nodes=2, rules=FORESEEING)
    world.cluster.set_main([main_job(1, nodes=["n0", "n1"])])
    world.tick()
    world.cluster.set_main([main_job(1, nodes=["n0"])])
    world.tick()
    world.cluster.set_main([main_job(1, nodes=["n0"]), main_job(2, nodes=["n1"])])
    world.tick(400.0)
    world.tick(30.0)
    world.cluster.set_main([main_job(1, nodes=["n1"])])
    world.tick()
    world.tick(200.0)
    learnt = world.loop.ledger.holes.history.left
    world.loop.record([event_of(world.clock.now() + 900.0, EventKind.DAEMON_STARTED)])
    assert world.loop.ledger.holes.open() == {}
    assert world.loop.ledger.holes.history.left == learnt
    again = Ledger()
    again.apply(world.journal.read())
    now = world.clock.now() + 900.0
    assert again.holes.forecast(now) == world.loop.ledger.holes.forecast(now)
    assert again.holes.open() == world.loop.ledger.holes.open()


def test_a_forecast_makes_no_pilot_outlast_its_plan() -> None:
    world = World(nodes=2, rules=FORESEEING)
    world.submit(job(1))
    world.cluster.set_main([main_job(7, start=START + 310, planned=["n0"], limit_s=1e5, count=9)])
    world.tick()
    assert {t.node: t.limit_s for t in world.cluster.tasks.values() if t.node} == {"n0": 240.0, "n1": 3600.0}


def test_an_old_hole_is_taken_before_a_new_one() -> None:
    """Of two holes without a plan the older one probably lasts longer."""
    world = World(nodes=2, rules=FORESEEING)
    world.cluster.set_main([main_job(1, nodes=["n0"])])
    for _ in range(200):
        world.tick()
    world.cluster.set_main([])
    world.tick()
    world.submit(job(1, most=1))
    world.tick()
    assert set(world.running()) == {"n1"}
    assert world.loop.last_decision is not None
    lasts = {h.node: h.expected_s for h in world.loop.last_decision.holes}
    assert lasts["n1"] > 2 * lasts["n0"]  # type: ignore[operator]


def test_dry_runs_record_no_holes() -> None:
    world = World(nodes=2)
    dry = type(world.loop)(
        world.cluster, world.workers, world.journal, world.clock, world.loop.policy, FORESEEING, act=False
    )
    assert dry.tick() is not None
    assert world.journal.events == []


def test_a_start_says_how_long_its_hole_probably_lasts() -> None:
    world = World(nodes=1, rules=FORESEEING)
    world.submit(job(1))
    world.tick()
    starts = [e.reason for e in world.journal.events if data_of(e).get("type") == "start"]
    assert len(starts) == 2, "intent and outcome"
    assert "nothing planned), probably " in starts[0]


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
        world.loop.record([event_of(world.clock.now(), EventKind.DAEMON_STARTED)])
        world.tick(200.0)
    world.submit(job(1))
    world.tick()
    tasks: dict[str, set[str]] = {}
    for pilot in world.loop.views[1].staying:
        tasks.setdefault(pilot.task, set()).add(pilot.node or "")
    assert sorted(map(sorted, tasks.values())) == [even, odd]
