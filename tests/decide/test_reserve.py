"""The reserve: what stays idle, and what is made idle again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.holes import plan_reserve
from malletrain.decide.yielding import HarvestedNode
from malletrain.domain.decision import Hole
from malletrain.domain.snapshot import NodeState, Snapshot
from tests.world import RULES, START, node


def place(free: int, held: int, leaf_size: int = 0) -> tuple[list[Hole], list[HarvestedNode], Snapshot]:
    """Free nodes f0.. (the best first) and nodes h0.. with pilots of rising cost, on leaves of `leaf_size` nodes."""
    names = [f"f{n}" for n in range(free)] + [f"h{n}" for n in range(held)]
    nodes = tuple(node(name, NodeState.IDLE if name[0] == "f" else NodeState.ALLOCATED) for name in names)
    leaves = {name: f"leaf{n // leaf_size}" for n, name in enumerate(names)} if leaf_size else {}
    holes = [Hole(f"f{n}", START + 3600.0 - n, "nothing planned") for n in range(free)]
    return (
        holes,
        [HarvestedNode(f"h{n}", f"9_{n}", float(n)) for n in range(held)],
        Snapshot(START, nodes, leaves=leaves),
    )


@given(
    free=st.integers(0, 9), held=st.integers(0, 9), keep=st.integers(0, 6), leaves=st.integers(0, 3),
    size=st.integers(0, 4), coming=st.integers(0, 3),
)  # fmt: skip
def test_the_reserve_is_as_large_as_asked_for_and_no_larger(
    free: int, held: int, keep: int, leaves: int, size: int, coming: int
) -> None:
    holes, harvested, snapshot = place(free, held, size)
    rules = replace(RULES, keep_idle=keep, keep_leaves=leaves)
    kept, leave = plan_reserve(holes, harvested, {f"c{n}" for n in range(coming)}, snapshot, rules)
    empty = len(kept) + len(leave)
    of_leaves = sum(reason.startswith("on leaf") for reason in [*kept.values(), *leave.values()])
    assert empty >= min(keep, free + held + coming)
    assert empty <= max(keep, of_leaves)
    assert kept.keys() <= {hole.node for hole in holes} | {"c0", "c1", "c2"}
    assert leave.keys() <= {each.pilot for each in harvested}
    if not rules.keep_leaves and len(holes) >= rules.keep_idle:
        assert (kept, leave) == plan_reserve(holes, (), (), snapshot, rules)


def test_the_worst_holes_stay_empty_and_no_pilot_leaves_while_they_suffice() -> None:
    kept, leave = plan_reserve(*place(3, 3)[:2], (), place(3, 3)[2], replace(RULES, keep_idle=2))
    assert (set(kept), leave) == ({"f1", "f2"}, {})


def test_pilots_that_cost_least_leave_until_the_reserve_is_full_again() -> None:
    holes, harvested, snapshot = place(1, 4)
    kept, leave = plan_reserve(holes, harvested, (), snapshot, replace(RULES, keep_idle=3))
    assert (set(kept), set(leave)) == ({"f0"}, {"9_0", "9_1"})
    # No other pilot is asked while those are on their way.
    assert plan_reserve(holes, harvested[2:], {"h0", "h1"}, snapshot, replace(RULES, keep_idle=3))[1] == {}


def test_a_whole_leaf_is_kept_where_it_costs_fewest_pilots_and_counts_in_the_reserve() -> None:
    holes, harvested, snapshot = place(3, 5, leaf_size=4)
    kept, leave = plan_reserve(holes, harvested, (), snapshot, replace(RULES, keep_idle=2, keep_leaves=1))
    assert (set(kept), set(leave)) == ({"f0", "f1", "f2"}, {"9_0"})


def test_a_leaf_with_a_main_job_on_it_is_no_whole_leaf() -> None:
    holes, harvested, snapshot = place(3, 4, leaf_size=4)
    busy = replace(snapshot, leaves={**snapshot.leaves, "m0": "leaf0", "m1": "leaf1"})
    kept, leave = plan_reserve(holes, harvested, (), busy, replace(RULES, keep_leaves=1))
    assert (kept, leave) == ({}, {})


def test_single_nodes_are_kept_beside_a_kept_leaf() -> None:
    holes, harvested, snapshot = place(4, 0, leaf_size=2)
    snapshot = replace(snapshot, leaves={"f0": "a", "f1": "b", "f2": "b", "f3": "a"})
    kept, _ = plan_reserve(holes, harvested, (), snapshot, replace(RULES, keep_idle=3, keep_leaves=1))
    assert set(kept) == {"f0", "f3", "f2"}


def test_a_leaf_that_pilots_are_leaving_is_kept_as_whole() -> None:
    holes, harvested, snapshot = place(3, 5, leaf_size=4)
    kept, leave = plan_reserve(holes, harvested[1:], {"h0"}, snapshot, replace(RULES, keep_leaves=1))
    assert (set(kept), leave) == ({"f0", "f1", "f2", "h0"}, {})


def test_single_nodes_stay_idle_on_the_fullest_leaf_so_that_whole_leaves_stay() -> None:
    holes, harvested, snapshot = place(5, 1)
    holes = [Hole(hole.node, START + 3600.0, "") for hole in holes]
    snapshot = replace(snapshot, leaves={"f0": "a", "f1": "a", "f2": "b", "f3": "a", "f4": "a", "h0": "b"})
    kept = [plan_reserve(holes, harvested, (), snapshot, replace(RULES, keep_idle=n))[0] for n in (1, 4)]
    assert [set(names) for names in kept] == [{"f2"}, {"f0", "f1", "f3", "f4"}]


@given(
    leaf_of=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    until=st.lists(st.integers(0, 2), min_size=6, max_size=6), keep=st.integers(0, 8),
)  # fmt: skip
def test_leaves_do_not_make_the_reserve_larger_or_its_holes_better(
    leaf_of: list[int], until: list[int], keep: int
) -> None:
    holes, harvested, snapshot = place(6, 0)
    holes = [Hole(hole.node, START + 3600.0 * (1 + more), "") for hole, more in zip(holes, until, strict=True)]
    holes.sort(key=lambda hole: (-hole.until, hole.node))
    rules, on_leaves = replace(RULES, keep_idle=keep), {f"f{n}": f"leaf{leaf}" for n, leaf in enumerate(leaf_of)}
    until_of = {hole.node: hole.until for hole in holes}
    plain, chosen = (
        plan_reserve(holes, harvested, (), replace(snapshot, leaves=leaves), rules)[0] for leaves in ({}, on_leaves)
    )
    assert sorted(until_of[name] for name in chosen) == sorted(until_of[name] for name in plain)
