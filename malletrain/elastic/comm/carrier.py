"""Which carrier sums the gradients of a model: gloo in host memory, or NCCL on its device."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from malletrain.elastic.comm.addresses import missing_interface
from malletrain.elastic.comm.device_group import Collectives
from malletrain.elastic.comm.nccl import connect_nccl, load_nccl
from malletrain.elastic.errors import ElasticError

log = logging.getLogger("malletrain.elastic")

#: Chooses the carrier: `auto` (NCCL for models on a GPU), `nccl` or `gloo`.
BACKEND_VARIABLE = "MALLETRAIN_BACKEND"

#: When communicators are connected: `beside` training, or at the `boundary` between two steps.
CONNECT_VARIABLE = "MALLETRAIN_NCCL_CONNECT"

#: A communicator that is not connected by then beside training is made between two steps instead: kernels of two
#: communicators can wait for room that the other holds.
BESIDE_LIMIT = timedelta(seconds=20)

#: The oldest release of NCCL whose communicators can be made beside each other and aborted.
OLDEST_NCCL = (2, 18, 0)


@dataclass(frozen=True, slots=True)
class DeviceCarrier:
    """Carries tensors of a device.

    Attributes:
        takes: whether a tensor is one of them.
        connect: makes the communicator from a store, rank, size and time limit; blocks. Raises `PeerLost`.
        device: of this process.
        beside_limit: how long connecting may take while another communicator trains; None: connect between steps.
        load: loads what the first communicator of a process needs, so that joining a world is not kept waiting by
            it; blocks. None where there is nothing to load.
    """

    takes: Callable[[torch.Tensor], bool]
    connect: Callable[[Any, int, int, timedelta], Collectives]
    device: torch.device
    beside_limit: timedelta | None = BESIDE_LIMIT
    load: Callable[[], None] | None = None


def find_carrier(model: torch.nn.Module, environ: Mapping[str, str]) -> DeviceCarrier | None:
    """The carrier of a model's device; None where gloo carries everything.

    Raises:
        ElasticError: the model is on two devices, or the variables ask for what is not there.
    """
    backend, when = environ.get(BACKEND_VARIABLE, "auto"), environ.get(CONNECT_VARIABLE, "beside")
    if backend not in ("auto", "nccl", "gloo"):
        raise ElasticError(f"{BACKEND_VARIABLE}={backend!r}: must be auto, nccl or gloo")
    if when not in ("beside", "boundary"):
        raise ElasticError(f"{CONNECT_VARIABLE}={when!r}: must be beside or boundary")
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
    nowhere = missing_interface(environ)
    if nowhere:
        raise ElasticError(nowhere)
    device = on_gpu[0]
    return DeviceCarrier(
        takes=lambda tensor: tensor.device == device,
        connect=functools.partial(connect_nccl, device=device),
        device=device,
        beside_limit=BESIDE_LIMIT if when == "beside" else None,
        load=functools.partial(load_nccl, device),
    )


def _lacks_nccl(environ: Mapping[str, str]) -> str:
    if environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        # NCCL takes two slices of a GPU for one device ("Duplicate GPU detected") and has no path between
        # slices (github.com/NVIDIA/nccl/issues/1716).
        given = environ["CUDA_VISIBLE_DEVICES"][:60]
        return f"this process has a slice of a GPU ({given}), which NCCL does not connect"
    if not torch.distributed.is_nccl_available():
        return f"torch {torch.__version__} is built without NCCL"
    release: tuple[int, ...] = torch.cuda.nccl.version()
    if release < OLDEST_NCCL:
        found, needed = (".".join(map(str, each)) for each in (release, OLDEST_NCCL))
        return f"torch {torch.__version__} comes with NCCL {found}; {needed} or newer is needed"
    return ""
