"""A bounded wait: whoever waits too long gets nodes, whatever the others would train with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.decide.limits import starving_jobs
from malletrain.decide.sizes import demand_of
from malletrain.domain.job import Curve, MalleableJob
from malletrain.domain.snapshot import NodeState
from malletrain.learn.advisor import JobKnowledge
from malletrain.sizing.registry import policy
from tests.sizing.problems import shipped
from tests.world import RULES, START, World

TICK_S = 30.0
PATIENT = replace(RULES, max_wait_s=300.0, turn_s=120.0, max_pilot_s=86_400.0)


def wanted(number: int, least: int, most: int, scales: bool) -> MalleableJob:
    """A job that would not be served for its throughput, or one that takes all it can get."""
    curve = Curve.linear(most) if scales else Curve(((1, 1.0), (most, 1.01)))
    return MalleableJob(number, f"job{number}", "alice", 1001, "harvest", least, most, START, given_curve=curve)


def test_without_the_promise_a_job_may_wait_for_ever() -> None:
    starts: dict[float, float] = {}
    for max_wait_s in (0.0, 300.0):
        world = World(8, replace(PATIENT, max_wait_s=max_wait_s))
        world.submit(wanted(1, 1, 8, scales=True))
        world.submit(wanted(2, 4, 8, scales=False))
        for tick in range(1, 40):
            world.tick(TICK_S)
            if world.nodes_of(2):
                starts.setdefault(max_wait_s, tick * TICK_S)
    assert 0.0 not in starts
    assert 300.0 < starts[300.0] <= 300.0 + 4 * TICK_S


@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(4, 8), st.booleans()), min_size=2, max_size=5),
    st.integers(0, 2**32 - 1),
)
def test_each_job_that_fits_the_pools_lower_tenth_starts_in_time(
    jobs: list[tuple[int, int, bool]], seed: int
) -> None:
    """The pool moves between 4 nodes (its lower tenth) and 8; each job's fewest fit 4.

    The bound of the starvation guard, with two ticks for each hand-over: leave, then start.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    world = World(8, PATIENT)
    for number, (least, most, scales) in enumerate(jobs, start=1):
        world.submit(wanted(number, least, most, scales), tasks=40)
    bound = PATIENT.max_wait_s + len(jobs) * (PATIENT.turn_s + 3 * TICK_S) + 2 * TICK_S
    hungry = dict.fromkeys(range(1, len(jobs) + 1), 0.0)
    for _ in range(60):
        if random.random() < 0.3:
            down = set(random.choice(8, int(random.integers(0, 5)), replace=False).tolist())
            for i in range(8):
                name = f"n{i}"
                state = NodeState.DRAINED if i in down else NodeState.IDLE
                world.cluster.nodes[name] = replace(world.cluster.nodes[name], state=state)
        world.tick(TICK_S)
        for number in hungry:
            hungry[number] = 0.0 if world.nodes_of(number) else hungry[number] + TICK_S
            assert hungry[number] <= bound, f"job {number} waits for {hungry[number]:.0f} s"


@pytest.mark.parametrize("name", shipped())
def test_no_policy_lets_a_job_wait_for_ever(name: str) -> None:
    """Three hours on 8 nodes: three jobs that scale and take single nodes, one that needs 5 and gains nothing.

    `equal` and those built like it fill the nodes from the smallest minimum up, so that five are never left.
    """
    world = World(8, PATIENT, policy(name))
    for number in (1, 2, 3):
        world.submit(wanted(number, 1, 8, scales=True))
    world.submit(wanted(4, 5, 8, scales=False))
    world.submit(wanted(5, 4, 4, scales=False))
    hungry = dict.fromkeys(range(1, 6), 0.0)
    bound = PATIENT.max_wait_s + len(hungry) * (PATIENT.turn_s + 3 * TICK_S) + 2 * TICK_S
    worst = dict(hungry)
    for _ in range(int(3 * 3600 / TICK_S)):
        world.tick(TICK_S)
        for number in hungry:
            hungry[number] = 0.0 if world.nodes_of(number) else hungry[number] + TICK_S
            worst[number] = max(worst[number], hungry[number])
    assert max(worst.values()) <= bound, worst


def test_a_job_has_not_waited_that_had_nodes_until_this_look() -> None:
    """Its pilots leave for the reserve, say: it has no node to plan with, but has trained all the time."""
    world = World(2, PATIENT)
    world.submit(wanted(1, 1, 2, scales=True))
    for _ in range(20):
        world.tick(TICK_S)
    assert world.nodes_of(1) == 2
    view, now = world.loop.views[1], world.clock.now()
    assert now - view.nodes_since > PATIENT.max_wait_s
    nothing = demand_of(view, (), JobKnowledge(), PATIENT)
    assert not starving_jobs({1: view}, [nothing], 2, now, PATIENT)
