"""Files that every worker of a script would write are found in its text."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.guards.script_writes import unguarded_writes


def lines(script: str) -> list[tuple[int, str]]:
    return [(each.line, each.call) for each in unguarded_writes(textwrap.dedent(script))]


FOUND = {
    "torch.save(model, 'best.pt')": (1, "torch.save"),
    "if score > best:\n    torch.save(model, 'best.pt')": (2, "torch.save"),
    "model.save_pretrained('out')": (1, "model.save_pretrained"),
    "def keep():\n    plt.savefig('loss.png')": (2, "plt.savefig"),
}


@pytest.mark.parametrize("script", FOUND)
def test_a_write_of_every_worker_is_found(script: str) -> None:
    assert lines(script) == [FOUND[script]]


GUARDED = [
    "if s.is_main:\n    torch.save(model, 'best.pt')",
    "if s.is_main and score > best:\n    torch.save(model, 'best.pt')",
    "def keep(s):\n    if not s.is_main:\n        return\n    torch.save(model, 'best.pt')",
    "if accelerator.is_main_process:\n    model.save_pretrained('out')",
    "scheduler.save()",
    "torch.save(",
]


@pytest.mark.parametrize("script", GUARDED)
def test_a_write_of_the_main_worker_is_not(script: str) -> None:
    assert lines(script) == []


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    unguarded_writes(text)
