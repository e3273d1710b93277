"""Events of a study's jobs, from one long poll of the daemon."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from malletrain.wire.daemon import DaemonClient
from malletrain.wire.errors import WireError
from malletrain.wire.rows import EventRow

#: Kinds of events that a study reads (`malletrain.domain.event.EventKind`).
EVENT_KINDS = ("metric", "job_completed", "job_failed", "job_cancelled", "pilot_ended", "array_refused")

#: Seconds that the daemon may hold a request open.
LONG_POLL_S = 20.0

#: Seconds between attempts while the daemon does not answer.
RETRY_S = 2.0


class EventQueue:
    """One job's events, each once. After a restart of the study, older events may follow newer ones."""

    def __init__(self) -> None:
        self._rows: queue.Queue[EventRow] = queue.Queue()
        self._seen: set[int] = set()
        self._lock = threading.Lock()

    def put(self, row: EventRow) -> None:
        """Add an event, unless it is there already."""
        with self._lock:
            if row.seq not in self._seen:
                self._seen.add(row.seq)
                self._rows.put(row)

    def get(self, wait_s: float) -> EventRow | None:
        """The next event, or None when there is none in time."""
        try:
            return self._rows.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            return None


class EventFeed:
    """A thread that reads events and puts them into the queues of their jobs.

    Args:
        daemon: a connection that only this thread uses.
        say: called with one line when the daemon stops answering, and when it answers again.
    """

    def __init__(self, daemon: DaemonClient, say: Callable[[str], None]) -> None:
        self._daemon = daemon
        self._say = say
        self._queues: dict[int, EventQueue] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="study-events", daemon=True)

    def start(self) -> None:
        """Start the thread; it reads events from now on."""
        _, self._after = self._daemon.latest_events(1)
        self._thread.start()

    def close(self) -> None:
        """Stop reading; the thread ends with its present poll."""
        self._ended.set()

    def open(self, job: int) -> EventQueue:
        """The queue of a job. For a job of an earlier run of the study call `catch_up` first."""
        with self._lock:
            return self._queues.setdefault(job, EventQueue())

    def shut(self, job: int) -> None:
        """Drop the job's queue and its later events."""
        with self._lock:
            self._queues.pop(job, None)

    def _read(self) -> None:
        away = False
        while not self._ended.is_set():
            try:
                rows, after = read(self._daemon, self._after, wait_s=LONG_POLL_S)
            except WireError as error:
                if not away:
                    self._say(f"{error}; trainings go on, and the study waits")
                away = True
                self._ended.wait(RETRY_S)
                continue
            if away:
                self._say("the daemon answers again")
                away = False
            self._after = max(after, self._after)
            with self._lock:
                queues = dict(self._queues)
            for row in rows:
                queue_of_job = queues.get(row.job or 0)
                if queue_of_job is not None:
                    queue_of_job.put(row)


def read(
    daemon: DaemonClient, after: int, *, job: int | None = None, wait_s: float = 0.0
) -> tuple[tuple[EventRow, ...], int]:
    """Events of `EVENT_KINDS` after number `after`; and the number to go on from."""
    return daemon.events(after=after, wait_s=wait_s, job=job, kinds=EVENT_KINDS)


def past(daemon: DaemonClient, job: int) -> list[EventRow]:
    """All events of `EVENT_KINDS` of one job so far."""
    found: list[EventRow] = []
    after = 0
    while True:
        rows, last = read(daemon, after, job=job)
        found += rows
        if not rows or last <= after:
            return found
        after = last
