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

#: A file that is locked to see whether files can be.
_LOCK = ".lock"


def checkpoint_directory(environ: Mapping[str, str], chosen: str | os.PathLike[str] | None = None) -> Path | None:
    """The directory of checkpoints: `chosen`, else MALLETRAIN_CHECKPOINT_DIR, else `.malletrain/JOB` in the directory
    of submission; None outside a pilot."""
    if chosen is not None:
        return Path(chosen)
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
            with os.fdopen(cache.opener(_LOCK, os.O_RDWR | os.O_CREAT)) as lock:
                fcntl.lockf(lock, fcntl.LOCK_SH)
            cache.remove(_LOCK)
    except (ElasticError, OSError):
        path = Path(tempfile.mkdtemp(prefix="malletrain-compiled-"))
    return {CACHE_VARIABLE: str(path), COMPILED_VARIABLE: str(path)}


def leave_compiled(environ: Mapping[str, str], *, is_over: bool) -> None:
    """Remove what was compiled, if the job is over or nobody else finds it; and folders that are empty. Call it when
    the script has ended: code that a process has loaded cannot be removed on NFS."""
    if COMPILED_VARIABLE not in environ or is_chosen(environ):
        return
    path = Path(environ[COMPILED_VARIABLE])
    shared = path.name.startswith(_COMPILED)
    if is_over or not shared:
        shutil.rmtree(path, ignore_errors=True)
    for folder in (path, path.parent) if shared else ():
        with contextlib.suppress(OSError):
            folder.rmdir()


def _processor() -> str:
    """Names the kind of this node's processor: code for one may not run on another."""
    try:
        features = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0]
    except OSError:
        features = ""
    return hashlib.sha256(features.encode()).hexdigest()[:16]
