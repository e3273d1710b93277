"""The mission ledger names tests, benches and pages that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES = (ROOT / "tests" / "mission.md").read_text().splitlines()
TABLE = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line.startswith("|")]
#: Rows of promises; what stands above a group has no proof of its own.
ROWS = [row for row in TABLE[2:] if not row[0].startswith("**")]


@pytest.mark.parametrize(("promise", "shown_by", "figure"), ROWS, ids=[row[0] for row in ROWS])
def test_each_promise_has_its_proof(promise: str, shown_by: str, figure: str) -> None:
    proof = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown_by)
    assert proof is not None, f"{promise}: name one test"
    assert re.search(rf"^def {proof[2]}\(", (ROOT / proof[1]).read_text(), re.MULTILINE), shown_by
    for module in re.findall(r"scripts(?:\.\w+)+", figure):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for page in re.findall(r"docs/[\w/.-]+\.md", figure):
        assert (ROOT / page).exists(), page
