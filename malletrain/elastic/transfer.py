"""Tensors from one member to another: in pieces, each summed, believed only when all sums agree.

TCP guards each byte; the sums guard against a giver that died and was mistaken for whole, and against two states
mixed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from malletrain.elastic.errors import PeerLost
from malletrain.elastic.groups import Background, Group
from malletrain.elastic.state import specs_of

PIECE_BYTES = 16 * 1024 * 1024
MAX_SKELETON_BYTES = 256 * 1024 * 1024


def give(group: Group, to: int, tag: int, skeleton: bytes, tensors: list[torch.Tensor]) -> None:
    """Send a packed state. Blocks.

    Raises:
        PeerLost: the taker is gone.
    """
    text = torch.frombuffer(bytearray(skeleton), dtype=torch.uint8)
    group.send(torch.tensor([len(skeleton)]), to, tag)
    group.send(text, to, tag)
    sums = []
    for piece in pieces([as_bytes(tensor) for tensor in tensors]):
        on_its_way = Background(lambda piece=piece: group.send(piece, to, tag), "give")  # type: ignore[misc]
        sums.append(digest(piece))
        while not on_its_way.wait(60.0):
            pass
    group.send(torch.tensor([digest(text), *sums], dtype=torch.int64), to, tag)


def take(group: Group, source: int, tag: int) -> tuple[bytes, list[torch.Tensor]]:
    """Receive a packed state whole. Blocks.

    Raises:
        PeerLost: the giver is gone, or what came is not what it sent.
    """
    length = torch.zeros(1, dtype=torch.int64)
    group.receive(length, source, tag)
    if not 0 < int(length) <= MAX_SKELETON_BYTES:
        raise PeerLost(f"rank {source} offers a skeleton of {int(length)} bytes")
    text = torch.empty(int(length), dtype=torch.uint8)
    group.receive(text, source, tag)
    skeleton = text.numpy().tobytes()
    tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in specs_of(skeleton)]
    sums, last = [digest(text)], None
    for piece in pieces([as_bytes(tensor) for tensor in tensors]):
        coming = Background(lambda piece=piece: group.receive(piece, source, tag), "take")  # type: ignore[misc]
        if last is not None:
            sums.append(digest(last))
        while not coming.wait(60.0):
            pass
        last = piece
    if last is not None:
        sums.append(digest(last))
    theirs = torch.empty(len(sums), dtype=torch.int64)
    group.receive(theirs, source, tag)
    if theirs.tolist() != sums:
        raise PeerLost(f"the state from rank {source} is not whole: its sums differ")
    return skeleton, tensors


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory, on the host."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)


def pieces(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Byte tensors cut into pieces that are sent each on its own."""
    for tensor in tensors:
        for begin in range(0, tensor.numel(), PIECE_BYTES):
            yield tensor[begin : begin + PIECE_BYTES]


def digest(piece: torch.Tensor) -> int:
    """A sum of 64-bit words, wrapping: a pass at memory speed. The remainder counts too."""
    words = piece.numel() // 8 * 8
    head = piece[:words]
    if head.data_ptr() % 8:
        head = head.clone()
    tail = int.from_bytes(piece[words:].numpy().tobytes(), "little") if words < piece.numel() else 0
    return (int(head.view(torch.int64).sum()) + tail + 2**63) % 2**64 - 2**63
