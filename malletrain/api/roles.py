"""Who calls, and what a caller may do: all see the queue, owners steer their jobs, operators steer all."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from malletrain.api.visibility import Visibility
from malletrain.domain.errors import InvalidInput, MalletrainError, Refused
from malletrain.wire.munge import user_id, user_name


class NotFound(MalletrainError):
    """There is no job, node or pilot of that name (HTTP 404)."""

    exit_status = 1


class Conflict(MalletrainError):
    """It cannot be done as things are: the job is over, the array belongs to another job (HTTP 409)."""

    exit_status = 1


class Unavailable(MalletrainError):
    """The daemon cannot answer now; asking again later may help (HTTP 503)."""


#: What a caller may do: steer own jobs, or everybody's jobs, and nodes. Owning a job is looked up for each job.
Role = Literal["user", "operator"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls, as MUNGE says."""

    uid: int
    gid: int
    user: str
    role: Role = "user"


class Roles:
    """The site's rules."""

    def __init__(
        self,
        operators: Iterable[int] = (),
        *,
        serves: Iterable[int] | None = None,
        private_data: Callable[[], Collection[str]] = tuple,
        bans: Callable[[], Mapping[int, str]] = dict,
    ) -> None:
        """`operators` are uids, root among them always; `serves` the only uids that are served (None: all);
        `private_data` gives the words of Slurm's PrivateData as they are now, `bans` why each banned uid is."""
        self._operators = frozenset(operators) | {0}
        self._serves = None if serves is None else frozenset(serves)
        self._private_data = private_data
        self._bans = bans

    def identify(self, uid: int, gid: int) -> Identity:
        """The caller behind a uid that MUNGE has proven.
        Raises Refused: this daemon does not serve that user, or an operator has banned the user."""
        user = user_name(uid)
        if self._serves is not None and uid not in self._serves and uid != 0:
            raise Refused(f"this daemon serves {', '.join(map(user_name, sorted(self._serves)))} alone, not {user}")
        if self.is_banned(uid):
            raise Refused(f"{user} is {self._bans()[uid]}; the operators of this daemon can end the ban")
        return Identity(uid, gid, user, "operator" if uid in self._operators else "user")

    def is_banned(self, uid: int) -> bool:
        """Whether this user is refused; an operator never is."""
        return uid in self._bans() and uid not in self._operators

    def check_bannable(self, uid: int, user: str) -> None:
        """Make sure that the user is no operator. Raises Refused: otherwise."""
        if uid in self._operators:
            raise Refused(f"{user} is an operator: take the name out of `operators` in the configuration first")

    def sight_of(self, uid: int) -> Visibility:
        """What the user with this uid may see."""
        if uid in self._operators:
            return Visibility()
        return Visibility.under(self._private_data(), uid, user_name(uid))


def uids_of(users: Iterable[str], where: str) -> frozenset[int]:
    """The uids of user names; `where` names the setting that holds them.
    Raises InvalidInput: this machine does not know one."""
    found = {user: user_id(user) for user in users}
    if unknown := [user for user, uid in found.items() if uid is None]:
        raise InvalidInput(where, f"this machine has no user {unknown[0]!r}")
    return frozenset(uid for uid in found.values() if uid is not None)
