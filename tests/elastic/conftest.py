"""Tests that train in several processes do not run beside others: their deadlines are those of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.digits import SCRIPT, State, Static, run_alone

ALONE = {
    "test_daemons.py",
    "test_ddp.py",
    "test_device_group.py",
    "test_precision.py",
    "test_soak.py",
    "test_features.py",
    "test_faults.py",
    "test_habits.py",
    "test_items.py",
    "test_launch.py",
    "test_live.py",
    "test_nodes.py",
    "test_prefetch.py",
    "test_restart.py",
    "test_schedules.py",
    "test_stages.py",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in ALONE:
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def static(tmp_path_factory: pytest.TempPathFactory) -> Static:
    """The result of the same script, alone; it runs once for the same options."""
    results: dict[tuple[str, ...], State] = {}

    def run(*options: str) -> State:
        if options not in results:
            results[options] = run_alone(tmp_path_factory.mktemp("static"), SCRIPT, *options)
        return results[options]

    return run
