"""A private munged, and two users' jobs behind the workers' routes on a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.conftest import house, new_house
from tests.munged import munged
from tests.security.two_users import Site

__all__ = ["house", "munged", "new_house"]


@pytest.fixture
def site(tmp_path: Path, munged: str) -> Iterator[Site]:
    made = Site(tmp_path, munged)
    yield made
    made.close()
