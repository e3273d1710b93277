"""BFTrainer's accounting and programme as published."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve, ResizeCosts
from malletrain.replay.traces.trace import BUSY, IDLE
from scripts.bench.bftrainer_replayer import Exact, Running, replay_as_published
from tests.replay.small import CURVES, START, job, trace

COSTS = ResizeCosts(0.0, 18.0, 12.0)


def test_costs_are_charged_at_the_event_in_samples() -> None:
    rows = [(0.0, 0, IDLE), (100.0, 1, IDLE), (100.0, 2, IDLE), (200.0, 0, BUSY)]
    steps = replay_as_published(trace(rows, 3, 300.0), [job(costs=COSTS)], Exact(horizon_s=300.0, big_m_fault=False))
    assert [step.at - START for step in steps] == [0.0, 100.0, 200.0]
    # 10 samples/s a node: the first node is charged as if grown; 18 s of one node; then 12 s of three are lost.
    assert [step.credited for step in steps] == [0.0, 1000.0 - 180.0, 3000.0 - 180.0 - 360.0]
    assert [step.sizes[1] for step in steps] == [1, 3, 2]


def test_starting_from_nothing_is_free_and_jobs_wait_their_turn() -> None:
    rows = [(100.0, 0, IDLE), (100.0, 1, IDLE)]
    jobs = [job(1, costs=COSTS, samples=500.0, most=1), job(2, costs=COSTS)]
    steps = replay_as_published(trace([*rows, (160.0, 1, BUSY)], 2, 300.0), jobs, most_jobs=1)
    assert [step.sizes for step in steps] == [{1: 0}, {1: 1}, {2: 1}]
    assert steps[-1].credited == 500.0


def test_the_big_m_fault_binds_at_half_the_nodes() -> None:
    steep = Curve(((1, 1.0), (4, 1000.0)))
    rows = [(10.0, n, IDLE) for n in range(4)]
    sizes = {}
    for fault in (True, False):
        decide = Exact(horizon_s=1e4, big_m_fault=fault)
        sizes[fault] = replay_as_published(trace(rows, 4, 100.0), [job(curve=steep)], decide)[-1].sizes[1]
    assert sizes == {True: 2, False: 4}


@given(data=st.data())
def test_no_permitted_sizes_are_worth_more(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 5))
    free = list(range(nodes))
    running = []
    for number in range(1, data.draw(st.integers(1, 3)) + 1):
        held = [free.pop() for _ in range(data.draw(st.integers(0, len(free))))]
        each = job(number, curve=data.draw(st.sampled_from(CURVES)), costs=COSTS, most=data.draw(st.integers(1, 4)))
        running.append(Running(each, held))
    decide = Exact(horizon_s=data.draw(st.sampled_from([10.0, 120.0])))
    plan = decide(running, frozenset(range(nodes)))
    assert len({n for held in plan for n in held}) == sum(len(held) for held in plan)
    for before, after in zip(running, plan, strict=True):
        assert set(before.held) <= set(after) or set(after) <= set(before.held)  # no job moves
    assert decide.shortfall(running, frozenset(range(nodes)), [len(held) for held in plan]) == pytest.approx(0.0)
    ranges = [range(min(nodes, each.each.job.max_nodes) + 1) for each in running]
    for sizes in itertools.product(*ranges):
        if sum(sizes) <= nodes and all(
            abs(size - len(each.held)) <= (nodes + 1) // 2 for size, each in zip(sizes, running, strict=True)
        ):
            assert decide.shortfall(running, frozenset(range(nodes)), sizes) >= -1e-9
