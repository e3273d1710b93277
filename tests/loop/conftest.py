"""What tests of the loop share."""

from __future__ import annotations

import pytest

from tests.loop.stage import Stage


@pytest.fixture
def three() -> Stage:
    """A world of three, which trains."""
    stage = Stage()
    workers = [stage.hello(task) for task in range(3)]
    for task, worker in enumerate(workers):
        stage.members.warm(worker, f"h{task}:1", {})
    stage.obey(*workers)
    assert stage.world() == workers
    return stage
