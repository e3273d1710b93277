"""The passive daemon's half of a pair: a copy of the journal, and the takeover when the active one is silent."""

from __future__ import annotations

import base64
import binascii
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from malletrain.api.ports import Unavailable
from malletrain.daemon.failover.failover_metrics import FailoverMetrics
from malletrain.daemon.failover.lease import Promise
from malletrain.domain.errors import InvalidInput
from malletrain.loop.ports import Clock
from malletrain.store.errors import Fenced, OutOfStep, StoreError
from malletrain.store.pair.register import Register, RegisterUnavailable, Term
from malletrain.store.pair.replica import Replica
from malletrain.store.upkeep import Upkeep
from malletrain.wire.failover import Verb

#: Seconds between two looks at the register while the active daemon is heard.
REGISTER_INTERVAL_S = 1.0


class StandbyHalf:
    """Holds the journal at `path` until `close`. `take` is called by the server, `claim` by one other thread.

    Args:
        path: this machine's copy of the journal.
        urls: of both daemons, the same list on both; the first begins where the register is empty.
        own: this daemon's, one of them.
    """

    def __init__(
        self,
        path: Path,
        register: Register,
        urls: tuple[str, str],
        own: str,
        lease_s: float,
        clock: Clock,
        elapsed: Callable[[], float],
        registry: CollectorRegistry,
    ) -> None:
        self._path = path
        self._register = register
        self._urls = urls
        self._own = own
        self._clock = clock
        self._elapsed = elapsed
        self._lock = threading.RLock()
        self._closed = False
        self._promise = Promise(lease_s, elapsed)
        self._replica = Replica(path)
        self._epoch, self._pairing = self._replica.fence()
        self._fenced_below = 0
        self._metrics = FailoverMetrics(registry)
        #: How often the file was replaced by a copy.
        self.replaced = 0
        self._base = path.with_name(f"{path.name}.incoming")
        self._active_url = next(url for url in urls if url != own)
        self._looked_at = float("-inf")
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")

    # -- what the active daemon asks -----------------------------------------------------------------------------

    def take(self, verb: Verb, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out a request of the active daemon.

        Raises:
            Fenced: its epoch is over.
            OutOfStep: its events do not follow the last one here.
            StoreError, InvalidInput, Unavailable: as their names say.
        """
        epoch = _whole(body, "epoch")
        with self._lock:
            if self._closed:
                raise Unavailable("this daemon is taking over, or ending")
            least = max(self._epoch, self._fenced_below)
            if epoch < least:
                raise Fenced(f"epoch {epoch} is over: the pair is in epoch {least}")
            self._promise.heard()
            self._metrics.heard(self._clock.now())
            answer = self._carry_out(verb, body, epoch)
            self._epoch = epoch
            self._promise.heard()  # again: writing may have taken long
            if verb is Verb.RELEASE:
                self._promise.release()
            return answer

    def _carry_out(self, verb: Verb, body: Mapping[str, Any], epoch: int) -> Mapping[str, Any]:
        match verb:
            case Verb.BEAT:
                last, digest = self._replica.tip()
                return {"last": last, "digest": digest, "pairing": self._pairing}
            case Verb.APPEND:
                return {"last": self._replica.receive(_rows(body), epoch)}
            case Verb.BASE:
                self._take_base(body)
            case Verb.PAIR:
                last, pairing = _whole(body, "last"), _whole(body, "pairing")
                if self._replica.last != last:
                    raise OutOfStep(f"the last event here is {self._replica.last}, not {last}")
                self._replica.pair(epoch, pairing)
                self._pairing = pairing
            case Verb.RELEASE:
                pass
        return {}

    def active_url(self) -> str:
        """Where the active daemon is, by the last look at the register."""
        return self._active_url

    def _take_base(self, body: Mapping[str, Any]) -> None:
        """A piece of a whole copy; with the last one, this copy is replaced by it. The old file is kept beside it."""
        offset, text = _whole(body, "offset"), body.get("piece")
        if not isinstance(text, str):
            raise InvalidInput("piece", "base64 text is missing")
        try:
            piece = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise InvalidInput("piece", "not base64") from error
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if offset else os.O_TRUNC)
        try:
            descriptor = os.open(self._base, flags, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                if os.fstat(file.fileno()).st_size != offset:
                    raise OutOfStep(f"the copy has {os.fstat(file.fileno()).st_size} bytes, not {offset}")
                file.seek(offset)
                file.write(piece)
                if "size" in body:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"{self._base}: {error.strerror}: make room") from error
        if "size" in body:
            self._replace(_whole(body, "size"))

    def _replace(self, size: int) -> None:
        if self._base.stat().st_size != size:
            raise OutOfStep(f"the copy has {self._base.stat().st_size} bytes, not {size}")
        Replica(self._base).close()  # it can be opened by this release, and is brought to its schema
        self._replica.close()
        if self._path.stat().st_size:
            self._path.replace(self._path.with_name(f"{self._path.name}.replaced"))
        self._base.replace(self._path)
        for left in ("-wal", "-shm"):
            Path(f"{self._path}{left}").unlink(missing_ok=True)
        self._replica = Replica(self._path)
        self.replaced += 1
        self._epoch, self._pairing = self._replica.fence()
        self._log.info("the journal was replaced by a copy of the active daemon's", events=self._replica.last)

    # -- taking over ---------------------------------------------------------------------------------------------

    def claim(self) -> Term | None:
        """The term in which this daemon is the active one, once it is: the journal is closed then. To be called a few
        times a second. None while the other is, or may be.
        """
        over = self._promise.is_over
        if not over and self._elapsed() - self._looked_at < REGISTER_INTERVAL_S:
            return None
        try:
            last = self._register.read()
            with self._lock:
                self._looked_at = self._elapsed()
                self._note(last)
                term = self._next(last)
                if term is None or not self._register.decide(term):
                    return None
                self.close()
        except RegisterUnavailable as error:
            self._log.warning("nothing is decided", why=str(error))
            return None
        self._log.warning("this daemon is the active one", epoch=term.epoch, events=self._replica.last)
        return term

    def _note(self, last: Term | None) -> None:
        if last is not None:
            self._active_url = last.holder if last.holder != self._own else ""
        may = last is not None and last.pairing > 0 and last.pairing == self._pairing
        self._metrics.show(active=False, paired=may, epoch=0 if last is None else last.epoch)

    def _next(self, last: Term | None) -> Term | None:
        """The term that this daemon asks for, if it may."""
        now = self._clock.now()
        if last is None:
            return Term(1, max(1, self._epoch + 1), self._own, 0, now) if self._own == self._urls[0] else None
        if last.holder == self._own:
            if last.epoch == self._epoch:  # it was the active one already, and starts again
                return Term(last.number + 1, last.epoch + 1, self._own, last.pairing, now)
            # An operator has decided so: what the other one may still do ends with its lease.
            self._fenced_below = last.epoch
            return Term(last.number + 1, last.epoch + 1, self._own, 0, now) if self._promise.is_over else None
        if self._promise.is_over and last.pairing and last.pairing == self._pairing:
            return Term(last.number + 1, last.epoch + 1, self._own, 0, now)
        return None

    def tend(self) -> None:
        """Upkeep of the copy, as the active daemon does with its own."""
        with self._lock:
            if not self._closed:
                Upkeep(self._replica).tend(self._clock.now())

    def close(self) -> None:
        """Give the journal back. Idempotent."""
        with self._lock:
            self._closed = True
            self._replica.close()


def _whole(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise InvalidInput(name, "a whole number is missing")
    return value


def _rows(body: Mapping[str, Any]) -> list[list[Any]]:
    rows = body.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise InvalidInput("rows", "a list of rows is missing")
    return rows
