"""JSON over HTTP to the daemon, as people's commands speak it: standard library only.

The token comes from a MUNGE credential, is kept in memory alone, and is renewed when it runs out. Proxies of the
environment are not used and redirects not followed: a token goes to the daemon it was made for, and nowhere else.
"""

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from malletrain.wire import munge
from malletrain.wire.codec import one_line
from malletrain.wire.daemon_url import KeptConnection
from malletrain.wire.errors import WireError

#: What a person's MUNGE credential is made for (`malletrain.wire.munge.statement`).
SESSION_PURPOSE = "malletrain-session-v1"

#: Seconds for an answer to begin, and for all of it.
TIMEOUT_S = 10.0

#: The status of 10,000 nodes is about 2 MB.
MAX_ANSWER_BYTES = 64 * 1024 * 1024

#: How often a login is tried that is refused for the rate of its address, and seconds between two tries.
LOGIN_TRIES, LOGIN_RETRY_S = 5, 1.0

#: What is asked for: of several values each is named, of none nothing.
Query = Mapping[str, str | int | float | bool | Sequence[str] | None]


class DaemonUnavailable(WireError):
    """Nothing answers at the daemon's address, or not in time: nothing is known of what became of the request."""


class DaemonRefused(WireError):
    """The daemon said no; `status` is the HTTP status, the message its own words."""

    exit_status = 1

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Http:
    """Calls of one daemon. Not thread-safe: each thread has its own.

    Raises, each call: DaemonUnavailable, DaemonRefused, MungeError, as their names say.
    """

    def __init__(
        self,
        url: str,
        *,
        munge_socket: str | None = None,
        timeout_s: float = TIMEOUT_S,
        ca: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        """`url` as the daemon itself is configured with: the credential is made for it.
        Raises WireError: `url` is no http or https URL, or the file of certificates `ca` cannot be used."""
        self.url = url.rstrip("/")
        self._munge_socket, self._timeout_s, self._now = munge_socket, timeout_s, now
        self._connection = KeptConnection(self.url, ca)
        self._token, self._token_until = "", 0.0
        #: Who the daemon takes the caller for: the answer of POST /v1/session without its token.
        self.identity: dict[str, Any] = {}

    def get(self, path: str, query: Query | None = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """GET `path` (`/v1/jobs`) with a token; `wait_s` is how long a long poll may take, beyond the time-out."""
        return self._with_token("GET", _with_query(path, query), None, wait_s)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """POST JSON with a token."""
        return self._with_token("POST", path, dict(body or {}), 0.0)

    def delete(self, path: str) -> None:
        """DELETE `path` with a token."""
        self._with_token("DELETE", path, None, 0.0)

    def close(self) -> None:
        """Close the connection and forget the token. Idempotent."""
        self._connection.close()
        self._token = ""

    def _with_token(self, method: str, path: str, body: dict[str, Any] | None, wait_s: float) -> dict[str, Any]:
        if not self._token or self._now() > self._token_until - 30.0:  # renewed before it runs out
            self._log_in()
        try:
            return self._exchange(method, path, body, self._token, wait_s)
        except DaemonRefused as refused:
            if refused.status != http.client.UNAUTHORIZED:
                raise
        # The daemon was started anew, and remembers no tokens; a 401 was not acted on, so asking again is safe.
        self._log_in()
        return self._exchange(method, path, body, self._token, wait_s)

    def _log_in(self) -> None:
        for tries_left in reversed(range(LOGIN_TRIES)):
            credential = munge.encode(munge.statement(SESSION_PURPOSE, self.url), self._munge_socket)
            try:
                answer = self._exchange("POST", "/v1/session", {"credential": credential}, "", 0.0)
                break
            except DaemonRefused as refused:
                if refused.status != http.client.TOO_MANY_REQUESTS or not tries_left:
                    raise
            time.sleep(LOGIN_RETRY_S)  # somebody at this address logs in too often: its rate is by the second
        token, lifetime = answer.get("token"), answer.get("lifetime_s")
        if not isinstance(token, str) or not token or not isinstance(lifetime, (int, float)):
            raise DaemonUnavailable(f"{self.url} does not answer as malletraind does: check the URL")
        # By its lifetime, not by its end: the two machines' clocks may differ.
        self._token, self._token_until = token, self._now() + lifetime
        self.identity = {key: value for key, value in answer.items() if key != "token"}

    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None, token: str, wait_s: float
    ) -> dict[str, Any]:
        """One request and its answer; an empty one is an empty object."""
        if method != "GET":
            self._connection.close()  # a POST cannot be sent twice, so it always takes a new connection
        try:
            status, data = self._connection.ask(method, path, body, token, self._timeout_s, wait_s, MAX_ANSWER_BYTES)
        except (http.client.HTTPException, OSError) as error:
            raise self._unavailable(error) from error
        if status >= 300:
            raise DaemonRefused(status, self._words(status, data))
        try:
            value = json.loads(data or b"{}")
        except (ValueError, RecursionError) as error:
            raise DaemonUnavailable(f"{self.url} answers something else than JSON: is that malletraind?") from error
        if not isinstance(value, dict):
            raise DaemonUnavailable(f"{self.url} answers something else than a JSON object: is that malletraind?")
        return value

    def _words(self, status: int, data: bytes) -> str:
        """The daemon's own line, made fit for a terminal."""
        try:
            said = json.loads(data)["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            said = f"{self.url} answers with status {status}: is that malletraind?"
        return one_line(str(said), 1000)

    def _unavailable(self, error: Exception) -> DaemonUnavailable:
        if isinstance(error, TimeoutError):
            why = "no answer in time: look at `systemctl status malletraind` there"
        elif isinstance(error, ssl.SSLError):
            why = f"the TLS connection fails ({error.reason}): check its certificate"
        elif isinstance(error, socket.gaierror):
            why = "the host's name is not known: check the URL"
        elif isinstance(error, ConnectionRefusedError):
            why = "nothing listens there: is malletraind running?"
        else:
            why = f"cannot be reached ({error or type(error).__name__}): try again"
        return DaemonUnavailable(f"{self.url}: {why}")


def _with_query(path: str, query: Query | None) -> str:
    wanted = {k: str(v).lower() if isinstance(v, bool) else v for k, v in (query or {}).items() if v is not None}
    text = urlencode(wanted, doseq=True)
    return f"{path}?{text}" if text else path
