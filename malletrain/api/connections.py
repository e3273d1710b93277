"""Which connections a server keeps: those of authenticated callers before those of strangers.

A descriptor is what a flood of connections exhausts first, and the daemon runs Slurm's commands with those that are
left. So connections are bounded in total, those of strangers by address, and those of known callers by caller. Where
there are too many, the stranger that has waited longest goes, but none in its first second: an honest one is answered
by then."""

import resource
import time
from collections import OrderedDict
from collections.abc import Callable

from malletrain.api.rate_limits import ApiLimits

#: Seconds that a stranger keeps its connection, however many its address has.
GRACE_S = 1.0

#: Host and port of a peer.
Peer = tuple[str, int]


def within_descriptors(wanted: int) -> int:
    """So many connections, as far as this process may open descriptors; its soft limit becomes the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # 512 are kept for Slurm's commands, the journal and the log.
    return wanted if hard == resource.RLIM_INFINITY else max(16, min(wanted, hard - 512))


class ConnectionTable:
    """The open connections of one server, `total` at most. Used on its event loop only."""

    def __init__(self, limits: ApiLimits, total: int, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._total, self._elapsed = limits, total, elapsed
        self._close: dict[Peer, Callable[[], None]] = {}
        self._strangers: dict[str, OrderedDict[Peer, float]] = {}  # by address, since when; the oldest first
        self._caller: dict[Peer, str] = {}
        self._of_caller: dict[str, int] = {}
        self._on_end: dict[Peer, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._close)

    def opened(self, peer: Peer, close: Callable[[], None]) -> None:
        """Records a new connection, and closes others, or it, where there are too many. `close` closes it, and has
        `closed` called."""
        now = self._elapsed()
        self._close[peer] = close
        mine = self._strangers.setdefault(peer[0], OrderedDict())
        mine[peer] = now
        while len(mine) > self._limits.connections_of_address:
            oldest, since = next(iter(mine.items()))
            if now - since < GRACE_S:
                break
            self.drop(oldest)
        if len(self._close) > self._total:
            most = max(self._strangers.values(), key=len)
            self.drop(next(iter(most)))

    def vouch(self, peer: Peer, caller: str) -> bool:
        """Records that a request on this connection has shown the token of `caller`; False where the caller has too
        many connections: refuse the request, and close this one."""
        if peer not in self._close or self._caller.get(peer) == caller:
            return True
        if self._of_caller.get(caller, 0) >= self._limits.connections_of_caller:
            return False
        self._forget(peer)
        self._caller[peer] = caller
        self._of_caller[caller] = self._of_caller.get(caller, 0) + 1
        return True

    def watch(self, peer: Peer, ended: Callable[[], None]) -> None:
        """Have `ended` called once when this connection ends; a later call replaces an earlier one."""
        if peer in self._close:
            self._on_end[peer] = ended

    def is_known(self, peer: Peer) -> bool:
        """Whether a request on this connection has shown a token."""
        return peer in self._caller

    def closed(self, peer: Peer) -> None:
        """Records that a connection is closed. Idempotent."""
        self._forget(peer)
        self._close.pop(peer, None)
        ended = self._on_end.pop(peer, None)
        if ended is not None:
            ended()

    def drop(self, peer: Peer) -> None:
        """Closes a connection at once. Idempotent."""
        close = self._close.get(peer)
        self.closed(peer)
        if close is not None:
            close()

    def _forget(self, peer: Peer) -> None:
        """Whose connection it was."""
        caller = self._caller.pop(peer, None)
        if caller is not None:
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]
        mine = self._strangers.get(peer[0])
        if mine is not None:
            mine.pop(peer, None)
            if not mine:
                del self._strangers[peer[0]]
