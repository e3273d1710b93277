"""Sends a packed training state from one member to others, in pieces with checksums.

TCP protects each byte; the checksums protect against a sender that died midway and against a mix of two states. A
receiver can relay each piece while it receives the next, so that many newcomers cost a sender no more than `FAN_OUT`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from malletrain.elastic.comm.background import Background
from malletrain.elastic.comm.group import Group, wait_complete
from malletrain.elastic.errors import PeerLost
from malletrain.elastic.state.training_state import specs_of

PIECE_BYTES = 16 * 1024 * 1024
MAX_SKELETON_BYTES = 256 * 1024 * 1024

#: Receivers that a member sends to; with more of them, receivers relay.
FAN_OUT = 2


def relay_tree(senders: Sequence[int], receivers: Sequence[int]) -> dict[int, list[int]]:
    """The ranks that each rank sends to. Each receiver has one sender, no rank has more than `FAN_OUT` receivers, and
    all senders take part."""
    children: dict[int, list[int]] = {rank: [] for rank in [*senders, *receivers]}
    level, left = list(senders), list(receivers)
    while left:
        below: list[int] = []
        for _ in range(FAN_OUT):
            for sender in level:
                if left:
                    below.append(left.pop(0))
                    children[sender].append(below[-1])
        level = below
    return children


class _Relay:
    """Sends pieces to several members, one at a time to each. A message's tag is the rank that receives it."""

    def __init__(self, group: Group, to: Sequence[int]) -> None:
        self._group = group
        self._to = to
        self._under_way: list[Background] = []

    def send(self, piece: torch.Tensor) -> None:
        """Wait until the previous piece is sent, and start to send this one. Raises `PeerLost`."""
        self.finish()
        for receiver in self._to:
            call = lambda receiver=receiver: self._group.send(piece, receiver, receiver)  # noqa: E731
            self._under_way.append(Background(call, "give"))

    def finish(self) -> None:
        """Wait until the last piece is sent. Raises `PeerLost`."""
        for sending in self._under_way:
            wait_complete(sending)
        self._under_way = []


def send_state(group: Group, to: Sequence[int], skeleton: bytes, tensors: list[torch.Tensor]) -> None:
    """Send a packed state (`training_state.pack`) to several members. Blocks. Raises `PeerLost`: one is lost."""
    text = torch.frombuffer(bytearray(skeleton), dtype=torch.uint8)
    relay = _Relay(group, to)
    relay.send(torch.tensor([len(skeleton)]))
    relay.send(text)
    sums = [checksum(text)]
    for packet in packets(tensors):
        piece = packet.filled()
        relay.send(piece)
        sums.append(checksum(piece))
    relay.send(torch.tensor(sums, dtype=torch.int64))
    relay.finish()


def receive_state(group: Group, source: int, on: Sequence[int] = ()) -> tuple[bytes, list[torch.Tensor]]:
    """Receive a packed state. Blocks.

    Args:
        source: the rank that sends it.
        on: ranks to relay each piece to.

    Raises:
        PeerLost: the sender or a receiver is lost, or the checksums differ.
    """
    relay = _Relay(group, on)

    def receive(tensor: torch.Tensor) -> torch.Tensor:
        group.receive(tensor, source, group.rank)
        relay.send(tensor)
        return tensor

    length = int(receive(torch.zeros(1, dtype=torch.int64)))
    if not 0 < length <= MAX_SKELETON_BYTES:
        raise PeerLost(f"rank {source} offers a skeleton of {length} bytes")
    text = receive(torch.empty(length, dtype=torch.uint8))
    skeleton = text.numpy().tobytes()
    tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in specs_of(skeleton)]
    sums = [checksum(text), *(packet.scatter(receive(packet.receive_buffer())) for packet in packets(tensors))]
    theirs = receive(torch.empty(len(sums), dtype=torch.int64))
    relay.finish()
    if theirs.tolist() != sums:
        raise PeerLost(f"the state from rank {source} is not whole: its checksums differ")
    return skeleton, tensors


class Packet:
    """The content of one message: a slice of a large tensor, in place, or several small tensors."""

    def __init__(self, parts: list[torch.Tensor]) -> None:
        self._parts = parts

    def filled(self) -> torch.Tensor:
        """The bytes to send, in host memory."""
        if not any(part.is_cuda for part in self._parts):
            return self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts)
        # Pinned memory is copied to 40 times as fast as pageable; torch keeps it for the next piece.
        host = torch.empty(self._length(), dtype=torch.uint8, pin_memory=True)
        for part, space in zip(self._parts, host.split([each.numel() for each in self._parts]), strict=True):
            space.copy_(part, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return host

    def receive_buffer(self) -> torch.Tensor:
        """Where to receive the bytes; call `scatter` afterwards."""
        if len(self._parts) == 1:
            return self._parts[0]
        return torch.empty(self._length(), dtype=torch.uint8)

    def _length(self) -> int:
        return sum(part.numel() for part in self._parts)

    def scatter(self, piece: torch.Tensor) -> int:
        """Copy a received piece into its tensors, if it is not there already; returns its checksum."""
        if len(self._parts) > 1:
            torch._foreach_copy_(self._parts, list(piece.split([part.numel() for part in self._parts])))
        return checksum(piece)


def packets(tensors: Sequence[torch.Tensor]) -> Iterator[Packet]:
    """Divide the bytes of all tensors, in order, into packets of at most `PIECE_BYTES`."""
    small: list[torch.Tensor] = []
    for tensor in tensors:
        flat = as_bytes(tensor)
        if sum(part.numel() for part in small) + flat.numel() > PIECE_BYTES and small:
            yield Packet(small)
            small = []
        if flat.numel() <= PIECE_BYTES:
            small.append(flat)
            continue
        for begin in range(0, flat.numel(), PIECE_BYTES):
            yield Packet([flat[begin : begin + PIECE_BYTES]])
    if small:
        yield Packet(small)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, where it lies; shares memory with a contiguous one."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def checksum(piece: torch.Tensor) -> int:
    """The sum of all 64-bit words and the remaining bytes, modulo 2^64, made where the piece lies: as fast as reading
    the memory."""
    words = piece.numel() // 8 * 8
    head, tail = piece[:words], piece[words:].to(torch.int64)
    if head.data_ptr() % 8 or head.storage_offset() % 8:
        head = head.clone()
    return int(head.view(torch.int64).sum() + (tail << 8 * torch.arange(tail.numel(), device=tail.device)).sum())
