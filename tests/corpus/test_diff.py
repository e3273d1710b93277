"""The corpus' differences are told in fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.diff import fields, folders


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('{"a": {"b": 1}, "c": 2}', '{"a": {"b": 3}, "c": 2}', ["a.b: 1 -> 3"]),
        ('{"a": 1}', '{"a": 1, "b": [1]}', ["b: - -> [1]"]),
        ("[1, 2, 3]", "[1, 9, 2, 3]", ["[1]: - -> 9"]),
        ('{"x": "{\\"seq\\": 2}"}', '{"x": "{\\"seq\\": 3}"}', ["x.seq: 2 -> 3"]),
        ('{"n": 1}\n{"n": 2}\n', '{"n": 1}\n{"n": 5}\n', ["[1].n: 2 -> 5"]),
        ("sinfo a\nsinfo b\n", "sinfo a\nsinfo c\n", ["[1]: sinfo b -> sinfo c"]),
        ('id 1: {"a": 1, "b": 2}\nx\n', 'id 1: {"a": 1, "b": 3}\nx\n', ["[0].id 1.b: 2 -> 3"]),
        ('{"a": 1}', '{"a": 1}', []),
    ],
)
def test_differences_are_told_in_fields(old: str, new: str, said: list[str]) -> None:
    assert list(fields(old, new)) == said


def test_cases_that_came_and_went_are_named(tmp_path: Path) -> None:
    for side, name in (("before", "gone"), ("now", "came"), ("before", "both"), ("now", "both")):
        (tmp_path / side / "sizing").mkdir(parents=True, exist_ok=True)
        (tmp_path / side / "sizing" / name).write_text("1", "utf-8")
    assert list(folders(tmp_path / "before", tmp_path / "now")) == ["sizing/came: new", "sizing/gone: gone"]
