"""What can go wrong with the journal's file."""

from malletrain.domain.errors import JournalUnavailable


class StoreError(JournalUnavailable):
    """The journal's file or disk refuses."""


class DiskFull(StoreError):
    """There is no room for the journal; once there is, trying again helps."""


class JournalInUse(StoreError):
    """Another daemon writes this journal."""
