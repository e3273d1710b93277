"""Full collections of garbage visit only what has come since the last one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from malletrain.daemon.process.short_collections import MIN_WHOLE_INTERVAL_S, ShortCollections, no_collections


class _Ring:
    def __init__(self) -> None:
        self.itself = self


def test_what_lives_on_is_visited_once_a_minute_where_that_is_quick() -> None:
    now = 100.0
    collections = ShortCollections(lambda: now)
    kept = _Ring()
    collections.begin()
    try:
        dead = weakref.ref(kept)
        del kept
        gc.collect()
        assert dead() is not None, "it was alive at the last full collection, and is not visited"
        now += MIN_WHOLE_INTERVAL_S
        gc.collect()
        gc.collect()
        assert dead() is None, "a minute later all are"
        young = weakref.ref(_Ring())
        gc.collect()
        assert young() is None, "garbage since the last one is found at once"
    finally:
        collections.end()
    assert gc.get_freeze_count() == 0


class _SlowCollector:
    """A collector whose collections that visit all take a third of a second."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[str, dict[str, int]], Any]] = []
        self.now = 0.0
        self.is_frozen = False
        self.whole_at: list[float] = []

    def collect(self) -> int:
        for phase in ("start", "stop"):
            if phase == "stop" and not self.is_frozen:
                self.whole_at.append(self.now)
                self.now += 0.35
            for tell in tuple(self.callbacks):
                tell(phase, {"generation": 2})
        return 0

    def freeze(self) -> None:
        self.is_frozen = True

    def unfreeze(self) -> None:
        self.is_frozen = False


def test_visits_of_all_take_a_thousandth_of_the_time() -> None:
    collector = _SlowCollector()
    collections = ShortCollections(lambda: collector.now, collector)
    collections.begin()
    while collector.now < 3600:
        collector.now += 5.0
        collector.collect()
    between = [later - sooner for sooner, later in pairwise(collector.whole_at)]
    assert between
    assert all(350 <= each <= 370 for each in between), between


def test_none_are_made_while_it_starts_and_then_they_are_again() -> None:
    with no_collections():
        assert not gc.isenabled()
        with no_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
