"""Independent items, each done once: batch inference, simulations, conversions (`mtbatch --elastic=tasks`).

    with elastic.Items("out", 10_000, batch=50) as items:
        for batch in items:
            batch.commit(work_on(batch.items))

Any number of processes on any nodes run this at once, in a pilot or on a laptop; they meet in the folder alone
(`data.item_folder`). Standard library only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from malletrain.elastic.data.item_folder import ItemFolder, ItemRange
from malletrain.elastic.errors import ItemsError, Released

log = logging.getLogger("malletrain.elastic")

#: A worker touches its file so often within its lease.
TOUCHES_PER_LEASE = 6

#: Seconds between two looks at the folder while others work on the last batches.
LOOK_S = 0.5


@dataclass(slots=True, eq=False)
class ItemBatch:
    """Items to work on: `items` are their numbers. Commit it before the next one is taken."""

    number: int
    items: range
    _folder: ItemFolder = field(repr=False)
    _guard: _LeaveSignal = field(repr=False)
    committed: bool = False

    def commit(self, result: bytes = b"") -> bool:
        """Store the batch's result. On return it is on the disk.

        Returns:
            Whether this is the batch's result. False if another worker, which took this one for lost, was first: its
            result stays.
        """
        with self._guard.held():
            self.committed = True
            return self._folder.commit(self.number, result)


class Items:
    """A range of independent items that any number of workers share. Use it in a `with` statement, and iterate once.

    The loop ends when every item is committed, by whichever worker. A worker that was asked to leave (SIGTERM)
    finishes its batch within `finish_s`, or gives it back, and ends the process with status 143: what follows the
    loop runs only when all is done, in each worker that is left.

    Each batch has one result. A batch whose worker was lost, or had to give it back, is worked on again by another,
    so work with effects elsewhere must bear being repeated.

    Args:
        folder: where the results are kept, on a file system that all nodes share and that has hard links. A later run
            goes on from there.
        items: how many, counted from 0, or a range with step 1.
        batch: items that are claimed and committed together: seconds of work are a good size.
        lease_s: seconds after which a worker that was not seen counts as lost. Longer than the file system's pauses.
        finish_s: seconds that a worker asked to leave may take to finish its batch.

    Raises:
        ItemsError: an argument is wrong, or the folder holds other items.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        items: int | range,
        *,
        batch: int = 1,
        lease_s: float = 60.0,
        finish_s: float = 5.0,
    ) -> None:
        numbers = range(items) if isinstance(items, int) else items
        if numbers.step != 1 or not len(numbers):
            raise ItemsError(f"items={items!r}: give a number above 0, or a range with step 1")
        if batch < 1:
            raise ItemsError(f"batch={batch}: give a number above 0")
        if not (lease_s >= 1 and finish_s >= 0):
            raise ItemsError(f"lease_s={lease_s}, finish_s={finish_s}: give at least 1 s and 0 s")
        self._range = ItemRange(numbers.start, len(numbers), batch)
        self._path = Path(folder).absolute()
        self._lease_s = lease_s
        self._signal = _LeaveSignal(finish_s)
        self._folder: ItemFolder | None = None
        self._ended = threading.Event()
        self._holds: ItemBatch | None = None
        self._order = random.Random()

    def __enter__(self) -> Self:
        self._folder = ItemFolder(self._path, self._range, self._lease_s)
        self._ended.clear()
        threading.Thread(target=self._keep_claims, args=(self._folder,), name="malletrain-items", daemon=True).start()
        self._signal.begin()
        _say_ready(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal.end()
        self._ended.set()
        self._give_back()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def __iter__(self) -> Iterator[ItemBatch]:
        """Batches that this worker has claimed, one after the other. Raises `ItemsError`: outside of the `with`
        statement, or the last batch was not committed; `Released`: this worker was asked to leave."""
        folder = self._open()
        while (number := self._next(folder)) is not None:
            self._holds = batch = ItemBatch(number, self._range.of(number), folder, self._signal)
            yield batch
            if not batch.committed:
                raise ItemsError(
                    f"items {batch.items[0]} to {batch.items[-1]} were not committed: call batch.commit()"
                )
            self._give_back()

    def results(self) -> Iterator[tuple[range, bytes]]:
        """Each batch's items and result, in order. Use it after the loop, or in a later process, in a `with`. Raises
        `ItemsError`: outside of the `with` statement, or a batch is not committed yet."""
        folder = self._open()
        for number in range(self._range.batches):
            yield self._range.of(number), folder.result(number)

    def _open(self) -> ItemFolder:
        if self._folder is None:
            raise ItemsError("use Items in a `with` statement: with elastic.Items(...) as items:")
        return self._folder

    def _next(self, folder: ItemFolder) -> int | None:
        """Claim a batch; None once all are committed."""
        while left := set(range(self._range.batches)) - folder.committed():
            self._signal.check()
            free = sorted(left - folder.claimed())
            start = self._order.randrange(len(free) or 1)  # workers begin in different places
            for number in [*free[start:], *free[:start]]:
                if folder.claim(number):
                    if not folder.has_result(number):
                        return number
                    folder.release(number)
            for number in [] if free else sorted(left):
                if folder.take_over(number):
                    log.warning("batch %d is taken over: its worker was not seen for %g s", number, self._lease_s)
                    return number
            if not free:
                self._signal.wait(LOOK_S)
        self._signal.check()
        return None

    def _give_back(self) -> None:
        if self._holds is not None and self._folder is not None:
            self._folder.release(self._holds.number)
        self._holds = None

    def _keep_claims(self, folder: ItemFolder) -> None:
        while not self._ended.wait(self._lease_s / TOUCHES_PER_LEASE):
            try:
                folder.touch()
            except OSError as error:
                if not self._ended.is_set():
                    log.warning("the claims in %s could not be renewed: %s", folder.path, error)


class _LeaveSignal:
    """SIGTERM as a request to finish the batch: a process that has not ended `finish_s` later is ended in the midst
    of it, but never in the midst of a commit."""

    def __init__(self, finish_s: float) -> None:
        self._finish_s = finish_s
        self._asked = threading.Event()
        self._until = 0.0
        self._holds = 0
        self._before: object = None
        self._timer: threading.Timer | None = None
        self._ours = False

    def begin(self) -> None:
        """Handle SIGTERM from now on, if this is the main thread: Python allows no handler in others."""
        if threading.current_thread() is threading.main_thread():
            self._before, self._ours = signal.signal(signal.SIGTERM, self._on_signal), True

    def end(self) -> None:
        """Handle it as before."""
        if self._timer is not None:
            self._timer.cancel()
        if self._ours:
            self._ours = False
            signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]  # what signal() returned

    def check(self) -> None:
        """Raise `Released` if this worker was asked to leave."""
        if self._asked.is_set():
            raise Released("asked to leave")

    def wait(self, seconds: float) -> None:
        """Wait, shorter if this worker is asked to leave."""
        self._asked.wait(seconds)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What runs in here is not ended in its midst."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._asked.is_set() and time.monotonic() >= self._until:
            raise Released("asked to leave")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._asked.is_set():
            self._until = time.monotonic() + self._finish_s
            self._asked.set()
            self._timer = threading.Timer(self._finish_s, os.kill, (os.getpid(), signal.SIGTERM))
            self._timer.daemon = True
            self._timer.start()
        elif time.monotonic() >= self._until and not self._holds:
            raise Released("asked to leave, and the batch was not finished in time")


def _say_ready(folder: Path) -> None:
    """Tell the launcher, if there is one, that this worker begins, and in which folder."""
    mark = os.environ.get("MALLETRAIN_READY")
    if not mark:
        return
    part = Path(f"{mark}.{os.getpid()}")
    part.write_text(str(folder))
    part.replace(mark)
