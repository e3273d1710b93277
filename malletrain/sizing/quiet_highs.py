"""Makes HiGHS solvers that print nothing. From 1.16 on, making one prints two lines before it can be told not to."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import highspy

_STDOUT_FD = 1

#: One thread at a time turns standard output away: another would turn back to where the first one has turned it.
_lock = threading.Lock()


@contextmanager
def silenced() -> Iterator[None]:
    """Throw away what this process writes to standard output meanwhile. For moments: other threads' words go too."""
    with _lock:
        try:
            kept = os.dup(_STDOUT_FD)
        except OSError:  # there is none
            yield
            return
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            _flush()
            os.dup2(nothing, _STDOUT_FD)
            yield
        finally:
            _flush()
            os.dup2(kept, _STDOUT_FD)
            os.close(kept)
            os.close(nothing)


def _flush() -> None:
    """Write out what C's standard library keeps for standard output, a pipe for example."""
    ctypes.CDLL(None).fflush(None)


def new_solver(**options: Any) -> highspy.Highs:
    """A solver on one thread, with these options of HiGHS; without a word."""
    with silenced():
        solver = highspy.Highs()
    fixed: Mapping[str, Any] = {"output_flag": False, "threads": 1, "parallel": "off"}
    for option, setting in {**fixed, **options}.items():
        solver.setOptionValue(option, setting)
    return solver
