"""Which files of the package a run enters, and how much of each.

    python tests/entered.py SCRIPT ...

runs a training script, and writes what its resizes enter to `entered-TASK.json` in MALLETRAIN_TEST_DIR.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import runpy
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "malletrain"

#: Values and messages, which every journey passes on, and which a reader knows.
VALUES = ("domain", "wire")

#: By file, the lines at which the functions begin that were called.
Entered = dict[str, set[int]]


@contextmanager
def entered(found: Entered) -> Iterator[None]:
    """Note what this thread calls, and every thread that begins meanwhile."""

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            found.setdefault(code.co_filename, set()).add(code.co_firstlineno)

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def lines_of(found: Entered) -> dict[str, int]:
    """By file, below the package and without those of values, the lines of functions called; the longest first."""
    sizes: dict[str, int] = {}
    for file, begins in found.items():
        path = Path(file).relative_to(PACKAGE)
        lines: set[int] = set()
        for node in ast.walk(ast.parse(Path(file).read_text())):
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
                if first in begins:
                    lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if lines and path.parts[0] not in VALUES:
            sizes[str(path)] = len(lines)
    return dict(sorted(sizes.items(), key=lambda row: -row[1]))


def watch_resizes(found: Entered) -> None:
    """Note what this process calls in the steps of a resize, on whichever thread."""
    from malletrain.elastic.resize.reconfigure import Reconfigurer

    def watched(method: Any) -> Any:
        @functools.wraps(method)
        def call(*args: Any, **more: Any) -> Any:
            with entered(found):
                return method(*args, **more)

        return call

    for name in ("on_plan", "_make_group", "switch", "join", "begin_world"):
        setattr(Reconfigurer, name, watched(getattr(Reconfigurer, name)))


if __name__ == "__main__":
    called: Entered = {}
    watch_resizes(called)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        home, task = Path(os.environ["MALLETRAIN_TEST_DIR"]), os.environ["SLURM_ARRAY_TASK_ID"]
        rows = {file: sorted(lines) for file, lines in called.items()}
        (home / f"entered-{task}.json").write_text(json.dumps(rows))
