"""The daemon's events about our jobs, by one long poll for all of them."""

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

#: Between attempts while the daemon does not answer, in seconds.
RETRY_S = 2.0


class EventQueue:
    """One job's events, each once. Those of before an earlier life may come after the first of this one."""

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
    """A thread that reads events and puts them into the boxes of their jobs.

    Args:
        daemon: for this thread alone.
        say: told once when the daemon does not answer, and once when it does again.
    """

    def __init__(self, daemon: DaemonClient, say: Callable[[str], None]) -> None:
        self._daemon = daemon
        self._say = say
        self._boxes: dict[int, EventQueue] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="study-news", daemon=True)

    def start(self) -> None:
        """Begin with what happens from now on."""
        _, self._after = self._daemon.latest_events(1)
        self._thread.start()

    def close(self) -> None:
        """Read no more; the thread ends with its poll."""
        self._ended.set()

    def open(self, job: int) -> EventQueue:
        """The box of a job that has just been announced, or that was before: then first `catch_up`."""
        with self._lock:
            return self._boxes.setdefault(job, EventQueue())

    def shut(self, job: int) -> None:
        """The job's events are of no more interest."""
        with self._lock:
            self._boxes.pop(job, None)

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
                boxes = dict(self._boxes)
            for row in rows:
                box = boxes.get(row.job or 0)
                if box is not None:
                    box.put(row)


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
