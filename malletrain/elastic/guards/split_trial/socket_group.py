"""The group of two processes that one process forked."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import torch

from malletrain.elastic.comm.group import SoloGroup, Work
from malletrain.elastic.errors import PeerLost


class SocketGroup:
    """A group of two (see `comm.group.Group`) over a connected socket. Its operations are complete as they return.

    Args:
        link: to the other process.
        rank: 0 or 1.
    """

    size = 2

    def __init__(self, link: socket.socket, rank: int) -> None:
        self._link = link
        self.rank = rank

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        tensor.add_(self._exchange(tensor))
        return _NOTHING_LEFT

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> Work:
        into[1 - self.rank].copy_(self._exchange(tensor))
        into[self.rank].copy_(tensor)
        return _NOTHING_LEFT

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        raise PeerLost("this group has collective operations only")

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        raise PeerLost("this group has collective operations only")

    def abandon(self) -> None:
        self._link.close()

    def _exchange(self, tensor: torch.Tensor) -> torch.Tensor:
        other = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if self.rank == 0:
            send_tensor(self._link, tensor)
            receive_tensor(self._link, other)
        else:
            receive_tensor(self._link, other)
            send_tensor(self._link, tensor)
        return other


_NOTHING_LEFT = SoloGroup().all_reduce(torch.empty(0))


def send_tensor(link: socket.socket, tensor: torch.Tensor) -> None:
    """Send the elements of a tensor. Raises `PeerLost` if the other process is gone."""
    _send(link, _bytes_of(tensor.detach().contiguous()))


def receive_tensor(link: socket.socket, into: torch.Tensor) -> None:
    """Receive as many elements as a contiguous tensor has. Raises `PeerLost` if the other process is gone."""
    _receive(link, _bytes_of(into))


def send_bytes(link: socket.socket, data: bytes) -> None:
    """Send bytes, and how many. Raises `PeerLost` if the other process is gone."""
    send_tensor(link, torch.tensor(len(data)))
    _send(link, data)


def receive_bytes(link: socket.socket) -> bytes:
    """Receive what `send_bytes` has sent. Raises `PeerLost` if the other process is gone."""
    length = torch.tensor(0)
    receive_tensor(link, length)
    data = bytearray(int(length))
    _receive(link, memoryview(data))
    return bytes(data)


def _send(link: socket.socket, data: bytes | memoryview) -> None:
    try:
        link.sendall(data)
    except OSError as error:
        raise PeerLost(f"the other process of a trial is gone: {error}") from error


def _receive(link: socket.socket, rest: memoryview) -> None:
    while rest:
        try:
            count = link.recv_into(rest)
        except OSError as error:
            raise PeerLost(f"the other process of a trial is gone: {error}") from error
        if not count:
            raise PeerLost("the other process of a trial is gone")
        rest = rest[count:]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    data: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(data)
