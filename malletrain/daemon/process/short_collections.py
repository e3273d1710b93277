"""Python's garbage collection without its long pauses.

A full collection visits every object and holds Python's lock meanwhile: .35 s with 10,000 nodes and 1,000 jobs
(`python -m scripts.bench.load`), in which no request is answered. Nearly all of these objects live on. So what a full
collection leaves is frozen, and the next one visits only what has come since. Garbage of frozen objects that hold one
another is found by those that visit all, which come as often as takes a thousandth of the time: every six minutes at
that size, every minute on a small site.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

#: Between two collections that visit every object pass at least so many seconds, and so many times what one takes.
MIN_WHOLE_INTERVAL_S, WHOLE_INTERVAL_TIMES = 60.0, 1000.0


class Collector(Protocol):
    """The functions of the module `gc` that are used here."""

    callbacks: list[Callable[[str, dict[str, int]], Any]]

    def collect(self) -> int: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...


@contextmanager
def no_collections() -> Iterator[None]:
    """Without collections meanwhile: for a start, whose objects nearly all live on. Those that Python makes while it
    imports the daemon take an eighth of the processor time, and find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class ShortCollections:
    """Freezes what each full collection leaves, from `begin` on.

    Args:
        elapsed: seconds of a clock that never jumps.
        collector: the module `gc`.
    """

    def __init__(self, elapsed: Callable[[], float], collector: Collector = gc) -> None:  # type: ignore[assignment]
        self._elapsed, self._collector = elapsed, collector
        self._begun_at = self._whole_at = 0.0
        self._visits_all = False

    def begin(self) -> None:
        """To be called once, when the daemon has read its journal."""
        self._begun_at = self._elapsed()
        self._collector.collect()
        self._freeze(whole=True)
        self._collector.callbacks.append(self._around)

    def end(self) -> None:
        """Leaves collection as Python has it. Idempotent, and does nothing where it never began."""
        if self._around in self._collector.callbacks:
            self._collector.callbacks.remove(self._around)
            self._collector.unfreeze()

    def _around(self, phase: str, info: Mapping[str, int]) -> None:
        """Called by the collector before and after each collection."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._begun_at = self._elapsed()
            return
        if self._visits_all or self._begun_at < self._whole_at:
            self._freeze(whole=self._visits_all)
            return
        self._visits_all = True
        self._collector.unfreeze()  # the next one visits all

    def _freeze(self, *, whole: bool) -> None:
        self._collector.freeze()
        if whole:
            now = self._elapsed()
            self._whole_at = now + max(MIN_WHOLE_INTERVAL_S, WHOLE_INTERVAL_TIMES * (now - self._begun_at))
            self._visits_all = False
