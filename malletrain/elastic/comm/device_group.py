"""Sums on an accelerator, whose operations complete asynchronously, as a group's collectives.

`DeviceGroup` states once how such operations are waited for and given up; `Collectives` is what it needs of NCCL.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from malletrain.elastic.comm.background import close_behind
from malletrain.elastic.comm.group import Work, abandoned

#: How often the host asks the device whether an operation is complete.
QUERY_INTERVAL_S = 0.0001


class DeviceEvent(Protocol):
    """The end of an operation on the device, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the device has passed it. Does not block."""
        ...


class Collectives(Protocol):
    """A communicator. Operations are queued on the device behind what the calling thread's stream holds.

    A failed operation raises `PeerLost`; `ElasticError` where the device of this process has failed.
    """

    def all_reduce(self, tensor: torch.Tensor) -> DeviceEvent:
        """Sum a contiguous tensor over all members, in place."""
        ...

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> DeviceEvent:
        """Copy the `tensor` of each rank r into `into[r]`."""
        ...

    def broadcast(self, tensor: torch.Tensor, root: int) -> DeviceEvent:
        """Copy the contiguous tensor of rank `root` into that of every member."""
        ...

    def abort(self) -> None:
        """End all operations. Blocks, for ever in the worst case. Operations in progress then look complete, with
        partial results in their tensors."""
        ...


class DeviceGroup:
    """The collectives of a `Group` on a device. It sends no messages.

    Args:
        collectives: the communicator, which belongs to this group from now on.
        rank, size: of this process.
    """

    def __init__(self, collectives: Collectives, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.given_up = False
        self._collectives: Collectives | None = collectives
        self._pending: list[_DeviceWork] = []

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        collectives = self._open()
        return self._track(collectives.all_reduce(tensor), (tensor,))

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> Work:
        collectives = self._open()
        return self._track(collectives.all_gather(into, tensor), (*into, tensor))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Copy the tensor of rank `root` into that of every member. All members call it in the same order among their
        collectives."""
        collectives = self._open()
        return self._track(collectives.broadcast(tensor, root), (tensor,))

    def abandon(self) -> None:
        """Give the group up without waiting. A thread aborts it, and keeps alive the tensors that operations in
        progress may still write to."""
        self.given_up = True  # before the abort: whoever sees an operation complete looks at this afterwards
        collectives, self._collectives = self._collectives, None
        if collectives is not None:
            held, self._pending = self._pending, []
            close_behind(lambda: _abort(collectives, held), "abort-device")

    def _open(self) -> Collectives:
        collectives = self._collectives  # another thread may abandon it meanwhile
        if collectives is None:
            raise abandoned()
        return collectives

    def _track(self, event: DeviceEvent, tensors: tuple[torch.Tensor, ...]) -> Work:
        work = _DeviceWork(self, event, tensors)
        self._pending = [*(other for other in self._pending if not other.done), work]
        return work


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """The device groups of one world.

    Attributes:
        flat: all processes.
        device: of this process.
        across: the processes of this local rank on all nodes, where a model is sharded over the processes of a node;
            else None.
    """

    flat: DeviceGroup
    device: torch.device
    across: DeviceGroup | None = None

    def abandon(self) -> None:
        """As `DeviceGroup.abandon`, of each."""
        self.flat.abandon()
        if self.across is not None:
            self.across.abandon()


def _abort(collectives: Collectives, held: list[_DeviceWork]) -> None:
    try:
        collectives.abort()
    finally:
        held.clear()


class _DeviceWork:
    def __init__(self, group: DeviceGroup, event: DeviceEvent, tensors: tuple[torch.Tensor, ...]) -> None:
        self._group = group
        self._event = event
        self._tensors = tensors
        self.done = False

    def wait(self, seconds: float) -> bool:
        if self.done:
            return True
        end = time.monotonic() + seconds
        while not self._event.query():
            if self._group.given_up:
                raise abandoned()
            if time.monotonic() >= end:
                return False
            time.sleep(QUERY_INTERVAL_S)
        if self._group.given_up:
            raise abandoned()  # aborted operations complete too, with partial sums
        self.done, self._tensors = True, ()
        return True
