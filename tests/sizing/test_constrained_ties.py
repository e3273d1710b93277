"""Under side constraints equally good plans are told apart by a rule, not by which one the solver finds first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import highspy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from malletrain.domain.decision import SizingStatus
from malletrain.domain.job import Curve
from malletrain.sizing.constraints import cap
from malletrain.sizing.policies.lp import Lp
from malletrain.sizing.policies.milp import model, pricing
from malletrain.sizing.policies.milp.milp_policy import Milp
from malletrain.sizing.problem import JobId, Problem
from malletrain.sizing.problem_file import parse
from malletrain.sizing.quiet_highs import new_solver
from malletrain.sizing.registry import policy
from malletrain.sizing.values import value_table
from tests.corpus.sizing import constrained as recorded_problem
from tests.sizing.problems import constrained, every_plan, examples, job, magnitude

#: Other ways to the same optimum, as another release of the solver takes.
OTHERWISE: tuple[dict[str, Any], ...] = (
    {"random_seed": 12345, "presolve": "off"},
    {"random_seed": 7, "mip_heuristic_effort": 0.0, "simplex_strategy": 4},
)


@contextmanager
def solver_set(options: dict[str, Any]) -> Iterator[None]:
    """HiGHS with these options besides."""

    def made(**usual: Any) -> highspy.Highs:
        return new_solver(**(usual | options))

    with patch.object(model, "new_solver", made), patch.object(pricing, "new_solver", made):
        yield


def by_rule(problem: Problem) -> dict[JobId, int] | None:
    """Of the best plans: fewest changes, fewest nodes, then the most nodes for the first jobs."""
    plans = every_plan(problem)
    if not plans:
        return None
    slack = 1e-10 * magnitude(value_table(problem))
    best = max(worth for worth, _ in plans)
    ties = [sizes for worth, sizes in plans if worth >= best - slack]
    current = {each.id: each.current for each in problem.jobs}
    order = [each.id for each in problem.in_order()]
    return min(
        ties,
        key=lambda sizes: (
            sum(sizes[name] != current[name] for name in order), sum(sizes.values()), [-sizes[name] for name in order]
        ),
    )  # fmt: skip


_RATES = {"a": 2.0, "b": 1.0, "c": 1.0, "d": 2.0}
#: All of a job's nodes may be another's and nothing is lost: one of a and d, and one of b and c, has two.
TIED = Problem(
    300.0,
    4,
    tuple(job(name, 0, 2, Curve.linear(2, rate), grow_s=0.0) for name, rate in _RATES.items()),
    constraints=(cap("a and d", ["a", "d"], 2), cap("b and c", ["b", "c"], 2)),
)


@pytest.mark.parametrize("name", ["milp", "lp", "auto"])
def test_the_first_jobs_have_the_most_nodes(name: str) -> None:
    assert policy(name).size(TIED).sizes == {"a": 2, "b": 2, "c": 0, "d": 0}


@pytest.mark.parametrize("name", ["milp", "lp", "auto"])
@pytest.mark.parametrize("seed", [107, 113, 137])
def test_plans_on_which_solvers_differed(seed: int, name: str) -> None:
    problem, _ = parse(json.dumps(recorded_problem(seed)))
    assert policy(name).size(problem).sizes == by_rule(problem)


@examples(40)
@given(constrained(most_jobs=5, wild=False), st.integers(0, 10**6))
def test_the_plan_follows_from_the_problem_alone(problem: Problem, seed: int) -> None:
    answer = Milp().size(problem)
    assume(answer.status is SizingStatus.OPTIMAL)
    assert dict(answer.sizes) == by_rule(problem)
    assert Lp().size(problem).sizes == answer.sizes
    random = Random(seed)
    jobs, limits = list(problem.jobs), list(problem.constraints)
    random.shuffle(jobs)
    random.shuffle(limits)
    other = replace(problem, jobs=tuple(jobs), constraints=tuple(limits))
    assert Milp().size(other).sizes == answer.sizes
    for options in OTHERWISE:
        with solver_set(options):
            assert Milp().size(other).sizes == answer.sizes, options
