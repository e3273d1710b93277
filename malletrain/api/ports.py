"""Who calls, and the errors of requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from malletrain.domain.errors import MalletrainError


class NotFound(MalletrainError):
    """There is no job, node or pilot of that name (HTTP 404)."""

    exit_status = 1


class Conflict(MalletrainError):
    """It cannot be done as things are: the job is over, the array belongs to another job (HTTP 409)."""

    exit_status = 1


class Unavailable(MalletrainError):
    """The daemon cannot answer now; asking again later may help (HTTP 503)."""


class Role(StrEnum):
    """What a caller may do. Owning a job is not a role: it is looked up for each job."""

    USER = "user"  #: own jobs
    OPERATOR = "operator"  #: everybody's jobs, and nodes


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls, as MUNGE says."""

    uid: int
    gid: int
    user: str
    role: Role = Role.USER
