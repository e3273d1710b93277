"""Timers for real: threads and intervals of milliseconds, waited for by condition."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from malletrain.daemon.process.timers import Timers

DEADLINE_S = 60.0


class Told:
    def __init__(self) -> None:
        self.failed: list[tuple[str, BaseException]] = []
        self.late: list[str] = []
        self.changed = threading.Condition()

    def on_failed(self, name: str, error: BaseException) -> None:
        with self.changed:
            self.failed.append((name, error))
            self.changed.notify_all()

    def on_late(self, name: str) -> None:
        with self.changed:
            self.late.append(name)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_S)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def timers(told: Told) -> Iterator[Timers]:
    made = Timers(failed=told.on_failed, late=told.on_late, elapsed=time.monotonic)
    yield made
    made.stop()


def test_work_is_done_again_and_again(timers: Timers) -> None:
    enough = threading.Event()
    runs: list[float] = []

    def work() -> None:
        runs.append(time.monotonic())
        if len(runs) == 3:
            enough.set()

    began = time.monotonic()
    timers.every("work", 0.05, work)
    assert timers.since_end("work") is None
    timers.start()
    assert enough.wait(DEADLINE_S)
    assert runs[2] - began >= 0.09


def test_work_that_fails_is_told_and_done_again(timers: Timers, told: Told) -> None:
    def work() -> None:
        raise ValueError("no")

    timers.every("work", 0.05, work)
    timers.start()
    told.wait(lambda: len(told.failed) >= 2)
    name, error = told.failed[0]
    assert (name, str(error)) == ("work", "no")
    assert timers.since_end("work") is not None


def test_work_never_overlaps_itself_and_what_is_skipped_is_told(timers: Timers, told: Told) -> None:
    go_on = threading.Event()
    running = 0
    most = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go_on.wait(DEADLINE_S)
        with lock:
            running -= 1

    timers.every("work", 0.02, work)
    timers.start()
    told.wait(lambda: len(told.late) >= 2)
    go_on.set()
    timers.stop()
    assert most == 1
    assert set(told.late) == {"work"}


def test_one_slow_timer_does_not_hold_up_another(timers: Timers) -> None:
    go_on = threading.Event()
    other = threading.Event()
    timers.every("slow", 60, lambda: go_on.wait(DEADLINE_S))
    timers.every("quick", 0.02, other.set)
    timers.start()
    try:
        assert other.wait(DEADLINE_S)
    finally:
        go_on.set()


def test_stop_waits_for_what_runs(timers: Timers) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(DEADLINE_S)
        done.set()

    timers.every("work", 60, work)
    timers.start()
    assert begun.wait(DEADLINE_S)
    threading.Timer(0.1, go_on.set).start()
    timers.stop()
    assert done.is_set()
    timers.stop()  # once more does no harm
