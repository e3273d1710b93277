"""The state on disk, for a job that has lost all its nodes: whole or not at all, for its owner's eyes only.

Written by torch.distributed.checkpoint, a tensor under its own name (`model.0.weight`), so that other programs can
read it too. In order when all workers leave; now and then beside training, for the case that nobody is left to do so.
Any number of workers resumes it: one reads it and gives it to the others.
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
from malletrain.elastic.state.transfer import as_bytes, digest

log = logging.getLogger("malletrain.elastic")

_NAME = re.compile(r"step-(\d+)")
_DRAFT = re.compile(r"\.step-(\d+)\.")
MAX_KEPT_CHECKPOINTS = 2


class CheckpointStore:
    """Directories `step-N` in one directory, on a file system that all nodes of the job see; the newest two are kept.

    Args:
        directory: where.
        every_s: seconds from one checkpoint beside training to the next.
        part: of a sharded model, (place, processes a node): each writes its own, in a directory beside those of the
            others, and a step counts when all have it.
    """

    def __init__(self, directory: Path, every_s: float = 600.0, part: tuple[int, int] | None = None) -> None:
        self._base, self._part = directory, part
        self.directory = directory if part is None else _parts(directory, part[1])[part[0]]
        self._every_s = every_s
        self._last = time.monotonic()
        self._writer: threading.Thread | None = None
        self._confirmed = threading.Event()
        # It takes half a second to import: not when a node has to be given back.
        threading.Thread(target=_library, name="malletrain-import", daemon=True).start()

    def save(self, state: TrainingState) -> Path:
        """Write the state under its step's number.

        Raises:
            ElasticError: the directory cannot be written.
        """
        self.confirm()
        if self._writer is not None:
            self._writer.join()
        return self._write(state.position.step, _content(state, copied=False))

    def is_due(self) -> bool:
        """Whether it is time for one beside training."""
        writing = self._writer is not None and self._writer.is_alive()
        return not writing and time.monotonic() - self._last >= self._every_s

    def save_beside(self, state: TrainingState) -> None:
        """Copy the state in memory, and write the copy while training goes on. What goes wrong is logged.
        Nobody finds it before `stands` is called."""
        self._last = time.monotonic()
        step, content = state.position.step, _content(state, copied=True)
        stands = self._confirmed = threading.Event()

        def write() -> None:
            try:
                self._write(step, content, stands)
            except ElasticError as error:
                log.warning("%s", error)

        self._writer = threading.Thread(target=write, name="malletrain-checkpoint", daemon=True)
        self._writer.start()

    def confirm(self) -> None:
        """What is being written beside training is not taken back any more."""
        self._confirmed.set()

    def load(self, state: TrainingState) -> Path | None:
        """Restore the newest checkpoint that can be read; None when there is none at all.

        Raises:
            ElasticError: there are some, and none can be used: nothing is ever silently begun anew.
        """
        troubles = self._strangers()
        for _, path in self._all():
            try:
                skeleton, tensors = _read(path)
                unpack(skeleton, tensors, state.mesh)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with the files, older ones may do
                log.warning("%s cannot be read: %s", path, error)
                troubles.append(f"{path}: {(str(error).splitlines() or [type(error).__name__])[0][:200]}")
                continue
            state.restore(skeleton, tensors)
            return path
        if troubles:
            raise ElasticError(f"no checkpoint can be read; mend or remove them: {'; '.join(troubles)}")
        return None

    def discard(self) -> None:
        """Training is over: remove them, and the directory if nothing else is in it."""
        self.confirm()
        if self._writer is not None:
            self._writer.join()
        for place in [self.directory] if self._part is None else _parts(self._base, self._part[1]):
            for _, path in _steps(place):
                shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                place.rmdir()
        with contextlib.suppress(OSError):
            self._base.rmdir()

    def _write(self, step: int, content: dict[str, torch.Tensor], stands: threading.Event | None = None) -> Path:
        target = self.directory / f"step-{step}"
        draft = self.directory / f".{target.name}.{os.uname().nodename}.{os.getpid()}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft.mkdir(mode=0o700)
            with _failures_as_errors():
                _library().save(content, checkpoint_id=draft, no_dist=True)
            if stands is not None:
                stands.wait()
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
        """Newest first; those that all parts have."""
        mine = _steps(self.directory)
        if self._part is None:
            return mine
        others = [{step for step, _ in _steps(place)} for place in _parts(self._base, self._part[1])]
        return [(step, path) for step, path in mine if all(step in other for other in others)]

    def _strangers(self) -> list[str]:
        """Checkpoints of nodes with another number of processes: they are of no use here, and no reason to begin
        anew."""
        kept = {path.name for path in _parts(self._base, self._part[1])} if self._part else set()
        found = [path for path in self._base.glob("part-*-of-*") if path.name not in kept]
        if self._part is not None:
            found += [path for _, path in _steps(self._base)]
        return [f"{path}: of a model that was sharded over another number of processes" for path in found[:3]]


def _parts(base: Path, size: int) -> list[Path]:
    return [base / f"part-{place}-of-{size}" for place in range(size)]


def _steps(directory: Path) -> list[tuple[int, Path]]:
    """Newest first."""
    try:
        found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(((int(path.name[5:]), path) for path in found), reverse=True)


def _drafts(directory: Path, step: int) -> list[Path]:
    """Of earlier steps: whoever began them was ended before they stood."""
    found = (_DRAFT.match(path.name) for path in directory.iterdir())
    return [directory / draft.string for draft in found if draft and int(draft[1]) < step]


def _library() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.distributed.checkpoint

    # It is: one process writes what all of them hold.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    return torch.distributed.checkpoint


@contextlib.contextmanager
def _failures_as_errors() -> Iterator[None]:
    """The library raises something that is no `Exception`, with what happened inside."""
    try:
        yield
    except _library().api.CheckpointException as failed:
        raise next((error for error, _ in failed.failures.values()), ElasticError(str(failed))) from failed


def _content(state: TrainingState, *, copied: bool) -> dict[str, torch.Tensor]:
    """All of it as tensors by name; `copied`: none of them is a live one."""
    skeleton, live = state.capture()
    tensors = [tensor.detach().to("cpu", copy=copied).contiguous() for tensor in live]
    names = names_of(skeleton)
    content = dict(zip(names, tensors, strict=True))
    content["malletrain.skeleton"] = torch.frombuffer(bytearray(skeleton), dtype=torch.uint8)
    content["malletrain.names"] = torch.frombuffer(bytearray(json.dumps(names).encode()), dtype=torch.uint8)
    content["malletrain.sums"] = torch.tensor([digest(as_bytes(tensor)) for tensor in tensors], dtype=torch.int64)
    return content


def _read(path: Path) -> tuple[bytes, list[torch.Tensor]]:
    """Skeleton and tensors. Raises whatever is wrong."""
    if path.stat().st_uid != os.getuid():
        raise ElasticError("it belongs to another user")
    library = _library()
    stored = library.FileSystemReader(path).read_metadata().state_dict_metadata
    content = {name: torch.empty(each.size, dtype=each.properties.dtype) for name, each in stored.items()}
    with _failures_as_errors():
        library.load(content, checkpoint_id=path, no_dist=True)
    names = json.loads(content["malletrain.names"].numpy().tobytes())
    tensors = [content[name] for name in names]
    if content["malletrain.sums"].tolist() != [digest(as_bytes(tensor)) for tensor in tensors]:
        raise ElasticError("its sums differ: it is damaged")
    return content["malletrain.skeleton"].numpy().tobytes(), tensors
