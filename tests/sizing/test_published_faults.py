"""Faults of the published allocator's code (BFTrainer, as replayed), each of which our policies must not have."""

from __future__ import annotations

import pytest

from malletrain.domain.decision import SizingStatus
from malletrain.domain.job import Curve
from malletrain.sizing.constraints import cap, fallback
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.policies.lp import Lp
from malletrain.sizing.policies.milp.milp_policy import Milp
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobId, LinearLimit, Problem, Value
from malletrain.sizing.values import value_table
from tests.sizing.problems import job

POLICIES = [Exact(), Milp(), Lp()]
both_ways = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)


@both_ways
def test_a_job_may_change_by_more_than_half_the_nodes(policy: Policy) -> None:
    """Big-M of N + 1 where 2 N is needed kept every change below (N + 1) / 2 nodes."""
    grown = policy.size(Problem(300, 64, (job(1, 1, 64),), value=Value.BFTRAINER))
    assert grown.sizes == {1: 64}
    poor, rich = Curve(((64, 64.0),)), Curve(((64, 6400.0),))
    shrunk = policy.size(Problem(300, 64, (job(1, 64, 64, poor), job(2, 0, 64, rich)), value=Value.BFTRAINER))
    assert shrunk.sizes == {1: 0, 2: 64}


@both_ways
def test_losing_many_nodes_at_once_loses_them_all(policy: Policy) -> None:
    """Only the last of several lost nodes was taken off."""
    answer = policy.size(Problem(300, 5, (job(1, 3, 16), job(2, 2, 16))))  # 11 of 16 nodes have gone
    assert sum(answer.sizes.values()) == 5
    cut = fallback(Problem(300, 5, (job(1, 8, 16), job(2, 8, 16))), "no answer")
    assert cut.sizes == {1: 3, 2: 2}


@both_ways
def test_a_cold_start_costs_its_activation(policy: Policy) -> None:
    """Starting from zero was free, so that a job was started for a horizon in which it could not train."""
    assert policy.size(Problem(10, 8, (job(1, 0, 8, activate_s=10.0),))).sizes == {1: 0}
    # Eight seconds of training on 8 nodes are worth less than the stall of a job that shrinks for it.
    demands = (job(1, 8, 8, shrink_s=9.0), job(2, 0, 4, activate_s=2.0))
    assert policy.size(Problem(10, 8, demands)).sizes == {1: 8, 2: 0}


def test_growing_and_shrinking_costs_are_not_mixed_up() -> None:
    """Measured overheads were written under one name and read under another."""
    table = value_table(Problem(100, 8, (job(1, 4, 8, grow_s=30.0, shrink_s=10.0),)))
    assert table.value[8] == (100 - 30) * 8
    assert table.value[2] == (100 - 10) * 2
    published = value_table(Problem(100, 8, (job(1, 4, 8, grow_s=30.0, shrink_s=10.0),), value=Value.BFTRAINER))
    assert published.value[8] == 100 * 8 - 30 * 4
    assert published.value[2] == 100 * 2 - 10 * 4


def test_sizes_keep_their_throughputs() -> None:
    """Sizes were sorted without their throughputs: a falling curve came out rising."""
    falling = Curve(((1, 10.0), (4, 40.0), (8, 20.0)))
    table = value_table(Problem(10, 8, (job(1, 0, 8, falling, sizes=(8, 1, 4)),)))
    assert dict(zip(table.size.tolist(), table.value.tolist(), strict=True)) == {0: 0, 1: 100, 4: 400, 8: 200}
    assert Exact().size(Problem(10, 8, (job(1, 0, 8, falling, sizes=(8, 1, 4)),))).sizes == {1: 4}


def test_a_plan_that_is_not_proven_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any status but optimal was thrown away, and with it the nodes that had become idle."""
    import malletrain.sizing.policies.milp.milp_policy as milp

    rates = [3.0, 5.1, 7.3, 9.2, 13.7, 14.9]
    demands = tuple(
        job(i, 0, 6, Curve(tuple((n, rates[n - 1] * (1 + 0.1 * i)) for n in range(1, 7))), sizes=(2, 3, 5))
        for i in range(12)
    )
    watts: dict[JobId, float] = {i: 1.0 + 0.37 * (i % 5) for i in range(12)}
    limits = tuple(cap(f"pair {i}", [i, i + 1], 7) for i in range(0, 12, 2))
    problem = Problem(300, 23, demands, constraints=(*limits, LinearLimit("watts", watts, 31.0)))
    best = Milp().size(problem)
    assert best.status is SizingStatus.OPTIMAL
    monkeypatch.setattr(milp, "MAX_BRANCHES", 0)
    monkeypatch.setattr(milp, "FEW_BRANCHES", 0)
    hurried = Milp().size(problem)
    assert hurried.status in (SizingStatus.FEASIBLE, SizingStatus.OPTIMAL)
    assert 0 < hurried.objective <= best.objective * (1 + 1e-12) <= hurried.bound * (1 + 1e-9)
    assert sum(hurried.sizes.values()) > 0
