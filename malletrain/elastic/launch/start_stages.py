"""Measures the stages of a worker's start, for `malletrain profile` and the worker's log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from malletrain.elastic.launch import early_cuda
from malletrain.elastic.launch.compiled_code import compile_seconds

log = logging.getLogger("malletrain.elastic")


class StartStages:
    """Seconds by stage: `build` (of the session), `warm_up`, `compile`; and what runs beside these, `cuda` (the
    context) and `nccl` (loading it)."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: dict[str, float] = {}

    def load_beside(self, load: Callable[[], None]) -> None:
        """Call `load` in a thread; what it raises is logged, since the first world's communicator will say it too."""

        def measured() -> None:
            began = time.monotonic()
            try:
                load()
            except Exception as error:  # noqa: BLE001 - whatever it is, joining the first world raises it
                log.info("NCCL could not be loaded ahead: %s", error)
                return
            self._seconds["nccl"] = time.monotonic() - began

        threading.Thread(target=measured, name="malletrain-load", daemon=True).start()

    @contextmanager
    def warming(self) -> Iterator[None]:
        """A context manager around the warm-up; the session is built when it begins."""
        began, compiled = time.monotonic(), compile_seconds()
        self._seconds["build"] = began - self._began
        yield
        spent = compile_seconds() - compiled
        self._seconds["warm_up"] = max(0.0, time.monotonic() - began - spent)
        if spent > 0.0:
            self._seconds["compile"] = spent

    @property
    def compile_s(self) -> float:
        """Seconds that the warm-up spent in torch's compiler."""
        return self._seconds.get("compile", 0.0)

    def finished(self, process: Mapping[str, float]) -> dict[str, float]:
        """All stages, those that are over.

        Args:
            process: those of `worker_start.stages`.
        """
        cuda = early_cuda.seconds()
        beside = {} if cuda is None else {"cuda": cuda}
        stages = {**self._seconds, **beside, **process}
        log.info("start: %s", ", ".join(f"{name} {took:.2f} s" for name, took in stages.items()))
        return stages
