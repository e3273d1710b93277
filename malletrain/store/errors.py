"""What can go wrong with the journal's file."""

from __future__ import annotations

from malletrain.domain.errors import JournalUnavailable, MalletrainError


class StoreError(JournalUnavailable):
    """The journal's file or disk refuses."""


class DiskFull(StoreError):
    """There is no room for the journal; once there is, trying again helps."""


class JournalInUse(StoreError):
    """Another daemon writes this journal."""


class JournalTooNew(StoreError):
    """The journal was written by a newer release of malletrain."""


class Fenced(MalletrainError):
    """Another daemon is, or may be, the active one: this one neither writes its journal nor orders anything.

    Not a `StoreError`: what must not be written is not kept in memory for later either.
    """

    exit_status = 1


class OutOfStep(StoreError):
    """Events do not follow the last one of this copy of the journal."""
