"""The training state from device to device: all of it or an error, with pieces of any size."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from malletrain.elastic.comm.device_group import DeviceGroup, PairedGroup
from malletrain.elastic.comm.group import Group, wait_complete
from malletrain.elastic.errors import PeerLost
from malletrain.elastic.state import device_transfer
from malletrain.elastic.state.device_transfer import broadcast_state, bytes_of, join_state, split_state
from malletrain.elastic.state.training_state import pack, unpack
from tests.elastic.device_stand_in import StandInCollectives
from tests.elastic.test_device_group import worlds
from tests.elastic.test_transfer import run

CPU = torch.device("cpu")
STATE: dict[str, Any] = {
    "weight": torch.randn(70, 30, generator=torch.Generator().manual_seed(1)),
    "half": torch.arange(33).to(torch.bfloat16),
    "empty": torch.zeros(0),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "step": torch.tensor(7),
    "text": ["x", True, None],
}


def floats(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point()


def test_what_is_split_is_joined_again() -> None:
    message, on_device = split_state(*pack(STATE), floats)
    assert [tensor.dtype for tensor in on_device] == [torch.float32, torch.bfloat16, torch.float32, torch.float64]
    skeleton, tensors, empty = join_state(message, CPU)
    for target, source in zip(empty, on_device, strict=True):
        target.copy_(source)
    again = unpack(skeleton, tensors)
    assert again["text"] == STATE["text"]
    assert all(torch.equal(again[name], STATE[name]) for name in ("weight", "half", "empty", "scalar", "step"))


def test_another_message_is_refused() -> None:
    with pytest.raises(PeerLost, match="the state cannot be received"):
        join_state(pack({"skeleton": torch.zeros(3)}), CPU)


def parts_of(group: Group) -> DeviceGroup:
    assert isinstance(group, PairedGroup)
    assert group.flat is not None
    return group.flat


def share(group: Group, root: int, receivers: set[int], wait: Any = wait_complete) -> object:
    """One member's part; returns the state that it has then."""
    message, on_device = split_state(*pack(STATE), floats)
    total = bytes_of(on_device)
    flat = parts_of(group)
    if group.rank == root:
        broadcast_state(flat, root, total, on_device, CPU, wait)
        return STATE
    if group.rank not in receivers:
        broadcast_state(flat, root, total, None, CPU, wait)
        return None
    skeleton, tensors, empty = join_state(message, CPU)
    broadcast_state(flat, root, total, empty, CPU, wait)
    return unpack(skeleton, tensors)


@pytest.mark.parametrize("piece_bytes", [8, 64, 1000, 64 * 1024 * 1024])
@pytest.mark.parametrize(("size", "root", "receivers"), [(2, 0, {1}), (4, 1, {2, 3})])
def test_receivers_get_every_byte(
    monkeypatch: pytest.MonkeyPatch, size: int, root: int, receivers: set[int], piece_bytes: int
) -> None:
    if piece_bytes == 8 and size == 4:
        pytest.skip("the same at any size, and slow")
    monkeypatch.setattr(device_transfer, "PIECE_BYTES", piece_bytes)
    results = worlds(size, lambda group: share(group, root, receivers))
    for rank in receivers:
        got = results[rank]
        assert isinstance(got, dict), got
        for name in ("weight", "half", "empty", "scalar", "step"):
            assert torch.equal(got[name], STATE[name])


def test_a_piece_that_changed_on_the_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = StandInCollectives.broadcast
    spoilt: list[None] = []

    def broadcast(self: StandInCollectives, tensor: torch.Tensor, root: int) -> Any:
        done = honest(self, tensor, root)
        if self._group.rank == 1 and not spoilt:
            spoilt.append(None)
            while not done.query():
                pass
            tensor[3] ^= 1
        return done

    monkeypatch.setattr(StandInCollectives, "broadcast", broadcast)
    results = worlds(2, lambda group: share(group, 0, {1}))
    assert isinstance(results[1], PeerLost)
    assert "checksums differ" in str(results[1])


def test_an_abort_in_the_middle_leaves_no_state_behind() -> None:
    """The operations look complete then, with partial values."""

    def act(group: Group) -> object:
        flat = DeviceGroup(StandInCollectives(group, delay_s=60.0), group.rank, group.size)
        _, on_device = split_state(*pack(STATE), floats)
        tensors = on_device if group.rank == 0 else [torch.zeros_like(tensor) for tensor in on_device]
        threading.Timer(0.1, flat.abandon).start()
        broadcast_state(flat, 0, bytes_of(on_device), tensors, CPU, wait_complete)
        return "taken"

    assert all(isinstance(result, PeerLost) for result in run(2, act))
