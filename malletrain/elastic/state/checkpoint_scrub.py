"""Reads stored checkpoints again, slowly, beside training: what a disk has lost is found while there is a state."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import torch

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.private_folder import PrivateFolder
from malletrain.elastic.state.tensor_file import read_header, read_pieces
from malletrain.elastic.state.training_state import names_of

#: The file of a checkpoint; the tensor that holds the skeleton, and the text with names and checksums, as JSON.
STATE_FILE, SKELETON, INDEX = "state.safetensors", "malletrain.skeleton", "malletrain.index"

#: Bytes that are read in one go: a multiple of 8, so that sums of pieces add up to that of the whole (`checksum`).
_PIECE_BYTES = 4 << 20

#: Bytes read in a second, at most: a few per cent of what a node reads from a parallel file system.
SCRUB_BYTES_PER_S = 32 << 20


def damage_of(checkpoint: PrivateFolder, paced: Callable[[int], None]) -> str:
    """What is wrong with a checkpoint as its disk has it, or "". It is read piece by piece: no state fits in memory
    twice. What the node's page cache has of it is dropped first (posix_fadvise(2)).

    Args:
        paced: called after so many bytes were read; may wait, or raise to end this.

    Raises:
        OSError: the file cannot be read; that says nothing of its content.
    """
    with open(STATE_FILE, "rb", opener=checkpoint.opener) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            entries, texts = read_header(file)
            index = json.loads(texts[INDEX])
            wanted = dict(zip(index["names"], index["sums"], strict=True))
            for entry in entries:
                total, skeleton = 0, bytearray()
                for piece in read_pieces(file, entry.size, _PIECE_BYTES):
                    if entry.name == SKELETON:
                        skeleton += piece.numpy().tobytes()
                    else:
                        total += _sum_of(piece)
                    paced(piece.numel())
                if entry.name == SKELETON:
                    if index.get("skeleton", digest_of(skeleton)) != digest_of(skeleton):
                        return "the checksum of its skeleton differs"
                    if names_of(bytes(skeleton)) != list(index["names"]):
                        return "its skeleton names other tensors"
                elif wanted.pop(entry.name, None) != _as_signed(total):
                    return f"the checksum of {entry.name[:100]} differs"
        except (ElasticError, ValueError, KeyError, TypeError) as error:
            return str(error) or type(error).__name__
    return f"{len(wanted)} tensors are missing" if wanted else ""


def digest_of(skeleton: bytes | bytearray) -> str:
    """The sum of a skeleton."""
    return hashlib.sha256(skeleton).hexdigest()


def _sum_of(piece: torch.Tensor) -> int:
    """As `transfer.checksum`, in this thread alone: torch would take the cores that train."""
    content = piece.numpy()
    words = content.size // 8 * 8
    tail = int.from_bytes(content[words:].tobytes(), "little")
    return int(content[:words].view(np.int64).sum()) + tail


def _as_signed(total: int) -> int:
    return (total + 2**63) % 2**64 - 2**63


class _Ended(Exception):
    """Scrubbing is to end."""


class Scrubber:
    """Does `work` in a thread, at a low rate. Nobody waits for it: its file system may hang.

    Args:
        work: is given what is to be called after so many bytes were read.
        bytes_per_s: the rate.
    """

    def __init__(
        self, work: Callable[[Callable[[int], None]], object], bytes_per_s: float = SCRUB_BYTES_PER_S
    ) -> None:
        self._work = work
        self._bytes_per_s = bytes_per_s
        self._ended = threading.Event()

    def begin(self) -> None:
        """Begin anew; what was under way is ended."""
        self.end()
        self._ended = ended = threading.Event()
        begun, read = time.monotonic(), 0

        def paced(count: int) -> None:
            nonlocal read
            read += count
            if ended.wait(max(0.0, begun + read / self._bytes_per_s - time.monotonic())):
                raise _Ended

        def run() -> None:
            try:
                self._work(paced)
            except _Ended:
                return

        threading.Thread(target=run, name="malletrain-scrub", daemon=True).start()

    def end(self) -> None:
        """End what is under way, at its next piece. Idempotent."""
        self._ended.set()
