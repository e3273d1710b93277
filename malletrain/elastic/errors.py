"""Exceptions of the elastic runtime. A script sees `ElasticError` and `Released`; the others stay in this package."""

from __future__ import annotations

from malletrain.wire.errors import WireError


class ElasticError(WireError):
    """The script or its settings cannot be trained this way; the message says what to change."""


class ItemsError(ElasticError):
    """The items, or the folder of their results, are not as the script says; the message says what to change."""


class PeerLost(Exception):
    """A group operation failed because a peer is unreachable. The group cannot be used again."""


class Aborted(Exception):
    """The commit round under way is void and is repeated in another world. Internal."""


class StepRepeated(Exception):
    """Every member repeats the step, without a fault: in the next world, or with other parameters. Internal."""


class LayoutChanged(StepRepeated):
    """Every member has seen that other parameters are trained than before: the step is repeated with them.
    Internal."""


class JobOver(Exception):
    """The main worker finished the job while this worker was in its last commit round. Internal."""


class SessionOver(ElasticError):
    """The others are in a later session of the script, so that this worker passes over its present one. Plans up to
    generation `tried` are not to be entered any more. Internal."""

    def __init__(self, tried: int) -> None:
        super().__init__("the others are in a later session of the script")
        self.tried = tried


class Released(SystemExit):
    """This worker's part is over: it left, was given up, or its job ended. Ends the process in order. `reason`: why,
    for people."""

    STATUS = 143  #: exit status of a script that SIGTERM ended

    def __init__(self, reason: str) -> None:
        super().__init__(self.STATUS)
        self.reason = reason
