"""Nodes on few leaf switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.nodes_left import leaf_order, on_few_leaves


def order(on: Sequence[int], wanted: int, near: Sequence[int] = (), room: Sequence[int] | None = None) -> list[int]:
    return leaf_order(np.array([0, *on]), wanted, near, np.array([0, *(on if room is None else room)]))


def test_the_fullest_leaf_that_holds_all_is_first_or_else_the_widest() -> None:
    assert order([4, 2, 3], 2)[0] == 2
    assert order([4, 2, 3], 6) == [1, 2]
    assert order([4, 2, 3], 2, near=[3]) == [3]


def test_a_leaf_with_fewer_nodes_without_a_main_job_is_fuller() -> None:
    assert order([2, 2], 2, room=[4, 2]) == [2]


@given(st.lists(st.integers(1, 5), max_size=10), st.integers(0, 11), st.sets(st.integers(1, 5)))
def test_no_other_choice_needs_fewer_leaves(leaf_of: list[int], wanted: int, near: set[int]) -> None:
    leaf = np.array(leaf_of, np.intp)
    chosen = on_few_leaves(leaf, wanted, near, np.bincount(leaf, minlength=1)).tolist()
    assert len(chosen) == len(set(chosen)) == min(wanted, len(leaf_of))
    # The fewest leaves besides `near`: as many of the widest as the rest needs.
    on = Counter(leaf_of)
    others = sorted((leaf for leaf in on if leaf not in near), key=lambda leaf: -on[leaf])
    rest = min(wanted, len(leaf_of)) - sum(on[leaf] for leaf in near)
    fewest = next(n for n in range(len(others) + 1) if sum(on[leaf] for leaf in others[:n]) >= rest)
    assert len({leaf_of[at] for at in chosen} - near) == fewest
    if len(leaf_of) <= 6:
        every = combinations(leaf_of, len(chosen))
        assert fewest == min(len(set(each) - near) for each in every)


def test_without_switches_the_first_are_taken() -> None:
    assert on_few_leaves(np.zeros(3, np.intp), 2, (), np.zeros(1, np.intp)).tolist() == [0, 1]
