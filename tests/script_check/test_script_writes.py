"""Files that every worker would write are found in a script's text."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.script_check.script_writes import unguarded_writes


def lines(script: str) -> list[tuple[int, str]]:
    return [(each.line, each.call) for each in unguarded_writes(textwrap.dedent(script))]


FOUND = {
    "torch.save(model, 'best.pt')": (1, "torch.save"),
    "if score > best:\n    torch.save(model, 'best.pt')": (2, "torch.save"),
    "model.save_pretrained('out')": (1, "model.save_pretrained"),
    "log = open('out.csv', 'w')": (1, "open"),
    "with Path('out.csv').open(mode='a') as file:\n    pass": (1, "Path('out.csv').open"),
    "frame.to_csv('out.csv')": (1, "frame.to_csv"),
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
    "log = open('words.txt')",
    "log = open(f'out-{rank}.csv', 'w')",
    "path = f'out-{s.worker}.csv'\nlog = open(path, 'w')",
    "log = open(os.path.join(tempfile.mkdtemp(), 'x'), 'w')",
    "def begin():\n    global log\n    log = open('out.csv', 'a')\ns.when_main(begin)",
    "s.when_main(lambda: Path('note').write_text('begun'))",
    "def begin():\n    log = open('out.csv', 'a')\noptions = elastic.Options(when_main=begin)",
    "s = Session(m, o, d, options=elastic.Options(when_main=lambda: Path('note').write_text('begun')))",
    "torch.save(",
]


@pytest.mark.parametrize("script", GUARDED)
def test_a_write_of_the_main_worker_is_not(script: str) -> None:
    assert lines(script) == []


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    unguarded_writes(text)
