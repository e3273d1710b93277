"""The folder of a bag of independent items: which batch is whose, and which results are committed.

    items.json        first item, number of items, items of a batch: written once
    workers/NAME      one file a worker, touched while it lives
    claims/NUMBER     a hard link to the file of the worker that works on the batch
    results/NUMBER    the committed result of the batch

link(2) fails where the name exists, on NFS too, so a batch is claimed by one worker at a time and has one result,
written whole before it gets its name. A claim is the worker's own file: touching this renews all its claims. Times
are compared with each other as the file system gives them, never with a node's clock.

A batch whose worker is lost may be worked on twice, or more often; its result is committed once. Standard library
only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from malletrain.elastic.errors import ItemsError

#: One file a batch: larger folders are slow to list on parallel file systems.
MAX_BATCHES = 100_000


@dataclass(frozen=True, slots=True)
class ItemRange:
    """Items `first` to `first + count - 1`, in batches of `batch`; the last batch may be shorter."""

    first: int
    count: int
    batch: int

    @property
    def batches(self) -> int:
        return -(-self.count // self.batch)

    def of(self, number: int) -> range:
        """The items of batch `number`, from 0."""
        start = number * self.batch
        return range(self.first + start, self.first + min(self.count, start + self.batch))


class ItemFolder:
    """One worker's view of the folder.

    Args:
        path: the folder, on a file system that all nodes share. It is made if it is not there.
        items: what is to be done; the same for all workers.
        lease_s: seconds without a touch after which a worker counts as lost.

    Raises:
        ItemsError: the folder belongs to other items, or there are too many batches.
        OSError: the folder cannot be made or written.
    """

    def __init__(self, path: Path, items: ItemRange, lease_s: float) -> None:
        if items.batches > MAX_BATCHES:
            least = -(-items.count // MAX_BATCHES)
            raise ItemsError(f"{items.batches} batches are more than {MAX_BATCHES}: give batch={least} or more")
        self.path = path
        self.items = items
        self._lease_s = lease_s
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        for name in ("workers", "claims", "results"):
            (path / name).mkdir(parents=True, exist_ok=True)
        self._put(path / "items.json", (json.dumps(asdict(items)) + "\n").encode())
        before = read_items(path)
        if before != items:
            raise ItemsError(
                f"{path} holds items {before.first} to {before.first + before.count - 1} in batches of "
                f"{before.batch}: give the same numbers, or another folder"
            )
        self._own = path / "workers" / self._name
        self._own.write_text(f"{self._name}\n")
        self._inode = self._own.stat().st_ino

    def _put(self, path: Path, data: bytes) -> bool:
        """Write a file whole, bring it to the disk, and give it its name; False if that is taken."""
        part = path.with_name(f".{path.name}-{self._name}")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(part, path)
            except FileExistsError:
                # NFS repeats a request whose answer was lost: a second name means that this very file was linked.
                return part.stat().st_nlink == 2
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            return True
        finally:
            part.unlink(missing_ok=True)

    # --- claims -----------------------------------------------------------------------------------------------

    def touch(self) -> float:
        """Renew all claims of this worker; returns the present time of the file system, in seconds."""
        os.utime(self._own)
        return self._own.stat().st_mtime

    def claim(self, number: int) -> bool:
        """Claim a batch; False if another worker has it."""
        try:
            os.link(self._own, self._claim(number))
        except FileExistsError:
            return False
        return True

    def take_over(self, number: int) -> bool:
        """Claim a batch whose worker is lost; False if its worker lives, or another was faster."""
        claim, now = self._claim(number), self.touch()
        if not self._is_stale(claim, now):
            return False
        # Where two do this in the same moment, both may work on the batch: one result counts.
        claim.unlink(missing_ok=True)
        return self.claim(number)

    def release(self, number: int) -> None:
        """Give a batch back, unless another worker has taken it over."""
        claim = self._claim(number)
        with contextlib.suppress(FileNotFoundError):
            if claim.stat().st_ino == self._inode:
                claim.unlink()

    def claimed(self) -> set[int]:
        """The batches that some worker has claimed."""
        return _numbers(self.path / "claims")

    def close(self) -> None:
        """Remove this worker's file. Its claims must have been released."""
        self._own.unlink(missing_ok=True)

    def _claim(self, number: int) -> Path:
        return self.path / "claims" / str(number)

    def _is_stale(self, claim: Path, now: float) -> bool:
        try:
            # Opened, since NFS asks the server for the times of a file at each open, and not at each stat.
            with claim.open("rb") as file:
                return now - os.fstat(file.fileno()).st_mtime > self._lease_s
        except FileNotFoundError:
            return False

    # --- results ----------------------------------------------------------------------------------------------

    def commit(self, number: int, data: bytes) -> bool:
        """Make `data` the result of a batch; False if the batch has one already, which stays.

        On return the result is on the disk and has its name.
        """
        return self._put(self._result(number), data)

    def has_result(self, number: int) -> bool:
        return self._result(number).exists()

    def result(self, number: int) -> bytes:
        """The result of a batch. Raises `ItemsError`: it is not committed."""
        try:
            return self._result(number).read_bytes()
        except FileNotFoundError as error:
            items = self.items.of(number)
            raise ItemsError(f"items {items[0]} to {items[-1]} have no result in {self.path} yet") from error

    def committed(self) -> set[int]:
        """The batches that have a result."""
        return _numbers(self.path / "results")

    def _result(self, number: int) -> Path:
        return self.path / "results" / str(number)


def read_items(path: Path) -> ItemRange:
    """What the folder `path` is for. Raises `ItemsError`: it is no folder of items."""
    try:
        raw = json.loads((path / "items.json").read_text())
        return ItemRange(int(raw["first"]), int(raw["count"]), int(raw["batch"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ItemsError(f"{path} is no folder of items ({error}): give another one") from error


def committed_items(path: Path) -> tuple[int, int]:
    """How many items and how many batches have a result in the folder `path`. Raises `ItemsError`: it is no folder of
    items."""
    items = read_items(path)
    done = _numbers(path / "results")
    return sum(len(items.of(number)) for number in done), len(done)


def _numbers(folder: Path) -> set[int]:
    with os.scandir(folder) as entries:
        return {int(entry.name) for entry in entries if entry.name.isascii() and entry.name.isdecimal()}
