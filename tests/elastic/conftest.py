"""Tests that look at when a worker is found, given up or gone on with do not run beside others. The rest wait for
what they look at, and a busy machine is no fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.digits import Static

ALONE = {
    "test_all_taken.py",  # all are to be saved within the seconds that Slurm gives them
    "test_soak.py",  # how much is held, once all has settled
    "test_network_cuts.py",  # cuts are shorter or longer than what workers wait for
    "test_schedules.py",  # no healthy worker may be given up
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in ALONE:
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def static(tmp_path_factory: pytest.TempPathFactory) -> Static:
    return Static(lambda: tmp_path_factory.mktemp("static"))
