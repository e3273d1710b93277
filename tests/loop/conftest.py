"""What tests of the loop share."""

from __future__ import annotations

import pytest

from tests.loop.stage import Stage


@pytest.fixture
def three() -> Stage:
    """A world of three, which trains."""
    stage = Stage()
    workers = stage.begin(3)
    assert stage.world() == workers
    return stage
