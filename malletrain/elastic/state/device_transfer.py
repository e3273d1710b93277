"""Sends a packed training state from device to device, through the communicator of its world.

What lies on the device is taken as one row of bytes and broadcast piece by piece, between two steps; the rest goes
as messages (`transfer`). A broadcast reaches all newcomers in one pass over each link, so no tree is needed; members
that have the state already receive it into a piece of memory of their own. Checksums are made on the devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from malletrain.elastic.comm.device_group import DeviceGroup
from malletrain.elastic.comm.group import Work
from malletrain.elastic.errors import PeerLost
from malletrain.elastic.state.training_state import pack, specs_of, unpack
from malletrain.elastic.state.transfer import as_bytes, sum_of_words

PIECE_BYTES = 64 * 1024 * 1024

#: Pieces that are broadcast at once: the memory that this takes beside the state.
PIECES_IN_FLIGHT = 4


def split_state(
    skeleton: bytes, tensors: Sequence[torch.Tensor], takes: Callable[[torch.Tensor], bool]
) -> tuple[tuple[bytes, list[torch.Tensor]], list[torch.Tensor]]:
    """Divide a packed state into a smaller one for messages and the tensors on the device.

    Args:
        takes: whether a tensor is the device's.
    """
    places = [place for place, tensor in enumerate(tensors) if takes(tensor)]
    host = [tensor for place, tensor in enumerate(tensors) if place not in set(places)]
    text = torch.frombuffer(bytearray(skeleton), dtype=torch.uint8)
    return pack({"skeleton": text, "host": host, "places": places}), [tensors[place] for place in places]


def join_state(
    message: tuple[bytes, list[torch.Tensor]], device: torch.device
) -> tuple[bytes, list[torch.Tensor], list[torch.Tensor]]:
    """The inverse of `split_state`: the skeleton and all tensors, of which the device's, the third value, are empty.

    Raises:
        PeerLost: the message is not one of `split_state`.
    """
    tree: dict[str, Any] = unpack(*message)
    try:
        skeleton, host = tree["skeleton"].numpy().tobytes(), iter(tree["host"])
        specs, places = specs_of(skeleton), set(tree["places"])
        tensors = [
            torch.empty(shape, dtype=dtype, device=device) if place in places else next(host)
            for place, (dtype, shape) in enumerate(specs)
        ]
    except (KeyError, TypeError, StopIteration, RuntimeError) as error:
        raise PeerLost(f"the state cannot be received: {type(error).__name__} {error}") from error
    return skeleton, tensors, [tensors[place] for place in sorted(places)]


def bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """The length of the row of bytes that `broadcast_state` sends."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def broadcast_state(
    group: DeviceGroup,
    root: int,
    total: int,
    tensors: Sequence[torch.Tensor] | None,
    device: torch.device,
    wait: Callable[[Work], None],
) -> None:
    """Take part in the broadcast of a state.

    Args:
        group: of all that take part, in no other collective meanwhile.
        root: the rank that sends.
        total: bytes of the state, the same at all members.
        tensors: at the root, to send; at a receiver, to fill; None at a member that needs none.
        device: of the tensors.
        wait: waits for an operation; may raise.

    Raises:
        PeerLost: a member is lost, or the checksums differ.
    """
    if not total:
        return
    sends = group.rank == root
    sums: list[torch.Tensor] = []
    under_way: deque[tuple[Work, torch.Tensor, list[torch.Tensor]]] = deque()

    def finish_one() -> None:
        work, piece, parts = under_way.popleft()
        wait(work)
        if parts and not sends:
            sums.append(sum_of_words(piece))
            torch._foreach_copy_(parts, list(piece.split([part.numel() for part in parts])))

    for length, parts in _pieces(total, tensors):
        if len(under_way) == PIECES_IN_FLIGHT:
            finish_one()
        piece = torch.cat(parts) if sends else torch.empty(length, dtype=torch.uint8, device=device)
        if sends:
            sums.append(sum_of_words(piece))
        under_way.append((group.broadcast(piece, root), piece, parts))
    while under_way:
        finish_one()
    many = -(-total // PIECE_BYTES)
    theirs = torch.stack(sums) if sends else torch.zeros(many, dtype=torch.int64, device=device)
    wait(group.broadcast(theirs, root))
    if tensors is not None and not torch.equal(torch.stack(sums), theirs):
        raise PeerLost("the state that the device received is not whole: its checksums differ")


def _pieces(total: int, tensors: Sequence[torch.Tensor] | None) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Length of each piece of the row, and the bytes of the tensors that it consists of."""
    rows = deque(row for tensor in tensors or () if (row := as_bytes(tensor)).numel())
    for begin in range(0, total, PIECE_BYTES):
        left = length = min(PIECE_BYTES, total - begin)
        parts: list[torch.Tensor] = []
        while rows and left:
            row = rows.popleft()
            parts.append(row[:left])
            if row.numel() > left:
                rows.appendleft(row[left:])
            left -= parts[-1].numel()
        yield length, parts
