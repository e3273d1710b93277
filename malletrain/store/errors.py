"""What can go wrong with the journal's file."""

from __future__ import annotations

from malletrain.domain.errors import MalletrainError


class StoreError(MalletrainError):
    """The journal cannot be read or written: nothing may be done that is not recorded."""


class JournalInUse(StoreError):
    """Another daemon writes this journal."""


class JournalTooNew(StoreError):
    """The journal was written by a newer release of malletrain."""
