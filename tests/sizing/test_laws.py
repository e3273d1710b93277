"""An author of a policy is told which law it breaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

import pytest

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import laws
from malletrain.sizing.constraints import cap
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobId, Problem, Sizes
from malletrain.sizing.values import ValueRowCache
from tests.messages import says
from tests.sizing.problems import job

PROBLEM = Problem(300, 6, (job("a", 2, 4), job("b", 2, 4)), constraints=(cap("c", ["a"], 3),))


class Fixed(Policy):
    """Says what it was made with, and the next of its reasons."""

    name = "fixed"

    def __init__(self, sizes: Mapping[JobId, int], reasons: Iterator[object], status: SizingStatus) -> None:
        self.answer, self.reasons, self.status = sizes, reasons, status

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        return Sizes(self.status, 0.0, 0.0, self.answer, str(next(self.reasons)))


@pytest.mark.parametrize(
    ("sizes", "wrong"),
    [
        ({"a": 2, "b": 4}, []),
        ({"a": 2}, [("job 'b'", "no size")]),
        ({"a": 2, "b": 5}, [("job 'b'", 5), ("7 nodes", 6)]),
        ({"a": 4, "b": 2}, [("c: 4", 3)]),
    ],
)
def test_what_is_wrong_is_named(sizes: dict[JobId, int], wrong: list[tuple[object, ...]]) -> None:
    same = iter([""] * 2)
    found = laws.broken(Fixed(sizes, same, SizingStatus.FEASIBLE), PROBLEM)
    assert len(found) == len(wrong)
    assert all(says(line, *facts) for line, facts in zip(found, wrong, strict=True))


def test_the_fallback_may_keep_what_constraints_no_longer_allow() -> None:
    assert laws.broken(Fixed({"a": 4, "b": 2}, iter(["", ""]), SizingStatus.FALLBACK), PROBLEM) == []


def test_an_answer_that_does_not_come_again_is_named() -> None:
    found = laws.broken(Fixed({"a": 2, "b": 4}, count(), SizingStatus.FEASIBLE), PROBLEM)
    assert len(found) == 1 and says(found[0], "again")
