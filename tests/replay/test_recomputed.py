"""A daemon's decisions recomputed from its journal are the same decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from malletrain.decide.rules import Rules
from malletrain.domain.event import Event
from malletrain.domain.job import ResizeCosts
from malletrain.domain.snapshot import NodeState
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.loop_engine import REPLAY_RULES, replay_through_loop
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.registry import policy
from tests.recomputed import Recomputed, recomputed
from tests.replay.small import traces, workloads
from tests.world import RULES, World, event_of, job, main_job, node


def again(events: list[Event], name: str, rules: Rules) -> list[Recomputed]:
    found = list(recomputed(events, policy(name), rules))
    assert [(each.seq, each.decided) for each in found if not each.same] == []
    assert len(found) == sum(event.kind == "decided" for event in events)
    return found


@settings(max_examples=10)
@given(machine=traces(max_nodes=5), jobs=workloads())
def test_of_the_loop_over_any_trace(machine: ClusterTrace, jobs: list[TrainingJob]) -> None:
    journal = replay_through_loop(machine, [replace(each, costs=ResizeCosts()) for each in jobs], policy("exact"))
    again(list(journal), "exact", REPLAY_RULES)


@pytest.mark.parametrize("name", ["auto", "equal", "greedy"])
def test_beside_main_jobs_a_reserve_drained_nodes_and_a_limit(name: str) -> None:
    rules = replace(RULES, keep_idle=1, max_pilots=7)
    world = World(9, rules, policy(name))
    for number in (1, 2, 3):
        world.submit(job(number, least=number, most=5))
        world.tick()
    world.cluster.set_main([main_job(90, nodes=["n0", "n1", "n2"])])  # preempts
    world.tick()
    world.cluster.set_main([main_job(91, count=4)])  # waits: pilots yield
    world.tick()
    world.tick()
    world.cluster.set_main([main_job(91, nodes=["n3", "n4", "n5", "n6"])])
    world.tick()
    world.cluster.nodes["n8"] = node("n8", NodeState.DRAINED)
    world.loop.record([event_of(world.clock.now(), "job_cancelled", 1, data={"by": "alice"})])
    world.tick()
    world.cluster.set_main([])
    world.tick()
    world.tick()
    decided = again(list(world.journal.read()), name, rules)
    assert len(decided) >= 6
    totals = {sum(each.decided.values()) for each in decided}
    assert len(totals) >= 3


def test_another_policy_decides_otherwise() -> None:
    """Sizes are computed, not read: they differ where the rule does."""
    world = World(8, RULES, policy("exact"))
    world.submit(job(1, most=8))
    world.tick()
    world.submit(job(2, most=8))
    world.tick()
    found = list(recomputed(world.journal.read(), policy("equal"), replace(RULES, alpha=0.0)))
    assert [each.recomputed for each in found if not each.same]
