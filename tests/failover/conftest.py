"""A munged with a key of its own."""

from __future__ import annotations

from tests.munged import munged

__all__ = ["munged"]
