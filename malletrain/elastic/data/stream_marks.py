"""Where a stream was, and what followed: a worker that takes a stream over finds out whether it has the same one.

Now and then a digest of the samples that follow is given to all members, beside the gradients of a step; and with it,
of a stream with `state_dict` and `load_state_dict`, its state, so that it is not read again from its start. If other
samples follow after that state, it is not used: that of a shuffle buffer, for example, often lacks its contents. If
others follow after the stream was read from its start, workers have different streams.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy
import torch
from torch.utils._pytree import tree_leaves

#: Steps between two marks; at most so many are read again.
STEPS_BETWEEN_MARKS = 16

#: Bytes in which each member gets the mark of one stream. Larger states are left alone.
MARK_BYTES = 16 * 1024

#: Samples that must follow as before; bytes of their digest.
MAX_FOLLOWING, DIGEST_BYTES = 8, 8

#: Numbers with a point that are looked at in a tensor.
SOME_VALUES = 16


@runtime_checkable
class StatefulStream(Protocol):
    """A stream that can say where it is."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamMark:
    """The state of a stream after `taken` samples, as JSON ("" if it has none), and a digest of the `following`
    samples."""

    taken: int
    state: str
    following: int
    digest: str

    def is_followed_by(self, samples: Sequence[Any]) -> bool:
        """Whether these are the samples after the mark."""
        return len(samples) >= self.following and digest_of(samples[: self.following]).hex() == self.digest


def state_text(stream: object) -> str:
    """The state of a stream as JSON; "" if it has none that is plain data of moderate size."""
    if not isinstance(stream, StatefulStream):
        return ""
    try:
        text = json.dumps(stream.state_dict(), allow_nan=False)
    except (TypeError, ValueError):  # it holds what is no plain data
        return ""
    return text if len(text) < MARK_BYTES - DIGEST_BYTES else ""


def encoded(text: str, samples: Sequence[Any]) -> torch.Tensor:
    """A mark as a row of 64-bit words: how many samples follow, their digest, and the state."""
    followed = list(samples[:MAX_FOLLOWING])
    content = bytes([len(followed)]) + digest_of(followed) + text.encode()
    return torch.frombuffer(bytearray(content.ljust(MARK_BYTES, b"\0")), dtype=torch.int64)


def decoded(row: torch.Tensor, taken: int) -> StreamMark | None:
    """The mark that `encoded` made; None if nobody filled it in."""
    content = row.numpy().tobytes()
    following, digest, text = content[0], content[1 : DIGEST_BYTES + 1], content[DIGEST_BYTES + 1 :].rstrip(b"\0")
    return StreamMark(taken, text.decode(), following, digest.hex()) if following else None


def _bytes_of(values: torch.Tensor) -> bytes:
    """Of numbers with a point, some, and two digits: processors differ in the last ones."""
    if values.is_floating_point() or values.is_complex():
        some = values[:: max(1, len(values) // SOME_VALUES)].to(torch.complex128).tolist()
        return " ".join(f"{each.real:.2g} {each.imag:.2g}" for each in some).encode()
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def digest_of(samples: Sequence[Any]) -> bytes:
    """A digest of what samples hold, the same in each process."""
    summed = hashlib.sha256()
    for leaf in tree_leaves(list(samples)):
        if isinstance(leaf, torch.Tensor):
            summed.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            summed.update(_bytes_of(leaf.detach().cpu().reshape(-1)))
        elif isinstance(leaf, bytes | bytearray | memoryview):
            summed.update(leaf)
        elif hasattr(leaf, "__array__"):  # of numpy, or a picture
            summed.update(_bytes_of(torch.as_tensor(numpy.array(leaf)).reshape(-1)))
        else:
            text = repr(leaf)
            summed.update((type(leaf).__qualname__ if " at 0x" in text else text).encode())
        summed.update(b"|")
    return summed.digest()[:DIGEST_BYTES]
