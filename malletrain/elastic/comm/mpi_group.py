"""CPU tensors over MPI: a group for processes that one `mpiexec` or `srun --mpi=...` has started together.

MPI knows the fastest way between nodes without RDMA set up for gloo, and needs no address to meet at. What it cannot
do is lose a process: most implementations end all of them then, so such a world keeps its size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from malletrain.elastic.comm.group import Group, SoloGroup, Work
from malletrain.elastic.errors import ElasticError, PeerLost

#: How long a thread that waits for MPI sleeps between two looks: from the first of these up to the second, in
#: seconds. MPI makes progress only while somebody looks.
FIRST_LOOK_S, LAST_LOOK_S = 20e-6, 1e-3

#: MPI counts in 32-bit numbers: longer tensors go in pieces of so many elements.
MAX_COUNT = 2**30


def mpi_world() -> Group:
    """The group of all processes that were started together; MPI is initialised if it was not.

    Raises:
        ElasticError: mpi4py or MPI's library is not there, or MPI does not allow calls from several threads.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ElasticError(
            f"MPI cannot be used ({error}): install mpi4py (pip install 'malletrain[mpi]') where MPI's library is"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise ElasticError("this MPI does not allow calls from several threads: build it with MPI_THREAD_MULTIPLE")
    if MPI.COMM_WORLD.size == 1:
        return SoloGroup()
    return MpiGroup(MPI, MPI.COMM_WORLD.Dup())


class MpiGroup:
    """A group over a communicator that nobody else uses.

    Args:
        mpi: the module `mpi4py.MPI`.
        communicator: of all members.
    """

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi = mpi
        self._communicator: Any = communicator
        communicator.Set_errhandler(mpi.ERRORS_RETURN)
        self.rank: int = communicator.rank
        self.size: int = communicator.size

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        flat = _flat(tensor)
        if flat.dtype in (torch.bfloat16, torch.float16):
            # MPI has no such types. Summed in float32 they are more exact than any backend's own sum.
            wide = flat.float()
            return self._pending([wide], self._reduce, lambda: flat.copy_(wide))
        return self._pending([flat], self._reduce)

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> Work:
        sent = _bytes(tensor)
        got = torch.empty(self.size * sent.numel(), dtype=torch.uint8)

        def settle() -> None:
            for target, piece in zip(into, got.chunk(self.size), strict=True):
                _bytes(target).copy_(piece)

        return _Requests(
            self._mpi, self._call(lambda c: [c.Iallgather(sent.numpy(), got.numpy())]), settle, [sent, got]
        )

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        flat = _bytes(tensor)
        self._through(lambda c, piece: c.Isend(piece.numpy(), to, tag), flat)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        flat = _bytes(tensor)
        self._through(lambda c, piece: c.Irecv(piece.numpy(), source, tag), flat)

    def abandon(self) -> None:
        self._communicator = None

    # --- inside -----------------------------------------------------------------------------------------------

    def _reduce(self, communicator: Any, piece: torch.Tensor) -> Any:
        return communicator.Iallreduce(self._mpi.IN_PLACE, piece.numpy())

    def _pending(
        self,
        tensors: list[torch.Tensor],
        begin: Callable[[Any, torch.Tensor], Any],
        settle: Callable[[], object] = lambda: None,
    ) -> Work:
        requests = self._call(
            lambda c: [
                begin(c, piece) for tensor in tensors for piece in torch.split(tensor, MAX_COUNT) if piece.numel()
            ]
        )
        return _Requests(self._mpi, requests, settle, tensors)

    def _through(self, begin: Callable[[Any, torch.Tensor], Any], flat: torch.Tensor) -> None:
        pending = self._pending([flat], begin)
        while not pending.wait(60.0):
            pass

    def _call(self, begin: Callable[[Any], list[Any]]) -> list[Any]:
        if self._communicator is None:
            raise PeerLost("the group was given up")
        try:
            return begin(self._communicator)
        except self._mpi.Exception as error:
            raise PeerLost(str(error)) from error


class _Requests:
    """Operations under way; MPI reads and writes `tensors` until they are done."""

    def __init__(
        self, mpi: Any, requests: list[Any], settle: Callable[[], object], tensors: list[torch.Tensor]
    ) -> None:
        self._mpi, self._requests, self._settle, self._tensors = mpi, requests, settle, tensors
        self._done = False

    def wait(self, seconds: float) -> bool:
        if self._done:
            return True
        end, pause = time.monotonic() + seconds, FIRST_LOOK_S
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
            pause = min(LAST_LOOK_S, 2 * pause)
        self._done = True
        self._settle()
        self._tensors = []
        return True


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ElasticError("MPI takes contiguous tensors in the host's memory")
    return tensor.detach().view(-1)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return _flat(tensor).view(torch.uint8) if tensor.dim() else _flat(tensor.view(1)).view(torch.uint8)
