"""Full collections of garbage visit only what has come since the last whole one."""

from __future__ import annotations

import gc
import weakref

from malletrain.daemon.process.short_collections import collect_and_freeze, no_collections


class _Ring:
    def __init__(self) -> None:
        self.itself = self


def test_what_lives_on_is_visited_by_whole_collections_alone() -> None:
    kept = _Ring()
    collect_and_freeze()
    try:
        dead = weakref.ref(kept)
        del kept
        gc.collect()
        assert dead() is not None, "it was alive at the last whole collection, and is not visited"
        young = weakref.ref(_Ring())
        gc.collect()
        assert young() is None, "garbage since is found at once"
        collect_and_freeze()
        assert dead() is None
    finally:
        gc.unfreeze()


def test_none_are_made_while_it_starts_and_then_they_are_again() -> None:
    with no_collections():
        assert not gc.isenabled()
        with no_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
