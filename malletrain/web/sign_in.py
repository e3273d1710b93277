"""Who looks at the page: a link that serves once, then a session of two halves.

One half of a session is a cookie, which scripts cannot read; the other lies in the browser's storage of this host
and port alone, and travels in a header. Cookies go to every port of a host: another user's program may listen
on one, and gets a half that is worth nothing."""

import hashlib

from starlette.requests import HTTPConnection
from starlette.types import Scope

from malletrain.api.auth import TicketTable
from malletrain.api.roles import Identity, Roles
from malletrain.loop.ports import Clock

#: Seconds within which a link must be opened, and that a browser stays signed in.
LINK_LIFETIME_S, SESSION_S = 60.0, 8 * 3600.0

#: Of one user; beyond, the oldest ends.
MAX_LINKS_PER_USER, MAX_SESSIONS_PER_USER = 8, 16

KEY_HEADER = "x-malletrain-key"


class SignIn:
    """Links and sessions, in memory alone. Safe to call from any thread.

    `url` is the daemon's for callers. By https the cookie goes by TLS alone; and a browser that reaches several
    daemons through tunnels to one localhost keeps a cookie for each."""

    def __init__(self, roles: Roles, clock: Clock, url: str) -> None:
        self.is_https = url.startswith("https:")
        self.cookie = f"malletrain_page_{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        self._roles = roles
        self._links = TicketTable[Identity](clock, LINK_LIFETIME_S, MAX_LINKS_PER_USER)
        self._sessions = TicketTable[Identity](clock, SESSION_S, MAX_SESSIONS_PER_USER)

    def issue_link(self, identity: Identity) -> str:
        """A token that opens one session of the caller's."""
        return self._links.issue(identity.uid, identity)

    def open_session(self, link: str) -> tuple[str, str] | None:
        """Cookie and key of the session that a link is good for; None where it was used, or has run out."""
        identity = self._links.take(link)
        if identity is None or self._roles.is_banned(identity.uid):
            return None
        token = self._sessions.issue(identity.uid, identity)
        half = len(token) // 2
        return token[:half], token[half:]

    def close_session(self, scope: Scope) -> None:
        """End the request's session. Idempotent."""
        self._sessions.take(_session_token(scope, self.cookie))

    def identify(self, scope: Scope) -> Identity | None:
        """Who sends the request; None for anybody without a session."""
        identity = self._sessions.good(_session_token(scope, self.cookie))
        return None if identity is None or self._roles.is_banned(identity.uid) else identity


def _session_token(scope: Scope, name: str) -> str:
    """Both halves of the request's session, joined."""
    request = HTTPConnection(scope)
    cookie, keys = request.cookies.get(name), request.headers.getlist(KEY_HEADER)
    return cookie + keys[0] if cookie is not None and len(keys) == 1 else ""
