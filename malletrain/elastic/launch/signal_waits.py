"""How the launcher waits for what it has started, and ends it. A signal is handled soon in these waits, whichever
thread the kernel gives it to.

Python runs handlers in the main thread, between two of its instructions. A system call there is interrupted only by a
signal that this very thread gets (signal(7)); so no wait here is longer than `SIGNAL_LATENCY_S`. Standard library
only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time

#: Seconds after which a signal is handled at the latest.
SIGNAL_LATENCY_S = 1.0


def wait_for_child(process: subprocess.Popen[bytes]) -> int:
    """Wait until a child has ended; returns its status as `Popen.wait` does."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(SIGNAL_LATENCY_S)


def wait_for_event(event: threading.Event, seconds: float) -> bool:
    """Wait for an event; returns whether it is set."""
    end = time.monotonic() + seconds
    while not event.wait(max(0.0, min(SIGNAL_LATENCY_S, end - time.monotonic()))):
        if time.monotonic() >= end:
            return False
    return True


def kill_group(process: subprocess.Popen[bytes] | None) -> None:
    """Kill all that a child has started, if it leads a process group."""
    if process is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def shell_status(status: int) -> int:
    """A `Popen.returncode` as shells have it: 128 and the number of the signal that ended a process."""
    return status if status >= 0 else 128 - status
