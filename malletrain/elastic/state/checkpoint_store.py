"""Checkpoints on disk: each is complete or absent, and readable by its owner only.

Written by torch.distributed.checkpoint, each tensor under its own name (`model.0.weight`), so that other programs can
read them. A checkpoint is written when all workers leave, and periodically while training goes on, in case all nodes
are lost at once. Any number of workers can resume it: one reads it and sends it to the others.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.state.training_state import TrainingState, names_of, unpack
from malletrain.elastic.state.transfer import as_bytes, checksum

log = logging.getLogger("malletrain.elastic")

_NAME = re.compile(r"step-(\d+)")
_DRAFT = re.compile(r"\.step-(\d+)\.")
MAX_KEPT_CHECKPOINTS = 2


class CheckpointStore:
    """Checkpoints as directories `step-N` in one directory; the newest `MAX_KEPT_CHECKPOINTS` are kept.

    Args:
        directory: on a file system that all nodes of the job share.
        every_s: seconds between two checkpoints that are written while training goes on.
        part: for a sharded model, (local rank, processes a node). Each process writes its shards into a directory of
            its own, and a step counts as saved when all have written it.
    """

    def __init__(self, directory: Path, every_s: float = 600.0, part: tuple[int, int] | None = None) -> None:
        self._base, self._part = directory, part
        self.directory = directory if part is None else _parts(directory, part[1])[part[0]]
        self._every_s = every_s
        self._last = time.monotonic()
        self._writer: threading.Thread | None = None
        self._confirmed = threading.Event()
        # The import takes half a second: do it now, not when a node has to be given back.
        threading.Thread(target=_library, name="malletrain-import", daemon=True).start()

    def save(self, state: TrainingState) -> Path:
        """Write a checkpoint of the state now; returns its directory.

        Raises:
            ElasticError: the directory cannot be written.
        """
        self.confirm()
        if self._writer is not None:
            self._writer.join()
        return self._write(state.position.step, _content(state, copied=False))

    def is_due(self) -> bool:
        """Whether it is time for `save_async`."""
        writing = self._writer is not None and self._writer.is_alive()
        return not writing and time.monotonic() - self._last >= self._every_s

    def save_async(self, state: TrainingState) -> None:
        """Copy the state in memory, and write the copy in a thread while training goes on. Failures are logged.

        The checkpoint gets its name, and so can be loaded, only after `confirm`.
        """
        self._last = time.monotonic()
        step, content = state.position.step, _content(state, copied=True)
        confirmed = self._confirmed = threading.Event()

        def write() -> None:
            try:
                self._write(step, content, confirmed)
            except ElasticError as error:
                log.warning("%s", error)

        self._writer = threading.Thread(target=write, name="malletrain-checkpoint", daemon=True)
        self._writer.start()

    def confirm(self) -> None:
        """Confirm that the step saved by `save_async` is committed at every member."""
        self._confirmed.set()

    def load(self, state: TrainingState) -> Path | None:
        """Restore the newest readable checkpoint; returns its directory, or None if there are no checkpoints.

        Raises:
            ElasticError: there are checkpoints, but none can be used; training must not silently start over.
        """
        troubles = self._incompatible()
        for _, path in self._all():
            try:
                skeleton, tensors = _read(path)
                unpack(skeleton, tensors, state.mesh)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with these files, older ones may be readable
                log.warning("%s cannot be read: %s", path, error)
                troubles.append(f"{path}: {(str(error).splitlines() or [type(error).__name__])[0][:200]}")
                continue
            state.restore(skeleton, tensors)
            return path
        if troubles:
            raise ElasticError(f"no checkpoint can be read; mend or remove them: {'; '.join(troubles)}")
        return None

    def discard(self) -> None:
        """Remove all checkpoints, and the directory if it is empty then. Call it when training is over."""
        self.confirm()
        if self._writer is not None:
            self._writer.join()
        for part in [self.directory] if self._part is None else _parts(self._base, self._part[1]):
            for _, path in _steps(part):
                shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                part.rmdir()
        with contextlib.suppress(OSError):
            self._base.rmdir()

    def _write(self, step: int, content: dict[str, torch.Tensor], confirmed: threading.Event | None = None) -> Path:
        target = self.directory / f"step-{step}"
        draft = self.directory / f".{target.name}.{os.uname().nodename}.{os.getpid()}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft.mkdir(mode=0o700)
            with _failures_as_errors():
                _library().save(content, checkpoint_id=draft, no_dist=True)
            if confirmed is not None:
                confirmed.wait()
            shutil.rmtree(target, ignore_errors=True)
            draft.rename(target)
        except Exception as error:
            shutil.rmtree(draft, ignore_errors=True)
            why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0][:300]
            raise ElasticError(f"{target}: the state cannot be saved: {why}") from error
        for old in [
            *_drafts(self.directory, step),
            *(path for _, path in _steps(self.directory)[MAX_KEPT_CHECKPOINTS:]),
        ]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def _all(self) -> list[tuple[int, Path]]:
        """The checkpoints that all parts have, newest first."""
        mine = _steps(self.directory)
        if self._part is None:
            return mine
        others = [{step for step, _ in _steps(part)} for part in _parts(self._base, self._part[1])]
        return [(step, path) for step, path in mine if all(step in other for other in others)]

    def _incompatible(self) -> list[str]:
        """Checkpoints of a model that was sharded differently. They cannot be loaded, but training must not start
        over either."""
        kept = {path.name for path in _parts(self._base, self._part[1])} if self._part else set()
        found = [path for path in self._base.glob("part-*-of-*") if path.name not in kept]
        if self._part is not None:
            found += [path for _, path in _steps(self._base)]
        return [f"{path}: of a model that was sharded over another number of processes" for path in found[:3]]


def _parts(base: Path, size: int) -> list[Path]:
    return [base / f"part-{rank}-of-{size}" for rank in range(size)]


def _steps(directory: Path) -> list[tuple[int, Path]]:
    """Step and path of each checkpoint, newest first."""
    try:
        found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(((int(path.name[5:]), path) for path in found), reverse=True)


def _drafts(directory: Path, step: int) -> list[Path]:
    """Unfinished checkpoints of earlier steps, whose writers ended before `confirm`."""
    found = (_DRAFT.match(path.name) for path in directory.iterdir())
    return [directory / draft.string for draft in found if draft and int(draft[1]) < step]


def _library() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.distributed.checkpoint

    # On purpose: one process writes what all of them hold.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    return torch.distributed.checkpoint


@contextlib.contextmanager
def _failures_as_errors() -> Iterator[None]:
    """Raise the cause of a CheckpointException, which does not derive from `Exception`."""
    try:
        yield
    except _library().api.CheckpointException as failed:
        raise next((error for error, _ in failed.failures.values()), ElasticError(str(failed))) from failed


def _content(state: TrainingState, *, copied: bool) -> dict[str, torch.Tensor]:
    """The state as tensors by name; with `copied`, none shares memory with the live state."""
    skeleton, live = state.capture()
    tensors = [tensor.detach().to("cpu", copy=copied).contiguous() for tensor in live]
    names = names_of(skeleton)
    content = dict(zip(names, tensors, strict=True))
    content["malletrain.skeleton"] = torch.frombuffer(bytearray(skeleton), dtype=torch.uint8)
    content["malletrain.names"] = torch.frombuffer(bytearray(json.dumps(names).encode()), dtype=torch.uint8)
    content["malletrain.sums"] = torch.tensor([checksum(as_bytes(tensor)) for tensor in tensors], dtype=torch.int64)
    return content


def _read(path: Path) -> tuple[bytes, list[torch.Tensor]]:
    """Skeleton and tensors of a checkpoint. Raises whatever is wrong with it."""
    if path.stat().st_uid != os.getuid():
        raise ElasticError("it belongs to another user")
    library = _library()
    stored = library.FileSystemReader(path).read_metadata().state_dict_metadata
    content = {name: torch.empty(each.size, dtype=each.properties.dtype) for name, each in stored.items()}
    with _failures_as_errors():
        library.load(content, checkpoint_id=path, no_dist=True)
    names = json.loads(content["malletrain.names"].numpy().tobytes())
    tensors = [content[name] for name in names]
    if content["malletrain.sums"].tolist() != [checksum(as_bytes(tensor)) for tensor in tensors]:
        raise ElasticError("its checksums differ: it is damaged")
    return content["malletrain.skeleton"].numpy().tobytes(), tensors
