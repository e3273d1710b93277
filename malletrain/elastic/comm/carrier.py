"""Which carrier sums the gradients of a model: gloo in host memory, or NCCL on its device; and NCCL's collectives."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from malletrain.elastic.comm.background import BackgroundThread
from malletrain.elastic.comm.device_group import QUERY_INTERVAL_S, Collectives
from malletrain.elastic.comm.gloo_group import OPERATION_TIMEOUT
from malletrain.elastic.comm.peer_store import first_line
from malletrain.elastic.errors import ElasticError, PeerLost

log = logging.getLogger("malletrain.elastic")

#: Much of what is needed here is exported without types.
_dist: Any = torch.distributed

#: Streams with a lower number go first.
HIGH_PRIORITY = -1

#: Limit on the communicator of one process that loads NCCL.
LOAD_LIMIT = timedelta(seconds=60)

#: Chooses the carrier: `auto` (NCCL for models on a GPU), `nccl` or `gloo`.
BACKEND_VARIABLE = "MALLETRAIN_BACKEND"

#: A communicator that is not connected by then beside training is made between two steps instead: kernels of two
#: communicators can wait for room that the other holds.
CONNECT_LIMIT = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class DeviceCarrier:
    """Carries tensors of a device."""

    takes: Callable[[torch.Tensor], bool]  #: whether a tensor is one of them
    #: Makes the communicator from a store, rank, size and time limit; blocks. Raises `PeerLost`.
    connect: Callable[[Any, int, int, timedelta], Collectives]
    load: Callable[[], None]  #: loads what the first communicator of a process needs, ahead of it; blocks
    connect_limit: timedelta = CONNECT_LIMIT  #: how long connecting may take while another communicator trains


def find_carrier(model: torch.nn.Module, environ: Mapping[str, str]) -> DeviceCarrier | None:
    """The carrier of a model's device; None where gloo carries everything. Raises `ElasticError`: the model is on two
    devices, or the variables ask for what is not there."""
    backend = environ.get(BACKEND_VARIABLE, "auto")
    if backend not in ("auto", "nccl", "gloo"):
        raise ElasticError(f"{BACKEND_VARIABLE}={backend!r}: must be auto, nccl or gloo")
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    on_gpu = sorted((device for device in devices if device.type == "cuda"), key=str)
    if len(on_gpu) > 1:
        raise ElasticError(
            f"the model is on {' and '.join(map(str, on_gpu))}: a process trains on one GPU; start one for each "
            "(torchrun --standalone --nproc-per-node=N)"
        )
    if backend == "nccl" and not on_gpu:
        raise ElasticError(
            f"{BACKEND_VARIABLE}=nccl, and the model is on {', '.join(sorted(map(str, devices)))}: move it to the "
            "GPU before Session is made, or leave the variable out"
        )
    if backend == "gloo" or not on_gpu:
        return None
    lacking = _lacks_nccl(environ)
    if lacking and backend == "nccl":
        raise ElasticError(f"{BACKEND_VARIABLE}=nccl: {lacking}")
    if lacking:
        log.warning("gradients of the GPU are summed by gloo, which is slow: %s", lacking)
        return None
    device = on_gpu[0]
    return DeviceCarrier(
        takes=lambda tensor: tensor.device == device,
        connect=functools.partial(connect_nccl, device=device),
        load=functools.partial(load_nccl, device),
    )


def _lacks_nccl(environ: Mapping[str, str]) -> str:
    if environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        # NCCL takes two slices of a GPU for one device ("Duplicate GPU detected") and has no path between
        # slices (github.com/NVIDIA/nccl/issues/1716).
        devices = environ["CUDA_VISIBLE_DEVICES"][:60]
        return f"this process has a slice of a GPU ({devices}), which NCCL does not connect"
    if not torch.distributed.is_nccl_available():
        return f"torch {torch.__version__} is built without NCCL"
    return ""


def connect_nccl(store: Any, rank: int, size: int, timeout: timedelta, device: torch.device) -> NcclCollectives:
    """Make a communicator of all processes and run a first sum in it, which connects its transports. May run beside
    training in another one. `store`: a torch `Store` that no other group uses. Raises `PeerLost`: not all peers came
    within `timeout`, or they could not be connected; `ElasticError`: the device of this process has failed."""
    end = time.monotonic() + timeout.total_seconds()
    torch.cuda.set_device(device)
    try:
        options = _dist.ProcessGroupNCCL.Options()
        options._timeout = OPERATION_TIMEOUT
        options.is_high_priority_stream = True
        group = _dist.ProcessGroupNCCL(store, rank, size, options)
        group.eager_connect_single_device(device)
    except RuntimeError as error:
        raise _translated(error, device) from error
    collectives = NcclCollectives(group, device, store)
    with torch.cuda.stream(torch.cuda.Stream(device, priority=HIGH_PRIORITY)):
        one = torch.ones(1, dtype=torch.float32, device=device)
        first = collectives.all_reduce(one)
    while not first():
        if time.monotonic() > end:
            BackgroundThread(collectives.abort, "abort-device")
            raise PeerLost(f"the first sum over NCCL was not complete within {timeout.total_seconds():g} s")
        time.sleep(QUERY_INTERVAL_S)
    return collectives


def load_nccl(device: torch.device) -> None:
    """Make a communicator of this process alone, and give it up: the first one of a process loads NCCL's kernels and
    finds the network, which takes some .4 s. Blocks, and raises as `connect_nccl`."""
    collectives = connect_nccl(_dist.HashStore(), 0, 1, LOAD_LIMIT, device)
    BackgroundThread(collectives.abort, "abort-loaded")


class NcclCollectives:
    """A `ProcessGroupNCCL` whose operations are waited for by events. `work.wait()` makes the current stream wait,
    which would stop backward; here another one waits, and an event on it says when the operation is complete."""

    def __init__(self, group: Any, device: torch.device, store: Any) -> None:
        self._group = group
        self._store = store  # torch keeps a part of it only
        self._device = device
        self._watch = torch.cuda.Stream(device)

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], bool]:
        try:
            work = self._group.allreduce([tensor], _dist.AllreduceOptions())
            with torch.cuda.stream(self._watch):
                work.wait()
                event = torch.cuda.Event()
                event.record(self._watch)
        except RuntimeError as error:
            raise _translated(error, self._device) from error

        def is_complete(_work: Any = work) -> bool:  # which holds what NCCL still needs
            try:
                return bool(event.query())
            except RuntimeError as error:
                raise _translated(error, self._device) from error

        return is_complete

    def abort(self) -> None:
        self._group.abort()


def _translated(error: RuntimeError, device: torch.device) -> Exception:
    """A fault of the network or of a peer; else one of this process's own device."""
    if isinstance(error, _dist.DistError):
        return PeerLost(first_line(error))
    return ElasticError(
        f"{device} of this process has failed: {first_line(error)}. The others go on without it; see the kernel's "
        "log for Xid messages (dmesg, nvidia-smi -q)"
    )
