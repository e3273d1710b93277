"""The active daemon's half of a pair: it ships its journal, keeps its lease, and stops when either is gone.

Nothing is acknowledged, and no order follows from an event, before the passive daemon has the event on its disk; or
before the register says that the passive daemon may lack something, and must not take over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from malletrain.daemon.failover.failover_metrics import FailoverMetrics
from malletrain.daemon.failover.lease import ALONE_PART, BEAT_PART, Lease
from malletrain.daemon.failover.peer import Peer, PeerAway, PeerBehind
from malletrain.domain.errors import MalletrainError
from malletrain.domain.event import Event
from malletrain.loop.ports import Clock
from malletrain.store.backup import copy
from malletrain.store.encoding import event_row
from malletrain.store.errors import Fenced
from malletrain.store.journal import SqliteJournal
from malletrain.store.pair.register import Register, RegisterUnavailable, Term
from malletrain.store.pair.replica import COLUMNS, ShippingReader

#: Part of a lease that connecting to the passive daemon may take, and its answer as long again.
REQUEST_PART = 0.3

#: Leases that the start of an active daemon waits for its first one.
FIRST_LEASE_PATIENCE = 3.0

#: Seconds between two tries to bring the passive daemon's copy up to date.
SYNC_RETRY_S = 1.0


class CopyState(StrEnum):
    """How far the passive daemon's copy is."""

    UNKNOWN = "unknown"  #: this daemon has just started: the register may still say that the two are paired
    PAIRED = "paired"  #: it has all that is acknowledged
    ALONE = "alone"  #: it may lack something, and the register says so


class ActiveHalf:
    """Begins with the term in which this daemon is the active one.

    Args:
        lost: called once, from any thread, with why this daemon must stop being the active one.
    """

    def __init__(
        self,
        register: Register,
        term: Term,
        peer_url: str,
        lease_s: float,
        clock: Clock,
        elapsed: Callable[[], float],
        lost: Callable[[str], None],
        munge_socket: str | None = None,
    ) -> None:
        self._register = register
        self._term = term
        self._peer_url = peer_url
        self._clock = clock
        self._lost = lost
        self._munge_socket = munge_socket
        self._lease = Lease(lease_s, elapsed)
        self._request_s = REQUEST_PART * lease_s
        #: Held from an event's commit until it is shipped, so that events leave in their order.
        self.turn = threading.RLock()
        self._deciding = threading.RLock()
        self._step = CopyState.UNKNOWN if term.pairing else CopyState.ALONE
        self._over = ""
        self._ended = threading.Event()
        self._journal: SqliteJournal | None = None
        self._metrics: FailoverMetrics | None = None
        self._shipping = self._peer()
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("beat", self._beat_for_ever), ("sync", self._sync_for_ever))
        ]

    @property
    def epoch(self) -> int:
        """The fencing token of this daemon's journal."""
        return self._term.epoch

    @property
    def holds(self) -> bool:
        """Whether this daemon may write and order now."""
        return not self._over and self._lease.holds

    def start(self) -> None:
        """Begin to keep the lease. The claim itself was the last word of the register."""
        if self._step is CopyState.ALONE:
            self._lease.renew(self._lease.now())
        self._threads[0].start()

    def serve(self, journal: SqliteJournal, registry: CollectorRegistry) -> None:
        """Ship this journal from now on. Tries once, at once, to bring the other's copy up to date.

        Raises:
            Fenced: neither the other daemon nor the register answers.
        """
        self._journal = journal
        self._metrics = FailoverMetrics(registry)
        until = self._lease.now() + FIRST_LEASE_PATIENCE * self._lease.seconds
        while not self.holds and not self._over and self._lease.now() < until:
            self._ended.wait(0.02)
        self.check()
        self._try_sync()
        if not self._threads[1].is_alive():  # a reload serves again
            self._threads[1].start()

    def why_not(self) -> str:
        """Why nothing may be ordered now; empty while it may."""
        if self._over:
            return self._over
        if not self._lease.holds:
            return f"the last word of the other daemon or of the register is {self._lease.age_s:.1f} s old"
        return ""

    def check(self) -> None:
        """Make sure that this daemon is the active one.

        Raises:
            Fenced: it may not be.
        """
        if why := self.why_not():
            raise Fenced(f"nothing was done: this daemon may not be the active one any more: {why}")

    def ship(self, events: Sequence[Event]) -> None:
        """Have events that are committed here on the other's disk, or the register say that they are not. Called
        with `turn` held.

        Raises:
            Fenced: neither can be done: nothing may follow from the events.
        """
        why = ""
        if self._step is CopyState.PAIRED:
            asked_at = self._lease.now()
            try:
                self._shipping.append(self.epoch, [_shipped(event) for event in events])
            except Fenced as error:
                self._lose(str(error))
                raise
            except PeerAway as error:
                why = str(error)
            else:
                self._heard(asked_at)
                return
        if self._step is not CopyState.ALONE:
            try:
                self._go_alone(why or "it is not in step yet")
            except RegisterUnavailable as error:
                self._lose(f"neither the other daemon nor the register answers: {error}")
                raise Fenced(self._over) from error

    def release(self) -> None:
        """This daemon ends in order: the other one may take over at once, if it has all."""
        if self._step is CopyState.PAIRED and not self._over:
            try:
                with closing(self._peer()) as peer:
                    peer.release(self.epoch)
            except (PeerAway, Fenced) as error:
                self._log.warning("the other daemon does not take over at once", why=str(error))

    def close(self) -> None:
        """End. What was claimed stays claimed: the register changes hands by a takeover alone."""
        self._over = self._over or "this daemon has ended"
        self._lease.end()
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(self._request_s + 1.0)

    # -- beats ---------------------------------------------------------------------------------------------------

    def _beat_for_ever(self) -> None:
        with closing(self._peer()) as peer:
            while not self._ended.is_set():
                try:
                    self._beat(peer)
                except Fenced as error:
                    self._lose(str(error))
                except MalletrainError as error:
                    self._log.warning("the lease could not be renewed", why=str(error))
                self._ended.wait(self._lease.seconds * BEAT_PART)

    def _beat(self, peer: Peer) -> None:
        asked_at = self._lease.now()
        try:
            peer.beat(self.epoch)
        except PeerAway as error:
            if self._step is CopyState.ALONE:
                self._look_at_register()
            elif self._lease.age_s > ALONE_PART * self._lease.seconds:
                self._go_alone(str(error))
        else:
            self._heard(asked_at)
        if self._metrics is not None:
            self._metrics.show(active=self.holds, paired=self._step is CopyState.PAIRED, epoch=self.epoch)

    def _heard(self, asked_at: float) -> None:
        self._lease.renew(asked_at)
        if self._metrics is not None:
            self._metrics.heard(self._clock.now())

    def _look_at_register(self) -> None:
        """Nobody takes over from a daemon that is alone, unless an operator has it done."""
        asked_at = self._lease.now()
        term = self._register.read()
        if term == self._term:
            self._lease.renew(asked_at)
        else:
            self._lose(f"the register has another term: {term}")

    def _go_alone(self, why: str) -> None:
        """Have the register say that the passive daemon may lack something.

        Raises:
            Fenced: it has taken over before.
            RegisterUnavailable: nothing was decided.
        """
        with self._deciding:
            if self._step is CopyState.ALONE:
                return
            asked_at = self._lease.now()
            if not self._decide(pairing=0):
                self._lose("the other daemon has taken over")
                raise Fenced(self._over)
            self._step = CopyState.ALONE
            self._lease.renew(asked_at)
        self._log.warning("without a passive daemon: it may not take over until it is up to date again", why=why)

    def _decide(self, *, pairing: int) -> bool:
        """Make the next term one of this daemon's; False where another has been decided."""
        last = self._term
        term = Term(last.number + 1, last.epoch, last.holder, pairing, self._clock.now())
        if not self._register.decide(term):
            found = self._register.read()
            # One of this daemon's that was given up for lost: each start has an epoch of its own.
            if found is None or replace(found, at=term.at) != term:
                return False
        self._term = term
        return True

    def _lose(self, why: str) -> None:
        with self._deciding:
            if self._over:
                return
            self._over = why
            self._lease.end()
        self._log.error("this daemon is not the active one any more", why=why)
        self._lost(why)

    # -- bringing the copy up to date ------------------------------------------------------------------------------

    def _sync_for_ever(self) -> None:
        while not self._ended.wait(SYNC_RETRY_S):
            if self._step is not CopyState.PAIRED and not self._over:
                self._try_sync()

    def _try_sync(self) -> None:
        try:
            self._sync()
        except Fenced as error:
            self._lose(str(error))
        except (PeerAway, RegisterUnavailable) as error:
            self._log.debug("the passive daemon is not up to date", why=str(error))
        except MalletrainError as error:
            self._log.warning("the passive daemon cannot be brought up to date", why=str(error))

    def _sync(self) -> None:
        journal = self._journal
        if journal is None:
            return
        with closing(self._peer()) as peer, closing(ShippingReader(journal.path)) as reader:
            there = peer.beat(self.epoch)
            if not reader.is_prefix(int(there["last"]), str(there["digest"])):
                self._log.warning("the passive daemon's journal is replaced by a copy of this one", had=there["last"])
                self._send_base(peer, journal.path)
                there = peer.beat(self.epoch)
                if not reader.is_prefix(int(there["last"]), str(there["digest"])):
                    raise PeerBehind(f"{self._peer_url}: its copy is not the one that was sent")
            last = int(there["last"])
            for rows in reader.after(last):
                peer.append(self.epoch, rows)
                last = rows[-1][0]
            with self.turn, self._deciding:
                for rows in reader.after(last):
                    peer.append(self.epoch, rows)
                pairing = self._term.number + 1
                peer.pair(self.epoch, pairing, journal.last)
                try:
                    decided = self._decide(pairing=pairing)
                except RegisterUnavailable as error:
                    # It may yet say that the two are paired, while this daemon goes on alone.
                    raise Fenced(f"the register gave no answer, and must not be in doubt: {error}") from error
                if not decided:
                    raise Fenced("the other daemon has taken over")
                self._step = CopyState.PAIRED
        self._log.info("the passive daemon has all, and may take over", pairing=pairing, events=journal.last)

    def _send_base(self, peer: Peer, path: Path) -> None:
        draft = path.with_name(f"{path.name}.base")
        try:
            copy(path, draft)
            peer.send_base(self.epoch, draft)
        finally:
            draft.unlink(missing_ok=True)

    def _peer(self) -> Peer:
        return Peer(self._peer_url, self._request_s, self._munge_socket)


class ShippedJournal:
    """The journal of an active daemon: what is appended is on both disks when `append` returns."""

    def __init__(self, journal: SqliteJournal, half: ActiveHalf) -> None:
        self._journal = journal
        self._half = half

    @property
    def path(self) -> Path:
        return self._journal.path

    @property
    def last(self) -> int:
        """The number of the newest event here."""
        return self._journal.last

    def append(self, events: Iterable[Event]) -> Sequence[Event]:
        """As `SqliteJournal.append`, and on the passive daemon's disk too.

        Raises:
            Fenced: this daemon may not be the active one: nothing may follow from the events.
        """
        with self._half.turn:
            self._half.check()
            written = self._journal.append(events)
            if written:
                self._half.ship(written)
        return written

    def probe(self) -> None:
        """As `SqliteJournal.probe`."""
        self._journal.probe()

    def read(self, after: int = 0) -> Iterable[Event]:
        return self._journal.read(after)


def _shipped(event: Event) -> list[object]:
    row = event_row(event)
    return [row[name] for name in COLUMNS]
