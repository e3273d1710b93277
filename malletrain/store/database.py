"""The SQLite file: how it is opened, locked, kept durable, and copied while it is written (sqlite.org/backup.html).

WAL with synchronous=FULL: an append that has returned survives a crash of the machine (sqlite.org/pragma.html,
"synchronous"); readers never wait for the writer. WAL needs a local file system (sqlite.org/wal.html)."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import QueuePool

from malletrain.store.errors import DiskFull, JournalInUse, StoreError

#: Seconds that a statement waits for a lock that another program (an admin's sqlite3) holds.
BUSY_TIMEOUT_S = 10.0

#: SQLite of RHEL 8, the oldest that is served.
MINIMUM_SQLITE = (3, 26, 0)

#: File systems on which WAL's shared memory does not work.
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "glusterfs", "fuse.glusterfs", "fuse.sshfs"}
)


def writer_engine(path: Path) -> Engine:
    """The one connection that writes; every transaction starts as BEGIN IMMEDIATE."""
    # The first takes effect on a new file alone, and before WAL.
    pragmas = ("auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")
    return _engine(f"file:{quote(str(path))}?mode=rw", 1, "BEGIN IMMEDIATE", *pragmas)


def reader_engine(path: Path, connections: int = 4) -> Engine:
    """Connections that cannot write, for people's views."""
    return _engine(f"file:{quote(str(path))}?mode=ro", connections, "BEGIN", "query_only=ON")


def _engine(uri: str, pool_size: int, begin: str, *pragmas: str) -> Engine:
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        wanted = ".".join(map(str, MINIMUM_SQLITE))
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: this Python needs SQLite {wanted} or newer")

    def connect() -> sqlite3.Connection:
        # Transactions are begun by hand below: sqlite3's own guess begins them too late, and never IMMEDIATE.
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=pool_size, max_overflow=0)

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """SQLite's complaints as errors that say what to do."""
    try:
        yield
    except (DatabaseError, sqlite3.DatabaseError) as error:
        words = str(getattr(error, "orig", None) or error)
        if "full" in words:
            raise DiskFull(f"{path}: {words}: make room on the file system; nothing of this was written") from error
        raise StoreError(
            f"{path}: {words}: look whether another program has it open, whether file and folder belong to "
            "malletraind's user, and at the disk; move a damaged file away, and restore the last backup"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[Connection]:
    """One look at the journal at `path`, in a transaction that does not disturb the daemon that may be writing it.
    Raises StoreError: it cannot be read."""
    engine = reader_engine(path, connections=1)
    try:
        with storage_errors(path), engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def create_file(path: Path, mode: int) -> None:
    """Make the database file, if it is not there, with its final rights: SQLite gives the same to its side files.
    Raises StoreError: the folder is missing, not writable, or on a network file system."""
    folder = path.parent
    if not folder.is_dir():
        raise StoreError(f"{folder}: no such folder: create it for the user of malletraind, with mode 0750")
    kind = file_system_of(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(f"{folder}: is on {kind}; the journal must be on a local disk (SQLite's WAL needs one)")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}: the user of malletraind must be able to write it") from error
    try:
        if os.fstat(descriptor).st_size == 0:
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    _sync(folder)


def file_system_of(path: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """The type of the file system that holds `path` (proc(5), mountinfo); empty where it cannot be determined."""
    try:
        lines = Path(mounts).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    real, best, kind = path.resolve(), -1, ""
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5 or not after:
            continue
        mount = Path(fields[4].replace("\\040", " "))
        if real.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), after.split()[0]
    return kind


class WriterLock:
    """At most one daemon writes a journal: an flock(2) on a file beside it, gone with the process that holds it."""

    def __init__(self, path: Path, mode: int) -> None:
        """Take the lock. Raises JournalInUse: another process holds it."""
        self._file = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        except OSError as error:
            raise StoreError(
                f"{self._file}: {error.strerror}: the user of malletraind must be able to write it"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            who = f" (pid {holder})" if holder.isdigit() else ""
            raise JournalInUse(f"{path}: another malletraind{who} writes this journal: stop it first") from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back. Idempotent; the file stays, since removing it would race with the next holder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def copy(source: Path, target: Path) -> None:
    """Copy the journal whole, as it is at one moment, into a file for its owner's eyes only.

    The target appears when it is complete, checked and on the disk; one that is there is replaced.
    Raises StoreError: the source cannot be read, or the target not be written."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        raise StoreError(f"{draft}: {error.strerror}: choose a folder that can be written") from error
    try:
        with (
            storage_errors(source),
            closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)) as origin,
            closing(sqlite3.connect(draft)) as copied,
        ):
            origin.backup(copied)
            # A copy of a database in WAL mode is in WAL mode too: as one file it is easier to keep.
            copied.execute("PRAGMA journal_mode=DELETE")
            verify(copied, draft)
        _sync(draft)
        draft.replace(target)
        _sync(target.parent)
    finally:
        draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that the database is sound: its pages, its indexes, its references.
    Raises StoreError: it is not; says what is wrong first."""
    faults = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
    faults += [f"{row[0]} points at no {row[2]}" for row in connection.execute("PRAGMA foreign_key_check")]
    if faults:
        raise StoreError(f"{path}: the journal is damaged ({faults[0]}): move it away and restore the last backup")
