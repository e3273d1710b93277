"""What a daemon knows when it starts: its journal, folded."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.loop.ledger import Ledger
from malletrain.loop.membership.next_world import LastWorlds, last_worlds
from malletrain.store.start import FOLDED_WHOLE, what_counts

#: Events that are folded in one go: what is known of worlds is copied for each.
_BATCH_EVENTS = 50_000


@dataclass(frozen=True, slots=True)
class FirstFold:
    """The ledger and the last worlds, and from how many events they were folded."""

    events: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    worlds: Mapping[int, LastWorlds] = field(default_factory=dict)


def folded(journal: Path, whole: int = FOLDED_WHOLE) -> FirstFold:
    """Fold the journal, as `malletrain.store.start` reads it. Raises StoreError: it cannot be read."""
    ledger, count = Ledger(), 0
    worlds: dict[int, LastWorlds] = {}
    old_stays, events = what_counts(journal, whole)
    for stay in old_stays:
        ledger.usage.add(*stay)
    while batch := list(itertools.islice(events, _BATCH_EVENTS)):
        ledger.apply(batch)
        worlds, count = last_worlds(batch, worlds), count + len(batch)
    return FirstFold(count, ledger, worlds)
