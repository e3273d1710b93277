"""malletraind that dies by SIGKILL at a chosen boundary: `python -m scripts.chaos.crashing_daemon AT LOG [options]`.

A boundary is before and after each write to the journal, and before and after each order to Slurm; AT counts them
from 1. LOG receives a line that says where it died.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from malletrain.daemon import entry
from malletrain.slurm.command import Commands
from malletrain.store.journal import SqliteJournal
from scripts.simulation.faults import CrashPoints, DaemonKilled

P = ParamSpec("P")
T = TypeVar("T")

#: Verbs of scontrol that only read.
_READS = frozenset({"show", "ping", "version"})


class _Boundaries:
    def __init__(self, at: int, log: Path) -> None:
        self._points, self._log, self._turn = CrashPoints(frozenset({at})), log, threading.Lock()

    def pass_by(self, name: str) -> None:
        """One boundary; the process ends here if it is the chosen one."""
        with self._turn:
            try:
                self._points.pass_by(name)
            except DaemonKilled:
                with self._log.open("a") as log:
                    log.write(f"{name}\n")
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: Callable[P, str], function: Callable[P, T]) -> Callable[P, T]:
        """`function` with a boundary before and after each call; `name` gives its name, empty for none."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            named = name(*args, **kwargs)
            if not named:
                return function(*args, **kwargs)
            self.pass_by(f"before {named}")
            answer = function(*args, **kwargs)
            self.pass_by(f"after {named}")
            return answer

        return call


def _order(_self: Commands, argv: list[str], *_args: object, **_kwargs: object) -> str:
    if argv[0] == "scontrol":
        verb = next((word for word in argv[1:] if word.isalpha()), "")
        return "" if verb in _READS else f"scontrol {verb}"
    return argv[0] if argv[0] in ("scancel", "sbatch") else ""


def main() -> None:
    """As the module's docstring says."""
    boundaries = _Boundaries(int(sys.argv[1]), Path(sys.argv[2]))
    del sys.argv[1:3]
    SqliteJournal.append = boundaries.around(lambda *_: "a write", SqliteJournal.append)  # type: ignore[method-assign]
    Commands.run = boundaries.around(_order, Commands.run)  # type: ignore[method-assign,arg-type]
    entry.main()


if __name__ == "__main__":
    main()
