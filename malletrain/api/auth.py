"""Who calls: a MUNGE credential, used once, buys a short-lived token.

Tokens are kept in memory alone, and there as digests: no copy of the journal or of the log lets anyone in. A restart
of the daemon ends them all; clients log in again by themselves."""

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from malletrain.api.roles import Identity, Roles, Unavailable
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
        self._audiences, self._roles, self._clock = tuple(audiences), roles, clock
        self._socket, self._decode, self.lifetime_s = munge_socket, decode, lifetime_s
        self._tickets = TicketTable[Identity](clock, lifetime_s, MAX_SESSIONS_PER_USER)
        #: Credentials made before (of Clock.elapsed: the day's may be set) are refused: whoever had the port until
        #: then may have them.
        self.listens_since = float("-inf")

    def log_in(self, credential: str) -> tuple[str, Identity]:
        """A new token, good for `lifetime_s`, for the maker of the credential.
        Raises NotAuthenticated: the credential proves nothing; Refused: this daemon does not serve that user;
        Unavailable: munged does not answer here."""
        identity = self._maker(credential, SESSION_PURPOSE)
        return self._tickets.issue(identity.uid, identity), identity

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
        """The uid of the worker that made the credential for POST /v1/workers/hello. Raises as `log_in`."""
        return self._maker(credential, WORKER_PURPOSE).uid

    def _maker(self, credential: str, purpose: str) -> Identity:
        """Who made the credential. Raises as `log_in`."""
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
        return self._roles.identify(opened.uid, opened.gid)


Bearer = TypeVar("Bearer")


class TicketTable(Generic[Bearer]):
    """Tokens of one kind, all of which live `lifetime_s` seconds. Safe to call from any thread.

    An owner (a user's id, a worker) holds `per_owner` of them at most; beyond, the oldest ends."""

    def __init__(self, clock: Clock, lifetime_s: float, per_owner: int) -> None:
        self.lifetime_s = lifetime_s
        self._clock, self._per_owner = clock, per_owner
        self._lock = threading.Lock()
        self._tickets: dict[bytes, tuple[Hashable, Bearer, float]] = {}  # owner, bearer, end (Clock.elapsed)
        self._of_owner: dict[Hashable, OrderedDict[bytes, None]] = {}

    def issue(self, owner: Hashable, bearer: Bearer) -> str:
        """A new token that stands for `bearer`."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._forget_expired()
            own = self._of_owner.setdefault(owner, OrderedDict())
            while len(own) >= self._per_owner:
                oldest, _ = own.popitem(last=False)
                del self._tickets[oldest]
            self._tickets[_digest(token)] = (owner, bearer, self._clock.elapsed() + self.lifetime_s)
            own[_digest(token)] = None
        return token

    def bearer(self, authorization: str | None) -> Bearer | None:
        """Whom the token in an Authorization header stands for; None for none, or one that is not `good`."""
        scheme, _, token = (authorization or "").partition(" ")
        return self.good(token.strip()) if scheme.lower() == "bearer" else None

    def good(self, token: str) -> Bearer | None:
        """Whom the token stands for; None for one that has run out or was never issued."""
        # Looked up by digest: neither the comparison's time nor a core dump gives a token away.
        with self._lock:
            _, bearer, ends = self._tickets.get(_digest(token), (None, None, 0.0))
        return bearer if self._clock.elapsed() < ends else None

    def take(self, token: str) -> Bearer | None:
        """As `good`, and the token ends: of two callers that show it, one gets the bearer."""
        with self._lock:
            owner, bearer, ends = self._tickets.pop(_digest(token), (None, None, 0.0))
            self._drop(owner, _digest(token))
        return bearer if self._clock.elapsed() < ends else None

    def _forget_expired(self) -> None:
        now = self._clock.elapsed()
        for digest, (owner, _, ends) in list(self._tickets.items()):
            if ends > now:
                break  # all live equally long, so they end in the order of their making
            del self._tickets[digest]
            self._drop(owner, digest)

    def _drop(self, owner: Hashable, digest: bytes) -> None:
        own = self._of_owner.get(owner)
        if own is not None:
            own.pop(digest, None)
            if not own:
                del self._of_owner[owner]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
