"""Jobs with the same choices as one step: the same plan as job by job, ties included."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.sizing import knapsack
from malletrain.sizing.alike_stages import UNSETTLED, Choices, GroupPlan, least_loss_of_groups
from malletrain.sizing.problem import Problem
from malletrain.sizing.values import value_table
from tests.sizing.problems import problems

#: Few different numbers, so that jobs are alike and plans are often equally good.
CHOICES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=3).map(
    lambda more: ((0, *sorted({nodes for nodes, _ in more})), (1, *[loss for _, loss in more][: len(dict(more))]))
)


def _by_trial(jobs: list[Choices], room: int, limit: int, loss: int) -> tuple[int, ...] | None:
    """The best of all plans."""
    best: tuple[tuple[int, int, tuple[int, ...]], tuple[int, ...]] | None = None
    for places in product(*(range(len(above)) for above, _ in jobs)):
        nodes = tuple(above[place] for (above, _), place in zip(jobs, places, strict=True))
        lost = sum(losses[place] for (_, losses), place in zip(jobs, places, strict=True))
        lost += loss * (room - sum(nodes))
        if sum(nodes) <= room and lost <= limit:
            key = lost, sum(nodes), tuple(-each for each in nodes)
            if best is None or key < best[0]:
                best = key, places
    return None if best is None else best[1]


@given(
    kinds=st.lists(CHOICES, min_size=1, max_size=3), of=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    room=st.integers(0, 14), limit=st.integers(0, 20), loss=st.integers(0, 2),
)  # fmt: skip
def test_what_is_settled_is_the_best_of_all_plans(
    kinds: list[Choices], of: list[int], room: int, limit: int, loss: int
) -> None:
    jobs = [kinds[kind % len(kinds)] for kind in of]
    found = least_loss_of_groups(jobs, room, limit, lambda unused: loss * unused)
    if found.settled:
        assert found.places == _by_trial(jobs, room, limit, loss)


def test_the_first_of_jobs_that_are_alike_get_the_most_nodes() -> None:
    alike = [((0, 2, 4), (0, 5, 7))] * 30
    found = least_loss_of_groups(alike, 62, 1000, lambda unused: 10 * unused)
    assert found == GroupPlan((2,) * 15 + (1,) + (0,) * 14, settled=True, states=found.states)


def test_groups_that_could_share_out_otherwise_settle_nothing() -> None:
    assert least_loss_of_groups([((0, 1), (0, 3)), ((0, 1, 2), (0, 3, 9))], 1, 10, lambda unused: 0) != UNSETTLED
    assert least_loss_of_groups([((0, 1), (0, 3)), ((0, 1, 2), (0, 3, 9))], 1, 10, lambda unused: 9 * unused) == (
        UNSETTLED
    )


@given(problem=problems(most_jobs=8))
def test_the_core_finds_the_same_plan_with_it_as_without(problem: Problem) -> None:
    table = value_table(problem)
    if not len(table.ids):
        return
    price = knapsack.best_price(table, problem.nodes)
    widest = max(price.bound - table.worth(table.start[:-1]), 0.0)  # of no nodes for all: as wide as a gap can be
    found, _, _ = knapsack.least_loss(table, problem.nodes, price, widest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "least_loss_of_groups", lambda *_: UNSETTLED)
        without, _, _ = knapsack.least_loss(table, problem.nodes, price, widest)
    np.testing.assert_array_equal(found, without)
