"""When the daemon has an image of its ledger made, and how: by a process beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence

from malletrain.store.errors import StoreError
from malletrain.store.journal import SqliteJournal
from malletrain.store.ledger_image import LedgerImage, keep_image

#: Events after the last image from which on another one is made: a start folds so many in half a second.
EVENTS_BETWEEN_IMAGES = 30_000

#: An image is not begun before so many times as long have passed as the one before took: it may cost a fiftieth of a
#: core. At the first start with a year's journal it takes a minute or two.
REST_FACTOR = 50.0

#: Seconds after which the process is ended: the image before stays.
MAX_IMAGE_S = 1800.0

COMMAND = (sys.executable, "-P", "-m", "malletrain.daemon.image.image_main")


class ImageMaker:
    """Has images made of one journal. Used by one thread, which merges and archives nothing meanwhile."""

    def __init__(
        self,
        journal: SqliteJournal,
        imaged: int,
        elapsed: Callable[[], float],
        command: Sequence[str] = COMMAND,
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

        Raises:
            StoreError: it cannot be made or kept; the message says why. The image before is still there.
        """
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
        try:
            process = subprocess.Popen(
                [*self._command, str(self._journal.path.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
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
        if process.returncode != 0:
            last = err.decode(errors="replace").strip().splitlines()[-1:]
            why = last[0] if last else f"exit status {process.returncode}"
            raise StoreError(f"the image of the ledger was not made: {why}")
        head, _, state = out.partition(b"\n")
        if not head:
            return None
        try:
            said = json.loads(head)
            return LedgerImage(int(said["seq"]), str(said["fold"]), state)
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"the image of the ledger was not made: {head[:80]!r} came in its place") from error
