"""What can go wrong in the lab, said in one line that tells what to do."""


class LabError(Exception):
    """The lab could not do what was asked; the message says why and what to do."""


class UsageError(LabError):
    """The request itself cannot be met here (bad option, no rights, no packages): exit status 2, nothing started."""


class DeadlineError(LabError):
    """A condition was not met within its deadline."""
