"""Long texts are kept for a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from malletrain.domain.errors import ClusterUnavailable
from malletrain.store.status_text import KEPT_FROM_BYTES, MAX_KEPT_S, KeptTexts


@dataclass
class _Desk:
    """Time is a number, and what is to run beside waits for `run_beside`."""

    size: int
    now: float = 100.0
    processor_s: float = 0.0
    written: int = 0
    beside: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.texts = KeptTexts(lambda: self.now, lambda: self.processor_s, self.beside.append)

    def write(self) -> bytes:
        self.written += 1
        self.processor_s += 1.0
        return str(self.written).encode().ljust(self.size)

    def get(self) -> int:
        return int(self.texts.get("status", self.write))

    def run_beside(self) -> None:
        while self.beside:
            self.beside.pop()()


def test_a_short_text_is_written_each_time() -> None:
    desk = _Desk(100)
    assert [desk.get() for _ in range(3)] == [1, 2, 3]


def test_a_long_text_is_kept_and_written_anew_beside_those_who_ask() -> None:
    desk = _Desk(KEPT_FROM_BYTES)
    assert [desk.get(), desk.get()] == [1, 1]
    desk.now += 0.6 * MAX_KEPT_S
    assert [desk.get(), desk.get()] == [1, 1], "nobody waits"
    assert len(desk.beside) == 1, "once"
    desk.run_beside()
    assert desk.get() == 2


def test_nobody_gets_a_text_that_is_too_old() -> None:
    desk = _Desk(KEPT_FROM_BYTES)
    desk.get()
    desk.now += 1.1 * MAX_KEPT_S
    assert desk.get() == 2


def test_a_text_that_became_short_is_kept_no_more() -> None:
    desk = _Desk(KEPT_FROM_BYTES)
    desk.get()
    desk.size, desk.now = 100, desk.now + 1.1 * MAX_KEPT_S
    assert [desk.get(), desk.get()] == [2, 3]


def test_what_fails_beside_fails_for_whoever_asks_later() -> None:
    def fail() -> bytes:
        raise ClusterUnavailable("the journal is away")

    desk = _Desk(KEPT_FROM_BYTES)
    desk.get()
    desk.now += 0.6 * MAX_KEPT_S
    desk.texts.get("status", fail)
    desk.run_beside()
    assert desk.get() == 1
    desk.now += MAX_KEPT_S
    with pytest.raises(ClusterUnavailable):
        desk.texts.get("status", fail)
