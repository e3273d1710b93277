"""A group of two carriers: one for tensors on a device, one for tensors in host memory and for messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from malletrain.elastic.comm.background import Background
from malletrain.elastic.comm.device_group import DeviceGroup, DeviceParts
from malletrain.elastic.comm.group import Group, Work
from malletrain.elastic.comm.node_group import NodeGroup
from malletrain.elastic.errors import ElasticError, PeerLost


class PairedGroup:
    """A `Group` that carries device tensors over `DeviceGroup` and everything else over `host`.

    The device part is connected beside training (`connect_beside`), or between two steps (`connect_now`).

    Args:
        host: the group of the same members for host memory.
        takes: whether a tensor is the device part's.
        connect: makes the device part; blocks. Its arguments are the name of the attempt, the same at all members,
            and the time limit. Raises `PeerLost`.
    """

    def __init__(
        self,
        host: Group,
        takes: Callable[[torch.Tensor], bool],
        connect: Callable[[str, timedelta], DeviceParts],
    ) -> None:
        self.rank = host.rank
        self.size = host.size
        self.host = host
        self._takes = takes
        self._connect = connect
        self._attempt: _Attempt | None = None
        self._device: DeviceParts | None = None
        self._abandoned = False

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is carried by the device part."""
        return self._takes(tensor)

    @property
    def parts(self) -> DeviceParts | None:
        """The device part, once it is connected; the same at all members."""
        return self._device

    def connect_beside(self, limit: timedelta) -> None:
        """Try to connect the device part while training goes on in another group. All members keep it, or none does.

        Raises:
            PeerLost: a member is lost.
            ElasticError: the device of this process has failed.
        """
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
            self._device = attempt.made
            return
        attempt.drop()
        if not answered:
            raise PeerLost("a member did not say whether its device is connected")

    def connect_now(self, limit: timedelta, check: Callable[[], None], poll_s: float = 0.02) -> None:
        """Connect the device part between two steps, unless that is done. `check` is called meanwhile and may raise.

        Raises:
            PeerLost: not all peers came within `limit`.
            ElasticError: the device of this process has failed.
        """
        if self._device is not None:
            return
        attempt = self._begin("boundary", limit)
        try:
            while not attempt.wait(poll_s):
                check()
        except BaseException:
            attempt.drop()
            raise
        self._device = attempt.made

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        return self._part(tensor).all_reduce(tensor)

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> Work:
        return self._part(tensor).all_gather(into, tensor)

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        self.host.send(tensor, to, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        self.host.receive(tensor, source, tag)

    def all_reduce_across(self, tensor: torch.Tensor) -> Work:
        """Sum over the processes of this local rank only: for tensors that are sharded over a node of several
        processes."""
        if self._device is not None and self._device.across is not None and self._takes(tensor):
            return self._device.across.all_reduce(tensor)
        if not isinstance(self.host, NodeGroup):
            raise ElasticError("a model is sharded over the processes of a node, and this node has one")
        return self.host.all_reduce_across(tensor)

    def abandon(self) -> None:
        self._abandoned = True
        if self._attempt is not None:
            self._attempt.drop()
        self.host.abandon()

    def _begin(self, name: str, limit: timedelta) -> _Attempt:
        attempt = self._attempt = _Attempt(lambda: self._connect(name, limit))
        if self._abandoned:  # by another thread, which may not have seen this attempt
            attempt.drop()
        return attempt

    def _part(self, tensor: torch.Tensor) -> Group | DeviceGroup:
        if not self._takes(tensor):
            return self.host
        if self._device is None:
            raise ElasticError("device tensors cannot be summed before connect_beside or connect_now")
        return self._device.flat


class _Attempt:
    """A device part that is being connected. If it is dropped first, it is given up as soon as it is made."""

    def __init__(self, connect: Callable[[], DeviceParts]) -> None:
        self._connect = connect
        self.made: DeviceParts | None = None
        self._dropped = False
        self._lock = threading.Lock()
        self._work = Background(self._run, "connect-device")

    def _run(self) -> None:
        made = self._connect()
        with self._lock:
            self.made = made
            late = self._dropped
        if late:
            made.abandon()

    def wait(self, seconds: float) -> bool:
        """Whether it is made within `seconds`. Raises what connecting raised."""
        return self._work.wait(seconds)

    def drop(self) -> None:
        """Give it up, made or not. Idempotent."""
        with self._lock:
            self._dropped, made = True, self.made
        if made is not None:
            made.abandon()
