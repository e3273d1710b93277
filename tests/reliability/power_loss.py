"""Power loss at any write of the journal: `python -m tests.reliability.power_loss [--images N --seed S]`.

A process appends to a journal, checkpoints it and deletes what is old, under strace(1). From its writes and syncs
come images of the disk as a power loss could have left it: what was synced is there, and of what was not, any part,
torn at sectors. Each image is opened as the next daemon would; every event that was acknowledged and is not old
must be in the journal, no transaction in part, and the database sound.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.domain.event import Event, PoolCounted
from malletrain.store.database import verify
from malletrain.store.errors import StoreError
from malletrain.store.journal import SqliteJournal
from malletrain.store.upkeep import DAY_S, Retention, Upkeep

#: A disk writes a sector whole or not at all (bytes).
SECTOR = 512
#: Events of one append.
BATCH = 3
#: Appends in a day, after which events are deleted.
APPENDS_A_DAY = 20
_START = 1_000_000.0
_CALLS = "pwrite64,write,fsync,fdatasync,ftruncate,unlink,unlinkat,rename,renameat,renameat2,openat,mkdir,mkdirat"
_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += +(-?\d+)")
_FD = re.compile(r"^(\d+)<([^>]*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


# --- What is recorded ---------------------------------------------------------------------------------------------


def write_journal(path: Path, appends: int) -> None:
    """Append, checkpoint and delete; writes the number of the last event after each append to standard output."""
    with SqliteJournal(path) as journal:
        upkeep = Upkeep(journal, Retention(notes_s=DAY_S))
        for number in range(appends):
            at = _START + number * DAY_S / APPENDS_A_DAY
            written = journal.append([Event(at, PoolCounted(idle=number), reason="x" * (number % 7) * 400)] * BATCH)
            os.write(1, b"%d\n" % (written[-1].seq or 0))
            if number % 17 == 16:
                with journal.outside_transactions() as inner:
                    inner.execute("PRAGMA wal_checkpoint(TRUNCATE)" if number % 2 else "PRAGMA wal_checkpoint")
            if number % 40 == 39:
                upkeep.tend(at)


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that succeeded: its name, the file, and what its kind needs of the rest."""

    name: str
    path: str
    data: bytes = b""
    offset: int = 0
    target: str = ""


def record(folder: Path, appends: int) -> list[Call]:
    """The calls of `write_journal` on files in `folder`, in order, and its acknowledgements as writes to "stdout".

    Raises:
        RuntimeError: strace(1) could not trace it, or it failed.
    """
    trace = folder.parent / "trace"
    here = "tests.reliability.power_loss"
    code = "from pathlib import Path; from {0} import write_journal; write_journal(Path({1!r}), {2})"
    options = f"-f -y -xx -s 1000000 -e trace={_CALLS} -e signal=none".split()
    command = ["strace", *options, "-o", str(trace), sys.executable]
    done = subprocess.run(
        [*command, "-c", code.format(here, str(folder / "journal.db"), appends)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError(f"strace: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    inside = f"{folder.resolve()}/"
    with trace.open() as lines:
        return [
            call
            for line in lines
            for call in _parse(line)
            if call.path == "stdout" or f"{call.path}/".startswith(inside)
        ]


def _parse(line: str) -> Iterator[Call]:
    match = _LINE.match(line)
    if match is None or int(match[3]) < 0:
        return
    name, arguments = match[1], match[2]
    texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments)]
    fd = _FD.match(arguments)
    path = _unescaped(fd[2]) if fd else ""
    match name:
        case "write" if fd is not None and fd[1] == "1":
            yield Call("ack", "stdout", texts[0])
        case "write":
            yield Call("append", path, texts[0][: int(match[3])])
        case "pwrite64":
            yield Call("pwrite", path, texts[0][: int(match[3])], int(arguments.rsplit(", ", 1)[1]))
        case "fsync" | "fdatasync":
            yield Call("sync", path)
        case "ftruncate":
            yield Call("truncate", path, offset=int(arguments.rsplit(", ", 1)[1]))
        case "unlink" | "unlinkat":
            yield Call("unlink", texts[-1].decode())
        case "rename" | "renameat" | "renameat2":
            yield Call("rename", texts[0].decode(), target=texts[1].decode())
        case "mkdir" | "mkdirat":
            yield Call("mkdir", texts[-1].decode())
        case "openat" if "O_CREAT" in arguments:
            yield Call("create", texts[-1].decode())
            if "O_TRUNC" in arguments:
                yield Call("truncate", texts[-1].decode())


def _unescaped(path: str) -> str:
    return bytes.fromhex(path.replace("\\x", "")).decode() if path.startswith("\\x") else path


# --- The disk -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _File:
    """What of a file is on the disk for sure, and the writes since (offset, bytes; no bytes: a truncation)."""

    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def whole(self) -> bytes:
        return _written(self.synced, self.pending)

    def sync(self) -> None:
        self.synced, self.pending = self.whole(), []

    def after_power_loss(self, rng: random.Random) -> bytes:
        """Any part of the writes since the last sync, each whole, torn or not at all."""
        kept: list[tuple[int, bytes | None]] = []
        share = rng.choice((0.0, 0.5, 0.9, 1.0))
        for offset, data in self.pending:
            if rng.random() >= share:
                continue
            if data is None or rng.random() < 0.7:
                kept.append((offset, data))
                continue
            sectors = range(offset - offset % SECTOR, offset + len(data), SECTOR)
            for begin in rng.sample(list(sectors), rng.randint(0, len(sectors))):
                first, last = max(begin, offset), min(begin + SECTOR, offset + len(data))
                kept.append((first, data[first - offset : last - offset]))
        return _written(self.synced, kept)


def _written(before: bytes, writes: Sequence[tuple[int, bytes | None]]) -> bytes:
    content = bytearray(before)
    for offset, data in writes:
        if data is None:
            content = content[:offset] + bytes(max(0, offset - len(content)))
            continue
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data
    return bytes(content)


class _Folder:
    """Its entries as the process sees them, and each state since it was synced; the first is on the disk for sure."""

    def __init__(self) -> None:
        self.states: list[dict[str, _File | _Folder]] = [{}]

    @property
    def now(self) -> dict[str, _File | _Folder]:
        return self.states[-1]

    def change(self, entries: Mapping[str, _File | _Folder]) -> None:
        self.states.append(dict(entries))

    def sync(self) -> None:
        self.states = [self.now]

    def after_power_loss(self, rng: random.Random, path: Path) -> Iterator[tuple[Path, bytes]]:
        for name, entry in rng.choice(self.states).items():
            if isinstance(entry, _File):
                yield path / name, entry.after_power_loss(rng)
            else:
                yield from entry.after_power_loss(rng, path / name)


class Disk:
    """A folder and all in it, as the process sees it and as it is on the disk, call by call."""

    def __init__(self, root: Path) -> None:
        self._root, self._top = root, _Folder()
        self.acknowledged = 0

    def apply(self, call: Call) -> None:
        """One more call."""
        if call.name == "ack":
            self.acknowledged = int(call.data)
            return
        path = Path(call.path)
        if path == self._root:
            self._top.sync()
            return
        folder, name = self._folder(path.parent), path.name
        entry = folder.now.get(name)
        match call.name:
            case "mkdir":
                folder.change({**folder.now, name: _Folder()})
            case "create" if entry is None:
                folder.change({**folder.now, name: _File()})
            case "truncate" if isinstance(entry, _File):
                entry.pending.append((call.offset, None))
            case "pwrite" if isinstance(entry, _File):
                entry.pending.append((call.offset, call.data))
            case "append" if isinstance(entry, _File):
                entry.pending.append((len(entry.whole()), call.data))
            case "sync" if entry is not None:
                entry.sync()
            case "unlink":
                folder.change({each: kept for each, kept in folder.now.items() if each != name})
            case "rename" if entry is not None:
                kept = {each: other for each, other in folder.now.items() if each != name}
                folder.change({**kept, Path(call.target).name: entry})

    def _folder(self, path: Path) -> _Folder:
        folder = self._top
        for name in path.relative_to(self._root).parts:
            inner = folder.now[name]
            if not isinstance(inner, _Folder):
                raise NotADirectoryError(f"{path}: {name} is a file")
            folder = inner
        return folder

    def after_power_loss(self, rng: random.Random) -> dict[Path, bytes]:
        """An image: of each folder a state since it was synced, of each file any part of what was not."""
        return dict(self._top.after_power_loss(rng, Path()))


# --- What must hold -----------------------------------------------------------------------------------------------


def fault(image: Mapping[Path, bytes], folder: Path, acknowledged: int) -> str:
    """What is wrong with the journal that the next daemon finds in an image; empty if nothing is.

    Args:
        image: files by their relative names.
        folder: where the image is laid out; made anew.
        acknowledged: the number of the last event that was.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in image.items():
        if name.name.endswith("-shm"):
            continue  # memory that processes share, made anew at the start
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    path = folder / "journal.db"
    if not path.exists():
        return f"there is no journal, and {acknowledged} events were acknowledged" if acknowledged else ""
    try:
        with SqliteJournal(path) as journal:
            numbers = {event.seq for event in journal.read()}
        with closing(sqlite3.connect(path)) as connection:
            verify(connection, path)
    except StoreError as error:
        return str(error)
    oldest = max(1, acknowledged + 1 - BATCH * APPENDS_A_DAY)
    lost = set(range(min(numbers | {oldest}), acknowledged + 1)) - numbers
    if lost:
        return f"events {sorted(lost)[:5]} were acknowledged, and are lost"
    if max(numbers, default=0) % BATCH:
        return "a transaction is there in part"
    return ""


def search(calls: Sequence[Call], source: Path, folder: Path, images: int, seed: int) -> list[str]:
    """Power is lost after calls drawn at random, `images` times; what is wrong each time."""
    rng = random.Random(seed)
    moments = sorted(rng.choices(range(1, len(calls) + 1), k=images))
    disk, done, found = Disk(source), 0, []
    for moment in moments:
        for call in calls[done:moment]:
            disk.apply(call)
        done = moment
        if why := fault(disk.after_power_loss(rng), folder, disk.acknowledged):
            found.append(
                f"after call {moment} of {len(calls)} ({calls[moment - 1].name} {calls[moment - 1].path}): {why}"
            )
    return found


def main() -> int:
    """As the module's docstring says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--appends", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        source = Path(name).resolve() / "source"
        source.mkdir()
        calls = record(source, asked.appends)
        found = search(calls, source, Path(name) / "image", asked.images, asked.seed)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"calls: {len(calls)}\nimages: {asked.images}\nbroken: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
