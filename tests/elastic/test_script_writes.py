"""Files that every worker would write, and random numbers that each draws otherwise, are found in a script's text."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.guards.script_text.script_writes import unguarded_writes
from malletrain.elastic.guards.script_text.unseeded_draws import unseeded_draws


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
    "torch.save(",
]


@pytest.mark.parametrize("script", GUARDED)
def test_a_write_of_the_main_worker_is_not(script: str) -> None:
    assert lines(script) == []


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    unguarded_writes(text)
    unseeded_draws(text)


UNSEEDED = [
    "np.random.default_rng().random(64)",
    "random.Random()",
    "generator.seed()",
    "os.urandom(8)",
    "torch.manual_seed(int(time.time()))",
    "torch.Generator().manual_seed(os.getpid() + 1)",
]
BY_RANK = [
    "np.random.default_rng([epoch, RANK])",
    "torch.Generator().manual_seed(seed + dist.get_rank())",
    "random.Random(int(os.environ['LOCAL_RANK']))",
]
SEEDED = [
    "np.random.default_rng(0)",
    "random.Random(epoch)",
    "generator.manual_seed(s.steps_done)",
    "seed()",
    "x.time()",
]


@pytest.mark.parametrize("script", UNSEEDED)
def test_a_generator_without_a_seed_is_found(script: str) -> None:
    assert [each.line for each in unseeded_draws("import torch\n" + script)] == [2]


@pytest.mark.parametrize("script", BY_RANK)
def test_a_generator_that_the_rank_seeds_is_found(script: str) -> None:
    assert [each.by_rank for each in unseeded_draws(script)] == [True]


@pytest.mark.parametrize("script", SEEDED)
def test_a_seeded_one_is_not(script: str) -> None:
    assert unseeded_draws(script) == []
