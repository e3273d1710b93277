"""What a start knows from the journal: folded from an image and the events after it, or from all events.

Both give the same state: an image is folded from the journal alone, by the same code, and never from a running
daemon, which has seen more than it wrote down.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import malletrain
from malletrain.daemon.image.state_codec import NotEncodable, decoded, encoded
from malletrain.domain.event import Event
from malletrain.loop.ledger import Ledger
from malletrain.loop.membership.next_world import LastWorlds, last_worlds
from malletrain.store.event_reader import read_events
from malletrain.store.ledger_image import LedgerImage, image_of

#: Jobs that ended so long (seconds) before an image's last event are not in it: the daemon forgets them, too.
REMEMBERED_S = 86_400.0

#: Events that are folded in one go: what is known of worlds is copied for each.
_BATCH_EVENTS = 50_000

#: Packages whose code says what is folded from a journal.
_ROOMS = ("domain", "sizing", "learn", "decide", "loop", "store")


@dataclass(frozen=True, slots=True)
class FoldedState:
    """The ledger and the last worlds, folded from the events up to `seq`."""

    seq: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    worlds: LastWorlds = field(default_factory=LastWorlds)


@cache
def fold_name() -> str:
    """The name of this release's fold: a digest of the code that folds. An image of another one is not used, since it
    may have kept less, or otherwise.

    Raises:
        NotEncodable: the code is not there to be read.
    """
    root = Path(malletrain.__file__).parent
    digest = hashlib.sha256(f"{sys.version_info[:2]} {malletrain.__version__}".encode())
    for room in _ROOMS:
        sources = sorted((root / room).rglob("*.py"))
        if not sources:
            raise NotEncodable(f"{root / room}: the code is not there to be read")
        for path in sources:
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def folded_on(begun: FoldedState, events: Iterable[Event]) -> FoldedState:
    """The state after these events, which follow those of `begun`; its ledger is taken over, and changed in place."""
    ledger, worlds, seq, rest = begun.ledger, begun.worlds, begun.seq, iter(events)
    while batch := list(itertools.islice(rest, _BATCH_EVENTS)):
        ledger.apply(batch)
        worlds = last_worlds(batch, worlds)
        seq = batch[-1].seq
    return FoldedState(seq, ledger, worlds)


def to_image(state: FoldedState) -> LedgerImage:
    """A state as an image.

    Raises:
        NotEncodable: it holds something that an image cannot keep.
    """
    return LedgerImage(state.seq, fold_name(), encoded((state.ledger, state.worlds)))


def from_image(image: LedgerImage) -> FoldedState:
    """The state that an image keeps.

    Raises:
        NotEncodable: it is not one of this release.
    """
    match decoded(image.state):
        case (Ledger(last_seq=image.seq) as ledger, LastWorlds() as worlds):
            return FoldedState(image.seq, ledger, worlds)
        case _:
            raise NotEncodable(f"the image of the ledger is not one up to event {image.seq}")


def last_image(journal: Path) -> FoldedState:
    """The state as the journal's image has it, or that before the first event where it has none that can be used.

    Raises:
        StoreError: the journal cannot be read.
    """
    try:
        image = image_of(journal, fold_name())
        return FoldedState() if image is None else from_image(image)
    except NotEncodable:
        return FoldedState()


def next_image(journal: Path) -> LedgerImage | None:
    """The image of all that the journal has now; None where nothing has come since the last. Nothing may be merged or
    archived there meanwhile.

    Raises:
        NotEncodable: the state holds something that an image cannot keep.
        StoreError: the journal cannot be read.
    """
    begun = last_image(journal)
    state = folded_on(begun, read_events(journal, after=begun.seq))
    if state.seq == begun.seq:
        return None
    ledger = state.ledger
    ledger.forget_over(ledger.last_at - REMEMBERED_S)
    return to_image(replace(state, worlds=state.worlds.of_jobs(ledger.jobs())))
