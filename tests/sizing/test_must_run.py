"""Whatever policy: jobs that must run have nodes, as far as nodes and caps reach."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from malletrain.sizing.constrained import size_within_constraints
from malletrain.sizing.constraints import cap, check
from malletrain.sizing.problem import NodeBudget, Problem
from malletrain.sizing.registry import policy
from malletrain.sizing.values import permitted_sizes
from tests.sizing.problems import constrained, examples, job, problems, shipped

SHIPPED = [name for name in shipped() if name != "lp"]


def fewest(problem: Problem) -> dict[object, int]:
    """The fewest nodes of each job that must run."""
    sizes = {each.id: permitted_sizes(each, problem.nodes)[1:2].tolist() for each in problem.jobs if each.must_run}
    return {job_id: least[0] for job_id, least in sizes.items() if least}


@pytest.mark.parametrize("name", SHIPPED)
@examples(20)
@given(problem=problems(most_jobs=5, most=8, most_nodes=20, wild=False))
def test_where_their_fewest_fit_together_all_have_nodes(name: str, problem: Problem) -> None:
    answer, _ = size_within_constraints(policy(name), problem)
    assert check(problem, answer.sizes) == []
    wanted = fewest(problem)
    if sum(wanted.values()) <= problem.nodes:
        assert all(answer.sizes[each] for each in wanted)  # type: ignore[index]


@pytest.mark.parametrize("name", SHIPPED)
@examples(10)
@given(problem=constrained(most_jobs=4, most=6, most_nodes=16, wild=False))
def test_caps_hold_all_the_same(name: str, problem: Problem) -> None:
    answer, put_off = size_within_constraints(policy(name), problem)
    kept = tuple(each for each in problem.constraints if each.name not in put_off)
    if answer.reason.find("present sizes, cut") < 0:
        assert check(replace(problem, constraints=kept), answer.sizes) == []


def test_the_fewest_come_off_nodes_classes_budgets_and_caps() -> None:
    jobs = (job("a", 4, 8), job("b", 4, 8), job("waits", 0, 8, min=5, must_run=True))
    problem = Problem(
        300.0, 8, jobs, constraints=(cap("user", ["a", "waits"], 6),),
        budgets=(NodeBudget("x", frozenset({"a", "waits"}), 3600.0),), classes={"new": 6, "old": 2},
    )  # fmt: skip
    for name in SHIPPED:
        answer, put_off = size_within_constraints(policy(name), problem)
        assert answer.sizes["waits"] >= 5 and check(problem, answer.sizes) == [] and not put_off, name
    capped = replace(problem, constraints=(cap("user", ["a", "waits"], 4),))
    for name in SHIPPED:
        answer, _ = size_within_constraints(policy(name), capped)
        assert answer.sizes["waits"] == 0 and check(capped, answer.sizes) == [], name
