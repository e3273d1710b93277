"""How many pilots start at one look."""

from __future__ import annotations

from dataclasses import replace

from malletrain.domain.decision import StartPilot
from malletrain.domain.snapshot import BackfillPlan, Snapshot
from tests.messages import says
from tests.world import RULES, World, job


def starts(world: World) -> int:
    decision = world.loop.last_decision
    assert decision is not None
    return sum(isinstance(action, StartPilot) for action in decision.actions)


def test_starts_are_spread_over_looks_and_over_more_while_the_controller_is_slow() -> None:
    world = World(nodes=30, rules=replace(RULES, max_starts=10))
    world.submit(job(1, most=30), tasks=40)
    world.tick()
    assert starts(world) == 10
    assert world.loop.last_decision is not None
    assert any(says(refusal.reason, "at most 10") for refusal in world.loop.last_decision.refusals)
    whole = world.cluster.snapshot

    def slow() -> Snapshot:
        return replace(whole(), plan=BackfillPlan(main_cycle_s=0.8))

    world.cluster.snapshot = slow  # type: ignore[method-assign]
    world.tick()
    assert starts(world) == 2
    world.cluster.snapshot = whole  # type: ignore[method-assign]
    for _ in range(3):
        world.tick()
    assert len(world.running()) == 30
