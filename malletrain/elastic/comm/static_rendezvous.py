"""A world of processes that were started together and stay so many: one `srun` step, or torchrun without elasticity.

The ranks come from the environment; `mpi.mpi_world` is the equal of this where MPI gives them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed

from malletrain.elastic.comm.addresses import join_address, own_host
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.errors import ElasticError, PeerLost

_dist: Any = torch.distributed

#: For how long the processes of one step wait for each other.
RENDEZVOUS_TIMEOUT = timedelta(minutes=5)

#: Ports that a step may meet at, where nothing says which.
FIRST_PORT, PORT_COUNT = 20000, 12000

_STORES: list[Any] = []  #: served as long as this process lives


def environment_world(environ: Mapping[str, str], patience: timedelta = RENDEZVOUS_TIMEOUT) -> Group:
    """The group of all processes of this step, over gloo. Blocks until all have come.

    Of the environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as of torchrun, else SLURM_PROCID, SLURM_NTASKS
    (SLURM_STEP_NUM_TASKS), the first node of SLURM_STEP_NODELIST, and a port that the numbers of job and step give.

    Raises:
        ElasticError: the environment does not say, or the others did not come.
    """
    rank, size = rank_and_size(environ)
    if size == 1:
        return SoloGroup()
    address = rendezvous_address(environ)
    where, _, port = address.rpartition(":")
    try:
        if rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # else torchrun serves one there
            _STORES.append(_dist.TCPStore(where.strip("[]"), int(port), is_master=True, wait_for_workers=False))
        return make_group(
            address, 0, rank, size, own_host(where.strip("[]"), environ.get("MALLETRAIN_ADDRESS")), patience
        )
    except (PeerLost, RuntimeError, OSError) as error:
        raise ElasticError(
            f"the {size} processes of this step did not meet at {address}: {error}; set MASTER_ADDR and MASTER_PORT "
            "where that is not the first node, or the port is taken"
        ) from error


def rank_and_size(environ: Mapping[str, str]) -> tuple[int, int]:
    """(rank, size). Raises `ElasticError` where the environment does not say."""
    for names in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("SLURM_PROCID", "SLURM_NTASKS")):
        rank, size = (environ.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal() and int(rank) < int(size):
            return int(rank), int(size)
    raise ElasticError(
        "neither RANK and WORLD_SIZE nor SLURM_PROCID and SLURM_NTASKS say which process this is: start the script "
        "with srun or torchrun"
    )


def rendezvous_address(environ: Mapping[str, str]) -> str:
    """`host:port` of the store at rank 0. Raises `ElasticError` where the environment does not say."""
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
    """The first name of a Slurm host list: `n[003-010,12],login` begins with `n003`; "" of an empty one."""
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", name.group()) if name else ""
