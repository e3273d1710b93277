"""Process groups over gloo: CPU tensors over TCP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.background import close_behind
from malletrain.elastic.comm.group import Group, SoloGroup, Work, abandoned
from malletrain.elastic.comm.pair_proof import prove_pairs
from malletrain.elastic.comm.peer_store import first_line
from malletrain.elastic.comm.torch_store import generation_store
from malletrain.elastic.errors import PeerLost

#: Much of what is needed here is exported without types.
_dist: Any = torch.distributed
_c10d: Any = torch._C._distributed_c10d

#: Gloo's own limit on a collective: longer than any step or evaluation on one rank. Callers wait in short slices.
OPERATION_TIMEOUT = timedelta(hours=2)

#: Limit on a message of at most 64 MiB between two peers.
MESSAGE_TIMEOUT = timedelta(minutes=2)


def make_group(meeting: Meeting, rank: int, size: int, host: str, timeout: timedelta, part: str = "") -> Group:
    """Rendezvous with `size - 1` peers and connect to them; blocks until all have come and proven that they are
    members.

    Args:
        meeting: of the generation; its address is that of a member's store (`peer_store.StoreServer.address`).
        host: the address at which peers reach this process, and the only one that it listens on.
        timeout: how long to wait for the peers.
        part: tells several groups of one generation apart.

    Raises:
        PeerLost: not all peers came within `timeout`, one of them is a stranger, or the store is gone.
    """
    if size == 1:
        return SoloGroup()
    store = generation_store(meeting, part, timeout)
    try:
        options = _dist.ProcessGroupGloo._Options()
        # Pairs are connected now: a stranger could take one that is connected later.
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=host, lazy_init=False)]
        # While the group is made, a peer that never comes must not hold this thread for OPERATION_TIMEOUT.
        options._timeout = timeout
        group = _dist.ProcessGroupGloo(store, rank, size, options)
        group._set_default_timeout(OPERATION_TIMEOUT)
    except RuntimeError as error:  # the base class of DistStoreError and DistNetworkError
        raise PeerLost(first_line(error)) from error
    finally:
        store.close()
    held = [group]
    try:
        prove_pairs(group, rank, size, meeting, part, held)
    except PeerLost:
        del group
        close_behind(held.clear, "close-group")
        raise
    return GlooGroup(group, rank, size)


class GlooGroup:
    """A `Group` over a `ProcessGroupGloo`."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group: Any = group
        self.rank = rank
        self.size = size
        self._pending: list[_GlooWork] = []

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        options = _dist.AllreduceOptions()
        options.timeout = OPERATION_TIMEOUT
        return self._start(lambda group: group.allreduce([tensor], options))

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> Work:
        options = _c10d.AllgatherOptions()
        options.timeout = OPERATION_TIMEOUT
        return self._start(lambda group: group.allgather([list(into)], [tensor], options))

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        # Unlike a collective, a message whose wait times out breaks the whole group: one long wait, no slices.
        self._call(lambda group: group.send([tensor], to, tag).wait(MESSAGE_TIMEOUT))

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        self._call(lambda group: group.recv([tensor], source, tag).wait(MESSAGE_TIMEOUT))

    def abandon(self) -> None:
        """Give the group up. Closing it blocks while one of its operations is stuck (abort and shutdown do not help),
        so a thread does that, and keeps alive the tensors that operations may still write to."""
        if self._group is None:
            return
        held = [self._pending, self._group]
        self._group, self._pending = None, []
        close_behind(held.clear, "close-group")

    def _start(self, call: Callable[[Any], Any]) -> Work:
        work = _GlooWork(self._call(call))
        self._pending = [*(other for other in self._pending if not other.done), work]
        return work

    def _call(self, call: Callable[[Any], Any]) -> Any:
        group = self._group  # another thread may abandon it meanwhile
        if group is None:
            raise abandoned()
        try:
            return call(group)
        except RuntimeError as error:
            raise PeerLost(first_line(error)) from error


class _GlooWork:
    def __init__(self, work: Any) -> None:
        self._work = work
        self.done = False

    def wait(self, seconds: float) -> bool:
        if self.done:
            return True
        try:
            self._work.wait(timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError as error:
            if not self._work.is_completed():
                return False  # this wait timed out; the operation goes on
            # It completed, possibly just now: wait once more to learn whether it failed.
            try:
                self._work.wait(timedelta(seconds=0.001))
            except RuntimeError as final:
                self.done = True
                raise PeerLost(first_line(final)) from error
        self.done = True
        return True
