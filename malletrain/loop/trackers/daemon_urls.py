"""The URLs that callers have known the daemon by: scripts of jobs hold the one that they were submitted with."""

from __future__ import annotations

from malletrain.domain.event import DaemonStarted, Event

#: Former URLs that are remembered.
MAX_URLS = 8


class DaemonUrls:
    """Folds the starts of daemons."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # when a daemon with another URL began (Unix seconds)
        self._now = ""

    def apply(self, event: Event) -> None:
        """Fold one event of the journal."""
        payload = event.payload
        if not isinstance(payload, DaemonStarted) or not payload.url or payload.url == self._now:
            return
        if self._now:
            self._until[self._now] = event.at
        self._until.pop(payload.url, None)
        self._now = payload.url
        while len(self._until) > MAX_URLS:
            del self._until[min(self._until, key=self._until.__getitem__)]

    def former(self, url: str, since: float) -> tuple[str, ...]:
        """The URLs but `url` that were in use at `since` (Unix seconds) or later."""
        known = {**self._until, self._now: float("inf")}
        return tuple(sorted(each for each, until in known.items() if each not in ("", url) and until >= since))
