"""Errors of the elastic runtime, and the two signals that unwind a step."""

from __future__ import annotations

from malletrain.wire.errors import WireError


class ElasticError(WireError):
    """The script or its setting cannot be trained this way; the message says what to change."""


class PeerLost(Exception):
    """A group operation failed: the connection to a peer is gone. The group is of no more use."""


class Aborted(Exception):
    """The round under way is void; it is done again in another world. Never seen outside this package."""


class JobOver(Exception):
    """The main worker has finished while this one was about to. Never seen outside this package."""


class Released(SystemExit):
    """This worker's part is over: it left, was given up, or its job ended. Ends the process in order."""

    STATUS = 143  #: as of a script that SIGTERM ended

    def __init__(self, reason: str) -> None:
        super().__init__(self.STATUS)
        self.reason = reason
