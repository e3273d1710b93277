"""The group of processes that one `srun` step or torchrun started together: a world of fixed size.

Ranks come from the environment here; `mpi_group.mpi_world` takes them from MPI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed

from malletrain.elastic.comm.addresses import join_address, own_host, split_address
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.errors import ElasticError, PeerLost

_dist: Any = torch.distributed

#: How long the processes of a step wait for each other.
RENDEZVOUS_TIMEOUT = timedelta(minutes=5)

#: The range of ports to choose from where MASTER_PORT is not set.
FIRST_PORT, PORT_COUNT = 20000, 12000

_STORES: list[Any] = []  #: kept alive until this process ends


def environment_world(environ: Mapping[str, str], timeout: timedelta = RENDEZVOUS_TIMEOUT) -> Group:
    """Connect all processes of this step over gloo; blocks until all have come. Pass the result to
    `Session(world=...)`.

    Reads torchrun's variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without them: SLURM_PROCID,
    SLURM_STEP_NUM_TASKS or SLURM_NTASKS, the first node of SLURM_STEP_NODELIST, and a port computed from the ids of
    job and step.

    Raises:
        ElasticError: the variables are missing, or not all processes came within `timeout`.
    """
    rank, size = rank_and_size(environ)
    if size == 1:
        return SoloGroup()
    address = rendezvous_address(environ)
    host, port = split_address(address)
    try:
        if rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # torchrun's agent serves one
            _STORES.append(_dist.TCPStore(host, port, is_master=True, wait_for_workers=False))
        return make_group(address, 0, rank, size, own_host(host, environ.get("MALLETRAIN_ADDRESS")), timeout)
    except (PeerLost, RuntimeError, OSError) as error:
        raise ElasticError(
            f"the {size} processes of this step did not meet at {address}: {error}; set MASTER_ADDR and MASTER_PORT "
            "where that is not the first node, or the port is taken"
        ) from error


def rank_and_size(environ: Mapping[str, str]) -> tuple[int, int]:
    """Rank and world size of this process. Raises `ElasticError` if the environment has neither."""
    for names in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("SLURM_PROCID", "SLURM_NTASKS")):
        rank, size = (environ.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal() and int(rank) < int(size):
            return int(rank), int(size)
    raise ElasticError(
        "neither RANK and WORLD_SIZE nor SLURM_PROCID and SLURM_NTASKS say which process this is: start the script "
        "with srun or torchrun"
    )


def rendezvous_address(environ: Mapping[str, str]) -> str:
    """`host:port` of rank 0's store. Raises `ElasticError` if the environment does not name a host."""
    host = environ.get("MASTER_ADDR") or first_node(
        environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    )
    if not host:
        raise ElasticError("set MASTER_ADDR: neither it nor SLURM_STEP_NODELIST says where the processes meet")
    port = environ.get("MASTER_PORT", "")
    if not port.isdecimal():
        job, step = environ.get("SLURM_JOB_ID", "0"), environ.get("SLURM_STEP_ID", "0")
        number = 31 * int(job if job.isdecimal() else 0) + int(step if step.isdecimal() else 0)
        port = str(FIRST_PORT + number % PORT_COUNT)
    return join_address(host, int(port))


def first_node(nodes: str) -> str:
    """The first name of a Slurm host list: `n003` of `n[003-010,12],login`, "" of an empty list."""
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", name.group()) if name else ""
