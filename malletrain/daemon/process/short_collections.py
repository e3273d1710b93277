"""Python's garbage collection without its long pauses.

A full collection visits every object and holds Python's lock meanwhile: .35 s with 10,000 nodes and 1,000 jobs
(`python -m scripts.bench.load`), in which no request is answered. Nearly all of these objects live on. So one that
visits all is made once an hour, and what it leaves is frozen: those in between visit only what has come since."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds between two collections that visit every object.
WHOLE_INTERVAL_S = 3600.0


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


def collect_and_freeze() -> None:
    """Collect among all objects, and leave those that live on alone until the next time."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
