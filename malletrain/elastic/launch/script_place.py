"""The place in the script that an error comes from: the innermost line outside the libraries."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import TracebackType

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


def line_of(trace: TracebackType | None) -> str:
    """File and line of the script's innermost frame in a traceback, as `train.py:57`; "" without one."""
    found = ""
    while trace is not None:
        if is_script(trace.tb_frame.f_code.co_filename):
            found = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
