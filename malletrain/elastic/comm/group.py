"""The contract of a process group, which `tests/elastic/group_contract.py` checks, and the group of a single
process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from malletrain.elastic.errors import PeerLost


class Work(Protocol):
    """An operation in progress."""

    def wait(self, seconds: float) -> bool:
        """Block for at most `seconds`; return whether the operation is complete. Once True, always True. Raises
        `PeerLost`: it failed, and the group cannot be used any more."""


class Group(Protocol):
    """A process group of fixed membership. All members issue the same collectives in the same order.

    An implementation must guarantee that

    * collectives return at once and may be in progress together; `Work.wait` may be called in any order and with
      short timeouts, and a timeout that expires leaves the operation running;
    * `all_reduce` gives every member bitwise the same sum, for float64, float32, bfloat16 and int64 (int64 exactly),
      for scalars and for empty tensors: members take decisions from these values;
    * tensors handed to an operation stay alive until it is complete, even if the caller drops them and the `Work`: an
      aborted step does;
    * `send` and `receive` may run in several threads at once, matched by (peer, tag), beside collectives;
    * a failed operation raises `PeerLost`, never anything else, and never blocks longer than the transport's timeout;
    * `abandon` returns at once whatever is in progress, may be called twice and from any thread, and every later call
      raises `PeerLost`.

    Groups are objects: none depends on torch.distributed's default group. A group is never repaired; the next
    generation of the world gets a new one.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> Work: ...  # the sum of a contiguous tensor, in place

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None: ...  # blocks: call it in a thread of its own

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None: ...  # blocks

    def abandon(self) -> None: ...


class SoloGroup:
    """The group of a single process: every operation is complete at once."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        return _Complete()

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        raise PeerLost("alone")

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        raise PeerLost("alone")

    def abandon(self) -> None:
        pass


class _Complete:
    def wait(self, seconds: float) -> bool:
        return True


def wait_complete(work: Work) -> None:
    """Wait for an operation without a limit of one's own. Raises `PeerLost`."""
    while not work.wait(60.0):
        pass


def table_of(group: Group, row: Sequence[float], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """A table that has each member's row by its rank, once it is summed over all."""
    table = torch.zeros(group.size, len(row), dtype=dtype)
    table[group.rank] = torch.tensor(row, dtype=dtype)
    return table


def abandoned() -> PeerLost:
    """The error that every call on an abandoned group raises."""
    return PeerLost("the group was given up")
