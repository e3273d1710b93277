"""The strip of nodes: what each cell says, worked out anew node by node and bin by bin."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.history import HoleChange, NodeStay
from malletrain.domain.snapshot import NodeState
from malletrain.web.machine_strip import AWAY, HIDDEN, IDLE, MORE, PLANNED, Axis, Key, StripRow, strip

AXIS = Axis(1000.0, 1100.0, 10)


def cells(row: StripRow) -> list[dict[Key, int]]:
    return [cell for bins, cell in row.runs for _ in range(bins)]


def test_a_node_of_the_main_queue_opens_and_closes() -> None:
    nodes = {"n1": NodeState.ALLOCATED}
    holes = [HoleChange(1020.0, ("n1",), True), HoleChange(1080.0, ("n1",), False, True)]
    stays = [NodeStay(3, 1001, "n1", 1030.0, 1060.0)]
    (row,) = strip(nodes, stays, holes, AXIS, 16)
    assert (row.first, row.last, row.nodes) == ("n1", "n1", 1)
    assert row.runs == ((2, {}), (1, {IDLE: 1}), (3, {3: 1}), (2, {IDLE: 1}), (2, {}))


def test_what_was_before_the_first_change_follows_from_it() -> None:
    nodes = {"n1": NodeState.ALLOCATED, "n2": NodeState.IDLE, "n3": NodeState.DRAINED, "n4": NodeState.ALLOCATED}
    taken = HoleChange(1050.0, ("n1",), False, True)
    gone = HoleChange(1050.0, ("n3",), False, False)
    rows = strip(nodes, [NodeStay(3, 1001, "n4", 900.0, None)], [taken, gone], AXIS, 16)
    assert [row.runs for row in rows] == [
        ((5, {IDLE: 1}), (5, {})),
        ((10, {IDLE: 1}),),
        ((5, {IDLE: 1}), (5, {AWAY: 1})),
        ((10, {3: 1}),),
    ]


def test_a_node_that_backfill_keeps_is_planned_now() -> None:
    nodes = {"n1": NodeState.PLANNED, "n2": NodeState.IDLE, "n3": NodeState.PLANNED}
    stays = [NodeStay(3, 1001, "n3", 900.0, None)]
    rows = strip(nodes, stays, [], AXIS, 16)
    assert [row.runs for row in rows] == [
        ((9, {IDLE: 1}), (1, {PLANNED: 1})),
        ((10, {IDLE: 1}),),
        ((10, {3: 1}),),  # a pilot uses the time until then
    ]
    (row,) = strip(nodes, stays, [], AXIS, 1)
    assert row.runs == ((9, {3: 1, IDLE: 2}), (1, {3: 1, PLANNED: 1, IDLE: 1}))


def test_jobs_of_others_are_not_named() -> None:
    nodes = {"n1": NodeState.ALLOCATED, "n2": NodeState.ALLOCATED}
    stays = [NodeStay(3, 1001, "n1", 900.0, None), NodeStay(4, 1002, "n2", 900.0, None)]
    rows = strip(nodes, stays, [], AXIS, 16, seen_uid=1001)
    assert [cells(row)[0] for row in rows] == [{3: 1}, {HIDDEN: 1}]


def test_rows_of_many_nodes_count_them() -> None:
    nodes = {f"n{at}": NodeState.ALLOCATED for at in range(10)}
    stays = [NodeStay(3, 1001, f"n{at}", 900.0, None) for at in (0, 1, 9)]
    rows = strip(nodes, stays, [HoleChange(1050.0, ("n2",), True)], AXIS, 3)
    assert [(row.first, row.last, row.nodes) for row in rows] == [("n0", "n3", 4), ("n4", "n7", 4), ("n8", "n9", 2)]
    assert rows[0].runs == ((5, {3: 2}), (5, {3: 2, IDLE: 1}))
    assert rows[2].runs == ((10, {3: 1}),)


def test_a_row_lists_the_jobs_with_the_most_nodes() -> None:
    nodes = {f"n{at}": NodeState.ALLOCATED for at in range(12)}
    stays = [NodeStay(min(at // 2, 9) + 1, 1, f"n{at}", 900.0, None) for at in range(11)]
    (row,) = strip(nodes, stays, [], AXIS, 1)
    assert row.runs == ((10, {1: 2, 2: 2, 3: 2, 4: 2, MORE: 3}),)


def test_no_nodes_no_rows() -> None:
    assert strip({}, [], [], AXIS, 16) == ()


times = st.floats(950, 1150)
stays_of_nodes = st.lists(
    st.builds(
        lambda job, node, begin, length: NodeStay(job, job, f"n{node}", begin, begin + length),
        st.integers(1, 4), st.integers(0, 11), times, st.floats(0, 100),
    ),
    max_size=12,
)  # fmt: skip
changes = st.lists(
    st.builds(
        lambda at, node, opened, taken: HoleChange(at, (f"n{node}",), opened, taken),
        st.floats(1000, 1100), st.integers(0, 11), st.booleans(), st.booleans(),
    ),
    max_size=12,
).map(lambda found: sorted(found, key=lambda change: change.at))  # fmt: skip


@given(stays_of_nodes, changes, st.integers(1, 16))
def test_grouped_rows_are_the_sums_of_their_nodes(stays: list[NodeStay], holes: list[HoleChange], rows: int) -> None:
    """Every row covers all bins, holds no more nodes than it has, and pilots add up over any division into rows."""
    nodes = {f"n{at}": NodeState.ALLOCATED if at % 3 else NodeState.IDLE for at in range(12)}
    one_each, grouped = strip(nodes, stays, holes, AXIS, 12), strip(nodes, stays, holes, AXIS, rows)
    assert len(grouped) <= max(rows, 1)
    for made in (one_each, grouped):
        assert sum(row.nodes for row in made) == 12
        for row in made:
            assert sum(bins for bins, _ in row.runs) == AXIS.bins
            assert all(0 < sum(cell.values()) <= row.nodes or not cell for _, cell in row.runs)
            assert all(before[1] != after[1] for before, after in pairwise(row.runs))
    busy = Counter(
        (stay.node, at) for stay in stays for at in range(AXIS.first(stay.started_at), AXIS.first(stay.ended_at or 0))
    )
    for at in range(AXIS.bins):
        by_node = sum(1 for row in one_each for key in cells(row)[at] if key not in (IDLE, AWAY))
        assert by_node == sum(1 for node, when in busy if when == at)
