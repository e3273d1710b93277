"""Tensors from one member to others: in pieces, each summed, believed only when all sums agree.

TCP guards each byte; the sums guard against a giver that died and was mistaken for whole, and against two states
mixed. A taker may hand each piece on while the next is on its way, so that many newcomers cost a giver no more than
two do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from malletrain.elastic.comm.background import Background
from malletrain.elastic.comm.group import Group
from malletrain.elastic.errors import PeerLost
from malletrain.elastic.state.buffer_pool import BufferPool
from malletrain.elastic.state.training_state import specs_of

PIECE_BYTES = 16 * 1024 * 1024
MAX_SKELETON_BYTES = 256 * 1024 * 1024

#: So many takers have a giver to themselves; with more of them, takers hand on.
FAN_OUT = 2


def relay_tree(givers: Sequence[int], takers: Sequence[int]) -> dict[int, list[int]]:
    """Who gives to whom: each taker has one giver, nobody more than `FAN_OUT` takers, and all givers take part."""
    children: dict[int, list[int]] = {rank: [] for rank in [*givers, *takers]}
    level, left = list(givers), list(takers)
    while left:
        below: list[int] = []
        for _ in range(FAN_OUT):
            for giver in level:
                if left:
                    below.append(left.pop(0))
                    children[giver].append(below[-1])
        level = below
    return children


class _Handing:
    """Pieces on their way to some members, one at a time to each. A message's tag is the rank that takes it."""

    def __init__(self, group: Group, to: Sequence[int]) -> None:
        self._group = group
        self._to = to
        self._under_way: list[Background] = []

    def send(self, piece: torch.Tensor) -> None:
        """Begin to send, once the piece before has gone. Raises `PeerLost`."""
        self.settle()
        for taker in self._to:
            call = lambda taker=taker: self._group.send(piece, taker, taker)  # noqa: E731
            self._under_way.append(Background(call, "give"))

    def settle(self) -> None:
        """Wait until the piece has gone. Raises `PeerLost`."""
        for sending in self._under_way:
            while not sending.wait(60.0):
                pass
        self._under_way = []


def send_state(group: Group, to: Sequence[int], skeleton: bytes, tensors: list[torch.Tensor]) -> None:
    """Send a packed state to some members. Blocks.

    Raises:
        PeerLost: a taker is gone.
    """
    text = torch.frombuffer(bytearray(skeleton), dtype=torch.uint8)
    handing = _Handing(group, to)
    handing.send(torch.tensor([len(skeleton)]))
    handing.send(text)
    sums = [digest(text)]
    for packet in packets(tensors):
        piece = packet.filled()
        handing.send(piece)
        sums.append(digest(piece))
    handing.send(torch.tensor(sums, dtype=torch.int64))
    handing.settle()


def receive_state(
    group: Group, source: int, on: Sequence[int] = (), buffer_pool: BufferPool | None = None
) -> tuple[bytes, list[torch.Tensor]]:
    """Receive a packed state whole, into `room` where that fits, and hand each piece `on` to other members. Blocks.

    Raises:
        PeerLost: the giver or a taker is gone, or what came is not what was sent.
    """
    handing = _Handing(group, on)

    def receive(tensor: torch.Tensor) -> torch.Tensor:
        group.receive(tensor, source, group.rank)
        handing.send(tensor)
        return tensor

    length = int(receive(torch.zeros(1, dtype=torch.int64)))
    if not 0 < length <= MAX_SKELETON_BYTES:
        raise PeerLost(f"rank {source} offers a skeleton of {length} bytes")
    text = receive(torch.empty(length, dtype=torch.uint8))
    skeleton = text.numpy().tobytes()
    buffer_pool = buffer_pool or BufferPool(())
    tensors = [buffer_pool.tensor(dtype, shape) for dtype, shape in specs_of(skeleton)]
    sums: list[int] = []
    summing = Background(lambda: sums.append(digest(text)), "sum")
    for packet in packets(tensors):
        piece = receive(packet.place())
        summing.wait(60.0)
        summing = Background(lambda piece=piece, packet=packet: sums.append(packet.settle(piece)), "sum")  # type: ignore[misc]
    theirs = receive(torch.empty(1 + sum(1 for _ in packets(tensors)), dtype=torch.int64))
    while not summing.wait(60.0):
        pass
    handing.settle()
    if theirs.tolist() != sums:
        raise PeerLost(f"the state from rank {source} is not whole: its sums differ")
    return skeleton, tensors


class Packet:
    """What travels as one message: a slice of a large tensor, where it lies; or some small tensors, side by side."""

    def __init__(self, parts: list[torch.Tensor]) -> None:
        self._parts = parts

    def filled(self) -> torch.Tensor:
        """The bytes to send."""
        return self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts)

    def place(self) -> torch.Tensor:
        """Where the bytes are to be received; `settle` follows."""
        if len(self._parts) == 1:
            return self._parts[0]
        return torch.empty(sum(part.numel() for part in self._parts), dtype=torch.uint8)

    def settle(self, piece: torch.Tensor) -> int:
        """Put what came where it belongs; its sum."""
        if len(self._parts) > 1:
            begin = 0
            for part in self._parts:
                part.copy_(piece[begin : begin + part.numel()])
                begin += part.numel()
        return digest(piece)


def packets(tensors: Sequence[torch.Tensor]) -> Iterator[Packet]:
    """All the bytes of all tensors, in order, at most `PIECE_BYTES` at a time."""
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
    """A contiguous tensor's memory, on the host."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)


def digest(piece: torch.Tensor) -> int:
    """A sum of 64-bit words, wrapping: a pass at memory speed. The remainder counts too."""
    words = piece.numel() // 8 * 8
    head = piece[:words]
    if head.data_ptr() % 8:
        head = head.clone()
    tail = int.from_bytes(piece[words:].numpy().tobytes(), "little") if words < piece.numel() else 0
    return (int(head.view(torch.int64).sum()) + tail + 2**63) % 2**64 - 2**63
