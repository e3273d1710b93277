"""What a play came to, in words, and which promises it did not keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.wire.rows import JobRow
from scripts.play.summary import Summary, shortcomings, words
from scripts.play.trainings import Found

MLP = JobRow(1, "mlp", "alice", 1, "", "completed", 1, 4, 0.0, samples=60.0, result={"accuracy": 0.96}, resizes=3)
GOOD = Summary(
    idle_node_s=800.0, harvested_node_s=640.0, samples=100.0, pauses_s=(0.01, 0.03), preemptions=0, leaves=2,
    delays_s=(0.1, 0.2), starts_s=(0.5, 0.6), twin_starts_s=(0.4, 0.4), lost=(),
    job=MLP, losses=((10.0, 1.0),), curve=((1, 480.0), (2, 930.0)), trials=(replace(MLP, id=2, name="search-0"),),
    found=Found({"completed": 3, "pruned": 2, "interrupted": 1}, 0.97, {"lr": 0.1, "width": 64}),
)  # fmt: skip


def test_a_good_play_keeps_its_promises_and_says_what_was_learnt_and_found() -> None:
    assert shortcomings(GOOD) == []
    text = "\n".join(words(GOOD))
    for part in ("(80%)", "1: 480, 2: 930", "3 completed, 2 pruned, 1 interrupted", "0.970 with lr 0.1, width 64"):
        assert part in text
    assert text.endswith("promises kept")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"lost": ("main job 3: never started",)}, "main job 3"),
        ({"delays_s": (2.5, 3.0)}, "than without"),
        ({"delays_s": ()}, "than without"),
        ({"harvested_node_s": 0.0}, "idle node"),
        ({"job": replace(MLP, phase="failed", reason="no task")}, "no task"),
        ({"job": replace(MLP, result={"accuracy": 0.5})}, "0.500"),
        ({"found": Found({"waiting": 3})}, "no trial"),
    ],
)
def test_each_promise_that_was_not_kept_is_named(change: dict[str, object], part: str) -> None:
    bad = replace(GOOD, **change)  # type: ignore[arg-type]
    assert len(shortcomings(bad)) == 1
    assert part in "\n".join(words(bad))
