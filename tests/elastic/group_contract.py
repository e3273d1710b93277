"""The contract suite of `malletrain.elastic.comm.group.Group`: all members call `check(group)` at once.

Run as a script under `mpiexec`, it checks MPI's group. A new transport calls `check` from a test of its own.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import torch

from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.group import wait_complete as done
from malletrain.elastic.errors import PeerLost


def check(group: Group, rings: Sequence[Sequence[int]] = (), device: str = "cpu") -> str:
    """Return "kept", or raise `AssertionError`: the group breaks its contract.

    Args:
        rings: for groups in which not every pair of members is connected, lists of members that are, each with this
            member in it.
        device: of the tensors that are summed; messages are of the host's.
    """
    rings = rings or [range(group.size)]
    _sums(group, device)
    _many_at_once(group, device)
    if group.size > 1:
        for ring in rings:
            _messages(group, ring)
        _waits_in_slices(group, rings[0], device)
        _keeps_tensors_alive(group, rings[0])
    _alike_after_messages(group, device)
    done(group.all_reduce(torch.zeros(1)))
    group.abandon()
    group.abandon()
    if group.size > 1:
        _takes_no_calls(group)
    return "kept"


def _sums(group: Group, device: str) -> None:
    members = sum(range(1, group.size + 1))
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.full((5, 3), group.rank + 1, device=device).to(dtype)
        done(group.all_reduce(tensor))
        assert torch.equal(tensor.cpu(), torch.full((5, 3), members).to(dtype)), dtype
    large = torch.tensor([2**60 + group.rank], device=device)  # a sum in floating point would lose the rank
    if group.size < 8:
        done(group.all_reduce(large))
        assert int(large) == group.size * 2**60 + sum(range(group.size))
    scalar, empty = torch.tensor(1.5, device=device), torch.zeros(0, device=device)
    done(group.all_reduce(scalar))
    done(group.all_reduce(empty))
    assert float(scalar) == 1.5 * group.size


def _many_at_once(group: Group, device: str) -> None:
    """Started in the same order by all members, waited for in a different order by each."""
    tensors = [
        torch.full((100_000 * (i % 3) + 7,), float(i + group.rank), dtype=torch.float64, device=device)
        for i in range(9)
    ]
    pending = [group.all_reduce(tensor) for tensor in tensors]
    for i in [*range(group.rank, 9), *range(group.rank)]:
        done(pending[i])
        assert pending[i].wait(0.0), "a complete operation stays complete"
        assert tensors[i].eq(i * group.size + sum(range(group.size))).all()


def _messages(group: Group, ring: Sequence[int]) -> None:
    """Each member sends to its neighbour from two threads with different tags, from a byte to megabytes."""
    mine = list(ring).index(group.rank)
    right, left = ring[(mine + 1) % len(ring)], ring[mine - 1]
    sizes = [(1, torch.uint8), (0, torch.float32), (3_000_000, torch.float32), (5, torch.bfloat16)]
    for number, (size, dtype) in enumerate(sizes):
        there = [torch.full((size,), group.rank + 2 * tag).to(dtype) for tag in (10, 11)]
        here = [torch.zeros(size, dtype=dtype) for _ in there]
        threads = [
            threading.Thread(target=group.send, args=(tensor, right, 2 * number + tag))
            for tag, tensor in zip((11, 10), reversed(there), strict=True)
        ]
        for thread in threads:
            thread.start()
        for tag, tensor in zip((10, 11), here, strict=True):
            group.receive(tensor, left, 2 * number + tag)
            assert torch.equal(tensor, torch.full((size,), left + 2 * tag).to(dtype))
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive()


def _waits_in_slices(group: Group, ring: Sequence[int], device: str) -> None:
    """A wait that times out returns False, and the operation goes on."""
    tensor = torch.ones(4, device=device)
    if group.rank == ring[0]:
        pending = group.all_reduce(tensor)
        assert not pending.wait(0.02)
        for rank in ring[1:]:
            group.send(torch.ones(1), rank, 99)
    else:
        group.receive(torch.zeros(1), ring[0], 99)
        pending = group.all_reduce(tensor)
    done(pending)
    assert tensor.eq(group.size).all()


def _keeps_tensors_alive(group: Group, ring: Sequence[int]) -> None:
    """An aborted step drops its tensors and its `Work` while other members may still send to them."""
    array = np.ones(4)
    alive = weakref.ref(array)
    if group.rank == ring[0]:
        group.all_reduce(torch.from_numpy(array))
        del array
        gc.collect()
        assert alive() is not None, "memory that an operation in progress writes to was freed"
        for rank in ring[1:]:
            group.send(torch.ones(1), rank, 98)
    else:
        group.receive(torch.zeros(1), ring[0], 98)
        done(group.all_reduce(torch.from_numpy(array)))
        assert (array == group.size).all()


def _alike_after_messages(group: Group, device: str) -> None:
    """All members get bitwise the same sum."""
    generator = torch.Generator().manual_seed(group.rank)
    tensor = torch.randn(10_001, generator=generator).to(device)
    done(group.all_reduce(tensor))
    table = torch.zeros(group.size, tensor.numel(), device=device)
    table[group.rank] = tensor
    done(group.all_reduce(table))
    assert all(torch.equal(row, tensor) for row in table)


def _takes_no_calls(group: Group) -> None:
    for call in (
        lambda: group.all_reduce(torch.zeros(1)),
        lambda: group.send(torch.zeros(1), 0, 1),
        lambda: group.receive(torch.zeros(1), 0, 1),
    ):
        try:
            call()
        except PeerLost:
            continue
        raise AssertionError("an abandoned group still takes calls")


if __name__ == "__main__":
    from malletrain.elastic.comm.mpi_group import mpi_world

    torch.set_num_threads(1)
    world = mpi_world()
    check(world)
    print(f"kept by rank {world.rank} of {world.size}", flush=True)
