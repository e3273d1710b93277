"""Collections that a function given to `evaluate` fills."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.guards.script_text.own_collections import own_collections

FILLS = """
guesses = {{}}
def score(batch, scale=2):
    mine = []
    for x in batch:
        mine.append(x)
        {fills}
    return {{"loss": sum(mine)}}
figures = {call}
"""


def names(fills: str, call: str = "s.evaluate(score, test)") -> list[str]:
    return [each.name for each in own_collections(FILLS.format(fills=fills, call=call))]


@pytest.mark.parametrize("fills", ["guesses[x] = 1", "guesses.update({x: 1})", "guesses.setdefault(x, 1)"])
def test_what_an_evaluation_fills_is_found(fills: str) -> None:
    assert names(fills) == ["guesses"]
    assert names(fills, "score(test)") == []


@pytest.mark.parametrize("fills", ["pass", "batch[x] = 1", "y = guesses[x]", "own = {}; own[x] = 1", "self.n = x"])
def test_its_own_and_what_it_reads_are_not(fills: str) -> None:
    assert names(fills) == []


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    own_collections(text)
