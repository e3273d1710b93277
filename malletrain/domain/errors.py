"""The one base class of this package's errors, and the errors that several rooms raise."""

from __future__ import annotations


class MalletrainError(Exception):
    """Base of all errors of this package. The message says what is wrong, where, and what to do.

    Commands print it in one line on stderr and exit with `exit_status`.
    """

    exit_status = 2


class InvalidInput(MalletrainError):
    """A file, request or option is wrong. `where` names the place: `file:line`, a field or an option."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)  # as it is made anew from in another process
        self.where = where
        self.what = what

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class ClusterUnavailable(MalletrainError):
    """Slurm did not answer, answered with an error, or answered nonsense: no action may follow from it."""


class JournalUnavailable(MalletrainError):
    """The journal cannot be read or written: nothing may follow that a crash would leave unrecorded."""


class Refused(MalletrainError):
    """The caller is known but may not do this."""

    exit_status = 1


class ContradictsRecord(Refused):
    """The caller might do this, but what it says does not agree with what is on record."""
