"""A job whose batch is free, in the loop: what it reports becomes the batch that each of its sizes gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from malletrain.domain.event import JsonValue
from malletrain.loop.ledger import Ledger
from malletrain.loop.membership.admission import Admission, Claim
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import JobTerms
from malletrain.loop.membership.state import MembershipSettings
from malletrain.sizing.papers.elastic_batch import ElasticBatch
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.policy import Policy
from malletrain.wire.messages import Warm
from tests.world import World, data_of, event_of, job


def report(world: World, nodes: int, batch: int, noise: float | None = None) -> None:
    """Windows of a job whose steps take 50 ms, 0.2 ms a sample of a node's share, and 20 ms to synchronise."""
    seconds = 0.05 + 0.0002 * batch / nodes + 0.02 * (nodes > 1)
    members = [f"x{n}" for n in range(nodes)]
    data: dict[str, JsonValue] = {"generation": nodes, "members": list(members)}
    events = [event_of(world.clock.now(), "generation", 1, data=data)]
    window: dict[str, JsonValue] = {
        "nodes": nodes, "samples": 100.0 * batch, "seconds": 100 * seconds, "steps": 100, "noise_scale": noise,
    }  # fmt: skip
    events += [event_of(world.clock.now(), "samples", 1, "x0", data=dict(window)) for _ in range(3)]
    world.loop.record(events)


@pytest.mark.parametrize("policy", [Exact(), ElasticBatch()], ids=lambda p: p.name)
def test_the_batch_follows_the_nodes_once_enough_is_known(policy: Policy) -> None:
    world = World(nodes=8)
    world.loop.policy = policy
    world.submit(replace(job(1, most=8), batch_min=128, batch_max=4096), tasks=12)
    world.tick()
    assert world.workers.batches == {}, "nothing is known yet"
    report(world, 1, 256)
    world.tick()
    assert world.workers.batches == {}, "one share tells nothing"
    report(world, 2, 256)
    report(world, 4, 512)
    world.tick()
    table = world.workers.batches[1]
    assert [nodes for nodes, _ in table] == sorted(nodes for nodes, _ in table)
    assert [batch for _, batch in table] == sorted({batch for _, batch in table}), "more nodes, more samples"
    assert table[0] == (1, 512) and table[-1][1] == 4096, "twice what a node has held, up to the range"
    report(world, 4, 512, noise=50.0)
    world.tick()
    assert world.loop.views[1].noise_scale == 50.0
    if policy.name == "exact":
        assert max(batch for _, batch in world.workers.batches[1]) < 4096, "beyond the noise, samples are worth less"


def test_after_a_restart_the_same_is_known() -> None:
    world = World(nodes=8)
    world.submit(replace(job(1, most=8), batch_min=128, batch_max=4096), tasks=12)
    report(world, 1, 256, noise=300.0)
    report(world, 2, 256)
    folded = Ledger()
    folded.apply(world.journal.events)
    assert folded.views()[1] == world.loop.views[1]
    assert folded.views()[1].batches


def test_generations_carry_the_batch_of_their_size() -> None:
    world = World(nodes=1)
    membership = Membership(MembershipSettings(), world.clock, lambda claim: Admission(JobTerms()))
    membership.choose_batches(1, ((1, 64), (2, 256)))
    for task in (1, 2):
        worker = membership.hello(Claim(1, f"9_{task}", 0, f"n{task}", 1000))
        membership.report(worker.id, Warm(f"host:{task}", {}))
    membership.tick()
    told = [event for event in membership.reports() if event.kind == "generation"]
    made: list[dict[str, Any]] = [dict(data_of(event)) for event in told]
    assert made[0]["batch"] == {1: 64, 2: 256}[len(made[0]["members"])]
    plan = membership.directive_for("9_1.0").plan
    assert plan is not None and plan.batch == made[0]["batch"]
