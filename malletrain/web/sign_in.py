"""Who looks at the page: a link that serves once, then a session of two halves; or the site's proxy says so.

One half of a session is a cookie, which scripts cannot read; the other lies in the browser's storage of this host
and port alone, and travels in a header. Cookies go to every port of a host: another user's program may listen
on one, and gets a half that is worth nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import pwd
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from starlette.types import Scope

from malletrain.api.ports import Identity
from malletrain.api.roles import Roles
from malletrain.api.tickets import TicketTable
from malletrain.domain.errors import Refused
from malletrain.loop.ports import Clock

#: Seconds within which a link must be opened.
LINK_LIFETIME_S = 60.0

#: Of one user; beyond, the oldest ends.
MAX_LINKS_PER_USER, MAX_SESSIONS_PER_USER = 8, 16

COOKIE = "malletrain_page"
KEY_HEADER = "x-malletrain-key"

#: The header in which the proxy sends the secret of `PageSettings`.
PROXY_SECRET_HEADER = "x-malletrain-proxy-secret"  # noqa: S105


@dataclass(frozen=True, slots=True)
class PageSettings:
    """`session_s`: seconds that a browser stays signed in. `is_https`: callers reach the page by TLS alone.
    `daemon`: what tells this daemon from others (its address for callers): a browser that reaches several through
    tunnels to one localhost keeps a cookie for each.

    Behind a proxy: the lower-case name of the header in which it names the user, its address, and a secret that it
    sends as `PROXY_SECRET_HEADER`; without all three no header is believed.
    """

    session_s: float = 8 * 3600.0
    is_https: bool = False
    daemon: str = ""
    proxy_header: str = ""
    proxy_address: str = ""
    proxy_secret: str = ""

    @property
    def cookie(self) -> str:
        """The name of the cookie."""
        return f"{COOKIE}_{hashlib.sha256(self.daemon.encode()).hexdigest()[:8]}" if self.daemon else COOKIE


@dataclass(frozen=True, slots=True)
class PageSession:
    """The two halves of a new session."""

    cookie: str
    key: str
    identity: Identity


class SignIn:
    """Links and sessions, in memory alone. Safe to call from any thread."""

    def __init__(self, roles: Roles, clock: Clock, settings: PageSettings) -> None:
        self.settings = settings
        self._roles = roles
        self._links = TicketTable[Identity](clock, LINK_LIFETIME_S, MAX_LINKS_PER_USER)
        self._sessions = TicketTable[Identity](clock, settings.session_s, MAX_SESSIONS_PER_USER)

    def issue_link(self, identity: Identity) -> str:
        """A token that opens one session of the caller's."""
        return self._links.issue(identity.uid, identity)

    def open_session(self, link: str) -> PageSession | None:
        """The session that a link is good for; None where it has been used, has run out, or never was."""
        identity = self._links.take(link)
        if identity is None or self._roles.is_banned(identity.uid):
            return None
        token = self._sessions.issue(identity.uid, identity)
        half = len(token) // 2
        return PageSession(token[:half], token[half:], identity)

    def close_session(self, scope: Scope) -> None:
        """End the request's session. Idempotent."""
        self._sessions.take(_session_token(scope, self.settings.cookie))

    def identify(self, scope: Scope) -> Identity | None:
        """Who sends the request; None for anybody without a session whom no proxy vouches for."""
        if (user := self._proxied_user(scope)) is not None:
            return self._identity_of(user)
        identity = self._sessions.good(_session_token(scope, self.settings.cookie))
        return None if identity is None or self._roles.is_banned(identity.uid) else identity

    def _proxied_user(self, scope: Scope) -> str | None:
        """The user whom the site's proxy names, '' where it names none; None for requests of anybody else."""
        settings, peer = self.settings, str((scope.get("client") or ("",))[0])
        if not (settings.proxy_header and settings.proxy_secret) or peer != settings.proxy_address:
            return None
        secrets = _values(scope, PROXY_SECRET_HEADER)
        if len(secrets) != 1 or not hmac.compare_digest(secrets[0].encode(), settings.proxy_secret.encode()):
            return None
        users = _values(scope, settings.proxy_header)
        return users[0] if len(users) == 1 else ""

    def _identity_of(self, user: str) -> Identity | None:
        try:
            entry = pwd.getpwnam(user)
            # A portal has no business with root.
            return self._roles.identify(entry.pw_uid, entry.pw_gid) if entry.pw_uid else None
        except (KeyError, ValueError, Refused):
            return None


def _session_token(scope: Scope, name: str) -> str:
    """Both halves of the request's session, joined."""
    cookies: SimpleCookie = SimpleCookie()
    for value in _values(scope, "cookie"):
        try:
            cookies.load(value)
        except CookieError:
            continue
    cookie, keys = cookies.get(name), _values(scope, KEY_HEADER)
    return cookie.value + keys[0] if cookie is not None and len(keys) == 1 else ""


def _values(scope: Scope, name: str) -> list[str]:
    wanted = name.encode()
    return [value.decode("latin-1") for key, value in scope["headers"] if key == wanted]
