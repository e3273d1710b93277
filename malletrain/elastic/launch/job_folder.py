"""The folder that the pilots of a job share: checkpoints, and what torch.compile has compiled. Standard library only:
the launcher uses it without torch."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.private_folder import PrivateFolder
from malletrain.wire.compiled_code import CACHE_VARIABLE, COMPILED_VARIABLE, is_chosen

_COMPILED = "compiled-"

#: The file that each pilot locks while it uses compiled code: the last one to leave removes the folder.
_USERS = ".users"


def checkpoint_directory(environ: Mapping[str, str], given: str | os.PathLike[str] | None = None) -> Path | None:
    """The directory of checkpoints: `given`, else MALLETRAIN_CHECKPOINT_DIR, else `.malletrain/JOB` in the directory
    of submission; None outside a pilot."""
    if given is not None:
        return Path(given)
    if environ.get("MALLETRAIN_CHECKPOINT_DIR"):
        return Path(environ["MALLETRAIN_CHECKPOINT_DIR"])
    if "MALLETRAIN_JOB" not in environ or "MALLETRAIN_URL" not in environ:
        return None
    return Path(environ.get("SLURM_SUBMIT_DIR") or Path.cwd()) / ".malletrain" / environ["MALLETRAIN_JOB"]


def resumed_directory(environ: Mapping[str, str], own: Path) -> Path | None:
    """The directory of the checkpoints of another job that this one goes on from (`mtbatch --resume`): beside its
    own, or what MALLETRAIN_RESUME names if that is a path; None without."""
    wanted = environ.get("MALLETRAIN_RESUME", "")
    if not wanted:
        return None
    return Path(wanted) if "/" in wanted else own.parent / wanted


def compile_cache_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with which compiled code is kept in the job's folder, so that pilots on other nodes need not compile.

    Torch's default is a folder in /tmp with a name that everybody can guess, and code in it is run. Where the job's
    folder is not this user's alone, or its file system has no locks, which torch needs, this pilot gets one of its
    own in /tmp. What the user has chosen stays.
    """
    home = checkpoint_directory(environ)
    # (A job that was submitted in a pilot inherits both variables from it.)
    if is_chosen(environ) or home is None:
        return {}
    path = home / f"{_COMPILED}{_processor()}"
    try:
        with PrivateFolder.at(home, create=True) as base, base.folder(path.name, create=True) as cache:
            _use(cache)
    except (ElasticError, OSError):
        path = Path(tempfile.mkdtemp(prefix="malletrain-compiled-"))
    return {CACHE_VARIABLE: str(path), COMPILED_VARIABLE: str(path)}


def leave_compiled(environ: Mapping[str, str], *, is_over: bool) -> None:
    """Remove what was compiled, if the job is over and no other pilot is still there, or if nobody else finds it; and
    folders that are empty. Call it when the script has ended: code that a process has loaded cannot be removed on
    NFS."""
    if COMPILED_VARIABLE not in environ or is_chosen(environ):
        return
    path = Path(environ[COMPILED_VARIABLE])
    if not path.name.startswith(_COMPILED):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        _leave(path, is_over=is_over)
    for folder in (path, path.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _use(folder: PrivateFolder) -> None:
    """Lock a folder for use until this process ends; OSError where files cannot be locked."""
    descriptor = folder.opener(_USERS, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        folder.remove(_USERS)
        raise


def _leave(path: Path, *, is_over: bool) -> None:
    """Empty a folder that no other process uses, if the job is over or nothing was compiled; OSError if one does."""
    with (path / _USERS).open("r+b") as users:
        fcntl.lockf(users, fcntl.LOCK_UN)  # of two that leave at the same time one gets the other lock
        fcntl.lockf(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_over:
            shutil.rmtree(path, ignore_errors=True)
        elif len(list(path.iterdir())) == 1:
            (path / _USERS).unlink()


def _processor() -> str:
    """Names the kind of this node's processor: code for one may not run on another."""
    try:
        features = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0]
    except OSError:
        features = ""
    return hashlib.sha256(features.encode()).hexdigest()[:16]
