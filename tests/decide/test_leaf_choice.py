"""Nodes on few leaf switches."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.nodes_left import leaf_order, leaves_of, on_few_leaves


def test_the_fullest_leaf_that_holds_all_is_first_or_else_the_widest() -> None:
    assert leaf_order({"a": 4, "b": 2, "c": 3}, 2)[0] == "b"
    assert leaf_order({"a": 4, "b": 2, "c": 3}, 6) == ["a", "b"]
    assert leaf_order({"a": 4, "b": 2, "c": 3}, 2, near=["c"]) == ["c"]


def test_a_leaf_with_fewer_nodes_without_a_main_job_is_fuller() -> None:
    assert leaf_order({"a": 2, "b": 2}, 2, room={"a": 4, "b": 2}) == ["b"]


@given(st.lists(st.integers(0, 4), max_size=10), st.integers(0, 11), st.sets(st.integers(0, 4)))
def test_no_other_choice_needs_fewer_leaves(leaf_of: list[int], wanted: int, near: set[int]) -> None:
    names = [f"n{at}" for at in range(len(leaf_of))]
    leaves = {name: f"l{leaf}" for name, leaf in zip(names, leaf_of, strict=True)}
    beside = {f"l{leaf}" for leaf in near}
    chosen = on_few_leaves(names, wanted, leaves, beside)
    assert len(chosen) == len(set(chosen)) == min(wanted, len(names))
    # The fewest leaves besides `near`: as many of the widest as the rest needs.
    on = Counter(leaves.values())
    others = sorted((leaf for leaf in on if leaf not in beside), key=lambda leaf: -on[leaf])
    rest = min(wanted, len(names)) - sum(on[leaf] for leaf in beside)
    fewest = next(n for n in range(len(others) + 1) if sum(on[leaf] for leaf in others[:n]) >= rest)
    assert len(leaves_of(chosen, leaves) - beside) == fewest
    if len(names) <= 6:
        every = combinations(names, len(chosen))
        assert fewest == min(len(leaves_of(each, leaves) - beside) for each in every)


def test_without_switches_the_first_are_taken() -> None:
    assert on_few_leaves(["a", "b", "c"], 2, {}) == ["a", "b"]
