"""Copies of the training state for checkpoints, which the device makes beside the next step, on a stream of its own.

Parameters and optimizer state change in the optimizer's step only. So large tensors are copied from where they lie
into pinned host memory, and before a backward pass returns, the device, not the host, waits for the rest of that copy
(`hold`). Small tensors and the model's buffers, which forward changes, are copied on the device first. What a script
changes before that nevertheless is found, and the checkpoint left out.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from malletrain.elastic.comm.late_read import LateRead
from malletrain.elastic.state.live_snapshot import LiveSnapshot
from malletrain.elastic.state.training_state import TrainingState

#: Each tensor begins at a multiple of so many bytes of the pinned memory.
ALIGNMENT_BYTES = 64

#: How often a writer asks whether the copy is complete.
POLL_INTERVAL_S = 0.002


class SideStream(Protocol):
    """A stream beside that of training."""

    #: Whether host memory must be pinned, so that copies do not stop the host.
    pinned: bool

    def copy(self, into: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Any:
        """Queue copies behind what the training's stream holds now; returns an event with `query()`."""
        ...

    def order(self, event: Any) -> None:
        """Have what is queued on the training's stream from now on wait for the event, on the device."""
        ...


class CudaSideStream:
    """See `SideStream`."""

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, into: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> torch.cuda.Event:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for place, tensor in zip(into, tensors, strict=True):
                place.copy_(tensor, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return event

    def order(self, event: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)


class SideCopy:
    """One copy under way.

    Attributes:
        skeleton: of the packed state.
    """

    def __init__(self, snapshot: LiveSnapshot, host: list[torch.Tensor], event: Any) -> None:
        self.skeleton = snapshot.skeleton
        self._snapshot = snapshot
        self._host = host
        self._event = event
        self._found: tuple[bool, LateRead | None] | None = None

    def hold(self, side: SideStream) -> None:
        """See `SideCopies.hold`."""
        side.order(self._event)
        self._found = self._changes()

    def tensors(self) -> list[torch.Tensor]:
        """The copies in host memory. Blocks until the device has made them."""
        while not self._event.query():
            time.sleep(POLL_INTERVAL_S)
        return self._host

    def is_whole(self) -> bool:
        """Whether nothing has changed what was being copied. Call it in a writer once the step that followed is
        committed, or no step will follow."""
        versions, read = self._changes() if self._found is None else self._found
        return not versions and (read is None or not any(read.values()))

    def _changes(self) -> tuple[bool, LateRead | None]:
        versions, row = self._snapshot.changes()
        return versions, None if row is None else LateRead(row)


class SideCopies:
    """Makes such copies, one at a time, in memory that is allocated once.

    Args:
        side: copies.
    """

    def __init__(self, side: SideStream) -> None:
        self._side = side
        self._memory: torch.Tensor | None = None
        self._allocating: threading.Thread | None = None
        self._under_way: SideCopy | None = None
        self._usable = True

    def prepare(self, state: TrainingState) -> bool:
        """Whether `take` can be called without waiting for memory; if not, allocate it in a thread. Pinning takes
        some .8 s a GB, which no step should wait for."""
        wanted = _room(state.specs())
        if not self._usable or (self._memory is not None and self._memory.numel() >= wanted):
            return True
        if self._allocating is None or not self._allocating.is_alive():

            def allocate() -> None:
                self._memory = torch.empty(wanted, dtype=torch.uint8, pin_memory=self._side.pinned)

            self._memory = None
            self._allocating = threading.Thread(target=allocate, name="malletrain-pin", daemon=True)
            self._allocating.start()
        return False

    def take(self, state: TrainingState) -> SideCopy | None:
        """Begin a copy between two steps; None if it has to be made in the usual way. The one before must be written.

        Raises:
            ElasticError: what `TrainingState.capture` raises.
        """
        if not self._usable or not self.prepare(state) or self._memory is None:
            return None
        snapshot = LiveSnapshot(state)
        host, at = [], 0
        for tensor in snapshot.tensors:
            size = tensor.numel() * tensor.element_size()
            host.append(self._memory[at : at + size].view(tensor.dtype).view(tensor.shape))
            at += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._under_way = SideCopy(snapshot, host, self._side.copy(host, snapshot.tensors))
        return self._under_way

    def hold(self) -> None:
        """Call it before anything may change the state: before a backward pass returns, and before a state is loaded.
        The device waits for the copy under way before it goes on; the host does not."""
        copy, self._under_way = self._under_way, None
        if copy is not None:
            copy.hold(self._side)

    def give_up(self) -> None:
        """Make no more copies this way: the script changes the state before its backward pass."""
        self._usable = False


def side_copies(state: TrainingState) -> SideCopies | None:
    """For a model on a GPU; else None."""
    device = next((parameter.device for parameter in state.model.parameters() if parameter.is_cuda), None)
    return None if device is None else SideCopies(CudaSideStream(device))


def _room(specs: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> int:
    sizes = (math.prod(shape) * dtype.itemsize for dtype, shape in specs)
    return sum(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes)
