"""Process groups over MPI: CPU tensors, for processes that one `mpiexec` or `srun --mpi=...` started together.

MPI uses the fastest interconnect without further setup and needs no rendezvous address. Most implementations end all
processes when one is lost, so such a world has a fixed size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from malletrain import pip_install
from malletrain.elastic.comm.group import Group, SoloGroup, Work, abandoned, wait_complete
from malletrain.elastic.errors import ElasticError, PeerLost

#: Pause between two tests of MPI requests, doubled from the first to the second. MPI makes progress only during
#: tests.
MIN_TEST_PAUSE_S, MAX_TEST_PAUSE_S = 20e-6, 1e-3


def mpi_world() -> Group:
    """The group of all processes of MPI_COMM_WORLD; initialises MPI if necessary. Pass it to `Options(world=...)`.
    Raises `ElasticError`: mpi4py or MPI's library is missing, or MPI does not support MPI_THREAD_MULTIPLE."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ElasticError(
            f"MPI cannot be used ({error}): install mpi4py ({pip_install('mpi')}) where MPI's library is"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise ElasticError("this MPI does not allow calls from several threads: build it with MPI_THREAD_MULTIPLE")
    if MPI.COMM_WORLD.size == 1:
        return SoloGroup()
    return MpiGroup(MPI, MPI.COMM_WORLD.Dup())


class MpiGroup:
    """A `Group` over an MPI communicator that nobody else uses. `mpi`: the module `mpi4py.MPI`."""

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi = mpi
        self._communicator: Any = communicator
        communicator.Set_errhandler(mpi.ERRORS_RETURN)
        self.rank: int = communicator.rank
        self.size: int = communicator.size
        self._pending: list[_Requests] = []

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        flat = _flat(tensor)
        # MPI has no 16-bit floats: they are summed in float32, which is also more exact.
        wide = flat.float() if flat.dtype in (torch.bfloat16, torch.float16) else flat
        parts = [wide.numpy()] if flat.numel() else []
        return self._start(
            lambda c: [c.Iallreduce(self._mpi.IN_PLACE, each) for each in parts], wide, lambda: flat.copy_(wide)
        )

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        flat = _flat(tensor).view(torch.uint8)
        wait_complete(self._start(lambda c: [c.Isend(flat.numpy(), to, tag)], flat))

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        flat = _flat(tensor).view(torch.uint8)
        wait_complete(self._start(lambda c: [c.Irecv(flat.numpy(), source, tag)], flat))

    def abandon(self) -> None:
        self._communicator = None

    def _start(
        self, begin: Callable[[Any], list[Any]], tensor: torch.Tensor, settle: Callable[[], object] = lambda: None
    ) -> Work:
        if self._communicator is None:
            raise abandoned()
        try:
            requests = _Requests(self._mpi, begin(self._communicator), tensor, settle)
        except self._mpi.Exception as error:
            raise PeerLost(str(error)) from error
        # MPI writes to the tensor until the requests are complete, also when the caller drops them.
        self._pending = [*(other for other in self._pending if not other.done), requests]
        return requests


class _Requests:
    """Requests in progress; keeps `tensor` alive, which MPI reads and writes until they are complete."""

    def __init__(
        self, mpi: Any, requests: list[Any], tensor: torch.Tensor | None, settle: Callable[[], object]
    ) -> None:
        self._mpi, self._requests, self._tensor, self._settle = mpi, requests, tensor, settle
        self.done = False

    def wait(self, seconds: float) -> bool:
        if self.done:
            return True
        end, pause = time.monotonic() + seconds, MIN_TEST_PAUSE_S
        while True:
            try:
                over = self._mpi.Request.Testall(self._requests)
            except self._mpi.Exception as error:
                raise PeerLost(str(error)) from error
            if over:
                break
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(MAX_TEST_PAUSE_S, 2 * pause)
        self.done = True
        self._settle()
        self._tensor = None
        return True


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ElasticError("MPI groups take contiguous CPU tensors")
    return tensor.detach().view(-1)
