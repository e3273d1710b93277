"""Waiting for what another thread or process does."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4


def wait_until(condition: Callable[[], bool], seconds: float = 120.0, what: str = "what is waited for") -> None:
    """Return once `condition()` holds. Raises `AssertionError`, with `what`, after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process runs: one that waits for its status to be asked for does not (proc(5), stat)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Gate:
    """What a job waits for: `closed` is shell text that ends once `open` was called, and not before."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"gate-{uuid4().hex}"
        self.closed = f"until [ -e {shlex.quote(str(self._path))} ]; do sleep 0.1; done"

    def open(self) -> None:
        self._path.touch()
