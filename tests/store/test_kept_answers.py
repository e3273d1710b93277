"""Answers are kept for a moment."""

from __future__ import annotations

from malletrain.store.kept_answers import MAX_KEPT, KeptAnswers


class _Desk:
    """Time is a number; each text takes a second."""

    def __init__(self, size: int) -> None:
        self.size, self.now, self.written = size, 100.0, 0
        self.answers = KeptAnswers(lambda size, took_s: 2.0 * took_s if size >= 1000 else 0.0, lambda: self.now)

    def write(self) -> bytes:
        self.written += 1
        self.now += 1.0
        return str(self.written).encode().ljust(self.size)

    def get(self) -> int:
        return int(self.answers.get("status", self.write))


def test_a_short_text_is_written_each_time() -> None:
    desk = _Desk(100)
    assert [desk.get() for _ in range(3)] == [1, 2, 3]


def test_a_long_one_is_kept_and_never_shown_when_it_is_too_old() -> None:
    desk = _Desk(1000)
    assert [desk.get(), desk.get()] == [1, 1]
    desk.now += 1.9
    assert desk.get() == 1
    desk.now += 0.2
    assert desk.get() == 2


def test_what_is_kept_is_bounded() -> None:
    desk = _Desk(1000)
    for key in range(MAX_KEPT + 5):
        desk.answers.get(key, desk.write)
    assert len(desk.answers._kept) == MAX_KEPT
