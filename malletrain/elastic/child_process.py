"""What a process does that a worker has forked."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent(parent: int, status: int) -> None:
    """In a forked process: end together with its parent, however that ends; now, with `status`, if it has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(status)
