"""The image of the ledger: what a start knows, folded from an image and the events after it, or from all events; and
the making of the next image, now and then, by a process beside the daemon: `python -m ... JOURNAL`.

Both ways give the same state: an image is folded from the journal alone, by the same code, and never from a running
daemon, which has seen more than it wrote down. Folding in the daemon itself would hold Python's lock while workers
wait."""

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import malletrain
from malletrain.daemon.image.state_codec import NotEncodable, decoded, encoded
from malletrain.domain.errors import MalletrainError
from malletrain.domain.event import Event
from malletrain.loop.ledger import Ledger
from malletrain.loop.membership.next_world import LastWorlds, last_worlds
from malletrain.store.errors import StoreError
from malletrain.store.journal import SqliteJournal, read_events
from malletrain.store.ledger_image import LedgerImage, image_of, keep_image

#: Jobs that ended so long (seconds) before an image's last event are not in it: the daemon forgets them, too.
REMEMBERED_S = 86_400.0

#: Events that are folded in one go: what is known of worlds is copied for each.
_BATCH_EVENTS = 50_000

#: Packages whose code says what is folded from a journal.
_ROOMS = ("domain", "sizing", "learn", "decide", "loop", "store")

#: Events after the last image from which on another one is made: a start folds so many in half a second.
EVENTS_BETWEEN_IMAGES = 30_000

#: An image is not begun before so many times as long have passed as the one before took: it may cost a fiftieth of a
#: core. At the first start with a year's journal it takes a minute or two.
REST_FACTOR = 50.0

#: Seconds after which the process is ended: the image before stays.
MAX_IMAGE_S = 1800.0

#: Of nice(2): the lowest.
_NICENESS = 19

COMMAND = (sys.executable, "-P", "-m", "malletrain.daemon.image.image_maker")


@dataclass(frozen=True, slots=True)
class FoldedState:
    """The ledger and the last worlds, folded from the events up to `seq`."""

    seq: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    worlds: Mapping[int, LastWorlds] = field(default_factory=dict)


@cache
def fold_name() -> str:
    """The name of this release's fold: a digest of the code that folds. An image of another one is not used, since it
    may have kept less, or otherwise.
    Raises NotEncodable: the code is not there to be read."""
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
    """A state as an image. Raises NotEncodable: it holds something that an image cannot keep."""
    return LedgerImage(state.seq, fold_name(), encoded((state.ledger, state.worlds)))


def from_image(image: LedgerImage) -> FoldedState:
    """The state that an image keeps. Raises NotEncodable: it is not one of this release."""
    match decoded(image.state):
        case (Ledger(last_seq=image.seq) as ledger, dict() as worlds):
            return FoldedState(image.seq, ledger, worlds)
        case _:
            raise NotEncodable(f"the image of the ledger is not one up to event {image.seq}")


def last_image(journal: Path) -> FoldedState:
    """The state as the journal's image has it, or that before the first event where it has none that can be used.
    Raises StoreError: the journal cannot be read."""
    try:
        image = image_of(journal, fold_name())
        return FoldedState() if image is None else from_image(image)
    except NotEncodable:
        return FoldedState()


def next_image(journal: Path) -> LedgerImage | None:
    """The image of all that the journal has now; None where nothing has come since the last. Nothing may be merged or
    deleted there meanwhile.
    Raises NotEncodable: the state holds something that an image cannot keep; StoreError: the journal cannot be
    read."""
    begun = last_image(journal)
    state = folded_on(begun, read_events(journal, after=begun.seq))
    if state.seq == begun.seq:
        return None
    ledger = state.ledger
    ledger.forget_over(ledger.last_at - REMEMBERED_S)
    worlds = {job: worlds for job, worlds in state.worlds.items() if job in ledger.jobs()}
    return to_image(replace(state, worlds=worlds))


class ImageMaker:
    """Has images made of one journal. Used by one thread, which merges and deletes nothing meanwhile."""

    def __init__(
        self, journal: SqliteJournal, imaged: int, elapsed: Callable[[], float], command: Sequence[str] = COMMAND
    ) -> None:
        """`imaged`: the number of the last event that is in the journal's image; 0 where it has none that can be
        used. `elapsed`: a clock that never jumps, in seconds."""
        self._journal = journal
        self._imaged = imaged
        self._elapsed = elapsed
        self._command = command
        self._not_before = float("-inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def make_if_due(self) -> LedgerImage | None:
        """Make an image if enough has come since the last one; None if it is not time, or this daemon ends.
        Raises StoreError: it cannot be made or kept; the message says why. The image before is still there."""
        if self._journal.last - self._imaged < EVENTS_BETWEEN_IMAGES or self._elapsed() < self._not_before:
            return None
        begun = self._elapsed()
        try:
            image = self._folded()
            if image is not None:
                keep_image(self._journal, image)
                self._imaged = image.seq
        finally:
            self._not_before = self._elapsed() + REST_FACTOR * (self._elapsed() - begun)
        return image

    def end(self) -> None:
        """The daemon ends: an image that is being made is given up. From any thread."""
        self._ended = True
        if (process := self._process) is not None:
            process.kill()

    def _folded(self) -> LedgerImage | None:
        command = [*self._command, str(self._journal.path.absolute())]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
            )
        except OSError as error:
            raise StoreError(f"an image of the ledger cannot be made: {error}") from error
        with process:
            self._process = process
            if self._ended:
                process.kill()
            try:
                out, err = process.communicate(timeout=MAX_IMAGE_S)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise StoreError(f"the image of the ledger was not made within {MAX_IMAGE_S:.0f} s") from error
            finally:
                self._process = None
        if self._ended:
            return None
        head, _, state = out.partition(b"\n")
        try:
            if process.returncode == 0:
                return LedgerImage(**json.loads(head), state=state) if head else None
        except (ValueError, TypeError):
            err = head[:80]
        last = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        raise StoreError(f"the image of the ledger was not made: {last[0]}")


def main(journal: Path) -> int:
    """Fold the image of `journal` at the lowest priority, and write it to the standard output: a line of JSON (`seq`,
    `fold`) and the state; nothing where no event has come since the last image. The exit status."""
    os.nice(_NICENESS)
    try:
        image = next_image(journal)
    except MalletrainError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    if image is not None:
        sys.stdout.buffer.write(json.dumps({"seq": image.seq, "fold": image.fold}).encode() + b"\n" + image.state)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
