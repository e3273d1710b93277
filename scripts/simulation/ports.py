"""The daemon's ports in the simulation: time, Slurm and the journal, with faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from prometheus_client import Gauge

from malletrain.domain.decision import CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.errors import ClusterUnavailable, JournalUnavailable
from malletrain.domain.event import Event
from malletrain.domain.job import ArrayReport, MalleableJob, PilotEnd
from malletrain.domain.snapshot import SlurmJob, Snapshot
from malletrain.loop.memory import MemoryCluster, MemoryJournal
from scripts.simulation.faults import CrashPoints, DaemonKilled

T = TypeVar("T")


class SimulatedClock:
    """A clock that moves when told; `now` may be set by whoever sets the machine's time, `elapsed` never jumps."""

    def __init__(self, start: float) -> None:
        self.start, self.passed, self.offset = start, 0.0, 0.0

    def now(self) -> float:
        return self.start + self.passed + self.offset

    def elapsed(self) -> float:
        return self.passed


class DaemonsSlurm:
    """Slurm as one daemon sees it: crash points around every order, and answers that may be lost."""

    def __init__(
        self, slurm: MemoryCluster, clock: SimulatedClock, points: CrashPoints, rng: random.Random, lost_answer: float
    ) -> None:
        self._slurm, self._clock, self._points, self._rng = slurm, clock, points, rng
        self.lost_answer = lost_answer

    def snapshot(self) -> Snapshot:
        """As the live adapter has it: the time of a snapshot is of the daemon's clock, those in it are of Slurm's."""
        return replace(self._slurm.snapshot(), taken_at=self._clock.now())

    def look(self, last: Snapshot) -> Snapshot:
        return self._slurm.look(last)

    def inspect(self, array_id: int, job: MalleableJob) -> ArrayReport:
        return self._slurm.inspect(array_id, job)

    def end_of(self, pilot: str) -> PilotEnd:
        return self._slurm.end_of(pilot)

    def ended_main_jobs(self, nodes: Collection[str]) -> Sequence[SlurmJob]:
        return self._slurm.ended_main_jobs(nodes)

    def start(self, actions: Sequence[StartPilot]) -> Sequence[Outcome]:
        return self._order("start", lambda: self._slurm.start(actions))

    def cut(self, action: CutLimit) -> Outcome:
        return self._order("cut", lambda: self._slurm.cut(action))

    def recycle(self, actions: Sequence[RecyclePilot]) -> Sequence[Outcome]:
        return self._order("recycle", lambda: self._slurm.recycle(actions))

    def cancel(self, action: CancelTasks) -> Outcome:
        return self._order("cancel", lambda: self._slurm.cancel(action))

    def take_back(self, strays: Sequence[Stray]) -> Sequence[Outcome]:
        return self._order("take_back", lambda: self._slurm.take_back(strays))

    def _order(self, name: str, order: Callable[[], T]) -> T:
        self._points.pass_by(f"before {name}")
        answer = order()
        self._points.pass_by(f"after {name}")
        if self._rng.random() < self.lost_answer:
            raise ClusterUnavailable(f"simulated: the answer to {name} is lost")
        return answer


class DaemonsJournal:
    """The journal as one daemon writes it; after its death it writes nothing more. `busy`: it cannot be written."""

    path = Path("/journal")

    def __init__(self, disk: MemoryJournal, points: CrashPoints, busy: Callable[[], bool] = lambda: False) -> None:
        self._disk, self._points, self._busy, self._dead = disk, points, busy, False

    @property
    def last(self) -> int:
        return len(self._disk.events)

    def probe(self) -> None:
        if self._busy():
            raise JournalUnavailable("simulated: the database is locked")

    def append(self, events: Iterable[Event]) -> Sequence[Event]:
        if self._dead:
            raise DaemonKilled("the daemon is dead")
        wanted = tuple(events)
        if not wanted:
            return ()
        self.probe()
        try:
            self._points.pass_by(f"before writing {wanted[0].kind}")
            written = self._disk.append(wanted)
            self._points.pass_by(f"after writing {wanted[0].kind}")
        except DaemonKilled:
            self._dead = True
            raise
        return written

    def read(self, after: int = 0) -> Iterable[Event]:
        return self._disk.read(after)


class NoMetrics:
    """What the keeper of the journal counts, counted by nobody."""

    journal_free = journal_kept = journal_writable = journal_refusals = Gauge("unused", "Nothing.", registry=None)

    def record(self, events: Sequence[Event]) -> None: ...
