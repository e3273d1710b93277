"""GPUs in the place of Pollux's policy: each is given once, and a job whose size stays is not restarted."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scripts.bench.pollux_simulator import GPUS_A_NODE, pack

NODES = dict.fromkeys(range(4), GPUS_A_NODE)


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    """GPUs by job, together no more than there are."""
    left, found = sum(NODES.values()), {}
    for name in "abcdef":
        found[name] = draw(st.integers(0, left))
        left -= found[name]
    return found


@given(sizes(), sizes())
def test_each_gpu_is_given_once_and_who_keeps_its_size_stays(before: dict[str, int], after: dict[str, int]) -> None:
    placed = pack(before, {}, NODES)
    found = pack(after, placed, NODES)
    assert {name: len(gpus) for name, gpus in found.items()} == after
    assert all(count <= GPUS_A_NODE for count in Counter(node for gpus in found.values() for node in gpus).values())
    assert all(found[name] == placed[name] for name in after if after[name] == before[name])


def test_a_job_lies_on_as_few_nodes_as_fit() -> None:
    found = pack({"a": 8, "b": 3, "c": 4, "d": 1}, {}, NODES)
    assert [len(set(found[name])) for name in "abcd"] == [2, 1, 1, 1]
