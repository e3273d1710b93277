"""Benches are ordinary modules, and the page that lists them lists all of them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts" / "bench"
PAGE = (ROOT / "docs" / "reference" / "benches.md").read_text()
MODULES = sorted(".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py"))


def test_every_file_is_a_module() -> None:
    others = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert not others, "python -m scripts.bench.NAME runs modules only"


def test_the_page_lists_every_bench_and_no_other() -> None:
    listed = re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)
    helpers = re.findall(r"`([\w.]+)`", PAGE.split("## Training")[1].split("\n\n")[-1])
    assert sorted([*listed, *helpers]) == MODULES


@pytest.mark.parametrize("name", [name for name in MODULES if "peer_torchft" not in name])
def test_a_bench_can_be_imported_without_being_run(name: str) -> None:
    if name == "elastic.train_large" or name.startswith("elastic.peer"):
        pytest.importorskip("torch")
    module = importlib.import_module(f"scripts.bench.{name}")
    assert module.__doc__, "its first line says what it shows"
