"""A group of nodes with several processes each: sums in the node first, then across nodes, a part by each process.

A sum of n elements goes in three stages: over the processes of a node; then each process sums its part of it with
those at the same place in the other nodes; then the parts are gathered inside the node. So between nodes each element
travels once, however many processes a node has, and there are as many streams as processes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from malletrain.elastic.comm.background import Task
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group, SoloGroup, Work
from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.errors import PeerLost

#: How soon the thread of a group notices that it was given up.
POLL_INTERVAL_S = 0.05


def make_world_group(
    address: str, generation: int, node: int, nodes: int, place: LocalRank, host: str, patience: timedelta
) -> Group:
    """The group of a generation's world, of `nodes` nodes that are all like this one; blocks until the others come.

    Raises:
        PeerLost: they did not come within `patience`, or the store is gone.
    """
    if place.size == 1:
        return make_group(address, generation, node, nodes, host, patience)
    local = make_group(address, generation, place.rank, place.size, host, patience, f"-node-{node}")
    try:
        across = make_group(address, generation, node, nodes, host, patience, f"-place-{place.rank}")
    except PeerLost:
        local.abandon()
        raise
    return NodeGroup(local, across)


class NodeGroup:
    """A group out of two: rank = rank of the node * processes a node + rank in the node.

    Messages go between processes of one node, and between those at the same place in two nodes.

    Args:
        local: the processes of this node.
        across: those at this process's place, of all nodes.
    """

    def __init__(self, local: Group, across: Group) -> None:
        self._local, self._across = local, across
        self.rank = across.rank * local.size + local.rank
        self.size = across.size * local.size
        self._abandoned = False
        # One thread does all operations in the order of their calls: it is the same on every member, so no two
        # members ever wait for each other in different operations.
        self._calls: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="malletrain-node", daemon=True).start()

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        return self._begin(lambda: self._sum(tensor.detach().view(-1)))

    def all_reduce_across(self, tensor: torch.Tensor) -> Work:
        """Sum over the processes at this place of all nodes alone: of what each place has another part of."""
        flat = tensor.detach().view(-1)
        return self._begin(lambda: self._finish(self._across.all_reduce(flat)))

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> Work:
        return self._begin(lambda: self._gather(into, tensor))

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        group, rank = self._way(to)
        group.send(tensor, rank, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        group, rank = self._way(source)
        group.receive(tensor, rank, tag)

    def abandon(self) -> None:
        self._abandoned = True
        self._calls.put(None)
        self._local.abandon()
        self._across.abandon()

    # --- inside -----------------------------------------------------------------------------------------------

    def _way(self, rank: int) -> tuple[Group, int]:
        if self._abandoned:
            raise PeerLost("the group was given up")
        node, place = divmod(rank, self._local.size)
        if place == self._local.rank:
            return self._across, node
        if node == self._across.rank:
            return self._local, place
        raise ValueError(f"rank {self.rank} has no connection to rank {rank}: another node, another place in it")

    def _begin(self, work: Callable[[], None]) -> Work:
        if self._abandoned:
            raise PeerLost("the group was given up")
        call = Task(lambda: self._do(work))
        self._calls.put(call)
        return call

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except PeerLost:
            raise
        except Exception as error:
            # The parts may be given up at any moment of it; what is wrong then is of no interest.
            raise PeerLost(str(error)) from error

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
        while not self._calls.empty():  # begun in the moment when the group was given up
            if (call := self._calls.get()) is not None:
                call.fail(PeerLost("the group was given up"))

    def _finish(self, pending: Work) -> None:
        while not pending.wait(POLL_INTERVAL_S):
            if self._abandoned:
                raise PeerLost("the group was given up")

    def _sum(self, flat: torch.Tensor) -> None:
        local = self._local
        self._finish(local.all_reduce(flat))
        if isinstance(self._across, SoloGroup) or not flat.numel():
            return
        each = flat.numel() // local.size
        if each:
            parts = list(flat[: each * local.size].chunk(local.size))
            self._finish(self._across.all_reduce(parts[local.rank]))
            self._finish(local.all_gather(parts, parts[local.rank].clone()))
        rest = flat[each * local.size :]
        if rest.numel():
            # Fewer elements than processes: the first one sums them, the others add nothing to what it tells them.
            if local.rank == 0:
                self._finish(self._across.all_reduce(rest))
            else:
                rest.zero_()
            self._finish(local.all_reduce(rest))

    def _gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        nodes, places = self._across.size, self._local.size
        mine = tensor.new_empty((nodes, *tensor.shape))
        self._finish(self._across.all_gather(list(mine.unbind(0)), tensor))
        every = mine.new_empty((places, *mine.shape))
        self._finish(self._local.all_gather(list(every.unbind(0)), mine))
        for rank, target in enumerate(into):
            node, place = divmod(rank, places)
            target.copy_(every[place, node])
