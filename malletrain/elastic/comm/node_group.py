"""Nodes with several processes each: their local ranks, and process groups that reduce in the node first, then across
nodes.

A node is one member of the world and runs one or more processes, one a GPU for example, started by torchrun or srun.
All of them run the same code; local rank 0 communicates with the daemon.

An all-reduce has three stages: an all-reduce among the processes of a node; then each process all-reduces its part
with the processes of the same local rank on other nodes; then the parts are put together in the node. So each element
crosses between nodes once, however many processes a node has, over as many connections as there are processes.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from malletrain.elastic.comm.background import BackgroundThread, Task
from malletrain.elastic.comm.group import Group, SoloGroup, Work, abandoned
from malletrain.elastic.errors import ElasticError, PeerLost

#: How often the thread of a group checks whether the group was abandoned.
POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class LocalRank:
    """Torchrun's LOCAL_RANK (`rank`) and LOCAL_WORLD_SIZE (`size`)."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0


def find_local_rank(environ: Mapping[str, str]) -> LocalRank:
    """By torchrun's variables, else in a pilot srun's (outside, the tasks of an srun may be independent trainings);
    without either, the process is alone on its node. Raises `ElasticError`: the launcher started processes on other
    nodes too; each pilot starts those of its node only."""
    for rank, size, world_size in (
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
        ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"),
    ):
        if rank == "SLURM_LOCALID" and "MALLETRAIN_URL" not in environ:
            break
        if found := rank_in(environ, rank, size):
            if found[1] > 1 and environ.get(world_size, str(found[1])) != str(found[1]):
                raise ElasticError(
                    f"{size} is {found[1]} and {world_size} is {environ[world_size]}: start the processes of this "
                    "node alone (torchrun --standalone --nproc-per-node=N); the session finds the other nodes"
                )
            return LocalRank(*found)
    return LocalRank()


def rank_in(environ: Mapping[str, str], *names: str) -> tuple[int, int] | None:
    """A rank, and of how many, as two variables have them; None where they do not."""
    rank, size = (environ.get(name, "") for name in names)
    sound = rank.isdecimal() and size.isdecimal() and int(rank) < int(size)
    return (int(rank), int(size)) if sound else None


class NodeGroup:
    """A `Group` made of two: rank = node * processes a node + local rank.

    Messages can be sent within a node and between processes of the same local rank; other pairs are not connected.

    Args:
        local: the processes of this node.
        across: the processes of this local rank, on all nodes.
    """

    def __init__(self, local: Group, across: Group) -> None:
        self._local, self._across = local, across
        self.rank = across.rank * local.size + local.rank
        self.size = across.size * local.size
        self._abandoned = False
        # One thread runs all operations in the order of their calls. That order is the same on every member, so no
        # two members ever wait for each other in different operations.
        self._calls: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        BackgroundThread(self._run, "node")

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        if self._abandoned:
            raise abandoned()
        call = Task(lambda: self._sum(tensor.detach().view(-1)))
        self._calls.put(call)
        return call

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        group, rank = self._route(to)
        group.send(tensor, rank, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        group, rank = self._route(source)
        group.receive(tensor, rank, tag)

    def abandon(self) -> None:
        self._abandoned = True
        self._calls.put(None)
        self._local.abandon()
        self._across.abandon()

    def _route(self, rank: int) -> tuple[Group, int]:
        if self._abandoned:
            raise abandoned()
        node, local_rank = divmod(rank, self._local.size)
        if local_rank == self._local.rank:
            return self._across, node
        if node == self._across.rank:
            return self._local, local_rank
        raise ValueError(f"rank {self.rank} has no connection to rank {rank}: another node and another local rank")

    def _run(self) -> None:
        while not self._abandoned or not self._calls.empty():  # those of a group that is abandoned fail
            if (call := self._calls.get()) is not None:
                call.run()

    def _finish(self, pending: Work) -> None:
        while not pending.wait(POLL_INTERVAL_S):
            if self._abandoned:
                raise abandoned()

    def _sum(self, flat: torch.Tensor) -> None:
        """Sum in the three stages."""
        local = self._local
        try:
            self._finish(local.all_reduce(flat))
            if isinstance(self._across, SoloGroup):
                return
            parts = flat.tensor_split(local.size)
            if parts[local.rank].numel():
                self._finish(self._across.all_reduce(parts[local.rank]))
            for rank, part in enumerate(parts):
                if rank != local.rank:
                    part.zero_()
            self._finish(local.all_reduce(flat))
        except PeerLost:
            raise
        except Exception as error:
            # abandon() may come at any moment; whatever fails then means the same to the caller.
            raise PeerLost(str(error)) from error
