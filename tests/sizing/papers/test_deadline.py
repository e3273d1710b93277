"""`deadline`: shares that meet a deadline, chances from the nodes that are likely there, earliest first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve
from malletrain.sizing.deadlines import (
    MIN_PROBABILITY,
    SLACK_FACTOR,
    deadline_guarantees,
    satisfactory_share,
    supply_probability,
    supply_quantiles,
)
from malletrain.sizing.papers.deadline import Deadline
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import Due, JobDemand, Problem
from tests.sizing.problems import examples, job, problems

LINEAR = Curve.linear(16, 10.0)  # ten samples a second and node


def due(name: str, seconds: float, samples: float, **more: object) -> JobDemand:
    return job(name, 0, 16, LINEAR, due=Due(seconds, samples), **more)


def test_the_share_is_the_fewest_nodes_that_do_it() -> None:
    assert satisfactory_share(due("a", 110.0, 4000.0)) == 4
    assert satisfactory_share(due("a", 110.0, 4001.0)) == 5
    assert satisfactory_share(due("a", 130.0, 4000.0, activate_s=20.0)) == 4
    assert satisfactory_share(due("a", 110.0, 4000.0, sizes=(2, 6, 8))) == 6
    assert satisfactory_share(due("a", 1.0, 4000.0)) is None
    assert satisfactory_share(due("a", 100.0, 0.0)) == 0


def test_chances_are_those_of_the_supply() -> None:
    supply = tuple(range(10, 30))
    assert supply_probability(10, supply, 0) == 1.0
    assert supply_probability(12, supply, 0) == pytest.approx(0.9)
    assert supply_probability(30, supply, 0) == 0.0
    assert supply_probability(5, (), 5) == 1.0 and supply_probability(6, (), 5) == 0.0


def test_the_earliest_deadline_comes_first_and_what_is_not_likely_has_no_promise() -> None:
    late, early = due("late", 1100.0, 40_000.0), due("early", 110.0, 8_000.0)
    supply = (8,) * 1 + (12,) * 9
    found = deadline_guarantees((late, early), supply, 12, 0.9)
    assert [(p.job, p.share, p.needs) for p in found] == [("early", 8, 8), ("late", 4, 12)]
    assert found[1].chance == pytest.approx(0.9)
    assert [p.job for p in deadline_guarantees((late, early), (8,) * 2 + (12,) * 8, 12, 0.9)] == ["early"]


def test_who_has_a_promise_has_its_nodes_and_the_rest_is_shared_best() -> None:
    promised = due("a", 110.0, 4000.0, weight=0.01)
    other = job("b", 0, 16, LINEAR)
    answer = Deadline().size(Problem(300.0, 10, (promised, other), supply=(10,)))
    assert answer.sizes == {"a": 4, "b": 6}
    assert "4 nodes, 100%" in answer.reason
    assert Exact().size(Problem(300.0, 10, (promised, other))).sizes["a"] == 0
    none = Deadline().size(Problem(300.0, 10, (due("a", 1.0, 4000.0), other), supply=(10,)))
    assert "too late at any size" in none.reason


def test_when_fewer_nodes_are_there_than_was_likely_the_earliest_keeps_its_own() -> None:
    early, late = due("early", 110.0, 4000.0, weight=0.01), due("late", 220.0, 8000.0, weight=0.01)
    answer = Deadline().size(Problem(300.0, 6, (early, late, job("c", 0, 16, LINEAR)), supply=(16,)))
    assert answer.sizes["early"] >= 4


def test_who_was_taken_is_served_before_others_when_its_deadline_has_become_less_likely() -> None:
    answer = Deadline().size(
        Problem(300.0, 6, (due("a", 110.0, 4000.0, weight=0.01), job("b", 0, 16, LINEAR)), supply=(2, 6))
    )
    assert answer.sizes == {"a": 4, "b": 2} and "no promise" in answer.reason


@examples(100)
@given(problems(wild=False), st.lists(st.integers(0, 24), max_size=5), st.floats(1.0, 1e4), st.floats(0.0, 1e6))
def test_promises_are_kept_whatever_the_problem(
    problem: Problem, supply: list[int], seconds: float, samples: float
) -> None:
    # A job that must run for another reason may come first: none does here.
    free = [replace(job, must_run=False) for job in problem.jobs]
    jobs = tuple(replace(j, due=Due(seconds, samples)) if i % 2 else j for i, j in enumerate(free))
    problem = replace(problem, jobs=jobs, supply=tuple(sorted(supply)))
    answer = Deadline().size(problem)
    assert sum(answer.sizes.values()) <= problem.nodes
    assert all(j.permits(answer.sizes[j.id]) for j in problem.jobs)
    by_id = {j.id: j for j in problem.jobs}
    for promise in deadline_guarantees(jobs, problem.supply, problem.nodes, MIN_PROBABILITY):
        assert promise.chance >= MIN_PROBABILITY
        size = answer.sizes[promise.job]
        if promise.needs <= problem.nodes and promise.share:
            assert size >= promise.share
            of = by_id[promise.job]
            assert of.activate_s + SLACK_FACTOR * samples / of.curve.throughput(promise.share) <= seconds


def test_quantiles_of_levels_are_weighed_by_time() -> None:
    assert supply_quantiles([4.0, 10.0], [300.0, 100.0], 4) == (4, 4, 4, 10)
    assert supply_quantiles([], [], 4) == () and supply_quantiles([3.0], [0.0]) == ()
