"""What is made of a look from the look before is what is made of it from nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.snapshot import Node, NodeIndex, NodeState, Snapshot
from tests.world import START, node

CHANGES = st.sampled_from(["state", "state", "state", "equal", "partitions", "renamed", "removed"])


@given(st.integers(1, 200), st.lists(st.lists(st.tuples(CHANGES, st.integers(0, 199)), max_size=8), max_size=4))
def test_an_index_after_another_is_the_one_from_nothing(count: int, looks: list[list[tuple[str, int]]]) -> None:
    nodes = tuple(node(f"n{i:03d}") for i in range(count))
    before = Snapshot(START, nodes)
    for changes in looks:
        shown = list(nodes)
        for change, place in changes:
            if shown:
                shown = _changed(shown, change, place % len(shown))
        nodes = tuple(shown)
        now = Snapshot(before.taken_at + 10.0, nodes).after(before)
        alone = NodeIndex.of(nodes)
        for name in ("by_name", "free", "staffed", "partitions"):
            assert getattr(now.index, name) == getattr(alone, name), name
        assert now.free_names == Snapshot(START, nodes).free_names
        before = now


def _changed(nodes: list[Node], change: str, place: int) -> list[Node]:
    old = nodes[place]
    match change:
        case "state":
            states = list(NodeState)
            new = replace(old, state=states[(states.index(old.state) + 1) % len(states)])
        case "equal":
            new = replace(old)
        case "partitions":
            new = replace(old, partitions=("other",))
        case "renamed":
            new = replace(old, name=f"{old.name}x")
        case _:
            return nodes[:place] + nodes[place + 1 :]
    return [*nodes[:place], new, *nodes[place + 1 :]]
