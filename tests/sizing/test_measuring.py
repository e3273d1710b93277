"""A bonus for a size to be measured, and the lock while it is: every exact policy sees both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve
from malletrain.sizing.constraints import check
from malletrain.sizing.policies.exact import Auto, Exact
from malletrain.sizing.policies.lp import Lp
from malletrain.sizing.policies.milp import Milp
from malletrain.sizing.problem import Problem
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
    for policy in (Milp(), Lp(()), Auto()):
        answer = policy.size(problem)
        assert answer.sizes == expected.sizes, policy.name
        assert check(problem, answer.sizes) == []


@given(measured(most_jobs=3, most=5, most_nodes=10))
def test_locks_hold_while_there_are_nodes(problem: Problem) -> None:
    answer = Exact().size(problem)
    locked = {d.id: d.locked for d in problem.jobs if d.locked is not None}
    assert all(answer.sizes[name] in (0, size) for name, size in locked.items())
    if sum(locked.values()) <= problem.nodes:
        assert {name: answer.sizes[name] for name in locked} == locked
    else:
        kept = sum(answer.sizes[name] > 0 for name in locked)
        assert kept == max(sum(plan[name] > 0 for name in locked) for _, plan in every_plan(problem))


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
