"""Plans that lose little are searched first: that saves time and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.sizing import knapsack
from malletrain.sizing.problem import Problem
from malletrain.sizing.values import ValueTable, value_table
from tests.sizing.problems import problems


def _at_once(_loss: object, _jobs: int, gap: float) -> Iterator[float]:
    """The whole gap, as one search."""
    yield gap


@given(problem=problems(most_jobs=8), part=st.floats(0.0, 0.5))
def test_the_same_plan_as_a_search_of_the_whole_gap(problem: Problem, part: float) -> None:
    table = value_table(problem)
    if not len(table.ids):
        return
    price = knapsack.best_price(table, problem.nodes)
    gap = max(price.bound - table.worth(table.start[:-1]), 0.0)  # of no nodes for all: as wide as a gap can be
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "_deepening", lambda _loss, _jobs, gap: iter([gap * part**2, gap * part, gap]))
        found, _, _ = knapsack.least_loss(table, problem.nodes, price, gap)
        patch.setattr(knapsack, "_deepening", _at_once)
        whole, _, _ = knapsack.least_loss(table, problem.nodes, price, gap)
    np.testing.assert_array_equal(found, whole)


def test_few_rows_are_looked_at_where_a_good_plan_is_near() -> None:
    table = _blocks(jobs=60, width=7)
    found = knapsack.solve(table, 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "_deepening", _at_once)
        whole = knapsack.solve(table, 200)
    np.testing.assert_array_equal(found.rows, whole.rows)
    assert found.work["rows_left"] < whole.work["rows_left"]


def _blocks(jobs: int, width: int) -> ValueTable:
    """Jobs that grow by `width` nodes at a time from where they are, as wide pilots let them."""
    current = np.arange(jobs, dtype=np.int64) % 5
    size = np.array([[0, *(now + width * np.arange(8))] if now else width * np.arange(9) for now in current.tolist()])
    value = size**0.8 * np.linspace(1.0, 1.2, jobs)[:, None]
    row_job = np.repeat(np.arange(jobs), 9)
    flat = size.ravel().astype(np.int64)
    start = np.arange(jobs + 1, dtype=np.int64) * 9
    return ValueTable(tuple(range(jobs)), current, start, row_job, flat, value.ravel(), flat != current[row_job])
