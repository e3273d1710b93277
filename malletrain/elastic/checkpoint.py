"""The state on disk, for a job that has lost all its nodes: whole or not at all, for its owner's eyes only."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path

import torch

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.state import TrainingState, unpack

log = logging.getLogger("malletrain.elastic")

_NAME = re.compile(r"step-(\d+)\.pt")
KEEP = 2


class Checkpoints:
    """Files `step-N.pt` in one directory, on a file system that all nodes of the job see; the newest two are kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, state: TrainingState) -> Path:
        """Write the state under its step's number.

        Raises:
            ElasticError: the directory cannot be written.
        """
        skeleton, tensors = state.capture()
        target = self.directory / f"step-{state.position.step}.pt"
        draft = self.directory / f".{target.name}.{os.uname().nodename}.{os.getpid()}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                torch.save({"malletrain": 1, "skeleton": skeleton, "tensors": tensors}, stream)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise ElasticError(f"{target}: the state cannot be saved: {error.strerror}") from error
        for _, old in self._all()[KEEP:]:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()
        return target

    def load(self, state: TrainingState) -> Path | None:
        """Restore the newest checkpoint that can be read; None when there is none at all.

        Raises:
            ElasticError: there are some, and none can be used: nothing is ever silently begun anew.
        """
        troubles = []
        for _, path in self._all():
            try:
                content = torch.load(path, weights_only=True, map_location="cpu")
                unpack(content["skeleton"], content["tensors"])
            except Exception as error:  # noqa: BLE001 - whatever is wrong with the file, an older one may do
                log.warning("%s cannot be read: %s", path, error)
                troubles.append(f"{path}: {str(error).splitlines()[0][:200]}")
                continue
            state.restore(content["skeleton"], content["tensors"])
            return path
        if troubles:
            raise ElasticError(f"no checkpoint can be read; mend or remove them: {'; '.join(troubles)}")
        return None

    def discard(self) -> None:
        """Training is over: remove the files, and the directory if nothing else is in it."""
        for _, path in self._all():
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def _all(self) -> list[tuple[int, Path]]:
        """Newest first."""
        try:
            names = [path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        return sorted(((int(path.name[5:-3]), path) for path in names), reverse=True)
