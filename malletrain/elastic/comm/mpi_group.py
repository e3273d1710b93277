"""Process groups over MPI: CPU tensors, for processes that one `mpiexec` or `srun --mpi=...` started together.

MPI uses the fastest interconnect without further setup and needs no rendezvous address. Most implementations end all
processes when one is lost, so such a world has a fixed size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
        if flat.dtype in (torch.bfloat16, torch.float16):
            # MPI has no 16-bit floats: sum in float32, which is also more exact.
            wide = flat.float()
            return self._reduce(wide, lambda: flat.copy_(wide))
        return self._reduce(flat)

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        flat = _bytes(tensor)
        wait_complete(self._start(lambda c: [c.Isend(flat.numpy(), to, tag)], tensors=[flat]))

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        flat = _bytes(tensor)
        wait_complete(self._start(lambda c: [c.Irecv(flat.numpy(), source, tag)], tensors=[flat]))

    def abandon(self) -> None:
        self._communicator = None

    def _reduce(self, flat: torch.Tensor, settle: Callable[[], object] = lambda: None) -> Work:
        def begin(communicator: Any) -> list[Any]:
            return [communicator.Iallreduce(self._mpi.IN_PLACE, flat.numpy())] if flat.numel() else []

        return self._start(begin, settle, [flat])

    def _start(
        self,
        begin: Callable[[Any], list[Any]],
        settle: Callable[[], object] = lambda: None,
        tensors: Sequence[torch.Tensor] = (),
    ) -> Work:
        if self._communicator is None:
            raise abandoned()
        try:
            requests = _Requests(self._mpi, begin(self._communicator), settle, tensors)
        except self._mpi.Exception as error:
            raise PeerLost(str(error)) from error
        # MPI writes to the tensors until the requests are complete, also when the caller drops them.
        self._pending = [*(other for other in self._pending if not other.done), requests]
        return requests


class _Requests:
    """Requests in progress; keeps `tensors` alive, which MPI reads and writes until they are complete."""

    def __init__(
        self, mpi: Any, requests: list[Any], settle: Callable[[], object], tensors: Sequence[torch.Tensor]
    ) -> None:
        self._mpi, self._requests, self._settle, self._tensors = mpi, requests, settle, tensors
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
        self._tensors = ()
        return True


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ElasticError("MPI groups take contiguous CPU tensors")
    return tensor.detach().view(-1)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return _flat(tensor).view(torch.uint8) if tensor.dim() else _flat(tensor.view(1)).view(torch.uint8)
