"""What travels between an active and a passive daemon, and how a client finds the active one of several."""

from __future__ import annotations

from enum import StrEnum

#: Where any daemon of a pair says its role, to anybody: 200 by the active one, 503 by the other. A daemon that has no
#: peer answers 404.
ROLE_PATH = "/v1/failover"

#: HTTP statuses of the passive daemon's refusals: the caller's epoch is over; its events do not follow the last one.
FENCED, OUT_OF_STEP = 409, 412


class Verb(StrEnum):
    """What the active daemon asks of the passive one. Each request brings its `epoch`."""

    BEAT = "beat"  #: do not take over: I am alive; the answer has the copy's `last` event and its `digest`
    APPEND = "append"  #: write `rows`
    BASE = "base"  #: write `piece` (base64) at `offset` of a whole copy of the journal; with `size`, put it in place
    PAIR = "pair"  #: you have all up to `last`, and will in `pairing`
    RELEASE = "release"  #: take over at once: I end in order


def path_of(verb: Verb) -> str:
    """The route of a verb (POST, by the daemons' own user)."""
    return f"{ROLE_PATH}/{verb.value}"


def urls_in(text: str) -> tuple[str, ...]:
    """The URLs of a list such as `http://head1:8470, http://head2:8470`, without trailing slashes."""
    return tuple(url.rstrip("/") for url in text.replace(",", " ").split())
