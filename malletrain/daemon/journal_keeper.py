"""The journal as the loop writes it: counted for Prometheus, and kept in memory while the disk refuses it.

What gives nodes back must not wait for a disk that is full. While it is, facts are folded and kept here, in order,
and written once there is room; what binds the daemon (a start, a new job, an operator's wish) is refused, for it must
outlive a crash. A crash before that loses what was kept, which the next daemon then learns from Slurm. Held tasks are
not cancelled meanwhile: they hold no node, and a job whose completion was lost needs one to complete again from its
last save."""

import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from malletrain.daemon.metrics import Metrics
from malletrain.domain import event as kinds
from malletrain.domain.decision import CancelTasks, StartPilot, TopUp
from malletrain.domain.errors import JournalUnavailable
from malletrain.domain.event import Event
from malletrain.store.journal import SqliteJournal

#: Figures beyond so many kept events are left out; facts of pilots and workers are always kept.
MAX_KEPT_EVENTS = 20_000

#: Seconds between two lines of log about a journal that cannot be written.
LOG_INTERVAL_S = 60.0


class JournalKeeper:
    """The `Journal` port of the live loop. Its callers hold one lock around `append`; `flush` needs none. With less
    than `min_free_bytes` on the journal's file system nothing new is started."""

    def __init__(
        self, journal: SqliteJournal, metrics: Metrics, min_free_bytes: float, elapsed: Callable[[], float]
    ) -> None:
        self._journal, self._metrics = journal, metrics
        self._min_free_bytes, self._elapsed = min_free_bytes, elapsed
        self._lock = threading.Lock()
        self._kept: list[Event] = []
        self._left_out = 0
        self._fault = ""
        self._logged_at = float("-inf")
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")

    def append(self, events: Iterable[Event]) -> Sequence[Event]:
        """Write events, or keep them in memory where a restart may lose them.
        Raises JournalUnavailable: they cannot be written, and must be before anything follows from them."""
        batch = list(events)
        with self._lock:
            written = self._keep(batch) if self._fault else None
        if written is None:
            try:
                written = self._journal.append(batch)
            except JournalUnavailable as error:
                with self._lock:
                    self._refused(error)
                    written = self._keep(batch)
        self._metrics.record(written)
        for event in written:
            match event.payload:
                case kinds.StartsRefused(refused=True):
                    self._log.warning("Slurm refuses pilots", job=event.job, answer=event.reason)
                case kinds.StartsRefused():
                    self._log.info("Slurm refuses pilots no more", job=event.job)
        return written

    def read(self, after: int = 0) -> Iterable[Event]:
        return self._journal.read(after)

    def flush(self) -> None:
        """Try to write what is kept, and look how much room there is. Called every few seconds, by one thread."""
        self._metrics.journal_free.set(self.free_bytes())
        while self._fault:
            with self._lock:
                batch = tuple(self._kept)
            try:
                self._journal.append(batch) if batch else self._journal.probe()
            except JournalUnavailable as error:
                with self._lock:
                    self._refused(error)
                return
            with self._lock:
                del self._kept[: len(batch)]
                if not self._kept:
                    self._log.warning("the journal is written again", events=len(batch), left_out=self._left_out)
                    self._fault, self._left_out, self._logged_at = "", 0, float("-inf")
                self._show_kept()

    def why_unsafe(self) -> str:
        """Why nothing new may start: the journal cannot be written, or soon will not be; empty when it can."""
        if self._fault:
            return f"the journal cannot be written, so nothing new starts: {self._fault}"
        free = self.free_bytes()
        if free < self._min_free_bytes:
            return (
                f"{free / 1e6:.0f} MB are free for the journal, below {self._min_free_bytes / 1e6:.0f} "
                "(store.min_free_mb), so nothing new starts: make room on its file system"
            )
        return ""

    def free_bytes(self) -> float:
        """Room on the journal's file system for the daemon's user; infinite where it cannot be determined."""
        try:
            return float(shutil.disk_usage(self._journal.path.parent).free)
        except OSError:
            return float("inf")

    def _refused(self, error: JournalUnavailable) -> None:
        self._fault = str(error)
        self._metrics.journal_refusals.inc()
        self._show_kept()
        if self._elapsed() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = self._elapsed()
            self._log.error("the journal cannot be written: nothing new starts", why=str(error), kept=len(self._kept))

    def _keep(self, events: Sequence[Event]) -> Sequence[Event]:
        """Events with the numbers that they will have."""
        if any(map(_binds, events)):
            raise JournalUnavailable(f"nothing was done: {self._fault}")
        numbered = []
        for event in events:
            if (
                isinstance(event.payload, kinds.SamplesReported | kinds.MetricReported)
                and len(self._kept) >= MAX_KEPT_EVENTS
            ):
                self._left_out += 1
                continue
            last = self._kept[-1].seq if self._kept else self._journal.last
            numbered.append(replace(event, seq=last + 1))
            self._kept.append(numbered[-1])
        self._show_kept()
        return numbered

    def _show_kept(self) -> None:
        self._metrics.journal_kept.set(len(self._kept))
        self._metrics.journal_writable.set(not self._fault)


def _binds(event: Event) -> bool:
    """Whether the daemon, once it is started again, must know of it though Slurm does not show it."""
    match event.payload:
        case kinds.ActionIntent(action=StartPilot() | TopUp() | CancelTasks()):
            return True
        case kinds.JobHeld(by=by) | kinds.JobReleased(by=by) | kinds.JobCancelled(by=by):
            return bool(by)
        case kinds.JobNotified(failed=failed):
            return not failed
        case kinds.JobAnnounced() | kinds.ArrayAttached() | kinds.OperatorRequest() | kinds.GenerationsReserved():
            return True
        case _:
            return False
