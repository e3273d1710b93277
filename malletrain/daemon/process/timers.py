"""The clock of everything that is live; and what the daemon does again and again, on APScheduler.

A run that is late is made up once (`coalesce`), and no work ever runs twice at the same time (`max_instances=1`)."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()


class Timers:
    """Named work at intervals, each in a thread of its own.

    `failed(name, error)` is called for an exception: it ends that run, not the timer.
    `late(name)` is called when a run was skipped because the one before is still going."""

    def __init__(
        self,
        *,
        failed: Callable[[str, BaseException], None],
        late: Callable[[str], None],
        elapsed: Callable[[], float],
        threads: int = 6,
    ) -> None:
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(threads)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )
        self._failed = failed
        self._late = late
        self._elapsed = elapsed
        self._ended: dict[str, float] = {}
        self._scheduler.add_listener(self._on_event, EVENT_JOB_ERROR | EVENT_JOB_EXECUTED | EVENT_JOB_MAX_INSTANCES)

    def every(self, name: str, seconds: float, work: Callable[[], object], *, at_once: bool = True) -> None:
        """Run `work` every `seconds`, first now or, with `at_once` false, after one interval."""
        first = {"next_run_time": datetime.now(UTC)} if at_once else {}
        self._scheduler.add_job(work, "interval", seconds=seconds, id=name, name=name, **first)

    def start(self) -> None:
        """Begin. What is added later begins at once."""
        self._scheduler.start()

    def stop(self) -> None:
        """Start nothing more and wait until what runs has ended."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def since_end(self, name: str) -> float | None:
        """Seconds since a run of `name` last ended, well or with an error; None before the first has."""
        ended = self._ended.get(name)
        return None if ended is None else self._elapsed() - ended

    def _on_event(self, event: JobExecutionEvent) -> None:
        if event.code == EVENT_JOB_MAX_INSTANCES:
            self._late(event.job_id)
            return
        self._ended[event.job_id] = self._elapsed()
        if event.code == EVENT_JOB_ERROR:
            self._failed(event.job_id, event.exception)
