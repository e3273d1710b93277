"""Pilots whose leaving can wait do not leave just ahead of a backfill cycle that a main job waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.decide.leaving import may_complete_in_cycle
from malletrain.decide.rules import Rules
from malletrain.domain.event import ActionIntent
from malletrain.domain.snapshot import BackfillPlan, Snapshot
from tests.world import RULES, START, World, job, main_job

EPILOG = replace(RULES, free_s=10.0)


@pytest.mark.parametrize(
    ("rules", "interval_s", "open_from", "open_to"),
    [
        (EPILOG, 30.0, 1, 17),
        (replace(EPILOG, free_s=0.0), 30.0, 1, 27),
        (replace(EPILOG, free_s=None), 30.0, 0, 30),
        (replace(EPILOG, free_s=10.0), 60.0, 1, 47),
        (replace(EPILOG, free_s=60.0), 30.0, 0, 30),  # some cycle meets the epilog in any case
        (replace(EPILOG, free_s=0.0), 1.0, 0, 1),
    ],
)
def test_when_pilots_may_leave(rules: Rules, interval_s: float, open_from: int, open_to: int) -> None:
    for cycles in (0, 1):
        plan = BackfillPlan(last_cycle_at=START - cycles * interval_s, interval_s=interval_s)
        leave = [at for at in range(int(interval_s)) if not may_complete_in_cycle(plan, START + at, rules)]
        assert leave == list(range(open_from, open_to)), cycles


@pytest.mark.parametrize("plan", [BackfillPlan(), BackfillPlan(last_cycle_at=START - 61.0)])
def test_the_first_cycle_after_a_quiet_time_may_come_at_any_moment(plan: BackfillPlan) -> None:
    assert may_complete_in_cycle(plan, START + 5.0, EPILOG)
    assert not may_complete_in_cycle(plan, START + 5.0, replace(RULES, exit_s=60.0)), "nothing is known"


def test_an_epilog_of_unknown_length_may_take_until_the_cycle() -> None:
    plan = BackfillPlan(last_cycle_at=START)
    assert may_complete_in_cycle(plan, START + 5.0, replace(RULES, exit_s=60.0))
    assert not may_complete_in_cycle(plan, START + 5.0, replace(RULES, exit_s=0.0)), "the site has none"


@pytest.mark.parametrize(("since_cycle_s", "leaves"), [(5.0, True), (20.0, False), (29.0, False), (0.0, False)])
@pytest.mark.parametrize("waits", [True, False])
def test_the_reserve_is_filled_again_after_the_cycle_that_a_main_job_waits_for(
    since_cycle_s: float, leaves: bool, waits: bool
) -> None:
    """The idle node of the reserve is given to a main job: a pilot is to leave in its place."""
    world = World(nodes=4, rules=replace(EPILOG, keep_idle=1))
    world.submit(job(1, most=4))
    world.tick()
    world.tick()
    assert len(world.running()) == 3
    real = world.cluster.snapshot

    def seen() -> Snapshot:
        plan = BackfillPlan(last_cycle_at=world.clock.now() - since_cycle_s)
        return replace(real(), plan=plan)

    world.loop._cluster.snapshot = seen  # type: ignore[method-assign]
    world.loop._rules_now = lambda exits_s: world.loop.rules  # type: ignore[method-assign]
    (idle,) = {"n0", "n1", "n2", "n3"} - world.running().keys()
    world.cluster.set_main([main_job(9, count=1) if waits else main_job(9, nodes=[idle], start=START)])
    world.tick()
    asked = [e.payload.action for e in world.journal.read() if isinstance(e.payload, ActionIntent)]
    assert any("stay idle" in action.reason for action in asked) is (leaves or not waits)
    decision = world.loop.last_decision
    assert decision is not None
    put_off = [refusal.reason for refusal in decision.refusals if "leaves later" in refusal.reason]
    assert bool(put_off) is (waits and not leaves)
