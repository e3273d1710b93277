"""Checkpoints on disk: each is complete or absent, and readable and writable by its owner only; and which process
saves the training state, and when.

Each tensor is stored under its own name (`model.0.weight`) in the safetensors format, which other programs can read
and which cannot hold code. A checkpoint is written when all workers leave, and periodically while training goes on,
in case all nodes are lost at once. Any number of workers can resume it: one reads it and sends it to the others.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from malletrain.elastic.comm.background import BackgroundThread
from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.private_folder import PrivateFolder
from malletrain.elastic.state.tensor_file import read_tensors, write_tensors
from malletrain.elastic.state.training_state import TrainingState, names_of, specs_of, unpack
from malletrain.elastic.state.transfer import as_bytes, checksum

log = logging.getLogger("malletrain.elastic")

_NAME = re.compile(r"step-(\d+)")
_DRAFT = re.compile(r"\.step-(\d+)\.")
MAX_KEPT_CHECKPOINTS = 2

#: The file of a checkpoint; the tensor that holds the skeleton, and the text with names and checksums, as JSON.
STATE_FILE, SKELETON, INDEX = "state.safetensors", "malletrain.skeleton", "malletrain.index"

#: Tensors by name, and texts.
_Content = tuple[dict[str, torch.Tensor], dict[str, str]]


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


class CheckpointStore:
    """Checkpoints as directories `step-N` in one directory; the newest `MAX_KEPT_CHECKPOINTS` are kept.

    Args:
        directory: on a file system that all nodes of the job share. It is made for this user alone; one that is there
            must be this user's, no link, and closed to the writing of others.
        every_s: seconds between two checkpoints that are written while training goes on.
        resumed: the directory of another job's checkpoints, to begin with where there are none yet.
    """

    def __init__(
        self,
        directory: Path,
        every_s: float = 600.0,
        resumed: Path | None = None,
    ) -> None:
        self.directory = directory
        self._resumed = CheckpointStore(resumed, every_s) if resumed is not None else None
        self._every_s = every_s
        self._last = time.monotonic()
        self._writer: BackgroundThread | None = None
        self._confirmed = threading.Event()

    def save(self, state: TrainingState) -> Path:
        """Write a checkpoint of the state now; returns its directory. Raises `ElasticError`: the directory cannot be
        written."""
        self._finish_writing()
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
        self._confirmed = confirmed = threading.Event()

        def write() -> None:
            try:
                self._write(step, content, confirmed)
            except ElasticError as error:
                log.warning("%s", error)

        self._writer = BackgroundThread(write, "checkpoint")

    def confirm(self) -> None:
        """Confirm that the step saved by `save_async` is committed at every member."""
        self._confirmed.set()

    def _finish_writing(self) -> None:
        self.confirm()
        if self._writer is not None:
            self._writer.join()

    def is_there(self) -> bool:
        """Whether there is a whole checkpoint."""
        return bool(self._complete())

    def load(self, state: TrainingState) -> Path | None:
        """Restore the newest readable checkpoint; returns its directory, or None if there are no checkpoints. Raises
        `ElasticError`: there are checkpoints, but none can be used; training must not silently start over. The job
        to resume has none. Or others can write to the directory, or it is a link."""
        troubles: list[str] = []
        for step in self._complete():
            path = self.directory / _name(step)
            try:
                with PrivateFolder.at(self.directory) as folder, folder.folder(path.name) as checkpoint:
                    skeleton, tensors = _read(checkpoint)
                unpack(skeleton, tensors)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with these files, older ones may be readable
                log.warning("%s cannot be read: %s", path, error)
                troubles.append(f"{path}: {(str(error).splitlines() or [type(error).__name__])[0][:300]}")
                continue
            state.restore(skeleton, tensors)
            return path
        if troubles:
            raise ElasticError(f"no checkpoint can be read; mend or remove them: {'; '.join(troubles)}")
        if self._resumed is None:
            return None
        found = self._resumed.load(state)
        if found is None:
            raise ElasticError(
                f"{self._resumed.directory} has no checkpoint to resume from: submit from the directory that the "
                "other job was submitted from, or leave --resume out"
            )
        return found

    def discard(self) -> None:
        """Remove all checkpoints, and the directory if it is empty then. Call it when training is over."""
        self._finish_writing()
        with contextlib.suppress(OSError, ElasticError), PrivateFolder.at(self.directory) as folder:
            for step in _steps(folder):
                _remove(folder, _name(step))
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def _write(self, step: int, content: _Content, confirmed: threading.Event | None = None) -> Path:
        target = self.directory / _name(step)
        draft = f".{target.name}.{os.uname().nodename}.{os.getpid()}"
        try:
            with PrivateFolder.at(self.directory, create=True) as folder:
                try:
                    with (
                        folder.folder(draft, create=True) as checkpoint,
                        open(STATE_FILE, "xb", opener=checkpoint.opener) as file,
                    ):
                        write_tensors(file, *content)
                        file.flush()
                        os.fsync(file.fileno())
                    if confirmed is not None:
                        confirmed.wait()
                    _put_in_place(folder, draft, target.name)
                    os.fsync(folder.descriptor)
                except BaseException:
                    _remove(folder, draft)
                    raise
                old = [_name(each) for each in _steps(folder)[MAX_KEPT_CHECKPOINTS:]]
                for name in [*_drafts(folder, step), *old]:
                    _remove(folder, name)
        except Exception as error:
            why = error.strerror if isinstance(error, OSError) else (str(error).splitlines() or [""])[0][:300]
            raise ElasticError(f"{target}: the state cannot be saved: {why}") from error
        return target

    def _complete(self) -> list[int]:
        """The steps of which there is a checkpoint, newest first."""
        try:
            with PrivateFolder.at(self.directory) as folder:
                return _steps(folder)
        except FileNotFoundError:
            return []


class Checkpointing:
    """One member's part in checkpoints; without a store, none are kept."""

    def __init__(self, checkpoints: CheckpointStore | None, state: TrainingState, committer: StepCommitter) -> None:
        self._checkpoints = checkpoints
        self._state = state
        self._committer = committer
        self._requested = False

    @property
    def is_writer(self) -> bool:
        """Whether this process writes checkpoints in this world."""
        return self._committer.world.rank == 0

    @property
    def can_write(self) -> bool:
        """Whether this process writes for its node, where no world has a first one."""
        world = self._committer.world
        return world.rank % world.local_size == 0

    def save(self) -> str | None:
        """Write a checkpoint now; returns its directory, or None if no checkpoints are kept."""
        return str(self._checkpoints.save(self._state)) if self._checkpoints else None

    def save_if_possible(self) -> tuple[str | None, str]:
        """As `save`, for one that leaves whatever comes of it (a main job must not wait for a folder that is full):
        where the state was saved, and why it could not be. Nothing is saved where there is no state.

        Tell the daemon before the log: where the job's output lies in the same folder, srun ends at the first line
        that it cannot write, and this process with it.
        """
        try:
            return (self.save() if self._state.has_state else None), ""
        except ElasticError as error:
            return None, str(error)

    def load(self) -> bool:
        """Restore the newest checkpoint; returns whether there was one."""
        return self._checkpoints is not None and self._checkpoints.load(self._state) is not None

    def discard(self) -> None:
        """Remove the checkpoints, on the main worker. Call it when training is over."""
        if self._checkpoints is not None and self._committer.world.rank == 0:
            self._checkpoints.discard()

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint, on the main worker; the control vector tells the other members."""
        return self._checkpoints is not None and self._committer.world.rank == 0 and self._checkpoints.is_due()

    def request(self) -> None:
        """Have `save_async` write a checkpoint between this step and the next: all members agreed that one is due."""
        self._requested = True

    def confirm(self) -> None:
        """Every member has committed all steps so far: a checkpoint of them may be loaded."""
        if self._checkpoints is not None:
            self._checkpoints.confirm()

    def save_async(self) -> None:
        """Write a requested checkpoint in the background. Call it between two steps."""
        requested, self._requested = self._requested, False
        if requested and self._checkpoints is not None and self.is_writer:
            self._checkpoints.save_async(self._state)
            if self._committer.world.size == 1:
                self._checkpoints.confirm()


def _name(step: int) -> str:
    return f"step-{step}"


def _steps(folder: PrivateFolder) -> list[int]:
    """The step of each checkpoint, newest first."""
    found = (_NAME.fullmatch(name) for name in folder.names())
    return sorted((int(each[1]) for each in found if each), reverse=True)


def _drafts(folder: PrivateFolder, step: int) -> list[str]:
    """Unfinished checkpoints of earlier steps, whose writers ended before `confirm`."""
    found = (_DRAFT.match(name) for name in folder.names())
    return [each.string for each in found if each and int(each[1]) < step]


def _put_in_place(folder: PrivateFolder, draft: str, name: str) -> None:
    """Give a draft its name. Several workers may save the same step, each the last as far as it knows."""
    _remove(folder, name)
    try:
        folder.rename(draft, name)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _remove(folder, draft)  # another worker's is there


def _remove(folder: PrivateFolder, name: str) -> None:
    with contextlib.suppress(OSError, ElasticError):
        folder.remove(name)


def _content(state: TrainingState, *, copied: bool) -> _Content:
    """The state as tensors by name, and texts; with `copied`, no tensor shares memory with the live state."""
    skeleton, live = state.capture()
    names, tensors = names_of(skeleton), _on_host(live, copied=copied)
    content = dict(zip(names, tensors, strict=True))
    content[SKELETON] = torch.frombuffer(bytearray(skeleton), dtype=torch.uint8)
    sums = [checksum(as_bytes(tensor)) for tensor in tensors]
    return content, {INDEX: json.dumps({"names": names, "sums": sums, "skeleton": _digest_of(skeleton)})}


def _on_host(tensors: Sequence[torch.Tensor], *, copied: bool) -> list[torch.Tensor]:
    """Contiguous tensors in host memory, pinned for what lies on a GPU: 40 times as fast, and torch keeps it for
    the next checkpoint."""
    found = [
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True)
        if copied or tensor.is_cuda
        else tensor.contiguous()
        for tensor in tensors
    ]
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.synchronize()
    return found


def _digest_of(skeleton: bytes) -> str:
    return hashlib.sha256(skeleton).hexdigest()


def _read(checkpoint: PrivateFolder) -> tuple[bytes, list[torch.Tensor]]:
    """Skeleton and tensors of a checkpoint. Raises whatever is wrong with it."""
    with open(STATE_FILE, "rb", opener=checkpoint.opener) as file:
        content, texts = read_tensors(file)
    try:
        index = json.loads(texts[INDEX])
        skeleton, digest = content[SKELETON].numpy().tobytes(), index["skeleton"]
        names, sums, tensors = index["names"], index["sums"], [content[name] for name in index["names"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ElasticError(
            f"its index, or what that names, is not whole ({error}): it is damaged, or another release or program "
            "wrote it: resume with the release that wrote it, or remove it"
        ) from error
    if digest != _digest_of(skeleton) or names != names_of(skeleton):
        raise ElasticError("the checksum of its skeleton differs: it is damaged")
    if sums != [checksum(as_bytes(tensor)) for tensor in tensors]:
        raise ElasticError("its checksums differ: it is damaged")
    # Types that the format does not have are stored as bytes.
    return skeleton, [
        tensor.view(dtype).reshape(shape) for tensor, (dtype, shape) in zip(tensors, specs_of(skeleton), strict=True)
    ]
