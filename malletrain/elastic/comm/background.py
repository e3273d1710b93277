"""Blocking calls that run elsewhere and are waited for in slices, like a group's operations."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable


class Task:
    """A blocking call, for whichever thread `run`s it.

    Args:
        call: what is done.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Do it. Raises nothing: an error is for whoever waits."""
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            # The error lives as long as this task, often in a cycle; tensors and sockets of those frames need not.
            traceback.clear_frames(error.__traceback__)
            self._error = error
        finally:
            self._over.set()

    def fail(self, error: BaseException) -> None:
        """It is not going to be done."""
        self._error = error
        self._over.set()

    def wait(self, seconds: float) -> bool:
        """Whether it is done, after so long at most. Raises what the call raised."""
        if not self._over.wait(seconds):
            return False
        if self._error is not None:
            raise self._error
        return True

    def is_over(self, seconds: float) -> bool:
        """Whether it has come back, well or ill, after so long at most."""
        return self._over.wait(seconds)


class Background(Task):
    """A task in a thread of its own, begun at once.

    Args:
        call: what is done.
        name: of the thread.
    """

    def __init__(self, call: Callable[[], None], name: str) -> None:
        super().__init__(call)
        threading.Thread(target=self.run, name=f"malletrain-{name}", daemon=True).start()
