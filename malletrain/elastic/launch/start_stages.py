"""Measures the stages of a worker's start, for the worker's log and the journal."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

log = logging.getLogger("malletrain.elastic")

_LOADED_AT = time.monotonic()


class StartStages:
    """Seconds by stage: `build` (of the session), `warm_up`, `compile`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def warming(self) -> Iterator[None]:
        """A context manager around the warm-up; the session is built when it begins."""
        began, compiled = time.monotonic(), _compile_seconds()
        self._seconds["build"] = began - self._began
        yield
        spent = _compile_seconds() - compiled
        self._seconds["warm_up"] = max(0.0, time.monotonic() - began - spent)
        if spent > 0.0:
            self._seconds["compile"] = spent

    def finished(self) -> dict[str, float]:
        """All stages that are over, with those of the process: `import`, and `all` from its start to now."""
        stages = {**self._seconds, **_of_process()}
        log.info("start: %s", ", ".join(f"{name} {took:.2f} s" for name, took in stages.items()))
        return stages


def _compile_seconds() -> float:
    """Seconds that this process has spent in torch's compiler so far, as torch counts them."""
    utils: Any = sys.modules.get("torch._dynamo.utils")  # nothing is compiled before it is imported
    spent = getattr(utils, "cumulative_time_spent_ns", {})
    return float(sum(spent.get(name, 0.0) for name in ("entire_frame_compile", "entire_backward_compile"))) / 1e9


def _of_process() -> dict[str, float]:
    """Seconds from this process's start to now ("all") and to the import of this module ("import"), from /proc; empty
    where that is missing."""
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        began = ticks / os.sysconf("SC_CLK_TCK")
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return {}
    return {"import": max(0.0, uptime - began - (now - _LOADED_AT)), "all": max(0.0, uptime - began)}
