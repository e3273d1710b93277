"""Full collections of garbage visit only what has come since the last one."""

from __future__ import annotations

import gc
import weakref

from malletrain.daemon.short_collections import WHOLE_INTERVAL_S, ShortCollections, no_collections


class _Ring:
    def __init__(self) -> None:
        self.itself = self


def test_what_lives_on_is_visited_once_an_hour() -> None:
    now = 100.0
    collections = ShortCollections(lambda: now)
    kept = _Ring()
    collections.begin()
    try:
        dead = weakref.ref(kept)
        del kept
        gc.collect()
        assert dead() is not None, "it was alive at the last full collection, and is not visited"
        now += WHOLE_INTERVAL_S
        gc.collect()
        gc.collect()
        assert dead() is None, "an hour later all are"
        young = weakref.ref(_Ring())
        gc.collect()
        assert young() is None, "garbage since the last one is found at once"
    finally:
        collections.end()
    assert gc.get_freeze_count() == 0


def test_none_are_made_while_it_starts_and_then_they_are_again() -> None:
    with no_collections():
        assert not gc.isenabled()
        with no_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
