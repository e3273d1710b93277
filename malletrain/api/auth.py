"""Who calls: a MUNGE credential, used once, buys a short-lived token (`malletrain.api.tickets`).

A restart of the daemon ends all tokens; clients log in again by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from malletrain.api.ports import Identity, Unavailable
from malletrain.api.roles import Roles
from malletrain.api.tickets import TicketTable
from malletrain.domain.errors import MalletrainError
from malletrain.loop.ports import Clock
from malletrain.wire import munge
from malletrain.wire.http import SESSION_PURPOSE
from malletrain.wire.messages import WORKER_PURPOSE

#: Seconds that a token lives. A user's rights may change meanwhile no longer than this.
SESSION_LIFETIME_S = 3600.0

#: Tokens that one user may hold; beyond, the oldest ends.
MAX_SESSIONS_PER_USER = 64

#: Seconds that a credential may be on its way, by this machine's clock and its maker's.
MAX_CREDENTIAL_AGE_S = 300.0


class NotAuthenticated(MalletrainError):
    """No valid credential or token proves who the caller is (HTTP 401)."""

    exit_status = 1


@dataclass(frozen=True, slots=True)
class ApiSession:
    """A caller and the token that stands for them; `lifetime_s` counts from now, `expires_at` is Unix seconds."""

    token: str
    identity: Identity
    lifetime_s: float
    expires_at: float


class Auth:
    """Opens credentials and keeps tokens. Safe to call from any thread."""

    def __init__(
        self,
        audiences: Sequence[str],
        roles: Roles,
        clock: Clock,
        *,
        munge_socket: str | None = None,
        lifetime_s: float = SESSION_LIFETIME_S,
        decode: Callable[[str, str | None], munge.Credential] = munge.decode,
    ) -> None:
        """`audiences` are the URLs by which clients know this daemon: a credential made for another one is refused,
        so a daemon that receives one cannot use it at another."""
        self._audiences = tuple(audiences)
        self._roles = roles
        self._clock = clock
        self._socket = munge_socket
        self._tickets = TicketTable[Identity](clock, lifetime_s, MAX_SESSIONS_PER_USER)
        self._decode = decode
        #: Credentials made before (of Clock.elapsed: the day's may be set) are refused: whoever had the port until
        #: then may have them.
        self.listens_since = float("-inf")

    def log_in(self, credential: str) -> ApiSession:
        """A new token for the maker of the credential.
        Raises NotAuthenticated: the credential proves nothing; Refused: this daemon does not serve that user;
        Unavailable: munged does not answer here."""
        opened = self._open(credential, SESSION_PURPOSE)
        identity = self._roles.identify(opened.uid, opened.gid)
        token, lifetime_s = self._tickets.issue(identity.uid, identity), self._tickets.lifetime_s
        return ApiSession(token, identity, lifetime_s, self._clock.now() + lifetime_s)

    def identify(self, authorization: str | None) -> Identity:
        """The caller behind an Authorization header.
        Raises NotAuthenticated: no token, an unknown one, one that has run out, or a banned user's."""
        if not authorization:
            raise NotAuthenticated("no token: POST a MUNGE credential to /v1/session for one")
        identity = self._tickets.bearer(authorization)
        if identity is None or self._roles.is_banned(identity.uid):
            raise NotAuthenticated("the token has run out or was never given: log in again at /v1/session")
        return identity

    def log_out(self, authorization: str | None) -> None:
        """End a token. Idempotent."""
        self._tickets.take((authorization or "").partition(" ")[2].strip())

    def worker_uid(self, credential: str) -> int:
        """The uid of the worker that made the credential for POST /v1/workers/hello.
        Raises NotAuthenticated: the credential proves nothing; Refused: this daemon does not serve that user;
        Unavailable: munged does not answer here."""
        opened = self._open(credential, WORKER_PURPOSE)
        return self._roles.identify(opened.uid, opened.gid).uid

    def _open(self, credential: str, purpose: str) -> munge.Credential:
        try:
            opened = self._decode(credential, self._socket)
            opened.check(purpose, *self._audiences)
        except munge.CredentialRejected as rejected:
            raise NotAuthenticated(str(rejected)) from rejected
        except munge.MungeError as error:
            raise Unavailable(f"the daemon cannot check who you are: {error}") from error
        age_s = self._clock.now() - opened.encoded_at
        if abs(age_s) > MAX_CREDENTIAL_AGE_S:
            raise NotAuthenticated("the MUNGE credential is too old or from the future: make a new one, check NTP")
        if age_s > self._clock.elapsed() - self.listens_since + 1.5:  # MUNGE counts whole seconds, of a coarse clock
            raise Unavailable("the MUNGE credential was made before this daemon listened: make a new one, check NTP")
        return opened
