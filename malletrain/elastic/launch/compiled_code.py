"""Copies of a node's compile cache in the job's own folder, so that the pilots of other nodes need not compile.

The launcher gives each job's code a compile cache on the node's own disk (`compile_cache`). The first worker that had
to compile writes what is there into one file beside the checkpoints; a worker on a node whose cache is empty unpacks
it before its warm-up. Torch looks compiled code up by its own digests of graph, options and release, so what does not
fit is compiled anew.
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import stat
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.private_folder import PrivateFolder
from malletrain.elastic.state.checkpoint_store import COMPILED_PREFIX

log = logging.getLogger("malletrain.elastic")

#: What takes less to compile is compiled again on each node.
MIN_COMPILE_S = 1.0

#: A larger cache is not shared.
MAX_SHARED_BYTES = 1024**3

#: A file that changed so shortly before is perhaps not whole: another process writes it.
SETTLED_S = 2.0

#: How long to wait for another process of this node that unpacks.
UNPACK_LIMIT_S = 30.0

_LOCK, _DONE = ".malletrain-lock", ".malletrain-unpacked"


class CompiledCode:
    """The compile cache of this node and the job's copy of it.

    Args:
        cache: torch's folder on this node.
        shared: the job's folder, which all its nodes see.
        settled_s: see `SETTLED_S`.
    """

    def __init__(self, cache: Path, shared: Path, settled_s: float = SETTLED_S) -> None:
        self._cache = cache
        self._shared = shared
        self._settled_s = settled_s
        self.name = f"{COMPILED_PREFIX}{cache.name}-{machine_tag()}.tar"

    def fetch(self) -> int:
        """Unpack the job's copy, if there is one and this node has not done so; returns how many files are new.
        A copy that cannot be read is left alone, and the log says so."""
        try:
            with PrivateFolder.at(self._shared) as folder:
                if self.name not in folder.names():
                    return 0
                return self._unpack(folder)
        except FileNotFoundError:
            return 0
        except (OSError, ElasticError, tarfile.TarError) as error:
            log.warning("compiled code is not taken from %s: %s", self._shared / self.name, error)
            return 0

    def share(self) -> bool:
        """Write the job's copy, unless there is one; returns whether it did."""
        try:
            with PrivateFolder.at(self._shared, create=True) as folder:
                if self.name in folder.names():
                    return False
                time.sleep(self._settled_s)
                files = list(self._settled())
                if not files or sum(size for _, size in files) > MAX_SHARED_BYTES:
                    return False
                draft = f".{self.name}.{platform.node()}.{os.getpid()}"
                try:
                    with (
                        open(draft, "xb", opener=folder.opener) as file,
                        tarfile.open(fileobj=file, mode="w") as archive,
                    ):
                        for path, _ in files:
                            archive.add(self._cache / path, arcname=str(path), recursive=False)
                    folder.rename(draft, self.name)
                except BaseException:
                    folder.remove(draft)
                    raise
                return True
        except (OSError, ElasticError, tarfile.TarError) as error:
            log.info("compiled code is not shared: %s", error)
            return False

    def share_behind(self) -> None:
        """`share` in a thread, while training goes on."""
        threading.Thread(target=self.share, name="malletrain-compiled", daemon=True).start()

    def _settled(self) -> Iterator[tuple[PurePosixPath, int]]:
        """Path below the cache and bytes of each regular file that is whole."""
        newest = time.time() - self._settled_s
        for path in sorted(self._cache.rglob("*")):
            if path.name in (_LOCK, _DONE) or path.suffix in (".lock", ".tmp"):
                continue
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime <= newest:
                yield PurePosixPath(path.relative_to(self._cache)), found.st_size

    def _unpack(self, folder: PrivateFolder) -> int:
        with PrivateFolder.at(self._cache, create=True) as cache, open(_LOCK, "ab", opener=cache.opener) as lock:
            end = time.monotonic() + UNPACK_LIMIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        return 0
                    time.sleep(0.05)
            if _DONE in cache.names():
                return 0
            count = 0
            with (
                open(self.name, "rb", opener=folder.opener) as file,
                tarfile.open(fileobj=file, mode="r|") as archive,
            ):
                for member in archive:
                    count += self._place(archive, member)
            with open(_DONE, "wb", opener=cache.opener):
                pass
            return count

    def _place(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
        """Put one file where it belongs, whole or not at all; returns whether it is new."""
        path = PurePosixPath(member.name)
        source = archive.extractfile(member) if member.isreg() else None
        if source is None or path.is_absolute() or ".." in path.parts:
            raise ElasticError(f"{member.name[:100]!r} is no file below the cache")
        target = self._cache / path
        if target.exists():
            return False
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        with draft.open("wb") as file:
            while part := source.read(1024 * 1024):
                file.write(part)
        draft.chmod(0o700 if member.mode & 0o100 else 0o600)
        draft.rename(target)
        return True


def machine_tag() -> str:
    """What compiled code is bound to beside its source: releases and the GPU."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu"
    text = f"{torch.__version__}-py{sys.version_info.major}.{sys.version_info.minor}-{gpu}"
    return "".join(letter if letter.isalnum() or letter in ".+" else "-" for letter in text)


def compile_seconds() -> float:
    """Seconds that this process has spent in torch's compiler so far, as torch counts them."""
    utils: Any = sys.modules.get("torch._dynamo.utils")  # nothing is compiled before it is imported
    spent = getattr(utils, "cumulative_time_spent_ns", {})
    return float(sum(spent.get(name, 0.0) for name in ("entire_frame_compile", "entire_backward_compile"))) / 1e9
