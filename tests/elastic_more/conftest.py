"""Tests that train in several processes do not run in parallel with others: their deadlines assume an idle
machine."""

from __future__ import annotations

from pathlib import Path

import pytest

ALONE = {
    "test_compiled.py",
    "test_adapters.py",
    "test_batch_live.py",
    "test_model_examples.py",
    "test_norm_live.py",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in ALONE:
            item.add_marker(pytest.mark.alone)
