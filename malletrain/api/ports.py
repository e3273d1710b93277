"""What the routes of people need of the daemon; what only shows, `malletrain.store.views` has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from malletrain.api.schemas import JobBody
from malletrain.api.visibility import Visibility
from malletrain.domain.errors import MalletrainError
from malletrain.wire.rows import ProfileRow, PromiseRow


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


class Requests(Protocol):
    """What people ask for. The routes have checked form and rights; each call is durable when it returns.

    Any may raise `Refused`, `InvalidInput`, `NotFound`, `Conflict`, `Unavailable`; each may be called by any thread.
    """

    def announce(self, job: JobBody, identity: Identity) -> int:
        """Take a new job; returns its number."""

    def attach_array(self, job: int, array_id: int, tasks: int, identity: Identity) -> None:
        """The owner has submitted a held array of `tasks` tasks for the job. Idempotent."""

    def cancel(self, job: int, identity: Identity) -> None:
        """End the job. Idempotent."""

    def hold(self, job: int, identity: Identity) -> None:
        """Take the job's nodes until it is released. Idempotent."""

    def release(self, job: int, identity: Identity) -> None:
        """Let a held job run again. Idempotent."""

    def explain(self, subject: str, sight: Visibility) -> Sequence[str]:
        """Why a job (`job 3`, `3`), node, pilot (`123_4`) or main job (`main-job 99`) has what it has, in lines.
        Raises NotFound: there is none, or none that `sight` shows: the two are not told apart."""

    def profile(self, job: int) -> ProfileRow:
        """What is known of how the job scales."""

    def promise(self, days: int, sight: Visibility) -> PromiseRow:
        """What the main queue is promised, what that costs, and how it was kept in the last `days`.

        `sight` says which main jobs are listed.
        """

    def ban(self, user: str, uid: int, reason: str, identity: Identity) -> None:
        """Refuse the user from now on, and end the user's jobs. Idempotent."""

    def unban(self, user: str, uid: int, identity: Identity) -> None:
        """Admit the user again. Idempotent."""

    def bans(self) -> Mapping[int, str]:
        """Why each banned user id is."""

    def drain(self, nodes: str, until: float, identity: Identity) -> Sequence[str]:
        """Keep pilots off `nodes` (Slurm's host list; empty: all) until then; returns the nodes' names.

        A time in the past ends it.
        """

    def drains(self) -> Mapping[str, float]:
        """Until when (Unix seconds) operators keep pilots off each node."""
