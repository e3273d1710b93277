"""The active daemon's calls to the passive one."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from malletrain.domain.errors import MalletrainError
from malletrain.store.errors import Fenced
from malletrain.wire.errors import WireError
from malletrain.wire.failover import FENCED, OUT_OF_STEP, Verb, path_of
from malletrain.wire.http import DaemonRefused, Http

#: Bytes of a journal's copy that are sent in one request.
PIECE_BYTES = 4 * 1024 * 1024


class PeerAway(MalletrainError):
    """The passive daemon does not answer, or not as it should."""

    exit_status = 1


class PeerBehind(PeerAway):
    """The passive daemon's copy does not end where it should."""


class Peer:
    """One connection's worth of calls; not thread-safe: each thread has its own."""

    def __init__(self, url: str, timeout_s: float, munge_socket: str | None = None) -> None:
        self.url = url
        self._http = Http(url, munge_socket=munge_socket, timeout_s=timeout_s)

    def beat(self, epoch: int) -> Mapping[str, Any]:
        """Say that this daemon lives; the copy's `last`, `digest` and `pairing`.

        Raises:
            Fenced: a later epoch has begun there.
            PeerAway: no answer.
        """
        return self._ask(Verb.BEAT, {"epoch": epoch})

    def append(self, epoch: int, rows: Sequence[Sequence[Any]]) -> None:
        """Have events written there; they are on its disk when this returns.

        Raises:
            Fenced, PeerAway: as `beat`.
            PeerBehind: the copy lacks what comes before.
        """
        self._ask(Verb.APPEND, {"epoch": epoch, "rows": rows})

    def send_base(self, epoch: int, path: Path) -> None:
        """Have the copy replaced by the journal at `path`.

        Raises:
            Fenced, PeerAway: as `beat`.
        """
        offset = 0
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                self._ask(Verb.BASE, {"epoch": epoch, "offset": offset, "piece": base64.b64encode(piece).decode()})
                offset += len(piece)
        self._ask(Verb.BASE, {"epoch": epoch, "offset": offset, "piece": "", "size": offset})

    def pair(self, epoch: int, pairing: int, last: int) -> None:
        """Have it note that it has all up to event `last`, and will have all that is acknowledged in `pairing`.

        Raises:
            Fenced, PeerAway, PeerBehind: as `append`.
        """
        self._ask(Verb.PAIR, {"epoch": epoch, "pairing": pairing, "last": last})

    def release(self, epoch: int) -> None:
        """Have it take over at once.

        Raises:
            Fenced, PeerAway: as `beat`.
        """
        self._ask(Verb.RELEASE, {"epoch": epoch})

    def close(self) -> None:
        self._http.close()

    def _ask(self, verb: Verb, body: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._http.post(path_of(verb), body)
        except DaemonRefused as refused:
            if refused.status == FENCED:
                raise Fenced(str(refused)) from refused
            if refused.status == OUT_OF_STEP:
                raise PeerBehind(str(refused)) from refused
            raise PeerAway(f"{self.url}: {refused}") from refused
        except WireError as error:
            raise PeerAway(str(error)) from error
