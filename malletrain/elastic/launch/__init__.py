"""How a worker starts: what a pilot runs around the researcher's script, and the first stage of a session.

`launcher` (`python -m malletrain.elastic.launch`) runs in every pilot and starts the script; `restart` is its mode
for unchanged scripts, `item_worker` that for independent items; `array_resubmit` submits more pilots as the user.
These four use the standard library only, so that a pilot starts quickly. `worker_start` is what `Session` does before
it joins a world.

Here is how they wait for what they have started, and end it. Python runs signal handlers in the main thread, between
two of its instructions. A system call there is interrupted only by a signal that this very thread gets (signal(7)),
and the kernel may give it to another; so no wait is longer than `SIGNAL_LATENCY_S`.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time

#: How long a worker that has left waits to be ended: the daemon requeues its task, which must still run for that.
REQUEUE_TIMEOUT_S = 20.0

#: Exit status of a script that SIGTERM ended (128 + 15), and of a worker that left in order.
TERMINATED_STATUS = 143

#: Exit status of a pilot that no daemon took: `malletrain.domain.pilot_life` has the same.
NO_DAEMON_STATUS = 118

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
