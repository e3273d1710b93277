"""Transfer of the training state: along a tree, in pieces, accepted only if all checksums agree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.comm.group import Group
from malletrain.elastic.errors import PeerLost
from malletrain.elastic.state import transfer
from malletrain.elastic.state.training_state import pack, unpack
from malletrain.elastic.state.transfer import FAN_OUT, checksum, packets, receive_state, relay_tree, send_state
from tests.elastic.stores import run


@given(st.integers(1, 20), st.integers(0, 300))
def test_the_tree_reaches_each_receiver_once_and_is_shallow(givers: int, takers: int) -> None:
    children = relay_tree(range(givers), range(givers, givers + takers))
    reached = [taker for below in children.values() for taker in below]
    assert sorted(reached) == list(range(givers, givers + takers))
    assert max((len(below) for below in children.values()), default=0) <= FAN_OUT
    level, depth = list(range(givers)), 0
    while any(children[rank] for rank in level):
        level = [taker for rank in level for taker in children[rank]]
        depth += 1
    assert givers * (2 ** (depth + 1) - 2) >= takers > (givers * (2**depth - 2) if depth else -1)


def test_with_enough_senders_each_receiver_has_its_own() -> None:
    assert [len(below) for below in relay_tree([0, 1, 2, 3], [4, 5]).values()] == [1, 1, 0, 0, 0, 0]


@given(st.lists(st.integers(0, 300), max_size=30))
def test_packets_hold_every_byte_in_order(sizes: list[int]) -> None:
    tensors = [torch.arange(size, dtype=torch.int32) for size in sizes]
    taken = [torch.full_like(tensor, -1) for tensor in tensors]
    for packet, other in zip(packets(tensors), packets(taken), strict=True):
        piece = other.receive_buffer()
        piece.copy_(packet.filled())
        assert other.scatter(piece) == checksum(packet.filled())
    assert all(torch.equal(left, right) for left, right in zip(tensors, taken, strict=True))


def test_the_checksum_detects_a_change_of_any_byte() -> None:
    piece = torch.arange(101, dtype=torch.uint8)
    for place in range(101):
        other = piece.clone()
        other[place] ^= 1
        assert checksum(other) != checksum(piece)


MODEL = {"w": torch.randn(70, 30), "b": torch.randn(3), "n": torch.tensor(7), "none": torch.zeros(0)}
HALF = torch.randn(33).to(torch.bfloat16)
STATE = {"model": MODEL, "half": [HALF, True, "text"]}


def hand_down(group: Group, givers: int) -> object:
    children = relay_tree(range(givers), range(givers, group.size))
    if group.rank < givers:
        send_state(group, children[group.rank], *pack(STATE))
        return STATE
    source = next(rank for rank, below in children.items() if group.rank in below)
    return unpack(*receive_state(group, source, children[group.rank]))


@pytest.mark.parametrize("piece_bytes", [512, 16 * 1024 * 1024], ids=["many pieces", "one piece"])
@pytest.mark.parametrize(("givers", "size"), [(1, 8), (2, 5)])
def test_every_receiver_gets_the_whole_state(
    monkeypatch: pytest.MonkeyPatch, givers: int, size: int, piece_bytes: int
) -> None:
    monkeypatch.setattr(transfer, "PIECE_BYTES", piece_bytes)
    for got in run(size, lambda group: hand_down(group, givers)):
        assert isinstance(got, dict), got
        for name, tensor in MODEL.items():
            assert torch.equal(got["model"][name], tensor)
        assert torch.equal(got["half"][0], HALF)
        assert got["half"][1:] == [True, "text"]


def test_a_state_that_changed_in_transit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = transfer.Packet.scatter

    def scatter(self: transfer.Packet, piece: torch.Tensor) -> int:
        piece[0] ^= 1
        return honest(self, piece)

    monkeypatch.setattr(transfer.Packet, "scatter", scatter)
    results = run(2, lambda group: hand_down(group, 1))
    assert isinstance(results[1], PeerLost)
    assert "checksums differ" in str(results[1])
