"""Sums on an accelerator, whose operations complete asynchronously, as a group's collectives; and the pair of such a
group and one for host memory.

`DeviceGroup` states once how such operations are waited for and given up; `Collectives` is what it needs of NCCL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import torch

from malletrain.elastic.comm.background import BackgroundThread, Making
from malletrain.elastic.comm.group import Group, Work, abandoned
from malletrain.elastic.errors import ElasticError, PeerLost

#: How often the host asks the device whether an operation is complete.
QUERY_INTERVAL_S = 0.0001

#: How often one that connects between two steps looks whether the world still stands.
CONNECT_POLL_S = 0.02


class Collectives(Protocol):
    """A communicator. Operations are queued on the device behind what the calling thread's stream holds. A failed one
    raises `PeerLost`; `ElasticError` where the device of this process has failed."""

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], bool]:
        """As `Group.all_reduce`. Returns what says, without blocking, whether the device has done so."""

    def abort(self) -> None:
        """End all operations: they then look complete, with partial results. Blocks, for ever in the worst case."""


class DeviceGroup:
    """The collectives of a `Group` on a device, by a communicator of its own. It sends no messages."""

    def __init__(self, collectives: Collectives, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.abandoned = False
        self._collectives: Collectives | None = collectives
        self._pending: list[_DeviceWork] = []

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        collectives = self._collectives  # another thread may abandon it meanwhile
        if collectives is None:
            raise abandoned()
        work = _DeviceWork(self, collectives.all_reduce(tensor), tensor)
        self._pending = [*(other for other in self._pending if not other.done), work]
        return work

    def abandon(self) -> None:
        """Give the group up without waiting. A thread aborts it, and keeps alive the tensors that operations in
        progress may still write to."""
        self.abandoned = True  # before the abort: whoever sees an operation complete looks at this afterwards
        collectives, self._collectives = self._collectives, None
        if collectives is not None:
            held, self._pending = self._pending, []

            def abort() -> None:
                try:
                    collectives.abort()
                finally:
                    held.clear()

            BackgroundThread(abort, "abort-device")


class _DeviceWork:
    def __init__(self, group: DeviceGroup, is_complete: Callable[[], bool], tensor: torch.Tensor) -> None:
        self._group = group
        self._is_complete = is_complete
        self._tensor: torch.Tensor | None = tensor
        self.done = False

    def wait(self, seconds: float) -> bool:
        if self.done:
            return True
        end = time.monotonic() + seconds
        while not self._is_complete():
            if self._group.abandoned:
                raise abandoned()
            if time.monotonic() >= end:
                return False
            time.sleep(QUERY_INTERVAL_S)
        if self._group.abandoned:
            raise abandoned()  # aborted operations complete too, with partial sums
        self.done, self._tensor = True, None
        return True


class PairedGroup:
    """A `Group` that carries device tensors over `DeviceGroup` and everything else over `host`. The device part is
    connected beside training (`connect_in_background`), or between two steps (`connect_now`).

    Args:
        takes: whether a tensor is the device part's.
        connect: makes the device part; blocks. Its arguments are the name of the attempt, the same at all members,
            and the time limit. Raises `PeerLost`.
    """

    def __init__(
        self,
        host: Group,
        takes: Callable[[torch.Tensor], bool],
        connect: Callable[[str, timedelta], DeviceGroup],
    ) -> None:
        self.rank = host.rank
        self.size = host.size
        self.host = host
        self.takes = takes
        self._connect = connect
        self._attempt: Making[DeviceGroup] | None = None
        self.flat: DeviceGroup | None = None  #: the device part, once it is connected
        self._abandoned = False

    def connect_in_background(self, limit: timedelta) -> None:
        """Try to connect the device part while training goes on in another group. All members keep it, or none does.
        Raises `PeerLost`; `ElasticError`: the device of this process has failed."""
        attempt = self._begin("beside", limit)
        try:
            made = attempt.wait(limit.total_seconds())
        except PeerLost:
            made = False
        connected = torch.tensor([int(made)])
        try:
            answered = self.host.all_reduce(connected).wait(2 * limit.total_seconds())
        except PeerLost:
            attempt.drop()
            raise
        if answered and int(connected) == self.size:
            self.flat = attempt.made
            return
        attempt.drop()
        if not answered:
            raise PeerLost("a member did not say whether its device is connected")

    def connect_now(self, limit: timedelta, check: Callable[[], None]) -> None:
        """Connect the device part between two steps, unless that is done. `check` is called meanwhile and may raise.
        Raises `PeerLost`: not all peers came within `limit`; `ElasticError`: this process's device has failed."""
        if self.flat is not None:
            return
        attempt = self._begin("boundary", limit)
        try:
            while not attempt.wait(CONNECT_POLL_S):
                check()
        except BaseException:
            attempt.drop()
            raise
        self.flat = attempt.made

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        if not self.takes(tensor):
            return self.host.all_reduce(tensor)
        if self.flat is None and self._abandoned:
            raise abandoned()
        if self.flat is None:
            raise ElasticError("device tensors cannot be summed before connect_in_background or connect_now")
        return self.flat.all_reduce(tensor)

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        self.host.send(tensor, to, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        self.host.receive(tensor, source, tag)

    def abandon(self) -> None:
        self._abandoned = True
        if self._attempt is not None:
            self._attempt.drop()
        self.host.abandon()

    def _begin(self, name: str, limit: timedelta) -> Making[DeviceGroup]:
        attempt = self._attempt = Making(lambda: self._connect(name, limit), "connect-device")
        if self._abandoned:  # by another thread, which may not have seen this attempt
            attempt.drop()
        return attempt
