"""Side constraints as values, the check of answers, and the fallback."""

from __future__ import annotations

import pytest
from hypothesis import given

from malletrain.domain.decision import SizingStatus
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve
from malletrain.sizing.constraints import cap, check, checked, fallback, guaranteed_share
from malletrain.sizing.policies.milp.milp_policy import Milp
from malletrain.sizing.problem import JobDemand, LinearLimit, Problem, Sizes
from tests.messages import says
from tests.sizing.problems import job, problems


def test_each_violation_has_its_own_line() -> None:
    demands = (job("a", 2, 4), job("b", 2, 4), job("c", 2, 4, sizes=(2, 4)))
    limits = (cap("alice", ["a"], 2), LinearLimit("watts", {"a": 300.0, "b": 200.0}, 500.0))
    problem = Problem(300, 6, demands, constraints=(*limits, LinearLimit("share", {"c": 1.0}, lower=4)))
    assert check(problem, {"a": 2, "b": 0, "c": 4}) == ["watts: 600 is above 500"]
    wrong = check(problem, {"a": 5, "c": 3, "x": 1})
    facts = (("job 'a'", 5), ("job 'b'", "no size"), ("job 'c'", 3), ("job 'x'", "problem"))
    assert all(says(line, *each) for line, each in zip(wrong[:4], facts, strict=True))
    assert any(says(line, "9 nodes", 6) for line in wrong) and any(says(line, "alice: 5", 2) for line in wrong)


def test_a_guaranteed_share_is_as_large_as_the_group_can_take() -> None:
    demands = (job("a", 0, 64, sizes=(3, 6)), job("b", 0, 2, min=2))
    assert guaranteed_share("s", demands, 7, 100).lower == 6
    assert guaranteed_share("s", demands, 5, 100).lower == 5
    assert guaranteed_share("s", demands, 100, 100).lower == 8
    assert guaranteed_share("s", demands, 100, 4).lower == 3
    assert guaranteed_share("s", (), 5, 100).lower == 0


def test_constraints_that_clash_are_named() -> None:
    limits = (cap("account x", ["a"], 1), LinearLimit("x's share", {"a": 1.0}, lower=2))
    answer = Milp().size(Problem(300, 8, (job("a", 1, 8),), constraints=limits))
    assert answer.status is SizingStatus.FALLBACK
    assert "x's share" in answer.reason


def test_an_answer_that_breaks_a_constraint_is_not_used() -> None:
    problem = Problem(300, 8, (job("a", 3, 8),), constraints=(cap("c", ["a"], 4),))
    wrong = Sizes(SizingStatus.OPTIMAL, 1.0, 1.0, {"a": 8}, "a plug-in's")
    answer = checked(problem, wrong)
    assert answer.status is SizingStatus.FALLBACK
    assert answer.sizes == {"a": 3}
    assert "c: 8 is above 4" in answer.reason


@given(problems())
def test_the_fallback_keeps_what_it_can(problem: Problem) -> None:
    answer = fallback(problem, "why")
    assert check(problem, answer.sizes) == []
    assert all(answer.sizes[j.id] <= j.current for j in problem.jobs)
    if sum(j.current for j in problem.jobs) <= problem.nodes and all(j.permits(j.current) for j in problem.jobs):
        assert answer.sizes == {j.id: j.current for j in problem.jobs}
    assert "why" in answer.reason


def test_the_fallback_cuts_the_largest_first() -> None:
    demands = (job(1, 8, 8), job(2, 8, 8), job(3, 2, 8))
    assert fallback(Problem(300, 11, demands), "").sizes == {1: 5, 2: 4, 3: 2}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("current", -1), ("current", 10**10), ("current", 1.5), ("current", True), ("min", 9), ("max", "8"),
        ("sizes", (1, -2)), ("weight", float("nan")), ("grow_s", -1.0), ("activate_s", float("inf")),
        ("remaining_samples", -1.0), ("id", 1.5),
        ("curve", Curve(((1, -1.0),))), ("curve", Curve(((2, 1.0), (1, 1.0)))), ("curve", Curve(((0, 1.0),))),
        ("curve", Curve(((1, float("nan")),))),
    ],
)  # fmt: skip
def test_a_demand_with_nonsense_is_refused(field: str, value: object) -> None:
    fields = {"id": 1, "current": 0, "min": 1, "max": 8, "curve": Curve.linear(8)} | {field: value}
    with pytest.raises(InvalidInput, match="job"):
        JobDemand(**fields)  # type: ignore[arg-type]


def test_a_problem_with_nonsense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="used twice"):
        Problem(300, 8, (job(1, 0, 8), job(1, 0, 8)))
    with pytest.raises(InvalidInput, match="horizon_s"):
        Problem(float("nan"), 8, ())
    with pytest.raises(InvalidInput, match="nodes"):
        Problem(300, 10**10, ())
    with pytest.raises(InvalidInput, match="alpha"):
        Problem(300, 8, (), alpha=-1)
    with pytest.raises(InvalidInput, match="unknown job 'x'"):
        Problem(300, 8, (), constraints=(cap("c", ["x"], 4),))
