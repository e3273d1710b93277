"""Benches are ordinary modules, and `python -m scripts.bench` lists all of them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench import __main__ as bench_list

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts" / "bench"
MODULES = sorted(".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py"))


def test_every_file_is_a_module() -> None:
    others = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert not others, "python -m scripts.bench.NAME runs modules only"


def test_the_list_has_every_bench_with_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_list.main() == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert sorted([*shown, "__main__", *bench_list.HELPERS]) == MODULES


@pytest.mark.parametrize("name", MODULES)
def test_a_bench_can_be_imported_without_being_run(name: str) -> None:
    module = importlib.import_module(f"scripts.bench.{name}")
    assert module.__doc__, "its first line says what it shows"


#: In a process of its own: sessions of other tests would look at each step of an optimizer.
CALLS = """
import torch
from scripts.bench.elastic import step_cost
steps = step_cost.session(torch.randn(64 * 100, 16), 16)
for _ in range(20):
    next(steps)
print(step_cost.calls(steps))
"""


def test_a_step_of_42_tensors_makes_at_most_150_calls() -> None:
    pytest.importorskip("torch")
    assert int(subprocess.check_output([sys.executable, "-c", CALLS], text=True)) <= 150
