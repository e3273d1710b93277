"""Calls to whichever of two daemons is the active one."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from malletrain.wire.failover import ROLE_PATH, urls_in
from malletrain.wire.http import DaemonRefused, DaemonUnavailable, Http, Query

T = TypeVar("T")

#: Seconds that a daemon has to say its role.
ROLE_TIMEOUT_S = 2.0

#: Seconds to go on looking for an active daemon, and between two rounds: a takeover takes up to ten.
SEARCH_S, SEARCH_INTERVAL_S = 20.0, 0.5


class DaemonHttp(Protocol):
    """What `Http` offers, for one daemon or a pair."""

    #: Who the daemon takes the caller for.
    identity: dict[str, Any]

    @property
    def url(self) -> str:
        """The daemon's URL, or those of both with a comma between."""
        ...

    @property
    def active_url(self) -> str:
        """The URL of the one that answers."""
        ...

    def get(self, path: str, query: Query | None = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """GET with a token."""
        ...

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """POST JSON with a token."""
        ...

    def delete(self, path: str) -> None:
        """DELETE with a token."""
        ...

    def text(self, path: str, query: Query | None = None) -> str:
        """GET text without a token."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class PairHttp:
    """As `Http`, for several URLs. Not thread-safe.

    What only reads is asked again of the daemon that has become the active one. What changes something is sent once,
    to one that has just said that it is the active one: whether it was done is not known when no answer comes.

    Args:
        connect: makes the calls to one URL, with the time-out in seconds (None: as usual).
        elapsed, sleep: a clock that never jumps, and a way to wait.
    """

    def __init__(
        self,
        urls: tuple[str, ...],
        connect: Callable[[str, float | None], Http],
        elapsed: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._urls = urls
        self._connect = connect
        self._elapsed = elapsed
        self._sleep = sleep
        self._http: Http | None = None

    @property
    def url(self) -> str:
        return ",".join(self._urls)

    @property
    def active_url(self) -> str:
        return self._active().url

    @property
    def identity(self) -> dict[str, Any]:
        """Who the daemon takes the caller for; empty before the first call."""
        return {} if self._http is None else self._http.identity

    @identity.setter
    def identity(self, value: dict[str, Any]) -> None:
        self._active().identity = value

    def get(self, path: str, query: Query | None = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """As `Http.get`."""
        return self._reading(lambda http: http.get(path, query, wait_s=wait_s))

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """As `Http.post`."""
        return self._checked().post(path, body, wait_s=wait_s)

    def delete(self, path: str) -> None:
        """As `Http.delete`."""
        self._checked().delete(path)

    def text(self, path: str, query: Query | None = None) -> str:
        """As `Http.text`."""
        return self._reading(lambda http: http.text(path, query))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def __enter__(self) -> PairHttp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reading(self, ask: Callable[[Http], T]) -> T:
        try:
            return ask(self._active())
        except DaemonUnavailable:
            pass
        except DaemonRefused as refused:
            if refused.status != http.client.SERVICE_UNAVAILABLE:
                raise
        self.close()
        return ask(self._active())

    def _checked(self) -> Http:
        """The active daemon, which has just said so."""
        if self._http is not None and not self._is_active(self._http.url):
            self.close()
        return self._active()

    def _active(self) -> Http:
        if self._http is None:
            self._http = self._connect(self._search(), None)
        return self._http

    def _search(self) -> str:
        end = self._elapsed() + SEARCH_S
        while True:
            for url in self._urls:
                if self._is_active(url):
                    return url
            if self._elapsed() > end:
                raise DaemonUnavailable(
                    f"none of {', '.join(self._urls)} is the active daemon: is malletraind running on either?"
                )
            self._sleep(SEARCH_INTERVAL_S)

    def _is_active(self, url: str) -> bool:
        asking = self._connect(url, ROLE_TIMEOUT_S)
        try:
            asking.text(ROLE_PATH)
        except DaemonRefused as refused:
            return refused.status == http.client.NOT_FOUND  # a daemon without a peer
        except DaemonUnavailable:
            return False
        finally:
            asking.close()
        return True


def open_http(text: str, connect: Callable[[str, float | None], Http] | None = None) -> DaemonHttp:
    """Calls to the daemon at the one URL, or the active one of several, that `text` lists. Nothing is sent yet.

    Raises:
        WireError: one is no URL.
    """

    def plain(url: str, timeout_s: float | None) -> Http:
        return Http(url) if timeout_s is None else Http(url, timeout_s=timeout_s)

    make, urls = connect or plain, urls_in(text)
    return make(text, None) if len(urls) < 2 else PairHttp(urls, make)
