"""Blocking calls that run in other threads and are waited for in short slices, like a group's operations."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class BackgroundThread(threading.Thread):
    """A daemon thread, `malletrain-NAME`, that may be in C++ as the process ends; starts at once. What may be stuck,
    as a group that is closed, is left behind in one."""

    def __init__(self, call: Callable[[], None], name: str) -> None:
        super().__init__(target=call, name=f"malletrain-{name}", daemon=True)
        self.start()


def all_ended(seconds: float) -> bool:
    """Wait for at most `seconds` until every `BackgroundThread` has ended; return whether all have. A daemon thread
    that comes back from C++ as the interpreter ends is unwound, for which the C++ runtime aborts the process."""
    end = time.monotonic() + seconds
    threads = [each for each in threading.enumerate() if isinstance(each, BackgroundThread)]
    for each in threads:
        each.join(max(0.0, end - time.monotonic()))
    return not any(each.is_alive() for each in threads)


class Task:
    """A blocking call that some thread `run`s and others wait for."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Make the call. Raises nothing: `wait` raises what the call raised."""
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - raised by wait()
            # The error lives as long as this task, often in a reference cycle; tensors and sockets of its frames
            # must not.
            traceback.clear_frames(error.__traceback__)
            self._error = error
        finally:
            self._over.set()

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`; return whether the call has returned. Raises what the call raised."""
        if not self._over.wait(seconds):
            return False
        if self._error is not None:
            raise self._error
        return True


class Background(Task):
    """A task that starts at once in a `BackgroundThread` of its own."""

    def __init__(self, call: Callable[[], None], name: str) -> None:
        super().__init__(call)
        BackgroundThread(self.run, name)


class Abandonable(Protocol):
    """What must be given up, where nobody wants it any more."""

    def abandon(self) -> None: ...


Made = TypeVar("Made", bound=Abandonable)


class Making(Background, Generic[Made]):
    """A task that makes something, `made` once it is over; None where there is nothing. What was dropped before is
    given up as soon as it is made."""

    def __init__(self, make: Callable[[], Made | None], name: str) -> None:
        self.made: Made | None = None
        self._dropped = False
        self._lock = threading.Lock()
        super().__init__(lambda: self._keep(make()), name)

    def _keep(self, made: Made | None) -> None:
        with self._lock:
            late = self._dropped
            self.made = None if late else made
        if late and made is not None:
            made.abandon()

    def drop(self) -> None:
        """Give it up, made or not. Idempotent."""
        with self._lock:
            self._dropped, made, self.made = True, self.made, None
        if made is not None:
            made.abandon()
