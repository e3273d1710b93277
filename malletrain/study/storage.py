"""Where a study is kept: a journal file or a database, in Optuna's own formats."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna import Study as Study
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from malletrain.domain.errors import InvalidInput
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.private_folder import check_private_file
from malletrain.study.ports import StudyError

#: A lock of the journal that has not been released for so long (whole seconds) is one of a process that was killed:
#: it is held for milliseconds.
STALE_LOCK_S = 5

#: How a journal of Optuna's begins.
_BEGIN = b'{"op_code":'


def default_path(file: Path) -> Path:
    """The journal of a study file: beside it, `study.py` in `study.journal`."""
    return file.with_suffix(".journal")


def open_storage(place: str, *, must_exist: bool = False) -> BaseStorage:
    """The storage at a server's URL (`postgresql://...`, `mysql://...`), or in a journal file.
    Raises InvalidInput: it cannot be opened, is something else, or a file to go on with that others can write to."""
    if "://" in place:
        if place.startswith("sqlite"):
            raise InvalidInput("--storage", "SQLite's locks do not hold between machines: name a file, or a server")
        try:
            return RDBStorage(place)
        except Exception as error:  # any of SQLAlchemy's or of the driver's: said, with the place
            raise InvalidInput("--storage", f"{_without_password(place)}: {_short(error)}") from error
    path = Path(place)
    if must_exist and not path.is_file():
        raise InvalidInput("--storage", f"there is no study in {path} yet: begin one with `malletrain study run`")
    try:
        lock = JournalFileSymlinkLock(str(path), grace_period=STALE_LOCK_S)
        if path.is_file():
            _mend(path, lock)
        is_new = not path.exists()
        if not (is_new or must_exist):
            check_private_file(path)  # samplers keep pickles there (CMA-ES): who writes to it runs code here
        kept = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        if is_new:
            path.chmod(path.stat().st_mode & ~0o022)
        kept.get_all_studies()  # reads it all: what is wrong is found now
        return kept
    except ElasticError as error:
        raise InvalidInput("--storage", str(error)) from error
    except OSError as error:
        raise InvalidInput("--storage", f"{path}: {os.strerror(error.errno or 0)}") from error
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise InvalidInput("--storage", f"{path} is no journal of Optuna's ({_short(error)})") from error


def _mend(path: Path, lock: JournalFileSymlinkLock) -> None:
    """Take off a last line that was not written to its end: the next one would be appended to it, and both lost.
    Raises ValueError: the file is something else, and stays as it is."""
    lock.acquire()
    try:
        whole = path.read_bytes()
        if not (whole.startswith(_BEGIN) or _BEGIN.startswith(whole)):
            raise ValueError(f"it begins with {whole[:20]!r}")
        if not whole.endswith(b"\n"):
            os.truncate(path, whole.rfind(b"\n") + 1)
    finally:
        lock.release()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other runs of the same study out while this one conducts it.
    Raises StudyError: another run conducts it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            who = lock.read().strip() or "another process"
            raise StudyError(f"{folder}: {who} runs this study already") from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        lock.flush()
        yield


def load(place: str, name: str) -> Study:
    """The study as it is kept, for looking at it.
    Raises InvalidInput: there is none of that name."""
    storage = open_storage(place, must_exist=True)
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError as error:
        known = ", ".join(sorted(optuna.get_all_study_names(storage))) or "none"
        raise InvalidInput("--storage", f"holds no study {name!r}; there are: {known}") from error


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
