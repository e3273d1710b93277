"""A guess of the price saves time and changes nothing, however wrong it is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from malletrain.sizing.knapsack import best_price, solve
from malletrain.sizing.problem import Problem
from malletrain.sizing.values import value_table
from tests.sizing.problems import full_dp, magnitude, problems


@given(problem=problems(most_jobs=8, wild=False), guess=st.floats(0.0, 1e6), wrong=st.floats(0.5, 2.0))
def test_the_same_sizes_and_the_same_bound(problem: Problem, guess: float, wrong: float) -> None:
    table = value_table(problem)
    free = solve(table, problem.nodes)
    for near in (guess, free.price, free.price * wrong):
        told = solve(table, problem.nodes, near)
        assert abs(told.objective - free.objective) <= 1e-11 * magnitude(table) * max(1, len(table.ids))
        assert abs(told.objective - full_dp(table, problem.nodes)) <= 1e-9 * magnitude(table) * max(1, len(table.ids))
        if len(table.ids):
            bounds = best_price(table, problem.nodes).bound, best_price(table, problem.nodes, near).bound
            np.testing.assert_allclose(*bounds, rtol=1e-9, atol=1e-9 * magnitude(table))
        np.testing.assert_array_equal(told.rows, free.rows)
