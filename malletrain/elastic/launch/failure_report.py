"""Reports the exception that ends a script, wherever it was raised, with its line in the script, so that `malletrain
explain` says it."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import malletrain

#: Characters of a message that the daemon keeps.
MAX_TEXT_CHARACTERS = 1900

#: What is said of a script that ends by itself (`sys.exit(0)`, `os._exit(0)`) while it trains.
ENDED = (
    "the script ended without s.finish(), by sys.exit(), os._exit() or at its last line. A job is complete when "
    "s.finish() is called. To stop early, let all workers decide alike: `if s.agree(loss.item()) < 0.1: break`"
)

#: How long the process waits for the daemon to have the report.
FLUSH_TIMEOUT_S = 2.0

#: This package's folder.
HOUSE = str(Path(malletrain.__file__).parent) + "/"

_LIBRARIES = (HOUSE, *(f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "purelib", "platlib")))

_before_end: list[Callable[[], None]] = []


def before_immediate_end(callback: Callable[[], None]) -> None:
    """Have a callback called before this process ends by `os._exit(0)`, which runs no exit handlers.

    A script whose threads hang ends so. Of several callbacks the last one counts.
    """
    first = not _before_end
    _before_end[:] = [callback]
    if not first:
        return
    process, plain = os.getpid(), os._exit

    def end_at_once(status: int) -> NoReturn:
        try:
            if status == 0 and os.getpid() == process:  # not in a process that was forked, which ends this way
                _before_end[0]()
        finally:
            plain(status)

    os._exit = end_at_once


def text_of(error: BaseException) -> str:
    """What is said of an exception that ends a script, with its line; "" of one that merely ends the process."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return ""
    line = line_of(error.__traceback__)
    return f"{type(error).__name__}: {error}"[:MAX_TEXT_CHARACTERS] + (f" ({line})" if line else "")


def report_uncaught(report: Callable[[], Callable[[BaseException], None] | None]) -> None:
    """Report what nothing in the script catches, as long as there is who reports, then go on as Python does."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        if (live := report()) is not None:
            live(error.with_traceback(trace))

    sys.excepthook = hook


def is_script(filename: str) -> bool:
    """Whether a file is the researcher's own: neither a library's nor made of text."""
    return not filename.startswith(("<", *_LIBRARIES)) and "/site-packages/" not in filename


def line_of(trace: TracebackType | None) -> str:
    """File and line of the script's innermost frame in a traceback, as `train.py:57`; "" without one."""
    found = ""
    while trace is not None:
        if is_script(trace.tb_frame.f_code.co_filename):
            found = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
