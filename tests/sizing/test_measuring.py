"""A bonus for a size to be measured, and the lock while it is: every exact policy sees both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve
from malletrain.sizing.constrained import size_within_constraints
from malletrain.sizing.constraints import check
from malletrain.sizing.policies.exact import Auto, Exact
from malletrain.sizing.policies.lp import Lp
from malletrain.sizing.policies.milp.milp_policy import Milp
from malletrain.sizing.problem import JobDemand, JobId, OnClasses, Problem
from malletrain.sizing.values import permitted_sizes, value_table
from tests.sizing.problems import every_plan, examples, full_dp, job, magnitude, problems


@st.composite
def measured(draw: st.DrawFn, most_jobs: int = 5, most: int = 8, most_nodes: int = 24) -> Problem:
    """Problems where some jobs have a bonus, and some are locked at a size."""
    problem = draw(problems(most_jobs, most, most_nodes, wild=False))
    demands = []
    for demand in problem.jobs:
        sizes = permitted_sizes(demand, problem.nodes).tolist()[1:]
        if sizes and draw(st.booleans()):
            extra = draw(st.lists(st.tuples(st.sampled_from(sizes), st.floats(0, 2e3)), max_size=2))
            locked = draw(st.none() | st.sampled_from(sizes))
            demand = replace(demand, bonus=tuple(extra), locked=locked)
        demands.append(demand)
    return replace(problem, jobs=tuple(demands))


@examples(150)
@given(measured())
def test_milp_lp_and_auto_give_the_sizes_of_exact(problem: Problem) -> None:
    expected = Exact().size(problem)
    table = value_table(problem)
    assert abs(expected.objective - full_dp(table, problem.nodes)) <= 1e-9 * magnitude(table)
    for policy in (Milp(), Lp(), Auto()):
        answer = policy.size(problem)
        assert answer.sizes == expected.sizes, policy.name
        assert check(problem, answer.sizes) == []


@given(measured(most_jobs=3, most=5, most_nodes=10))
def test_locks_hold_while_there_are_nodes_beside_those_that_must_run(problem: Problem) -> None:
    answer = Exact().size(problem)
    must = [d.id for d in problem.jobs if d.must_run]
    locked = {d.id: d.locked for d in problem.jobs if d.locked is not None}
    assert all(answer.sizes[name] in (0, size) for name, size in locked.items())
    plans = [plan for _, plan in every_plan(problem)]
    running = max(_running(must, plan) for plan in plans)
    assert _running(must, answer.sizes) == running
    others = [name for name in locked if name not in must]
    kept = max(_running(others, plan) for plan in plans if _running(must, plan) == running)
    assert _running(others, answer.sizes) == kept


def _running(jobs: Sequence[JobId], sizes: Mapping[JobId, int]) -> int:
    return sum(sizes[each] > 0 for each in jobs)


def two_jobs(must_run: bool, least: int = 1) -> tuple[JobDemand, JobDemand]:
    return job("measured", 4, 4, locked=4), job("waited", 0, 4, min=least, must_run=must_run)


def on(nodes: int, jobs: tuple[JobDemand, ...], *, by_class: bool) -> Problem:
    classes = {"new": nodes, "old": 0} if by_class else {}
    if by_class:
        jobs = tuple(replace(each, on_classes=OnClasses(spans=True)) for each in jobs)
    return Problem(300.0, nodes, jobs, classes=classes)


@pytest.mark.parametrize("by_class", [False, True])
def test_a_measurement_takes_no_nodes_of_a_job_that_must_run(by_class: bool) -> None:
    policy = Auto()
    free = policy.size(on(4, two_jobs(must_run=False), by_class=by_class))
    assert free.sizes == {"measured": 4, "waited": 0}
    owed = policy.size(on(4, two_jobs(must_run=True), by_class=by_class))
    assert owed.sizes["waited"] >= 1 and owed.sizes["measured"] == 0
    both = policy.size(on(6, two_jobs(must_run=True), by_class=by_class))
    assert both.sizes == {"measured": 4, "waited": 2}


def test_a_lock_of_one_that_must_run_takes_no_nodes_of_another() -> None:
    first, second = two_jobs(must_run=True, least=3)
    problem = Problem(300.0, 5, (replace(first, must_run=True), second))
    answer, put_off = size_within_constraints(Auto(), problem)
    assert answer.sizes["measured"] >= 1 and answer.sizes["waited"] >= 3 and not put_off


def test_a_bonus_is_added_to_that_size_alone() -> None:
    demand = job("a", 4, 8, Curve.linear(8))
    plain = value_table(Problem(100.0, 8, (demand,)))
    bonus = value_table(Problem(100.0, 8, (replace(demand, bonus=((2, 50.0),)),)))
    assert (bonus.value - plain.value).tolist() == [0, 0, 50.0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "wrong", [{"bonus": ((2, float("nan")),)}, {"bonus": ((0, 1.0),)}, {"locked": 9}, {"locked": 0}]
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        job("a", 4, 8, Curve.linear(8), **wrong)
