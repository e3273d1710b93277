"""The base class of errors on the workers' side, which may not import the daemon's domain."""


class WireError(Exception):
    """Base of the errors on the workers' side. The message says what is wrong, where, and what to do.

    Commands print it in one line on stderr and exit with `exit_status`.
    """

    exit_status = 2
