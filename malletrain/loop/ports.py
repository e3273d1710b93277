"""What the loop needs from the world. The live daemon and replay bring their own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from malletrain.domain.decision import CancelTasks, CutLimit, LeavePilot, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.event import Event
from malletrain.domain.job import ArrayReport, MalleableJob, PilotEnd
from malletrain.domain.snapshot import SlurmJob, Snapshot


class Clock(Protocol):
    """Time, passed in."""

    def now(self) -> float:
        """Unix seconds: for what people and Slurm call time."""

    def elapsed(self) -> float:
        """Seconds of a clock that never jumps: for durations."""


class Cluster(Protocol):
    """Slurm, as seen and steered. The contract tests run over the live adapter and the one in memory.

    Each call may take seconds, so none is made inside a transaction, and raises `ClusterUnavailable`: no answer in
    time, an error, or an answer that cannot be right.
    """

    def snapshot(self) -> Snapshot:
        """One round of queries."""

    def look(self, last: Snapshot) -> Snapshot:
        """A light look between two ticks: the main queue alone, laid over `last` (`Snapshot.with_main_queue`)."""

    def inspect(self, array_id: int, job: MalleableJob) -> ArrayReport:
        """Look at a held array that `job`'s owner says is theirs, field by field, before its tasks are trusted."""

    def end_of(self, pilot: str) -> PilotEnd:
        """What became of a pilot that the queue no longer shows."""

    def ended_main_jobs(self, nodes: Collection[str]) -> Sequence[SlurmJob]:
        """Jobs of other partitions that ended on any of `nodes`, as far as Slurm remembers."""

    def start(self, actions: Sequence[StartPilot]) -> Sequence[Outcome]:
        """Re-read each task and its node; pin, limit and release those that are as they should be.

        Not done, with the reason, when the node is held or wanted by now, or the task was changed by anyone.
        """

    def cut(self, action: CutLimit) -> Outcome:
        """Shorten a running pilot's limit. Done also when it ends sooner already."""

    def recycle(self, actions: Sequence[RecyclePilot]) -> Sequence[Outcome]:
        """Requeue pilots and hold them again. Done also for those that have ended already."""

    def cancel(self, action: CancelTasks) -> Outcome:
        """Cancel tasks; those that are gone already count as cancelled."""

    def take_back(self, strays: Sequence[Stray]) -> Sequence[Outcome]:
        """Read each job of the harvest partition again, and end those that still are what they were, at once. Done
        also for those that are gone already."""


class Workers(Protocol):
    """The workers inside pilots, as the loop steers them."""

    def leave(self, action: LeavePilot) -> None:
        """Ask one worker to leave its world; `WorkerLeft` follows in the reports. Idempotent."""

    def pilots_ended(self, job_id: int, pilots: Collection[str]) -> None:
        """Slurm shows that these pilots hold no node any more: what ran there has ended, heard or not."""

    def end_job(self, job_id: int, reason: str) -> None:
        """Tell every worker of the job to stop: the job is over."""

    def top_up(self, job_id: int, tasks: int) -> bool:
        """Have a worker submit held tasks more, as the job's owner; False when there is none to ask."""

    def choose_batches(self, job_id: int, batches: tuple[tuple[int, int], ...]) -> None:
        """From the job's next generation on: samples of a step, from so many nodes on; (nodes, samples), rising."""

    def climb(self, jobs: frozenset[int]) -> None:
        """Jobs, and no others, whose worlds begin small and grow in stages, to be measured at each."""

    def reports(self) -> Sequence[Event]:
        """What workers have reported since the last call, in order."""


class Journal(Protocol):
    """The append-only record. After a crash it is all that is left."""

    def append(self, events: Iterable[Event]) -> Sequence[Event]:
        """Write in one transaction; returns the events with their numbers. Durable when it returns, except what the
        live daemon keeps in memory while its disk is full (`malletrain.daemon.journal_keeper`).
        Raises JournalUnavailable: nothing was written, and nothing may follow."""

    def read(self, after: int = 0) -> Iterable[Event]:
        """Events with `seq` above `after`, in order."""
