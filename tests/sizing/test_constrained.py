"""Every policy keeps every side constraint, also those that know none; what cannot be kept is put off, and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constrained import size_within_constraints
from malletrain.sizing.constraints import cap, check
from malletrain.sizing.problem import LinearLimit, Problem
from malletrain.sizing.registry import policy
from tests.messages import says
from tests.sizing.problems import constrained, examples, job, shipped

SHIPPED = [name for name in shipped() if name != "lp"]


@pytest.mark.parametrize("name", SHIPPED)
@examples(15)
@given(problem=constrained(most_jobs=5, most=8, most_nodes=20, wild=False))
def test_whatever_policy_what_is_not_put_off_is_kept(name: str, problem: Problem) -> None:
    answer, put_off = size_within_constraints(policy(name), problem)
    if answer.status is not SizingStatus.FALLBACK:
        kept = tuple(each for each in problem.constraints if each.name not in put_off)
        assert check(replace(problem, constraints=kept), answer.sizes) == []
    floors = {each.name for each in problem.constraints if each.lower > -1e300}
    assert set(put_off) <= floors, "a cap is never put off"


def test_a_policy_that_knows_no_caps_is_cut_to_them() -> None:
    problem = Problem(300, 12, (job("a", 0, 8), job("b", 0, 8)), constraints=(cap("a's", ["a"], 2),))
    answer, put_off = size_within_constraints(policy("equal"), problem)
    assert (answer.sizes, put_off) == ({"a": 2, "b": 6}, ())
    assert says(answer.reason, "a's")


def test_shares_are_put_off_and_caps_never() -> None:
    """A power cap has come down: three jobs must shrink at once, whatever the share says."""
    watts = LinearLimit("power", {1: 500.0, 2: 500.0, 3: 500.0}, 1500.0)
    share = LinearLimit("share", {1: 1.0}, lower=6)
    problem = Problem(300, 24, tuple(job(i, 8, 8) for i in (1, 2, 3)), constraints=(watts, share))
    answer, put_off = size_within_constraints(policy("auto"), problem)
    assert put_off == ("share",)
    assert sum(answer.sizes.values()) == 3
