"""The place in the script that is responsible: the innermost frame outside the libraries."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

import malletrain

_LIBRARIES = tuple(
    str(Path(path)) + "/"
    for path in (
        Path(malletrain.__file__).parent,
        sysconfig.get_paths()["stdlib"],
        sysconfig.get_paths()["purelib"],
        sysconfig.get_paths()["platlib"],
    )
)


def is_script(filename: str) -> bool:
    """Whether a file is the researcher's own: neither a library's nor made of text."""
    return not filename.startswith(("<", *_LIBRARIES)) and "/site-packages/" not in filename


def script_frames() -> Iterator[FrameType]:
    """The script's frames on this thread's stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def line_of(trace: TracebackType | None) -> str:
    """File and line of the script's innermost frame in a traceback, as `train.py:57`; "" without one."""
    found = ""
    while trace is not None:
        if is_script(trace.tb_frame.f_code.co_filename):
            found = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def current_line() -> str:
    """File and line of the script's innermost frame on the stack, as `train.py:57`; "" without one."""
    frame = next(script_frames(), None)
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
