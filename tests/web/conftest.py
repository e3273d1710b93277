"""A private munged, and the page on a real socket."""

from __future__ import annotations

from tests.api.conftest import house, new_house
from tests.munged import munged

__all__ = ["house", "munged", "new_house"]
