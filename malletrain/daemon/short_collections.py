"""Python's garbage collection without its long pauses.

A full collection visits every object and holds Python's lock meanwhile: .35 s with 10,000 nodes and 1,000 jobs
(`python -m scripts.bench.load`), in which no request is answered. Nearly all of these objects live on. So what a full
collection leaves is frozen, and the next one visits only what has come since. Once an hour one visits all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

#: Seconds between two collections that visit every object.
WHOLE_INTERVAL_S = 3600.0


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
        self._whole_at = 0.0

    def begin(self) -> None:
        """To be called once, when the daemon has read its journal."""
        self._whole_at = self._elapsed() + WHOLE_INTERVAL_S
        self._collector.collect()
        self._collector.freeze()
        self._collector.callbacks.append(self._after)

    def end(self) -> None:
        """Leaves collection as Python has it. Idempotent, and does nothing where it never began."""
        if self._after in self._collector.callbacks:
            self._collector.callbacks.remove(self._after)
            self._collector.unfreeze()

    def _after(self, phase: str, info: Mapping[str, int]) -> None:
        if phase != "stop" or info["generation"] < 2:
            return
        if self._elapsed() < self._whole_at:
            self._collector.freeze()
            return
        self._whole_at = self._elapsed() + WHOLE_INTERVAL_S
        self._collector.unfreeze()  # the next one visits all
