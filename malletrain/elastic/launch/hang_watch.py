"""Says where a worker's script is while no step is made, in its log and to the daemon: the rank that does not come
names its own line, and those that wait for it say in their logs that they wait."""

from __future__ import annotations

import linecache
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from malletrain.elastic.launch.failure_report import HOUSE, is_script
from malletrain.elastic.launch.own_check import say

log = logging.getLogger("malletrain.elastic")

#: Seconds without a further round of all workers, after which it is said where this one is; and between two looks.
HANG_S, LOOK_S = 60.0, 5.0


class HangWatch:
    """A thread that looks at the one that trains.

    Args:
        worker: returns this worker's name.
        rounds: returns how many rounds of all workers there were; None once training is over.
        hang_s, look_s: see `HANG_S`, `LOOK_S`.
    """

    def __init__(
        self,
        worker: Callable[[], str],
        rounds: Callable[[], int | None],
        hang_s: float = HANG_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._worker, self._rounds, self._hang_s, self._look_s = worker, rounds, hang_s, look_s
        self._trains = threading.get_ident()
        self._ended = threading.Event()
        self._is_reported = False  #: whether the daemon has a place of it

    def start(self) -> None:
        """Watch the thread that calls this."""
        self._trains = threading.get_ident()
        threading.Thread(target=self._run, name="malletrain-hang", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        seen: int | None = None
        since = time.monotonic()
        patience, said = dict[tuple[str, bool], float](), set[tuple[str, bool]]()  # by place; in this step
        while not self._ended.wait(self._look_s):
            rounds = self._rounds()
            if rounds is None:
                break
            stood_s = time.monotonic() - since
            if rounds != seen:
                # Each step of some trainings takes minutes: then a place is said again after twice the time.
                patience |= dict.fromkeys(said, 2.0 * stood_s)
                seen, since, said = rounds, time.monotonic(), set()
                self._goes_on()
            elif stood_s >= self._hang_s:
                place = line, waits = place_of(sys._current_frames().get(self._trains))
                if line and place not in said and stood_s >= patience.get(place, 0.0):
                    said.add(place)
                    self._say(line, waits, max(self._hang_s, patience.get(place, 0.0)))
        self._goes_on()

    def _say(self, line: str, waits: bool, limit_s: float) -> None:
        at = f"waits for the other workers at {line}" if waits else f"is at {line}; whoever else trains waits for it"
        log.warning("%s has made no step for %.0f s: it %s", self._worker(), limit_s, at)
        if not waits:
            self._is_reported = True
            say(os.environ, line)

    def _goes_on(self) -> None:
        if self._is_reported:
            self._is_reported = False
            say(os.environ, "")


_before_session: list[HangWatch] = []


def watch_for_session(hang_s: float = HANG_S, look_s: float = LOOK_S) -> None:
    """Watch the main thread, where a pilot has started this process, until it makes a session."""
    is_first = multiprocessing.parent_process() is None and not _before_session
    if is_first and threading.current_thread() is threading.main_thread():
        _before_session.append(HangWatch(lambda: "a worker without a session", lambda: 0, hang_s, look_s))
        _before_session[0].start()


def session_made() -> None:
    """The session has a watch of its own."""
    for watch in _before_session:
        watch.stop()


def place_of(frame: FrameType | None) -> tuple[str, bool]:
    """Where a thread is in the script, "" outside any, and whether it waits there for the other workers."""
    waits = False
    while frame is not None and not is_script(frame.f_code.co_filename):
        waits |= frame.f_code.co_filename.startswith(HOUSE)
        frame = frame.f_back
    if frame is None:
        return "", False
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(file).name}:{line} in {frame.f_code.co_name}: `{linecache.getline(file, line).strip()}`", waits
